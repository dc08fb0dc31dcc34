use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use serde_json::Value;

use super::*;

fn lake(more: Value) -> MiniCluster {
    let mut spec = json!({"size": 2, "managedBy": MULTIKUEUE, "jobLabels": {KUEUE_QUEUE: "team"},
        "containers": [{"image": "i", "command": "hostname"}]});
    spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    let mut object = MiniCluster::new("lake", serde_json::from_value(spec).unwrap());
    (object.metadata.uid, object.metadata.namespace) = (Some("u-1".into()), Some("science".into()));
    object.metadata.generation = Some(1);
    object
}

fn of(object: &MiniCluster) -> Result<Option<Wanted>, String> {
    wanted(object, &Context::default())
}

/// A Workload of the MiniCluster as it is, with these conditions: type, status, reason.
fn found(object: &MiniCluster, said: &[(&str, &str, &str)]) -> Workload {
    let mut workload = Workload::new("minicluster-lake", WorkloadSpec::default());
    let owner = OwnerReference { uid: object.uid().unwrap(), controller: Some(true), ..OwnerReference::default() };
    workload.metadata.owner_references = Some(vec![owner]);
    workload.metadata.uid = Some("w-1".into());
    workload.metadata.namespace = Some("science".into());
    let revision = of(object).ok().flatten().map(|wanted| wanted.revision);
    workload.annotations_mut().extend(revision.map(|revision| (labels::REVISION.to_owned(), revision)));
    let conditions = said.iter().map(|(type_, status, reason)| Condition {
        type_: (*type_).into(),
        status: (*status).into(),
        reason: (*reason).into(),
        message: format!("{type_} is {status}"),
        last_transition_time: Time(Timestamp::UNIX_EPOCH),
        observed_generation: None,
    });
    workload.status = Some(tributary_api::workload::WorkloadStatus { conditions: conditions.collect() });
    workload
}

fn decided(object: MiniCluster, found: Option<Workload>) -> Decision {
    let due = due(&object, Timestamp::UNIX_EPOCH);
    decide(&View { wanted: of(&object), object: Arc::new(object), found, due })
}

const RESERVED: (&str, &str, &str) = (condition::QUOTA_RESERVED, "True", "QuotaReserved");

#[test]
fn one_is_made_kept_and_given_back() {
    let object = || lake(json!({}));
    let with = |said: &[_]| decided(object(), Some(found(&object(), said)));
    assert_eq!(decided(object(), None), Decision::Make);
    assert_eq!(with(&[]), Decision::Nothing);
    assert_eq!(with(&[RESERVED, (condition::ADMITTED, "True", "Admitted")]), Decision::Nothing, "it runs");
    assert_eq!(with(&[RESERVED, (condition::EVICTED, "True", "Preempted")]), Decision::GiveBack);
    assert_eq!(with(&[(condition::EVICTED, "True", "Preempted")]), Decision::Nothing, "it was given back");
    assert_eq!(with(&[RESERVED, (condition::EVICTED, "False", "Preempted")]), Decision::Nothing);
    assert_eq!(
        with(&[RESERVED, (condition::EVICTED, "True", "Preempted"), (condition::FINISHED, "True", "Succeeded")]),
        Decision::Done
    );
    assert_eq!(decided(lake(json!({"jobLabels": {}})), None), Decision::Done, "it names no queue");
    let Decision::Say(refused) = decided(lake(json!({"size": 0})), None) else { panic!("it cannot be made") };
    assert!(refused.starts_with("no Workload is made of it: spec.size"), "{refused}");
}

/// The danger: what somebody else made of a MiniCluster, or of something else, is deleted.
#[test]
fn a_workload_of_another_spec_is_made_anew_and_one_of_somebody_else_stays() {
    let before = found(&lake(json!({})), &[RESERVED]);
    let doomed = Decision::Delete(Doomed::of(&before).unwrap());
    for more in [
        json!({"size": 3}),
        json!({"jobLabels": {KUEUE_QUEUE: "other"}}),
        json!({"containers": [{"image": "j", "command": "hostname"}]}),
    ] {
        let mut object = lake(more.clone());
        object.metadata.generation = Some(2);
        assert_eq!(decided(object, Some(before.clone())), doomed, "{more}");
    }
    let mut moved = lake(json!({"jobLabels": {}}));
    moved.metadata.labels = Some([(KUEUE_QUEUE.to_owned(), "other".to_owned())].into());
    assert_eq!(decided(moved, Some(before.clone())), doomed, "a label is no change of the spec");
    let mut raised = lake(json!({}));
    raised.metadata.labels = Some([(PRIORITY_CLASS.to_owned(), "high".to_owned())].into());
    assert_eq!(decided(raised.clone(), Some(before.clone())), Decision::Nothing, "what has room goes on");
    let evicted = found(&lake(json!({})), &[RESERVED, (condition::EVICTED, "True", "Preempted")]);
    assert_eq!(decided(raised.clone(), Some(evicted)), Decision::GiveBack);
    let waits = found(&lake(json!({})), &[]);
    assert_eq!(decided(raised.clone(), Some(waits)), doomed, "what waits gets its new place");
    raised.metadata.generation = Some(2);
    assert_eq!(decided(raised, Some(before.clone())), doomed, "so does what is another spec's");
    let mut goes = before.clone();
    goes.metadata.deletion_timestamp = Some(Time(Timestamp::UNIX_EPOCH));
    let mut object = lake(json!({"size": 3}));
    object.metadata.generation = Some(2);
    assert_eq!(decided(object, Some(goes)), Decision::Nothing, "it is on its way");
    let mut theirs = before;
    theirs.metadata.owner_references.as_mut().unwrap()[0].uid = "u-2".into();
    for object in [lake(json!({})), lake(json!({"size": 3}))] {
        let Decision::Say(said) = decided(object, Some(theirs.clone())) else { panic!("it is touched") };
        assert!(said.starts_with("Workload science/minicluster-lake is there already"), "{said}");
    }
}

#[test]
fn a_workload_of_an_earlier_minicluster_is_waited_for() {
    let mut before = found(&lake(json!({})), &[RESERVED]);
    let owner = &mut before.metadata.owner_references.as_mut().unwrap()[0];
    (owner.uid, owner.name, owner.kind) = ("u-0".into(), "lake".into(), "MiniCluster".into());
    owner.api_version = MiniCluster::api_version(&()).into_owned();
    assert_eq!(decided(lake(json!({})), Some(before)), Decision::LeftOver);
}

#[test]
fn what_is_held_back_has_no_workload() {
    let runs = found(&lake(json!({})), &[RESERVED]);
    let doomed = Decision::Delete(Doomed::of(&runs).unwrap());
    let suspended = || lake(json!({"suspend": true}));
    assert_eq!(decided(suspended(), Some(runs.clone())), doomed);
    assert_eq!(decided(suspended(), None), Decision::Done);
    let mut theirs = runs;
    theirs.metadata.owner_references.as_mut().unwrap()[0].uid = "u-2".into();
    assert_eq!(decided(suspended(), Some(theirs)), Decision::Done);
}

#[test]
fn only_what_multikueue_has_to_run_still_gets_one() {
    let over = |phase: Option<Phase>| {
        let mut object = lake(json!({}));
        object.status.get_or_insert_default().phase = phase;
        is_over(&object)
    };
    assert!(!over(None) && !over(Some(Phase::Running)) && !over(Some(Phase::Suspended)));
    assert!(over(Some(Phase::Succeeded)) && over(Some(Phase::Failed)));
    assert!(is_for_multikueue(&lake(json!({}))));
    assert!(!is_for_multikueue(&lake(json!({"managedBy": "example.org/other"}))));
    let mut goes = lake(json!({}));
    goes.metadata.deletion_timestamp = Some(Time(Timestamp::UNIX_EPOCH));
    assert!(!is_for_multikueue(&goes));
}

/// The danger: it never goes, since the agent of the other cluster leaves that to this one; or it goes while Kueue looks at it.
#[test]
fn what_has_ended_goes_here_once_kueue_has_finished_with_it() {
    let ended = |more: Value, phase: Phase| {
        let mut object = lake(more);
        let status = object.status.get_or_insert_default();
        status.phase = Some(phase);
        let said = Statement::holds(tributary_api::labels::condition::FINISHED, "Succeeded", "");
        status.conditions = conditions::merged(&[], [said], None, Timestamp::UNIX_EPOCH);
        object
    };
    let finished = |object: &MiniCluster| found(object, &[RESERVED, (condition::FINISHED, "True", "Succeeded")]);
    for (more, finally) in [
        (json!({"cleanup": true}), Decision::CleanUp),
        (json!({"cleanup": true, "suspend": true}), Decision::CleanUp),
        (json!({"ttlSecondsAfterFinished": 60}), Decision::Keep(Duration::from_secs(60))),
        (json!({"ttlSecondsAfterFinished": 0}), Decision::CleanUp),
    ] {
        let object = ended(more.clone(), Phase::Failed);
        assert_eq!(decided(object.clone(), Some(found(&object, &[RESERVED]))), Decision::Nothing, "{more}");
        assert_eq!(decided(object.clone(), Some(finished(&object))), finally, "{more}");
        assert_eq!(decided(object, None), finally, "{more}: Kueue keeps no Workloads that have finished");
    }
    let runs = ended(json!({"cleanup": true}), Phase::Running);
    assert_eq!(decided(runs.clone(), Some(finished(&runs))), Decision::Done);
    assert_eq!(due(&ended(json!({}), Phase::Succeeded), Timestamp::UNIX_EPOCH), None);
}

/// The danger: what Kueue compares with the Job of the other cluster differs, so that it ends it as `OutOfSync`, or admits it
/// elsewhere than it should.
#[test]
fn a_workload_is_what_kueue_makes_of_such_a_job() {
    let spec = |more: Value| {
        let mut object = lake(more);
        let fewest = (KUEUE_MIN_PARALLELISM.to_owned(), "1".to_owned());
        object.metadata.annotations = Some([fewest].into());
        let Wanted { job, queue, .. } = of(&object).unwrap().unwrap();
        super::spec(queue, &job, job.spec.clone().unwrap().template)
    };
    let plain = spec(json!({}));
    assert_eq!((plain.queue_name.as_str(), plain.maximum_execution_time_seconds), ("team", None));
    assert_eq!((plain.pod_sets[0].count, plain.pod_sets[0].min_count), (2, Some(1)));
    let limited = spec(json!({"jobLabels": {KUEUE_QUEUE: "team", LONGEST: "3600"}}));
    assert_eq!(limited.maximum_execution_time_seconds, Some(3600));
    let request = |annotations: Value| {
        let spec = spec(json!({"pod": {"annotations": annotations}}));
        serde_json::to_value(&spec.pod_sets[0]).unwrap()["topologyRequest"].clone()
    };
    let with = |more: Value| {
        let mut all = json!({"podIndexLabel": "batch.kubernetes.io/job-completion-index"});
        all.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        all
    };
    assert_eq!(request(json!({})), with(json!({})));
    let all = json!({topology::REQUIRED: "rack", topology::PREFERRED: "block"});
    assert_eq!(request(all), with(json!({"required": "rack"})));
    assert_eq!(request(json!({topology::PREFERRED: "block"})), with(json!({"preferred": "block"})));
    assert_eq!(request(json!({topology::UNCONSTRAINED: "true"})), with(json!({"unconstrained": true})));
}

#[test]
fn pods_without_a_class_have_the_usual_one() {
    let class = |name: &str, value: i32, usual: bool| PriorityClass {
        metadata: kube::core::ObjectMeta { name: Some(name.to_owned()), ..Default::default() },
        value,
        global_default: Some(usual),
        ..PriorityClass::default()
    };
    let named = |classes| usual(classes).map(|class| class.name_any());
    assert_eq!(named(vec![class("high", 9, false)]), None);
    let several = vec![class("high", 9, true), class("low", 3, true), class("least", 1, false)];
    assert_eq!(named(several).as_deref(), Some("low"));
}

#[test]
fn what_is_evicted_waits_again_without_room() {
    let said = |reason: &str| {
        let all = [
            RESERVED,
            (condition::ADMITTED, "True", "Admitted"),
            (condition::EVICTED, "True", reason),
            ("Own", "True", "X"),
        ];
        let now = Timestamp::from_second(1_000_000).unwrap();
        let after = waiting_again(&found(&lake(json!({})), &all), now);
        let moved = after.iter().filter(|one| one.last_transition_time.0 == now).count();
        let said = after.into_iter().map(|one| format!("{} {} {}", one.type_, one.status, one.reason));
        (said.collect::<Vec<_>>(), moved)
    };
    let expected = |requeued: &str, reason: &str| {
        [
            "Admitted False NoReservation".to_owned(),
            format!("Evicted True {reason}"),
            "Own True X".to_owned(),
            "QuotaReserved False Pending".to_owned(),
            format!("Requeued {requeued} {reason}"),
        ]
    };
    assert_eq!(said("Preempted"), (expected("True", "Preempted").to_vec(), 3));
    assert_eq!(said("AdmissionCheck"), (expected("False", "AdmissionCheck").to_vec(), 3));
}

/// The danger: an upgrade of the agent ends what runs in another cluster.
#[test]
fn another_rendering_of_the_same_spec_ends_nothing() {
    let object = lake(json!({}));
    let runs = found(&object, &[RESERVED, (condition::ADMITTED, "True", "Admitted")]);
    let other = Context { interface: "eth7".to_owned(), ..Context::default() };
    let rendered = wanted(&object, &other);
    assert_ne!(rendered.as_ref().unwrap().as_ref().unwrap().job, of(&object).unwrap().unwrap().job);
    let view = View { wanted: rendered, object: Arc::new(object), found: Some(runs), due: None };
    assert_eq!(decide(&view), Decision::Nothing);
}

#[test]
fn one_is_looked_at_more_seldom_the_longer_it_is_there() {
    let at = |second| Timestamp::from_second(second).unwrap();
    let mut object = lake(json!({}));
    object.metadata.creation_timestamp = Some(Time(at(1_000)));
    let seconds = [1_000, 1_080, 1_240, 9_000, 900].map(|now| pause(&object, at(now)).as_secs());
    assert_eq!(seconds, [10, 10, 30, 60, 10]);
}
