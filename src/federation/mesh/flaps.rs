//! Peers whose connection keeps breaking.
//!
//! Whether a peer can be heard is said as it is: leases and reservations count on it. What is damped is what people and
//! placement make of it. A peer that was lost [`Timers::FLAPS`] times within [`Timers::flap_window`] flaps: its status
//! stays that of a lost peer, and nothing new is placed there, until its connection has held for the grace period, and
//! for twice as long with each further loss. Ends that were announced (a restart, a renewed certificate) do not count.

use std::collections::VecDeque;
use std::time::Duration;

use tributary_clock::Mono;

use crate::timers::Timers;

/// Losses that are remembered: more would not change anything.
const REMEMBERED: usize = 8;

/// The losses of one peer.
#[derive(Clone, Debug, Default)]
pub(super) struct Flaps {
    losses: VecDeque<Mono>,
    /// Since when it can be heard without a break.
    up: Option<Mono>,
    flapping: bool,
}

impl Flaps {
    /// The peer was lost.
    pub(super) fn lost(&mut self, now: Mono) {
        if self.losses.len() == REMEMBERED {
            self.losses.pop_front();
        }
        self.losses.push_back(now);
    }

    /// Whether the peer flaps. `healthy`: it can be heard now.
    pub(super) fn observe(&mut self, now: Mono, healthy: bool, timers: &Timers) -> bool {
        self.losses.retain(|loss| now.saturating_since(*loss) < timers.flap_window);
        self.up = healthy.then(|| self.up.unwrap_or(now));
        let settled = self.settled_at(timers).is_some_and(|at| now >= at);
        self.flapping = self.losses.len() >= Timers::FLAPS as usize && !settled;
        self.flapping
    }

    /// When [`Flaps::observe`] will say something else, as things are.
    pub(super) fn settles(&self, timers: &Timers) -> Option<Mono> {
        self.settled_at(timers).filter(|_| self.flapping)
    }

    fn settled_at(&self, timers: &Timers) -> Option<Mono> {
        let more = u32::try_from(self.losses.len()).unwrap_or(u32::MAX).saturating_sub(Timers::FLAPS);
        let hold: Duration = timers.grace.saturating_mul(2_u32.saturating_pow(more)).min(timers.flap_window);
        self.up.map(|up| up + hold)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const T: Timers = Timers::DEFAULT;

    fn at(seconds: u64) -> Mono {
        Mono::from_start(Duration::from_secs(seconds))
    }

    /// Up and down every `period` seconds; returns when it flaps and when it does not any more.
    fn run(period: u64, losses: u64) -> (Option<u64>, Option<u64>) {
        let (mut flaps, mut began, mut ended) = (Flaps::default(), None, None);
        for second in 0..3_000 {
            let breaks = second % period == 0 && (1..=losses).contains(&(second / period));
            if breaks {
                flaps.lost(at(second));
            }
            let flapping = flaps.observe(at(second), !breaks, &T);
            match (began, ended) {
                (None, _) if flapping => began = Some(second),
                (Some(_), None) if !flapping => ended = Some(second),
                (_, Some(_)) if flapping => panic!("it flaps again at {second}"),
                _ => {}
            }
        }
        (began, ended)
    }

    #[test]
    fn the_third_loss_counts_and_each_further_one_takes_longer_to_forget() {
        assert_eq!(run(20, 2), (None, None));
        assert_eq!(run(20, 3), (Some(60), Some(60 + 1 + 30)));
        assert_eq!(run(20, 5), (Some(60), Some(100 + 1 + 120)));
        assert_eq!(run(400, 5), (None, None), "rare losses are none");
    }

    #[test]
    fn it_is_said_when_to_look_again() {
        let mut flaps = Flaps::default();
        (0..3).for_each(|second| flaps.lost(at(second)));
        assert!(flaps.observe(at(3), false, &T));
        assert_eq!(flaps.settles(&T), None, "not before it can be heard");
        assert!(flaps.observe(at(4), true, &T));
        assert_eq!(flaps.settles(&T), Some(at(34)));
        assert!(!flaps.observe(at(34), true, &T));
        assert_eq!(flaps.settles(&T), None);
    }
}
