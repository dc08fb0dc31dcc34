//! Clusters whoever runs them: a sandbox's, or ones that exist already.

use std::{
    env,
    path::{Path, PathBuf},
};

use anyhow::{Context, bail};
use kube::{
    Client, Config,
    config::{KubeConfigOptions, Kubeconfig},
};

/// The way to one cluster: all that a process of its own needs to know.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Access {
    /// Name of the cluster; for an existing one, of its context.
    pub name: String,
    /// A kubeconfig file.
    pub kubeconfig: PathBuf,
    /// The context to use in it.
    pub context: String,
    /// Whether its pods only pretend to run.
    pub simulated: bool,
}

/// Existing clusters by the names of their contexts, in `kubeconfig`, or else in the files of `KUBECONFIG`, or else in
/// `~/.kube/config`, as kubectl does it.
///
/// # Errors
/// A file cannot be read, or none has one of the contexts.
pub fn existing(kubeconfig: Option<&Path>, contexts: &[String]) -> anyhow::Result<Vec<Access>> {
    let files = match kubeconfig {
        Some(file) => vec![file.to_owned()],
        None => default_files()?,
    };
    contexts.iter().map(|context| find(&files, context)).collect()
}

impl Access {
    /// What a client needs. It is not bound to a runtime.
    ///
    /// # Errors
    /// The kubeconfig cannot be read.
    pub async fn config(&self) -> anyhow::Result<Config> {
        config(&self.kubeconfig, Some(&self.context)).await
    }

    /// A client for the runtime that calls this: a client dies with its runtime.
    ///
    /// # Errors
    /// The kubeconfig cannot be read.
    pub async fn client(&self) -> anyhow::Result<Client> {
        Ok(Client::try_from(self.config().await?)?)
    }
}

pub(crate) async fn config(kubeconfig: &Path, context: Option<&str>) -> anyhow::Result<Config> {
    let read = Kubeconfig::read_from(kubeconfig)
        .with_context(|| format!("failed to read kubeconfig {}", kubeconfig.display()))?;
    let options = KubeConfigOptions { context: context.map(str::to_owned), ..KubeConfigOptions::default() };
    let config = Config::from_custom_kubeconfig(read, &options).await;
    let mut config = config.with_context(|| format!("failed to use kubeconfig {}", kubeconfig.display()))?;
    // kube takes HTTPS_PROXY for every server.
    if config.cluster_url.host() == Some("127.0.0.1") {
        config.proxy_url = None;
    }
    Ok(config)
}

fn default_files() -> anyhow::Result<Vec<PathBuf>> {
    if let Some(files) = env::var_os("KUBECONFIG").filter(|files| !files.is_empty()) {
        return Ok(env::split_paths(&files).filter(|file| file.exists()).collect());
    }
    let home = env::home_dir().context("no home directory: set KUBECONFIG")?;
    Ok(vec![home.join(".kube/config")])
}

/// The first file that has `context`, as kubectl merges: the first one wins.
fn find(files: &[PathBuf], context: &str) -> anyhow::Result<Access> {
    let mut known = Vec::new();
    for file in files {
        let read =
            Kubeconfig::read_from(file).with_context(|| format!("failed to read kubeconfig {}", file.display()))?;
        if read.contexts.iter().any(|named| named.name == context) {
            return Ok(Access {
                name: context.to_owned(),
                kubeconfig: file.clone(),
                context: context.to_owned(),
                simulated: false,
            });
        }
        known.extend(read.contexts.into_iter().map(|named| named.name));
    }
    bail!("no context {context:?} in {files:?}; there are: {}", known.join(", "))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn contexts_are_found_in_the_first_file_that_has_them() {
        let directory = tempfile::tempdir().unwrap();
        let write = |name: &str, contexts: &[&str]| {
            let contexts = contexts.iter().map(|name| format!("{{name: {name}, context: {{cluster: c, user: u}}}}"));
            let text =
                format!("apiVersion: v1\nkind: Config\ncontexts: [{}]\n", contexts.collect::<Vec<_>>().join(","));
            let path = directory.path().join(name);
            fs::write(&path, text).unwrap();
            path
        };
        let files = [write("one", &["a", "b"]), write("two", &["b", "c"])];
        let file_of = |context| find(&files, context).map(|access| access.kubeconfig);
        assert_eq!(file_of("b").unwrap(), files[0]);
        assert_eq!(file_of("c").unwrap(), files[1]);
        assert!(file_of("d").unwrap_err().to_string().ends_with("there are: a, b, b, c"));
    }
}
