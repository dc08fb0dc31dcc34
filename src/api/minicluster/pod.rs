//! Properties of every pod of the MiniCluster.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1 as core;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::quantity::ResourceList;
use crate::api::schema::{Embedded, absent_if_zero, is_default};

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

    /// Scheduler that places the pods, if not the cluster's default one.
    #[serde(skip_serializing_if = "is_default", deserialize_with = "absent_if_zero")]
    pub scheduler_name: Option<String>,

    /// Labels a node must have.
    #[serde(skip_serializing_if = "is_default")]
    pub node_selector: BTreeMap<String, String>,

    /// For each label of a node, the values of which it must have one.
    #[serde(skip_serializing_if = "is_default")]
    pub node_affinity: BTreeMap<String, Vec<String>>,

    /// Taints the pods tolerate.
    #[serde(skip_serializing_if = "is_default")]
    #[schemars(with = "Embedded<Vec<core::Toleration>>", extend("x-kubernetes-list-type" = "atomic"))]
    pub tolerations: Vec<core::Toleration>,

    /// DNS policy of the pods.
    #[serde(skip_serializing_if = "is_default", deserialize_with = "absent_if_zero")]
    pub dns_policy: Option<String>,

    /// Share the node's IPC namespace.
    #[serde(rename = "hostIPC", skip_serializing_if = "is_default")]
    pub host_ipc: bool,

    /// Share the node's process namespace.
    #[serde(rename = "hostPID", skip_serializing_if = "is_default")]
    pub host_pid: bool,

    /// What a pod costs beyond its containers (Kubernetes calls it overhead); needs a runtime class that says the same.
    #[serde(skip_serializing_if = "is_default")]
    pub resources: ResourceList,

    /// Security context of the pod.
    #[serde(skip_serializing_if = "is_default")]
    #[schemars(with = "Embedded<core::PodSecurityContext>")]
    pub security_context: core::PodSecurityContext,
}
