//! Reads what the judgement needs, and nothing else: of Secrets only the names.

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::autoscaling::v2::HorizontalPodAutoscaler;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{ConfigMap, Pod, ResourceQuota, Secret, Service};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Api, DynamicObject, ListParams};
use kube::core::ApiResource;
use kube::{Client, Resource, ResourceExt};
use serde::de::DeserializeOwned;
use tributary::api::labels::upstream::LEASE;
use tributary::api::minicluster::MiniCluster;
use tributary::cluster::error::{Cause, chain};
use tributary::cluster::leadership::lease_holders;

use crate::error::{Result, failed};
use crate::kubernetes::DEFINITION;

/// What a cluster was found to hold.
#[derive(Default)]
pub(super) struct Found {
    /// Version of the API server, as it says it: `v1.35.4`.
    pub kubernetes: String,
    /// The definition of MiniClusters.
    pub definition: Option<CustomResourceDefinition>,
    /// Every Deployment.
    pub deployments: Vec<Deployment>,
    /// Who holds the Flux Operator's Lease.
    pub lease_holder: Option<String>,
    /// Every MiniCluster, as it is stored.
    pub mini_clusters: Vec<DynamicObject>,
    /// Jobs of their namespaces.
    pub jobs: Vec<Job>,
    /// ConfigMaps, Secrets, Services and Pods of their namespaces.
    pub objects: Vec<Named>,
    /// Quotas of their namespaces.
    pub quotas: Vec<ResourceQuota>,
    /// Autoscalers of their namespaces.
    pub autoscalers: Vec<HorizontalPodAutoscaler>,
    /// What could not be read, and why.
    pub unseen: Vec<String>,
}

/// An object by its name, and whose it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Named {
    pub kind: String,
    pub namespace: String,
    pub name: String,
    /// Kind, name and UID of its controller.
    pub controller: Option<(String, String, String)>,
}

impl Named {
    pub(super) fn of(kind: &str, object: &impl ResourceExt) -> Self {
        let controller = object.owner_references().iter().find(|owner| owner.controller == Some(true));
        Self {
            kind: kind.to_owned(),
            namespace: object.namespace().unwrap_or_default(),
            name: object.name_any(),
            controller: controller.map(|owner| (owner.kind.clone(), owner.name.clone(), owner.uid.clone())),
        }
    }
}

/// Reads a cluster, or one namespace of it. What the user may not read is said in [`Found::unseen`], but for the
/// MiniClusters themselves.
///
/// # Errors
/// The API server cannot be reached, or does not show MiniClusters.
pub(super) async fn fetch(client: &Client, namespace: Option<&str>, now: Timestamp) -> Result<Found> {
    let version = client.apiserver_version().await.map_err(failed(
        "failed to reach the API server",
        "name a cluster with --kubeconfig FILE and --context NAME",
    ))?;
    let mut found = Found { kubernetes: version.git_version, ..Found::default() };
    let mut looker = Looker { client, unseen: Vec::new() };
    found.definition = looker.definition().await;
    match lease_holders(client, LEASE, now, Duration::ZERO).await {
        Ok(held) => found.lease_holder = held.first().map(|held| format!("{}/{}", held.namespace, held.holder)),
        Err(error) => looker.unseen.push(match error.cause() {
            Cause::Refused { reason, .. } => format!("Leases: {reason}"),
            cause => format!("Leases: {}", chain(cause)),
        }),
    }
    found.deployments = looker.all::<Deployment>().await;
    if found.definition.is_some() || !looker.unseen.is_empty() {
        found.mini_clusters = mini_clusters(client, namespace).await?;
    }
    let namespaces: BTreeSet<String> = found.mini_clusters.iter().filter_map(ResourceExt::namespace).collect();
    for namespace in &namespaces {
        found.jobs.extend(looker.within::<Job>(namespace).await);
        found.quotas.extend(looker.within::<ResourceQuota>(namespace).await);
        found.autoscalers.extend(looker.within::<HorizontalPodAutoscaler>(namespace).await);
        found.objects.extend(looker.names::<ConfigMap>(namespace).await);
        found.objects.extend(looker.names::<Secret>(namespace).await);
        found.objects.extend(looker.names::<Service>(namespace).await);
        found.objects.extend(looker.names::<Pod>(namespace).await);
    }
    found.unseen = looker.unseen;
    Ok(found)
}

async fn mini_clusters(client: &Client, namespace: Option<&str>) -> Result<Vec<DynamicObject>> {
    let resource = ApiResource::erase::<MiniCluster>(&());
    let api: Api<DynamicObject> = match namespace {
        Some(namespace) => Api::namespaced_with(client.clone(), namespace, &resource),
        None => Api::all_with(client.clone(), &resource),
    };
    match api.list(&ListParams::default()).await {
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(Vec::new()),
        listed => listed.map(|list| list.items).map_err(failed(
            "failed to list MiniClusters",
            "you need to read MiniClusters; with --namespace those of one namespace are enough",
        )),
    }
}

struct Looker<'a> {
    client: &'a Client,
    unseen: Vec<String>,
}

impl Looker<'_> {
    async fn definition(&mut self) -> Option<CustomResourceDefinition> {
        let definition = Api::<CustomResourceDefinition>::all(self.client.clone()).get_opt(DEFINITION).await;
        definition.unwrap_or_else(|error| self.unseen(&format!("the definition {DEFINITION}"), &error))
    }

    async fn all<K>(&mut self) -> Vec<K>
    where
        K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug,
    {
        let list = Api::<K>::all(self.client.clone()).list(&ListParams::default()).await;
        list.map_or_else(|error| self.unseen(&format!("{}s", K::kind(&())), &error), |list| list.items)
    }

    async fn within<K>(&mut self, namespace: &str) -> Vec<K>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + Clone + DeserializeOwned + Debug,
    {
        let list = Api::<K>::namespaced(self.client.clone(), namespace).list(&ListParams::default()).await;
        let what = format!("{}s of namespace {namespace}", K::kind(&()));
        list.map_or_else(|error| self.unseen(&what, &error), |list| list.items)
    }

    /// Names and owners only: what Secrets hold does not leave the API server.
    async fn names<K>(&mut self, namespace: &str) -> Vec<Named>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + Clone + DeserializeOwned + Debug,
    {
        let kind = K::kind(&()).into_owned();
        let list = Api::<K>::namespaced(self.client.clone(), namespace).list_metadata(&ListParams::default()).await;
        let what = format!("{kind}s of namespace {namespace}");
        list.map_or_else(
            |error| self.unseen(&what, &error),
            |list| list.items.iter().map(|object| Named::of(&kind, object)).collect(),
        )
    }

    fn unseen<T: Default>(&mut self, what: &str, error: &kube::Error) -> T {
        let why = match error {
            kube::Error::Api(status) => status.reason.clone(),
            other => other.to_string(),
        };
        self.unseen.push(format!("{what}: {why}"));
        T::default()
    }
}
