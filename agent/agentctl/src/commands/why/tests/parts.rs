//! Which part of a MiniCluster is named, and in which order.

use tributary::admin::MiniClusterRow;

use super::*;
use crate::commands::why::kueue;

/// The danger: the second burst that fails is never named, and 3 of 5 brokers are called ready.
#[test]
fn every_part_that_fails_is_named_worst_first() {
    let mut found = bursting(json!({}), json!({"peer": "west", "phase": "Ready", "readyBrokers": 3}));
    let clusters = json!([
        {"size": 5, "peer": "west"},
        {"name": "on-its-way", "size": 1, "peer": "west"},
        {"name": "refused", "size": 1, "peer": "west"},
    ]);
    let restart = "the instance was started before these changes: spec.size 3 (this instance has ranks for 2); to start it anew, \
                   which ends its jobs: `agentctl restart minicluster/lake --namespace flux`";
    let conditions = json!([
        said("Ready", "True", "RestartRequired", "2 of 3 pods of this cluster are ready"),
        said("RestartRequired", "True", "FrozenPerIncarnation", restart),
    ]);
    found.mini_cluster = Some(root(conditions, json!({"size": 3, "flux": {"bursting": {"clusters": clusters}}})));
    let owner = json!(found.bursts[0].metadata.owner_references);
    let burst = |slot: &str, status: Value| -> Burst {
        of(json!({
            "metadata": {"name": slot, "namespace": "flux", "generation": 2, "ownerReferences": owner}, "status": status,
            "spec": {"root": "lake", "slot": slot, "size": 1, "maxSize": 1, "peers": ["west"]},
        }))
    };
    let admitted = said("Admitted", "True", "Accepted", "the peer accepted it");
    found.bursts.push(burst(
        "on-its-way",
        json!({"observedGeneration": 2, "peer": "west", "phase": "Joining", "message": "west: 0 of 1 brokers are online",
            "conditions": [admitted.clone()]}),
    ));
    let refusal =
        json!({"peer": "west", "reason": "QuotaExceeded", "message": "the quota is used up", "generation": 2});
    found.bursts.push(burst("refused", json!({"observedGeneration": 2, "phase": "Rejected", "refusals": [refusal]})));
    found.bursts[0].status.as_mut().unwrap().conditions = vec![of(admitted)];
    let explanation = mini_cluster::explain(&found);
    let reasons: Vec<_> =
        explanation.unmet.iter().chain(&explanation.more).map(|unmet| unmet.reason.as_str()).collect();
    assert_eq!(reasons, ["QuotaExceeded", "RestartRequired", "RestartRequired", "Joining"]);
    insta::assert_snapshot!(shown("several parts", &explanation));
    found.bursts.truncate(1);
    let root = found.mini_cluster.as_mut().unwrap();
    root.spec.flux.bursting.clusters.truncate(1);
    root.spec.flux.bursting.clusters[0].size = Some(3);
    let only_a_restart = text(&mini_cluster::explain(&found));
    assert!(
        only_a_restart.starts_with("MiniCluster flux/lake runs, and is not what its spec asks for\n"),
        "{only_a_restart}"
    );
}

/// The danger: "is ready", and a Service is another's, a removed peer has the certificate, or fields have no effect.
#[test]
fn what_keeps_nothing_from_running_is_said_as_well() {
    let exposed = "clusters that are no peers any more still have the certificate of this instance, so their brokers can join: \
                   west; start the instance anew, with another certificate: `agentctl rekey lake --namespace flux`; its jobs end";
    let ready = said("Ready", "True", "Running", "2 of 2 brokers of this cluster have joined");
    let with = |more: &[Value]| {
        let conditions: Vec<Value> = [ready.clone()].into_iter().chain(more.iter().cloned()).collect();
        let pods = with_pods(vec![running(0, "True"), running(1, "True")]);
        mini_cluster::explain(&Found { mini_cluster: Some(root(conditions.into(), json!({}))), ..pods })
    };
    let warned = with(&[
        said(
            "SpecSupported",
            "False",
            "FieldsWithoutEffect",
            "accepted, but without effect: spec.flux.bursting.leadBroker",
        ),
        said("Grown", "False", "Queued", "it stays at 2 of 3 brokers: 3 are needed, 0 are free"),
        said("CertificateExposed", "True", "PeerRemoved", exposed),
    ]);
    assert!(warned.ready, "{warned:?}");
    let taken = said("ServicesReady", "False", "NameTaken", "Service lake belongs to Deployment lake");
    let held = said("RestartRequired", "True", "CannotRestart", "this instance stays: Secret own is not there");
    let failing = with(&[taken, held]);
    let reasons: Vec<_> = failing.unmet.iter().chain(&failing.more).map(|unmet| unmet.reason.as_str()).collect();
    assert_eq!(reasons, ["NameTaken", "CannotRestart"]);
    assert!(!failing.more[0].hint.contains("agentctl restart"), "{failing:?}");
    let fine = with(&[
        said("SpecSupported", "True", "AllFieldsWork", ""),
        said("CertificateExposed", "False", "NewCertificate", "only peers have it"),
        said("RestartRequired", "False", "UpToDate", ""),
    ]);
    assert!(fine.ready && fine.warnings.is_empty(), "{fine:?}");
    insta::assert_snapshot!([shown("warnings", &warned), shown("failing parts", &failing)].join("\n\n"));
}

/// The danger: "spec.suspend holds it back", and it is Kueue that does; or people are told to read a log that says nothing.
#[test]
fn a_queue_of_kueue_comes_before_suspend() {
    let unmet = |suspend: bool, waits: bool, manager: Option<&str>, ready: Value| {
        let spec = json!({"suspend": waits, "managedBy": manager, "parallelism": 2, "template": {}});
        let labels = json!({"kueue.x-k8s.io/queue-name": "team"});
        let job = of(json!({"metadata": {"name": "lake", "labels": labels}, "spec": spec}));
        let object = root(json!([ready]), json!({"suspend": suspend}));
        mini_cluster::explain(&Found { job: Some(job), ..at(object) }).unmet.unwrap()
    };
    let queued = || said("Ready", "False", "JobQueued", "its Job waits in queue team of Kueue");
    let in_queue = "its Job waits in queue team of Kueue, which has made no Workload of it";
    for suspend in [true, false] {
        assert_eq!(unmet(suspend, true, None, queued()).cause, in_queue);
        // Kueue has started it, and the status does not say so yet.
        assert_eq!(unmet(suspend, false, None, queued()).condition, "PodsMade");
        let handed_on = said("Ready", "False", "JobHandedOn", "queue team hands Jobs on to other clusters");
        let told = unmet(suspend, true, Some("kueue.x-k8s.io/multikueue"), handed_on);
        assert_eq!((told.reason.as_str(), told.condition.as_str()), ("JobHandedOn", "Prerequisites"));
        assert!(!told.hint.contains("log"), "{}", told.hint);
    }
}

/// The danger: "is not ready", of a MiniCluster that lacks nothing; or nobody hears of a peer that does not exist until a job waits.
#[test]
fn a_burst_that_nobody_asks_for_keeps_nothing() {
    let asleep = json!({"phase": "Asleep", "held": "NoDemand", "message": "it is asleep: no pending job asks for it"});
    let mut found = bursting(json!({}), asleep);
    let explanation = mini_cluster::explain(&found);
    assert!(explanation.ready && explanation.unmet.is_none(), "{explanation:?}");
    let last = explanation.steps.last().unwrap();
    assert_eq!(last.detail, "burst lake-burst-0: it is asleep: no pending job asks for it");
    assert_eq!(burst::explain(&found, "lake-burst-0").unmet.unwrap().reason, "Asleep");
    found.peers = vec![peer("vest", json!({"connected": true}))];
    assert_eq!(mini_cluster::explain(&found).unmet.unwrap().reason, "UnknownPeer");
}

/// The danger: a command without the name of what it is to start anew.
#[test]
fn a_queue_that_is_not_heard_of_starts_with_the_next_instance() {
    let silent = said("Demand", "Unknown", "NotHeard", "nothing is heard of the queue");
    let unmet = burst::explain(&bursting(json!({}), json!({"conditions": [silent]})), "lake-burst-0").unmet.unwrap();
    assert_eq!(unmet.reason, "NotHeard");
    assert!(unmet.hint.contains("`agentctl restart minicluster/lake --namespace flux`"), "{}", unmet.hint);
    crate::paste::check::pastes(&unmet.hint);
}

/// The danger: "no agent has seen it", and one has told why it cannot go on.
#[test]
fn what_an_agent_has_left_traces_of_was_seen() {
    let unseen = || {
        let mut object = starting();
        object.status = None;
        at(object)
    };
    let cause = |found: Found| mini_cluster::explain(&found).unmet.unwrap().cause;
    let leader = Some(Ok("tributary-7d4f".to_owned()));
    assert!(cause(Found { agent: leader.clone(), ..unseen() }).starts_with("no agent has seen it yet"));
    let outdated = event("MiniCluster", "lake", "CRDOutdated", "the CRD lacks fields");
    let gone = Some(Err("nobody holds the Lease".to_owned()));
    let long_ago = with_events(Found { agent: gone, ..unseen() }, vec![outdated.clone()]);
    assert_eq!(cause(long_ago), "the agent has not seen the last change: nobody holds the Lease");
    let outdated = with_events(Found { agent: leader.clone(), ..unseen() }, vec![outdated]);
    assert_eq!(mini_cluster::explain(&outdated).unmet.unwrap().hint, crate::hints::DEFINITIONS);
    assert_eq!(cause(outdated), "an agent has seen it, and could not do more: the CRD lacks fields");
    let mut before = event("MiniCluster", "lake", "CommandFailed", "exit code 3");
    before.involved_object.uid = Some("of an earlier one".to_owned());
    let unheard = cause(with_events(Found { agent: leader.clone(), ..unseen() }, vec![before]));
    assert!(unheard.starts_with("no agent has seen it yet"), "{unheard}");
    let with_job = cause(Found { agent: leader, job: Some(of(job())), ..unseen() });
    assert!(with_job.starts_with("the agent has not seen the last change"), "{with_job}");
}

/// The danger: "no agent has seen it", of a MiniCluster that no agent is to touch; or bursts are explained that run elsewhere.
#[test]
fn what_is_left_to_another_controller_says_to_whom() {
    let left = |manager: &str, status: Value| {
        let mut object =
            root(json!([]), json!({"managedBy": manager, "flux": {"bursting": {"clusters": [{"size": 1}]}}}));
        object.status = of(status);
        mini_cluster::explain(&at(object))
    };
    let says = |explanation: &Explanation| {
        let unmet = explanation.unmet.clone().unwrap();
        assert!(explanation.more.is_empty(), "{explanation:?}");
        format!("{}: {}; {}", unmet.reason, unmet.cause, unmet.hint)
    };
    let waits = says(&left("kueue.x-k8s.io/multikueue", Value::Null));
    assert!(
        waits
            .starts_with("LeftAlone: it is left to kueue.x-k8s.io/multikueue (spec.managedBy), which has said nothing"),
        "{waits}"
    );
    assert!(waits.contains("it has no Workload: does it name a queue of Kueue"), "{waits}");
    let mut found = at(root(json!([]), json!({"managedBy": "kueue.x-k8s.io/multikueue"})));
    found.events = vec![event("MiniCluster", "lake", "NoWorkload", "no Workload is made of it: no Kueue")];
    let refused = says(&mini_cluster::explain(&found));
    assert!(
        refused.contains("the agent here makes no brokers of it; no Workload is made of it: no Kueue;"),
        "{refused}"
    );
    let reserved = of(said("QuotaReserved", "False", "Pending", "couldn't assign flavors"));
    found.workload = Some(kueue::Workload { name: "minicluster-lake".into(), conditions: vec![reserved] });
    let queued = says(&mini_cluster::explain(&found));
    assert!(queued.contains("its Workload minicluster-lake: waits: couldn't assign flavors;"), "{queued}");
    assert!(
        queued.contains("`kubectl describe workloads.kueue.x-k8s.io minicluster-lake --namespace flux`"),
        "{queued}"
    );
    let other = says(&left("other.org/controller", json!({"phase": "Failed", "incarnation": "elsewhere"})));
    assert!(other.contains("which says Failed") && other.contains("said by other.org/controller"), "{other}");
    let runs = left("kueue.x-k8s.io/multikueue", json!({"phase": "Running", "incarnation": "elsewhere"}));
    assert!(runs.ready && runs.unmet.is_none(), "{runs:?}");
    let ours = left(tributary::api::minicluster::MANAGER, Value::Null);
    assert_eq!(ours.unmet.unwrap().reason, "NotObserved");
}

#[test]
fn what_is_gone_and_what_waits_to_go_is_named() {
    let mount = "MountVolume.SetUp failed for volume \"curve\" : secret \"lake-curve\" not found";
    let pods = vec![waits(0, "ContainerCreating", ""), running(1, "True")];
    let without_certificate = with_events(with_pods(pods), vec![event("Pod", "lake-0-x", "FailedMount", mount)]);
    let mut object = starting();
    object.metadata.deletion_timestamp = Some(of(json!("2026-01-01T00:00:00Z")));
    object.metadata.finalizers = Some(vec!["foregroundDeletion".to_owned()]);
    let goes = Found { mini_cluster: Some(object), ..with_pods(vec![running(0, "True"), running(1, "True")]) };
    let cases =
        [("a pod that needs a certificate that is gone", without_certificate), ("deleted after its pods", goes)];
    let texts = cases.map(|(case, found)| shown(case, &mini_cluster::explain(&found)));
    insta::assert_snapshot!(texts.join("\n\n"));
}

/// The danger: people look for who suspended a Job that runs.
#[test]
fn a_job_that_runs_is_suspended_no_more_whatever_the_status_still_says() {
    let before = json!([said("Ready", "False", "JobSuspended", "Job flux/lake is suspended")]);
    let pods = with_pods(vec![running(0, "True"), running(1, "False")]);
    let unmet = mini_cluster::explain(&Found { mini_cluster: Some(root(before, json!({}))), ..pods }).unmet.unwrap();
    assert_eq!(unmet.condition, "BrokersJoined", "{unmet:?}");
}

/// The danger: a command of the peer's, about its own cluster, is given the context of ours.
#[test]
fn a_command_in_the_words_of_a_peer_is_not_ours_to_paste() {
    let command = |kind: &str| format!("{kind}: `agentctl resume minicluster/lake-burst-0 --namespace burst-east`");
    let hosted = HostedRow { name: "lake-burst-0".into(), message: Some(command("hosted")), ..HostedRow::default() };
    let made = MiniClusterRow {
        name: "lake-burst-0".into(),
        message: Some(command("made")),
        hosted_for: Some("east".into()),
        ..MiniClusterRow::default()
    };
    let status = ClusterStatus { hosted: vec![hosted], mini_clusters: vec![made], ..ClusterStatus::default() };
    let west = ClusterRow { name: "west".into(), peer: None, status: Some(status), error: None };
    let federation = FederationStatus { api_version: String::new(), cluster: "east".into(), clusters: vec![west] };
    let admitted = said("Admitted", "True", "Accepted", "the peer accepted it");
    let found = bursting(
        json!({}),
        // What comes over the wire has no backquotes.
        json!({"peer": "west", "phase": "Joining", "message": command("hosted").replace('`', "'"), "conditions": [admitted]}),
    );
    let found = Found { federation: Some(federation), ..found };
    let cause = burst::explain(&found, "lake-burst-0").unmet.unwrap().cause;
    assert_eq!(cause, ["hosted", "made"].map(command).join("; ").replace('`', "'"));
}
