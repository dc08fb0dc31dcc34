//! What the controller remembers between passes.
//!
//! All of it can be lost: it saves requests, and bridges the time until caches show what was written. It ends with the
//! object: one of the same name that comes later is another.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use kube::ResourceExt;
use tributary_api::minicluster::{MiniCluster, MiniClusterStatus, Phase};
use tributary_clock::Mono;
use tributary_cluster::ObjectKey;
use tributary_render::Boot;

use super::dereference::{JobState, Known};
use super::ending::JobOutcome;
use super::in_place::JobSettings;
use super::refusal::{Refusal, Refused};
use super::renderings::Renderings;
use super::status::JobFacts;

/// How long a cache can be behind in silence: until its watch is given up and begun again, and some time to read what came
/// meanwhile.
const BEHIND: Duration = Duration::from_secs(60);

/// Of all MiniClusters.
#[derive(Default)]
pub(super) struct Memory {
    /// When this process began to lead.
    leads: Option<Mono>,
    each: BTreeMap<ObjectKey, Remembered>,
    /// Boot files of running incarnations, by the Job's UID.
    pub(super) frozen: BTreeMap<String, Arc<Boot>>,
    /// What MiniClusters render to, of those that were looked at last.
    pub(super) renderings: Renderings,
}

/// Of one MiniCluster.
#[derive(Default)]
pub(super) struct Remembered {
    uid: String,
    /// This process tried to make a Job.
    tried: bool,
    created: Option<Created>,
    written: Option<Written>,
    /// When a status was written last.
    told: Option<Mono>,
    /// The generation that was seen last, and when it was seen first.
    began: Option<(Option<i64>, Timestamp)>,
    /// What kept the last pass from being finished.
    pub(super) refused: Option<Refused>,
    /// Since when the Job is seen as failed without how its lead's container ended.
    failed: Option<Mono>,
    /// Since when bursts are awaited, so that an instance can be started anew.
    pub(super) releasing: Option<Mono>,
}

/// An incarnation made by this process that the caches may not show completely yet.
struct Created {
    facts: JobFacts,
    at: Mono,
    /// The cache has shown the Job. If it shows none afterwards, then there is none.
    seen: bool,
}

/// A status that the cache may not show yet.
struct Written {
    /// Resource version of the object that has it.
    version: Option<String>,
    status: MiniClusterStatus,
}

impl Memory {
    /// Of a process that leads from now on.
    pub(super) fn of_leader(now: Mono) -> Self {
        Self { leads: Some(now), ..Self::default() }
    }

    /// Whether there may be a Job that no cache shows, now that one is about to be made: of the leader before this one, whose
    /// writes came to an end when this one began, or of this process, which tries for the second time.
    pub(super) fn may_hide_a_job(&mut self, object: &MiniCluster, now: Mono) -> bool {
        let is_new = self.leads.is_none_or(|began| now.saturating_since(began) < BEHIND);
        let tried = std::mem::replace(&mut self.of(object).tried, true);
        let told = object.status.as_ref().is_some_and(|status| status.incarnation.is_some());
        is_new || tried || told
    }

    pub(super) fn of(&mut self, object: &MiniCluster) -> &mut Remembered {
        let uid = object.uid().unwrap_or_default();
        let remembered = self.each.entry(ObjectKey::of(object)).or_default();
        if remembered.uid != uid {
            *remembered = Remembered { uid, ..Remembered::default() };
        }
        remembered
    }

    /// What kept the last pass over an object from being finished may be gone.
    pub(super) fn try_again(&mut self, key: &ObjectKey) {
        if let Some(refused) = self.each.get_mut(key).and_then(|remembered| remembered.refused.as_mut()) {
            refused.try_again();
        }
    }

    /// There is no such object any more.
    pub(super) fn forget(&mut self, key: &ObjectKey) {
        if let Some(remembered) = self.each.remove(key) {
            self.renderings.forget(&remembered.uid);
        }
    }
}

impl Remembered {
    /// When this process first saw a generation: now, if it did not yet.
    pub(super) fn began(&mut self, generation: Option<i64>, now: Timestamp) -> Timestamp {
        let known = self.began.filter(|(known, _)| *known == generation);
        self.began.insert(known.unwrap_or((generation, now))).1
    }

    /// The Job was made just now.
    pub(super) fn created(&mut self, facts: JobFacts, now: Mono) {
        self.created = Some(Created { facts, at: now, seen: false });
    }

    /// The status was written: the object has this resource version now.
    pub(super) fn written(&mut self, version: Option<String>, status: MiniClusterStatus, now: Mono) {
        self.written = Some(Written { version, status });
        self.told = Some(now);
    }

    /// How long it is until the last status is as old as this; `None` if it is.
    pub(super) fn told_within(&self, pace: Duration, now: Mono) -> Option<Duration> {
        pace.checked_sub(now.saturating_since(self.told?)).filter(|rest| !rest.is_zero())
    }

    /// Whether the Job was seen to fail within the time `settling`, and how its lead's container ended is still to come: pods
    /// are watched apart from Jobs, and both are told together.
    pub(super) fn awaits_exit(&mut self, known: &Known, now: Mono, settling: Duration) -> bool {
        let outcome = known.job.facts().and_then(|facts| facts.outcome.as_ref());
        let failed = matches!(outcome, Some(JobOutcome::Failed { reason, .. }) if reason != "DeadlineExceeded");
        let told = known.status().phase == Some(Phase::Failed);
        if !failed || told || known.is_part() || known.lead.exit.is_some() {
            self.failed = None;
            return false;
        }
        now.saturating_since(*self.failed.get_or_insert(now)) < settling
    }

    /// What kept the last pass over this spec from being finished, and how long it is not tried again.
    pub(super) fn stands(&self, known: &Known, now: Mono) -> Option<(Refusal, Duration)> {
        let (refusal, left) = self.refused.as_ref()?.stands(known.mini_cluster.metadata.generation, now)?;
        Some((refusal.clone(), left))
    }

    /// What is known, with the last writes of this process where the caches are behind them; and whether the incarnation
    /// was made within the time `settling`, so that caches of other kinds may be behind as well.
    ///
    /// Without the last status, the end of a run could be forgotten, and the run be repeated. Without having seen the Job
    /// go, it would be taken as running on.
    pub(super) fn complete(&mut self, mut known: Known, now: Mono, settling: Duration) -> (Known, bool) {
        if let Some(written) = &self.written {
            if is_older(known.mini_cluster.resource_version().as_deref(), written.version.as_deref()) {
                let shown = Arc::make_mut(&mut known.mini_cluster);
                shown.status = Some(written.status.clone());
                // The next status is written to what this one was written to.
                shown.metadata.resource_version = written.version.clone();
            } else {
                self.written = None;
            }
        }
        let Some(created) = self.created.as_mut().filter(|one| now.saturating_since(one.at) < settling) else {
            self.created = None;
            return (known, false);
        };
        created.seen |= known.job.facts().is_some_and(|facts| facts.uid == created.facts.uid);
        if known.job == JobState::Absent && !created.seen {
            known.job = JobState::Ours {
                facts: created.facts.clone(),
                boot_digest: String::new(),
                files_digest: String::new(),
                settings: Box::new(JobSettings {
                    applied_suspend: known.mini_cluster.spec.suspend,
                    restart: created.facts.restart.clone(),
                    ..JobSettings::default()
                }),
            };
        }
        (known, true)
    }
}

/// Whether an object was shown before it was written. Resource versions of one resource are decimal numbers that grow
/// (Kubernetes API concepts, "Resource versions"); a server whose are not is believed to show what is.
fn is_older(shown: Option<&str>, written: Option<&str>) -> bool {
    let number = |version: Option<&str>| version?.parse::<u128>().ok();
    matches!((number(shown), number(written)), (Some(shown), Some(written)) if shown < written)
}

#[cfg(test)]
mod tests {
    use tributary_api::minicluster::MiniClusterSpec;
    use tributary_render::{Problem, problem::reason};

    use super::*;
    use crate::decide::{Action, decide};
    use crate::lead::Exit;

    const SETTLING: Duration = Duration::from_secs(2);

    fn object(uid: &str, version: &str) -> MiniCluster {
        let mut object = MiniCluster::new("lake", MiniClusterSpec::default());
        object.metadata.uid = Some(uid.into());
        object.metadata.resource_version = Some(version.into());
        object
    }

    fn known(object: &MiniCluster, job: JobState) -> Known {
        Known::alone(object.clone(), job)
    }

    fn facts(uid: &str) -> JobFacts {
        JobFacts { uid: uid.into(), ..JobFacts::default() }
    }

    fn job(uid: &str, outcome: Option<JobOutcome>) -> JobState {
        JobState::Ours {
            facts: JobFacts { outcome, ..facts(uid) },
            boot_digest: String::new(),
            files_digest: String::new(),
            settings: Box::default(),
        }
    }

    fn at(millis: u64) -> Mono {
        Mono::from_start(Duration::from_millis(millis))
    }

    #[test]
    fn a_new_job_is_there_before_the_cache_shows_it_and_gone_once_the_cache_has_shown_that() {
        let (mut memory, object) = (Memory::default(), object("u", "1"));
        let remembered = memory.of(&object);
        remembered.created(facts("first"), at(0));
        let mut pass = |millis, job| {
            let (known, settling) = remembered.complete(known(&object, job), at(millis), SETTLING);
            (known.job.facts().map(|facts| facts.uid.clone()), settling)
        };
        assert_eq!(pass(1, JobState::Absent), (Some("first".into()), true));
        assert_eq!(pass(2, job("first", None)), (Some("first".into()), true));
        assert_eq!(pass(3, JobState::Absent), (None, true));
        assert_eq!(pass(2001, JobState::Absent), (None, false));
    }

    #[test]
    fn the_end_of_a_job_and_its_exit_code_are_told_together() {
        let failed = || Some(JobOutcome::Failed { reason: "PodFailurePolicy".into(), message: String::new() });
        let (mut memory, object) = (Memory::default(), object("u", "1"));
        let remembered = memory.of(&object);
        let mut awaits = |outcome, exit: Option<Exit>, millis| {
            let mut known = known(&object, job("first", outcome));
            known.lead.exit = exit;
            remembered.awaits_exit(&known, at(millis), SETTLING)
        };
        assert!(!awaits(None, None, 0), "it runs");
        assert!(!awaits(Some(JobOutcome::Succeeded), None, 0), "that is 0");
        assert!(awaits(failed(), None, 10));
        assert!(!awaits(failed(), Some(Exit { code: 3, ..Exit::default() }), 20));
        assert!(awaits(failed(), None, 3000) && awaits(failed(), None, 4999));
        assert!(!awaits(failed(), None, 5000), "the pod is gone, and nobody will ever tell");
    }

    #[test]
    fn a_job_that_the_cache_never_shows_is_not_believed_in_for_long() {
        let (mut memory, object) = (Memory::default(), object("u", "1"));
        memory.of(&object).created(facts("first"), at(0));
        let (late, settling) = memory.of(&object).complete(known(&object, JobState::Absent), at(2000), SETTLING);
        assert_eq!((late.job, settling), (JobState::Absent, false));
    }

    #[test]
    fn only_the_first_job_of_a_minicluster_under_a_leader_that_has_seen_all_before_it_is_made_unasked() {
        let (began, object) = (at(1_000), object("u", "1"));
        for (millis, expected) in [(1_000, true), (60_999, true), (61_000, false)] {
            let mut memory = Memory::of_leader(began);
            assert_eq!(memory.may_hide_a_job(&object, at(millis)), expected, "{millis}");
            assert!(memory.may_hide_a_job(&object, at(61_000)), "the one that was tried");
        }
        let mut told = object.clone();
        told.status = Some(MiniClusterStatus { incarnation: Some("first".into()), ..MiniClusterStatus::default() });
        assert!(Memory::of_leader(began).may_hide_a_job(&told, at(99_000)));
        assert!(Memory::default().may_hide_a_job(&object, at(99_000)));
    }

    #[test]
    fn an_object_of_the_same_name_that_comes_later_is_another() {
        let mut memory = Memory::default();
        let (first, second) = (object("u", "1"), object("v", "2"));
        memory.of(&first).created(facts("first"), at(0));
        let (new, settling) = memory.of(&second).complete(known(&second, JobState::Absent), at(1), SETTLING);
        assert_eq!((new.job, settling), (JobState::Absent, false));
    }

    /// The danger: the Job of a run that ended is deleted at once, and the run is repeated.
    #[test]
    fn a_run_that_ended_is_not_repeated_whatever_the_caches_are_behind_with() {
        let failed = JobOutcome::Failed { reason: "PodFailurePolicy".into(), message: String::new() };
        let ended = MiniClusterStatus { phase: Some(Phase::Failed), ..MiniClusterStatus::default() };
        let refused = || Err(Problem::new("spec.size", reason::INVALID_SIZE, "is 0").into());
        // Within the time that a new incarnation settles, and after it; its end in the cache or not yet.
        // Version 2 is somebody's change of the spec.
        for (millis, version, status) in [(10, "1", None), (10, "2", None), (10, "3", Some(&ended)), (5000, "1", None)]
        {
            let (mut memory, stale) = (Memory::default(), object("u", "1"));
            memory.of(&stale).created(facts("first"), at(0));
            let seen = known(&stale, job("first", Some(failed.clone())));
            memory.of(&stale).complete(seen, at(5), SETTLING);
            memory.of(&stale).written(Some("3".into()), ended.clone(), at(5));
            let mut shown = object("u", version);
            shown.status = status.cloned();
            let (now, _) = memory.of(&shown).complete(known(&shown, JobState::Absent), at(millis), SETTLING);
            let decision = decide(&now, &refused(), None, None, None);
            assert!(decision.over, "{millis} {version}: {decision:?}");
            assert_eq!(decision.action, Action::Nothing);
        }
    }

    #[test]
    fn a_status_that_came_from_somebody_else_afterwards_counts() {
        let mut memory = Memory::default();
        let stale = object("u", "1");
        let mine = MiniClusterStatus { phase: Some(Phase::Running), ..MiniClusterStatus::default() };
        memory.of(&stale).written(Some("9".into()), mine, at(0));
        let mut newer = object("u", "10");
        newer.status = Some(MiniClusterStatus { phase: Some(Phase::Failed), ..MiniClusterStatus::default() });
        let (now, _) = memory.of(&newer).complete(known(&newer, JobState::Absent), at(0), SETTLING);
        assert_eq!(now.status().phase, Some(Phase::Failed));
    }

    #[test]
    fn what_was_told_a_moment_ago_waits_for_the_rest_of_its_second() {
        let mut memory = Memory::default();
        let (object, pace) = (object("u", "1"), Duration::from_secs(1));
        assert_eq!(memory.of(&object).told_within(pace, at(0)), None, "by whoever led before");
        memory.of(&object).written(None, MiniClusterStatus::default(), at(100));
        let table = [(100, Some(1_000)), (850, Some(250)), (1_100, None), (5_000, None)];
        for (now, rest) in table {
            assert_eq!(memory.of(&object).told_within(pace, at(now)), rest.map(Duration::from_millis), "{now}");
        }
    }
}
