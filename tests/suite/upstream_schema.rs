//! What upstream's schema accepts, ours accepts: both definitions are walked side by side, upstream's as the table of its
//! fields has it (`tests/corpus/upstream-fields.tsv`).

use std::collections::BTreeSet;

use proptest::prelude::*;
use proptest::sample::select;
use serde_json::{Map, Value, json};
use tributary::api::minicluster::MiniCluster;
use tributary_tests::upstream;

use crate::corpus::is_zero;

/// Keywords that narrow a field unless upstream has the same.
const RESTRICTIONS: [&str; 10] = [
    "pattern",
    "multipleOf",
    "exclusiveMinimum",
    "exclusiveMaximum",
    "uniqueItems",
    "allOf",
    "oneOf",
    "not",
    "x-kubernetes-validations",
    "x-kubernetes-embedded-resource",
];
/// Bounds that may be lower than upstream's, or absent.
const LOWER_BOUNDS: [&str; 4] = ["minimum", "minLength", "minItems", "minProperties"];
/// Bounds that may be higher than upstream's, or absent.
const UPPER_BOUNDS: [&str; 4] = ["maximum", "maxLength", "maxItems", "maxProperties"];

fn ours() -> Value {
    let crds = tributary::api::crds();
    let crd = crds.iter().find(|crd| crd.spec.names.kind == "MiniCluster").unwrap();
    serde_json::to_value(crd).unwrap()
}

fn schema(definition: &Value) -> &Value {
    &definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
}

#[test]
fn the_kind_is_served_under_upstreams_names() {
    let (upstream, ours) = (upstream::definition().unwrap(), ours());
    assert_eq!(ours["metadata"]["name"], upstream["metadata"]["name"]);
    for key in ["group", "scope"] {
        assert_eq!(ours["spec"][key], upstream["spec"][key], "{key}");
    }
    for (key, name) in upstream["spec"]["names"].as_object().unwrap() {
        let found = &ours["spec"]["names"][key];
        // Kubernetes derives the list's kind where none is written.
        let derived = key == "listKind" && found.is_null() && *name == "MiniClusterList";
        assert!(found == name || derived, "{key}: {found}, upstream's {name}");
    }
    let versions = |definition: &Value| definition["spec"]["versions"].as_array().unwrap().clone();
    for (upstream, ours) in versions(&upstream).iter().zip(versions(&ours)) {
        for key in ["name", "served", "storage", "subresources"] {
            assert_eq!(ours[key], upstream[key], "{key}");
        }
    }
    // Beside it, the version before: served, and stored nowhere.
    let others = &versions(&ours)[versions(&upstream).len()..];
    let others: Vec<_> = others.iter().map(|one| (&one["name"], &one["served"], &one["storage"])).collect();
    assert_eq!(others, [(&json!("v1alpha1"), &json!(true), &json!(false))]);
}

#[test]
fn no_field_of_upstream_is_missing_or_narrower() {
    let (upstream, ours) = (upstream::definition().unwrap(), ours());
    // Bursts that nobody could make are refused as they are written: upstream's operator leaves them to a person anyway.
    let mut complaints = narrower(schema(&upstream), schema(&ours));
    // What upstream takes has no `managedBy`, so it never becomes another.
    complaints.retain(|one| one != ".spec has a x-kubernetes-validations of its own");
    let rules = schema(&ours)["properties"]["spec"]["x-kubernetes-validations"].as_array().unwrap();
    assert!(rules.iter().all(|rule| rule["fieldPath"] == ".managedBy"), "{rules:#?}");
    let bursts = ".spec.flux.bursting.clusters";
    let (of_bursts, complaints): (Vec<_>, Vec<_>) = complaints.into_iter().partition(|one| one.starts_with(bursts));
    assert!(complaints.is_empty(), "{complaints:#?}");
    let ruled = [
        " has a x-kubernetes-validations of its own",
        " has a lower maxItems",
        "[] has a x-kubernetes-validations of its own",
        "[].name has a lower maxLength",
    ];
    assert_eq!(of_bursts, ruled.map(|rule| format!("{bursts}{rule}")));
    let mut walked = 0;
    count(schema(&upstream), &mut walked);
    assert!(walked > 300, "only {walked} fields of upstream's were walked");
}

fn count(schema: &Value, walked: &mut usize) {
    *walked += 1;
    let below = schema["properties"].as_object().into_iter().flat_map(Map::values);
    below.chain(schema.get("items")).chain(schema.get("additionalProperties")).for_each(|below| count(below, walked));
}

/// Where `ours` refuses, drops or changes something that `upstream` takes.
fn narrower(upstream: &Value, ours: &Value) -> Vec<String> {
    let mut complaints = Vec::new();
    walk(upstream, ours, "", &mut complaints);
    complaints
}

fn walk(upstream: &Value, ours: &Value, path: &str, complaints: &mut Vec<String>) {
    let mut complain = |text: String| complaints.push(format!("{path} {text}"));
    if is_open(ours) {
        return;
    }
    let (theirs, kind) = (kind(upstream), kind(ours));
    let takes = kind == theirs
        || (kind == "number" && theirs == "integer")
        || (kind == "int-or-string" && (theirs == "integer" || theirs == "string"));
    if !takes {
        complain(format!("is {kind}, upstream's {theirs}"));
    }
    let format = |schema: &Value| schema["format"].as_str().unwrap_or_default().to_owned();
    if !format(ours).is_empty() && format(ours) != format(upstream) && format(ours) != "int64" {
        complain(format!("is {}, upstream's {:?}", format(ours), format(upstream)));
    }
    for flag in ["nullable", "x-kubernetes-preserve-unknown-fields"] {
        if upstream[flag] == true && ours[flag] != true {
            complain(format!("is not {flag}"));
        }
    }
    for keyword in RESTRICTIONS {
        if ours.get(keyword).is_some_and(|ours| upstream.get(keyword) != Some(ours)) {
            complain(format!("has a {keyword} of its own"));
        }
    }
    // A quantity is written as `anyOf` integer and string: it says no more than int-or-string.
    if ours.get("anyOf").is_some() && ours.get("anyOf") != upstream.get("anyOf") && kind != "int-or-string" {
        complain("has alternatives of its own".into());
    }
    let number = |schema: &Value, key: &str| schema.get(key).and_then(Value::as_f64);
    for bound in LOWER_BOUNDS {
        if number(ours, bound).is_some_and(|ours| number(upstream, bound).is_none_or(|theirs| ours > theirs)) {
            complain(format!("has a higher {bound}"));
        }
    }
    for bound in UPPER_BOUNDS {
        if number(ours, bound).is_some_and(|ours| number(upstream, bound).is_none_or(|theirs| ours < theirs)) {
            complain(format!("has a lower {bound}"));
        }
    }
    let words = |schema: &Value, key: &str| -> Option<BTreeSet<String>> {
        Some(schema.get(key)?.as_array()?.iter().map(Value::to_string).collect())
    };
    if let Some(ours) = words(ours, "enum")
        && words(upstream, "enum").is_none_or(|theirs| !theirs.is_subset(&ours))
    {
        complain("takes fewer words".into());
    }
    let (required, theirs) = (words(ours, "required").unwrap_or_default(), words(upstream, "required"));
    // What has a default is there before anybody asks for it.
    let defaults = |key: &String| ours["properties"][key.trim_matches('"')].get("default").is_some();
    let more: Vec<_> = required.difference(&theirs.unwrap_or_default()).filter(|key| !defaults(key)).cloned().collect();
    if !more.is_empty() {
        complain(format!("requires {}", more.join(", ")));
    }
    // Lists that are sets or maps take no two items alike.
    let list = ours["x-kubernetes-list-type"].as_str().unwrap_or("atomic");
    if list != "atomic" && !own_list(path) && ours["x-kubernetes-list-type"] != upstream["x-kubernetes-list-type"] {
        complain(format!("is a list of type {list}"));
    }
    if let Some(default) = upstream.get("default").or_else(|| ours.get("default"))
        && upstream.get("default") != ours.get("default")
        && !own_default(path)
    {
        complain(format!("has another default than {default}"));
    }
    for (key, below) in upstream["properties"].as_object().into_iter().flatten() {
        let path = format!("{path}.{key}");
        if of_every_object(&path) {
            continue;
        }
        match ours["properties"].get(key).or_else(|| ours.get("additionalProperties")) {
            Some(ours) => walk(below, ours, &path, complaints),
            None => complaints.push(format!("{path} is missing")),
        }
    }
    for (key, suffix) in [("items", "[]"), ("additionalProperties", "{}")] {
        match (upstream.get(key), ours.get(key)) {
            (Some(upstream), Some(ours)) => walk(upstream, ours, &format!("{path}{suffix}"), complaints),
            (Some(_), None) => complaints.push(format!("{path}{suffix} is missing")),
            (None, _) => {}
        }
    }
}

fn kind(schema: &Value) -> &str {
    match schema["type"].as_str() {
        _ if schema["x-kubernetes-int-or-string"] == true => "int-or-string",
        Some(kind) => kind,
        None => "anything",
    }
}

/// Takes whatever there is, and keeps it.
fn is_open(schema: &Value) -> bool {
    schema["x-kubernetes-preserve-unknown-fields"] == true
        && schema.get("properties").is_none()
        && schema.get("type").is_none()
}

/// Defaults that only we have: an absent spec is an empty one, and status is always whole.
fn own_default(path: &str) -> bool {
    path == ".spec" || path.starts_with(".status.")
}

/// Lists that only we narrow. Operators write conditions, users do not, and upstream's has one of each type.
fn own_list(path: &str) -> bool {
    path == ".status.conditions"
}

/// The API server adds these to every schema.
fn of_every_object(path: &str) -> bool {
    [".apiVersion", ".kind", ".metadata"].contains(&path)
}

#[test]
fn each_way_to_be_narrower_is_found() {
    let upstream = json!({"type": "object", "properties": {
        "name": {"type": "string"},
        "size": {"type": "integer", "format": "int32", "default": 1},
        "count": {"type": "integer", "minimum": 0, "maximum": 9},
        "word": {"type": "string", "enum": ["a", "b"]},
        "amount": {"x-kubernetes-int-or-string": true},
        "items": {"type": "array", "items": {"type": "string"}},
        "labels": {"type": "object", "additionalProperties": {"type": "string"}},
        "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": true},
        "null": {"type": "string", "nullable": true},
    }});
    assert_eq!(narrower(&upstream, &upstream), Vec::<String>::new());
    let cases = [
        ("/properties/name", json!({"type": "integer"}), ".name is integer, upstream's string"),
        ("/properties/name", json!({"type": "string", "pattern": "^a"}), ".name has a pattern of its own"),
        ("/properties/name", json!({"type": "string", "maxLength": 3}), ".name has a lower maxLength"),
        ("/properties/name", json!({"type": "string", "format": "date"}), ".name is date, upstream's \"\""),
        ("/properties/name", json!({"type": "string", "default": "x"}), ".name has another default than \"x\""),
        ("/properties/name", json!({"type": "string", "anyOf": [{}]}), ".name has alternatives of its own"),
        ("/properties/size", json!({"type": "integer"}), ".size has another default than 1"),
        ("/properties/count", json!({"type": "integer", "minimum": 1}), ".count has a higher minimum"),
        ("/properties/word", json!({"type": "string", "enum": ["a"]}), ".word takes fewer words"),
        ("/properties/amount", json!({"type": "string"}), ".amount is string, upstream's int-or-string"),
        ("/properties/items", json!({"type": "array"}), ".items[] is missing"),
        (
            "/properties/items",
            json!({"type": "array", "items": {"type": "string"}, "x-kubernetes-list-type": "set"}),
            ".items is a list of type set",
        ),
        ("/properties/labels", json!({"type": "object", "properties": {}}), ".labels{} is missing"),
        ("/properties/free", json!({"type": "object"}), ".free is not x-kubernetes-preserve-unknown-fields"),
        ("/properties/null", json!({"type": "string"}), ".null is not nullable"),
        ("/properties", json!({}), ".name is missing"),
    ];
    for (at, change, expected) in cases {
        let mut ours = upstream.clone();
        *ours.pointer_mut(at).unwrap() = change;
        let complaints = narrower(&upstream, &ours);
        assert!(complaints.iter().any(|one| one == expected), "{expected}: {complaints:?}");
    }
    let mut strict = upstream.clone();
    strict["required"] = json!(["name"]);
    assert_eq!(narrower(&upstream, &strict), [" requires \"name\""]);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// Any spec that upstream's schema lets pass is read, and written back with the same content.
    #[test]
    fn any_spec_that_upstream_accepts_is_kept(spec in spec()) {
        let object = json!({
            "apiVersion": "flux-framework.org/v1alpha2", "kind": "MiniCluster", "metadata": { "name": "a" }, "spec": spec,
        });
        let cluster: MiniCluster = serde_json::from_value(object).unwrap();
        let written = serde_json::to_value(&cluster.spec).unwrap();
        prop_assert_eq!(without_zeros(&written), without_zeros(&spec));
    }
}

/// A strategy for specs, built from upstream's schema.
fn spec() -> BoxedStrategy<Value> {
    value(&schema(&upstream::definition().unwrap())["properties"]["spec"])
}

fn value(schema: &Value) -> BoxedStrategy<Value> {
    match kind(schema) {
        "boolean" => any::<bool>().prop_map(Value::from).boxed(),
        "integer" if schema["format"] == "int32" => {
            prop_oneof![Just(0), Just(-1), any::<i32>()].prop_map(Value::from).boxed()
        }
        "integer" => prop_oneof![Just(0), any::<i64>()].prop_map(Value::from).boxed(),
        "string" => prop_oneof![Just(String::new()), any::<String>()].prop_map(Value::from).boxed(),
        "int-or-string" => prop_oneof![
            any::<i64>().prop_map(Value::from),
            select(vec!["500m", "2Gi", "4", "1e3"]).prop_map(Value::from)
        ]
        .boxed(),
        "array" => prop::collection::vec(value(&schema["items"]), 0..3).prop_map(Value::from).boxed(),
        "object" => match schema.get("additionalProperties") {
            Some(below) => prop::collection::btree_map("[a-z]{1,8}", value(below), 0..3)
                .prop_map(|map| Value::from(map.into_iter().collect::<Map<_, _>>()))
                .boxed(),
            None => properties(schema),
        },
        kind => panic!("no strategy for {kind}: {schema}"),
    }
}

fn properties(schema: &Value) -> BoxedStrategy<Value> {
    let required = |name: &str| schema["required"].as_array().is_some_and(|names| names.iter().any(|one| one == name));
    let members: Vec<_> = schema["properties"]
        .as_object()
        .into_iter()
        .flatten()
        .map(|(name, below)| {
            let below = value(below);
            let member =
                if required(name) { below.prop_map(Some).boxed() } else { proptest::option::of(below).boxed() };
            (Just(name.clone()), member)
        })
        .collect();
    members
        .prop_map(|members| {
            Value::from(members.into_iter().filter_map(|(name, value)| Some((name, value?))).collect::<Map<_, _>>())
        })
        .boxed()
}

/// The value without members that are zero: the API takes them for absent.
fn without_zeros(value: &Value) -> Value {
    match value {
        Value::Object(map) => {
            let kept = map.iter().filter(|(_, value)| !is_zero(value));
            Value::Object(kept.map(|(key, value)| (key.clone(), without_zeros(value))).collect())
        }
        Value::Array(items) => Value::Array(items.iter().map(without_zeros).collect()),
        other => other.clone(),
    }
}

/// Fields that upstream's documentation promises and its schema drops, in the places where it shows them.
#[test]
fn documented_fields_are_kept() {
    let ours = ours();
    for path in [
        "launcher",
        "flux/leadBroker/address",
        "flux/leadBroker/hostlist",
        "containers/cores",
        "containers/preCommand",
        "containers/fluxUser/name",
        "containers/fluxUser/uid",
        "containers/diagnostics",
        "containers/existingVolumes/secretName",
        "containers/commands/preWorker",
        "containers/commands/preBroker",
        "containers/commands/runFluxAsRoot",
        "containers/securityContext/addCapabilities",
        "volumes/path",
    ] {
        let mut at = &schema(&ours)["properties"]["spec"];
        for key in path.split('/') {
            at = at.get("items").or_else(|| at.get("additionalProperties")).unwrap_or(at);
            at = at["properties"].get(key).unwrap_or_else(|| panic!("{path}: no {key}"));
        }
    }
}
