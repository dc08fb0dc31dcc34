//! Tells whoever was refused for a ResourceQuota that there is more room by now. Quotas of a namespace are watched only while
//! somebody there waits for one.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use futures::stream::{FuturesUnordered, StreamExt};
use k8s_openapi::api::core::v1::{ResourceQuota, ResourceQuotaStatus};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use kube::Client;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};
use tributary_clock::SystemRng;

use super::caches::{self, Change, Selection};

/// Between two times that somebody is told: where pods come and go, quotas change all the time.
const PACE: Duration = Duration::from_secs(5);

/// How long quotas are watched after the last refusal. Longer than between two tries, so that each of them finds the watch.
const WATCHED: Duration = Duration::from_secs(600);

/// Who waits for quotas, by namespace. A key is told once of each refusal.
pub struct QuotaWatch<K> {
    reader: Client,
    milli: fn(&str) -> Option<i128>,
    waiting: watch::Sender<BTreeMap<String, BTreeSet<K>>>,
}

impl<K: Ord + Clone + Send + Sync + 'static> QuotaWatch<K> {
    /// Nobody waits. `milli` reads a quantity.
    pub fn new(reader: Client, milli: fn(&str) -> Option<i128>) -> Self {
        Self { reader, milli, waiting: watch::Sender::default() }
    }

    /// `key` was refused for a quota of a namespace.
    pub fn wait(&self, namespace: &str, key: K) {
        self.waiting.send_modify(|waiting| {
            waiting.entry(namespace.to_owned()).or_default().insert(key);
        });
    }

    /// Tells for as long as it is polled: in the leader's scope.
    pub async fn run(&self, tell: impl Fn(K) + Sync) {
        let (mut waiting, mut watched) = (self.waiting.subscribe(), BTreeSet::new());
        let mut watches = FuturesUnordered::new();
        loop {
            for namespace in waiting.borrow_and_update().keys() {
                if watched.insert(namespace.clone()) {
                    watches.push(self.look_after(namespace.clone(), &tell));
                }
            }
            tokio::select! {
                // The sender lives as long as we do.
                _ = waiting.changed() => {}
                Some(over) = watches.next() => {
                    watched.remove(&over);
                }
            }
        }
    }

    /// Tells of one namespace while anybody waits there.
    async fn look_after(&self, namespace: String, tell: &(impl Fn(K) + Sync)) -> String {
        let (cache, fill) = caches::in_namespace(self.reader.clone(), &namespace, &Selection::default(), SystemRng);
        let (more, mut changes) = watch::channel(());
        let milli = self.milli;
        let _subscription = cache.subscribe(move |change| {
            if leaves_more(change, milli) {
                more.send_replace(());
            }
        });
        let telling = async {
            cache.listed().await;
            // A quota may have changed between the refusal and this list.
            self.tell(&namespace, tell);
            loop {
                sleep(PACE).await;
                let changed = timeout(WATCHED, changes.changed()).await;
                if changed.is_err() && !self.waiting.borrow().contains_key(&namespace) {
                    return;
                }
                // After the time-out too: who is refused once more waits again, and who is gone does not.
                self.tell(&namespace, tell);
            }
        };
        tokio::select! {
            () = fill => {}
            () = telling => {}
        }
        namespace
    }

    fn tell(&self, namespace: &str, tell: impl Fn(K)) {
        let mut told = BTreeSet::new();
        self.waiting.send_if_modified(|waiting| {
            told = waiting.remove(namespace).unwrap_or_default();
            false
        });
        told.into_iter().for_each(tell);
    }
}

/// Whether something that did not fit may fit now.
fn leaves_more(change: &Change<ResourceQuota>, milli: fn(&str) -> Option<i128>) -> bool {
    let (old, new) = match (&change.old, &change.new) {
        (Some(old), Some(new)) => (old, new),
        // One that is gone limits nothing, and a new one leaves no more than was there.
        (_, new) => return new.is_none(),
    };
    let left = |quota: &ResourceQuota, word: &str| {
        let ResourceQuotaStatus { hard, used } = quota.status.as_ref()?;
        let read = |of: &Option<BTreeMap<String, Quantity>>| milli(&of.as_ref()?.get(word)?.0);
        Some(read(hard)? - read(used).unwrap_or(0))
    };
    let mut words = old.status.iter().flat_map(|status| status.hard.iter().flat_map(BTreeMap::keys));
    // What it counts may be something else by then.
    old.spec != new.spec || words.any(|word| left(new, word).is_none_or(|now| left(old, word) < Some(now)))
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use kube::api::DeleteParams;
    use serde_json::{Value, json};
    use tributary_clock::SystemClock;

    use super::*;
    use crate::client::Clients;
    use crate::fence::Fence;
    use crate::requests::RequestMetrics;
    use tributary_api_server::ApiServer;

    fn put(server: &ApiServer, hard: Value, used: Value) {
        let status = json!({"hard": hard, "used": used});
        let quota = json!({"metadata": {"namespace": "n", "name": "team"}, "status": status});
        server.put::<ResourceQuota>(&serde_json::from_value(quota).unwrap()).unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn who_was_refused_is_told_once_when_a_quota_leaves_more() {
        let clock = SystemClock::shared();
        let server = ApiServer::new("a", clock.clone());
        let (_state, fence) = Fence::closed(clock.clone());
        let clients = Clients::over(&server, fence, &RequestMetrics::default(), &clock);
        let watches = Arc::new(Mutex::new(0));
        let counted = watches.clone();
        server.on_request(move |info| {
            *counted.lock().unwrap() += u32::from(info.resource == "resourcequotas");
            None
        });
        let quotas = QuotaWatch::new(clients.reader, |text| Some(text.parse::<i128>().ok()? * 1000));
        let told = Mutex::new(Vec::new());
        let taken = || std::mem::take(&mut *told.lock().unwrap());
        let scenario = async {
            let after = |secs| sleep(Duration::from_secs(secs));
            put(&server, json!({"pods": "2"}), json!({"pods": "2"}));
            after(60).await;
            assert_eq!(*watches.lock().unwrap(), 0, "nobody waits");
            quotas.wait("n", "a");
            after(1).await;
            assert_eq!(taken(), ["a"], "something may have changed before the quotas were looked at");
            quotas.wait("n", "a");
            quotas.wait("n", "b");
            put(&server, json!({"pods": "2"}), json!({"pods": "1"}));
            after(6).await;
            assert_eq!(taken(), ["a", "b"]);
            quotas.wait("n", "b");
            // Less room, and the same.
            put(&server, json!({"pods": "2"}), json!({"pods": "2"}));
            put(&server, json!({"pods": "2", "secrets": "1"}), json!({"pods": "2"}));
            after(60).await;
            assert_eq!(taken(), [""; 0]);
            put(&server, json!({"pods": "3", "secrets": "1"}), json!({"pods": "2"}));
            after(6).await;
            assert_eq!(taken(), ["b"]);
            quotas.wait("n", "a");
            server.delete::<ResourceQuota>("n", "team", &DeleteParams::default()).unwrap();
            after(6).await;
            assert_eq!(taken(), ["a"]);
            quotas.wait("n", "deleted");
            after(WATCHED.as_secs() + 6).await;
            assert_eq!(taken(), ["deleted"], "nobody else says that it waits no more");
            after(2 * WATCHED.as_secs()).await;
            let before = *watches.lock().unwrap();
            after(WATCHED.as_secs()).await;
            assert_eq!(*watches.lock().unwrap(), before, "nobody waits any more");
        };
        tokio::select! {
            () = quotas.run(|key| told.lock().unwrap().push(key)) => {}
            () = scenario => {}
        }
    }
}
