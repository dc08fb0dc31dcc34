//! The root's driver: plans Bursts, keeps their status, and puts what they say into the exchange. Decides nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use k8s_openapi::api::core::v1::Secret;
use kube::{Api, ResourceExt};
use parking_lot::Mutex;
use tokio::sync::OwnedMutexGuard;
use tokio::time::timeout;
use tributary_api::burst::{Burst, BurstStatus};
use tributary_api::labels;
use tributary_api::labels::condition::{READY, RESTART_REQUIRED};
use tributary_api::minicluster::{BurstStatus as RowStatus, MiniCluster};
use tributary_api::peer::ClusterPeer;
use tributary_clock::Mono;
use tributary_cluster::apply::Applier;
use tributary_cluster::caches::{Cache, Subscription, controller_of};
use tributary_cluster::engine::{Controller, Observed, nothing};
use tributary_cluster::error::chain;
use tributary_cluster::sweep::{self, Doomed};
use tributary_cluster::worker::{Outcome, Queue};
use tributary_cluster::{ObjectKey, RequestError};
use tributary_cluster::{conditions, traced};
use tributary_contract::ports::CredentialSource;
use tributary_contract::{BurstUid, Credential, CredentialRefusal, CredentialRequest, LeadAddress, Leave, PeerName};
use tributary_telemetry::TraceContext;

use super::burst_status::{self, BurstStep, BurstView};
use super::credential::{self, Grant};
use super::demand::looker::Looker;
use super::hold;
use super::lead_address::{LeadView, NoLead, is_of_lead, lead_address, lead_pod};
use super::offer;
use super::plan::{self, Given, PlanChange};
use super::progress;
use crate::nodes::{NodeView, PodView};
use crate::note::Note;
use crate::provider::slot::ClaimKey;
use crate::shared::{FirstRound, Shared};
use crate::turns::{Line, Pace};
use crate::watch::WatchedNode;
use crate::write_cache::WriteCache;
use crate::{spans, tunnels};

use bursts::Others;

mod bursts;
mod wakes;

/// How often the name of a Burst that is taken is tried again.
const TAKEN_RETRY: Duration = Duration::from_secs(15);

/// How often it is asked whether a Burst has gone with its root.
const LEFT_RETRY: Duration = Duration::from_secs(5);

/// How long an answer waits that only tells progress.
const PROGRESS_AFTER: Duration = Duration::from_secs(1);

/// How long a peer that asks for the certificate waits until its root's status names it, and how long until the second look.
const NAMED_WITHIN: Duration = Duration::from_secs(2);
const NAMED_LOOK: Duration = Duration::from_millis(10);

/// What is handled.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Key {
    /// A MiniCluster's Bursts.
    Root(ObjectKey),
    /// A Burst's status and offer.
    Burst(ObjectKey),
}

/// The root's driver.
pub(crate) struct Root {
    shared: Arc<Shared>,
    applier: Applier,
    pub(crate) queue: Queue<Key, Line>,
    /// The Bursts that were there when the term began.
    first: FirstRound<ObjectKey>,
    /// When Bursts are looked at whose answers change at will.
    pace: Mutex<Pace<BurstUid>>,
    /// How often a peer gets the certificate of a burst.
    credential_pace: Mutex<Pace<ClaimKey>>,
    fresh: Arc<WriteCache<Burst>>,
    pub(crate) looker: Arc<Looker>,
    /// Status writes of one process follow each other: each is made from the one before.
    writing: Arc<tokio::sync::Mutex<()>>,
}

impl Root {
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        let applier = Applier::new(shared.clients.writer.clone(), labels::manager::BURST);
        let own = shared.own.clone();
        let queue = Queue::in_lines(shared.clock.clone(), move |_| Line::Here(own.clone()));
        let (first, fresh, writing) = (FirstRound::default(), Arc::default(), Arc::default());
        let (looker, pace) = (Arc::new(Looker::new(shared.clone(), queue.clone())), Mutex::default());
        Self { shared, applier, queue, first, pace, credential_pace: Mutex::default(), fresh, looker, writing }
    }

    /// What a change of which object means for which key.
    pub(crate) fn feed(&self) -> Vec<Subscription> {
        let caches = &self.shared.caches;
        let fresh = self.fresh.clone();
        vec![
            caches.bursts.subscribe(move |change| fresh.saw(change)),
            wakes::feed(&caches.mini_clusters, &self.queue, wakes::is_same_root, |root| Some(ObjectKey::of(root))),
            wakes::feed(&caches.bursts, &self.queue, wakes::is_same_burst, controller_of::<MiniCluster>),
            caches.bursts.feed(&self.queue, |burst| vec![Key::Burst(ObjectKey::of(burst))]),
            // The more a peer is used, the sooner its budget is spent.
            caches.peers.subscribe({
                let (queue, bursts) = (self.queue.clone(), caches.bursts.clone());
                move |change| {
                    let usage = |peer: &Option<Arc<ClusterPeer>>| {
                        let limited = peer.as_ref().filter(|peer| peer.spec.budget.limits())?;
                        Some(limited.status.as_ref()?.spent.usage())
                    };
                    if usage(&change.old) != usage(&change.new) {
                        let name = |burst: &Burst| burst.status.as_ref().and_then(|status| status.peer.clone());
                        let bursts = bursts.objects().into_iter();
                        let there = bursts.filter(|burst| name(burst).as_ref() == Some(&change.key.name));
                        there.for_each(|burst| queue.mark(Key::Burst(ObjectKey::of(&*burst))));
                    }
                }
            }),
            // The node of a lead: its addresses may change.
            caches.nodes.subscribe({
                let (queue, roots) = (self.queue.clone(), caches.mini_clusters.clone());
                move |change| {
                    let addresses =
                        |node: &Option<Arc<WatchedNode>>| node.as_ref().map(|node| node.view.addresses.clone());
                    if addresses(&change.old) != addresses(&change.new) {
                        mark_roots(&queue, &roots);
                    }
                }
            }),
            caches.namespaces.subscribe({
                let (queue, roots) = (self.queue.clone(), caches.mini_clusters.clone());
                move |change| {
                    if change.new.as_ref().is_some_and(|namespace| namespace.metadata.deletion_timestamp.is_some()) {
                        mark_roots(&queue, &roots);
                    }
                }
            }),
            // The lead's pod: of the Job that bears the root's name.
            wakes::feed(&caches.pods, &self.queue, wakes::is_same_pod, |pod| {
                let lead = pod.view.job.clone().filter(|_| pod.view.index == Some(0));
                lead.map(|job| ObjectKey::namespaced(&pod.view.namespace, job))
            }),
        ]
    }

    /// Everything there is, for the first round of a term.
    pub(crate) fn begin(&self) {
        self.fresh.clear();
        self.looker.begin();
        let caches = &self.shared.caches;
        let roots = caches.mini_clusters.objects().into_iter().map(|object| Key::Root(ObjectKey::of(&*object)));
        let bursts: Vec<ObjectKey> = caches.bursts.objects().iter().map(|object| ObjectKey::of(&**object)).collect();
        // What is said of a burst is said with its Burst: a root that cannot be planned takes nothing of that away.
        self.first.begin(bursts.iter().cloned());
        roots.chain(bursts.into_iter().map(Key::Burst)).for_each(|key| self.queue.mark(key));
    }

    /// Bursts of which it is not known what there is to say: each could not be handled, or not be read. `None`: not every one
    /// was tried yet.
    pub(crate) fn withheld(&self) -> Option<BTreeSet<BurstUid>> {
        let (caches, failed) = (&self.shared.caches, self.first.withheld()?);
        let failed =
            failed.iter().filter_map(|key| caches.bursts.of(key)).map(|burst| BurstUid::from(offer::uid(&burst)));
        Some(failed.chain(caches.unreadable_bursts()?.into_iter().map(BurstUid::from)).collect())
    }

    /// Marks all Bursts: peers changed.
    pub(crate) fn mark_bursts(&self) {
        for burst in self.shared.caches.bursts.objects() {
            self.queue.mark(Key::Burst(ObjectKey::of(&*burst)));
        }
    }

    /// The same for what a peer does. How much room it has, if that is all, matters to those alone that look for a place.
    pub(crate) fn mark_bursts_for(&self, peer: &PeerName, room_alone: bool, at: Mono) {
        let looks =
            |burst: &Burst| offer::is_wanted(burst) && burst.status.as_ref().is_none_or(|status| status.peer.is_none());
        for burst in self.shared.caches.bursts.objects().iter().filter(|burst| !room_alone || looks(burst)) {
            self.queue.mark_in(Line::Said(peer.clone()), Key::Burst(ObjectKey::of(&**burst)), at);
        }
    }

    /// Marks all roots: nodes changed.
    pub(crate) fn mark_roots(&self) {
        mark_roots(&self.queue, &self.shared.caches.mini_clusters);
    }

    /// The answer of a peer about a burst changed. One that only tells progress waits [`PROGRESS_AFTER`], together with what
    /// follows it.
    pub(crate) fn answered(&self, (peer, uid): &ClaimKey) {
        for burst in self.shared.caches.bursts_by_uid.of(uid.as_str()) {
            let (now, key) = (self.shared.clock.mono(), ObjectKey::of(&*burst));
            let turn = self.pace.lock().turn(uid, now);
            let (known, answers) = (self.fresh.of(&key, Some(burst)), self.shared.exchange.answers(uid));
            let progress = known.is_some_and(|known| progress::is_progress_only(&known, peer, answers.get(peer)));
            let at = if progress { turn.max(now + PROGRESS_AFTER) } else { turn };
            self.queue.mark_in(Line::Said(peer.clone()), Key::Burst(key), at);
        }
    }

    /// A root with bursts, and what they are planned from.
    fn root_view(&self, key: &ObjectKey, left: bool) -> Option<RootView> {
        let root = self.shared.caches.mini_clusters.of(key)?;
        let bursts = self.bursts_of(&root.uid().unwrap_or_default());
        if bursts.is_empty() && root.spec.flux.bursting.clusters.is_empty() {
            return None;
        }
        let index_zero = self.index_zero(&root);
        let lead = self.lead(&root, &index_zero).ok();
        let node = lead_pod(&index_zero).and_then(|pod| pod.node.as_deref()).and_then(|name| self.node(name));
        let trace = traced::change(&self.shared.traces, &*root).map(|(change, _)| change);
        let refused = !tributary_render::is_valid(&root, &self.shared.settings);
        let arch = node.and_then(|node| node.architecture);
        Some(RootView { arch, root, bursts, index_zero, lead, trace, refused, left })
    }

    async fn make(&self, view: &RootView, changes: Vec<PlanChange>) -> Result<Outcome, RequestError> {
        let root = &view.root;
        let (mut wake, mut failed) = (view.left.then_some(LEFT_RETRY), None);
        for change in changes {
            match change {
                PlanChange::Apply(burst) => {
                    let key = ObjectKey::of(&*burst);
                    let live = self.fresh.of(&key, self.shared.caches.bursts.of(&key));
                    let pen = self.fresh.pen(key.clone());
                    match self.applier.own(&*burst, live.as_deref()).await {
                        Ok(made) => {
                            if let Some(stored) = made.object() {
                                pen.wrote(stored);
                                self.queue.mark(Key::Burst(key));
                            }
                        }
                        // The other bursts go on without this one.
                        Err(error) => {
                            let note = match error.taken().filter(|taken| !taken.is_left_over(&key.name)) {
                                Some(taken) => {
                                    wake.get_or_insert(TAKEN_RETRY);
                                    Some(Note::warning("NameTaken", taken.sentence()))
                                }
                                None => {
                                    let refused = !error.cause().is_transient() && error.taken().is_none();
                                    let note = refused.then(|| Note::warning("BurstRefused", chain(&error)));
                                    failed.get_or_insert(error);
                                    note
                                }
                            };
                            self.shared.say(&**root, "Burst", note.into_iter().collect()).await;
                        }
                    }
                }
                PlanChange::Delete { name, uid } => {
                    let doomed = Doomed { key: ObjectKey { namespace: root.namespace(), name }, uid };
                    sweep::delete::<Burst>(&self.shared.clients.writer, &doomed).await?;
                    self.fresh.forget(&doomed.key, &doomed.uid);
                }
            }
        }
        let budget = root.spec.flux.bursting.budget.limits();
        // The lead's pod may be another, and so may what is left of the root's budget.
        for burst in self.bursts_of(&root.uid().unwrap_or_default()) {
            let burst = self.as_made(burst);
            let short = burst.shortfall(root).is_some();
            if budget
                || burst.status.as_ref().is_some_and(|status| status.held.is_some() || says_short(status) != short)
            {
                self.queue.mark(Key::Burst(ObjectKey::of(&*burst)));
            }
            self.shared.tunnels.fence(offer::uid(&burst), tunnels::outlet(&burst, &view.index_zero), || ());
        }
        failed.map_or(Ok(wake.map_or(Outcome::Done, Outcome::After)), Err)
    }

    /// Pods of the lead broker.
    fn index_zero(&self, root: &MiniCluster) -> Vec<PodView> {
        let pods = self.shared.caches.pods_of(&root.namespace().unwrap_or_default(), &root.name_any());
        pods.into_iter().filter(|pod| is_of_lead(root, pod)).collect()
    }

    fn lead(&self, root: &MiniCluster, index_zero: &[PodView]) -> Result<LeadAddress, NoLead> {
        let status = root.status.as_ref().map(|status| status.lead.clone()).unwrap_or_default();
        let (network, ours) = (&root.spec.flux.bursting.network, self.shared.ours.borrow());
        let view = LeadView { network, status: &status, index_zero, ours: &ours };
        lead_address(&view, |name| self.node(name))
    }

    fn node(&self, name: &str) -> Option<NodeView> {
        self.shared.caches.nodes.of(&ObjectKey::cluster_scoped(name)).map(|node| node.view.clone())
    }

    /// The root of a Burst, with the pods of its lead.
    fn root_of(&self, burst: &Burst) -> Option<(Arc<MiniCluster>, Vec<PodView>)> {
        let key = controller_of::<MiniCluster>(burst)?;
        let root = self.shared.caches.mini_clusters.of(&key)?;
        let index_zero = self.index_zero(&root);
        Some((root, index_zero))
    }

    /// A Burst, and what its status follows from.
    async fn placed_view(&self, key: &ObjectKey) -> Option<PlacedView> {
        let shared = &self.shared;
        let writing = self.writing.clone().lock_owned().await;
        let Some(burst) = self.fresh.of(key, shared.caches.bursts.of(key)) else {
            self.withdraw_what_is_gone();
            return None;
        };
        let burst = self.as_made(burst);
        let peers = shared.peers();
        let uid = offer::uid(&burst).into();
        if !shared.exchange.is_offered(&uid) {
            // It may have the name of one that is gone, whose end nobody saw.
            self.withdraw_what_is_gone();
        }
        let (root, index_zero) = self.root_of(&burst).unzip();
        let index_zero = index_zero.unwrap_or_default();
        let no_lead = root.as_ref().and_then(|root| self.lead(root, &index_zero).err());
        let holder = burst.status.as_ref().and_then(|status| status.peer.as_deref());
        let ends = holder.map(|peer| shared.tunnels.ends_of(&(peer.into(), uid.clone()))).unwrap_or_default();
        let seen = controller_of::<MiniCluster>(&*burst).and_then(|root| self.looker.seen(&root, &burst.spec.slot));
        let view = BurstView {
            now: shared.now(),
            counted: shared.counted(),
            grace: shared.times.grace,
            own: shared.own.clone(),
            peers,
            contacts: shared.root_contacts(),
            answers: shared.exchange.answers(&uid),
            withdrawing: shared.exchange.withdrawing(&uid),
            undeliverable: shared.exchange.undeliverable_to(&uid),
            no_lead,
            ends,
            root,
            seen,
            burst,
        };
        Some(PlacedView { view, index_zero, writing })
    }

    async fn place(&self, view: PlacedView, step: BurstStep) -> Result<Outcome, RequestError> {
        let shared = &self.shared;
        let BurstView { burst, peers, .. } = &view.view;
        let mut notes = Vec::new();
        let stored = match self.record(burst, &step.status).await? {
            Some(stored) => {
                // Before anything is waited for: an agent that stops leading goes no further than that.
                shared.steps.observe(burst, &stored);
                shared.traces.record(spans::burst_spans(burst, &stored, shared.now().wall));
                notes = step.notes;
                self.as_made(stored)
            }
            None => burst.clone(),
        };
        // What is said follows from what is stored, never from an intention.
        shared.tunnels.fence(offer::uid(&stored), tunnels::outlet(&stored, &view.index_zero), || {
            offer::say(&shared.exchange, &stored, peers);
        });
        // Nobody waits until events are written: neither the peer, nor who asks for the certificate.
        drop(view.writing);
        shared.say(&*stored, "Place", notes).await;
        Ok(step.wake.map_or(Outcome::Done, Outcome::After))
    }

    /// Bursts that are gone, with their root or by hand: whoever was offered them is told to let go. Only what the cache
    /// has seen the end of is gone.
    fn withdraw_what_is_gone(&self) {
        let Some(exists) = self.existing() else { return };
        self.shared.tunnels.retain_outlets(|(_, uid)| exists(uid));
        for uid in self.shared.exchange.offered(|uid| !exists(uid)) {
            self.shared.exchange.offer(&uid, BTreeMap::new());
        }
    }

    /// What peers say of bursts that do not exist is dropped, once all that exist are known.
    pub(crate) fn drop_answers_about_nothing(&self) {
        if let (Some(_), Some(exists)) = (self.first.withheld(), self.existing()) {
            self.shared.exchange.retain_answers(exists);
        }
    }

    async fn hand_out(&self, peer: &PeerName, request: CredentialRequest) -> Result<Credential, CredentialRefusal> {
        let writing = self.writing.lock().await;
        let burst = self.of_uid(&request.burst).ok_or(CredentialRefusal::NotReady)?;
        let key = ObjectKey::of(&*burst);
        let peers = self.shared.peers();
        let grant = credential::grant(&burst, peer, peers.get(peer), &request)?;
        credential::take_turn(&mut self.credential_pace.lock(), peer, &request, self.shared.clock.mono())?;
        if let Grant::Record(status) = grant {
            self.record(&burst, &status).await.map_err(|error| {
                let error = chain(&error);
                tracing::warn!(%peer, burst = %key, error, "a certificate is not handed out before that is on record");
                CredentialRefusal::NotReady
            })?;
        }
        // A peer that asks again and again holds nobody up.
        drop(writing);
        if burst.spec.whole {
            tracing::info!(%peer, burst = %key, "leave to start is given");
            return Ok(Leave::of(&request.incarnation).into());
        }
        let named = async {
            let mut pause = NAMED_LOOK;
            while !self.is_named_by_root(&burst, peer) {
                tokio::time::sleep(pause).await;
                pause = pause * 3 / 2;
            }
        };
        timeout(NAMED_WITHIN, named).await.map_err(|_| {
            tracing::warn!(%peer, burst = %key, "a certificate is not handed out before the root's status names the peer");
            CredentialRefusal::NotReady
        })?;
        let namespace = burst.namespace().unwrap_or_default();
        let secrets: Api<Secret> = Api::namespaced(self.shared.clients.reader.clone(), &namespace);
        let stored = secrets.get_opt(&burst.spec.credential_secret).await;
        let stored = stored.map_err(|error| {
            let error = chain(&error);
            tracing::warn!(%peer, burst = %key, error, "a certificate is not handed out before its Secret can be read");
            CredentialRefusal::NotReady
        })?;
        let text = match credential::of_instance(stored, &request.digest) {
            Ok(text) => text,
            Err(why) => {
                let note = Note::warning("CertificateMissing", credential::missing(&burst, why));
                self.shared.say(&*burst, "Place", vec![note]).await;
                return Err(CredentialRefusal::NotReady);
            }
        };
        tracing::info!(%peer, burst = %key, "the certificate is handed out");
        Ok(Credential::new(text))
    }

    /// Whether the status of a Burst's root names the peer as the holder of the slot: who deletes the Burst would otherwise
    /// make the slot look free, though the peer can run it.
    fn is_named_by_root(&self, burst: &Burst, peer: &PeerName) -> bool {
        let root = controller_of::<MiniCluster>(burst).and_then(|key| self.shared.caches.mini_clusters.of(&key));
        let names = |row: &&RowStatus| {
            let holder = row.holder.as_ref().filter(|holder| holder.peer == peer.as_str());
            row.name == burst.spec.slot && holder.is_some_and(|holder| hold::can_join(holder, &burst.spec))
        };
        root.is_some_and(|root| root.status.iter().flat_map(|status| &status.bursts).any(|row| names(&row)))
    }

    /// Stores `status` on exactly this version of the Burst: a newer one may be placed elsewhere, or have recipients
    /// that this one does not know. `None`: it is what is stored.
    async fn record(&self, burst: &Burst, status: &BurstStatus) -> Result<Option<Arc<Burst>>, RequestError> {
        let pen = self.fresh.pen(ObjectKey::of(burst));
        let outcome = self.applier.apply_status_to_version(burst, status).await;
        let bursts: Api<Burst> =
            Api::namespaced(self.shared.clients.reader.clone(), &burst.namespace().unwrap_or_default());
        let outcome = pen.tried(burst.uid(), outcome, bursts.get_opt(&burst.name_any())).await?;
        Ok(outcome.object().map(|stored| pen.wrote(stored)))
    }
}

/// A root, and what its Bursts are planned from.
pub(crate) struct RootView {
    root: Arc<MiniCluster>,
    bursts: Vec<Arc<Burst>>,
    /// Pods of the lead broker.
    index_zero: Vec<PodView>,
    lead: Option<LeadAddress>,
    /// Architecture of the lead's node.
    arch: Option<String>,
    trace: Option<TraceContext>,
    /// The spec cannot be carried out.
    refused: bool,
    /// A Burst of an earlier root of this name has yet to go.
    left: bool,
}

/// A Burst, and what its status follows from.
pub(crate) struct PlacedView {
    view: BurstView,
    /// Pods of the lead broker.
    index_zero: Vec<PodView>,
    /// Nobody else writes the status of a Burst until this one is written.
    writing: OwnedMutexGuard<()>,
}

/// What is observed.
pub(crate) enum View {
    Root(RootView),
    Burst(Box<PlacedView>),
}

/// What is decided.
pub(crate) enum Step {
    /// Which Bursts a root has.
    Plan(Vec<PlanChange>),
    /// Where a Burst is, and what is told of it.
    Place(Box<BurstStep>),
}

impl Controller for Root {
    type Key = Key;
    type Line = Line;
    type View = View;
    type Step = Step;
    type Error = RequestError;

    const NAME: &'static str = "burst";
    // What one Burst claims of a peer, the next one does not.
    const CONCURRENCY: usize = 1;

    fn queue(&self) -> &Queue<Key, Line> {
        &self.queue
    }

    async fn observe(&self, key: &Key) -> Result<Observed<View>, RequestError> {
        let mut left = false;
        let view = match key {
            Key::Root(root) => {
                left = self.forget_what_went_unseen(root).await?;
                self.root_view(root, left).map(View::Root)
            }
            Key::Burst(burst) => self.placed_view(burst).await.map(|view| View::Burst(Box::new(view))),
        };
        Ok(match (view, key) {
            (Some(view), _) => Observed::Continue(view),
            (None, Key::Root(_)) if left => Observed::Break(Outcome::After(LEFT_RETRY)),
            (None, Key::Root(_)) => nothing(),
            (None, Key::Burst(burst)) => {
                self.first.handled(burst, true);
                nothing()
            }
        })
    }

    fn step(&self, key: &Key, view: &View) -> Step {
        let times = &self.shared.times;
        match view {
            View::Root(view) => {
                let (lead, arch) = (view.lead.as_ref(), view.arch.as_deref());
                let namespace_goes = self.shared.caches.goes_with_namespace(&view.root.metadata);
                let given = Given { lead, arch, times, trace: view.trace, refused: view.refused, namespace_goes };
                let bursts: Vec<&Burst> = view.bursts.iter().map(|burst| &**burst).collect();
                Step::Plan(plan::plan(&view.root, &bursts, given))
            }
            View::Burst(view) => {
                let claimed = Others { root: self, besides: key };
                Step::Place(Box::new(burst_status::step(&view.view, &claimed)))
            }
        }
    }

    async fn apply(&self, key: &Key, view: View, step: Step) -> Result<Outcome, RequestError> {
        match (view, step) {
            (View::Root(view), Step::Plan(changes)) => self.make(&view, changes).await,
            (View::Burst(view), Step::Place(step)) => {
                let outcome = self.place(*view, *step).await;
                if let Key::Burst(burst) = key {
                    self.first.handled(burst, outcome.is_ok());
                }
                outcome
            }
            // A root is planned, and a Burst is placed.
            _ => Ok(Outcome::Done),
        }
    }
}

/// Whether a status says that only a restart brings what the root asks for.
fn says_short(status: &BurstStatus) -> bool {
    conditions::find(&status.conditions, READY).is_some_and(|ready| ready.reason == RESTART_REQUIRED)
}

/// Marks all MiniClusters with bursts.
fn mark_roots(queue: &Queue<Key, Line>, roots: &Cache<MiniCluster>) {
    for object in roots.objects() {
        if !object.spec.flux.bursting.clusters.is_empty() {
            queue.mark(Key::Root(ObjectKey::of(&*object)));
        }
    }
}

impl CredentialSource for Root {
    fn credential<'a>(
        &'a self,
        peer: &'a PeerName,
        request: CredentialRequest,
    ) -> BoxFuture<'a, Result<Credential, CredentialRefusal>> {
        self.hand_out(peer, request).boxed()
    }
}
