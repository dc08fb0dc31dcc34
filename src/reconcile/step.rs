//! The decision about one MiniCluster: pure, and whole. Nobody changes it afterwards.
//!
//! [`decide`] says what spec and Job ask for; each action then has one function here, with everything that may hold it up.

use std::time::Duration;

use kube::ResourceExt;
use tributary_api::burst::Burst;
use tributary_api::hosted_burst::BurstPhase;
use tributary_api::labels::{self, condition};
use tributary_cluster::conditions;

use super::SETTLING;
use super::allowance::Allowance;
use super::decide::{Action, Decision, decide};
use super::observe::View;
use super::quota_gate::QuotaGate;

/// Until a deadline that was not allowed is looked at again: nobody tells when more is.
const DEADLINE_RETRY: Duration = Duration::from_secs(60);

/// How often a pod that holds up the next instance is looked at, besides its own changes.
const LINGERING_RETRY: Duration = Duration::from_secs(5);

/// Why a MiniCluster of a burst gets no Job before its burst was looked at.
const UNDECIDED: &str = "BurstUndecided";

/// How often it is asked whether the burst goes on.
const UNDECIDED_RETRY: Duration = Duration::from_secs(1);

/// Decides what is done and told.
pub fn step(view: &View, gate: &dyn QuotaGate) -> Decision {
    if view.awaits_exit {
        return Decision::later(SETTLING);
    }
    let rendering = match &view.rendering {
        Ok(rendering) => rendering,
        Err(sentence) => return Decision::waits("RankMapUnreadable", sentence),
    };
    let frozen = match &view.frozen {
        Ok(frozen) => frozen.as_deref(),
        // The error is told as one of carrying out.
        Err(_) => return Decision::of(Action::Nothing),
    };
    let decision = decide(&view.known, rendering, frozen, view.running());
    let expiry = expiry(view);
    if expiry == Some(Duration::ZERO) {
        return Decision { action: Action::CleanUp, ..decision };
    }
    let decision = match &decision.action {
        Action::Create => start(view, gate, decision),
        Action::Maintain(_) => maintain(view, gate, decision),
        Action::Restart => restart(view, decision),
        Action::Nothing | Action::Later | Action::RemoveVolumes | Action::CleanUp => decision,
    };
    let deadline = decision.deadline.told.is_some().then_some(DEADLINE_RETRY);
    decision.and_again(expiry).and_again(deadline)
}

/// A new instance, as soon as nothing is in its way.
fn start(view: &View, gate: &dyn QuotaGate, decision: Decision) -> Decision {
    let known = &view.known;
    if let Some(pod) = &view.lingering {
        let sentence =
            format!("pod {pod} of the last instance has not ended yet; it has the host name of the next one");
        return Decision::waits("Restarting", sentence).and_again(Some(LINGERING_RETRY));
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
    if known.hosted.is_none() && !view.settling && decision.growth(known).is_some() {
        let has = known.job.facts().map(|facts| facts.parallelism);
        // The rest of the change need not wait with it.
        if let Err(sentence) = gate.may_start(&known.mini_cluster, has, view.now.wall) {
            decision.does_not_grow(sentence);
        }
    }
    let decision = decision.within(known, allowance(view, gate));
    if view.settling {
        return Decision { action: Action::Nothing, ..decision }.and_again(Some(SETTLING));
    }
    decision
}

/// The end of an instance, once its bursts are released or their time for that is over. They are told by the phase of the
/// status.
fn restart(view: &View, decision: Decision) -> Decision {
    if view.settling {
        return Decision::later(SETTLING);
    }
    let held = |burst: &&Burst| {
        let status = burst.status.as_ref();
        status.is_some_and(|status| status.peer.is_some() && status.phase != BurstPhase::Released)
    };
    let drain = view.known.bursts.iter().filter(held).map(|burst| u64::from(burst.spec.drain.unsigned())).max();
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
fn expiry(view: &View) -> Option<Duration> {
    let known = &view.known;
    let ttl = known.mini_cluster.spec.ttl_seconds_after_finished?;
    let finished = conditions::find(&known.mini_cluster.status.as_ref()?.conditions, condition::FINISHED)?;
    if finished.status != "True" || known.hosted.is_some() {
        return None;
    }
    let due = finished.last_transition_time.0 + jiff::SignedDuration::from_secs(ttl.into());
    Some(Duration::try_from(due.duration_since(view.now.wall)).unwrap_or_default())
}
