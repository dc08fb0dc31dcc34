//! Bursts on demand: no flapping, and nothing is left on the peer while they sleep, whatever happens in between.

use serde_json::{Value, json};
use tributary::api::hosted_burst::BurstPhase;
use tributary::api::peer::ClusterPeer;

use crate::agent::Settings;
use crate::budgets::{pods, ready_on, status};
use crate::cluster::SYSTEM;
use crate::dangers::{SHORT, hosted, in_world, secs};
use crate::world::{STEP, World};

/// From this second on: how many jobs wait, and on which ranks others run. A glance, a flood, a nervous minute, a long run.
const DAY: [(usize, u32, &str); 12] = [
    (0, 0, ""),
    (30, 1, ""),
    (33, 0, ""),
    (60, 3, ""),
    (90, 0, "2-3"),
    (150, 0, ""),
    (170, 0, "2"),
    (190, 0, ""),
    (300, 2, ""),
    (303, 0, ""),
    (330, 2, "2-3"),
    (450, 0, ""),
];

/// A MiniCluster with a burst of two on demand onto west.
fn apply(world: &mut World, budget: Value) {
    let on_demand = json!({"maxIdle": "30s"});
    let burst = json!({"size": 2, "peer": "west", "mode": "OnDemand", "onDemand": on_demand, "budget": budget});
    world.apply(0, "lake", 2, json!([burst]), "NodePort");
}

fn asks(world: &World, pending: u32) {
    world.sites[0].queue.says("", pending);
}

fn asleep(world: &World) -> bool {
    status(world).phase == BurstPhase::Asleep
}

/// How often it was woken.
fn starts(world: &World) -> u32 {
    status(world).demand.unwrap_or_default().starts
}

#[test]
fn a_day_of_a_queue_with_restarts_starts_brokers_twice_and_stops_them_when_they_idle() {
    in_world(2, SHORT, async |world| {
        apply(world, json!({}));
        let mut with_pods = secs(0);
        for step in 0..2_080 {
            if step % 164 == 163 {
                world.kill(step / 164 % 2, 0);
                world.start(step / 164 % 2, 0);
            }
            if let Some((_, pending, busy)) = DAY.iter().find(|(from, _, _)| from * 4 == step) {
                world.sites[0].queue.says(busy, *pending);
            }
            world.step().await?;
            with_pods += if pods(world, 1) > 0 { STEP } else { secs(0) };
            let held = hosted(world, 1).is_some();
            assert!(!asleep(world) || !held, "asleep, it holds nothing there: {}", world.summary());
        }
        assert_eq!(starts(world), 2, "the flood and the long run");
        assert!((220..420).contains(&with_pods.as_secs()), "wanted for 250 s: {with_pods:?}");
        assert!(asleep(world) && pods(world, 1) == 0, "{}", world.summary());
        Ok(())
    });
}

#[test]
fn a_budget_counts_what_is_awake_and_is_spent_though_jobs_ask() {
    in_world(2, SHORT, async |world| {
        apply(world, json!({"maxDuration": "2m"}));
        world.run(secs(60)).await?;
        assert_eq!((status(world).spent.since, asleep(world)), (None, true), "what sleeps uses nothing");
        asks(world, 1);
        world.until("it is ready", secs(40), |world| ready_on(world, 1)).await?;
        world.run(secs(20)).await?;
        asks(world, 0);
        world.until("it sleeps", secs(90), asleep).await?;
        let first = status(world).spent;
        assert!((50..110).contains(&first.seconds) && first.brokers == 0, "{first:?}");
        world.run(secs(60)).await?;
        assert_eq!(status(world).spent, first, "asleep it uses nothing");
        asks(world, 1);
        world.until("it is spent", secs(180), |world| status(world).phase == BurstPhase::Spent).await?;
        world.run(secs(60)).await?;
        let spent = status(world);
        assert_eq!((spent.phase, starts(world)), (BurstPhase::Spent, 2), "asked for, it stays spent");
        assert!((120..150).contains(&spent.spent.seconds) && hosted(world, 1).is_none(), "{:?}", spent.spent);
        apply(world, json!({"maxDuration": "2m", "renewal": "december"}));
        world.until("it is ready", secs(40), |world| ready_on(world, 1)).await
    });
}

#[test]
fn one_that_no_peer_takes_waits_awake_and_sleeps_when_nobody_asks_any_more() {
    in_world(2, SHORT, async |world| {
        let server = world.clusters[1].server.clone();
        let import = world.peer(1, 0).unwrap().spec.import;
        let may =
            |import: Value| drop(server.patch::<ClusterPeer>(SYSTEM, "east", json!({"spec": {"import": import}})));
        may(Value::Null);
        apply(world, json!({}));
        asks(world, 1);
        world.run(secs(60)).await?;
        let refused = status(world);
        assert_eq!((refused.phase, refused.peer, refused.spent.since), (BurstPhase::Rejected, None, None));
        assert_eq!(refused.demand.map(|demand| (demand.awake, demand.starts)), Some((true, 1)));
        asks(world, 0);
        world.until("it sleeps", secs(60), asleep).await?;
        // While it sleeps nobody asks the peer; when it wakes, the peer has changed its mind.
        may(json!(import));
        world.run(secs(60)).await?;
        assert!(asleep(world) && hosted(world, 1).is_none(), "{}", world.summary());
        asks(world, 1);
        world.until("it is ready", secs(40), |world| ready_on(world, 1)).await
    });
}

#[test]
fn a_peer_that_is_cut_off_while_its_brokers_fall_asleep_keeps_their_ranks() {
    in_world(2, Settings { times: (300, 60, 30), ..SHORT }, async |world| {
        apply(world, json!({}));
        asks(world, 1);
        world.until("it is ready", secs(60), |world| ready_on(world, 1)).await?;
        world.cut(0, 1, true);
        asks(world, 0);
        world.run(secs(80)).await?;
        let cut = status(world);
        let awake = cut.demand.map(|demand| demand.awake);
        assert_eq!((cut.phase, cut.peer.as_deref(), awake), (BurstPhase::Lost, Some("west"), Some(false)));
        // It is asked for again while nobody knows: it does not come twice.
        asks(world, 1);
        world.run(secs(30)).await?;
        assert_eq!(status(world).peer.as_deref(), Some("west"));
        world.heal(0, 1);
        world.until("it is ready", secs(200), |world| ready_on(world, 1)).await?;
        assert_eq!(starts(world), 2);
        Ok(())
    });
}

/// The danger: a job starts on a burst that was just found idle, and ends with its brokers.
#[test]
fn a_job_that_starts_as_its_burst_falls_asleep_keeps_it_awake() {
    in_world(2, SHORT, async |world| {
        apply(world, json!({}));
        asks(world, 1);
        world.until("it is ready", secs(60), |world| ready_on(world, 1)).await?;
        let queue = world.sites[0].queue.clone();
        let closed = |ranks: &'static str| move |world: &World| world.sites[0].queue.closed() == ranks;
        let before = hosted(world, 1).and_then(|hosted| hosted.metadata.uid);
        queue.shows("0-3", "");
        world.until("it is closed", secs(60), closed("2-3")).await?;
        queue.shows("0-1", "2");
        world.until("it is open again", secs(20), closed("")).await?;
        queue.shows("0-3", "2");
        world.run(secs(60)).await?;
        assert!(ready_on(world, 1), "{}", world.summary());
        assert_eq!(hosted(world, 1).and_then(|hosted| hosted.metadata.uid), before);

        queue.shows("0-3", "");
        world.until("it is closed once more", secs(60), closed("2-3")).await?;
        assert!(ready_on(world, 1), "it is closed before its brokers go");
        queue.shows("0-1", "");
        world.until("it sleeps", secs(30), asleep).await?;
        assert!(closed("2-3")(world), "as long as something may be left of it");
        asks(world, 1);
        world.until("it is open when it comes", secs(20), closed("")).await?;
        world.until("it is ready", secs(60), |world| ready_on(world, 1)).await
    });
}
