//! Which slots there are, and what is known of each: found by slot, by claim and by peer. Pure.
//!
//! It follows claims, HostedBursts and memories, one change at a time: what a change costs does not depend on how many others
//! there are.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use tributary_api::hosted_burst::HostedBurst;
use tributary_api::peer::ImportPolicy;
use tributary_contract::{BurstUid, PeerName};

use super::admission;
use super::ledger::SlotKey;
use super::results;
use super::slot::{ClaimKey, Wanted, holder};

/// Claims of one peer on one slot that are looked at: a burst, its successors, and some that are leaving. Others wait until
/// these are gone.
pub(crate) const CLAIMS_OF_A_PEER: usize = 8;

/// The slots.
#[derive(Debug, Default)]
pub(crate) struct Slots {
    /// Where what peers want belongs.
    claims: Ties,
    /// Whose HostedBurst is where.
    hosted: Ties,
    /// Where it is remembered what became of a burst.
    fates: Ties,
    /// Whole instances that have ended, and that nothing takes away yet, by when they ended.
    results: BTreeMap<PeerName, BTreeSet<(Timestamp, SlotKey)>>,
    ended: BTreeMap<SlotKey, (PeerName, Timestamp)>,
}

impl Slots {
    /// Enters what a peer wants of a burst; says which slots that may mean something for. An offer names its slot, and `import`
    /// says in which namespace that is; what is hosted stays where it is, also when its peer's bursts go somewhere else from
    /// now on, and so does what is remembered of it. A tombstone names a burst only, which is found by what is hosted or
    /// remembered of it.
    pub(crate) fn claim(
        &mut self,
        claim: &ClaimKey,
        wanted: Option<&Wanted>,
        import: Option<&ImportPolicy>,
    ) -> BTreeSet<SlotKey> {
        let place = wanted.and_then(|wanted| self.place(claim, wanted, import));
        let mut touched: BTreeSet<SlotKey> = self.claims.slots(claim).cloned().collect();
        self.claims.set_slots(claim, place.clone());
        touched.extend(place);
        touched.extend(self.hosted.slots(claim).chain(self.fates.slots(claim)).cloned());
        touched
    }

    /// The slot that a claim is about, if it is about any.
    pub(crate) fn place(&self, claim: &ClaimKey, wanted: &Wanted, import: Option<&ImportPolicy>) -> Option<SlotKey> {
        let held = self.hosted.slots(claim).next_back();
        match wanted {
            Wanted::Burst(desired) => {
                let named = |(_, slot): &&SlotKey| *slot == desired.slot;
                let here = held.filter(named).or_else(|| self.fates.slots(claim).rfind(named)).cloned();
                Some(here.unwrap_or_else(|| admission::slot_key(&claim.0, desired, import)))
            }
            Wanted::Tombstone => held.or_else(|| self.fates.slots(claim).next_back()).cloned(),
        }
    }

    /// Enters the HostedBurst of a slot; says which claims may belong elsewhere now.
    pub(crate) fn host(&mut self, slot: &SlotKey, hosted: Option<&HostedBurst>) -> BTreeSet<ClaimKey> {
        let ended = hosted.and_then(|hosted| Some((hosted.spec.peer.as_str().into(), results::ended(hosted)?)));
        if let Some((peer, at)) = self.ended.remove(slot)
            && let Some(results) = self.results.get_mut(&peer)
        {
            results.remove(&(at, slot.clone()));
            if results.is_empty() {
                self.results.remove(&peer);
            }
        }
        if let Some((peer, at)) = ended {
            self.results.entry(PeerName::clone(&peer)).or_default().insert((at, slot.clone()));
            self.ended.insert(slot.clone(), (peer, at));
        }
        self.hosted.set_claims(slot, hosted.map(holder).into_iter().collect())
    }

    /// Enters of which bursts a slot's memory knows what became of them; says which claims may belong elsewhere now.
    pub(crate) fn remember<'a>(
        &mut self,
        slot: &SlotKey,
        fates: impl IntoIterator<Item = &'a ClaimKey>,
    ) -> BTreeSet<ClaimKey> {
        self.fates.set_claims(slot, fates.into_iter().cloned().collect())
    }

    /// The claims that are looked at when a slot is: those of bursts that are or were here, and of each peer the first
    /// [`CLAIMS_OF_A_PEER`] others.
    pub(crate) fn claims_on(&self, slot: &SlotKey) -> Vec<ClaimKey> {
        let (mut looked_at, mut counted) = (Vec::new(), None);
        for claim in self.claims.claims(slot) {
            if !self.is_known(slot, claim) {
                let count = counted.filter(|(peer, _)| *peer == &claim.0).map_or(0, |(_, count)| count);
                counted = Some((&claim.0, count + 1));
                if count >= CLAIMS_OF_A_PEER {
                    continue;
                }
            }
            looked_at.push(claim.clone());
        }
        looked_at
    }

    /// Whether a claim has to wait until others of its peer on the same slot are gone.
    pub(crate) fn waits(&self, slot: &SlotKey, claim: &ClaimKey) -> bool {
        let others = self.claims.claims(slot).filter(|other| other.0 == claim.0 && !self.is_known(slot, other));
        !self.is_known(slot, claim) && others.take(CLAIMS_OF_A_PEER).all(|other| other != claim)
    }

    fn is_known(&self, slot: &SlotKey, claim: &ClaimKey) -> bool {
        self.hosted.slots(claim).chain(self.fates.slots(claim)).any(|known| known == slot)
    }

    /// Whose burst a slot has.
    pub(crate) fn holder(&self, slot: &SlotKey) -> Option<&ClaimKey> {
        self.hosted.claims(slot).next()
    }

    /// Where the HostedBurst of a burst is.
    pub(crate) fn held(&self, claim: &ClaimKey) -> Option<&SlotKey> {
        self.hosted.slots(claim).next_back()
    }

    /// Who pays for looking at a slot: the peer whose burst it has, else one that wants it or had it.
    pub(crate) fn payer(&self, slot: &SlotKey) -> Option<&PeerName> {
        let mut all = [&self.hosted, &self.claims, &self.fates].into_iter();
        all.find_map(|ties| ties.claims(slot).next()).map(|(peer, _)| peer)
    }

    /// The slots that a peer has, wants or had.
    pub(crate) fn of_peer(&self, peer: &PeerName) -> BTreeSet<SlotKey> {
        [&self.hosted, &self.claims, &self.fates].into_iter().flat_map(|ties| ties.of_peer(peer)).cloned().collect()
    }

    pub(crate) fn all(&self) -> BTreeSet<SlotKey> {
        [&self.hosted, &self.claims, &self.fates].into_iter().flat_map(|ties| ties.claims.keys()).cloned().collect()
    }

    /// The slots that a peer wants, and that are free.
    pub(crate) fn wanted_by(&self, peer: &PeerName) -> BTreeSet<SlotKey> {
        self.claims.of_peer(peer).filter(|slot| self.holder(slot).is_none()).cloned().collect()
    }

    /// The results of a peer, the oldest first.
    pub(crate) fn results(&self, peer: &PeerName) -> Option<&BTreeSet<(Timestamp, SlotKey)>> {
        self.results.get(peer)
    }
}

/// Which claims belong to which slots, from both sides.
#[derive(Debug, Default)]
struct Ties {
    slots: BTreeMap<ClaimKey, BTreeSet<SlotKey>>,
    claims: BTreeMap<SlotKey, BTreeSet<ClaimKey>>,
}

impl Ties {
    fn slots(&self, claim: &ClaimKey) -> impl DoubleEndedIterator<Item = &SlotKey> {
        self.slots.get(claim).into_iter().flatten()
    }

    fn claims(&self, slot: &SlotKey) -> impl Iterator<Item = &ClaimKey> {
        self.claims.get(slot).into_iter().flatten()
    }

    fn of_peer(&self, peer: &PeerName) -> impl Iterator<Item = &SlotKey> {
        let first = (peer.clone(), BurstUid::default());
        self.slots.range(first..).take_while(move |((of, _), _)| of == peer).flat_map(|(_, slots)| slots)
    }

    /// Exactly these claims belong to a slot from now on; says which that was news for.
    fn set_claims(&mut self, slot: &SlotKey, claims: BTreeSet<ClaimKey>) -> BTreeSet<ClaimKey> {
        let before = self.claims.get(slot).cloned().unwrap_or_default();
        let changed: BTreeSet<ClaimKey> = before.symmetric_difference(&claims).cloned().collect();
        for claim in &changed {
            self.tie(claim, slot, claims.contains(claim));
        }
        changed
    }

    /// A claim belongs to exactly this slot from now on, or to none.
    fn set_slots(&mut self, claim: &ClaimKey, slot: Option<SlotKey>) {
        let before: Vec<SlotKey> = self.slots(claim).filter(|before| Some(*before) != slot.as_ref()).cloned().collect();
        before.iter().for_each(|before| self.tie(claim, before, false));
        if let Some(slot) = slot {
            self.tie(claim, &slot, true);
        }
    }

    fn tie(&mut self, claim: &ClaimKey, slot: &SlotKey, tied: bool) {
        if tied {
            self.slots.entry(claim.clone()).or_default().insert(slot.clone());
            self.claims.entry(slot.clone()).or_default().insert(claim.clone());
            return;
        }
        remove(&mut self.slots, claim, slot);
        remove(&mut self.claims, slot, claim);
    }
}

fn remove<A: Ord, B: Ord>(ties: &mut BTreeMap<A, BTreeSet<B>>, from: &A, one: &B) {
    if let Some(all) = ties.get_mut(from) {
        all.remove(one);
        if all.is_empty() {
            ties.remove(from);
        }
    }
}

#[cfg(test)]
mod tests;
