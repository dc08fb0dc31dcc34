//! The status of a MiniCluster, as a function of what is known.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt as _;

use super::decide::NAME_TAKEN;
use super::ending::{Ending, JobOutcome, ending};
use super::exposure::{self, PeerUids, recipients};
use super::gate::Held;
use super::lead::LeadFacts;
use super::refusal::CANNOT_MAINTAIN;
use super::summary;
use crate::api::budget::Spent;
use crate::api::burst::Burst;
use crate::api::hosted_burst::{BurstPhase, is_hosted};
use crate::api::labels::{MINICLUSTER, condition, reason, upstream};
use crate::api::minicluster::{BurstStatus, LeadStatus, MiniCluster, MiniClusterStatus, Phase};
use crate::cluster::conditions::{self, Statement};
use crate::flux::RankMap;

/// What the status is made of.
#[derive(Debug)]
pub struct Facts<'a> {
    /// The object and its last status.
    pub mini_cluster: &'a MiniCluster,
    /// The Job that runs, or ran last.
    pub job: Option<JobFacts>,
    /// The lead broker's pod.
    pub lead: LeadFacts,
    /// Why the spec cannot be carried out: reason and sentence, first things first.
    pub problems: Vec<(String, String)>,
    /// What keeps a valid spec from being carried out for now: reason and sentence.
    pub waiting: Option<(String, String)>,
    /// That does not end by itself.
    pub refused: bool,
    /// Written fields without effect.
    pub unsupported: Vec<String>,
    /// What a new Job would do differently.
    pub restart_required: Vec<String>,
    /// It is between two incarnations.
    pub restarting: bool,
    /// It has ended, and its Job is gone.
    pub over: bool,
    /// What it runs without, because the name is taken: sentences. `None`: nothing new is known of that.
    pub taken: Option<Vec<String>>,
    /// Why a running instance stays smaller than it is asked to be.
    pub stays: Option<String>,
    /// What it holds of its namespace's quota.
    pub holds: Option<Held>,
    /// The Bursts of this root, in the order of their ranks.
    pub bursts: &'a [Burst],
    /// The frozen rank map of the running incarnation, else the one the spec asks for.
    pub rank_map: Option<&'a RankMap>,
    /// Name of the certificate's Secret.
    pub credential_secret: Option<String>,
    /// The ClusterPeers.
    pub peers: &'a PeerUids,
    /// Port of the lead Service on the nodes.
    pub node_port: Option<i32>,
    /// Address of its load balancer, once it has one.
    pub load_balancer: Option<String>,
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
    /// Since when its deadline counts.
    pub started: Option<Timestamp>,
    /// Ready pods: brokers that have joined.
    pub ready: i32,
    /// Pods that have completed.
    pub succeeded: i32,
    /// Pods that exist and have not ended.
    pub active: i32,
    /// How it ended.
    pub outcome: Option<JobOutcome>,
    /// Digest of the frozen rank map.
    pub rank_map_digest: Option<String>,
    /// Digest of the frozen certificate.
    pub credential_digest: Option<String>,
    /// The value of the annotation `tributary.dev/restart` that it was made with.
    pub restart: Option<String>,
}

/// The status that these facts make, as of `now`.
pub fn compute(facts: &Facts<'_>, now: Timestamp) -> MiniClusterStatus {
    let old = facts.mini_cluster.status.clone().unwrap_or_default();
    let spec = &facts.mini_cluster.spec;
    let phase = phase(facts, &old);
    let generation = facts.mini_cluster.metadata.generation;
    let job = facts.job.as_ref();
    let incarnation = job.map(|job| job.uid.clone());
    let lead = lead(facts, &old, phase);
    let restart = restart(&old, incarnation.as_deref(), &lead);
    let ended = job.and_then(|job| job.outcome.as_ref()).filter(|_| !facts.restarting);
    // The pods of a Job that has ended go in time: what was said at its end stands.
    let told = facts.over || (conditions::is_true(&old.conditions, condition::FINISHED) && facts.lead.exit.is_none());
    let told = told && (facts.over || (old.incarnation == incarnation && ended.is_some()));
    let ending = ended.filter(|_| !told).map(|outcome| ending(outcome, &facts.lead, spec));
    // What has ended holds nothing, even if the next one is on its way by now.
    let held = facts.holds.as_ref().filter(|_| !facts.over && job.is_none_or(|job| job.outcome.is_none()));
    let bursts = bursts(facts, &old.bursts);
    let credential_digest = job.and_then(|job| job.credential_digest.clone());
    let credential_recipients =
        recipients(&old.credential_recipients, facts.bursts, credential_digest.as_deref(), facts.peers, now);
    let maximum = match (facts.rank_map, job) {
        // Upstream made the Job: what it has ranks for is what upstream said.
        (_, Some(job)) if job.adopted && old.maximum_size > 0 => old.maximum_size,
        (Some(map), _) => own_ranks(map, facts.mini_cluster),
        (None, _) => spec.max_size(),
    };
    let mut statements = statements(facts, phase, &bursts, ending.as_ref(), restart.as_ref());
    let own_certificate = spec.flux.curve_cert_secret.is_some() || spec.flux.curve_cert.is_some();
    statements.extend(summary::statements(facts.bursts));
    statements.extend(exposure::statement(
        facts.mini_cluster,
        &credential_recipients,
        own_certificate,
        &old.conditions,
    ));
    if told {
        statements.retain(|statement| ![condition::READY, condition::FINISHED].contains(&statement.type_));
        statements.extend(stays_ready(facts, &old));
    }
    // Nobody compared anything.
    if facts.waiting.as_ref().is_some_and(|(reason, _)| reason == CANNOT_MAINTAIN) && facts.restart_required.is_empty()
    {
        statements.retain(|statement| statement.type_ != condition::RESTART_REQUIRED);
    }
    let mut gone = Vec::new();
    if facts.problems.is_empty() && facts.waiting.is_none() && bursts.is_empty() {
        gone.push(condition::BURSTS_READY);
    }
    // Adoption ends with the Job; retries with the wish for them.
    gone.extend([condition::ADOPTED, condition::COMMAND_RETRIES, condition::BUDGET, condition::DEMAND]);
    if facts.taken.is_some() || job.is_none_or(|job| job.outcome.is_some()) {
        gone.push(condition::SERVICES_READY);
    }
    if facts.stays.is_none() {
        gone.push(condition::GROWN);
    }
    gone.retain(|type_| !statements.iter().any(|statement| statement.type_ == *type_));
    let conditions = conditions::merged(&old.conditions, statements, generation, now);
    MiniClusterStatus {
        size: job.map_or(0, |job| job.parallelism),
        selector: format!("{}={}", scaled_by(facts.mini_cluster), facts.mini_cluster.name_any()),
        jobid: String::new(),
        maximum_size: maximum,
        phase: Some(phase),
        conditions: conditions::without(conditions, &gone),
        observed_generation: generation,
        ready: Some(job.map_or(0, |job| job.ready)),
        rank_map: job.and(facts.rank_map).map(RankMap::to_canonical),
        rank_map_digest: job.and_then(|job| job.rank_map_digest.clone()),
        credential_digest,
        credential_recipients,
        credential_secret: job.and(facts.credential_secret.clone()),
        began: held.and_then(|held| held.began).map(Time),
        admitted_seconds: held.and_then(|held| held.limit),
        holds: held.map(|held| held.usage.clone()),
        exit_code: if told { old.exit_code } else { ending.and_then(|ending| ending.exit_code) },
        lead,
        instance_restarts: old.instance_restarts + i32::from(restart.is_some()),
        restart_handled: job.and_then(|job| job.restart.clone()).or(old.restart_handled),
        // The last incarnation is remembered after its Job is gone, so that the next one counts as a restart.
        incarnation: incarnation.or(old.incarnation),
        bursts_ready: (!bursts.is_empty()).then(|| {
            let awake: Vec<_> = bursts.iter().filter(|burst| !is_asleep(burst)).collect();
            let ready = awake.iter().filter(|burst| is_ready(burst)).count();
            format!("{ready}/{}", awake.len())
        }),
        bursts_spent: spent(facts, &old.bursts_spent, now),
        bursts,
    }
}

/// What the bursts have used together.
fn spent(facts: &Facts<'_>, old: &Spent, now: Timestamp) -> Spent {
    let each = facts.bursts.iter().filter_map(|burst| burst.status.as_ref());
    let brokers = each.fold(0_u32, |sum, status| sum.saturating_add(status.spent.brokers));
    old.on(brokers, facts.mini_cluster.spec.flux.bursting.budget.renewal.as_deref(), now)
}

/// Where the lead is. Its pod counts once the instance runs: until then pods may come and go.
fn lead(facts: &Facts<'_>, old: &MiniClusterStatus, phase: Phase) -> LeadStatus {
    let uid = facts.job.as_ref().map(|job| &job.uid);
    let before = if uid == old.incarnation.as_ref() { old.lead.clone() } else { LeadStatus::default() };
    let (pod, restarts) = match &facts.lead.pod {
        Some(pod) if phase == Phase::Running => (Some(pod.clone()), facts.lead.restarts),
        _ => (before.pod, before.restarts),
    };
    // A Service that was deleted asks for its port again: bursts hold the old address until they are told.
    let node_port = facts.node_port.or(old.lead.node_port);
    LeadStatus { node_port, address: facts.load_balancer.clone(), pod, restarts }
}

/// Why this is another instance than before: reason and sentence.
fn restart(old: &MiniClusterStatus, incarnation: Option<&str>, lead: &LeadStatus) -> Option<(&'static str, String)> {
    let before = old.incarnation.as_deref()?;
    let now = incarnation?;
    if before != now {
        return Some(("JobReplaced", "a new Job was made: certificate, ranks and boot files are new".to_owned()));
    }
    match (&old.lead.pod, &lead.pod) {
        (Some(before), Some(now)) if before != now => {
            Some(("LeadReplaced", format!("the lead broker's pod {before} was replaced by {now}; Flux started anew")))
        }
        (Some(_), Some(pod)) if lead.restarts > old.lead.restarts => {
            let sentence = format!("the lead broker's container in pod {pod} was started again; Flux started anew");
            Some(("LeadRestarted", sentence))
        }
        _ => None,
    }
}

/// The label that the pods of a MiniCluster are found by: users have written upstream's into their autoscalers. Hosted pods
/// bear none of upstream's, but for those that older agents have made.
fn scaled_by(mini_cluster: &MiniCluster) -> &'static str {
    if is_hosted(mini_cluster) { MINICLUSTER } else { upstream::HPA_SELECTOR }
}

/// Ranks of this cluster's own slot: the root's, or the hosted burst's.
fn own_ranks(map: &RankMap, mini_cluster: &MiniCluster) -> i32 {
    let own = mini_cluster.metadata.name.as_deref().and_then(|name| map.slot(name)).unwrap_or_else(|| map.root());
    i32::try_from(own.max_size).unwrap_or(i32::MAX)
}

fn phase(facts: &Facts<'_>, old: &MiniClusterStatus) -> Phase {
    if facts.over {
        return old.phase.unwrap_or(Phase::Pending);
    }
    if facts.restarting {
        return Phase::Restarting;
    }
    let Some(job) = &facts.job else {
        return match old.phase {
            _ if facts.refused || !facts.problems.is_empty() => Phase::Refused,
            Some(Phase::Restarting) => Phase::Restarting,
            _ => Phase::Pending,
        };
    };
    match &job.outcome {
        Some(JobOutcome::Succeeded) => Phase::Succeeded,
        Some(JobOutcome::Failed { .. }) => Phase::Failed,
        None if job.suspended => Phase::Suspended,
        // Those that have completed were there, and the lead goes on.
        None if job.ready > 0 && job.ready + job.succeeded >= quorum(facts, job) => Phase::Running,
        None => Phase::Starting,
    }
}

/// Brokers that have to be there before Flux starts: `minSize`, else all pods that are asked for.
fn quorum(facts: &Facts<'_>, job: &JobFacts) -> i32 {
    facts.mini_cluster.spec.min_size.unwrap_or(job.parallelism).clamp(1, job.parallelism.max(1))
}

fn statements(
    facts: &Facts<'_>,
    phase: Phase,
    bursts: &[BurstStatus],
    ending: Option<&Ending>,
    restart: Option<&(&'static str, String)>,
) -> Vec<Statement> {
    let mut statements =
        vec![valid(facts), supported(facts), ready(facts, phase, ending), finished(ending), restart_required(facts)];
    if let Some((reason, sentence)) = restart {
        statements.push(Statement::holds(condition::INSTANCE_RESTARTED, *reason, sentence.clone()));
    }
    statements.extend(retries(facts));
    if let Some(taken) = facts.taken.as_ref().filter(|taken| !taken.is_empty()) {
        statements.push(Statement::fails(condition::SERVICES_READY, NAME_TAKEN, taken.join("; ")));
    }
    if let (Some(why), Some(job)) = (&facts.stays, &facts.job) {
        let (has, wants) = (job.parallelism, facts.mini_cluster.spec.size());
        let sentence = format!("it stays at {has} of {wants} brokers: {why}");
        statements.push(Statement::fails(condition::GROWN, reason::QUEUED, sentence));
    }
    if facts.job.as_ref().is_some_and(|job| job.adopted) {
        let message = "the Job was made by the Flux Operator; it runs on unchanged until it ends";
        statements.push(Statement::holds(condition::ADOPTED, "UpstreamJob", message));
    }
    if !bursts.is_empty() {
        let missing: Vec<&str> =
            bursts.iter().filter(|one| !is_ready(one) && !is_asleep(one)).map(|one| one.name.as_str()).collect();
        statements.push(if missing.is_empty() {
            Statement::holds(condition::BURSTS_READY, "AllReady", "every pod of every burst is ready")
        } else {
            Statement::fails(condition::BURSTS_READY, "NotAllReady", format!("not ready: {}", missing.join(", ")))
        });
    }
    statements.extend(upstream_conditions(phase));
    statements
}

fn restart_required(facts: &Facts<'_>) -> Statement {
    if facts.restart_required.is_empty() {
        let message = if facts.over {
            "the run has ended and its Job is gone; set the annotation tributary.dev/restart to a new value to run it again"
        } else {
            ""
        };
        return Statement::fails(condition::RESTART_REQUIRED, "UpToDate", message);
    }
    let message = format!(
        "{} differ{} from what the instance was started with; to start it anew, set the annotation \
         tributary.dev/restart to a new value, or delete the Job, or set spec.updates to Recreate",
        facts.restart_required.join(", "),
        if facts.restart_required.len() == 1 { "s" } else { "" }
    );
    Statement::holds(condition::RESTART_REQUIRED, "FrozenPerIncarnation", message)
}

/// What the user's own settings mean for a command that fails. By default it is not run again.
fn retries(facts: &Facts<'_>) -> Option<Statement> {
    let spec = &facts.mini_cluster.spec;
    if facts.job.as_ref().is_some_and(|job| job.adopted) {
        return None;
    }
    let limit = spec.backoff_limit();
    let holds = |reason, message| Some(Statement::holds(condition::COMMAND_RETRIES, reason, message));
    match (spec.pod.restart_policy.as_deref(), spec.backoff_limit) {
        (Some(policy), _) if policy != "Never" => holds(
            "RestartPolicy",
            format!(
                "pod.restartPolicy is {policy}: a command that fails is run again in its pod, by a new Flux instance, at \
                 most {limit} times (backoffLimit)"
            ),
        ),
        (_, Some(limit)) if limit > 0 => holds(
            "BackoffLimit",
            format!(
                "backoffLimit is set: a command that fails is run again in a new pod, by a new Flux instance, until \
                 {limit} pods have failed"
            ),
        ),
        _ => None,
    }
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
    let message = format!("accepted, but without effect: {}", facts.unsupported.join("; "));
    Statement::fails(condition::SPEC_SUPPORTED, "FieldsWithoutEffect", message)
}

fn ready(facts: &Facts<'_>, phase: Phase, ending: Option<&Ending>) -> Statement {
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
    let waiting = facts.waiting.as_ref();
    if let Some(Ending { reason, message, .. }) = ending {
        return fails(reason, with(message, waiting));
    }
    if let Some((reason, sentence)) = waiting {
        return fails(reason, sentence.clone());
    }
    match phase {
        Phase::Running => Statement::holds(
            condition::READY,
            "Running",
            format!("{} of {} pods of this cluster are ready", job.ready, job.parallelism),
        ),
        Phase::Suspended => fails("Suspended", "the Job is suspended".into()),
        _ => fails("Starting", format!("{} of {} pods of this cluster are ready", job.ready, job.parallelism)),
    }
}

/// How it ended, and what cannot be done since.
fn with(message: &str, waiting: Option<&(String, String)>) -> String {
    waiting.map_or_else(|| message.to_owned(), |(_, sentence)| format!("{message}; {sentence}"))
}

/// What is said of one whose end was told before: that stands.
fn stays_ready(facts: &Facts<'_>, old: &MiniClusterStatus) -> Option<Statement> {
    let finished = conditions::find(&old.conditions, condition::FINISHED)?;
    let message = with(&finished.message, facts.waiting.as_ref());
    Some(Statement::fails(condition::READY, finished.reason.clone(), message))
}

fn finished(ending: Option<&Ending>) -> Statement {
    match ending {
        None => Statement::fails(condition::FINISHED, "NotFinished", ""),
        Some(Ending { reason, message, .. }) => Statement::holds(condition::FINISHED, reason.clone(), message.clone()),
    }
}

/// Upstream's five, of which it keeps exactly one true; reason and message are the type, as there.
fn upstream_conditions(phase: Phase) -> impl Iterator<Item = Statement> {
    let current = match phase {
        Phase::Pending | Phase::Refused | Phase::Restarting | Phase::Unknown(_) => condition::JOB_REQUESTED,
        Phase::Starting | Phase::Suspended => condition::JOB_WAITING_FOR_RESOURCES,
        Phase::Running => condition::JOB_MINI_CLUSTER_READY,
        Phase::Succeeded | Phase::Failed => condition::JOB_FINISHED,
    };
    condition::UPSTREAM.into_iter().map(move |type_| {
        if type_ == current { Statement::holds(type_, type_, type_) } else { Statement::fails(type_, type_, type_) }
    })
}

/// The Bursts that there are; and of those that somebody deleted, who holds their slots: with the Burst alone, that would be
/// forgotten.
fn bursts(facts: &Facts<'_>, before: &[BurstStatus]) -> Vec<BurstStatus> {
    let row = |burst: &Burst| {
        let status = burst.status.clone().unwrap_or_default();
        let ranks = facts.rank_map.and_then(|map| map.ranks(&burst.spec.slot)).map(|ranks| match ranks.len() {
            1 => ranks.start.to_string(),
            _ => format!("{}-{}", ranks.start, ranks.end.saturating_sub(1)),
        });
        BurstStatus {
            name: burst.spec.slot.clone(),
            phase: status.phase.to_string(),
            holder: status.holder().cloned(),
            peer: status.peer,
            size: i32::try_from(burst.spec.size).unwrap_or(i32::MAX),
            ready: i32::try_from(status.ready_brokers).unwrap_or(i32::MAX),
            ranks: ranks.unwrap_or_default(),
            message: status.message,
        }
    };
    let digest = facts.job.as_ref().and_then(|job| job.credential_digest.as_ref());
    let declared = |slot: &str| facts.rank_map.is_none_or(|map| map.ranks(slot).is_some());
    let deleted = before.iter().filter(|known| {
        let holder = known.holder.as_ref().filter(|one| digest.is_none_or(|digest| one.credential_digest == *digest));
        holder.is_some() && declared(&known.name) && facts.bursts.iter().all(|burst| burst.spec.slot != known.name)
    });
    let deleted = deleted.map(|known| BurstStatus { ready: 0, ..known.clone() });
    facts.bursts.iter().map(row).chain(deleted).collect()
}

fn is_ready(burst: &BurstStatus) -> bool {
    burst.phase == BurstPhase::Ready.to_string() && burst.ready >= burst.size
}

/// Nobody wants its brokers at the moment: nothing is missing.
fn is_asleep(burst: &BurstStatus) -> bool {
    burst.phase == BurstPhase::Asleep.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::flux_setup::Usage;
    use crate::api::minicluster::MiniClusterSpec;

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
            lead: LeadFacts::default(),
            problems: Vec::new(),
            waiting: None,
            refused: false,
            unsupported: Vec::new(),
            restart_required: Vec::new(),
            restarting: false,
            over: false,
            taken: None,
            stays: None,
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
        running.status = Some(compute(
            &Facts { restart_required: vec!["spec.image".into()], ..facts(&object, Some(job(2))) },
            now(),
        ));
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

    /// The danger: who deletes a Burst makes its slot look free.
    #[test]
    fn who_holds_a_slot_is_known_when_its_burst_was_deleted() {
        use crate::api::burst::CredentialRecipient;
        use crate::flux::Slot;
        let map = RankMap::new(vec![Slot::root("tide", 4), Slot::burst("tide-burst-0", 3, None)]).unwrap();
        let spec = crate::api::burst::BurstSpec { slot: "tide-burst-0".into(), size: 3, ..Default::default() };
        let mut burst = Burst::new("tide-burst-0", spec);
        let of_job = job(4).credential_digest.unwrap_or_default();
        let holder = CredentialRecipient { peer: "west".into(), credential_digest: of_job, ..Default::default() };
        burst.status = Some(crate::api::burst::BurstStatus {
            peer: Some("west".into()),
            credential_recipients: vec![holder.clone()],
            ..Default::default()
        });
        let mut object = object(4);
        let seen = |object: &MiniCluster, bursts: &[Burst], job| {
            compute(&Facts { bursts, rank_map: Some(&map), ..facts(object, Some(job)) }, now())
        };
        object.status = Some(seen(&object, &[burst.clone()], job(4)));
        object.status = Some(seen(&object, &[], job(4)));
        let held = |status: &MiniClusterStatus| status.bursts.iter().map(|row| row.holder.clone()).collect::<Vec<_>>();
        assert_eq!(held(object.status.as_ref().unwrap()), [Some(holder.clone())]);
        assert_eq!(held(&seen(&object, &[burst.clone()], job(4))), [Some(holder)], "once it is made anew");
        burst.status.as_mut().unwrap().credential_recipients[0].free_since = Some(Time(now()));
        assert_eq!(held(&seen(&object, &[burst], job(4))), [None]);
        let other = JobFacts { uid: "job-2".into(), credential_digest: Some("sha256:new".into()), ..job(4) };
        assert_eq!(held(&seen(&object, &[], other)), [], "nobody has the new certificate");
    }

    #[test]
    fn the_end_is_told_once_and_stays_when_its_pods_and_its_job_are_gone() {
        use crate::reconcile::lead::Exit;
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
        let held = Held { usage: usage.clone(), began: Some(now()), limit: None };
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
        let stays = Some("it is next in line: 2 brokers are needed, 1 are free".to_owned());
        let status = compute(&Facts { stays, ..facts(&object, Some(job(3))) }, now());
        let grown = conditions::find(&status.conditions, condition::GROWN).unwrap();
        assert_eq!((grown.status.as_str(), grown.reason.as_str()), ("False", "Queued"));
        assert!(grown.message.starts_with("it stays at 4 of 5 brokers: it is next in line"), "{}", grown.message);
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
}
