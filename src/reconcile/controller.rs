//! Caches, queue and worker of the MiniCluster controller.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use futures::future::BoxFuture;
use futures::{FutureExt, future};
use k8s_openapi::api::batch::v1::Job;
use kube::{Resource, ResourceExt};
use parking_lot::{Mutex, MutexGuard};
use tokio_util::sync::CancellationToken;
use tributary_api::hosted_burst::HostedBurst;
use tributary_api::labels;
use tributary_api::minicluster::MiniCluster;
use tributary_api::peer::ClusterPeer;
use tributary_clock::{SharedClock, SystemRng};
use tributary_cluster::ObjectKey;
use tributary_cluster::caches::{self, Selection, Subscription, controller_of};
use tributary_cluster::client::Clients;
use tributary_cluster::engine::{self, Observed};
use tributary_cluster::events::Events;
use tributary_cluster::quotas::QuotaWatch;
use tributary_cluster::work::Worked;
use tributary_cluster::worker::{Outcome, Queue};
use tributary_render::Context;
use tributary_render::quantity::milli;
use tributary_telemetry::Traces;

use super::apply::Writes;
use super::certificate;
use super::decide::Decision;
use super::definition::DefinitionView;
use super::dereference::Caches;
use super::memory::Memory;
use super::observe::View;
use super::pod_index::PodIndexes;
use super::quota_gate::QuotaGate;
use super::renderings::KEPT;
use super::step::step;
use super::view::{ConfigMapView, JobView, LeadPodView, PodView};
use super::volumes::LeftVolumes;
use super::watches::Watches;
use super::workloads::Workloads;

/// The MiniCluster controller of one cluster.
pub struct MiniClusterController {
    pub(super) caches: Caches,
    pub(super) clients: Clients,
    pub(super) writes: Writes,
    pub(super) events: Events,
    pub(super) settings: Context,
    pub(super) clock: SharedClock,
    pub(super) traces: Traces,
    pub(super) queue: Queue<ObjectKey>,
    pub(super) quotas: QuotaWatch<ObjectKey>,
    pod_indexes: Arc<PodIndexes>,
    /// Only where volumes are made.
    left_volumes: Option<Arc<LeftVolumes>>,
    workloads: Arc<Workloads>,
    pub(super) gate: Arc<dyn QuotaGate>,
    memory: Mutex<Memory>,
    /// MiniClusters were shown with gaps, and not listed again since. On standbys too: their caches are filled alike.
    pub(super) gaps: Arc<AtomicBool>,
    pub(super) closing_gaps: tokio::sync::Mutex<()>,
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

impl MiniClusterController {
    /// A controller and the watches that fill its caches: spawn them; they run on standbys too.
    pub fn new(
        clients: Clients,
        watches: Watches,
        events: Events,
        settings: Context,
        gate: Arc<dyn QuotaGate>,
        clock: SharedClock,
        traces: Traces,
    ) -> (Arc<Self>, Vec<BoxFuture<'static, ()>>) {
        let Watches { mini_clusters, bursts, hosted, peers } = watches;
        let reader = &clients.reader;
        let managed = Selection::labels(format!("{}={}", labels::kubernetes::MANAGED_BY, labels::TRIBUTARY));
        let service_pods = Selection::labels(format!("{}={}", labels::ROLE, labels::role::SERVICES));
        let (jobs, watch_jobs) = caches::watched::<JobView, _>(&clients, &Selection::default(), SystemRng);
        // Records of usage are the agent's own, and large.
        let of_instances = Selection::labels(format!("{},{}!={}", managed.labels, labels::ROLE, labels::role::USAGE));
        let (config_maps, watch_maps) = caches::watched::<ConfigMapView, _>(&clients, &of_instances, SystemRng);
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
            lead_pods_by_job: lead_pods.indexed(|pod| controller_of::<Job>(pod).map(|job| job.to_string())),
            lead_pods,
            definitions,
            bursts,
            hosted,
            peers,
        };
        let queue = Queue::by_namespace(clock.clone());
        let mut subscriptions = feed(&caches, &queue);
        subscriptions.extend(labelling);
        let (workloads, dispatching) =
            Workloads::new(&clients, caches.mini_clusters.clone(), events.clone(), settings.clone(), clock.clone());
        subscriptions.push(dispatching);
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
        let writes = Writes::new(clients.reader.clone(), clients.writer.clone());
        let quotas = QuotaWatch::new(clients.reader.clone(), milli);
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
            quotas,
            pod_indexes: Arc::new(pod_indexes),
            left_volumes: left_volumes.map(Arc::new),
            workloads: Arc::new(workloads),
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

    /// What its workers do, for the metrics.
    pub fn queues(&self) -> Vec<(&'static str, Box<dyn Worked>)> {
        let mut queues =
            vec![engine::worked(self), engine::worked(&*self.pod_indexes), engine::worked(&*self.workloads)];
        queues.extend(self.left_volumes.as_deref().map(engine::worked));
        queues
    }

    /// Reconciles until `stop`: in the leader's scope.
    pub async fn run(self: Arc<Self>, stop: CancellationToken) {
        tokio::select! {
            () = self.caches.listed() => {}
            () = stop.cancelled() => return,
        }
        // Nothing is known of what other leaders wrote in the meantime.
        *self.memory() = Memory::of_leader(self.clock.mono());
        for object in self.caches.mini_clusters.objects() {
            self.queue.mark(ObjectKey::of(&*object));
        }
        let labelling = self.pod_indexes.clone().run(stop.clone());
        let sweeping = self.left_volumes.clone().map(|left_volumes| left_volumes.run(stop.clone()));
        let dispatching = self.workloads.clone().run(stop.clone());
        let this = self.clone();
        let quotas = this.quotas.run(|key| {
            this.memory().try_again(&key);
            this.queue.mark(key);
        });
        let forgetting = async {
            loop {
                tokio::time::sleep(KEPT).await;
                this.memory().renderings.sweep(this.clock.mono());
            }
        };
        let work = future::join4(engine::run(self, stop), labelling, dispatching, future::OptionFuture::from(sweeping));
        tokio::select! {
            _ = work => {}
            () = quotas => {}
            () = forgetting => {}
        }
    }

    pub(super) fn memory(&self) -> MutexGuard<'_, Memory> {
        self.memory.lock()
    }
}

impl engine::Controller for MiniClusterController {
    type Key = ObjectKey;
    type Line = ();
    type View = View;
    type Step = Decision;
    type Error = Error;

    const NAME: &'static str = "minicluster";

    fn queue(&self) -> &Queue<ObjectKey> {
        &self.queue
    }

    async fn observe(&self, key: &ObjectKey) -> Result<Observed<View>, Error> {
        self.view(key).await
    }

    fn step(&self, _: &ObjectKey, view: &View) -> Decision {
        step(view, &*self.gate)
    }

    async fn apply(&self, _: &ObjectKey, view: View, decision: Decision) -> Result<Outcome, Error> {
        self.carry_out(view, decision).await
    }
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
        lead_pods_by_job: _,
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
        // The hosted MiniCluster bears the slot's name. What its burst comes to, it hears from nobody.
        hosted.subscribe({
            let queue = queue.clone();
            move |change| {
                let asked = |hosted: &Option<Arc<HostedBurst>>| {
                    let meta = hosted.as_ref().map(|hosted| hosted.meta());
                    meta.map(|meta| (meta.uid.clone(), meta.generation, meta.deletion_timestamp.clone()))
                };
                if let Some(hosted) = change.new.as_ref().or(change.old.as_ref())
                    && asked(&change.old) != asked(&change.new)
                {
                    queue.mark(ObjectKey { namespace: hosted.namespace(), name: hosted.spec.slot.clone() });
                }
            }
        }),
    ]
}

/// Whether anybody was given the certificate of a root.
fn has_given(root: &MiniCluster) -> bool {
    root.status.as_ref().is_some_and(|status| !status.credential_recipients.is_empty())
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::time::Duration;

    use kube::client::DynBody;
    use tower::BoxError;
    use tributary_clock::SystemClock;
    use tributary_cluster::caches::Cache;
    use tributary_cluster::engine::{Controller, nothing};
    use tributary_cluster::fence::Fence;
    use tributary_cluster::requests::RequestMetrics;

    use super::*;
    use crate::step::tests::Answers;

    /// Handles one key at a time, and notes their namespaces.
    struct InTurn {
        queue: Queue<ObjectKey>,
        seen: Mutex<Vec<String>>,
    }

    impl Controller for InTurn {
        type Key = ObjectKey;
        type Line = ();
        type View = ();
        type Step = ();
        type Error = Infallible;

        const NAME: &'static str = "in turn";
        const CONCURRENCY: usize = 1;

        fn queue(&self) -> &Queue<ObjectKey> {
            &self.queue
        }

        async fn observe(&self, key: &ObjectKey) -> Result<Observed<()>, Infallible> {
            self.seen.lock().extend(key.namespace.clone());
            Ok(nothing())
        }

        fn step(&self, _: &ObjectKey, (): &()) {}

        async fn apply(&self, _: &ObjectKey, (): (), (): ()) -> Result<Outcome, Infallible> {
            Ok(Outcome::Done)
        }
    }

    fn controller() -> Arc<MiniClusterController> {
        let clock = SystemClock::shared();
        let unanswered = tower::service_fn(|_: http::Request<_>| {
            future::pending::<Result<http::Response<Box<DynBody>>, BoxError>>()
        });
        let clients = Clients::over(&unanswered, Fence::closed(clock.clone()).1, &RequestMetrics::default(), &clock);
        let watches = Watches {
            mini_clusters: Cache::empty(),
            bursts: Cache::empty(),
            hosted: Cache::empty(),
            peers: Cache::empty(),
        };
        let events = Events::new(clients.writer.clone(), "tributary.dev/agent", "pod-0", clock.clone());
        let (settings, gate) = (Context::default(), Arc::new(Answers::default()));
        MiniClusterController::new(clients, watches, events, settings, gate, clock, Traces::default()).0
    }

    /// The danger: whoever makes thousands of MiniClusters holds up what all others do with theirs.
    #[tokio::test(start_paused = true)]
    async fn a_namespace_of_many_objects_delays_those_of_another_by_one() {
        let controller = controller();
        let queues = [controller.queue(), controller.pod_indexes.queue().clone(), controller.workloads.queue().clone()];
        for queue in queues {
            (0..5000).for_each(|number| queue.mark(ObjectKey::namespaced("crowd", number.to_string())));
            (0..3).for_each(|number| queue.mark(ObjectKey::namespaced("waters", number.to_string())));
            let (in_turn, stop) = (Arc::new(InTurn { queue, seen: Mutex::default() }), CancellationToken::new());
            let running = tokio::spawn(engine::run(in_turn.clone(), stop.clone()));
            tokio::time::sleep(Duration::from_secs(1)).await;
            stop.cancel();
            running.await.unwrap();
            let seen = in_turn.seen.lock();
            assert_eq!(seen[..6], ["crowd", "waters", "crowd", "waters", "crowd", "waters"]);
            assert_eq!(seen.len(), 5003);
        }
    }
}
