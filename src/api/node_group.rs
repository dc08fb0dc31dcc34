//! `NodeGroup`: what a node looks like that an autoscaler adds.
//!
//! Source: what cluster-autoscaler has to know of a group without nodes,
//! <https://github.com/kubernetes/autoscaler/blob/master/cluster-autoscaler/cloudprovider/aws/README.md#auto-discovery-setup>.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Taint;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::minicluster::Amount;
use super::schema::Embedded;

/// Nodes that an autoscaler adds when pods need them, all alike. There may be none of them now.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NodeGroup {
    /// Its name, for messages: that of the node group, node pool or NodePool.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
    /// Labels of its nodes, as far as `pod.nodeSelector` and `pod.nodeAffinity` ask for them.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// Taints of its nodes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(with = "Embedded<Vec<Taint>>", extend("x-kubernetes-list-type" = "atomic"))]
    pub taints: Vec<Taint>,
    /// Cores that one of its nodes has for pods: what is allocatable, less what DaemonSets take.
    pub cpu: Amount,
    /// Memory that one of its nodes has for pods.
    pub memory: Amount,
    /// GPUs of one of its nodes. Default 0.
    #[serde(default, skip_serializing_if = "super::schema::is_default")]
    pub gpus: u32,
}
