//! The CURVE certificate that all brokers of one instance share.
//!
//! The file holds a secret key: whoever has it is a broker of the instance. Its text stays in memory that is wiped when
//! dropped, and neither Debug nor any error shows a part of it.
//!
//! Source: flux-core `src/common/libzmqutil/cert.c`, `zmq_curve_keypair(3)`, ZeroMQ RFC 26 (CURVE) and RFC 32 (Z85).

use std::collections::BTreeSet;
use std::fmt;

use jiff::Timestamp;
use tributary_clock::Rng;
use x25519_dalek::{PublicKey, StaticSecret};
use zeroize::Zeroizing;

use super::CertificateDigest;
use super::zpl::{self, Section};

/// Length of a key of 32 bytes in Z85.
const KEY_LEN: usize = 40;

/// What a new certificate says about itself; for people only.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CertificateMetadata {
    /// Name of the certificate, which brokers log when they authorize a peer.
    pub name: String,
    /// Host that the certificate is for.
    pub hostname: String,
    /// When it is made.
    pub created: Timestamp,
}

/// A CURVE key pair as the text of a `curve.cert` file.
#[derive(Clone)]
pub struct Certificate {
    text: Zeroizing<String>,
    public_key: String,
}

/// Why a text is no certificate that a broker would take. Shows line numbers and keys of entries, never values.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum CertificateError {
    /// A line that is no section, no entry and no comment.
    #[error("failed to parse the curve certificate: line {line} is not what Flux reads")]
    Syntax {
        /// Line, from 1.
        line: usize,
    },
    /// An entry of `curve` that is neither `public-key` nor `secret-key`.
    #[error("failed to parse the curve certificate: line {line} is an unknown entry of section curve")]
    UnknownKey {
        /// Line, from 1.
        line: usize,
    },
    /// One entry twice.
    #[error("failed to parse the curve certificate: line {line} repeats an entry")]
    Repeated {
        /// Line, from 1.
        line: usize,
    },
    /// A key that is not 32 bytes in Z85.
    #[error("failed to parse the curve certificate: the key in line {line} is not 40 characters of Z85")]
    Key {
        /// Line, from 1.
        line: usize,
    },
    /// No public or no secret key.
    #[error("the curve certificate has no {entry}: make one with flux keygen")]
    Missing {
        /// `public-key` or `secret-key`.
        entry: &'static str,
    },
    /// The public key belongs to another secret key.
    #[error("the public key of the curve certificate does not belong to its secret key")]
    Mismatch,
    /// A name that a certificate cannot hold.
    #[error(
        "{value:?} cannot stand in a curve certificate: no underscore, comma, quote or line feed, up to 200 characters"
    )]
    Metadata {
        /// The name.
        value: String,
    },
}

impl Certificate {
    /// A new key pair. `rng` must be the operating system's ([`tributary_clock::SystemRng`]) outside of tests.
    ///
    /// # Errors
    /// [`CertificateError::Metadata`] if a name has a character that Flux's parser refuses; names of Kubernetes objects
    /// never do.
    pub fn generate(rng: &mut dyn Rng, metadata: &CertificateMetadata) -> Result<Self, CertificateError> {
        let CertificateMetadata { name, hostname, created } = metadata;
        for value in [name, hostname] {
            if value.len() > 200 || !zpl::is_value(value) {
                return Err(CertificateError::Metadata { value: value.clone() });
            }
        }
        let mut bytes = Zeroizing::new([0; 32]);
        for chunk in bytes.chunks_exact_mut(8) {
            chunk.copy_from_slice(&rng.next_u64().to_le_bytes());
        }
        let secret = StaticSecret::from(*bytes);
        let public_key = z85::encode(PublicKey::from(&secret).as_bytes());
        let secret_key = Zeroizing::new(z85::encode(secret.as_bytes()));
        let created = created.strftime("%Y-%m-%dT%H:%M:%SZ").to_string();

        let pieces = [
            "#  ZeroMQ CURVE **Secret** Certificate\n#  DO NOT DISTRIBUTE\n\nmetadata\n    name = \"",
            name,
            "\"\n    keygen.hostname = \"",
            hostname,
            "\"\n    keygen.time = \"",
            &created,
            "\"\ncurve\n    public-key = \"",
            &public_key,
            "\"\n    secret-key = \"",
            &secret_key,
            "\"\n",
        ];
        // All at once: a String that grows would leave copies behind that nobody wipes.
        let text = Zeroizing::new(pieces.concat());
        Ok(Self { text, public_key })
    }

    /// Takes a certificate as it is, if a broker would: same grammar as flux-core, and the keys belong together.
    ///
    /// # Errors
    /// See [`CertificateError`].
    pub fn parse(text: &str) -> Result<Self, CertificateError> {
        let mut seen = BTreeSet::new();
        let (mut public, mut secret) = (None, None);
        for entry in zpl::entries(text) {
            let entry = entry.map_err(|line| CertificateError::Syntax { line })?;
            let line = entry.line;
            if !seen.insert((entry.section == Section::Curve, entry.key)) {
                return Err(CertificateError::Repeated { line });
            }
            match (entry.section, entry.key) {
                (Section::Metadata, _) => {}
                (Section::Curve, "public-key") => public = Some((entry.value, decode_key(entry.value, line)?)),
                (Section::Curve, "secret-key") => secret = Some(decode_key(entry.value, line)?),
                (Section::Curve, _) => return Err(CertificateError::UnknownKey { line }),
            }
        }
        let (written, public) = public.ok_or(CertificateError::Missing { entry: "public-key" })?;
        let secret = secret.ok_or(CertificateError::Missing { entry: "secret-key" })?;
        if PublicKey::from(&StaticSecret::from(*secret)).as_bytes() != &*public {
            return Err(CertificateError::Mismatch);
        }
        Ok(Self { text: Zeroizing::new(text.to_owned()), public_key: written.to_owned() })
    }

    /// The whole text with the secret key: for a Secret and for the authenticated stream to a provider, nothing else.
    pub fn expose(&self) -> &str {
        &self.text
    }

    /// The public key in Z85.
    pub fn public_key(&self) -> &str {
        &self.public_key
    }

    /// Digest of the exact text, by which the two sides of a burst know that they hold the same certificate.
    pub fn digest(&self) -> CertificateDigest {
        CertificateDigest::of(self.text.as_bytes())
    }
}

impl fmt::Debug for Certificate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Certificate").field("public_key", &self.public_key).finish_non_exhaustive()
    }
}

fn decode_key(value: &str, line: usize) -> Result<Zeroizing<[u8; 32]>, CertificateError> {
    let error = CertificateError::Key { line };
    if value.len() != KEY_LEN {
        return Err(error);
    }
    let Ok(bytes) = z85::decode(value).map(Zeroizing::new) else {
        return Err(error);
    };
    // The crate also reads a padding of its own, which gives fewer than 32 bytes.
    match <[u8; 32]>::try_from(bytes.as_slice()) {
        Ok(key) => Ok(Zeroizing::new(key)),
        Err(_) => Err(error),
    }
}

#[cfg(test)]
mod tests;
