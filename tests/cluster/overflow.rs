//! What a FluxSetup grants to bursts of peers, and where FluxJobs go that do not fit at home.

use kube::api::Api;
use serde_json::json;
use tributary::api::flux_job::JobPhase;
use tributary::api::flux_setup::FluxSetup;
use tributary::api::hosted_burst::BurstPhase;
use tributary::api::peer::ClusterPeer;
use tributary_tests::eventually::eventually;
use tributary_tests::federation::SYSTEM;
use tributary_tests::scenario::{Place, bursting};

use crate::queue::{apply, jobs, setups, submit, taken, until};
use crate::shared::{places, together};

/// Until east knows that west leaves so many brokers to the bursts of this namespace.
async fn room(peers: &Api<ClusterPeer>, place: &Place, brokers: u32) {
    eventually(format!("west leaves {brokers} brokers to {}", place.namespace), async || {
        let peer = peers.get("west").await.map_err(|error| error.to_string())?;
        let rooms = peer.status.unwrap_or_default().rooms;
        let room = rooms.iter().find(|room| room.namespace == place.namespace);
        if room.is_some_and(|room| room.left.brokers == Some(brokers)) { Ok(()) } else { Err(format!("{rooms:?}")) }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn bursts_of_peers_get_what_a_flux_setup_grants_and_no_more() {
    let federation = together().await;
    let [east, west, _] = places(&federation, "overflow").await;
    let peers: Api<ClusterPeer> = Api::namespaced(federation.client(0).await, SYSTEM);
    let setup = json!({"quota": {"brokers": 4}, "peers": [{"name": "east", "quota": {"brokers": 3}}]});
    apply(setups(&west), "FluxSetup", "default", setup).await;
    room(&peers, &east, 3).await;

    east.create("first", bursting(1, json!([{"peer": "west", "size": 2}]))).await;
    east.burst("first", "first-burst-0", BurstPhase::Ready).await;
    room(&peers, &east, 1).await;
    let usage = async |setup: FluxSetup| {
        let status = setup.status.unwrap_or_default();
        (status.used.brokers, status.peers.first().map(|peer| (peer.name.clone(), peer.used.brokers)))
    };
    let seen = usage(setups(&west).get("default").await.unwrap()).await;
    assert_eq!(seen, (2, Some(("east".to_owned(), 2))));

    // It is not made there to wait: it is refused, until there is room.
    east.create("second", bursting(1, json!([{"peer": "west", "size": 3}]))).await;
    let burst = east.burst("second", "second-burst-0", BurstPhase::Rejected).await;
    let refusal = burst.status.unwrap().refusals.remove(0);
    assert_eq!(refusal.reason, "NoRoomInQueue", "{}", refusal.message);
    assert!(
        refusal.message.contains("grants to east is taken: 3 brokers are needed, 1 are free"),
        "{}",
        refusal.message
    );
    assert!(west.left("second-burst-0").await.unwrap().is_empty());
    east.delete("first").await;
    east.burst("second", "second-burst-0", BurstPhase::Ready).await;
    room(&peers, &east, 0).await;
    east.delete("second").await;
    room(&peers, &east, 3).await;

    // What does not fit at home starts in two parts, as far as west has room.
    let overflow = json!({"quota": {"brokers": 2}, "overflow": {"policy": "Split", "peers": ["west"]}});
    apply(setups(&east), "FluxSetup", "default", overflow).await;
    submit(&east, "wide", json!({"size": 4, "allowBurst": true})).await;
    let status = until(&east, "wide", JobPhase::Running).await;
    let split = status.split.expect("it is split");
    assert_eq!((split.local, split.away, split.peer.as_deref()), (2, 2, Some("west")), "{}", status.message);
    east.burst("wide", "wide-burst-0", BurstPhase::Ready).await;
    room(&peers, &east, 1).await;
    submit(&east, "wider", json!({"size": 4, "allowBurst": true})).await;
    let waits = until(&east, "wider", JobPhase::Waiting).await;
    assert!(waits.message.starts_with("it can never start here: 4 brokers are needed"), "{}", waits.message);
    taken(&east, 1, 1).await;
    eventually("wide says where its brokers are", async || {
        let status = jobs(&east).get("wide").await.map_err(|error| error.to_string())?.status.unwrap_or_default();
        let told = status.message == "its instance is up: 2 brokers here, 2 on west (Ready)";
        if told { Ok(()) } else { Err(status.message) }
    })
    .await;
    // Its room on both sides goes to the next.
    jobs(&east).delete("wide", &Default::default()).await.unwrap();
    until(&east, "wider", JobPhase::Running).await;
    east.burst("wider", "wider-burst-0", BurstPhase::Ready).await;
    jobs(&east).delete("wider", &Default::default()).await.unwrap();
    room(&peers, &east, 3).await;
    for place in [&east, &west] {
        setups(place).delete("default", &Default::default()).await.unwrap();
    }
}
