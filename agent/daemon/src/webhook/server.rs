//! HTTPS for the API server. No client shows a certificate: what is asked here says nothing that the asker does not say
//! first, and changes nothing.

use std::convert::Infallible;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Secret;
use parking_lot::RwLock;
use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tributary::webhook::certificate;

use super::handler::Handler;
use super::metrics::WebhookMetrics;
use crate::asked;
use crate::places::Places;

/// Connections at one time. With what each of them may take, it bounds the memory that askers can take: see [`super::handler`].
pub(super) const CONNECTIONS: usize = 160;
/// Connections from one address: one pod cannot have all of them.
const SHARE: usize = CONNECTIONS / 2;
/// Those of an API server stay: it keeps few, and asks on them again and again.
const KEPT: usize = 4;
/// Most bytes of what is read of a connection at one time, and of the head of a request.
const BUFFER: usize = 16 << 10;

/// The certificate that is shown now; none at first.
#[derive(Default)]
pub(super) struct Certificates(RwLock<Option<Shown>>);

/// A certificate with its key, and its end, if it can be read.
struct Shown {
    certified: Arc<CertifiedKey>,
    ends: Option<Timestamp>,
}

impl Certificates {
    /// Shows the certificate of this Secret from now on.
    pub(super) fn take(&self, secret: &Secret) -> anyhow::Result<()> {
        let value = |key: &str| {
            let value = secret.data.as_ref().and_then(|data| data.get(key));
            value.map(|value| value.0.as_slice()).with_context(|| format!("the Secret has no {key}"))
        };
        let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(value(certificate::CERTIFICATE)?).collect();
        let chain = chain.context("tls.crt is no certificate")?;
        // The error would show what is there.
        let key = PrivateKeyDer::from_pem_slice(value(certificate::KEY)?).ok().context("tls.key is no private key")?;
        let provider = rustls::crypto::ring::default_provider();
        let certified = CertifiedKey::from_der(chain, key, &provider).context("tls.key is not the key of tls.crt")?;
        let text = std::str::from_utf8(value(certificate::CERTIFICATE)?).unwrap_or_default();
        let shown = Shown { certified: Arc::new(certified), ends: certificate::ends(text) };
        *self.0.write() = Some(shown);
        Ok(())
    }

    /// When the certificate that is shown ends.
    pub(super) fn ends(&self) -> Option<Timestamp> {
        self.0.read().as_ref()?.ends
    }
}

impl fmt::Debug for Certificates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Certificates")
    }
}

impl ResolvesServerCert for Certificates {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.0.read().as_ref()?.certified.clone())
    }
}

/// What a client may take.
#[derive(Clone, Copy, Debug)]
struct Limits {
    handshake: Duration,
    then: asked::Limits,
}

impl Default for Limits {
    fn default() -> Self {
        let seconds = Duration::from_secs;
        // API servers keep connections for 90 s and ask again on one that is about to end here: what they lose then is a
        // request of somebody. They wait 30 s for an answer.
        let then = asked::Limits { first: seconds(10), quiet: seconds(120), whole: seconds(30) };
        Self { handshake: seconds(3), then }
    }
}

/// Serves until `stop`; questions in flight are answered.
pub(super) async fn serve(
    listener: TcpListener,
    certificates: Arc<Certificates>,
    metrics: WebhookMetrics,
    stop: CancellationToken,
) -> anyhow::Result<()> {
    serve_within(listener, certificates, metrics, stop, Limits::default()).await
}

async fn serve_within(
    listener: TcpListener,
    certificates: Arc<Certificates>,
    metrics: WebhookMetrics,
    stop: CancellationToken,
    limits: Limits,
) -> anyhow::Result<()> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .context("failed to set up TLS")?
        .with_no_client_auth()
        .with_cert_resolver(certificates);
    let (acceptor, desk) = (TlsAcceptor::from(Arc::new(config)), Arc::new(Handler::new(metrics)));
    let serve = |stream| {
        let (acceptor, desk, stop) = (acceptor.clone(), desk.clone(), stop.clone());
        async move { connection(stream, &acceptor, desk, &stop, limits).await }
    };
    let mut connections = Places::new(CONNECTIONS, SHARE, KEPT).accept(listener, &stop, serve).await;
    while connections.join_next().await.is_some() {}
    Ok(())
}

/// Answers what is asked on a connection, until its client is slow or gone.
async fn connection(
    stream: TcpStream,
    acceptor: &TlsAcceptor,
    desk: Arc<Handler>,
    stop: &CancellationToken,
    limits: Limits,
) {
    let handshake = tokio::time::timeout(limits.handshake, acceptor.accept(stream));
    let Some(Ok(Ok(stream))) = stop.run_until_cancelled(handshake).await else { return };
    let answer = |request, asked| {
        let desk = desk.clone();
        async move { Ok::<_, Infallible>(desk.answer(request, asked).await) }
    };
    asked::serve(stream, answer, limits.then, Some(BUFFER), stop).await;
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, SocketAddr};

    use futures::future::join_all;
    use rustls::pki_types::ServerName;
    use rustls::{ClientConfig, RootCertStore};
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpSocket;
    use tokio::task::JoinHandle;
    use tokio_rustls::TlsConnector;
    use tokio_rustls::client::TlsStream;
    use tributary::webhook;

    use super::*;
    use crate::identity::shape;

    const FAR: Duration = Duration::from_secs(3600);
    const LONG: Limits = Limits { handshake: FAR, then: ASKS };
    const ASKS: asked::Limits = asked::Limits { first: FAR, quiet: FAR, whole: FAR };
    const STRANGER: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);
    const API_SERVER: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 3);

    struct Server {
        address: SocketAddr,
        client: TlsConnector,
        stop: CancellationToken,
        served: JoinHandle<anyhow::Result<()>>,
    }

    impl Server {
        async fn start(limits: Limits) -> Self {
            let now = Timestamp::now();
            let made = certificate::renewed(None, &["127.0.0.1".to_owned()], now).unwrap().unwrap();
            let values = shape::data(made.expose());
            let mut roots = RootCertStore::empty();
            for authority in CertificateDer::pem_slice_iter(&values[certificate::BUNDLE].0) {
                roots.add(authority.unwrap()).unwrap();
            }
            let certificates = Arc::<Certificates>::default();
            certificates.take(&Secret { data: Some(values), ..Secret::default() }).unwrap();
            let provider = Arc::new(rustls::crypto::ring::default_provider());
            let client = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
            let client = client.with_root_certificates(roots).with_no_client_auth();
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let (address, stop) = (listener.local_addr().unwrap(), CancellationToken::new());
            let served = serve_within(listener, certificates, WebhookMetrics::default(), stop.clone(), limits);
            Self { address, client: Arc::new(client).into(), stop, served: tokio::spawn(served) }
        }

        async fn connect(&self, from: Ipv4Addr) -> TcpStream {
            let socket = TcpSocket::new_v4().unwrap();
            socket.bind((from, 0).into()).unwrap();
            socket.connect(self.address).await.unwrap()
        }

        async fn greet(&self, from: Ipv4Addr) -> TlsStream<TcpStream> {
            let name = ServerName::try_from("127.0.0.1").unwrap();
            self.client.connect(name, self.connect(from).await).await.unwrap()
        }

        /// Asks with something that is no review: it is answered as such.
        async fn is_answered(&self, from: Ipv4Addr) {
            let mut stream = self.greet(from).await;
            let head = format!(
                "POST {} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: 2\r\n\r\n{{}}",
                webhook::PATH
            );
            stream.write_all(head.as_bytes()).await.unwrap();
            let mut answer = String::new();
            let _ = stream.read_to_string(&mut answer).await;
            assert!(answer.starts_with("HTTP/1.1 400 ") && answer.contains("failed to read the review"), "{answer}");
        }

        async fn stop(self) {
            self.stop.cancel();
            self.served.await.unwrap().unwrap();
        }
    }

    /// Waits until the server has ended a connection.
    async fn is_ended(mut stream: impl tokio::io::AsyncRead + Unpin) {
        let mut rest = Vec::new();
        let _ = stream.read_to_end(&mut rest).await;
    }

    #[tokio::test]
    async fn idle_connections_of_one_address_keep_nobody_else_out() {
        let server = Server::start(LONG).await;
        let mut silent = join_all((0..SHARE - 1).map(|_| server.connect(STRANGER))).await;
        // Those before it have their places once this one is served.
        let idle = server.greet(STRANGER).await;
        is_ended(server.connect(STRANGER).await).await;
        server.is_answered(API_SERVER).await;
        silent.pop();
        silent.push(loop {
            // Until it is noticed that one is gone.
            let stream = server.connect(STRANGER).await;
            if tokio::time::timeout(Duration::from_millis(50), stream.readable()).await.is_err() {
                break stream;
            }
        });
        drop((silent, idle));
        server.stop().await;
    }

    #[tokio::test]
    async fn all_places_are_taken_and_the_api_server_is_answered() {
        let server = Server::start(LONG).await;
        let others = [STRANGER, Ipv4Addr::new(127, 0, 0, 4)];
        let silent = join_all(others.iter().flat_map(|from| (0..SHARE).map(|_| server.connect(*from)))).await;
        assert_eq!(silent.len(), CONNECTIONS);
        server.is_answered(API_SERVER).await;
        server.stop().await;
    }

    #[tokio::test]
    async fn who_does_not_greet_ask_or_listen_is_disconnected() {
        let short = Duration::from_millis(50);
        let server = Server::start(Limits { handshake: short, ..LONG }).await;
        join_all((0..SHARE).map(async |_| is_ended(server.connect(STRANGER).await).await)).await;
        server.stop().await;
        let server = Server::start(Limits { then: asked::Limits { first: short, ..ASKS }, ..LONG }).await;
        is_ended(server.greet(STRANGER).await).await;
        server.stop().await;
        let server = Server::start(Limits { then: asked::Limits { whole: short, ..ASKS }, ..LONG }).await;
        let mut stream = server.greet(STRANGER).await;
        let head = format!("POST {} HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\n\r\n", webhook::PATH);
        stream.write_all(head.as_bytes()).await.unwrap();
        is_ended(stream).await;
        server.stop().await;
    }
}
