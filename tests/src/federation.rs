//! Several real clusters with an agent each, peered with one another.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Namespace;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Api, ObjectMeta, Patch, PatchParams};
use kube::{Client, ResourceExt};
use tributary::api::labels::condition::CONNECTED;
use tributary::api::peer::{ClusterPeer, ClusterPeerSpec, ExportPolicy, ImportPolicy};
use tributary::federation::identity::Authority;
use tributary::federation::identity::files::Existing;
use tributary_sandbox::{ADMIN, Cluster, Group, Sandbox};

use crate::agent::{AGENT_USER, Agent, Setup};
use crate::chart;
use crate::eventually::eventually;
use crate::metrics::shown;

/// Namespace of the agents and their ClusterPeers.
pub const SYSTEM: &str = "tributary-system";

/// Times of bursts with [`SHORT`], in seconds.
pub const LEASE: u64 = 15;
/// See [`LEASE`].
pub const DRAIN: u64 = 2;
/// See [`LEASE`].
pub const GRACE: u64 = 8;
/// The same as an agent is told.
pub const SHORT: &str = "[bursting]\nlease_seconds = 15\ndrain_seconds = 2\ngrace_seconds = 8";

/// Validity of identities in tests.
const A_DAY: Duration = Duration::from_secs(24 * 3600);

/// Clusters of a sandbox with agents that know each other.
pub struct Federation {
    /// The agents, in the order of the clusters.
    pub agents: Vec<Agent>,
    /// The processes of the agents: they end before their clusters.
    pub group: Group,
    sandbox: Sandbox,
    directory: PathBuf,
    extra: &'static str,
    /// Signs the identities.
    pub authority: Authority,
    _temporary: tempfile::TempDir,
}

impl Federation {
    /// Agents on all clusters of `sandbox`, connected with each other; each may place bursts on each. `extra` is TOML that
    /// is added to the configuration of each.
    pub async fn start(sandbox: Sandbox, extra: &'static str) -> anyhow::Result<Self> {
        let mut temporary = tempfile::tempdir()?;
        // The agents' logs stay where the sandbox's do.
        temporary.disable_cleanup(std::env::var_os("TRIBUTARY_SANDBOX_KEEP").is_some_and(|value| !value.is_empty()));
        let directory = temporary.path().to_owned();
        #[allow(clippy::disallowed_methods, reason = "certificates of a real run are valid now")]
        let now = Timestamp::now();
        let authority = Authority::create("tests.example", now)?;
        let group = Group::start(Duration::from_secs(2), None)?;
        let agents = Vec::new();
        let mut federation = Self { agents, group, sandbox, directory, extra, authority, _temporary: temporary };
        for index in 0..federation.clusters().len() {
            let cluster = &federation.clusters()[index];
            federation.prepare(cluster).await?;
            let agent = federation.agent_for(cluster, now)?;
            federation.agents.push(agent);
        }
        federation.introduce().await?;
        for agent in &federation.agents {
            agent.start(&federation.group)?;
        }
        federation.connected().await;
        Ok(federation)
    }

    /// The clusters.
    pub fn clusters(&self) -> &[Cluster] {
        self.sandbox.clusters()
    }

    /// One kubeconfig with all rights and a context for each cluster; the first is the current one.
    pub fn kubeconfig(&self) -> PathBuf {
        self.sandbox.kubeconfig()
    }

    /// A client of the cluster at `index` with all rights.
    pub async fn client(&self, index: usize) -> Client {
        self.clusters()[index].client(ADMIN).await.expect("the sandbox serves clients")
    }

    /// The agent of the cluster at `index`.
    pub fn agent(&self, index: usize) -> &Agent {
        &self.agents[index]
    }

    /// Makes a namespace in every cluster.
    pub async fn namespace(&self, name: &str) -> anyhow::Result<()> {
        for index in 0..self.clusters().len() {
            make_namespace(&self.client(index).await, name).await?;
        }
        Ok(())
    }

    /// Makes the agents forget how often peers were lost. Tests that break connections one after the other would make them
    /// flap, and a peer that flaps gets nothing new for a minute and longer. Whoever changes a ClusterPeer begins anew.
    pub async fn forget_losses(&self) {
        for cluster in self.clusters() {
            let client = cluster.client(ADMIN).await.expect("the sandbox serves clients");
            let peers: Api<ClusterPeer> = Api::namespaced(client, SYSTEM);
            for peer in peers.list(&Default::default()).await.expect("peers can be listed") {
                // The same address once or twice is the same.
                let mut endpoints = peer.spec.endpoints.clone();
                match endpoints.as_slice() {
                    [first, second] if first == second => drop(endpoints.pop()),
                    [only] => endpoints.push(only.clone()),
                    _ => continue,
                }
                let patch = Patch::Merge(serde_json::json!({"spec": {"endpoints": endpoints}}));
                let patched = peers.patch(&peer.name_any(), &PatchParams::default(), &patch).await;
                patched.expect("a peer can be changed");
            }
        }
    }

    /// Whether a peer was lost so often that nothing new is placed there for a while.
    pub async fn flaps(&self) -> bool {
        for index in 0..self.clusters().len() {
            let peers: Api<ClusterPeer> = Api::namespaced(self.client(index).await, SYSTEM);
            let list = peers.list(&Default::default()).await.map(|list| list.items).unwrap_or_default();
            let conditions = list.iter().filter_map(|peer| peer.status.as_ref()).flat_map(|status| &status.conditions);
            if conditions.into_iter().any(|one| one.type_ == CONNECTED && one.reason == "Flapping") {
                return true;
            }
        }
        false
    }

    /// Waits until every agent that runs is connected with every other.
    pub async fn connected(&self) {
        // ClusterPeers keep their word through a restart, which is a blip; a process begins its figures anew. Twice: whoever was
        // asked first may have missed the restart of the next.
        for agent in self.agents.iter().chain(&self.agents).filter(|agent| agent.pid().is_some()) {
            eventually(format!("{} has a session with all peers", agent.name), async || {
                let shown = shown(agent.health).await.map_err(|error| error.to_string())?;
                match shown.get("tributary_federation_connected_peers") {
                    Some(count) if *count as usize + 1 >= self.agents.len() => Ok(()),
                    count => Err(format!("{count:?}; log of the agent:\n{}", tail(&agent.log_text()))),
                }
            })
            .await;
        }
        for (index, cluster) in self.clusters().iter().enumerate() {
            let peers: Api<ClusterPeer> = Api::namespaced(self.client(index).await, SYSTEM);
            eventually(format!("{} is connected with all peers", cluster.name()), async || {
                let list = peers.list(&Default::default()).await.map_err(|error| error.to_string())?;
                let missing: Vec<String> = list
                    .items
                    .iter()
                    .filter(|peer| !peer.status.as_ref().is_some_and(|status| status.connected))
                    .map(|peer| peer.name_any())
                    .collect();
                if missing.is_empty() {
                    return Ok(());
                }
                Err(format!(
                    "not connected with {missing:?}; log of the agent:\n{}",
                    tail(&self.agents[index].log_text())
                ))
            })
            .await;
        }
    }

    async fn prepare(&self, cluster: &Cluster) -> anyhow::Result<()> {
        let client = cluster.client(ADMIN).await?;
        apply_crds(&client).await?;
        make_namespace(&client, SYSTEM).await?;
        chart::install_rules(&client).await
    }

    fn agent_for(&self, cluster: &Cluster, now: Timestamp) -> anyhow::Result<Agent> {
        let directory = self.directory.join(cluster.name());
        let identity = directory.join("identity");
        self.authority.issue(cluster.name(), now, A_DAY)?.write(&identity, Existing::Refuse)?;
        // The agents of tests may do what the chart lets them do: a rule that it lacks fails them.
        let kubeconfig = cluster.kubeconfig_in(AGENT_USER, None)?;
        let named = Setup::new(cluster.name(), &kubeconfig);
        let setup = Setup { identity: Some(&identity), extra: self.extra, ..named };
        Agent::new(&directory, &setup)
    }

    /// Writes the ClusterPeers: each cluster knows all others and lets them in.
    async fn introduce(&self) -> anyhow::Result<()> {
        for index in 0..self.clusters().len() {
            let client = self.client(index).await;
            for (other, cluster) in self.clusters().iter().enumerate().filter(|(other, _)| *other != index) {
                let peer = cluster_peer(cluster.name(), &self.agents[other].listen.to_string());
                apply_peer(&client, &peer).await?;
            }
        }
        Ok(())
    }

    /// Where files of this federation may be put.
    pub fn directory(&self) -> &Path {
        &self.directory
    }
}

/// A ClusterPeer that may place bursts in any namespace. Its label `name` is the cluster's name.
pub fn cluster_peer(name: &str, endpoint: &str) -> ClusterPeer {
    let import = ImportPolicy { namespaces: vec!["*".to_owned()], ..ImportPolicy::default() };
    let spec = ClusterPeerSpec {
        endpoints: vec![endpoint.to_owned()],
        import: Some(import),
        export: Some(ExportPolicy { capacity: true, status: true }),
        ..ClusterPeerSpec::default()
    };
    let mut peer = ClusterPeer::new(name, spec);
    peer.metadata.labels = Some([("name".to_owned(), name.to_owned())].into());
    peer
}

/// Writes a ClusterPeer.
pub async fn apply_peer(client: &Client, peer: &ClusterPeer) -> anyhow::Result<()> {
    let api: Api<ClusterPeer> = Api::namespaced(client.clone(), SYSTEM);
    api.patch(&peer.name_any(), &params(), &Patch::Apply(peer)).await.context("failed to write a ClusterPeer")?;
    Ok(())
}

/// Applies all CRDs and waits until they are served.
pub async fn apply_crds(client: &Client) -> anyhow::Result<()> {
    let api: Api<CustomResourceDefinition> = Api::all(client.clone());
    for crd in tributary::api::crds() {
        api.patch(&crd.name_any(), &params(), &Patch::Apply(&crd)).await.context("failed to apply a CRD")?;
    }
    crds_are_served(client).await;
    Ok(())
}

/// Waits until all CRDs are served.
pub async fn crds_are_served(client: &Client) {
    let api: Api<CustomResourceDefinition> = Api::all(client.clone());
    for crd in tributary::api::crds() {
        eventually(format!("{} is established", crd.name_any()), async || {
            let live = api.get(&crd.name_any()).await.map_err(|error| error.to_string())?;
            let conditions = live.status.and_then(|status| status.conditions).unwrap_or_default();
            let established = conditions.iter().any(|one| one.type_ == "Established" && one.status == "True");
            if established { Ok(()) } else { Err("not established".to_owned()) }
        })
        .await;
    }
}

/// Makes a namespace, if there is none of that name.
pub async fn make_namespace(client: &Client, name: &str) -> anyhow::Result<()> {
    let metadata = ObjectMeta { name: Some(name.to_owned()), ..ObjectMeta::default() };
    let namespace = Namespace { metadata, ..Namespace::default() };
    Api::<Namespace>::all(client.clone()).patch(name, &params(), &Patch::Apply(&namespace)).await?;
    Ok(())
}

fn params() -> PatchParams {
    PatchParams::apply("tests").force()
}

/// The last lines of a log.
pub fn tail(log: &str) -> String {
    let lines: Vec<&str> = log.lines().collect();
    lines[lines.len().saturating_sub(20)..].join("\n")
}
