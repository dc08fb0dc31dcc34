//! What spec and Job of a MiniCluster ask for: pure. [`super::step`] adds what may hold that up.

use std::time::Duration;

use kube::ResourceExt;
use tributary_api::burst::Burst;
use tributary_api::hosted_burst::BurstPhase;
use tributary_api::labels::{KUEUE_QUEUE, RESTART, condition};
use tributary_api::minicluster::{Phase, UpdatePolicy};
use tributary_clock::Mono;
use tributary_cluster::conditions;
use tributary_render::{Boot, NOTHING_TO_DO, Problems, QUORUM_KEY, RENDER_REVISION, Rendered, differences};

use super::allowance::Deadline;
use super::dereference::{JobState, Known};
use super::ending::ends_here;
use super::in_place::{JobChange, JobSettings};
use super::refusal::Refusal;
use super::status::JobFacts;

/// What rendering came to.
pub(crate) type Rendering = Result<Rendered, Problems>;

/// Why something waits whose name somebody else's object bears.
pub(crate) const NAME_TAKEN: &str = "NameTaken";

/// Why a MiniCluster waits for an object of an earlier one of its name, which goes by itself.
pub(crate) const LEFT_OVER: &str = "LeftOver";

/// What has to be done.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Nothing: it waits, runs on, or cannot be carried out. The status says which.
    Nothing,
    /// Nothing, and nothing is told: caches are about to show more.
    Later,
    /// A new incarnation: certificate, boot files, Services, Job. Only after the API server has confirmed that there
    /// is no Job: a cold cache must never lead to another certificate under running brokers.
    Create,
    /// The incarnation runs: restore what was taken from it, and change what may change.
    Maintain(Maintenance),
    /// The incarnation must go, because the user asked for another: its bursts first, then its Job.
    Restart,
    /// It has ended well, and its volumes go, with its Job.
    RemoveVolumes,
    /// It has ended, and no cluster has a burst of it: the port of its lead broker on each node, or its load balancer, is
    /// for others.
    RemoveLead,
    /// It has ended, and `cleanup` asks to delete the MiniCluster itself then.
    CleanUp,
}

/// What may change while an incarnation lives.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Maintenance {
    /// The ConfigMap is gone or was changed, or another quorum is wanted: write it again from the Job's frozen copy, byte for
    /// byte but for the quorum.
    pub restore_config_map: bool,
    /// The quorum that is wanted by now; `None`: that of the frozen copy.
    pub quorum: Option<String>,
    /// What of the Job follows the spec.
    pub job: JobChange,
    /// How Services and the service pod follow the spec as it is now.
    pub services: Upkeep,
}

/// How far a running instance follows its spec: the objects beside the Job, and the settings of the Job.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Upkeep {
    /// Not at all: the spec cannot be rendered.
    #[default]
    None,
    /// What is missing is made again; what is there stays as it is.
    Missing,
    /// Like `Missing`, but fields that the user has written or edited follow as well. For an instance that an agent of another
    /// version started: the rest of its objects would be rendered differently.
    Edited,
    /// All follow.
    All,
}

/// What is done and told.
#[derive(Clone, Debug, PartialEq)]
pub struct Decision {
    /// What has to be done.
    pub action: Action,
    /// Why it waits: reason and sentence.
    pub waiting: Option<(String, String)>,
    /// That does not end by itself.
    pub refused: bool,
    /// What differs from the running incarnation: fields of the spec, as the user writes them.
    pub restart_required: Vec<String>,
    /// It is between two incarnations.
    pub restarting: bool,
    /// It has ended, and its Job is gone: it stays as it ended.
    pub over: bool,
    /// Why it keeps another size than it is asked to have: reason and sentence.
    pub stays: Option<(&'static str, String)>,
    /// Why it is not started anew, though that is asked for.
    pub held: Option<String>,
    /// The deadline that its Job has from now on, or gets.
    pub deadline: Deadline,
    /// Since when bursts are awaited, so that the instance can be started anew.
    pub releasing: Option<Mono>,
    /// When it is decided again, though nothing changes.
    pub again: Option<Duration>,
}

impl Decision {
    /// Only this.
    pub(crate) fn of(action: Action) -> Self {
        Self {
            action,
            waiting: None,
            refused: false,
            restart_required: Vec::new(),
            restarting: false,
            over: false,
            stays: None,
            held: None,
            deadline: Deadline::default(),
            releasing: None,
            again: None,
        }
    }

    /// Nothing is done or told until then.
    pub(crate) fn later(again: Duration) -> Self {
        Self::of(Action::Later).and_again(Some(again))
    }

    /// It is decided again after this time too.
    #[must_use]
    pub(crate) fn and_again(self, again: Option<Duration>) -> Self {
        Self { again: self.again.into_iter().chain(again).min(), ..self }
    }

    /// The size that a running instance grows to, if it does.
    pub(crate) fn growth(&self, known: &Known) -> Option<i32> {
        let Action::Maintain(Maintenance { job: JobChange { scale: Some(to), .. }, .. }) = &self.action else {
            return None;
        };
        known.job.facts().is_some_and(|facts| *to > facts.parallelism).then_some(*to)
    }

    /// It keeps its size, because of this: reason and sentence.
    pub(crate) fn keeps_its_size(&mut self, reason: &'static str, why: String) {
        if let Action::Maintain(maintenance) = &mut self.action
            && maintenance.job.scale.take().is_some()
        {
            self.stays = Some((reason, why));
        }
    }

    /// A part of it cannot be done.
    #[must_use]
    pub(crate) fn fails(self, refusal: Refusal) -> Self {
        Self { waiting: Some((refusal.reason.to_owned(), refusal.sentence)), refused: refusal.lasts, ..self }
    }

    /// This instance ends, and another takes its place.
    fn restarts(why: &str) -> Self {
        let sentence = format!("the instance is started anew ({why}): bursts are released, then the Job is deleted");
        Self { action: Action::Restart, restarting: true, ..Self::waits("Restarting", sentence) }
    }

    /// Nothing, because of this: reason and sentence.
    pub(crate) fn waits(reason: &str, sentence: impl Into<String>) -> Self {
        Self { waiting: Some((reason.to_owned(), sentence.into())), ..Self::of(Action::Nothing) }
    }
}

/// What spec and Job ask for. `frozen` are the boot files of the running incarnation, wherever rendering comes to others: see
/// [`needs_frozen`]. `running` is what the objects of a running instance should be: see [`tributary_render::running`].
/// `unmakable` says why the next instance could not be made.
pub(crate) fn decide(
    known: &Known,
    rendering: &Rendering,
    frozen: Option<&Boot>,
    running: Option<&Rendered>,
    unmakable: Option<&str>,
) -> Decision {
    let spec = &known.mini_cluster.spec;
    match &known.job {
        JobState::Foreign { owner } if *owner == format!("MiniCluster {}", known.mini_cluster.name_any()) => {
            let sentence =
                format!("Job {} of an earlier {owner} is about to be deleted", known.mini_cluster.name_any());
            Decision::waits(LEFT_OVER, sentence)
        }
        JobState::Foreign { owner } => Decision::waits(
            NAME_TAKEN,
            format!(
                "Job {} belongs to {owner}; delete or rename it, or give the MiniCluster another name",
                known.mini_cluster.name_any()
            ),
        ),
        // A finished run stays finished while its Job goes, unless the next one was asked for.
        JobState::Terminating(facts) if facts.outcome.is_some() && !is_restarting(known) => {
            Decision::of(Action::Nothing)
        }
        JobState::Terminating(_) => Decision {
            restarting: true,
            ..Decision::waits("Restarting", "the last Job is being deleted; the next one is made when it is gone")
        },
        JobState::Adopted { facts, settings } => {
            match (&facts.outcome, asks_for_restart(known, rendering, frozen, running)) {
                (Some(_), _) if known.cleans_up() => Decision::of(Action::CleanUp),
                (Some(_), Some(why)) => match unmakable {
                    None => Decision::restarts(&why),
                    Some(_) => Decision { held: held(&why, unmakable), ..Decision::of(Action::Nothing) },
                },
                (Some(_), None) => Decision::of(Action::Nothing),
                // Upstream's way of scaling works on its Jobs too; nothing else of them is touched.
                (None, _) => Decision::of(Action::Maintain(Maintenance {
                    job: JobChange {
                        scale: scale(known, facts, settings),
                        suspend: suspend(known, settings),
                        ..JobChange::default()
                    },
                    ..Maintenance::default()
                })),
            }
        }
        JobState::Absent if has_ended(known) && known.cleans_up() => {
            Decision { over: true, ..Decision::of(Action::CleanUp) }
        }
        JobState::Absent if has_ended(known) && !is_asked_again(known) => {
            Decision { over: true, ..Decision::of(at_rest(known)) }
        }
        JobState::Absent if rendering.is_err() => Decision::of(Action::Nothing),
        JobState::Absent => Decision::of(Action::Create),
        JobState::Ours { facts, files_digest, settings, .. } => {
            if facts.outcome.is_some() && known.cleans_up() {
                return Decision::of(Action::CleanUp);
            }
            let restart_required = restart_required(known, rendering, frozen, running);
            let asked = asks_for_restart(known, rendering, frozen, running);
            if let (Some(why), None) = (&asked, unmakable) {
                return Decision::restarts(why);
            }
            let held = asked.and_then(|why| held(&why, unmakable));
            if facts.outcome.is_some() {
                let removes = removes_volumes(known) && restart_required.is_empty() && held.is_none();
                let action = if removes { Action::RemoveVolumes } else { at_rest(known) };
                return Decision { restart_required, held, ..Decision::of(action) };
            }
            let mut maintenance = maintenance(known, rendering, running, frozen, files_digest, settings);
            // A size that cannot be carried out is no size to follow.
            maintenance.job.scale = rendering.as_ref().ok().and_then(|_| scale(known, facts, settings));
            if ends_here(&known.lead, spec, has_run(known, facts)) && !known.is_part() {
                maintenance.job.backoff_limit = (settings.backoff_limit != Some(0)).then_some(0);
            }
            Decision { restart_required, held, ..Decision::of(Action::Maintain(maintenance)) }
        }
    }
}

/// What is done of one that has ended, and whose objects stay. What leads to a port from outside leads to it the next time, too.
fn at_rest(known: &Known) -> Action {
    let is_pointed_at = known.mini_cluster.spec.flux.bursting.network.address.is_some();
    let lead = known.lead_service().filter(|service| service.metadata.deletion_timestamp.is_none() && !is_pointed_at);
    match lead {
        Some(_) if !known.bursts.iter().any(|burst| is_held(burst)) => Action::RemoveLead,
        _ => Action::Nothing,
    }
}

/// Whether a cluster may have brokers of this burst.
pub(super) fn is_held(burst: &Burst) -> bool {
    let status = burst.status.as_ref();
    status.is_some_and(|status| status.peer.is_some() && status.phase != BurstPhase::Released)
}

/// Why an instance that is to end stays.
fn held(why: &str, unmakable: Option<&str>) -> Option<String> {
    Some(format!("{why}; this instance stays, since the next one cannot be made: {}", unmakable?))
}

/// Why the instance is to end, and another to take its place; `None`: nobody asks for that.
pub(crate) fn asks_for_restart(
    known: &Known,
    rendering: &Rendering,
    frozen: Option<&Boot>,
    running: Option<&Rendered>,
) -> Option<String> {
    // A run of upstream's ends before another takes its place.
    let settings = match &known.job {
        JobState::Ours { settings, .. } => settings,
        JobState::Adopted { facts, settings } if facts.outcome.is_some() => settings,
        _ => return None,
    };
    rendering.as_ref().ok()?;
    if asked_restart(known).is_some_and(|asked| settings.restart.as_ref() != Some(asked)) {
        return Some("the annotation tributary.dev/restart asks for it".to_owned());
    }
    let changed = restart_required(known, rendering, frozen, running);
    let recreate = known.mini_cluster.spec.updates == UpdatePolicy::Recreate && !changed.is_empty();
    recreate.then(|| format!("{} changed", changed.join(", ")))
}

/// Whether [`decide`] has to see the boot files of the running incarnation.
pub(crate) fn needs_frozen(known: &Known, rendering: &Rendering) -> bool {
    match (&known.job, rendering) {
        (JobState::Ours { boot_digest, .. }, Ok(rendered)) => rendered.boot_digest != *boot_digest,
        (JobState::Ours { facts, .. }, Err(_)) => facts.outcome.is_none(),
        _ => false,
    }
}

fn maintenance(
    known: &Known,
    rendering: &Rendering,
    running: Option<&Rendered>,
    frozen: Option<&Boot>,
    files_digest: &String,
    settings: &JobSettings,
) -> Maintenance {
    let services = match (running, frozen) {
        (None, _) => Upkeep::None,
        // It may have followed its spec since it began: a mistake in that takes nothing back.
        _ if rendering.is_err() => Upkeep::Missing,
        (Some(_), Some(frozen)) if frozen.revision != RENDER_REVISION => Upkeep::Edited,
        (Some(_), _) => Upkeep::All,
    };
    let job = running.and_then(|running| running.job.spec.as_ref());
    let followed = || job.map(|job| JobChange::settings(&known.mini_cluster.spec, job, settings));
    let followed = match (services, frozen, rendering) {
        (Upkeep::All, ..) => followed(),
        (Upkeep::Edited, Some(frozen), Ok(present)) => {
            followed().map(|change| change.of_written_fields(&frozen.spec, &present.boot.spec))
        }
        _ => None,
    }
    .unwrap_or_default();
    let files = known.config_map.as_ref();
    let told = files.and_then(|files| files.quorum.clone()).filter(|_| rendering.is_err());
    let quorum = told.or_else(|| quorum(known, running));
    // The lead of an older agent's instance reads none.
    let other_quorum = files.is_some_and(|files| files.quorum.is_some() && quorum.is_some() && files.quorum != quorum);
    Maintenance {
        restore_config_map: files.map(|files| &files.digest) != Some(files_digest) || other_quorum,
        quorum,
        job: JobChange { suspend: suspend(known, settings), ..followed },
        services,
    }
}

/// The text for [`QUORUM_KEY`]. It asks for no more brokers and nodes of this cluster than the Job has: while another edit waits
/// for a restart, `running` may have an older, larger size. If followers have completed, which they do only with a command that
/// has ended well, and the lead was lost before it could say so, it is [`NOTHING_TO_DO`].
fn quorum(known: &Known, running: Option<&Rendered>) -> Option<String> {
    let wanted = running?.boot.files.get(QUORUM_KEY)?;
    let facts = known.job.facts()?;
    let completed = facts.succeeded > 0;
    let spec = &known.mini_cluster.spec;
    let ended_well = |pod: &String| known.lead.exit.as_ref().is_some_and(|exit| exit.pod == *pod && exit.code == 0);
    let before = known.status().lead.pod.as_ref();
    let lost = before.is_some_and(|before| known.lead.pod.as_ref() != Some(before) && !ended_well(before));
    let is_done = completed && lost && !spec.flux.complete_workers;
    if is_done {
        return Some(NOTHING_TO_DO.to_owned());
    }
    // 0 would mean [`NOTHING_TO_DO`], also where somebody scaled the Job to 0.
    let most = facts.parallelism.max(1);
    let capped = |number: &str| number.parse().map_or(number.to_owned(), |number: i32| number.min(most).to_string());
    let mut lines: Vec<String> = wanted.split('\n').map(str::to_owned).collect();
    // Brokers of its own, and in the third line nodes of its own.
    for line in [0, 2] {
        if let Some(line) = lines.get_mut(line) {
            let (own, rest) = line.split_at(line.find(' ').unwrap_or(line.len()));
            *line = capped(own) + rest;
        }
    }
    Some(lines.join("\n"))
}

/// Whether the instance of this Job has run: see `status.lead`.
fn has_run(known: &Known, facts: &JobFacts) -> bool {
    let status = known.status();
    status.lead.pod.is_some() && status.incarnation.as_ref() == Some(&facts.uid)
}

/// People suspend Jobs too: only a change of our own value is carried over. A Job in a queue of Kueue would be ended by that,
/// and started anew at once: Kueue runs what it has admitted.
fn suspend(known: &Known, settings: &JobSettings) -> Option<bool> {
    let wanted = known.mini_cluster.spec.suspend;
    (wanted != settings.applied_suspend && !settings.labels.contains_key(KUEUE_QUEUE)).then_some(wanted)
}

/// The size to scale the Job to. Sizes without ranks in the frozen host list need a new Job; how many it has, the first status
/// of the Job tells.
fn scale(known: &Known, facts: &JobFacts, settings: &JobSettings) -> Option<i32> {
    let (wanted, status) = (known.mini_cluster.spec.size(), known.status());
    if settings.may_be_fewer || status.rank_map_digest != facts.rank_map_digest {
        return None;
    }
    (wanted != facts.parallelism && (1..=status.maximum_size).contains(&wanted)).then_some(wanted)
}

fn restart_required(
    known: &Known,
    rendering: &Rendering,
    frozen: Option<&Boot>,
    running: Option<&Rendered>,
) -> Vec<String> {
    let (Ok(rendered), Some(frozen)) = (rendering, frozen) else { return Vec::new() };
    let (size, ranks) = (known.mini_cluster.spec.size(), known.status().maximum_size);
    let said = |path: String| match path.as_str() {
        "spec.size" if size > ranks => format!("spec.size {size} (this instance has ranks for {ranks})"),
        _ => path,
    };
    differences(frozen, running.map(|running| &running.boot), &rendered.boot).into_iter().map(said).collect()
}

/// The MiniCluster ended before its Job was deleted. A part of an instance has no end of its own: its root gives it up.
fn has_ended(known: &Known) -> bool {
    !known.is_part() && matches!(known.status().phase, Some(Phase::Succeeded | Phase::Failed))
}

/// Its volumes have served, and the status tells so: without its Job it stays as it ended. One that would be run once more
/// without its Job keeps them.
fn removes_volumes(known: &Known) -> bool {
    let status = known.status();
    let again = conditions::is_true(&status.conditions, condition::RESTART_REQUIRED);
    known.hosted.is_none()
        && !known.is_dispatched()
        && status.phase == Some(Phase::Succeeded)
        && !again
        && known.mini_cluster.spec.removes_volumes()
}

/// It is between two incarnations already.
fn is_restarting(known: &Known) -> bool {
    known.status().phase == Some(Phase::Restarting)
}

/// Whether the user wants a run that has ended, and whose Job is gone, once more: by the annotation, or by deleting the Job
/// as `RestartRequired` told. Anything else that deletes finished Jobs (a time to live, somebody who tidies up) must not
/// make a computation run twice.
fn is_asked_again(known: &Known) -> bool {
    let status = known.status();
    conditions::is_true(&status.conditions, condition::RESTART_REQUIRED)
        || asked_restart(known).is_some_and(|asked| status.restart_handled.as_ref() != Some(asked))
}

/// The value of the annotation that asks for a restart.
fn asked_restart(known: &Known) -> Option<&String> {
    known.mini_cluster.metadata.annotations.as_ref()?.get(RESTART)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::Arc;

    use k8s_openapi::api::batch::v1::JobSpec;
    use k8s_openapi::api::core::v1::Service;
    use serde_json::json;
    use tributary_api::burst::{BurstSpec, BurstStatus};
    use tributary_api::labels::KUEUE_MIN_PARALLELISM;
    use tributary_api::minicluster::{LeadStatus, MiniCluster, MiniClusterSpec, MiniClusterStatus};
    use tributary_api::workload::ORIGIN;
    use tributary_flux::{RankMap, Slot};
    use tributary_render::{Problem, problem::reason};

    use super::*;
    use crate::ending::JobOutcome;
    use crate::lead::{Exit, LeadFacts};
    use crate::view::FilesView;

    fn known(job: JobState) -> Known {
        let spec = MiniClusterSpec { size: Some(2), ..MiniClusterSpec::default() };
        let mut object = MiniCluster::new("lake", spec);
        object.status = Some(MiniClusterStatus { maximum_size: 4, ..MiniClusterStatus::default() });
        let config_map = Some(FilesView { digest: "files".into(), quorum: None });
        Known { config_map, ..Known::alone(object, job) }
    }

    fn with(mut known: Known, change: impl FnOnce(&mut MiniCluster)) -> Known {
        change(Arc::make_mut(&mut known.mini_cluster));
        known
    }

    /// One that MultiKueue has made. The danger: it is made anew, and runs once more, if it goes before MultiKueue knows its end.
    fn dispatched(known: Known) -> Known {
        with(known, |object| {
            object.metadata.labels = Some([(ORIGIN.to_owned(), "multikueue".to_owned())].into());
        })
    }

    fn boot(revision: u32, image: &str) -> Boot {
        Boot {
            revision,
            files: BTreeMap::new(),
            rank_map: String::new(),
            template: format!("sha256:{image}"),
            spec: json!({"containers": [{"image": image}]}),
        }
    }

    fn rendered(boot: Boot) -> Rendering {
        Ok(Rendered {
            restful_secret: None,
            claims: Vec::new(),
            persistent_volumes: Vec::new(),
            config_map: Default::default(),
            ends: None,
            services: Vec::new(),
            service_pod: None,
            job: Default::default(),
            boot_digest: boot.digest(),
            boot,
            rank_map: RankMap::new(vec![Slot::root("lake", 4)]).unwrap(),
            unsupported: Vec::new(),
        })
    }

    fn refused() -> Rendering {
        Err(Problem::new("spec.size", reason::INVALID_SIZE, "is 0").into())
    }

    fn running(facts: JobFacts) -> JobState {
        JobState::Ours {
            facts: JobFacts { parallelism: 2, ..facts },
            boot_digest: boot(RENDER_REVISION, "a").digest(),
            files_digest: "files".into(),
            settings: Box::default(),
        }
    }

    /// As the controller calls it for a spec whose followed part is its whole.
    fn decide(known: &Known, rendering: &Rendering, frozen: Option<&Boot>) -> Decision {
        super::decide(known, rendering, frozen, rendering.as_ref().ok(), None)
    }

    /// The same, for a spec of which nothing can be followed.
    fn decide_edited(known: &Known, rendering: &Rendering, frozen: &Boot) -> Decision {
        super::decide(known, rendering, Some(frozen), rendered(frozen.clone()).as_ref().ok(), None)
    }

    fn maintenance(decision: Decision) -> Maintenance {
        match decision.action {
            Action::Maintain(maintenance) => maintenance,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn without_a_job_a_valid_spec_is_created_and_a_bad_one_waits_for_its_owner() {
        assert_eq!(decide(&known(JobState::Absent), &rendered(boot(1, "a")), None).action, Action::Create);
        assert_eq!(decide(&known(JobState::Absent), &refused(), None).action, Action::Nothing);
    }

    #[test]
    fn a_spec_that_turned_bad_does_not_stop_what_runs() {
        let decision = decide(&known(running(JobFacts::default())), &refused(), None);
        assert_eq!(maintenance(decision), Maintenance::default());
    }

    /// The danger: a mistake replaces what followed the spec by what the instance began with.
    #[test]
    fn a_spec_that_turned_bad_takes_nothing_back() {
        let quorum = |quorum: &str| Some(quorum.to_owned());
        let began =
            Boot { files: BTreeMap::from([(QUORUM_KEY.to_owned(), "2".to_owned())]), ..boot(RENDER_REVISION, "a") };
        let files = FilesView { digest: "files".into(), quorum: quorum("3") };
        let grown = Known { config_map: Some(files), ..known(running(JobFacts::default())) };
        let decide = |known: &Known, rendering: &Rendering| {
            let followed = rendered(began.clone()).unwrap();
            maintenance(super::decide(known, rendering, Some(&began), Some(&followed), None))
        };
        let kept = decide(&grown, &refused());
        let expected = Maintenance { services: Upkeep::Missing, quorum: quorum("3"), ..Maintenance::default() };
        assert_eq!(kept, expected);
        let taken = decide(&Known { config_map: None, ..known(running(JobFacts::default())) }, &refused());
        assert!(taken.restore_config_map, "what somebody takes away is restored");
        let valid = decide(&grown, &rendered(began.clone()));
        assert_eq!((valid.services, valid.quorum, valid.restore_config_map), (Upkeep::All, quorum("2"), true));
    }

    #[test]
    fn jobs_of_others_are_left_alone() {
        let foreign = decide(&known(JobState::Foreign { owner: "CronJob c".into() }), &rendered(boot(1, "a")), None);
        assert_eq!(foreign.action, Action::Nothing);
        assert_eq!(foreign.waiting.unwrap().0, "NameTaken");
        let terminating = decide(&known(JobState::Terminating(JobFacts::default())), &rendered(boot(1, "a")), None);
        assert_eq!(terminating.waiting.unwrap().0, "Restarting");
    }

    #[test]
    fn boot_files_that_were_taken_or_changed_are_restored() {
        for config_map in [None, Some(FilesView { digest: "other".into(), quorum: None })] {
            let known = Known { config_map, ..known(running(JobFacts::default())) };
            assert!(maintenance(decide(&known, &rendered(boot(RENDER_REVISION, "a")), None)).restore_config_map);
        }
    }

    #[test]
    fn the_quorum_follows_the_size_and_a_lead_that_comes_after_a_good_end_waits_for_nobody() {
        let wants = |quorum: &str| Boot {
            files: BTreeMap::from([(QUORUM_KEY.to_owned(), quorum.to_owned())]),
            ..boot(RENDER_REVISION, "a")
        };
        let reads = |quorum: Option<&str>, succeeded: i32, lead: LeadFacts| {
            let facts = JobFacts { succeeded, ..JobFacts::default() };
            let files = FilesView { digest: "files".into(), quorum: quorum.map(str::to_owned) };
            let known = Known { config_map: Some(files), lead, ..known(running(facts)) };
            let known = with(known, |object| {
                object.status.as_mut().unwrap().lead.pod = Some("lake-0-a".to_owned());
            });
            let done = maintenance(decide(&known, &rendered(wants("2\n")), Some(&wants("4\n"))));
            (done.restore_config_map, done.quorum.unwrap())
        };
        let pod = |pod: &str| LeadFacts { pod: Some(pod.to_owned()), ..LeadFacts::default() };
        let exit = |code| Exit { pod: "lake-0-a".to_owned(), code, reason: None };
        let ended = |code| LeadFacts { exit: Some(exit(code)), ..LeadFacts::default() };
        assert_eq!(reads(Some("4\n"), 0, pod("lake-0-a")), (true, "2\n".to_owned()));
        assert_eq!(reads(Some("2\n"), 0, pod("lake-0-a")), (false, "2\n".to_owned()));
        assert!(!reads(None, 0, pod("lake-0-a")).0, "the instance of an older agent");
        for (succeeded, lead, quorum) in [
            (1, pod("lake-0-a"), "2\n"),
            (1, pod("lake-0-b"), NOTHING_TO_DO),
            (0, pod("lake-0-b"), "2\n"),
            (1, LeadFacts::default(), NOTHING_TO_DO),
            (1, ended(143), NOTHING_TO_DO),
            // Its Job is about to say so.
            (1, ended(0), "2\n"),
        ] {
            assert_eq!(reads(Some("2\n"), succeeded, lead.clone()).1, quorum, "{succeeded} {lead:?}");
        }
    }

    /// The danger: a lead that is lost after a scale-down waits for brokers that are not wanted any more, for ever.
    #[test]
    fn the_quorum_is_no_more_than_the_job_has_whatever_else_waits_for_a_restart() {
        let quorum = |parallelism: i32, wanted: &str| {
            let mut known = known(running(JobFacts::default()));
            let JobState::Ours { facts, .. } = &mut known.job else { unreachable!() };
            facts.parallelism = parallelism;
            let files = BTreeMap::from([(QUORUM_KEY.to_owned(), wanted.to_owned())]);
            let frozen = Boot { files, ..boot(RENDER_REVISION, "a") };
            let (edited, followed) = (rendered(boot(RENDER_REVISION, "b")), rendered(frozen.clone()));
            let decision = super::decide(&known, &edited, Some(&frozen), followed.as_ref().ok(), None);
            assert_eq!(decision.restart_required, ["spec.containers[0].image"]);
            maintenance(decision).quorum.unwrap()
        };
        assert_eq!(quorum(2, "4\n"), "2\n");
        assert_eq!(quorum(4, "4\n"), "4\n");
        assert_eq!(quorum(4, "2\n"), "2\n", "minSize");
        assert_eq!(quorum(2, "4\n8\n4 8\n"), "2\n8\n2 8\n", "what bursts have stays");
        assert_eq!(quorum(2, "4\n\n4 0\n"), "2\n\n2 0\n");
        assert_eq!(quorum(0, "4\n"), "1\n", "0 would say that nothing is to be done");
    }

    #[test]
    fn a_run_that_the_kernel_killed_for_its_memory_is_not_repeated_unless_that_is_asked_for() {
        let killed = |reason: &str| LeadFacts {
            exit: Some(Exit { pod: "lake-0-x".into(), code: 137, reason: Some(reason.into()) }),
            ..LeadFacts::default()
        };
        let limit_of = |lead: LeadFacts, written: Option<i32>, policy: Option<&str>| {
            let known = with(known(running(JobFacts::default())), |object| {
                object.spec.backoff_limit = written;
                object.spec.pod.restart_policy = policy.map(str::to_owned);
            });
            let decision = decide(&Known { lead, ..known }, &rendered(boot(RENDER_REVISION, "a")), None);
            maintenance(decision).job.backoff_limit
        };
        let limit = |lead, written| limit_of(lead, written, None);
        assert_eq!(limit(killed("OOMKilled"), None), Some(0), "the next failure, which has happened, ends the Job");
        assert_eq!(limit(killed("OOMKilled"), Some(3)), None, "who writes it wants it run again");
        assert_eq!(limit(killed("Error"), None), None, "its pod was stopped, and is replaced");
        assert_eq!(limit_of(killed("OOMKilled"), None, Some("Never")), Some(0));
        assert_eq!(limit_of(killed("OOMKilled"), None, Some("OnFailure")), None, "it is run again in its pod");
        assert_eq!(limit(killed("StartError"), None), Some(0), "its image has no shell");
        let mut has_run = known(running(JobFacts::default()));
        has_run.lead = killed("StartError");
        let has_run = with(has_run, |object| {
            let lead = LeadStatus { pod: Some("lake-0-a".into()), ..LeadStatus::default() };
            object.status = Some(MiniClusterStatus {
                incarnation: Some(JobFacts::default().uid),
                lead,
                ..MiniClusterStatus::default()
            });
        });
        let decision = decide(&has_run, &rendered(boot(RENDER_REVISION, "a")), None);
        assert_eq!(maintenance(decision).job.backoff_limit, None, "this node could not start it: another one may");
    }

    #[test]
    fn sizes_follow_as_far_as_there_are_ranks() {
        let size = |size| with(known(running(JobFacts::default())), |object| object.spec.size = Some(size));
        let rendering = rendered(boot(RENDER_REVISION, "a"));
        assert_eq!(maintenance(decide(&size(3), &rendering, None)).job.scale, Some(3));
        assert_eq!(maintenance(decide(&size(2), &rendering, None)).job.scale, None);
        assert_eq!(maintenance(decide(&size(5), &rendering, None)).job.scale, None);
        assert_eq!(maintenance(decide(&size(3), &refused(), None)).job.scale, None, "not of a refused spec");
        let told = |maximum_size, digest: &str| {
            with(size(3), |object| {
                let rank_map_digest = Some(digest.to_owned()).filter(|digest| !digest.is_empty());
                object.status =
                    Some(MiniClusterStatus { maximum_size, rank_map_digest, ..MiniClusterStatus::default() });
            })
        };
        for untold in [told(0, ""), told(4, "sha256:of-the-last-job")] {
            assert_eq!(maintenance(decide(&untold, &rendering, None)).job.scale, None, "nobody knows its ranks yet");
        }
        let job = |fewer| {
            let mut known = size(3);
            let JobState::Ours { settings, .. } = &mut known.job else { unreachable!() };
            settings.may_be_fewer = fewer;
            // What the MiniCluster says since then is not what its Job was admitted with.
            with(known, |object| {
                let fewest = (KUEUE_MIN_PARALLELISM.to_owned(), "1".to_owned());
                object.metadata.annotations = Some([fewest].into_iter().filter(|_| !fewer).collect());
            })
        };
        assert_eq!(maintenance(decide(&job(true), &rendering, None)).job.scale, None, "Kueue may have admitted fewer");
        assert_eq!(maintenance(decide(&job(false), &rendering, None)).job.scale, Some(3));
    }

    #[test]
    fn only_growth_is_asked_about_and_what_may_not_grow_follows_otherwise() {
        let size = |size| {
            let change = |object: &mut MiniCluster| (object.spec.size, object.spec.suspend) = (Some(size), true);
            with(known(running(JobFacts::default())), change)
        };
        let rendering = rendered(boot(RENDER_REVISION, "a"));
        let growth = |known: &Known| decide(known, &rendering, None).growth(known);
        assert_eq!(
            (growth(&size(3)), growth(&size(2)), growth(&size(1)), growth(&size(9))),
            (Some(3), None, None, None)
        );
        let mut decision = decide(&size(3), &rendering, None);
        decision.keeps_its_size("Queued", "there is no room".into());
        let stays = Some(("Queued", "there is no room".to_owned()));
        assert_eq!((decision.growth(&size(3)), decision.stays.clone()), (None, stays));
        assert_eq!(maintenance(decision).job.suspend, Some(true));
    }

    #[test]
    fn suspend_is_carried_over_only_when_our_own_value_changed() {
        // Kueue suspended the Job: we did not, and do not resume it.
        let kueue = known(running(JobFacts { suspended: true, ..JobFacts::default() }));
        let rendering = rendered(boot(RENDER_REVISION, "a"));
        assert_eq!(maintenance(decide(&kueue, &rendering, None)).job.suspend, None);
        let mut user = with(known(running(JobFacts::default())), |object| object.spec.suspend = true);
        assert_eq!(maintenance(decide(&user, &rendering, None)).job.suspend, Some(true));
        let JobState::Ours { settings, .. } = &mut user.job else { unreachable!() };
        settings.labels.insert(KUEUE_QUEUE.to_owned(), "fast".to_owned());
        let queued = maintenance(decide(&user, &rendering, None));
        assert_eq!(queued.job.suspend, None, "Kueue would start anew what that ends");
    }

    #[test]
    fn an_edited_spec_needs_a_restart_and_a_newer_agent_changes_nothing() {
        let running = known(running(JobFacts::default()));
        let edited = rendered(boot(RENDER_REVISION, "b"));
        assert!(needs_frozen(&running, &edited));
        let decision = decide_edited(&running, &edited, &boot(RENDER_REVISION, "a"));
        assert_eq!(decision.restart_required, ["spec.containers[0].image"]);
        let upgraded = decide(&running, &rendered(boot(RENDER_REVISION, "a")), Some(&boot(RENDER_REVISION - 1, "a")));
        assert_eq!(upgraded.restart_required, Vec::<String>::new());
        assert_eq!(maintenance(upgraded), Maintenance { services: Upkeep::Edited, ..Maintenance::default() });
    }

    /// The danger: the run is ended at a deadline that was raised, and nothing says so.
    #[test]
    fn what_users_edit_of_an_instance_that_another_version_started_follows_and_no_more() {
        let began = boot(RENDER_REVISION - 1, "a");
        let change = |edit: fn(&mut MiniClusterSpec)| {
            let settings = JobSettings { deadline: Some(60), backoff_limit: Some(2), ..JobSettings::default() };
            let mut job = running(JobFacts::default());
            let JobState::Ours { settings: had, .. } = &mut job else { unreachable!() };
            **had = settings;
            let known = with(known(job), |object| edit(&mut object.spec));
            let spec = &known.mini_cluster.spec;
            let mut present = began.clone();
            for (field, value) in
                [("deadlineSeconds", json!(spec.deadline_seconds)), ("backoffLimit", json!(spec.backoff_limit))]
            {
                if !value.is_null() {
                    present.spec[field] = value;
                }
            }
            let mut rendering = rendered(present);
            let job = JobSpec {
                active_deadline_seconds: Some(spec.deadline_seconds.unwrap_or(90)),
                backoff_limit: Some(spec.backoff_limit.unwrap_or(6)),
                ..JobSpec::default()
            };
            rendering.as_mut().unwrap().job.spec = Some(job);
            maintenance(decide(&known, &rendering, Some(&began))).job
        };
        assert_eq!(change(|_| {}), JobChange::default(), "this version has other defaults");
        let deadline = change(|spec| spec.deadline_seconds = Some(3600));
        assert_eq!(deadline, JobChange { deadline: Some(Some(3600)), ..JobChange::default() });
        // One that is taken back has been written by then.
        let taken_back = change(|spec| (spec.deadline_seconds, spec.backoff_limit) = (Some(90), Some(2)));
        assert_eq!(taken_back, JobChange { deadline: Some(Some(90)), ..JobChange::default() });
        let backoff = change(|spec| spec.backoff_limit = Some(3));
        assert_eq!(backoff, JobChange { backoff_limit: Some(3), ..JobChange::default() });
    }

    /// The danger: clusters have 2,768 ports of nodes, and each root that has ended keeps one.
    #[test]
    fn the_port_of_a_lead_is_given_back_once_no_burst_is_left() {
        let rendering = rendered(boot(RENDER_REVISION, "a"));
        let known = |outcome, held: bool| {
            let mut known = known(running(JobFacts { outcome, ..JobFacts::default() }));
            let mut service = Service::default();
            service.metadata.name = Some("lake-lead".into());
            let status = BurstStatus { peer: held.then(|| "west".into()), ..BurstStatus::default() };
            known.services = vec![Arc::new(service)];
            let burst = Burst { status: Some(status), ..Burst::new("lake-burst-0", BurstSpec::default()) };
            known.bursts = vec![Arc::new(burst)];
            known
        };
        let ended = || Some(JobOutcome::Succeeded);
        assert_eq!(decide(&known(ended(), false), &rendering, None).action, Action::RemoveLead);
        assert_eq!(decide(&known(ended(), true), &rendering, None).action, Action::Nothing);
        assert!(matches!(decide(&known(None, false), &rendering, None).action, Action::Maintain(_)));
        let pointed_at = with(known(ended(), false), |object| {
            object.spec.flux.bursting.network.address = Some("nat.example".into());
        });
        assert_eq!(decide(&pointed_at, &rendering, None).action, Action::Nothing);
        let mut without_job = with(known(ended(), false), |object| {
            object.status.as_mut().unwrap().phase = Some(Phase::Succeeded);
        });
        without_job.job = JobState::Absent;
        assert_eq!(decide(&without_job, &rendering, None).action, Action::RemoveLead);
        Arc::make_mut(&mut without_job.services[0]).metadata.deletion_timestamp =
            Some(serde_json::from_str("\"2026-01-01T00:00:00Z\"").unwrap());
        assert_eq!(decide(&without_job, &rendering, None).action, Action::Nothing);
    }

    #[test]
    fn clean_up_waits_for_the_end_and_for_permission() {
        let ended = || known(running(JobFacts { outcome: Some(JobOutcome::Succeeded), ..JobFacts::default() }));
        let rendering = rendered(boot(RENDER_REVISION, "a"));
        assert_eq!(decide(&ended(), &rendering, None).action, Action::Nothing);
        let asked = with(ended(), |object| object.spec.cleanup = true);
        assert_eq!(decide(&asked, &rendering, None).action, Action::CleanUp);
        assert_eq!(decide(&dispatched(asked), &rendering, None).action, Action::Nothing);
        let running = with(known(running(JobFacts::default())), |object| object.spec.cleanup = true);
        assert!(matches!(decide(&running, &rendering, None).action, Action::Maintain(_)));
    }

    #[test]
    fn volumes_go_after_a_good_end_that_the_status_tells() {
        let ended = |phase, outcome, spec: &str| {
            with(known(running(JobFacts { outcome: Some(outcome), ..JobFacts::default() })), |object| {
                object.spec = serde_saphyr::from_str(spec).unwrap();
                object.status.as_mut().unwrap().phase = Some(phase);
            })
        };
        let made = "{volumes: {data: {path: /srv, capacity: 1Gi}}}";
        let action = |known: &Known| decide(known, &rendered(boot(RENDER_REVISION, "a")), None).action;
        let succeeded = || JobOutcome::Succeeded;
        assert_eq!(action(&ended(Phase::Succeeded, succeeded(), made)), Action::RemoveVolumes);
        assert_eq!(action(&dispatched(ended(Phase::Succeeded, succeeded(), made))), Action::Nothing);
        for (phase, spec) in [
            (Phase::Running, made),
            (Phase::Failed, made),
            (Phase::Succeeded, "{volumes: {data: {path: /srv}}}"),
            (Phase::Succeeded, "{cleanupVolumes: false, volumes: {data: {path: /srv, capacity: 1Gi}}}"),
        ] {
            assert_eq!(action(&ended(phase, succeeded(), spec)), Action::Nothing, "{phase:?} {spec}");
        }
        // Without its Job it would be run once more.
        let mut edited = ended(Phase::Succeeded, succeeded(), made);
        let frozen = boot(RENDER_REVISION, "b");
        if let JobState::Ours { boot_digest, .. } = &mut edited.job {
            *boot_digest = frozen.digest();
        }
        let told = with(edited, |object| {
            let condition = json!({"type": condition::RESTART_REQUIRED, "status": "True", "reason": "Changed",
                "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"});
            object.status.as_mut().unwrap().conditions = vec![serde_json::from_value(condition).unwrap()];
        });
        assert_eq!(action(&told), Action::Nothing);
    }

    #[test]
    fn upstreams_jobs_are_scaled_and_held_back_and_otherwise_left_alone() {
        let adopted = |facts| known(JobState::Adopted { facts, settings: Box::default() });
        let edited = rendered(boot(1, "b"));
        let untouched = decide(&adopted(JobFacts { parallelism: 2, ..JobFacts::default() }), &edited, None);
        assert_eq!(maintenance(untouched), Maintenance::default());
        let asked =
            with(adopted(JobFacts { parallelism: 1, ..JobFacts::default() }), |object| object.spec.suspend = true);
        let change = JobChange { scale: Some(2), suspend: Some(true), ..JobChange::default() };
        assert_eq!(maintenance(decide(&asked, &edited, None)), Maintenance { job: change, ..Maintenance::default() });
        let ended = adopted(JobFacts { outcome: Some(JobOutcome::Succeeded), ..JobFacts::default() });
        assert_eq!(decide(&ended, &edited, None), Decision::of(Action::Nothing));
        let asked = |known| {
            with(known, |object| {
                object.metadata.annotations = Some([(RESTART.to_owned(), "now".to_owned())].into());
            })
        };
        let again = decide(&asked(ended), &edited, None);
        assert_eq!((again.action, again.restarting), (Action::Restart, true), "nothing of it runs any more");
        let runs = asked(adopted(JobFacts { parallelism: 2, ..JobFacts::default() }));
        assert_eq!(maintenance(decide(&runs, &edited, None)), Maintenance::default());
    }

    #[test]
    fn whoever_asks_for_it_gets_a_new_instance() {
        let (frozen, edited) = (boot(RENDER_REVISION, "a"), rendered(boot(RENDER_REVISION, "b")));
        let recreate = |object: &mut MiniCluster| object.spec.updates = UpdatePolicy::Recreate;
        for facts in [JobFacts::default(), JobFacts { outcome: Some(JobOutcome::Succeeded), ..JobFacts::default() }] {
            let decision = decide_edited(&with(known(running(facts.clone())), recreate), &edited, &frozen);
            assert_eq!((&decision.action, decision.restarting), (&Action::Restart, true));
            assert!(decision.waiting.unwrap().1.contains("spec.containers[0].image changed"));
            let same = decide(&with(known(running(facts.clone())), recreate), &rendered(frozen.clone()), None);
            assert_ne!(same.action, Action::Restart, "nothing changed");
            let on_delete = decide_edited(&known(running(facts)), &edited, &frozen);
            assert_eq!(on_delete.restart_required, ["spec.containers[0].image"]);
            assert_ne!(on_delete.action, Action::Restart);
        }
        let asked = |object: &mut MiniCluster| {
            object.metadata.annotations = Some([(RESTART.to_owned(), "now".to_owned())].into());
        };
        let by_annotation = with(known(running(JobFacts::default())), asked);
        assert_eq!(decide(&by_annotation, &rendered(frozen.clone()), None).action, Action::Restart);
        assert_ne!(decide(&by_annotation, &refused(), None).action, Action::Restart, "there must be a next one");
        let stays =
            super::decide(&by_annotation, &rendered(frozen.clone()), None, None, Some("Secret own is not there"));
        assert!(matches!(stays.action, Action::Maintain(_)), "what runs is not ended for what cannot be made");
        assert!(stays.held.unwrap().ends_with("the next one cannot be made: Secret own is not there"));
        let mut obeyed = by_annotation;
        let JobState::Ours { settings, .. } = &mut obeyed.job else { unreachable!() };
        settings.restart = Some("now".into());
        assert_ne!(decide(&obeyed, &rendered(frozen), None).action, Action::Restart);
    }

    #[test]
    fn what_has_ended_does_not_run_again_because_its_job_is_tidied_away() {
        let ended = |job: JobState, change: fn(&mut MiniClusterStatus)| {
            with(known(job), |object| {
                let status = object.status.as_mut().unwrap();
                status.phase = Some(Phase::Succeeded);
                change(status);
            })
        };
        let rendering = rendered(boot(1, "a"));
        let over = decide(&ended(JobState::Absent, |_| {}), &rendering, None);
        assert_eq!((over.action, over.over), (Action::Nothing, true));
        let done = JobFacts { outcome: Some(JobOutcome::Succeeded), ..JobFacts::default() };
        let going = decide(&ended(JobState::Terminating(done.clone()), |_| {}), &rendering, None);
        assert_eq!(going, Decision::of(Action::Nothing));

        let told = |status: &mut MiniClusterStatus| {
            let statement = conditions::Statement::holds(condition::RESTART_REQUIRED, "A", "");
            status.conditions = conditions::merged(&[], [statement], None, jiff::Timestamp::UNIX_EPOCH);
        };
        assert_eq!(decide(&ended(JobState::Absent, told), &rendering, None).action, Action::Create);
        let restarting = |status: &mut MiniClusterStatus| status.phase = Some(Phase::Restarting);
        assert_eq!(decide(&ended(JobState::Absent, restarting), &rendering, None).action, Action::Create);
        let between = decide(&ended(JobState::Terminating(done), restarting), &rendering, None);
        assert_eq!((between.restarting, between.waiting.unwrap().0.as_str()), (true, "Restarting"));
        let annotated = with(ended(JobState::Absent, |_| {}), |object| {
            object.metadata.annotations = Some([(RESTART.to_owned(), "now".to_owned())].into());
        });
        assert_eq!(decide(&annotated, &rendering, None).action, Action::Create);
    }
}
