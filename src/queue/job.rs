//! A FluxJob: the MiniCluster it asks for, and its life. Pure.

mod end;
mod made;
mod sent;
mod split;

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt;
use tributary_api::burst::Burst;
use tributary_api::flux_job::{Cleanup, FluxJob, FluxJobStatus, JobPhase, JobResult, JobSent};
use tributary_api::flux_setup::{Overflow, Usage};
use tributary_api::labels;
use tributary_api::minicluster::{MiniCluster, Phase};
use tributary_api::peer::ClusterPeer;
use tributary_cluster::caches::controller_of;
use tributary_cluster::caches::controller_uid;
use tributary_cluster::conditions::{self, Statement};
use tributary_cluster::error::{is_of_policy, is_of_quota, is_of_rights};

pub(crate) use self::end::patience_with_policy;
use self::end::{End, FINISHED, first_refused, not_finished, refused_by_policy, standing};
pub use self::made::mini_cluster;
use super::claims::{Claim, Claims};
use super::evictions;
use super::overflow::{self, Sender, Start};
use super::requests::Requests;

/// Condition: a MiniCluster can be made of it.
const VALID: &str = "Valid";
/// Condition: the queue let it start.
const ADMITTED: &str = "Admitted";

/// Reason of who waits for room in the queue.
const WAITING: &str = "Waiting";

/// Why one that its user suspended is taken back.
const SUSPENDED: &str = "it is suspended";

/// What the queue says of a FluxJob.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Word {
    /// It waits, for this.
    Waits(String),
    /// It waits for nodes that are not there, for want of this.
    WaitsForNodes(String),
    /// It cannot be run as it is: reason and sentence.
    Refused(&'static str, String),
    /// It may start, and where.
    Starts(Start),
}

impl Word {
    /// What one that does not start is told.
    pub(crate) fn text_mut(&mut self) -> Option<&mut String> {
        match self {
            Self::Waits(text) | Self::WaitsForNodes(text) | Self::Refused(_, text) => Some(text),
            Self::Starts(_) => None,
        }
    }
}

/// By what a FluxSetup says MiniClusters of FluxJobs are made.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Terms<'a> {
    /// Seconds a run may last at most.
    pub longest: Option<i64>,
    /// Who takes parts of them, or all.
    pub overflow: &'a Overflow,
    /// Who makes Bursts of those that are sent.
    pub sender: &'a Sender,
    /// The peers that are known.
    pub cluster_peers: &'a [Arc<ClusterPeer>],
    /// When this leader's term began.
    pub began: Timestamp,
}

/// What has to be done about a FluxJob.
#[derive(Clone, Debug, PartialEq)]
pub struct JobStep {
    /// Its next status.
    pub status: FluxJobStatus,
    /// What follows once that is stored.
    pub then: Then,
    /// When to look again though nothing changes.
    pub wake: Option<Duration>,
    /// All this is so only if these do not exist, which no cache can tell.
    pub without: Vec<Missing>,
}

/// What was made of a FluxJob, and is not seen any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Missing {
    /// Its MiniCluster.
    MiniCluster,
    /// Its Burst.
    Burst,
}

/// What follows.
#[derive(Clone, Debug, PartialEq)]
pub enum Then {
    /// Nothing.
    Nothing,
    /// Its MiniCluster is made.
    Create(Box<MiniCluster>),
    /// Its Burst is made.
    Send(Box<Burst>),
    /// Its Burst with this UID is told to let go of wherever it is.
    ReleaseBurst(String),
    /// Its Burst with this UID is deleted.
    DeleteBurst(String),
    /// Its MiniCluster with this UID is deleted.
    DeleteMiniCluster(String),
    /// It is deleted itself.
    DeleteJob,
}

/// The command that shows what the command of a MiniCluster wrote: `job/NAME` may be any of its pods.
fn logs(namespace: &str, name: &str) -> String {
    let lead = format!("job-name={name},batch.kubernetes.io/job-completion-index=0");
    format!("kubectl logs --namespace {namespace} --selector {lead} --container {name} --tail=-1")
}

/// Whether a MiniCluster is that of a FluxJob: of its name, and controlled by it.
pub fn is_of(mini_cluster: &MiniCluster, job: &FluxJob) -> bool {
    mini_cluster.metadata.name == job.metadata.name
        && job.metadata.uid.is_some()
        && controller_uid(mini_cluster) == job.metadata.uid.as_deref()
}

/// Whether the queue let a FluxJob start, and it has not ended. `granted`: it did so in this leader's scope.
pub(crate) fn is_admitted(job: &FluxJob, granted: bool) -> bool {
    let status = job.status.as_ref();
    !is_finished(job) && (granted || status.is_some_and(|status| status.admitted.is_some()))
}

/// Whether the room of a FluxJob that starts like this is enough for its MiniCluster: who makes one in its name that is larger,
/// or while it was sent elsewhere, has to ask. So has who changes what the FluxJob itself asks for, once it was let in.
pub(crate) fn covers(job: &FluxJob, start: &Start, mini_cluster: &MiniCluster) -> bool {
    let claimed = self::mini_cluster(job, None).map(|made| Requests::of_mini_cluster(&made.spec));
    let claimed = claimed.map(|asks| {
        let told = job.status.as_ref().and_then(|status| status.holds.as_ref());
        told.map_or(Some(start.local(&asks)), Requests::of_usage).unwrap_or_default()
    });
    claimed.is_ok_and(|claimed| claimed.holds(&Requests::of_mini_cluster(&mini_cluster.spec)))
}

/// Whether a FluxJob that was let in lets its MiniCluster in: the first Job of that. What a MiniCluster holds from then on is its
/// own, so whoever shrinks it gives room away, and asks for it like everybody.
pub(crate) fn lets_in(job: &FluxJob, start: &Start, mini_cluster: &MiniCluster) -> bool {
    let is_first = mini_cluster.status.as_ref().is_none_or(|status| status.incarnation.is_none());
    is_first && covers(job, start, mini_cluster)
}

/// Whether a FluxJob has ended.
pub(crate) fn is_finished(job: &FluxJob) -> bool {
    job.status.as_ref().is_some_and(|status| status.phase == JobPhase::Finished)
}

/// What a FluxJob has come to.
#[derive(Clone, Debug)]
pub(crate) enum Stage<'a> {
    /// It has no MiniCluster yet, and claims this, or is in trouble.
    LinesUp(Result<Arc<Claim>, Trouble>),
    /// It has one; and if it was split, that has the Burst of its other part.
    Follows(&'a MiniCluster, Option<&'a Burst>),
    /// It was sent to a peer: its Burst, and what it claims there.
    Sent(Option<&'a Burst>, Option<Arc<Claim>>),
    /// It is being taken back: what is left of it.
    Recalled(Option<&'a MiniCluster>, Option<&'a Burst>),
    /// It had a MiniCluster.
    Bereft,
    /// It has ended; its MiniCluster and its Burst, if they are still there.
    Over(Option<&'a MiniCluster>, Option<&'a Burst>),
}

/// Why a FluxJob cannot stand in line.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Trouble {
    /// Reason of its condition.
    reason: &'static str,
    /// What is wrong, and what to do.
    sentence: String,
}

/// What a FluxJob has come to. `found` is the MiniCluster of its name, `part` the Burst of that if the FluxJob was split;
/// `burst` the Burst that it would be sent as: `Err` if that is another's.
pub(crate) fn stage<'a>(
    job: &FluxJob,
    found: Option<&'a MiniCluster>,
    part: Option<&'a Burst>,
    burst: Result<Option<&'a Burst>, &'a Burst>,
    claims: &mut Claims,
) -> Stage<'a> {
    let (burst, foreign) = (burst.ok().flatten(), burst.err());
    let ours = found.filter(|found| is_of(found, job));
    if is_finished(job) {
        return Stage::Over(ours, burst);
    }
    let status = job.status.as_ref();
    if status.is_some_and(|status| status.recalled.is_some()) {
        return Stage::Recalled(ours, burst);
    }
    // Before anything else: nothing of it may be made here while it is elsewhere.
    let sent = status.and_then(|status| status.sent.as_ref());
    if sent.is_some_and(|sent| foreign.is_none() || !sent.phase.is_empty()) {
        return Stage::Sent(burst, claims.of(job).ok());
    }
    if let Some(ours) = ours {
        return Stage::Follows(ours, part);
    }
    if job.status.as_ref().is_some_and(|status| status.mini_cluster.is_some()) {
        return Stage::Bereft;
    }
    if let Some(foreign) = foreign {
        let name = foreign.name_any();
        let sentence = format!(
            "Burst {name} exists and is another's: it starts once that is gone; if it stays, give the FluxJob another name"
        );
        return Stage::LinesUp(Err(Trouble { reason: "NameTaken", sentence }));
    }
    if found.is_some() {
        let name = job.name_any();
        let sentence = match found.and_then(controller_of::<FluxJob>) {
            Some(owner) if owner.name == name => {
                format!(
                    "MiniCluster {name} is left over from an earlier FluxJob of this name, and goes by itself: this one stands \
                     in line once it is gone"
                )
            }
            _ => format!("MiniCluster {name} exists and is another's: give the FluxJob another name"),
        };
        return Stage::LinesUp(Err(Trouble { reason: "NameTaken", sentence }));
    }
    Stage::LinesUp(claims.of(job).map_err(|sentence| Trouble { reason: "Invalid", sentence }))
}

/// The next step of a FluxJob. `word` is what the queue says if it was not admitted before.
pub(crate) fn step(job: &FluxJob, stage: &Stage<'_>, word: Word, terms: Terms<'_>, now: Timestamp) -> JobStep {
    let (then, without) = (Then::Nothing, Vec::new());
    let status = job.status.clone().unwrap_or_default();
    let mut draft = Draft { job, status, end: None, then, wake: None, without, now };
    draft.status.observed_generation = job.metadata.generation;
    let mut statements = Vec::new();
    match stage {
        Stage::Over(ours, burst) => draft.tidy(*ours, *burst),
        Stage::Follows(mini_cluster, part) => statements.extend(draft.follow(mini_cluster, *part, terms)),
        Stage::Sent(burst, _) => statements.extend(draft.sent(*burst, terms)),
        Stage::Recalled(ours, burst) => statements.extend(draft.recalled(*ours, *burst)),
        Stage::Bereft => draft.bereft(Missing::MiniCluster, "its MiniCluster was deleted"),
        Stage::LinesUp(Err(trouble)) => statements.extend(draft.step_aside(trouble.reason, &trouble.sentence)),
        Stage::LinesUp(Ok(_)) => statements = draft.line_up(word, terms),
    }
    let statements = standing(&draft.status, draft.end).into_iter().chain(statements);
    let conditions = &draft.status.conditions;
    draft.status.conditions = conditions::merged(conditions, statements, job.metadata.generation, now);
    JobStep { status: draft.status, then: draft.then, wake: draft.wake, without: draft.without }
}

/// The status of a FluxJob whose MiniCluster or Burst the API server does not take: it has ended, and makes room.
pub(crate) fn refused(status: FluxJobStatus, what: &str, why: &str, now: Timestamp) -> FluxJobStatus {
    let status = FluxJobStatus {
        phase: JobPhase::Finished,
        result: Some(JobResult::Failed),
        message: format!("its {what} cannot be made: {why}"),
        finished: Some(Time(now)),
        ..status
    };
    let statements = standing(&status, Some(End::Refused));
    let conditions = conditions::merged(&status.conditions, statements, status.observed_generation, now);
    FluxJobStatus { conditions, ..status }
}

/// The status of one that is refused, by a policy or not, and that is tried again.
pub(crate) fn refused_for_now(status: FluxJobStatus, by_policy: bool, now: Timestamp) -> FluxJobStatus {
    let generation = status.observed_generation;
    let said = if by_policy { refused_by_policy() } else { not_finished() };
    let conditions = conditions::merged(&status.conditions, [said], generation, now);
    FluxJobStatus { conditions, ..status }
}

struct Draft<'a> {
    job: &'a FluxJob,
    status: FluxJobStatus,
    /// It ends with this step.
    end: Option<End>,
    then: Then,
    wake: Option<Duration>,
    without: Vec<Missing>,
    now: Timestamp,
}

impl Draft<'_> {
    /// It cannot run as it is, and holds no room meanwhile.
    fn step_aside(&mut self, reason: &'static str, sentence: &str) -> [Statement; 2] {
        self.status.phase = JobPhase::Waiting;
        self.status.message = sentence.to_owned();
        self.status.admitted = None;
        self.status.holds = None;
        self.status.split = None;
        self.status.sent = None;
        self.status.peer = None;
        [VALID, ADMITTED].map(|type_| Statement::fails(type_, reason, sentence))
    }

    fn line_up(&mut self, word: Word, terms: Terms<'_>) -> Vec<Statement> {
        // What was decided stays.
        let recorded = Start::recorded(&self.status).unwrap_or_default();
        let word = if self.status.admitted.is_some() { Word::Starts(recorded) } else { word };
        let valid = Statement::holds(VALID, "Valid", "a MiniCluster can be made of it");
        if self.job.spec.suspend {
            // What was let in may be on its way: nothing of it may be left before it stands in line again.
            if matches!(word, Word::Starts(_)) {
                self.recall(SUSPENDED.into());
                return vec![valid];
            }
            let how = format!("{SUSPENDED}: it stands in line once spec.suspend is false");
            return vec![valid, self.wait(labels::reason::SUSPENDED, how)];
        }
        // Then peers are asked again.
        self.wake = overflow::resting(self.job, self.now).filter(|_| !matches!(word, Word::Starts(_)));
        match word {
            Word::Starts(start) => match self.start(start, terms) {
                Ok(room) => {
                    // Nothing of it was made since.
                    let refused = first_refused(&self.status).map(|_| refused_by_policy());
                    [valid, room].into_iter().chain(refused).collect()
                }
                Err(sentence) => self.step_aside("Invalid", &sentence).into(),
            },
            Word::Refused(reason, sentence) => self.step_aside(reason, &sentence).into(),
            Word::Waits(sentence) => vec![valid, self.wait(WAITING, sentence)],
            Word::WaitsForNodes(sentence) => vec![valid, self.wait(labels::reason::NODES_TOO_SMALL, sentence)],
        }
    }

    /// `Unknown` of who stands in no line: the transition to `False` is when it began to wait for room.
    fn wait(&mut self, reason: &'static str, sentence: String) -> Statement {
        self.status.phase = JobPhase::Waiting;
        self.status.message.clone_from(&sentence);
        let status = (reason == WAITING).then_some(false);
        Statement { status, ..Statement::fails(ADMITTED, reason, sentence) }
    }

    /// Starts it, here or elsewhere.
    fn start(&mut self, start: Start, terms: Terms<'_>) -> Result<Statement, String> {
        let made = mini_cluster(self.job, terms.longest)?;
        let takes = start.local(&Requests::of_mini_cluster(&made.spec)).usage();
        let (statement, then) = match start {
            Start::Here => {
                let room = Statement::holds(ADMITTED, "RoomFound", "there is room for the whole of it");
                (room, Then::Create(Box::new(made)))
            }
            Start::Split(split) => {
                let found = format!("there is room for it in parts: {}", overflow::whereabouts(&split));
                let mut made = overflow::apply(self.job, &split, terms.overflow, made);
                evictions::write(&mut made, &evictions::standing(self.job));
                self.status.peer.clone_from(&split.peer);
                self.status.split = Some(split);
                (Statement::holds(ADMITTED, "Split", found), Then::Create(Box::new(made)))
            }
            Start::Sent(sent) => {
                let burst = (terms.sender.0)(self.job, &made, terms.overflow)?;
                let found =
                    format!("there is room for the whole of it on {}", sent.peer.as_deref().unwrap_or("a peer"));
                self.status.peer.clone_from(&sent.peer);
                self.status.sent = Some(JobSent { burst: burst.name_any(), ..sent });
                (Statement::holds(ADMITTED, "Sent", found), Then::Send(Box::new(burst)))
            }
        };
        self.status.phase = JobPhase::Ready;
        self.status.message = match then {
            Then::Send(_) => "it is being sent to a peer".into(),
            _ => "its MiniCluster is being made".into(),
        };
        self.admit(takes);
        self.then = then;
        Ok(statement)
    }

    /// It was let in, with this. What was decided before stays.
    fn admit(&mut self, takes: Usage) {
        if self.status.admitted.is_none() {
            self.status.admitted = Some(Time(self.now));
            self.status.holds = Some(takes);
        }
    }

    /// What was made of it was taken away, and nobody can say any more how it ended.
    fn bereft(&mut self, of: Missing, message: &str) {
        self.without.push(of);
        self.finish(End::Cancelled, message.to_owned());
    }

    /// It is taken back from where it was placed. That is on record before anything of it goes.
    fn recall(&mut self, why: String) {
        self.status.phase = JobPhase::Ready;
        self.status.message = format!("it is taken back: {why}");
        self.status.recalled = Some(why);
    }

    /// Follows its MiniCluster. Returns what stands in place of that of [`standing`]: `Running: False` while the instance of a
    /// run that began is down, `Finished: Unknown` while a policy refuses it.
    fn follow(&mut self, mini_cluster: &MiniCluster, part: Option<&Burst>, terms: Terms<'_>) -> Option<Statement> {
        let name = mini_cluster.name_any();
        self.status.logs = logs(&mini_cluster.namespace().unwrap_or_default(), &name);
        self.status.mini_cluster = Some(name);
        let said = mini_cluster.status.as_ref();
        // Who makes a MiniCluster in the name of a FluxJob that waits has not made room for it: that one stands in line.
        if said.is_some_and(|said| said.incarnation.is_some()) {
            let stood_in_line = said.and_then(|said| said.holds.clone());
            self.admit(stood_in_line.unwrap_or_else(|| Requests::of_mini_cluster(&mini_cluster.spec).usage()));
        }
        self.status.split = self.status.split.take().map(|split| overflow::seen(&split, mini_cluster, self.now));
        if let Some(split) = &self.status.split {
            self.status.peer.clone_from(&split.peer);
        }
        let started = self.status.phase >= JobPhase::Running;
        let ready = said.and_then(|said| conditions::find(&said.conditions, labels::condition::READY));
        let why = ready.map(|ready| ready.message.clone()).unwrap_or_default();
        // Somebody else holds what it needs, or the agent lacks a right, and it is tried again.
        let (waits_for_quota, lacks_right) = (is_of_quota(&why), is_of_rights(&why));
        let never_ran = !started && said.is_some_and(|said| said.incarnation.is_none());
        let patience = patience_with_policy(&self.status, terms.began, self.now);
        let waits_for_policy = never_ran && is_of_policy(&why) && !patience.is_zero();
        if self.finish_if_ended(mini_cluster) {
            return None;
        }
        match said.and_then(|said| said.phase) {
            Some(Phase::Refused) if never_ran && !waits_for_quota && !lacks_right && !waits_for_policy => {
                self.status.logs = String::new();
                self.finish(End::Refused, format!("its MiniCluster is refused: {why}"));
                self.tidy(Some(mini_cluster), None);
            }
            _ if self.job.spec.suspend => self.recall(SUSPENDED.into()),
            _ if self.is_alone(mini_cluster, part, terms) => {}
            Some(Phase::Running) if !started && let Some(message) = self.waits_for_brokers(mini_cluster) => {
                self.status.phase = JobPhase::Ready;
                self.status.message = message;
            }
            Some(Phase::Running) => {
                self.status.phase = JobPhase::Running;
                self.status.started.get_or_insert(Time(self.now));
                self.status.message = match &self.status.split {
                    None => "its instance is up".into(),
                    Some(split) => format!("its instance is up: {}", overflow::whereabouts(split)),
                };
            }
            // What ran once does not become ready again, also if it has lost its pods.
            _ if started => {
                let reason = ready.map_or("NotReady", |ready| ready.reason.as_str());
                let down = if why.is_empty() { "its instance is not up" } else { why.as_str() };
                let down = Statement::fails(labels::condition::RUNNING, reason, down);
                if !why.is_empty() {
                    self.status.message = why;
                }
                return Some(down);
            }
            Some(Phase::Refused) if waits_for_policy && !waits_for_quota => {
                self.status.phase = JobPhase::Ready;
                self.status.message = format!("its instance cannot be made now: {why}");
                self.wake = self.wake.into_iter().chain([patience]).min();
                return Some(refused_by_policy());
            }
            other => {
                self.status.phase = JobPhase::Ready;
                self.status.message = match other {
                    Some(Phase::Refused) if waits_for_quota => {
                        format!("its MiniCluster waits for room in a ResourceQuota: {why}")
                    }
                    Some(Phase::Refused) if lacks_right => format!("its instance cannot be made now: {why}"),
                    Some(Phase::Refused) => "its MiniCluster is refused, and is not started anew".into(),
                    _ if self.status.admitted.is_none() => "its MiniCluster waits in line".into(),
                    _ if ready.is_some_and(|ready| !["Pending", "Starting"].contains(&ready.reason.as_str())) => why,
                    _ => "its brokers start".into(),
                };
            }
        }
        None
    }

    fn finish(&mut self, end: End, message: String) {
        self.end = Some(end);
        self.status.phase = JobPhase::Finished;
        self.status.result = Some(end.result());
        self.status.recalled = None;
        self.status.message = message;
        self.status.finished.get_or_insert(Time(self.now));
    }

    fn was_refused(&self) -> bool {
        let told = conditions::find(&self.status.conditions, FINISHED);
        let before = told.is_some_and(|told| told.status == "True" && told.reason == End::Refused.reason());
        self.end == Some(End::Refused) || before
    }

    /// It has ended: what is asked to go, goes.
    fn tidy(&mut self, found: Option<&MiniCluster>, burst: Option<&Burst>) {
        let since = self.status.finished.get_or_insert(Time(self.now)).0;
        if let Some(ttl) = self.job.spec.ttl_after_finished {
            let due = since.checked_add(jiff::SignedDuration::from_secs(ttl.seconds)).unwrap_or(Timestamp::MAX);
            match Duration::try_from(due.duration_since(self.now)) {
                Ok(left) if !left.is_zero() => self.wake = Some(left),
                _ => return self.then = Then::DeleteJob,
            }
        }
        if self.status.sent.is_some() {
            self.tidy_sent(burst, since);
        }
        let ours = found.filter(|found| found.metadata.deletion_timestamp.is_none());
        // One that was refused must not run later, when nobody waits for it any more.
        let goes = self.job.spec.cleanup == Cleanup::MiniCluster || self.was_refused();
        if let Some(uid) = ours.and_then(ResourceExt::uid).filter(|_| goes) {
            self.then = Then::DeleteMiniCluster(uid);
        }
        let burst = burst.filter(|burst| burst.metadata.deletion_timestamp.is_none());
        if let (Cleanup::MiniCluster, Some(uid)) = (self.job.spec.cleanup, burst.and_then(ResourceExt::uid)) {
            self.then = Then::DeleteBurst(uid);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::LazyLock;

    use serde_json::{Value, json};
    use tributary_api::flux_job::JobSplit;
    use tributary_api::flux_setup::OverflowPolicy;
    use tributary_api::labels::condition::RUNNING;
    use tributary_api::minicluster::{BurstStatus, MiniClusterStatus};

    use super::*;
    use crate::overflow::sender;
    use crate::testing::{at, flux_job};

    fn terms() -> Terms<'static> {
        static NEVER: Overflow =
            Overflow { policy: OverflowPolicy::Never, peers: Vec::new(), selector: None, prefer: Vec::new() };
        static SENDER: LazyLock<Sender> = LazyLock::new(sender);
        Terms { longest: None, overflow: &NEVER, sender: &SENDER, cluster_peers: &[], began: at(0) }
    }

    fn in_phase(job: &FluxJob, phase: Phase) -> MiniCluster {
        let mut found = mini_cluster(job, None).unwrap();
        let exit_code = (phase == Phase::Failed).then_some(3);
        found.metadata.uid = Some("mc-uid".into());
        found.status = Some(MiniClusterStatus { phase: Some(phase), exit_code, ..MiniClusterStatus::default() });
        found
    }

    fn not_ready(found: &mut MiniCluster, reason: &str, message: &str) {
        let said = Statement::fails(labels::condition::READY, reason, message);
        found.status.as_mut().unwrap().conditions = conditions::merged(&[], [said], None, at(0));
    }

    fn next(job: &FluxJob, found: Option<&MiniCluster>, word: Word, now: Timestamp) -> JobStep {
        step(job, &stage(job, found, None, Ok(None), &mut Claims::default()), word, terms(), now)
    }

    #[test]
    fn the_mini_cluster_is_what_the_job_says_over_what_it_brings() {
        let job = flux_job(json!({
            "size": 4, "tasks": 8, "workingDir": "/data", "environment": {"A": "1"}, "timeLimit": "10m",
            "resources": {"cpu": 2, "memory": "1Gi", "gpus": 1},
            "miniCluster": {"size": 99, "flux": {"optionFlags": "-v"}, "containers": [
                {"name": "beside", "image": "b", "command": "sleep 1"},
                {"runFlux": true, "image": "other", "environment": {"B": "2"}}]},
        }));
        let made = serde_json::to_string_pretty(&mini_cluster(&job, Some(3600)).unwrap()).unwrap();
        insta::assert_snapshot!(made);
        let plain = flux_job(json!({}));
        assert_eq!(mini_cluster(&plain, Some(3600)).unwrap().spec.deadline_seconds, Some(3600), "the longest");
        let brings = flux_job(json!({"miniCluster": {"deadlineSeconds": 60}}));
        assert_eq!(mini_cluster(&brings, Some(3600)).unwrap().spec.deadline_seconds, Some(60));
        let none = flux_job(json!({"miniCluster": {"deadlineSeconds": 0}}));
        assert_eq!(mini_cluster(&none, Some(3600)).unwrap().spec.deadline_seconds, Some(3600), "none is too long");
        assert_eq!(mini_cluster(&none, None).unwrap().spec.deadline_seconds, Some(0));
    }

    #[test]
    fn gpus_count_as_the_job_says_them_by_whatever_name() {
        let gpus = |spec: Value| {
            let made = mini_cluster(&flux_job(spec), None).unwrap();
            (Requests::of_mini_cluster(&made.spec).gpus, made.spec.pod.annotations.len())
        };
        assert_eq!(gpus(json!({"size": 3, "resources": {"gpus": 2}})), (6, 0));
        assert_eq!(gpus(json!({"size": 3, "resources": {"gpus": 2, "gpuResource": "nvidia.com/mig-3g.40gb"}})), (6, 0));
        assert_eq!(gpus(json!({"size": 3, "resources": {"gpus": 2, "gpuResource": "example.com/wafer"}})), (6, 1));
        assert_eq!(gpus(json!({"size": 3, "resources": {"gpuResource": "example.com/wafer"}})), (0, 0));
        let more = flux_job(json!({"resources": {"gpus": 2, "gpuResource": "example.com/wafer"}}));
        let mut found = mini_cluster(&more, None).unwrap();
        assert!(covers(&more, &Start::Here, &found));
        let resources = &mut found.spec.containers[0].resources;
        for list in [&mut resources.limits, &mut resources.requests] {
            list.insert("example.com/wafer".into(), tributary_api::minicluster::Amount::Integer(3));
        }
        assert!(!covers(&more, &Start::Here, &found), "it was let in with two");
    }

    #[test]
    fn what_is_wrong_is_said_by_its_field() {
        for (spec, told) in [
            (json!({"command": " "}), "spec.command is empty, and spec.miniCluster.containers[0] has none either"),
            (json!({"miniCluster": {"containers": 1}}), "spec.miniCluster.containers is no list"),
            (json!({"miniCluster": {"flux": 7}}), "spec.miniCluster.flux: invalid type"),
            (
                json!({"timeLimit": "1m", "miniCluster": {"deadlineSeconds": "1h"}}),
                "spec.miniCluster.deadlineSeconds: invalid type",
            ),
            (
                json!({"miniCluster": {"flux": {"optionFlag": "-v"}}}),
                "spec.miniCluster.flux.optionFlag: a MiniCluster has",
            ),
            (
                json!({"miniCluster": {"containers": [{"comand": "x"}]}}),
                "spec.miniCluster.containers[0].comand: a Mini",
            ),
        ] {
            let job = flux_job(spec);
            let step = next(&job, None, Word::Starts(Start::Here), at(0));
            assert!(step.status.message.starts_with(told), "{}", step.status.message);
            assert_eq!((step.status.phase, step.then), (JobPhase::Waiting, Then::Nothing));
        }
        for (length, may) in [(52, true), (53, false), (64, false)] {
            let mut job = flux_job(json!({}));
            job.metadata.name = Some("a".repeat(length));
            let step = next(&job, None, Word::Starts(Start::Here), at(0));
            let valid = conditions::find(&step.status.conditions, VALID).unwrap();
            let told = (valid.type_.as_str(), valid.status.as_str(), step.then != Then::Nothing);
            assert_eq!(told, (VALID, if may { "True" } else { "False" }, may), "{length} characters");
            assert_eq!(valid.message.contains("at most 52 are possible"), !may, "{}", valid.message);
        }
        let mut admitted = flux_job(json!({}));
        admitted.status = Some(next(&admitted, None, Word::Starts(Start::Here), at(0)).status);
        let foreign = MiniCluster::new("lammps", Default::default());
        let step = next(&admitted, Some(&foreign), Word::Starts(Start::Here), at(0));
        assert!(step.status.message.contains("exists and is another's"));
        assert_eq!(condition(&step.status, ADMITTED), ("False", "NameTaken"));
        assert_eq!((step.status.admitted, step.then), (None, Then::Nothing), "it gives its room back");
    }

    #[test]
    fn a_life() {
        let mut job = flux_job(json!({"cleanup": "MiniCluster", "ttlAfterFinished": "1m"}));
        let mut go = |found: Option<MiniCluster>, word: Word, second: i64| {
            let step = next(&job, found.as_ref(), word, at(second));
            job.status = Some(step.status.clone());
            (step.status.phase, step.then, step.wake)
        };
        let template = flux_job(json!({"cleanup": "MiniCluster", "ttlAfterFinished": "1m"}));
        let wait = || Word::Waits("in line".into());
        assert_eq!(go(None, wait(), 0).0, JobPhase::Waiting);
        let (phase, then, _) = go(None, Word::Starts(Start::Here), 5);
        assert!(phase == JobPhase::Ready && matches!(then, Then::Create(_)));
        // The creation was not answered, or another agent leads now: it was admitted, and stays so.
        assert!(matches!(go(None, wait(), 6).1, Then::Create(_)));
        assert_eq!(go(Some(in_phase(&template, Phase::Starting)), wait(), 7).0, JobPhase::Ready);
        assert_eq!(go(Some(in_phase(&template, Phase::Running)), wait(), 8).0, JobPhase::Running);
        assert_eq!(go(Some(in_phase(&template, Phase::Restarting)), wait(), 9).0, JobPhase::Running);
        let (phase, then, wake) = go(Some(in_phase(&template, Phase::Failed)), wait(), 10);
        assert_eq!((phase, then), (JobPhase::Finished, Then::DeleteMiniCluster("mc-uid".into())));
        assert_eq!(wake, Some(Duration::from_secs(60)));
        assert_eq!(go(None, wait(), 70).1, Then::DeleteJob);
        let status = job.status.unwrap();
        assert_eq!((status.result, status.exit_code), (Some(JobResult::Failed), Some(3)));
        assert_eq!(status.logs, logs("hpc", "lammps"));
        insta::assert_snapshot!(status.logs, @"kubectl logs --namespace hpc --selector job-name=lammps,batch.kubernetes.io/job-completion-index=0 --container lammps --tail=-1");
    }

    /// The danger: it is resumed in the morning, and an alert says that it has waited all night.
    #[test]
    fn a_job_waits_for_room_since_it_stands_in_line() {
        let mut job = flux_job(json!({"suspend": true}));
        let mut told = |suspend: bool, word: Word, second: i64| {
            job.spec.suspend = suspend;
            job.status = Some(next(&job, None, word, at(second)).status);
            let admitted = conditions::find(&job.status.as_ref().unwrap().conditions, ADMITTED).unwrap();
            format!("{} {} {}", admitted.status, admitted.reason, admitted.last_transition_time.0.duration_since(at(0)))
        };
        let waits = || Word::Waits("in line".into());
        assert_eq!(told(true, waits(), 0), "Unknown Suspended PT0S");
        assert_eq!(told(false, waits(), 9), "False Waiting PT9S");
        assert_eq!(told(false, waits(), 10), "False Waiting PT9S", "who only waits is not written again");
        assert_eq!(told(false, Word::WaitsForNodes("too large".into()), 20), "Unknown NodesTooSmall PT20S");
        assert_eq!(told(false, waits(), 30), "False Waiting PT30S");
    }

    #[test]
    fn a_job_that_was_split_stays_split_and_says_where_it_runs() {
        let mut job = flux_job(json!({"size": 4, "allowBurst": true}));
        let split = JobSplit { local: 1, away: 3, peer: Some("west".into()), ..JobSplit::default() };
        let made = |step: JobStep| match step.then {
            Then::Create(made) => (made.spec.size(), made.spec.flux.bursting.clusters[0].size(0)),
            then => panic!("{then:?}"),
        };
        let first = next(&job, None, Word::Starts(Start::Split(split.clone())), at(0));
        job.status = Some(first.status.clone());
        assert_eq!(made(first), (1, 3));
        // Another agent, which would decide otherwise now.
        assert_eq!(made(next(&job, None, Word::Starts(Start::Here), at(1))), (1, 3));
        assert_eq!(made(next(&job, None, Word::Waits(String::new()), at(1))), (1, 3));
        let mut found = in_phase(&job, Phase::Running);
        found.status.as_mut().unwrap().bursts = vec![BurstStatus {
            name: "lammps-burst-0".into(),
            phase: "Joining".into(),
            peer: Some("north".into()),
            ..BurstStatus::default()
        }];
        let status = next(&job, Some(&found), Word::Starts(Start::Here), at(2)).status;
        assert_eq!(status.message, "its instance is up: 1 broker here, 3 on north (Joining)");
        assert_eq!(status.split.unwrap().peer.as_deref(), Some("north"));
        assert!(covers(
            &job,
            &Start::Split(split.clone()),
            &overflow::apply(&job, &split, terms().overflow, in_phase(&job, Phase::Pending))
        ));
        assert!(
            !covers(&job, &Start::Split(split.clone()), &in_phase(&job, Phase::Pending)),
            "all of it was not let in"
        );
    }

    #[test]
    fn the_mini_cluster_of_a_split_job_names_who_threw_its_other_part_out() {
        let mut job = flux_job(json!({"size": 4, "allowBurst": true}));
        let start = || Word::Starts(Start::Split(JobSplit { local: 1, away: 3, ..JobSplit::default() }));
        let written = |job: &FluxJob| match next(job, None, start(), at(0)).then {
            Then::Create(made) => made.metadata.annotations.and_then(|mut all| all.remove(labels::EVICTIONS)),
            then => panic!("{then:?}"),
        };
        assert_eq!(written(&job), None);
        let mut burst = Burst::new("lammps-burst-0", tributary_api::burst::BurstSpec::default());
        let refusal = json!({"peer": "west", "reason": "EvictedByProvider", "message": "no", "generation": 1,
            "offer": burst.offered(), "peerGeneration": 4});
        burst.status = serde_json::from_value(json!({"refusals": [refusal]})).unwrap();
        job.status.get_or_insert_default().returned = evictions::of_split(&job, None, &burst);
        let read: Vec<tributary_api::burst::BurstRefusal> = serde_json::from_str(&written(&job).unwrap()).unwrap();
        assert_eq!((read.len(), read[0].peer.as_str(), read[0].peer_generation), (1, "west", Some(4)));
    }

    /// The condition of this type: whether it holds, and its reason.
    fn condition<'a>(status: &'a FluxJobStatus, type_: &str) -> (&'a str, &'a str) {
        let found = conditions::find(&status.conditions, type_).unwrap();
        (&found.status, &found.reason)
    }

    #[test]
    fn a_job_whose_mini_cluster_is_refused_has_ended_and_leaves_nothing_that_could_run_later() {
        let mut job = flux_job(json!({}));
        job.status = Some(next(&job, None, Word::Starts(Start::Here), at(0)).status);
        assert_eq!(condition(job.status.as_ref().unwrap(), FINISHED), ("False", "NotFinished"));
        let mut found = in_phase(&job, Phase::Refused);
        not_ready(&mut found, "CannotCreate", "no quota");
        for second in 1..3 {
            let step = next(&job, Some(&found), Word::Starts(Start::Here), at(second));
            assert_eq!(step.then, Then::DeleteMiniCluster("mc-uid".into()), "nobody waits for it any more");
            let status = step.status;
            assert_eq!((status.phase, status.result), (JobPhase::Finished, Some(JobResult::Failed)));
            assert_eq!(status.message, "its MiniCluster is refused: no quota");
            assert_eq!(condition(&status, FINISHED), ("True", "Refused"));
            job.status = Some(status);
        }
        let gone = next(&job, None, Word::Starts(Start::Here), at(9)).status;
        assert_eq!(condition(&gone, FINISHED), ("True", "Refused"), "that stands");
    }

    /// The danger: a user's jobs end for good while another's hold the quota of their namespace.
    #[test]
    fn a_job_whose_mini_cluster_has_no_room_in_a_resource_quota_keeps_its_place() {
        let mut job = flux_job(json!({}));
        job.status = Some(next(&job, None, Word::Starts(Start::Here), at(0)).status);
        let mut found = in_phase(&job, Phase::Refused);
        let why = "failed to create Service hpc/lammps: services \"lammps\" is forbidden: exceeded quota: team";
        not_ready(&mut found, "CannotCreate", why);
        for second in 1..3 {
            let step = next(&job, Some(&found), Word::Starts(Start::Here), at(second));
            assert_eq!((step.then, step.status.phase), (Then::Nothing, JobPhase::Ready));
            assert_eq!(step.status.message, format!("its MiniCluster waits for room in a ResourceQuota: {why}"));
            assert_eq!(condition(&step.status, FINISHED), ("False", "NotFinished"));
            assert!(is_admitted(&FluxJob { status: Some(step.status.clone()), ..job.clone() }, false));
            job.status = Some(step.status);
        }
        job.spec.suspend = true;
        let step = next(&job, Some(&found), Word::Starts(Start::Here), at(3));
        assert_eq!(step.status.recalled.as_deref(), Some(SUSPENDED), "who does not want to wait takes it back");
        job.spec.suspend = false;
        let running = next(&job, Some(&in_phase(&job, Phase::Running)), Word::Starts(Start::Here), at(4)).status;
        assert_eq!((running.phase, running.message.as_str()), (JobPhase::Running, "its instance is up"));
    }

    /// The danger: a queue of hundreds ends as failed within seconds, since the agent lacks a right, or nobody has counted yet
    /// for a quota.
    #[test]
    fn a_refusal_that_has_nothing_to_do_with_a_job_does_not_end_it() {
        let mut job = flux_job(json!({}));
        job.status = Some(next(&job, None, Word::Starts(Start::Here), at(0)).status);
        let mut found = in_phase(&job, Phase::Refused);
        for (why, keeps) in [
            (
                "jobs.batch is forbidden: User \"system:serviceaccount:a:b\" cannot create resource \"jobs\" in API group",
                true,
            ),
            ("jobs.batch \"lammps\" is forbidden: status unknown for quota: team, resources: count/jobs.batch", true),
            ("jobs.batch \"lammps\" is forbidden: violates PodSecurity", false),
        ] {
            not_ready(&mut found, "CannotCreate", why);
            let step = next(&job, Some(&found), Word::Starts(Start::Here), at(1));
            assert_eq!(step.status.phase == JobPhase::Ready, keeps, "{why}: {}", step.status.message);
            assert!(step.status.message.contains(why), "{}", step.status.message);
        }
    }

    /// The danger: a policy is wrong for two minutes, and the whole queue ends as failed; or one that no policy takes holds its
    /// room for ever.
    #[test]
    fn a_job_that_a_policy_refuses_keeps_its_place_for_ten_minutes() {
        let mut job = flux_job(json!({}));
        job.status = Some(next(&job, None, Word::Starts(Start::Here), at(0)).status);
        let mut found = in_phase(&job, Phase::Refused);
        let why = "failed to write Service hpc/lammps: admission webhook \"w\" denied the request: no";
        not_ready(&mut found, "CannotCreate", why);
        let starts = in_phase(&job, Phase::Starting);
        let mut told = |found: &MiniCluster, second| {
            let step = next(&job, Some(found), Word::Starts(Start::Here), at(second));
            assert_eq!(step.status.message.contains(why), found.status.as_ref().unwrap().phase == Some(Phase::Refused));
            let reason = condition(&step.status, FINISHED).1.to_owned();
            job.status = Some(step.status);
            (reason, step.wake.map_or(0, |wake| wake.as_secs()))
        };
        assert_eq!(told(&found, 30), ("RefusedByPolicy".to_owned(), 600));
        assert_eq!(told(&starts, 40), ("NotFinished".to_owned(), 0), "that was mended");
        assert_eq!(told(&found, 50), ("RefusedByPolicy".to_owned(), 600));
        assert_eq!(told(&found, 649), ("RefusedByPolicy".to_owned(), 1));
        assert_eq!(told(&found, 650), ("Refused".to_owned(), 0));
    }

    #[test]
    fn since_when_a_policy_refuses_it_is_on_record_before_anything_is_made() {
        for start in [Start::Here, Start::Sent(JobSent::default())] {
            let mut job = flux_job(json!({}));
            let first = next(&job, None, Word::Starts(start.clone()), at(0)).status;
            job.status = Some(refused_for_now(first, true, at(30)));
            let again = next(&job, None, Word::Starts(start.clone()), at(40));
            assert_eq!(condition(&again.status, FINISHED).1, "RefusedByPolicy", "{start:?}");
            let left = |began| patience_with_policy(&again.status, at(began), at(40)).as_secs();
            assert_eq!([left(0), left(35)], [590, 595], "nobody tried it before somebody led");
            job.status = Some(refused_for_now(again.status.clone(), true, at(40)));
            assert_eq!(job.status, Some(again.status.clone()), "it says so already");
            let mended = refused_for_now(again.status, false, at(50));
            assert_eq!(patience_with_policy(&mended, at(0), at(700)).as_secs(), 600, "something else was in the way");
        }
    }

    /// The danger: it holds its room for ever, and nobody learns what it waits for.
    #[test]
    fn a_job_says_what_its_mini_cluster_waits_for() {
        let mut job = flux_job(json!({}));
        job.status = Some(next(&job, None, Word::Starts(Start::Here), at(0)).status);
        for (phase, reason, message) in [
            (Phase::Pending, "NameTaken", "Service hpc/lammps belongs to Deployment lammps"),
            (Phase::Pending, "CertificateMissing", "Secret hpc/curve is not there"),
            (Phase::Suspended, "Suspended", "the Job is suspended"),
            (Phase::Starting, "PodsNotMade", "Kubernetes has not made 1 of the 1 pods"),
            (Phase::Pending, "Pending", "its brokers start"),
            (Phase::Starting, "Starting", "its brokers start"),
        ] {
            let mut found = in_phase(&job, phase);
            not_ready(&mut found, reason, message);
            let status = next(&job, Some(&found), Word::Starts(Start::Here), at(1)).status;
            assert_eq!((status.phase, status.message.as_str()), (JobPhase::Ready, message), "{reason}");
        }
    }

    #[test]
    fn conditions_tell_how_it_stands() {
        let mut job = flux_job(json!({}));
        let mut seen = Vec::new();
        for (phase, reason) in [
            (Phase::Starting, "Starting"),
            (Phase::Running, "Running"),
            (Phase::Suspended, "JobQueued"),
            (Phase::Running, "Running"),
            (Phase::Succeeded, "Finished"),
        ] {
            let mut found = in_phase(&job, phase);
            not_ready(&mut found, reason, "how it is");
            job.status = Some(next(&job, Some(&found), Word::Starts(Start::Here), at(0)).status);
            let status = job.status.as_ref().unwrap();
            let [running, finished] = [RUNNING, FINISHED].map(|type_| condition(status, type_));
            seen.push(format!("{} {} {}", running.0, running.1, finished.1));
            assert_eq!(status.phase == JobPhase::Running, ["Running", "JobQueued"].contains(&reason));
        }
        let up = "True Running NotFinished";
        let down = "False JobQueued NotFinished";
        assert_eq!(seen, ["False NotStarted NotFinished", up, down, up, "False Finished Succeeded"]);
        // One that ended under an older agent.
        job.status.as_mut().unwrap().conditions.clear();
        let status = next(&job, None, Word::Starts(Start::Here), at(0)).status;
        assert_eq!(condition(&status, FINISHED), ("True", "Succeeded"));
        assert_eq!(condition(&refused(status, "MiniCluster", "no", at(0)), FINISHED), ("True", "Refused"));
    }

    #[test]
    fn a_job_whose_mini_cluster_was_taken_away_has_failed() {
        let mut job = flux_job(json!({}));
        let found = in_phase(&job, Phase::Running);
        job.status = Some(next(&job, Some(&found), Word::Starts(Start::Here), at(0)).status);
        let step = next(&job, None, Word::Starts(Start::Here), at(1));
        assert_eq!((step.status.phase, step.then), (JobPhase::Finished, Then::Nothing), "it is not run twice");
        assert_eq!(step.status.message, "its MiniCluster was deleted");
        assert_eq!(step.without, [Missing::MiniCluster], "a cache that does not show it is no proof");
    }

    #[test]
    fn a_mini_cluster_made_in_the_name_of_a_job_admits_it_once_it_has_a_job_of_its_own() {
        let job = flux_job(json!({}));
        let mut found = in_phase(&job, Phase::Pending);
        let waits = next(&job, Some(&found), Word::Waits("in line".into()), at(0)).status;
        assert_eq!((waits.admitted, waits.message.as_str()), (None, "its MiniCluster waits in line"));
        found.status.as_mut().unwrap().incarnation = Some("batch-job".into());
        assert!(next(&job, Some(&found), Word::Waits("in line".into()), at(1)).status.admitted.is_some());
    }

    #[test]
    fn a_job_that_asks_for_more_once_it_was_let_in_covers_no_more_than_before() {
        let mut job = flux_job(json!({"size": 1}));
        job.status = Some(next(&job, None, Word::Starts(Start::Here), at(0)).status);
        let small = mini_cluster(&job, None).unwrap();
        job.spec.size = 64;
        let large = mini_cluster(&job, None).unwrap();
        assert!(covers(&job, &Start::Here, &small));
        assert!(!covers(&job, &Start::Here, &large), "it stands in line for that");
        // What it says later changes nothing of what is on record.
        let held = job.status.clone().unwrap().holds;
        let again = next(&job, None, Word::Waits("in line".into()), at(1)).status;
        assert_eq!((again.holds, again.admitted.is_some()), (held, true));
    }

    #[test]
    fn a_mini_cluster_that_is_larger_than_its_job_is_not_covered_by_it() {
        let job = flux_job(json!({"size": 2}));
        let mut found = mini_cluster(&job, None).unwrap();
        assert!(is_of(&found, &job) && covers(&job, &Start::Here, &found));
        found.spec.size = Some(3);
        assert!(!covers(&job, &Start::Here, &found));
        found.metadata.name = Some("another".into());
        assert!(!is_of(&found, &job), "a FluxJob makes one MiniCluster, of its own name");
    }
}
