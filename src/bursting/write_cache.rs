//! The freshest known version of an object: the cache's, or the answer to our own last write if that is newer.
//!
//! A decision on a version from before our own write could take that write back. Resource versions of one kind are
//! ordered numbers (Kubernetes 1.35 documents it; etcd's revision has always been one).
//!
//! An answer can come after the watch has already shown the end of the object: it was written, deleted, and seen to be
//! gone while our answer was on its way. What is entered then would stay for ever, so every write is announced with a
//! [`PendingWrite`], and the ends that are seen meanwhile are remembered for it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use kube::{Resource, ResourceExt};
use parking_lot::Mutex;
use tributary_cluster::caches::Change;
use tributary_cluster::{ObjectKey, RequestError};

/// Answers to our writes that the cache may not show yet.
#[derive(Debug)]
pub(super) struct WriteCache<K> {
    state: Mutex<State<K>>,
}

#[derive(Debug)]
struct State<K> {
    written: BTreeMap<ObjectKey, Arc<K>>,
    /// Writes under way.
    pens: BTreeMap<ObjectKey, Pens>,
}

/// The writes under way of one name.
#[derive(Debug, Default)]
struct Pens {
    count: usize,
    /// UIDs of objects that were seen to be gone since the first of these writes began.
    gone: BTreeSet<String>,
}

/// A write that is under way; its answer is entered through it.
#[derive(Debug)]
pub(super) struct PendingWrite<'a, K> {
    fresh: &'a WriteCache<K>,
    key: ObjectKey,
}

impl<K> Default for WriteCache<K> {
    fn default() -> Self {
        Self { state: Mutex::new(State { written: BTreeMap::new(), pens: BTreeMap::new() }) }
    }
}

impl<K: Resource> WriteCache<K> {
    /// Announces a write: to be called before the request is sent.
    pub(super) fn pen(&self, key: ObjectKey) -> PendingWrite<'_, K> {
        self.state.lock().pens.entry(key.clone()).or_default().count += 1;
        PendingWrite { fresh: self, key }
    }

    /// The freshest version, given the cache's.
    pub(super) fn of(&self, key: &ObjectKey, cached: Option<Arc<K>>) -> Option<Arc<K>> {
        let written = &mut self.state.lock().written;
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
        let mut state = self.state.lock();
        if let (None, Some(old)) = (&change.new, &change.old) {
            state.ended(&change.key, old.uid());
        }
        let Some(ours) = state.written.get(&change.key) else { return };
        let over = match &change.new {
            Some(new) => version(&**new) >= version(&**ours),
            // The end of an earlier object of this name says nothing of ours.
            None => change.old.as_ref().is_none_or(|old| old.uid() == ours.uid()),
        };
        if over {
            state.written.remove(&change.key);
        }
    }

    /// All that is remembered.
    pub(super) fn objects(&self) -> Vec<Arc<K>> {
        self.state.lock().written.values().cloned().collect()
    }

    /// Forgets the object of this UID: we deleted it, or found it gone.
    pub(super) fn forget(&self, key: &ObjectKey, uid: &str) {
        let mut state = self.state.lock();
        state.ended(key, Some(uid.to_owned()));
        if state.written.get(key).is_some_and(|ours| ours.uid().as_deref() == Some(uid)) {
            state.written.remove(key);
        }
    }

    /// Forgets everything: another leader may have written since.
    pub(super) fn clear(&self) {
        self.state.lock().written.clear();
    }
}

impl<K> State<K> {
    fn ended(&mut self, key: &ObjectKey, uid: Option<String>) {
        if let (Some(pens), Some(uid)) = (self.pens.get_mut(key), uid) {
            pens.gone.insert(uid);
        }
    }
}

impl<K: Resource> PendingWrite<'_, K> {
    /// Takes in the answer to the write, unless the object was seen to be gone meanwhile.
    pub(super) fn wrote(self, object: K) -> Arc<K> {
        let object = Arc::new(object);
        self.enter(object.clone());
        object
    }

    /// Takes in what became of a write to the object of this UID: one that is not there any more is forgotten, and one
    /// that is another by now is read again, whatever the cache missed.
    pub(super) async fn tried<T>(
        &self,
        uid: Option<String>,
        outcome: Result<T, RequestError>,
        read: impl Future<Output = kube::Result<Option<K>>>,
    ) -> Result<T, RequestError> {
        match (&outcome, uid) {
            (Err(error), Some(uid)) if error.cause().is_not_found() => self.fresh.forget(&self.key, &uid),
            (Err(error), _) if error.cause().is_conflict() => {
                // What cannot be read now is tried again with what is known.
                if let Ok(Some(object)) = read.await {
                    self.enter(Arc::new(object));
                }
            }
            _ => {}
        }
        outcome
    }

    fn enter(&self, object: Arc<K>) {
        let mut state = self.fresh.state.lock();
        let gone = state.pens.get(&self.key).zip(object.uid()).is_some_and(|(pens, uid)| pens.gone.contains(&uid));
        if !gone {
            state.written.insert(self.key.clone(), object);
        }
    }
}

impl<K> Drop for PendingWrite<'_, K> {
    fn drop(&mut self) {
        let mut state = self.fresh.state.lock();
        if let Some(pens) = state.pens.get_mut(&self.key) {
            pens.count -= 1;
            if pens.count == 0 {
                state.pens.remove(&self.key);
            }
        }
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
        let fresh = WriteCache::default();
        let key = ObjectKey::of(&object("u", "1"));
        let cached = |version: &str| Some(Arc::new(object("u", version)));
        fresh.pen(key.clone()).wrote(object("u", "10"));
        assert_eq!(fresh.of(&key, cached("9")).unwrap().resource_version().unwrap(), "10", "9 is not more than 10");
        assert_eq!(fresh.of(&key, None).unwrap().resource_version().unwrap(), "10");
        assert_eq!(fresh.of(&key, cached("11")).unwrap().resource_version().unwrap(), "11");
        assert!(fresh.of(&key, None).is_none(), "the cache had it and lost it");
    }

    #[test]
    fn the_end_of_the_object_before_is_not_the_end_of_ours() {
        let fresh = WriteCache::default();
        let key = ObjectKey::of(&object("u", "1"));
        fresh.pen(key.clone()).wrote(object("new", "10"));
        let gone = |uid: &str| Change { key: key.clone(), old: Some(Arc::new(object(uid, "5"))), new: None };
        fresh.saw(&gone("old"));
        assert!(fresh.of(&key, None).is_some());
        fresh.saw(&gone("new"));
        assert!(fresh.of(&key, None).is_none());
    }

    /// The danger: an object that is no more would be kept, and what it wants with it, until the agent ends.
    #[tokio::test]
    async fn an_answer_that_comes_after_the_end_of_its_object_is_not_kept() {
        let fresh = WriteCache::default();
        let key = ObjectKey::of(&object("u", "1"));
        let gone = |uid: &str| Change { key: key.clone(), old: Some(Arc::new(object(uid, "11"))), new: None };
        let (first, second) = (fresh.pen(key.clone()), fresh.pen(key.clone()));
        fresh.saw(&gone("u"));
        assert_eq!(first.wrote(object("u", "10")).resource_version().unwrap(), "10", "the writer gets its answer");
        assert!(fresh.of(&key, None).is_none());
        second.wrote(object("successor", "12"));
        assert!(fresh.of(&key, None).is_some(), "another object of the same name is not gone");
        let deleting = fresh.pen(key.clone());
        fresh.forget(&key, "successor");
        deleting.wrote(object("successor", "13"));
        assert!(fresh.of(&key, None).is_none(), "what we deleted ourselves is gone, too");
        assert!(fresh.state.lock().pens.is_empty(), "nothing is remembered without a write");
        fresh.pen(key.clone()).wrote(object("missed", "14"));
        let pen = fresh.pen(key.clone());
        let status = kube::core::Status::failure("no such object", "NotFound").with_code(404).boxed();
        let outcome = Err::<(), _>(RequestError::new("apply", "a", kube::Error::Api(status)));
        assert!(pen.tried(Some("missed".into()), outcome, async { Ok(None) }).await.is_err());
        assert!(fresh.of(&key, None).is_none(), "the API server's word counts, though the cache never showed it");
    }

    /// The danger: a step on an old version is tried again and again, until a watch that stands still goes on.
    #[tokio::test]
    async fn a_version_that_the_cache_missed_is_read_after_a_conflict() {
        let fresh = WriteCache::default();
        let key = ObjectKey::of(&object("u", "1"));
        let pen = fresh.pen(key.clone());
        let status = kube::core::Status::failure("it was modified", "Conflict").with_code(409).boxed();
        let outcome = Err::<(), _>(RequestError::new("apply", "a", kube::Error::Api(status)));
        assert!(pen.tried(Some("u".into()), outcome, async { Ok(Some(object("u", "7"))) }).await.is_err());
        let known = fresh.of(&key, Some(Arc::new(object("u", "5")))).unwrap();
        assert_eq!(known.resource_version().as_deref(), Some("7"));
    }
}
