//! Where the agent's identity comes from: a directory, or a Secret of its own namespace.

use std::time::Duration;

use anyhow::Context;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Secret;
use kube::{Api, Client};
use tributary::clock::SharedClock;
use tributary::config::IdentityConfig;
use tributary::federation::identity::{Identity, IdentityDirectory, IdentityStore, Material, Origin};

/// How often a directory is looked at: it costs no request.
const LOOK_AT_DIRECTORY: Duration = Duration::from_secs(10);

/// How often a Secret is read again once two thirds of the certificate's life are over: Secrets are never watched.
const LOOK_AT_SECRET: Duration = Duration::from_secs(60);

/// An identity and, if it can be renewed, the task that does so.
pub struct Source {
    /// The identity in use.
    pub store: IdentityStore,
    renewal: Renewal,
}

enum Renewal {
    Directory(IdentityDirectory),
    Secret { secrets: Api<Secret>, name: String, cluster: String },
}

impl Source {
    /// Loads the identity of `cluster` for the first time.
    pub async fn open(
        config: &IdentityConfig,
        cluster: &str,
        reader: &Client,
        namespace: &str,
        clock: &SharedClock,
    ) -> anyhow::Result<Self> {
        match config {
            IdentityConfig::Dir(dir) => {
                let directory = IdentityDirectory::open(dir.clone(), cluster, clock)?;
                Ok(Self { store: directory.store().clone(), renewal: Renewal::Directory(directory) })
            }
            IdentityConfig::Secret(name) => {
                let secrets: Api<Secret> = Api::namespaced(reader.clone(), namespace);
                let identity = read(&secrets, name, cluster, clock.wall()).await?;
                let renewal = Renewal::Secret { secrets, name: name.clone(), cluster: cluster.to_owned() };
                Ok(Self { store: IdentityStore::new(identity), renewal })
            }
        }
    }

    /// Takes renewed identities into use, until dropped.
    pub async fn renew(self, clock: SharedClock) {
        match self.renewal {
            Renewal::Directory(directory) => directory.watch(LOOK_AT_DIRECTORY, clock).await,
            Renewal::Secret { secrets, name, cluster } => loop {
                tokio::time::sleep(until_worth_a_look(&self.store.current(), clock.wall())).await;
                match read(&secrets, &name, &cluster, clock.wall()).await {
                    Ok(identity) if identity.fingerprint() != self.store.current().fingerprint() => {
                        self.store.replace(identity);
                    }
                    Ok(_) => {}
                    Err(error) => {
                        let error = format!("{error:#}");
                        tracing::warn!(error, "failed to renew the identity; the one before stays in use");
                    }
                }
            },
        }
    }
}

/// Two thirds of the certificate's life, then every [`LOOK_AT_SECRET`].
fn until_worth_a_look(identity: &Identity, now: Timestamp) -> Duration {
    let life = identity.not_after().duration_since(identity.not_before());
    let renew_at = identity.not_before() + life / 3 * 2;
    Duration::try_from(renew_at.duration_since(now)).unwrap_or_default().max(LOOK_AT_SECRET)
}

async fn read(secrets: &Api<Secret>, name: &str, cluster: &str, now: Timestamp) -> anyhow::Result<Identity> {
    let secret = secrets.get_opt(name).await.with_context(|| format!("failed to read Secret {name}"))?;
    let data = secret.unwrap_or_default().data.unwrap_or_default();
    let material = Material::gather(|key| data.get(key).map(|bytes| bytes.0.clone()));
    let origin = Origin::Secret(name.to_owned());
    Ok(Identity::from_material(&material, &origin, cluster, now)?)
}
