//! Whether an object in the cluster still is what we applied, decided without a request.
//!
//! What we apply is a part of the object: others (defaulting, admission, controllers, other managers) may add to it.
//! So an object has drifted when a value we apply is missing or differs:
//!
//! - objects: every field we apply, recursively; other fields do not matter, but in a selector they do,
//! - lists with merge keys: every element we apply, found by its keys; other elements do not matter,
//! - other lists: the same elements in the same order,
//! - quantities: by amount (`1000m` is `1`); numbers by value; all else by equality,
//! - empty lists, empty objects, empty strings and `null` may be missing, and so may `false` and 0 in some fields: the
//!   API server does not store them all.

use std::fmt::{self, Write};

use serde_json::{Map, Value};
use sha2::{Digest, Sha256};

use super::merge_keys::{self, ListType};

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
    let (a, b) = (telling(a), telling(b));
    match (a, b) {
        (Some(a), Some(b)) => a == b,
        (a, b) => a.is_none() && b.is_none(),
    }
}

/// Fields of a status that say when it was looked at, not what it is.
const VOLATILE: &[&str] = &["lastTransitionTime", "lastHeartbeatTime", "lastProbeTime", "lastUpdateTime"];

/// The part of a value that says something; `None` if nothing does.
fn telling(value: &Value) -> Option<Value> {
    match value {
        Value::Object(fields) => {
            let kept = fields.iter().filter(|(name, _)| !VOLATILE.contains(&name.as_str()));
            let kept: Map<_, _> = kept.filter_map(|(name, value)| Some((name.clone(), telling(value)?))).collect();
            (!kept.is_empty()).then_some(Value::Object(kept))
        }
        // Elements stay, whatever they say: their number and order mean something.
        Value::Array(elements) if !elements.is_empty() => {
            Some(elements.iter().map(|element| telling(element).unwrap_or(Value::Null)).collect())
        }
        value => (!is_empty(value)).then(|| value.clone()),
    }
}

/// The SHA-256 of a value in canonical JSON (keys sorted, no white space), in hexadecimal.
pub fn digest(value: &Value) -> String {
    let mut text = String::new();
    canonical(value, &mut text);
    Sha256::digest(text.as_bytes()).iter().fold(String::with_capacity(64), |mut hex, byte| {
        // Writing to a String cannot fail.
        let _ = write!(hex, "{byte:02x}");
        hex
    })
}

fn canonical(value: &Value, out: &mut String) {
    match value {
        Value::Object(fields) => {
            // serde_json keeps the order of insertion as soon as any crate in the build asks for that.
            let mut names: Vec<_> = fields.keys().collect();
            names.sort_unstable();
            out.push('{');
            for (at, name) in names.into_iter().enumerate() {
                if at > 0 {
                    out.push(',');
                }
                let _ = write!(out, "{}:", Value::String(name.clone()));
                canonical(&fields[name], out);
            }
            out.push('}');
        }
        Value::Array(elements) => {
            out.push('[');
            for (at, element) in elements.iter().enumerate() {
                if at > 0 {
                    out.push(',');
                }
                canonical(element, out);
            }
            out.push(']');
        }
        scalar => {
            let _ = write!(out, "{scalar}");
        }
    }
}

/// Where the walk is: the path for people, and the two names that decide how a value is compared.
struct Place<'a> {
    path: String,
    /// The nearest named field around this value.
    field: &'a str,
    /// The named field around that.
    parent: &'a str,
}

impl<'a> Place<'a> {
    fn root() -> Self {
        Self { path: String::new(), field: "", parent: "" }
    }

    fn field<'b>(&self, name: &'b str) -> Place<'b>
    where
        'a: 'b,
    {
        let dot = if self.path.is_empty() { "" } else { "." };
        Place { path: format!("{}{dot}{name}", self.path), field: name, parent: self.field }
    }

    fn element(&self, at: usize) -> Self {
        Self { path: format!("{}[{at}]", self.path), field: self.field, parent: self.parent }
    }

    fn is_quantity(&self) -> bool {
        matches!(self.parent, "limits" | "requests" | "capacity" | "overhead" | "hard" | "allocatable")
            || matches!(self.field, "sizeLimit" | "divisor")
    }
}

/// Fields of built-in kinds whose `false` or 0 is the same as nothing, so that the API server does not store it: their Go
/// type is no pointer and says `omitempty` (k8s.io/api, `types.go` of core and batch).
const NOT_STORED: &[&str] = &[
    "hostIPC",
    "hostNetwork",
    "hostPID",
    "hostPort",
    "initialDelaySeconds",
    "publishNotReadyAddresses",
    "readOnly",
    "stdin",
    "stdinOnce",
    "tty",
];

/// As [`NOT_STORED`], but the API server puts a value of its own in the place of 0.
const CHOSEN_AT_ZERO: &[&str] =
    &["failureThreshold", "healthCheckNodePort", "nodePort", "periodSeconds", "successThreshold", "timeoutSeconds"];

/// Maps of built-in kinds that belong to who applies them, whole (`x-kubernetes-map-type: atomic`).
pub(super) const ATOMIC_MAPS: &[&str] = &["selector", "nodeSelector", "matchLabels"];

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
            (desired, Some(live)) if place.is_quantity() => same_quantity(desired, live),
            (Value::Number(a), Some(Value::Number(b))) => a == b || a.as_f64() == b.as_f64(),
            (desired, Some(live)) => desired == live || (desired.is_null()),
        };
        if !same {
            self.differs(place, live);
        }
    }

    fn differs(&mut self, place: &Place<'_>, live: Option<&Value>) {
        self.found.push(Difference { path: place.path.clone(), seen: live.map(digest) });
    }

    fn is_zero(&self, value: &Value, place: &Place<'_>, fields: &[&str]) -> bool {
        let zero = value == &Value::Bool(false) || value.as_f64() == Some(0.0);
        zero && fields.contains(&place.field) && merge_keys::is_built_in(self.api_version)
    }

    fn fields(&mut self, place: &Place<'_>, desired: &Map<String, Value>, live: &Map<String, Value>) {
        let atomic = ATOMIC_MAPS.contains(&place.field) && merge_keys::is_built_in(self.api_version);
        if atomic && live.keys().any(|name| !desired.contains_key(name)) {
            self.differs(place, None);
        }
        for (name, value) in desired {
            self.value(&place.field(name), value, live.get(name));
        }
    }

    fn list(&mut self, place: &Place<'_>, desired: &[Value], whole: &Value, live: &[Value]) {
        match merge_keys::of(self.api_version, place.parent, place.field) {
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
        None => merge_keys::default_of(key).map(|value| Cow::Owned(Value::from(value))),
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

fn same_quantity(a: &Value, b: &Value) -> bool {
    let text = |value: &Value| match value {
        Value::String(text) => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        _ => None,
    };
    let amount = |value| text(value).and_then(|text| nanos(&text));
    a == b || matches!((amount(a), amount(b)), (Some(a), Some(b)) if a == b)
}

/// A quantity in billionths of its unit; `None` if it is not a quantity or too large to compare exactly.
///
/// Source: <https://kubernetes.io/docs/reference/kubernetes-api/common-definitions/quantity/>.
pub(crate) fn nanos(text: &str) -> Option<i128> {
    let number_ends = text.find(|c: char| !matches!(c, '0'..='9' | '.' | '+' | '-')).unwrap_or(text.len());
    let (number, suffix) = text.split_at(number_ends);
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let negative = whole.starts_with('-');
    let whole = whole.trim_start_matches(['+', '-']);
    if whole.is_empty() && fraction.is_empty() {
        return None;
    }
    let digits: i128 = format!("{whole}{fraction}").parse().ok()?;
    let mut scale = -i32::try_from(fraction.len()).ok()?;
    let mut factor: i128 = 1;
    match suffix {
        "" => {}
        "n" => scale -= 9,
        "u" => scale -= 6,
        "m" => scale -= 3,
        "k" => scale += 3,
        "M" => scale += 6,
        "G" => scale += 9,
        "T" => scale += 12,
        "P" => scale += 15,
        "E" => scale += 18,
        "Ki" => factor = 1 << 10,
        "Mi" => factor = 1 << 20,
        "Gi" => factor = 1 << 30,
        "Ti" => factor = 1 << 40,
        "Pi" => factor = 1 << 50,
        "Ei" => factor = 1 << 60,
        exponent => scale += exponent.strip_prefix(['e', 'E'])?.parse::<i32>().ok()?,
    }
    let power = scale + 9;
    let shift = 10_i128.checked_pow(power.unsigned_abs())?;
    let scaled = digits.checked_mul(factor)?;
    // The API server rounds up what is smaller than a billionth; who writes that is not compared exactly.
    let amount = if power >= 0 { scaled.checked_mul(shift)? } else { scaled.checked_div(shift)? };
    Some(if negative { -amount } else { amount })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn paths(desired: &Value, live: &Value) -> Vec<String> {
        drift(desired, live).into_iter().map(|difference| difference.path).collect()
    }

    fn job(container: Value) -> Value {
        json!({"apiVersion": "batch/v1", "kind": "Job", "spec": {"template": {"spec": {"containers": [container]}}}})
    }

    #[test]
    fn what_others_add_is_no_drift() {
        let desired = job(json!({"name": "flux", "image": "i", "env": [{"name": "A", "value": "1"}], "args": []}));
        let live = json!({"apiVersion": "batch/v1", "kind": "Job", "status": {"active": 1},
        "metadata": {"uid": "u"}, "spec": {"suspend": false, "template": {"spec": {"dnsPolicy": "ClusterFirst",
            "containers": [
                {"name": "sidecar", "image": "s"},
                {"name": "flux", "image": "i", "imagePullPolicy": "Always",
                    "env": [{"name": "B", "value": "2"}, {"name": "A", "value": "1"}]},
        ]}}}});
        assert_eq!(paths(&desired, &live), Vec::<String>::new());
    }

    #[test]
    fn what_others_change_is_drift_and_is_named() {
        let path = |rest: &str| format!("spec.template.spec.containers[0]{rest}");
        let desired = || {
            json!({"name": "flux", "image": "i", "args": ["a", "b"], "env": [{"name": "A", "value": "1"}],
            "resources": {"limits": {"cpu": "1"}}, "tty": true, "workingDir": "/"})
        };
        let cases = [
            ("/image", json!("j"), path(".image")),
            ("/args", json!(["a"]), path(".args")),
            ("/args/1", json!("c"), path(".args[1]")),
            ("/env/0/value", json!("2"), path(".env[0].value")),
            ("/env/0/name", json!("B"), path(".env[0]")),
            ("/resources/limits/cpu", json!("1001m"), path(".resources.limits.cpu")),
            ("/tty", json!(false), path(".tty")),
            ("/workingDir", Value::Null, path(".workingDir")),
            ("/name", json!("other"), path("")),
        ];
        for (pointer, value, expected) in cases {
            let mut live = desired();
            *live.pointer_mut(pointer).unwrap() = value;
            assert_eq!(paths(&job(desired()), &job(live)), [expected], "{pointer}");
        }
    }

    #[test]
    fn ports_match_by_number_with_the_default_protocol() {
        let service = |ports: Value| json!({"apiVersion": "v1", "kind": "Service", "spec": {"ports": ports}});
        let desired = service(json!([{"port": 8050, "targetPort": 8050}]));
        let live = service(json!([
            {"port": 8050, "protocol": "UDP", "targetPort": 1},
            {"port": 8050, "protocol": "TCP", "targetPort": 8050, "nodePort": 30001},
        ]));
        assert!(paths(&desired, &live).is_empty());
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
    fn quantities_are_compared_by_amount_where_quantities_are() {
        for (a, b) in
            [("1000m", "1"), ("1Gi", "1024Mi"), ("0.5", "500m"), ("1e3", "1k"), ("1E", "1000P"), ("-1", "-1000m")]
        {
            assert!(same_quantity(&json!(a), &json!(b)), "{a} {b}");
        }
        assert!(same_quantity(&json!(1), &json!("1")));
        for (a, b) in [("1", "2"), ("1G", "1Gi"), ("x", "y"), ("1", "1x"), ("", "0")] {
            assert!(!same_quantity(&json!(a), &json!(b)), "{a} {b}");
        }
        let map = |value: &str| json!({"apiVersion": "v1", "data": {"size": value}});
        assert_eq!(paths(&map("1000m"), &map("1")), ["data.size"], "elsewhere text is text");
    }

    #[test]
    fn what_is_empty_may_be_missing_and_what_is_not_may_not() {
        let desired = json!({"a": {}, "b": [], "c": null, "d": "", "e": {"f": {}}, "g": false, "h": 0});
        assert_eq!(paths(&desired, &json!({})), ["g", "h"]);
        let desired =
            |api_version: &str| json!({"apiVersion": api_version, "spec": {"tty": false, "immutable": false}});
        let live = |api_version: &str| json!({"apiVersion": api_version, "spec": {}});
        assert_eq!(paths(&desired("v1"), &live("v1")), ["spec.immutable"]);
        assert_eq!(paths(&desired("a.b/v1"), &live("a.b/v1")), ["spec.immutable", "spec.tty"]);
        let service = |port: u16| json!({"apiVersion": "v1", "spec": {"ports": [{"port": 80, "nodePort": port}]}});
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
        let mut text = String::new();
        canonical(&one, &mut text);
        assert_eq!(text, r#"{"a":{"c":true,"d":null},"b":[1,"x"]}"#);
        assert_eq!(digest(&one), digest(&two));
        assert_ne!(digest(&one), digest(&json!({"a": {"c": true, "d": null}, "b": ["x", 1]})));
        assert_eq!(digest(&json!({})), "44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a");
    }
}
