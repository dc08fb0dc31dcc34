//! Every MiniCluster of the corpus goes through our types and our schema without losing anything.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::LazyLock;

use serde_json::Value;
use tributary::api::minicluster::MiniCluster;
use tributary::api::v1alpha1::{V1ALPHA1, V1ALPHA2, convert};
use tributary::config::VolumesConfig;
use tributary::render::{Context, render};
use tributary_tests::corpus::{documents, folder, older_documents};

#[test]
fn the_index_and_the_files_agree() {
    let index = std::fs::read_to_string(folder().join("INDEX.tsv")).unwrap();
    let listed: BTreeSet<&str> = index.lines().skip(1).filter_map(|line| line.split('\t').next()).collect();
    let documents = [documents().unwrap(), older_documents().unwrap()].concat();
    let found: BTreeSet<&str> = documents.iter().map(|document| document.file.as_str()).collect();
    assert_eq!(listed, found);
}

#[test]
fn every_document_is_kept_whole() {
    for document in documents().unwrap() {
        assert_eq!(losses(&document.value), Vec::<String>::new(), "{}", document.file);
    }
}

/// What the API server or our types do not keep of a MiniCluster of v1alpha2.
pub(crate) fn losses(value: &Value) -> Vec<String> {
    let mut complaints = pruned(value, V1ALPHA2);
    let cluster: MiniCluster = match serde_json::from_value(value.clone()) {
        Ok(cluster) => cluster,
        Err(error) => {
            complaints.push(error.to_string());
            return complaints;
        }
    };
    let written = serde_json::to_value(&cluster).unwrap();
    let mut lost = Vec::new();
    missing(value, &written, "", &mut lost);
    let known = |path: &String| complaints.iter().any(|complaint| complaint.starts_with(&path[1..]));
    lost.retain(|path| !known(path));
    complaints.extend(lost.into_iter().map(|path| format!("{} is lost", &path[1..])));

    let again: MiniCluster = serde_json::from_value(written).unwrap();
    assert_eq!(again, cluster);
    complaints
}

/// Our schemas, by version. It takes a while to make them.
static SCHEMAS: LazyLock<BTreeMap<String, Value>> = LazyLock::new(|| {
    let definition = tributary::api::crds().into_iter().find(|crd| crd.spec.names.kind == "MiniCluster").unwrap();
    let schema = |schema| serde_json::to_value(schema).unwrap()["openAPIV3Schema"]["properties"].take();
    definition.spec.versions.into_iter().map(|version| (version.name, schema(version.schema))).collect()
});

/// What our schema of this version says against the spec and the status.
fn pruned(value: &Value, version: &str) -> Vec<String> {
    let schema = &SCHEMAS[version.trim_start_matches("flux-framework.org/")];
    let mut complaints = Vec::new();
    for part in ["spec", "status"] {
        if let Some(value) = value.get(part) {
            check(value, &schema[part], part, &mut complaints);
        }
    }
    complaints
}

/// What is lost, and why it cannot be carried out: fields that were gone before v1alpha1 ended, a storage class that
/// stood for its driver, a container without a name.
const OF_FIRST_WEEKS: [(&str, &str); 5] = [
    (
        "v1alpha1/first-weeks-bucket.yaml",
        "spec.volumes.peat.driver: say which CSI driver mounts it: the administrator has allowed none",
    ),
    ("v1alpha1/first-weeks.yaml", "spec.containers[0].workdir would be pruned"),
    ("v1alpha1/first-weeks.yaml", "spec.diagnostics would be pruned"),
    ("v1alpha1/first-weeks.yaml", "spec.localDeploy would be pruned"),
    (
        "v1alpha1/first-weeks.yaml",
        "spec.containers[1].name: name is missing: every container that does not run Flux needs one",
    ),
];

#[test]
fn every_older_document_goes_to_v1alpha2_and_back() {
    let mut troubles = Vec::new();
    for document in older_documents().unwrap() {
        let (lost, refused) = older_troubles(&document.value);
        troubles.extend(lost.into_iter().chain(refused).map(|trouble| (document.file.clone(), trouble)));
    }
    let troubles: Vec<(&str, &str)> = troubles.iter().map(|(file, text)| (file.as_str(), text.as_str())).collect();
    assert_eq!(troubles, OF_FIRST_WEEKS);
}

/// What is not kept of a MiniCluster of v1alpha1, there or in v1alpha2; and why it cannot be carried out, if so.
pub(crate) fn older_troubles(value: &Value) -> (Vec<String>, Option<String>) {
    let mut lost = pruned(value, V1ALPHA1);
    let stored = convert(value, V1ALPHA2).unwrap();
    lost.extend(pruned(&stored, V1ALPHA2));
    if convert(&stored, V1ALPHA1).unwrap() != *value {
        lost.push("it does not come back".to_owned());
    }
    let cluster: MiniCluster = serde_json::from_value(stored).unwrap();
    let refused = render(&cluster, &allowing(value)).err();
    (lost, refused.map(|problems| problems.to_string()))
}

/// A cluster whose administrator allows the volumes that this MiniCluster asks for.
fn allowing(value: &Value) -> Context {
    let words = |key: &str| -> Vec<String> {
        let volumes = value["spec"]["volumes"].as_object().into_iter().flatten();
        volumes.filter_map(|(_, volume)| volume[key].as_str().map(str::to_owned)).collect()
    };
    let classes = [words("storageClass"), words("class")].concat();
    let volumes = VolumesConfig { classes, path_prefixes: words("path"), drivers: words("driver") };
    Context { volumes, ..Context::default() }
}

/// Collects the paths that `original` has and `written` has not, or not with the same value. A zero value may go: the
/// API takes it for absent.
pub(crate) fn missing(original: &Value, written: &Value, path: &str, lost: &mut Vec<String>) {
    match (original, written) {
        (Value::Object(original), Value::Object(written)) => {
            for (key, value) in original {
                let path = format!("{path}.{key}");
                match written.get(key) {
                    Some(found) => missing(value, found, &path, lost),
                    None if is_zero(value) => {}
                    None => lost.push(path),
                }
            }
        }
        (Value::Array(original), Value::Array(written)) if original.len() == written.len() => {
            for (index, (value, found)) in original.iter().zip(written).enumerate() {
                missing(value, found, &format!("{path}[{index}]"), lost);
            }
        }
        _ if original == written => {}
        _ => lost.push(path.to_owned()),
    }
}

pub(crate) fn is_zero(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => true,
        Value::Bool(true) => false,
        Value::Number(number) => number.as_i64() == Some(0),
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(map) => map.values().all(is_zero),
    }
}

/// Holds a value against a structural schema: unknown keys, types and required keys.
pub(crate) fn check(value: &Value, schema: &Value, path: &str, complaints: &mut Vec<String>) {
    if schema["x-kubernetes-preserve-unknown-fields"] == true {
        return;
    }
    let fits = match schema["type"].as_str() {
        _ if value.is_null() => true,
        None => schema["x-kubernetes-int-or-string"] == true && (value.is_i64() || value.is_string()),
        Some("object") => value.is_object(),
        Some("array") => value.is_array(),
        Some("string") => value.is_string(),
        Some("boolean") => value.is_boolean(),
        Some("integer") => value.is_i64(),
        Some(_) => false,
    };
    if !fits {
        complaints.push(format!("{path} is {value}, not {}", schema["type"]));
    }
    for key in schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str) {
        if value.get(key).is_none() {
            complaints.push(format!("{path}.{key} is required"));
        }
    }
    for (key, value) in value.as_object().into_iter().flatten() {
        let path = format!("{path}.{key}");
        let below = schema["properties"].get(key).or_else(|| schema.get("additionalProperties"));
        match below {
            Some(below) => check(value, below, &path, complaints),
            None => complaints.push(format!("{path} would be pruned")),
        }
    }
    for (index, value) in value.as_array().into_iter().flatten().enumerate() {
        check(value, &schema["items"], &format!("{path}[{index}]"), complaints);
    }
}
