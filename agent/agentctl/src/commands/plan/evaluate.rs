//! A MiniCluster and what is known of the clusters → its plan. Pure.

use std::collections::BTreeMap;

use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{PodSpec, PodTemplateSpec, ResourceQuota};
use kube::ResourceExt;
use serde_json::Value;
use tributary::api::burst::Burst;
use tributary::api::flux_setup::FluxSetup;
use tributary::api::hosted_burst::HostedBurst;
use tributary::api::minicluster::{MiniCluster, is_manager};
use tributary::api::peer::ImportPolicy;
use tributary::api::schema::write_defaults;
use tributary::api::{names, v1alpha1};
use tributary::bursting::nodes::{NodeView, PodView};
use tributary::bursting::peers::PeerView;
use tributary::bursting::provider::admission::{self, Admitted, Facts};
use tributary::bursting::provider::ledger::{Ledger, SlotKey};
use tributary::bursting::provider::quota::{self, Ahead};
use tributary::bursting::root::offer;
use tributary::bursting::root::place::Claimed;
use tributary::bursting::template::Charge;
use tributary::config::{Config, VolumesConfig};
use tributary::contract::{DesiredBurst, PeerName, Rejection, RejectionReason};
use tributary::flux::{Idset, RankMap};
use tributary::queue::job;
use tributary::queue::priorities::Priorities;
use tributary::render::{Context, Rendered, render};

use super::candidates::Placement;
use super::change::{change, has_ended, runs_again};
use super::manifest::{self, Declared, Manifest};
use super::queue;
use super::report::{ChargeRow, ClusterPlan, MiniClusterPlan, Problem, Recipient, Refusal, Report};
use super::sides::{self, Side};
use crate::hints::{self, Object, Pair};
use crate::output::or_dash;

/// What is known of the clusters. Nothing at all is possible: then the plan is of the manifest alone.
#[derive(Clone, Debug, Default)]
pub(super) struct Known {
    /// Name of the cluster that the manifest is applied to.
    pub(super) cluster: Option<String>,
    /// What the agents there are configured to do.
    pub(super) configuration: Option<Config>,
    /// Namespace of objects that name none.
    pub(super) namespace: String,
    /// By namespace and name: the MiniCluster that is there, and its Job.
    pub(super) existing: BTreeMap<SlotKey, Existing>,
    /// Quotas by namespace.
    pub(super) quotas: BTreeMap<String, Vec<ResourceQuota>>,
    /// The FluxSetup that counts in a namespace, if there is one; a namespace that is not here: not known.
    pub(super) setups: BTreeMap<String, Option<FluxSetup>>,
    /// Who goes first in queues; `None`: not known.
    pub(super) priorities: Option<Priorities>,
    /// Namespaces that do not exist.
    pub(super) no_namespaces: Vec<String>,
    /// The peers; `None`: not known.
    pub(super) peers: Option<BTreeMap<PeerName, PeerView>>,
    /// Peers that could be looked at from inside.
    pub(super) inside: BTreeMap<PeerName, Inside>,
    /// What was not looked at, and why.
    pub(super) unchecked: Vec<String>,
}

/// What is there under the name of a planned MiniCluster.
#[derive(Clone, Debug, Default)]
pub(super) struct Existing {
    pub(super) mini_cluster: Option<MiniCluster>,
    pub(super) job: Option<Job>,
    /// Objects with names that the instance needs, and not of this MiniCluster: kind and name.
    pub(super) taken: Vec<String>,
}

/// A provider, seen with rights of its own.
#[derive(Clone, Debug, Default)]
pub(super) struct Inside {
    /// What its ClusterPeer lets the root's cluster place; `None`: nothing.
    pub(super) import: Option<ImportPolicy>,
    /// Whether its owner drains the root's cluster.
    pub(super) draining: bool,
    /// The namespace of its agent.
    pub(super) own_namespace: String,
    pub(super) namespaces: Vec<String>,
    pub(super) hosted: Vec<HostedBurst>,
    pub(super) nodes: BTreeMap<String, NodeView>,
    pub(super) pods: Vec<PodView>,
    /// Quotas by namespace.
    pub(super) quotas: BTreeMap<String, Vec<ResourceQuota>>,
    /// MiniClusters, by namespace and name, that are no hosted bursts.
    pub(super) mini_clusters: Vec<SlotKey>,
}

/// Plans everything that a manifest declares, one after the other: what one takes is not there for the next.
pub(super) fn plan(manifest: &Manifest, known: &Known) -> Report {
    let known = &manifest.laid_over(known);
    let mut drafts: Vec<Draft> = manifest.mini_clusters.iter().map(|one| draft(one, known)).collect();
    line_up(manifest, known, &mut drafts);
    let mut claimed = BTreeMap::new();
    let mini_clusters: Vec<_> = drafts.into_iter().map(|draft| finished(draft, known, &mut claimed)).collect();
    let fits = |cluster: &ClusterPlan| cluster.refusal.is_none() && cluster.charges.iter().all(|charge| charge.fits);
    Report {
        possible: mini_clusters.iter().all(|plan| plan.problems.is_empty() && plan.clusters.iter().all(fits)),
        mini_clusters,
        others: manifest.others.clone(),
        unchecked: known.unchecked.clone(),
    }
}

/// A plan in the making.
struct Draft {
    object: MiniCluster,
    existing: Existing,
    /// What an instance of it is; `None`: there is none to plan.
    rendered: Option<Rendered>,
    plan: MiniClusterPlan,
}

/// What one object comes to by itself, whatever else the manifest has.
fn draft(declared: &Declared, known: &Known) -> Draft {
    let mut object = declared.object.clone();
    let namespace = object.namespace().unwrap_or_else(|| known.namespace.clone());
    let name = object.name_any();
    let setup = known.setups.get(&namespace);
    let longest =
        setup.and_then(Option::as_ref).and_then(|setup| setup.spec.max_duration).map(|longest| longest.seconds);
    if let Some(wanted) = declared.job.as_deref()
        && let Ok(made) = job::mini_cluster(wanted, longest)
    {
        object.spec = made.spec;
        object.spec.suspend |= wanted.spec.suspend;
    }
    object.metadata.namespace = Some(namespace.clone());
    default(&mut object);
    let existing = known.existing.get(&(namespace.clone(), name.clone())).cloned().unwrap_or_default();
    if let Some(there) = &existing.mini_cluster {
        object.metadata.uid.clone_from(&there.metadata.uid);
        object.status.clone_from(&there.status);
    }
    let mut plan = MiniClusterPlan {
        namespace: namespace.clone(),
        name: name.clone(),
        flux_job: declared.job.is_some(),
        problems: declared.problems.clone(),
        ..MiniClusterPlan::default()
    };
    if known.no_namespaces.contains(&namespace) {
        let message = format!("namespace {namespace} does not exist: `kubectl create namespace {namespace}`");
        plan.problems.push(Problem::new("metadata.namespace", "NamespaceNotFound", message));
    }
    for taken in &existing.taken {
        let message = format!("{taken} is there already and belongs to something else: rename one of the two");
        plan.problems.push(Problem::new("metadata.name", "NameTaken", message));
    }
    if plan.problems.iter().any(Problem::is_unreadable) {
        plan.change = "refused: nothing can be made of it".to_owned();
        return Draft { object, existing, rendered: None, plan };
    }
    plan.problems.extend(managed(&object, existing.mini_cluster.as_ref()));
    if let Some(manager) = object.spec.left_to() {
        plan.change = format!("is left to {manager} (spec.managedBy): the agent here makes no brokers of it");
        return Draft { object, existing, rendered: None, plan };
    }
    let context = context(&object, known);
    let rendered = match render(&object, &context) {
        Ok(rendered) => rendered,
        Err(problems) => {
            let problems = problems.iter().map(|one| Problem::new(&one.field, one.reason, one.message.clone()));
            plan.problems.extend(problems);
            plan.change = match existing.job {
                Some(_) => "refused: its brokers here run on as they are; its bursts follow flux.bursting all the same",
                None => "refused: the agent makes nothing of it",
            }
            .to_owned();
            return Draft { object, existing, rendered: None, plan };
        }
    };
    plan.change = change(&object, &existing, &rendered, &context);
    plan.notes = rendered.unsupported.iter().map(|field| format!("accepted, but without effect: {field}")).collect();
    if known.configuration.is_none() && object.spec.made_volumes().next().is_some() {
        let note = "whether the administrator allows these volumes is not known: an agent may refuse them";
        plan.notes.push(note.to_owned());
    }
    plan.notes.extend(counted_by_request(&object));
    plan.rank_map_digest = Some(rendered.rank_map.digest().to_string());
    Draft { object, existing, rendered: Some(rendered), plan }
}

/// What the API server would refuse about who manages it.
fn managed(object: &MiniCluster, before: Option<&MiniCluster>) -> Option<Problem> {
    const FIELD: &str = "spec.managedBy";
    let manager = &object.spec.managed_by;
    if let Some(wrong) = manager.as_ref().filter(|manager| !is_manager(manager)) {
        let message = format!("{wrong:?} is no path below a domain, like kueue.x-k8s.io/multikueue");
        return Some(Problem::new(FIELD, "InvalidManager", message));
    }
    let differs = before.is_some_and(|before| before.spec.managed_by != *manager);
    let message = "it cannot be written, changed or taken away later: delete the MiniCluster and make another one";
    differs.then(|| Problem::new(FIELD, "Immutable", message))
}

/// Writes what the API server writes where the manifest, or a FluxJob, says nothing.
pub(super) fn default(object: &mut MiniCluster) {
    let schemas = manifest::schemas("MiniCluster");
    let Some((_, schema)) = schemas.iter().find(|(version, _)| v1alpha1::V1ALPHA2.ends_with(version)) else { return };
    let Ok(mut spec) = serde_json::to_value(&object.spec) else { return };
    write_defaults(&mut spec, schema, Value::is_null);
    if let Ok(spec) = serde_json::from_value(spec) {
        object.spec = spec;
    }
}

/// A request decides how many cores Flux has, which is not what upstream does.
fn counted_by_request(object: &MiniCluster) -> Option<String> {
    let runner = object.spec.runner().ok()?;
    let requested = runner.container.resources.effective_request("cpu")?;
    let counts = runner.container.cores.is_none() && !object.spec.flux.bursting.clusters.is_empty();
    let path = format!("spec.containers[{}]", runner.index);
    counts.then(|| {
        format!(
            "{path}.resources: with bursts, Flux counts the cores that are requested ({requested}), not those of the node; write \
             {path}.cores to say how many"
        )
    })
}

/// Says of each who stands in the queue of its namespace where that is. What runs stands in no line.
fn line_up(manifest: &Manifest, known: &Known, drafts: &mut [Draft]) {
    let mut lines: BTreeMap<String, Vec<queue::Applicant>> = BTreeMap::new();
    for (at, draft) in drafts.iter_mut().enumerate() {
        let wanted = manifest.mini_clusters[at].job.as_deref();
        let Draft { object, existing, rendered: Some(rendered), .. } = draft else { continue };
        let is_over = has_ended(existing) && !runs_again(object, existing, rendered, &context(object, known));
        if existing.job.is_some() || object.spec.suspend || is_over {
            continue;
        }
        match (known.setups.get(&draft.plan.namespace), wanted) {
            (Some(Some(_)), _) => {
                let applicant = queue::Applicant::of(at, &draft.object, wanted, draft.plan.problems.is_empty());
                lines.entry(draft.plan.namespace.clone()).or_default().push(applicant);
            }
            (Some(None), Some(_)) => draft.plan.problems.push(queue::nobody_grants(&draft.plan.namespace)),
            _ => {}
        }
    }
    for (namespace, applicants) in lines {
        let Some(Some(setup)) = known.setups.get(&namespace) else { continue };
        for (at, stands, problems) in queue::stand(setup, known.priorities.as_ref(), &applicants) {
            drafts[at].plan.queue = Some(stands);
            drafts[at].plan.problems.extend(problems);
        }
    }
}

/// The plan, with what its bursts find on the peers. `claimed`: what the manifest before it takes there.
fn finished(draft: Draft, known: &Known, claimed: &mut BTreeMap<PeerName, Claimed>) -> MiniClusterPlan {
    let Draft { object, existing, rendered, mut plan } = draft;
    let Some(rendered) = rendered else { return plan };
    let name = object.name_any();
    let own = known.cluster.clone().unwrap_or_else(|| "(here)".to_owned());
    let bursts = sides::bursts(&object, &rendered.rank_map);
    let mut side = sides::root(&object, &rendered);
    for burst in &bursts {
        side.object("Burst", burst.name_any(), format!("what {} is told of slot {}", peers_of(burst), burst.spec.slot));
    }
    plan.clusters.push(root_side(&object, &own, &rendered, side, known, &existing));
    let secret = tributary::render::secret::secret_name(&name, &object.spec);
    plan.recipients.push(Recipient { cluster: own, secret, reason: "the root".to_owned() });
    for burst in &bursts {
        plan.notes.extend(misspelt(burst, known));
        let cluster = burst_side(burst, &rendered.rank_map, known, claimed);
        if let (Some(peer), None) = (&cluster.cluster, &cluster.refusal) {
            let reason = format!("hosts {}; it gets it once it has accepted", cluster.slot);
            plan.recipients.push(Recipient { cluster: peer.clone(), secret: names::curve(&cluster.slot), reason });
        }
        plan.notes.extend(unpriced(&object, burst, &cluster, known));
        plan.clusters.push(cluster);
    }
    plan
}

/// What the agent would render with. Where its configuration is not known, volumes are taken to be allowed.
fn context(object: &MiniCluster, known: &Known) -> Context {
    if let Some(config) = &known.configuration {
        let cluster_domain = config.cluster.dns_domain().to_owned();
        let (volumes, lease) = (config.volumes.clone(), config.bursting.lease());
        return Context { cluster_domain, volumes, lease, ends: sides::ends(), ..Context::default() };
    }
    let made: Vec<_> = object.spec.made_volumes().map(|(_, volume)| volume).collect();
    let volumes = VolumesConfig {
        classes: made.iter().map(|volume| volume.storage_class().to_owned()).collect(),
        path_prefixes: made.iter().filter_map(|volume| volume.path.clone()).collect(),
        drivers: made.iter().filter_map(|volume| volume.driver.clone()).collect(),
    };
    Context { volumes, ends: sides::ends(), ..Context::default() }
}

fn root_side(
    object: &MiniCluster,
    cluster: &str,
    rendered: &Rendered,
    side: Side,
    known: &Known,
    existing: &Existing,
) -> ClusterPlan {
    // The other half of a burst that is written by hand is its own slot.
    let own = object.spec.flux.lead_broker().and_then(|_| rendered.rank_map.slot(&object.name_any()));
    let slot = own.unwrap_or(rendered.rank_map.root());
    let size = u32::try_from(object.spec.size()).unwrap_or(0);
    let namespace = object.namespace().unwrap_or_default();
    let quotas = known.quotas.get(&namespace).cloned().unwrap_or_default();
    // Pods that run are counted already.
    let running =
        existing.job.as_ref().and_then(|job| job.spec.as_ref()).and_then(|spec| spec.parallelism).unwrap_or(0);
    let more = size.saturating_sub(u32::try_from(running).unwrap_or(0));
    let charges = if more > 0 { charges(&quotas, &side.pod, more, 0) } else { Vec::new() };
    ClusterPlan {
        cluster: Some(cluster.to_owned()),
        slot: slot.name.clone(),
        placement: if own.is_some() { "a burst, written by hand" } else { "the root: it has rank 0" }.to_owned(),
        namespace,
        ranks: ranks(&rendered.rank_map, &slot.name),
        brokers: size,
        cores: slot.cores,
        counts_cores: counts_cores(object),
        gpus: slot.gpus,
        properties: slot.properties.clone(),
        objects: side.objects,
        ports: side.ports,
        charges,
        ..ClusterPlan::default()
    }
}

/// As the script of the lead decides it: nothing else than the node says how many there are, and nobody else has to know.
fn counts_cores(object: &MiniCluster) -> bool {
    let flux = &object.spec.flux;
    let written = object.spec.runner().is_ok_and(|runner| runner.container.cores.is_some());
    !written && flux.bursting.clusters.is_empty() && flux.lead_broker().is_none()
}

/// Peers that a burst names, and that are none.
fn strangers<'a>(burst: &'a Burst, known: &'a Known) -> Vec<&'a str> {
    let Some(peers) = &known.peers else { return Vec::new() };
    let named = burst.spec.peers.iter().map(String::as_str);
    named.filter(|name| !peers.contains_key(&PeerName::from(*name))).collect()
}

/// A burst that names peers of which only some are there.
fn misspelt(burst: &Burst, known: &Known) -> Option<String> {
    let strangers = strangers(burst, known);
    let some = !strangers.is_empty() && strangers.len() < burst.spec.peers.len();
    some.then(|| {
        format!("burst {} names {}, which is no peer of this cluster", burst.spec.slot, strangers.join(" and "))
    })
}

/// A budget of money that never ends where the burst goes.
fn unpriced(object: &MiniCluster, burst: &Burst, cluster: &ClusterPlan, known: &Known) -> Option<String> {
    let peer = cluster.cluster.as_deref()?;
    let view = known.peers.as_ref()?.get(peer)?;
    let limited = [&object.spec.flux.bursting.budget, &burst.spec.budget].into_iter().any(|one| one.cost.is_some());
    (limited && view.price.is_none()).then(|| {
        format!("burst {}: its budget of money never ends on {peer}: ClusterPeer {peer} has no price", burst.spec.slot)
    })
}

/// Why a burst goes nowhere, if all the peers that it names are none.
fn nowhere(burst: &Burst, known: &Known) -> Option<Refusal> {
    let strangers = strangers(burst, known);
    if strangers.is_empty() || strangers.len() < burst.spec.peers.len() {
        return None;
    }
    let itself = strangers.iter().find(|name| known.cluster.as_deref() == Some(**name));
    let message = match itself {
        Some(own) => format!("{own} is this cluster itself, whose brokers are spec.size"),
        None => format!("there is no ClusterPeer {}", strangers.join(" or ")),
    };
    let there: Vec<String> = known.peers.iter().flatten().map(|(name, _)| name.to_string()).collect();
    let hint = match there.as_slice() {
        [] => format!("this cluster has no peers: {}", hints::NO_PEERS),
        some => {
            format!("write one of the peers that there are into flux.bursting.clusters[].peer: {}", some.join(", "))
        }
    };
    Some(Refusal { reason: "UnknownPeer".to_owned(), message, hint })
}

fn burst_side(
    burst: &Burst,
    rank_map: &RankMap,
    known: &Known,
    claimed: &mut BTreeMap<PeerName, Claimed>,
) -> ClusterPlan {
    let spec = &burst.spec;
    let wish = offer::wish(burst);
    let desired = offer::desired(burst);
    let refusal = nowhere(burst, known);
    let Placement { peer, sentence: placement, candidates } = match refusal {
        Some(_) => Placement::nowhere(),
        None => Placement::of(&wish, known, claimed),
    };
    let mut plan = ClusterPlan {
        cluster: peer.as_ref().map(ToString::to_string),
        slot: spec.slot.clone(),
        placement,
        candidates,
        namespace: desired.root.namespace.clone(),
        ranks: ranks(rank_map, &spec.slot),
        brokers: spec.size,
        cores: spec.cores,
        gpus: spec.gpus,
        properties: rank_map.slot(&spec.slot).map(|slot| slot.properties.clone()).unwrap_or_default(),
        refusal,
        ..ClusterPlan::default()
    };
    if plan.refusal.is_some() {
        return plan;
    }
    if let Some(peer) = &peer {
        claimed.entry(peer.clone()).or_default().add(&wish);
    }
    let own = PeerName::from(known.cluster.as_deref().unwrap_or("this-cluster"));
    match peer.as_ref().and_then(|peer| Some((peer, known.inside.get(peer)?))) {
        Some((peer, inside)) => seen_inside(&mut plan, peer, inside, &own, &desired, known),
        None => seen_outside(&mut plan, peer.as_ref().map_or("the peer", |peer| peer.as_str()), &own, &desired, known),
    }
    plan
}

/// What becomes of a burst on a peer that is not looked at.
fn seen_outside(plan: &mut ClusterPlan, peer: &str, own: &PeerName, desired: &DesiredBurst, known: &Known) {
    plan.unchecked.push(format!(
        "what {peer} lets this cluster place, its quotas and its room: --peer-context {peer}={peer} looks there; agents ask each \
         other only for what is applied"
    ));
    let made =
        sides::unjudged(desired).and_then(|admitted| sides::hosted(&plan.namespace, own, desired, &admitted, None));
    match made {
        Ok((side, _)) => (plan.objects, plan.ports) = (side.objects, side.ports),
        Err(message) => plan.refusal = Some(refused("NotRenderable", &message, peer, known, desired)),
    }
}

/// What becomes of a burst on a peer that is looked at from inside.
fn seen_inside(
    plan: &mut ClusterPlan,
    peer: &PeerName,
    inside: &Inside,
    own: &PeerName,
    desired: &DesiredBurst,
    known: &Known,
) {
    let taken = match admit(own, desired, inside) {
        Ok(taken) => taken,
        Err(Rejection { reason, message }) => {
            plan.refusal = Some(refused(reason.as_str(), &message, peer.as_str(), known, desired));
            return;
        }
    };
    (plan.namespace, plan.charges) = (taken.namespace, taken.charges);
    (plan.objects, plan.ports) = (taken.side.objects, taken.side.ports);
    if let Some(queue) = taken.queue {
        plan.unchecked.push(format!(
            "when its Job starts: it waits in LocalQueue {queue} of Kueue on {peer} (import.queueName) until the ClusterQueue there \
             has room"
        ));
    }
    plan.unchecked.push(format!("what the API server of {peer} says of the Job (its admission plugins and webhooks)"));
    if !taken.brings.is_empty() {
        plan.placement += &format!(", and waits for nodes that {peer} adds: {}", taken.brings.join(", "));
        let asked = taken.class.map(|class| format!(" (asked for by a ProvisioningRequest of class {class})"));
        plan.placement += &asked.unwrap_or_default();
    }
}

/// What a provider would make of an offer that it takes.
struct Taken {
    namespace: String,
    side: Side,
    charges: Vec<ChargeRow>,
    /// Nodes that have to come, by group.
    brings: Vec<String>,
    /// By which class of ProvisioningRequests they are asked for.
    class: Option<String>,
    /// The queue of Kueue that its Job waits in.
    queue: Option<String>,
}

/// What a provider would say to an offer: as its agent does it, without writing.
fn admit(own: &PeerName, desired: &DesiredBurst, inside: &Inside) -> Result<Taken, Rejection> {
    let mut ledger = Ledger::default();
    ledger.rebuild(&inside.hosted);
    let slot = admission::slot_key(own, desired, inside.import.as_ref());
    let facts = Facts {
        import: inside.import.as_ref(),
        draining: inside.draining,
        slot: &slot,
        namespace_exists: inside.namespaces.contains(&slot.0),
        own_namespace: &inside.own_namespace,
        ledger: &ledger,
        nodes: &inside.nodes,
        pods: &inside.pods,
    };
    let admitted: Admitted = admission::admit(own, desired, &facts)?;
    let other =
        inside.hosted.iter().find(|hosted| hosted.namespace().as_ref() == Some(&slot.0) && hosted.name_any() == slot.1);
    let theirs = other.filter(|hosted| hosted.spec.peer != own.as_str() || hosted.spec.root.name != desired.root.name);
    if theirs.is_some() || inside.mini_clusters.contains(&slot) {
        let message = format!("{}/{} is there already and is another's", slot.0, slot.1);
        return Err(Rejection::new(RejectionReason::NameTaken, message));
    }
    let (side, rendered) = sides::hosted(&slot.0, own, desired, &admitted, inside.import.as_ref())
        .map_err(|message| Rejection::new(RejectionReason::NotRenderable, message))?;
    let import = inside.import.clone().unwrap_or_default();
    let template: PodTemplateSpec = rendered.job.spec.clone().unwrap_or_default().template;
    admission::judge_pod(own, &import, &template)?;
    let quotas = inside.quotas.get(&slot.0).cloned().unwrap_or_default();
    let lead_service = u32::from(!desired.whole);
    let mut charges = charges(&quotas, &side.pod, desired.size, lead_service);
    if let Some(exceeded) = quota::exceeded(&quotas, &side.pod, desired.size, lead_service, &Ahead::default()) {
        return Err(Rejection::new(RejectionReason::QuotaExceeded, exceeded));
    }
    charges.extend(import_charges(own, desired, &ledger, &slot, &import));
    let nodes = admitted.scale_up.iter().flat_map(|scale_up| &scale_up.nodes);
    let brings = nodes.map(|nodes| format!("{} of {}", nodes.count, nodes.group)).collect();
    let asks = admitted.scale_up.as_ref().and_then(|scale_up| scale_up.provisioning_request.as_ref());
    let class = asks.map(|asks| asks.provisioning_class_name.clone());
    Ok(Taken { namespace: slot.0, side, charges, brings, class, queue: import.queue_name })
}

/// What the limits of an import policy are charged.
fn import_charges(
    own: &PeerName,
    desired: &DesiredBurst,
    ledger: &Ledger,
    slot: &SlotKey,
    import: &ImportPolicy,
) -> Vec<ChargeRow> {
    let held = ledger.held_by(own, Some(slot));
    let all = |each: u32| u64::from(desired.max_size) * u64::from(each);
    let charge = Charge::of(desired.cores, desired.gpus, &desired.template);
    let limits = [
        ("maxBursts", import.max_bursts, held.bursts, 1),
        ("maxBrokers", import.max_brokers, held.brokers, all(1)),
        ("maxCores", import.max_cores, held.cores, all(charge.cores)),
        ("maxGpus", import.max_gpus, held.gpus, all(charge.gpus)),
    ];
    let row = |(field, limit, held, needed): (&str, Option<i32>, u64, u64)| {
        let left = u64::try_from(limit?).unwrap_or(0).saturating_sub(held);
        Some(ChargeRow::new("import policy", field, left, needed, needed <= left))
    };
    let bytes = |of: admission::Measured| {
        let left = of.limit?.saturating_sub(of.held);
        let needed = u128::from(of.each.requested) * u128::from(desired.max_size);
        let fits = needed <= left && !of.each.open;
        Some(ChargeRow::new("import policy", of.field, admission::amount(left), admission::amount(needed), fits))
    };
    let measured = admission::measured(import, &held, &charge).into_iter().filter_map(bytes);
    limits.into_iter().filter_map(row).chain(measured).collect()
}

fn peers_of(burst: &Burst) -> String {
    match burst.spec.peers.as_slice() {
        [] => "a peer".to_owned(),
        some => some.join(" or "),
    }
}

fn refused(reason: &str, message: &str, peer: &str, known: &Known, desired: &DesiredBurst) -> Refusal {
    let burst = Object { namespace: &desired.root.namespace, name: &desired.slot };
    let hint = hints::refusal(reason, message, Pair { peer, us: known.cluster.as_deref() }, burst);
    Refusal { reason: reason.to_owned(), message: message.to_owned(), hint }
}

fn charges(quotas: &[ResourceQuota], pod: &PodSpec, brokers: u32, services: u32) -> Vec<ChargeRow> {
    let charges = quota::charges(quotas, pod, brokers, services, &Ahead::default());
    charges.into_iter().map(|one| ChargeRow::new(one.quota, one.resource, one.left, one.needed, one.fits)).collect()
}

/// Ranks of a slot, `0` or `4-6`.
fn ranks(rank_map: &RankMap, slot: &str) -> String {
    or_dash(rank_map.ranks(slot).map(Idset::from))
}
