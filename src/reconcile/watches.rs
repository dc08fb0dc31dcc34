//! The caches of our own kinds, which more than one part of an agent looks at, and the watches that fill them.

use std::collections::BTreeSet;

use futures::FutureExt;
use futures::future::BoxFuture;
use tributary_api::burst::Burst;
use tributary_api::flux_job::FluxJob;
use tributary_api::flux_setup::FluxSetup;
use tributary_api::hosted_burst::HostedBurst;
use tributary_api::minicluster::MiniCluster;
use tributary_api::peer::ClusterPeer;
use tributary_clock::SystemRng;
use tributary_cluster::caches::{self, Cache, Selection};
use tributary_cluster::client::Clients;
use tributary_cluster::discovery::ServedKind;

/// The caches of our own kinds. Each kind is watched once per process.
#[derive(Clone)]
pub struct Watches {
    /// MiniClusters of the namespaces this agent works in, but for those that `managedBy` leaves to others.
    pub mini_clusters: Cache<MiniCluster>,
    /// Bursts there.
    pub bursts: Cache<Burst>,
    /// HostedBursts there.
    pub hosted: Cache<HostedBurst>,
    /// ClusterPeers of the agent's own namespace.
    pub peers: Cache<ClusterPeer>,
}

impl Watches {
    /// All of our own kinds, in the versions that are read.
    pub fn kinds() -> BTreeSet<ServedKind> {
        [
            ServedKind::of::<MiniCluster>(),
            ServedKind::of::<ClusterPeer>(),
            ServedKind::of::<Burst>(),
            ServedKind::of::<HostedBurst>(),
            ServedKind::of::<FluxSetup>(),
            ServedKind::of::<FluxJob>(),
        ]
        .into()
    }

    /// The caches, and the watches to spawn.
    pub fn new(clients: &Clients, namespace: &str) -> (Self, Vec<BoxFuture<'static, ()>>) {
        let reader = &clients.reader;
        let everything = Selection::default();
        let (mini_clusters, watch_mini_clusters) = caches::watched(clients, &everything, SystemRng);
        mini_clusters.leave_alone(|object: &MiniCluster| object.spec.managed_by.as_deref());
        let (bursts, watch_bursts) = caches::watched(clients, &everything, SystemRng);
        let (hosted, watch_hosted) = caches::watched(clients, &everything, SystemRng);
        let (peers, watch_peers) = caches::in_namespace(reader.clone(), namespace, &everything, SystemRng);
        let watches =
            vec![watch_mini_clusters.boxed(), watch_bursts.boxed(), watch_hosted.boxed(), watch_peers.boxed()];
        (Self { mini_clusters, bursts, hosted, peers }, watches)
    }

    /// Waits until every first list is complete.
    pub async fn listed(&self) {
        let Self { mini_clusters, bursts, hosted, peers } = self;
        mini_clusters.listed().await;
        bursts.listed().await;
        hosted.listed().await;
        peers.listed().await;
    }
}
