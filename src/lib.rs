//! One Flux instance over many Kubernetes clusters.
//!
//! Tributary is a per-cluster agent. It reconciles MiniClusters (`flux-framework.org`) of the cluster it lives in, and
//! peers over QUIC with the agents of other clusters, so that the brokers of *burst* MiniClusters elsewhere join the
//! Flux instance of a *root* MiniCluster here.
//!
//! # The rooms
//!
//! | room | what lives there | may use |
//! |---|---|---|
//! | [`api`] | the kinds: MiniCluster (and its v1alpha1, with conversion), ClusterPeer, Burst, HostedBurst; labels and names | – |
//! | [`flux`] | Flux's own formats, pure: host list, rank map, R, broker.toml, curve certificate | – |
//! | [`contract`] | what root and provider say to each other, and the ports between bursting and federation | – |
//! | [`render`] | MiniCluster → Kubernetes objects, pure | api, config, flux |
//! | [`cluster`] | plumbing to one API server: clients, fence, leadership, caches, apply, conditions, events | api |
//! | [`reconcile`] | the MiniCluster controller | api, flux, render, cluster |
//! | [`bursting`] | root side (place, offer) and provider side (admit, materialize) of a burst | api, flux, contract, render, cluster |
//! | [`queue`] | who may start: FluxSetup's quota, FluxJobs, and MiniClusters that ask before their Job is made | api, contract, render, cluster |
//! | [`webhook`] | the conversion webhook's answers, and its certificate | api |
//! | [`federation`] | wire, session, mesh, identity, QUIC; no Kubernetes in here | contract, flux |
//! | [`admin`] | the read-only documents shared by the daemon and `agentctl` | contract |
//! | [`guide`] | the user guide | – |
//! | [`config`], [`clock`], [`telemetry`], [`metrics`] | foundations every room may use | – |
//!
//! The edges are held by a test that parses the sources (`tests/suite/edges.rs`).
#![cfg_attr(test, allow(clippy::unwrap_used))]

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
pub use tributary_webhook as webhook;
