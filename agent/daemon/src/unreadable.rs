//! Says of each of our own objects that cannot be read why.

use std::sync::Arc;

use tokio_util::sync::CancellationToken;
use tributary::api::burst::Burst;
use tributary::api::flux_job::FluxJob;
use tributary::api::flux_setup::FluxSetup;
use tributary::api::hosted_burst::HostedBurst;
use tributary::api::labels::condition::{ACTIVE, CONNECTED, READY, RUNNING};
use tributary::api::minicluster::MiniCluster;
use tributary::api::peer::ClusterPeer;
use tributary::clock::SharedClock;
use tributary::cluster::caches::{Cache, Watched};
use tributary::cluster::client::Clients;
use tributary::cluster::events::Events;
use tributary::cluster::unreadable::UnreadableObjects;
use tributary::queue::controller::Queueing;
use tributary::reconcile::watches::Watches;

/// Those of all kinds, each with a condition that its controller always states.
pub(crate) struct Unreadable {
    mini_clusters: Arc<UnreadableObjects<MiniCluster>>,
    jobs: Arc<UnreadableObjects<FluxJob>>,
    setups: Arc<UnreadableObjects<FluxSetup>>,
    peers: Arc<UnreadableObjects<ClusterPeer>>,
    bursts: Arc<UnreadableObjects<Burst>>,
    hosted: Arc<UnreadableObjects<HostedBurst>>,
}

impl Unreadable {
    /// Of these caches.
    pub(crate) fn new(
        clients: &Clients,
        watches: Watches,
        queue: &Queueing,
        events: &Events,
        clock: &SharedClock,
    ) -> Self {
        fn of<K: Watched>(
            (cache, condition): (Cache<K>, &'static str),
            clients: &Clients,
            (events, clock): (&Events, &SharedClock),
        ) -> Arc<UnreadableObjects<K>> {
            UnreadableObjects::new(cache, condition, clients.writer.clone(), events.clone(), clock.clone())
        }
        let Watches { mini_clusters, bursts, hosted, peers } = watches;
        let (setups, jobs) = queue.caches();
        let with = (events, clock);
        Self {
            mini_clusters: of((mini_clusters, READY), clients, with),
            // That one has finished, and how, is said once.
            jobs: of((jobs, RUNNING), clients, with),
            setups: of((setups, ACTIVE), clients, with),
            peers: of((peers, CONNECTED), clients, with),
            bursts: of((bursts, READY), clients, with),
            hosted: of((hosted, READY), clients, with),
        }
    }

    /// Tells until `stop`: in the leader's scope.
    pub(crate) async fn run(self: Arc<Self>, stop: CancellationToken) {
        tokio::join!(
            self.mini_clusters.clone().run(stop.clone()),
            self.jobs.clone().run(stop.clone()),
            self.setups.clone().run(stop.clone()),
            self.peers.clone().run(stop.clone()),
            self.bursts.clone().run(stop.clone()),
            self.hosted.clone().run(stop.clone()),
        );
    }
}
