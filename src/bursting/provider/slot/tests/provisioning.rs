//! Bursts whose nodes are asked for before there are pods.

use serde_json::json;
use tributary_api::node_group::{NewNodes, ProvisioningClass, ScaleUp};
use tributary_api::provisioning_request::{CLASS, CONSUME};
use tributary_contract::Rejection;

use super::scale_up::{at, key};
use super::*;
use crate::provider::provisioning::{Answer, Request, Seen};

const WAIT: i64 = 600;
const ATOMIC: &str = "best-effort-atomic-scale-up.autoscaling.x-k8s.io";

/// A burst of three brokers that brings nodes; all is there but these.
fn asking() -> World {
    let mut world = World::new();
    world.simulated = true;
    world.claim("east", offer());
    world.host("east", &offer());
    let provisioning_request =
        Some(ProvisioningClass { provisioning_class_name: ATOMIC.into(), ..ProvisioningClass::default() });
    world.hosted.as_mut().unwrap().spec.scale_up = Some(ScaleUp {
        nodes: vec![NewNodes { group: "large".into(), count: 3 }],
        wait: Lasting::of_seconds(WAIT),
        provisioning_request,
    });
    world.memory.saw(world.hosted.as_ref().unwrap());
    world.memory.secret = held();
    let import = world.peers.get_mut("east").unwrap().import.as_mut().unwrap();
    import.scale_up = serde_json::from_value(json!({"maxNodes": 3, "wait": "10m", "nodeGroups": [
        {"name": "large", "cpu": 64, "memory": "64Gi"}], "provisioningRequest": {"provisioningClassName": ATOMIC}}))
    .unwrap();
    world
}

fn recorded(world: &World) -> HostedBurstStatus {
    world.hosted.as_ref().unwrap().status.clone().unwrap_or_default()
}

/// What is done about the request.
fn done(step: &SlotStep) -> Vec<&Change> {
    let about = |change: &&Change| matches!(change, Change::LookRequest | Change::MakeRequest | Change::EndRequest);
    step.changes.iter().filter(about).collect()
}

/// The brokers that are made.
fn brokers(step: &SlotStep) -> Option<MiniCluster> {
    step.changes.iter().find_map(|change| match change {
        Change::Materialize(materials) => materials.mini_cluster.clone(),
        _ => None,
    })
}

/// It is looked at, at this second.
fn says(world: &mut World, secs: u64, answer: Answer) {
    let looked = Mono::from_start(Duration::from_secs(secs));
    world.memory.request = Request::Found(Seen { count: 3, answer, looked });
}

fn waits() -> Answer {
    Answer::Waits("an autoscaler has accepted it".into())
}

fn provisioned() -> Answer {
    Answer::Provisioned("Capacity is found in the cluster".into())
}

/// Its MiniCluster is there, and some of its pods are on nodes.
fn made(world: &mut World, on_nodes: u32) {
    let before = super::provisioned(offer(), Vec::new());
    world.mini_cluster = before.mini_cluster;
    world.mini_cluster.as_mut().unwrap().status = None;
    let homeless = |index| PodView { unschedulable: true, ..pod(index, "") };
    world.pods = (0..3).map(|index| if index < on_nodes { pod(index, "n") } else { homeless(index) }).collect();
}

#[test]
fn brokers_are_made_once_their_nodes_are_provisioned_and_bear_the_name_of_the_request() {
    let mut world = asking();
    // Nodes cost: they are asked for when nothing else is missing.
    world.memory.secret =
        SecretState::Missing { again: Mono::from_start(Duration::from_secs(99)), message: "no".into() };
    let step = world.step();
    assert_eq!((done(&step), brokers(&step)), (vec![], None));
    assert_eq!(said(&step, &key()).phase, BurstPhase::Accepted);
    world.memory.secret = held();

    let step = at(&mut world, 1);
    assert_eq!(done(&step), [&Change::LookRequest], "an agent before this one may have made it");
    assert_eq!((brokers(&step), said(&step, &key()).phase), (None, BurstPhase::ScalingUp));
    world.memory.request = Request::Absent;
    let step = at(&mut world, 2);
    assert_eq!(done(&step), [&Change::MakeRequest]);
    says(&mut world, 2, waits());
    let step = at(&mut world, 2);
    assert_eq!((done(&step), brokers(&step)), (vec![], None));
    assert!(step.wake <= Some(Duration::from_secs(1)), "{:?}", step.wake);
    assert_eq!(
        said(&step, &key()).message,
        "nodes for 3 pods are asked for before these are made (ProvisioningRequest flux/lake-burst-0-scale-up is Requested: an \
         autoscaler has accepted it); if not all have one by 1970-01-12T13:56:41Z, it is given back"
    );
    // It is looked at more seldom, the longer it takes.
    assert_eq!(done(&at(&mut world, 3)), [&Change::LookRequest]);
    says(&mut world, 300, waits());
    assert_eq!(done(&at(&mut world, 314)), Vec::<&Change>::new());
    assert_eq!(done(&at(&mut world, 315)), [&Change::LookRequest]);

    says(&mut world, 316, provisioned());
    let step = at(&mut world, 316);
    let pod = brokers(&step).unwrap().spec.pod;
    let expected = [(CLASS, ATOMIC), (CONSUME, "lake-burst-0-scale-up")];
    assert_eq!(pod.annotations, expected.map(|(key, value)| (key.to_owned(), value.to_owned())).into());
    // The pods wait for nodes that were ordered; whatever the request says, they go on waiting for them.
    made(&mut world, 2);
    says(&mut world, 320, Answer::Expired("Capacity reservation time is expired".into()));
    let step = at(&mut world, 320);
    assert!(brokers(&step).is_some());
    let answer = said(&step, &key());
    assert_eq!(answer.phase, BurstPhase::ScalingUp);
    assert_eq!(
        answer.message,
        "2 of 3 pods are on nodes; those of index 2 wait for an autoscaler, which may add up to 3 nodes (ProvisioningRequest \
         flux/lake-burst-0-scale-up is BookingExpired: Capacity reservation time is expired); if not all have one by \
         1970-01-12T13:56:41Z, it is given back"
    );
    // It has what it was for.
    made(&mut world, 3);
    let step = at(&mut world, 400);
    assert_eq!(done(&step), Vec::<&Change>::new());
    assert!(recorded(&world).times.unwrap().scheduled.is_some());
    // Nobody is given back for what becomes of it later.
    says(&mut world, 500, Answer::Ended { word: "CapacityRevoked", message: "Revoked".into() });
    at(&mut world, WAIT + 9);
    assert_eq!(recorded(&world).draining_since, None);
}

#[test]
fn it_is_given_back_in_the_words_of_the_request_and_refused_once_that_is_gone() {
    let no = || "CA could not find requested capacity (CapacityIsNotFound)".to_owned();
    let expired = || Answer::Expired(no());
    type Case = (&'static str, Request, Option<u32>, bool, &'static str);
    let found = |answer| Request::Found(Seen { count: 3, answer, looked: Mono::from_start(Duration::from_secs(9)) });
    let ended = |word| found(Answer::Ended { word, message: no() });
    let table: [Case; 7] = [
        ("failed", ended("Failed"), None, true, "Failed"),
        ("revoked before there are pods", ended("CapacityRevoked"), None, true, "CapacityRevoked"),
        ("revoked while pods wait", ended("CapacityRevoked"), Some(1), true, "CapacityRevoked"),
        ("expired before there are pods", found(expired()), None, true, "BookingExpired"),
        ("expired while pods wait", found(expired()), Some(1), false, ""),
        ("refused by the API server", Request::Refused(no()), None, true, "Refused"),
        ("waits", found(waits()), None, false, ""),
    ];
    for (case, request, pods, goes, word) in table {
        let mut world = asking();
        at(&mut world, 8);
        if let Some(pods) = pods {
            made(&mut world, pods);
        }
        world.memory.request = request;
        let step = at(&mut world, 9);
        let status = recorded(&world);
        assert_eq!(status.draining_since.is_some(), goes, "{case}");
        if !goes {
            continue;
        }
        assert_eq!(step.changes.len(), 1, "why it ends is stored before anything of it goes: {case}");
        assert_eq!(status.draining_reason.as_deref(), Some("ScaleUpFailed"), "{case}");
        let words = format!(
            "leaving: ProvisioningRequest flux/lake-burst-0-scale-up is {word}: CA could not find requested capacity \
             (CapacityIsNotFound): it is given back"
        );
        assert_eq!(
            (status.message.as_str(), status.provisioning.unwrap().outcome.as_str()),
            (words.as_str(), word),
            "{case}"
        );
        assert!(step.notes.iter().any(|note| note.warning && note.reason == "ScaleUpFailed"), "{case}");
        // Another agent goes on, and says the same.
        world.memory = Memory { secret: held(), ..Memory::default() };
        world.claim("east", DesiredBurst { hosted_uid: Some("hosted-uid".into()), ..offer() });
        let step = at(&mut world, 10);
        assert_eq!((done(&step), recorded(&world).message), (vec![&Change::EndRequest], words), "{case}");
        (world.mini_cluster, world.pods, world.memory.looked_empty) = (None, Vec::new(), true);
        let step = at(&mut world, 11);
        assert_eq!((done(&step), said(&step, &key()).rejection), (vec![&Change::EndRequest], None), "{case}");
        world.memory.request = Request::Gone;
        let Rejection { reason, message } = said(&at(&mut world, 12), &key()).rejection.expect(case);
        assert_eq!(reason, RejectionReason::ScaleUpFailed, "{case}");
        let words = format!(
            "no nodes are provisioned for it; ProvisioningRequest flux/lake-burst-0-scale-up is {word}: CA could not find requested \
             capacity (CapacityIsNotFound): it was given back. No nodes are brought for it before 13:56:52 UTC"
        );
        assert!(message.starts_with(&words), "{case}: {message}");
    }
}

#[test]
fn all_of_it_together_takes_no_longer_than_it_may() {
    // From the moment when nodes are asked for, whether there are pods by then or not.
    for pods in [None, Some(2)] {
        let mut world = asking();
        at(&mut world, 10);
        says(&mut world, 12, waits());
        if let Some(pods) = pods {
            made(&mut world, pods);
            says(&mut world, 12, provisioned());
        }
        at(&mut world, WAIT + 9);
        assert_eq!(recorded(&world).draining_since, None, "{pods:?}");
        // An agent that begins meanwhile counts on.
        world.memory = Memory { secret: held(), ..Memory::default() };
        at(&mut world, WAIT + 10);
        assert_eq!(recorded(&world).draining_reason.as_deref(), Some("ScaleUpTimedOut"), "{pods:?}");
    }
}

#[test]
fn another_size_is_asked_for_anew_before_there_are_pods() {
    let mut world = asking();
    at(&mut world, 0);
    says(&mut world, 1, provisioned());
    world.claim("east", DesiredBurst { size: 2, ..offer() });
    let step = at(&mut world, 1);
    assert_eq!((done(&step), brokers(&step)), (vec![&Change::EndRequest], None), "what it asks for cannot be changed");
    world.memory.request = Request::Gone;
    assert_eq!(done(&at(&mut world, 2)), [&Change::MakeRequest]);
    // Nobody asks for less when there are pods.
    world.claim("east", offer());
    made(&mut world, 1);
    says(&mut world, 3, provisioned());
    world.claim("east", DesiredBurst { size: 2, ..offer() });
    assert_eq!(done(&at(&mut world, 3)), Vec::<&Change>::new());
}

#[test]
fn what_was_known_of_the_request_of_another_burst_is_forgotten() {
    let mut world = asking();
    at(&mut world, 0);
    says(&mut world, 0, provisioned());
    let hosted = world.hosted.as_mut().unwrap();
    (hosted.metadata.uid, hosted.status) = (Some("another-uid".into()), None);
    let step = at(&mut world, 1);
    assert_eq!((done(&step), brokers(&step)), (vec![&Change::LookRequest], None));
}

#[test]
fn a_pod_that_is_made_later_waits_like_any_other() {
    let mut world = asking();
    says(&mut world, 1, provisioned());
    made(&mut world, 2);
    world.pods.iter_mut().for_each(|pod| pod.consumes = true);
    let unbooked = |step: &SlotStep| {
        step.changes.iter().find_map(|change| match change {
            Change::Unbook { pods } => Some(pods.clone()),
            _ => None,
        })
    };
    assert_eq!(unbooked(&at(&mut world, 1)), None, "its nodes are about to come");
    made(&mut world, 3);
    at(&mut world, 2);
    assert!(recorded(&world).times.unwrap().scheduled.is_some());
    made(&mut world, 2);
    world.pods.iter_mut().for_each(|pod| pod.consumes = true);
    let last = world.pods.last().unwrap().name.clone();
    assert_eq!(unbooked(&at(&mut world, 3)), Some(vec![last]), "nobody adds nodes for it as it is");
    world.pods.last_mut().unwrap().consumes = false;
    assert_eq!(unbooked(&at(&mut world, 4)), None);
}
