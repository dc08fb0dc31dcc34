//! Bursts on demand over a day of a queue, with both clusters' agents and real drains: no flapping, nothing left on the peer
//! while they sleep, ranks never twice (checked each second), whatever restarts in between.

use tributary_api::burst::BurstStatus;
use tributary_api::hosted_burst::BurstPhase;
use tributary_api::minicluster::BurstMode;

use super::world::World;
use crate::root::demand::ask::Asked;
use crate::root::demand::decide::Seen;

/// (From second, pending, busy) of a queue: a morning of single jobs, a flood, a nervous hour, a long run, silence.
const TRACE: [(u64, u32, bool); 16] = [
    (0, 0, false),
    (60, 1, false),
    (70, 0, false),
    (100, 3, false),
    (160, 0, true),
    (400, 0, false),
    (460, 1, true),
    (520, 0, false),
    (900, 0, false),
    (1_000, 2, false),
    (1_004, 0, false),
    (1_010, 2, false),
    (1_030, 1, true),
    (1_900, 0, true),
    (2_000, 0, false),
    (3_600, 0, false),
];

fn asleep(world: &World) -> bool {
    world.phase().is_some_and(|(phase, _)| phase == BurstPhase::Asleep)
}

/// Plays the trace, looked at every five seconds; the number of starts, and seconds with pods on the peer.
fn play(restarts: u64) -> (u32, u32, World) {
    let mut world = World::with_root(&["west"]);
    let cluster = &mut world.root().spec.flux.bursting.clusters[0];
    (cluster.mode, cluster.on_demand.max_idle) = (BurstMode::OnDemand, Some("2m".into()));
    let mut with_pods = 0;
    for second in 0..3_600_u64 {
        if second % restarts == restarts - 1 {
            world.restart(["east", "west"][usize::try_from(second / restarts % 2).unwrap()]);
            world.cluster("east").seen = None;
        } else if second % 5 == 0 {
            let (_, pending, busy) = *TRACE.iter().rev().find(|(from, _, _)| *from <= second).unwrap();
            let at = jiff::Timestamp::from_second(1_700_000_000 + i64::try_from(second).unwrap()).unwrap();
            world.cluster("east").seen = Some(Seen { at, found: Ok(Asked { pending, busy }) });
        }
        world.run(1);
        with_pods += u32::from(world.clusters["west"].jobs.values().any(|job| job.pods > 0));
        if asleep(&world) {
            let held = world.clusters["west"].hosted.len();
            assert_eq!(held, 0, "asleep, it holds nothing there, at {second} s: {}", world.summary());
        }
    }
    let demand = world.clusters["east"].bursts["lake-burst-0"].status.clone().unwrap().demand.unwrap();
    (demand.starts, with_pods, world)
}

#[test]
fn a_day_of_a_queue_starts_brokers_twice_and_stops_them_when_they_idle() {
    for restarts in [u64::MAX, 41] {
        let (starts, with_pods, world) = play(restarts);
        assert_eq!(starts, 2, "the flood and the long run");
        assert!((1_400..2_000).contains(&with_pods), "of 1,530 s in which they are wanted: {with_pods}");
        assert!(asleep(&world) && world.is_empty("west"), "{}", world.summary());
    }
}

/// A root whose burst of three is on demand, and sleeps after two minutes.
fn on_demand() -> World {
    let mut world = World::with_root(&["west"]);
    let cluster = &mut world.root().spec.flux.bursting.clusters[0];
    (cluster.mode, cluster.on_demand.max_idle) = (BurstMode::OnDemand, Some("2m".into()));
    world
}

/// Looks every five seconds, and finds the same.
fn looking(world: &mut World, seconds: u64, (pending, busy): (u32, bool)) {
    for _ in 0..seconds / 5 {
        let at = world.now();
        world.cluster("east").seen = Some(Seen { at, found: Ok(Asked { pending, busy }) });
        world.run(5);
    }
}

fn status(world: &World) -> BurstStatus {
    world.clusters["east"].bursts["lake-burst-0"].status.clone().unwrap()
}

#[test]
fn a_budget_counts_what_is_awake_and_is_spent_though_jobs_ask() {
    let mut world = on_demand();
    world.root().spec.flux.bursting.clusters[0].budget = serde_saphyr::from_str("{maxDuration: 10m}").unwrap();
    looking(&mut world, 300, (0, false));
    assert_eq!((status(&world).spent.since, asleep(&world)), (None, true), "what sleeps uses nothing");
    // Twice five minutes with an hour between them.
    looking(&mut world, 180, (1, true));
    looking(&mut world, 240, (0, false));
    let first = status(&world).spent;
    assert!(asleep(&world) && (280..=400).contains(&first.seconds) && first.brokers == 0, "{first:?}");
    looking(&mut world, 3_600, (0, false));
    assert_eq!(status(&world).spent, first, "asleep it uses nothing, and nothing is written");
    looking(&mut world, 600, (1, true));
    let spent = status(&world);
    assert_eq!((spent.phase, spent.demand.map(|demand| demand.starts)), (BurstPhase::Spent, Some(2)));
    assert!((600..=720).contains(&spent.spent.seconds), "{:?}", spent.spent);
    assert!(world.is_empty("west"), "{}", world.summary());
    looking(&mut world, 1_200, (1, false));
    assert_eq!(status(&world).spent, spent.spent, "asked for, it stays spent");
    world.root().spec.flux.bursting.clusters[0].budget.renewal = Some("december".into());
    looking(&mut world, 30, (1, false));
    assert!(world.ready_on("west"), "{}", world.summary());
}

#[test]
fn one_that_no_peer_takes_waits_awake_and_sleeps_when_nobody_asks_any_more() {
    let mut world = on_demand();
    let import = world.cluster("west").peers["east"].spec.import.clone();
    world.cluster("west").peers.get_mut("east").unwrap().spec.import = None;
    looking(&mut world, 300, (1, false));
    let refused = status(&world);
    assert_eq!((refused.phase, refused.peer, refused.spent.since), (BurstPhase::Rejected, None, None));
    assert_eq!(refused.demand.map(|demand| (demand.awake, demand.starts)), Some((true, 1)));
    looking(&mut world, 130, (0, false));
    assert!(asleep(&world), "{}", world.summary());
    // While it sleeps nobody asks the peer; when it wakes, the peer has changed its mind.
    let peer = world.cluster("west").peers.get_mut("east").unwrap();
    (peer.spec.import, peer.metadata.generation) = (import, Some(2));
    world.run(60);
    assert!(asleep(&world) && world.is_empty("west"));
    looking(&mut world, 60, (1, false));
    assert!(world.ready_on("west"), "{}", world.summary());
}

#[test]
fn a_peer_that_is_cut_off_while_its_brokers_fall_asleep_keeps_its_ranks_until_it_is_back() {
    let mut world = on_demand();
    looking(&mut world, 60, (1, false));
    assert!(world.ready_on("west"), "{}", world.summary());
    world.cut.insert("west".into());
    looking(&mut world, 140, (0, false));
    let cut = status(&world);
    assert_eq!(
        (cut.phase, cut.peer.as_deref(), cut.demand.map(|demand| demand.awake)),
        (BurstPhase::Lost, Some("west"), Some(false))
    );
    // It is asked for again while nobody knows: it does not come twice.
    looking(&mut world, 30, (1, false));
    assert_eq!(status(&world).peer.as_deref(), Some("west"));
    world.cut.clear();
    looking(&mut world, 200, (1, false));
    assert!(world.ready_on("west"), "{}", world.summary());
    assert_eq!(status(&world).demand.map(|demand| demand.starts), Some(2));
}
