//! The MiniClusters of `tests/corpus`: what users write, and probes of one question each. And the project's `examples`.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde_json::Value;

/// One MiniCluster of the corpus.
#[derive(Clone, Debug)]
pub struct Document {
    /// Path under `tests/corpus`, for example `probes/batch.yaml`.
    pub file: String,
    /// The document as it was written.
    pub value: Value,
}

/// The folder `tests/corpus`.
pub fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus")
}

/// Definitions of the kinds of others that examples and charts have objects of, as far as these say something.
///
/// # Errors
/// The file cannot be read, or is no YAML.
pub fn other_kinds() -> Result<Vec<Value>> {
    let text = std::fs::read_to_string(folder().join("other-kinds.yaml")).context("failed to read other-kinds.yaml")?;
    serde_saphyr::from_multiple(&text).context("failed to parse other-kinds.yaml")
}

/// Every MiniCluster of the corpus, in the order of file names.
///
/// # Errors
/// A file cannot be read, or is no YAML.
pub fn documents() -> Result<Vec<Document>> {
    documents_of(&["probes", "workloads"])
}

/// Every MiniCluster of v1alpha1.
///
/// # Errors
/// A file cannot be read, or is no YAML.
pub fn older_documents() -> Result<Vec<Document>> {
    documents_of(&["v1alpha1"])
}

fn documents_of(parts: &[&str]) -> Result<Vec<Document>> {
    let mut documents = Vec::new();
    for part in parts {
        let mut paths: Vec<PathBuf> = std::fs::read_dir(folder().join(part))
            .with_context(|| format!("failed to list tests/corpus/{part}"))?
            .map(|entry| Ok(entry?.path()))
            .collect::<Result<_>>()?;
        paths.sort();
        for path in paths {
            let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
            let file = format!("{part}/{name}");
            let text = std::fs::read_to_string(&path).with_context(|| format!("failed to read {file}"))?;
            documents.extend(mini_clusters(&text, &file)?);
        }
    }
    Ok(documents)
}

/// The MiniClusters in the text of a file.
pub(crate) fn mini_clusters(text: &str, file: &str) -> Result<Vec<Document>> {
    let values: Vec<Value> = serde_saphyr::from_multiple(text).with_context(|| format!("failed to parse {file}"))?;
    let clusters = values.into_iter().filter(|value| value["kind"] == "MiniCluster");
    Ok(clusters.map(|value| Document { file: file.to_owned(), value }).collect())
}

/// Every file below `examples`, sorted.
///
/// # Errors
/// A folder cannot be read.
pub fn example_files() -> Result<Vec<PathBuf>> {
    let (mut folders, mut files) = (vec![Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples")], Vec::new());
    while let Some(folder) = folders.pop() {
        let entries = std::fs::read_dir(&folder).with_context(|| format!("failed to list {}", folder.display()))?;
        for entry in entries {
            let path = entry?.path();
            if path.is_dir() { folders.push(path) } else { files.push(path) }
        }
    }
    files.sort();
    Ok(files)
}

/// Every object below `examples`, each with its file.
///
/// # Errors
/// A file cannot be read, or is no YAML.
pub fn examples() -> Result<Vec<(String, Value)>> {
    let is_yaml = |path: &PathBuf| path.extension().is_some_and(|extension| extension == "yaml");
    let files = example_files()?.into_iter().filter(is_yaml);
    let mut all = Vec::new();
    for path in files {
        let file = path.display().to_string();
        let text = std::fs::read_to_string(&path).with_context(|| format!("failed to read {file}"))?;
        let documents: Vec<Value> =
            serde_saphyr::from_multiple(&text).with_context(|| format!("failed to parse {file}"))?;
        all.extend(documents.into_iter().map(|document| (file.clone(), document)));
    }
    Ok(all)
}
