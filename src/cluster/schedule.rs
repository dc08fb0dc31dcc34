//! When which key runs: the worker's decisions, without its tasks.
//!
//! A key is at any time idle, waiting until some time, or running; never in two places. A change of a running key is
//! remembered and runs afterwards. A failing key waits longer after each failure, and the first success forgets them.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::clock::Mono;

/// How long a failing key waits: `first · 2ⁿ` up to `most`, of which between a half and all is taken by chance.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Backoff {
    /// After the first failure.
    pub first: Duration,
    /// Never more.
    pub most: Duration,
    /// A change of the object shortens the wait to this: who repairs an object sees it soon, and an object that changes
    /// because we fail does not make us spin.
    pub after_change: Duration,
}

impl Default for Backoff {
    fn default() -> Self {
        Self {
            first: Duration::from_millis(200),
            most: Duration::from_secs(120),
            after_change: Duration::from_millis(500),
        }
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

/// How a run of a key ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ended {
    /// Nothing to do until it changes.
    Done,
    /// Run again after this time, or earlier if it changes.
    After(Duration),
    /// It failed: run again after `retry`, or after `after_change` if it changes.
    Failed {
        /// See [`Backoff::delay`] and [`Schedule::failures`].
        retry: Duration,
        /// See [`Backoff::after_change`].
        after_change: Duration,
    },
}

/// The keys that wait and run.
#[derive(Debug)]
pub struct Schedule<K> {
    entries: BTreeMap<K, Entry>,
    waiting: BTreeSet<(Mono, u64, K)>,
    next_turn: u64,
}

#[derive(Debug, Default)]
struct Entry {
    place: Place,
    /// Failures since the last success.
    failures: u32,
    /// After a failure: a change does not run it earlier.
    not_before: Mono,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum Place {
    #[default]
    Idle,
    /// Until when, and whose turn it is among those of the same time.
    Waiting(Mono, u64),
    Running {
        changed: bool,
    },
}

impl<K> Default for Schedule<K> {
    fn default() -> Self {
        Self { entries: BTreeMap::new(), waiting: BTreeSet::new(), next_turn: 0 }
    }
}

impl<K: Ord + Clone> Schedule<K> {
    /// The key changed: it runs now, or again after its current run, or at the end of a shortened wait.
    pub fn mark(&mut self, key: K, now: Mono) {
        let entry = self.entries.entry(key.clone()).or_default();
        let at = entry.not_before.max(now);
        match &mut entry.place {
            Place::Running { changed } => *changed = true,
            Place::Waiting(until, _) if *until <= at => {}
            Place::Waiting(..) | Place::Idle => self.wait(key, at),
        }
    }

    /// Takes the key whose turn it is; it is running from now on.
    pub fn start(&mut self, now: Mono) -> Option<K> {
        let (at, _, _) = self.waiting.first()?;
        if *at > now {
            return None;
        }
        let (_, _, key) = self.waiting.pop_first()?;
        self.entries.entry(key.clone()).or_default().place = Place::Running { changed: false };
        Some(key)
    }

    /// A running key ended.
    pub fn end(&mut self, key: K, ended: Ended, now: Mono) {
        let Some(entry) = self.entries.get_mut(&key) else { return };
        let changed = entry.place == Place::Running { changed: true };
        entry.place = Place::Idle;
        if !matches!(ended, Ended::Failed { .. }) {
            (entry.failures, entry.not_before) = (0, Mono::ZERO);
        }
        let at = match ended {
            Ended::Failed { retry, after_change } => {
                entry.failures = entry.failures.saturating_add(1);
                entry.not_before = now + after_change.min(retry);
                if changed { entry.not_before } else { now + retry }
            }
            Ended::Done | Ended::After(_) if changed => now,
            Ended::After(delay) => now + delay,
            Ended::Done => {
                self.entries.remove(&key);
                return;
            }
        };
        self.wait(key, at);
    }

    /// No worker runs any more: what was running waits again, because its handler was dropped in the middle.
    pub fn resume(&mut self, now: Mono) {
        let running = |(key, entry): (&K, &Entry)| matches!(entry.place, Place::Running { .. }).then(|| key.clone());
        let interrupted: Vec<K> = self.entries.iter().filter_map(running).collect();
        for key in interrupted {
            self.wait(key, now);
        }
    }

    /// Failures of a key since its last success.
    pub fn failures(&self, key: &K) -> u32 {
        self.entries.get(key).map_or(0, |entry| entry.failures)
    }

    /// When the next waiting key is due.
    pub fn next_due(&self) -> Option<Mono> {
        self.waiting.first().map(|(at, _, _)| *at)
    }

    /// Keys that wait, whether due or not.
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    fn wait(&mut self, key: K, at: Mono) {
        let turn = self.next_turn;
        self.next_turn += 1;
        let entry = self.entries.entry(key.clone()).or_default();
        if let Place::Waiting(until, old_turn) = entry.place {
            self.waiting.remove(&(until, old_turn, key.clone()));
        }
        entry.place = Place::Waiting(at, turn);
        self.waiting.insert((at, turn, key));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FAILED: Ended = Ended::Failed { retry: Duration::from_secs(10), after_change: Duration::from_secs(1) };

    fn at(millis: u64) -> Mono {
        Mono::from_start(Duration::from_millis(millis))
    }

    #[test]
    fn a_key_is_in_one_place_only() {
        let mut schedule = Schedule::default();
        schedule.mark("a", at(0));
        schedule.mark("a", at(0));
        assert_eq!(schedule.start(at(0)), Some("a"));
        assert_eq!(schedule.start(at(0)), None, "marked twice, run once");
        schedule.mark("a", at(1));
        assert_eq!(schedule.start(at(1)), None, "never twice at the same time");
        schedule.end("a", Ended::Done, at(2));
        assert_eq!(schedule.start(at(2)), Some("a"), "the change during the run is not lost");
        schedule.end("a", Ended::Done, at(3));
        assert_eq!((schedule.next_due(), schedule.entries.len()), (None, 0), "nothing is kept of an idle key");
    }

    #[test]
    fn first_marked_first_run() {
        let mut schedule = Schedule::default();
        for key in ["c", "a", "b", "a"] {
            schedule.mark(key, at(0));
        }
        assert_eq!([(); 3].map(|()| schedule.start(at(0)).unwrap()), ["c", "a", "b"]);
    }

    #[test]
    fn a_delay_ends_by_time_or_by_a_change() {
        let mut schedule = Schedule::default();
        for key in ["a", "b"] {
            schedule.mark(key, at(0));
            schedule.start(at(0));
            schedule.end(key, Ended::After(Duration::from_secs(5)), at(0));
        }
        schedule.mark("b", at(100));
        assert_eq!((schedule.start(at(100)), schedule.start(at(100))), (Some("b"), None));
        assert_eq!(schedule.next_due(), Some(at(5000)));
        assert_eq!(schedule.start(at(5000)), Some("a"));
    }

    #[test]
    fn a_failure_waits_a_change_shortens_it_and_success_forgets_it() {
        let mut schedule = Schedule::default();
        schedule.mark("a", at(0));
        schedule.start(at(0));
        schedule.end("a", FAILED, at(0));
        assert_eq!((schedule.failures(&"a"), schedule.next_due()), (1, Some(at(10_000))));
        schedule.mark("a", at(100));
        assert_eq!(schedule.next_due(), Some(at(1000)), "not at once: its own failing must not make it spin");
        schedule.start(at(1000));
        schedule.mark("a", at(1100));
        schedule.end("a", FAILED, at(2000));
        assert_eq!((schedule.failures(&"a"), schedule.next_due()), (2, Some(at(3000))), "changed while it ran");
        schedule.start(at(3000));
        schedule.end("a", Ended::After(Duration::from_secs(60)), at(3000));
        assert_eq!(schedule.failures(&"a"), 0);
        schedule.mark("a", at(3001));
        assert_eq!(schedule.start(at(3001)), Some("a"));
    }

    #[test]
    fn what_a_stopped_worker_left_running_waits_again() {
        let mut schedule = Schedule::default();
        schedule.mark("a", at(0));
        schedule.mark("b", at(0));
        assert_eq!(schedule.start(at(0)), Some("a"));
        schedule.resume(at(5));
        schedule.mark("a", at(6));
        let runs = [schedule.start(at(6)), schedule.start(at(6)), schedule.start(at(6))];
        assert_eq!(runs, [Some("b"), Some("a"), None]);
    }

    #[test]
    fn waits_double_up_to_the_most_and_keep_some_chance() {
        let backoff = Backoff { most: Duration::from_secs(1), ..Backoff::default() };
        let waits = [1, 2, 3, 4, 99].map(|failures| backoff.delay(failures, 1.0).as_millis());
        assert_eq!(waits, [200, 400, 800, 1000, 1000]);
        assert_eq!(backoff.delay(1, 0.0).as_millis(), 100);
    }
}
