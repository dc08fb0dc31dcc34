//! Every interval of the federation, in one place, with the relations that must hold between them.

use std::time::Duration;

/// The intervals. [`Timers::DEFAULT`] is what agents run with unless `[federation]` says otherwise
/// ([`Timers::liveness`]); tests may shorten them as long as [`Timers::check`] holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Timers {
    /// A heartbeat is sent this often, whatever else is sent; more often to a peer whose patience is shorter than three
    /// of them (see [`Timers::heartbeat_for`]).
    pub heartbeat: Duration,
    /// Nothing heard for this long: the peer is suspect, its status says so, and it is looked for anew. Nothing else is
    /// concluded from it. Less than 5 s, so that a dead peer is marked within 5 s, the writing included.
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
    /// Losses of a connection are counted over this long: [`Timers::FLAPS`] of them, and the peer flaps.
    pub flap_window: Duration,
}

impl Timers {
    /// Losses within [`Timers::flap_window`] that make a peer one that flaps.
    pub(crate) const FLAPS: u32 = 3;

    /// However impatient a peer says it is, heartbeats are not sent more often.
    pub(crate) const HEARTBEAT_MIN: Duration = Duration::from_millis(100);

    /// What agents run with.
    pub const DEFAULT: Self = Self {
        heartbeat: Duration::from_millis(1_500),
        suspect: Duration::from_millis(4_700),
        silent: Duration::from_millis(9_400),
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
        flap_window: Duration::from_secs(600),
    };

    /// The timers for a configured heartbeat, patience and grace period; the others follow.
    ///
    /// # Errors
    /// The relation that does not hold.
    pub fn liveness(heartbeat: Duration, suspect: Duration, grace: Duration) -> Result<Self, &'static str> {
        let silent = 2 * suspect;
        let timers = Self {
            heartbeat,
            suspect,
            silent,
            grace,
            quic_idle: Self::DEFAULT.quic_idle.max(3 * silent),
            lease: Self::DEFAULT.lease.max(5 * grace),
            // A grace period this short, as tests may have, takes a change of leader for a loss.
            leader_lease: Self::DEFAULT.leader_lease.min(grace / 2),
            summary: Self::DEFAULT.summary.max(2 * suspect),
            handshake: Self::DEFAULT.handshake.min(grace / 2),
            dial_min: Self::DEFAULT.dial_min.min(grace / 8),
            dial_max: Self::DEFAULT.dial_max.min(grace / 3),
            overlap: Self::DEFAULT.overlap.min(suspect / 2),
            flap_window: Self::DEFAULT.flap_window.max(5 * grace),
            ..Self::DEFAULT
        };
        timers.check().map(|()| timers)
    }

    /// How often to send heartbeats to a peer that suspects us after `patience` of silence; `None`: it did not say.
    pub(crate) fn heartbeat_for(&self, patience: Option<Duration>) -> Duration {
        let asked = patience.map_or(self.heartbeat, |patience| patience / 3);
        self.heartbeat.min(asked.max(Self::HEARTBEAT_MIN))
    }

    /// The relations the protocol relies on; the first one that does not hold.
    pub(crate) const fn check(&self) -> Result<(), &'static str> {
        macro_rules! hold {
            ($($relation:expr => $why:literal,)*) => {
                $(if !$relation { return Err($why); })*
            };
        }
        hold! {
            !less(self.heartbeat, Self::HEARTBEAT_MIN) => "heartbeats leave room for something else",
            less(times(self.heartbeat, 3), self.suspect) => "two lost heartbeats must not make a peer suspect",
            less(self.suspect, self.silent) => "a peer is suspect before its connection is given up",
            less(self.silent, self.quic_idle) => "our heartbeats decide on liveness before QUIC does",
            less(times(self.dial_max, 2), self.grace) => "a cut that heals is repaired within the grace period",
            less(self.suspect.saturating_add(self.dial_max), self.grace) =>
                "a lost connection is replaced within the grace period",
            less(self.leader_lease, self.grace) => "a change of leader is over within the grace period",
            less(times(self.grace, 4), self.lease) => "a lease outlives several grace periods",
            less(self.dial_min, self.dial_max) => "back-off grows",
            less(self.handshake, self.grace) => "a hanging handshake is replaced within the grace period",
            less(self.suspect, self.summary) => "summaries repair, heartbeats detect",
            less(self.overlap, self.suspect) => "a surplus connection is closed before it could become suspect",
            less(times(self.grace, 4), self.flap_window) => "what flaps is told from one long cut",
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

    #[test]
    fn what_is_configured_carries_the_others_along_or_is_refused() {
        let ms = Duration::from_millis;
        assert_eq!(Timers::liveness(ms(1_500), ms(4_700), ms(30_000)), Ok(Timers::DEFAULT));
        for (heartbeat, suspect, grace) in
            [(100, 400, 1_000), (100, 1_000, 3_000), (1_000, 3_500, 60_000), (10_000, 31_000, 3_600_000)]
        {
            assert!(Timers::liveness(ms(heartbeat), ms(suspect), ms(grace)).is_ok(), "{heartbeat} {suspect} {grace}");
        }
        for (heartbeat, suspect, grace, problem) in [
            (50, 4_700, 30_000, "heartbeats leave room for something else"),
            (1_500, 4_500, 30_000, "two lost heartbeats must not make a peer suspect"),
            (1_500, 4_700, 7_000, "a lost connection is replaced within the grace period"),
        ] {
            let refused = Timers::liveness(ms(heartbeat), ms(suspect), ms(grace));
            assert_eq!(refused, Err(problem), "{heartbeat} {suspect} {grace}");
        }
    }

    #[test]
    fn an_impatient_peer_hears_us_more_often_and_a_patient_one_no_less() {
        let ms = Duration::from_millis;
        for (patience, heartbeat) in [(None, 1_500), (Some(4_700), 1_500), (Some(900), 300), (Some(1), 100)] {
            assert_eq!(Timers::DEFAULT.heartbeat_for(patience.map(ms)), ms(heartbeat), "{patience:?}");
        }
    }
}
