//! PersistentVolumes and claims of MiniClusters: made before an incarnation, removed when it has ended well.
//!
//! A claim belongs to its MiniCluster and goes with it. A PersistentVolume is of the whole cluster, so nothing of a namespace
//! can own it, and no finalizer holds up the MiniCluster instead: it bears the MiniCluster's UID in a label, and is deleted
//! when there is no MiniCluster of that UID any more. What does not bear that UID, or has not the name and the claim that we
//! would give it, is never touched.

use std::sync::Arc;

use futures::FutureExt;
use futures::future::BoxFuture;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{ObjectReference, PersistentVolume, PersistentVolumeClaim, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::{Api, Resource, ResourceExt};
use serde::Deserialize;
use tokio_util::sync::CancellationToken;
use tributary_api::labels::{self, kubernetes, role, upstream};
use tributary_api::minicluster::MiniCluster;
use tributary_api::names;
use tributary_clock::{SharedClock, SystemRng};
use tributary_cluster::apply::{Applied, Once};
use tributary_cluster::caches::{self, Cache, Selection, Subscription, controller_uid};
use tributary_cluster::client::Clients;
use tributary_cluster::engine::{self, Controller, Observed, nothing};
use tributary_cluster::error::{Cause, absence};
use tributary_cluster::sweep::{self, Deleted, Doomed};
use tributary_cluster::worker::{Outcome, Queue};
use tributary_cluster::{ObjectKey, RequestError};
use tributary_render::Rendered;

use super::apply::{Error, Writes};
use super::dereference::Known;

impl Writes {
    /// Makes the claims, each with the volume for it. The answer is what of an earlier incarnation still goes, because it is
    /// another one than is wanted now, or was bound to a claim that is gone: nothing can start before.
    ///
    /// # Errors
    /// [`Cause::Foreign`] for a name that is somebody else's; else what the API server says.
    pub(super) async fn make_volumes(
        &self,
        known: &Known,
        rendered: &Rendered,
    ) -> Result<Option<String>, RequestError> {
        // A claim names its volume, and would be bound to one of that name: first of all, none is somebody else's.
        let mut pairs = Vec::new();
        for (claim, volume) in rendered.claims.iter().zip(&rendered.persistent_volumes) {
            let found = self.persistent_volume(&volume.name_any()).await?;
            if let Some(found) = &found {
                belongs(found, known)?;
            }
            pairs.push((claim, volume, found));
        }
        let mut goes = None;
        for (claim, volume, found) in pairs {
            let own = match self.applier.own_once(claim).await? {
                Applied::Created(own) | Applied::Changed(own) => Some(own),
                Applied::Terminating => None,
                Applied::Unchanged => {
                    let found = self.claim(claim).await?;
                    if found.as_ref().is_some_and(|found| is_another(found, claim))
                        && mounts(rendered.service_pod.as_ref(), claim)
                    {
                        // It would keep the claim for ever. It is made again with the next one.
                        self.delete_service_pod(known).await?;
                    }
                    self.kept(claim, found, |_| true).await?
                }
            };
            let uid = own.as_ref().and_then(ResourceExt::uid);
            let is_there = match (found, &uid) {
                (Some(found), _) => {
                    let usable = |found: &PersistentVolume| uid.is_none() || is_free(found, uid.as_deref());
                    self.kept(volume, Some(found), usable).await?.is_some()
                }
                (None, None) => true,
                (None, Some(uid)) => self.applier.create_once(&bound_to(volume, uid)).await? != Once::Exists,
            };
            if own.is_none() {
                goes.get_or_insert_with(|| format!("PersistentVolumeClaim {}", claim.name_any()));
            } else if !is_there {
                goes.get_or_insert_with(|| format!("PersistentVolume {}", volume.name_any()));
            }
        }
        Ok(goes)
    }

    /// What was found, if it is what is wanted. Otherwise it is deleted: neither kind can be changed, and the data stay.
    async fn kept<K: Resource<DynamicType = ()>>(
        &self,
        wanted: &K,
        found: Option<K>,
        usable: impl Fn(&K) -> bool,
    ) -> Result<Option<K>, RequestError> {
        let Some(found) = found.filter(|found| found.meta().deletion_timestamp.is_none()) else { return Ok(None) };
        if !is_another(&found, wanted) && usable(&found) {
            return Ok(Some(found));
        }
        if let Some(doomed) = Doomed::of(&found) {
            self.delete::<K>(&doomed).await?;
        }
        Ok(None)
    }

    /// Removes claims, volumes, the pod of `spec.services`, and with the Job its pods: an incarnation has ended well, and
    /// `cleanupVolumes` says so. What is still in use goes when it no longer is.
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
        self.delete_service_pod(known).await?;
        // Last: as long as there is the Job, all of this is done again if it failed half-way.
        let uid = known.job.facts().map(|facts| facts.uid.clone()).unwrap_or_default();
        self.delete::<Job>(&Doomed { key, uid }).await?;
        Ok(())
    }

    async fn delete_service_pod(&self, known: &Known) -> Result<(), RequestError> {
        if let Some(doomed) = known.service_pod.as_deref().and_then(Doomed::of) {
            self.delete::<Pod>(&doomed).await?;
        }
        Ok(())
    }

    async fn delete<K: Resource<DynamicType = ()>>(&self, doomed: &Doomed) -> Result<Deleted, RequestError> {
        sweep::delete::<K>(&self.writer, doomed).await
    }

    async fn claim(&self, claim: &PersistentVolumeClaim) -> Result<Option<PersistentVolumeClaim>, RequestError> {
        let key = ObjectKey::of(claim);
        let namespace = key.namespace.as_deref().unwrap_or_default();
        let claims: Api<PersistentVolumeClaim> = Api::namespaced(self.reader.clone(), namespace);
        let found = claims.get_opt(&key.name).await;
        found.map_err(|error| RequestError::new("read", format!("PersistentVolumeClaim {key}"), error))
    }

    async fn persistent_volume(&self, name: &str) -> Result<Option<PersistentVolume>, RequestError> {
        let found = Api::<PersistentVolume>::all(self.reader.clone()).get_opt(name).await;
        found.map_err(|error| RequestError::new("read", format!("PersistentVolume {name}"), error))
    }
}

/// The volume, for the claim with this UID and for none that is made under its name later.
fn bound_to(volume: &PersistentVolume, claim: &str) -> PersistentVolume {
    let mut volume = volume.clone();
    if let Some(reference) = volume.spec.as_mut().and_then(|spec| spec.claim_ref.as_mut()) {
        reference.uid = Some(claim.to_owned());
    }
    volume
}

/// It was never bound, or is bound to this claim: one whose claim is gone is bound to no other.
fn is_free(volume: &PersistentVolume, claim: Option<&str>) -> bool {
    let phase = volume.status.as_ref().and_then(|status| status.phase.as_deref());
    let bound_to = volume.spec.as_ref().and_then(|spec| spec.claim_ref.as_ref()?.uid.as_deref());
    !matches!(phase, Some("Released" | "Failed")) && bound_to.is_none_or(|bound_to| Some(bound_to) == claim)
}

/// Whether it was made for this very MiniCluster.
fn belongs(volume: &PersistentVolume, known: &Known) -> Result<(), RequestError> {
    let uid = known.mini_cluster.meta().uid.as_deref();
    let owner = Owner::of(volume.meta(), volume.spec.as_ref().and_then(|spec| spec.claim_ref.as_ref()));
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
    /// `None`: it is none of ours. Labels are copied with an object, and set by whoever may: name and claim have to fit too.
    fn of(volume: &ObjectMeta, claim: Option<&ObjectReference>) -> Option<Self> {
        let label = |key: &str| volume.labels.as_ref()?.get(key).cloned();
        let ours = label(kubernetes::MANAGED_BY)? == labels::TRIBUTARY && label(labels::ROLE)? == role::VOLUME;
        let (namespace, name) = (label(upstream::NAMESPACE)?, label(labels::MINICLUSTER)?);
        let of_these = names::persistent_volume(&namespace, &name, "");
        let declared = volume.name.as_deref()?.strip_prefix(&of_these)?;
        let claim = claim?;
        let for_it = claim.namespace.as_ref() == Some(&namespace)
            && claim.name.as_deref() == Some(names::claim(&name, declared).as_str());
        let uid = label(labels::MINICLUSTER_UID)?;
        (ours && for_it).then(|| Self { key: ObjectKey::namespaced(namespace, name), uid })
    }
}

/// A PersistentVolume, of which only whose it is matters.
#[derive(Resource, Clone, Debug, Default, PartialEq, Deserialize)]
#[resource(inherit = PersistentVolume)]
struct VolumeView {
    metadata: ObjectMeta,
    #[serde(default)]
    spec: VolumeSpecView,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase")]
struct VolumeSpecView {
    claim_ref: Option<ObjectReference>,
}

impl VolumeView {
    fn owner(&self) -> Option<Owner> {
        Owner::of(&self.metadata, self.spec.claim_ref.as_ref())
    }
}

/// Whether a pod has the volume of a claim.
fn mounts(pod: Option<&Pod>, claim: &PersistentVolumeClaim) -> bool {
    let volumes = pod.and_then(|pod| pod.spec.as_ref()?.volumes.as_ref()).into_iter().flatten();
    let mut claims = volumes.filter_map(|volume| volume.persistent_volume_claim.as_ref());
    claims.any(|source| Some(&source.claim_name) == claim.metadata.name.as_ref())
}

/// Whether what was found is not the one that is wanted: neither kind can be changed.
fn is_another<K: Resource<DynamicType = ()>>(found: &K, wanted: &K) -> bool {
    let revision = |object: &K| object.annotations().get(labels::REVISION).cloned();
    revision(found) != revision(wanted)
}

/// Deletes volumes whose MiniCluster is gone.
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
        let (known, orphaned) = (volumes.clone(), queue.clone());
        let subscriptions = [
            volumes.feed(&queue, |volume| vec![ObjectKey::of(volume)]),
            // Also those that its spec did not name any more.
            mini_clusters.subscribe(move |change| {
                let uid = |object: &Option<Arc<MiniCluster>>| object.as_ref().and_then(|object| object.uid());
                if change.old.is_some() && uid(&change.old) != uid(&change.new) {
                    let all = known.objects();
                    let of_it = all.iter().filter(|one| one.owner().is_some_and(|owner| owner.key == change.key));
                    of_it.for_each(|volume| orphaned.mark(ObjectKey::of(&**volume)));
                }
            }),
        ];
        (Self { volumes, mini_clusters, clients: clients.clone(), queue }, watch.boxed(), subscriptions)
    }

    /// Deletes until `stop`: in the leader's scope.
    pub(super) async fn run(self: Arc<Self>, stop: CancellationToken) {
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
        engine::run(self, stop).await;
    }
}

/// A volume, and the MiniCluster that it was made for, by the API server's own word.
pub(super) struct Left {
    volume: Arc<VolumeView>,
    owner: Owner,
    /// UID of the MiniCluster that has the name of the owner.
    found: Option<String>,
}

impl Controller for LeftVolumes {
    type Key = ObjectKey;
    type Line = ();
    type View = Left;
    type Step = Option<Doomed>;
    type Error = RequestError;

    const NAME: &'static str = "left volume";

    fn queue(&self) -> &Queue<ObjectKey> {
        &self.queue
    }

    async fn observe(&self, key: &ObjectKey) -> Result<Observed<Left>, RequestError> {
        let Some(volume) = self.volumes.of(key) else { return Ok(nothing()) };
        let Some(owner) = volume.owner() else { return Ok(nothing()) };
        let lives = |object: &MiniCluster| object.uid().as_deref() == Some(owner.uid.as_str());
        let goes = volume.metadata.deletion_timestamp.is_some();
        if goes || self.mini_clusters.of(&owner.key).is_some_and(|object| lives(&object)) {
            return Ok(nothing());
        }
        // A cache that is behind, or of some namespaces only, proves nothing.
        let namespace = owner.key.namespace.as_deref().unwrap_or_default();
        let mini_clusters = Api::<MiniCluster>::namespaced(self.clients.reader.clone(), namespace);
        let found = absence(mini_clusters.get_metadata(&owner.key.name).await, &owner.key.name);
        let found = found.map_err(|error| RequestError::new("read", format!("MiniCluster {}", owner.key), error))?;
        Ok(Observed::Continue(Left { volume, owner, found: found.and_then(|found| found.metadata.uid) }))
    }

    fn step(&self, _: &ObjectKey, view: &Left) -> Option<Doomed> {
        let lives = view.found.as_deref() == Some(view.owner.uid.as_str());
        if lives { None } else { Doomed::of(&*view.volume) }
    }

    async fn apply(&self, key: &ObjectKey, view: Left, doomed: Option<Doomed>) -> Result<Outcome, RequestError> {
        if let Some(doomed) = doomed {
            tracing::info!(volume = %key, mini_cluster = %view.owner.key, "its MiniCluster is gone; it is deleted");
            sweep::delete::<PersistentVolume>(&self.clients.writer, &doomed).await?;
        }
        Ok(Outcome::Done)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn volume(name: &str, labels: &serde_json::Value, claim: serde_json::Value) -> VolumeView {
        let metadata = json!({"name": name, "labels": labels});
        serde_json::from_value(json!({"metadata": metadata, "spec": {"claimRef": claim}})).unwrap()
    }

    #[test]
    fn only_what_bears_our_labels_our_name_and_our_claim_is_ours() {
        let all = json!({"app.kubernetes.io/managed-by": "tributary", "tributary.dev/role": "volume", "namespace": "waters",
            "tributary.dev/minicluster": "lake", "tributary.dev/minicluster-uid": "u-1"});
        let claim = || json!({"namespace": "waters", "name": "lake.data", "uid": "c-1"});
        let owner = Owner { key: ObjectKey::namespaced("waters", "lake"), uid: "u-1".to_owned() };
        assert_eq!(volume("waters.lake.data", &all, claim()).owner(), Some(owner));
        for key in all.as_object().unwrap().keys() {
            let mut less = all.clone();
            less.as_object_mut().unwrap().remove(key);
            assert_eq!(volume("waters.lake.data", &less, claim()).owner(), None, "{key}");
        }
        let mut other = all.clone();
        other["app.kubernetes.io/managed-by"] = json!("Helm");
        assert_eq!(volume("waters.lake.data", &other, claim()).owner(), None);
        // Labels that somebody copied, or gave to a volume of their own.
        for (name, claim) in [
            ("theirs", claim()),
            ("waters.lake.more", claim()),
            ("waters.lake.data", json!({"namespace": "waters", "name": "theirs"})),
            ("waters.lake.data", json!({"namespace": "sea", "name": "lake.data"})),
            ("waters.lake.data", serde_json::Value::Null),
        ] {
            assert_eq!(volume(name, &all, claim).owner(), None, "{name}");
        }
    }

    #[test]
    fn a_volume_is_for_its_very_claim() {
        let volume = |claim: serde_json::Value, phase: &str| -> PersistentVolume {
            serde_json::from_value(json!({"spec": {"claimRef": claim}, "status": {"phase": phase}})).unwrap()
        };
        let made = bound_to(&volume(json!({"name": "lake.data"}), "Pending"), "c-1");
        assert!(is_free(&made, Some("c-1")));
        assert!(!is_free(&made, Some("c-2")), "one that was made anew under the name gets another volume");
        assert!(is_free(&volume(json!({"uid": "c-1"}), "Bound"), Some("c-1")));
        assert!(!is_free(&volume(json!({"uid": "c-1"}), "Released"), Some("c-1")));
    }
}
