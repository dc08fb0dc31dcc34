//! What people decide about a burst, on either side, and what becomes of it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{Namespace, Node, Secret};
use k8s_openapi::api::events::v1::Event;
use kube::ResourceExt as _;
use kube::api::DeleteParams;
use serde_json::{Value, json};
use tributary::api::burst::Burst;
use tributary::api::flux_setup::FluxSetup;
use tributary::api::hosted_burst::{BurstPhase, HostedBurst};
use tributary::api::minicluster::{MiniCluster, Phase};
use tributary::api::peer::ClusterPeer;
use tributary::api::{labels, names};
use tributary::render::Boot;
use tributary_api_server::Fault;

use crate::agent::Settings;
use crate::budgets::{pods, ready_on, status};
use crate::cluster::{SYSTEM, USERS, put};
use crate::dangers::{SHORT, burst, bursts, by_an_agent, hosted, in_world, is_ready, secs};
use crate::world::World;

const SLOT: &str = "lake-burst-0";

/// Sets an annotation of the Burst, or takes it away.
pub fn annotate(world: &World, annotation: &str, value: Value) {
    let name = names::burst_object("lake", SLOT);
    let patch = json!({"metadata": {"annotations": {annotation: value}}});
    world.clusters[0].server.patch::<Burst>(USERS, &name, patch).unwrap();
}

/// An owner throws the burst out.
fn evict(world: &World, peer: usize) {
    world.clusters[peer].server.delete::<HostedBurst>(USERS, SLOT, &DeleteParams::background()).unwrap();
}

fn restart_all(world: &mut World) {
    for cluster in 0..world.clusters.len() {
        world.kill(cluster, 0);
        world.start(cluster, 0);
    }
}

pub fn nothing_on(world: &World, peer: usize) -> bool {
    hosted(world, peer).is_none() && pods(world, peer) == 0 && world.clusters[peer].jobs().is_empty()
}

/// The danger: the namespace of a root is being deleted, somebody else's pod keeps it from going, and its bursts cost on.
#[test]
fn bursts_of_a_namespace_that_is_being_deleted_are_released() {
    in_world(2, SHORT, async |world| {
        world.apply(0, "lake", 2, json!([{"size": 2, "peer": "west"}]), "NodePort");
        world.until("it is ready", secs(60), |world| ready_on(world, 1)).await?;
        let server = &world.clusters[0].server;
        let kept = json!({"metadata": {"finalizers": ["example.org/keeps-it"]}});
        server.patch::<Namespace>("", USERS, kept).unwrap();
        server.delete::<Namespace>("", USERS, &DeleteParams::background()).unwrap();
        world.until("the burst ends", secs(60), |world| nothing_on(world, 1)).await?;
        assert!(
            world.clusters[0].server.get::<MiniCluster>(USERS, "lake").is_some(),
            "Kubernetes has deleted no root yet"
        );
        Ok(())
    });
}

/// The danger: a quota or a webhook of the provider refuses a part of a burst, and nobody hears why it has no brokers.
#[test]
fn what_a_provider_refuses_of_a_burst_that_it_took_is_told_to_its_root() {
    for (resource, code) in [("services", 403), ("services", 500), ("miniclusters", 403)] {
        in_world(2, SHORT, async move |world| {
            let (server, refuses) = (world.clusters[1].server.clone(), Arc::new(AtomicBool::new(true)));
            let when = refuses.clone();
            server.on_request(move |info| {
                let writes =
                    by_an_agent(info) && info.resource == resource && !["get", "list", "watch"].contains(&info.verb);
                (writes && when.load(Ordering::Relaxed)).then_some(Fault::Answer(code))
            });
            world.apply(0, "lake", 2, json!([{"size": 2, "peer": "west"}]), "NodePort");
            let told = |world: &World| {
                let here = hosted(world, 1).and_then(|hosted| hosted.status).unwrap_or_default().message;
                here.contains("it cannot be made: ") && status(world).message.contains("it cannot be made: ")
            };
            world.until("both sides say why", secs(60), told).await?;
            assert_eq!(status(world).times.unwrap_or_default().provisioned, None);
            world.kill(1, 0);
            world.start(1, 0);
            world.until("and again after a restart", secs(60), told).await?;
            refuses.store(false, Ordering::Relaxed);
            // Tries are some minutes apart at most.
            world.until("it is ready", secs(320), |world| ready_on(world, 1)).await?;
            world.until("nothing is said of it", secs(10), |world| !told(world)).await
        });
    }
}

/// The danger: what the API server says to one burst of a root keeps its other bursts as they are.
#[test]
fn a_burst_that_may_not_be_changed_keeps_no_other_from_that() {
    in_world(2, SHORT, async |world| {
        let bursts = |size: u32| json!([{"size": size, "maxSize": 3, "peer": "west"}, {"size": size, "maxSize": 3, "peer": "west"}]);
        world.apply(0, "lake", 2, bursts(2), "NodePort");
        world.until("they are ready", secs(60), |world| world.bursts_ready(0, "lake")).await?;
        let (server, refuses) = (world.clusters[0].server.clone(), Arc::new(AtomicBool::new(true)));
        let when = refuses.clone();
        server.on_request(move |info| {
            let changes = by_an_agent(info) && info.resource == "bursts" && info.subresource.is_empty();
            let first = changes && info.verb != "get" && info.name == names::burst_object("lake", SLOT);
            (first && when.load(Ordering::Relaxed)).then_some(Fault::Answer(403))
        });
        server
            .patch::<MiniCluster>(USERS, "lake", json!({"spec": {"flux": {"bursting": {"clusters": bursts(3)}}}}))
            .unwrap();
        let sizes = |world: &World| {
            let size = |slot| {
                world.clusters[0].server.get::<Burst>(USERS, &names::burst_object("lake", slot)).unwrap().spec.size
            };
            [size(SLOT), size("lake-burst-1")]
        };
        world.until("the other one grows", secs(20), |world| sizes(world) == [2, 3]).await?;
        let said = server.list::<Event>().into_iter().any(|event| event.reason.as_deref() == Some("BurstRefused"));
        assert!(said, "nobody hears why");
        refuses.store(false, Ordering::Relaxed);
        world.until("both have grown", secs(320), |world| sizes(world) == [3, 3]).await
    });
}

/// The danger: a peer whose pods tolerate the taints of all nodes is told that none has room, and never asks.
#[test]
fn a_peer_hears_of_the_nodes_on_which_only_its_pods_may_run() {
    in_world(2, SHORT, async |world| {
        let server = world.clusters[1].server.clone();
        for node in server.list::<Node>() {
            let taints = json!({"spec": {"taints": [{"key": "guests", "effect": "NoSchedule"}]}});
            server.patch::<Node>("", &node.name_any(), taints).unwrap();
        }
        let tolerations = json!([{"key": "guests", "operator": "Exists"}]);
        server.patch::<ClusterPeer>(SYSTEM, "east", json!({"spec": {"import": {"tolerations": tolerations}}})).unwrap();
        world.run(secs(5)).await?;
        bursts(world, None).await.map(drop)
    });
}

/// The danger: a Burst that came and went unseen holds its name for ever, in the memory of the agent that made it.
#[test]
fn a_burst_comes_and_goes_and_no_watch_shows_it() {
    in_world(2, SHORT, async |world| {
        world.run(secs(5)).await?;
        let server = world.clusters[0].server.clone();
        server.lag("bursts");
        let clusters = json!([{"size": 2, "peer": "west"}]);
        world.apply(0, "lake", 1, clusters.clone(), "NodePort");
        world.run(secs(2)).await?;
        assert!(burst(world).is_some());
        world.delete(0, "lake");
        world.clusters[0].step();
        assert_eq!(burst(world), None);
        world.apply(0, "lake", 1, clusters, "NodePort");
        // Of an object that is gone there is no last event, for who has not heard of it.
        server.skip("bursts");
        is_ready(world).await
    });
}

/// The danger: two pods have one rank, because the others of a deleted Job have ended, and the lead's among them.
#[test]
fn a_job_is_deleted_whose_pods_take_their_time_to_end() {
    in_world(2, Settings { varied: true, ..SHORT }, async |world| {
        world.apply(0, "lake", 3, json!([{"size": 3, "peer": "west"}]), "NodePort");
        is_ready(world).await?;
        for _ in 0..4 {
            for (cluster, job) in [(1, SLOT), (0, "lake")] {
                let server = world.clusters[cluster].server.clone();
                let uid = |_: &World| server.get::<Job>(USERS, job).and_then(|job| job.uid());
                let before = uid(world);
                server.delete::<Job>(USERS, job, &DeleteParams::background()).unwrap();
                world
                    .until("another is made", secs(60), |world| uid(world).is_some_and(|uid| Some(uid) != before))
                    .await?;
                world.run(secs(2)).await?;
                is_ready(world).await?;
            }
        }
        Ok(())
    });
}

#[test]
fn a_burst_that_is_ready_is_written_no_more() {
    in_world(2, SHORT, async |world| {
        bursts(world, Some("west")).await?;
        world.run(secs(20)).await?;
        let before = world.writes().len();
        world.run(secs(60)).await?;
        assert_eq!(world.writes()[before..], [""; 0], "nothing changed");
        // Agents that are gone for some seconds are missed; what runs stays as it is.
        restart_all(world);
        world.run(secs(60)).await?;
        let tells = |line: &&String| line.contains(" status ") || line.contains(" events/");
        let writes = world.writes();
        assert_eq!(writes[before..].iter().filter(|line| !tells(line)).collect::<Vec<_>>(), [""; 0]);
        assert!(ready_on(world, 1));
        Ok(())
    });
}

#[test]
fn a_root_that_ends_lets_go_of_its_burst_within_five_seconds() {
    let suspend = |world: &World, suspend: bool| {
        world.clusters[0].server.patch::<MiniCluster>(USERS, "lake", json!({"spec": {"suspend": suspend}})).unwrap();
    };
    for end in 0..3 {
        in_world(2, SHORT, async move |world| {
            bursts(world, Some("west")).await?;
            match end {
                0 => assert!(world.clusters[0].finish("lake", 0)),
                1 => suspend(world, true),
                _ => world.delete(0, "lake"),
            }
            let ends = |world: &World| {
                let status = hosted(world, 1).map(|hosted| hosted.status.unwrap_or_default());
                status.is_none_or(|status| status.draining_since.is_some())
            };
            world.until("the burst ends", secs(5), ends).await?;
            world.until("it is gone", secs(25), |world| nothing_on(world, 1)).await?;
            if end == 1 {
                suspend(world, false);
                is_ready(world).await?;
            }
            Ok(())
        });
    }
}

#[test]
fn a_burst_that_was_evicted_is_not_offered_there_again_until_somebody_asks_for_it() {
    in_world(2, SHORT, async |world| {
        bursts(world, Some("west")).await?;
        let evicted = |world: &World| (status(world).phase, status(world).peer) == (BurstPhase::Evicted, None);
        // Whether the agent over there sees it or not.
        for (down, retry) in [(false, "1"), (true, "2")] {
            if down {
                world.kill(1, 0);
            }
            evict(world, 1);
            world.start(1, 0);
            world.until("it is evicted", secs(40), evicted).await?;
            assert!(nothing_on(world, 1), "the word comes when nothing runs any more: {}", world.summary());
            restart_all(world);
            world.run(secs(60)).await?;
            assert!(evicted(world) && nothing_on(world, 1), "{}", world.summary());
            annotate(world, labels::RETRY, retry.into());
            is_ready(world).await?;
        }
        Ok(())
    });
}

#[test]
fn a_burst_that_one_peer_evicts_goes_to_another_when_it_is_gone() {
    in_world(3, SHORT, async |world| {
        let peer = bursts(world, None).await?;
        evict(world, peer);
        world.until("it moves", secs(60), |world| ready_on(world, 3 - peer)).await?;
        assert!(nothing_on(world, peer), "{}", world.summary());
        Ok(())
    });
}

#[test]
fn what_is_made_for_a_burst_comes_back_as_it_was() {
    in_world(2, SHORT, async |world| {
        bursts(world, Some("west")).await?;
        let server = world.clusters[1].server.clone();
        let made = || server.get::<MiniCluster>(USERS, SLOT);
        for secret in [false, true] {
            let before = made().and_then(|made| made.uid());
            if secret {
                server.delete::<Secret>(USERS, &names::curve(SLOT), &DeleteParams::background()).unwrap();
            }
            server.delete::<MiniCluster>(USERS, SLOT, &DeleteParams::background()).unwrap();
            let another = |_: &World| made().is_some_and(|made| made.uid() != before);
            world.until("the MiniCluster is back", secs(20), another).await?;
            is_ready(world).await?;
            assert!(server.get::<Secret>(USERS, &names::curve(SLOT)).is_some());
        }
        server.patch::<MiniCluster>(USERS, SLOT, json!({"spec": {"size": 1, "interactive": true}})).unwrap();
        let reverted = |_: &World| made().is_some_and(|made| made.spec.size == Some(2) && !made.spec.interactive);
        world.until("the edit is reverted", secs(20), reverted).await
    });
}

#[test]
fn a_new_job_is_a_new_instance_over_there_too() {
    in_world(2, SHORT, async |world| {
        bursts(world, Some("west")).await?;
        let incarnation = |world: &World| hosted(world, 1).map(|hosted| hosted.spec.root.incarnation);
        let before = incarnation(world);
        let restart = json!({"metadata": {"annotations": {labels::RESTART: "now"}}});
        world.clusters[0].server.patch::<MiniCluster>(USERS, "lake", restart).unwrap();
        let anew = |world: &World| incarnation(world).is_some_and(|now| Some(now) != before) && ready_on(world, 1);
        world.until("it is ready anew", secs(90), anew).await?;
        assert_eq!(world.certificates(), 2);
        Ok(())
    });
}

#[test]
fn a_policy_that_changes_its_mind_is_noticed_without_a_word() {
    in_world(2, SHORT, async |world| {
        let import = world.peer(1, 0).unwrap().spec.import;
        let server = world.clusters[1].server.clone();
        server.patch::<ClusterPeer>(SYSTEM, "east", json!({"spec": {"import": null}})).unwrap();
        world.apply(0, "lake", 2, json!([{"size": 2, "peer": "west"}]), "NodePort");
        world.until("it is rejected", secs(30), |world| status(world).phase == BurstPhase::Rejected).await?;
        assert_eq!(status(world).refusals[0].reason, "ImportNotAllowed");
        world.run(secs(30)).await?;
        server.patch::<ClusterPeer>(SYSTEM, "east", json!({"spec": {"import": import}})).unwrap();
        world.until("it is taken after all", secs(20), |world| ready_on(world, 1)).await
    });
}

/// What is there stays, whatever becomes of the grant.
#[test]
fn a_burst_waits_at_the_door_of_a_namespace_until_its_flux_setup_has_room() {
    in_world(2, SHORT, async |world| {
        let server = world.clusters[1].server.clone();
        let grant = |brokers: u32| {
            let metadata = json!({"name": "default", "namespace": USERS});
            put::<FluxSetup>(&server, json!({"metadata": metadata, "spec": {"quota": {"brokers": brokers}}}));
        };
        grant(3);
        bursts(world, Some("west")).await?;
        world.apply(0, "pond", 2, json!([{"size": 2, "peer": "west"}]), "NodePort");
        let count = |world: &World| world.clusters[1].server.list::<HostedBurst>().len();
        for restarts in [false, true] {
            if restarts {
                restart_all(world);
            }
            world.run(secs(30)).await?;
            let name = names::burst_object("pond", "pond-burst-0");
            let pond = world.clusters[0].server.get::<Burst>(USERS, &name).unwrap().status.unwrap();
            assert_eq!((pond.phase, pond.refusals[0].reason.as_str()), (BurstPhase::Rejected, "NoRoomInQueue"));
            assert_eq!(count(world), 1, "nothing of it is made that would wait there");
        }
        grant(4);
        world.until("the second is in", secs(40), |world| world.bursts_ready(0, "pond")).await?;
        grant(0);
        world.run(secs(30)).await?;
        assert!(count(world) == 2 && pods(world, 1) == 4, "what is there stays: {}", world.summary());
        Ok(())
    });
}

#[test]
fn a_burst_is_scaled_and_cancelled_and_comes_back() {
    in_world(2, SHORT, async |world| {
        let apply = |world: &mut World, size: usize| {
            world.apply(0, "lake", 2, json!([{"size": size, "maxSize": 3, "peer": "west"}]), "NodePort");
        };
        for size in [2, 1, 3] {
            apply(world, size);
            world.until("it has its size", secs(40), |world| ready_on(world, 1) && pods(world, 1) == size).await?;
        }
        annotate(world, labels::CANCEL, "now".into());
        world.until("nothing is left", secs(40), |world| nothing_on(world, 1) && status(world).peer.is_none()).await?;
        annotate(world, labels::CANCEL, Value::Null);
        world.until("it is back", secs(40), |world| ready_on(world, 1)).await
    });
}

/// The danger: whoever may edit one Job ends every agent that leads, and nothing of this cluster is looked after any more.
#[test]
fn boot_files_that_somebody_edited_hold_up_their_own_mini_cluster_alone() {
    // Whether the digest was edited to fit, or not.
    for (spec, fits) in [(json!(1), false), (json!(1), true), (json!({"flux": "x"}), true)] {
        in_world(2, SHORT, async move |world| {
            let phase = |world: &World, name: &str| {
                let status = world.clusters[0].server.get::<MiniCluster>(USERS, name).and_then(|found| found.status);
                status.unwrap_or_default().phase
            };
            let runs = |name: &'static str| move |world: &World| phase(world, name) == Some(Phase::Running);
            world.apply(0, "lake", 2, json!([]), "NodePort");
            world.until("lake runs", secs(60), runs("lake")).await?;
            let (rank_map, template) = Default::default();
            let boot = Boot { revision: 4, files: Default::default(), rank_map, template, spec: spec.clone() };
            let digest = if fits { boot.digest() } else { "x".to_owned() };
            let edited = json!({labels::BOOT: boot.encode(), labels::BOOT_DIGEST: digest});
            let server = world.clusters[0].server.clone();
            let job = server.patch::<Job>(USERS, "lake", json!({"metadata": {"annotations": edited}})).unwrap();
            world.kill(0, 0);
            world.start(0, 0);
            world.apply(0, "pond", 2, json!([]), "NodePort");
            world.until("pond runs", secs(60), runs("pond")).await?;
            world.run(secs(20)).await?;
            assert_eq!(server.get::<Job>(USERS, "lake").and_then(|found| found.uid()), job.uid(), "it runs on");
            if spec.is_object() {
                return Ok(());
            }
            let told = |world: &World| {
                let status = world.clusters[0].server.get::<MiniCluster>(USERS, "lake").and_then(|found| found.status);
                let mut conditions = status.unwrap_or_default().conditions.into_iter();
                conditions
                    .any(|one| one.reason == "CannotMaintain" && one.message.contains("delete the Job to start anew"))
            };
            world.until("its user hears of it", secs(30), told).await?;
            server.delete::<Job>(USERS, "lake", &DeleteParams::background()).unwrap();
            let another = |_: &World| server.get::<Job>(USERS, "lake").is_some_and(|found| found.uid() != job.uid());
            world.until("it starts anew", secs(60), another).await?;
            world.until("lake runs again", secs(60), runs("lake")).await
        });
    }
}
