//! The definitions of all kinds, as an API server takes them.
//!
//! The derive gives the shape; what follows it here makes the result fit Kubernetes' structural schemas and keeps it
//! as permissive as upstream's.

use std::sync::LazyLock;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{CustomResourceDefinition, JSON};
use kube::CustomResourceExt;
use serde_json::{Map, Value, json};

use super::burst::Burst;
use super::flux_job::FluxJob;
use super::flux_setup::FluxSetup;
use super::hosted_burst::HostedBurst;
use super::minicluster::MiniCluster;
use super::peer::ClusterPeer;
use super::schema::without_descriptions;
use super::v1alpha1;

/// Integer and number formats that the API server knows; it warns about others on every apply.
/// Source: `supportedVersionedFormats`, apiextensions-apiserver/pkg/apiserver/validation/formats.go
const NUMBER_FORMATS: [&str; 4] = ["int32", "int64", "float", "double"];

/// The definitions of all kinds, in the order of their names.
pub fn crds() -> Vec<CustomResourceDefinition> {
    let mut definitions =
        [minicluster(), ClusterPeer::crd(), Burst::crd(), HostedBurst::crd(), FluxSetup::crd(), FluxJob::crd()]
            .map(finish)
            .to_vec();
    definitions.sort_by(|a, b| a.metadata.name.cmp(&b.metadata.name));
    definitions
}

/// Upstream accepts a MiniCluster without `spec` (and ignores it); an absent one is stored as an empty one, so that
/// every stored MiniCluster can be read and answered with a condition.
///
/// Nothing is said about conversion: that belongs to the agent, which says it once its webhook answers.
fn minicluster() -> CustomResourceDefinition {
    let mut definition = MiniCluster::crd();
    definition.spec.versions.extend(v1alpha1::MiniCluster::crd().spec.versions);
    for version in &mut definition.spec.versions {
        let schema = version.schema.as_mut().and_then(|schema| schema.open_api_v3_schema.as_mut());
        if let Some(spec) = schema.and_then(|schema| schema.properties.as_mut()?.get_mut("spec")) {
            spec.default = Some(JSON(json!({ "containers": [] })));
        }
    }
    definition
}

/// The schemas of `spec` of a MiniCluster, as they are in the definition.
pub(crate) struct Specs {
    pub(crate) v1alpha1: Value,
    pub(crate) v1alpha2: Value,
}

/// Made once: a schema is a walk through all types.
pub(crate) static SPECS: LazyLock<Specs> = LazyLock::new(|| {
    let definitions = crds();
    let versions = definitions.iter().find(|one| one.spec.names.kind == "MiniCluster").map(|one| &one.spec.versions);
    let of = |name: &str| {
        let version = versions.and_then(|versions| versions.iter().find(|one| one.name == name));
        let schema = serde_json::to_value(version.map(|one| &one.schema)).expect("a schema is JSON");
        schema.pointer("/openAPIV3Schema/properties/spec").cloned().expect("each version has a spec")
    };
    Specs { v1alpha1: of("v1alpha1"), v1alpha2: of("v1alpha2") }
});

fn finish(definition: CustomResourceDefinition) -> CustomResourceDefinition {
    let mut document = serde_json::to_value(definition).expect("a definition is JSON");
    if let Some(versions) = document.pointer_mut("/spec/versions").and_then(Value::as_array_mut) {
        for version in versions {
            if let Some(schema) = version.pointer_mut("/schema/openAPIV3Schema") {
                conform(schema);
                describe_by_spec(schema);
                if let Some(conditions) = schema.pointer_mut("/properties/status/properties/conditions") {
                    without_descriptions(conditions);
                }
            }
        }
    }
    serde_json::from_value(document).expect("finishing keeps a definition a definition")
}

/// The derive invents a description for the root; what the kind is for is written at its spec.
fn describe_by_spec(root: &mut Value) {
    if let Some(text) = root.pointer("/properties/spec/description").cloned() {
        root["description"] = text;
    }
}

/// Applies the rules to one schema and to all below it.
fn conform(schema: &mut Value) {
    let Value::Object(map) = schema else { return };

    // Not nullable: the API server then prunes an explicit null, as with upstream's schema, instead of storing it.
    map.remove("nullable");
    map.remove("title");
    // A structural schema that preserves everything says nothing about it.
    if map.get("x-kubernetes-preserve-unknown-fields") == Some(&Value::Bool(true)) {
        map.remove("additionalProperties");
    }
    if map.get("default").is_some_and(Value::is_null) {
        map.remove("default");
    }
    if is_number(map) && map.get("format").and_then(Value::as_str).is_some_and(|f| !NUMBER_FORMATS.contains(&f)) {
        map.remove("format");
    }
    // Line breaks of the source mean nothing to readers of `kubectl explain`; blank lines do.
    if let Some(Value::String(text)) = map.get_mut("description") {
        *text = text.split("\n\n").map(|part| part.replace('\n', " ")).collect::<Vec<_>>().join("\n\n");
    }

    for key in ["properties", "patternProperties"] {
        if let Some(Value::Object(properties)) = map.get_mut(key) {
            properties.values_mut().for_each(conform);
        }
    }
    for key in ["items", "additionalProperties", "not"] {
        if let Some(below) = map.get_mut(key) {
            conform(below);
        }
    }
    for key in ["allOf", "anyOf", "oneOf"] {
        if let Some(Value::Array(branches)) = map.get_mut(key) {
            branches.iter_mut().for_each(conform);
        }
    }
}

fn is_number(schema: &Map<String, Value>) -> bool {
    matches!(schema.get("type").and_then(Value::as_str), Some("integer" | "number"))
}
