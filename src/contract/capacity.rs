//! Coarse capacity of a cluster, as heartbeats carry it.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::money::Price;

/// What a provider could give, rounded down: a hint for placement, never a promise. Admission decides.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Capacity {
    /// Schedulable, ready nodes.
    pub nodes: u32,
    /// Allocatable minus requested CPU over those nodes, in whole cores.
    pub free_cores: u32,
    /// Allocatable minus requested memory, in MiB.
    pub free_memory_mib: u64,
    /// Allocatable minus requested GPUs (`nvidia.com/gpu`, `amd.com/gpu`, `gpu.intel.com/i915`, `gpu.intel.com/xe`).
    pub free_gpus: u32,
    /// The most free cores on one node: a broker needs its cores in one place.
    pub largest_free_node_cores: u32,
    /// Brokers of this root the provider's import policy still admits; `None`: unlimited.
    pub free_brokers: Option<u32>,
    /// Bursts of this root the provider's import policy still admits; `None`: unlimited.
    pub free_bursts: Option<u32>,
    /// What FluxSetups of the provider leave for bursts of this root, sorted by namespace. A namespace that is not among
    /// them has no such quota, or the provider's agent is older than this field.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rooms: Vec<NamespaceRoom>,
    /// Bursts may be whole instances ([`super::DesiredBurst::whole`]): the provider's agent knows them.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub whole: bool,
    /// What nodes could give, beside those that are there, that an autoscaler would add for bursts of this root; `None`: none
    /// would come, or the provider's agent is older than this field.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub possible: Option<PossibleCapacity>,
}

/// Nodes that are not there and could be. The most of each: nodes of several kinds need not have all of it at once.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct PossibleCapacity {
    /// How many.
    pub nodes: u32,
    /// Their cores.
    pub cores: u32,
    /// Their memory, in MiB.
    pub memory_mib: u64,
    /// Their GPUs.
    pub gpus: u32,
    /// The most cores of one of them.
    pub largest_node_cores: u32,
    /// The highest price of them, where their owner says one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub price: Option<Price>,
    /// How long a burst may wait for them, in seconds; 0: the provider's agent is older than this field.
    #[serde(skip_serializing_if = "is_zero")]
    pub wait_seconds: u32,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde asks for a reference")]
fn is_zero(number: &u32) -> bool {
    *number == 0
}

/// What the FluxSetup of a namespace leaves for bursts of one root now. What is `None` is not limited.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NamespaceRoom {
    /// Namespace of the root MiniCluster, wherever its bursts go on the provider; `*`: every one that is not named.
    pub namespace: String,
    /// Bursts.
    pub mini_clusters: Option<u32>,
    /// Brokers, by the `maxSize` of their bursts.
    pub brokers: Option<u32>,
    /// Thousandths of a core.
    pub milli_cores: Option<u64>,
    /// Memory, in MiB.
    pub memory_mib: Option<u64>,
    /// GPUs.
    pub gpus: Option<u32>,
}

impl Capacity {
    /// What is left for bursts of roots in `namespace`; `None`: no FluxSetup limits them, as far as is known.
    pub fn room(&self, namespace: &str) -> Option<&NamespaceRoom> {
        let named = |name: &str| self.rooms.iter().find(|room| room.namespace == name);
        named(namespace).or_else(|| named("*"))
    }
}
