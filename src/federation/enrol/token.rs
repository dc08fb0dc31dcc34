//! The token, as text: `tributary-1.` and base64url (RFC 4648, section 5) of a protobuf message with four bytes of its
//! SHA-256 behind, so that one that was cut or mistyped is told from one that is wrong.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use data_encoding::HEXLOWER;
use jiff::Timestamp;
use prost::Message as _;
use sha2::{Digest, Sha256};
use tributary_clock::Rng;
use tributary_contract::PeerName;
use zeroize::{Zeroize, Zeroizing};

use super::proto;

/// What every token of this version begins with.
const PREFIX: &str = "tributary-1.";

/// What tokens of every version begin with.
const ANY_VERSION: &str = "tributary-";

/// Bytes of the checksum.
const CHECKSUM: usize = 4;

/// Separates the hash of a token's secret from other uses of SHA-256.
const DOMAIN: &[u8] = b"tributary join token/1\0";

/// What a cluster gives to another one that shall join it. Its Debug shows no secret.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct JoinToken {
    /// Which token: part of the name of its Secret.
    pub id: String,
    /// Proves that one has it.
    pub secret: TokenSecret,
    /// Name of the cluster that made it.
    pub cluster: PeerName,
    /// Federation of that cluster, if it insists on one.
    pub trust_domain: Option<String>,
    /// Where its listener for joining is, `host:port`.
    pub endpoints: Vec<String>,
    /// SHA-256 (hex) of the authorities (DER) that may sign its certificate.
    pub authorities: BTreeSet<String>,
    /// When it ends, on the clock of that cluster.
    pub expires: Timestamp,
}

/// 256 random bits, shown to nobody but the listener. Its Debug shows nothing.
#[derive(Clone, PartialEq, Eq)]
pub struct TokenSecret([u8; 32]);

/// Why a text is no token.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum TokenError {
    /// Something else.
    #[error("it does not begin with `{PREFIX}`")]
    NotAToken,
    /// Of a newer version.
    #[error("it is of another version of Tributary")]
    OtherVersion,
    /// Its checksum is wrong.
    #[error("it is not whole: a part is missing or mistyped")]
    Damaged,
}

impl JoinToken {
    /// The text to hand over. It is as secret as the token.
    pub fn text(&self) -> Zeroizing<String> {
        let message = proto::Token {
            id: self.id.clone(),
            secret: self.secret.0.to_vec(),
            cluster: self.cluster.to_string(),
            trust_domain: self.trust_domain.clone(),
            endpoints: self.endpoints.clone(),
            authorities: self.authorities.iter().filter_map(|hex| HEXLOWER.decode(hex.as_bytes()).ok()).collect(),
            expires: self.expires.as_second(),
        };
        let mut bytes = Zeroizing::new(message.encode_to_vec());
        let checksum = Sha256::digest(&*bytes);
        bytes.extend_from_slice(&checksum[..CHECKSUM]);
        Zeroizing::new(format!("{PREFIX}{}", URL_SAFE_NO_PAD.encode(&*bytes)))
    }
}

impl FromStr for JoinToken {
    type Err = TokenError;

    fn from_str(text: &str) -> Result<Self, TokenError> {
        // Mail programs and terminals break long lines.
        let text: String = text.split_whitespace().collect();
        let coded = text.strip_prefix(PREFIX).ok_or_else(|| {
            let other =
                text.strip_prefix(ANY_VERSION).is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()));
            if other { TokenError::OtherVersion } else { TokenError::NotAToken }
        })?;
        let bytes = Zeroizing::new(URL_SAFE_NO_PAD.decode(coded).map_err(|_| TokenError::Damaged)?);
        let (message, checksum) = bytes.split_last_chunk::<CHECKSUM>().ok_or(TokenError::Damaged)?;
        if Sha256::digest(message)[..CHECKSUM] != *checksum {
            return Err(TokenError::Damaged);
        }
        let mut token = proto::Token::decode(message).map_err(|_| TokenError::Damaged)?;
        let secret = token.secret.as_slice().try_into().map(TokenSecret).map_err(|_| TokenError::Damaged)?;
        token.secret.zeroize();
        Ok(Self {
            id: token.id,
            secret,
            cluster: token.cluster.into(),
            trust_domain: token.trust_domain,
            endpoints: token.endpoints,
            authorities: token.authorities.iter().map(|fingerprint| HEXLOWER.encode(fingerprint)).collect(),
            expires: Timestamp::from_second(token.expires).map_err(|_| TokenError::Damaged)?,
        })
    }
}

impl TokenSecret {
    /// A new one.
    pub fn generate(rng: &mut dyn Rng) -> Self {
        let mut bytes = [0; 32];
        for chunk in bytes.chunks_exact_mut(8) {
            chunk.copy_from_slice(&rng.next_u64().to_be_bytes());
        }
        Self(bytes)
    }

    /// What is kept of it: SHA-256, hex. There is nothing to guess in 256 random bits, so a slow hash adds nothing.
    pub fn hash(&self) -> String {
        hash(&self.0)
    }

    pub(super) fn expose(&self) -> &[u8] {
        &self.0
    }
}

impl Drop for TokenSecret {
    fn drop(&mut self) {
        self.0.zeroize();
    }
}

impl fmt::Debug for TokenSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TokenSecret(..)")
    }
}

/// Eight characters that name a token: enough that two never meet, short enough to be read out.
pub fn generate_id(rng: &mut dyn Rng) -> String {
    const ALPHABET: &[u8; 32] = b"abcdefghijkmnpqrstuvwxyz23456789";
    let mut bits = rng.next_u64();
    let mut next = || {
        let character = char::from(ALPHABET[(bits % 32) as usize]);
        bits /= 32;
        character
    };
    (0..8).map(|_| next()).collect()
}

pub(super) fn hash(secret: &[u8]) -> String {
    HEXLOWER.encode(&Sha256::new().chain_update(DOMAIN).chain_update(secret).finalize())
}

#[cfg(test)]
mod tests {
    use tributary_clock::SeededRng;

    use super::*;

    fn token() -> JoinToken {
        let rng = &mut SeededRng::new(1);
        JoinToken {
            id: generate_id(rng),
            secret: TokenSecret::generate(rng),
            cluster: "east".into(),
            trust_domain: Some("river".into()),
            endpoints: vec!["203.0.113.7:30956".into(), "[2001:db8::1]:7956".into()],
            authorities: [HEXLOWER.encode(&[7; 32])].into(),
            expires: "2025-06-01T12:15:00Z".parse().unwrap(),
        }
    }

    #[test]
    fn a_token_survives_its_text_and_what_mail_programs_do_to_it() {
        let text = token().text();
        assert_eq!(text.parse(), Ok(token()));
        let (start, end) = text.split_at(60);
        assert_eq!(format!(" {start}\r\n {end}\n").parse(), Ok(token()));
        assert!(text.len() < 300, "{}", text.len());
    }

    #[test]
    fn what_is_no_token_is_told_apart() {
        let text = token().text();
        let parse = |text: &str| text.parse::<JoinToken>().unwrap_err();
        for wrong in ["", "eyJhbGciOi", "https://example.org", "tributary-"] {
            assert_eq!(parse(wrong), TokenError::NotAToken, "{wrong}");
        }
        assert_eq!(parse(&text.replacen("-1.", "-2.", 1)), TokenError::OtherVersion);
        for end in [PREFIX.len(), PREFIX.len() + 3, text.len() / 2, text.len() - 1] {
            assert_eq!(parse(&text[..end]), TokenError::Damaged, "{end}");
        }
        for at in (PREFIX.len()..text.len()).step_by(7) {
            let mut mistyped = text.to_string();
            let other = if &mistyped[at..=at] == "A" { "B" } else { "A" };
            mistyped.replace_range(at..=at, other);
            assert_eq!(parse(&mistyped), TokenError::Damaged, "{at}");
        }
    }

    #[test]
    fn a_secret_is_random_and_shown_nowhere() {
        let rng = &mut SeededRng::new(2);
        let (one, two) = (TokenSecret::generate(rng), TokenSecret::generate(rng));
        assert_ne!(one.hash(), two.hash());
        assert_eq!(one.hash().len(), 64);
        assert!(format!("{:?}", token()).contains("TokenSecret(..)"));
    }
}
