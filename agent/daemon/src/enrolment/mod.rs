//! Lets other clusters join: while there are join tokens, the listener for joining is open.
//!
//! | file | what it does |
//! |---|---|
//! | [`cluster_info`] | who this cluster is, for those that join and for `agentctl` |
//! | [`handler`] | takes a cluster in |
//! | [`evaluate`] | whether it may join, pure |

pub(crate) mod cluster_info;
pub(crate) mod evaluate;
pub(crate) mod handler;

use std::collections::BTreeSet;
use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Secret;
use kube::ResourceExt;
use kube::api::{Api, DeleteParams};
use tokio::sync::{Notify, watch};
use tributary::api::join_token::{self, JoinTokenRecord};
use tributary::clock::{SharedClock, SystemRng};
use tributary::cluster::caches::{self, Cache, Selection};
use tributary::cluster::client::Clients;
use tributary::config::Config;
use tributary::federation::enrol::{EnrolListener, Introduction};
use tributary::federation::identity::IdentityStore;

use self::handler::Handler;

/// A token is kept for this long after its end, and the listener open, so that somebody who is late is told so.
const LATE: SignedDuration = SignedDuration::from_secs(60);

/// How soon a failure is looked at again: the port is taken, a token cannot be deleted.
const RETRY: Duration = Duration::from_secs(5);

/// What joining needs.
pub(crate) struct Enrolment {
    /// The agent's configuration.
    pub config: Config,
    /// Clients of this cluster.
    pub clients: Clients,
    /// The identity that the listener shows.
    pub identities: IdentityStore,
    /// Who we are, as it changes.
    pub own: watch::Receiver<Arc<Introduction>>,
    /// Time.
    pub clock: SharedClock,
}

impl Enrolment {
    /// Opens and closes the listener, and removes tokens that have ended, until dropped.
    pub(crate) async fn run(self) {
        let namespace = &self.config.kubernetes.namespace;
        let tokens = Selection { fields: format!("type={}", join_token::TYPE), ..Selection::default() };
        let reader = self.clients.reader.clone();
        let (cache, filling) = caches::in_namespace::<Secret, _>(reader, namespace, &tokens, SystemRng);
        let changed = Arc::new(Notify::new());
        let _subscription = cache.wakes(&changed);
        let attend = async {
            loop {
                let now = self.clock.wall();
                let (ended, last) = sorted(&cache, now);
                if !ended.is_empty() && !self.remove(&ended).await {
                    tokio::time::sleep(RETRY).await;
                    continue;
                }
                match last {
                    Some(_) => self.listen_while(&cache, &changed).await,
                    None => changed.notified().await,
                }
            }
        };
        tokio::join!(attend, filling);
    }

    /// Serves until the last token has ended, or none is there any more.
    async fn listen_while(&self, cache: &Cache<Secret>, changed: &Notify) {
        let address = self.config.federation.join.listen;
        let desk = Handler::new(
            self.clients.clone(),
            self.config.kubernetes.namespace.clone(),
            cache.clone(),
            self.own.clone(),
            self.clock.clone(),
        );
        let listener = match EnrolListener::bind(address, self.identities.clone(), Arc::new(desk), self.clock.clone()) {
            Ok(listener) => listener,
            Err(error) => {
                tracing::warn!(%address, %error, "failed to listen for clusters that join (federation.join.listen)");
                return tokio::time::sleep(RETRY).await;
            }
        };
        tracing::info!(%address, "there are join tokens: clusters may join");
        let over = async {
            loop {
                let now = self.clock.wall();
                let (ended, Some(last)) = sorted(cache, now) else { return };
                // Whoever joins at this moment is not cut off because another token has ended.
                if !self.remove(&ended).await {
                    tokio::time::sleep(RETRY).await;
                    continue;
                }
                tokio::select! {
                    () = changed.notified() => {}
                    () = tokio::time::sleep(Duration::try_from(last.duration_since(now)).unwrap_or_default()) => {}
                }
            }
        };
        tokio::select! {
            () = over => {}
            () = async { listener.serve().await; pending().await } => {}
        }
        tracing::info!(%address, "the listener for clusters that join is closed");
    }

    /// Returns whether all are gone.
    async fn remove(&self, names: &BTreeSet<String>) -> bool {
        let secrets: Api<Secret> = Api::namespaced(self.clients.writer.clone(), &self.config.kubernetes.namespace);
        let mut all = true;
        for name in names {
            match secrets.delete(name, &DeleteParams::default()).await {
                Ok(_) => {}
                Err(kube::Error::Api(status)) if status.code == 404 => {}
                Err(error) => {
                    tracing::warn!(name, %error, "failed to delete a join token that has ended");
                    all = false;
                }
            }
        }
        all
    }
}

/// The tokens that have ended, and when the last of the others is to be removed.
fn sorted(cache: &Cache<Secret>, now: Timestamp) -> (BTreeSet<String>, Option<Timestamp>) {
    let (mut ended, mut last) = (BTreeSet::new(), None);
    for secret in cache.objects() {
        let until = JoinTokenRecord::read(&secret).expires.checked_add(LATE).unwrap_or(Timestamp::MAX);
        if until <= now {
            ended.insert(secret.name_any());
        } else {
            last = last.max(Some(until));
        }
    }
    (ended, last)
}
