//! The worlds of this binary: one that most tests share, and one for tests of time.

use std::ops::Deref;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use tokio::sync::{Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};
use tributary_sandbox::{ClusterOptions, NodeGroup, Options, Sandbox};
use tributary_tests::collector::{Collector, Received};
use tributary_tests::federation::{Federation, SHORT};
use tributary_tests::scenario::Place;

/// Names of the clusters; the first is where roots are made.
pub(crate) const CLUSTERS: [&str; 3] = ["east", "west", "north"];

/// Most tests.
static BUSY: OnceLock<World> = OnceLock::new();
/// Tests that wait for something not to happen: they take a minute each whatever the machine does, so they have clusters
/// of their own beside the others, and short leases. And some that disturb agents, so that not all of those wait for each
/// other.
static QUIET: OnceLock<World> = OnceLock::new();

/// What the agents of the busy world send their traces to.
static COLLECTOR: OnceLock<Collector> = OnceLock::new();

/// The spans of the busy world's agents so far.
pub(crate) fn spans() -> Vec<Received> {
    COLLECTOR.get().map(Collector::spans).unwrap_or_default()
}

/// A federation, and who may use it now.
struct World {
    federation: RwLock<Federation>,
    extra: &'static str,
    /// A test that had it for itself failed: nobody knows what it left, a drained peer or an agent that is away.
    spoiled: AtomicBool,
}

/// A federation without other tests. If its test fails, others get a new one.
pub(crate) struct Alone {
    world: &'static World,
    federation: RwLockWriteGuard<'static, Federation>,
}

/// The federation, together with other tests.
pub(crate) async fn together() -> RwLockReadGuard<'static, Federation> {
    let world = busy().await;
    loop {
        let federation = world.federation.read().await;
        // On a busy machine agents lose each other by themselves.
        if !world.spoiled.load(Ordering::SeqCst) && !federation.flaps().await {
            return federation;
        }
        drop(federation);
        world.alone().await.connected().await;
    }
}

/// The federation, without other tests.
pub(crate) async fn alone() -> Alone {
    busy().await.alone().await
}

/// Another federation, without other tests.
pub(crate) async fn quiet() -> Alone {
    begin(|| {
        QUIET.get_or_init(|| World::start(SHORT));
    })
    .await;
    QUIET.get().expect("it was begun").alone().await
}

/// Leave to start clusters of one's own, as long as it is held. With those of two tests at once beside the shared ones, a
/// machine of two cores is so busy that agents lose each other, and nothing is done in time.
pub(crate) async fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::const_new(());
    TURN.lock().await
}

impl World {
    fn start(extra: &'static str) -> Self {
        Self { federation: RwLock::new(start(extra)), extra, spoiled: AtomicBool::new(false) }
    }

    async fn alone(&'static self) -> Alone {
        let mut federation = self.federation.write().await;
        if self.spoiled.load(Ordering::SeqCst) {
            let anew = tokio::task::spawn_blocking(|| start(self.extra)).await;
            *federation = anew.expect("the start does not panic");
            self.spoiled.store(false, Ordering::SeqCst);
        }
        federation.forget_losses().await;
        Alone { world: self, federation }
    }
}

impl Deref for Alone {
    type Target = Federation;

    fn deref(&self) -> &Federation {
        &self.federation
    }
}

impl Drop for Alone {
    fn drop(&mut self) {
        if thread::panicking() {
            self.world.spoiled.store(true, Ordering::SeqCst);
        }
    }
}

/// This test's namespace, on each cluster.
pub(crate) async fn places(federation: &Federation, namespace: &str) -> [Place; 3] {
    federation.namespace(namespace).await.unwrap();
    let place = |client| Place { client, namespace: namespace.to_owned() };
    [place(federation.client(0).await), place(federation.client(1).await), place(federation.client(2).await)]
}

async fn busy() -> &'static World {
    begin(|| {
        BUSY.get_or_init(|| {
            let receiver = COLLECTOR.get_or_init(|| Collector::start().expect("a port of loopback is free"));
            World::start(format!("[traces]\nendpoint = {:?}", receiver.endpoint).leak())
        });
    })
    .await;
    BUSY.get().expect("it was begun")
}

async fn begin(begin: fn()) {
    tokio::task::spawn_blocking(begin).await.expect("the start does not panic");
}

fn start(extra: &'static str) -> Federation {
    // A test's runtime ends with the test, and kube's clients with it: the start has a thread of its own.
    let start = move || {
        let runtime = tokio::runtime::Runtime::new().expect("a runtime starts");
        let sandbox = runtime.block_on(Sandbox::start(options())).expect("the sandbox starts");
        runtime.block_on(Federation::start(sandbox, extra)).expect("the federation starts")
    };
    thread::spawn(start).join().expect("the start does not panic")
}

fn options() -> Options {
    // West has few cores per node and GPUs; north is the largest.
    let sizes = [(4, 16, 0), (4, 8, 2), (8, 32, 0)];
    let cluster = |(name, (count, cpu, gpus)): (&&str, (u32, u32, u32))| ClusterOptions {
        nodes: vec![NodeGroup { count, cpu, gpus, ..NodeGroup::default() }],
        ..ClusterOptions::named(name)
    };
    Options { clusters: CLUSTERS.iter().zip(sizes).map(cluster).collect(), ..Options::default() }
}
