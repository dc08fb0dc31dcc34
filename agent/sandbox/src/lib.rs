//! Real Kubernetes control planes on this machine, for tests and the demo.
//!
//! Each cluster is a real etcd, kube-apiserver, kube-controller-manager and kube-scheduler, with nodes simulated by
//! kwok: pods are scheduled, bound and become Ready; no container runs. A cluster is ready some five seconds after its
//! start and takes half a gigabyte.
//!
//! ```no_run
//! # async fn example() -> anyhow::Result<()> {
//! use tributary_sandbox::{ADMIN, Options, Sandbox};
//!
//! let sandbox = Sandbox::start(Options::named(["east", "west"])).await?;
//! let client = sandbox.cluster("east")?.client(ADMIN).await?;
//! # Ok(())
//! # }
//! ```
//!
//! # Map
//!
//! | file | what |
//! |---|---|
//! | `options` | what a sandbox shall look like |
//! | `sandbox`, `cluster` | start and handles; `shared`: one per test binary; `cluster::faults`: what tests do to one |
//! | `binaries` | where the programs come from; `pins/` holds the Go modules they are built from |
//! | `group` | processes that end with this one, SIGKILL included |
//! | `component`, `ports`, `networks`, `pki`, `kubeconfig`, `nodes` | the parts of a control plane |
//! | `startup` | when it is ready, and why it is not |
//! | `audit` | which requests were made |
//! | `access` | the same view of sandbox clusters and existing ones |
//!
//! Annotations steer the simulated pods: see [`annotations`].

mod access;
#[cfg(any(test, feature = "testing"))]
mod audit;
mod binaries;
mod cluster;
mod component;
mod group;
mod kubeconfig;
mod networks;
mod nodes;
mod options;
mod pki;
mod ports;
mod sandbox;
#[cfg(any(test, feature = "testing"))]
mod shared;
mod startup;

pub use access::{Access, existing};
#[cfg(any(test, feature = "testing"))]
pub use audit::{AuditLog, Event};
pub use binaries::Binaries;
#[cfg(any(test, feature = "testing"))]
pub use binaries::{Kueue, helm, kueue};
pub use cluster::{ADMIN, Cluster};
pub use component::Component;
pub use group::{Group, Process, Signal};
pub use options::{ClusterOptions, NodeGroup, Options, Report};
pub use sandbox::Sandbox;
#[cfg(any(test, feature = "testing"))]
pub use shared::shared;

/// Annotations of pods that the simulated nodes obey, on a pod's template or put on a running pod; and one of nodes.
pub mod annotations {
    /// The pod's containers end with this code: the pod is Succeeded if it is `0`, else Failed.
    pub const EXIT: &str = "sandbox.tributary.dev/exit";
    /// The pod runs and is not ready, whatever the value is; without it, it is.
    pub const NOT_READY: &str = "sandbox.tributary.dev/not-ready";
    /// A deleted pod stays, as if its node were gone, until the annotation is taken off.
    pub const KEEP_TERMINATING: &str = "sandbox.tributary.dev/keep-terminating";
    /// Of a node: nothing says any more that it is Ready. What was said last stands until somebody says otherwise; its pods
    /// are annotated by themselves.
    pub const LOST: &str = "sandbox.tributary.dev/lost";
}
