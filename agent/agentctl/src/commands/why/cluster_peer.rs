//! What keeps a peer from being used. Pure.

use kube::ResourceExt;
use tributary::api::labels::condition::BUDGET;
use tributary::api::peer::ClusterPeer;
use tributary::cluster::conditions::find;

use super::burst;
use crate::explain::{Condition, Explanation, Verdict, walk};
use crate::hints::Pair;

/// What it takes until bursts go to a peer, and come from it.
const CONDITIONS: [Condition<ClusterPeer>; 3] = [("Connected", connected), ("Budget", budget), ("Imports", imports)];

/// The first of [`CONDITIONS`] that a peer does not meet.
pub(crate) fn explain(peer: &ClusterPeer) -> Explanation {
    walk(format!("ClusterPeer {}", peer.name_any()), peer, &CONDITIONS)
}

fn connected(peer: &ClusterPeer) -> Verdict {
    burst::disconnected(peer, Pair { peer: &peer.name_any(), us: None })
        .unwrap_or_else(|| Verdict::Met("heartbeats arrive".to_owned()))
}

fn budget(peer: &ClusterPeer) -> Verdict {
    let conditions = peer.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
    match find(conditions, BUDGET) {
        Some(said) if said.status == "False" => {
            let hint = "raise spec.budget of the ClusterPeer, or give its renewal another value";
            Verdict::unmet(said.reason.clone(), said.message.clone(), hint)
        }
        Some(said) => Verdict::Met(said.message.clone()),
        None => Verdict::Skip,
    }
}

/// Not every peer is meant to place something here.
fn imports(peer: &ClusterPeer) -> Verdict {
    Verdict::Met(match &peer.spec.import {
        Some(import) => format!("it may place bursts here, from {}", import.namespaces.join(", ")),
        None => "it may place nothing here: its ClusterPeer has no import".to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_drained_or_suspended_peer_is_not_ready_though_it_is_connected() {
        let of = |spec: serde_json::Value| -> Explanation {
            let peer = json!({"metadata": {"name": "west"}, "spec": spec, "status": {"connected": true}});
            explain(&serde_json::from_value(peer).unwrap())
        };
        crate::paste::check::pastes(&of(json!({"drain": true})).unmet.unwrap().hint);
        let reason = |explanation: Explanation| explanation.unmet.map(|unmet| unmet.reason);
        assert_eq!(reason(of(json!({"drain": true}))).as_deref(), Some("Draining"));
        assert_eq!(reason(of(json!({"suspend": true}))).as_deref(), Some("Suspended"));
        let free = of(json!({}));
        assert!(free.ready, "{free:?}");
        assert_eq!(free.steps.last().unwrap().detail, "it may place nothing here: its ClusterPeer has no import");
    }
}
