use serde_json::json;
use tributary_api::flux_setup::Usage;
use tributary_api::hosted_burst::BurstPhase;
use tributary_api::minicluster::MiniClusterSpec;

use tributary_api::workload::MULTIKUEUE;

use super::*;

static NO_PEERS: PeerUids = PeerUids::new();

fn object(size: i32) -> MiniCluster {
    let mut object = MiniCluster::new("tide", MiniClusterSpec { size: Some(size), ..MiniClusterSpec::default() });
    object.metadata.generation = Some(3);
    object
}

fn facts(object: &MiniCluster, job: Option<JobFacts>) -> Facts<'_> {
    Facts {
        mini_cluster: object,
        job,
        deadline: None,
        lead: LeadFacts::default(),
        problems: Vec::new(),
        waiting: None,
        refused: false,
        unsupported: Vec::new(),
        restart_required: Vec::new(),
        restarting: false,
        over: false,
        without: None,
        stays: None,
        held: None,
        holds: None,
        bursts: &[],
        rank_map: None,
        credential_secret: None,
        peers: &NO_PEERS,
        node_port: None,
        load_balancer: None,
    }
}

fn job(ready: i32) -> JobFacts {
    JobFacts { uid: "job-1".into(), parallelism: 4, ready, ..JobFacts::default() }
}

fn now() -> Timestamp {
    Timestamp::from_second(1_700_000_000).unwrap()
}

fn true_conditions(status: &MiniClusterStatus) -> Vec<&str> {
    status.conditions.iter().filter(|one| one.status == "True").map(|one| one.type_.as_str()).collect()
}

#[test]
fn each_phase_has_its_conditions() {
    let object = object(4);
    let cases: [(Option<JobFacts>, Phase, &[&str]); 5] = [
        (None, Phase::Pending, &["JobRequested", "SpecSupported", "Valid"]),
        (Some(job(3)), Phase::Starting, &["JobWaitingForResources", "SpecSupported", "Valid"]),
        (Some(job(4)), Phase::Running, &["JobMiniClusterReady", "Ready", "SpecSupported", "Valid"]),
        (
            Some(JobFacts { outcome: Some(JobOutcome::Succeeded), ..job(0) }),
            Phase::Succeeded,
            &["Finished", "JobFinished", "SpecSupported", "Valid"],
        ),
        (
            Some(JobFacts { suspended: true, ..job(0) }),
            Phase::Suspended,
            &["JobWaitingForResources", "SpecSupported", "Valid"],
        ),
    ];
    for (job, phase, expected) in cases {
        let status = compute(&facts(&object, job), now());
        assert_eq!(status.phase, Some(phase));
        assert_eq!(true_conditions(&status), expected, "{phase:?}");
        assert!(status.conditions.iter().all(|one| one.observed_generation == Some(3)));
    }
}

/// The danger: a status that is larger than etcd takes is never written.
#[test]
fn of_very_many_problems_the_first_ones_are_told() {
    let object = object(4);
    let problem = |port: usize| ("InvalidValue".to_owned(), format!("containers[0].ports[{port}]: 70000 is no port"));
    let status = compute(&Facts { problems: (0..10_000).map(problem).collect(), ..facts(&object, None) }, now());
    for type_ in [condition::VALID, condition::READY] {
        let said = conditions::find(&status.conditions, type_).unwrap();
        assert!(said.message.starts_with("containers[0].ports[0]: 70000 is no port; "), "{type_}");
    }
    assert!(serde_json::to_string(&status).unwrap().len() < 16_384);
}

#[test]
fn what_cannot_be_done_is_told_and_the_rest_of_the_status_goes_on() {
    let object = object(4);
    let waiting = |reason: &str| Some((reason.to_owned(), "failed to write Secret hpc/x: no".to_owned()));
    let ready = |status: &MiniClusterStatus| {
        let ready = conditions::find(&status.conditions, condition::READY).unwrap();
        (ready.reason.clone(), ready.message.clone())
    };
    let told = Facts { waiting: waiting("CannotCreate"), refused: true, ..facts(&object, None) };
    let status = compute(&told, now());
    assert_eq!((status.phase, ready(&status).0.as_str()), (Some(Phase::Refused), "CannotCreate"));
    let told = Facts { waiting: waiting("CannotCreate"), ..facts(&object, None) };
    assert_eq!(compute(&told, now()).phase, Some(Phase::Pending), "it may go away by itself");
    // What differs from the spec was not looked at: what is said of that stays.
    let mut running = object.clone();
    running.status =
        Some(compute(&Facts { restart_required: vec!["spec.image".into()], ..facts(&object, Some(job(2))) }, now()));
    let told = Facts { waiting: waiting(CANNOT_MAINTAIN), ..facts(&running, Some(job(4))) };
    let status = compute(&told, now());
    assert_eq!((status.phase, status.ready), (Some(Phase::Running), Some(4)));
    assert_eq!(ready(&status).0, CANNOT_MAINTAIN);
    assert!(conditions::is_true(&status.conditions, condition::RESTART_REQUIRED));
    // How it ended comes first, and is not forgotten.
    let ended = JobFacts { outcome: Some(JobOutcome::Succeeded), ..job(0) };
    let mut over = object.clone();
    for _ in 0..2 {
        let told = Facts { waiting: waiting(CANNOT_MAINTAIN), ..facts(&over, Some(ended.clone())) };
        let status = compute(&told, now());
        assert_eq!(status.phase, Some(Phase::Succeeded));
        let (reason, message) = ready(&status);
        assert_eq!(reason, "Succeeded");
        assert!(message.starts_with("the command has ended well") && message.ends_with("hpc/x: no"), "{message}");
        over.status = Some(status);
    }
    let status = compute(&facts(&over, Some(ended)), now());
    assert_eq!(ready(&status).1, "the command has ended well (exit code 0)");
}

/// The danger: nobody hears that a queue holds it, or hands it to a cluster where it cannot run.
#[test]
fn a_job_in_a_queue_says_so_whoever_put_it_there() {
    let mut object = object(4);
    object.metadata.namespace = Some("hpc".into());
    object.spec.suspend = true;
    let said = |object: &MiniCluster, job: JobFacts, type_: &str| {
        let told = Facts { unsupported: vec!["spec.x (y)".into()], ..facts(object, Some(job)) };
        let status = compute(&told, now());
        let said = conditions::find(&status.conditions, type_).unwrap();
        format!("{:?} {}: {}", status.phase.unwrap(), said.reason, said.message)
    };
    let queued = || JobFacts { suspended: true, queue: Some("default".into()), ..job(0) };
    let ready = |job| said(&object, job, condition::READY);
    assert_eq!(ready(queued()), "Suspended JobQueued: its Job waits in queue default of Kueue");
    let held = JobFacts { queue: None, ..queued() };
    let resume = "spec.suspend is true; to go on: `agentctl resume minicluster/tide --namespace hpc`";
    assert_eq!(ready(held.clone()), format!("Suspended Suspended: {resume}"));
    let unasked = MiniCluster { spec: MiniClusterSpec { suspend: false, ..object.spec.clone() }, ..object.clone() };
    let resumed = JobFacts { applied_suspend: true, ..held.clone() };
    assert_eq!(said(&unasked, resumed, condition::READY), "Suspended Suspended: its Job is being resumed");
    let others = said(&unasked, held, condition::READY);
    assert!(others.starts_with("Suspended JobSuspended: Job hpc/tide is suspended, and"), "{others}");
    assert!(ready(JobFacts { suspended: false, ..queued() }).starts_with("Starting Starting"));
    let supported = |job| said(&object, job, condition::SPEC_SUPPORTED);
    assert!(supported(queued()).ends_with(&format!("without effect: spec.x (y); {SUSPEND_IN_QUEUE}")));
    assert!(supported(JobFacts { queue: None, ..queued() }).ends_with("without effect: spec.x (y)"));
    let told = Facts { unsupported: vec![SUSPEND_IN_QUEUE.into()], ..facts(&object, Some(queued())) };
    assert_eq!(super::supported(&told).message.matches(SUSPEND_IN_QUEUE).count(), 1, "the spec says it as well");
    for suspended in [true, false] {
        let handed_on = ready(JobFacts { left_to: Some(MULTIKUEUE.into()), suspended, ..queued() });
        let expected = "JobHandedOn: queue default hands Jobs on to other clusters (spec.managedBy of its Job is \
                        kueue.x-k8s.io/multikueue); make the MiniCluster with `managedBy: kueue.x-k8s.io/multikueue`";
        assert!(handed_on.contains(expected), "{handed_on}");
    }
}

#[test]
fn min_size_is_the_quorum() {
    let mut object = object(4);
    object.spec.min_size = Some(2);
    assert_eq!(compute(&facts(&object, Some(job(2))), now()).phase, Some(Phase::Running));
    assert_eq!(compute(&facts(&object, Some(job(1))), now()).phase, Some(Phase::Starting));
}

#[test]
fn an_instance_runs_on_without_some_brokers_as_long_as_its_lead_does() {
    let mut object = object(4);
    let lead = |pod: &str, restarts| LeadFacts { pod: Some(pod.to_owned()), restarts, exit: None };
    object.status = Some(compute(&Facts { lead: lead("tide-0-x", 0), ..facts(&object, Some(job(4))) }, now()));
    for (lead, ready, phase) in [
        (lead("tide-0-x", 0), 3, Phase::Running),
        (lead("tide-0-x", 0), 0, Phase::Starting),
        (lead("tide-0-x", 1), 3, Phase::Starting),
        (lead("tide-0-y", 0), 3, Phase::Starting),
        (LeadFacts::default(), 3, Phase::Starting),
    ] {
        let status = compute(&Facts { lead: lead.clone(), ..facts(&object, Some(job(ready))) }, now());
        assert_eq!(status.phase, Some(phase), "{lead:?} {ready}");
        let said = conditions::find(&status.conditions, condition::READY).unwrap();
        let reason = if phase == Phase::Running { reason::NOT_ALL_READY } else { "Starting" };
        let sentence = format!("{ready} of 4 pods of this cluster are ready");
        assert_eq!((said.status.as_str(), said.reason.as_str(), &said.message), ("False", reason, &sentence));
    }
}

/// The danger: a ResourceQuota refuses each pod of the Job, and the MiniCluster starts for ever.
#[test]
fn pods_that_are_not_made_are_told_after_a_while() {
    let mut object = object(4);
    object.metadata.namespace = Some("sea".into());
    let started = |seconds: i64| Some(now() - jiff::SignedDuration::from_secs(seconds));
    let told = |job: JobFacts| {
        let status = compute(&facts(&object, Some(job)), now());
        let ready = conditions::find(&status.conditions, condition::READY).unwrap();
        (ready.reason.clone(), ready.message.clone())
    };
    let (reason, message) = told(JobFacts { unmade: 3, started: started(30), ..job(1) });
    assert_eq!(reason, reason::PODS_NOT_MADE);
    insta::assert_snapshot!(message, @"Kubernetes has not made 3 of the 4 pods of this cluster (after pods were evicted, it waits up to 10 minutes); why: `kubectl describe job tide --namespace sea`");
    let (reason, message) = told(JobFacts { unmade: 3, has_lost: true, started: started(300), ..job(1) });
    assert_eq!(reason, "Starting");
    assert!(message.starts_with("1 of 4 pods") && message.contains("10 minutes at most"), "{message}");
    assert!(!told(JobFacts { has_lost: true, ..job(1) }).1.contains("anew"), "they are made");
    for job in [
        JobFacts { unmade: 3, started: started(29), ..job(1) },
        JobFacts { started: started(300), ..job(1) },
        JobFacts { unmade: 4, started: None, ..job(0) },
        JobFacts { unmade: 4, started: started(300), suspended: true, ..job(0) },
    ] {
        assert_ne!(told(job.clone()).0, reason::PODS_NOT_MADE, "{job:?}");
    }
}

/// The danger: it has fewer brokers than it was scaled to, and nobody hears why; or each growth is an alarm.
#[test]
fn pods_that_are_not_made_of_one_that_has_grown_are_told_after_a_while() {
    let mut object = object(4);
    let lead = || LeadFacts { pod: Some("tide-0-x".into()), ..LeadFacts::default() };
    let grown = |made| JobFacts { unmade: 4 - made, started: Some(now()), ..job(made) };
    let tell = |object: &mut MiniCluster, job: JobFacts, seconds: i64| {
        let later = now() + jiff::SignedDuration::from_secs(seconds);
        let left = job.pods_not_made_after(object.status.as_ref(), later);
        let status = compute(&Facts { lead: lead(), ..facts(object, Some(job)) }, later);
        object.status = Some(status.clone());
        let ready = conditions::find(&status.conditions, condition::READY).unwrap();
        (status.phase.unwrap(), ready.reason.clone(), ready.message.clone(), left.map(|left| left.as_secs()))
    };
    let before = JobFacts { parallelism: 2, ..job(2) };
    assert_eq!(tell(&mut object, before.clone(), 900).1, "Running");
    let (phase, reason, ..) = tell(&mut object, grown(2), 1000);
    assert_eq!((phase, reason.as_str()), (Phase::Running, reason::NOT_ALL_READY), "they are about to be made");
    let (_, reason, _, left) = tell(&mut object, grown(2), 1010);
    assert_eq!((reason.as_str(), left), (reason::NOT_ALL_READY, Some(20)));
    for seconds in [1030, 1040] {
        let (_, reason, message, _) = tell(&mut object, grown(2), seconds);
        assert_eq!(reason, reason::PODS_NOT_MADE);
        let begin = "2 of 4 pods of this cluster are ready; Kubernetes has not made 2 of the 4 pods";
        assert!(message.starts_with(begin), "{message}");
    }
    assert_eq!(tell(&mut object, JobFacts { unmade: 0, ..grown(2) }, 1050).1, reason::NOT_ALL_READY);
    // Those that have to be there are, and since when the others are missing nobody knows.
    object.spec.min_size = Some(2);
    object.status = None;
    tell(&mut object, before, 900);
    for seconds in [1000, 1000, 1040] {
        let (_, reason, message, _) = tell(&mut object, grown(2), seconds);
        assert!(reason == "Running" && !message.contains("has not made"), "{message}");
    }
}

#[test]
fn a_peer_that_there_is_not_is_told_before_there_are_bursts() {
    let mut object = object(4);
    let clusters = json!([{"peer": "nobody"}, {"peers": ["north", "nobody"], "name": "reach"}, {"name": "any"}]);
    object.spec.flux.bursting.clusters = serde_json::from_value(clusters).unwrap();
    let peers = PeerUids::from([("north".to_owned(), "n".to_owned())]);
    let said = |job: Option<JobFacts>| {
        let status = compute(&Facts { peers: &peers, ..facts(&object, job) }, now());
        conditions::find(&status.conditions, condition::BURSTS_READY)
            .map(|one| (one.reason.clone(), one.message.clone()))
    };
    let told = ("NoCandidate".to_owned(), "tide-burst-0: there is no ClusterPeer nobody".to_owned());
    assert_eq!((said(None), said(Some(job(3)))), (Some(told.clone()), Some(told)));
    assert_eq!(said(Some(JobFacts { outcome: Some(JobOutcome::Succeeded), ..job(0) })), None);
}

#[test]
fn a_refused_spec_says_every_problem_in_ready() {
    let object = object(0);
    let problems = vec![("InvalidSize".to_owned(), "size is 0".to_owned()), ("X".to_owned(), "y".to_owned())];
    let status = compute(&Facts { problems, ..facts(&object, None) }, now());
    assert_eq!(status.phase, Some(Phase::Refused));
    let ready = conditions::find(&status.conditions, condition::READY).unwrap();
    assert_eq!((ready.reason.as_str(), ready.message.as_str()), ("InvalidSize", "size is 0; y"));
}

#[test]
fn another_job_is_a_restart_and_the_same_state_is_the_same_status() {
    let mut object = object(4);
    let first = compute(&facts(&object, Some(job(4))), now());
    assert_eq!(first.instance_restarts, 0);
    object.status = Some(first.clone());
    let later = now() + jiff::SignedDuration::from_secs(60);
    assert_eq!(compute(&facts(&object, Some(job(4))), later), first, "an idle pass writes nothing");
    let gone = compute(&facts(&object, None), later);
    assert_eq!(gone.incarnation.as_deref(), Some("job-1"));
    object.status = Some(gone);
    let second = compute(&facts(&object, Some(JobFacts { uid: "job-2".into(), ..job(4) })), later);
    assert_eq!((second.instance_restarts, second.incarnation.as_deref()), (1, Some("job-2")));
}

#[test]
fn bursts_are_listed_with_their_ranks() {
    use tributary_flux::Slot;
    let map = RankMap::new(vec![Slot::root("tide", 4), Slot::burst("tide-burst-0", 3, None)]).unwrap();
    let mut burst = Burst::new(
        "tide-burst-0",
        tributary_api::burst::BurstSpec { slot: "tide-burst-0".into(), size: 3, ..Default::default() },
    );
    burst.status = Some(tributary_api::burst::BurstStatus {
        phase: BurstPhase::Ready,
        ready_brokers: 3,
        peer: Some("west".into()),
        ..Default::default()
    });
    let object = object(4);
    let bursts = [Arc::new(burst)];
    let status = compute(&Facts { bursts: &bursts, rank_map: Some(&map), ..facts(&object, Some(job(4))) }, now());
    assert_eq!(status.bursts[0].ranks, "4-6");
    assert_eq!(status.bursts_ready.as_deref(), Some("1/1"));
    assert!(conditions::is_true(&status.conditions, condition::BURSTS_READY));
    assert_eq!(status.maximum_size, 4);
}

#[test]
fn bursts_are_missed_while_an_instance_of_ours_runs() {
    use tributary_flux::Slot;
    let map = RankMap::new(vec![Slot::root("tide", 4), Slot::burst("tide-burst-0", 3, None)]).unwrap();
    let mut object = object(4);
    object.spec.flux.bursting.clusters = serde_json::from_value(json!([{"peer": "west", "size": 3}])).unwrap();
    let ours = JobFacts { rank_map_digest: Some("d".into()), ..job(4) };
    let peers = PeerUids::from([("west".to_owned(), "w".to_owned())]);
    let said = |object: &MiniCluster, job: Option<JobFacts>, peers: &PeerUids| {
        let status = compute(&Facts { rank_map: Some(&map), peers, ..facts(object, job) }, now());
        conditions::find(&status.conditions, condition::BURSTS_READY)
            .map(|one| format!("{} {}", one.status, one.reason))
    };
    for ready in [0, 4] {
        let told = said(&object, Some(JobFacts { ready, ..ours.clone() }), &peers);
        assert_eq!(told.as_deref(), Some("False NotAllReady"));
    }
    let nobody = said(&object, Some(ours.clone()), &NO_PEERS);
    assert_eq!(nobody.as_deref(), Some("False NoCandidate"), "that is why");
    for none in [
        None,
        Some(job(4)),
        Some(JobFacts { suspended: true, ..ours.clone() }),
        Some(JobFacts { outcome: Some(JobOutcome::Succeeded), ..ours.clone() }),
    ] {
        assert_eq!(said(&object, none, &peers), None);
    }
    object.spec.suspend = true;
    assert_eq!(said(&object, Some(ours), &peers), None, "Kueue runs it, and its bursts are released");
}

#[test]
fn what_an_instance_runs_without_has_its_reason() {
    let object = object(4);
    let without = Some(vec![("CannotCreate", "a: no".to_owned()), ("NameTaken", "b is there".to_owned())]);
    let status = compute(&Facts { without, ..facts(&object, Some(job(4))) }, now());
    let said = conditions::find(&status.conditions, condition::SERVICES_READY).unwrap();
    assert_eq!((said.reason.as_str(), said.message.as_str()), ("CannotCreate", "a: no; b is there"));
    let object = MiniCluster { status: Some(status), ..object };
    let status = compute(&Facts { without: Some(Vec::new()), ..facts(&object, Some(job(4))) }, now());
    assert!(conditions::find(&status.conditions, condition::SERVICES_READY).is_none());
}

/// The danger: who holds a slot is told late, or that a burst fails.
#[test]
fn only_how_a_burst_gets_on_can_wait() {
    use BurstPhase::{Accepted, Joining, Lost, Offered, Pending, Provisioning, Ready, Rejected};
    use tributary_api::burst::{BurstSpec, BurstStatus as Status, CredentialRecipient};
    let object = object(4);
    let burst = |slot: &str, phase: BurstPhase, change: &dyn Fn(&mut Status)| {
        let mut status = Status { phase, message: phase.to_string(), ..Status::default() };
        change(&mut status);
        let spec = BurstSpec { slot: slot.into(), size: 3, ..BurstSpec::default() };
        Arc::new(Burst { status: Some(status), ..Burst::new(slot, spec) })
    };
    let all = |bursts: &[Arc<Burst>]| compute(&Facts { bursts, ..facts(&object, Some(job(4))) }, now());
    let told = |phase, change: &dyn Fn(&mut Status)| all(&[burst("tide-burst-0", phase, change)]);
    let waits = |before: &_, now: &_| {
        let same = differ_by_progress(&object.spec, before, now);
        assert_eq!(same, differ_by_progress(&object.spec, now, before), "either way");
        same
    };
    let on = |peer: &'static str| move |status: &mut Status| status.peer = Some(peer.into());
    let held = |peer: &str| {
        let holder = CredentialRecipient { peer: peer.into(), ..CredentialRecipient::default() };
        move |status: &mut Status| {
            (status.peer, status.credential_recipients) = (Some(holder.peer.clone()), vec![holder.clone()])
        }
    };
    let (nothing, new) = (all(&[]), told(Offered, &|_| ()));
    assert!(waits(&nothing, &new) && waits(&new, &told(Offered, &on("west"))));
    assert!(waits(&told(Offered, &on("west")), &told(Accepted, &on("north"))));
    let before = told(Accepted, &held("west"));
    assert!(waits(&before, &told(Joining, &held("west"))));
    // Whoever is to hand the certificate out waits for that.
    for early in [&nothing, &new, &told(Accepted, &on("west")), &told(Accepted, &held("north"))] {
        assert!(!waits(early, &before));
    }
    assert!(!waits(
        &before,
        &told(Accepted, &|status| {
            held("west")(status);
            status.peer = None;
        })
    ));
    let ready = told(Ready, &|status| status.ready_brokers = 3);
    assert_eq!(conditions::find(&ready.conditions, condition::BURSTS_READY).unwrap().reason, "AllReady");
    for other in [told(Joining, &|status| status.ready_brokers = 1), ready.clone()] {
        assert!(!waits(&nothing, &other) && !waits(&new, &other) && !waits(&before, &other));
    }
    assert!(!waits(&ready, &told(Ready, &|status| status.ready_brokers = 2)), "it has lost one");
    // What keeps it is a reason, not progress: a FluxJob that was split looks for another peer by that.
    for kept in [Lost, Rejected, Pending].map(|phase| told(phase, &|_| ())) {
        assert!(!waits(&nothing, &kept) && !waits(&new, &kept) && !waits(&before, &kept));
    }
    let mut unplaceable = new.clone();
    let said = unplaceable.conditions.iter_mut().find(|one| one.type_ == condition::BURSTS_READY);
    said.unwrap().reason = "NoCandidate".into();
    assert!(!waits(&nothing, &unplaceable) && !waits(&new, &unplaceable));
    // Nor does another burst's way hide what one says.
    let beside = |phase, change: &dyn Fn(&mut Status)| all(&[burst("a", Offered, &|_| ()), burst("b", phase, change)]);
    assert!(waits(&new, &beside(Provisioning, &|_| ())));
    assert!(!waits(&new, &beside(Lost, &|_| ())) && !waits(&beside(Joining, &|_| ()), &beside(Joining, &held("west"))));
    let smaller = compute(&facts(&object, Some(job(3))), now());
    assert!(!waits(&nothing, &smaller) && !waits(&before, &smaller));
}

/// The danger: brokers run on after the budget of their root is spent.
#[test]
fn what_was_used_can_wait_where_no_budget_ends() {
    let mut object = object(4);
    let status =
        |brokers| MiniClusterStatus { bursts_spent: Spent { brokers, ..Spent::default() }, ..Default::default() };
    assert!(differ_by_progress(&object.spec, &status(0), &status(3)));
    object.spec.flux.bursting.budget.max_duration = Some("1h".into());
    assert!(!differ_by_progress(&object.spec, &status(0), &status(3)));
}

/// The danger: who deletes a Burst makes its slot look free.
#[test]
fn who_holds_a_slot_is_known_when_its_burst_was_deleted() {
    use tributary_api::burst::CredentialRecipient;
    use tributary_flux::Slot;
    let map = RankMap::new(vec![Slot::root("tide", 4), Slot::burst("tide-burst-0", 3, None)]).unwrap();
    let spec = tributary_api::burst::BurstSpec { slot: "tide-burst-0".into(), size: 3, ..Default::default() };
    let mut burst = Burst::new("tide-burst-0", spec);
    let of_job = job(4).credential_digest.unwrap_or_default();
    let holder = CredentialRecipient { peer: "west".into(), credential_digest: of_job, ..Default::default() };
    burst.status = Some(tributary_api::burst::BurstStatus {
        peer: Some("west".into()),
        credential_recipients: vec![holder.clone()],
        ..Default::default()
    });
    let mut object = object(4);
    let seen = |object: &MiniCluster, bursts: &[Arc<Burst>], job| {
        compute(&Facts { bursts, rank_map: Some(&map), ..facts(object, Some(job)) }, now())
    };
    object.status = Some(seen(&object, &[Arc::new(burst.clone())], job(4)));
    object.status = Some(seen(&object, &[], job(4)));
    let held = |status: &MiniClusterStatus| status.bursts.iter().map(|row| row.holder.clone()).collect::<Vec<_>>();
    assert_eq!(held(object.status.as_ref().unwrap()), [Some(holder.clone())]);
    assert_eq!(held(&seen(&object, &[Arc::new(burst.clone())], job(4))), [Some(holder)], "once it is made anew");
    burst.status.as_mut().unwrap().credential_recipients[0].free_since = Some(Time(now()));
    assert_eq!(held(&seen(&object, &[burst.into()], job(4))), [None]);
    let other = JobFacts { uid: "job-2".into(), credential_digest: Some("sha256:new".into()), ..job(4) };
    assert_eq!(held(&seen(&object, &[], other)), [], "nobody has the new certificate");
}

#[test]
fn the_end_is_told_once_and_stays_when_its_pods_and_its_job_are_gone() {
    use crate::lead::Exit;
    let failed = JobOutcome::Failed { reason: "PodFailurePolicy".into(), message: "a container failed".into() };
    let ended = JobFacts { outcome: Some(failed), ..job(0) };
    let exit = Exit { pod: "tide-0-x".into(), code: 3, reason: None };
    let lead = LeadFacts { exit: Some(exit), ..LeadFacts::default() };
    let mut object = object(4);
    let status = compute(&Facts { lead, ..facts(&object, Some(ended.clone())) }, now());
    assert_eq!((status.phase, status.exit_code), (Some(Phase::Failed), Some(3)));
    for type_ in [condition::READY, condition::FINISHED] {
        let said = conditions::find(&status.conditions, type_).unwrap();
        assert_eq!(said.reason, "CommandFailed");
        assert_eq!(said.message, "the command failed with exit code 3 (pod tide-0-x)");
    }
    object.status = Some(status.clone());
    let without_pods = compute(&facts(&object, Some(ended.clone())), now());
    assert_eq!(without_pods, status);
    let without_job = compute(&Facts { over: true, ..facts(&object, None) }, now());
    assert_eq!((without_job.phase, without_job.exit_code, without_job.size), (Some(Phase::Failed), Some(3), 0));
    assert!(conditions::is_true(&without_job.conditions, condition::FINISHED));
    let again = compute(&Facts { restarting: true, ..facts(&object, Some(ended)) }, now());
    assert_eq!((again.phase, again.exit_code), (Some(Phase::Restarting), None));
    assert!(!conditions::is_true(&again.conditions, condition::FINISHED));
    let next = compute(&facts(&object, Some(JobFacts { uid: "job-2".into(), ..job(4) })), now());
    assert_eq!((next.phase, next.exit_code), (Some(Phase::Running), None));
}

#[test]
fn what_it_holds_is_told_until_it_has_ended() {
    let object = object(4);
    let usage = Usage { brokers: 4, ..Usage::default() };
    let held = Reservation { usage: usage.clone(), began: Some(now()), limit: None };
    let told = |facts: Facts<'_>| {
        let status = compute(&Facts { holds: Some(held.clone()), ..facts }, now());
        assert_eq!(status.began.map(|Time(began)| began), status.holds.as_ref().map(|_| now()));
        status.holds
    };
    assert_eq!(told(facts(&object, Some(job(4)))), Some(usage.clone()));
    let between = |job| Facts { restarting: true, ..facts(&object, job) };
    assert_eq!((told(between(Some(job(0)))), told(between(None))), (Some(usage.clone()), Some(usage.clone())));
    let ended = JobFacts { outcome: Some(JobOutcome::Succeeded), ..job(0) };
    assert_eq!(told(facts(&object, Some(ended.clone()))), None);
    assert_eq!(told(between(Some(ended))), None, "though the next one is asked for by now");
    assert_eq!(told(Facts { over: true, ..facts(&object, None) }), None);
    assert_eq!(compute(&facts(&object, Some(job(4))), now()).holds, None, "nobody counts");
}

#[test]
fn a_lead_that_was_replaced_or_started_again_is_a_restart_once_it_runs() {
    let lead = |pod: &str, restarts| LeadFacts { pod: Some(pod.into()), restarts, ..LeadFacts::default() };
    let mut object = object(4);
    let mut step = |ready: i32, lead: LeadFacts| {
        let status = compute(&Facts { lead, ..facts(&object, Some(job(ready))) }, now());
        object.status = Some(status.clone());
        let why = conditions::find(&status.conditions, condition::INSTANCE_RESTARTED).map(|one| one.reason.clone());
        (status.instance_restarts, status.lead.pod, why)
    };
    assert_eq!(step(0, lead("tide-0-a", 0)), (0, None, None), "nothing ran yet");
    assert_eq!(step(4, lead("tide-0-b", 0)), (0, Some("tide-0-b".into()), None));
    assert_eq!(step(3, lead("tide-0-c", 0)), (0, Some("tide-0-b".into()), None), "not yet");
    assert_eq!(step(4, lead("tide-0-c", 0)), (1, Some("tide-0-c".into()), Some("LeadReplaced".into())));
    assert_eq!(step(4, lead("tide-0-c", 1)), (2, Some("tide-0-c".into()), Some("LeadRestarted".into())));
    assert_eq!(step(4, lead("tide-0-c", 1)).0, 2, "counted once");
    assert_eq!(step(4, LeadFacts::default()).0, 2, "the pod is between two nodes");
}

#[test]
fn retries_are_announced_where_the_user_asked_for_them() {
    let said = |spec: MiniClusterSpec| {
        let object = MiniCluster::new("tide", MiniClusterSpec { size: Some(4), ..spec });
        let status = compute(&facts(&object, Some(job(4))), now());
        conditions::find(&status.conditions, condition::COMMAND_RETRIES).map(|one| one.message.clone())
    };
    assert_eq!(said(MiniClusterSpec::default()), None);
    let limited = said(MiniClusterSpec { backoff_limit: Some(3), ..MiniClusterSpec::default() }).unwrap();
    assert!(limited.contains("until 3 pods have failed"), "{limited}");
    let mut spec = MiniClusterSpec::default();
    spec.pod.restart_policy = Some("OnFailure".into());
    let in_place = said(spec).unwrap();
    assert!(in_place.contains("at most 100 times"), "{in_place}");
}

#[test]
fn who_may_not_grow_says_so_until_it_has_grown() {
    let object = MiniCluster::new("lake", MiniClusterSpec { size: Some(5), ..MiniClusterSpec::default() });
    let stays = |reason, why: &str| Some((reason, why.to_owned()));
    let queued = stays(reason::QUEUED, "it is next in line: 2 brokers are needed, 1 are free");
    let status = compute(&Facts { stays: queued, ..facts(&object, Some(job(3))) }, now());
    let grown = conditions::find(&status.conditions, condition::GROWN).unwrap();
    assert_eq!((grown.status.as_str(), grown.reason.as_str()), ("False", "Queued"));
    assert!(grown.message.starts_with("it stays at 4 of 5 brokers: it is next in line"), "{}", grown.message);
    let smaller = MiniCluster::new("lake", MiniClusterSpec { size: Some(2), ..MiniClusterSpec::default() });
    let kept = stays(condition::RESTART_REQUIRED, "Kueue");
    let status = compute(&Facts { stays: kept, ..facts(&smaller, Some(job(4))) }, now());
    let grown = conditions::find(&status.conditions, condition::GROWN).unwrap();
    assert_eq!(
        (grown.reason.as_str(), grown.message.as_str()),
        ("RestartRequired", "it stays at 4 brokers, not 2: Kueue")
    );
    let object = MiniCluster { status: Some(status), ..object };
    let status = compute(&facts(&object, Some(job(5))), now());
    assert!(conditions::find(&status.conditions, condition::GROWN).is_none());
}

#[test]
fn sizes_of_upstreams_jobs_are_what_upstream_said() {
    let mut object = object(4);
    object.status = Some(MiniClusterStatus { maximum_size: 6, ..MiniClusterStatus::default() });
    let status = compute(&facts(&object, Some(JobFacts { adopted: true, ..job(4) })), now());
    assert_eq!((status.maximum_size, status.size), (6, 4));
    assert!(conditions::is_true(&status.conditions, condition::ADOPTED));
    object.status = Some(status);
    let own = compute(&facts(&object, Some(job(4))), now());
    assert!(conditions::find(&own.conditions, condition::ADOPTED).is_none());
}
