//! The statuses of ClusterPeers: how the connection to each is, and what our bursts use there.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use parking_lot::Mutex;
use tributary_api::budget::Usage;
use tributary_api::burst::Burst;
use tributary_api::labels;
use tributary_api::labels::condition::CONNECTED;
use tributary_api::peer::{ClusterPeer, ClusterPeerStatus};
use tributary_api::provisioning_request::ProvisioningRequest;
use tributary_clock::{Mono, Now};
use tributary_cluster::apply::Applier;
use tributary_cluster::caches::Subscription;
use tributary_cluster::discovery;
use tributary_cluster::engine::{Controller, Observed, nothing};
use tributary_cluster::error::chain;
use tributary_cluster::worker::{Outcome, Queue};
use tributary_cluster::{Cause, ObjectKey, RequestError};
use tributary_contract::{PeerName, PeerReport};

use super::peers;
use super::root::controller::Root;
use super::shared::Shared;
use super::timing::LOST_AFTER;
use super::usage::{LOOK_AGAIN, Records};

/// How long it counts that a kind is served, and that it is not.
const SERVED_FOR: Duration = Duration::from_secs(60);
/// See [`SERVED_FOR`].
const UNSERVED_FOR: Duration = Duration::from_secs(15);

/// Writes them.
pub(super) struct PeerStatuses {
    shared: Arc<Shared>,
    root: Arc<Root>,
    records: Arc<Records>,
    applier: Applier,
    queue: Queue<ObjectKey>,
    /// What was written last of those that cannot be read: the cache has what they said before.
    unread: Mutex<BTreeMap<ObjectKey, ClusterPeerStatus>>,
    /// Whether this cluster serves ProvisioningRequests, and when it was asked.
    served: Mutex<Option<(bool, Mono)>>,
}

impl PeerStatuses {
    pub(super) fn new(shared: Arc<Shared>, root: Arc<Root>, records: Arc<Records>) -> Self {
        let applier = Applier::new(shared.clients.writer.clone(), labels::manager::PEER);
        let (unread, served) = (Mutex::default(), Mutex::default());
        Self { queue: Queue::new(shared.clock.clone()), shared, root, records, applier, unread, served }
    }

    /// Whether there are ProvisioningRequests here: asked seldom, and only if somebody wants to know.
    async fn serves_requests(&self, now: Mono) -> bool {
        let known = *self.served.lock();
        let counts = |served| if served { SERVED_FOR } else { UNSERVED_FOR };
        if let Some((served, _)) = known.filter(|(served, at)| now.saturating_since(*at) < counts(*served)) {
            return served;
        }
        match discovery::is_served::<ProvisioningRequest>(&self.shared.clients.reader).await {
            Ok(served) => {
                *self.served.lock() = Some((served, now));
                served
            }
            Err(error) => {
                tracing::debug!(error = chain(&error), "whether ProvisioningRequests are served is not known");
                known.is_none_or(|(served, _)| served)
            }
        }
    }

    /// What a change of which object means for which ClusterPeer.
    pub(super) fn feed(&self) -> [Subscription; 2] {
        let caches = &self.shared.caches;
        let (queue, known) = (self.queue.clone(), caches.peers.clone());
        [
            caches.peers.feed(&self.queue, |peer| vec![ObjectKey::of(peer)]),
            // What a burst uses is counted at its peer.
            caches.bursts.subscribe(move |change| {
                let of = |burst: &Option<Arc<Burst>>| {
                    let status = burst.as_ref()?.status.as_ref()?;
                    Some((status.peer.clone()?, status.spent.usage()))
                };
                let (old, new) = (of(&change.old), of(&change.new));
                if old != new {
                    let named: Vec<_> = old.into_iter().chain(new).map(|(peer, _)| PeerName::from(peer)).collect();
                    for peer in known.objects().iter().filter(|peer| named.contains(&peers::name_of(peer))) {
                        queue.mark(ObjectKey::of(&**peer));
                    }
                }
            }),
        ]
    }

    pub(super) fn mark_all(&self) {
        for peer in self.shared.caches.peers.objects() {
            self.queue.mark(ObjectKey::of(&*peer));
        }
    }

    /// Marks one, to be looked at no earlier than `at`.
    pub(super) fn mark(&self, peer: &PeerName, at: Mono) {
        for known in self.shared.caches.peers.objects().iter().filter(|known| peers::name_of(known) == *peer) {
            self.queue.mark_in((), ObjectKey::of(&**known), at);
        }
    }
}

/// A ClusterPeer, and what its status follows from.
pub(super) struct View {
    peer: Arc<ClusterPeer>,
    /// It cannot be read any more.
    unreadable: bool,
    report: Option<PeerReport>,
    /// How long it is out of contact.
    away: Option<Duration>,
    /// What our bursts use of it, and what those may that are gone.
    usage: Usage,
    gone: Usage,
    /// Its import asks for nodes by ProvisioningRequests, and there are none.
    unserved: bool,
    now: Now,
    /// The moment, as budgets count it.
    counted: Timestamp,
}

impl Controller for PeerStatuses {
    type Key = ObjectKey;
    type Line = ();
    type View = View;
    /// The status, if it says something else than the last one.
    type Step = Option<ClusterPeerStatus>;
    type Error = RequestError;

    const NAME: &'static str = "peer";
    const CONCURRENCY: usize = 1;

    fn queue(&self) -> &Queue<ObjectKey> {
        &self.queue
    }

    async fn observe(&self, key: &ObjectKey) -> Result<Observed<View>, RequestError> {
        let shared = &self.shared;
        let Some(mut peer) = shared.caches.peers.of(key) else {
            self.unread.lock().remove(key);
            return Ok(nothing());
        };
        let name = peers::name_of(&peer);
        let unreadable = shared.caches.peers.unreadable_of(key);
        if let Some(unreadable) = &unreadable {
            let ClusterPeer { metadata, status, .. } = Arc::make_mut(&mut peer);
            metadata.resource_version.clone_from(&unreadable.version);
            *status = self.unread.lock().get(key).cloned().or(status.take());
            status.get_or_insert_default().conditions.clone_from(&unreadable.conditions);
        } else {
            self.unread.lock().remove(key);
        }
        // Takes in who is in contact.
        shared.peers();
        let now = shared.now();
        Ok(Observed::Continue(View {
            report: peers::reported(&name, &shared.own, shared.exchange.report(&name)),
            away: shared.root_contacts().away(&name, now.mono),
            usage: self.root.usage_of(&peer),
            gone: self.records.gone(&name),
            unserved: peers::provisioning_class(&peer).is_some() && !self.serves_requests(now.mono).await,
            unreadable: unreadable.is_some(),
            peer,
            now,
            counted: shared.counted(),
        }))
    }

    fn step(&self, _: &ObjectKey, view: &View) -> Option<ClusterPeerStatus> {
        let usage = [view.usage, view.gone].into_iter().sum();
        let (report, more) = (view.report.as_ref(), (usage, view.counted, view.unserved));
        let mut status = peers::status(&view.peer, report, view.away, more, view.now)?;
        if view.unreadable {
            // What it says of the connection is that the object cannot be read. Losses and budgets count on.
            let said = view.peer.status.iter().flat_map(|status| &status.conditions);
            status.conditions.retain(|one| one.type_ != CONNECTED);
            status.conditions.extend(said.filter(|one| one.type_ == CONNECTED).cloned());
            status.conditions.sort_by(|a, b| a.type_.cmp(&b.type_));
        }
        (view.peer.status.as_ref() != Some(&status)).then_some(status)
    }

    async fn apply(
        &self,
        key: &ObjectKey,
        view: View,
        status: Option<ClusterPeerStatus>,
    ) -> Result<Outcome, RequestError> {
        let View { peer, unreadable, away, gone, unserved, counted, .. } = view;
        if let Some(status) = &status {
            match self.applier.apply_status(&*peer, status).await {
                // It was taken; what cannot be read is the answer.
                Err(error) if unreadable && matches!(error.cause(), Cause::Answer(_)) => {}
                outcome => drop(outcome?),
            }
            if unreadable {
                self.unread.lock().insert(key.clone(), status.clone());
            }
        }
        let spent = status.or_else(|| peer.status.clone()).unwrap_or_default().spent;
        // A connection that stays away becomes a transition with time; a budget ends with time.
        let blip = away.filter(|away| *away < LOST_AFTER).map(|_| LOST_AFTER);
        // A definition that is installed is no change of a ClusterPeer.
        let served = unserved.then_some(UNSERVED_FOR);
        let leaving = (gone.brokers > 0).then_some(LOOK_AGAIN);
        let wake = [blip, served, leaving, peers::budget_wake(&peer, &spent, counted)].into_iter().flatten().min();
        Ok(wake.map_or(Outcome::Done, Outcome::After))
    }
}
