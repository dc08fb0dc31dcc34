//! Clusters that exist, and stay.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, ensure};
use tributary_sandbox::{Access, existing};

use super::{Clusters, Cut, Network, variable};

const CUT: &str = "TRIBUTARY_E2E_CUT";
const HEAL: &str = "TRIBUTARY_E2E_HEAL";
const ON_NODE: &str = "TRIBUTARY_E2E_ON_NODE";

/// Clusters of a kubeconfig.
pub(super) struct Given {
    access: Vec<Access>,
    /// A shell command that loads the image archive `$ARCHIVE`.
    load: Option<String>,
}

impl Given {
    /// The clusters behind these contexts, separated by commas.
    pub(super) fn find(contexts: &str) -> anyhow::Result<Self> {
        let contexts: Vec<String> = contexts.split(',').map(str::to_owned).collect();
        ensure!(contexts.len() >= 2, "two clusters are needed: TRIBUTARY_E2E_CONTEXTS=a,b");
        Ok(Self { access: existing(None, &contexts)?, load: variable("TRIBUTARY_E2E_LOAD") })
    }
}

impl Clusters for Given {
    fn access(&self) -> &[Access] {
        &self.access
    }

    fn load(&self, archive: &Path) -> anyhow::Result<()> {
        let load = self.load.as_deref().context("TRIBUTARY_E2E_LOAD says how $ARCHIVE comes into the clusters")?;
        let status = Command::new("bash").args(["-c", load]).env("ARCHIVE", archive).status();
        ensure!(status.context("failed to run bash")?.success(), "{load} failed for {}", archive.display());
        Ok(())
    }

    fn network(&self, _: Cut) -> anyhow::Result<Option<Network>> {
        Ok(variable(CUT).zip(variable(HEAL)).map(|(cut, heal)| Network::new(cut, heal)))
    }

    fn on_node(&self, cluster: usize, node: &str, line: &str) -> anyhow::Result<bool> {
        let Some(command) = variable(ON_NODE) else { return Ok(false) };
        let context = &self.access[cluster].context;
        let mut bash = Command::new("bash");
        bash.args(["-c", &command]).env("CONTEXT", context).env("NODE", node).env("LINE", line);
        ensure!(bash.status().context("failed to run bash")?.success(), "{command} failed for node {node}: {line}");
        Ok(true)
    }
}
