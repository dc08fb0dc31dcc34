//! Agents that are killed and restarted.

use std::time::Duration;

use kube::ResourceExt;
use kube::api::{DeleteParams, Patch, PatchParams};
use serde_json::json;
use tributary::api::hosted_burst::BurstPhase;
use tributary::api::names;
use tributary_sandbox::Event;
use tributary_tests::agent::AGENT_USER;
use tributary_tests::eventually::eventually;
use tributary_tests::scenario::bursting;

use crate::availability::leads;
use crate::shared::{alone, places};

#[tokio::test(flavor = "multi_thread")]
async fn a_root_that_was_deleted_and_made_anew_while_cut_off_replaces_its_burst() {
    let federation = alone().await;
    let [east, west, _] = places(&federation, "made-anew").await;
    let spec = || bursting(1, json!([{"size": 1, "peer": "west"}]));
    east.create("phoenix", spec()).await;
    east.burst("phoenix", "phoenix-burst-0", BurstPhase::Ready).await;
    let before = west.hosted().get("phoenix-burst-0").await.unwrap();
    // West hears nothing of the deletion: its agent is gone meanwhile.
    federation.agent(1).kill().unwrap();
    east.delete("phoenix").await;
    east.create("phoenix", spec()).await;
    east.running("phoenix").await;
    federation.agent(1).start(&federation.group).unwrap();
    east.burst("phoenix", "phoenix-burst-0", BurstPhase::Ready).await;
    let after = west.hosted().get("phoenix-burst-0").await.unwrap();
    assert_ne!(before.uid(), after.uid());
    assert_ne!(before.spec.root.uid, after.spec.root.uid);
    let digest = east.status("phoenix").await.unwrap().credential_digest;
    assert_eq!(Some(after.spec.credential_digest), digest, "the old burst was joined to the new instance");
    east.delete("phoenix").await;
    west.empty("phoenix-burst-0").await;
}

/// A namespace's editor takes a Burst away from its root: the root cannot be planned any more. Then the agent is replaced, and
/// another root goes meanwhile.
#[tokio::test(flavor = "multi_thread")]
async fn a_burst_that_cannot_be_planned_keeps_no_other_from_being_released() {
    let federation = alone().await;
    let [east, west, _] = places(&federation, "withheld").await;
    for root in ["robbed", "leaves"] {
        east.create(root, bursting(1, json!([{"size": 1, "peer": "west"}]))).await;
        east.burst(root, &format!("{root}-burst-0"), BurstPhase::Ready).await;
    }
    federation.agent(0).kill().unwrap();
    let alone = Patch::Merge(json!({"metadata": {"ownerReferences": null}}));
    let robbed = names::burst_object("robbed", "robbed-burst-0");
    east.bursts().patch(&robbed, &PatchParams::default(), &alone).await.unwrap();
    east.delete("leaves").await;
    eventually("the garbage collector has taken the Burst", async || {
        match east.burst_now("leaves", "leaves-burst-0").await {
            Ok(_) => Err("it is still there"),
            Err(_) => Ok(()),
        }
    })
    .await;
    federation.agent(0).start(&federation.group).unwrap();
    federation.connected().await;
    west.empty("leaves-burst-0").await;
    // Nobody could ever end the other one.
    west.empty("robbed-burst-0").await;
    let said = east.bursts().get(&robbed).await.unwrap().status.unwrap().message;
    assert!(said.starts_with("nothing owns this Burst"), "{said}");
    east.delete("robbed").await;
    east.bursts().delete(&robbed, &DeleteParams::default()).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restarted_agent_writes_nothing() {
    let federation = alone().await;
    let [east, west, _] = places(&federation, "restart").await;
    east.create("calm", bursting(2, json!([{"size": 1, "peer": "west"}]))).await;
    east.burst("calm", "calm-burst-0", BurstPhase::Ready).await;
    eventually("the root's status is settled", async || {
        let status = east.status("calm").await?;
        if status.bursts_ready.as_deref() == Some("1/1") { Ok(()) } else { Err(format!("{:?}", status.bursts)) }
    })
    .await;
    let audit = federation.clusters()[0].audit();
    let writes = |marker| -> Vec<Event> {
        let requests = audit.requests(AGENT_USER, marker).unwrap().into_iter();
        let writes = requests.filter(|event| event.is_write() && !event.is_lease());
        // That a session came up is news for the ClusterPeer's status.
        writes.filter(|event| event.resource != "clusterpeers").collect()
    };
    // What was begun comes to its end: caches get two seconds before something missing counts as taken away, and the records
    // of usage wait ten seconds between two writes.
    eventually("nothing is written for a while", async || {
        let marker = audit.marker().unwrap();
        tokio::time::sleep(Duration::from_secs(11)).await;
        let writes = writes(marker);
        if writes.is_empty() { Ok(()) } else { Err(format!("{writes:#?}")) }
    })
    .await;
    let before = west.hosted().get("calm-burst-0").await.unwrap();
    let led = federation.agent(0).log_text().matches("this agent leads its cluster").count();
    federation.agent(0).kill().unwrap();
    let marker = audit.marker().unwrap();
    federation.agent(0).start(&federation.group).unwrap();
    leads(federation.agent(0), led + 1).await;
    federation.connected().await;
    east.burst("calm", "calm-burst-0", BurstPhase::Ready).await;
    let after = west.hosted().get("calm-burst-0").await.unwrap();
    assert_eq!(before.uid(), after.uid(), "the burst stays");
    let writes = writes(marker);
    assert!(writes.is_empty(), "{writes:#?}\n{}", federation.agent(0).log_text());
    east.delete("calm").await;
    west.empty("calm-burst-0").await;
}
