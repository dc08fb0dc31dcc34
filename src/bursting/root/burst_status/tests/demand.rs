//! Bursts that come when jobs ask for them.

use super::*;

#[test]
fn a_burst_on_demand_sleeps_until_jobs_ask_and_after_they_are_done() {
    let mut world = World::new();
    world.burst.spec.on_demand = Some(OnDemandSpec { max_idle: 60.into(), min_pending: 1 });
    world.step().is(BurstPhase::Asleep, None).after(9_999).is(BurstPhase::Asleep, None);
    assert!(world.published.is_empty(), "it is offered to nobody");
    world.seen = Some(Seen { at: Timestamp::UNIX_EPOCH, found: Err(("Forbidden", "may not".into())) });
    world.step().is(BurstPhase::Asleep, None);
    let condition = |world: &World| {
        let status = world.burst.status.as_ref().unwrap();
        let found = tributary_cluster::conditions::find(&status.conditions, "Demand").unwrap();
        (found.status.clone(), found.reason.clone())
    };
    assert_eq!(condition(&world), ("Unknown".into(), "Forbidden".into()));
    assert_eq!(world.notes.last().map(String::as_str), Some("QueueForbidden"));
    world.look(2, false).step().is(BurstPhase::Asleep, None).after(5).look(2, false).step();
    world.is(BurstPhase::Offered, Some("north"));
    world.say("north", BurstPhase::Ready).step().give_certificate("north").is(BurstPhase::Ready, Some("north"));
    world.look(0, true).after(500).is(BurstPhase::Ready, Some("north"));
    assert_eq!(condition(&world), ("True".into(), "InUse".into()));
    let idle = |world: &mut World, seconds: &[u64]| {
        for seconds in seconds {
            world.look(0, false).after(*seconds);
        }
        world.look(0, false).step().is(BurstPhase::Ready, Some("north"));
    };
    idle(&mut world, &[30, 29]);
    // The agent is another one, and has not looked yet; who knows what happened meanwhile.
    world.seen = None;
    world.after(500).is(BurstPhase::Ready, Some("north"));
    assert_eq!(condition(&world), ("True".into(), "Idle".into()));
    idle(&mut world, &[0, 30, 29]);
    world.seen = None;
    world.after(20).look(0, false).step().is(BurstPhase::Draining, Some("north"));
    world.look(9, false).step().is(BurstPhase::Draining, Some("north"));
    world.confirm("north").after(5).is(BurstPhase::Asleep, None);
    world.look(9, false).step().is(BurstPhase::Offered, Some("north"));
    assert_eq!(world.burst.status.as_ref().unwrap().demand.as_ref().unwrap().starts, 2);
    assert_eq!(offer::desired(&world.burst).hosted_uid, None, "a new life there");
    world.edit(|spec| spec.release = true).confirm("north").step().is(BurstPhase::Released, None);
}

/// The danger: jobs end because their user wants to pay less for what is idle.
#[test]
fn a_burst_that_runs_and_comes_on_demand_from_now_on_goes_when_it_is_idle() {
    let mut world = World::new();
    world.named(&["west"]).step().say("west", BurstPhase::Ready).step().give_certificate("west");
    world.edit(|spec| spec.on_demand = Some(OnDemandSpec { max_idle: 60.into(), min_pending: 1 }));
    world.say("west", BurstPhase::Ready).step().is(BurstPhase::Ready, Some("west"));
    world.look(0, true).step().after(500).is(BurstPhase::Ready, Some("west"));
    for seconds in [30, 30] {
        world.look(0, false).step().after(seconds);
    }
    world.look(0, false).step().is(BurstPhase::Draining, Some("west"));
}

/// The danger: a burst that slept half a day took half a day to come, as its event, a metric and an alert say.
#[test]
fn a_burst_takes_its_time_from_when_it_is_wanted() {
    let planned = |world: &World| {
        let times = world.burst.status.as_ref().unwrap().times.clone();
        assert_ne!(times, Some(Default::default()), "no API server takes that");
        times?.planned.map(|MicroTime(at)| at.as_second() - 1_000_000)
    };
    let mut world = World::new();
    world.burst.spec.on_demand = Some(OnDemandSpec { max_idle: 60.into(), min_pending: 1 });
    assert_eq!(planned(world.step().is(BurstPhase::Asleep, None)), None);
    world.after(43_200).look_at(Asked { pending: 1, lasting: 1, ..Asked::default() });
    assert_eq!(planned(world.step().is(BurstPhase::Offered, Some("north"))), Some(43_202));

    let mut world = World::new();
    world.named(&["west", "north"]).step().say("west", BurstPhase::Rejected).step().say("north", BurstPhase::Ready);
    let Some(Answer::Observed(said)) = world.answers.get_mut("north") else { unreachable!() };
    let at = Timestamp::from_second(1_000_000).ok();
    said.times = PhaseTimes { accepted: at, ready: at, ..PhaseTimes::default() };
    assert_eq!(planned(world.step().is(BurstPhase::Ready, Some("north"))), Some(1), "it was refused in between");
    assert_eq!(planned(world.say("north", BurstPhase::Evicted).step()), Some(4), "it was complete until now");
    assert_eq!(planned(world.edit(|spec| spec.release = true).step().after(9_999)), None);
    assert_eq!(planned(world.edit(|spec| spec.release = false).step()), Some(10_005));
}

/// The danger: a peer that did as it was told is asked later each time.
#[test]
fn a_burst_that_is_wanted_again_while_it_leaves_has_left_before_it_is_offered_anew() {
    let mut world = World::new();
    world.named(&["west"]).burst.spec.on_demand = Some(OnDemandSpec { max_idle: 30.into(), min_pending: 1 });
    world.step();
    for _ in 0..4 {
        world.look_at(Asked { pending: 1, lasting: 1, ..Asked::default() });
        world.step().is(BurstPhase::Offered, Some("west"));
        world.say("west", BurstPhase::Ready).give_certificate("west").step().is(BurstPhase::Ready, Some("west"));
        world.look(0, false).after(30).look(0, false).step().is(BurstPhase::Draining, Some("west"));
        world.look_at(Asked { pending: 1, lasting: 1, ..Asked::default() });
        world.say("west", BurstPhase::Draining).step().is(BurstPhase::Draining, Some("west"));
        assert!(offer::recipients(&world.burst, &world.peers).is_empty(), "it is not taken back half way");
        world.say("west", BurstPhase::Released).step().is(BurstPhase::Pending, None).confirm("west");
    }
    let status = world.burst.status.as_ref().unwrap();
    assert!(status.returns.is_empty() && !world.notes.contains(&"ReleasedByPeer".to_owned()), "{:?}", world.notes);
}
