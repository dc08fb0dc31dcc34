//! The sandbox on real control planes: what other tests take for granted about it.
//!
//! Three clusters start once for all tests of this binary; each test has a cluster for itself.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::{collections::BTreeMap, time::Duration};

use k8s_openapi::api::{
    batch::v1::Job,
    core::v1::{Namespace, Node, Pod},
};
use kube::{
    Api, Client, ResourceExt,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
    runtime::wait::await_condition,
};
use serde_json::{Value, json};
use tributary_sandbox::{ADMIN, Cluster, Component, NodeGroup, Options, Sandbox, annotations, shared};

/// For conditions that come true within a second unless something is broken.
const LIMIT: Duration = Duration::from_secs(60);

fn sandbox() -> &'static Sandbox {
    shared(|| {
        let mut options = Options::named(["east", "west", "north"]);
        options.clusters[1].nodes = vec![
            NodeGroup { count: 2, address: Some([172, 31, 0, 11].into()), ..NodeGroup::default() },
            NodeGroup {
                count: 1,
                cpu: 8,
                memory: "32Gi".to_owned(),
                gpus: 4,
                external_address: Some([203, 0, 113, 7].into()),
                labels: BTreeMap::from([("pool".to_owned(), "gpu".to_owned())]),
                ..NodeGroup::default()
            },
        ];
        options
    })
    .expect("three clusters start")
}

/// A Job of the shape that brokers have: Indexed, with a subdomain, ended by its first pod.
fn job(name: &str, annotations: Value) -> Job {
    serde_json::from_value(json!({
        "metadata": { "name": name },
        "spec": {
            "completions": 3,
            "parallelism": 3,
            "completionMode": "Indexed",
            "podReplacementPolicy": "Failed",
            "backoffLimitPerIndex": 5,
            "successPolicy": { "rules": [{ "succeededIndexes": "0" }] },
            "template": {
                "metadata": { "annotations": annotations },
                "spec": {
                    "subdomain": name,
                    "restartPolicy": "Never",
                    "containers": [{
                        "name": "broker",
                        "image": "broker",
                        "readinessProbe": { "exec": { "command": ["true"] } },
                    }],
                },
            },
        },
    }))
    .unwrap()
}

async fn create(client: &Client, job: &Job) {
    let api: Api<Job> = Api::default_namespaced(client.clone());
    api.create(&PostParams::default(), job).await.unwrap();
}

async fn job_is(client: &Client, name: &str, condition: impl Fn(&Job) -> bool) -> Job {
    let api = Api::default_namespaced(client.clone());
    let met = |job: Option<&Job>| job.is_some_and(&condition);
    tokio::time::timeout(LIMIT, await_condition(api, name, met)).await.expect("in time").unwrap().unwrap()
}

async fn pod_is(client: &Client, name: &str, condition: impl Fn(Option<&Pod>) -> bool) -> Option<Pod> {
    let api = Api::default_namespaced(client.clone());
    tokio::time::timeout(LIMIT, await_condition(api, name, condition)).await.expect("in time").unwrap()
}

async fn pods(client: &Client, job: &str) -> Vec<Pod> {
    let api: Api<Pod> = Api::default_namespaced(client.clone());
    let selector = format!("batch.kubernetes.io/job-name={job}");
    let mut pods = api.list(&ListParams::default().labels(&selector)).await.unwrap().items;
    pods.sort_by_key(ResourceExt::name_any);
    pods
}

async fn annotate(client: &Client, pod: &str, key: &str, value: Option<&str>) {
    let api: Api<Pod> = Api::default_namespaced(client.clone());
    let patch = json!({ "metadata": { "annotations": { key: value } } });
    api.patch(pod, &PatchParams::default(), &Patch::Merge(patch)).await.unwrap();
}

fn ready(job: &Job) -> i32 {
    job.status.as_ref().and_then(|status| status.ready).unwrap_or_default()
}

fn phase(pod: &Pod) -> &str {
    pod.status.as_ref().and_then(|status| status.phase.as_deref()).unwrap_or_default()
}

fn exit_code(pod: &Pod) -> Option<i32> {
    let status = pod.status.as_ref()?.container_statuses.as_ref()?.first()?;
    Some(status.state.as_ref()?.terminated.as_ref()?.exit_code)
}

#[tokio::test]
async fn pods_run_on_nodes_of_the_given_size_and_address() {
    let cluster = sandbox().cluster("west").unwrap();
    let client = cluster.client("agent").await.unwrap();
    let nodes = Api::<Node>::all(client.clone()).list(&ListParams::default()).await.unwrap();
    let seen: Vec<_> = nodes
        .iter()
        .map(|node| {
            let status = node.status.as_ref().unwrap();
            let address = |type_| {
                let mut addresses = status.addresses.iter().flatten().filter(|address| address.type_ == type_);
                addresses.next().map(|address| address.address.as_str())
            };
            let capacity = |resource| Some(status.allocatable.as_ref()?.get(resource)?.0.as_str());
            let sizes = ["cpu", "memory", "nvidia.com/gpu"].map(capacity);
            (node.name_any(), address("InternalIP"), address("ExternalIP"), sizes)
        })
        .collect();
    let big = [Some("64"), Some("256Gi"), None];
    let gpu = [Some("8"), Some("32Gi"), Some("4")];
    let expected = [
        ("west-0".to_owned(), Some("172.31.0.11"), None, big),
        ("west-1".to_owned(), Some("172.31.0.12"), None, big),
        ("west-2".to_owned(), Some("10.2.0.3"), Some("203.0.113.7"), gpu),
    ];
    assert_eq!(seen, expected);
    assert_eq!(nodes.items[2].labels()["pool"], "gpu");

    create(&client, &job("run", json!({}))).await;
    job_is(&client, "run", |job| ready(job) == 3).await;
    for pod in pods(&client, "run").await {
        let spec = pod.spec.as_ref().unwrap();
        let node = nodes.iter().find(|node| Some(node.name_any()) == spec.node_name).unwrap();
        let internal = &node.status.as_ref().unwrap().addresses.as_ref().unwrap()[0].address;
        let status = pod.status.as_ref().unwrap();
        assert_eq!(status.host_ip.as_ref(), Some(internal));
        assert!(status.pod_ip.as_ref().unwrap().starts_with("10.161."), "{:?}", status.pod_ip);
        assert_eq!((phase(&pod), spec.subdomain.as_deref()), ("Running", Some("run")));
    }
}

#[tokio::test]
async fn requests_are_counted_by_user() {
    let cluster = sandbox().cluster("west").unwrap();
    let client = cluster.client("counted").await.unwrap();
    let api: Api<Job> = Api::default_namespaced(client.clone());
    let before = cluster.audit().marker().unwrap();
    api.get_opt("counted").await.unwrap();
    create(&client, &job("counted", json!({}))).await;
    let others: Api<Job> = Api::default_namespaced(cluster.client("another").await.unwrap());
    others.get_opt("counted").await.unwrap();

    let requests = cluster.audit().requests("counted", before).unwrap();
    let shown: Vec<_> = requests
        .iter()
        .map(|event| (event.verb.as_str(), event.resource.as_str(), event.name.as_str(), event.code))
        .collect();
    assert_eq!(shown, [("get", "jobs", "counted", 404), ("create", "jobs", "counted", 201)]);
    let others = cluster.audit().requests("another", before).unwrap();
    assert_eq!(others.len(), 1);
    assert!(!others[0].is_watch() && !others[0].is_lease() && !others[0].is_write() && requests[1].is_write());
}

#[tokio::test]
async fn annotations_steer_pods() {
    let client = sandbox().cluster("east").unwrap().client(ADMIN).await.unwrap();
    create(&client, &job("steered", json!({ annotations::NOT_READY: "" }))).await;
    job_is(&client, "steered", |job| job.status.as_ref().is_some_and(|status| status.active == Some(3))).await;
    let names: Vec<_> = pods(&client, "steered").await.iter().map(ResourceExt::name_any).collect();
    for name in &names {
        pod_is(&client, name, |pod| pod.is_some_and(|pod| phase(pod) == "Running")).await;
    }
    assert_eq!(ready(&job_is(&client, "steered", |_| true).await), 0);
    for name in &names {
        annotate(&client, name, annotations::NOT_READY, None).await;
    }
    job_is(&client, "steered", |job| ready(job) == 3).await;
    annotate(&client, &names[2], annotations::NOT_READY, Some("")).await;
    job_is(&client, "steered", |job| ready(job) == 2).await;

    annotate(&client, &names[1], annotations::EXIT, Some("3")).await;
    let failed = pod_is(&client, &names[1], |pod| pod.is_some_and(|pod| phase(pod) == "Failed")).await.unwrap();
    assert_eq!(exit_code(&failed), Some(3));
    job_is(&client, "steered", |job| job.status.as_ref().is_some_and(|status| status.failed == Some(1))).await;

    annotate(&client, &names[0], annotations::EXIT, Some("0")).await;
    let finished = job_is(&client, "steered", |job| {
        let conditions = job.status.as_ref().and_then(|status| status.conditions.as_ref());
        conditions.is_some_and(|all| all.iter().any(|one| one.type_ == "Complete" && one.status == "True"))
    })
    .await;
    assert_eq!(finished.status.unwrap().succeeded, Some(1));
}

#[tokio::test]
async fn a_deleted_pod_fails_with_143_and_is_replaced_once_it_is_gone() {
    let client = sandbox().cluster("east").unwrap().client(ADMIN).await.unwrap();
    create(&client, &job("deleted", json!({ annotations::KEEP_TERMINATING: "" }))).await;
    job_is(&client, "deleted", |job| ready(job) == 3).await;
    let first = pods(&client, "deleted").await.remove(0);
    let name = first.name_any();
    let api: Api<Pod> = Api::default_namespaced(client.clone());
    // As a finalizer of a test: the last state of the pod stays to be looked at.
    let keep = json!({ "metadata": { "finalizers": ["batch.kubernetes.io/job-tracking", "test.tributary.dev/look"] } });
    api.patch(&name, &PatchParams::default(), &Patch::Merge(keep)).await.unwrap();
    api.delete(&name, &DeleteParams::default()).await.unwrap();
    job_is(&client, "deleted", |job| job.status.as_ref().is_some_and(|status| status.terminating == Some(1))).await;
    assert_eq!(phase(&api.get(&name).await.unwrap()), "Running");

    annotate(&client, &name, annotations::KEEP_TERMINATING, None).await;
    let ended = pod_is(&client, &name, |pod| pod.is_some_and(|pod| phase(pod) == "Failed")).await.unwrap();
    assert_eq!(exit_code(&ended), Some(143));
    let forget = json!({ "metadata": { "finalizers": null } });
    api.patch(&name, &PatchParams::default(), &Patch::Merge(forget)).await.unwrap();
    pod_is(&client, &name, |pod| pod.is_none()).await;
    job_is(&client, "deleted", |job| ready(job) == 3).await;
    assert_eq!(pods(&client, "deleted").await.len(), 3);
}

#[tokio::test]
async fn components_can_fail_and_come_back() {
    let cluster = sandbox().cluster("north").unwrap();
    let client = cluster.client(ADMIN).await.unwrap();
    let namespaces: Api<Namespace> = Api::all(client.clone());
    let uid = namespaces.get("kube-system").await.unwrap().uid();
    cluster.stop_component(Component::ApiServer).unwrap();
    assert!(namespaces.get("kube-system").await.is_err());
    cluster.start_component(Component::ApiServer).await.unwrap();
    assert_eq!(namespaces.get("kube-system").await.unwrap().uid(), uid);

    cluster.pause_component(Component::ApiServer).unwrap();
    let hangs = tokio::time::timeout(Duration::from_secs(1), namespaces.get("kube-system"));
    // A connection that breaks meanwhile is no answer.
    assert!(!matches!(hangs.await, Ok(Ok(_))), "a paused API server answers nobody");
    cluster.resume_component(Component::ApiServer).unwrap();
    assert_eq!(namespaces.get("kube-system").await.unwrap().uid(), uid);

    cluster.add_nodes(&NodeGroup { count: 1, ..NodeGroup::default() }).await.unwrap();
    assert_eq!(Api::<Node>::all(client).list(&ListParams::default()).await.unwrap().items.len(), 5);
}

#[tokio::test]
async fn users_outside_the_masters_may_do_what_rbac_grants() {
    let cluster: &Cluster = sandbox().cluster("west").unwrap();
    let path = cluster.kubeconfig_in("tenant", Some("tenants")).unwrap();
    let kubeconfig = kube::config::Kubeconfig::read_from(path).unwrap();
    let config = kube::Config::from_custom_kubeconfig(kubeconfig, &Default::default()).await.unwrap();
    let tenant = Client::try_from(config).unwrap();
    let error = Api::<Pod>::default_namespaced(tenant).list(&ListParams::default()).await.unwrap_err().to_string();
    assert!(error.contains("User \"tenant\" cannot list resource \"pods\""), "{error}");
}
