//! The objects and their history.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;
use serde_json::{Value, json};
use tributary_clock::SharedClock;

use super::apply::Owners;
use super::request::{Key, Outcome, RequestInfo, expired};
use tributary_cluster::apply::drop_nulls;
use tributary_cluster::drift::digest;

/// Kinds of Kubernetes without `metadata.generation`. All others have it.
const WITHOUT_GENERATION: [&str; 13] = [
    "configmaps",
    "secrets",
    "services",
    "serviceaccounts",
    "namespaces",
    "nodes",
    "events",
    "leases",
    "persistentvolumes",
    "persistentvolumeclaims",
    "resourcequotas",
    "roles",
    "rolebindings",
];

/// Looks at an object before it is stored, as an admission webhook does; it can change the object or refuse it.
pub(super) type Admission = Box<dyn FnMut(&RequestInfo, &mut Value) -> Outcome<()> + Send>;

pub(super) struct Store {
    pub(super) name: String,
    pub(super) clock: SharedClock,
    /// The newest resource version.
    pub(super) version: u64,
    /// What happened up to here is forgotten.
    pub(super) compacted: u64,
    pub(super) objects: BTreeMap<Key, Stored>,
    pub(super) history: Vec<Event>,
    /// By resource: the version of its last change.
    pub(super) changed: BTreeMap<String, u64>,
    /// By group and resource.
    pub(super) kinds: BTreeMap<(String, String), Kind>,
    pub(super) writes: Vec<Write>,
    pub(super) requests: BTreeMap<(&'static str, String), u64>,
    pub(super) admission: Admission,
    pub(super) born: u64,
}

#[derive(Clone, PartialEq, Debug)]
pub(super) struct Stored {
    pub(super) object: Arc<Value>,
    pub(super) owners: Owners,
}

/// A change of one object.
pub(super) struct Event {
    pub(super) version: u64,
    pub(super) key: Key,
    pub(super) old: Option<Arc<Value>>,
    /// As it is now, or as it was last if it is gone.
    pub(super) object: Arc<Value>,
    pub(super) gone: bool,
}

#[derive(Clone, Debug)]
pub(super) struct Kind {
    pub(super) api_version: String,
    pub(super) kind: String,
    pub(super) namespaced: bool,
}

/// A write that was asked for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Write {
    /// By whom, and what.
    pub request: RequestInfo,
    /// The status of the answer, which may never have arrived.
    pub code: u16,
    /// The resource version that it made; `None` if it changed nothing.
    pub version: Option<u64>,
}

impl Store {
    pub(super) fn new(name: &str, clock: SharedClock) -> Self {
        Self {
            name: name.to_owned(),
            clock,
            version: 1,
            compacted: 0,
            objects: BTreeMap::new(),
            history: Vec::new(),
            changed: BTreeMap::new(),
            kinds: BTreeMap::new(),
            writes: Vec::new(),
            requests: BTreeMap::new(),
            admission: Box::new(|_, _| Ok(())),
            born: 0,
        }
    }

    pub(super) fn now(&self) -> Timestamp {
        let wall = self.clock.wall();
        Timestamp::from_second(wall.as_second()).unwrap_or(wall)
    }

    /// A new UID. No two servers of one simulation give the same.
    pub(super) fn uid(&mut self) -> String {
        self.born += 1;
        let hex = digest(&json!([self.name, self.born]));
        format!("{}-{}-4{}-8{}-{}", &hex[..8], &hex[8..12], &hex[12..15], &hex[15..18], &hex[18..30])
    }

    pub(super) fn learn(&mut self, info: &RequestInfo, kind: &str, namespaced: bool) {
        let learned = Kind { api_version: info.api_version(), kind: kind.to_owned(), namespaced };
        self.kinds.entry((info.group.clone(), info.resource.clone())).or_insert(learned);
    }

    /// Stores an object, or removes it if it is deleted and nothing holds it. What is stored like this already stays.
    pub(super) fn commit(&mut self, key: &Key, mut object: Value, owners: Owners, dry: bool) -> Arc<Value> {
        drop_nulls(&mut object);
        let before = self.objects.get(key).cloned();
        if let Some(generation) = generation(key, before.as_ref().map(|before| &*before.object), &object) {
            object["metadata"]["generation"] = generation.into();
        }
        if let Some(before) = &before
            && *before.object == object
            && before.owners == owners
        {
            return before.object.clone();
        }
        if dry {
            return Arc::new(object);
        }
        self.version += 1;
        object["metadata"]["resourceVersion"] = self.version.to_string().into();
        let metadata = &object["metadata"];
        let waits = metadata["deletionGracePeriodSeconds"].as_i64().unwrap_or_default() > 0
            || metadata["finalizers"].as_array().is_some_and(|finalizers| !finalizers.is_empty());
        let gone = !metadata["deletionTimestamp"].is_null() && !waits;
        let object = Arc::new(object);
        match gone {
            true => self.objects.remove(key),
            false => self.objects.insert(key.clone(), Stored { object: object.clone(), owners }),
        };
        let old = before.map(|before| before.object);
        self.changed.insert(key.resource.clone(), self.version);
        self.history.push(Event { version: self.version, key: key.clone(), old, object: object.clone(), gone });
        object
    }

    /// The objects that a list shows, as they were at a version, in the order of their keys.
    pub(super) fn at(&self, info: &RequestInfo, version: u64) -> Outcome<BTreeMap<Key, Arc<Value>>> {
        if version < self.compacted {
            return Err(expired(version, self.compacted));
        }
        let of_kind = |key: &Key| key.group == info.group && key.resource == info.resource;
        let shown =
            self.objects.range(info.key()..).take_while(|(key, _)| of_kind(key)).filter(|(key, _)| shows(info, key));
        let mut found: BTreeMap<Key, Arc<Value>> =
            shown.map(|(key, stored)| (key.clone(), stored.object.clone())).collect();
        let later = self.history.iter().rev().take_while(|event| event.version > version);
        for event in later.filter(|event| shows(info, &event.key)) {
            match &event.old {
                Some(old) => found.insert(event.key.clone(), old.clone()),
                None => found.remove(&event.key),
            };
        }
        Ok(found)
    }
}

/// Whether an object is among those that a list or a watch asks for.
pub(super) fn shows(info: &RequestInfo, key: &Key) -> bool {
    key.group == info.group
        && key.resource == info.resource
        && (info.namespace.is_empty() || key.namespace == info.namespace)
        && (info.name.is_empty() || key.name == info.name)
}

fn generation(key: &Key, before: Option<&Value>, after: &Value) -> Option<u64> {
    if WITHOUT_GENERATION.contains(&key.resource.as_str()) {
        return None;
    }
    let Some(before) = before else { return Some(1) };
    let told = |object: &Value| -> BTreeMap<String, Value> {
        let fields = object.as_object().into_iter().flatten();
        let told = fields.filter(|(name, _)| !["metadata", "status", "apiVersion", "kind"].contains(&name.as_str()));
        told.map(|(name, value)| (name.clone(), value.clone())).collect()
    };
    let deleted = |object: &Value| !object["metadata"]["deletionTimestamp"].is_null();
    let grows = told(before) != told(after) || deleted(before) != deleted(after);
    Some(before["metadata"]["generation"].as_u64().unwrap_or(1) + u64::from(grows))
}
