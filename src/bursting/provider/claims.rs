//! Which claims are about which slot, sorted from the beginning: what [`Slots`](super::slots::Slots) has to say too. Pure.

use std::collections::{BTreeMap, BTreeSet};

use tributary_api::hosted_burst::HostedBurst;
use tributary_contract::PeerName;

use super::admission;
use super::ledger::{SlotKey, key_of};
use super::memory::Memory;
use super::slot::{ClaimKey, Wanted, holder};
use crate::peers::{self, PeerView};

/// Claims by slot, and those that are about nothing here.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Claims {
    /// All slots that anybody claims, that anything is hosted in, or that something is remembered of.
    pub slots: BTreeMap<SlotKey, BTreeMap<ClaimKey, Wanted>>,
    /// Tombstones of bursts that are not here.
    pub nothing: BTreeSet<ClaimKey>,
}

/// Sorts claims by slot. An offer names its slot, and `peers` say in which namespace that is; what is hosted stays where it
/// is, also when its peer's bursts go somewhere else from now on, and so does what is remembered of it. A tombstone names a
/// burst only, which is found by what is hosted or remembered of it.
pub(crate) fn sort<'a>(
    claims: BTreeMap<ClaimKey, Wanted>,
    hosted: impl IntoIterator<Item = &'a HostedBurst>,
    memories: &BTreeMap<SlotKey, Memory>,
    peers: &BTreeMap<PeerName, PeerView>,
) -> Claims {
    let mut sorted = Claims::default();
    let mut known: BTreeMap<ClaimKey, SlotKey> = BTreeMap::new();
    let mut held: BTreeMap<ClaimKey, SlotKey> = BTreeMap::new();
    let mut fates: BTreeMap<ClaimKey, BTreeSet<SlotKey>> = BTreeMap::new();
    for (slot, memory) in memories {
        sorted.slots.entry(slot.clone()).or_default();
        known.extend(memory.fates.keys().map(|claim| (claim.clone(), slot.clone())));
        for claim in memory.fates.keys() {
            fates.entry(claim.clone()).or_default().insert(slot.clone());
        }
    }
    for hosted in hosted {
        sorted.slots.entry(key_of(hosted)).or_default();
        known.insert(holder(hosted), key_of(hosted));
        held.insert(holder(hosted), key_of(hosted));
    }
    for (claim, wanted) in claims {
        let slot = match &wanted {
            Wanted::Burst(desired) => {
                let import = peers::import(peers, &claim.0);
                let mut known = held.get(&claim).into_iter().chain(fates.get(&claim).into_iter().flatten().rev());
                let here = known.find(|(_, slot)| *slot == desired.slot).cloned();
                Some(here.unwrap_or_else(|| admission::slot_key(&claim.0, desired, import)))
            }
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
    use tributary_api::peer::ImportPolicy;

    use super::*;
    use crate::provider::admission::tests::offer;
    use crate::provider::memory::Fate;

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
            (claim("burst-uid"), Wanted::Burst(offer().into())),
        ];
        let sorted = sort(claims.into(), [&hosted], &[(slot("b"), remembered)].into(), &BTreeMap::new());
        let found: Vec<_> = sorted.slots.iter().map(|(key, claims)| (key.1.as_str(), claims.len())).collect();
        assert_eq!(found, [("a", 1), ("b", 1), ("lake-burst-0", 1)]);
        assert_eq!(sorted.nothing, [claim("uid-c")].into());
    }

    #[test]
    fn namespaces_are_mapped_and_what_is_hosted_stays_where_it_is() {
        let import = |template: &str| ImportPolicy { target_namespace: Some(template.into()), ..Default::default() };
        let peers = |template| -> BTreeMap<PeerName, PeerView> {
            [("east".into(), PeerView { import: Some(import(template)), ..PeerView::default() })].into()
        };
        let claims = || [(("east".into(), "burst-uid".into()), Wanted::Burst(offer().into()))].into_iter().collect();
        let slots = |sorted: Claims| sorted.slots.into_keys().map(|(namespace, _)| namespace).collect::<Vec<_>>();
        let none = BTreeMap::new();
        assert_eq!(slots(sort(claims(), [], &none, &peers("burst-{peer}-{namespace}"))), ["burst-east-flux"]);
        assert_eq!(slots(sort(claims(), [], &none, &peers("guests"))), ["guests"]);
        let mut hosted = HostedBurst::default();
        hosted.metadata.name = Some(offer().slot);
        hosted.metadata.namespace = Some("burst-east-flux".into());
        hosted.spec.peer = "east".into();
        hosted.spec.burst_uid = "burst-uid".into();
        assert_eq!(slots(sort(claims(), [&hosted], &none, &peers("guests"))), ["burst-east-flux"]);
        // Its owner has deleted it: what is left of it is there.
        let mut memory = Memory::default();
        memory.saw(&hosted);
        let left = [(key_of(&hosted), memory)].into();
        assert_eq!(slots(sort(claims(), [], &left, &peers("guests"))), ["burst-east-flux"]);
    }
}
