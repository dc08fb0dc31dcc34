//! `NodeGroup`: what a node looks like that an autoscaler adds.
//!
//! Source: what cluster-autoscaler has to know of a group without nodes,
//! <https://github.com/kubernetes/autoscaler/blob/master/cluster-autoscaler/cloudprovider/aws/README.md#auto-discovery-setup>.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Taint;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::minicluster::{Amount, natural};
use super::schema::{Embedded, natural_quantity};

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
    #[serde(deserialize_with = "natural")]
    #[schemars(schema_with = "natural_quantity")]
    pub cpu: Amount,
    /// Memory that one of its nodes has for pods.
    #[serde(deserialize_with = "natural")]
    #[schemars(schema_with = "natural_quantity")]
    pub memory: Amount,
    /// GPUs of one of its nodes. Default 0.
    #[serde(default, skip_serializing_if = "super::schema::is_default")]
    pub gpus: u32,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_has_no_less_than_nothing() {
        let read = |cpu: &str, memory: &str| {
            let text = format!(r#"{{"name": "large", "cpu": {cpu}, "memory": {memory}}}"#);
            serde_json::from_str::<NodeGroup>(&text).map(|group| group.cpu.to_string())
        };
        assert_eq!(read("96", "\"384Gi\"").unwrap(), "96");
        for (cpu, memory, said) in [("-96", "1", "-96 is negative"), ("1", "\"-1Gi\"", "-1Gi is negative")] {
            let error = read(cpu, memory).unwrap_err().to_string();
            assert!(error.contains(said), "{error}");
        }
    }
}
