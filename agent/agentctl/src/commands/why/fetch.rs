//! Reads what an answer is found in. What may not be read leaves a note, not an error: users of a namespace seldom see the
//! agent's.

use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{Event, Pod};
use kube::api::{Api, ListParams};
use kube::{Client, ResourceExt};
use tributary::admin::{self, FederationStatus};
use tributary::api::burst::Burst;
use tributary::api::flux_job::FluxJob;
use tributary::api::flux_setup::FluxSetup;
use tributary::api::hosted_burst::HostedBurst;
use tributary::api::labels::kubernetes::JOB_NAME;
use tributary::api::names;
use tributary::api::peer::ClusterPeer;
use tributary::bursting::watch::WatchedNode;
use tributary::clock::{Clock, SystemClock};

use super::find::{self, Kind, Match};
use super::{Found, cluster_peer, flux_job, kueue};
use crate::cli::Target;
use crate::connect::{self, Agent};
use crate::error::{Failure, Result, failed};
use crate::kubernetes::{self, get, list};

/// What a name stands for.
pub(super) enum Looked {
    /// A MiniCluster, or a HostedBurst whose MiniCluster is to be made.
    MiniCluster(Box<Found>),
    /// A burst of one of this cluster's MiniClusters: name of its slot.
    Burst(Box<Found>, String),
    /// A FluxJob, and its MiniCluster or Burst once it has one.
    FluxJob(Box<flux_job::Found>, Option<Box<Looked>>),
    /// A ClusterPeer.
    Peer(Box<cluster_peer::Found>),
    /// A FluxSetup.
    Setup(Box<FluxSetup>),
}

/// Finds what the user means, and reads what is known of it.
pub(super) async fn fetch(target: &Target, text: &str) -> Result<Looked> {
    let client = kubernetes::client(target).await?;
    kubernetes::answers(&client).await?;
    let found = find::find(target, &client, text).await?;
    let gone = || Failure::new(format!("{} was deleted a moment ago", found.name)).hint("look again");
    look_at(target, &client, &found).await?.ok_or_else(gone)
}

/// Reads what is known of an object; `None`: it is not there.
async fn look_at(
    target: &Target,
    client: &Client,
    Match { kind, namespace, name, .. }: &Match,
) -> Result<Option<Looked>> {
    let mut found = Found::default();
    let mut burst = None;
    match kind {
        Kind::FluxJob => return look_at_job(target, client, namespace, name).await,
        Kind::ClusterPeer => {
            let Some(peer) = get(client, namespace, name).await? else { return Ok(None) };
            let mut unseen = Vec::new();
            // Agents have their peers where they have their Lease.
            let agent = connect::leader(client, namespace, SystemClock::start().wall()).await;
            let agent = seen(&mut unseen, "the agents' Lease", agent);
            return Ok(Some(Looked::Peer(Box::new(cluster_peer::Found { peer, agent, unseen }))));
        }
        Kind::FluxSetup => {
            let setup = get(client, namespace, name).await?;
            return Ok(setup.map(|setup| Looked::Setup(Box::new(setup))));
        }
        Kind::MiniCluster | Kind::HostedBurst => {
            found.mini_cluster = get(client, namespace, name).await?;
            // A hosted burst has the name of the MiniCluster that is made for it.
            let hosted = get::<HostedBurst>(client, namespace, name).await;
            found.hosted = seen(&mut found.unseen, "the HostedBurst", hosted).flatten();
            if let Some(mini_cluster) = &found.mini_cluster {
                found.hosted = found.hosted.filter(|hosted| {
                    mini_cluster.owner_references().iter().any(|owner| Some(&owner.uid) == hosted.uid().as_ref())
                });
            }
            if found.mini_cluster.is_none() && found.hosted.is_none() {
                return Ok(None);
            }
        }
        Kind::Burst => {
            let Some(object) = get::<Burst>(client, namespace, name).await? else { return Ok(None) };
            // The root of a FluxJob that was sent is no MiniCluster.
            if !object.spec.whole {
                found.mini_cluster = get(client, namespace, &object.spec.root).await?;
            }
            found.bursts = vec![object.clone()];
            burst = Some(object);
        }
    }
    fill(target, client, namespace, &mut found).await;
    Ok(Some(match burst {
        Some(burst) => {
            let name = burst.name_any();
            if found.bursts.iter().all(|known| known.name_any() != name) {
                found.bursts.push(burst);
            }
            Looked::Burst(Box::new(found), name)
        }
        None => Looked::MiniCluster(Box::new(found)),
    }))
}

/// A FluxJob, and what it became.
async fn look_at_job(target: &Target, client: &Client, namespace: &str, name: &str) -> Result<Option<Looked>> {
    let Some(job) = get::<FluxJob>(client, namespace, name).await? else { return Ok(None) };
    let setups = list::<FluxSetup>(client, Some(namespace), &ListParams::default()).await;
    // Who may not read them is not told that there are none.
    let queue = setups.map_or(true, |setups| !setups.is_empty());
    let mut found = flux_job::Found { job, queue, events: Vec::new(), unseen: Vec::new() };
    if !flux_job::goes_on(&found.job) {
        return Ok(Some(Looked::FluxJob(Box::new(found), None)));
    }
    let status = found.job.status.clone().unwrap_or_default();
    let became = match (&status.sent, &status.mini_cluster) {
        (Some(_), _) => Some(("its Burst", Match::new(Kind::Burst, namespace, names::sent_burst(name)))),
        (None, Some(made)) => Some(("its MiniCluster", Match::new(Kind::MiniCluster, namespace, made))),
        (None, None) => None,
    };
    let became = match became {
        Some((what, became)) => {
            let read = Box::pin(look_at(target, client, &became)).await;
            seen(&mut found.unseen, what, read).flatten().map(Box::new)
        }
        None => None,
    };
    if became.is_none() {
        let about = ListParams::default().fields(&format!("type=Warning,involvedObject.name={name}"));
        let events = list::<Event>(client, Some(namespace), &about).await;
        found.events = seen(&mut found.unseen, "the events", events).unwrap_or_default();
    }
    Ok(Some(Looked::FluxJob(Box::new(found), became)))
}

/// Everything that is known of the MiniCluster.
async fn fill(target: &Target, client: &Client, namespace: &str, found: &mut Found) {
    let root = root(found);
    let declares = found.mini_cluster.as_ref().is_some_and(|root| !root.spec.flux.bursting.clusters.is_empty());
    let has_bursts = declares || !found.bursts.is_empty();
    let pods = ListParams::default().labels(&format!("{JOB_NAME}={root}"));
    let warnings = ListParams::default().fields("type=Warning");
    let agents = &target.agent_namespace;
    let everything = ListParams::default();
    let (job, pods, events, bursts, peers, agent, federation) = tokio::join!(
        get::<Job>(client, namespace, &root),
        list::<Pod>(client, Some(namespace), &pods),
        list::<Event>(client, Some(namespace), &warnings),
        list::<Burst>(client, Some(namespace), &everything),
        list::<ClusterPeer>(client, Some(agents), &everything),
        connect::leader(client, agents, SystemClock::start().wall()),
        federation(target, has_bursts),
    );
    let unseen = &mut found.unseen;
    found.job = seen(unseen, "the Job", job).flatten();
    if let Some(uid) = kueue::waiting(found.mini_cluster.as_ref(), found.job.as_ref()) {
        let workload = kueue::workload(client, namespace, &uid).await.map_err(failed(
            format!("failed to read Workloads in {namespace}"),
            "may you read them? `kubectl auth can-i list workloads.kueue.x-k8s.io`",
        ));
        found.workload = seen(unseen, "the Workload of Kueue", workload).flatten();
    }
    found.pods = seen(unseen, "the pods", pods).unwrap_or_default();
    found.events = seen(unseen, "the events", events).unwrap_or_default();
    let mut bursts = seen(unseen, "the Bursts", bursts).unwrap_or_default();
    bursts.retain(|burst| burst.spec.root == root);
    bursts.sort_by_key(|burst| burst.spec.index);
    found.bursts = bursts;
    found.peers = if has_bursts { seen(unseen, "the ClusterPeers", peers).unwrap_or_default() } else { Vec::new() };
    found.agent = seen(unseen, "the agents' Lease", agent);
    found.federation = federation.and_then(|read| seen(unseen, "the agent's admin API", read));
    found.simulated = simulated(client, &found.pods).await;
}

/// Name of the MiniCluster, also where there is none: a hosted burst has it before its MiniCluster is made, and a FluxJob that was
/// sent makes none here.
fn root(found: &Found) -> String {
    let of_hosted = || found.hosted.as_ref().map(ResourceExt::name_any);
    let of_burst = || found.bursts.first().map(|burst| burst.spec.root.clone());
    let own = found.mini_cluster.as_ref().map(ResourceExt::name_any);
    own.or_else(of_hosted).or_else(of_burst).unwrap_or_default()
}

/// What the agents say; not asked where there are no bursts.
async fn federation(target: &Target, wanted: bool) -> Option<Result<FederationStatus>> {
    if !wanted {
        return None;
    }
    let read = async { Agent::find(target).await?.read(admin::STATUS).await };
    Some(read.await)
}

/// Whether the first pod's node only pretends. Who may not read nodes is told of real ones.
async fn simulated(client: &Client, pods: &[Pod]) -> bool {
    let Some(name) = pods.iter().find_map(|pod| pod.spec.as_ref()?.node_name.clone()) else { return false };
    let node = Api::<WatchedNode>::all(client.clone()).get_opt(&name).await.ok().flatten();
    node.is_some_and(|node| node.view.simulated)
}

/// Keeps what was read, or notes why it was not.
fn seen<T>(unseen: &mut Vec<String>, what: &str, read: Result<T>) -> Option<T> {
    read.map_err(|failure| unseen.push(format!("{what} could not be read: {}", failure.line()))).ok()
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;
    use tokio::time::Instant;

    use super::*;
    use crate::endpoint::tests::target;
    use crate::kubernetes::SILENCE_LIMIT;

    /// The danger: packets are dropped, and a dozen questions are waited for, one after the other.
    #[tokio::test(start_paused = true)]
    async fn an_api_server_that_does_not_answer_is_asked_once() {
        let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let directory = tempfile::tempdir().unwrap();
        let target = target(directory.path(), &[("west", &silent.local_addr().unwrap().to_string())]);
        let began = Instant::now();
        let told = fetch(&target, "lake").await.map(drop).unwrap_err().line();
        assert!(told.starts_with("the API server does not answer") && began.elapsed() < 2 * SILENCE_LIMIT, "{told}");
    }

    /// The danger: "the Job could not be read" of a FluxJob that runs elsewhere, since an object without a name was asked for.
    #[test]
    fn a_burst_without_a_mini_cluster_has_the_name_of_its_root() {
        let spec = tributary::api::burst::BurstSpec { root: "one".into(), whole: true, ..Default::default() };
        let sent = Found { bursts: vec![Burst::new("one.sent.fluxjob", spec)], ..Found::default() };
        assert_eq!(root(&sent), "one");
    }
}
