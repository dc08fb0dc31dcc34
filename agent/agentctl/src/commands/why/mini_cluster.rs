//! The way of a MiniCluster from its spec to `Ready`, condition by condition. Pure.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition as Said;
use kube::ResourceExt;
use tributary::api::hosted_burst::HostedBurst;
use tributary::api::labels::condition::{FINISHED, READY, VALID};
use tributary::api::minicluster::{MiniClusterStatus, Phase};
use tributary::api::names;
use tributary::cluster::conditions;

use super::{Found, burst, pods};
use crate::explain::{Condition, Explanation, Verdict, walk};
use crate::hints::{self, Object};

/// What it takes until a MiniCluster and its bursts are ready, in the order in which it comes about.
const CONDITIONS: [Condition<Found>; 17] = [
    ("Leased", leased),
    ("CertificateReceived", certificate),
    ("NotDeleted", not_deleted),
    ("Observed", observed),
    ("Valid", valid),
    ("Ended", ended),
    ("NotSuspended", not_suspended),
    ("Prerequisites", prerequisites),
    ("JobMade", job_made),
    ("PodsMade", pods_made),
    ("PodsScheduled", |found| pods::scheduled(&pods::living(&found.pods))),
    ("ImagesPulled", |found| pods::images(&pods::living(&found.pods), &found.events)),
    ("VolumesMounted", |found| pods::volumes(&pods::living(&found.pods), &found.events)),
    ("ContainersStarted", |found| pods::started(&pods::living(&found.pods))),
    ("BrokersJoined", joined),
    ("Ready", ready),
    ("BurstsReady", bursts_ready),
];

/// The first of [`CONDITIONS`] that is not met.
pub fn explain(found: &Found) -> Explanation {
    let (namespace, name) = match (&found.mini_cluster, &found.hosted) {
        (Some(object), _) => (object.namespace(), object.name_any()),
        (None, Some(hosted)) => (hosted.namespace(), hosted.name_any()),
        (None, None) => (None, String::new()),
    };
    let object = format!("MiniCluster {}/{name}", namespace.unwrap_or_default());
    Explanation { unseen: found.unseen.clone(), ..walk(object, found, &CONDITIONS) }
}

/// The conditions up to the making of the Job: what bursts of a root without an instance wait for.
pub(super) fn up_to_job(found: &Found) -> Explanation {
    let until = CONDITIONS.iter().position(|(name, _)| *name == "PodsMade").unwrap_or(CONDITIONS.len());
    walk(String::new(), found, &CONDITIONS[..until])
}

/// Namespace and name.
fn key(found: &Found) -> (String, String) {
    let object = found.mini_cluster.as_ref();
    (object.and_then(ResourceExt::namespace).unwrap_or_default(), object.map(ResourceExt::name_any).unwrap_or_default())
}

fn status(found: &Found) -> MiniClusterStatus {
    found.mini_cluster.as_ref().and_then(|object| object.status.clone()).unwrap_or_default()
}

fn said(found: &Found, type_: &str) -> Option<Said> {
    conditions::find(&status(found).conditions, type_).cloned()
}

/// A hosted burst: whether its root is heard of, and it may stay.
fn leased(found: &Found) -> Verdict {
    let Some(hosted) = &found.hosted else { return Verdict::Skip };
    let peer = &hosted.spec.peer;
    let status = hosted.status.clone().unwrap_or_default();
    if let Some(reason) = status.draining_reason {
        let cause = format!("it leaves this cluster ({reason}): {}", status.message);
        let hint = match reason.as_str() {
            "Released" => format!("its root gave it up; why, is said there: {}", of_root(hosted)),
            "LeaseExpired" => format!("contact with {peer} was lost for too long; why, is said by `agentctl peers`"),
            _ => "the root decides whether it comes back".to_owned(),
        };
        return Verdict::unmet(reason, cause, hint);
    }
    match status.suspect_since {
        Some(since) => {
            let cause = format!(
                "{peer} is out of contact since {:.0}; the burst runs on for {} s from then",
                since.0, hosted.spec.lease_seconds
            );
            Verdict::unmet("RootOutOfContact", cause, "why, is said by `agentctl peers`")
        }
        None => Verdict::Met(format!("{peer}, where its root is, is heard of")),
    }
}

/// What says more of a hosted burst's root, in its own cluster.
fn of_root(hosted: &HostedBurst) -> String {
    let (peer, root) = (&hosted.spec.peer, &hosted.spec.root);
    format!("`agentctl --context {peer} why {} --namespace {}`", root.name, root.namespace)
}

/// A hosted burst: whether its certificate is here.
fn certificate(found: &Found) -> Verdict {
    let Some(hosted) = &found.hosted else { return Verdict::Skip };
    let status = hosted.status.clone().unwrap_or_default();
    if status.credential_ready {
        return Verdict::Met("the certificate of the instance is here".to_owned());
    }
    let hint = format!(
        "{} sends it once it has recorded this cluster as a recipient: its agent's log says more",
        hosted.spec.peer
    );
    Verdict::unmet("CertificateAwaited", status.message, hint)
}

fn not_deleted(found: &Found) -> Verdict {
    let Some(object) = &found.mini_cluster else {
        return Verdict::unmet(
            "NotMade",
            "its MiniCluster is not made yet",
            "the agent makes it next; its log says more",
        );
    };
    if object.metadata.deletion_timestamp.is_none() {
        return Verdict::Skip;
    }
    let finalizers = object.finalizers();
    let cause = match finalizers {
        [] => "it is being deleted, and so is what was made for it".to_owned(),
        some => format!("it is being deleted, and waits for {}", some.join(", ")),
    };
    Verdict::unmet("Deleted", cause, "finalizers are removed by whoever set them; Tributary sets none of its own")
}

fn observed(found: &Found) -> Verdict {
    let Some(object) = &found.mini_cluster else { return Verdict::Skip };
    let seen = status(found).observed_generation;
    if seen.is_some() && seen >= object.metadata.generation {
        return Verdict::Met("the agent has seen the spec as it is".to_owned());
    }
    let what = if seen.is_some() { "the agent has not seen the last change" } else { "no agent has seen it" };
    match &found.agent {
        Some(Err(why)) => Verdict::unmet(
            "NoAgent",
            format!("{what}: {why}"),
            "install or mend it; what is missing is said by `agentctl check`",
        ),
        Some(Ok(holder)) => {
            let hint = "its log says more; does it watch this namespace?";
            Verdict::unmet("NotObserved", format!("{what} yet ({holder} leads)"), hint)
        }
        None => Verdict::unmet("NotObserved", format!("{what} yet"), "does an agent run? `agentctl check`"),
    }
}

fn valid(found: &Found) -> Verdict {
    match said(found, VALID) {
        Some(said) if said.status == "False" => Verdict::unmet(
            said.reason,
            said.message,
            "correct the field; what it may be: `kubectl explain minicluster.spec`",
        ),
        _ => Verdict::Met("the spec can be carried out".to_owned()),
    }
}

/// A run that is over has nothing to wait for.
fn ended(found: &Found) -> Verdict {
    let Some(finished) = said(found, FINISHED).filter(|said| said.status == "True") else { return Verdict::Skip };
    let status = status(found);
    if status.phase == Some(Phase::Succeeded) {
        return Verdict::Done(format!("it has ended well: {}", finished.message));
    }
    let (namespace, name) = key(found);
    let lead = status.lead.pod.unwrap_or_else(|| format!("{name}-0"));
    let again = format!("; to run it again: `agentctl restart minicluster/{name} --namespace {namespace}`");
    let hint = match finished.reason.as_str() {
        "DeadlineExceeded" => format!("raise deadlineSeconds{again}"),
        _ => format!(
            "what the command said: `kubectl logs job/{name} --namespace {namespace}` (the lead was {lead}){again}"
        ),
    };
    Verdict::unmet(finished.reason, finished.message, hint)
}

fn not_suspended(found: &Found) -> Verdict {
    let Some(object) = &found.mini_cluster else { return Verdict::Skip };
    if object.spec.suspend {
        let (namespace, name) = key(found);
        let hint = format!("to go on: `agentctl resume minicluster/{name} --namespace {namespace}`");
        return Verdict::unmet("Suspended", "spec.suspend holds it back", hint);
    }
    let suspended = found.job.as_ref().and_then(|job| job.spec.as_ref()).and_then(|spec| spec.suspend) == Some(true);
    if suspended {
        let hint =
            "a queue (Kueue, for example) or a person suspended the Job: the queue's workload says what it waits for";
        return Verdict::unmet("JobSuspended", "the Job is suspended, though the MiniCluster is not", hint);
    }
    Verdict::Skip
}

/// What the agent itself waits for.
fn prerequisites(found: &Found) -> Verdict {
    let Some(ready) = said(found, READY).filter(|said| said.status == "False") else { return Verdict::Skip };
    if matches!(ready.reason.as_str(), "Pending" | "Starting" | "Suspended") {
        return Verdict::Skip;
    }
    if ready.reason == "Restarting" {
        return Verdict::unmet("Restarting", ready.message, "wait: its bursts leave and its Job is deleted first");
    }
    let (namespace, name) = key(found);
    let hint = hints::waiting(&ready.reason, Object { namespace: &namespace, name: &name });
    Verdict::unmet(ready.reason, ready.message, hint)
}

fn job_made(found: &Found) -> Verdict {
    let Some(object) = &found.mini_cluster else { return Verdict::Skip };
    if found.job.is_some() {
        return Verdict::Met("its Job is there".to_owned());
    }
    let (namespace, name) = (object.namespace().unwrap_or_default(), object.name_any());
    let job = Object { namespace: &namespace, name: &name };
    match pods::last_event(&found.events, "MiniCluster", &name, &[]) {
        Some(text) => Verdict::unmet("NoJob", format!("its Job is not made: {text}"), hints::pod_creation(text, job)),
        None => Verdict::unmet("NoJob", "its Job is not made yet", "wait a little; else the agent's log says more"),
    }
}

fn pods_made(found: &Found) -> Verdict {
    let Some(job) = &found.job else { return Verdict::Skip };
    let wanted = job.spec.as_ref().and_then(|spec| spec.parallelism).unwrap_or(1);
    let wanted = usize::try_from(wanted).unwrap_or(0);
    let there = pods::living(&found.pods).len();
    if there >= wanted {
        return Verdict::Met(format!("{there} pods are made"));
    }
    let count = format!("{there} of {wanted} pods are made");
    let (namespace, name) = key(found);
    match pods::last_event(&found.events, "Job", &job.name_any(), &["FailedCreate"]) {
        Some(text) => {
            let reason = if text.contains("exceeded quota") { "QuotaExceeded" } else { "FailedCreate" };
            Verdict::unmet(
                reason,
                format!("{count}: {text}"),
                hints::pod_creation(text, Object { namespace: &namespace, name: &name }),
            )
        }
        None => {
            let leaving = found.pods.iter().filter(|pod| pod.metadata.deletion_timestamp.is_some()).count();
            let more = if leaving > 0 { format!("; {leaving} are still leaving") } else { String::new() };
            let hint = format!(
                "the Job's controller makes them one by one: wait a little; else more is said by \
                 `kubectl describe job {name} --namespace {namespace}`"
            );
            Verdict::unmet("PodsMissing", format!("{count}{more}"), hint)
        }
    }
}

fn joined(found: &Found) -> Verdict {
    let lead = match (&found.hosted, &found.mini_cluster) {
        (Some(hosted), _) if hosted.spec.lead.is_none() && !hosted.spec.tunnel => {
            let cause = "the root has not told yet where its lead broker is";
            let hint = format!("what it waits for is said there: {}", of_root(hosted));
            return Verdict::unmet("NoLeadAddress", cause, hint);
        }
        (Some(hosted), _) => {
            let through = if hosted.spec.tunnel { " through the tunnel" } else { "" };
            format!("the lead broker on {}{through} (Service {})", hosted.spec.peer, names::lead(&hosted.spec.slot))
        }
        (None, Some(object)) => format!("the lead, {}-0, by its host name", object.name_any()),
        (None, None) => String::new(),
    };
    pods::joined(&pods::living(&found.pods), &lead, found.hosted.is_some(), found.simulated)
}

fn ready(found: &Found) -> Verdict {
    match said(found, READY) {
        Some(said) if said.status == "True" => Verdict::Met(said.message),
        Some(said) => Verdict::unmet(said.reason, said.message, "wait a little: the agent writes the status next"),
        None => Verdict::unmet("NotSaid", "the agent has not said so yet", "wait a little; else its log says more"),
    }
}

fn bursts_ready(found: &Found) -> Verdict {
    let declared =
        found.mini_cluster.as_ref().map(|root| root.spec.bursts(&root.name_any()).map(|(slot, _)| slot).collect());
    let declared: Vec<String> = declared.unwrap_or_default();
    if declared.is_empty() {
        return Verdict::Skip;
    }
    for slot in &declared {
        let explanation = burst::explain(found, slot);
        if let Some(unmet) = explanation.unmet {
            return Verdict::unmet(
                unmet.reason,
                format!("burst {slot}, {}: {}", unmet.condition, unmet.cause),
                unmet.hint,
            );
        }
    }
    if found.bursts.iter().any(|burst| burst.status.as_ref().is_some_and(|status| status.simulated)) {
        return Verdict::Unknown(
            "every wanted pod is ready; on simulated nodes (kwok) that says nothing of brokers".to_owned(),
        );
    }
    Verdict::Met(format!("all brokers of {} have joined", declared.join(", ")))
}
