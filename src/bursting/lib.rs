//! The two sides of a burst: root and provider.
//!
//! Decisions are pure steps, drivers are thin. [`Bursting`] is the part of an agent that joins them:
//!
//! ```text
//! MiniCluster ─root::plan─▶ Burst ─root::answers─▶ status ─root::offer─▶ exchange ══ federation ══ the peer
//! the peer ══ federation ══▶ exchange ─provider::slot─▶ HostedBurst, Secret, lead Service, MiniCluster
//! ```
//!
//! [`Bursting::new`] makes the caches (spawn their watches); [`Bursting::run`] runs in the leader's scope;
//! [`Bursting::peers`], [`Bursting::outgoing`], [`Bursting::incoming`] and [`Bursting::credentials`] are what the
//! federation needs; [`Bursting::tunnels`] is what it carries for bursts.
#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod addresses;
mod assembly;
pub(crate) mod contact;
mod lost_pods;
#[cfg(test)]
mod model;
pub mod nodes;
pub(crate) mod note;
pub(crate) mod ours;
mod peer_status;
pub mod peers;
pub mod preflight;
pub mod provider;
pub mod root;
mod shared;
mod spans;
mod statements;
pub mod steps;
pub(crate) mod sync_store;
mod table;
pub mod template;
pub mod timing;
pub(crate) mod tunnels;
pub(crate) mod turns;
mod usage;
pub mod watch;
mod write_cache;

pub use assembly::{Bursting, BurstingConfig};
