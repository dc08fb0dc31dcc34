//! Why pods of a Job are missing: sentences for the status.

use std::time::Duration;

use jiff::Timestamp;
use kube::ResourceExt as _;
use tributary_api::hosted_burst::is_hosted;
use tributary_api::labels::{condition, reason};
use tributary_api::minicluster::MiniCluster;
use tributary_api::workload::MULTIKUEUE;
use tributary_cluster::conditions::Statement;

use super::{Facts, JobFacts};

/// What is said once Kubernetes has had its time to make the pods of a Job.
pub(super) fn pods_not_made(facts: &Facts<'_>, job: &JobFacts, now: Timestamp) -> Option<String> {
    job.pods_not_made_after(facts.mini_cluster.status.as_ref(), now).filter(Duration::is_zero)?;
    Some(format!(
        "Kubernetes has not made {} of the {} pods of this cluster (after pods were evicted, it waits up to 10 minutes); \
         why: `kubectl describe job {} --namespace {}`",
        job.unmade,
        job.parallelism,
        facts.mini_cluster.name_any(),
        facts.mini_cluster.namespace().unwrap_or_default()
    ))
}

/// Who holds a Job that is in no queue.
pub(super) fn suspended(object: &MiniCluster, job: &JobFacts) -> Statement {
    let (namespace, name) = (object.namespace().unwrap_or_default(), object.name_any());
    let (reason, message) = match object.spec.suspend {
        false if job.applied_suspend => (reason::SUSPENDED, "its Job is being resumed".to_owned()),
        true => {
            let resume = format!("`agentctl resume minicluster/{name} --namespace {namespace}`");
            (reason::SUSPENDED, format!("spec.suspend is true; to go on: {resume}"))
        }
        false => (
            reason::JOB_SUSPENDED,
            format!(
                "Job {namespace}/{name} is suspended, and spec.suspend is false: a person or another controller did it; \
                 who: `kubectl get job {name} --namespace {namespace} -o yaml --show-managed-fields`"
            ),
        ),
    };
    Statement::fails(condition::READY, reason, message)
}

/// Why no pods are made of a Job that another controller manages: Kueue writes that where MultiKueue checks its queue, and the
/// other cluster has only the Job.
pub(super) fn handed_on(facts: &Facts<'_>, job: &JobFacts, controller: &str) -> String {
    let queue = job.queue.as_deref().map_or_else(|| "its queue".to_owned(), |queue| format!("queue {queue}"));
    let instead = match is_hosted(facts.mini_cluster) {
        true => "no burst can run there: name another queue in import.queueName of the ClusterPeer".to_owned(),
        false => format!("make the MiniCluster with `managedBy: {MULTIKUEUE}`, and it runs there as a whole"),
    };
    format!("{queue} hands Jobs on to other clusters (spec.managedBy of its Job is {controller}); {instead}")
}
