//! Coarse capacity of a cluster, as heartbeats carry it.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What a provider could give, rounded down: a hint for placement, never a promise. Admission decides.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Capacity {
    /// Schedulable, ready nodes.
    pub nodes: u32,
    /// Allocatable minus requested CPU over those nodes, in whole cores.
    pub free_cores: u32,
    /// Allocatable minus requested memory, in MiB.
    pub free_memory_mib: u64,
    /// Allocatable minus requested GPUs (`nvidia.com/gpu`, `amd.com/gpu`, `gpu.intel.com/*`).
    pub free_gpus: u32,
    /// The most free cores on one node: a broker needs its cores in one place.
    pub largest_free_node_cores: u32,
    /// Brokers of this root the provider's import policy still admits; `None`: unlimited.
    pub free_brokers: Option<u32>,
    /// Bursts of this root the provider's import policy still admits; `None`: unlimited.
    pub free_bursts: Option<u32>,
}
