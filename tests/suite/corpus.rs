//! Every example and probe goes through our types and our schema without losing anything.

use std::collections::BTreeSet;

use serde_json::Value;
use tributary::api::minicluster::MiniCluster;
use tributary::api::v1alpha1::{V1ALPHA1, V1ALPHA2, convert};
use tributary::config::VolumesConfig;
use tributary::render::{Context, render};
use tributary_tests::corpus::{Document, documents, folder, older_documents};

/// Keys of the corpus that we do not keep, each with the reason. Upstream prunes `spec.volumes`, `existingVolumes` and
/// `securityContext.addCapabilities` of its own examples; we keep them, so there is nothing to list.
const DROPPED: [(&str, &str, &str); 0] = [];

#[test]
fn the_index_and_the_files_agree() {
    let index = std::fs::read_to_string(folder().join("INDEX.tsv")).unwrap();
    let listed: BTreeSet<&str> = index.lines().skip(1).filter_map(|line| line.split('\t').next()).collect();
    let documents = documents().unwrap();
    let found: BTreeSet<&str> = documents.iter().map(|document| document.file.as_str()).collect();
    assert_eq!(listed, found);
}

#[test]
fn every_document_parses_and_comes_back_whole() {
    for Document { file, value } in documents().unwrap() {
        let cluster: MiniCluster =
            serde_json::from_value(value.clone()).unwrap_or_else(|error| panic!("{file}: {error}"));
        let written = serde_json::to_value(&cluster).unwrap();

        let mut lost = Vec::new();
        missing(&value, &written, "", &mut lost);
        lost.retain(|path| !DROPPED.iter().any(|(f, p, _)| *f == file && p == path));
        assert!(lost.is_empty(), "{file} lost {lost:?}");

        let again: MiniCluster = serde_json::from_value(written).unwrap();
        assert_eq!(again, cluster, "{file}");
    }
}

#[test]
fn the_api_server_prunes_nothing_of_the_corpus() {
    let crds = tributary::api::crds();
    let crd = crds.iter().find(|crd| crd.spec.names.kind == "MiniCluster").unwrap();
    let schema = serde_json::to_value(&crd.spec.versions[0].schema).unwrap()["openAPIV3Schema"].take();
    for Document { file, value } in documents().unwrap() {
        let mut complaints = Vec::new();
        for part in ["spec", "status"] {
            if let Some(value) = value.get(part) {
                check(value, &schema["properties"][part], part, &mut complaints);
            }
        }
        assert!(complaints.is_empty(), "{file}: {complaints:?}");
    }
}

/// What no field of v1alpha1 holds, in upstream's own examples: typing errors, and fields of the first weeks.
const UNKNOWN_THEN: [&str; 3] = [
    "spec.containers[0].workdir would be pruned",
    "spec.diagnostics would be pruned",
    "spec.localDeploy would be pruned",
];

/// What cannot be carried out: in the first weeks a storage class stood for its driver, and containers needed no name.
const REFUSED: [&str; 2] = ["say which CSI driver mounts it", "spec.containers[1].name: name is missing"];

/// A cluster whose administrator allows what these examples ask for.
fn allowing() -> Context {
    let words = |words: &[&str]| words.iter().map(|&word| word.to_owned()).collect();
    let volumes = VolumesConfig {
        classes: words(&["hostpath", "csi-gcs"]),
        path_prefixes: words(&["/tmp"]),
        drivers: words(&["gcs.csi.ofek.dev"]),
    };
    Context { volumes, ..Context::default() }
}

#[test]
fn older_examples_are_v1alpha1_and_go_to_v1alpha2_and_back() {
    let crds = tributary::api::crds();
    let versions = &crds.iter().find(|crd| crd.spec.names.kind == "MiniCluster").unwrap().spec.versions;
    let schema = |name: &str| {
        let version = versions.iter().find(|version| version.name == name).unwrap();
        serde_json::to_value(&version.schema).unwrap()["openAPIV3Schema"]["properties"]["spec"].take()
    };
    let (older, newer) = (schema("v1alpha1"), schema("v1alpha2"));
    let documents = older_documents().unwrap();
    assert!(documents.len() > 60, "{}", documents.len());
    let mut troubles = Vec::new();
    for Document { file, value } in documents {
        let mut say = |trouble: String| troubles.push(format!("{file}: {trouble}"));
        let mut complaints = Vec::new();
        check(&value["spec"], &older, "spec", &mut complaints);
        complaints.retain(|complaint| !UNKNOWN_THEN.contains(&complaint.as_str()));

        let stored = convert(&value, V1ALPHA2).unwrap();
        check(&stored["spec"], &newer, "spec", &mut complaints);
        complaints.into_iter().for_each(&mut say);
        if convert(&stored, V1ALPHA1).unwrap() != value {
            say("does not come back".to_owned());
        }
        let cluster: MiniCluster = serde_json::from_value(stored).unwrap_or_else(|error| panic!("{file}: {error}"));
        let carried_out = render(&cluster, &allowing());
        if let Err(problems) = carried_out.map_err(|problems| problems.to_string())
            && !REFUSED.iter().any(|known| problems.contains(known))
        {
            say(format!("cannot be carried out: {problems}"));
        }
    }
    assert!(troubles.is_empty(), "{troubles:#?}");
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
fn check(value: &Value, schema: &Value, path: &str, complaints: &mut Vec<String>) {
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
