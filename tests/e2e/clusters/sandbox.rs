//! Control planes on this machine: everything is real but the containers.

use std::path::Path;

use tributary_sandbox::{ADMIN, Access, Options};

use super::{Clusters, Cut, Network};

/// Clusters of a sandbox, which end with this process.
pub(super) struct Sandbox {
    access: Vec<Access>,
}

impl Sandbox {
    /// Starts them.
    pub(super) fn start() -> anyhow::Result<Self> {
        let sandbox = tributary_sandbox::shared(|| Options::named(["east", "west"]))?;
        let access = sandbox.clusters().iter().map(|cluster| cluster.access(ADMIN)).collect::<anyhow::Result<_>>()?;
        Ok(Self { access })
    }
}

impl Clusters for Sandbox {
    fn access(&self) -> &[Access] {
        &self.access
    }

    /// Nodes that run no container need no image.
    fn load(&self, _: &Path) -> anyhow::Result<()> {
        Ok(())
    }

    /// Its nodes have no network. How peers bear cuts is shown by the tests of the control planes.
    fn network(&self, _: Cut) -> anyhow::Result<Option<Network>> {
        Ok(None)
    }

    /// There is nothing on them.
    fn on_node(&self, _: usize, _: &str, _: &str) -> anyhow::Result<bool> {
        Ok(false)
    }
}
