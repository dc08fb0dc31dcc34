//! The two things tasks share: a set of keys that changed, and the newest value per key.
//!
//! Between tasks there are no queues of states: memory is bounded by the number of keys, and a slow reader sees the
//! newest value only.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::Notify;

/// Keys that changed and were not looked at yet. Cloning shares the set.
#[derive(Debug)]
pub struct DirtySet<K> {
    inner: Arc<DirtyInner<K>>,
}

#[derive(Debug)]
struct DirtyInner<K> {
    keys: Mutex<BTreeSet<K>>,
    notify: Notify,
}

impl<K> Clone for DirtySet<K> {
    fn clone(&self) -> Self {
        Self { inner: self.inner.clone() }
    }
}

impl<K: Ord> Default for DirtySet<K> {
    fn default() -> Self {
        Self { inner: Arc::new(DirtyInner { keys: Mutex::new(BTreeSet::new()), notify: Notify::new() }) }
    }
}

impl<K: Ord> DirtySet<K> {
    /// Marks a key; wakes the reader.
    pub fn mark(&self, key: K) {
        self.inner.keys.lock().insert(key);
        self.inner.notify.notify_one();
    }

    /// Takes all marked keys, in order.
    pub fn take(&self) -> BTreeSet<K> {
        std::mem::take(&mut *self.inner.keys.lock())
    }

    /// Waits until a key is marked, then takes all. Cancel-safe. One reader at a time.
    pub async fn changed(&self) -> BTreeSet<K> {
        loop {
            let keys = self.take();
            if !keys.is_empty() {
                return keys;
            }
            self.inner.notify.notified().await;
        }
    }
}

/// The newest value per key, with the set of keys that changed. Cloning shares the table.
#[derive(Debug)]
pub struct Latest<K, V> {
    values: Arc<Mutex<BTreeMap<K, V>>>,
    dirty: DirtySet<K>,
}

impl<K, V> Clone for Latest<K, V> {
    fn clone(&self) -> Self {
        Self { values: self.values.clone(), dirty: self.dirty.clone() }
    }
}

impl<K: Ord, V> Default for Latest<K, V> {
    fn default() -> Self {
        Self { values: Arc::default(), dirty: DirtySet::default() }
    }
}

impl<K: Ord + Clone, V: Clone + PartialEq> Latest<K, V> {
    /// Replaces a value. Returns whether it differs from the one before; only then is the key marked.
    pub fn put(&self, key: K, value: V) -> bool {
        let mut values = self.values.lock();
        if values.get(&key) == Some(&value) {
            return false;
        }
        values.insert(key.clone(), value);
        drop(values);
        self.dirty.mark(key);
        true
    }

    /// Removes a value. Returns whether there was one.
    pub fn remove(&self, key: &K) -> bool {
        let removed = self.values.lock().remove(key).is_some();
        if removed {
            self.dirty.mark(key.clone());
        }
        removed
    }

    /// The newest value.
    pub fn of(&self, key: &K) -> Option<V> {
        self.values.lock().get(key).cloned()
    }

    /// The keys that have a value, without copying values.
    pub fn keys(&self) -> Vec<K> {
        self.values.lock().keys().cloned().collect()
    }

    /// All values as they are now.
    pub fn snapshot(&self) -> BTreeMap<K, V> {
        self.values.lock().clone()
    }

    /// The keys whose value changed.
    pub fn dirty(&self) -> &DirtySet<K> {
        &self.dirty
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_reader_sees_the_newest_value_once() {
        let table = Latest::default();
        assert!(table.put("a", 1));
        assert!(table.put("a", 2));
        assert!(!table.put("a", 2), "the same value is no change");
        assert_eq!(table.dirty().changed().await.into_iter().collect::<Vec<_>>(), ["a"]);
        assert_eq!(table.of(&"a"), Some(2));
        assert!(table.dirty().take().is_empty());
        assert!(table.remove(&"a"));
        assert_eq!(table.dirty().take().len(), 1);
    }
}
