//! How two clusters get to know each other, whichever command makes them: what a cluster says of itself, the ClusterPeer
//! made of it, and the wait for the connection.

use std::time::Duration;

use k8s_openapi::api::core::v1::ConfigMap;
use kube::Client;
use kube::api::Api;
use tributary::api::cluster_card::{self, ClusterCard};
use tributary::api::labels::condition::CONNECTED;
use tributary::api::peer::{ClusterPeer, ClusterPeerSpec, ImportPolicy, TrustUpdates};
use tributary::federation::enrol::Introduction;
use tributary::federation::identity::TrustBundle;

use crate::error::{Failure, Result};
use crate::hints;

/// How often the ClusterPeer is looked at.
const POLL: Duration = Duration::from_millis(500);

/// How often the ConfigMap is looked for: an agent that was just started needs a few seconds until it leads.
const LOOKS: u32 = 30;

/// What the cluster of `client` says of itself.
pub(super) async fn card(client: &Client, namespace: &str) -> Result<ClusterCard> {
    let what = || format!("failed to learn who this cluster is from ConfigMap {namespace}/{}", cluster_card::NAME);
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), namespace);
    let mut found = None;
    for look in 0..LOOKS {
        if look > 0 {
            tokio::time::sleep(POLL).await;
        }
        found = maps.get_opt(cluster_card::NAME).await.map_err(|error| {
            Failure::new(what()).because(error).hint("is the cluster reachable, and may you read ConfigMaps there?")
        })?;
        if found.is_some() {
            break;
        }
    }
    let found = found.ok_or_else(|| {
        Failure::new(what()).because("it does not exist").hint(
            "the agent writes it once it leads: is it running, in this namespace (--agent-namespace), and not with \
             federation.identity = \"off\"? Its log says more",
        )
    })?;
    ClusterCard::read(&found)
        .map_err(|error| Failure::new(what()).because(error).hint("delete the ConfigMap and restart the agent"))
}

/// The same, without waiting for an agent that was just started; `None`: no agent has said so yet.
pub(super) async fn look_at_card(client: &Client, namespace: &str) -> Result<Option<ClusterCard>> {
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), namespace);
    let found = maps.get_opt(cluster_card::NAME).await.map_err(|error| {
        Failure::new(format!("failed to read ConfigMap {namespace}/{}", cluster_card::NAME)).because(error).hint(
            "is the cluster reachable, and may you read ConfigMaps there? --agent-namespace names another namespace",
        )
    })?;
    let read = found.as_ref().map(ClusterCard::read).transpose();
    read.map_err(|error| Failure::new(error.to_string()).hint("delete the ConfigMap and restart the agent"))
}

/// The same, as it is said to others.
pub(super) fn introduction(card: &ClusterCard) -> Introduction {
    Introduction {
        cluster: card.cluster.as_str().into(),
        cluster_uid: card.cluster_uid.as_str().into(),
        trust_domain: card.trust_domain.clone(),
        trust_bundle: card.trust_bundle.clone(),
        endpoints: card.endpoints.clone(),
    }
}

/// The ClusterPeer that stands for `who`.
pub(super) fn cluster_peer(
    who: &Introduction,
    namespace: &str,
    import: Option<ImportPolicy>,
    labels: std::collections::BTreeMap<String, String>,
) -> ClusterPeer {
    let spec = ClusterPeerSpec {
        endpoints: who.endpoints.clone(),
        trust_bundle: Some(who.trust_bundle.clone()),
        trust_updates: TrustUpdates::FromPeer,
        cluster_uid: Some(who.cluster_uid.to_string()),
        import,
        ..ClusterPeerSpec::default()
    };
    let mut peer = ClusterPeer::new(who.cluster.as_str(), spec);
    peer.metadata.namespace = Some(namespace.to_owned());
    peer.metadata.labels = Some(labels).filter(|labels| !labels.is_empty());
    peer
}

/// Whether `existing` stands for a cluster with these authorities; else why a ClusterPeer must not be written over it.
pub(super) fn check_existing(
    existing: Option<&ClusterPeer>,
    authorities: &TrustBundle,
    own: &ClusterCard,
) -> Result<()> {
    let Some(peer) = existing else { return Ok(()) };
    let name = peer.metadata.name.as_deref().unwrap_or_default();
    let known = peer.spec.trust_bundle.as_deref().filter(|pem| !pem.trim().is_empty()).unwrap_or(&own.trust_bundle);
    let same = TrustBundle::from_pem(known.as_bytes())
        .is_ok_and(|known| !known.fingerprints().is_disjoint(authorities.fingerprints()));
    if same {
        return Ok(());
    }
    Err(Failure::new(format!("cluster {} has a ClusterPeer {name} already, with other authorities", own.cluster)).hint(
        format!(
            "if it is the same cluster made anew, remove the old one first: agentctl peer remove {name}; else one of the \
             two needs another cluster.name"
        ),
    ))
}

/// Waits until the ClusterPeer `name` says that it is connected; returns the endpoint in use.
pub(super) async fn connected(client: &Client, namespace: &str, name: &str, limit: Duration) -> Result<String> {
    let peers: Api<ClusterPeer> = Api::namespaced(client.clone(), namespace);
    let mut last = None;
    let wait = async {
        loop {
            match peers.get_opt(name).await {
                Ok(Some(peer)) => {
                    let status = peer.status.clone().unwrap_or_default();
                    if status.connected {
                        return status.endpoint.unwrap_or_default();
                    }
                    last = Some(peer);
                }
                Ok(None) => last = None,
                Err(error) => tracing::debug!(%error, "failed to look at the ClusterPeer"),
            }
            tokio::time::sleep(POLL).await;
        }
    };
    match tokio::time::timeout(limit, wait).await {
        Ok(endpoint) => Ok(endpoint),
        Err(_) => Err(not_connected(name, limit, last.as_ref())),
    }
}

/// The peers know each other, and are not connected: why, and what to do.
fn not_connected(name: &str, limit: Duration, peer: Option<&ClusterPeer>) -> Failure {
    let failure = Failure::new(format!("both clusters are peers now, and not connected with {name} after {limit:?}"));
    let condition = peer
        .and_then(|peer| peer.status.as_ref())
        .and_then(|status| status.conditions.iter().find(|one| one.type_ == CONNECTED));
    let Some(condition) = condition else {
        return failure
            .because("no agent has looked at the new ClusterPeer yet")
            .hint("is this cluster's agent running?");
    };
    let hint = hints::connection(&condition.reason);
    failure.because(format!("{}: {}", condition.reason, condition.message)).hint(hint)
}

#[cfg(test)]
mod tests {
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
    use tributary::api::peer::ClusterPeerStatus;
    use tributary::federation::identity::Authority;

    use super::*;

    #[test]
    fn every_reason_for_no_connection_has_a_hint() {
        let reasons = [
            "Unreachable",
            "WaitingForPeer",
            "CertificateExpired",
            "UntrustedCertificate",
            "WrongIdentity",
            "WrongClusterUID",
            "UnknownPeer",
            "Suspended",
            "IncompatibleVersion",
        ];
        let shown = |reason: &str| {
            let condition = Condition {
                type_: CONNECTED.into(),
                status: "False".into(),
                reason: reason.into(),
                message: "says the agent".into(),
                last_transition_time: Time(jiff::Timestamp::UNIX_EPOCH),
                observed_generation: None,
            };
            let status = ClusterPeerStatus { conditions: vec![condition], ..ClusterPeerStatus::default() };
            let peer = ClusterPeer { status: Some(status), ..ClusterPeer::new("west", ClusterPeerSpec::default()) };
            not_connected("west", Duration::from_secs(30), Some(&peer)).to_string()
        };
        let mut texts: Vec<String> = reasons.map(shown).into();
        texts.push(not_connected("west", Duration::from_secs(30), None).to_string());
        insta::assert_snapshot!(texts.join("\n\n---\n\n"));
    }

    #[test]
    fn a_peer_of_other_authorities_is_not_written_over() {
        let now = "2025-06-01T12:00:00Z".parse().unwrap();
        let [one, other] = ["west", "west"].map(|name| Authority::create(name, now).unwrap());
        let bundle = |authority: &Authority| TrustBundle::from_pem(authority.certificate().as_bytes()).unwrap();
        let own = ClusterCard { cluster: "east".into(), ..ClusterCard::default() };
        let spec = ClusterPeerSpec { trust_bundle: Some(one.certificate().into()), ..ClusterPeerSpec::default() };
        let peer = ClusterPeer::new("west", spec);
        assert!(check_existing(None, &bundle(&other), &own).is_ok());
        assert!(check_existing(Some(&peer), &bundle(&one), &own).is_ok());
        let refused = check_existing(Some(&peer), &bundle(&other), &own).unwrap_err().to_string();
        assert!(refused.contains("agentctl peer remove west"), "{refused}");
    }
}
