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
use jiff::Timestamp;
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

use super::metrics::{Answered, WebhookMetrics};

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
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = Some(shown);
        Ok(())
    }

    /// When the certificate that is shown ends.
    pub(super) fn ends(&self) -> Option<Timestamp> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).as_ref()?.ends
    }
}

impl fmt::Debug for Certificates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Certificates")
    }
}

impl ResolvesServerCert for Certificates {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.0.read().unwrap_or_else(PoisonError::into_inner).as_ref()?.certified.clone())
    }
}

/// What each question needs.
struct Desk {
    turns: Semaphore,
    metrics: WebhookMetrics,
}

/// Serves until `stop`; questions in flight are answered.
pub(super) async fn serve(
    listener: TcpListener,
    certificates: Arc<Certificates>,
    metrics: WebhookMetrics,
    stop: CancellationToken,
) -> anyhow::Result<()> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .context("failed to set up TLS")?
        .with_no_client_auth()
        .with_cert_resolver(certificates);
    let listener = TlsListener { listener, acceptor: Arc::new(config).into(), handshakes: JoinSet::new() };
    let desk = Arc::new(Desk { turns: Semaphore::new(AT_ONCE), metrics });
    let router = Router::new().route(webhook::PATH, post(convert)).with_state(desk);
    Ok(axum::serve(listener, router).with_graceful_shutdown(stop.cancelled_owned()).await?)
}

async fn convert(State(desk): State<Arc<Desk>>, request: Request) -> Response {
    let Ok(_turn) = desk.turns.acquire().await else { return StatusCode::SERVICE_UNAVAILABLE.into_response() };
    let (how, response) = answered(request).await;
    desk.metrics.answered(how);
    response
}

async fn answered(request: Request) -> (Answered, Response) {
    let refused = |response: Response| (Answered::Refused, response);
    let body = tokio::time::timeout(PATIENCE, axum::body::to_bytes(request.into_body(), LARGEST)).await;
    let body = match body {
        Ok(Ok(body)) => body,
        Ok(Err(_)) => {
            return refused((StatusCode::PAYLOAD_TOO_LARGE, format!("more than {LARGEST} bytes\n")).into_response());
        }
        Err(_) => return refused(StatusCode::REQUEST_TIMEOUT.into_response()),
    };
    match tokio::task::spawn_blocking(move || answer(&body)).await {
        Ok(Ok((how, answer))) => (how, ([(header::CONTENT_TYPE, "application/json")], answer).into_response()),
        Ok(Err(error)) => refused((StatusCode::BAD_REQUEST, format!("{error:#}\n")).into_response()),
        Err(_) => (Answered::Failed, StatusCode::INTERNAL_SERVER_ERROR.into_response()),
    }
}

fn answer(body: &Bytes) -> anyhow::Result<(Answered, Vec<u8>)> {
    let answer = webhook::review(serde_json::from_slice(body).context("failed to read JSON")?)?;
    let mut how = Answered::Converted;
    if let Some(message) = answer.pointer("/response/result/message").and_then(serde_json::Value::as_str) {
        tracing::warn!(message, "a conversion failed");
        how = Answered::Failed;
    }
    Ok((how, serde_json::to_vec(&answer)?))
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

#[cfg(test)]
mod tests {
    use axum::body::Body;
    use serde_json::{Value, json};

    use super::*;

    async fn asked(body: String) -> (Answered, StatusCode) {
        let (how, response) = answered(Request::new(Body::from(body))).await;
        (how, response.status())
    }

    #[tokio::test]
    async fn each_answer_is_of_its_kind() {
        let review = |version: &str| -> Value {
            let object = json!({"apiVersion": version, "kind": "MiniCluster", "metadata": {"name": "lake"},
                "spec": {"containers": [{"image": "x"}]}});
            json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "ConversionReview", "request":
                {"uid": "7", "desiredAPIVersion": "flux-framework.org/v1alpha2", "objects": [object]}})
        };
        let known = review("flux-framework.org/v1alpha1").to_string();
        assert_eq!(asked(known).await, (Answered::Converted, StatusCode::OK));
        let unknown = review("flux-framework.org/v1beta1").to_string();
        assert_eq!(asked(unknown).await, (Answered::Failed, StatusCode::OK));
        for other in ["", "{}", "no JSON"] {
            assert_eq!(asked(other.to_owned()).await, (Answered::Refused, StatusCode::BAD_REQUEST), "{other}");
        }
    }
}
