//! Kueue, by hand: Jobs that wait in its queue, lose their place and get it back; and MiniClusters that are left to it.

use std::time::Duration;

use k8s_openapi::api::batch::v1::Job;
use kube::ResourceExt as _;
use serde_json::{Value, json};
use tributary::api::burst::Burst;
use tributary::api::hosted_burst::BurstPhase;
use tributary::api::labels::KUEUE_QUEUE;
use tributary::api::minicluster::MiniCluster;

use crate::budgets::{pods, ready_on, status};
use crate::cluster::USERS;
use crate::dangers::{SHORT, hosted, in_world, secs};
use crate::scale_up;
use crate::world::World;

/// How long a Job may wait.
const WAIT: Duration = Duration::from_secs(60);
const SLOT: &str = "lake-burst-0";

/// Jobs of bursts of the first cluster wait in a queue there.
fn queue(world: &World, provider: usize, wait: Option<Duration>) {
    let mut peer = world.peer(provider, 0).unwrap();
    let import = peer.spec.import.as_mut().unwrap();
    import.queue_name = Some("guests".to_owned());
    import.queue_wait = wait.map(|wait| serde_json::from_value(json!(format!("{}s", wait.as_secs()))).unwrap());
    world.clusters[provider].server.put(&peer).unwrap();
}

/// What Kueue does to the Job of the burst there.
fn suspend(world: &World, provider: usize, suspend: bool) {
    let spec = json!({"spec": {"suspend": suspend}});
    world.clusters[provider].server.patch::<Job>(USERS, SLOT, spec).unwrap();
}

fn job(world: &World, provider: usize) -> Option<Job> {
    world.clusters[provider].server.get::<Job>(USERS, SLOT)
}

fn is_queued(world: &World) -> bool {
    status(world).phase == BurstPhase::Queued
}

/// A burst on west whose Job Kueue has suspended as soon as it was there.
async fn wait_there(world: &mut World, peers: &[&str]) -> Result<(), String> {
    world.apply(0, "lake", 2, json!([{"size": 2, "peers": peers}]), "NodePort");
    world.until("its Job is there", secs(30), |world| job(world, 1).is_some()).await?;
    assert_eq!(job(world, 1).unwrap().labels().get(KUEUE_QUEUE).map(String::as_str), Some("guests"));
    suspend(world, 1, true);
    world.until("it waits", secs(20), is_queued).await
}

#[test]
fn a_burst_waits_for_kueue_loses_its_place_and_comes_back_as_it_was() {
    in_world(2, SHORT, async |world| {
        queue(world, 1, None);
        wait_there(world, &["west"]).await?;
        let uids = |world: &World| (hosted(world, 1).unwrap().uid(), job(world, 1).unwrap().uid());
        let before = uids(world);
        // Nobody gives it back, whoever leads.
        world.run(WAIT * 3).await?;
        world.kill(1, 0);
        world.start(1, 0);
        world.run(WAIT).await?;
        assert!(is_queued(world) && pods(world, 1) == 0, "{}", world.summary());
        for _ in 0..2 {
            suspend(world, 1, false);
            world.until("it is ready", WAIT, |world| ready_on(world, 1)).await?;
            suspend(world, 1, true);
            world.until("it waits again", secs(30), |world| is_queued(world) && pods(world, 1) == 0).await?;
        }
        assert_eq!(uids(world), before);
        world.delete(0, "lake");
        world.until("nothing is left", secs(60), World::nothing_left).await
    });
}

/// The danger: it waits for ever where it is never started; or it is started there when it is elsewhere already.
#[test]
fn what_kueue_does_not_start_in_time_is_placed_elsewhere() {
    for victim in [None, Some(0), Some(1)] {
        in_world(3, SHORT, async move |world| {
            queue(world, 1, Some(WAIT));
            wait_there(world, &["west", "north"]).await?;
            let begun = world.now();
            world.run(WAIT / 2).await?;
            if let Some(victim) = victim {
                world.kill(victim, 0);
                world.start(victim, 0);
            }
            let elsewhere = |world: &World| status(world).peer.as_deref() == Some("north");
            let leaves = |world: &World| status(world).phase == BurstPhase::Draining || elsewhere(world);
            world.until("it is given back", WAIT, leaves).await?;
            let lasted = world.now().saturating_since(begun);
            assert!(lasted >= WAIT - secs(10), "after {lasted:?}");
            while !elsewhere(world) {
                assert_eq!(pods(world, 2), 0, "{}", world.summary());
                world.step().await?;
            }
            assert_eq!((pods(world, 1), job(world, 1)), (0, None), "nothing of it is left by then");
            world.until("nor what stood for it", secs(5), |world| hosted(world, 1).is_none()).await?;
            let refusals = status(world).refusals;
            assert_eq!(refusals[0].reason, "QueueTimedOut");
            world.until("it is ready there", WAIT, |world| ready_on(world, 2)).await
        });
    }
}

#[test]
fn who_has_nobody_else_is_taken_again_after_a_while() {
    in_world(2, SHORT, async |world| {
        queue(world, 1, Some(WAIT));
        wait_there(world, &["west"]).await?;
        let refused = |world: &World| status(world).phase == BurstPhase::Rejected;
        world.until("it is given back", WAIT * 2, refused).await?;
        world.until("nothing of it is left", secs(5), |world| hosted(world, 1).is_none()).await?;
        let begun = world.now();
        while world.now().saturating_since(begun) < WAIT - secs(5) {
            assert!(refused(world) && hosted(world, 1).is_none(), "{}", world.summary());
            world.step().await?;
        }
        // This time, it is started at once.
        world.until("it is ready", secs(60), |world| ready_on(world, 1)).await
    });
}

/// The danger: nodes are expected of pods that nobody may make, and the burst is given back for that.
#[test]
fn the_time_for_nodes_does_not_run_while_it_waits_for_kueue() {
    in_world(2, SHORT, async |world| {
        scale_up::allow(world, 1, 2);
        scale_up::autoscale(world, 1, 64, 2);
        queue(world, 1, None);
        scale_up::apply(world, "lake", &["west"]);
        world.until("its Job is there", secs(30), |world| job(world, 1).is_some()).await?;
        suspend(world, 1, true);
        world.until("it waits", secs(20), is_queued).await?;
        world.run(WAIT * 3).await?;
        assert!(is_queued(world), "{}", world.summary());
        suspend(world, 1, false);
        world.until("it is ready", WAIT, |world| ready_on(world, 1)).await
    });
}

/// The danger: an instance of another cluster, whose status is copied here, gets bursts, or a Job, from here as well.
#[test]
fn what_is_left_to_multikueue_is_left_alone() {
    in_world(2, SHORT, async |world| {
        world.apply(0, "twin", 2, json!([{"size": 2, "peer": "west"}]), "NodePort");
        world.until("it is ready", secs(60), |world| world.bursts_ready(0, "twin")).await?;
        let server = world.clusters[0].server.clone();
        let twin: MiniCluster = server.get(USERS, "twin").unwrap();
        let mut left = MiniCluster::new("left", twin.spec.clone());
        left.metadata.namespace = Some(USERS.to_owned());
        left.spec.managed_by = Some("kueue.x-k8s.io/multikueue".to_owned());
        server.put(&left).unwrap();
        let copied: Value = serde_json::to_value(&twin.status).unwrap();
        server.patch_status::<MiniCluster>(USERS, "left", copied.clone()).unwrap();
        world.run(secs(30)).await?;
        let alone = |world: &World| {
            let bursts = world.clusters[0].server.list::<Burst>();
            assert!(bursts.iter().all(|burst| burst.spec.root == "twin"), "{}", world.summary());
            assert_eq!(world.clusters[0].server.get::<Job>(USERS, "left"), None);
        };
        alone(world);
        // Nor does the next leader touch it.
        world.kill(0, 0);
        world.start(0, 0);
        world.run(secs(30)).await?;
        alone(world);
        let seen: MiniCluster = server.get(USERS, "left").unwrap();
        assert_eq!(serde_json::to_value(&seen.status).unwrap(), copied, "its controller's word stands");
        for name in ["left", "twin"] {
            world.delete(0, name);
        }
        world.until("nothing is left", secs(120), World::nothing_left).await
    });
}
