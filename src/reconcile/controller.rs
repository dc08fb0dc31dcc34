//! Caches, queue and worker of the MiniCluster controller.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::future::BoxFuture;
use futures::{FutureExt, future};
use k8s_openapi::api::batch::v1::Job;
use kube::ResourceExt;
use tokio_util::sync::CancellationToken;

use super::SETTLING;
use super::apply::{Creation, Writes};
use super::certificate::{self, Source};
use super::decide::{Action, Decision, LEFT_OVER, NAME_TAKEN, Rendering, decide, needs_frozen};
use super::definition::{DefinitionView, OUTDATED};
use super::dereference::{Caches, Known};
use super::gate::Gate;
use super::memory::Memory;
use super::notices::notices;
use super::pod_index::PodIndexes;
use super::restful;
use super::spans;
use super::status::{Facts, JobFacts, compute};
use super::view::{ConfigMapView, JobView, LeadPodView, PodView};
use super::volumes::LeftVolumes;
use super::watches::Watches;
use crate::api::burst::Burst;
use crate::api::hosted_burst::BurstPhase;
use crate::api::labels;
use crate::api::minicluster::MiniCluster;
use crate::api::peer::ClusterPeer;
use crate::clock::{SharedClock, SystemRng};
use crate::cluster::ObjectKey;
use crate::cluster::caches::{self, Selection, Subscription, controller_of};
use crate::cluster::client::Clients;
use crate::cluster::conditions;
use crate::cluster::error::{Taken, chain};
use crate::cluster::events::{Events, Notice};
use crate::cluster::traced;
use crate::cluster::work::Worked;
use crate::cluster::worker::{self, Options, Outcome, Queue, Run};
use crate::flux::RankMap;
use crate::render::{self, Boot, Context};
use crate::telemetry::{Span, Traces};

/// How often a certificate in a Secret of somebody else's is looked for: Secrets are never watched.
const CERTIFICATE_RETRY: Duration = Duration::from_secs(5);

/// Why an instance waits whose volumes of before are still there.
const VOLUME_GOES: &str = "VolumeIsDeleted";

/// How often a name that is taken is tried again: objects of others are not watched.
const TAKEN_RETRY: Duration = Duration::from_secs(15);

/// The same, of an object that Kubernetes is about to delete with an earlier MiniCluster.
const LEFT_OVER_RETRY: Duration = Duration::from_secs(1);

/// Until a deadline that was not allowed is looked at again: nobody tells when more is.
const DEADLINE_RETRY: Duration = Duration::from_secs(60);

/// How often a pod that holds up the next instance is looked at, besides its own changes.
const LINGERING_RETRY: Duration = Duration::from_secs(5);

/// The MiniCluster controller of one cluster.
pub struct Controller {
    caches: Caches,
    clients: Clients,
    writes: Writes,
    events: Events,
    settings: Context,
    clock: SharedClock,
    traces: Traces,
    queue: Queue<ObjectKey>,
    pod_indexes: PodIndexes,
    /// Only where volumes are made.
    left_volumes: Option<LeftVolumes>,
    gate: Gate,
    memory: Mutex<Memory>,
    /// MiniClusters were shown with gaps, and not listed again since. On standbys too: their caches are filled alike.
    gaps: Arc<AtomicBool>,
    closing_gaps: tokio::sync::Mutex<()>,
    _subscriptions: Vec<Subscription>,
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
        watches: Watches,
        events: Events,
        settings: Context,
        gate: Gate,
        clock: SharedClock,
        traces: Traces,
    ) -> (Arc<Self>, Vec<BoxFuture<'static, ()>>) {
        let Watches { mini_clusters, bursts, hosted, peers } = watches;
        let reader = &clients.reader;
        let managed = Selection::labels(format!("{}={}", labels::kubernetes::MANAGED_BY, labels::TRIBUTARY));
        let service_pods = Selection::labels(format!("{}={}", labels::ROLE, labels::role::SERVICES));
        let (jobs, watch_jobs) = caches::watched::<JobView, _>(&clients, &Selection::default(), SystemRng);
        let (config_maps, watch_maps) = caches::watched::<ConfigMapView, _>(&clients, &managed, SystemRng);
        let (services, watch_services) = caches::watched(&clients, &managed, SystemRng);
        let (pods, watch_pods) = caches::watched::<PodView, _>(&clients, &service_pods, SystemRng);
        let leads = Selection::labels(format!("{}=0", labels::kubernetes::COMPLETION_INDEX));
        let (lead_pods, watch_leads) = caches::watched::<LeadPodView, _>(&clients, &leads, SystemRng);
        let (definitions, watch_definitions) =
            caches::all::<DefinitionView, _>(reader.clone(), &DefinitionView::selection(), SystemRng);
        let (pod_indexes, watch_lacking, labelling) =
            PodIndexes::new(&clients, jobs.clone(), mini_clusters.clone(), clock.clone());
        let left_volumes =
            settings.volumes.is_on().then(|| LeftVolumes::new(&clients, mini_clusters.clone(), clock.clone()));
        let caches = Caches {
            mini_clusters,
            jobs,
            config_maps,
            services,
            service_pods: pods,
            lead_pods,
            definitions,
            bursts,
            hosted,
            peers,
        };
        let queue = Queue::new(clock.clone());
        let mut subscriptions = feed(&caches, &queue);
        subscriptions.extend(labelling);
        let mut watch_volumes = None;
        let left_volumes = left_volumes.map(|(left_volumes, watch, sweeping)| {
            subscriptions.extend(sweeping);
            watch_volumes = Some(watch);
            left_volumes
        });
        let gaps = Arc::<AtomicBool>::default();
        let seen = gaps.clone();
        subscriptions.push(caches.definitions.subscribe(move |change| {
            if change.new.as_ref().is_some_and(|definition| definition.outdated().is_some()) {
                seen.store(true, Ordering::SeqCst);
            }
        }));
        let writes = Writes::new(clients.clone());
        let memory = Mutex::default();
        let controller = Self {
            caches,
            clients,
            writes,
            events,
            settings,
            clock,
            traces,
            queue,
            pod_indexes,
            left_volumes,
            gate,
            memory,
            gaps,
            closing_gaps: tokio::sync::Mutex::default(),
            _subscriptions: subscriptions,
        };
        let mut watches = vec![
            watch_jobs.boxed(),
            watch_maps.boxed(),
            watch_services.boxed(),
            watch_pods.boxed(),
            watch_leads.boxed(),
            watch_lacking,
            watch_definitions.boxed(),
        ];
        watches.extend(watch_volumes);
        (Arc::new(controller), watches)
    }

    /// The MiniClusters that are to be looked at, for whoever knows of another reason to.
    pub fn queue(&self) -> Queue<ObjectKey> {
        self.queue.clone()
    }

    /// The caches, for whoever shows them.
    pub fn caches(&self) -> &Caches {
        &self.caches
    }

    /// What its workers do, for the metrics.
    pub fn queues(&self) -> Vec<(&'static str, Box<dyn Worked>)> {
        let mut queues: Vec<(&'static str, Box<dyn Worked>)> = vec![
            ("minicluster", Box::new(self.queue.clone())),
            ("pod index", Box::new(self.pod_indexes.queue.clone())),
        ];
        if let Some(left_volumes) = &self.left_volumes {
            queues.push(("left volume", Box::new(left_volumes.queue.clone())));
        }
        queues
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
        let labelling = self.pod_indexes.clone().run(stop.clone());
        let sweeping = self.left_volumes.clone().map(|left_volumes| left_volumes.run(stop.clone()));
        let reconciling = worker::run(self.queue.clone(), Options::default(), SystemRng, handler, report, stop);
        future::join3(reconciling, labelling, future::OptionFuture::from(sweeping)).await;
    }

    async fn reconcile(&self, key: &ObjectKey) -> Result<Outcome, Error> {
        let Some(known) = self.caches.dereference(key) else {
            self.memory().forget(key);
            return Ok(Outcome::Done);
        };
        if known.mini_cluster.metadata.deletion_timestamp.is_some() {
            return Ok(Outcome::Done);
        }
        if let Some(outcome) = self.distrusted(&known, key).await? {
            return Ok(outcome);
        }
        let object = known.mini_cluster.clone();
        self.memory().of(&object).began(object.metadata.generation, self.clock.wall());
        let (known, settling) = self.memory().of(&object).complete(known, self.clock.mono(), SETTLING);
        let context = match known.context(&self.settings) {
            Ok(context) => context,
            Err(sentence) => {
                let decision = Decision::waits("RankMapUnreadable", sentence);
                self.write_status(&known, None, &decision, None).await?;
                return Ok(Outcome::Done);
            }
        };
        let rendering = render::render(&known.mini_cluster, &context);
        let frozen = if !settling && needs_frozen(&known, &rendering) { self.frozen(&known, key).await? } else { None };
        let followed = frozen.as_ref().and_then(|frozen| {
            let new = rendering.as_ref().ok().map(|rendered| &rendered.boot);
            let mini_cluster = render::followed(frozen, &known.mini_cluster, new)?;
            render::render(&mini_cluster, &context).ok()
        });
        // Without other frozen files, the instance runs with what the spec says now.
        let running = if frozen.is_some() { followed.as_ref() } else { rendering.as_ref().ok() };
        let mut decision = decide(&known, &rendering, frozen.as_deref(), running);
        if let (Action::Create, Some(pod)) = (&decision.action, self.caches.lingering(key, self.clock.wall())) {
            let sentence =
                format!("pod {pod} of the last instance has not ended yet; it has the host name of the next one");
            self.write_status(&known, Some(&rendering), &Decision::waits("Restarting", sentence), None).await?;
            return Ok(Outcome::After(LINGERING_RETRY));
        }
        if decision.action == Action::Create
            && let Some((waits, outcome)) = self.gate.holds_back(&known, self.clock.wall())
        {
            self.write_status(&known, Some(&rendering), &waits, None).await?;
            return Ok(outcome);
        }
        if known.hosted.is_none() && !settling && decision.growth(&known).is_some() {
            let has = known.job.facts().map(|facts| facts.parallelism);
            // The rest of the change need not wait with it. Its key is marked when there is room.
            if let Err(sentence) = (self.gate.asks)(&known.mini_cluster, has, self.clock.wall()) {
                decision.does_not_grow(sentence);
            }
        }
        self.gate.limit(&known, &mut decision, self.clock.wall());
        let expiry = self.expiry(&known);
        if expiry == Some(Duration::ZERO) {
            decision.action = Action::CleanUp;
        }
        let later = decision.deadline.told.is_some().then_some(DEADLINE_RETRY);
        let mut outcome = expiry.into_iter().chain(later).min().map_or(Outcome::Done, Outcome::After);
        let mut created = None;
        match &decision.action {
            Action::Nothing => {}
            Action::Restart if settling => return Ok(Outcome::After(SETTLING)),
            Action::Restart => match self.release(&known) {
                Some(left) => outcome = Outcome::After(left),
                None => self.writes.delete_job(&known).await?,
            },
            Action::RemoveVolumes => self.writes.remove_volumes(&known).await?,
            Action::CleanUp => {
                self.writes.clean_up(&known.mini_cluster).await?;
                return Ok(Outcome::Done);
            }
            Action::Create => match self.create(&known, context, decision.deadline.seconds).await? {
                // Jobs first: the status follows when all that wait for theirs have had their turn.
                Step::Made(_, taken) if taken.is_empty() => return Ok(Outcome::After(Duration::ZERO)),
                Step::Made(facts, taken) => {
                    created = Some(facts);
                    decision.taken = Some(taken);
                }
                Step::Waits(reason, sentence, retry) => {
                    decision.waiting = Some((reason, sentence));
                    outcome = Outcome::After(retry);
                }
                Step::CacheIsBehind => return Ok(Outcome::After(SETTLING)),
            },
            Action::Maintain(_) if settling => outcome = Outcome::After(SETTLING),
            Action::Maintain(maintenance) => match self.writes.maintain(&known, running, maintenance).await {
                Ok(taken) => decision.taken = Some(taken),
                Err(error) => {
                    let taken = error.taken().ok_or(error)?;
                    decision.waiting = Some((NAME_TAKEN.to_owned(), taken.sentence()));
                    outcome = Outcome::After(TAKEN_RETRY);
                }
            },
        }
        if decision.taken.as_ref().is_some_and(|taken| !taken.is_empty()) {
            outcome = Outcome::After(TAKEN_RETRY);
        }
        self.write_status(&known, Some(&rendering), &decision, created).await?;
        Ok(outcome)
    }

    /// What to do instead, if the object cannot be trusted because the definition hides, or hid, a part of it: see
    /// [`super::definition`].
    async fn distrusted(&self, known: &Known, key: &ObjectKey) -> Result<Option<Outcome>, Error> {
        let object = &*known.mini_cluster;
        if let Some(sentence) = self.caches.outdated() {
            self.gaps.store(true, Ordering::SeqCst);
            tracing::warn!(mini_cluster = %key, reason = OUTDATED, "{sentence}");
            self.events.publish(object, Notice::warning("Reconcile", OUTDATED, sentence)).await;
            return Ok(Some(Outcome::Done));
        }
        if !self.gaps.load(Ordering::SeqCst) {
            return Ok(None);
        }
        // One is enough for all; the new list marks every key.
        let Ok(_alone) = self.closing_gaps.try_lock() else { return Ok(Some(Outcome::After(SETTLING))) };
        if !self.writes.knows_our_fields(object).await? {
            return Ok(Some(Outcome::After(SETTLING)));
        }
        self.caches.mini_clusters.list_again().await;
        // Put back once more in the meantime: then this list had gaps too.
        if self.caches.outdated().is_none() {
            self.gaps.store(false, Ordering::SeqCst);
        }
        Ok(Some(Outcome::After(Duration::ZERO)))
    }

    /// How long a MiniCluster that has ended is kept, from now on.
    fn expiry(&self, known: &Known) -> Option<Duration> {
        let ttl = known.mini_cluster.spec.ttl_seconds_after_finished?;
        let finished = conditions::find(&known.mini_cluster.status.as_ref()?.conditions, labels::condition::FINISHED)?;
        if finished.status != "True" || known.hosted.is_some() {
            return None;
        }
        let due = finished.last_transition_time.0 + jiff::SignedDuration::from_secs(ttl.into());
        Some(Duration::try_from(due.duration_since(self.clock.wall())).unwrap_or_default())
    }

    /// How long bursts are still awaited before the instance is started anew; `None` if there is nothing to wait for. They
    /// are told by the phase of the status.
    fn release(&self, known: &Known) -> Option<Duration> {
        let now = self.clock.mono();
        let mut memory = self.memory();
        let releasing = &mut memory.of(&known.mini_cluster).releasing;
        let held = |burst: &&Burst| {
            let status = burst.status.as_ref();
            status.is_some_and(|status| status.peer.is_some() && status.phase != BurstPhase::Released)
        };
        let drain = known.bursts.iter().filter(held).map(|burst| u64::from(burst.spec.drain_seconds)).max();
        let Some(drain) = drain else {
            *releasing = None;
            return None;
        };
        let since = *releasing.get_or_insert(now);
        let limit = render::longest_end(Duration::from_secs(drain));
        let left = limit.saturating_sub(now.saturating_since(since));
        if left.is_zero() {
            *releasing = None;
            return None;
        }
        Some(left)
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

    async fn create(&self, known: &Known, mut context: Context, deadline: Option<i64>) -> Result<Step, Error> {
        let key = ObjectKey::of(&*known.mini_cluster);
        let began = self.clock.wall();
        let source = certificate::obtain(&self.clients.reader, known, &*self.clock, &mut SystemRng).await?;
        let (certificate, ours) = match source {
            Source::New(certificate) => (certificate, true),
            Source::Existing(certificate) => (certificate, false),
            Source::Missing(reason, sentence) => {
                return Ok(Step::Waits(reason.to_owned(), sentence, CERTIFICATE_RETRY));
            }
        };
        context.credential_digest = Some(certificate.digest());
        // The same spec was rendered a moment ago, without the digest: it cannot fail now.
        let Ok(mut rendered) = render::render(&known.mini_cluster, &context) else { return Ok(Step::CacheIsBehind) };
        rendered.job.spec.get_or_insert_default().active_deadline_seconds = deadline;
        let restful = match &rendered.restful_secret {
            Some(name) => {
                let secret = restful::obtain(&self.clients.reader, &known.mini_cluster, name, &mut SystemRng).await;
                Some(secret.map_err(super::apply::Error::from)?)
            }
            None => None,
        };
        match self.writes.create(known, &rendered, ours.then_some(&certificate), restful.as_ref()).await {
            Err(error) => {
                let taken = error.taken().ok_or(error)?;
                let goes = taken.is_left_over(&key.name);
                let (reason, retry) = if goes { (LEFT_OVER, LEFT_OVER_RETRY) } else { (NAME_TAKEN, TAKEN_RETRY) };
                Ok(Step::Waits(reason.to_owned(), taken.sentence(), retry))
            }
            Ok((Creation::Exists, _)) => Ok(Step::CacheIsBehind),
            Ok((Creation::Goes(object), _)) => {
                let sentence = format!(
                    "{object} of the last instance is being deleted, and another is made when it is gone: it waits for pods \
                     that use it"
                );
                Ok(Step::Waits(VOLUME_GOES.to_owned(), sentence, SETTLING))
            }
            Ok((Creation::Created(facts), taken)) => {
                tracing::info!(mini_cluster = %key, incarnation = facts.uid, "created the Job");
                let change = traced::change(&self.traces, &*known.mini_cluster);
                self.traces.record(change.map(|(own, _)| {
                    spans::about(Span::part(&own, "create Job", began, self.clock.wall()), &known.mini_cluster)
                }));
                self.memory().of(&known.mini_cluster).created(facts.clone(), self.clock.mono());
                Ok(Step::Made(facts, taken))
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
        let current = &*known.mini_cluster;
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
        let mut unsupported = match rendering {
            Some(Ok(rendered)) => rendered.unsupported.clone(),
            _ => Vec::new(),
        };
        unsupported.extend(decision.deadline.told.clone());
        let has = job.as_ref().map(|job| (job.uid.as_str(), job.parallelism));
        // Bursts of peers are counted with their HostedBurst.
        let holds = if known.hosted.is_none() { (self.gate.holds)(current, has) } else { None };
        let facts = Facts {
            mini_cluster: current,
            holds,
            job,
            lead: known.lead.clone(),
            problems,
            waiting: decision.waiting.clone(),
            unsupported,
            restart_required: decision.restart_required.clone(),
            restarting: decision.restarting,
            over: decision.over,
            taken: decision.taken.as_ref().map(|taken| taken.iter().map(Taken::sentence).collect()),
            stays: decision.stays.clone(),
            bursts: &known.bursts,
            rank_map: rank_map.as_ref(),
            peers: &self.caches.peer_uids(),
            credential_secret: Some(certificate::secret_name(known)),
            node_port: known.node_port(),
            load_balancer: known.load_balancer(),
        };
        let status = compute(&facts, self.clock.wall());
        let version = self.writes.status(current, &status).await?;
        if current.status.as_ref() != Some(&status) {
            let now = self.clock.wall();
            let began = self.memory().of(current).began(current.metadata.generation, now);
            if let Some(change) = traced::change(&self.traces, current) {
                self.traces.record(spans::spans(current, &status, change, (began, now)));
            }
            self.memory().of(current).written(version, status.clone());
            for notice in notices(&known.status(), &status) {
                self.events.publish(current, notice).await;
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
    Made(JobFacts, Vec<Taken>),
    Waits(String, String, Duration),
    CacheIsBehind,
}

/// What a change of which object means for which MiniCluster.
fn feed(caches: &Caches, queue: &Queue<ObjectKey>) -> Vec<Subscription> {
    fn owner(child: &impl kube::Resource) -> Vec<ObjectKey> {
        controller_of::<MiniCluster>(child).into_iter().collect()
    }
    let Caches {
        mini_clusters,
        jobs,
        config_maps,
        services,
        service_pods,
        lead_pods,
        definitions,
        bursts,
        hosted,
        peers,
    } = caches;
    let (all, roots) = (mini_clusters.clone(), mini_clusters.clone());
    vec![
        mini_clusters.feed(queue, |object| vec![ObjectKey::of(object)]),
        jobs.feed(queue, |job| vec![ObjectKey::of(job)]),
        config_maps.feed(queue, owner),
        services.feed(queue, owner),
        service_pods.feed(queue, owner),
        // A Job bears the name of its MiniCluster.
        lead_pods.feed(queue, |pod| controller_of::<Job>(pod).into_iter().collect()),
        definitions.feed(queue, move |_| all.objects().iter().map(|object| ObjectKey::of(&**object)).collect()),
        bursts.feed(queue, owner),
        // Who has certificates and is no peer any more, or was never seen to go.
        peers.subscribe({
            let queue = queue.clone();
            move |change| {
                let uid = |peer: &Option<Arc<ClusterPeer>>| peer.as_ref().and_then(|peer| peer.uid());
                if uid(&change.old) != uid(&change.new) {
                    let given = roots.objects().into_iter().filter(|root| has_given(root));
                    given.for_each(|root| queue.mark(ObjectKey::of(&*root)));
                }
            }
        }),
        // The hosted MiniCluster bears the slot's name.
        hosted.feed(queue, |hosted| vec![ObjectKey { namespace: hosted.namespace(), name: hosted.spec.slot.clone() }]),
    ]
}

/// Whether anybody was given the certificate of a root.
fn has_given(root: &MiniCluster) -> bool {
    root.status.as_ref().is_some_and(|status| !status.credential_recipients.is_empty())
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
