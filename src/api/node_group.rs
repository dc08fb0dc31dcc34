//! `NodeGroup`: what a node looks like that an autoscaler adds.
//!
//! Source: what cluster-autoscaler has to know of a group without nodes,
//! <https://github.com/kubernetes/autoscaler/blob/master/cluster-autoscaler/cloudprovider/aws/README.md#auto-discovery-setup>.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Taint;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::duration::Lasting;
use super::minicluster::{Amount, natural};
use super::schema::{Embedded, natural_quantity};
use tributary_contract::Price;

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

/// Nodes that an autoscaler may add for bursts of a peer. A burst that fits on them is taken though they are not there: its
/// pods wait for them. All of it gets nodes within `wait`, or it is given back.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ScaleUpPolicy {
    /// Nodes that bursts of this peer may bring at a time. They count as long as their burst is here, by what it may grow to
    /// (`maxSize`).
    #[schemars(range(min = 1))]
    pub max_nodes: u32,
    /// How long the pods of a burst may wait for their nodes, from 1s to 24h. Then it is given back, and not taken again for as
    /// long, unless there is room for it on nodes that are there. Default 15m.
    #[serde(default = "default_wait")]
    #[schemars(extend("default" = "15m", "x-kubernetes-validations" = [{
        "rule": "duration(self) >= duration('1s') && duration(self) <= duration('24h')",
        "message": "import.scaleUp.wait: must be a duration from 1s to 24h, like 90s, 15m or 1h30m",
    }]))]
    pub wait: Lasting,
    /// What the nodes look like, in the order in which the autoscaler prefers them.
    #[schemars(extend(
        "x-kubernetes-list-type" = "map",
        "x-kubernetes-list-map-keys" = ["name"],
        "minItems" = 1,
        "maxItems" = 64
    ))]
    pub node_groups: Vec<LimitedNodeGroup>,
    /// Ask for the nodes by a ProvisioningRequest (`autoscaling.x-k8s.io/v1`), and make the pods once it is provisioned: all
    /// nodes come, or none. A burst is refused while the cluster does not serve that kind. Unset: the pods are made at once, and
    /// an autoscaler acts on pods that wait.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub provisioning_request: Option<ProvisioningClass>,
}

/// By which class of ProvisioningRequests nodes are asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ProvisioningClass {
    /// Its name. cluster-autoscaler has `best-effort-atomic-scale-up.autoscaling.x-k8s.io`, which adds nodes, and
    /// `check-capacity.autoscaling.x-k8s.io`, which adds none and keeps room on those that are there; clouds have others.
    #[schemars(length(min = 1, max = 253), extend("pattern" = CLASS_NAME))]
    pub provisioning_class_name: String,
    /// What the class has to know besides (`noRetry: "true"`), 255 characters each.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = 100, "additionalProperties" = {"type": "string", "maxLength": 255}))]
    pub parameters: BTreeMap<String, String>,
}

/// What the definition of ProvisioningRequests takes for the name of a class: a DNS subdomain (RFC 1123).
const CLASS_NAME: &str = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$";

/// A group of nodes, and how many of them bursts of one peer may bring.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct LimitedNodeGroup {
    /// What its nodes look like.
    #[serde(flatten)]
    pub group: NodeGroup,
    /// Nodes of this group that bursts of the peer may bring at a time. Unset: as many as `maxNodes`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max: Option<u32>,
    /// What bursts cost that bring nodes of this group. The peer is told the highest price of all groups, and reckons with that or
    /// with the price in its own ClusterPeer for this cluster, whichever is higher. Unset: what that ClusterPeer says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub price: Option<Price>,
}

const fn default_wait() -> Lasting {
    Lasting::of_seconds(15 * 60)
}

/// Nodes that a burst may bring, as it was admitted.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ScaleUp {
    /// How many of each group.
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["group"]))]
    pub nodes: Vec<NewNodes>,
    /// How long its pods may wait for them, from the moment when they are made, or when nodes are asked for.
    pub wait: Lasting,
    /// How nodes are asked for before the pods are made. Unset: they are not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub provisioning_request: Option<ProvisioningClass>,
}

/// Nodes of a group that a burst may bring.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NewNodes {
    /// Name of the group in `import.scaleUp.nodeGroups`.
    pub group: String,
    /// How many.
    pub count: u32,
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
