//! Bursts of which no pod starts. Pure.
//!
//! Admission counts room, and others can take it first: pods of this cluster's own, pods of a higher priority, a
//! ResourceQuota. And a node may be unable to start a pod that it has: the image is not pulled, or a Secret that the
//! environment names is missing. Or there can be no pods, since the API server refuses an object that they need. What pods
//! lack is said at once. If no pod of a burst starts on any node for [`WAIT`], it is given back, so that its root can place it
//! elsewhere; nothing of it runs, so no job ends by that. What waits for Kueue or for nodes of its own has limits of its own.
//! The time is in memory only: a new leader counts anew.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use tributary_api::hosted_burst::HostedBurst;
use tributary_api::labels::{condition, reason};
use tributary_api::minicluster::{MiniClusterStatus, Phase};
use tributary_clock::Mono;
use tributary_cluster::conditions;
use tributary_contract::{DesiredBurst, PeerName, Rejection, RejectionReason};
use tributary_flux::Idset;

use super::kueue;
use super::memory::Memory;
use super::scale_up::{self, Returned};
use super::slot::{SlotStep, SlotView};
use super::sync;
use super::teardown::{self, Reason};
use super::whole;
use crate::nodes::PodView;
use crate::timing::later;

/// How long a burst may be without a pod that starts. Kubernetes waits as long, at most, before it makes lost pods again.
pub(super) const WAIT: Duration = Duration::from_secs(600);

/// A burst without a pod that starts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct NotStarted {
    since: Mono,
    /// When it is given back.
    until: Timestamp,
}

/// Whether pods are wanted and none is on a node that starts it, though they wait for nothing that has a limit of its own.
fn is_not_started(view: &SlotView<'_>, hosted: &HostedBurst, memory: &Memory) -> bool {
    let phase = status(view).and_then(|status| status.phase);
    // A run that was up has begun, and waits on.
    let over = matches!(phase, Some(Phase::Succeeded | Phase::Failed)) || hosted.has_ended() || whole::was_up(hosted);
    let queued = kueue::is_suspended(view) && !kueue::is_handed_on(view);
    let elsewhere = queued || scale_up::waits(view, hosted);
    let starts = |pod: &PodView| pod.node.is_some() && !pod.finished && pod.start_failure.is_none();
    let here = sync::ready(view) > 0 || view.pods.iter().any(starts);
    let waits = start_failure(view, hosted).is_some() || !scale_up::waiting(view, hosted).is_empty();
    let waits = status(view).is_some() && !elsewhere && waits;
    !over && !here && (waits || refused(view, memory).is_some())
}

/// Why no MiniCluster can be made: the API server said no to something that it needs when this leader last tried.
pub(super) fn refused(view: &SlotView<'_>, memory: &Memory) -> Option<String> {
    if view.mini_cluster.is_some() {
        return None;
    }
    let unmade = memory.unmade.as_ref().filter(|refused| refused.lasts).map(|refused| &refused.why);
    let why = unmade.or_else(|| memory.unkept.as_ref().map(|unkept| &unkept.why))?;
    Some(format!("it cannot be made: {why}"))
}

fn status<'a>(view: &SlotView<'a>) -> Option<&'a MiniClusterStatus> {
    view.mini_cluster?.status.as_ref()
}

/// Why a burst is given back that has had no pod that starts for too long.
pub(super) fn timed_out(view: &SlotView<'_>, hosted: &HostedBurst, step: &mut SlotStep) -> Option<Reason> {
    if !is_not_started(view, hosted, &step.memory) {
        step.memory.not_started = None;
        return None;
    }
    let wait = wait(hosted);
    let first = || NotStarted { since: view.now.mono, until: later(view.now.wall, wait) };
    let since = step.memory.not_started.get_or_insert_with(first).since;
    let left = wait.saturating_sub(view.now.mono.saturating_since(since));
    if !left.is_zero() {
        teardown::wake(step, left);
    }
    let reason = if start_failure(view, hosted).is_some() { Reason::PodsNotStarted } else { Reason::PodsNotScheduled };
    left.is_zero().then_some(reason)
}

/// An autoscaler that brought the nodes of a burst once has as long to bring them again.
fn wait(hosted: &HostedBurst) -> Duration {
    hosted.spec.scale_up.as_ref().map_or(WAIT, |scale_up| scale_up.wait.duration().max(WAIT))
}

/// Which pods their nodes do not start, and why.
fn start_failure(view: &SlotView<'_>, hosted: &HostedBurst) -> Option<String> {
    let failing = || view.pods.iter().filter(|pod| pod.start_failure.is_some() && !pod.finished && !pod.terminating);
    let why = failing().min_by_key(|pod| pod.index)?.start_failure.as_ref()?;
    let indexes: Idset = failing().filter_map(|pod| pod.index).collect();
    Some(format!("{} of {} pods (index {indexes}) do not start: {why}", indexes.iter().count(), hosted.spec.size))
}

/// What pods lack that are not made, not bound or not started; `None` if nothing is known of that.
pub(super) fn message(view: &SlotView<'_>, hosted: &HostedBurst, step: &SlotStep) -> Option<String> {
    let until =
        step.memory.not_started.map(|known| format!("; if none starts by {:.0}, it is given back", known.until));
    Some(lack(view, hosted)? + &until.unwrap_or_default())
}

/// The same without what comes of it.
pub(super) fn lack(view: &SlotView<'_>, hosted: &HostedBurst) -> Option<String> {
    let status = status(view)?;
    let is_told = |ready: &&Condition| {
        status.phase == Some(Phase::Refused) || ready.status == "False" && ready.reason == reason::PODS_NOT_MADE
    };
    if let Some(told) = conditions::find(&status.conditions, condition::READY).filter(is_told) {
        return Some(told.message.clone());
    }
    let homeless = view.pods.iter().filter(|pod| pod.unschedulable && pod.node.is_none());
    let indexes: Idset = homeless.filter(|pod| !pod.finished && !pod.terminating).filter_map(|pod| pod.index).collect();
    let unbound = (!indexes.is_empty()).then(|| {
        format!(
            "the scheduler finds no node for {} of {} pods (index {indexes}): others have taken the room, or no node fits",
            indexes.iter().count(),
            hosted.spec.size
        )
    });
    let all: Vec<String> = unbound.into_iter().chain(start_failure(view, hosted)).collect();
    (!all.is_empty()).then(|| all.join("; "))
}

/// A burst was given back: it is not taken again for a while, also where room is counted. `why`: what its pods lacked.
pub(super) fn returned(
    view: &SlotView<'_>,
    peer: &PeerName,
    desired: &DesiredBurst,
    (reason, why): (Reason, Option<&str>),
) -> Returned {
    let again = later(view.now.wall, WAIT).strftime("%H:%M:%S UTC");
    let (word, what) = match reason {
        Reason::PodsNotStarted => (RejectionReason::PodsNotStarted, "started"),
        _ => (RejectionReason::PodsNotScheduled, "was on a node"),
    };
    let lasted = view.hosted.map_or(WAIT, wait).as_secs() / 60;
    let why = why.map(|why| format!(" ({why})")).unwrap_or_default();
    let message = format!(
        "no pod of it {what} for {lasted} minutes{why}: it was given back, and is not taken again before {again}"
    );
    Returned::of(view, peer, desired, WAIT, Rejection::new(word, message))
}

/// Whether what was given back would wait again, as far as anybody knows: room that is counted is what it had before.
pub(super) fn would_wait(returned: &Returned) -> bool {
    matches!(returned.rejection.reason, RejectionReason::PodsNotScheduled | RejectionReason::PodsNotStarted)
}
