//! Whose turn it is: by PriorityClasses, by nodes that an autoscaler makes, and not while it is suspended.

use super::*;

#[test]
fn with_an_autoscaler_whoever_fits_a_node_that_is_known_starts_so_that_pods_ask_for_more_nodes() {
    let mut world = World::default();
    let setup = |check: &str| json!({"checkNodes": check, "quota": {"brokers": 20}});
    world.setup("default", 0, setup("Autoscaled")).asks("a", 1, 3).job("b", 2, json!({"size": 9}));
    assert_eq!(world.round(), ["a-uid", "b-uid"], "the nodes that are there hold four");
    // Who fits no node gets no pods: nothing would come for them.
    world.fewer = 4;
    world.job("c", 3, json!({}));
    assert!(!world.round().contains(&"c-uid".to_owned()));
    assert!(world.message("c").contains("they can hold 0 of 1"), "{}", world.message("c"));
    // Groups that have no node now are asked as well, but for nobody who needs the nodes that are there.
    let group = |check: &str| {
        let mut setup = setup(check);
        setup["nodeGroups"] = json!([{"name": "large", "cpu": 96, "memory": "384Gi"}]);
        serde_json::from_value(setup).unwrap()
    };
    Arc::make_mut(&mut world.setups[0]).spec = group("Now");
    assert!(!world.round().contains(&"c-uid".to_owned()));
    Arc::make_mut(&mut world.setups[0]).spec = group("Autoscaled");
    assert!(world.round().contains(&"c-uid".to_owned()));
    world.job("d", 4, json!({}));
    Arc::make_mut(&mut world.setups[0]).spec = serde_json::from_value(setup("Never")).unwrap();
    assert!(world.round().contains(&"d-uid".to_owned()));
}

#[test]
fn who_is_suspended_stands_in_no_line_and_what_runs_of_it_is_taken_back_before_it_may_start_again() {
    let mut world = World::default();
    world.setup("default", 0, json!({"quota": {"brokers": 2}}));
    world.job("a", 1, json!({"size": 2, "suspend": true})).job("b", 2, json!({"size": 2}));
    assert_eq!(world.round(), ["b-uid"]);
    assert_eq!(world.message("a"), "it is suspended: it stands in line once spec.suspend is false");
    assert_eq!((world.status().running, world.status().waiting), (1, 0));
    let suspend = |world: &mut World, name: &str, suspend: bool| {
        let job = world.jobs.iter_mut().find(|one| one.name_any() == name).unwrap();
        Arc::make_mut(job).spec.suspend = suspend;
    };
    let made = json!({"ownerReferences": owned_by("b"), "spec": {"size": 2, "containers": [{}]},
        "status": {"phase": "Running", "incarnation": "j"}});
    world.cluster("b", 2, made);
    world.round();
    suspend(&mut world, "b", true);
    suspend(&mut world, "a", false);
    let mut started = BTreeSet::new();
    for _ in 0..4 {
        started.extend(world.round());
        let b = world.mini_clusters.iter().any(|one| one.name_any() == "b");
        assert!(!(b && started.contains("a-uid")), "both never have the room at once");
    }
    assert_eq!(started, ["a-uid".to_owned()].into());
    let status = world.jobs[1].status.clone().unwrap();
    assert_eq!((status.phase, status.returned, status.admitted), (JobPhase::Waiting, None, None));
    // It begins anew.
    suspend(&mut world, "b", false);
    Arc::make_mut(&mut world.setups[0]).spec.quota.brokers = Some(4);
    assert!(world.round().contains(&"b-uid".to_owned()));
}

#[test]
fn who_goes_first_is_said_by_priority_classes_and_who_names_none_that_there_is_holds_up_nobody() {
    let mut world = World::default();
    world.setup("default", 0, json!({"quota": {"miniClusters": 1}})).asks("a", 1, 1).asks("b", 2, 1).asks("c", 0, 1);
    let class = |world: &mut World, index: usize, class: &str| {
        Arc::make_mut(&mut world.mini_clusters[index]).spec.pod.priority_class_name = Some(class.to_owned());
    };
    class(&mut world, 1, "high");
    class(&mut world, 2, "mine");
    world.job("d", 0, json!({"priorityClassName": "mine"})).job("e", 0, json!({"priorityClassName": "low"}));
    assert_eq!(world.round(), ["b-uid"]);
    let none = "priorityClassName: there is no PriorityClass mine in this cluster; there is high, low";
    assert_eq!(world.message("d"), format!("spec.{none}"));
    assert_eq!(world.told["c-uid"], format!("spec.pod.{none}"));
    let status = world.jobs[0].status.clone().unwrap();
    let valid = conditions::find(&status.conditions, "Valid").unwrap();
    assert_eq!((valid.status.as_str(), valid.reason.as_str()), ("False", "PriorityRefused"));
    assert_eq!((world.status().running, world.status().waiting), (1, 4));
    world.mini_clusters.retain(|one| one.name_any() != "b");
    assert_eq!(world.round(), ["a-uid"], "not e, which is lower, though it came before");
}
