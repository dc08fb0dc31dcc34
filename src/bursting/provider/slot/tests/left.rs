//! What is left of a burst: nobody is told that it is gone before it is.

use super::*;

/// The garbage collector may take its time: a Job whose MiniCluster is gone is looked for while its brokers run on.
#[test]
fn brokers_that_run_on_without_their_mini_cluster_are_not_waited_for() {
    let mut world = World::new();
    world.host("east", &offer());
    world.hosted.as_mut().unwrap().status = Some(HostedBurstStatus {
        draining_since: Some(Time(Timestamp::from_second(1_000_000).unwrap())),
        ..HostedBurstStatus::default()
    });
    let deletes = |step: &SlotStep| step.changes.iter().any(|change| matches!(change, Change::DeleteHosted { .. }));
    world.pods = vec![PodView { running: true, ..PodView::default() }];
    world.memory.looked_empty = true;
    let step = world.step();
    assert!(step.changes.contains(&Change::ClearLeft) && step.wake == Some(Duration::from_secs(1)));
    assert!(!step.memory.looked_empty && !deletes(&step), "it is looked for again when they are gone");
    world.pods[0].terminating = true;
    let step = world.step();
    assert!(!step.changes.contains(&Change::ClearLeft) && !deletes(&step), "they are on their way");
    world.pods.clear();
    let step = world.step();
    assert!(step.changes.contains(&Change::LookLeft) && !deletes(&step));
    world.memory.looked_empty = true;
    assert!(deletes(&world.step()));
}

/// The danger: somebody puts a finalizer on a hosted MiniCluster, and its brokers run on.
#[test]
fn brokers_of_a_mini_cluster_that_a_finalizer_keeps_are_ended() {
    let mut world = provisioned(offer(), vec![pod(0, "n")]);
    world.hosted.as_mut().unwrap().status = Some(HostedBurstStatus {
        draining_since: Some(Time(Timestamp::from_second(1_000_000).unwrap())),
        ..HostedBurstStatus::default()
    });
    let deletes = |change: &Change| matches!(change, Change::DeleteMiniCluster { .. } | Change::DeleteHosted { .. });
    let goes = Some(Time(Timestamp::from_second(1_000_001).unwrap()));
    let ours = &mut world.mini_cluster.as_mut().unwrap().metadata;
    (ours.deletion_timestamp, ours.finalizers) = (goes, Some(vec!["backup.example/keep".into()]));
    let step = world.step();
    assert!(step.changes.contains(&Change::ClearLeft) && step.wake == Some(Duration::from_secs(1)));
    world.pods.clear();
    world.memory.looked_empty = true;
    let step = world.step();
    // So that what keeps it is told.
    assert!(step.changes.contains(&Change::ClearLeft) && !step.changes.iter().any(deletes), "{:?}", step.changes);
}

/// The danger: pods that have ended, and that nobody deletes, keep the end of a burst from being told.
#[test]
fn pods_that_have_ended_are_not_waited_for() {
    let mut world = World::new();
    let key = world.claim("east", DesiredBurst { hosted_uid: Some("hosted-uid".into()), ..offer() });
    world.pods = vec![PodView { finished: true, running: false, ..pod(0, "n") }];
    assert_eq!(world.step().changes, [Change::LookLeft]);
    world.memory.looked_empty = true;
    assert_eq!(said(&world.step(), &key).phase, BurstPhase::Evicted);
}

#[test]
fn what_was_empty_before_says_nothing_of_brokers_made_since() {
    let mut world = World::new();
    world.host("east", &offer());
    world.claim("east", offer());
    world.memory.looked_empty = true;
    world.memory.secret = held();
    let step = world.step();
    assert!(step.changes.iter().any(|change| matches!(change, Change::Materialize(_))));
    // The cache does not show the new MiniCluster yet, and the root lets go.
    world.claims.insert(("east".into(), "burst-uid".into()), Wanted::Tombstone);
    let Some(Change::Status(status)) = world.step().changes.into_iter().next() else { panic!("it drains") };
    world.hosted.as_mut().unwrap().status = Some(*status);
    let step = world.step();
    assert!(step.changes.contains(&Change::LookLeft), "{:?}", step.changes);
    assert!(!step.changes.iter().any(|change| matches!(change, Change::DeleteHosted { .. })), "{:?}", step.changes);
}

/// The dangers: an agent that cannot read a HostedBurst deletes its brokers; or a user's copy of its MiniCluster.
#[test]
fn without_its_hosted_burst_a_mini_cluster_is_deleted_by_who_has_asked_for_that() {
    let mut world = World::new();
    world.host("east", &offer());
    let ours = made(world.hosted.as_ref().unwrap());
    let key = world.claim("east", DesiredBurst { hosted_uid: Some("hosted-uid".into()), ..offer() });
    (world.hosted, world.mini_cluster) = (None, Some(ours.clone()));
    let step = world.step();
    assert_eq!((step.changes.as_slice(), step.wake), (&[Change::ClearLeft][..], Some(Duration::from_secs(1))));
    assert_eq!(said(&step, &key).phase, BurstPhase::Draining);
    // What was seen there goes when a person makes it go.
    world.memory.stuck = Some("HostedBurst flux/lake-burst-0".into());
    let step = world.step();
    assert_eq!(step.wake, Some(Duration::from_secs(15)));
    assert!(said(&step, &key).message.contains("HostedBurst flux/lake-burst-0"), "{}", said(&step, &key).message);
    // A copy of another one, with its labels, is no hosted burst.
    let mut world = World::new();
    let mut copy = ours;
    copy.metadata.owner_references = None;
    copy.metadata.labels.as_mut().unwrap().insert(tributary_api::labels::SLOT.into(), "another".into());
    world.mini_cluster = Some(copy);
    let key = world.claim("east", offer());
    let step = world.step();
    assert_eq!((step.changes.as_slice(), reason(&step, &key)), (&[][..], Some(RejectionReason::NameTaken)));
}

/// The danger: its root offers another instance, takes that back, and hears that nothing is left while brokers run.
#[test]
fn what_became_of_a_burst_is_kept_until_nothing_is_left() {
    for recalled in [false, true] {
        let mut world = World::new();
        let key: ClaimKey = ("east".into(), "burst-uid".into());
        if recalled {
            world.memory.recall(key.clone());
        } else {
            world.host("east", &offer());
            world.step();
            world.hosted = None;
        }
        world.pods = vec![PodView { terminating: true, ..pod(0, "n") }];
        let mut other = offer();
        other.root.incarnation = "another".into();
        world.claim("east", other);
        assert_eq!(said(&world.step(), &key).phase, BurstPhase::Draining);
        world.claims.insert(key.clone(), Wanted::Tombstone);
        assert!(world.memory.fates.contains_key(&key), "by which the tombstone finds this slot");
        assert_eq!(said(&world.step(), &key).phase, BurstPhase::Draining);
        world.pods.clear();
        world.memory.looked_empty = true;
        assert_eq!(world.step().answers[&key], Answer::Nothing);
    }
}

/// The dangers: a release lists a thousand pods for each that goes; or a burst waits for ever for a name that a person holds,
/// though other peers have room.
#[test]
fn what_stays_is_looked_at_in_turn_and_holds_nobody_up() {
    let mut world = World::new();
    let key = world.claim("east", DesiredBurst { hosted_uid: Some("hosted-uid".into()), ..offer() });
    world.pods = vec![pod(0, "n")];
    let looks = |step: &SlotStep| step.changes.contains(&Change::ClearLeft);
    assert!(looks(&world.step()), "the first look is at once");
    world.memory.looked = Some(world.now().mono);
    let step = world.step();
    assert!(!looks(&step) && step.wake == Some(Duration::from_secs(1)), "pods that go mark it meanwhile");
    world.secs += 1;
    assert!(looks(&world.step()));
    assert_eq!(said(&world.step(), &key).phase, BurstPhase::Draining, "these may be its own brokers");

    (world.memory.looked, world.memory.stuck) = (Some(world.now().mono), Some("pod flux/lake-burst-0-0".into()));
    let other = world.claim("east", DesiredBurst { uid: "other-uid".into(), ..offer() });
    let step = world.step();
    let rejection = said(&step, &other).rejection.unwrap();
    assert_eq!(rejection.reason, RejectionReason::NameTaken);
    assert!(rejection.message.contains("pod flux/lake-burst-0-0"), "{}", rejection.message);
    assert!(!world.memory.is_empty(), "it is known at the next look");
    world.pods.clear();
    world.memory.looked_empty = true;
    world.step();
    assert_eq!((&world.memory.stuck, world.memory.looked), (&None, None));
}
