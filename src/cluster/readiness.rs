//! Who waits for what: the answer of `/readyz`, in words.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The parts of a process that are not ready yet, each with its reason. Cloning shares the list.
#[derive(Clone, Debug, Default)]
pub struct Readiness {
    waits: Arc<Mutex<BTreeMap<&'static str, String>>>,
}

impl Readiness {
    /// `who` waits because of `why`. Said again with the same reason, it is not logged again.
    pub fn waits(&self, who: &'static str, why: impl Into<String>) {
        let why = why.into();
        let old = self.lock().insert(who, why.clone());
        if old.as_ref() != Some(&why) {
            tracing::info!(who, why, "waiting");
        }
    }

    /// `who` waits no longer.
    pub fn done(&self, who: &'static str) {
        if self.lock().remove(who).is_some() {
            tracing::info!(who, "ready");
        }
    }

    /// Everybody who waits, and why. Empty: ready.
    pub fn waiting(&self) -> BTreeMap<&'static str, String> {
        self.lock().clone()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<&'static str, String>> {
        // Each critical section is one insert, remove or clone.
        self.waits.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ready_is_when_nobody_waits() {
        let readiness = Readiness::default();
        readiness.waits("kinds", "Burst is not served");
        readiness.clone().waits("caches", "Job is being listed");
        readiness.done("caches");
        assert_eq!(readiness.waiting(), BTreeMap::from([("kinds", "Burst is not served".into())]));
        readiness.done("kinds");
        assert!(readiness.waiting().is_empty());
    }
}
