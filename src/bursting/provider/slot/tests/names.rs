//! Names that are somebody else's.

use serde_json::json;
use tributary_cluster::error::Taken;

use super::*;
use crate::provider::memory::Refused;

#[test]
fn a_burst_that_needs_a_name_of_somebody_else_is_given_back_with_the_reason() {
    let taken = Taken { object: "Secret flux/lake-burst-0-curve".into(), owner: "nobody".into() };
    let mut world = World::new();
    let key = world.claim("east", offer());
    world.host("east", &offer());
    assert_ne!(said(&world.step(), &key).phase, BurstPhase::Draining);
    world.memory.taken = Some(taken.clone());
    let step = world.step();
    let answer = said(&step, &key);
    assert_eq!((answer.phase, answer.message), (BurstPhase::Draining, format!("leaving: {}", taken.sentence())));
    let recorded = status(&step).unwrap();
    assert_eq!(recorded.draining_reason.as_deref(), Some("NameTaken"));
    // Another agent leads and has not met the object: what is recorded goes on, with its words.
    world.hosted.as_mut().unwrap().status = Some(recorded);
    world.memory.taken = None;
    let answer = said(&world.step(), &key);
    assert_eq!((answer.phase, answer.message), (BurstPhase::Draining, format!("leaving: {}", taken.sentence())));
}

/// The danger: a quota or a webhook refuses a part of it, and nobody hears why there are no brokers.
#[test]
fn what_the_api_server_refuses_of_a_burst_is_told() {
    for whole in [false, true] {
        let desired = DesiredBurst { whole, ..offer() };
        let mut world = World::new();
        let key = world.claim("east", desired.clone());
        world.host("east", &desired);
        world.memory.secret = held();
        let why = "failed to apply Service flux/lake-burst-0-lead: exceeded quota: team".into();
        world.memory.unmade = Some(Refused { why, lasts: true });
        let step = world.step();
        let answer = said(&step, &key);
        let told = "it cannot be made: failed to apply Service flux/lake-burst-0-lead: exceeded quota: team";
        assert_eq!((answer.phase, answer.message.as_str()), (BurstPhase::Provisioning, told), "{whole}");
        assert_eq!(answer.times.provisioned, None, "nothing is, as far as is known");
        let again = |change: &Change| matches!(change, Change::Materialize(_));
        assert!(step.changes.iter().any(again), "it is tried again");
        world.memory.unmade = None;
        assert_ne!(said(&world.step(), &key).message, told);
    }
}

#[test]
fn what_its_brokers_wait_for_a_name_of_somebody_else_ends_a_burst_too() {
    let mut world = World::new();
    let key = world.claim("east", offer());
    world.host("east", &offer());
    let ready = |reason: &str| -> MiniCluster {
        let owner = json!({"apiVersion": "tributary.dev/v1alpha1", "kind": "HostedBurst",
            "name": "lake-burst-0", "uid": "u", "controller": true});
        let condition = json!({"type": "Ready", "status": "False", "reason": reason, "message": "ConfigMap x",
            "lastTransitionTime": "2026-01-01T00:00:00Z"});
        serde_json::from_value(json!({
            "metadata": {"name": "lake-burst-0", "namespace": "flux", "uid": "m", "ownerReferences": [owner]},
            "spec": {"containers": []}, "status": {"conditions": [condition]},
        }))
        .unwrap()
    };
    // What an earlier one of this name has left behind goes by itself.
    for (reason, phase) in [("LeftOver", BurstPhase::Provisioning), ("NameTaken", BurstPhase::Draining)] {
        world.mini_cluster = Some(ready(reason));
        let answer = said(&world.step(), &key);
        assert_eq!(answer.phase, phase, "{reason}: {}", answer.message);
    }
}

/// The danger: somebody makes a MiniCluster of the name of a burst, and the root hears that nothing is left while its brokers run.
#[test]
fn a_name_that_somebody_else_has_taken_says_nothing_of_our_brokers() {
    let stranger =
        || serde_json::from_value(json!({"metadata": {"uid": "other"}, "spec": {"containers": []}})).unwrap();
    let deletes = |step: &SlotStep| step.changes.iter().any(|change| matches!(change, Change::DeleteHosted { .. }));
    let mut world = World::new();
    let key = world.claim("east", offer());
    world.host("east", &offer());
    world.hosted.as_mut().unwrap().status = Some(HostedBurstStatus {
        draining_since: Some(Time(Timestamp::from_second(1_000_000).unwrap())),
        draining_reason: Some("NameTaken".into()),
        ..HostedBurstStatus::default()
    });
    (world.mini_cluster, world.pods) = (Some(stranger()), vec![pod(0, "n")]);
    let step = world.step();
    assert!(step.changes.contains(&Change::LookLeft) && !deletes(&step), "{:?}", step.changes);
    assert_eq!(step.wake, Some(Duration::from_secs(1)));
    // The owner deletes the HostedBurst.
    world.hosted = None;
    for wanted in [Wanted::Burst(Arc::new(offer())), Wanted::Tombstone] {
        world.claims.insert(key.clone(), wanted);
        let step = world.step();
        assert_eq!((said(&step, &key).phase, &*step.changes), (BurstPhase::Draining, &[Change::LookLeft][..]));
    }
    // What the API server shows is the stranger's alone, and that runs on.
    world.memory.looked_empty = true;
    let step = world.step();
    assert_eq!((&step.answers[&key], &*step.changes), (&Answer::Nothing, &[][..]));
}
