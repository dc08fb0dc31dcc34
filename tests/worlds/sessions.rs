//! Sessions that end and begin again: what was said in an earlier one is about what was wanted then.

use std::time::Duration;

use kube::ResourceExt as _;
use serde_json::{Value, json};
use tributary::api::hosted_burst::BurstPhase;
use tributary::api::labels;
use tributary::api::minicluster::MiniCluster;

use crate::budgets::status;
use crate::cluster::USERS;
use crate::dangers::{SHORT, bursts, hosted, in_world, is_ready, secs};
use crate::owners::{annotate, nothing_on};
use crate::world::World;

/// How many bursts west has admitted by now.
fn admitted(world: &World) -> usize {
    world
        .writes()
        .iter()
        .filter(|line| line.starts_with("west ") && line.contains(" hostedbursts/"))
        .filter(|line| {
            let words: Vec<&str> = line.split(' ').collect();
            words[2] == "create" && words.last() == Some(&"201")
        })
        .count()
}

fn is_let_go(world: &World) -> bool {
    status(world).peer.is_none()
}

/// The danger: a peer takes the last offer that it heard of for what its root wants now. It admits a burst, and ends it at
/// once.
#[test]
fn an_offer_of_an_earlier_session_that_was_taken_back_is_not_admitted() {
    in_world(2, SHORT, async |world| {
        world.run(secs(5)).await?;
        // The offer arrives, and no answer.
        world.cut(1, 0, false);
        world.apply(0, "lake", 2, json!([{"size": 2, "peer": "west"}]), "NodePort");
        world.until("it is admitted", secs(8), |world| hosted(world, 1).is_some()).await?;
        world.until("it is let go", secs(60), is_let_go).await?;
        world.until("its lease is over", secs(90), |world| nothing_on(world, 1)).await?;
        let before = admitted(world);
        world.heal(1, 0);
        is_ready(world).await?;
        assert_eq!(admitted(world) - before, 1, "{}", world.writes().join("\n"));
        Ok(())
    });
}

/// The danger: a root waits for ever for a word that its peer has said before.
#[test]
fn who_has_nothing_says_so_once_more_when_it_is_told_once_more_to_let_go() {
    in_world(2, SHORT, async |world| {
        bursts(world, Some("west")).await?;
        annotate(world, labels::CANCEL, "now".into());
        world.until("nothing is left", secs(40), |world| nothing_on(world, 1) && is_let_go(world)).await?;
        world.run(secs(2)).await?;
        // The next offer does not arrive.
        world.cut(0, 1, false);
        annotate(world, labels::CANCEL, Value::Null);
        world.until("it is offered", secs(4), |world| !is_let_go(world)).await?;
        world.until("it is let go", secs(60), is_let_go).await?;
        world.heal(0, 1);
        is_ready(world).await
    });
}

/// The danger: the last word of a peer about one offer is taken for its word about the next one.
#[test]
fn a_peer_that_is_asked_anew_after_an_outage_lets_go_of_nothing() {
    in_world(2, SHORT, async |world| {
        world.apply(0, "lake", 2, json!([{"size": 2, "peer": "west"}]), "Tunnel");
        is_ready(world).await?;
        world.cut(0, 1, true);
        world.until("it is let go", secs(180), is_let_go).await?;
        world.until("its lease is over", secs(90), |world| nothing_on(world, 1)).await?;
        let before = admitted(world);
        world.kill(0, 0);
        world.start(0, 0);
        world.run(secs(15)).await?;
        world.heal(0, 1);
        is_ready(world).await?;
        let returns = status(world).returns;
        assert!(returns.is_empty() && admitted(world) - before == 1, "{returns:?}\n{}", world.writes().join("\n"));
        Ok(())
    });
}

/// The danger: people are told that brokers are online that have ended long ago.
#[test]
fn after_an_outage_longer_than_the_lease_nobody_is_told_of_what_was_before() {
    in_world(2, SHORT, async |world| {
        bursts(world, Some("west")).await?;
        let before = hosted(world, 1).and_then(|hosted| hosted.uid());
        world.cut(0, 1, true);
        world.run(secs(120)).await?;
        assert_eq!(status(world).phase, BurstPhase::Lost);
        world.heal(0, 1);
        for _ in 0..10_000 {
            tokio::time::sleep(Duration::from_millis(1)).await;
            let now = status(world);
            assert!(now.phase != BurstPhase::Ready || now.hosted_uid != before, "{now:?}");
        }
        is_ready(world).await
    });
}

/// The danger: who is to let go hears nothing of that from a leader that has just begun.
#[test]
fn a_root_that_ends_while_its_agent_restarts_lets_go_of_its_burst_at_once() {
    in_world(2, SHORT, async |world| {
        bursts(world, Some("west")).await?;
        world.kill(0, 0);
        let suspend = json!({"spec": {"suspend": true}});
        world.clusters[0].server.patch::<MiniCluster>(USERS, "lake", suspend).unwrap();
        world.start(0, 0);
        let released = |world: &World| status(world).phase == BurstPhase::Released;
        world.until("it leads again, and the burst ends", secs(22), |world| hosted(world, 1).is_none()).await?;
        world.until("that is known", secs(3), released).await
    });
}
