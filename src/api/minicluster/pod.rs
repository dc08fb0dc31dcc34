//! Properties of every pod of the MiniCluster.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1 as core;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::quantity::ResourceList;
use crate::schema::{Embedded, absent_if_zero, is_default};

/// Settings that end in the pod, not in one of its containers.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
pub struct PodSpec {
    /// Annotations of each pod.
    #[serde(skip_serializing_if = "is_default")]
    pub annotations: BTreeMap<String, String>,

    /// Labels of each pod. Labels that identify the MiniCluster win over these.
    #[serde(skip_serializing_if = "is_default")]
    pub labels: BTreeMap<String, String>,

    /// `Never` or `OnFailure`. With `Never`, the default, each restart is a new pod and counts once.
    #[serde(skip_serializing_if = "is_default", deserialize_with = "absent_if_zero")]
    pub restart_policy: Option<String>,

    /// Service account the pods run as.
    #[serde(skip_serializing_if = "is_default", deserialize_with = "absent_if_zero")]
    pub service_account_name: Option<String>,

    /// Runtime class of the pods.
    #[serde(skip_serializing_if = "is_default", deserialize_with = "absent_if_zero")]
    pub runtime_class_name: Option<String>,

    /// Mount the service account's token into the containers.
    #[serde(skip_serializing_if = "is_default")]
    pub automount_service_account_token: bool,

    /// PriorityClass of the pods: who waits and who is preempted where there is not room for all.
    #[serde(skip_serializing_if = "is_default", deserialize_with = "absent_if_zero")]
    pub priority_class_name: Option<String>,

    /// Scheduler that places the pods, if not the cluster's default one.
    #[serde(skip_serializing_if = "is_default", deserialize_with = "absent_if_zero")]
    pub scheduler_name: Option<String>,

    /// Labels a node must have.
    #[serde(skip_serializing_if = "is_default")]
    pub node_selector: BTreeMap<String, String>,

    /// For each label of a node, the values of which it must have one.
    #[serde(skip_serializing_if = "is_default")]
    pub node_affinity: BTreeMap<String, Vec<String>>,

    /// Kubernetes' own affinity, beside `nodeAffinity` (whose labels every term gets) and beside the preference for one
    /// zone and one pod per node (which `network.disableAffinity` leaves out).
    #[serde(skip_serializing_if = "is_default")]
    #[schemars(with = "Embedded<core::Affinity>")]
    pub affinity: core::Affinity,

    /// How the pods spread over zones, nodes or other parts of the cluster. Select them by the label
    /// `app.kubernetes.io/name`, whose value is the MiniCluster's name.
    #[serde(skip_serializing_if = "is_default")]
    #[schemars(
        with = "Embedded<Vec<core::TopologySpreadConstraint>>",
        extend("x-kubernetes-list-type" = "atomic")
    )]
    pub topology_spread_constraints: Vec<core::TopologySpreadConstraint>,

    /// Taints the pods tolerate.
    #[serde(skip_serializing_if = "is_default")]
    #[schemars(with = "Embedded<Vec<core::Toleration>>", extend("x-kubernetes-list-type" = "atomic"))]
    pub tolerations: Vec<core::Toleration>,

    /// DNS policy of the pods. `ClusterFirst` if not written, with `hostNetwork` `ClusterFirstWithHostNet`.
    #[serde(skip_serializing_if = "is_default", deserialize_with = "absent_if_zero")]
    pub dns_policy: Option<String>,

    /// Name servers, search domains and options of the pods; with the DNS policy `None` all there is.
    #[serde(skip_serializing_if = "is_default")]
    #[schemars(with = "Embedded<core::PodDNSConfig>")]
    pub dns_config: core::PodDNSConfig,

    /// Share the node's network. Brokers then listen on all addresses of the node, and keep the names of the pods.
    #[serde(skip_serializing_if = "is_default")]
    pub host_network: bool,

    /// Share the node's IPC namespace.
    #[serde(rename = "hostIPC", skip_serializing_if = "is_default")]
    pub host_ipc: bool,

    /// Share the node's process namespace.
    #[serde(rename = "hostPID", skip_serializing_if = "is_default")]
    pub host_pid: bool,

    /// What a pod costs beyond its containers (Kubernetes calls it overhead); needs a runtime class that says the same.
    #[serde(skip_serializing_if = "is_default")]
    pub resources: ResourceList,

    /// Dynamic resources of the pod, which `resources.claims` of its containers name.
    #[serde(skip_serializing_if = "is_default")]
    #[schemars(with = "Embedded<Vec<core::PodResourceClaim>>", extend("x-kubernetes-list-type" = "atomic"))]
    pub resource_claims: Vec<core::PodResourceClaim>,

    /// Security context of the pod.
    #[serde(skip_serializing_if = "is_default")]
    #[schemars(with = "Embedded<core::PodSecurityContext>")]
    pub security_context: core::PodSecurityContext,
}
