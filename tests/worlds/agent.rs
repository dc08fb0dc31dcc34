//! An agent of one cluster, of the daemon's own parts: all that it does besides answering probes.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use anyhow::Context as _;
use futures::FutureExt as _;
use futures::future::{self, BoxFuture};
use http::{Method, Request, Response};
use jiff::Timestamp;
use kube::client::{Body, DynBody};
use tokio_util::sync::CancellationToken;
use tower::{BoxError, Service};
use tributary::bursting::preflight::attempt::Target;
use tributary::bursting::preflight::lead::{Dial, Seen};
use tributary::clock::{Clock, Mono, Rng as _, SeededRng, SharedClock, SystemClock, SystemRng};
use tributary::cluster::client::Clients;
use tributary::cluster::discovery::{await_kinds, cluster_uid};
use tributary::cluster::fence::Fence;
use tributary::cluster::leadership::{Candidacy, Elector, holder};
use tributary::cluster::readiness::Readiness;
use tributary::cluster::requests::RequestMetrics;
use tributary::cluster::scope::{LINGER, lead};
use tributary::config::Config;
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
use tributary_agent::upstream;
use tributary_cluster::testing::ApiServer;

/// How soon a kubelet starts an agent again that ended.
const AGAIN: Duration = Duration::from_secs(10);

/// A clock that stops and jumps with tokio's paused time, the wall clock too.
pub struct PausedClock(SystemClock);

impl PausedClock {
    pub fn shared() -> SharedClock {
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

/// The network of a world. Lead brokers answer as they should.
struct InMemory {
    network: MemoryNetwork,
    name: String,
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
struct Life {
    dead: AtomicBool,
    /// Writes until it dies; none: it does not.
    left: AtomicI64,
    asked: Mutex<BTreeMap<String, u64>>,
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

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let (mut server, life) = (self.server.clone(), self.life.clone());
        let [there, back] = self.delays(&request);
        async move {
            tokio::time::sleep(there).await;
            if life.dead.load(Ordering::Relaxed) {
                return future::pending().await;
            }
            let writes = request.method() != Method::GET;
            if writes && life.left.fetch_sub(1, Ordering::Relaxed) == 1 {
                // It dies when the write is on its way.
                life.dead.store(true, Ordering::Relaxed);
            }
            let answer = server.call(request).await;
            tokio::time::sleep(back).await;
            // Whatever became of it, a dead process never learns.
            if life.dead.load(Ordering::Relaxed) { future::pending().await } else { answer }
        }
        .boxed()
    }
}

/// What tells one agent from another.
#[derive(Clone)]
pub struct Site {
    pub name: String,
    pub server: ApiServer,
    pub address: SocketAddr,
    pub network: MemoryNetwork,
    pub clock: SharedClock,
}

/// The process of an agent.
pub struct Agent {
    stop: CancellationToken,
    life: Arc<Life>,
}

impl Agent {
    pub fn start(site: &Site) -> Self {
        let (left, asked) = (AtomicI64::new(-1), Mutex::default());
        let (stop, life) = (CancellationToken::new(), Arc::new(Life { dead: AtomicBool::new(false), left, asked }));
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

    /// Whether it has died.
    pub fn is_dead(&self) -> bool {
        self.life.dead.load(Ordering::Relaxed)
    }
}

/// `app::run` of the daemon, without its probes, its admin API and its webhook.
async fn run(site: &Site, connections: &Connections, stop: &CancellationToken) -> anyhow::Result<()> {
    let config = config(site);
    let (metrics, readiness, clock) = (Arc::new(Metrics::default()), Readiness::default(), site.clock.clone());
    let (state, fence) = Fence::closed(clock.clone());
    let clients = Clients::over(connections, fence.clone(), &RequestMetrics::register(&metrics), &clock);
    let (kinds, mut rng) = (Watches::kinds(), SystemRng);
    tokio::select! {
        biased;
        () = stop.cancelled() => return Ok(()),
        found = await_kinds(&clients.reader, &kinds, &readiness, "kinds", &mut rng) => found?,
    }
    let looks = async {
        upstream::check(&clients.reader, clock.wall()).await?;
        anyhow::Ok(cluster_uid(&clients.reader).await?)
    };
    let uid = tokio::select! {
        biased;
        () = stop.cancelled() => return Ok(()),
        uid = looks => uid?,
    };
    let instance = holder(&format!("{}-agent", site.name), &mut rng);
    let surroundings = Surroundings {
        clients: clients.clone(),
        fence: fence.clone(),
        clock: clock.clone(),
        traces: Traces::default(),
        metrics,
        network: Arc::new(InMemory { network: site.network.clone(), name: site.name.clone() }),
        cluster_uid: uid,
        instance: instance.clone(),
    };
    let Assembly { leader, filling, .. } = Assembly::new(&config, surroundings);
    let filling = tokio::spawn(future::join_all(filling));
    let namespace = config.kubernetes.namespace.clone();
    let candidacy = Candidacy { namespace, lease: LEASE.to_owned(), holder: instance };
    let resigned = CancellationToken::new();
    let elector = Elector::new(&clients, candidacy, state, fence.clone(), clock.clone());
    let elector = tokio::spawn(elector.run(resigned.clone()));
    let ended = lead(&fence, &clock, stop, LINGER, |term| leader.begin(term)).await;
    resigned.cancel();
    elector.await.context("the election panicked")?;
    filling.abort();
    ended.context("the agent must end")
}

fn config(site: &Site) -> Config {
    let mut config = Config::default();
    config.cluster.name.clone_from(&site.name);
    config.federation.listen = site.address;
    config.federation.advertise = vec![site.address.to_string()];
    config.federation.tunnel.memory_mib = Some(32);
    config
}
