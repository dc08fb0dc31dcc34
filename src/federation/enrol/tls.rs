//! TLS of joining: the listener shows its certificate with its authorities; whoever joins knows these by their SHA-256
//! and shows no certificate, for nobody could verify it yet.

use std::collections::BTreeSet;
use std::sync::{Arc, OnceLock};

use jiff::Timestamp;
use rustls::CertificateError;
use rustls::pki_types::CertificateDer;
use rustls::server::WebPkiClientVerifier;
use rustls::sign::CertifiedKey;
use tributary_clock::SharedClock;
use tributary_contract::PeerName;

use super::token::JoinToken;
use crate::identity::certificate::{Facts, fingerprint};
use crate::identity::tls::{self, ServerVerifier};
use crate::identity::trust::Usage;
use crate::identity::{Identity, TrustBundle};
use crate::wire::registry::ALPN_ENROL;

/// What a listener showed; empty until it has.
pub(super) type Verdict = Arc<OnceLock<Result<(), NotTheOne>>>;

/// Why a listener is not the one that the token means.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum NotTheOne {
    /// Its certificate is of none of the token's authorities.
    Authority,
    /// Its certificate is of the right authority and of another cluster.
    Cluster(Option<PeerName>),
    /// Its certificate is not valid at the time our clock shows.
    Time { not_before: Timestamp, not_after: Timestamp },
}

/// Settings of the listener.
pub(super) fn server(own: &Identity, clock: SharedClock) -> rustls::ServerConfig {
    let certified = own.certified();
    // The authorities travel along: a token holds only their hashes.
    let chain = certified.cert.iter().chain(own.trust().certificates()).cloned().collect();
    let shown = CertifiedKey::new(chain, certified.key.clone());
    tls::listening(WebPkiClientVerifier::no_client_auth(), shown, vec![ALPN_ENROL.to_vec()], clock)
}

/// Settings of whoever joins with `token`.
pub(super) fn client(token: &JoinToken, clock: SharedClock, verdict: Verdict) -> rustls::ClientConfig {
    let (cluster, authorities) = (token.cluster.clone(), token.authorities.clone());
    let expected = Expected { cluster, authorities, clock: clock.clone() };
    let verifier = ServerVerifier(move |leaf: &CertificateDer<'_>, rest: &[CertificateDer<'_>]| {
        let judged = expected.judge(leaf, rest);
        let outcome = judged.as_ref().map(drop).map_err(|_| CertificateError::UnknownIssuer.into());
        // Set once: a verifier belongs to one handshake, which shows one certificate.
        let _ = verdict.set(judged);
        outcome
    });
    tls::dialling(verifier, vec![ALPN_ENROL.to_vec()], clock)
}

/// Whom a token means.
struct Expected {
    cluster: PeerName,
    authorities: BTreeSet<String>,
    clock: SharedClock,
}

impl Expected {
    fn judge(&self, leaf: &CertificateDer<'_>, rest: &[CertificateDer<'_>]) -> Result<(), NotTheOne> {
        let named = rest.iter().filter(|one| self.authorities.contains(&fingerprint(one)));
        let named = named.map(|one| one.clone().into_owned()).collect();
        let bundle = TrustBundle::new(named).map_err(|_| NotTheOne::Authority)?;
        let facts = Facts::read(leaf).map_err(|_| NotTheOne::Authority)?;
        let now = self.clock.wall();
        if bundle.verify(Usage::Server, leaf, rest, now).is_err() {
            let (not_before, not_after) = (facts.not_before, facts.not_after);
            let in_time = (not_before..=not_after).contains(&now);
            // At a time at which it is valid it would be the one: then the time is what is wrong.
            let then = not_after.min(not_before.max(now));
            return Err(match bundle.verify(Usage::Server, leaf, rest, then) {
                Ok(()) if !in_time => NotTheOne::Time { not_before, not_after },
                _ => NotTheOne::Authority,
            });
        }
        match facts.spiffe_id() {
            Ok(id) if *id.cluster() == self.cluster => Ok(()),
            Ok(id) => Err(NotTheOne::Cluster(Some(id.cluster().clone()))),
            Err(_) => Err(NotTheOne::Cluster(None)),
        }
    }
}
