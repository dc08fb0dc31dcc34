//! What of this cluster no lead of a peer's can be: its nodes, pods, Services and API servers, as its watches show them.

pub(crate) mod watched;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::IpAddr;

use tributary_cluster::ObjectKey;

use super::addresses::{self, Range, Unusable};

/// Whose an address is here.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Whose {
    ApiServer,
    Node,
    ServiceRange(Range),
    /// In the range of a node's pods.
    PodRange(Range),
    /// A Service's: of a load balancer, or an external one.
    Service,
    Pod,
}

impl fmt::Display for Whose {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ApiServer => f.write_str("an address of this cluster's API server"),
            Self::Node => f.write_str("an address of a node of this cluster"),
            Self::ServiceRange(range) => write!(f, "in this cluster's own Service range {range}"),
            Self::PodRange(range) => write!(f, "in this cluster's own pod range {range}"),
            Self::Service => f.write_str("an address of a Service of this cluster"),
            Self::Pod => f.write_str("an address of a pod of this cluster"),
        }
    }
}

/// What objects of one kind have, each with the objects that have it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Held<T>(BTreeMap<T, BTreeSet<ObjectKey>>);

impl<T> Default for Held<T> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<T: Ord> Held<T> {
    /// An object has `after` from now on, and no longer `before`.
    pub(crate) fn change(&mut self, object: &ObjectKey, before: Vec<T>, after: Vec<T>) {
        for one in before {
            if let Some(holders) = self.0.get_mut(&one) {
                holders.remove(object);
                if holders.is_empty() {
                    self.0.remove(&one);
                }
            }
        }
        for one in after {
            self.0.entry(one).or_default().insert(object.clone());
        }
    }

    fn has(&self, one: &T) -> bool {
        self.0.contains_key(one)
    }
}

/// All of it.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Ours {
    /// Addresses of nodes.
    pub nodes: Held<IpAddr>,
    /// Addresses of pods; those in the host's network have their node's.
    pub pods: Held<IpAddr>,
    /// `spec.podCIDRs` of nodes: some network plugins leave it empty.
    pub pod_ranges: Held<Range>,
    /// Of ServiceCIDRs: the range of all cluster IPs.
    pub service_ranges: Held<Range>,
    /// Addresses of Services that are in no such range.
    pub services: Held<IpAddr>,
    /// Endpoints of the Service `kubernetes`.
    pub api_servers: Held<IpAddr>,
    /// Where this agent reaches the API server.
    pub api_host: BTreeSet<IpAddr>,
}

impl Ours {
    /// Whose an address is here, however it is written; `None`: nobody's.
    pub(crate) fn whose(&self, address: IpAddr) -> Option<Whose> {
        let address = addresses::meant(address);
        let range_of = |ranges: &Held<Range>| ranges.0.keys().find(|range| range.contains(address)).copied();
        if self.api_servers.has(&address) || self.api_host.contains(&address) {
            return Some(Whose::ApiServer);
        }
        if self.nodes.has(&address) {
            return Some(Whose::Node);
        }
        let range = range_of(&self.service_ranges).map(Whose::ServiceRange);
        let range = range.or_else(|| range_of(&self.pod_ranges).map(Whose::PodRange));
        let service = || self.services.has(&address).then_some(Whose::Service);
        let pod = || self.pods.has(&address).then_some(Whose::Pod);
        range.or_else(service).or_else(pod)
    }

    /// Checks that a lead of a peer's can have an address: nothing here has it, and where its owner named ranges
    /// (`import.leadRanges`), it is in one of them. A text that is no range has no address in it.
    ///
    /// # Errors
    /// What the address is.
    pub(crate) fn check_of_peer(&self, address: IpAddr, lead_ranges: &[String]) -> Result<IpAddr, Unusable> {
        let checked = addresses::check(address)?;
        if let Some(whose) = self.whose(checked) {
            return Err(Unusable { address: checked, what: whose.to_string() });
        }
        let is_in = |range: &Range| range.contains(checked) || range.contains(addresses::meant(checked));
        let named = lead_ranges.iter().any(|range| range.parse::<Range>().is_ok_and(|range| is_in(&range)));
        if !lead_ranges.is_empty() && !named {
            return Err(Unusable { address: checked, what: "in none of import.leadRanges".to_owned() });
        }
        Ok(checked)
    }

    /// Checks that other clusters can be sent to an address for a lead of ours: it may be a node's or a load balancer's,
    /// and is not one that means something inside a cluster alone.
    ///
    /// # Errors
    /// What the address is.
    pub(crate) fn check_of_ours(&self, address: IpAddr) -> Result<IpAddr, Unusable> {
        let checked = addresses::check(address)?;
        match self.whose(checked) {
            Some(inside @ (Whose::ServiceRange(_) | Whose::PodRange(_) | Whose::Pod)) => {
                Err(Unusable { address: checked, what: inside.to_string() })
            }
            _ => Ok(checked),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    /// A cluster whose network plugin leaves podCIDRs empty, but for one node.
    fn cluster() -> Ours {
        let mut ours = Ours::default();
        let key = |name: &str| ObjectKey::cluster_scoped(name);
        ours.nodes.change(&key("n"), Vec::new(), vec![ip("192.0.2.5"), ip("2001:db8::5")]);
        ours.pods.change(&key("p"), Vec::new(), vec![ip("10.20.7.7"), ip("192.0.2.5")]);
        ours.pod_ranges.change(&key("n"), Vec::new(), vec!["10.244.0.0/16".parse().unwrap()]);
        let services = ["10.96.0.0/12", "fd00:10:96::/112"].map(|range| range.parse().unwrap());
        ours.service_ranges.change(&key("kubernetes"), Vec::new(), services.into());
        ours.services.change(&key("web"), Vec::new(), vec![ip("198.51.100.4")]);
        ours.api_servers.change(&key("kubernetes"), Vec::new(), vec![ip("203.0.113.1")]);
        ours.api_host = [ip("203.0.113.2")].into();
        ours
    }

    #[test]
    fn nothing_of_our_own_is_a_peers_lead_however_it_is_written() {
        let table = [
            ("192.0.2.5", "an address of a node of this cluster"),
            ("::ffff:192.0.2.5", "an address of a node of this cluster"),
            ("64:ff9b::192.0.2.5", "an address of a node of this cluster"),
            ("2001:db8::5", "an address of a node of this cluster"),
            ("10.20.7.7", "an address of a pod of this cluster"),
            ("10.244.200.1", "in this cluster's own pod range 10.244.0.0/16"),
            ("10.96.0.1", "in this cluster's own Service range 10.96.0.0/12"),
            ("64:ff9b::10.111.0.9", "in this cluster's own Service range 10.96.0.0/12"),
            ("fd00:10:96::1", "in this cluster's own Service range fd00:10:96::/112"),
            ("198.51.100.4", "an address of a Service of this cluster"),
            ("203.0.113.1", "an address of this cluster's API server"),
            ("203.0.113.2", "an address of this cluster's API server"),
            ("169.254.169.254", "a link-local address"),
        ];
        for (text, what) in table {
            let refused = cluster().check_of_peer(ip(text), &[]).unwrap_err();
            assert_eq!(refused.what, what, "{text}");
        }
        for text in ["192.0.2.6", "10.20.7.8", "203.0.113.3", "2001:db8::6"] {
            assert_eq!(cluster().check_of_peer(ip(text), &[]), Ok(ip(text)));
        }
    }

    #[test]
    fn where_ranges_are_named_a_lead_is_in_one_of_them_and_still_not_our_own() {
        let ranges = ["192.0.2.0/24", "2001:db8:1::/48"].map(str::to_owned);
        let check = |text: &str| cluster().check_of_peer(ip(text), &ranges).map_err(|refused| refused.what);
        let outside = || Err("in none of import.leadRanges".to_owned());
        assert_eq!(check("192.0.2.6"), Ok(ip("192.0.2.6")));
        assert_eq!(check("::ffff:192.0.2.6"), Ok(ip("192.0.2.6")));
        assert_eq!(check("64:ff9b::192.0.2.6"), Ok(ip("64:ff9b::192.0.2.6")));
        assert_eq!(check("2001:db8:1::9"), Ok(ip("2001:db8:1::9")));
        assert_eq!(check("2001:db8::6"), outside());
        assert_eq!(check("198.51.100.9"), outside());
        assert_eq!(check("192.0.2.5"), Err("an address of a node of this cluster".into()));
        // Nobody gets more by a slip of the pen.
        assert!(cluster().check_of_peer(ip("192.0.2.6"), &["192.0.2.0".to_owned()]).is_err());
    }

    #[test]
    fn other_clusters_are_sent_to_nodes_and_load_balancers_and_nowhere_inside() {
        for text in ["192.0.2.5", "198.51.100.4", "203.0.113.1", "192.0.2.6"] {
            assert_eq!(cluster().check_of_ours(ip(text)), Ok(ip(text)), "{text}");
        }
        for text in ["10.20.7.7", "10.244.0.1", "10.96.0.1", "127.0.0.1", "169.254.169.254"] {
            assert!(cluster().check_of_ours(ip(text)).is_err(), "{text}");
        }
    }

    #[test]
    fn what_two_objects_have_stays_ours_until_both_are_gone() {
        let mut held = Held::default();
        let [one, other] = ["one", "other"].map(ObjectKey::cluster_scoped);
        held.change(&one, Vec::new(), vec![7]);
        held.change(&other, Vec::new(), vec![7]);
        held.change(&one, Vec::new(), vec![7]);
        held.change(&one, vec![7], vec![8]);
        assert!(held.has(&7) && held.has(&8));
        held.change(&other, vec![7], Vec::new());
        assert!(!held.has(&7) && held.has(&8));
    }
}
