//! An agent of one cluster, of the daemon's own parts: all that it does besides answering probes.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use anyhow::Context as _;
use futures::FutureExt as _;
use futures::future::{self, BoxFuture};
use http::{Request, Response};
use jiff::Timestamp;
use kube::client::{Body, DynBody};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tower::{BoxError, Service};
use tributary::bursting::preflight::attempt::Target;
use tributary::bursting::preflight::lead::{Dial, Seen};
use tributary::clock::{Clock, Mono, SharedClock, SystemClock, SystemRng};
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
use tributary_agent::app::{Assembly, LEASE, Surroundings};
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

/// The connections of one process to its API server.
#[derive(Clone)]
struct Connections {
    server: ApiServer,
    dead: Arc<AtomicBool>,
}

impl Service<Request<Body>> for Connections {
    type Response = Response<Box<DynBody>>;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<Self::Response, BoxError>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let (mut server, dead) = (self.server.clone(), self.dead.clone());
        async move {
            if dead.load(Ordering::Relaxed) {
                return future::pending().await;
            }
            let answer = server.call(request).await;
            // Whatever became of it, a dead process never learns.
            if dead.load(Ordering::Relaxed) { future::pending().await } else { answer }
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
    dead: Arc<AtomicBool>,
    running: JoinHandle<()>,
}

impl Agent {
    pub fn start(site: &Site) -> Self {
        let (stop, dead) = (CancellationToken::new(), Arc::<AtomicBool>::default());
        let connections = Connections { server: site.server.clone(), dead: dead.clone() };
        let (site, token) = (site.clone(), stop.clone());
        let running = tokio::spawn(async move {
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
        Self { stop, dead, running }
    }

    /// Ends it as SIGTERM does.
    pub async fn stop(self) {
        self.stop.cancel();
        self.running.await.unwrap();
    }

    /// Ends it as SIGKILL does: from now on it reads and writes nothing. What is left of its tasks ends by itself.
    pub fn kill(self) {
        self.dead.store(true, Ordering::Relaxed);
        self.stop.cancel();
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
