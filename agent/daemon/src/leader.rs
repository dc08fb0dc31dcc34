//! What runs only while this agent leads: the controllers, and the sessions with peers.

use std::sync::Arc;

use futures::future::BoxFuture;
use tokio::sync::watch;
use tributary::clock::SharedClock;
use tributary::cluster::client::Clients;
use tributary::cluster::events::Events;
use tributary::cluster::scope::Term;
use tributary::config::Config;
use tributary::contract::ports::PeerRequests;
use tributary::reconcile::Controller;
use tributary::render;

use crate::local_status::Local;
use crate::watches::Watches;

/// What a leader is made of.
pub struct Parts {
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
    /// UID of this cluster.
    pub cluster_uid: String,
    /// Answers peers' queries.
    pub local: Arc<Local>,
    /// Where the mesh is shown while this agent leads.
    pub mesh: watch::Sender<Option<Arc<dyn PeerRequests>>>,
}

/// Begins the tasks of each term.
pub struct Leader {
    controller: Arc<Controller>,
}

impl Leader {
    /// A leader, and the watches its controllers need besides the shared ones.
    pub async fn new(_config: &Config, parts: Parts) -> anyhow::Result<(Self, Vec<BoxFuture<'static, ()>>)> {
        let Parts { clients, watches, settings, clock, events, .. } = parts;
        let Watches { mini_clusters, bursts, hosted, .. } = watches;
        let (controller, filling) = Controller::new(clients, mini_clusters, bursts, hosted, events, settings, clock);
        Ok((Self { controller }, filling))
    }

    /// Spawns the tasks of a term.
    pub fn begin(&self, term: &mut Term) {
        term.spawn("the MiniCluster controller", self.controller.clone().run(term.stop()));
    }
}
