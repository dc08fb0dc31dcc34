//! Bursts of which no pod starts.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use serde_json::json;
use tributary_api::labels::reason;
use tributary_api::minicluster::{MiniClusterStatus, Phase};
use tributary_api::node_group::{NewNodes, ScaleUp};
use tributary_contract::Rejection;

use super::scale_up::{at, key};
use super::*;

/// Ten minutes.
const WAIT: i64 = 600;

fn homeless(index: u32) -> PodView {
    PodView { unschedulable: true, running: false, node: None, ..pod(index, "n") }
}

/// An offer of a root whose lead broker is reached.
fn led() -> DesiredBurst {
    DesiredBurst { lead: Some(LeadAddress { address: "192.0.2.1".into(), port: 30050 }), ..offer() }
}

/// A burst of three brokers whose MiniCluster is there, with `ready` of them online.
fn burst(pods: Vec<PodView>, ready: i32) -> World {
    let mut world = provisioned(led(), pods);
    let status = MiniClusterStatus { phase: Some(Phase::Starting), ready: Some(ready), ..MiniClusterStatus::default() };
    world.mini_cluster.as_mut().unwrap().status = Some(status);
    world
}

fn status(world: &mut World) -> &mut MiniClusterStatus {
    world.mini_cluster.as_mut().unwrap().status.as_mut().unwrap()
}

/// The danger: it stays for ever where others took its room, and its root believes that its brokers come.
#[test]
fn one_without_a_pod_on_any_node_is_given_back_and_not_taken_again_for_as_long() {
    let mut world = burst(vec![homeless(0), homeless(1), homeless(2)], 0);
    let step = at(&mut world, 0);
    let answer = said(&step, &key());
    assert_eq!(answer.phase, BurstPhase::Provisioning);
    assert_eq!(
        answer.message,
        "the scheduler finds no node for 3 of 3 pods (index 0-2): others have taken the room, or no node fits; if none \
         starts by 1970-01-12T13:56:40Z, it is given back"
    );
    // Somebody ends, and somebody else is faster again: it counts anew.
    world.pods = vec![pod(0, "n"), homeless(1), homeless(2)];
    let answer = said(&at(&mut world, 500), &key());
    assert_eq!(
        answer.message,
        "the scheduler finds no node for 2 of 3 pods (index 1-2): others have taken the room, or no node fits"
    );
    world.pods = vec![homeless(0), homeless(1), homeless(2)];
    at(&mut world, 501);
    at(&mut world, 500 + WAIT);
    assert_eq!(draining(&world), None);
    let step = at(&mut world, 501 + WAIT);
    assert_eq!(draining(&world).as_deref(), Some("PodsNotScheduled"));
    assert!(step.notes.iter().any(|note| note.warning && note.reason == "PodsNotScheduled"), "{:?}", step.notes);
    assert_eq!(said(&step, &key()).rejection, None, "nothing is refused while something of it is here");

    (world.mini_cluster, world.memory.looked_empty) = (None, true);
    world.pods.clear();
    world.claim("east", DesiredBurst { hosted_uid: Some("hosted-uid".into()), ..led() });
    let answer = said(&at(&mut world, 502 + WAIT), &key());
    let Rejection { reason: why, message } = answer.rejection.unwrap();
    assert_eq!((answer.phase, why), (BurstPhase::Rejected, RejectionReason::PodsNotScheduled));
    assert_eq!(
        message,
        "no pod of it was on a node for 10 minutes: it was given back, and is not taken again before 14:15:02 UTC"
    );
    // Its root has heard, and has nobody else.
    world.claim("east", led());
    assert!(at(&mut world, 503 + WAIT).changes.contains(&Change::DeleteHosted { uid: "hosted-uid".into() }));
    world.hosted = None;
    world.memory.looked_empty = true;
    world.listed.insert("east".into(), [key().1].into());
    let takes = |step: &SlotStep| step.changes.iter().any(|change| matches!(change, Change::Admit { .. }));
    let step = at(&mut world, 504 + WAIT);
    assert_eq!((takes(&step), reason_of(&step)), (false, Some(RejectionReason::PodsNotScheduled)));
    assert!(takes(&at(&mut world, 502 + 2 * WAIT)), "later, it is tried again");
}

fn reason_of(step: &SlotStep) -> Option<RejectionReason> {
    super::reason(step, &key())
}

/// The danger: nodes that cannot pull its image keep it for ever, and its root believes that its brokers come.
#[test]
fn one_whose_pods_do_not_start_is_given_back_with_the_words_of_the_kubelet() {
    let why = "ImagePullBackOff: container lake, image r/lake:arm64";
    let fails = |index: u32| PodView { running: false, start_failure: Some(why.into()), ..pod(index, "n") };
    let all = || vec![fails(0), fails(1), fails(2)];
    let mut world = burst(all(), 0);
    let answer = said(&at(&mut world, 0), &key());
    let told = format!("3 of 3 pods (index 0-2) do not start: {why}");
    assert_eq!(answer.message, format!("{told}; if none starts by 1970-01-12T13:56:40Z, it is given back"));
    // One that starts has time to join.
    world.pods = vec![PodView { running: false, ..pod(0, "n") }, fails(1), homeless(2)];
    let answer = said(&at(&mut world, 500), &key());
    assert_eq!(
        answer.message,
        format!(
            "the scheduler finds no node for 1 of 3 pods (index 2): others have taken the room, or no node fits; 1 of 3 pods \
             (index 1) do not start: {why}"
        )
    );
    world.pods = all();
    at(&mut world, 501);
    at(&mut world, 500 + WAIT);
    assert_eq!(draining(&world), None);
    at(&mut world, 501 + WAIT);
    assert_eq!(draining(&world).as_deref(), Some("PodsNotStarted"));
    // They go one by one, and what they lacked with them.
    world.pods[0].terminating = true;
    at(&mut world, 501 + WAIT);
    assert_eq!(world.hosted.as_ref().unwrap().status.as_ref().unwrap().message, format!("leaving: {told}"));
    (world.mini_cluster, world.memory.looked_empty) = (None, true);
    world.pods.clear();
    world.claim("east", DesiredBurst { hosted_uid: Some("hosted-uid".into()), ..led() });
    let Rejection { reason: word, message } = said(&at(&mut world, 502 + WAIT), &key()).rejection.unwrap();
    assert_eq!(word, RejectionReason::PodsNotStarted);
    assert_eq!(
        message,
        format!(
            "no pod of it started for 10 minutes ({told}): it was given back, and is not taken again before 14:15:02 UTC"
        )
    );
}

/// The danger: brokers that run, or a wait that has a limit of its own, are ended by this one.
#[test]
fn what_runs_or_waits_for_something_else_is_kept() {
    let leaving = PodView { terminating: true, ..pod(0, "n") };
    let all = || vec![homeless(0), homeless(1), homeless(2)];
    for (case, mut world) in [
        ("one is on a node", burst(vec![pod(0, "n"), homeless(1), homeless(2)], 0)),
        ("one leaves a node", burst(vec![leaving, homeless(1), homeless(2)], 0)),
        ("brokers are online, by their MiniCluster", burst(Vec::new(), 1)),
    ] {
        at(&mut world, 0);
        at(&mut world, 100 * WAIT);
        assert_eq!(draining(&world), None, "{case}");
    }
    for phase in [Phase::Suspended, Phase::Succeeded, Phase::Failed] {
        let mut world = burst(all(), 0);
        status(&mut world).phase = Some(phase);
        at(&mut world, 0);
        at(&mut world, 100 * WAIT);
        assert_eq!(draining(&world), None, "{phase:?}");
    }
    // One that brings nodes has as long as these may take.
    let mut world = burst(all(), 0);
    let hosted = world.hosted.as_mut().unwrap();
    hosted.spec.scale_up = Some(ScaleUp {
        nodes: vec![NewNodes { group: "large".into(), count: 3 }],
        wait: Lasting::of_seconds(3 * WAIT),
        ..ScaleUp::default()
    });
    hosted.status.get_or_insert_default().times.get_or_insert_default().scheduled =
        Some(MicroTime(Timestamp::from_second(999_000).unwrap()));
    at(&mut world, 0);
    at(&mut world, 3 * WAIT - 1);
    assert_eq!(draining(&world), None, "its nodes came once, and are replaced");
    at(&mut world, 3 * WAIT);
    assert_eq!(draining(&world).as_deref(), Some("PodsNotScheduled"));
}

/// The danger: a quota refuses its pods, and neither side is told.
#[test]
fn pods_that_are_not_made_are_told_in_the_words_of_their_mini_cluster() {
    let mut world = burst(Vec::new(), 0);
    let said_there = "Kubernetes has not made 3 of the 3 pods of this cluster";
    status(&mut world).conditions = serde_json::from_value(json!([{"type": "Ready", "status": "False",
        "reason": reason::PODS_NOT_MADE, "message": said_there, "lastTransitionTime": "2026-01-01T00:00:00Z"}]))
    .unwrap();
    let answer = said(&at(&mut world, 0), &key());
    assert!(answer.message.starts_with(&format!("{said_there}; if none starts by ")), "{}", answer.message);
    at(&mut world, WAIT);
    assert_eq!(draining(&world).as_deref(), Some("PodsNotScheduled"));
}
