//! The verdict on a shown certificate. Pure: time, our identity and the peers are parameters.

use std::collections::BTreeSet;

use jiff::Timestamp;
use rustls::CertificateError;
use rustls::pki_types::CertificateDer;
use tributary_contract::{PeerName, Refusal};

use super::certificate::Facts;
use super::own::Identity;
use super::spiffe::SpiffeId;
use super::trust::{Peer, Peers, TrustBundle, Unverified, Usage};
use crate::transport::PeerIdentity;
use crate::wire::registry::RefusalReason;

/// What the other side showed in its handshake.
#[derive(Clone, Copy)]
pub(crate) struct Shown<'a> {
    pub leaf: &'a CertificateDer<'a>,
    /// The rest of the chain it sent.
    pub intermediates: &'a [CertificateDer<'a>],
}

/// Why somebody is not let in.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Denied {
    /// The name in the certificate, if it could be read. Authentic only where this comes with [`Known`].
    pub claimed: Option<PeerName>,
    /// Why.
    pub reason: RefusalReason,
    /// What was expected, what was shown, what to do.
    pub message: String,
}

impl Denied {
    /// For conditions.
    pub(crate) fn refusal(&self) -> Refusal {
        self.reason.because(self.message.clone())
    }
}

/// Somebody whose identity is proven.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Known {
    pub identity: PeerIdentity,
    /// Why this known somebody is not let in all the same: no ClusterPeer, or a suspended one.
    pub denied: Option<Denied>,
}

/// Judges who answers where we dialled `peer`.
pub(crate) fn server(own: &Identity, peer: &Peer, shown: Shown<'_>, now: Timestamp) -> Result<Known, Denied> {
    let (facts, id) = read(shown)?;
    let verdict = Verdict { own, id: &id, facts: &facts, now };
    verdict.authenticate(Some(peer), Usage::Server, shown)?;
    if *id.cluster() != peer.name {
        return Err(verdict.denied(
            RefusalReason::WrongIdentity,
            format!(
                "cluster `{}` answers at this endpoint; expected cluster `{}`: correct spec.endpoints of ClusterPeer \
                 `{1}`",
                id.cluster(),
                peer.name
            ),
        ));
    }
    Ok(Known { denied: verdict.policy(Some(peer)), identity: identity(&id, &facts) })
}

/// Judges who dials us.
pub(crate) fn client(own: &Identity, peers: &Peers, shown: Shown<'_>, now: Timestamp) -> Result<Known, Denied> {
    let (facts, id) = read(shown)?;
    let verdict = Verdict { own, id: &id, facts: &facts, now };
    let peer = peers.named(id.cluster());
    verdict.authenticate(peer, Usage::Client, shown)?;
    Ok(Known { denied: verdict.policy(peer), identity: identity(&id, &facts) })
}

/// Judges once more somebody who is connected, by the configuration and the time of now. `usage`: what they showed the
/// certificate for. `peer`: the ClusterPeer of that name.
pub(crate) fn again(own: &Identity, peer: &Peer, usage: Usage, shown: Shown<'_>, now: Timestamp) -> Result<(), Denied> {
    let (facts, id) = read(shown)?;
    let verdict = Verdict { own, id: &id, facts: &facts, now };
    verdict.authenticate(Some(peer), usage, shown)
}

fn read(shown: Shown<'_>) -> Result<(Facts, SpiffeId), Denied> {
    let facts = Facts::read(shown.leaf).map_err(|error| Denied {
        claimed: None,
        reason: RefusalReason::UntrustedCertificate,
        message: format!("failed to read the certificate that was shown: {error}"),
    })?;
    match facts.spiffe_id() {
        Ok(id) => Ok((facts, id)),
        Err(error) => Err(Denied {
            claimed: None,
            reason: RefusalReason::WrongIdentity,
            message: format!("the certificate of `{}` does not name a cluster: {error}", facts.subject),
        }),
    }
}

fn identity(id: &SpiffeId, facts: &Facts) -> PeerIdentity {
    PeerIdentity {
        name: id.cluster().clone(),
        trust_domain: id.trust_domain().to_owned(),
        not_after: facts.not_after,
        fingerprint: facts.fingerprint.clone(),
    }
}

struct Verdict<'a> {
    own: &'a Identity,
    id: &'a SpiffeId,
    facts: &'a Facts,
    now: Timestamp,
}

impl Verdict<'_> {
    fn denied(&self, reason: RefusalReason, message: String) -> Denied {
        Denied { claimed: Some(self.id.cluster().clone()), reason, message }
    }

    /// Chain, validity, trust domain.
    fn authenticate(&self, peer: Option<&Peer>, usage: Usage, shown: Shown<'_>) -> Result<(), Denied> {
        // The ClusterPeer that counts: of the peer we dialled, or of the name a client claims.
        let name = peer.map_or(self.id.cluster(), |peer| &peer.name);
        let bundle: &TrustBundle = match peer.and_then(|peer| peer.trust.as_ref()) {
            None => self.own.trust(),
            Some(Ok(bundle)) => bundle,
            Some(Err(error)) => {
                return Err(self.denied(
                    RefusalReason::UntrustedCertificate,
                    format!("failed to use spec.trustBundle of ClusterPeer `{name}`: {error}"),
                ));
            }
        };
        bundle
            .verify(usage, shown.leaf, shown.intermediates, self.now)
            .map_err(|error| self.unverified(peer, &error))?;

        let (named, domain) = (bundle.trust_domains(), self.id.trust_domain());
        let own_bundle = peer.is_none_or(|peer| peer.trust.is_none());
        // An authority that names no domain stands for ours in our own bundle, and in that of a peer for any.
        let unnamed = if own_bundle { domain == self.own.id().trust_domain() } else { named.is_empty() };
        let stands = |of_authority: &BTreeSet<String>| match of_authority.is_empty() {
            true => unnamed || named.contains(domain),
            false => of_authority.contains(domain),
        };
        let signed = bundle.verify_domain(usage, shown.leaf, shown.intermediates, self.now, stands);
        if let Err(others) = signed {
            let expected = if others.is_empty() {
                self.own.id().trust_domain().to_owned()
            } else {
                others.iter().map(String::as_str).collect::<Vec<_>>().join("` or `")
            };
            return Err(self.denied(
                RefusalReason::WrongTrustDomain,
                format!(
                    "`{}` is of trust domain `{domain}`; its authority stands for `{expected}`: issue the certificate \
                     of cluster `{name}` in its own federation, and set spec.trustBundle of ClusterPeer `{name}` to \
                     that federation's ca.crt",
                    self.id
                ),
            ));
        }
        Ok(())
    }

    fn unverified(&self, peer: Option<&Peer>, error: &Unverified) -> Denied {
        use CertificateError as E;
        let (name, facts, now) = (self.id.cluster(), self.facts, self.now);
        let (bundle, remedy) = match peer {
            Some(Peer { name, trust: Some(_), .. }) => (
                format!("spec.trustBundle of ClusterPeer `{name}`"),
                "set it to the ca.crt of that cluster's federation".to_owned(),
            ),
            Some(Peer { name, .. }) => (
                "our own ca.crt".to_owned(),
                format!("if it is of another federation, set spec.trustBundle of ClusterPeer `{name}`"),
            ),
            None => ("our own ca.crt".to_owned(), format!("there is no ClusterPeer `{name}` either")),
        };
        let error = match error {
            Unverified::Chain(error) => error,
            Unverified::Authority { not_before, not_after } => {
                let message = format!(
                    "the authority in {bundle} that signed the certificate of cluster `{name}` is valid from \
                     {not_before} to {not_after}, and it is {now}: put the authority that follows it there"
                );
                return self.denied(RefusalReason::CertificateExpired, message);
            }
        };
        let (reason, message) = match error {
            rustls::Error::InvalidCertificate(E::Expired | E::ExpiredContext { .. }) if facts.not_after < now => (
                RefusalReason::CertificateExpired,
                format!(
                    "the certificate of cluster `{name}` expired at {}, and it is {now}: who renews it is said by \
                     `agentctl --context {name} check`",
                    facts.not_after
                ),
            ),
            rustls::Error::InvalidCertificate(E::NotValidYet | E::NotValidYetContext { .. })
                if facts.not_before > now =>
            {
                (
                    RefusalReason::CertificateExpired,
                    format!(
                        "the certificate of cluster `{name}` is valid from {} only, and our clock says {now}: the \
                         clock of one of the two clusters is wrong",
                        facts.not_before
                    ),
                )
            }
            rustls::Error::InvalidCertificate(
                E::Expired | E::ExpiredContext { .. } | E::NotValidYet | E::NotValidYetContext { .. },
            ) => (
                RefusalReason::CertificateExpired,
                format!(
                    "an authority in the certificate chain of cluster `{name}` is expired or not yet valid ({now})"
                ),
            ),
            error => (
                RefusalReason::UntrustedCertificate,
                format!(
                    "the certificate that claims to be cluster `{name}` does not verify against {bundle} ({error}): \
                     {remedy}"
                ),
            ),
        };
        self.denied(reason, message)
    }

    /// Whether somebody who is proven to be who they say may connect.
    fn policy(&self, peer: Option<&Peer>) -> Option<Denied> {
        let (name, us) = (self.id.cluster(), self.own.id().cluster());
        if name == us {
            let message = format!(
                "cluster `{us}` does not connect to itself: an endpoint leads back, or two clusters were given the \
                 same cluster.name"
            );
            return Some(self.denied(RefusalReason::WrongIdentity, message));
        }
        match peer {
            None => Some(self.denied(
                RefusalReason::UnknownPeer,
                format!("cluster `{us}` has no ClusterPeer named `{name}`: create one there to let it in"),
            )),
            Some(peer) if peer.suspended => Some(self.denied(
                RefusalReason::Suspended,
                format!("ClusterPeer `{name}` in cluster `{us}` is suspended: unset its spec.suspend to connect"),
            )),
            Some(_) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tributary_contract::PeerSpec;
    use zeroize::Zeroizing;

    use super::*;
    use crate::identity::{Authority, Material, Origin};

    const HOUR: Duration = Duration::from_secs(3600);

    fn now() -> Timestamp {
        "2025-06-01T12:00:00Z".parse().unwrap()
    }

    fn identity_of(authority: &Authority, cluster: &str) -> Identity {
        let issued = authority.issue(cluster, now(), HOUR).unwrap();
        let material = Material {
            certificate: Some(issued.certificate().into()),
            key: Some(Zeroizing::new(issued.expose_key().into())),
            trust_bundle: Some(issued.trust_bundle().into()),
        };
        Identity::from_material(&material, &Origin::Secret("test".into()), cluster, now()).unwrap()
    }

    fn spec(name: &str) -> PeerSpec {
        PeerSpec { name: name.into(), ..PeerSpec::default() }
    }

    fn dialled_by(who: &Identity, own: &Identity, peers: &[PeerSpec], at: Timestamp) -> Result<Known, Denied> {
        let chain = who.certified();
        let shown = Shown { leaf: &chain.cert[0], intermediates: &chain.cert[1..] };
        client(own, &Peers::new(peers), shown, at)
    }

    fn dialled(who: &Identity, own: &Identity, peer: &PeerSpec, at: Timestamp) -> Result<Known, Denied> {
        let chain = who.certified();
        let shown = Shown { leaf: &chain.cert[0], intermediates: &chain.cert[1..] };
        server(own, &Peer::from(peer), shown, at)
    }

    #[test]
    fn peers_of_one_federation_know_each_other() {
        let river = Authority::create("river", now()).unwrap();
        let (east, west) = (identity_of(&river, "east"), identity_of(&river, "west"));
        let known = dialled_by(&west, &east, &[spec("west")], now()).unwrap();
        assert_eq!(known.denied, None);
        assert_eq!((known.identity.name.as_str(), known.identity.not_after), ("west", west.not_after()));
        assert_eq!(dialled(&west, &east, &spec("west"), now()).unwrap(), known);
    }

    #[test]
    fn each_refusal_has_its_reason_and_says_what_to_do() {
        use RefusalReason as R;
        let river = Authority::create("river", now()).unwrap();
        let delta = Authority::create("delta", now()).unwrap();
        let (east, west) = (identity_of(&river, "east"), identity_of(&river, "west"));
        let foreign = identity_of(&delta, "west");
        let with_bundle = |pem: &str| PeerSpec { trust_bundle: Some(pem.to_owned()), ..spec("west") };
        let suspended = PeerSpec { suspend: true, ..spec("west") };

        // Not authenticated.
        let denied = [
            (dialled_by(&foreign, &east, &[spec("west")], now()), R::UntrustedCertificate, "set spec.trustBundle of"),
            (dialled_by(&foreign, &east, &[], now()), R::UntrustedCertificate, "no ClusterPeer `west` either"),
            (
                dialled_by(&west, &east, &[with_bundle(delta.certificate())], now()),
                R::UntrustedCertificate,
                "against spec.trustBundle of ClusterPeer `west`",
            ),
            (dialled_by(&west, &east, &[with_bundle("")], now()), R::UntrustedCertificate, "holds no PEM certificate"),
            (dialled_by(&west, &east, &[spec("west")], now() + 2 * HOUR), R::CertificateExpired, "who renews it"),
            (dialled_by(&west, &east, &[spec("west")], now() - HOUR), R::CertificateExpired, "clock of one of the two"),
            (
                dialled(&west, &east, &spec("north"), now()),
                R::WrongIdentity,
                "correct spec.endpoints of ClusterPeer `north`",
            ),
        ];
        for (verdict, reason, message) in denied {
            let denied = verdict.unwrap_err();
            assert_eq!((denied.reason, denied.claimed.as_ref().map(PeerName::as_str)), (reason, Some("west")));
            assert!(denied.message.contains(message), "{}\n  should contain: {message}", denied.message);
        }

        // Authenticated, and not let in.
        let denied = [
            (dialled_by(&west, &east, &[], now()), R::UnknownPeer, "cluster `east` has no ClusterPeer named `west`"),
            (dialled_by(&west, &east, &[suspended], now()), R::Suspended, "suspended"),
            (dialled_by(&east, &east, &[spec("east")], now()), R::WrongIdentity, "does not connect to itself"),
        ];
        for (verdict, reason, message) in denied {
            let denied = verdict.unwrap().denied.unwrap();
            assert_eq!(denied.reason, reason);
            assert!(denied.message.contains(message), "{}\n  should contain: {message}", denied.message);
        }
    }

    #[test]
    fn a_bundle_stands_for_its_own_trust_domain_only() {
        let (river, delta) = (Authority::create("river", now()).unwrap(), Authority::create("delta", now()).unwrap());
        let (east, foreign) = (identity_of(&river, "east"), identity_of(&delta, "west"));
        let peer = PeerSpec { trust_bundle: Some(delta.certificate().to_owned()), ..spec("west") };
        let known = dialled_by(&foreign, &east, std::slice::from_ref(&peer), now()).unwrap();
        assert_eq!((known.identity.trust_domain.as_str(), known.denied), ("delta", None));

        // `delta` signs a name of `river`.
        let impostor = impostor(&delta, "spiffe://river/cluster/west");
        let shown = Shown { leaf: &impostor, intermediates: &[] };
        let denied = client(&east, &Peers::new([&peer]), shown, now()).unwrap_err();
        assert_eq!(denied.reason, RefusalReason::WrongTrustDomain);
        assert!(denied.message.contains("`river`; its authority stands for `delta`"), "{}", denied.message);
    }

    #[test]
    fn each_authority_of_a_bundle_stands_for_its_own_trust_domain_only() {
        let (river, delta) = (Authority::create("river", now()).unwrap(), Authority::create("delta", now()).unwrap());
        let east = identity_of(&river, "east");
        let both = format!("{}{}", river.certificate(), delta.certificate());
        let peer = PeerSpec { trust_bundle: Some(both.clone()), ..spec("west") };
        for (authority, domain, good) in
            [(&river, "river", true), (&delta, "delta", true), (&delta, "river", false), (&river, "delta", false)]
        {
            let leaf = impostor(authority, &format!("spiffe://{domain}/cluster/west"));
            let shown = Shown { leaf: &leaf, intermediates: &[] };
            let verdict = client(&east, &Peers::new([&peer]), shown, now()).map(drop);
            let reason = verdict.map_err(|denied| denied.reason);
            assert_eq!(reason, if good { Ok(()) } else { Err(RefusalReason::WrongTrustDomain) }, "{domain}");
        }
    }

    #[test]
    fn an_expired_authority_signs_nobody_even_if_the_certificate_is_valid() {
        let (old, new) = (authority_ending_at(now() + HOUR), authority_ending_at(now() + 9 * HOUR));
        let river = Authority::create("river", now()).unwrap();
        let east = identity_of(&river, "east");
        let leaf = leaf_of(&old, now() + 9 * HOUR);
        let shown = Shown { leaf: &leaf, intermediates: &[] };
        let trusting = |pem: String| PeerSpec { trust_bundle: Some(pem), ..spec("west") };
        let at = |at, bundle: String| {
            let peer = trusting(bundle);
            let both = (client(&east, &Peers::new([&peer]), shown, at), server(&east, &Peer::from(&peer), shown, at));
            assert_eq!(both.0, both.1, "whoever dials");
            both.0
        };
        let (old_pem, new_pem) = (old.0.pem(), new.0.pem());
        assert!(at(now(), old_pem.clone()).is_ok());
        for bundle in [old_pem.clone(), format!("{old_pem}{new_pem}")] {
            let denied = at(now() + 2 * HOUR, bundle).unwrap_err();
            assert_eq!(denied.reason, RefusalReason::CertificateExpired);
            assert!(denied.message.contains("the authority in spec.trustBundle of ClusterPeer `west`"), "{denied:?}");
            assert!(denied.message.contains("to 2025-06-01T13:00:00Z, and it is 2025-06-01T14:00:00Z"), "{denied:?}");
        }
        // Its successor is there and signs: the old one beside it does no harm.
        let leaf = leaf_of(&new, now() + 9 * HOUR);
        let shown = Shown { leaf: &leaf, intermediates: &[] };
        let peer = trusting(format!("{old_pem}{new_pem}"));
        assert!(client(&east, &Peers::new([&peer]), shown, now() + 2 * HOUR).is_ok());
        // And one who was let in before is not let stay.
        let leaf = leaf_of(&old, now() + 9 * HOUR);
        let shown = Shown { leaf: &leaf, intermediates: &[] };
        let peer = Peer::from(&peer);
        assert_eq!(again(&east, &peer, Usage::Client, shown, now()), Ok(()));
        assert!(again(&east, &peer, Usage::Client, shown, now() + 2 * HOUR).is_err());
    }

    fn authority_ending_at(end: Timestamp) -> (rcgen::Certificate, rcgen::KeyPair) {
        let key = rcgen::KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256).unwrap();
        let mut params = valid_until(end, "spiffe://river");
        params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        params.distinguished_name.push(rcgen::DnType::CommonName, end.to_string());
        (params.self_signed(&key).unwrap(), key)
    }

    fn leaf_of((authority, key): &(rcgen::Certificate, rcgen::KeyPair), end: Timestamp) -> CertificateDer<'static> {
        let key = rcgen::KeyPair::from_pem(&key.serialize_pem()).unwrap();
        let issuer = rcgen::Issuer::from_ca_cert_pem(&authority.pem(), key).unwrap();
        let leaf = rcgen::KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256).unwrap();
        valid_until(end, "spiffe://river/cluster/west").signed_by(&leaf, &issuer).unwrap().der().clone()
    }

    fn valid_until(end: Timestamp, uri: &str) -> rcgen::CertificateParams {
        let since_epoch = |at: Timestamp| Duration::from_secs(at.as_second().try_into().unwrap());
        let mut params = rcgen::CertificateParams::default();
        params.not_before = rcgen::date_time_ymd(1970, 1, 1) + since_epoch(now() - HOUR);
        params.not_after = rcgen::date_time_ymd(1970, 1, 1) + since_epoch(end);
        params.subject_alt_names = vec![rcgen::SanType::URI(uri.try_into().unwrap())];
        params
    }

    #[test]
    fn a_certificate_without_an_id_is_nobody() {
        let river = Authority::create("river", now()).unwrap();
        let east = identity_of(&river, "east");
        let nobody = impostor(&river, "https://west.example");
        let shown = Shown { leaf: &nobody, intermediates: &[] };
        let denied = client(&east, &Peers::new([&spec("west")]), shown, now()).unwrap_err();
        assert_eq!((denied.reason, denied.claimed.clone()), (RefusalReason::WrongIdentity, None));
        assert!(denied.message.contains("spiffe://<trust domain>/cluster/<name>"), "{}", denied.message);
    }

    /// A certificate for any URI, signed by `authority` with its key.
    fn impostor(authority: &Authority, uri: &str) -> CertificateDer<'static> {
        let dir = tempfile::tempdir().unwrap();
        authority.write(dir.path(), crate::identity::files::Existing::Refuse).unwrap();
        let key = rcgen::KeyPair::from_pem(&std::fs::read_to_string(dir.path().join("ca.key")).unwrap()).unwrap();
        let issuer = rcgen::Issuer::from_ca_cert_pem(authority.certificate(), key).unwrap();
        let mut params = rcgen::CertificateParams::default();
        params.subject_alt_names = vec![rcgen::SanType::URI(uri.try_into().unwrap())];
        let leaf = rcgen::KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256).unwrap();
        params.signed_by(&leaf, &issuer).unwrap().der().clone()
    }
}
