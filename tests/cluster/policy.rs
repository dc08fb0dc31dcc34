//! What a provider lets in.

use k8s_openapi::api::core::v1::{Namespace, Pod, PodTemplateSpec, ResourceQuota, ServiceAccount};
use k8s_openapi::api::networking::v1::NetworkPolicy;
use k8s_openapi::api::scheduling::v1::PriorityClass;
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams};
use serde_json::{Value, json};
use tributary::api::hosted_burst::BurstPhase;
use tributary::api::peer::{ClusterPeer, PodSecurityLevel};
use tributary::bursting::provider::pod_security::judge;
use tributary::clock::{Rng as _, SeededRng};
use tributary_tests::agent::AGENT_USER;
use tributary_tests::agentctl::agentctl;
use tributary_tests::eventually::{eventually, gone};
use tributary_tests::federation::SYSTEM;
use tributary_tests::scenario::{Place, bursting};

use crate::shared::{places, quiet, together};

/// Changes what east may place there, and waits until the agent knows it.
pub(crate) async fn import(peers: &Api<ClusterPeer>, policy: Value) {
    let patch = Patch::Merge(json!({"spec": {"import": policy}}));
    let changed = peers.patch("east", &PatchParams::default(), &patch).await.unwrap().metadata.generation;
    eventually("the agent has seen the policy", async || {
        let seen = peers.get("east").await.map_err(|error| error.to_string())?.status.unwrap_or_default();
        if seen.observed_generation >= changed { Ok(()) } else { Err(format!("{seen:?}, not {changed:?}")) }
    })
    .await;
}

/// The reason of a refusal, and that the root is unaffected.
async fn refused(root: &Place, provider: &Place, name: &str) -> (String, String) {
    let slot = format!("{name}-burst-0");
    let burst = root.burst(name, &slot, BurstPhase::Rejected).await;
    let refusal = burst.status.unwrap().refusals.remove(0);
    root.running(name).await;
    assert!(provider.left(&slot).await.unwrap().is_empty(), "something was made of a burst that was refused");
    (refusal.reason, refusal.message)
}

/// What a policy imposes is in the pods that run, and what the namespace has no room for is refused, until somebody asks
/// again.
#[tokio::test(flavor = "multi_thread")]
async fn hosted_pods_are_what_the_policy_makes_of_them() {
    let federation = quiet().await;
    let [east, west, _] = places(&federation, "imposed").await;
    let peers: Api<ClusterPeer> = Api::namespaced(federation.client(1).await, SYSTEM);
    let import = async |policy: Value| import(&peers, policy).await;
    import(json!({"serviceAccount": "guests", "priorityClass": "guests", "tolerations": [{"key": "guests", "operator": "Exists"}],
        "egress": {"allow": ["203.0.113.0/24"]}}))
    .await;
    let spec = |size: i32| bursting(1, json!([{"size": size, "peer": "west"}]));
    east.create("guarded", spec(1)).await;
    let (reason, message) = refused(&east, &west, "guarded").await;
    assert!(reason == "NotRenderable" && message.contains("guests"), "{reason}: {message}");

    // What the policy names is made, and somebody asks again.
    let class: PriorityClass = serde_json::from_value(json!({"metadata": {"name": "guests"}, "value": 7})).unwrap();
    Api::<PriorityClass>::all(west.client.clone()).create(&PostParams::default(), &class).await.unwrap();
    let account: ServiceAccount = serde_json::from_value(json!({"metadata": {"name": "guests"}})).unwrap();
    let accounts: Api<ServiceAccount> = Api::namespaced(west.client.clone(), "imposed");
    accounts.create(&PostParams::default(), &account).await.unwrap();
    let retry = async |name: &str| {
        let kubeconfig = federation.clusters()[0].kubeconfig_in(AGENT_USER, Some("system:masters")).unwrap();
        agentctl(&kubeconfig, &["burst", "retry", &format!("{name}-burst-0"), "-n", "imposed"]).await.unwrap();
    };
    retry("guarded").await;
    east.burst("guarded", "guarded-burst-0", BurstPhase::Ready).await;
    let pods = west.pods().list(&ListParams::default().labels("job-name=guarded-burst-0")).await.unwrap();
    let pod = pods.items[0].spec.clone().unwrap();
    assert_eq!(
        (pod.service_account_name.as_deref(), pod.automount_service_account_token),
        (Some("guests"), Some(false))
    );
    assert_eq!((pod.priority_class_name.as_deref(), pod.priority), (Some("guests"), Some(7)));
    assert!(pod.tolerations.unwrap().iter().any(|one| one.key.as_deref() == Some("guests")));
    let policies: Api<NetworkPolicy> = Api::namespaced(west.client.clone(), "imposed");
    let policy = policies.get("guarded-burst-0-egress").await.unwrap().spec.unwrap();
    let selected = policy.pod_selector.unwrap_or_default().match_labels.unwrap();
    assert!(selected.values().any(|job| job == "guarded-burst-0"), "{selected:?}");
    let rules = serde_json::to_string(&policy.egress).unwrap();
    let lead = west.lead_endpoint("guarded-burst-0").await.unwrap();
    assert!(rules.contains("203.0.113.0/24") && rules.contains(&format!("{}/32", lead.address)), "{rules}");

    // One more pod is all that the namespace takes: a burst of two is refused as a whole.
    let quota: ResourceQuota =
        serde_json::from_value(json!({"metadata": {"name": "room"}, "spec": {"hard": {"pods": "2"}}})).unwrap();
    let quotas: Api<ResourceQuota> = Api::namespaced(west.client.clone(), "imposed");
    quotas.create(&PostParams::default(), &quota).await.unwrap();
    eventually("the quota is in force", async || {
        let status = quotas.get("room").await.map_err(|error| error.to_string())?.status.unwrap_or_default();
        let used = status.used.and_then(|used| used.get("pods").map(|pods| pods.0.clone()));
        if used.as_deref() == Some("1") { Ok(()) } else { Err(format!("{used:?}")) }
    })
    .await;
    east.create("crowd", spec(2)).await;
    let (reason, message) = refused(&east, &west, "crowd").await;
    assert!(reason == "QuotaExceeded" && message.contains("room"), "{reason}: {message}");
    quotas.delete("room", &DeleteParams::default()).await.unwrap();
    east.burst("crowd", "crowd-burst-0", BurstPhase::Ready).await;
    // A policy that is taken back opens what it closed.
    import(json!({"serviceAccount": null, "priorityClass": null, "tolerations": null, "egress": null})).await;
    gone(&policies, "guarded-burst-0-egress").await;
    for root in ["guarded", "crowd"] {
        east.delete(root).await;
        west.empty(&format!("{root}-burst-0")).await;
    }
}

/// What a pod may say about its security, somewhere.
fn words() -> Vec<(&'static str, Value)> {
    let mut words = vec![
        ("/spec/hostNetwork", json!(true)),
        ("/spec/hostPID", json!(true)),
        ("/spec/hostIPC", json!(true)),
        ("/spec/volumes", json!([{"name": "v", "hostPath": {"path": "/"}}])),
        ("/spec/volumes", json!([{"name": "v", "nfs": {"server": "s", "path": "/"}}])),
        ("/spec/volumes", json!([{"name": "v", "secret": {"secretName": "s"}}])),
        (
            "/spec/volumes",
            json!([{"name": "v", "ephemeral": {"volumeClaimTemplate": {"spec": {
            "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}}}}]),
        ),
        ("/spec/securityContext", json!({})),
        ("/spec/securityContext/runAsUser", json!(0)),
        ("/spec/securityContext/runAsNonRoot", json!(false)),
        ("/spec/securityContext/sysctls", json!([{"name": "net.ipv4.tcp_syncookies", "value": "1"}])),
        ("/spec/securityContext/sysctls", json!([{"name": "kernel.msgmax", "value": "1"}])),
        ("/spec/securityContext/seccompProfile", json!({"type": "Unconfined"})),
        ("/spec/securityContext/appArmorProfile", json!({"type": "Unconfined"})),
        ("/spec/securityContext/seLinuxOptions", json!({"type": "spc_t"})),
        ("/spec/securityContext/windowsOptions", json!({"hostProcess": true})),
    ];
    for container in ["/spec/containers/0", "/spec/containers/1", "/spec/initContainers/0"] {
        let security = |field: &str| -> &'static str { format!("{container}/securityContext/{field}").leak() };
        words.extend([
            (security("privileged"), json!(true)),
            (security("allowPrivilegeEscalation"), json!(true)),
            (security("allowPrivilegeEscalation"), Value::Null),
            (security("capabilities"), json!({"drop": ["ALL"], "add": ["NET_BIND_SERVICE"]})),
            (security("capabilities"), json!({"drop": ["ALL"], "add": ["CHOWN"]})),
            (security("capabilities"), json!({"drop": ["NET_RAW"], "add": ["SYS_ADMIN"]})),
            (security("procMount"), json!("Unmasked")),
            (security("runAsNonRoot"), Value::Null),
            (security("runAsUser"), json!(0)),
            (security("seccompProfile"), json!({"type": "Unconfined"})),
            (security("seccompProfile"), Value::Null),
            (security("seLinuxOptions"), json!({"user": "system_u"})),
            (security("seLinuxOptions"), json!({"type": "container_init_t", "level": "s0"})),
            (security("appArmorProfile"), json!({"type": "Localhost", "localhostProfile": "p"})),
            (format!("{container}/ports").leak(), json!([{"containerPort": 80, "hostPort": 80}])),
        ]);
    }
    words.extend([
        ("/spec/containers/0/livenessProbe", json!({"httpGet": {"port": 80, "host": "10.0.0.1"}})),
        ("/spec/containers/1/readinessProbe", json!({"tcpSocket": {"port": 80, "host": "10.0.0.1"}})),
        ("/spec/containers/0/lifecycle", json!({"preStop": {"httpGet": {"port": 80, "host": "10.0.0.1"}}})),
        ("/spec/containers/0/startupProbe", json!({"httpGet": {"port": 80}})),
    ]);
    words
}

/// A hardened pod with a few of `words`.
fn pod(words: &[(&str, Value)], rng: &mut SeededRng) -> Value {
    let security = json!({
        "allowPrivilegeEscalation": false, "runAsNonRoot": true, "capabilities": {"drop": ["ALL"]},
        "seccompProfile": {"type": "RuntimeDefault"},
    });
    let container = |name: &str| json!({"name": name, "image": "app", "securityContext": security});
    let mut pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "judged"},
        "spec": {"containers": [container("a"), container("b")], "initContainers": [container("i")],
            "automountServiceAccountToken": false,
            "securityContext": {"runAsNonRoot": true, "seccompProfile": {"type": "RuntimeDefault"}}},
    });
    for _ in 0..if words.is_empty() { 0 } else { rng.next_u64() % 4 } {
        let at = usize::try_from(rng.next_u64()).unwrap_or_default() % words.len();
        let (parent, field) = words[at].0.rsplit_once('/').unwrap();
        if let Some(parent) = pod.pointer_mut(parent) {
            parent[field] = words[at].1.clone();
        }
    }
    pod
}

/// Our own judgement of pods and the API server's (Pod Security admission) are the same, pod by pod.
#[tokio::test(flavor = "multi_thread")]
async fn pods_are_judged_as_the_api_server_judges_them() {
    const SEED: u64 = 20_260_501;
    let federation = together().await;
    let client = federation.client(1).await;
    let (words, mut rng, mut compared) = (words(), SeededRng::new(SEED), [0, 0]);
    for (level, name) in [(PodSecurityLevel::Baseline, "baseline"), (PodSecurityLevel::Restricted, "restricted")] {
        let namespace = format!("judged-{name}");
        let object: Namespace = serde_json::from_value(json!({
            "metadata": {"name": namespace, "labels": {"pod-security.kubernetes.io/enforce": name}}}))
        .unwrap();
        Api::<Namespace>::all(client.clone()).create(&PostParams::default(), &object).await.unwrap();
        let pods: Api<Pod> = Api::namespaced(client.clone(), &namespace);
        let dry_run = PostParams { dry_run: true, ..PostParams::default() };
        eventually("the namespace has its service account", async || {
            let fine = serde_json::from_value(pod(&[], &mut SeededRng::new(0))).unwrap();
            pods.create(&dry_run, &fine).await.map(drop).map_err(|error| error.to_string())
        })
        .await;
        for number in 0..100 {
            let json = pod(&words, &mut rng);
            let Ok(object) = serde_json::from_value::<Pod>(json.clone()) else { panic!("{json}") };
            let verdict = match pods.create(&dry_run, &object).await {
                Ok(_) => true,
                Err(kube::Error::Api(status)) if status.message.contains("violates PodSecurity") => false,
                // Words that contradict each other make no pod.
                Err(kube::Error::Api(status)) if status.code == 422 => continue,
                Err(error) => panic!("{error}"),
            };
            let template = PodTemplateSpec { metadata: Some(object.metadata), spec: object.spec };
            let ours = judge(level, &template);
            assert_eq!(ours.is_empty(), verdict, "seed {SEED}, pod {number} at {name}: {json:#} ours: {ours:?}");
            compared[usize::from(verdict)] += 1;
        }
    }
    assert!(compared.iter().all(|count| *count >= 20), "refused and admitted: {compared:?}");
}
