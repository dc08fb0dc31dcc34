//! The ways from a burst to its lead broker: that the lead Service follows without a restart of any broker, and that what is
//! found out before brokers start goes the same way.

use std::collections::BTreeSet;
use std::net::Ipv4Addr;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Node, Service};
use kube::api::{Api, ListParams, Patch, PatchParams};
use kube::{Client, ResourceExt};
use serde_json::{Value, json};
use tributary::api::hosted_burst::{BurstPhase, PreflightFinding};
use tributary::api::labels::condition;
use tributary::api::names;
use tributary_sandbox::annotations;
use tributary_tests::agent::{NOWHERE, agent_pod};
use tributary_tests::curve_server::CurveServer;
use tributary_tests::eventually::eventually;
use tributary_tests::scenario::{Place, address_pod, bursting, said_back, says_back};

use crate::shared::{places, quiet, together};

/// Stands for the lead broker's pod.
const LEAD: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 77);
/// Stands for a broker's pod of the burst.
const BROKER: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 78);

async fn leads_to(provider: &Place, slot: &str, address: &str, port: Option<u16>) -> u16 {
    eventually(format!("the lead Service leads to {address} {port:?}"), async || {
        let lead = provider.lead_endpoint(slot).await?;
        let there = lead.address == address && port.is_none_or(|port| port == lead.port);
        if there { Ok(lead.port) } else { Err(format!("{lead:?}")) }
    })
    .await
}

async fn by(root: &Place, name: &str, network: Value) {
    root.change(name, json!({"flux": {"bursting": {"network": network}}})).await;
}

/// As a cloud would.
async fn balance(root: &Place, service: &str, ingress: Value) {
    eventually("the Service is a load balancer's", async || {
        let found = root.services().get(service).await.map_err(|error| error.to_string())?;
        let kind = found.spec.and_then(|spec| spec.type_).unwrap_or_default();
        if kind == "LoadBalancer" { Ok(()) } else { Err(kind) }
    })
    .await;
    let status = Patch::Merge(json!({"status": {"loadBalancer": {"ingress": [ingress]}}}));
    let services: Api<Service> = root.services();
    services.patch_status(service, &PatchParams::default(), &status).await.unwrap();
}

async fn pods(place: &Place, job: &str) -> Result<BTreeSet<String>, String> {
    let pods = place.pods().list(&ListParams::default().labels(&format!("job-name={job}"))).await;
    Ok(pods.map_err(|error| error.to_string())?.items.iter().filter_map(ResourceExt::uid).collect())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_lead_service_follows_whatever_way_leads_to_the_root() {
    let federation = together().await;
    let [east, west, _] = places(&federation, "ways").await;
    east.create("ford", bursting(1, json!([{"size": 1, "peer": "west"}]))).await;
    east.burst("ford", "ford-burst-0", BurstPhase::Ready).await;
    east.running("ford").await;
    let both = async || (pods(&east, "ford").await.unwrap(), pods(&west, "ford-burst-0").await.unwrap());
    let before = both().await;

    by(&east, "ford", json!({"address": "203.0.113.9", "port": 9000})).await;
    leads_to(&west, "ford-burst-0", "203.0.113.9", Some(9_000)).await;

    by(&east, "ford", json!({"type": "LoadBalancer", "address": null, "port": null})).await;
    balance(&east, &names::lead("ford"), json!({"ip": "203.0.113.5"})).await;
    leads_to(&west, "ford-burst-0", "203.0.113.5", Some(8_050)).await;
    balance(&east, &names::lead("ford"), json!({"ip": "203.0.113.6"})).await;
    leads_to(&west, "ford-burst-0", "203.0.113.6", Some(8_050)).await;

    says_back(LEAD).await.unwrap();
    address_pod(&east, "ford", LEAD).await;
    address_pod(&west, "ford-burst-0", BROKER).await;
    by(&east, "ford", json!({"type": "Tunnel"})).await;
    let port = leads_to(&west, "ford-burst-0", &agent_pod().to_string(), None).await;
    eventually("the lead answers through the agents", async || {
        // A connection that nobody answers is one to try again.
        let heard = tokio::time::timeout(Duration::from_secs(5), said_back(BROKER, port, b"hello")).await;
        let heard = heard.map_err(|error| error.to_string())?.map_err(|error| error.to_string())?;
        if heard == b"hello" { Ok(()) } else { Err(format!("{heard:?}")) }
    })
    .await;
    assert!(said_back(Ipv4Addr::new(127, 0, 0, 79), port, b"hello").await.is_err(), "no pod of the burst");

    assert_eq!(both().await, before, "no broker was started anew");
    east.delete("ford").await;
    west.empty("ford-burst-0").await;
}

/// Makes all nodes say that they have such kubelets.
pub(crate) async fn kubelets(client: &Client, kubelet: &str, runtime: &str) {
    let nodes: Api<Node> = Api::all(client.clone());
    for node in nodes.list(&ListParams::default()).await.unwrap() {
        let info = json!({"kubeletVersion": kubelet, "containerRuntimeVersion": runtime});
        let patch = Patch::Merge(json!({"status": {"nodeInfo": info}}));
        nodes.patch_status(&node.name_any(), &PatchParams::default(), &patch).await.unwrap();
    }
}

/// Waits until the condition of a burst whose lead broker is behind the tunnel, and holds its instance's certificate or not,
/// has this status and reason. Its sentence.
async fn looked_at(
    root: &Place,
    provider: &Place,
    (name, lead): (&str, Ipv4Addr),
    said: [&str; 2],
    ours: bool,
) -> String {
    let server = CurveServer::listen(lead, 8_050).await.unwrap();
    let onto = |peer: &str| {
        let bursting = json!({"network": {"type": "Tunnel"}, "clusters": [{"size": 1, "peers": [peer]}]});
        json!({"flux": {"bursting": bursting}})
    };
    let mut spec = bursting(1, json!([]));
    spec["flux"] = onto("nobody")["flux"].clone();
    root.create(name, spec).await;
    root.running(name).await;
    address_pod(root, name, lead).await;
    if ours {
        let secret = root.secrets().get(&names::curve(name)).await.unwrap();
        server.hold(std::str::from_utf8(&secret.data.unwrap()["curve.cert"].0).unwrap());
    }
    root.change(name, onto("west")).await;
    let slot = names::default_burst(name, 0);
    eventually(format!("{slot} has a pod"), async || {
        if pods(provider, &slot).await?.is_empty() { Err("it has none".to_owned()) } else { Ok(()) }
    })
    .await;
    // Brokers that have joined need no preflight.
    provider.annotate_pod(&slot, 0, annotations::NOT_READY, "").await;
    eventually(format!("the lead of {slot} was dialled"), async || {
        let status = root.burst_now(name, &slot).await?.status.unwrap_or_default();
        let found = status.conditions.iter().find(|one| one.type_ == condition::PREFLIGHT);
        let found = found.filter(|found| [found.status.as_str(), found.reason.as_str()] == said);
        let reached = |finding: &PreflightFinding| {
            finding.check == "LeadAddress" && finding.message.contains("through the tunnel, takes TCP connections")
        };
        match found {
            Some(found) if status.preflight.iter().any(reached) => Ok(found.message.clone()),
            _ => Err(format!("{:?} {:?}", status.conditions, status.preflight)),
        }
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn the_preflight_goes_through_the_tunnel() {
    if agent_pod() == NOWHERE {
        eprintln!("SKIPPED: by loopback alone no agent can dial itself as it would in a pod");
        return;
    }
    let federation = quiet().await;
    let [east, west, _] = places(&federation, "preflight").await;
    // On simulated nodes there is nothing to look at.
    kubelets(&west.client, "v1.33.0", "containerd://2.0.0").await;
    let (ours, other) = tokio::join!(
        looked_at(&east, &west, ("ford", Ipv4Addr::new(127, 0, 0, 87)), ["True", "Passed"], true),
        looked_at(&east, &west, ("weir", Ipv4Addr::new(127, 0, 0, 88)), ["False", "Certificate"], false),
    );
    assert!(ours.contains("holds the certificate of the instance"), "{ours}");
    assert!(other.contains("another certificate"), "{other}");
    for name in ["ford", "weir"] {
        east.delete(name).await;
        west.empty(&names::default_burst(name, 0)).await;
    }
    kubelets(&west.client, "kwok", "kwok://").await;
}
