//! `agentctl why`: the conditions that an object does not meet, worst first, each with its cause and what can be done.
//!
//! | file | what it does | talks to the API server |
//! |---|---|---|
//! | `find` | the object that a name stands for | yes |
//! | `fetch` | reads what the answer is found in | yes |
//! | [`mini_cluster`], `pods` | the way of a MiniCluster to `Ready` | no |
//! | [`burst`] | the way of a burst to `Ready` | no |
//! | [`flux_job`] | the way of a FluxJob to one of these | no |
//! | [`cluster_peer`], [`flux_setup`] | whether a peer, or a queue, is used | no |

pub(crate) mod burst;
pub(crate) mod cluster_peer;
mod fetch;
mod find;
pub(crate) mod flux_job;
pub(crate) mod flux_setup;
mod kueue;
pub(crate) mod mini_cluster;
mod pods;
#[cfg(test)]
mod tests;

use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{Event, Pod};
use tributary::admin::FederationStatus;
use tributary::api::burst::Burst;
use tributary::api::hosted_burst::HostedBurst;
use tributary::api::minicluster::MiniCluster;
use tributary::api::peer::ClusterPeer;

use crate::cli::{Target, Why};
use crate::document;
use crate::error::Result;
use crate::explain::Explanation;
use crate::hints::Pair;
use crate::{output, paste};

/// What an answer is found in. What could not be read is empty, and named in `unseen`.
#[derive(Clone, Debug, Default)]
pub(crate) struct Found {
    /// The MiniCluster; `None`: a hosted one that is not made yet.
    pub mini_cluster: Option<MiniCluster>,
    /// The HostedBurst that it is made for.
    pub hosted: Option<HostedBurst>,
    /// The Job of its name.
    pub job: Option<Job>,
    /// What Kueue makes of it, if it waits in a queue.
    pub workload: Option<kueue::Workload>,
    /// The pods of that Job.
    pub pods: Vec<Pod>,
    /// Whether nodes of these pods only pretend to run them (kwok).
    pub simulated: bool,
    /// Warnings of the namespace.
    pub events: Vec<Event>,
    /// Its Bursts, in the order of their ranks.
    pub bursts: Vec<Burst>,
    /// ClusterPeers of the agent's namespace.
    pub peers: Vec<ClusterPeer>,
    /// What the agents say, peers' included.
    pub federation: Option<FederationStatus>,
    /// Whether an agent leads: `Err` is why none does; `None`: not known.
    pub agent: Option<std::result::Result<String, String>>,
    /// What could not be read, and why.
    pub unseen: Vec<String>,
}

impl Found {
    /// This cluster and a peer.
    fn pair<'a>(&'a self, peer: &'a str) -> Pair<'a> {
        Pair { peer, us: self.federation.as_ref().map(|all| all.cluster.as_str()) }
    }
}

/// Runs `agentctl why`.
pub(crate) async fn run(target: &Target, why: &Why) -> Result<()> {
    let looked = fetch::fetch(target, &why.name).await?;
    let explanation = explained(&looked);
    let text = document::text(why.output, &explanation, |explanation, _| text(explanation))?;
    output::print_marked(&paste::whole(&text, target))
}

fn explained(looked: &fetch::Looked) -> Explanation {
    match looked {
        fetch::Looked::MiniCluster(found) => mini_cluster::explain(found),
        fetch::Looked::Burst(found, name) => burst::explain(found, name),
        fetch::Looked::FluxJob(found, became) => flux_job::explain(found, became.as_deref().map(explained)),
        fetch::Looked::Peer(found) => cluster_peer::explain(found),
        fetch::Looked::Setup(setup) => flux_setup::explain(setup),
    }
}

/// The answer for people.
pub(crate) fn text(explanation: &Explanation) -> String {
    let Explanation { object, ready, steps, unmet, more, warnings, unseen } = explanation;
    let stands = match unmet {
        _ if *ready => "is ready",
        Some(unmet) if unmet.condition == mini_cluster::UP_TO_DATE => "runs, and is not what its spec asks for",
        _ => "is not ready",
    };
    let mut text = format!("{object} {stands}\n");
    for step in steps {
        let mark = if step.met == Some(true) { output::Mark::Good } else { output::Mark::Unknown };
        text += &format!("{} {}: {}\n", mark.text(), step.condition, step.detail);
    }
    let failing = unmet.iter().chain(more).map(|unmet| (output::Mark::Bad, unmet));
    let all: Vec<_> = failing.chain(warnings.iter().map(|warning| (output::Mark::Warning, warning))).collect();
    for (mark, unmet) in &all {
        text += &format!("{} {}: {}\n", mark.text(), unmet.condition, unmet.cause);
        if all.len() > 1 {
            text += &format!("  hint: {}\n", unmet.hint);
        }
    }
    if let [(_, unmet)] = all.as_slice() {
        text += &format!("\nhint: {}\n", unmet.hint);
    }
    for what in unseen {
        text += &format!("note: {what}\n");
    }
    text
}
