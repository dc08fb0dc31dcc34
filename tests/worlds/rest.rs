//! Whether a world has come to rest: what users asked for is so.

use k8s_openapi::api::batch::v1::Job;
use kube::ResourceExt as _;
use tributary::api::burst::Burst;
use tributary::api::hosted_burst::{BurstPhase, HostedBurst};
use tributary::api::minicluster::{MiniCluster, Phase};

use crate::cluster::{Cluster, USERS};
use crate::invariants::FOREIGN;
use crate::scale_up::by_chance;
use crate::world::World;

/// The MiniClusters of users.
pub fn roots(world: &World, cluster: usize) -> Vec<String> {
    let all = world.clusters[cluster].server.list::<MiniCluster>();
    all.iter().filter(|object| object.owner_references().is_empty()).map(|object| object.name_any()).collect()
}

/// Whether no peer of a root may bring the nodes that a burst needs, beside those that it brought for its other bursts.
fn nobody_brings_nodes_for(world: &World, root: &str, burst: &Burst) -> bool {
    let brings = |cluster: &Cluster| {
        let hosted = cluster.hosted();
        let ours = hosted.iter().filter(|hosted| hosted.spec.peer == root);
        let nodes = ours.flat_map(|hosted| hosted.spec.scale_up.iter().flat_map(|scale_up| &scale_up.nodes));
        nodes.map(|new| new.count).sum::<u32>() + burst.spec.max_size <= by_chance(0).max_nodes
    };
    let large = burst.spec.cores > 16;
    let may = |cluster: &&Cluster| burst.spec.peers.is_empty() || burst.spec.peers.contains(&cluster.name);
    large && !world.clusters.iter().filter(|cluster| cluster.name != root).filter(may).any(brings)
}

/// What is not as it should be, once nothing goes wrong any more.
pub fn troubles(world: &World, evicted: &[String]) -> Vec<String> {
    let mut troubles = Vec::new();
    for (number, cluster) in world.clusters.iter().enumerate() {
        for root in roots(world, number).into_iter().filter(|root| root != FOREIGN) {
            let Some(object) = cluster.server.get::<MiniCluster>(USERS, &root) else { continue };
            let job = cluster.server.get::<Job>(USERS, &root);
            let ended = matches!(object.status.as_ref().and_then(|status| status.phase), Some(Phase::Succeeded));
            let over = ended || job.as_ref().and_then(|job| job.status.as_ref()?.completion_time.as_ref()).is_some();
            if over || object.spec.suspend {
                let of_root = |hosted: &HostedBurst| Some(&hosted.spec.root.uid) == object.metadata.uid.as_ref();
                for other in &world.clusters {
                    let left = other.server.list::<HostedBurst>().into_iter().filter(of_root);
                    troubles.extend(left.map(|left| format!("{} still has {}", other.name, left.name_any())));
                }
                continue;
            }
            let status = object.status.clone().unwrap_or_default();
            // An instance has room for as many as it was started with.
            let wanted = object.spec.size.map(|size| size.min(status.maximum_size));
            if status.ready != wanted {
                troubles.push(format!("{}/{root} has {:?} ready of {:?}", cluster.name, status.ready, wanted));
            }
            let bursts = cluster.server.list::<Burst>();
            let own: Vec<&Burst> =
                bursts.iter().filter(|burst| burst.owner_references().iter().any(|o| o.name == root)).collect();
            if own.is_empty() {
                troubles.push(format!("{}/{root} has no bursts", cluster.name));
            }
            let limited = world.sites[number].settings.limits.is_some();
            for burst in own.into_iter().filter(|_| !limited && !evicted.contains(&root)) {
                let status = burst.status.clone().unwrap_or_default();
                // Roots of two clusters have one name; and all nodes that a peer may bring can be brought.
                let taken = status.refusals.iter().any(|refusal| refusal.reason == "NameTaken");
                let taken = taken || status.peer.is_none() && nobody_brings_nodes_for(world, &cluster.name, burst);
                let phase = status.phase;
                if phase != BurstPhase::Ready && !taken {
                    troubles.push(format!("{}/{} is {phase}", cluster.name, burst.name_any()));
                }
            }
        }
    }
    troubles
}
