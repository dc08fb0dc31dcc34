use std::collections::BTreeMap;

use proptest::prelude::*;

use super::super::{Slot, Topology};
use super::*;

/// What flux-core makes of the table: hosts in rank order with their keys; a repeated host keeps its first rank and keys.
fn boot(table: &[HostsEntry]) -> Vec<(String, Option<String>, Option<String>)> {
    let mut ranks = BTreeMap::new();
    let mut hosts: Vec<(String, Option<String>, Option<String>)> = Vec::new();
    for entry in table {
        for host in entry.hosts.iter() {
            let rank = *ranks.entry(host.clone()).or_insert_with(|| {
                hosts.push((host.clone(), None, None));
                hosts.len() - 1
            });
            let (_, parent, connect) = &mut hosts[rank];
            *parent = parent.take().or_else(|| entry.parent.clone());
            *connect = connect.take().or_else(|| entry.connect.clone());
        }
    }
    hosts
}

/// Rank of every rank's parent in the `custom` topology; rank 0 has none.
fn parents(table: &[HostsEntry]) -> Vec<Option<usize>> {
    let hosts = boot(table);
    let rank_of = |name: &str| hosts.iter().position(|(host, ..)| host == name).unwrap();
    hosts
        .iter()
        .enumerate()
        .map(|(rank, (_, parent, _))| match parent {
            Some(parent) => Some(rank_of(parent)),
            None => (rank > 0).then_some(0),
        })
        .collect()
}

fn map(topology: &Topology) -> RankMap {
    let parent = || topology.parent_of_bursts("a");
    RankMap::new(vec![Slot::root("a", 2), Slot::burst("b", 3, parent()), Slot::burst("c", 1, parent())]).unwrap()
}

#[test]
fn one_link_per_burst_with_gateways() {
    let table = hosts_table(&map(&Topology::Gateway), None);
    assert_eq!(parents(&table), [None, Some(0), Some(0), Some(2), Some(2), Some(0)]);
}

#[test]
fn flat_means_everyone_is_below_rank_0() {
    let table = hosts_table(&map(&Topology::Flat), None);
    assert_eq!(table.len(), 3);
    assert_eq!(parents(&table), [None, Some(0), Some(0), Some(0), Some(0), Some(0)]);
}

#[test]
fn a_root_of_one_reached_by_a_burst() {
    let map = RankMap::new(vec![Slot::root("a", 1), Slot::burst("b", 2, None)]).unwrap();
    let table = hosts_table(&map, Some("tcp://b-lead:8050"));
    assert_eq!(table.len(), 2);
    assert_eq!(table[0].connect.as_deref(), Some("tcp://b-lead:8050"));
    assert_eq!(table[0].parent, None);
}

proptest! {
    #[test]
    fn both_sides_boot_the_same_tree(map in super::super::rank_map::tests::any_rank_map()) {
        let root = hosts_table(&map, None);
        let burst = hosts_table(&map, Some("tcp://lead:1"));
        prop_assert!(burst.len() <= 2 * map.slots().len());
        prop_assert!(boot(&root).into_iter().map(|(host, ..)| host).eq(map.hosts()));
        prop_assert!(boot(&burst).into_iter().map(|(host, ..)| host).eq(map.hosts()));
        prop_assert_eq!(parents(&root), parents(&burst));
        prop_assert!(boot(&root).iter().all(|(_, _, connect)| connect.is_none()));
        let connected: Vec<bool> = boot(&burst).iter().map(|(_, _, connect)| connect.is_some()).collect();
        prop_assert!(connected[0] && !connected[1..].contains(&true));
    }

    #[test]
    fn only_the_first_host_of_a_slot_with_a_parent_has_it_outside(map in super::super::rank_map::tests::any_rank_map()) {
        let parents = parents(&hosts_table(&map, None));
        for (slot, ranks) in map.slots_with_ranks() {
            let first = ranks.start as usize;
            for rank in ranks {
                let rank = rank as usize;
                let expected = match &slot.parent {
                    _ if rank == 0 => None,
                    None => Some(0),
                    Some(parent) if rank == first => Some(map.ranks(parent).unwrap().start as usize),
                    Some(_) => Some(first),
                };
                prop_assert_eq!(parents[rank], expected);
                // Parents are always earlier: the tree has no cycle.
                prop_assert!(parents[rank].is_none_or(|parent| parent < rank));
            }
        }
    }
}
