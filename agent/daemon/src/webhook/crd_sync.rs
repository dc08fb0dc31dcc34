//! What the leader does for the webhooks of all replicas: it makes and renews their certificate, and leads the API
//! server to them. A change of the Secret or of the definition is answered at once; otherwise it sleeps.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::ResourceExt;
use kube::api::{Api, Patch, PatchParams};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;
use tributary::api::labels::manager;
use tributary::webhook::certificate::{BUNDLE, Material, renewed};

use super::Webhook;
use super::definition;
use crate::identity::shape;
use crate::wait;

/// How soon a failure is looked at again.
const RETRY: Duration = Duration::from_secs(10);

/// When to look again without a change.
enum Again {
    In(Duration),
    /// A certificate that is valid from the first time on is renewed at the second one.
    At(Timestamp, Timestamp),
}

/// Only a change is worth a look.
const NEVER: Again = Again::At(Timestamp::MIN, Timestamp::MAX);

impl Again {
    fn of(material: &Material) -> Self {
        Self::At(material.valid_from(), material.renew_at())
    }
}

impl Webhook {
    /// Keeps Secret and definition until the term ends.
    pub(crate) async fn keep(self: Arc<Self>, stop: CancellationToken) {
        let changed = Arc::new(Notify::new());
        let _subscriptions = (self.secrets.wakes(&changed), self.definitions.wakes(&changed));
        while !stop.is_cancelled() {
            let again = tokio::select! {
                looked = self.look() => looked.unwrap_or_else(|error| {
                    let error = format!("{error:#}");
                    tracing::warn!(error, retry_in = ?RETRY, "v1alpha1 MiniClusters cannot be served as they should");
                    Again::In(RETRY)
                }),
                () = stop.cancelled() => return,
            };
            let wait = async {
                match again {
                    Again::In(time) => tokio::time::sleep(time).await,
                    Again::At(valid_from, renew_at) => wait::for_renewal(renew_at, valid_from, &self.clock).await,
                }
            };
            tokio::select! {
                () = changed.notified() => {}
                () = wait => {}
                () = stop.cancelled() => return,
            }
        }
    }

    /// One look at both.
    async fn look(&self) -> anyhow::Result<Again> {
        let (mut trust, mut again) = (String::new(), NEVER);
        if self.config.webhook.listen.is_some() {
            let secret;
            (secret, again) = self.secret().await?;
            // Nobody is led to a webhook that has nothing to show.
            self.certificates.take(&secret)?;
            trust = shape::text(&secret, BUNDLE).unwrap_or_default().to_owned();
        }
        let change = self.definitions.objects().iter().find_map(|one| one.change(&self.config, &trust));
        if let Some(change) = change {
            let api: Api<CustomResourceDefinition> = Api::all(self.clients.writer.clone());
            let name = change["metadata"]["name"].as_str().unwrap_or_default();
            let params = PatchParams::apply(manager::CONVERSION).force();
            let applied = api.patch(name, &params, &Patch::Apply(&change)).await;
            applied.map(drop).with_context(|| format!("failed to write spec.conversion of {name}"))?;
            let strategy = change["spec"]["conversion"]["strategy"].as_str().unwrap_or_default();
            tracing::info!(strategy, "the definition of MiniClusters says who converts them");
        }
        Ok(again)
    }

    /// The Secret as it should be, and when to look at it again.
    async fn secret(&self) -> anyhow::Result<(Secret, Again)> {
        let (namespace, name) = (&self.config.kubernetes.namespace, &self.config.webhook.secret);
        let read: Api<Secret> = Api::namespaced(self.clients.reader.clone(), namespace);
        let found = read.get_opt(name).await.with_context(|| format!("failed to read Secret {namespace}/{name}"))?;
        if !self.config.webhook.issue {
            let secret = found
                .with_context(|| format!("Secret {namespace}/{name} is not there yet, and webhook.issue is off"))?;
            return Ok((secret, NEVER));
        }
        if found.as_ref().is_some_and(|secret| !shape::is_ours(secret)) {
            bail!("Secret {namespace}/{name} is somebody else's: delete it, or set webhook.issue = false to use it");
        }
        let value = |key: &str| found.as_ref()?.data.as_ref()?.get(key).map(|value| value.0.as_slice());
        let current = Material::read(value);
        let Some(new) = renewed(current.as_ref(), &definition::names(&self.config), self.clock.wall())? else {
            let again = current.map_or(NEVER, |current| Again::of(&current));
            return Ok((found.context("what is current is there")?, again));
        };
        let mut secret = found.unwrap_or_else(|| shape::new(namespace, name));
        secret.data = Some(shape::data(new.expose()));
        let secret = shape::write(&Api::namespaced(self.clients.writer.clone(), namespace), &secret).await?;
        tracing::info!(secret = secret.name_any(), "the webhook has a new certificate");
        Ok((secret, Again::of(&new)))
    }
}
