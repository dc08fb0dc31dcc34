//! The way of a MiniCluster from its spec to `Ready`, condition by condition. Pure.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition as Said;
use kube::ResourceExt;
use tributary::api::hosted_burst::{BurstPhase, HostedBurst};
use tributary::api::labels::condition::{
    ADMITTED, BURSTS_READY, CERTIFICATE_EXPOSED, FINISHED, GROWN, READY, RESTART_REQUIRED, SERVICES_READY,
    SPEC_SUPPORTED, VALID,
};
use tributary::api::labels::{KUEUE_QUEUE, reason};
use tributary::api::minicluster::{MiniCluster, MiniClusterStatus, Phase};
use tributary::api::names;
use tributary::api::workload::MULTIKUEUE;
use tributary::api::workload::reason::JOB_QUEUED;
use tributary::bursting::root::plan;
use tributary::cluster::conditions;

use super::{Found, burst, kueue, pods};
use crate::explain::{Condition, Explanation, Step, Unmet, Verdict, walk};
use crate::hints::{self, Object};
use crate::output::counted;

/// What it takes until a MiniCluster and its bursts are ready, in the order in which it comes about.
const CONDITIONS: [Condition<Found>; 18] = [
    ("Leased", leased),
    ("CertificateReceived", certificate),
    ("NodesProvisioned", nodes_provisioned),
    ("NotDeleted", not_deleted),
    ("Managed", managed),
    ("Observed", observed),
    ("Valid", valid),
    ("Ended", ended),
    ("NotSuspended", not_suspended),
    ("Prerequisites", prerequisites),
    ("JobMade", job_made),
    ("PodsMade", pods_made),
    ("PodsScheduled", pods_scheduled),
    ("ImagesPulled", |found| pods::images(&pods::living(&found.pods), &found.events)),
    ("VolumesMounted", volumes_mounted),
    ("ContainersStarted", |found| pods::started(&pods::living(&found.pods))),
    ("BrokersJoined", joined),
    ("Ready", ready),
];

/// Name of the condition that an instance is what the spec asks for.
pub(crate) const UP_TO_DATE: &str = "UpToDate";

/// Reason of the event about a definition that hides fields of the agent's.
const OUTDATED: &str = "CRDOutdated";

/// The first of [`CONDITIONS`] that is not met, and what keeps each of its bursts: they do not wait for each other.
pub(crate) fn explain(found: &Found) -> Explanation {
    let (namespace, name) = match (&found.mini_cluster, &found.hosted) {
        (Some(object), _) => (object.namespace(), object.name_any()),
        (None, Some(hosted)) => (hosted.namespace(), hosted.name_any()),
        (None, None) => (None, String::new()),
    };
    let object = format!("MiniCluster {}/{name}", namespace.unwrap_or_default());
    let mut own = Explanation { unseen: found.unseen.clone(), ..walk(object, found, &CONDITIONS) };
    if let Some(unmet) = found.hosted.as_ref().and_then(without_import) {
        own.ready = false;
        if own.unmet.is_none() { own.unmet = Some(unmet) } else { own.more.push(unmet) }
    }
    let Some(root) = found.mini_cluster.as_ref().filter(|root| root.spec.left_to().is_none() && !plan::is_over(root))
    else {
        return own;
    };
    own.warnings = WARNINGS.iter().filter_map(|(type_, good)| standing(found, type_, good)).collect();
    if status(found).incarnation.is_some() { with_parts(own, found, root) } else { own }
}

/// Conditions that keep nothing from running, and what each is as it should be.
const WARNINGS: [(&str, &str); 3] = [(SPEC_SUPPORTED, "True"), (GROWN, "True"), (CERTIFICATE_EXPOSED, "False")];

/// What is said by a condition that is not as it should be.
fn standing(found: &Found, type_: &str, good: &str) -> Option<Unmet> {
    let Said { type_, reason, message, .. } = said(found, type_).filter(|said| said.status != good)?;
    let (namespace, name) = key(found);
    let (cause, hint) = match message.split_once("; ") {
        // It says itself what can be done.
        Some((cause, then)) if type_ == CERTIFICATE_EXPOSED => (cause.to_owned(), then.to_owned()),
        _ => {
            let hint = hints::standing(&type_, &reason, Object { namespace: &namespace, name: &name });
            (message, hint)
        }
    };
    Some(Unmet { condition: type_, reason, cause, hint })
}

/// Its own trouble first, then bursts that fail, then what only a restart brings, then bursts that are on their way.
fn with_parts(mut explanation: Explanation, found: &Found, root: &MiniCluster) -> Explanation {
    let slots: Vec<String> = root.spec.bursts(&root.name_any()).map(|(slot, _)| slot).collect();
    let (mut failing, mut coming, mut asleep) = (Vec::new(), Vec::new(), Vec::new());
    for slot in &slots {
        let Some(Unmet { condition, reason, cause, hint }) = burst::explain(found, slot).unmet else { continue };
        // Nothing is missing.
        if reason == burst::ASLEEP {
            asleep.push(slot);
            let detail = format!("burst {slot}: {cause}");
            explanation.steps.push(Step { condition: BURSTS_READY.to_owned(), met: Some(true), detail });
            continue;
        }
        let cause = format!("burst {slot}, {condition}: {cause}");
        let unmet = Unmet { condition: BURSTS_READY.to_owned(), reason, cause, hint };
        let comes = ON_THE_WAY.split(' ').any(|reason| reason == unmet.reason);
        if comes { coming.push(unmet) } else { failing.push(unmet) }
    }
    // What runs with too few brokers runs.
    failing.sort_by_key(|unmet: &Unmet| unmet.reason == RESTART_REQUIRED);
    let awake: Vec<&str> = slots.iter().filter(|slot| !asleep.contains(slot)).map(String::as_str).collect();
    if explanation.ready && failing.is_empty() && coming.is_empty() && !awake.is_empty() {
        let simulated = found.bursts.iter().any(|burst| burst.status.as_ref().is_some_and(|status| status.simulated));
        let detail = match simulated {
            true => "every wanted pod is ready; on simulated nodes (kwok) that says nothing of brokers".to_owned(),
            false => format!("all brokers of {} have joined", awake.join(", ")),
        };
        explanation.steps.push(Step { condition: BURSTS_READY.to_owned(), met: (!simulated).then_some(true), detail });
    }
    let own = explanation.unmet.take();
    let services = standing(found, SERVICES_READY, "True");
    let mut all = own.into_iter().chain(services).chain(failing).chain(up_to_date(found, root)).chain(coming);
    explanation.unmet = all.next();
    explanation.more = all.collect();
    explanation.ready = explanation.unmet.is_none();
    explanation
}

/// Reasons of bursts that get there by themselves.
const ON_THE_WAY: &str = "\
    Accepted Draining Joining NoBurst NotObserved Offered Provisioning Queued RootStarting ScalingUp \
    Unanswered";

/// What the spec asks for and the running instance cannot follow.
fn up_to_date(found: &Found, root: &MiniCluster) -> Option<Unmet> {
    let said = said(found, RESTART_REQUIRED).filter(|said| said.status == "True")?;
    let condition = UP_TO_DATE.to_owned();
    if said.reason == reason::CANNOT_RESTART {
        return Some(Unmet {
            condition,
            reason: said.reason,
            cause: said.message,
            hint: hints::CANNOT_RESTART.to_owned(),
        });
    }
    Some(Unmet {
        condition,
        reason: RESTART_REQUIRED.to_owned(),
        cause: said.message.split("; to start it anew").next().unwrap_or_default().to_owned(),
        hint: hints::restart(Object { namespace: &root.namespace().unwrap_or_default(), name: &root.name_any() }),
    })
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
        let hint = hints::leaving(&reason, peer, &of_root(hosted));
        return Verdict::unmet(reason, cause, hint);
    }
    match status.suspect_since {
        Some(since) => {
            let cause = format!(
                "{peer} is out of contact since {:.0}; the burst runs on for {} from then",
                since.0, hosted.spec.lease
            );
            Verdict::unmet("RootOutOfContact", cause, "why, is said by `agentctl peers`")
        }
        None => Verdict::Met(format!("{peer}, where its root is, is heard of")),
    }
}

/// A hosted burst that runs on though its peer may place nothing here any more.
fn without_import(hosted: &HostedBurst) -> Option<Unmet> {
    let said = conditions::find(&hosted.status.as_ref()?.conditions, ADMITTED)?;
    let said = Some(said).filter(|said| said.status == "False")?;
    let (peer, namespace, name) = (&hosted.spec.peer, &hosted.spec.root.namespace, hosted.name_any());
    Some(Unmet {
        condition: ADMITTED.to_owned(),
        reason: said.reason.clone(),
        cause: said.message.split("; to end it").next().unwrap_or_default().to_owned(),
        hint: format!(
            "to let it stay: `agentctl peer add {peer} --import {namespace}`, which adds the namespace; to end it: \
             `kubectl delete hostedburst {name} --namespace {}`",
            hosted.namespace().unwrap_or_default()
        ),
    })
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

fn volumes_mounted(found: &Found) -> Verdict {
    let own =
        found.mini_cluster.as_ref().filter(|root| found.hosted.is_none() && root.spec.flux.curve_cert_secret.is_none());
    pods::volumes(&pods::living(&found.pods), &found.events, own.and_then(|own| own.metadata.name.as_deref()))
}

const FINALIZERS: &str = "remove its finalizers as those say who set them; Tributary sets none of its own";

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
    let (cause, hint) = match object.finalizers() {
        [] => ("it is being deleted, and so is what was made for it".to_owned(), FINALIZERS.to_owned()),
        // Kubernetes' own, for those who want the Job and the pods to go first.
        [one] if one == "foregroundDeletion" => {
            let (namespace, name) = key(found);
            let pods = format!("{} of its pods", found.pods.len());
            let hint = format!(
                "what keeps a pod is said by `kubectl describe pods --namespace {namespace} --selector job-name={name}`"
            );
            (format!("it is being deleted, and Kubernetes waits for its Job and {pods}"), hint)
        }
        some => (format!("it is being deleted, and waits for {}", some.join(", ")), FINALIZERS.to_owned()),
    };
    Verdict::unmet("Deleted", cause, hint)
}

/// Whether the agent makes anything of it. Of what another controller says of it, its phase is told.
fn managed(found: &Found) -> Verdict {
    let Some(object) = &found.mini_cluster else { return Verdict::Skip };
    let Some(manager) = object.spec.left_to() else { return Verdict::Skip };
    let status = status(found);
    match status.phase {
        Some(phase @ (Phase::Running | Phase::Succeeded)) => {
            Verdict::Done(format!("it is left to {manager} (spec.managedBy), which says {phase}"))
        }
        phase => {
            let (namespace, name) = key(found);
            let says = phase.map_or_else(|| "has said nothing".to_owned(), |phase| format!("says {phase}"));
            let cause = format!(
                "it is left to {manager} (spec.managedBy), which {says}; the agent here makes no brokers of it"
            );
            if manager != MULTIKUEUE {
                let hint = format!(
                    "what it waits for is said by {manager}; for the agent to run it, make it again without spec.managedBy"
                );
                return Verdict::unmet("LeftAlone", cause, hint);
            }
            let Some(kueue::Workload { name: workload, conditions }) = &found.workload else {
                let warning = found
                    .mini_cluster
                    .as_ref()
                    .and_then(|object| pods::last_event(&found.events, object, &["NoWorkload"]));
                let why = warning.unwrap_or_else(|| {
                    format!("it has no Workload: does it name a queue of Kueue (label {KUEUE_QUEUE})?")
                });
                let hint = "without a Workload, MultiKueue runs it nowhere: the agent makes one of a MiniCluster that names a \
                    LocalQueue, by that label or in spec.jobLabels";
                return Verdict::unmet("LeftAlone", format!("{cause}; {why}"), hint);
            };
            let hint = format!(
                "`kubectl describe workloads.kueue.x-k8s.io {workload} --namespace {namespace}` says more, and so does \
                 `agentctl why {name}` in the cluster that runs it"
            );
            Verdict::unmet("LeftAlone", format!("{cause}; its Workload {workload}: {}", kueue::said(conditions)), hint)
        }
    }
}

fn observed(found: &Found) -> Verdict {
    let Some(object) = &found.mini_cluster else { return Verdict::Skip };
    let seen = status(found).observed_generation;
    if seen.is_some() && seen >= object.metadata.generation {
        return Verdict::Met("the agent has seen the spec as it is".to_owned());
    }
    let status = status(found);
    let warning = pods::last_event(&found.events, object, &[]);
    // An agent that could not write the status has left other traces.
    let looked = seen.is_some() || !status.conditions.is_empty() || found.job.is_some() || warning.is_some();
    let what = if looked { "the agent has not seen the last change" } else { "no agent has seen it" };
    if let Some(Err(why)) = &found.agent {
        let hint = "install or mend it; what is missing is said by `agentctl check`";
        return Verdict::unmet("NoAgent", format!("{what}: {why}"), hint);
    }
    let outdated = pods::last_event(&found.events, object, &[OUTDATED]).filter(|told| warning.as_ref() == Some(told));
    if let Some(warning) = warning.filter(|_| seen.is_none() || outdated.is_some()) {
        let cause = format!("an agent has seen it, and could not do more: {warning}");
        let hint = match outdated {
            Some(_) => hints::DEFINITIONS,
            None => "the agent tries again by itself; its log says more",
        };
        return Verdict::unmet("NotObserved", cause, hint);
    }
    let hint = "its log says more; does it watch this namespace?";
    match &found.agent {
        Some(Ok(holder)) => Verdict::unmet("NotObserved", format!("{what} yet ({holder} leads)"), hint),
        _ => Verdict::unmet("NotObserved", format!("{what} yet"), "does an agent run? `agentctl check`"),
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
        "DeadlineExceeded" => {
            format!("if its pods waited, make room; else raise deadlineSeconds (of a FluxJob: timeLimit){again}")
        }
        _ => format!(
            "what the command said: `kubectl logs --selector job-name={name},batch.kubernetes.io/job-completion-index=0 \
             --tail=-1 --namespace {namespace}` (the lead was {lead}){again}"
        ),
    };
    Verdict::unmet(finished.reason, finished.message, hint)
}

fn not_suspended(found: &Found) -> Verdict {
    let Some(object) = &found.mini_cluster else { return Verdict::Skip };
    if let Some(queue) = found.job.as_ref().and_then(kueue::queue) {
        return kueue::waits(queue, found.workload.as_ref(), &key(found).0);
    }
    if object.spec.suspend && !found.job.as_ref().is_some_and(kueue::is_queued) {
        let (namespace, name) = key(found);
        let hint = format!("to go on: `agentctl resume minicluster/{name} --namespace {namespace}`");
        return Verdict::unmet("Suspended", "spec.suspend holds it back", hint);
    }
    if found.job.as_ref().is_some_and(|job| kueue::is_suspended(job) && !kueue::is_handed_on(job)) {
        let (namespace, name) = key(found);
        let hint = hints::waiting(reason::JOB_SUSPENDED, Object { namespace: &namespace, name: &name });
        return Verdict::unmet(reason::JOB_SUSPENDED, "the Job is suspended, though the MiniCluster is not", hint);
    }
    Verdict::Skip
}

/// A hosted burst whose pods are made once its nodes are provisioned: whether they are.
fn nodes_provisioned(found: &Found) -> Verdict {
    let Some(hosted) = &found.hosted else { return Verdict::Skip };
    let status = hosted.status.clone().unwrap_or_default();
    let (Some(asked), Some(brings)) = (status.provisioning, &hosted.spec.scale_up) else { return Verdict::Skip };
    if found.mini_cluster.is_some() || status.phase != BurstPhase::ScalingUp {
        return Verdict::Met(format!("nodes were asked for, and the request was {}", asked.outcome));
    }
    let (name, namespace) = (names::scale_up(&hosted.spec.slot), hosted.namespace().unwrap_or_default());
    let hint = format!(
        "{}. What the autoscaler says: `kubectl describe provisioningrequest {name} --namespace {namespace}`",
        pods::expected(brings)
    );
    Verdict::unmet("ScalingUp", status.message, hint)
}

/// What the agent itself waits for.
fn prerequisites(found: &Found) -> Verdict {
    let Some(ready) = said(found, READY).filter(|said| said.status == "False") else { return Verdict::Skip };
    if ["Pending", "Starting", "Suspended", JOB_QUEUED, reason::NOT_ALL_READY, reason::PODS_NOT_MADE]
        .contains(&ready.reason.as_str())
    {
        return Verdict::Skip;
    }
    // The Job itself has been asked: it goes on by now.
    if ready.reason == reason::JOB_SUSPENDED && found.job.is_some() {
        return Verdict::Skip;
    }
    if ready.reason == "Restarting" {
        return Verdict::unmet("Restarting", ready.message, "wait: its bursts leave and its Job is deleted first");
    }
    if ready.reason == "CertificateMissing" && found.hosted.is_some() {
        return Verdict::unmet(ready.reason, ready.message, "nothing: the agent asks its root for it again");
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
    match pods::last_event(&found.events, object, &[]) {
        Some(text) => Verdict::unmet("NoJob", format!("its Job is not made: {text}"), hints::pod_creation(&text, job)),
        None => Verdict::unmet("NoJob", "its Job is not made yet", "wait a little; else the agent's log says more"),
    }
}

fn pods_made(found: &Found) -> Verdict {
    let Some(job) = &found.job else { return Verdict::Skip };
    let wanted = job.spec.as_ref().and_then(|spec| spec.parallelism).unwrap_or(1);
    let wanted = usize::try_from(wanted).unwrap_or(0);
    let there = pods::living(&found.pods).len();
    if there >= wanted {
        return Verdict::Met(format!("{} made", counted(there as u64, "pod")));
    }
    let count = format!("{there} of {wanted} pods are made");
    let (namespace, name) = key(found);
    match pods::last_event(&found.events, job, &["FailedCreate"]) {
        Some(text) => {
            let reason = if text.contains("exceeded quota") { "QuotaExceeded" } else { "FailedCreate" };
            Verdict::unmet(
                reason,
                format!("{count}: {text}"),
                hints::pod_creation(&text, Object { namespace: &namespace, name: &name }),
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

fn pods_scheduled(found: &Found) -> Verdict {
    let living = pods::living(&found.pods);
    let status = found.hosted.as_ref().and_then(|hosted| hosted.status.as_ref());
    let scaling = status.filter(|status| status.phase == BurstPhase::ScalingUp);
    let brings = found.hosted.as_ref().and_then(|hosted| hosted.spec.scale_up.as_ref());
    match scaling.zip(brings) {
        Some((status, brings)) => pods::scaling_up(&living, &status.message, brings),
        None => match pods::scheduled(&living) {
            // It has had its nodes; for what is made later nobody adds any.
            Verdict::Unmet { reason, cause, hint }
                if brings.is_some_and(|brings| brings.provisioning_request.is_some()) =>
            {
                let more = "cluster-autoscaler adds no nodes for pods that use those of a ProvisioningRequest";
                Verdict::unmet(reason, cause, format!("{hint}; {more}"))
            }
            verdict => verdict,
        },
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
