//! Whether an offer may be taken: everything that can be decided without a request. Pure.
//!
//! What passes here is rendered, judged as a pod ([`judge_pod`]) and shown to the API server (dry run) before anything is
//! written; see [`super::controller`].

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{PodTemplateSpec, Toleration};

use super::ledger::{Ledger, SlotKey};
use super::pod_security;
use super::policy;
use crate::api::names;
use crate::api::peer::ImportPolicy;
use crate::bursting::nodes::{self, Amounts, NodeView, PodView, Taint};
use crate::bursting::template::{BurstTemplate, PodTemplate};
use crate::contract::{DesiredBurst, PeerName, Rejection, RejectionReason};
use crate::flux::RankMap;

/// Service account of hosted pods, where the policy names none.
pub const DEFAULT_SERVICE_ACCOUNT: &str = "default";

/// What admission looks at.
#[derive(Clone, Copy, Debug)]
pub struct Facts<'a> {
    /// What the peer may place here; `None`: nothing.
    pub import: Option<&'a ImportPolicy>,
    /// Whether the offer's namespace exists.
    pub namespace_exists: bool,
    /// What is promised already.
    pub ledger: &'a Ledger,
    /// The nodes.
    pub nodes: &'a BTreeMap<String, NodeView>,
    /// All pods.
    pub pods: &'a [PodView],
}

/// An offer that may be taken.
#[derive(Clone, Debug, PartialEq)]
pub struct Admitted {
    /// The template, with the service account that is imposed.
    pub template: BurstTemplate,
    /// The rank map of the instance.
    pub rank_map: RankMap,
}

/// Decides about an offer of `peer`.
///
/// # Errors
/// The first reason not to take it, in the order in which its owner would want to hear them: permission, room by quota,
/// the offer itself, room on the nodes.
pub fn admit(peer: &PeerName, desired: &DesiredBurst, facts: &Facts<'_>) -> Result<Admitted, Rejection> {
    let policy = facts.import.ok_or_else(|| {
        let message = format!("ClusterPeer {peer} has no import here: its owner allows no bursts of {peer}");
        Rejection::new(RejectionReason::ImportNotAllowed, message)
    })?;
    namespace(peer, desired, policy, facts.namespace_exists)?;
    quotas(peer, desired, policy, facts.ledger)?;
    let rank_map = rank_map(desired)?;
    let mut template = BurstTemplate::parse(&desired.template)
        .map_err(|error| Rejection::new(RejectionReason::InvalidTemplate, error.to_string()))?;
    let forbidden = policy::forbidden(&template, policy);
    if !forbidden.is_empty() {
        let message = format!("the import policy of ClusterPeer {peer} does not allow: {}", forbidden.join("; "));
        return Err(Rejection::new(RejectionReason::PolicyForbids, message));
    }
    room(desired, &template.pod, facts)?;
    impose(&mut template, policy);
    Ok(Admitted { template, rank_map })
}

/// Sets the service account that hosted pods get.
fn impose(template: &mut BurstTemplate, policy: &ImportPolicy) {
    let imposed = || policy.service_account.clone().unwrap_or_else(|| DEFAULT_SERVICE_ACCOUNT.to_owned());
    template.pod.service_account_name.get_or_insert_with(imposed);
}

/// Judges the rendered pod against the level of the policy.
///
/// # Errors
/// [`RejectionReason::PodSecurity`] with every violation.
pub fn judge_pod(peer: &PeerName, policy: &ImportPolicy, pod: &PodTemplateSpec) -> Result<(), Rejection> {
    let violations = pod_security::judge(policy.pod_security, pod);
    if violations.is_empty() {
        return Ok(());
    }
    let all: Vec<_> = violations.iter().map(ToString::to_string).collect();
    let level = policy.pod_security.as_str();
    let message =
        format!("the pod does not pass level {level} of ClusterPeer {peer}'s import policy: {}", all.join("; "));
    Err(Rejection::new(RejectionReason::PodSecurity, message))
}

fn namespace(peer: &PeerName, desired: &DesiredBurst, policy: &ImportPolicy, exists: bool) -> Result<(), Rejection> {
    let namespace = &desired.root.namespace;
    if !policy.namespaces.iter().any(|allowed| allowed == "*" || allowed == namespace) {
        let message = format!("namespace {namespace} is not in import.namespaces of ClusterPeer {peer}");
        return Err(Rejection::new(RejectionReason::NamespaceNotAllowed, message));
    }
    if !exists {
        let message = format!("namespace {namespace} does not exist here: its owner has to create it");
        return Err(Rejection::new(RejectionReason::NamespaceNotFound, message));
    }
    Ok(())
}

fn quotas(peer: &PeerName, desired: &DesiredBurst, policy: &ImportPolicy, ledger: &Ledger) -> Result<(), Rejection> {
    let key = slot_key(desired);
    let (bursts, brokers) = ledger.held_by(peer, Some(&key));
    if limit(policy.max_bursts).is_some_and(|limit| bursts >= limit) {
        let message = format!("{peer} has {bursts} bursts here, and import.maxBursts allows no more");
        return Err(Rejection::new(RejectionReason::TooManyBursts, message));
    }
    let wanted = brokers.saturating_add(desired.max_size);
    if let Some(limit) = limit(policy.max_brokers).filter(|limit| wanted > *limit) {
        let message = format!(
            "{peer} has {brokers} brokers here and wants {} more, but import.maxBrokers is {limit}",
            desired.max_size
        );
        return Err(Rejection::new(RejectionReason::TooManyBrokers, message));
    }
    Ok(())
}

/// A limit as users write it; a negative one allows nothing.
pub(super) fn limit(written: Option<i32>) -> Option<u32> {
    written.map(|limit| u32::try_from(limit).unwrap_or(0))
}

/// The rank map, if it says of this slot what the offer says.
fn rank_map(desired: &DesiredBurst) -> Result<RankMap, Rejection> {
    let mismatch = |message: String| Rejection::new(RejectionReason::RankMapMismatch, message);
    let invalid = |message: String| Rejection::new(RejectionReason::InvalidTemplate, message);
    for (what, name) in [("burst", &desired.slot), ("MiniCluster", &desired.root.name)] {
        names::validate(what, name).map_err(|error| invalid(error.to_string()))?;
    }
    if desired.size == 0 || desired.size > desired.max_size {
        return Err(invalid(format!("{} of at most {} brokers make no burst", desired.size, desired.max_size)));
    }
    let map = RankMap::parse_canonical(&desired.rank_map).map_err(|error| mismatch(error.to_string()))?;
    let computed = map.digest().to_string();
    if computed != desired.rank_map_digest {
        let message = format!("the rank map's digest is {computed} here and {} there", desired.rank_map_digest);
        return Err(mismatch(message));
    }
    if map.root().name != desired.root.name {
        return Err(mismatch(format!("the rank map is of {}, the burst of {}", map.root().name, desired.root.name)));
    }
    let slot = map.bursts().iter().find(|slot| slot.name == desired.slot);
    let slot = slot.ok_or_else(|| mismatch(format!("the rank map has no slot {}", desired.slot)))?;
    let offered = (desired.max_size, desired.cores, desired.gpus);
    if (slot.max_size, slot.cores, slot.gpus) != offered {
        let (size, cores, gpus) = offered;
        let message = format!(
            "slot {} has {} brokers with {} cores and {} GPUs in the rank map, and {size}, {cores} and {gpus} in the offer",
            slot.name, slot.max_size, slot.cores, slot.gpus
        );
        return Err(mismatch(message));
    }
    Ok(map)
}

/// Whether the nodes have room for the brokers wanted now, besides everything promised.
fn room(desired: &DesiredBurst, pod: &PodTemplate, facts: &Facts<'_>) -> Result<(), Rejection> {
    let key = slot_key(desired);
    let tolerates = |taint: &Taint| pod.tolerations.iter().any(|toleration| tolerates(toleration, taint));
    let mut free = nodes::free(facts.nodes, facts.pods, &facts.ledger.brokers(), &tolerates);
    for ((namespace, slot), entry) in facts.ledger.entries().filter(|(other, _)| **other != key) {
        let of_job = |pod: &&PodView| pod.namespace == *namespace && pod.job.as_ref() == Some(slot);
        let bound = facts.pods.iter().filter(of_job).filter(|pod| pod.node.is_some() && !pod.finished).count();
        let pending = entry.size.saturating_sub(u32::try_from(bound).unwrap_or(u32::MAX));
        nodes::take(&mut free, Amounts::broker(entry.cores, entry.gpus), pending);
    }
    let fits = nodes::fits(&free, Amounts::broker(desired.cores, desired.gpus));
    if fits >= desired.size {
        return Ok(());
    }
    let largest = free.values().map(|node| node.milli_cores / 1000).max().unwrap_or(0).max(0);
    let gpus = if desired.gpus > 0 { format!(" and {} GPUs", desired.gpus) } else { String::new() };
    let message = format!(
        "{} brokers with {} cores{gpus} each are wanted and {fits} fit on {} nodes, of which the largest has {largest} \
         free cores",
        desired.size,
        desired.cores,
        free.len()
    );
    Err(Rejection::new(RejectionReason::NotEnoughCores, message))
}

/// Namespace and name an offer would take.
pub fn slot_key(desired: &DesiredBurst) -> SlotKey {
    (desired.root.namespace.clone(), desired.slot.clone())
}

/// Source: <https://kubernetes.io/docs/concepts/scheduling-eviction/taint-and-toleration/>.
fn tolerates(toleration: &Toleration, taint: &Taint) -> bool {
    let text = |text: &Option<String>| text.clone().unwrap_or_default();
    let (key, effect) = (text(&toleration.key), text(&toleration.effect));
    let exists = toleration.operator.as_deref() == Some("Exists");
    (effect.is_empty() || effect == taint.effect)
        && (key == taint.key || key.is_empty() && exists)
        && (exists || text(&toleration.value) == taint.value)
}

#[cfg(test)]
pub(crate) mod tests;
