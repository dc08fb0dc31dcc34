//! What a peer is told of this cluster's capacity: coarse, and no promise. Pure.

use std::collections::BTreeMap;
use std::slice;

use k8s_openapi::api::core::v1::Toleration;
use tributary_api::peer::ImportPolicy;
use tributary_contract::{Capacity, NamespaceRoom, PeerName};
use tributary_render::nodes::Amounts;

use super::admission::{SYSTEM_NAMESPACES, limit, target_namespace};
use super::ledger::Ledger;
use super::scale_up;
use crate::nodes::{NodeChoice, NodeView};

/// The capacity that `peer` is told: what is `free` on the nodes where its bursts may run, what its import policy leaves, and what
/// FluxSetups leave (`left`, by namespaces of this cluster).
pub(crate) fn capacity(
    peer: &PeerName,
    import: Option<&ImportPolicy>,
    free: &BTreeMap<String, Amounts>,
    ledger: &Ledger,
    left: Vec<NamespaceRoom>,
) -> Capacity {
    let cores = |milli: i64| u32::try_from(milli.max(0) / 1000).unwrap_or(u32::MAX);
    let held = ledger.held_by(peer, None);
    let mut rooms: Vec<NamespaceRoom> = (import.into_iter())
        .flat_map(|import| left.iter().flat_map(|room| as_they_name_it(peer, import, room)))
        .collect();
    rooms.sort();
    // Without an import nothing may be placed at all.
    let left = |limit: Option<u32>, held: u64| match import {
        None => Some(0),
        Some(_) => limit.map(|limit| limit.saturating_sub(u32::try_from(held).unwrap_or(u32::MAX))),
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
        rooms,
        whole: true,
        possible: import.and_then(|import| scale_up::possible(import, &ledger.nodes_of(peer, None))),
    }
}

/// Where bursts of a peer may run, as far as its policy says: where a template may choose nodes, it may tolerate any taint.
pub(super) fn open(import: &ImportPolicy) -> impl Fn(&NodeView) -> bool {
    let all = Toleration { operator: Some("Exists".to_owned()), ..Toleration::default() };
    let all = import.allow_scheduling.then_some(all);
    move |node| {
        let tolerations = all.as_ref().map_or(import.tolerations.as_slice(), slice::from_ref);
        NodeChoice { selector: &import.node_selector, affinity: const { &BTreeMap::new() }, tolerations }.takes(node)
    }
}

/// The same room under the names of the peer's namespaces whose bursts go there. Other namespaces of this cluster are
/// nobody's business.
fn as_they_name_it(peer: &PeerName, import: &ImportPolicy, room: &NamespaceRoom) -> Vec<NamespaceRoom> {
    let goes_here = |theirs: &str| target_namespace(peer, theirs, Some(import)) == room.namespace;
    let mut theirs: Vec<String> =
        import.namespaces.iter().filter(|name| *name != "*" && goes_here(name)).cloned().collect();
    if import.namespaces.iter().any(|name| name == "*") {
        let unnamed = |name: &String| name == "*" || !import.namespaces.contains(name);
        // Admission lets nobody into those, unless they are named.
        let closed = room.namespace.starts_with(SYSTEM_NAMESPACES);
        theirs.extend(original(peer, import, &room.namespace).filter(|name| !closed && unnamed(name)));
    }
    theirs.into_iter().map(|namespace| NamespaceRoom { namespace, ..room.clone() }).collect()
}

/// Whose bursts go to `here` where any namespace is allowed; `*`: all.
fn original(peer: &PeerName, import: &ImportPolicy, here: &str) -> Option<String> {
    const NAMESPACE: &str = "{namespace}";
    let template = import.target_namespace.as_deref().filter(|text| !text.is_empty()).unwrap_or(NAMESPACE);
    let template = template.replace("{peer}", peer.as_str());
    let Some((before, after)) = template.split_once(NAMESPACE) else { return (template == here).then(|| "*".into()) };
    let theirs = here.strip_prefix(before)?.strip_suffix(after).filter(|name| !name.is_empty())?;
    (target_namespace(peer, theirs, Some(import)) == here).then(|| theirs.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nodes::{self, Brokers, PodView, Taint};

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
        let free = |pods: &[PodView]| nodes::free(&nodes, pods, &Brokers::new(), &|node| node.taints.is_empty());
        let seen = capacity(&"east".into(), Some(&import), &free(&[pod]), &Ledger::default(), Vec::new());
        assert_eq!((seen.nodes, seen.free_cores, seen.largest_free_node_cores), (2, 9, 5));
        assert_eq!((seen.free_memory_mib, seen.free_gpus), (2048, 2));
        assert_eq!((seen.free_brokers, seen.free_bursts), (Some(5), None));
        let closed = capacity(&"east".into(), None, &free(&[]), &Ledger::default(), Vec::new());
        assert_eq!((closed.free_brokers, closed.free_bursts), (Some(0), Some(0)));
    }

    /// The danger: GPU nodes are tainted, so nobody is told of their GPUs, and no burst that tolerates the taint ever asks.
    #[test]
    fn tainted_nodes_are_room_for_those_who_may_tolerate_any_taint() {
        let of = |gpus, taints: &[&str]| NodeView {
            schedulable: true,
            labels: [("pool".to_owned(), "hpc".to_owned())].into(),
            taints: taints.iter().map(|key| Taint { key: (*key).into(), ..Taint::default() }).collect(),
            allocatable: Amounts { milli_cores: 4000, memory: 1 << 30, gpus },
            ..NodeView::default()
        };
        let nodes: BTreeMap<_, _> = [("plain".to_owned(), of(0, &[])), ("gpu".to_owned(), of(8, &["gpu"]))].into();
        let gpus = |import: &ImportPolicy| {
            let free = nodes::free(&nodes, &[] as &[PodView], &Brokers::new(), &open(import));
            let seen = capacity(&"east".into(), Some(import), &free, &Ledger::default(), Vec::new());
            (seen.nodes, seen.free_gpus)
        };
        let selected = |pool: &str| [("pool".to_owned(), pool.to_owned())].into();
        let any = ImportPolicy { allow_scheduling: true, ..ImportPolicy::default() };
        assert_eq!(gpus(&ImportPolicy::default()), (1, 0));
        assert_eq!(gpus(&any), (2, 8));
        assert_eq!(gpus(&ImportPolicy { node_selector: selected("hpc"), ..any.clone() }), (2, 8));
        assert_eq!(gpus(&ImportPolicy { node_selector: selected("other"), ..any }), (0, 0), "what is imposed holds");
    }

    #[test]
    fn rooms_are_told_by_the_names_of_those_who_ask() {
        let told = |namespaces: &[&str], target: Option<&str>| {
            let import = ImportPolicy {
                namespaces: namespaces.iter().map(|name| (*name).to_owned()).collect(),
                target_namespace: target.map(str::to_owned),
                ..ImportPolicy::default()
            };
            let left = ["hpc", "burst-east-ml", "kube-hpc"].map(|name| NamespaceRoom {
                namespace: name.into(),
                brokers: Some(4),
                ..NamespaceRoom::default()
            });
            let seen = capacity(&"east".into(), Some(&import), &BTreeMap::new(), &Ledger::default(), left.to_vec());
            seen.rooms.into_iter().map(|room| room.namespace).collect::<Vec<_>>()
        };
        assert_eq!(told(&["hpc", "ml"], None), ["hpc"], "the others are none of theirs");
        assert_eq!(told(&["*"], None), ["burst-east-ml", "hpc"]);
        assert_eq!(told(&["*"], Some("burst-{peer}-{namespace}")), ["ml"]);
        assert_eq!(told(&["ml", "b"], Some("burst-{peer}-{namespace}")), ["ml"]);
        assert_eq!(told(&["*", "b"], Some("hpc")), ["*", "b"], "all go to one");
        assert_eq!(told(&["a", "b"], Some("hpc")), ["a", "b"]);
        assert_eq!(told(&[], None), [""; 0]);
        assert_eq!(told(&["*"], Some("kube-{namespace}")), [""; 0], "nobody is let in there");
    }
}
