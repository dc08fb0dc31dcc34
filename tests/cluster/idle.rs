//! Idle means idle.

use std::time::Duration;

use serde_json::json;
use tributary::api::hosted_burst::BurstPhase;
use tributary_tests::agent::AGENT_USER;
use tributary_tests::eventually::eventually;
use tributary_tests::federation::Federation;
use tributary_tests::metrics::{shown, undescribed};
use tributary_tests::scenario::{bursting, interactive};

use crate::shared::{places, quiet};

/// MiniClusters that are settled while nothing is asked for.
const COUNT: usize = 50;

#[tokio::test(flavor = "multi_thread")]
async fn settled_clusters_make_no_requests() {
    let federation = quiet().await;
    let [east, west, _] = places(&federation, "idle").await;
    east.create("busy", bursting(1, json!([{"size": 1, "peer": "west"}]))).await;
    for index in 1..COUNT {
        east.create(&format!("still-{index}"), interactive(1)).await;
    }
    east.burst("busy", "busy-burst-0", BurstPhase::Ready).await;
    eventually("all are running", async || {
        let list = east.mini_clusters().list(&Default::default()).await.map_err(|error| error.to_string())?;
        let ready = list.items.iter().filter(|one| one.status.as_ref().is_some_and(|status| status.ready == Some(1)));
        let ready = ready.count();
        if ready == COUNT { Ok(()) } else { Err(format!("{ready} of {COUNT}")) }
    })
    .await;
    // What was begun comes to its end; then a minute is watched.
    tokio::time::sleep(Duration::from_secs(10)).await;
    let markers: Vec<_> = federation.clusters().iter().map(|cluster| cluster.audit().marker().unwrap()).collect();
    tokio::time::sleep(Duration::from_secs(60)).await;
    for (cluster, marker) in federation.clusters().iter().zip(markers) {
        let requests = cluster.audit().requests(AGENT_USER, marker).unwrap();
        let odd: Vec<_> = requests.into_iter().filter(|event| !event.is_lease() && !event.is_long_running()).collect();
        assert!(odd.is_empty(), "{}: {odd:#?}", cluster.name());
    }
    figures(&federation).await;
    let all = kube::api::DeleteParams::default();
    east.mini_clusters().delete_collection(&all, &Default::default()).await.unwrap();
    west.empty("busy-burst-0").await;
}

/// What the agents count of all this is what the reference says, and what there is.
async fn figures(federation: &Federation) {
    for agent in &federation.agents {
        let shown = shown(agent.health).await.unwrap();
        assert_eq!(undescribed(shown.keys()), [""; 0]);
        assert_eq!([shown["tributary_leader"], shown["tributary_federation_connected_peers"]], [1.0, 2.0]);
        assert!(shown["tributary_identity_renews_seconds"] < shown["tributary_identity_expires_seconds"]);
    }
    let east = shown(federation.agents[0].health).await.unwrap();
    assert!(east["tributary_miniclusters{phase=\"Running\"}"] >= COUNT as f64, "{east:#?}");
    assert!(east["tributary_bursts{phase=\"Ready\"}"] >= 1.0, "{east:#?}");
    assert!(east["tributary_controller_passes_total{controller=\"minicluster\",outcome=\"done\"}"] >= COUNT as f64);
    // Brokers of simulated nodes are never online. A step is counted by whoever wrote it: that of an agent which stopped leading
    // meanwhile, as one may on a busy machine, is missing.
    let steps = ["offered", "admitted", "created", "started"];
    let counted = steps.iter().filter(|step| {
        let count = format!("tributary_burst_step_seconds_count{{step=\"{step}\"}}");
        east.get(&count).is_some_and(|count| *count >= 1.0)
    });
    assert!(counted.count() + 1 >= steps.len(), "{east:#?}");
    let west = shown(federation.agents[1].health).await.unwrap();
    assert!(west["tributary_hosted_bursts{phase=\"Ready\"}"] >= 1.0, "{west:#?}");
}
