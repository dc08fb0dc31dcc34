//! What helm installs, in pods: two replicas on each cluster, their UDP node ports, their rights, and an upgrade under a
//! running burst.

use std::panic::{AssertUnwindSafe, resume_unwind};
use std::path::{Path, PathBuf};
use std::time::Duration;

use futures::FutureExt;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Namespace, Pod};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Api, ApiResource, DeleteParams, DynamicObject, ListParams};
use kube::config::Kubeconfig;
use kube::{Client, ResourceExt};
use serde_json::json;
use tributary::api::hosted_burst::BurstPhase;
use tributary::api::v1alpha1;
use tributary_sandbox::Access;
use tributary_tests::agentctl::{agentctl, document};
use tributary_tests::chart;
use tributary_tests::eventually::eventually;
use tributary_tests::federation::SYSTEM;
use tributary_tests::scenario::Place;

use crate::clusters::Network;
use crate::ground::{Ground, clusters, enter, in_lead, pod, ranks_up, skip, until_all_answer, until_up};

const RELEASE: &str = "tributary";

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// One cluster, with its release.
struct Installed<'a> {
    access: &'a Access,
    client: Client,
    image: &'a str,
}

impl Installed<'_> {
    fn helm(&self, arguments: &[&str]) {
        let scope = ["--kube-context", &self.access.context, "--namespace", SYSTEM];
        let output = chart::helm(&repository(), Some(&self.access.kubeconfig), &[arguments, &scope].concat()).unwrap();
        assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    }

    /// As the README says it; the image is one that is here.
    async fn install(&self) {
        // Kinds that somebody else has installed are his.
        let definitions = Api::<CustomResourceDefinition>::all(self.client.clone());
        let found = definitions.get_opt("miniclusters.flux-framework.org").await.unwrap();
        let kinds = format!("crds.enabled={}", found.is_none());
        let (repository, tag) = self.image.rsplit_once(':').unwrap_or((self.image, "latest"));
        let name = format!("cluster.name={}", self.access.name);
        let image = format!("image.repository={repository},image.tag={tag},image.pullPolicy=IfNotPresent");
        let install = ["install", RELEASE, "charts/tributary", "--create-namespace", "--wait", "--timeout", "180s"];
        self.helm(
            &[&install[..], &["--set", &name, "--set", &image, "--set", &kinds, "--set", "bursting.drainSeconds=2"]]
                .concat(),
        );
    }

    async fn replicas(&self) -> Result<Vec<Pod>, String> {
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), SYSTEM);
        let agents = ListParams::default().labels("app.kubernetes.io/name=tributary");
        let list = pods.list(&agents).await.map_err(|error| error.to_string())?;
        Ok(list.items.into_iter().filter(|pod| pod.metadata.deletion_timestamp.is_none()).collect())
    }

    /// The pod that leads.
    async fn leader(&self) -> Result<String, String> {
        let leases: Api<Lease> = Api::namespaced(self.client.clone(), SYSTEM);
        let lease = leases.get("tributary-agent").await.map_err(|error| error.to_string())?;
        let holder = lease.spec.and_then(|spec| spec.holder_identity).unwrap_or_default();
        let pods = self.replicas().await?;
        let leads = pods.iter().map(ResourceExt::name_any).find(|name| holder.starts_with(name.as_str()));
        leads.ok_or_else(|| format!("{holder:?} is none of the pods"))
    }

    /// Removes everything that an earlier run may have left, and what this one made.
    async fn uninstall(&self) {
        let scope = ["--kube-context", &self.access.context, "--namespace", SYSTEM, "--ignore-not-found", "--wait"];
        let arguments = [&["uninstall", RELEASE][..], &scope].concat();
        let output = chart::helm(&repository(), Some(&self.access.kubeconfig), &arguments).unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let namespaces = Api::<Namespace>::all(self.client.clone());
        let _ = namespaces.delete(SYSTEM, &DeleteParams::default()).await;
        eventually("the agents' namespace is gone", async || {
            match namespaces.get_opt(SYSTEM).await.map_err(|error| error.to_string())? {
                None => Ok(()),
                Some(left) => Err(format!("{:?}", left.status)),
            }
        })
        .await;
    }
}

/// One kubeconfig with both contexts, as the owner of two clusters has it.
fn kubeconfig(clusters: &[Access], directory: &Path) -> PathBuf {
    let read = |access: &Access| Kubeconfig::read_from(&access.kubeconfig).unwrap();
    let merged = read(&clusters[0]).merge(read(&clusters[1])).unwrap();
    let file = directory.join("both");
    std::fs::write(&file, serde_json::to_string(&merged).unwrap()).unwrap();
    file
}

#[tokio::test(flavor = "multi_thread")]
async fn what_helm_installs_bursts_fails_over_and_is_upgraded() {
    let Some((clusters, images)) = clusters() else { return };
    let Some(image) = images.agent.as_deref() else {
        return skip("what helm installs needs an image of the agent: TRIBUTARY_E2E_AGENT_IMAGE");
    };
    // Two agents of one cluster would be one too many.
    let Some(ground) = enter().await else { return };
    ground.stop_agents().await;
    let directory = tempfile::tempdir().unwrap();
    let kubeconfig = kubeconfig(clusters.access(), directory.path());
    let mut both = Vec::new();
    for access in &clusters.access()[..2] {
        let installed = Installed { access, client: access.client().await.unwrap(), image };
        installed.uninstall().await;
        installed.install().await;
        both.push(installed);
    }
    let places = ground.namespace("e2e-installed").await;
    let scenario = the_scenario(clusters.network().unwrap(), &ground, &both, &places, (&kubeconfig, directory.path()));
    // What is installed would be in the way of all other tests: it goes, whatever came of this one.
    let ended = AssertUnwindSafe(scenario).catch_unwind().await;
    ground.leave(&places).await;
    for one in &both {
        one.uninstall().await;
    }
    ground.introduce().await.unwrap();
    ground.start_agents().await;
    if let Err(panic) = ended {
        resume_unwind(panic);
    }
}

async fn the_scenario(
    network: Option<Network>,
    ground: &Ground,
    both: &[Installed<'_>],
    [root, provider]: &[Place; 2],
    (kubeconfig, directory): (&Path, &Path),
) {
    let [east, west] = both else { unreachable!("two clusters") };
    agentctl(kubeconfig, &["link", &east.access.context, &west.access.context, "--import", "e2e-installed"])
        .await
        .unwrap();

    bursts_by_every_way(root, provider, ground.interactive(2), &west.access.name).await;
    match network {
        Some(network) => a_cut_is_bridged(root, &network).await,
        None => skip("a cut under the tunnel: nobody says how the network fails"),
    }
    seen_by_agentctl(kubeconfig, east, directory).await;
    read_as_v1alpha1(root, "river").await;
    let hosted = provider.hosted().get("river-burst-0").await.unwrap().metadata.uid;

    // The leader's pod goes: the other one goes on, at the same Service.
    for one in [west, east] {
        let leader = one.leader().await.unwrap();
        let pods: Api<Pod> = Api::namespaced(one.client.clone(), SYSTEM);
        pods.delete(&leader, &DeleteParams::default().grace_period(0)).await.unwrap();
        eventually("another pod leads", async || {
            let now = one.leader().await?;
            if now == leader { Err(format!("{now} still leads")) } else { Ok(()) }
        })
        .await;
        eventually("the peers are connected", async || {
            let said = document(kubeconfig, &["--context", &one.access.context, "peers"]).await;
            let said = said.map_err(|error| error.to_string())?;
            let states = said["items"].as_array().into_iter().flatten().map(|peer| peer["state"].clone());
            let connected = states.clone().count() == 1 && states.into_iter().all(|state| state == "Connected");
            if connected { Ok(()) } else { Err(said.to_string()) }
        })
        .await;
        until_all_answer(root, "river", &format!("the leader on {} was lost", one.access.name)).await;
    }

    // An upgrade replaces every pod of both releases.
    for one in [east, west] {
        let before = names(&one.replicas().await.unwrap());
        let upgrade =
            ["upgrade", RELEASE, "charts/tributary", "--reset-then-reuse-values", "--wait", "--timeout", "180s"];
        one.helm(&[&upgrade[..], &["--set", "bursting.drainSeconds=3"]].concat());
        let now = names(&one.replicas().await.unwrap());
        assert!(before.iter().all(|pod| !now.contains(pod)), "{before:?} {now:?}");
        let deployments: Api<Deployment> = Api::namespaced(one.client.clone(), SYSTEM);
        let ready = deployments.get("tributary").await.unwrap().status.unwrap().ready_replicas;
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
}

fn names(pods: &[Pod]) -> Vec<String> {
    pods.iter().map(ResourceExt::name_any).collect()
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
    let older = ApiResource::erase::<v1alpha1::MiniCluster>(&());
    let older: Api<DynamicObject> = Api::namespaced_with(root.client.clone(), &root.namespace, &older);
    let read = eventually(format!("{name} is there as v1alpha1"), async || older.get(name).await).await;
    assert_eq!(read.types.unwrap().api_version, v1alpha1::V1ALPHA1);
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
