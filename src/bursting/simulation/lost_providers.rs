//! Providers that are away for any time, while their pods run on: never two of them run one slot.

use tributary_api::hosted_burst::BurstPhase;
use tributary_api::minicluster::BurstNetworkType::Tunnel;

use super::cluster::Going;
use super::world::World;
use crate::provider::ledger::SlotKey;
use crate::timing::{Times, longest_life};

/// What takes a provider away.
#[derive(Clone, Copy, Debug)]
enum Outage {
    AgentKilled,
    ApiServerStopped,
    Both,
    PathCut,
}

impl Outage {
    const ALL: [Self; 4] = [Self::AgentKilled, Self::ApiServerStopped, Self::Both, Self::PathCut];

    fn begin(self, world: &mut World, name: &str) {
        match self {
            Self::AgentKilled => world.kill(name),
            Self::ApiServerStopped => world.stop_api(name),
            Self::Both => {
                world.stop_api(name);
                world.kill(name);
            }
            Self::PathCut => drop(world.cut.insert(name.into())),
        }
    }
}

/// Pods that go as slowly as a root allows for.
fn slow() -> Going {
    let Times { lease, drain, .. } = Times::default();
    let all = longest_life(lease, drain) - lease;
    Going { collected: 5, ended: all.as_secs() - 5 }
}

fn slot() -> SlotKey {
    ("flux".into(), "lake-burst-0".into())
}

/// With a burst that is ready on west, and may be on north.
fn ready(mut world: World, going: Going) -> World {
    world.clusters.values_mut().for_each(|cluster| cluster.going = going);
    world.until(20, "ready", |world| world.ready_on("west"));
    world
}

/// The rule that time alone frees a slot, where nothing keeps the old brokers from their lead.
fn by_time_alone(going: Going) -> World {
    let mut world = World::with_root_by(Tunnel, &["west", "north"]);
    world.unfenced = true;
    ready(world, going)
}

/// The simulation would see what must never happen: here it does.
#[test]
#[should_panic(expected = "lake-burst-0 runs twice")]
fn a_slot_that_time_alone_frees_runs_twice_while_its_providers_agent_is_down() {
    let mut world = by_time_alone(Going::default());
    Outage::AgentKilled.begin(&mut world, "west");
    world.run(450);
}

#[test]
#[should_panic(expected = "lake-burst-0 runs twice")]
fn a_slot_that_time_alone_frees_runs_twice_while_its_providers_api_server_is_away() {
    let mut world = by_time_alone(Going::default());
    Outage::ApiServerStopped.begin(&mut world, "west");
    world.run(450);
}

/// Pods live on after their Job: longer than anybody waits.
#[test]
#[should_panic(expected = "lake-burst-0 runs twice")]
fn a_slot_that_time_alone_frees_runs_twice_while_its_old_pods_take_too_long_to_end() {
    let mut world = by_time_alone(Going { ended: slow().ended + 30, ..slow() });
    Outage::PathCut.begin(&mut world, "west");
    world.run(450);
}

/// What a root waits is enough as long as its provider's agent works.
#[test]
fn a_provider_whose_agent_works_has_ended_its_pods_before_time_frees_the_slot() {
    for restarted in [None, Some(1), Some(150), Some(310)] {
        let mut world = by_time_alone(slow());
        Outage::PathCut.begin(&mut world, "west");
        if let Some(after) = restarted {
            world.run(after).restart("west");
        }
        world.until(450, &format!("restarted {restarted:?}: moved"), |world| world.ready_on("north"));
        assert!(world.is_empty("west"), "{}", world.summary());
    }
}

/// An agent dies while it is in contact, so nothing says since when its root is lost; it is back within the lease, and the
/// path is cut.
fn back_within_the_lease_and_cut_off(forgets: bool) -> World {
    let mut world = by_time_alone(slow());
    world.cluster("west").forgets = forgets;
    Outage::AgentKilled.begin(&mut world, "west");
    world.run(200).cut.insert("west".into());
    world.restart("west");
    world.run(100);
    world
}

#[test]
#[should_panic(expected = "lake-burst-0 runs twice")]
fn a_provider_that_dates_a_loss_from_its_own_start_ends_its_pods_too_late() {
    back_within_the_lease_and_cut_off(true).run(200);
}

#[test]
fn a_provider_that_was_down_when_its_root_was_lost_ends_its_pods_in_time() {
    let mut world = back_within_the_lease_and_cut_off(false);
    world.until(150, "moved", |world| world.ready_on("north"));
    assert!(world.is_empty("west"), "{}", world.summary());
}

/// Its root may have given the ranks to others, or may do so in the next second.
#[test]
fn a_provider_that_returns_after_the_lease_ends_its_brokers_before_it_says_anything_of_them() {
    for outage in Outage::ALL {
        let mut world = ready(World::with_root(&["west", "north"]), slow());
        let before = world.clusters["west"].hosted[&slot()].metadata.uid.clone();
        outage.begin(&mut world, "west");
        world.run(320).heal();
        for _ in 0..200 {
            world.run(1);
            let hosted = world.clusters["west"].hosted.get(&slot()).filter(|hosted| hosted.metadata.uid == before);
            let phase = hosted.map(|hosted| hosted.status.as_ref().unwrap().phase);
            assert!(phase.is_none_or(|phase| phase == BurstPhase::Draining), "{outage:?}: {}", world.summary());
        }
        let again = world.ready_on("west") || world.ready_on("north");
        assert!(again, "{outage:?}: its end frees the slot: {}", world.summary());
    }
}

/// The root's end of a tunnel refuses the old holder, whatever that does.
#[test]
fn a_slot_on_a_tunnel_is_placed_elsewhere_and_its_old_holder_reaches_nothing() {
    for outage in Outage::ALL {
        for (back, going) in
            [(30, Going::default()), (200, slow()), (300, slow()), (420, slow()), (600, Going::default())]
        {
            let case = format!("{outage:?}, back after {back} s, {going:?}");
            let mut world = ready(World::with_root_by(Tunnel, &["west", "north"]), going);
            outage.begin(&mut world, "west");
            world.run(back);
            world.heal();
            let ready = |world: &World| world.ready_on("west") || world.ready_on("north");
            world.until(300, &format!("{case}: ready"), ready);
            world.until(100, &format!("{case}: one"), |world| world.is_empty("west") != world.is_empty("north"));
            assert!(world.ready_on("north") || back < 420, "{case}: {}", world.summary());
            assert!(world.ready_on("west") || back >= 300, "{case}: {}", world.summary());
        }
    }
}

/// Nothing stands between brokers and a lead that is reached directly: what frees the slot is never time.
#[test]
fn a_slot_that_is_reached_directly_stays_with_a_lost_provider_until_that_confirms() {
    for outage in Outage::ALL {
        for (back, going) in
            [(30, Going::default()), (200, slow()), (300, slow()), (420, slow()), (900, Going::default())]
        {
            let case = format!("{outage:?}, back after {back} s, {going:?}");
            let mut world = ready(World::with_root(&["west", "north"]), going);
            outage.begin(&mut world, "west");
            world.run(back);
            assert_eq!(world.phase(), Some((BurstPhase::Lost, Some("west".into()))), "{case}");
            let said = world.clusters["east"].bursts["lake-burst-0"].status.clone().unwrap().message;
            assert!(said.contains("until it confirms that nothing is left"), "{case}: {said}");
            world.heal();
            let ready = |world: &World| world.ready_on("west") || world.ready_on("north");
            world.until(300, &format!("{case}: ready"), ready);
            world.until(100, &format!("{case}: one"), |world| world.is_empty("west") != world.is_empty("north"));
        }
    }
}

#[test]
fn an_instance_with_a_new_certificate_goes_elsewhere_though_its_lost_provider_says_nothing() {
    for outage in Outage::ALL {
        let mut world = ready(World::with_root(&["west", "north"]), slow());
        outage.begin(&mut world, "west");
        world.run(100);
        world.make_root("root-1", "job-2", &["west", "north"]);
        world.until(40, &format!("{outage:?}: moved"), |world| world.ready_on("north"));
        world.run(500).heal();
        world.until(200, &format!("{outage:?}: nothing is left of the old one"), |world| world.is_empty("west"));
        assert!(world.ready_on("north"), "{}", world.summary());
    }
}

/// It has nothing of the burst, and says so.
#[test]
fn another_cluster_under_the_name_of_a_lost_provider_frees_nothing() {
    let mut world = ready(World::with_root(&["west", "north"]), Going::default());
    world.kill("west");
    world.run(100).take_name_of("west");
    world.run(600);
    let status = world.clusters["east"].bursts["lake-burst-0"].status.clone().unwrap();
    assert_eq!((status.phase, status.peer.as_deref()), (BurstPhase::Lost, Some("west")), "{}", status.message);
    assert!(status.message.contains("another cluster"), "{}", status.message);
}
