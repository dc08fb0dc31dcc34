//! The way of a FluxJob from its spec to what it becomes: its MiniCluster, or its Burst. Pure.

use kube::ResourceExt;
use tributary::api::flux_job::{FluxJob, FluxJobStatus, JobPhase, JobResult};
use tributary::api::labels::condition::{ADMITTED, VALID};
use tributary::cluster::conditions;

use crate::explain::{Condition, Explanation, Verdict, walk};
use crate::hints::{self, Object};

/// What it takes until it starts, in the order in which it comes about.
const CONDITIONS: [Condition<FluxJob>; 4] =
    [("Observed", observed), ("Valid", valid), ("Ended", ended), ("Admitted", admitted)];

/// The first condition that is not met: its own, else that of what it became.
/// `queue`: its namespace has a FluxSetup.
pub(crate) fn explain(job: &FluxJob, queue: bool, became: Option<Explanation>) -> Explanation {
    let object = format!("FluxJob {}/{}", job.namespace().unwrap_or_default(), job.name_any());
    let mut explanation = walk(object, job, &CONDITIONS);
    if let Some(unmet) = explanation.unmet.as_mut().filter(|unmet| unmet.condition == "Admitted" && !queue) {
        unmet.hint = hints::no_queue(&job.namespace().unwrap_or_default());
    }
    if let Some(became) = became.filter(|_| goes_on(&explanation)) {
        explanation.ready = became.ready;
        explanation.steps.extend(became.steps);
        explanation.unmet = became.unmet;
        explanation.more = became.more;
        explanation.unseen = became.unseen;
    }
    explanation
}

/// Whether what it became says more.
pub(crate) fn goes_on(explanation: &Explanation) -> bool {
    explanation.unmet.is_none() && explanation.steps.iter().all(|step| step.condition != "Ended")
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
            Verdict::unmet("JobFailed", status.message, format!("{logs}; to run it again, make another FluxJob"))
        }
    }
}

fn admitted(job: &FluxJob) -> Verdict {
    let status = status(job);
    match conditions::find(&status.conditions, ADMITTED) {
        Some(said) if said.status == "False" => {
            Verdict::unmet(said.reason.clone(), said.message.clone(), hint(job, &said.reason))
        }
        Some(said) => Verdict::Met(said.message.clone()),
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
    }
}
