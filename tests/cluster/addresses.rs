//! Where a user of the root's cluster can send a provider by the address of a lead broker: nowhere inside it.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use k8s_openapi::api::core::v1::{Node, Pod, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::api::networking::v1::NetworkPolicy;
use kube::ResourceExt;
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tributary::api::hosted_burst::BurstPhase;
use tributary::api::peer::ClusterPeer;
use tributary_tests::agent::{NOWHERE, agent_pod};
use tributary_tests::eventually::eventually;
use tributary_tests::federation::SYSTEM;
use tributary_tests::scenario::{Place, bursting};

use crate::network::kubelets;
use crate::policy::import;
use crate::shared::{places, quiet};

/// Counts who connects.
async fn listen(address: IpAddr) -> (SocketAddr, Arc<AtomicUsize>) {
    let listener = TcpListener::bind((address, 0)).await.unwrap();
    let (end, seen) = (listener.local_addr().unwrap(), Arc::new(AtomicUsize::new(0)));
    let count = seen.clone();
    tokio::spawn(async move {
        while listener.accept().await.is_ok() {
            count.fetch_add(1, Ordering::SeqCst);
        }
    });
    (end, seen)
}

/// A root with a burst on west, whose user says that its lead broker is there.
async fn root(place: &Place, name: &str, address: &str, port: u16) {
    let mut spec = bursting(1, json!([{"size": 1, "peer": "west"}]));
    spec["flux"]["bursting"]["network"] = json!({"address": address, "port": port});
    place.create(name, spec).await;
}

/// Where the pods of a burst may connect to.
async fn opened(provider: &Place, slot: &str) -> Result<String, String> {
    let policies: Api<NetworkPolicy> = Api::namespaced(provider.client.clone(), &provider.namespace);
    let policy = policies.get(&format!("{slot}-egress")).await.map_err(|error| error.to_string())?;
    Ok(serde_json::to_string(&policy.spec).unwrap())
}

/// Waits until the burst of a root is refused for its lead's address. Nothing of it is there, and nothing is opened for it.
async fn refused(east: &Place, west: &Place, (name, address): (&str, &str), port: u16) {
    root(east, name, address, port).await;
    let slot = format!("{name}-burst-0");
    let burst = east.burst(name, &slot, BurstPhase::Rejected).await;
    let refusal = burst.status.unwrap().refusals.remove(0);
    assert_eq!(refusal.reason, "LeadAddressRefused", "{name}: {}", refusal.message);
    assert!(refusal.message.contains(address), "{name}: {}", refusal.message);
    assert!(refusal.message.contains("this cluster's own"), "{name}: {}", refusal.message);
    assert!(west.left(&slot).await.unwrap().is_empty(), "{name}");
    assert!(opened(west, &slot).await.is_err(), "{name}");
    east.delete(name).await;
}

/// Gives an address to the first node of a cluster, or takes it away.
async fn of_a_node(place: &Place, address: IpAddr, has: bool) {
    let nodes: Api<Node> = Api::all(place.client.clone());
    let node = nodes.list(&ListParams::default()).await.unwrap().items.remove(0);
    let name = node.name_any();
    let mut addresses = node.status.unwrap().addresses.unwrap();
    addresses.retain(|one| one.type_ != "ExternalIP");
    let mut addresses = serde_json::to_value(addresses).unwrap();
    if has {
        addresses.as_array_mut().unwrap().push(json!({"type": "ExternalIP", "address": address}));
    }
    let patch = Patch::Merge(json!({"status": {"addresses": addresses}}));
    nodes.patch_status(&name, &PatchParams::default(), &patch).await.unwrap();
}

fn of_the_api_servers(address: IpAddr) -> EndpointSlice {
    let slice = json!({"metadata": {"name": "kubernetes", "namespace": "default",
        "labels": {"kubernetes.io/service-name": "kubernetes"}}, "addressType": "IPv4",
        "endpoints": [{"addresses": [address]}], "ports": [{"name": "https", "port": 6443}]});
    serde_json::from_value(slice).unwrap()
}

/// Makes a pod, and waits until it has this address.
async fn has_pod(place: &Place, address: IpAddr) {
    let pod = json!({"metadata": {"name": "db"}, "spec": {"containers": [{"name": "db", "image": "db"}]}});
    let pod: Pod = serde_json::from_value(pod).unwrap();
    eventually("there is a pod", async || {
        // The namespace's service account may be a moment behind.
        place.pods().create(&PostParams::default(), &pod).await.map_err(|error| error.to_string())
    })
    .await;
    eventually("the pod has its address", async || {
        let status = Patch::Merge(json!({"status": {"podIP": address, "podIPs": [{"ip": address}]}}));
        let found = place.pods().get("db").await.map_err(|error| error.to_string())?.status.unwrap_or_default();
        if found.phase.as_deref() != Some("Running") {
            return Err(format!("{:?}", found.phase));
        }
        if found.pod_ip == Some(address.to_string()) {
            return Ok(());
        }
        place.pods().patch_status("db", &PatchParams::default(), &status).await.map_err(|error| error.to_string())?;
        Err(format!("{:?}", found.pod_ip))
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lead_that_is_the_providers_own_is_refused_with_nothing_dialled_and_nothing_opened() {
    let machine = agent_pod();
    if machine == NOWHERE {
        eprintln!("SKIPPED: by loopback alone there is no address that a lead may have");
        return;
    }
    let federation = quiet().await;
    let [east, west, _] = places(&federation, "inside").await;
    let peers: Api<ClusterPeer> = Api::namespaced(federation.client(1).await, SYSTEM);
    import(&peers, json!({"egress": {"allow": []}})).await;
    kubelets(&west.client, "v1.33.0", "containerd://2.0.0").await;
    let machine = IpAddr::from(machine);
    let ((end, seen), text) = (listen(machine).await, machine.to_string());
    // What has these addresses is known long before they are asked for.
    let [api_server, balancer, pod] = [1, 2, 3].map(|last| IpAddr::from([203, 0, 113, last]));
    let slices: Api<EndpointSlice> = Api::namespaced(west.client.clone(), "default");
    slices.create(&PostParams::default(), &of_the_api_servers(api_server)).await.unwrap();
    let web = json!({"metadata": {"name": "web"}, "spec": {"type": "LoadBalancer", "ports": [{"port": 80}]}});
    west.services().create(&PostParams::default(), &serde_json::from_value(web).unwrap()).await.unwrap();
    let status: Value = json!({"status": {"loadBalancer": {"ingress": [{"ip": balancer}]}}});
    west.services().patch_status("web", &PatchParams::default(), &Patch::Merge(status)).await.unwrap();
    has_pod(&west, pod).await;

    // As long as it is nobody's, it is a lead's like any other.
    root(&east, "ford", &text, end.port()).await;
    eventually("the lead is dialled, and opened to the burst's pods", async || {
        let rules = opened(&west, "ford-burst-0").await?;
        let dialled = seen.load(Ordering::SeqCst) > 0;
        if dialled && rules.contains(&format!("{machine}/32")) { Ok(()) } else { Err(format!("{dialled} {rules}")) }
    })
    .await;
    // A node that has it takes it away from everybody.
    of_a_node(&west, machine, true).await;
    eventually("the lead Service leads there no more, and the pods may not connect", async || {
        let rules = opened(&west, "ford-burst-0").await?;
        match west.lead_endpoint("ford-burst-0").await {
            Err(_) if !rules.contains(&format!("{machine}/32")) => Ok(()),
            lead => Err(format!("{lead:?} {rules}")),
        }
    })
    .await;
    east.delete("ford").await;
    west.empty("ford-burst-0").await;
    let before = seen.load(Ordering::SeqCst);

    // The address of the Service `kubernetes`.
    let services: Api<Service> = Api::namespaced(west.client.clone(), "default");
    let cluster_ip = services.get("kubernetes").await.unwrap().spec.unwrap().cluster_ip.unwrap();
    let translated = format!("64:ff9b::{machine}").parse::<IpAddr>().unwrap();
    let all = [
        ("of-node", text.clone()),
        ("of-node-in-disguise", translated.to_string()),
        ("of-api-server", api_server.to_string()),
        ("of-service", cluster_ip),
        ("of-balancer", balancer.to_string()),
        ("of-pod", pod.to_string()),
    ];
    for (name, address) in all {
        refused(&east, &west, (name, &address), end.port()).await;
    }
    of_a_node(&west, machine, false).await;
    slices.delete("kubernetes", &DeleteParams::default()).await.unwrap();
    west.services().delete("web", &DeleteParams::default()).await.unwrap();
    west.pods().delete("db", &DeleteParams::default()).await.unwrap();

    assert_eq!(seen.load(Ordering::SeqCst), before, "somebody looked there");
    let slip = Patch::Merge(json!({"spec": {"import": {"leadRanges": ["10.0.0.0"]}}}));
    let error = peers.patch("east", &PatchParams::default(), &slip).await.unwrap_err().to_string();
    assert!(error.contains("import.leadRanges: each must be a range of addresses"), "{error}");
    import(&peers, json!({"leadRanges": ["198.51.100.0/24"]})).await;
    root(&east, "elsewhere", &text, end.port()).await;
    let burst = east.burst("elsewhere", "elsewhere-burst-0", BurstPhase::Rejected).await;
    let message = burst.status.unwrap().refusals.remove(0).message;
    assert!(message.ends_with("is in none of import.leadRanges"), "{message}");
    east.delete("elsewhere").await;
    import(&peers, json!({"leadRanges": null, "egress": null})).await;
    kubelets(&west.client, "kwok", "kwok://").await;
}
