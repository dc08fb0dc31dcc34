//! The NetworkPolicy of a hosted burst: where its pods may connect to. Pure.
//!
//! Source: <https://kubernetes.io/docs/concepts/services-networking/network-policies/>.

use std::net::IpAddr;

use k8s_openapi::api::networking::v1::{
    IPBlock, NetworkPolicy, NetworkPolicyEgressRule, NetworkPolicyPeer, NetworkPolicyPort, NetworkPolicySpec,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, LabelSelectorRequirement, ObjectMeta};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use tributary_api::labels::{TRIBUTARY, kubernetes, upstream};
use tributary_api::peer::EgressPolicy;

/// Where the cluster's DNS runs: of most clusters, and of OpenShift.
const DNS_NAMESPACES: [&str; 2] = ["kube-system", "openshift-dns"];
/// The ports of its pods, which a policy sees in place of the Service's: of most clusters, and of OpenShift.
const DNS_PORTS: [u16; 2] = [53, 5353];
/// Where NodeLocal DNSCache listens on every node.
const NODE_LOCAL_DNS: &str = "169.254.20.10/32";

/// What is wanted of a burst's NetworkPolicy.
#[derive(Clone, Debug, PartialEq, Default)]
pub enum Egress {
    /// It is not known what its owner wants: as it is.
    #[default]
    Leave,
    /// None.
    Open,
    /// This one.
    Only(Box<NetworkPolicy>),
}

impl Egress {
    /// Lets the pods connect to that port of the agents of this cluster as well, which are in `namespace`. Some network plugins
    /// (Cilium) take no block of addresses for pods; and the next agent that leads has another address.
    pub(super) fn open_to_agents(&mut self, namespace: &str, at: u16) {
        let Self::Only(policy) = self else { return };
        // The chart sets it, and nobody can set another one.
        let agents = LabelSelector {
            match_labels: Some([(upstream::NAME.to_owned(), TRIBUTARY.to_owned())].into()),
            ..LabelSelector::default()
        };
        let to = NetworkPolicyPeer { pod_selector: Some(agents), ..in_namespaces(&[namespace]) };
        let rules = policy.spec.get_or_insert_default().egress.get_or_insert_default();
        rules.push(rule(vec![to], vec![port("TCP", at)]));
    }
}

/// The policy for the pods of Job `slot`: each other, the lead broker at `lead`, DNS, and the ranges of `policy`.
pub(super) fn network_policy(
    metadata: ObjectMeta,
    slot: &str,
    lead: (&[IpAddr], u16),
    policy: &EgressPolicy,
) -> NetworkPolicy {
    let ours = || LabelSelector {
        match_labels: Some([(kubernetes::JOB_NAME.to_owned(), slot.to_owned())].into()),
        ..LabelSelector::default()
    };
    let block = |cidr: String| NetworkPolicyPeer {
        ip_block: Some(IPBlock { cidr, except: None }),
        ..NetworkPolicyPeer::default()
    };
    let dns_ports = DNS_PORTS.iter().flat_map(|at| ["UDP", "TCP"].map(|protocol| port(protocol, *at))).collect();
    let each_other = NetworkPolicyPeer { pod_selector: Some(ours()), ..NetworkPolicyPeer::default() };
    let mut rules = vec![
        rule(vec![each_other], Vec::new()),
        rule(vec![in_namespaces(&DNS_NAMESPACES), block(NODE_LOCAL_DNS.into())], dns_ports),
    ];
    let (addresses, lead_port) = lead;
    if !addresses.is_empty() {
        let whole = |ip: &IpAddr| block(format!("{ip}/{}", if ip.is_ipv4() { 32 } else { 128 }));
        rules.push(rule(addresses.iter().map(whole).collect(), vec![port("TCP", lead_port)]));
    }
    if !policy.allow.is_empty() {
        rules.push(rule(policy.allow.iter().cloned().map(block).collect(), Vec::new()));
    }
    NetworkPolicy {
        metadata,
        spec: Some(NetworkPolicySpec {
            pod_selector: Some(ours()),
            policy_types: Some(vec!["Egress".into()]),
            egress: Some(rules),
            ingress: None,
        }),
    }
}

fn port(protocol: &str, port: u16) -> NetworkPolicyPort {
    NetworkPolicyPort { protocol: Some(protocol.into()), port: Some(IntOrString::Int(port.into())), end_port: None }
}

/// No ports: all.
fn rule(to: Vec<NetworkPolicyPeer>, ports: Vec<NetworkPolicyPort>) -> NetworkPolicyEgressRule {
    NetworkPolicyEgressRule { to: Some(to), ports: (!ports.is_empty()).then_some(ports) }
}

/// All pods there.
fn in_namespaces(names: &[&str]) -> NetworkPolicyPeer {
    let one_of = LabelSelectorRequirement {
        key: kubernetes::NAMESPACE_NAME.to_owned(),
        operator: "In".to_owned(),
        values: Some(names.iter().map(|name| (*name).to_owned()).collect()),
    };
    NetworkPolicyPeer {
        namespace_selector: Some(LabelSelector { match_expressions: Some(vec![one_of]), ..LabelSelector::default() }),
        ..NetworkPolicyPeer::default()
    }
}
