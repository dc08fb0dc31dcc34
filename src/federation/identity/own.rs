//! Our own identity: loaded from a directory or a Secret's bytes, and validated so that what is wrong is said at start
//! and not by a peer's TLS alert.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;
use zeroize::Zeroizing;

use super::authority::BACKDATED;
use super::certificate::{Facts, SanError};
use super::spiffe::{SpiffeError, SpiffeId, check_cluster};
use super::trust::{TrustBundle, TrustBundleError, Unverified, Usage, provider};
use super::{CERTIFICATE, PRIVATE_KEY, TRUST_BUNDLE};

/// A validated identity. Its Debug shows no key.
pub struct Identity {
    id: SpiffeId,
    facts: Facts,
    certified: Arc<CertifiedKey>,
    trust: TrustBundle,
    renewed_here: bool,
}

/// Where an identity comes from, for messages.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Origin {
    /// A directory with the three files.
    Directory(PathBuf),
    /// A Secret with the three keys: `namespace/name`.
    Secret(String),
}

/// The three texts of an identity, not yet looked at. `None`: missing at its origin. Its Debug shows nothing of them.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct Material {
    /// `tls.crt`.
    pub certificate: Option<Vec<u8>>,
    /// `tls.key`.
    pub key: Option<Zeroizing<Vec<u8>>>,
    /// `ca.crt`.
    pub trust_bundle: Option<Vec<u8>>,
}

/// Why there is no identity. Every text names the file, or the key of the Secret, and what to do.
#[derive(Debug, thiserror::Error)]
pub enum IdentityError {
    /// A part is not there.
    #[error("failed to find {0}; `agentctl federation issue` writes tls.crt, tls.key and ca.crt")]
    Missing(Place),
    /// A file cannot be read.
    #[error("failed to read {place}")]
    Unreadable {
        /// The file.
        place: Place,
        /// Why.
        source: std::io::Error,
    },
    /// No certificate in it, or one that cannot be parsed.
    #[error("failed to parse {0}: it must hold PEM certificates, ours first")]
    Certificate(Place),
    /// No private key in it, or one of a kind we cannot use.
    #[error("failed to parse {0}: it must hold one PEM private key (ECDSA P-256 or P-384, Ed25519, or RSA)")]
    Key(Place),
    /// Not a trust bundle.
    #[error("failed to use {place} as trust bundle")]
    TrustBundle {
        /// Where.
        place: Place,
        /// What is wrong with it.
        source: TrustBundleError,
    },
    /// Key and certificate are of different pairs.
    #[error("failed to use {key}: it is not the key of {certificate}; both must come from one issuance")]
    KeyMismatch {
        /// Where the key is.
        key: Place,
        /// Where the certificate is.
        certificate: Place,
    },
    /// Over.
    #[error("failed to use {place}: it expired at {not_after}, and it is {now}; issue a new one, or correct the clock")]
    Expired {
        /// Where.
        place: Place,
        /// End of validity.
        not_after: Timestamp,
        /// Our clock.
        now: Timestamp,
    },
    /// Not begun.
    #[error("failed to use {place}: it is valid from {not_before}, and our clock says {now}; check this node's clock")]
    NotYetValid {
        /// Where.
        place: Place,
        /// Start of validity.
        not_before: Timestamp,
        /// Our clock.
        now: Timestamp,
    },
    /// The authority that signed it is not valid now.
    #[error(
        "failed to use {place}: the authority that signed it is valid from {not_before} to {not_after} only, and our clock \
         says {now}; check this node's clock, else issue both anew"
    )]
    AuthorityNotValid {
        /// Where.
        place: Place,
        /// Start of the authority's validity.
        not_before: Timestamp,
        /// Its end.
        not_after: Timestamp,
        /// Our clock.
        now: Timestamp,
    },
    /// It names no cluster.
    #[error("failed to learn the cluster's name from {place}")]
    Name {
        /// Where.
        place: Place,
        /// What is wrong with its SAN.
        source: SanError,
    },
    /// It names another cluster.
    #[error(
        "failed to use {place}: it is the identity of cluster `{shown}`, and this cluster is configured as `{wanted}` \
         (cluster.name); issue one for `{wanted}`, or correct cluster.name"
    )]
    WrongCluster {
        /// Where.
        place: Place,
        /// The name in it.
        shown: String,
        /// The configured name.
        wanted: String,
    },
    /// The configured name cannot be part of an id.
    #[error("failed to use the configured cluster.name")]
    ClusterName(#[from] SpiffeError),
    /// Our own bundle does not sign it: nobody in our federation would take it.
    #[error("failed to verify {place} against {trust_bundle}: {problem}; both must come from one issuance")]
    NotTrusted {
        /// Where.
        place: Place,
        /// Where the trust bundle is.
        trust_bundle: Place,
        /// What webpki says.
        problem: String,
    },
}

/// One of the three parts at its origin: a path, or `tls.crt of Secret namespace/name`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Place(String);

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Origin {
    fn place(&self, part: &str) -> Place {
        Place(match self {
            Self::Directory(dir) => dir.join(part).display().to_string(),
            Self::Secret(name) => format!("{part} of Secret {name}"),
        })
    }
}

impl Material {
    /// Takes the three parts from wherever `part` finds them by name, such as the data of a Secret.
    pub fn gather(part: impl Fn(&str) -> Option<Vec<u8>>) -> Self {
        Self {
            certificate: part(CERTIFICATE),
            key: part(PRIVATE_KEY).map(Zeroizing::new),
            trust_bundle: part(TRUST_BUNDLE),
        }
    }

    /// Reads the three files of a directory. A file that does not exist is `None`.
    pub(crate) fn read(dir: &Path) -> Result<Self, IdentityError> {
        let read = |part: &str| match std::fs::read(dir.join(part)) {
            Ok(bytes) => Ok(Some(bytes)),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(source) => {
                Err(IdentityError::Unreadable { place: Origin::Directory(dir.to_owned()).place(part), source })
            }
        };
        Ok(Self {
            certificate: read(CERTIFICATE)?,
            key: read(PRIVATE_KEY)?.map(Zeroizing::new),
            trust_bundle: read(TRUST_BUNDLE)?,
        })
    }
}

impl fmt::Debug for Material {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Material(..)")
    }
}

impl Identity {
    /// The identity in `dir` (`tls.crt`, `tls.key`, `ca.crt`), which must be that of `cluster` at `now`.
    pub fn from_directory(dir: &Path, cluster: &str, now: Timestamp) -> Result<Self, IdentityError> {
        Self::from_material(&Material::read(dir)?, &Origin::Directory(dir.to_owned()), cluster, now)
    }

    /// The identity of these texts, which must be that of `cluster` at `now`.
    pub fn from_material(
        material: &Material,
        origin: &Origin,
        cluster: &str,
        now: Timestamp,
    ) -> Result<Self, IdentityError> {
        check_cluster(cluster)?;
        let [certificate_place, key_place, trust_place] =
            [CERTIFICATE, PRIVATE_KEY, TRUST_BUNDLE].map(|part| origin.place(part));
        let missing = |place: &Place| IdentityError::Missing(place.clone());
        let certificate = material.certificate.as_deref().ok_or_else(|| missing(&certificate_place))?;
        let key = material.key.as_deref().ok_or_else(|| missing(&key_place))?;
        let trust_bundle = material.trust_bundle.as_deref().ok_or_else(|| missing(&trust_place))?;

        let chain = chain(certificate).ok_or_else(|| IdentityError::Certificate(certificate_place.clone()))?;
        let facts = Facts::read(&chain[0]).map_err(|_| IdentityError::Certificate(certificate_place.clone()))?;
        let trust = TrustBundle::from_pem(trust_bundle)
            .map_err(|source| IdentityError::TrustBundle { place: trust_place.clone(), source })?;
        let certified = certified(chain, key, &key_place, &certificate_place)?;

        check_validity(&facts, &certificate_place, now)?;
        let id =
            facts.spiffe_id().map_err(|source| IdentityError::Name { place: certificate_place.clone(), source })?;
        if id.cluster().as_str() != cluster {
            let (shown, wanted) = (id.cluster().to_string(), cluster.to_owned());
            return Err(IdentityError::WrongCluster { place: certificate_place, shown, wanted });
        }
        // Both: we dial and we listen with it.
        for usage in [Usage::Server, Usage::Client] {
            trust.verify(usage, &certified.cert[0], &certified.cert[1..], now).map_err(|error| {
                let (place, trust_bundle) = (certificate_place.clone(), trust_place.clone());
                match error {
                    Unverified::Authority { not_before, not_after } => {
                        IdentityError::AuthorityNotValid { place, not_before, not_after, now }
                    }
                    Unverified::Chain(problem) => {
                        IdentityError::NotTrusted { place, trust_bundle, problem: problem.to_string() }
                    }
                }
            })?;
        }
        Ok(Self { id, facts, certified: Arc::new(certified), trust, renewed_here: false })
    }

    /// The same one, which this agent renews if `here`.
    #[must_use]
    pub fn renewed_here(self, here: bool) -> Self {
        Self { renewed_here: here, ..self }
    }

    /// Trust domain and cluster.
    pub fn id(&self) -> &SpiffeId {
        &self.id
    }

    /// Start of validity.
    pub fn not_before(&self) -> Timestamp {
        self.facts.not_before
    }

    /// End of validity.
    pub fn not_after(&self) -> Timestamp {
        self.facts.not_after
    }

    /// When to make the next one, if it was made here (and [`BACKDATED`]): at two thirds of its life.
    pub fn renew_at(&self) -> Timestamp {
        let backdated = SignedDuration::try_from(BACKDATED).expect("a few minutes");
        let made = self.not_before() + backdated;
        let life = self.not_after().duration_since(made);
        made + life / 3 * 2
    }

    /// When somebody has to look if it is not renewed: at [`Identity::renew_at`] if this agent renews it. Others renew it
    /// when they like: it is late when a tenth of its life is left.
    pub fn due_at(&self) -> Timestamp {
        if self.renewed_here {
            return self.renew_at();
        }
        self.not_after() - self.not_after().duration_since(self.not_before()) / 10
    }

    /// The certificates of the chain it shows, ours first (DER).
    pub fn chain(&self) -> &[CertificateDer<'static>] {
        &self.certified.cert
    }

    /// SHA-256 of the certificate (DER), lower-case hex.
    pub(crate) fn fingerprint(&self) -> &str {
        &self.facts.fingerprint
    }

    /// The bundle of `ca.crt`: for peers without one of their own.
    pub fn trust(&self) -> &TrustBundle {
        &self.trust
    }

    /// Whether both show the same certificate and trust the same authorities.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        self.facts.fingerprint == other.facts.fingerprint && self.trust.fingerprints() == other.trust.fingerprints()
    }

    /// Chain and key, for rustls.
    pub(crate) fn certified(&self) -> Arc<CertifiedKey> {
        self.certified.clone()
    }
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Identity")
            .field("id", &self.id.to_string())
            .field("not_after", &self.facts.not_after)
            .field("fingerprint", &self.facts.fingerprint)
            .finish_non_exhaustive()
    }
}

fn chain(pem: &[u8]) -> Option<Vec<CertificateDer<'static>>> {
    let chain: Vec<_> = CertificateDer::pem_slice_iter(pem).collect::<Result<_, _>>().ok()?;
    (!chain.is_empty()).then_some(chain)
}

fn certified(
    chain: Vec<CertificateDer<'static>>,
    key: &[u8],
    key_place: &Place,
    certificate_place: &Place,
) -> Result<CertifiedKey, IdentityError> {
    let unusable = || IdentityError::Key(key_place.clone());
    let key = PrivateKeyDer::from_pem_slice(key).map_err(|_| unusable())?;
    let key = provider().key_provider.load_private_key(key).map_err(|_| unusable())?;
    let certified = CertifiedKey::new(chain, key);
    certified
        .keys_match()
        .map_err(|_| IdentityError::KeyMismatch { key: key_place.clone(), certificate: certificate_place.clone() })?;
    Ok(certified)
}

fn check_validity(facts: &Facts, place: &Place, now: Timestamp) -> Result<(), IdentityError> {
    let place = || place.clone();
    if now > facts.not_after {
        return Err(IdentityError::Expired { place: place(), not_after: facts.not_after, now });
    }
    if now < facts.not_before {
        return Err(IdentityError::NotYetValid { place: place(), not_before: facts.not_before, now });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::identity::Authority;

    const HOUR: Duration = Duration::from_secs(3600);

    fn now() -> Timestamp {
        "2025-06-01T12:00:00Z".parse().unwrap()
    }

    fn issued(federation: &str, cluster: &str) -> Material {
        let issued = Authority::create(federation, now()).unwrap().issue(cluster, now(), HOUR).unwrap();
        Material {
            certificate: Some(issued.certificate().into()),
            key: Some(Zeroizing::new(issued.expose_key().into())),
            trust_bundle: Some(issued.trust_bundle().into()),
        }
    }

    fn load(material: &Material, at: Timestamp) -> Result<Identity, IdentityError> {
        Identity::from_material(material, &Origin::Secret("agents/identity".into()), "east", at)
    }

    #[test]
    fn a_good_identity_says_who_it_is_and_shows_no_key() {
        let identity = load(&issued("river", "east"), now()).unwrap();
        assert_eq!(identity.id().to_string(), "spiffe://river/cluster/east");
        assert_eq!(identity.not_after().to_string(), "2025-06-01T13:00:00Z");
        assert_eq!(identity.fingerprint().len(), 64);
        let shown = format!("{identity:?} {:?}", issued("river", "east"));
        assert!(!shown.contains("PRIVATE") && !shown.contains("key"), "{shown}");
    }

    #[test]
    fn an_identity_of_somebody_else_is_late_when_a_tenth_of_its_life_is_left() {
        let identity = load(&issued("river", "east"), now()).unwrap();
        // It lives from five minutes before noon for an hour and these five minutes.
        assert_eq!(identity.due_at().to_string(), "2025-06-01T12:53:30Z");
        let ours = identity.renewed_here(true);
        assert_eq!((ours.due_at(), ours.due_at().to_string()), (ours.renew_at(), "2025-06-01T12:40:00Z".to_owned()));
    }

    #[test]
    fn every_defect_names_its_place_and_what_to_do() {
        let good = issued("river", "east");
        let text = |text: &str| Some(text.as_bytes().to_vec());
        let cases = [
            (Material { certificate: None, ..good.clone() }, "tls.crt of Secret agents/identity; `agentctl"),
            (Material { key: None, ..good.clone() }, "tls.key of Secret agents/identity; `agentctl"),
            (Material { trust_bundle: None, ..good.clone() }, "ca.crt of Secret agents/identity; `agentctl"),
            (Material { certificate: text("x"), ..good.clone() }, "parse tls.crt of Secret agents/identity"),
            (Material { key: text("x").map(Zeroizing::new), ..good.clone() }, "parse tls.key of Secret"),
            (Material { trust_bundle: text("x"), ..good.clone() }, "use ca.crt of Secret agents/identity as trust"),
            (
                Material { key: issued("river", "east").key, ..good.clone() },
                "tls.key of Secret agents/identity: it is not",
            ),
            (Material { trust_bundle: issued("river", "east").trust_bundle, ..good.clone() }, "against ca.crt"),
            (issued("river", "west"), "identity of cluster `west`, and this cluster is configured as `east`"),
        ];
        for (material, expected) in cases {
            let message = load(&material, now()).unwrap_err().to_string();
            assert!(message.contains(expected), "{message}\n  should contain: {expected}");
        }
    }

    #[test]
    fn validity_is_that_of_the_given_time() {
        let material = issued("river", "east");
        let expired = load(&material, now() + 2 * HOUR).unwrap_err().to_string();
        assert!(expired.contains("expired at 2025-06-01T13:00:00Z, and it is 2025-06-01T14:00:00Z"), "{expired}");
        let early = load(&material, now() - HOUR).unwrap_err().to_string();
        assert!(early.contains("valid from 2025-06-01T11:55:00Z") && early.contains("clock"), "{early}");
    }

    #[test]
    fn an_authority_that_is_not_valid_yet_is_named() {
        let ahead = now() + HOUR * 9;
        let issued = Authority::create("river", ahead).unwrap().issue("east", now(), HOUR).unwrap();
        let material = Material {
            certificate: Some(issued.certificate().into()),
            key: Some(Zeroizing::new(issued.expose_key().into())),
            trust_bundle: Some(issued.trust_bundle().into()),
        };
        let error = load(&material, now()).unwrap_err().to_string();
        assert!(error.contains("the authority that signed it is valid from 2025-06-01T20:55:00Z"), "{error}");
        assert!(!error.contains("one issuance"), "they come from one: {error}");
    }

    #[test]
    fn an_authority_is_no_identity_of_a_cluster() {
        let authority = Authority::create("river", now()).unwrap();
        let dir = tempfile::tempdir().unwrap();
        authority.write(dir.path(), crate::identity::files::Existing::Refuse).unwrap();
        std::fs::copy(dir.path().join("ca.crt"), dir.path().join("tls.crt")).unwrap();
        std::fs::copy(dir.path().join("ca.key"), dir.path().join("tls.key")).unwrap();
        let error = Identity::from_directory(dir.path(), "east", now()).unwrap_err();
        assert!(matches!(error, IdentityError::Name { .. }), "{error}");
    }

    #[test]
    fn an_identity_survives_its_directory() {
        let dir = tempfile::tempdir().unwrap();
        let authority = Authority::create("river", now()).unwrap();
        let issued = authority.issue("east", now(), HOUR).unwrap();
        issued.write(dir.path(), crate::identity::files::Existing::Refuse).unwrap();
        assert_eq!(Identity::from_directory(dir.path(), "east", now()).unwrap().id(), issued.id());
        std::fs::remove_file(dir.path().join("ca.crt")).unwrap();
        let error = Identity::from_directory(dir.path(), "east", now()).unwrap_err().to_string();
        assert!(error.contains(&format!("{}/ca.crt", dir.path().display())), "{error}");
    }
}
