//! Bursts that bring their nodes: all of them come, some, none, or others; and agents die meanwhile.

use std::time::Duration;

use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt as _;
use serde_json::{Value, json};
use tributary::api::burst::Burst;
use tributary::api::hosted_burst::{BurstPhase, HostedBurst};
use tributary::api::minicluster::MiniCluster;
use tributary::api::names;
use tributary::api::node_group::ScaleUpPolicy;
use tributary::api::peer::ClusterPeer;

use crate::agent::Settings;
use crate::autoscaler::Autoscaler;
use crate::budgets::{pods, ready_on, status};
use crate::cluster::{USERS, is_ready};
use crate::dangers::{SHORT, hosted, in_world, secs};
use crate::world::{NAMES, World};

/// How long pods may wait for nodes.
pub const WAIT: Duration = Duration::from_secs(60);
/// The class by which cluster-autoscaler adds all nodes or none.
pub const ATOMIC: &str = "best-effort-atomic-scale-up.autoscaling.x-k8s.io";
/// How long a node takes that comes.
const TAKES: Duration = Duration::from_secs(20);

/// Clusters of this number let bursts of the first one bring nodes of 64 cores.
pub fn allow(world: &World, provider: usize, max_nodes: u32) {
    let mut peer: ClusterPeer = world.peer(provider, 0).unwrap();
    let policy = json!({"maxNodes": max_nodes, "wait": format!("{}s", WAIT.as_secs()), "nodeGroups": [
        {"name": "large", "cpu": 64, "memory": "256Gi"}]});
    peer.spec.import.as_mut().unwrap().scale_up = serde_json::from_value(policy).unwrap();
    world.clusters[provider].server.put(&peer).unwrap();
}

/// What peers of worlds by chance may bring, in the cluster of this number. A broker takes a node of its own. Every other
/// cluster asks for the nodes.
pub fn by_chance(cluster: usize) -> ScaleUpPolicy {
    let groups = json!([{"name": "large", "cpu": 64, "memory": "256Gi", "max": 2},
        {"name": "small", "cpu": 48, "memory": "64Gi", "max": 3}]);
    let mut policy = json!({"maxNodes": 4, "wait": "30s", "nodeGroups": groups});
    if cluster % 2 == 1 {
        policy["provisioningRequest"] = json!({"provisioningClassName": ATOMIC});
    }
    serde_json::from_value(policy).unwrap()
}

/// Nodes of so many cores come there, so many at most.
pub fn autoscale(world: &mut World, provider: usize, cores: u64, most: usize) {
    world.clusters[provider].autoscaler = Some(Autoscaler::new(cores, most, TAKES));
}

/// A burst of two brokers, each of which takes a node of its own that is not there.
pub fn apply(world: &mut World, name: &str, peers: &[&str]) {
    world.apply(0, name, 2, json!([large(peers)]), "NodePort");
}

fn large(peers: &[&str]) -> Value {
    json!({"size": 2, "peers": peers, "resources": {"requests": {"cpu": 40}}})
}

pub fn reasons(world: &World, root: &str) -> Vec<(String, String)> {
    let burst: Option<Burst> =
        world.clusters[0].server.get(USERS, &names::burst_object(root, &format!("{root}-burst-0")));
    let refusals = burst.and_then(|burst| burst.status).unwrap_or_default().refusals;
    refusals.into_iter().map(|one| (one.peer, one.reason)).collect()
}

pub fn is_scaling(world: &World) -> bool {
    status(world).phase == BurstPhase::ScalingUp
}

/// Nodes that are not there from the beginning.
pub fn nodes(world: &World, cluster: usize) -> usize {
    world.clusters[cluster].server.list::<Node>().len() - 2
}

#[test]
fn a_burst_is_taken_though_no_node_is_there_and_runs_when_they_have_come() {
    for network in ["NodePort", "Tunnel"] {
        in_world(2, SHORT, async move |world| {
            allow(world, 1, 2);
            autoscale(world, 1, 64, 2);
            world.apply(0, "lake", 2, json!([large(&["west"])]), network);
            world.until("it scales up", secs(20), is_scaling).await?;
            let brings = hosted(world, 1).unwrap().spec.scale_up.unwrap().nodes;
            assert_eq!((brings.len(), brings[0].count), (1, 2));
            let said = status(world).message;
            assert!(said.contains("0 of 2 pods are on nodes; those of index 0-1 wait for an autoscaler"), "{said}");
            world.until("it is ready", WAIT, |world| ready_on(world, 1)).await?;
            assert_eq!(nodes(world, 1), 2);
            let times = status(world).times.unwrap();
            assert!(times.scheduled.is_some() && times.scheduled <= times.started, "{times:?}");
            // Longer than it might wait: it has what it waited for.
            world.run(WAIT * 2).await?;
            assert!(ready_on(world, 1));
            world.delete(0, "lake");
            world.until("nothing is left", secs(120), World::nothing_left).await?;
            world.until("nor of its nodes", secs(60), |world| nodes(world, 1) == 0).await
        });
    }
}

/// The danger: half of a burst holds nodes that cost, for ever; or runs there while all of it runs elsewhere.
#[test]
fn some_nodes_are_as_good_as_none_and_it_is_placed_elsewhere() {
    // So many nodes come, of so many cores.
    for (most, cores) in [(1, 64), (0, 64), (2, 32)] {
        in_world(3, SHORT, async move |world| {
            for provider in [1, 2] {
                allow(world, provider, 2);
            }
            autoscale(world, 1, cores, most);
            autoscale(world, 2, 64, 2);
            apply(world, "lake", &["west", "north"]);
            world.until("it scales up", secs(20), is_scaling).await?;
            let begun = world.now();
            assert_eq!(status(world).peer.as_deref(), Some("west"));
            // Where no pod has started, nothing has to drain.
            let leaves = |world: &World| {
                status(world).phase == BurstPhase::Draining || status(world).peer.as_deref() != Some("west")
            };
            world.until("it is given back", WAIT + secs(5), leaves).await?;
            let lasted = world.now().saturating_since(begun);
            assert!(lasted >= WAIT - secs(5), "after {lasted:?}");
            let elsewhere = |world: &World| status(world).peer.as_deref() == Some("north");
            while !elsewhere(world) {
                assert_eq!(pods(world, 2), 0, "{}", world.summary());
                world.step().await?;
            }
            assert_eq!((pods(world, 1), hosted(world, 1)), (0, None), "nothing of it is left by then");
            assert_eq!(reasons(world, "lake"), [("west".into(), "ScaleUpTimedOut".into())]);
            world.until("it is ready there", WAIT, |world| ready_on(world, 2)).await?;
            world.run(WAIT * 2).await?;
            assert!(ready_on(world, 2) && pods(world, 1) == 0, "{}", world.summary());
            world.until("nor does a node", secs(60), |world| nodes(world, 1) == 0).await
        });
    }
}

/// The danger: whoever restarts in time never gives it back, or gives it back twice.
#[test]
fn agents_die_while_it_waits() {
    for victim in [0, 1] {
        in_world(3, SHORT, async move |world| {
            allow(world, 1, 2);
            allow(world, 2, 2);
            autoscale(world, 1, 64, 1);
            autoscale(world, 2, 64, 2);
            apply(world, "lake", &["west", "north"]);
            world.until("it scales up", secs(20), is_scaling).await?;
            let begun = world.now();
            for _ in 0..4 {
                world.run(secs(12)).await?;
                world.kill(victim, 0);
                world.start(victim, 0);
            }
            world
                .until("it is placed elsewhere", secs(60), |world| status(world).peer.as_deref() == Some("north"))
                .await?;
            assert!(world.now().saturating_since(begun) < WAIT + secs(30));
            // While it leaves, and where it goes.
            world.kill(victim, 0);
            world.start(victim, 0);
            world.until("it is ready there", WAIT, |world| ready_on(world, 2)).await?;
            assert_eq!(pods(world, 1), 0, "{}", world.summary());
            Ok(())
        });
    }
}

/// The danger: an agent dies when nothing is left of a burst that it gives back, and before its root hears why. The next one says
/// that the owner threw it out, and it is offered there no more.
#[test]
fn an_agent_dies_when_it_has_given_a_burst_back() {
    in_world(2, SHORT, async |world| {
        allow(world, 1, 2);
        autoscale(world, 1, 64, 0);
        apply(world, "lake", &["west"]);
        world.until("it scales up", secs(20), is_scaling).await?;
        let end = world.agents[1][0].as_ref().unwrap().end();
        world.clusters[1].server.on_request(move |info| {
            if info.verb == "delete" && info.resource == "hostedbursts" {
                end();
            }
            None
        });
        let dies = |world: &World| world.agents[1][0].as_ref().unwrap().is_dead();
        world.until("the agent dies", WAIT * 2, dies).await?;
        assert_eq!(hosted(world, 1), None);
        world.kill(1, 0);
        world.clusters[1].server.on_request(|_| None);
        autoscale(world, 1, 64, 2);
        world.start(1, 0);
        world.until("it is ready there", WAIT * 3, |world| ready_on(world, 1)).await
    });
}

#[test]
fn what_fits_on_no_node_that_could_come_is_refused_at_once() {
    in_world(2, SHORT, async |world| {
        allow(world, 1, 1);
        autoscale(world, 1, 64, 2);
        apply(world, "lake", &["west"]);
        let refused = |reason: &str| {
            let expected = vec![("west".to_owned(), reason.to_owned())];
            move |world: &World| reasons(world, "lake") == expected
        };
        world.until("two nodes are too many", secs(20), refused("TooManyNodes")).await?;
        world.delete(0, "lake");
        world.until("it is gone", secs(60), World::nothing_left).await?;
        let mut clusters = large(&["west"]);
        clusters["resources"]["requests"]["cpu"] = json!(65);
        world.apply(0, "lake", 2, json!([clusters]), "NodePort");
        world.until("no node is as large", secs(20), refused("NotEnoughCores")).await?;
        assert_eq!((hosted(world, 1), world.clusters[1].autoscaler.as_ref().unwrap().had), (None, 0));
        // The owner of the cluster allows more.
        world.delete(0, "lake");
        world.until("it is gone", secs(60), World::nothing_left).await?;
        apply(world, "lake", &["west"]);
        world.until("two nodes are too many", secs(20), refused("TooManyNodes")).await?;
        allow(world, 1, 2);
        world.until("it is ready", WAIT, |world| ready_on(world, 1)).await
    });
}

#[test]
fn who_has_nobody_else_is_taken_again_after_a_while() {
    in_world(2, SHORT, async |world| {
        allow(world, 1, 2);
        autoscale(world, 1, 64, 0);
        apply(world, "lake", &["west"]);
        let refused = |world: &World| status(world).phase == BurstPhase::Rejected;
        world.until("it is given back", WAIT * 2, refused).await?;
        let said = status(world).message;
        assert!(said.contains("refused (ScaleUpTimedOut): not all of its pods got nodes in time"), "{said}");
        // There would be nodes by now.
        autoscale(world, 1, 64, 2);
        let begun = world.now();
        while world.now().saturating_since(begun) < WAIT - secs(5) {
            assert!(refused(world) && hosted(world, 1).is_none(), "{}", world.summary());
            world.step().await?;
        }
        world.until("it is tried again", secs(15), is_scaling).await?;
        world.until("it is ready", WAIT, |world| ready_on(world, 1)).await?;
        assert_eq!(reasons(world, "lake"), []);
        Ok(())
    });
}

/// The danger: two bursts are promised the same node, or a peer brings as many as it likes.
#[test]
fn all_bursts_of_a_peer_bring_no_more_than_it_may() {
    in_world(2, Settings { times: (40, 2, 20), ..SHORT }, async |world| {
        allow(world, 1, 3);
        autoscale(world, 1, 64, 9);
        for name in ["lake", "pond"] {
            apply(world, name, &["west"]);
        }
        let ready = |name: &'static str| move |world: &World| world.bursts_ready(0, name);
        let one = |world: &World| ready("lake")(world) || ready("pond")(world);
        world.until("one of them is ready", WAIT, one).await?;
        world.run(WAIT * 2).await?;
        let (first, second) = if ready("lake")(world) { ("lake", "pond") } else { ("pond", "lake") };
        assert!(!ready(second)(world));
        assert_eq!(reasons(world, second), [("west".into(), "TooManyNodes".into())]);
        assert_eq!(world.clusters[1].server.list::<HostedBurst>().len(), 1);
        assert_eq!(world.clusters[1].autoscaler.as_ref().unwrap().had, 2);
        world.delete(0, first);
        world.until("the other one is taken", WAIT * 2, ready(second)).await?;
        assert!(world.clusters[1].autoscaler.as_ref().unwrap().had <= 3);
        Ok(())
    });
}

/// The danger: a burst that runs is thrown out, because nodes for more of it do not come.
#[test]
fn a_burst_that_has_had_its_nodes_stays_when_no_more_come() {
    in_world(2, SHORT, async |world| {
        allow(world, 1, 2);
        autoscale(world, 1, 64, 1);
        let mut burst = large(&["west"]);
        (burst["size"], burst["maxSize"]) = (json!(1), json!(2));
        world.apply(0, "lake", 2, json!([burst]), "NodePort");
        world.until("it is ready", WAIT, |world| ready_on(world, 1)).await?;
        let before = hosted(world, 1).unwrap().uid();
        burst["size"] = json!(2);
        let spec = json!({"spec": {"flux": {"bursting": {"clusters": [burst]}}}});
        world.clusters[0].server.patch::<MiniCluster>(USERS, "lake", spec).unwrap();
        world.run(WAIT * 3).await?;
        assert_eq!(hosted(world, 1).unwrap().uid(), before);
        assert_eq!(world.clusters[1].pods().iter().filter(|pod| is_ready(pod)).count(), 1);
        world.clusters[1].autoscaler.as_mut().unwrap().change((64, 2, TAKES));
        world.until("all of it is ready", WAIT, |world| ready_on(world, 1)).await?;
        assert_eq!((hosted(world, 1).unwrap().uid(), nodes(world, 1)), (before, 2));
        Ok(())
    });
}

#[test]
fn it_ends_at_once_when_it_is_not_wanted_any_more_or_its_root_is_lost() {
    in_world(2, SHORT, async |world| {
        allow(world, 1, 2);
        autoscale(world, 1, 64, 0);
        apply(world, "lake", &["west"]);
        world.until("it scales up", secs(20), is_scaling).await?;
        world.delete(0, "lake");
        world.until("nothing is left", secs(30), World::nothing_left).await?;
        apply(world, "lake", &["west"]);
        world.until("it scales up", secs(20), is_scaling).await?;
        world.cut(0, 1, true);
        world.until("its lease ends", WAIT, |world| hosted(world, 1).is_none()).await?;
        let status = status(world);
        assert_eq!(
            (status.peer.as_deref(), status.phase),
            (Some(NAMES[1]), BurstPhase::Lost),
            "the slot is still its own"
        );
        autoscale(world, 1, 64, 2);
        world.heal(0, 1);
        world.until("it is back", WAIT * 2, |world| ready_on(world, 1)).await?;
        assert!(world.clusters[1].pods().iter().all(is_ready));
        Ok(())
    });
}
