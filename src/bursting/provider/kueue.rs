//! Bursts whose Job Kueue lets start. Pure.
//!
//! `import.queueName` puts a label on the Job of a hosted burst; where there is a LocalQueue `default`, Kueue itself does. Kueue
//! suspends the Job, and starts it when the owner's ClusterQueue has room; nobody asks Kueue for anything, and nothing of it is
//! read: a Job with that label that is suspended waits, as its MiniCluster says. What else admission looks at is looked at
//! before, and the room that was promised stays promised meanwhile.
//!
//! Kueue may suspend the Job again later. Then its brokers end, and the burst waits as before: its ranks and its certificate are
//! what they were.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use tributary_api::hosted_burst::{HostedBurst, HostedQueue, QueueStanding};
use tributary_api::labels::condition::READY;
use tributary_api::minicluster::Phase;
use tributary_api::peer::ImportPolicy;
use tributary_api::workload::reason::{JOB_HANDED_ON, JOB_QUEUED};
use tributary_cluster::conditions;
use tributary_contract::{DesiredBurst, PeerName, Rejection, RejectionReason};

use super::scale_up::Returned;
use super::slot::{SlotStep, SlotView};
use super::teardown;
use super::whole;
use crate::peers;
use crate::timing::later;

/// What is said of a burst that somebody suspended who is no queue.
pub(super) const HELD_BACK: &str = "its Job is suspended: somebody in this cluster holds it back";

/// Where the Job of a burst that is taken now waits.
pub(super) fn queue(import: Option<&ImportPolicy>) -> Option<HostedQueue> {
    let import = import?;
    let name = import.queue_name.clone().filter(|name| !name.is_empty())?;
    Some(HostedQueue { name, wait: import.queue_wait })
}

/// Whether its Job is suspended.
pub(super) fn is_suspended(view: &SlotView<'_>) -> bool {
    let status = view.mini_cluster.and_then(|mini_cluster| mini_cluster.status.as_ref());
    status.is_some_and(|status| status.phase == Some(Phase::Suspended))
}

/// What its MiniCluster says of a Job that is in a queue of Kueue and does not run here.
fn said<'a>(view: &SlotView<'a>) -> Option<&'a Condition> {
    let ready = conditions::find(&view.mini_cluster?.status.as_ref()?.conditions, READY)?;
    [JOB_QUEUED, JOB_HANDED_ON].contains(&ready.reason.as_str()).then_some(ready)
}

/// Whether Kueue gives its Job to another cluster, where nothing of it can run.
pub(super) fn is_handed_on(view: &SlotView<'_>) -> bool {
    said(view).is_some_and(|said| said.reason == JOB_HANDED_ON)
}

/// Whether it waits for Kueue.
pub(super) fn waits(view: &SlotView<'_>, hosted: &HostedBurst) -> bool {
    said(view).is_some() || hosted.spec.queue.is_some() && is_suspended(view)
}

/// Where it stands now, by what is on record.
pub(super) fn standing(view: &SlotView<'_>, hosted: &HostedBurst) -> Option<QueueStanding> {
    let waits = waits(view, hosted);
    let known = hosted.status.as_ref().and_then(|status| status.queue.clone());
    if hosted.spec.queue.is_none() && known.is_none() && !waits {
        return None;
    }
    let known = known.unwrap_or_default();
    let phase = view.mini_cluster.and_then(|mini_cluster| mini_cluster.status.as_ref()?.phase);
    let now = || Some(Time(view.now.wall));
    let standing = match phase {
        _ if waits => QueueStanding { waits_since: known.waits_since.or_else(now), ..known },
        // What has no Job is neither in a queue nor let out of it.
        None | Some(Phase::Pending | Phase::Restarting | Phase::Refused | Phase::Suspended) => known,
        Some(_) if known.waits_since.is_some() => QueueStanding { waits_since: None, started: now() },
        Some(_) => known,
    };
    Some(standing)
}

/// From when on the pods of a burst that were `made` then can be anywhere: none are while it waits.
pub(super) fn runs_since(hosted: &HostedBurst, made: Timestamp) -> Option<Timestamp> {
    let Some(standing) = hosted.status.as_ref().and_then(|status| status.queue.as_ref()) else { return Some(made) };
    if standing.waits_since.is_some() {
        return None;
    }
    Some(standing.started.as_ref().map_or(made, |Time(started)| made.max(*started)))
}

/// Until when it may wait, if there is a limit.
fn until(hosted: &HostedBurst) -> Option<Timestamp> {
    let wait = hosted.spec.queue.as_ref()?.wait?;
    let Time(since) = hosted.status.as_ref()?.queue.as_ref()?.waits_since.clone()?;
    Some(later(since, wait.duration()))
}

/// Whether it has waited for too long. A run that was up has begun, and waits on.
pub(super) fn timed_out(view: &SlotView<'_>, hosted: &HostedBurst, step: &mut SlotStep) -> bool {
    let waits = waits(view, hosted) && !whole::was_up(hosted);
    let Some(until) = until(hosted).filter(|_| waits) else { return false };
    teardown::is_past(view, until, step)
}

/// What is said of one that waits.
pub(super) fn message(view: &SlotView<'_>, hosted: &HostedBurst) -> String {
    let until = until(hosted).map(|until| format!("; if it has not started by {until:.0}, it is given back"));
    let until = until.unwrap_or_default();
    let waits = match said(view) {
        Some(said) if said.reason == JOB_HANDED_ON => return format!("{}{until}", said.message),
        Some(said) => said.message.clone(),
        None => {
            let name = hosted.spec.queue.as_ref().map_or("", |queue| queue.name.as_str());
            format!("its Job waits in queue {name} of Kueue")
        }
    };
    format!("{waits}: {} brokers start when the ClusterQueue there has room{until}", hosted.spec.size)
}

/// A burst was given back: it is not taken again for as long.
pub(super) fn returned(view: &SlotView<'_>, peer: &PeerName, desired: &DesiredBurst) -> Returned {
    let import = peers::import(view.peers, peer);
    let wait = import.and_then(|import| import.queue_wait).unwrap_or_default();
    let again = later(view.now.wall, wait.duration()).strftime("%H:%M:%S UTC");
    let message = format!(
        "Kueue did not start its Job in time (import.queueWait of ClusterPeer {peer} is {wait}): it was given back, and is not \
         taken again before {again}"
    );
    let rejection = Rejection::new(RejectionReason::QueueTimedOut, message);
    Returned::of(view, peer, desired, wait.duration(), rejection)
}

/// Whether what was given back would wait again.
pub(super) fn would_wait(returned: &Returned, import: Option<&ImportPolicy>) -> bool {
    returned.rejection.reason == RejectionReason::QueueTimedOut && queue(import).is_some()
}
