//! A node that is lost, and what becomes of the ranks on it.

use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Client, ResourceExt};
use serde_json::json;
use tributary::api::labels;
use tributary_sandbox::annotations;
use tributary_tests::eventually::eventually;
use tributary_tests::scenario::{Place, interactive};

use crate::lifecycle::event;

/// The rank of a lost node comes back on another.
pub(crate) async fn a_lost_node_keeps_no_rank(east: &Place) {
    let nodes: Api<Node> = Api::all(east.client.clone());
    let own = ["lost-node-0", "lost-node-1"];
    for name in own {
        nodes.create(&PostParams::default(), &node_for(&east.client, name).await).await.unwrap();
    }
    let mut spec = interactive(2);
    spec["pod"] =
        json!({"nodeSelector": {"test": "lost-node"}, "tolerations": [{"key": "test", "operator": "Exists"}]});
    east.create("raft", spec).await;
    east.running("raft").await;
    let before = broker(east, 1).await.unwrap();
    let node = before.spec.as_ref().unwrap().node_name.clone().unwrap();

    // No kubelet ends what is there, and none says that it is well.
    for index in 0..2 {
        let pod = broker(east, index).await.unwrap();
        if pod.spec.unwrap().node_name.as_ref() == Some(&node) {
            east.annotate_pod("raft", index, annotations::KEEP_TERMINATING, "").await;
        }
    }
    let lost = Patch::Merge(json!({"metadata": {"annotations": {annotations::LOST: ""}}}));
    nodes.patch(&node, &PatchParams::default(), &lost).await.unwrap();
    let silent =
        json!({"type": "Ready", "status": "Unknown", "reason": "NodeStatusUnknown", "message": "Kubelet stopped"});
    let silent = Patch::Strategic(json!({"status": {"conditions": [silent]}}));
    nodes.patch_status(&node, &PatchParams::default(), &silent).await.unwrap();
    // As Kubernetes does it after 5 minutes, and then waits; with less time for the pod to end.
    let soon = DeleteParams { grace_period_seconds: Some(1), ..DeleteParams::default() };
    east.pods().delete(&before.name_any(), &soon).await.unwrap();

    let now = eventually("rank 1 is on the other node", async || {
        let now = broker(east, 1).await?;
        let seen = now.spec.as_ref().and_then(|spec| spec.node_name.clone());
        let elsewhere = now.uid() != before.uid() && seen.is_some_and(|seen| seen != node);
        if elsewhere { Ok(now) } else { Err(format!("{:?} {:?}", now.metadata.deletion_timestamp, now.status)) }
    })
    .await;
    assert!(own.contains(&now.spec.unwrap().node_name.unwrap().as_str()));
    east.running("raft").await;
    event(east, "raft", "PodOfLostNode").await;
    east.delete("raft").await;
    for name in own {
        nodes.delete(name, &Default::default()).await.unwrap();
    }
}

/// A node like the others here, for those who tolerate it only.
async fn node_for(client: &Client, name: &str) -> Node {
    let all = Api::<Node>::all(client.clone()).list(&ListParams::default()).await.unwrap();
    let status = all.items[0].status.clone().unwrap();
    let node = json!({"metadata": {"name": name, "labels": {"kubernetes.io/hostname": name, "test": "lost-node"}},
        "spec": {"taints": [{"key": "test", "value": "lost-node", "effect": "NoSchedule"}]},
        "status": {"capacity": status.capacity, "allocatable": status.allocatable, "nodeInfo": status.node_info}});
    serde_json::from_value(node).unwrap()
}

/// The newest pod of `raft` with this index.
async fn broker(place: &Place, index: u32) -> Result<Pod, String> {
    let selector = format!("job-name=raft,{}={index}", labels::kubernetes::COMPLETION_INDEX);
    let pods = place.pods().list(&ListParams::default().labels(&selector)).await.map_err(|error| error.to_string())?;
    let newest = pods.items.into_iter().max_by_key(|pod| pod.metadata.creation_timestamp.clone());
    newest.ok_or_else(|| "there is none".to_owned())
}
