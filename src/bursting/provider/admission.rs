//! Whether an offer may be taken: everything that can be decided without a request. Pure.
//!
//! What passes here is rendered, judged as a pod ([`judge_pod`]) and shown to the API server (dry run) before anything is
//! written; see [`super::controller`].

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::PodTemplateSpec;
use tributary_api::minicluster::Amount;
use tributary_api::names;
use tributary_api::node_group::ScaleUp;
use tributary_api::peer::ImportPolicy;
use tributary_contract::{DesiredBurst, PeerName, Rejection, RejectionReason};
use tributary_flux::{FluxVersion, RankMap};
use tributary_render::quantity::milli;

use super::ledger::{Ledger, SlotKey, Sum};
use super::pod_security;
use super::policy;
use super::scale_up::{self, Homeless};
use crate::nodes::{self, NodeChoice, NodeView, Pods};
use crate::preflight::facts;
use crate::template::{BurstTemplate, Bytes, Charge, PodTemplate};

/// Service account of hosted pods, where the policy names none.
pub const DEFAULT_SERVICE_ACCOUNT: &str = "default";

/// How the namespaces of Kubernetes itself begin.
pub(super) const SYSTEM_NAMESPACES: &str = "kube-";

/// What admission looks at.
#[derive(Clone, Copy, Debug)]
pub struct Facts<'a> {
    /// What the peer may place here; `None`: nothing.
    pub import: Option<&'a ImportPolicy>,
    /// Whether the owner of this cluster drains the peer.
    pub draining: bool,
    /// Where the burst would be.
    pub slot: &'a SlotKey,
    /// Whether that namespace exists.
    pub namespace_exists: bool,
    /// The agent's own namespace, where the keys of this cluster's identity are.
    pub own_namespace: &'a str,
    /// What is promised already.
    pub ledger: &'a Ledger,
    /// The nodes.
    pub nodes: &'a BTreeMap<String, NodeView>,
    /// All pods.
    pub pods: &'a dyn Pods,
}

/// An offer that may be taken.
#[derive(Clone, Debug, PartialEq)]
pub struct Admitted {
    /// The template, with the service account that is imposed.
    pub template: BurstTemplate,
    /// The rank map of the instance.
    pub rank_map: RankMap,
    /// Nodes that it may bring; `None`: there is room on those that are there.
    pub scale_up: Option<ScaleUp>,
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
    if facts.draining {
        let message = format!("ClusterPeer {peer} is drained here (spec.drain): nothing new is taken of {peer}");
        return Err(Rejection::new(RejectionReason::Draining, message));
    }
    namespace(peer, desired, policy, facts)?;
    quotas(peer, desired, policy, facts)?;
    let rank_map = rank_map(desired)?;
    let mut template = BurstTemplate::parse(&desired.template)
        .map_err(|error| Rejection::new(RejectionReason::InvalidTemplate, error.to_string()))?;
    let forbidden = policy::forbidden(&template, policy);
    if !forbidden.is_empty() {
        let message = format!("the import policy of ClusterPeer {peer} does not allow: {}", forbidden.join("; "));
        return Err(Rejection::new(RejectionReason::PolicyForbids, message));
    }
    if template.lead.is_some() != desired.whole {
        let message = "only a whole instance has a lead broker's part in its template, and it must have one";
        return Err(Rejection::new(RejectionReason::InvalidTemplate, message));
    }
    // Who is alone need not be like anybody else.
    if !desired.whole {
        flux_version(peer, desired, &template, policy)?;
    }
    impose(&mut template, policy);
    let scale_up = room(peer, desired, &template.pod, policy, facts)?;
    Ok(Admitted { template, rank_map, scale_up })
}

/// Sets what the policy imposes on hosted pods. What a template was allowed to choose stays, but for the labels of nodes:
/// there the policy wins.
fn impose(template: &mut BurstTemplate, policy: &ImportPolicy) {
    let pod = &mut template.pod;
    let account = || policy.service_account.clone().unwrap_or_else(|| DEFAULT_SERVICE_ACCOUNT.to_owned());
    pod.service_account_name.get_or_insert_with(account);
    pod.runtime_class_name = pod.runtime_class_name.take().or_else(|| policy.runtime_class.clone());
    pod.priority_class_name.clone_from(&policy.priority_class);
    pod.node_selector.extend(policy.node_selector.clone());
    let more = policy.tolerations.iter().filter(|one| !pod.tolerations.contains(one)).cloned().collect::<Vec<_>>();
    pod.tolerations.extend(more);
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

fn namespace(
    peer: &PeerName,
    desired: &DesiredBurst,
    policy: &ImportPolicy,
    facts: &Facts<'_>,
) -> Result<(), Rejection> {
    let theirs = &desired.root.namespace;
    let (namespace, _) = facts.slot;
    let refused = |message: String| Err(Rejection::new(RejectionReason::NamespaceNotAllowed, message));
    let named = policy.namespaces.contains(theirs);
    if !named && !policy.namespaces.iter().any(|allowed| allowed == "*") {
        return refused(format!("namespace {theirs} is not in import.namespaces of ClusterPeer {peer}"));
    }
    // `*` is no word for the namespaces that run the cluster.
    if !named && namespace.starts_with(SYSTEM_NAMESPACES) {
        return refused(format!(
            "namespace {namespace} is the cluster's own: ClusterPeer {peer} would have to name it in import.namespaces"
        ));
    }
    // Whoever names it.
    if namespace == facts.own_namespace {
        return refused(format!(
            "namespace {namespace} is the agent's own here: it holds the keys of this cluster's identity, and no bursts"
        ));
    }
    if !is_namespace(namespace) {
        return refused(format!(
            "import.targetNamespace of ClusterPeer {peer} makes {namespace:?} of {theirs}, which is no name"
        ));
    }
    if !facts.namespace_exists {
        let message = format!(
            "namespace {namespace} does not exist here, or the agent does not work in it: its owner creates it, or adds it to \
             watchNamespaces of the agent's chart"
        );
        return Err(Rejection::new(RejectionReason::NamespaceNotFound, message));
    }
    Ok(())
}

/// The quotas of the policy. They count what a burst may grow to.
fn quotas(peer: &PeerName, desired: &DesiredBurst, policy: &ImportPolicy, facts: &Facts<'_>) -> Result<(), Rejection> {
    use RejectionReason::{TooManyBrokers, TooManyBursts, TooManyCores, TooManyGpus};
    let held = facts.ledger.held_by(peer, Some(facts.slot));
    if limit(policy.max_bursts).is_some_and(|limit| held.bursts >= limit.into()) {
        let message = format!("{peer} has {} bursts here, and import.maxBursts allows no more", held.bursts);
        return Err(Rejection::new(TooManyBursts, message));
    }
    let of_all = |each: u32| u64::from(desired.max_size) * u64::from(each);
    let charge = Charge::of(desired.cores, desired.gpus, &desired.template);
    let quotas = [
        (TooManyBrokers, "brokers", "maxBrokers", policy.max_brokers, held.brokers, of_all(1)),
        (TooManyCores, "cores", "maxCores", policy.max_cores, held.cores, of_all(charge.cores)),
        (TooManyGpus, "GPUs", "maxGpus", policy.max_gpus, held.gpus, of_all(charge.gpus)),
    ];
    for (reason, what, field, written, held, more) in quotas {
        if let Some(limit) = limit(written).filter(|limit| held + more > u64::from(*limit)) {
            let message = format!("{peer} has {held} {what} here and wants {more} more, but import.{field} is {limit}");
            return Err(Rejection::new(reason, message));
        }
    }
    for Measured { reason, what, field, limit, held, each } in measured(policy, &held, &charge) {
        let Some(limit) = limit else { continue };
        if each.open {
            let message = format!(
                "a container of it requests no {what}, and import.{field} of ClusterPeer {peer} counts what containers \
                 request: each has to request some"
            );
            return Err(Rejection::new(reason, message));
        }
        let more = u128::from(each.requested) * u128::from(desired.max_size);
        if held + more > limit {
            let [held, more, limit] = [held, more, limit].map(amount);
            let message =
                format!("{peer} has {held} of {what} here and wants {more} more, but import.{field} is {limit}");
            return Err(Rejection::new(reason, message));
        }
    }
    Ok(())
}

/// A quota of the policy that is an amount.
#[derive(Clone, Debug)]
pub struct Measured {
    /// Why an offer is refused that exceeds it.
    pub reason: RejectionReason,
    /// What is counted, as containers request it.
    pub what: &'static str,
    /// Its field.
    pub field: &'static str,
    /// Bytes that it allows, if it is written.
    pub limit: Option<u128>,
    /// Bytes that the peer holds.
    pub held: u128,
    /// What each broker requests.
    pub each: Bytes,
}

/// The quotas that are amounts.
pub fn measured(policy: &ImportPolicy, held: &Sum, charge: &Charge) -> [Measured; 2] {
    let quota = |reason, what, field, written: &Option<Amount>, held, each| {
        // What is no amount allows nothing.
        let bytes = |written: &Amount| milli(&written.to_string()).and_then(|milli| u128::try_from(milli / 1000).ok());
        let limit = written.as_ref().map(|written| bytes(written).unwrap_or(0));
        Measured { reason, what, field, limit, held, each }
    };
    let (memory, storage) = (&policy.max_memory, &policy.max_ephemeral_storage);
    [
        quota(RejectionReason::TooMuchMemory, "memory", "maxMemory", memory, held.memory, charge.memory),
        quota(
            RejectionReason::TooMuchEphemeralStorage,
            "ephemeral-storage",
            "maxEphemeralStorage",
            storage,
            held.ephemeral_storage,
            charge.ephemeral_storage,
        ),
    ]
}

/// Bytes, as users write them.
pub fn amount(bytes: u128) -> String {
    let units = [(1 << 30, "Gi"), (1 << 20, "Mi"), (1 << 10, "Ki")];
    let unit = units.into_iter().find(|(unit, _)| bytes > 0 && bytes.is_multiple_of(*unit));
    unit.map_or_else(|| bytes.to_string(), |(unit, word)| format!("{}{word}", bytes / unit))
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
    // A whole instance is the root of a map of its own.
    let root = if desired.whole { &desired.slot } else { &desired.root.name };
    if map.root().name != *root || desired.whole && !map.bursts().is_empty() {
        return Err(mismatch(format!("the rank map is of {}, the burst of {root}", map.root().name)));
    }
    let slots = if desired.whole { std::slice::from_ref(map.root()) } else { map.bursts() };
    let slot = slots.iter().find(|slot| slot.name == desired.slot);
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

/// Whether brokers of here can join: Flux of the offer is Flux of here, as far as both are known.
fn flux_version(
    peer: &PeerName,
    desired: &DesiredBurst,
    template: &BurstTemplate,
    policy: &ImportPolicy,
) -> Result<(), Rejection> {
    let mismatch = |message: String| Err(Rejection::new(RejectionReason::FluxVersionMismatch, message));
    let parsed = |text: &Option<String>| text.as_deref().map(str::parse::<FluxVersion>).transpose();
    let root = match parsed(&desired.flux_version) {
        Ok(root) => root,
        Err(error) => return mismatch(format!("the offer declares a Flux that nobody knows: {error}")),
    };
    let image = facts::flux_image(template);
    let (here, because) = match parsed(&policy.flux_version) {
        Ok(Some(here)) => (Some(here), format!("import.fluxVersion of ClusterPeer {peer}")),
        Ok(None) => (FluxVersion::of_image(&image), format!("the tag of image {image}")),
        Err(error) => return mismatch(format!("import.fluxVersion of ClusterPeer {peer} cannot be read: {error}")),
    };
    match root.or_else(|| FluxVersion::of_image(&image)).zip(here) {
        Some((root, here)) if root != here => mismatch(format!(
            "brokers of {} are of Flux {root}, and here they would be of {here} ({because}): major.minor must be the same",
            desired.root.name
        )),
        _ => Ok(()),
    }
}

/// Whether the nodes have room for the brokers wanted now, besides everything promised; else the nodes that it may bring.
fn room(
    peer: &PeerName,
    desired: &DesiredBurst,
    pod: &PodTemplate,
    policy: &ImportPolicy,
    facts: &Facts<'_>,
) -> Result<Option<ScaleUp>, Rejection> {
    let key = facts.slot;
    let choice =
        NodeChoice { selector: &pod.node_selector, affinity: &pod.node_affinity, tolerations: &pod.tolerations };
    let open = |node: &NodeView| choice.takes(node);
    let pods = facts.pods.views();
    let mut free = nodes::free(facts.nodes, &pods, &facts.ledger.brokers(), &open);
    let mut bound: BTreeMap<(&str, &str), u32> = BTreeMap::new();
    for pod in pods.iter().filter(|pod| pod.node.is_some() && !pod.finished) {
        *bound.entry((pod.namespace.as_str(), pod.job.as_deref().unwrap_or_default())).or_default() += 1;
    }
    for ((namespace, slot), entry) in facts.ledger.entries().filter(|(other, _)| *other != key) {
        let bound = bound.get(&(namespace.as_str(), slot.as_str())).copied().unwrap_or(0);
        let pending = entry.size.saturating_sub(bound);
        nodes::take(&mut free, entry.charge.of_node(), pending);
    }
    let charge = Charge::of(desired.cores, desired.gpus, &desired.template);
    let broker = charge.of_node();
    let fits = nodes::fits(&free, broker);
    if fits >= desired.size {
        return Ok(None);
    }
    let largest = free.values().map(|node| node.milli_cores / 1000).max().unwrap_or(0).max(0);
    let gpus = if charge.node_gpus > 0 { format!(" and {} GPUs", charge.node_gpus) } else { String::new() };
    let memory = if broker.memory > 0 {
        format!(", {} of memory", amount(charge.memory.requested.into()))
    } else {
        String::new()
    };
    let message = format!(
        "{} brokers with {} cores{memory}{gpus} each are wanted and {fits} fit on {} nodes, of which the largest has {largest} \
         free cores",
        desired.size,
        charge.cores,
        free.len()
    );
    let Some(scale_up) = &policy.scale_up else {
        return Err(Rejection::new(RejectionReason::NotEnoughCores, message));
    };
    // As other limits of the policy, this one counts what it may grow to.
    let homeless = Homeless { broker, count: desired.max_size.saturating_sub(fits), choice };
    let planned = scale_up::plan(peer, scale_up, &homeless, &facts.ledger.nodes_of(peer, Some(key)));
    planned.map(Some).map_err(|why| Rejection { message: format!("{message}; {}", why.message), ..why })
}

/// Namespace and name an offer would take: the root's namespace, or what the policy makes of it.
pub fn slot_key(peer: &PeerName, desired: &DesiredBurst, import: Option<&ImportPolicy>) -> SlotKey {
    (target_namespace(peer, &desired.root.namespace, import), desired.slot.clone())
}

/// The namespace here for bursts of roots in `theirs`.
pub(crate) fn target_namespace(peer: &PeerName, theirs: &str, import: Option<&ImportPolicy>) -> String {
    match import.and_then(|import| import.target_namespace.as_deref()).filter(|text| !text.is_empty()) {
        Some(template) => template.replace("{peer}", peer.as_str()).replace("{namespace}", theirs),
        None => theirs.to_owned(),
    }
}

/// Whether a namespace can have this name: a DNS label (RFC 1123).
fn is_namespace(name: &str) -> bool {
    let inner = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    !name.is_empty() && name.len() <= 63 && name.chars().all(inner) && !name.starts_with('-') && !name.ends_with('-')
}

#[cfg(test)]
pub(crate) mod tests;
