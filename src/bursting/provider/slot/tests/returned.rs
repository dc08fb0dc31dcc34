//! What a new leader makes of bursts that the one before it knew.

use super::*;

#[test]
fn what_we_ended_while_the_root_was_away_is_no_eviction_when_it_returns() {
    let seen = DesiredBurst { hosted_uid: Some("hosted-uid".into()), ..offer() };
    let mut world = World::new();
    world.host("east", &offer());
    let hosted = world.hosted.take().unwrap();
    world.memory.ended(&hosted, Reason::LeaseExpired);
    world.memory.looked_empty = true;
    // Nobody claims it: the agent was restarted while the root was away.
    world.step();
    let key = world.claim("east", seen.clone());
    assert_eq!(said(&world.step(), &key).phase, BurstPhase::Released);

    // The root took notice, and speaks of other bursts only.
    world.claims.clear();
    world.listed.insert("east".into(), BTreeSet::new());
    world.step();
    assert!(world.memory.fates.is_empty());

    // An agent that has just started knows nothing, but how long the root was lost by then.
    for (lost, expected) in [(seen.lease_seconds - 1, BurstPhase::Evicted), (seen.lease_seconds, BurstPhase::Released)]
    {
        let mut world = World::new();
        world.led_until(lost);
        world.memory.looked_empty = true;
        let key = world.claim("east", seen.clone());
        assert_eq!(said(&world.step(), &key).phase, expected, "after {lost} s");
    }
}

#[test]
fn what_we_replaced_twice_before_the_root_noticed_is_no_eviction() {
    let mut world = World::new();
    world.host("east", &offer());
    let hosted = world.hosted.take().unwrap();
    world.memory.ended(&hosted, Reason::Replaced);
    world.memory.looked_empty = true;
    let key = world.claim("east", DesiredBurst { hosted_uid: Some("the-one-before".into()), ..offer() });
    assert_eq!(said(&world.step(), &key).phase, BurstPhase::Released);
}

/// While nobody led here, the root may have given the ranks to another peer.
#[test]
fn a_provider_that_comes_back_after_the_lease_ends_the_burst_before_it_answers() {
    for (gap, lapsed) in [(offer().lease_seconds - 1, false), (offer().lease_seconds, true)] {
        let mut world = World::new();
        let key = world.claim("east", offer());
        world.host("east", &offer());
        world.led_until(gap);
        let step = world.step();
        assert_eq!(said(&step, &key).phase == BurstPhase::Draining, lapsed, "in contact again after {gap} s");
        let ends = |change: &Change| matches!(change, Change::Status(status) if status.draining_since.is_some());
        assert_eq!(step.changes.iter().any(ends), lapsed, "{:?}", step.changes);
        assert_eq!(step.memory.kept.is_none(), lapsed, "a Job that is missing is made anew while it is kept only");
        assert!(!lapsed || step.changes.len() == 1, "why it ends is stored before anything else: {:?}", step.changes);
    }
    // What is hosted since then is another burst.
    let mut world = World::new();
    world.led_until(offer().lease_seconds);
    let key = world.claim("east", offer());
    world.host("east", &offer());
    assert_ne!(said(&world.step(), &key).phase, BurstPhase::Draining);
}

#[test]
fn a_loss_that_began_while_no_agent_ran_counts_from_the_last_renewal_of_the_lease() {
    for (gap, reason) in [(200, None), (299, None), (300, Some("LeaseExpired"))] {
        let mut world = World::new();
        world.host("east", &offer());
        world.led_until(gap);
        (world.away, world.away_for, world.secs) = (true, 6, 6);
        let step = world.step();
        let Some(Change::Status(status)) = step.changes.iter().rfind(|change| matches!(change, Change::Status(_)))
        else {
            panic!("{:?}", step.changes)
        };
        assert_eq!(status.draining_reason.as_deref(), reason, "after {gap} s");
        if reason.is_none() {
            let Some(Time(since)) = &status.suspect_since else { panic!("{status:?}") };
            assert_eq!(since.as_second(), 1_000_000 - i64::from(gap));
        }
    }
}

/// A cache that stands still while another agent led does not know what that agent has made.
#[test]
fn what_the_cache_does_not_show_is_looked_for_before_it_is_called_evicted() {
    let mut world = World::new();
    let key = world.claim("east", DesiredBurst { hosted_uid: Some("hosted-uid".into()), ..offer() });
    let step = world.step();
    assert_eq!(step.changes, [Change::LookLeft]);
    assert_ne!(said(&step, &key).phase, BurstPhase::Evicted, "nobody has looked");
    // It is there after all.
    world.memory.looked_empty = false;
    assert_ne!(said(&world.step(), &key).phase, BurstPhase::Evicted);
    world.host("east", &offer());
    assert_eq!(said(&world.step(), &key).hosted_uid.as_deref(), Some("hosted-uid"));
    // It is not.
    world.hosted = None;
    world.memory.looked_empty = true;
    assert_eq!(said(&world.step(), &key).phase, BurstPhase::Evicted);
}

/// The danger: who is back is taken at its last word of the session before.
#[test]
fn an_offer_of_an_earlier_session_waits_until_its_root_says_it_again() {
    let mut world = World::new();
    let key = world.claim("east", offer());
    world.listed.clear();
    let step = world.step();
    assert!(step.changes.is_empty() && !step.answers.contains_key(&key), "what was answered stands: {step:?}");
    world.listed.insert("east".into(), [key.1.clone()].into());
    assert!(matches!(world.step().changes.as_slice(), [Change::Admit { .. }]));
}

/// The danger: the agent dies when nothing is left of a burst that it ended, and before its root hears why. Whoever leads next
/// takes it for an eviction.
#[test]
fn what_we_end_stays_until_its_root_has_heard_why() {
    let ended = |reason: &str| {
        let mut world = World::new();
        world.host("east", &offer());
        world.hosted.as_mut().unwrap().status = Some(HostedBurstStatus {
            draining_since: Some(Time(world.now().wall)),
            draining_reason: Some(reason.into()),
            ..HostedBurstStatus::default()
        });
        world.memory.looked_empty = true;
        world.claim("east", DesiredBurst { hosted_uid: Some("hosted-uid".into()), ..offer() });
        world
    };
    let key: ClaimKey = ("east".into(), offer().uid);
    let deletes = |world: &mut World| world.step().changes.contains(&Change::DeleteHosted { uid: "hosted-uid".into() });
    for (reason, phase) in [
        ("ScaleUpTimedOut", BurstPhase::Rejected),
        ("QueueTimedOut", BurstPhase::Rejected),
        ("PodsNotScheduled", BurstPhase::Rejected),
        ("PodsNotStarted", BurstPhase::Rejected),
        ("PeerDrained", BurstPhase::Released),
        ("ImportWithdrawn", BurstPhase::Released),
        ("NameTaken", BurstPhase::Released),
        ("TimeLimit", BurstPhase::Evicted),
    ] {
        let mut world = ended(reason);
        for leader in ["the first", "the next one"] {
            let step = world.step();
            assert_eq!(said(&step, &key).phase, phase, "{reason}, {leader}");
            assert!(!deletes(&mut world), "{reason}, {leader}");
            world.memory = Memory { looked_empty: true, ..Memory::default() };
        }
        // It has heard, and offers it once more.
        world.claim("east", offer());
        assert_eq!(said(&world.step(), &key).hosted_uid, None, "{reason}: what is offered now is another");
        assert!(deletes(&mut world), "{reason}: offered anew");
        // Or does not want it any more, or is gone.
        let mut world = ended(reason);
        world.claims.insert(key.clone(), Wanted::Tombstone);
        assert!(deletes(&mut world), "{reason}: a tombstone");
        let mut world = ended(reason);
        world.claims.clear();
        assert!(deletes(&mut world), "{reason}: unknown");
        let mut world = ended(reason);
        (world.away, world.away_for, world.secs) = (true, 299, 299);
        assert_eq!(world.step().wake, Some(Duration::from_secs(1)), "{reason}");
        (world.away_for, world.secs, world.wall) = (300, 300, 300);
        assert!(deletes(&mut world), "{reason}: lost");
    }
    // The root of a run that has ended goes by its result.
    for reason in ["PeerDrained", "TooManyResults"] {
        let mut world = ended(reason);
        let hosted = world.hosted.as_mut().unwrap();
        hosted.spec.whole = true;
        let run = tributary_api::hosted_burst::BurstRun { succeeded: Some(true), ..Default::default() };
        hosted.status.as_mut().unwrap().run = Some(run);
        assert!(deletes(&mut world), "{reason}: a result");
    }
    // Its root has said that it is to end; a word that nobody knows counts as that.
    for reason in ["Released", "Replaced", "LeaseExpired", "OfANewerAgent"] {
        assert!(deletes(&mut ended(reason)), "{reason}");
    }
}

/// The danger: the owner deletes a HostedBurst, the agent restarts while its brokers drain, and says that nothing is left.
#[test]
fn what_a_term_finds_left_is_answered_for_when_it_is_gone() {
    let key: ClaimKey = ("east".into(), "burst-uid".into());
    for wanted in [Wanted::Tombstone, Wanted::Burst(Arc::new(DesiredBurst { hosted_uid: Some("h".into()), ..offer() }))]
    {
        let mut world = World::new();
        world.memory.recall(key.clone());
        world.pods = vec![PodView { terminating: true, ..pod(0, "n") }];
        // Its root has not said anything yet.
        let step = world.step();
        assert_eq!((step.changes.len(), step.wake), (0, Some(Duration::from_secs(1))), "it is looked at again");
        world.claims.insert(key.clone(), wanted.clone());
        assert_eq!(said(&world.step(), &key).phase, BurstPhase::Draining);
        world.pods.clear();
        let step = world.step();
        assert_eq!((said(&step, &key).phase, &*step.changes), (BurstPhase::Draining, &[Change::LookLeft][..]));
        world.memory.looked_empty = true;
        let step = world.step();
        match wanted {
            Wanted::Tombstone => assert_eq!(step.answers[&key], Answer::Nothing),
            Wanted::Burst(_) => assert_eq!(said(&step, &key).phase, BurstPhase::Evicted),
        }
    }
    // Of one that nobody speaks of, nothing is remembered when it is gone.
    let mut world = World::new();
    world.memory.recall(key.clone());
    assert_eq!(world.step().changes, [Change::LookLeft]);
    assert!(!world.memory.is_empty());
    world.memory.looked_empty = true;
    world.step();
    assert!(world.memory.is_empty());
}

/// The danger: the owner changes the mapping of namespaces, deletes the HostedBurst, and what is looked at is the new namespace.
#[test]
fn a_burst_that_was_thrown_out_is_answered_for_where_it_was() {
    let mut world = World::new();
    let key = world.claim("east", DesiredBurst { hosted_uid: Some("hosted-uid".into()), ..offer() });
    world.host("east", &offer());
    world.step();
    world.peers.get_mut("east").unwrap().import.as_mut().unwrap().target_namespace = Some("guests".into());
    world.hosted = None;
    world.pods = vec![PodView { terminating: true, ..pod(0, "n") }];
    assert_eq!(said(&world.step(), &key).phase, BurstPhase::Draining);
    assert!(world.memory.fates.contains_key(&key), "which ties it to this namespace");
    world.pods.clear();
    world.memory.looked_empty = true;
    assert_eq!(said(&world.step(), &key).phase, BurstPhase::Evicted);
    // Another instance is not let in here.
    let mut other = offer();
    other.root.incarnation = "another".into();
    world.claim("east", other);
    let step = world.step();
    assert_eq!((step.changes.len(), step.answers.len()), (0, 0));
    assert!(world.memory.fates.is_empty(), "from now on it belongs to the other namespace");
}
