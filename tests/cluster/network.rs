//! The ways from a burst to its lead broker, and that the lead Service follows without a restart of any broker.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use k8s_openapi::api::core::v1::Service;
use kube::ResourceExt;
use kube::api::{Api, ListParams, Patch, PatchParams};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpSocket};
use tributary::api::hosted_burst::BurstPhase;
use tributary::api::names;
use tributary_tests::agent::AGENT_POD;
use tributary_tests::eventually::eventually;
use tributary_tests::scenario::{Place, bursting};

use crate::shared::{places, together};

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

/// Gives the only pod of a Job an address.
async fn address_pod(place: &Place, job: &str, address: Ipv4Addr) {
    let pods = place.pods().list(&ListParams::default().labels(&format!("job-name={job}"))).await.unwrap();
    let name = pods.items[0].name_any();
    let status = Patch::Merge(json!({"status": {"podIP": address, "podIPs": [{"ip": address}]}}));
    place.pods().patch_status(&name, &PatchParams::default(), &status).await.unwrap();
}

async fn pods(place: &Place, job: &str) -> BTreeSet<String> {
    let pods = place.pods().list(&ListParams::default().labels(&format!("job-name={job}"))).await.unwrap();
    pods.items.iter().filter_map(ResourceExt::uid).collect()
}

/// Says something to whoever is behind the tunnel, from an address.
async fn said_back(from: Ipv4Addr, port: u16, word: &[u8]) -> std::io::Result<Vec<u8>> {
    let socket = TcpSocket::new_v4()?;
    socket.bind(SocketAddr::new(IpAddr::V4(from), 0))?;
    let mut tcp = socket.connect((Ipv4Addr::LOCALHOST, port).into()).await?;
    tcp.write_all(word).await?;
    let mut heard = vec![0; word.len()];
    tcp.read_exact(&mut heard).await?;
    Ok(heard)
}

#[tokio::test(flavor = "multi_thread")]
async fn the_lead_service_follows_whatever_way_leads_to_the_root() {
    let federation = together().await;
    let [east, west, _] = places(&federation, "ways").await;
    east.create("ford", bursting(1, json!([{"size": 1, "peer": "west"}]))).await;
    east.burst("ford", "ford-burst-0", BurstPhase::Ready).await;
    let before = (pods(&east, "ford").await, pods(&west, "ford-burst-0").await);

    by(&east, "ford", json!({"address": "203.0.113.9", "port": 9000})).await;
    leads_to(&west, "ford-burst-0", "203.0.113.9", Some(9_000)).await;

    by(&east, "ford", json!({"type": "LoadBalancer", "address": null, "port": null})).await;
    balance(&east, &names::lead("ford"), json!({"ip": "203.0.113.5"})).await;
    leads_to(&west, "ford-burst-0", "203.0.113.5", Some(8_050)).await;
    balance(&east, &names::lead("ford"), json!({"ip": "203.0.113.6"})).await;
    leads_to(&west, "ford-burst-0", "203.0.113.6", Some(8_050)).await;

    let listener = TcpListener::bind((LEAD, 8_050)).await.unwrap();
    tokio::spawn(async move {
        while let Ok((mut tcp, _)) = listener.accept().await {
            tokio::spawn(async move {
                let (mut reader, mut writer) = tcp.split();
                let _ = tokio::io::copy(&mut reader, &mut writer).await;
            });
        }
    });
    address_pod(&east, "ford", LEAD).await;
    address_pod(&west, "ford-burst-0", BROKER).await;
    by(&east, "ford", json!({"type": "Tunnel"})).await;
    let port = leads_to(&west, "ford-burst-0", AGENT_POD, None).await;
    eventually("the lead answers through the agents", async || {
        let heard = said_back(BROKER, port, b"hello").await.map_err(|error| error.to_string())?;
        if heard == b"hello" { Ok(()) } else { Err(format!("{heard:?}")) }
    })
    .await;
    assert!(said_back(Ipv4Addr::new(127, 0, 0, 79), port, b"hello").await.is_err(), "no pod of the burst");

    assert_eq!((pods(&east, "ford").await, pods(&west, "ford-burst-0").await), before, "no broker was started anew");
    east.delete("ford").await;
    west.empty("ford-burst-0").await;
}
