//! Pods on nodes that are lost.
//!
//! Kubernetes deletes the pods of a node that it does not hear of: after 5 minutes, unless they tolerate its taint
//! (`node.kubernetes.io/unreachable`) for another time. But a deletion waits for the kubelet, which is not there, and the
//! Job makes no other pod of the index before (`podReplacementPolicy: Failed`). So the rank would be missing until somebody
//! repairs the node or says that it will not come back: a worker's, that of a burst's gateway and with it the whole burst,
//! or the lead's and with it everything. A burst that is released would keep its name as long.
//!
//! Here such a pod is given up once its node is lost and it is overdue: Jobs of the other policy, which is Kubernetes'
//! default, do not even wait for the deletion. It is done as Kubernetes does it to pods whose node was deleted: the pod has
//! failed by a disruption, which lets the Job go on and counts as no failure of the command, and is deleted without its
//! kubelet. To delete it would not be enough: the Job's finalizer holds what has not ended. Should the node come back, with a
//! broker that has lost its rank to the next one, no other broker takes that one (shown with real brokers in
//! `tests/suite/real_flux/gateway.rs`), and its kubelet ends it, which it was told to.
//!
//! Source: <https://kubernetes.io/docs/concepts/scheduling-eviction/taint-and-toleration/#taint-based-evictions>,
//! `markFailedAndDeletePod` of kubernetes/pkg/controller/podgc

use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Patch, PatchParams};
use kube::{Api, ResourceExt};
use serde_json::json;
use tributary_api::labels;
use tributary_api::minicluster::MiniCluster;
use tributary_cluster::caches::{Subscription, controller_of};
use tributary_cluster::engine::{Controller, Observed, nothing};
use tributary_cluster::sweep::{self, Deleted, Doomed};
use tributary_cluster::worker::{Outcome, Queue};
use tributary_cluster::{Cause, ObjectKey, RequestError};

use super::nodes::NodeView;
use super::note::Note;
use super::shared::Shared;
use super::watch::{WatchedNode, WatchedPod};

/// How long after its time to end a pod is still waited for.
const OVERDUE: SignedDuration = SignedDuration::from_secs(20);

/// Deletes pods of MiniClusters, hosted ones included, that nobody else will.
pub(super) struct LostPods {
    shared: Arc<Shared>,
    /// Pods that are to be looked at.
    queue: Queue<ObjectKey>,
}

impl LostPods {
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        Self { queue: Queue::new(shared.clock.clone()), shared }
    }

    /// What marks pods: they are told to end, or their node is lost.
    pub(super) fn feed(&self) -> [Subscription; 2] {
        let caches = &self.shared.caches;
        let (pods, queue) = (caches.pods.clone(), self.queue.clone());
        let goes = |pod: &WatchedPod| pod.view.terminating && mini_cluster_of(pod).is_some();
        [
            caches.pods.feed(&self.queue, move |pod| goes(pod).then(|| ObjectKey::of(pod)).into_iter().collect()),
            caches.nodes.subscribe(move |change| {
                let lost = |node: &Option<Arc<WatchedNode>>| node.as_ref().is_none_or(|node| node.view.lost);
                if lost(&change.new) && !lost(&change.old) {
                    let all = pods.objects();
                    let there = all.iter().filter(|pod| pod.view.node.as_ref() == Some(&change.key.name) && goes(pod));
                    there.for_each(|pod| queue.mark(ObjectKey::of(&**pod)));
                }
            }),
        ]
    }

    /// Marks those that end, for the first round of a term.
    pub(super) fn begin(&self) {
        for pod in self.shared.caches.pods.objects().iter().filter(|pod| pod.view.terminating) {
            self.queue.mark(ObjectKey::of(&**pod));
        }
    }
}

/// A pod of a MiniCluster, and the node that it is on.
pub(super) struct PodOnNode {
    pod: Arc<WatchedPod>,
    owner: ObjectKey,
    node_name: String,
    /// `None`: there is no such node any more.
    node: Option<Arc<WatchedNode>>,
    now: Timestamp,
}

impl Controller for LostPods {
    type Key = ObjectKey;
    type Line = ();
    type View = PodOnNode;
    type Step = Verdict;
    type Error = RequestError;

    const NAME: &'static str = "lost pod";
    const CONCURRENCY: usize = 1;

    fn queue(&self) -> &Queue<ObjectKey> {
        &self.queue
    }

    async fn observe(&self, key: &ObjectKey) -> Result<Observed<PodOnNode>, RequestError> {
        let caches = &self.shared.caches;
        let Some(pod) = caches.pods.of(key) else { return Ok(nothing()) };
        let Some(node_name) = pod.view.node.clone() else { return Ok(nothing()) };
        let Some(owner) = mini_cluster_of(&pod).filter(|_| caches.works_in(&pod.view.namespace)) else {
            return Ok(nothing());
        };
        let node = caches.nodes.of(&ObjectKey::cluster_scoped(&node_name));
        Ok(Observed::Continue(PodOnNode { pod, owner, node_name, node, now: self.shared.now().wall }))
    }

    fn step(&self, _: &ObjectKey, view: &PodOnNode) -> Verdict {
        judge(&view.pod, view.node.as_ref().map(|node| &node.view), view.now)
    }

    async fn apply(&self, key: &ObjectKey, view: PodOnNode, verdict: Verdict) -> Result<Outcome, RequestError> {
        match verdict {
            Verdict::Stays => return Ok(Outcome::Done),
            Verdict::IsAwaited(left) => return Ok(Outcome::After(left)),
            Verdict::Goes | Verdict::HasEnded => {}
        }
        let PodOnNode { pod, owner, node_name: node, .. } = view;
        let Some(doomed) = Doomed::of(&*pod) else { return Ok(Outcome::Done) };
        if verdict == Verdict::Goes && !self.fail(&doomed, &node).await? {
            return Ok(Outcome::Done);
        }
        if sweep::delete_at_once::<Pod>(&self.shared.clients.writer, &doomed).await? == Deleted::Accepted {
            let message =
                format!("pod {} was on node {node}, which does not answer; the next one takes its place", key.name);
            tracing::info!(pod = %key, node, "its node is lost; it is deleted without it");
            if let Some(mini_cluster) = self.shared.caches.mini_clusters.of(&owner) {
                let notes = vec![Note::warning("PodOfLostNode", message)];
                self.shared.say(&*mini_cluster, "Reconcile", notes).await;
            }
        }
        Ok(Outcome::Done)
    }
}

impl LostPods {
    /// Says that the pod has failed, and that its command has not. `false`: it is gone, or another one.
    async fn fail(&self, pod: &Doomed, node: &str) -> Result<bool, RequestError> {
        let condition = json!({"type": "DisruptionTarget", "status": "True", "reason": "NodeLost",
            "message": format!("node {node} does not answer"), "lastTransitionTime": self.shared.now().wall.to_string()});
        let patch = json!({"metadata": {"uid": pod.uid}, "status": {"phase": "Failed", "conditions": [condition]}});
        let params = PatchParams { field_manager: Some(labels::manager::MINICLUSTER.into()), ..PatchParams::default() };
        let namespace = pod.key.namespace.as_deref().unwrap_or_default();
        let pods: Api<Pod> = Api::namespaced(self.shared.clients.writer.clone(), namespace);
        match pods.patch_status(&pod.key.name, &params, &Patch::Strategic(&patch)).await.map_err(Cause::from) {
            Ok(_) => Ok(true),
            Err(cause) if cause.is_not_found() || cause.is_conflict() => Ok(false),
            Err(cause) => Err(RequestError::new("give up", format!("Pod {}", pod.key), cause)),
        }
    }
}

/// The MiniCluster that a pod is made for, by a Job or, for `spec.services`, as it is.
fn mini_cluster_of(pod: &WatchedPod) -> Option<ObjectKey> {
    let owner = controller_of::<Job>(pod).or_else(|| controller_of::<MiniCluster>(pod))?;
    (pod.labels().get(labels::MINICLUSTER) == Some(&owner.name)).then_some(owner)
}

/// What becomes of a pod that is being deleted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Verdict {
    /// Its kubelet ends it.
    Stays,
    /// It may still be on its way.
    IsAwaited(Duration),
    /// Nobody else ends it.
    Goes,
    /// The same; but how it ended is known, and stays so.
    HasEnded,
}

/// `node`: there is no such node any more.
fn judge(pod: &WatchedPod, node: Option<&NodeView>, now: Timestamp) -> Verdict {
    let due = match &pod.metadata.deletion_timestamp {
        // With the time that the pod was given.
        Some(time) if node.is_none_or(|node| node.lost) => time.0 + OVERDUE,
        _ => return Verdict::Stays,
    };
    match Duration::try_from(due.duration_since(now)) {
        Ok(left) if !left.is_zero() => Verdict::IsAwaited(left),
        _ if pod.view.finished => Verdict::HasEnded,
        _ => Verdict::Goes,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    const NOW: &str = "2026-01-01T00:10:00Z";

    fn pod(metadata: Value) -> WatchedPod {
        let mut all = json!({"name": "lake-1-x", "namespace": "waters", "labels": {"tributary.dev/minicluster": "lake"},
            "ownerReferences": [{"apiVersion": "batch/v1", "kind": "Job", "name": "lake", "uid": "j", "controller": true}]});
        all.as_object_mut().unwrap().extend(metadata.as_object().unwrap().clone());
        serde_json::from_value(json!({"metadata": all, "spec": {"nodeName": "n"}})).unwrap()
    }

    #[test]
    fn a_pod_goes_without_its_node_once_that_is_lost_and_it_is_overdue() {
        let (here, lost) = (NodeView::default(), NodeView { lost: true, ..NodeView::default() });
        let ends = |at: &str| pod(json!({"deletionTimestamp": format!("2026-01-01T00:{at}Z")}));
        let left = |seconds| Verdict::IsAwaited(Duration::from_secs(seconds));
        for (pod, node, expected) in [
            (pod(json!({})), Some(&lost), Verdict::Stays),
            (ends("01:00"), Some(&here), Verdict::Stays),
            (ends("10:05"), Some(&lost), left(25)),
            (ends("09:41"), Some(&lost), left(1)),
            (ends("09:40"), Some(&lost), Verdict::Goes),
            (ends("01:00"), Some(&lost), Verdict::Goes),
            (ends("01:00"), None, Verdict::Goes),
        ] {
            assert_eq!(judge(&pod, node, NOW.parse().unwrap()), expected, "{:?} {node:?}", pod.metadata);
        }
        let mut well = ends("09:40");
        Arc::make_mut(&mut well.view).finished = true;
        assert_eq!(judge(&well, Some(&lost), NOW.parse().unwrap()), Verdict::HasEnded, "it has not failed");
    }

    #[test]
    fn only_pods_of_mini_clusters_are_touched() {
        let owner = |kind: &str, group: &str, name: &str| {
            let owner = json!({"apiVersion": group, "kind": kind, "name": name, "uid": "o", "controller": true});
            mini_cluster_of(&pod(json!({"ownerReferences": [owner]})))
        };
        let lake = Some(ObjectKey::namespaced("waters", "lake"));
        assert_eq!(owner("Job", "batch/v1", "lake"), lake);
        assert_eq!(owner("MiniCluster", "flux-framework.org/v1alpha2", "lake"), lake);
        assert_eq!(owner("StatefulSet", "apps/v1", "lake"), None);
        assert_eq!(owner("Job", "batch/v1", "sea"), None);
        assert_eq!(mini_cluster_of(&pod(json!({"ownerReferences": []}))), None);
        assert_eq!(mini_cluster_of(&pod(json!({"labels": {}}))), None, "the Flux Operator's are left alone");
    }
}
