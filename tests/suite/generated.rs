//! Files that are generated from the sources and committed: a difference fails, `UPDATE_GENERATED=1` writes them.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use serde_json::Value;

const REGENERATE: &str = "UPDATE_GENERATED=1 cargo test -p tributary-tests --test suite generated::";

/// Half of what still fits comfortably into one apply (DESIGN section 7).
const LARGEST_DEFINITION: usize = 200 * 1024;

pub(crate) fn repository() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap()
}

/// Holds a committed file against what it is generated to be.
pub(crate) fn current(file: &str, wanted: &str) {
    let path = repository().join(file);
    if std::env::var_os("UPDATE_GENERATED").is_some() {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, wanted).unwrap();
    }
    let found = std::fs::read_to_string(&path).unwrap_or_default();
    let command = "UPDATE_GENERATED=1 cargo test -p tributary-tests --test suite current";
    let differs = found.lines().zip(wanted.lines()).position(|(found, wanted)| found != wanted);
    let line = differs.unwrap_or(found.lines().count().min(wanted.lines().count()));
    let of = |text: &str| text.lines().nth(line).unwrap_or_default().to_owned();
    assert!(
        found == wanted,
        "{file} is not what it is generated from; run: {command}\nline {}: {:?}, generated: {:?}",
        line + 1,
        of(&found),
        of(wanted)
    );
}

fn file_name(definition: &CustomResourceDefinition) -> String {
    format!("{}_{}.yaml", definition.spec.group, definition.spec.names.plural)
}

fn yaml(definition: &impl serde::Serialize) -> String {
    let body = serde_saphyr::to_string(definition).unwrap();
    let lines = body.lines().map(|line| if line.trim().is_empty() { "" } else { line });
    let body: Vec<_> = lines.collect();
    format!("# Generated from src/api. Do not edit; run\n#   {REGENERATE}\n{}\n", body.join("\n"))
}

#[test]
fn crds_are_current() {
    let (policy, binding) = tributary::api::v1alpha1::guard();
    let guard = yaml(&policy) + "---\n" + serde_saphyr::to_string(&binding).unwrap().trim_end() + "\n";
    hold_definitions(&repository().join("config/crd"), &[("flux-framework.org_miniclusters-v1alpha1.yaml", guard)]);
}

#[test]
fn fields_that_an_agent_looks_for_are_current() {
    current("src/api/fields.txt", &tributary::api::fields());
}

/// A chart is packed from its own folder, and helm warns of a link out of it at each installation: these are copies.
#[test]
fn crds_of_the_chart_are_current() {
    hold_definitions(&repository().join("charts/tributary/charts/tributary-crds/files"), &[]);
}

fn hold_definitions(directory: &Path, others: &[(&str, String)]) {
    let mut wanted: BTreeMap<PathBuf, String> =
        tributary::api::crds().iter().map(|crd| (directory.join(file_name(crd)), yaml(crd))).collect();
    wanted.extend(others.iter().map(|(name, text)| (directory.join(name), text.clone())));

    if std::env::var_os("UPDATE_GENERATED").is_some() {
        std::fs::create_dir_all(directory).unwrap();
        for (path, text) in &wanted {
            std::fs::write(path, text).unwrap();
        }
    }

    let found: BTreeMap<PathBuf, String> = std::fs::read_dir(directory)
        .unwrap_or_else(|error| panic!("{}: {error}; run: {REGENERATE}", directory.display()))
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "yaml"))
        .map(|path| (path.clone(), std::fs::read_to_string(path).unwrap()))
        .collect();
    for (path, text) in &wanted {
        assert!(found.get(path) == Some(text), "{} is not what src/api says; run: {REGENERATE}", path.display());
    }
    let strangers: Vec<_> = found.keys().filter(|path| !wanted.contains_key(*path)).collect();
    assert!(strangers.is_empty(), "no kind stands behind {strangers:?}: delete them");
}

#[test]
fn printed_definitions_read_back_as_they_were() {
    for crd in tributary::api::crds() {
        let read: CustomResourceDefinition = serde_saphyr::from_str(&yaml(&crd)).unwrap();
        assert_eq!(serde_json::to_value(read).unwrap(), serde_json::to_value(&crd).unwrap());
    }
}

#[test]
fn definitions_are_small_enough_to_apply() {
    for crd in tributary::api::crds() {
        let size = serde_json::to_vec(&crd).unwrap().len();
        assert!(size <= LARGEST_DEFINITION, "{} has {size} bytes", file_name(&crd));
    }
}

/// The rules that an API server holds a definition to, as far as they can be told from the text:
/// <https://kubernetes.io/docs/tasks/extend-kubernetes/custom-resources/custom-resource-definitions/#specifying-a-structural-schema>
#[test]
fn schemas_are_structural() {
    for crd in tributary::api::crds() {
        for version in &crd.spec.versions {
            let schema = serde_json::to_value(&version.schema).unwrap();
            let mut complaints = Vec::new();
            structural(&schema["openAPIV3Schema"], version.name.clone(), &mut complaints);
            assert!(complaints.is_empty(), "{}: {complaints:#?}", file_name(&crd));
        }
    }
}

fn structural(schema: &Value, path: String, complaints: &mut Vec<String>) {
    let mut complain = |what: &str| complaints.push(format!("{path}: {what}"));
    let int_or_string = schema["x-kubernetes-int-or-string"] == true;
    if schema["type"].is_string() == int_or_string {
        complain("has neither or both of a type and x-kubernetes-int-or-string");
    }
    if schema.get("properties").is_some() && schema.get("additionalProperties").is_some() {
        complain("has properties and additionalProperties");
    }
    for keyword in ["$ref", "definitions", "oneOf", "anyOf", "allOf", "not", "nullable", "title"] {
        if schema.get(keyword).is_some() {
            complain(&format!("has {keyword}"));
        }
    }
    if let Some(format) = schema["format"].as_str()
        && !["int32", "int64", "date-time"].contains(&format)
    {
        complain(&format!("has the format {format}"));
    }
    if schema["x-kubernetes-list-type"] == "map" {
        for key in schema["x-kubernetes-list-map-keys"].as_array().unwrap() {
            let required = schema["items"]["required"].as_array().is_some_and(|required| required.contains(key));
            if !required && schema["items"]["properties"][key.as_str().unwrap()].get("default").is_none() {
                complain(&format!("has the key {key}, which is neither required nor has a default"));
            }
        }
    }
    if let Some(default) = schema.get("default") {
        let fits = match schema["type"].as_str() {
            Some("string") => default.is_string(),
            Some("integer") => default.is_i64(),
            Some("boolean") => default.is_boolean(),
            Some("array") => default.is_array(),
            Some("object") => default.is_object(),
            _ => false,
        };
        if !fits {
            complain(&format!("has the default {default}"));
        }
    }
    for (name, below) in schema["properties"].as_object().into_iter().flatten() {
        structural(below, format!("{path}.{name}"), complaints);
    }
    for (keyword, suffix) in [("items", "[]"), ("additionalProperties", "{}")] {
        if let Some(below) = schema.get(keyword) {
            structural(below, format!("{path}{suffix}"), complaints);
        }
    }
}

/// Prose of Kubernetes' own types is left out; ours is there, because `kubectl explain` shows it.
#[test]
fn every_field_of_ours_is_described() {
    for crd in tributary::api::crds() {
        let schema = serde_json::to_value(&crd.spec.versions[0].schema).unwrap()["openAPIV3Schema"].take();
        for part in ["spec", "status"] {
            for (name, field) in schema["properties"][part]["properties"].as_object().unwrap() {
                assert!(field["description"].is_string(), "{} {part}.{name}", file_name(&crd));
            }
        }
        assert!(!schema["description"].as_str().unwrap().contains("Auto-generated"), "{}", file_name(&crd));
    }
}
