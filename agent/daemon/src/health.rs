//! `/livez`, `/readyz` and `/metrics`.
//!
//! Liveness is dumb: the process answers. Readiness names what is waited for, so that `kubectl describe` shows it. A
//! standby is ready: it has warm caches and takes over by itself.

use std::io::ErrorKind;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use axum::routing::get;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tributary::cluster::readiness::Readiness;
use tributary::metrics::Metrics;

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

/// Serves `router` on `listener` until `cancel`; requests in flight are answered.
pub(crate) async fn serve(listener: TcpListener, router: Router, cancel: CancellationToken) -> std::io::Result<()> {
    axum::serve(listener, router).with_graceful_shutdown(cancel.cancelled_owned()).await
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
}
