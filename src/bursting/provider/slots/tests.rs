use std::sync::Arc;

use proptest::prelude::*;
use tributary_contract::DesiredBurst;

use super::*;
use crate::peers::{self, PeerView};
use crate::provider::admission::tests::offer;
use crate::provider::claims;
use crate::provider::memory::{Fate, Memory};

fn claim(peer: &str, uid: usize) -> ClaimKey {
    (peer.into(), format!("uid-{uid}").as_str().into())
}

fn wanted(uid: usize, name: usize) -> Wanted {
    let uid = format!("uid-{uid}").as_str().into();
    Wanted::Burst(Arc::new(DesiredBurst { uid, slot: format!("slot-{name}"), ..offer() }))
}

fn slot(name: usize) -> SlotKey {
    ("flux".into(), format!("slot-{name}"))
}

fn hosted((peer, uid): &ClaimKey, (namespace, name): &SlotKey) -> HostedBurst {
    let mut hosted = HostedBurst::default();
    (hosted.metadata.namespace, hosted.metadata.name) = (Some(namespace.clone()), Some(name.clone()));
    (hosted.spec.peer, hosted.spec.burst_uid) = (peer.to_string(), uid.to_string());
    hosted
}

/// What a change among so many claims touches: slots that are looked at, and claims that are looked at with them.
fn work(claims: usize) -> (usize, usize) {
    let mut slots = Slots::default();
    for number in 0..claims {
        slots.claim(&claim(&format!("crowd-{}", number % 3), number), Some(&wanted(number, number)), None);
        if number % 2 == 0 {
            slots.host(&slot(number), Some(&hosted(&claim(&format!("crowd-{}", number % 3), number), &slot(number))));
        }
    }
    let (mut touched, mut looked_at) = (0, 0);
    for number in 0..50 {
        let all = slots.claim(&claim(&format!("crowd-{}", number % 3), number), Some(&wanted(number, number)), None);
        touched += all.len();
        looked_at += all.iter().map(|slot| slots.claims_on(slot).len()).sum::<usize>();
    }
    (touched, looked_at)
}

#[test]
fn a_change_among_10_000_claims_touches_what_one_among_100_does() {
    assert_eq!(work(100), (50, 50));
    assert_eq!(work(10_000), (50, 50));
}

#[test]
fn a_peer_that_wants_one_name_4_000_times_makes_looking_at_it_no_dearer() {
    let mut slots = Slots::default();
    let holder = claim("east", 1);
    slots.claim(&holder, Some(&wanted(1, 0)), None);
    slots.host(&slot(0), Some(&hosted(&holder, &slot(0))));
    for uid in 0..4_000 {
        slots.claim(&claim("crowd", uid), Some(&wanted(uid, 0)), None);
        slots.claim(&claim("east", 1_000 + uid), Some(&wanted(uid, 0)), None);
    }
    let looked_at = slots.claims_on(&slot(0));
    assert_eq!(looked_at.len(), 2 * CLAIMS_OF_A_PEER + 1);
    assert!(looked_at.contains(&holder), "whoever has it is always heard");
    let waiting = |slots: &Slots, peer: &str| {
        let name = slot(0);
        let all = slots.claims.claims(&name).filter(|claim| claim.0.as_str() == peer);
        all.filter(|claim| slots.waits(&name, claim)).count()
    };
    assert_eq!((waiting(&slots, "crowd"), waiting(&slots, "east")), (3_992, 3_992));
    assert!(looked_at.iter().all(|claim| !slots.waits(&slot(0), claim)));
    let first = looked_at.iter().find(|claim| claim.0.as_str() == "crowd").unwrap();
    assert_eq!(slots.claim(first, None, None), [slot(0)].into(), "the next one's turn: the slot is looked at");
    assert_eq!(waiting(&slots, "crowd"), 3_991);
}

#[test]
fn a_slot_is_paid_for_by_the_peer_that_has_it() {
    let mut slots = Slots::default();
    assert_eq!(slots.payer(&slot(0)), None);
    slots.claim(&claim("crowd", 1), Some(&wanted(1, 0)), None);
    assert_eq!(slots.payer(&slot(0)).unwrap().as_str(), "crowd");
    assert_eq!(slots.wanted_by(&"crowd".into()), [slot(0)].into());
    slots.host(&slot(0), Some(&hosted(&claim("east", 2), &slot(0))));
    assert_eq!(slots.payer(&slot(0)).unwrap().as_str(), "east");
    assert_eq!(slots.of_peer(&"east".into()), [slot(0)].into());
    assert!(slots.wanted_by(&"crowd".into()).is_empty());
    slots.host(&slot(0), None);
    slots.claim(&claim("crowd", 1), None, None);
    assert!(slots.all().is_empty());
}

#[derive(Clone, Debug)]
enum Change {
    Claim(usize, Option<Option<usize>>),
    Host(usize, Option<usize>),
    Remember(usize, Vec<usize>),
    Move(bool),
}

fn change() -> impl Strategy<Value = Change> {
    let wanted = proptest::option::of(proptest::option::of(0..4_usize));
    prop_oneof![
        4 => (0..6_usize, wanted).prop_map(|(uid, wanted)| Change::Claim(uid, wanted)),
        3 => (0..4_usize, proptest::option::of(0..6_usize)).prop_map(|(name, uid)| Change::Host(name, uid)),
        2 => (0..4_usize, proptest::collection::vec(0..6_usize, 0..3)).prop_map(|(name, of)| Change::Remember(name, of)),
        1 => any::<bool>().prop_map(Change::Move),
    ]
}

/// Two peers, whose bursts have the UIDs 0 to 2 and 3 to 5.
fn of(uid: usize) -> ClaimKey {
    claim(if uid < 3 { "east" } else { "west" }, uid)
}

proptest! {
    /// After each change, with the claims entered anew that it says may belong elsewhere, everything is where it would be if it
    /// was sorted from the beginning.
    #[test]
    fn the_index_says_what_sorting_everything_says(changes in proptest::collection::vec(change(), 1..60)) {
        let mut slots = Slots::default();
        let (mut claimed, mut there) = (BTreeMap::<ClaimKey, Wanted>::new(), BTreeMap::<SlotKey, HostedBurst>::new());
        let (mut memories, mut peers) = (BTreeMap::<SlotKey, Memory>::new(), BTreeMap::<PeerName, PeerView>::new());
        for change in changes {
            let moved: BTreeSet<ClaimKey> = match change {
                Change::Claim(uid, want) => {
                    match want {
                        Some(Some(name)) => claimed.insert(of(uid), wanted(uid, name)),
                        Some(None) => claimed.insert(of(uid), Wanted::Tombstone),
                        None => claimed.remove(&of(uid)),
                    };
                    [of(uid)].into()
                }
                Change::Host(name, uid) => {
                    match uid {
                        Some(uid) => there.insert(slot(name), hosted(&of(uid), &slot(name))),
                        None => there.remove(&slot(name)),
                    };
                    slots.host(&slot(name), there.get(&slot(name)))
                }
                Change::Remember(name, uids) => {
                    let fate = Fate::Evicted { incarnation: "job".into() };
                    let fates = uids.into_iter().map(|uid| (of(uid), fate.clone())).collect();
                    let memory = Memory { fates, ..Memory::default() };
                    let moved = slots.remember(&slot(name), memory.fates.keys());
                    if memory.fates.is_empty() {
                        memories.remove(&slot(name));
                    } else {
                        memories.insert(slot(name), memory);
                    }
                    moved
                }
                Change::Move(elsewhere) => {
                    let target_namespace = elsewhere.then(|| "guests".to_owned());
                    let import = Some(ImportPolicy { target_namespace, ..ImportPolicy::default() });
                    peers.insert("east".into(), PeerView { import, ..PeerView::default() });
                    claimed.keys().filter(|(peer, _)| peer.as_str() == "east").cloned().collect()
                }
            };
            for claim in moved {
                let import = peers::import(&peers, &claim.0);
                slots.claim(&claim, claimed.get(&claim), import);
            }
            let sorted = claims::sort(claimed.clone(), there.values(), &memories, &peers);
            prop_assert_eq!(slots.all(), sorted.slots.keys().cloned().collect::<BTreeSet<_>>());
            for (slot, claims) in &sorted.slots {
                prop_assert_eq!(slots.claims_on(slot), claims.keys().cloned().collect::<Vec<_>>());
            }
            let nowhere = claimed.iter().filter(|(claim, _)| slots.claims.slots(claim).next().is_none());
            prop_assert_eq!(nowhere.map(|(claim, _)| claim.clone()).collect::<BTreeSet<_>>(), sorted.nothing);
        }
    }
}
