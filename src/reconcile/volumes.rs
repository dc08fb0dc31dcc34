//! PersistentVolumes and claims of MiniClusters: made before an incarnation, removed when it has ended well.
//!
//! A claim belongs to its MiniCluster and goes with it. A PersistentVolume is of the whole cluster, so nothing of a namespace
//! can own it, and no finalizer holds up the MiniCluster instead: it bears the MiniCluster's UID in a label, and is deleted
//! when there is no MiniCluster of that UID any more. What does not bear that UID is never touched, whatever its name is.

use std::sync::Arc;

use futures::FutureExt;
use futures::future::BoxFuture;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::PropagationPolicy;
use kube::{Api, Resource, ResourceExt};
use serde::Deserialize;
use tokio_util::sync::CancellationToken;

use super::apply::{Error, Writes};
use super::dereference::Known;
use crate::api::labels::{self, kubernetes, role, upstream};
use crate::api::minicluster::MiniCluster;
use crate::api::names;
use crate::clock::{SharedClock, SystemRng};
use crate::cluster::apply::{Applied, Once};
use crate::cluster::caches::{self, Cache, Selection, Subscription, controller_uid};
use crate::cluster::client::Clients;
use crate::cluster::error::{Cause, chain};
use crate::cluster::sweep::{self, Deleted, Doomed};
use crate::cluster::worker::{self, Options, Outcome, Queue, Run};
use crate::cluster::{ObjectKey, RequestError};
use crate::render::Rendered;

impl Writes {
    /// Makes the claims, then the volumes for them. `false` while one of an earlier incarnation still goes, because it is
    /// another one than is wanted now, or was bound to a claim that is gone.
    ///
    /// # Errors
    /// [`Cause::Foreign`] for a name that is somebody else's; else what the API server says.
    pub(super) async fn make_volumes(&self, known: &Known, rendered: &Rendered) -> Result<bool, RequestError> {
        let mut all = true;
        for claim in &rendered.claims {
            all &= match self.applier.own_once(claim).await? {
                Applied::Terminating => false,
                Applied::Created(_) | Applied::Changed(_) => true,
                Applied::Unchanged => self.is_as_wanted(claim, self.claim(claim).await?, |_| true).await?,
            };
        }
        if !all {
            return Ok(false);
        }
        for volume in &rendered.persistent_volumes {
            if let Once::Exists = self.applier.create_once(volume).await? {
                let found = self.persistent_volume(&volume.name_any()).await?;
                if let Some(found) = &found {
                    belongs(found, known)?;
                }
                all &= self.is_as_wanted(volume, found, is_free).await?;
            }
        }
        Ok(all)
    }

    /// Whether what was found is what is wanted. Otherwise it is deleted: neither kind can be changed, and the data stay.
    async fn is_as_wanted<K: Resource<DynamicType = ()>>(
        &self,
        wanted: &K,
        found: Option<K>,
        usable: fn(&K) -> bool,
    ) -> Result<bool, RequestError> {
        let Some(found) = found.filter(|found| found.meta().deletion_timestamp.is_none()) else { return Ok(false) };
        let revision = |object: &K| object.annotations().get(labels::REVISION).cloned();
        if revision(&found) == revision(wanted) && usable(&found) {
            return Ok(true);
        }
        if let Some(doomed) = Doomed::of(&found) {
            sweep::delete::<K>(&self.clients.writer, &doomed, PropagationPolicy::Background).await?;
        }
        Ok(false)
    }

    /// Removes claims, volumes, the pod of `spec.services`, and with the Job its pods: an incarnation has ended well, and `cleanupVolumes` says so. What
    /// is still in use goes when it no longer is.
    pub(super) async fn remove_volumes(&self, known: &Known) -> Result<(), Error> {
        let key = ObjectKey::of(&*known.mini_cluster);
        let namespace = key.namespace.clone().unwrap_or_default();
        for (name, declared) in known.mini_cluster.spec.made_volumes() {
            let claim = PersistentVolumeClaim {
                metadata: ObjectMeta {
                    name: Some(names::claim(&key.name, name)),
                    namespace: Some(namespace.clone()),
                    ..ObjectMeta::default()
                },
                ..PersistentVolumeClaim::default()
            };
            let ours =
                |claim: &PersistentVolumeClaim| controller_uid(claim) == known.mini_cluster.meta().uid.as_deref();
            if let Some(doomed) = self.claim(&claim).await?.filter(ours).as_ref().and_then(Doomed::of) {
                self.delete::<PersistentVolumeClaim>(&doomed).await?;
            }
            let volume = names::persistent_volume(&namespace, &key.name, name);
            let volume = if declared.delete() { self.persistent_volume(&volume).await? } else { None };
            let ours = |volume: &PersistentVolume| belongs(volume, known).is_ok();
            if let Some(doomed) = volume.filter(ours).as_ref().and_then(Doomed::of) {
                self.delete::<PersistentVolume>(&doomed).await?;
            }
        }
        if let Some(doomed) = known.service_pod.as_deref().and_then(Doomed::of) {
            self.delete::<Pod>(&doomed).await?;
        }
        // Last: as long as there is the Job, all of this is done again if it failed half-way.
        let uid = known.job.facts().map(|facts| facts.uid.clone()).unwrap_or_default();
        self.delete::<Job>(&Doomed { key, uid }).await?;
        Ok(())
    }

    async fn delete<K: Resource<DynamicType = ()>>(&self, doomed: &Doomed) -> Result<Deleted, RequestError> {
        sweep::delete::<K>(&self.clients.writer, doomed, PropagationPolicy::Background).await
    }

    async fn claim(&self, claim: &PersistentVolumeClaim) -> Result<Option<PersistentVolumeClaim>, RequestError> {
        let key = ObjectKey::of(claim);
        let namespace = key.namespace.as_deref().unwrap_or_default();
        let claims: Api<PersistentVolumeClaim> = Api::namespaced(self.clients.reader.clone(), namespace);
        let found = claims.get_opt(&key.name).await;
        found.map_err(|error| RequestError::new("read", format!("PersistentVolumeClaim {key}"), error))
    }

    async fn persistent_volume(&self, name: &str) -> Result<Option<PersistentVolume>, RequestError> {
        let found = Api::<PersistentVolume>::all(self.clients.reader.clone()).get_opt(name).await;
        found.map_err(|error| RequestError::new("read", format!("PersistentVolume {name}"), error))
    }
}

/// It was never bound, or is bound to the claim there is: one whose claim is gone is bound to no other.
fn is_free(volume: &PersistentVolume) -> bool {
    let phase = volume.status.as_ref().and_then(|status| status.phase.as_deref());
    !matches!(phase, Some("Released" | "Failed"))
}

/// Whether it was made for this very MiniCluster.
fn belongs(volume: &PersistentVolume, known: &Known) -> Result<(), RequestError> {
    let uid = known.mini_cluster.meta().uid.as_deref();
    let owner = Owner::of(volume.meta());
    if owner.as_ref().map(|owner| owner.uid.as_str()) == uid {
        return Ok(());
    }
    let expected = format!("MiniCluster {} ({})", known.mini_cluster.name_any(), uid.unwrap_or_default());
    let owner =
        owner.map_or_else(|| "nobody".to_owned(), |owner| format!("MiniCluster {} ({})", owner.key.name, owner.uid));
    let cause = Cause::Foreign { owner, expected };
    Err(RequestError::new("create", format!("PersistentVolume {}", volume.name_any()), cause))
}

/// The MiniCluster that a volume says it was made for.
#[derive(Clone, Debug, PartialEq)]
struct Owner {
    key: ObjectKey,
    uid: String,
}

impl Owner {
    /// `None`: it is none of ours.
    fn of(volume: &ObjectMeta) -> Option<Self> {
        let label = |key: &str| volume.labels.as_ref()?.get(key).cloned();
        let ours = label(kubernetes::MANAGED_BY)? == labels::TRIBUTARY && label(labels::ROLE)? == role::VOLUME;
        let key = ObjectKey::namespaced(label(upstream::NAMESPACE)?, label(labels::MINICLUSTER)?);
        ours.then_some(Self { key, uid: label(labels::MINICLUSTER_UID)? })
    }
}

/// A PersistentVolume, of which only whose it is matters.
#[derive(Resource, Clone, Debug, Default, PartialEq, Deserialize)]
#[resource(inherit = PersistentVolume)]
struct VolumeView {
    metadata: ObjectMeta,
}

/// Deletes volumes whose MiniCluster is gone.
#[derive(Clone)]
pub(super) struct LeftVolumes {
    volumes: Cache<VolumeView>,
    mini_clusters: Cache<MiniCluster>,
    clients: Clients,
    pub(super) queue: Queue<ObjectKey>,
}

impl LeftVolumes {
    /// With the watch that fills its cache, and what feeds its queue.
    pub(super) fn new(
        clients: &Clients,
        mini_clusters: Cache<MiniCluster>,
        clock: SharedClock,
    ) -> (Self, BoxFuture<'static, ()>, [Subscription; 2]) {
        let ours = format!("{}={},{}={}", kubernetes::MANAGED_BY, labels::TRIBUTARY, labels::ROLE, role::VOLUME);
        let (volumes, watch) =
            caches::all::<VolumeView, _>(clients.reader.clone(), &Selection::labels(ours), SystemRng);
        let queue = Queue::new(clock);
        let subscriptions = [
            volumes.feed(&queue, |volume| vec![ObjectKey::of(volume)]),
            mini_clusters.feed(&queue, |object| {
                let (namespace, name) = (object.namespace().unwrap_or_default(), object.name_any());
                let of = |(volume, _)| ObjectKey::cluster_scoped(names::persistent_volume(&namespace, &name, volume));
                object.spec.made_volumes().map(of).collect()
            }),
        ];
        (Self { volumes, mini_clusters, clients: clients.clone(), queue }, watch.boxed(), subscriptions)
    }

    /// Deletes until `stop`: in the leader's scope.
    pub(super) async fn run(self, stop: CancellationToken) {
        let listed = async {
            self.volumes.listed().await;
            self.mini_clusters.listed().await;
        };
        tokio::select! {
            () = listed => {}
            () = stop.cancelled() => return,
        }
        for volume in self.volumes.objects() {
            self.queue.mark(ObjectKey::of(&*volume));
        }
        let queue = self.queue.clone();
        let this = Arc::new(self);
        let handler = move |key: ObjectKey| {
            let this = this.clone();
            async move { this.judge(&key).await }
        };
        worker::run(queue, Options::default(), SystemRng, handler, report, stop).await;
    }

    async fn judge(&self, key: &ObjectKey) -> Result<Outcome, RequestError> {
        let Some(volume) = self.volumes.of(key) else { return Ok(Outcome::Done) };
        let Some(owner) = Owner::of(&volume.metadata) else { return Ok(Outcome::Done) };
        let lives = |object: &MiniCluster| object.uid().as_deref() == Some(owner.uid.as_str());
        let goes = volume.metadata.deletion_timestamp.is_some();
        if goes || self.mini_clusters.of(&owner.key).is_some_and(|object| lives(&object)) {
            return Ok(Outcome::Done);
        }
        // A cache that is behind, or of some namespaces only, proves nothing.
        let namespace = owner.key.namespace.as_deref().unwrap_or_default();
        let found =
            Api::<MiniCluster>::namespaced(self.clients.reader.clone(), namespace).get_opt(&owner.key.name).await;
        let found = found.map_err(|error| RequestError::new("read", format!("MiniCluster {}", owner.key), error))?;
        if !found.as_ref().is_some_and(lives)
            && let Some(doomed) = Doomed::of(&*volume)
        {
            tracing::info!(volume = %key, mini_cluster = %owner.key, "its MiniCluster is gone; it is deleted");
            sweep::delete::<PersistentVolume>(&self.clients.writer, &doomed, PropagationPolicy::Background).await?;
        }
        Ok(Outcome::Done)
    }
}

fn report(run: Run<'_, ObjectKey, RequestError>) {
    if let Err(failure) = run.result {
        let retry_in = format!("{:.1?}", failure.retry_in);
        tracing::warn!(volume = %run.key, error = chain(failure.error), failures = failure.failures, retry_in, "a volume that is left over could not be deleted");
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_what_bears_all_of_our_labels_is_ours() {
        let all = json!({"app.kubernetes.io/managed-by": "tributary", "tributary.dev/role": "volume", "namespace": "waters",
            "tributary.dev/minicluster": "lake", "tributary.dev/minicluster-uid": "u-1"});
        let of = |labels: &serde_json::Value| {
            Owner::of(&serde_json::from_value(json!({"name": "waters.lake.data", "labels": labels})).unwrap())
        };
        let owner = Owner { key: ObjectKey::namespaced("waters", "lake"), uid: "u-1".to_owned() };
        assert_eq!(of(&all), Some(owner));
        for key in all.as_object().unwrap().keys() {
            let mut less = all.clone();
            less.as_object_mut().unwrap().remove(key);
            assert_eq!(of(&less), None, "{key}");
        }
        let mut other = all;
        other["app.kubernetes.io/managed-by"] = json!("Helm");
        assert_eq!(of(&other), None);
    }
}
