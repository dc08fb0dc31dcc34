//! What must never happen, and what must always come about in the end.

use proptest::prelude::*;
use tributary_api::hosted_burst::BurstPhase;
use tributary_api::minicluster::BurstNetworkType::{NodePort, Tunnel};
use tributary_api::minicluster::Phase;

use super::weather::Weather;
use super::world::World;
use crate::provider::ledger::SlotKey;

fn slot() -> SlotKey {
    ("flux".into(), "lake-burst-0".into())
}

fn ready() -> World {
    let mut world = World::with_root(&["west"]);
    world.until(20, "ready", |world| world.ready_on("west"));
    world
}

#[test]
fn a_burst_becomes_ready_and_then_nobody_writes() {
    let mut world = ready();
    world.run(3);
    let writes = |world: &World| world.clusters.values().map(|cluster| cluster.writes).sum::<u64>();
    let before = writes(&world);
    world.run(300);
    assert_eq!(writes(&world), before, "settled");
    for name in super::world::NAMES {
        world.restart(name);
    }
    world.run(300);
    assert_eq!(writes(&world), before, "a restart of all agents writes nothing");
    assert!(world.ready_on("west"));
    assert_eq!(world.clusters["west"].endpoints[&slot()], ["192.0.2.1"]);
}

#[test]
fn whatever_agent_restarts_at_whatever_moment_it_converges() {
    for at in 0..12 {
        for name in ["east", "west"] {
            let mut world = World::with_root(&["west"]);
            world.run(at);
            world.restart(name);
            world.until(30, &format!("{name} restarted at {at} s"), |world| world.ready_on("west"));
            world.root().status.as_mut().unwrap().phase = Some(Phase::Succeeded);
            world.run(at);
            world.restart(name);
            world.until(40, &format!("{name} restarted {at} s after the end"), |world| {
                world.is_empty("west") && world.phase().is_some_and(|(phase, _)| phase == BurstPhase::Released)
            });
        }
    }
}

#[test]
fn a_cut_at_whatever_moment_ends_well() {
    for at in 0..12 {
        for length in [1, 20, 400] {
            let mut world = World::with_root(&["west", "north"]);
            world.run(at);
            world.cut.insert("west".into());
            world.run(length);
            world.cut.clear();
            let ready = |world: &World| world.ready_on("west") || world.ready_on("north");
            world.until(500, &format!("cut at {at} s for {length} s"), ready);
            if length <= 20 && at >= 8 {
                assert!(world.ready_on("west"), "a blip moves nothing");
            }
            world.until(200, "no leftovers", |world| world.is_empty("west") != world.is_empty("north"));
        }
    }
}

/// What a FluxSetup over there does not grant is asked for until it does: the peer takes it then, by itself. What is there
/// stays, whatever becomes of the grant.
#[test]
fn a_burst_waits_at_the_door_of_a_namespace_until_its_flux_setup_has_room() {
    let mut world = World::new();
    world.cluster("west").granted = Some(4);
    world.apply("east", "lake", 1, (Some("west"), 3));
    world.until(20, "the first is in", |world| world.ready_on("west"));
    world.apply("east", "pond", 1, (Some("west"), 2));
    world.run(60);
    let pond = world.clusters["east"].bursts["pond-burst-0"].status.clone().unwrap();
    assert_eq!((pond.phase, pond.refusals[0].reason.as_str()), (BurstPhase::Rejected, "NoRoomInQueue"));
    assert_eq!(world.clusters["west"].hosted.len(), 1, "nothing of it is made that would wait there");
    for name in ["east", "west"] {
        world.restart(name);
        world.run(30);
        assert_eq!(world.clusters["west"].hosted.len(), 1, "{name} asks, and is asked, anew");
    }
    world.cluster("west").granted = Some(6);
    let made =
        |world: &World| world.clusters["west"].mini_clusters.contains_key(&("flux".into(), "pond-burst-0".into()));
    world.until(20, "the second is in", made);
    world.cluster("west").granted = Some(0);
    world.run(60);
    assert!(world.ready_on("west") && made(&world), "what is there stays");
}

/// Ten minutes without a network, from any second of a burst's life on, while words take seconds, sessions break and
/// clocks are hours apart. The same ranks never run twice (checked each second), and nothing is left over.
#[test]
fn a_partition_of_ten_minutes_at_any_point_leaves_no_orphan_and_no_duplicate() {
    let cases = [("west", None), ("east", None), ("west", Some(0)), ("west", Some(200))];
    for (at, (side, ends_at)) in (0..26).step_by(2).zip(cases.into_iter().cycle()) {
        let case = format!("{side} cut off at {at} s, root ends {ends_at:?} s later");
        let mut world = World::with_root(&["west", "north"]);
        world.weather = Some(Weather::bad(at * 10 + ends_at.unwrap_or(1)));
        world.run(at);
        let end = |world: &mut World| world.root().status.as_mut().unwrap().phase = Some(Phase::Succeeded);
        if ends_at == Some(0) {
            end(&mut world);
        }
        world.cut.insert(side.into());
        world.run(200);
        if ends_at == Some(200) {
            end(&mut world);
        }
        world.run(400);
        world.cut.clear();
        if ends_at.is_none() {
            let ready = |world: &World| world.ready_on("west") || world.ready_on("north");
            world.until(120, &format!("{case}: ready"), ready);
            world.until(60, &format!("{case}: one"), |world| world.is_empty("west") != world.is_empty("north"));
            end(&mut world);
        }
        world.until(60, &format!("{case}: nothing is left"), |world| {
            let over = world.phase().is_none_or(|(phase, _)| phase == BurstPhase::Released);
            over && world.is_empty("west") && world.is_empty("north")
        });
    }
}

#[test]
fn a_root_that_ends_is_released_within_five_seconds() {
    type End = fn(&mut World);
    let table: [(&str, End); 3] = [
        ("finished", |world| world.root().status.as_mut().unwrap().phase = Some(Phase::Succeeded)),
        ("suspended", |world| world.root().spec.suspend = true),
        ("deleted", |world| world.cluster("east").roots.clear()),
    ];
    for (case, end) in table {
        let mut world = ready();
        end(&mut world);
        world.run(5);
        assert!(world.clusters["west"].mini_clusters.is_empty(), "{case}");
        world.until(10, case, |world| world.is_empty("west"));
    }
    let mut world = ready();
    world.root().spec.suspend = true;
    world.until(20, "suspended", |world| world.is_empty("west"));
    world.root().spec.suspend = false;
    world.until(30, "resumed", |world| world.ready_on("west"));
}

#[test]
fn an_evicted_burst_is_not_offered_there_again_until_somebody_asks_for_it() {
    for restarted in [None, Some("east"), Some("west")] {
        let mut world = ready();
        if let Some(name) = restarted {
            world.restart(name);
        }
        world.cluster("west").hosted.clear();
        world.until(20, "evicted", |world| world.phase() == Some((BurstPhase::Evicted, None)));
        assert!(world.is_empty("west"), "the word comes when nothing runs any more");
        world.run(200);
        assert!(world.is_empty("west"));
        let mut annotations = std::collections::BTreeMap::new();
        annotations.insert(tributary_api::labels::RETRY.to_owned(), "1".to_owned());
        world.cluster("east").bursts.get_mut("lake-burst-0").unwrap().metadata.annotations = Some(annotations);
        world.until(100, "asked for again", |world| world.ready_on("west"));
    }
}

#[test]
fn an_eviction_while_no_agent_ran_is_one() {
    let mut world = ready();
    world.cut.insert("west".into());
    world.run(2);
    world.cluster("west").hosted.clear();
    world.restart("west");
    world.run(2);
    world.cut.clear();
    world.until(20, "evicted", |world| world.phase() == Some((BurstPhase::Evicted, None)));
}

#[test]
fn a_burst_that_one_peer_evicts_goes_to_the_next_only_when_it_is_gone() {
    let mut world = World::with_root(&["west", "north"]);
    world.until(20, "ready", |world| world.ready_on("west"));
    world.cluster("west").hosted.clear();
    world.until(40, "moved", |world| world.ready_on("north"));
    assert!(world.is_empty("west"));
}

#[test]
fn hosted_objects_come_back() {
    let mut world = ready();
    world.cluster("west").mini_clusters.clear();
    world.until(20, "the MiniCluster is back", |world| {
        !world.clusters["west"].mini_clusters.is_empty() && world.ready_on("west")
    });
    world.cluster("west").secrets.clear();
    world.cluster("west").mini_clusters.clear();
    world.until(20, "the certificate is back", |world| {
        !world.clusters["west"].secrets.is_empty() && world.ready_on("west")
    });
    let mini_cluster = world.cluster("west").mini_clusters.get_mut(&slot()).unwrap();
    mini_cluster.spec.size = Some(1);
    mini_cluster.spec.interactive = true;
    world.until(20, "an edit is reverted", |world| {
        let spec = &world.clusters["west"].mini_clusters[&slot()].spec;
        spec.size == Some(3) && !spec.interactive
    });
}

#[test]
fn a_root_made_anew_replaces_its_burst_and_is_never_joined_to_the_old_one() {
    for cut in [0, 10, 100] {
        let mut world = ready();
        world.cut.insert("west".into());
        world.run(1);
        world.cluster("east").roots.clear();
        world.run(cut);
        world.make_root("root-2", "job-2", &["west"]);
        world.run(2);
        world.cut.clear();
        world.until(120, "replaced", |world| {
            let hosted = &world.clusters["west"].hosted;
            hosted.get(&slot()).is_some_and(|hosted| hosted.spec.root.uid == "root-2") && world.ready_on("west")
        });
    }
    let mut world = ready();
    world.make_root("root-1", "job-2", &["west"]);
    world.until(60, "a new Job is a new instance", |world| {
        world.clusters["west"].hosted.get(&slot()).is_some_and(|hosted| hosted.spec.root.incarnation == "job-2")
            && world.ready_on("west")
    });
}

#[test]
fn a_lease_that_ends_under_a_restarted_agent_is_no_eviction() {
    let mut world = World::with_root(&["west"]);
    world.until(20, "ready", |world| world.ready_on("west"));
    world.cut.insert("east".into());
    world.run(100).restart("west");
    world.until(280, "the lease goes on counting", |world| world.is_empty("west"));
    world.restart("east");
    world.cut.clear();
    world.until(60, "the burst is back", |world| world.ready_on("west"));
}

#[test]
fn a_lease_ends_by_itself_and_the_root_waits_for_it() {
    let mut world = World::with_root_by(Tunnel, &["west", "north"]);
    world.until(20, "ready", |world| world.ready_on("west"));
    world.cut.insert("west".into());
    world.run(299);
    assert!(!world.is_empty("west"), "the lease is 300 s");
    world.run(105);
    assert!(world.is_empty("west"));
    assert_eq!(world.phase(), Some((BurstPhase::Lost, Some("west".into()))));
    world.until(30, "moved", |world| world.ready_on("north"));
    world.cut.clear();
    world.run(100);
    assert!(world.ready_on("north") && world.is_empty("west"), "the first peer's return changes nothing");
}

#[test]
fn a_provider_that_restarts_does_not_forget_that_the_root_is_gone() {
    let mut world = ready();
    world.cut.insert("east".into());
    for _ in 0..5 {
        world.run(61);
        world.restart("west");
    }
    world.run(65);
    assert!(world.is_empty("west"), "five restarts did not prolong the lease: {}", world.summary());
}

#[test]
fn absence_counts_only_if_the_list_is_complete_and_lasts() {
    // Without an agent nothing is listed.
    let mut world = ready();
    world.kill("east");
    world.run(60);
    assert!(!world.is_empty("west"));
    world.restart("east");
    world.run(60);
    assert!(world.ready_on("west"), "an agent that has just started deletes nothing");

    // The root was deleted while its agent did not run: no tombstone, but complete lists without the burst.
    world.kill("east");
    world.cluster("east").roots.clear();
    world.cluster("east").bursts.clear();
    world.restart("east");
    world.run(25);
    assert!(!world.is_empty("west"), "not before the grace period");
    world.until(20, "absent for the grace period", |world| world.is_empty("west"));
}

#[test]
fn a_policy_that_changes_its_mind_is_noticed_without_a_word() {
    let mut world = World::new();
    let peer = world.cluster("west").peers.get_mut("east").unwrap();
    let import = peer.spec.import.take();
    world.make_root("root-1", "job-1", &["west"]);
    world.until(20, "rejected", |world| world.phase() == Some((BurstPhase::Rejected, None)));
    let status = world.clusters["east"].bursts["lake-burst-0"].status.clone().unwrap();
    assert_eq!(status.refusals[0].reason, "ImportNotAllowed");
    world.run(100);
    world.cluster("west").peers.get_mut("east").unwrap().spec.import = import;
    world.until(20, "accepted after all", |world| world.ready_on("west"));
}

#[test]
fn a_removed_peer_keeps_its_ranks_reserved() {
    let mut world = World::with_root_by(Tunnel, &["west", "north"]);
    world.until(20, "ready", |world| world.ready_on("west"));
    world.cluster("east").peers.remove("west");
    world.run(405);
    assert!(!world.ready_on("north"));
    world.until(30, "moved", |world| world.ready_on("north"));
    assert!(world.is_empty("west"));
}

/// The danger: the pods of an agent that is down still reach the lead, and another peer runs their ranks.
#[test]
fn no_time_moves_a_slot_that_brokers_reach_directly() {
    let mut world = World::with_root(&["west", "north"]);
    world.until(20, "ready", |world| world.ready_on("west"));
    world.kill("west");
    world.run(600);
    assert_eq!(world.phase(), Some((BurstPhase::Lost, Some("west".into()))), "its pods run on");
    // Whoever deletes the Burst does not free its slot either.
    world.count_bursts();
    world.cluster("east").bursts.clear();
    world.run(500);
    assert_eq!(world.phase(), Some((BurstPhase::Lost, Some("west".into()))));
    world.restart("west");
    world.until(200, "it is back", |world| world.ready_on("west"));
    world.cluster("east").peers.remove("west");
    world.run(600);
    assert!(!world.ready_on("north"));
    let burst = world.cluster("east").bursts.get_mut("lake-burst-0").unwrap();
    let status = burst.status.clone().unwrap();
    let word = serde_json::json!({"burstUID": burst.metadata.uid, "incarnation": burst.spec.incarnation,
        "peer": status.peer, "lostSince": status.lost_since, "by": "alice", "at": status.lost_since});
    burst.metadata.annotations = Some([(tributary_api::labels::RELEASE.to_owned(), word.to_string())].into());
    world.until(30, "moved by a person's word", |world| world.ready_on("north"));
}

#[test]
fn sizes_follow_the_root() {
    let mut world = ready();
    world.root().spec.flux.bursting.clusters[0].size = Some(2);
    world.until(20, "smaller", |world| world.clusters["west"].jobs[&slot()].pods == 2 && world.ready_on("west"));
    world.root().spec.flux.bursting.clusters[0].size = Some(3);
    world.until(20, "larger", |world| world.clusters["west"].jobs[&slot()].pods == 3 && world.ready_on("west"));
}

#[derive(Clone, Copy, Debug)]
enum Fault {
    Restart(usize),
    Kill(usize),
    StopApi(usize),
    Cut(usize),
    Heal,
    Evict(usize),
    DeleteMiniCluster(usize),
    DeleteSecret(usize),
    Suspend,
    NewJob,
    NewRoot,
    Resize(i32),
    Wait(u64),
}

fn fault() -> impl Strategy<Value = Fault> {
    prop_oneof![
        (0..3_usize).prop_map(Fault::Restart),
        (0..3_usize).prop_map(Fault::Kill),
        (0..3_usize).prop_map(Fault::StopApi),
        (0..3_usize).prop_map(Fault::Cut),
        Just(Fault::Heal),
        (1..3_usize).prop_map(Fault::Evict),
        (1..3_usize).prop_map(Fault::DeleteMiniCluster),
        (1..3_usize).prop_map(Fault::DeleteSecret),
        Just(Fault::Suspend),
        Just(Fault::NewJob),
        Just(Fault::NewRoot),
        (1..4).prop_map(Fault::Resize),
        (1..450_u64).prop_map(Fault::Wait),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 10, ..ProptestConfig::default() })]

    /// Any sequence of faults: the same ranks never run twice (checked every second), and once the faults are over,
    /// everything comes to rest with the burst ready, or refused by all who evicted it.
    #[test]
    fn any_faults_end_well(
        faults in proptest::collection::vec((fault(), 0..15_u64), 1..14),
        weather in proptest::option::of(any::<u64>()),
        tunnel in any::<bool>(),
    ) {
        let mut world = World::with_root_by(if tunnel { Tunnel } else { NodePort }, &[]);
        world.weather = weather.map(Weather::bad);
        let mut lives = 1;
        for (fault, pause) in faults {
            world.run(pause);
            let name = |index: usize| super::world::NAMES[index];
            match fault {
                Fault::Restart(index) => world.restart(name(index)),
                Fault::Kill(index) => world.kill(name(index)),
                Fault::StopApi(index) => world.stop_api(name(index)),
                Fault::Cut(index) => { world.cut.insert(name(index).into()); }
                Fault::Heal => world.heal(),
                _ if world.clusters.values().any(|cluster| cluster.away.is_some()) => {}
                Fault::Evict(index) => world.cluster(name(index)).hosted.clear(),
                Fault::DeleteMiniCluster(index) => world.cluster(name(index)).mini_clusters.clear(),
                Fault::DeleteSecret(index) => world.cluster(name(index)).secrets.clear(),
                Fault::Suspend => { let root = world.root(); root.spec.suspend = !root.spec.suspend; }
                Fault::NewJob => { lives += 1; world.make_root("root-1", &format!("job-{lives}"), &[]); }
                Fault::NewRoot => {
                    lives += 1;
                    world.cluster("east").roots.clear();
                    world.run(1);
                    world.make_root(&format!("root-{lives}"), &format!("job-{lives}"), &[]);
                }
                Fault::Resize(size) => world.root().spec.flux.bursting.clusters[0].size = Some(size),
                Fault::Wait(secs) => { world.run(secs); }
            }
        }
        world.heal();
        world.root().spec.suspend = false;
        world.run(800);
        world.weather = None;
        world.run(100);
        let (phase, peer) = world.phase().unwrap();
        match peer {
            Some(peer) => {
                prop_assert_eq!(phase, BurstPhase::Ready, "{}", world.summary());
                let other = if peer == "west" { "north" } else { "west" };
                prop_assert!(world.is_empty(other), "{}", world.summary());
                prop_assert!(!world.is_empty(&peer));
            }
            None => {
                prop_assert_eq!(phase, BurstPhase::Evicted, "{}", world.summary());
                prop_assert!(world.is_empty("west") && world.is_empty("north"), "{}", world.summary());
            }
        }
    }
}
