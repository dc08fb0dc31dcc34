//! The indexed Job: its pods are the brokers.
//!
//! Source: <https://kubernetes.io/docs/concepts/workloads/controllers/job/>, DESIGN section 7.

use std::collections::BTreeMap;

use k8s_openapi::api::batch::v1::{
    Job, JobSpec, PodFailurePolicy, PodFailurePolicyOnExitCodesRequirement, PodFailurePolicyOnPodConditionsPattern,
    PodFailurePolicyRule, SuccessPolicy, SuccessPolicyRule,
};
use tributary_api::labels;

use super::boot::digest_of;
use super::model::{Model, Role};
use super::scripts::File;
use super::{metadata, pod};

/// What the Job runs; all of it but the sizes is fixed once the Job exists.
pub(super) fn spec(model: &Model<'_>, files: &[File]) -> JobSpec {
    let size = model.spec.size();
    JobSpec {
        completion_mode: Some("Indexed".to_owned()),
        completions: Some(size),
        parallelism: Some(size),
        backoff_limit: Some(model.spec.backoff_limit()),
        // 0 would end the Job at once; whoever writes it means that there is no limit.
        active_deadline_seconds: model.spec.deadline(),
        // Only when asked: other controllers (Kueue) hold Jobs back by the same field.
        suspend: model.spec.suspend.then_some(true),
        // The next pod of an index has the host name, and so the rank, of the one before: never both at once.
        pod_replacement_policy: Some("Failed".to_owned()),
        pod_failure_policy: pod_failure_policy(model),
        success_policy: success_policy(model),
        template: pod::template(model, files),
        ..JobSpec::default()
    }
}

/// The Job, with the digest of its boot files.
pub(super) fn job(model: &Model<'_>, spec: JobSpec, boot_digest: &str) -> Job {
    let mut metadata = metadata::child(model, model.name.to_owned(), None);
    let mut all = labels(model);
    all.append(metadata.labels.get_or_insert_default());
    metadata.labels = Some(all);
    // By one of them, a Job of a MiniCluster that MultiKueue has made finds its Workload.
    let mut annotations = of_queues(model.annotations);
    annotations.extend([
        (labels::BOOT_DIGEST.to_owned(), boot_digest.to_owned()),
        (labels::RANK_MAP_DIGEST.to_owned(), model.rank_map.digest().to_string()),
    ]);
    metadata.annotations = Some(annotations);
    Job { metadata, spec: Some(spec), status: None }
}

/// Labels of the Job. Schedulers of whole Jobs (Kueue) read them, and users write them on the pods, on the Job or on the
/// MiniCluster. Kubernetes itself gives a Job without labels those of its pods.
pub(super) fn labels(model: &Model<'_>) -> BTreeMap<String, String> {
    let mut all = of_queues(model.labels);
    all.extend(model.spec.pod.labels.clone());
    all.extend(model.spec.job_labels.clone());
    all
}

/// What the MiniCluster's own labels, or annotations, say to the queue of its Job.
fn of_queues(all: &BTreeMap<String, String>) -> BTreeMap<String, String> {
    let is_queueing = |(key, _): &(&String, &String)| key.starts_with(labels::KUEUE);
    all.iter().filter(is_queueing).map(|(key, value)| (key.clone(), value.clone())).collect()
}

/// Digest of what a running Job cannot change: see [`Boot::template`].
pub(super) fn fixed_digest(spec: &mut JobSpec) -> String {
    let follows = (spec.completions.take(), spec.parallelism.take(), spec.suspend.take());
    let fixed = serde_json::to_string(spec).expect("Kubernetes objects have a JSON form");
    (spec.completions, spec.parallelism, spec.suspend) = follows;
    digest_of(fixed.as_bytes())
}

/// A command that fails fails the Job at once, and is not run again; a pod that was stopped or lost is replaced. Users who
/// set a backoff limit or another restart policy ask for retries, and get them.
fn pod_failure_policy(model: &Model<'_>) -> Option<PodFailurePolicy> {
    if pod::restart_policy(model) != "Never" {
        return None;
    }
    let disrupted = PodFailurePolicyRule {
        action: "Ignore".to_owned(),
        on_pod_conditions: Some(vec![PodFailurePolicyOnPodConditionsPattern {
            type_: "DisruptionTarget".to_owned(),
            status: "True".to_owned(),
        }]),
        on_exit_codes: None,
    };
    let failed = PodFailurePolicyRule {
        action: "FailJob".to_owned(),
        on_exit_codes: Some(PodFailurePolicyOnExitCodesRequirement {
            container_name: Some(model.name.to_owned()),
            operator: "NotIn".to_owned(),
            // 137 and 143: the pod was stopped. 128: its container could not be started there.
            values: vec![0, 128, 137, 143],
        }),
        on_pod_conditions: None,
    };
    let once = model.spec.backoff_limit.is_none();
    Some(PodFailurePolicy { rules: std::iter::once(disrupted).chain(once.then_some(failed)).collect() })
}

/// The instance is done when its lead is. A burst has none: it ends when it is deleted.
fn success_policy(model: &Model<'_>) -> Option<SuccessPolicy> {
    let lead = SuccessPolicyRule { succeeded_indexes: Some("0".to_owned()), succeeded_count: None };
    (model.role == Role::Root).then(|| SuccessPolicy { rules: vec![lead] })
}
