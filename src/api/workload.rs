//! `Workload` of Kueue, as far as it is written and read here: what a queue admits. Its definition is Kueue's.
//!
//! Source: <https://kueue.sigs.k8s.io/docs/reference/kueue.v1beta2/>

use k8s_openapi::api::core::v1::PodTemplateSpec;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::CustomResource;
use serde::{Deserialize, Serialize};

/// The name in `spec.managedBy` of what MultiKueue runs in another cluster.
pub const MULTIKUEUE: &str = "kueue.x-k8s.io/multikueue";

/// Label of what MultiKueue has made in this cluster, and will delete: who has.
pub const ORIGIN: &str = "kueue.x-k8s.io/multikueue-origin";

/// Label: the WorkloadPriorityClass.
pub const PRIORITY_CLASS: &str = "kueue.x-k8s.io/priority-class";

/// Label: for how many seconds it may run.
pub const LONGEST: &str = "kueue.x-k8s.io/max-exec-time-seconds";

/// Label of a Workload: UID of what it is of.
pub const OF_JOB: &str = "kueue.x-k8s.io/job-uid";

/// What waits for room.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "kueue.x-k8s.io",
    version = "v1beta2",
    kind = "Workload",
    plural = "workloads",
    namespaced,
    status = "WorkloadStatus",
    schema = "disabled",
    derive = "PartialEq"
)]
#[serde(rename_all = "camelCase", default)]
pub struct WorkloadSpec {
    /// Name of the LocalQueue, in the same namespace.
    pub queue_name: String,
    /// The pods.
    pub pod_sets: Vec<PodSet>,
    /// Who goes first: the higher one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub priority: Option<i32>,
    /// Where `priority` is from.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub priority_class_ref: Option<PriorityClassRef>,
    /// See [`LONGEST`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub maximum_execution_time_seconds: Option<i32>,
}

/// Pods that are all alike.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PodSet {
    /// What they are called among the pods of the Workload.
    pub name: String,
    /// How many.
    pub count: i32,
    /// The fewest that may be admitted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min_count: Option<i32>,
    /// What they look like.
    pub template: PodTemplateSpec,
    /// Which nodes they are to be on together.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub topology_request: Option<TopologyRequest>,
}

/// Which nodes pods are to be on together: by the annotations of the pods that [`topology`] names.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct TopologyRequest {
    /// All below one node of the topology, of the level with this label.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub required: Option<String>,
    /// The same, if there is room.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub preferred: Option<String>,
    /// On any nodes of the topology.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unconstrained: Option<bool>,
    /// Label of a pod with its index among them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pod_index_label: Option<String>,
}

/// Annotations of pods: the first that is there counts.
pub mod topology {
    /// See [`required`](super::TopologyRequest::required).
    pub const REQUIRED: &str = "kueue.x-k8s.io/podset-required-topology";
    /// See [`preferred`](super::TopologyRequest::preferred).
    pub const PREFERRED: &str = "kueue.x-k8s.io/podset-preferred-topology";
    /// See [`unconstrained`](super::TopologyRequest::unconstrained).
    pub const UNCONSTRAINED: &str = "kueue.x-k8s.io/podset-unconstrained-topology";
}

/// A class that a priority is from.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct PriorityClassRef {
    /// `kueue.x-k8s.io` or `scheduling.k8s.io`.
    pub group: String,
    /// `WorkloadPriorityClass` or `PriorityClass`.
    pub kind: String,
    /// Its name.
    pub name: String,
}

/// How it stands.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct WorkloadStatus {
    /// See [`condition`].
    pub conditions: Vec<Condition>,
}

/// Types of conditions.
pub mod condition {
    /// It has room in its ClusterQueue.
    pub const QUOTA_RESERVED: &str = "QuotaReserved";
    /// It may run.
    pub const ADMITTED: &str = "Admitted";
    /// It has to end, and to wait again.
    pub const EVICTED: &str = "Evicted";
    /// It waits again after that.
    pub const REQUEUED: &str = "Requeued";
    /// It has ended.
    pub const FINISHED: &str = "Finished";
}

/// Reasons of the condition `Ready` of a MiniCluster whose Job is in a queue of Kueue.
pub mod reason {
    /// The Job waits in its queue.
    pub const JOB_QUEUED: &str = "JobQueued";
    /// The queue hands its Jobs on to other clusters, and this one's pods belong to this cluster.
    pub const JOB_HANDED_ON: &str = "JobHandedOn";
}
