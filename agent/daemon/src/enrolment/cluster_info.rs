//! Who this cluster is: for clusters that join, and as a ConfigMap for `agentctl`.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::Api;
use tokio::sync::watch;
use tributary::api::cluster_card::{self, ClusterCard};
use tributary::api::labels::manager;
use tributary::api::names;
use tributary::cluster::RequestError;
use tributary::cluster::apply::Applier;
use tributary::cluster::client::Clients;
use tributary::cluster::error::chain;
use tributary::config::{Config, IdentityConfig};
use tributary::contract::ports::TrustOffer;
use tributary::federation::enrol::Introduction;
use tributary::federation::identity::{Identity, IdentityStore};

use crate::federation_service::reach::Reach;

/// How soon a write that failed is tried again.
const RETRY: Duration = Duration::from_secs(5);

/// Keeps the ConfigMap, and what joining clusters are told, as the identity is.
pub(crate) struct ClusterInfo {
    /// The agent's configuration.
    pub config: Config,
    pub cluster_uid: String,
    /// Clients of this cluster.
    pub clients: Clients,
    /// The identity in use.
    pub identities: IdentityStore,
    /// What peers shall know of the authority, if it is ours to replace.
    pub offers: watch::Receiver<Option<Arc<TrustOffer>>>,
    /// Where this cluster is reached; `None`: it is not known yet.
    pub reach: watch::Receiver<Option<Reach>>,
}

impl ClusterInfo {
    /// Who we are now.
    pub(crate) fn introduction(&self) -> Introduction {
        let card = self.card(&self.identities.current());
        Introduction {
            cluster: card.cluster.into(),
            cluster_uid: card.cluster_uid.into(),
            trust_domain: card.trust_domain,
            trust_bundle: card.trust_bundle,
            endpoints: card.endpoints,
        }
    }

    /// Writes the ConfigMap and sends who we are, whenever it changes, until dropped.
    pub(crate) async fn keep(self, introductions: watch::Sender<Arc<Introduction>>) {
        let (mut renewals, mut offers, mut reach) =
            (self.identities.subscribe(), self.offers.clone(), self.reach.clone());
        loop {
            // Whoever reads the ConfigMap would take what is missing for a cluster that nobody reaches.
            let Ok(_) = reach.wait_for(Option::is_some).await else { return std::future::pending().await };
            reach.mark_unchanged();
            let newest = Arc::new(self.introduction());
            introductions.send_if_modified(|current| {
                let differs = *current != newest;
                current.clone_from(&newest);
                differs
            });
            let identity = renewals.borrow_and_update().clone();
            offers.mark_unchanged();
            while let Err(error) = self.write(&self.card(&identity)).await {
                tracing::warn!(
                    error = chain(&error),
                    name = cluster_card::NAME,
                    "failed to write the ConfigMap of this cluster"
                );
                tokio::time::sleep(RETRY).await;
            }
            let ended = tokio::select! {
                changed = renewals.changed() => changed.is_err(),
                // A directory offers nothing, and never will.
                Ok(()) = offers.changed() => false,
                changed = reach.changed() => changed.is_err(),
            };
            if ended {
                return std::future::pending().await;
            }
        }
    }

    fn card(&self, identity: &Identity) -> ClusterCard {
        let Reach { endpoints, join_endpoints, awaited_service, service: _ } =
            self.reach.borrow().clone().unwrap_or_default();
        ClusterCard {
            cluster: self.config.cluster.name.clone(),
            cluster_uid: self.cluster_uid.clone(),
            trust_domain: self.config.federation.trust_domain.clone(),
            endpoints,
            join_endpoints,
            awaited_service,
            trust_bundle: identity.trust().to_pem(),
            authority: match &self.config.federation.identity {
                // Of cert-manager's, one of ours may be left from before.
                IdentityConfig::Secret(name) => self.offers.borrow().as_ref().map(|_| names::authority(name)),
                IdentityConfig::Dir(_) | IdentityConfig::Off => None,
            },
        }
    }

    /// Writes nothing if it is there already: an agent that restarts changes nothing.
    async fn write(&self, card: &ClusterCard) -> Result<(), RequestError> {
        let namespace = &self.config.kubernetes.namespace;
        let read: Api<ConfigMap> = Api::namespaced(self.clients.reader.clone(), namespace);
        let mut wanted = card.config_map(namespace);
        // It ends with the Service: who links this cluster once it is installed anew waits until that is known.
        let service = self.reach.borrow().as_ref().and_then(|reach| reach.service.clone());
        wanted.metadata.owner_references = service.map(|service| vec![service]);
        let found = read.get_opt(cluster_card::NAME).await;
        let found =
            found.map_err(|error| RequestError::new("read", format!("ConfigMap {}", cluster_card::NAME), error))?;
        let owners = |object: &ConfigMap| object.metadata.owner_references.clone().unwrap_or_default();
        if found.as_ref().is_some_and(|found| found.data == wanted.data && owners(found) == owners(&wanted)) {
            return Ok(());
        }
        let applier = Applier::new(self.clients.writer.clone(), manager::ENROLMENT);
        applier.own(&wanted, found.as_ref()).await.map(drop)
    }
}
