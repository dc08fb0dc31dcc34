//! Where the two clusters of a run come from.

mod given;
mod kind;
mod sandbox;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::anyhow;
use tributary_sandbox::Access;

use crate::ground::skip;

/// Two clusters, and the way of images into them.
pub(crate) trait Clusters: Send + Sync {
    /// The clusters; the root's first.
    fn access(&self) -> &[Access];

    /// Brings images into every node of both clusters.
    ///
    /// # Errors
    /// What the tool says that does it.
    fn load(&self, archive: &Path) -> anyhow::Result<()>;

    /// How the network between the clusters fails; nothing where nobody says how.
    ///
    /// # Errors
    /// What the tool says that is asked for the nodes' addresses.
    fn network(&self, cut: Cut) -> anyhow::Result<Option<Network>>;

    /// Runs a line of bash as root on a node of the cluster of this index; `false` where nobody says how.
    ///
    /// # Errors
    /// What the line says against it.
    fn on_node(&self, cluster: usize, node: &str, line: &str) -> anyhow::Result<bool>;
}

/// What a cut takes away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cut {
    /// All packets.
    All,
    /// Those of UDP: the agents cannot reach each other, brokers that connect directly can. All packets where only that is
    /// known.
    Agents,
}

/// Shell commands that take the network between the clusters' nodes away, and give it back. It is whole again, too, when
/// this ends.
#[derive(Debug)]
pub(crate) struct Network {
    cut: String,
    heal: String,
    is_cut: AtomicBool,
}

impl Network {
    fn new(cut: String, heal: String) -> Self {
        Self { cut, heal, is_cut: AtomicBool::new(false) }
    }

    /// No packet passes any more.
    ///
    /// # Panics
    /// When the command fails.
    pub(crate) fn cut(&self) {
        self.is_cut.store(true, Ordering::SeqCst);
        assert!(run(&self.cut), "{} failed", self.cut);
    }

    /// All is as before.
    ///
    /// # Panics
    /// When the command fails.
    pub(crate) fn heal(&self) {
        assert!(run(&self.heal), "{} failed", self.heal);
        self.is_cut.store(false, Ordering::SeqCst);
    }
}

impl Drop for Network {
    /// A test that failed in between leaves no cut to the others.
    fn drop(&mut self) {
        if self.is_cut.load(Ordering::SeqCst) {
            run(&self.heal);
        }
    }
}

fn run(command: &str) -> bool {
    Command::new("bash").args(["-c", command]).status().is_ok_and(|status| status.success())
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
///
/// # Panics
/// When clusters were asked for by name and cannot be had: tests that were skipped would look as if they had passed.
pub(crate) fn clusters() -> Result<&'static World, &'static str> {
    static CLUSTERS: OnceLock<Result<World, Missing>> = OnceLock::new();
    match CLUSTERS.get_or_init(start) {
        Ok(world) => Ok(world),
        Err(Missing::NotAskedFor(why)) => Err(why),
        Err(Missing::Failed(why)) => panic!("the clusters of TRIBUTARY_E2E or TRIBUTARY_E2E_CONTEXTS: {why}"),
    }
}

/// Why there are no clusters.
enum Missing {
    NotAskedFor(String),
    Failed(String),
}

impl From<anyhow::Error> for Missing {
    fn from(error: anyhow::Error) -> Self {
        Self::Failed(format!("{error:#}"))
    }
}

fn start() -> Result<World, Missing> {
    let images = Images {
        brokers: variable("TRIBUTARY_E2E_IMAGE").unwrap_or_else(|| "ubuntu:24.04".to_owned()),
        view: variable("TRIBUTARY_E2E_VIEW_IMAGE"),
        agent: variable("TRIBUTARY_E2E_AGENT_IMAGE"),
    };
    let (clusters, agent): Started = match variable("TRIBUTARY_E2E").as_deref() {
        Some("kind") => kind(kind::Tools::find().map_err(Missing::Failed)?, &images)?,
        Some("auto") => automatic(kind::Tools::find(), &images)?,
        Some("sandbox") => sandbox()?,
        Some("off") => return Err(Missing::NotAskedFor("e2e: TRIBUTARY_E2E=off".into())),
        Some(other) => {
            let known = "kind, auto, sandbox, off, or nothing and TRIBUTARY_E2E_CONTEXTS";
            return Err(anyhow!("{other} is not known: {known}").into());
        }
        None => match variable("TRIBUTARY_E2E_CONTEXTS") {
            Some(contexts) => (Box::new(given::Given::find(&contexts)?), images.agent.clone()),
            None => {
                let way = "set TRIBUTARY_E2E=kind, or name the contexts of two clusters in TRIBUTARY_E2E_CONTEXTS=a,b";
                skip(&format!("tests on real pods: {way}"));
                sandbox()?
            }
        },
    };
    for archive in archives() {
        clusters.load(&archive)?;
    }
    Ok((clusters, Images { agent, ..images }))
}

/// Clusters, and the image of the agent that is in them.
type Started = (Box<dyn Clusters>, Option<String>);

/// Real pods wherever there is what makes them. That it does not work there is no reason to pass: an agent that cannot be
/// built, an image, a node that does not start.
fn automatic(tools: Result<kind::Tools, String>, images: &Images) -> anyhow::Result<Started> {
    match tools {
        Ok(tools) => kind(tools, images),
        Err(lacking) => {
            skip(&format!("tests on real pods: {lacking}"));
            sandbox()
        }
    }
}

fn kind(tools: kind::Tools, images: &Images) -> anyhow::Result<Started> {
    let (clusters, agent) = kind::Kind::start(tools, images.agent.as_deref())?;
    Ok((Box::new(clusters), Some(agent)))
}

fn sandbox() -> anyhow::Result<Started> {
    Ok((Box::new(sandbox::Sandbox::start()?), None))
}

fn archives() -> Vec<PathBuf> {
    let list = variable("TRIBUTARY_E2E_ARCHIVES").unwrap_or_default();
    list.split(',').filter(|file| !file.is_empty()).map(PathBuf::from).collect()
}

fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

#[test]
fn clusters_that_cannot_be_made_are_no_skip() {
    let images = Images { brokers: String::new(), view: None, agent: Some("an-image-that-is-there".into()) };
    let started = automatic(Ok(kind::Tools::broken()), &images);
    let error = started.map(drop).expect_err("kind failed, and something else was tested instead");
    assert!(format!("{error:#}").contains("kind does not make a cluster"), "{error:#}");
}
