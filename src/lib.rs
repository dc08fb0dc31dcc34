//! One Flux instance over many Kubernetes clusters.
//!
//! Tributary is a per-cluster agent. It reconciles MiniClusters (`flux-framework.org`) of the cluster it lives in, and
//! peers over QUIC with the agents of other clusters, so that the brokers of *burst* MiniClusters elsewhere join the
//! Flux instance of a *root* MiniCluster here.
//!
//! Each room is a crate of its own. What is in it, and two walks through all of them: [`guide::architecture`].

pub mod guide;

pub use tributary_admin as admin;
pub use tributary_api as api;
pub use tributary_bursting as bursting;
pub use tributary_clock as clock;
pub use tributary_cluster as cluster;
pub use tributary_config as config;
pub use tributary_contract as contract;
pub use tributary_federation as federation;
pub use tributary_flux as flux;
pub use tributary_metrics as metrics;
pub use tributary_queue as queue;
pub use tributary_reconcile as reconcile;
pub use tributary_render as render;
pub use tributary_telemetry as telemetry;
pub use tributary_tunnel as tunnel;
pub use tributary_webhook as webhook;
