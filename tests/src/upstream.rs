//! What is known of the Flux Operator: the fields of its MiniCluster as a table, and a checkout of it, if there is one.

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Map, Value, json};

use crate::corpus::{Document, documents, folder, mini_clusters};

/// Names a checkout of github.com/flux-framework/flux-operator.
pub const VARIABLE: &str = "TRIBUTARY_UPSTREAM";

/// The first line of the table of fields.
const HEAD: &str = "path\ttype\trequired\tdefault\tenum";

/// Kubernetes' own pattern of quantities.
const QUANTITY: &str = r"^(\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))(([KMGTPE]i)|[numkMGTPE]|([eE](\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))))?$";

/// Keywords that the table has a column for, or that say nothing of values.
const IN_THE_TABLE: [&str; 9] =
    ["type", "format", "properties", "items", "additionalProperties", "required", "default", "enum", "description"];

/// The type of Kubernetes' own whose bounds the table leaves out.
const BOUNDED: &str = "status.conditions[]";

/// Text of the table `tests/corpus/upstream-fields.tsv`.
///
/// # Errors
/// The file cannot be read.
pub fn table() -> Result<String> {
    std::fs::read_to_string(folder().join("upstream-fields.tsv")).context("failed to read upstream-fields.tsv")
}

/// The Flux Operator's definition of MiniClusters, as far as the table says it: it takes what upstream's takes.
///
/// # Errors
/// The table cannot be read, or a row of it.
pub fn definition() -> Result<Value> {
    let mut schema = json!({ "type": "object", "properties": {} });
    for line in table()?.lines().skip(1) {
        add(&mut schema, line).with_context(|| format!("upstream-fields.tsv: {line:?}"))?;
    }
    Ok(json!({
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": { "name": "miniclusters.flux-framework.org" },
        "spec": {
            "group": "flux-framework.org",
            "scope": "Namespaced",
            "names": {
                "kind": "MiniCluster",
                "listKind": "MiniClusterList",
                "plural": "miniclusters",
                "singular": "minicluster",
            },
            "versions": [{
                "name": "v1alpha2",
                "served": true,
                "storage": true,
                "schema": { "openAPIV3Schema": schema },
                "subresources": {
                    "status": {},
                    "scale": {
                        "specReplicasPath": ".spec.size",
                        "statusReplicasPath": ".status.size",
                        "labelSelectorPath": ".status.selector",
                    },
                },
            }],
        },
    }))
}

/// Adds the field of one row to the schema; what it is in comes before it.
fn add(root: &mut Value, line: &str) -> Result<()> {
    let [path, kind, required, default, words] = line.split('\t').collect::<Vec<_>>()[..] else {
        bail!("five columns are needed");
    };
    let mut field = of_kind(kind)?;
    if !default.is_empty() {
        field["default"] = serde_json::from_str(default)?;
    }
    if !words.is_empty() {
        field["enum"] = serde_json::from_str(words)?;
    }
    let (parent, last) = split(path);
    let mut at = root;
    let mut rest = parent;
    while !rest.is_empty() {
        let (step, further) = first(rest);
        at = below(at, step).with_context(|| format!("{step} of {parent} has no row"))?;
        rest = further;
    }
    match last {
        "[]" => at["items"] = field,
        "{}" => at["additionalProperties"] = field,
        name => {
            at["properties"][name] = field;
            if required == "required" {
                let names = at["required"].as_array().cloned().unwrap_or_default();
                at["required"] = names.into_iter().chain([json!(name)]).collect();
            }
        }
    }
    Ok(())
}

/// `spec.containers[]` is `[]` of `spec.containers`.
fn split(path: &str) -> (&str, &str) {
    for suffix in ["[]", "{}"] {
        if let Some(parent) = path.strip_suffix(suffix) {
            return (parent, suffix);
        }
    }
    path.rsplit_once('.').unwrap_or(("", path))
}

/// The first step of a path, and the rest of it.
fn first(path: &str) -> (&str, &str) {
    let path = path.strip_prefix('.').unwrap_or(path);
    let end = if path.starts_with(['[', '{']) { 2 } else { path.find(['.', '[', '{']).unwrap_or(path.len()) };
    path.split_at(end)
}

fn below<'a>(schema: &'a mut Value, step: &str) -> Option<&'a mut Value> {
    match step {
        "[]" => schema.get_mut("items"),
        "{}" => schema.get_mut("additionalProperties"),
        name => schema.get_mut("properties")?.get_mut(name),
    }
}

/// The schema of a word in the column `type`.
fn of_kind(kind: &str) -> Result<Value> {
    Ok(match kind {
        "object" => json!({ "type": "object", "properties": {} }),
        "map" => json!({ "type": "object" }),
        "list" => json!({ "type": "array" }),
        "atomic list" => json!({ "type": "array", "x-kubernetes-list-type": "atomic" }),
        "string" | "integer" | "boolean" => json!({ "type": kind }),
        "int32" | "int64" => json!({ "type": "integer", "format": kind }),
        "date-time" => json!({ "type": "string", "format": kind }),
        "quantity" => json!({
            "anyOf": [{ "type": "integer" }, { "type": "string" }],
            "pattern": QUANTITY,
            "x-kubernetes-int-or-string": true,
        }),
        other => bail!("no type {other:?} is known"),
    })
}

/// The word in the column `type` for a schema.
fn kind_of(schema: &Value) -> &str {
    match (schema["type"].as_str(), schema["format"].as_str()) {
        (None, _) => "quantity",
        (Some("object"), _) if schema.get("additionalProperties").is_some() => "map",
        (Some("array"), _) if schema["x-kubernetes-list-type"] == "atomic" => "atomic list",
        (Some("array"), _) => "list",
        (Some(_), Some(format)) => format,
        (Some(kind), None) => kind,
    }
}

/// The table of a definition: one row for each field of v1alpha2 but `apiVersion`, `kind` and `metadata`.
///
/// # Errors
/// It has no v1alpha2, or says of a field what the table has no column for.
pub fn rows(definition: &Value) -> Result<String> {
    let versions = definition["spec"]["versions"].as_array().context("no versions")?;
    let version = versions.iter().find(|version| version["name"] == "v1alpha2").context("no v1alpha2")?;
    let mut text = format!("{HEAD}\n");
    for part in ["spec", "status"] {
        write(&mut text, part, &version["schema"]["openAPIV3Schema"]["properties"][part], false)?;
    }
    Ok(text)
}

fn write(text: &mut String, path: &str, schema: &Value, required: bool) -> Result<()> {
    let kind = kind_of(schema);
    let said = of_kind(kind).with_context(|| path.to_owned())?;
    for (keyword, value) in schema.as_object().into_iter().flatten() {
        let known = IN_THE_TABLE.contains(&keyword.as_str()) || said.get(keyword) == Some(value);
        ensure!(known || path.starts_with(BOUNDED), "{path}: the table has no column for {keyword}");
    }
    let value = |key: &str| schema.get(key).map(Value::to_string).unwrap_or_default();
    let required = if required { "required" } else { "" };
    writeln!(text, "{path}\t{kind}\t{required}\t{}\t{}", value("default"), value("enum"))?;
    let names: Vec<&str> = schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    let properties: Option<&Map<String, Value>> = schema["properties"].as_object();
    for (name, field) in properties.into_iter().flatten() {
        write(text, &format!("{path}.{name}"), field, names.contains(&name.as_str()))?;
    }
    for (key, suffix) in [("items", "[]"), ("additionalProperties", "{}")] {
        if let Some(field) = schema.get(key) {
            write(text, &format!("{path}{suffix}"), field, false)?;
        }
    }
    Ok(())
}

/// A checkout of the Flux Operator's repository.
#[derive(Debug)]
pub struct Checkout {
    root: PathBuf,
}

impl Checkout {
    /// The checkout, or `None` after one line on standard error that says what is not known without it.
    ///
    /// # Errors
    /// The variable names something else: a lane that was asked for must not be skipped.
    pub fn find(unknown: &str) -> Result<Option<Self>> {
        let Some(root) = std::env::var_os(VARIABLE).filter(|root| !root.is_empty()).map(PathBuf::from) else {
            // Not eprintln!, which the test harness hides when a test passes.
            let _ = writeln!(
                std::io::stderr(),
                "SKIPPED: {VARIABLE} is not set, so nobody knows {unknown} (set it to a checkout of \
                 github.com/flux-framework/flux-operator)"
            );
            return Ok(None);
        };
        ensure!(root.join("examples").is_dir(), "{VARIABLE}={}: there is no folder examples in it", root.display());
        Ok(Some(Self { root }))
    }

    /// Its definition of MiniClusters.
    ///
    /// # Errors
    /// It cannot be read, or is no YAML.
    pub fn definition(&self) -> Result<Value> {
        let path = self.root.join("config/crd/bases/flux-framework.org_miniclusters.yaml");
        let text = std::fs::read_to_string(&path).with_context(|| format!("failed to read {}", path.display()))?;
        serde_saphyr::from_str(&text).with_context(|| format!("failed to parse {}", path.display()))
    }

    /// Its files with MiniClusters, in the order of their names.
    ///
    /// # Errors
    /// A file cannot be read, or there is no such file at all.
    pub fn examples(&self) -> Result<Vec<Example>> {
        let (mut folders, mut examples) = (vec![self.root.clone()], Vec::new());
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(&folder).with_context(|| format!("failed to list {}", folder.display()))? {
                let path = entry?.path();
                if path.is_dir() {
                    folders.push(path);
                } else if path.extension().is_some_and(|extension| extension == "yaml") {
                    examples.extend(self.example(&path)?);
                }
            }
        }
        ensure!(!examples.is_empty(), "{VARIABLE}={}: there is no MiniCluster in it", self.root.display());
        examples.sort_by(|one, other| one.file.cmp(&other.file));
        Ok(examples)
    }

    fn example(&self, path: &Path) -> Result<Option<Example>> {
        let text = std::fs::read_to_string(path).with_context(|| format!("failed to read {}", path.display()))?;
        // Definitions and templates of charts name the kind elsewhere.
        let is_one = text.lines().any(|line| line.trim_end() == "kind: MiniCluster");
        let version = text.lines().find_map(|line| line.strip_prefix("apiVersion: flux-framework.org/"));
        let Some(version) = version.filter(|_| is_one) else { return Ok(None) };
        let file = path.strip_prefix(&self.root)?.display().to_string();
        Ok(Some(Example { version: version.trim_end().to_owned(), documents: mini_clusters(&text, &file), file }))
    }
}

/// A file of a checkout that holds MiniClusters.
#[derive(Debug)]
pub struct Example {
    /// `v1alpha1` or `v1alpha2`.
    pub version: String,
    /// Path from the root of the repository on.
    pub file: String,
    /// What is in it, or why it is no YAML.
    pub documents: Result<Vec<Document>>,
}

/// What becomes of an example that is not simply carried out.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Exception {
    /// `v1alpha1` or `v1alpha2`.
    pub version: String,
    /// Path from the root of the repository on.
    pub file: String,
    /// `unread`: it is no YAML; `lost`: a part of it is not kept; `refused`: it is not rendered.
    pub what: String,
    /// Why, which part, or the sentence that its user reads.
    pub words: String,
}

/// The table `tests/corpus/upstream-exceptions.tsv`.
///
/// # Errors
/// It cannot be read, or a row has not four columns.
pub fn exceptions() -> Result<Vec<Exception>> {
    let text = std::fs::read_to_string(folder().join("upstream-exceptions.tsv"))
        .context("failed to read upstream-exceptions.tsv")?;
    let row = |line: &str| {
        let [version, file, what, words] = line.split('\t').map(str::to_owned).collect::<Vec<_>>().try_into().ok()?;
        Some(Exception { version, file, what, words })
    };
    text.lines().skip(1).map(|line| row(line).with_context(|| format!("four columns are needed: {line}"))).collect()
}

/// The corpus, and the examples of v1alpha2 of a checkout, if there is one.
///
/// # Errors
/// A file cannot be read, or the variable names something else.
pub fn with_examples(unknown: &str) -> Result<Vec<Document>> {
    let mut documents = documents()?;
    if let Some(checkout) = Checkout::find(unknown)? {
        let examples = checkout.examples()?.into_iter().filter(|example| example.version == "v1alpha2");
        documents.extend(examples.filter_map(|example| example.documents.ok()).flatten());
    }
    Ok(documents)
}
