//! Bursts whose nodes are asked for by ProvisioningRequests: they are provisioned, not yet, never, or too late; and agents die
//! meanwhile.

use std::time::Duration;

use k8s_openapi::api::core::v1::PodTemplate;
use kube::ResourceExt as _;
use kube::api::DeleteParams;
use serde_json::json;
use tributary::api::duration::Lasting;
use tributary::api::peer::ClusterPeer;
use tributary::api::provisioning_request::ProvisioningRequest;
use tributary_api_server::Fault;

use crate::agent::Settings;
use crate::autoscaler::{BOOKED, uses_request};
use crate::budgets::{pods, ready_on, status};
use crate::cluster::{SYSTEM, USERS};
use crate::dangers::{SHORT, hosted, in_world, secs};
use crate::scale_up::{self, ATOMIC, WAIT, apply, autoscale, is_scaling, nodes, reasons};
use crate::world::{NAMES, World};

/// Clusters of this number let bursts of the first one bring nodes of 64 cores, and ask for them.
pub fn allow(world: &World, provider: usize, max_nodes: u32) {
    scale_up::allow(world, provider, max_nodes);
    let asks = json!({"spec": {"import": {"scaleUp": {"provisioningRequest": {"provisioningClassName": ATOMIC}}}}});
    world.clusters[provider].server.patch::<ClusterPeer>(SYSTEM, NAMES[0], asks).unwrap();
}

/// Requests, and what their pods look like.
fn asked(world: &World, cluster: usize) -> (usize, usize) {
    let server = &world.clusters[cluster].server;
    (server.list::<ProvisioningRequest>().len(), server.list::<PodTemplate>().len())
}

fn is_provisioned(world: &World, cluster: usize) -> bool {
    let requests = world.clusters[cluster].requests();
    let said = requests.iter().filter_map(|one| one.status.as_ref()).flat_map(|status| &status.conditions);
    said.into_iter().any(|one| one.type_ == "Provisioned" && one.status == "True")
}

#[test]
fn pods_are_made_when_their_nodes_are_provisioned() {
    for network in ["NodePort", "Tunnel"] {
        in_world(2, SHORT, async move |world| {
            allow(world, 1, 2);
            autoscale(world, 1, 64, 0);
            let burst = json!({"size": 2, "peers": ["west"], "resources": {"requests": {"cpu": 40}}});
            world.apply(0, "lake", 2, json!([burst]), network);
            world.until("it scales up", secs(20), is_scaling).await?;
            world.run(secs(15)).await?;
            let said = status(world).message;
            assert!(said.contains("nodes for 2 pods are asked for before these are made"), "{said}");
            assert!(said.contains("as it is (CapacityIsNotFound)"), "{said}");
            assert_eq!((pods(world, 1), asked(world, 1)), (0, (1, 1)));
            autoscale(world, 1, 64, 2);
            world.until("it is ready", WAIT, |world| ready_on(world, 1)).await?;
            assert_eq!((nodes(world, 1), asked(world, 1)), (2, (1, 1)));
            assert!(world.clusters[1].pods().iter().all(uses_request));
            let times = status(world).times.unwrap();
            assert!(times.scheduled.is_some() && times.provisioned < times.scheduled, "{times:?}");
            // Longer than it might wait, and than its nodes are kept for it: it is on them.
            world.run(BOOKED + WAIT).await?;
            assert!(ready_on(world, 1));
            world.delete(0, "lake");
            world.until("nothing is left", secs(120), World::nothing_left).await?;
            world.until("nor of its nodes", secs(60), |world| nodes(world, 1) == 0).await
        });
    }
}

/// The danger: an autoscaler goes on for a burst that runs elsewhere.
#[test]
fn what_is_not_provisioned_is_asked_for_no_more_and_placed_elsewhere() {
    // So many nodes come, of so many cores; and what becomes of the request.
    for (most, cores, reason) in [(1, 64, "ScaleUpTimedOut"), (0, 64, "ScaleUpTimedOut"), (2, 32, "ScaleUpFailed")] {
        in_world(3, SHORT, async move |world| {
            for provider in [1, 2] {
                allow(world, provider, 2);
            }
            autoscale(world, 1, cores, most);
            autoscale(world, 2, 64, 2);
            apply(world, "lake", &["west", "north"]);
            world.until("it scales up", secs(20), is_scaling).await?;
            let begun = world.now();
            while status(world).peer.as_deref() != Some("north") {
                assert_eq!((pods(world, 1), pods(world, 2)), (0, 0), "{}", world.summary());
                assert!(world.now().saturating_since(begun) < WAIT + secs(30), "{}", world.summary());
                world.step().await?;
            }
            assert_eq!((asked(world, 1), pods(world, 1)), ((0, 0), 0), "nothing of it is left by then");
            let soon = world.now().saturating_since(begun) < secs(15);
            assert_eq!(soon, reason == "ScaleUpFailed", "nobody waits for what will not come");
            assert_eq!(reasons(world, "lake"), [("west".into(), reason.into())]);
            world.until("it is ready there", WAIT, |world| ready_on(world, 2)).await?;
            world.run(WAIT * 2).await?;
            assert!(ready_on(world, 2) && pods(world, 1) == 0, "{}", world.summary());
            world.until("nor does a node", secs(60), |world| nodes(world, 1) == 0).await
        });
    }
}

/// The danger: an autoscaler goes on for a burst that runs elsewhere, since somebody holds its request.
#[test]
fn a_request_that_somebody_holds_is_waited_for() {
    in_world(3, SHORT, async |world| {
        for provider in [1, 2] {
            allow(world, provider, 2);
        }
        autoscale(world, 1, 64, 0);
        autoscale(world, 2, 64, 2);
        apply(world, "lake", &["west", "north"]);
        world.until("it is asked for", secs(20), |world| asked(world, 1) == (1, 1)).await?;
        let (server, name) = (world.clusters[1].server.clone(), world.clusters[1].requests()[0].name_any());
        let held = |by: &[&str]| {
            let finalizers = json!({"metadata": {"finalizers": by}});
            server.patch::<ProvisioningRequest>(USERS, &name, finalizers).unwrap();
        };
        held(&["example.org/held"]);
        let ends = |world: &World| world.clusters[1].requests()[0].metadata.deletion_timestamp.is_some();
        world.until("it is given back", WAIT + secs(30), ends).await?;
        world.run(secs(10)).await?;
        assert_eq!(status(world).peer.as_deref(), Some("west"), "{}", world.summary());
        held(&[]);
        world.until("it is ready elsewhere", WAIT, |world| ready_on(world, 2)).await
    });
}

/// The danger: whoever restarts asks twice, or forgets what was asked for.
#[test]
fn agents_die_while_nodes_are_asked_for() {
    for victim in [0, 1] {
        in_world(2, SHORT, async move |world| {
            allow(world, 1, 2);
            autoscale(world, 1, 64, 0);
            apply(world, "lake", &["west"]);
            world.until("it is asked for", secs(20), |world| asked(world, 1) == (1, 1)).await?;
            let request = world.clusters[1].requests()[0].uid();
            for number in 0..3 {
                world.run(secs(8)).await?;
                world.kill(victim, 0);
                if number == 2 {
                    autoscale(world, 1, 64, 2);
                    // It is provisioned while nobody looks.
                    world.run(secs(3)).await?;
                }
                world.start(victim, 0);
            }
            world.until("it is ready", WAIT, |world| ready_on(world, 1)).await?;
            assert_eq!(world.clusters[1].requests()[0].uid(), request, "it is the same request");
            world.delete(0, "lake");
            world.until("nothing is left", secs(120), World::nothing_left).await
        });
    }
}

#[test]
fn nodes_that_nobody_took_in_time_are_asked_for_anew() {
    in_world(2, Settings { times: (300, 10, 20), ..SHORT }, async |world| {
        allow(world, 1, 2);
        let mut peer: ClusterPeer = world.peer(1, 0).unwrap();
        peer.spec.import.as_mut().unwrap().scale_up.as_mut().unwrap().wait = Lasting::of_seconds(600);
        world.clusters[1].server.put(&peer).unwrap();
        autoscale(world, 1, 64, 2);
        apply(world, "lake", &["west"]);
        world.until("it is asked for", secs(20), |world| asked(world, 1) == (1, 1)).await?;
        world.kill(1, 0);
        world.run(BOOKED + secs(5)).await?;
        assert!(is_provisioned(world, 1) && pods(world, 1) == 0);
        world.start(1, 0);
        let refused = |world: &World| reasons(world, "lake") == [("west".to_owned(), "ScaleUpFailed".to_owned())];
        world.until("it is given back", secs(60), refused).await?;
        let said = status(world).message;
        assert!(said.contains("lake-burst-0-scale-up is BookingExpired: as it is"), "{said}");
        assert_eq!((asked(world, 1), pods(world, 1)), ((0, 0), 0));
        world.until("it is asked for again", secs(700), |world| ready_on(world, 1)).await
    });
}

/// Whoever owns the cluster takes the request, its definition, or all of it away.
#[test]
fn what_others_take_away_is_made_again_or_missed() {
    in_world(2, SHORT, async |world| {
        allow(world, 1, 2);
        autoscale(world, 1, 64, 0);
        apply(world, "lake", &["west"]);
        world.until("it is asked for", secs(20), |world| asked(world, 1) == (1, 1)).await?;
        let name = world.clusters[1].requests()[0].name_any();
        let server = world.clusters[1].server.clone();
        server.delete::<ProvisioningRequest>(USERS, &name, &DeleteParams::default()).unwrap();
        world.until("it is asked for again", secs(20), |world| asked(world, 1) == (1, 1)).await?;
        // An API server without the definition knows nothing of its objects.
        server.on_request(|info| (info.resource == "provisioningrequests").then_some(Fault::Answer(404)));
        let refused = |world: &World| reasons(world, "lake") == [("west".to_owned(), "ScaleUpFailed".to_owned())];
        world.until("it is given back", secs(60), refused).await?;
        assert!(hosted(world, 1).is_none() && pods(world, 1) == 0);
        let told = status(world).message;
        world.run(WAIT + secs(20)).await?;
        let message = status(world).message;
        assert!(message.contains("this cluster does not serve them (autoscaling.x-k8s.io/v1)"), "{told}: {message}");
        server.on_request(|_| None);
        drop(server.delete::<ProvisioningRequest>(USERS, &name, &DeleteParams::default()));
        autoscale(world, 1, 64, 2);
        world.until("it is ready once there is one again", secs(320), |world| ready_on(world, 1)).await
    });
}

#[test]
fn it_ends_at_once_when_it_is_not_wanted_any_more_or_its_root_is_lost() {
    in_world(2, SHORT, async |world| {
        allow(world, 1, 2);
        autoscale(world, 1, 64, 0);
        apply(world, "lake", &["west"]);
        world.until("it is asked for", secs(20), |world| asked(world, 1) == (1, 1)).await?;
        world.delete(0, "lake");
        world.until("nothing is left", secs(30), World::nothing_left).await?;
        apply(world, "lake", &["west"]);
        world.until("it is asked for", secs(20), |world| asked(world, 1) == (1, 1)).await?;
        world.cut(0, 1, true);
        world.until("its lease ends", WAIT, |world| hosted(world, 1).is_none()).await?;
        assert_eq!(asked(world, 1), (0, 0));
        Ok(())
    });
}

/// Half of the nodes come after all: pods that wait for the others do not wait for ever.
#[test]
fn nodes_that_were_promised_and_do_not_come_are_waited_for_as_long_as_others() {
    in_world(2, SHORT, async |world| {
        allow(world, 1, 2);
        autoscale(world, 1, 64, 2);
        apply(world, "lake", &["west"]);
        world.until("it is asked for", secs(20), |world| is_provisioned(world, 1)).await?;
        let begun = world.now();
        // The cloud is out of them.
        world.clusters[1].autoscaler.as_mut().unwrap().lose(1);
        world.until("its pods are made", secs(10), |world| pods(world, 1) == 2).await?;
        let refused = |world: &World| reasons(world, "lake") == [("west".to_owned(), "ScaleUpTimedOut".to_owned())];
        world.until("it is given back", WAIT + secs(30), refused).await?;
        assert!(world.now().saturating_since(begun) + Duration::from_secs(5) > WAIT);
        assert_eq!((asked(world, 1), pods(world, 1)), ((0, 0), 0));
        Ok(())
    });
}
