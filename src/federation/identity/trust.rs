//! Trust bundles, and the configured peers with theirs.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use jiff::Timestamp;
use rustls::RootCertStore;
use rustls::client::verify_server_cert_signed_by_trust_anchor;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{ParsedCertificate, WebPkiClientVerifier};
use tributary_contract::{PeerName, PeerSpec};

use super::certificate::{Facts, unix_time};
use super::spiffe::trust_domain_of_authority;

/// The authorities that may sign an identity.
#[derive(Clone)]
pub struct TrustBundle {
    roots: Arc<RootCertStore>,
    clients: Arc<dyn ClientCertVerifier>,
    /// The same certificates, with what rustls does not look at.
    authorities: Vec<Authority>,
    trust_domains: BTreeSet<String>,
    fingerprints: BTreeSet<String>,
}

#[derive(Clone)]
struct Authority {
    certificate: CertificateDer<'static>,
    not_before: Timestamp,
    not_after: Timestamp,
    trust_domains: BTreeSet<String>,
}

/// Why a certificate does not verify against a bundle.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
pub enum Unverified {
    /// Its chain, its own validity, or its usage.
    #[error(transparent)]
    Chain(#[from] rustls::Error),
    /// Only an authority signed it that is itself not valid.
    #[error("the authority that signed it is valid from {not_before} to {not_after} only")]
    Authority {
        /// Of the one that ends last.
        not_before: Timestamp,
        /// Of the one that ends last.
        not_after: Timestamp,
    },
}

/// Why a text is no trust bundle.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum TrustBundleError {
    /// Nothing in it.
    #[error("it holds no PEM certificate")]
    Empty,
    /// Something in it is not what it should be.
    #[error("certificate {0} in it cannot be parsed")]
    Unparsable(usize),
}

/// What a certificate is used for: its extended key usage, if it has one, must allow it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Usage {
    /// By the side that listens.
    Server,
    /// By the side that dials.
    Client,
}

impl TrustBundle {
    /// The certificates of a PEM text. What else is in it is skipped.
    pub fn from_pem(pem: &[u8]) -> Result<Self, TrustBundleError> {
        let numbered = CertificateDer::pem_slice_iter(pem).enumerate();
        let read = numbered.map(|(index, read)| read.map_err(|_| TrustBundleError::Unparsable(index + 1)));
        Self::new(read.collect::<Result<_, _>>()?)
    }

    /// These certificates.
    pub(crate) fn new(certificates: Vec<CertificateDer<'static>>) -> Result<Self, TrustBundleError> {
        let mut roots = RootCertStore::empty();
        let (mut trust_domains, mut fingerprints) = (BTreeSet::new(), BTreeSet::new());
        let mut authorities = Vec::new();
        for (index, certificate) in certificates.into_iter().enumerate() {
            let unparsable = TrustBundleError::Unparsable(index + 1);
            let facts = Facts::read(&certificate).map_err(|_| unparsable.clone())?;
            let named = facts.uris.iter().filter_map(|uri| trust_domain_of_authority(uri));
            let named: BTreeSet<String> = named.map(str::to_owned).collect();
            trust_domains.extend(named.iter().cloned());
            fingerprints.insert(facts.fingerprint);
            authorities.push(Authority {
                certificate: certificate.clone(),
                not_before: facts.not_before,
                not_after: facts.not_after,
                trust_domains: named,
            });
            roots.add(certificate).map_err(|_| unparsable)?;
        }
        let roots = Arc::new(roots);
        let clients = client_verifier(&roots)?;
        Ok(Self { roots, clients, authorities, trust_domains, fingerprints })
    }

    /// The certificates (DER), in their order.
    pub(crate) fn certificates(&self) -> impl Iterator<Item = &CertificateDer<'static>> {
        self.authorities.iter().map(|authority| &authority.certificate)
    }

    /// Those of them (DER) that are valid at `now`.
    pub(super) fn valid_at(&self, now: Timestamp) -> impl Iterator<Item = &CertificateDer<'static>> {
        self.authorities.iter().filter(move |authority| authority.is_valid(now)).map(|authority| &authority.certificate)
    }

    /// The certificates as PEM, and nothing else that was in the text they came from.
    pub fn to_pem(&self) -> String {
        self.certificates().map(|certificate| pem(certificate)).collect()
    }

    /// Verifies chain, validity at `now` (of the authority too: to webpki, as to RFC 5280, 6.1.1, a trust anchor is a
    /// name and a key without an end) and usage. The name is not looked at.
    pub fn verify(
        &self,
        usage: Usage,
        leaf: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: Timestamp,
    ) -> Result<(), Unverified> {
        self.verify_chain(usage, leaf, intermediates, now)?;
        let Some(last) = self.authorities.iter().filter(|a| !a.is_valid(now)).max_by_key(|a| a.not_after) else {
            return Ok(());
        };
        self.only(|authority| authority.is_valid(now))
            .and_then(|valid| valid.verify_chain(usage, leaf, intermediates, now).ok())
            .ok_or(Unverified::Authority { not_before: last.not_before, not_after: last.not_after })
    }

    fn verify_chain(
        &self,
        usage: Usage,
        leaf: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: Timestamp,
    ) -> Result<(), rustls::Error> {
        let now = unix_time(now);
        match usage {
            Usage::Client => self.clients.verify_client_cert(leaf, intermediates, now).map(drop),
            Usage::Server => verify_server_cert_signed_by_trust_anchor(
                &ParsedCertificate::try_from(leaf)?,
                &self.roots,
                intermediates,
                now,
                provider().signature_verification_algorithms.all,
            ),
        }
    }

    /// Verifies that an authority signed this which may: `stands` is asked with the trust domains that an authority names.
    ///
    /// # Errors
    /// The trust domains of those that may not.
    pub(crate) fn verify_domain(
        &self,
        usage: Usage,
        leaf: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: Timestamp,
        stands: impl Fn(&BTreeSet<String>) -> bool,
    ) -> Result<(), BTreeSet<String>> {
        let others = self.authorities.iter().filter(|authority| !stands(&authority.trust_domains)).collect::<Vec<_>>();
        let signed = |bundle: &Self| bundle.verify(usage, leaf, intermediates, now).is_ok();
        if others.is_empty() || self.only(|one| stands(&one.trust_domains)).is_some_and(|bundle| signed(&bundle)) {
            return Ok(());
        }
        Err(others.into_iter().flat_map(|authority| authority.trust_domains.clone()).collect())
    }

    /// Whether these authorities can come after those of `before`: the newest one stays, and what comes in was not made
    /// before it. Of all bundles that a cluster ever offered, only the next one passes.
    pub(crate) fn follows(&self, before: &Self) -> bool {
        let newest = before.authorities.iter().map(|authority| authority.not_before).max();
        let known = |one: &Authority| before.authorities.iter().any(|other| other.certificate == one.certificate);
        let stays = self.authorities.iter().any(|one| known(one) && Some(one.not_before) == newest);
        stays && self.authorities.iter().all(|one| known(one) || Some(one.not_before) >= newest)
    }

    /// Some of its authorities; `None`: none.
    fn only(&self, kept: impl Fn(&Authority) -> bool) -> Option<Self> {
        let authorities: Vec<_> = self.authorities.iter().filter(|authority| kept(authority)).cloned().collect();
        let mut roots = RootCertStore::empty();
        roots.add_parsable_certificates(authorities.iter().map(|authority| authority.certificate.clone()));
        let roots = Arc::new(roots);
        let clients = client_verifier(&roots).ok()?;
        Some(Self { roots, clients, authorities, ..self.clone() })
    }

    /// The trust domains its authorities name in their URI SANs. Empty: they do not say.
    pub(crate) fn trust_domains(&self) -> &BTreeSet<String> {
        &self.trust_domains
    }

    /// SHA-256 of each certificate (DER), lower-case hex.
    pub fn fingerprints(&self) -> &BTreeSet<String> {
        &self.fingerprints
    }
}

impl Authority {
    fn is_valid(&self, now: Timestamp) -> bool {
        self.not_before <= now && now <= self.not_after
    }
}

fn client_verifier(roots: &Arc<RootCertStore>) -> Result<Arc<dyn ClientCertVerifier>, TrustBundleError> {
    WebPkiClientVerifier::builder_with_provider(roots.clone(), provider()).build().map_err(|_| TrustBundleError::Empty)
}

impl fmt::Debug for TrustBundle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TrustBundle")
            .field("certificates", &self.roots.len())
            .field("trust_domains", &self.trust_domains)
            .finish()
    }
}

/// One configured peer, as far as its identity is concerned.
#[derive(Clone, Debug)]
pub(crate) struct Peer {
    pub name: PeerName,
    /// Its own trust bundle; `None`: our `ca.crt`.
    pub trust: Option<Result<TrustBundle, TrustBundleError>>,
    /// No connection is made or kept.
    pub suspended: bool,
}

impl From<&PeerSpec> for Peer {
    fn from(spec: &PeerSpec) -> Self {
        Self {
            name: spec.name.clone(),
            trust: spec.trust_bundle.as_ref().map(|pem| TrustBundle::from_pem(pem.as_bytes())),
            suspended: spec.suspend,
        }
    }
}

/// The peers that may connect.
#[derive(Clone, Debug, Default)]
pub(crate) struct Peers(BTreeMap<PeerName, Peer>);

impl Peers {
    /// The peers of these specs; trust bundles are parsed here, once.
    pub(crate) fn new<'a>(specs: impl IntoIterator<Item = &'a PeerSpec>) -> Self {
        Self(specs.into_iter().map(|spec| (spec.name.clone(), Peer::from(spec))).collect())
    }

    pub(crate) fn named(&self, name: &PeerName) -> Option<&Peer> {
        self.0.get(name)
    }
}

/// A certificate as PEM (RFC 7468).
fn pem(der: &[u8]) -> String {
    let text = STANDARD.encode(der);
    let mut pem = String::from("-----BEGIN CERTIFICATE-----\n");
    for line in text.as_bytes().chunks(64) {
        // Base64 is ASCII.
        pem.extend(line.iter().map(|&byte| char::from(byte)));
        pem.push('\n');
    }
    pem + "-----END CERTIFICATE-----\n"
}

/// The one crypto provider in use: ring. Never taken from a process-wide default that somebody else may have set.
pub(crate) fn provider() -> Arc<CryptoProvider> {
    static PROVIDER: std::sync::LazyLock<Arc<CryptoProvider>> =
        std::sync::LazyLock::new(|| Arc::new(rustls::crypto::ring::default_provider()));
    PROVIDER.clone()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identity::Authority;

    #[test]
    fn a_bundle_knows_its_trust_domains() {
        let now = "2025-06-01T12:00:00Z".parse().unwrap();
        let (a, b) = (Authority::create("a", now).unwrap(), Authority::create("b", now).unwrap());
        let bundle = TrustBundle::from_pem(format!("{}{}", a.certificate(), b.certificate()).as_bytes()).unwrap();
        assert_eq!(bundle.trust_domains().iter().collect::<Vec<_>>(), ["a", "b"]);
    }

    #[test]
    fn a_bundle_comes_out_as_it_went_in_without_what_does_not_belong_there() {
        let now = "2025-06-01T12:00:00Z".parse().unwrap();
        let authority = Authority::create("a", now).unwrap();
        let text = format!("# ours\n{}{}", *authority.expose_key(), authority.certificate());
        let out = TrustBundle::from_pem(text.as_bytes()).unwrap().to_pem();
        assert_eq!(out.replace('\r', ""), authority.certificate().replace('\r', ""));
    }

    #[test]
    fn what_is_no_bundle_is_said() {
        assert_eq!(TrustBundle::from_pem(b"").unwrap_err(), TrustBundleError::Empty);
        let garbage = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
        assert_eq!(TrustBundle::from_pem(garbage.as_bytes()).unwrap_err(), TrustBundleError::Unparsable(1));
    }
}
