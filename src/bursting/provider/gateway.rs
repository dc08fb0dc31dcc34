//! A burst that has lost its gateway. Pure.
//!
//! The other brokers of a burst are connected through its pod of index 0. Flux fixes who is whose parent when rank 0 starts:
//! no other broker can take the place, and the lead takes none that goes past it. The others wait for it, however long, and
//! are not ready meanwhile. Only a pod of the same index helps, and the Job makes that once the old one is gone. If that is on
//! a node that is lost, [`lost_pods`](crate) sees to it. If there is no place for the new one, it gets that of the
//! last broker: a burst without its last broker is of use, one without its gateway is not.
//!
//! All of it is shown with real brokers in `tests/suite/real_flux/gateway.rs`.

use std::time::Duration;

use tributary_api::hosted_burst::HostedBurst;
use tributary_clock::Mono;
use tributary_flux::RankMap;

use super::scale_up;
use super::slot::{Change, SlotStep, SlotView};
use crate::nodes::PodView;
use crate::note::Note;

/// How long a gateway may be without a place before a pod is deleted for it.
pub(super) const GIVEN_UP: Duration = Duration::from_secs(60);

/// A gateway that does not come back by itself.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Stuck {
    /// What would help.
    pub removal: Removal,
    /// Since when this is so.
    pub since: Mono,
}

/// A pod to delete for the gateway's sake.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Removal {
    /// The gateway's pod.
    pub gateway: String,
    /// The last broker's, in whose place it can run.
    pub last: String,
}

impl Removal {
    /// What is said about it.
    pub(super) fn note(&self) -> Note {
        let Self { gateway, last } = self;
        let message = format!(
            "pod {gateway} found no place, and no broker can join without it: pod {last}, the last of the burst, makes room \
             and is started again when there is some"
        );
        Note::warning("GatewayGivenPlace", message)
    }
}

/// Sees to it that a burst gets its gateway back.
pub(super) fn attend(view: &SlotView<'_>, hosted: &HostedBurst, step: &mut SlotStep) {
    let Some(removal) = remedy(view, hosted) else {
        step.memory.gateway = None;
        return;
    };
    let known = step.memory.gateway.take().filter(|stuck| stuck.removal == removal);
    let mut stuck = known.unwrap_or(Stuck { removal, since: view.now.mono });
    if view.now.mono.saturating_since(stuck.since) >= GIVEN_UP {
        step.changes.push(Change::DeletePod(stuck.removal.clone()));
        // Somebody else may take the place that becomes free: again, but not at once.
        stuck.since = view.now.mono;
    }
    super::teardown::wake(step, GIVEN_UP.saturating_sub(view.now.mono.saturating_since(stuck.since)));
    step.memory.gateway = Some(stuck);
}

/// What would help a gateway that is missing; `None`: it is there, or others are at it.
fn remedy(view: &SlotView<'_>, hosted: &HostedBurst) -> Option<Removal> {
    let node = |pod: &PodView| pod.node.as_ref().and_then(|name| view.facts.nodes.get(name));
    let gateway = view.pods.iter().find(|pod| pod.index == Some(0) && !pod.finished)?;
    // Who waits for nodes takes no place of others: they come for all, or it is given back.
    if gateway.terminating || scale_up::waits(view, hosted) || !gateway.unschedulable || !has_gateway(hosted) {
        return None;
    }
    // Any pod of the Job would do: they are all alike.
    let others = view.pods.iter().filter(|pod| pod.index != Some(0) && pod.running && !pod.terminating);
    let last = others.filter(|pod| node(pod).is_some_and(|node| node.schedulable)).max_by_key(|pod| pod.index)?;
    Some(Removal { gateway: gateway.name.clone(), last: last.name.clone() })
}

/// Whether the burst's first broker is the parent of its others.
fn has_gateway(hosted: &HostedBurst) -> bool {
    let rank_map = RankMap::parse_canonical(&hosted.spec.rank_map).ok();
    rank_map.and_then(|map| map.slot(&hosted.spec.slot).map(|slot| slot.parent.is_some())).unwrap_or(false)
}
