//! Times of a burst, and a moment on both clocks.

use std::time::Duration;

use jiff::Timestamp;

use crate::clock::{Clock, Mono};

/// The times that can be configured (`[bursting]`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Times {
    /// How long a provider keeps a burst whose root it cannot hear. Of instances that start from now on.
    pub lease: Duration,
    /// How long leaving brokers may drain. Of instances that start from now on.
    pub drain: Duration,
    /// How long a burst must be missing from complete snapshots before that counts as a release, and how long an offer
    /// stays with a lost peer that does not have the certificate.
    pub grace: Duration,
}

impl Default for Times {
    fn default() -> Self {
        let seconds = Duration::from_secs;
        Self { lease: seconds(300), drain: seconds(60), grace: seconds(30) }
    }
}

/// What a root waits beyond a lost peer's lease and drain: delivery, deletion of pods, clocks that run unevenly.
pub const MARGIN: Duration = Duration::from_secs(10);
/// How long a connection may be away before a Burst says so: restarts of agents are shorter.
pub const LOST_AFTER: Duration = Duration::from_secs(10);
/// How often the host name of a lead is resolved again.
pub const RESOLVE_AGAIN: Duration = Duration::from_secs(60);

/// A moment on both clocks: `mono` for durations, `wall` for what is written into status.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Now {
    /// Monotonic reading.
    pub mono: Mono,
    /// Wall clock.
    pub wall: Timestamp,
}

impl Now {
    /// The present of a clock.
    pub fn of(clock: &dyn Clock) -> Self {
        Self { mono: clock.mono(), wall: clock.wall() }
    }
}

/// `wall` moved by `by`; the last moment there is, if that is beyond the calendar.
pub(crate) fn later(wall: Timestamp, by: Duration) -> Timestamp {
    wall.checked_add(by).unwrap_or(Timestamp::MAX)
}

/// Time from `earlier` to `wall`; zero if the clock was set back in between.
pub(crate) fn elapsed(earlier: Timestamp, wall: Timestamp) -> Duration {
    Duration::try_from(wall.duration_since(earlier)).unwrap_or(Duration::ZERO)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_that_was_set_back_gives_no_time() {
        let at = |second| Timestamp::from_second(second).unwrap();
        assert_eq!(elapsed(at(10), at(15)), Duration::from_secs(5));
        assert_eq!(elapsed(at(15), at(10)), Duration::ZERO);
        assert_eq!(later(Timestamp::MAX, Times::default().lease), Timestamp::MAX);
    }

    #[test]
    fn the_root_waits_longer_than_the_provider_keeps() {
        let Times { lease, grace, .. } = Times::default();
        assert!(MARGIN > Duration::ZERO && LOST_AFTER < grace && grace < lease);
    }
}
