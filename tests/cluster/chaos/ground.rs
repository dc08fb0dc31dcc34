//! Three real clusters with two agents each, and ways between them that can be cut, also in one direction.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use k8s_openapi::api::core::v1::ConfigMap;
use kube::Client;
use kube::api::{Api, ApiResource, DynamicObject, Patch, PatchParams};
use serde_json::json;
use tributary::api::cluster_card::{self, ClusterCard};
use tributary::api::flux_job::FluxJob;
use tributary::api::flux_setup::FluxSetup;
use tributary::api::minicluster::MiniCluster;
use tributary::api::peer::ClusterPeer;
use tributary_sandbox::{ADMIN, Cluster, ClusterOptions, Group, NodeGroup, Options, Sandbox};
use tributary_tests::agent::{AGENT_USER, Agent, Setup, other_version};
use tributary_tests::chart;
use tributary_tests::eventually::eventually;
use tributary_tests::federation::{SYSTEM, apply_crds, make_namespace, tail};
use tributary_tests::scenario::Place;
use tributary_tests::udp_way::{Way, way};

use super::oracle::OWNER;
use super::{CLUSTERS, JOBS, NAMESPACE, QUEUE};

/// Short leases, so that some faults outlast them; and agents that are their own authorities.
const EXTRA: &str = "validity = \"10m\"\n[bursting]\nlease_seconds = 15\ndrain_seconds = 2\ngrace_seconds = 8";

/// One cluster.
pub(super) struct Site {
    pub agents: [Agent; 2],
    pub place: Place,
}

impl Site {
    pub(super) fn client(&self) -> &Client {
        &self.place.client
    }

    /// Objects of users by kind and name of the root: MiniClusters, and FluxJobs in their own namespace.
    pub(super) fn of_users(&self, root: &str) -> Api<DynamicObject> {
        match is_job(root) {
            true => Api::namespaced_with(self.client().clone(), QUEUE, &ApiResource::erase::<FluxJob>(&())),
            false => Api::namespaced_with(self.client().clone(), NAMESPACE, &ApiResource::erase::<MiniCluster>(&())),
        }
    }

    pub(super) fn peers(&self) -> Api<ClusterPeer> {
        Api::namespaced(self.place.client.clone(), SYSTEM)
    }
}

/// All of them.
pub(super) struct Ground {
    pub sites: Vec<Site>,
    /// Ends before the clusters.
    pub group: Group,
    /// By who goes it, and to whom.
    pub ways: BTreeMap<(usize, usize), Way>,
    sandbox: Sandbox,
    _directory: tempfile::TempDir,
}

impl Ground {
    pub(super) async fn lay() -> Self {
        let cluster = |name: &&str| ClusterOptions {
            nodes: vec![NodeGroup { count: 2, cpu: 64, ..NodeGroup::default() }],
            ..ClusterOptions::named(name)
        };
        let options = Options { clusters: CLUSTERS.iter().map(cluster).collect(), ..Options::default() };
        let sandbox = Sandbox::start(options).await.unwrap();
        let mut directory = tempfile::tempdir().unwrap();
        // The agents' logs stay where the sandbox's do.
        directory.disable_cleanup(std::env::var_os("TRIBUTARY_SANDBOX_KEEP").is_some_and(|value| !value.is_empty()));
        let (mut sites, mut ways) = (Vec::new(), BTreeMap::new());
        for cluster in sandbox.clusters() {
            let client = cluster.client(ADMIN).await.unwrap();
            apply_crds(&client).await.unwrap();
            make_namespace(&client, SYSTEM).await.unwrap();
            make_namespace(&client, NAMESPACE).await.unwrap();
            make_namespace(&client, QUEUE).await.unwrap();
            queue(&client, sites.len()).await.unwrap();
            chart::install_rules(&client).await.unwrap();
            let agents = replicas(cluster, directory.path());
            sites.push(Site { agents, place: Place { client, namespace: NAMESPACE.to_owned() } });
        }
        let group = Group::start(Duration::from_secs(2), None).unwrap();
        for site in &sites {
            site.agents.iter().for_each(|agent| agent.start(&group).unwrap());
        }
        for (from, to) in pairs() {
            let target = sites[to].agents[0].listen;
            ways.insert((from, to), way(target, Duration::ZERO, 0).await.unwrap());
        }
        let ground = Self { sites, group, ways, sandbox, _directory: directory };
        for (from, to) in pairs() {
            eventually(format!("{} is made a peer of {}", CLUSTERS[to], CLUSTERS[from]), async || {
                ground.befriend(from, to).await.map_err(|error| {
                    let logs = ground.sites[to].agents.each_ref().map(|agent| tail(&agent.log_text()));
                    format!("{error}\n{}", logs.join("\n"))
                })
            })
            .await;
        }
        ground
    }

    pub(super) fn cluster(&self, number: usize) -> &Cluster {
        &self.sandbox.clusters()[number]
    }

    /// Makes a ClusterPeer, of what the other cluster says of itself.
    pub(super) async fn befriend(&self, cluster: usize, other: usize) -> Result<(), String> {
        let maps: Api<ConfigMap> = Api::namespaced(self.sites[other].client().clone(), SYSTEM);
        let map = maps.get(cluster_card::NAME).await.map_err(|error| error.to_string())?;
        let card = ClusterCard::read(&map).map_err(|error| error.to_string())?;
        let endpoint = self.ways[&(cluster, other)].address.to_string();
        let peer = json!({
            "apiVersion": "tributary.dev/v1alpha1", "kind": "ClusterPeer",
            "metadata": {"name": CLUSTERS[other], "namespace": SYSTEM},
            "spec": {
                "endpoints": [endpoint], "trustBundle": card.trust_bundle, "trustUpdates": "FromPeer",
                "clusterUID": card.cluster_uid, "import": {"namespaces": ["*"]},
                "export": {"capacity": true, "status": true},
            },
        });
        let params = PatchParams::apply(OWNER).force();
        let written = self.sites[cluster].peers().patch(CLUSTERS[other], &params, &Patch::Apply(&peer)).await;
        written.map(drop).map_err(|error| error.to_string())
    }

    /// Which agents are not connected.
    pub(super) async fn apart(&self) -> Vec<String> {
        let mut apart = Vec::new();
        for (from, to) in pairs() {
            let connected = match self.sites[from].peers().get_opt(CLUSTERS[to]).await {
                Ok(Some(peer)) => peer.status.unwrap_or_default(),
                other => {
                    apart.push(format!("{} has no ClusterPeer {}: {other:?}", CLUSTERS[from], CLUSTERS[to]));
                    continue;
                }
            };
            if !connected.connected {
                let why: Vec<_> =
                    connected.conditions.iter().map(|one| format!("{}: {}", one.reason, one.message)).collect();
                apart.push(format!("{} is not connected with {}: {}", CLUSTERS[from], CLUSTERS[to], why.join("; ")));
            }
        }
        apart
    }
}

/// The quota of FluxJobs, and where they go that do not fit: a part of them, or all.
async fn queue(client: &Client, cluster: usize) -> anyhow::Result<()> {
    let (policy, brokers) = [("Split", 3), ("Whole", 4), ("Whole", 4)][cluster];
    let setup = json!({
        "apiVersion": "tributary.dev/v1alpha1", "kind": "FluxSetup", "metadata": {"name": "default"},
        "spec": {"quota": {"brokers": brokers}, "overflow": {"policy": policy}},
    });
    let setups: Api<FluxSetup> = Api::namespaced(client.clone(), QUEUE);
    setups.patch("default", &PatchParams::apply(OWNER).force(), &Patch::Apply(&setup)).await?;
    Ok(())
}

/// Whether this is the name of a FluxJob.
pub(super) fn is_job(root: &str) -> bool {
    JOBS.contains(&root)
}

/// Each cluster with each other.
pub(super) fn pairs() -> impl Iterator<Item = (usize, usize)> {
    (0..CLUSTERS.len()).flat_map(|from| (0..CLUSTERS.len()).filter(move |to| *to != from).map(move |to| (from, to)))
}

/// Two replicas at one address: only the one that leads listens. The second one is of another version, if there is one.
fn replicas(cluster: &Cluster, directory: &Path) -> [Agent; 2] {
    let kubeconfig = cluster.kubeconfig_in(AGENT_USER, None).unwrap();
    let replica = |number: u8, listen| {
        let setup = Setup { listen, extra: EXTRA, ..Setup::new(cluster.name(), &kubeconfig) };
        Agent::new(&directory.join(format!("{}-{number}", cluster.name())), &setup).unwrap()
    };
    let first = replica(0, None);
    let second = replica(1, Some(first.listen));
    second.becomes(other_version());
    [first, second]
}
