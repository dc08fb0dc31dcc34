//! MiniCluster to Kubernetes objects, without a client.
//!
//! [`rank_map_of`] says which ranks the instance has; the boot files that follow from it are frozen with the Job
//! ([`Boot`]), and [`differences`] names what a newer spec would change about them.
pub mod boot;
pub mod context;
pub mod problem;
mod quantity;
mod rank_map;
mod revision;

use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{ConfigMap, Pod, Service};

use crate::flux::RankMap;

pub use boot::{Boot, BootError, RENDER_REVISION};
pub use context::{Context, HostedSide};
pub use problem::{Problem, Problems};
pub use rank_map::rank_map_of;
pub use revision::differences;

/// Every object a MiniCluster needs, but for the Secret. All bear the controller owner reference.
///
/// Applied in the order of the fields: what pods refer to is there before them.
#[derive(Clone, Debug, PartialEq)]
pub struct Rendered {
    /// `NAME-entrypoint`: the boot files.
    pub config_map: ConfigMap,
    /// The headless (or minimal) Service, Services of sidecars with ports, and the lead's NodePort Service.
    pub services: Vec<Service>,
    /// `NAME-services`, if the spec has `services`.
    pub service_pod: Option<Pod>,
    /// `NAME`. Its annotations hold [`Self::boot`] and the digests.
    pub job: Job,
    /// The boot files, as the Job's annotation freezes them.
    pub boot: Boot,
    /// The ranks of the instance.
    pub rank_map: RankMap,
    /// Paths of fields that are written and have no effect yet: for the condition `SpecSupported`.
    pub unsupported: Vec<String>,
}
