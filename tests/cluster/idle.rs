//! Idle means idle.

use std::time::Duration;

use k8s_openapi::api::coordination::v1::Lease;
use kube::api::Api;
use serde_json::json;
use tributary::api::hosted_burst::BurstPhase;
use tributary::api::labels::condition::CONNECTED;
use tributary::api::peer::ClusterPeer;
use tributary_sandbox::Event;
use tributary_tests::agent::AGENT_USER;
use tributary_tests::eventually::eventually;
use tributary_tests::federation::{Federation, SYSTEM};
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
    // A machine that stands still for seconds is news for agents: they lose each other, or their Lease.
    for minutes in 1.. {
        // What was begun comes to its end; then a minute is watched.
        eventually("ten seconds without a request", async || {
            let odd = odd(&federation, Duration::from_secs(10)).await;
            if odd.is_empty() { Ok(()) } else { Err(format!("{odd:#?}")) }
        })
        .await;
        let before = standing(&federation).await;
        let odd = odd(&federation, Duration::from_secs(60)).await;
        if odd.is_empty() {
            break;
        }
        assert!(
            minutes < 5 && standing(&federation).await != before,
            "{odd:#?} while all stands as before: {before:#?}"
        );
    }
    figures(&federation).await;
    let all = kube::api::DeleteParams::default();
    east.mini_clusters().delete_collection(&all, &Default::default()).await.unwrap();
    west.empty("busy-burst-0").await;
}

/// What agents ask of their API servers within `time`, apart from their Leases and watches.
async fn odd(federation: &Federation, time: Duration) -> Vec<(String, Event)> {
    let markers: Vec<_> = federation.clusters().iter().map(|cluster| cluster.audit().marker().unwrap()).collect();
    tokio::time::sleep(time).await;
    let requests = federation.clusters().iter().zip(markers).flat_map(|(cluster, marker)| {
        let requests = cluster.audit().requests(AGENT_USER, marker).unwrap();
        requests.into_iter().map(|event| (cluster.name().to_owned(), event))
    });
    requests.filter(|(_, event)| !event.is_lease() && !event.is_long_running()).collect()
}

/// Since when each agent leads and how it stands with its peers, as far as that is written.
async fn standing(federation: &Federation) -> Vec<String> {
    let mut found = Vec::new();
    for index in 0..federation.clusters().len() {
        let client = federation.client(index).await;
        let leases: Api<Lease> = Api::namespaced(client.clone(), SYSTEM);
        let lease = leases.get("tributary-agent").await.unwrap().spec.unwrap();
        found.push(format!("{:?} {:?}", lease.lease_transitions, lease.acquire_time));
        let peers: Api<ClusterPeer> = Api::namespaced(client, SYSTEM);
        for peer in peers.list(&Default::default()).await.unwrap() {
            let conditions = peer.status.unwrap_or_default().conditions;
            found.extend(conditions.iter().filter(|one| one.type_ == CONNECTED).map(|one| format!("{one:?}")));
        }
    }
    found
}

/// What the agents count of all this is what the reference says, and what there is.
async fn figures(federation: &Federation) {
    for agent in &federation.agents {
        let shown = eventually(format!("{} leads and has both peers", agent.name), async || {
            let shown = shown(agent.health).await.map_err(|error| error.to_string())?;
            let of = |name: &str| shown.get(name).copied().unwrap_or_default();
            let leads = [of("tributary_leader"), of("tributary_federation_connected_peers")];
            if leads == [1.0, 2.0] { Ok(shown) } else { Err(format!("{leads:?}")) }
        })
        .await;
        assert_eq!(undescribed(shown.keys()), [""; 0]);
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
