//! What peers cost each other when there is nothing to say: two agents' federations over QUIC on loopback.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use futures::future::{BoxFuture, FutureExt as _, ready};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tributary::clock::{SharedClock, SystemClock, SystemRng};
use tributary::contract::ports::{
    CredentialSource, Incoming, Outgoing, PeerRequests as _, QuerySource, State, StateKey, TrustAnswer, TrustOffer,
    TrustSink,
};
use tributary::contract::{
    Capacity, Credential, CredentialRefusal, CredentialRequest, DirtySet, Epoch, ObservedBurst, PeerName, PeerReport,
    PeerSpec, PeerState,
};
use tributary::federation::identity::files::Existing;
use tributary::federation::identity::{Authority, Identity, IdentityStore};
use tributary::federation::mesh::resolve::Resolver;
use tributary::federation::mesh::{MeshConfig, MeshHandle, MeshMetrics, Ports, spawn};
use tributary::federation::timers::Timers;
use tributary::federation::transport::Transport as _;
use tributary::federation::transport::quic::QuicTransport;
use tributary::federation::tunnel::TunnelPorts;
use tributary::federation::wire::version::WireVersions;
use tributary::metrics::Metrics;

use crate::figures::figure;

const WATCHED: Duration = Duration::from_secs(60);

/// Bursts each of both has on the other.
const BURSTS: usize = 100;

/// Bytes a second on the wire, as an agent counts them.
pub(crate) async fn idle() -> anyhow::Result<()> {
    let clock = SystemClock::shared();
    let river = Authority::create("river", clock.wall())?;
    let agent = |name| Agent::new(name, &river, &clock, TunnelPorts::none());
    let (east, west) = (agent("east")?, agent("west")?);
    east.peers.send_replace(peer("west", west.address));
    west.peers.send_replace(peer("east", east.address));
    // The connection is made, one of both is closed, and all states are exchanged.
    tokio::time::sleep(Duration::from_secs(10)).await;
    let up = east.handle.reports().values().all(|report| report.state == PeerState::Connected);
    anyhow::ensure!(up, "the agents are not connected: {:?}", east.handle.reports());
    let (before, started) = (east.wire_bytes()?, now());
    tokio::time::sleep(WATCHED).await;
    let rate = (east.wire_bytes()? - before) / started.elapsed().as_secs_f64();
    let name = format!("idle bytes/s per peer, both ways, {BURSTS} bursts each");
    figure(&name, &format!("{rate:.0}"), "-", "1000");
    east.shutdown.cancel();
    west.shutdown.cancel();
    east.handle.ended().await;
    west.handle.ended().await;
    Ok(())
}

pub(crate) struct Agent {
    handle: MeshHandle,
    pub(crate) address: SocketAddr,
    pub(crate) peers: watch::Sender<BTreeMap<PeerName, PeerSpec>>,
    shutdown: CancellationToken,
    metrics: Metrics,
    _epoch: watch::Sender<Option<Epoch>>,
}

impl Agent {
    pub(crate) fn new(
        name: &str,
        authority: &Authority,
        clock: &SharedClock,
        tunnels: TunnelPorts,
    ) -> anyhow::Result<Self> {
        let directory = tempfile::tempdir()?;
        authority.issue(name, clock.wall(), Duration::from_secs(3_600))?.write(directory.path(), Existing::Replace)?;
        let identity = Identity::from_directory(directory.path(), name, clock.wall())?;
        let listen = (Ipv4Addr::LOCALHOST, 0).into();
        let timers = Timers::DEFAULT;
        let transport = QuicTransport::bind(listen, IdentityStore::new(identity), &timers, clock.clone())?;
        let address = transport.local_addr();
        let (peers, epoch) = (watch::Sender::default(), watch::Sender::new(Some(Epoch(1))));
        let (shutdown, metrics) = (CancellationToken::new(), Metrics::default());
        let config = MeshConfig {
            name: name.into(),
            cluster_uid: format!("uid of {name}").as_str().into(),
            labels: BTreeMap::new(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            versions: WireVersions::OURS,
            epoch: epoch.subscribe(),
            peers: peers.subscribe(),
            timers,
            clock: clock.clone(),
            rng: Box::new(SystemRng),
            resolve: Arc::new(Resolver::system(Box::new(SystemRng))),
            metrics: MeshMetrics::register(&metrics),
            shutdown: shutdown.clone(),
        };
        let quiet = Arc::new(Quiet::default());
        let ports = Ports {
            tunnels,
            outgoing: quiet.clone(),
            incoming: quiet.clone(),
            credentials: quiet.clone(),
            queries: quiet.clone(),
            trust: quiet,
        };
        let handle = spawn(config, Arc::new(transport), ports);
        Ok(Self { handle, address, peers, shutdown, metrics, _epoch: epoch })
    }

    fn wire_bytes(&self) -> anyhow::Result<f64> {
        let text = self.metrics.text();
        let counts = text.lines().filter(|line| line.starts_with("tributary_federation_wire_bytes_total"));
        let values: Option<Vec<f64>> = counts.map(|line| line.rsplit(' ').next()?.parse().ok()).collect();
        values.filter(|values| values.len() == 2).map(|values| values.iter().sum()).context("the wire is not counted")
    }
}

pub(crate) fn peer(name: &str, address: SocketAddr) -> BTreeMap<PeerName, PeerSpec> {
    let name = PeerName::from(name);
    let spec = PeerSpec { name: name.clone(), endpoints: vec![address.to_string()], ..PeerSpec::default() };
    BTreeMap::from([(name, spec)])
}

/// A cluster where nothing changes.
#[derive(Default)]
struct Quiet(DirtySet<(PeerName, StateKey)>);

impl Outgoing for Quiet {
    fn dirty(&self) -> &DirtySet<(PeerName, StateKey)> {
        &self.0
    }
    fn keys(&self, _peer: &PeerName) -> Vec<StateKey> {
        (0..BURSTS).map(|index| StateKey::Observed(format!("6ba7b810-9dad-11d1-80b4-{index:012}").into())).collect()
    }
    fn state(&self, _peer: &PeerName, key: &StateKey) -> Option<State> {
        let StateKey::Observed(uid) = key else { return None };
        Some(State::Observed(Box::new(ObservedBurst { uid: uid.clone(), ..ObservedBurst::default() })))
    }
    fn complete(&self) -> bool {
        true
    }
    fn capacity(&self, _peer: &PeerName) -> Option<Capacity> {
        Some(Capacity { nodes: 4, free_cores: 96, free_memory_mib: 300_000, ..Capacity::default() })
    }
}

impl Incoming for Quiet {
    fn put(&self, _peer: &PeerName, _epoch: Epoch, _key: StateKey, _state: State) {}
    fn complete_snapshot(&self, _peer: &PeerName, _epoch: Epoch, _keys: &[StateKey]) {}
    fn peer_report(&self, _peer: &PeerName, _report: PeerReport) {}
}

impl CredentialSource for Quiet {
    fn credential<'a>(
        &'a self,
        _peer: &'a PeerName,
        _request: CredentialRequest,
    ) -> BoxFuture<'a, Result<Credential, CredentialRefusal>> {
        ready(Err(CredentialRefusal::NotForYou)).boxed()
    }
}

impl TrustSink for Quiet {
    fn offered<'a>(&'a self, _peer: &'a PeerName, _offer: TrustOffer) -> BoxFuture<'a, TrustAnswer> {
        ready(TrustAnswer::Refused).boxed()
    }
}

impl QuerySource for Quiet {
    fn answer<'a>(&'a self, _peer: &'a PeerName, _query: &'a str) -> BoxFuture<'a, Option<bytes::Bytes>> {
        ready(None).boxed()
    }
}

#[allow(clippy::disallowed_methods, reason = "a benchmark measures real time")]
pub(crate) fn now() -> Instant {
    Instant::now()
}
