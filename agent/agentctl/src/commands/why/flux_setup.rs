//! Whether a queue works, and who is next. Pure.

use kube::ResourceExt;
use tributary::api::flux_setup::{FluxSetup, FluxSetupStatus};
use tributary::cluster::conditions::find;

use crate::explain::{Condition, Explanation, Verdict, walk};

/// What it takes until a queue lets something start.
const CONDITIONS: [Condition<FluxSetup>; 2] = [("Active", active), ("Line", line)];

/// Type of the condition that says whether this is the FluxSetup that counts.
const ACTIVE: &str = "Active";

/// The first of [`CONDITIONS`] that a FluxSetup does not meet.
pub(crate) fn explain(setup: &FluxSetup) -> Explanation {
    let object = format!("FluxSetup {}/{}", setup.namespace().unwrap_or_default(), setup.name_any());
    walk(object, setup, &CONDITIONS)
}

fn status(setup: &FluxSetup) -> FluxSetupStatus {
    setup.status.clone().unwrap_or_default()
}

fn active(setup: &FluxSetup) -> Verdict {
    match find(&status(setup).conditions, ACTIVE) {
        Some(said) if said.status == "False" => {
            let hint = format!(
                "correct this one, or delete those that are too many: `kubectl get fluxsetups --namespace {}`",
                setup.namespace().unwrap_or_default()
            );
            Verdict::unmet(said.reason.clone(), said.message.clone(), hint)
        }
        Some(said) => Verdict::Met(said.message.clone()),
        None => {
            let hint = "wait a little; else `agentctl check` says whether an agent leads";
            Verdict::unmet("NotObserved", "no agent has said yet whether it counts", hint)
        }
    }
}

fn line(setup: &FluxSetup) -> Verdict {
    let FluxSetupStatus { running, waiting, next, .. } = status(setup);
    let next = if next.is_empty() { String::new() } else { format!("; next: {next}") };
    Verdict::Met(format!("{running} run, {waiting} wait{next}"))
}
