//! Bursts that bring their nodes. Pure.
//!
//! A burst that fits on nodes which an autoscaler would add is taken though these nodes are not there. Nobody is asked for
//! them: the pods are made, no node takes them, and pods that wait are what cluster-autoscaler and Karpenter act on.
//!
//! How many nodes a burst may bring is decided when it is admitted, and stays with its HostedBurst: it counts against
//! `import.scaleUp` as long as the burst is here, also while its pods run on these nodes. Its pods all get nodes within
//! `wait`, or it is given back: it ends like any other, and only then its root hears that it is refused. So nothing of it is
//! left here when it is placed elsewhere.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use tributary_api::duration::Lasting;
use tributary_api::hosted_burst::{HostedBurst, Provisioning};
use tributary_api::node_group::{LimitedNodeGroup, NewNodes, ScaleUp, ScaleUpPolicy};
use tributary_api::peer::ImportPolicy;
use tributary_clock::Mono;
use tributary_contract::{DesiredBurst, PeerName, PossibleCapacity, Rejection, RejectionReason};
use tributary_flux::Idset;
use tributary_render::nodes::Amounts;

use super::capacity::open;
use super::kueue;
use super::provisioning;
use super::slot::{SlotStep, SlotView};
use super::sync;
use super::teardown::{self, Reason};
use super::whole;
use crate::nodes::{NodeChoice, NodeView};
use crate::peers::{self, dearest};
use crate::timing::later;

/// Brokers that found no room.
#[derive(Clone, Copy, Debug)]
pub(super) struct Homeless<'a> {
    /// What each takes.
    pub(super) broker: Amounts,
    /// How many.
    pub(super) count: u32,
    /// Where they may run.
    pub(super) choice: NodeChoice<'a>,
}

/// The nodes that they bring, beside those (`held`, by group) that bursts of their peer have brought.
///
/// # Errors
/// They fit on no node of the policy, or on more of them than it allows.
pub(super) fn plan(
    peer: &PeerName,
    policy: &ScaleUpPolicy,
    homeless: &Homeless<'_>,
    held: &BTreeMap<&str, u32>,
) -> Result<ScaleUp, Rejection> {
    let Homeless { broker, count, choice } = homeless;
    let holds = |group: &LimitedNodeGroup| {
        let node = NodeView::of_group(&group.group);
        if choice.takes(&node) { node.allocatable.holds(*broker) } else { 0 }
    };
    let mut groups: Vec<(&LimitedNodeGroup, u32)> =
        policy.node_groups.iter().map(|group| (group, holds(group))).filter(|(_, holds)| *holds > 0).collect();
    if groups.is_empty() {
        let names: Vec<_> = policy.node_groups.iter().map(|group| group.group.name.as_str()).collect();
        let message = format!(
            "a node of {} (import.scaleUp of ClusterPeer {peer}) would not take one either: its pods may not run there, or such \
             a node has less than {broker}",
            names.join(", ")
        );
        return Err(Rejection::new(RejectionReason::NotEnoughCores, message));
    }
    let left = left(policy, held);
    let as_written = nodes(&groups, left, held, *count);
    let nodes = as_written.or_else(|_| {
        // Fewer of the largest may do where the first ones do not.
        groups.sort_by_key(|(_, holds)| std::cmp::Reverse(*holds));
        nodes(&groups, left, held, *count)
    });
    let provisioning_request = policy.provisioning_request.clone();
    nodes.map(|nodes| ScaleUp { nodes, wait: policy.wait, provisioning_request }).map_err(|rest| {
        let names: Vec<_> = groups.iter().map(|(group, _)| group.group.name.as_str()).collect();
        let message = format!(
            "import.scaleUp of ClusterPeer {peer} leaves {left} of its {} nodes: with nodes of {}, there is room for {} of the \
             {count} brokers that lack it",
            policy.max_nodes,
            names.join(", "),
            count - rest
        );
        Rejection::new(RejectionReason::TooManyNodes, message)
    })
}

/// What a peer is told of nodes that bursts of its could still bring (`held`: those that they have brought).
pub(super) fn possible(import: &ImportPolicy, held: &BTreeMap<&str, u32>) -> Option<PossibleCapacity> {
    let policy = import.scale_up.as_ref()?;
    let left = left(policy, held);
    let open = open(import);
    let groups = policy.node_groups.iter().filter_map(|group| {
        let node = NodeView::of_group(&group.group);
        let count = free(group, left, held);
        (count > 0 && open(&node)).then_some((node.allocatable, count))
    });
    let groups: Vec<(Amounts, u32)> = groups.collect();
    // The most of one kind, if only such nodes came that have the most of it.
    let most = |of: &dyn Fn(&Amounts) -> u64| {
        let mut each: Vec<(u64, u32)> = groups.iter().map(|(node, count)| (of(node), *count)).collect();
        each.sort_by_key(|(amount, _)| std::cmp::Reverse(*amount));
        let sum = each.iter().fold((0_u64, left), |(sum, left), (amount, count)| {
            let count = left.min(*count);
            (sum.saturating_add(amount.saturating_mul(count.into())), left - count)
        });
        sum.0
    };
    let whole = |amount: i64, unit: i64| u64::try_from(amount.max(0) / unit).unwrap_or(0);
    let count = |amount: u64| u32::try_from(amount).unwrap_or(u32::MAX);
    let cores = |node: &Amounts| whole(node.milli_cores, 1000);
    let possible = PossibleCapacity {
        nodes: count(most(&|_| 1)),
        cores: count(most(&cores)),
        memory_mib: most(&|node| whole(node.memory, 1 << 20)),
        gpus: count(most(&|node| whole(node.gpus, 1))),
        largest_node_cores: count(groups.iter().map(|(node, _)| cores(node)).max().unwrap_or(0)),
        price: dearest(policy.node_groups.iter().filter_map(|group| group.price)),
        wait_seconds: policy.wait.unsigned(),
    };
    // Whose bursts have brought them all still has to know what they cost.
    let cost = possible.price.is_some() && !held.is_empty();
    (possible.nodes > 0 || cost).then_some(possible)
}

/// Nodes that bursts of a peer may still bring.
fn left(policy: &ScaleUpPolicy, held: &BTreeMap<&str, u32>) -> u32 {
    policy.max_nodes.saturating_sub(held.values().fold(0, |sum: u32, count| sum.saturating_add(*count)))
}

/// Nodes of one group among them.
fn free(group: &LimitedNodeGroup, left: u32, held: &BTreeMap<&str, u32>) -> u32 {
    let held = held.get(group.group.name.as_str()).copied().unwrap_or(0);
    group.max.map_or(left, |max| max.saturating_sub(held).min(left))
}

/// So many nodes of each group that `count` brokers fit; else how many are left over.
fn nodes(
    groups: &[(&LimitedNodeGroup, u32)],
    mut left: u32,
    held: &BTreeMap<&str, u32>,
    mut count: u32,
) -> Result<Vec<NewNodes>, u32> {
    let mut nodes = Vec::new();
    for (group, holds) in groups {
        let more = count.div_ceil(*holds).min(free(group, left, held));
        if more > 0 {
            nodes.push(NewNodes { group: group.group.name.clone(), count: more });
        }
        left -= more;
        count = count.saturating_sub(more.saturating_mul(*holds));
    }
    if count == 0 { Ok(nodes) } else { Err(count) }
}

/// Indexes of a burst whose pod waits for a node, or that have none which is on a node or was.
pub(super) fn waiting(view: &SlotView<'_>, hosted: &HostedBurst) -> Idset {
    let there = |living: bool| {
        let pods = view.pods.iter().filter(move |pod| !pod.terminating && pod.finished != living);
        pods.filter_map(|pod| Some((pod.index?, pod.node.is_some())))
    };
    let waits: BTreeSet<u32> = there(true).filter(|(_, bound)| !bound).map(|(index, _)| index).collect();
    // One that has ended was on a node.
    let bound: BTreeSet<u32> =
        there(true).chain(there(false)).filter(|(_, bound)| *bound).map(|(index, _)| index).collect();
    (0..hosted.spec.size).filter(|index| waits.contains(index) || !bound.contains(index)).collect()
}

/// Whether all pods of a burst that brings nodes are on nodes, or were once: then its nodes have come.
fn is_done(view: &SlotView<'_>, hosted: &HostedBurst) -> bool {
    let times = hosted.status.as_ref().and_then(|status| status.times.as_ref());
    let was = times.is_some_and(|times| times.scheduled.is_some()) || whole::was_up(hosted);
    was || sync::ready(view) >= hosted.spec.size || waiting(view, hosted).is_empty()
}

/// Whether a burst still waits for nodes that it brings.
pub(super) fn waits(view: &SlotView<'_>, hosted: &HostedBurst) -> bool {
    hosted.spec.scale_up.is_some() && !is_done(view, hosted)
}

/// When all pods of a burst that brings nodes were on nodes, if it is so far.
pub(super) fn scheduled(view: &SlotView<'_>, hosted: &HostedBurst) -> Option<MicroTime> {
    let done = hosted.spec.scale_up.is_some() && view.mini_cluster.is_some() && is_done(view, hosted);
    done.then_some(MicroTime(view.now.wall))
}

/// Until when the pods of a burst may wait for nodes: it counts from the moment when they could be made, or when nodes were
/// asked for.
fn until(hosted: &HostedBurst) -> Option<Timestamp> {
    let status = hosted.status.as_ref()?;
    let MicroTime(begun) = match provisioning::class(hosted) {
        Some(_) => status.provisioning.as_ref()?.since.clone()?,
        None => status.times.as_ref()?.provisioned.clone()?,
    };
    let begun = kueue::runs_since(hosted, begun)?;
    Some(later(begun, hosted.spec.scale_up.as_ref()?.wait.duration()))
}

/// Whether the nodes of a burst did not come in time.
pub(super) fn timed_out(view: &SlotView<'_>, hosted: &HostedBurst, step: &mut SlotStep) -> bool {
    let Some(until) = until(hosted).filter(|_| waits(view, hosted)) else { return false };
    teardown::is_past(view, until, step)
}

/// What is said of a burst that waits for nodes.
pub(super) fn message(view: &SlotView<'_>, hosted: &HostedBurst, provisioning: Option<&Provisioning>) -> String {
    let (size, waiting) = (hosted.spec.size, waiting(view, hosted));
    let bound = size.saturating_sub(u32::try_from(waiting.iter().count()).unwrap_or(u32::MAX));
    let nodes = hosted.spec.scale_up.iter().flat_map(|scale_up| &scale_up.nodes);
    let nodes = nodes.fold(0, |sum: u32, nodes| sum.saturating_add(nodes.count));
    let until = until(hosted).map(|until| format!("; if not all have one by {until:.0}, it is given back"));
    let until = until.unwrap_or_default();
    let asked = |said: &Provisioning| provisioning::sentence(hosted, said);
    match (provisioning.map(asked), view.mini_cluster) {
        (Some(asked), None) => format!("nodes for {size} pods are asked for before these are made ({asked}){until}"),
        (asked, _) => format!(
            "{bound} of {size} pods are on nodes; those of index {waiting} wait for an autoscaler, which may add up to {nodes} \
             nodes{}{until}",
            asked.map(|asked| format!(" ({asked})")).unwrap_or_default()
        ),
    }
}

/// A burst was given back: it is not waited for again for a while.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Returned {
    /// What had been offered, and under which policy: another offer, or another policy, is looked at anew.
    mark: String,
    /// Until when.
    until: Mono,
    /// What its root is told.
    pub(super) rejection: Rejection,
}

impl Returned {
    /// `why`: it was given back, and what else there is to say of that.
    pub(super) fn new(
        view: &SlotView<'_>,
        peer: &PeerName,
        desired: &DesiredBurst,
        (reason, why): (Reason, Option<&str>),
    ) -> Self {
        let import = peers::import(view.peers, peer);
        let wait = wait(import);
        let again = later(view.now.wall, wait.duration()).strftime("%H:%M:%S UTC");
        let why = why.map(|why| format!("; {why}")).unwrap_or_default();
        let (word, what) = match reason {
            Reason::ScaleUpFailed => (RejectionReason::ScaleUpFailed, format!("no nodes are provisioned for it{why}")),
            _ => (
                RejectionReason::ScaleUpTimedOut,
                format!(
                    "not all of its pods got nodes in time (import.scaleUp.wait of ClusterPeer {peer} is {wait}){why}"
                ),
            ),
        };
        let message = format!(
            "{what}: it was given back. No nodes are brought for it before {again}; room on nodes that are there is taken at once"
        );
        Self::of(view, peer, desired, wait.duration(), Rejection::new(word, message))
    }

    /// One that is refused for this time.
    pub(super) fn of(
        view: &SlotView<'_>,
        peer: &PeerName,
        desired: &DesiredBurst,
        lasts: Duration,
        rejection: Rejection,
    ) -> Self {
        Self { mark: mark(view, peer, desired), until: view.now.mono + lasts, rejection }
    }

    /// How long it still stands for this offer.
    pub(super) fn stands(&self, view: &SlotView<'_>, peer: &PeerName, desired: &DesiredBurst) -> Option<Duration> {
        let left = self.left(view.now.mono);
        (!left.is_zero() && self.mark == mark(view, peer, desired)).then_some(left)
    }

    pub(super) fn left(&self, now: Mono) -> Duration {
        self.until.saturating_since(now)
    }
}

fn mark(view: &SlotView<'_>, peer: &PeerName, desired: &DesiredBurst) -> String {
    let generation = view.peers.get(peer).and_then(|peer| peer.generation);
    format!("{}/{generation:?}/{}", desired.root.incarnation, desired.offer)
}

fn wait(import: Option<&ImportPolicy>) -> Lasting {
    import.and_then(|import| import.scale_up.as_ref()).map_or(Lasting::of_seconds(0), |policy| policy.wait)
}

#[cfg(test)]
mod tests;
