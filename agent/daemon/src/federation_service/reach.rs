//! Where peers reach the federation's Service from outside of the cluster.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use k8s_openapi::api::core::v1::{Service, ServicePort};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::Resource as _;
use tributary::bursting::addresses;
use tributary::bursting::nodes::NodeView;
use tributary::config::FederationConfig;

use super::slices::{FEDERATION_PORT, JOIN_PORT};

/// Nodes that are named: peers try one after the other, and any of them leads to the Service.
const MOST_NODES: usize = 4;

/// Addresses, each `host:port`. Empty: nobody outside reaches this cluster.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Reach {
    /// Where sessions with peers come in.
    pub endpoints: Vec<String>,
    /// Where clusters that join come in.
    pub join_endpoints: Vec<String>,
    /// The Service whose load balancer is not there yet: until it is, nobody knows where sessions with peers come in.
    pub awaited_service: Option<String>,
    /// The Service. Another one of its name is reached elsewhere, so who is told of this one is told for as long as it is.
    pub service: Option<OwnerReference>,
}

impl Reach {
    /// What the configuration says alone.
    pub(crate) fn configured(federation: &FederationConfig) -> Self {
        let (endpoints, join_endpoints) = (federation.advertise.clone(), federation.join_endpoints());
        Self { endpoints, join_endpoints, awaited_service: None, service: None }
    }

    /// What the configuration says; what it leaves out is as the Service and the nodes are now.
    pub(crate) fn of(
        federation: &FederationConfig,
        service: Option<&Service>,
        nodes: &BTreeMap<String, &NodeView>,
    ) -> Self {
        let owner = service.and_then(|service| service.owner_ref(&()));
        let configured = Self { service: owner, ..Self::configured(federation) };
        let Some(outside) = service.and_then(|service| Outside::of(service, nodes)) else { return configured };
        let endpoints = match configured.endpoints.is_empty() {
            true => outside.endpoints(FEDERATION_PORT, &outside.hosts),
            false => configured.endpoints.clone(),
        };
        let hosts: Vec<String> = endpoints.iter().filter_map(|one| Some(one.rsplit_once(':')?.0.to_owned())).collect();
        let join_endpoints = match federation.join.advertise.is_empty() {
            true => outside.endpoints(JOIN_PORT, &hosts),
            false => configured.join_endpoints,
        };
        let awaited_service = (outside.balancer && endpoints.is_empty()).then(|| federation.service.clone());
        Self { endpoints, join_endpoints, awaited_service, ..configured }
    }
}

/// A Service as it is seen from outside.
struct Outside {
    /// Hosts as they stand in `host:port`.
    hosts: Vec<String>,
    /// Ports by their names.
    ports: BTreeMap<String, u16>,
    /// The hosts are load balancers.
    balancer: bool,
}

impl Outside {
    /// `None`: it is of a type that nobody outside reaches.
    fn of(service: &Service, nodes: &BTreeMap<String, &NodeView>) -> Option<Self> {
        let spec = service.spec.as_ref()?;
        let (hosts, port): (_, fn(&ServicePort) -> Option<i32>) = match spec.type_.as_deref() {
            Some("LoadBalancer") => (balancers(service), |port| Some(port.port)),
            Some("NodePort") => {
                let families = spec.ip_families.as_deref().unwrap_or_default();
                (node_hosts(nodes, families), |port| port.node_port)
            }
            _ => return None,
        };
        let ports = spec.ports.iter().flatten().filter_map(|one| {
            Some((one.name.clone()?, port(one).and_then(|number| u16::try_from(number).ok()).filter(|port| *port > 0)?))
        });
        let balancer = spec.type_.as_deref() == Some("LoadBalancer");
        Some(Self { hosts, ports: ports.collect(), balancer })
    }

    fn endpoints(&self, port: &str, hosts: &[String]) -> Vec<String> {
        let Some(port) = self.ports.get(port) else { return Vec::new() };
        // In the order they have, each once.
        let mut once: BTreeSet<&String> = hosts.iter().collect();
        hosts.iter().filter(|host| once.remove(host)).map(|host| format!("{host}:{port}")).collect()
    }
}

/// A load balancer that is not there yet has no host: its node ports are not advertised meanwhile, since what peers are
/// told stays in their ClusterPeers.
fn balancers(service: &Service) -> Vec<String> {
    let status = service.status.as_ref().and_then(|status| status.load_balancer.as_ref());
    let ingress = status.and_then(|balancer| balancer.ingress.as_ref()).into_iter().flatten();
    ingress.filter_map(|one| one.hostname.clone().or_else(|| Some(host(one.ip.as_ref()?.parse().ok()?)))).collect()
}

/// External addresses if any node has one, else internal ones. Nodes that take no pods come last: they may be leaving. A node
/// has the ports of a Service at addresses of its families alone.
fn node_hosts(nodes: &BTreeMap<String, &NodeView>, families: &[String]) -> Vec<String> {
    let opens = |address: &IpAddr| {
        let family = if address.is_ipv6() { "IPv6" } else { "IPv4" };
        families.is_empty() || families.iter().any(|one| one == family)
    };
    let own: Vec<_> = nodes.values().flat_map(|node| &node.pod_ranges).collect();
    let usable = |node: &NodeView, kind: &str| {
        let of_kind = node.addresses.iter().filter(|(of, _)| of == kind);
        let parsed = of_kind.filter_map(|(_, text)| addresses::check(text.parse().ok()?).ok());
        let parsed = parsed.filter(opens).filter(|address| !own.iter().any(|range| range.contains(*address)));
        // As the lead broker's address: IPv4 is what most peers can reach.
        parsed.min_by_key(IpAddr::is_ipv6)
    };
    let mut ordered: Vec<&NodeView> = nodes.values().copied().collect();
    ordered.sort_by_key(|node| !node.schedulable);
    for kind in ["ExternalIP", "InternalIP"] {
        let hosts: Vec<String> =
            ordered.iter().filter_map(|node| usable(node, kind)).map(host).take(MOST_NODES).collect();
        if !hosts.is_empty() {
            return hosts;
        }
    }
    Vec::new()
}

fn host(address: IpAddr) -> String {
    if address.is_ipv6() { format!("[{address}]") } else { address.to_string() }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn service(type_: &str, ingress: Value) -> Service {
        let ports = json!([
            {"name": "federation", "port": 7946, "nodePort": 30946, "protocol": "UDP"},
            {"name": "join", "port": 7956, "nodePort": 30956, "protocol": "UDP"},
        ]);
        let object = json!({"spec": {"type": type_, "ports": ports}, "status": {"loadBalancer": {"ingress": ingress}}});
        serde_json::from_value(object).unwrap()
    }

    fn node(schedulable: bool, addresses: &[(&str, &str)]) -> NodeView {
        let addresses = addresses.iter().map(|(kind, text)| ((*kind).into(), (*text).into())).collect();
        NodeView { schedulable, addresses, pod_ranges: vec!["10.244.0.0/16".parse().unwrap()], ..NodeView::default() }
    }

    fn reach(federation: &FederationConfig, service: Option<&Service>, nodes: &[NodeView]) -> [String; 2] {
        let nodes = nodes.iter().enumerate().map(|(index, node)| (format!("node-{index}"), node)).collect();
        let Reach { endpoints, join_endpoints, .. } = Reach::of(federation, service, &nodes);
        [endpoints.join(" "), join_endpoints.join(" ")]
    }

    #[test]
    fn node_ports_are_advertised_on_nodes_that_peers_can_reach() {
        let (nobody, ports) = (FederationConfig::default(), service("NodePort", Value::Null));
        let internal = |last: u8| node(true, &[("InternalIP", &format!("192.0.2.{last}")), ("Hostname", "n")]);
        let table: [(&[NodeView], [&str; 2]); 6] = [
            (&[], ["", ""]),
            (&[internal(1)], ["192.0.2.1:30946", "192.0.2.1:30956"]),
            (
                &[node(false, &[("InternalIP", "192.0.2.9")]), internal(1)],
                ["192.0.2.1:30946 192.0.2.9:30946", "192.0.2.1:30956 192.0.2.9:30956"],
            ),
            (
                &[internal(1), node(true, &[("InternalIP", "192.0.2.2"), ("ExternalIP", "198.51.100.2")])],
                ["198.51.100.2:30946", "198.51.100.2:30956"],
            ),
            (
                &[node(true, &[("InternalIP", "2001:db8::1")]), node(true, &[("InternalIP", "10.244.0.1")])],
                ["[2001:db8::1]:30946", "[2001:db8::1]:30956"],
            ),
            (&[node(true, &[("ExternalIP", "127.0.0.1")]), node(true, &[])], ["", ""]),
        ];
        for (nodes, expected) in table {
            assert_eq!(reach(&nobody, Some(&ports), nodes), expected);
        }
        let mut of_v6 = ports.clone();
        of_v6.spec.as_mut().unwrap().ip_families = Some(vec!["IPv6".into()]);
        let both =
            [node(true, &[("ExternalIP", "198.51.100.2"), ("InternalIP", "192.0.2.1"), ("InternalIP", "2001:db8::1")])];
        assert_eq!(reach(&nobody, Some(&of_v6), &both)[0], "[2001:db8::1]:30946", "nobody listens at the others");
        let many: Vec<NodeView> = (1..=9).map(internal).collect();
        assert_eq!(reach(&nobody, Some(&ports), &many)[0].split(' ').count(), MOST_NODES);
    }

    #[test]
    fn a_load_balancer_is_advertised_once_it_is_there() {
        let (nobody, nodes) = (FederationConfig::default(), [node(true, &[("InternalIP", "192.0.2.1")])]);
        let table = [
            (Value::Null, ["", ""]),
            (json!([{"ip": "203.0.113.7"}]), ["203.0.113.7:7946", "203.0.113.7:7956"]),
            (json!([{"hostname": "lb.example", "ip": "203.0.113.7"}]), ["lb.example:7946", "lb.example:7956"]),
            (json!([{"ip": "2001:db8::7"}]), ["[2001:db8::7]:7946", "[2001:db8::7]:7956"]),
        ];
        for (ingress, expected) in table {
            assert_eq!(reach(&nobody, Some(&service("LoadBalancer", ingress)), &nodes), expected);
        }
    }

    /// The danger: a cluster is installed anew, and who links it meanwhile is told node ports of before.
    #[test]
    fn what_is_told_of_a_service_is_of_that_very_one() {
        let of = |uid: &str| {
            let mut service = service("NodePort", Value::Null);
            (service.metadata.name, service.metadata.uid) = (Some("river-federation".into()), Some(uid.into()));
            Reach::of(&FederationConfig::default(), Some(&service), &BTreeMap::new())
        };
        assert_eq!(of("1").service.map(|owner| (owner.kind, owner.uid)), Some(("Service".into(), "1".into())));
        assert_ne!(of("1"), of("2"));
    }

    /// `agentctl link` waits for that one, and for no other.
    #[test]
    fn a_load_balancer_that_is_not_there_yet_is_awaited() {
        let mut federation = FederationConfig { service: "river-federation".into(), ..Default::default() };
        let awaited = |federation: &FederationConfig, type_: &str, ingress: Value| {
            Reach::of(federation, Some(&service(type_, ingress)), &BTreeMap::new()).awaited_service
        };
        assert_eq!(awaited(&federation, "LoadBalancer", Value::Null).as_deref(), Some("river-federation"));
        assert_eq!(awaited(&federation, "LoadBalancer", json!([{"ip": "203.0.113.7"}])), None);
        assert_eq!(awaited(&federation, "NodePort", Value::Null), None);
        federation.advertise = vec!["gate.example:1".into()];
        assert_eq!(awaited(&federation, "LoadBalancer", Value::Null), None);
    }

    #[test]
    fn what_is_configured_counts_and_the_service_adds_the_port_for_joining() {
        let ports = service("NodePort", Value::Null);
        let mut federation = FederationConfig { advertise: vec!["gate.example:1".into()], ..Default::default() };
        assert_eq!(reach(&federation, Some(&ports), &[]), ["gate.example:1", "gate.example:30956"]);
        assert_eq!(reach(&federation, None, &[]), ["gate.example:1", "gate.example:7956"]);
        let inside = service("ClusterIP", Value::Null);
        assert_eq!(reach(&federation, Some(&inside), &[]), ["gate.example:1", "gate.example:7956"]);
        federation.join.advertise = vec!["other.example:2".into()];
        assert_eq!(reach(&federation, Some(&ports), &[]), ["gate.example:1", "other.example:2"]);
        let nothing = FederationConfig::default();
        assert_eq!(reach(&nothing, Some(&inside), &[node(true, &[("InternalIP", "192.0.2.1")])]), ["", ""]);
    }
}
