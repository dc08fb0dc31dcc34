//! A value for every field of a MiniCluster's spec (`tests/fields.yaml`), each in a spec where it means something.
//!
//! The fields are those of the generated definition, so that a new one without a row is found.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::LazyLock;

use anyhow::{Context as _, Result, bail};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use tributary::api::minicluster::MiniCluster;
use tributary::config::VolumesConfig;
use tributary::render::Context;

/// One field with one value, on one container if it is a container's.
#[derive(Clone, Debug)]
pub struct Case {
    /// The field's path in the definition, such as `spec.containers[].image`.
    pub field: String,
    /// The path at which it is written, such as `spec.containers[1].image`.
    pub at: String,
    /// The container it is written on.
    pub role: Role,
    /// The spec without the field.
    pub before: Value,
    /// The spec with it.
    pub after: Value,
    /// Why it has no effect there; the user hears of it.
    pub idle: Option<String>,
    /// It is not carried out yet, and the user hears of it.
    pub unfinished: bool,
    /// What its user is told, if it cannot be carried out there.
    pub refused: Option<String>,
    /// Why nothing is missing without an effect.
    pub needless: Option<String>,
    /// Who carries it out, if rendering does not.
    pub elsewhere: Option<Elsewhere>,
    /// A value made from the schema: of the right type, and unlike all others.
    pub generated: Option<Value>,
    /// It excludes values of other rows.
    pub alone: bool,
}

/// Which container of [`base`] a field is tried on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Role {
    /// It is no field of a container.
    Spec,
    /// The container that runs Flux.
    Runner,
    /// The container beside it.
    Sidecar,
    /// The container of the service pod.
    Service,
}

/// A room that carries a field out, and the test that shows it.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Elsewhere {
    /// The room.
    pub room: String,
    /// `FILE::FUNCTION`, from the repository's root.
    pub test: String,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Row {
    at: String,
    #[serde(default)]
    value: Value,
    #[serde(default)]
    with: Value,
    #[serde(default)]
    beside: Value,
    #[serde(default)]
    idle: BTreeMap<String, String>,
    #[serde(default)]
    unfinished: Vec<String>,
    #[serde(default)]
    refused: BTreeMap<String, String>,
    #[serde(default)]
    needless: Value,
    elsewhere: Option<Elsewhere>,
    #[serde(default)]
    kubernetes: bool,
    #[serde(default)]
    alone: bool,
}

/// The spec that every case starts from: all three kinds of containers.
pub fn base() -> Value {
    json!({
        "size": 2,
        "containers": [
            { "image": "ubuntu:noble", "runFlux": true, "command": "hostname" },
            { "image": "nginx", "name": "side", "command": "nginx" },
        ],
        "services": [{ "image": "redis", "name": "db", "command": "redis-server" }],
    })
}

/// The MiniCluster `lake` with this spec.
///
/// # Errors
/// The spec is none.
pub fn lake(spec: &Value) -> Result<MiniCluster> {
    let metadata = json!({ "name": "lake", "namespace": "waters", "uid": "7d5e1b1c-0000-4000-8000-000000000000" });
    Ok(serde_json::from_value(json!({ "metadata": metadata, "spec": spec }))?)
}

/// The schema of the spec.
pub fn schema() -> &'static Value {
    static SCHEMA: LazyLock<Value> = LazyLock::new(|| schema_of("MiniCluster"));
    &SCHEMA
}

/// The schema of the spec of a kind.
///
/// # Panics
/// It is none of the kinds.
pub fn schema_of(kind: &str) -> Value {
    let crds = tributary::api::crds();
    let crd = crds.iter().find(|crd| crd.spec.names.kind == kind).expect("it is one of the kinds");
    let schema = serde_json::to_value(&crd.spec.versions[0].schema).expect("a definition has a JSON form");
    schema["openAPIV3Schema"]["properties"]["spec"].clone()
}

/// All fields that hold a value, with their schema: `spec.containers[].environment{}`.
pub fn leaves() -> BTreeMap<String, Value> {
    leaves_of(schema())
}

/// The same of another spec.
pub fn leaves_of(schema: &Value) -> BTreeMap<String, Value> {
    let mut found = BTreeMap::new();
    collect(schema, "spec".to_owned(), &mut found);
    found
}

fn collect(schema: &Value, path: String, found: &mut BTreeMap<String, Value>) {
    if let Some(properties) = schema["properties"].as_object() {
        for (name, below) in properties {
            collect(below, format!("{path}.{name}"), found);
        }
        if schema["x-kubernetes-preserve-unknown-fields"] == true {
            found.insert(format!("{path}.*"), schema.clone());
        }
    } else if schema["items"].is_object() {
        collect(&described(schema, "items"), format!("{path}[]"), found);
    } else if schema["additionalProperties"].is_object() {
        collect(&described(schema, "additionalProperties"), format!("{path}{{}}"), found);
    } else {
        found.insert(path, schema.clone());
    }
}

/// The schema of what is in a list or a map; what is said of the whole holds for it too.
fn described(schema: &Value, key: &str) -> Value {
    let mut below = schema[key].clone();
    if below.get("description").is_none() && schema["description"].is_string() {
        below["description"] = schema["description"].clone();
    }
    below
}

/// All cases, in the order of the file.
///
/// # Errors
/// The file cannot be read, or a row names no field.
pub fn cases() -> Result<Vec<Case>> {
    let text = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("fields.yaml"))?;
    let rows: Vec<Row> = serde_saphyr::from_str(&text).context("failed to parse tests/fields.yaml")?;
    let mut cases = Vec::new();
    for row in rows {
        let rows = match row.at.strip_prefix("*.volumes.") {
            // The older name means the same.
            Some(rest) => {
                let old = format!("*.existingVolumes.{rest}");
                let beside = json!({ "existingVolumes": row.beside["volumes"] });
                vec![Row { at: old, beside, ..row.clone() }, row]
            }
            None => vec![row],
        };
        for row in rows {
            let at = row.at.clone();
            cases.extend(on_containers(row).with_context(|| format!("tests/fields.yaml: {at}"))?);
        }
    }
    Ok(cases)
}

fn on_containers(row: Row) -> Result<Vec<Case>> {
    let Some(rest) = row.at.strip_prefix("*.") else { return on(&row, Role::Spec, &row.at, None) };
    let places = [(Role::Runner, "containers", 0), (Role::Sidecar, "containers", 1), (Role::Service, "services", 0)];
    let mut cases = Vec::new();
    for (role, list, index) in places {
        let mut containers = vec![Value::Null; index];
        containers.push(row.beside.clone());
        let beside = json!({ list: containers });
        cases.extend(on(&row, role, &format!("{list}[{index}].{rest}"), Some(beside))?);
    }
    Ok(cases)
}

fn on(row: &Row, role: Role, at: &str, beside: Option<Value>) -> Result<Vec<Case>> {
    let mut before = base();
    merge(&mut before, &row.with);
    merge(&mut before, &beside.unwrap_or_default());
    let key = format!("{role:?}").to_lowercase();
    let needless = row.needless.as_str().or_else(|| row.needless[&key].as_str());
    let case = |steps: &[Step], field: String, value: Value, generated: bool| {
        let mut after = before.clone();
        put(&mut after, steps, value.clone());
        Case {
            field,
            at: format!("spec.{at}"),
            role,
            before: before.clone(),
            after,
            idle: row.idle.get(&key).cloned(),
            unfinished: row.unfinished.contains(&key),
            refused: row.refused.get(&key).cloned(),
            needless: needless.map(str::to_owned),
            elsewhere: row.elsewhere.clone(),
            generated: generated.then_some(value),
            alone: row.alone,
        }
    };
    let steps = steps(at);
    let (field, below) = resolve(schema(), &steps)?;
    if !row.kubernetes {
        return Ok(vec![case(&steps, field, row.value.clone(), false)]);
    }
    let mut fields = BTreeMap::new();
    collect(below, field, &mut fields);
    let numbered = fields.into_iter().enumerate().map(|(number, (field, leaf))| {
        let value = unlike(&leaf, number);
        let path = concrete(&steps, &field);
        let mut one = case(&path, field, value, true);
        complete(&mut one.after, schema());
        one
    });
    Ok(numbered.collect())
}

/// All rows that go together, in one spec.
///
/// # Errors
/// As [`cases`].
pub fn combined() -> Result<Value> {
    let mut spec = base();
    for case in cases()?.into_iter().filter(Case::is_combinable) {
        merge(&mut spec, &case.before);
        merge(&mut spec, &case.after);
    }
    Ok(spec)
}

impl Case {
    /// Whether it goes together with all others of which this holds.
    pub fn is_combinable(&self) -> bool {
        !self.alone && self.generated.is_none() && self.refused.is_none()
    }
}

/// One step of a path.
#[derive(Clone, Debug)]
enum Step {
    Key(String),
    Index(usize),
}

fn steps(at: &str) -> Vec<Step> {
    let parts = at.split('.').flat_map(|part| part.split_inclusive('[').map(|piece| piece.trim_end_matches('[')));
    let step = |piece: &str| match piece.strip_suffix(']').map(str::parse) {
        Some(Ok(index)) => Step::Index(index),
        _ => Step::Key(piece.to_owned()),
    };
    parts.map(step).collect()
}

/// The path in the definition, and the schema there.
fn resolve<'a>(schema: &'a Value, steps: &[Step]) -> Result<(String, &'a Value)> {
    let (mut path, mut at) = ("spec".to_owned(), schema);
    for step in steps {
        let (suffix, below) = match step {
            Step::Index(_) => ("[]".to_owned(), &at["items"]),
            Step::Key(key) if at["properties"].get(key).is_some() => (format!(".{key}"), &at["properties"][key]),
            Step::Key(_) if at["additionalProperties"].is_object() => ("{}".to_owned(), &at["additionalProperties"]),
            Step::Key(_) if at["x-kubernetes-preserve-unknown-fields"] == true => (".*".to_owned(), at),
            Step::Key(key) => bail!("{path} has no field {key}"),
        };
        path += &suffix;
        at = below;
    }
    Ok((path, at))
}

/// A path to `field`, which lies below `prefix`.
fn concrete(prefix: &[Step], field: &str) -> Vec<Step> {
    let mut steps = prefix.to_vec();
    let known = prefix.iter().filter(|step| matches!(step, Step::Key(_))).count();
    let keys = field.split('.').skip(1 + known);
    let lists = field.split('.').nth(known).map_or("", |last| last.trim_start_matches(|c| c != '[' && c != '{'));
    push_lists(&mut steps, lists);
    for key in keys {
        let name = key.trim_end_matches(['[', ']', '{', '}']);
        steps.push(Step::Key(name.to_owned()));
        push_lists(&mut steps, &key[name.len()..]);
    }
    steps
}

fn push_lists(steps: &mut Vec<Step>, mut lists: &str) {
    while !lists.is_empty() {
        steps.push(if lists.starts_with('[') { Step::Index(0) } else { Step::Key("key".to_owned()) });
        lists = &lists[2..];
    }
}

/// A value of the schema's type.
fn unlike(schema: &Value, number: usize) -> Value {
    match schema["type"].as_str() {
        Some("boolean") => json!(true),
        Some("integer") => json!(7000 + number),
        _ => json!(format!("value-{number}")),
    }
}

/// Fills in what the definition requires beside what is written.
fn complete(value: &mut Value, schema: &Value) {
    match value {
        Value::Object(map) => {
            for key in schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str) {
                map.entry(key).or_insert_with(|| required(&schema["properties"][key]));
            }
            for (key, below) in map.iter_mut() {
                complete(below, schema["properties"].get(key).unwrap_or(&schema["additionalProperties"]));
            }
        }
        Value::Array(items) => items.iter_mut().for_each(|item| complete(item, &schema["items"])),
        _ => {}
    }
}

fn required(schema: &Value) -> Value {
    match schema["type"].as_str() {
        Some("object") => {
            let mut value = Value::Object(Map::new());
            complete(&mut value, schema);
            value
        }
        Some("array") => json!([]),
        Some("boolean") => json!(true),
        Some("integer") => json!(1),
        _ => json!("x"),
    }
}

/// Writes a value at a path such as `spec.containers[1].image` of a spec.
pub fn write(spec: &mut Value, at: &str, leaf: Value) {
    put(spec, &steps(at.trim_start_matches("spec.")), leaf);
}

fn put(value: &mut Value, steps: &[Step], leaf: Value) {
    let Some((step, rest)) = steps.split_first() else {
        *value = leaf;
        return;
    };
    match step {
        Step::Key(key) => {
            if !value.is_object() {
                *value = Value::Object(Map::new());
            }
            put(&mut value[key], rest, leaf);
        }
        Step::Index(index) => {
            if !value.is_array() {
                *value = json!([]);
            }
            let items = value.as_array_mut().expect("it was made one");
            if items.len() <= *index {
                items.resize(index + 1, Value::Null);
            }
            put(&mut items[*index], rest, leaf);
        }
    }
}

/// Lays `patch` over `value`: objects by key (`null` removes), lists by position.
pub fn merge(value: &mut Value, patch: &Value) {
    match (value, patch) {
        (_, Value::Null) => {}
        (Value::Object(map), Value::Object(patch)) => {
            for (key, patch) in patch {
                if patch.is_null() {
                    map.remove(key);
                } else {
                    merge(map.entry(key).or_insert(Value::Null), patch);
                }
            }
        }
        (Value::Array(items), Value::Array(patch)) => {
            for (index, patch) in patch.iter().enumerate() {
                match items.get_mut(index) {
                    Some(item) => merge(item, patch),
                    None => items.push(patch.clone()),
                }
            }
        }
        (value, patch) => *value = patch.clone(),
    }
}

/// A cluster where the volumes of the cases may be made.
pub fn context() -> Context {
    let words = |words: &[&str]| words.iter().map(|&word| word.to_owned()).collect();
    let volumes = VolumesConfig {
        classes: words(&["hostpath", "csi-gcs"]),
        path_prefixes: words(&["/srv"]),
        drivers: words(&["gcs.csi.ofek.dev", "s3.csi.aws.com"]),
    };
    Context { volumes, ..Context::default() }
}
