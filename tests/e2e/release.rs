//! Releases of the chart: on both clusters, with agents in pods, instead of the agents that are processes of this machine.

use std::io::Write as _;
use std::panic::{AssertUnwindSafe, resume_unwind};
use std::path::{Path, PathBuf};

use futures::FutureExt;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Namespace, Pod};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Api, DeleteParams, ListParams};
use kube::config::Kubeconfig;
use kube::{Client, ResourceExt};
use tributary_sandbox::Access;
use tributary_tests::agentctl::{agentctl, document};
use tributary_tests::chart;
use tributary_tests::eventually::{eventually, gone};
use tributary_tests::federation::SYSTEM;
use tributary_tests::scenario::Place;

use crate::ground::{Ground, clusters, enter, skip};

/// Name of the release, and of its Deployment.
pub(crate) const RELEASE: &str = "tributary";

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// One cluster, with its release.
pub(crate) struct Installed<'a> {
    pub(crate) access: &'a Access,
    pub(crate) client: Client,
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

    /// The agents' pods that are not about to end.
    pub(crate) async fn replicas(&self) -> Result<Vec<Pod>, String> {
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), SYSTEM);
        let agents = ListParams::default().labels("app.kubernetes.io/name=tributary");
        let list = pods.list(&agents).await.map_err(|error| error.to_string())?;
        Ok(list.items.into_iter().filter(|pod| pod.metadata.deletion_timestamp.is_none()).collect())
    }

    /// Who leads, as the Lease says it: another one for each process, and nobody while nobody does.
    pub(crate) async fn holder(&self) -> Result<String, String> {
        let leases: Api<Lease> = Api::namespaced(self.client.clone(), SYSTEM);
        let lease = leases.get("tributary-agent").await.map_err(|error| error.to_string())?;
        Ok(lease.spec.and_then(|spec| spec.holder_identity).unwrap_or_default())
    }

    /// The pod that leads.
    pub(crate) async fn leader(&self) -> Result<Pod, String> {
        let (holder, pods) = (self.holder().await?, self.replicas().await?);
        let leads = pods.into_iter().find(|pod| holder.starts_with(&pod.name_any()));
        leads.ok_or_else(|| format!("{holder:?} is none of the pods"))
    }

    /// Waits until this agent says that it is connected with its one peer.
    pub(crate) async fn connected(&self, kubeconfig: &Path) {
        eventually(format!("{} is connected", self.access.name), async || {
            let said = document(kubeconfig, &["--context", &self.access.context, "peers"]).await;
            let said = said.map_err(|error| error.to_string())?;
            let states = said["items"].as_array().into_iter().flatten().map(|peer| peer["state"].clone());
            let connected = states.clone().count() == 1 && states.into_iter().all(|state| state == "Connected");
            if connected { Ok(()) } else { Err(said.to_string()) }
        })
        .await;
    }

    /// Upgrades the release with one more setting, as the guide says it.
    pub(crate) fn upgrade(&self, setting: &str) {
        let upgrade = ["upgrade", RELEASE, "charts/tributary", "--reset-then-reuse-values", "--wait"];
        self.helm(&[&upgrade[..], &["--timeout", "180s", "--set", setting]].concat());
    }

    /// Removes everything that an earlier run may have left, and what this one made.
    async fn uninstall(&self) {
        let scope = ["--kube-context", &self.access.context, "--namespace", SYSTEM, "--ignore-not-found", "--wait"];
        let arguments = [&["uninstall", RELEASE][..], &scope].concat();
        let output = chart::helm(&repository(), Some(&self.access.kubeconfig), &arguments).unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let namespaces = Api::<Namespace>::all(self.client.clone());
        let _ = namespaces.delete(SYSTEM, &DeleteParams::default()).await;
        gone(&namespaces, SYSTEM).await;
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

/// What a scenario has: agents of two releases, who are each other's peers, and a namespace on both clusters.
pub(crate) struct Releases<'a> {
    pub(crate) ground: &'a Ground,
    pub(crate) both: Vec<Installed<'a>>,
    pub(crate) places: [Place; 2],
    pub(crate) kubeconfig: PathBuf,
    /// For files of the scenario's own.
    pub(crate) directory: tempfile::TempDir,
}

impl Releases<'_> {
    /// Makes the clusters peers of each other, or tells each where the other one is now.
    pub(crate) async fn link(&self) {
        let [east, west] = &self.both[..] else { unreachable!("two clusters") };
        let link = ["link", &east.access.context, &west.access.context, "--import", &self.places[0].namespace];
        agentctl(&self.kubeconfig, &link).await.unwrap();
    }

    /// What somebody who helps would want to see, for whoever looks at a scenario that failed.
    async fn keep_bundles(&self) {
        let directory = std::env::temp_dir();
        for one in &self.both {
            let file = directory.join(format!("{}-{}.tar.gz", self.places[0].namespace, one.access.name));
            let pack = ["--context", &one.access.context, "support-bundle", "--out", &file.display().to_string()];
            let said = match agentctl(&self.kubeconfig, &pack).await {
                Ok(_) => format!("what {} had to say is in {}", one.access.name, file.display()),
                Err(error) => format!("no support bundle of {}: {error}", one.access.name),
            };
            let _ = writeln!(std::io::stderr(), "e2e: {said}");
        }
    }
}

/// Installs on both clusters, links them, and carries out the scenario; then all of it goes, whatever came of it.
pub(crate) async fn with_releases(namespace: &str, scenario: impl AsyncFnOnce(&Releases<'_>)) {
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
    let places = ground.namespace(namespace).await;
    let releases = Releases { ground: &ground, both, places, kubeconfig, directory };
    let linked = async {
        releases.link().await;
        scenario(&releases).await;
    };
    // What is installed would be in the way of all other tests.
    let ended = AssertUnwindSafe(linked).catch_unwind().await;
    if ended.is_err() {
        releases.keep_bundles().await;
    }
    ground.leave(&releases.places).await;
    for one in &releases.both {
        one.uninstall().await;
    }
    ground.introduce().await.unwrap();
    ground.start_agents().await;
    if let Err(panic) = ended {
        resume_unwind(panic);
    }
}

/// Names of pods.
pub(crate) fn names(pods: &[Pod]) -> Vec<String> {
    pods.iter().map(ResourceExt::name_any).collect()
}

/// Kills the leader with -9.
pub(crate) const KILL: &str = "kill -9 $leader";

/// Freezes the leader for 20 s: its kernel still answers for it, so nobody is told that it is gone.
pub(crate) const FREEZE: &str = "(kill -STOP $leader && sleep 20 && kill -CONT $leader)";

/// Runs this line on the node of the agent that leads the cluster of this index, with `leader` as its process; `false`
/// where nobody says how to run something on a node.
pub(crate) async fn to_leader(one: &Installed<'_>, index: usize, line: &str) -> Result<bool, String> {
    let leader = one.leader().await?;
    let node = leader.spec.as_ref().and_then(|spec| spec.node_name.clone()).expect("it runs on a node");
    let statuses = leader.status.and_then(|status| status.container_statuses).expect("it runs");
    let id = statuses[0].container_id.clone().expect("it has a container");
    let container = id.rsplit('/').next().expect("RUNTIME://ID");
    let line = format!(
        "found=1; for one in /proc/[0-9]*; do if grep -qs {container} $one/cgroup; then \
         leader=${{one#/proc/}}; {line} && found=0; fi; done; exit $found"
    );
    let (clusters, _) = clusters().expect("agents were installed");
    let done = tokio::task::spawn_blocking(move || clusters.on_node(index, &node, &line));
    done.await.expect("it ends").map_err(|error| format!("{error:#}"))
}
