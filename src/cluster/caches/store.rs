//! The objects of one kind, as a watch delivers them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::runtime::watcher::Event;
use kube::{Resource, ResourceExt};

use serde_json::Value;
use tributary_api::minicluster::is_another;

use super::guarded::Guarded;
use crate::key::ObjectKey;

/// A change of one object. `old` and `new` are not both `None`.
#[derive(Debug)]
pub struct Change<K> {
    /// Which object.
    pub key: ObjectKey,
    /// As it was; `None`: it is new to us.
    pub old: Option<Arc<K>>,
    /// As it is; `None`: it is gone.
    pub new: Option<Arc<K>>,
}

/// An object that does not fit its type.
#[derive(Clone, PartialEq, Debug)]
pub struct Unreadable {
    /// Which object.
    pub key: ObjectKey,
    /// `metadata.uid`.
    pub uid: Option<String>,
    /// `metadata.resourceVersion`.
    pub version: Option<String>,
    /// `metadata.generation`.
    pub generation: Option<i64>,
    /// Where it does not fit.
    pub error: String,
    /// What its status says.
    pub conditions: Vec<Condition>,
    /// All of its status.
    pub status: Value,
    /// `spec.managedBy`.
    pub managed_by: Option<String>,
}

/// Which controller an object names as its own, of a kind of which objects may be left to others.
pub(super) type ManagedBy<K> = fn(&K) -> Option<&str>;

/// What else an object is found by, if it is.
pub(crate) type By<K> = fn(&K) -> Option<String>;

/// Objects by what they say.
#[derive(Debug)]
struct Index<K> {
    by: By<K>,
    keys: BTreeMap<String, BTreeSet<ObjectKey>>,
}

/// What one watch fills: the objects of a namespace, or all.
pub(super) type Part = Option<String>;

/// The objects of one kind, by key and by what they are indexed by: the UID of their controller, and what users of the cache
/// ask for.
#[derive(Debug)]
pub(super) struct Store<K> {
    pub(super) objects: BTreeMap<ObjectKey, Arc<K>>,
    pub(super) unreadable: BTreeMap<ObjectKey, Unreadable>,
    /// Objects that are left to other controllers. Nobody here looks at them, but to say so.
    pub(super) left_alone: BTreeMap<ObjectKey, Arc<K>>,
    /// Keys of such objects that changed since somebody asked.
    pub(super) news_of_left_alone: BTreeSet<ObjectKey>,
    /// Set where there may be such objects.
    pub(super) managed_by: Option<ManagedBy<K>>,
    indexes: Vec<Index<K>>,
    /// While lists run, one for each part of the cache: what they named so far.
    listed: BTreeMap<Part, BTreeSet<ObjectKey>>,
    /// Parts that were listed whole at least once.
    complete: BTreeSet<Part>,
    /// Of these parts, until their next list is complete, an object at its old version is a change too.
    pub(super) tell_all: BTreeSet<Part>,
}

/// The index that every store has.
const BY_CONTROLLER: usize = 0;

impl<K: Resource> Default for Store<K> {
    fn default() -> Self {
        let by: By<K> = |object| controller_uid(object).map(str::to_owned);
        Self {
            objects: BTreeMap::new(),
            unreadable: BTreeMap::new(),
            left_alone: BTreeMap::new(),
            news_of_left_alone: BTreeSet::new(),
            managed_by: None,
            indexes: vec![Index { by, keys: BTreeMap::new() }],
            listed: BTreeMap::new(),
            complete: BTreeSet::new(),
            tell_all: BTreeSet::new(),
        }
    }
}

impl<K: Resource> Store<K> {
    /// Takes in an event of the watch of a part.
    ///
    /// The store is never emptied by a new list: what it names again stays, what it does not name goes at its end. An
    /// object that became unreadable stays as it was last read: taking it for deleted would delete what it owns. One that
    /// was made anew under its name is another, and the one that was read is gone.
    pub(super) fn take(&mut self, part: &Part, event: Event<Guarded<K>>) -> Vec<Change<K>> {
        match event {
            Event::Init => {
                self.listed.insert(part.clone(), BTreeSet::new());
                Vec::new()
            }
            Event::InitApply(guarded) => {
                self.listed.entry(part.clone()).or_default().insert(ObjectKey::of(&guarded));
                self.put(part, guarded).into_iter().collect()
            }
            Event::InitDone => {
                let listed = self.listed.remove(part).unwrap_or_default();
                // Another part's objects are another list's.
                let missing = |key: &ObjectKey| (part.is_none() || *part == key.namespace) && !listed.contains(key);
                self.unreadable.retain(|key, _| !missing(key));
                let left = self.left_alone.keys().filter(|key| missing(key)).cloned();
                self.news_of_left_alone.extend(left);
                self.left_alone.retain(|key, _| !missing(key));
                let gone: Vec<_> = self.objects.keys().filter(|key| missing(key)).cloned().collect();
                gone.into_iter().filter_map(|key| self.remove(key)).collect()
            }
            Event::Apply(guarded) => self.put(part, guarded).into_iter().collect(),
            Event::Delete(guarded) => self.remove(ObjectKey::of(&guarded)).into_iter().collect(),
        }
    }

    /// Whether each of so many parts was listed whole, this one now.
    pub(super) fn listed_all(&mut self, part: &Part, parts: usize) -> bool {
        self.complete.insert(part.clone());
        self.complete.len() >= parts
    }

    /// The objects whose controller has this UID, in the order of their keys.
    pub(super) fn controlled_by(&self, uid: &str) -> Vec<Arc<K>> {
        self.indexed(BY_CONTROLLER, uid)
    }

    /// Keeps another index from now on, and says its number.
    pub(super) fn index_by(&mut self, by: By<K>) -> usize {
        let mut index = Index { by, keys: BTreeMap::new() };
        self.objects.iter().for_each(|(key, object)| index.change(key, None, Some(object)));
        self.indexes.push(index);
        self.indexes.len() - 1
    }

    /// The objects of which an index says this, in the order of their keys.
    pub(super) fn indexed(&self, index: usize, value: &str) -> Vec<Arc<K>> {
        let keys = self.indexes.get(index).and_then(|index| index.keys.get(value)).into_iter().flatten();
        keys.filter_map(|key| self.objects.get(key).cloned()).collect()
    }

    /// Whether an index says this of any object.
    pub(super) fn is_indexed(&self, index: usize, value: &str) -> bool {
        self.indexes.get(index).is_some_and(|index| index.keys.contains_key(value))
    }

    fn put(&mut self, part: &Part, guarded: Guarded<K>) -> Option<Change<K>> {
        let key = ObjectKey::of(&guarded);
        let object = match guarded.read() {
            Ok(object) if self.managed_by.is_some_and(|of| of(&object).is_some_and(is_another)) => {
                let gone = self.remove(key.clone());
                self.news_of_left_alone.insert(key.clone());
                self.left_alone.insert(key, Arc::new(object));
                return gone;
            }
            // What another controller's object says is not for us to complain of.
            Err(unreadable)
                if self.managed_by.is_some() && unreadable.managed_by.as_deref().is_some_and(is_another) =>
            {
                return self.remove(key);
            }
            Ok(object) => Arc::new(object),
            Err(unreadable) => {
                let replaced = self.objects.get(&key).is_some_and(|old| old.meta().uid != unreadable.uid);
                let gone = replaced.then(|| self.remove(key.clone())).flatten();
                self.unreadable.insert(key, *unreadable);
                return gone;
            }
        };
        self.unreadable.remove(&key);
        if self.left_alone.remove(&key).is_some() {
            self.news_of_left_alone.insert(key.clone());
        }
        let new = Some(object.clone());
        let old = self.objects.insert(key.clone(), object);
        let version = |object: &Option<Arc<K>>| object.as_ref().and_then(|object| object.resource_version());
        if old.is_some() && version(&old) == version(&new) && !self.tell_all.contains(part) {
            return None;
        }
        self.index(&key, old.as_deref(), new.as_deref());
        Some(Change { key, old, new })
    }

    fn remove(&mut self, key: ObjectKey) -> Option<Change<K>> {
        self.unreadable.remove(&key);
        if self.left_alone.remove(&key).is_some() {
            self.news_of_left_alone.insert(key.clone());
        }
        let old = self.objects.remove(&key)?;
        self.index(&key, Some(&old), None);
        Some(Change { key, old: Some(old), new: None })
    }

    fn index(&mut self, key: &ObjectKey, old: Option<&K>, new: Option<&K>) {
        self.indexes.iter_mut().for_each(|index| index.change(key, old, new));
    }
}

impl<K> Index<K> {
    fn change(&mut self, key: &ObjectKey, old: Option<&K>, new: Option<&K>) {
        let (old, new) = (old.and_then(self.by), new.and_then(self.by));
        if old == new {
            return;
        }
        if let Some(value) = old
            && let Some(keys) = self.keys.get_mut(&value)
        {
            keys.remove(key);
            if keys.is_empty() {
                self.keys.remove(&value);
            }
        }
        if let Some(value) = new {
            self.keys.entry(value).or_default().insert(key.clone());
        }
    }
}

/// The UID of the owner that controls an object.
pub fn controller_uid(object: &impl Resource) -> Option<&str> {
    let owners = object.meta().owner_references.as_deref().unwrap_or_default();
    owners.iter().find(|owner| owner.controller == Some(true)).map(|owner| owner.uid.as_str())
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::ConfigMap;
    use serde_json::json;

    use super::*;

    fn object(name: &str, version: &str, controller: Option<&str>) -> Guarded<ConfigMap> {
        let owners: Vec<_> = controller
            .map(|uid| json!({"apiVersion": "v1", "kind": "Pod", "name": "o", "uid": uid, "controller": true}))
            .into_iter()
            .collect();
        serde_json::from_value(json!({"metadata": {
            "namespace": "n", "name": name, "resourceVersion": version, "ownerReferences": owners,
        }}))
        .unwrap()
    }

    fn unreadable(name: &str) -> Guarded<ConfigMap> {
        let value = json!({"metadata": {"namespace": "n", "name": name, "resourceVersion": "9"}, "data": 1});
        serde_json::from_value(value).unwrap()
    }

    fn names<K>(changes: &[Change<K>]) -> Vec<(&str, bool, bool)> {
        changes.iter().map(|c| (c.key.name.as_str(), c.old.is_some(), c.new.is_some())).collect()
    }

    fn listed(store: &mut Store<ConfigMap>, objects: Vec<Guarded<ConfigMap>>) -> Vec<Change<ConfigMap>> {
        let mut changes = store.take(&None, Event::Init);
        changes.extend(objects.into_iter().flat_map(|object| store.take(&None, Event::InitApply(object))));
        changes.extend(store.take(&None, Event::InitDone));
        changes
    }

    #[test]
    fn a_new_list_tells_differences_only() {
        let mut store = Store::default();
        let first = listed(&mut store, vec![object("a", "1", None), object("b", "1", None), object("c", "1", None)]);
        assert_eq!(names(&first), [("a", false, true), ("b", false, true), ("c", false, true)]);
        let second = listed(&mut store, vec![object("a", "1", None), object("b", "2", None), object("d", "1", None)]);
        assert_eq!(names(&second), [("b", true, true), ("d", false, true), ("c", true, false)]);
    }

    #[test]
    fn the_store_is_whole_while_a_list_runs() {
        let mut store = Store::default();
        listed(&mut store, vec![object("a", "1", None), object("b", "1", None)]);
        store.take(&None, Event::Init);
        store.take(&None, Event::InitApply(object("b", "1", None)));
        assert_eq!(store.objects.len(), 2, "a list that is cut off deletes nothing");
    }

    #[test]
    fn an_object_that_became_unreadable_is_not_taken_for_deleted() {
        let mut store = Store::default();
        listed(&mut store, vec![object("a", "1", None)]);
        assert!(store.take(&None, Event::Apply(unreadable("a"))).is_empty());
        assert!(listed(&mut store, vec![unreadable("a"), unreadable("b")]).is_empty());
        assert_eq!((store.objects.len(), store.unreadable.len()), (1, 2));
        assert_eq!(names(&store.take(&None, Event::Apply(object("a", "10", None)))), [("a", true, true)]);
        assert_eq!(names(&store.take(&None, Event::Delete(unreadable("a")))), [("a", true, false)]);
        store.take(&None, Event::Delete(unreadable("b")));
        assert!(store.objects.is_empty() && store.unreadable.is_empty());
    }

    /// The danger: what belonged to it is made again and again for an owner that is gone.
    #[test]
    fn an_object_that_was_made_anew_and_cannot_be_read_is_not_the_one_before_it() {
        let of = |uid: &str, data: serde_json::Value| -> Guarded<ConfigMap> {
            let meta = json!({"namespace": "n", "name": "a", "uid": uid, "resourceVersion": "1"});
            serde_json::from_value(json!({"metadata": meta, "data": data})).unwrap()
        };
        let mut store = Store::default();
        listed(&mut store, vec![of("first", json!({}))]);
        // The watch was away while it was deleted.
        assert_eq!(names(&listed(&mut store, vec![of("second", json!(1))])), [("a", true, false)]);
        assert_eq!((store.objects.len(), store.unreadable.len()), (0, 1));
    }

    /// The danger: an object that another controller manages is carried out here as well, or taken for what it replaces.
    #[test]
    fn what_is_left_to_another_controller_is_not_among_ours() {
        let of = |uid: &str, manager: Option<&str>, data: serde_json::Value| -> Guarded<ConfigMap> {
            let labels: BTreeMap<_, _> = manager.map(|manager| ("by", manager)).into_iter().collect();
            let meta = json!({"namespace": "n", "name": "a", "uid": uid, "resourceVersion": uid, "labels": labels});
            serde_json::from_value(json!({"metadata": meta, "spec": {"managedBy": manager}, "data": data})).unwrap()
        };
        let mut store = Store {
            managed_by: Some(|map: &ConfigMap| map.labels().get("by").map(String::as_str)),
            ..Store::default()
        };
        let counts = |store: &Store<ConfigMap>| (store.objects.len(), store.left_alone.len(), store.unreadable.len());
        assert!(listed(&mut store, vec![of("1", Some("other.org/c"), json!({}))]).is_empty());
        assert_eq!(counts(&store), (0, 1, 0));
        store.take(&None, Event::Delete(of("1", Some("other.org/c"), json!({}))));
        for ours in [None, Some(tributary_api::minicluster::MANAGER)] {
            store.take(&None, Event::Apply(of("2", ours, json!({}))));
            assert_eq!(counts(&store), (1, 0, 0), "{ours:?}");
        }
        // Made anew, for somebody else, while the watch was away.
        assert_eq!(names(&listed(&mut store, vec![of("3", Some("other.org/c"), json!({}))])), [("a", true, false)]);
        assert_eq!(counts(&store), (0, 1, 0));
        assert!(store.take(&None, Event::Apply(of("3", Some("other.org/c"), json!(1)))).is_empty());
        assert_eq!(counts(&store), (0, 0, 0), "that it cannot be read is its controller's business");
        assert!(store.take(&None, Event::Apply(of("4", None, json!(1)))).is_empty());
        assert_eq!(counts(&store), (0, 0, 1));
        listed(&mut store, vec![of("5", Some("other.org/c"), json!({}))]);
        listed(&mut store, Vec::new());
        assert_eq!(counts(&store), (0, 0, 0));
    }

    #[test]
    fn a_list_of_one_namespace_says_nothing_of_others() {
        let in_namespace = |namespace: &str, name: &str| -> Guarded<ConfigMap> {
            let meta = json!({"namespace": namespace, "name": name, "resourceVersion": "1"});
            serde_json::from_value(json!({"metadata": meta})).unwrap()
        };
        let (one, two) = (Some("one".to_owned()), Some("two".to_owned()));
        let mut store = Store::default();
        // Both lists run at the same time.
        for (part, event) in [
            (&one, Event::Init),
            (&two, Event::Init),
            (&one, Event::InitApply(in_namespace("one", "a"))),
            (&two, Event::InitApply(in_namespace("two", "b"))),
            (&one, Event::InitDone),
            (&two, Event::InitDone),
        ] {
            store.take(part, event);
        }
        assert_eq!(store.objects.len(), 2);
        store.take(&two, Event::Init);
        assert_eq!(names(&store.take(&two, Event::InitDone)), [("b", true, false)]);
        assert_eq!(store.objects.len(), 1);
    }

    #[test]
    fn children_are_found_by_their_controller() {
        let mut store = Store::default();
        listed(&mut store, vec![object("b", "1", Some("u")), object("a", "1", Some("u")), object("c", "1", None)]);
        let found =
            |store: &Store<ConfigMap>| store.controlled_by("u").iter().map(|o| o.name_any()).collect::<Vec<_>>();
        assert_eq!(found(&store), ["a", "b"]);
        store.take(&None, Event::Apply(object("a", "2", Some("other"))));
        store.take(&None, Event::Delete(object("b", "2", Some("u"))));
        assert!(found(&store).is_empty());
        assert_eq!(store.indexes[BY_CONTROLLER].keys.len(), 1, "nothing is kept of a controller without children");
    }

    #[test]
    fn an_index_follows_the_objects_that_were_there_before_it_too() {
        let mut store = Store::default();
        store.take(&None, Event::Apply(object("a", "1", Some("x"))));
        let index = store.index_by(|object| object.metadata.resource_version.clone());
        let found = |store: &Store<ConfigMap>, value: &str| store.indexed(index, value).len();
        store.take(&None, Event::Apply(object("b", "1", None)));
        assert_eq!((found(&store, "1"), found(&store, "2")), (2, 0));
        store.take(&None, Event::Apply(object("a", "2", None)));
        assert_eq!((found(&store, "1"), found(&store, "2")), (1, 1));
        listed(&mut store, Vec::new());
        assert!(store.indexes.iter().all(|index| index.keys.is_empty()), "nothing is kept of what is gone");
    }
}
