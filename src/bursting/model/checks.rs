//! What is explored, and how far.

use std::sync::atomic::Ordering;

use stateright::{Checker, HasDiscoveries, Model as _};
use tributary_api::hosted_burst::BurstPhase;
use tributary_api::minicluster::BurstNetworkType::{self, NodePort, Tunnel};

use super::Rule;
use super::events::{Agent, Event, Speaker};
use super::world::{FREE_IS_FREE, Model, NEVER_TWICE, World};

/// More events than any rule needs to be missed.
const DEEPEST: usize = 16;

/// All that follows within so many events.
fn explored(model: Model, depth: usize) -> impl Checker<Model> {
    // The beginning has depth 1, and states of the last depth are not checked.
    model.checker().target_max_depth(depth + 2).finish_when(HasDiscoveries::AnyFailures).spawn_bfs().join()
}

/// The burst is where it was placed first, and ready.
fn runs(model: &Model) -> World {
    model.settled(&model.fresh()).unwrap()
}

#[test]
fn a_world_without_faults_places_the_burst() {
    for network in [NodePort, Tunnel] {
        let model = Model::new(network, 0);
        let end = runs(&model);
        let status = end.root.status();
        assert_eq!((status.peer.as_deref(), status.phase), (Some("west"), BurstPhase::Ready), "{status:?}");
        assert!(end.providers[0].is_ready() && end.providers[1].is_empty());
        let end = model.settled(&model.follows(&end, Event::Evicted(0)).unwrap()).unwrap();
        assert!(end.providers[1].is_ready() && end.providers[0].is_empty(), "{:?}", end.root.status());
    }
}

fn number(name: &str, default: usize) -> usize {
    std::env::var(name).map_or(default, |text| text.parse().unwrap())
}

/// All that follows from each state of an undisturbed life.
#[allow(clippy::disallowed_methods, reason = "figures for people")]
fn explore(network: BurstNetworkType) {
    let (faults, depth) = (number("MODEL_FAULTS", 1), number("MODEL_DEPTH", 2));
    let of_life = || {
        let model = Model::new(network, u8::try_from(faults).unwrap());
        Model { begin: model.life(), ..model }
    };
    let begin = std::time::Instant::now();
    let checker = explored(of_life(), depth);
    let (model, lasted) = (checker.model(), begin.elapsed().as_secs_f64());
    let (life, checked, parts) = (model.begin.len(), model.checked.load(Ordering::Relaxed), model.known.len());
    println!(
        "{network:?}: {checked} states within {depth} events, {faults} of them faults, of each of the {life} states of a \
         life; {parts} parts; {lasted:.1} s"
    );
    if let Some(property) = checker.discoveries().into_keys().next() {
        let path = explored(Model { must: vec![property], ..of_life() }, depth).discovery(property).unwrap();
        panic!("{property}:\n{:#?}\n{:#?}", path.last_state(), path.clone().into_actions());
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

/// The shortest history of these faults that breaks a property when a rule is taken out, and never with that rule: from a
/// burst that runs, after `first`.
fn missed(out: Rule, network: BurstNetworkType, first: &[Event], of: &[Event], property: &'static str) {
    let from = |out| {
        let faults = u8::try_from(of.len()).unwrap();
        let model = Model { out, of: of.to_vec(), must: vec![property], ..Model::new(network, faults) };
        let begin = first.iter().fold(runs(&model), |world, event| model.follows(&world, *event).unwrap());
        Model { begin: vec![World { faults: 0, ..begin }], ..model }
    };
    let found = explored(from(Some(out)), DEEPEST);
    let states = found.model().checked.load(Ordering::Relaxed);
    let path = found.discovery(property).unwrap_or_else(|| panic!("nothing misses {out:?}"));
    let events = path.into_actions();
    println!("{out:?}, {network:?}: {property} is broken after {states} states: {first:?}, {events:?}");
    let kept = explored(from(None), events.len());
    assert!(kept.discoveries().is_empty(), "{out:?} does not keep it");
}

#[test]
fn a_clock_that_frees_a_direct_slot_is_found() {
    missed(Rule::NoClockFrees, NodePort, &[], &[Event::Dies(Agent::Provider(0))], FREE_IS_FREE);
}

#[test]
fn a_lease_that_counts_from_a_restart_is_found() {
    let first = [Event::Cut(0), Event::Notices(0, Speaker::Root), Event::Tick];
    missed(Rule::LossIsStored, Tunnel, &first, &[Event::Dies(Agent::Provider(0))], FREE_IS_FREE);
}

#[test]
fn a_slot_that_is_free_before_its_holder_says_so_is_found() {
    missed(Rule::HolderConfirms, NodePort, &[], &[Event::Suspended], FREE_IS_FREE);
}

#[test]
fn a_burst_that_forgets_who_held_its_slot_is_found() {
    missed(Rule::HolderIsNamed, NodePort, &[], &[Event::Cut(0), Event::Deleted], FREE_IS_FREE);
}

#[test]
fn a_holder_that_is_forgotten_before_the_first_status_is_found() {
    let faults = [Event::Deleted, Event::DiesIn(Agent::Root, 1), Event::Deleted];
    missed(Rule::HolderIsCarried, NodePort, &[Event::Cut(0)], &faults, FREE_IS_FREE);
}

#[test]
fn a_certificate_that_goes_out_before_that_is_recorded_is_found() {
    missed(Rule::RecordedFirst, NodePort, &[], &[Event::Cut(0)], FREE_IS_FREE);
}

#[test]
fn a_tunnel_that_lets_everybody_in_is_found() {
    let mut first = vec![Event::Dies(Agent::Provider(0)), Event::Notices(0, Speaker::Root)];
    first.extend([Event::Tick; 6]);
    first.extend([Event::RootPasses, Event::Speaks(1, Speaker::Root), Event::Passes(1)]);
    missed(Rule::Fence, Tunnel, &first, &[], NEVER_TWICE);
}

#[test]
fn words_of_another_cluster_that_count_are_found() {
    missed(Rule::StrangersAreNotHeard, NodePort, &[], &[Event::Repinned], FREE_IS_FREE);
}
