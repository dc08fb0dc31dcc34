//! One Flux instance over many Kubernetes clusters.
//!
//! Tributary is a per-cluster agent. It reconciles MiniClusters (`flux-framework.org`) of the cluster it lives in, and
//! peers over QUIC with the agents of other clusters, so that the brokers of *burst* MiniClusters elsewhere join the
//! Flux instance of a *root* MiniCluster here.
//!
//! The rooms of this crate, and two walks through them, are in [`guide::architecture`].
#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod admin;
pub mod clock;
pub mod config;
pub mod contract;
pub mod federation;
pub mod flux;
pub mod guide;
pub mod metrics;
pub mod telemetry;

#[cfg(feature = "kubernetes")]
pub mod api;
#[cfg(feature = "kubernetes")]
pub mod bursting;
#[cfg(feature = "kubernetes")]
pub mod cluster;
#[cfg(feature = "kubernetes")]
pub mod queue;
#[cfg(feature = "kubernetes")]
pub mod reconcile;
#[cfg(feature = "kubernetes")]
pub mod render;
#[cfg(feature = "kubernetes")]
pub mod webhook;
