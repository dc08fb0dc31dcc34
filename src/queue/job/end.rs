//! How a FluxJob ends, and its conditions about that. Pure.

use std::time::Duration;

use jiff::Timestamp;
use tributary_api::duration::Lasting;
use tributary_api::flux_job::{FluxJobStatus, JobPhase, JobResult};
use tributary_api::labels::condition::RUNNING;
use tributary_api::minicluster::{MiniCluster, Phase};
use tributary_cluster::conditions::{self, Statement};

use super::Draft;
use crate::overflow::left;

/// Condition: it has ended. Its reason is one of the words of [`End`].
pub(super) const FINISHED: &str = "Finished";

/// How long one that a policy refuses keeps its place: a wrong policy must not end all that it reaches, and one that no policy
/// takes must not hold its room for ever.
const POLICY_MENDED: Duration = Duration::from_secs(10 * 60);

/// How a FluxJob came to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// Its command ended with 0.
    Succeeded,
    /// Its command did not, or its instance could not go on.
    Failed,
    /// It never ran: the API server or the agent does not take what it asks for.
    Refused,
    /// Somebody deleted what was made of it.
    Cancelled,
}

impl End {
    pub(super) fn result(self) -> JobResult {
        if self == Self::Succeeded { JobResult::Succeeded } else { JobResult::Failed }
    }

    pub(super) fn reason(self) -> &'static str {
        match self {
            Self::Succeeded => "Succeeded",
            Self::Failed => "Failed",
            Self::Refused => "Refused",
            Self::Cancelled => "Cancelled",
        }
    }
}

impl Draft<'_> {
    /// Finishes the FluxJob if its run here has ended, even while it is taken back. Returns whether it did.
    pub(super) fn finish_if_ended(&mut self, mini_cluster: &MiniCluster) -> bool {
        let Some(said) = &mini_cluster.status else { return false };
        let end = match said.phase {
            Some(Phase::Succeeded) => End::Succeeded,
            Some(Phase::Failed) => End::Failed,
            _ => return false,
        };
        self.status.exit_code = said.exit_code;
        let finished = conditions::find(&said.conditions, FINISHED);
        self.finish(end, finished.map(|condition| condition.message.clone()).unwrap_or_default());
        self.tidy(Some(mini_cluster), None);
        true
    }
}

/// How long a FluxJob still waits for another policy: since it was first refused so, or somebody leads.
pub(crate) fn patience_with_policy(status: &FluxJobStatus, began: Timestamp, now: Timestamp) -> Duration {
    left(POLICY_MENDED, first_refused(status).unwrap_or(now).max(began), now)
}

/// When a policy refused a FluxJob first that it still refuses.
pub(super) fn first_refused(status: &FluxJobStatus) -> Option<Timestamp> {
    let told = conditions::find(&status.conditions, FINISHED).filter(|told| told.status == "Unknown");
    told.map(|told| told.last_transition_time.0)
}

pub(super) fn not_finished() -> Statement {
    Statement::fails(FINISHED, "NotFinished", "it has not ended")
}

/// What is so meanwhile. Its transition is [`first_refused`].
pub(super) fn refused_by_policy() -> Statement {
    let lasting = Lasting::from(POLICY_MENDED);
    let sentence = format!("a policy refuses it: it is tried again, and ends as refused if that is so for {lasting}");
    Statement::unknown(FINISHED, "RefusedByPolicy", sentence)
}

/// What is so of its run.
pub(super) fn standing(status: &FluxJobStatus, end: Option<End>) -> Vec<Statement> {
    let running = match status.phase {
        JobPhase::Running => Statement::holds(RUNNING, "Running", "its instance is up"),
        JobPhase::Finished => Statement::fails(RUNNING, "Finished", "it has ended"),
        _ => Statement::fails(RUNNING, "NotStarted", "its command has not begun"),
    };
    let finished = match (status.phase, end) {
        (JobPhase::Finished, Some(end)) => Some(Statement::holds(FINISHED, end.reason(), status.message.clone())),
        // An older agent ended it.
        (JobPhase::Finished, None) if conditions::find(&status.conditions, FINISHED).is_none() => {
            let end = if status.result == Some(JobResult::Succeeded) { End::Succeeded } else { End::Failed };
            Some(Statement::holds(FINISHED, end.reason(), status.message.clone()))
        }
        // That stands.
        (JobPhase::Finished, None) => None,
        _ => Some(not_finished()),
    };
    [running].into_iter().chain(finished).collect()
}
