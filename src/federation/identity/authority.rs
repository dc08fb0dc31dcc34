//! Makes authorities and the identities of clusters, offline: what `agentctl federation init` and `issue` do.
//!
//! Keys are ECDSA P-256. An authority carries its trust domain as URI SAN `spiffe://<trust domain>` (SPIFFE X.509-SVID,
//! section 4.1), so that whoever gets its certificate as a trust bundle knows which ids it may sign.

use std::fmt;
use std::path::Path;
use std::time::Duration;

use jiff::Timestamp;
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, PKCS_ECDSA_P256_SHA256, SanType, SigningKey,
};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use zeroize::Zeroizing;

use super::certificate::{Facts, fingerprint};
use super::files::{self, Existing, WriteError};
use super::spiffe::{SpiffeError, SpiffeId, authority_id, check_trust_domain, trust_domain_of_authority};
use super::{AUTHORITY_KEY, CERTIFICATE, PRIVATE_KEY, TRUST_BUNDLE};

/// How long an authority is valid.
pub(crate) const AUTHORITY_VALIDITY: Duration = Duration::from_secs(10 * 365 * 24 * 3600);

/// Certificates begin this long before they were made: clusters' clocks differ a little.
pub const BACKDATED: Duration = Duration::from_secs(300);

/// An authority of a federation: signs the identities of its clusters. Its Debug shows no key.
pub struct Authority {
    trust_domain: String,
    not_before: Timestamp,
    not_after: Timestamp,
    fingerprint: String,
    certificate: String,
    key: KeyPair,
}

/// A cluster's new identity, as PEM texts. Its Debug shows no key.
pub struct IssuedIdentity {
    id: SpiffeId,
    not_after: Timestamp,
    certificate: String,
    key: Zeroizing<String>,
    trust_bundle: String,
}

/// Why no authority or identity was made.
#[derive(Debug, thiserror::Error)]
pub enum IssueError {
    /// A name that cannot be part of an id.
    #[error("failed to name the identity")]
    Name(#[from] SpiffeError),
    /// A file of the authority cannot be read.
    #[error("failed to read {place}; `agentctl federation init` makes an authority")]
    Unreadable {
        /// The file.
        place: String,
        /// Why.
        source: std::io::Error,
    },
    /// A file of the authority is not what it should be.
    #[error("failed to use {place}: {problem}")]
    Unusable {
        /// The file.
        place: String,
        /// What is wrong with it.
        problem: &'static str,
    },
    /// The authority ends before the identity would.
    #[error(
        "the authority of `{trust_domain}` ends at {not_after}, before the identity would: ask for a shorter validity, \
         or make a new authority"
    )]
    BeyondAuthority {
        /// Name of the authority.
        trust_domain: String,
        /// Its end.
        not_after: Timestamp,
    },
    /// The time or the validity is out of what a certificate can hold.
    #[error("failed to make a certificate that begins at {0} with the wanted validity")]
    Time(Timestamp),
    /// The crypto library refused.
    #[error("failed to sign")]
    Sign(#[from] rcgen::Error),
}

impl Authority {
    /// A new authority for the trust domain `name`, valid for [`AUTHORITY_VALIDITY`] from `now`.
    pub fn create(name: &str, now: Timestamp) -> Result<Self, IssueError> {
        check_trust_domain(name)?;
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
        let (mut params, not_after) = params(now, AUTHORITY_VALIDITY, &authority_id(name), name)?;
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let certificate = params.self_signed(&key)?;
        let fingerprint = fingerprint(certificate.der());
        let not_before = now.checked_sub(BACKDATED).map_err(|_| IssueError::Time(now))?;
        let (trust_domain, certificate) = (name.to_owned(), certificate.pem());
        Ok(Self { trust_domain, not_before, not_after, fingerprint, certificate, key })
    }

    /// The authority in `dir` (`ca.crt`, `ca.key`), as [`Authority::write`] left it.
    pub fn load(dir: &Path) -> Result<Self, IssueError> {
        let read = |name: &str| {
            let path = dir.join(name);
            let place = path.display().to_string();
            match std::fs::read_to_string(&path) {
                Ok(text) => Ok((place, Zeroizing::new(text))),
                Err(source) => Err(IssueError::Unreadable { place, source }),
            }
        };
        let (certificate_place, certificate) = read(TRUST_BUNDLE)?;
        let (key_place, key) = read(AUTHORITY_KEY)?;
        Self::from_pem((&certificate_place, &certificate), (&key_place, &key))
    }

    /// The authority of a certificate and its key, each with the name of its place for messages.
    pub fn from_pem(certificate: (&str, &str), key: (&str, &str)) -> Result<Self, IssueError> {
        let ((certificate_place, certificate), (key_place, key)) = (certificate, key);
        let unusable = |place: &str, problem| IssueError::Unusable { place: place.to_owned(), problem };
        let der = CertificateDer::from_pem_slice(certificate.as_bytes())
            .map_err(|_| unusable(certificate_place, "it holds no PEM certificate"))?;
        let facts =
            Facts::read(&der).map_err(|_| unusable(certificate_place, "its first certificate cannot be parsed"))?;
        let trust_domain = facts
            .uris
            .iter()
            .find_map(|uri| trust_domain_of_authority(uri))
            .ok_or_else(|| unusable(certificate_place, "it names no trust domain (URI SAN spiffe://<trust domain>)"))?
            .to_owned();
        let key = KeyPair::from_pem(key).map_err(|_| unusable(key_place, "it holds no PEM private key"))?;
        if !der_contains(&der, &key) {
            return Err(unusable(key_place, "it is not the key of the certificate beside it"));
        }
        let (not_before, not_after, fingerprint) = (facts.not_before, facts.not_after, facts.fingerprint);
        Ok(Self { trust_domain, not_before, not_after, fingerprint, certificate: certificate.to_owned(), key })
    }

    /// The federation it signs for.
    pub fn trust_domain(&self) -> &str {
        &self.trust_domain
    }

    /// Its start of validity.
    pub fn not_before(&self) -> Timestamp {
        self.not_before
    }

    /// Its end of validity.
    pub fn not_after(&self) -> Timestamp {
        self.not_after
    }

    /// Its certificate, PEM: a trust bundle for others.
    pub fn certificate(&self) -> &str {
        &self.certificate
    }

    /// SHA-256 of its certificate (DER), lower-case hex.
    pub fn fingerprint(&self) -> &str {
        &self.fingerprint
    }

    /// Its private key, PEM. For the Secret only.
    pub fn expose_key(&self) -> Zeroizing<String> {
        Zeroizing::new(self.key.serialize_pem())
    }

    /// Signs `message` (ECDSA P-256 with SHA-256, ASN.1): what only its holder can say.
    pub(crate) fn sign(&self, message: &[u8]) -> Result<Vec<u8>, IssueError> {
        Ok(SigningKey::sign(&self.key, message)?)
    }

    /// A new identity for `cluster`, valid for `validity` from `now`, with a new key.
    pub fn issue(&self, cluster: &str, now: Timestamp, validity: Duration) -> Result<IssuedIdentity, IssueError> {
        let id = SpiffeId::new(&self.trust_domain, cluster)?;
        let (mut params, not_after) = params(now, validity, &id.to_string(), cluster)?;
        if not_after > self.not_after {
            let (trust_domain, not_after) = (self.trust_domain.clone(), self.not_after);
            return Err(IssueError::BeyondAuthority { trust_domain, not_after });
        }
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        params.use_authority_key_identifier_extension = true;

        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
        let own = CertificateDer::from_pem_slice(self.certificate.as_bytes())
            .map_err(|_| IssueError::Sign(rcgen::Error::CouldNotParseCertificate))?;
        let issuer = Issuer::from_ca_cert_der(&own, &self.key)?;
        let certificate = params.signed_by(&key, &issuer)?.pem();
        Ok(IssuedIdentity {
            id,
            not_after,
            certificate,
            key: Zeroizing::new(key.serialize_pem()),
            trust_bundle: self.certificate.clone(),
        })
    }

    /// Writes `ca.crt` and `ca.key` (0600) into `dir`, which is made if need be.
    pub fn write(&self, dir: &Path, existing: Existing) -> Result<(), WriteError> {
        let key = Zeroizing::new(self.key.serialize_pem());
        files::write(dir, &[(AUTHORITY_KEY, &key), (TRUST_BUNDLE, &self.certificate)], existing)
    }
}

impl IssuedIdentity {
    /// Whose it is.
    pub fn id(&self) -> &SpiffeId {
        &self.id
    }

    /// Its end of validity.
    pub fn not_after(&self) -> Timestamp {
        self.not_after
    }

    /// `tls.crt`, PEM.
    pub fn certificate(&self) -> &str {
        &self.certificate
    }

    /// `tls.key`, PEM. For the Secret only.
    pub fn expose_key(&self) -> &str {
        &self.key
    }

    /// `ca.crt`, PEM.
    #[cfg(test)]
    pub(crate) fn trust_bundle(&self) -> &str {
        &self.trust_bundle
    }

    /// Writes `tls.crt`, `tls.key` (0600) and `ca.crt` into `dir`, which is made if need be.
    pub fn write(&self, dir: &Path, existing: Existing) -> Result<(), WriteError> {
        let files =
            [(PRIVATE_KEY, self.key.as_str()), (CERTIFICATE, &self.certificate), (TRUST_BUNDLE, &self.trust_bundle)];
        files::write(dir, &files, existing)
    }
}

impl fmt::Debug for Authority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Authority")
            .field("trust_domain", &self.trust_domain)
            .field("not_after", &self.not_after)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for IssuedIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IssuedIdentity")
            .field("id", &self.id)
            .field("not_after", &self.not_after)
            .finish_non_exhaustive()
    }
}

fn params(
    now: Timestamp,
    validity: Duration,
    uri: &str,
    common_name: &str,
) -> Result<(CertificateParams, Timestamp), IssueError> {
    let out_of_range = || IssueError::Time(now);
    let not_before = now.checked_sub(BACKDATED).map_err(|_| out_of_range())?;
    let not_after = now.checked_add(validity).map_err(|_| out_of_range())?;
    let since_epoch = |at: Timestamp| at.as_second().try_into().map(Duration::from_secs).map_err(|_| out_of_range());
    let epoch = rcgen::date_time_ymd(1970, 1, 1);

    let mut params = CertificateParams::default();
    params.not_before = epoch + since_epoch(not_before)?;
    params.not_after = epoch + since_epoch(not_after)?;
    params.subject_alt_names = vec![SanType::URI(uri.try_into()?)];
    params.distinguished_name = DistinguishedName::new();
    // X.520 allows 64 characters; the URI SAN is what counts.
    params.distinguished_name.push(DnType::CommonName, common_name.chars().take(64).collect::<String>());
    Ok((params, not_after))
}

fn der_contains(certificate: &[u8], key: &KeyPair) -> bool {
    use x509_parser::prelude::{FromDer, X509Certificate};
    X509Certificate::from_der(certificate)
        .is_ok_and(|(_, certificate)| certificate.public_key().subject_public_key.data.as_ref() == key.public_key_raw())
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: Duration = Duration::from_secs(3600);

    fn now() -> Timestamp {
        "2025-06-01T12:00:00Z".parse().unwrap()
    }

    #[test]
    fn an_identity_names_its_cluster_and_ends_when_asked() {
        let authority = Authority::create("river", now()).unwrap();
        let issued = authority.issue("east", now(), HOUR).unwrap();
        let der = CertificateDer::from_pem_slice(issued.certificate().as_bytes()).unwrap();
        let facts = Facts::read(&der).unwrap();
        assert_eq!(facts.uris, ["spiffe://river/cluster/east"]);
        assert_eq!(facts.not_before.to_string(), "2025-06-01T11:55:00Z");
        assert_eq!(facts.not_after.to_string(), "2025-06-01T13:00:00Z");
        assert_eq!(issued.not_after(), facts.not_after);
    }

    #[test]
    fn an_authority_survives_its_directory() {
        let dir = tempfile::tempdir().unwrap();
        let made = Authority::create("river", now()).unwrap();
        made.write(dir.path(), Existing::Refuse).unwrap();
        let read = Authority::load(dir.path()).unwrap();
        assert_eq!((read.trust_domain(), read.not_after()), ("river", made.not_after()));
        read.issue("east", now(), HOUR).unwrap().write(&dir.path().join("east"), Existing::Refuse).unwrap();
        assert!(dir.path().join("east/tls.key").exists());
    }

    #[test]
    fn names_and_times_are_checked() {
        let authority = Authority::create("river", now()).unwrap();
        assert!(matches!(Authority::create("River", now()), Err(IssueError::Name(_))));
        assert!(matches!(authority.issue("East", now(), HOUR), Err(IssueError::Name(_))));
        let too_long = authority.issue("east", now(), AUTHORITY_VALIDITY + HOUR);
        assert!(matches!(too_long, Err(IssueError::BeyondAuthority { .. })));
    }

    #[test]
    fn another_key_beside_the_certificate_is_noticed() {
        let dir = tempfile::tempdir().unwrap();
        Authority::create("river", now()).unwrap().write(dir.path(), Existing::Refuse).unwrap();
        let other = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).unwrap().serialize_pem();
        std::fs::write(dir.path().join(AUTHORITY_KEY), other).unwrap();
        let error = Authority::load(dir.path()).unwrap_err().to_string();
        assert!(error.contains("ca.key") && error.contains("not the key of the certificate"), "{error}");
    }

    #[test]
    fn debug_shows_no_key() {
        let authority = Authority::create("river", now()).unwrap();
        let issued = authority.issue("east", now(), HOUR).unwrap();
        let shown = format!("{authority:?} {issued:?}");
        assert!(!shown.contains("PRIVATE") && !shown.contains("BEGIN"), "{shown}");
    }
}
