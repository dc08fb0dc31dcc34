//! What upstream's schema accepts, ours accepts: held against a table of upstream's schema, one line per field
//! (`tests/corpus/upstream-schema.tsv`).

use std::collections::BTreeMap;

use proptest::prelude::*;
use proptest::sample::select;
use serde_json::{Map, Value, json};
use tributary::api::minicluster::MiniCluster;
use tributary_tests::corpus::folder;

use crate::corpus::is_zero;

/// Keywords that narrow what a field accepts.
const BOUNDS: [&str; 13] = [
    "enum",
    "pattern",
    "minimum",
    "maximum",
    "exclusiveMinimum",
    "exclusiveMaximum",
    "multipleOf",
    "minLength",
    "maxLength",
    "minItems",
    "maxItems",
    "uniqueItems",
    "x-kubernetes-validations",
];

struct Field {
    /// `string`, `integer/int32`, `int-or-string`, …
    kind: String,
    default: Option<Value>,
    required: Vec<String>,
    bounds: Value,
}

/// Upstream's fields by path: `.spec.containers[].secrets{}.key`.
fn upstream() -> BTreeMap<String, Field> {
    let table = std::fs::read_to_string(folder().join("upstream-schema.tsv")).unwrap();
    let dash = |cell: &str| (cell != "-").then(|| cell.to_owned());
    let fields = table.lines().skip(1).map(|line| {
        let [path, kind, default, required, bounds] = line.split('\t').collect::<Vec<_>>().try_into().unwrap();
        let field = Field {
            kind: kind.to_owned(),
            default: dash(default).map(|text| serde_json::from_str(&text).unwrap()),
            required: dash(required).map(|text| text.split(',').map(str::to_owned).collect()).unwrap_or_default(),
            bounds: dash(bounds).map_or(json!({}), |text| serde_json::from_str(&text).unwrap()),
        };
        (path.to_owned(), field)
    });
    fields.collect()
}

/// Our schema by the same paths.
fn ours() -> BTreeMap<String, Value> {
    let crds = tributary::api::crds();
    let crd = crds.iter().find(|crd| crd.spec.names.kind == "MiniCluster").unwrap();
    let schema = serde_json::to_value(&crd.spec.versions[0].schema).unwrap()["openAPIV3Schema"].take();
    let mut fields = BTreeMap::new();
    flatten(&schema, String::new(), &mut fields);
    fields
}

fn flatten(schema: &Value, path: String, fields: &mut BTreeMap<String, Value>) {
    for (key, below) in schema["properties"].as_object().into_iter().flatten() {
        flatten(below, format!("{path}.{key}"), fields);
    }
    for (key, suffix) in [("items", "[]"), ("additionalProperties", "{}")] {
        if let Some(below) = schema.get(key) {
            flatten(below, format!("{path}{suffix}"), fields);
        }
    }
    fields.insert(path, schema.clone());
}

#[test]
fn no_field_of_upstream_is_missing_or_narrower() {
    let ours = ours();
    let mut complaints = Vec::new();
    for (path, field) in upstream() {
        let Some(schema) = ours.get(&path) else {
            complaints.push(format!("{path} is missing"));
            continue;
        };
        let kind = match (schema["type"].as_str(), schema["format"].as_str()) {
            (None, _) if schema["x-kubernetes-int-or-string"] == true => "int-or-string".to_owned(),
            (Some(kind), Some(format)) => format!("{kind}/{format}"),
            (kind, _) => kind.unwrap_or("anything").to_owned(),
        };
        if kind != field.kind {
            complaints.push(format!("{path} is {kind}, upstream's {}", field.kind));
        }
        for key in schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str) {
            if !field.required.iter().any(|required| required == key) {
                complaints.push(format!("{path} requires {key}"));
            }
        }
        for bound in BOUNDS {
            if schema.get(bound).is_some_and(|ours| field.bounds.get(bound) != Some(ours)) {
                complaints.push(format!("{path} has a {bound} of its own"));
            }
        }
    }
    assert!(complaints.is_empty(), "{complaints:#?}");
}

#[test]
fn defaults_of_the_spec_are_upstreams() {
    let upstream = upstream();
    let wanted = upstream.iter().filter_map(|(path, field)| Some((path.as_str(), field.default.as_ref()?)));
    let ours = ours();
    let found = ours.iter().filter_map(|(path, schema)| Some((path.as_str(), schema.get("default")?)));
    // Ours beyond upstream: an absent spec is an empty one; the field that documentation shows has the same default as
    // the real one; and status is always whole.
    let extra = [
        ".spec",
        ".spec.flux.leadBroker.port",
        ".status.size",
        ".status.selector",
        ".status.jobid",
        ".status.maximumSize",
    ];
    let old_name = |path: &str| path.contains(".existingVolumes{}");
    let found: BTreeMap<_, _> = found.filter(|(path, _)| !extra.contains(path) && !old_name(path)).collect();
    assert_eq!(found, wanted.collect());
}

#[test]
fn additions_are_optional() {
    let upstream = upstream();
    for (path, schema) in ours() {
        let Some((parent, key)) = path.rsplit_once('.') else { continue };
        if upstream.contains_key(parent) && !upstream.contains_key(&path) {
            let required = ours()[parent]["required"].as_array().cloned().unwrap_or_default();
            assert!(!required.contains(&json!(key)), "{path} is required: {schema}");
        }
    }
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

/// A strategy for specs, built from the table.
fn spec() -> BoxedStrategy<Value> {
    value(".spec", &upstream())
}

fn value(path: &str, fields: &BTreeMap<String, Field>) -> BoxedStrategy<Value> {
    match fields[path].kind.as_str() {
        "boolean" => any::<bool>().prop_map(Value::from).boxed(),
        "integer/int32" => prop_oneof![Just(0), Just(-1), any::<i32>()].prop_map(Value::from).boxed(),
        "integer/int64" => prop_oneof![Just(0), any::<i64>()].prop_map(Value::from).boxed(),
        "string" => prop_oneof![Just(String::new()), any::<String>()].prop_map(Value::from).boxed(),
        "int-or-string" => prop_oneof![
            any::<i64>().prop_map(Value::from),
            select(vec!["500m", "2Gi", "4", "1e3"]).prop_map(Value::from)
        ]
        .boxed(),
        "array" => prop::collection::vec(value(&format!("{path}[]"), fields), 0..3).prop_map(Value::from).boxed(),
        "object" if fields.contains_key(&format!("{path}{{}}")) => {
            prop::collection::btree_map("[a-z]{1,8}", value(&format!("{path}{{}}"), fields), 0..3)
                .prop_map(|map| Value::from(map.into_iter().collect::<Map<_, _>>()))
                .boxed()
        }
        "object" => properties(path, fields),
        kind => panic!("{path}: no strategy for {kind}"),
    }
}

fn properties(path: &str, fields: &BTreeMap<String, Field>) -> BoxedStrategy<Value> {
    let prefix = format!("{path}.");
    let names = fields.keys().filter_map(|key| key.strip_prefix(&prefix)).filter(|key| !key.contains(['.', '[', '{']));
    let members: Vec<_> = names
        .map(|name| {
            let below = value(&format!("{prefix}{name}"), fields);
            let member = if fields[path].required.iter().any(|required| required == name) {
                below.prop_map(Some).boxed()
            } else {
                proptest::option::of(below).boxed()
            };
            (Just(name.to_owned()), member)
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
        ".spec.launcher",
        ".spec.flux.leadBroker.address",
        ".spec.flux.leadBroker.hostlist",
        ".spec.containers[].cores",
        ".spec.containers[].preCommand",
        ".spec.containers[].fluxUser.name",
        ".spec.containers[].fluxUser.uid",
        ".spec.containers[].diagnostics",
        ".spec.containers[].existingVolumes{}.secretName",
        ".spec.containers[].commands.preWorker",
        ".spec.containers[].commands.preBroker",
        ".spec.containers[].commands.runFluxAsRoot",
        ".spec.containers[].securityContext.addCapabilities",
        ".spec.volumes{}.path",
    ] {
        assert!(ours.contains_key(path), "{path}");
    }
}
