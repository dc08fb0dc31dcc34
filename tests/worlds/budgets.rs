//! Bursts with a budget: whatever agent restarts, and whoever is cut off, brokers are elsewhere as long as they may be, and
//! no longer.

use serde_json::{Value, json};
use tributary::api::budget::Spent;
use tributary::api::burst::{Burst, BurstStatus};
use tributary::api::hosted_burst::BurstPhase;
use tributary::api::minicluster::MiniCluster;
use tributary::api::peer::ClusterPeer;

use crate::cluster::{SYSTEM, USERS, is_over};
use crate::dangers::{SHORT, burst, hosted, in_world, secs};
use crate::world::{NAMES, STEP, World};

/// A MiniCluster with a burst of two onto any of these peers.
fn apply(world: &mut World, peers: &[&str], budget: Value, network: &str) {
    world.apply(0, "lake", 2, json!([{"size": 2, "peers": peers, "budget": budget}]), network);
}

pub fn status(world: &World) -> BurstStatus {
    burst(world).and_then(|burst| burst.status).unwrap_or_default()
}

pub fn ready_on(world: &World, peer: usize) -> bool {
    let status = status(world);
    status.phase == BurstPhase::Ready && status.peer.as_deref() == Some(NAMES[peer])
}

/// Pods of bursts in the peer of this number.
pub fn pods(world: &World, peer: usize) -> usize {
    world.clusters[peer].pods().iter().filter(|pod| !is_over(pod)).count()
}

fn is_spent(world: &World) -> bool {
    status(world).phase == BurstPhase::Spent && pods(world, 1) == 0
}

#[test]
fn a_burst_lasts_as_long_as_its_budget_though_agents_restart_all_the_time() {
    in_world(2, SHORT, async |world| {
        apply(world, &["west"], json!({"maxDuration": "2m"}), "NodePort");
        let mut seen = secs(0);
        for step in 1..2_000 {
            if step % 164 == 0 {
                world.kill(step / 164 % 2, 0);
                world.start(step / 164 % 2, 0);
            }
            world.step().await?;
            seen += if pods(world, 1) > 0 { STEP } else { secs(0) };
            if is_spent(world) {
                break;
            }
        }
        let (spent, seconds) = (status(world).spent, i64::try_from(seen.as_secs()).unwrap());
        assert!(is_spent(world) && (115..150).contains(&seconds), "{seconds} s: {}", world.summary());
        assert!(spent.seconds.abs_diff(seconds) <= 15, "{spent:?} of {seconds} s");
        assert_eq!(spent.broker_seconds, spent.seconds * 2);
        // It does not come back by itself.
        world.kill(0, 0);
        world.start(0, 0);
        world.run(secs(60)).await?;
        assert!(is_spent(world) && hosted(world, 1).is_none(), "{}", world.summary());
        apply(world, &["west"], json!({"maxDuration": "4m"}), "NodePort");
        world.until("it is ready again", secs(30), |world| ready_on(world, 1)).await?;
        world.until("it is spent again", secs(150), is_spent).await?;
        let spent = status(world).spent.seconds;
        assert!((240..270).contains(&spent), "what was spent before counts: {spent} s");
        Ok(())
    });
}

/// Nobody knows how long the brokers of a peer that is cut off run: they count as long as they may.
#[test]
fn brokers_that_are_cut_off_count_until_they_can_run_no_more() {
    in_world(2, SHORT, async |world| {
        apply(world, &["west"], json!({}), "Tunnel");
        let budget = json!({"spec": {"flux": {"bursting": {"budget": {"brokerHours": "0.1"}}}}});
        world.clusters[0].server.patch::<MiniCluster>(USERS, "lake", budget).unwrap();
        world.until("it is ready", secs(30), |world| ready_on(world, 1)).await?;
        world.cut(0, 1, true);
        world.run(secs(300)).await?;
        let spent = |world: &World| {
            let lake = world.clusters[0].server.get::<MiniCluster>(USERS, "lake").unwrap();
            lake.status.unwrap_or_default().bursts_spent
        };
        let away = spent(world);
        assert!(away.brokers == 0 && (100..360).contains(&away.broker_seconds), "{away:?}");
        world.heal(0, 1);
        world.until("it is back", secs(60), |world| ready_on(world, 1)).await?;
        world.until("the rest is spent", secs(180), is_spent).await?;
        let all = spent(world).broker_seconds;
        assert!((360..420).contains(&all), "{all}");
        Ok(())
    });
}

/// The danger: a burst stays as long as it might have stayed alone, and a peer is used more than it may be.
#[test]
fn bursts_that_spend_the_budget_of_a_peer_together_end_together() {
    in_world(2, SHORT, async |world| {
        let server = world.clusters[0].server.clone();
        let budget = json!({"spec": {"budget": {"brokerHours": "0.05"}}});
        server.patch::<ClusterPeer>(SYSTEM, "west", budget).unwrap();
        let is_ready = |burst: &&Burst| burst.status.as_ref().is_some_and(|status| status.phase == BurstPhase::Ready);
        let ready = |world: &World| world.clusters[0].server.list::<Burst>().iter().filter(is_ready).count();
        apply(world, &["west"], json!({}), "NodePort");
        world.until("one is ready", secs(30), |world| ready(world) == 1).await?;
        world.run(secs(5)).await?;
        world.apply(0, "pond", 1, json!([{"size": 4, "peer": "west"}]), "NodePort");
        world.until("both are ready", secs(30), |world| ready(world) == 2).await?;
        world.until("one has to go", secs(40), |world| ready(world) < 2).await?;
        world.run(secs(3)).await?;
        assert_eq!(ready(world), 0, "{}", world.summary());
        Ok(())
    });
}

/// Prices decide where it goes, and money when it ends; what changes afterwards moves nothing.
#[test]
fn the_cheaper_peer_gets_it_until_its_money_is_spent() {
    in_world(3, SHORT, async |world| {
        let server = world.clusters[0].server.clone();
        let price = |peer: &str, core_hour: &str| {
            server.patch::<ClusterPeer>(SYSTEM, peer, json!({"spec": {"price": {"coreHour": core_hour}}})).unwrap();
        };
        price("north", "90");
        price("west", "45");
        apply(world, &[], json!({"cost": "2.5"}), "NodePort");
        world.until("it is ready", secs(30), |world| ready_on(world, 1)).await?;
        price("north", "1");
        price("west", "9000");
        let spent = |world: &World| status(world).spent;
        world.run(secs(50)).await?;
        assert!(ready_on(world, 1) && spent(world).hourly.to_string() == "90", "{:?}", spent(world));
        world.kill(0, 0);
        world.start(0, 0);
        world.until("it is spent", secs(60), is_spent).await?;
        // Two brokers of one core at 45 an hour: 100 seconds, and what it took to leave.
        let spent = spent(world);
        assert!((100..130).contains(&spent.seconds) && spent.cost.to_string().starts_with("2."), "{spent:?}");
        let west: Spent = world.peer(0, 1).unwrap().status.unwrap().spent;
        assert_eq!((west.cost, west.brokers), (spent.cost, 0));
        Ok(())
    });
}

#[test]
fn a_peer_whose_budget_is_spent_is_left_for_another_one() {
    in_world(3, SHORT, async |world| {
        let server = world.clusters[0].server.clone();
        let give = |budget: Value| {
            server.patch::<ClusterPeer>(SYSTEM, "west", json!({"spec": {"budget": budget}})).unwrap();
        };
        give(json!({"brokerHours": "0.05"}));
        apply(world, &["west", "north"], json!({}), "NodePort");
        world.until("it is ready", secs(30), |world| ready_on(world, 1)).await?;
        world.run(secs(60)).await?;
        assert!(ready_on(world, 1));
        world.until("it moves", secs(90), |world| ready_on(world, 2) && hosted(world, 1).is_none()).await?;
        world.run(secs(30)).await?;
        let spent = |world: &World, peer: usize| -> Spent { world.peer(0, peer).unwrap().status.unwrap().spent };
        let west = spent(world, 1);
        assert!((180..240).contains(&west.broker_seconds) && west.brokers == 0, "{west:?}");
        assert_eq!(spent(world, 2).brokers, 2);
        give(json!({"renewal": "december"}));
        world.run(secs(30)).await?;
        assert!(ready_on(world, 2), "where it runs it stays");
        Ok(())
    });
}
