//! The provider's driver: takes the steps of slots and carries them out, one slot at a time. Decides nothing.
//!
//! One worker with one run at a time is the admission task: what it promises is in the ledger before the next offer is
//! looked at. What takes long (asking a root for a certificate, resolving a name) runs beside it and comes back as memory.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, Weak};

use jiff::Timestamp;

use super::lease::Before;
use super::ledger::{Ledger, SlotKey, key_of};
use super::memory::{Memory, SecretState};
use super::rate::Rates;
use super::slot::{self, ClaimKey, SlotView, Wanted};
use super::warm::Made;
use super::{admission, claims, results};
use crate::api::hosted_burst::{HostedBurst, HostedBurstStatus};
use crate::api::{labels, names};
use crate::bursting::fresh::Fresh;
use crate::bursting::nodes::PodView;
use crate::bursting::shared::{FirstRound, Shared, lock};
use crate::bursting::tunnels;
use crate::cluster::apply::Applier;
use crate::cluster::caches::{Subscription, controller_uid};
use crate::cluster::worker::{Outcome, Queue};
use crate::cluster::{ObjectKey, RequestError};
use crate::contract::PeerName;
use crate::contract::ports::PeerRequests;

/// The provider's driver.
pub(in crate::bursting) struct Provider {
    pub(super) shared: Arc<Shared>,
    pub(super) applier: Applier,
    pub(in crate::bursting) queue: Queue<SlotKey>,
    pub(in crate::bursting) first: FirstRound<SlotKey>,
    pub(super) fresh: Arc<Fresh<HostedBurst>>,
    pub(super) state: Mutex<State>,
    /// The mesh of this term.
    pub(super) requests: Mutex<Option<Arc<dyn PeerRequests>>>,
    /// For what runs beside the worker.
    this: Weak<Self>,
}

/// What is remembered in one leader's scope.
#[derive(Default)]
pub(super) struct State {
    pub(super) memories: BTreeMap<SlotKey, Memory>,
    pub(super) ledger: Ledger,
    /// How much peers have offered lately.
    rates: Rates,
    /// What is on record of the time before.
    before: Arc<Before>,
}

impl Provider {
    pub(in crate::bursting) fn new(shared: Arc<Shared>) -> Arc<Self> {
        let applier = Applier::new(shared.clients.writer.clone(), labels::manager::HOSTED_BURST);
        let queue = Queue::new(shared.clock.clone());
        Arc::new_cyclic(|this| Self {
            shared,
            applier,
            queue,
            first: FirstRound::default(),
            fresh: Arc::default(),
            state: Mutex::default(),
            requests: Mutex::new(None),
            this: this.clone(),
        })
    }

    /// Ourselves, for a task that may outlive the caller.
    pub(super) fn this(&self) -> Option<Arc<Self>> {
        self.this.upgrade()
    }

    /// What a change of which object means for which slot.
    pub(in crate::bursting) fn feed(&self) -> Vec<Subscription> {
        let caches = &self.shared.caches;
        let fresh = self.fresh.clone();
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
        let is_hosted = move |slot: &SlotKey| hosted.of(&ObjectKey::namespaced(&slot.0, &slot.1)).is_some();
        let known = is_hosted.clone();
        // Secrets are never watched. Brokers that start anew, or have to, are the moment to look whether theirs is there.
        let (ours, theirs) = (self.this.clone(), self.this.clone());
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
            caches.hosted.subscribe(move |change| fresh.saw(change)),
            caches.hosted.feed(&self.queue, named),
            caches
                .mini_clusters
                .feed(&self.queue, move |object| named(object).into_iter().filter(|slot| known(slot)).collect()),
            caches.pods.feed(&self.queue, move |pod| {
                let slot = |job: &str| (pod.view.namespace.clone(), job.to_owned());
                let warmed = pod.view.job.as_deref().and_then(names::warmed_up).map(slot);
                let jobs = pod.view.job.as_deref().map(slot).into_iter().chain(warmed);
                jobs.filter(|slot| is_hosted(slot)).collect()
            }),
            caches.services.feed(&self.queue, labelled),
            caches.slices.feed(&self.queue, labelled),
            caches.network_policies.feed(&self.queue, labelled),
        ]
    }

    /// Everything there is, for the first round of a term. `renewed` is the last renewal of the Lease by the leader
    /// before.
    pub(in crate::bursting) fn begin(&self, requests: Option<Arc<dyn PeerRequests>>, renewed: Option<Timestamp>) {
        let (peers, hosted) = (self.shared.caches.peers.objects(), self.shared.caches.hosted.objects());
        let (peers, hosted) = (peers.iter().map(|peer| &**peer), hosted.iter().map(|hosted| &**hosted));
        let before = Arc::new(Before::of(renewed, peers, hosted, self.shared.now().wall));
        *lock(&self.state) = State { before, ..State::default() };
        *lock(&self.requests) = requests;
        self.fresh.clear();
        let all: Vec<SlotKey> = self.shared.caches.hosted.objects().iter().map(|hosted| key_of(hosted)).collect();
        self.first.begin(all.iter().cloned());
        all.into_iter().for_each(|key| self.queue.mark(key));
    }

    /// Whether every loss of contact is dated: of no HostedBurst it counts from the term before.
    pub(in crate::bursting) fn has_dated(&self) -> bool {
        let contacts = self.shared.provider_contacts();
        self.shared.caches.hosted.objects().iter().all(|hosted| {
            let dated = |status: &HostedBurstStatus| status.suspect_since.is_some() || status.draining_since.is_some();
            contacts.has_heard(&slot::holder(hosted).0) || hosted.status.as_ref().is_some_and(dated)
        })
    }

    /// Marks every slot that anything is known of, and answers claims that are about nothing here.
    pub(in crate::bursting) fn mark_all(&self) {
        let sorted = self.claims();
        for claim in &sorted.nothing {
            self.shared.exchange.answer(claim, slot::Answered::Nothing);
        }
        sorted.slots.into_keys().for_each(|key| self.queue.mark(key));
    }

    fn claims(&self) -> claims::Claims {
        let (hosted, peers) = (self.hosted(), self.shared.peers());
        let state = lock(&self.state);
        let claims = self.shared.exchange.claims();
        claims::sort(claims, hosted.iter().map(|hosted| &**hosted), &state.memories, &peers)
    }

    /// All HostedBursts, those included that were made a moment ago.
    pub(super) fn hosted(&self) -> Vec<Arc<HostedBurst>> {
        let mut all: BTreeMap<ObjectKey, Arc<HostedBurst>> =
            self.shared.caches.hosted.objects().into_iter().map(|hosted| (ObjectKey::of(&*hosted), hosted)).collect();
        for ours in self.fresh.objects() {
            let key = ObjectKey::of(&*ours);
            if let Some(freshest) = self.fresh.of(&key, all.get(&key).cloned()) {
                all.insert(key, freshest);
            }
        }
        all.into_values().collect()
    }

    pub(in crate::bursting) async fn handle(&self, key: SlotKey) -> Result<Outcome, RequestError> {
        let shared = &self.shared;
        let object = ObjectKey::namespaced(&key.0, &key.1);
        let claims: BTreeMap<ClaimKey, Wanted> = self.claims().slots.remove(&key).unwrap_or_default();
        let hosted = self.fresh.of(&object, shared.caches.hosted.of(&object));
        if hosted.is_none() {
            // Let in and not made; or gone.
            shared.grants.give_back(&key);
        }
        let mini_cluster = shared.caches.mini_clusters.of(&object);
        let (peers, nodes, pods) = (shared.peers(), shared.caches.node_views(), shared.caches.pod_views());
        let pods_of = |job: &str| -> Vec<_> {
            let ours = |pod: &&PodView| pod.namespace == key.0 && pod.job.as_deref() == Some(job);
            pods.iter().filter(ours).cloned().collect()
        };
        let own_pods = pods_of(&key.1);
        let all = self.hosted();
        let contacts = shared.provider_contacts();
        let surplus = results::surplus(all.iter().map(|hosted| &**hosted), &peers, &contacts, shared.now().mono);
        if hosted.as_deref().is_some_and(HostedBurst::has_ended) && !surplus.contains(&key) {
            // One more may be one too many. Those that go wake nobody: they would keep each other awake until they are gone.
            surplus.iter().for_each(|other| self.queue.mark(other.clone()));
        }
        let (memory, ledger, before, rates) = {
            let mut state = lock(&self.state);
            state.ledger.rebuild(all.iter().map(|hosted| &**hosted));
            let memory = state.memories.get(&key).cloned().unwrap_or_default();
            (memory, state.ledger.clone(), state.before.clone(), state.rates.clone())
        };
        let warmers = self.warmers(&memory.warm_up);
        let facts = admission::Facts {
            import: None,
            draining: false,
            slot: &key,
            namespace_exists: shared.caches.has_namespace(&key.0),
            own_namespace: &shared.own_namespace(),
            ledger: &ledger,
            nodes: &nodes,
            pods: &pods,
        };
        let step = slot::step(&SlotView {
            now: shared.now(),
            grace: shared.times.grace,
            key: &key,
            claims: &claims,
            listed: &shared.exchange.listed(),
            peers: &peers,
            contacts: &contacts,
            before: &before,
            hosted: hosted.as_deref(),
            mini_cluster: mini_cluster.as_deref(),
            pods: &own_pods,
            warmers: &warmers,
            facts: &facts,
            grants: &*shared.grants,
            ours: &shared.ours.borrow(),
            inlet: &hosted
                .as_deref()
                .map_or(Err(String::new()), |hosted| shared.tunnels.inlet_of(&slot::holder(hosted))),
            surplus: surplus.contains(&key),
            memory: &memory,
            rates: &rates,
        });
        // Before anything runs beside this: what comes back is written into the newest memory. What came back meanwhile is
        // not taken back: the step is taken again, with it.
        if !self.replace(&key, &memory, step.memory) {
            self.queue.mark(key);
            return Ok(Outcome::Done);
        }
        // Steps are taken one after the other.
        lock(&self.state).rates = step.rates;
        let mut hosted = hosted;
        let mut changes = step.changes.into_iter();
        while let Some(change) = changes.next() {
            if let Err(error) = self.carry_out(&key, &claims, &peers, &mut hosted, change).await {
                self.remember(&key, |memory| memory.left_undone(changes.as_slice()));
                return Err(error);
            }
        }
        for (claim, answer) in step.answers {
            shared.exchange.answer(&claim, answer);
        }
        if let Some(hosted) = &hosted {
            shared.say(&**hosted, "Host", step.notes).await;
        }
        self.carry(&pods);
        self.first.done(&key);
        Ok(step.wake.map_or(Outcome::Done, Outcome::After))
    }

    /// Pods of the Job that pulls images ahead: of this very one, not of any that has its name.
    fn warmers(&self, made: &Made) -> Vec<PodView> {
        let Made::Yes(job) = made else { return Vec::new() };
        let pods = self.shared.caches.pods.objects();
        pods.iter().filter(|pod| controller_uid(&***pod) == Some(job)).map(|pod| pod.view.clone()).collect()
    }

    /// Says which bursts are carried to their roots, and who may connect for them.
    fn carry(&self, pods: &[PodView]) {
        let hosted = self.hosted();
        let job_of = |hosted: &HostedBurst| {
            let namespace = hosted.metadata.namespace.clone().unwrap_or_default();
            let made =
                self.shared.caches.mini_clusters.of(&ObjectKey::namespaced(namespace, hosted.spec.slot.as_str()))?;
            let ours = controller_uid(&*made) == hosted.metadata.uid.as_deref();
            made.status.as_ref()?.incarnation.clone().filter(|_| ours)
        };
        self.shared.tunnels.put_inlets(tunnels::inlets(hosted.iter().map(|hosted| &**hosted), job_of, pods));
    }

    /// Changes what is remembered of a slot.
    pub(super) fn remember(&self, key: &SlotKey, change: impl FnOnce(&mut Memory)) {
        let mut state = lock(&self.state);
        let memory = state.memories.entry(key.clone()).or_default();
        change(memory);
        if memory.is_empty() {
            state.memories.remove(key);
        }
    }

    /// Replaces what is remembered of a slot, if that is still `before`; whether it was.
    fn replace(&self, key: &SlotKey, before: &Memory, after: Memory) -> bool {
        let mut replaced = false;
        self.remember(key, |memory| {
            replaced = memory == before;
            if replaced {
                *memory = after;
            }
        });
        replaced
    }

    /// The certificate of a slot may have been taken away: the next step looks.
    fn doubt_secret(&self, key: &SlotKey) {
        if let Some(memory) = lock(&self.state).memories.get_mut(key)
            && matches!(memory.secret, SecretState::Held { .. })
        {
            memory.secret = SecretState::Unknown;
        }
    }

    /// What each peer is told of our capacity.
    pub(in crate::bursting) fn tell_capacity(&self) {
        let (peers, nodes, pods) =
            (self.shared.peers(), self.shared.caches.node_views(), self.shared.caches.pod_views());
        let all = self.hosted();
        let mut state = lock(&self.state);
        state.ledger.rebuild(all.iter().map(|hosted| &**hosted));
        let ledger = state.ledger.clone();
        drop(state);
        let told = |name: &PeerName| {
            let peer = peers.get(name)?;
            let left = self.shared.grants.left(name);
            let import = peer.import.as_ref();
            peer.sees_capacity.then(|| super::capacity::capacity(name, import, (&nodes, &pods), &ledger, left))
        };
        for name in peers.keys() {
            self.shared.exchange.set_capacity(name, told(name));
        }
    }
}
