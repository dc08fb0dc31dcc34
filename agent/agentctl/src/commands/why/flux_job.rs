//! The way of a FluxJob from its spec to what it becomes: its MiniCluster, or its Burst. Pure.

use k8s_openapi::api::core::v1::Event;
use kube::ResourceExt;
use tributary::api::flux_job::{FluxJob, FluxJobStatus, JobPhase, JobResult};
use tributary::api::labels::condition::{ADMITTED, VALID};
use tributary::api::labels::reason;
use tributary::cluster::conditions;

use super::pods;
use crate::explain::{Condition, Explanation, Unmet, Verdict, walk};
use crate::hints::{self, Object};
use crate::output::foreign;

/// What an answer is found in, besides what it became.
#[derive(Clone, Debug)]
pub(crate) struct Found {
    pub job: FluxJob,
    /// Its namespace has a FluxSetup.
    pub queue: bool,
    /// Warnings about it, read where nothing became of it.
    pub events: Vec<Event>,
    /// What could not be read, and why.
    pub unseen: Vec<String>,
}

/// What it takes until it starts, in the order in which it comes about.
const CONDITIONS: [Condition<FluxJob>; 4] =
    [("Observed", observed), ("Valid", valid), ("Ended", ended), ("Admitted", admitted)];

/// The first condition that is not met: its own, else that of what it became.
pub(crate) fn explain(found: &Found, became: Option<Explanation>) -> Explanation {
    let Found { job, queue, unseen, .. } = found;
    let object = format!("FluxJob {}/{}", job.namespace().unwrap_or_default(), job.name_any());
    let mut explanation = Explanation { unseen: unseen.clone(), ..walk(object, job, &CONDITIONS) };
    let waits = |unmet: &&mut Unmet| unmet.condition == "Admitted" && unmet.reason != reason::SUSPENDED;
    if let Some(unmet) = explanation.unmet.as_mut().filter(|unmet| waits(unmet) && !queue) {
        unmet.hint = hints::no_queue(&job.namespace().unwrap_or_default());
    }
    if !is_admitted(&explanation) {
        return explanation;
    }
    match became {
        Some(became) => {
            explanation.ready = became.ready;
            explanation.steps.extend(became.steps);
            explanation.unmet = became.unmet;
            explanation.more = became.more;
            explanation.warnings = became.warnings;
            explanation.unseen.extend(became.unseen);
        }
        None => {
            explanation.unmet = not_made(found);
            explanation.ready = explanation.unmet.is_none();
        }
    }
    explanation
}

/// Whether what it became says more.
pub(crate) fn goes_on(job: &FluxJob) -> bool {
    is_admitted(&walk(String::new(), job, &CONDITIONS))
}

fn is_admitted(explanation: &Explanation) -> bool {
    explanation.unmet.is_none() && explanation.steps.iter().all(|step| step.condition != "Ended")
}

/// Why nothing became of one that may start. The agent keeps it admitted, and tells the cause in its message, or in an event.
fn not_made(found: &Found) -> Option<Unmet> {
    let job = &found.job;
    let status = status(job);
    if matches!(status.phase, JobPhase::Running | JobPhase::Finished) {
        return None;
    }
    let warning = pods::last_event(&found.events, job, &["CannotCreate"]);
    let reason = if warning.is_some() { "CannotCreate" } else { "NotMade" };
    let message = if status.message.is_empty() { "nothing is made of it yet".to_owned() } else { status.message };
    let cause = match warning.filter(|warning| !foreign(&message).contains(warning)) {
        Some(warning) => format!("{message}; {warning}"),
        None => message,
    };
    let hint = if cause.contains("exceeded quota") { hint(job, "QuotaExceeded") } else { hint(job, reason) };
    Some(Unmet { condition: "Made".to_owned(), reason: reason.to_owned(), cause, hint })
}

fn status(job: &FluxJob) -> FluxJobStatus {
    job.status.clone().unwrap_or_default()
}

fn hint(job: &FluxJob, reason: &str) -> String {
    let (namespace, name) = (job.namespace().unwrap_or_default(), job.name_any());
    hints::queue(reason, Object { namespace: &namespace, name: &name })
}

fn observed(job: &FluxJob) -> Verdict {
    let status = status(job);
    match status.phase {
        JobPhase::Requested if !status.message.is_empty() => {
            Verdict::Met(format!("an agent has looked at it: {}", status.message))
        }
        JobPhase::Requested => Verdict::unmet(
            "NotObserved",
            "no agent has looked at it yet",
            "wait a little; what else it may be is said by `agentctl check`",
        ),
        _ => Verdict::Met("an agent has looked at it".to_owned()),
    }
}

fn valid(job: &FluxJob) -> Verdict {
    match conditions::find(&status(job).conditions, VALID) {
        Some(said) if said.status == "False" => {
            Verdict::unmet(said.reason.clone(), said.message.clone(), hint(job, &said.reason))
        }
        _ => Verdict::Met("a MiniCluster can be made of it".to_owned()),
    }
}

fn ended(job: &FluxJob) -> Verdict {
    let status = status(job);
    match status.result {
        None => Verdict::Skip,
        Some(JobResult::Succeeded) => Verdict::Done(format!("it has ended well: {}", status.message)),
        Some(JobResult::Unknown(word)) => Verdict::Done(format!("it has ended ({word}): {}", status.message)),
        Some(JobResult::Failed) => {
            let logs = match status.logs.as_str() {
                "" => "its message says why".to_owned(),
                logs => format!("what it wrote: `{logs}`"),
            };
            let (namespace, name) = (job.namespace().unwrap_or_default(), job.name_any());
            let again =
                format!("`kubectl get fluxjob {name} --namespace {namespace} -o json | kubectl replace --force -f -`");
            Verdict::unmet("JobFailed", status.message, format!("{logs}; to run it again: {again}"))
        }
    }
}

fn admitted(job: &FluxJob) -> Verdict {
    let status = status(job);
    match conditions::find(&status.conditions, ADMITTED) {
        Some(said) if said.status == "True" => Verdict::Met(said.message.clone()),
        Some(said) => Verdict::unmet(said.reason.clone(), said.message.clone(), hint(job, &said.reason)),
        None => Verdict::Unknown(status.message),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::explain::Step;

    fn job(status: Value) -> FluxJob {
        serde_json::from_value(json!({
            "apiVersion": "tributary.dev/v1alpha1", "kind": "FluxJob",
            "metadata": {"name": "lammps", "namespace": "hpc"}, "spec": {}, "status": status,
        }))
        .unwrap()
    }

    fn explain(job: &FluxJob, queue: bool, became: Option<Explanation>) -> Explanation {
        super::explain(&Found { job: job.clone(), queue, events: Vec::new(), unseen: Vec::new() }, became)
    }

    fn said(type_: &str, status: &str, reason: &str) -> Value {
        json!({"type": type_, "status": status, "reason": reason, "message": format!("{reason} says it"),
            "lastTransitionTime": "2026-01-01T00:00:00Z"})
    }

    #[test]
    fn the_first_thing_in_its_way_is_named_and_what_it_became_only_after_that() {
        let mut became = Explanation {
            object: "MiniCluster hpc/lammps".into(),
            ready: true,
            steps: vec![Step { condition: "JobMade".into(), met: Some(true), detail: "its Job is there".into() }],
            unmet: None,
            more: Vec::new(),
            warnings: Vec::new(),
            unseen: Vec::new(),
        };
        for (status, reason) in [
            (json!({}), Some("NotObserved")),
            (json!({"phase": "Waiting", "conditions": [said("Valid", "False", "NeverFits")]}), Some("NeverFits")),
            (json!({"phase": "Waiting", "conditions": [said("Admitted", "False", "Waiting")]}), Some("Waiting")),
            (json!({"phase": "Finished", "result": "Failed", "message": "exit code 3"}), Some("JobFailed")),
            (json!({"phase": "Running", "conditions": [said("Admitted", "True", "RoomFound")]}), None),
        ] {
            let explanation = explain(&job(status.clone()), true, Some(became.clone()));
            assert_eq!(explanation.unmet.as_ref().map(|unmet| unmet.reason.as_str()), reason, "{status}");
            assert_eq!(explanation.steps.iter().any(|step| step.condition == "JobMade"), reason.is_none(), "{status}");
            assert_eq!(explanation.object, "FluxJob hpc/lammps");
        }
        became.ready = false;
        let running = job(json!({"phase": "Running", "conditions": [said("Admitted", "True", "RoomFound")]}));
        assert!(!explain(&running, true, Some(became.clone())).ready);
        let ended = job(json!({"phase": "Finished", "result": "Succeeded", "message": "exit code 0"}));
        assert!(explain(&ended, true, Some(became)).ready, "what is left of it does not matter");
    }

    /// The danger: "is ready", and a quota or a right keeps the agent from making anything of it.
    #[test]
    fn what_may_start_and_became_nothing_is_not_ready() {
        let at = |phase: &str, message: &str| {
            let status =
                json!({"phase": phase, "message": message, "conditions": [said("Admitted", "True", "RoomFound")]});
            Found { job: job(status), queue: true, events: Vec::new(), unseen: vec!["its MiniCluster".into()] }
        };
        let quota = "its MiniCluster waits for room in a ResourceQuota: forbidden: exceeded quota: team";
        let unmet = |found: &Found| super::explain(found, None).unmet.unwrap();
        let refused = at("Ready", quota);
        assert_eq!(super::explain(&refused, None).unseen, ["its MiniCluster"]);
        let Unmet { condition, reason, cause, hint } = unmet(&refused);
        assert_eq!((condition.as_str(), reason.as_str(), cause.as_str()), ("Made", "NotMade", quota));
        assert!(hint.starts_with("raise the ResourceQuota"), "{hint}");
        let mut told = at("Ready", "its MiniCluster is being made");
        told.events = vec![
            serde_json::from_value(json!({
                "metadata": {}, "involvedObject": {"kind": "FluxJob", "name": "lammps"}, "reason": "CannotCreate",
                "message": "no answer within 10 s",
            }))
            .unwrap(),
        ];
        let Unmet { reason, cause, hint, .. } = unmet(&told);
        assert_eq!(reason, "CannotCreate");
        assert_eq!(cause, "its MiniCluster is being made; no answer within 10 s");
        crate::paste::check::pastes(&hint);
        let ready = |phase: &str| super::explain(&at(phase, "its instance is up"), None).ready;
        assert_eq!([ready("Running"), ready("Ready")], [true, false]);
    }

    /// The danger: "a smaller size lets it start sooner", and there is no queue at all.
    #[test]
    fn without_a_queue_the_hint_makes_one() {
        let waits = job(json!({"phase": "Waiting", "conditions": [said("Admitted", "False", "Waiting")]}));
        let hint = |queue| explain(&waits, queue, None).unmet.unwrap().hint;
        assert!(hint(true).contains("spec.priority"));
        let made = hint(false);
        assert!(
            made.contains(r#""kind":"FluxSetup""#) && made.contains("kubectl apply --namespace hpc -f -"),
            "{made}"
        );
        crate::paste::check::pastes(&made);
        // Its user holds it back: it stands in no line.
        let held = job(json!({"phase": "Waiting", "conditions": [said("Admitted", "Unknown", "Suspended")]}));
        for queue in [true, false] {
            let unmet = explain(&held, queue, None).unmet.unwrap();
            assert_eq!((unmet.condition.as_str(), unmet.reason.as_str()), ("Admitted", "Suspended"));
            assert!(unmet.hint.contains("`agentctl resume fluxjob/lammps --namespace hpc`"), "{}", unmet.hint);
        }
    }
}
