//! Where the agents of a namespace work: in the whole cluster, or in some namespaces beside other agents.

use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::coordination::v1::Lease;
use kube::api::{Api, ListParams};
use kube::{Client, Resource, ResourceExt};
use serde::de::DeserializeOwned;

use super::check::Scope;
use super::configuration;
use crate::connect::LEASE;
use crate::error::{Failure, Result};

/// The namespaces; none: the whole cluster.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Watched(Vec<String>);

impl Watched {
    /// Of the agents of this namespace. What other agents of the cluster have is theirs, though their peers may bear the same
    /// names.
    pub(super) async fn of(client: &Client, namespace: &str) -> Result<Self> {
        let why = match configuration::look(client, namespace).await {
            Ok(config) => return Ok(Self(Scope::of(&config, namespace).namespaces)),
            Err(why) => why,
        };
        let failed = || Failure::new(format!("failed to find out where the agents of namespace {namespace} work"));
        let named = ListParams::default().fields(&format!("metadata.name={LEASE}"));
        let leases = Api::<Lease>::all(client.clone()).list(&named).await.map_err(|error| {
            failed().because(error).hint("may you list Leases? They show whether other agents run in this cluster")
        })?;
        // An agent that ends gives its Lease back.
        let is_held = |lease: &&Lease| {
            let holder = lease.spec.as_ref().and_then(|spec| spec.holder_identity.as_deref());
            holder.is_some_and(|holder| !holder.is_empty())
        };
        let others = leases.items.iter().filter(is_held).filter_map(ResourceExt::namespace);
        let others: Vec<String> = others.filter(|other| other != namespace).collect();
        if others.is_empty() {
            return Ok(Self(Vec::new()));
        }
        Err(failed().because(why).hint(format!(
            "other agents are in {}, and what is theirs must stay: name the namespace with --agent-namespace, or delete what \
             the peer has here yourself: `kubectl get hostedbursts --all-namespaces`",
            others.join(", ")
        )))
    }

    /// All objects of a kind there.
    pub(super) async fn all<K>(&self, client: &Client) -> kube::Result<Vec<K>>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + Clone + DeserializeOwned + std::fmt::Debug,
    {
        let everything = ListParams::default();
        if self.0.is_empty() {
            return Ok(Api::all(client.clone()).list(&everything).await?.items);
        }
        let mut all = Vec::new();
        for namespace in &self.0 {
            all.extend(Api::namespaced(client.clone(), namespace).list(&everything).await?.items);
        }
        Ok(all)
    }
}
