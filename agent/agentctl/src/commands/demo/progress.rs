//! Live progress on standard error: spinners on a terminal, plain lines elsewhere.

use std::collections::BTreeMap;
use std::io::IsTerminal;
use std::sync::Arc;
use std::time::Duration;

use indicatif::{MultiProgress, ProgressBar, ProgressStyle};
use parking_lot::Mutex;
use tributary::clock::{Clock, Mono, SharedClock};

use crate::output;

/// How far a demo is, shown to whoever watches. Clones show to the same place.
#[derive(Clone)]
pub(super) struct Progress {
    clock: SharedClock,
    /// `None`: standard error is no terminal.
    bars: Option<MultiProgress>,
    timings: Arc<Mutex<BTreeMap<String, u64>>>,
}

/// One thing that is being done.
#[derive(Clone)]
pub(super) struct Step {
    progress: Progress,
    name: String,
    began: Mono,
    bar: ProgressBar,
    /// What was last said: a line elsewhere than on a terminal is not repeated.
    said: Arc<Mutex<String>>,
}

impl Progress {
    /// Progress on standard error, timed by `clock`.
    pub(super) fn new(clock: SharedClock) -> Self {
        let bars = std::io::stderr().is_terminal().then(MultiProgress::new);
        Self { clock, bars, timings: Arc::default() }
    }

    /// The clock everything is timed by.
    pub(super) fn clock(&self) -> &dyn Clock {
        &*self.clock
    }

    /// Begins the step `name` with what it does first.
    pub(super) fn step(&self, name: &str, doing: &str) -> Step {
        let bar = match &self.bars {
            Some(bars) => {
                let bar = bars.add(ProgressBar::new_spinner());
                bar.set_style(style("{spinner:.cyan} {prefix:<14} {msg}"));
                bar.set_prefix(name.to_owned());
                bar.enable_steady_tick(Duration::from_millis(120));
                bar
            }
            None => ProgressBar::hidden(),
        };
        let (progress, name, began) = (self.clone(), name.to_owned(), self.clock.mono());
        let step = Step { progress, name, began, bar, said: Arc::default() };
        step.say(doing);
        step
    }

    /// Says something that belongs to no step.
    pub(super) fn note(&self, text: &str) {
        match &self.bars {
            // Above the spinners, which are drawn again below. Nothing is lost when the terminal is gone.
            Some(bars) => drop(bars.println(text)),
            None => output::remark(text),
        }
    }

    /// Keeps how long something took that had no step.
    pub(super) fn record(&self, name: &str, took: Duration) {
        self.timings.lock().insert(name.to_owned(), millis(took));
    }

    /// Milliseconds each finished step took, by name.
    pub(super) fn timings(&self) -> BTreeMap<String, u64> {
        self.timings.lock().clone()
    }

    /// Milliseconds since the clock was started.
    pub(super) fn elapsed(&self) -> u64 {
        millis(self.clock.mono().since_start())
    }

    /// Ends all spinners where they are.
    pub(super) fn finish(&self) {
        if let Some(bars) = &self.bars {
            // What is drawn stays; an error only means that the terminal is gone.
            bars.set_draw_target(indicatif::ProgressDrawTarget::hidden());
        }
    }
}

impl Step {
    /// Says what is being done now.
    pub(super) fn say(&self, text: &str) {
        self.bar.set_message(text.to_owned());
        let mut said = self.said.lock();
        if self.progress.bars.is_none() && *said != text {
            output::remark(&format!("{:>7} {:<14} {text}", seconds(self.progress.elapsed()), self.name));
        }
        text.clone_into(&mut said);
    }

    /// Ends the step with its result, and keeps how long it took.
    pub(super) fn done(self, text: &str) {
        let took = self.progress.clock.mono().saturating_since(self.began);
        self.progress.record(&self.name, took);
        self.end(&format!("{text} ({})", seconds(millis(took))));
    }

    /// Ends the step with its last word.
    pub(super) fn end(self, text: &str) {
        if self.progress.bars.is_none() {
            self.say(text);
        }
        self.bar.set_style(style("{prefix:<16} {msg}"));
        self.bar.set_prefix(format!("\u{2713} {}", self.name));
        self.bar.finish_with_message(text.to_owned());
    }
}

/// Milliseconds of a duration.
pub(super) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// `4.7s`.
pub(super) fn seconds(millis: u64) -> String {
    format!("{}.{}s", millis / 1000, millis % 1000 / 100)
}

fn style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template).expect("the templates above are well-formed")
}

#[cfg(test)]
mod tests {
    use tributary::clock::SystemClock;

    use super::*;

    #[test]
    fn a_finished_step_keeps_its_time_and_an_abandoned_one_does_not() {
        let progress = Progress::new(SystemClock::shared());
        progress.step("clusters", "starting").done("ready");
        drop(progress.step("agents", "starting"));
        assert_eq!(progress.timings().into_keys().collect::<Vec<_>>(), ["clusters"]);
    }

    #[test]
    fn seconds_have_one_decimal() {
        assert_eq!([seconds(0), seconds(4_760), seconds(61_999)], ["0.0s", "4.7s", "61.9s"]);
    }
}
