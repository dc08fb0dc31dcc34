//! Whether a burst on demand is awake. Pure.
//!
//! It wakes when enough jobs ask for it that would do so if all brokers were there that do not come on demand. A broker that is
//! away for a moment makes more jobs look as if nobody could run them: these wake it when they have asked for [`SETTLES`]. It
//! sleeps when nothing asks for it and nothing runs on it in all looks for `maxIdle`. So there is at least that time between
//! two starts, whatever the queue does.
//!
//! A job may start on it just then, and would be ended with its brokers. So it is closed first: no more jobs start there. It
//! sleeps when a look finds it closed and idle, and is open again if one finds that a job was there before.
//!
//! What nobody has seen does not count: where looks have failed for long, or no agent was there, both times begin anew. How
//! long that is grows with what is waited for, so that the moment of a look, which has to outlive the agent, need not be
//! written at each of them.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use tributary_api::burst::{BurstDemand, BurstStatus, OnDemandSpec};
use tributary_api::hosted_burst::BurstPhase;

use super::ask::Asked;
use super::ear::AGAIN;
use super::hear::SILENCE;
use crate::timing::{elapsed, later};

/// How long jobs must have asked before a burst wakes, if a broker that is away could run them.
pub(crate) const SETTLES: Duration = Duration::from_secs(5);

/// The shortest time without use before it sleeps, whatever its user says.
pub(crate) const LEAST_IDLE: Duration = Duration::from_secs(30);

/// How long it is waited for that it is closed: the program beside the lead broker may be of a version that closes nothing.
const CLOSES: Duration = Duration::from_secs(15);

/// How often what is heard of a queue is looked at, though nothing is new.
pub(super) const EVERY: Duration = Duration::from_secs(15);

/// The longest time without a look that counts as if there had been some, if a fourth of what is waited for is no longer: what
/// lies between two looks if the program falls silent, and is heard again by the attempt after a failed one. That may be a third
/// more, since the moment that it is counted from may be older than the last look by a fourth of the whole ([`SLACK`]).
const UNSEEN: Duration = Duration::from_secs(
    (EVERY.as_secs() + SILENCE.as_secs() + AGAIN[1].as_secs()) * SLACK as u64 / (SLACK as u64 - 1) + 1,
);

/// The part of that time which the moment of a look may be old before it is written anew.
const SLACK: u32 = 4;

/// What a look at the queue says of one burst.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Seen {
    /// When it was looked at.
    pub at: Timestamp,
    /// What was found, or reason and sentence why nothing was.
    pub found: Result<Asked, (&'static str, String)>,
}

/// The demand after a look. Looks that failed, and one that was taken into account already, change nothing; after too many that
/// failed, the next good one is the first.
pub(crate) fn decide(old: &BurstDemand, policy: &OnDemandSpec, seen: Option<&Seen>) -> BurstDemand {
    let Some(Seen { at, found: Ok(asked) }) = seen else { return old.clone() };
    let (at, mut new) = (*at, BurstDemand { pending: asked.pending, busy: asked.busy, ..old.clone() });
    let least = policy.min_pending.max(1);
    let wait = match old.awake {
        true => max_idle(policy),
        false if asked.lasting >= least => Duration::ZERO,
        false => SETTLES,
    };
    let unseen = UNSEEN.max(wait / 4);
    let looked = old.looked.as_ref().map(|looked| looked.0).filter(|looked| elapsed(*looked, at) <= unseen);
    let since = old.since.as_ref().filter(|_| looked.is_some()).map(|since| since.0);
    let turns = match old.awake {
        false => asked.pending >= least,
        true => asked.pending == 0 && !asked.busy,
    };
    new.since = turns.then(|| Time(since.unwrap_or(at)));
    let recent = looked.filter(|looked| since.is_some() && elapsed(*looked, at) < unseen / SLACK);
    new.looked = turns.then(|| Time(recent.unwrap_or(at)));
    let waited = elapsed(since.unwrap_or(at), at);
    if turns && waited >= wait && (!old.awake || asked.closed || waited >= wait + CLOSES) {
        new.awake = !old.awake;
        (new.since, new.looked) = (None, None);
        new.starts += u32::from(new.awake);
    }
    new
}

/// What was decided last.
pub(crate) fn last(status: Option<&BurstStatus>) -> BurstDemand {
    // One that ran all the time until now is in use: it goes when nothing asks for it any more.
    let runs = || BurstDemand { awake: status.is_some_and(|status| status.peer.is_some()), ..BurstDemand::default() };
    status.and_then(|status| status.demand.clone()).unwrap_or_else(runs)
}

/// Whether no more jobs may start on it: it is about to sleep, does so, or has yet to leave before it is there again. `looked`:
/// when it was looked at; `None` if nothing is heard of the queue.
pub(crate) fn closes(
    demand: &BurstDemand,
    policy: &OnDemandSpec,
    status: Option<&BurstStatus>,
    looked: Option<Timestamp>,
) -> bool {
    let idles = demand.since.as_ref().zip(looked).is_some_and(|(since, at)| elapsed(since.0, at) >= max_idle(policy));
    let leaves = |status: &BurstStatus| status.held.is_some() || status.phase == BurstPhase::Draining;
    !demand.awake || idles || status.is_some_and(|status| status.peer.is_some() && leaves(status))
}

fn max_idle(policy: &OnDemandSpec) -> Duration {
    policy.max_idle.duration().max(LEAST_IDLE)
}

/// What people are told: whether it is wanted, a reason and a sentence.
pub(crate) fn sentence(demand: &BurstDemand, policy: &OnDemandSpec) -> (bool, &'static str, String) {
    let jobs = |count: u32| match count {
        1 => "1 pending job asks for it".to_owned(),
        count => format!("{count} pending jobs ask for it"),
    };
    match (demand.awake, &demand.since) {
        (false, _) if demand.pending == 0 => (false, "Asleep", "it is asleep: no pending job asks for it".to_owned()),
        (false, _) => {
            let text = format!("it is asleep: {}, {} wake it", jobs(demand.pending), policy.min_pending.max(1));
            (false, "Asleep", text)
        }
        (true, Some(since)) => {
            let ends = later(since.0, max_idle(policy));
            (true, "Idle", format!("nothing asks for it or runs on it: it is drained at {ends:.0}"))
        }
        (true, None) if demand.busy => (true, "InUse", "jobs run on it".to_owned()),
        (true, None) => (true, "Asked", jobs(demand.pending)),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use tributary_api::burst::BurstHold;

    use super::*;

    const POLICY: OnDemandSpec =
        OnDemandSpec { max_idle: tributary_api::duration::Lasting::of_seconds(600), min_pending: 2 };

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(1_700_000_000 + second).unwrap()
    }

    fn seen(second: i64, pending: u32, busy: bool) -> Seen {
        Seen { at: at(second), found: Ok(Asked { pending, busy, lasting: 0, closed: true }) }
    }

    /// Plays a trace of (seconds, pending, busy).
    fn play(policy: &OnDemandSpec, trace: &[(i64, u32, bool)]) -> BurstDemand {
        let step = |demand: BurstDemand, &(second, pending, busy): &(i64, u32, bool)| {
            decide(&demand, policy, Some(&seen(second, pending, busy)))
        };
        trace.iter().fold(BurstDemand::default(), step)
    }

    #[test]
    fn it_wakes_when_enough_jobs_have_asked_twice_and_sleeps_when_nobody_needs_it_any_more() {
        assert!(!play(&POLICY, &[(0, 5, false)]).awake, "once may be a broker that is away for a moment");
        assert!(!play(&POLICY, &[(0, 1, false), (60, 1, false)]).awake, "too few");
        assert!(!play(&POLICY, &[(0, 5, false), (10, 0, false), (20, 5, false)]).awake, "not in between");
        let awake = [(0, 2, false), (5, 2, false)];
        assert_eq!((play(&POLICY, &awake).awake, play(&POLICY, &awake).starts), (true, 1));
        let trace = |more: &[(i64, u32, bool)]| play(&POLICY, &[&awake, more].concat());
        assert!(trace(&[(20, 1, false), (9_000, 1, false)]).awake, "one that asks is enough to stay");
        assert!(trace(&[(20, 0, true), (9_000, 0, true)]).awake, "so is one that runs");
        let idle = |from: i64, to: i64| (from..to).step_by(15).map(|second| (second, 0, false)).collect::<Vec<_>>();
        assert!(trace(&[idle(20, 619), vec![(619, 0, false)]].concat()).awake);
        assert!(!trace(&[idle(20, 619), vec![(620, 0, false)]].concat()).awake);
        let used = [idle(20, 490), vec![(500, 0, true)], idle(515, 1_110)].concat();
        assert!(trace(&used).awake, "idle time starts anew");
    }

    #[test]
    fn jobs_that_no_broker_could_run_which_is_away_wake_it_at_once() {
        let seen = |second, pending, lasting| Seen {
            at: at(second),
            found: Ok(Asked { pending, lasting, ..Asked::default() }),
        };
        let one = |seen| decide(&BurstDemand::default(), &POLICY, Some(&seen)).awake;
        assert!(one(seen(0, 2, 2)) && one(seen(0, 7, 2)));
        assert!(!one(seen(0, 2, 1)) && !one(seen(0, 1, 1)) && !one(seen(0, 0, 9)));
        let first = decide(&BurstDemand::default(), &POLICY, Some(&seen(0, 2, 1)));
        assert!(decide(&first, &POLICY, Some(&seen(1, 2, 2))).awake);
    }

    /// The danger: a job starts on it when it has just been found idle, and ends with its brokers.
    #[test]
    fn it_is_closed_before_it_sleeps_and_open_again_if_a_job_was_there_before() {
        let awake = play(&POLICY, &[(0, 2, false), (5, 2, false)]);
        let look = |demand: &BurstDemand, second, busy, closed| {
            let seen = Seen { at: at(second), found: Ok(Asked { busy, closed, ..Asked::default() }) };
            let next = decide(demand, &POLICY, Some(&seen));
            let closes = closes(&next, &POLICY, None, Some(at(second)));
            (next, closes)
        };
        let idle = (20..620).step_by(15).fold(awake, |demand, second| look(&demand, second, false, false).0);
        assert!(!look(&idle, 619, false, false).1);
        let (idle, closes) = look(&idle, 620, false, false);
        assert!(idle.awake && closes, "it is not closed yet");
        assert!(!super::closes(&idle, &POLICY, None, None), "nobody knows what it is by now");
        let (used, closes) = look(&idle, 621, true, true);
        assert!(used.awake && !closes, "a job was there before");
        let (asleep, closes) = look(&idle, 621, false, true);
        assert!(!asleep.awake && closes);
        let (waits, _) = look(&idle, 634, false, false);
        let (asleep, _) = look(&waits, 635, false, false);
        assert!(waits.awake && !asleep.awake, "the program is of a version that closes nothing");
        let status = |phase, held| BurstStatus { peer: Some("west".into()), phase, held, ..BurstStatus::default() };
        let leaves = |phase, held| super::closes(&used, &POLICY, Some(&status(phase, held)), Some(at(621)));
        assert!(leaves(BurstPhase::Draining, None) && leaves(BurstPhase::Lost, Some(BurstHold::BudgetSpent)));
        assert!(!leaves(BurstPhase::Ready, None));
    }

    #[test]
    fn what_nobody_has_seen_counts_for_nothing() {
        // No agent, or looks that failed, in between.
        assert!(!play(&POLICY, &[(0, 5, false), (600, 5, false)]).awake, "the second is the first of two");
        assert!(play(&POLICY, &[(0, 5, false), (600, 5, false), (605, 5, false)]).awake);
        let looks = |from: i64, to: i64| (from..to).step_by(15).map(|second| (second, 0, false)).collect::<Vec<_>>();
        let trace = |more: &[Vec<(i64, u32, bool)>]| {
            let awake = vec![(0, 2, false), (5, 2, false)];
            play(&POLICY, &[vec![awake], more.to_vec()].concat().concat())
        };
        assert!(trace(&[looks(20, 300), looks(700, 1_290)]).awake, "it was used from 300 on, for all that is known");
        assert!(!trace(&[looks(20, 300), looks(700, 1_301)]).awake);
        assert!(!trace(&[looks(20, 300), looks(400, 640)]).awake, "a look or two that failed are nothing");
        let short = OnDemandSpec { max_idle: 30.into(), min_pending: 2 };
        let at_night = [(0, 2, false), (5, 2, false), (20, 0, false), (140, 0, false)];
        assert!(play(&short, &at_night).awake, "though that is longer than it may idle");
    }

    #[test]
    fn a_program_that_falls_silent_once_in_a_while_does_not_keep_its_brokers_for_ever() {
        let short = OnDemandSpec { max_idle: 120.into(), min_pending: 2 };
        let awake = play(&short, &[(0, 2, false), (5, 2, false)]);
        // It is heard again by the attempt after one that failed: once in each idle time, wherever in it that is. What was seen
        // last may be older than the moment of the last look.
        let seconds = |time: Duration| i64::try_from(time.as_secs()).unwrap();
        let [every, silence, again] = [EVERY, SILENCE, AGAIN[1]].map(seconds);
        for between in 1..=8 {
            let (mut demand, mut second) = (awake.clone(), 20);
            for _ in 0..10 {
                for _ in 0..between {
                    demand = decide(&demand, &short, Some(&seen(second, 0, false)));
                    second += every;
                }
                let failed = Seen { at: at(second + silence), found: Err(("Unreadable", String::new())) };
                demand = decide(&demand, &short, Some(&failed));
                second += silence + again;
            }
            assert!(!demand.awake, "{between} good looks between two that fail");
        }
    }

    #[test]
    fn the_moment_of_a_look_is_not_written_at_each_of_them() {
        let policy = OnDemandSpec { max_idle: 86_400.into(), min_pending: 1 };
        let (mut demand, mut writes) = (play(&policy, &[(0, 1, false), (5, 1, false)]), 0);
        for second in (20..86_420).step_by(15) {
            let next = decide(&demand, &policy, Some(&seen(second, 0, false)));
            writes += u32::from(next != demand);
            demand = next;
        }
        assert!(demand.awake && writes < 20, "{writes} in a day");
        assert!(!decide(&demand, &policy, Some(&seen(86_420, 0, false))).awake);
    }

    #[test]
    fn a_look_that_failed_or_that_was_seen_already_changes_nothing() {
        let asked = play(&POLICY, &[(0, 3, false)]);
        assert_eq!(decide(&asked, &POLICY, Some(&seen(0, 3, false))), asked, "however often it is decided on");
        let failed = Seen { at: at(99), found: Err(("Forbidden", String::new())) };
        assert_eq!(decide(&asked, &POLICY, Some(&failed)), asked);
        assert_eq!(decide(&asked, &POLICY, None), asked);
    }

    #[test]
    fn what_people_are_told() {
        let told = |trace: &[(i64, u32, bool)]| sentence(&play(&POLICY, trace), &POLICY).2;
        insta::assert_debug_snapshot!([
            told(&[]),
            told(&[(0, 1, false)]),
            told(&[(0, 2, false), (5, 3, false)]),
            told(&[(0, 2, false), (5, 3, false), (30, 0, true)]),
            told(&[(0, 2, false), (5, 3, false), (30, 0, false)]),
        ]);
    }

    proptest! {
        /// No queue makes it flap: between two starts lies the idle time.
        #[test]
        fn starts_are_bounded_by_time_whatever_the_queue_does(
            idle in 0..900_u32,
            trace in proptest::collection::vec((1..40_i64, 0..3_u32, 0..3_u32, any::<bool>()), 1..400),
        ) {
            let policy = OnDemandSpec { max_idle: idle.into(), min_pending: 1 };
            let (mut demand, mut second, mut starts) = (BurstDemand::default(), 0, Vec::new());
            for (wait, pending, lasting, busy) in trace {
                second += wait;
                let seen = Seen { at: at(second), found: Ok(Asked { pending, lasting, busy, closed: busy }) };
                let next = decide(&demand, &policy, Some(&seen));
                if next.starts > demand.starts {
                    starts.push(second);
                }
                demand = next;
            }
            let least = i64::from(idle.max(30));
            prop_assert!(starts.windows(2).all(|pair| pair[1] - pair[0] >= least), "{starts:?}");
        }
    }
}
