//! Takes in clusters that join: reads what there is, judges the request, uses the token, writes the ClusterPeer.

use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use k8s_openapi::api::core::v1::Secret;
use kube::api::{Api, Patch, PatchParams, PostParams};
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};
use tributary::api::join_token::{JoinTokenRecord, secret_name};
use tributary::api::labels::manager;
use tributary::api::peer::ClusterPeer;
use tributary::clock::{Mono, SharedClock};
use tributary::cluster::ObjectKey;
use tributary::cluster::caches::Cache;
use tributary::cluster::client::Clients;
use tributary::cluster::error::{Cause, chain};
use tributary::federation::enrol::{Introduction, Refusal, Refused, Registrar, Request};

use super::evaluate::{Admitted, Case, evaluate, secret_matches, wrong_token};

/// How often a use is tried again that somebody else's came before.
const TRIES: u32 = 5;

/// What an API server that is busy gets before that.
const PAUSE: Duration = Duration::from_millis(500);

/// How long the watch may take to show a token that was made a moment ago, and how long until the second look.
const SHOWN_WITHIN: Duration = Duration::from_secs(1);
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// How often the API server is asked for a token that the watch does not show.
const ASK_API_SERVER_EVERY: Duration = Duration::from_secs(1);

/// The registrar of this cluster.
pub(crate) struct Handler {
    clients: Clients,
    namespace: String,
    /// The tokens, as the watch shows them.
    tokens: Cache<Secret>,
    /// When the API server may be asked again for one that it does not show.
    next_look: Mutex<Mono>,
    own: watch::Receiver<Arc<Introduction>>,
    clock: SharedClock,
}

impl Handler {
    /// A registrar; `own` is who we are, as it changes.
    pub(crate) fn new(
        clients: Clients,
        namespace: String,
        tokens: Cache<Secret>,
        own: watch::Receiver<Arc<Introduction>>,
        clock: SharedClock,
    ) -> Self {
        Self { clients, namespace, tokens, next_look: Mutex::default(), own, clock }
    }

    async fn take_in(&self, request: &Request) -> Result<Introduction, Refused> {
        let secrets: Api<Secret> = Api::namespaced(self.clients.reader.clone(), &self.namespace);
        let peers: Api<ClusterPeer> = Api::namespaced(self.clients.reader.clone(), &self.namespace);
        // The id is a stranger's word until the secret is found right: nothing but letters and digits gets into a name.
        let id: String = request.token.chars().filter(char::is_ascii_alphanumeric).take(16).collect();
        let name = secret_name(&id.to_ascii_lowercase());
        // A stranger waits as long for a token that there is as for one that there is not.
        let key = ObjectKey::namespaced(&self.namespace, &name);
        let known = async {
            while !self.tokens.of(&key).is_some_and(|secret| secret_matches(request, &JoinTokenRecord::read(&secret))) {
                sleep(LOOK_EVERY).await;
            }
        };
        if timeout(SHOWN_WITHIN, known).await.is_err() && !self.is_stored(&secrets, &name, request).await {
            return Err(wrong_token(request, &self.own.borrow()));
        }
        for _ in 0..TRIES {
            let secret = secrets.get_opt(&name).await.map_err(unavailable)?;
            let token = secret.as_ref().map(JoinTokenRecord::read);
            // A name that cannot be one is refused by `evaluate`.
            let wanted = request.who.cluster.as_str();
            let valid = tributary::federation::identity::spiffe::check_cluster(wanted).is_ok();
            let existing = if valid { peers.get_opt(wanted).await.map_err(unavailable)? } else { None };
            let own = self.own.borrow().clone();
            let (token, existing, now) = (token.as_ref(), existing.as_ref(), self.clock.wall());
            let Admitted::Joins(joining) = evaluate(Case { request, token, existing, own: &own, now })? else {
                return Ok((*own).clone());
            };
            let Some(secret) = secret else { continue };
            let Some(secret) = self.put(&name, &joining.used, secret).await? else { continue };
            if !self.write(&joining.peer).await? {
                continue;
            }
            // Who asks again before this is noted finds it written once more, as it was asked for.
            if self.put(&name, &joining.written(), secret).await?.is_some() {
                return Ok((*own).clone());
            }
        }
        Err(Refusal::Unavailable.because("its API server is busy, or others are using the token at this moment"))
    }

    /// Whether there is a token that the watch, which may be behind, does not show. All strangers together cost the API server
    /// one request each [`ASK_API_SERVER_EVERY`].
    async fn is_stored(&self, secrets: &Api<Secret>, name: &str, request: &Request) -> bool {
        let now = self.clock.mono();
        {
            let mut next = self.next_look.lock();
            if now < *next {
                return false;
            }
            *next = now + ASK_API_SERVER_EVERY;
        }
        let found = secrets.get_opt(name).await.ok().flatten();
        found.is_some_and(|secret| secret_matches(request, &JoinTokenRecord::read(&secret)))
    }

    /// Stores what is known of a token. `None`: read and judge once more.
    async fn put(&self, name: &str, token: &JoinTokenRecord, mut secret: Secret) -> Result<Option<Secret>, Refused> {
        if JoinTokenRecord::read(&secret) == *token {
            return Ok(Some(secret));
        }
        token.put(&mut secret);
        let secrets: Api<Secret> = Api::namespaced(self.clients.writer.clone(), &self.namespace);
        // With the resource version it was read at: two uses at once are one use and one conflict.
        match secrets.replace(name, &PostParams::default(), &secret).await {
            Ok(stored) => Ok(Some(stored)),
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(None),
            Err(error) => may_be_tried_again(error).await.map(|()| None),
        }
    }

    /// Writes a ClusterPeer over the one that was judged, or makes it. `false`: read and judge once more.
    async fn write(&self, peer: &ClusterPeer) -> Result<bool, Refused> {
        let peers: Api<ClusterPeer> = Api::namespaced(self.clients.writer.clone(), &self.namespace);
        let name = peer.metadata.name.clone().unwrap_or_default();
        let written = if peer.metadata.resource_version.is_some() {
            let parameters = PatchParams::apply(manager::ENROLMENT).force();
            peers.patch(&name, &parameters, &Patch::Apply(peer)).await
        } else {
            let parameters = PostParams { field_manager: Some(manager::ENROLMENT.into()), ..PostParams::default() };
            peers.create(&parameters, peer).await
        };
        match written {
            Ok(_) => Ok(true),
            Err(error) => may_be_tried_again(error).await.map(|()| false),
        }
    }
}

impl Registrar for Handler {
    fn enrol(&self, request: Request) -> BoxFuture<'_, Result<Introduction, Refused>> {
        async move { self.take_in(&request).await }.boxed()
    }
}

/// Somebody else came first; or the API server was busy, and nobody knows whether it was done.
async fn may_be_tried_again(error: kube::Error) -> Result<(), Refused> {
    let cause = Cause::from(error);
    if cause.is_overload() {
        tracing::warn!(error = chain(&cause), "a cluster that joins waits for the API server");
        sleep(PAUSE).await;
        return Ok(());
    }
    if cause.is_conflict() { Ok(()) } else { Err(unavailable(cause)) }
}

fn unavailable(cause: impl Into<Cause>) -> Refused {
    tracing::warn!(error = chain(&cause.into()), "failed to take in a cluster that joins");
    // What the API server says is not for strangers.
    Refusal::Unavailable.because("its agent cannot reach its API server, or does not lead any more")
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use axum::{Json, Router};
    use jiff::Timestamp;
    use kube::runtime::watcher::Event;
    use tokio::net::TcpListener;
    use tokio::time::Instant;
    use tributary::clock::SystemClock;
    use tributary::cluster::client::ConnectOptions;
    use tributary::cluster::fence::Fence;
    use tributary::cluster::requests::RequestMetrics;

    use super::*;

    const ID: &str = "abcd2345";

    /// With an API server at this port of this machine.
    async fn handler(tokens: Cache<Secret>, port: u16) -> Handler {
        let file = tempfile::NamedTempFile::new().unwrap();
        let kubeconfig = r#"{"apiVersion": "v1", "kind": "Config", "current-context": "a",
            "clusters": [{"name": "a", "cluster": {"server": "http://127.0.0.1:PORT"}}],
            "users": [{"name": "a", "user": {}}],
            "contexts": [{"name": "a", "context": {"cluster": "a", "user": "a"}}]}"#;
        std::fs::write(file.path(), kubeconfig.replace("PORT", &port.to_string())).unwrap();
        let (options, clock) =
            (ConnectOptions { kubeconfig: Some(file.path().into()), context: None }, SystemClock::shared());
        let (_, fence) = Fence::closed(clock.clone());
        let clients = Clients::connect(&options, fence, &RequestMetrics::default(), &clock).await.unwrap();
        Handler::new(clients, "agents".into(), tokens, watch::channel(Arc::default()).1, clock)
    }

    /// Token [`ID`], which has expired.
    fn stored() -> serde_json::Value {
        let record = JoinTokenRecord { id: ID.into(), secret_hash: "00ff".into(), ..JoinTokenRecord::default() };
        serde_json::to_value(record.secret("agents")).unwrap()
    }

    async fn ask(desk: &Handler, token: &str, secret_hash: &str) -> Refusal {
        let (token, secret_hash) = (token.to_owned(), secret_hash.to_owned());
        let request = Request { token, secret_hash, who: Introduction::default(), clock: Timestamp::UNIX_EPOCH };
        desk.take_in(&request).await.unwrap_err().refusal
    }

    /// The danger: whoever was given a token a moment ago hears that there is none.
    #[tokio::test]
    async fn a_token_that_the_watch_does_not_show_is_found_by_one_look_a_second() {
        let asked = Arc::new(AtomicUsize::new(0));
        let count = asked.clone();
        let answer = move || {
            count.fetch_add(1, Ordering::Relaxed);
            std::future::ready(Json(stored()))
        };
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        tokio::spawn(axum::serve(listener, Router::new().fallback(answer)).into_future());
        let desk = handler(Cache::empty(), port).await;
        let (one, other) = tokio::join!(ask(&desk, ID, "00ff"), ask(&desk, ID, "00ff"));
        assert_eq!([one.min(other), one.max(other)], [Refusal::WrongToken, Refusal::Expired], "one is found");
        assert_eq!(asked.load(Ordering::Relaxed), 2, "the look, and what is judged");
        assert_eq!(ask(&desk, ID, "0000").await, Refusal::WrongToken);
        assert_eq!(asked.load(Ordering::Relaxed), 3, "the next second");
    }

    /// The danger: strangers make the agent ask its API server, as often as they like.
    #[tokio::test(start_paused = true)]
    async fn who_does_not_know_the_secret_of_a_token_costs_no_request_and_learns_nothing() {
        let tokens = Cache::empty();
        // Nobody reaches it: who gets that far is told so.
        let desk = handler(tokens.clone(), 1).await;
        // The look that all strangers share was had a moment ago.
        *desk.next_look.lock() = Mono::from_start(Duration::MAX);
        let ask = async |token: &str, secret_hash: &str| {
            let (began, refusal) = (Instant::now(), ask(&desk, token, secret_hash).await);
            (refusal, began.elapsed().as_secs())
        };
        let stranger = (Refusal::WrongToken, SHOWN_WITHIN.as_secs());
        assert_eq!(ask(ID, "00ff").await, stranger, "there is none");
        // The watch shows it while somebody asks who was given it a moment ago.
        let shown = async {
            sleep(SHOWN_WITHIN / 2).await;
            tokens.take(Event::Apply(serde_json::from_value(stored()).unwrap()));
        };
        assert_eq!(tokio::join!(ask(ID, "00ff"), shown).0.0, Refusal::Unavailable);
        for (token, secret_hash) in [(ID, "0000"), (ID, ""), ("other234", "00ff")] {
            assert_eq!(ask(token, secret_hash).await, stranger, "{token} {secret_hash}");
        }
    }
}
