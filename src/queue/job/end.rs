//! How a FluxJob ends, and its conditions about that. Pure.

use tributary_api::flux_job::{FluxJobStatus, JobPhase, JobResult};
use tributary_api::labels::condition::RUNNING;
use tributary_api::minicluster::{MiniCluster, Phase};
use tributary_cluster::conditions::{self, Statement};

use super::Draft;

/// Condition: it has ended. Its reason is one of the words of [`End`].
pub(super) const FINISHED: &str = "Finished";

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
        _ => Some(Statement::fails(FINISHED, "NotFinished", "it has not ended")),
    };
    [running].into_iter().chain(finished).collect()
}
