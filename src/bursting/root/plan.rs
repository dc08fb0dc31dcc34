//! A root MiniCluster → the Bursts it should have. Pure.
//!
//! What an incarnation was started with is frozen: rank map, certificate, template, cores. What may change while it runs is
//! the size within what was declared, the choice of peers for slots that nobody has taken yet, the lead's address, and that
//! it is over. The live object alone does not say what is frozen: others may patch it (see `frozen`).

use std::collections::BTreeMap;

use kube::ResourceExt;
use tributary_api::burst::{Burst, BurstRefusal, BurstSpec, CredentialRecipient, OnDemandSpec};
use tributary_api::duration::Lasting;
use tributary_api::hosted_burst::BurstPhase;
use tributary_api::labels::{self, condition};
use tributary_api::minicluster::{BurstCluster, BurstMode, BurstNetworkType, MiniCluster, MiniClusterStatus, Phase};
use tributary_api::names;
use tributary_cluster::{conditions, traced};
use tributary_config::BurstingConfig;
use tributary_contract::LeadAddress;
use tributary_flux::{RankMap, Slot};
use tributary_telemetry::TraceContext;

use super::{frozen, hold, offer};
use crate::template::BurstTemplate;
use crate::timing::Times;

/// What has to be done about a Burst.
#[derive(Clone, PartialEq, Debug)]
pub enum PlanChange {
    /// Apply this object.
    Apply(Box<Burst>),
    /// Delete it: its slot is gone, and nothing of it is left anywhere.
    Delete {
        /// Its name.
        name: String,
        /// Its UID.
        uid: String,
    },
}

/// Whether a root's bursts must go: it ended, is held back, is being started anew, or is being deleted.
pub fn is_over(root: &MiniCluster) -> bool {
    let status = root.status.as_ref();
    let phase = status.and_then(|status| status.phase);
    let ended = matches!(phase, Some(Phase::Succeeded | Phase::Failed | Phase::Suspended | Phase::Restarting));
    let finished = status.is_some_and(|status| conditions::is_true(&status.conditions, condition::FINISHED));
    root.spec.suspend || ended || finished || root.metadata.deletion_timestamp.is_some()
}

/// What a plan needs besides the root and its Bursts.
#[derive(Clone, Copy, Debug)]
pub struct Given<'a> {
    /// The lead's address, if it is known.
    pub lead: Option<&'a LeadAddress>,
    /// Architecture of the lead's node, if it is known.
    pub arch: Option<&'a str>,
    /// Lease and drain of instances that have no Bursts yet. Those of a running one are what its peers know: a peer that
    /// is cut off keeps its burst for as long as it was told.
    pub times: &'a Times,
    /// The span of the change that is being carried out, if traces are made.
    pub trace: Option<TraceContext>,
    /// The spec cannot be carried out: what runs goes on as it is, and nothing new begins.
    pub refused: bool,
    /// Its namespace is being deleted. Kubernetes ends its pods first, and the rest only when none is left.
    pub namespace_goes: bool,
}

/// The Bursts of `root`, given those that exist (controlled by this very object).
/// The order is that of the ranks.
pub fn plan(root: &MiniCluster, existing: &[&Burst], given: Given<'_>) -> Vec<PlanChange> {
    let name = root.metadata.name.as_deref().unwrap_or_default();
    // The other half of a burst that is written by hand repeats what its root declares: those are not its own to place.
    let is_root = root.spec.flux.lead_broker().is_none();
    let declared: Vec<(String, &BurstCluster)> = root.spec.bursts(name).filter(|_| is_root).collect();
    let instance = root.status.as_ref().and_then(Instance::of);
    let slots: Vec<Slot> = instance.as_ref().map(|instance| instance.map.bursts().to_vec()).unwrap_or_default();
    let restored: Vec<Option<Burst>> = existing.iter().map(|burst| frozen::restored(burst, Some(root))).collect();
    let existing: Vec<&Burst> =
        existing.iter().zip(&restored).map(|(live, made)| made.as_ref().unwrap_or(live)).collect();
    let over = is_over(root) || given.namespace_goes;
    let mut changes = Vec::new();
    for (index, slot) in slots.iter().enumerate() {
        let before = existing.iter().copied().find(|burst| burst.spec.slot == slot.name);
        let cluster = declared.iter().find(|(name, _)| *name == slot.name).map(|(_, cluster)| *cluster);
        let wanted = cluster.is_some() && !over && !given.refused;
        let (Some(instance), true) = (&instance, wanted || before.is_some()) else { continue };
        if let (Some(before), None) = (before, cluster)
            && is_released(before)
            && !given.refused
        {
            changes.push(delete(before));
            continue;
        }
        let spec = spec(root, instance, index, slot, cluster, before, given);
        // What did not change belongs to the change that made it so.
        let kept = before.filter(|before| before.spec == spec).and_then(traced::annotated);
        let mut planned = burst(root, spec, kept.or(given.trace));
        if before.is_none_or(|before| before.spec.incarnation != instance.incarnation) {
            planned.spec.evictions = inherited(root, &planned);
        }
        if before.is_none() {
            planned.spec.holder = holder(root, &planned.spec);
        }
        changes.push(PlanChange::Apply(Box::new(planned)));
    }
    for burst in existing.iter().filter(|burst| !slots.iter().any(|slot| slot.name == burst.spec.slot)) {
        changes.extend(unplanned(root, burst, (instance.is_some(), over), given.trace));
    }
    changes
}

/// What a running instance was started with.
struct Instance {
    incarnation: String,
    map: RankMap,
    rank_map: String,
    rank_map_digest: String,
    credential_digest: String,
    credential_secret: String,
}

impl Instance {
    fn of(status: &MiniClusterStatus) -> Option<Self> {
        let rank_map = status.rank_map.clone()?;
        Some(Self {
            incarnation: status.incarnation.clone()?,
            map: RankMap::parse_canonical(&rank_map).ok()?,
            rank_map,
            rank_map_digest: status.rank_map_digest.clone()?,
            credential_digest: status.credential_digest.clone()?,
            credential_secret: status.credential_secret.clone()?,
        })
    }
}

fn spec(
    root: &MiniCluster,
    instance: &Instance,
    index: usize,
    slot: &Slot,
    cluster: Option<&BurstCluster>,
    before: Option<&Burst>,
    given: Given<'_>,
) -> BurstSpec {
    let running = before.filter(|burst| burst.spec.incarnation == instance.incarnation);
    let frozen = match running {
        Some(burst) => burst.spec.clone(),
        None => BurstSpec {
            root: root.metadata.name.clone().unwrap_or_default(),
            slot: slot.name.clone(),
            index: u32::try_from(index).unwrap_or(u32::MAX),
            max_size: slot.max_size,
            cores: slot.cores,
            gpus: slot.gpus,
            incarnation: instance.incarnation.clone(),
            rank_map: instance.rank_map.clone(),
            rank_map_digest: instance.rank_map_digest.clone(),
            credential_digest: instance.credential_digest.clone(),
            credential_secret: instance.credential_secret.clone(),
            flux_version: tributary_render::flux_version(&root.spec).map(|version| version.to_string()),
            template: BurstTemplate::of_slot(&root.spec, cluster).to_json(),
            lease: given.times.lease.into(),
            drain: root.spec.flux.drain_seconds_of_bursts().map_or(given.times.drain.into(), own_drain),
            ..before.map(|burst| wishes(&burst.spec)).unwrap_or_default()
        },
    };
    let network = root.spec.flux.bursting.network.kind;
    // What nobody understands, or what is refused, changes nothing that is there.
    let keeps = given.refused && running.is_some();
    let unknown = keeps || matches!(network, BurstNetworkType::Unknown(_));
    let tunnel =
        if unknown { running.is_some_and(|burst| burst.spec.tunnel) } else { network == BurstNetworkType::Tunnel };
    let live = match cluster {
        _ if keeps => frozen,
        Some(cluster) => BurstSpec {
            size: size(root, cluster, &frozen, running).clamp(1, frozen.max_size.max(1)),
            peers: cluster.peers().into_iter().map(str::to_owned).collect(),
            selector: cluster.selector.clone().unwrap_or_default(),
            prefer: cluster.prefer.clone(),
            budget: cluster.budget.clone(),
            on_demand: match cluster.mode {
                BurstMode::Unknown(_) => frozen.on_demand.clone(),
                _ => cluster
                    .on_demand()
                    .map(|when| OnDemandSpec { max_idle: when.max_idle().into(), min_pending: when.min_pending() }),
            },
            warm: cluster.warm,
            ..frozen
        },
        // Dropped by the user; its ranks stay declared until the next instance.
        None => frozen,
    };
    let undeclared = cluster.is_none() && running.filter(|_| keeps).is_none_or(|burst| burst.spec.release);
    BurstSpec {
        // While the lead's pod is between two nodes, the last address is better than none.
        lead: match given.lead.filter(|_| !tunnel && (keeps || !unknown)).cloned() {
            None => running.and_then(|burst| burst.spec.lead.clone()),
            known => known,
        },
        tunnel,
        arch: given.arch.map(str::to_owned).or_else(|| running.and_then(|burst| burst.spec.arch.clone())),
        release: undeclared || is_over(root) || given.namespace_goes || before.is_some_and(is_cancelled),
        ..live
    }
}

/// Brokers that are asked for. A size that is not written stays as the instance was started: the root's own may change, or
/// wait in a queue for its change.
fn size(root: &MiniCluster, cluster: &BurstCluster, frozen: &BurstSpec, running: Option<&Burst>) -> u32 {
    let recorded = |burst: &Burst| {
        let made = burst.status.as_ref()?.frozen.as_deref().filter(|made| made.incarnation == frozen.incarnation)?;
        Some(made.size)
    };
    match (cluster.size, cluster.max_size, running.map(recorded)) {
        (None, _, Some(None)) => frozen.size,
        (None, _, Some(Some(began))) if began > 0 => began,
        (None, None, None) => frozen.max_size,
        // It is written; or an older agent recorded none, and its burst goes on as it did.
        _ => u32::try_from(cluster.size(root.spec.size())).unwrap_or(0),
    }
}

/// Its brokers leave as the root's own do, within what providers grant.
fn own_drain(seconds: i32) -> Lasting {
    u32::try_from(seconds).unwrap_or(0).min(BurstingConfig::LONGEST).into()
}

/// Who threw the FluxJob out that the root was made for, when that had another root: as if they had refused this offer.
fn inherited(root: &MiniCluster, burst: &Burst) -> Vec<BurstRefusal> {
    let text = root.metadata.annotations.as_ref().and_then(|all| all.get(labels::EVICTIONS));
    // Whoever writes it by hand, and wrongly, has said nothing.
    let known = text.and_then(|text| serde_json::from_str::<Vec<BurstRefusal>>(text).ok()).unwrap_or_default();
    let wanted = BurstSpec { release: false, ..burst.spec.clone() };
    let offer = Burst { spec: wanted, ..burst.clone() }.offered();
    let by_peer: BTreeMap<String, BurstRefusal> = (known.into_iter().filter(offer::evicted))
        .map(|one| (one.peer.clone(), BurstRefusal { offer: offer.clone(), ..one }))
        .collect();
    by_peer.into_values().collect()
}

/// Who held the slot when it was another Burst, which somebody deleted, if brokers there can join this instance.
fn holder(root: &MiniCluster, spec: &BurstSpec) -> Option<CredentialRecipient> {
    let row = root.status.as_ref()?.bursts.iter().find(|row| row.name == spec.slot)?;
    row.holder.clone().filter(|holder| hold::can_join(holder, spec))
}

/// What the user wished of a slot, for one that is not declared any more.
fn wishes(spec: &BurstSpec) -> BurstSpec {
    let BurstSpec { size, peers, selector, prefer, .. } = spec.clone();
    BurstSpec { size, peers, selector, prefer, ..BurstSpec::default() }
}

/// A Burst that the present instance has no slot for.
fn unplanned(
    root: &MiniCluster,
    burst: &Burst,
    (instance_known, over): (bool, bool),
    trace: Option<TraceContext>,
) -> Option<PlanChange> {
    // Between two Jobs nothing is known of slots; only that it is over is.
    let gone = instance_known || over;
    if instance_known && is_released(burst) {
        return Some(delete(burst));
    }
    (gone && !burst.spec.release).then(|| {
        let spec = BurstSpec { release: true, ..burst.spec.clone() };
        PlanChange::Apply(Box::new(self::burst(root, spec, trace)))
    })
}

/// Whether a person took the burst back, though its root declares it.
fn is_cancelled(burst: &Burst) -> bool {
    burst.metadata.annotations.as_ref().is_some_and(|all| all.contains_key(labels::CANCEL))
}

fn is_released(burst: &Burst) -> bool {
    let phase = burst.status.as_ref().map(|status| status.phase);
    burst.spec.release && phase == Some(BurstPhase::Released)
}

fn delete(burst: &Burst) -> PlanChange {
    let name = burst.metadata.name.clone().unwrap_or_default();
    PlanChange::Delete { name, uid: offer::uid(burst).to_owned() }
}

fn burst(root: &MiniCluster, spec: BurstSpec, trace: Option<TraceContext>) -> Burst {
    let retry = root.metadata.annotations.as_ref().and_then(|annotations| annotations.get(labels::RETRY));
    let retry = retry.map(|retry| (labels::RETRY.to_owned(), retry.clone()));
    let trace = trace.map(|trace| (labels::TRACEPARENT.to_owned(), trace.to_string()));
    let annotations = retry.into_iter().chain(trace).collect();
    let name = names::burst_object(&root.name_any(), &spec.slot);
    let metadata = offer::metadata(root, labels::MINICLUSTER, name, &spec.slot, annotations);
    Burst { metadata, spec, status: None }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::time::Duration;

    use tributary_api::burst::BurstStatus;
    use tributary_flux::Topology;

    use super::*;
    use crate::peers::PeerView;

    const TIMES: Times =
        Times { lease: Duration::from_secs(300), drain: Duration::from_secs(60), grace: Duration::from_secs(30) };

    /// A running root with two bursts.
    pub(crate) fn root() -> MiniCluster {
        let yaml = "
metadata: {name: lake, namespace: flux, uid: root-uid, generation: 1}
spec:
  size: 4
  containers: [{image: app, cores: 2}]
  flux: {bursting: {clusters: [{size: 3, peer: west}, {name: pond, size: 2, maxSize: 5, selector: {matchLabels: {region: eu}}}]}}
";
        let mut root: MiniCluster = serde_saphyr::from_str(yaml).unwrap();
        let parent = Topology::Gateway.parent_of_bursts("lake");
        let slots = vec![
            Slot::root("lake", 4).with_resources(2, 0),
            Slot::burst("lake-burst-0", 3, parent.clone()).with_resources(2, 0),
            Slot::burst("pond", 5, parent).with_resources(2, 0),
        ];
        let map = RankMap::new(slots).unwrap();
        root.status = Some(MiniClusterStatus {
            phase: Some(Phase::Running),
            incarnation: Some("job-1".into()),
            rank_map: Some(map.to_canonical()),
            rank_map_digest: Some(map.digest().to_string()),
            credential_digest: Some("sha256:cert".into()),
            credential_secret: Some("lake-curve".into()),
            ..MiniClusterStatus::default()
        });
        root
    }

    fn applied(changes: &[PlanChange]) -> Vec<Burst> {
        let burst = |change: &PlanChange| match change {
            PlanChange::Apply(burst) => Some((**burst).clone()),
            PlanChange::Delete { .. } => None,
        };
        changes.iter().filter_map(burst).collect()
    }

    fn again(root: &MiniCluster, bursts: &[Burst]) -> Vec<PlanChange> {
        plan(root, &bursts.iter().collect::<Vec<_>>(), given(None))
    }

    fn given(lead: Option<&LeadAddress>) -> Given<'_> {
        Given { lead, arch: Some("amd64"), times: &TIMES, trace: None, refused: false, namespace_goes: false }
    }

    #[test]
    fn the_other_half_of_a_burst_by_hand_has_no_bursts_of_its_own() {
        let mut hand = root();
        hand.spec.flux.bursting.lead_broker.address = Some("203.0.113.7".into());
        assert_eq!(plan(&hand, &[], given(None)), []);
        // One that became such a half lets go of what it had.
        let bursts = applied(&plan(&root(), &[], given(None)));
        assert!(applied(&again(&hand, &bursts)).iter().all(|burst| burst.spec.release));
    }

    /// The danger: who deletes a Burst makes its slot look free.
    #[test]
    fn a_burst_that_is_made_anew_names_who_held_its_slot() {
        let mut root = root();
        let holder = CredentialRecipient {
            peer: "west".into(),
            incarnation: "job-1".into(),
            credential_digest: "sha256:cert".into(),
            ..CredentialRecipient::default()
        };
        let (name, holds) = ("pond".to_owned(), Some(holder.clone()));
        let row = tributary_api::minicluster::BurstStatus { name, holder: holds, ..Default::default() };
        root.status.as_mut().unwrap().bursts = vec![row];
        let made = applied(&plan(&root, &[], given(None)));
        assert_eq!((&made[0].spec.holder, &made[1].spec.holder), (&None, &Some(holder)));
        assert_eq!(applied(&again(&root, &made))[1].spec, made[1].spec, "and goes on naming it");
        let status = root.status.as_mut().unwrap();
        status.incarnation = Some("job-2".into());
        assert!(applied(&plan(&root, &[], given(None)))[1].spec.holder.is_some(), "it has the same certificate");
        root.status.as_mut().unwrap().credential_digest = Some("sha256:new".into());
        assert_eq!(applied(&plan(&root, &[], given(None)))[1].spec.holder, None);
    }

    fn released(bursts: &mut [Burst]) {
        for burst in bursts {
            burst.status = Some(BurstStatus { phase: BurstPhase::Released, ..BurstStatus::default() });
        }
    }

    #[test]
    fn the_bursts_of_a_running_root() {
        let lead = LeadAddress { address: "192.0.2.1".into(), port: 30050 };
        insta::assert_json_snapshot!(applied(&plan(&root(), &[], given(Some(&lead)))));
    }

    #[test]
    fn nothing_is_planned_before_the_instance_is_known() {
        let mut root = root();
        root.status.as_mut().unwrap().incarnation = None;
        assert_eq!(plan(&root, &[], given(None)), []);
        let bursts = applied(&plan(&self::root(), &[], given(None)));
        assert_eq!(again(&root, &bursts), [], "between two Jobs nothing is concluded");
    }

    #[test]
    fn sizes_and_choices_are_live_and_the_rest_is_frozen() {
        let lead = LeadAddress { address: "192.0.2.1".into(), port: 30050 };
        let before = applied(&plan(&root(), &[], given(Some(&lead))));
        let mut root = root();
        root.spec.containers[0].image = Some("other".into());
        root.spec.containers[0].cores = Some(64);
        root.spec.flux.bursting.clusters[0].size = Some(99);
        root.spec.flux.bursting.clusters[0].peer = Some("north".into());
        root.spec.flux.bursting.clusters[1].size = Some(5);
        let after = applied(&again(&root, &before));
        assert_eq!((after[0].spec.size, after[1].spec.size), (3, 5), "within what was declared");
        assert_eq!(after[0].spec.peers, ["north"]);
        assert_eq!(after[0].spec.template, before[0].spec.template);
        assert_eq!(after[0].spec.cores, 2);
        assert_eq!(after[0].spec.lead, before[0].spec.lead, "the last address stays until another is known");

        root.status.as_mut().unwrap().incarnation = Some("job-2".into());
        let restarted = applied(&again(&root, &after));
        assert_ne!(restarted[0].spec.template, before[0].spec.template);
        assert_eq!((restarted[0].spec.incarnation.as_str(), &restarted[0].spec.lead), ("job-2", &None));
    }

    /// The danger: a scaled root takes more brokers of a peer while it waits in a queue itself, or gives some back.
    #[test]
    fn a_size_that_is_not_written_stays_as_the_instance_was_started() {
        let mut root = root();
        root.spec.flux.bursting.clusters.iter_mut().for_each(|cluster| cluster.size = None);
        let mut made = applied(&plan(&root, &[], given(None)));
        for burst in &mut made {
            let frozen = Some(Box::new(frozen::of(&burst.spec)));
            burst.status = Some(BurstStatus { incarnation: Some("job-1".into()), frozen, ..BurstStatus::default() });
        }
        let sizes = |root: &MiniCluster, bursts: &[Burst]| {
            applied(&again(root, bursts)).iter().map(|burst| burst.spec.size).collect::<Vec<_>>()
        };
        for size in [4, 5, 1] {
            root.spec.size = Some(size);
            assert_eq!(sizes(&root, &made), [3, 4], "{size}");
            let mut patched = made.clone();
            patched[1].spec.size = 5;
            assert_eq!(sizes(&root, &patched), [3, 4], "nobody but the root says another");
        }
        // The danger: the upgrade of an agent asks a peer for more brokers.
        let mut of_older = made.clone();
        for burst in &mut of_older {
            burst.status.as_mut().unwrap().frozen.as_mut().unwrap().size = 0;
        }
        for size in [2, 1] {
            root.spec.size = Some(size);
            assert_eq!(sizes(&root, &of_older), [size.unsigned_abs(); 2], "they follow the root, as they did");
        }
        root.spec.flux.bursting.clusters[1].max_size = None;
        assert_eq!(sizes(&root, &made), [3, 4], "nothing is written any more");
        root.spec.flux.bursting.clusters[1].max_size = Some(5);
        root.status.as_mut().unwrap().incarnation = Some("job-2".into());
        assert_eq!(sizes(&root, &made), [3, 1], "the next one starts with another");
        let next = applied(&again(&root, &made));
        for (burst, next) in made.iter_mut().zip(next) {
            burst.spec = next.spec;
        }
        root.spec.size = Some(4);
        assert_eq!(sizes(&root, &made), [3, 1], "and has no record yet");
    }

    /// The danger: a tenant who may retry a burst makes it cheaper than its brokers are, and a typo stays until a restart.
    #[test]
    fn a_patch_of_what_is_frozen_is_undone() {
        type Patch = fn(&mut BurstSpec);
        let patches: [(&str, Patch); 10] = [
            ("cores", |spec| (spec.cores, spec.gpus) = (1, 7)),
            ("template", |spec| spec.template = serde_json::json!({"containers": []})),
            ("rank map", |spec| spec.rank_map.push('x')),
            ("digests", |spec| (spec.rank_map_digest, spec.credential_digest) = ("a".into(), "b".into())),
            ("ranks", |spec| (spec.index, spec.max_size) = (9, 99)),
            ("Secret", |spec| spec.credential_secret = "other".into()),
            ("times", |spec| (spec.lease, spec.drain) = (1.into(), 1.into())),
            ("whole", |spec| (spec.whole, spec.flux_version) = (true, Some("0.1".into()))),
            ("instance", |spec| (spec.incarnation, spec.cores) = ("job-0".into(), 1)),
            ("slot", |spec| spec.slot = "other".into()),
        ];
        let mut made = applied(&plan(&root(), &[], given(None)));
        let unrecorded = made.clone();
        for burst in &mut made {
            let (incarnation, frozen) = (Some("job-1".into()), Some(Box::new(frozen::of(&burst.spec))));
            burst.status = Some(BurstStatus { incarnation, frozen, ..BurstStatus::default() });
        }
        let specs = |bursts: &[Burst]| bursts.iter().map(|burst| burst.spec.clone()).collect::<Vec<_>>();
        for (case, patch) in patches {
            let mut patched = made.clone();
            patch(&mut patched[1].spec);
            assert_eq!(specs(&applied(&again(&root(), &patched))), specs(&made), "{case}");
            // What the root asks for meanwhile is done.
            let mut root = root();
            root.spec.flux.bursting.clusters[1].size = Some(4);
            assert_eq!(applied(&again(&root, &patched))[1].spec.size, 4, "{case}");
            // Another instance is made of what the root says now, and stands before the status knows it.
            root.status.as_mut().unwrap().incarnation = Some("job-2".into());
            root.spec.containers[0].image = Some("other".into());
            let mut next = applied(&again(&root, &patched));
            assert_eq!(specs(&next)[1], specs(&applied(&again(&root, &unrecorded)))[1], "{case}");
            assert!(next[1].spec.incarnation == "job-2" && next[1].spec.template != made[1].spec.template, "{case}");
            next.iter_mut().zip(&made).for_each(|(next, made)| next.status.clone_from(&made.status));
            assert_eq!(specs(&applied(&again(&root, &next))), specs(&next), "{case}");
        }
        // An older agent recorded nothing: what is there goes on.
        let mut patched = unrecorded;
        patched[1].spec.lease = 20.into();
        assert_eq!(specs(&applied(&again(&root(), &patched))), specs(&patched));
    }

    #[test]
    fn who_threw_a_flux_job_out_is_not_asked_by_its_next_root() {
        let eviction = |peer: &str, reason: &str| {
            serde_json::json!({"peer": peer, "reason": reason, "message": "no", "generation": 1, "offer": "of the FluxJob",
                "peerGeneration": 4})
        };
        let written = |text: String| {
            let mut root = root();
            root.metadata.annotations = Some([(labels::EVICTIONS.to_owned(), text)].into());
            root
        };
        let root = written(
            serde_json::json!([
                eviction("west", "EvictedByProvider"),
                eviction("west", "EvictedByProvider"),
                eviction("north", "TooManyBursts")
            ])
            .to_string(),
        );
        let made = applied(&plan(&root, &[], given(None)));
        let peer = |generation| PeerView { generation: Some(generation), ..PeerView::default() };
        let peers = |generation| -> BTreeMap<tributary_contract::PeerName, PeerView> {
            [("west".into(), peer(generation))].into()
        };
        let [known] = made[0].spec.evictions.as_slice() else { panic!("{:?}", made[0].spec.evictions) };
        assert!(known.peer == "west" && offer::stands(known, &made[0], &peers(4)), "{known:?}");
        assert!(!offer::stands(known, &made[0], &peers(5)), "its policy is another");
        let absent = written(serde_json::json!([eviction("west", "NeverJoined")]).to_string());
        assert_eq!(applied(&plan(&absent, &[], given(None)))[0].spec.evictions.len(), 1, "it had its time");
        // While the instance runs it stays as it is, and so does what was offered.
        let mut root = root;
        root.spec.flux.bursting.clusters[0].size = Some(2);
        let after = applied(&again(&root, &made));
        assert_eq!(after[0].spec.evictions, made[0].spec.evictions);
        assert!(!offer::stands(&after[0].spec.evictions[0], &after[0], &peers(4)), "another offer");
        // Planned while its root is still on its way out, it is offered later.
        let mut leaving = root.clone();
        leaving.status.as_mut().unwrap().phase = Some(Phase::Restarting);
        leaving.status.as_mut().unwrap().incarnation = Some("job-2".into());
        let made = applied(&again(&leaving, &after));
        leaving.status.as_mut().unwrap().phase = Some(Phase::Running);
        let wanted = applied(&again(&leaving, &made));
        assert!(made[0].spec.release && !wanted[0].spec.release);
        assert!(offer::stands(&wanted[0].spec.evictions[0], &wanted[0], &peers(4)));
        for text in ["", "[1]", "{}"] {
            assert!(applied(&plan(&written(text.to_owned()), &[], given(None)))[0].spec.evictions.is_empty(), "{text}");
        }
    }

    #[test]
    fn a_running_instance_keeps_the_lease_its_peers_were_told() {
        let before = applied(&plan(&root(), &[], given(None)));
        let shorter = Times { lease: Duration::from_secs(20), drain: Duration::from_secs(5), ..TIMES };
        let given =
            Given { lead: None, arch: None, times: &shorter, trace: None, refused: false, namespace_goes: false };
        let mut root = root();
        let references: Vec<&Burst> = before.iter().collect();
        let after = applied(&plan(&root, &references, given));
        assert_eq!((after[0].spec.lease, after[0].spec.drain), (300.into(), 60.into()));
        root.status.as_mut().unwrap().incarnation = Some("job-2".into());
        let restarted = applied(&plan(&root, &references, given));
        assert_eq!((restarted[0].spec.lease, restarted[0].spec.drain), (20.into(), 5.into()));
        for (own, drain) in [(0, 0), (60, 5), (90, 90), (9_000, 3_600)] {
            root.spec.flux.drain_seconds = Some(own);
            assert_eq!(
                applied(&plan(&root, &references, given))[0].spec.drain,
                drain.into(),
                "its own, unless an API server may have written it"
            );
        }
    }

    #[test]
    fn a_root_that_is_over_releases_and_one_that_was_never_running_makes_nothing() {
        type Change = fn(&mut MiniCluster);
        let table: [(&str, Change); 6] = [
            ("suspended", |root| root.spec.suspend = true),
            ("succeeded", |root| root.status.as_mut().unwrap().phase = Some(Phase::Succeeded)),
            ("failed", |root| root.status.as_mut().unwrap().phase = Some(Phase::Failed)),
            ("held back", |root| root.status.as_mut().unwrap().phase = Some(Phase::Suspended)),
            ("started anew", |root| root.status.as_mut().unwrap().phase = Some(Phase::Restarting)),
            ("suspended between two Jobs", |root| {
                root.spec.suspend = true;
                root.status.as_mut().unwrap().incarnation = None;
            }),
        ];
        let bursts = applied(&plan(&root(), &[], given(None)));
        for (case, change) in table {
            let mut root = root();
            change(&mut root);
            let after = applied(&again(&root, &bursts));
            assert!(after.len() == 2 && after.iter().all(|burst| burst.spec.release), "{case}");
            assert_eq!(plan(&root, &[], given(None)), [], "{case}");
        }
        let goes = Given { namespace_goes: true, ..given(None) };
        let after = applied(&plan(&root(), &bursts.iter().collect::<Vec<_>>(), goes));
        assert!(
            after.len() == 2 && after.iter().all(|burst| burst.spec.release),
            "a stranger's pod keeps its namespace"
        );
        assert_eq!(plan(&root(), &[], goes), []);
    }

    #[test]
    fn when_a_burst_runs_may_change_while_it_does() {
        let mut root = root();
        let before = applied(&plan(&root, &[], given(None)));
        assert_eq!(before[0].spec.on_demand, None);
        let cluster = &mut root.spec.flux.bursting.clusters[0];
        cluster.mode = BurstMode::OnDemand;
        let on_demand = |root: &MiniCluster| applied(&again(root, &before))[0].spec.on_demand.clone();
        assert_eq!(on_demand(&root), Some(OnDemandSpec { max_idle: 600.into(), min_pending: 1 }));
        root.spec.flux.bursting.clusters[0].on_demand = serde_saphyr::from_str("{maxIdle: 2m, minPending: 3}").unwrap();
        assert_eq!(on_demand(&root), Some(OnDemandSpec { max_idle: 120.into(), min_pending: 3 }));
        root.spec.flux.bursting.clusters[0].warm = true;
        let after = applied(&again(&root, &before));
        assert!(after[0].spec.warm && offer::desired(&after[0]).warm && !offer::desired(&before[0]).warm);
        assert_eq!(after[0].offered(), before[0].offered(), "that is no new offer");
    }

    /// The danger: after a rollback, bursts that run lose their way to the lead broker, or one that sleeps starts.
    #[test]
    fn words_that_nobody_knows_change_nothing_that_runs() {
        let lead = LeadAddress { address: "192.0.2.1".into(), port: 30050 };
        for kind in [BurstNetworkType::NodePort, BurstNetworkType::Tunnel] {
            let mut root = root();
            root.spec.flux.bursting.network.kind = kind;
            root.spec.flux.bursting.clusters[0].mode = BurstMode::OnDemand;
            let before = applied(&plan(&root, &[], given(Some(&lead))));
            root.spec.flux.bursting.network.kind = BurstNetworkType::Unknown("Carrier".into());
            root.spec.flux.bursting.clusters[0].mode = BurstMode::Unknown("Nightly".into());
            let other = LeadAddress { address: "192.0.2.2".into(), port: 30050 };
            let existing: Vec<&Burst> = before.iter().collect();
            assert_eq!(applied(&plan(&root, &existing, given(Some(&other)))), before, "{kind:?}");
        }
    }

    #[test]
    fn a_dropped_slot_is_released_and_then_deleted() {
        let bursts = applied(&plan(&root(), &[], given(None)));
        let mut root = root();
        root.spec.flux.bursting.clusters.pop();
        let mut after = applied(&again(&root, &bursts));
        assert_eq!(after.iter().map(|burst| burst.spec.release).collect::<Vec<_>>(), [false, true]);
        assert_eq!((after[1].spec.size, after[1].spec.slot.as_str()), (2, "pond"), "released as it was");
        released(&mut after[1..]);
        after[1].metadata.uid = Some("pond-uid".into());
        let last = again(&root, &after);
        assert_eq!(last[1], PlanChange::Delete { name: "lake.pond".into(), uid: "pond-uid".into() });
    }

    #[test]
    fn a_spec_that_is_refused_leaves_its_bursts_as_they_are() {
        let before = applied(&plan(&root(), &[], given(None)));
        let changes: [fn(&mut tributary_api::minicluster::MiniClusterSpec); 4] = [
            |spec| spec.flux.bursting.clusters[0].budget.broker_hours = Some(serde_json::from_str("-1").unwrap()),
            |spec| spec.flux.bursting.clusters[1].name = Some("No Name".into()),
            |spec| spec.flux.bursting.clusters.clear(),
            |spec| spec.flux.bursting.clusters[0].size = Some(1),
        ];
        for change in changes {
            let mut root = root();
            change(&mut root.spec);
            let refused = Given { refused: true, ..given(None) };
            let bursts: Vec<&Burst> = before.iter().collect();
            assert_eq!(applied(&plan(&root, &bursts, refused)), before);
            assert_eq!(plan(&root, &[], refused), [], "nothing begins");
            // Whoever suspends it ends them all the same.
            root.spec.suspend = true;
            assert!(applied(&plan(&root, &bursts, refused)).iter().all(|burst| burst.spec.release));
        }
    }

    #[test]
    fn the_version_of_flux_is_declared_or_read_from_the_tag() {
        let version = |declared: Option<&str>, image: &str| {
            let mut root = root();
            root.spec.flux.version = declared.map(str::to_owned);
            root.spec.flux.container.image = Some(image.into());
            let given =
                Given { lead: None, arch: None, times: &TIMES, trace: None, refused: false, namespace_goes: false };
            applied(&plan(&root, &[], given))[0].spec.flux_version.clone()
        };
        assert_eq!(version(None, "view:0.75.0-noble").as_deref(), Some("0.75"));
        assert_eq!(version(Some("0.68.0"), "view:0.75.0-noble").as_deref(), Some("0.68"));
        assert_eq!(version(None, "view:tag-noble"), None);
    }

    #[test]
    fn a_slot_the_next_instance_does_not_have_goes_as_well() {
        let mut bursts = applied(&plan(&root(), &[], given(None)));
        let mut root = root();
        root.spec.flux.bursting.clusters.pop();
        let status = root.status.as_mut().unwrap();
        let mut slots = RankMap::parse_canonical(status.rank_map.as_deref().unwrap()).unwrap().slots().to_vec();
        slots.pop();
        status.rank_map = Some(RankMap::new(slots).unwrap().to_canonical());
        status.incarnation = Some("job-2".into());
        let after = applied(&again(&root, &bursts));
        assert_eq!((after[1].spec.slot.as_str(), after[1].spec.release), ("pond", true));
        bursts[1].spec.release = true;
        released(&mut bursts[1..]);
        assert!(matches!(&again(&root, &bursts)[1], PlanChange::Delete { name, .. } if name == "lake.pond"));
    }
}
