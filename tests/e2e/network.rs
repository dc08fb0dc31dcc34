//! The network between the clusters' nodes fails.

use std::time::Duration;

use serde_json::json;
use tributary::api::hosted_burst::BurstPhase;

use crate::clusters::Cut;
use crate::ground::{clusters, enter, in_lead, ranks_up, skip, until_up};

#[tokio::test(flavor = "multi_thread")]
async fn a_burst_outlives_cuts_of_the_network() {
    let Some((clusters, _)) = clusters() else { return };
    let Some(network) = clusters.network(Cut::All).unwrap() else {
        return skip("cuts of the network need commands in TRIBUTARY_E2E_CUT and TRIBUTARY_E2E_HEAL");
    };
    let Some(ground) = enter().await else { return };
    let places = ground.namespace("e2e-cut").await;
    let [root, provider] = &places;
    root.create("delta", ground.bursting(1, json!([{"size": 2, "peer": ground.provider()}]))).await;
    root.burst("delta", "delta-burst-0", BurstPhase::Ready).await;
    until_up(root, "delta", "0-2").await;

    // Shorter than TCP's patience: a job that runs over it ends well.
    let job = in_lead(root, "delta", "flux submit -N3 sleep 15").await.unwrap();
    network.cut();
    tokio::time::sleep(Duration::from_secs(8)).await;
    network.heal();
    in_lead(root, "delta", &format!("flux job attach {}", job.trim())).await.unwrap();
    assert_eq!(ranks_up(root, "delta").await.unwrap(), "0-2");

    // Longer: Flux gives the ranks up, nobody evicts anything, and they come back by themselves.
    let hosted = provider.hosted().get("delta-burst-0").await.unwrap().metadata.uid;
    network.cut();
    until_up(root, "delta", "0").await;
    network.heal();
    until_up(root, "delta", "0-2").await;
    root.burst("delta", "delta-burst-0", BurstPhase::Ready).await;
    assert_eq!(provider.hosted().get("delta-burst-0").await.unwrap().metadata.uid, hosted);
    in_lead(root, "delta", "flux run -N3 hostname").await.unwrap();

    root.delete("delta").await;
    provider.empty("delta-burst-0").await;
    ground.leave(&places).await;
}
