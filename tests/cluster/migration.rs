//! A cluster with the Flux Operator becomes one with Tributary; then the corpus runs in it, and upstream's examples where
//! a checkout is there.
//!
//! It has a control plane of its own: the definition of MiniClusters changes under its objects.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::api::node::v1::RuntimeClass;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, Config, ResourceExt};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tributary::api::labels::{self, condition, upstream};
use tributary::api::minicluster::{MiniCluster, MiniClusterStatus, Phase};
use tributary::render::{Context, render};
use tributary_agentctl::commands::migrate;
use tributary_sandbox::{ADMIN, Cluster, ClusterOptions, Group, NodeGroup, Options, Sandbox, annotations};
use tributary_tests::agent::{AGENT_USER, Agent, Setup};
use tributary_tests::chart;
use tributary_tests::eventually::eventually;
use tributary_tests::federation::{SYSTEM, crds_are_served, make_namespace};
use tributary_tests::pages;
use tributary_tests::scenario::{Place, interactive};
use tributary_tests::upstream::with_examples;

use crate::chart::repository;
use crate::shared::turn;

const OPERATOR: &str = "operator-system";
/// Who runs `agentctl migrate check`.
const MOVER: &str = "mover";

#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_moves_from_the_flux_operator_and_the_corpus_runs() {
    let nodes =
        NodeGroup { count: 6, cpu: 96, labels: [("type".into(), "kwok".into())].into(), ..NodeGroup::default() };
    let options = ClusterOptions { nodes: vec![nodes], ..ClusterOptions::named("old") };
    let _turn = turn().await;
    let sandbox = Sandbox::start(Options { clusters: vec![options], ..Options::default() }).await.unwrap();
    let cluster = &sandbox.clusters()[0];
    let client = cluster.client(ADMIN).await.unwrap();
    let directory = tempfile::tempdir().unwrap();
    let kubeconfig = cluster.kubeconfig_in(AGENT_USER, Some("system:masters")).unwrap();
    let agent = Agent::new(&directory.path().join("agent"), &Setup::new("old", &kubeconfig)).unwrap();
    let group = Group::start(Duration::from_secs(2), None).unwrap();

    let place = installed(&client).await;
    the_check_reads_only_and_finds_the_operator(cluster).await;
    // What the page says, word for word.
    let lines = pages::commands("src/guide/migrating.md", Some("## Move"), "console");
    let [stop, replace, install, look, remove] = &lines[..] else { panic!("{lines:#?}") };
    let kubectl = async |line: &str| chart::kubectl(&repository(), &sandbox.kubeconfig(), line).await.unwrap();
    kubectl(stop).await;
    replace_the_definition(&client, async || kubectl(replace).await).await;
    no_agent_runs_beside_the_operator(&agent, &group).await;
    the_operators_lease_ends(&client).await;
    let before = place.jobs().get("lake").await.unwrap();
    let words: Vec<&str> = install.split_whitespace().collect();
    let output = chart::helm(&repository(), Some(&sandbox.kubeconfig()), &words[1..]).unwrap();
    assert!(output.status.success(), "{install}\n{}", String::from_utf8_lossy(&output.stderr));
    // No kubelet runs what helm installed: this is the agent.
    agent.start(&group).unwrap();

    // What runs is adopted, what waited starts, what ended stays.
    place.condition("lake", condition::ADOPTED, "True", "UpstreamJob").await;
    place.running("lake").await;
    place.running("late").await;
    let status = place.status("lake").await.unwrap();
    assert_eq!((status.size, status.ready, status.maximum_size), (2, Some(2), 2));
    assert_eq!(status.selector, "hpa-selector=lake");
    eventually("the ended one says so", async || match place.status("gone").await?.phase {
        Some(Phase::Succeeded) => Ok(()),
        other => Err(format!("{other:?}")),
    })
    .await;
    let after = place.jobs().get("lake").await.unwrap();
    assert_eq!((after.uid(), &after.spec), (before.uid(), &before.spec));
    assert_eq!(after.metadata.annotations, before.metadata.annotations);
    let found = check(cluster).await;
    let rows: Vec<_> =
        found.mini_clusters.iter().map(|row| format!("{} {} {:?}", row.name, row.job, row.after)).collect();
    assert_eq!(rows, ["gone succeeded Kept", "lake running Adopted", "late running Unchanged"]);
    assert!(found.definition.is_some_and(|definition| definition.tributarys));

    // The next instance is ours, among the objects that upstream has left.
    place.jobs().delete("lake", &DeleteParams::background()).await.unwrap();
    eventually("a Job of ours runs", async || {
        let job = place.jobs().get_opt("lake").await.map_err(|error| error.to_string())?;
        let job = job.filter(|job| job.annotations().contains_key(labels::BOOT_DIGEST)).ok_or("it is not there yet")?;
        let status = place.status("lake").await?;
        // Until it is about that Job, the status is that of the adopted one.
        let holds = |type_: &str| status.conditions.iter().any(|one| one.type_ == type_ && one.status == "True");
        let ours = status.incarnation == job.uid() && holds(condition::READY) && !holds(condition::ADOPTED);
        if ours { Ok(()) } else { Err(format!("{:?} {status:?}", job.uid())) }
    })
    .await;
    let service = place.services().get("lake").await.unwrap().spec.unwrap();
    assert_eq!(service.publish_not_ready_addresses, Some(true));
    let config = place.config_maps().get("lake-entrypoint").await.unwrap().data.unwrap();
    assert!(!config.contains_key("curve.cert"), "upstream's secret key is still in the ConfigMap");

    let shown = kubectl(look).await;
    assert!(["lake", "gone", "late"].iter().all(|name| shown.contains(name)), "{shown}");
    kubectl(remove).await;
    let left = Api::<Deployment>::namespaced(client.clone(), OPERATOR).list(&ListParams::default()).await.unwrap();
    assert!(left.items.is_empty(), "the operator is still there");
    place.mini_clusters().get("lake").await.expect("with the Deployment alone, no MiniCluster goes");

    the_corpus_runs(&client).await;
    agent.stop(&group).await.unwrap();
}

/// The Flux Operator's installation, with a MiniCluster that runs, one that has ended and one it has not come to.
async fn installed(client: &Client) -> Place {
    let definition = tributary_tests::upstream::definition().unwrap();
    create::<CustomResourceDefinition>(&Api::all(client.clone()), "kubectl-client-side-apply", definition).await;
    for namespace in [OPERATOR, SYSTEM, "hpc"] {
        make_namespace(client, namespace).await.unwrap();
    }
    let deployment = json!({
        "metadata": {"name": "operator-controller-manager"},
        "spec": {
            "replicas": 1, "selector": {"matchLabels": {"control-plane": "controller-manager"}},
            "template": {
                "metadata": {"labels": {"control-plane": "controller-manager"}},
                "spec": {"containers": [{
                    "name": "manager", "image": "ghcr.io/flux-framework/flux-operator:latest",
                    "command": ["/manager"], "args": ["--leader-elect"],
                }]},
            },
        },
    });
    create::<Deployment>(&Api::namespaced(client.clone(), OPERATOR), "kubectl", deployment).await;
    #[allow(clippy::disallowed_methods, reason = "a Lease of a real API server is held now")]
    let now = Timestamp::now();
    let lease = json!({
        "metadata": {"name": upstream::LEASE},
        "spec": {
            "holderIdentity": "operator-controller-manager-0", "leaseDurationSeconds": 3600,
            "renewTime": MicroTime(now), "acquireTime": MicroTime(now),
        },
    });
    create::<Lease>(&Api::namespaced(client.clone(), OPERATOR), "manager", lease).await;

    let place = Place { client: client.clone(), namespace: "hpc".to_owned() };
    established(&place).await;
    for name in ["lake", "gone", "late"] {
        let spec = interactive(2);
        let object = json!({
            "apiVersion": "flux-framework.org/v1alpha2", "kind": "MiniCluster", "metadata": {"name": name}, "spec": spec,
        });
        let object: MiniCluster = create(&place.mini_clusters(), "kubectl", object).await;
        if name != "late" {
            made_by_upstream(&place, &object).await;
        }
    }
    ended(&place, "gone").await;
    eventually("the Job of gone is complete, that of lake runs", async || {
        let lake = place.jobs().get("lake").await.map_err(|error| error.to_string())?.status.unwrap_or_default();
        let gone = place.jobs().get("gone").await.map_err(|error| error.to_string())?.status.unwrap_or_default();
        let complete = gone.conditions.iter().flatten().any(|one| one.type_ == "Complete" && one.status == "True");
        if lake.ready == Some(2) && complete { Ok(()) } else { Err(format!("{lake:?} {gone:?}")) }
    })
    .await;
    place
}

/// Ends the pods of a Job well, once they are there.
async fn ended(place: &Place, job: &str) {
    let pods = ListParams::default().labels(&format!("job-name={job}"));
    eventually(format!("{job} has pods"), async || match place.pods().list(&pods).await.map(|list| list.items.len()) {
        Ok(2) => Ok(()),
        other => Err(format!("{other:?}")),
    })
    .await;
    for index in 0..2 {
        place.annotate_pod(job, index, annotations::EXIT, "0").await;
    }
}

/// The objects that the Flux Operator makes of a MiniCluster of size 2 with one container.
async fn made_by_upstream(place: &Place, object: &MiniCluster) {
    let name = object.name_any();
    let metadata = |name: &str| {
        json!({"name": name, "ownerReferences": [{
            "apiVersion": "flux-framework.org/v1alpha2", "kind": "MiniCluster", "name": object.name_any(),
            "uid": object.uid(), "controller": true, "blockOwnerDeletion": true,
        }]})
    };
    let entrypoint = format!("{name}-entrypoint");
    let files = json!({"wait-0": "#!/bin/bash\n", "flux-view": "#!/bin/bash\n", "curve.cert": "metadata\ncurve\n"});
    create(&place.config_maps(), "manager", json!({"metadata": metadata(&entrypoint), "data": files})).await;
    let spec = json!({"clusterIP": "None", "selector": {"job-name": name}});
    create(&place.services(), "manager", json!({"metadata": metadata(&name), "spec": spec})).await;
    let labels = json!({
        "app": "flux-operator", "app.kubernetes.io/name": name, "namespace": "hpc", "hpa-selector": name,
    });
    let mounts = json!([{"name": entrypoint, "mountPath": "/flux_operator/", "readOnly": true}]);
    let container = |name: &str, command: &str| {
        json!({
            "name": name, "image": "rockylinux:9", "command": ["/bin/bash", command], "stdin": true, "tty": true,
            "imagePullPolicy": "IfNotPresent", "volumeMounts": mounts,
        })
    };
    let job = json!({
        "metadata": metadata(&name),
        "spec": {
            "completionMode": "Indexed", "completions": 2, "parallelism": 2, "backoffLimit": 100,
            "activeDeadlineSeconds": 31_500_000,
            "template": {
                "metadata": {"labels": labels},
                "spec": {
                    "subdomain": name, "setHostnameAsFQDN": false, "restartPolicy": "OnFailure",
                    "automountServiceAccountToken": false, "shareProcessNamespace": false,
                    "initContainers": [container("flux-view", "/flux_operator/flux-init.sh")],
                    "containers": [container(&name, "/flux_operator/wait-0.sh")],
                    "volumes": [{"name": entrypoint, "configMap": {"name": entrypoint}}],
                },
            },
        },
    });
    create(&place.jobs(), "manager", job).await;
    // It never says more than this, whatever becomes of the Job.
    let conditions = ["JobRequested", "JobWaitingForResources", "JobRunning", "JobMiniClusterReady", "JobFinished"]
        .map(|type_| {
            let holds = if type_ == "JobMiniClusterReady" { "True" } else { "False" };
            let since = "2026-01-01T00:00:00Z";
            json!({"type": type_, "status": holds, "reason": type_, "message": type_, "lastTransitionTime": since})
        });
    let status = json!({
        "jobid": "", "maximumSize": 2, "selector": format!("hpa-selector={name}"), "size": 0, "conditions": conditions,
    });
    let patch = Patch::Merge(json!({"status": status}));
    place.mini_clusters().patch_status(&name, &PatchParams::default(), &patch).await.unwrap();
}

async fn the_check_reads_only_and_finds_the_operator(cluster: &Cluster) {
    let marker = cluster.audit().marker().unwrap();
    let found = check(cluster).await;
    assert!(found.ready, "{:?}", found.findings);
    assert!(found.unseen.is_empty(), "{:?}", found.unseen);
    assert_eq!(found.lease_holder.as_deref(), Some("operator-system/operator-controller-manager-0"));
    let operators: Vec<_> = found.operators.iter().map(|row| (row.name.as_str(), row.replicas)).collect();
    assert_eq!(operators, [("operator-controller-manager", 1)]);
    let rows: Vec<_> =
        found.mini_clusters.iter().map(|row| format!("{} {} {:?}", row.name, row.job, row.after)).collect();
    assert_eq!(rows, ["gone succeeded Kept", "lake running Adopted", "late none Starts"]);
    eventually("the audit log has the check", async || {
        let requests = cluster.audit().requests(MOVER, marker).map_err(|error| error.to_string())?;
        let writes: Vec<_> = requests.iter().filter(|one| !["get", "list"].contains(&one.verb.as_str())).collect();
        assert!(writes.is_empty(), "{writes:?}");
        if requests.len() > 8 { Ok(()) } else { Err(format!("{} requests", requests.len())) }
    })
    .await;
}

async fn check(cluster: &Cluster) -> migrate::Report {
    let path = cluster.kubeconfig_in(MOVER, Some("system:masters")).unwrap();
    let kubeconfig = Kubeconfig::read_from(path).unwrap();
    let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await.unwrap();
    #[allow(clippy::disallowed_methods, reason = "the Lease of a real API server is held now")]
    let now = Timestamp::now();
    migrate::check(&Client::try_from(config).unwrap(), None, now).await.unwrap()
}

async fn replace_the_definition(client: &Client, replace: impl AsyncFnOnce() -> String) {
    // Why --force-conflicts: the fields of the old definition belong to whoever applied it.
    let definitions: Api<CustomResourceDefinition> = Api::all(client.clone());
    let ours = tributary::api::crds().into_iter().find(|crd| crd.spec.names.kind == "MiniCluster").unwrap();
    let gently = definitions.patch(&ours.name_any(), &PatchParams::apply("kubectl"), &Patch::Apply(&ours)).await;
    assert!(matches!(gently, Err(kube::Error::Api(status)) if status.code == 409));
    replace().await;
    crds_are_served(client).await;
}

async fn no_agent_runs_beside_the_operator(agent: &Agent, group: &Group) {
    agent.start(group).unwrap();
    eventually("the agent refuses to run", async || {
        let log = agent.log_text();
        if log.contains("the Flux Operator runs in this cluster") { Ok(()) } else { Err(log) }
    })
    .await;
    agent.stop(group).await.unwrap();
}

/// As it does by itself, 15 seconds after its holder has ended.
async fn the_operators_lease_ends(client: &Client) {
    let leases: Api<Lease> = Api::namespaced(client.clone(), OPERATOR);
    let ended = Patch::Merge(json!({"spec": {"leaseDurationSeconds": 1}}));
    leases.patch(upstream::LEASE, &PatchParams::default(), &ended).await.unwrap();
}

/// Every example and probe: its pods become ready, or its condition says why they do not.
async fn the_corpus_runs(client: &Client) {
    let runtime = json!({"metadata": {"name": "gvisor"}, "handler": "runsc"});
    create::<RuntimeClass>(&Api::all(client.clone()), "tests", runtime).await;
    let documents = with_examples("whether upstream's examples run").unwrap();
    let mut documents = documents.into_iter().enumerate().peekable();
    while documents.peek().is_some() {
        let mut examples = Vec::new();
        for (index, document) in documents.by_ref().take(AT_ONCE) {
            let place = Place { client: client.clone(), namespace: format!("example-{index}") };
            make_namespace(client, &place.namespace).await.unwrap();
            let mut object: MiniCluster = serde_json::from_value(document.value).unwrap();
            object.metadata.namespace = Some(place.namespace.clone());
            claims(&place, &object).await;
            place.mini_clusters().create(&PostParams::default(), &object).await.unwrap();
            let refusal = render(&object, &Context::default()).err().map(|problems| problems.reason());
            examples.push((document.file, place, object.name_any(), refusal));
        }
        let namespaces: Vec<String> = examples.iter().map(|(_, place, ..)| place.namespace.clone()).collect();
        examples_run(client, examples).await;
        // So that the machine has to run those alone that are looked at.
        for namespace in namespaces {
            let all: Api<MiniCluster> = Api::namespaced(client.clone(), &namespace);
            all.delete_collection(&DeleteParams::background(), &ListParams::default()).await.unwrap();
        }
    }
}

/// File, namespace, name, and why it cannot be rendered, if so.
type Example = (String, Place, String, Option<&'static str>);

async fn examples_run(client: &Client, mut examples: Vec<Example>) {
    let mini_clusters: Api<MiniCluster> = Api::all(client.clone());
    eventually("every example runs, or says why not", async || {
        let list = mini_clusters.list(&ListParams::default()).await.map_err(|error| error.to_string())?;
        let mut missing = Vec::new();
        // Once is enough: some have a deadline.
        examples.retain(|(file, place, name, refusal)| {
            let found = list.items.iter().find(|one| one.namespace().as_deref() == Some(&place.namespace));
            let status = found.and_then(|found| found.status.clone()).unwrap_or_default();
            let seen = ready(&status);
            let as_it_should = match (refusal, EXPECTED.iter().find(|(expected, _)| expected == file)) {
                (Some(reason), _) => seen == ("False", *reason),
                (None, Some((_, reason))) => seen == ("False", *reason),
                (None, None) => seen == ("True", "Running") && status.ready == Some(status.size),
            };
            if !as_it_should {
                missing.push(format!("{file} ({name}): {seen:?}, {:?} of {} ready", status.ready, status.size));
            }
            !as_it_should
        });
        if missing.is_empty() {
            return Ok(());
        }
        // Each look reads every MiniCluster: the agent needs the machine too.
        tokio::time::sleep(Duration::from_millis(500)).await;
        Err(format!("{}:\n{}", missing.len(), missing.join("\n")))
    })
    .await;
}

/// How many examples are made before those are waited for: each of these has the same time on a machine that is shared.
const AT_ONCE: usize = 10;

/// What cannot run here, and what it says.
const EXPECTED: [(&str, &str); 2] = [
    // No RuntimeClass has this overhead: the API server refuses the pods.
    ("probes/pod-resources-overhead.yaml", "Starting"),
    // Its pods name a scheduler that does not run.
    ("probes/services.yaml", "Starting"),
];

fn ready(status: &MiniClusterStatus) -> (&str, &str) {
    let ready = status.conditions.iter().find(|one| one.type_ == condition::READY);
    ready.map_or(("", ""), |one| (one.status.as_str(), one.reason.as_str()))
}

/// Volumes behind the claims of a MiniCluster: pods wait for them.
async fn claims(place: &Place, object: &MiniCluster) {
    let containers = object.spec.containers.iter().chain(&object.spec.services);
    let names =
        containers.flat_map(|container| container.volumes().into_values().filter_map(|one| one.claim_name.clone()));
    for name in names {
        let volume = format!("{}-{name}", place.namespace);
        let claim = json!({"namespace": place.namespace, "name": name});
        let shared = json!({"accessModes": ["ReadWriteMany"], "storageClassName": ""});
        let mut spec = shared.clone();
        spec["capacity"] = json!({"storage": "1Gi"});
        spec["hostPath"] = json!({"path": "/tmp"});
        spec["claimRef"] = claim;
        let of_cluster = json!({"metadata": {"name": volume}, "spec": spec});
        create::<PersistentVolume>(&Api::all(place.client.clone()), "tests", of_cluster).await;
        let mut spec = shared;
        spec["volumeName"] = json!(volume);
        spec["resources"] = json!({"requests": {"storage": "1Gi"}});
        let of_namespace = json!({"metadata": {"name": name}, "spec": spec});
        let api = Api::namespaced(place.client.clone(), &place.namespace);
        create::<PersistentVolumeClaim>(&api, "tests", of_namespace).await;
    }
}

async fn established(place: &Place) {
    eventually("upstream's definition is served", async || {
        place.mini_clusters().list(&ListParams::default()).await.map(drop).map_err(|error| error.to_string())
    })
    .await;
}

async fn create<K>(api: &Api<K>, manager: &str, object: Value) -> K
where
    K: Clone + DeserializeOwned + serde::Serialize + std::fmt::Debug,
{
    let params = PostParams { field_manager: Some(manager.to_owned()), ..PostParams::default() };
    let object: K = serde_json::from_value(object).unwrap();
    api.create(&params, &object).await.unwrap()
}
