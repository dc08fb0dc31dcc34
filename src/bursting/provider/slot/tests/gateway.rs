//! A burst whose gateway has no node.

use super::*;

/// What is deleted for the gateway's sake in a step at this second.
fn deleted(world: &mut World, secs: u64) -> Option<String> {
    world.secs = secs;
    world.step().changes.into_iter().find_map(|change| match change {
        Change::DeletePod(removal) => Some(removal.last),
        _ => None,
    })
}

#[test]
fn a_gateway_without_a_place_gets_that_of_the_last_broker() {
    let homeless = || PodView { unschedulable: true, ..pod(0, "") };
    let mut world = provisioned(offer(), vec![homeless(), pod(1, "n"), pod(2, "other"), pod(3, "")]);
    let last = Some("lake-burst-0-2-x".to_owned());
    assert_eq!([0, 59, 60, 61].map(|secs| deleted(&mut world, secs)), [None, None, last.clone(), None]);
    // What became free was taken by somebody else.
    assert_eq!(deleted(&mut world, 120), last);
    // It has the place: nothing is remembered.
    world.pods[0] = pod(0, "other");
    assert_eq!((deleted(&mut world, 121), world.memory.gateway.take()), (None, None));

    // One that merely starts, and others that have no place either.
    for pods in [vec![pod(0, ""), pod(1, "n")], vec![homeless(), pod(1, "")]] {
        let mut world = provisioned(offer(), pods);
        assert_eq!([0, 60].map(|secs| deleted(&mut world, secs)), [None, None], "{:?}", world.pods);
    }
    // In a flat burst the first broker is one of many.
    let slots = RankMap::parse_canonical(&offer().rank_map).unwrap().slots().to_vec();
    let slots = slots.into_iter().map(|slot| Slot { parent: None, ..slot }).collect();
    let flat = DesiredBurst { rank_map: RankMap::new(slots).unwrap().to_canonical(), ..offer() };
    let mut world = provisioned(flat, vec![homeless(), pod(1, "n")]);
    assert_eq!([0, 60].map(|secs| deleted(&mut world, secs)), [None, None]);
}
