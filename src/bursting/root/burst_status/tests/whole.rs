//! Whole instances at a peer.

use super::*;

/// The danger: its FluxJob takes back what is placed nowhere, and then waits for a minute or longer.
#[test]
fn a_whole_instance_does_not_wait_for_a_better_peer_to_connect() {
    let mut world = World::new();
    let (whole, free_cores, largest_free_node_cores) = (true, 9, 9);
    for peer in world.peers.values_mut() {
        let room = tributary_contract::Capacity { whole, free_cores, largest_free_node_cores, ..Default::default() };
        peer.capacity = Some(room);
    }
    world.named(&["west", "north"]).edit(|spec| spec.whole = true).cut("west").step();
    world.is(BurstPhase::Offered, Some("north"));
}

#[test]
fn a_whole_instance_is_offered_only_to_who_knows_such_and_its_result_stands() {
    let mut world = World::new();
    world.named(&["west", "north"]).edit(|spec| spec.whole = true).step().is(BurstPhase::Pending, None);
    let capacity =
        tributary_contract::Capacity { whole: true, free_cores: 9, largest_free_node_cores: 9, ..Default::default() };
    world.peers.get_mut("north").unwrap().capacity = Some(capacity);
    world.step().is(BurstPhase::Offered, Some("north"));
    let report = |succeeded| {
        let run = tributary_contract::RunReport {
            started: true,
            succeeded,
            exit_code: succeeded.map(|_| 0),
            ..Default::default()
        };
        let said = ObservedBurst {
            phase: if succeeded.is_some() { BurstPhase::Finished } else { BurstPhase::Ready },
            incarnation: "job-1".into(),
            observed_generation: 2,
            hosted_uid: Some("hosted-on-north".into()),
            run: Some(run),
            ..ObservedBurst::default()
        };
        Answer::Observed(Box::new(said))
    };
    world.answers.insert("north".into(), report(None));
    world.step().give_certificate("north").step().is(BurstPhase::Ready, Some("north"));
    // Lost while it ran: nobody else runs it before the lease is over there.
    world.cut("north").step().after(300).is(BurstPhase::Lost, Some("north"));
    world.connect("north").step().is(BurstPhase::Ready, Some("north"));
    world.answers.insert("north".into(), report(Some(true)));
    world.step().is(BurstPhase::Finished, Some("north"));
    let mut result = world.burst.status.clone();
    let mut gone = result.clone();
    gone.as_mut().unwrap().run.as_mut().unwrap().logs_gone = true;
    world.say("north", BurstPhase::Draining).step();
    assert_eq!(world.burst.status, result);
    assert_eq!(offer::recipients(&world.burst, &world.peers).len(), 1, "as long as it is wanted there");
    for phase in [BurstPhase::Evicted, BurstPhase::Released, BurstPhase::Rejected] {
        world.burst.status.clone_from(&result);
        world.say("north", phase).step();
        assert_eq!(world.burst.status, gone, "{phase}");
        assert!(offer::recipients(&world.burst, &world.peers).is_empty(), "nothing more is said of it");
    }
    result = gone;
    world.cut("north").step().after(9_999);
    assert_eq!(world.burst.status, result);
    world.connect("north").edit(|spec| spec.release = true).step().confirm("north").step();
    world.is(BurstPhase::Released, None);
}
