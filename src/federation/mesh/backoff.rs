//! Waiting between dials.

use std::time::Duration;

use tributary_clock::Rng;

use crate::timers::Timers;

/// Back-off from [`Timers::dial_min`] to [`Timers::dial_max`].
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Backoff {
    failures: u32,
}

impl Backoff {
    /// The wait after another failure.
    pub(super) fn failed(&mut self, timers: &Timers, rng: &mut dyn Rng) -> Duration {
        self.failures = self.failures.saturating_add(1);
        let backoff = tributary_clock::Backoff { first: timers.dial_min, most: timers.dial_max };
        backoff.delay(self.failures, rng.unit())
    }

    /// Things went well.
    pub(super) fn reset(&mut self) {
        self.failures = 0;
    }
}

#[cfg(test)]
mod tests {
    use tributary_clock::SeededRng;

    use super::*;

    #[test]
    fn waits_double_up_to_the_bound_and_start_over() {
        let (timers, mut rng, mut backoff) = (Timers::DEFAULT, SeededRng::new(1), Backoff::default());
        for bound in [200, 400, 800, 1_600, 3_200, 5_000, 5_000] {
            let bound = Duration::from_millis(bound);
            let wait = backoff.failed(&timers, &mut rng);
            assert!(wait >= bound / 2 && wait <= bound, "{wait:?} of {bound:?}");
        }
        (0..40).for_each(|_| assert!(backoff.failed(&timers, &mut rng) <= timers.dial_max));
        backoff.reset();
        assert!(backoff.failed(&timers, &mut rng) <= timers.dial_min);
    }
}
