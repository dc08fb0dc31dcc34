//! Where bursts reach a root's lead broker: the node of its index-0 pod, and the NodePort of its lead Service.

use std::net::IpAddr;

use crate::bursting::addresses::{self, Range};
use crate::bursting::nodes::{NodeView, PodView};
use crate::contract::LeadAddress;

/// Why there is no lead address yet.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum NoLead {
    /// The Service has no port yet.
    #[error("the lead Service has no node port yet")]
    NoPort,
    /// The pod does not exist or was not scheduled.
    #[error("the lead broker's pod is on no node yet")]
    NoPod,
    /// Its node is not known.
    #[error("node {0} of the lead broker is not known")]
    NoNode(String),
    /// The node has no address another cluster could reach.
    #[error("node {node} has no address that other clusters can reach: {}", .reasons.join("; "))]
    NoAddress {
        /// The node.
        node: String,
        /// What is wrong with each address.
        reasons: Vec<String>,
    },
}

/// The lead broker's address: an ExternalIP of the node, else an InternalIP, with the NodePort. IPv4 comes first, since
/// that is what most providers can reach.
///
/// # Errors
/// What is missing. Until then a burst is offered without an address.
pub fn lead_address(
    index_zero: &[PodView],
    node_port: Option<u16>,
    node: impl Fn(&str) -> Option<NodeView>,
    own: &[Range],
) -> Result<LeadAddress, NoLead> {
    let port = node_port.ok_or(NoLead::NoPort)?;
    // While a pod is being replaced there are two: the one that stays counts.
    let scheduled = index_zero.iter().filter(|pod| !pod.finished && pod.node.is_some());
    let pod = scheduled.min_by_key(|pod| (pod.terminating, pod.name.clone())).ok_or(NoLead::NoPod)?;
    let name = pod.node.clone().unwrap_or_default();
    let view = node(&name).ok_or_else(|| NoLead::NoNode(name.clone()))?;
    let mut reasons = Vec::new();
    for kind in ["ExternalIP", "InternalIP"] {
        let of_kind = view.addresses.iter().filter(|(of, _)| of == kind);
        let mut usable: Vec<IpAddr> = Vec::new();
        for (_, text) in of_kind {
            match text.parse().map_err(|_| format!("{text} is no IP address")) {
                Ok(address) => match addresses::check(address, own) {
                    Ok(address) => usable.push(address),
                    Err(error) => reasons.push(error.to_string()),
                },
                Err(reason) => reasons.push(reason),
            }
        }
        if let Some(address) = usable.iter().min_by_key(|address| address.is_ipv6()) {
            return Ok(LeadAddress { address: address.to_string(), port });
        }
    }
    if reasons.is_empty() {
        reasons.push("it shows neither an ExternalIP nor an InternalIP".into());
    }
    Err(NoLead::NoAddress { node: name, reasons })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(name: &str, node: Option<&str>) -> PodView {
        PodView { name: name.into(), node: node.map(String::from), ..PodView::default() }
    }

    fn address(addresses: &[(&str, &str)]) -> Result<String, String> {
        let view = NodeView {
            addresses: addresses.iter().map(|(kind, text)| ((*kind).into(), (*text).into())).collect(),
            ..NodeView::default()
        };
        let own = ["10.244.0.0/16".parse().unwrap()];
        lead_address(&[pod("a-0", Some("n1"))], Some(30050), |_| Some(view.clone()), &own)
            .map(|lead| format!("{} {}", lead.address, lead.port))
            .map_err(|error| error.to_string())
    }

    #[test]
    fn an_external_address_comes_first_and_bad_ones_are_passed_over() {
        let table = [
            (&[("InternalIP", "192.0.2.1"), ("ExternalIP", "198.51.100.1")][..], Ok("198.51.100.1 30050")),
            (&[("Hostname", "n1"), ("InternalIP", "192.0.2.1")], Ok("192.0.2.1 30050")),
            (&[("InternalIP", "2001:db8::1"), ("InternalIP", "192.0.2.1")], Ok("192.0.2.1 30050")),
            (&[("InternalIP", "2001:db8::1")], Ok("2001:db8::1 30050")),
            (&[("ExternalIP", "127.0.0.1"), ("InternalIP", "192.0.2.1")], Ok("192.0.2.1 30050")),
            (
                &[("InternalIP", "169.254.1.1"), ("InternalIP", "10.244.0.3")],
                Err("node n1 has no address that other clusters can reach: 169.254.1.1 is a link-local address; \
                     10.244.0.3 is in this cluster's own pod or service range 10.244.0.0/16"),
            ),
            (
                &[("Hostname", "n1")],
                Err("node n1 has no address that other clusters can reach: it shows neither an ExternalIP nor an \
                     InternalIP"),
            ),
        ];
        for (addresses, expected) in table {
            assert_eq!(address(addresses).as_deref().map_err(String::as_str), expected, "{addresses:?}");
        }
    }

    #[test]
    fn a_replaced_pod_moves_the_lead() {
        let node = |name: &str| {
            let address = if name == "old" { "192.0.2.1" } else { "192.0.2.2" };
            Some(NodeView { addresses: vec![("InternalIP".into(), address.into())], ..NodeView::default() })
        };
        let leaving = PodView { terminating: true, ..pod("a-0-x", Some("old")) };
        let lead = |pods: &[PodView]| lead_address(pods, Some(1), node, &[]).map(|lead| lead.address);
        assert_eq!(lead(&[leaving.clone(), pod("a-0-y", Some("new"))]).unwrap(), "192.0.2.2");
        assert_eq!(lead(&[leaving.clone(), pod("a-0-y", None)]).unwrap(), "192.0.2.1", "until the new one has a node");
        let ended = PodView { finished: true, ..leaving };
        assert_eq!(lead(&[ended]), Err(NoLead::NoPod));
        assert_eq!(lead_address(&[pod("a-0", Some("n"))], None, node, &[]), Err(NoLead::NoPort));
        assert_eq!(lead_address(&[pod("a-0", Some("n"))], Some(1), |_| None, &[]), Err(NoLead::NoNode("n".into())));
    }
}
