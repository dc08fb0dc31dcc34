//! What runs only while this agent leads: the controllers, and the sessions with peers.

use std::future::pending;
use std::io::ErrorKind;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use futures::future::BoxFuture;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tributary::bursting::steps::StepTimes;
use tributary::bursting::timing::Times;
use tributary::bursting::{Bursting, BurstingConfig};
use tributary::clock::{SharedClock, SystemRng};
use tributary::cluster::client::Clients;
use tributary::cluster::events::Events;
use tributary::cluster::fence::Fence;
use tributary::cluster::leadership::Handover;
use tributary::cluster::scope::Term;
use tributary::cluster::work::Workload;
use tributary::config::{self as configured, Config, IdentityConfig};
use tributary::contract::ports::PeerRequests;
use tributary::contract::tunnel::Outlets;
use tributary::contract::{ClusterUid, Epoch, PeerName};
use tributary::federation::mesh::{MeshConfig, MeshMetrics, Ports, spawn};
use tributary::federation::timers::Timers;
use tributary::federation::transport::Transport;
use tributary::federation::tunnel::{Budget, TunnelMetrics, TunnelPorts};
use tributary::federation::wire::version::WireVersions;
use tributary::metrics::Metrics;
use tributary::queue::controller::{Ports as QueuePorts, Queueing};
use tributary::queue::hosted_usage::HostedUsage;
use tributary::reconcile::MiniClusterController;
use tributary::reconcile::watches::Watches;
use tributary::render;
use tributary::telemetry::Traces;

use crate::app::LEASE;
use crate::enrolment::Enrolment;
use crate::enrolment::cluster_info::ClusterInfo;
use crate::federation_service::FederationService;
use crate::figures::IdentityInUse;
use crate::identity::Source;
use crate::local_status::Local;
use crate::memory;
use crate::network::Network;
use crate::queries::Queries;
use crate::queue_ports::{Granted, nodes_of, peers_of, sender};
use crate::quota_gate::Gate;
use crate::rivals;
use crate::trust::{TrustPublisher, TrustReceiver};
use crate::unreadable::Unreadable;
use crate::webhook::Webhook;

/// How long after a failure the federation is tried again: the identity is not there yet, the port is taken.
const RETRY: Duration = Duration::from_secs(5);

/// Between two attempts to bind a port that is in use, and how many there are before that is said.
const BIND_AGAIN: Duration = Duration::from_millis(50);
/// See [`BIND_AGAIN`].
const BINDS: u32 = 60;

/// What taking this agent out of the EndpointSlices may take: an API server that does not answer must not hold up the end
/// of a term, and the next leader writes over them.
const CLOSE: Duration = Duration::from_secs(1);

/// What a leader is made of.
pub(crate) struct Parts {
    /// Clients of this cluster.
    pub clients: Clients,
    /// The shared caches.
    pub watches: Watches,
    /// Says what happens to objects.
    pub events: Events,
    /// What rendering needs to know of this cluster.
    pub settings: render::Context,
    /// Time.
    pub clock: SharedClock,
    /// Where spans go.
    pub traces: Traces,
    pub cluster_uid: String,
    /// Answers peers' queries.
    pub local: Arc<Local>,
    /// Where the mesh is shown while the federation is open.
    pub mesh: watch::Sender<Option<Arc<dyn PeerRequests>>>,
    /// Counts what happens.
    pub metrics: Arc<Metrics>,
    /// Who leads.
    pub fence: Fence,
    /// Where the identity is shown, and whether peers are spoken with.
    pub identity: Arc<IdentityInUse>,
    /// Converts MiniClusters.
    pub webhook: Arc<Webhook>,
    /// How peers are reached.
    pub network: Arc<dyn Network>,
}

/// Begins the tasks of each term.
pub struct Leader {
    queueing: Arc<Queueing>,
    controller: Arc<MiniClusterController>,
    unreadable: Arc<Unreadable>,
    federation: Arc<Federation>,
}

/// What a term needs for its sessions with peers.
struct Federation {
    config: Config,
    parts: Parts,
    bursting: Arc<Bursting>,
    federation_service: Arc<FederationService>,
    counters: MeshMetrics,
    carried: TunnelMetrics,
    budget: Budget,
}

impl Leader {
    /// A leader, and the watches its controllers need besides the shared ones.
    pub(crate) fn new(config: &Config, parts: Parts) -> (Self, Vec<BoxFuture<'static, ()>>) {
        let Watches { mini_clusters, bursts, hosted, peers } = parts.watches.clone();
        let guests = HostedUsage::default();
        let (bursting, mut filling) = Bursting::new(BurstingConfig {
            clients: parts.clients.clone(),
            mini_clusters,
            bursts: bursts.clone(),
            hosted: hosted.clone(),
            peers: peers.clone(),
            events: parts.events.clone(),
            cluster: PeerName::from(config.cluster.name.as_str()),
            settings: parts.settings.clone(),
            clock: parts.clock.clone(),
            traces: parts.traces.clone(),
            steps: StepTimes::register(&parts.metrics),
            times: times(config.bursting),
            namespace: config.kubernetes.namespace.clone(),
            usage_days: config.bursting.usage_days,
            address: config.federation.tunnel_address(),
            grants: Arc::new(Granted(guests.clone())),
            leads: parts.network.leads(),
            queues: parts.network.queues(),
        });
        let (queueing, more) = Queueing::new(
            &parts.clients,
            (parts.watches.mini_clusters.clone(), hosted, bursts, peers),
            QueuePorts {
                nodes: nodes_of(&bursting),
                peers: peers_of(&bursting),
                sender: sender(times(config.bursting)),
                guests,
            },
            parts.events.clone(),
            parts.clock.clone(),
        );
        filling.extend(more);
        let admission = queueing.admission();
        let (controller, more) = MiniClusterController::new(
            parts.clients.clone(),
            parts.watches.clone(),
            parts.events.clone(),
            parts.settings.clone(),
            Arc::new(Gate { admission: admission.clone(), bursting: bursting.clone() }),
            parts.clock.clone(),
            parts.traces.clone(),
        );
        filling.extend(more);
        admission.leads_to(controller.queue());
        let unreadable = Unreadable::new(&parts.clients, parts.watches.clone(), &queueing, &parts.events, &parts.clock);
        let (federation_service, more) = FederationService::new(config, &parts.clients, bursting.nodes());
        filling.extend(more);
        let mut queues = controller.queues();
        queues.extend(bursting.queues());
        queues.extend(queueing.queues());
        parts.metrics.collect(Workload(queues));
        parts.metrics.collect(queueing.figures(parts.fence.clone()));
        let counters = MeshMetrics::register(&parts.metrics);
        let budget = Budget::new(memory::for_tunnels(config.federation.tunnel.memory_mib));
        let carried = TunnelMetrics::register(&parts.metrics, &budget);
        let federation =
            Federation { config: config.clone(), parts, bursting, federation_service, counters, carried, budget };
        (Self { controller, queueing, unreadable: Arc::new(unreadable), federation: Arc::new(federation) }, filling)
    }

    /// Which bursts pass this end of their tunnels, while this agent leads.
    pub fn outlets(&self) -> watch::Receiver<Outlets> {
        self.federation.bursting.tunnels().outlets()
    }

    /// Spawns the tasks of a term.
    pub fn begin(&self, term: &mut Term) {
        let epoch = Epoch(term.epoch().transitions);
        let parts = &self.federation.parts;
        let namespace = &self.federation.config.kubernetes.namespace;
        let handover = Handover::new(&parts.clients, namespace, LEASE, term.before());
        // Before anybody asks.
        self.queueing.begin();
        self.federation.bursting.forget();
        let rivals = rivals::watch(
            parts.clients.reader.clone(),
            self.federation.config.kubernetes.clone(),
            parts.clock.clone(),
            term.stop(),
        );
        term.spawn("the look for rivals", rivals);
        term.spawn("the queue", self.queueing.clone().run(term.stop()));
        term.spawn("the MiniCluster controller", self.controller.clone().run(term.stop()));
        term.spawn("what cannot be read", self.unreadable.clone().run(term.stop()));
        term.spawn("the keeper of the webhook", self.federation.parts.webhook.clone().keep(term.stop()));
        term.spawn("the federation", self.federation.clone().run(epoch, handover, term.stop()));
    }
}

/// The intervals of the sessions with peers.
fn timers(config: &Config) -> anyhow::Result<Timers> {
    Timers::liveness(config.liveness.heartbeat(), config.liveness.suspect(), config.grace())
        .map_err(|problem| anyhow::anyhow!("[liveness] contradicts itself: {problem}"))
}

fn times(config: configured::BurstingConfig) -> Times {
    let configured::BurstingConfig { lease_seconds, drain_seconds, grace_seconds, usage_days: _ } = config;
    let seconds = |seconds: u32| Duration::from_secs(seconds.into());
    Times { lease: seconds(lease_seconds), drain: seconds(drain_seconds), grace: seconds(grace_seconds) }
}

impl Federation {
    /// Bursting, and the sessions it speaks through. Without an identity bursts wait, and say so.
    async fn run(self: Arc<Self>, epoch: Epoch, handover: Handover, stop: CancellationToken) {
        if self.config.federation.identity == IdentityConfig::Off {
            tracing::info!("federation.identity is off: this agent peers with nobody");
            return self.bursting.clone().run(None, handover, stop).await;
        }
        self.parts.identity.closed(None);
        let mut opened = self.open(&stop).await;
        if let Err(error) = &opened {
            self.unopened(error);
            // Leases count meanwhile, and what this agent knows of its peers is not what it knew before.
            let alone = stop.child_token();
            let opening = async {
                while opened.is_err() {
                    tokio::select! {
                        () = tokio::time::sleep(RETRY) => {}
                        () = stop.cancelled() => break,
                    }
                    opened = self.open(&stop).await.inspect_err(|error| self.unopened(error));
                }
                alone.cancel();
            };
            tokio::join!(opening, self.bursting.clone().run(None, handover.clone(), alone.clone()));
        }
        if let Ok(Some((source, timers, transport))) = opened {
            self.serve(source, timers, transport, epoch, handover, stop).await;
        }
    }

    fn unopened(&self, error: &anyhow::Error) {
        self.parts.identity.closed(Some(error));
        let error = format!("{error:#}");
        tracing::warn!(error, retry_in = ?RETRY, "the federation could not be started: no peer is reached");
    }

    /// The identity, and the UDP port. `None`: this term is over.
    async fn open(&self, stop: &CancellationToken) -> anyhow::Result<Option<(Source, Timers, Arc<dyn Transport>)>> {
        let Parts { clients, clock, .. } = &self.parts;
        // An API server that does not answer must not hold up the end of a term.
        let source = tokio::select! {
            source = Source::open(&self.config, clients, clock) => source?.context("no identity is configured")?,
            () = stop.cancelled() => return Ok(None),
        };
        let timers = timers(&self.config)?;
        let transport = self.listen(&source, &timers, stop).await?;
        Ok(transport.map(|transport| (source, timers, transport)))
    }

    /// Binds the UDP port, which the term before may give up in this moment. `None`: this term is over.
    async fn listen(
        &self,
        source: &Source,
        timers: &Timers,
        stop: &CancellationToken,
    ) -> anyhow::Result<Option<Arc<dyn Transport>>> {
        let (listen, Parts { network, clock, .. }) = (self.config.federation.listen, &self.parts);
        let mut tries = 0;
        loop {
            match network.listen(listen, &source.store, timers, clock) {
                Ok(transport) => return Ok(Some(transport)),
                Err(error) if error.source.kind() == ErrorKind::AddrInUse && tries < BINDS => tries += 1,
                Err(error) => return Err(error.into()),
            }
            tokio::select! {
                () = tokio::time::sleep(BIND_AGAIN) => {}
                () = stop.cancelled() => return Ok(None),
            }
        }
    }

    async fn serve(
        &self,
        source: Source,
        timers: Timers,
        transport: Arc<dyn Transport>,
        epoch: Epoch,
        handover: Handover,
        stop: CancellationToken,
    ) {
        let Parts { clients, clock, mesh, local, cluster_uid, .. } = &self.parts;
        let cluster = &self.config.cluster;
        self.parts.identity.is(source.store.clone());
        // Whoever dials from now on finds this agent.
        tokio::select! {
            () = self.federation_service.open() => {}
            () = stop.cancelled() => return,
        }
        let (_epoch, epoch) = watch::channel(Some(epoch));
        let config = MeshConfig {
            name: PeerName::from(cluster.name.as_str()),
            cluster_uid: ClusterUid::from(cluster_uid.as_str()),
            labels: cluster.labels.clone(),
            version: crate::VERSION.to_owned(),
            versions: WireVersions::OURS,
            epoch,
            peers: self.bursting.peers(),
            timers,
            clock: clock.clone(),
            rng: Box::new(SystemRng),
            resolve: self.parts.network.resolver(),
            metrics: self.counters.clone(),
            // At once, so that brokers notice while this pod's network is there.
            shutdown: stop.clone(),
        };
        // What the sessions of a term before have said counts no more.
        self.bursting.forget();
        let (tunnels, federation) = (self.bursting.tunnels(), &self.config.federation);
        let ports = Ports {
            tunnels: TunnelPorts {
                outlets: tunnels.outlets(),
                inlets: tunnels.inlets(),
                listening: tunnels.listening(),
                ends: tunnels.ends(),
                address: federation.tunnel_listen(),
                ports: federation.tunnel.ports(),
                budget: self.budget.clone(),
                metrics: self.carried.clone(),
            },
            outgoing: self.bursting.outgoing(),
            incoming: self.bursting.incoming(),
            credentials: self.bursting.credentials(),
            queries: Arc::new(Queries::new(local.clone(), self.parts.watches.peers.clone())),
            trust: Arc::new(TrustReceiver {
                clients: clients.clone(),
                namespace: self.config.kubernetes.namespace.clone(),
                peers: self.parts.watches.peers.clone(),
                clock: clock.clone(),
            }),
        };
        let (reaches, reach) = watch::channel(None);
        let card = ClusterInfo {
            config: self.config.clone(),
            cluster_uid: cluster_uid.clone(),
            clients: clients.clone(),
            identities: source.store.clone(),
            offers: source.offers(),
            reach,
        };
        let (introductions, own) = watch::channel(Arc::new(card.introduction()));
        let enrolment = Enrolment {
            config: self.config.clone(),
            clients: clients.clone(),
            identities: source.store.clone(),
            own,
            clock: clock.clone(),
        };
        let handle = Arc::new(spawn(config, transport, ports));
        let (known, agreed) = watch::channel(None);
        let Watches { bursts, hosted, .. } = self.parts.watches.clone();
        let teller = TrustPublisher {
            mesh: handle.clone(),
            // Its first change is the list of this term, which comes later.
            peers: self.bursting.peers(),
            offer: source.offers(),
            bound: (bursts, hosted),
            known,
        };
        mesh.send_replace(Some(handle.clone()));
        tokio::select! {
            () = self.bursting.clone().run(Some(handle.clone()), handover, stop) => {}
            () = async {
                let kept = source.renew(agreed, clock.clone());
                let federation_service = self.federation_service.keep(&reaches);
                tokio::join!(kept, card.keep(introductions), enrolment.run(), teller.run(), federation_service);
                pending().await
            } => {}
        }
        mesh.send_replace(None);
        // Peers are told before the Lease is given up.
        tokio::join!(handle.ended(), tokio::time::timeout(CLOSE, self.federation_service.close())).0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_of_the_configuration_are_those_of_bursting() {
        assert_eq!(times(configured::BurstingConfig::default()), Times::default());
    }
}
