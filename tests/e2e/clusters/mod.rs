//! Where the two clusters of a run come from.

mod given;
mod kind;

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use anyhow::bail;
use tributary_sandbox::Access;

/// Two clusters with real pods, and the way of images into them.
pub(crate) trait Clusters: Send + Sync {
    /// The clusters; the root's first.
    fn access(&self) -> &[Access];

    /// Brings images into every node of both clusters.
    ///
    /// # Errors
    /// What the tool says that does it.
    fn load(&self, archive: &Path) -> anyhow::Result<()>;
}

/// Images of a run, by the names that pods ask for.
#[derive(Clone, Debug)]
pub(crate) struct Images {
    /// Of the brokers.
    pub(crate) brokers: String,
    /// The one that brings Flux; MiniCluster's own without it.
    pub(crate) view: Option<String>,
    /// Of the agent; without it agents are processes of this machine, and nothing is installed.
    pub(crate) agent: Option<String>,
}

/// What a run has.
pub(crate) type World = (Box<dyn Clusters>, Images);

/// The clusters of this run, or why there are none.
pub(crate) fn clusters() -> Result<&'static World, &'static str> {
    static CLUSTERS: OnceLock<Result<World, String>> = OnceLock::new();
    CLUSTERS.get_or_init(|| start().map_err(|error| format!("{error:#}"))).as_ref().map_err(String::as_str)
}

fn start() -> anyhow::Result<World> {
    let images = Images {
        brokers: variable("TRIBUTARY_E2E_IMAGE").unwrap_or_else(|| "ubuntu:24.04".to_owned()),
        view: variable("TRIBUTARY_E2E_VIEW_IMAGE"),
        agent: variable("TRIBUTARY_E2E_AGENT_IMAGE"),
    };
    let (clusters, agent): (Box<dyn Clusters>, Option<String>) = match variable("TRIBUTARY_E2E").as_deref() {
        Some("kind") => {
            let (clusters, agent) = kind::Kind::start(images.agent.as_deref())?;
            (Box::new(clusters), Some(agent))
        }
        Some("off") => bail!("TRIBUTARY_E2E=off"),
        Some(other) => bail!("TRIBUTARY_E2E={other} is not known: kind, off, or nothing and TRIBUTARY_E2E_CONTEXTS"),
        None => match variable("TRIBUTARY_E2E_CONTEXTS") {
            Some(contexts) => (Box::new(given::Given::find(&contexts)?), images.agent.clone()),
            None => bail!("set TRIBUTARY_E2E=kind, or name the contexts of two clusters in TRIBUTARY_E2E_CONTEXTS=a,b"),
        },
    };
    for archive in archives() {
        clusters.load(&archive)?;
    }
    Ok((clusters, Images { agent, ..images }))
}

fn archives() -> Vec<PathBuf> {
    let list = variable("TRIBUTARY_E2E_ARCHIVES").unwrap_or_default();
    list.split(',').filter(|file| !file.is_empty()).map(PathBuf::from).collect()
}

fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}
