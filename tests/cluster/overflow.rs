//! What a FluxSetup grants to bursts of peers, and where FluxJobs go that do not fit at home.

use kube::api::Api;
use serde_json::json;
use tributary::api::flux_job::{JobPhase, JobResult};
use tributary::api::hosted_burst::BurstPhase;
use tributary::api::labels::{condition, reason};
use tributary::api::names;
use tributary::api::peer::ClusterPeer;
use tributary_sandbox::annotations;
use tributary_tests::eventually::eventually;
use tributary_tests::federation::SYSTEM;
use tributary_tests::scenario::{Place, bursting, interactive};

use crate::queue::{apply, jobs, setups, submit, taken, told, until};
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

/// The slot of the other part of a FluxJob that was split.
async fn slot(place: &Place, job: &str) -> String {
    names::sent(job, &jobs(place).get(job).await.unwrap().metadata.uid.unwrap_or_default())
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
    eventually("the FluxSetup says who has two brokers", async || {
        let setup = setups(&west).get("default").await.map_err(|error| error.to_string())?;
        let status = setup.status.unwrap_or_default();
        let of_peers = status.peers.first().map(|peer| (peer.name.as_str(), peer.used.brokers));
        let seen = (status.used.brokers, of_peers);
        if seen == (2, Some(("east", 2))) { Ok(()) } else { Err(format!("{seen:?}")) }
    })
    .await;

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
    until(&east, "wide", JobPhase::Running).await;
    eventually("wide is split between here and west", async || {
        let status = jobs(&east).get("wide").await.map_err(|error| error.to_string())?.status.unwrap_or_default();
        // No peer is named before its part is placed.
        let split = status.split.as_ref().map(|split| (split.local, split.away, split.peer.as_deref()));
        let split = status.phase == JobPhase::Running && split == Some((2, 2, Some("west")));
        if split { Ok(()) } else { Err(format!("{status:?}")) }
    })
    .await;
    east.burst("wide", &slot(&east, "wide").await, BurstPhase::Ready).await;
    room(&peers, &east, 1).await;
    submit(&east, "wider", json!({"size": 4, "allowBurst": true})).await;
    told(&east, "wider", JobPhase::Waiting, "it can never start here: 4 brokers are needed").await;
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
    east.burst("wider", &slot(&east, "wider").await, BurstPhase::Ready).await;
    jobs(&east).delete("wider", &Default::default()).await.unwrap();
    room(&peers, &east, 3).await;
    for place in [&east, &west] {
        setups(place).delete("default", &Default::default()).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flux_job_that_does_not_fit_is_sent_whole_and_one_that_nobody_takes_comes_back() {
    let federation = together().await;
    let [east, west, _] = places(&federation, "whole").await;
    let setup = |brokers: u32| {
        let spec = json!({"quota": {"brokers": brokers}, "overflow": {"policy": "Whole", "peers": ["west"]}});
        apply(setups(&east), "FluxSetup", "default", spec)
    };
    setup(2).await;
    apply(setups(&west), "FluxSetup", "default", json!({"quota": {"brokers": 4}})).await;
    let peers: Api<ClusterPeer> = Api::namespaced(federation.client(0).await, SYSTEM);
    room(&peers, &east, 4).await;

    // A MiniCluster that grows asks for the difference, and goes on without it meanwhile.
    let mut grows = interactive(1);
    grows["maxSize"] = 3.into();
    east.create("grows", grows).await;
    east.running("grows").await;
    east.change("grows", json!({"size": 2})).await;

    submit(&east, "long", json!({"size": 4, "allowBurst": true})).await;
    let status = until(&east, "long", JobPhase::Running).await;
    let sent = status.sent.expect("it is sent");
    assert_eq!((status.peer.as_deref(), sent.namespace.as_str()), (Some("west"), "whole"), "{}", status.message);
    let there = sent.mini_cluster.as_str();
    assert!(there.starts_with("long-") && status.logs.contains(there), "{}", status.logs);
    assert!(east.jobs().get_opt("long").await.unwrap().is_none(), "nothing of it is here");
    let hosted = west.hosted().get(there).await.unwrap();
    assert!(hosted.spec.whole && hosted.status.unwrap().credential_ready);
    let certificate = west.secrets().get_metadata(&format!("{there}-curve")).await.unwrap();
    let owner = certificate.metadata.owner_references.unwrap().remove(0);
    assert_eq!((owner.kind.as_str(), owner.name.as_str()), ("MiniCluster", there), "it is made where it runs");
    room(&peers, &east, 0).await;

    // It ends there, its end is known here, and it takes no room any more.
    west.annotate_pod(there, 0, annotations::EXIT, "7").await;
    let status = until(&east, "long", JobPhase::Finished).await;
    assert_eq!((status.result, status.exit_code), (Some(JobResult::Failed), Some(7)), "{}", status.message);
    room(&peers, &east, 4).await;
    assert!(west.hosted().get_opt(there).await.unwrap().is_some(), "its pods are kept for their logs");
    jobs(&east).delete("long", &Default::default()).await.unwrap();
    west.empty(there).await;

    // West has room and does not allow it: it comes back, and starts here once there is room.
    let forbidden = json!({"containers": [{"volumes": {"data": {"path": "/data", "hostPath": "/srv"}}}]});
    submit(&east, "bound", json!({"size": 3, "allowBurst": true, "miniCluster": forbidden})).await;
    let status = eventually("it stands in line again", async || {
        let status = jobs(&east).get("bound").await.map_err(|error| error.to_string())?.status.unwrap_or_default();
        if status.returned.is_some() { Ok(status) } else { Err(format!("{status:?}")) }
    })
    .await;
    let returned = status.returned.unwrap();
    assert!(returned.times == 1 && returned.why.contains("PolicyForbids"), "{}", returned.why);
    assert_eq!((status.sent, status.peer), (None, None));
    eventually("nothing of it is left anywhere", async || {
        let bursts = east.bursts().list(&Default::default()).await.map_err(|error| error.to_string())?.items;
        if bursts.is_empty() { Ok(()) } else { Err(format!("{bursts:?}")) }
    })
    .await;
    let told = east.status("grows").await.unwrap();
    assert_eq!((told.size, told.maximum_size), (2, 3), "there was room for one more");
    setup(5).await;
    until(&east, "bound", JobPhase::Running).await;
    east.change("grows", json!({"size": 3})).await;
    let why = east.condition("grows", condition::GROWN, "False", reason::QUEUED).await;
    assert!(why.starts_with("it stays at 2 of 3 brokers: "), "{why}");
    setup(6).await;
    eventually("it grows when there is room", async || match east.status("grows").await? {
        status if status.size == 3 && status.conditions.iter().all(|one| one.type_ != condition::GROWN) => Ok(()),
        status => Err(format!("{status:?}")),
    })
    .await;
    taken(&east, 2, 0).await;
    east.delete("grows").await;
    jobs(&east).delete("bound", &Default::default()).await.unwrap();
    for place in [&east, &west] {
        setups(place).delete("default", &Default::default()).await.unwrap();
    }
}
