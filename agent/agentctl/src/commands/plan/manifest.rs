//! Documents of files or of standard input → MiniClusters and those that FluxJobs would make, held against the definition as an API server would hold them.

use std::io::Read;
use std::path::{Path, PathBuf};

use k8s_openapi::api::core::v1::{ResourceQuota, ResourceQuotaStatus};
use kube::ResourceExt;
use serde_json::Value;
use tributary::api::flux_job::FluxJob;
use tributary::api::flux_setup::{self, FluxSetup};
use tributary::api::minicluster::MiniCluster;
use tributary::api::schema::unknown_fields;
use tributary::api::{crds, v1alpha1};
use tributary::queue::job;

use super::evaluate::Known;
use super::report::{INVALID_FLUX_JOB, Problem, UNREADABLE, WRONG_TYPE};
use crate::error::{Failure, Result, failed};

/// What was read.
#[derive(Clone, Debug, Default)]
pub(super) struct Manifest {
    /// The MiniClusters, in their order.
    pub(super) mini_clusters: Vec<Declared>,
    /// Objects of other kinds: kind and name.
    pub(super) others: Vec<String>,
    /// Of these, what decides whether there is room: names of Namespaces,
    namespaces: Vec<String>,
    /// FluxSetups,
    setups: Vec<FluxSetup>,
    /// and ResourceQuotas.
    quotas: Vec<ResourceQuota>,
}

/// A MiniCluster of a manifest, or of one of its FluxJobs.
#[derive(Clone, Debug)]
pub(super) struct Declared {
    /// The object, as far as it can be read. Its namespace is set where the document, or the user, names one.
    pub(super) object: MiniCluster,
    /// What an API server would refuse.
    pub(super) problems: Vec<Problem>,
    /// The FluxJob that makes it.
    pub(super) job: Option<Box<FluxJob>>,
}

/// Reads all documents of `files` (`-`: standard input; a directory: its YAML and JSON files).
pub(super) fn read(files: &[PathBuf], namespace: Option<&str>) -> Result<Manifest> {
    let mut manifest = Manifest::default();
    for file in files {
        for path in expand(file)? {
            let text = text(&path)?;
            let documents: Vec<Value> = serde_saphyr::from_multiple(&text).map_err(failed(
                format!("failed to read {} as YAML", path.display()),
                "name a file with Kubernetes objects in YAML or JSON",
            ))?;
            documents.into_iter().for_each(|document| manifest.add(document, namespace));
        }
    }
    if manifest.mini_clusters.is_empty() {
        let names: Vec<_> = files.iter().map(|file| file.display().to_string()).collect();
        return Err(Failure::new(format!("there is no MiniCluster and no FluxJob in {}", names.join(", "))).hint(
            "apiVersion begins with flux-framework.org/ and kind is MiniCluster, or with tributary.dev/ and FluxJob",
        ));
    }
    Ok(manifest)
}

fn expand(file: &Path) -> Result<Vec<PathBuf>> {
    if !file.is_dir() {
        return Ok(vec![file.to_owned()]);
    }
    let failed = failed(
        format!("failed to read the directory {}", file.display()),
        "name a directory that you may read, or its files one by one",
    );
    let mut files: Vec<PathBuf> = Vec::new();
    for entry in std::fs::read_dir(file).map_err(&failed)? {
        let path = entry.map_err(&failed)?.path();
        if path.extension().is_some_and(|extension| ["yaml", "yml", "json"].iter().any(|known| extension == *known)) {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

fn text(path: &Path) -> Result<String> {
    let failed =
        failed(format!("failed to read {}", path.display()), "name a file, a directory, or - for standard input");
    if path == Path::new("-") {
        let mut text = String::new();
        return std::io::stdin().read_to_string(&mut text).map(|_| text).map_err(&failed);
    }
    std::fs::read_to_string(path).map_err(&failed)
}

impl Manifest {
    fn add(&mut self, document: Value, namespace: Option<&str>) {
        if document.is_null() {
            return;
        }
        if let Some(items) = document.get("items").and_then(Value::as_array).filter(|_| document["kind"] == "List") {
            items.iter().cloned().for_each(|item| self.add(item, namespace));
            return;
        }
        let (kind, version) = (document["kind"].as_str().unwrap_or("?"), document["apiVersion"].as_str().unwrap_or(""));
        let name = document["metadata"]["name"].as_str().unwrap_or_default();
        if kind == "FluxJob" && version.starts_with("tributary.dev/") {
            self.mini_clusters.push(flux_job(&document, namespace));
            return;
        }
        if kind != "MiniCluster" || !version.starts_with("flux-framework.org/") {
            self.others.push(format!("{kind} {name}"));
            // What the API server refuses of these changes nothing.
            match (kind, version) {
                ("Namespace", "v1") => self.namespaces.push(name.to_owned()),
                ("ResourceQuota", "v1") => self.quotas.extend(quota(document)),
                ("FluxSetup", _) if version.starts_with("tributary.dev/") && name == flux_setup::NAME => {
                    self.setups.extend(serde_json::from_value::<FluxSetup>(document));
                }
                _ => {}
            }
            return;
        }
        self.mini_clusters.push(mini_cluster(&document, namespace));
    }

    /// What is known once the Namespaces, FluxSetups and ResourceQuotas of the manifest are there: they are applied with it.
    pub(super) fn laid_over(&self, known: &Known) -> Known {
        let mut known = known.clone();
        known.no_namespaces.retain(|namespace| !self.namespaces.contains(namespace));
        for setup in &self.setups {
            let namespace = setup.namespace().unwrap_or_else(|| known.namespace.clone());
            let there = known.setups.get(&namespace).and_then(Option::as_ref);
            let status = there.and_then(|there| there.status.clone());
            known.setups.insert(namespace, Some(FluxSetup { status, ..setup.clone() }));
        }
        for quota in &self.quotas {
            let namespace = quota.namespace().unwrap_or_else(|| known.namespace.clone());
            let there = known.quotas.entry(namespace).or_default();
            let before = there.iter().position(|there| there.name_any() == quota.name_any());
            let used =
                before.map(|at| there.remove(at)).and_then(|before| before.status).and_then(|status| status.used);
            let hard = quota.spec.as_ref().and_then(|spec| spec.hard.clone());
            there.push(ResourceQuota { status: Some(ResourceQuotaStatus { hard, used }), ..quota.clone() });
        }
        known
    }
}

/// A ResourceQuota, whose amounts may be written as numbers.
fn quota(mut document: Value) -> Option<ResourceQuota> {
    let hard = document.pointer_mut("/spec/hard").and_then(Value::as_object_mut);
    for amount in hard.into_iter().flat_map(|hard| hard.values_mut()).filter(|amount| amount.is_number()) {
        *amount = amount.to_string().into();
    }
    serde_json::from_value(document).ok()
}

/// The schemas of the specs of a kind, by version.
pub(super) fn schemas(kind: &str) -> Vec<(String, Value)> {
    let definition = crds().into_iter().find(|crd| crd.spec.names.kind == kind).expect("it is one of ours");
    let of =
        |version: &_| serde_json::to_value(version).unwrap_or_default()["openAPIV3Schema"]["properties"]["spec"].take();
    definition.spec.versions.iter().map(|one| (one.name.clone(), of(&one.schema))).collect()
}

/// What an API server says of a spec that is not as its schema wants it.
fn held_against(document: &Value, schema: &Value) -> Vec<Problem> {
    let mut problems = Vec::new();
    mistyped(&document["spec"], schema, "spec", &mut problems);
    for field in unknown_fields(&document["spec"], schema, "spec") {
        let message = "there is no such field: kubectl refuses it, or the API server drops it";
        problems.push(Problem::new(&field, "UnknownField", message));
    }
    problems
}

/// Values of another type than their schema says.
fn mistyped(value: &Value, schema: &Value, path: &str, problems: &mut Vec<Problem>) {
    let is = match value {
        Value::Null => return,
        Value::Bool(_) => "boolean",
        Value::Number(number) if number.is_f64() => "number",
        Value::Number(_) => "integer",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    };
    let either = schema["x-kubernetes-int-or-string"] == true && ["integer", "string"].contains(&is);
    match schema["type"].as_str() {
        Some(wanted) if wanted != is && !(wanted == "number" && is == "integer") && !either => {
            let message = format!("{value} is of type {is}, and it has to be of type {wanted}");
            problems.push(Problem::new(path, WRONG_TYPE, message));
        }
        _ => match value {
            Value::Object(fields) => {
                for (name, value) in fields {
                    let known = schema["properties"].get(name).unwrap_or(&schema["additionalProperties"]);
                    mistyped(value, known, &format!("{path}.{name}"), problems);
                }
            }
            Value::Array(items) => {
                for (index, item) in items.iter().enumerate() {
                    mistyped(item, &schema["items"], &format!("{path}[{index}]"), problems);
                }
            }
            _ => {}
        },
    }
}

fn mini_cluster(document: &Value, namespace: Option<&str>) -> Declared {
    let mut problems = Vec::new();
    let mut say = |field: &str, reason: &str, message: String| problems.push(Problem::new(field, reason, message));
    let version = document["apiVersion"].as_str().unwrap_or_default().rsplit('/').next().unwrap_or_default();
    let all = schemas("MiniCluster");
    match all.iter().find(|(name, _)| name == version) {
        None => {
            let known: Vec<_> = all.iter().map(|(name, _)| name.as_str()).collect();
            say(
                "apiVersion",
                "UnknownVersion",
                format!("version {version:?} is not served, there is {}", known.join(", ")),
            );
        }
        Some((_, schema)) => problems.extend(held_against(document, schema)),
    }
    let written = written_namespace(document, namespace, &mut problems);
    // As the API server stores it.
    let stored = v1alpha1::convert(document, v1alpha1::V1ALPHA2).unwrap_or_else(|_| document.clone());
    let mut object = serde_json::from_value::<MiniCluster>(stored).unwrap_or_else(|error| {
        unreadable(&mut problems, &error);
        MiniCluster::new(document["metadata"]["name"].as_str().unwrap_or_default(), Default::default())
    });
    object.metadata.namespace = written.or(namespace).map(str::to_owned);
    // Not what is applied.
    object.status = None;
    Declared { object, problems, job: None }
}

/// The namespace that a document names, which may not be another one than that of the flag.
fn written_namespace<'a>(document: &'a Value, namespace: Option<&str>, problems: &mut Vec<Problem>) -> Option<&'a str> {
    let written = document["metadata"]["namespace"].as_str();
    if let (Some(written), Some(asked)) = (written, namespace)
        && written != asked
    {
        let message = format!("it says {written}, and --namespace says {asked}");
        problems.push(Problem::new("metadata.namespace", "OtherNamespace", message));
    }
    written
}

/// It is said once why it cannot be read: by the fields, if they tell.
fn unreadable(problems: &mut Vec<Problem>, error: &serde_json::Error) {
    if !problems.iter().any(|one| one.reason == WRONG_TYPE) {
        problems.push(Problem::new("spec", UNREADABLE, format!("it cannot be read: {error}")));
    }
}

/// The MiniCluster that a FluxJob makes when it is admitted.
fn flux_job(document: &Value, namespace: Option<&str>) -> Declared {
    let mut problems = schemas("FluxJob").first().map(|(_, schema)| held_against(document, schema)).unwrap_or_default();
    let written = written_namespace(document, namespace, &mut problems);
    let name = document["metadata"]["name"].as_str().unwrap_or_default();
    let mut wanted = serde_json::from_value::<FluxJob>(document.clone()).unwrap_or_else(|error| {
        unreadable(&mut problems, &error);
        FluxJob::new(name, Default::default())
    });
    wanted.status = None;
    wanted.metadata.namespace = written.or(namespace).map(str::to_owned);
    let object = job::mini_cluster(&wanted, None).unwrap_or_else(|message| {
        if !problems.iter().any(Problem::is_unreadable) {
            problems.push(Problem::new("spec", INVALID_FLUX_JOB, message));
        }
        let mut nothing = MiniCluster::new(name, Default::default());
        nothing.metadata.namespace = wanted.namespace();
        nothing
    });
    Declared { object, problems, job: Some(Box::new(wanted)) }
}
