//! How a MiniCluster ended, in words: pure.

use tributary_api::minicluster::MiniClusterSpec;

use super::lead::{Exit, LeadFacts};

/// How a Job ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum JobOutcome {
    /// Condition `Complete`, or `SuccessCriteriaMet`.
    Succeeded,
    /// Condition `Failed`, or `FailureTarget`.
    Failed {
        /// Reason of that condition.
        reason: String,
        /// Its sentence.
        message: String,
    },
}

/// The end of a MiniCluster, for its conditions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Ending {
    /// `Succeeded`, `CommandFailed`, `OOMKilled`, `StartError`, `DeadlineExceeded`, or the Job's own reason.
    pub reason: String,
    /// A sentence.
    pub message: String,
    /// Exit code of the user's command, if it is what ended the MiniCluster.
    pub exit_code: Option<i32>,
}

/// The kubelet's word for a container that the kernel killed for its memory; and why such a MiniCluster has ended.
const OOM_KILLED: &str = "OOMKilled";

/// The kubelet's words for a container that could not be started; the first is the reason of such an end.
const NOT_STARTED: [&str; 2] = ["StartError", "ContainerCannotRun"];

/// The Job's word for pods that failed more often than they may.
const BACKOFF_LIMIT: &str = "BackoffLimitExceeded";

/// Exit codes of a container that was stopped: SIGKILL, SIGTERM.
const STOPPED: [i32; 2] = [137, 143];

/// What the end of the Job means, given how the lead's container ended, and the deadline of the Job in seconds.
pub(crate) fn ending(outcome: &JobOutcome, lead: &LeadFacts, spec: &MiniClusterSpec, deadline: Option<i64>) -> Ending {
    match outcome {
        JobOutcome::Succeeded => Ending {
            reason: "Succeeded".into(),
            message: "the command has ended well (exit code 0)".into(),
            exit_code: Some(0),
        },
        JobOutcome::Failed { reason, .. } if reason == "DeadlineExceeded" => {
            Ending { reason: reason.clone(), message: deadline_over(spec, deadline), exit_code: None }
        }
        JobOutcome::Failed { .. } if lead.exit.as_ref().is_some_and(was_not_started) => Ending {
            reason: NOT_STARTED[0].into(),
            message: lead.exit.as_ref().map(not_started).unwrap_or_default(),
            exit_code: None,
        },
        JobOutcome::Failed { reason, message } => match lead.exit.as_ref().filter(|exit| is_the_commands(exit)) {
            Some(exit) => Ending {
                reason: if ran_out_of_memory(exit) { OOM_KILLED } else { "CommandFailed" }.into(),
                message: failed(exit, reason == BACKOFF_LIMIT && spec.backoff_limit.is_some()),
                exit_code: Some(exit.code),
            },
            None => Ending { reason: reason.clone(), message: message.clone(), exit_code: None },
        },
    }
}

/// Where nothing ever ran, it is said as well.
fn deadline_over(spec: &MiniClusterSpec, deadline: Option<i64>) -> String {
    let over = match deadline {
        Some(seconds) if seconds < spec.deadline_seconds() => format!("the {seconds} s that it was given are over"),
        _ => format!("its {} s are over (deadlineSeconds; of a FluxJob: timeLimit)", spec.deadline_seconds()),
    };
    format!("the run was ended: {over}. They count from the start of its Job, also while its pods wait")
}

/// Whether a run ends here: the kernel killed it for its memory, or its first lead could not be started, and the next one would
/// fare no better. Who writes a backoff limit, or another restart policy, asks for that. `has_run`: the instance has.
pub(crate) fn ends_here(lead: &LeadFacts, spec: &MiniClusterSpec, has_run: bool) -> bool {
    let once = spec.backoff_limit.is_none() && spec.pod.restart_policy.as_deref().unwrap_or("Never") == "Never";
    let is_last = |exit: &Exit| ran_out_of_memory(exit) || !has_run && was_not_started(exit);
    once && lead.exit.as_ref().is_some_and(is_last)
}

/// Whether the container ended by itself. One that ran out of memory did so too.
fn is_the_commands(exit: &Exit) -> bool {
    exit.code != 0 && (!STOPPED.contains(&exit.code) || ran_out_of_memory(exit))
}

fn ran_out_of_memory(exit: &Exit) -> bool {
    exit.reason.as_deref() == Some(OOM_KILLED)
}

fn was_not_started(exit: &Exit) -> bool {
    exit.reason.as_deref().is_some_and(|reason| NOT_STARTED.contains(&reason))
}

fn not_started(Exit { pod, code, .. }: &Exit) -> String {
    format!(
        "the container that runs Flux could not be started (exit code {code}, pod {pod}): has its image /bin/bash? The status \
         of the pod has the words of the runtime"
    )
}

fn failed(exit: &Exit, was_run_again: bool) -> String {
    let Exit { pod, code, .. } = exit;
    let mut message = match code {
        _ if ran_out_of_memory(exit) => {
            format!("the command ran out of memory (OOMKilled, exit code {code}, pod {pod}); raise the memory limit")
        }
        126 => format!("the command cannot be executed (exit code 126, pod {pod})"),
        127 => format!("the command, or one it calls, was not found (exit code 127, pod {pod})"),
        _ => format!("the command failed with exit code {code} (pod {pod})"),
    };
    if was_run_again {
        message.push_str("; it was run again as often as backoffLimit allows");
    }
    message
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failed_job(reason: &str) -> JobOutcome {
        JobOutcome::Failed { reason: reason.into(), message: "the Job's words".into() }
    }

    fn lead(code: i32, reason: &str) -> LeadFacts {
        let exit = Exit { pod: "lake-0-x".into(), code, reason: Some(reason.into()) };
        LeadFacts { exit: Some(exit), ..LeadFacts::default() }
    }

    fn told(outcome: &JobOutcome, lead: &LeadFacts) -> (String, Option<i32>, String) {
        let spec = MiniClusterSpec { deadline_seconds: Some(60), backoff_limit: Some(3), ..MiniClusterSpec::default() };
        let Ending { reason, message, exit_code } = ending(outcome, lead, &spec, None);
        (reason, exit_code, message)
    }

    #[test]
    fn a_deadline_is_told_that_the_job_had() {
        let spec = MiniClusterSpec { deadline_seconds: Some(7200), ..MiniClusterSpec::default() };
        let told = |had| ending(&failed_job("DeadlineExceeded"), &LeadFacts::default(), &spec, Some(had)).message;
        let count = "They count from the start of its Job, also while its pods wait";
        assert_eq!(told(3600), format!("the run was ended: the 3600 s that it was given are over. {count}"));
        let whole = "its 7200 s are over (deadlineSeconds; of a FluxJob: timeLimit)";
        assert_eq!(told(7200), format!("the run was ended: {whole}. {count}"));
    }

    #[test]
    fn the_commands_exit_code_is_told_and_no_other() {
        let policy = failed_job("PodFailurePolicy");
        let cases = [
            (JobOutcome::Succeeded, lead(0, "Completed"), "Succeeded", Some(0), "ended well"),
            (policy.clone(), lead(3, "Error"), "CommandFailed", Some(3), "failed with exit code 3 (pod lake-0-x)"),
            (policy.clone(), lead(127, "Error"), "CommandFailed", Some(127), "was not found"),
            (policy.clone(), lead(126, "Error"), "CommandFailed", Some(126), "cannot be executed"),
            (policy.clone(), lead(137, "OOMKilled"), "OOMKilled", Some(137), "ran out of memory"),
            // A worker failed; the lead was stopped because of it.
            (policy.clone(), lead(143, "Error"), "PodFailurePolicy", None, "the Job's words"),
            (policy.clone(), lead(0, "Completed"), "PodFailurePolicy", None, "the Job's words"),
            (policy, LeadFacts::default(), "PodFailurePolicy", None, "the Job's words"),
            (
                failed_job("BackoffLimitExceeded"),
                lead(128, "StartError"),
                "StartError",
                None,
                "has its image /bin/bash?",
            ),
            (failed_job("BackoffLimitExceeded"), lead(1, "Error"), "CommandFailed", Some(1), "as backoffLimit allows"),
            (failed_job("DeadlineExceeded"), lead(143, "Error"), "DeadlineExceeded", None, "its 60 s are over"),
        ];
        for (outcome, lead, reason, code, words) in cases {
            let told = told(&outcome, &lead);
            assert_eq!((told.0.as_str(), told.1), (reason, code), "{outcome:?} {lead:?}");
            assert!(told.2.contains(words), "{told:?}");
        }
        let outcome = failed_job("BackoffLimitExceeded");
        let told = ending(&outcome, &lead(137, "OOMKilled"), &MiniClusterSpec::default(), None);
        assert!(told.reason == "OOMKilled" && !told.message.contains("run again"), "it was run once: {told:?}");
    }
}
