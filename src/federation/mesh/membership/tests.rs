//! Several memberships in one simulated world: every frame is encoded, delayed and decoded, time jumps from event to
//! event, and nothing depends on the machine.

mod world;

use std::time::Duration;

use proptest::prelude::*;
use tributary_contract::PeerState;
use tributary_contract::ports::State;

use self::world::{Operation, World};
use crate::session::Ending;
use crate::testing::desired_key;
use crate::timers::Timers;
use crate::wire::registry::CloseCode;

const T: Timers = Timers::DEFAULT;

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

#[test]
fn both_dial_and_one_connection_stays() {
    let mut world = World::new(&["east", "west"]);
    world.run(seconds(1));
    assert_eq!(world.connections("east", "west"), 2, "both dialled at the same time");
    world.run(seconds(5));
    assert_eq!(world.connections("east", "west"), 1);
    world.run(seconds(600));
    assert_eq!(world.connections("east", "west"), 1);
    assert_eq!(world.dials(), 2, "and nobody dials again");
    assert_eq!(world.states("west", "east"), [PeerState::Disconnected, PeerState::Connected]);
}

/// The danger: with hundreds of peers, each event costs the work of all of them.
#[test]
fn who_has_nothing_to_say_costs_no_report() {
    let mut world = World::new(&["east", "north", "west"]);
    world.run(seconds(10));
    assert_eq!(world.changed("east"), ["north".into(), "west".into()].into());
    // A report that is made anew shows another time now.
    world.set_clocks_forward(seconds(5));
    world.settle();
    assert!(world.changed("east").is_empty());
    world.remove("east", "north");
    assert!(world.changed("east").contains("north"), "what is known of it is withdrawn");
}

/// A peer that is gone without a word, perhaps to another address, is looked for as soon as it is missed: not when its
/// connection is given up, and not where it was.
#[test]
fn a_suspect_peer_is_dialled_at_once_past_caches() {
    let mut world = World::with(&["east", "west"], |at, _| at == "east");
    world.run(seconds(20));
    assert_eq!((world.dials(), world.last_dial().0), (1, false));
    world.stop("west");
    world.start("west", 1);
    world.run(T.suspect);
    assert_eq!((world.dials(), world.last_dial().0), (2, true));
    world.run(Duration::from_millis(300));
    assert_eq!(world.state("east", "west"), PeerState::Connected);
    world.run(seconds(60));
    assert_eq!((world.dials(), world.connections("east", "west")), (2, 1));
    assert_eq!(world.held("east"), 1, "the dead one is given up");
}

#[test]
fn where_a_connection_came_to_nothing_is_tried_last_for_a_while() {
    let mut world = World::with(&["east", "west"], |at, _| at == "east");
    world.configure("west", "east", |spec| spec.cluster_uid = Some("another".into()));
    world.run(seconds(3));
    let (_, last) = world.last_dial();
    assert!(!last.is_empty());
    world.cut("east", "west");
    world.run(seconds(90));
    assert_eq!(world.last_dial().1, []);
}

#[test]
fn a_peer_that_keeps_being_lost_flaps_until_it_has_held_for_a_while() {
    let mut world = World::new(&["east", "west"]);
    world.run(seconds(5));
    for round in 1..=3 {
        assert!(!world.report("east", "west").flapping, "round {round}");
        world.cut("east", "west");
        world.run(seconds(15));
        world.heal("east", "west");
        world.run(seconds(10));
    }
    let report = world.report("east", "west");
    assert_eq!((report.state, report.flapping), (PeerState::Connected, true), "what is, and what to make of it");
    world.run(T.grace);
    assert!(!world.report("east", "west").flapping);
    assert!(!world.cluster("east").reports("west").pop().unwrap().flapping, "and it is told");
}

#[test]
fn restarts_that_are_announced_are_no_flapping() {
    let mut world = World::new(&["east", "west"]);
    for epoch in 2..8 {
        world.run(seconds(5));
        world.end("west", &Ending::new(CloseCode::Done, "the agent stops"));
        world.run(seconds(1));
        world.start("west", epoch);
        world.run(seconds(5));
        assert!(!world.report("east", "west").flapping, "leadership {epoch}");
    }
}

#[test]
fn half_open_connections_do_not_push_out_the_one_that_works() {
    let mut world = World::with(&["east", "west"], |at, _| at == "east");
    world.run(seconds(5));
    (0..20).for_each(|_| world.half_open("east", "west"));
    assert!(world.connections("east", "west") == 1 && world.state("west", "east") == PeerState::Connected);
    world.run(seconds(60));
    assert_eq!(world.states("west", "east"), [PeerState::Disconnected, PeerState::Connected]);
    assert_eq!((world.dials(), world.held("west")), (1, 1));
}

#[test]
fn a_clock_that_is_set_past_the_end_of_a_certificate_ends_the_connection() {
    let mut world = World::new(&["east", "west"]);
    world.certificate_ends("east", seconds(9_000));
    world.run(seconds(5));
    assert_eq!(world.state("west", "east"), PeerState::Connected);
    world.set_clocks_forward(seconds(9_000));
    world.run(T.heartbeat);
    assert_eq!(world.connections("east", "west"), 0);
}

#[test]
fn one_side_without_endpoints_is_dialled() {
    let mut world = World::with(&["east", "west"], |at, _| at == "west");
    world.run(seconds(1));
    assert_eq!((world.connections("east", "west"), world.dials()), (1, 1));
}

#[test]
fn a_cut_of_ten_seconds_heals_and_states_arrive() {
    let mut world = World::new(&["east", "west"]);
    world.run(seconds(5));
    world.cut("east", "west");
    world.cluster("east").say_desired("west", "a", 1);
    world.run(seconds(6));
    assert_eq!(world.state("west", "east"), PeerState::Suspect);
    world.run(seconds(6));
    assert_eq!(world.state("west", "east"), PeerState::Disconnected);
    world.heal("east", "west");
    world.run(seconds(16));
    assert_eq!(world.state("west", "east"), PeerState::Connected);
    assert_eq!(world.cluster("west").heard_generation("east", "a"), Some(1));
    assert_eq!(world.connections("east", "west"), 1);
}

#[test]
fn an_unreachable_peer_is_dialled_at_growing_intervals() {
    let mut world = World::with(&["east", "west"], |at, _| at == "east");
    world.stop("west");
    world.run(seconds(60));
    let dials = world.dials();
    assert!((14..=24).contains(&dials), "{dials} in a minute");
    let reports = world.cluster("east").reports("west");
    let reasons: Vec<_> = reports.iter().map(|report| report.refusal.as_ref().map(|r| r.reason.as_str())).collect();
    assert_eq!(reasons, [None, Some("Unreachable")], "told once, not per dial");
    world.start("west", 2);
    world.run(seconds(11));
    assert_eq!(world.state("east", "west"), PeerState::Connected);
}

#[test]
fn removed_and_suspended_peers_are_closed_at_once() {
    let mut world = World::new(&["east", "west"]);
    world.run(seconds(5));
    world.configure("east", "west", |spec| spec.suspend = true);
    world.run(Duration::ZERO);
    assert_eq!(world.connections("east", "west"), 0);
    assert_eq!(world.state("east", "west"), PeerState::Suspended);
    world.run(seconds(30));
    let refusal = world.report("west", "east").refusal.unwrap();
    let sentence = "cluster `east` suspended its ClusterPeer `west`";
    assert_eq!((refusal.reason.as_str(), refusal.message.as_str()), ("Suspended", sentence));
    world.configure("east", "west", |spec| spec.suspend = false);
    world.run(seconds(12));
    assert_eq!(world.state("west", "east"), PeerState::Connected);
    world.remove("east", "west");
    world.run(Duration::from_millis(100));
    assert_eq!(world.report("west", "east").refusal.unwrap().message, "cluster `east` deleted its ClusterPeer `west`");
    world.run(seconds(12));
    assert_eq!(world.connections("east", "west"), 0);
    let report = world.report("west", "east");
    assert_eq!((report.state, report.refusal.unwrap().reason.as_str()), (PeerState::Refused, "UnknownPeer"));
}

#[test]
fn another_cluster_under_a_known_name_is_refused() {
    let mut world = World::new(&["east", "west"]);
    world.configure("west", "east", |spec| spec.cluster_uid = Some("uid-before".into()));
    world.run(seconds(20));
    assert_eq!(world.report("west", "east").refusal.unwrap().reason, "WrongClusterUID");
    assert_eq!(world.report("east", "west").refusal.unwrap().reason, "WrongClusterUID");
    world.configure("west", "east", |spec| spec.cluster_uid = Some("uid-east".into()));
    world.run(seconds(12));
    assert_eq!(world.state("west", "east"), PeerState::Connected);
}

/// The danger: a stranger that uses a peer's name replaces what is known of it, or has its status written without end.
#[test]
fn what_a_stranger_says_under_a_peers_name_is_worth_least() {
    let mut world = World::new(&["east", "west"]);
    world.configure("west", "east", |spec| spec.cluster_uid = Some("uid-before".into()));
    world.run(seconds(20));
    world.claim("east", "west", 1);
    assert_eq!(world.report("west", "east").refusal.unwrap().reason, "WrongClusterUID");

    let mut world = World::with(&["east", "west"], |_, _| false);
    world.run(seconds(20));
    let before = world.cluster("west").reports("east").len();
    for port in 1..9 {
        world.claim("east", "west", port);
    }
    let refusal = world.report("west", "east").refusal.unwrap();
    let told = "somebody at 192.0.2.66 says that it is this peer, and was refused: its authority is another one";
    assert_eq!((refusal.reason.as_str(), refusal.message.as_str()), ("UntrustedCertificate", told));
    assert_eq!(world.cluster("west").reports("east").len(), before + 1, "told once");
}

#[test]
fn the_first_cluster_heard_is_pinned_until_the_pin_is_changed() {
    let mut world = World::new(&["east", "west"]);
    world.run(seconds(5));
    world.rebuild("east");
    world.run(seconds(20));
    assert_eq!(world.report("west", "east").refusal.unwrap().reason, "WrongClusterUID");
    world.configure("west", "east", |spec| spec.cluster_uid = Some("uid-east-rebuilt".into()));
    world.run(seconds(12));
    assert_eq!(world.state("west", "east"), PeerState::Connected);
}

#[test]
fn an_old_leader_is_refused_and_does_not_disturb_the_new_one() {
    let mut world = World::new(&["east", "west"]);
    world.set_epoch("east", 5);
    world.run(seconds(5));
    world.stop("east");
    world.start("east", 4);
    world.cluster("east").say_desired("west", "late", 1);
    world.run(seconds(20));
    assert_eq!(world.report("west", "east").refusal.unwrap().reason, "StaleEpoch");
    assert_eq!(world.cluster("west").heard_generation("east", "late"), None);
    world.set_epoch("east", 6);
    world.run(seconds(12));
    assert_eq!(world.cluster("west").heard_generation("east", "late"), Some(1));
}

#[test]
fn a_restarted_process_replaces_its_connections_and_says_everything_again() {
    let mut world = World::new(&["east", "west"]);
    world.cluster("east").say_desired("west", "a", 1);
    world.run(seconds(5));
    // The process vanishes without a word and comes back in the same leadership.
    world.stop("east");
    world.start("east", 1);
    world.cluster("east").say_desired("west", "a", 2);
    world.run(seconds(2));
    assert_eq!(world.cluster("west").heard_generation("east", "a"), Some(2));
    assert_eq!(world.held("west"), world.connections("east", "west"), "those of the dead process are gone at once");
}

#[test]
fn a_new_connection_is_made_before_the_certificate_ends() {
    let mut world = World::new(&["east", "west"]);
    world.certificate_ends("east", seconds(200));
    world.run(seconds(100));
    world.certificate_ends("east", seconds(9_000));
    world.run(seconds(150));
    assert_eq!(world.connections("east", "west"), 1);
    assert_eq!(world.states("west", "east"), [PeerState::Disconnected, PeerState::Connected], "never without one");
    assert_eq!(world.dials(), 4, "once more each");
}

#[test]
fn a_connection_does_not_outlive_a_certificate_that_is_not_renewed() {
    let mut world = World::new(&["east", "west"]);
    world.certificate_ends("east", seconds(100));
    world.run(seconds(95));
    assert_eq!(world.state("west", "east"), PeerState::Connected);
    assert!(world.dials() < 30, "{} dials", world.dials());
    world.run(seconds(10));
    assert_eq!(world.connections("east", "west"), 0);
}

#[test]
fn who_does_not_lead_speaks_to_nobody() {
    let mut world = World::new(&["east", "west"]);
    world.run(seconds(5));
    world.resign("east");
    world.run(seconds(20));
    assert_eq!(world.connections("east", "west"), 0);
    assert_eq!(world.state("west", "east"), PeerState::Disconnected);
    world.set_epoch("east", 2);
    world.run(seconds(12));
    assert_eq!(world.state("west", "east"), PeerState::Connected);
}

/// A leader is killed. Its standby leads 10 s later at the latest, at the same address (`cluster::election` shows that): all
/// peers are back within 15 s, whoever dials, and whatever was about to happen.
#[test]
fn all_peers_are_back_within_fifteen_seconds_of_a_leaders_death() {
    const TAKEOVER: Duration = Duration::from_secs(10);
    let who_dials: [fn(&str) -> bool; 3] = [|_| true, |at| at == "west", |at| at != "west"];
    for (who, dials) in who_dials.into_iter().enumerate() {
        for offset in (0..4_000).step_by(370) {
            let mut world = World::with(&["east", "north", "west"], |at, _| dials(at));
            world.run(seconds(10) + Duration::from_millis(offset));
            world.stop("west");
            world.run(TAKEOVER);
            world.start("west", 2);
            world.run(seconds(15) - TAKEOVER);
            for (at, of) in [("east", "west"), ("north", "west"), ("west", "east"), ("west", "north")] {
                assert_eq!(world.state(at, of), PeerState::Connected, "{at} {of}, dialling {who}, {offset} ms");
            }
        }
    }
}

#[test]
fn a_graceful_end_is_told() {
    let mut world = World::new(&["east", "west"]);
    world.run(seconds(5));
    world.end("east", &Ending::new(CloseCode::Done, "the agent stops"));
    world.run(Duration::from_millis(100));
    let report = world.report("west", "east");
    assert_eq!(report.state, PeerState::Disconnected);
    assert_eq!(report.refusal.unwrap().message, "the agent stops");
}

#[test]
fn three_clusters_tell_each_other_only_what_is_meant_for_them() {
    let mut world = World::new(&["east", "north", "west"]);
    world.cluster("east").say_desired("west", "a", 1);
    world.cluster("east").say_desired("north", "b", 1);
    world.cluster("west").say_observed("east", "a", 1);
    world.run(seconds(5));
    assert_eq!(world.cluster("west").heard_generation("east", "a"), Some(1));
    assert_eq!(world.cluster("north").heard_generation("east", "b"), Some(1));
    assert_eq!(world.cluster("west").heard_generation("east", "b"), None);
    assert_eq!(world.cluster("east").puts(), 1);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    /// Whatever happened, once the network works again everything that is said is heard, nothing that is not said is
    /// listed, and one connection is left of each pair.
    #[test]
    fn any_history_ends_in_agreement(operations in proptest::collection::vec(world::operation(), 1..25)) {
        let mut world = World::new(&["east", "north", "west"]);
        for operation in operations {
            world.perform(operation);
        }
        world.perform(Operation::HealAll);
        world.run(seconds(60) + T.summary + seconds(10));
        for (from, to) in [("east", "west"), ("west", "north"), ("north", "east"), ("west", "east")] {
            prop_assert_eq!(world.connections(from, to), 1, "{} and {}", from, to);
            prop_assert_eq!(world.state(to, from), PeerState::Connected);
            let said = world.said(from, to);
            let snapshot = world.cluster(to).snapshots(from).pop().expect("a complete snapshot");
            prop_assert_eq!(&snapshot, &said.keys().cloned().collect::<Vec<_>>());
            for (key, state) in said {
                prop_assert_eq!(world.cluster(to).heard(from, &key), Some(state));
            }
        }
    }
}

#[test]
fn a_tombstone_said_while_cut_off_is_heard() {
    let mut world = World::new(&["east", "west"]);
    world.cluster("east").say_desired("west", "a", 1);
    world.run(seconds(5));
    world.cut("east", "west");
    world.cluster("east").say("west", desired_key("a"), State::Tombstone);
    world.run(seconds(40));
    world.heal("east", "west");
    world.run(seconds(20));
    assert_eq!(world.cluster("west").heard("east", &desired_key("a")), Some(State::Tombstone));
}
