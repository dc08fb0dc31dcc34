//! The clusters of this binary.

use std::sync::OnceLock;
use std::thread;

use tokio::sync::{RwLock, RwLockReadGuard, RwLockWriteGuard};
use tributary_sandbox::{ClusterOptions, NodeGroup, Options};
use tributary_tests::federation::Federation;
use tributary_tests::scenario::Place;

/// Names of the clusters; the first is where roots are made.
pub(crate) const CLUSTERS: [&str; 3] = ["east", "west", "north"];

static FEDERATION: OnceLock<RwLock<Federation>> = OnceLock::new();

/// The federation, together with other tests.
pub(crate) async fn together() -> RwLockReadGuard<'static, Federation> {
    federation().await.read().await
}

/// The federation, without other tests.
pub(crate) async fn alone() -> RwLockWriteGuard<'static, Federation> {
    federation().await.write().await
}

/// This test's namespace, on each cluster.
pub(crate) async fn places(federation: &Federation, namespace: &str) -> [Place; 3] {
    federation.namespace(namespace).await.unwrap();
    let place = |client| Place { client, namespace: namespace.to_owned() };
    [place(federation.client(0).await), place(federation.client(1).await), place(federation.client(2).await)]
}

async fn federation() -> &'static RwLock<Federation> {
    // A test's runtime ends with the test, and kube's clients with it: the start has a thread of its own.
    let started = tokio::task::spawn_blocking(|| {
        FEDERATION.get_or_init(|| {
            let start = || {
                let sandbox = tributary_sandbox::shared(options).expect("the sandbox starts");
                let runtime = tokio::runtime::Runtime::new().expect("a runtime starts");
                runtime.block_on(Federation::start(sandbox)).expect("the federation starts")
            };
            RwLock::new(thread::spawn(start).join().expect("the start does not panic"))
        })
    });
    started.await.expect("the start does not panic")
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
