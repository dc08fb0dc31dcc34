//! Whether a cluster may join: pure.

use data_encoding::HEXLOWER;
use jiff::{SignedDuration, Timestamp};
use sha2::{Digest, Sha256};
use tributary::api::join_token::JoinTokenRecord;
use tributary::api::peer::{ClusterPeer, ClusterPeerSpec, TrustUpdates};
use tributary::federation::enrol::{
    Introduction, Known, Refusal, Refused, Request, client::other_federation, endpoints,
};
use tributary::federation::identity::TrustBundle;
use tributary::federation::identity::authority::BACKDATED;

/// What the verdict depends on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Case<'a> {
    pub request: &'a Request,
    /// The token it names.
    pub token: Option<&'a JoinTokenRecord>,
    /// The ClusterPeer of that name.
    pub existing: Option<&'a ClusterPeer>,
    pub own: &'a Introduction,
    /// The time.
    pub now: Timestamp,
}

/// What to do for a cluster that may join.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Admitted {
    /// To count the use, then to write the ClusterPeer, then to note that it is written. Each is done once more where it is
    /// not known to have been done.
    Joins(Box<Joining>),
    /// Nothing: it was done before, and what its owner here has changed since stays as it is.
    HasJoined,
}

/// What is written for a cluster that joins.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Joining {
    /// The token with the use counted.
    pub used: JoinTokenRecord,
    /// The ClusterPeer.
    pub peer: ClusterPeer,
}

impl Joining {
    /// The token once the ClusterPeer is written.
    pub(crate) fn written(&self) -> JoinTokenRecord {
        let mut token = self.used.clone();
        token.written.extend(self.peer.metadata.name.clone());
        token
    }
}

/// Whether the secret that is shown is that of a token.
pub(crate) fn secret_matches(request: &Request, token: &JoinTokenRecord) -> bool {
    !token.secret_hash.is_empty() && token.secret_hash == request.secret_hash
}

/// What is told to those who do not know the secret, whether there is such a token or not.
pub(crate) fn wrong_token(request: &Request, own: &Introduction) -> Refused {
    let message =
        format!("there is no token `{}` with this secret in cluster `{}`", shown(&request.token), own.cluster);
    Refusal::WrongToken.because(message)
}

/// The verdict.
pub(crate) fn evaluate(case: Case<'_>) -> Result<Admitted, Refused> {
    let Case { request, own, now, .. } = case;
    let token = case.token.filter(|token| secret_matches(request, token)).ok_or_else(|| wrong_token(request, own))?;
    if now >= token.expires {
        return Err(Refusal::Expired.because(format!("the token expired at {}, and it is {now} there", token.expires)));
    }
    let skew = request.clock.duration_since(now).abs();
    if skew > SignedDuration::try_from(BACKDATED).unwrap_or(SignedDuration::MAX) {
        let message = format!(
            "the clocks differ by {} s: {} here, {now} in cluster `{}`; certificates allow {} s",
            skew.as_secs(),
            request.clock,
            own.cluster,
            BACKDATED.as_secs()
        );
        return Err(Refusal::ClockSkew.because(message));
    }
    let who = &request.who;
    let bundle = who.check().map_err(|problem| Refusal::Unacceptable.because(problem))?;
    if let (Some(ours), Some(theirs)) = (&own.trust_domain, &who.trust_domain)
        && ours != theirs
    {
        return Err(Refusal::OtherFederation.because(other_federation(ours, theirs)));
    }
    if who.cluster == own.cluster {
        let message = format!("both clusters are called `{}` (cluster.name)", own.cluster);
        return Err(Refusal::NameTaken.because(message));
    }
    if who.cluster_uid == own.cluster_uid {
        return Err(Refusal::Unacceptable.because("it is the cluster that made the token, under another name"));
    }
    if let Some(peer) = case.existing {
        let trust_bundle = peer.spec.trust_bundle.as_deref();
        let known = Known { cluster_uid: peer.pinned_uid(), trust_bundle, own_bundle: &own.trust_bundle };
        // A token lets somebody in, it does not let him become another.
        known.is(Some(who.cluster_uid.as_str()), bundle.fingerprints()).map_err(|other| {
            let message = format!("cluster `{}` has a ClusterPeer `{}` already, {other}", own.cluster, who.cluster);
            Refusal::NameTaken.because(message)
        })?;
    }
    let (digest, name) = (digest(who, &bundle), who.cluster.as_str());
    let again = token.used_by.get(name) == Some(&digest);
    if again && token.written.contains(name) {
        return match case.existing {
            Some(_) => Ok(Admitted::HasJoined),
            None => {
                let message = format!(
                    "cluster `{name}` has joined with this token, and its ClusterPeer in cluster `{}` was removed since: \
                     it takes another token",
                    own.cluster
                );
                Err(Refusal::UsedUp.because(message))
            }
        };
    }
    let mut used = token.clone();
    if !again {
        if used.used_by.len() >= used.uses as usize {
            let by: Vec<&str> = used.used_by.keys().map(String::as_str).collect();
            let message = format!("the token was used by {} already, and admits {}", by.join(", "), used.uses);
            return Err(Refusal::UsedUp.because(message));
        }
        used.used_by.insert(name.to_owned(), digest);
    }
    let peer = cluster_peer(token, who, &bundle, case.existing);
    Ok(Admitted::Joins(Box::new(Joining { used, peer })))
}

fn cluster_peer(
    token: &JoinTokenRecord,
    who: &Introduction,
    bundle: &TrustBundle,
    existing: Option<&ClusterPeer>,
) -> ClusterPeer {
    let before = existing.map(|peer| peer.spec.endpoints.as_slice()).unwrap_or_default();
    let spec = ClusterPeerSpec {
        endpoints: endpoints(&who.endpoints, before),
        // It shows none that is not known, and its owner here may have added the next one.
        trust_bundle: existing.map_or_else(|| Some(bundle.to_pem()), |peer| peer.spec.trust_bundle.clone()),
        trust_updates: existing.map_or(TrustUpdates::FromPeer, |peer| peer.spec.trust_updates),
        cluster_uid: Some(who.cluster_uid.to_string()),
        // What its owner here allowed before stays, unless the token says otherwise; what it may see, in any case.
        import: token.import(existing.and_then(|peer| peer.spec.import.as_ref())),
        export: existing.and_then(|peer| peer.spec.export.clone()).or_else(|| token.export.clone()),
        budget: existing.map(|peer| peer.spec.budget.clone()).unwrap_or_default(),
        price: existing.map(|peer| peer.spec.price).unwrap_or_default(),
        suspend: existing.is_some_and(|peer| peer.spec.suspend),
        drain: existing.is_some_and(|peer| peer.spec.drain),
    };
    let mut peer = ClusterPeer::new(who.cluster.as_str(), spec);
    let mut labels = existing.and_then(|peer| peer.metadata.labels.clone()).unwrap_or_default();
    labels.extend(token.labels.clone());
    peer.metadata.labels = Some(labels).filter(|labels| !labels.is_empty());
    // What is another one meanwhile is judged again.
    peer.metadata.resource_version = existing.and_then(|peer| peer.metadata.resource_version.clone());
    peer
}

/// What tells a cluster that asks again from another one of the same name.
fn digest(who: &Introduction, bundle: &TrustBundle) -> String {
    let mut hash = Sha256::new().chain_update(who.cluster_uid.as_str());
    for fingerprint in bundle.fingerprints() {
        hash = hash.chain_update(fingerprint);
    }
    HEXLOWER.encode(&hash.finalize())
}

/// A name that a stranger chose, for messages.
fn shown(text: &str) -> String {
    text.chars().filter(char::is_ascii_alphanumeric).take(16).collect()
}

#[cfg(test)]
mod tests {
    use kube::ResourceExt;
    use serde_json::json;
    use tributary::api::peer::{ExportPolicy, ImportPolicy, PodSecurityLevel};
    use tributary::federation::identity::Authority;

    use super::*;

    fn noon() -> Timestamp {
        "2025-06-01T12:00:00Z".parse().unwrap()
    }

    fn introduction(cluster: &str, authority: &Authority) -> Introduction {
        Introduction {
            cluster: cluster.into(),
            cluster_uid: format!("uid-of-{cluster}").into(),
            trust_domain: None,
            trust_bundle: authority.certificate().to_owned(),
            endpoints: vec!["203.0.113.7:30946".into()],
        }
    }

    struct World {
        token: JoinTokenRecord,
        request: Request,
        own: Introduction,
        existing: Option<ClusterPeer>,
    }

    impl World {
        fn new() -> Self {
            let [east, west] = ["east", "west"].map(|name| Authority::create(name, noon()).unwrap());
            Self {
                token: JoinTokenRecord {
                    id: "abcd".into(),
                    secret_hash: "00ff".into(),
                    expires: noon() + SignedDuration::from_mins(15),
                    uses: 1,
                    import: Some(json!({"namespaces": ["hpc"]})),
                    ..JoinTokenRecord::default()
                },
                request: Request {
                    token: "abcd".into(),
                    secret_hash: "00ff".into(),
                    who: introduction("west", &west),
                    clock: noon(),
                },
                own: introduction("east", &east),
                existing: None,
            }
        }

        fn evaluate(&self) -> Result<Admitted, Refused> {
            let Self { token, request, own, existing } = self;
            evaluate(Case { request, token: Some(token), existing: existing.as_ref(), own, now: noon() })
        }

        fn joining(&self) -> Joining {
            match self.evaluate() {
                Ok(Admitted::Joins(joining)) => *joining,
                other => panic!("{other:?}"),
            }
        }

        /// What is refused after a change.
        fn after(change: impl FnOnce(&mut Self)) -> (Refusal, String) {
            let mut world = Self::new();
            change(&mut world);
            let refused = world.evaluate().unwrap_err();
            (refused.refusal, refused.message)
        }
    }

    #[test]
    fn a_cluster_that_joins_gets_what_the_token_allows_and_no_more() {
        let world = World::new();
        let admitted = world.joining();
        let spec = &admitted.peer.spec;
        assert_eq!(admitted.peer.metadata.name.as_deref(), Some("west"));
        assert_eq!(spec.import, Some(ImportPolicy { namespaces: vec!["hpc".into()], ..ImportPolicy::default() }));
        assert_eq!(spec.cluster_uid.as_deref(), Some("uid-of-west"));
        assert_eq!(spec.endpoints, ["203.0.113.7:30946"]);
        assert!(spec.trust_bundle.as_ref().unwrap().contains("BEGIN CERTIFICATE"));
        assert_eq!(admitted.used.used_by.keys().collect::<Vec<_>>(), ["west"]);
    }

    #[test]
    fn another_token_loosens_nothing_that_it_does_not_name() {
        let mut world = World::new();
        let mut known = world.joining().peer;
        let limits = ImportPolicy {
            namespaces: vec!["hpc".into()],
            pod_security: PodSecurityLevel::Restricted,
            allow_images: vec!["ghcr.io/our-org/*".into()],
            max_brokers: Some(64),
            runtime_class: Some("gvisor".into()),
            ..ImportPolicy::default()
        };
        known.spec.import = Some(limits.clone());
        known.metadata.labels = Some([("region".to_owned(), "eu".to_owned())].into());
        world.existing = Some(known);
        world.token.import = Some(json!({"namespaces": ["hpc", "physics"], "maxBrokers": 8}));
        world.token.labels = [("tier".to_owned(), "gpu".to_owned())].into();
        let peer = world.joining().peer;
        let namespaces = vec!["hpc".into(), "physics".into()];
        assert_eq!(peer.spec.import, Some(ImportPolicy { namespaces, max_brokers: Some(8), ..limits.clone() }));
        assert_eq!(peer.labels().len(), 2, "{:?}", peer.labels());
        world.token.import = None;
        assert_eq!(world.joining().peer.spec.import, Some(limits));
    }

    /// The danger: who has a token, and says that it is a peer that is known, takes away where that is reached.
    #[test]
    fn what_joins_again_takes_nothing_away() {
        let mut world = World::new();
        let mut known = world.joining().peer;
        known.spec.trust_updates = TrustUpdates::Manual;
        known.metadata.resource_version = Some("7".into());
        let next = Authority::create("west", noon()).unwrap();
        let both = Some(format!("{}{}", world.request.who.trust_bundle, next.certificate()));
        known.spec.trust_bundle.clone_from(&both);
        world.existing = Some(known);
        world.request.who.endpoints = vec!["192.0.2.66:1".into()];
        let peer = world.joining().peer;
        assert_eq!(peer.spec.endpoints, ["192.0.2.66:1", "203.0.113.7:30946"]);
        assert_eq!((peer.spec.trust_updates, peer.spec.trust_bundle), (TrustUpdates::Manual, both));
        assert_eq!(peer.metadata.resource_version.as_deref(), Some("7"), "it is written over what was judged");
    }

    #[test]
    fn the_same_cluster_may_ask_again_and_another_may_not() {
        let mut world = World::new();
        let first = world.joining();
        world.token = first.used.clone();
        assert_eq!(world.joining(), first, "a write that failed costs no use");
        world.token = first.written();
        world.existing = Some(first.peer);
        assert_eq!(world.evaluate(), Ok(Admitted::HasJoined), "nor does an answer that was lost");
        let other = Authority::create("west", noon()).unwrap();
        world.existing = None;
        world.request.who = introduction("west", &other);
        assert_eq!(world.evaluate().unwrap_err().refusal, Refusal::UsedUp, "the same name is not the same cluster");
    }

    #[test]
    fn a_used_token_gives_nothing_back_that_the_owner_took_away() {
        let mut world = World::new();
        let first = world.joining();
        world.token = JoinTokenRecord { uses: 2, ..first.written() };
        // The owner restricts the peer, and removes it later.
        let mut restricted = first.peer;
        restricted.spec.import = None;
        restricted.spec.export = Some(ExportPolicy { capacity: false, status: false });
        world.existing = Some(restricted);
        assert_eq!(world.evaluate(), Ok(Admitted::HasJoined));
        world.existing = None;
        let refused = world.evaluate().unwrap_err();
        assert_eq!(refused.refusal, Refusal::UsedUp);
        assert!(refused.message.contains("was removed since"), "{}", refused.message);
    }

    #[test]
    fn every_refusal_says_what_was_expected() {
        let minutes = SignedDuration::from_mins;
        let authority = || Authority::create("west", noon()).unwrap();
        let peer = |uid: &str, bundle: Option<String>| {
            let spec = ClusterPeerSpec {
                cluster_uid: Some(uid.to_owned()),
                trust_bundle: bundle,
                ..ClusterPeerSpec::default()
            };
            Some(ClusterPeer::new("west", spec))
        };
        let cases = [
            World::after(|world| world.request.secret_hash = "0000".into()),
            World::after(|world| world.token.secret_hash = String::new()),
            World::after(|world| world.token.expires = noon()),
            World::after(|world| world.request.clock = noon() - minutes(6)),
            World::after(|world| world.request.who.endpoints = vec!["no endpoint".into()]),
            World::after(|world| {
                world.own.trust_domain = Some("river".into());
                world.request.who.trust_domain = Some("lake".into());
            }),
            World::after(|world| world.request.who.cluster = "east".into()),
            World::after(|world| world.request.who.cluster_uid = "uid-of-east".into()),
            World::after(|world| world.existing = peer("another", None)),
            World::after(|world| world.existing = peer("uid-of-west", Some(authority().certificate().into()))),
            World::after(|world| {
                // Adding one's own authority to the known ones is becoming the other cluster, too.
                let known = world.request.who.trust_bundle.clone();
                world.existing = peer("uid-of-west", Some(known.clone()));
                world.request.who.trust_bundle = known + authority().certificate();
            }),
            World::after(|world| world.existing = peer("uid-of-west", None)),
            World::after(|world| {
                world.token.used_by = [("north".to_owned(), "d".to_owned())].into();
            }),
        ];
        let text: Vec<String> = cases.iter().map(|(refusal, message)| format!("{refusal}: {message}")).collect();
        insta::assert_snapshot!(text.join("\n"));
    }
}
