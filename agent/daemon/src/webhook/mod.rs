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
            let one = Selection::named(&config.webhook.secret);
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

    /// Serves until `stop`, with each certificate as it comes. Returns at once where nobody listens. It is waited for a
    /// certificate only where the API server is led here: who leads may be an agent that knows of no webhook yet, which is
    /// replaced once this one is ready.
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
        let Self { config, secrets, definitions, certificates, .. } = &*self;
        let follow = follow(Following { config, secrets, definitions, certificates, readiness: &readiness });
        tokio::select! {
            served = server::serve(listener, self.certificates.clone(), self.metrics.clone(), stop) => served.context("the webhook has failed"),
            () = follow => Ok(()),
        }
    }
}

/// What [`follow`] looks at.
struct Following<'a> {
    config: &'a Config,
    secrets: &'a Cache<Secret>,
    definitions: &'a Cache<Definition>,
    certificates: &'a Certificates,
    readiness: &'a Readiness,
}

/// Takes each certificate as it comes, and says whether it is waited for.
async fn follow(of: Following<'_>) {
    let Following { config, secrets, definitions, certificates, readiness } = of;
    let why = format!("Secret {} has no certificate yet", config.webhook.secret);
    readiness.waits(PART, &why);
    let changed = Arc::new(Notify::new());
    let _subscriptions = (secrets.wakes(&changed), definitions.wakes(&changed));
    let mut shows_one = false;
    loop {
        for secret in secrets.objects() {
            match certificates.take(&secret) {
                Ok(()) => shows_one = true,
                Err(error) => {
                    let error = format!("{error:#}");
                    tracing::warn!(error, "the webhook's certificate cannot be used; the one before stays in use");
                }
            }
        }
        let listed = definitions.condition().listed;
        let led_here = !listed || definitions.objects().iter().any(|one| one.leads_to(config));
        if shows_one || !led_here {
            readiness.done(PART);
        } else {
            readiness.waits(PART, &why);
        }
        tokio::select! {
            () = changed.notified() => {}
            () = definitions.listed(), if !listed => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use kube::runtime::watcher::Event;
    use serde_json::json;
    use tributary::clock::SystemClock;
    use tributary::webhook::certificate::renewed;

    use super::*;
    use crate::identity::shape;

    /// The danger: a webhook that is turned on is waited for by pods that the leader, which knows of none, is to be replaced by:
    /// for ever. And where it is led to, nobody is sent to a pod that has nothing to show.
    #[tokio::test]
    async fn a_certificate_is_waited_for_only_where_the_api_server_is_led_here() {
        let config = "[cluster]\nname = \"east\"\n[webhook]\nlisten = \"[::]:9443\"\nservice = \"hook\"";
        let config = Config::from_toml(config).unwrap();
        let (secrets, definitions) = (Cache::<Secret>::empty(), Cache::<Definition>::empty());
        let (certificates, readiness) = (Arc::<Certificates>::default(), Readiness::default());
        let following = tokio::spawn({
            let (config, secrets, definitions) = (config.clone(), secrets.clone(), definitions.clone());
            let (certificates, readiness) = (certificates.clone(), readiness.clone());
            async move {
                let (config, secrets, definitions) = (&config, &secrets, &definitions);
                let (certificates, readiness) = (&certificates, &readiness);
                follow(Following { config, secrets, definitions, certificates, readiness }).await;
            }
        });
        let settle = async || {
            for _ in 0..20 {
                tokio::task::yield_now().await;
            }
            readiness.waiting().contains_key(PART)
        };
        assert!(settle().await, "nobody knows yet");
        let definition = |version: &str, strategy: &str| {
            let by = "tributary-system/hook";
            serde_json::from_value(json!({"metadata": {"name": "m", "resourceVersion": version, "annotations": {
                tributary::api::labels::CONVERTED_BY: by}}, "spec": {"conversion": {"strategy": strategy}}}))
            .unwrap()
        };
        definitions.take(Event::Init);
        definitions.take(Event::InitApply(definition("1", "None")));
        definitions.take(Event::InitDone);
        assert!(!settle().await, "nobody is led here");
        definitions.take(Event::Apply(definition("2", "Webhook")));
        assert!(settle().await, "and there is nothing to show");
        let new = renewed(None, &definition::names(&config), SystemClock::shared().wall()).unwrap().unwrap();
        let data = shape::data(new.expose());
        let secret = json!({"metadata": {"name": "s", "namespace": "tributary-system"}, "data": data});
        secrets.take(Event::Apply(serde_json::from_value(secret).unwrap()));
        assert!(!settle().await);
        following.abort();
    }
}
