//! Bursts that bring their nodes.

use serde_json::json;
use tributary_api::minicluster::MiniClusterStatus;
use tributary_api::node_group::{NewNodes, ScaleUp};
use tributary_contract::Rejection;

use super::*;

const WAIT: i64 = 600;

/// A burst of three brokers, of which two bring a node each; its MiniCluster is there.
fn scaling(pods: Vec<PodView>) -> World {
    let mut world = provisioned(offer(), pods);
    world.hosted.as_mut().unwrap().spec.scale_up = Some(ScaleUp {
        nodes: vec![NewNodes { group: "large".into(), count: 2 }],
        wait: Lasting::of_seconds(WAIT),
        ..ScaleUp::default()
    });
    let none = MiniClusterStatus { ready: Some(0), ..MiniClusterStatus::default() };
    world.mini_cluster.as_mut().unwrap().status = Some(none);
    let import = world.peers.get_mut("east").unwrap().import.as_mut().unwrap();
    import.scale_up = serde_json::from_value(json!({"maxNodes": 3, "wait": "10m", "nodeGroups": [
        {"name": "large", "cpu": 64, "memory": "64Gi"}]}))
    .unwrap();
    world
}

pub(super) fn key() -> ClaimKey {
    ("east".into(), "burst-uid".into())
}

/// Takes a step at this second, in which its Secret was looked at, and stores the status.
pub(super) fn at(world: &mut World, secs: i64) -> SlotStep {
    (world.wall, world.secs) = (secs, secs.unsigned_abs());
    if let SecretState::Held { looked, .. } = &mut world.memory.secret {
        *looked = Some(Mono::from_start(Duration::from_secs(world.secs)));
    }
    let step = world.step();
    if let (Some(hosted), Some(status)) = (&mut world.hosted, status(&step)) {
        hosted.status = Some(status);
    }
    step
}

fn homeless(index: u32) -> PodView {
    PodView { unschedulable: true, ..pod(index, "") }
}

#[test]
fn it_scales_up_until_all_its_pods_are_on_nodes_and_never_again() {
    let mut world = scaling(vec![pod(0, "n"), homeless(1)]);
    let step = at(&mut world, 0);
    let answer = said(&step, &key());
    assert_eq!(answer.phase, BurstPhase::ScalingUp);
    assert_eq!(
        answer.message,
        "1 of 3 pods are on nodes; those of index 1-2 wait for an autoscaler, which may add up to 2 nodes",
    );
    // Since when it waits is on record by now.
    let step = at(&mut world, 1);
    let answer = said(&step, &key());
    assert!(
        answer.message.ends_with("2 nodes; if not all have one by 1970-01-12T13:56:40Z, it is given back"),
        "{}",
        answer.message
    );
    // No pod of its own makes room for its gateway meanwhile.
    world.pods = vec![homeless(0), pod(1, "n"), pod(2, "other")];
    let deletes = |step: &SlotStep| step.changes.iter().any(|change| matches!(change, Change::DeletePod(_)));
    at(&mut world, 2);
    assert!(!deletes(&at(&mut world, 99)));

    world.pods = vec![pod(0, "new"), pod(1, "n"), PodView { running: false, ..pod(2, "other") }];
    let step = at(&mut world, 100);
    let answer = said(&step, &key());
    assert_eq!(answer.phase, BurstPhase::Provisioning, "its images are pulled");
    assert_eq!(answer.times.scheduled.map(|at| at.as_second()), Some(1_000_100));
    // A node is lost, and its pod waits for another: as in any other burst.
    world.pods = vec![homeless(0), pod(1, "n"), pod(2, "other")];
    let answer = said(&at(&mut world, WAIT + 1), &key());
    assert_eq!(answer.phase, BurstPhase::Provisioning);
    at(&mut world, WAIT + 2);
    assert!(deletes(&at(&mut world, WAIT + 99)), "and its gateway gets a place");
}

/// The danger: what has ended, or runs, is thrown out because nobody saw that its pods were on nodes.
#[test]
fn what_was_on_nodes_has_had_them() {
    let ended = |index| PodView { running: false, finished: true, ..pod(index, "n") };
    for (case, pods, ready, is_up) in [
        ("all have ended", vec![ended(0), ended(1), ended(2)], 0, true),
        ("one is replaced", vec![ended(0), homeless(0), pod(1, "n"), pod(2, "n")], 0, false),
        ("one leaves", vec![PodView { terminating: true, ..pod(0, "n") }, pod(1, "n"), pod(2, "n")], 0, false),
        ("no pod is seen, and all are ready", Vec::new(), 3, true),
        ("none is made", Vec::new(), 0, false),
    ] {
        let mut world = scaling(pods);
        world.mini_cluster.as_mut().unwrap().status.as_mut().unwrap().ready = Some(ready);
        at(&mut world, 0);
        at(&mut world, WAIT);
        let drains = world.hosted.as_ref().unwrap().status.as_ref().unwrap().draining_since.is_some();
        assert_eq!(!drains, is_up, "{case}");
    }
}

/// A run that was up has an end of its own: it must not begin anew elsewhere.
#[test]
fn a_whole_instance_that_was_up_is_not_given_back() {
    for (started, goes) in [(true, false), (false, true)] {
        let mut world = scaling(Vec::new());
        at(&mut world, 0);
        let hosted = world.hosted.as_mut().unwrap();
        hosted.spec.whole = true;
        let run = tributary_api::hosted_burst::BurstRun { started, ..Default::default() };
        hosted.status.as_mut().unwrap().run = Some(run);
        at(&mut world, WAIT);
        let drains = world.hosted.as_ref().unwrap().status.as_ref().unwrap().draining_since.is_some();
        assert_eq!(drains, goes, "was up: {started}");
    }
}

/// A burst whose last pod got no node in time, and is gone.
fn given_back() -> World {
    let mut world = scaling(vec![pod(0, "n"), pod(1, "n"), homeless(2)]);
    at(&mut world, 0);
    assert_eq!(at(&mut world, WAIT - 1).wake, Some(Duration::from_secs(1)));
    assert!(world.hosted.as_ref().unwrap().status.as_ref().unwrap().draining_since.is_none(), "not before");
    let step = at(&mut world, WAIT);
    let [Change::Status(status)] = step.changes.as_slice() else { panic!("{:?}", step.changes) };
    assert_eq!(status.draining_reason.as_deref(), Some("ScaleUpTimedOut"));
    assert_eq!(said(&step, &key()).phase, BurstPhase::Draining);
    assert!(step.notes.iter().any(|note| note.warning && note.reason == "ScaleUpTimedOut"));
    // The last node comes a moment too late.
    world.pods = vec![pod(0, "n"), pod(1, "n"), pod(2, "new")];
    let step = at(&mut world, WAIT + 1);
    assert!(step.changes.contains(&Change::DeleteMiniCluster { uid: "mc-uid".into() }));
    assert_eq!(said(&step, &key()).rejection, None, "its brokers may still run");
    (world.mini_cluster, world.pods) = (None, Vec::new());
    assert!(at(&mut world, WAIT + 2).changes.contains(&Change::LookLeft));
    world.memory.looked_empty = true;
    let step = at(&mut world, WAIT + 3);
    assert!(step.changes.contains(&Change::DeleteHosted { uid: "hosted-uid".into() }));
    assert_eq!(said(&step, &key()).rejection, None, "nor before it is gone");
    world.hosted = None;
    world
}

#[test]
fn who_gets_no_nodes_in_time_is_given_back_and_refused_once_nothing_is_left() {
    let mut world = given_back();
    let seen = DesiredBurst { hosted_uid: Some("hosted-uid".into()), ..offer() };
    world.claim("east", seen);
    // Something of it is there after all.
    world.memory.looked_empty = false;
    assert_eq!(said(&at(&mut world, WAIT + 4), &key()).phase, BurstPhase::Draining);
    world.memory.looked_empty = true;
    let step = at(&mut world, WAIT + 5);
    let answer = said(&step, &key());
    let Rejection { reason, message } = answer.rejection.unwrap();
    assert_eq!((answer.phase, reason), (BurstPhase::Rejected, RejectionReason::ScaleUpTimedOut));
    assert!(
        message.starts_with("not all of its pods got nodes in time (import.scaleUp.wait of ClusterPeer east is 10m)")
    );
    assert!(message.contains("before 14:06:45 UTC"), "{message}");
}

#[test]
fn it_is_not_taken_again_for_as_long_unless_there_is_room_or_something_else_is_offered() {
    let takes = |step: &SlotStep| {
        step.changes.iter().find_map(|change| match change {
            Change::Admit { hosted, .. } => Some(hosted.spec.scale_up.is_some()),
            _ => None,
        })
    };
    let large = DesiredBurst { size: 3, ..of_cores(40) };
    let returned = || {
        let mut world = given_back();
        world.memory.looked_empty = true;
        world.claim("east", DesiredBurst { hosted_uid: Some("hosted-uid".into()), ..large.clone() });
        at(&mut world, WAIT + 4);
        // The root has heard of it, and has nobody else.
        world.listed.insert("east".into(), [key().1].into());
        world.claim("east", large.clone());
        world
    };
    let mut world = returned();
    let step = at(&mut world, WAIT + 5);
    assert_eq!((takes(&step), reason(&step, &key())), (None, Some(RejectionReason::ScaleUpTimedOut)));
    assert_eq!(step.wake, Some(Duration::from_secs(599)));
    // It had gone to another peer for a while.
    world.claims.insert(key(), Wanted::Tombstone);
    at(&mut world, WAIT + 6);
    world.claim("east", large.clone());
    assert_eq!(takes(&at(&mut world, WAIT + 7)), None);
    assert_eq!(takes(&at(&mut world, 2 * WAIT + 3)), None);
    assert_eq!(takes(&at(&mut world, 2 * WAIT + 4)), Some(true));
    assert!(world.memory.returned.is_empty());

    // An explicit retry, and another policy.
    let mut world = returned();
    world.claim("east", DesiredBurst { offer: "again".into(), ..large.clone() });
    assert_eq!(takes(&at(&mut world, WAIT + 5)), Some(true));
    let mut world = returned();
    world.peers.get_mut("east").unwrap().generation = Some(7);
    assert_eq!(takes(&at(&mut world, WAIT + 5)), Some(true));
    // Room on nodes that are there.
    let mut world = returned();
    world.claim("east", DesiredBurst { hosted_uid: None, ..of_cores(2) });
    assert_eq!(takes(&at(&mut world, WAIT + 5)), Some(false));
}

/// An offer of brokers with so many cores each.
fn of_cores(cores: u32) -> DesiredBurst {
    let slots = RankMap::parse_canonical(&offer().rank_map).unwrap().slots().to_vec();
    let slots = slots.into_iter().map(|slot| match slot.name == offer().slot {
        true => slot.with_resources(cores, 0),
        false => slot,
    });
    let map = RankMap::new(slots.collect()).unwrap();
    DesiredBurst { cores, rank_map: map.to_canonical(), rank_map_digest: map.digest().to_string(), ..offer() }
}

/// The danger: a leader that has just begun knows nothing of why a burst left, and takes it for an eviction.
#[test]
fn a_burst_that_was_being_given_back_goes_on_leaving_under_the_next_leader() {
    let mut world = scaling(vec![homeless(0)]);
    at(&mut world, 0);
    at(&mut world, WAIT);
    world.memory = Memory::default();
    (world.mini_cluster, world.pods, world.memory.looked_empty) = (None, Vec::new(), true);
    world.claim("east", DesiredBurst { hosted_uid: Some("hosted-uid".into()), ..offer() });
    let step = at(&mut world, WAIT + 1);
    assert_eq!(reason(&step, &key()), Some(RejectionReason::ScaleUpTimedOut));
    let gone = Change::DeleteHosted { uid: "hosted-uid".into() };
    assert!(!step.changes.contains(&gone), "nobody could tell by then why it ended");
    world.claim("east", offer());
    assert!(at(&mut world, WAIT + 2).changes.contains(&gone));
}

/// The root's word, its lease and the policy end it as they end any other.
#[test]
fn it_leaves_for_the_same_reasons_as_others() {
    let ends = |world: &mut World| {
        at(world, 1);
        world.hosted.as_ref().unwrap().status.as_ref().unwrap().draining_reason.clone()
    };
    let begun = || {
        let mut world = scaling(vec![homeless(0)]);
        at(&mut world, 0);
        world
    };
    let mut world = begun();
    world.claims.insert(key(), Wanted::Tombstone);
    assert_eq!(ends(&mut world).as_deref(), Some("Released"));
    let mut world = begun();
    world.peers.get_mut("east").unwrap().draining = true;
    assert_eq!(ends(&mut world).as_deref(), Some("PeerDrained"));
    let mut world = begun();
    (world.away, world.away_for) = (true, 1);
    world.hosted.as_mut().unwrap().status.as_mut().unwrap().suspect_since =
        Some(Time(Timestamp::from_second(1_000_000 - 300).unwrap()));
    assert_eq!(ends(&mut world).as_deref(), Some("LeaseExpired"));
    // What it may bring was admitted: a policy that allows less throws nobody out.
    let mut world = begun();
    world.peers.get_mut("east").unwrap().import.as_mut().unwrap().scale_up = None;
    assert_eq!(ends(&mut world), None);
    // It shrinks to what is there.
    let mut world = begun();
    world.pods = vec![pod(0, "n")];
    world.claim("east", DesiredBurst { size: 1, ..offer() });
    at(&mut world, 1);
    assert!(world.hosted.as_ref().unwrap().status.as_ref().unwrap().times.as_ref().unwrap().scheduled.is_some());
}
