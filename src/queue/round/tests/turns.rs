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
    *world.rules() = group("Now");
    assert!(!world.round().contains(&"c-uid".to_owned()));
    *world.rules() = group("Autoscaled");
    assert!(world.round().contains(&"c-uid".to_owned()));
    world.job("d", 4, json!({}));
    *world.rules() = serde_json::from_value(setup("Never")).unwrap();
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
        let job = world.seen.jobs.iter_mut().find(|one| one.name_any() == name).unwrap();
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
        let b = world.seen.look.mini_clusters.iter().any(|one| one.name_any() == "b");
        assert!(!(b && started.contains("a-uid")), "both never have the room at once");
    }
    assert_eq!(started, ["a-uid".to_owned()].into());
    let status = world.seen.jobs[1].status.clone().unwrap();
    assert_eq!((status.phase, status.returned, status.admitted), (JobPhase::Waiting, None, None));
    // It begins anew.
    suspend(&mut world, "b", false);
    world.rules().quota.brokers = Some(4);
    assert!(world.round().contains(&"b-uid".to_owned()));
}

#[test]
fn who_goes_first_is_said_by_priority_classes_and_who_names_none_that_there_is_holds_up_nobody() {
    let mut world = World::default();
    world.setup("default", 0, json!({"quota": {"miniClusters": 1}})).asks("a", 1, 1).asks("b", 2, 1).asks("c", 0, 1);
    let class = |world: &mut World, index: usize, class: &str| {
        Arc::make_mut(&mut world.seen.look.mini_clusters[index]).spec.pod.priority_class_name = Some(class.to_owned());
    };
    class(&mut world, 1, "high");
    class(&mut world, 2, "mine");
    world.job("d", 0, json!({"priorityClassName": "mine"})).job("e", 0, json!({"priorityClassName": "low"}));
    assert_eq!(world.round(), ["b-uid"]);
    let none = "priorityClassName: there is no PriorityClass mine in this cluster; there is high, low";
    assert_eq!(world.message("d"), format!("spec.{none}"));
    assert_eq!(world.told["c-uid"], format!("spec.pod.{none}"));
    let status = world.seen.jobs[0].status.clone().unwrap();
    let valid = conditions::find(&status.conditions, "Valid").unwrap();
    assert_eq!((valid.status.as_str(), valid.reason.as_str()), ("False", "PriorityRefused"));
    assert_eq!((world.status().running, world.status().waiting), (1, 4));
    world.seen.look.mini_clusters.retain(|one| one.name_any() != "b");
    assert_eq!(world.round(), ["a-uid"], "not e, which is lower, though it came before");
}

#[test]
fn what_no_node_could_hold_waits_and_holds_up_nobody() {
    let mut world = World::default();
    world.setup("default", 0, json!({"checkNodes": "Now", "quota": {"brokers": 8}})).job("huge", 1, json!({"size": 5}));
    world.asks("too", 2, 7).job("b", 3, json!({"size": 3})).job("c", 4, json!({"size": 4}));
    assert_eq!(world.round(), ["b-uid"]);
    let told = "the nodes could not hold it whatever else ends: they can hold 4 of 5: make it smaller, let it run on other \
                nodes, or add some. It holds up nobody, and is looked at again";
    assert_eq!(world.message("huge"), told);
    let status = world.seen.jobs[0].status.clone().unwrap();
    let reasons: Vec<_> = status.conditions.iter().map(|one| one.reason.as_str()).collect();
    let told = vec!["NodesTooSmall", "NotFinished", "NotStarted", "Valid"];
    assert_eq!((status.phase, reasons), (JobPhase::Waiting, told));
    assert_eq!(
        world.status().next,
        "FluxJob c: the nodes have no room for 3 of its 4 brokers",
        "it fits the empty nodes"
    );
    assert_eq!((world.status().waiting, world.status().used.brokers), (3, 3));
}

/// The danger: thousands wait that are alike, and each round looks at all pods for each of them, while peers wait for an answer.
#[test]
fn nodes_are_asked_once_about_those_that_are_alike() {
    let wants = |size: u32, pod: Value| json!({"size": size, "miniCluster": {"pod": pod}});
    let mut world = World::default();
    world.setup("default", 0, json!({"checkNodes": "Now"}));
    for index in 0..100 {
        world.job(&format!("huge-{index}"), index, wants(5, json!({})));
    }
    assert_eq!((world.round(), world.nodes_asked.get()), (Vec::new(), 2), "about now, and about ever");
    // What starts takes room: the others are looked at again, once.
    world.job("fits", 50, wants(1, json!({}))).nodes_asked.set(0);
    assert_eq!((world.round(), world.nodes_asked.get()), (vec!["fits-uid".to_owned()], 4));
    // By size, and by where they may run.
    let tolerations = json!([{"key": "gpu", "operator": "Exists"}]);
    world.job("larger", 200, wants(6, json!({}))).job("larger-too", 201, wants(6, json!({})));
    world.job("selects", 202, wants(5, json!({"nodeSelector": {"pool": "gpu"}})));
    world.job("prefers", 203, wants(5, json!({"nodeAffinity": {"pool": ["gpu"]}})));
    world.job("tolerates", 204, wants(5, json!({"tolerations": tolerations}))).asks("asks", 205, 7).nodes_asked.set(0);
    assert_eq!((world.round(), world.nodes_asked.get()), (vec!["fits-uid".to_owned()], 2 * 6), "it is made again");
}

/// The danger: somebody cordons nodes one by one, and each time the status of everybody who waits is written, while nobody is
/// let in.
#[test]
fn only_the_first_of_those_that_no_node_could_hold_is_told_figures() {
    for check in ["Now", "Autoscaled"] {
        let mut world = World::default();
        world.setup("default", 0, json!({"checkNodes": check})).asks("large", 2, 9);
        for index in 0..3 {
            world.job(&format!("huge-{index}"), index, json!({"size": 5}));
        }
        world.fewer = 4;
        let told = |world: &mut World, fewer: u32| {
            world.fewer = fewer;
            world.round();
            [0, 1, 2].map(|index| world.message(&format!("huge-{index}")))
        };
        let before = told(&mut world, 4);
        assert!(before[0].contains("they can hold 0 of "), "{check}: {}", before[0]);
        let like = "ends: for the same reason as one before it in line, whose message has the figures: make it smaller";
        assert!(before[1].contains(like), "{check}: {}", before[1]);
        if check == "Now" {
            assert!(world.told["large-uid"].contains("they can hold 0 of 9"), "{}", world.told["large-uid"]);
            let after = told(&mut world, 3);
            assert_ne!(before[0], after[0]);
            assert_eq!(before[1..], after[1..]);
            world.seen.jobs.remove(0);
            world.round();
            assert_eq!(world.message("huge-1"), after[0], "who is first now");
        }
    }
}

/// The danger: its user suspends it, its MiniCluster cannot be deleted for a while, and ends well by itself meanwhile.
#[test]
fn a_run_that_ends_while_it_is_taken_back_is_not_run_again() {
    for (phase, code) in [("Succeeded", 0), ("Failed", 3)] {
        let mut world = World::default();
        world.setup("default", 0, json!({})).job("a", 1, json!({}));
        assert_eq!(world.round(), ["a-uid"]);
        let stands = |phase: &str, code: Option<i32>| {
            let status = json!({"phase": phase, "incarnation": "j", "exitCode": code});
            json!({"ownerReferences": owned_by("a"), "spec": {"size": 1, "containers": [{}]}, "status": status})
        };
        world.cluster("a", 2, stands("Running", None));
        world.round();
        Arc::make_mut(&mut world.seen.jobs[0]).spec.suspend = true;
        world.round();
        assert!(world.of("a").recalled.is_some());
        world.seen.look.mini_clusters = vec![Arc::new(object("a", 2, stands(phase, Some(code))))];
        world.round();
        let ended = world.of("a");
        assert_eq!((ended.phase, ended.exit_code, ended.recalled), (JobPhase::Finished, Some(code), None));
        assert_eq!(world.seen.look.mini_clusters.len(), 1, "it is kept for its logs");
    }
}

/// The danger: FluxJobs of a namespace whose FluxSetup cannot be read are told nothing, and those that have ended run for ever.
#[test]
fn nothing_starts_by_a_setup_that_was_never_read_and_everybody_is_told() {
    let told = "spec.quota.brokers: 5000000000 is too much";
    let mut world = World::default();
    world.seen.unreadable = Some(told.to_owned());
    world.job("new", 2, json!({})).job("ends", 1, json!({})).job("let-in", 1, json!({})).asks("lake", 3, 1);
    let made = json!({"phase": "Succeeded", "incarnation": "j"});
    let made = json!({"ownerReferences": owned_by("ends"), "spec": {"size": 1, "containers": [{}]}, "status": made});
    world.cluster("ends", 2, made);
    let let_in = FluxJobStatus { phase: JobPhase::Ready, ..FluxJobStatus::default() };
    let admitted = Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(at(5)));
    Arc::make_mut(&mut world.seen.jobs[2]).status = Some(FluxJobStatus { admitted, ..let_in });
    assert_eq!(world.round(), [""; 0], "nobody knows for how long it may run");
    assert_eq!(world.of("ends").phase, JobPhase::Finished);
    assert_eq!((world.of("new").phase, world.message("new").as_str()), (JobPhase::Waiting, told));
    assert_eq!(world.told["lake-uid"], told);
    let standing = world.standing.clone().unwrap();
    assert_eq!(
        (standing.setup.as_str(), standing.open),
        ("default", Requests::default()),
        "nor does any burst of a peer"
    );
    // It was corrected.
    world.seen.unreadable = None;
    world.setup("default", 0, json!({}));
    assert_eq!(
        world.round().into_iter().collect::<BTreeSet<_>>(),
        ["lake-uid", "let-in-uid", "new-uid"].map(String::from).into()
    );
}
