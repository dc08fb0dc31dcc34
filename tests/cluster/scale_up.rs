//! Bursts that bring their nodes: on control planes whose scheduler has none for them, and a small autoscaler.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{Api, DeleteParams, ListParams, PostParams};
use kube::{Client, ResourceExt};
use serde_json::{Value, json};
use tributary::api::hosted_burst::BurstPhase;
use tributary::api::peer::ClusterPeer;
use tributary_sandbox::ADMIN;
use tributary_tests::agentctl::document;
use tributary_tests::eventually::eventually;
use tributary_tests::federation::SYSTEM;
use tributary_tests::scenario::{Place, bursting};

use crate::policy::import;
use crate::shared::{places, quiet};

/// The label of nodes that are added, and the key of their taint.
pub(crate) const ADDED: &str = "scale-up";

/// Adds a node for each pod that no node takes, as long as it may.
struct Autoscaler {
    most: Arc<AtomicUsize>,
    task: tokio::task::JoinHandle<()>,
}

impl Autoscaler {
    fn start(place: &Place) -> Self {
        let (most, client, pods) = (Arc::new(AtomicUsize::new(0)), place.client.clone(), place.pods());
        let allowed = most.clone();
        let task = tokio::spawn(async move {
            loop {
                tokio::time::sleep(Duration::from_millis(300)).await;
                drop(look(&client, &pods, allowed.load(Ordering::SeqCst)).await);
            }
        });
        Self { most, task }
    }

    fn allow(&self, nodes: usize) {
        self.most.store(nodes, Ordering::SeqCst);
    }

    /// All its nodes go.
    async fn end(self, client: &Client) {
        self.task.abort();
        drop(self.task.await);
        let nodes: Api<Node> = Api::all(client.clone());
        let ours = ListParams::default().labels(ADDED);
        nodes.delete_collection(&DeleteParams::default(), &ours).await.unwrap();
    }
}

/// Which pods wait, by the scheduler's word; a node for each that has none yet.
async fn look(client: &Client, pods: &Api<Pod>, most: usize) -> kube::Result<()> {
    let nodes: Api<Node> = Api::all(client.clone());
    let there = nodes.list(&ListParams::default().labels(ADDED)).await?.items;
    let pods = pods.list(&ListParams::default()).await?.items;
    let node_of = |pod: &Pod| pod.spec.as_ref().and_then(|spec| spec.node_name.clone());
    let used: BTreeMap<String, String> = pods.iter().filter_map(|pod| Some((node_of(pod)?, pod.name_any()))).collect();
    let empty = there.iter().filter(|node| !used.contains_key(&node.name_any())).count();
    let waiting = pods.iter().filter(|pod| is_unschedulable(pod) && pod.metadata.deletion_timestamp.is_none()).count();
    for number in there.len()..most.min(there.len() + waiting.saturating_sub(empty)) {
        nodes.create(&PostParams::default(), &node(client, number).await?).await?;
    }
    Ok(())
}

fn is_unschedulable(pod: &Pod) -> bool {
    let conditions = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
    conditions.into_iter().any(|one| one.type_ == "PodScheduled" && one.reason.as_deref() == Some("Unschedulable"))
}

/// A node of 12 cores, which kwok plays the kubelet of.
pub(crate) async fn node(client: &Client, number: usize) -> kube::Result<Node> {
    let all = Api::<Node>::all(client.clone()).list(&ListParams::default().limit(1)).await?;
    let info = all.items[0].status.as_ref().and_then(|status| status.node_info.clone());
    let amounts = json!({"cpu": "12", "memory": "64Gi", "pods": "110"});
    let name = format!("{ADDED}-{number}");
    let node = json!({"metadata": {"name": name, "labels": {"kubernetes.io/hostname": name, ADDED: "yes"}},
        "spec": {"taints": [{"key": ADDED, "effect": "NoSchedule"}]},
        "status": {"capacity": amounts, "allocatable": amounts, "nodeInfo": info}});
    Ok(serde_json::from_value(node).unwrap())
}

/// A burst of two brokers that take a node of 12 cores each.
pub(crate) fn large(peers: &[&str]) -> Value {
    let resources = json!({"requests": {"cpu": 10}});
    bursting(1, json!([{"size": 2, "peers": peers, "resources": resources}]))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_burst_brings_all_its_nodes_or_goes_elsewhere() {
    let federation = quiet().await;
    let [east, west, north] = places(&federation, "growing").await;
    let peers: Api<ClusterPeer> = Api::namespaced(federation.client(1).await, SYSTEM);
    let autoscaler = Autoscaler::start(&west);
    let policy = |wait: &str| {
        let group = json!({"name": "large", "cpu": 12, "memory": "60Gi", "labels": {ADDED: "yes"},
            "taints": [{"key": ADDED, "effect": "NoSchedule"}]});
        json!({"nodeSelector": {ADDED: "yes"}, "tolerations": [{"key": ADDED, "operator": "Exists"}],
            "scaleUp": {"maxNodes": 2, "wait": wait, "nodeGroups": [group]}})
    };
    import(&peers, policy("10m")).await;

    // Nobody who has room is named: it is taken, and waits.
    east.create("tall", large(&["west"])).await;
    let slot = "tall-burst-0";
    let waits = east.burst("tall", slot, BurstPhase::ScalingUp).await.status.unwrap();
    assert!(waits.message.contains("0 of 2 pods are on nodes; those of index 0-1 wait"), "{}", waits.message);
    let hosted = west.hosted().get(slot).await.unwrap();
    assert_eq!(hosted.spec.scale_up.unwrap().nodes[0].count, 2);
    let kubeconfig = federation.clusters()[1].kubeconfig(ADMIN).unwrap();
    eventually("it is said which pods wait", async || {
        let why = document(&kubeconfig, &["why", "-n", "growing", slot]).await.map_err(|error| error.to_string())?;
        let unmet = &why["unmet"];
        let cause = unmet["cause"].as_str().unwrap_or_default();
        let told = unmet["reason"] == "ScalingUp"
            && cause.contains("tall-burst-0-1-")
            && cause.contains("nodes are available");
        if told { Ok(()) } else { Err(format!("{why:#}")) }
    })
    .await;
    autoscaler.allow(2);
    let ready = east.burst("tall", slot, BurstPhase::Ready).await.status.unwrap();
    assert!(ready.times.unwrap().scheduled.is_some());

    // What it may bring is used up.
    east.create("late", large(&["west"])).await;
    let refused = east.burst("late", "late-burst-0", BurstPhase::Rejected).await.status.unwrap().refusals;
    assert_eq!(refused[0].reason, "TooManyNodes", "{}", refused[0].message);
    for root in ["late", "tall"] {
        east.delete(root).await;
        west.empty(&format!("{root}-burst-0")).await;
    }
    autoscaler.allow(0);
    let nodes: Api<Node> = Api::all(west.client.clone());
    nodes.delete_collection(&DeleteParams::default(), &ListParams::default().labels(ADDED)).await.unwrap();

    // Half of them come; north has room.
    autoscaler.allow(1);
    import(&peers, policy("8s")).await;
    east.create("half", large(&["west"])).await;
    let given_back = east.burst("half", "half-burst-0", BurstPhase::Rejected).await.status.unwrap();
    assert_eq!(given_back.refusals[0].reason, "ScaleUpTimedOut", "{}", given_back.message);
    west.empty("half-burst-0").await;
    let clusters = json!([{"size": 2, "peers": ["west", "north"], "resources": {"requests": {"cpu": 10}}}]);
    east.change("half", json!({"flux": {"bursting": {"clusters": clusters}}})).await;
    let moved = east.burst("half", "half-burst-0", BurstPhase::Ready).await.status.unwrap();
    assert_eq!(moved.peer.as_deref(), Some("north"));
    assert!(west.left("half-burst-0").await.unwrap().is_empty());
    east.delete("half").await;
    north.empty("half-burst-0").await;

    autoscaler.end(&west.client).await;
    import(&peers, json!({"nodeSelector": null, "tolerations": null, "scaleUp": null})).await;
}
