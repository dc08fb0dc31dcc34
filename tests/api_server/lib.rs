//! An API server in memory, for tests and simulations: real controllers run on it, by way of a real `kube` client.
//!
//! It keeps JSON objects of any kind by the path of their URL, and has what controllers depend on: resource versions,
//! conflicts, watches, server-side apply, finalizers, and a [garbage collector](ApiServer::collect_garbage) that works
//! when it is told to. It has no schemas: nothing is validated, pruned or defaulted. [`ApiServer::on_write`] stands in
//! for what a simulation needs of that, such as the port of a Service. It has no RBAC, it converts no versions, and
//! namespaces need not exist.
//!
//! It asks no clock but tokio's and its own, and leaves nothing to chance: the same requests in the same order have the
//! same answers. [`Fault`]s come from a hook or a script.

mod apply;
mod collector;
mod delete;
mod faults;
mod fields;
mod objects;
mod read;
mod request;
mod select;
mod store;
mod watch;
mod write;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures::future::BoxFuture;
use http::{Request, Response};
use http_body_util::{BodyExt, Full, StreamBody};
use kube::client::{Body, DynBody};
use kube::core::Status;
use parking_lot::Mutex;
use serde_json::Value;
use tokio::sync::watch as news;
use tower::{BoxError, Service};
use tributary_clock::SharedClock;

pub use faults::{Away, Backup, Fault};
pub use request::RequestInfo;
pub use store::Write;

use faults::Faults;
use request::{Outcome, bad_request, body};
use store::Store;
use watch::Watch;
use write::Granted;

/// An API server. Cloning shares it.
#[derive(Clone)]
pub struct ApiServer {
    shared: Arc<Shared>,
}

struct Shared {
    /// Locked after `faults`, if both are.
    store: Mutex<Store>,
    faults: Mutex<Faults>,
    /// By resource: its watches have something to look at.
    changed: Mutex<BTreeMap<String, news::Sender<()>>>,
}

impl ApiServer {
    /// An API server without objects. Its name makes its UIDs differ from those of others.
    pub fn new(name: &str, clock: SharedClock) -> Self {
        let store = Mutex::new(Store::new(name, clock));
        Self { shared: Arc::new(Shared { store, faults: Mutex::default(), changed: Mutex::default() }) }
    }

    /// Wakes all watches.
    fn tell(&self) {
        self.shared.changed.lock().values().for_each(|watches| watches.send_replace(()));
    }

    /// Wakes the watches of what was changed since a version.
    fn tell_since(&self, store: &Store, version: u64) {
        let later = store.history.iter().rev().take_while(|event| event.version > version);
        let resources: BTreeSet<&str> = later.map(|event| event.key.resource.as_str()).collect();
        let changed = self.shared.changed.lock();
        resources.iter().filter_map(|one| changed.get(*one)).for_each(|watches| watches.send_replace(()));
    }

    /// Wakes a watch of a resource.
    fn news_of(&self, resource: &str) -> news::Receiver<()> {
        self.shared.changed.lock().entry(resource.to_owned()).or_default().subscribe()
    }

    fn execute(&self, info: &RequestInfo, body: Value, stale: Option<u64>) -> Outcome<Granted> {
        let version = self.read_version(info, stale);
        let mut store = self.shared.store.lock();
        let before = store.version;
        let granted = store.execute(info, body, version);
        self.tell_since(&store, before);
        granted
    }

    /// Which state a read shows.
    fn read_version(&self, info: &RequestInfo, stale: Option<u64>) -> u64 {
        let lag = self.shared.faults.lock().lag.get(&info.resource).copied();
        let exactly = info.parameter("resourceVersion").filter(|_| info.is("resourceVersionMatch", "Exact"));
        let any = info.is("resourceVersion", "0") || info.verb == "watch";
        let version = stale.or_else(|| exactly.and_then(|text| text.parse().ok())).or(lag.filter(|_| any));
        version.unwrap_or_else(|| self.version())
    }

    async fn answer(self, request: Request<Body>) -> Result<Response<Box<DynBody>>, BoxError> {
        let (head, body) = request.into_parts();
        let info = RequestInfo::of(&head);
        let bytes = body.collect().await?.to_bytes();
        let fault = self.fault(&info);
        match fault {
            Some(Fault::Break) => return Err(broken()),
            Some(Fault::Silence) => std::future::pending().await,
            Some(Fault::Answer(404)) => return Ok(response(404, "404 page not found\n".to_owned())),
            Some(Fault::Answer(code)) => return Ok(refusal(&info.refused(code, reason(code), "an injected fault"))),
            _ => {}
        }
        let stale = if let Some(Fault::Stale(version)) = fault { Some(version) } else { None };
        if info.verb == "watch" {
            match fault {
                Some(Fault::LoseAnswer) => return Err(broken()),
                Some(Fault::DelayAnswer(time) | Fault::Late(time)) => tokio::time::sleep(time).await,
                _ => {}
            }
            let version = self.read_version(&info, stale);
            return Ok(match Watch::begin(&self, info, version) {
                Ok(watch) => Response::new(Box::new(StreamBody::new(watch.lines()))),
                Err(refused) => refusal(&refused),
            });
        }
        let value = match &*bytes {
            [] => Ok(Value::Null),
            bytes => serde_json::from_slice(bytes),
        };
        let value = match value {
            Ok(value) => value,
            Err(error) => return Ok(refusal(&bad_request(error.to_string()))),
        };
        let outcome = match fault {
            Some(Fault::Late(late)) => {
                let work = async move {
                    tokio::time::sleep(late).await;
                    self.execute(&info, value, stale)
                };
                tokio::spawn(work).await?
            }
            _ => self.execute(&info, value, stale),
        };
        match fault {
            Some(Fault::LoseAnswer) => return Err(broken()),
            Some(Fault::DelayAnswer(time)) => tokio::time::sleep(time).await,
            _ => {}
        }
        Ok(match outcome {
            Ok(granted) => response(granted.code, granted.body.to_string()),
            Err(refused) => refusal(&refused),
        })
    }
}

impl Service<Request<Body>> for ApiServer {
    type Response = Response<Box<DynBody>>;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<Self::Response, BoxError>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        Box::pin(self.clone().answer(request))
    }
}

fn response(code: u16, text: String) -> Response<Box<DynBody>> {
    let body: Box<DynBody> = Box::new(Full::new(bytes::Bytes::from(text)).map_err(|never| match never {}));
    let mut response = Response::new(body);
    *response.status_mut() = http::StatusCode::from_u16(code).unwrap_or(http::StatusCode::INTERNAL_SERVER_ERROR);
    response
}

fn refusal(status: &Status) -> Response<Box<DynBody>> {
    response(status.code, body(status).to_string())
}

/// What a client sees of a connection that breaks.
fn broken() -> BoxError {
    io::Error::from(io::ErrorKind::ConnectionReset).into()
}

/// Kubernetes' reasons of codes.
fn reason(code: u16) -> &'static str {
    match code {
        400 => "BadRequest",
        401 => "Unauthorized",
        403 => "Forbidden",
        409 => "Conflict",
        410 => "Expired",
        422 => "Invalid",
        429 => "TooManyRequests",
        503 => "ServiceUnavailable",
        504 => "Timeout",
        _ => "InternalError",
    }
}

#[cfg(test)]
mod tests;
