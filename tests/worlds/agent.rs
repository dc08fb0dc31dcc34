//! An agent of one cluster, of the daemon's own parts: all that it does besides answering probes.

use std::collections::BTreeMap;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use anyhow::Context as _;
use futures::FutureExt as _;
use futures::future::{self, BoxFuture};
use http::{Method, Request, Response, header};
use hyper::body::{Bytes, Frame};
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use kube::client::{Body, DynBody};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tower::{BoxError, Service};
use tributary::bursting::preflight::attempt::Target;
use tributary::bursting::preflight::lead::{Dial, Seen};
use tributary::bursting::root::demand::hear::Connect;
use tributary::clock::{Clock, Mono, Rng as _, SeededRng, SharedClock, SystemClock, SystemRng};
use tributary::cluster::client::Clients;
use tributary::cluster::discovery::{await_kinds, cluster_uid};
use tributary::cluster::fence::Fence;
use tributary::cluster::leadership::{Candidacy, Elector, holder};
use tributary::cluster::readiness::Readiness;
use tributary::cluster::requests::RequestMetrics;
use tributary::cluster::scope::{LINGER, lead};
use tributary::config::{BurstingConfig, Config};
use tributary::contract::tunnel::{Outlet, Outlets, TunnelKey};
use tributary::federation::identity::IdentityStore;
use tributary::federation::timers::Timers;
use tributary::federation::transport::memory::MemoryNetwork;
use tributary::federation::transport::quic::BindError;
use tributary::federation::transport::{Resolve, Transport};
use tributary::metrics::Metrics;
use tributary::reconcile::watches::Watches;
use tributary::telemetry::Traces;
use tributary_agent::app::LEASE;
use tributary_agent::assembly::{Assembly, Surroundings};
use tributary_agent::network::Network;
use tributary_agent::rivals;
use tributary_api_server::ApiServer;

use crate::queue::{Queue, Ways};

/// How soon a kubelet starts an agent again that ended.
const AGAIN: Duration = Duration::from_secs(10);

/// A clock that stops and jumps with tokio's paused time, the wall clock too. Each can be wrong besides.
#[derive(Clone)]
pub struct PausedClock(SystemClock, Arc<Mutex<Wrong>>);

/// How a clock differs from the right one.
#[derive(Default)]
struct Wrong {
    /// Seconds of the wall clock.
    wall: i64,
    /// What the monotonic clock was ahead at a moment, and how much faster it goes since, in parts of a thousand.
    ahead: f64,
    since: Duration,
    drift: f64,
}

impl Wrong {
    fn ahead(&self, now: Duration) -> f64 {
        self.ahead + now.saturating_sub(self.since).as_secs_f64() * self.drift / 1000.0
    }
}

impl PausedClock {
    pub fn start() -> Self {
        Self(SystemClock::start(), Arc::default())
    }

    /// The clock of a machine that was started at the same time.
    pub fn another(&self) -> Self {
        Self(self.0, Arc::default())
    }

    pub fn shared(&self) -> SharedClock {
        Arc::new(self.clone())
    }

    /// Sets the wall clock: so many seconds before or after the right time.
    pub fn set_wrong(&self, seconds: i64) {
        self.1.lock().unwrap().wall = seconds;
    }

    /// Lets the monotonic clock go faster or slower from now on, by so many parts of a thousand.
    pub fn set_drift(&self, drift: f64) {
        let (now, mut wrong) = (self.0.mono().since_start(), self.1.lock().unwrap());
        *wrong = Wrong { ahead: wrong.ahead(now), since: now, drift, wall: wrong.wall };
    }
}

impl Clock for PausedClock {
    fn mono(&self) -> Mono {
        let now = self.0.mono().since_start();
        let ahead = self.1.lock().unwrap().ahead(now);
        Mono::from_start(Duration::from_secs_f64((now.as_secs_f64() + ahead).max(0.0)))
    }

    fn wall(&self) -> Timestamp {
        let wrong = self.1.lock().unwrap().wall;
        Timestamp::from_second(1_800_000_000 + wrong).unwrap() + self.0.mono().since_start()
    }
}

/// The network of a world. Lead brokers answer as they should.
struct InMemory {
    network: MemoryNetwork,
    name: String,
    queue: Queue,
    server: ApiServer,
}

impl Network for InMemory {
    fn listen(
        &self,
        address: SocketAddr,
        _: &IdentityStore,
        _: &Timers,
        _: &SharedClock,
    ) -> Result<Arc<dyn Transport>, BindError> {
        Ok(Arc::new(self.network.join(&self.name, address, Timestamp::MAX)))
    }

    fn resolver(&self) -> Arc<dyn Resolve> {
        Arc::new(self.network.clone())
    }

    fn leads(&self) -> Arc<dyn Dial> {
        Arc::new(Welcoming)
    }

    fn queues(&self) -> Arc<dyn Connect> {
        Arc::new(Ways { queue: self.queue.clone(), server: self.server.clone() })
    }
}

struct Welcoming;

impl Dial for Welcoming {
    fn dial<'a>(&'a self, _: &'a Target) -> BoxFuture<'a, Seen> {
        future::ready(Seen::Welcomed).boxed()
    }
}

/// The connections of one process to its API server. A request takes a moment each way, which depends on what it is.
#[derive(Clone)]
struct Connections {
    server: ApiServer,
    life: Arc<Life>,
    seed: u64,
}

/// Whether a process lives, and how many requests it has sent.
#[derive(Default)]
struct Life {
    dead: AtomicBool,
    /// It does not reach its API server just now.
    cut_off: watch::Sender<bool>,
    /// Writes until it dies; none: it does not.
    left: AtomicI64,
    asked: Mutex<BTreeMap<String, u64>>,
    /// Its name in the Lease, once it has one.
    holder: Mutex<String>,
    /// Which bursts its end of tunnels lets in.
    outlets: Mutex<Option<watch::Receiver<Outlets>>>,
    /// What it counts.
    metrics: Mutex<Arc<Metrics>>,
    /// How often it asked for what, watches and its Lease excepted.
    requests: Mutex<BTreeMap<String, u64>>,
}

impl Life {
    /// Waits until it reaches its API server.
    async fn reaches(&self) {
        // The sender lives as long as `self`.
        let _ = self.cut_off.subscribe().wait_for(|cut_off| !cut_off).await;
    }
}

impl Connections {
    /// One way, in both directions.
    fn delays(&self, request: &Request<Body>) -> [Duration; 2] {
        let what = format!("{} {}", request.method(), request.uri());
        let mut asked = self.life.asked.lock().unwrap();
        let count = asked.entry(what.clone()).or_default();
        *count += 1;
        let hash =
            what.bytes().fold(self.seed ^ *count, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3));
        let mut rng = SeededRng::new(hash);
        [(); 2].map(|()| Duration::from_millis(1 + rng.next_u64() % 15))
    }
}

impl Service<Request<Body>> for Connections {
    type Response = Response<Box<DynBody>>;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<Self::Response, BoxError>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, mut request: Request<Body>) -> Self::Future {
        if let Some(what) = asked(&request) {
            *self.life.requests.lock().unwrap().entry(what).or_default() += 1;
        }
        request.headers_mut().insert(header::USER_AGENT, self.life.holder.lock().unwrap().parse().unwrap());
        let (mut server, life) = (self.server.clone(), self.life.clone());
        let begun = self.server.restarts();
        let [there, back] = self.delays(&request);
        async move {
            tokio::time::sleep(there).await;
            life.reaches().await;
            if life.dead.load(Ordering::Relaxed) {
                return future::pending().await;
            }
            let broken = || Err(io::Error::from(io::ErrorKind::ConnectionReset).into());
            if server.restarts() != begun {
                return broken();
            }
            let writes = request.method() != Method::GET;
            if writes && life.left.fetch_sub(1, Ordering::Relaxed) == 1 {
                // It dies when the write is on its way.
                life.dead.store(true, Ordering::Relaxed);
            }
            let answer = uncounted(server.call(request)).await.map(|answer| answer.map(Uncounted::boxed));
            tokio::time::sleep(back).await;
            life.reaches().await;
            match server.restarts() == begun {
                // Whatever became of it, a dead process never learns.
                _ if life.dead.load(Ordering::Relaxed) => future::pending().await,
                true => answer,
                false => broken(),
            }
        }
        .boxed()
    }
}

/// What a request asks for, in the words of RBAC; not for the Lease, and of a watch nothing.
fn asked(request: &Request<Body>) -> Option<String> {
    let (uri, mut parts) = (request.uri(), request.uri().path().split('/').skip(1));
    let watch = uri.query().is_some_and(|query| query.split('&').any(|one| one == "watch=true"));
    // The group, where there is one, and the version.
    let head = if parts.next() == Some("apis") { 2 } else { 1 };
    let mut parts = parts.skip(head).peekable();
    if parts.peek() == Some(&"namespaces") && uri.path().split('/').count() > head + 4 {
        parts.by_ref().take(2).for_each(drop);
    }
    let (resource, named, part) = (parts.next().unwrap_or_default(), parts.next().is_some(), parts.next());
    let verb = match *request.method() {
        Method::GET if named => "get",
        Method::GET => "list",
        Method::POST => "create",
        Method::PUT => "update",
        Method::PATCH => "patch",
        _ => "delete",
    };
    let part = part.map(|part| format!("/{part}")).unwrap_or_default();
    (!watch && resource != "leases").then(|| format!("{verb} {resource}{part}"))
}

/// What an API server does is no work of its clients.
async fn uncounted<T>(work: impl Future<Output = T>) -> T {
    let mut work = std::pin::pin!(work);
    future::poll_fn(|context| {
        let mut polled = Poll::Pending;
        allocation_counter::opt_out(|| polled = work.as_mut().poll(context));
        polled
    })
    .await
}

/// The same for what it sends bit by bit.
struct Uncounted(Pin<Box<DynBody>>);

impl Uncounted {
    fn boxed(body: Box<DynBody>) -> Box<DynBody> {
        Box::new(Self(body.into()))
    }
}

impl hyper::body::Body for Uncounted {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let mut polled = Poll::Pending;
        allocation_counter::opt_out(|| polled = self.0.as_mut().poll_frame(context));
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.0.is_end_stream()
    }
}

/// What tells one agent from another.
#[derive(Clone)]
pub struct Site {
    pub name: String,
    pub server: ApiServer,
    /// What the queues of its roots say.
    pub queue: Queue,
    pub address: SocketAddr,
    pub network: MemoryNetwork,
    pub clock: PausedClock,
    pub settings: Settings,
}

/// What the owners of all clusters of a world have chosen.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Seconds of lease, drain and grace.
    pub times: (u32, u32, u32),
    /// `import.maxBursts` and `import.maxBrokers` of every ClusterPeer.
    pub limits: Option<(i32, i32)>,
    /// Agents in each cluster.
    pub replicas: usize,
    /// From the deletion of a pod until it is gone.
    pub ends: Duration,
    /// Each pod takes its own time to start, to join and to end.
    pub varied: bool,
    /// Bursts may bring nodes.
    pub nodes: bool,
}

/// The process of an agent.
pub struct Agent {
    stop: CancellationToken,
    life: Arc<Life>,
}

impl Agent {
    pub fn start(site: &Site) -> Self {
        let life = Life { left: AtomicI64::new(-1), ..Life::default() };
        let (stop, life) = (CancellationToken::new(), Arc::new(life));
        let seed = SystemRng.next_u64();
        let connections = Connections { server: site.server.clone(), life: life.clone(), seed };
        let (site, token) = (site.clone(), stop.clone());
        tokio::spawn(async move {
            while !token.is_cancelled() {
                if let Err(error) = run(&site, &connections, &token).await {
                    tracing::warn!(cluster = site.name, error = format!("{error:#}"), "the agent ended");
                    tokio::select! {
                        biased;
                        () = token.cancelled() => {}
                        () = tokio::time::sleep(AGAIN) => {}
                    }
                }
            }
        });
        Self { stop, life }
    }

    /// Ends it as SIGKILL does: from now on it reads and writes nothing. What is left of its tasks ends by itself.
    pub fn kill(self) {
        self.life.dead.store(true, Ordering::Relaxed);
        self.stop.cancel();
    }

    /// Lets it die at its `n`th write from now on: the write is done.
    pub fn die_at(&self, n: i64) {
        self.life.left.store(n, Ordering::Relaxed);
    }

    /// Lets nothing pass between it and its API server: what was sent waits.
    pub fn cut_off(&self, cut_off: bool) {
        self.life.cut_off.send_replace(cut_off);
    }

    /// Whether it has the Lease.
    pub fn leads(&self, lease: &Lease) -> bool {
        let holder = lease.spec.as_ref().and_then(|spec| spec.holder_identity.as_ref());
        holder == Some(&self.life.holder.lock().unwrap())
    }

    /// Which bursts its end of tunnels lets in: who holds the slot, the UID of the Burst, the incarnation.
    pub fn lets_in(&self, lease: &Lease) -> Vec<(String, String, String)> {
        let outlets = self.life.outlets.lock().unwrap();
        let Some(outlets) = outlets.as_ref().filter(|_| self.leads(lease) && !self.is_dead()) else {
            return Vec::new();
        };
        let named = |((peer, burst), outlet): (&TunnelKey, &Outlet)| {
            (peer.to_string(), burst.to_string(), outlet.incarnation.clone())
        };
        outlets.borrow().iter().map(named).collect()
    }

    /// What lets it die at once.
    pub fn end(&self) -> impl Fn() + Send + Sync + use<> {
        let life = self.life.clone();
        move || life.dead.store(true, Ordering::Relaxed)
    }

    /// How often it asked for what, watches and its Lease excepted: `create jobs`.
    pub fn requests(&self) -> BTreeMap<String, u64> {
        self.life.requests.lock().unwrap().clone()
    }

    /// What it counts, in the text of its metrics.
    pub fn metrics(&self) -> String {
        self.life.metrics.lock().unwrap().text()
    }

    /// Whether it has died.
    pub fn is_dead(&self) -> bool {
        self.life.dead.load(Ordering::Relaxed)
    }
}

/// `app::run` of the daemon, without its probes, its admin API and its webhook.
async fn run(site: &Site, connections: &Connections, stop: &CancellationToken) -> anyhow::Result<()> {
    let config = config(site);
    let (metrics, readiness, clock) = (Arc::new(Metrics::default()), Readiness::default(), site.clock.shared());
    *connections.life.metrics.lock().unwrap() = metrics.clone();
    let (state, fence) = Fence::closed(clock.clone());
    let clients = Clients::over(connections, fence.clone(), &RequestMetrics::register(&metrics), &clock);
    let (kinds, mut rng) = (Watches::kinds(), SystemRng);
    tokio::select! {
        biased;
        () = stop.cancelled() => return Ok(()),
        found = await_kinds(&clients.reader, &kinds, &readiness, "kinds", &mut rng) => found?,
    }
    let looks = async {
        rivals::check(&clients.reader, &config.kubernetes, clock.wall()).await.context("failed to start")?;
        anyhow::Ok(cluster_uid(&clients.reader).await?)
    };
    let uid = tokio::select! {
        biased;
        () = stop.cancelled() => return Ok(()),
        uid = looks => uid?,
    };
    let instance = holder(&format!("{}-agent", site.name), &mut rng);
    connections.life.holder.lock().unwrap().clone_from(&instance);
    let surroundings = Surroundings {
        clients: clients.clone(),
        fence: fence.clone(),
        clock: clock.clone(),
        traces: Traces::default(),
        metrics,
        network: Arc::new(InMemory {
            network: site.network.clone(),
            name: site.name.clone(),
            queue: site.queue.clone(),
            server: site.server.clone(),
        }),
        cluster_uid: uid,
        instance: instance.clone(),
    };
    let Assembly { leader, filling, .. } = Assembly::new(&config, surroundings);
    connections.life.outlets.lock().unwrap().replace(leader.outlets());
    let filling = tokio::spawn(future::join_all(filling));
    let namespace = config.kubernetes.namespace.clone();
    let watches = config.kubernetes.watch_namespaces.clone();
    let candidacy = Candidacy { namespace, lease: LEASE.to_owned(), holder: instance, watches };
    let resigned = CancellationToken::new();
    let elector = Elector::new(&clients, candidacy, state, fence.clone(), clock.clone());
    let stop = stop.child_token();
    let elector = tokio::spawn({
        let (stop, resigned) = (stop.clone(), resigned.clone());
        async move { elector.run(resigned).await.inspect_err(|_| stop.cancel()) }
    });
    let ended = lead(&fence, &clock, &stop, LINGER, |term| leader.begin(term)).await;
    resigned.cancel();
    let elected = elector.await.context("the election panicked")?;
    filling.abort();
    elected.context("the agent must end")?;
    ended.context("the agent must end")
}

fn config(site: &Site) -> Config {
    let mut config = Config::default();
    config.cluster.name.clone_from(&site.name);
    config.federation.listen = site.address;
    config.federation.advertise = vec![site.address.to_string()];
    config.federation.tunnel.memory_mib = Some(32);
    config.federation.tunnel.address = Some(Ipv4Addr::LOCALHOST.into());
    let (lease_seconds, drain_seconds, grace_seconds) = site.settings.times;
    config.bursting = BurstingConfig { lease_seconds, drain_seconds, grace_seconds, ..BurstingConfig::default() };
    config
}
