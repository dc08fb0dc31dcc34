//! When which key runs: the worker's decisions, without its tasks.
//!
//! A key is at any time idle, waiting until some time, or running; never in two places. A change of a running key is
//! remembered and runs afterwards. A failing key waits longer after each failure, and the first success forgets them.
//!
//! Keys wait in **lines**, and lines take turns: however many keys are due in one, a key in another runs after one of each
//! line at most. A key may wait in several lines for different reasons; it runs when the first of them lets it.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::time::Duration;

use tributary_clock::Mono;

/// How a run of a key ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Ended {
    /// Nothing to do until it changes.
    Done,
    /// Run again after this time, or earlier if it changes.
    After(Duration),
    /// It failed: run again after `retry`, or after `after_change` if it changes.
    Failed {
        /// Longer after each of [`Schedule::failures`].
        retry: Duration,
        /// See [`super::worker::Options::after_change`].
        after_change: Duration,
    },
}

/// The keys that wait and run.
#[derive(Debug)]
pub(crate) struct Schedule<K, L = ()> {
    entries: BTreeMap<K, Entry<L>>,
    lines: BTreeMap<L, BTreeSet<(Mono, u64, K)>>,
    /// The line that had its turn last.
    last: Option<L>,
    next_turn: u64,
}

#[derive(Debug)]
struct Entry<L> {
    place: Place<L>,
    /// Failures since the last success.
    failures: u32,
    /// After a failure: a change does not run it earlier.
    not_before: Mono,
}

#[derive(Debug, PartialEq, Eq)]
enum Place<L> {
    /// Until when, and whose turn it is among those of the same time: in each line. In none: idle.
    Waiting(BTreeMap<L, (Mono, u64)>),
    /// Where and from when on it waits again.
    Running { changed: BTreeMap<L, Mono> },
}

impl<L> Default for Entry<L> {
    fn default() -> Self {
        Self { place: Place::Waiting(BTreeMap::new()), failures: 0, not_before: Mono::ZERO }
    }
}

impl<K, L> Default for Schedule<K, L> {
    fn default() -> Self {
        Self { entries: BTreeMap::new(), lines: BTreeMap::new(), last: None, next_turn: 0 }
    }
}

impl<K: Ord + Clone, L: Ord + Clone> Schedule<K, L> {
    /// The key changed: it runs at `at`, or again after its current run, or at the end of a shortened wait.
    pub(crate) fn mark(&mut self, key: K, line: L, at: Mono) {
        let entry = self.entries.entry(key.clone()).or_default();
        if let Place::Running { changed } = &mut entry.place {
            let known = changed.entry(line).or_insert(at);
            *known = at.min(*known);
            return;
        }
        let at = entry.not_before.max(at);
        self.wait(key, line, at);
    }

    /// Takes the key whose turn it is; it is running from now on.
    pub(crate) fn start(&mut self, now: Mono) -> Option<K> {
        let due = |(_, keys): &(&L, &BTreeSet<(Mono, u64, K)>)| keys.first().is_some_and(|(at, _, _)| *at <= now);
        let after = self.last.as_ref().map_or(Bound::Unbounded, Bound::Excluded);
        let later = self.lines.range::<L, _>((after, Bound::Unbounded)).find(due);
        let (line, keys) = later.or_else(|| self.lines.iter().find(due))?;
        let (line, key) = (line.clone(), keys.first()?.2.clone());
        let entry = self.entries.entry(key.clone()).or_default();
        let running = Place::Running { changed: BTreeMap::new() };
        if let Place::Waiting(places) = std::mem::replace(&mut entry.place, running) {
            for (line, (at, turn)) in places {
                self.leave(line, at, turn, &key);
            }
        }
        self.last = Some(line);
        Some(key)
    }

    /// A running key ended. `line`: where it waits for a time that it asked for, and for its next attempt.
    pub(crate) fn end(&mut self, key: K, ended: Ended, line: L, now: Mono) {
        let Some(entry) = self.entries.get_mut(&key) else { return };
        let idle = Place::Waiting(BTreeMap::new());
        let changed = match std::mem::replace(&mut entry.place, idle) {
            Place::Running { changed } => changed,
            Place::Waiting(_) => BTreeMap::new(),
        };
        if !matches!(ended, Ended::Failed { .. }) {
            (entry.failures, entry.not_before) = (0, Mono::ZERO);
        }
        let again = match ended {
            Ended::Failed { retry, after_change } => {
                entry.failures = entry.failures.saturating_add(1);
                entry.not_before = now + after_change.min(retry);
                Some(now + retry)
            }
            Ended::After(delay) => Some(now + delay),
            Ended::Done => None,
        };
        let not_before = entry.not_before.max(now);
        if again.is_none() && changed.is_empty() {
            self.entries.remove(&key);
        }
        for (line, at) in changed {
            self.wait(key.clone(), line, at.max(not_before));
        }
        if let Some(at) = again {
            self.wait(key, line, at);
        }
    }

    /// No worker runs any more: what was running waits again in its line, because its handler was dropped in the middle.
    pub(crate) fn resume(&mut self, line: impl Fn(&K) -> L, now: Mono) {
        let running = |(key, entry): (&K, &Entry<L>)| matches!(entry.place, Place::Running { .. }).then(|| key.clone());
        let interrupted: Vec<K> = self.entries.iter().filter_map(running).collect();
        for key in interrupted {
            let line = line(&key);
            self.entries.entry(key.clone()).or_default().place = Place::Waiting(BTreeMap::new());
            self.wait(key, line, now);
        }
    }

    /// Failures of a key since its last success.
    pub(crate) fn failures(&self, key: &K) -> u32 {
        self.entries.get(key).map_or(0, |entry| entry.failures)
    }

    /// When the next waiting key is due.
    pub(crate) fn next_due(&self) -> Option<Mono> {
        self.lines.values().filter_map(|keys| keys.first()).map(|(at, _, _)| *at).min()
    }

    /// Keys that wait, whether due or not.
    pub(crate) fn waiting(&self) -> usize {
        let waits = |entry: &&Entry<L>| matches!(&entry.place, Place::Waiting(places) if !places.is_empty());
        self.entries.values().filter(waits).count()
    }

    /// Waits in a line, for no longer than it waits there already.
    fn wait(&mut self, key: K, line: L, at: Mono) {
        let turn = self.next_turn;
        let entry = self.entries.entry(key.clone()).or_default();
        let Place::Waiting(places) = &mut entry.place else { return };
        match places.get(&line).copied() {
            Some((until, _)) if until <= at => return,
            Some((until, old)) => {
                places.insert(line.clone(), (at, turn));
                self.leave(line.clone(), until, old, &key);
            }
            None => {
                places.insert(line.clone(), (at, turn));
            }
        }
        self.next_turn += 1;
        self.lines.entry(line).or_default().insert((at, turn, key));
    }

    fn leave(&mut self, line: L, at: Mono, turn: u64, key: &K) {
        if let Some(keys) = self.lines.get_mut(&line) {
            keys.remove(&(at, turn, key.clone()));
            if keys.is_empty() {
                self.lines.remove(&line);
            }
        }
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
        schedule.mark("a", (), at(0));
        schedule.mark("a", (), at(0));
        assert_eq!(schedule.start(at(0)), Some("a"));
        assert_eq!(schedule.start(at(0)), None, "marked twice, run once");
        schedule.mark("a", (), at(1));
        assert_eq!(schedule.start(at(1)), None, "never twice at the same time");
        schedule.end("a", Ended::Done, (), at(2));
        assert_eq!(schedule.start(at(2)), Some("a"), "the change during the run is not lost");
        schedule.end("a", Ended::Done, (), at(3));
        assert_eq!((schedule.next_due(), schedule.entries.len()), (None, 0), "nothing is kept of an idle key");
    }

    #[test]
    fn first_marked_first_run() {
        let mut schedule = Schedule::default();
        for key in ["c", "a", "b", "a"] {
            schedule.mark(key, (), at(0));
        }
        assert_eq!([(); 3].map(|()| schedule.start(at(0)).unwrap()), ["c", "a", "b"]);
    }

    #[test]
    fn a_delay_ends_by_time_or_by_a_change() {
        let mut schedule = Schedule::default();
        for key in ["a", "b"] {
            schedule.mark(key, (), at(0));
            schedule.start(at(0));
            schedule.end(key, Ended::After(Duration::from_secs(5)), (), at(0));
        }
        schedule.mark("b", (), at(100));
        assert_eq!((schedule.start(at(100)), schedule.start(at(100))), (Some("b"), None));
        assert_eq!(schedule.next_due(), Some(at(5000)));
        assert_eq!(schedule.start(at(5000)), Some("a"));
    }

    #[test]
    fn a_failure_waits_a_change_shortens_it_and_success_forgets_it() {
        let mut schedule = Schedule::default();
        schedule.mark("a", (), at(0));
        schedule.start(at(0));
        schedule.end("a", FAILED, (), at(0));
        assert_eq!((schedule.failures(&"a"), schedule.next_due()), (1, Some(at(10_000))));
        schedule.mark("a", (), at(100));
        assert_eq!(schedule.next_due(), Some(at(1000)), "not at once: its own failing must not make it spin");
        schedule.start(at(1000));
        schedule.mark("a", (), at(1100));
        schedule.end("a", FAILED, (), at(2000));
        assert_eq!((schedule.failures(&"a"), schedule.next_due()), (2, Some(at(3000))), "changed while it ran");
        schedule.start(at(3000));
        schedule.end("a", Ended::After(Duration::from_secs(60)), (), at(3000));
        assert_eq!(schedule.failures(&"a"), 0);
        schedule.mark("a", (), at(3001));
        assert_eq!(schedule.start(at(3001)), Some("a"));
    }

    #[test]
    fn what_a_stopped_worker_left_running_waits_again() {
        let mut schedule = Schedule::default();
        schedule.mark("a", (), at(0));
        schedule.mark("b", (), at(0));
        assert_eq!(schedule.start(at(0)), Some("a"));
        schedule.resume(|_| (), at(5));
        schedule.mark("a", (), at(6));
        let runs = [schedule.start(at(6)), schedule.start(at(6)), schedule.start(at(6))];
        assert_eq!(runs, [Some("b"), Some("a"), None]);
    }

    /// One line has 10,000 keys that are due, and more with each step: another line's key has its turn next.
    #[test]
    fn a_long_line_delays_another_by_one_step() {
        let mut schedule = Schedule::default();
        (0..10_000).for_each(|key| schedule.mark(key, "crowd", at(0)));
        for round in 0..100 {
            schedule.start(at(1));
            schedule.mark(20_000 + round, "alone", at(1));
            schedule.mark(30_000 + round, "other", at(1));
            let next = [(); 3].map(|()| schedule.start(at(1)).unwrap());
            let of = |line: i32| next.iter().filter(|key| **key / 10_000 == line).count();
            assert_eq!((of(2), of(3)), (1, 1), "round {round}: {next:?}");
        }
    }

    #[test]
    fn a_key_runs_when_the_first_of_its_lines_lets_it_and_once() {
        let mut schedule = Schedule::default();
        (0..100).for_each(|key| schedule.mark(key, "crowd", at(0)));
        schedule.mark(99, "time", at(50));
        assert_eq!(schedule.waiting(), 100);
        assert_eq!(schedule.start(at(49)), Some(0));
        assert_eq!(schedule.start(at(50)), Some(99), "its lease is over, whatever the crowd does");
        schedule.mark(99, "crowd", at(51));
        schedule.mark(99, "time", at(90));
        schedule.end(99, Ended::After(Duration::from_millis(20)), "time", at(52));
        assert_eq!(schedule.start(at(72)), Some(1));
        assert_eq!(schedule.start(at(72)), Some(99));
        schedule.end(99, Ended::Done, "time", at(73));
        assert_eq!(schedule.waiting(), 97, "it waits nowhere any more");
        assert!(!schedule.lines.contains_key("time"));
    }
}
