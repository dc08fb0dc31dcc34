//! What helm installs, in pods: two replicas on each cluster, their UDP node ports, their rights, and an upgrade under a
//! running burst.

use std::io::Write as _;
use std::path::Path;
use std::time::Duration;

use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::api::{Api, ApiResource, DeleteParams, DynamicObject, GroupVersionKind};
use serde_json::json;
use tributary::api::hosted_burst::BurstPhase;
use tributary::api::labels::condition;
use tributary::api::v1alpha1::V1ALPHA1;
use tributary_tests::agentctl::agentctl;
use tributary_tests::eventually::eventually;
use tributary_tests::federation::SYSTEM;
use tributary_tests::scenario::Place;

use crate::clusters::{Cut, Network};
use crate::ground::{clusters, in_lead, pod, ranks_up, skip, until_all_answer, until_up};
use crate::release::{Installed, RELEASE, Releases, names, with_releases};

#[tokio::test(flavor = "multi_thread")]
async fn what_helm_installs_bursts_fails_over_and_is_upgraded() {
    with_releases("e2e-installed", the_scenario).await;
}

async fn the_scenario(releases: &Releases<'_>) {
    let Releases { ground, both, places: [root, provider], kubeconfig, directory } = releases;
    let [east, west] = &both[..] else { unreachable!("two clusters") };
    let network = clusters().and_then(|(clusters, _)| clusters.network(Cut::All).unwrap());

    bursts_by_every_way(root, provider, ground.interactive(2), &west.access.name).await;
    match network {
        Some(network) => a_cut_is_bridged(root, &network).await,
        None => skip("a cut under the tunnel: nobody says how the network fails"),
    }
    seen_by_agentctl(kubeconfig, east, directory.path()).await;
    read_as_v1alpha1(root, "river").await;
    let hosted = provider.hosted().get("river-burst-0").await.unwrap().metadata.uid;

    // The leader's pod goes: the other one goes on, at the same Service.
    for one in [west, east] {
        let leader = one.leader().await.unwrap().name_any();
        let pods: Api<Pod> = Api::namespaced(one.client.clone(), SYSTEM);
        pods.delete(&leader, &DeleteParams::default().grace_period(0)).await.unwrap();
        eventually("another pod leads", async || {
            let now = one.leader().await?.name_any();
            if now == leader { Err(format!("{now} still leads")) } else { Ok(()) }
        })
        .await;
        one.connected(kubeconfig).await;
        until_all_answer(root, "river", &format!("the leader on {} was lost", one.access.name)).await;
    }

    // An upgrade replaces every pod of both releases.
    for one in [east, west] {
        let before = names(&one.replicas().await.unwrap());
        one.upgrade("bursting.drainSeconds=3");
        let now = names(&one.replicas().await.unwrap());
        assert!(before.iter().all(|pod| !now.contains(pod)), "{before:?} {now:?}");
        let deployments: Api<Deployment> = Api::namespaced(one.client.clone(), SYSTEM);
        let ready = deployments.get(RELEASE).await.unwrap().status.unwrap().ready_replicas;
        assert_eq!(ready, Some(2));
        until_all_answer(root, "river", &format!("the upgrade of {}", one.access.name)).await;
    }
    root.burst("river", "river-burst-0", BurstPhase::Ready).await;
    until_up(root, "river", "0-3").await;
    assert_eq!(provider.hosted().get("river-burst-0").await.unwrap().metadata.uid, hosted, "the burst was made anew");
    let status = agentctl(kubeconfig, &["--context", &east.access.context, "status"]).await.unwrap();
    assert!(status.contains(&west.access.name) && status.contains("river-burst-0"), "{status}");

    // Evicted by the provider's owner, it is said and not forced upon it again.
    provider.hosted().delete("river-burst-0", &DeleteParams::default()).await.unwrap();
    root.burst("river", "river-burst-0", BurstPhase::Evicted).await;
    until_up(root, "river", "0-1").await;
    root.delete("river").await;
    provider.empty("river-burst-0").await;

    joined_by_token(kubeconfig, east, west).await;
    root.create("brook", ground.bursting(1, json!([{"size": 1, "peer": west.access.name}]))).await;
    root.burst("brook", "brook-burst-0", BurstPhase::Ready).await;
    until_up(root, "brook", "0-1").await;
    root.delete("brook").await;
    provider.empty("brook-burst-0").await;

    a_job_wakes_its_burst(root, provider, ground.interactive(1), &west.access.name).await;
}

/// By the node port, then through the agents: the brokers come back by themselves.
async fn bursts_by_every_way(root: &Place, provider: &Place, mut spec: serde_json::Value, peer: &str) {
    let clusters = json!([{"size": 1, "maxSize": 2, "peer": peer}]);
    spec["flux"]["bursting"] = json!({"clusters": clusters});
    root.create("river", spec).await;
    root.burst("river", "river-burst-0", BurstPhase::Ready).await;
    until_up(root, "river", "0-2").await;
    root.change("river", json!({"flux": {"bursting": {"clusters": [{"size": 2, "maxSize": 2, "peer": peer}]}}})).await;
    until_up(root, "river", "0-3").await;

    root.change("river", json!({"flux": {"bursting": {"network": {"type": "Tunnel"}}}})).await;
    eventually("the burst is led through the tunnel", async || {
        let burst = provider.hosted().get("river-burst-0").await.map_err(|error| error.to_string())?;
        if burst.spec.tunnel { Ok(()) } else { Err(format!("{:?}", burst.spec.lead)) }
    })
    .await;
    // Its brokers find the new way when the old connection is gone.
    let mut before = Vec::new();
    for index in [0, 1] {
        let old = pod(provider, "river-burst-0", index).await.unwrap();
        provider.pods().delete(&old.name_any(), &DeleteParams::default()).await.unwrap();
        before.push((index, old.uid()));
    }
    for (index, old) in before {
        // Until then the ranks that are up are those of the old pods.
        eventually(format!("index {index} has a new pod"), async || {
            let now = pod(provider, "river-burst-0", index).await?;
            if now.uid() == old { Err("the old one is there".to_owned()) } else { Ok(()) }
        })
        .await;
    }
    eventually("all brokers are up by the tunnel", async || {
        let up = ranks_up(root, "river").await?;
        if up == "0-3" { Ok(()) } else { Err(up) }
    })
    .await;
}

/// A burst on demand: how long it takes from the job that asks for it until the peer has it, and until the job starts.
async fn a_job_wakes_its_burst(root: &Place, provider: &Place, mut spec: serde_json::Value, peer: &str) {
    spec["flux"]["bursting"] = json!({"clusters": [{"size": 1, "peer": peer, "mode": "OnDemand"}]});
    root.create("spring", spec).await;
    until_up(root, "spring", "0").await;
    eventually("the burst is asleep", async || {
        let burst = root.burst_now("spring", "spring-burst-0").await?;
        let conditions = burst.status.unwrap_or_default().conditions;
        let asleep = conditions.iter().any(|one| one.type_ == condition::DEMAND && one.reason == "Asleep");
        if asleep { Ok(()) } else { Err(format!("{conditions:?}")) }
    })
    .await;
    let job = in_lead(root, "spring", "flux submit -N2 hostname").await.unwrap();
    let begun = tokio::time::Instant::now();
    eventually("the peer has the burst", async || provider.hosted().get("spring-burst-0").await).await;
    let placed = begun.elapsed();
    in_lead(root, "spring", &format!("flux job wait-event --timeout=300s {} start", job.trim())).await.unwrap();
    let started = begun.elapsed();
    let told =
        format!("e2e: a job woke its burst: the peer had it after {placed:.1?}, the job started after {started:.1?}");
    let _ = writeln!(std::io::stderr(), "{told}");
    root.delete("spring").await;
    provider.empty("spring-burst-0").await;
}

/// Of more than the 23 s after which Flux gives up a direct connection: through the tunnel no broker is lost, and no job.
async fn a_cut_is_bridged(root: &Place, network: &Network) {
    let before = lost(root).await;
    // Its tasks end after the cut: Flux ends a job of which some tasks are done and others not heard of for 30 s.
    let job = in_lead(root, "river", "flux submit -N4 sleep 75").await.unwrap();
    network.cut();
    tokio::time::sleep(Duration::from_secs(60)).await;
    network.heal();
    in_lead(root, "river", &format!("flux job attach {}", job.trim())).await.unwrap();
    assert_eq!(ranks_up(root, "river").await.unwrap(), "0-3");
    assert_eq!(lost(root).await, before, "brokers were lost");
}

/// Brokers that the lead has given up so far, by its log.
async fn lost(root: &Place) -> usize {
    in_lead(root, "river", "flux dmesg").await.unwrap().matches("transitioning to LOST").count()
}

/// What agentctl does with real pods: a command beside the lead broker, and what is packed for somebody who helps.
async fn seen_by_agentctl(kubeconfig: &Path, root: &Installed<'_>, directory: &Path) {
    let context = ["--context", &root.access.context];
    let shell = ["shell", "river", "-n", "e2e-installed", "--", "flux", "getattr", "size"];
    let size = agentctl(kubeconfig, &[&context[..], &shell].concat()).await.unwrap();
    assert!(size.lines().any(|line| line.trim() == "4"), "{size}");
    let fails = [&context[..], &["shell", "river", "-n", "e2e-installed", "--", "false"]].concat();
    assert!(agentctl(kubeconfig, &fails).await.is_err(), "its exit code is the command's");

    let bundle = directory.join("bundle.tar.gz");
    let pack = ["support-bundle", "--out", bundle.to_str().unwrap()];
    agentctl(kubeconfig, &[&context[..], &pack].concat()).await.unwrap();
    let listed = std::process::Command::new("tar").arg("tzf").arg(&bundle).output().unwrap();
    let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
    for pod in names(&root.replicas().await.unwrap()) {
        assert!(listed.contains(&pod), "no log of {pod}:\n{listed}");
    }
}

/// API servers reach the webhook through its Service.
async fn read_as_v1alpha1(root: &Place, name: &str) {
    let older = ApiResource::from_gvk(&GroupVersionKind::gvk("flux-framework.org", "v1alpha1", "MiniCluster"));
    let older: Api<DynamicObject> = Api::namespaced_with(root.client.clone(), &root.namespace, &older);
    let read = eventually(format!("{name} is there as v1alpha1"), async || older.get(name).await).await;
    assert_eq!(read.types.unwrap().api_version, V1ALPHA1);
    assert_eq!(read.data["spec"]["size"], 2);
}

/// The peers part, and become peers again by a token.
async fn joined_by_token(kubeconfig: &Path, east: &Installed<'_>, west: &Installed<'_>) {
    let ask = async |of: &Installed<'_>, arguments: &[&str]| {
        agentctl(kubeconfig, &[&["--context", &of.access.context][..], arguments].concat()).await
    };
    for (one, other) in [(east, west), (west, east)] {
        ask(one, &["peer", "remove", &other.access.name]).await.unwrap();
    }
    let printed = ask(east, &["token", "create"]).await.unwrap();
    let token = printed.lines().find(|line| line.starts_with("tributary-1.")).expect("a line of its own").to_owned();
    let joined = ask(west, &["join", &token, "--import", "e2e-installed"]).await.unwrap();
    assert!(joined.contains("are peers") && joined.contains("connected ("), "{joined}");
}
