//! Takes in clusters that join: reads what there is, judges the request, uses the token, writes the ClusterPeer.

use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use k8s_openapi::api::core::v1::Secret;
use kube::api::{Api, Patch, PatchParams, PostParams};
use tokio::sync::watch;
use tributary::api::join_token::{JoinTokenRecord, secret_name};
use tributary::api::labels::manager;
use tributary::api::peer::ClusterPeer;
use tributary::clock::SharedClock;
use tributary::cluster::client::Clients;
use tributary::cluster::error::{Cause, chain};
use tributary::federation::enrol::{Introduction, Refusal, Refused, Registrar, Request};

use super::evaluate::{Admitted, Case, evaluate};

/// How often a use is tried again that somebody else's came before.
const TRIES: u32 = 5;

/// What an API server that is busy gets before that.
const PAUSE: Duration = Duration::from_millis(500);

/// The registrar of this cluster.
pub(crate) struct Handler {
    clients: Clients,
    namespace: String,
    own: watch::Receiver<Arc<Introduction>>,
    clock: SharedClock,
}

impl Handler {
    /// A registrar; `own` is who we are, as it changes.
    pub(crate) fn new(
        clients: Clients,
        namespace: String,
        own: watch::Receiver<Arc<Introduction>>,
        clock: SharedClock,
    ) -> Self {
        Self { clients, namespace, own, clock }
    }

    async fn take_in(&self, request: &Request) -> Result<Introduction, Refused> {
        let secrets: Api<Secret> = Api::namespaced(self.clients.reader.clone(), &self.namespace);
        let peers: Api<ClusterPeer> = Api::namespaced(self.clients.reader.clone(), &self.namespace);
        // The id is a stranger's word until the secret is found right: nothing but letters and digits gets into a name.
        let id: String = request.token.chars().filter(char::is_ascii_alphanumeric).take(16).collect();
        let name = secret_name(&id.to_ascii_lowercase());
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
        tokio::time::sleep(PAUSE).await;
        return Ok(());
    }
    if cause.is_conflict() { Ok(()) } else { Err(unavailable(cause)) }
}

fn unavailable(cause: impl Into<Cause>) -> Refused {
    tracing::warn!(error = chain(&cause.into()), "failed to take in a cluster that joins");
    // What the API server says is not for strangers.
    Refusal::Unavailable.because("its agent cannot reach its API server, or does not lead any more")
}
