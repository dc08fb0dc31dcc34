//! HTTPS for the API server. No client shows a certificate: what is asked here says nothing that the asker does not say
//! first, and changes nothing.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use anyhow::Context;
use axum::Router;
use axum::body::Bytes;
use axum::extract::{Request, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use k8s_openapi::api::core::v1::Secret;
use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tokio_util::sync::CancellationToken;
use tributary::webhook::{self, certificate};

/// Largest review: an API server that fills a cache asks for thousands of objects at once.
const LARGEST: usize = 64 * 1024 * 1024;
/// Reviews at one time; others wait. With [`LARGEST`], it bounds the memory that askers can take.
const AT_ONCE: usize = 4;
/// Handshakes at one time.
const HANDSHAKES: usize = 64;
/// What a client may take for its handshake, and then for its question. API servers wait 30 s for an answer.
const PATIENCE: Duration = Duration::from_secs(10);
/// After an error to accept, which is one of this process: too many open files.
const PAUSE: Duration = Duration::from_secs(1);

/// The certificate that is shown now; none at first.
#[derive(Default)]
pub(super) struct Certificates(RwLock<Option<Arc<CertifiedKey>>>);

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
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(certified));
        Ok(())
    }
}

impl fmt::Debug for Certificates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Certificates")
    }
}

impl ResolvesServerCert for Certificates {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Serves until `stop`; questions in flight are answered.
pub(super) async fn serve(
    listener: TcpListener,
    certificates: Arc<Certificates>,
    stop: CancellationToken,
) -> anyhow::Result<()> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .context("failed to set up TLS")?
        .with_no_client_auth()
        .with_cert_resolver(certificates);
    let listener = TlsListener { listener, acceptor: Arc::new(config).into(), handshakes: JoinSet::new() };
    let router = Router::new().route(webhook::PATH, post(convert)).with_state(Arc::new(Semaphore::new(AT_ONCE)));
    Ok(axum::serve(listener, router).with_graceful_shutdown(stop.cancelled_owned()).await?)
}

async fn convert(State(turns): State<Arc<Semaphore>>, request: Request) -> Response {
    let Ok(_turn) = turns.acquire().await else { return StatusCode::SERVICE_UNAVAILABLE.into_response() };
    let body = tokio::time::timeout(PATIENCE, axum::body::to_bytes(request.into_body(), LARGEST)).await;
    let body = match body {
        Ok(Ok(body)) => body,
        Ok(Err(_)) => return (StatusCode::PAYLOAD_TOO_LARGE, format!("more than {LARGEST} bytes\n")).into_response(),
        Err(_) => return StatusCode::REQUEST_TIMEOUT.into_response(),
    };
    match tokio::task::spawn_blocking(move || answer(&body)).await {
        Ok(Ok(answer)) => ([(header::CONTENT_TYPE, "application/json")], answer).into_response(),
        Ok(Err(error)) => (StatusCode::BAD_REQUEST, format!("{error:#}\n")).into_response(),
        Err(_) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}

fn answer(body: &Bytes) -> anyhow::Result<Vec<u8>> {
    let answer = webhook::review(serde_json::from_slice(body).context("failed to read JSON")?)?;
    if let Some(message) = answer.pointer("/response/result/message").and_then(serde_json::Value::as_str) {
        tracing::warn!(message, "a conversion failed");
    }
    Ok(serde_json::to_vec(&answer)?)
}

/// TCP with TLS on top. A client that is slow in its handshake keeps nobody waiting.
struct TlsListener {
    listener: TcpListener,
    acceptor: TlsAcceptor,
    handshakes: JoinSet<Option<(TlsStream<TcpStream>, SocketAddr)>>,
}

impl axum::serve::Listener for TlsListener {
    type Io = TlsStream<TcpStream>;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Self::Io, Self::Addr) {
        loop {
            tokio::select! {
                accepted = self.listener.accept(), if self.handshakes.len() < HANDSHAKES => match accepted {
                    Ok((stream, address)) => {
                        let handshake = tokio::time::timeout(PATIENCE, self.acceptor.accept(stream));
                        self.handshakes.spawn(async move { Some((handshake.await.ok()?.ok()?, address)) });
                    }
                    Err(error) => {
                        tracing::warn!(%error, "failed to accept a connection to the webhook");
                        tokio::time::sleep(PAUSE).await;
                    }
                },
                Some(done) = self.handshakes.join_next() => {
                    if let Ok(Some(connection)) = done {
                        return connection;
                    }
                }
            }
        }
    }

    fn local_addr(&self) -> io::Result<Self::Addr> {
        self.listener.local_addr()
    }
}
