//! What a Burst says to which peer: derived from the stored object alone, never from an intention.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::{Resource, ResourceExt};
use tributary_api::burst::{Burst, BurstRefusal, BurstSpec, BurstStatus};
use tributary_api::labels::{self, reason};
use tributary_cluster::apply::controller_reference;
use tributary_contract::{DesiredBurst, PeerName, RejectionReason, RootIdentity};

use super::hold;
use super::place::{Wish, eligible};
use crate::peers::PeerView;
use crate::spans;
use crate::sync_store::SyncStore;
use crate::template::Charge;

/// The peers that a Burst is offered to.
///
/// The peer it is placed on; and, while it is placed nowhere, the peers that refused what is still on offer: their refusal
/// stands for their state at that moment, and when policy or room changes there, they accept. Two may do so at once
/// without harm, because none of them gets the certificate before the Burst is placed on it.
pub(crate) fn recipients(burst: &Burst, peers: &BTreeMap<PeerName, PeerView>) -> BTreeSet<PeerName> {
    let none = BurstStatus::default();
    let status = burst.status.as_ref().unwrap_or(&none);
    // Of a run that has ended nothing is wanted but its logs.
    let over = status.run.as_ref().is_some_and(|run| run.has_ended() && run.logs_gone);
    if !is_wanted(burst) || status.held.is_some() || over {
        return BTreeSet::new();
    }
    if let Some(peer) = status.peer.as_deref().map(PeerName::from) {
        // What is there goes; the ranks stay the peer's own until it says that nothing is left. Another cluster of its name
        // is not who holds them.
        let view = peers.get(&peer);
        let left = view.is_some_and(PeerView::is_leaving) || hold::is_stranger(status, view);
        return if left { BTreeSet::new() } else { [peer].into() };
    }
    let wish = wish(burst);
    let asked = |name: &PeerName| {
        peers.get(name).is_some_and(|peer| eligible(&wish, name, peer) && peer.in_session() && !peer.is_leaving())
    };
    let standing = status.refusals.iter().filter(|refusal| stands(refusal, burst, peers) && !evicted(refusal));
    standing.map(|refusal| PeerName::from(refusal.peer.as_str())).filter(asked).collect()
}

/// Says to peers what a Burst is to them now. A leader that has just begun has said nothing yet: the peer that the Burst is
/// placed on is told if it is to let go.
pub(crate) fn say(exchange: &SyncStore, burst: &Burst, peers: &BTreeMap<PeerName, PeerView>) {
    let uid = uid(burst).into();
    exchange.offer(&uid, recipients(burst, peers).into_iter().map(|peer| (peer, desired(burst))).collect());
    let Some(status) = &burst.status else { return };
    let placed = status.peer.as_deref().map(PeerName::from);
    if let Some(peer) = placed.filter(|peer| peers.contains_key(peer) && !hold::is_stranger(status, peers.get(peer))) {
        exchange.withdraw(&(peer, uid));
    }
}

/// What is sent to those peers.
pub fn desired(burst: &Burst) -> DesiredBurst {
    let BurstSpec {
        root,
        slot,
        index: _,
        size,
        max_size,
        cores,
        gpus,
        peers: _,
        selector: _,
        prefer: _,
        incarnation,
        rank_map,
        rank_map_digest,
        credential_digest,
        credential_secret: _,
        lead,
        tunnel,
        whole,
        flux_version,
        arch,
        template,
        lease,
        drain,
        budget: _,
        on_demand: _,
        warm,
        evictions: _,
        holder: _,
        release: _,
    } = burst.spec.clone();
    let status = burst.status.as_ref();
    let current = status.filter(|status| status.incarnation.as_ref() == Some(&incarnation));
    DesiredBurst {
        uid: uid(burst).into(),
        generation: burst.metadata.generation.and_then(|generation| u64::try_from(generation).ok()).unwrap_or(0),
        root: RootIdentity {
            namespace: burst.metadata.namespace.clone().unwrap_or_default(),
            name: root,
            uid: root_uid(burst).unwrap_or_default().to_owned(),
            incarnation,
        },
        slot,
        size,
        max_size,
        cores,
        gpus,
        rank_map,
        rank_map_digest,
        credential_digest,
        lead,
        tunnel,
        whole,
        flux_version,
        arch,
        template,
        lease_seconds: lease.unsigned(),
        drain_seconds: drain.unsigned(),
        warm,
        hosted_uid: current.and_then(|status| status.hosted_uid.clone()),
        offer: burst.offered(),
        user: burst.metadata.labels.as_ref().and_then(|all| all.get(labels::USER)).cloned(),
        trace: spans::of_burst(burst).map(|span| span.to_string()),
    }
}

/// What placement needs to know of a Burst.
pub fn wish(burst: &Burst) -> Wish {
    let spec = &burst.spec;
    let charge = Charge::of(spec.cores, spec.gpus, &spec.template);
    Wish {
        namespace: burst.metadata.namespace.clone().unwrap_or_default(),
        size: spec.size,
        max_size: spec.max_size,
        cores: charge.cores,
        milli_cores: charge.milli_cores,
        gpus: charge.gpus,
        // As peers count what is free on their nodes; admission counts the others.
        node_gpus: charge.node_gpus,
        // Admission counts it.
        memory_mib: 0,
        peers: spec.peers.iter().map(|name| name.as_str().into()).collect(),
        selector: spec.selector.clone(),
        prefer: spec.prefer.clone(),
        whole: spec.whole,
    }
}

/// Whether a refusal still speaks of what would be offered now, to the peer as it is now.
pub(crate) fn stands(refusal: &BurstRefusal, burst: &Burst, peers: &BTreeMap<PeerName, PeerView>) -> bool {
    let peer = peers.get(refusal.peer.as_str());
    let unchanged = peer.map_or(refusal.peer_generation.is_none(), |peer| peer.is_unchanged_since(refusal));
    unchanged && refusal.offer == burst.offered()
}

/// Whether the peer's owner threw the burst out, or it never came about there: that is final for this offer.
pub(crate) fn evicted(refusal: &BurstRefusal) -> bool {
    [RejectionReason::EvictedByProvider.as_str(), reason::NEVER_JOINED].contains(&refusal.reason.as_str())
}

/// Metadata of the Burst for a slot of `owner`, whose name is in the label `of`.
pub(super) fn metadata(
    owner: &impl Resource<DynamicType = ()>,
    of: &str,
    name: String,
    slot: &str,
    annotations: BTreeMap<String, String>,
) -> ObjectMeta {
    let owner_name = owner.name_any();
    let labels = [(labels::kubernetes::MANAGED_BY, labels::TRIBUTARY), (of, &owner_name), (labels::SLOT, slot)];
    let user = owner.labels().get(labels::USER).map(|user| (labels::USER, user.as_str()));
    let labels = labels.into_iter().chain(user).map(|(key, value)| (key.to_owned(), value.to_owned()));
    ObjectMeta {
        name: Some(name),
        namespace: owner.namespace(),
        labels: Some(labels.collect()),
        annotations: Some(annotations).filter(|all| !all.is_empty()),
        owner_references: controller_reference(owner).map(|owner| vec![owner]),
        ..ObjectMeta::default()
    }
}

/// UID of a Burst; empty for one that was never stored.
pub(crate) fn uid(burst: &Burst) -> &str {
    burst.metadata.uid.as_deref().unwrap_or_default()
}

/// Whether it is to run. One that nothing owns counts as released: nobody would ever end it. It was restored from a backup, or its
/// root was deleted alone.
pub(crate) fn is_wanted(burst: &Burst) -> bool {
    !burst.spec.release && root_uid(burst).is_some()
}

/// UID of the root MiniCluster, or of the FluxJob that was sent, which owns the Burst.
pub(crate) fn root_uid(burst: &Burst) -> Option<&str> {
    let owners = burst.metadata.owner_references.as_deref().unwrap_or_default();
    owners.iter().find(|owner| owner.controller == Some(true)).map(|owner| owner.uid.as_str())
}

#[cfg(test)]
pub(crate) mod tests {
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;

    use super::*;

    /// As an agent makes it.
    pub(crate) fn owned(mut burst: Burst) -> Burst {
        let owner = OwnerReference { controller: Some(true), uid: "root".into(), ..OwnerReference::default() };
        burst.metadata.owner_references = Some(vec![owner]);
        burst
    }
}
