//! Leaders that die, and those after them, who are not shown all that was written, or know less.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use k8s_openapi::api::batch::v1::Job;
use kube::ResourceExt as _;
use serde_json::json;
use tributary_agent::app::LEASE;
use tributary_api_server::{Away, Fault, RequestInfo};

use crate::agent::Settings;
use crate::cluster::{SYSTEM, USERS};
use crate::dangers::{SHORT, all_run, bursts, by_an_agent, hosted, in_world, is_same, secs};
use crate::world::World;

const TWO: Settings = Settings { replicas: 2, ..SHORT };

/// Which of two agents of the first cluster leads, and its name in the Lease.
fn leader(world: &World) -> (usize, String) {
    let lease = world.clusters[0].server.get(SYSTEM, LEASE).unwrap_or_default();
    let leads = |agent: &Option<crate::agent::Agent>| agent.as_ref().is_some_and(|agent| agent.leads(&lease));
    let number = world.agents[0].iter().position(leads).expect("one of them leads");
    (number, lease.spec.unwrap().holder_identity.unwrap())
}

fn uid(world: &World) -> Option<String> {
    world.clusters[0].server.get::<Job>(USERS, "lake").and_then(|job| job.uid())
}

fn tells(info: &RequestInfo) -> bool {
    by_an_agent(info) && info.verb == "patch" && info.resource == "miniclusters" && info.subresource == "status"
}

/// The danger: the leader before has made a Job, and told nobody. Its brokers get another certificate.
#[test]
fn a_leader_dies_with_a_job_that_the_next_one_is_not_shown() {
    in_world(2, TWO, async |world| {
        world.run(secs(5)).await?;
        let (server, (old, name)) = (world.clusters[0].server.clone(), leader(world));
        let watched = server.clone();
        server.on_request(move |info| {
            if info.verb == "create" && info.resource == "jobs" && info.user_agent == name {
                // Whoever watches notices that within 40 s.
                watched.mute_watches();
            }
            (tells(info) && info.user_agent == name).then_some(Fault::Silence)
        });
        world.apply(0, "lake", 2, json!([]), "NodePort");
        world.until("there is a Job", secs(5), |world| uid(world).is_some()).await?;
        let before = uid(world);
        world.kill(0, old);
        all_run(world).await?;
        assert_eq!(uid(world), before);
        Ok(())
    });
}

/// The same, of a leader that has led for long: the watches of Jobs and pods do not run, and it hears of the MiniCluster only
/// then.
#[test]
fn a_leader_whose_watch_of_jobs_does_not_run_hears_of_a_minicluster_late() {
    in_world(2, TWO, async |world| {
        world.run(secs(5)).await?;
        let (server, (old, name)) = (world.clusters[0].server.clone(), leader(world));
        let unseen = Arc::new(Mutex::new(BTreeSet::from(["jobs", "miniclusters", "pods"])));
        let hidden = unseen.clone();
        server.on_request(move |info| {
            let reads = by_an_agent(info) && ["list", "watch"].contains(&info.verb) && info.user_agent != name;
            let hides = reads && hidden.lock().unwrap().contains(&*info.resource);
            match () {
                () if hides => Some(Fault::Answer(500)),
                () if tells(info) && info.user_agent == name => Some(Fault::Silence),
                () => None,
            }
        });
        server.end_watches();
        world.run(secs(1)).await?;
        world.apply(0, "lake", 2, json!([]), "NodePort");
        world.until("there is a Job", secs(5), |world| uid(world).is_some()).await?;
        let before = uid(world);
        world.kill(0, old);
        world.run(secs(90)).await?;
        unseen.lock().unwrap().remove("miniclusters");
        world.run(secs(20)).await?;
        unseen.lock().unwrap().clear();
        all_run(world).await?;
        assert_eq!(uid(world), before);
        Ok(())
    });
}

/// The danger: a leader that others have followed tells peers what is not there any more. All of them lead within a minute, so
/// that only takeovers count.
#[test]
fn a_leadership_older_than_one_that_was_heard_is_refused() {
    in_world(2, SHORT, async |world| {
        world.run(secs(5)).await?;
        let server = world.clusters[0].server.clone();
        let older = server.backup();
        for _ in 0..2 {
            world.kill(0, 0);
            world.start(0, 0);
            world.run(secs(10)).await?;
        }
        let peer = bursts(world, Some("west")).await?;
        let before = hosted(world, peer).unwrap().uid();
        world.say("east: all is as it was two leaders ago");
        server.restore(older);
        world.wrong[0].insert("restored");
        world.kill(0, 0);
        world.start(0, 0);
        // Longer than the grace period.
        world.run(secs(35)).await?;
        is_same(before, hosted(world, peer))?;
        world.until("its lease ends it", secs(60), World::nothing_left).await
    });
}

/// The danger: leadership ends, and the same leader renews it after all. Losses of contact would count from the leader
/// before, and the leases of all bursts be over.
#[test]
fn an_api_server_is_away_until_leadership_is_just_over() {
    in_world(2, SHORT, async |world| {
        world.run(secs(5)).await?;
        let peer = bursts(world, Some("west")).await?;
        let before = hosted(world, peer).unwrap().uid();
        world.run(secs(60)).await?;
        for quarters in 12..32 {
            world.away(peer, Some(Away::Refuses));
            world.run(Duration::from_millis(250 * quarters)).await?;
            world.away(peer, None);
            world.run(secs(20)).await?;
            is_same(before.clone(), hosted(world, peer))?;
        }
        Ok(())
    });
}
