//! The identity in use. Whoever makes or takes connections asks for the newest one each time, so a renewed certificate
//! needs no restart; existing connections keep theirs until the mesh replaces them.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tributary_clock::SharedClock;

use super::own::{Identity, IdentityError, Material, Origin};

/// The newest identity. Cloning shares it.
#[derive(Clone, Debug)]
pub struct IdentityStore(Arc<watch::Sender<Arc<Identity>>>);

impl IdentityStore {
    /// A store with its first identity.
    pub fn new(identity: Identity) -> Self {
        Self(Arc::new(watch::Sender::new(Arc::new(identity))))
    }

    /// The newest one.
    pub fn current(&self) -> Arc<Identity> {
        self.0.borrow().clone()
    }

    /// Takes a renewed one into use, for connections made from now on. Returns whether it is another: the same
    /// certificate with the same trust bundle is no renewal, and nobody is told.
    pub fn replace(&self, identity: Identity) -> bool {
        let renewed = self.0.send_if_modified(|current| {
            let renewed = !current.is_same(&identity);
            if renewed {
                *current = Arc::new(identity);
            }
            renewed
        });
        if renewed {
            let current = self.current();
            let (id, not_after, fingerprint) = (current.id(), current.not_after(), current.fingerprint());
            tracing::info!(%id, %not_after, fingerprint, "identity renewed");
        }
        renewed
    }

    /// Sees every renewal: a session that runs on the old certificate is to be replaced before that ends.
    pub fn subscribe(&self) -> watch::Receiver<Arc<Identity>> {
        self.0.subscribe()
    }
}

/// Re-reads a directory, such as a mounted Secret, into a store.
#[derive(Debug)]
pub struct IdentityDirectory {
    dir: PathBuf,
    cluster: String,
    store: IdentityStore,
    /// What the store holds.
    seen: Material,
    /// What was reported as defective.
    defective: Option<Material>,
}

impl IdentityDirectory {
    /// Loads the identity of `cluster` from `dir` for the first time.
    pub fn open(dir: PathBuf, cluster: &str, clock: &SharedClock) -> Result<Self, IdentityError> {
        let seen = Material::read(&dir)?;
        let origin = Origin::Directory(dir.clone());
        let store = IdentityStore::new(Identity::from_material(&seen, &origin, cluster, clock.wall())?);
        Ok(Self { dir, cluster: cluster.to_owned(), store, seen, defective: None })
    }

    /// The store it keeps up to date.
    pub fn store(&self) -> &IdentityStore {
        &self.store
    }

    /// Looks once. Returns whether the identity was renewed; a defective one changes nothing, and is reported once.
    pub(crate) fn reload(&mut self, clock: &SharedClock) -> Result<bool, IdentityError> {
        let material = Material::read(&self.dir)?;
        if material == self.seen {
            return Ok(false);
        }
        let origin = Origin::Directory(self.dir.clone());
        match Identity::from_material(&material, &origin, &self.cluster, clock.wall()) {
            Ok(identity) => {
                self.seen = material;
                self.defective = None;
                Ok(self.store.replace(identity))
            }
            // Tried again all the same: a certificate that is not valid yet will be.
            Err(_) if self.defective.as_ref() == Some(&material) => Ok(false),
            Err(error) => {
                self.defective = Some(material);
                Err(error)
            }
        }
    }

    /// Looks every `interval` until dropped. What is wrong is logged, and the identity before stays in use.
    pub async fn watch(mut self, interval: Duration, clock: SharedClock) {
        loop {
            tokio::time::sleep(interval).await;
            if let Err(error) = self.reload(&clock) {
                let error: &dyn std::error::Error = &error;
                tracing::warn!(error, "failed to renew the identity; the one before stays in use");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use tributary_clock::{Clock, Mono};

    use super::*;
    use crate::identity::Authority;
    use crate::identity::files::Existing;

    struct Noon;

    impl Clock for Noon {
        fn mono(&self) -> Mono {
            Mono::ZERO
        }
        fn wall(&self) -> Timestamp {
            "2025-06-01T12:00:00Z".parse().unwrap()
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_renewed_certificate_is_taken_and_a_broken_one_is_not() {
        let clock: SharedClock = Arc::new(Noon);
        let dir = tempfile::tempdir().unwrap();
        let authority = Authority::create("river", clock.wall()).unwrap();
        let issue = |hours: u64| authority.issue("east", clock.wall(), Duration::from_secs(hours * 3600)).unwrap();
        issue(1).write(dir.path(), Existing::Refuse).unwrap();

        let mut directory = IdentityDirectory::open(dir.path().into(), "east", &clock).unwrap();
        let store = directory.store().clone();
        let first = store.current();
        assert!(!directory.reload(&clock).unwrap(), "nothing changed");

        std::fs::write(dir.path().join("tls.key"), "half written").unwrap();
        assert!(directory.reload(&clock).is_err());
        assert!(!directory.reload(&clock).unwrap(), "the same defect is reported once");
        assert_eq!(store.current().fingerprint(), first.fingerprint());

        let mut renewals = store.subscribe();
        let watching = tokio::spawn(directory.watch(Duration::from_secs(10), clock.clone()));
        issue(2).write(dir.path(), Existing::Replace).unwrap();
        renewals.changed().await.unwrap();
        assert_ne!(store.current().fingerprint(), first.fingerprint());
        assert_eq!(store.current().not_after().to_string(), "2025-06-01T14:00:00Z");
        watching.abort();

        let again = Identity::from_directory(dir.path(), "east", clock.wall()).unwrap();
        assert!(!store.replace(again), "the same is no renewal");
        assert!(!renewals.has_changed().unwrap());
    }
}
