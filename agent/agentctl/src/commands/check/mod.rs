//! `agentctl check`: every prerequisite, and whether it is met.
//!
//! | file | what it does | talks to the API server |
//! |---|---|---|
//! | `fetch` | reads what is judged | yes |
//! | [`evaluate`] | what was found → findings: API server, definitions, agent, rights | no |
//! | [`webhook`] | the same: who converts MiniClusters | no |
//! | [`federation`] | the same: identity, entrance, peers, policy, bursts, hosted bursts | no |
//! | [`report`] | the document, and its text for people | no |

pub(crate) mod evaluate;
pub(crate) mod federation;
mod fetch;
pub(crate) mod report;
mod rights;
#[cfg(test)]
mod tests;
mod webhook;

use std::collections::BTreeSet;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Pod, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::ResourceExt;
use tributary::admin::FederationStatus;
use tributary::api::burst::Burst;
use tributary::api::cluster_card::ClusterCard;
use tributary::api::hosted_burst::HostedBurst;
use tributary::api::minicluster::MiniCluster;
use tributary::api::peer::ClusterPeer;

use self::report::Report;
use self::rights::Right;
pub(in crate::commands) use self::rights::Scope;
use crate::cli::{self, Target};
use crate::document;
use crate::error::{Failure, Result};
use crate::{kubernetes, output, paste};

/// How often it is looked again with `--wait`.
const INTERVAL: Duration = Duration::from_secs(2);

/// What could not be read: why.
type Seen<T> = std::result::Result<T, String>;

/// All that is judged.
#[derive(Clone, Debug)]
pub(crate) struct Found {
    /// This machine's clock.
    pub now: Timestamp,
    /// Namespace of the agent.
    pub namespace: String,
    /// Version of the API server: major and minor, and as it says it.
    pub kubernetes: (u32, u32, String),
    /// The API server's clock.
    pub server_time: Option<Timestamp>,
    /// All definitions of our groups.
    pub definitions: Seen<Vec<CustomResourceDefinition>>,
    /// Who holds the Flux Operator's Lease, as `namespace/holder`.
    pub operator: Seen<Option<String>>,
    pub agents: Seen<Vec<Pod>>,
    /// Who leads, or why nobody does.
    pub leader: Seen<std::result::Result<String, String>>,
    /// What the leader says of itself and of its peers.
    pub federation: Seen<FederationStatus>,
    /// Where the agents work, and what they do besides.
    pub scope: Seen<Scope>,
    /// What the agents may do, of what they need; none: no pod is theirs.
    pub rights: Seen<Vec<(Right, bool)>>,
    /// What the cluster says of itself; `None`: nothing.
    pub card: Seen<Option<ClusterCard>>,
    /// Services of the agent's namespace.
    pub services: Seen<Vec<Service>>,
    /// Their EndpointSlices.
    pub slices: Seen<Vec<EndpointSlice>>,
    /// ClusterPeers.
    pub peers: Seen<Vec<ClusterPeer>>,
    /// Namespaces and names of ClusterPeers that no agent reads; none for who may not look everywhere.
    pub unread_peers: Vec<(String, String)>,
    /// Names of all namespaces.
    pub namespaces: Seen<BTreeSet<String>>,
    /// MiniClusters that declare bursts.
    pub roots: Seen<Vec<MiniCluster>>,
    pub bursts: Seen<Vec<Burst>>,
    /// Bursts of other clusters that are hosted here.
    pub hosted: Seen<Vec<HostedBurst>>,
}

impl Found {
    /// Without what other agents work on, where these work in some namespaces only: it has peers of its own.
    fn of_these_agents(mut self) -> Self {
        let watched = self.scope.as_ref().map(|scope| scope.namespaces.as_slice()).unwrap_or_default();
        if !watched.is_empty() {
            keep(&mut self.roots, watched);
            keep(&mut self.bursts, watched);
            keep(&mut self.hosted, watched);
        }
        self
    }
}

fn keep<K: ResourceExt>(objects: &mut Seen<Vec<K>>, namespaces: &[String]) {
    if let Ok(objects) = objects {
        objects.retain(|object| object.namespace().is_some_and(|namespace| namespaces.contains(&namespace)));
    }
}

/// Runs `agentctl check`.
pub(crate) async fn run(target: &Target, check: &cli::Check) -> Result<()> {
    let looking = tokio::time::timeout(check.wait, settled(target));
    let report = match looking.await {
        Ok(report) => report?,
        // Also without --wait there is one look.
        Err(_) => look(target).await?,
    };
    let text = document::text(check.output, &report, |report, _| report::text(report))?;
    output::print_marked(&paste::whole(&text, target))?;
    if report.ok {
        return Ok(());
    }
    Err(Failure::new("a prerequisite is not met")
        .hint("the lines with ✗ above say what to do; --wait waits until all is well"))
}

/// Looks once.
pub(in crate::commands) async fn look(target: &Target) -> Result<Report> {
    let client = kubernetes::client(target).await?;
    Ok(match fetch::fetch(&client, target).await {
        Ok(found) => evaluate::report(&found),
        Err(why) => evaluate::unreachable(&why),
    })
}

/// Looks until nothing fails.
async fn settled(target: &Target) -> Result<Report> {
    loop {
        let report = look(target).await?;
        if report.ok {
            return Ok(report);
        }
        tokio::time::sleep(INTERVAL).await;
    }
}
