//! Which peers come into question for a burst, and why it goes to one of them. Pure; the choice is the agent's own.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::Serialize;
use tributary::api::duration::Lasting;
use tributary::bursting::peers::PeerView;
use tributary::bursting::root::place::{self, Candidate, Claimed, Fit, Wish};
use tributary::contract::PeerName;

use super::evaluate::Known;
use crate::output::table;

/// A peer, as the placement of one burst sees it.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct CandidateRow {
    /// Its name.
    pub peer: String,
    /// Whether the burst goes there.
    pub chosen: bool,
    /// What room it has.
    pub room: String,
    /// How long brokers may have to wait for nodes, in seconds.
    pub wait_seconds: u32,
    /// The sum of weights of what the burst prefers.
    pub weight: u64,
    /// What the burst costs there in an hour.
    pub hourly: String,
    /// Why it is chosen, or is not.
    pub reason: String,
}

/// Where a burst goes, why, and who else came into question.
pub(super) struct Placement {
    pub(super) peer: Option<PeerName>,
    pub(super) sentence: String,
    pub(super) candidates: Vec<CandidateRow>,
}

impl Placement {
    fn unseen(peer: Option<PeerName>, sentence: &str) -> Self {
        Self { peer, sentence: sentence.to_owned(), candidates: Vec::new() }
    }

    /// Nobody could take it.
    pub(super) fn nowhere() -> Self {
        Self::unseen(None, "it goes nowhere")
    }

    /// Of a burst; `claimed`: what others take of the peers.
    pub(super) fn of(wish: &Wish, known: &Known, claimed: &BTreeMap<PeerName, Claimed>) -> Self {
        let Some(peers) = &known.peers else {
            return match wish.peers.as_slice() {
                [] => Self::unseen(None, "a peer is chosen when it is applied"),
                [peer] => Self::unseen(Some(peer.clone()), "named; not looked at"),
                [peer, ..] => Self::unseen(Some(peer.clone()), "named first; not looked at"),
            };
        };
        let own = PeerName::from(known.cluster.as_deref().unwrap_or_default());
        let excluded = BTreeMap::from([(own, "is this cluster itself".to_owned())]);
        let asked = place::candidates(wish, peers, claimed, &excluded);
        let (peer, sentence) = match place::place(wish, peers, claimed, &excluded) {
            Ok(peer) => {
                let sentence = sentence(wish, &peer, &asked);
                (Some(peer), sentence)
            }
            // The one that its user named is what the rest is planned for.
            Err(none) => (wish.peers.first().cloned(), format!("it waits: {none}")),
        };
        let chosen = peer.as_ref().and_then(|peer| asked.iter().find(|one| one.peer == *peer));
        let mut candidates: Vec<_> = asked.iter().map(|one| row(one, chosen, wish, peers)).collect();
        if wish.peers.is_empty() {
            let others = peers.keys().filter(|name| asked.iter().all(|one| one.peer != **name));
            candidates.extend(others.map(unselected));
        }
        Self { peer, sentence, candidates }
    }
}

/// Why a burst goes to this peer.
fn sentence(wish: &Wish, peer: &PeerName, asked: &[Candidate]) -> String {
    let chosen = asked.iter().find(|one| one.peer == *peer);
    let more =
        if chosen.is_some_and(|one| matches!(one.fit, Ok(Fit::Growing(_)))) { " with nodes that it adds" } else { "" };
    if wish.peers.is_empty() {
        let by = if wish.selector == Default::default() { "connected" } else { "matches the selector" };
        let next = asked.get(1).filter(|next| matches!(next.fit, Ok(Fit::Roomy(_) | Fit::Unknown | Fit::Growing(_))));
        let best = match (chosen, next) {
            (Some(best), Some(next)) if best.weight > next.weight => "is preferred most",
            (Some(best), Some(next)) if best.hourly < next.hourly => "costs least",
            _ => "has the most room",
        };
        return format!("{by}, and {best}{}", if best == "has the most room" { more } else { "" });
    }
    let named = if wish.peers.first() == Some(peer) { "named" } else { "named, after others that cannot take it now" };
    if more.is_empty() { named.to_owned() } else { format!("{named}, and has room{more}") }
}

fn row(one: &Candidate, chosen: Option<&Candidate>, wish: &Wish, peers: &BTreeMap<PeerName, PeerView>) -> CandidateRow {
    let is_chosen = chosen.is_some_and(|chosen| chosen.peer == one.peer);
    let possible = peers.get(&one.peer).and_then(|peer| peer.capacity.as_ref()?.possible);
    let (room, wait_seconds) = match &one.fit {
        Ok(Fit::Roomy(spare)) => (format!("{spare} cores to spare"), 0),
        Ok(Fit::Unknown) => ("not told".to_owned(), 0),
        Ok(Fit::Growing(spare)) => {
            (format!("with nodes that it adds, {spare} cores to spare"), possible.map_or(0, |more| more.wait_seconds))
        }
        Ok(Fit::Short(_)) => ("none".to_owned(), 0),
        Err(_) => ("-".to_owned(), 0),
    };
    let reason = match (&one.fit, chosen) {
        (Err(why) | Ok(Fit::Short(why)), _) => why.clone(),
        _ if is_chosen => "chosen".to_owned(),
        (_, None) => String::new(),
        (_, Some(_)) if !wish.peers.is_empty() => "is named later".to_owned(),
        (Ok(Fit::Growing(_)), Some(best)) if !matches!(best.fit, Ok(Fit::Growing(_))) => "has to add nodes".to_owned(),
        (Ok(Fit::Unknown), Some(best)) if best.fit != Ok(Fit::Unknown) => "tells no room".to_owned(),
        (_, Some(best)) if one.weight < best.weight => "is preferred less".to_owned(),
        (_, Some(best)) if one.hourly > best.hourly => "costs more".to_owned(),
        _ => "has less room, or a later name".to_owned(),
    };
    CandidateRow {
        peer: one.peer.to_string(),
        chosen: is_chosen,
        room,
        wait_seconds,
        weight: one.weight,
        hourly: one.hourly.to_string(),
        reason,
    }
}

fn unselected(name: &PeerName) -> CandidateRow {
    CandidateRow {
        peer: name.to_string(),
        chosen: false,
        room: "-".to_owned(),
        wait_seconds: 0,
        weight: 0,
        hourly: "-".to_owned(),
        reason: "the selector does not match its labels".to_owned(),
    }
}

/// What a column of the table says of a peer.
type Cell = dyn Fn(&CandidateRow) -> String;

/// The table for people; nothing where there was no choice. What nobody has says nothing, and has no column.
pub(super) fn text(candidates: &[CandidateRow]) -> String {
    if candidates.len() < 2 {
        return String::new();
    }
    let wait = |one: &CandidateRow| match one.wait_seconds {
        0 => "-".to_owned(),
        seconds => format!("up to {}", Lasting::of_seconds(seconds.into())),
    };
    let columns: [(&str, &Cell); 6] = [
        ("PEER", &|one| one.peer.clone()),
        ("ROOM", &|one| one.room.clone()),
        ("WAIT", &wait),
        ("WEIGHT", &|one| one.weight.to_string()),
        ("PER HOUR", &|one| one.hourly.clone()),
        ("WHY", &|one| one.reason.clone()),
    ];
    let says = |cell: String| cell != "-" && cell != "0";
    let shown = columns.iter().filter(|(_, cell)| candidates.iter().any(|one| says(cell(one)))).collect::<Vec<_>>();
    let row = |one| shown.iter().map(move |(_, cell)| cell(one));
    table(shown.iter().map(|(name, _)| *name), candidates.iter().map(row))
}
