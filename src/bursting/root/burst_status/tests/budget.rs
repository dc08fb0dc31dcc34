//! What brokers cost, and whose clock a budget goes by.

use tributary_api::labels::condition::BUDGET;
use tributary_cluster::conditions::find;
use tributary_contract::{Capacity, PossibleCapacity};

use super::*;

fn price(core_hour: &str) -> Option<Price> {
    Some(Price { core_hour: core_hour.parse().unwrap(), ..Price::default() })
}

fn said(world: &World) -> String {
    find(&world.burst.status.as_ref().unwrap().conditions, BUDGET).unwrap().reason.clone()
}

/// The danger: a budget of money never ends, and nobody learns that nobody wrote what the peer costs.
#[test]
fn money_without_a_price_is_told_once_and_is_spent_once_there_is_one() {
    let mut world = World::new();
    world.burst.spec.budget = serde_saphyr::from_str("{cost: 1}").unwrap();
    world.named(&["west"]).step().say("west", BurstPhase::Ready).step().give_certificate("west");
    world.after(99_999).after(99_999).is(BurstPhase::Ready, Some("west"));
    assert_eq!(said(&world), "NoPrice");
    assert_eq!(world.notes.iter().filter(|note| *note == "BudgetNoPrice").count(), 1, "{:?}", world.notes);
    // Three cores at 12 an hour: a hundred seconds.
    world.peers.get_mut("west").unwrap().price = price("12");
    world.step().after(99).is(BurstPhase::Ready, Some("west"));
    world.peers.get_mut("west").unwrap().price = price("1");
    world.step().is(BurstPhase::Draining, Some("west"));
    assert_eq!(said(&world), "Spent");
}

#[test]
fn a_price_of_nothing_is_a_price() {
    let mut world = World::new();
    world.burst.spec.budget = serde_saphyr::from_str("{cost: 1}").unwrap();
    world.peers.get_mut("west").unwrap().price = price("0");
    world.named(&["west"]).step().say("west", BurstPhase::Ready).step().give_certificate("west");
    world.peers.get_mut("west").unwrap().price = price("12");
    world.after(99_999).is(BurstPhase::Ready, Some("west"));
    assert_eq!((said(&world).as_str(), world.burst.status.as_ref().unwrap().price), ("Within", price("0")));
}

/// The danger: it seemed to fit on nodes that are there, and the budget counts these while dearer ones are added.
#[test]
fn who_accepts_with_nodes_that_it_adds_costs_what_these_cost() {
    let mut world = World::new();
    let possible = Some(PossibleCapacity { nodes: 1, price: price("3"), ..PossibleCapacity::default() });
    let capacity = Capacity { free_cores: 64, largest_free_node_cores: 64, possible, ..Capacity::default() };
    let west = world.peers.get_mut("west").unwrap();
    (west.price, west.capacity) = (price("1"), Some(capacity));
    world.named(&["west"]).step().say("west", BurstPhase::Accepted).step();
    let costs = |world: &World| world.burst.status.as_ref().unwrap().price;
    assert_eq!(costs(&world), price("1"));
    world.say("west", BurstPhase::ScalingUp).step().is(BurstPhase::ScalingUp, Some("west"));
    assert_eq!(costs(&world), price("3"));
    world.peers.get_mut("west").unwrap().price = price("9");
    world.step().say("west", BurstPhase::Ready).step();
    assert_eq!(costs(&world), price("3"), "what changes afterwards moves nothing");
}

/// The danger: the clock of a leader jumps ahead, and brokers that may run for another hour are drained.
#[test]
fn a_clock_that_is_set_ahead_drains_nothing() {
    let mut world = World::new();
    world.burst.spec.budget = serde_saphyr::from_str("{maxDuration: 1h}").unwrap();
    world.named(&["west"]).step().say("west", BurstPhase::Ready).step().give_certificate("west");
    world.after(600);
    world.ahead = 3_600;
    world.after(600).is(BurstPhase::Ready, Some("west"));
    assert_eq!(said(&world), "Within");
    // Nor is it written down when something changes.
    world.edit(|spec| spec.size = 2).step().is(BurstPhase::Ready, Some("west"));
    assert_eq!(world.burst.status.as_ref().unwrap().spent.seconds, 1_201);
    world.after(2_399).is(BurstPhase::Draining, Some("west"));
}
