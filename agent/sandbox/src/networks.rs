//! Address ranges: different ones for every cluster of a sandbox, so that an address tells whose it is.

use std::net::Ipv4Addr;

use anyhow::Context;

/// Nodes of one cluster; each has a /25 of its pods' /16.
pub(crate) const MAX_NODES: u32 = 512;

/// The ranges of the cluster with this index, below 64.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Networks {
    index: u8,
}

impl Networks {
    pub(crate) fn of(index: usize) -> anyhow::Result<Self> {
        let index = u8::try_from(index).ok().filter(|index| *index < 64);
        Ok(Self { index: index.context("a sandbox has address ranges for 64 clusters")? })
    }

    /// Service addresses, 10.96.0.0/16 to 10.159.0.0/16.
    pub(crate) fn services(self) -> String {
        format!("10.{}.0.0/16", 96 + self.index)
    }

    /// The address of the `kubernetes` Service.
    pub(crate) fn api_service(self) -> Ipv4Addr {
        Ipv4Addr::new(10, 96 + self.index, 0, 1)
    }

    /// Pod addresses, 10.160.0.0/16 to 10.223.0.0/16.
    pub(crate) fn pods(self) -> String {
        format!("10.{}.0.0/16", 160 + self.index)
    }

    /// The part of [`Networks::pods`] that belongs to a node.
    pub(crate) fn pods_of(self, node: u32) -> anyhow::Result<String> {
        anyhow::ensure!(node < MAX_NODES, "a sandbox cluster has pod addresses for {MAX_NODES} nodes");
        let start = u32::from(Ipv4Addr::new(10, 160 + self.index, 0, 0)) + node * 128;
        Ok(format!("{}/25", Ipv4Addr::from(start)))
    }

    /// The address of a node that was given none, 10.1.0.1 and on to 10.64.0.1 and on.
    pub(crate) fn node(self, node: u32) -> Ipv4Addr {
        offset(Ipv4Addr::new(10, 1 + self.index, 0, 1), node)
    }
}

/// The address `by` places after `first`.
pub(crate) fn offset(first: Ipv4Addr, by: u32) -> Ipv4Addr {
    Ipv4Addr::from(u32::from(first).saturating_add(by))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_of_the_first_and_the_last_cluster() {
        let show = |index| {
            let networks = Networks::of(index).unwrap();
            let pods = networks.pods_of(3).unwrap();
            (networks.services(), networks.pods(), pods, networks.node(0).to_string(), networks.node(300).to_string())
        };
        let text = |texts: [&str; 5]| {
            let [services, pods, of_node, first, far] = texts.map(str::to_owned);
            (services, pods, of_node, first, far)
        };
        assert_eq!(show(0), text(["10.96.0.0/16", "10.160.0.0/16", "10.160.1.128/25", "10.1.0.1", "10.1.1.45"]));
        assert_eq!(show(63), text(["10.159.0.0/16", "10.223.0.0/16", "10.223.1.128/25", "10.64.0.1", "10.64.1.45"]));
        assert!(Networks::of(64).is_err());
        assert!(Networks::of(0).unwrap().pods_of(MAX_NODES).is_err());
        assert_eq!(Networks::of(0).unwrap().pods_of(MAX_NODES - 1).unwrap(), "10.160.255.128/25");
    }
}
