//! FluxJobs that are split: which can be, and whether their other part joins.

use super::elsewhere::overflowing;
use super::*;

#[test]
fn a_job_that_could_not_run_in_parts_is_not_split_and_says_why() {
    for (brings, told) in [
        (
            json!({"flux": {"topology": "kary:2"}}),
            "in parts, its MiniCluster would be refused: spec.flux.topology: topology kary:2 would connect brokers",
        ),
        (
            json!({"volumes": {"data": {"path": "/srv/data", "capacity": "5Gi"}}}),
            "spec.miniCluster.volumes.data is made in this cluster: brokers elsewhere would see an empty directory",
        ),
    ] {
        let mut world = overflowing("Split", 4, 9);
        world.asks("runs", 1, 2).job("wide", 2, json!({"size": 4, "allowBurst": true, "miniCluster": brings}));
        assert_eq!(world.round(), ["runs-uid"]);
        let message = world.message("wide");
        assert!(message.contains(&format!("it is not sent to a peer: {told}")), "{message}");
        // It runs here as a whole.
        world.seen.look.mini_clusters.clear();
        world.seen.look.granted.clear();
        assert_eq!(world.round(), ["wide-uid"]);
        assert_eq!(world.of("wide").split, None);
    }
    // As long a name as a FluxJob may have.
    let (mut world, name) = (overflowing("Split", 2, 9), "a".repeat(52));
    world.job(&name, 1, json!({"size": 4, "allowBurst": true}));
    assert_eq!(world.round(), [format!("{name}-uid")]);
    assert!(world.of(&name).split.is_some());
}

#[test]
fn a_job_whose_command_waits_for_a_number_of_brokers_is_split_if_so_many_are_elsewhere() {
    for (here, wait, away) in [
        (4, json!({"for": 3}), None),
        (4, json!({"for": 2}), Some(2)),
        (3, json!({"for": 3}), Some(3)),
        (4, json!({"for": 3, "timeout": "1m"}), Some(2)),
        (4, json!({"for": 6}), None),
    ] {
        let mut world = overflowing("Split", here, 9);
        let brings = json!({"flux": {"bursting": {"wait": wait}}});
        world.job("wide", 1, json!({"size": 6, "allowBurst": true, "miniCluster": brings}));
        world.round();
        assert_eq!(world.of("wide").split.map(|split| split.away), away, "{wait}: {}", world.message("wide"));
        if here == 4 && wait == json!({"for": 3}) {
            let told = "it can never start here: 6 brokers are needed, 4 is the whole quota; it is not sent to a peer: in parts, \
                        its command would wait for ever: 2 brokers would be elsewhere, of the 3 that it waits for";
            assert!(world.message("wide").starts_with(told), "{}", world.message("wide"));
        }
    }
}

/// A time as a Burst has it.
fn when(second: i64) -> String {
    format!("{:.6}", at(100 + second))
}

/// A FluxJob of six brokers, two of them for west. Its command waits for all of them.
fn split_onto_west() -> World {
    let mut world = overflowing("Split", 4, 9);
    world.job("wide", 1, json!({"size": 6, "allowBurst": true}));
    Arc::make_mut(&mut world.seen.jobs[0]).metadata.uid = Some("0f1e2d3c".into());
    assert_eq!(world.round(), ["0f1e2d3c"]);
    let slot = "wide-0f1e2d";
    let bursting = json!({"clusters": [{"name": slot, "size": 2}], "span": true, "wait": {"for": "All"}});
    let owner = json!([{"apiVersion": "tributary.dev/v1alpha1", "kind": "FluxJob", "name": "wide", "uid": "0f1e2d3c",
        "controller": true}]);
    let spec = json!({"size": 4, "containers": [{}], "flux": {"bursting": bursting}});
    world.cluster("wide", 2, json!({"spec": spec, "ownerReferences": owner}));
    let owner = json!([{"apiVersion": "flux-framework.org/v1alpha2", "kind": "MiniCluster", "name": "wide",
        "uid": "wide-uid", "controller": true}]);
    let part = json!({"spec": {"size": 2}, "ownerReferences": owner});
    world.seen.bursts.push(Arc::new(object(&names::burst_object("wide", slot), 3, part)));
    world
}

impl World {
    /// The phase of the MiniCluster of `wide`, and the status of the Burst of its other part.
    fn stands(&mut self, phase: &str, there: &Value) {
        let row = json!({"name": "wide-0f1e2d", "size": 2, "ready": 1, "phase": there["phase"], "peer": "west"});
        let here = json!({"size": 4, "selector": "", "phase": phase, "incarnation": "j", "bursts": [row]});
        Arc::make_mut(&mut self.seen.look.mini_clusters[0]).status = Some(serde_json::from_value(here).unwrap());
        Arc::make_mut(&mut self.seen.bursts[0]).status = Some(serde_json::from_value(there.clone()).unwrap());
    }
}

#[test]
fn only_brokers_that_do_not_join_while_both_sides_are_up_are_the_peers_fault() {
    let burst = |phase: &str, times: Value| json!({"peer": "west", "phase": phase, "times": times});
    let joins = || burst("Joining", json!({"accepted": when(0), "started": when(0)}));
    let mut lost = joins();
    lost["lostSince"] = at(100).to_string().into();
    let were_there = burst("Joining", json!({"started": when(0), "ready": when(9)}));
    let [queued, away] = ["Queued", "Lost"].map(|phase| burst(phase, json!({"started": when(0)})));
    let running = "Running";
    for (case, steps, began, recalled) in [
        ("ten minutes", vec![(300, running, joins())], 0, true),
        ("less of them", vec![(400, running, joins())], 0, false),
        ("an agent that leads since lately", vec![(300, running, joins())], 501, false),
        ("no lead", vec![(300, "Starting", joins())], 0, false),
        (
            "no lead for a while",
            vec![(300, running, joins()), (400, "Starting", joins()), (500, running, joins())],
            0,
            false,
        ),
        ("no pods yet", vec![(300, running, burst("Provisioning", json!({"accepted": when(0)})))], 0, false),
        ("it waits in a queue again", vec![(300, running, joins()), (400, running, queued.clone())], 0, false),
        ("it waited in one", vec![(300, running, joins()), (400, running, queued), (500, running, joins())], 0, false),
        ("its peer is away", vec![(300, running, away)], 0, false),
        ("its peer was away", vec![(300, running, joins()), (400, running, lost), (500, running, joins())], 0, false),
        ("they were there once", vec![(300, running, were_there)], 0, false),
    ] {
        let mut world = split_onto_west();
        world.began = began;
        for (second, here, there) in &steps {
            world.stands(here, there);
            world.second = *second;
            world.round();
        }
        world.second = 950;
        world.round();
        assert_eq!(world.of("wide").recalled.is_some(), recalled, "{case}: {}", world.message("wide"));
    }
}

#[test]
fn a_split_job_whose_other_part_never_joins_comes_back_and_is_not_split_onto_that_peer_again() {
    let mut world = split_onto_west();
    let joins = json!({"peer": "west", "phase": "Joining", "times": {"accepted": when(0), "started": when(0)}});
    world.stands("Running", &joins);
    world.round();
    world.second += 598;
    world.round();
    let told = "it waits until all its brokers are there: 4 brokers here, 2 on west (Joining)";
    assert_eq!((world.of("wide").phase, world.message("wide").as_str()), (JobPhase::Ready, told));
    world.round();
    let why = "after 10m not all its brokers there have joined, though their pods run";
    assert_eq!(world.message("wide"), format!("it is taken back: west: {why}"));
    world.seen.bursts.clear();
    (0..3).for_each(|_| drop(world.round()));
    world.second += 7200;
    assert_eq!(world.round(), [""; 0], "though it has room");
    let told = format!("it is not sent to a peer: west: refused ({}): {why}", reason::NEVER_JOINED);
    assert!(world.message("wide").ends_with(&told), "{}", world.message("wide"));
}
