//! What Kueue says of a Job that it holds back, or of a MiniCluster that MultiKueue runs in another cluster: by the Workload of
//! that.
//!
//! It is read with the rights of whoever asks, and only of a Job that is suspended and names a queue, or of such a MiniCluster.

use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::api::{Api, DynamicObject, ListParams};
use kube::core::GroupVersionKind;
use kube::discovery::ApiResource;
use kube::{Client, ResourceExt};
use tributary::api::labels::{KUEUE, KUEUE_QUEUE, kubernetes};
use tributary::api::minicluster::MiniCluster;
use tributary::api::workload::MULTIKUEUE;
use tributary::cluster::caches::controller_uid;
use tributary::cluster::conditions::find;

use crate::explain::Verdict;

/// The versions of Workloads, newest first.
const VERSIONS: [&str; 2] = ["v1beta2", "v1beta1"];

/// The Workload of a Job.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Workload {
    pub(super) name: String,
    pub(super) conditions: Vec<Condition>,
}

/// The queue that a Job waits in, if it is suspended.
pub(super) fn queue(job: &Job) -> Option<&str> {
    let suspended = is_suspended(job) && !is_handed_on(job);
    job.labels().get(KUEUE_QUEUE).filter(|_| suspended).map(String::as_str)
}

/// Whether Kueue starts and stops the Job.
pub(super) fn is_queued(job: &Job) -> bool {
    job.labels().contains_key(KUEUE_QUEUE)
}

pub(super) fn is_suspended(job: &Job) -> bool {
    job.spec.as_ref().and_then(|spec| spec.suspend) == Some(true)
}

/// Whether the queue gives the Job to another cluster: the MiniCluster says so itself, and what to do.
pub(super) fn is_handed_on(job: &Job) -> bool {
    let manager = job.spec.as_ref().and_then(|spec| spec.managed_by.as_deref());
    manager.is_some_and(|manager| manager != kubernetes::JOB_CONTROLLER)
}

/// UID of what waits for Kueue: of a Job that does, or of a MiniCluster that MultiKueue runs in another cluster.
pub(super) fn waiting(mini_cluster: Option<&MiniCluster>, job: Option<&Job>) -> Option<String> {
    let dispatched = mini_cluster.filter(|object| object.spec.left_to() == Some(MULTIKUEUE));
    let job = job.filter(|job| queue(job).is_some());
    dispatched.and_then(ResourceExt::uid).or_else(|| job?.uid())
}

/// The Workload of what has this UID; `None`: there is none, or no Kueue.
pub(super) async fn workload(client: &Client, namespace: &str, uid: &str) -> kube::Result<Option<Workload>> {
    for version in VERSIONS {
        let kind = GroupVersionKind::gvk(KUEUE.trim_end_matches('/'), version, "Workload");
        let kind = ApiResource::from_gvk_with_plural(&kind, "workloads");
        let api: Api<DynamicObject> = Api::namespaced_with(client.clone(), namespace, &kind);
        let all = match api.list(&ListParams::default()).await {
            Ok(all) => all,
            Err(kube::Error::Api(status)) if status.is_not_found() => continue,
            Err(error) => return Err(error),
        };
        let of_it = all.items.into_iter().find(|workload| controller_uid(workload) == Some(uid));
        return Ok(of_it.map(|workload| Workload {
            name: workload.name_any(),
            conditions: serde_json::from_value(workload.data["status"]["conditions"].clone()).unwrap_or_default(),
        }));
    }
    Ok(None)
}

/// Why a Job waits.
pub(super) fn waits(queue: &str, workload: Option<&Workload>, namespace: &str) -> Verdict {
    let Some(Workload { name, conditions }) = workload else {
        let cause = format!("its Job waits in queue {queue} of Kueue, which has made no Workload of it");
        let hint = format!(
            "does Kueue run, and manage Jobs of this namespace? `kubectl get localqueues.kueue.x-k8s.io,workloads.kueue.x-k8s.io \
             --namespace {namespace}`"
        );
        return Verdict::unmet("JobQueued", cause, hint);
    };
    let cause = format!("its Job waits in queue {queue} of Kueue: {}", said(conditions));
    let hint = format!(
        "the ClusterQueue decides: `kubectl describe workloads.kueue.x-k8s.io {name} --namespace {namespace}` says more"
    );
    Verdict::unmet("JobQueued", cause, hint)
}

/// What Kueue says of something that waits.
pub(super) fn said(conditions: &[Condition]) -> String {
    // What took its place away comes first, then what keeps it from getting one.
    let evicted = find(conditions, "Evicted").filter(|said| said.status == "True").map(|said| ("evicted", said));
    let reserved = find(conditions, "QuotaReserved").filter(|said| said.status == "False");
    let admitted = find(conditions, "Admitted").filter(|said| said.status == "False");
    let waits = reserved.or(admitted).map(|said| ("waits", said));
    let said: Vec<String> = [evicted, waits]
        .into_iter()
        .flatten()
        .filter(|(_, said)| !said.message.is_empty())
        .map(|(what, said)| format!("{what}: {}", said.message))
        .collect();
    if said.is_empty() { "it has said nothing yet".to_owned() } else { said.join("; ") }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn job(suspend: bool, labels: Value) -> Job {
        serde_json::from_value(json!({"metadata": {"labels": labels}, "spec": {"suspend": suspend, "template": {}}}))
            .unwrap()
    }

    #[test]
    fn only_a_suspended_job_with_a_queue_waits_for_kueue() {
        let labelled = json!({KUEUE_QUEUE: "team"});
        assert_eq!(queue(&job(true, labelled.clone())), Some("team"));
        assert_eq!(queue(&job(false, labelled.clone())), None);
        let mut handed_on = job(true, labelled);
        handed_on.spec.as_mut().unwrap().managed_by = Some(MULTIKUEUE.into());
        assert_eq!(queue(&handed_on), None, "its MiniCluster says what to do");
        assert_eq!(queue(&job(true, json!({"kueue.x-k8s.io/priority-class": "high"}))), None);
    }

    #[test]
    fn what_kueue_says_is_told() {
        let told = |conditions: Value| {
            let workload =
                Workload { name: "job-lake-1".into(), conditions: serde_json::from_value(conditions).unwrap() };
            match waits("team", Some(&workload), "flux") {
                Verdict::Unmet { reason, cause, hint } => format!("{reason}: {cause}\n{hint}"),
                other => panic!("{other:?}"),
            }
        };
        let said = |type_: &str, status: &str, message: &str| json!({"type": type_, "status": status, "reason": "R", "message": message, "lastTransitionTime": "2026-01-01T00:00:00Z"});
        let pending = told(json!([said("QuotaReserved", "False", "insufficient unused quota for cpu")]));
        assert!(
            pending.starts_with(
                "JobQueued: its Job waits in queue team of Kueue: waits: insufficient unused quota for cpu\n"
            ) && pending.contains("kubectl describe workloads.kueue.x-k8s.io job-lake-1 --namespace flux"),
            "{pending}"
        );
        let evicted = told(json!([
            said("Evicted", "True", "Preempted to accommodate a workload"),
            said("QuotaReserved", "False", "no room"),
        ]));
        assert!(evicted.contains("evicted: Preempted to accommodate a workload; waits: no room"), "{evicted}");
        let checked = told(json!([
            said("QuotaReserved", "True", "Quota reserved"),
            said("Admitted", "False", "a check is pending")
        ]));
        assert!(checked.contains("waits: a check is pending"), "{checked}");
        assert!(told(json!([])).contains("it has said nothing yet"));
        let Verdict::Unmet { cause, .. } = waits("team", None, "flux") else { panic!() };
        assert_eq!(cause, "its Job waits in queue team of Kueue, which has made no Workload of it");
    }
}
