//! The label `job-index` on pods: upstream's operator puts it there, and users' selectors rely on it.
//!
//! A Job's template cannot say which index a pod has, so each pod is patched once. Only pods that lack the label are
//! watched: with the label a pod leaves the watch, so that nothing is kept of pods that are done. Only pods whose Job
//! belongs to a MiniCluster are touched.

use std::collections::BTreeMap;
use std::sync::Arc;

use futures::FutureExt;
use futures::future::BoxFuture;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Patch, PatchParams};
use kube::{Api, Client, ResourceExt};
use parking_lot::Mutex;
use serde_json::json;
use tokio_util::sync::CancellationToken;
use tributary_api::labels::{self, kubernetes, upstream};
use tributary_api::minicluster::MiniCluster;
use tributary_clock::{SharedClock, SystemRng};
use tributary_cluster::caches::{self, Cache, Selection, Subscription, controller_of, controller_uid};
use tributary_cluster::client::Clients;
use tributary_cluster::engine::{self, Controller, Observed, nothing};
use tributary_cluster::error::Cause;
use tributary_cluster::worker::{Outcome, Queue};
use tributary_cluster::{ObjectKey, RequestError};

use super::dereference::{JobState, job_state};
use super::view::{JobView, PodView};

/// Labels pods with their index.
pub(super) struct PodIndexes {
    pods: Cache<PodView>,
    jobs: Cache<JobView>,
    mini_clusters: Cache<MiniCluster>,
    writer: Client,
    queue: Queue<ObjectKey>,
    /// Pods that were labelled and that the cache still shows without: their UIDs.
    labelled: Mutex<BTreeMap<ObjectKey, Option<String>>>,
}

impl PodIndexes {
    /// With the watch that fills its cache, and what feeds its queue.
    pub(super) fn new(
        clients: &Clients,
        jobs: Cache<JobView>,
        mini_clusters: Cache<MiniCluster>,
        clock: SharedClock,
    ) -> (Self, BoxFuture<'static, ()>, [Subscription; 2]) {
        let lacking = Selection::labels(format!("{},!{}", upstream::HPA_SELECTOR, upstream::JOB_INDEX));
        let (pods, watch) = caches::watched::<PodView, _>(clients, &lacking, SystemRng);
        let queue = Queue::by_namespace(clock);
        // A pod can be seen before its Job, and a Job can be taken over.
        let of_job = pods.clone();
        let subscriptions = [
            pods.feed(&queue, |pod| vec![ObjectKey::of(pod)]),
            jobs.feed(&queue, move |job| {
                let pods = of_job.controlled_by(job.metadata.uid.as_deref().unwrap_or_default());
                pods.iter().map(|pod| ObjectKey::of(&**pod)).collect()
            }),
        ];
        let indexes =
            Self { pods, jobs, mini_clusters, writer: clients.writer.clone(), queue, labelled: Mutex::default() };
        (indexes, watch.boxed(), subscriptions)
    }

    /// Labels pods until `stop`: in the leader's scope.
    pub(super) async fn run(self: Arc<Self>, stop: CancellationToken) {
        self.labelled.lock().clear();
        for pod in self.pods.objects() {
            self.queue.mark(ObjectKey::of(&*pod));
        }
        engine::run(self, stop).await;
    }
}

/// A pod that lacks the label, with what it belongs to.
pub(super) struct Lacking {
    pod: Arc<PodView>,
    job: Option<Arc<JobView>>,
    mini_cluster: Option<Arc<MiniCluster>>,
}

impl Controller for PodIndexes {
    type Key = ObjectKey;
    type Line = ();
    type View = Lacking;
    type Step = Option<String>;
    type Error = RequestError;

    const NAME: &'static str = "pod index";
    // Few, because Jobs are made first.
    const CONCURRENCY: usize = 4;

    fn queue(&self) -> &Queue<ObjectKey> {
        &self.queue
    }

    async fn observe(&self, key: &ObjectKey) -> Result<Observed<Lacking>, RequestError> {
        let Some(pod) = self.pods.of(key) else {
            self.labelled.lock().remove(key);
            return Ok(nothing());
        };
        // Changes of the Job come faster than the cache learns of the label.
        if self.labelled.lock().get(key) == Some(&pod.uid()) {
            return Ok(nothing());
        }
        let job = controller_of::<Job>(&*pod).and_then(|job| self.jobs.of(&job));
        let mini_cluster = job.as_deref().and_then(controller_of::<MiniCluster>);
        let mini_cluster = mini_cluster.and_then(|mini_cluster| self.mini_clusters.of(&mini_cluster));
        Ok(Observed::Continue(Lacking { pod, job, mini_cluster }))
    }

    fn step(&self, _: &ObjectKey, view: &Lacking) -> Option<String> {
        wanted(&view.pod, view.job.as_deref()?, view.mini_cluster.as_deref()?)
    }

    async fn apply(&self, key: &ObjectKey, view: Lacking, index: Option<String>) -> Result<Outcome, RequestError> {
        let (Some(index), uid) = (index, view.pod.uid()) else { return Ok(Outcome::Done) };
        let body = json!({"metadata": {"uid": uid, "labels": {upstream::JOB_INDEX: index}}});
        let params = PatchParams { field_manager: Some(labels::manager::MINICLUSTER.into()), ..PatchParams::default() };
        let pods: Api<Pod> = Api::namespaced(self.writer.clone(), key.namespace.as_deref().unwrap_or_default());
        match pods.patch_metadata(&key.name, &params, &Patch::Merge(&body)).await.map_err(Cause::from) {
            Ok(_) => {
                self.labelled.lock().insert(key.clone(), uid);
                Ok(Outcome::Done)
            }
            // Gone, or replaced by another of its name: the cache tells soon.
            Err(cause) if cause.is_not_found() || cause.is_conflict() => Ok(Outcome::Done),
            Err(cause) => Err(RequestError::new("label", format!("Pod {key}"), cause)),
        }
    }
}

/// The index to label the pod with, if it is of this MiniCluster's Job.
fn wanted(pod: &PodView, job: &JobView, mini_cluster: &MiniCluster) -> Option<String> {
    let index = pod.labels().get(kubernetes::COMPLETION_INDEX)?;
    let of_job = controller_of::<Job>(pod)? == ObjectKey::of(job);
    let of_mini_cluster = controller_of::<MiniCluster>(job)? == ObjectKey::of(mini_cluster);
    let ours = match job_state(job, mini_cluster.metadata.uid.as_deref().unwrap_or_default()) {
        JobState::Ours { .. } | JobState::Adopted { .. } => controller_uid(pod) == job.metadata.uid.as_deref(),
        JobState::Absent | JobState::Terminating(_) | JobState::Foreign { .. } => false,
    };
    (of_job && of_mini_cluster && ours && pod.metadata.deletion_timestamp.is_none()).then(|| index.clone())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn owned_by(api_version: &str, kind: &str, name: &str, uid: &str) -> Value {
        json!([{"apiVersion": api_version, "kind": kind, "name": name, "uid": uid, "controller": true}])
    }

    fn pod(owners: Value, labels: Value) -> PodView {
        let metadata = json!({"namespace": "n", "name": "lake-0-x", "ownerReferences": owners, "labels": labels});
        serde_json::from_value(json!({"metadata": metadata})).unwrap()
    }

    fn decide(pod: &PodView, job_owner: Value) -> Option<String> {
        let job = json!({"namespace": "n", "name": "lake", "uid": "job", "ownerReferences": job_owner});
        let job: JobView = serde_json::from_value(json!({"metadata": job})).unwrap();
        let mut lake = MiniCluster::new("lake", Default::default());
        lake.metadata.uid = Some("lake".into());
        lake.metadata.namespace = Some("n".into());
        wanted(pod, &job, &lake)
    }

    #[test]
    fn only_pods_of_a_mini_clusters_job_are_labelled() {
        let index = json!({kubernetes::COMPLETION_INDEX: "3"});
        let ours = owned_by("flux-framework.org/v1alpha2", "MiniCluster", "lake", "lake");
        let of_job = || owned_by("batch/v1", "Job", "lake", "job");
        assert_eq!(decide(&pod(of_job(), index.clone()), ours.clone()), Some("3".into()));
        for (pod, owner) in [
            (pod(of_job(), json!({})), ours.clone()),
            (pod(of_job(), index.clone()), json!([])),
            (pod(of_job(), index.clone()), owned_by("flux-framework.org/v1alpha2", "MiniCluster", "lake", "earlier")),
            (pod(owned_by("batch/v1", "Job", "lake", "earlier"), index.clone()), ours.clone()),
            (pod(owned_by("apps/v1", "StatefulSet", "lake", "job"), index.clone()), ours.clone()),
            (pod(json!([]), index.clone()), ours.clone()),
        ] {
            assert_eq!(decide(&pod, owner), None);
        }
        let early = pod(owned_by("batch/v1", "Job", "pond", "job"), index);
        assert_eq!(decide(&early, ours), None);
    }
}
