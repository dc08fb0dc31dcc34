//! What is reported of a peer, and which differences are worth telling.

use tributary_clock::Now;
use tributary_contract::{PeerReport, PeerState, Refusal};

use super::peer::Peer;
use crate::wire::registry::{CloseCode, RefusalReason};

/// The report of a peer as things are. Without its round-trip time and its traffic, which the links know.
pub(super) fn of(peer: &Peer, flapping: bool, now: Now) -> PeerReport {
    let connected = peer.preferred().is_some();
    let state = match &peer.refusal {
        _ if peer.spec.suspend => PeerState::Suspended,
        _ if connected && peer.is_suspect() => PeerState::Suspect,
        _ if connected => PeerState::Connected,
        Some((_, refusal)) if refusal.reason != RefusalReason::Unreachable.as_str() => PeerState::Refused,
        _ => PeerState::Disconnected,
    };
    let hello = peer.hello.as_ref();
    let since = if peer.report.state == state { peer.report.since } else { None };
    PeerReport {
        state,
        endpoint: peer.endpoint(),
        version: hello.map(|hello| hello.agent_version.clone()),
        cluster_uid: hello.map(|hello| hello.cluster_uid.clone()),
        labels: hello.map(|hello| hello.labels.clone()).unwrap_or_default(),
        // Of a peer that is gone, nobody knows what it could give.
        capacity: peer.capacity.clone().filter(|_| connected),
        rtt_micros: None,
        control: None,
        tunnel: None,
        last_seen: peer.last_heard.map(|at| now.wall_of(at)),
        since: since.or(Some(now.wall)),
        flapping,
        refusal: peer.refusal.as_ref().map(|(_, refusal)| refusal.clone()),
    }
}

/// Whether people and controllers should be told: not of times, nor of another wording of the same reason.
pub(super) fn is_transition(old: PeerReport, new: &PeerReport) -> bool {
    let same_reason = match (&old.refusal, &new.refusal) {
        (Some(old), Some(new)) => old.reason == new.reason,
        (old, new) => old.is_none() && new.is_none(),
    };
    let refusal = new.refusal.clone();
    !same_reason || PeerReport { rtt_micros: new.rtt_micros, last_seen: new.last_seen, refusal, ..old } != *new
}

/// The refusal a closed connection leaves behind; `None` if another connection stays.
pub(super) fn ended(code: CloseCode, who: &str, reason: &str) -> Option<Refusal> {
    if code == CloseCode::Replaced {
        return None;
    }
    let sentence = if reason.is_empty() { format!("{who}: {code}") } else { reason.to_owned() };
    // Authenticated agents that do not understand each other are of versions that do not match.
    let fallback =
        if code == CloseCode::Protocol { RefusalReason::IncompatibleVersion } else { RefusalReason::Unreachable };
    Some(code.refusal().unwrap_or(fallback).because(sentence))
}
