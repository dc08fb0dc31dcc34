//! SHA-256 digests as the two sides of a burst compare them: `sha256:` and 64 hexadecimal digits.

use std::fmt;
use std::str::FromStr;

use data_encoding::HEXLOWER;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

/// A text that is no digest.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("expected \"sha256:\" and 64 lower-case hexadecimal digits")]
pub struct DigestError;

macro_rules! digest {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(into = "String", try_from = "String")]
        pub struct $name([u8; 32]);

        impl $name {
            /// The digest of exactly these bytes.
            pub(super) fn of(bytes: &[u8]) -> Self {
                Self(Sha256::digest(bytes).into())
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{PREFIX}{}", HEXLOWER.encode(&self.0))
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}({self})", stringify!($name))
            }
        }

        impl FromStr for $name {
            type Err = DigestError;
            fn from_str(text: &str) -> Result<Self, DigestError> {
                parse_digest(text).map(Self)
            }
        }

        impl From<$name> for String {
            fn from(digest: $name) -> Self {
                digest.to_string()
            }
        }

        impl TryFrom<String> for $name {
            type Error = DigestError;
            fn try_from(text: String) -> Result<Self, DigestError> {
                text.parse()
            }
        }
    };
}

digest! {
    /// Digest of a rank map: SHA-256 of its canonical text.
    RankMapDigest
}
digest! {
    /// Digest of a curve certificate: SHA-256 of the exact text of its file. It tells nothing about the secret key, which
    /// has 256 random bits.
    CertificateDigest
}

const PREFIX: &str = "sha256:";

fn parse_digest(text: &str) -> Result<[u8; 32], DigestError> {
    let digits = text.strip_prefix(PREFIX).ok_or(DigestError)?;
    let bytes = HEXLOWER.decode(digits.as_bytes()).map_err(|_| DigestError)?;
    bytes.try_into().map_err(|_| DigestError)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ABC: &str = "sha256:ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";

    #[test]
    fn digest_of_abc_is_the_one_of_fips_180() {
        assert_eq!(RankMapDigest::of(b"abc").to_string(), ABC);
    }

    #[test]
    fn text_and_json_round_trip() {
        let digest: CertificateDigest = ABC.parse().unwrap();
        assert_eq!(digest, CertificateDigest::of(b"abc"));
        let json = serde_json::to_string(&digest).unwrap();
        assert_eq!(json, format!("\"{ABC}\""));
        assert_eq!(serde_json::from_str::<CertificateDigest>(&json).unwrap(), digest);
    }

    #[test]
    fn only_one_spelling_is_read() {
        let upper = ABC.to_uppercase().replace("SHA256", "sha256");
        for text in ["", "sha256:", &ABC[7..], &ABC[..70], &format!("{ABC}0"), &upper, &ABC.replace('b', "+")] {
            assert_eq!(text.parse::<RankMapDigest>(), Err(DigestError), "{text}");
        }
    }
}
