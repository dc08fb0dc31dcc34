//! The status of a MiniCluster, as a function of what is known.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt as _;
use tributary_api::budget::Spent;
use tributary_api::burst::Burst;
use tributary_api::hosted_burst::is_hosted;
use tributary_api::labels::{MINICLUSTER, condition, reason, upstream};
use tributary_api::minicluster::{BurstStatus, LeadStatus, MiniCluster, MiniClusterSpec, MiniClusterStatus, Phase};
use tributary_api::workload::reason::{JOB_HANDED_ON, JOB_QUEUED};
use tributary_cluster::conditions::{self, Statement};
use tributary_flux::RankMap;
use tributary_render::SUSPEND_IN_QUEUE;

use super::beside::Without;
use super::bursts;
use super::ending::{Ending, JobOutcome, ending};
use super::exposure::{self, PeerUids, recipients};
use super::lead::LeadFacts;
use super::quota_gate::Reservation;
use super::refusal::CANNOT_MAINTAIN;
use super::summary;

mod missing_pods;

use missing_pods::{handed_on, pods_not_made, suspended};

/// Whether the two differ only in progress, which may be told a second later: bursts without a holder, a reason or a ready broker;
/// phases and messages of bursts; and what was used, where the root has no budget.
pub(super) fn differ_by_progress(spec: &MiniClusterSpec, before: &MiniClusterStatus, now: &MiniClusterStatus) -> bool {
    let rest = |status: &MiniClusterStatus| {
        let mut status = status.clone();
        status.bursts.retain(|burst| burst.holder.is_some() || burst.reason.is_some() || burst.ready > 0);
        for burst in &mut status.bursts {
            (burst.phase, burst.message) = <(String, String)>::default();
        }
        if status.bursts.is_empty() {
            status.bursts_ready = None;
        }
        status.conditions.retain(|one| one.type_ != condition::BURSTS_READY || one.reason != reason::NOT_ALL_READY);
        let said = status.conditions.iter_mut().filter(|one| one.type_ == condition::BURSTS_READY);
        said.for_each(|one| one.message.clear());
        if !spec.flux.bursting.budget.limits() {
            status.bursts_spent = Spent::default();
        }
        status
    };
    rest(before) == rest(now)
}

/// What the status is made of.
#[derive(Debug)]
pub(crate) struct Facts<'a> {
    /// The object and its last status.
    pub mini_cluster: &'a MiniCluster,
    /// The Job that runs, or ran last.
    pub job: Option<JobFacts>,
    /// Seconds that the Job was given.
    pub deadline: Option<i64>,
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
    /// Why it runs without Services. `None`: nothing new is known of that.
    pub without: Option<Vec<Without>>,
    /// Why a running instance keeps another size than it is asked to have: reason and sentence.
    pub stays: Option<(&'static str, String)>,
    /// Why it is not started anew, though that is asked for.
    pub held: Option<String>,
    /// What it holds of its namespace's quota.
    pub holds: Option<Reservation>,
    /// The Bursts of this root, in the order of their ranks.
    pub bursts: &'a [Arc<Burst>],
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
    /// Pods that are wanted, and were never made.
    pub unmade: i32,
    /// Pods have failed: Kubernetes takes its time before it makes the next ones.
    pub has_lost: bool,
    /// How it ended.
    pub outcome: Option<JobOutcome>,
    /// Digest of the frozen rank map.
    pub rank_map_digest: Option<String>,
    /// Digest of the frozen certificate.
    pub credential_digest: Option<String>,
    /// The value of the annotation `tributary.dev/restart` that it was made with.
    pub restart: Option<String>,
    /// The queue of Kueue that it is in. Its user may name none: Kueue has one for all new Jobs of a namespace, if it is called
    /// `default`.
    pub queue: Option<String>,
    /// Kueue lets its size change while it runs: see [`tributary_api::labels::KUEUE_ELASTIC`].
    pub elastic: bool,
    /// `spec.suspend` of the MiniCluster when the agent last wrote it to the Job.
    pub applied_suspend: bool,
    /// Another controller than Kubernetes' own, which would make its pods: `spec.managedBy`.
    pub left_to: Option<String>,
}

/// How long Kubernetes may take to make the pods of a Job. When it may make none, nothing but an event of the Job says so.
const PODS_MADE_WITHIN: Duration = Duration::from_secs(30);

impl JobFacts {
    /// What is said besides while Kubernetes lets time pass before it makes pods anew.
    fn pause(&self) -> &'static str {
        match self.has_lost && self.unmade > 0 {
            true => {
                "; Kubernetes makes pods anew 10 s after the first one that failed, and after each further one it waits twice \
                 as long, 10 minutes at most"
            }
            false => "",
        }
    }

    /// Time left until the status reports missing pods (`PodsNotMade`); `None`: none are missing, or another reason explains it.
    /// The time starts again when `Ready` becomes `NotAllReady`, so a MiniCluster that has just grown gets its time.
    pub(crate) fn pods_not_made_after(&self, told: Option<&MiniClusterStatus>, now: Timestamp) -> Option<Duration> {
        let waits = self.unmade > 0 && !self.has_lost && !self.suspended && self.outcome.is_none();
        let started = self.started.filter(|_| waits)?;
        let ready = told.and_then(|told| conditions::find(&told.conditions, condition::READY));
        let since = ready
            .filter(|ready| ready.reason == reason::NOT_ALL_READY)
            .map_or(started, |ready| started.max(ready.last_transition_time.0));
        let passed = Duration::try_from(now.duration_since(since)).unwrap_or_default();
        Some(PODS_MADE_WITHIN.saturating_sub(passed))
    }
}

/// The status that these facts make, as of `now`.
pub(crate) fn compute(facts: &Facts<'_>, now: Timestamp) -> MiniClusterStatus {
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
    let ending = ended.filter(|_| !told).map(|outcome| ending(outcome, &facts.lead, spec, facts.deadline));
    // What has ended holds nothing, even if the next one is on its way by now.
    let held = facts.holds.as_ref().filter(|_| !facts.over && job.is_none_or(|job| job.outcome.is_none()));
    let credential_digest = job.and_then(|job| job.credential_digest.clone());
    let bursts =
        bursts::rows(facts.mini_cluster, facts.bursts, facts.rank_map, &old.bursts, credential_digest.as_ref());
    let credential_recipients =
        recipients(&old.credential_recipients, facts.bursts, credential_digest.as_deref(), facts.peers, now);
    let maximum = match (facts.rank_map, job) {
        // Upstream made the Job: what it has ranks for is what upstream said.
        (_, Some(job)) if job.adopted && old.maximum_size > 0 => old.maximum_size,
        (Some(map), _) => own_ranks(map, facts.mini_cluster),
        // Its ranks could not be read. No size may follow that it has none for.
        (None, Some(job)) if !job.adopted => {
            old.incarnation.as_ref().filter(|known| **known == job.uid).map_or(0, |_| old.maximum_size)
        }
        (None, _) => spec.max_size(),
    };
    let unmade = unmade(facts, phase, &bursts);
    let mut statements = statements(facts, phase, (&bursts, &unmade), ending.as_ref(), restart.as_ref(), now);
    statements.extend(summary::statements(facts.bursts));
    statements.extend(exposure::statement(facts.mini_cluster, &credential_recipients, &old.conditions));
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
    if facts.without.is_some() || job.is_none_or(|job| job.outcome.is_some()) {
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
        bursts_ready: bursts::summary(&bursts, unmade.len()),
        bursts_spent: spent(facts, &old.bursts_spent, now),
        bursts,
    }
}

/// What the bursts have used together.
fn spent(facts: &Facts<'_>, old: &Spent, now: Timestamp) -> Spent {
    let each = facts.bursts.iter().filter_map(|burst| burst.status.as_ref());
    let usage = each.map(|status| status.spent.usage()).sum();
    old.on(usage, facts.mini_cluster.spec.flux.bursting.budget.renewal.as_deref(), now)
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
        None if job.ready > 0 && (are_up(facts, job) || runs_on(facts, job, old)) => Phase::Running,
        None => Phase::Starting,
    }
}

/// Whether Flux can start, or has. Brokers that have completed were there, and the lead goes on.
fn are_up(facts: &Facts<'_>, job: &JobFacts) -> bool {
    job.ready + job.succeeded >= quorum(facts, job)
}

/// An instance that runs goes on without some of its brokers, and before new ones have joined, under the same lead.
fn runs_on(facts: &Facts<'_>, job: &JobFacts, old: &MiniClusterStatus) -> bool {
    let same_lead = facts.lead.pod.is_some() && facts.lead.pod == old.lead.pod;
    let same_instance = old.incarnation.as_ref() == Some(&job.uid) && facts.lead.restarts == old.lead.restarts;
    old.phase == Some(Phase::Running) && same_instance && same_lead
}

/// Brokers that have to be there before Flux starts: `minSize`, else all pods that are asked for.
fn quorum(facts: &Facts<'_>, job: &JobFacts) -> i32 {
    facts.mini_cluster.spec.min_size.unwrap_or(job.parallelism).clamp(1, job.parallelism.max(1))
}

fn statements(
    facts: &Facts<'_>,
    phase: Phase,
    (bursts, unmade): (&[BurstStatus], &[String]),
    ending: Option<&Ending>,
    restart: Option<&(&'static str, String)>,
    now: Timestamp,
) -> Vec<Statement> {
    let mut statements = vec![
        valid(facts),
        supported(facts),
        ready(facts, phase, ending, now),
        finished(ending),
        restart_required(facts),
    ];
    if let Some((reason, sentence)) = restart {
        statements.push(Statement::holds(condition::INSTANCE_RESTARTED, *reason, sentence.clone()));
    }
    statements.extend(retries(facts));
    if let Some(without @ [(reason, _), ..]) = facts.without.as_deref() {
        let sentences: Vec<&str> = without.iter().map(|(_, sentence)| sentence.as_str()).collect();
        statements.push(Statement::fails(condition::SERVICES_READY, *reason, sentences.join("; ")));
    }
    if let (Some((reason, why)), Some(job)) = (&facts.stays, &facts.job) {
        let (has, wants) = (job.parallelism, facts.mini_cluster.spec.size());
        let part =
            if has < wants { format!("{has} of {wants} brokers") } else { format!("{has} brokers, not {wants}") };
        statements.push(Statement::fails(condition::GROWN, *reason, format!("it stays at {part}: {why}")));
    }
    if facts.job.as_ref().is_some_and(|job| job.adopted) {
        let message = "the Job was made by the Flux Operator; it runs on unchanged until it ends";
        statements.push(Statement::holds(condition::ADOPTED, "UpstreamJob", message));
    }
    let ends = matches!(phase, Phase::Succeeded | Phase::Failed | Phase::Refused);
    // That there is no such peer is why more than that a Burst is not made.
    let unplaceable = || bursts::unplaceable(facts.mini_cluster, facts.peers, bursts).filter(|_| !ends);
    let said = bursts::statement(bursts, unmade);
    statements.extend(if bursts.iter().any(bursts::is_missed) { said } else { unplaceable().or(said) });
    statements.extend(upstream_conditions(phase));
    statements
}

/// Slots of which there should be Bursts, and are none. One that has ended, is suspended or was made by another operator has none.
fn unmade(facts: &Facts<'_>, phase: Phase, bursts: &[BurstStatus]) -> Vec<String> {
    let runs = matches!(phase, Phase::Starting | Phase::Running) && !facts.mini_cluster.spec.suspend;
    let ours = facts.job.as_ref().is_some_and(|job| job.rank_map_digest.is_some());
    let map = facts.rank_map.filter(|_| runs && ours);
    map.map(|map| bursts::unmade(facts.mini_cluster, map, bursts)).unwrap_or_default()
}

fn restart_required(facts: &Facts<'_>) -> Statement {
    if let Some(held) = &facts.held {
        return Statement::holds(condition::RESTART_REQUIRED, reason::CANNOT_RESTART, held.clone());
    }
    if facts.job.as_ref().is_some_and(|job| job.adopted && job.outcome.is_none()) {
        let message = "the Flux Operator has made the Job, which runs on as it is: it follows size (up to the ranks that it \
            has) and suspend; all else that changes counts for the next instance, once this one has ended or its Job is deleted";
        return Statement::unknown(condition::RESTART_REQUIRED, "UpstreamJob", message);
    }
    if facts.restart_required.is_empty() {
        let message = if facts.over {
            "the run has ended and its Job is gone; set the annotation tributary.dev/restart to a new value to run it again"
        } else {
            ""
        };
        return Statement::fails(condition::RESTART_REQUIRED, "UpToDate", message);
    }
    let message = format!(
        "the instance was started before these changes: {}; to start it anew, which ends its jobs: \
         `agentctl restart minicluster/{} --namespace {}`",
        facts.restart_required.join(", "),
        facts.mini_cluster.name_any(),
        facts.mini_cluster.namespace().unwrap_or_default()
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
    let mut all: Vec<&str> = facts.unsupported.iter().map(String::as_str).collect();
    let is_queued = facts.job.as_ref().is_some_and(|job| job.queue.is_some());
    if facts.mini_cluster.spec.suspend && is_queued && !all.contains(&SUSPEND_IN_QUEUE) {
        all.push(SUSPEND_IN_QUEUE);
    }
    if all.is_empty() {
        return Statement::holds(condition::SPEC_SUPPORTED, "AllFieldsWork", "");
    }
    let message = format!("accepted, but without effect: {}", all.join("; "));
    Statement::fails(condition::SPEC_SUPPORTED, "FieldsWithoutEffect", message)
}

fn ready(facts: &Facts<'_>, phase: Phase, ending: Option<&Ending>, now: Timestamp) -> Statement {
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
    if let Some(controller) = &job.left_to {
        return fails(JOB_HANDED_ON, handed_on(facts, job, controller));
    }
    match phase {
        Phase::Running => {
            let wanted = facts.mini_cluster.spec.size().max(job.parallelism);
            let sentence = format!("{} of {wanted} pods of this cluster are ready", job.ready);
            if !are_up(facts, job) {
                // A Job that was scaled a moment ago has not had its time yet.
                let same_size = facts.mini_cluster.status.as_ref().is_some_and(|last| last.size == job.parallelism);
                return match pods_not_made(facts, job, now).filter(|_| same_size) {
                    Some(why) => fails(reason::PODS_NOT_MADE, format!("{sentence}; {why}")),
                    None => fails(reason::NOT_ALL_READY, sentence + job.pause()),
                };
            }
            if facts.restart_required.is_empty() {
                return Statement::holds(condition::READY, "Running", sentence);
            }
            let sentence = sentence + "; a restart is needed: see the condition RestartRequired";
            Statement::holds(condition::READY, condition::RESTART_REQUIRED, sentence)
        }
        Phase::Suspended => match &job.queue {
            Some(queue) => fails(JOB_QUEUED, format!("its Job waits in queue {queue} of Kueue")),
            None => suspended(facts.mini_cluster, job),
        },
        _ => {
            let (ready, wanted) = (job.ready, job.parallelism);
            match pods_not_made(facts, job, now) {
                Some(sentence) => fails(reason::PODS_NOT_MADE, sentence),
                None => fails("Starting", format!("{ready} of {wanted} pods of this cluster are ready{}", job.pause())),
            }
        }
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

#[cfg(test)]
mod tests;
