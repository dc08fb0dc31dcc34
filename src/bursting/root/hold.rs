//! Whose a slot is while its peer is out of contact, and what frees it. Pure.
//!
//! Whoever has the certificate can join for as long as there is a way to the lead broker. The tunnel's end here refuses the
//! brokers of a slot that was taken away, so such a slot is free once the provider had the time to end them. On any other
//! network nothing of this cluster stands between them and the lead broker: no clock can say that they are gone. The same
//! holds for a whole instance, which nothing here can end.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt;
use tributary_api::burst::{Burst, BurstSpec, BurstStatus, CredentialRecipient, SlotRelease};
use tributary_api::hosted_burst::BurstPhase;
use tributary_api::labels;
use tributary_api::minicluster::MiniCluster;
use tributary_clock::Now;
use tributary_contract::{ClusterUid, PeerName};

use super::burst_status::Draft;
use crate::note::Note;
use crate::peers::PeerView;
use crate::sync_store::Answer;
use crate::timing::{LOST_AFTER, elapsed, later, reserved_for};

/// Characters of a person's name that are kept.
const LONGEST_NAME: usize = 128;

/// How long a peer that is out of contact keeps its slot; `None`: until the slot is freed by more than time. `grace`: of a
/// peer that cannot run it, since it does not have the certificate.
pub(crate) fn time_limit(spec: &BurstSpec, status: &BurstStatus, grace: Duration) -> Option<Duration> {
    match status.holder() {
        None => Some(grace),
        Some(holder) => holder.tunnel.then(|| longest(spec)),
    }
}

/// How long brokers last at most in a cluster that is out of contact and whose agent works.
pub(crate) fn longest(spec: &BurstSpec) -> Duration {
    reserved_for(spec.lease.duration(), spec.drain.duration())
}

/// Whether the ClusterPeer of the slot's holder stands for another cluster by now, which knows nothing of the burst.
pub(crate) fn is_stranger(status: &BurstStatus, peer: Option<&PeerView>) -> bool {
    status.is_of_another(peer.and_then(|peer| peer.cluster_uid.as_ref()).map(ClusterUid::as_str))
}

/// Whether brokers that somebody was given the certificate for can join this instance: a new instance may have the same
/// certificate, if a user looks after it.
pub(crate) fn can_join(recipient: &CredentialRecipient, spec: &BurstSpec) -> bool {
    let same = !spec.credential_digest.is_empty() && recipient.credential_digest == spec.credential_digest;
    recipient.free_since.is_none() && (same || recipient.incarnation == spec.incarnation)
}

/// What frees a slot that time does not free, in one sentence. `why` says what became of the peer, `who` has the slot.
fn waits_for(burst: &Burst, root: Option<&MiniCluster>, who: &str, why: &str) -> String {
    let (name, namespace) = (burst.name_any(), burst.namespace().unwrap_or_default());
    let release = format!("`agentctl burst release {name} --namespace {namespace}`");
    if burst.spec.whole {
        return format!(
            "{why}, and {who} may still run it: it begins anew elsewhere only once {who} confirms that nothing is left, or \
             a person lets it go ({release})"
        );
    }
    let lead = &burst.spec.root;
    let anew = match root.and_then(|root| root.spec.flux.own_certificate()) {
        // `rekey` refuses there.
        Some(place) => {
            format!("put one into {place}, then: `agentctl restart minicluster/{lead} --namespace {namespace}`")
        }
        None => format!("`agentctl rekey {lead} --namespace {namespace}`"),
    };
    format!(
        "{why}, and brokers of {who} may still reach the lead broker: the ranks stay its own until it confirms that nothing \
         is left, the instance has a new certificate ({anew}), or a person lets them go ({release})"
    )
}

/// A person's word that frees the slot from this very loss. What was written by hand, and wrongly, is no word.
pub(crate) fn word(burst: &Burst, status: &BurstStatus) -> Option<SlotRelease> {
    let mut word: SlotRelease = serde_json::from_str(burst.annotations().get(labels::RELEASE)?).ok()?;
    word.by = word.by.chars().take(LONGEST_NAME).collect();
    let since = status.lost_since.as_ref()?.0.as_second();
    let meant = Some(&word.burst_uid) == burst.metadata.uid.as_ref()
        && word.incarnation == burst.spec.incarnation
        && Some(&word.peer) == status.peer.as_ref()
        && word.lost_since.0.as_second() == since;
    meant.then_some(word)
}

impl<'a> Draft<'a> {
    /// A holder that is told another way to the lead broker than the tunnel may keep to that way.
    pub(super) fn see_network(&mut self) {
        let direct = !self.view.burst.spec.tunnel;
        let BurstStatus { peer, credential_recipients, .. } = &mut self.status;
        let holds = |known: &&mut CredentialRecipient| direct && Some(&known.peer) == peer.as_ref();
        credential_recipients.iter_mut().filter(holds).for_each(|known| known.tunnel = false);
    }

    /// A person may let the slot of a lost peer go. Whoever is back speaks for itself.
    pub(super) fn take_word(&mut self) {
        let Some(word) = word(&self.view.burst, &self.status) else { return };
        let peer = PeerName::from(word.peer.as_str());
        if self.away(&peer).is_none() {
            return;
        }
        let text = format!("{} let it go from {peer}, which has not confirmed that nothing is left there", word.by);
        self.notes.push(Note::warning("SlotReleased", text));
        self.status.releases.retain(|known| known.peer != word.peer);
        self.status.releases.push(word);
        self.status.releases.sort_by(|a, b| a.peer.cmp(&b.peer));
        self.let_go();
    }

    /// Whether nothing of the burst is left at a peer that was told to let go of it; then it is let go.
    pub(super) fn parted(&mut self, peer: &PeerName) -> bool {
        let left = match self.answer(peer) {
            Some(Answer::Nothing) => false,
            Some(Answer::Observed(said)) if self.is_current(said) => match said.phase {
                BurstPhase::Evicted | BurstPhase::Released => false,
                // It may be about an older offer; but without the certificate nothing runs.
                BurstPhase::Rejected => self.holds(peer),
                _ => true,
            },
            _ => true,
        };
        match self.away(peer) {
            _ if !left => {
                self.let_go();
                true
            }
            Some(away) => self.outlasted(peer, away, BurstPhase::Draining),
            None => {
                (self.status.reserved_until, self.status.lost_since) = (None, None);
                self.set(BurstPhase::Draining, format!("{peer} releases it"));
                false
            }
        }
    }

    /// The peer is out of contact.
    pub(super) fn lost(&mut self, peer: &PeerName, away: Duration) {
        if self.outlasted(peer, away, BurstPhase::Lost) {
            self.notes.push(Note::warning("PeerLost", format!("{peer} was out of contact until its time was over")));
        }
    }

    /// Whether the peer was out of contact for as long as it keeps the slot; then it is let go. Else the slot stays its own,
    /// and the Burst says until when: in `phase`, or `Lost` if time alone does not free it.
    fn outlasted(&mut self, peer: &PeerName, away: Duration, phase: BurstPhase) -> bool {
        let limit = time_limit(&self.view.burst.spec, &self.status, self.view.grace);
        if limit.is_some_and(|limit| away >= limit) {
            self.let_go();
            return true;
        }
        let known = self.view.peers.get(peer);
        // A peer that was removed does not come back by itself.
        let (who, why, returns) = match known {
            None => (peer.as_str(), format!("ClusterPeer {peer} was removed"), false),
            Some(_) if is_stranger(&self.status, known) => {
                ("the earlier one", format!("ClusterPeer {peer} stands for another cluster now"), false)
            }
            Some(_) => (peer.as_str(), format!("{peer} is out of contact"), true),
        };
        if returns && away < LOST_AFTER && (limit.is_none() || phase == BurstPhase::Lost) {
            self.wake_in(LOST_AFTER - away);
            if phase != BurstPhase::Lost {
                self.set(phase, format!("{peer} releases it"));
            }
            return false;
        }
        let wall = self.view.now.wall;
        self.status.lost_since.get_or_insert(Time(wall.checked_sub(away).unwrap_or(wall)));
        match limit {
            Some(limit) => {
                let until = self.reserve(limit - away);
                self.set(phase, format!("{why}; the ranks of {who} stay reserved until {until:.0}"));
            }
            None => {
                let counted = longest(&self.view.burst.spec).saturating_sub(away);
                if !counted.is_zero() {
                    self.wake_in(counted);
                }
                self.status.reserved_until = None;
                self.set(BurstPhase::Lost, waits_for(&self.view.burst, self.view.root.as_deref(), who, &why));
            }
        }
        false
    }

    /// Says until when the ranks stay the peer's own, and looks again then.
    fn reserve(&mut self, left: Duration) -> Timestamp {
        self.wake_in(left);
        let until = later(self.view.now.wall, left);
        // The date is for people: it moves only if it is off by more than a few seconds.
        let near = |Time(old): &Time| elapsed(*old, until).max(elapsed(until, *old)) <= Duration::from_secs(5);
        let known = self.status.reserved_until.clone().filter(near);
        self.status.reserved_until.insert(known.unwrap_or(Time(until))).0
    }

    /// What the peer says of it; nothing, if another cluster has its name now.
    pub(super) fn answer(&self, peer: &PeerName) -> Option<&'a Answer> {
        let view = self.view;
        view.answers.get(peer).filter(|_| !is_stranger(&self.status, view.peers.get(peer)))
    }

    /// How long the peer is out of contact. A cluster whose name another one has is so since that was seen.
    pub(super) fn away(&self, peer: &PeerName) -> Option<Duration> {
        let Now { mono, wall } = self.view.now;
        if is_stranger(&self.status, self.view.peers.get(peer)) {
            let since = self.status.lost_since.as_ref();
            return Some(since.map_or(Duration::ZERO, |since| elapsed(since.0, wall)));
        }
        self.view.contacts.away(peer, mono)
    }
}
