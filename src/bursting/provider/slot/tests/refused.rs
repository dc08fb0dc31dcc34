//! What our own API server refuses of a burst that was taken.

use tributary_cluster::{Cause, RequestError};

use super::scale_up::at;
use super::*;
use crate::provider::memory::{NoCertificate, Tried};

fn error(code: u16, message: &str) -> RequestError {
    let cause = Cause::Refused { code, reason: String::new(), message: message.into() };
    RequestError::new("write", "Service flux/lake-burst-0-lead", cause)
}

/// Brokers in the HostedBurst that is wanted, and in the MiniCluster.
fn sizes(step: &SlotStep) -> (Option<u32>, Option<i32>) {
    let (mut spec, mut made) = (None, None);
    for change in &step.changes {
        match change {
            Change::Update(wanted) => spec = Some(wanted.spec.size),
            Change::Materialize(materials) => made = materials.mini_cluster.as_ref().and_then(|made| made.spec.size),
            _ => {}
        }
    }
    (spec, made)
}

/// The danger: a policy refuses a change of the HostedBurst, and neither side hears anything of the burst any more. Or its
/// brokers follow what that policy refuses.
#[test]
fn a_change_that_is_refused_is_told_and_holds_nothing_else_up() {
    for whole in [false, true] {
        let small = DesiredBurst { whole, size: 2, ..offer() };
        let mut world = provisioned(small.clone(), Vec::new());
        let key = world.claim("east", DesiredBurst { size: 3, generation: 9, ..small });
        let step = world.step();
        assert_eq!(sizes(&step), (Some(3), Some(3)));
        let tried: Vec<_> = step.changes.iter().filter_map(Tried::of).collect();
        assert_eq!(tried, [Tried::Spec, Tried::Objects]);
        for slow in [error(503, "away"), error(409, "the object has been modified"), error(404, "gone")] {
            world.memory.failed(Some(Tried::Spec), &slow);
            assert_eq!(world.memory.unchanged, None, "{slow:?}");
        }
        world.memory.failed(None, &error(403, "no"));
        assert_eq!(world.memory.unchanged, None, "that was another change");
        world.memory.failed(Some(Tried::Spec), &error(422, "no more than two"));
        let step = world.step();
        assert_eq!(sizes(&step), (Some(3), Some(2)), "it is tried again, and what is made is what is stored");
        let told = "it cannot be changed: failed to write Service flux/lake-burst-0-lead: no more than two";
        assert_eq!((said(&step, &key).message.as_str(), status(&step).unwrap().message.as_str()), (told, told));
        // If it cannot be made at all, the message says that.
        world.memory.failed(Some(Tried::Objects), &error(403, "exceeded quota: team"));
        assert!(said(&world.step(), &key).message.starts_with("it cannot be made: "));
        *world.memory.refusal(Tried::Objects) = None;
        *world.memory.refusal(Tried::Spec) = None;
        assert_eq!(sizes(&world.step()), (Some(3), Some(3)));
    }
}

/// The danger: a burst sits for ever where the API server refuses an object that its pods need.
#[test]
fn a_burst_that_cannot_be_made_is_given_back_with_the_words() {
    const WAIT: i64 = 600;
    let unkept = |memory: &mut Memory| {
        let why = NoCertificate::Refused("failed to write Secret: exceeded quota: team".into());
        memory.fetched(Err(why), Mono::from_start(Duration::from_secs(3600)));
    };
    let unmade = |memory: &mut Memory| memory.failed(Some(Tried::Objects), &error(403, "exceeded quota: team"));
    let slow = |memory: &mut Memory| memory.failed(None, &error(503, "away"));
    type Refuse<'a> = &'a dyn Fn(&mut Memory);
    let cases: [(&str, Refuse<'_>, &str); 2] = [
        ("unmade", &unmade, "it cannot be made: failed to write Service flux/lake-burst-0-lead: exceeded quota: team"),
        ("unkept", &unkept, "it cannot be made: failed to write Secret: exceeded quota: team"),
    ];
    for (case, refuse, told) in cases {
        let mut world = World::new();
        world.host("east", &offer());
        let key = world.claim("east", offer());
        world.memory.secret = SecretState::Asked;
        // Its root has not delivered yet, for however long.
        at(&mut world, 0);
        at(&mut world, 10 * WAIT);
        assert_eq!(draining(&world), None, "{case}");
        refuse(&mut world.memory);
        at(&mut world, 10 * WAIT + 1);
        // The API server is away: nobody knows whether it would still refuse.
        slow(&mut world.memory);
        at(&mut world, 11 * WAIT + 1);
        assert_eq!(draining(&world), None, "{case}");
        refuse(&mut world.memory);
        at(&mut world, 11 * WAIT + 2);
        // A new leader has tried nothing yet.
        let known = std::mem::replace(&mut world.memory, Memory { secret: SecretState::Asked, ..Memory::default() });
        at(&mut world, 12 * WAIT + 2);
        assert_eq!(draining(&world), None, "{case}");
        world.memory = Memory { not_started: None, ..known };
        at(&mut world, 12 * WAIT + 3);
        at(&mut world, 13 * WAIT + 2);
        assert_eq!(draining(&world), None, "{case}");
        let step = at(&mut world, 13 * WAIT + 3);
        assert_eq!(draining(&world).as_deref(), Some("PodsNotScheduled"), "{case}");
        assert_eq!(said(&step, &key).message, format!("leaving: {told}"));
        // The record says it to the next leader.
        world.memory = Memory { looked_empty: true, ..Memory::default() };
        world.claim("east", DesiredBurst { hosted_uid: Some("hosted-uid".into()), ..offer() });
        let rejection = said(&at(&mut world, 13 * WAIT + 4), &key).rejection.unwrap();
        assert_eq!(rejection.reason, RejectionReason::PodsNotScheduled, "{case}");
        let words = format!("no pod of it was on a node for 10 minutes ({told}): it was given back");
        assert!(rejection.message.starts_with(&words), "{}", rejection.message);
    }
    // What its root wants instead is no reason to end what it has.
    let mut world = World::new();
    world.host("east", &offer());
    world.claim("east", offer());
    world.memory.secret = SecretState::Asked;
    world.memory.failed(Some(Tried::Spec), &error(403, "exceeded quota: team"));
    at(&mut world, 0);
    at(&mut world, 10 * WAIT);
    assert_eq!(draining(&world), None);
    // Brokers that there are go on.
    let mut world = provisioned(offer(), Vec::new());
    unmade(&mut world.memory);
    at(&mut world, 0);
    at(&mut world, 10 * WAIT);
    assert_eq!(draining(&world), None);
}

/// The danger: the certificate leaves its cluster every two seconds, for ever, for an API server that stores no Secret.
#[test]
fn a_secret_that_is_refused_is_tried_later_each_time() {
    let mut memory = Memory::default();
    let mut pause = |answer: NoCertificate| {
        memory.fetched(Err(answer), Mono::ZERO);
        let SecretState::Missing { again, .. } = memory.secret else { panic!("{:?}", memory.secret) };
        again.saturating_since(Mono::ZERO).as_secs()
    };
    let refused = || NoCertificate::Refused("exceeded quota".into());
    let pauses: Vec<u64> = (0..10).map(|_| pause(refused())).collect();
    assert_eq!(pauses, [2, 4, 8, 16, 32, 60, 60, 60, 60, 60]);
    assert_eq!(pause(NoCertificate::NotHad("not yet".into())), 2, "a root may have it any moment");
    assert_eq!([pause(NoCertificate::NotHad("not yet".into())), pause(refused())], [2, 2]);
    memory.fetched(Ok(held()), Mono::ZERO);
    assert_eq!((&memory.secret, &memory.unkept), (&held(), &None));
}

/// The danger: a root that was moved or renamed is refused by its own burst that is about to go, and lands elsewhere.
#[test]
fn a_name_that_a_burst_of_the_same_peer_is_leaving_is_waited_for() {
    let mut world = World::new();
    world.host("east", &offer());
    let first = world.claim("east", offer());
    let mut renamed = of_another_root();
    renamed.root.name = "pond".into();
    let (second, third) = (world.claim("east", renamed), world.claim("south", of_another_root()));
    assert_eq!(reason(&world.step(), &second), Some(RejectionReason::NameTaken), "nothing ends");
    world.claims.insert(first, Wanted::Tombstone);
    for recorded in [false, true] {
        let step = world.step();
        assert_eq!((said(&step, &second).phase, reason(&step, &second)), (BurstPhase::Draining, None), "{recorded}");
        assert_eq!(reason(&step, &third), Some(RejectionReason::NameTaken), "{recorded}");
        world.hosted.as_mut().unwrap().status = status(&step);
    }
    world.wall += 100;
    assert_eq!(reason(&world.step(), &second), Some(RejectionReason::NameTaken), "others have room meanwhile");
    world.wall -= 100;
    world.memory.stuck = Some("MiniCluster flux/lake-burst-0".into());
    assert_eq!(reason(&world.step(), &second), Some(RejectionReason::NameTaken), "a person has to free the name");
}
