//! The EndpointSlices of the federation's Service.

use std::net::IpAddr;
use std::sync::Arc;

use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::api::discovery::v1::{Endpoint, EndpointConditions, EndpointPort, EndpointSlice};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use tributary::api::labels;
use tributary::config::FederationConfig;

/// Name of the Service's port for sessions with peers.
pub(crate) const FEDERATION_PORT: &str = "federation";
/// Name of its port for clusters that join.
pub(crate) const JOIN_PORT: &str = "join";

/// Where the slices are, and what leads to this agent.
pub(crate) struct Place<'a> {
    /// The agent's namespace.
    pub namespace: &'a str,
    /// The Service, so that its slices go with it.
    pub owner: Option<OwnerReference>,
    /// Name of this agent's pod; `None`: it runs in none. Load balancers that send to pods themselves, such as
    /// aws-load-balancer-controller, pass over endpoints that are no pod's.
    pub pod: Option<&'a str>,
    /// Ports, addresses, name of the Service.
    pub federation: &'a FederationConfig,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Family {
    V4,
    V6,
}

impl Family {
    fn of(address: IpAddr) -> Self {
        if address.is_ipv4() { Self::V4 } else { Self::V6 }
    }

    fn address_type(self) -> &'static str {
        match self {
            Self::V4 => "IPv4",
            Self::V6 => "IPv6",
        }
    }
}

impl Place<'_> {
    /// The slices with this agent in them, and the one of a family that only the leader before had without anybody.
    pub(crate) fn open(&self, live: &[Arc<EndpointSlice>]) -> Vec<EndpointSlice> {
        let slices = [Family::V4, Family::V6].into_iter().filter_map(|family| {
            let own = self.own(family);
            let stale = || live.iter().any(|slice| slice.metadata.name.as_ref() == Some(&self.name(family)));
            (!own.is_empty() || stale()).then(|| self.slice(family, &own, self.owner.clone()))
        });
        slices.collect()
    }

    /// Those of `live` that have this agent, without anybody.
    pub(crate) fn closed(&self, live: &[Arc<EndpointSlice>]) -> Vec<EndpointSlice> {
        let ours = [Family::V4, Family::V6].into_iter().filter_map(|family| {
            let own: Vec<String> = self.own(family).iter().map(ToString::to_string).collect();
            let slice = live.iter().find(|slice| slice.metadata.name.as_ref() == Some(&self.name(family)))?;
            let has_us = slice.endpoints.iter().flat_map(|endpoint| &endpoint.addresses).any(|one| own.contains(one));
            let owner = || slice.metadata.owner_references.as_ref()?.first().cloned();
            has_us.then(|| self.slice(family, &[], owner()))
        });
        ours.collect()
    }

    fn own(&self, family: Family) -> Vec<IpAddr> {
        self.federation.pod_ips.iter().copied().filter(|address| Family::of(*address) == family).take(1).collect()
    }

    fn name(&self, family: Family) -> String {
        format!("{}-{}", self.federation.service, family.address_type().to_lowercase())
    }

    fn slice(&self, family: Family, addresses: &[IpAddr], owner: Option<OwnerReference>) -> EndpointSlice {
        let FederationConfig { service, listen, join, node_name, .. } = self.federation;
        let labels = [
            (labels::kubernetes::SERVICE_NAME, service.as_str()),
            (labels::kubernetes::ENDPOINT_SLICE_MANAGED_BY, labels::TRIBUTARY),
        ];
        let pod = self.pod.map(|name| ObjectReference {
            kind: Some("Pod".to_owned()),
            namespace: Some(self.namespace.to_owned()),
            name: Some(name.to_owned()),
            ..ObjectReference::default()
        });
        let endpoint = |address: &IpAddr| Endpoint {
            addresses: vec![address.to_string()],
            conditions: Some(EndpointConditions { ready: Some(true), ..EndpointConditions::default() }),
            node_name: Some(node_name.clone()).filter(|name| !name.is_empty()),
            target_ref: pod.clone(),
            ..Endpoint::default()
        };
        let port = |(name, port): (&str, u16)| EndpointPort {
            name: Some(name.to_owned()),
            port: Some(port.into()),
            protocol: Some("UDP".to_owned()),
            ..EndpointPort::default()
        };
        EndpointSlice {
            metadata: ObjectMeta {
                name: Some(self.name(family)),
                namespace: Some(self.namespace.to_owned()),
                labels: Some(labels.map(|(key, value)| (key.to_owned(), value.to_owned())).into()),
                owner_references: owner.map(|owner| vec![owner]),
                ..ObjectMeta::default()
            },
            address_type: family.address_type().to_owned(),
            endpoints: addresses.iter().map(endpoint).collect(),
            ports: Some([(FEDERATION_PORT, listen.port()), (JOIN_PORT, join.listen.port())].map(port).into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn federation(addresses: &[&str]) -> FederationConfig {
        FederationConfig {
            service: "agents".into(),
            pod_ips: addresses.iter().map(|text| text.parse().unwrap()).collect(),
            node_name: "node-3".into(),
            ..FederationConfig::default()
        }
    }

    fn place(federation: &FederationConfig) -> Place<'_> {
        let owner =
            OwnerReference { kind: "Service".into(), name: "agents".into(), uid: "7".into(), ..Default::default() };
        Place { namespace: "system", owner: Some(owner), pod: Some("agents-7f"), federation }
    }

    /// What each slice leads to.
    fn addresses(slices: &[EndpointSlice]) -> Vec<(&str, Vec<&str>)> {
        slices
            .iter()
            .map(|slice| {
                let all = slice.endpoints.iter().flat_map(|endpoint| endpoint.addresses.iter().map(String::as_str));
                (slice.metadata.name.as_deref().unwrap(), all.collect())
            })
            .collect()
    }

    fn live(slices: &[EndpointSlice]) -> Vec<Arc<EndpointSlice>> {
        slices.iter().cloned().map(Arc::new).collect()
    }

    #[test]
    fn the_slice_says_where_the_leader_listens() {
        let federation = federation(&["10.200.0.7"]);
        let [slice] = &place(&federation).open(&[])[..] else { panic!("one family, one slice") };
        insta::assert_snapshot!(serde_json::to_string_pretty(slice).unwrap());
        let outside = Place { pod: None, ..place(&federation) };
        assert_eq!(outside.open(&[])[0].endpoints[0].target_ref, None, "an agent of no pod names none");
    }

    #[test]
    fn both_families_are_led_to_the_leader() {
        let federation = federation(&["10.200.0.7", "fd00::7", "10.200.0.8"]);
        let slices = place(&federation).open(&[]);
        assert_eq!(addresses(&slices), [("agents-ipv4", vec!["10.200.0.7"]), ("agents-ipv6", vec!["fd00::7"])]);
    }

    #[test]
    fn the_next_leader_writes_over_the_one_before() {
        let (old, new) = (federation(&["10.200.0.7", "fd00::7"]), federation(&["10.200.0.9"]));
        let before = live(&place(&old).open(&[]));
        // The address of another family would lead to somebody who does not listen.
        let after = place(&new).open(&before);
        assert_eq!(addresses(&after), [("agents-ipv4", vec!["10.200.0.9"]), ("agents-ipv6", vec![])]);
    }

    #[test]
    fn only_itself_is_taken_out() {
        let (old, new) = (federation(&["10.200.0.7"]), federation(&["10.200.0.9"]));
        let by_old = live(&place(&old).open(&[]));
        let closed = place(&old).closed(&by_old);
        assert_eq!(addresses(&closed), [("agents-ipv4", vec![])]);
        assert_eq!(closed[0].metadata.owner_references, by_old[0].metadata.owner_references, "it still goes with it");
        let by_new = live(&place(&new).open(&by_old));
        assert!(place(&old).closed(&by_new).is_empty(), "another one leads already");
        assert!(place(&old).closed(&[]).is_empty());
    }
}
