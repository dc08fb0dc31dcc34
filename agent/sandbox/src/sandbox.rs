//! Several clusters that start and end together.

use std::{path::PathBuf, sync::Arc, time::Duration};

use anyhow::Context;
use futures::future::try_join_all;

use crate::{
    binaries::Binaries,
    cluster::{ADMIN, Cluster, Shared},
    group::Group,
    kubeconfig,
    options::Options,
    pki::write_private,
};

/// Running control planes. They end, and their files go, with this value, or with the process, however it ends.
pub struct Sandbox {
    // Before `shared`, whose group ends what they started.
    clusters: Vec<Cluster>,
    shared: Arc<Shared>,
}

impl Sandbox {
    /// Starts all clusters at once and returns when pods can be created in each of them and would run. Builds the
    /// programs first if they are not there, which takes minutes.
    ///
    /// # Errors
    /// There are no programs and no Go to build them, a component ends, or a cluster is not ready in time.
    pub async fn start(options: Options) -> anyhow::Result<Self> {
        options.validate()?;
        let binaries = Binaries::ensure(&options.report).await?;
        Self::start_with(options, binaries).await
    }

    /// The clusters, in the order of the options.
    pub fn clusters(&self) -> &[Cluster] {
        &self.clusters
    }

    /// The cluster of this name.
    ///
    /// # Errors
    /// There is none.
    pub fn cluster(&self, name: &str) -> anyhow::Result<&Cluster> {
        self.clusters
            .iter()
            .find(|cluster| cluster.name() == name)
            .with_context(|| format!("the sandbox has no cluster {name:?}"))
    }

    /// One kubeconfig for people, with a context for each cluster; the first is the current one.
    pub fn kubeconfig(&self) -> PathBuf {
        self.shared.directory.join("kubeconfig")
    }

    /// The programs the clusters run.
    pub fn binaries(&self) -> &Binaries {
        &self.shared.binaries
    }

    /// Ends every component and removes all files, unless they shall be kept. Dropping does the same.
    pub fn stop(self) {
        drop(self);
    }

    async fn start_with(options: Options, binaries: Binaries) -> anyhow::Result<Self> {
        let directory = tempfile::Builder::new()
            .prefix("tributary-sandbox-")
            .tempdir()
            .context("failed to create a directory for the sandbox")?
            .keep();
        let owned = (!options.keep).then_some(directory.as_path());
        // Nothing of a control plane is worth a graceful end.
        let group = Group::start(Duration::ZERO, owned).context("failed to start the guard of the sandbox")?;
        if options.keep {
            options.report.line(&format!("the sandbox's files stay in {}", directory.display()));
        }
        let shared = Arc::new(Shared {
            group,
            binaries,
            directory,
            ready_timeout: options.ready_timeout,
            report: options.report,
        });
        let starts = options.clusters.into_iter().enumerate();
        let starts = starts.map(|(index, options)| Cluster::start(shared.clone(), options, index));
        let clusters = try_join_all(starts).await?;
        let sandbox = Self { clusters, shared };
        sandbox.write_kubeconfig()?;
        Ok(sandbox)
    }

    fn write_kubeconfig(&self) -> anyhow::Result<()> {
        let identities = self.clusters.iter().map(Cluster::admin).collect::<Result<Vec<_>, _>>()?;
        let contexts: Vec<_> = self
            .clusters
            .iter()
            .zip(&identities)
            .map(|(cluster, identity)| cluster.kubeconfig_context(ADMIN, identity))
            .collect();
        write_private(&self.kubeconfig(), &kubeconfig::document(&contexts).to_string())
    }
}
