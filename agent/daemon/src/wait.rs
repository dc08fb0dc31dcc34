//! Waits by the clock on the wall, which may be set while somebody waits.

use std::time::Duration;

use jiff::Timestamp;
use tributary::clock::SharedClock;

/// Longest wait: others may change what is waited for.
const LONGEST: Duration = Duration::from_secs(3600);
/// How often the clock is looked at, which asks nobody.
const LOOK: Duration = Duration::from_secs(10);
/// Shortest wait.
const SOON: Duration = Duration::from_millis(200);

/// Waits for the renewal of a certificate at `renew_at`. It ends soon if the certificate is valid only from a later time
/// on, `valid_from`: the clock was ahead when the certificate was made, and is right again.
pub(crate) async fn for_renewal(renew_at: Timestamp, valid_from: Timestamp, clock: &SharedClock) {
    let mut waited = Duration::ZERO;
    loop {
        let left = Duration::try_from(renew_at.duration_since(clock.wall())).unwrap_or_default();
        let part = left.min(LONGEST - waited).clamp(SOON, LOOK);
        tokio::time::sleep(part).await;
        waited += part;
        let now = clock.wall();
        if now >= renew_at || now < valid_from || waited >= LONGEST {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use jiff::SignedDuration;
    use parking_lot::Mutex;
    use tokio::time::Instant;
    use tributary::clock::{Clock, Mono};

    use super::*;

    /// Goes with tokio's paused time, and is ahead.
    struct Ahead(Instant, Mutex<SignedDuration>);

    impl Ahead {
        fn by(ahead: SignedDuration) -> Arc<Self> {
            Arc::new(Self(Instant::now(), Mutex::new(ahead)))
        }
    }

    impl Clock for Ahead {
        fn mono(&self) -> Mono {
            Mono::ZERO
        }

        fn wall(&self) -> Timestamp {
            noon() + self.0.elapsed() + *self.1.lock()
        }
    }

    fn noon() -> Timestamp {
        "2025-06-01T12:00:00Z".parse().unwrap()
    }

    async fn waits(hours: i64, valid_from: Timestamp, clock: SharedClock) -> u64 {
        let began = Instant::now();
        for_renewal(noon() + SignedDuration::from_hours(hours), valid_from, &clock).await;
        began.elapsed().as_secs()
    }

    #[tokio::test(start_paused = true)]
    async fn a_wait_ends_with_its_time_or_soon_after_the_clock_was_set() {
        let valid = noon() - SignedDuration::from_mins(5);
        let right = || Ahead::by(SignedDuration::ZERO);
        assert_eq!(waits(16, valid, right()).await, 3600, "at most");
        let clock = Ahead::by(SignedDuration::from_mins(930));
        assert_eq!(waits(16, valid, clock).await, 1800);
        assert_eq!(waits(-1, valid, right()).await, 0);

        // Made while it was nine hours ahead, and it is set a minute later.
        let nine = SignedDuration::from_hours(9);
        for (set_to, expected) in [(SignedDuration::ZERO, 70), (nine, 3600), (SignedDuration::from_hours(30), 70)] {
            let clock = Ahead::by(nine);
            let set = async {
                tokio::time::sleep(Duration::from_secs(61)).await;
                *clock.1.lock() = set_to;
            };
            let (waited, ()) = tokio::join!(waits(25, valid + nine, clock.clone()), set);
            assert_eq!(waited, expected, "{set_to}");
        }
        assert_eq!(waits(16, valid + nine, right()).await, 10, "it is not valid yet: it is looked at again and again");
    }
}
