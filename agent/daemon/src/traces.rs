//! Sends traces as OTLP over HTTP, to whatever `traces.endpoint` names.
//!
//! Nothing waits for it: spans go into a bounded queue, and what does not fit, or cannot be sent, is lost and counted.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use anyhow::Context;
use async_trait::async_trait;
use axum::body::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use opentelemetry::trace::{SpanContext, SpanId, SpanKind, Status, TraceFlags, TraceId, TraceState};
use opentelemetry::{InstrumentationScope, KeyValue};
use opentelemetry_http::{HttpClient, HttpError, Request, Response};
use opentelemetry_otlp::{SpanExporter, WithExportConfig, WithHttpConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::{SpanData, SpanEvents, SpanExporter as _, SpanLinks};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use rustls::RootCertStore;
use rustls_native_certs::{CertificateResult, load_native_certs};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tributary::clock::{Clock, Mono, SystemClock};
use tributary::config::Config;
use tributary::metrics::{Described, Metrics};
use tributary::telemetry::{Span, SpanSink, Traces};

/// Spans that wait to be sent: a few hundred bytes each.
const QUEUE: usize = 4_096;
/// Spans of one request.
const MOST: usize = 512;
/// How long spans are gathered before they are sent.
const GATHER: Duration = Duration::from_secs(1);
/// How long a receiver may take, also at the end of the process.
const TIME_LIMIT: Duration = Duration::from_secs(5);
/// How long the log is silent about more of the same.
const SILENT: Duration = Duration::from_secs(3600);
/// The longest answer of a receiver that is read, in bytes.
const LONGEST_ANSWER: usize = 64 * 1024;

/// Counts spans. Cloning shares the counts.
#[derive(Clone, Debug, Default)]
pub struct TraceMetrics(Family<[(&'static str, &'static str); 1], Counter>);

const SENT: &str = "sent";
const DROPPED: &str = "dropped";
const FAILED: &str = "failed";

const SPANS: Described = Described::counter(
    "trace_spans",
    &[("outcome", &[SENT, DROPPED, FAILED])],
    "Spans of traces that were sent, that were dropped because they came faster than the receiver takes them, and that it \
     did not take",
);

impl TraceMetrics {
    /// What there is.
    pub const DESCRIBED: [Described; 1] = [SPANS];

    /// Registers the counts, all of which are shown from the start.
    fn register(metrics: &Metrics) -> Self {
        let ours = Self::default();
        metrics.register(&SPANS, ours.0.clone());
        for outcome in [SENT, DROPPED, FAILED] {
            ours.add(outcome, 0);
        }
        ours
    }

    fn add(&self, outcome: &'static str, spans: u64) {
        self.0.get_or_create(&[("outcome", outcome)]).inc_by(spans);
    }
}

/// Where spans go, and what sends them until `stop`: nothing without an endpoint, and nothing to `https` where there are no
/// authorities, which the log says. An agent does its work without traces.
///
/// # Errors
/// The endpoint cannot be used.
pub(crate) fn start(
    config: &Config,
    metrics: &Metrics,
    stop: CancellationToken,
) -> anyhow::Result<(Traces, JoinHandle<()>)> {
    trusting(load_native_certs, config, metrics, stop)
}

/// As [`start`], with these authorities.
fn trusting(
    authorities: impl FnOnce() -> CertificateResult,
    config: &Config,
    metrics: &Metrics,
    stop: CancellationToken,
) -> anyhow::Result<(Traces, JoinHandle<()>)> {
    let nowhere = || (Traces::default(), tokio::spawn(std::future::ready(())));
    let Some(endpoint) = &config.traces.endpoint else { return Ok(nowhere()) };
    let mut roots = RootCertStore::empty();
    if endpoint.starts_with("https://") {
        let CertificateResult { certs, errors, .. } = authorities();
        roots.add_parsable_certificates(certs);
        if roots.is_empty() {
            tracing::warn!(
                endpoint,
                ?errors,
                "no traces are sent: there are no authorities to know the receiver by; set SSL_CERT_FILE to a file with \
                 some, in PEM"
            );
            return Ok(nowhere());
        }
    }
    let exporter = exporter(endpoint, roots, config).context("failed to use traces.endpoint")?;
    let (sender, receiver) = mpsc::channel(QUEUE);
    let queue = Arc::new(Waiting { sender, lost: AtomicU64::new(0), counts: TraceMetrics::register(metrics) });
    Ok((Traces::to(queue.clone()), tokio::spawn(send(receiver, queue, exporter, stop))))
}

fn exporter(endpoint: &str, roots: RootCertStore, config: &Config) -> anyhow::Result<SpanExporter> {
    let tls = rustls::ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots)
        .with_no_client_auth();
    let connector = HttpsConnectorBuilder::new().with_tls_config(tls).https_or_http().enable_http1().build();
    let client = Http(Client::builder(TokioExecutor::new()).build(connector));
    let mut exporter = SpanExporter::builder()
        .with_http()
        .with_http_client(client)
        .with_endpoint(url(endpoint))
        .with_timeout(TIME_LIMIT)
        .build()?;
    let mut resource = vec![
        KeyValue::new("service.namespace", "tributary"),
        KeyValue::new("service.version", crate::VERSION),
        KeyValue::new("k8s.cluster.name", config.cluster.name.clone()),
    ];
    if let Some(pod) = crate::pod_name() {
        resource.extend([KeyValue::new("k8s.pod.name", pod.clone()), KeyValue::new("service.instance.id", pod)]);
    }
    let resource = Resource::builder_empty().with_service_name("tributary-agent").with_attributes(resource).build();
    exporter.set_resource(&resource);
    Ok(exporter)
}

/// Where a receiver with this base URL takes spans. Some write the whole of it.
fn url(endpoint: &str) -> String {
    let endpoint = endpoint.trim_end_matches('/');
    format!("{}/v1/traces", endpoint.strip_suffix("/v1/traces").unwrap_or(endpoint))
}

/// The entrance of the queue.
struct Waiting {
    sender: mpsc::Sender<Span>,
    /// Since the last request.
    lost: AtomicU64,
    counts: TraceMetrics,
}

impl SpanSink for Waiting {
    fn record(&self, span: Span) {
        if self.sender.try_send(span).is_err() {
            self.lost.fetch_add(1, Ordering::Relaxed);
            self.counts.add(DROPPED, 1);
        }
    }
}

/// What the log was told of spans that are lost.
#[derive(Default)]
struct Losses {
    /// Since its last line.
    lost: u64,
    told: Option<(Mono, String)>,
}

impl Losses {
    /// More are lost. How many the log has to be told of now, if any: a receiver that is away for long would fill it.
    fn add(&mut self, lost: u64, error: &str, now: Mono) -> Option<u64> {
        self.lost = self.lost.saturating_add(lost);
        let is_told = |(at, before): &(Mono, String)| before == error && now.saturating_since(*at) < SILENT;
        if self.told.as_ref().is_some_and(is_told) {
            return None;
        }
        self.told = Some((now, error.to_owned()));
        Some(std::mem::take(&mut self.lost))
    }

    /// All is sent again. How many were lost that the log was not told of, if it was told of others.
    fn end(&mut self) -> Option<u64> {
        self.told.take().map(|_| std::mem::take(&mut self.lost))
    }
}

async fn send(mut waiting: mpsc::Receiver<Span>, queue: Arc<Waiting>, exporter: SpanExporter, stop: CancellationToken) {
    let (mut losses, clock) = (Losses::default(), SystemClock::start());
    loop {
        let mut batch = Vec::new();
        tokio::select! {
            _ = waiting.recv_many(&mut batch, MOST) => {
                tokio::select! {
                    () = tokio::time::sleep(GATHER) => {}
                    () = stop.cancelled() => {}
                }
            }
            () = stop.cancelled() => {}
        }
        while batch.len() < MOST
            && let Ok(span) = waiting.try_recv()
        {
            batch.push(span);
        }
        if batch.is_empty() && stop.is_cancelled() {
            return;
        }
        let spans = u64::try_from(batch.len()).unwrap_or(u64::MAX);
        let sent = tokio::time::timeout(TIME_LIMIT, exporter.export(batch.into_iter().map(exported).collect())).await;
        let failed = !matches!(sent, Ok(Ok(())));
        let outcome = if failed { FAILED } else { SENT };
        queue.counts.add(outcome, spans);
        let dropped = queue.lost.swap(0, Ordering::Relaxed);
        let error = match sent {
            Ok(Ok(())) if dropped == 0 => {
                if let Some(lost) = losses.end() {
                    tracing::info!(lost, "traces are complete again");
                }
                continue;
            }
            Ok(Ok(())) => "more spans than can be sent".to_owned(),
            Ok(Err(error)) => error.to_string(),
            Err(_) => format!("no answer within {} s", TIME_LIMIT.as_secs()),
        };
        let lost = dropped.saturating_add(if failed { spans } else { 0 });
        if let Some(lost) = losses.add(lost, &error, clock.mono()) {
            tracing::warn!(error, lost, "traces are not complete");
        }
        if failed && stop.is_cancelled() {
            return;
        }
    }
}

fn exported(span: Span) -> SpanData {
    let Span { name, context, parent, start, end, attributes } = span;
    let flags = if context.is_sampled() { TraceFlags::SAMPLED } else { TraceFlags::default() };
    SpanData {
        span_context: SpanContext::new(
            TraceId::from_bytes(context.trace_id()),
            SpanId::from_bytes(context.span_id()),
            flags,
            false,
            TraceState::default(),
        ),
        parent_span_id: parent.map_or(SpanId::INVALID, |parent| SpanId::from_bytes(parent.span_id())),
        parent_span_is_remote: false,
        span_kind: SpanKind::Internal,
        name: name.into(),
        start_time: SystemTime::from(start),
        end_time: SystemTime::from(end),
        attributes: attributes.into_iter().map(|(name, value)| KeyValue::new(name, value)).collect(),
        dropped_attributes_count: 0,
        events: SpanEvents::default(),
        links: SpanLinks::default(),
        status: Status::Unset,
        instrumentation_scope: InstrumentationScope::builder("tributary").with_version(crate::VERSION).build(),
    }
}

/// The client of the exporter.
#[derive(Debug)]
struct Http(Client<HttpsConnector<HttpConnector>, Full<Bytes>>);

#[async_trait]
impl HttpClient for Http {
    async fn send_bytes(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let (head, body) = self.0.request(request.map(Full::new)).await?.into_parts();
        let body = Limited::new(body, LONGEST_ANSWER).collect().await?.to_bytes();
        Ok(Response::from_parts(head, body))
    }
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use rustls::pki_types::PrivateKeyDer;
    use rustls_native_certs::load_certs_from_paths;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;
    use tokio_rustls::TlsAcceptor;
    use tributary::telemetry::TraceContext;

    use super::*;

    fn span() -> Span {
        let now = Timestamp::UNIX_EPOCH;
        Span::part(&TraceContext::about(&["test"]), "step", now, now)
    }

    fn sending_to(endpoint: &str) -> Config {
        Config::from_toml(&format!("[cluster]\nname = \"east\"\n[traces]\nendpoint = \"{endpoint}\"")).unwrap()
    }

    #[tokio::test]
    async fn spans_that_do_not_arrive_are_counted() {
        let metrics = Metrics::default();
        let (sender, _receiver) = mpsc::channel(1);
        let full = Waiting { sender, lost: AtomicU64::new(0), counts: TraceMetrics::register(&metrics) };
        (0..3).for_each(|_| full.record(span()));
        let text = metrics.text();
        assert!(text.contains("tributary_trace_spans_total{outcome=\"dropped\"} 2"), "{text}");

        let (metrics, stop) = (Metrics::default(), CancellationToken::new());
        // Nobody listens on a port that has just been let go.
        let nobody = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let (traces, sending) = start(&sending_to(&format!("http://{nobody}")), &metrics, stop.clone()).unwrap();
        traces.record([span()]);
        stop.cancel();
        sending.await.unwrap();
        let text = metrics.text();
        assert!(text.contains("tributary_trace_spans_total{outcome=\"failed\"} 1"), "{text}");
        assert!(text.contains("tributary_trace_spans_total{outcome=\"sent\"} 0"), "{text}");
    }

    /// The danger: a receiver that is away for a day, and a line of the log for each second of it.
    #[test]
    fn the_log_is_told_of_losses_once_and_then_once_an_hour() {
        let mut losses = Losses::default();
        let mut add = |lost, error, secs| losses.add(lost, error, Mono::from_start(Duration::from_secs(secs)));
        assert_eq!(add(3, "refused", 0), Some(3));
        assert_eq!([add(4, "refused", 1), add(5, "refused", 3599)], [None, None]);
        assert_eq!(add(1, "refused", 3600), Some(10), "all since the last line");
        assert_eq!([add(2, "refused", 3601), add(2, "no answer", 3602)], [None, Some(4)]);
        assert_eq!((3603..90_003).filter_map(|secs| add(1, "no answer", secs)).count(), 24);
        let untold = losses.lost;
        assert_eq!([losses.end(), losses.end()], [Some(untold), None]);
    }

    #[test]
    fn the_path_is_there_once() {
        for endpoint in ["http://c:4318", "http://c:4318/", "http://c:4318/v1/traces", "http://c:4318/v1/traces/"] {
            assert_eq!(url(endpoint), "http://c:4318/v1/traces", "{endpoint}");
        }
        assert_eq!(url("https://c/otlp"), "https://c/otlp/v1/traces");
    }

    /// The image is empty, and may have none.
    #[tokio::test]
    async fn without_authorities_the_agent_goes_on_without_traces() {
        let (metrics, stop) = (Metrics::default(), CancellationToken::new());
        let config = sending_to("https://collector.example:4318");
        let (traces, sending) = trusting(CertificateResult::default, &config, &metrics, stop).unwrap();
        traces.record([span()]);
        sending.await.unwrap();
        assert!(!metrics.text().contains("tributary_trace_spans"), "{}", metrics.text());
    }

    #[tokio::test]
    async fn spans_are_sent_by_tls_to_whom_the_authorities_vouch_for() {
        let issued = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap();
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), issued.cert.pem()).unwrap();
        let key = PrivateKeyDer::Pkcs8(issued.signing_key.serialize_der().into());
        let server = rustls::ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![issued.cert.der().clone()], key)
            .unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let endpoint = format!("https://{}", listener.local_addr().unwrap());
        let receiver = tokio::spawn(async move {
            let (stream, _) = listener.accept().await.unwrap();
            let mut stream = TlsAcceptor::from(Arc::new(server)).accept(stream).await.unwrap();
            let mut request = vec![0; 64 * 1024];
            let read = stream.read(&mut request).await.unwrap();
            stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").await.unwrap();
            // Not dropped before the answer is read.
            (String::from_utf8_lossy(&request[..read]).into_owned(), stream)
        });
        let (metrics, stop) = (Metrics::default(), CancellationToken::new());
        // What SSL_CERT_FILE does.
        let authorities = || load_certs_from_paths(Some(file.path()), None);
        let (traces, sending) = trusting(authorities, &sending_to(&endpoint), &metrics, stop.clone()).unwrap();
        traces.record([span()]);
        stop.cancel();
        sending.await.unwrap();
        let text = metrics.text();
        assert!(text.contains("tributary_trace_spans_total{outcome=\"sent\"} 1"), "{text}");
        assert!(receiver.await.unwrap().0.starts_with("POST /v1/traces HTTP/1.1\r\n"));
    }
}
