//! Clusters that exist, and stay.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, ensure};
use tributary_sandbox::{Access, Provider};

use super::{Clusters, Network, variable};

const CUT: &str = "TRIBUTARY_E2E_CUT";
const HEAL: &str = "TRIBUTARY_E2E_HEAL";

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
        let Provider::Existing(access) = Provider::existing(None, &contexts)? else {
            unreachable!("existing clusters were asked for")
        };
        Ok(Self { access, load: variable("TRIBUTARY_E2E_LOAD") })
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

    fn network(&self) -> anyhow::Result<Option<Network>> {
        Ok(variable(CUT).zip(variable(HEAL)).map(|(cut, heal)| Network::new(cut, heal)))
    }
}
