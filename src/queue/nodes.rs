//! The port to the nodes: whether they have room for a whole MiniCluster. Who watches nodes and pods stands behind it.

use std::fmt;
use std::sync::Arc;

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

/// How many brokers of a gang the nodes have no room for, beside the pod of its services and those that are coming.
pub(crate) type Lacking = dyn Fn(&MiniClusterSpec, &Gang, &[Gang]) -> u32 + Send + Sync;

/// Why the nodes that are there, and one more of each of these groups, could not hold a gang whatever else on them ends; `None`:
/// they could.
pub(crate) type Short = dyn Fn(&MiniClusterSpec, &Gang, &[NodeGroup]) -> Option<String> + Send + Sync;

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
