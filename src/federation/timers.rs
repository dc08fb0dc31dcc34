//! Every interval of the federation, in one place, with the relations that must hold between them.

use std::time::Duration;

/// The intervals. [`Timers::DEFAULT`] is what agents run with; tests may shorten them as long as [`Timers::check`] holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Timers {
    /// A heartbeat is sent this often, whatever else is sent.
    pub heartbeat: Duration,
    /// Nothing heard for this long: the peer is suspect. Nothing is concluded from it.
    pub suspect: Duration,
    /// Nothing heard for this long: the connection is given up and made anew. Earlier than QUIC would, whose idle
    /// detection is slower than its setting.
    pub silent: Duration,
    /// How long an absence has to last before anything is concluded from it; a shorter cut evicts nobody.
    pub grace: Duration,
    /// QUIC's `max_idle_timeout` (RFC 9000, 10.1): the last resort, when our own task hangs.
    pub quic_idle: Duration,
    /// Default lease of a burst on a peer that lost its root.
    pub lease: Duration,
    /// Duration of the Kubernetes Lease by which one replica leads.
    pub leader_lease: Duration,
    /// A summary of all keys is sent this often, so that a lost or wrongly ignored message is repaired.
    pub summary: Duration,
    /// The handshake of the transport and the hellos must be done within this time, each.
    pub handshake: Duration,
    /// First wait before an unreachable peer is dialled again; it doubles up to [`Timers::dial_max`].
    pub dial_min: Duration,
    /// Longest wait between two dials.
    pub dial_max: Duration,
    /// A request (credential, query) that is not answered by then has failed.
    pub request: Duration,
    /// A new connection is made this long before the certificate of the old one ends.
    pub renew_before_expiry: Duration,
    /// Two connections of one pair may both be alive for this long before the surplus one is closed: time for the other
    /// side to see the one that stays.
    pub overlap: Duration,
}

impl Timers {
    /// What agents run with.
    pub const DEFAULT: Self = Self {
        heartbeat: Duration::from_millis(1_500),
        suspect: Duration::from_secs(5),
        silent: Duration::from_secs(10),
        grace: Duration::from_secs(30),
        quic_idle: Duration::from_secs(30),
        lease: Duration::from_secs(300),
        leader_lease: Duration::from_secs(6),
        summary: Duration::from_secs(60),
        handshake: Duration::from_secs(5),
        dial_min: Duration::from_millis(200),
        dial_max: Duration::from_secs(5),
        request: Duration::from_secs(10),
        renew_before_expiry: Duration::from_secs(60),
        overlap: Duration::from_secs(2),
    };

    /// The relations the protocol relies on; the first one that does not hold.
    pub const fn check(&self) -> Result<(), &'static str> {
        macro_rules! hold {
            ($($relation:expr => $why:literal,)*) => {
                $(if !$relation { return Err($why); })*
            };
        }
        hold! {
            less(times(self.heartbeat, 3), self.suspect) => "two lost heartbeats must not make a peer suspect",
            less(self.suspect, self.silent) => "a peer is suspect before its connection is given up",
            less(self.silent, self.quic_idle) => "our heartbeats decide on liveness before QUIC does",
            less(times(self.dial_max, 2), self.grace) => "a cut that heals is repaired within the grace period",
            less(self.silent, self.grace) => "a lost connection is replaced within the grace period",
            less(self.leader_lease, self.grace) => "a change of leader is over within the grace period",
            less(times(self.grace, 4), self.lease) => "a lease outlives several grace periods",
            less(self.dial_min, self.dial_max) => "back-off grows",
            less(self.handshake, self.grace) => "a hanging handshake is replaced within the grace period",
            less(self.suspect, self.summary) => "summaries repair, heartbeats detect",
            less(self.overlap, self.suspect) => "a surplus connection is closed before it could become suspect",
            less(self.overlap, self.renew_before_expiry) => "the new connection is settled before the old certificate ends",
        }
        Ok(())
    }
}

impl Default for Timers {
    fn default() -> Self {
        Self::DEFAULT
    }
}

const _: () = assert!(Timers::DEFAULT.check().is_ok(), "the default timers contradict each other");

const fn less(a: Duration, b: Duration) -> bool {
    a.as_nanos() < b.as_nanos()
}

const fn times(a: Duration, factor: u32) -> Duration {
    a.saturating_mul(factor)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_contradiction_is_named() {
        let hasty = Timers { suspect: Duration::from_secs(4), ..Timers::DEFAULT };
        assert_eq!(hasty.check(), Err("two lost heartbeats must not make a peer suspect"));
    }
}
