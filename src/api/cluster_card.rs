//! What a cluster says of itself to whoever may read ConfigMaps in its agent's namespace: `agentctl token create` and
//! `agentctl link` make ClusterPeers and tokens of it. Nothing in it is secret.

use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::ObjectMeta;

use super::labels::{TRIBUTARY, kubernetes::MANAGED_BY};

/// Name of the ConfigMap.
pub const NAME: &str = "tributary-cluster";

const CLUSTER: &str = "cluster";
const CLUSTER_UID: &str = "cluster-uid";
const TRUST_DOMAIN: &str = "trust-domain";
const ENDPOINTS: &str = "endpoints";
const JOIN_ENDPOINTS: &str = "join-endpoints";
const AWAITED_SERVICE: &str = "awaited-service";
const TRUST_BUNDLE: &str = "ca.crt";
const AUTHORITY: &str = "authority";

/// A cluster, as its agent describes it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClusterCard {
    /// Its name in the federation.
    pub cluster: String,
    /// UID of its `kube-system` namespace.
    pub cluster_uid: String,
    /// The federation it insists on, if it does.
    pub trust_domain: Option<String>,
    /// Where its agent is reached by peers, `host:port`.
    pub endpoints: Vec<String>,
    /// Where its listener for joining is, while there are tokens.
    pub join_endpoints: Vec<String>,
    /// The Service whose load balancer it waits for, and has no endpoints until it is there.
    pub awaited_service: Option<String>,
    /// The authorities that may sign its certificate, PEM.
    pub trust_bundle: String,
    /// Secret of its own authority, if it may have one: what `agentctl identity rotate` asks to be replaced.
    pub authority: Option<String>,
}

/// The ConfigMap is not what an agent writes.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("ConfigMap {NAME} has no `{0}`: it was not written by an agent, or changed since")]
pub struct Incomplete(&'static str);

impl ClusterCard {
    /// The ConfigMap in `namespace`.
    pub fn config_map(&self, namespace: &str) -> ConfigMap {
        let Self { cluster, cluster_uid, trust_domain, endpoints, .. } = self;
        let Self { join_endpoints, awaited_service, trust_bundle, authority, .. } = self;
        let mut data: std::collections::BTreeMap<String, String> = [
            (CLUSTER, cluster.clone()),
            (CLUSTER_UID, cluster_uid.clone()),
            (ENDPOINTS, endpoints.join("\n")),
            (JOIN_ENDPOINTS, join_endpoints.join("\n")),
            (TRUST_BUNDLE, trust_bundle.clone()),
        ]
        .map(|(key, value)| (key.to_owned(), value))
        .into();
        let optional = [(TRUST_DOMAIN, trust_domain), (AWAITED_SERVICE, awaited_service), (AUTHORITY, authority)];
        data.extend(optional.into_iter().filter_map(|(key, value)| Some((key.to_owned(), value.clone()?))));
        ConfigMap {
            metadata: ObjectMeta {
                name: Some(NAME.to_owned()),
                namespace: Some(namespace.to_owned()),
                labels: Some([(MANAGED_BY.to_owned(), TRIBUTARY.to_owned())].into()),
                ..ObjectMeta::default()
            },
            data: Some(data),
            ..ConfigMap::default()
        }
    }

    /// What a ConfigMap says.
    ///
    /// # Errors
    /// Which part is missing.
    pub fn read(object: &ConfigMap) -> Result<Self, Incomplete> {
        let found = |key: &str| object.data.as_ref().and_then(|data| data.get(key)).cloned();
        let needed = |key: &'static str| found(key).filter(|text| !text.trim().is_empty()).ok_or(Incomplete(key));
        let lines = |key: &str| found(key).unwrap_or_default().lines().map(str::to_owned).collect();
        Ok(Self {
            cluster: needed(CLUSTER)?,
            cluster_uid: needed(CLUSTER_UID)?,
            trust_domain: found(TRUST_DOMAIN),
            endpoints: lines(ENDPOINTS),
            join_endpoints: lines(JOIN_ENDPOINTS),
            awaited_service: found(AWAITED_SERVICE),
            trust_bundle: needed(TRUST_BUNDLE)?,
            authority: found(AUTHORITY),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_card_survives_its_config_map() {
        let card = ClusterCard {
            cluster: "east".into(),
            cluster_uid: "1-2".into(),
            trust_domain: Some("river".into()),
            endpoints: vec!["a:1".into(), "b:2".into()],
            join_endpoints: Vec::new(),
            awaited_service: Some("tributary-federation".into()),
            trust_bundle: "-----BEGIN CERTIFICATE-----\n".into(),
            authority: Some("identity-ca".into()),
        };
        assert_eq!(ClusterCard::read(&card.config_map("agents")), Ok(card.clone()));
        let plain = ClusterCard { trust_domain: None, awaited_service: None, authority: None, ..card };
        assert_eq!(ClusterCard::read(&plain.config_map("agents")), Ok(plain));
        assert_eq!(ClusterCard::read(&ConfigMap::default()), Err(Incomplete(CLUSTER)));
    }
}
