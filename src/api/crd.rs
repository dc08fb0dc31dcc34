//! The definitions of all kinds, as an API server takes them.
//!
//! The derive gives the shape; what follows it here makes the result fit Kubernetes' structural schemas and keeps it
//! as permissive as upstream's.

use std::sync::LazyLock;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceDefinition, CustomResourceDefinitionVersion, JSON, JSONSchemaProps,
};
use kube::CustomResourceExt;
use serde_json::{Map, Value, json};

use super::burst::Burst;
use super::flux_job::FluxJob;
use super::flux_setup::{FluxSetup, NAME};
use super::hosted_burst::HostedBurst;
use super::minicluster::MiniCluster;
use super::names::MAX_NAME;
use super::peer::ClusterPeer;
use super::schema::without_descriptions;
use super::v1alpha1;

/// Integer and number formats that the API server knows; it warns about others on every apply.
/// Source: `supportedVersionedFormats`, apiextensions-apiserver/pkg/apiserver/validation/formats.go
const NUMBER_FORMATS: [&str; 4] = ["int32", "int64", "float", "double"];

/// What `kubectl get` shows of a MiniCluster in v1alpha2 only.
const NEWER_COLUMNS: [&str; 3] = ["Bursts", "Reason", "Lead"];

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
    let newer = &mut definition.spec.versions[0];
    let mut older = newer.clone();
    spec_of(newer).default = Some(JSON(json!({ "containers": [] })));

    older.name = "v1alpha1".to_owned();
    older.storage = false;
    if let Some(columns) = &mut older.additional_printer_columns {
        columns.retain(|column| !NEWER_COLUMNS.contains(&column.name.as_str()));
    }
    *spec_of(&mut older) = v1alpha1::spec();
    definition.spec.versions.push(older);
    definition
}

fn spec_of(version: &mut CustomResourceDefinitionVersion) -> &mut JSONSchemaProps {
    let schema = version.schema.as_mut().and_then(|schema| schema.open_api_v3_schema.as_mut());
    schema.and_then(|schema| schema.properties.as_mut()?.get_mut("spec")).expect("each version has a spec")
}

/// The schemas of `spec` of a MiniCluster, as they are in the definition.
#[derive(Debug)]
pub struct Specs {
    /// Of v1alpha1.
    pub v1alpha1: Value,
    /// Of v1alpha2, which is stored.
    pub v1alpha2: Value,
}

/// Both schemas. They are made once: a schema is a walk through all types.
pub static SPECS: LazyLock<Specs> = LazyLock::new(|| {
    let definitions = crds();
    let versions = definitions.iter().find(|one| one.spec.names.kind == "MiniCluster").map(|one| &one.spec.versions);
    let of = |name: &str| {
        let version = versions.and_then(|versions| versions.iter().find(|one| one.name == name));
        let schema = serde_json::to_value(version.map(|one| &one.schema)).expect("a schema is JSON");
        schema.pointer("/openAPIV3Schema/properties/spec").cloned().expect("each version has a spec")
    };
    Specs { v1alpha1: of("v1alpha1"), v1alpha2: of("v1alpha2") }
});

/// The fields of each version of each kind, a field before those in it: an agent does not carry the schemas.
const FIELDS: &str = include_str!("fields.txt");

/// Paths of the fields of `kind` that an API server with the schema `theirs` (`openAPIV3Schema` of the same version) takes
/// away from every object: the shallowest ones, as `spec.suspend`. Empty if the kind has no such version.
pub fn lacking(kind: &str, version: &str, theirs: &Value) -> Vec<String> {
    let head = format!("{kind} {version}");
    let fields = FIELDS.lines().skip_while(|line| **line != head).skip(1).map_while(|line| line.strip_prefix(' '));
    let mut lacks: Vec<String> = Vec::new();
    for path in fields {
        let is_below = |parent: &String| path.strip_prefix(&**parent).is_some_and(|rest| rest.starts_with('.'));
        if !lacks.last().is_some_and(is_below) && !knows(theirs, path) {
            lacks.push(path.to_owned());
        }
    }
    lacks
}

/// Whether a schema has a field, or keeps all fields.
fn knows(schema: &Value, path: &str) -> bool {
    let mut schema = schema;
    for name in path.split('.') {
        schema = loop {
            if schema["x-kubernetes-preserve-unknown-fields"] == true {
                return true;
            }
            if let Some(field) = schema["properties"].get(name) {
                break field;
            }
            let parts = ["items", "additionalProperties"].map(|part| &schema[part]);
            let Some(part) = parts.into_iter().find(|part| part.is_object()) else { return false };
            schema = part;
        };
    }
    true
}

/// What [`FIELDS`] is generated to be.
pub fn fields() -> String {
    fn collect(path: &str, schema: &Value, text: &mut String) {
        for part in ["items", "additionalProperties"] {
            if schema[part].is_object() {
                collect(path, &schema[part], text);
            }
        }
        for (name, field) in schema["properties"].as_object().into_iter().flatten() {
            let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
            *text += &format!(" {path}\n");
            collect(&path, field, text);
        }
    }
    let mut text = String::new();
    for definition in crds() {
        for version in &definition.spec.versions {
            text += &format!("{} {}\n", definition.spec.names.kind, version.name);
            let schema = serde_json::to_value(&version.schema).expect("a schema is JSON");
            collect("", &schema["openAPIV3Schema"], &mut text);
        }
    }
    text
}

/// Names paths that are [`lacking`]: the first ones, and how many more there are. `None`: nothing is lacking.
pub fn named(lacks: &[String]) -> Option<String> {
    const NAMED: usize = 3;
    let named = lacks.get(..lacks.len().min(NAMED)).filter(|named| !named.is_empty())?;
    let more = lacks.len() - named.len();
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    Some(format!("{}{more}", named.join(", ")))
}

fn finish(definition: CustomResourceDefinition) -> CustomResourceDefinition {
    let kind = definition.spec.names.kind.clone();
    let mut document = serde_json::to_value(definition).expect("a definition is JSON");
    if let Some(versions) = document.pointer_mut("/spec/versions").and_then(Value::as_array_mut) {
        for version in versions {
            if let Some(schema) = version.pointer_mut("/schema/openAPIV3Schema") {
                conform(schema);
                describe_by_spec(schema);
                if let Some(rules) = rules(&kind) {
                    schema["x-kubernetes-validations"] = rules;
                }
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

/// Rules on objects as a whole: those see names, and what was decided of an object.
fn rules(kind: &str) -> Option<Value> {
    match kind {
        "FluxSetup" => Some(json!([{
            "rule": format!("self.metadata.name == '{NAME}'"),
            "message": format!("a namespace has one FluxSetup, and its name is {NAME}: write metadata.name: {NAME}"),
        }])),
        "FluxJob" => Some(json!([
            {
                "rule": "self.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$')",
                "message": "a FluxJob cannot have this name, which becomes that of a service: use lower case letters, \
                            digits and '-', begin with a letter and end with a letter or a digit",
            },
            {
                "rule": format!("size(self.metadata.name) <= {MAX_NAME}"),
                "message": format!(
                    "at most {MAX_NAME} characters are possible in the name of a FluxJob: names of other objects and host names \
                     are made from it; choose a shorter one"
                ),
            },
            {
                "rule": held_once_admitted(),
                "message": "it was admitted as it is: of its spec, only suspend, priorityClassName, cleanup and \
                            ttlAfterFinished may change now; delete it and make another one",
            },
        ])),
        _ => None,
    }
}

/// That a FluxJob stays as it was let in, in CEL.
fn held_once_admitted() -> String {
    const HELD: [&str; 10] = [
        "image",
        "command",
        "size",
        "tasks",
        "resources",
        "allowBurst",
        "timeLimit",
        "workingDir",
        "environment",
        "miniCluster",
    ];
    // What a rule may cost is reckoned beforehand, and fields that may be absent cost the least when that is asked first.
    let same = HELD.map(|field| {
        let (new, old) = (format!("self.spec.{field}"), format!("oldSelf.spec.{field}"));
        format!("has({new}) == has({old}) && (!has({new}) || {new} == {old})")
    });
    let same = same.join(" && ");
    format!("!has(oldSelf.status) || !has(oldSelf.status.admitted) || {same}")
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
    // An enumeration that may get words of newer versions in the code has none of these here.
    if let Some(words) = map.get("anyOf").and_then(words) {
        map.remove("anyOf");
        map.insert("type".into(), "string".into());
        map.insert("enum".into(), words);
    }
    // More than what the code holds would be taken, and nobody could read the object.
    let most = match map.get("format").and_then(Value::as_str) {
        Some("int32") if map.contains_key("minimum") => Some(i64::from(i32::MAX)),
        Some("uint32") => Some(i64::from(u32::MAX)),
        _ => None,
    };
    if let Some(most) = most {
        map.entry("maximum").or_insert(most.into());
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

/// The words of alternatives that are one word each.
fn words(alternatives: &Value) -> Option<Value> {
    alternatives.as_array()?.iter().map(|one| Some(one.get("enum")?.as_array()?.first()?.clone())).collect()
}

fn is_number(schema: &Map<String, Value>) -> bool {
    matches!(schema.get("type").and_then(Value::as_str), Some("integer" | "number"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::duration;

    /// Every schema below `schema`, with its path.
    fn walk(schema: &Value, path: &str, look: &mut dyn FnMut(&str, &Value)) {
        look(path, schema);
        for (name, below) in schema["properties"].as_object().into_iter().flatten() {
            walk(below, &format!("{path}.{name}"), look);
        }
        for (key, mark) in [("items", "[]"), ("additionalProperties", "{}")] {
            if schema[key].is_object() {
                walk(&schema[key], &format!("{path}{mark}"), look);
            }
        }
    }

    fn each(look: &mut dyn FnMut(&CustomResourceDefinition, &str, &Value)) {
        for definition in crds() {
            let version = definition.spec.versions.iter().find(|version| version.storage).unwrap();
            let schema = serde_json::to_value(&version.schema).unwrap();
            walk(&schema["openAPIV3Schema"], "", &mut |path, schema| look(&definition, path, schema));
        }
    }

    /// An object with all that a newer version may write: every field, words that nobody knows, and fields added everywhere.
    fn novel(schema: &Value) -> Value {
        if schema["x-kubernetes-int-or-string"] == true {
            return json!("1");
        }
        match schema["type"].as_str().unwrap_or_default() {
            "array" => json!([novel(&schema["items"])]),
            "integer" | "number" => json!(1),
            "boolean" => json!(true),
            "string" if schema["format"] == "date-time" => json!("2026-01-01T00:00:00Z"),
            "string" if schema["pattern"] == duration::PATTERN => json!("1h"),
            "string" => json!("Novel"),
            _ if schema["additionalProperties"].is_object() => json!({"key": novel(&schema["additionalProperties"])}),
            _ => {
                let fields = schema["properties"].as_object().into_iter().flatten();
                let mut object: Map<String, Value> = fields.map(|(name, field)| (name.clone(), novel(field))).collect();
                object.insert("added".into(), json!({"by": "a newer version"}));
                Value::Object(object)
            }
        }
    }

    #[test]
    fn an_agent_that_is_rolled_back_reads_what_the_newer_one_wrote_and_a_newer_one_what_is_not_there() {
        fn read<K: serde::de::DeserializeOwned>(value: &Value) -> Result<(), String> {
            serde_json::from_value::<K>(value.clone()).map(|_| ()).map_err(|error| error.to_string())
        }
        for definition in crds() {
            let version = definition.spec.versions.iter().find(|version| version.storage).unwrap();
            let schema = serde_json::to_value(&version.schema).unwrap();
            let root = &schema["openAPIV3Schema"]["properties"];
            let kind = definition.spec.names.kind.as_str();
            let spec = novel(&root["spec"]);
            let head = json!({"apiVersion": format!("{}/{}", definition.spec.group, version.name), "kind": kind,
                "metadata": {"name": "a"}});
            let with = |spec: &Value, status: Value| {
                let mut object = head.clone();
                object["spec"] = spec.clone();
                object["status"] = status;
                match kind {
                    "MiniCluster" => read::<MiniCluster>(&object),
                    "Burst" => read::<Burst>(&object),
                    "HostedBurst" => read::<HostedBurst>(&object),
                    "ClusterPeer" => read::<ClusterPeer>(&object),
                    "FluxSetup" => read::<FluxSetup>(&object),
                    "FluxJob" => read::<FluxJob>(&object),
                    other => Err(format!("{other} is not tried")),
                }
            };
            assert_eq!(with(&spec, novel(&root["status"])), Ok(()), "{kind}");
            assert_eq!(with(&json!({}), json!({})), Ok(()), "{kind}");
        }
    }

    #[test]
    fn lists_of_our_own_kinds_say_whether_two_owners_may_share_them() {
        let mut silent = Vec::new();
        each(&mut |definition, path, schema| {
            // Kubernetes' own types bring their own.
            let ours = definition.spec.group == "tributary.dev" && !path.contains(".template");
            if ours && schema["type"] == "array" && schema["x-kubernetes-list-type"].is_null() {
                silent.push(format!("{}{path}", definition.spec.names.kind));
            }
        });
        assert_eq!(silent, [""; 0]);
    }

    #[test]
    fn people_write_times_as_durations() {
        let mut seconds = Vec::new();
        each(&mut |definition, path, _| {
            let kind = definition.spec.names.kind.as_str();
            let written = ["FluxJob", "FluxSetup", "ClusterPeer"].contains(&kind) && path.starts_with(".spec.");
            if written && path.to_lowercase().contains("seconds") && !path.ends_with(".tolerationSeconds") {
                seconds.push(format!("{kind}{path}"));
            }
        });
        assert_eq!(seconds, [""; 0]);
    }

    #[test]
    fn every_kind_has_a_short_name_and_is_found_by_the_category() {
        for definition in crds() {
            let names = definition.spec.names;
            assert_eq!(names.short_names.map(|names| names.len()), Some(1), "{}", names.kind);
            assert_eq!(names.categories, Some(vec!["tributary".to_owned()]), "{}", names.kind);
        }
    }

    #[test]
    fn statuses_take_words_of_newer_versions_and_specs_name_those_that_there_are() {
        let mut words = Vec::new();
        each(&mut |definition, path, schema| {
            if schema["enum"].is_array() && path.starts_with(".status") && !path.ends_with(".conditions[].status") {
                words.push(format!("{}{path}", definition.spec.names.kind));
            }
        });
        assert_eq!(words, [""; 0]);
        let definitions = crds();
        let job = definitions.iter().find(|one| one.spec.names.kind == "FluxJob").unwrap();
        let schema = serde_json::to_value(&job.spec.versions[0].schema).unwrap();
        let cleanup = &schema["openAPIV3Schema"]["properties"]["spec"]["properties"]["cleanup"];
        assert_eq!(cleanup["enum"], json!(["None", "MiniCluster"]), "{cleanup}");
    }
}
