//! Who this cluster is: for clusters that join, and as a ConfigMap for `agentctl`.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{Api, Patch, PatchParams};
use tokio::sync::watch;
use tributary::api::cluster_card::{self, ClusterCard};
use tributary::api::labels::manager;
use tributary::api::names;
use tributary::cluster::client::Clients;
use tributary::config::{Config, IdentityConfig};
use tributary::federation::enrol::Introduction;
use tributary::federation::identity::{Identity, IdentityStore};

/// How soon a write that failed is tried again.
const RETRY: Duration = Duration::from_secs(5);

/// Keeps the ConfigMap, and what joining clusters are told, as the identity is.
pub struct Card {
    /// The agent's configuration.
    pub config: Config,
    /// UID of this cluster.
    pub cluster_uid: String,
    /// Clients of this cluster.
    pub clients: Clients,
    /// The identity in use.
    pub identities: IdentityStore,
}

impl Card {
    /// Who we are now.
    pub fn introduction(&self) -> Introduction {
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
    pub async fn keep(self, introductions: watch::Sender<Arc<Introduction>>) {
        let mut renewals = self.identities.subscribe();
        loop {
            let newest = Arc::new(self.introduction());
            introductions.send_if_modified(|current| {
                let differs = *current != newest;
                current.clone_from(&newest);
                differs
            });
            let identity = renewals.borrow_and_update().clone();
            while let Err(error) = self.write(&self.card(&identity)).await {
                tracing::warn!(%error, name = cluster_card::NAME, "failed to write the ConfigMap of this cluster");
                tokio::time::sleep(RETRY).await;
            }
            if renewals.changed().await.is_err() {
                return std::future::pending().await;
            }
        }
    }

    fn card(&self, identity: &Identity) -> ClusterCard {
        let federation = &self.config.federation;
        ClusterCard {
            cluster: self.config.cluster.name.clone(),
            cluster_uid: self.cluster_uid.clone(),
            trust_domain: federation.trust_domain.clone(),
            endpoints: federation.advertise.clone(),
            join_endpoints: federation.join_endpoints(),
            trust_bundle: identity.trust().to_pem(),
            authority: match &federation.identity {
                IdentityConfig::Secret(name) => Some(names::authority(name)),
                IdentityConfig::Dir(_) | IdentityConfig::Off => None,
            },
        }
    }

    /// Writes nothing if it is there already: an agent that restarts changes nothing.
    async fn write(&self, card: &ClusterCard) -> kube::Result<()> {
        let namespace = &self.config.kubernetes.namespace;
        let read: Api<ConfigMap> = Api::namespaced(self.clients.reader.clone(), namespace);
        let wanted = card.config_map(namespace);
        if read.get_opt(cluster_card::NAME).await?.is_some_and(|object| object.data == wanted.data) {
            return Ok(());
        }
        let write: Api<ConfigMap> = Api::namespaced(self.clients.writer.clone(), namespace);
        let parameters = PatchParams::apply(manager::ENROLMENT).force();
        write.patch(cluster_card::NAME, &parameters, &Patch::Apply(&wanted)).await.map(drop)
    }
}
