//! The leader's scope: tasks that live as long as one leadership.
//!
//! The fence already stops their writes; the scope stops the tasks. A task that does not stop would act for a leadership
//! that is over (answer peers, hold sockets), so the process must end then: [`lead`] returns an error.

use std::time::Duration;

use jiff::Timestamp;
use tokio::task::{Id, JoinError, JoinSet};
use tokio_util::sync::CancellationToken;
use tributary_clock::{Now, SharedClock};

use super::fence::{Epoch, Fence, Leadership};

/// What the tasks of a leadership get to end.
pub const LINGER: Duration = Duration::from_secs(5);

/// One leadership and the tasks that live in it.
pub struct Term {
    epoch: Epoch,
    before: Option<Timestamp>,
    stop: CancellationToken,
    tasks: JoinSet<()>,
    names: Vec<(Id, &'static str)>,
}

impl Term {
    fn new(Leadership { epoch, before, .. }: Leadership) -> Self {
        Self { epoch, before, stop: CancellationToken::new(), tasks: JoinSet::new(), names: Vec::new() }
    }

    /// Which leadership this is.
    pub fn epoch(&self) -> &Epoch {
        &self.epoch
    }

    /// When the leader before renewed the Lease for the last time, by its own clock.
    pub fn before(&self) -> Option<Timestamp> {
        self.before
    }

    /// Cancelled when the leadership is over: every task must end then, soon.
    pub fn stop(&self) -> CancellationToken {
        self.stop.clone()
    }

    /// Adds a task. It must not end before [`Term::stop`] is cancelled.
    pub fn spawn(&mut self, name: &'static str, task: impl Future<Output = ()> + Send + 'static) {
        let handle = self.tasks.spawn(task);
        self.names.push((handle.id(), name));
    }

    /// Waits for the next task that ends; `None` if there is none left.
    async fn ended(&mut self) -> Option<(&'static str, Result<(), JoinError>)> {
        let (id, result) = match self.tasks.join_next_with_id().await? {
            Ok((id, ())) => (id, Ok(())),
            Err(error) => (error.id(), Err(error)),
        };
        let at = self.names.iter().position(|(known, _)| *known == id);
        let name = at.map_or("a task", |at| self.names.swap_remove(at).1);
        Some((name, result))
    }
}

/// Why the process must end.
#[derive(Debug, thiserror::Error)]
pub enum ScopeError {
    /// Leadership is over and these tasks go on.
    #[error("failed to stop {} within {limit:?} after leadership ended", tasks.join(", "))]
    Lingers {
        /// Their names.
        tasks: Vec<&'static str>,
        /// What they had.
        limit: Duration,
    },
    /// A task ended though leadership lasts: nobody does its work now.
    #[error("the task {task} ended while this agent leads")]
    Ended {
        /// Its name.
        task: &'static str,
        /// How, if it panicked.
        source: Option<JoinError>,
    },
}

/// Runs a [`Term`] for every leadership, until `shutdown` is cancelled. `begin` spawns its tasks.
///
/// # Errors
/// [`ScopeError`]: the process must end, because tasks do not.
pub async fn lead(
    fence: &Fence,
    clock: &SharedClock,
    shutdown: &CancellationToken,
    limit: Duration,
    mut begin: impl FnMut(&mut Term),
) -> Result<(), ScopeError> {
    loop {
        let leadership = tokio::select! {
            biased;
            () = shutdown.cancelled() => return Ok(()),
            leadership = leading(fence) => leadership,
        };
        let mut term = Term::new(leadership);
        begin(&mut term);
        let epoch = term.epoch.clone();
        let mut early = None;
        tokio::select! {
            () = over(fence, clock, &epoch) => {}
            () = shutdown.cancelled() => {}
            Some(ended) = term.ended() => early = Some(ended),
        }
        term.stop.cancel();
        if tokio::time::timeout(limit, async { while term.ended().await.is_some() {} }).await.is_err() {
            let tasks = term.names.iter().map(|(_, name)| *name).collect();
            return Err(ScopeError::Lingers { tasks, limit });
        }
        if let Some((task, result)) = early {
            return Err(ScopeError::Ended { task, source: result.err() });
        }
    }
}

async fn leading(fence: &Fence) -> Leadership {
    let mut state = fence.state();
    loop {
        state.mark_unchanged();
        if let Some(leadership) = fence.leading() {
            return leadership;
        }
        if state.changed().await.is_err() {
            // The elector is gone: nobody will lead any more.
            std::future::pending::<()>().await;
        }
    }
}

/// Waits until `epoch` does not lead any more, whether or not anybody says so.
async fn over(fence: &Fence, clock: &SharedClock, epoch: &Epoch) {
    let mut state = fence.state();
    loop {
        state.mark_unchanged();
        let Some(leadership) = fence.leading().filter(|leadership| leadership.epoch == *epoch) else { return };
        let left = leadership.valid_until.left_at(Now::of(&**clock));
        let said = async {
            if state.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        };
        tokio::select! {
            () = said => {}
            () = tokio::time::sleep(left) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use tokio::sync::watch;
    use tributary_clock::{Mono, SystemClock};

    use super::*;
    use crate::fence::LeaderState;

    type Log = Arc<Mutex<Vec<String>>>;

    fn leads(state: &watch::Sender<LeaderState>, transitions: u64, until: u64) {
        let valid_until = Now { mono: Mono::from_start(Duration::from_secs(until)), wall: jiff::Timestamp::MAX };
        state.send_replace(LeaderState::leads(transitions, valid_until));
    }

    async fn after(secs: u64, log: &Log) -> Vec<String> {
        tokio::time::sleep(Duration::from_secs(secs)).await;
        std::mem::take(&mut *log.lock().unwrap())
    }

    #[tokio::test(start_paused = true)]
    async fn tasks_live_as_long_as_their_leadership() {
        let clock = SystemClock::shared();
        let (state, fence) = Fence::closed(clock.clone());
        let (log, shutdown) = (Log::default(), CancellationToken::new());
        let scope = tokio::spawn({
            let (log, shutdown) = (log.clone(), shutdown.clone());
            async move {
                lead(&fence, &clock, &shutdown, LINGER, |term| {
                    let (log, stop, epoch) = (log.clone(), term.stop(), term.epoch().transitions);
                    term.spawn("worker", async move {
                        log.lock().unwrap().push(format!("begins {epoch}"));
                        stop.cancelled().await;
                        log.lock().unwrap().push(format!("ends {epoch}"));
                    });
                })
                .await
            }
        });
        assert!(after(1, &log).await.is_empty());
        leads(&state, 1, 10);
        assert_eq!(after(4, &log).await, ["begins 1"]);
        leads(&state, 1, 20);
        assert!(after(10, &log).await.is_empty(), "renewed in time");
        assert_eq!(after(10, &log).await, ["ends 1"], "nobody renews it any more, and nobody says so");
        leads(&state, 2, 100);
        assert_eq!(after(1, &log).await, ["begins 2"]);
        leads(&state, 3, 100);
        assert_eq!(after(1, &log).await, ["ends 2", "begins 3"]);
        shutdown.cancel();
        scope.await.unwrap().unwrap();
        assert_eq!(after(0, &log).await, ["ends 3"]);
    }

    async fn with_task(task: impl Future<Output = ()> + Send + 'static) -> ScopeError {
        let clock = SystemClock::shared();
        let (state, fence) = Fence::closed(clock.clone());
        leads(&state, 1, 10);
        let mut task = Some(task);
        lead(&fence, &clock, &CancellationToken::new(), LINGER, |term| {
            if let Some(task) = task.take() {
                term.spawn("stubborn", task);
            }
        })
        .await
        .unwrap_err()
    }

    #[tokio::test(start_paused = true)]
    async fn a_task_that_goes_on_ends_the_process() {
        let error = with_task(std::future::pending()).await;
        assert_eq!(error.to_string(), "failed to stop stubborn within 5s after leadership ended");
    }

    #[tokio::test(start_paused = true)]
    async fn a_task_that_ends_early_or_panics_ends_the_process() {
        assert!(matches!(with_task(async {}).await, ScopeError::Ended { task: "stubborn", source: None }));
        let panics = with_task(async { panic!("on purpose") }).await;
        assert!(matches!(panics, ScopeError::Ended { source: Some(_), .. }));
    }
}
