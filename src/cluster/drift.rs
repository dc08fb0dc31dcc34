//! Whether an object in the cluster still is what we applied, decided without a request.
//!
//! What we apply is a part of the object: others (defaulting, admission, controllers, other managers) may add to it.
//! So an object has drifted when a value we apply is missing or differs:
//!
//! - objects: every field we apply, recursively; other fields do not matter, but in a selector they do,
//! - lists with merge keys: every element we apply, found by its keys; other elements do not matter,
//! - other lists: the same elements in the same order,
//! - numbers by value; all else by equality,
//! - empty lists, empty objects, empty strings and `null` may be missing, and so may `false` and 0 in some fields: the
//!   API server does not store them all.
//!
//! Jobs and pods are never compared: they are made once, and never written over. So nothing here knows their fields.

use std::fmt;

use data_encoding::HEXLOWER;
use serde_json::{Map, Value};
use sha2::{Digest, Sha256};

/// A place at which the cluster has something else than we applied. Neither shows nor keeps values: they may be secret.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Difference {
    /// Where, as `spec.template.spec.containers[0].image`; indices are those of what we apply.
    pub path: String,
    /// Digest of what is there; `None` if nothing is.
    pub seen: Option<String>,
}

impl fmt::Debug for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.path)
    }
}

/// Where `live` is not what `desired` says. Empty: no drift.
pub(crate) fn drift(desired: &Value, live: &Value) -> Vec<Difference> {
    let api_version = desired.get("apiVersion").and_then(Value::as_str).unwrap_or_default();
    let mut walk = Walk { api_version, found: Vec::new() };
    walk.value(&Place::root(), desired, Some(live));
    walk.found
}

/// Whether two statuses say the same: equal, but for what is empty or missing, and for the times at which conditions
/// changed (a condition that changed differs in more than its time).
pub(crate) fn same_status(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Object(a), Value::Object(b)) => {
            let same = |(name, value): (&String, &Value)| {
                VOLATILE.contains(&name.as_str()) || same_status(value, b.get(name).unwrap_or(&Value::Null))
            };
            let empty = |(name, value): (&String, &Value)| a.contains_key(name) || says_nothing(name, value);
            a.iter().all(same) && b.iter().all(empty)
        }
        // Elements stay, whatever they say: their number and order mean something.
        (Value::Array(a), Value::Array(b)) => a.len() == b.len() && a.iter().zip(b).all(|(a, b)| same_status(a, b)),
        (a, b) => a == b || says_nothing("", a) && says_nothing("", b),
    }
}

/// Fields of a status that say when it was looked at, not what it is.
const VOLATILE: &[&str] = &["lastTransitionTime", "lastHeartbeatTime", "lastProbeTime", "lastUpdateTime"];

/// Whether a field might as well be missing.
fn says_nothing(name: &str, value: &Value) -> bool {
    VOLATILE.contains(&name)
        || match value {
            Value::Object(fields) => fields.iter().all(|(name, value)| says_nothing(name, value)),
            value => is_empty(value),
        }
}

/// The SHA-256 of a value in canonical JSON (keys sorted, no white space), in hexadecimal.
pub fn digest(value: &Value) -> String {
    // Maps of serde_json are sorted unless some crate of the build asks for `preserve_order`.
    HEXLOWER.encode(&Sha256::digest(value.to_string()))
}

/// Where the walk is: the way to it, and the two names that decide how a value is compared.
struct Place<'a> {
    above: Option<&'a Place<'a>>,
    /// Of a list.
    index: Option<usize>,
    /// The nearest named field around this value.
    field: &'a str,
    /// The named field around that.
    parent: &'a str,
}

impl<'a> Place<'a> {
    fn root() -> Self {
        Self { above: None, index: None, field: "", parent: "" }
    }

    fn field(&'a self, name: &'a str) -> Self {
        Self { above: Some(self), index: None, field: name, parent: self.field }
    }

    fn element(&'a self, at: usize) -> Self {
        Self { above: Some(self), index: Some(at), field: self.field, parent: self.parent }
    }

    /// The way, for people.
    fn path(&self) -> String {
        let Some(above) = self.above else { return String::new() };
        let path = above.path();
        match self.index {
            Some(at) => format!("{path}[{at}]"),
            None if path.is_empty() => self.field.to_owned(),
            None => format!("{path}.{}", self.field),
        }
    }
}

/// Field of a Service whose `false` is the same as nothing, so that the API server does not store it.
const NOT_STORED: &str = "publishNotReadyAddresses";

/// Field of a Service for which the API server puts a value of its own in the place of 0.
const CHOSEN_AT_ZERO: &str = "nodePort";

/// Maps of built-in kinds that belong to who applies them, whole (`x-kubernetes-map-type: atomic`).
pub const ATOMIC_MAPS: &[&str] = &["selector", "nodeSelector", "matchLabels"];

struct Walk<'a> {
    api_version: &'a str,
    found: Vec<Difference>,
}

impl Walk<'_> {
    fn value(&mut self, place: &Place<'_>, desired: &Value, live: Option<&Value>) {
        let same = match (desired, live) {
            (Value::Object(desired), Some(Value::Object(live))) => return self.fields(place, desired, live),
            (Value::Array(desired), Some(whole @ Value::Array(live))) => return self.list(place, desired, whole, live),
            (desired, None | Some(Value::Null)) => is_empty(desired) || self.is_zero(desired, place, NOT_STORED),
            (desired, Some(_)) if self.is_zero(desired, place, CHOSEN_AT_ZERO) => true,
            (Value::Number(a), Some(Value::Number(b))) => a == b || a.as_f64() == b.as_f64(),
            (desired, Some(live)) => desired == live || desired.is_null(),
        };
        if !same {
            self.differs(place, live);
        }
    }

    fn differs(&mut self, place: &Place<'_>, live: Option<&Value>) {
        self.found.push(Difference { path: place.path(), seen: live.map(digest) });
    }

    fn is_zero(&self, value: &Value, place: &Place<'_>, field: &str) -> bool {
        let zero = value == &Value::Bool(false) || value.as_f64() == Some(0.0);
        zero && place.field == field && is_built_in(self.api_version)
    }

    fn fields(&mut self, place: &Place<'_>, desired: &Map<String, Value>, live: &Map<String, Value>) {
        let atomic = ATOMIC_MAPS.contains(&place.field) && is_built_in(self.api_version);
        if atomic && live.keys().any(|name| !desired.contains_key(name)) {
            self.differs(place, None);
        }
        for (name, value) in desired {
            self.value(&place.field(name), value, live.get(name));
        }
    }

    fn list(&mut self, place: &Place<'_>, desired: &[Value], whole: &Value, live: &[Value]) {
        match ListType::of(self.api_version, place.parent, place.field) {
            ListType::Atomic if desired.len() == live.len() => {
                for (at, (desired, live)) in desired.iter().zip(live).enumerate() {
                    self.value(&place.element(at), desired, Some(live));
                }
            }
            ListType::Atomic => self.differs(place, Some(whole)),
            ListType::Set if desired.iter().all(|element| live.contains(element)) => {}
            ListType::Set => self.differs(place, Some(whole)),
            ListType::Map(keys) => {
                for (at, element) in desired.iter().enumerate() {
                    let same = |live: &&Value| keys.iter().all(|key| key_of(element, key) == key_of(live, key));
                    match live.iter().find(same) {
                        Some(live) => self.value(&place.element(at), element, Some(live)),
                        None => self.differs(&place.element(at), None),
                    }
                }
            }
        }
    }
}

fn key_of<'a>(element: &'a Value, key: &str) -> Option<std::borrow::Cow<'a, Value>> {
    use std::borrow::Cow;
    match element.get(key) {
        Some(value) => Some(Cow::Borrowed(value)),
        None => default_of(key).map(|value| Cow::Owned(Value::from(value))),
    }
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::String(text) => text.is_empty(),
        Value::Array(elements) => elements.is_empty(),
        Value::Object(fields) => fields.values().all(is_empty),
        Value::Bool(_) | Value::Number(_) => false,
    }
}

/// How the elements of a list are identified.
///
/// Source: the `x-kubernetes-list-type` and `x-kubernetes-list-map-keys` of the built-in kinds' OpenAPI document
/// (<https://kubernetes.io/docs/reference/using-api/server-side-apply/#merge-strategy>).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ListType {
    /// All of it belongs to who applied it.
    Atomic,
    /// By value.
    Set,
    /// By the value of these fields.
    Map(&'static [&'static str]),
}

impl ListType {
    /// Of the list `field` inside `parent`, in an object of `api_version`.
    pub fn of(api_version: &str, parent: &str, field: &str) -> Self {
        match (parent, field) {
            ("metadata", "ownerReferences") => Self::Map(&["uid"]),
            ("metadata", "finalizers") => Self::Set,
            ("spec", "ports") if is_built_in(api_version) => Self::Map(&["port", "protocol"]),
            _ => Self::Atomic,
        }
    }
}

/// Whether a kind of this `apiVersion` is served by Kubernetes itself: custom groups need a domain of their own, and
/// `*.k8s.io` of built-in groups is reserved.
pub fn is_built_in(api_version: &str) -> bool {
    match api_version.split_once('/') {
        None => true,
        Some((group, _)) => !group.contains('.') || group.ends_with(".k8s.io"),
    }
}

/// The value a merge key has when it is not written.
pub fn default_of(key: &str) -> Option<&'static str> {
    (key == "protocol").then_some("TCP")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn paths(desired: &Value, live: &Value) -> Vec<String> {
        drift(desired, live).into_iter().map(|difference| difference.path).collect()
    }

    fn service(port: Value) -> Value {
        json!({"apiVersion": "v1", "kind": "Service", "spec": {"type": "NodePort", "ports": [port]}})
    }

    #[test]
    fn what_others_add_is_no_drift() {
        let desired = service(json!({"port": 8050, "name": "flux", "targetPort": "flux"}));
        let mut live = json!({"apiVersion": "v1", "kind": "Service", "status": {"loadBalancer": {}},
        "metadata": {"uid": "u"}, "spec": {"type": "NodePort", "clusterIP": "10.96.0.9", "ports": [
            {"port": 9000, "name": "theirs"},
            {"port": 8050, "protocol": "TCP", "name": "flux", "targetPort": "flux", "nodePort": 30_001},
        ]}});
        assert_eq!(paths(&desired, &live), Vec::<String>::new());
        live["spec"]["ports"][1]["protocol"] = json!("UDP");
        assert_eq!(paths(&desired, &live), ["spec.ports[0]"]);
    }

    #[test]
    fn what_others_change_is_drift_and_is_named() {
        let path = |rest: &str| format!("spec.ports[0]{rest}");
        let desired = || json!({"port": 1, "name": "a", "list": ["a", "b"], "nodePort": 2, "yes": true, "text": "/"});
        let cases = [
            ("/name", json!("j"), path(".name")),
            ("/list", json!(["a"]), path(".list")),
            ("/list/1", json!("c"), path(".list[1]")),
            ("/nodePort", json!(3), path(".nodePort")),
            ("/yes", json!(false), path(".yes")),
            ("/text", Value::Null, path(".text")),
            ("/port", json!(2), path("")),
        ];
        for (pointer, value, expected) in cases {
            let mut live = desired();
            *live.pointer_mut(pointer).unwrap() = value;
            assert_eq!(paths(&service(desired()), &service(live)), [expected], "{pointer}");
        }
    }

    #[test]
    fn a_selector_that_somebody_narrows_has_drifted() {
        let service = |selector: Value| json!({"apiVersion": "v1", "spec": {"selector": selector}});
        let (desired, live) = (service(json!({"job": "a"})), service(json!({"job": "a", "other": "b"})));
        assert_eq!(paths(&desired, &live), ["spec.selector"]);
        assert!(paths(&live, &live).is_empty());
    }

    #[test]
    fn a_custom_kind_owns_its_lists_whole() {
        let object = |containers: Value| {
            json!({"apiVersion": "flux-framework.org/v1alpha2",
            "metadata": {"finalizers": ["a"]}, "spec": {"containers": containers}})
        };
        let desired = object(json!([{"name": "a"}]));
        let mut live = object(json!([{"name": "a"}, {"name": "intruder"}]));
        live["metadata"]["finalizers"] = json!(["b", "a"]);
        assert_eq!(paths(&desired, &live), ["spec.containers"]);
    }

    #[test]
    fn what_is_empty_may_be_missing_and_what_is_not_may_not() {
        let desired = json!({"a": {}, "b": [], "c": null, "d": "", "e": {"f": {}}, "g": false, "h": 0});
        assert_eq!(paths(&desired, &json!({})), ["g", "h"]);
        let desired =
            |api_version: &str| json!({"apiVersion": api_version, "spec": {NOT_STORED: false, "immutable": false}});
        let live = |api_version: &str| json!({"apiVersion": api_version, "spec": {}});
        assert_eq!(paths(&desired("v1"), &live("v1")), ["spec.immutable"]);
        assert_eq!(paths(&desired("a.b/v1"), &live("a.b/v1")), ["spec.immutable", "spec.publishNotReadyAddresses"]);
        let service = |port: u16| service(json!({"port": 80, "nodePort": port}));
        assert!(paths(&service(0), &service(30_001)).is_empty());
        assert_eq!(paths(&service(30_002), &service(30_001)), ["spec.ports[0].nodePort"]);
    }

    #[test]
    fn a_status_is_compared_both_ways_and_without_times_of_transition() {
        let status =
            json!({"phase": "Ready", "conditions": [{"type": "A", "status": "True", "lastTransitionTime": "t1"}]});
        let cases = [
            (
                json!({"phase": "Ready", "note": "", "peers": [],
                "conditions": [{"type": "A", "status": "True", "lastTransitionTime": "t2"}]}),
                true,
            ),
            (json!({"phase": "Ready", "conditions": []}), false),
            (json!({"phase": "Ready", "since": "t", "conditions": [{"type": "A", "status": "True"}]}), false),
            (json!({"phase": "Lost", "conditions": [{"type": "A", "status": "True"}]}), false),
            (Value::Null, false),
        ];
        for (other, same) in cases {
            assert_eq!(same_status(&status, &other), same, "{other}");
            assert_eq!(same_status(&other, &status), same, "{other}");
        }
        assert!(same_status(&Value::Null, &json!({"conditions": []})));
    }

    #[test]
    fn the_digest_does_not_depend_on_the_order_of_fields() {
        let one: Value = serde_json::from_str(r#"{"b": [1, "x"], "a": {"d": null, "c": true}}"#).unwrap();
        let two: Value = serde_json::from_str(r#"{"a": {"c": true, "d": null}, "b": [1, "x"]}"#).unwrap();
        assert_eq!(digest(&one), digest(&two));
        assert_ne!(digest(&one), digest(&json!({"a": {"c": true, "d": null}, "b": ["x", 1]})));
        assert_eq!(digest(&json!({})), "44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a");
    }
}
