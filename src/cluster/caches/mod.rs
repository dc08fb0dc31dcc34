//! Shared watches, one per kind, that always run: on a standby too, so that it is warm when it takes over.
//!
//! A cache outlives every error of its watch: what it holds stays, the watch is begun again with a growing delay, and
//! only a complete new list removes what it does not name.

mod guarded;
mod store;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use futures::future::join_all;
use k8s_openapi::api::core::v1::Namespace;
use kube::core::NamespaceResourceScope;
use kube::runtime::watcher::{self, Event};
use kube::{Api, Client, Resource};
use parking_lot::{Mutex, RwLock};
use serde::de::DeserializeOwned;
use tokio::sync::{Notify, watch};

pub(crate) use guarded::{Guarded, without_managed_fields};

pub(crate) use store::{By, Unreadable};
pub use store::{Change, controller_uid};

use store::{Part, Store};
use tributary_clock::{Backoff, Rng};

use super::client::Clients;
use super::error::{Cause, absence, chain};
use super::key::ObjectKey;
use super::worker::Queue;

/// Between attempts of a watch that fails. Short at most: after an outage every cache of every agent must be back well
/// before the peers' grace period ends.
const RETRY: Backoff = Backoff { first: Duration::from_millis(250), most: Duration::from_secs(8) };

/// How long a watch lasts, in seconds. The API server ends it then, and says how far it has come; the watch goes on
/// from there. One whose connection is dead, at this end or behind a proxy, is given up 5 s after that (kube's margin),
/// and noticed in no other way: nothing is sent on a watch.
pub(super) const WATCH_SECONDS: u32 = 35;

/// What a kind must offer to be watched.
pub trait Watched: Resource<DynamicType = ()> + DeserializeOwned + Clone + Debug + Send + Sync + 'static {}
impl<K: Resource<DynamicType = ()> + DeserializeOwned + Clone + Debug + Send + Sync + 'static> Watched for K {}

/// The objects of one kind. Cloning shares them.
pub struct Cache<K> {
    shared: Arc<Shared<K>>,
}

struct Shared<K> {
    store: RwLock<Store<K>>,
    condition: watch::Sender<Condition>,
    /// Counts what is news of objects that cannot be read.
    unreadable: watch::Sender<u64>,
    /// How often new lists were asked for.
    asked: watch::Sender<u64>,
    /// Which of these the last complete list of each part answers.
    lists: watch::Sender<BTreeMap<Part, u64>>,
    /// How many parts there are.
    parts: usize,
    subscribers: Mutex<Subscribers<K>>,
}

struct Subscribers<K> {
    next: u64,
    listeners: BTreeMap<u64, Listener<K>>,
    /// Of objects that are left to other controllers: their keys.
    of_left_alone: BTreeMap<u64, KeyListener>,
}

type Listener<K> = Arc<dyn Fn(&Change<K>) + Send + Sync>;
type KeyListener = Arc<dyn Fn(&ObjectKey) + Send + Sync>;

/// The objects of a cache by something that they say. Cloning shares them.
pub struct Indexed<K> {
    cache: Cache<K>,
    index: usize,
}

impl<K> Clone for Indexed<K> {
    fn clone(&self) -> Self {
        Self { cache: self.cache.clone(), index: self.index }
    }
}

impl<K: Watched> Indexed<K> {
    /// The objects that say this, in the order of their keys.
    pub fn of(&self, value: &str) -> Vec<Arc<K>> {
        self.cache.read(|store| store.indexed(self.index, value))
    }

    /// Whether any object says this.
    pub fn has(&self, value: &str) -> bool {
        self.cache.read(|store| store.is_indexed(self.index, value))
    }
}

/// How a cache is doing.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Condition {
    /// The first list is complete: absence from the cache means something.
    pub listed: bool,
    /// Why watches do not run at the moment, by namespace; without one: that of the whole cluster.
    pub troubles: BTreeMap<Option<String>, String>,
}

impl Condition {
    /// Whether every watch runs.
    pub fn runs(&self) -> bool {
        self.troubles.is_empty()
    }
}

/// Which objects a cache holds. Empty selectors hold all.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Selection {
    /// A label selector as in `kubectl -l`.
    pub labels: String,
    /// A field selector as in `kubectl --field-selector`.
    pub fields: String,
}

impl Selection {
    /// Objects that match a label selector.
    pub fn labels(labels: impl Into<String>) -> Self {
        Self { labels: labels.into(), fields: String::new() }
    }

    /// The objects of one name.
    pub fn named(name: &str) -> Self {
        Self { labels: String::new(), fields: format!("metadata.name={name}") }
    }
}

/// A cache of the whole cluster and the watch that fills it. The watch never ends: spawn it, and end it by dropping it.
pub fn all<K: Watched, R: Rng + 'static>(
    reader: Client,
    selection: &Selection,
    rng: R,
) -> (Cache<K>, impl Future<Output = ()> + Send + use<K, R>) {
    let cache = Cache::empty();
    (cache.clone(), fill(cache, (None, Api::all(reader)), None, config(selection), rng))
}

/// A cache of one namespace and the watch that fills it, as [`all`].
pub fn in_namespace<K, R>(
    reader: Client,
    namespace: &str,
    selection: &Selection,
    rng: R,
) -> (Cache<K>, impl Future<Output = ()> + Send + use<K, R>)
where
    K: Watched + Resource<Scope = NamespaceResourceScope>,
    R: Rng + 'static,
{
    let cache = Cache::empty();
    let api = Api::namespaced(reader, namespace);
    (cache.clone(), fill(cache, (Some(namespace.to_owned()), api), None, config(selection), rng))
}

/// A cache of the namespaces that this agent works in, and the watches that fill it, as [`all`]: one for the whole cluster,
/// or one for each namespace that [`Clients::namespaces`] names.
pub fn watched<K, R>(
    clients: &Clients,
    selection: &Selection,
    rng: R,
) -> (Cache<K>, impl Future<Output = ()> + Send + use<K, R>)
where
    K: Watched + Resource<Scope = NamespaceResourceScope>,
    R: Rng + Clone + 'static,
{
    let reader = || clients.reader.clone();
    let namespaces: Api<Namespace> = Api::all(reader());
    let parts: Vec<(Part, Api<Guarded<K>>)> = match &*clients.namespaces {
        [] => vec![(None, Api::all(reader()))],
        named => named.iter().map(|name| (Some(name.clone()), Api::namespaced(reader(), name))).collect(),
    };
    let cache = Cache::of_parts(parts.len());
    let fill_part = |(part, api): (Part, Api<Guarded<K>>)| {
        let (rng, namespaces) = (rng.clone(), part.is_some().then(|| namespaces.clone()));
        fill(cache.clone(), (part, api), namespaces, config(selection), rng)
    };
    let filling: Vec<_> = parts.into_iter().map(fill_part).collect();
    (cache, async move { drop(join_all(filling).await) })
}

fn config(selection: &Selection) -> watcher::Config {
    let some = |text: &String| (!text.is_empty()).then(|| text.clone());
    watcher::Config {
        label_selector: some(&selection.labels),
        field_selector: some(&selection.fields),
        timeout: Some(WATCH_SECONDS),
        ..watcher::Config::default()
    }
}

/// `namespaces`: where it is looked whether the part's namespace is there, if it may be gone.
async fn fill<K: Watched>(
    cache: Cache<K>,
    (part, api): (Part, Api<Guarded<K>>),
    namespaces: Option<Api<Namespace>>,
    config: watcher::Config,
    mut rng: impl Rng,
) {
    let mut asked = cache.shared.asked.subscribe();
    let mut answers = *asked.borrow_and_update();
    let mut events = watcher::watcher(api.clone(), config.clone()).boxed();
    let mut failures = 0;
    loop {
        let event = tokio::select! {
            biased;
            Ok(()) = asked.changed() => {
                answers = *asked.borrow_and_update();
                cache.tell_all(&part);
                events = watcher::watcher(api.clone(), config.clone()).boxed();
                continue;
            }
            event = events.next() => event,
        };
        let Some(event) = event else { break };
        match event {
            Ok(event) => {
                // `Init` comes before the list is asked for: it says nothing about the API server.
                if !matches!(event, Event::Init) {
                    failures = 0;
                }
                let done = matches!(event, Event::InitDone);
                cache.take_part(&part, event);
                if done {
                    cache.answered(&part, answers);
                }
            }
            Err(error) => {
                failures += 1;
                // A namespace that is gone keeps nobody waiting for what is in the others.
                let gone = match (&namespaces, &part, &error) {
                    (
                        Some(namespaces),
                        Some(part),
                        watcher::Error::InitialListFailed(cause)
                        | watcher::Error::WatchStartFailed(cause)
                        | watcher::Error::WatchFailed(cause),
                    ) => is_gone(cause, namespaces, part).await,
                    _ => false,
                };
                if gone {
                    cache.take_part(&part, Event::Init);
                    cache.take_part(&part, Event::InitDone);
                    cache.answered(&part, answers);
                } else {
                    cache.failed(&part, words(error));
                }
                tokio::time::sleep(RETRY.delay(failures, rng.unit())).await;
            }
        }
    }
}

/// Whether a request was refused since there is no such namespace, by the API server's own word: the rights in a namespace
/// go with it, and so has all that was in it.
pub async fn is_gone(error: &kube::Error, namespaces: &Api<Namespace>, name: &str) -> bool {
    let denied = matches!(error, kube::Error::Api(status) if status.code == 403);
    denied && matches!(absence(namespaces.get(name).await, name), Ok(None))
}

fn words(error: watcher::Error) -> String {
    let (what, cause) = match error {
        watcher::Error::InitialListFailed(cause) => ("failed to list", cause.into()),
        watcher::Error::WatchStartFailed(cause) => ("failed to start the watch", cause.into()),
        watcher::Error::WatchFailed(cause) => ("the watch broke off", cause.into()),
        watcher::Error::WatchError(status) => ("the watch was ended", Cause::from(*status)),
        watcher::Error::NoResourceVersion => return "the kind cannot be watched".into(),
    };
    format!("{what}: {}", chain(&cause))
}

impl<K> Clone for Cache<K> {
    fn clone(&self) -> Self {
        Self { shared: self.shared.clone() }
    }
}

impl<K: Watched> Cache<K> {
    /// A cache that no watch fills: tests put into it with [`Cache::take`].
    pub fn empty() -> Self {
        Self::of_parts(1)
    }

    fn of_parts(parts: usize) -> Self {
        let subscribers =
            Mutex::new(Subscribers { next: 0, listeners: BTreeMap::new(), of_left_alone: BTreeMap::new() });
        let condition = watch::Sender::new(Condition::default());
        let (unreadable, asked, lists) = (watch::Sender::new(0), watch::Sender::new(0), watch::Sender::default());
        Self {
            shared: Arc::new(Shared {
                store: RwLock::default(),
                condition,
                unreadable,
                asked,
                lists,
                parts,
                subscribers,
            }),
        }
    }

    /// The object of a key.
    pub fn of(&self, key: &ObjectKey) -> Option<Arc<K>> {
        self.read(|store| store.objects.get(key).cloned())
    }

    /// All objects, in the order of their keys.
    pub fn objects(&self) -> Vec<Arc<K>> {
        self.read(|store| store.objects.values().cloned().collect())
    }

    /// How many objects there are.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.read(|store| store.objects.len())
    }

    /// The objects whose controller has this UID, in the order of their keys.
    pub fn controlled_by(&self, uid: &str) -> Vec<Arc<K>> {
        self.read(|store| store.controlled_by(uid))
    }

    /// Lets objects be found by something else that they say, too.
    pub fn indexed(&self, by: By<K>) -> Indexed<K> {
        let index = self.shared.store.write().index_by(by);
        Indexed { cache: self.clone(), index }
    }

    /// Leaves objects of other controllers alone from now on: none of them is in the cache, or told. To be called before the
    /// cache is filled.
    pub fn leave_alone(&self, managed_by: fn(&K) -> Option<&str>) {
        self.shared.store.write().managed_by = Some(managed_by);
    }

    /// Objects that are left to other controllers, in the order of their keys.
    pub fn left_alone(&self) -> Vec<Arc<K>> {
        self.read(|store| store.left_alone.values().cloned().collect())
    }

    /// The same of one key.
    pub fn left_alone_of(&self, key: &ObjectKey) -> Option<Arc<K>> {
        self.read(|store| store.left_alone.get(key).cloned())
    }

    /// Marks in `queue` what `key` names for each of these that is made, changes or goes.
    pub fn feed_left_alone<Q: Ord + Clone + Send + 'static>(
        &self,
        queue: &Queue<Q>,
        key: impl Fn(&ObjectKey) -> Option<Q> + Send + Sync + 'static,
    ) -> Subscription {
        let queue = queue.clone();
        let listener: KeyListener = Arc::new(move |of| key(of).into_iter().for_each(|key| queue.mark(key)));
        let subscription = self.subscribed(|to, id| drop(to.of_left_alone.insert(id, listener.clone())));
        self.left_alone().iter().for_each(|object| listener(&ObjectKey::of(&**object)));
        subscription
    }

    /// Objects that exist and cannot be read. What is missing because of them must not be taken for deleted.
    pub fn unreadable(&self) -> Vec<Unreadable> {
        self.read(|store| store.unreadable.values().cloned().collect())
    }

    /// The same of one key.
    pub fn unreadable_of(&self, key: &ObjectKey) -> Option<Unreadable> {
        self.read(|store| store.unreadable.get(key).cloned())
    }

    /// Says that there is news of objects that cannot be read.
    pub fn unreadable_changes(&self) -> watch::Receiver<u64> {
        self.shared.unreadable.subscribe()
    }

    /// How the cache is doing.
    pub fn condition(&self) -> Condition {
        self.shared.condition.borrow().clone()
    }

    /// Whether absence from this cache means that the object does not exist: the first list is complete, and every
    /// object could be read.
    pub fn is_complete(&self) -> bool {
        self.condition().listed && self.read(|store| store.unreadable.is_empty())
    }

    /// Waits until the first list is complete.
    pub async fn listed(&self) {
        // The sender lives in `self`, so waiting cannot fail.
        let _ = self.shared.condition.subscribe().wait_for(|condition| condition.listed).await;
    }

    /// Begins the watch again with a new list, and waits until that is complete. Every object is told to the subscribers,
    /// even at the version that was known: for kinds whose definition has changed what the API server shows.
    pub async fn list_again(&self) {
        let mut wanted = 0;
        self.shared.asked.send_modify(|asked| {
            *asked += 1;
            wanted = *asked;
        });
        let parts = self.shared.parts;
        let complete =
            |lists: &BTreeMap<Part, u64>| lists.len() == parts && lists.values().all(|answered| *answered >= wanted);
        // The sender lives in `self`, so waiting cannot fail.
        let _ = self.shared.lists.subscribe().wait_for(complete).await;
    }

    fn tell_all(&self, part: &Part) {
        self.shared.store.write().tell_all.insert(part.clone());
    }

    /// Calls `listener` for each change, until the subscription is dropped; first for every object there is. It is
    /// called from the task of the watch and must not block. A change near the beginning can be told twice.
    pub fn subscribe(&self, listener: impl Fn(&Change<K>) + Send + Sync + 'static) -> Subscription {
        let listener: Listener<K> = Arc::new(listener);
        let subscription = self.subscribed(|to, id| drop(to.listeners.insert(id, listener.clone())));
        for object in self.objects() {
            listener(&Change { key: ObjectKey::of(&*object), old: None, new: Some(object) });
        }
        subscription
    }

    fn subscribed(&self, add: impl FnOnce(&mut Subscribers<K>, u64)) -> Subscription {
        let mut subscribers = self.shared.subscribers.lock();
        let id = subscribers.next;
        subscribers.next += 1;
        add(&mut subscribers, id);
        let shared = Arc::downgrade(&self.shared);
        Subscription(Box::new(move || {
            if let Some(shared) = shared.upgrade() {
                let mut subscribers = shared.subscribers.lock();
                subscribers.listeners.remove(&id);
                subscribers.of_left_alone.remove(&id);
            }
        }))
    }

    /// Notifies of each change, as [`Cache::subscribe`].
    pub fn wakes(&self, notify: &Arc<Notify>) -> Subscription {
        let notify = notify.clone();
        self.subscribe(move |_| notify.notify_one())
    }

    /// Marks in `queue` what `keys` names for each object that changes, as it was and as it is.
    pub fn feed<Q: Ord + Clone + Send + 'static, L: Ord + Clone + Send + 'static>(
        &self,
        queue: &Queue<Q, L>,
        keys: impl Fn(&K) -> Vec<Q> + Send + Sync + 'static,
    ) -> Subscription {
        let queue = queue.clone();
        self.subscribe(move |change| {
            let versions = change.old.iter().chain(&change.new);
            let marked: BTreeSet<Q> = versions.flat_map(|object| keys(object)).collect();
            marked.into_iter().for_each(|key| queue.mark(key));
        })
    }

    /// Takes in an event of the watch of the whole cluster, as [`all`] does.
    pub fn take(&self, event: Event<Guarded<K>>) {
        self.take_part(&None, event);
    }

    /// Takes in an event of a watch and tells the subscribers what changed.
    fn take_part(&self, part: &Part, event: Event<Guarded<K>>) {
        let done = matches!(event, Event::InitDone);
        let begins = matches!(event, Event::Init);
        let unreadable = matches!(&event, Event::Apply(Guarded(Err(_))) | Event::InitApply(Guarded(Err(_))));
        if let Event::Apply(Guarded(Err(bad))) | Event::InitApply(Guarded(Err(bad))) = &event {
            let (name, namespace) = (bad.metadata.name.as_deref(), bad.metadata.namespace.as_deref());
            tracing::warn!(kind = %K::kind(&()), namespace, name, error = bad.error, "an object cannot be read; it is skipped");
        }
        let mut store = self.shared.store.write();
        let before = store.unreadable.len();
        let changes = store.take(part, event);
        let unreadable = unreadable || store.unreadable.len() != before;
        let left_alone = std::mem::take(&mut store.news_of_left_alone);
        let complete = done && store.listed_all(part, self.shared.parts);
        drop(store);
        if unreadable {
            self.shared.unreadable.send_modify(|count| *count += 1);
        }
        if !begins {
            self.shared.condition.send_if_modified(|condition| {
                // What comes of one part says nothing about another.
                let runs_again = condition.troubles.remove(part).is_some();
                let is_listed_now = complete && !condition.listed;
                condition.listed |= complete;
                runs_again || is_listed_now
            });
        }
        let listeners: Vec<_> = self.shared.subscribers.lock().listeners.values().cloned().collect();
        for change in &changes {
            listeners.iter().for_each(|listener| listener(change));
        }
        if !left_alone.is_empty() {
            let listeners: Vec<_> = self.shared.subscribers.lock().of_left_alone.values().cloned().collect();
            left_alone.iter().for_each(|key| listeners.iter().for_each(|listener| listener(key)));
        }
    }

    /// The list of a part that was asked for is complete.
    fn answered(&self, part: &Part, answers: u64) {
        self.shared.lists.send_modify(|lists| {
            let _ = lists.insert(part.clone(), answers);
        });
    }

    fn failed(&self, part: &Part, trouble: String) {
        self.shared.condition.send_if_modified(|condition| {
            if condition.troubles.get(part) == Some(&trouble) {
                return false;
            }
            let namespace = part.as_deref();
            tracing::warn!(kind = %K::kind(&()), namespace, error = trouble, "a watch failed; it is begun again");
            condition.troubles.insert(part.clone(), trouble);
            true
        });
    }

    fn read<T>(&self, look: impl FnOnce(&Store<K>) -> T) -> T {
        look(&self.shared.store.read())
    }
}

/// The key of the object of kind `O` that controls `child`.
pub fn controller_of<O: Resource<DynamicType = ()>>(child: &impl Resource) -> Option<ObjectKey> {
    let meta = child.meta();
    let owner = meta.owner_references.iter().flatten().find(|owner| owner.controller == Some(true))?;
    let group = owner.api_version.split_once('/').map_or("", |(group, _)| group);
    let of_kind = owner.kind == O::kind(&()) && group == O::group(&());
    of_kind.then(|| ObjectKey { namespace: meta.namespace.clone(), name: owner.name.clone() })
}

/// Ends a subscription when it is dropped.
#[must_use = "dropping it ends the subscription"]
pub struct Subscription(Box<dyn Fn() + Send + Sync>);

impl Drop for Subscription {
    fn drop(&mut self) {
        (self.0)();
    }
}

#[cfg(test)]
mod tests;
