//! Keeping a whole instance: a hosted burst that is all of a Flux instance, and ends by itself. Pure.
//!
//! There is no lead broker to reach and no certificate to fetch: what is asked for is the root's leave to start, which it
//! records before it gives it, as it does with certificates. So nothing runs here that the root does not know of, and two
//! peers that both accepted never run the same job.
//!
//! A time limit of the policy ends it like one of its own: it has failed.
//!
//! Once it has ended it is no burst any more: it takes no room, no lease ends it and nothing of it is made again. It is kept,
//! with its pods for their logs, until its root wants it gone, or newer results take its place (see `results`); a root that does
//! not come back is waited for [`KEPT`].

use std::borrow::Cow;
use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use tributary_api::hosted_burst::{BurstPhase, BurstRun, HostedBurst, HostedBurstStatus};
use tributary_api::labels::condition;
use tributary_api::minicluster::{MiniCluster, Phase};
use tributary_cluster::caches::controller_uid;
use tributary_cluster::conditions;

use super::lease::Lease;
use super::materialize;
use super::provisioning;
use super::slot::{Change, ClaimKey, SlotStep, SlotView, Wanted};
use super::sync::{self, Certified, Saying, Told};
use super::teardown::{self, Reason, wake_for};
use crate::note::Note;
use crate::peers;

/// How long the result of an instance is kept for a root that is out of contact, counted from the loss.
pub(super) const KEPT: Duration = Duration::from_secs(24 * 3600);

/// What agents that gave no reason said of a run whose time was up. Not to be changed with what is said now.
const TIME_WAS_UP: &str = "it was here for as long as import.maxDuration allows";

/// Brings a whole instance to where its root wants it.
pub(super) fn keep(
    view: &SlotView<'_>,
    hosted: &HostedBurst,
    holder: &ClaimKey,
    claim: Option<&Wanted>,
    step: &mut SlotStep,
) {
    let hosted = match claim {
        Some(Wanted::Burst(desired)) => sync::follow(view, hosted, desired, step),
        _ => Cow::Borrowed(hosted),
    };
    let hosted = &*hosted;
    let run = run(view, hosted).map(|run| in_time(view, hosted, holder, run, step));
    stop(view, hosted, step);
    let ended = run.as_ref().is_some_and(BurstRun::has_ended);
    let (status, trouble) = if ended {
        // Its nodes are free.
        provisioning::clear(hosted, step);
        (hosted.status.clone().unwrap_or_default(), String::new())
    } else {
        let certificate = sync::certify(view, hosted, holder, step);
        let ready = certificate == Certified::Sure;
        let nodes = provisioning::attend(view, hosted, ready, step);
        let with_brokers = view.mini_cluster.is_some() || ready && !nodes.hold;
        let import = peers::import(view.peers, &holder.0);
        let trouble = match materialize::materials(hosted, &[], with_brokers, import) {
            Ok(materials) => {
                step.changes.push(Change::Materialize(Box::new(materials)));
                sync::refused(step).unwrap_or_default()
            }
            Err(message) => format!("it cannot be made: {message}"),
        };
        let lease = sync::lease(view, hosted, holder);
        wake_for(lease, step);
        (sync::status(view, hosted, certificate != Certified::No, (nodes, lease), &trouble, step), trouble)
    };
    let status = match run {
        Some(run) if ended => {
            let lease = waits(view, hosted, holder);
            wake_for(lease, step);
            let suspect_since = sync::suspect_since(lease, &status);
            finished(view, hosted, HostedBurstStatus { suspect_since, ..status }, run, step)
        }
        run => HostedBurstStatus { run, message: said(&status, &trouble), ..status },
    };
    let status = sync::with_conditions(status, view, hosted, step);
    let answer = Saying { hosted, status: &status, phase: status.phase, told: Told::default() }.answer(view);
    step.answers.insert(holder.clone(), answer.into());
    step.changes.push(Change::Status(Box::new(status)));
}

/// How long its result still waits for a root that is out of contact. It counts from the loss, like any lease: how long ago
/// the run ended says nothing, and a moment's silence is no loss.
fn waits(view: &SlotView<'_>, hosted: &HostedBurst, holder: &ClaimKey) -> Lease {
    sync::lease_of(KEPT, view, hosted, holder)
}

/// Whether an instance that has ended was waited for long enough, without a word of its root.
pub(super) fn is_forgotten(view: &SlotView<'_>, hosted: &HostedBurst, holder: &ClaimKey) -> bool {
    matches!(waits(view, hosted, holder), Lease::Expired { .. })
}

/// How it fares. What once has ended has ended, whatever becomes of its MiniCluster.
fn run(view: &SlotView<'_>, hosted: &HostedBurst) -> Option<BurstRun> {
    let known = hosted.status.as_ref().and_then(|status| status.run.clone());
    if known.as_ref().is_some_and(BurstRun::has_ended) {
        return known;
    }
    let Some(found) = view.mini_cluster.filter(|found| is_ours(found, hosted)) else { return known };
    let started = known.is_some_and(|known| known.started);
    let status = found.status.clone().unwrap_or_default();
    let over = |succeeded, otherwise: &str| {
        let finished = conditions::find(&status.conditions, condition::FINISHED);
        let (reason, message) =
            finished.map(|condition| (condition.reason.clone(), condition.message.clone())).unwrap_or_default();
        // That there is a reason tells it from what an older agent has written.
        (Some(succeeded), if reason.is_empty() { otherwise.to_owned() } else { reason }, message)
    };
    let (succeeded, reason, message) = match status.phase {
        Some(Phase::Succeeded) => over(true, "Succeeded"),
        Some(Phase::Failed) => over(false, "Failed"),
        Some(Phase::Refused) => (None, String::new(), refused(found)),
        _ => (None, String::new(), String::new()),
    };
    Some(BurstRun {
        namespace: hosted.metadata.namespace.clone().unwrap_or_default(),
        mini_cluster: hosted.spec.slot.clone(),
        started: started || status.phase == Some(Phase::Running) || succeeded == Some(true),
        exit_code: status.exit_code.filter(|_| succeeded.is_some()),
        ended: succeeded.map(|_| Time(view.now.wall)),
        succeeded,
        reason,
        message,
        logs_gone: false,
    })
}

/// Whether all its brokers were up once, as far as that is on record.
pub(super) fn was_up(hosted: &HostedBurst) -> bool {
    hosted.status.as_ref().and_then(|status| status.run.as_ref()).is_some_and(|run| run.started)
}

/// A run that is up for as long as the policy of its peer allows has failed, as at any time limit: if it were thrown out, its
/// root would have it begin anew elsewhere, and there as well.
fn in_time(
    view: &SlotView<'_>,
    hosted: &HostedBurst,
    holder: &ClaimKey,
    run: BurstRun,
    step: &mut SlotStep,
) -> BurstRun {
    if !was_up(hosted) || run.has_ended() || !teardown::too_long(view, hosted, holder, step) {
        return run;
    }
    let (reason, message) = (Reason::TimeLimit.as_str().to_owned(), Reason::TimeLimit.message().to_owned());
    BurstRun { succeeded: Some(false), ended: Some(Time(view.now.wall)), reason, message, ..run }
}

/// Whether a run has ended because its time was up.
fn was_cut_short(run: &BurstRun) -> bool {
    run.has_ended() && (run.reason == Reason::TimeLimit.as_str() || run.reason.is_empty() && run.message == TIME_WAS_UP)
}

/// Nothing runs on whose time is up, by its record. What has ended by itself stays, for its logs: a cache may be behind.
fn stop(view: &SlotView<'_>, hosted: &HostedBurst, step: &mut SlotStep) {
    let run = hosted.status.as_ref().and_then(|status| status.run.as_ref());
    if !run.is_some_and(was_cut_short) {
        return;
    }
    let Some(found) = view.mini_cluster.filter(|found| is_ours(found, hosted)) else { return };
    let phase = found.status.as_ref().and_then(|status| status.phase);
    let over = matches!(phase, Some(Phase::Succeeded | Phase::Failed));
    if !over && found.metadata.deletion_timestamp.is_none() {
        step.changes.push(Change::DeleteMiniCluster { uid: found.metadata.uid.clone().unwrap_or_default() });
    }
}

fn is_ours(found: &MiniCluster, hosted: &HostedBurst) -> bool {
    let uid = hosted.metadata.uid.as_deref();
    uid.is_some() && controller_uid(found) == uid
}

/// Why its MiniCluster cannot be carried out.
fn refused(found: &MiniCluster) -> String {
    let conditions = found.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
    let valid = conditions::find(conditions, condition::VALID);
    format!("its MiniCluster is refused: {}", valid.map_or("", |condition| &condition.message))
}

fn said(status: &HostedBurstStatus, trouble: &str) -> String {
    match status.phase {
        BurstPhase::Ready if trouble.is_empty() && !status.simulated => "its instance is up".into(),
        _ => status.message.clone(),
    }
}

fn finished(
    view: &SlotView<'_>,
    hosted: &HostedBurst,
    status: HostedBurstStatus,
    run: BurstRun,
    step: &mut SlotStep,
) -> HostedBurstStatus {
    let how = match (run.succeeded, run.exit_code) {
        (Some(true), _) => "it ended well".to_owned(),
        (_, Some(code)) => format!("it failed with exit code {code}"),
        (_, None) => format!("it failed: {}", run.message),
    };
    if !hosted.has_ended() {
        step.notes.push(Note::normal("Finished", how.clone()));
    }
    let logs_gone = hosted.has_ended() && !view.mini_cluster.is_some_and(|found| is_ours(found, hosted));
    HostedBurstStatus {
        phase: BurstPhase::Finished,
        message: how,
        ready_brokers: 0,
        observed_generation: hosted.metadata.generation,
        simulated: sync::is_simulated(view),
        run: Some(BurstRun { logs_gone, ..run }),
        ..status
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_of_an_instance_that_is_up() {
        let status = |phase| HostedBurstStatus { phase, message: "as it was".into(), ..HostedBurstStatus::default() };
        assert_eq!(said(&status(BurstPhase::Ready), ""), "its instance is up");
        assert_eq!(said(&status(BurstPhase::Joining), ""), "as it was");
    }
}
