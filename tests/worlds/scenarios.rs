//! The tests.

use std::collections::BTreeSet;
use std::num::NonZero;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use k8s_openapi::api::core::v1::{Pod, ResourceQuota};
use kube::ResourceExt;
use kube::api::DeleteParams;
use serde_json::json;
use tributary::api::burst::Burst;
use tributary::api::flux_job::FluxJob;
use tributary::api::flux_setup::FluxSetup;
use tributary::api::hosted_burst::HostedBurst;
use tributary::api::minicluster::MiniCluster;
use tributary::api::names;
use tributary::api::peer::ClusterPeer;
use tributary_api_server::Fault;
use tributary_cluster::apply::Appliable;

use crate::agent::Settings;
use crate::chaos::{Chaos, FAULTS};
use crate::cluster::{SYSTEM, USERS, put};
use crate::world::{NAMES, World};

/// Seeds that are run unless `WORLDS` says how many.
const SEEDS: u64 = 12;

/// Runs a world on a thread of its own, on paused time.
pub fn on_paused_time<F, T>(seed: u64, scenario: F) -> T
where
    F: AsyncFnOnce() -> T + Send + 'static,
    T: Send + 'static,
{
    let body = move || {
        tributary::clock::seed_this_thread(Some(seed));
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = runtime.enable_all().start_paused(true).build().expect("a runtime is made");
        runtime.block_on(scenario())
    };
    std::thread::Builder::new().stack_size(16 << 20).spawn(body).unwrap().join().expect("the world does not panic")
}

pub fn log() {
    static ONCE: std::sync::Once = std::sync::Once::new();
    let Ok(filter) = std::env::var("WORLDS_LOG") else { return };
    ONCE.call_once(|| tracing_subscriber::fmt().with_env_filter(filter).with_test_writer().init());
}

async fn one_burst(world: &mut World, network: &str) -> Result<(), String> {
    world.apply(0, "lake", 2, json!([{"size": 2, "peer": "west"}]), network);
    world.until("the burst is ready", Duration::from_secs(120), |world| world.bursts_ready(0, "lake")).await?;
    world.say("the burst is ready");
    world.run(Duration::from_secs(10)).await?;
    world.delete(0, "lake");
    world.until("nothing is left", Duration::from_secs(120), World::nothing_left).await?;
    world.say("nothing is left");
    Ok(())
}

#[test]
fn a_burst_becomes_ready_and_leaves_nothing() {
    log();
    for network in ["NodePort", "Tunnel"] {
        let (result, certificates) = on_paused_time(1, async move || {
            let mut world = World::new(2, settings(0));
            let result = one_burst(&mut world, network).await;
            (result.map_err(|error| format!("{error}\n{}", world.history.join("\n"))), world.certificates())
        });
        result.unwrap();
        assert_eq!(certificates, 1, "{network}");
    }
}

/// The danger: two Bursts of one slot, of which the peer takes each for the successor of the other, for ever.
#[test]
fn a_burst_that_was_deleted_comes_back() {
    log();
    for seed in 1..=4 {
        let result = on_paused_time(seed, async move || {
            let mut world = World::new(2, settings(0));
            world.apply(0, "lake", 2, json!([{"size": 2, "peer": "west"}]), "NodePort");
            let ready = |world: &World| world.bursts_ready(0, "lake");
            world.until("the burst is ready", Duration::from_secs(60), ready).await?;
            let name = names::burst_object("lake", "lake-burst-0");
            world.clusters[0].server.delete::<Burst>(USERS, &name, &DeleteParams::background()).unwrap();
            let all_away = |world: &World| !world.bursts_ready(0, "lake");
            world.until("it is made anew", Duration::from_secs(5), all_away).await?;
            world.until("it is ready again", Duration::from_secs(60), ready).await
        });
        result.unwrap_or_else(|error| panic!("seed {seed}: {error}"));
    }
}

/// The danger: what was wanted in a session that is over counts against what is wanted now.
#[test]
fn a_root_is_made_anew_while_its_agent_is_down() {
    log();
    for seed in 1..=3 {
        let result = on_paused_time(seed, async move || {
            let mut world = World::new(2, settings(0));
            let ready = |world: &World| world.bursts_ready(0, "lake");
            world.apply(0, "lake", 2, json!([{"size": 2, "peer": "west"}]), "NodePort");
            world.until("the burst is ready", Duration::from_secs(60), ready).await?;
            world.kill(0, 0);
            world.delete(0, "lake");
            world.run(Duration::from_secs(2)).await?;
            world.apply(0, "lake", 2, json!([{"size": 2, "peer": "west"}]), "NodePort");
            world.start(0, 0);
            world.until("the burst is ready again", Duration::from_secs(60), ready).await
        });
        result.unwrap_or_else(|error| panic!("seed {seed}: {error}"));
    }
}

/// What a condition of an object of the first cluster says that does not hold: reason and message.
fn said<K: Appliable>(world: &World, name: &str, kind: &str) -> Option<(String, String)> {
    let object = world.clusters[0].server.stored::<K>(USERS, name)?;
    let conditions = object["status"]["conditions"].as_array().cloned().unwrap_or_default();
    let one = conditions.into_iter().find(|one| one["type"] == kind && one["status"] == "False")?;
    Some((one["reason"].as_str()?.to_owned(), one["message"].as_str()?.to_owned()))
}

/// The danger: an object that cannot be read is taken for deleted, or stops all others; and nobody says why.
#[test]
fn what_cannot_be_read_is_said_and_stays() {
    log();
    let result = on_paused_time(1, async move || {
        let mut world = World::new(2, settings(0));
        let ready = |name: &'static str| move |world: &World| world.bursts_ready(0, name);
        world.apply(0, "lake", 2, json!([{"size": 2, "peer": "west"}]), "NodePort");
        world.until("the burst is ready", Duration::from_secs(60), ready("lake")).await?;
        let uids = |world: &World| -> Vec<Option<String>> {
            world.clusters.iter().flat_map(|one| one.jobs().iter().map(ResourceExt::uid).collect::<Vec<_>>()).collect()
        };
        let before = uids(&world);
        let burst = names::burst_object("lake", "lake-burst-0");
        let spoil = |world: &World, size: serde_json::Value| {
            let (server, spec) = (&world.clusters[0].server, json!({"spec": {"size": size}}));
            server.spoil::<MiniCluster>(USERS, "lake", spec.clone()).unwrap();
            server.spoil::<Burst>(USERS, &burst, spec).unwrap();
        };
        spoil(&world, json!("two"));
        let told = |world: &World| {
            let both = [said::<MiniCluster>(world, "lake", "Ready"), said::<Burst>(world, &burst, "Ready")];
            both.into_iter()
                .flatten()
                .filter(|(reason, why)| reason == "Unreadable" && why.contains("spec.size: "))
                .count()
                == 2
        };
        world.until("it is said", Duration::from_secs(5), told).await?;
        // Who waits for this generation hears of it, though nothing else is new to say.
        spoil(&world, json!("three"));
        let of_newest = |world: &World| {
            let object = world.clusters[0].server.stored::<MiniCluster>(USERS, "lake").unwrap();
            let conditions = object["status"]["conditions"].as_array().cloned().unwrap_or_default();
            let newest = &object["metadata"]["generation"];
            conditions.iter().any(|one| one["reason"] == "Unreadable" && &one["observedGeneration"] == newest)
        };
        world.until("it is said of the newest", Duration::from_secs(5), of_newest).await?;
        // Pods come and go meanwhile: nobody writes a status of what it was before.
        let seen = Arc::new(AtomicU64::new(0));
        let counted = seen.clone();
        world.clusters[0].server.on_request(move |info| {
            let of_lake = info.resource == "miniclusters" && info.path.contains("/lake");
            counted.fetch_add(u64::from(of_lake && info.verb == "patch"), Ordering::Relaxed);
            None
        });
        let pods: Vec<_> = world.clusters[0].pods().iter().map(ResourceExt::name_any).collect();
        for pod in pods {
            drop(world.clusters[0].server.delete::<Pod>(USERS, &pod, &DeleteParams::default()));
        }
        world.run(Duration::from_secs(60)).await?;
        assert_eq!((seen.load(Ordering::Relaxed), of_newest(&world)), (0, true));
        // Longer than every lease. Then an agent that has never read them.
        for _ in 0..2 {
            world.apply(0, "pond", 1, json!([{"size": 1, "peer": "west"}]), "NodePort");
            world.until("others go on", Duration::from_secs(60), ready("pond")).await?;
            world.run(Duration::from_secs(600)).await?;
            assert!(told(&world));
            let after = uids(&world);
            assert!(before.iter().all(|uid| after.contains(uid)), "{before:?} {after:?}");
            world.delete(0, "pond");
            world.run(Duration::from_secs(60)).await?;
            world.kill(0, 0);
            world.start(0, 0);
        }
        spoil(&world, json!(2));
        world
            .until("it is ready again", Duration::from_secs(60), |world| {
                ready("lake")(world) && said::<MiniCluster>(world, "lake", "Ready").is_none()
            })
            .await?;
        assert_eq!(uids(&world), before);
        Ok::<_, String>(())
    });
    result.unwrap();
}

/// The danger: one part of an agent says how the connection is, and another that it cannot read the peer, in turn.
#[test]
fn a_peer_that_cannot_be_read_any_more_says_so_whatever_its_connection_does() {
    log();
    let result = on_paused_time(1, async move || {
        let mut world = World::new(2, settings(0));
        world.run(Duration::from_secs(10)).await?;
        let server = world.clusters[0].server.clone();
        server.spoil::<ClusterPeer>(SYSTEM, "west", json!({"spec": {"endpoints": "west"}})).unwrap();
        let connected = |world: &World| {
            let peer = world.clusters[0].server.stored::<ClusterPeer>(SYSTEM, "west").unwrap();
            let conditions = peer["status"]["conditions"].as_array().cloned().unwrap_or_default();
            conditions.into_iter().find(|one| one["type"] == "Connected").unwrap_or_default()
        };
        let told = |world: &World| connected(world)["reason"] == "Unreadable";
        world.until("it is said", Duration::from_secs(5), told).await?;
        let (since, seen) = (connected(&world)["lastTransitionTime"].clone(), Arc::new(AtomicU64::new(0)));
        let counted = seen.clone();
        server.on_request(move |info| {
            counted.fetch_add(u64::from(info.verb == "patch" && info.resource == "clusterpeers"), Ordering::Relaxed);
            None
        });
        for _ in 0..2 {
            world.cut(0, 1, true);
            world.run(Duration::from_secs(60)).await?;
            assert!(told(&world));
            world.heal(0, 1);
            world.run(Duration::from_secs(60)).await?;
            assert!(told(&world));
        }
        assert_eq!(connected(&world)["lastTransitionTime"], since);
        let seen = seen.load(Ordering::Relaxed);
        assert!(seen <= 8, "{seen} writes of two losses:\n{}", world.writes().join("\n"));
        server.spoil::<ClusterPeer>(SYSTEM, "west", json!({"spec": {"endpoints": []}})).unwrap();
        world.until("it is read", Duration::from_secs(5), |world| connected(world)["reason"] == "SessionUp").await
    });
    result.unwrap();
}

/// The danger: a quota that cannot be read is none.
#[test]
fn nobody_starts_by_a_quota_that_cannot_be_read() {
    log();
    let result = on_paused_time(1, async move || {
        let mut world = World::new(1, settings(0));
        let metadata = json!({"name": "default", "namespace": USERS});
        put::<FluxSetup>(&world.clusters[0].server, json!({"metadata": metadata, "spec": {"quota": {"brokers": 2}}}));
        let spec = json!({"spec": {"quota": {"brokers": "two"}}});
        world.clusters[0].server.spoil::<FluxSetup>(USERS, "default", spec).unwrap();
        world.apply(0, "lake", 1, json!([]), "NodePort");
        let waits = |world: &World| {
            let is = |said: Option<(String, String)>, expected: &str| {
                said.is_some_and(|(reason, why)| reason == expected && why.contains("spec.quota.brokers: "))
            };
            is(said::<MiniCluster>(world, "lake", "Ready"), "Queued")
                && is(said::<FluxSetup>(world, "default", "Active"), "Unreadable")
        };
        world.until("it waits", Duration::from_secs(5), waits).await?;
        world.run(Duration::from_secs(60)).await?;
        assert!(world.clusters[0].jobs().is_empty());
        world.clusters[0].server.delete::<FluxSetup>(USERS, "default", &DeleteParams::background()).ok();
        world.until("it starts", Duration::from_secs(10), |world| !world.clusters[0].jobs().is_empty()).await
    });
    result.unwrap();
}

/// The danger: whoever leads next promises the room of one that it cannot read.
#[test]
fn what_cannot_be_read_holds_its_room_under_the_next_leader_too() {
    log();
    let result = on_paused_time(1, async move || {
        let mut world = World::new(1, settings(0));
        let (server, metadata) = (world.clusters[0].server.clone(), json!({"name": "default", "namespace": USERS}));
        put::<FluxSetup>(&server, json!({"metadata": metadata, "spec": {"quota": {"brokers": 3}}}));
        world.apply(0, "lake", 2, json!([]), "NodePort");
        let holds = |_: &World| server.stored::<MiniCluster>(USERS, "lake").unwrap()["status"]["holds"].is_object();
        world.until("it holds its room", Duration::from_secs(20), holds).await?;
        server.spoil::<MiniCluster>(USERS, "lake", json!({"spec": {"size": "two"}})).unwrap();
        world.run(Duration::from_secs(2)).await?;
        let jobs = |world: &World| world.clusters[0].jobs().len();
        for name in ["pond", "pool"] {
            world.apply(0, name, 2, json!([]), "NodePort");
            world.run(Duration::from_secs(30)).await?;
            assert_eq!(jobs(&world), 1, "there is room for one broker");
            world.kill(0, 0);
            world.start(0, 0);
            world.run(Duration::from_secs(30)).await?;
        }
        assert_eq!(jobs(&world), 1);
        world.delete(0, "lake");
        world
            .until("there is room again", Duration::from_secs(60), |world| {
                world.clusters[0].jobs().iter().any(|job| job.name_any() != "lake")
            })
            .await
    });
    result.unwrap();
}

/// The danger: a burst that was refused for long waits five minutes more when there is room.
#[test]
fn a_burst_is_tried_again_as_soon_as_a_quota_leaves_more() {
    log();
    let result = on_paused_time(1, async move || {
        let mut world = World::new(2, settings(0));
        let server = world.clusters[1].server.clone();
        let metadata = json!({"name": "room", "namespace": USERS});
        put::<ResourceQuota>(&server, json!({"metadata": metadata, "status": {"hard": {"pods": "1"}}}));
        world.apply(0, "lake", 2, json!([{"size": 2, "peer": "west"}]), "NodePort");
        let burst = names::burst_object("lake", "lake-burst-0");
        let refused = |world: &World| {
            said::<Burst>(world, &burst, "Admitted")
                .is_some_and(|(reason, why)| reason == "QuotaExceeded" && why.contains("; the next try is at "))
        };
        world.until("it is refused", Duration::from_secs(60), refused).await?;
        // Tries are five minutes apart by then.
        world.run(Duration::from_secs(700)).await?;
        assert!(refused(&world));
        server.delete::<ResourceQuota>(USERS, "room", &DeleteParams::default()).unwrap();
        world.until("it is ready", Duration::from_secs(30), |world| world.bursts_ready(0, "lake")).await
    });
    result.unwrap();
}

/// The danger: capacity is promised twice, because what a burst takes that cannot be read is not counted.
#[test]
fn nothing_is_promised_beside_a_hosted_burst_that_cannot_be_read() {
    log();
    let result = on_paused_time(1, async move || {
        let mut world = World::new(2, Settings { limits: Some((1, 8)), ..settings(0) });
        let bursts = json!([{"size": 2, "peer": "west"}]);
        world.apply(0, "lake", 2, bursts.clone(), "NodePort");
        world.until("it is ready", Duration::from_secs(60), |world| world.bursts_ready(0, "lake")).await?;
        let server = world.clusters[1].server.clone();
        server.spoil::<HostedBurst>(USERS, "lake-burst-0", json!({"spec": {"size": "two"}})).unwrap();
        world.kill(1, 0);
        world.start(1, 0);
        world.apply(0, "pond", 2, bursts, "NodePort");
        world.run(Duration::from_secs(120)).await?;
        assert!(server.stored::<HostedBurst>(USERS, "pond-burst-0").is_none());
        let (reason, why) = said::<Burst>(&world, &names::burst_object("pond", "pond-burst-0"), "Admitted").unwrap();
        assert!(
            reason == "Unreadable" && why.contains(&format!("HostedBurst {USERS}/lake-burst-0")),
            "{reason}: {why}"
        );
        server.spoil::<HostedBurst>(USERS, "lake-burst-0", json!({"spec": {"size": 2}})).unwrap();
        world.run(Duration::from_secs(10)).await?;
        world.delete(0, "lake");
        world.until("the other is ready", Duration::from_secs(400), |world| world.bursts_ready(0, "pond")).await
    });
    result.unwrap();
}

/// The danger: the queue says that it goes by the quota, and the agent that it cannot read it, in turn and for ever. And what
/// was last read of a FluxJob starts, though it is not what its user wants now.
#[test]
fn what_the_queue_cannot_read_any_more_is_said_once() {
    log();
    let result = on_paused_time(1, async move || {
        let mut world = World::new(1, settings(0));
        let server = world.clusters[0].server.clone();
        let metadata = |name: &str| json!({"name": name, "namespace": USERS});
        put::<FluxSetup>(&server, json!({"metadata": metadata("default"), "spec": {"quota": {"brokers": 1}}}));
        let job =
            |name: &str, command: &str| json!({"metadata": metadata(name), "spec": {"image": "i", "command": command}});
        put::<FluxJob>(&server, job("refused", "echo 'x"));
        let refused = |world: &World| {
            let object = world.clusters[0].server.stored::<FluxJob>(USERS, "refused").unwrap();
            let conditions = object["status"]["conditions"].as_array().cloned().unwrap_or_default();
            conditions
                .iter()
                .any(|one| one["type"] == "Finished" && one["status"] == "True" && one["reason"] == "Refused")
        };
        world.until("one is refused", Duration::from_secs(10), refused).await?;
        world.apply(0, "lake", 1, json!([]), "NodePort");
        let runs = |world: &World| world.clusters[0].jobs().iter().any(|job| job.name_any() == "lake");
        world.until("it runs", Duration::from_secs(10), runs).await?;
        put::<FluxJob>(&server, job("waits", "hostname"));
        world.run(Duration::from_secs(10)).await?;
        let jobs = ["waits", "refused"];
        let spoil = |size: serde_json::Value| {
            jobs.map(|job| server.spoil::<FluxJob>(USERS, job, json!({"spec": {"size": size}})).unwrap())
        };
        spoil(json!("two"));
        server.spoil::<FluxSetup>(USERS, "default", json!({"spec": {"quota": {"brokers": "two"}}})).unwrap();
        let told = |world: &World| {
            let is = |said: Option<(String, String)>| said.is_some_and(|(reason, _)| reason == "Unreadable");
            is(said::<FluxSetup>(world, "default", "Active"))
                && jobs.into_iter().all(|job| is(said::<FluxJob>(world, job, "Running")))
        };
        world.until("it is said", Duration::from_secs(5), told).await?;
        let writes = Arc::new(AtomicU64::new(0));
        let counted = writes.clone();
        server.on_request(move |info| {
            if ["fluxsetups", "fluxjobs"].contains(&info.resource.as_str()) && info.verb == "patch" {
                counted.fetch_add(1, Ordering::Relaxed);
            }
            None
        });
        world.delete(0, "lake");
        world.run(Duration::from_secs(60)).await?;
        assert_eq!(world.clusters[0].jobs().len(), 0);
        assert!(told(&world));
        assert_eq!(writes.load(Ordering::Relaxed), 0);
        server.spoil::<FluxSetup>(USERS, "default", json!({"spec": {"quota": {"brokers": 1}}})).unwrap();
        spoil(json!(1));
        world.until("it runs", Duration::from_secs(10), |world| world.clusters[0].jobs().len() == 1).await?;
        world.until("it is taken back", Duration::from_secs(5), |world| !told(world) && refused(world)).await
    });
    result.unwrap();
}

/// The danger: the Burst alone knew who has the certificate, and is deleted; its slot looks free, and two peers run it.
#[test]
fn a_burst_is_deleted_before_its_root_tells_who_holds_it() {
    log();
    let result = on_paused_time(1, async || {
        let mut world = World::new(3, settings(0));
        let (server, refuses) = (world.clusters[0].server.clone(), Arc::new(AtomicBool::new(true)));
        let (bursts, when) = (server.clone(), refuses.clone());
        server.on_request(move |info| {
            let given = |burst: &Burst| burst.status.iter().any(|status| !status.credential_recipients.is_empty());
            let status = info.resource == "miniclusters" && info.subresource == "status";
            let refused = status && when.load(Ordering::Relaxed) && bursts.list::<Burst>().iter().any(given);
            refused.then_some(Fault::Answer(500))
        });
        world.apply(0, "lake", 2, json!([{"size": 2}]), "NodePort");
        world.run(Duration::from_secs(20)).await?;
        let name = names::burst_object("lake", "lake-burst-0");
        let burst = server.get::<Burst>(USERS, &name).unwrap();
        let peer = burst.status.and_then(|status| status.peer).expect("it is placed");
        let peer = NAMES.iter().position(|name| *name == peer).unwrap();
        world.cut(0, peer, true);
        server.delete::<Burst>(USERS, &name, &DeleteParams::background()).unwrap();
        refuses.store(false, Ordering::Relaxed);
        world.run(Duration::from_secs(60)).await?;
        world.heal(0, peer);
        world.until("the burst is ready", Duration::from_secs(60), |world| world.bursts_ready(0, "lake")).await
    });
    result.unwrap();
}

/// The danger: what one agent does for each of its peers is too much for it, or a peer waits for all others.
#[test]
fn one_root_has_many_peers() {
    log();
    let size = usize::try_from(number("WORLDS_CLUSTERS").unwrap_or(64)).unwrap();
    let result = on_paused_time(1, async move || {
        let mut world = World::of_strangers(size, settings(0));
        for other in 1..size {
            world.befriend(0, other);
            world.befriend(other, 0);
        }
        let last = NAMES[size - 1];
        world.apply(0, "lake", 1, json!([{"size": 1}, {"size": 2, "peer": last}]), "NodePort");
        let ready = |world: &World| world.bursts_ready(0, "lake");
        world.until("the bursts are ready", Duration::from_secs(60), ready).await?;
        world.kill(0, 0);
        world.start(0, 0);
        world.run(Duration::from_secs(15)).await?;
        world.until("they are ready still", Duration::from_secs(1), ready).await?;
        world.delete(0, "lake");
        world.until("nothing is left", Duration::from_secs(60), World::nothing_left).await
    });
    result.unwrap();
}

/// What the owners of a world have chosen, by its seed.
fn settings(seed: u64) -> Settings {
    Settings {
        times: if seed.is_multiple_of(4) { (300, 60, 30) } else { (40, 10, 20) },
        limits: (seed % 5 == 2).then_some((2, 4)),
        replicas: if seed % 3 == 1 { 2 } else { 1 },
        ends: Duration::from_secs([1, 6][usize::from(seed % 7 > 2)]),
        varied: seed % 4 > 1,
        nodes: seed % 5 == 3 || number("WORLDS_NODES").is_some(),
    }
}

/// How many clusters a world has.
fn clusters(seed: u64) -> usize {
    match seed {
        _ if seed % 24 == 23 => 8,
        _ if seed % 12 == 11 => 4,
        _ => 2 + usize::from(seed % 3 != 1),
    }
}

/// The outcome of a seed, its history and its writes.
type Played = (Result<(), String>, Vec<String>, Vec<String>);

/// Plays a seed, without the events of these numbers.
fn play(seed: u64, faults: Vec<&'static str>, events: usize, without: BTreeSet<usize>) -> Played {
    on_paused_time(seed, async move || {
        let mut world = World::new(clusters(seed), settings(seed));
        let mut chaos = Chaos::new(seed, faults, without);
        let result = chaos.run(&mut world, events).await;
        world.say(format!("done: {:?}", chaos.counts));
        (result, world.history.clone(), world.writes())
    })
}

#[test]
fn a_seed_is_played_the_same_again() {
    let [first, second] = [(); 2].map(|()| play(5, FAULTS.to_vec(), 4, BTreeSet::new()));
    assert_eq!(first.1, second.1, "the histories differ");
    // Two writes may change places: `tokio::select!` leaves to chance which of two that are ready comes first.
    assert!(first.2.len() > 100, "{} writes", first.2.len());
}

pub fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

fn faults() -> Vec<&'static str> {
    let Ok(wanted) = std::env::var("WORLDS_FAULTS") else { return FAULTS.to_vec() };
    FAULTS.into_iter().filter(|fault| wanted.split(',').any(|one| one == *fault)).collect()
}

#[test]
fn worlds_keep_the_rules_and_come_to_rest() {
    log();
    let seeds = match number("WORLDS_SEED") {
        Some(seed) => seed..seed + 1,
        None => {
            let first = number("WORLDS_FIRST").unwrap_or(1);
            first..first + number("WORLDS").unwrap_or(SEEDS)
        }
    };
    let events = usize::try_from(number("WORLDS_EVENTS").unwrap_or(12)).unwrap();
    let (next, failed) = (Mutex::new(seeds), Mutex::new(Vec::new()));
    let workers = std::thread::available_parallelism().map_or(1, NonZero::get);
    std::thread::scope(|scope| {
        for _ in 0..workers {
            scope.spawn(|| {
                loop {
                    let Some(seed) = next.lock().unwrap().next() else { return };
                    if !plays_well(seed, events) {
                        failed.lock().unwrap().push(seed);
                        if std::env::var_os("WORLDS_STOP").is_some() {
                            return next.lock().unwrap().end = seed;
                        }
                    }
                }
            });
        }
    });
    let failed = failed.into_inner().unwrap();
    assert!(failed.is_empty(), "seeds that fail: {failed:?}");
}

/// Leaves out every event of a world that fails, one after the other: for good, if the world fails without it too.
fn shrunk(seed: u64, events: usize) -> Played {
    let mut without = BTreeSet::new();
    let mut played = play(seed, faults(), events, without.clone());
    if played.0.is_ok() {
        return played;
    }
    for event in 0..=events {
        without.insert(event);
        let less = play(seed, faults(), events, without.clone());
        if less.0.is_err() {
            played = less;
        } else {
            without.remove(&event);
        }
    }
    played
}

fn plays_well(seed: u64, events: usize) -> bool {
    let (result, history, writes) = match number("WORLDS_SEED") {
        Some(_) => shrunk(seed, events),
        None => play(seed, faults(), events, BTreeSet::new()),
    };
    if let Err(error) = &result {
        println!("WORLDS_SEED={seed} fails: {error}\n{}\n", history.join("\n"));
    } else if number("WORLDS_SEED").is_some() {
        println!("{}", history.join("\n"));
    } else {
        println!("seed {seed}: {}", history.last().map_or("", |line| line));
    }
    if std::env::var_os("WORLDS_WRITES").is_some() {
        println!("{}", writes.join("\n"));
    }
    result.is_ok()
}
