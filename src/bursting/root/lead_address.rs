//! Where bursts reach a root's lead broker: the node of its index-0 pod and the NodePort of its lead Service, the address of
//! a load balancer, or what the user wrote.

use std::net::IpAddr;

use tributary_api::minicluster::{BurstNetwork, BurstNetworkType, DEFAULT_BROKER_PORT, LeadStatus, MiniCluster};
use tributary_contract::LeadAddress;

use crate::nodes::{NodeView, PodView};
use crate::ours::Ours;

/// Kinds of addresses a node has whose texts are host names.
const NAMES: [&str; 3] = ["Hostname", "ExternalDNS", "InternalDNS"];

/// What is used unless the user says otherwise: a name of a node seldom means anything to another cluster.
const PREFERRED: [&str; 2] = ["ExternalIP", "InternalIP"];

/// Why there is no lead address yet.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub(crate) enum NoLead {
    /// The Service has no port yet.
    #[error(
        "the lead Service has no node port yet; if that stays, condition ServicesReady of the MiniCluster says why"
    )]
    NoPort,
    /// The pod does not exist or was not scheduled.
    #[error("the lead broker's pod is on no node yet")]
    NoPod,
    /// Its node is not known.
    #[error("the lead broker's pod is on node {0}, which the agent does not see")]
    NoNode(String),
    /// The load balancer has no address.
    #[error(
        "the lead Service has no address of a load balancer yet: something in this cluster must provide load balancers; if there \
         is no such Service, condition ServicesReady of the MiniCluster says why"
    )]
    NoLoadBalancer,
    /// The node, or the load balancer, has no address another cluster could reach.
    #[error("{of} has no address that other clusters can reach: {}", .reasons.join("; "))]
    NoAddress {
        /// What has none.
        of: String,
        /// What is wrong with each address.
        reasons: Vec<String>,
    },
    /// What the user wrote is no address another cluster could reach.
    #[error("flux.bursting.network.address cannot be used: {0}")]
    Written(String),
}

impl NoLead {
    /// One CamelCase word for a condition.
    pub(crate) const fn reason(&self) -> &'static str {
        match self {
            Self::NoPort => "WaitingForNodePort",
            Self::NoPod => "WaitingForPod",
            Self::NoNode(_) => "NodeUnknown",
            Self::NoLoadBalancer => "WaitingForLoadBalancer",
            Self::NoAddress { .. } => "NoUsableAddress",
            Self::Written(_) => "WrongAddress",
        }
    }
}

/// What is known of a root's network.
pub(crate) struct LeadView<'a> {
    /// What the user wishes.
    pub network: &'a BurstNetwork,
    /// What the MiniCluster's status says of the lead Service.
    pub status: &'a LeadStatus,
    /// Pods of index 0.
    pub index_zero: &'a [PodView],
    /// The addresses of this cluster.
    pub ours: &'a Ours,
}

/// The lead broker's address. Of a node, an ExternalIP, else an InternalIP, and IPv4 before IPv6 as far as the broker speaks
/// them, unless the user prefers something else.
///
/// # Errors
/// What is missing. Until then a burst is offered without an address.
pub(crate) fn lead_address(
    view: &LeadView<'_>,
    node: impl Fn(&str) -> Option<NodeView>,
) -> Result<LeadAddress, NoLead> {
    let LeadView { network, status, index_zero, ours } = *view;
    let balanced = network.kind == BurstNetworkType::LoadBalancer;
    let written = network.port.filter(|_| network.address.is_some()).and_then(|port| u16::try_from(port).ok());
    let port = match status.node_port.and_then(|port| u16::try_from(port).ok()) {
        _ if written.is_some() => written,
        _ if balanced => u16::try_from(DEFAULT_BROKER_PORT).ok(),
        node_port => node_port,
    };
    let port = port.ok_or(NoLead::NoPort)?;
    if let Some(address) = &network.address {
        // A name is resolved and judged where it is used.
        let address = match address.parse() {
            Ok(ip) => usable(ip, ours).map_err(NoLead::Written)?,
            Err(_) => address.clone(),
        };
        return Ok(LeadAddress { address, port });
    }
    if balanced {
        let text = status.address.as_deref().ok_or(NoLead::NoLoadBalancer)?;
        let address = match text.parse() {
            Ok(ip) => {
                usable(ip, ours).map_err(|reason| no_address("the load balancer of the lead Service", vec![reason]))?
            }
            Err(_) => text.to_owned(),
        };
        return Ok(LeadAddress { address, port });
    }
    let lead = lead_pod(index_zero).ok_or(NoLead::NoPod)?;
    let name = lead.node.clone().ok_or(NoLead::NoPod)?;
    let view = node(&name).ok_or_else(|| NoLead::NoNode(name.clone()))?;
    of_node(network, lead, &view, ours)
        .map(|address| LeadAddress { address, port })
        .map_err(|reasons| no_address(&format!("node {name}"), reasons))
}

/// Whether a pod is one of rank 0 in the running instance of `root`. Labels alone say nothing: who may make pods writes them.
pub(crate) fn is_of_lead(root: &MiniCluster, pod: &PodView) -> bool {
    let incarnation = root.status.as_ref().and_then(|status| status.incarnation.as_ref());
    root.metadata.namespace.as_ref() == Some(&pod.namespace)
        && pod.job == root.metadata.name
        && pod.index == Some(0)
        && incarnation.is_some()
        && pod.owner.as_ref() == incarnation
}

/// The pod of rank 0. While a pod is being replaced there are two: the one that stays counts, once it is on a node.
pub(crate) fn lead_pod(index_zero: &[PodView]) -> Option<&PodView> {
    let scheduled = index_zero.iter().filter(|pod| !pod.finished && pod.node.is_some());
    scheduled.min_by_key(|pod| (pod.terminating, pod.name.clone()))
}

/// The families that the broker of a pod speaks, as its `broker.toml` is made: IPv4 alone if that comes first, else those of
/// the pod. A pod without an address may get either.
fn spoken(lead: &PodView) -> Vec<&'static str> {
    match lead.addresses.as_slice() {
        [first, ..] if first.is_ipv4() => vec!["IPv4"],
        [_, rest @ ..] if !rest.iter().any(IpAddr::is_ipv4) => vec!["IPv6"],
        _ => vec!["IPv4", "IPv6"],
    }
}

/// The best address of a node, or what is wrong with each.
fn of_node(network: &BurstNetwork, lead: &PodView, node: &NodeView, ours: &Ours) -> Result<String, Vec<String>> {
    let written: Vec<&str> = network.preferred_address_types.iter().map(String::as_str).collect();
    let kinds = if written.is_empty() { PREFERRED.to_vec() } else { written };
    let families: Vec<&str> = network.ip_families.iter().map(String::as_str).collect();
    let (families, left_out) = match families.is_empty() {
        true => (spoken(lead), "which the lead broker does not speak"),
        false => (families, "which is not asked for"),
    };
    let mut reasons = Vec::new();
    for kind in &kinds {
        let of_kind = node.addresses.iter().filter(|(of, _)| of == kind).map(|(_, text)| text);
        if NAMES.contains(kind) {
            if let Some(name) = of_kind.into_iter().next() {
                return Ok(name.clone());
            }
            continue;
        }
        let mut best: Option<(usize, String)> = None;
        for text in of_kind {
            let Ok(ip) = text.parse::<IpAddr>() else {
                reasons.push(format!("{text} is no IP address"));
                continue;
            };
            let family = if ip.to_canonical().is_ipv6() { "IPv6" } else { "IPv4" };
            match (families.iter().position(|of| *of == family), usable(ip, ours)) {
                (None, _) => reasons.push(format!("{text} is {family}, {left_out}")),
                (_, Err(reason)) => reasons.push(reason),
                (Some(rank), Ok(address)) if best.as_ref().is_none_or(|(best, _)| rank < *best) => {
                    best = Some((rank, address));
                }
                _ => {}
            }
        }
        if let Some((_, address)) = best {
            return Ok(address);
        }
    }
    if reasons.is_empty() {
        reasons.push(format!("it shows none of {}", kinds.join(", ")));
    }
    Err(reasons)
}

fn usable(ip: IpAddr, ours: &Ours) -> Result<String, String> {
    ours.check_of_ours(ip).map(|ip| ip.to_string()).map_err(|error| error.to_string())
}

fn no_address(of: &str, reasons: Vec<String>) -> NoLead {
    NoLead::NoAddress { of: of.to_owned(), reasons }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(name: &str, node: Option<&str>) -> PodView {
        PodView { name: name.into(), node: node.map(String::from), ..PodView::default() }
    }

    fn network(yaml: &str) -> BurstNetwork {
        serde_saphyr::from_str(yaml).unwrap()
    }

    fn status(node_port: Option<i32>, address: Option<&str>) -> LeadStatus {
        LeadStatus { node_port, address: address.map(str::to_owned), ..LeadStatus::default() }
    }

    fn of(network: &BurstNetwork, status: &LeadStatus, addresses: &[(&str, &str)]) -> Result<String, String> {
        of_pod(network, status, addresses, &[])
    }

    fn of_pod(
        network: &BurstNetwork,
        status: &LeadStatus,
        addresses: &[(&str, &str)],
        pod_addresses: &[&str],
    ) -> Result<String, String> {
        let node = NodeView {
            addresses: addresses.iter().map(|(kind, text)| ((*kind).into(), (*text).into())).collect(),
            ..NodeView::default()
        };
        let (mut ours, mut pods) = (Ours::default(), [pod("a-0", Some("n1"))]);
        pods[0].addresses = pod_addresses.iter().map(|text| text.parse().unwrap()).collect();
        let key = tributary_cluster::ObjectKey::cluster_scoped("n1");
        ours.pod_ranges.change(&key, Vec::new(), vec!["10.244.0.0/16".parse().unwrap()]);
        let view = LeadView { network, status, index_zero: &pods, ours: &ours };
        lead_address(&view, |_| Some(node.clone()))
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
                     10.244.0.3 is in this cluster's own pod range 10.244.0.0/16"),
            ),
            (
                &[("Hostname", "n1")],
                Err("node n1 has no address that other clusters can reach: it shows none of ExternalIP, InternalIP"),
            ),
        ];
        for (addresses, expected) in table {
            let found = of(&BurstNetwork::default(), &status(Some(30_050), None), addresses);
            assert_eq!(found.as_deref().map_err(String::as_str), expected, "{addresses:?}");
        }
    }

    #[test]
    fn the_user_chooses_kinds_and_families() {
        let node = [
            ("InternalIP", "192.0.2.1"),
            ("InternalIP", "2001:db8::1"),
            ("ExternalIP", "198.51.100.1"),
            ("Hostname", "n1.example.org"),
        ];
        let table = [
            ("preferredAddressTypes: [InternalIP]", Ok("192.0.2.1 30050")),
            ("{preferredAddressTypes: [InternalIP], ipFamilies: [IPv6, IPv4]}", Ok("2001:db8::1 30050")),
            ("ipFamilies: [IPv6, IPv4]", Ok("198.51.100.1 30050")),
            ("ipFamilies: [IPv6]", Ok("2001:db8::1 30050")),
            ("preferredAddressTypes: [ExternalDNS, Hostname, InternalIP]", Ok("n1.example.org 30050")),
            ("{address: lead.example.org}", Ok("lead.example.org 30050")),
            ("{address: 203.0.113.9, port: 9000}", Ok("203.0.113.9 9000")),
            (
                "{address: 127.0.0.1, port: 6443}",
                Err("flux.bursting.network.address cannot be used: 127.0.0.1 is a loopback address"),
            ),
            (
                "{address: 10.244.0.7}",
                Err("flux.bursting.network.address cannot be used: 10.244.0.7 is in this cluster's own pod range \
                     10.244.0.0/16"),
            ),
            ("port: 9000", Ok("198.51.100.1 30050")),
            (
                "{preferredAddressTypes: [ExternalIP], ipFamilies: [IPv6]}",
                Err(
                    "node n1 has no address that other clusters can reach: 198.51.100.1 is IPv4, which is not asked for",
                ),
            ),
        ];
        for (wish, expected) in table {
            let found = of(&network(wish), &status(Some(30_050), None), &node);
            assert_eq!(found.as_deref().map_err(String::as_str), expected, "{wish}");
        }
    }

    /// The danger: bursts are sent to an address behind which nobody listens.
    #[test]
    fn an_address_is_of_a_family_that_the_lead_broker_speaks() {
        let (v4, v6) = ("10.1.0.7", "fd00::7");
        let eks = [("InternalIP", "2001:db8::1"), ("ExternalIP", "198.51.100.1")];
        let reverse = [("InternalIP", "192.0.2.1"), ("ExternalIP", "2001:db8::1")];
        let none = "node n1 has no address that other clusters can reach: 198.51.100.1 is IPv4, which the lead broker does not \
                    speak";
        let table = [
            ("IPv6 alone", &[v6][..], "{}", &eks[..], Ok("2001:db8::1 30050")),
            ("IPv6 alone, and the node has none", &[v6], "{}", &eks[1..], Err(none)),
            ("IPv4 alone", &[v4], "{}", &reverse, Ok("192.0.2.1 30050")),
            ("both, IPv4 first", &[v4, v6], "{}", &reverse, Ok("192.0.2.1 30050")),
            ("both, IPv6 first", &[v6, v4], "{}", &eks, Ok("198.51.100.1 30050")),
            ("both, IPv6 first", &[v6, v4], "{}", &reverse, Ok("2001:db8::1 30050")),
            ("no address yet", &[], "{}", &reverse, Ok("2001:db8::1 30050")),
            ("the user knows better", &[v6], "ipFamilies: [IPv4]", &eks, Ok("198.51.100.1 30050")),
        ];
        for (case, pod, wish, node, expected) in table {
            let found = of_pod(&network(wish), &status(Some(30_050), None), node, pod);
            assert_eq!(found.as_deref().map_err(String::as_str), expected, "{case}");
        }
    }

    #[test]
    fn a_load_balancer_is_waited_for() {
        let wish = network("type: LoadBalancer");
        let lead = |address| of(&wish, &status(Some(30_050), address), &[]);
        assert!(lead(None).unwrap_err().contains("has no address of a load balancer yet"));
        assert_eq!(lead(Some("203.0.113.5")).unwrap(), "203.0.113.5 8050");
        assert_eq!(lead(Some("lb.example.org")).unwrap(), "lb.example.org 8050");
        assert!(
            lead(Some("10.244.1.1")).unwrap_err().starts_with("the load balancer of the lead Service has no address")
        );
        let wish = network("{type: LoadBalancer, address: lead.example.org}");
        assert_eq!(of(&wish, &status(None, None), &[]).unwrap(), "lead.example.org 8050");
    }

    /// The danger: brokers of bursts, and commands of the agent, go to a pod of somebody else.
    #[test]
    fn a_pod_that_only_bears_the_labels_of_the_lead_is_not_the_lead() {
        let root: MiniCluster = serde_saphyr::from_str(
            "{metadata: {name: lake, namespace: flux}, spec: {size: 2, containers: [{image: app}]}, status: {incarnation: job-1}}",
        )
        .unwrap();
        let lead = PodView {
            namespace: "flux".into(),
            job: Some("lake".into()),
            index: Some(0),
            owner: Some("job-1".into()),
            ..pod("lake-0", Some("n1"))
        };
        assert!(is_of_lead(&root, &lead));
        type Change = fn(&mut PodView);
        let table: [(&str, Change); 5] = [
            ("nobody's", |pod| pod.owner = None),
            ("of the Job before", |pod| pod.owner = Some("job-0".into())),
            ("elsewhere", |pod| pod.namespace = "other".into()),
            ("of another Job", |pod| pod.job = Some("pond".into())),
            ("another rank", |pod| pod.index = Some(1)),
        ];
        for (case, change) in table {
            let mut pod = lead.clone();
            change(&mut pod);
            assert!(!is_of_lead(&root, &pod), "{case}");
        }
        let unknown = MiniCluster { status: None, ..root };
        assert!(!is_of_lead(&unknown, &PodView { owner: None, ..lead }), "between two Jobs there is no lead");
    }

    #[test]
    fn a_replaced_pod_moves_the_lead() {
        let node = |name: &str| {
            let address = if name == "old" { "192.0.2.1" } else { "192.0.2.2" };
            Some(NodeView { addresses: vec![("InternalIP".into(), address.into())], ..NodeView::default() })
        };
        let network = BurstNetwork::default();
        let with = |port, pods: &[PodView], node: &dyn Fn(&str) -> Option<NodeView>| {
            let view =
                LeadView { network: &network, status: &status(port, None), index_zero: pods, ours: &Ours::default() };
            lead_address(&view, node).map(|lead| lead.address)
        };
        let leaving = PodView { terminating: true, ..pod("a-0-x", Some("old")) };
        let lead = |pods: &[PodView]| with(Some(1), pods, &node);
        assert_eq!(lead(&[leaving.clone(), pod("a-0-y", Some("new"))]).unwrap(), "192.0.2.2");
        assert_eq!(lead(&[leaving.clone(), pod("a-0-y", None)]).unwrap(), "192.0.2.1", "until the new one has a node");
        let ended = PodView { finished: true, ..leaving };
        assert_eq!(lead(&[ended]), Err(NoLead::NoPod));
        assert_eq!(with(None, &[pod("a-0", Some("n"))], &node), Err(NoLead::NoPort));
        assert_eq!(with(Some(1), &[pod("a-0", Some("n"))], &|_| None), Err(NoLead::NoNode("n".into())));
    }
}
