//! The `hosts` array of `[bootstrap]`: every broker of the instance in rank order, the tree they form, and how a burst
//! reaches the lead.
//!
//! Source: flux-core `doc/man5/flux-config-bootstrap.rst`, `src/common/libfluxutil/conf_bootstrap.c`.

use super::{Hostlist, RankMap};

/// One entry of the hosts array: consecutive ranks that share their keys.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct HostsEntry {
    /// The hosts, written as one RFC 29 list.
    pub hosts: Hostlist,
    /// Host name of the overlay parent; without it, rank 0 is.
    pub parent: Option<String>,
    /// ZeroMQ endpoint at which children reach these hosts, instead of `default_connect`.
    pub connect: Option<String>,
}

impl HostsEntry {
    fn plain(hosts: Hostlist) -> Self {
        Self { hosts, parent: None, connect: None }
    }
}

/// The hosts table of an instance, in rank order, each host once.
///
/// It has at most two entries per slot, whatever their sizes: it must fit into a ConfigMap. Parents come from the rank map,
/// so both sides of a burst agree on the tree. `lead_connect` is `None` on the root; a burst gives the endpoint at which it
/// reaches rank 0, such as `tcp://lake-burst-0-lead:8050`.
pub(crate) fn hosts_table(map: &RankMap, lead_connect: Option<&str>) -> Vec<HostsEntry> {
    let mut table = Vec::with_capacity(2 * map.slots().len());
    for (slot, ranks) in map.slots_with_ranks() {
        let connect = lead_connect.filter(|_| ranks.start == 0);
        if slot.parent.is_none() && connect.is_none() {
            table.push(HostsEntry::plain(slot.hostlist_from(0)));
            continue;
        }
        let first = Hostlist::from_hosts([slot.host(0)]).expect("one host of a list is a list");
        let parent = slot.parent.as_deref().and_then(|name| map.slot(name)).map(|parent| parent.host(0));
        let gateway = parent.is_some().then(|| slot.host(0));
        table.push(HostsEntry { parent, connect: connect.map(str::to_owned), ..HostsEntry::plain(first) });
        if slot.max_size > 1 {
            table.push(HostsEntry { parent: gateway, ..HostsEntry::plain(slot.hostlist_from(1)) });
        }
    }
    table
}

#[cfg(test)]
mod tests;
