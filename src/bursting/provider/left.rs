//! What is left of a burst, and whose it is. The agent deletes only what a HostedBurst of this name made, or what bears marks
//! that nothing but our rendering gives: people copy what they find, with its labels, and give their objects labels of ours.
//!
//! | under the name | |
//! |---|---|
//! | a HostedBurst that the caller does not know, since it cannot be read perhaps | nothing is touched |
//! | the MiniCluster of a HostedBurst | goes |
//! | its Job, without the MiniCluster that made it | goes |
//! | its pods, without any controller | go |
//! | what has its marks and another owner | stays, and keeps the end from being told |
//! | all else | another's |

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::Pod;
use kube::api::ListParams;
use kube::{Api, Resource, ResourceExt};
use tributary_api::hosted_burst::{HostedBurst, is_hosted};
use tributary_api::labels::{self, kubernetes::JOB_NAME, upstream};
use tributary_api::minicluster::MiniCluster;
use tributary_cluster::RequestError;
use tributary_cluster::caches::{controller_of, controller_uid, is_gone};
use tributary_cluster::error::absence;
use tributary_cluster::sweep::{self, Doomed};
use tributary_contract::PeerName;

use super::controller::Provider;
use super::ledger::SlotKey;
use super::memory::{Fate, Memory};
use super::slot::{ClaimKey, Wanted, belongs_here};
use crate::peers::PeerView;
use crate::watch::{WatchedPod, is_of_job};

/// Pods that have not ended.
const RUN: &str = "status.phase!=Succeeded,status.phase!=Failed";

/// What the API server has of a burst.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Left {
    Nothing,
    /// It is on its way out.
    Going,
    /// This, which neither the agent nor Kubernetes takes away.
    Stuck(String),
}

impl Provider {
    /// What is left of a hosted burst of this name besides the HostedBurst `known`, by the API server's own word.
    /// `deletes`: what is left behind goes at once. Kubernetes' garbage collector begins to look after a kind up to 30 s after its
    /// definition was made, has other things to do besides, and waits for finalizers.
    pub(super) async fn clear_left(
        &self,
        key: &SlotKey,
        known: Option<String>,
        deletes: bool,
    ) -> Result<Left, RequestError> {
        let (namespace, name) = key;
        let (reader, writer) = (&self.shared.clients.reader, &self.shared.clients.writer);
        let failed = |kind: &str, error| RequestError::new("look for", format!("{kind} {namespace}/{name}"), error);
        let stuck = |kind: &str, name: &str| Ok(Left::Stuck(format!("{kind} {namespace}/{name}")));
        let bursts: Api<HostedBurst> = Api::namespaced(reader.clone(), namespace);
        let hosted = match absence(bursts.get_metadata(name).await, name) {
            Err(error) if is_gone(&error, &Api::all(reader.clone()), namespace).await => return Ok(Left::Nothing),
            hosted => hosted.map_err(|error| failed("HostedBurst", error))?,
        };
        if hosted.is_some_and(|found| found.uid() != known) {
            return stuck("HostedBurst", name);
        }
        let mini_clusters: Api<MiniCluster> = Api::namespaced(reader.clone(), namespace);
        let found = absence(mini_clusters.get_metadata(name).await, name);
        let found = found.map_err(|error| failed("MiniCluster", error))?;
        let ours = found.as_ref().filter(|found| is_of_slot(*found));
        if let Some(ours) = ours.filter(|ours| ours.metadata.deletion_timestamp.is_none()) {
            if let (true, Some(doomed)) = (deletes, Doomed::of(ours)) {
                sweep::delete::<MiniCluster>(writer, &doomed).await?;
            } else if ours.owner_references().is_empty() {
                return stuck("MiniCluster", name);
            }
            return Ok(Left::Going);
        }
        // Whole, for its template, which nobody can change.
        let jobs: Api<Job> = Api::namespaced(reader.clone(), namespace);
        let job = jobs.get_opt(name).await.map_err(|error| failed("Job", error))?;
        match job.as_ref().map(|job| whose(job, found.as_ref(), name)) {
            Some(Whose::LeftBehind) => {
                if let (true, Some(doomed)) = (deletes, job.as_ref().and_then(Doomed::of)) {
                    sweep::delete::<Job>(writer, &doomed).await?;
                    return Ok(Left::Going);
                }
                // The garbage collector has yet to come.
                let goes = |job: &Job| {
                    job.metadata.deletion_timestamp.is_some() || found.is_none() && !job.owner_references().is_empty()
                };
                return if job.as_ref().is_some_and(goes) { Ok(Left::Going) } else { stuck("Job", name) };
            }
            Some(Whose::Unknown) => return stuck("Job", name),
            Some(Whose::Theirs) | None => {}
        }
        if let Some(ours) = ours {
            let own = |finalizer: &&String| !matches!(finalizer.as_str(), "foregroundDeletion" | "orphan");
            return match ours.finalizers().iter().find(own) {
                Some(finalizer) => stuck("MiniCluster", &format!("{name} with the finalizer {finalizer}")),
                None => Ok(Left::Going),
            };
        }
        // Pods outlive their Job, until their containers have ended.
        let pods: Api<Pod> = Api::namespaced(reader.clone(), namespace);
        let run = ListParams::default().labels(&format!("{JOB_NAME}={name}")).fields(RUN);
        let pods = pods.list_metadata(&run).await.map_err(|error| failed("pods of Job", error))?;
        let mut left = Left::Nothing;
        for pod in pods.items.iter().filter(|pod| is_left(*pod, name, job.as_ref())) {
            if left == Left::Nothing {
                left = Left::Going;
            }
            if pod.metadata.deletion_timestamp.is_some() || job.is_none() && controller_of::<Job>(pod).is_some() {
                continue;
            }
            if let Some(doomed) = Doomed::of(pod).filter(|_| deletes && is_orphan(pod, name)) {
                sweep::delete::<Pod>(writer, &doomed).await?;
            } else {
                left = stuck("pod", &pod.name_any())?;
            }
        }
        Ok(left)
    }
}

/// Whether a MiniCluster was made for the HostedBurst of its own name: by its owner, or by what is left when that is taken away.
pub(super) fn is_of_slot(mini_cluster: &impl Resource) -> bool {
    let meta = mini_cluster.meta();
    let named = |name: &String| Some(name) == meta.name.as_ref();
    let mut owners = meta.owner_references.iter().flatten().peekable();
    let labelled = || meta.labels.as_ref().and_then(|all| all.get(labels::SLOT)).is_some_and(named);
    let of_slot = if owners.peek().is_none() {
        labelled()
    } else {
        owners.any(|owner| owner.kind == HostedBurst::kind(&()) && named(&owner.name))
    };
    is_hosted(mini_cluster) && of_slot
}

/// What a term finds of bursts that have no HostedBurst, in the namespaces where the agent works: whose answers wait until it
/// is gone.
pub(super) fn recalled(
    mini_clusters: &[Arc<MiniCluster>],
    pods: &[Arc<WatchedPod>],
    is_free: impl Fn(&SlotKey) -> bool,
) -> Vec<(SlotKey, ClaimKey)> {
    let slot = |made: &MiniCluster| Some((made.metadata.namespace.clone()?, made.metadata.name.clone()?));
    let hosted = || mini_clusters.iter().filter(|made| is_hosted(&***made));
    let copies: Vec<SlotKey> = hosted().filter(|made| !is_of_slot(&***made)).filter_map(|made| slot(made)).collect();
    let made = hosted().filter_map(|made| Some((slot(made)?, burst_of(&**made)?)));
    let run = pods.iter().filter(|pod| !pod.view.finished).filter_map(|pod| {
        let job = pod.view.job.as_deref().filter(|job| is_of_job(&**pod, job))?;
        Some(((pod.view.namespace.clone(), job.to_owned()), burst_of(&**pod)?))
    });
    made.chain(run).filter(|(slot, _)| !copies.contains(slot) && is_free(slot)).collect()
}

/// Which burst an object was made for, by its labels.
fn burst_of(object: &impl Resource) -> Option<ClaimKey> {
    let labels = object.meta().labels.as_ref()?;
    Some((labels.get(labels::ROOT_CLUSTER)?.as_str().into(), labels.get(labels::BURST_UID)?.as_str().into()))
}

/// Whether a name is looked at only because of what this term found under it. Then nothing is deleted: it may be a copy.
pub(super) fn only_recalled(
    key: &SlotKey,
    hosted: bool,
    claims: &BTreeMap<ClaimKey, Wanted>,
    peers: &BTreeMap<PeerName, PeerView>,
    memory: &Memory,
) -> bool {
    let wants = |(claim, wanted): (&ClaimKey, &Wanted)| match wanted {
        Wanted::Burst(desired) => belongs_here(key, peers, claim, desired),
        Wanted::Tombstone => false,
    };
    let recalled = !memory.fates.is_empty() && memory.fates.values().all(|fate| *fate == Fate::Recalled);
    recalled && !hosted && !claims.iter().any(wants)
}

/// Whose the Job of a slot's name is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Whose {
    /// Ours, and what made it is gone, or kept by a finalizer.
    LeftBehind,
    /// It looks like ours, and has another owner.
    Unknown,
    Theirs,
}

/// `found` is the MiniCluster of the name: none of ours that lives. One that made a Job of ours may have lost its marks, or be a
/// copy of one that had them.
fn whose(job: &Job, found: Option<&impl Resource>, name: &str) -> Whose {
    let template = job.spec.as_ref().and_then(|spec| spec.template.metadata.as_ref());
    if !has_marks(template.and_then(|template| template.labels.as_ref()), name) {
        return Whose::Theirs;
    }
    let lives = found.filter(|found| !is_of_slot(*found)).map(|found| found.meta().uid.as_deref());
    let orphaned = job.owner_references().is_empty();
    let left = controller_of::<MiniCluster>(job).is_some() && lives.is_none_or(|uid| uid != controller_uid(job));
    if orphaned || left { Whose::LeftBehind } else { Whose::Unknown }
}

/// Whether a pod with the label of the Job `name` is one of ours. `job` is the Job of that name, which is another's.
fn is_left(pod: &impl Resource, name: &str, job: Option<&Job>) -> bool {
    let of_job = || job.and_then(|job| job.metadata.uid.as_deref()).is_some_and(|uid| controller_uid(pod) == Some(uid));
    is_of_job(pod, name) && (has_marks(pod.meta().labels.as_ref(), name) || !of_job())
}

/// Whether it is one of ours whose Job was deleted without it.
fn is_orphan(pod: &impl Resource, name: &str) -> bool {
    pod.meta().owner_references.iter().flatten().next().is_none() && has_marks(pod.meta().labels.as_ref(), name)
}

/// The labels that the template of a hosted Job gives to its pods. Users can write ours on their own pods; then those of every
/// MiniCluster that is not hosted are there, too.
fn has_marks(all: Option<&BTreeMap<String, String>>, name: &str) -> bool {
    let is = |key: &str| all.and_then(|all| all.get(key)).is_some_and(|value| value == name);
    is(labels::SLOT) && is(labels::MINICLUSTER) && all.is_some_and(|all| !all.contains_key(upstream::NAME))
}

#[cfg(test)]
mod tests;
