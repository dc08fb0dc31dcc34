//! Time and chance as parameters.
//!
//! Every decision takes a [`Clock`] (or a plain [`Mono`]) instead of asking the operating system, so that tests run it on
//! a clock of their own. Two readings exist and are never mixed: [`Clock::mono`] for durations (leases, timeouts,
//! back-off) and [`Clock::wall`] for what people and other machines read (timestamps in status).
#![cfg_attr(test, allow(clippy::unwrap_used))]

use std::fmt;
use std::ops::{Add, Sub};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;

/// A reading of the monotonic clock: the time since the process (or the simulation) started.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Mono(Duration);

impl Mono {
    /// The start of the process or simulation.
    pub const ZERO: Self = Self(Duration::ZERO);

    /// A reading `since_start` after the start.
    pub const fn from_start(since_start: Duration) -> Self {
        Self(since_start)
    }

    /// Time since the start.
    pub const fn since_start(self) -> Duration {
        self.0
    }

    /// Time from `earlier` to `self`; zero if `earlier` is later.
    pub fn saturating_since(self, earlier: Self) -> Duration {
        self.0.saturating_sub(earlier.0)
    }
}

impl Add<Duration> for Mono {
    type Output = Self;
    fn add(self, rhs: Duration) -> Self {
        Self(self.0.saturating_add(rhs))
    }
}

impl Sub<Duration> for Mono {
    type Output = Self;
    fn sub(self, rhs: Duration) -> Self {
        Self(self.0.saturating_sub(rhs))
    }
}

impl fmt::Debug for Mono {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "+{:?}", self.0)
    }
}

/// Where time comes from.
pub trait Clock: Send + Sync + 'static {
    /// Monotonic time: for durations.
    fn mono(&self) -> Mono;
    /// Wall-clock time: for timestamps that others read.
    fn wall(&self) -> Timestamp;
}

/// One reading of both clocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Now {
    /// For durations.
    pub mono: Mono,
    /// For what people and other machines read, and for the validity of certificates.
    pub wall: Timestamp,
}

impl Now {
    /// Reads the clock.
    pub fn of(clock: &dyn Clock) -> Self {
        Self { mono: clock.mono(), wall: clock.wall() }
    }

    /// The wall-clock time of an earlier monotonic reading.
    pub fn wall_of(self, at: Mono) -> Timestamp {
        let ago = jiff::SignedDuration::try_from(self.mono.saturating_since(at)).unwrap_or_default();
        self.wall.checked_sub(ago).unwrap_or(self.wall)
    }

    /// `duration` later on both clocks.
    pub fn plus(self, duration: Duration) -> Self {
        Self { mono: self.mono + duration, wall: self.wall.checked_add(duration).unwrap_or(Timestamp::MAX) }
    }

    /// What is left until then, by the clock that says less; zero if one of them is past it.
    pub fn left_at(self, now: Self) -> Duration {
        let wall = Duration::try_from(self.wall.duration_since(now.wall)).unwrap_or_default();
        self.mono.saturating_since(now.mono).min(wall)
    }
}

/// A clock shared by the tasks of one process.
pub type SharedClock = Arc<dyn Clock>;

/// The operating system's clocks. Its monotonic reading is tokio's, so that paused time works in tests.
#[derive(Clone, Copy, Debug)]
pub struct SystemClock {
    start: tokio::time::Instant,
}

impl SystemClock {
    /// A clock that starts now.
    #[allow(clippy::disallowed_methods, reason = "the one place that asks the operating system")]
    pub fn start() -> Self {
        Self { start: tokio::time::Instant::now() }
    }

    /// [`SystemClock::start`], shared.
    pub fn shared() -> SharedClock {
        Arc::new(Self::start())
    }
}

impl Clock for SystemClock {
    fn mono(&self) -> Mono {
        Mono(self.start.elapsed())
    }

    fn wall(&self) -> Timestamp {
        Timestamp::now()
    }
}

/// Where chance comes from: jitter and identifiers.
pub trait Rng: Send {
    /// 64 random bits.
    fn next_u64(&mut self) -> u64;

    /// A number in `0.0..1.0`.
    fn unit(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 / (1_u64 << 53) as f64
    }
}

/// How long one waits who fails again and again: `first · 2ⁿ` up to `most`, of which between a half and all is taken by
/// chance, so that those who failed together do not come again together.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Backoff {
    /// After the first failure.
    pub first: Duration,
    /// Never more.
    pub most: Duration,
}

impl Default for Backoff {
    fn default() -> Self {
        Self { first: Duration::from_millis(200), most: Duration::from_secs(120) }
    }
}

impl Backoff {
    /// The wait after `failures` failures in a row (at least one). `chance` is in `0.0..1.0`.
    pub fn delay(&self, failures: u32, chance: f64) -> Duration {
        let doubled = 1_u32.checked_shl(failures.saturating_sub(1)).unwrap_or(u32::MAX);
        let full = self.first.saturating_mul(doubled).min(self.most);
        full.mul_f64(0.5 + chance / 2.0)
    }
}

/// The operating system's generator.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemRng;

#[cfg(feature = "testing")]
thread_local! {
    static SEEDED: std::cell::Cell<Option<SeededRng>> = const { std::cell::Cell::new(None) };
}

/// Lets every [`SystemRng`] of this thread depend on `seed` alone from now on; `None`: on nothing. For simulations that run
/// on one thread.
#[cfg(feature = "testing")]
pub fn seed_this_thread(seed: Option<u64>) {
    SEEDED.set(seed.map(SeededRng::new));
}

impl Rng for SystemRng {
    fn next_u64(&mut self) -> u64 {
        #[cfg(feature = "testing")]
        if let Some(mut seeded) = SEEDED.get() {
            let drawn = seeded.next_u64();
            SEEDED.set(Some(seeded));
            return drawn;
        }
        // Without entropy there is no key, no handshake and no jitter: nothing sensible can go on.
        getrandom::u64().expect("the operating system provides randomness")
    }
}

/// A small deterministic generator (SplitMix64) for tests and simulations.
#[derive(Clone, Copy, Debug)]
pub struct SeededRng(u64);

impl SeededRng {
    /// A generator whose sequence depends on `seed` alone.
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }
}

impl Rng for SeededRng {
    fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_up_to_the_most_and_keep_some_chance() {
        let backoff = Backoff { most: Duration::from_secs(1), ..Backoff::default() };
        let waits = [1, 2, 3, 4, 99].map(|failures| backoff.delay(failures, 1.0).as_millis());
        assert_eq!(waits, [200, 400, 800, 1000, 1000]);
        assert_eq!(backoff.delay(1, 0.0).as_millis(), 100);
    }
}
