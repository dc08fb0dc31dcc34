//! What a change means for which slots, and in whose line they wait.
//!
//! | what changes | what is looked at | line |
//! |---|---|---|
//! | a claim, or whether its peer lists it | its slot, at a pace | the peer's word |
//! | a HostedBurst, or what is made for it | its slot | what is here |
//! | a connection, a ClusterPeer | the slots of that peer | what is here |
//! | a peer holds less | what that peer waits for | what is here |
//! | nodes; room on them, or in queues | all slots; all that wait | what is here |

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use tributary_api::hosted_burst::HostedBurst;
use tributary_api::{labels, names};
use tributary_clock::Mono;
use tributary_cluster::ObjectKey;
use tributary_cluster::caches::{Subscription, controller_uid};
use tributary_contract::PeerName;
use tributary_contract::tunnel::TunnelKey;

use super::controller::{Provider, State};
use super::ledger::SlotKey;
use super::left;
use super::memory::Memory;
use super::slot::{self, ClaimKey, Wanted, holder};
use crate::peers::{self, PeerView};
use crate::sync_store::Answer;
use crate::tunnels;
use crate::turns::Line;

impl Provider {
    /// What a change of which object means for which slot.
    pub(crate) fn feed(&self) -> Vec<Subscription> {
        let caches = &self.shared.caches;
        fn named(object: &impl kube::Resource) -> Vec<SlotKey> {
            let meta = object.meta();
            vec![(meta.namespace.clone().unwrap_or_default(), meta.name.clone().unwrap_or_default())]
        }
        fn labelled(object: &impl kube::Resource) -> Vec<SlotKey> {
            let slot = object.meta().labels.as_ref().and_then(|labels| labels.get(labels::SLOT));
            let namespace = object.meta().namespace.clone().unwrap_or_default();
            slot.map(|slot| (namespace, slot.clone())).into_iter().collect()
        }
        let hosted = caches.hosted.clone();
        let has_hosted = move |slot: &SlotKey| hosted.of(&ObjectKey::namespaced(&slot.0, &slot.1)).is_some();
        let known = has_hosted.clone();
        // Secrets are never watched. Brokers that start anew, or have to, are the moment to look whether theirs is there.
        let (ours, theirs, seeing) = (self.weak(), self.weak(), self.weak());
        vec![
            caches.mini_clusters.subscribe(move |change| {
                if let (None, Some(this)) = (&change.new, ours.upgrade()) {
                    this.doubt_secret(&(change.key.namespace.clone().unwrap_or_default(), change.key.name.clone()));
                }
            }),
            caches.pods.subscribe(move |change| {
                let appeared = change.new.as_ref().filter(|_| change.old.is_none());
                let job = appeared.and_then(|pod| Some((pod.view.namespace.clone(), pod.view.job.clone()?)));
                if let (Some(slot), Some(this)) = (job, theirs.upgrade()) {
                    this.doubt_secret(&slot);
                }
            }),
            // Before the slot is marked: whoever looks at it finds it entered.
            caches.hosted.subscribe(move |change| {
                if let Some(this) = seeing.upgrade() {
                    this.fresh.saw(change);
                    this.saw(&(change.key.namespace.clone().unwrap_or_default(), change.key.name.clone()));
                }
            }),
            caches.hosted.feed(&self.queue, named),
            caches
                .mini_clusters
                .feed(&self.queue, move |object| named(object).into_iter().filter(|slot| known(slot)).collect()),
            caches.pods.feed(&self.queue, move |pod| {
                let slot = |job: &str| (pod.view.namespace.clone(), job.to_owned());
                let warmed = pod.view.job.as_deref().and_then(names::warmed_up).map(slot);
                let jobs = pod.view.job.as_deref().map(slot).into_iter().chain(warmed);
                jobs.filter(|slot| has_hosted(slot)).collect()
            }),
            caches.services.feed(&self.queue, labelled),
            caches.slices.feed(&self.queue, labelled),
            caches.network_policies.feed(&self.queue, labelled),
        ]
    }

    /// Where a slot waits for what happens here.
    pub(super) fn line(&self, slot: &SlotKey) -> Line {
        Line::Here(self.state.lock().slots.payer(slot).cloned().unwrap_or_default())
    }

    /// Peers want something else of these bursts, or list them now and did not, or the other way round.
    pub(crate) fn claims_changed(&self, claims: &BTreeSet<ClaimKey>) {
        let (peers, now) = (self.shared.peers(), self.shared.clock.mono());
        for claim in claims {
            for slot in self.enter(claim, &peers) {
                let at = self.state.lock().pace.turn(&slot, now);
                self.queue.mark_in(Line::Said(claim.0.clone()), slot, at);
            }
        }
    }

    /// Peers listed all that they want for the first time: what they do not name may have to go.
    pub(crate) fn listed(&self, peers: &BTreeSet<PeerName>) {
        let now = self.shared.clock.mono();
        for peer in peers {
            let slots = self.state.lock().slots.of_peer(peer);
            slots.into_iter().for_each(|slot| self.queue.mark_in(Line::Said(peer.clone()), slot, now));
        }
    }

    /// The connection to a peer is another.
    pub(crate) fn mark_peer(&self, peer: &PeerName, at: Mono) {
        let slots = self.state.lock().slots.of_peer(peer);
        slots.into_iter().for_each(|slot| self.queue.mark_in(Line::Here(peer.clone()), slot, at));
    }

    /// What a peer may do here is another: its bursts may belong to another namespace.
    pub(crate) fn policy_changed(&self, peer: &PeerName) {
        self.enter_all(self.shared.exchange.claims_of(peer), true);
        self.mark_peer(peer, self.shared.clock.mono());
    }

    /// Marks every slot that anything is known of: the nodes are others.
    pub(crate) fn mark_all(&self) {
        let slots = self.state.lock().slots.all();
        slots.into_iter().for_each(|slot| self.queue.mark(slot));
    }

    /// Marks the slots that somebody waits for who may have some: there may be room for them now.
    pub(crate) fn mark_waiting(&self) {
        for (peer, _) in self.shared.peers().iter().filter(|(_, view)| view.import.is_some()) {
            let slots = self.state.lock().slots.wanted_by(peer);
            slots.into_iter().for_each(|slot| self.queue.mark(slot));
        }
    }

    /// The agent listens elsewhere for the connections of a burst.
    pub(crate) fn mark_holder(&self, burst: &TunnelKey) {
        let slot = self.state.lock().slots.held(burst).cloned();
        slot.into_iter().for_each(|slot| self.queue.mark(slot));
    }

    /// Enters the HostedBurst of a slot as it is known now, the cache's or our own last write: what else depends on it follows.
    pub(super) fn saw(&self, slot: &SlotKey) {
        let (moved, gone, waiting) = {
            let mut state = self.state.lock();
            let State { slots, ledger, .. } = &mut *state;
            // Looked up while the state is locked: of two who enter it, the later one knows the newer.
            let hosted = self.hosted(slot);
            let before = slots.holder(slot).cloned();
            let moved = slots.host(slot, hosted.as_deref());
            let less = ledger.host(slot, hosted.as_deref());
            let gone = before.filter(|before| hosted.as_deref().map(holder).as_ref() != Some(before));
            (moved, gone, less.map(|peer| slots.wanted_by(&peer)).unwrap_or_default())
        };
        if let Some(burst) = gone {
            self.shared.tunnels.put_inlet(&burst, None);
        }
        waiting.into_iter().for_each(|slot| self.queue.mark(slot));
        self.enter_all(moved, false);
    }

    /// Enters bursts that are here without their HostedBurst, as a term finds them: what their peers are told of them waits until
    /// they are gone.
    pub(super) fn recall(&self) {
        let caches = &self.shared.caches;
        let is_free = |slot: &SlotKey| caches.works_in(&slot.0) && self.hosted(slot).is_none();
        for (slot, claim) in left::recalled(&caches.mini_clusters.objects(), &caches.pods.objects(), is_free) {
            self.remember(&slot, |memory| memory.recall(claim));
        }
    }

    /// Says whether a burst is carried to its root, and who may connect for it.
    pub(super) fn carry(&self, slot: &SlotKey, hosted: Option<&HostedBurst>) {
        let Some(hosted) = hosted else { return };
        let caches = &self.shared.caches;
        let made = caches.mini_clusters.of(&ObjectKey::namespaced(&slot.0, &slot.1));
        let made = made.filter(|made| controller_uid(&**made) == hosted.metadata.uid.as_deref());
        let job = made.and_then(|made| made.status.as_ref()?.incarnation.clone());
        let inlet = tunnels::inlet(hosted, job.as_deref(), &caches.pods_of(&slot.0, &slot.1));
        self.shared.tunnels.put_inlet(&holder(hosted), inlet);
    }

    /// Enters claims anew, and has looked at the slots that they move to or from; all of them, or those that exist.
    pub(super) fn enter_all(&self, claims: impl IntoIterator<Item = ClaimKey>, gone_too: bool) {
        let exists = |claim: &ClaimKey| gone_too || self.shared.exchange.claim(claim).is_some();
        let mut claims = claims.into_iter().filter(exists).peekable();
        if claims.peek().is_none() {
            return;
        }
        let peers = self.shared.peers();
        for claim in claims {
            self.enter(&claim, &peers).into_iter().for_each(|slot| self.queue.mark(slot));
        }
    }

    /// Enters what a peer wants of a burst: which slots that may mean something for. What means nothing here is answered.
    fn enter(&self, claim: &ClaimKey, peers: &BTreeMap<PeerName, PeerView>) -> BTreeSet<SlotKey> {
        let import = peers::import(peers, &claim.0);
        let (touched, answer) = {
            let mut state = self.state.lock();
            // Looked up while the state is locked, as in `saw`.
            let wanted = self.shared.exchange.claim(claim);
            let touched = state.slots.claim(claim, wanted.as_ref(), import);
            let place = wanted.as_ref().and_then(|wanted| state.slots.place(claim, wanted, import));
            let answer = match (&wanted, place) {
                (Some(Wanted::Tombstone), None) => Some(Answer::Nothing),
                (Some(wanted), Some(slot)) if state.slots.waits(&slot, claim) => Some(slot::one_of_too_many(wanted)),
                _ => None,
            };
            (touched, answer)
        };
        if let Some(answer) = answer {
            self.shared.exchange.answer(claim, answer);
        }
        touched
    }

    /// The claims on a slot, as they are now: one that belongs elsewhere since it was entered is on its way there.
    pub(super) fn claims_on(&self, slot: &SlotKey, peers: &BTreeMap<PeerName, PeerView>) -> BTreeMap<ClaimKey, Wanted> {
        let state = self.state.lock();
        let here = |claim: ClaimKey| {
            let wanted = self.shared.exchange.claim(&claim)?;
            let import = peers::import(peers, &claim.0);
            let belongs_here = state.slots.place(&claim, &wanted, import).as_ref() == Some(slot);
            belongs_here.then_some((claim, wanted))
        };
        state.slots.claims_on(slot).into_iter().filter_map(here).collect()
    }

    pub(super) fn remember(&self, slot: &SlotKey, change: impl FnOnce(&mut Memory)) {
        let moved = {
            let mut state = self.state.lock();
            let State { slots, memories, .. } = &mut *state;
            let memory = memories.entry(slot.clone()).or_default();
            change(memory);
            let moved = slots.remember(slot, memory.fates.keys());
            if memory.is_empty() {
                memories.remove(slot);
            }
            moved
        };
        self.enter_all(moved, false);
    }

    /// Replaces what is remembered of a slot, if that is still `before`; whether it was.
    pub(super) fn replace(&self, slot: &SlotKey, before: &Memory, after: Memory) -> bool {
        let mut replaced = false;
        self.remember(slot, |memory| {
            replaced = memory == before;
            if replaced {
                *memory = after;
            }
        });
        replaced
    }

    /// The certificate of a slot may have been taken away: the next step looks.
    fn doubt_secret(&self, slot: &SlotKey) {
        let now = self.shared.clock.mono();
        if let Some(memory) = self.state.lock().memories.get_mut(slot) {
            memory.secret.doubt(now);
        }
    }

    /// The freshest version of a slot's HostedBurst.
    pub(super) fn hosted(&self, slot: &SlotKey) -> Option<Arc<HostedBurst>> {
        let object = ObjectKey::namespaced(&slot.0, &slot.1);
        self.fresh.of(&object, self.shared.caches.hosted.of(&object))
    }
}
