//! Caches, queue and worker of the MiniCluster controller.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::future::BoxFuture;
use futures::{FutureExt, future};
use kube::ResourceExt;
use tokio_util::sync::CancellationToken;

use super::apply::{Creation, Writes};
use super::certificate::{self, Source};
use super::decide::{Action, Decision, Rendering, decide, needs_frozen};
use super::dereference::{Caches, JobState, Known};
use super::notices::notices;
use super::status::{Facts, JobFacts, compute};
use super::view::{ConfigMapView, JobView, PodView};
use crate::api::labels;
use crate::api::minicluster::{MiniCluster, MiniClusterStatus};
use crate::clock::{Mono, SharedClock, SystemRng};
use crate::cluster::ObjectKey;
use crate::cluster::caches::{self, Cache, Selection, Subscription, controller_of};
use crate::cluster::client::Clients;
use crate::cluster::error::chain;
use crate::cluster::events::Events;
use crate::cluster::worker::{self, Options, Outcome, Queue, Run};
use crate::flux::RankMap;
use crate::render::{self, Boot, Context};

/// How long caches get to show what was just created, before something missing counts as taken away.
const SETTLING: Duration = Duration::from_secs(2);

/// How often a certificate in a Secret of somebody else's is looked for: Secrets are never watched.
const CERTIFICATE_RETRY: Duration = Duration::from_secs(5);

/// The MiniCluster controller of one cluster.
pub struct Controller {
    caches: Caches,
    clients: Clients,
    writes: Writes,
    events: Events,
    settings: Context,
    clock: SharedClock,
    queue: Queue<ObjectKey>,
    memory: Mutex<Memory>,
    _subscriptions: Vec<Subscription>,
}

/// What is remembered between passes. All of it can be lost: it saves requests, and bridges the time until caches show
/// what was written.
#[derive(Default)]
struct Memory {
    /// Incarnations made by this process that their caches may not show completely yet.
    created: BTreeMap<ObjectKey, (JobFacts, Mono)>,
    /// Boot files of running incarnations, by the Job's UID.
    frozen: BTreeMap<String, Arc<Boot>>,
    /// The status written last, by the MiniCluster's UID, and the resource version it was made from.
    written: BTreeMap<String, (Option<String>, MiniClusterStatus)>,
}

/// Why a pass failed; it is repeated with a growing delay.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Something could not be written or read.
    #[error(transparent)]
    Write(#[from] super::apply::Error),
    /// There is no certificate.
    #[error(transparent)]
    Certificate(#[from] certificate::Error),
}

impl Controller {
    /// A controller and the watches that fill its caches: spawn them; they run on standbys too.
    pub fn new(
        clients: Clients,
        mini_clusters: Cache<MiniCluster>,
        bursts: Cache<crate::api::burst::Burst>,
        hosted: Cache<crate::api::hosted_burst::HostedBurst>,
        events: Events,
        settings: Context,
        clock: SharedClock,
    ) -> (Arc<Self>, Vec<BoxFuture<'static, ()>>) {
        let reader = &clients.reader;
        let managed = Selection::labels(format!("{}={}", labels::kubernetes::MANAGED_BY, labels::TRIBUTARY));
        let service_pods = Selection::labels(format!("{}={}", labels::ROLE, labels::role::SERVICES));
        let (jobs, watch_jobs) = caches::all::<JobView, _>(reader.clone(), &Selection::default(), SystemRng);
        let (config_maps, watch_maps) = caches::all::<ConfigMapView, _>(reader.clone(), &managed, SystemRng);
        let (services, watch_services) = caches::all(reader.clone(), &managed, SystemRng);
        let (pods, watch_pods) = caches::all::<PodView, _>(reader.clone(), &service_pods, SystemRng);
        let caches = Caches { mini_clusters, jobs, config_maps, services, service_pods: pods, bursts, hosted };
        let queue = Queue::new(clock.clone());
        let subscriptions = feed(&caches, &queue);
        let writes = Writes::new(clients.clone());
        let memory = Mutex::default();
        let controller =
            Self { caches, clients, writes, events, settings, clock, queue, memory, _subscriptions: subscriptions };
        let watches = vec![watch_jobs.boxed(), watch_maps.boxed(), watch_services.boxed(), watch_pods.boxed()];
        (Arc::new(controller), watches)
    }

    /// The caches, for whoever shows them.
    pub fn caches(&self) -> &Caches {
        &self.caches
    }

    /// Reconciles until `stop`: in the leader's scope.
    pub async fn run(self: Arc<Self>, stop: CancellationToken) {
        tokio::select! {
            () = self.caches.listed() => {}
            () = stop.cancelled() => return,
        }
        // Nothing is known of what other leaders wrote in the meantime.
        *self.memory() = Memory::default();
        for object in self.caches.mini_clusters.objects() {
            self.queue.mark(ObjectKey::of(&*object));
        }
        let controller = self.clone();
        let handler = move |key: ObjectKey| {
            let controller = controller.clone();
            async move { controller.reconcile(&key).await }
        };
        worker::run(self.queue.clone(), Options::default(), SystemRng, handler, report, stop).await;
    }

    async fn reconcile(&self, key: &ObjectKey) -> Result<Outcome, Error> {
        let Some(known) = self.caches.dereference(key) else {
            self.memory().created.remove(key);
            return Ok(Outcome::Done);
        };
        if known.mini_cluster.metadata.deletion_timestamp.is_some() {
            return Ok(Outcome::Done);
        }
        let (known, settling) = self.with_memory(known, key);
        let context = match known.context(&self.settings) {
            Ok(context) => context,
            Err(sentence) => {
                let waiting = Some(("RankMapUnreadable".to_owned(), sentence));
                let decision = Decision { action: Action::Nothing, waiting, restart_required: Vec::new() };
                self.write_status(&known, None, &decision, None).await?;
                return Ok(Outcome::Done);
            }
        };
        let rendering = render::render(&known.mini_cluster, &context);
        let frozen = if needs_frozen(&known, &rendering) { self.frozen(&known, key).await? } else { None };
        let mut decision = decide(&known, &rendering, frozen.as_deref());
        let mut outcome = Outcome::Done;
        let mut created = None;
        match &decision.action {
            Action::Nothing => {}
            Action::CleanUp => {
                self.writes.clean_up(&known.mini_cluster).await?;
                return Ok(Outcome::Done);
            }
            Action::Create => match self.create(&known, context).await? {
                Step::Made(facts) => created = Some(facts),
                Step::Waits(reason, sentence) => {
                    decision.waiting = Some((reason, sentence));
                    outcome = Outcome::After(CERTIFICATE_RETRY);
                }
                Step::CacheIsBehind => return Ok(Outcome::After(SETTLING)),
            },
            Action::Maintain(_) if settling => outcome = Outcome::After(SETTLING),
            Action::Maintain(maintenance) => {
                self.writes.maintain(&known, rendering.as_ref().ok(), maintenance).await?;
            }
        }
        self.write_status(&known, Some(&rendering), &decision, created).await?;
        Ok(outcome)
    }

    /// A Job that this process made and its cache does not show yet is there all the same.
    fn with_memory(&self, mut known: Known, key: &ObjectKey) -> (Known, bool) {
        let now = self.clock.mono();
        let mut memory = self.memory();
        memory.created.retain(|_, (_, made)| now.saturating_since(*made) < SETTLING);
        let Some((facts, _)) = memory.created.get(key) else { return (known, false) };
        if known.job == JobState::Absent {
            known.job = JobState::Ours {
                facts: facts.clone(),
                boot_digest: String::new(),
                files_digest: String::new(),
                applied_suspend: known.mini_cluster.spec.suspend,
            };
        }
        (known, true)
    }

    async fn frozen(&self, known: &Known, key: &ObjectKey) -> Result<Option<Arc<Boot>>, Error> {
        let uid = known.job.facts().map(|facts| facts.uid.clone()).unwrap_or_default();
        if let Some(boot) = self.memory().frozen.get(&uid) {
            return Ok(Some(boot.clone()));
        }
        let boot = self.writes.frozen(key).await?.map(Arc::new);
        if let Some(boot) = &boot {
            let running: Vec<String> = self.caches.jobs.objects().iter().filter_map(|job| job.uid()).collect();
            let mut memory = self.memory();
            memory.frozen.retain(|uid, _| running.contains(uid));
            memory.frozen.insert(uid, boot.clone());
        }
        Ok(boot)
    }

    async fn create(&self, known: &Known, mut context: Context) -> Result<Step, Error> {
        let key = ObjectKey::of(&*known.mini_cluster);
        let source = certificate::obtain(&self.clients.reader, known, &*self.clock, &mut SystemRng).await?;
        let (certificate, ours) = match source {
            Source::New(certificate) => (certificate, true),
            Source::Existing(certificate) => (certificate, false),
            Source::Missing(reason, sentence) => return Ok(Step::Waits(reason.to_owned(), sentence)),
        };
        context.credential_digest = Some(certificate.digest());
        // The same spec was rendered a moment ago, without the digest: it cannot fail now.
        let Ok(rendered) = render::render(&known.mini_cluster, &context) else { return Ok(Step::CacheIsBehind) };
        match self.writes.create(known, &rendered, ours.then_some(&certificate)).await? {
            Creation::Exists => Ok(Step::CacheIsBehind),
            Creation::Created(facts) => {
                tracing::info!(mini_cluster = %key, incarnation = facts.uid, "created the Job");
                self.memory().created.insert(key, (facts.clone(), self.clock.mono()));
                Ok(Step::Made(facts))
            }
        }
    }

    async fn write_status(
        &self,
        known: &Known,
        rendering: Option<&Rendering>,
        decision: &Decision,
        created: Option<JobFacts>,
    ) -> Result<(), Error> {
        let mini_cluster = &known.mini_cluster;
        let (uid, version) = (mini_cluster.uid().unwrap_or_default(), mini_cluster.resource_version());
        // As long as the cache shows the object from before the last write, that write is what the status is.
        let mut current = (**mini_cluster).clone();
        if let Some((before, status)) = self.memory().written.get(&uid)
            && *before == version
        {
            current.status = Some(status.clone());
        }
        let job = created.or_else(|| known.job.facts().cloned());
        let frozen_map = job.is_some().then(|| current.status.as_ref()?.rank_map.clone()).flatten();
        let same_job =
            job.as_ref().map(|job| &job.uid) == current.status.as_ref().and_then(|status| status.incarnation.as_ref());
        let rank_map = match frozen_map {
            Some(text) if same_job => RankMap::parse_canonical(&text).ok(),
            _ => rendering.and_then(|rendering| rendering.as_ref().ok()).map(|rendered| rendered.rank_map.clone()),
        };
        let problems = match rendering {
            Some(Err(problems)) => {
                problems.iter().map(|problem| (problem.reason.to_owned(), problem.to_string())).collect()
            }
            _ => Vec::new(),
        };
        let unsupported = match rendering {
            Some(Ok(rendered)) => rendered.unsupported.clone(),
            _ => Vec::new(),
        };
        let facts = Facts {
            mini_cluster: &current,
            job,
            problems,
            waiting: decision.waiting.clone(),
            unsupported,
            restart_required: decision.restart_required.clone(),
            bursts: &known.bursts,
            rank_map: rank_map.as_ref(),
            credential_secret: Some(certificate::secret_name(known)),
            node_port: known.node_port(),
        };
        let status = compute(&facts, self.clock.wall());
        self.writes.status(&current, &status).await?;
        if current.status.as_ref() != Some(&status) {
            self.memory().written.insert(uid, (version, status.clone()));
            for notice in notices(&current.status.clone().unwrap_or_default(), &status) {
                self.events.publish(&current, notice).await;
            }
        }
        Ok(())
    }

    fn memory(&self) -> MutexGuard<'_, Memory> {
        // Each critical section is one insert, remove or clone.
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// How far a creation came.
enum Step {
    Made(JobFacts),
    Waits(String, String),
    CacheIsBehind,
}

/// What a change of which object means for which MiniCluster.
fn feed(caches: &Caches, queue: &Queue<ObjectKey>) -> Vec<Subscription> {
    fn owner(child: &impl kube::Resource) -> Vec<ObjectKey> {
        controller_of::<MiniCluster>(child).into_iter().collect()
    }
    let Caches { mini_clusters, jobs, config_maps, services, service_pods, bursts, hosted } = caches;
    vec![
        mini_clusters.feed(queue, |object| vec![ObjectKey::of(object)]),
        jobs.feed(queue, |job| vec![ObjectKey::of(job)]),
        config_maps.feed(queue, owner),
        services.feed(queue, owner),
        service_pods.feed(queue, owner),
        bursts.feed(queue, owner),
        // The hosted MiniCluster bears the slot's name.
        hosted.feed(queue, |hosted| vec![ObjectKey { namespace: hosted.namespace(), name: hosted.spec.slot.clone() }]),
    ]
}

fn report(run: Run<'_, ObjectKey, Error>) {
    if let Err(failure) = run.result {
        let retry_in = format!("{:.1?}", failure.retry_in);
        let error = chain(failure.error);
        tracing::warn!(mini_cluster = %run.key, error, failures = failure.failures, retry_in, "reconciling failed");
    }
}

/// Runs the watches of a controller until dropped.
pub async fn watch(watches: Vec<BoxFuture<'static, ()>>) {
    future::join_all(watches).await;
}
