//! The gateway of a burst on a node that is lost. Pure.
//!
//! The other brokers of a burst are connected through its pod of index 0, and Flux fixes who is whose parent when rank 0
//! starts: no other broker can take the place, and no broker can go past it. Only a pod of the same index can, and a Job
//! makes that once the old one is gone. On a node that does not answer it never is: its deletion waits for a kubelet that is
//! not there. So it is deleted without waiting. Should the node come back, with the broker that has lost its place, the lead
//! does not take that one, and it ends (shown with real brokers in `tests/suite/real_flux/gateway.rs`).

use std::time::Duration;

use super::slot::{Change, SlotStep, SlotView};
use crate::clock::Mono;

/// How long a gateway that is being deleted may stay on a node that does not answer. Kubernetes deletes pods of such nodes
/// after 5 minutes of its own (taint `node.kubernetes.io/unreachable`).
pub(super) const GIVEN_UP: Duration = Duration::from_secs(60);

/// A gateway that does not go.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Stuck {
    /// Name of the pod.
    pub pod: String,
    /// Since when this is so.
    pub since: Mono,
}

/// Sees to it that a lost gateway makes room for its successor.
pub(super) fn attend(view: &SlotView<'_>, step: &mut SlotStep) {
    let on_lost_node = |name: &String| view.facts.nodes.get(name).is_some_and(|node| node.lost);
    let stuck = view.pods.iter().find(|pod| {
        pod.index == Some(0) && pod.terminating && !pod.finished && pod.node.as_ref().is_some_and(on_lost_node)
    });
    let Some(pod) = stuck else {
        step.memory.gateway = None;
        return;
    };
    let known = step.memory.gateway.take().filter(|stuck| stuck.pod == pod.name);
    let stuck = known.unwrap_or_else(|| Stuck { pod: pod.name.clone(), since: view.now.mono });
    let left = GIVEN_UP.saturating_sub(view.now.mono.saturating_since(stuck.since));
    if left.is_zero() {
        step.changes.push(Change::DeletePodAtOnce(pod.name.clone()));
    } else {
        super::ending::wake(step, left);
    }
    step.memory.gateway = Some(stuck);
}
