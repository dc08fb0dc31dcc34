//! Both ends of the ports, for tests: what a cluster says is set by hand, what it hears is written down.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use futures::FutureExt as _;
use futures::future::BoxFuture;
use jiff::Timestamp;
use tokio::sync::watch;
use tributary_clock::{Clock, Mono, SystemClock};
use tributary_contract::ports::{
    CredentialSource, Incoming, Outgoing, QuerySource, State, StateKey, TrustAnswer, TrustOffer, TrustSink,
};
use tributary_contract::{
    Capacity, Credential, CredentialRefusal, CredentialRequest, DesiredBurst, DirtySet, Epoch, ObservedBurst, PeerName,
    PeerReport, PeerState, RootIdentity,
};

use super::wire::messages::Hello;
use super::wire::version::WireVersions;

/// A hello of cluster `name`, whose UID is `uid-<name>`.
pub(crate) fn hello(name: &str) -> Hello {
    Hello {
        versions: WireVersions::OURS,
        agent_version: "0.1.0".into(),
        cluster: name.into(),
        cluster_uid: format!("uid-{name}").into(),
        epoch: Epoch(1),
        instance: 1,
        labels: BTreeMap::from([("name".into(), name.into())]),
        capabilities: BTreeSet::new(),
        patience: None,
    }
}

pub(crate) fn desired(uid: &str, generation: u64) -> DesiredBurst {
    DesiredBurst {
        uid: uid.into(),
        generation,
        root: RootIdentity::default(),
        slot: format!("slot-{uid}"),
        size: 2,
        max_size: 2,
        cores: 1,
        gpus: 0,
        rank_map: String::new(),
        rank_map_digest: String::new(),
        credential_digest: String::new(),
        lead: None,
        whole: false,
        tunnel: false,
        flux_version: None,
        arch: None,
        template: serde_json::json!({"spec": {"tasks": 1}}),
        lease_seconds: 300,
        drain_seconds: 60,
        warm: false,
        hosted_uid: None,
        offer: String::new(),
        trace: None,
        user: None,
    }
}

pub(crate) fn observed(uid: &str, generation: u64) -> ObservedBurst {
    ObservedBurst { uid: uid.into(), observed_generation: generation, ..ObservedBurst::default() }
}

pub(crate) fn desired_key(uid: &str) -> StateKey {
    StateKey::Desired(uid.into())
}

pub(crate) fn observed_key(uid: &str) -> StateKey {
    StateKey::Observed(uid.into())
}

/// A clock that stops and jumps with tokio's paused time, the wall clock too.
pub(crate) struct PausedClock(SystemClock);

impl PausedClock {
    pub(crate) fn shared() -> Arc<Self> {
        Arc::new(Self(SystemClock::start()))
    }
}

impl Clock for PausedClock {
    fn mono(&self) -> Mono {
        self.0.mono()
    }

    fn wall(&self) -> Timestamp {
        Timestamp::from_second(1_800_000_000).unwrap() + self.mono().since_start()
    }
}

/// What a cluster says and what it heard.
#[derive(Default)]
pub(crate) struct Cluster {
    inner: Mutex<Inner>,
    /// Counts what was heard.
    heard: watch::Sender<u64>,
    dirty: DirtySet<(PeerName, StateKey)>,
}

#[derive(Default)]
struct Inner {
    says: BTreeMap<(PeerName, StateKey), State>,
    incomplete: bool,
    withheld: Vec<StateKey>,
    capacity: Option<Capacity>,
    heard: BTreeMap<(PeerName, StateKey), State>,
    keeps: bool,
    puts: usize,
    snapshots: Vec<(PeerName, Epoch, Vec<StateKey>)>,
    undeliverable: Vec<(StateKey, String)>,
    reports: Vec<(PeerName, PeerReport)>,
    certificates: BTreeMap<PeerName, String>,
}

impl Cluster {
    pub(crate) fn shared() -> Arc<Self> {
        Arc::default()
    }

    /// Waits until `holds`, looking whenever something is heard.
    pub(crate) async fn until(&self, what: &str, holds: impl Fn(&Self) -> bool) {
        let mut heard = self.heard.subscribe();
        let wait = async {
            while !holds(self) {
                heard.changed().await.unwrap();
            }
        };
        // Of virtual time, or of real time if something is broken.
        let waited = tokio::time::timeout(Duration::from_secs(60), wait).await;
        waited.unwrap_or_else(|_| panic!("never: {what}; reports {:?}", self.lock().reports));
    }

    /// Waits for a report about `peer` in this state.
    pub(crate) async fn until_state(&self, peer: &str, state: PeerState) {
        let what = format!("{peer} {state:?}");
        self.until(&what, |cluster| cluster.reports(peer).last().is_some_and(|report| report.state == state)).await;
    }

    fn tell(&self) {
        self.heard.send_modify(|heard| *heard += 1);
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Inner> {
        self.inner.lock().unwrap()
    }

    /// Says `state` of `key` to `peer` from now on.
    pub(crate) fn say(&self, peer: &str, key: StateKey, state: State) {
        self.lock().says.insert((peer.into(), key.clone()), state);
        self.dirty.mark((peer.into(), key));
    }

    pub(crate) fn say_desired(&self, peer: &str, uid: &str, generation: u64) {
        self.say(peer, desired_key(uid), State::Desired(Box::new(desired(uid, generation))));
    }

    pub(crate) fn say_observed(&self, peer: &str, uid: &str, generation: u64) {
        self.say(peer, observed_key(uid), State::Observed(Box::new(observed(uid, generation))));
    }

    /// Says nothing of `key` any more.
    pub(crate) fn forget(&self, peer: &str, key: StateKey) {
        self.lock().says.remove(&(peer.into(), key.clone()));
        self.dirty.mark((peer.into(), key));
    }

    pub(crate) fn set_complete(&self, complete: bool) {
        self.lock().incomplete = !complete;
    }

    pub(crate) fn withhold(&self, keys: &[StateKey]) {
        self.lock().withheld = keys.to_vec();
    }

    pub(crate) fn set_capacity(&self, capacity: Capacity) {
        self.lock().capacity = Some(capacity);
    }

    pub(crate) fn allow_certificate(&self, peer: &str, text: &str) {
        self.lock().certificates.insert(peer.into(), text.into());
    }

    /// Whether what is heard is kept when its peer names it no more.
    pub(crate) fn set_keeps(&self, keeps: bool) {
        self.lock().keeps = keeps;
    }

    /// The newest state heard of `peer`.
    pub(crate) fn heard(&self, peer: &str, key: &StateKey) -> Option<State> {
        self.lock().heard.get(&(peer.into(), key.clone())).cloned()
    }

    /// The generation heard of a desired burst.
    pub(crate) fn heard_generation(&self, peer: &str, uid: &str) -> Option<u64> {
        match self.heard(peer, &desired_key(uid))? {
            State::Desired(desired) => Some(desired.generation),
            _ => None,
        }
    }

    /// How many states were put, the same ones included.
    pub(crate) fn puts(&self) -> usize {
        self.lock().puts
    }

    /// The keys of the complete snapshots of `peer`.
    pub(crate) fn snapshots(&self, peer: &str) -> Vec<Vec<StateKey>> {
        self.lock().snapshots.iter().filter(|(from, ..)| from.as_str() == peer).map(|(.., keys)| keys.clone()).collect()
    }

    pub(crate) fn undeliverable(&self) -> Vec<(StateKey, String)> {
        self.lock().undeliverable.clone()
    }

    /// The reports about `peer`, oldest first.
    pub(crate) fn reports(&self, peer: &str) -> Vec<PeerReport> {
        let inner = self.lock();
        inner.reports.iter().filter(|(of, _)| of.as_str() == peer).map(|(_, report)| report.clone()).collect()
    }
}

impl Outgoing for Cluster {
    fn dirty(&self) -> &DirtySet<(PeerName, StateKey)> {
        &self.dirty
    }

    fn keys(&self, peer: &PeerName) -> Vec<StateKey> {
        self.lock().says.keys().filter(|(to, _)| to == peer).map(|(_, key)| key.clone()).collect()
    }

    fn state(&self, peer: &PeerName, key: &StateKey) -> Option<State> {
        self.lock().says.get(&(peer.clone(), key.clone())).cloned()
    }

    fn withheld(&self, _peer: &PeerName) -> Vec<StateKey> {
        self.lock().withheld.clone()
    }

    fn complete(&self) -> bool {
        !self.lock().incomplete
    }

    fn capacity(&self, _peer: &PeerName) -> Option<Capacity> {
        self.lock().capacity.clone()
    }
}

impl Incoming for Cluster {
    fn put(&self, peer: &PeerName, _epoch: Epoch, key: StateKey, state: State) {
        let mut inner = self.lock();
        inner.puts += 1;
        inner.heard.insert((peer.clone(), key), state);
        drop(inner);
        self.tell();
    }

    fn complete_snapshot(&self, peer: &PeerName, epoch: Epoch, keys: &[StateKey]) {
        self.lock().snapshots.push((peer.clone(), epoch, keys.to_vec()));
        self.tell();
    }

    fn keeps(&self, peer: &PeerName, key: &StateKey) -> bool {
        let inner = self.lock();
        inner.keeps && inner.heard.contains_key(&(peer.clone(), key.clone()))
    }

    fn undeliverable(&self, _peer: &PeerName, key: StateKey, problem: &str) {
        self.lock().undeliverable.push((key, problem.to_owned()));
        self.tell();
    }

    fn peer_report(&self, peer: &PeerName, report: PeerReport) {
        self.lock().reports.push((peer.clone(), report));
        self.tell();
    }
}

impl CredentialSource for Cluster {
    fn credential<'a>(
        &'a self,
        peer: &'a PeerName,
        request: CredentialRequest,
    ) -> BoxFuture<'a, Result<Credential, CredentialRefusal>> {
        let text = self.lock().certificates.get(peer).map(|text| format!("{text} for {}", request.burst));
        async move { text.map(Credential::new).ok_or(CredentialRefusal::NotForYou) }.boxed()
    }
}

impl TrustSink for Cluster {
    /// Takes whatever begins with the offering peer's name.
    fn offered<'a>(&'a self, peer: &'a PeerName, offer: TrustOffer) -> BoxFuture<'a, TrustAnswer> {
        let genuine = offer.bundle.starts_with(peer.as_str());
        std::future::ready(if genuine { TrustAnswer::Taken } else { TrustAnswer::Refused }).boxed()
    }
}

impl QuerySource for Cluster {
    fn answer<'a>(&'a self, peer: &'a PeerName, query: &'a str) -> BoxFuture<'a, Option<Bytes>> {
        async move { (query == "/v1/local").then(|| Bytes::from(format!("{{\"asked by\":\"{peer}\"}}"))) }.boxed()
    }
}
