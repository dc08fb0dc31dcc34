//! Agents that are killed, frozen and restarted.

use std::time::Duration;

use kube::ResourceExt;
use kube::api::{DeleteParams, Patch, PatchParams};
use serde_json::json;
use tributary::api::hosted_burst::BurstPhase;
use tributary::api::names;
use tributary_sandbox::Event;
use tributary_tests::agent::AGENT_USER;
use tributary_tests::eventually::eventually;
use tributary_tests::federation::Federation;
use tributary_tests::scenario::{Place, bursting};

use crate::shared::{CLUSTERS, alone, places};

#[tokio::test(flavor = "multi_thread")]
async fn a_provider_that_is_killed_at_any_phase_converges() {
    let federation = alone().await;
    let [east, west, north] = places(&federation, "killed").await;
    let early = [BurstPhase::Offered, BurstPhase::Accepted, BurstPhase::Provisioning];
    let late = [BurstPhase::Joining, BurstPhase::Ready];
    // Two providers die beside each other.
    tokio::join!(killed_at(&federation, 1, &early, &east, &west), killed_at(&federation, 2, &late, &east, &north));
}

async fn killed_at(federation: &Federation, index: usize, phases: &[BurstPhase], root: &Place, provider: &Place) {
    let peer = CLUSTERS[index];
    for (round, phase) in phases.iter().enumerate() {
        let name = format!("{peer}-{round}");
        let slot = format!("{name}-burst-0");
        root.create(&name, bursting(1, json!([{"size": 2, "peer": peer}]))).await;
        eventually(format!("{slot} is {phase:?} or further"), async || {
            let burst = root.burst_now(&name, &slot).await?;
            let seen = burst.status.unwrap_or_default().phase;
            if seen >= *phase { Ok(()) } else { Err(format!("{seen:?}")) }
        })
        .await;
        federation.agent(index).kill().unwrap();
        federation.agent(index).start(&federation.group).unwrap();
        root.burst(&name, &slot, BurstPhase::Ready).await;
        root.delete(&name).await;
        provider.empty(&slot).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_root_agent_that_is_killed_loses_nothing() {
    let federation = alone().await;
    let [east, west, _] = places(&federation, "root-killed").await;
    east.create("steady", bursting(1, json!([{"size": 1, "peer": "west"}]))).await;
    east.burst("steady", "steady-burst-0", BurstPhase::Ready).await;
    let hosted = west.hosted().get("steady-burst-0").await.unwrap().uid();
    federation.agent(0).kill().unwrap();
    federation.agent(0).start(&federation.group).unwrap();
    federation.connected().await;
    east.burst("steady", "steady-burst-0", BurstPhase::Ready).await;
    assert_eq!(west.hosted().get("steady-burst-0").await.unwrap().uid(), hosted, "the burst was made anew");
    east.delete("steady").await;
    west.empty("steady-burst-0").await;
}

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
    let led = || federation.agent(0).log_text().matches("the agent runs").count();
    let before = led();
    federation.agent(0).stop(&federation.group).await.unwrap();
    let marker = audit.marker().unwrap();
    federation.agent(0).start(&federation.group).unwrap();
    eventually("the agent leads again", async || if led() > before { Ok(()) } else { Err("no") }).await;
    federation.connected().await;
    let writes = writes(marker);
    assert!(writes.is_empty(), "{writes:#?}\n{}", federation.agent(0).log_text());
    east.delete("calm").await;
    west.empty("calm-burst-0").await;
}
