//! Who waits for what: the answer of `/readyz`, in words.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;

/// The parts of a process that are not ready yet, each with its reason. Cloning shares the list.
#[derive(Clone, Debug, Default)]
pub struct Readiness {
    waits: Arc<Mutex<BTreeMap<&'static str, String>>>,
}

impl Readiness {
    /// `who` waits because of `why`. Said again with the same reason, it is not logged again.
    pub fn waits(&self, who: &'static str, why: impl Into<String>) {
        let why = why.into();
        let old = self.waits.lock().insert(who, why.clone());
        if old.as_ref() != Some(&why) {
            tracing::info!(who, why, "waiting");
        }
    }

    /// `who` waits no longer.
    pub fn done(&self, who: &'static str) {
        if self.waits.lock().remove(who).is_some() {
            tracing::info!(who, "ready");
        }
    }

    /// Everybody who waits, and why. Empty: ready.
    pub fn waiting(&self) -> BTreeMap<&'static str, String> {
        self.waits.lock().clone()
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
