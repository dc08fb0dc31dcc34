//! Times of a burst.

use std::time::Duration;

use jiff::Timestamp;
use tributary_clock::Now;

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

/// What a root waits beyond the longest life of pods that it cannot see: delivery, a change of the provider's leader, clocks
/// that run unevenly.
const MARGIN: Duration = Duration::from_secs(15);
/// How long a connection may be away before a Burst says so: restarts of agents are shorter.
pub(crate) const LOST_AFTER: Duration = Duration::from_secs(10);
/// How often the host name of a lead is resolved again.
pub(crate) const RESOLVE_AGAIN: Duration = Duration::from_secs(60);

/// The longest time that pods of a burst live after the loss of contact: the provider keeps them for the lease, and then
/// they end, which takes their drain, their grace period, and what Kubernetes needs to delete them.
pub fn longest_life(lease: Duration, drain: Duration) -> Duration {
    lease + tributary_render::longest_end(drain)
}

/// How long a root that lost a provider takes the burst's pods there for alive.
pub(crate) fn reserved_for(lease: Duration, drain: Duration) -> Duration {
    longest_life(lease, drain) + MARGIN
}

/// `wall` moved by `by`; the last moment there is, if that is beyond the calendar.
pub(crate) fn later(wall: Timestamp, by: Duration) -> Timestamp {
    wall.checked_add(by).unwrap_or(Timestamp::MAX)
}

/// The moment, as budgets count it in a term that began at `began`: a wall clock that is set ahead spends nothing.
pub(crate) fn unhurried(began: Now, now: Now) -> Timestamp {
    now.wall.min(later(began.wall, now.mono.saturating_since(began.mono)))
}

/// Time from `earlier` to `wall`; zero if the clock was set back in between.
pub(crate) fn elapsed(earlier: Timestamp, wall: Timestamp) -> Duration {
    Duration::try_from(wall.duration_since(earlier)).unwrap_or(Duration::ZERO)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use tributary_clock::Mono;
    use tributary_config::BurstingConfig;
    use tributary_contract::DesiredBurst;
    use tributary_flux::RankMap;
    use tributary_render::Context;

    use super::*;
    use crate::provider::admission::tests::offer;
    use crate::provider::materialize::{hosted_burst, mini_cluster};
    use crate::template::BurstTemplate;

    #[test]
    fn a_clock_that_was_set_back_gives_no_time() {
        let at = |second| Timestamp::from_second(second).unwrap();
        assert_eq!(elapsed(at(10), at(15)), Duration::from_secs(5));
        assert_eq!(elapsed(at(15), at(10)), Duration::ZERO);
        assert_eq!(later(Timestamp::MAX, Times::default().lease), Timestamp::MAX);
    }

    #[test]
    fn a_clock_that_is_set_ahead_spends_nothing() {
        let at = |wall, mono| Now {
            wall: Timestamp::from_second(wall).unwrap(),
            mono: Mono::from_start(Duration::from_secs(mono)),
        };
        let counted = |wall, mono| unhurried(at(1_000, 50), at(wall, mono)).as_second();
        assert_eq!((counted(1_007, 57), counted(4_607, 57), counted(400, 57)), (1_007, 1_007, 400));
    }

    #[test]
    fn the_root_waits_longer_than_the_provider_keeps() {
        let Times { lease, grace, .. } = Times::default();
        assert!(LOST_AFTER < grace && grace < lease);
    }

    /// Seconds that pods of a burst get to end: of its brokers, and of a whole instance.
    fn grace_periods(drain_seconds: u32) -> [i64; 2] {
        let [burst, whole] = [false, true].map(|whole| {
            let desired = DesiredBurst { drain_seconds, whole, ..offer() };
            let template = BurstTemplate::parse(&desired.template).unwrap();
            let hosted = hosted_burst("flux", &"east".into(), &"east-uid".into(), &desired, &template);
            let rank_map = RankMap::parse_canonical(&hosted.spec.rank_map).unwrap();
            let pods =
                tributary_render::render(&mini_cluster(&hosted, &template, &rank_map), &Context::default()).unwrap();
            pods.job.spec.unwrap().template.spec.unwrap().termination_grace_period_seconds.unwrap()
        });
        [burst, whole]
    }

    proptest! {
        #[test]
        fn the_root_outwaits_the_providers_pods_whatever_is_configured(
            lease in 10..=BurstingConfig::LONGEST,
            drain in prop_oneof![0..25_u32, 25..=BurstingConfig::LONGEST],
        ) {
            let seconds = |seconds: u32| Duration::from_secs(seconds.into());
            for grace in grace_periods(drain) {
                // The garbage collector and the kubelet take their time as well.
                let life = seconds(lease) + Duration::from_secs(grace.unsigned_abs()) + Duration::from_secs(10);
                let (longest, wait) = (longest_life(seconds(lease), seconds(drain)), reserved_for(seconds(lease), seconds(drain)));
                prop_assert!(life <= longest, "pods with {grace} s to end live {life:?}, not {longest:?}");
                prop_assert!(wait >= life + Duration::from_secs(15), "{wait:?} is too short for pods that live {life:?}");
            }
        }
    }
}
