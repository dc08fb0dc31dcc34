//! Reads what an answer is found in. What may not be read leaves a note, not an error: users of a namespace seldom see the
//! agent's.

use std::fmt::Debug;

use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{Event, Node, Pod};
use kube::api::{Api, ListParams};
use kube::{Client, Resource, ResourceExt};
use serde::de::DeserializeOwned;
use tributary::admin::{self, FederationStatus};
use tributary::api::burst::Burst;
use tributary::api::flux_job::FluxJob;
use tributary::api::labels::kubernetes::JOB_NAME;
use tributary::api::names;
use tributary::api::peer::ClusterPeer;
use tributary::clock::{Clock, SystemClock};

use super::{Found, flux_job};
use crate::cli::Target;
use crate::connect::{self, Agent};
use crate::error::{Failure, Result};
use crate::kubernetes;

/// Annotation of nodes that only pretend: <https://kwok.sigs.k8s.io/docs/user/kwok-manage-nodes-and-pods/>.
const KWOK: &str = "kwok.x-k8s.io/node";

/// What a name stands for.
pub(super) enum Looked {
    /// A MiniCluster, or a HostedBurst whose MiniCluster is to be made.
    MiniCluster(Box<Found>),
    /// A burst of one of this cluster's MiniClusters: name of its slot.
    Burst(Box<Found>, String),
    /// A FluxJob, and its MiniCluster or Burst once it has one.
    FluxJob(Box<FluxJob>, Option<Box<Looked>>),
}

/// What was asked for: a kind, if one was written, and a name.
struct Asked<'a> {
    mini_clusters: bool,
    bursts: bool,
    jobs: bool,
    name: &'a str,
}

impl<'a> Asked<'a> {
    /// As kubectl takes it: `NAME` or `KIND/NAME`.
    fn of(text: &'a str) -> Result<Self> {
        let Some((kind, name)) = text.split_once('/') else {
            return Ok(Self { mini_clusters: true, bursts: true, jobs: false, name: text });
        };
        let kind = kind.to_lowercase();
        let kind = kind.split('.').next().unwrap_or_default();
        match kind {
            "minicluster" | "miniclusters" | "hostedburst" | "hostedbursts" | "hb" => {
                Ok(Self { mini_clusters: true, bursts: false, jobs: false, name })
            }
            "burst" | "bursts" => Ok(Self { mini_clusters: false, bursts: true, jobs: false, name }),
            "fluxjob" | "fluxjobs" => Ok(Self { mini_clusters: false, bursts: false, jobs: true, name }),
            _ => Err(Failure::new(format!("failed to explain {text}"))
                .hint("name a MiniCluster, a burst or a FluxJob: NAME, minicluster/NAME, burst/NAME or fluxjob/NAME")),
        }
    }
}

/// Finds what the user means, and reads what is known of it.
pub(super) async fn look(target: &Target, text: &str) -> Result<Looked> {
    let asked = Asked::of(text)?;
    let client = kubernetes::client(target).await?;
    let namespace = target.namespace.clone().unwrap_or_else(|| client.default_namespace().to_owned());
    if asked.jobs {
        return look_at_job(target, &client, &namespace, asked.name).await;
    }
    let mut found = Found::default();
    if asked.mini_clusters {
        found.mini_cluster = get(&client, &namespace, asked.name, "MiniCluster").await?;
        // A hosted burst has the name of the MiniCluster that is made for it.
        found.hosted =
            seen(&mut found.unseen, "the HostedBurst", get(&client, &namespace, asked.name, "HostedBurst").await)
                .flatten();
        if let Some(mini_cluster) = &found.mini_cluster {
            found.hosted = found.hosted.filter(|hosted| {
                mini_cluster.owner_references().iter().any(|owner| Some(&owner.uid) == hosted.uid().as_ref())
            });
        }
    }
    let mut slot = None;
    if found.mini_cluster.is_none() && found.hosted.is_none() && asked.bursts {
        let bursts: Vec<Burst> = list(&client, &namespace, &ListParams::default(), "Bursts").await?;
        let burst = bursts.iter().find(|burst| burst.name_any() == asked.name);
        let named: Vec<&Burst> = bursts.iter().filter(|burst| burst.spec.slot == asked.name).collect();
        match (burst.or(if let [one] = named.as_slice() { Some(*one) } else { None }), named.as_slice()) {
            (Some(burst), _) => {
                found.mini_cluster = get(&client, &namespace, &burst.spec.root, "MiniCluster").await?;
                slot = Some(burst.name_any());
            }
            (None, []) => {}
            (None, several) => {
                let names: Vec<_> = several.iter().map(|burst| burst.name_any()).collect();
                return Err(Failure::new(format!("several bursts of namespace {namespace} are called {}", asked.name))
                    .hint(format!("name one of {}", names.join(", "))));
            }
        }
        found.bursts = bursts;
    }
    if found.mini_cluster.is_none() && found.hosted.is_none() && slot.is_none() {
        return Err(Failure::new(format!(
            "failed to find a MiniCluster or burst {} in namespace {namespace}",
            asked.name
        ))
        .hint("-n names another namespace; what there is in all: `agentctl status`"));
    }
    fill(target, &client, &namespace, &mut found).await;
    Ok(match slot {
        Some(slot) => Looked::Burst(Box::new(found), slot),
        None => Looked::MiniCluster(Box::new(found)),
    })
}

/// A FluxJob, and what it became.
async fn look_at_job(target: &Target, client: &Client, namespace: &str, name: &str) -> Result<Looked> {
    let job: FluxJob = get(client, namespace, name, "FluxJob").await?.ok_or_else(|| {
        Failure::new(format!("failed to find a FluxJob {name} in namespace {namespace}"))
            .hint("-n names another namespace; what there is in all: `kubectl get fluxjobs --all-namespaces`")
    })?;
    let status = job.status.clone().unwrap_or_default();
    let became = match (&status.sent, &status.mini_cluster) {
        (Some(_), _) => Some(format!("burst/{}", names::sent_burst(name))),
        (None, Some(made)) => Some(format!("minicluster/{made}")),
        (None, None) => None,
    };
    // What is gone, or may not be read, leaves what the FluxJob says itself.
    let became = match became.filter(|_| flux_job::goes_on(&flux_job::explain(&job, None))) {
        Some(became) => Box::pin(look(target, &became)).await.ok().map(Box::new),
        None => None,
    };
    Ok(Looked::FluxJob(Box::new(job), became))
}

/// Everything that is known of the MiniCluster.
async fn fill(target: &Target, client: &Client, namespace: &str, found: &mut Found) {
    let root = found.mini_cluster.as_ref().map(ResourceExt::name_any).unwrap_or_default();
    let has_bursts = found.mini_cluster.as_ref().is_some_and(|root| !root.spec.flux.bursting.clusters.is_empty());
    let pods = ListParams::default().labels(&format!("{JOB_NAME}={root}"));
    let warnings = ListParams::default().fields("type=Warning");
    let agents = &target.agent_namespace;
    let everything = ListParams::default();
    let (job, pods, events, bursts, peers, agent, federation) = tokio::join!(
        get::<Job>(client, namespace, &root, "Job"),
        list::<Pod>(client, namespace, &pods, "Pods"),
        list::<Event>(client, namespace, &warnings, "Events"),
        list::<Burst>(client, namespace, &everything, "Bursts"),
        list::<ClusterPeer>(client, agents, &everything, "ClusterPeers"),
        connect::leader(client, agents, SystemClock::start().wall()),
        federation(target, has_bursts),
    );
    let unseen = &mut found.unseen;
    found.job = seen(unseen, "the Job", job).flatten();
    found.pods = seen(unseen, "the pods", pods).unwrap_or_default();
    found.events = seen(unseen, "the events", events).unwrap_or_default();
    let mut bursts = seen(unseen, "the Bursts", bursts).unwrap_or_default();
    bursts.retain(|burst| burst.spec.root == root);
    bursts.sort_by_key(|burst| burst.spec.index);
    found.bursts = bursts;
    found.peers = if has_bursts { seen(unseen, "the ClusterPeers", peers).unwrap_or_default() } else { Vec::new() };
    found.agent = seen(unseen, "the agents' Lease", agent);
    found.federation = federation.and_then(|read| seen(unseen, "the agent's admin API", read));
    found.simulated = simulated(client, &found.pods).await;
}

/// What the agents say; not asked where there are no bursts.
async fn federation(target: &Target, wanted: bool) -> Option<Result<FederationStatus>> {
    if !wanted {
        return None;
    }
    let read = async { Agent::find(target).await?.read(admin::STATUS).await };
    Some(read.await)
}

/// Whether the first pod's node only pretends. Who may not read nodes is told of real ones.
async fn simulated(client: &Client, pods: &[Pod]) -> bool {
    let Some(name) = pods.iter().find_map(|pod| pod.spec.as_ref()?.node_name.clone()) else { return false };
    let nodes: Api<Node> = Api::all(client.clone());
    let Some(node) = nodes.get_opt(&name).await.ok().flatten() else { return false };
    let kubelet =
        node.status.as_ref().and_then(|status| status.node_info.as_ref()).map(|info| info.kubelet_version.as_str());
    node.annotations().contains_key(KWOK) || kubelet.is_some_and(|version| version.starts_with("kwok"))
}

/// Keeps what was read, or notes why it was not.
fn seen<T>(unseen: &mut Vec<String>, what: &str, read: Result<T>) -> Option<T> {
    read.map_err(|failure| unseen.push(format!("{what} could not be read: {}", failure.line()))).ok()
}

async fn get<K>(client: &Client, namespace: &str, name: &str, kind: &str) -> Result<Option<K>>
where
    K: Resource<Scope = NamespaceResourceScope, DynamicType = ()> + Clone + DeserializeOwned + Debug,
{
    let api: Api<K> = Api::namespaced(client.clone(), namespace);
    api.get_opt(name).await.map_err(|error| {
        Failure::new(format!("failed to read {kind} {namespace}/{name}"))
            .because(error)
            .hint(format!("are the definitions installed (`agentctl check`), and may you read {kind}s there?"))
    })
}

async fn list<K>(client: &Client, namespace: &str, which: &ListParams, kinds: &str) -> Result<Vec<K>>
where
    K: Resource<Scope = NamespaceResourceScope, DynamicType = ()> + Clone + DeserializeOwned + Debug,
{
    let api: Api<K> = Api::namespaced(client.clone(), namespace);
    api.list(which).await.map(|list| list.items).map_err(|error| {
        Failure::new(format!("failed to list {kinds} of namespace {namespace}"))
            .because(error)
            .hint(format!("are the definitions installed (`agentctl check`), and may you list {kinds} there?"))
    })
}
