//! Federations of agents over QUIC on loopback, without Kubernetes: what they carry for each other, and how broken the way
//! between them is, is the test's.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use futures::future::{BoxFuture, FutureExt as _, ready};
use tokio::sync::watch;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tributary::clock::{SharedClock, SystemClock, SystemRng};
use tributary::contract::ports::{
    CredentialSource, Incoming, Outgoing, QuerySource, State, StateKey, TrustAnswer, TrustOffer, TrustSink,
};
use tributary::contract::tunnel::{Inlet, Inlets, Listening, Outlet, Outlets};
use tributary::contract::{
    Capacity, Credential, CredentialRefusal, CredentialRequest, DirtySet, Epoch, ObservedBurst, PeerName, PeerReport,
    PeerSpec,
};
use tributary::federation::identity::files::Existing;
use tributary::federation::identity::{Authority, Identity, IdentityStore};
use tributary::federation::mesh::resolve::Resolver;
use tributary::federation::mesh::{MeshConfig, MeshHandle, MeshMetrics, Ports, spawn};
use tributary::federation::timers::Timers;
use tributary::federation::transport::Transport as _;
use tributary::federation::transport::quic::QuicTransport;
use tributary::federation::tunnel::{TunnelMetrics, TunnelPorts};
use tributary::federation::wire::version::WireVersions;
use tributary::metrics::Metrics;
use tributary::render::ENDS_PORT;

use crate::udp_way::{Way, way};

/// How long agents may take to find each other.
const PATIENCE: Duration = Duration::from_secs(30);

/// The federation of one agent. It ends when dropped.
pub struct MeshAgent {
    /// Its mesh.
    pub handle: MeshHandle,
    /// Where it listens.
    pub address: SocketAddr,
    /// Its peers.
    pub peers: watch::Sender<BTreeMap<PeerName, PeerSpec>>,
    /// What it counts.
    pub metrics: Metrics,
    shutdown: CancellationToken,
    _epoch: watch::Sender<Option<Epoch>>,
}

/// What an agent says and hears of bursts.
pub struct Words {
    /// What it says.
    pub outgoing: Arc<dyn Outgoing>,
    /// Where it hears.
    pub incoming: Arc<dyn Incoming>,
    /// What it hands out.
    pub credentials: Arc<dyn CredentialSource>,
}

impl MeshAgent {
    /// An agent at this address that carries what `tunnels` say, and says of itself that it observes `bursts` bursts.
    pub fn new(
        name: &str,
        at: Ipv4Addr,
        authority: &Authority,
        clock: &SharedClock,
        tunnels: TunnelPorts,
        bursts: usize,
    ) -> anyhow::Result<Self> {
        let quiet = Arc::new(Quiet { dirty: DirtySet::default(), bursts });
        let words = Words { outgoing: quiet.clone(), incoming: quiet.clone(), credentials: quiet };
        Self::saying(name, at, authority, clock, tunnels, words)
    }

    /// The same with words of its own.
    pub fn saying(
        name: &str,
        at: Ipv4Addr,
        authority: &Authority,
        clock: &SharedClock,
        tunnels: TunnelPorts,
        words: Words,
    ) -> anyhow::Result<Self> {
        let directory = tempfile::tempdir()?;
        authority.issue(name, clock.wall(), Duration::from_secs(3_600))?.write(directory.path(), Existing::Replace)?;
        let identity = Identity::from_directory(directory.path(), name, clock.wall())?;
        let listen = (at, 0).into();
        let timers = Timers::DEFAULT;
        let transport = QuicTransport::bind(listen, IdentityStore::new(identity), &timers, clock.clone())?;
        let address = transport.local_addr();
        let (peers, epoch) = (watch::Sender::default(), watch::Sender::new(Some(Epoch(1))));
        let (shutdown, metrics) = (CancellationToken::new(), Metrics::default());
        let config = MeshConfig {
            name: name.into(),
            cluster_uid: format!("uid-of-{name}").as_str().into(),
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
        let carried = TunnelMetrics::register(&metrics, &tunnels.budget);
        let tunnels = TunnelPorts { metrics: carried, ..tunnels };
        let quiet = Arc::new(Quiet { dirty: DirtySet::default(), bursts: 0 });
        let Words { outgoing, incoming, credentials } = words;
        let ports = Ports { tunnels, outgoing, incoming, credentials, queries: quiet.clone(), trust: quiet };
        let handle = spawn(config, Arc::new(transport), ports);
        Ok(Self { handle, address, peers, shutdown, metrics, _epoch: epoch })
    }

    /// Ends it, and waits until its connections are closed.
    pub async fn end(&self) {
        self.shutdown.cancel();
        self.handle.ended().await;
    }

    /// The sum of all values of a metric.
    pub fn counted(&self, metric: &str) -> Option<f64> {
        let text = self.metrics.text();
        let lines =
            text.lines().filter(|line| line.strip_prefix(metric).is_some_and(|rest| rest.starts_with([' ', '{'])));
        let values: Option<Vec<f64>> = lines.map(|line| line.rsplit(' ').next()?.parse().ok()).collect();
        values.filter(|values| !values.is_empty()).map(|values| values.iter().sum())
    }
}

impl Drop for MeshAgent {
    fn drop(&mut self) {
        self.shutdown.cancel();
    }
}

/// The one peer of an agent, and where it dials it.
pub fn peer(name: &str, address: SocketAddr) -> BTreeMap<PeerName, PeerSpec> {
    let name = PeerName::from(name);
    let spec = PeerSpec { name: name.clone(), endpoints: vec![address.to_string()], ..PeerSpec::default() };
    BTreeMap::from([(name, spec)])
}

/// A cluster where nothing changes.
struct Quiet {
    dirty: DirtySet<(PeerName, StateKey)>,
    bursts: usize,
}

impl Outgoing for Quiet {
    fn dirty(&self) -> &DirtySet<(PeerName, StateKey)> {
        &self.dirty
    }
    fn keys(&self, _peer: &PeerName) -> Vec<StateKey> {
        (0..self.bursts)
            .map(|index| StateKey::Observed(format!("6ba7b810-9dad-11d1-80b4-{index:012}").into()))
            .collect()
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

/// Two agents, of which one carries bursts to the other.
pub struct Carried {
    /// The agent of the root.
    pub root: MeshAgent,
    /// The agent of the provider.
    pub provider: MeshAgent,
    /// The way between them.
    pub way: Way,
    /// Where the connections to each lead are taken.
    pub ends: Vec<SocketAddr>,
    _tables: (watch::Sender<Outlets>, watch::Sender<Inlets>, watch::Sender<Outlets>, watch::Sender<Inlets>),
}

/// What [`carried`] carries.
#[derive(Clone, Debug)]
pub struct Carriage {
    /// The lead of each burst.
    pub leads: Vec<SocketAddr>,
    /// Address that the provider's agent takes connections at.
    pub listen: Ipv4Addr,
    /// TCP ports for that; `0..=0`: any.
    pub ports: RangeInclusive<u16>,
    /// Who may connect.
    pub sources: Vec<Ipv4Addr>,
    /// How long connections are held over a cut.
    pub hold: Duration,
    /// How the agents reach each other.
    pub path: Path,
}

/// How two agents reach each other.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Path {
    /// Over loopback.
    Direct,
    /// By a relay in this process, which can be cut.
    Relayed {
        /// How long a datagram takes one way.
        one_way: Duration,
        /// How many of 1,000 are lost.
        lost: u64,
    },
    /// Between two addresses of this machine, the root's and the provider's, as the system routes that.
    Between([Ipv4Addr; 2]),
}

/// Two agents, peers already, with a port for each lead.
pub async fn carried(carriage: Carriage) -> anyhow::Result<Carried> {
    let Carriage { leads, listen, ports, sources, hold, path } = carriage;
    let clock = SystemClock::shared();
    let river = Authority::create("river", clock.wall())?;
    let (mut outlets, mut inlets) = (Outlets::new(), Inlets::new());
    let sources = sources.into_iter().map(Into::into).collect::<std::collections::BTreeSet<_>>();
    for (number, lead) in leads.iter().enumerate() {
        let (uid, incarnation) = (format!("burst-{number}"), "job".to_owned());
        outlets.insert(
            ("west".into(), uid.as_str().into()),
            Outlet { incarnation: incarnation.clone(), lead: *lead, end: Some((lead.ip(), ENDS_PORT).into()), hold },
        );
        let inlet = Inlet { incarnation, sources: sources.clone(), hold };
        inlets.insert(("east".into(), uid.as_str().into()), inlet);
    }
    let tables = (watch::Sender::new(outlets), watch::Sender::new(inlets));
    let none = (watch::Sender::new(Outlets::new()), watch::Sender::new(Inlets::new()));
    let listening = watch::Sender::new(Listening::new());
    let of_root = TunnelPorts { outlets: tables.0.subscribe(), inlets: none.1.subscribe(), ..TunnelPorts::none() };
    let of_provider = TunnelPorts {
        outlets: none.0.subscribe(),
        inlets: tables.1.subscribe(),
        listening: listening.clone(),
        address: listen.into(),
        ports,
        ..TunnelPorts::none()
    };
    let [here, there] = match path {
        Path::Direct | Path::Relayed { .. } => [Ipv4Addr::LOCALHOST; 2],
        Path::Between(ends) => ends,
    };
    let root = MeshAgent::new("east", here, &river, &clock, of_root, 0)?;
    let provider = MeshAgent::new("west", there, &river, &clock, of_provider, 0)?;
    let (one_way, lost) = match path {
        Path::Relayed { one_way, lost } => (one_way, lost),
        Path::Direct | Path::Between(_) => <(Duration, u64)>::default(),
    };
    let between = way(root.address, one_way, lost).await?;
    let address = if matches!(path, Path::Relayed { .. }) { between.address } else { root.address };
    let west = PeerName::from("west");
    // The provider dials.
    let unreached = PeerSpec { name: west.clone(), ..PeerSpec::default() };
    root.peers.send_replace([(west, unreached)].into());
    provider.peers.send_replace(peer("east", address));
    let mut told = listening.subscribe();
    let all = timeout(PATIENCE, told.wait_for(|all| all.len() == leads.len())).await.context("no ports")??.clone();
    let found: Result<Vec<u16>, String> = all.into_values().collect();
    let ends = found.map_err(anyhow::Error::msg)?.into_iter().map(|port| (listen, port).into()).collect();
    Ok(Carried { root, provider, way: between, ends, _tables: (tables.0, tables.1, none.0, none.1) })
}
