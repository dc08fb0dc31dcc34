//! A receiver of traces, as agents send them: OTLP over HTTP.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::post;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::{KeyValue, any_value};
use prost::Message;

type Spans = Arc<Mutex<Vec<Received>>>;

/// Keeps every span that is sent to it, as long as the process lives.
pub struct Collector {
    /// Where it listens.
    pub endpoint: String,
    spans: Spans,
}

/// A span; ids are hexadecimal.
#[derive(Clone, Debug)]
pub struct Received {
    /// The cluster whose agent sent it.
    pub cluster: String,
    /// What it is.
    pub name: String,
    /// Id of its trace.
    pub trace: String,
    /// Its id.
    pub id: String,
    /// What it is a part of; empty: of nothing.
    pub parent: String,
    /// Nanoseconds since the epoch.
    pub start: u64,
    /// See `start`.
    pub end: u64,
    attributes: BTreeMap<String, String>,
}

impl Received {
    /// An attribute; empty if there is none of this name.
    pub fn attribute(&self, name: &str) -> &str {
        self.attributes.get(name).map(String::as_str).unwrap_or_default()
    }
}

impl Collector {
    /// Listens on loopback, on a thread of its own: tests come and go.
    ///
    /// # Errors
    /// There is no free port.
    pub fn start() -> anyhow::Result<Self> {
        let listener = std::net::TcpListener::bind("127.0.0.1:0")?;
        listener.set_nonblocking(true)?;
        let endpoint = format!("http://{}", listener.local_addr()?);
        let spans = Spans::default();
        let router = Router::new().route("/v1/traces", post(take)).with_state(spans.clone());
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        std::thread::spawn(move || {
            runtime.block_on(async {
                let listener = tokio::net::TcpListener::from_std(listener).expect("it does not block");
                axum::serve(listener, router).await
            })
        });
        Ok(Self { endpoint, spans })
    }

    /// What has arrived so far.
    pub fn spans(&self) -> Vec<Received> {
        self.spans.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

async fn take(State(spans): State<Spans>, body: Bytes) -> (StatusCode, Vec<u8>) {
    let Ok(request) = ExportTraceServiceRequest::decode(body) else { return (StatusCode::BAD_REQUEST, Vec::new()) };
    let mut kept = spans.lock().unwrap_or_else(PoisonError::into_inner);
    for of_agent in request.resource_spans {
        let resource = texts(of_agent.resource.map(|resource| resource.attributes).unwrap_or_default());
        let cluster = resource.get("k8s.cluster.name").cloned().unwrap_or_default();
        for span in of_agent.scope_spans.into_iter().flat_map(|scope| scope.spans) {
            kept.push(Received {
                cluster: cluster.clone(),
                name: span.name,
                trace: hex(&span.trace_id),
                id: hex(&span.span_id),
                parent: hex(&span.parent_span_id),
                start: span.start_time_unix_nano,
                end: span.end_time_unix_nano,
                attributes: texts(span.attributes),
            });
        }
    }
    // An empty message: everything was taken.
    (StatusCode::OK, Vec::new())
}

fn texts(attributes: Vec<KeyValue>) -> BTreeMap<String, String> {
    let text = |attribute: KeyValue| match attribute.value?.value? {
        any_value::Value::StringValue(text) => Some((attribute.key, text)),
        _ => None,
    };
    attributes.into_iter().filter_map(text).collect()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
