//! Whether the bursts are wired, judged by reading both sides' objects and comparing them.

use k8s_openapi::api::core::v1::{ConfigMap, Node, Pod, Secret, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::Client;
use kube::api::{Api, ListParams};
use tributary::api::burst::Burst;
use tributary::api::hosted_burst::HostedBurst;
use tributary::api::labels;
use tributary::api::minicluster::MiniCluster;
use tributary::api::names;

use super::follow::belongs;
use super::report::LeadReport;

/// Key of the certificate in its Secret.
const CERTIFICATE: &str = "curve.cert";
/// Key of the host list among the boot files.
const HOSTLIST: &str = "hostlist";

/// What one side of a burst holds.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Side {
    /// The certificate in the Secret the pods mount. Compared, never printed.
    certificate: Option<Vec<u8>>,
    /// All hosts, as the brokers' host list has them.
    hostlist: Option<String>,
    /// Digest of the rank map in the MiniCluster's status.
    rank_map_digest: Option<String>,
}

/// Reads what the MiniCluster's pods are given in one cluster.
pub(super) async fn side(client: &Client, namespace: &str, name: &str) -> kube::Result<Side> {
    let secret = Api::<Secret>::namespaced(client.clone(), namespace).get_opt(&names::curve(name)).await?;
    let config = Api::<ConfigMap>::namespaced(client.clone(), namespace).get_opt(&names::entrypoint(name)).await?;
    let mini_cluster = Api::<MiniCluster>::namespaced(client.clone(), namespace).get_opt(name).await?;
    Ok(Side {
        certificate: secret.and_then(|secret| secret.data).and_then(|mut data| data.remove(CERTIFICATE)).map(|b| b.0),
        hostlist: config
            .and_then(|config| config.data)
            .and_then(|data| data.get(HOSTLIST).map(|text| text.trim().to_owned())),
        rank_map_digest: mini_cluster.and_then(|object| object.status).and_then(|status| status.rank_map_digest),
    })
}

/// Compares both sides; one sentence per difference.
pub(super) fn differences(slot: &str, root: &Side, burst: &Side) -> Vec<String> {
    let mut problems = Vec::new();
    let mut compare = |what: &str, root: bool, burst: bool, same: bool| match (root, burst) {
        (false, _) => problems.push(format!("{slot}: the root has no {what}")),
        (_, false) => problems.push(format!("{slot}: the peer has no {what}")),
        _ if !same => problems.push(format!("{slot}: root and peer have different {what}s")),
        _ => {}
    };
    let (a, b) = (&root.certificate, &burst.certificate);
    compare("certificate", a.is_some(), b.is_some(), a == b);
    let (a, b) = (&root.hostlist, &burst.hostlist);
    compare("host list", a.is_some(), b.is_some(), a == b);
    let (a, b) = (&root.rank_map_digest, &burst.rank_map_digest);
    compare("rank-map digest", a.is_some(), b.is_some(), a == b);
    problems
}

/// The address at which bursts should reach the lead: the node of the index-0 pod, and the NodePort of its Service.
pub(super) async fn lead_of_root(client: &Client, namespace: &str, name: &str) -> kube::Result<Option<LeadReport>> {
    let service = Api::<Service>::namespaced(client.clone(), namespace).get_opt(&names::lead(name)).await?;
    let port = service
        .and_then(|service| service.spec)
        .and_then(|spec| spec.ports)
        .and_then(|ports| ports.first().and_then(|port| port.node_port))
        .and_then(|port| u16::try_from(port).ok());
    let selector = format!("{}={name},{}=0", labels::kubernetes::JOB_NAME, labels::kubernetes::COMPLETION_INDEX);
    let pods = Api::<Pod>::namespaced(client.clone(), namespace).list(&ListParams::default().labels(&selector)).await?;
    let node = pods.items.into_iter().filter_map(|pod| pod.spec?.node_name).next();
    let (Some(node), Some(port)) = (node, port) else { return Ok(None) };
    let node = Api::<Node>::all(client.clone()).get_opt(&node).await?;
    let addresses = node.and_then(|node| node.status).and_then(|status| status.addresses).unwrap_or_default();
    let of = |kind: &str| addresses.iter().find(|address| address.type_ == kind).map(|address| address.address.clone());
    Ok(of("ExternalIP").or_else(|| of("InternalIP")).map(|address| LeadReport { address, port }))
}

/// The endpoint of the burst's lead Service on the peer.
pub(super) async fn lead_of_burst(client: &Client, namespace: &str, slot: &str) -> kube::Result<Option<LeadReport>> {
    let selector = format!("{}={}", labels::kubernetes::SERVICE_NAME, names::lead(slot));
    let slices = Api::<EndpointSlice>::namespaced(client.clone(), namespace)
        .list(&ListParams::default().labels(&selector))
        .await?;
    Ok(slices.items.into_iter().find_map(|slice| {
        let address = slice.endpoints.first()?.addresses.first()?.clone();
        let port = slice.ports?.first()?.port.and_then(|port| u16::try_from(port).ok())?;
        Some(LeadReport { address, port })
    }))
}

/// Ready pods of a MiniCluster's Job.
pub(super) async fn ready_pods(client: &Client, namespace: &str, name: &str) -> kube::Result<u32> {
    let selector = format!("{}={name}", labels::kubernetes::JOB_NAME);
    let pods = Api::<Pod>::namespaced(client.clone(), namespace).list(&ListParams::default().labels(&selector)).await?;
    let ready = |pod: &Pod| {
        let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_ref());
        conditions.is_some_and(|all| all.iter().any(|one| one.type_ == "Ready" && one.status == "True"))
    };
    Ok(u32::try_from(pods.items.iter().filter(|pod| ready(pod)).count()).unwrap_or(u32::MAX))
}

/// The Bursts of the root with this UID, in the order of their ranks.
pub(super) async fn bursts(client: &Client, namespace: &str, root_uid: &str) -> kube::Result<Vec<Burst>> {
    let list = Api::<Burst>::namespaced(client.clone(), namespace).list(&ListParams::default()).await?;
    let mut bursts: Vec<Burst> = list.items.into_iter().filter(|burst| belongs(burst, root_uid)).collect();
    bursts.sort_by_key(|burst| burst.spec.index);
    Ok(bursts)
}

/// The HostedBurst that a peer made for a Burst.
pub(super) async fn hosted(client: &Client, namespace: &str, burst: &Burst) -> kube::Result<Option<HostedBurst>> {
    let found = Api::<HostedBurst>::namespaced(client.clone(), namespace).get_opt(&burst.spec.slot).await?;
    Ok(found.filter(|hosted| Some(&hosted.spec.burst_uid) == burst.metadata.uid.as_ref()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn whole() -> Side {
        Side {
            certificate: Some(b"secret".to_vec()),
            hostlist: Some("a-[0-1],b-0".into()),
            rank_map_digest: Some("sha256:1".into()),
        }
    }

    #[test]
    fn equal_sides_are_wired_and_every_difference_is_named() {
        assert!(differences("b", &whole(), &whole()).is_empty());
        let other = Side { certificate: Some(b"other".to_vec()), hostlist: None, rank_map_digest: Some("2".into()) };
        let problems = differences("b", &whole(), &other);
        assert_eq!(
            problems,
            [
                "b: root and peer have different certificates",
                "b: the peer has no host list",
                "b: root and peer have different rank-map digests"
            ]
        );
        assert!(!problems.concat().contains("secret"));
        assert_eq!(differences("b", &Side::default(), &whole()).len(), 3);
    }
}
