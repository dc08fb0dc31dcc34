//! What a sandbox shall look like.

use std::{
    collections::{BTreeMap, BTreeSet},
    env, fmt,
    net::Ipv4Addr,
    sync::Arc,
    time::Duration,
};

use anyhow::ensure;

/// A whole sandbox.
#[derive(Debug, Clone)]
pub struct Options {
    /// The clusters, at most 64, with different names.
    pub clusters: Vec<ClusterOptions>,
    /// Leave logs, keys and data behind at the end. By default: if `TRIBUTARY_SANDBOX_KEEP` is set and not empty.
    pub keep: bool,
    /// How long one cluster may take until it is ready. Two minutes by default, for machines with much else to do.
    pub ready_timeout: Duration,
    /// Gets a line when there is something to tell a person who waits. By default these are tracing events.
    pub report: Report,
}

/// One cluster of a sandbox.
#[derive(Debug, Clone)]
pub struct ClusterOptions {
    /// Its name: a DNS label. It is also the name of the context in every kubeconfig.
    pub name: String,
    /// Its nodes, simulated by kwok.
    pub nodes: Vec<NodeGroup>,
    /// More arguments for kube-apiserver, such as `--authorization-mode=AlwaysAllow`; they win over the built-in ones.
    pub api_server_arguments: Vec<String>,
}

/// Nodes that are alike.
#[derive(Debug, Clone)]
pub struct NodeGroup {
    /// How many.
    pub count: u32,
    /// Cores of each.
    pub cpu: u32,
    /// Memory of each, as a Kubernetes quantity.
    pub memory: String,
    /// `nvidia.com/gpu` of each.
    pub gpus: u32,
    /// How many pods each takes, at most 126 if pod addresses shall be unique.
    pub pods: u32,
    /// InternalIP of the first node; the others count up from it. By default `10.<1 + the cluster's index>.0.1` and on.
    pub address: Option<Ipv4Addr>,
    /// ExternalIP of the first node; the others count up from it. By default nodes have none.
    pub external_address: Option<Ipv4Addr>,
    /// Labels besides those every kubelet sets.
    pub labels: BTreeMap<String, String>,
}

/// Takes the lines of [`Options::report`].
#[derive(Clone)]
pub struct Report(Arc<dyn Fn(&str) + Send + Sync>);

impl Options {
    /// Clusters of these names with default nodes.
    pub fn named<'a>(names: impl IntoIterator<Item = &'a str>) -> Self {
        Self { clusters: names.into_iter().map(ClusterOptions::named).collect(), ..Self::default() }
    }

    pub(crate) fn validate(&self) -> anyhow::Result<()> {
        let mut seen = BTreeSet::new();
        ensure!(!self.clusters.is_empty(), "a sandbox needs at least one cluster");
        ensure!(
            self.clusters.len() <= 64,
            "a sandbox has address ranges for 64 clusters, not for {}",
            self.clusters.len()
        );
        for ClusterOptions { name, .. } in &self.clusters {
            let label = !name.is_empty()
                && name.len() <= 40
                && name.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-')
                && !name.starts_with('-')
                && !name.ends_with('-');
            ensure!(label, "cluster name {name:?} is not a DNS label of at most 40 characters");
            ensure!(seen.insert(name), "two clusters are called {name:?}");
        }
        Ok(())
    }
}

impl Default for Options {
    fn default() -> Self {
        Self {
            clusters: Vec::new(),
            keep: env::var_os("TRIBUTARY_SANDBOX_KEEP").is_some_and(|value| !value.is_empty()),
            ready_timeout: Duration::from_secs(120),
            report: Report::new(|line| tracing::info!("{line}")),
        }
    }
}

impl ClusterOptions {
    /// A cluster with one default group of nodes.
    pub fn named(name: &str) -> Self {
        Self { name: name.to_owned(), nodes: vec![NodeGroup::default()], api_server_arguments: Vec::new() }
    }
}

impl Default for NodeGroup {
    /// Four nodes of 64 cores and 256 GiB without GPUs.
    fn default() -> Self {
        Self {
            count: 4,
            cpu: 64,
            memory: "256Gi".to_owned(),
            gpus: 0,
            pods: 110,
            address: None,
            external_address: None,
            labels: BTreeMap::new(),
        }
    }
}

impl Report {
    /// A report to `sink`, which gets one line without its end.
    pub fn new(sink: impl Fn(&str) + Send + Sync + 'static) -> Self {
        Self(Arc::new(sink))
    }

    pub(crate) fn line(&self, line: &str) {
        (self.0)(line);
    }
}

impl fmt::Debug for Report {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Report")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_labels_and_differ() {
        assert!(Options::named(["east", "west-2"]).validate().is_ok());
        for names in [&[][..], &["East"], &["a/b"], &["-a"], &["a-"], &[""], &["east", "east"]] {
            assert!(Options::named(names.iter().copied()).validate().is_err(), "{names:?}");
        }
    }
}
