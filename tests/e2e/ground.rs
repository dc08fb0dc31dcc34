//! Two clusters that exist, an agent process for each, and a namespace for each test.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::thread;
use std::time::Duration;

use anyhow::{Context, bail};
use jiff::Timestamp;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{Namespace, Pod};
use kube::ResourceExt;
use kube::api::{Api, AttachParams, DeleteParams, ListParams};
use kube::config::Kubeconfig;
use serde_json::{Value, json};
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::sync::{Mutex, MutexGuard};
use tributary::api::labels::kubernetes;
use tributary::api::peer::ClusterPeer;
use tributary::federation::identity::Authority;
use tributary::federation::identity::files::Existing;
use tributary_sandbox::{Access, Group, annotations};
use tributary_tests::agent::{Agent, Setup};
use tributary_tests::eventually::{be_more_patient, eventually, gone};
use tributary_tests::federation::{SYSTEM, apply_crds, apply_peer, cluster_peer, make_namespace, tail};
use tributary_tests::scenario::Place;

use crate::clusters::{self, Images, World};

/// The clusters of this run and their images, or a loud skip.
pub(crate) fn clusters() -> Option<&'static World> {
    clusters::clusters().map_err(skip).ok()
}

/// Whether containers run here, and Flux in them. A loud word where they do not.
pub(crate) fn real(what: &str) -> bool {
    let real = !simulated();
    if !real {
        skip(&format!("{what}: nodes are simulated"));
    }
    real
}

fn simulated() -> bool {
    clusters::clusters().is_ok_and(|(clusters, _)| clusters.access().iter().any(|access| access.simulated))
}

/// Says past libtest's capture that something is not tested.
pub(crate) fn skip(why: &str) {
    let _ = writeln!(std::io::stderr(), "SKIPPED: {why}");
}

/// The clusters and their agents.
pub(crate) struct Ground {
    images: Images,
    clusters: Vec<Access>,
    agents: Vec<Agent>,
    group: Group,
    temporary: tempfile::TempDir,
}

/// Containers are started, on a machine that may do other things.
const PATIENCE: Duration = Duration::from_secs(240);

static GROUND: OnceLock<Option<Mutex<Ground>>> = OnceLock::new();

/// The ground, for one test at a time: pods that start beside others' only make both slower.
pub(crate) async fn enter() -> Option<MutexGuard<'static, Ground>> {
    Some(ground().await?.lock().await)
}

async fn ground() -> Option<&'static Mutex<Ground>> {
    // A test's runtime ends with the test, and kube's clients with it: the start has a thread of its own.
    let started = tokio::task::spawn_blocking(|| {
        GROUND.get_or_init(|| {
            let (clusters, images) = clusters()?;
            let start = || {
                let runtime = tokio::runtime::Runtime::new().expect("a runtime starts");
                runtime.block_on(Ground::start(clusters.access().to_vec(), images.clone())).expect("the agents start")
            };
            Some(Mutex::new(thread::spawn(start).join().expect("the start does not panic")))
        })
    });
    started.await.expect("the start does not panic").as_ref()
}

impl Ground {
    async fn start(clusters: Vec<Access>, images: Images) -> anyhow::Result<Self> {
        be_more_patient(PATIENCE);
        let mut temporary = tempfile::tempdir()?;
        // The sandbox keeps its logs by the same variable.
        if std::env::var_os("TRIBUTARY_SANDBOX_KEEP").is_some_and(|value| !value.is_empty()) {
            temporary.disable_cleanup(true);
            let _ = writeln!(std::io::stderr(), "logs of the agents are kept in {}", temporary.path().display());
        }
        #[allow(clippy::disallowed_methods, reason = "certificates of a real run are valid now")]
        let now = Timestamp::now();
        let authority = Authority::create("e2e.example", now)?;
        let mut agents = Vec::new();
        for cluster in &clusters {
            let directory = temporary.path().join(&cluster.name);
            let identity = directory.join("identity");
            let day = Duration::from_secs(24 * 3600);
            authority.issue(&cluster.name, now, day)?.write(&identity, Existing::Refuse)?;
            let kubeconfig = directory.join("kubeconfig");
            one_context(cluster, &kubeconfig)?;
            let named = Setup::new(&cluster.name, &kubeconfig);
            let setup = Setup { identity: Some(&identity), extra: LEASE, ..named };
            agents.push(Agent::new(&directory, &setup)?);
        }
        for cluster in &clusters {
            nobody_works_in(cluster).await?;
        }
        let group = Group::start(Duration::from_secs(10), None)?;
        let ground = Self { images, clusters, agents, group, temporary };
        ground.introduce().await?;
        ground.start_agents().await;
        Ok(ground)
    }

    /// The kinds, the agents' namespace, and the clusters as each other's peers.
    pub(crate) async fn introduce(&self) -> anyhow::Result<()> {
        for (here, cluster) in self.clusters.iter().enumerate() {
            let client = cluster.client().await?;
            apply_crds(&client).await?;
            make_namespace(&client, SYSTEM).await?;
            for (there, other) in self.clusters.iter().enumerate().filter(|(there, _)| *there != here) {
                apply_peer(&client, &cluster_peer(&other.name, &self.agents[there].listen.to_string())).await?;
            }
        }
        Ok(())
    }

    /// Undoes what [`Ground::introduce`] says of peers: contexts may have the names that they have here.
    pub(crate) async fn part(&self) -> anyhow::Result<()> {
        for cluster in &self.clusters {
            let peers: Api<ClusterPeer> = Api::namespaced(cluster.client().await?, SYSTEM);
            for other in self.clusters.iter().filter(|other| other.name != cluster.name) {
                peers.delete(&other.name, &DeleteParams::default()).await?;
            }
        }
        Ok(())
    }

    /// Starts the agents and waits until they are connected.
    pub(crate) async fn start_agents(&self) {
        for agent in &self.agents {
            agent.start(&self.group).expect("an agent starts");
        }
        for (cluster, agent) in self.clusters.iter().zip(&self.agents) {
            let peers: Api<ClusterPeer> = Api::namespaced(cluster.client().await.expect("a client"), SYSTEM);
            eventually(format!("{} is connected", cluster.name), async || {
                let list = peers.list(&ListParams::default()).await.map_err(|error| error.to_string())?;
                let connected = |peer: &ClusterPeer| peer.status.as_ref().is_some_and(|status| status.connected);
                let of_ours = |peer: &&ClusterPeer| self.clusters.iter().any(|one| one.name == peer.name_any());
                match list.items.iter().filter(of_ours).all(connected) {
                    true => Ok(()),
                    false => Err(format!("log of its agent:\n{}", tail(&agent.log_text()))),
                }
            })
            .await;
        }
    }

    /// Asks the agents to end, and waits for them.
    pub(crate) async fn stop_agents(&self) {
        for agent in &self.agents {
            agent.stop(&self.group).await.expect("an agent ends when asked");
        }
    }

    /// A kubeconfig whose current context is the root's cluster.
    pub(crate) fn kubeconfig(&self) -> PathBuf {
        self.temporary.path().join(&self.clusters[0].name).join("kubeconfig")
    }

    /// The name of the provider's cluster.
    pub(crate) fn provider(&self) -> &str {
        &self.clusters[1].name
    }

    /// A namespace in both clusters; the first place is the root's. It goes with [`Ground::leave`].
    pub(crate) async fn namespace(&self, namespace: &str) -> [Place; 2] {
        let mut places = Vec::new();
        for cluster in &self.clusters[..2] {
            let client = cluster.client().await.expect("a client");
            let namespaces = Api::<Namespace>::all(client.clone());
            // That of a run before.
            let _ = namespaces.delete(namespace, &DeleteParams::default()).await;
            gone(&namespaces, namespace).await;
            make_namespace(&client, namespace).await.expect("a namespace is made");
            places.push(Place { client, namespace: namespace.to_owned() });
        }
        places.try_into().unwrap_or_else(|_| unreachable!("two were made"))
    }

    /// Deletes the namespace again.
    pub(crate) async fn leave(&self, places: &[Place; 2]) {
        for Place { client, namespace } in places {
            let _ = Api::<Namespace>::all(client.clone()).delete(namespace, &DeleteParams::default()).await;
        }
    }

    /// A spec of this size that runs until it is told otherwise; small enough for many pods on one machine.
    pub(crate) fn interactive(&self, size: i32) -> Value {
        let mut spec = json!({
            "size": size,
            "interactive": true,
            "containers": [{"image": self.images.brokers, "resources": {"requests": {"cpu": "50m"}}}],
        });
        if let Some(view) = &self.images.view {
            spec["flux"] = json!({"container": {"image": view}});
        }
        spec
    }

    /// The same with bursts.
    pub(crate) fn bursting(&self, size: i32, clusters: Value) -> Value {
        let mut spec = self.interactive(size);
        spec["flux"]["bursting"] = json!({"clusters": clusters});
        spec
    }

    /// The same with a command of the user's.
    pub(crate) fn batch(&self, size: i32, command: &str) -> Value {
        let mut spec = self.interactive(size);
        spec["interactive"] = json!(false);
        spec["containers"][0]["command"] = json!(command);
        spec
    }
}

/// Where nobody runs the command of this Job, its lead ends with this code, as it would.
pub(crate) async fn ends(place: &Place, job: &str, code: i32) {
    if simulated() {
        eventually(format!("the lead of {job} is there"), async || pod(place, job, 0).await).await;
        place.annotate_pod(job, 0, annotations::EXIT, &code.to_string()).await;
    }
}

/// An agent that somebody has installed would fight with ours, and what he has there would go with our tests.
async fn nobody_works_in(cluster: &Access) -> anyhow::Result<()> {
    let agents = ListParams::default().labels("app.kubernetes.io/name=tributary");
    let found = Api::<Deployment>::all(cluster.client().await?).list(&agents).await?.items;
    let Some(found) = found.first() else { return Ok(()) };
    let (namespace, name) = (found.namespace().unwrap_or_default(), found.name_any());
    bail!(
        "{} has an agent, Deployment {namespace}/{name}: choose a cluster without one, or, if a test that failed has left \
         it, helm uninstall it first",
        cluster.name
    )
}

/// Connections of brokers outlast a cut by two minutes more than this: a test that waits until they are given up.
const LEASE: &str = "[bursting]\nlease_seconds = 60\n";

/// A kubeconfig whose current context is the cluster's.
fn one_context(cluster: &Access, file: &Path) -> anyhow::Result<()> {
    let mut config = Kubeconfig::read_from(&cluster.kubeconfig)?;
    config.current_context = Some(cluster.context.clone());
    std::fs::write(file, serde_json::to_string(&config)?).context("failed to write a kubeconfig")
}

/// The pod of an index.
pub(crate) async fn pod(place: &Place, job: &str, index: u32) -> Result<Pod, String> {
    let selector = format!("{}={job},{}={index}", kubernetes::JOB_NAME, kubernetes::COMPLETION_INDEX);
    let pods = place.pods().list(&ListParams::default().labels(&selector)).await.map_err(|error| error.to_string())?;
    let alive = |pod: &Pod| pod.metadata.deletion_timestamp.is_none();
    pods.items.into_iter().find(alive).ok_or_else(|| format!("{job} has no pod of index {index}"))
}

/// Runs a line of bash in the lead's pod, with Flux on its PATH and its instance as the one that `flux` speaks to.
pub(crate) async fn in_lead(place: &Place, root: &str, line: &str) -> Result<String, String> {
    let pod = pod(place, root, 0).await?.name_any();
    in_pod(place, &pod, root, &format!(". /mnt/flux/flux-view.sh && export FLUX_URI=$fluxsocket && {line}")).await
}

/// Runs a line of bash in a container.
pub(crate) async fn in_pod(place: &Place, pod: &str, container: &str, line: &str) -> Result<String, String> {
    let parameters = AttachParams::default().container(container).stderr(true);
    let attached = place.pods().exec(pod, ["/bin/bash", "-c", line], &parameters).await;
    let mut attached = attached.map_err(|error| error.to_string())?;
    let (stdout, stderr, status) = (attached.stdout(), attached.stderr(), attached.take_status());
    // Both at once: a full buffer of one would stop the other.
    let (out, err) = tokio::join!(text(stdout), text(stderr));
    let status = match status {
        Some(status) => status.await,
        None => None,
    };
    match status.and_then(|status| status.status).as_deref() {
        Some("Success") => Ok(out),
        _ => Err(format!("{line}: {out}{err}")),
    }
}

async fn text(stream: Option<impl AsyncRead + Unpin>) -> String {
    let mut bytes = Vec::new();
    if let Some(mut stream) = stream {
        // What came before a failure is worth showing; the status tells of the failure.
        let _ = stream.read_to_end(&mut bytes).await;
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Ranks that Flux says are up, as RFC 22 writes them. Of simulated brokers all are up that the status says have joined.
pub(crate) async fn ranks_up(place: &Place, root: &str) -> Result<String, String> {
    if simulated() {
        let status = place.status(root).await?;
        let joined = status.ready.unwrap_or_default() + status.bursts.iter().map(|burst| burst.ready).sum::<i32>();
        return Ok(if joined > 1 { format!("0-{}", joined - 1) } else { "0".to_owned() });
    }
    Ok(in_lead(place, root, "flux resource list -s up -no '{ranks}'").await?.trim().to_owned())
}

/// Waits until exactly these ranks are up.
pub(crate) async fn until_up(place: &Place, root: &str, ranks: &str) {
    eventually(format!("ranks {ranks} of {root} are up"), async || match ranks_up(place, root).await {
        Ok(seen) if seen == ranks => Ok(()),
        Ok(seen) => Err(format!("up: {seen}")),
        Err(error) => Err(error),
    })
    .await;
}

/// Waits until every broker answers rank 0, and prints how long that took: the lead counts a broker as up that is on a dead
/// connection.
pub(crate) async fn until_all_answer(place: &Place, root: &str, after: &str) {
    if simulated() {
        return;
    }
    let begun = tokio::time::Instant::now();
    // It takes SIGTERM for one that its processes shall get, and waits for them, on brokers that are lost too.
    let answer = async || in_lead(place, root, "timeout -k 1 5 flux exec -r all hostname").await;
    eventually(format!("all brokers of {root} answer after {after}"), answer).await;
    let _ = writeln!(std::io::stderr(), "e2e: all brokers of {root} answer {:.1?} after {after}", begun.elapsed());
}
