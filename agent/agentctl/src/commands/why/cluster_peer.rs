//! What keeps a peer from being used. Pure.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition as Said;
use kube::ResourceExt;
use tributary::api::labels::condition::{BUDGET, SCALE_UP};
use tributary::api::peer::ClusterPeer;
use tributary::cluster::conditions::find;

use super::burst;
use crate::explain::{Condition, Explanation, Verdict, walk};
use crate::hints::{self, Pair};

/// What an answer is found in.
#[derive(Clone, Debug)]
pub(crate) struct Found {
    pub peer: ClusterPeer,
    /// Whether an agent leads: `Err` is why none does; `None`: not known.
    pub agent: Option<std::result::Result<String, String>>,
    /// What could not be read, and why.
    pub unseen: Vec<String>,
}

/// What it takes until bursts go to a peer, and come from it.
const CONDITIONS: [Condition<Found>; 5] =
    [("Led", led), ("Connected", connected), ("Budget", budget), ("Imports", imports), (SCALE_UP, scale_up)];

/// The first of [`CONDITIONS`] that a peer does not meet.
pub(crate) fn explain(found: &Found) -> Explanation {
    let object = format!("ClusterPeer {}", found.peer.name_any());
    Explanation { unseen: found.unseen.clone(), ..walk(object, found, &CONDITIONS) }
}

/// Without a leader nobody has a connection, and what the ClusterPeer says is of before.
fn led(found: &Found) -> Verdict {
    match &found.agent {
        Some(Err(why)) => Verdict::unmet(
            "NoAgent",
            format!("{why}; what the ClusterPeer says is of before"),
            "install or mend it; what is missing is said by `agentctl check`",
        ),
        _ => Verdict::Skip,
    }
}

fn connected(Found { peer, .. }: &Found) -> Verdict {
    burst::disconnected(peer, Pair { peer: &peer.name_any(), us: None })
        .unwrap_or_else(|| Verdict::Met("heartbeats arrive".to_owned()))
}

fn said<'a>(peer: &'a ClusterPeer, type_: &str) -> Option<&'a Said> {
    find(&peer.status.as_ref()?.conditions, type_)
}

fn budget(Found { peer, .. }: &Found) -> Verdict {
    match said(peer, BUDGET) {
        Some(said) if said.status == "False" => {
            let hint = "raise spec.budget of the ClusterPeer, or give its renewal another value";
            Verdict::unmet(said.reason.clone(), said.message.clone(), hint)
        }
        Some(said) => Verdict::Met(said.message.clone()),
        None => Verdict::Skip,
    }
}

/// Not every peer is meant to place something here.
fn imports(Found { peer, .. }: &Found) -> Verdict {
    Verdict::Met(match &peer.spec.import {
        Some(import) => format!("it may place bursts here, from {}", import.namespaces.join(", ")),
        None => "it may place nothing here: its ClusterPeer has no import".to_owned(),
    })
}

/// Whether its bursts can bring nodes, if they may.
fn scale_up(Found { peer, .. }: &Found) -> Verdict {
    match said(peer, SCALE_UP).filter(|said| said.status == "False") {
        Some(said) => Verdict::unmet(said.reason.clone(), said.message.clone(), hints::scale_up(&said.reason)),
        None => Verdict::Skip,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn found(spec: Value, status: Value) -> Found {
        let peer = json!({"metadata": {"name": "west"}, "spec": spec, "status": status});
        Found { peer: serde_json::from_value(peer).unwrap(), agent: None, unseen: Vec::new() }
    }

    fn reason(explanation: Explanation) -> Option<String> {
        explanation.unmet.map(|unmet| unmet.reason)
    }

    /// The danger: "heartbeats arrive", of an agent that is gone.
    #[test]
    fn without_a_leading_agent_nothing_is_connected() {
        let gone = Found {
            agent: Some(Err("no agent leads in namespace tributary-system: the last one has resigned".into())),
            ..found(json!({}), json!({"connected": true}))
        };
        let explanation = explain(&gone);
        crate::paste::check::pastes(&explanation.unmet.as_ref().unwrap().hint);
        assert_eq!(reason(explanation).as_deref(), Some("NoAgent"));
        assert!(explain(&Found { agent: Some(Ok("tributary-7d4f".into())), ..gone }).ready);
    }

    #[test]
    fn nodes_that_cannot_be_brought_are_named_after_all_else() {
        for word in ["Invalid", "NotServed"] {
            let said = json!({"type": "ScaleUp", "status": "False", "reason": word, "message": "why",
                "lastTransitionTime": "2026-01-01T00:00:00Z"});
            let explanation = explain(&found(json!({}), json!({"connected": true, "conditions": [said]})));
            assert_eq!(explanation.steps.last().unwrap().condition, "Imports");
            assert!(!explanation.unmet.as_ref().unwrap().hint.contains("log"), "{explanation:?}");
            assert_eq!(reason(explanation).as_deref(), Some(word));
        }
    }

    #[test]
    fn a_drained_or_suspended_peer_is_not_ready_though_it_is_connected() {
        let of = |spec: Value| explain(&found(spec, json!({"connected": true})));
        crate::paste::check::pastes(&of(json!({"drain": true})).unmet.unwrap().hint);
        assert_eq!(reason(of(json!({"drain": true}))).as_deref(), Some("Draining"));
        assert_eq!(reason(of(json!({"suspend": true}))).as_deref(), Some("Suspended"));
        let free = of(json!({}));
        assert!(free.ready, "{free:?}");
        assert_eq!(free.steps.last().unwrap().detail, "it may place nothing here: its ClusterPeer has no import");
    }
}
