//! What both sides of bursting share in one agent.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::Timestamp;
use parking_lot::Mutex;
use tributary_clock::{Mono, Now, SharedClock};
use tributary_cluster::client::Clients;
use tributary_cluster::events::{Events, Notice};
use tributary_contract::PeerName;
use tributary_telemetry::Traces;

use super::contact::Contacts;
use super::note::Note;
use super::ours::Ours;
use super::peers::{self, PeerView};
use super::preflight::lead::Dial;
use super::provider::grants::Grants;
use super::root::demand::hear::Connect;
use super::steps::StepTimes;
use super::sync_store::SyncStore;
use super::timing::{Times, unhurried};
use super::tunnels::Tunnels;
use super::watch::Caches;

/// Caches, clients and tables.
pub(super) struct Shared {
    pub(super) caches: Caches,
    pub(super) clients: Clients,
    pub(super) events: Events,
    pub(super) exchange: SyncStore,
    pub(super) clock: SharedClock,
    pub(super) traces: Traces,
    pub(super) steps: StepTimes,
    pub(super) times: Times,
    /// Name of this cluster.
    pub(super) own: PeerName,
    /// What rendering needs to know of this cluster.
    pub(super) settings: tributary_render::Context,
    pub(super) tunnels: Arc<Tunnels>,
    /// The addresses of this cluster.
    pub(super) ours: tokio::sync::watch::Sender<Ours>,
    /// What FluxSetups leave for bursts of peers.
    pub(super) grants: Arc<dyn Grants>,
    /// How lead brokers of peers are dialled.
    pub(super) leads: Arc<dyn Dial>,
    /// How the programs beside lead brokers are reached that tell of queues.
    pub(super) queues: Arc<dyn Connect>,
    pub(super) root_contacts: Mutex<Contacts>,
    pub(super) provider_contacts: Mutex<Contacts>,
    /// When this term began, as budgets count it.
    pub(super) began: Mutex<Now>,
}

impl Shared {
    /// The moment.
    pub(super) fn now(&self) -> Now {
        Now::of(&*self.clock)
    }

    /// The moment, as budgets count it: see [`unhurried`].
    pub(super) fn counted(&self) -> Timestamp {
        let began = *self.began.lock();
        unhurried(began, self.now())
    }

    /// The peers, as decisions see them; also takes in who is in contact.
    pub(super) fn peers(&self) -> BTreeMap<PeerName, PeerView> {
        let reports = self.exchange.reports();
        let counted = self.counted();
        let views: BTreeMap<PeerName, PeerView> = self
            .caches
            .peers
            .objects()
            .iter()
            .map(|peer| (peers::name_of(peer), PeerView::of(peer, reports.get(&peers::name_of(peer)), counted)))
            .collect();
        let now = self.clock.mono();
        let present =
            |test: fn(&PeerView) -> bool| views.iter().filter(move |(_, view)| test(view)).map(|(name, _)| name);
        self.root_contacts.lock().observe(present(PeerView::in_session), now);
        self.provider_contacts.lock().observe(present(PeerView::connected), now);
        views
    }

    /// The agent's own namespace: where the ClusterPeers are. Empty as long as there is none.
    pub(super) fn own_namespace(&self) -> String {
        self.caches.peers.objects().first().and_then(|peer| peer.metadata.namespace.clone()).unwrap_or_default()
    }

    /// Who is in a session with us: they may still hear us.
    pub(super) fn root_contacts(&self) -> Contacts {
        self.root_contacts.lock().clone()
    }

    /// Whom we hear.
    pub(super) fn provider_contacts(&self) -> Contacts {
        self.provider_contacts.lock().clone()
    }

    /// Nothing is known of contacts before `now`.
    pub(super) fn begin(&self, now: Now) {
        let mut began = self.began.lock();
        // A wall clock that is set ahead ends a term, and spends nothing in the next one either.
        *began = Now { wall: unhurried(*began, now), ..now };
        drop(began);
        *self.root_contacts.lock() = Contacts::begin(now.mono);
        *self.provider_contacts.lock() = Contacts::begin(now.mono);
        self.exchange.begin();
        self.tunnels.clear();
    }

    /// Publishes notes on an object.
    pub(super) async fn say(&self, about: &impl kube::Resource<DynamicType = ()>, action: &str, notes: Vec<Note>) {
        for Note { warning, reason, message } in notes {
            let notice = if warning { Notice::warning } else { Notice::normal };
            self.events.publish(about, notice(action, &reason, message)).await;
        }
    }
}

/// Contacts of a scope that has not begun.
pub(super) fn no_contacts(now: Mono) -> Mutex<Contacts> {
    Mutex::new(Contacts::begin(now))
}

/// The keys that a term has to handle once before what it says is complete. One that fails withholds itself, by name, and
/// nothing else.
#[derive(Debug)]
pub(super) struct FirstRound<K> {
    round: Mutex<Option<Round<K>>>,
}

#[derive(Debug)]
struct Round<K> {
    untried: BTreeSet<K>,
    failed: BTreeSet<K>,
}

impl<K> Default for FirstRound<K> {
    fn default() -> Self {
        Self { round: Mutex::new(None) }
    }
}

impl<K: Ord + Clone> FirstRound<K> {
    /// These have to be handled.
    pub(super) fn begin(&self, keys: impl IntoIterator<Item = K>) {
        *self.round.lock() = Some(Round { untried: keys.into_iter().collect(), failed: BTreeSet::new() });
    }

    /// One was handled: its part was said, or could not be.
    pub(super) fn handled(&self, key: &K, well: bool) {
        if let Some(Round { untried, failed }) = &mut *self.round.lock() {
            let is_new = untried.remove(key);
            if well {
                failed.remove(key);
            } else if is_new {
                failed.insert(key.clone());
            }
        }
    }

    /// Once all were tried: those whose part was not said yet.
    pub(super) fn withheld(&self) -> Option<BTreeSet<K>> {
        self.round.lock().as_ref().filter(|round| round.untried.is_empty()).map(|round| round.failed.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_that_fails_for_ever_withholds_itself_and_nothing_else() {
        let first = FirstRound::default();
        assert_eq!(first.withheld(), None, "no term has begun");
        first.begin(["bad", "good", "slow"]);
        first.handled(&"bad", false);
        first.handled(&"good", true);
        assert_eq!(first.withheld(), None, "one was not tried");
        first.handled(&"slow", false);
        first.handled(&"slow", true);
        assert_eq!(first.withheld(), Some(["bad"].into()));
        first.handled(&"good", false);
        first.handled(&"new", false);
        assert_eq!(first.withheld(), Some(["bad"].into()), "what was said once stands");
        first.handled(&"bad", true);
        assert_eq!(first.withheld(), Some(BTreeSet::new()));
    }
}
