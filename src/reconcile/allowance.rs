//! How long the Job of an instance may run where a queue let the instance in. Pure.
//!
//! Whoever is let in for an hour has its room for an hour, however often the instance is started anew, or suspended, meanwhile:
//! each Job after the first gets what is left of that hour.

use tributary_api::minicluster::DEFAULT_DEADLINE_SECONDS;

use super::decide::{Action, Decision, Upkeep};
use super::dereference::Known;

/// Seconds between making a Job and its start that are not worth a write.
const A_MOMENT: i64 = 5;

/// How long whoever is let in may run, and how much of that is over when its Job starts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Allowance {
    /// Seconds that the namespace allows by now, or that it was let in for, if that is less.
    pub longest: Option<i64>,
    /// Seconds that it was let in for.
    pub term: Option<i64>,
    /// Seconds from the start of its first Job to that of this one.
    pub used: i64,
}

/// The deadline of a Job.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Deadline {
    /// Seconds; `None`: there is none.
    pub seconds: Option<i64>,
    /// Why that is not what its spec says.
    pub told: Option<String>,
}

impl Allowance {
    /// That of a Job that is made for a spec that asks for so many seconds.
    pub(crate) fn of_new(self, wanted: Option<i64>) -> Deadline {
        let seconds = self.left_of(least(wanted, self.longest));
        Deadline { seconds, told: self.told(wanted, seconds) }
    }

    /// That of a Job that runs, and has one. Whoever runs by a limit that has become shorter meanwhile keeps what it has: no
    /// change of a quota ends what runs.
    pub(crate) fn of_running(self, wanted: Option<i64>, has: Option<i64>) -> Deadline {
        // Its spec may ask for more than its term since; whoever resumed it gave it all of its time once more.
        let all = least(wanted, self.term);
        let own = self.left_of(all);
        // What was left when it was made, a moment before it started, is near enough.
        let near = own.zip(has).is_some_and(|(own, has)| self.used > 0 && (own - has).abs() <= A_MOMENT);
        let seconds = if near {
            has
        } else if exceeds(all, self.longest) {
            least(own, has)
        } else {
            own
        };
        Deadline { seconds, told: self.told(wanted, seconds) }
    }

    fn is_too_long(self, wanted: Option<i64>) -> bool {
        exceeds(wanted, self.longest)
    }

    /// What is left of so much. The limit of about a year that nobody wrote is none to count down.
    fn left_of(self, all: Option<i64>) -> Option<i64> {
        // A Job whose time is over says so by its end.
        all.map(|all| if all < DEFAULT_DEADLINE_SECONDS { (all - self.used).max(1) } else { all })
    }

    fn told(self, wanted: Option<i64>, seconds: Option<i64>) -> Option<String> {
        let (seconds, used) = (seconds.filter(|_| seconds != wanted)?, self.used);
        let mut why = Vec::new();
        if let Some(longest) = self.longest.filter(|_| self.is_too_long(wanted)) {
            let wanted = wanted.map_or("no limit".to_owned(), |wanted| wanted.to_string());
            why.push(format!(
                "{wanted} is more than the {longest} s that the queue let it in for, or the FluxSetup allows"
            ));
        }
        if used > 0 {
            why.push(format!(
                "{used} s of it were over when this Job started, since it counts from the start of the first"
            ));
        }
        Some(format!("deadlineSeconds ({}: its Job has {seconds} s)", why.join("; ")))
    }
}

impl Decision {
    /// With the deadline that comes of an allowance for its Job; `None`: nobody knows it yet, so the Job gets no more than it
    /// has.
    #[must_use]
    pub(crate) fn within(mut self, known: &Known, allowance: Option<Allowance>) -> Self {
        let has_started = known.job.facts().is_some_and(|facts| facts.started.is_some());
        match &mut self.action {
            Action::Create => {
                self.deadline = allowance.unwrap_or_default().of_new(known.mini_cluster.spec.deadline());
            }
            // Where nobody knows what it should be, it stays.
            Action::Maintain(maintenance)
                if maintenance.services == Upkeep::All || maintenance.job.deadline.is_some() =>
            {
                let Some(has) = known.job.deadline() else { return self };
                let wanted = maintenance.job.deadline.unwrap_or(has);
                let starts = has_started || maintenance.job.suspend == Some(false);
                self.deadline = match allowance {
                    Some(allowance) if starts || allowance.used == 0 => allowance.of_running(wanted, has),
                    // What is left is known once it starts.
                    Some(_) => Deadline { seconds: has, told: None },
                    None => Deadline { seconds: least(wanted, has), told: None },
                };
                maintenance.job.deadline = (self.deadline.seconds != has).then_some(self.deadline.seconds);
            }
            // Made by an agent of another version: only what is over is taken off, when it is resumed.
            Action::Maintain(maintenance) if maintenance.job.suspend == Some(false) => {
                let (Some(has), Some(allowance)) = (known.job.deadline(), allowance) else { return self };
                let seconds = least(has, allowance.left_of(allowance.longest));
                maintenance.job.deadline = (seconds != has).then_some(seconds);
            }
            _ => {}
        }
        self
    }
}

fn seconds_of(limit: Option<i64>) -> i64 {
    limit.unwrap_or(i64::MAX)
}

fn exceeds(one: Option<i64>, other: Option<i64>) -> bool {
    seconds_of(one) > seconds_of(other)
}

fn least(one: Option<i64>, other: Option<i64>) -> Option<i64> {
    if exceeds(one, other) { other } else { one }
}

#[cfg(test)]
mod tests {

    use jiff::Timestamp;
    use proptest::prelude::*;
    use tributary_api::minicluster::{MiniCluster, MiniClusterSpec};

    use super::*;
    use crate::decide::Maintenance;
    use crate::dereference::JobState;
    use crate::in_place::{JobChange, JobSettings};
    use crate::status::JobFacts;

    const NO_LIMIT: Option<i64> = None;

    fn allowance(longest: impl Into<Option<i64>>, used: i64) -> Allowance {
        Allowance { longest: longest.into(), term: None, used }
    }

    /// That of one that was let in for so long, where the namespace allows so much by now.
    fn term(term: i64, longest: i64, used: i64) -> Allowance {
        Allowance { longest: Some(longest.min(term)), term: Some(term), used }
    }

    #[test]
    fn each_job_after_the_first_gets_what_is_left() {
        for (allowance, wanted, seconds) in [
            (allowance(None, 0), Some(3600), Some(3600)),
            (allowance(None, 3000), Some(3600), Some(600)),
            (allowance(3600, 3000), Some(3600), Some(600)),
            (allowance(3600, 3000), Some(7200), Some(600)),
            (allowance(3600, 4000), Some(3600), Some(1)),
            (allowance(3600, 10), NO_LIMIT, Some(3590)),
            (allowance(None, 3000), NO_LIMIT, None),
            (allowance(None, 3000), Some(DEFAULT_DEADLINE_SECONDS), Some(DEFAULT_DEADLINE_SECONDS)),
        ] {
            let made = allowance.of_new(wanted);
            assert_eq!(made.seconds, seconds, "{allowance:?}, {wanted:?}");
            assert_eq!(made.told.is_some(), seconds != wanted, "{made:?}");
            assert_eq!(allowance.of_running(wanted, made.seconds), made, "and keeps that");
        }
    }

    #[test]
    fn nobody_gets_more_time_than_the_namespace_allows_and_less_is_anybodys() {
        let told = |wanted, has, allowance: Allowance| allowance.of_running(wanted, has);
        let more = told(Some(31_500_000 - 1), Some(600), allowance(3600, 0));
        assert_eq!(more.seconds, Some(600));
        let said = "deadlineSeconds (31499999 is more than the 3600 s that the queue let it in for, or the FluxSetup allows: its Job has 600 s)";
        assert_eq!(more.told.as_deref(), Some(said));
        assert!(told(NO_LIMIT, Some(600), allowance(3600, 0)).told.unwrap().contains("(no limit is more"));
        assert_eq!(told(Some(3600), Some(600), allowance(3600, 0)).seconds, Some(3600));
        assert_eq!(told(Some(60), Some(600), allowance(3600, 0)), Deadline { seconds: Some(60), told: None });
        let less = told(Some(7200), NO_LIMIT, allowance(3600, 0));
        assert_eq!(less.seconds, Some(7200), "it ran without any before there was a limit: that is less");
    }

    #[test]
    fn who_is_resumed_gets_no_more_than_is_left() {
        let resumed = allowance(3600, 3000).of_running(Some(3600), Some(3600));
        assert_eq!(resumed.seconds, Some(600));
        let said = "deadlineSeconds (3000 s of it were over when this Job started, since it counts from the start of the first: \
                    its Job has 600 s)";
        assert_eq!(resumed.told.as_deref(), Some(said));
        let raised = term(3600, 3600, 3000).of_running(Some(7200), Some(3600));
        assert_eq!(raised.seconds, Some(600), "though its spec asks for more by now");
        let shorter = term(3600, 60, 3000).of_running(Some(7200), Some(3600));
        assert_eq!(shorter.seconds, Some(600), "and though its namespace allows less by now");
        let later = allowance(3600, 3002).of_running(Some(3600), Some(600));
        assert_eq!(later.seconds, Some(600), "it was made with that, and started two seconds later");
        let both = allowance(3600, 3000).of_new(Some(7200)).told.unwrap();
        assert!(both.contains("(7200 is more than the 3600 s") && both.contains("; 3000 s of it were over"), "{both}");
    }

    #[test]
    fn a_limit_that_became_shorter_ends_nobody() {
        for (wanted, has, used) in [(3600, 3600, 0), (3600, 600, 3000), (7200, 600, 3000)] {
            let shorter = allowance(60, used).of_running(Some(wanted), Some(has));
            assert_eq!(shorter.seconds, Some(has), "{wanted}, {used}");
        }
    }

    /// One that runs with this deadline, and what was decided for it.
    fn maintained(has: i64, change: JobChange, services: Upkeep) -> (Known, Decision) {
        let settings = Box::new(JobSettings { deadline: Some(has), ..JobSettings::default() });
        let (boot_digest, files_digest) = (String::new(), String::new());
        let mini_cluster =
            MiniCluster::new("lake", MiniClusterSpec { deadline_seconds: Some(3600), ..Default::default() });
        let job = JobState::Ours { facts: JobFacts::default(), boot_digest, files_digest, settings };
        let known = Known::alone(mini_cluster, job);
        (known, Decision::of(Action::Maintain(Maintenance { job: change, services, ..Maintenance::default() })))
    }

    /// The change of the Job's deadline.
    fn changed(decision: &Decision) -> Option<Option<i64>> {
        match &decision.action {
            Action::Maintain(maintenance) => maintenance.job.deadline,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_job_follows_its_spec_as_far_as_its_term_goes() {
        let now = Timestamp::from_second(1_000_000).unwrap();
        let follows =
            |has: i64, wanted: Option<i64>, services, allowance: Option<Allowance>, started: Option<Timestamp>| {
                let change = JobChange { deadline: wanted.map(Some), ..JobChange::default() };
                let (mut known, decision) = maintained(has, change, services);
                if let JobState::Ours { facts, .. } = &mut known.job {
                    facts.started = started;
                }
                changed(&decision.within(&known, allowance)).map(Option::unwrap)
            };
        let all = Upkeep::All;
        assert_eq!(follows(600, Some(3600), all, Some(Allowance::default()), None), Some(3600));
        assert_eq!(follows(600, None, all, Some(Allowance::default()), None), None);
        assert_eq!(follows(600, Some(3600), all, Some(allowance(3600, 3000)), Some(now)), None, "that is what is left");
        assert_eq!(follows(3600, None, all, Some(allowance(3600, 3000)), Some(now)), Some(600), "it was resumed");
        assert_eq!(follows(3600, None, all, Some(allowance(3600, 3000)), None), None, "it is suspended");
        assert_eq!(follows(600, Some(3600), all, None, Some(now)), None, "nobody knows yet");
        assert_eq!(follows(3600, Some(600), all, None, Some(now)), Some(600), "less is anybody's");
        let raised = follows(600, Some(3600), Upkeep::Edited, Some(Allowance::default()), Some(now));
        assert_eq!(raised, Some(3600), "though another version made it");
        let (known, resumed) =
            maintained(3600, JobChange { suspend: Some(false), ..JobChange::default() }, Upkeep::Edited);
        let resumed = resumed.within(&known, Some(allowance(3600, 3000)));
        assert_eq!(changed(&resumed), Some(Some(600)), "though another agent made it");
        assert_eq!(
            follows(3600, None, Upkeep::None, Some(allowance(3600, 3000)), Some(now)),
            None,
            "its spec is not valid"
        );
    }

    #[test]
    fn a_job_that_is_made_or_resumed_gets_what_is_left_then() {
        let resumes = JobChange { suspend: Some(false), ..JobChange::default() };
        let (known, resumed) = maintained(3600, resumes, Upkeep::All);
        assert_eq!(changed(&resumed.within(&known, Some(allowance(3600, 3000)))), Some(Some(600)));
        let made = |allowance| Decision::of(Action::Create).within(&known, allowance).deadline;
        assert_eq!(made(Some(allowance(3600, 3000))).seconds, Some(600));
        assert_eq!(made(None), Deadline { seconds: Some(3600), told: None });
    }

    proptest! {
        /// However often it is started anew: the last of its Jobs is over when its time is.
        #[test]
        fn restarts_gain_nothing(
            wanted in 1_i64..10_000,
            let_in_for in 1_i64..10_000,
            allowed in 1_i64..10_000,
            has in 1_i64..20_000,
            starts in prop::collection::vec(1_i64..20_000, 1..8),
        ) {
            for used in starts {
                let is_over = let_in_for.max(used + 1);
                let allowance = term(let_in_for, allowed, used);
                let new = allowance.of_new(Some(wanted)).seconds.unwrap();
                prop_assert!(used + new <= is_over);
                let resumed = allowance.of_running(Some(wanted), Some(has)).seconds.unwrap();
                prop_assert!(used + resumed <= is_over + A_MOMENT);
            }
        }
    }
}
