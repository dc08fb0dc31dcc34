//! The label `job-index` on pods: upstream's operator puts it there, and users' selectors rely on it.
//!
//! A Job's template cannot say which index a pod has, so each pod is patched once. Only pods that lack the label are
//! watched: with the label a pod leaves the watch, so that nothing is kept of pods that are done. Only pods whose Job
//! belongs to a MiniCluster are touched.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures::FutureExt;
use futures::future::BoxFuture;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Patch, PatchParams};
use kube::{Api, Client, ResourceExt};
use serde_json::json;
use tokio_util::sync::CancellationToken;
use tributary_api::labels::{self, kubernetes, upstream};
use tributary_api::minicluster::MiniCluster;
use tributary_clock::{SharedClock, SystemRng};
use tributary_cluster::caches::{self, Cache, Selection, Subscription, controller_of, controller_uid};
use tributary_cluster::client::Clients;
use tributary_cluster::error::{Cause, chain};
use tributary_cluster::worker::{self, Options, Outcome, Queue, Run};
use tributary_cluster::{ObjectKey, RequestError};

use super::dereference::{JobState, job_state};
use super::view::{JobView, PodView};

/// Labels at the same time: few, because Jobs are made first.
const CONCURRENCY: usize = 4;

/// Labels pods with their index.
#[derive(Clone)]
pub(super) struct PodIndexes {
    pods: Cache<PodView>,
    jobs: Cache<JobView>,
    mini_clusters: Cache<MiniCluster>,
    writer: Client,
    pub(super) queue: Queue<ObjectKey>,
    labelled: Labelled,
}

/// Pods that were labelled and that the cache still shows without: their UIDs.
type Labelled = Arc<Mutex<BTreeMap<ObjectKey, Option<String>>>>;

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
        let queue = Queue::new(clock);
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
            Self { pods, jobs, mini_clusters, writer: clients.writer.clone(), queue, labelled: Labelled::default() };
        (indexes, watch.boxed(), subscriptions)
    }

    /// Labels pods until `stop`: in the leader's scope.
    pub(super) async fn run(self, stop: CancellationToken) {
        self.labelled().clear();
        for pod in self.pods.objects() {
            self.queue.mark(ObjectKey::of(&*pod));
        }
        let options = Options { concurrency: CONCURRENCY, ..Options::default() };
        let queue = self.queue.clone();
        let handler = move |key: ObjectKey| {
            let this = self.clone();
            async move { this.label(&key).await }
        };
        worker::run(queue, options, SystemRng, handler, report, stop).await;
    }

    async fn label(&self, key: &ObjectKey) -> Result<Outcome, RequestError> {
        let Some(pod) = self.pods.of(key) else {
            self.labelled().remove(key);
            return Ok(Outcome::Done);
        };
        // Changes of the Job come faster than the cache learns of the label.
        if self.labelled().get(key) == Some(&pod.uid()) {
            return Ok(Outcome::Done);
        }
        let Some(index) = wanted(&pod, |key| self.jobs.of(key), |key| self.mini_clusters.of(key)) else {
            return Ok(Outcome::Done);
        };
        let body = json!({"metadata": {"uid": pod.uid(), "labels": {upstream::JOB_INDEX: index}}});
        let params = PatchParams { field_manager: Some(labels::manager::MINICLUSTER.into()), ..PatchParams::default() };
        let pods: Api<Pod> = Api::namespaced(self.writer.clone(), key.namespace.as_deref().unwrap_or_default());
        match pods.patch_metadata(&key.name, &params, &Patch::Merge(&body)).await.map_err(Cause::from) {
            Ok(_) => {
                self.labelled().insert(key.clone(), pod.uid());
                Ok(Outcome::Done)
            }
            // Gone, or replaced by another of its name: the cache tells soon.
            Err(cause) if cause.is_not_found() || cause.is_conflict() => Ok(Outcome::Done),
            Err(cause) => Err(RequestError::new("label", format!("Pod {key}"), cause)),
        }
    }

    fn labelled(&self) -> MutexGuard<'_, BTreeMap<ObjectKey, Option<String>>> {
        // Each critical section is one insert, remove or look.
        self.labelled.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The index to label the pod with, if it is of a MiniCluster's Job.
fn wanted(
    pod: &PodView,
    job: impl Fn(&ObjectKey) -> Option<Arc<JobView>>,
    mini_cluster: impl Fn(&ObjectKey) -> Option<Arc<MiniCluster>>,
) -> Option<String> {
    let index = pod.labels().get(kubernetes::COMPLETION_INDEX)?;
    let job = job(&controller_of::<Job>(pod)?)?;
    let mini_cluster = mini_cluster(&controller_of::<MiniCluster>(&*job)?)?;
    let ours = match job_state(&job, mini_cluster.metadata.uid.as_deref().unwrap_or_default()) {
        JobState::Ours { .. } | JobState::Adopted { .. } => controller_uid(pod) == job.metadata.uid.as_deref(),
        JobState::Absent | JobState::Terminating(_) | JobState::Foreign { .. } => false,
    };
    (ours && pod.metadata.deletion_timestamp.is_none()).then(|| index.clone())
}

fn report(run: Run<'_, ObjectKey, RequestError>) {
    if let Err(failure) = run.result {
        let retry_in = format!("{:.1?}", failure.retry_in);
        tracing::warn!(pod = %run.key, error = chain(failure.error), failures = failure.failures, retry_in, "a pod could not be labelled");
    }
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
        let named = |key: &ObjectKey| key.name == "lake";
        wanted(pod, |key| named(key).then(|| Arc::new(job.clone())), |key| named(key).then(|| Arc::new(lake.clone())))
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
