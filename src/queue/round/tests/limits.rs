//! How long runs may last, and who passes whom by that.

use super::*;

/// A MiniCluster that asks for its Job, with a `deadlineSeconds`, if any is written.
fn limited(world: &mut World, name: &str, since: i64, size: i64, seconds: Option<i64>) {
    let mut spec = json!({"size": size, "containers": [{}]});
    seconds.inspect(|seconds| spec["deadlineSeconds"] = json!(seconds));
    world.cluster(name, since, json!({"spec": spec}));
    world.seen.look.asked.insert(format!("{name}-uid"));
}

#[test]
fn nothing_without_a_limit_or_with_a_longer_one_starts_where_runs_may_last_so_long() {
    let mut world = World::default();
    world.setup("default", 0, json!({"maxDuration": "1h"}));
    for (name, seconds) in
        [("none", Some(0)), ("unwritten", None), ("default", Some(31_500_000)), ("longer", Some(3601))]
    {
        limited(&mut world, name, 1, 1, seconds);
    }
    limited(&mut world, "fits", 2, 1, Some(3600));
    // FluxJobs that have none of their own get the longest; one that brings a longer one said so.
    world.job("brings-none", 3, json!({"miniCluster": {"deadlineSeconds": 0}})).job("unlimited", 3, json!({}));
    world.job("brings", 3, json!({"miniCluster": {"deadlineSeconds": 60}}));
    world.job("long", 4, json!({"timeLimit": "2h"}));
    world.job("brings-long", 4, json!({"miniCluster": {"deadlineSeconds": 7200}}));
    assert_eq!(world.round(), ["fits-uid", "brings-none-uid", "unlimited-uid", "brings-uid"]);
    for name in ["long", "brings-long"] {
        assert_eq!(world.message(name), "its time limit is 2h; at most 1h is allowed here");
    }
    assert_eq!((world.status().running, world.status().waiting), (4, 6));
    let none = "runs here must have a time limit of at most 1h";
    for (name, told) in [
        ("none", none),
        ("unwritten", none),
        ("default", none),
        ("longer", "its time limit is 1h1s; at most 1h is allowed here"),
    ] {
        assert_eq!(world.told[&format!("{name}-uid")], told, "{name}");
    }
    // The default is no longer than this.
    world.setup("default", 0, json!({"maxDuration": "11112h"}));
    let started = world.round();
    assert_eq!(started[..3], ["default-uid", "longer-uid", "unwritten-uid"]);
    assert_eq!(started[started.len() - 2..], ["long-uid", "brings-long-uid"]);
}

#[test]
fn who_has_no_limit_passes_nobody_and_is_planned_on_by_nobody() {
    for unlimited in [Some(0), None, Some(31_500_000)] {
        let mut world = World::default();
        world.setup("default", 0, json!({"quota": {"brokers": 8}}));
        limited(&mut world, "runs", 1, 6, Some(3600));
        assert_eq!(world.round(), ["runs-uid"]);
        limited(&mut world, "head", 2, 8, None);
        limited(&mut world, "passes", 3, 2, unlimited);
        world.job("as-job", 3, json!({"size": 2, "miniCluster": {"deadlineSeconds": unlimited}}));
        assert_eq!(world.round(), [""; 0], "{unlimited:?} would be in the way of the head in an hour");
        limited(&mut world, "brief", 4, 1, Some(60));
        assert_eq!(world.round(), ["brief-uid"]);
        // Nor is it known when the head starts behind one.
        let mut world = World::default();
        world.setup("default", 0, json!({"quota": {"brokers": 8}}));
        limited(&mut world, "runs", 1, 6, unlimited);
        assert_eq!(world.round(), ["runs-uid"]);
        limited(&mut world, "head", 2, 8, None);
        limited(&mut world, "brief", 4, 1, Some(60));
        assert_eq!(world.round(), [""; 0], "{unlimited:?}: the head may start within a minute");
    }
}
