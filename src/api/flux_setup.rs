//! `FluxSetup`: how much room a namespace has for MiniClusters, and who goes first.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::duration::Lasting;
use super::minicluster::Amount;
use super::node_group::NodeGroup;
use super::schema::{is_default, quantity};
use super::selector::{PeerPreference, PeerSelector};
use tributary_contract::word::Word;

/// The name that a FluxSetup has.
pub const NAME: &str = "default";

/// Room for MiniClusters in this namespace: an administrator's object. While there is one, MiniClusters and FluxJobs of
/// the namespace start when the quota has room for the whole of them, and wait in line until then. A namespace has one, and
/// its name is `default`.
#[derive(CustomResource, Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "tributary.dev",
    version = "v1alpha1",
    kind = "FluxSetup",
    plural = "fluxsetups",
    shortname = "fs",
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
    /// Whether the nodes must have room for a MiniCluster as well. `Never` (default): they are not asked. `Now`: all its brokers
    /// must fit on what is free of the nodes that are there; while the first in line waits for nodes, nothing starts here
    /// before it.
    /// `Autoscaled`: a broker must fit on an empty node like one of those that are there, or of one of the `nodeGroups`; pods
    /// wait for nodes, and an autoscaler sees them.
    #[serde(skip_serializing_if = "is_default")]
    pub check_nodes: CheckNodes,
    /// Nodes that an autoscaler adds, though none of them may be there now. They count with `checkNodes: Autoscaled` only.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"], "maxItems" = 64))]
    pub node_groups: Vec<NodeGroup>,
    /// How long a run may last at most, from a second on (`24h`): `deadlineSeconds` of MiniClusters, `timeLimit` of FluxJobs.
    /// FluxJobs without a limit get the `deadlineSeconds` that their `miniCluster` brings, else this; whatever has none, or a
    /// longer one, is refused by the queue.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("x-kubernetes-validations" = [{
        "rule": "duration(self) >= duration('1s') && duration(self) <= duration('87600h')",
        "message": "spec.maxDuration: must be a duration from 1s to 87600h, like 90s, 5m or 1h30m",
    }]))]
    pub max_duration: Option<Lasting>,
    /// PriorityClasses that FluxJobs (`priorityClassName`) and MiniClusters (`pod.priorityClassName`) of this namespace may
    /// name. Empty: each, but those of Kubernetes itself (`system-…`).
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "set", "maxItems" = 64), inner(length(min = 1, max = 253)))]
    pub priority_classes: Vec<String>,
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
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub peers: Vec<String>,
    /// Which peers may, by labels of their ClusterPeers; counts if none is named.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub selector: Option<PeerSelector>,
    /// Which of the peers that may are better, if none is named: as `prefer` of a burst.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic", "maxItems" = 16))]
    pub prefer: Vec<PeerPreference>,
}

impl Overflow {
    /// What is preferred among the peers; nothing if some are named, which is an order already.
    pub fn prefer(&self) -> Vec<PeerPreference> {
        if self.peers.is_empty() { self.prefer.clone() } else { Vec::new() }
    }
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
    /// A word of a newer version: it waits.
    #[serde(untagged)]
    #[schemars(skip)]
    Unknown(Word),
}

/// Whether nodes must have room for whoever starts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum CheckNodes {
    /// They are not asked: pods that find no node wait for one, and hold their part of the quota meanwhile.
    #[default]
    Never,
    /// A MiniCluster starts only when the nodes that are there have room for all its brokers, now. While the first in line
    /// waits for nodes, nothing starts here before it.
    Now,
    /// For clusters with an autoscaler: a MiniCluster starts when each of its brokers would fit on an empty node like one of
    /// those that are there, or of one of the `nodeGroups`. Its pods wait for nodes, and the autoscaler sees them.
    Autoscaled,
    /// A word of a newer version: taken as `Now`.
    #[serde(untagged)]
    #[schemars(skip)]
    Unknown(Word),
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
    /// The higher value of the PriorityClass (`priorityClassName` of a FluxJob, `pod.priorityClassName` of a MiniCluster);
    /// among equals whoever came first.
    #[default]
    Priority,
    /// Whoever came first.
    Fifo,
    /// A word of a newer version: taken as `Priority`.
    #[serde(untagged)]
    #[schemars(skip)]
    Unknown(Word),
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
    #[schemars(extend("default" = null))]
    pub used: Usage,
    /// What bursts of peers take of it, while there are any.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub peers: Vec<PeerUsage>,
    /// Who is next, and what it waits for.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub next: String,
    /// `Active`: the queue goes by it; `False` with reason `Unsupported` where it says something that this version does not
    /// know.
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
    #[schemars(schema_with = "quantity", extend("default" = null))]
    pub cpu: String,
    /// Memory.
    #[schemars(schema_with = "quantity", extend("default" = null))]
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
    #[schemars(schema_with = "quantity", extend("default" = null))]
    pub cpu: String,
    /// Memory.
    #[schemars(schema_with = "quantity", extend("default" = null))]
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
    #[schemars(extend("default" = null))]
    pub used: Usage,
}

impl Default for FluxSetupSpec {
    fn default() -> Self {
        Self {
            quota: Quota::default(),
            order: Order::default(),
            backfill: true,
            check_nodes: CheckNodes::default(),
            node_groups: Vec::new(),
            max_duration: None,
            priority_classes: Vec::new(),
            overflow: Overflow::default(),
            peers: Vec::new(),
        }
    }
}
