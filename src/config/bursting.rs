//! `[bursting]`: how long bursts outlive the contact between root and provider.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{ConfigError, rejected};

/// `[bursting]`. A root's agent writes `lease_seconds` and `drain_seconds` into each Burst when an instance of the root
/// starts; instances that run keep theirs, since a provider that is cut off knows only those.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct BurstingConfig {
    /// Seconds a provider keeps a burst of ours after it lost us. Default 300.
    pub lease_seconds: u32,
    /// Seconds leaving brokers get to finish what they run. Default 60.
    pub drain_seconds: u32,
    /// Seconds a blip may last. For providers: how long a burst must be missing from its root's complete lists before
    /// that counts as a release. For roots: how long an offer stays with a peer that was lost before it was given the
    /// certificate. Default 30.
    pub grace_seconds: u32,
    /// Days for which records of what bursts used are kept, 1 to 400. Default 90.
    pub usage_days: u32,
}

/// Each day is an object of up to 300 kB.
const MOST_USAGE_DAYS: u32 = 400;

/// Losses are noticed after 5 s: a shorter lease would end before anybody could say so.
const SHORTEST_LEASE: u32 = 10;

impl Default for BurstingConfig {
    fn default() -> Self {
        Self { lease_seconds: 300, drain_seconds: 60, grace_seconds: 30, usage_days: 90 }
    }
}

impl BurstingConfig {
    /// The longest lease and the longest drain, in seconds. Providers grant no more: a root that is gone must not hold room
    /// for days.
    pub const LONGEST: u32 = 3600;

    /// How long a provider keeps a burst of ours after it lost us.
    pub fn lease(&self) -> Duration {
        Duration::from_secs(self.lease_seconds.into())
    }

    pub(super) fn check(&self) -> Result<(), Box<ConfigError>> {
        let Self { lease_seconds, drain_seconds, grace_seconds, usage_days } = *self;
        if !(SHORTEST_LEASE..=Self::LONGEST).contains(&lease_seconds) {
            let reason = format!("{lease_seconds} is not between {SHORTEST_LEASE} s and {} s", Self::LONGEST);
            return rejected("bursting.lease_seconds", reason);
        }
        if drain_seconds > Self::LONGEST {
            let reason = format!("{drain_seconds} is more than {} s", Self::LONGEST);
            return rejected("bursting.drain_seconds", reason);
        }
        if grace_seconds == 0 || grace_seconds > lease_seconds {
            let reason = format!(
                "{grace_seconds} is not between 1 s and the lease of {lease_seconds} s: a lease that ends within the \
                 grace period would evict bursts over a blip"
            );
            return rejected("bursting.grace_seconds", reason);
        }
        if !(1..=MOST_USAGE_DAYS).contains(&usage_days) {
            let reason = format!("{usage_days} is not between 1 day and {MOST_USAGE_DAYS} days");
            return rejected("bursting.usage_days", reason);
        }
        Ok(())
    }
}
