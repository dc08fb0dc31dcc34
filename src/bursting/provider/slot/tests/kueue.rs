//! Bursts whose Job waits in a queue of Kueue.

use serde_json::json;
use tributary_api::hosted_burst::{HostedQueue, QueueStanding};
use tributary_api::labels;
use tributary_api::minicluster::{MiniClusterStatus, Phase};
use tributary_api::node_group::{NewNodes, ProvisioningClass, ScaleUp};
use tributary_contract::Rejection;

use super::scale_up::{at, key};
use super::*;
use crate::provider::provisioning::{Answer, Request, Seen};

const WAIT: i64 = 600;

/// A burst of three brokers whose Job is suspended, with a limit or without one.
fn queued(wait: Option<i64>) -> World {
    let mut world = provisioned(offer(), Vec::new());
    let wait = wait.map(Lasting::of_seconds);
    world.hosted.as_mut().unwrap().spec.queue = Some(HostedQueue { name: "guests".into(), wait });
    let import = world.peers.get_mut("east").unwrap().import.as_mut().unwrap();
    (import.queue_name, import.queue_wait) = (Some("guests".into()), wait);
    in_phase(&mut world, Phase::Suspended, 0);
    world
}

fn in_phase(world: &mut World, phase: Phase, ready: i32) {
    let status = MiniClusterStatus { phase: Some(phase), ready: Some(ready), ..MiniClusterStatus::default() };
    world.mini_cluster.as_mut().unwrap().status = Some(status);
}

fn standing(world: &World) -> (Option<i64>, Option<i64>) {
    let status = world.hosted.as_ref().unwrap().status.as_ref().unwrap();
    let QueueStanding { waits_since, started } = status.queue.clone().unwrap();
    let seconds = |time: Option<Time>| time.map(|Time(at)| at.as_second() - 1_000_000);
    (seconds(waits_since), seconds(started))
}

#[test]
fn it_waits_for_kueue_as_long_as_it_takes_and_again_after_an_eviction() {
    let mut world = queued(None);
    let step = at(&mut world, 0);
    let answer = said(&step, &key());
    assert_eq!(answer.phase, BurstPhase::Queued);
    assert_eq!(
        answer.message,
        "its Job waits in queue guests of Kueue: 3 brokers start when the ClusterQueue there has room"
    );
    assert!(answer.phase.occupies(), "its room stays promised");
    assert!(step.notes.iter().any(|note| note.reason == "Queued"), "{:?}", step.notes);
    let step = at(&mut world, 1_000_000);
    assert_eq!((said(&step, &key()).phase, step.wake, standing(&world)), (BurstPhase::Queued, None, (Some(0), None)));
    assert!(step.notes.is_empty(), "{:?}", step.notes);

    in_phase(&mut world, Phase::Starting, 0);
    assert_eq!(said(&at(&mut world, 1_000_010), &key()).phase, BurstPhase::Provisioning);
    assert_eq!(standing(&world), (None, Some(1_000_010)));
    in_phase(&mut world, Phase::Running, 3);
    world.pods = (0..3).map(|index| pod(index, "n")).collect();
    assert_eq!(said(&at(&mut world, 1_000_020), &key()).phase, BurstPhase::Ready);
    // Kueue takes the place away for something else.
    in_phase(&mut world, Phase::Suspended, 0);
    world.pods.clear();
    let answer = said(&at(&mut world, 1_000_030), &key());
    assert_eq!((answer.phase, answer.ready_brokers, answer.rejection), (BurstPhase::Queued, 0, None));
    assert_eq!((standing(&world), draining(&world)), ((Some(1_000_030), Some(1_000_010)), None));
    // Its Job is made anew: it is in no queue until Kueue says so.
    for phase in [Phase::Pending, Phase::Restarting] {
        in_phase(&mut world, phase, 0);
        at(&mut world, 1_000_031);
        assert_eq!(standing(&world).0, Some(1_000_030), "{phase:?}");
    }
}

#[test]
fn how_long_a_burst_may_be_here_counts_from_its_start() {
    let mut world = queued(None);
    world.peers.get_mut("east").unwrap().import.as_mut().unwrap().max_duration = Some(Lasting::of_seconds(600));
    world.hosted.as_mut().unwrap().metadata.creation_timestamp = Some(Time(Timestamp::from_second(1_000_000).unwrap()));
    at(&mut world, 0);
    at(&mut world, 5_000);
    assert_eq!(draining(&world), None, "none of it is here");
    in_phase(&mut world, Phase::Running, 3);
    at(&mut world, 5_001);
    at(&mut world, 5_600);
    assert_eq!(draining(&world), None);
    at(&mut world, 5_601);
    assert_eq!(draining(&world).as_deref(), Some("TimeLimit"));
}

#[test]
fn what_kueue_does_not_start_in_time_is_given_back_and_not_taken_again_for_as_long() {
    let mut world = queued(Some(WAIT));
    at(&mut world, 0);
    let step = at(&mut world, 1);
    let answer = said(&step, &key());
    assert!(
        answer.message.ends_with("has room; if it has not started by 1970-01-12T13:56:40Z, it is given back"),
        "{}",
        answer.message
    );
    assert_eq!(step.wake, Some(Duration::from_secs(599)));
    at(&mut world, WAIT - 1);
    assert_eq!(draining(&world), None);
    let step = at(&mut world, WAIT);
    assert_eq!(draining(&world).as_deref(), Some("QueueTimedOut"));
    assert_eq!(said(&step, &key()).rejection, None, "nothing is refused while something of it is here");

    (world.mini_cluster, world.memory.looked_empty) = (None, true);
    world.claim("east", DesiredBurst { hosted_uid: Some("hosted-uid".into()), ..offer() });
    let answer = said(&at(&mut world, WAIT + 1), &key());
    let Rejection { reason: why, message } = answer.rejection.unwrap();
    assert_eq!((answer.phase, why), (BurstPhase::Rejected, RejectionReason::QueueTimedOut));
    assert!(
        message.starts_with("Kueue did not start its Job in time (import.queueWait of ClusterPeer east is 10m)")
            && message.contains("before 14:06:41 UTC"),
        "{message}"
    );
    // Its root has heard, and has nobody else.
    world.claim("east", offer());
    assert!(at(&mut world, WAIT + 2).changes.contains(&Change::DeleteHosted { uid: "hosted-uid".into() }));
    world.hosted = None;
    world.memory.looked_empty = true;
    world.listed.insert("east".into(), [key().1].into());
    let takes = |step: &SlotStep| {
        step.changes.iter().find_map(|change| match change {
            Change::Admit { hosted, .. } => Some(hosted.spec.queue.clone().map(|queue| queue.name)),
            _ => None,
        })
    };
    let step = at(&mut world, WAIT + 3);
    assert_eq!((takes(&step), reason(&step, &key())), (None, Some(RejectionReason::QueueTimedOut)));
    // A policy without a queue has nothing to wait for, even if nobody told that it is another.
    let mut other = World { memory: world.memory.clone(), listed: world.listed.clone(), ..World::new() };
    other.claim("east", offer());
    assert_eq!(takes(&at(&mut other, WAIT + 4)), Some(None));
    assert_eq!(takes(&at(&mut world, 2 * WAIT)), None);
    assert_eq!(takes(&at(&mut world, 2 * WAIT + 1)), Some(Some("guests".into())));
}

/// The danger: nodes are expected for pods that Kueue does not let anybody make.
#[test]
fn the_time_for_nodes_begins_when_kueue_has_started_it() {
    let asked = ProvisioningClass { provisioning_class_name: "a.b".into(), ..ProvisioningClass::default() };
    for provisioning_request in [None, Some(asked)] {
        let mut world = queued(None);
        let looked = Mono::from_start(Duration::ZERO);
        world.memory.request = Request::Found(Seen { count: 3, answer: Answer::Provisioned(String::new()), looked });
        let nodes = vec![NewNodes { group: "large".into(), count: 2 }];
        world.hosted.as_mut().unwrap().spec.scale_up =
            Some(ScaleUp { nodes, wait: Lasting::of_seconds(WAIT), provisioning_request });
        at(&mut world, 0);
        at(&mut world, 10 * WAIT);
        assert_eq!((draining(&world), said(&at(&mut world, 10 * WAIT), &key()).phase), (None, BurstPhase::Queued));
        in_phase(&mut world, Phase::Starting, 0);
        assert_eq!(said(&at(&mut world, 11 * WAIT), &key()).phase, BurstPhase::ScalingUp);
        at(&mut world, 12 * WAIT - 1);
        assert_eq!(draining(&world), None);
        at(&mut world, 12 * WAIT);
        assert_eq!(draining(&world).as_deref(), Some("ScaleUpTimedOut"));
    }
}

/// A run that was up has an end of its own: it must not begin anew elsewhere.
#[test]
fn a_whole_instance_that_was_up_waits_on() {
    for (started, goes) in [(true, false), (false, true)] {
        let mut world = queued(Some(WAIT));
        at(&mut world, 0);
        let hosted = world.hosted.as_mut().unwrap();
        hosted.spec.whole = true;
        let run = tributary_api::hosted_burst::BurstRun { started, ..Default::default() };
        hosted.status.as_mut().unwrap().run = Some(run);
        at(&mut world, WAIT);
        assert_eq!(draining(&world).is_some(), goes, "started: {started}");
    }
}

/// The danger: a peer chooses the queue, or a policy that changes moves what runs.
#[test]
fn the_queue_is_the_one_of_the_policy_that_it_was_admitted_by() {
    let mut world = World::new();
    let import = world.peers.get_mut("east").unwrap().import.as_mut().unwrap();
    (import.queue_name, import.queue_wait) = (Some("guests".into()), Some(Lasting::of_seconds(60)));
    world.claim("east", offer());
    let step = world.step();
    let [Change::Admit { hosted, .. }] = step.changes.as_slice() else { panic!("{:?}", step.changes) };
    let queue = HostedQueue { name: "guests".into(), wait: Some(Lasting::of_seconds(60)) };
    assert_eq!(hosted.spec.queue, Some(queue.clone()));
    // A root that says more than this version sends is refused.
    for wish in
        [json!({"jobLabels": {labels::KUEUE_QUEUE: "mine"}}), json!({"pod": {"labels": {labels::KUEUE_QUEUE: "mine"}}})]
    {
        let mut template = offer().template;
        template.as_object_mut().unwrap().extend(wish.as_object().unwrap().clone());
        world.claim("east", DesiredBurst { template, ..offer() });
        assert_eq!(reason(&world.step(), &key()), Some(RejectionReason::InvalidTemplate), "{wish}");
    }

    let mut world = queued(None);
    let import = world.peers.get_mut("east").unwrap().import.as_mut().unwrap();
    import.queue_name = Some("others".into());
    let step = at(&mut world, 0);
    let labels = step.changes.iter().find_map(|change| match change {
        Change::Materialize(materials) => Some(materials.mini_cluster.as_ref().unwrap().spec.job_labels.clone()),
        _ => None,
    });
    assert_eq!(labels, Some([(labels::KUEUE_QUEUE.to_owned(), "guests".to_owned())].into()));
}

/// The danger: nobody named a queue, Kueue has one for all Jobs of the namespace, and the burst is taken for one that runs.
#[test]
fn a_job_that_kueue_itself_puts_into_a_queue_waits_too() {
    use tributary_api::workload::reason::{JOB_HANDED_ON, JOB_QUEUED};
    use tributary_cluster::conditions::{Statement, merged};
    let told = |world: &mut World, reason: &str, message: &str| {
        in_phase(world, Phase::Suspended, 0);
        let said = Statement::fails(labels::condition::READY, reason, message);
        let status = world.mini_cluster.as_mut().unwrap().status.as_mut().unwrap();
        status.conditions = merged(&[], [said], None, Timestamp::UNIX_EPOCH);
    };
    let mut world = provisioned(offer(), Vec::new());
    world.peers.get_mut("east").unwrap().import.as_mut().unwrap().max_duration = Some(Lasting::of_seconds(600));
    world.hosted.as_mut().unwrap().metadata.creation_timestamp = Some(Time(Timestamp::from_second(1_000_000).unwrap()));
    told(&mut world, JOB_QUEUED, "its Job waits in queue default of Kueue");
    let answer = said(&at(&mut world, 0), &key());
    assert_eq!(
        (answer.phase, answer.message.as_str()),
        (
            BurstPhase::Queued,
            "its Job waits in queue default of Kueue: 3 brokers start when the ClusterQueue there has room"
        )
    );
    at(&mut world, 5_000);
    assert_eq!((standing(&world), draining(&world)), ((Some(0), None), None), "none of it is here");
    in_phase(&mut world, Phase::Running, 3);
    at(&mut world, 5_001);
    assert_eq!((standing(&world), draining(&world)), ((None, Some(5_001)), None));
    told(&mut world, JOB_HANDED_ON, "queue default hands Jobs on");
    let answer = said(&at(&mut world, 5_002), &key());
    assert_eq!((answer.phase, answer.message.as_str()), (BurstPhase::Queued, "queue default hands Jobs on"));
    at(&mut world, 5_002 + 600);
    let status = world.hosted.as_ref().unwrap().status.as_ref().unwrap();
    assert_eq!(status.draining_reason.as_deref(), Some("PodsNotScheduled"), "no queue ends that wait");
}

#[test]
fn what_somebody_else_suspends_says_so() {
    let mut world = provisioned(offer(), Vec::new());
    in_phase(&mut world, Phase::Suspended, 0);
    let answer = said(&at(&mut world, 0), &key());
    assert_eq!(answer.phase, BurstPhase::Provisioning);
    assert_eq!(answer.message, "its Job is suspended: somebody in this cluster holds it back");
    assert_eq!(world.hosted.as_ref().unwrap().status.as_ref().unwrap().queue, None);
}
