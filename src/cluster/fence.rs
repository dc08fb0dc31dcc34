//! Who leads, until when; and the refusal of every write outside of that.
//!
//! A leader that was cut off, stalled or suspended must not write after another one took over. Leadership is therefore
//! a time on our monotonic clock, moved forward by each confirmed renewal of the Lease, and a write starts only if
//! leadership outlasts the time the request may take. Nothing depends on a task noticing in time.
//!
//! The wall clock is asked too, because the monotonic clock stands still while a machine is suspended: both must say that
//! leadership lasts. A wall clock that jumps can end leadership early, and never makes it longer.

use std::time::Duration;

use jiff::Timestamp;
use tokio::sync::watch;
use tokio_util::task::TaskTracker;
use tokio_util::task::task_tracker::TaskTrackerToken;
use tributary_clock::{Now, SharedClock};

/// Which leadership of this cluster's agent: ordered by the transitions of the Lease.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Epoch {
    /// `spec.leaseTransitions` of the leader's Lease: grows with every change of the holder.
    pub transitions: u64,
    /// `spec.holderIdentity` of the Lease: unique per process.
    pub holder: String,
}

/// A leadership that was confirmed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Leadership {
    /// Which one.
    pub epoch: Epoch,
    /// When the leader before renewed the Lease for the last time, by its own clock.
    pub before: Option<Timestamp>,
    /// No other agent can lead before this.
    pub valid_until: Now,
}

/// Where this agent stands.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum LeaderState {
    /// Another agent leads, or nobody, or we do not know.
    Standby {
        /// Who held the Lease when we last looked.
        holder: Option<String>,
    },
    /// This agent leads. Past `valid_until` this means nothing.
    Leading(Leadership),
}

impl LeaderState {
    /// The leadership, if it is still valid at `now`.
    pub(crate) fn leading_at(&self, now: Now) -> Option<&Leadership> {
        match self {
            Self::Leading(leadership) if !leadership.valid_until.left_at(now).is_zero() => Some(leadership),
            _ => None,
        }
    }

    #[cfg(test)]
    pub(crate) fn leads(transitions: u64, valid_until: Now) -> Self {
        let epoch = Epoch { transitions, holder: "me".into() };
        Self::Leading(Leadership { epoch, before: None, valid_until })
    }
}

impl Default for LeaderState {
    fn default() -> Self {
        Self::Standby { holder: None }
    }
}

/// Why a request was not made, or was given up.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum FenceError {
    /// Another agent leads this cluster, or nobody does yet.
    #[error("this agent does not lead its cluster, so it writes nothing")]
    NotLeading,
    /// A write was tried through the client that only reads.
    #[error("the reading client does not write")]
    ReadOnly,
    /// The API server took too long. A write may have happened all the same.
    #[error("the API server did not answer within {limit:?}")]
    TimedOut {
        /// What the request was allowed to take.
        limit: Duration,
    },
}

/// The fence: asked before every write. Cloning shares it.
#[derive(Clone)]
pub struct Fence {
    state: watch::Receiver<LeaderState>,
    clock: SharedClock,
    writes: TaskTracker,
}

/// A write that may go on. The fence is not [drained](Fence::drained) before it is dropped.
#[derive(Debug)]
pub(crate) struct Permit {
    _write: TaskTrackerToken,
}

impl Fence {
    /// A fence that is closed until a leadership is sent: by the elector.
    pub fn closed(clock: SharedClock) -> (watch::Sender<LeaderState>, Self) {
        let (sender, receiver) = watch::channel(LeaderState::default());
        (sender, Self::new(receiver, clock))
    }

    /// A fence that follows `state`.
    pub(crate) fn new(state: watch::Receiver<LeaderState>, clock: SharedClock) -> Self {
        Self { state, clock, writes: TaskTracker::new() }
    }

    /// Permits a write that takes at most `needed`. Where less is left of leadership, it waits for the next renewal: a slow
    /// API server delays that too, and is no fault of the object that is written.
    ///
    /// # Errors
    /// [`FenceError::NotLeading`], also when leadership ends in the meantime.
    pub(crate) async fn permit(&self, needed: Duration) -> Result<Permit, FenceError> {
        let mut state = self.state.clone();
        loop {
            let left = {
                let state = state.borrow_and_update();
                let now = Now::of(&*self.clock);
                let leadership = state.leading_at(now).ok_or(FenceError::NotLeading)?;
                let left = leadership.valid_until.left_at(now);
                if left > needed {
                    return Ok(Permit { _write: self.writes.token() });
                }
                left
            };
            tokio::select! {
                // Nobody renews any more.
                changed = state.changed() => changed.map_err(|_| FenceError::NotLeading)?,
                () = tokio::time::sleep(left) => {}
            }
        }
    }

    /// Where this agent stands, as it changes. Renewals are changes too.
    pub(crate) fn state(&self) -> watch::Receiver<LeaderState> {
        self.state.clone()
    }

    /// The leadership that is valid now.
    pub fn leading(&self) -> Option<Leadership> {
        self.state.borrow().leading_at(Now::of(&*self.clock)).cloned()
    }

    /// Waits until no write is in flight. Only useful once the state is [`LeaderState::Standby`]: before the Lease is
    /// given up.
    pub(crate) async fn drained(&self) {
        self.writes.close();
        self.writes.wait().await;
        self.writes.reopen();
    }
}

#[cfg(test)]
mod tests {
    use tributary_clock::Mono;

    use super::*;

    const START: Now = Now { mono: Mono::ZERO, wall: Timestamp::UNIX_EPOCH };

    #[test]
    fn a_machine_that_slept_does_not_lead_on() {
        let secs = Duration::from_secs;
        let until = START.plus(secs(5));
        assert_eq!(until.left_at(Now { wall: START.plus(secs(3)).wall, ..START }), secs(2), "suspended for 3 s");
        assert_eq!(until.left_at(Now { wall: START.plus(secs(99)).wall, ..START }), Duration::ZERO);
        assert_eq!(until.left_at(Now { mono: START.plus(secs(4)).mono, ..START }), secs(1), "set back by 4 s");
    }

    #[test]
    fn epochs_are_ordered_by_transitions_first() {
        let epoch = |transitions, holder: &str| Epoch { transitions, holder: holder.into() };
        assert!(epoch(2, "a") > epoch(1, "z"));
    }
}
