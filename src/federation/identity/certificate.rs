//! What we read from a certificate besides its chain: its URI SANs, validity and fingerprint.

use data_encoding::HEXLOWER;
use jiff::Timestamp;
use rustls::pki_types::UnixTime;
use sha2::{Digest, Sha256};
use x509_parser::prelude::{ASN1Time, FromDer, GeneralName, X509Certificate};

use super::spiffe::{SpiffeError, SpiffeId};

/// The facts of one certificate. Reading them verifies nothing.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Facts {
    /// All URI SANs, in their order.
    pub uris: Vec<String>,
    /// Subject, for messages.
    pub subject: String,
    /// Start of validity.
    pub not_before: Timestamp,
    /// End of validity.
    pub not_after: Timestamp,
    /// SHA-256 of the DER, lower-case hex.
    pub fingerprint: String,
}

/// Why a certificate shows no cluster's id.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum SanError {
    /// No URI SAN at all.
    #[error("it has no URI SAN; a cluster's certificate has spiffe://<trust domain>/cluster/<name>")]
    Missing,
    /// SPIFFE allows exactly one (X.509-SVID, section 2).
    #[error("it has {0} URI SANs; a cluster's certificate has exactly one")]
    Several(usize),
    /// One that is no cluster's id.
    #[error("its URI SAN {0}")]
    Invalid(SpiffeError),
}

/// Not an X.509 certificate.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("it is no X.509 certificate")]
pub(crate) struct NotACertificate;

impl Facts {
    /// Reads a certificate (DER).
    pub(crate) fn read(der: &[u8]) -> Result<Self, NotACertificate> {
        let (_, certificate) = X509Certificate::from_der(der).map_err(|_| NotACertificate)?;
        let uris = match certificate.subject_alternative_name().map_err(|_| NotACertificate)? {
            None => Vec::new(),
            Some(san) => san
                .value
                .general_names
                .iter()
                .filter_map(|name| if let GeneralName::URI(uri) = name { Some((*uri).to_owned()) } else { None })
                .collect(),
        };
        Ok(Self {
            uris,
            subject: certificate.subject().to_string(),
            not_before: timestamp(certificate.validity().not_before),
            not_after: timestamp(certificate.validity().not_after),
            fingerprint: fingerprint(der),
        })
    }

    /// The cluster's id it shows.
    pub(crate) fn spiffe_id(&self) -> Result<SpiffeId, SanError> {
        match self.uris.as_slice() {
            [] => Err(SanError::Missing),
            [uri] => uri.parse().map_err(SanError::Invalid),
            several => Err(SanError::Several(several.len())),
        }
    }
}

/// The time as rustls and webpki take it.
pub(crate) fn unix_time(at: Timestamp) -> UnixTime {
    UnixTime::since_unix_epoch(std::time::Duration::from_secs(at.as_second().try_into().unwrap_or(0)))
}

fn timestamp(time: ASN1Time) -> Timestamp {
    // "Never expires" is written as 99991231235959Z (RFC 5280, 4.1.2.5), which is beyond jiff's range.
    Timestamp::from_second(time.timestamp()).unwrap_or(Timestamp::MAX)
}

/// SHA-256 of a certificate (DER), lower-case hex.
pub(crate) fn fingerprint(der: &[u8]) -> String {
    HEXLOWER.encode(&Sha256::digest(der))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts(uris: &[&str]) -> Facts {
        Facts {
            uris: uris.iter().map(|uri| (*uri).to_owned()).collect(),
            subject: String::new(),
            not_before: Timestamp::UNIX_EPOCH,
            not_after: Timestamp::UNIX_EPOCH,
            fingerprint: String::new(),
        }
    }

    #[test]
    fn exactly_one_uri_counts() {
        let good = "spiffe://river/cluster/east";
        assert_eq!(facts(&[good]).spiffe_id().unwrap().cluster().as_str(), "east");
        assert_eq!(facts(&[]).spiffe_id(), Err(SanError::Missing));
        assert_eq!(facts(&[good, good]).spiffe_id(), Err(SanError::Several(2)));
        assert!(matches!(facts(&["https://east"]).spiffe_id(), Err(SanError::Invalid(_))));
    }

    #[test]
    fn garbage_is_no_certificate() {
        assert_eq!(Facts::read(b"garbage"), Err(NotACertificate));
    }
}
