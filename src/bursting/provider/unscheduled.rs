//! Bursts whose pods are on no node. Pure.
//!
//! Admission counts room, and others can take it first: pods of this cluster's own, pods of a higher priority, a
//! ResourceQuota. What pods lack is said at once. A burst that has no pod on any node for [`WAIT`] is given back, so that its
//! root can place it elsewhere; nothing of it runs, so no job ends by that. What waits for Kueue or for nodes of its own has
//! limits of its own. The time is in memory only: a new leader counts anew.

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
use super::scale_up::{self, Returned};
use super::slot::{SlotStep, SlotView};
use super::sync;
use super::teardown;
use super::whole;
use crate::timing::later;

/// How long a burst may be without a pod on a node. Kubernetes waits as long, at most, before it makes lost pods again.
pub(super) const WAIT: Duration = Duration::from_secs(600);

/// A burst without a pod on a node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Unscheduled {
    since: Mono,
    /// When it is given back.
    until: Timestamp,
}

/// Whether pods are wanted and none is on a node, though they wait for nothing that has a limit of its own.
fn is_unscheduled(view: &SlotView<'_>, hosted: &HostedBurst) -> bool {
    let Some(phase) = status(view).map(|status| status.phase) else { return false };
    // A run that was up has begun, and waits on.
    let over = matches!(phase, Some(Phase::Succeeded | Phase::Failed)) || hosted.has_ended() || whole::was_up(hosted);
    let elsewhere = kueue::is_suspended(view) || scale_up::waits(view, hosted);
    let here = sync::ready(view) > 0 || view.pods.iter().any(|pod| pod.node.is_some() && !pod.finished);
    !over && !elsewhere && !here && !scale_up::waiting(view, hosted).is_empty()
}

fn status<'a>(view: &SlotView<'a>) -> Option<&'a MiniClusterStatus> {
    view.mini_cluster?.status.as_ref()
}

/// Whether a burst has had no pod on a node for too long.
pub(super) fn timed_out(view: &SlotView<'_>, hosted: &HostedBurst, step: &mut SlotStep) -> bool {
    if !is_unscheduled(view, hosted) {
        step.memory.unscheduled = None;
        return false;
    }
    // An autoscaler that brought its nodes once has as long to bring them again.
    let wait = hosted.spec.scale_up.as_ref().map_or(WAIT, |scale_up| scale_up.wait.duration().max(WAIT));
    let first = || Unscheduled { since: view.now.mono, until: later(view.now.wall, wait) };
    let since = step.memory.unscheduled.get_or_insert_with(first).since;
    let left = wait.saturating_sub(view.now.mono.saturating_since(since));
    if !left.is_zero() {
        teardown::wake(step, left);
    }
    left.is_zero()
}

/// What pods lack that are not made, or not bound; `None` if nothing is known of that.
pub(super) fn message(view: &SlotView<'_>, hosted: &HostedBurst, step: &SlotStep) -> Option<String> {
    let status = status(view)?;
    let is_told = |ready: &&Condition| {
        status.phase == Some(Phase::Refused) || ready.status == "False" && ready.reason == reason::PODS_NOT_MADE
    };
    let lacks = if let Some(told) = conditions::find(&status.conditions, condition::READY).filter(is_told) {
        told.message.clone()
    } else {
        let homeless = view.pods.iter().filter(|pod| pod.unschedulable && pod.node.is_none());
        let indexes: Idset =
            homeless.filter(|pod| !pod.finished && !pod.terminating).filter_map(|pod| pod.index).collect();
        if indexes.is_empty() {
            return None;
        }
        format!(
            "the scheduler finds no node for {} of {} pods (index {indexes}): others have taken the room, or no node fits",
            indexes.iter().count(),
            hosted.spec.size
        )
    };
    let until =
        step.memory.unscheduled.map(|known| format!("; if none is on a node by {:.0}, it is given back", known.until));
    Some(lacks + &until.unwrap_or_default())
}

/// A burst was given back: it is not taken again for a while, also where room is counted.
pub(super) fn returned(view: &SlotView<'_>, peer: &PeerName, desired: &DesiredBurst) -> Returned {
    let again = later(view.now.wall, WAIT).strftime("%H:%M:%S UTC");
    let message = format!(
        "no pod of it was on a node for {} minutes: it was given back, and is not taken again before {again}",
        WAIT.as_secs() / 60
    );
    Returned::of(view, peer, desired, WAIT, Rejection::new(RejectionReason::PodsNotScheduled, message))
}

/// Whether what was given back would wait again, as far as anybody knows: room that is counted is what it had before.
pub(super) fn would_wait(returned: &Returned) -> bool {
    returned.rejection.reason == RejectionReason::PodsNotScheduled
}
