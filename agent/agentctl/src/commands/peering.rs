//! How two clusters get to know each other, whichever command makes them: what a cluster says of itself, the ClusterPeer
//! made of it, and the wait for the connection.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, IsTerminal};
use std::time::Duration;

use k8s_openapi::api::core::v1::ConfigMap;
use kube::Client;
use kube::api::Api;
use tributary::api::cluster_card::{self, ClusterCard};
use tributary::api::labels::condition::CONNECTED;
use tributary::api::peer::{ClusterPeer, ClusterPeerSpec, ExportPolicy, ImportPolicy, TrustUpdates};
use tributary::federation::enrol::{Introduction, Known};

use crate::error::{Failure, Result};
use crate::hints::{self, Pair};
use crate::{kubernetes, output, paste};

/// How often the ClusterPeer is looked at.
const POLL: Duration = Duration::from_millis(500);

/// How long it is waited for a cluster that says nothing of itself: an agent that was just started needs a few seconds until
/// it leads.
pub(super) const JUST_STARTED: Duration = Duration::from_secs(15);

/// How long nothing is said of waiting where nobody may watch.
const SILENCE: Duration = Duration::from_secs(5);

/// What the cluster of `client` says of itself.
pub(super) async fn card(client: &Client, namespace: &str) -> Result<ClusterCard> {
    let found = patiently(JUST_STARTED, SILENCE, output::remark, async || {
        Ok(match look_at_card(client, namespace).await? {
            Some(card) => Look::There(card),
            None => Look::Missing(format!("waiting for ConfigMap {namespace}/{}", cluster_card::NAME)),
        })
    });
    found.await?.ok_or_else(|| unknown(namespace))
}

/// The same, with the way in, if the cluster waits for one: for at most `limit`. Without one after that time, the cluster is known
/// all the same.
pub(super) async fn reachable_card(
    client: &Client,
    context: &str,
    namespace: &str,
    limit: Duration,
) -> Result<ClusterCard> {
    let known = Cell::new(None);
    // Who does not wait for a connection waits for an agent that was just started.
    let patience = limit.max(JUST_STARTED);
    let silence = if io::stderr().is_terminal() { Duration::ZERO } else { SILENCE };
    let found = patiently(patience, silence, output::remark, async || {
        let found = look_at_card(client, namespace).await?;
        let looked = judge(found, context, namespace, limit);
        if let Look::Unreachable(card, _) = &looked {
            known.set(Some(card.clone()));
        }
        Ok(looked)
    });
    let found = found.await?;
    found.or_else(|| known.take()).ok_or_else(|| unknown(namespace))
}

/// What one look for a card found.
#[derive(Debug, PartialEq, Eq)]
enum Look {
    There(ClusterCard),
    /// It, but that nobody knows how to reach the cluster: what is waited for.
    Unreachable(ClusterCard, String),
    /// Nothing: what is waited for.
    Missing(String),
}

fn judge(found: Option<ClusterCard>, context: &str, namespace: &str, limit: Duration) -> Look {
    let Some(card) = found else {
        let map = cluster_card::NAME;
        return Look::Missing(format!("{context}: waiting for the agent, which writes ConfigMap {namespace}/{map}"));
    };
    match &card.awaited_service {
        Some(service) if card.endpoints.is_empty() && !limit.is_zero() => {
            let text = format!("{context}: waiting for the load balancer of Service {namespace}/{service}");
            Look::Unreachable(card, text)
        }
        _ => Look::There(card),
    }
}

fn unknown(namespace: &str) -> Failure {
    let what = format!("failed to learn who this cluster is from ConfigMap {namespace}/{}", cluster_card::NAME);
    Failure::new(what).because("it does not exist").hint(
        "the agent writes it once it leads: is it running, in this namespace (--agent-namespace), and not with \
         federation.identity = \"off\"? Its log says more",
    )
}

/// Looks until all is there, for at most `limit` after the first look. What is waited for is told after `silence`, each time it is
/// something else.
async fn patiently(
    limit: Duration,
    silence: Duration,
    tell: impl Fn(&str),
    mut look: impl AsyncFnMut() -> Result<Look>,
) -> Result<Option<ClusterCard>> {
    let (mut waited, mut told) = (Duration::ZERO, String::new());
    let wait = async {
        loop {
            let missing = match look().await? {
                Look::There(card) => return Ok(card),
                Look::Unreachable(_, missing) | Look::Missing(missing) => missing,
            };
            if waited >= silence && told != missing {
                tell(&missing);
                told = missing;
            }
            tokio::time::sleep(POLL).await;
            waited += POLL;
        }
    };
    match tokio::time::timeout(limit, wait).await {
        Ok(found) => found.map(Some),
        Err(_) => Ok(None),
    }
}

/// What a cluster says of itself, without waiting for an agent that was just started; `None`: no agent has said so yet.
pub(super) async fn look_at_card(client: &Client, namespace: &str) -> Result<Option<ClusterCard>> {
    let found = kubernetes::get::<ConfigMap>(client, namespace, cluster_card::NAME).await.map_err(|failure| {
        failure.hint(
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

/// What a peer sees of a cluster whose owner has just made it one: unless told otherwise, `agentctl status` over there
/// shows us.
pub(super) fn export(hide_status: bool) -> ExportPolicy {
    ExportPolicy { status: !hide_status, ..ExportPolicy::default() }
}

/// The ClusterPeer that stands for `who`.
pub(super) fn cluster_peer(
    who: &Introduction,
    namespace: &str,
    import: Option<ImportPolicy>,
    hide_status: bool,
    labels: BTreeMap<String, String>,
) -> ClusterPeer {
    let spec = ClusterPeerSpec {
        endpoints: who.endpoints.clone(),
        trust_bundle: Some(who.trust_bundle.clone()),
        trust_updates: TrustUpdates::FromPeer,
        cluster_uid: Some(who.cluster_uid.to_string()),
        import,
        export: Some(export(hide_status)),
        ..ClusterPeerSpec::default()
    };
    let mut peer = ClusterPeer::new(who.cluster.as_str(), spec);
    peer.metadata.namespace = Some(namespace.to_owned());
    peer.metadata.labels = Some(labels).filter(|labels| !labels.is_empty());
    peer
}

/// How somebody knows the cluster that a ClusterPeer is to stand for.
#[derive(Clone, Copy, Debug)]
pub(super) enum KnownBy<'a> {
    /// By what it says of itself over the network. Its token says no UID.
    ItsWord { uid: Option<&'a str> },
    /// By its API server: this is its UID, and `context` is that of the cluster in which the ClusterPeer is.
    ItsOwner { uid: &'a str, context: &'a str },
}

/// Whether `existing` stands for a cluster with these authorities (SHA-256, hex); else why a ClusterPeer must not be written over
/// it.
pub(super) fn check_existing(
    existing: Option<&ClusterPeer>,
    authorities: &BTreeSet<String>,
    known_by: KnownBy<'_>,
    own: &ClusterCard,
) -> Result<()> {
    let Some(peer) = existing else { return Ok(()) };
    let name = peer.metadata.name.as_deref().unwrap_or_default();
    let trust_bundle = peer.spec.trust_bundle.as_deref();
    let known = Known { cluster_uid: peer.pinned_uid(), trust_bundle, own_bundle: &own.trust_bundle };
    let (same, first, context) = match known_by {
        // Its authority was lost, and it has another one: bursts of both sides go on.
        KnownBy::ItsOwner { uid, .. } if known.cluster_uid == Some(uid) => return Ok(()),
        // Its UID is another one, or nobody knows it: `link` can tell no more.
        KnownBy::ItsOwner { context, .. } => {
            let other = known.authorities().is_disjoint(authorities).then_some("with other authorities");
            (other.map_or(Ok(()), Err), String::new(), format!("--context {} ", paste::quoted(context)))
        }
        KnownBy::ItsWord { uid } => {
            let own = &own.cluster;
            let link = format!(
                "if it is the same cluster, whoever may write in both links them: `agentctl link {name} {own}`; "
            );
            (known.is(uid, authorities), link, String::new())
        }
    };
    same.map_err(|other| {
        Failure::new(format!("cluster {} has a ClusterPeer {name} already, {other}", own.cluster)).hint(format!(
            "{first}if it was made anew, remove the old one first: `agentctl {context}peer remove {name}`; else one of the two \
             needs another cluster.name"
        ))
    })
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
                    // What was said before the last change may be of an agent that is gone.
                    if status.connected && status.observed_generation >= peer.metadata.generation {
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
    let hint = hints::connection(&condition.reason, Pair { peer: name, us: None });
    failure.because(format!("{}: {}", condition.reason, condition.message)).hint(hint)
}

#[cfg(test)]
mod tests {
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
    use tributary::api::peer::ClusterPeerStatus;
    use tributary::federation::identity::{Authority, TrustBundle};

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
            "OwnName",
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

    fn known(endpoints: &[&str], awaited: Option<&str>) -> ClusterCard {
        ClusterCard {
            cluster: "west".into(),
            endpoints: endpoints.iter().map(|one| (*one).to_owned()).collect(),
            awaited_service: awaited.map(str::to_owned),
            ..ClusterCard::default()
        }
    }

    #[test]
    fn a_way_in_is_waited_for_where_the_cluster_awaits_one() {
        let judged =
            |found: Option<ClusterCard>, limit: u64| judge(found, "west", "agents", Duration::from_secs(limit));
        let Look::Missing(text) = judged(None, 30) else { panic!("there is no card") };
        insta::assert_snapshot!(text, @"west: waiting for the agent, which writes ConfigMap agents/tributary-cluster");
        let awaits = known(&[], Some("river-federation"));
        let Look::Unreachable(_, text) = judged(Some(awaits.clone()), 30) else { panic!("it awaits a load balancer") };
        insta::assert_snapshot!(text, @"west: waiting for the load balancer of Service agents/river-federation");
        for (card, limit) in [(known(&["a:1"], None), 30), (known(&[], None), 30), (awaits, 0)] {
            assert_eq!(judged(Some(card.clone()), limit), Look::There(card));
        }
    }

    #[tokio::test]
    async fn what_is_waited_for_is_told_once_and_for_no_longer_than_asked() {
        let told = std::cell::RefCell::new(Vec::new());
        let tell = |text: &str| told.borrow_mut().push(text.to_owned());
        let looks = Cell::new(0);
        let there = async || {
            looks.set(looks.get() + 1);
            Ok(match looks.get() {
                1 | 2 => Look::Missing("the agent".into()),
                3 => Look::Unreachable(known(&[], Some("s")), "the load balancer".into()),
                _ => Look::There(known(&["a:1"], None)),
            })
        };
        let found = patiently(10 * POLL, Duration::ZERO, tell, there).await.unwrap();
        assert_eq!(found, Some(known(&["a:1"], None)));
        assert_eq!(told.take(), ["the agent", "the load balancer"]);
        let never = async || Ok(Look::Missing("the agent".into()));
        assert_eq!(patiently(POLL / 2, POLL, tell, never).await.unwrap(), None);
        assert!(told.take().is_empty(), "nothing is said of a short wait");
    }

    /// The danger: who has made a token adds his own authority to those of a cluster that is known here, and is that cluster
    /// from then on.
    #[test]
    fn another_cluster_is_not_written_over_a_peer() {
        let now = "2025-06-01T12:00:00Z".parse().unwrap();
        let [one, other] = ["west", "west"].map(|name| Authority::create(name, now).unwrap());
        let bundle = |pem: &str| TrustBundle::from_pem(pem.as_bytes()).unwrap().fingerprints().clone();
        let [both, one] = [format!("{}{}", one.certificate(), other.certificate()), one.certificate().to_owned()];
        let other = other.certificate();
        let own = ClusterCard { cluster: "east".into(), ..ClusterCard::default() };
        let spec = ClusterPeerSpec { trust_bundle: Some(one.clone()), ..ClusterPeerSpec::default() };
        let mut peer = ClusterPeer::new("west", spec);
        let check = |peer: Option<&ClusterPeer>, authorities: &str, known_by: KnownBy<'_>| {
            check_existing(peer, &bundle(authorities), known_by, &own).map_err(|failure| failure.to_string())
        };
        let word = KnownBy::ItsWord { uid: Some("1-2") };
        assert_eq!(check(None, other, word), Ok(()));
        assert_eq!(check(Some(&peer), &one, word), Ok(()));
        for authorities in [other, both.as_str()] {
            let refused = check(Some(&peer), authorities, word).unwrap_err();
            assert!(refused.contains("`agentctl peer remove west`"), "{refused}");
        }
        let owner = KnownBy::ItsOwner { uid: "1-2", context: "at-east" };
        let refused = check(Some(&peer), other, owner).unwrap_err();
        assert!(refused.contains("`agentctl --context at-east peer remove west`"), "{refused}");
        assert!(!refused.contains("agentctl link"), "that was just done: {refused}");
        // The same cluster, by the UID of the first contact, lost its authority.
        peer.status = Some(ClusterPeerStatus { cluster_uid: Some("1-2".into()), ..ClusterPeerStatus::default() });
        assert_eq!(check(Some(&peer), other, owner), Ok(()));
        assert!(check(Some(&peer), other, word).is_err(), "anybody can say that");
        peer.spec.cluster_uid = Some("3-4".into());
        assert!(check(Some(&peer), other, owner).is_err(), "the user's word wins");
        let refused = check(Some(&peer), &one, word).unwrap_err();
        assert!(refused.contains("of a cluster with another UID"), "{refused}");
        assert_eq!(check(Some(&peer), &one, KnownBy::ItsWord { uid: None }), Ok(()), "of the token alone");
        // Its owner here knew the old authority and the new one, and the cluster has one of them now.
        let known = ClusterPeerSpec { trust_bundle: Some(both.clone()), ..peer.spec.clone() };
        let rotated = ClusterPeer { spec: known, ..peer.clone() };
        assert_eq!(check(Some(&rotated), &one, KnownBy::ItsWord { uid: Some("3-4") }), Ok(()));
        assert!(check(Some(&rotated), &one, word).is_err(), "it shows another UID");
        assert_eq!(check(Some(&peer), &one, owner), Ok(()), "one authority may be of several clusters: `link` asks");
    }
}
