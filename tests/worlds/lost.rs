//! Providers that are away for any time, while their pods run on.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use k8s_openapi::api::core::v1::Secret;
use kube::ResourceExt as _;
use kube::api::DeleteParams;
use serde_json::json;
use tributary::api::burst::Burst;
use tributary::api::hosted_burst::{BurstPhase, HostedBurst};
use tributary::api::minicluster::MiniCluster;
use tributary::api::peer::ClusterPeer;
use tributary::api::{labels, names};
use tributary::bursting::timing::longest_life;
use tributary_api_server::{Away, Fault};

use crate::agent::Settings;
use crate::budgets::{pods, ready_on, status};
use crate::cluster::{SYSTEM, USERS};
use crate::dangers::{SHORT, burst, bursts, hosted, in_world, is_ready, provider, secs};
use crate::owners::annotate;
use crate::world::{NAMES, World};

/// A burst that is ready somewhere, by this network.
async fn ready(world: &mut World, network: &str) -> Result<usize, String> {
    world.apply(0, "lake", 2, json!([{"size": 2}]), network);
    is_ready(world).await?;
    Ok(provider(world))
}

/// It counts as lost, and its slot is still the peer's.
fn is_kept_for(world: &World, peer: usize) -> bool {
    let status = status(world);
    status.phase == BurstPhase::Lost && status.peer.as_deref() == Some(NAMES[peer])
}

/// The danger: an agent whose identity cannot be used starts again, and nobody ends what its peers have there.
#[test]
fn a_provider_without_a_usable_identity_ends_bursts_with_their_lease() {
    in_world(2, SHORT, async |world| {
        bursts(world, Some("west")).await?;
        let server = world.clusters[1].server.clone();
        let good = server.get::<Secret>(SYSTEM, "tributary-identity").unwrap();
        let mut spoilt = good.clone();
        // As somebody else's whose renewal has failed.
        (spoilt.metadata.labels, spoilt.data) = (None, None);
        server.put(&spoilt).unwrap();
        world.wrong[1].insert("identity");
        world.kill(1, 0);
        world.start(1, 0);
        world.until("it ends with its lease", secs(120), |world| pods(world, 1) == 0).await?;
        let peer = server.get::<ClusterPeer>(SYSTEM, "east").and_then(|peer| peer.status).unwrap_or_default();
        assert!(!peer.connected, "{peer:?}");
        server.put(&good).unwrap();
        world.wrong[1].remove("identity");
        is_ready(world).await
    });
}

/// The danger: the pods of a peer that is lost still reach the lead broker, and another peer runs their ranks.
#[test]
fn no_time_moves_a_slot_whose_brokers_reach_the_lead_directly() {
    in_world(3, SHORT, async |world| {
        let peer = bursts(world, None).await?;
        let before = hosted(world, peer).and_then(|hosted| hosted.uid());
        world.away(peer, Some(Away::Refuses));
        world.run(secs(120)).await?;
        let said = status(world).message;
        assert!(is_kept_for(world, peer), "{}", world.summary());
        assert!(said.contains("until it confirms that nothing is left"), "{said}");
        world.away(peer, None);
        // Its lease was over: whatever it said before, its brokers end.
        let anew = |world: &World| {
            let status = status(world);
            status.phase == BurstPhase::Ready && status.hosted_uid != before
        };
        world.until("it begins anew", secs(60), anew).await?;
        Ok(())
    });
}

/// The root's end of the tunnel refuses the old holder, whatever that does.
#[test]
fn a_slot_on_a_tunnel_is_placed_elsewhere_and_its_old_holder_reaches_nothing() {
    in_world(3, SHORT, async |world| {
        let peer = ready(world, "Tunnel").await?;
        world.kill(peer, 0);
        world.run(secs(45)).await?;
        assert!(is_kept_for(world, peer), "{}", world.summary());
        world.until("it moves", secs(150), |world| ready_on(world, 3 - peer)).await?;
        assert_eq!(pods(world, peer), 2, "they run on, and nobody hears them");
        world.start(peer, 0);
        world.until("one is left", secs(60), |world| hosted(world, peer).is_none()).await?;
        assert!(ready_on(world, 3 - peer), "{}", world.summary());
        Ok(())
    });
}

/// What a root waits is enough as long as the provider's agent works, and its pods end as slowly as they may.
#[test]
fn a_provider_whose_agent_works_has_ended_its_pods_before_time_frees_the_slot() {
    let (lease, drain) = (secs(40), secs(10));
    let ends = longest_life(lease, drain).saturating_sub(lease + secs(5));
    in_world(3, Settings { ends, ..SHORT }, async |world| {
        let peer = ready(world, "Tunnel").await?;
        world.cut(0, peer, true);
        world.run(secs(30)).await?;
        world.kill(peer, 0);
        world.start(peer, 0);
        world.until("it moves", secs(200), |world| pods(world, 3 - peer) > 0).await?;
        assert_eq!(pods(world, peer), 0, "{}", world.summary());
        Ok(())
    });
}

/// An agent dies while it is in contact, so nothing says since when its root is lost but the Lease that it renewed.
#[test]
fn a_provider_that_was_down_when_its_root_was_lost_counts_from_then() {
    in_world(2, Settings { times: (120, 10, 20), ..SHORT }, async |world| {
        let peer = bursts(world, Some("west")).await?;
        world.kill(peer, 0);
        world.run(secs(100)).await?;
        world.cut(0, peer, true);
        world.start(peer, 0);
        world.run(secs(15)).await?;
        assert!(pods(world, peer) > 0, "{}", world.summary());
        world.until("its pods end", secs(30), |world| pods(world, peer) == 0).await
    });
}

/// Neither a Burst that is made anew nor a ClusterPeer that is gone frees it; a person's word does.
#[test]
fn a_peer_that_was_removed_keeps_its_ranks_until_a_person_lets_them_go() {
    in_world(3, SHORT, async |world| {
        let peer = bursts(world, None).await?;
        let server = world.clusters[0].server.clone();
        server.delete::<ClusterPeer>(SYSTEM, NAMES[peer], &DeleteParams::background()).unwrap();
        world.run(secs(60)).await?;
        server
            .delete::<Burst>(USERS, &names::burst_object("lake", "lake-burst-0"), &DeleteParams::background())
            .unwrap();
        world.run(secs(120)).await?;
        assert!(is_kept_for(world, peer) && pods(world, peer) == 0, "{}", world.summary());
        let burst = burst(world).unwrap();
        let since = burst.status.as_ref().and_then(|status| status.lost_since.clone());
        let word = json!({"burstUID": burst.uid(), "incarnation": burst.spec.incarnation, "peer": NAMES[peer],
            "lostSince": since, "by": "alice", "at": since});
        annotate(world, labels::RELEASE, word.to_string().into());
        world.until("it moves", secs(40), |world| ready_on(world, 3 - peer)).await
    });
}

#[test]
fn an_instance_with_a_new_certificate_goes_elsewhere_though_its_lost_provider_says_nothing() {
    in_world(3, SHORT, async |world| {
        let peer = bursts(world, None).await?;
        world.kill(peer, 0);
        world.run(secs(60)).await?;
        let restart = json!({"metadata": {"annotations": {labels::RESTART: "now"}}});
        world.clusters[0].server.patch::<MiniCluster>(USERS, "lake", restart).unwrap();
        world.until("it moves", secs(60), |world| ready_on(world, 3 - peer)).await?;
        world.start(peer, 0);
        world.until("nothing is left of the old one", secs(60), |world| hosted(world, peer).is_none()).await?;
        assert!(ready_on(world, 3 - peer), "{}", world.summary());
        Ok(())
    });
}

/// It has nothing of the burst, and says so.
#[test]
fn another_cluster_under_the_name_of_a_lost_provider_frees_nothing() {
    in_world(3, SHORT, async |world| {
        let peer = bursts(world, None).await?;
        world.kill(peer, 0);
        world.run(secs(30)).await?;
        world.take_name_of(peer);
        let server = world.clusters[0].server.clone();
        server.delete::<ClusterPeer>(SYSTEM, NAMES[peer], &DeleteParams::background()).unwrap();
        world.befriend(0, peer);
        world.start(peer, 0);
        world.run(Duration::from_mins(3)).await?;
        let said = status(world).message;
        assert!(is_kept_for(world, peer) && said.contains("another cluster"), "{said}: {}", world.summary());
        Ok(())
    });
}

/// The danger: what a root offered before it was lost is taken and ended again and again until it is back.
#[test]
fn the_offer_of_a_root_that_is_lost_is_taken_once() {
    in_world(2, SHORT, async |world| {
        let (root, west) = (world.clusters[0].server.clone(), world.clusters[1].server.clone());
        // The root does not come to know that its burst is there.
        let there = west.clone();
        root.on_request(move |info| {
            let told = info.resource == "bursts" && info.subresource == "status";
            (told && !there.list::<HostedBurst>().is_empty()).then_some(Fault::Answer(500))
        });
        let ended = Arc::new(AtomicUsize::new(0));
        let counted = ended.clone();
        west.on_request(move |info| {
            if info.verb == "delete" && info.resource == "hostedbursts" {
                counted.fetch_add(1, Ordering::Relaxed);
            }
            None
        });
        world.apply(0, "lake", 2, json!([{"size": 2, "peer": "west"}]), "NodePort");
        world.until("it is taken", secs(30), |world| hosted(world, 1).is_some()).await?;
        world.cut(0, 1, true);
        world.run(secs(200)).await?;
        assert_eq!(ended.load(Ordering::Relaxed), 1, "{}", world.summary());
        Ok(())
    });
}
