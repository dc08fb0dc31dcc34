//! Whether the bursts are wired, judged by reading both sides' objects and comparing them.

use std::time::Duration;

use k8s_openapi::api::core::v1::{ConfigMap, Node, Pod, Secret, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::Client;
use kube::api::{Api, ListParams};
use tributary::api::burst::Burst;
use tributary::api::hosted_burst::{BurstPhase, HostedBurst};
use tributary::api::labels;
use tributary::api::minicluster::MiniCluster;
use tributary::api::names;

use super::KEEP_HINT;
use super::clusters::{Clusters, DemoCluster};
use super::follow::belongs;
use super::report::{BurstReport, LeadReport};
use super::root::{BURSTS, NAME, NAMESPACE, SIZE};
use crate::commands::check::evaluate::is_ready;
use crate::error::{Failure, Result};

/// Key of the certificate in its Secret.
const CERTIFICATE: &str = "curve.cert";
/// Key of the host list among the boot files.
const HOSTLIST: &str = "hostlist";
const POLL: Duration = Duration::from_millis(250);

/// What both sides' objects say.
#[derive(Debug, Default)]
pub(super) struct Wiring {
    /// In the order of their ranks.
    pub(super) bursts: Vec<BurstReport>,
    /// What is not wired, one sentence each.
    pub(super) problems: Vec<String>,
}

/// Waits until nothing is wrong any more. It has no time limit of its own.
pub(super) async fn until_wired(clusters: &Clusters, root_uid: &str) -> Result<()> {
    while !wiring(clusters, root_uid).await.map_err(failed)?.problems.is_empty() {
        tokio::time::sleep(POLL).await;
    }
    Ok(())
}

/// Reads both sides of every burst of the root with this UID.
pub(super) async fn wiring(clusters: &Clusters, root_uid: &str) -> kube::Result<Wiring> {
    let root = clusters.root();
    let mut wiring = Wiring::default();
    let pods = ready_pods(&root.client, NAME).await?;
    expect(&mut wiring.problems, i64::from(pods) == i64::from(SIZE), || {
        format!("{NAME}: {pods} of {SIZE} pods are ready in {}", root.name)
    });
    let bursts = Api::<Burst>::namespaced(root.client.clone(), NAMESPACE).list(&ListParams::default()).await?;
    let mut bursts: Vec<Burst> = bursts.items.into_iter().filter(|burst| belongs(burst, root_uid)).collect();
    bursts.sort_by_key(|burst| burst.spec.index);
    expect(&mut wiring.problems, bursts.len() == BURSTS.len(), || {
        format!("{NAME}: {} of {} bursts exist", bursts.len(), BURSTS.len())
    });
    for burst in &bursts {
        let report = judge(clusters, root, burst, &mut wiring.problems).await?;
        wiring.bursts.push(report);
    }
    Ok(wiring)
}

/// A wiring that cannot be read.
pub(super) fn failed(error: kube::Error) -> Failure {
    Failure::new("failed to read the objects of the bursts").because(error).hint(KEEP_HINT)
}

async fn judge(
    clusters: &Clusters,
    root: &DemoCluster,
    burst: &Burst,
    problems: &mut Vec<String>,
) -> kube::Result<BurstReport> {
    let (slot, status) = (&burst.spec.slot, burst.status.clone().unwrap_or_default());
    let mut report = BurstReport {
        name: slot.clone(),
        size: burst.spec.size,
        peer: status.peer.clone(),
        phase: status.phase.to_string(),
        ready_brokers: status.ready_brokers,
        rank_map_digest: burst.spec.rank_map_digest.clone(),
        ..BurstReport::default()
    };
    expect(problems, status.phase == BurstPhase::Ready, || {
        format!("{slot}: it is {}. {}", status.phase, status.message).trim_end().to_owned()
    });
    let Some(peer) = status.peer.as_deref().and_then(|peer| clusters.named(peer)) else {
        problems.push(format!("{slot}: it is on no peer of the demo"));
        return Ok(report);
    };
    let hosted = Api::<HostedBurst>::namespaced(peer.client.clone(), NAMESPACE).get_opt(slot).await?;
    let hosted = hosted.is_some_and(|hosted| Some(&hosted.spec.burst_uid) == burst.metadata.uid.as_ref());
    expect(problems, hosted, || format!("{slot}: {} has no HostedBurst for it", peer.name));

    let here = side(&root.client, NAME).await?;
    let there = side(&peer.client, slot).await?;
    problems.extend(differences(slot, &here, &there));

    let (wanted, found) = (lead_of_root(&root.client).await?, lead_of_burst(&peer.client, slot).await?);
    expect(problems, wanted.is_some() && wanted == found, || {
        let text = |lead: &Option<LeadReport>| match lead {
            Some(lead) => format!("{} port {}", lead.address, lead.port),
            None => "nothing".to_owned(),
        };
        format!("{slot}: its lead Service points to {}, the lead broker is at {}", text(&found), text(&wanted))
    });
    report.lead = found;

    let pods = ready_pods(&peer.client, slot).await?;
    expect(problems, pods == burst.spec.size, || {
        format!("{slot}: {pods} of {} pods are ready in {}", burst.spec.size, peer.name)
    });
    Ok(report)
}

fn expect(problems: &mut Vec<String>, holds: bool, problem: impl FnOnce() -> String) {
    if !holds {
        problems.push(problem());
    }
}

/// What one side of a burst holds.
#[derive(Debug, Default, PartialEq)]
struct Side {
    /// The certificate in the Secret the pods mount. Compared, never printed.
    certificate: Option<Vec<u8>>,
    /// All hosts, as the brokers' host list has them.
    hostlist: Option<String>,
    /// Digest of the rank map in the MiniCluster's status.
    rank_map_digest: Option<String>,
}

/// Reads what the MiniCluster's pods are given in one cluster.
async fn side(client: &Client, name: &str) -> kube::Result<Side> {
    let secret = Api::<Secret>::namespaced(client.clone(), NAMESPACE).get_opt(&names::curve(name)).await?;
    let config = Api::<ConfigMap>::namespaced(client.clone(), NAMESPACE).get_opt(&names::entrypoint(name)).await?;
    let mini_cluster = Api::<MiniCluster>::namespaced(client.clone(), NAMESPACE).get_opt(name).await?;
    Ok(Side {
        certificate: secret.and_then(|secret| secret.data).and_then(|mut data| data.remove(CERTIFICATE)).map(|b| b.0),
        hostlist: config
            .and_then(|config| config.data)
            .and_then(|data| data.get(HOSTLIST).map(|text| text.trim().to_owned())),
        rank_map_digest: mini_cluster.and_then(|object| object.status).and_then(|status| status.rank_map_digest),
    })
}

/// Compares both sides; one sentence per difference.
fn differences(slot: &str, root: &Side, burst: &Side) -> Vec<String> {
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
async fn lead_of_root(client: &Client) -> kube::Result<Option<LeadReport>> {
    let service = Api::<Service>::namespaced(client.clone(), NAMESPACE).get_opt(&names::lead(NAME)).await?;
    let port = service
        .and_then(|service| service.spec)
        .and_then(|spec| spec.ports)
        .and_then(|ports| ports.first().and_then(|port| port.node_port))
        .and_then(|port| u16::try_from(port).ok());
    let selector = format!("{}={NAME},{}=0", labels::kubernetes::JOB_NAME, labels::kubernetes::COMPLETION_INDEX);
    let pods = Api::<Pod>::namespaced(client.clone(), NAMESPACE).list(&ListParams::default().labels(&selector)).await?;
    let node = pods.items.into_iter().filter_map(|pod| pod.spec?.node_name).next();
    let (Some(node), Some(port)) = (node, port) else { return Ok(None) };
    let node = Api::<Node>::all(client.clone()).get_opt(&node).await?;
    let addresses = node.and_then(|node| node.status).and_then(|status| status.addresses).unwrap_or_default();
    let of = |kind: &str| addresses.iter().find(|address| address.type_ == kind).map(|address| address.address.clone());
    Ok(of("ExternalIP").or_else(|| of("InternalIP")).map(|address| LeadReport { address, port }))
}

/// The endpoint of the burst's lead Service on the peer.
async fn lead_of_burst(client: &Client, slot: &str) -> kube::Result<Option<LeadReport>> {
    let selector = format!("{}={}", labels::kubernetes::SERVICE_NAME, names::lead(slot));
    let slices = Api::<EndpointSlice>::namespaced(client.clone(), NAMESPACE)
        .list(&ListParams::default().labels(&selector))
        .await?;
    Ok(slices.items.into_iter().find_map(|slice| {
        let address = slice.endpoints.first()?.addresses.first()?.clone();
        let port = slice.ports?.first()?.port.and_then(|port| u16::try_from(port).ok())?;
        Some(LeadReport { address, port })
    }))
}

/// Ready pods of a MiniCluster's Job.
async fn ready_pods(client: &Client, name: &str) -> kube::Result<u32> {
    let selector = format!("{}={name}", labels::kubernetes::JOB_NAME);
    let pods = Api::<Pod>::namespaced(client.clone(), NAMESPACE).list(&ListParams::default().labels(&selector)).await?;
    Ok(u32::try_from(pods.items.iter().filter(|pod| is_ready(pod)).count()).unwrap_or(u32::MAX))
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
