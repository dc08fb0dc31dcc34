//! Images that are pulled ahead.

use tributary_api::hosted_burst::WarmUp;
use tributary_api::labels::condition::WARM;
use tributary_cluster::conditions;

use super::*;
use crate::provider::warm::Made;

fn warm() -> DesiredBurst {
    DesiredBurst { warm: true, ..offer() }
}

/// A burst whose root wants that, before its certificate is here.
fn admitted() -> World {
    let mut world = World::new();
    world.host("east", &warm());
    world.claim("east", warm());
    world
}

/// Takes a step and stores what it says; what it changes for the Job, and what is said of it.
fn step(world: &mut World) -> (Vec<Change>, WarmUp) {
    let step = world.step();
    if let Some(status) = status(&step) {
        world.hosted.as_mut().unwrap().status = Some(status);
    }
    let ours = |change: &Change| matches!(change, Change::WarmUp { .. } | Change::EndWarmUp);
    let status = world.hosted.as_ref().unwrap().status.clone().unwrap();
    (step.changes.into_iter().filter(ours).collect(), status.warm.unwrap_or_default())
}

fn warmer(node: &str, pulled: bool) -> PodView {
    PodView { name: format!("w-{node}"), node: Some(node.to_owned()), pulled, ..PodView::default() }
}

fn said(world: &World) -> (String, String) {
    let status = world.hosted.as_ref().unwrap().status.as_ref().unwrap();
    let found = conditions::find(&status.conditions, WARM).unwrap();
    (found.status.clone(), found.reason.clone())
}

#[test]
fn they_are_pulled_from_the_admission_on_and_the_job_goes_when_they_are_there() {
    let mut world = admitted();
    let (changes, begun) = step(&mut world);
    // Two nodes for three brokers.
    assert_eq!((changes.as_slice(), begun.wanted), (&[Change::WarmUp { nodes: 2 }][..], 2));
    assert_eq!(said(&world), ("Unknown".into(), "Pulling".into()));
    assert_eq!(step(&mut world).0, [Change::WarmUp { nodes: 2 }], "until it is known that it was made");
    world.memory.warm_up = Made::Yes("job-uid".into());
    world.warmers = vec![warmer("n", true), warmer("other", false)];
    let (changes, under_way) = step(&mut world);
    assert_eq!((changes, under_way.pulled, under_way.ended), (vec![], 1, None));
    world.warmers[1].pulled = true;
    let (changes, done) = step(&mut world);
    assert_eq!((changes, done.outcome.as_str(), done.pulled), (vec![Change::EndWarmUp], "Pulled", 2));
    assert_eq!(said(&world), ("True".into(), "Pulled".into()));
    let times = world.hosted.as_ref().unwrap().status.as_ref().unwrap().times.clone().unwrap();
    assert!(times.warmed.is_some() && times.warmed == done.ended);
    // Its pods go as well; and nothing begins anew, not even under another agent.
    assert_eq!(step(&mut world).0, [Change::EndWarmUp]);
    (world.warmers, world.memory) = (Vec::new(), Memory::default());
    assert_eq!(step(&mut world), (vec![], done));
}

#[test]
fn it_ends_however_it_goes() {
    type Case = (fn(&mut World), &'static str);
    let table: [Case; 6] = [
        (|world| world.memory.warm_up = Made::Refused("no".into()), "Refused"),
        (|world| world.memory.warm_up = Made::NameTaken("no".into()), "NameTaken"),
        (|world| world.pods = (0..3).map(|index| pod(index, "n")).collect(), "Overtaken"),
        (
            |world| {
                let homeless = PodView { unschedulable: true, ..warmer("", false) };
                world.warmers = vec![homeless.clone(), homeless];
            },
            "NoNode",
        ),
        (
            |world| {
                world.warmers = vec![warmer("n", true), PodView { unschedulable: true, ..warmer("", false) }];
            },
            "Pulled",
        ),
        (
            |world| {
                let hosted = world.hosted.as_mut().unwrap().status.as_mut().unwrap();
                let long_ago = Timestamp::from_second(1_000_000 - 600).unwrap();
                hosted.warm.as_mut().unwrap().since =
                    Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime(long_ago));
            },
            "TimedOut",
        ),
    ];
    for (happens, outcome) in table {
        let mut world = admitted();
        step(&mut world);
        world.memory.warm_up = Made::Yes("job-uid".into());
        happens(&mut world);
        let (changes, ended) = step(&mut world);
        assert_eq!((changes, ended.outcome.as_str()), (vec![Change::EndWarmUp], outcome));
        assert!(ended.ended.is_some());
    }
}

#[test]
fn no_more_pods_are_made_than_there_are_nodes_for_them() {
    let picky = |selector: serde_json::Value| {
        let mut desired = warm();
        desired.template["pod"]["nodeSelector"] = selector;
        let mut world = World::new();
        world.host("east", &desired);
        world.claim("east", desired);
        step(&mut world)
    };
    assert_eq!(picky(serde_json::json!({})).0, [Change::WarmUp { nodes: 2 }], "three brokers, two nodes");
    let (changes, ended) = picky(serde_json::json!({"pool": "gpu"}));
    assert_eq!((changes, ended.outcome.as_str()), (vec![], "NoNode"), "a cluster does not grow for that");
}

#[test]
fn a_policy_may_decline_and_who_does_not_ask_gets_nothing() {
    let mut world = admitted();
    world.peers.get_mut("east").unwrap().import.as_mut().unwrap().warm = Some(false);
    let (changes, declined) = step(&mut world);
    assert_eq!((changes, declined.outcome.as_str()), (vec![], "NotAllowed"));
    assert_eq!(said(&world), ("False".into(), "NotAllowed".into()));
    let mut world = World::new();
    world.host("east", &offer());
    world.claim("east", offer());
    assert_eq!(step(&mut world), (vec![], WarmUp::default()));
}

#[test]
fn it_goes_with_the_burst() {
    let mut world = admitted();
    step(&mut world);
    world.warmers = vec![warmer("n", false)];
    world.claims.insert(("east".into(), "burst-uid".into()), Wanted::Tombstone);
    step(&mut world);
    assert_eq!(step(&mut world).0, [Change::EndWarmUp]);
}
