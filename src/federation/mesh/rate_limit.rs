//! How much a peer may say at a time.
//!
//! A peer has reason to send all its states at once after a reconnect, and a change here and there afterwards. One that
//! sends more is read more slowly: its own frames wait, by QUIC's flow control, and nobody else's. The same holds for the
//! streams it opens: a provider asks for a certificate as often as it admits a burst, a few times a second.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tributary_clock::Mono;
use tributary_contract::PeerName;

/// Units that may be used at once: all states of a peer ([`crate::wire::limits::KEYS_PER_PEER`]), of 12 KiB
/// each.
pub(super) const BURST: f64 = 16_384.0;

/// Units that are given back per second: 4,000 small frames, or 16 MB.
pub(super) const PER_SECOND: f64 = 4_096.0;

/// Bytes of a frame that cost one unit more.
const UNIT: f64 = 4_096.0;

/// Units that a stream costs: 512 at once, 128 a second.
pub(super) const STREAM: f64 = 32.0;

/// What is left for each peer, over all its connections: one that connects anew has no more than it had.
#[derive(Clone, Debug, Default)]
pub(super) struct Allowances(Arc<Mutex<BTreeMap<PeerName, Allowance>>>);

/// What is left for one peer.
#[derive(Clone, Debug)]
pub(super) struct Allowance {
    pub(super) frames: Arc<Mutex<RateLimit>>,
    pub(super) streams: Arc<Mutex<RateLimit>>,
}

impl Allowances {
    pub(super) fn of(&self, peer: &PeerName, now: Mono) -> Allowance {
        let full = || Arc::new(Mutex::new(RateLimit::new(now)));
        let new = || Allowance { frames: full(), streams: full() };
        self.0.lock().entry(peer.clone()).or_insert_with(new).clone()
    }

    /// Forgets peers that are not known any more.
    pub(super) fn retain(&self, is_known: impl Fn(&PeerName) -> bool) {
        self.0.lock().retain(|peer, _| is_known(peer));
    }
}

/// What is left of frames, or of streams.
#[derive(Clone, Copy, Debug)]
pub(super) struct RateLimit {
    left: f64,
    at: Mono,
}

impl RateLimit {
    pub(super) fn new(now: Mono) -> Self {
        Self { left: BURST, at: now }
    }

    /// Takes what a frame of `bytes` costs; returns how long to wait before the next one.
    pub(super) fn take(&mut self, now: Mono, bytes: usize) -> Duration {
        self.spend(now, 1.0 + bytes as f64 / UNIT)
    }

    /// Takes what a stream costs; returns how long to wait before the next one.
    pub(super) fn take_stream(&mut self, now: Mono) -> Duration {
        self.spend(now, STREAM)
    }

    fn spend(&mut self, now: Mono, units: f64) -> Duration {
        let given = now.saturating_since(self.at).as_secs_f64() * PER_SECOND;
        self.at = now;
        self.left = (self.left + given).min(BURST) - units;
        Duration::from_secs_f64((-self.left / PER_SECOND).max(0.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::limits;

    /// How long it takes to read `frames` of `bytes`.
    fn reading(frames: usize, bytes: usize) -> Duration {
        let (mut now, mut allowance) = (Mono::ZERO, RateLimit::new(Mono::ZERO));
        for _ in 0..frames {
            now = now + allowance.take(now, bytes);
        }
        now.since_start()
    }

    #[test]
    fn all_states_of_a_peer_pass_at_once_and_a_flood_does_not() {
        assert_eq!(reading(limits::KEYS_PER_PEER, 8 << 10), Duration::ZERO);
        let flood = reading(100_000, 16).as_secs_f64();
        assert!((19.0..22.0).contains(&flood), "{flood} s for 100,000 frames");
        let large = reading(100, limits::CONTROL_FRAME).as_secs_f64();
        assert!((2.0..2.6).contains(&large), "{large} s for 100 MiB");
    }

    #[test]
    fn what_is_not_used_is_not_saved_up() {
        let mut allowance = RateLimit::new(Mono::ZERO);
        let late = Mono::from_start(Duration::from_secs(9_999));
        assert_eq!(allowance.take(late, 0), Duration::ZERO);
        assert!(allowance.take(late, (BURST * UNIT) as usize) > Duration::ZERO);
    }
}
