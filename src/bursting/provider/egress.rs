//! The NetworkPolicy of a hosted burst: where its pods may connect to. Pure.
//!
//! Source: <https://kubernetes.io/docs/concepts/services-networking/network-policies/>.

use std::net::IpAddr;

use k8s_openapi::api::networking::v1::{
    IPBlock, NetworkPolicy, NetworkPolicyEgressRule, NetworkPolicyPeer, NetworkPolicyPort, NetworkPolicySpec,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use tributary_api::labels::kubernetes;
use tributary_api::peer::EgressPolicy;

/// Where the cluster's DNS runs.
const DNS_NAMESPACE: &str = "kube-system";
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
    let port = |protocol: &str, port: u16| NetworkPolicyPort {
        protocol: Some(protocol.into()),
        port: Some(IntOrString::Int(port.into())),
        end_port: None,
    };
    let rule = |to: Vec<NetworkPolicyPeer>, ports: Vec<NetworkPolicyPort>| NetworkPolicyEgressRule {
        to: Some(to),
        ports: (!ports.is_empty()).then_some(ports),
    };
    let dns = NetworkPolicyPeer {
        namespace_selector: Some(LabelSelector {
            match_labels: Some([(kubernetes::NAMESPACE_NAME.to_owned(), DNS_NAMESPACE.to_owned())].into()),
            ..LabelSelector::default()
        }),
        ..NetworkPolicyPeer::default()
    };
    let each_other = NetworkPolicyPeer { pod_selector: Some(ours()), ..NetworkPolicyPeer::default() };
    let mut rules = vec![
        rule(vec![each_other], Vec::new()),
        rule(vec![dns, block(NODE_LOCAL_DNS.into())], vec![port("UDP", 53), port("TCP", 53)]),
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
