//! One slot, one step: from what peers want of a name and what is there, to what has to be done and said. Pure.
//!
//! A **slot** is a namespace and a name: one HostedBurst, one MiniCluster, one Job. Several claims can be made on it: by
//! the burst that runs, by its successor (the root was made anew), by another root that chose the same name.
//!
//! Nothing is concluded from what a cache or a peer does not show: a burst ends by a tombstone, by absence from complete
//! snapshots for the grace period, by its lease, or because its owner here deleted it.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tributary_api::hosted_burst::{HostedBurst, HostedBurstStatus};
use tributary_api::minicluster::MiniCluster;
use tributary_api::peer::ImportPolicy;
use tributary_clock::Now;
use tributary_config::BurstingConfig;
use tributary_contract::{
    BurstPhase, BurstUid, CredentialRequest, DesiredBurst, ObservedBurst, PeerName, Rejection, RejectionReason,
};

use super::admission::{self, Admitted, Facts};
use super::gateway::Removal;
use super::grants::Grants;
use super::kueue;
use super::lead;
use super::lease::Before;
use super::ledger::SlotKey;
use super::materialize::{self, Materials};
use super::memory::{Fate, Memory, Verdict};
use super::not_started;
use super::rate::{self, Rates, Turn};
use super::scale_up::Returned;
use super::sync;
use super::teardown::{self, Reason};
use crate::contact::Contacts;
use crate::nodes::PodView;
use crate::note::Note;
use crate::ours::Ours;
use crate::peers::{self, PeerView};
use crate::preflight::attempt::Target;
use crate::sync_store::{Answer, Listed};
use crate::timing::elapsed;

/// Whose claim it is.
pub(crate) type ClaimKey = (PeerName, BurstUid);

/// What a peer wants of a slot.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Wanted {
    Burst(Arc<DesiredBurst>),
    /// The end of it.
    Tombstone,
}

/// All that a step looks at.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SlotView<'a> {
    /// The moment.
    pub now: Now,
    /// How long a burst must be missing from complete snapshots before that counts as a release.
    pub grace: Duration,
    pub key: &'a SlotKey,
    /// What peers want of it.
    pub claims: &'a BTreeMap<ClaimKey, Wanted>,
    /// Which bursts peers in session want anything of.
    pub listed: &'a dyn Listed,
    pub peers: &'a BTreeMap<PeerName, PeerView>,
    /// Since when they are away.
    pub contacts: &'a Contacts,
    /// What is on record of the time before this leader's term.
    pub before: &'a Before,
    /// The HostedBurst of this name.
    pub hosted: Option<&'a HostedBurst>,
    /// The MiniCluster of this name.
    pub mini_cluster: Option<&'a MiniCluster>,
    /// Pods of the Job of this name that a MiniCluster made.
    pub pods: &'a [PodView],
    /// Pods that pull its images ahead.
    pub warmers: &'a [PodView],
    /// What admission needs; its `import` is looked up per claim.
    pub facts: &'a Facts<'a>,
    /// What FluxSetups leave.
    pub grants: &'a dyn Grants,
    /// The addresses of this cluster.
    pub ours: &'a Ours,
    /// Where the connections of a burst are taken that is reached through the agents' own connection: at our agent; or why
    /// not.
    pub inlet: &'a Result<SocketAddr, String>,
    /// It is a result that newer ones of its peer take the place of.
    pub surplus: bool,
    /// What is remembered of the slot.
    pub memory: &'a Memory,
    /// How much peers have offered lately.
    pub rates: &'a Rates,
}

/// What has to be done, in order.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum Change {
    /// Render, judge and dry-run an admitted offer; if all is well, reserve, create this HostedBurst; else remember why not.
    Admit {
        /// Whose offer.
        claim: ClaimKey,
        /// What the verdict is about.
        fingerprint: String,
        /// What to create.
        hosted: Box<HostedBurst>,
        admitted: Box<Admitted>,
    },
    /// Apply the HostedBurst's spec.
    Update(Box<HostedBurst>),
    /// Apply the HostedBurst's status.
    Status(Box<HostedBurstStatus>),
    /// Look whether the certificate's Secret is there, and remember.
    LookSecret,
    /// Ask the root for the certificate, check its digest, store it as a Secret, remember.
    RequestCredential {
        /// Whom to ask.
        peer: PeerName,
        request: CredentialRequest,
    },
    /// Resolve the lead's host name, and remember.
    Resolve(String),
    /// Dial the lead broker, let it prove its certificate, and remember.
    Dial(Box<Target>),
    /// Apply Service, EndpointSlices and MiniCluster; remove EndpointSlices that are no longer wanted.
    Materialize(Box<Materials>),
    /// Make the Job that pulls the images ahead, and remember.
    WarmUp {
        /// On so many nodes.
        nodes: u32,
    },
    /// Delete that Job, if it is ours.
    EndWarmUp,
    /// Look what the ProvisioningRequest says, uncached, and remember.
    LookRequest,
    /// Make it, with its PodTemplate, and remember.
    MakeRequest,
    /// Delete both, if they are ours, and remember.
    EndRequest,
    /// Let these pods consume no ProvisioningRequest any more.
    Unbook {
        /// Their names.
        pods: Vec<String>,
    },
    /// Delete a pod for the gateway's sake.
    DeletePod(Removal),
    /// Delete the MiniCluster with this UID.
    DeleteMiniCluster { uid: String },
    /// Look whether the MiniCluster and the Job of this name are gone, uncached, and remember. What is left of a hosted
    /// one is deleted: see [`left`](super::left).
    LookLeft,
    /// The same while something is seen of it: what is found says nothing of when that is gone.
    ClearLeft,
    /// Delete the HostedBurst with this UID: nothing of it runs any more.
    DeleteHosted { uid: String },
}

/// What a step decides.
#[derive(Clone, PartialEq, Debug, Default)]
pub(crate) struct SlotStep {
    /// What has to be done.
    pub changes: Vec<Change>,
    pub answers: BTreeMap<ClaimKey, Answer>,
    /// What to tell people, on the HostedBurst.
    pub notes: Vec<Note>,
    /// The memory of the slot afterwards.
    pub memory: Memory,
    /// How much peers have offered by then.
    pub rates: Rates,
    /// When to look again though nothing changed.
    pub wake: Option<Duration>,
}

/// Decides what to do about a slot.
pub(crate) fn step(view: &SlotView<'_>) -> SlotStep {
    let mut step = SlotStep { memory: view.memory.clone(), rates: view.rates.clone(), ..SlotStep::default() };
    step.memory.kept = None;
    match view.hosted {
        Some(hosted) => {
            step.memory.saw(hosted);
            hosted_slot(view, hosted, &mut step);
        }
        None => free_slot(view, &mut step),
    }
    step.memory.forget(view);
    let returned = step.memory.returned.values().map(|returned| returned.left(view.now.mono)).min();
    returned.into_iter().for_each(|left| teardown::wake(&mut step, left));
    for (claim, turn) in view.memory.turns.iter().filter(|(claim, _)| !step.memory.turns.contains_key(*claim)) {
        step.rates.give_back(&claim.0, turn, view.now.mono);
    }
    step
}

/// How long another root of the same peer waits for a name, in place of going elsewhere: an instance that is made anew under
/// another name begins while its earlier one ends.
const LEAVES_SOON: Duration = Duration::from_secs(90);

fn hosted_slot(view: &SlotView<'_>, hosted: &HostedBurst, step: &mut SlotStep) {
    let holder = holder(hosted);
    let claim = view.claims.get(&holder);
    let ends = teardown::reason(view, hosted, &holder, claim, step);
    match ends {
        Some(reason) => teardown::drain(view, hosted, reason, step),
        None => sync::keep(view, hosted, &holder, claim, step),
    }
    // What a person has to take away keeps the name, and what takes long keeps nobody from going elsewhere.
    let since = hosted.status.as_ref().and_then(|status| status.draining_since.as_ref());
    let soon = since.is_none_or(|since| elapsed(since.0, view.now.wall) < LEAVES_SOON);
    let leaves = ends.is_some() && step.memory.stuck.is_none() && soon;
    for (key, wanted) in view.claims {
        let answer = match wanted {
            Wanted::Tombstone if *key == holder => continue,
            Wanted::Tombstone => Answer::Nothing,
            Wanted::Burst(desired) if *key == holder && is_same_instance(hosted, desired) => continue,
            Wanted::Burst(desired)
                if is_successor(hosted, &key.0, desired) || leaves && hosted.spec.peer == key.0.as_str() =>
            {
                let message = "an earlier burst of this name is leaving";
                observed(desired, BurstPhase::Draining, message).into()
            }
            Wanted::Burst(desired) => {
                // Whose it is, is nobody's business but theirs.
                let taken = match hosted.spec.peer == key.0.as_str() {
                    true => format!(
                        "a burst of MiniCluster {}/{} has this name here",
                        hosted.spec.root.namespace, hosted.spec.root.name
                    ),
                    false => "a burst of another cluster has this name here".to_owned(),
                };
                let taken = format!("{taken}: give the burst (clusters[].name) or the FluxJob another name");
                rejected(desired, Rejection::new(RejectionReason::NameTaken, taken)).into()
            }
        };
        step.answers.insert(key.clone(), answer);
    }
}

/// Nothing is hosted under this name: what is left of an evicted burst goes, then offers are looked at.
fn free_slot(view: &SlotView<'_>, step: &mut SlotStep) {
    let empty = teardown::clear(view, step);
    if !empty {
        // Changes of what has no HostedBurst mark no slot.
        teardown::look_again(step);
    }
    let mut taken = false;
    for (key, wanted) in view.claims {
        let answer = match wanted {
            Wanted::Tombstone if empty => {
                // The root may change its mind before it hears this, and speak of a HostedBurst that we ended.
                step.memory
                    .fates
                    .retain(|known, fate| known != key || !fate.is_final() && matches!(fate, Fate::Released { .. }));
                Answer::Nothing
            }
            Wanted::Tombstone => leaving(key, &step.memory).into(),
            // A person has to free the name. Its own brokers may be what is left of one that was here before.
            Wanted::Burst(desired)
                if !empty
                    && step.memory.stuck.is_some()
                    && desired.hosted_uid.is_none()
                    && !step.memory.fates.contains_key(key) =>
            {
                let taken = teardown::what_leaves(&step.memory);
                rejected(desired, Rejection::new(RejectionReason::NameTaken, taken)).into()
            }
            // What became of it is kept until that is over: a tombstone may follow.
            Wanted::Burst(desired) if !empty => {
                observed(desired, BurstPhase::Draining, &teardown::what_leaves(&step.memory)).into()
            }
            Wanted::Burst(desired) => match past(view, key, desired, step) {
                Some(said) => said.into(),
                // What was on offer in an earlier session may have been taken back since.
                None if view.listed.lists(&key.0, &key.1) != Some(true) => continue,
                // It was here, and its peer's bursts go to another namespace by now.
                None if !belongs_here(view.key, view.peers, key, desired) => continue,
                None if taken => rejected(
                    desired,
                    Rejection::new(RejectionReason::NameTaken, "another burst is about to take this name here"),
                )
                .into(),
                None => match offered(view, key, desired, step) {
                    Ok(()) => {
                        taken = true;
                        observed(desired, BurstPhase::Pending, "").into()
                    }
                    Err(rejection) => rejected(desired, rejection).into(),
                },
            },
        };
        step.answers.insert(key.clone(), answer);
    }
}

/// Whether an offer is about this slot, as its peer's bursts are mapped now.
pub(super) fn belongs_here(
    slot: &SlotKey,
    peers: &BTreeMap<PeerName, PeerView>,
    (peer, _): &ClaimKey,
    desired: &DesiredBurst,
) -> bool {
    let import = peers::import(peers, peer);
    admission::slot_key(peer, desired, import) == *slot
}

/// The answer to a claim that is not looked at, because its peer has so many others on the same name.
pub(super) fn one_of_too_many(wanted: &Wanted) -> Answer {
    let message = "other bursts of the same peer want this name here, and are looked at first";
    match wanted {
        Wanted::Burst(desired) => rejected(desired, Rejection::new(RejectionReason::NameTaken, message)).into(),
        Wanted::Tombstone => Answer::Nothing,
    }
}

/// What became of a burst that was here before, if that is still the answer.
pub(super) fn past(
    view: &SlotView<'_>,
    key: &ClaimKey,
    desired: &DesiredBurst,
    step: &mut SlotStep,
) -> Option<ObservedBurst> {
    let incarnation = &desired.root.incarnation;
    if step.memory.fates.get(key).is_some_and(|fate| fate.incarnation() != incarnation) {
        step.memory.fates.remove(key);
    }
    let known = step.memory.fates.get(key).cloned();
    if let Some(Fate::Released { reason, why, .. }) = &known
        && reason.gives_back()
    {
        let returned = || match reason {
            Reason::QueueTimedOut => kueue::returned(view, &key.0, desired),
            Reason::PodsNotScheduled | Reason::PodsNotStarted => {
                not_started::returned(view, &key.0, desired, (*reason, why.as_deref()))
            }
            _ => Returned::new(view, &key.0, desired, (*reason, why.as_deref())),
        };
        step.memory.returned.entry(key.clone()).or_insert_with(returned);
    }
    match (known, &desired.hosted_uid) {
        // It is refused from now on, and nothing of it is left: its root places it elsewhere.
        (Some(Fate::Released { reason, .. }), Some(_)) if reason.gives_back() => {
            let rejection = step.memory.returned.get(key).map(|returned| returned.rejection.clone());
            rejection.map(|rejection| rejected(desired, rejection))
        }
        // It ended by our own decision, and the root has not taken notice of that.
        (Some(Fate::Released { reason: Reason::TimeLimit, .. }), _) => {
            let rejection = Rejection::new(RejectionReason::EvictedByProvider, Reason::TimeLimit.message());
            Some(with_rejection(desired, BurstPhase::Evicted, rejection))
        }
        // The root was lost. It may want something else by now.
        (Some(Fate::Released { .. }), _) if view.listed.lists(&key.0, &key.1) != Some(true) => Some(observed(
            desired,
            BurstPhase::Pending,
            "it ended, and its root has not said yet that it wants it again",
        )),
        // That, or one before it, is what the root saw last.
        (Some(Fate::Released { reason, used, .. }), Some(_)) => {
            Some(ObservedBurst { used, ..observed(desired, BurstPhase::Released, reason.message()) })
        }
        // The root took notice, and offers it anew.
        (Some(Fate::Released { .. }), None) => {
            step.memory.fates.remove(key);
            None
        }
        // Its lease ran out under the agent before this one, which ended it then.
        (None, Some(seen)) if lapsed_before(view, key, desired) => {
            let (uid, incarnation, reason) = (seen.clone(), incarnation.clone(), Reason::LeaseExpired);
            step.memory.fates.insert(key.clone(), Fate::Released { uid, incarnation, reason, used: None, why: None });
            Some(observed(desired, BurstPhase::Released, reason.message()))
        }
        // It was here, and we did not end it. Or the root saw one that is not here: deleted while no agent ran.
        (Some(_), _) | (None, Some(_)) => {
            step.memory.fates.insert(key.clone(), Fate::Evicted { incarnation: incarnation.clone() });
            let message = "its HostedBurst was deleted: the owner of this cluster does not want it here";
            let rejection = Rejection::new(RejectionReason::EvictedByProvider, message);
            Some(with_rejection(desired, BurstPhase::Evicted, rejection))
        }
        (None, None) => None,
    }
}

/// Whether the root was lost for a whole lease already when this leader's scope began.
fn lapsed_before(view: &SlotView<'_>, (peer, _): &ClaimKey, desired: &DesiredBurst) -> bool {
    let lease = desired.lease_seconds.min(BurstingConfig::LONGEST);
    view.before.lost(peer) >= Duration::from_secs(lease.into())
}

/// An offer for a free name.
fn offered(view: &SlotView<'_>, key: &ClaimKey, desired: &DesiredBurst, step: &mut SlotStep) -> Result<(), Rejection> {
    let (peer, _) = key;
    let peer_view = view.peers.get(peer);
    let import = peer_view.and_then(|peer| peer.import.as_ref());
    let draining = peer_view.is_some_and(|peer| peer.draining);
    if let Some(import) = import {
        in_turn(view, key, desired, import, step)?;
    }
    let admitted = admission::admit(peer, desired, &Facts { import, draining, ..*view.facts })?;
    lead::admit(view, peer, desired)?;
    if let Some(returned) = step.memory.returned.get(key)
        && (admitted.scale_up.is_some() || kueue::would_wait(returned, import) || not_started::would_wait(returned))
        && let Some(left) = returned.stands(view, peer, desired)
    {
        let rejection = returned.rejection.clone();
        teardown::wake(step, left);
        return Err(rejection);
    }
    if view.mini_cluster.is_some() {
        let message = format!("MiniCluster {} exists here and is no hosted burst", desired.slot);
        return Err(Rejection::new(RejectionReason::NameTaken, message));
    }
    let Some(root_cluster) = peer_view.and_then(|peer| peer.cluster_uid.clone()) else {
        let message = format!("the cluster UID of {peer} is not known yet");
        return Err(Rejection::new(RejectionReason::Other("UnknownCluster".into()), message));
    };
    let mut hosted = materialize::hosted_burst(&view.key.0, peer, &root_cluster, desired, &admitted.template);
    hosted.spec.scale_up.clone_from(&admitted.scale_up);
    hosted.spec.queue = kueue::queue(import);
    hosted.spec.max_duration = import.and_then(|import| import.max_duration);
    match view.grants.ask(&hosted) {
        Some(Ok(())) => {}
        Some(Err(message)) => return Err(Rejection::new(RejectionReason::NoRoomInQueue, message)),
        None => return Ok(()),
    }
    let generation = peer_view.and_then(|peer| peer.generation);
    let (incarnation, offer) = (&desired.root.incarnation, &desired.offer);
    let fingerprint = format!("{incarnation}/{}/{generation:?}/{offer}", desired.generation);
    match step.memory.verdict(key, &fingerprint, view.now.mono) {
        Some(Verdict { rejection, until, .. }) => {
            let again = until.saturating_since(view.now.mono);
            step.wake = Some(step.wake.map_or(again, |wake| wake.min(again)));
            Err(rejection.clone())
        }
        None => {
            step.changes.push(Change::Admit {
                claim: key.clone(),
                fingerprint,
                hosted: Box::new(hosted),
                admitted: Box::new(admitted),
            });
            Ok(())
        }
    }
}

/// Whether it is the turn of an offer.
fn in_turn(
    view: &SlotView<'_>,
    key: &ClaimKey,
    desired: &DesiredBurst,
    import: &ImportPolicy,
    step: &mut SlotStep,
) -> Result<(), Rejection> {
    let ((peer, _), now, limit) = (key, view.now.mono, rate::per_minute(import));
    let turn = Turn::of(step.memory.turns.get(key), peer, desired, limit, &mut step.rates, now);
    let (at, has_come) = (turn.at, turn.has_come(now));
    step.memory.turns.insert(key.clone(), turn);
    if has_come {
        return Ok(());
    }
    teardown::wake(step, at.saturating_since(now));
    let message = format!(
        "{peer} offers more than {limit} bursts within a minute, which is what import.maxOffersPerMinute of ClusterPeer {peer} \
         allows: this one is looked at in its turn, and need not be offered again"
    );
    Err(Rejection::new(RejectionReason::TooManyOffers, message))
}

/// Whose burst it is.
pub(super) fn holder(hosted: &HostedBurst) -> ClaimKey {
    (hosted.spec.peer.as_str().into(), hosted.spec.burst_uid.as_str().into())
}

/// Whether an offer is about exactly the instance that is hosted.
pub(super) fn is_same_instance(hosted: &HostedBurst, desired: &DesiredBurst) -> bool {
    let (spec, root) = (&hosted.spec, &desired.root);
    spec.burst_uid == desired.uid.as_str() && spec.root.uid == root.uid && spec.root.incarnation == root.incarnation
}

/// Whether an offer replaces what is hosted: the same MiniCluster of the same peer, in another life.
pub(super) fn is_successor(hosted: &HostedBurst, peer: &PeerName, desired: &DesiredBurst) -> bool {
    let spec = &hosted.spec;
    spec.peer == peer.as_str()
        && spec.root.namespace == desired.root.namespace
        && spec.root.name == desired.root.name
        && !is_same_instance(hosted, desired)
}

pub(super) fn observed(desired: &DesiredBurst, phase: BurstPhase, message: &str) -> ObservedBurst {
    ObservedBurst {
        uid: desired.uid.clone(),
        observed_generation: desired.generation,
        incarnation: desired.root.incarnation.clone(),
        phase,
        message: message.to_owned(),
        ..ObservedBurst::default()
    }
}

fn rejected(desired: &DesiredBurst, rejection: Rejection) -> ObservedBurst {
    with_rejection(desired, BurstPhase::Rejected, rejection)
}

fn with_rejection(desired: &DesiredBurst, phase: BurstPhase, rejection: Rejection) -> ObservedBurst {
    let said = observed(desired, phase, &rejection.message);
    ObservedBurst { rejection: Some(rejection), ..said }
}

/// The answer to a tombstone while something of the burst is still here.
fn leaving(key: &ClaimKey, memory: &Memory) -> ObservedBurst {
    ObservedBurst {
        uid: key.1.clone(),
        message: memory.stuck.as_ref().map(|_| teardown::what_leaves(memory)).unwrap_or_default(),
        incarnation: memory.fates.get(key).map(Fate::incarnation).unwrap_or_default().to_owned(),
        phase: BurstPhase::Draining,
        ..ObservedBurst::default()
    }
}

#[cfg(test)]
mod tests;
