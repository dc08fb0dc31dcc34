//! Keys that changed: the task that writes a table marks them, and the task that reads it takes them.
//!
//! Between tasks there are no queues of states: memory is bounded by the number of keys, and a slow reader sees the
//! newest value only.

use std::collections::BTreeSet;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_reader_sees_each_key_once() {
        let set = DirtySet::default();
        set.clone().mark("a");
        set.mark("a");
        assert_eq!(set.changed().await, ["a"].into());
        assert!(set.take().is_empty());
    }
}
