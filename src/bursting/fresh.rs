//! The freshest known version of an object: the cache's, or the answer to our own last write if that is newer.
//!
//! A decision on a version from before our own write could take that write back. Resource versions of one kind are
//! ordered numbers (Kubernetes 1.35 documents it; etcd's revision has always been one).

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use kube::{Resource, ResourceExt};

use crate::cluster::ObjectKey;
use crate::cluster::caches::Change;

/// Answers to our writes that the cache may not show yet.
#[derive(Debug)]
pub(super) struct Fresh<K> {
    written: Mutex<BTreeMap<ObjectKey, Arc<K>>>,
}

impl<K> Default for Fresh<K> {
    fn default() -> Self {
        Self { written: Mutex::default() }
    }
}

impl<K: Resource> Fresh<K> {
    /// Takes in the answer to a write.
    pub(super) fn wrote(&self, object: K) -> Arc<K> {
        let object = Arc::new(object);
        self.lock().insert(ObjectKey::of(&*object), object.clone());
        object
    }

    /// The freshest version, given the cache's.
    pub(super) fn of(&self, key: &ObjectKey, cached: Option<Arc<K>>) -> Option<Arc<K>> {
        let mut written = self.lock();
        match (written.get(key), cached) {
            (None, cached) => cached,
            (Some(ours), None) => Some(ours.clone()),
            (Some(ours), Some(cached)) if version(&**ours) > version(&*cached) => Some(ours.clone()),
            (Some(_), cached) => {
                written.remove(key);
                cached
            }
        }
    }

    /// Takes in a change of the cache: what it shows, or shows the end of, is not remembered any more.
    pub(super) fn saw(&self, change: &Change<K>) {
        let mut written = self.lock();
        let Some(ours) = written.get(&change.key) else { return };
        let over = match &change.new {
            Some(new) => version(&**new) >= version(&**ours),
            // The end of an earlier object of this name says nothing of ours.
            None => change.old.as_ref().is_none_or(|old| old.uid() == ours.uid()),
        };
        if over {
            written.remove(&change.key);
        }
    }

    /// All that is remembered.
    pub(super) fn objects(&self) -> Vec<Arc<K>> {
        self.lock().values().cloned().collect()
    }

    /// Forgets an object: a write found it gone.
    pub(super) fn forget(&self, key: &ObjectKey) {
        self.lock().remove(key);
    }

    /// Forgets everything: another leader may have written since.
    pub(super) fn clear(&self) {
        self.lock().clear();
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<ObjectKey, Arc<K>>> {
        // Each critical section is one insert, remove or clone.
        self.written.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn version(object: &impl Resource) -> u64 {
    object.meta().resource_version.as_deref().and_then(|version| version.parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::ConfigMap;
    use serde_json::json;

    use super::*;

    fn object(uid: &str, version: &str) -> ConfigMap {
        serde_json::from_value(json!({"metadata": {"name": "a", "uid": uid, "resourceVersion": version}})).unwrap()
    }

    #[test]
    fn our_own_write_counts_until_the_cache_has_it() {
        let fresh = Fresh::default();
        let key = ObjectKey::of(&object("u", "1"));
        let cached = |version: &str| Some(Arc::new(object("u", version)));
        fresh.wrote(object("u", "10"));
        assert_eq!(fresh.of(&key, cached("9")).unwrap().resource_version().unwrap(), "10", "9 is not more than 10");
        assert_eq!(fresh.of(&key, None).unwrap().resource_version().unwrap(), "10");
        assert_eq!(fresh.of(&key, cached("11")).unwrap().resource_version().unwrap(), "11");
        assert!(fresh.of(&key, None).is_none(), "the cache had it and lost it");
    }

    #[test]
    fn the_end_of_the_object_before_is_not_the_end_of_ours() {
        let fresh = Fresh::default();
        let key = ObjectKey::of(&object("u", "1"));
        fresh.wrote(object("new", "10"));
        let gone = |uid: &str| Change { key: key.clone(), old: Some(Arc::new(object(uid, "5"))), new: None };
        fresh.saw(&gone("old"));
        assert!(fresh.of(&key, None).is_some());
        fresh.saw(&gone("new"));
        assert!(fresh.of(&key, None).is_none());
    }
}
