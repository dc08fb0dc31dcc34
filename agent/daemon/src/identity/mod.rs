//! Where the agent's identity comes from: a directory, or a Secret of its own namespace.
//!
//! | file | what it does |
//! |---|---|
//! | [`secret`] | follows the Secret; makes it, renews it and replaces its authority if it is the agent's own |
//! | [`shape`] | what the two Secrets hold |

pub(crate) mod secret;
pub(crate) mod shape;

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tributary::clock::SharedClock;
use tributary::cluster::client::Clients;
use tributary::config::{Config, IdentityConfig};
use tributary::contract::ports::TrustOffer;
use tributary::federation::identity::{IdentityDirectory, IdentityStore};

use self::secret::SecretIdentity;

/// How often a directory is looked at: it costs no request.
const LOOK_AT_DIRECTORY: Duration = Duration::from_secs(10);

/// An identity and what keeps it up to date.
pub(crate) struct Source {
    /// The identity in use.
    pub store: IdentityStore,
    renewal: Renewal,
}

enum Renewal {
    Directory(IdentityDirectory),
    Secret(Box<SecretIdentity>),
}

impl Source {
    /// Loads the identity of this cluster for the first time, or makes it. `None`: there shall be no federation.
    pub(crate) async fn open(config: &Config, clients: &Clients, clock: &SharedClock) -> anyhow::Result<Option<Self>> {
        let cluster = &config.cluster.name;
        Ok(Some(match &config.federation.identity {
            IdentityConfig::Off => return Ok(None),
            IdentityConfig::Dir(dir) => {
                let directory = IdentityDirectory::open(dir.clone(), cluster, clock)?;
                Self { store: directory.store().clone(), renewal: Renewal::Directory(directory) }
            }
            IdentityConfig::Secret(name) => {
                let identity = SecretIdentity::open(config, name, clients, clock.clone()).await?;
                Self { store: identity.store().clone(), renewal: Renewal::Secret(Box::new(identity)) }
            }
        }))
    }

    /// What peers shall know of our authority, if it is ours to replace.
    pub(crate) fn offers(&self) -> watch::Receiver<Option<Arc<TrustOffer>>> {
        match &self.renewal {
            // Its sender is gone: that never changes.
            Renewal::Directory(_) => watch::channel(None).1,
            Renewal::Secret(identity) => identity.offers(),
        }
    }

    /// Takes renewed identities into use, until dropped. `known`: the trust bundle that every peer has taken.
    pub(crate) async fn renew(self, known: watch::Receiver<Option<String>>, clock: SharedClock) {
        match self.renewal {
            Renewal::Directory(directory) => directory.watch(LOOK_AT_DIRECTORY, clock).await,
            Renewal::Secret(identity) => identity.follow(known).await,
        }
    }
}
