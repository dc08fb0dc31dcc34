//! Which fields an object has, and how two objects become one: by the lists with merge keys of the kinds we use.

use std::collections::BTreeSet;
use std::fmt;

use serde_json::{Map, Value};

use tributary_cluster::drift::{ATOMIC_MAPS, ListType, default_of, is_built_in};

/// One step from an object into it.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Step {
    Field(String),
    /// An element of a list, by its keys and their values in JSON.
    Item(Vec<(&'static str, String)>),
    /// An element of a set, in JSON.
    Element(String),
}

/// From the object to a field.
pub(super) type Path = Vec<Step>;

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Field(name) => write!(f, ".{name}"),
            Self::Element(value) => write!(f, "[={value}]"),
            Self::Item(keys) => {
                let keys: Vec<_> = keys.iter().map(|(key, value)| format!("{key}={value}")).collect();
                write!(f, "[{}]", keys.join(","))
            }
        }
    }
}

impl Step {
    pub(super) fn of(element: &Value, list: ListType) -> Option<Self> {
        match list {
            ListType::Atomic => None,
            ListType::Set => Some(Self::Element(element.to_string())),
            ListType::Map(keys) => Some(Self::Item(keys.iter().map(|key| (*key, key_of(element, key))).collect())),
        }
    }

    fn names(&self, element: &Value) -> bool {
        match self {
            Self::Field(_) => false,
            Self::Element(_) => Self::of(element, ListType::Set).as_ref() == Some(self),
            Self::Item(keys) => keys.iter().all(|(key, value)| key_of(element, key) == *value),
        }
    }
}

fn key_of(element: &Value, key: &str) -> String {
    let default = || default_of(key).map_or(Value::Null, Value::from);
    element.get(key).cloned().unwrap_or_else(default).to_string()
}

/// Lists of a pod with merge keys: the field, the field around it (`""`: any), and the keys.
const PODS: &[(&str, &str, &[&str])] = &[
    ("containers", "", &["name"]),
    ("env", "", &["name"]),
    ("ephemeralContainers", "", &["name"]),
    ("hostAliases", "", &["ip"]),
    ("imagePullSecrets", "", &["name"]),
    ("initContainers", "", &["name"]),
    ("ports", "containers", &["containerPort", "protocol"]),
    ("ports", "initContainers", &["containerPort", "protocol"]),
    ("resourceClaims", "", &["name"]),
    ("schedulingGates", "", &["name"]),
    ("secrets", "", &["name"]),
    ("topologySpreadConstraints", "", &["topologyKey", "whenUnsatisfiable"]),
    ("volumeDevices", "", &["devicePath"]),
    ("volumeMounts", "", &["mountPath"]),
    ("volumes", "spec", &["name"]),
];

/// Where a walk is, as far as it matters: the kind's `apiVersion`, the nearest field and the field around that.
#[derive(Clone, Copy)]
pub(super) struct Place<'a> {
    api_version: &'a str,
    parent: &'a str,
    field: &'a str,
}

impl<'a> Place<'a> {
    pub(super) fn root(api_version: &'a str) -> Self {
        Self { api_version, parent: "", field: "" }
    }

    fn field(self, name: &'a str) -> Self {
        Self { parent: self.field, field: name, ..self }
    }

    fn list_type(self) -> ListType {
        match (self.parent, self.field) {
            ("status", "conditions") => ListType::Map(&["type"]),
            _ => self.list_of_pod().unwrap_or_else(|| ListType::of(self.api_version, self.parent, self.field)),
        }
    }

    fn list_of_pod(self) -> Option<ListType> {
        let named = |(field, parent, _): &&(&str, &str, _)| {
            *field == self.field && (parent.is_empty() || *parent == self.parent)
        };
        PODS.iter().find(named).filter(|_| is_built_in(self.api_version)).map(|(_, _, keys)| ListType::Map(keys))
    }

    fn is_atomic(self) -> bool {
        ATOMIC_MAPS.contains(&self.field) && is_built_in(self.api_version)
    }
}

/// The fields of an object that somebody can own, without those that identify it.
pub(super) fn of(object: &Value) -> BTreeSet<Path> {
    let api_version = object["apiVersion"].as_str().unwrap_or_default();
    let mut named = object.clone();
    if let Some(fields) = named.as_object_mut() {
        fields.retain(|name, _| name != "apiVersion" && name != "kind");
    }
    if let Some(metadata) = named.get_mut("metadata").and_then(Value::as_object_mut) {
        metadata.retain(|name, _| !super::write::SYSTEM.contains(&name.as_str()));
    }
    let mut found = BTreeSet::new();
    walk(Place::root(api_version), &named, &mut Vec::new(), &mut found);
    found.retain(|path| path.len() > 1 || path.first() != Some(&Step::Field("metadata".into())));
    found
}

fn walk(place: Place<'_>, value: &Value, path: &mut Path, found: &mut BTreeSet<Path>) {
    match value {
        Value::Object(fields) if !fields.is_empty() && !place.is_atomic() => {
            for (name, value) in fields {
                path.push(Step::Field(name.clone()));
                walk(place.field(name), value, path, found);
                path.pop();
            }
        }
        Value::Array(elements) if !elements.is_empty() && place.list_type() != ListType::Atomic => {
            for element in elements {
                path.extend(Step::of(element, place.list_type()));
                found.insert(path.clone());
                if element.is_object() {
                    walk(place, element, path, found);
                }
                path.pop();
            }
        }
        _ => drop(found.insert(path.clone())),
    }
}

pub(super) fn find<'a>(value: &'a Value, path: &[Step]) -> Option<&'a Value> {
    path.iter().try_fold(value, |value, step| match (value, step) {
        (Value::Object(fields), Step::Field(name)) => fields.get(name),
        (Value::Array(elements), step) => elements.iter().find(|element| step.names(element)),
        _ => None,
    })
}

/// Takes a field away, and what is empty without it.
pub(super) fn remove(value: &mut Value, path: &[Step]) {
    let Some((step, rest)) = path.split_first() else { return };
    match (value, step) {
        (Value::Object(fields), Step::Field(name)) => {
            if let Some(inner) = fields.get_mut(name).filter(|_| !rest.is_empty()) {
                remove(inner, rest);
            }
            if rest.is_empty() || fields.get(name).is_some_and(is_empty) {
                fields.remove(name);
            }
        }
        (Value::Array(elements), step) => {
            let Some(at) = elements.iter().position(|element| step.names(element)) else { return };
            // The keys of an element stay as long as it does.
            let key = matches!((step, rest), (Step::Item(keys), [Step::Field(name)])
                if keys.iter().any(|(key, _)| key == name));
            if rest.is_empty() {
                elements.remove(at);
            } else if !key {
                remove(&mut elements[at], rest);
            }
        }
        _ => {}
    }
}

fn is_empty(value: &Value) -> bool {
    value.as_object().is_some_and(Map::is_empty) || value.as_array().is_some_and(Vec::is_empty)
}

/// Puts `patch` into `live`. A null takes a field away.
pub(super) fn merge(place: Place<'_>, live: &mut Value, patch: &Value) {
    match (live, patch) {
        (Value::Object(live), Value::Object(patch)) if !place.is_atomic() => {
            for (name, value) in patch {
                if value.is_null() {
                    live.remove(name);
                } else {
                    merge(place.field(name), live.entry(name.clone()).or_insert(Value::Null), value);
                }
            }
        }
        (Value::Array(live), Value::Array(patch)) if place.list_type() != ListType::Atomic => {
            *live = merged(place, live, patch);
        }
        (live, patch) => *live = patch.clone(),
    }
}

/// The elements of both lists, those of `patch` in its order.
fn merged(place: Place<'_>, live: &[Value], patch: &[Value]) -> Vec<Value> {
    let step = |element: &Value| Step::of(element, place.list_type());
    let mut wanted = patch.iter();
    let mut found = Vec::new();
    let take = |element: &Value| {
        let mut whole = live.iter().find(|one| step(one) == step(element)).cloned().unwrap_or(Value::Null);
        merge(place, &mut whole, element);
        whole
    };
    for element in live {
        let at = |list: &[Value]| list.iter().position(|one| step(one) == step(element));
        match at(wanted.as_slice()) {
            // What comes before it in `patch` comes before it.
            Some(at) => found.extend(wanted.by_ref().take(at + 1).map(take)),
            None if at(patch).is_none() => found.push(element.clone()),
            None => {}
        }
    }
    found.extend(wanted.map(take));
    found
}
