use std::collections::BTreeMap;
use std::fmt::Debug;
use std::io;

use axum::body::Body;
use axum::extract::{Path, RawQuery, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use bytes::Bytes;
use futures::stream::pending;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tracing::field::Field;
use tracing::{Event, Level, Metadata, Subscriber, span};
use tributary::clock::{Clock, Mono};

use super::*;

const HOUR: Duration = Duration::from_secs(3600);

#[derive(Clone, Default)]
struct Server(Arc<Mutex<Objects>>);

#[derive(Default)]
struct Objects {
    /// By their names.
    secrets: BTreeMap<String, Value>,
    /// ClusterPeers.
    peers: Vec<Value>,
}

type Answer = (StatusCode, Json<Value>);

impl Server {
    fn client(&self) -> Client {
        let router = Router::new()
            .route("/api/v1/namespaces/agents/secrets", get(list).post(write))
            .route("/api/v1/namespaces/agents/secrets/{name}", get(read).put(write))
            .route("/apis/tributary.dev/v1alpha1/namespaces/agents/clusterpeers", get(peers))
            .with_state(self.clone());
        Client::new(router, "agents")
    }

    fn take(&self, name: &str) -> Option<Value> {
        self.0.lock().secrets.remove(name)
    }

    fn put(&self, secret: Value) {
        let name = secret["metadata"]["name"].as_str().unwrap().to_owned();
        self.0.lock().secrets.insert(name, secret);
    }

    fn bundle(&self) -> String {
        self.0.lock().secrets["identity"]["data"]["ca.crt"].to_string()
    }
}

/// Lists none, and says nothing to who watches.
async fn list(RawQuery(query): RawQuery) -> Response {
    if query.unwrap_or_default().contains("watch=true") {
        return Body::from_stream(pending::<io::Result<Bytes>>()).into_response();
    }
    Json(json!({"kind": "SecretList", "apiVersion": "v1", "metadata": {"resourceVersion": "1"}, "items": []}))
        .into_response()
}

async fn read(State(server): State<Server>, Path(name): Path<String>) -> Answer {
    match server.0.lock().secrets.get(&name) {
        Some(secret) => (StatusCode::OK, Json(secret.clone())),
        None => {
            let status = json!({"kind": "Status", "status": "Failure", "reason": "NotFound", "code": 404});
            (StatusCode::NOT_FOUND, Json(status))
        }
    }
}

async fn write(State(server): State<Server>, Json(mut secret): Json<Value>) -> Answer {
    secret["metadata"]["resourceVersion"] = "1".into();
    server.put(secret.clone());
    (StatusCode::OK, Json(secret))
}

async fn peers(State(server): State<Server>) -> Answer {
    let items = server.0.lock().peers.clone();
    let kind = ("tributary.dev/v1alpha1", "ClusterPeerList");
    (StatusCode::OK, Json(json!({"apiVersion": kind.0, "kind": kind.1, "metadata": {}, "items": items})))
}

/// Says what it is told.
struct Told(Mutex<Timestamp>);

impl Told {
    fn hours(&self, hours: i64) {
        *self.0.lock() = noon() + SignedDuration::from_hours(hours);
    }
}

impl Clock for Told {
    fn mono(&self) -> Mono {
        Mono::ZERO
    }

    fn wall(&self) -> Timestamp {
        *self.0.lock()
    }
}

fn noon() -> Timestamp {
    "2025-06-01T12:00:00Z".parse().unwrap()
}

/// An agent's Secrets, with certificates for a day, as an API server and a clock of the test have them.
fn secrets() -> (Server, Arc<Told>, Secrets) {
    let (server, clock) = (Server::default(), Arc::new(Told(Mutex::new(noon()))));
    let client = server.client();
    let api = || Api::namespaced(client.clone(), "agents");
    let secrets = Secrets {
        read: api(),
        write: api(),
        reader: client.clone(),
        namespace: "agents".to_owned(),
        name: "identity".to_owned(),
        cluster: "east".to_owned(),
        trust_domain: "east".to_owned(),
        validity: 24 * HOUR,
        clock: clock.clone(),
        missing: AtomicBool::new(false),
    };
    (server, clock, secrets)
}

#[tokio::test(start_paused = true)]
async fn a_certificate_that_was_made_while_the_clock_was_ahead_is_made_anew_soon_after_it_is_right() {
    let (server, clock, secrets) = secrets();
    secrets.look(None).await.unwrap();
    server.take("identity");
    clock.hours(9);
    let found = secrets.look(None).await.unwrap();
    let store = IdentityStore::new(found.identity);
    let (_known, known) = watch::channel(None);
    let following = SecretIdentity { secrets, store: store.clone(), offers: watch::Sender::new(None) };
    let following = tokio::spawn(following.follow(known));
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert!(store.current().not_before() > noon(), "made ahead");
    clock.hours(0);
    tokio::time::sleep(Duration::from_secs(11)).await;
    assert!(store.current().not_before() < noon());
    following.abort();
}

#[tokio::test]
async fn an_authority_that_is_missing_is_said_once_until_it_is_there_again() {
    let (server, clock, secrets) = secrets();
    let found = secrets.look(None).await.unwrap();
    let renew_at = found.identity.renew_at();
    let authority = server.take("identity-ca").unwrap();
    let expected = "Secret agents/identity-ca, the cluster's authority, is missing: put the Secret back before \
                    2025-06-02T04:00:00Z, or every peer has to be linked again";
    assert_eq!(secrets.is_missing(renew_at).as_deref(), Some(expected));
    assert_eq!(secrets.is_missing(renew_at), None);
    server.put(authority.clone());
    secrets.look(None).await.unwrap();
    server.take("identity-ca");
    let found = secrets.look(None).await.unwrap();
    assert_eq!((found.again, secrets.is_missing(renew_at)), (renew_at, None), "that look has said it");
    server.put(authority);
    secrets.look(None).await.unwrap();
    let before = server.bundle();
    server.take("identity-ca");
    clock.hours(17);
    secrets.look(None).await.unwrap();
    assert_ne!(server.bundle(), before, "it was made anew");
    assert!(secrets.is_missing(renew_at).is_some(), "if it is missing again");
}

#[tokio::test]
async fn an_authority_that_was_made_while_the_clock_was_ahead_is_made_anew_unless_peers_know_it() {
    let (server, clock, secrets) = secrets();
    clock.hours(9);
    secrets.look(None).await.unwrap();
    let early = server.bundle();
    clock.hours(0);
    server.0.lock().peers.push(json!({"apiVersion": "tributary.dev/v1alpha1", "kind": "ClusterPeer",
        "metadata": {"name": "west"}, "spec": {}}));
    let error = format!("{:#}", secrets.look(None).await.err().expect("its peers know it"));
    assert!(
        error.contains("wait until 2025-06-01T20:55:00Z, or delete the Secrets identity and identity-ca"),
        "{error}"
    );
    assert_eq!(server.bundle(), early);
    server.0.lock().peers.clear();
    let found = secrets.look(None).await.unwrap();
    assert_ne!(server.bundle(), early);
    assert!(found.identity.not_before() < noon() && found.offer.is_some());
    let made = server.bundle();
    secrets.look(None).await.unwrap();
    assert_eq!(server.bundle(), made, "once");
}

/// Keeps what is warned of.
#[derive(Clone, Default)]
struct Warnings(Arc<Mutex<Vec<String>>>);

impl Subscriber for Warnings {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() == Level::WARN
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut keep = |_: &Field, value: &dyn Debug| self.0.lock().push(format!("{value:?}"));
        event.record(&mut keep);
    }

    fn enter(&self, _: &span::Id) {}

    fn exit(&self, _: &span::Id) {}
}

/// The danger: both Secrets are deleted, every peer is cut off, and the log has what it has after an installation; or an
/// installation is warned of peers that have never met its agent.
#[tokio::test]
async fn an_authority_that_peers_know_is_not_made_anew_in_silence() {
    let (server, clock, secrets) = secrets();
    let warnings = Warnings::default();
    let _kept = tracing::subscriber::set_default(warnings.clone());
    // With one of them alone, a test on another thread decides whether a line is written anywhere at all.
    let _second = tracing::Dispatch::new(Warnings::default());
    let lost = async |gone: &[&str]| {
        gone.iter().for_each(|name| drop(server.take(name)));
        secrets.look(None).await.unwrap();
        let warned = std::mem::take(&mut *warnings.0.lock());
        warned.into_iter().find(|text| text.contains("no Secret agents/identity-ca"))
    };
    let both = ["identity", "identity-ca"];
    assert_eq!(lost(&both).await, None, "the first start");
    let peer = |status: Value| {
        json!({"apiVersion": "tributary.dev/v1alpha1", "kind": "ClusterPeer", "metadata": {"name": "west"}, "spec": {},
            "status": status})
    };
    server.0.lock().peers = vec![peer(Value::Null), peer(json!({"connected": false}))];
    assert_eq!(lost(&both).await, None, "they were applied before the first start");
    server.0.lock().peers.push(peer(json!({"clusterUID": "1-2"})));
    let said = lost(&both).await.expect("it was met");
    assert!(said.contains("link every peer again"), "{said}");
    server.0.lock().peers.clear();
    clock.hours(17);
    assert!(lost(&both[1..]).await.is_some(), "it has signed");
    assert_eq!(lost(&[]).await, None);
}
