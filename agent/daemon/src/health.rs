//! `/livez`, `/readyz` and `/metrics`.
//!
//! Liveness is dumb: the process answers. Readiness names what is waited for, so that `kubectl describe` shows it. A
//! standby is ready: it has warm caches and takes over by itself.

use std::io::ErrorKind;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::to_bytes;
use axum::extract::State;
use axum::http::{Request, Response, StatusCode, header};
use axum::response::IntoResponse;
use axum::routing::get;
use bytes::Bytes;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::service::Service;
use hyper_util::service::TowerToHyperService;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tributary::cluster::readiness::Readiness;
use tributary::metrics::Metrics;

use crate::asked::{self, Asked, Limits};
use crate::places::Places;

/// Connections at one time: a probe, a scraper, and few besides. Anybody who reaches the port may open some.
const CONNECTIONS: usize = 256;
/// Connections from one address.
const SHARE: usize = 32;
/// For questions in flight when the agent stops.
const LAST: Duration = Duration::from_secs(2);

const LIMITS: Limits = Limits {
    first: Duration::from_secs(30),
    quiet: Duration::from_secs(30),
    // Prometheus waits 10 s for an answer, if it is told nothing else.
    whole: Duration::from_secs(30),
};

#[derive(Clone)]
struct Health {
    readiness: Readiness,
    metrics: Arc<Metrics>,
}

/// Listens on `address`; on IPv4 alone if it is `[::]` and the machine has no IPv6.
pub(crate) async fn listen(address: SocketAddr) -> std::io::Result<TcpListener> {
    let everywhere = address.is_ipv6() && address.ip().is_unspecified();
    match TcpListener::bind(address).await {
        Err(error) if everywhere && error.kind() != ErrorKind::AddrInUse => {
            TcpListener::bind((Ipv4Addr::UNSPECIFIED, address.port())).await.map_err(|_| error)
        }
        outcome => outcome,
    }
}

/// The three endpoints.
pub(crate) fn router(readiness: Readiness, metrics: Arc<Metrics>) -> Router {
    Router::new()
        .route("/livez", get(|| async { "ok\n" }))
        .route("/readyz", get(readyz))
        .route("/metrics", get(metrics_text))
        .with_state(Health { readiness, metrics })
}

async fn readyz(State(health): State<Health>) -> impl IntoResponse {
    let waiting = health.readiness.waiting();
    if waiting.is_empty() {
        return (StatusCode::OK, "ok\n".to_owned());
    }
    let lines = waiting.iter().map(|(part, reason)| format!("{part}: {reason}\n")).collect();
    (StatusCode::SERVICE_UNAVAILABLE, lines)
}

async fn metrics_text(State(health): State<Health>) -> impl IntoResponse {
    const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    ([(header::CONTENT_TYPE, OPEN_METRICS)], health.metrics.text())
}

/// Serves `router` on `listener` until `cancel`; requests in flight are answered, unless their clients are slow.
pub(crate) async fn serve(listener: TcpListener, router: Router, cancel: CancellationToken) -> std::io::Result<()> {
    serve_within(listener, router, cancel, LIMITS).await
}

async fn serve_within(
    listener: TcpListener,
    router: Router,
    cancel: CancellationToken,
    limits: Limits,
) -> std::io::Result<()> {
    let serve = |stream| {
        let (router, cancel) = (router.clone(), cancel.clone());
        async move {
            let answer = |request, asked| answer(router.clone(), request, asked);
            asked::serve(stream, answer, limits, None, &cancel).await;
        }
    };
    let mut connections = Places::new(CONNECTIONS, SHARE, 0).accept(listener, &cancel, serve).await;
    let rest = async { while connections.join_next().await.is_some() {} };
    // Those that are left are dropped.
    let _ = tokio::time::timeout(LAST, rest).await;
    Ok(())
}

/// An answer, and that somebody waits until it is sent.
struct Held {
    text: Bytes,
    _asked: Asked,
}

impl AsRef<[u8]> for Held {
    fn as_ref(&self) -> &[u8] {
        &self.text
    }
}

async fn answer(
    router: Router,
    request: Request<Incoming>,
    asked: Asked,
) -> Result<Response<Full<Bytes>>, axum::Error> {
    let answered = TowerToHyperService::new(router).call(request).await.map_err(axum::Error::new)?;
    let (head, body) = answered.into_parts();
    let text = to_bytes(body, usize::MAX).await?;
    Ok(Response::from_parts(head, Full::new(Bytes::from_owner(Held { text, _asked: asked }))))
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::{TcpSocket, TcpStream};

    use super::*;

    #[tokio::test]
    async fn readiness_names_who_waits_for_what() {
        let readiness = Readiness::default();
        readiness.waits("crds", "MiniCluster is not established");
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let cancel = CancellationToken::new();
        let router = router(readiness.clone(), Arc::default());
        let server = tokio::spawn(serve(listener, router, cancel.clone()));
        let ask = |path: &'static str| async move {
            let mut stream = tokio::net::TcpStream::connect(address).await.unwrap();
            let request = format!("GET {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
            stream.write_all(request.as_bytes()).await.unwrap();
            let mut answer = String::new();
            stream.read_to_string(&mut answer).await.unwrap();
            answer
        };
        let waiting = ask("/readyz").await;
        assert!(waiting.starts_with("HTTP/1.1 503") && waiting.contains("crds: MiniCluster is not established"));
        assert!(ask("/livez").await.starts_with("HTTP/1.1 200"));
        readiness.done("crds");
        assert!(ask("/readyz").await.starts_with("HTTP/1.1 200"));
        assert!(ask("/metrics").await.contains("# EOF"));
        cancel.cancel();
        server.await.unwrap().unwrap();
    }

    /// The dangers: anybody who reaches the port takes the agent's memory, or keeps it from ending.
    #[tokio::test]
    async fn a_client_has_its_share_and_a_slow_one_does_not_hold_up_the_end() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let cancel = CancellationToken::new();
        let server = tokio::spawn(serve(listener, router(Readiness::default(), Arc::default()), cancel.clone()));
        let mut open = Vec::new();
        for _ in 0..SHARE {
            let mut stream = TcpStream::connect(address).await.unwrap();
            stream.write_all(b"GET /livez HTT").await.unwrap();
            open.push(stream);
        }
        let mut one_more = TcpStream::connect(address).await.unwrap();
        // It may be closed already.
        let _ = one_more.write_all(b"GET /livez HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").await;
        assert_eq!(one_more.read(&mut [0]).await.unwrap_or(0), 0, "it has an answer");
        cancel.cancel();
        let ended = tokio::time::timeout(LIMITS.quiet / 2, server).await.expect("it waits for those that are slow");
        ended.unwrap().unwrap();
    }

    async fn connect(address: SocketAddr, from: u8) -> TcpStream {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind((Ipv4Addr::new(127, 0, 0, from), 0).into()).unwrap();
        socket.connect(address).await.unwrap()
    }

    /// The danger: some pods take all places, the kubelet is refused, and ends the agent.
    #[tokio::test]
    async fn all_places_are_taken_and_the_kubelet_is_answered() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (address, cancel) = (listener.local_addr().unwrap(), CancellationToken::new());
        let server = tokio::spawn(serve(listener, router(Readiness::default(), Arc::default()), cancel.clone()));
        let mut open = Vec::new();
        for from in 2..10 {
            for _ in 0..SHARE {
                let mut stream = connect(address, from).await;
                stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n").await.unwrap();
                open.push(stream);
            }
        }
        assert_eq!(open.len(), CONNECTIONS);
        let mut kubelet = connect(address, 10).await;
        kubelet.write_all(b"GET /livez HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").await.unwrap();
        let mut answer = String::new();
        let _ = kubelet.read_to_string(&mut answer).await;
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer:?}");
        cancel.cancel();
        server.await.unwrap().unwrap();
    }

    #[tokio::test]
    async fn who_does_not_take_an_answer_is_disconnected() {
        let far = Duration::from_secs(3600);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (address, cancel) = (listener.local_addr().unwrap(), CancellationToken::new());
        // More than the buffers of two sockets hold.
        let large = Router::new().route("/metrics", get(|| async { vec![b' '; 64 << 20] }));
        let limits = Limits { first: far, quiet: far, whole: Duration::from_millis(50) };
        let server = tokio::spawn(serve_within(listener, large, cancel.clone(), limits));
        let mut stream = connect(address, 2).await;
        stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n").await.unwrap();
        let ended = async {
            // It is said to who writes; who reads would take the answer.
            while stream.write_all(b"G").await.is_ok() {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(10), ended).await.expect("it may take as long as it likes");
        cancel.cancel();
        server.await.unwrap().unwrap();
    }
}
