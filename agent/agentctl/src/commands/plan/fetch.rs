//! Reads what is there already, and who could take bursts. Nothing is written, and nothing has to be readable: what is not,
//! is said.

use std::collections::BTreeMap;
use std::fmt::{Debug, Display};
use std::sync::Arc;

use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, ResourceQuota, Secret, Service};
use k8s_openapi::api::scheduling::v1::PriorityClass;
use kube::api::{Api, ListParams};
use kube::{Client, Resource, ResourceExt};
use serde::de::DeserializeOwned;
use tributary::admin::{self, PeerRow};
use tributary::api::flux_setup::{self, FluxSetup};
use tributary::api::hosted_burst::HostedBurst;
use tributary::api::minicluster::MiniCluster;
use tributary::api::names;
use tributary::api::peer::ClusterPeer;
use tributary::bursting::peers::PeerView;
use tributary::bursting::watch::{WatchedNode, WatchedPod};
use tributary::clock::{Clock, SystemClock};
use tributary::cluster::error::chain;
use tributary::contract::{Capacity, PeerName, PeerState};
use tributary::queue::priorities::Priorities;

use super::evaluate::{Existing, Inside, Known};
use super::manifest::Manifest;
use crate::cli::{self, Target};
use crate::commands::{configuration, peering};
use crate::connect::Agent;
use crate::error::{Failure, Result, failed};
use crate::kubernetes;

/// Namespace where none is named and no cluster can be asked.
const DEFAULT: &str = "default";

/// What is known of the clusters.
pub(super) async fn fetch(target: &Target, plan: &cli::Plan, manifest: &Manifest) -> Known {
    let mut known =
        Known { namespace: target.namespace.clone().unwrap_or_else(|| DEFAULT.to_owned()), ..Known::default() };
    if plan.offline {
        known.unchecked.push("anything of any cluster (--offline)".to_owned());
        return known;
    }
    let client = kubernetes::client(target).await.map_err(|failure| failure.line());
    let Some(client) = known.seen("anything of any cluster", client) else { return known };
    if target.namespace.is_none() {
        known.namespace = client.default_namespace().to_owned();
    }
    // One question tells whether there is anybody to ask at all.
    let answers = kubernetes::answers(&client).await.map_err(|failure| failure.line());
    let Some(()) = known.seen("anything of any cluster", answers) else { return known };
    let card = peering::look_at_card(&client, &target.agent_namespace).await.map_err(|failure| failure.line());
    let card = card.and_then(|card| card.ok_or_else(|| "no agent has said so yet".to_owned()));
    known.cluster = known.seen("what this cluster is called", card).map(|card| card.cluster);
    match configuration::look(&client, &target.agent_namespace).await {
        Ok(config) => known.configuration = Some(config),
        // It decides of nothing else that is planned.
        Err(why) if manifest.mini_clusters.iter().any(|one| one.object.spec.made_volumes().next().is_some()) => {
            known.unchecked.push(format!("what the agents here are configured to allow: {why}"));
        }
        Err(_) => {}
    }
    known.look_here(&client, manifest).await;
    known.look_at_peers(target, &client).await;
    for wanted in &plan.peer_contexts {
        let peer = PeerName::from(wanted.peer.as_str());
        let inside = inside(target, wanted, known.cluster.as_deref()).await.map_err(|failure| failure.line());
        if let Some(inside) = known.seen(format!("{peer} by context {}", wanted.context), inside) {
            known.inside.insert(peer, inside);
        }
    }
    known
}

impl Known {
    /// Keeps what was read, or notes why it was not.
    fn seen<T>(&mut self, what: impl Display, read: Result<T, String>) -> Option<T> {
        read.map_err(|why| self.unchecked.push(format!("{what}: {why}"))).ok()
    }

    /// What is there under the names of the manifest, and what quotas leave.
    async fn look_here(&mut self, client: &Client, manifest: &Manifest) {
        let classes = Api::<PriorityClass>::all(client.clone()).list(&ListParams::default()).await;
        let classes = self.seen("the PriorityClasses", classes.map_err(|error| chain(&error)));
        self.priorities = classes.map(|list| Priorities::of(&list.items));
        let namespaces: Api<Namespace> = Api::all(client.clone());
        for declared in &manifest.mini_clusters {
            let namespace = declared.object.namespace().unwrap_or_else(|| self.namespace.clone());
            let name = declared.object.name_any();
            if !self.quotas.contains_key(&namespace) {
                let there = namespaces.get_metadata_opt(&namespace).await.map_err(|error| chain(&error));
                if let Some(None) = self.seen(format!("whether namespace {namespace} exists"), there) {
                    self.no_namespaces.push(namespace.clone());
                }
                let quotas: Api<ResourceQuota> = Api::namespaced(client.clone(), &namespace);
                let quotas = quotas.list(&ListParams::default()).await.map_err(|error| chain(&error));
                let quotas = self.seen(format!("the ResourceQuotas of namespace {namespace}"), quotas);
                self.quotas.insert(namespace.clone(), quotas.map(|list| list.items).unwrap_or_default());
                let setups: Api<FluxSetup> = Api::namespaced(client.clone(), &namespace);
                let setup = setups.get_opt(flux_setup::NAME).await.map_err(|error| chain(&error));
                if let Some(found) = self.seen(format!("the FluxSetup of namespace {namespace}"), setup) {
                    let found = found.filter(|setup| setup.metadata.deletion_timestamp.is_none());
                    self.setups.insert(namespace.clone(), found);
                }
            }
            let found = existing(client, &namespace, &declared.object).await.map_err(|error| chain(&error));
            if let Some(found) = self.seen(format!("what is there under the name {namespace}/{name}"), found) {
                self.existing.insert((namespace, name), found);
            }
        }
    }

    /// The peers: their ClusterPeers, and what the agent knows of them now.
    async fn look_at_peers(&mut self, target: &Target, client: &Client) {
        let objects: Api<ClusterPeer> = Api::namespaced(client.clone(), &target.agent_namespace);
        let objects = objects.list(&ListParams::default()).await.map_err(|error| chain(&error));
        let what = format!("the ClusterPeers of namespace {}", target.agent_namespace);
        let Some(objects) = self.seen(what, objects) else { return };
        let rows = ask(target).await.map_err(|failure| failure.line());
        let rows = self.seen("what peers have free at this moment", rows).unwrap_or_default();
        let view = |peer: &ClusterPeer| {
            let row = rows.iter().find(|row| row.name == peer.name_any());
            (PeerName::from(peer.name_any()), view(peer, row))
        };
        self.peers = Some(objects.items.iter().map(view).collect());
    }
}

async fn ask(target: &Target) -> Result<Vec<PeerRow>> {
    Agent::find(target).await?.read(admin::PEERS).await
}

/// A peer as placement sees it: by what the agent says of it, else by what it last wrote down.
fn view(peer: &ClusterPeer, row: Option<&PeerRow>) -> PeerView {
    let status = peer.status.clone().unwrap_or_default();
    let stored = status.capacity.map(|capacity| Capacity {
        nodes: capacity.nodes,
        free_cores: capacity.free_cores,
        free_memory_mib: capacity.free_memory_mib,
        free_gpus: capacity.free_gpus,
        // Not stored: no node can have more.
        largest_free_node_cores: capacity.free_cores,
        possible: capacity.possible,
        ..Capacity::default()
    });
    let connected = if status.connected { PeerState::Connected } else { PeerState::Disconnected };
    PeerView {
        state: row.map_or(connected, |row| row.state),
        flapping: row.is_some_and(|row| row.flapping),
        capacity: row.map_or(stored, |row| row.capacity.clone()),
        ..PeerView::of(peer, None, SystemClock::start().wall())
    }
}

async fn existing(client: &Client, namespace: &str, wanted: &MiniCluster) -> kube::Result<Existing> {
    let name = &wanted.name_any();
    let mini_cluster: Option<MiniCluster> = Api::namespaced(client.clone(), namespace).get_opt(name).await?;
    let job: Option<Job> = Api::namespaced(client.clone(), namespace).get_opt(name).await?;
    let uid = mini_cluster.as_ref().and_then(MiniCluster::uid);
    let headless = wanted.spec.headless_name(name).to_owned();
    let mut taken = Vec::new();
    let job_of = job.as_ref().map(|job| job.metadata.clone());
    let curve = names::curve(name);
    let secret = match wanted.spec.flux.curve_cert_secret {
        // That one is the user's.
        Some(_) => None,
        None => metadata::<Secret>(client, namespace, &curve).await.unwrap_or_default(),
    };
    let found = [
        ("Job", name.to_owned(), job_of),
        (
            "ConfigMap",
            names::entrypoint(name),
            metadata::<ConfigMap>(client, namespace, &names::entrypoint(name)).await?,
        ),
        ("Secret", curve, secret),
        ("Service", headless.clone(), metadata::<Service>(client, namespace, &headless).await?),
    ];
    for (kind, name, metadata) in found {
        let Some(metadata) = metadata else { continue };
        let owners = metadata.owner_references.unwrap_or_default();
        let ours = uid.is_some() && owners.iter().any(|owner| Some(&owner.uid) == uid.as_ref());
        if !ours {
            taken.push(format!("{kind} {name}"));
        }
    }
    Ok(Existing { mini_cluster, job, taken })
}

type Metadata = k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

async fn metadata<K>(client: &Client, namespace: &str, name: &str) -> kube::Result<Option<Metadata>>
where
    K: Resource<Scope = NamespaceResourceScope, DynamicType = ()> + Clone + DeserializeOwned + Debug,
{
    let api: Api<K> = Api::namespaced(client.clone(), namespace);
    Ok(api.get_metadata_opt(name).await?.map(|found| found.metadata))
}

/// A provider, by a context whose user may look at it as its agent does.
async fn inside(target: &Target, wanted: &cli::PeerContext, root_cluster: Option<&str>) -> Result<Inside> {
    let target = Target { context: Some(wanted.context.clone()), ..target.clone() };
    let client = kubernetes::client(&target).await?;
    let card = peering::look_at_card(&client, &target.agent_namespace).await?;
    if let Some(card) = card.filter(|card| card.cluster != wanted.peer) {
        return Err(Failure::new(format!("that is cluster {}, not {}", card.cluster, wanted.peer))
            .hint(format!("--peer-context {}=CONTEXT names a context of that cluster", wanted.peer)));
    }
    let failed = failed(
        "failed to look at it",
        "the context's user has to be able to list nodes, pods, quotas and the kinds of Tributary there",
    );
    let everything = ListParams::default();
    let peers: Vec<ClusterPeer> =
        Api::namespaced(client.clone(), &target.agent_namespace).list(&everything).await.map_err(&failed)?.items;
    let root = peers.iter().find(|peer| Some(peer.name_any().as_str()) == root_cluster);
    let nodes = Api::<WatchedNode>::all(client.clone()).list(&everything).await.map_err(&failed)?;
    let pods = Api::<WatchedPod>::all(client.clone()).list(&everything).await.map_err(&failed)?;
    let namespaces = Api::<Namespace>::all(client.clone()).list_metadata(&everything).await.map_err(&failed)?;
    let quotas = Api::<ResourceQuota>::all(client.clone()).list(&everything).await.map_err(&failed)?;
    let mini_clusters = Api::<MiniCluster>::all(client.clone()).list(&everything).await.map_err(&failed)?;
    let mut by_namespace: BTreeMap<String, Vec<ResourceQuota>> = BTreeMap::new();
    for quota in quotas {
        by_namespace.entry(quota.namespace().unwrap_or_default()).or_default().push(quota);
    }
    let own = |object: &MiniCluster| object.owner_references().iter().all(|owner| owner.kind != "HostedBurst");
    Ok(Inside {
        import: root.and_then(|peer| peer.spec.import.clone()),
        draining: root.is_some_and(|peer| peer.spec.drain),
        own_namespace: target.agent_namespace.clone(),
        namespaces: namespaces.items.iter().map(ResourceExt::name_any).collect(),
        hosted: Api::<HostedBurst>::all(client.clone()).list(&everything).await.map_err(&failed)?.items,
        nodes: nodes.items.into_iter().map(|node| (node.name_any(), node.view)).collect(),
        pods: pods.items.into_iter().map(|pod| Arc::unwrap_or_clone(pod.view)).collect(),
        quotas: by_namespace,
        mini_clusters: mini_clusters
            .items
            .iter()
            .filter(|object| own(object))
            .map(|object| (object.namespace().unwrap_or_default(), object.name_any()))
            .collect(),
    })
}
