//! Says of each of our own objects that cannot be read why.

use std::sync::Arc;

use futures::FutureExt;
use futures::future::{BoxFuture, join_all};
use tokio_util::sync::CancellationToken;
use tributary::api::labels::condition::{ACTIVE, CONNECTED, READY, RUNNING};
use tributary::clock::SharedClock;
use tributary::cluster::caches::{Cache, Watched};
use tributary::cluster::client::Clients;
use tributary::cluster::events::Events;
use tributary::cluster::unreadable::UnreadableObjects;
use tributary::queue::controller::Queueing;
use tributary::reconcile::watches::Watches;

/// Tells until it is stopped.
type Tell = Box<dyn Fn(CancellationToken) -> BoxFuture<'static, ()> + Send + Sync>;

/// Those of all kinds, each with a condition that its controller always states.
pub(crate) struct Unreadable(Vec<Tell>);

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
        ) -> Tell {
            let objects =
                UnreadableObjects::new(cache, condition, clients.writer.clone(), events.clone(), clock.clone());
            Box::new(move |stop| objects.clone().run(stop).boxed())
        }
        let Watches { mini_clusters, bursts, hosted, peers } = watches;
        let (setups, jobs) = queue.caches();
        let with = (events, clock);
        Self(vec![
            of((mini_clusters, READY), clients, with),
            // That one has finished, and how, is said once.
            of((jobs, RUNNING), clients, with),
            of((setups, ACTIVE), clients, with),
            of((peers, CONNECTED), clients, with),
            of((bursts, READY), clients, with),
            of((hosted, READY), clients, with),
        ])
    }

    /// Tells until `stop`: in the leader's scope.
    pub(crate) async fn run(self: Arc<Self>, stop: CancellationToken) {
        join_all(self.0.iter().map(|tell| tell(stop.clone()))).await;
    }
}
