//! The decision about one MiniCluster: pure, and whole. Nobody changes it afterwards.
//!
//! [`decide`] says what spec and Job ask for; each action then has one function here, with everything that may hold it up.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use kube::ResourceExt;
use tributary_api::labels::{self, condition};
use tributary_api::minicluster::MiniCluster;
use tributary_cluster::conditions;

use super::SETTLING;
use super::allowance::Allowance;
use super::decide::{Action, Decision, decide, is_held};
use super::dereference::Known;
use super::observe::View;
use super::quota_gate::QuotaGate;

/// Until a deadline that was not allowed is looked at again: nobody tells when more is.
const DEADLINE_RETRY: Duration = Duration::from_secs(60);

/// Until it is looked again at whether an instance can be started anew: nobody tells that.
const HELD_RETRY: Duration = Duration::from_secs(10);

/// How often a pod that holds up the next instance is looked at, besides its own changes.
pub(super) const LINGERING_RETRY: Duration = Duration::from_secs(5);

/// Why an instance waits for the one before it.
pub(super) const RESTARTING: &str = "Restarting";

/// The same as a sentence.
pub(super) fn lingering(pod: &str) -> String {
    format!("pod {pod} of the last instance has not ended yet; it has the host name of the next one")
}

/// Why a MiniCluster of a burst gets no Job before its burst was looked at.
const UNDECIDED: &str = "BurstUndecided";

/// How often it is asked whether the burst goes on.
const UNDECIDED_RETRY: Duration = Duration::from_secs(1);

/// Decides what is done and told.
pub(crate) fn step(view: &View, gate: &dyn QuotaGate) -> Decision {
    if view.awaits_exit {
        return Decision::later(SETTLING);
    }
    let rendering = match &view.rendering {
        Ok(rendering) => rendering,
        Err((reason, sentence)) => return Decision::waits(reason, sentence),
    };
    if view.failed.is_some() {
        // It is told as an error of carrying out.
        return Decision::of(Action::Nothing);
    }
    let decision = decide(&view.known, rendering, view.frozen.as_deref(), view.running(), view.unmakable.as_deref());
    let known = &view.known;
    let is_own = known.hosted.is_none() && !known.is_dispatched();
    let expiry = if is_own { expiry(&known.mini_cluster, view.now.wall) } else { None };
    if expiry == Some(Duration::ZERO) {
        return Decision { action: Action::CleanUp, ..decision };
    }
    let decision = match &decision.action {
        Action::Create => start(view, gate, decision),
        Action::Maintain(_) => maintain(view, gate, decision),
        Action::Restart => restart(view, decision),
        Action::Nothing | Action::Later | Action::RemoveVolumes | Action::RemoveLead | Action::CleanUp => decision,
    };
    let deadline = decision.deadline.told.is_some().then_some(DEADLINE_RETRY);
    // What is told of them then is told once, and changes when pods are made.
    let unmade =
        known.job.facts().and_then(|job| job.pods_not_made_after(known.mini_cluster.status.as_ref(), view.now.wall));
    let unmade = unmade.filter(|left| !left.is_zero());
    let held = decision.held.is_some().then_some(HELD_RETRY);
    decision.and_again(expiry).and_again(deadline).and_again(unmade).and_again(held)
}

/// A new instance, as soon as nothing is in its way.
fn start(view: &View, gate: &dyn QuotaGate, decision: Decision) -> Decision {
    let known = &view.known;
    if let Some(pod) = &view.lingering {
        return Decision::waits(RESTARTING, lingering(pod)).and_again(Some(LINGERING_RETRY));
    }
    let refused = |decision: Decision| match &view.refused {
        Some((refusal, _)) => decision.fails(refusal.clone()),
        None => decision,
    };
    if let Some((_, left)) = view.refused.as_ref().filter(|(_, left)| !left.is_zero()) {
        return refused(Decision { action: Action::Nothing, ..decision }).and_again(Some(*left));
    }
    match &known.hosted {
        Some(hosted) if !gate.keeps(hosted) => {
            let sentence = format!("whether HostedBurst {} goes on is not decided yet", hosted.name_any());
            return refused(Decision::waits(UNDECIDED, sentence)).and_again(Some(UNDECIDED_RETRY));
        }
        Some(_) => {}
        None => {
            if let Err(sentence) = gate.may_start(&known.mini_cluster, None, view.now.wall) {
                // What was refused gave its room back, and waits to be tried again.
                return refused(Decision::waits(labels::reason::QUEUED, sentence));
            }
        }
    }
    decision.within(known, allowance(view, gate))
}

/// What follows the spec while an instance runs.
fn maintain(view: &View, gate: &dyn QuotaGate, mut decision: Decision) -> Decision {
    let known = &view.known;
    if let Some(why) = kept_by_kueue(known) {
        decision.keeps_its_size(condition::RESTART_REQUIRED, why);
    }
    if known.hosted.is_none() && !view.settling && decision.growth(known).is_some() {
        let has = known.job.facts().map(|facts| facts.parallelism);
        // The rest of the change need not wait with it.
        if let Err(sentence) = gate.may_start(&known.mini_cluster, has, view.now.wall) {
            decision.keeps_its_size(labels::reason::QUEUED, sentence);
        }
    }
    let decision = decision.within(known, allowance(view, gate));
    if view.settling {
        return Decision { action: Action::Nothing, ..decision }.and_again(Some(SETTLING));
    }
    decision
}

/// Why the size of what Kueue has admitted stays: to Kueue, another size is another workload, and it ends this one. Of a burst,
/// its root decides.
fn kept_by_kueue(known: &Known) -> Option<String> {
    let job = known.job.facts().filter(|job| known.hosted.is_none() && !job.suspended && !job.elastic)?;
    let (queue, size) = (job.queue.as_ref()?, known.mini_cluster.spec.size());
    let (namespace, name) = (known.mini_cluster.namespace().unwrap_or_default(), known.mini_cluster.name_any());
    let command = match job.adopted {
        // A restart leaves it as it is.
        true => format!("kubectl delete job {name} --namespace {namespace}"),
        false => format!("agentctl restart minicluster/{name} --namespace {namespace}"),
    };
    Some(format!(
        "its Job is in queue {queue} of Kueue, which ends a run whose size changes; to start it anew with {size} brokers, \
         which ends its jobs: `{command}`"
    ))
}

/// The end of an instance, once its bursts are released or their time for that is over. They are told by the phase of the
/// status.
fn restart(view: &View, decision: Decision) -> Decision {
    if view.settling {
        return Decision::later(SETTLING);
    }
    let drain = view
        .known
        .bursts
        .iter()
        .filter(|burst| is_held(burst))
        .map(|burst| u64::from(burst.spec.drain.unsigned()))
        .max();
    let Some(drain) = drain else { return decision };
    let since = view.releasing.unwrap_or(view.now.mono);
    let limit = tributary_render::longest_end(Duration::from_secs(drain));
    let left = limit.saturating_sub(view.now.mono.saturating_since(since));
    if left.is_zero() {
        return decision;
    }
    Decision { action: Action::Nothing, releasing: Some(since), ..decision }.and_again(Some(left))
}

fn allowance(view: &View, gate: &dyn QuotaGate) -> Option<Allowance> {
    let started = view.known.job.facts().and_then(|facts| facts.started);
    match view.known.hosted {
        None => gate.allowance(&view.known.mini_cluster, started, view.now.wall),
        // Bursts of peers have the time that their roots have.
        Some(_) => Some(Allowance::default()),
    }
}

/// How long a MiniCluster that has ended is kept, from now on.
pub(super) fn expiry(object: &MiniCluster, now: Timestamp) -> Option<Duration> {
    let ttl = object.spec.ttl_seconds_after_finished?;
    let finished = conditions::find(&object.status.as_ref()?.conditions, condition::FINISHED)?;
    let due = finished.last_transition_time.0 + SignedDuration::from_secs(ttl.into());
    (finished.status == "True").then(|| Duration::try_from(due.duration_since(now)).unwrap_or_default())
}

#[cfg(test)]
pub(crate) mod tests {
    use std::sync::{Arc, Mutex};

    use serde_json::json;
    use tributary_api::burst::Burst;
    use tributary_api::hosted_burst::{BurstPhase, HostedBurst};
    use tributary_api::minicluster::{MiniClusterSpec, MiniClusterStatus};
    use tributary_api::workload::ORIGIN;
    use tributary_render::{Context, render};

    use super::*;
    use crate::decide::Upkeep;
    use crate::dereference::JobState;
    use crate::in_place::JobSettings;
    use crate::quota_gate::Reservation;
    use crate::refusal::{CANNOT_CREATE, Refusal};
    use crate::status::JobFacts;

    /// What the queue answers, and how often it was asked.
    #[derive(Default)]
    pub(crate) struct Answers {
        full: bool,
        ends: bool,
        asked: Mutex<Vec<Option<i32>>>,
    }

    impl QuotaGate for Answers {
        fn may_start(&self, _: &MiniCluster, has: Option<i32>, _: Timestamp) -> Result<(), String> {
            self.asked.lock().unwrap().push(has);
            if self.full { Err("there is no room".to_owned()) } else { Ok(()) }
        }

        fn reservation(&self, _: &MiniCluster, _: Option<(&str, i32)>) -> Option<Reservation> {
            None
        }

        fn allowance(&self, _: &MiniCluster, _: Option<Timestamp>, _: Timestamp) -> Option<Allowance> {
            Some(Allowance { longest: Some(600), ..Allowance::default() })
        }

        fn keeps(&self, _: &HostedBurst) -> bool {
            !self.ends
        }

        fn give_back(&self, _: &MiniCluster) {}

        fn fits(&self, _: &MiniCluster) -> Result<(), String> {
            Ok(())
        }

        fn is_told(&self, _: &MiniCluster) -> bool {
            true
        }
    }

    fn lake(job: JobState) -> View {
        let mut mini_cluster = MiniCluster::new("lake", MiniClusterSpec { size: Some(3), ..Default::default() });
        mini_cluster.metadata.namespace = Some("waters".to_owned());
        mini_cluster.metadata.uid = Some("u".to_owned());
        mini_cluster.spec.containers = vec![Default::default()];
        mini_cluster.spec.deadline_seconds = Some(3600);
        mini_cluster.status = Some(MiniClusterStatus { maximum_size: 4, ..MiniClusterStatus::default() });
        let rendering = render(&mini_cluster, &Context::default());
        View::alone(Known::alone(mini_cluster, job), rendering)
    }

    /// One that runs with two brokers.
    fn running() -> View {
        let view = lake(JobState::Absent);
        let boot_digest = view.rendered().unwrap().boot_digest.clone();
        let job = JobState::Ours {
            facts: JobFacts { uid: "j".to_owned(), parallelism: 2, ..JobFacts::default() },
            boot_digest,
            files_digest: String::new(),
            settings: Box::new(JobSettings { deadline: Some(3600), ..JobSettings::default() }),
        };
        lake(job)
    }

    fn change(mut view: View, change: impl FnOnce(&mut MiniCluster)) -> View {
        change(Arc::make_mut(&mut view.known.mini_cluster));
        view
    }

    fn reason(decision: &Decision) -> Option<&str> {
        decision.waiting.as_ref().map(|(reason, _)| reason.as_str())
    }

    #[test]
    fn a_start_has_the_deadline_of_the_queue() {
        let gate = Answers::default();
        let decision = step(&lake(JobState::Absent), &gate);
        assert_eq!((&decision.action, decision.deadline.seconds), (&Action::Create, Some(600)));
        assert_eq!(decision.again, Some(DEADLINE_RETRY), "more may be allowed by then");
        assert_eq!(*gate.asked.lock().unwrap(), [None]);
    }

    #[test]
    fn what_holds_a_start_up_is_told_and_asks_the_queue_for_nothing() {
        let refusal = |lasts| Refusal { reason: CANNOT_CREATE, sentence: "no".to_owned(), lasts, quota: false };
        let lingers = View { lingering: Some("lake-0-x".to_owned()), ..lake(JobState::Absent) };
        let stands = View { refused: Some((refusal(true), Duration::from_secs(9))), ..lake(JobState::Absent) };
        for (view, why, again) in
            [(lingers, "Restarting", LINGERING_RETRY), (stands, CANNOT_CREATE, Duration::from_secs(9))]
        {
            let gate = Answers::default();
            let decision = step(&view, &gate);
            assert_eq!((&decision.action, reason(&decision)), (&Action::Nothing, Some(why)));
            assert_eq!(decision.again, Some(again), "{why}");
            assert!(gate.asked.lock().unwrap().is_empty(), "{why}");
        }
    }

    #[test]
    fn a_start_waits_for_room_and_keeps_the_words_of_its_refusal_meanwhile() {
        let gate = Answers { full: true, ..Answers::default() };
        let waits = step(&lake(JobState::Absent), &gate);
        assert_eq!((&waits.action, reason(&waits), waits.again), (&Action::Nothing, Some("Queued"), None));
        let refusal = Refusal { reason: CANNOT_CREATE, sentence: "no".to_owned(), lasts: true, quota: false };
        let again = View { refused: Some((refusal, Duration::ZERO)), ..lake(JobState::Absent) };
        let decision = step(&again, &gate);
        assert_eq!((reason(&decision), decision.refused), (Some(CANNOT_CREATE), true));
    }

    #[test]
    fn brokers_of_a_burst_start_only_where_it_goes_on() {
        let mut view = lake(JobState::Absent);
        view.known.hosted = Some(Arc::new(HostedBurst::default()));
        let ends = Answers { ends: true, ..Answers::default() };
        let decision = step(&view, &ends);
        assert_eq!((&decision.action, reason(&decision)), (&Action::Nothing, Some(UNDECIDED)));
        let goes_on = Answers { full: true, ..Answers::default() };
        let decision = step(&view, &goes_on);
        assert_eq!(
            (decision.action, decision.deadline.seconds),
            (Action::Create, Some(3600)),
            "its root has counted it"
        );
        assert!(goes_on.asked.lock().unwrap().is_empty());
    }

    #[test]
    fn growth_waits_for_room_and_the_rest_of_a_change_does_not() {
        let suspended = || change(running(), |object| object.spec.suspend = true);
        for (full, scale, stays) in [(false, Some(3), None), (true, None, Some("there is no room"))] {
            let gate = Answers { full, ..Answers::default() };
            let decision = step(&suspended(), &gate);
            let Action::Maintain(maintenance) = &decision.action else { panic!("{decision:?}") };
            assert_eq!((maintenance.job.scale, maintenance.job.suspend), (scale, Some(true)));
            assert_eq!(decision.stays, stays.map(|why: &str| (labels::reason::QUEUED, why.to_owned())));
            assert_eq!(*gate.asked.lock().unwrap(), [Some(2)]);
            assert_eq!(maintenance.services, Upkeep::All);
        }
    }

    /// The danger: to Kueue, another size is another workload, and it ends the run.
    #[test]
    fn what_kueue_has_admitted_keeps_its_size() {
        let queued = |size: i32, suspended: bool, elastic: bool| {
            let mut view = change(running(), |object| object.spec.size = Some(size));
            let JobState::Ours { facts, .. } = &mut view.known.job else { unreachable!() };
            (facts.queue, facts.suspended, facts.elastic) = (Some("team".to_owned()), suspended, elastic);
            view
        };
        let decided = |view: View| {
            let decision = step(&view, &Answers::default());
            let Action::Maintain(maintenance) = decision.action else { panic!("{decision:?}") };
            (maintenance.job.scale, decision.stays)
        };
        for size in [3, 1] {
            let (scale, stays) = decided(queued(size, false, false));
            let (reason, why) = stays.unwrap();
            assert_eq!((scale, reason), (None, "RestartRequired"));
            assert!(why.starts_with("its Job is in queue team of Kueue, ") && why.contains(&format!("with {size} ")));
            assert_eq!(decided(queued(size, true, false)), (Some(size), None), "it waits there");
            assert_eq!(decided(queued(size, false, true)), (Some(size), None), "Kueue goes along");
            let mut hosted = queued(size, false, false);
            hosted.known.hosted = Some(Arc::new(HostedBurst::default()));
            assert_eq!(decided(hosted), (Some(size), None), "its root says so");
        }
        assert_eq!(decided(queued(2, false, false)), (None, None), "it has the size that it should");
    }

    #[test]
    fn while_caches_may_be_behind_nothing_is_done() {
        let gate = Answers::default();
        let settling = step(&View { settling: true, ..running() }, &gate);
        assert_eq!((settling.action, settling.again), (Action::Nothing, Some(SETTLING)));
        let asked = |object: &mut MiniCluster| {
            object.metadata.annotations = Some([(labels::RESTART.to_owned(), "now".to_owned())].into());
        };
        let restarts = step(&View { settling: true, ..change(running(), asked) }, &gate);
        assert_eq!(restarts, Decision::later(SETTLING));
        let failed = step(&View { awaits_exit: true, ..running() }, &gate);
        assert_eq!(failed, Decision::later(SETTLING));
        assert!(gate.asked.lock().unwrap().is_empty());
    }

    #[test]
    fn a_restart_waits_for_its_bursts_and_not_for_ever() {
        let asked = |object: &mut MiniCluster| {
            object.metadata.annotations = Some([(labels::RESTART.to_owned(), "now".to_owned())].into());
        };
        let holds = |peer: Option<&str>, phase: BurstPhase| {
            let mut view = change(running(), asked);
            let mut burst = Burst::new("lake.gpu", Default::default());
            burst.status =
                Some(tributary_api::burst::BurstStatus { peer: peer.map(str::to_owned), phase, ..Default::default() });
            view.known.bursts = vec![Arc::new(burst)];
            view
        };
        let gate = Answers::default();
        let free = step(&change(running(), asked), &gate);
        assert_eq!((free.action, free.restarting), (Action::Restart, true));
        for view in [holds(None, BurstPhase::Pending), holds(Some("west"), BurstPhase::Released)] {
            assert_eq!(step(&view, &gate).action, Action::Restart);
        }
        let held = holds(Some("west"), BurstPhase::Ready);
        let waits = step(&held, &gate);
        assert_eq!((&waits.action, waits.releasing), (&Action::Nothing, Some(held.now.mono)));
        assert_eq!(reason(&waits), Some("Restarting"));
        let left = waits.again.unwrap();
        let halfway = View { releasing: Some(held.now.mono - left / 2), ..holds(Some("west"), BurstPhase::Ready) };
        assert_eq!(step(&halfway, &gate).again, Some(left - left / 2));
        let overdue = View { releasing: Some(held.now.mono - left), ..holds(Some("west"), BurstPhase::Ready) };
        assert_eq!(step(&overdue, &gate).action, Action::Restart);
    }

    #[test]
    fn what_has_ended_is_deleted_when_its_time_is_over_whatever_else_is_asked_for() {
        let finished = |ttl| {
            change(lake(JobState::Absent), |object| {
                object.spec.ttl_seconds_after_finished = Some(ttl);
                let status = object.status.as_mut().unwrap();
                status.phase = Some(tributary_api::minicluster::Phase::Succeeded);
                let finished = json!({"type": condition::FINISHED, "status": "True", "reason": "Succeeded", "message": "",
                    "lastTransitionTime": "2026-01-01T00:59:00Z"});
                status.conditions = vec![serde_json::from_value(finished).unwrap()];
            })
        };
        let gate = Answers::default();
        let kept = step(&finished(90), &gate);
        assert_eq!((kept.action, kept.over, kept.again), (Action::Nothing, true, Some(Duration::from_secs(30))));
        let goes = step(&finished(60), &gate);
        assert_eq!((goes.action, goes.over), (Action::CleanUp, true));
        let dispatched = change(finished(60), |object| {
            object.metadata.labels = Some([(ORIGIN.to_owned(), "multikueue".to_owned())].into());
        });
        let stays = step(&dispatched, &gate);
        assert_eq!((stays.action, stays.again), (Action::Nothing, None), "MultiKueue deletes it");
        assert!(gate.asked.lock().unwrap().is_empty());
    }

    #[test]
    fn what_cannot_be_read_is_told_and_changes_nothing() {
        let gate = Answers::default();
        let unreadable = View { rendering: Err(("RankMapUnreadable", "a broken rank map".to_owned())), ..running() };
        let decision = step(&unreadable, &gate);
        assert_eq!((&decision.action, reason(&decision)), (&Action::Nothing, Some("RankMapUnreadable")));
    }
}
