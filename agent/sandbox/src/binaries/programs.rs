//! Programs that tests need besides a control plane, each with a module graph of its own: pinned by the checksum database instead
//! of a go.sum.

use std::{
    env,
    path::PathBuf,
    process::{Command, Stdio},
};

use anyhow::{Context, bail};

use super::{
    build, cache, is_program,
    pins::{Step, install, recipe},
};
use crate::options::Report;

const HELM: &str = "helm.sh/helm/v3/cmd/helm@v3.21.4";
const KUEUE: &str = "sigs.k8s.io/kueue/cmd/kueue@v0.19.2";
/// The module of that program, with its definitions.
const KUEUE_MODULE: &str = "sigs.k8s.io/kueue@v0.19.2";

/// Helm, built into the cache when it is first asked for.
///
/// # Errors
/// It is not there and cannot be built.
pub async fn helm(report: &Report) -> anyhow::Result<PathBuf> {
    program("helm", "helm", HELM, report).await
}

/// Kueue: its controller, and the directory of its definitions.
#[derive(Debug, Clone)]
pub struct Kueue {
    /// The program.
    pub program: PathBuf,
    /// Holds a CustomResourceDefinition per file.
    pub definitions: PathBuf,
}

/// Kueue, built into the cache when it is first asked for: some minutes on two cores. Its definitions are read where Go keeps
/// the module.
///
/// # Errors
/// It is not there and cannot be built.
pub async fn kueue(report: &Report) -> anyhow::Result<Kueue> {
    let program = program("kueue", "Kueue", KUEUE, report).await?;
    Ok(Kueue { program, definitions: module(KUEUE_MODULE)?.join("config/components/crd/bases") })
}

/// The program of a package, which Go calls `name`.
async fn program(name: &str, title: &'static str, package: &str, report: &Report) -> anyhow::Result<PathBuf> {
    let steps = vec![Step { title, arguments: install(package), packages: Vec::new() }];
    let mut recipe = recipe(&format!("{name}-"), Vec::new(), steps, Vec::new());
    recipe.title = title.to_owned();
    let directory = cache(env::var_os("XDG_CACHE_HOME").map(PathBuf::from), env::home_dir())?.join(&recipe.name);
    let program = directory.join(name);
    let complete = || is_program(&program);
    if !complete() {
        let built = build::build(complete, &recipe, &directory, report).await;
        built.with_context(|| format!("there is no {name} in the cache"))?;
    }
    Ok(program)
}

/// The directory in which Go keeps a module, `path@version`; it is downloaded if it is not there.
fn module(module: &str) -> anyhow::Result<PathBuf> {
    let mut command = Command::new("go");
    command.args(["mod", "download", "-json", module]).current_dir(env::temp_dir()).env("GOWORK", "off");
    let output = command.env_remove("GOFLAGS").stdin(Stdio::null()).output().context("failed to run go")?;
    let said: serde_json::Value = serde_json::from_slice(&output.stdout)
        .with_context(|| format!("go mod download {module}: {}", String::from_utf8_lossy(&output.stderr).trim()))?;
    match said["Dir"].as_str() {
        Some(directory) => Ok(directory.into()),
        None => bail!("go mod download {module}: {}", said["Error"]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn definitions_are_of_the_version_that_is_built() {
        let (module, version) = KUEUE_MODULE.split_once('@').unwrap();
        assert_eq!(KUEUE, format!("{module}/cmd/kueue@{version}"));
    }
}
