//! Which claims are about which slot. Pure.

use std::collections::{BTreeMap, BTreeSet};

use super::ledger::{SlotKey, key_of};
use super::memory::Memory;
use super::slot::{ClaimKey, Wanted, holder};
use crate::api::hosted_burst::HostedBurst;

/// Claims by slot, and those that are about nothing here.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Claims {
    /// All slots that anybody claims, that anything is hosted in, or that something is remembered of.
    pub slots: BTreeMap<SlotKey, BTreeMap<ClaimKey, Wanted>>,
    /// Tombstones of bursts that are not here.
    pub nothing: BTreeSet<ClaimKey>,
}

/// Sorts claims by slot. An offer names its slot; a tombstone names a burst only, which is found by what is hosted or
/// remembered of it.
pub fn sort<'a>(
    claims: BTreeMap<ClaimKey, Wanted>,
    hosted: impl IntoIterator<Item = &'a HostedBurst>,
    memories: &BTreeMap<SlotKey, Memory>,
) -> Claims {
    let mut sorted = Claims::default();
    let mut known: BTreeMap<ClaimKey, SlotKey> = BTreeMap::new();
    for (slot, memory) in memories {
        sorted.slots.entry(slot.clone()).or_default();
        known.extend(memory.fates.keys().map(|claim| (claim.clone(), slot.clone())));
    }
    for hosted in hosted {
        sorted.slots.entry(key_of(hosted)).or_default();
        known.insert(holder(hosted), key_of(hosted));
    }
    for (claim, wanted) in claims {
        let slot = match &wanted {
            Wanted::Burst(desired) => Some((desired.root.namespace.clone(), desired.slot.clone())),
            Wanted::Tombstone => known.get(&claim).cloned(),
        };
        match slot {
            Some(slot) => {
                sorted.slots.entry(slot).or_default().insert(claim, wanted);
            }
            None => {
                sorted.nothing.insert(claim);
            }
        }
    }
    sorted
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bursting::provider::admission::tests::offer;
    use crate::bursting::provider::memory::Fate;

    #[test]
    fn tombstones_find_their_slot_by_what_is_hosted_or_remembered() {
        let claim = |uid: &str| ("east".into(), uid.into());
        let slot = |name: &str| ("flux".to_owned(), name.to_owned());
        let mut hosted = HostedBurst::default();
        hosted.metadata.name = Some("a".into());
        hosted.metadata.namespace = Some("flux".into());
        hosted.spec.peer = "east".into();
        hosted.spec.burst_uid = "uid-a".into();
        let mut remembered = Memory::default();
        remembered.fates.insert(claim("uid-b"), Fate::Evicted { incarnation: "job".into() });
        let claims = [
            (claim("uid-a"), Wanted::Tombstone),
            (claim("uid-b"), Wanted::Tombstone),
            (claim("uid-c"), Wanted::Tombstone),
            (claim("burst-uid"), Wanted::Burst(Box::new(offer()))),
        ];
        let sorted = sort(claims.into(), [&hosted], &[(slot("b"), remembered)].into());
        let found: Vec<_> = sorted.slots.iter().map(|(key, claims)| (key.1.as_str(), claims.len())).collect();
        assert_eq!(found, [("a", 1), ("b", 1), ("lake-burst-0", 1)]);
        assert_eq!(sorted.nothing, [claim("uid-c")].into());
    }
}
