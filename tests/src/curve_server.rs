//! The server's side of the first half of a CURVE handshake, as the lead broker of an instance has it: ZeroMQ RFC 26.

use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex};

use crypto_box::aead::Aead as _;
use crypto_box::{PublicKey, SalsaBox, SecretKey};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tributary::flux::curve;

/// Bytes of a HELLO with its frame.
const HELLO: usize = 202;

/// Listens like a lead broker, and proves to hold a secret key.
#[derive(Clone)]
pub struct CurveServer {
    secret: Arc<Mutex<SecretKey>>,
}

impl CurveServer {
    /// A server at this address, which holds a key that nobody else has. It ends with the runtime.
    pub async fn listen(address: Ipv4Addr, port: u16) -> std::io::Result<Self> {
        let listener = TcpListener::bind((address, port)).await?;
        let server = Self { secret: Arc::new(Mutex::new(SecretKey::from([7; 32]))) };
        let own = server.clone();
        tokio::spawn(async move {
            while let Ok((tcp, _)) = listener.accept().await {
                let own = own.clone();
                // Whoever breaks off has seen what it wanted.
                tokio::spawn(async move { own.greet(tcp).await.ok() });
            }
        });
        Ok(server)
    }

    /// From now on it holds the secret key of this certificate, in Flux's format.
    pub fn hold(&self, certificate: &str) {
        let line = certificate.lines().find_map(|line| line.trim().strip_prefix("secret-key")).unwrap();
        let text = line.trim_start_matches([' ', '=']).trim().trim_matches('"');
        let bytes: [u8; 32] = z85::decode(text).unwrap().try_into().unwrap();
        *self.secret.lock().unwrap() = SecretKey::from(bytes);
    }

    async fn greet(&self, mut tcp: TcpStream) -> std::io::Result<()> {
        let mut greeting = curve::greeting();
        // As the server.
        greeting[32] = 1;
        tcp.write_all(&greeting).await?;
        let mut heard = [0; curve::GREETING + HELLO];
        tcp.read_exact(&mut heard).await?;
        // One that cannot open the HELLO ends the connection.
        let Some(welcome) = self.welcome(&heard[curve::GREETING..]) else { return Ok(()) };
        tcp.write_all(&welcome).await?;
        // It waits for what a whole handshake would send next.
        tcp.read_u8().await.map(drop)
    }

    /// The WELCOME for a HELLO, both with their frames; `None` if it is for another key.
    fn welcome(&self, hello: &[u8]) -> Option<Vec<u8>> {
        let client: [u8; 32] = hello[82..114].try_into().unwrap();
        let keys = SalsaBox::new(&PublicKey::from(client), &self.secret.lock().unwrap());
        let mut nonce = *b"CurveZMQHELLO---........";
        nonce[16..].copy_from_slice(&hello[114..122]);
        keys.decrypt(&nonce.into(), &hello[122..]).ok()?;
        let sealed = keys.encrypt(b"WELCOME-0123456789abcdef".into(), &[7; 128][..]).unwrap();
        Some([&[4, 168][..], b"\x07WELCOME", b"0123456789abcdef", &sealed].concat())
    }
}
