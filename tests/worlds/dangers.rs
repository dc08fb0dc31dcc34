//! Each danger on purpose: what chance needs too many worlds for.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use k8s_openapi::api::batch::v1::Job;
use kube::ResourceExt as _;
use kube::api::DeleteParams;
use serde_json::{Value, json};
use tributary::api::burst::Burst;
use tributary::api::flux_job::FluxJob;
use tributary::api::flux_setup::FluxSetup;
use tributary::api::hosted_burst::HostedBurst;
use tributary::api::labels;
use tributary::api::minicluster::MiniCluster;
use tributary::api::names;
use tributary::api::peer::ClusterPeer;
use tributary_api_server::Fault;
use tributary_tests::scenario::bursting;

use crate::agent::Settings;
use crate::cluster::{SYSTEM, USERS, is_ready as pod_is_ready, put};
use crate::scenarios::{log, on_paused_time};
use crate::usage::Accounts;
use crate::world::{NAMES, World};

pub const SHORT: Settings = Settings {
    times: (40, 10, 20),
    limits: None,
    replicas: 1,
    ends: Duration::from_secs(6),
    varied: false,
    nodes: false,
};

pub const fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// Plays a scenario in so many clusters.
pub fn in_world<F>(size: usize, settings: Settings, scenario: F)
where
    F: AsyncFnOnce(&mut World) -> Result<(), String> + Send + 'static,
{
    log();
    let result = on_paused_time(1, async move || {
        let mut world = World::new(size, settings);
        world.accounts = Some(Accounts::default());
        let result = scenario(&mut world).await;
        if std::env::var_os("WORLDS_WRITES").is_some() {
            println!("{}\n{}", world.history.join("\n"), world.writes().join("\n"));
        }
        result.map_err(|error| format!("{error}\n{}\n{}", world.history.join("\n"), world.summary()))
    });
    result.unwrap_or_else(|error| panic!("{error}"));
}

/// A MiniCluster of the first cluster with a burst, which is ready. Says where.
pub async fn bursts(world: &mut World, peer: Option<&str>) -> Result<usize, String> {
    let mut burst = json!({"size": 2});
    if let Some(peer) = peer {
        burst["peer"] = peer.into();
    }
    world.apply(0, "lake", 2, json!([burst]), "NodePort");
    is_ready(world).await?;
    Ok(provider(world))
}

pub async fn is_ready(world: &mut World) -> Result<(), String> {
    world.until("the burst is ready", secs(90), |world| world.bursts_ready(0, "lake")).await?;
    world.say("the burst is ready");
    Ok(())
}

pub fn burst(world: &World) -> Option<Burst> {
    world.clusters[0].server.get(USERS, &names::burst_object("lake", "lake-burst-0"))
}

/// Where the burst is.
pub fn provider(world: &World) -> usize {
    let peer = burst(world).and_then(|burst| burst.status?.peer).expect("it is placed");
    NAMES.iter().position(|name| *name == peer).unwrap()
}

pub fn hosted(world: &World, cluster: usize) -> Option<HostedBurst> {
    world.clusters[cluster].server.list::<HostedBurst>().pop()
}

/// A MiniCluster without bursts, which runs.
async fn runs(world: &mut World) -> Result<(), String> {
    world.apply(0, "lake", 2, json!([]), "NodePort");
    all_run(world).await
}

pub async fn all_run(world: &mut World) -> Result<(), String> {
    let all = |world: &World| {
        let lake = world.clusters[0].server.get::<MiniCluster>(USERS, "lake");
        lake.and_then(|lake| lake.status).is_some_and(|status| status.ready == Some(2))
    };
    world.until("all brokers are ready", secs(60), all).await
}

pub fn by_an_agent(info: &tributary_api_server::RequestInfo) -> bool {
    !info.user_agent.is_empty()
}

/// The danger: a deletion that was decided on hits what somebody made under the same name since.
#[test]
fn what_is_deleted_is_another_object_by_then() {
    in_world(2, SHORT, async |world| {
        runs(world).await?;
        let (server, first) = (world.clusters[0].server.clone(), AtomicBool::new(true));
        let jobs = server.clone();
        server.on_request(move |info| {
            let deletes = by_an_agent(info) && info.verb == "delete" && info.resource == "jobs";
            if deletes && first.swap(false, Ordering::Relaxed) {
                jobs.delete::<Job>(USERS, "lake", &DeleteParams::background()).unwrap();
                let template = json!({"spec": {"containers": [], "restartPolicy": "Never"}});
                let job = json!({"metadata": {"name": "lake", "namespace": USERS}, "spec": {"template": template}});
                put::<Job>(&jobs, job);
            }
            None
        });
        let restart = json!({"metadata": {"annotations": {labels::RESTART: "now"}}});
        server.patch::<MiniCluster>(USERS, "lake", restart).unwrap();
        world.run(secs(20)).await?;
        let job = server.get::<Job>(USERS, "lake").ok_or("the Job of a user is gone")?;
        if job.owner_references().is_empty() { Ok(()) } else { Err("the Job of a user was replaced".to_owned()) }
    });
}

/// The danger: what its user has written last never runs, and can be written no more.
#[test]
fn a_job_of_the_queue_is_edited_in_the_moment_in_which_it_is_let_in() {
    for room in [3, 1] {
        in_world(1, SHORT, async move |world| {
            let (server, first) = (world.clusters[0].server.clone(), AtomicBool::new(true));
            let metadata = |name: &str| json!({"name": name, "namespace": USERS});
            put::<FluxSetup>(&server, json!({"metadata": metadata("default"), "spec": {"quota": {"brokers": room}}}));
            let user = server.clone();
            server.on_request(move |info| {
                let admits = by_an_agent(info) && info.verb == "patch" && info.resource == "fluxjobs";
                if admits && first.swap(false, Ordering::Relaxed) {
                    user.patch::<FluxJob>(USERS, "errand", json!({"spec": {"size": 3}})).unwrap();
                }
                None
            });
            put::<FluxJob>(
                &server,
                json!({"metadata": metadata("errand"), "spec": {"image": "i", "command": "hostname"}}),
            );
            world.run(secs(20)).await?;
            let made = server.get::<MiniCluster>(USERS, "errand").map(|made| made.spec.size());
            if made == (room == 3).then_some(3) {
                Ok(())
            } else {
                Err(format!("it runs with {made:?}, and may {room}"))
            }
        });
    }
}

/// The danger: the next MiniCluster of a name gets the status of one that has ended, and never runs.
#[test]
fn a_root_is_made_anew_before_it_is_told_that_the_last_one_ended() {
    in_world(2, SHORT, async |world| {
        runs(world).await?;
        let (server, first) = (world.clusters[0].server.clone(), AtomicBool::new(true));
        let known = server.clone();
        server.on_request(move |info| {
            let job = || known.get::<Job>(USERS, "lake").and_then(|job| job.status);
            let ended = || job().is_some_and(|status| status.completion_time.is_some());
            let tells = info.verb == "patch" && info.resource == "miniclusters" && info.subresource == "status";
            if tells && ended() && first.swap(false, Ordering::Relaxed) {
                let lake = known.get::<MiniCluster>(USERS, "lake").unwrap();
                known.delete::<MiniCluster>(USERS, "lake", &DeleteParams::background()).unwrap();
                known.collect_garbage();
                let metadata = json!({"name": "lake", "namespace": USERS});
                put::<MiniCluster>(&known, json!({"metadata": metadata, "spec": lake.spec}));
            }
            None
        });
        world.clusters[0].finish("lake", 0);
        world.run(secs(2)).await?;
        all_run(world).await
    });
}

/// The danger: pods that the cache does not show run on, and the slot goes to another peer.
#[test]
fn the_owner_deletes_a_burst_whose_pods_the_cache_does_not_show() {
    in_world(3, Settings { ends: secs(20), ..SHORT }, async |world| {
        (1..3).for_each(|other| world.clusters[other].server.lag("pods"));
        world.apply(0, "lake", 2, json!([{"size": 2}]), "NodePort");
        let run = |world: &World, other: usize| {
            world.clusters[other].pods().iter().filter(|pod| pod_is_ready(pod)).count() == 2
        };
        world.until("there are pods", secs(60), |world| run(world, 1) || run(world, 2)).await?;
        let (peer, name) = (provider(world), "lake-burst-0");
        world.clusters[peer].server.delete::<HostedBurst>(USERS, name, &DeleteParams::background()).unwrap();
        world.say(format!("{}: its owner deletes HostedBurst {name}", NAMES[peer]));
        let moved = |world: &World| burst(world).and_then(|burst| burst.status?.peer) != Some(NAMES[peer].to_owned());
        world.until("the slot is free", secs(60), moved).await?;
        world.say("the slot is free");
        let other = 3 - peer;
        world.until("it runs elsewhere", secs(60), |world| run(world, other)).await?;
        world.say("it runs elsewhere");
        (1..3).for_each(|other| world.clusters[other].server.catch_up("pods"));
        is_ready(world).await
    });
}

/// Almost as slow as a write may be.
const SLOW: Fault = Fault::Late(Duration::from_millis(1950));

/// The danger: a write that an agent began as the leader is done when another one leads.
#[test]
fn a_leader_that_cannot_renew_its_lease_has_slow_writes() {
    in_world(2, Settings { replicas: 2, ..SHORT }, async |world| {
        let names: Vec<String> = (0..32).map(|number| format!("lake-{number}")).collect();
        names.iter().for_each(|name| world.apply(0, name, 2, json!([]), "NodePort"));
        world.run(secs(10)).await?;
        let (server, leader) = (world.clusters[0].server.clone(), std::sync::Mutex::new(None::<String>));
        server.on_request(move |info| {
            if !by_an_agent(info) || ["get", "list", "watch"].contains(&info.verb) {
                return None;
            }
            let mut leader = leader.lock().unwrap();
            let old = leader.get_or_insert_with(|| info.user_agent.clone());
            let renews = info.resource == "leases";
            (*old == info.user_agent).then_some(if renews { Fault::Answer(500) } else { SLOW })
        });
        for name in &names {
            server.patch::<MiniCluster>(USERS, name, json!({"spec": {"size": 1}})).unwrap();
            world.step().await?;
        }
        Ok(())
    });
}

/// The danger: brokers of a peer whose agent is down run on for as long as it is, and another peer gets their ranks.
#[test]
fn an_agent_is_down_for_longer_than_the_lease() {
    in_world(3, SHORT, async |world| {
        let peer = bursts(world, None).await?;
        world.kill(peer, 0);
        world.run(secs(180)).await?;
        world.start(peer, 0);
        is_ready(world).await
    });
}

/// The danger: a slot goes to another peer while brokers of the one before still end.
#[test]
fn a_root_drains_a_peer() {
    in_world(3, SHORT, async |world| {
        let peer = bursts(world, None).await?;
        let server = world.clusters[0].server.clone();
        server.patch::<ClusterPeer>(SYSTEM, NAMES[peer], json!({"spec": {"drain": true}})).unwrap();
        let moved = |world: &World| hosted(world, peer).is_none() && world.bursts_ready(0, "lake");
        world.until("the burst is elsewhere", secs(90), moved).await
    });
}

/// The danger: a Burst that is made anew knows nothing of the peer that may run its ranks.
#[test]
fn a_burst_is_deleted_while_its_peer_is_cut_off() {
    in_world(3, SHORT, async |world| {
        let peer = bursts(world, None).await?;
        world.cut(0, peer, true);
        let name = names::burst_object("lake", "lake-burst-0");
        world.clusters[0].server.delete::<Burst>(USERS, &name, &DeleteParams::background()).unwrap();
        world.run(secs(60)).await?;
        world.heal(0, peer);
        is_ready(world).await
    });
}

/// The danger: it is deleted again before it could say who holds its slot, and then nobody knows.
#[test]
fn a_burst_is_deleted_again_before_its_first_status() {
    in_world(3, SHORT, async |world| {
        let peer = bursts(world, None).await?;
        world.cut(0, peer, true);
        let (server, refuses) = (world.clusters[0].server.clone(), Arc::new(AtomicBool::new(true)));
        let when = refuses.clone();
        server.on_request(move |info| {
            let status = info.resource == "bursts" && info.subresource == "status";
            (status && when.load(Ordering::Relaxed)).then_some(Fault::Answer(500))
        });
        let name = names::burst_object("lake", "lake-burst-0");
        for _ in 0..2 {
            server.delete::<Burst>(USERS, &name, &DeleteParams::background()).unwrap();
            world.run(secs(10)).await?;
            let anew = burst(world).ok_or("the Burst is not made anew")?;
            assert!(anew.status.is_none());
        }
        refuses.store(false, Ordering::Relaxed);
        world.run(secs(60)).await?;
        world.heal(0, peer);
        is_ready(world).await
    });
}

/// The danger: a new leader says nothing of bursts that it has not read yet, and its peers take that for a release.
#[test]
fn bursts_cannot_be_listed_for_longer_than_the_grace_period() {
    in_world(2, SHORT, async |world| {
        let peer = bursts(world, Some("west")).await?;
        let (before, fails) = (hosted(world, peer).unwrap().uid(), Arc::new(AtomicBool::new(true)));
        let when = fails.clone();
        world.clusters[0].server.on_request(move |info| {
            let lists = info.resource == "bursts" && ["list", "watch"].contains(&info.verb);
            (lists && when.load(Ordering::Relaxed)).then_some(Fault::Answer(500))
        });
        world.kill(0, 0);
        world.start(0, 0);
        world.run(secs(35)).await?;
        fails.store(false, Ordering::Relaxed);
        world.run(secs(30)).await?;
        is_same(before, hosted(world, peer))
    });
}

pub fn is_same(before: Option<String>, now: Option<HostedBurst>) -> Result<(), String> {
    if before == now.and_then(|now| now.uid()) { Ok(()) } else { Err("the burst was ended".to_owned()) }
}

/// The danger: what an API server does not show for a moment is taken for gone.
#[test]
fn a_list_of_bursts_is_old_for_less_than_the_grace_period() {
    in_world(2, SHORT, async |world| {
        world.run(secs(5)).await?;
        let server = world.clusters[0].server.clone();
        let version = server.version();
        let peer = bursts(world, Some("west")).await?;
        let (before, old) = (hosted(world, peer).unwrap().uid(), Arc::new(AtomicBool::new(true)));
        let when = old.clone();
        server.on_request(move |info| match (info.resource.as_str(), info.verb) {
            _ if !when.load(Ordering::Relaxed) => None,
            // Whoever sees the MiniCluster makes its Burst anew, and so finds that it is there.
            ("bursts" | "miniclusters", "list") => Some(Fault::Stale(version)),
            ("bursts" | "miniclusters", "watch") => Some(Fault::Answer(500)),
            _ => None,
        });
        world.kill(0, 0);
        world.start(0, 0);
        world.run(secs(20)).await?;
        old.store(false, Ordering::Relaxed);
        world.run(secs(60)).await?;
        is_same(before, hosted(world, peer))
    });
}

/// The danger: each restart of an agent begins the lease anew. The ClusterPeer, which knows of the loss as well, is another.
#[test]
fn an_agent_restarts_while_its_root_is_lost() {
    in_world(2, Settings { times: (300, 60, 30), ..SHORT }, async |world| {
        let peer = bursts(world, Some("west")).await?;
        world.cut(0, peer, true);
        for lasts in [100, 190, 80] {
            world.run(secs(lasts)).await?;
            world.kill(peer, 0);
            world.clusters[peer].server.delete::<ClusterPeer>(SYSTEM, "east", &DeleteParams::background()).unwrap();
            world.befriend(peer, 0);
            world.start(peer, 0);
        }
        match hosted(world, peer) {
            None => Ok(()),
            Some(_) => Err("the burst goes on".to_owned()),
        }
    });
}

/// The danger: an agent that comes back makes the Job of a burst whose lease is over.
#[test]
fn a_job_is_missing_when_the_lease_is_over() {
    in_world(2, SHORT, async |world| {
        let (server, fails) = (world.clusters[1].server.clone(), Arc::new(AtomicBool::new(true)));
        let when = fails.clone();
        server.on_request(move |info| {
            let makes = info.verb == "create" && info.resource == "jobs" && !info.is("dryRun", "All");
            (makes && when.load(Ordering::Relaxed)).then_some(Fault::Answer(500))
        });
        world.apply(0, "lake", 2, json!([{"size": 2, "peer": "west"}]), "NodePort");
        let made = |world: &World| !world.clusters[1].server.list::<MiniCluster>().is_empty();
        world.until("there is a MiniCluster", secs(60), made).await?;
        world.run(secs(2)).await?;
        world.kill(1, 0);
        world.run(secs(60)).await?;
        fails.store(false, Ordering::Relaxed);
        // What makes Jobs is ready before what knows of bursts.
        let (server, fails) = (world.clusters[1].server.clone(), Arc::new(AtomicBool::new(true)));
        let when = fails.clone();
        server.on_request(move |info| {
            (info.resource == "networkpolicies" && when.load(Ordering::Relaxed)).then_some(Fault::Answer(500))
        });
        world.start(1, 0);
        world.run(secs(15)).await?;
        fails.store(false, Ordering::Relaxed);
        is_ready(world).await
    });
}

/// The danger: a burst that was admitted, and whose admission was not answered, is not counted.
#[test]
fn the_answer_to_an_admission_is_lost() {
    in_world(2, Settings { limits: Some((1, 4)), ..SHORT }, async |world| {
        let server = world.clusters[1].server.clone();
        world.run(secs(5)).await?;
        server.lag("hostedbursts");
        server.fail_next("create", "hostedbursts", Fault::LoseAnswer);
        for name in ["lake", "pond"] {
            world.apply(0, name, 2, json!([{"size": 2, "peer": "west"}]), "NodePort");
        }
        world.run(secs(30)).await?;
        server.catch_up("hostedbursts");
        world.run(secs(10)).await
    });
}

/// The danger: brokers that a new leader does not see run on with a certificate that nobody else has.
#[test]
fn an_agent_restarts_and_its_cache_does_not_show_a_job() {
    in_world(2, SHORT, async |world| {
        world.run(secs(5)).await?;
        let server = world.clusters[0].server.clone();
        server.lag("jobs");
        world.apply(0, "lake", 2, json!([]), "NodePort");
        world.run(secs(3)).await?;
        world.kill(0, 0);
        world.start(0, 0);
        world.run(secs(20)).await?;
        server.catch_up("jobs");
        all_run(world).await
    });
}

/// The danger: who deletes a Job that has ended runs its command once more.
#[test]
fn a_job_that_has_ended_is_deleted() {
    in_world(2, SHORT, async |world| {
        runs(world).await?;
        world.clusters[0].finish("lake", 0);
        world.run(secs(5)).await?;
        world.clusters[0].server.delete::<Job>(USERS, "lake", &DeleteParams::background()).unwrap();
        world.run(secs(20)).await
    });
}

/// The danger: brokers of a burst run on after the command has ended.
#[test]
fn the_command_of_a_root_is_done() {
    in_world(2, SHORT, async |world| {
        let peer = bursts(world, Some("west")).await?;
        world.clusters[0].finish("lake", 0);
        world.until("the burst is gone", secs(30), |world| hosted(world, peer).is_none()).await
    });
}

/// The danger: a connection that is dead is taken for one on which nothing happens.
#[test]
fn all_watches_die_in_silence() {
    in_world(2, SHORT, async |world| {
        world.run(secs(5)).await?;
        world.clusters.iter().for_each(|cluster| cluster.server.mute_watches());
        world.apply(0, "lake", 2, json!([{"size": 2, "peer": "west"}]), "NodePort");
        is_ready(world).await
    });
}

/// The danger: the clock of a lease begins when the agent does. Nobody heard of the root while no agent ran.
#[test]
fn a_root_is_lost_while_no_agent_runs() {
    in_world(2, Settings { times: (300, 60, 30), ..SHORT }, async |world| {
        let peer = bursts(world, Some("west")).await?;
        world.cut(0, peer, true);
        world.kill(peer, 0);
        world.run(secs(250)).await?;
        world.start(peer, 0);
        world.run(secs(90)).await?;
        match hosted(world, peer) {
            None => Ok(()),
            Some(_) => Err("the burst goes on".to_owned()),
        }
    });
}

/// The danger: a cluster that remembers less than its peers tells them what is not there any more. Nothing prevents it, and
/// the pages say so: its leader counts as a new one, and what the backup does not know is released.
#[test]
fn an_api_server_is_restored_from_a_backup() {
    in_world(2, SHORT, async |world| {
        world.run(secs(5)).await?;
        let backup = world.clusters[0].server.backup();
        world.run(secs(300)).await?;
        world.kill(0, 0);
        world.start(0, 0);
        world.run(secs(300)).await?;
        let peer = bursts(world, Some("west")).await?;
        world.say("east: the API server is restored from a backup");
        world.clusters[0].server.restore(backup);
        let released = |world: &World| {
            let status = hosted(world, peer).and_then(|hosted| hosted.status);
            status.and_then(|status| status.draining_reason).as_deref() == Some("Released")
        };
        world.until("the backup is believed", secs(60), released).await?;
        world.until("nothing is left", secs(60), World::nothing_left).await
    });
}

fn put_root(world: &World, name: &str, spec: &Value) {
    let metadata = json!({"name": name, "namespace": USERS});
    put::<MiniCluster>(&world.clusters[0].server, json!({"metadata": metadata, "spec": spec}));
}

/// The danger: a user of a peer has something inside of this cluster dialled, and reads from the answers what listens there.
#[test]
fn a_peer_says_that_its_lead_is_inside_of_this_cluster() {
    in_world(2, SHORT, async |world| {
        let mut spec = bursting(2, json!([{"size": 2, "peer": "west"}]));
        spec["flux"]["bursting"]["network"] = json!({"type": "NodePort", "address": "192.168.1.2"});
        put_root(world, "lake", &spec);
        world.run(secs(20)).await?;
        let refused = burst(world).is_some_and(|burst| format!("{:?}", burst.status).contains("LeadAddressRefused"));
        if refused { Ok(()) } else { Err("nobody refused it".to_owned()) }
    });
}

/// The danger: a template is code of others. It takes what the owner of this cluster has not named.
#[test]
fn a_peer_places_what_its_import_does_not_name() {
    in_world(2, SHORT, async |world| {
        let spec = || bursting(1, json!([{"size": 1, "peer": "west"}]));
        let (mut account, mut privileged) = (spec(), spec());
        account["pod"]["serviceAccountName"] = "cluster-admin".into();
        privileged["containers"][0]["securityContext"]["privileged"] = true.into();
        put_root(world, "account", &account);
        put_root(world, "privileged", &privileged);
        world.run(secs(20)).await?;
        let bursts = world.clusters[0].server.list::<Burst>();
        let told: Vec<String> = bursts.iter().map(|burst| format!("{:?}", burst.status)).collect();
        let is = |reason: &str| told.iter().any(|told| told.contains(reason));
        if is("PolicyForbids") && is("PodSecurity") { Ok(()) } else { Err(format!("nobody refused them: {told:?}")) }
    });
}

/// The danger: an edit of the spec ends what runs.
#[test]
fn a_restart_without_a_next_instance_ends_nothing() {
    in_world(2, SHORT, async |world| {
        runs(world).await?;
        let server = world.clusters[0].server.clone();
        let job = || server.get::<Job>(USERS, "lake").and_then(|job| job.uid());
        let before = job();
        let spec = json!({"spec": {"updates": "Recreate", "flux": {"curveCertSecret": "own"}}});
        server.patch::<MiniCluster>(USERS, "lake", spec).unwrap();
        world.run(secs(20)).await?;
        if before != job() {
            return Err("the Job is gone, and its Secret was never there".to_owned());
        }
        let restart =
            json!({"metadata": {"annotations": {labels::RESTART: "now"}}, "spec": {"flux": {"curveCertSecret": null}}});
        server.patch::<MiniCluster>(USERS, "lake", restart).unwrap();
        world.run(secs(60)).await?;
        if before != job() && job().is_some() { Ok(()) } else { Err("it was not started anew".to_owned()) }
    });
}

#[test]
fn an_edit_that_needs_a_new_instance_waits_for_a_word() {
    in_world(2, SHORT, async |world| {
        runs(world).await?;
        let server = world.clusters[0].server.clone();
        let before = server.get::<Job>(USERS, "lake").and_then(|job| job.uid());
        let clusters = json!([{"size": 2, "peer": "west"}]);
        let spec = json!({"spec": {"flux": {"bursting": {"clusters": clusters}}}});
        server.patch::<MiniCluster>(USERS, "lake", spec).unwrap();
        world.run(secs(20)).await?;
        let now = server.get::<Job>(USERS, "lake").and_then(|job| job.uid());
        if before == now { Ok(()) } else { Err("the instance was started anew".to_owned()) }
    });
}
