//! What a root wants to run here: its offer and template, through admission and rendering, and what must never come of it.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Container, PodSpec};
use serde_json::json;
use tributary_api::names;
use tributary_api::peer::ImportPolicy;
use tributary_bursting::nodes::{NodeView, PodView};
use tributary_bursting::provider::admission::{self, Facts};
use tributary_bursting::provider::{ledger::Ledger, materialize, policy};
use tributary_bursting::template::BurstTemplate;
use tributary_contract::{DesiredBurst, PeerName, RootIdentity};
use tributary_flux::{RankMap, Slot, Topology};
use tributary_render::Context;
use tributary_render::nodes::Amounts;

use super::Target;
use super::grow::{Bytes, Fields, grow};

const SLOT: &str = "lake-burst-0";

/// A good offer.
pub(crate) fn offer() -> DesiredBurst {
    let parent = Topology::Gateway.parent_of_bursts("lake");
    let burst = Slot::burst(SLOT, 3, parent).with_resources(2, 0);
    let map = RankMap::new(vec![Slot::root("lake", 4), burst]).expect("two slots are a rank map");
    DesiredBurst {
        uid: "burst-uid".into(),
        generation: 1,
        root: RootIdentity {
            namespace: "flux".to_owned(),
            name: "lake".to_owned(),
            uid: "root-uid".to_owned(),
            incarnation: "job-1".to_owned(),
        },
        slot: SLOT.to_owned(),
        size: 3,
        max_size: 3,
        cores: 2,
        gpus: 0,
        rank_map: map.to_canonical(),
        rank_map_digest: map.digest().to_string(),
        credential_digest: "sha256:00".to_owned(),
        lead: None,
        whole: false,
        tunnel: false,
        flux_version: None,
        arch: None,
        template: json!({"containers": [{"image": "app", "command": "hostname"}]}),
        lease_seconds: 300,
        drain_seconds: 60,
        warm: false,
        hosted_uid: None,
        offer: String::new(),
        trace: None,
        user: None,
    }
}

/// What a template of a hostile root would try.
const FIELDS: Fields = &[
    ("/containers/0/image", &["\"ghcr.io/org/app:1\"", "\"a b\"", "\"evil/image\\nx\""]),
    ("/containers/0/name", &["\"app\"", "\"flux-view\"", "\"lake-burst-0\"", "\"A\""]),
    ("/containers/0/command", &["\"hostname\"", "\"'; touch /x; '\"", "\"\\n#\\nexit\"", "\"$(cat /etc/curve.cert)\""]),
    ("/containers/0/runFlux", &["true", "false"]),
    ("/containers/0/workingDir", &["\"/data\"", "\"../x\"", "\"/a b;c\""]),
    ("/containers/0/ports", &["[80]", "[]", "[0,65536]"]),
    ("/containers/0/environment", &["{\"A\":\"1\"}", "{\"PATH\":\"/x\",\"LD_PRELOAD\":\"/y\"}", "{\"a b\":\"\"}"]),
    (
        "/containers/0/secrets",
        &["{\"T\":{\"name\":\"token\",\"key\":\"k\"}}", "{\"T\":{\"name\":\"lake-curve\",\"key\":\"curve.cert\"}}"],
    ),
    ("/containers/0/imagePullSecret", &["\"pull\"", "\"other\""]),
    ("/containers/0/imagePullPolicy", &["\"Always\"", "\"Never\"", "\"x\""]),
    ("/containers/0/volumes/data/path", &["\"/data\"", "\"/etc/flux\"", "\"/\"", "\"../..\"", "\"/mnt/flux\""]),
    ("/containers/0/volumes/data/hostPath", &["\"/\"", "\"/data/shared\"", "\"/data/../etc\"", "\"/data/sharedx\""]),
    (
        "/containers/0/volumes/data/configMapName",
        &["\"settings\"", "\"kube-root-ca.crt\"", "\"lake-burst-0-entrypoint\""],
    ),
    ("/containers/0/volumes/data/secretName", &["\"token\"", "\"lake-burst-0-curve\"", "\"tributary-identity\""]),
    ("/containers/0/volumes/data/claimName", &["\"scratch\"", "\"other\""]),
    ("/containers/0/volumes/data/csiDriver", &["\"csi.example.org\"", "\"secrets-store.csi.k8s.io\""]),
    ("/containers/0/volumes/data/csiDriverAttributes", &["{\"a\":\"b\"}"]),
    ("/containers/0/volumes/data/emptyDir", &["true", "false"]),
    ("/containers/0/volumes/data/emptyDirMedium", &["\"Memory\"", "\"Disk\""]),
    ("/containers/0/volumes/data/emptyDirSizeLimit", &["\"1Gi\"", "\"x\"", "\"-1\""]),
    ("/containers/0/volumes/data/items", &["{\"a\":\"b\"}", "{\"a\":\"../b\"}"]),
    ("/containers/0/existingVolumes/more/path", &["\"/more\"", "\"/var/run\""]),
    ("/containers/0/existingVolumes/more/hostPath", &["\"/var/run/docker.sock\"", "\"/data/shared/x\""]),
    ("/containers/0/existingVolumes/more/emptyDir", &["true"]),
    ("/containers/0/lifeCycle", &["{\"postStartExec\":\"id\"}", "{\"preStopExec\":\"sleep 9 && x\"}"]),
    (
        "/containers/0/resources/limits",
        &["{\"cpu\":\"2\",\"memory\":\"1Gi\"}", "{\"nvidia.com/gpu\":1}", "{\"cpu\":\"-1\"}", "{\"cpu\":1e30}"],
    ),
    (
        "/containers/0/resources/requests",
        &[
            "{\"cpu\":\"500m\"}",
            "{\"memory\":\"170141183460469231731687303715884105\"}",
            "{\"cpu\":\"0\"}",
            "{\"a/b\":\"1n\"}",
        ],
    ),
    ("/containers/0/resources/claims", &["[{\"name\":\"gpu\"}]", "[]"]),
    ("/containers/0/commands/pre", &["\"echo x\"", "\"'\"", "\"EOF\\nid\""]),
    ("/containers/0/commands/workerPre", &["\"echo x\"", "\"`id`\""]),
    ("/containers/0/commands/prefix", &["\"strace\"", "\"; id\""]),
    ("/containers/0/securityContext/privileged", &["true", "false"]),
    (
        "/containers/0/securityContext/addCapabilities",
        &["[\"SYS_ADMIN\"]", "[\"NET_BIND_SERVICE\"]", "[\"all\"]", "[\"ALL\"]", "[\"net_admin\"]"],
    ),
    ("/containers/0/securityContext/capabilities", &["{\"add\":[\"SYS_PTRACE\"]}", "{\"drop\":[\"ALL\"]}"]),
    ("/containers/0/securityContext/allowPrivilegeEscalation", &["true", "false"]),
    ("/containers/0/securityContext/runAsUser", &["0", "1000"]),
    ("/containers/0/securityContext/runAsNonRoot", &["true", "false"]),
    ("/containers/0/securityContext/seccompProfile", &["{\"type\":\"Unconfined\"}", "{\"type\":\"RuntimeDefault\"}"]),
    ("/containers/0/securityContext/procMount", &["\"Unmasked\""]),
    ("/containers/0/fluxUser", &["{\"name\":\"fluxuser\",\"uid\":1000}", "{\"uid\":0}", "{\"name\":\"a;b\"}"]),
    ("/containers/0/cores", &["2", "0", "-2147483648", "2147483647"]),
    ("/containers/0/batch", &["true"]),
    ("/containers/0/launcher", &["true"]),
    ("/containers/0/logs", &["\"/tmp\"", "\"/a b\""]),
    ("/containers/0/preCommand", &["\"export A=1\"", "\"}\"", "\"EOF\""]),
    ("/containers/0/diagnostics", &["true"]),
    ("/containers/1/image", &["\"sidecar\"", "\"evil/x\""]),
    ("/containers/1/runFlux", &["true", "false"]),
    ("/containers/1/name", &["\"side\"", "\"app\""]),
    ("/containers/1/command", &["\"sleep inf\"", "\"'\""]),
    ("/containers/1/securityContext/privileged", &["true"]),
    ("/containers/1/volumes/data/hostPath", &["\"/\""]),
    ("/containers/1/volumes/data/path", &["\"/other\""]),
    ("/flux/container/image", &["\"ghcr.io/converged-computing/flux-view-ubuntu:tag-noble\"", "\"evil\""]),
    ("/flux/container/disable", &["true", "false"]),
    ("/flux/container/name", &["\"app\"", "\"flux-view\"", "\"x y\""]),
    ("/flux/container/imagePullSecret", &["\"pull\"", "\"other\""]),
    ("/flux/container/mountPath", &["\"/mnt/flux\"", "\"/\"", "\"/etc\"", "\"/a:b\""]),
    ("/flux/container/securityContext/privileged", &["true"]),
    ("/flux/container/resources/requests", &["{\"cpu\":\"9\"}", "{\"memory\":\"1Ki\"}"]),
    ("/flux/topology", &["\"kary:2\"", "\"custom\"", "\"kary:99999999999\"", "\"x\\\"]\\n[a]\""]),
    ("/flux/wrap", &["\"strace,-f\"", "\"$(id)\""]),
    ("/flux/connectTimeout", &["\"5s\"", "\"inf\"", "\"1;id\""]),
    ("/flux/scheduler", &["{\"queuePolicy\":\"easy\"}", "{\"simple\":true}", "{\"queuePolicy\":\"\\\"\"}"]),
    ("/flux/mungeSecret", &["\"munge\"", "\"other\""]),
    ("/flux/environment", &["{\"A\":\"b'c\"}", "{\"A;id\":\"\"}"]),
    ("/flux/logLevel", &["7", "8", "-1"]),
    ("/flux/arch", &["\"arm64\"", "\"$(id)\""]),
    ("/logging", &["{\"strict\":true,\"timed\":true}", "{\"debug\":true,\"zeromq\":true,\"quiet\":true}"]),
    ("/pod/serviceAccountName", &["\"guests\"", "\"admin\"", "\"\""]),
    ("/pod/runtimeClassName", &["\"gvisor\"", "\"kata\""]),
    ("/pod/priorityClassName", &["\"system-node-critical\"", "\"\""]),
    ("/pod/schedulerName", &["\"fluence\"", "\"other\""]),
    ("/pod/nodeSelector", &["{\"pool\":\"guests\"}", "{\"node-role.kubernetes.io/control-plane\":\"\"}"]),
    ("/pod/nodeAffinity", &["{\"pool\":[\"a\",\"b\"]}", "{\"zone\":[]}"]),
    ("/pod/tolerations", &["[{\"operator\":\"Exists\"}]", "[{\"key\":\"guests\",\"operator\":\"Exists\"}]", "[{}]"]),
    ("/pod/dnsPolicy", &["\"Default\"", "\"ClusterFirstWithHostNet\"", "\"x\""]),
    ("/pod/hostIPC", &["true", "false"]),
    ("/pod/hostPID", &["true", "false"]),
    ("/pod/hostNetwork", &["true"]),
    ("/pod/resources", &["{\"cpu\":\"1\"}", "{\"memory\":{}}"]),
    (
        "/pod/securityContext",
        &[
            "{\"sysctls\":[{\"name\":\"kernel.msgmax\",\"value\":\"1\"}]}",
            "{\"runAsUser\":0}",
            "{\"fsGroup\":0,\"supplementalGroups\":[0]}",
            "{\"seccompProfile\":{\"type\":\"Unconfined\"}}",
            "{\"seLinuxOptions\":{\"type\":\"spc_t\"}}",
            "{\"runAsNonRoot\":true,\"seccompProfile\":{\"type\":\"RuntimeDefault\"}}",
        ],
    ),
    ("/pod/labels", &["{\"a\":\"b\"}"]),
    ("/disableAffinity", &["true"]),
    ("/shareProcessNamespace", &["true"]),
    (
        "/lead",
        &[
            "{\"tasks\":2}",
            "{\"optionFlags\":\"-x;id\"}",
            "{\"submitCommand\":\"id\",\"launcher\":true}",
            "{\"deadlineSeconds\":-1}",
            "{\"backoffLimit\":-9,\"tasks\":-1}",
            "null",
        ],
    ),
    ("/unknown", &["1", "0"]),
];

/// What an offer says beside its template.
const OFFER: Fields = &[
    ("/size", &["1", "0", "4", "4294967295"]),
    ("/maxSize", &["3", "1", "4294967295"]),
    ("/cores", &["2", "0", "4294967295"]),
    ("/gpus", &["0", "1"]),
    ("/slot", &["\"lake\"", "\"other\"", "\"kube-dns\"", "\"-\""]),
    ("/root/namespace", &["\"flux\"", "\"kube-system\"", "\"tributary-system\"", "\"a/b\""]),
    ("/root/name", &["\"lake\"", "\"lake-burst-0\"", "\"Lake\""]),
    ("/leaseSeconds", &["0", "4294967295"]),
    ("/drainSeconds", &["0", "4294967295"]),
    ("/fluxVersion", &["\"0.88\"", "\"0.1\"", "\"x\""]),
    ("/whole", &["true"]),
    ("/tunnel", &["true"]),
    ("/lead", &["{\"address\":\"127.0.0.1\",\"port\":1}", "{\"address\":\"lead.example.org\",\"port\":0}"]),
    ("/trace", &["\"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01\"", "\"x\\ny\""]),
];

/// What owners may have written.
const POLICY: Fields = &[
    ("/podSecurity", &["\"restricted\"", "\"baseline\"", "\"unknown\""]),
    ("/namespaces", &["[\"*\"]", "[\"flux\"]", "[]"]),
    ("/targetNamespace", &["\"burst-{peer}-{namespace}\"", "\"{namespace}\"", "\"tributary-system\""]),
    ("/serviceAccount", &["\"guests\""]),
    ("/runtimeClass", &["\"gvisor\""]),
    ("/priorityClass", &["\"low\""]),
    ("/nodeSelector", &["{\"pool\":\"guests\"}"]),
    ("/maxBrokers", &["3", "0", "-1"]),
    ("/maxCores", &["6", "1"]),
    ("/maxMemory", &["\"8Gi\"", "\"x\""]),
    ("/maxDuration", &["\"1h\""]),
    ("/allowSecrets", &["[\"token\"]", "[\"*\"]", "[\"t*n\",\"munge\"]"]),
    ("/allowConfigMaps", &["[\"settings\"]", "[\"*\"]"]),
    ("/allowClaims", &["[\"scratch\"]"]),
    ("/allowServiceAccounts", &["[\"guests\"]", "[\"*\"]"]),
    ("/allowImagePullSecrets", &["[\"pull\"]"]),
    ("/allowHostPaths", &["[\"/data/shared\"]", "[\"/\"]"]),
    ("/fluxVersion", &["\"0.88\""]),
];

const PEER: &str = "east";

pub(crate) const TEMPLATE: Target = Target {
    name: "template",
    run: |data| {
        let mut bytes = Bytes(data);
        let (mut document, mut import) = (json!(offer()), json!({"namespaces": ["flux"]}));
        if data.first() == Some(&b'{') {
            // The template itself, as text.
            document["template"] = serde_json::from_slice(data).unwrap_or_default();
        } else {
            let (of_offer, of_policy) = (bytes.byte() % 4, bytes.byte() % 8);
            grow(&mut document, OFFER, &mut bytes, of_offer.into());
            grow(&mut import, POLICY, &mut bytes, of_policy.into());
            grow(&mut document["template"], FIELDS, &mut bytes, 24);
        }
        let Ok(mut desired) = serde_json::from_value::<DesiredBurst>(document) else { return };
        let Ok(import) = serde_json::from_value::<ImportPolicy>(import) else { return };
        if desired.whole {
            let map = RankMap::new(vec![Slot::root(desired.slot.clone(), 3).with_resources(2, 0)]);
            let Ok(map) = map else { return };
            (desired.rank_map, desired.rank_map_digest) = (map.to_canonical(), map.digest().to_string());
            if desired.template.get("lead").is_none() && desired.template.is_object() {
                desired.template["lead"] = json!({"tasks": 1});
            }
        }
        hosted(&desired, &import);
    },
    seeds: || {
        let mut all: Vec<Vec<u8>> = (0..FIELDS.len())
            .collect::<Vec<_>>()
            .chunks(3)
            .map(|few| [vec![0, 0], few.iter().flat_map(|field| [*field as u8, 0]).collect()].concat())
            .collect();
        all.push(vec![0, 3, 0, 0, 11, 1, 16, 1]);
        all.push(vec![1, 0, 10, 0, 0, 0]);
        all.push(br#"{"containers":[{"image":"a","volumes":{"x":{"emptyDir":true,"path":"/x"}}}]}"#.to_vec());
        all
    },
    words: &[],
};

/// Takes an offer as an agent would, and judges what comes of it by rules of its own.
fn hosted(desired: &DesiredBurst, import: &ImportPolicy) {
    let peer: PeerName = PEER.into();
    let slot = admission::slot_key(&peer, desired, Some(import));
    let node = NodeView {
        schedulable: true,
        allocatable: Amounts { milli_cores: 64_000, memory: 1 << 40, gpus: 8 },
        labels: BTreeMap::from([("pool".to_owned(), "guests".to_owned())]),
        ..NodeView::default()
    };
    let nodes = BTreeMap::from([("a".to_owned(), node)]);
    let facts = Facts {
        import: Some(import),
        draining: false,
        slot: &slot,
        namespace_exists: true,
        own_namespace: "tributary-system",
        ledger: &Ledger::default(),
        nodes: &nodes,
        pods: &Vec::<PodView>::new(),
    };
    let admitted = match admission::admit(&peer, desired, &facts) {
        Ok(admitted) => admitted,
        Err(rejection) => return assert!(!rejection.message.is_empty()),
    };
    let template = admitted.template;
    assert_eq!(BurstTemplate::parse(&template.to_json()).as_ref(), Ok(&template), "it is stored as it was admitted");
    assert!(slot.0 != "tributary-system", "the agent's own namespace takes nothing");
    assert!(desired.size <= desired.max_size && desired.max_size == 3);
    let hosted = materialize::hosted_burst(&slot.0, &peer, &"uid-east".into(), desired, &template);
    let Ok(rendered) = materialize::rendered(&hosted, &template, &admitted.rank_map, &Context::default()) else {
        return;
    };
    let pod = rendered.job.spec.clone().expect("a Job has a spec").template;
    if admission::judge_pod(&peer, import, &pod).is_err() {
        return;
    }

    let spec = pod.spec.expect("a pod has a spec");
    safe(&spec, import, &desired.slot);
    let account = spec.service_account_name.as_deref().unwrap_or_default();
    let imposed = import.service_account.as_deref().unwrap_or(admission::DEFAULT_SERVICE_ACCOUNT);
    let named = |allowed: &[String], name: &str| allowed.iter().any(|pattern| policy::matches(pattern, name));
    assert!(account == imposed || named(&import.allow_service_accounts, account), "service account {account:?}");
    assert_eq!(spec.automount_service_account_token, Some(false));
    assert_eq!(spec.priority_class_name, import.priority_class);
    for (label, value) in &import.node_selector {
        assert_eq!(spec.node_selector.iter().flatten().find(|(key, _)| *key == label).map(|one| one.1), Some(value));
    }
    assert!(spec.node_name.is_none() && spec.host_aliases.is_none() && spec.ephemeral_containers.is_none());

    assert!(rendered.claims.is_empty() && rendered.persistent_volumes.is_empty() && rendered.service_pod.is_none());
    let job = &rendered.job.metadata;
    let services = rendered.services.iter().map(|service| &service.metadata);
    for metadata in services.chain([job, &rendered.config_map.metadata]) {
        assert_eq!(metadata.namespace.as_deref(), Some(slot.0.as_str()), "{:?}", metadata.name);
    }
    for service in &rendered.services {
        let spec = service.spec.clone().unwrap_or_default();
        assert!(spec.external_ips.is_none() && spec.external_name.is_none());
        assert!(
            spec.type_.is_none_or(|kind| kind == "ClusterIP")
                && spec.ports.iter().flatten().all(|port| port.node_port.is_none())
        );
        let name = service.metadata.name.as_deref().unwrap_or_default();
        assert!(
            name == desired.slot || name.starts_with(&format!("{}-", desired.slot)) || name == "flux-service",
            "{name}"
        );
    }
    for key in pod.metadata.iter().flat_map(|metadata| metadata.labels.iter().flatten()).map(|label| label.0) {
        let ours = ["job-name", "app.kubernetes.io/", "tributary.dev/", "flux-framework.org/", "batch.kubernetes.io/"];
        assert!(ours.iter().any(|begin| key.starts_with(begin)) || key == "namespace" || key == "app", "label {key}");
    }
}

/// What no pod of a peer has, at `baseline` and above. Written apart from the judgement of the product, to see both agree.
fn safe(spec: &PodSpec, import: &ImportPolicy, slot: &str) {
    for host in [spec.host_network, spec.host_pid, spec.host_ipc] {
        assert_ne!(host, Some(true), "a namespace of the node");
    }
    let named = |allowed: &[String], name: &str| allowed.iter().any(|pattern| policy::matches(pattern, name));
    for volume in spec.volumes.iter().flatten() {
        assert!(volume.host_path.is_none(), "host path {volume:?}");
        let secret = volume.secret.as_ref().and_then(|secret| secret.secret_name.as_deref());
        if let Some(name) = secret.filter(|name| *name != names::curve(slot)) {
            assert!(named(&import.allow_secrets, name), "secret {name}");
        }
        if let Some(map) = &volume.config_map {
            assert!(
                map.name == names::entrypoint(slot) || named(&import.allow_config_maps, &map.name),
                "ConfigMap {}",
                map.name
            );
        }
        if let Some(claim) = &volume.persistent_volume_claim {
            assert!(named(&import.allow_claims, &claim.claim_name), "claim {}", claim.claim_name);
        }
        assert!(volume.csi.is_none(), "a driver that no policy names");
        let others =
            [volume.nfs.is_some(), volume.projected.is_some(), volume.downward_api.is_some(), volume.iscsi.is_some()];
        assert!(!others.contains(&true), "{volume:?}");
    }
    let init = spec.init_containers.iter().flatten();
    for Container { name, security_context, ports, env, env_from, liveness_probe, .. } in
        spec.containers.iter().chain(init)
    {
        let security = security_context.clone().unwrap_or_default();
        assert_ne!(security.privileged, Some(true), "{name} is privileged");
        let added = security.capabilities.and_then(|all| all.add).unwrap_or_default();
        assert!(
            !added.iter().any(|one| one.contains("SYS_ADMIN") || one.contains("NET_ADMIN") || one == "ALL"),
            "{added:?}"
        );
        assert!(ports.iter().flatten().all(|port| port.host_port.is_none()), "{name} has a port of the node");
        assert!(env_from.is_none() && liveness_probe.is_none());
        for source in env.iter().flatten().filter_map(|variable| variable.value_from.as_ref()) {
            if let Some(secret) = &source.secret_key_ref {
                assert!(named(&import.allow_secrets, &secret.name), "secret {}", secret.name);
            }
            assert!(source.config_map_key_ref.is_none());
        }
    }
    for secret in spec.image_pull_secrets.iter().flatten() {
        assert!(named(&import.allow_image_pull_secrets, &secret.name), "pull secret {}", secret.name);
    }
}
