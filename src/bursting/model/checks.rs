//! What is explored, and how far.

use stateright::{Checker as _, Expectation, Model as _};
use tributary_api::hosted_burst::BurstPhase;
use tributary_api::minicluster::BurstNetworkType::{self, NodePort, Tunnel};

use super::Rule;
use super::events::{Agent, Event};
use super::world::Model;

#[test]
fn a_world_without_faults_places_the_burst() {
    for network in [NodePort, Tunnel] {
        let model = Model::new(network, 0);
        let end = model.settled(&model.fresh());
        let status = end.root.status();
        assert_eq!((status.peer.as_deref(), status.phase), (Some("west"), BurstPhase::Ready), "{status:?}");
        assert!(end.providers[0].is_ready() && end.providers[1].is_empty());
    }
}

fn number(name: &str, default: usize) -> usize {
    std::env::var(name).map_or(default, |text| text.parse().unwrap())
}

#[allow(clippy::disallowed_methods, reason = "figures for people")]
fn explore(network: BurstNetworkType) {
    let faults = u8::try_from(number("MODEL_FAULTS", 1)).unwrap();
    let depth = number("MODEL_DEPTH", 8);
    let begin = std::time::Instant::now();
    let checker = Model::new(network, faults).checker().target_max_depth(depth + 1).spawn_bfs().join();
    println!(
        "{network:?}, at most {faults} faults: {} states of {} generated, depth {}, {} parts, in {:.1} s",
        checker.unique_state_count(),
        checker.state_count(),
        checker.max_depth() - 1,
        checker.model().known.len(),
        begin.elapsed().as_secs_f64()
    );
    for property in checker.model().properties() {
        let found = checker.discovery(property.name);
        if property.expectation == Expectation::Always {
            assert!(found.is_none(), "{}:\n{:#?}", property.name, found.unwrap().into_actions());
        }
    }
}

#[test]
fn no_history_over_a_direct_network_breaks_a_rule() {
    explore(NodePort);
}

#[test]
fn no_history_through_the_tunnel_breaks_a_rule() {
    explore(Tunnel);
}

/// The shortest history that breaks a property when a rule is taken out.
fn history(out: Rule, network: BurstNetworkType, of: &[Event], property: &'static str) -> Vec<Event> {
    let (of, faults) = (of.to_vec(), u8::try_from(of.len()).unwrap());
    let model = |out| Model { out, of: of.clone(), settles: false, ..Model::new(network, faults) };
    let explored = |out| model(out).checker().target_max_depth(24).spawn_bfs().join();
    let broken = explored(Some(out)).discovery(property);
    let events = broken.unwrap_or_else(|| panic!("nothing misses {out:?}")).into_actions();
    assert!(explored(None).discovery(property).is_none(), "it is kept by {out:?}");
    println!("{out:?}, {network:?}, {property}: {} events: {events:?}", events.len());
    events
}

#[test]
fn a_clock_that_frees_a_direct_slot_is_found() {
    let events = history(Rule::NoClockFrees, NodePort, &[Event::Cut(0)], "free is free");
    assert!(events.len() <= 12, "{events:?}");
}

#[test]
fn a_lease_that_counts_from_a_restart_is_found() {
    let faults = [Event::Cut(0), Event::Dies(Agent::Provider(0))];
    history(Rule::LossIsStored, Tunnel, &faults, "free is free");
}

#[test]
fn a_slot_that_is_free_before_its_holder_says_so_is_found() {
    history(Rule::HolderConfirms, NodePort, &[Event::Suspended], "free is free");
}

#[test]
fn a_burst_that_forgets_who_held_its_slot_is_found() {
    history(Rule::HolderIsNamed, NodePort, &[Event::Cut(0), Event::Deleted], "never twice");
}

#[test]
fn a_certificate_that_goes_out_before_that_is_recorded_is_found() {
    history(Rule::RecordedFirst, NodePort, &[Event::Cut(0)], "free is free");
}

#[test]
fn a_tunnel_that_lets_everybody_in_is_found() {
    let faults = [Event::Cut(0), Event::Dies(Agent::Provider(0))];
    history(Rule::Fence, Tunnel, &faults, "never twice");
}

#[test]
fn words_of_another_cluster_that_count_are_found() {
    history(Rule::StrangersAreNotHeard, NodePort, &[Event::Repinned], "free is free");
}
