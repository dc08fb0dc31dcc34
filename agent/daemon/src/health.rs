//! `/livez`, `/readyz` and `/metrics`.
//!
//! Liveness is dumb: the process answers. Readiness names what is waited for, so that `kubectl describe` shows it. A
//! standby is ready: it has warm caches and takes over by itself.

use std::io::ErrorKind;
use std::net::{Ipv4Addr, SocketAddr};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use axum::routing::get;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;
use tributary::cluster::readiness::Readiness;
use tributary::metrics::Metrics;

use crate::places::Places;

/// Connections at one time: a probe, a scraper, and few besides. Anybody who reaches the port may open some.
const CONNECTIONS: usize = 256;
/// Connections from one address.
const SHARE: usize = 32;
/// From the beginning of a connection, and from each answer, to the end of the head of the next question.
const QUIET: Duration = Duration::from_secs(30);
/// For questions in flight when the agent stops.
const LAST: Duration = Duration::from_secs(2);

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
    let mut connections = Places::new(CONNECTIONS, SHARE)
        .accept(listener, &cancel, |stream| connection(stream, router.clone(), cancel.clone()))
        .await;
    let rest = async { while connections.join_next().await.is_some() {} };
    // Those that are left are dropped.
    let _ = tokio::time::timeout(LAST, rest).await;
    Ok(())
}

async fn connection(stream: TcpStream, router: Router, cancel: CancellationToken) {
    let served = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(QUIET)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(router));
    let mut served = pin!(served);
    tokio::select! {
        _ = served.as_mut() => return,
        () = cancel.cancelled() => served.as_mut().graceful_shutdown(),
    }
    let _ = served.await;
}

#[cfg(test)]
mod tests {
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
            use tokio::io::{AsyncReadExt, AsyncWriteExt};
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
        use tokio::io::{AsyncReadExt, AsyncWriteExt};
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
        let ended = tokio::time::timeout(QUIET / 2, server).await.expect("it waits for those that are slow");
        ended.unwrap().unwrap();
    }
}
