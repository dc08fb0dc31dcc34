//! The queue's driver: takes a round of each namespace that changed, and carries it out. Decides nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use futures::{FutureExt, StreamExt, stream};
use jiff::Timestamp;
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::scheduling::v1::PriorityClass;
use kube::api::{Api, ListParams, Patch, PatchParams};
use kube::{Resource, ResourceExt};
use parking_lot::Mutex;
use serde_json::json;
use tokio_util::sync::CancellationToken;
use tributary_api::burst::Burst;
use tributary_api::flux_job::{FluxJob, FluxJobStatus, JobPhase, JobResult};
use tributary_api::flux_setup::{self, CheckNodes, FluxSetup, OverflowPolicy};
use tributary_api::hosted_burst::HostedBurst;
use tributary_api::minicluster::MiniCluster;
use tributary_api::peer::ClusterPeer;
use tributary_api::{labels, names};
use tributary_clock::{SharedClock, SystemRng};
use tributary_cluster::apply::{Appliable, Applier, Once};
use tributary_cluster::caches::{self, Cache, Selection, Subscription, controller_of, controller_uid};
use tributary_cluster::client::Clients;
use tributary_cluster::engine::{self, Controller, Observed};
use tributary_cluster::error::chain;
use tributary_cluster::events::{Events, Notice};
use tributary_cluster::fence::Fence;
use tributary_cluster::quotas::QuotaWatch;
use tributary_cluster::sweep::{self, Doomed};
use tributary_cluster::work::Worked;
use tributary_cluster::worker::{Outcome, Queue};
use tributary_cluster::{ObjectKey, RequestError};
use tributary_render::quantity::milli;

use super::admission::Admission;
use super::claims::{self, Claims};
use super::figures::QueueFigures;
use super::hosted_usage::{self, HostedUsage};
use super::job::{self, JobStep, Missing, Then};
use super::nodes::Nodes;
use super::overflow::{Peers, Sender};
use super::priorities::Priorities;
use super::promises::Promises;
use super::quota_waits::{self, QuotaWaits};
use super::reservations;
use super::round::{Namespace, Round, View, round};

/// FluxJobs of one round that are written at the same time.
const AT_A_TIME: usize = 16;

/// Before it is looked again for something that was not seen and exists.
const LOOK_FOR_IT_AGAIN: Duration = Duration::from_secs(5);

/// What is made of FluxJobs.
trait Made: Appliable + Resource<Scope = NamespaceResourceScope> + Clone + fmt::Debug {}
impl<K: Appliable + Resource<Scope = NamespaceResourceScope> + Clone + fmt::Debug> Made for K {}

/// What the queue asks others.
pub struct Ports {
    /// Who watches nodes.
    pub nodes: Nodes,
    /// Who knows peers.
    pub peers: Peers,
    /// Who makes Bursts of FluxJobs that are sent.
    pub sender: Sender,
    /// Whom bursting asks.
    pub guests: HostedUsage,
}

/// The queue of each namespace.
pub struct Queueing {
    clients: Clients,
    setups: Cache<FluxSetup>,
    classes: Cache<PriorityClass>,
    jobs: Cache<FluxJob>,
    mini_clusters: Cache<MiniCluster>,
    hosted: Cache<HostedBurst>,
    bursts: Cache<Burst>,
    cluster_peers: Cache<ClusterPeer>,
    applier: Applier,
    events: Events,
    clock: SharedClock,
    /// When this leader's scope began.
    began: Mutex<Timestamp>,
    /// Namespaces whose round is due.
    rounds: Queue<String>,
    admission: Admission,
    /// What FluxJobs claim, by namespace.
    claims: Mutex<BTreeMap<String, Claims>>,
    promises: Promises,
    ports: Ports,
    /// FluxJobs that the API server does not take now, and who tells that a ResourceQuota may have room.
    quota_waits: Mutex<QuotaWaits>,
    quotas: QuotaWatch<ObjectKey>,
    _subscriptions: Vec<Subscription>,
}

impl Queueing {
    /// The queue, and the watches to spawn; they run on standbys too.
    pub fn new(
        clients: &Clients,
        watches: (Cache<MiniCluster>, Cache<HostedBurst>, Cache<Burst>, Cache<ClusterPeer>),
        ports: Ports,
        events: Events,
        clock: SharedClock,
    ) -> (Arc<Self>, Vec<BoxFuture<'static, ()>>) {
        let (mini_clusters, hosted, bursts, cluster_peers) = watches;
        let everything = Selection::default();
        let counts = Selection::named(flux_setup::NAME);
        let (setups, watch_setups) = caches::watched::<FluxSetup, _>(clients, &counts, SystemRng);
        let (classes, watch_classes) = caches::all::<PriorityClass, _>(clients.reader.clone(), &everything, SystemRng);
        let (jobs, watch_jobs) = caches::watched::<FluxJob, _>(clients, &everything, SystemRng);
        let rounds = Queue::new(clock.clone());
        let admission = Admission::new(setups.clone(), jobs.clone(), rounds.clone());
        ports.guests.leads_to(rounds.clone());
        fn namespace(object: &impl kube::Resource) -> Vec<String> {
            object.meta().namespace.clone().into_iter().collect()
        }
        let (ruled, used, named) = (setups.clone(), jobs.clone(), jobs.clone());
        let (ruled_too, overflowing, ordered) = (setups.clone(), setups.clone(), setups.clone());
        let subscriptions = vec![
            // One that is left to another controller has its name all the same.
            mini_clusters
                .feed_left_alone(&rounds, move |key| key.namespace.clone().filter(|_| named.of(key).is_some())),
            // Their statuses are written often, and say little of room.
            hosted.subscribe({
                let rounds = rounds.clone();
                move |change| {
                    let read = |guest: &Option<Arc<HostedBurst>>| guest.as_deref().map(hosted_usage::read);
                    let here = change.key.namespace.clone().filter(|here| is_ruled(&ruled_too, here));
                    if let Some(here) = here.filter(|_| read(&change.old) != read(&change.new)) {
                        rounds.mark(here);
                    }
                }
            }),
            setups.feed(&rounds, namespace),
            classes.feed(&rounds, move |_| ordered.objects().iter().filter_map(|setup| setup.namespace()).collect()),
            jobs.feed(&rounds, namespace),
            bursts.feed(&rounds, |burst| {
                // Whoever makes one of that name is in the way of a FluxJob.
                let named = burst.metadata.name.as_deref().is_some_and(names::is_of_sent_job);
                if named || controller_of::<FluxJob>(burst).is_some() { namespace(burst) } else { Vec::new() }
            }),
            // They have more room, or less.
            cluster_peers.feed(&rounds, move |_| {
                let all = overflowing.objects();
                let overflowing = all.iter().filter(|setup| setup.spec.overflow.policy != OverflowPolicy::Never);
                overflowing.filter_map(|setup| setup.namespace()).collect()
            }),
            // Most namespaces have no queue.
            mini_clusters.feed(&rounds, move |object| {
                let counts = |here: &String| is_ruled(&ruled, here) || used.of(&ObjectKey::of(object)).is_some();
                object.namespace().filter(counts).into_iter().collect()
            }),
        ];
        let queueing = Self {
            clients: clients.clone(),
            setups,
            classes,
            jobs,
            mini_clusters,
            hosted,
            bursts,
            cluster_peers,
            applier: Applier::new(clients.writer.clone(), labels::manager::QUEUE),
            events,
            clock,
            began: Mutex::default(),
            rounds,
            admission,
            claims: Mutex::default(),
            promises: Promises::default(),
            ports,
            quota_waits: Mutex::default(),
            quotas: QuotaWatch::new(clients.reader.clone(), milli),
            _subscriptions: subscriptions,
        };
        (Arc::new(queueing), vec![watch_setups.boxed(), watch_classes.boxed(), watch_jobs.boxed()])
    }

    /// The caches that nobody else has, of what is ours.
    pub fn caches(&self) -> (Cache<FluxSetup>, Cache<FluxJob>) {
        (self.setups.clone(), self.jobs.clone())
    }

    /// Where the reconciler asks.
    pub fn admission(&self) -> Admission {
        self.admission.clone()
    }

    /// Nothing is known at the beginning of a leader's scope: to be called before anybody asks.
    pub fn begin(&self) {
        *self.began.lock() = self.clock.wall();
        *self.quota_waits.lock() = QuotaWaits::default();
        self.claims.lock().clear();
        self.promises.clear();
        self.admission.begin();
        self.ports.guests.begin();
    }

    /// What its worker does, for the metrics.
    pub fn queues(&self) -> Vec<(&'static str, Box<dyn Worked>)> {
        vec![engine::worked(self)]
    }

    /// What the metrics show of queues.
    pub fn figures(&self, fence: Fence) -> QueueFigures {
        let (setups, jobs) = (self.setups.clone(), self.jobs.clone());
        QueueFigures { setups, jobs, mini_clusters: self.mini_clusters.clone(), fence, clock: self.clock.clone() }
    }

    /// Takes rounds until `stop`: in the leader's scope.
    pub async fn run(self: Arc<Self>, stop: CancellationToken) {
        let listed = async {
            self.setups.listed().await;
            self.classes.listed().await;
            self.jobs.listed().await;
            self.mini_clusters.listed().await;
            self.hosted.listed().await;
            self.bursts.listed().await;
        };
        tokio::select! {
            () = listed => {}
            () = stop.cancelled() => return,
        }
        let unreadable = self.setups.unreadable().into_iter().filter_map(|setup| setup.key.namespace);
        let ruled = self.setups.objects().iter().filter_map(|setup| setup.namespace()).chain(unreadable).collect();
        self.ports.guests.listed(ruled);
        // Those included that asked while it was not known whether anybody rules their namespace.
        let namespaces: BTreeSet<String> = (self.mini_clusters().iter().filter_map(|object| object.namespace()))
            .chain(self.setups.objects().iter().filter_map(|object| object.namespace()))
            .chain(self.jobs.objects().iter().filter_map(|object| object.namespace()))
            .collect();
        namespaces.into_iter().for_each(|namespace| self.rounds.mark(namespace));
        // One that could not be read, and is deleted, is no change of what was read.
        let (mut setups, mut read) = (self.setups.unreadable_changes(), self.mini_clusters.unreadable_changes());
        let (clusters, jobs, rounds) = (self.mini_clusters.clone(), self.jobs.clone(), self.rounds.clone());
        let unreadable = async move {
            // The caches hold the senders.
            while tokio::select! { changed = setups.changed() => changed, changed = read.changed() => changed }.is_ok()
            {
                let all = clusters.objects().into_iter().filter_map(|object| object.namespace());
                let all = all.chain(jobs.objects().into_iter().filter_map(|job| job.namespace()));
                all.collect::<BTreeSet<String>>().into_iter().for_each(|namespace| rounds.mark(namespace));
            }
        };
        let this = self.clone();
        let quotas = this.quotas.run(|key| {
            this.quota_waits.lock().try_again(&key);
            this.rounds.mark(key.namespace.unwrap_or_default());
        });
        tokio::select! {
            () = engine::run(self, stop) => {}
            () = unreadable => {}
            () = quotas => {}
        }
    }

    /// FluxJobs that cannot be read, whether they could be before or not.
    fn unreadable_jobs(&self) -> BTreeSet<ObjectKey> {
        self.jobs.unreadable().into_iter().map(|job| job.key).collect()
    }

    /// The MiniClusters. Of those that this process could never read, it is known what they hold, if their status says so.
    fn mini_clusters(&self) -> Vec<Arc<MiniCluster>> {
        let mut all = self.mini_clusters.objects();
        let unread = self.mini_clusters.unreadable().into_iter();
        let unread = unread.filter(|one| self.mini_clusters.of(&one.key).is_none());
        all.extend(unread.filter_map(|one| reservations::unread(&one.key, one.uid, &one.status).map(Arc::new)));
        all
    }

    /// UIDs of everything that may take room. Which MiniClusters have ended is told where what they hold is looked at.
    fn alive(&self) -> BTreeSet<String> {
        let (mini_clusters, jobs) = (self.mini_clusters(), self.jobs.objects());
        let clusters = mini_clusters.iter().filter_map(|found| found.uid());
        clusters.chain(jobs.iter().filter(|job| !job::is_finished(job)).filter_map(|job| job.uid())).collect()
    }

    /// Carries a step out; or says when to try again.
    /// `fresh`: it was let through in this round.
    async fn carry_out(&self, job: Arc<FluxJob>, step: JobStep, fresh: bool) -> Result<Option<Duration>, RequestError> {
        let JobStep { mut status, then, without, .. } = step;
        for missing in without {
            if self.exists(&job, missing).await? {
                return Ok(Some(LOOK_FOR_IT_AGAIN));
            }
        }
        let makes = matches!(then, Then::Create(_) | Then::Send(_));
        let waits = || self.quota_waits.lock().stands(&ObjectKey::of(&*job), job.uid().as_deref(), self.clock.mono());
        let waits = makes.then(waits).flatten();
        if let Some((sentence, _)) = &waits {
            status.message.clone_from(sentence);
        }
        // That it was admitted is on record before anything of it is made: whoever leads next counts it.
        match self.applier.apply_status_to_version(&*job, &status).await {
            Ok(_) => {}
            Err(error) if error.cause().is_not_found() => return Ok(None),
            // Its user has changed it since, or the cache was behind: what was decided is about another.
            Err(error) if error.cause().is_conflict() => {
                if makes && fresh {
                    self.admission.take_back(job.metadata.uid.as_deref().unwrap_or_default());
                }
                return Ok(Some(LOOK_FOR_IT_AGAIN));
            }
            Err(error) => return Err(error),
        }
        self.tell(&job, &status).await;
        if let Some((_, left)) = waits.filter(|(_, left)| !left.is_zero()) {
            return Ok(Some(left));
        }
        let writer = &self.clients.writer;
        match then {
            Then::Nothing => {}
            Then::Create(made) => return self.make(&job, status, &*made).await,
            Then::Send(burst) => return self.make(&job, status, &*burst).await,
            Then::ReleaseBurst(uid) => self.release(&job, &uid).await?,
            Then::DeleteBurst(uid) => {
                let key = ObjectKey { namespace: job.namespace(), name: names::sent_burst(&job.name_any()) };
                sweep::delete::<Burst>(writer, &Doomed { key, uid }).await?;
            }
            Then::DeleteMiniCluster(uid) => {
                let doomed = Doomed { key: ObjectKey::of(&*job), uid };
                sweep::delete::<MiniCluster>(writer, &doomed).await?;
            }
            Then::DeleteJob => {
                if let Some(doomed) = Doomed::of(&*job) {
                    sweep::delete::<FluxJob>(writer, &doomed).await?;
                }
            }
        }
        Ok(None)
    }

    /// Makes what a FluxJob starts as; or says when to try again.
    async fn make<K: Made>(
        &self,
        job: &FluxJob,
        status: FluxJobStatus,
        made: &K,
    ) -> Result<Option<Duration>, RequestError> {
        let (kind, key) = (K::kind(&()), ObjectKey::of(job));
        let made_it = self.applier.create_once(made).await;
        let patience = job::patience_with_policy(&status, *self.began.lock(), self.clock.wall());
        let waits = made_it.as_ref().err().and_then(|error| quota_waits::sentence(&kind, error, patience));
        if waits.is_none() {
            self.quota_waits.lock().forget(&key);
        }
        match (made_it, waits) {
            (Ok(Once::Created(_)), _) => Ok(None),
            (Ok(Once::Exists), _) => {
                // Ours, and the cache is behind; or another's, and the next round says so once the cache shows it.
                if self.listed_owner::<K>(made.namespace(), &made.name_any()).await? != job.uid() {
                    let sentence = format!("{kind} {} exists and is another's", made.name_any());
                    self.events.publish(job, Notice::warning("Create", "NameTaken", sentence)).await;
                }
                Ok(None)
            }
            (Err(error), Some(message)) => {
                let by_policy = error.cause().is_of_policy() && !error.cause().is_quota();
                let status = job::refused_for_now(status, by_policy, self.clock.wall());
                if error.cause().is_quota() {
                    self.quotas.wait(key.namespace.as_deref().unwrap_or_default(), key.clone());
                }
                let now = self.clock.mono();
                let (left, is_news) = self.quota_waits.lock().refused(&key, job.uid(), message.clone(), now);
                if is_news {
                    self.events.publish(job, Notice::warning("Create", "CannotCreate", message.clone())).await;
                }
                self.applier.apply_status(job, &FluxJobStatus { message, ..status }).await?;
                Ok(Some(left))
            }
            // Asking again would hold its room for ever.
            (Err(error), None)
                if error.cause().is_invalid() || error.cause().is_denied() || error.cause().is_of_policy() =>
            {
                let status = job::refused(status, &kind, &chain(&error), self.clock.wall());
                self.applier.apply_status(job, &status).await?;
                self.tell(job, &status).await;
                Ok(None)
            }
            (Err(error), None) => {
                let notice = Notice::warning("Create", "CannotCreate", chain(&error));
                self.events.publish(job, notice).await;
                Err(error)
            }
        }
    }

    /// Whether something of a FluxJob exists, or may, though a round did not see it: a cache may be behind, or hold objects
    /// that it cannot read.
    async fn exists(&self, job: &FluxJob, missing: Missing) -> Result<bool, RequestError> {
        if !(self.bursts.is_complete() && self.mini_clusters.is_complete()) {
            return Ok(true);
        }
        let (namespace, name) = (job.namespace(), job.name_any());
        let owner = match missing {
            Missing::Burst => self.listed_owner::<Burst>(namespace, &names::sent_burst(&name)).await?,
            Missing::MiniCluster => self.listed_owner::<MiniCluster>(namespace, &name).await?,
        };
        Ok(owner.is_some_and(|owner| Some(owner) == job.uid()))
    }

    /// UID of the controller of an object, as the API server has it; `None` as well if there is no such object. It is listed,
    /// since the agent may list what it watches.
    async fn listed_owner<K: Made>(
        &self,
        namespace: Option<String>,
        name: &str,
    ) -> Result<Option<String>, RequestError> {
        let api: Api<K> = Api::namespaced(self.clients.reader.clone(), &namespace.unwrap_or_default());
        let found = api.list_metadata(&ListParams::default().fields(&format!("metadata.name={name}"))).await;
        let found = found.map_err(|error| RequestError::new("look for", format!("{} {name}", K::kind(&())), error))?;
        Ok(found.items.first().and_then(|found| controller_uid(found).map(str::to_owned)))
    }

    /// Tells the Burst of a FluxJob to let go of wherever it is.
    async fn release(&self, job: &FluxJob, uid: &str) -> Result<(), RequestError> {
        let (namespace, name) = (job.namespace().unwrap_or_default(), names::sent_burst(&job.name_any()));
        let api: Api<Burst> = Api::namespaced(self.clients.writer.clone(), &namespace);
        let patch = json!({"metadata": {"uid": uid}, "spec": {"release": true}});
        let released = api.patch(&name, &PatchParams::default(), &Patch::Merge(&patch)).await;
        let failed = |error| RequestError::new("release", format!("Burst {namespace}/{name}"), error);
        match released.map_err(failed) {
            Err(error) if !error.cause().is_not_found() => Err(error),
            _ => Ok(()),
        }
    }

    async fn tell(&self, job: &FluxJob, status: &FluxJobStatus) {
        let before = job.status.as_ref().map(|status| status.phase).unwrap_or_default();
        if before == status.phase {
            return;
        }
        let message = status.message.clone();
        let notice = match status.phase {
            JobPhase::Requested | JobPhase::Unknown(_) => return,
            JobPhase::Ready if status.recalled.is_some() => return,
            JobPhase::Waiting => Notice::normal("Queue", "Waiting", message),
            JobPhase::Ready if status.sent.is_some() => Notice::normal("Queue", "Sent", message),
            JobPhase::Ready if status.split.is_some() => Notice::normal("Queue", "Admitted", message),
            JobPhase::Ready => Notice::normal("Queue", "Admitted", "there is room for the whole of it"),
            JobPhase::Running => Notice::normal("Run", "Running", message),
            JobPhase::Finished if status.result == Some(JobResult::Failed) => Notice::warning("Run", "Failed", message),
            JobPhase::Finished => Notice::normal("Run", "Finished", message),
        };
        self.events.publish(job, notice).await;
    }
}

impl Controller for Queueing {
    type Key = String;
    type Line = ();
    type View = Namespace;
    type Step = Round;
    type Error = RequestError;

    const NAME: &'static str = "queue";

    fn queue(&self) -> &Queue<String> {
        &self.rounds
    }

    async fn observe(&self, namespace: &String) -> Result<Observed<Namespace>, RequestError> {
        fn of<K: kube::Resource>(cache: Vec<Arc<K>>, namespace: &str) -> Vec<Arc<K>> {
            cache.into_iter().filter(|object| object.meta().namespace.as_deref() == Some(namespace)).collect()
        }
        let unreadable = self.unreadable_jobs();
        let mut jobs = of(self.jobs.objects(), namespace);
        // Nobody knows what one in the line asks for now. One that was let in holds its room.
        jobs.retain(|job| job::is_admitted(job, false) || !unreadable.contains(&ObjectKey::of(&**job)));
        Ok(Observed::Continue(Namespace {
            now: self.clock.wall(),
            setup: self.setups.of(&ObjectKey::namespaced(namespace, flux_setup::NAME)),
            unreadable: self.admission.unreadable(namespace),
            priorities: Priorities::of(&self.classes.objects()),
            jobs,
            hosted: of(self.hosted.objects(), namespace),
            bursts: of(self.bursts.objects(), namespace),
            cluster_peers: self.cluster_peers.objects(),
            left_alone: of(self.mini_clusters.left_alone(), namespace),
            look: self.admission.look(namespace, || of(self.mini_clusters(), namespace)),
        }))
    }

    /// Bursts of peers are let in beside the rounds: what is reserved for them stays as it is until the round is over.
    fn step(&self, namespace: &String, seen: &Namespace) -> Round {
        let names = seen.hosted.iter().map(|hosted| hosted.name_any()).collect();
        let looks = seen.setup.as_ref().is_some_and(|setup| setup.spec.check_nodes == CheckNodes::Now);
        // One round after the other: what one lets in, the next one keeps room for.
        self.ports.guests.around(namespace, &names, |reserved| {
            let now = self.clock.mono();
            let elsewhere = if looks { self.promises.beside(namespace, now) } else { Vec::new() };
            let began = *self.began.lock();
            let view = View { seen, reserved, elsewhere: &elsewhere, ports: &self.ports, began };
            // There is one round of a namespace at a time.
            let mut claims = self.claims.lock().remove(namespace).unwrap_or_default();
            let mut round = round(&view, &mut claims);
            claims::keep(&mut self.claims.lock(), namespace, claims, &seen.jobs);
            self.promises.add(std::mem::take(&mut round.gangs), now);
            (round.standing.take(), round)
        })
    }

    async fn apply(&self, namespace: &String, seen: Namespace, round: Round) -> Result<Outcome, RequestError> {
        self.admission.turn(namespace, &round, seen.now);
        self.admission.forget_what_is_gone(self.clock.mono(), || self.alive());
        self.quota_waits.lock().retain(|key| self.jobs.of(key).is_some());
        let Round { setup, mut jobs, wake, .. } = round;
        let (mut failed, mut wake) = (None, wake);
        // What cannot be read any more stays as it is, and its status says why: nothing is decided on what it was before.
        let unreadable = self.unreadable_jobs();
        jobs.retain(|(job, _)| !unreadable.contains(&ObjectKey::of(&**job)));
        let setup = setup.filter(|(setup, _)| self.setups.unreadable_of(&ObjectKey::of(&**setup)).is_none());
        let mut carried = stream::iter(jobs)
            .map(|(job, step)| {
                let uid = job.metadata.uid.as_deref().unwrap_or_default();
                let fresh = !seen.look.granted.contains_key(uid);
                self.carry_out(job, step, fresh)
            })
            .buffer_unordered(AT_A_TIME);
        while let Some(outcome) = carried.next().await {
            // One that cannot be written does not hold up the others.
            match outcome {
                Ok(again) => wake = [wake, again].into_iter().flatten().min(),
                Err(error) => failed = failed.or(Some(error)),
            }
        }
        drop(carried);
        if let Some((setup, status)) = setup {
            let outcome = self.applier.apply_status(&*setup, &status).await;
            failed = failed.or(outcome.err().filter(|error| !error.cause().is_not_found()));
        }
        let Some(error) = failed else { return Ok(wake.map_or(Outcome::Done, Outcome::After)) };
        // A write that fails must not delay the next round.
        if let Some(wake) = wake {
            self.rounds.mark_in((), namespace.clone(), self.clock.mono() + wake);
        }
        Err(error)
    }
}

/// Whether a namespace has a FluxSetup.
fn is_ruled(setups: &Cache<FluxSetup>, namespace: &str) -> bool {
    setups.of(&ObjectKey::namespaced(namespace, flux_setup::NAME)).is_some()
}

#[cfg(test)]
mod tests;
