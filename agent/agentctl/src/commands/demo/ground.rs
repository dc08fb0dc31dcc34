//! What a demo makes in a cluster before its agents start, and how it goes again: definitions and namespaces.
//!
//! What a demo makes bears [`MARK`]. In clusters it did not start it takes nothing away that does not.

use std::time::Duration;

use futures::future::try_join_all;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Namespace;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Api, ListParams, ObjectMeta, PostParams};
use kube::core::{ApiResource, DynamicObject, GroupVersionKind};
use kube::runtime::conditions::is_crd_established;
use kube::runtime::wait::Condition;
use kube::{Client, Resource, ResourceExt};
use tributary::api;

use super::clusters::DemoCluster;
use super::progress::Progress;
use super::root::NAMESPACE;
use crate::connect::LEASE;
use crate::error::{Failure, Result};

/// Label of everything a demo made.
pub(super) const MARK: &str = "tributary.dev/demo";

const POLL: Duration = Duration::from_millis(100);
/// How long an API server may take to serve a new kind.
const ESTABLISHED_WITHIN: Duration = Duration::from_secs(30);

/// The labels of everything a demo makes.
pub(super) fn mark(metadata: &mut ObjectMeta) {
    metadata.labels.get_or_insert_default().insert(MARK.to_owned(), "true".to_owned());
}

/// Whether a demo made the object.
pub(super) fn marked(object: &impl Resource) -> bool {
    object.labels().contains_key(MARK)
}

/// Makes definitions and namespaces in every cluster at the same time.
pub(super) async fn prepare(clusters: &[DemoCluster], agent_namespace: &str, progress: &Progress) -> Result<()> {
    let step = progress.step("definitions", "installing MiniCluster, ClusterPeer, Burst and HostedBurst");
    let failed = |cluster: &DemoCluster| format!("failed to prepare the cluster {}", cluster.name);
    try_join_all(clusters.iter().map(|cluster| async move {
        definitions(cluster).await.map_err(|error| {
            Failure::new(failed(cluster)).because(error).hint(format!(
                "bring its definitions to this version yourself: `agentctl crds | kubectl --context {} apply --server-side --force-conflicts -f -`",
                cluster.access.context
            ))
        })?;
        for namespace in [agent_namespace, NAMESPACE] {
            ensure_namespace(&cluster.client, namespace)
                .await
                .map_err(|error| Failure::new(failed(cluster)).because(error))?;
        }
        Ok::<(), Failure>(())
    }))
    .await?;
    step.done(&format!("installed, namespaces {agent_namespace} and {NAMESPACE} exist"));
    Ok(())
}

/// Removes the namespaces and definitions that a demo made, if nobody else put anything in.
pub(super) async fn restore(client: &Client, agent_namespace: &str) -> kube::Result<()> {
    let namespaces = Api::<Namespace>::all(client.clone());
    for name in [agent_namespace, NAMESPACE] {
        if namespaces.get_opt(name).await?.is_some_and(|namespace| marked(&namespace)) {
            let _ = namespaces.delete(name, &Default::default()).await?;
        }
    }
    let definitions = Api::<CustomResourceDefinition>::all(client.clone());
    for name in api::crds().iter().map(ResourceExt::name_any) {
        let Some(definition) = definitions.get_opt(&name).await? else { continue };
        if marked(&definition) && unused(client, &definition).await? {
            let _ = definitions.delete(&name, &Default::default()).await?;
        }
    }
    Ok(())
}

/// Agents that are there already would work on the same objects.
pub(super) async fn no_other_agents(clusters: &[DemoCluster]) -> Result<()> {
    try_join_all(clusters.iter().map(no_other_agent)).await.map(drop)
}

async fn no_other_agent(cluster: &DemoCluster) -> Result<()> {
    if cluster.access.simulated {
        return Ok(());
    }
    let failed = || Failure::new(format!("failed to look for agents in the cluster {}", cluster.name));
    let leases = Api::<Lease>::all(cluster.client.clone());
    let selected = ListParams::default().fields(&format!("metadata.name={LEASE}"));
    let leases = leases.list(&selected).await.map_err(|error| failed().because(error))?;
    let held = |lease: &&Lease| {
        lease.spec.as_ref().and_then(|spec| spec.holder_identity.as_deref()).is_some_and(|holder| !holder.is_empty())
    };
    // Leases outlive a holder that was killed: only one that is being renewed is held.
    for lease in leases.items.iter().filter(held) {
        let lease_api: Api<Lease> = Api::namespaced(cluster.client.clone(), &lease.namespace().unwrap_or_default());
        tokio::time::sleep(RENEWED_WITHIN).await;
        let later = lease_api.get_opt(LEASE).await.map_err(|error| failed().because(error))?;
        if later.is_some_and(|later| later.resource_version() != lease.resource_version()) {
            let namespace = lease.namespace().unwrap_or_default();
            return Err(Failure::new(format!("an agent runs in the cluster {} already", cluster.name)).hint(format!(
                "the demo brings agents of its own; stop that one (namespace {namespace}), or use it instead of the demo"
            )));
        }
    }
    Ok(())
}

/// An agent renews its Lease more often than this.
const RENEWED_WITHIN: Duration = Duration::from_secs(6);

#[derive(Debug, thiserror::Error)]
enum DefinitionError {
    #[error(transparent)]
    Api(#[from] kube::Error),
    #[error("its definition {0} is of another version")]
    Other(String),
    #[error("its API server does not serve {0} within {1} s")]
    NotServed(String, u64),
}

/// Makes the definitions that are missing. One that is there belongs to somebody, and must be the same.
async fn definitions(cluster: &DemoCluster) -> Result<(), DefinitionError> {
    let api = Api::<CustomResourceDefinition>::all(cluster.client.clone());
    try_join_all(api::crds().into_iter().map(|mut wanted| {
        let api = api.clone();
        async move {
            let name = wanted.name_any();
            match api.get_opt(&name).await? {
                Some(found) if same(&found, &wanted) => {}
                Some(_) => return Err(DefinitionError::Other(name)),
                None => {
                    mark(&mut wanted.metadata);
                    api.create(&PostParams::default(), &wanted).await?;
                }
            }
            let served = async {
                while !is_crd_established().matches_object(api.get_opt(&name).await?.as_ref()) {
                    tokio::time::sleep(POLL).await;
                }
                Ok(())
            };
            match tokio::time::timeout(ESTABLISHED_WITHIN, served).await {
                Ok(served) => served,
                Err(_) => Err(DefinitionError::NotServed(name, ESTABLISHED_WITHIN.as_secs())),
            }
        }
    }))
    .await?;
    Ok(())
}

/// Whether both have the same schemas. The API server fills in defaults elsewhere.
fn same(found: &CustomResourceDefinition, wanted: &CustomResourceDefinition) -> bool {
    let schemas = |definition: &CustomResourceDefinition| {
        let versions = definition.spec.versions.iter();
        versions.map(|version| (version.name.clone(), version.schema.clone())).collect::<Vec<_>>()
    };
    schemas(found) == schemas(wanted)
}

async fn unused(client: &Client, definition: &CustomResourceDefinition) -> kube::Result<bool> {
    let Some(version) = definition.spec.versions.iter().find(|version| version.storage) else { return Ok(false) };
    let kind = GroupVersionKind::gvk(&definition.spec.group, &version.name, &definition.spec.names.kind);
    let resource = ApiResource::from_gvk_with_plural(&kind, &definition.spec.names.plural);
    let objects = Api::<DynamicObject>::all_with(client.clone(), &resource);
    Ok(objects.list(&ListParams::default().limit(1)).await?.items.is_empty())
}

async fn ensure_namespace(client: &Client, name: &str) -> kube::Result<()> {
    let namespaces = Api::<Namespace>::all(client.clone());
    if namespaces.get_opt(name).await?.is_some() {
        return Ok(());
    }
    let mut namespace = Namespace {
        metadata: ObjectMeta { name: Some(name.to_owned()), ..ObjectMeta::default() },
        ..Namespace::default()
    };
    mark(&mut namespace.metadata);
    match namespaces.create(&PostParams::default(), &namespace).await {
        Err(kube::Error::Api(status)) if status.code == 409 => Ok(()),
        created => created.map(drop),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn definitions_are_the_same_by_their_schemas() {
        let all = api::crds();
        let mut stored = all[0].clone();
        stored.metadata.uid = Some("1".into());
        stored.spec.conversion = Some(Default::default());
        assert!(same(&stored, &all[0]));
        stored.spec.versions[0].schema.as_mut().unwrap().open_api_v3_schema.as_mut().unwrap().properties = None;
        assert!(!same(&stored, &all[0]));
    }
}
