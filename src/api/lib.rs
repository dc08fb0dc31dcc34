//! The kinds Tributary reads and writes, and the names and labels users see.
#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod budget;
pub mod burst;
pub mod cluster_card;
mod convert;
mod crd;
pub mod duration;
pub mod flux_job;
pub mod flux_setup;
pub mod hosted_burst;
pub mod join_token;
pub mod labels;
pub mod minicluster;
pub mod names;
pub mod node_group;
pub mod peer;
pub mod provisioning_request;
pub mod schema;
pub mod selector;
pub mod usage;
pub mod v1alpha1;
pub mod workload;

pub use self::crd::{SPECS, crds, fields, lacking, named};
