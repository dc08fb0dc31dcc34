//! The port to the nodes: whether they have room for a whole MiniCluster. Who watches nodes and pods stands behind it.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use k8s_openapi::api::core::v1::Toleration;
use tributary_api::minicluster::MiniClusterSpec;
use tributary_api::node_group::NodeGroup;
use tributary_render::nodes::Gang;

use super::requests::Requests;

/// The brokers of a MiniCluster.
pub(crate) fn gang_of(namespace: &str, name: &str, spec: &MiniClusterSpec) -> Gang {
    let all = Requests::requested(spec);
    let brokers = u32::try_from(all.brokers).unwrap_or(0);
    let services = (!spec.services.is_empty()).then_some(all.once);
    Gang { namespace: namespace.to_owned(), name: name.to_owned(), brokers, each: all.broker(), services }
}

/// Which nodes the pods of a MiniCluster may run on.
#[derive(Clone, Debug, PartialEq)]
pub struct NodeRules {
    /// `pod.nodeSelector`.
    pub selector: BTreeMap<String, String>,
    /// `pod.nodeAffinity`.
    pub affinity: BTreeMap<String, Vec<String>>,
    /// `pod.tolerations`.
    pub tolerations: Vec<Toleration>,
}

impl NodeRules {
    pub(crate) fn of(spec: &MiniClusterSpec) -> Self {
        let pod = &spec.pod;
        let (selector, affinity) = (pod.node_selector.clone(), pod.node_affinity.clone());
        Self { selector, affinity, tolerations: pod.tolerations.clone() }
    }
}

/// How many brokers of a gang the nodes have no room for, beside the pod of its services and those that are coming.
pub(crate) type Lacking = dyn Fn(&NodeRules, &Gang, &[Gang]) -> u32 + Send + Sync;

/// Why the nodes that are there, and one more of each of these groups, could not hold a gang whatever else on them ends; `None`:
/// they could.
pub(crate) type Short = dyn Fn(&NodeRules, &Gang, &[NodeGroup]) -> Option<String> + Send + Sync;

/// What the nodes have room for.
#[derive(Clone)]
pub struct Nodes {
    /// Now.
    pub lacking: Arc<Lacking>,
    /// Ever, unless there are others.
    pub short: Arc<Short>,
}

impl fmt::Debug for Nodes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Nodes").finish_non_exhaustive()
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(crate) fn without_end() -> Nodes {
        Nodes { lacking: Arc::new(|_, _, _| 0), short: Arc::new(|_, _, _| None) }
    }
}
