//! What peers may run here is judged twice: by the agent, and by the API server of a namespace that enforces the same level.
//!
//! Templates come by chance, from the seed in `.cargo/config.toml`, and are rendered as a provider renders them. `TEMPLATES`
//! says how many for each level.

use futures::StreamExt as _;
use futures::stream;
use k8s_openapi::api::core::v1::{Namespace, Pod, PodTemplateSpec};
use kube::api::{Api, ObjectMeta, PostParams};
use proptest::prelude::*;
use proptest::sample::{select, subsequence};
use proptest::strategy::ValueTree as _;
use proptest::test_runner::{Config, TestRunner};
use serde_json::{Value, json};
use tributary::api::hosted_burst::{HostedBurst, HostedBurstSpec};
use tributary::api::names;
use tributary::api::peer::PodSecurityLevel;
use tributary::bursting::provider::materialize::{self, LEAD_PORT};
use tributary::bursting::provider::pod_security::judge;
use tributary::bursting::template::BurstTemplate;
use tributary::flux::{RankMap, Slot, Topology};
use tributary::render::{Context, HostedSide, render};
use tributary_tests::eventually::eventually;
use tributary_tests::fields::{merge, write};

use crate::shared::together;

/// Templates for each level, if nothing else is said.
const TEMPLATES: usize = 200;

/// What a template may say, and where: of a container, of the container that brings Flux, of the pod.
fn words() -> Vec<(String, Value)> {
    let security = [
        ("privileged", json!([true, false])),
        ("allowPrivilegeEscalation", json!([true, false])),
        ("readOnlyRootFilesystem", json!([true])),
        ("runAsNonRoot", json!([true, false])),
        ("runAsUser", json!([0, 1000, 1])),
        ("runAsGroup", json!([0, 1000])),
        ("procMount", json!(["Default", "Unmasked"])),
        (
            "capabilities",
            json!([{ "add": ["SYS_ADMIN"] }, { "add": ["NET_BIND_SERVICE"] }, { "drop": ["ALL"], "add": ["CHOWN"] },
                { "drop": ["ALL"], "add": ["NET_BIND_SERVICE"] }, { "drop": ["all"] }, { "drop": ["NET_RAW"] },
                { "add": ["CAP_CHOWN"] }, { "add": [""] }, { "drop": ["ALL"], "add": ["ALL"] }]),
        ),
        (
            "seccompProfile",
            json!([{ "type": "Unconfined" }, { "type": "RuntimeDefault" }, { "type": "Localhost", "localhostProfile": "p" },
                { "type": "Other" }, {}]),
        ),
        (
            "appArmorProfile",
            json!([{ "type": "Unconfined" }, { "type": "RuntimeDefault" }, { "type": "Localhost", "localhostProfile": "p" }]),
        ),
        (
            "seLinuxOptions",
            json!([{ "type": "spc_t" }, { "type": "container_t" }, { "user": "system_u" }, { "role": "r" }, { "level": "s0" },
                { "type": "container_engine_t" }, { "type": "container_logreader_t" }, {}]),
        ),
        ("addCapabilities", json!([["SYS_ADMIN"], ["NET_BIND_SERVICE"], ["CHOWN"]])),
        ("fsGroup", json!([0, 1000])),
        ("supplementalGroups", json!([[0], [1000]])),
        ("windowsOptions", json!([{ "hostProcess": true }, { "hostProcess": false }, { "runAsUserName": "u" }])),
    ];
    let of_pods = [
        ("supplementalGroups", json!([[0], [1000]])),
        ("fsGroup", json!([0, 1000])),
        ("fsGroupChangePolicy", json!(["OnRootMismatch"])),
        (
            "sysctls",
            json!([[{ "name": "kernel.msgmax", "value": "1" }], [{ "name": "net.ipv4.tcp_syncookies", "value": "1" }],
                [{ "name": "net.ipv4.tcp_rmem", "value": "1" }], [{ "name": "net/ipv4/tcp_syncookies", "value": "1" }],
                [{ "name": "kernel.shm_rmid_forced", "value": "1" }, { "name": "fs.mqueue.msg_max", "value": "1" }]]),
        ),
    ];
    let others = [
        ("pod.hostIPC", json!([true, false])),
        ("pod.hostPID", json!([true, false])),
        ("shareProcessNamespace", json!([true])),
        ("disableAffinity", json!([true])),
        ("pod.dnsPolicy", json!(["Default", "ClusterFirstWithHostNet"])),
        ("pod.schedulerName", json!(["other"])),
        ("pod.serviceAccountName", json!(["default"])),
        ("pod.nodeSelector", json!([{ "a": "b" }])),
        ("pod.tolerations", json!([[{ "operator": "Exists" }]])),
        ("flux.mungeSecret", json!(["munge"])),
        ("flux.container.disable", json!([true])),
        ("flux.environment", json!([{ "A": "b" }])),
        ("flux.scheduler", json!([{ "simple": true }])),
    ];
    let of_containers = [
        (
            "volumes.v",
            json!([{ "path": "/v", "hostPath": "/" }, { "path": "/v", "secretName": "s" }, { "path": "/v", "claimName": "c" },
            { "path": "/v", "emptyDir": true, "emptyDirMedium": "Memory" }, { "path": "/v", "configMapName": "m", "items": { "a": "b" } },
            { "path": "/v", "csiDriver": "d.example.org" }]),
        ),
        ("lifeCycle", json!([{ "postStartExec": "a" }, { "preStopExec": "b" }])),
        ("commands", json!([{ "pre": "a" }, { "init": "b" }, { "runFluxAsRoot": true }, { "prefix": "nice" }])),
        ("fluxUser", json!([{ "name": "root", "uid": 0 }, { "uid": 0 }, { "uid": 1001 }])),
        ("secrets", json!([{ "T": { "name": "s", "key": "k" } }])),
        ("environment", json!([{ "A": "b" }])),
        ("workingDir", json!(["/"])),
        ("noWrapEntrypoint", json!([true])),
        ("diagnostics", json!([true])),
        ("launcher", json!([true])),
        ("resources", json!([{ "limits": { "cpu": "1", "memory": "1Gi" } }, { "limits": { "nvidia.com/gpu": "1" } }])),
    ];
    let mut words = Vec::new();
    let mut add = |path: String, values: &Value| {
        words.extend(values.as_array().unwrap().iter().map(|value| (path.clone(), value.clone())));
    };
    for place in ["containers[0]", "containers[1]", "flux.container"] {
        security.iter().for_each(|(field, values)| add(format!("{place}.securityContext.{field}"), values));
        // What is not said is said by the pod.
        for field in ["runAsNonRoot", "seccompProfile", "allowPrivilegeEscalation", "capabilities", "runAsUser"] {
            add(format!("{place}.securityContext.{field}"), &json!([null]));
        }
    }
    for place in ["containers[0]", "containers[1]"] {
        of_containers.iter().for_each(|(field, values)| add(format!("{place}.{field}"), values));
    }
    let pods = security.iter().filter(|(field, _)| {
        ![
            "addCapabilities",
            "fsGroup",
            "supplementalGroups",
            "privileged",
            "allowPrivilegeEscalation",
            "readOnlyRootFilesystem",
            "procMount",
            "capabilities",
        ]
        .contains(field)
    });
    pods.chain(&of_pods).for_each(|(field, values)| add(format!("pod.securityContext.{field}"), values));
    others.iter().for_each(|(field, values)| add((*field).to_owned(), values));
    words
}

/// A template that says a few of these: hardened before, or not.
fn templates() -> impl Strategy<Value = Value> {
    let words = words();
    let count = words.len();
    let security = json!({
        "allowPrivilegeEscalation": false, "runAsNonRoot": true, "capabilities": { "drop": ["ALL"] },
        "seccompProfile": { "type": "RuntimeDefault" },
    });
    let hardened = json!({
        "containers": [{ "securityContext": security }, { "securityContext": security }],
        "flux": { "container": { "securityContext": security } },
        "pod": { "securityContext": { "runAsNonRoot": true, "seccompProfile": { "type": "RuntimeDefault" } } },
    });
    let chosen = (subsequence((0..count).collect::<Vec<_>>(), 0..6), select(vec![true, true, true, false]));
    chosen.prop_map(move |(chosen, is_hardened)| {
        let mut template =
            json!({ "containers": [{ "image": "app", "runFlux": true }, { "image": "side", "name": "side" }] });
        if is_hardened {
            merge(&mut template, &hardened);
        }
        for (path, value) in chosen.into_iter().map(|index| &words[index]) {
            write(&mut template, path, value.clone());
        }
        template
    })
}

/// The pod that a provider makes of a template; none if it refuses that for another reason.
fn rendered(json: &Value) -> Option<PodTemplateSpec> {
    let template = BurstTemplate::parse(json).ok()?;
    let slot = "lake-burst-0";
    let burst = Slot::burst(slot, 1, Topology::Gateway.parent_of_bursts("lake"));
    let rank_map = RankMap::new(vec![Slot::root("lake", 1), burst]).unwrap();
    let spec = HostedBurstSpec {
        slot: slot.to_owned(),
        size: 1,
        max_size: 1,
        rank_map: rank_map.to_canonical(),
        template: json.clone(),
        ..HostedBurstSpec::default()
    };
    let mut hosted = HostedBurst::new(slot, spec);
    hosted.metadata.namespace = Some("judged".to_owned());
    hosted.metadata.uid = Some("7d5e1b1c-0000-4000-8000-000000000000".to_owned());
    let mut mini_cluster = materialize::mini_cluster(&hosted, &template, &rank_map);
    mini_cluster.metadata.uid.clone_from(&hosted.metadata.uid);
    let side = HostedSide { rank_map, slot: slot.to_owned(), lead_service: names::lead(slot), lead_port: LEAD_PORT };
    let rendered = render(&mini_cluster, &Context { hosted: Some(side), ..Context::default() }).ok()?;
    Some(rendered.job.spec?.template)
}

#[tokio::test(flavor = "multi_thread")]
#[allow(clippy::print_stderr, reason = "how many there were is told")]
async fn what_the_agent_takes_from_peers_is_taken_by_namespaces_of_that_level() {
    let federation = together().await;
    let client = federation.client(1).await;
    let count = std::env::var("TEMPLATES").map_or(TEMPLATES, |text| text.parse().expect("TEMPLATES is a number"));
    let strategy = templates();
    let mut runner = TestRunner::new(Config::default());
    for (level, name) in [(PodSecurityLevel::Baseline, "baseline"), (PodSecurityLevel::Restricted, "restricted")] {
        let namespace = format!("taken-{name}");
        let object: Namespace = serde_json::from_value(json!({
            "metadata": { "name": namespace, "labels": { "pod-security.kubernetes.io/enforce": name } } }))
        .unwrap();
        Api::<Namespace>::all(client.clone()).create(&PostParams::default(), &object).await.unwrap();
        let pods: Api<Pod> = Api::namespaced(client.clone(), &namespace);
        eventually("the namespace has its service account", async || {
            let accounts: Api<k8s_openapi::api::core::v1::ServiceAccount> = Api::namespaced(client.clone(), &namespace);
            accounts.get("default").await.map(drop).map_err(|error| error.to_string())
        })
        .await;
        // As many are taken as are asked for; those that the agent refuses on the way are tried too, up to the same number.
        let (mut tried, mut made) = (Vec::new(), [0, 0]);
        while made[1] < count {
            let json = strategy.new_tree(&mut runner).unwrap().current();
            let Some(template) = rendered(&json) else { continue };
            let takes = judge(level, &template).is_empty();
            made[usize::from(takes)] += 1;
            if takes || made[0] <= count {
                tried.push((json, template, takes));
            }
        }
        let judged: Vec<_> = stream::iter(tried)
            .map(|(json, template, takes)| {
                let pods = pods.clone();
                async move {
                    let metadata =
                        ObjectMeta { name: Some("judged".to_owned()), ..template.metadata.clone().unwrap_or_default() };
                    let pod = Pod { metadata, spec: template.spec.clone(), status: None };
                    let params = PostParams { dry_run: true, ..PostParams::default() };
                    let verdict = match pods.create(&params, &pod).await {
                        Ok(_) => Some(true),
                        Err(kube::Error::Api(status)) if status.message.contains("violates PodSecurity") => Some(false),
                        // What makes no pod is refused by the provider's dry run.
                        Err(kube::Error::Api(status)) if status.code == 422 => None,
                        Err(error) => panic!("{error}"),
                    };
                    (json, template, takes, verdict)
                }
            })
            .buffer_unordered(8)
            .collect()
            .await;
        let mut counts = [0_usize; 3];
        for (json, template, takes, verdict) in judged {
            let Some(verdict) = verdict else {
                counts[2] += 1;
                continue;
            };
            counts[usize::from(verdict)] += 1;
            assert_eq!(takes, verdict, "{name}: {json:#}\nours: {:?}", judge(level, &template));
        }
        eprintln!("{name}: {} taken, {} refused by both; {} were no pods", counts[1], counts[0], counts[2]);
        assert!(counts[1] > count / 2 && counts[0] > count / 4, "{counts:?}");
    }
}
