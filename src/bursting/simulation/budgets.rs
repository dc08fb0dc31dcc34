//! Budgets: whatever agent restarts, and whatever is cut off, brokers are elsewhere as long as they may be, and no longer.

use tributary_api::budget::BurstBudget;
use tributary_api::hosted_burst::BurstPhase;
use tributary_api::minicluster::BurstNetworkType::Tunnel;

use super::weather::Weather;
use super::world::World;

fn budget(yaml: &str) -> BurstBudget {
    serde_saphyr::from_str(yaml).unwrap()
}

fn is(world: &World, phase: BurstPhase) -> bool {
    world.phase().is_some_and(|(is, _)| is == phase)
}

fn pods(world: &World) -> u32 {
    let jobs = world.clusters.iter().filter(|(name, _)| name.as_str() != "east").flat_map(|(_, cluster)| &cluster.jobs);
    jobs.map(|(_, job)| job.pods).sum()
}

/// Seconds in which there were brokers elsewhere, as the world saw it, until nothing was left.
fn watched(world: &mut World, limit: u64, mut disturb: impl FnMut(&mut World, u64)) -> u64 {
    let mut seen = 0;
    for second in 0..limit {
        disturb(world, second);
        world.run(1);
        seen += u64::from(pods(world) > 0);
        if is(world, BurstPhase::Spent) && pods(world) == 0 {
            break;
        }
    }
    seen
}

#[test]
fn a_burst_lasts_as_long_as_its_budget_though_agents_restart_all_the_time() {
    for every in [u64::MAX, 41] {
        let mut world = World::with_root(&["west"]);
        world.root().spec.flux.bursting.clusters[0].budget = budget("{maxDuration: 4m}");
        let seen = watched(&mut world, 900, |world, second| {
            if second % every == every - 1 {
                world.restart(["east", "west"][usize::try_from(second / every % 2).unwrap()]);
            }
        });
        assert!(is(&world, BurstPhase::Spent), "{}", world.summary());
        let spent = world.clusters["east"].bursts["lake-burst-0"].status.clone().unwrap().spent;
        assert!(
            (230..=320).contains(&seen) && spent.seconds.abs_diff(i64::try_from(seen).unwrap()) <= 20,
            "{spent:?} {seen}"
        );
        assert_eq!(spent.broker_seconds, spent.seconds * 3);
        // It does not come back by itself, and nobody writes any more.
        let writes = |world: &World| world.clusters.values().map(|cluster| cluster.writes).sum::<u64>();
        let before = writes(&world);
        world.run(10).restart("east");
        let settled = writes(&world);
        world.run(400);
        assert!(settled - before <= 2 && writes(&world) == settled && pods(&world) == 0);
        world.root().spec.flux.bursting.clusters[0].budget = budget("{maxDuration: 8m}");
        world.until(30, "raised", |world| world.ready_on("west"));
        watched(&mut world, 900, |_, _| {});
        let spent = world.clusters["east"].bursts["lake-burst-0"].status.clone().unwrap().spent;
        assert!((480..580).contains(&spent.seconds), "what was spent before counts: {spent:?}");
    }
}

#[test]
fn what_is_cut_off_counts_until_it_can_run_no_more() {
    let mut world = World::with_root_by(Tunnel, &["west"]);
    world.weather = Some(Weather::bad(7));
    world.root().spec.flux.bursting.budget = budget("{brokerHours: 1}");
    world.until(200, "ready", |world| world.ready_on("west")).cut.insert("west".into());
    world.run(1_400);
    let spent = world.root().status.clone().unwrap().bursts_spent;
    assert!(spent.broker_seconds > 900 && spent.brokers == 0, "{spent:?}");
    world.cut.clear();
    world.until(300, "back", |world| world.ready_on("west"));
    world.until(1_200, "the rest", |world| is(world, BurstPhase::Spent) && pods(world) == 0);
    let spent = world.root().status.clone().unwrap().bursts_spent;
    assert!((3_600..3_900).contains(&spent.broker_seconds), "{spent:?}");
}

#[test]
fn a_peer_without_budget_is_left_for_another_one() {
    let mut world = World::with_root(&["west", "north"]);
    world.cluster("east").peers.get_mut("west").unwrap().spec.budget = budget("{brokerHours: \"0.5\"}");
    world.until(20, "ready", |world| world.ready_on("west"));
    world.run(500);
    assert!(world.ready_on("west"));
    world.until(300, "moved", |world| world.ready_on("north") && world.is_empty("west"));
    world.run(300);
    let spent = |world: &World, peer: &str| world.clusters["east"].peers[peer].status.clone().unwrap().spent;
    assert!((1_800..2_100).contains(&spent(&world, "west").broker_seconds) && spent(&world, "west").brokers == 0);
    assert_eq!((spent(&world, "north").brokers, world.ready_on("north")), (3, true));
    world.cluster("east").peers.get_mut("west").unwrap().spec.budget.renewal = Some("december".into());
    world.run(100);
    assert!(world.ready_on("north"), "where it runs it stays");
}
