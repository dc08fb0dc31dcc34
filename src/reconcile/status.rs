//! The status of a MiniCluster, as a function of what is known.

use jiff::Timestamp;

use crate::api::burst::Burst;
use crate::api::hosted_burst::BurstPhase;
use crate::api::labels::{condition, upstream};
use crate::api::minicluster::{BurstStatus, MiniCluster, MiniClusterStatus, Phase};
use crate::cluster::conditions::{self, Statement};
use crate::flux::RankMap;

/// What the status is made of.
#[derive(Debug)]
pub struct Facts<'a> {
    /// The object and its last status.
    pub mini_cluster: &'a MiniCluster,
    /// The Job that runs, or ran last.
    pub job: Option<JobFacts>,
    /// Why the spec cannot be carried out: reason and sentence, first things first.
    pub problems: Vec<(String, String)>,
    /// What keeps a valid spec from being carried out for now: reason and sentence.
    pub waiting: Option<(String, String)>,
    /// Written fields without effect.
    pub unsupported: Vec<String>,
    /// What a new Job would do differently.
    pub restart_required: Vec<String>,
    /// The Bursts of this root, in the order of their ranks.
    pub bursts: &'a [Burst],
    /// The frozen rank map of the running incarnation, else the one the spec asks for.
    pub rank_map: Option<&'a RankMap>,
    /// Name of the certificate's Secret.
    pub credential_secret: Option<String>,
    /// Port of the lead Service on the nodes.
    pub node_port: Option<i32>,
}

/// What is known of the Job.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JobFacts {
    /// Its UID: the incarnation.
    pub uid: String,
    /// Not made by us: an upstream operator's Job that runs on unchanged.
    pub adopted: bool,
    /// `spec.parallelism`.
    pub parallelism: i32,
    /// `spec.suspend`.
    pub suspended: bool,
    /// Ready pods: brokers that have joined.
    pub ready: i32,
    /// Pods that exist and have not ended.
    pub active: i32,
    /// How it ended.
    pub outcome: Option<JobOutcome>,
    /// Digest of the frozen rank map.
    pub rank_map_digest: Option<String>,
    /// Digest of the frozen certificate.
    pub credential_digest: Option<String>,
}

/// How a Job ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum JobOutcome {
    /// Condition `Complete`, or `SuccessCriteriaMet`.
    Succeeded,
    /// Condition `Failed`, or `FailureTarget`.
    Failed {
        /// Reason of that condition.
        reason: String,
        /// Its sentence.
        message: String,
    },
}

/// The status that these facts make, as of `now`.
pub fn compute(facts: &Facts<'_>, now: Timestamp) -> MiniClusterStatus {
    let old = facts.mini_cluster.status.clone().unwrap_or_default();
    let spec = &facts.mini_cluster.spec;
    let phase = phase(facts);
    let generation = facts.mini_cluster.metadata.generation;
    let incarnation = facts.job.as_ref().map(|job| job.uid.clone());
    let restarted = matches!((&old.incarnation, &incarnation), (Some(before), Some(now)) if before != now);
    let job = facts.job.as_ref();
    let bursts = bursts(facts);
    let maximum = facts.rank_map.map_or_else(|| spec.max_size(), |map| own_ranks(map, facts.mini_cluster));
    let mut conditions = conditions::merged(&old.conditions, statements(facts, phase, &bursts), generation, now);
    if facts.problems.is_empty() && facts.waiting.is_none() && bursts.is_empty() {
        conditions = conditions::without(conditions, &[condition::BURSTS_READY]);
    }
    MiniClusterStatus {
        size: job.map_or(0, |job| job.parallelism),
        selector: format!(
            "{}={}",
            upstream::HPA_SELECTOR,
            facts.mini_cluster.metadata.name.as_deref().unwrap_or_default()
        ),
        jobid: String::new(),
        maximum_size: maximum,
        phase: Some(phase),
        conditions,
        observed_generation: generation,
        ready: Some(job.map_or(0, |job| job.ready)),
        rank_map: job.and(facts.rank_map).map(RankMap::to_canonical),
        rank_map_digest: job.and_then(|job| job.rank_map_digest.clone()),
        credential_digest: job.and_then(|job| job.credential_digest.clone()),
        credential_secret: job.and(facts.credential_secret.clone()),
        // A Service that was deleted asks for its port again: bursts hold the old address until they are told.
        lead: crate::api::minicluster::LeadStatus { node_port: facts.node_port.or(old.lead.node_port), ..old.lead },
        instance_restarts: old.instance_restarts + i32::from(restarted),
        // The last incarnation is remembered after its Job is gone, so that the next one counts as a restart.
        incarnation: incarnation.or(old.incarnation),
        bursts_ready: (!bursts.is_empty()).then(|| {
            let ready = bursts.iter().filter(|burst| is_ready(burst)).count();
            format!("{ready}/{}", bursts.len())
        }),
        bursts,
    }
}

/// Ranks of this cluster's own slot: the root's, or the hosted burst's.
fn own_ranks(map: &RankMap, mini_cluster: &MiniCluster) -> i32 {
    let own = mini_cluster.metadata.name.as_deref().and_then(|name| map.slot(name)).unwrap_or_else(|| map.root());
    i32::try_from(own.max_size).unwrap_or(i32::MAX)
}

fn phase(facts: &Facts<'_>) -> Phase {
    let Some(job) = &facts.job else {
        return if facts.problems.is_empty() { Phase::Pending } else { Phase::Refused };
    };
    match &job.outcome {
        Some(JobOutcome::Succeeded) => Phase::Succeeded,
        Some(JobOutcome::Failed { .. }) => Phase::Failed,
        None if job.suspended => Phase::Suspended,
        None if job.ready >= quorum(facts, job) => Phase::Running,
        None => Phase::Starting,
    }
}

/// Brokers that have to be there before Flux starts: `minSize`, else all pods that are asked for.
fn quorum(facts: &Facts<'_>, job: &JobFacts) -> i32 {
    facts.mini_cluster.spec.min_size.unwrap_or(job.parallelism).clamp(1, job.parallelism.max(1))
}

fn statements(facts: &Facts<'_>, phase: Phase, bursts: &[BurstStatus]) -> Vec<Statement> {
    let mut statements = vec![valid(facts), supported(facts), ready(facts, phase), finished(facts)];
    if !facts.restart_required.is_empty() {
        statements.push(Statement::holds(
            condition::RESTART_REQUIRED,
            "FrozenPerIncarnation",
            format!(
                "{} differ{} from what the running instance was started with; delete the Job to start it anew",
                facts.restart_required.join(", "),
                if facts.restart_required.len() == 1 { "s" } else { "" }
            ),
        ));
    } else {
        statements.push(Statement::fails(condition::RESTART_REQUIRED, "UpToDate", ""));
    }
    if facts.job.as_ref().is_some_and(|job| job.adopted) {
        let message = "the Job was made by the Flux Operator; it runs on unchanged until it ends";
        statements.push(Statement::holds(condition::ADOPTED, "UpstreamJob", message));
    }
    if !bursts.is_empty() {
        let missing: Vec<&str> =
            bursts.iter().filter(|burst| !is_ready(burst)).map(|burst| burst.name.as_str()).collect();
        statements.push(if missing.is_empty() {
            Statement::holds(condition::BURSTS_READY, "AllJoined", "every broker of every burst has joined")
        } else {
            Statement::fails(condition::BURSTS_READY, "NotAllJoined", format!("not ready: {}", missing.join(", ")))
        });
    }
    statements.extend(upstream_conditions(phase));
    statements
}

fn valid(facts: &Facts<'_>) -> Statement {
    let Some((reason, _)) = facts.problems.first() else {
        return Statement::holds(condition::VALID, "Valid", "the spec can be carried out");
    };
    let sentences: Vec<&str> = facts.problems.iter().map(|(_, sentence)| sentence.as_str()).collect();
    Statement::fails(condition::VALID, reason.clone(), sentences.join("; "))
}

fn supported(facts: &Facts<'_>) -> Statement {
    if facts.unsupported.is_empty() {
        return Statement::holds(condition::SPEC_SUPPORTED, "AllFieldsWork", "");
    }
    let message = format!("accepted, but without effect yet: {}", facts.unsupported.join(", "));
    Statement::fails(condition::SPEC_SUPPORTED, "FieldsWithoutEffect", message)
}

fn ready(facts: &Facts<'_>, phase: Phase) -> Statement {
    let fails = |reason: &str, message: String| Statement::fails(condition::READY, reason, message);
    let Some(job) = &facts.job else {
        return match (facts.problems.first(), &facts.waiting) {
            (Some((reason, _)), _) => {
                let sentences: Vec<&str> = facts.problems.iter().map(|(_, sentence)| sentence.as_str()).collect();
                fails(reason, sentences.join("; "))
            }
            (None, Some((reason, sentence))) => fails(reason, sentence.clone()),
            (None, None) => fails("Pending", "the Job is not there yet".into()),
        };
    };
    if let Some((reason, sentence)) = &facts.waiting {
        return fails(reason, sentence.clone());
    }
    match (phase, &job.outcome) {
        (Phase::Running, _) => Statement::holds(
            condition::READY,
            "Running",
            format!("{} of {} brokers of this cluster have joined", job.ready, job.parallelism),
        ),
        (Phase::Suspended, _) => fails("Suspended", "the Job is suspended".into()),
        (_, Some(JobOutcome::Succeeded)) => fails("Succeeded", "the command has ended well".into()),
        (_, Some(JobOutcome::Failed { reason, message })) => fails("Failed", format!("{reason}: {message}")),
        _ => fails("Starting", format!("{} of {} brokers of this cluster have joined", job.ready, job.parallelism)),
    }
}

fn finished(facts: &Facts<'_>) -> Statement {
    match facts.job.as_ref().and_then(|job| job.outcome.as_ref()) {
        None => Statement::fails(condition::FINISHED, "NotFinished", ""),
        Some(JobOutcome::Succeeded) => Statement::holds(condition::FINISHED, "Succeeded", "the command has ended well"),
        Some(JobOutcome::Failed { reason, message }) => {
            Statement::holds(condition::FINISHED, "Failed", format!("{reason}: {message}"))
        }
    }
}

/// Upstream's five, of which it keeps exactly one true; reason and message are the type, as there.
fn upstream_conditions(phase: Phase) -> impl Iterator<Item = Statement> {
    let current = match phase {
        Phase::Pending | Phase::Refused | Phase::Unknown => condition::JOB_REQUESTED,
        Phase::Starting | Phase::Suspended => condition::JOB_WAITING_FOR_RESOURCES,
        Phase::Running => condition::JOB_MINI_CLUSTER_READY,
        Phase::Succeeded | Phase::Failed => condition::JOB_FINISHED,
    };
    condition::UPSTREAM.into_iter().map(move |type_| {
        if type_ == current { Statement::holds(type_, type_, type_) } else { Statement::fails(type_, type_, type_) }
    })
}

fn bursts(facts: &Facts<'_>) -> Vec<BurstStatus> {
    let row = |burst: &Burst| {
        let status = burst.status.clone().unwrap_or_default();
        let ranks = facts.rank_map.and_then(|map| map.ranks(&burst.spec.slot)).map(|ranks| match ranks.len() {
            1 => ranks.start.to_string(),
            _ => format!("{}-{}", ranks.start, ranks.end.saturating_sub(1)),
        });
        BurstStatus {
            name: burst.spec.slot.clone(),
            phase: phase_name(status.phase).to_owned(),
            peer: status.peer,
            size: i32::try_from(burst.spec.size).unwrap_or(i32::MAX),
            ready: i32::try_from(status.ready_brokers).unwrap_or(i32::MAX),
            ranks: ranks.unwrap_or_default(),
            message: status.message,
        }
    };
    facts.bursts.iter().map(row).collect()
}

fn is_ready(burst: &BurstStatus) -> bool {
    burst.phase == phase_name(BurstPhase::Ready) && burst.ready >= burst.size
}

fn phase_name(phase: BurstPhase) -> &'static str {
    match phase {
        BurstPhase::Pending => "Pending",
        BurstPhase::Offered => "Offered",
        BurstPhase::Accepted => "Accepted",
        BurstPhase::Provisioning => "Provisioning",
        BurstPhase::Joining => "Joining",
        BurstPhase::Ready => "Ready",
        BurstPhase::Draining => "Draining",
        BurstPhase::Released => "Released",
        BurstPhase::Rejected => "Rejected",
        BurstPhase::Evicted => "Evicted",
        BurstPhase::Lost => "Lost",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::minicluster::MiniClusterSpec;

    fn object(size: i32) -> MiniCluster {
        let mut object = MiniCluster::new("tide", MiniClusterSpec { size: Some(size), ..MiniClusterSpec::default() });
        object.metadata.generation = Some(3);
        object
    }

    fn facts(object: &MiniCluster, job: Option<JobFacts>) -> Facts<'_> {
        Facts {
            mini_cluster: object,
            job,
            problems: Vec::new(),
            waiting: None,
            unsupported: Vec::new(),
            restart_required: Vec::new(),
            bursts: &[],
            rank_map: None,
            credential_secret: None,
            node_port: None,
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

    #[test]
    fn min_size_is_the_quorum() {
        let mut object = object(4);
        object.spec.min_size = Some(2);
        assert_eq!(compute(&facts(&object, Some(job(2))), now()).phase, Some(Phase::Running));
        assert_eq!(compute(&facts(&object, Some(job(1))), now()).phase, Some(Phase::Starting));
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
        use crate::flux::Slot;
        let map = RankMap::new(vec![Slot::root("tide", 4), Slot::burst("tide-burst-0", 3, None)]).unwrap();
        let mut burst = Burst::new(
            "tide-burst-0",
            crate::api::burst::BurstSpec { slot: "tide-burst-0".into(), size: 3, ..Default::default() },
        );
        burst.status = Some(crate::api::burst::BurstStatus {
            phase: BurstPhase::Ready,
            ready_brokers: 3,
            peer: Some("west".into()),
            ..Default::default()
        });
        let object = object(4);
        let bursts = [burst];
        let status = compute(&Facts { bursts: &bursts, rank_map: Some(&map), ..facts(&object, Some(job(4))) }, now());
        assert_eq!(status.bursts[0].ranks, "4-6");
        assert_eq!(status.bursts_ready.as_deref(), Some("1/1"));
        assert!(conditions::is_true(&status.conditions, condition::BURSTS_READY));
        assert_eq!(status.maximum_size, 4);
    }
}
