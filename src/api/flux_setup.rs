//! `FluxSetup`: how much room a namespace has for MiniClusters, and who goes first.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::minicluster::Amount;
use super::schema::is_default;
use super::selector::PeerSelector;

/// Room for MiniClusters in this namespace: an administrator's object. While there is one, MiniClusters and FluxJobs of
/// the namespace start when the quota has room for the whole of them, and wait in line until then. If there are several,
/// the oldest counts.
#[derive(CustomResource, Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "tributary.dev",
    version = "v1alpha1",
    kind = "FluxSetup",
    plural = "fluxsetups",
    category = "tributary",
    namespaced,
    status = "FluxSetupStatus",
    derive = "Default",
    derive = "PartialEq",
    printcolumn = r#"{"name":"Running","type":"integer","jsonPath":".status.running"}"#,
    printcolumn = r#"{"name":"Waiting","type":"integer","jsonPath":".status.waiting"}"#,
    printcolumn = r#"{"name":"Brokers","type":"integer","jsonPath":".status.used.brokers"}"#,
    printcolumn = r#"{"name":"CPU","type":"string","jsonPath":".status.used.cpu"}"#,
    printcolumn = r#"{"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp"}"#
)]
#[serde(rename_all = "camelCase", default)]
pub struct FluxSetupSpec {
    /// What MiniClusters of this namespace may take together. Raising or lowering it is looked at at once; it never ends
    /// what runs.
    pub quota: Quota,
    /// Who goes first.
    pub order: Order,
    /// Whether something later in line may start while the first one waits, as long as that does not delay the first one.
    #[schemars(extend("default" = true))]
    pub backfill: bool,
    /// Whether a MiniCluster starts only when the nodes have room for all its brokers as well, now. While the first in line
    /// waits for nodes, nothing passes it.
    #[serde(skip_serializing_if = "is_default")]
    pub check_nodes: bool,
    /// Seconds a run may last at most: `deadlineSeconds` of MiniClusters, `timeLimitSeconds` of FluxJobs. FluxJobs without a
    /// limit get the `deadlineSeconds` that their `miniCluster` brings, else this; whatever has none, or a longer one, is
    /// refused by the queue.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub max_duration_seconds: Option<i64>,
    /// Where FluxJobs with `allowBurst` go when there is too little room here.
    #[serde(skip_serializing_if = "is_default")]
    pub overflow: Overflow,
    /// What bursts of peers may take of the quota. Not written: whatever is left of it. As soon as anybody is named, peers
    /// that are not get nothing.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub peers: Vec<PeerGrant>,
}

/// Where FluxJobs go when there is too little room here.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Overflow {
    /// What becomes of the first in line when it may burst, does not fit here, and a peer has room.
    pub policy: OverflowPolicy,
    /// Peers that may take it, or a part of it, best first. Empty: `selector` says, else any that may.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub peers: Vec<String>,
    /// Which peers may, by labels of their ClusterPeers; counts if none is named.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub selector: Option<PeerSelector>,
}

/// What becomes of a FluxJob that does not fit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum OverflowPolicy {
    /// It waits.
    #[default]
    Never,
    /// As many of its brokers as fit start here, its lead broker among them; the others are a burst.
    Split,
    /// All of it is sent to a peer that has room for all of it, and runs there. It is never split. So is whatever waits
    /// behind the first in line and cannot start here now, if `backfill` is on.
    Whole,
}

/// What bursts of one peer may take together in this namespace, of what the quota as a whole leaves. They are taken only
/// while that delays nobody who waits here, and they count with all the brokers that they may grow to.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct PeerGrant {
    /// Name of its ClusterPeer; `*`: each peer that is not named.
    pub name: String,
    /// How much. What is not written is limited by the quota as a whole only.
    pub quota: Quota,
}

/// How much MiniClusters of a namespace may take together. What is not written is not limited.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Quota {
    /// MiniClusters at the same time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mini_clusters: Option<u32>,
    /// Brokers: the sum of their sizes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub brokers: Option<u32>,
    /// Cores that their pods request; one for each broker that requests none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu: Option<Amount>,
    /// Memory that their pods request.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory: Option<Amount>,
    /// GPUs that their pods request, slices and shares of them included.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gpus: Option<u32>,
}

/// Who goes first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Order {
    /// The higher priority; among equals whoever came first. Priority of a FluxJob is a field of its own; of a MiniCluster
    /// the annotation `tributary.dev/priority`.
    #[default]
    Priority,
    /// Whoever came first.
    Fifo,
}

/// What of the quota is taken.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct FluxSetupStatus {
    /// MiniClusters that run, or were told to start.
    pub running: u32,
    /// MiniClusters and FluxJobs that wait.
    pub waiting: u32,
    /// What those that run take.
    pub used: Usage,
    /// What bursts of peers take of it, while there are any.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub peers: Vec<PeerUsage>,
    /// Who is next, and what it waits for.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub next: String,
    /// `Active`: whether this is the FluxSetup that counts in its namespace.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
    /// `metadata.generation` this status answers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
}

/// What is taken.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Usage {
    /// MiniClusters.
    pub mini_clusters: i64,
    /// Brokers.
    pub brokers: i64,
    /// Cores.
    pub cpu: String,
    /// Memory.
    pub memory: String,
    /// GPUs.
    pub gpus: i64,
    /// What of that the pod of a MiniCluster's services takes, where there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub services: Option<PodUsage>,
}

/// What one pod takes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct PodUsage {
    /// Cores.
    pub cpu: String,
    /// Memory.
    pub memory: String,
    /// GPUs.
    pub gpus: i64,
}

/// What bursts of one peer take.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct PeerUsage {
    /// Name of its ClusterPeer.
    pub name: String,
    /// How much.
    pub used: Usage,
}

impl Default for FluxSetupSpec {
    fn default() -> Self {
        Self {
            quota: Quota::default(),
            order: Order::default(),
            backfill: true,
            check_nodes: false,
            max_duration_seconds: None,
            overflow: Overflow::default(),
            peers: Vec::new(),
        }
    }
}
