//! The certificate of the webhook, where the agent makes it itself: an authority of its own, known to the API server
//! alone, and what it signs.
//!
//! The API server learns a new authority before anything is signed by it: it is in the bundle for one life of a
//! certificate before its first use, and for one after its last. So no connection fails while one takes over.

use std::net::IpAddr;
use std::time::Duration;

use jiff::Timestamp;
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, PKCS_ECDSA_P256_SHA256, SanType,
};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::{FromDer, X509Certificate};
use zeroize::Zeroizing;

/// Keys of the Secret. The first three have the meaning they have in cert-manager's Secrets.
pub const CERTIFICATE: &str = "tls.crt";
/// Private key of [`CERTIFICATE`].
pub const KEY: &str = "tls.key";
/// All authorities to trust; the one that signs comes first.
pub const BUNDLE: &str = "ca.crt";
/// Private key of the authority that signs.
const AUTHORITY_KEY: &str = "ca.key";
/// The authority that signs next, while there is one.
const NEXT: &str = "next-ca.crt";
/// Its private key.
const NEXT_KEY: &str = "next-ca.key";

/// Life of a certificate; it is renewed at two thirds of it.
const LIFE: Duration = Duration::from_secs(90 * 24 * 3600);
const AUTHORITY_LIFE: Duration = Duration::from_secs(3650 * 24 * 3600);
/// An authority with less than this left is replaced: time for two lives of certificates, and then some.
const AUTHORITY_REST: Duration = Duration::from_secs(365 * 24 * 3600);
/// Clocks differ.
const BACKDATED: Duration = Duration::from_secs(300);

/// Why no certificate could be made.
#[derive(Debug, thiserror::Error)]
#[error("failed to make the webhook's certificate")]
pub struct CertificateError(#[from] rcgen::Error);

/// What the Secret holds.
#[derive(Clone)]
pub struct Material {
    bundle: String,
    authority_key: Zeroizing<String>,
    next: Option<(String, Zeroizing<String>)>,
    certificate: String,
    key: Zeroizing<String>,
}

impl Material {
    /// From the Secret's values by their keys; `None` if one is missing or no text.
    pub fn read<'a>(value: impl Fn(&str) -> Option<&'a [u8]>) -> Option<Self> {
        let text = |key: &str| Some(std::str::from_utf8(value(key)?).ok()?.to_owned());
        Some(Self {
            bundle: text(BUNDLE)?,
            authority_key: text(AUTHORITY_KEY)?.into(),
            next: text(NEXT).zip(text(NEXT_KEY)).map(|(certificate, key)| (certificate, key.into())),
            certificate: text(CERTIFICATE)?,
            key: text(KEY)?.into(),
        })
    }

    /// The Secret's values by their keys, private keys included.
    pub fn expose(&self) -> Vec<(&'static str, &str)> {
        let mut values = vec![
            (BUNDLE, self.bundle.as_str()),
            (AUTHORITY_KEY, &self.authority_key),
            (CERTIFICATE, &self.certificate),
            (KEY, &self.key),
        ];
        if let Some((certificate, key)) = &self.next {
            values.extend([(NEXT, certificate.as_str()), (NEXT_KEY, key.as_str())]);
        }
        values
    }

    /// From when on it is valid. At once, if that cannot be read: it is looked at for that anyway.
    pub fn valid_from(&self) -> Timestamp {
        facts(&self.certificate).map_or(Timestamp::MIN, |facts| facts.not_before)
    }

    /// When it is renewed: at two thirds of the certificate's life. At once, if that cannot be read.
    pub fn renew_at(&self) -> Timestamp {
        facts(&self.certificate).map_or(Timestamp::MIN, |facts| facts.renew_at)
    }
}

/// The material for a webhook with these host names and addresses, if it has to be another than the current one.
///
/// # Errors
/// [`CertificateError`], for a name that no certificate can hold.
pub fn renewed(
    current: Option<&Material>,
    names: &[String],
    now: Timestamp,
) -> Result<Option<Material>, CertificateError> {
    let usable = |material: &&Material| facts(&material.bundle).is_some_and(|facts| facts.is_valid(now));
    let Some(current) = current.filter(usable) else {
        let (authority, key) = authority(now)?;
        return signed(authority, key, None, &[], names, now).map(Some);
    };
    let mut wanted = names.to_vec();
    wanted.sort();
    let leaf = facts(&current.certificate);
    // One that is not valid yet was made while the clock was ahead: the same authority signs another one.
    let for_these = leaf.as_ref().is_some_and(|leaf| leaf.names == wanted && leaf.not_before <= now);
    if for_these && leaf.is_some_and(|leaf| now < leaf.renew_at) {
        return Ok(None);
    }
    let bundle = split(&current.bundle);
    let own = bundle.first().cloned().unwrap_or_default();
    if let Some((next, key)) = &current.next
        && for_these
    {
        return signed(next.clone(), key.clone(), None, &[own], names, now).map(Some);
    }
    let ends_soon = facts(&own).is_some_and(|facts| after(now, AUTHORITY_REST) > facts.not_after);
    let next = match &current.next {
        None if ends_soon => Some(authority(now)?),
        next => next.clone(),
    };
    signed(own, current.authority_key.clone(), next, &[], names, now).map(Some)
}

/// A certificate by this authority, and everything beside it.
fn signed(
    authority: String,
    authority_key: Zeroizing<String>,
    next: Option<(String, Zeroizing<String>)>,
    before: &[String],
    names: &[String],
    now: Timestamp,
) -> Result<Material, CertificateError> {
    let mut params = params(now, LIFE, "tributary-webhook");
    for name in names {
        params.subject_alt_names.push(match name.parse::<IpAddr>() {
            Ok(address) => SanType::IpAddress(address),
            Err(_) => SanType::DnsName(name.as_str().try_into()?),
        });
    }
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    params.use_authority_key_identifier_extension = true;
    let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
    let der =
        CertificateDer::from_pem_slice(authority.as_bytes()).map_err(|_| rcgen::Error::CouldNotParseCertificate)?;
    let issuer = Issuer::from_ca_cert_der(&der, KeyPair::from_pem(&authority_key)?)?;
    let certificate = params.signed_by(&key, &issuer)?.pem();
    let others = next.iter().map(|(certificate, _)| certificate).chain(before);
    let bundle = others.fold(authority.clone(), |bundle, other| bundle + other);
    Ok(Material { bundle, authority_key, next, certificate, key: key.serialize_pem().into() })
}

fn authority(now: Timestamp) -> Result<(String, Zeroizing<String>), CertificateError> {
    // Of a name of its own: the one before has another key.
    let mut params = params(now, AUTHORITY_LIFE, &format!("tributary-webhook-ca {}", now.as_second()));
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
    Ok((params.self_signed(&key)?.pem(), key.serialize_pem().into()))
}

fn params(now: Timestamp, life: Duration, name: &str) -> CertificateParams {
    let epoch = rcgen::date_time_ymd(1970, 1, 1);
    let since = |at: Timestamp| Duration::from_secs(u64::try_from(at.as_second()).unwrap_or_default());
    let mut params = CertificateParams::default();
    params.not_before = epoch + since(now.saturating_sub(BACKDATED).unwrap_or(now));
    params.not_after = epoch + since(after(now, life));
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, name);
    params
}

fn after(now: Timestamp, time: Duration) -> Timestamp {
    now.saturating_add(time).unwrap_or(Timestamp::MAX)
}

/// When the first certificate of a PEM text ends; `None`: that cannot be read.
pub fn ends(pem: &str) -> Option<Timestamp> {
    facts(pem).map(|facts| facts.not_after)
}

/// What matters of a certificate.
struct Facts {
    not_before: Timestamp,
    not_after: Timestamp,
    renew_at: Timestamp,
    /// Sorted.
    names: Vec<String>,
}

impl Facts {
    fn is_valid(&self, now: Timestamp) -> bool {
        (self.not_before..self.not_after).contains(&now)
    }
}

/// Of the first certificate of a PEM text.
fn facts(pem: &str) -> Option<Facts> {
    let der = CertificateDer::from_pem_slice(pem.as_bytes()).ok()?;
    let (_, certificate) = X509Certificate::from_der(&der).ok()?;
    let [not_before, not_after] = [certificate.validity().not_before, certificate.validity().not_after]
        .map(|at| Timestamp::from_second(at.timestamp()).ok());
    let (not_before, not_after) = (not_before?, not_after?);
    let life = not_after.as_second() - not_before.as_second();
    let renew_at = Timestamp::from_second(not_before.as_second() + life / 3 * 2).ok()?;
    let alternatives = certificate.subject_alternative_name().ok()?;
    let names = alternatives.iter().flat_map(|alternatives| &alternatives.value.general_names);
    let mut names: Vec<String> = names
        .filter_map(|name| match name {
            GeneralName::DNSName(name) => Some((*name).to_owned()),
            GeneralName::IPAddress(bytes) => match <[u8; 4]>::try_from(*bytes) {
                Ok(bytes) => Some(IpAddr::from(bytes).to_string()),
                Err(_) => Some(IpAddr::from(<[u8; 16]>::try_from(*bytes).ok()?).to_string()),
            },
            _ => None,
        })
        .collect();
    names.sort();
    Some(Facts { not_before, not_after, renew_at, names })
}

/// The certificates of a bundle, one by one.
fn split(bundle: &str) -> Vec<String> {
    const END: &str = "-----END CERTIFICATE-----";
    bundle.split_inclusive(END).filter(|part| part.contains(END)).map(|part| format!("{}\n", part.trim())).collect()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use jiff::SignedDuration;
    use rustls::RootCertStore;
    use rustls::client::WebPkiServerVerifier;
    use rustls::client::danger::ServerCertVerifier;
    use rustls::pki_types::{ServerName, UnixTime};

    use super::*;

    const DAY: Duration = Duration::from_secs(24 * 3600);
    const NAME: &str = "tributary-webhook.tributary-system.svc";

    fn names() -> Vec<String> {
        vec![NAME.to_owned(), "127.0.0.1".to_owned(), "::1".to_owned()]
    }

    fn start() -> Timestamp {
        "2025-06-01T12:00:00Z".parse().unwrap()
    }

    /// What a client believes that trusts the bundle.
    fn believed(bundle: &str, material: &Material, now: Timestamp) -> bool {
        let mut roots = RootCertStore::empty();
        for certificate in CertificateDer::pem_slice_iter(bundle.as_bytes()) {
            roots.add(certificate.unwrap()).unwrap();
        }
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider).build().unwrap();
        let leaf = CertificateDer::from_pem_slice(material.certificate.as_bytes()).unwrap();
        let now = UnixTime::since_unix_epoch(Duration::from_secs(now.as_second().try_into().unwrap()));
        ["127.0.0.1", NAME].into_iter().all(|name| {
            let name = ServerName::try_from(name).unwrap();
            verifier.verify_server_cert(&leaf, &[], &name, &[], now).is_ok()
        })
    }

    #[test]
    fn a_certificate_is_made_once_and_renewed_at_two_thirds() {
        let made = renewed(None, &names(), start()).unwrap().unwrap();
        assert!(believed(&made.bundle, &made, start()));
        assert!(renewed(Some(&made), &names(), start()).unwrap().is_none());
        let read = made.expose();
        let value = |key: &str| read.iter().find(|(known, _)| *known == key).map(|(_, value)| value.as_bytes());
        let read = Material::read(value).unwrap();
        assert!(renewed(Some(&read), &names(), after(start(), 59 * DAY)).unwrap().is_none());
        assert!(read.renew_at() < after(start(), 60 * DAY));
        let later = after(start(), 61 * DAY);
        let next = renewed(Some(&read), &names(), later).unwrap().unwrap();
        assert_ne!(next.certificate, read.certificate);
        assert_eq!(next.bundle, read.bundle, "nobody has to learn a new authority");
        assert!(believed(&read.bundle, &next, later));
    }

    #[test]
    fn another_name_needs_another_certificate() {
        let made = renewed(None, &names(), start()).unwrap().unwrap();
        let mut more = names();
        more.push("other.example".to_owned());
        assert!(renewed(Some(&made), &more, start()).unwrap().is_some());
    }

    #[test]
    fn what_has_ended_or_cannot_be_read_is_made_anew() {
        let made = renewed(None, &names(), start()).unwrap().unwrap();
        let end = after(start(), AUTHORITY_LIFE + DAY);
        let anew = renewed(Some(&made), &names(), end).unwrap().unwrap();
        assert!(believed(&anew.bundle, &anew, end));
        let broken = Material { certificate: "none".to_owned(), ..made.clone() };
        assert!(renewed(Some(&broken), &names(), start()).unwrap().is_some());
        let broken = Material { bundle: "none".to_owned(), ..made };
        assert!(renewed(Some(&broken), &names(), start()).unwrap().is_some());
    }

    /// A clock that was ahead is right again.
    #[test]
    fn what_is_not_valid_yet_is_made_anew() {
        let ahead = after(start(), Duration::from_secs(9 * 3600));
        let made = renewed(None, &names(), ahead).unwrap().unwrap();
        assert!(!believed(&made.bundle, &made, start()));
        let anew = renewed(Some(&made), &names(), start()).unwrap().expect("authority and certificate");
        assert!(believed(&anew.bundle, &anew, start()) && anew.bundle != made.bundle);
        // Only the certificate was made then; the next authority waits for its time.
        let old = renewed(None, &names(), start()).unwrap().unwrap();
        let (certificate, key) = authority(ahead).unwrap();
        let next = Some((certificate.clone(), key));
        let (own, own_key) = (old.bundle.clone(), old.authority_key.clone());
        let made = signed(own, own_key, next, &[], &names(), ahead).unwrap();
        let anew = renewed(Some(&made), &names(), start()).unwrap().expect("the certificate");
        assert!(believed(&old.bundle, &anew, start()), "nobody has to learn another authority");
        assert_eq!(anew.next.map(|(next, _)| next), Some(certificate));
        // Clocks differ a little.
        let slow = start() - SignedDuration::from_secs(200);
        assert!(renewed(Some(&old), &names(), slow).unwrap().is_none());
    }

    /// Through 30 years: whoever knows the bundle from before a renewal believes what is used after it, and the other
    /// way round.
    #[test]
    fn authorities_take_over_without_a_gap() {
        let mut now = start();
        let mut current = renewed(None, &names(), now).unwrap().unwrap();
        let (mut renewals, mut authorities) = (0, std::collections::BTreeSet::new());
        while now < after(start(), 3 * AUTHORITY_LIFE) {
            now = after(now, DAY * 7);
            authorities.insert(split(&current.bundle)[0].clone());
            let Some(next) = renewed(Some(&current), &names(), now).unwrap() else { continue };
            assert!(believed(&current.bundle, &next, now), "at {now} the new certificate is unknown");
            assert!(believed(&next.bundle, &current, now), "at {now} the old certificate is forgotten");
            assert!(split(&next.bundle).len() <= 2);
            (current, renewals) = (next, renewals + 1);
        }
        assert!(renewals > 100 && authorities.len() >= 3, "{renewals} renewals, {} authorities", authorities.len());
    }
}
