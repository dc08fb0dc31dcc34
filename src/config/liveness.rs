//! `[liveness]`: how soon a peer that is not heard is missed.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{ConfigError, rejected};

/// `[liveness]`. Peers may be configured differently: each hears the other as often as it asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LivenessConfig {
    /// Milliseconds between two heartbeats to a peer: 100 to 10000. Default 1500, which costs a few hundred bytes a
    /// second per peer on the wire. A peer that suspects us sooner than after three of them hears us more often.
    pub heartbeat_millis: u32,
    /// Milliseconds of silence after which a peer is marked (`Connected` is false: `HeartbeatsMissing`) and looked for
    /// anew. More than three heartbeats, and less than two thirds of the grace period, so that a lost connection is
    /// replaced before anything is concluded from the loss. Default 4700: a dead peer is marked within 5 s, the write
    /// included.
    pub suspect_millis: u32,
}

const HEARTBEATS: std::ops::RangeInclusive<u32> = 100..=10_000;

impl Default for LivenessConfig {
    fn default() -> Self {
        Self { heartbeat_millis: 1_500, suspect_millis: 4_700 }
    }
}

impl LivenessConfig {
    /// Time between two heartbeats.
    pub fn heartbeat(&self) -> Duration {
        Duration::from_millis(self.heartbeat_millis.into())
    }

    /// Silence after which a peer is marked.
    pub fn suspect(&self) -> Duration {
        Duration::from_millis(self.suspect_millis.into())
    }

    /// `grace`: how long a blip may last before anything is concluded from it.
    pub(super) fn check(&self, grace: Duration) -> Result<(), Box<ConfigError>> {
        let Self { heartbeat_millis: heartbeat, suspect_millis: suspect } = *self;
        if !HEARTBEATS.contains(&heartbeat) {
            let (least, most) = (HEARTBEATS.start(), HEARTBEATS.end());
            return rejected("liveness.heartbeat_millis", format!("{heartbeat} is not between {least} and {most}"));
        }
        if suspect <= 3 * heartbeat {
            let reason = format!(
                "{suspect} is not more than three heartbeats of {heartbeat} ms: two that are lost would mark a peer; \
                 raise it, or lower liveness.heartbeat_millis"
            );
            return rejected("liveness.suspect_millis", reason);
        }
        if 3 * self.suspect() >= 2 * grace {
            let reason = format!(
                "{suspect} is not less than two thirds of the grace period of {grace:?}: a lost connection would not \
                 be replaced before something is concluded from its loss; lower it, or raise bursting.grace_seconds"
            );
            return rejected("liveness.suspect_millis", reason);
        }
        Ok(())
    }
}
