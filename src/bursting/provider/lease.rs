//! How long a burst outlives the contact with its root, on this cluster's own clocks. Pure.
//!
//! The loss is dated once and stored; the lease counts from it, also across restarts of the agent. Heartbeats renew in
//! memory only. Of two clocks the impatient one decides: a wall clock that is set back must not prolong a lease, since the
//! root counts on it.

use std::time::Duration;

use jiff::Timestamp;

use crate::bursting::timing::{Now, elapsed};

/// How long a root may be silent before its bursts say so. Short, so that the lease begins when the contact ended; long
/// enough that a restart of this agent is no loss.
pub const SUSPECT_AFTER: Duration = Duration::from_secs(5);

/// Where a lease stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Lease {
    /// In contact.
    Renewed,
    /// Out of contact for a moment: nothing is written yet. Look again after this time.
    Wavering(Duration),
    /// Lost at `since`; it ends after `left`.
    Running {
        /// What `status.suspectSince` must be.
        since: Timestamp,
        /// Time until it ends.
        left: Duration,
    },
    /// Over.
    Expired {
        /// What `status.suspectSince` must be.
        since: Timestamp,
    },
}

/// The state of a lease.
///
/// `away` is how long the root is out of contact, as far as this process knows; `None`: in contact. `recorded` is the
/// stored `status.suspectSince`, and `last_heard` when the root was last heard of, if that is known.
pub fn lease(
    length: Duration,
    away: Option<Duration>,
    recorded: Option<Timestamp>,
    last_heard: Option<Timestamp>,
    now: Now,
) -> Lease {
    let Some(away) = away else { return Lease::Renewed };
    let since = match recorded {
        Some(since) => since,
        None if away < SUSPECT_AFTER => return Lease::Wavering(SUSPECT_AFTER - away),
        None => {
            let seen_by_us = now.wall.checked_sub(away).unwrap_or(now.wall);
            last_heard.map_or(seen_by_us, |heard| heard.min(seen_by_us))
        }
    };
    let spent = elapsed(since, now.wall).max(away);
    match length.checked_sub(spent) {
        Some(left) if !left.is_zero() => Lease::Running { since, left },
        _ => Lease::Expired { since },
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::clock::Mono;

    const LENGTH: Duration = Duration::from_secs(300);

    fn at(secs: i64) -> Timestamp {
        Timestamp::from_second(1_000_000 + secs).unwrap()
    }

    fn now(secs: i64) -> Now {
        Now { mono: Mono::ZERO, wall: at(secs) }
    }

    fn away(secs: u64) -> Option<Duration> {
        Some(Duration::from_secs(secs))
    }

    #[test]
    fn the_loss_is_dated_once_and_counts_across_restarts() {
        let left = |secs| Duration::from_secs(secs);
        let table = [
            ("in contact", lease(LENGTH, None, Some(at(0)), None, now(900)), Lease::Renewed),
            ("a restart", lease(LENGTH, away(2), None, None, now(100)), Lease::Wavering(left(3))),
            ("dated", lease(LENGTH, away(10), None, None, now(100)), Lease::Running { since: at(90), left: left(290) }),
            (
                "dated by the last word",
                lease(LENGTH, away(10), None, Some(at(85)), now(100)),
                Lease::Running { since: at(85), left: left(285) },
            ),
            (
                "an agent that restarted goes on counting",
                lease(LENGTH, away(1), Some(at(0)), None, now(200)),
                Lease::Running { since: at(0), left: left(100) },
            ),
            ("over", lease(LENGTH, away(1), Some(at(0)), None, now(300)), Lease::Expired { since: at(0) }),
            (
                "a wall clock that was set back does not prolong",
                lease(LENGTH, away(300), Some(at(0)), None, now(10)),
                Lease::Expired { since: at(0) },
            ),
        ];
        for (case, got, expected) in table {
            assert_eq!(got, expected, "{case}");
        }
    }

    proptest! {
        /// However often the agent restarts, a lease ends no later than its length after the recorded loss.
        #[test]
        fn no_restart_prolongs_a_lease(steps in proptest::collection::vec((0..120_i64, any::<bool>()), 1..20)) {
            let (mut wall, mut start, mut recorded) = (0, 0, None);
            for (secs, restart) in steps {
                wall += secs;
                if restart { start = wall; }
                match lease(LENGTH, away((wall - start).unsigned_abs()), recorded, None, now(wall)) {
                    Lease::Running { since, .. } => {
                        prop_assert!(recorded.is_none() || recorded == Some(since));
                        recorded = Some(since);
                        prop_assert!(now(wall).wall.duration_since(since).as_secs() < 300);
                    }
                    Lease::Expired { since } => prop_assert!(now(wall).wall.duration_since(since).as_secs() >= 300),
                    Lease::Wavering(_) => prop_assert!(recorded.is_none() && wall - start < 5),
                    Lease::Renewed => prop_assert!(false, "never in contact"),
                }
            }
        }
    }
}
