//! Room that others take after a burst was admitted there.

use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt as _;
use kube::api::DeleteParams;
use serde_json::json;
use tributary::api::hosted_burst::BurstPhase;

use crate::budgets::{pods, ready_on, status};
use crate::cluster::{USERS, index_of, lives};
use crate::dangers::{SHORT, hosted, in_world, secs};
use crate::scale_up::reasons;
use crate::world::World;

/// How long a burst may be without a pod on a node.
const WAIT: Duration = Duration::from_secs(600);

fn apply(world: &mut World, peers: &[&str]) {
    world.apply(0, "lake", 2, json!([{"size": 2, "peers": peers}]), "NodePort");
}

/// Pods of a higher priority take the places of brokers on west: of those of these indexes.
fn preempt(world: &mut World, indexes: &[i32]) {
    world.clusters[1].crowded = true;
    let pods = world.clusters[1].pods();
    for pod in pods.iter().filter(|pod| lives(pod) && index_of(pod).is_some_and(|index| indexes.contains(&index))) {
        let at_once = DeleteParams::default();
        world.clusters[1].server.delete::<Pod>(USERS, &pod.name_any(), &at_once).unwrap();
    }
}

/// The danger: the burst stays for ever where none of its pods has a place, and its root waits for brokers that never come.
#[test]
fn a_burst_without_a_node_is_placed_elsewhere_and_nothing_of_it_is_left() {
    for (ran, victim) in [(false, None), (true, None), (true, Some(0))] {
        in_world(3, SHORT, async move |world| {
            if !ran {
                world.clusters[1].crowded = true;
            }
            apply(world, &["west", "north"]);
            if ran {
                world.until("it is ready", secs(60), |world| ready_on(world, 1)).await?;
                preempt(world, &[0, 1]);
            }
            let told = |world: &World| status(world).message.contains("the scheduler finds no node for 2 of 2 pods");
            world.until("its root is told", secs(60), told).await?;
            assert!(status(world).message.contains("it is given back"), "{}", status(world).message);
            let begun = world.now();
            if let Some(victim) = victim {
                world.run(WAIT / 2).await?;
                world.kill(victim, 0);
                world.start(victim, 0);
            }
            let leaves = |world: &World| status(world).phase == BurstPhase::Draining;
            world.until("it is given back", WAIT + secs(10), leaves).await?;
            let lasted = world.now().saturating_since(begun);
            assert!(lasted >= WAIT - secs(30), "after {lasted:?}");
            world.until("it is ready elsewhere", secs(120), |world| ready_on(world, 2)).await?;
            assert_eq!((pods(world, 1), hosted(world, 1)), (0, None), "nothing of it is left");
            assert_eq!(reasons(world, "lake"), [("west".into(), "PodsNotScheduled".into())]);
            Ok(())
        });
    }
}

/// The danger: brokers that run jobs are ended, since others of their burst have lost their places.
#[test]
fn a_broker_that_runs_keeps_its_burst_where_it_is() {
    in_world(3, SHORT, async |world| {
        apply(world, &["west", "north"]);
        world.until("it is ready", secs(60), |world| ready_on(world, 1)).await?;
        // Not that of its gateway, for which the other would make room.
        preempt(world, &[1]);
        let told = |world: &World| status(world).message.contains("the scheduler finds no node for 1 of 2 pods");
        world.until("its root is told", secs(60), told).await?;
        world.run(WAIT * 2).await?;
        assert_eq!((pods(world, 2), status(world).peer.as_deref()), (0, Some("west")));
        world.clusters[1].crowded = false;
        world.until("it is whole again", secs(60), |world| ready_on(world, 1)).await
    });
}
