//! The first half of a CURVE handshake: enough to know that a broker holds the secret key of a certificate.
//!
//! All brokers of an instance share one key pair. A HELLO is a box for the server's public key, which only the holder of
//! its secret key can open; it answers with a WELCOME, a box that only that holder can make. So a WELCOME that opens proves
//! that the broker has the same certificate, before anything of the instance was said.
//!
//! Framing only: the socket is the caller's. Source: ZeroMQ RFC 23 (ZMTP 3.0) and RFC 26 (CurveZMQ).

use crypto_box::aead::Aead as _;
use crypto_box::{PublicKey, SalsaBox, SecretKey};
use tributary_clock::Rng;
use zeroize::Zeroizing;

/// Bytes of a greeting.
pub const GREETING: usize = 64;
/// Most bytes of a command that is read here: a WELCOME has 168.
pub const LONGEST_COMMAND: usize = 255;

const SIGNATURE: [u8; 10] = [0xff, 0, 0, 0, 0, 0, 0, 0, 1, 0x7f];
const MECHANISM: &[u8] = b"CURVE";
/// Flags of a frame: a command, with its length in one byte.
const COMMAND: u8 = 4;
const HELLO: &[u8] = b"\x05HELLO";
const WELCOME: &[u8] = b"\x07WELCOME";
const ERROR: &[u8] = b"\x05ERROR";
/// A greeting, or a command, that is not what a broker with our certificate says.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum HandshakeError {
    /// No ZMTP greeting, or one of before version 3.
    #[error("what answers there is no broker of Flux")]
    NoBroker,
    /// Another way to authenticate.
    #[error("what answers there asks for mechanism {0}, not CURVE")]
    Mechanism(String),
    /// It refused the HELLO.
    #[error("the broker there refused the handshake: {0}")]
    Refused(String),
    /// The answer is no WELCOME, or one of another key.
    #[error("the broker there holds another certificate")]
    OtherCertificate,
}

/// What a client says first.
pub fn greeting() -> [u8; GREETING] {
    let mut bytes = [0; GREETING];
    bytes[..10].copy_from_slice(&SIGNATURE);
    bytes[10] = 3;
    bytes[12..12 + MECHANISM.len()].copy_from_slice(MECHANISM);
    bytes
}

/// Whether this is the greeting of a server that speaks CURVE.
///
/// # Errors
/// What it is instead.
pub fn check_greeting(bytes: &[u8; GREETING]) -> Result<(), HandshakeError> {
    if bytes[0] != SIGNATURE[0] || bytes[9] != SIGNATURE[9] || bytes[10] < 3 {
        return Err(HandshakeError::NoBroker);
    }
    let name: Vec<u8> = bytes[12..32].iter().copied().take_while(|byte| *byte != 0).collect();
    if name != MECHANISM {
        return Err(HandshakeError::Mechanism(printable(&name)));
    }
    Ok(())
}

/// How many bytes follow the two at the beginning of a command.
///
/// # Errors
/// It is no command, or longer than any that is expected here.
pub fn command_length(head: [u8; 2]) -> Result<usize, HandshakeError> {
    if head[0] == COMMAND { Ok(head[1].into()) } else { Err(HandshakeError::OtherCertificate) }
}

/// One handshake.
pub struct Handshake {
    /// Between the server's key and a key pair of this handshake only.
    keys: SalsaBox,
    hello: Vec<u8>,
}

impl Handshake {
    /// A handshake with a server that should hold the secret key of `server`, a public key in Z85 (as
    /// [`super::Certificate::public_key`] has it); `None` if that is no key.
    pub fn with(server: &str, rng: &mut dyn Rng) -> Option<Self> {
        let server: [u8; 32] = z85::decode(server).ok()?.try_into().ok()?;
        let mut secret = Zeroizing::new([0; 32]);
        for chunk in secret.chunks_exact_mut(8) {
            chunk.copy_from_slice(&rng.next_u64().to_le_bytes());
        }
        let secret = SecretKey::from(*secret);
        let keys = SalsaBox::new(&PublicKey::from(server), &secret);
        let counter = 1_u64.to_be_bytes();
        let mut nonce = [0; 24];
        nonce[..16].copy_from_slice(b"CurveZMQHELLO---");
        nonce[16..].copy_from_slice(&counter);
        let signature = keys.encrypt(&nonce.into(), &[0; 64][..]).ok()?;
        let mut body = [HELLO, &[1, 0], &[0; 72]].concat();
        body.extend_from_slice(secret.public_key().as_bytes());
        body.extend_from_slice(&counter);
        body.extend_from_slice(&signature);
        let mut hello = vec![COMMAND, u8::try_from(body.len()).ok()?];
        hello.extend_from_slice(&body);
        Some(Self { keys, hello })
    }

    /// The HELLO, to be sent after the greetings.
    pub fn hello(&self) -> &[u8] {
        &self.hello
    }

    /// Whether the body of the command that came back is a WELCOME of the right server.
    ///
    /// # Errors
    /// It refused, or has another key.
    pub fn welcomed(&self, body: &[u8]) -> Result<(), HandshakeError> {
        if let Some(reason) = body.strip_prefix(ERROR) {
            return Err(HandshakeError::Refused(printable(reason.get(1..).unwrap_or_default())));
        }
        let sealed = body.strip_prefix(WELCOME).and_then(|rest| rest.split_at_checked(16));
        let (short, sealed) = sealed.ok_or(HandshakeError::OtherCertificate)?;
        let mut nonce = [0; 24];
        nonce[..8].copy_from_slice(b"WELCOME-");
        nonce[8..].copy_from_slice(short);
        match self.keys.decrypt(&nonce.into(), sealed) {
            // The server's key of this handshake, and a cookie.
            Ok(opened) if opened.len() == 128 => Ok(()),
            _ => Err(HandshakeError::OtherCertificate),
        }
    }
}

/// Foreign bytes, fit for a sentence.
fn printable(bytes: &[u8]) -> String {
    bytes.iter().take(40).map(|byte| if byte.is_ascii_graphic() { char::from(*byte) } else { '?' }).collect()
}

/// The server's side, as RFC 26 has it: for tests of those who connect.
#[cfg(any(test, feature = "testing"))]
pub mod testing {
    use super::*;

    /// A broker's socket, which has the secret key.
    #[derive(Debug)]
    pub struct Server(SecretKey);

    impl Server {
        /// With the key that follows from `seed`.
        pub fn new(seed: u8) -> Self {
            Self(SecretKey::from([seed; 32]))
        }

        /// In Z85, as a certificate has it.
        pub fn public_key(&self) -> String {
            z85::encode(self.0.public_key().as_bytes())
        }

        /// The greeting of a server with this mechanism, such as `CURVE`.
        pub fn greeting(mechanism: &[u8]) -> [u8; GREETING] {
            let mut bytes = greeting();
            bytes[12..32].fill(0);
            bytes[12..12 + mechanism.len()].copy_from_slice(mechanism);
            bytes[32] = 1;
            bytes
        }

        /// The WELCOME for a HELLO, both with their frame; `None` if it is for another server.
        pub fn answer(&self, hello: &[u8]) -> Option<Vec<u8>> {
            let client: [u8; 32] = hello[82..114].try_into().ok()?;
            let keys = SalsaBox::new(&PublicKey::from(client), &self.0);
            let mut nonce = *b"CurveZMQHELLO---........";
            nonce[16..].copy_from_slice(&hello[114..122]);
            let opened = keys.decrypt(&nonce.into(), &hello[122..]).ok()?;
            assert_eq!(opened, [0; 64]);
            let sealed = keys.encrypt(b"WELCOME-0123456789abcdef".into(), &[7; 128][..]).ok()?;
            Some([&[COMMAND, 168][..], WELCOME, b"0123456789abcdef", &sealed].concat())
        }
    }
}

#[cfg(test)]
mod tests {
    use tributary_clock::SeededRng;

    use super::testing::Server;
    use super::*;

    #[test]
    fn only_the_holder_of_the_secret_key_welcomes() {
        let (ours, other) = (Server::new(1), Server::new(2));
        let handshake = Handshake::with(&ours.public_key(), &mut SeededRng::new(1)).unwrap();
        let hello = handshake.hello();
        assert_eq!((hello.len(), &hello[..2]), (202, &[COMMAND, 200][..]));
        assert_eq!(other.answer(hello), None);
        let welcome = ours.answer(hello).unwrap();
        assert_eq!(command_length([welcome[0], welcome[1]]), Ok(168));
        assert_eq!(handshake.welcomed(&welcome[2..]), Ok(()));
        // An answer that was made for somebody else, or changed on its way.
        let another = Handshake::with(&ours.public_key(), &mut SeededRng::new(2)).unwrap();
        assert_eq!(another.welcomed(&welcome[2..]), Err(HandshakeError::OtherCertificate));
        let mut bent = welcome.clone();
        bent[100] ^= 1;
        assert_eq!(handshake.welcomed(&bent[2..]), Err(HandshakeError::OtherCertificate));
    }

    #[test]
    fn what_is_no_broker_is_told_from_one_with_another_certificate() {
        assert_eq!(check_greeting(&Server::greeting(b"CURVE")), Ok(()));
        assert_eq!(check_greeting(&Server::greeting(b"NULL")), Err(HandshakeError::Mechanism("NULL".into())));
        let mut http = [b' '; GREETING];
        http[..12].copy_from_slice(b"HTTP/1.1 400");
        assert_eq!(check_greeting(&http), Err(HandshakeError::NoBroker));
        let handshake = Handshake::with(&Server::new(1).public_key(), &mut SeededRng::new(1)).unwrap();
        let refused = handshake.welcomed(b"\x05ERROR\x03no\n");
        assert_eq!(refused, Err(HandshakeError::Refused("no?".into())));
        for body in [&b""[..], b"\x07WELCOME", b"\x07WELCOMEshort"] {
            assert_eq!(handshake.welcomed(body), Err(HandshakeError::OtherCertificate));
        }
        assert!(Handshake::with("no key", &mut SeededRng::new(1)).is_none());
    }
}
