//! The Bursts, as the root's driver knows them: what the caches show, and what it has written itself a moment ago.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use kube::{Api, ResourceExt};
use tributary_api::budget::Usage;
use tributary_api::burst::{Burst, BurstStatus};
use tributary_api::hosted_burst::BurstPhase;
use tributary_api::minicluster::MiniCluster;
use tributary_api::peer::ClusterPeer;
use tributary_cluster::caches::{controller_of, is_gone};
use tributary_cluster::{ObjectKey, RequestError};
use tributary_contract::{BurstUid, PeerName};

use super::{Key, Root};
use crate::root::place::{Claimed, Claims};
use crate::root::{frozen, offer};

impl Root {
    /// All Bursts, as freshly as they are known: those included that were made a moment ago.
    pub(crate) fn bursts(&self) -> Vec<Arc<Burst>> {
        self.freshest(self.shared.caches.bursts.objects(), |_| true)
    }

    /// The Burst of a UID, as freshly as it is known.
    pub(super) fn of_uid(&self, uid: &BurstUid) -> Option<Arc<Burst>> {
        let caches = &self.shared.caches;
        let named = |burst: &Arc<Burst>| ObjectKey::of(&**burst);
        let cached = caches.bursts_by_uid.of(uid.as_str()).iter().map(named).next();
        let key =
            cached.or_else(|| self.fresh.objects().iter().find(|ours| offer::uid(ours) == uid.as_str()).map(named))?;
        let burst = self.fresh.of(&key, caches.bursts.of(&key)).filter(|burst| offer::uid(burst) == uid.as_str())?;
        Some(self.as_made(burst))
    }

    /// A Burst without what somebody else has written over what is frozen of it. The plan puts the object right, unless a
    /// FluxJob has it.
    pub(super) fn as_made(&self, burst: Arc<Burst>) -> Arc<Burst> {
        let root = controller_of::<MiniCluster>(&*burst).and_then(|key| self.shared.caches.mini_clusters.of(&key));
        frozen::restored(&burst, root.as_deref()).map_or(burst, Arc::new)
    }

    /// The Bursts of a root. One that the cache does not show yet was planned already: what it is made of is frozen.
    pub(super) fn bursts_of(&self, root: &str) -> Vec<Arc<Burst>> {
        let is_of_root = |burst: &Burst| offer::root_uid(burst) == Some(root);
        self.freshest(self.shared.caches.bursts.controlled_by(root), is_of_root)
    }

    /// Bursts of the cache in their newest versions, with those of ours that it does not show yet and that belong to them.
    fn freshest(&self, cached: Vec<Arc<Burst>>, belongs: impl Fn(&Burst) -> bool) -> Vec<Arc<Burst>> {
        let mut all = cached;
        for ours in self.fresh.objects().into_iter().filter(|ours| belongs(ours)) {
            let named = |burst: &Arc<Burst>| {
                let (burst, ours) = (&burst.metadata, &ours.metadata);
                (&burst.namespace, &burst.name).cmp(&(&ours.namespace, &ours.name))
            };
            // The cache's are in the order of their keys.
            match all.binary_search_by(named) {
                Ok(at) => all[at] = self.fresh.of(&ObjectKey::of(&*ours), Some(all[at].clone())).unwrap_or(ours),
                Err(at) => {
                    self.fresh.of(&ObjectKey::of(&*ours), None).into_iter().for_each(|ours| all.insert(at, ours))
                }
            }
        }
        all
    }

    /// Forgets Bursts of ours that went with their root before a watch showed them: then none ever shows their end. Says whether
    /// one is still to go.
    pub(super) async fn forget_what_went_unseen(&self, root: &ObjectKey) -> Result<bool, RequestError> {
        let caches = &self.shared.caches;
        let lives = caches.mini_clusters.of(root).and_then(|root| root.uid());
        let is_left = |burst: &Burst| {
            let of_name = controller_of::<MiniCluster>(burst).as_ref() == Some(root);
            of_name && offer::root_uid(burst) != lives.as_deref() && caches.bursts.of(&ObjectKey::of(burst)).is_none()
        };
        let left: Vec<Arc<Burst>> = self.fresh.objects().into_iter().filter(|burst| is_left(burst)).collect();
        let mut stays = false;
        for burst in &left {
            let key = ObjectKey::of(&**burst);
            let (reader, namespace) = (&self.shared.clients.reader, key.namespace.as_deref().unwrap_or_default());
            let api: Api<Burst> = Api::namespaced(reader.clone(), namespace);
            let found = match api.get_opt(&key.name).await {
                Err(error) if is_gone(&error, &Api::all(reader.clone()), namespace).await => None,
                found => found.map_err(|error| RequestError::new("read", format!("Burst {key}"), error))?,
            };
            match found.is_some_and(|found| found.uid() == burst.uid()) {
                true => stays = true,
                false => self.fresh.forget(&key, offer::uid(burst)),
            }
        }
        if !left.is_empty() {
            self.withdraw_what_is_gone();
        }
        Ok(stays)
    }

    /// What Bursts claim of each peer, beyond what the figures of the peers show.
    pub(crate) fn claimed(&self, besides: Option<&ObjectKey>) -> BTreeMap<PeerName, Claimed> {
        let mut claimed: BTreeMap<PeerName, Claimed> = BTreeMap::new();
        let is_besides = |burst: &Burst| {
            besides.is_some_and(|key| {
                burst.metadata.name.as_ref() == Some(&key.name) && burst.metadata.namespace == key.namespace
            })
        };
        for burst in self.bursts().iter().filter(|burst| !is_besides(burst)) {
            let Some(status) = &burst.status else { continue };
            let add = match status.phase {
                BurstPhase::Pending | BurstPhase::Offered => Claimed::add,
                BurstPhase::Accepted | BurstPhase::Provisioning => Claimed::add_pods,
                _ => continue,
            };
            if let Some(peer) = status.peer.as_deref() {
                add(claimed.entry(peer.into()).or_default(), &offer::wish(burst));
            }
        }
        claimed
    }

    /// What our bursts use of a peer.
    pub(crate) fn usage_of(&self, peer: &ClusterPeer) -> Usage {
        self.bursts().iter().filter_map(|burst| burst.status.as_ref()).map(|status| usage_at(peer, status)).sum()
    }

    /// Which Bursts exist, those included that cannot be read; `None` while not all are known.
    pub(super) fn existing(&self) -> Option<impl Fn(&BurstUid) -> bool + use<'_>> {
        let caches = &self.shared.caches;
        let unreadable = caches.unreadable_bursts()?;
        let (mut ours, mut replaced) = (Vec::new(), Vec::new());
        for written in self.fresh.objects() {
            let key = ObjectKey::of(&*written);
            let cached = caches.bursts.of(&key);
            let Some(freshest) = self.fresh.of(&key, cached.clone()) else { continue };
            // Another has its name by now, as we know and the cache does not.
            replaced.extend(cached.filter(|cached| cached.metadata.uid != freshest.metadata.uid));
            ours.push(freshest);
        }
        let is_of = |bursts: &[Arc<Burst>], uid: &BurstUid| bursts.iter().any(|one| offer::uid(one) == uid.as_str());
        Some(move |uid: &BurstUid| {
            caches.bursts_by_uid.has(uid.as_str()) && !is_of(&replaced, uid)
                || is_of(&ours, uid)
                || unreadable.iter().any(|one| one == uid.as_str())
        })
    }
}

/// What a burst uses of a peer: nothing, if another cluster that had its name holds it.
fn usage_at(peer: &ClusterPeer, status: &BurstStatus) -> Usage {
    match status.peer == peer.metadata.name && !status.is_of_another(peer.pinned_uid()) {
        true => status.spent.usage(),
        false => Usage::default(),
    }
}

/// The Bursts besides one.
pub(super) struct Others<'a> {
    pub(super) root: &'a Root,
    pub(super) besides: &'a Key,
}

impl fmt::Debug for Others<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Others").field("besides", self.besides).finish_non_exhaustive()
    }
}

impl Claims for Others<'_> {
    fn claimed(&self) -> BTreeMap<PeerName, Claimed> {
        let (Key::Root(besides) | Key::Burst(besides)) = self.besides;
        self.root.claimed(Some(besides))
    }
}

#[cfg(test)]
mod tests {
    use tributary_api::budget::Spent;

    use super::*;

    /// The danger: the budget of a cluster is spent by brokers that the one before it under its name may still run.
    #[test]
    fn another_cluster_of_the_same_name_uses_nothing_of_the_peer() {
        let now = jiff::Timestamp::UNIX_EPOCH;
        let recipient = serde_json::json!({"peer": "west", "incarnation": "job-1", "clusterUID": "first"});
        let mut status: BurstStatus =
            serde_json::from_value(serde_json::json!({"peer": "west", "credentialRecipients": [recipient]})).unwrap();
        status.spent = Spent::default().on(Usage { brokers: 3, ..Usage::default() }, None, now);
        let mut west = ClusterPeer::new("west", Default::default());
        let used = |west: &ClusterPeer| usage_at(west, &status).brokers;
        assert_eq!(used(&west), 3, "nobody knows which cluster it is");
        for (uid, brokers) in [("first", 3), ("second", 0)] {
            west.spec.cluster_uid = Some(uid.into());
            assert_eq!(used(&west), brokers, "{uid}");
        }
        assert_eq!(used(&ClusterPeer::new("north", west.spec)), 0);
    }
}
