//! Two clusters with an agent each: how long a burst takes.

use std::time::{Duration, Instant};

use anyhow::Context;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{Api, ListParams, Patch, PatchParams};
use serde_json::json;
use tributary_sandbox::{Options, Sandbox};
use tributary_tests::federation::{Federation, apply_peer, cluster_peer};
use tributary_tests::scenario::{Place, bursting};

use crate::figures::{figure, percentiles};
use tributary_tests::udp_way::way;

/// Root applied until the HostedBurst is on the peer, and until all pods of both are ready; and the lead's address changed
/// until the lead Service of the provider points to the new one.
pub(crate) async fn burst() -> anyhow::Result<()> {
    let sandbox = Sandbox::start(Options::named(["east", "west"])).await?;
    let federation = Federation::start(sandbox, "").await?;
    federation.namespace("bench").await?;
    let place = |client| Place { client, namespace: "bench".to_owned() };
    let (east, west) = (place(federation.client(0).await), place(federation.client(1).await));
    measure(&east, &west, "near", "loopback", ("-", "-")).await?;
    move_apart(&federation, ROUND_TRIP / 2).await?;
    measure(&east, &west, "far", "50 ms round trip", ("250 ms", "3 s")).await?;
    repoint(&east, &west, "50 ms round trip").await?;
    for agent in &federation.agents {
        if let Some(process) = agent.pid() {
            let resident = crate::operator::resident(process)?;
            figure("RSS of a federated agent, idle", &format!("{resident:.0} MiB"), "-", "-");
        }
    }
    Ok(())
}

/// Between the agents, in the second measurement.
const ROUND_TRIP: Duration = Duration::from_millis(50);

/// From now on the agents reach each other only by a way that takes `one_way`.
async fn move_apart(federation: &Federation, one_way: Duration) -> anyhow::Result<()> {
    for (index, other) in [(0, 1), (1, 0)] {
        let endpoint = way(federation.agent(other).listen, one_way, 0).await?.address;
        let peer = cluster_peer(federation.clusters()[other].name(), &endpoint.to_string());
        apply_peer(&federation.client(index).await, &peer).await?;
    }
    for agent in &federation.agents {
        agent.stop(&federation.group).await?;
        agent.start(&federation.group)?;
    }
    // Until both lead and are connected: their peers' statuses outlive a short restart.
    tokio::time::sleep(Duration::from_secs(8)).await;
    federation.connected().await;
    Ok(())
}

async fn measure(east: &Place, west: &Place, name: &str, way: &str, goals: (&str, &str)) -> anyhow::Result<()> {
    const TIMES: usize = 10;
    let (mut hosted, mut ready) = (Vec::new(), Vec::new());
    for index in 0..TIMES {
        let (root, slot) = (format!("{name}-{index}"), format!("{name}-{index}-burst-0"));
        let started = now();
        east.create(&root, bursting(4, json!([{"size": 3, "peer": "west"}]))).await;
        until(|| async { Ok(west.hosted().get_opt(&slot).await?.is_some()) }).await?;
        hosted.push(started.elapsed());
        until(|| async { Ok(ready_pods(west, &slot).await? == 3 && ready_pods(east, &root).await? == 4) }).await?;
        ready.push(started.elapsed());
        east.delete(&root).await;
        west.empty(&slot).await;
    }
    figure(&format!("root applied → HostedBurst on the peer, {way}"), &percentiles(&mut hosted), "-", goals.0);
    figure(
        &format!("root of 4 applied → all pods of a burst of 3 ready, {way}"),
        &percentiles(&mut ready),
        "-",
        goals.1,
    );
    Ok(())
}

/// The node of the lead broker gets other addresses.
async fn repoint(east: &Place, west: &Place, way: &str) -> anyhow::Result<()> {
    const TIMES: u8 = 20;
    let (root, slot) = ("moved", "moved-burst-0");
    east.create(root, bursting(2, json!([{"size": 1, "peer": "west"}]))).await;
    until(|| async { Ok(ready_pods(west, slot).await? == 1 && ready_pods(east, root).await? == 2) }).await?;
    let pods = east.pods().list(&ListParams::default().labels(&format!("job-name={root}"))).await?;
    let of_lead = |pod: &&Pod| pod.metadata.name.as_deref().is_some_and(|name| name.starts_with("moved-0-"));
    let lead = pods.items.iter().find(of_lead).and_then(|pod| pod.spec.as_ref()?.node_name.clone());
    let lead = lead.context("the lead pod is on no node")?;
    let nodes: Api<Node> = Api::all(east.client.clone());
    let mut repointed = Vec::new();
    for number in 1..=TIMES {
        let address = format!("203.0.113.{number}");
        let status = json!({"status": {"addresses": [{"type": "ExternalIP", "address": address}]}});
        let started = now();
        nodes.patch_status(&lead, &PatchParams::default(), &Patch::Strategic(status)).await?;
        until(|| async { Ok(west.lead_endpoint(slot).await.is_ok_and(|lead| lead.address == address)) }).await?;
        repointed.push(started.elapsed());
    }
    east.delete(root).await;
    west.empty(slot).await;
    figure(&format!("lead's address changed → lead Service, {way}"), &percentiles(&mut repointed), "-", "3 s");
    Ok(())
}

async fn ready_pods(place: &Place, job: &str) -> kube::Result<usize> {
    let pods: Api<Pod> = place.pods();
    let list = pods.list(&ListParams::default().labels(&format!("job-name={job}"))).await?;
    let ready = |pod: &&Pod| {
        let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_ref());
        conditions.is_some_and(|all| all.iter().any(|one| one.type_ == "Ready" && one.status == "True"))
    };
    Ok(list.items.iter().filter(ready).count())
}

async fn until<F: Future<Output = kube::Result<bool>>>(look: impl Fn() -> F) -> anyhow::Result<()> {
    let started = now();
    while !look().await? {
        anyhow::ensure!(started.elapsed() < Duration::from_secs(120), "a burst is not ready after 2 minutes");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    Ok(())
}

#[allow(clippy::disallowed_methods, reason = "a benchmark measures real time")]
fn now() -> Instant {
    Instant::now()
}
