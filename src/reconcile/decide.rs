//! What has to be done for a MiniCluster: pure.

use super::dereference::{JobState, Known};
use crate::api::minicluster::Phase;
use crate::render::{Boot, Problems, RENDER_REVISION, Rendered, differences};

/// What rendering came to.
pub type Rendering = Result<Rendered, Problems>;

/// What has to be done.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Nothing: it waits, runs on, or cannot be carried out. The status says which.
    Nothing,
    /// A new incarnation: certificate, boot files, Services, Job. Only after the API server has confirmed that there
    /// is no Job: a cold cache must never lead to another certificate under running brokers.
    Create,
    /// The incarnation runs: restore what was taken from it, and change what may change.
    Maintain(Maintenance),
    /// It has ended, and `cleanup` asks to delete the MiniCluster itself then.
    CleanUp,
}

/// What may change while an incarnation lives.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Maintenance {
    /// The ConfigMap is gone or was changed: write it again from the Job's frozen copy, byte for byte.
    pub restore_config_map: bool,
    /// Parallelism and completions.
    pub scale: Option<i32>,
    /// `suspend` of the Job.
    pub suspend: Option<bool>,
    /// How Services and the service pod follow the spec as it is now.
    pub services: Upkeep,
}

/// How far objects beside the Job follow the spec.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Upkeep {
    /// Not at all: the spec cannot be rendered.
    #[default]
    None,
    /// What is missing is made again; what is there stays as it is. An agent of another version renders differently, and
    /// writes nothing to what runs.
    Missing,
    /// All follow.
    All,
}

/// A decision, and what keeps a valid spec from being carried out.
#[derive(Clone, Debug, PartialEq)]
pub struct Decision {
    /// What has to be done.
    pub action: Action,
    /// Why it waits: reason and sentence.
    pub waiting: Option<(String, String)>,
    /// What differs from the running incarnation.
    pub restart_required: Vec<String>,
}

/// Decides. `frozen` are the boot files of the running incarnation, wherever rendering comes to others: see
/// [`needs_frozen`].
pub fn decide(known: &Known, rendering: &Rendering, frozen: Option<&Boot>) -> Decision {
    let nothing = |waiting: Option<(&str, String)>| Decision {
        action: Action::Nothing,
        waiting: waiting.map(|(reason, sentence)| (reason.to_owned(), sentence)),
        restart_required: Vec::new(),
    };
    let spec = &known.mini_cluster.spec;
    match &known.job {
        JobState::Foreign { owner } => nothing(Some((
            "NameTaken",
            format!("a Job of this name belongs to {owner}; delete or rename it, or give the MiniCluster another name"),
        ))),
        JobState::Terminating(_) => {
            nothing(Some(("Restarting", "the last Job is being deleted; the next one is made when it is gone".into())))
        }
        JobState::Adopted(facts) => match (&facts.outcome, spec.cleanup) {
            (Some(_), true) => Decision { action: Action::CleanUp, ..nothing(None) },
            _ => nothing(None),
        },
        JobState::Absent => match rendering {
            Err(_) => nothing(None),
            Ok(_) if has_ended(known) && spec.cleanup => Decision { action: Action::CleanUp, ..nothing(None) },
            Ok(_) => Decision { action: Action::Create, ..nothing(None) },
        },
        JobState::Ours { facts, files_digest, applied_suspend, .. } => {
            if facts.outcome.is_some() {
                let action = if spec.cleanup { Action::CleanUp } else { Action::Nothing };
                return Decision { action, ..nothing(None) };
            }
            let (scale, mut restart_required) = scale(known, facts.parallelism);
            if let (Ok(rendered), Some(frozen)) = (rendering, frozen) {
                restart_required.extend(differences(frozen, &rendered.boot));
            }
            let services = match (rendering, frozen) {
                (Err(_), _) => Upkeep::None,
                (Ok(_), Some(frozen)) if frozen.revision != RENDER_REVISION => Upkeep::Missing,
                (Ok(_), _) => Upkeep::All,
            };
            let maintenance = Maintenance {
                restore_config_map: known.config_map.as_ref() != Some(files_digest),
                scale,
                // Kueue and people suspend Jobs too: only a change of our own value is carried over.
                suspend: (spec.suspend != *applied_suspend).then_some(spec.suspend),
                services,
            };
            Decision { action: Action::Maintain(maintenance), waiting: None, restart_required }
        }
    }
}

/// Whether [`decide`] has to see the boot files of the running incarnation.
pub fn needs_frozen(known: &Known, rendering: &Rendering) -> bool {
    match (&known.job, rendering) {
        (JobState::Ours { boot_digest, facts, .. }, Ok(rendered)) => {
            facts.outcome.is_none() && rendered.boot.digest() != *boot_digest
        }
        _ => false,
    }
}

/// The MiniCluster ended before its Job was deleted.
fn has_ended(known: &Known) -> bool {
    matches!(known.status().phase, Some(Phase::Succeeded | Phase::Failed))
}

/// The size to scale the Job to. Sizes without ranks in the frozen host list need a new Job.
fn scale(known: &Known, parallelism: i32) -> (Option<i32>, Vec<String>) {
    let wanted = known.mini_cluster.spec.size();
    let most = known.status().maximum_size;
    if wanted == parallelism || wanted < 1 {
        return (None, Vec::new());
    }
    if most > 0 && wanted > most {
        return (None, vec![format!("size {wanted} (this instance has ranks for {most})")]);
    }
    (Some(wanted), Vec::new())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::Arc;

    use super::*;
    use crate::api::minicluster::{MiniCluster, MiniClusterSpec, MiniClusterStatus};
    use crate::flux::{RankMap, Slot};
    use crate::reconcile::status::{JobFacts, JobOutcome};
    use crate::render::{Problem, problem::reason};

    fn known(job: JobState) -> Known {
        let spec = MiniClusterSpec { size: Some(2), ..MiniClusterSpec::default() };
        let mut object = MiniCluster::new("lake", spec);
        object.status = Some(MiniClusterStatus { maximum_size: 4, ..MiniClusterStatus::default() });
        Known {
            mini_cluster: Arc::new(object),
            hosted: None,
            job,
            config_map: Some("files".into()),
            services: Vec::new(),
            service_pod: false,
            bursts: Vec::new(),
        }
    }

    fn with(mut known: Known, change: impl FnOnce(&mut MiniCluster)) -> Known {
        change(Arc::make_mut(&mut known.mini_cluster));
        known
    }

    fn boot(revision: u32, image: &str) -> Boot {
        Boot {
            revision,
            files: BTreeMap::new(),
            rank_map: String::new(),
            template: format!("sha256:{image}"),
            spec: serde_json::json!({"containers": [{"image": image}]}),
        }
    }

    fn rendered(boot: Boot) -> Rendering {
        Ok(Rendered {
            config_map: Default::default(),
            services: Vec::new(),
            service_pod: None,
            job: Default::default(),
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
            applied_suspend: false,
        }
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

    #[test]
    fn jobs_of_others_are_left_alone() {
        let foreign = decide(&known(JobState::Foreign { owner: "CronJob c".into() }), &rendered(boot(1, "a")), None);
        assert_eq!(foreign.action, Action::Nothing);
        assert_eq!(foreign.waiting.unwrap().0, "NameTaken");
        let adopted = decide(&known(JobState::Adopted(JobFacts::default())), &rendered(boot(1, "b")), None);
        assert_eq!((adopted.action, adopted.waiting), (Action::Nothing, None));
        let terminating = decide(&known(JobState::Terminating(JobFacts::default())), &rendered(boot(1, "a")), None);
        assert_eq!(terminating.waiting.unwrap().0, "Restarting");
    }

    #[test]
    fn boot_files_that_were_taken_or_changed_are_restored() {
        for config_map in [None, Some("other".to_owned())] {
            let known = Known { config_map, ..known(running(JobFacts::default())) };
            assert!(maintenance(decide(&known, &rendered(boot(RENDER_REVISION, "a")), None)).restore_config_map);
        }
    }

    #[test]
    fn sizes_follow_as_far_as_there_are_ranks() {
        let size = |size| with(known(running(JobFacts::default())), |object| object.spec.size = Some(size));
        let rendering = rendered(boot(RENDER_REVISION, "a"));
        assert_eq!(maintenance(decide(&size(3), &rendering, None)).scale, Some(3));
        assert_eq!(maintenance(decide(&size(2), &rendering, None)).scale, None);
        let beyond = decide(&size(5), &rendering, None);
        assert_eq!(beyond.restart_required, ["size 5 (this instance has ranks for 4)"]);
        assert_eq!(maintenance(beyond).scale, None);
    }

    #[test]
    fn suspend_is_carried_over_only_when_our_own_value_changed() {
        // Kueue suspended the Job: we did not, and do not resume it.
        let kueue = known(running(JobFacts { suspended: true, ..JobFacts::default() }));
        let rendering = rendered(boot(RENDER_REVISION, "a"));
        assert_eq!(maintenance(decide(&kueue, &rendering, None)).suspend, None);
        let user = with(known(running(JobFacts::default())), |object| object.spec.suspend = true);
        assert_eq!(maintenance(decide(&user, &rendering, None)).suspend, Some(true));
    }

    #[test]
    fn an_edited_spec_needs_a_restart_and_a_newer_agent_changes_nothing() {
        let running = known(running(JobFacts::default()));
        let edited = rendered(boot(RENDER_REVISION, "b"));
        assert!(needs_frozen(&running, &edited));
        let decision = decide(&running, &edited, Some(&boot(RENDER_REVISION, "a")));
        assert_eq!(decision.restart_required, ["spec.containers[0].image"]);
        let upgraded = decide(&running, &rendered(boot(RENDER_REVISION, "a")), Some(&boot(RENDER_REVISION - 1, "a")));
        assert_eq!(upgraded.restart_required, Vec::<String>::new());
        assert_eq!(maintenance(upgraded), Maintenance { services: Upkeep::Missing, ..Maintenance::default() });
    }

    #[test]
    fn clean_up_waits_for_the_end_and_for_permission() {
        let ended = || known(running(JobFacts { outcome: Some(JobOutcome::Succeeded), ..JobFacts::default() }));
        let rendering = rendered(boot(RENDER_REVISION, "a"));
        assert_eq!(decide(&ended(), &rendering, None).action, Action::Nothing);
        let asked = with(ended(), |object| object.spec.cleanup = true);
        assert_eq!(decide(&asked, &rendering, None).action, Action::CleanUp);
        let running = with(known(running(JobFacts::default())), |object| object.spec.cleanup = true);
        assert!(matches!(decide(&running, &rendering, None).action, Action::Maintain(_)));
    }
}
