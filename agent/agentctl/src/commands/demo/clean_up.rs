//! Takes a demo out of clusters that stay.

use std::time::Duration;

use futures::future::try_join_all;
use k8s_openapi::api::coordination::v1::Lease;
use kube::api::{Api, DeleteParams, ListParams};
use kube::{Client, ResourceExt};
use tributary::api::burst::Burst;
use tributary::api::hosted_burst::HostedBurst;
use tributary::api::minicluster::MiniCluster;
use tributary::api::peer::ClusterPeer;
use tributary_sandbox::Group;

use super::clusters::{Clusters, DemoCluster};
use super::ground::{self, MARK, marked};
use super::progress::Progress;
use super::root::{NAME, NAMESPACE};
use crate::connect::LEASE;
use crate::error::{Failure, Result, failed};

/// How long peers get to drain and delete the bursts.
const RELEASED_WITHIN: Duration = Duration::from_secs(120);
const POLL: Duration = Duration::from_millis(500);

/// Deletes the root, waits until no peer hosts anything for it, and removes what else the demo made. Ends the agents.
pub(super) async fn clean_up(
    clusters: &Clusters,
    agents: Option<Group>,
    agent_namespace: &str,
    progress: &Progress,
) -> Result<()> {
    let step = progress.step("clean-up", "removing what the demo made");
    let failed = failed("failed to clean up", HINT);
    // Before there are agents, there is nothing that they work on.
    if let Some(agents) = agents {
        step.say("deleting the root MiniCluster");
        let released = tokio::time::timeout(RELEASED_WITHIN, async {
            delete_root(&clusters.root().client).await?;
            step.say("waiting until no peer hosts anything for it");
            wait_until_released(clusters).await
        })
        .await;
        released.map_err(|_| Failure::new("failed to clean up in time").hint(HINT))?.map_err(&failed)?;

        step.say("removing ClusterPeers, agents and namespaces");
        try_join_all(clusters.all.iter().map(|cluster| delete_peers(cluster, agent_namespace)))
            .await
            .map_err(&failed)?;
        // Agents hand back their Leases; they must be gone before their namespace is. The wait blocks this thread.
        tokio::task::block_in_place(|| drop(agents));
        let leases = clusters.all.iter().map(|cluster| delete_lease(&cluster.client, agent_namespace));
        try_join_all(leases).await.map_err(&failed)?;
    }
    let restored = clusters.all.iter().map(|cluster| ground::restore(&cluster.client, agent_namespace));
    try_join_all(restored).await.map_err(&failed)?;
    step.done("nothing of the demo is left");
    Ok(())
}

/// Deletes the root that an earlier demo, killed, may have left behind. Anybody else's is an error.
pub(super) async fn delete_leftover(client: &Client) -> Result<()> {
    let what = || Failure::new(format!("failed to make the MiniCluster {NAMESPACE}/{NAME}"));
    let found = Api::<MiniCluster>::namespaced(client.clone(), NAMESPACE).get_opt(NAME).await;
    match found.map_err(|error| what().because(error))? {
        None => Ok(()),
        Some(root) if marked(&root) => {
            delete_root(client).await.map_err(|error| what().because(error))?;
            wait_until_no_root(client).await.map_err(|error| what().because(error))
        }
        Some(_) => Err(what().because("it exists already, and not from a demo").hint("rename or delete it")),
    }
}

pub(super) const HINT: &str =
    "what is left bears the label tributary.dev/demo: delete it with kubectl, the root MiniCluster first";

async fn delete_root(client: &Client) -> kube::Result<()> {
    let roots = Api::<MiniCluster>::namespaced(client.clone(), NAMESPACE);
    match roots.get_opt(NAME).await? {
        Some(root) if marked(&root) => roots.delete(NAME, &DeleteParams::foreground()).await.map(drop),
        _ => Ok(()),
    }
}

async fn wait_until_no_root(client: &Client) -> kube::Result<()> {
    let roots = Api::<MiniCluster>::namespaced(client.clone(), NAMESPACE);
    while roots.get_opt(NAME).await?.is_some() {
        tokio::time::sleep(POLL).await;
    }
    Ok(())
}

async fn wait_until_released(clusters: &Clusters) -> kube::Result<()> {
    let bursts = Api::<Burst>::namespaced(clusters.root().client.clone(), NAMESPACE);
    let of_root = |burst: &Burst| burst.spec.root == NAME;
    loop {
        let mut left = bursts.list(&ListParams::default()).await?.items.iter().filter(|burst| of_root(burst)).count();
        for peer in clusters.peers() {
            let hosted = Api::<HostedBurst>::namespaced(peer.client.clone(), NAMESPACE);
            let of_root = |hosted: &HostedBurst| {
                hosted.spec.root.name == NAME && hosted.spec.root_cluster_uid == clusters.root().uid
            };
            left += hosted.list(&ListParams::default()).await?.items.iter().filter(|hosted| of_root(hosted)).count();
        }
        if left == 0 {
            return Ok(());
        }
        tokio::time::sleep(POLL).await;
    }
}

async fn delete_peers(cluster: &DemoCluster, agent_namespace: &str) -> kube::Result<()> {
    let peers = Api::<ClusterPeer>::namespaced(cluster.client.clone(), agent_namespace);
    for peer in peers.list(&ListParams::default().labels(MARK)).await? {
        let _ = peers.delete(&peer.name_any(), &DeleteParams::default()).await?;
    }
    Ok(())
}

/// The Lease that our agents left: none was held when they started.
async fn delete_lease(client: &Client, agent_namespace: &str) -> kube::Result<()> {
    match Api::<Lease>::namespaced(client.clone(), agent_namespace).delete(LEASE, &DeleteParams::default()).await {
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
        deleted => deleted.map(drop),
    }
}
