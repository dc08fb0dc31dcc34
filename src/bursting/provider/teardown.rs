//! How a hosted burst ends: why, and in which order. Pure.
//!
//! The brokers go first, and the HostedBurst only when nothing of them runs any more: its presence keeps the name. One that we
//! end for a reason of our own stays until its root has heard that: without it, nobody could tell this from an eviction.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, Time};
use tributary_api::budget::Usage;
use tributary_api::hosted_burst::{BurstPhase, HostedBurst, HostedBurstStatus, is_hosted};
use tributary_api::labels::condition;
use tributary_cluster::conditions;
use tributary_contract::{DesiredBurst, RejectionReason};

use super::kueue;
use super::lease::Lease;
use super::left;
use super::memory::Memory;
use super::not_started;
use super::provisioning;
use super::scale_up;
use super::slot::{self, Change, ClaimKey, SlotStep, SlotView, Wanted, holder, is_same_instance, is_successor};
use super::sync::{self, Saying, Told};
use super::whole;
use crate::note::Note;
use crate::timing::elapsed;

/// Between two looks at what is on its way out: Jobs are not watched here.
const LOOK_AGAIN: Duration = Duration::from_secs(1);
/// The same where somebody has to take it away.
const LOOK_SELDOM: Duration = Duration::from_secs(15);

/// Before the reason in the message of a burst that ends.
const LEAVING: &str = "leaving: ";

macro_rules! reasons {
    ($($name:ident => $message:literal,)*) => {
        /// Why a burst ends.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub enum Reason {
            $(#[doc = $message] $name,)*
        }

        impl Reason {
            /// All reasons.
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];

            /// The word in `status.drainingReason`.
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$name => stringify!($name),)*
                }
            }

            /// The same as half a sentence.
            pub(super) const fn message(self) -> &'static str {
                match self {
                    $(Self::$name => $message,)*
                }
            }
        }
    };
}

reasons! {
    Released => "the root released it",
    Replaced => "the root was made anew",
    LeaseExpired => "the root was out of contact until the lease ran out",
    TimeLimit => "it was here for as long as import.maxDuration allows",
    PeerDrained => "the owner of this cluster drains the peer",
    ImportWithdrawn => "the peer may place nothing here any more: its ClusterPeer has no import",
    TooManyResults => "it has ended, and newer results of its peer take its place",
    NameTaken => "an object of somebody else has a name here that it needs",
    ScaleUpTimedOut => "not all of its pods got nodes in time (import.scaleUp.wait): it is given back",
    ScaleUpFailed => "no nodes are provisioned for it: it is given back",
    QueueTimedOut => "Kueue did not start its Job in time (import.queueWait): it is given back",
    PodsNotScheduled => "none of its pods was on a node for too long: it is given back",
    PodsNotStarted => "no node started one of its pods for too long: it is given back",
}

impl Reason {
    /// Whether it is given back: it is refused from then on, and placed elsewhere.
    pub(super) const fn gives_back(self) -> bool {
        matches!(
            self,
            Self::ScaleUpTimedOut
                | Self::ScaleUpFailed
                | Self::QueueTimedOut
                | Self::PodsNotScheduled
                | Self::PodsNotStarted
        )
    }

    /// Whether the root has said so, or was away for too long to hear of it.
    const fn is_of_the_root(self) -> bool {
        matches!(self, Self::Released | Self::Replaced | Self::LeaseExpired)
    }

    /// An unknown word counts as a release.
    fn parse(word: &str) -> Self {
        Self::ALL.iter().copied().find(|reason| reason.as_str() == word).unwrap_or(Self::Released)
    }
}

/// Whether a burst ends, and why. What once began to end goes on ending.
pub(super) fn reason(
    view: &SlotView<'_>,
    hosted: &HostedBurst,
    holder: &ClaimKey,
    claim: Option<&Wanted>,
    step: &mut SlotStep,
) -> Option<Reason> {
    if let Some(status) = hosted.status.as_ref().filter(|status| status.draining_since.is_some()) {
        return Some(Reason::parse(status.draining_reason.as_deref().unwrap_or_default()));
    }
    // What was wanted in an earlier session may be what this burst has replaced.
    let successor = |(key, wanted): (&ClaimKey, &Wanted)| match wanted {
        Wanted::Burst(desired) => {
            view.listed.lists(&key.0, &key.1) == Some(true) && is_successor(hosted, &key.0, desired)
        }
        Wanted::Tombstone => false,
    };
    match claim {
        Some(Wanted::Tombstone) => return Some(Reason::Released),
        Some(Wanted::Burst(desired)) if !is_same_instance(hosted, desired) => return Some(Reason::Replaced),
        _ => {}
    }
    if view.claims.iter().any(successor) {
        return Some(Reason::Replaced);
    }
    if absent(view, holder, step) {
        return Some(Reason::Released);
    }
    if view.peers.get(&holder.0).is_some_and(|peer| peer.draining) {
        return Some(Reason::PeerDrained);
    }
    if hosted.has_ended() {
        // Its result waits for its root.
        return match whole::is_forgotten(view, hosted, holder) {
            true => Some(Reason::LeaseExpired),
            false => view.surplus.then_some(Reason::TooManyResults),
        };
    }
    // Brokers that run are led where they were led.
    let withdrawn = view.peers.get(&holder.0).is_some_and(|peer| peer.import.is_none());
    if withdrawn && view.mini_cluster.is_none() && !whole::was_up(hosted) {
        return Some(Reason::ImportWithdrawn);
    }
    if taken(view, step).is_some() {
        return Some(Reason::NameTaken);
    }
    if scale_up::timed_out(view, hosted, step) {
        return Some(Reason::ScaleUpTimedOut);
    }
    if kueue::timed_out(view, hosted, step) {
        return Some(Reason::QueueTimedOut);
    }
    if provisioning::failure(view, hosted).is_some() {
        return Some(Reason::ScaleUpFailed);
    }
    if let Some(reason) = not_started::timed_out(view, hosted, step) {
        return Some(reason);
    }
    // A run that was up has an end of its own at its limit.
    if !whole::was_up(hosted) && too_long(view, hosted, holder, step) {
        return Some(Reason::TimeLimit);
    }
    let expired = matches!(sync::lease(view, hosted, holder), Lease::Expired { .. });
    (expired || view.before.has_lapsed(hosted)).then_some(Reason::LeaseExpired)
}

/// Which name that a burst needs is another's: as we, or who makes the brokers of its MiniCluster, were told.
fn taken(view: &SlotView<'_>, step: &SlotStep) -> Option<String> {
    if let Some(taken) = &step.memory.taken {
        return Some(taken.sentence());
    }
    let ours = view.mini_cluster.filter(|mini_cluster| is_hosted(*mini_cluster))?;
    let ready = conditions::find(&ours.status.as_ref()?.conditions, condition::READY)?;
    (ready.status == "False" && ready.reason == RejectionReason::NameTaken.as_str()).then(|| ready.message.clone())
}

/// Whether the root's complete snapshots have not named the burst for the grace period, in contact all the while.
fn absent(view: &SlotView<'_>, (peer, uid): &ClaimKey, step: &mut SlotStep) -> bool {
    let in_contact = view.contacts.away(peer, view.now.mono).is_none();
    let missing = in_contact && view.listed.lists(peer, uid) == Some(false);
    if !missing {
        step.memory.absent_since = None;
        return false;
    }
    let since = *step.memory.absent_since.get_or_insert(view.now.mono);
    let lasted = view.now.mono.saturating_since(since);
    let left = view.grace.saturating_sub(lasted);
    if !left.is_zero() {
        wake(step, left);
    }
    left.is_zero()
}

/// Whether the burst was here for as long as the policy of its peer allows, on this cluster's clock.
pub(super) fn too_long(view: &SlotView<'_>, hosted: &HostedBurst, (peer, _): &ClaimKey, step: &mut SlotStep) -> bool {
    // An import that was taken away lifts no limit.
    let limit = view.peers.get(peer).and_then(|peer| match &peer.import {
        Some(import) => import.max_duration,
        None => hosted.spec.max_duration,
    });
    let (Some(limit), Some(Time(since))) = (limit, &hosted.metadata.creation_timestamp) else { return false };
    // While it waits for Kueue, none of it is here.
    let Some(since) = kueue::runs_since(hosted, *since) else { return false };
    // A run was let in for as long as it may take: what it waited for before is not of that.
    let times = hosted.status.as_ref().and_then(|status| status.times.as_ref()).filter(|_| whole::was_up(hosted));
    let since = times.and_then(|times| times.started.as_ref()).map_or(since, |MicroTime(started)| since.max(*started));
    let limit = Duration::from_secs(u64::try_from(limit.seconds).unwrap_or(0));
    let left = limit.saturating_sub(elapsed(since, view.now.wall));
    if !left.is_zero() {
        wake(step, left);
    }
    left.is_zero()
}

/// Drains a burst: brokers, then their Job, then the HostedBurst. The brokers themselves drain in Flux, as far as their
/// lead is reached, in the time their pods get to end: nothing is waited for before that, since the root counts on it.
pub(super) fn drain(view: &SlotView<'_>, hosted: &HostedBurst, reason: Reason, step: &mut SlotStep) {
    let old = hosted.status.clone().unwrap_or_default();
    let since = old.draining_since.clone().unwrap_or(Time(view.now.wall));
    let begins = old.draining_since.is_none();
    let provisioning = provisioning::failure(view, hosted).or_else(|| old.provisioning.clone());
    let words = match (reason, &provisioning) {
        (Reason::NameTaken, _) => taken(view, step),
        (Reason::ScaleUpFailed, Some(said)) => {
            Some(format!("{}: it is given back", provisioning::sentence(hosted, said)))
        }
        (Reason::PodsNotStarted, _) if begins => not_started::lack(view, hosted),
        (Reason::PodsNotScheduled, _) if begins => not_started::refused(view, &step.memory),
        _ => None,
    };
    let stays = step.memory.stuck.as_ref().map(|what| format!("; {what} does not go by itself")).unwrap_or_default();
    let message = format!("{LEAVING}{}{stays}", words.as_deref().unwrap_or(reason.message()));
    if begins {
        let ends = format!("it ends: {}", words.as_deref().unwrap_or(reason.message()));
        step.notes.push(match reason {
            _ if reason == Reason::NameTaken || reason.gives_back() => Note::warning(reason.as_str(), ends),
            _ => Note::normal(reason.as_str(), ends),
        });
    }
    let status = HostedBurstStatus {
        phase: BurstPhase::Draining,
        // Later, only what is recorded says which name it was, or what its pods lacked.
        message: match reason {
            Reason::NameTaken if words.is_none() && !begins => old.message.clone(),
            _ if last_word(hosted, reason).is_some() => old.message.clone(),
            _ => message,
        },
        ready_brokers: if hosted.has_ended() { 0 } else { sync::ready(view) },
        draining_since: Some(since),
        draining_reason: Some(reason.as_str().into()),
        observed_generation: hosted.metadata.generation,
        provisioning,
        ..old
    };
    let said = Saying { hosted, status: &status, phase: BurstPhase::Draining, told: Told::default() };
    step.answers.insert(holder(hosted), said.answer(view).into());
    // Why it ends is stored before anything of it goes: a restarted agent must not take it for an eviction.
    let status = sync::with_conditions(status, view, hosted, step);
    step.changes.push(Change::Status(Box::new(status)));
    let recorded = hosted.status.as_ref().is_some_and(|status| status.draining_since.is_some());
    if !recorded {
        return;
    }
    if !view.warmers.is_empty() {
        step.changes.push(Change::EndWarmUp);
    }
    // An autoscaler must not go on for a burst that is placed elsewhere.
    let no_request = provisioning::clear(hosted, step);
    if clear(view, step) && no_request && hosted.metadata.deletion_timestamp.is_none() {
        // The root of a run that has ended has its result, and hears no more.
        if let Some(desired) = wanted(view, hosted).filter(|_| !reason.is_of_the_root() && !hosted.has_ended()) {
            if is_unheard(view, hosted, desired, step) {
                uses_nothing(view, step);
                step.memory.ended(hosted, reason);
                let said = slot::past(view, &holder(hosted), desired, step);
                step.answers.extend(said.map(|said| (holder(hosted), said.into())));
                return;
            }
            // What is on offer now is another one.
            let message = "an earlier burst of this name is leaving";
            step.answers.insert(holder(hosted), slot::observed(desired, BurstPhase::Draining, message).into());
        }
        step.memory.ended(hosted, reason);
        step.notes.push(Note::normal("Ended", reason.message()));
        step.changes.push(Change::DeleteHosted { uid: hosted.metadata.uid.clone().unwrap_or_default() });
    }
}

/// What the pods of a burst lacked that was given back for it, as it is on record.
pub(super) fn last_word(hosted: &HostedBurst, reason: Reason) -> Option<String> {
    let of_pods = matches!(reason, Reason::PodsNotStarted | Reason::PodsNotScheduled);
    let status = hosted.status.as_ref().filter(|_| of_pods)?;
    status.message.strip_prefix(LEAVING).filter(|why| !why.starts_with(reason.message())).map(str::to_owned)
}

/// What is stored says that nothing of it is left.
fn uses_nothing(view: &SlotView<'_>, step: &mut SlotStep) {
    for change in &mut step.changes {
        if let Change::Status(status) = change {
            status.spent = status.spent.on(Usage::default(), None, view.now.wall);
        }
    }
}

/// What the root of a burst wants of exactly this instance.
fn wanted<'a>(view: &SlotView<'a>, hosted: &HostedBurst) -> Option<&'a DesiredBurst> {
    match view.claims.get(&holder(hosted)) {
        Some(Wanted::Burst(desired)) => Some(&**desired).filter(|desired| is_same_instance(hosted, desired)),
        _ => None,
    }
}

/// Whether the root of a burst that we ended still takes it for what is here: then its HostedBurst stays, with nothing of it, and
/// says why it ended to whoever leads next. One that is away hears of it until its lease is over.
fn is_unheard(view: &SlotView<'_>, hosted: &HostedBurst, desired: &DesiredBurst, step: &mut SlotStep) -> bool {
    let lease = sync::lease(view, hosted, &holder(hosted));
    if matches!(lease, Lease::Expired { .. }) || view.before.has_lapsed(hosted) {
        return false;
    }
    let unheard = desired.hosted_uid.is_some() && desired.hosted_uid == hosted.metadata.uid;
    if unheard {
        wake_for(lease, step);
    }
    unheard
}

/// Takes away what runs under this name and is ours; whether nothing is left.
pub(super) fn clear(view: &SlotView<'_>, step: &mut SlotStep) -> bool {
    let ours = view.mini_cluster.filter(|mini_cluster| left::is_of_slot(*mini_cluster));
    let goes = ours.is_none_or(|mini_cluster| mini_cluster.metadata.deletion_timestamp.is_some());
    if let (Some(mini_cluster), false, Some(_)) = (ours, goes, view.hosted) {
        let uid = mini_cluster.metadata.uid.clone().unwrap_or_default();
        step.changes.push(Change::DeleteMiniCluster { uid });
    }
    let mut pods = view.pods.iter().filter(|pod| !pod.finished).peekable();
    // Beside a MiniCluster of somebody else there are its pods, too: which are whose, the API server knows.
    if ours.is_some() || view.mini_cluster.is_none() && pods.peek().is_some() {
        step.memory.looked_empty = false;
        // A HostedBurst that cannot be read is not gone. And pods that run on may do so because their Job waits for the
        // garbage collector, and that for a finalizer, which is then to be told.
        let kept = ours.is_some_and(|ours| ours.metadata.finalizers.is_some());
        if view.hosted.is_none() && !goes || goes && (kept || pods.any(|pod| !pod.terminating)) {
            if is_due(view, step) {
                step.changes.push(Change::ClearLeft);
            }
            look_again(step);
        }
        return false;
    }
    // Pods can be between two lives, and the caches may not show yet what was made a moment ago: the API server knows.
    let speaks = |wanted: &Wanted| matches!(wanted, Wanted::Burst(desired) if desired.hosted_uid.is_some());
    let was_here = view.hosted.is_some() || !step.memory.fates.is_empty() || view.claims.values().any(speaks);
    if was_here && !step.memory.looked_empty {
        // The end of the last pod is a reason to look at once; what a person has to take away is none.
        if step.memory.stuck.is_none() || is_due(view, step) {
            step.changes.push(Change::LookLeft);
        }
        look_again(step);
        return false;
    }
    (step.memory.stuck, step.memory.looked) = (None, None);
    true
}

/// When to look again at what is left.
pub(super) fn look_again(step: &mut SlotStep) {
    wake(step, delay(&step.memory));
}

fn delay(memory: &Memory) -> Duration {
    if memory.stuck.is_some() { LOOK_SELDOM } else { LOOK_AGAIN }
}

/// Whether it is time for that. Meanwhile each of a thousand pods marks the slot as it goes.
fn is_due(view: &SlotView<'_>, step: &SlotStep) -> bool {
    step.memory.looked.is_none_or(|at| view.now.mono.saturating_since(at) >= delay(&step.memory))
}

/// What a name waits for that is not free yet.
pub(super) fn what_leaves(memory: &Memory) -> String {
    match &memory.stuck {
        Some(what) => format!("what is left of an earlier burst does not go by itself: {what}"),
        None => "what is left of an earlier burst is leaving".to_owned(),
    }
}

pub(super) fn wake(step: &mut SlotStep, delay: Duration) {
    step.wake = Some(step.wake.map_or(delay, |wake| wake.min(delay)));
}

/// Whether it is `until`. Until then the slot is looked at again in time.
pub(super) fn is_past(view: &SlotView<'_>, until: Timestamp, step: &mut SlotStep) -> bool {
    let left = elapsed(view.now.wall, until);
    if !left.is_zero() {
        wake(step, left);
    }
    left.is_zero()
}

/// When a lease that is running must be looked at again.
pub(super) fn wake_for(lease: Lease, step: &mut SlotStep) {
    match lease {
        Lease::Wavering(left) | Lease::Running { left, .. } => wake(step, left),
        Lease::Renewed | Lease::Expired { .. } => {}
    }
}
