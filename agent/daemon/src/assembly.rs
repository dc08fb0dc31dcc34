//! Constructs every part of an agent and joins them. Nothing runs yet.

use std::sync::Arc;

use futures::future::BoxFuture;
use tokio::sync::watch;
use tributary::clock::SharedClock;
use tributary::cluster::client::Clients;
use tributary::cluster::events::Events;
use tributary::cluster::fence::Fence;
use tributary::config::Config;
use tributary::contract::ports::PeerRequests;
use tributary::metrics::Metrics;
use tributary::reconcile::watches::Watches;
use tributary::render;
use tributary::telemetry::Traces;

use crate::ends;
use crate::figures::{Figures, IdentityInUse};
use crate::leader::{Leader, Parts};
use crate::local_status::Local;
use crate::network::Network;
use crate::webhook::Webhook;

/// Name of the agents in events.
const CONTROLLER: &str = "tributary.dev/agent";

/// What the parts of an agent stand on.
pub struct Surroundings {
    /// Clients of its cluster.
    pub clients: Clients,
    /// Who leads.
    pub fence: Fence,
    /// Time.
    pub clock: SharedClock,
    /// Where spans go.
    pub traces: Traces,
    /// Counts what happens.
    pub metrics: Arc<Metrics>,
    /// How peers are reached.
    pub network: Arc<dyn Network>,
    /// UID of the cluster.
    pub cluster_uid: String,
    /// What events call this process.
    pub instance: String,
}

/// The parts of an agent, joined. Nothing runs yet.
pub struct Assembly {
    /// The caches of our own kinds.
    pub(crate) watches: Watches,
    /// Converts MiniClusters.
    pub(crate) webhook: Arc<Webhook>,
    /// This cluster, as the admin API shows it.
    pub(crate) local: Arc<Local>,
    /// The mesh, while the federation is open.
    pub(crate) mesh: watch::Receiver<Option<Arc<dyn PeerRequests>>>,
    /// What runs while this agent leads.
    pub leader: Leader,
    /// The watches, which fill the caches of standbys too.
    pub filling: Vec<BoxFuture<'static, ()>>,
}

impl Assembly {
    /// Joins the parts.
    pub fn new(config: &Config, surroundings: Surroundings) -> Self {
        let Surroundings { clients, fence, clock, traces, metrics, network, cluster_uid, instance } = surroundings;
        let (watches, mut filling) = Watches::new(&clients, &config.kubernetes.namespace);
        let settings = render::Context {
            cluster_domain: config.cluster.dns_domain().to_owned(),
            volumes: config.volumes.clone(),
            lease: config.bursting.lease(),
            ends: ends::read(&config.federation.tunnel.ends),
            ..Default::default()
        };
        let (webhook, more) = Webhook::new(config, &clients, &clock, &metrics);
        filling.extend(more);
        let (shown, mesh) = watch::channel(None);
        let identity = Arc::<IdentityInUse>::default();
        let local = Arc::new(Local {
            cluster: config.cluster.name.clone(),
            cluster_uid: cluster_uid.clone(),
            labels: config.cluster.labels.clone(),
            mini_clusters: watches.mini_clusters.clone(),
            bursts: watches.bursts.clone(),
            hosted: watches.hosted.clone(),
            peers: watches.peers.clone(),
            identity: identity.clone(),
            clock: clock.clone(),
            fence: fence.clone(),
            mesh: mesh.clone(),
        });
        metrics.collect(Figures::of(&watches, &fence, &identity, &clock));
        let parts = Parts {
            clients: clients.clone(),
            watches: watches.clone(),
            events: Events::new(clients.writer, CONTROLLER, instance, clock.clone()),
            settings,
            clock,
            traces,
            cluster_uid,
            local: local.clone(),
            mesh: shown,
            metrics,
            fence,
            identity,
            webhook: webhook.clone(),
            network,
        };
        let (leader, more) = Leader::new(config, parts);
        filling.extend(more);
        Self { watches, webhook, local, mesh, leader, filling }
    }
}
