//! The provider's driver: takes the steps of slots and carries them out, one slot at a time. Decides nothing.
//!
//! One worker with one run at a time is the admission task: what it promises is in the ledger before the next offer is
//! looked at. What takes long (asking a root for a certificate, resolving a name) runs beside it and comes back as memory.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::{Arc, Weak};
use std::time::Duration;

use jiff::Timestamp;
use parking_lot::Mutex;
use tributary_api::hosted_burst::{HostedBurst, HostedBurstStatus};
use tributary_api::labels;
use tributary_api::minicluster::MiniCluster;
use tributary_clock::Now;
use tributary_cluster::apply::Applier;
use tributary_cluster::caches::Cache;
use tributary_cluster::engine::{Controller, Observed};
use tributary_cluster::quotas::QuotaWatch;
use tributary_cluster::worker::{Outcome, Queue};
use tributary_cluster::{ObjectKey, RequestError};
use tributary_contract::ports::PeerRequests;
use tributary_contract::{Capacity, PeerName};
use tributary_render::nodes::Amounts;
use tributary_render::quantity::milli;

use super::lease::Before;
use super::ledger::{Ledger, SlotKey, key_of};
use super::memory::{Memory, Tried};
use super::rate::Rates;
use super::slot::{self, Change, ClaimKey, SlotStep, SlotView, Wanted};
use super::slots::Slots;
use super::warm::Made;
use super::{admission, capacity, results};
use crate::contact::Contacts;
use crate::nodes::{self, Brokers, NodeChoice, NodeView, PodView};
use crate::peers::PeerView;
use crate::shared::Shared;
use crate::turns::{Line, Pace};
use crate::write_cache::WriteCache;

/// The provider's driver.
pub(crate) struct Provider {
    pub(super) shared: Arc<Shared>,
    pub(super) applier: Applier,
    pub(crate) queue: Queue<SlotKey, Line>,
    pub(super) fresh: Arc<WriteCache<HostedBurst>>,
    /// Whoever holds it marks nothing: to mark a slot is to ask for its line.
    pub(super) state: Mutex<State>,
    /// Slots that wait for a ResourceQuota.
    pub(super) quotas: QuotaWatch<SlotKey>,
    /// The mesh of this term.
    pub(super) requests: Mutex<Option<Arc<dyn PeerRequests>>>,
    /// For what runs beside the worker.
    this: Weak<Self>,
}

/// What is remembered in one leader's scope.
#[derive(Default)]
pub(super) struct State {
    pub(super) memories: BTreeMap<SlotKey, Memory>,
    pub(super) slots: Slots,
    pub(super) ledger: Ledger,
    /// When slots are looked at that peers change at will.
    pub(super) pace: Pace<SlotKey>,
    /// How much peers have offered lately.
    rates: Rates,
    /// What is on record of the time before.
    before: Arc<Before>,
    /// What was free on each node when it was last looked at.
    free: BTreeMap<String, Amounts>,
}

impl Provider {
    pub(crate) fn new(shared: Arc<Shared>) -> Arc<Self> {
        let applier = Applier::new(shared.clients.writer.clone(), labels::manager::HOSTED_BURST);
        Arc::new_cyclic(|this: &Weak<Self>| {
            let ours = this.clone();
            let line = move |slot: &SlotKey| match ours.upgrade() {
                Some(this) => this.line(slot),
                None => Line::Here(PeerName::default()),
            };
            let queue = Queue::in_lines(shared.clock.clone(), line);
            Self {
                quotas: QuotaWatch::new(shared.clients.reader.clone(), milli),
                shared,
                applier,
                queue,
                fresh: Arc::default(),
                state: Mutex::default(),
                requests: Mutex::new(None),
                this: this.clone(),
            }
        })
    }

    /// Looks again at what a ResourceQuota refused as soon as there is more room: in the leader's scope.
    pub(crate) async fn watch_quotas(&self) {
        let again = |slot: SlotKey| {
            self.remember(&slot, Memory::forget_quotas);
            self.queue.mark(slot);
        };
        self.quotas.run(again).await;
    }

    /// Ourselves, for a task that may outlive the caller.
    pub(super) fn this(&self) -> Option<Arc<Self>> {
        self.this.upgrade()
    }

    /// The same, to be held for ever.
    pub(super) fn weak(&self) -> Weak<Self> {
        self.this.clone()
    }

    /// Everything there is, for a new term. `renewed` is the last renewal of the Lease by the leader before.
    pub(crate) fn begin(&self, requests: Option<Arc<dyn PeerRequests>>, renewed: Option<Timestamp>) {
        let (peers, hosted) = (self.shared.caches.peers.objects(), self.shared.caches.hosted.objects());
        let (peers, hosted) = (peers.iter().map(|peer| &**peer), hosted.iter().map(|hosted| &**hosted));
        // Not now: all was listed since then, which may have taken long.
        let began = self.shared.now().wall_of(self.shared.began.lock().mono);
        let before = Arc::new(Before::of(renewed, peers, hosted, began));
        *self.state.lock() = State { before, ..State::default() };
        *self.requests.lock() = requests;
        self.fresh.clear();
        for hosted in self.shared.caches.hosted.objects() {
            self.saw(&key_of(&hosted));
            // It may be gone before its first step.
            self.remember(&key_of(&hosted), |memory| memory.saw(&hosted));
        }
        self.recall();
        self.enter_all(self.shared.exchange.claim_keys(), true);
        self.mark_all();
    }

    /// Nothing is known in a new term until [`Provider::begin`].
    pub(crate) fn forget(&self) {
        *self.state.lock() = State::default();
    }

    /// Whether brokers of a HostedBurst are wanted, as far as this term has looked.
    pub(crate) fn keeps(&self, hosted: &HostedBurst) -> bool {
        let kept = self.state.lock().memories.get(&key_of(hosted)).and_then(|memory| memory.kept.clone());
        kept.is_some() && kept == hosted.metadata.uid
    }

    /// Whether every loss of contact is dated: of no HostedBurst it counts from the term before.
    pub(crate) fn has_dated(&self) -> bool {
        all_dated(&self.shared.caches.hosted, &self.shared.provider_contacts())
    }

    async fn carry_out_all(&self, key: &SlotKey, view: Snapshot, step: SlotStep) -> Result<Outcome, RequestError> {
        let shared = &self.shared;
        // Before anything runs beside this: what comes back is written into the newest memory. What came back meanwhile is
        // not taken back: the step is taken again, with it.
        if !self.replace(key, &view.memory, step.memory) {
            self.queue.mark(key.clone());
            return Ok(Outcome::Done);
        }
        if !step.changes.iter().any(|change| matches!(change, Change::Admit { .. })) {
            self.state.lock().ledger.cancel(key);
        }
        // Steps are taken one after the other.
        self.state.lock().rates = step.rates;
        let mut hosted = view.hosted;
        let mut changes = step.changes.into_iter();
        let (mut before, mut refused) = (view.memory, None);
        while let Some(change) = changes.next() {
            let tried = Tried::of(&change);
            let known = tried.filter(|tried| before.refusal(*tried).is_some());
            match self.carry_out(key, &view.claims, &view.peers, &mut hosted, change).await {
                Ok(()) => {
                    let Some(tried) = known else { continue };
                    // The rest of this step would say that it is refused: another one is taken at once.
                    self.remember(key, |memory| {
                        *memory.refusal(tried) = None;
                        memory.left_undone(changes.as_slice());
                    });
                    return Ok(Outcome::After(Duration::ZERO));
                }
                Err(error) => {
                    self.remember(key, |memory| {
                        memory.failed(tried, &error);
                        if known.is_none() {
                            memory.left_undone(changes.as_slice());
                        }
                    });
                    if known.is_none() {
                        return Err(error);
                    }
                    // The step knew, and says so: what is said of it does not wait until it is taken.
                    refused = Some(error);
                }
            }
        }
        for (claim, answer) in step.answers {
            shared.exchange.answer(&claim, answer);
        }
        if let Some(hosted) = &hosted {
            shared.say(&**hosted, "Host", step.notes).await;
        }
        self.carry(key, hosted.as_deref());
        if let Some(error) = refused {
            return Err(error);
        }
        Ok(step.wake.map_or(Outcome::Done, Outcome::After))
    }

    /// Results of a peer that newer ones take the place of.
    fn surplus(&self, peer: &PeerName, peers: &BTreeMap<PeerName, PeerView>, contacts: &Contacts) -> BTreeSet<SlotKey> {
        let now = self.shared.now().mono;
        let state = self.state.lock();
        let surplus = |all| results::surplus(all, peer, peers.get(peer), contacts, now);
        state.slots.results(peer).map(surplus).unwrap_or_default()
    }

    /// Pods of the Job that pulls images ahead: of this very one, not of any that has its name.
    fn warmers(&self, made: &Made) -> Vec<PodView> {
        let Made::Yes(job) = made else { return Vec::new() };
        self.shared.caches.pods.controlled_by(job).iter().map(|pod| PodView::clone(&pod.view)).collect()
    }

    /// Tells each peer of our capacity. Who waits for room is looked at, if there is more than there was.
    pub(crate) fn tell_capacity(&self) {
        let (peers, nodes, pods) =
            (self.shared.peers(), self.shared.caches.node_views(), self.shared.caches.pod_views());
        let more = {
            let mut state = self.state.lock();
            let brokers = state.ledger.brokers();
            let everywhere = nodes::free(&nodes, &pods, &brokers, &|node: &NodeView| node.taints.is_empty());
            for (name, peer) in &peers {
                let (import, left) = (peer.import.as_ref(), || self.shared.grants.left(name));
                let told = || {
                    // Where its bursts may run, as admission has it.
                    let own = import.filter(|import| import.allow_scheduling || NodeChoice::imposed(import).is_some());
                    let own = own.map(|import| nodes::free(&nodes, &pods, &brokers, &capacity::open(import)));
                    let open = own.as_ref().unwrap_or(&everywhere);
                    let told = capacity::capacity(name, import, open, &state.ledger, left());
                    // What cannot be asked for does not come.
                    Capacity { possible: told.possible.filter(|_| !peer.unserved), ..told }
                };
                self.shared.exchange.set_capacity(name, peer.sees_capacity.then(told));
            }
            let free = nodes::free(&nodes, &pods, &Brokers::new(), &|_: &NodeView| true);
            let before = std::mem::replace(&mut state.free, free);
            state.free.iter().any(|(node, free)| before.get(node).is_none_or(|before| free.max(*before) != *before))
        };
        if more {
            self.mark_waiting();
        }
    }
}

/// See [`Provider::has_dated`].
fn all_dated(hosted: &Cache<HostedBurst>, contacts: &Contacts) -> bool {
    // One that cannot be read any more is never dated, and keeps no others from it.
    hosted.objects().iter().filter(|one| hosted.unreadable_of(&ObjectKey::of(&***one)).is_none()).all(|hosted| {
        let dated = |status: &HostedBurstStatus| status.suspect_since.is_some() || status.draining_since.is_some();
        contacts.has_heard(&slot::holder(hosted).0) || hosted.status.as_ref().is_some_and(dated)
    })
}

/// All that a step of a slot looks at, besides the tables of this term.
pub(crate) struct Snapshot {
    now: Now,
    claims: BTreeMap<ClaimKey, Wanted>,
    peers: BTreeMap<PeerName, PeerView>,
    nodes: Arc<BTreeMap<String, NodeView>>,
    contacts: Contacts,
    hosted: Option<Arc<HostedBurst>>,
    mini_cluster: Option<Arc<MiniCluster>>,
    pods: Vec<PodView>,
    warmers: Vec<PodView>,
    own_namespace: String,
    namespace_exists: bool,
    inlet: Result<SocketAddr, String>,
    surplus: bool,
    memory: Memory,
}

impl Controller for Provider {
    type Key = SlotKey;
    type Line = Line;
    type View = Snapshot;
    type Step = SlotStep;
    type Error = RequestError;

    const NAME: &'static str = "hosted burst";
    // That worker is the admission task.
    const CONCURRENCY: usize = 1;

    fn queue(&self) -> &Queue<SlotKey, Line> {
        &self.queue
    }

    async fn observe(&self, key: &SlotKey) -> Result<Observed<Snapshot>, RequestError> {
        let shared = &self.shared;
        let hosted = self.hosted(key);
        if hosted.is_none() {
            // Let in and not made; or gone.
            shared.grants.give_back(key);
        }
        let peers = shared.peers();
        let contacts = shared.provider_contacts();
        let surplus = match hosted.as_deref().filter(|hosted| hosted.has_ended()) {
            Some(hosted) => self.surplus(&hosted.spec.peer.as_str().into(), &peers, &contacts),
            None => BTreeSet::new(),
        };
        if !surplus.contains(key) {
            // One more may be one too many. Those that go wake nobody: they would keep each other awake until they are gone.
            surplus.iter().for_each(|other| self.queue.mark(other.clone()));
        }
        let memory = self.state.lock().memories.get(key).cloned().unwrap_or_default();
        let (mini_clusters, named) = (&shared.caches.mini_clusters, ObjectKey::namespaced(&key.0, &key.1));
        Ok(Observed::Continue(Snapshot {
            now: shared.now(),
            claims: self.claims_on(key, &peers),
            nodes: shared.caches.node_views(),
            // One that is left to another controller has the name as well.
            mini_cluster: mini_clusters.of(&named).or_else(|| mini_clusters.left_alone_of(&named)),
            pods: shared.caches.brokers_of(&key.0, &key.1),
            warmers: self.warmers(&memory.warm_up),
            own_namespace: shared.own_namespace(),
            namespace_exists: shared.caches.has_namespace(&key.0),
            inlet: match hosted.as_deref() {
                Some(hosted) => shared.tunnels.inlet_of(&slot::holder(hosted)),
                None => Err(String::new()),
            },
            surplus: surplus.contains(key),
            peers,
            contacts,
            hosted,
            memory,
        }))
    }

    fn step(&self, key: &SlotKey, view: &Snapshot) -> SlotStep {
        let shared = &self.shared;
        let state = self.state.lock();
        let facts = admission::Facts {
            import: None,
            draining: false,
            slot: key,
            namespace_exists: view.namespace_exists,
            own_namespace: &view.own_namespace,
            ledger: &state.ledger,
            nodes: &view.nodes,
            pods: &shared.caches,
        };
        slot::step(&SlotView {
            now: view.now,
            grace: shared.times.grace,
            key,
            claims: &view.claims,
            listed: &shared.exchange,
            peers: &view.peers,
            contacts: &view.contacts,
            before: &state.before,
            hosted: view.hosted.as_deref(),
            mini_cluster: view.mini_cluster.as_deref(),
            pods: &view.pods,
            warmers: &view.warmers,
            facts: &facts,
            grants: &*shared.grants,
            ours: &shared.ours.borrow(),
            inlet: &view.inlet,
            surplus: view.surplus,
            memory: &view.memory,
            rates: &state.rates,
        })
    }

    async fn apply(&self, key: &SlotKey, view: Snapshot, step: SlotStep) -> Result<Outcome, RequestError> {
        let outcome = self.carry_out_all(key, view, step).await;
        // What was written, also by a step that failed later, counts for the next one.
        self.saw(key);
        outcome
    }
}

#[cfg(test)]
mod tests {
    use kube::runtime::watcher::Event;
    use serde_json::json;
    use tributary_clock::Mono;

    use super::*;

    /// The danger: for as long as it is there, losses of contact count from the term before.
    #[test]
    fn who_cannot_be_read_any_more_keeps_no_others_undated() {
        let (cache, contacts) = (Cache::empty(), Contacts::begin(Mono::ZERO));
        let put = |peer: serde_json::Value| {
            let object = json!({"apiVersion": "tributary.dev/v1alpha1", "kind": "HostedBurst",
                "metadata": {"namespace": "flux", "name": "lake-burst-0"}, "spec": {"peer": peer}});
            cache.take(Event::Apply(serde_json::from_str(&object.to_string()).unwrap()));
        };
        put("east".into());
        assert!(!all_dated(&cache, &contacts));
        put(7.into());
        assert!(all_dated(&cache, &contacts));
    }
}
