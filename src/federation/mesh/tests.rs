//! Whole agents' federations: tasks, transports and ports, on paused time over the in-process network, and once over
//! QUIC.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use tokio::sync::watch;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use tributary_clock::{Clock as _, SeededRng, SharedClock};
use tributary_contract::ports::{PeerRequests as _, TrustAnswer, TrustOffer};
use tributary_contract::{Capacity, CredentialRefusal, CredentialRequest, PeerState};
use tributary_metrics::Metrics;

use super::*;
use crate::testing::{Cluster, PausedClock, desired_key, observed_key};
use crate::transport::memory::{MemoryNetwork, MemoryTransport};
use crate::transport::{Resolve, Transport};
use crate::tunnel::TunnelPorts;

mod bad_input;
mod ends;
mod links;
mod moved;
mod quic;
mod raw;
mod rejected_peers;
mod tunnel;
mod versions;

/// One agent's federation, with what its cluster says and hears.
struct Agent {
    name: &'static str,
    cluster: Arc<Cluster>,
    handle: MeshHandle,
    peers: watch::Sender<BTreeMap<PeerName, PeerSpec>>,
    epoch: watch::Sender<Option<Epoch>>,
    shutdown: CancellationToken,
    metrics: Metrics,
}

/// What tells one agent from another, besides its name.
struct Fittings {
    timers: Timers,
    tunnels: TunnelPorts,
    versions: WireVersions,
}

impl Default for Fittings {
    fn default() -> Self {
        Self { timers: Timers::DEFAULT, tunnels: TunnelPorts::none(), versions: WireVersions::OURS }
    }
}

impl Agent {
    fn start(
        name: &'static str,
        epoch: u64,
        clock: SharedClock,
        transport: Arc<dyn Transport>,
        resolve: Arc<dyn Resolve>,
    ) -> Self {
        Self::fitted(name, epoch, clock, (transport, resolve), Fittings::default())
    }

    fn fitted(
        name: &'static str,
        epoch: u64,
        clock: SharedClock,
        (transport, resolve): (Arc<dyn Transport>, Arc<dyn Resolve>),
        Fittings { timers, tunnels, versions }: Fittings,
    ) -> Self {
        let cluster = Cluster::shared();
        let (peers, epoch) = (watch::Sender::default(), watch::Sender::new(Some(Epoch(epoch))));
        let (shutdown, metrics) = (CancellationToken::new(), Metrics::default());
        let seed = clock.mono().since_start().as_nanos() as u64 + name.len() as u64;
        let config = MeshConfig {
            name: name.into(),
            cluster_uid: format!("uid-{name}").into(),
            labels: BTreeMap::from([("region".into(), format!("of {name}"))]),
            version: "0.1.0".into(),
            versions,
            epoch: epoch.subscribe(),
            peers: peers.subscribe(),
            timers,
            clock,
            rng: Box::new(SeededRng::new(seed)),
            resolve,
            metrics: MeshMetrics::register(&metrics),
            shutdown: shutdown.clone(),
        };
        let ports = Ports {
            outgoing: cluster.clone(),
            incoming: cluster.clone(),
            credentials: cluster.clone(),
            queries: cluster.clone(),
            trust: cluster.clone(),
            tunnels,
        };
        let handle = spawn(config, transport, ports);
        Self { name, cluster, handle, peers, epoch, shutdown, metrics }
    }

    fn knows(&self, peer: &str, endpoints: &[SocketAddr]) {
        self.configure(peer, |spec| spec.endpoints = endpoints.iter().map(SocketAddr::to_string).collect());
    }

    fn configure(&self, peer: &str, change: impl FnOnce(&mut PeerSpec)) {
        self.peers.send_modify(|peers| {
            let new = || PeerSpec { name: peer.into(), ..PeerSpec::default() };
            change(peers.entry(peer.into()).or_insert_with(new));
        });
    }

    fn state_of(&self, peer: &str) -> PeerState {
        self.handle.reports()[peer].state
    }

    async fn until_generation(&self, peer: &str, uid: &str, generation: u64) {
        let what = format!("{} hears generation {generation} of {uid}", self.name);
        self.cluster.until(&what, |cluster| cluster.heard_generation(peer, uid) == Some(generation)).await;
    }
}

/// An in-process network with agents.
struct Bed {
    clock: Arc<PausedClock>,
    network: MemoryNetwork,
}

impl Bed {
    fn new() -> Self {
        let clock = PausedClock::shared();
        let network = MemoryNetwork::new(clock.clone());
        network.set_delay(Duration::from_millis(25));
        Self { clock, network }
    }

    fn address(name: &str) -> SocketAddr {
        (Ipv4Addr::new(10, 0, 0, name.len() as u8), 7946).into()
    }

    fn transport(&self, name: &'static str) -> Arc<MemoryTransport> {
        Arc::new(self.network.join(name, Self::address(name), Timestamp::MAX))
    }

    fn agent(&self, name: &'static str, epoch: u64) -> Agent {
        let transport = self.transport(name);
        Agent::start(name, epoch, self.clock.clone(), transport, Arc::new(self.network.clone()))
    }

    /// `n` agents that dial each other.
    fn agents<const N: usize>(&self, names: [&'static str; N]) -> [Agent; N] {
        let agents = names.map(|name| self.agent(name, 1));
        for agent in &agents {
            for peer in names.into_iter().filter(|peer| *peer != agent.name) {
                agent.knows(peer, &[Self::address(peer)]);
            }
        }
        agents
    }
}

#[tokio::test(start_paused = true)]
async fn two_agents_exchange_states_both_ways() {
    let bed = Bed::new();
    let [a, bb] = bed.agents(["a", "bb"]);
    a.cluster.say_desired("bb", "burst", 1);
    bb.until_generation("a", "burst", 1).await;
    bb.cluster.say_observed("a", "burst", 1);
    a.cluster.until("the answer", |cluster| cluster.heard("bb", &observed_key("burst")).is_some()).await;
    a.cluster.say("bb", desired_key("burst"), State::Tombstone);
    let gone = |cluster: &Cluster| cluster.heard("a", &desired_key("burst")) == Some(State::Tombstone);
    bb.cluster.until("the tombstone", gone).await;

    let report = a.handle.reports()["bb"].clone();
    assert_eq!((report.state, report.rtt_micros), (PeerState::Connected, Some(50_000)));
    assert_eq!((report.version.as_deref(), report.cluster_uid), (Some("0.1.0"), Some("uid-bb".into())));
    assert_eq!(report.labels["region"], "of bb");
    assert!(report.last_seen > report.since);
}

#[tokio::test(start_paused = true)]
async fn three_agents_and_a_change_arrives_within_one_way_and_a_bit() {
    let bed = Bed::new();
    let [a, bb, ccc] = bed.agents(["a", "bb", "ccc"]);
    for agent in [&a, &bb, &ccc] {
        for peer in ["a", "bb", "ccc"].into_iter().filter(|peer| *peer != agent.name) {
            agent.cluster.until_state(peer, PeerState::Connected).await;
        }
    }
    sleep(Duration::from_secs(5)).await;
    let start = bed.clock.mono();
    a.cluster.say_desired("ccc", "burst", 1);
    ccc.until_generation("a", "burst", 1).await;
    assert_eq!(bed.clock.mono().saturating_since(start), Duration::from_millis(25));
    assert_eq!(bb.cluster.puts(), 0, "it was not meant for everybody");
}

#[tokio::test(start_paused = true)]
async fn a_short_cut_loses_nothing_and_changes_nothing() {
    let bed = Bed::new();
    let [a, bb] = bed.agents(["a", "bb"]);
    bb.cluster.until_state("a", PeerState::Connected).await;
    sleep(Duration::from_secs(5)).await;
    let reports = bb.cluster.reports("a").len();
    bed.network.cut("a", "bb");
    a.cluster.say_desired("bb", "burst", 1);
    sleep(Duration::from_secs(2)).await;
    bed.network.heal("a", "bb");
    bb.until_generation("a", "burst", 1).await;
    sleep(Duration::from_secs(30)).await;
    assert_eq!(bb.cluster.reports("a").len(), reports, "nothing to report");
}

#[tokio::test(start_paused = true)]
async fn a_restarted_agent_is_heard_again_and_an_old_leader_is_not() {
    let bed = Bed::new();
    let [a, bb] = bed.agents(["a", "bb"]);
    a.cluster.say_desired("bb", "burst", 7);
    bb.until_generation("a", "burst", 7).await;
    a.shutdown.cancel();
    a.handle.ended().await;
    bb.cluster.until_state("a", PeerState::Disconnected).await;

    let next = bed.agent("a", 2);
    next.knows("bb", &[Bed::address("bb")]);
    next.cluster.say_desired("bb", "burst", 8);
    bb.until_generation("a", "burst", 8).await;
    next.shutdown.cancel();
    next.handle.ended().await;

    let old = bed.agent("a", 1);
    old.knows("bb", &[Bed::address("bb")]);
    old.cluster.say_desired("bb", "burst", 9);
    bb.cluster.until_state("a", PeerState::Refused).await;
    assert_eq!(bb.cluster.reports("a").pop().unwrap().refusal.unwrap().reason, "StaleEpoch");
    old.epoch.send_replace(Some(Epoch(3)));
    bb.until_generation("a", "burst", 9).await;
}

#[tokio::test(start_paused = true)]
async fn an_incomplete_snapshot_concludes_nothing() {
    let bed = Bed::new();
    let [a, bb] = bed.agents(["a", "bb"]);
    a.cluster.say_desired("bb", "burst", 1);
    bb.cluster.until("a snapshot", |cluster| !cluster.snapshots("a").is_empty()).await;
    a.shutdown.cancel();
    a.handle.ended().await;
    let snapshots = bb.cluster.snapshots("a").len();

    // The new leader has not listed its caches yet: it says nothing of the burst.
    let next = bed.agent("a", 2);
    next.cluster.set_complete(false);
    next.knows("bb", &[Bed::address("bb")]);
    bb.cluster.until_state("a", PeerState::Connected).await;
    sleep(Duration::from_secs(200)).await;
    assert_eq!(bb.cluster.snapshots("a").len(), snapshots);
    next.cluster.set_complete(true);
    bb.cluster.until("a snapshot", |cluster| cluster.snapshots("a").last() == Some(&vec![])).await;
}

#[tokio::test(start_paused = true)]
async fn unknown_wrong_and_suspended_peers_are_refused_with_a_reason() {
    let bed = Bed::new();
    let (a, bb) = (bed.agent("a", 1), bed.agent("bb", 1));
    let reason = |agent: &Agent, peer| agent.cluster.reports(peer).pop().unwrap().refusal.map(|refusal| refusal.reason);

    a.knows("bb", &[Bed::address("bb")]);
    a.cluster.until_state("bb", PeerState::Refused).await;
    assert_eq!(reason(&a, "bb").as_deref(), Some("UnknownPeer"));

    bb.configure("a", |spec| spec.cluster_uid = Some("uid-before".into()));
    let wrong = |cluster: &Cluster| {
        cluster.reports("bb").pop().and_then(|report| report.refusal).is_some_and(|r| r.reason == "WrongClusterUID")
    };
    a.cluster.until("the wrong UID is told", wrong).await;
    assert_eq!(reason(&bb, "a").as_deref(), Some("WrongClusterUID"), "both sides know");

    bb.configure("a", |spec| (spec.cluster_uid, spec.suspend) = (None, true));
    let suspended = |cluster: &Cluster| {
        cluster.reports("bb").pop().and_then(|report| report.refusal).is_some_and(|r| r.reason == "Suspended")
    };
    a.cluster.until("the suspension is told", suspended).await;
    assert_eq!(bb.state_of("a"), PeerState::Suspended);

    bb.configure("a", |spec| spec.suspend = false);
    a.cluster.until_state("bb", PeerState::Connected).await;
    bb.peers.send_modify(BTreeMap::clear);
    a.cluster.until_state("bb", PeerState::Refused).await;
    assert_eq!(reason(&a, "bb").as_deref(), Some("UnknownPeer"));
    assert!(bb.handle.reports().is_empty());
}

#[tokio::test(start_paused = true)]
async fn the_certificate_of_a_connection_is_renewed_in_time() {
    let bed = Bed::new();
    let in_two_minutes = bed.clock.wall() + Duration::from_secs(120);
    let transport = Arc::new(bed.network.join("a", Bed::address("a"), in_two_minutes));
    let a = Agent::start("a", 1, bed.clock.clone(), transport.clone(), Arc::new(bed.network.clone()));
    let bb = bed.agent("bb", 1);
    a.knows("bb", &[Bed::address("bb")]);
    bb.knows("a", &[]);
    bb.cluster.until_state("a", PeerState::Connected).await;
    transport.renew(Timestamp::MAX);
    sleep(Duration::from_secs(300)).await;
    let states: Vec<PeerState> = bb.cluster.reports("a").iter().map(|report| report.state).collect();
    assert_eq!(states.iter().filter(|state| **state == PeerState::Disconnected).count(), 1, "at the start: {states:?}");
    assert_eq!(bb.state_of("a"), PeerState::Connected);
}

#[tokio::test(start_paused = true)]
async fn requests_are_answered_and_limited() {
    let bed = Bed::new();
    let [a, bb] = bed.agents(["a", "bb"]);
    let (to_a, to_bb) = (PeerName::from("a"), PeerName::from("bb"));
    let request =
        || CredentialRequest { burst: "burst".into(), incarnation: "incarnation".into(), digest: "digest".into() };
    let early = a.handle.request_credential(&to_bb, request()).await;
    assert_eq!(early, Err(CredentialRefusal::Unreachable), "not connected yet");
    a.cluster.until_state("bb", PeerState::Connected).await;
    bb.cluster.until_state("a", PeerState::Connected).await;

    a.cluster.allow_certificate("bb", "secret");
    let handed = bb.handle.request_credential(&to_a, request()).await.unwrap();
    assert_eq!(handed.expose(), "secret for burst");
    assert_eq!(a.handle.request_credential(&to_bb, request()).await, Err(CredentialRefusal::NotForYou));
    let answer = bb.handle.query(&to_a, "/v1/local").await.unwrap();
    assert_eq!(&answer[..], br#"{"asked by":"bb"}"#);
    assert_eq!(bb.handle.query(&to_a, "/v1/secrets").await, None);
    let offer = |bundle: &str| TrustOffer { bundle: bundle.to_owned(), ..TrustOffer::default() };
    assert_eq!(bb.handle.offer_trust(&to_a, &offer("bb's")).await.unwrap(), TrustAnswer::Taken);
    assert_eq!(bb.handle.offer_trust(&to_a, &offer("a's")).await.unwrap(), TrustAnswer::Refused);

    bed.network.cut("a", "bb");
    let start = bed.clock.mono();
    assert_eq!(bb.handle.query(&to_a, "/v1/local").await, None);
    assert!(bed.clock.mono().saturating_since(start) <= Timers::DEFAULT.request, "a dead peer is no hang");
}

#[tokio::test(start_paused = true)]
async fn one_connection_is_left_and_idle_traffic_is_small() {
    let bed = Bed::new();
    let [a, bb] = bed.agents(["a", "bb"]);
    a.cluster.set_capacity(Capacity { nodes: 4, free_cores: 96, free_memory_mib: 300_000, ..Capacity::default() });
    for uid in 0..50 {
        a.cluster.say_desired("bb", &format!("6ba7b810-9dad-11d1-80b4-{uid:012}"), 1);
        bb.cluster.say_observed("a", &format!("6ba7b810-9dad-11d1-80b4-{uid:012}"), 1);
    }
    a.cluster.until("all answers", |cluster| cluster.puts() >= 50).await;
    sleep(Duration::from_secs(10)).await;
    let before = bed.network.traffic("a", "bb") + bed.network.traffic("bb", "a");
    sleep(Duration::from_secs(600)).await;
    let bytes = bed.network.traffic("a", "bb") + bed.network.traffic("bb", "a") - before;
    // Two connections would say everything twice. Measured: 118 bytes a second with a hundred states.
    assert!(bytes / 600 <= 130, "{} bytes a second", bytes / 600);
    assert_eq!((a.cluster.puts(), bb.cluster.puts()), (50, 50), "no state is sent twice");
}

#[tokio::test(start_paused = true)]
async fn large_states_do_not_make_a_peer_suspect() {
    let bed = Bed::new();
    let [a, bb] = bed.agents(["a", "bb"]);
    bed.network.set_delay(Duration::from_millis(200));
    for index in 0..40 {
        let uid = format!("burst-{index}");
        let mut burst = crate::testing::desired(&uid, 1);
        burst.template = serde_json::Value::String("x".repeat(200 << 10));
        a.cluster.say("bb", desired_key(&uid), State::Desired(Box::new(burst)));
    }
    bb.cluster.until("all of them", |cluster| cluster.puts() == 40).await;
    assert!(bb.cluster.reports("a").iter().all(|report| report.state != PeerState::Suspect));
}

#[tokio::test(start_paused = true)]
async fn a_state_beyond_the_limits_is_named_and_the_others_travel() {
    let bed = Bed::new();
    let [a, bb] = bed.agents(["a", "bb"]);
    let mut burst = crate::testing::desired("large", 1);
    burst.template = serde_json::Value::String("x".repeat(300 << 10));
    a.cluster.say("bb", desired_key("large"), State::Desired(Box::new(burst)));
    a.cluster.say_desired("bb", "small", 1);
    bb.until_generation("a", "small", 1).await;
    a.cluster.until("the problem", |cluster| !cluster.undeliverable().is_empty()).await;
    let named: BTreeSet<StateKey> = a.cluster.undeliverable().into_iter().map(|(key, _)| key).collect();
    assert_eq!(named, [desired_key("large")].into());
    let snapshot = bb.cluster.snapshots("a").pop().unwrap();
    assert!(snapshot.contains(&desired_key("large")), "it is not absent: {snapshot:?}");
}
