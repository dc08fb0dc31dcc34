//! How the two ends know each other: by the secret key of the instance's certificate, which every pod of the instance has.
//!
//! | | bytes |
//! |---|---|
//! | burst's end | version, nonce |
//! | lead's end | version, nonce |
//! | burst's end | which connection, process and attempt; position, window; its host name; a code (HMAC) over all before |
//! | lead's end | outcome, position, window; a code over all before |
//!
//! Both nonces are new each time, so nothing that was heard can be said again. What follows is not protected: it is the
//! brokers' own traffic, encrypted by CURVE, as without all of this.

use std::io;

use bytes::{Buf as _, BufMut as _, BytesMut};
use ring::hmac;
use ring::rand::{SecureRandom as _, SystemRandom};
use tokio::io::{AsyncRead, AsyncReadExt as _};
use zeroize::Zeroizing;

/// Version of all that the ends say to each other.
pub(crate) const VERSION: u8 = 1;

/// What the ends of the tunnel make of the key of a certificate.
pub const PURPOSE: &str = "tributary: ends of the tunnel, version 1";

/// Bytes of a code.
pub const CODE: usize = 32;

/// Bytes of what the burst's end asks for before the host name.
const ASKED: usize = 16 + 8 + 8 + 1 + 8 + 4 + 1;

/// Bytes of an answer before its code.
const ANSWER: usize = 1 + 8 + 4;

/// New each time.
pub type Nonce = [u8; 32];

/// What those share who have the certificate of an instance. It is never shown.
#[derive(Clone)]
pub struct Key(hmac::Key);

/// A file that is no certificate of Flux.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("there is no secret key of 40 characters in it")]
pub struct NoKey;

impl Key {
    /// Of the text of a certificate (`curve.cert`), for one purpose: a code that is made for another one is none.
    ///
    /// # Errors
    /// There is no secret key in it.
    pub fn of_certificate(text: &str, purpose: &str) -> Result<Self, NoKey> {
        let mut values =
            text.lines().filter_map(|line| line.trim().strip_prefix("secret-key")?.trim().strip_prefix('='));
        let secret = Zeroizing::new(values.next().ok_or(NoKey)?.trim().trim_matches('"').to_owned());
        if secret.len() != 40 {
            return Err(NoKey);
        }
        let own = hmac::Key::new(hmac::HMAC_SHA256, secret.as_bytes());
        // Not the key itself, which is CURVE's: one of our own that is made of it.
        let derived = hmac::sign(&own, purpose.as_bytes());
        Ok(Self(hmac::Key::new(hmac::HMAC_SHA256, derived.as_ref())))
    }
}

impl std::fmt::Debug for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Key")
    }
}

/// Bytes nobody can guess.
///
/// # Errors
/// The system gives none.
pub fn random<const N: usize>() -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    SystemRandom::new().fill(&mut bytes).map_err(|_| io::Error::other("the system gives no random bytes"))?;
    Ok(bytes)
}

/// What the burst's end asks for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Asked {
    /// Which connection: random.
    pub(crate) connection: [u8; 16],
    /// Random per process of the burst's end.
    pub(crate) process: u64,
    /// Grows with each attempt of a connection.
    pub(crate) attempt: u64,
    /// A stream carried it before: if the lead's end does not know it, it is gone.
    pub(crate) resumes: bool,
    /// Position up to which everything has arrived at the burst's end.
    pub(crate) position: u64,
    /// Bytes that may be under way to there.
    pub(crate) window: u32,
    /// Host name of the pod.
    pub(crate) host: String,
}

/// What the lead's end says to it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Outcome {
    /// The stream carries the connection.
    Open = 1,
    /// The connection is not known any more.
    Gone = 2,
    /// The lead broker does not take the connection.
    Unreachable = 3,
    /// As many as the memory allows are carried.
    TooMany = 4,
    /// A later attempt was here before.
    Stale = 5,
}

/// The codes of one handshake.
#[derive(Clone)]
pub struct Codes {
    key: Key,
    nonces: [Nonce; 2],
}

impl Codes {
    /// With the nonces of who asks, such as the burst's end, and of who answers, beside the lead.
    pub fn new(key: &Key, asks: Nonce, answers: Nonce) -> Self {
        Self { key: key.clone(), nonces: [asks, answers] }
    }

    fn context(&self, side: &[u8]) -> hmac::Context {
        let mut context = hmac::Context::with_key(&self.key.0);
        [side, &self.nonces[0], &self.nonces[1]].iter().for_each(|part| context.update(part));
        context
    }

    /// What the burst's end sends.
    pub(crate) fn ask(&self, asked: &Asked) -> BytesMut {
        let mut bytes = BytesMut::new();
        // No host name is longer.
        let host = &asked.host.as_bytes()[..asked.host.len().min(255)];
        bytes.put_slice(&asked.connection);
        bytes.put_u64(asked.process);
        bytes.put_u64(asked.attempt);
        bytes.put_u8(asked.resumes.into());
        bytes.put_u64(asked.position);
        bytes.put_u32(asked.window);
        bytes.put_u8(host.len() as u8);
        bytes.put_slice(host);
        let code = self.code(b"burst", &bytes);
        bytes.put_slice(code.as_ref());
        bytes
    }

    /// Reads that, and refuses what somebody without the key says.
    pub(crate) async fn asked(&self, from: &mut (impl AsyncRead + Unpin)) -> io::Result<Asked> {
        let mut bytes = vec![0; ASKED];
        from.read_exact(&mut bytes).await?;
        let (host, code) = (ASKED + usize::from(bytes[ASKED - 1]), CODE);
        bytes.resize(host + code, 0);
        from.read_exact(&mut bytes[ASKED..]).await?;
        self.check(b"burst", &bytes[..host], &bytes[host..])?;
        let mut rest = &bytes[..host];
        let mut connection = [0; 16];
        rest.copy_to_slice(&mut connection);
        Ok(Asked {
            connection,
            process: rest.get_u64(),
            attempt: rest.get_u64(),
            resumes: rest.get_u8() != 0,
            position: rest.get_u64(),
            window: rest.get_u32(),
            host: String::from_utf8_lossy(&rest[1..]).into_owned(),
        })
    }

    /// What the lead's end answers.
    pub(crate) fn answer(&self, outcome: Outcome, position: u64, window: u32) -> BytesMut {
        let mut bytes = BytesMut::new();
        bytes.put_u8(outcome as u8);
        bytes.put_u64(position);
        bytes.put_u32(window);
        let code = self.code(b"lead", &bytes);
        bytes.put_slice(code.as_ref());
        bytes
    }

    /// Reads that: outcome, position and window.
    pub(crate) async fn answered(&self, from: &mut (impl AsyncRead + Unpin)) -> io::Result<(Outcome, u64, u32)> {
        let mut bytes = [0; ANSWER + CODE];
        from.read_exact(&mut bytes).await?;
        self.check(b"lead", &bytes[..ANSWER], &bytes[ANSWER..])?;
        let mut rest = &bytes[..ANSWER];
        let outcome = match rest.get_u8() {
            1 => Outcome::Open,
            2 => Outcome::Gone,
            3 => Outcome::Unreachable,
            4 => Outcome::TooMany,
            5 => Outcome::Stale,
            _ => return Err(io::ErrorKind::InvalidData.into()),
        };
        Ok((outcome, rest.get_u64(), rest.get_u32()))
    }

    /// The code of one side over what it says.
    pub fn code(&self, side: &[u8], bytes: &[u8]) -> hmac::Tag {
        let mut context = self.context(side);
        context.update(bytes);
        context.sign()
    }

    /// Checks the code of the other side.
    ///
    /// # Errors
    /// It is none of this handshake.
    pub fn check(&self, side: &[u8], bytes: &[u8], code: &[u8]) -> io::Result<()> {
        let all = [side, &self.nonces[0], &self.nonces[1], bytes].concat();
        hmac::verify(&self.key.0, &all, code)
            .map_err(|_| io::Error::new(io::ErrorKind::PermissionDenied, "it does not know the instance's certificate"))
    }
}
