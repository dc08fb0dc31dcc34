//! The conversion webhook of this agent: v1alpha1 MiniClusters for the API server.
//!
//! Every replica serves it, with the certificate in a Secret that they share. The leader makes and renews that Secret,
//! and says in the definition of MiniClusters where the webhook is. Nobody else says it: a chart that is upgraded leaves
//! these fields alone, and whoever takes them away finds them written again.
//!
//! | file | what is in it |
//! |---|---|
//! | `server` | HTTPS, with whatever certificate there is now |
//! | `handler` | what is answered, and how much at one time |
//! | `crd_sync` | what the leader does: Secret and definition |
//! | `definition` | the part of the definition that is ours |
//! | `metrics` | what is counted |

mod crd_sync;
mod definition;
mod handler;
mod metrics;
mod server;

use std::sync::Arc;

use anyhow::Context;
use futures::FutureExt;
use futures::future::BoxFuture;
use k8s_openapi::api::core::v1::Secret;
use tokio::net::TcpListener;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;
use tributary::clock::{SharedClock, SystemRng};
use tributary::cluster::caches::{self, Cache, Selection};
use tributary::cluster::client::Clients;
use tributary::cluster::readiness::Readiness;
use tributary::config::Config;
use tributary::metrics::Metrics;

use self::definition::Definition;
pub use self::metrics::WebhookMetrics;
use self::server::Certificates;
use crate::health;

/// Who waits in `/readyz` until there is a certificate.
const PART: &str = "webhook";

/// The webhook, and what its leader keeps.
pub(crate) struct Webhook {
    config: Config,
    clients: Clients,
    clock: SharedClock,
    certificates: Arc<Certificates>,
    metrics: WebhookMetrics,
    secrets: Cache<Secret>,
    definitions: Cache<Definition>,
}

impl Webhook {
    /// The webhook, and the watches it needs. Nothing listens yet.
    pub(crate) fn new(
        config: &Config,
        clients: &Clients,
        clock: &SharedClock,
        metrics: &Metrics,
    ) -> (Arc<Self>, Vec<BoxFuture<'static, ()>>) {
        let (definitions, filling) = caches::all(clients.reader.clone(), &Definition::selection(), SystemRng);
        let mut watches = vec![filling.boxed()];
        let mut secrets = Cache::empty();
        if config.webhook.listen.is_some() {
            let one = Selection { fields: format!("metadata.name={}", config.webhook.secret), ..Selection::default() };
            let namespace = &config.kubernetes.namespace;
            let (cache, filling) = caches::in_namespace(clients.reader.clone(), namespace, &one, SystemRng);
            watches.push(filling.boxed());
            secrets = cache;
        }
        let certificates = Arc::default();
        let metrics = WebhookMetrics::register(metrics, &certificates);
        let (config, clients, clock) = (config.clone(), clients.clone(), clock.clone());
        (Arc::new(Self { config, clients, clock, certificates, metrics, secrets, definitions }), watches)
    }

    /// Listens, where a webhook is configured.
    ///
    /// # Errors
    /// The address is taken, or is none of this machine's.
    pub(crate) async fn listen(&self) -> anyhow::Result<Option<TcpListener>> {
        let Some(address) = self.config.webhook.listen else { return Ok(None) };
        let listener = health::listen(address).await;
        Ok(Some(listener.with_context(|| format!("failed to listen on webhook.listen = {address}"))?))
    }

    /// Serves until `stop`, with each certificate as it comes. Returns at once where nobody listens.
    ///
    /// # Errors
    /// TLS cannot be set up.
    pub(crate) async fn serve(
        self: Arc<Self>,
        listener: Option<TcpListener>,
        readiness: Readiness,
        stop: CancellationToken,
    ) -> anyhow::Result<()> {
        let Some(listener) = listener else { return Ok(()) };
        readiness.waits(PART, format!("Secret {} has no certificate yet", self.config.webhook.secret));
        let changed = Arc::new(Notify::new());
        let _subscription = self.secrets.subscribe({
            let changed = changed.clone();
            move |_| changed.notify_one()
        });
        let follow = async {
            loop {
                for secret in self.secrets.objects() {
                    match self.certificates.take(&secret) {
                        Ok(()) => readiness.done(PART),
                        Err(error) => {
                            let error = format!("{error:#}");
                            tracing::warn!(
                                error,
                                "the webhook's certificate cannot be used; the one before stays in use"
                            );
                        }
                    }
                }
                changed.notified().await;
            }
        };
        tokio::select! {
            served = server::serve(listener, self.certificates.clone(), self.metrics.clone(), stop) => served.context("the webhook has failed"),
            () = follow => Ok(()),
        }
    }
}
