//! What a peer is told of this cluster's capacity: coarse, and no promise. Pure.

use std::collections::BTreeMap;

use super::admission::limit;
use super::ledger::Ledger;
use crate::api::peer::ImportPolicy;
use crate::bursting::nodes::{self, NodeView, PodView};
use crate::contract::{Capacity, PeerName};

/// The capacity that `peer` is told: what is free on nodes without taints, and what its import policy leaves.
pub fn capacity(
    peer: &PeerName,
    import: Option<&ImportPolicy>,
    nodes: &BTreeMap<String, NodeView>,
    pods: &[PodView],
    ledger: &Ledger,
) -> Capacity {
    let free = nodes::free(nodes, pods, &ledger.brokers(), &|node| node.taints.is_empty());
    let cores = |milli: i64| u32::try_from(milli.max(0) / 1000).unwrap_or(u32::MAX);
    let held = ledger.held_by(peer, None);
    // Without an import nothing may be placed at all.
    let left = |limit: Option<u32>, held: u32| match import {
        None => Some(0),
        Some(_) => limit.map(|limit| limit.saturating_sub(held)),
    };
    Capacity {
        nodes: u32::try_from(free.len()).unwrap_or(u32::MAX),
        free_cores: free.values().fold(0, |sum: u32, node| sum.saturating_add(cores(node.milli_cores))),
        free_memory_mib: free
            .values()
            .fold(0, |sum: u64, node| sum.saturating_add(u64::try_from(node.memory.max(0)).unwrap_or(0) / (1 << 20))),
        free_gpus: free
            .values()
            .fold(0, |sum: u32, node| sum.saturating_add(u32::try_from(node.gpus.max(0)).unwrap_or(u32::MAX))),
        largest_free_node_cores: free.values().map(|node| cores(node.milli_cores)).max().unwrap_or(0),
        free_brokers: left(import.and_then(|import| limit(import.max_brokers)), held.brokers),
        free_bursts: left(import.and_then(|import| limit(import.max_bursts)), held.bursts),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bursting::nodes::Amounts;

    #[test]
    fn what_is_requested_and_what_policy_forbids_is_not_free() {
        let node = |milli_cores| NodeView {
            schedulable: true,
            allocatable: Amounts { milli_cores, memory: 1 << 30, gpus: 1 },
            ..NodeView::default()
        };
        let nodes: BTreeMap<_, _> = [("a".to_owned(), node(8000)), ("b".to_owned(), node(4000))].into();
        let pod = PodView {
            node: Some("a".into()),
            requests: Amounts { milli_cores: 2500, memory: 0, gpus: 0 },
            ..PodView::default()
        };
        let import = ImportPolicy { max_brokers: Some(5), ..ImportPolicy::default() };
        let seen = capacity(&"east".into(), Some(&import), &nodes, &[pod], &Ledger::default());
        assert_eq!((seen.nodes, seen.free_cores, seen.largest_free_node_cores), (2, 9, 5));
        assert_eq!((seen.free_memory_mib, seen.free_gpus), (2048, 2));
        assert_eq!((seen.free_brokers, seen.free_bursts), (Some(5), None));
        let closed = capacity(&"east".into(), None, &nodes, &[], &Ledger::default());
        assert_eq!((closed.free_brokers, closed.free_bursts), (Some(0), Some(0)));
    }
}
