//! What a person sees of a build: a bar on a terminal, now and then a line elsewhere.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use tokio::time::Instant;

use crate::options::Report;

/// How often a line says how far the build is, where no bar can be drawn.
const EVERY: Duration = Duration::from_secs(30);

/// The progress of one step.
pub(super) struct Progress<'a> {
    bar: ProgressBar,
    report: &'a Report,
    title: &'a str,
    total: Option<u64>,
    next: Instant,
}

impl<'a> Progress<'a> {
    /// `total`: packages to compile, if it is known. Those compiled before are not counted again, so a step may end
    /// early.
    pub(super) fn start(report: &'a Report, title: &'a str, total: Option<u64>) -> Self {
        let bar = match total {
            Some(total) => ProgressBar::new(total),
            None => ProgressBar::new_spinner(),
        };
        let template = match total {
            Some(_) => "{prefix} [{bar:30}] {pos}/{len} packages {elapsed} {wide_msg}",
            None => "{prefix} {spinner} {pos} packages {elapsed} {wide_msg}",
        };
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style.progress_chars("=> "));
        }
        bar.set_prefix(title.to_owned());
        bar.enable_steady_tick(Duration::from_millis(250));
        if bar.is_hidden() {
            report.line(&format!("compiling {title}"));
        }
        Self { bar, report, title, total, next: Instant::now() + EVERY }
    }

    /// `packages` are compiled, `last` is what the compiler said last.
    pub(super) fn set(&mut self, packages: u64, last: &str) {
        self.bar.set_position(packages);
        self.bar.set_message(last.to_owned());
        if self.bar.is_hidden() && Instant::now() >= self.next {
            self.next += EVERY;
            let of = self.total.map(|total| format!(" of at most {total}")).unwrap_or_default();
            self.report.line(&format!("compiling {}: {packages}{of} packages", self.title));
        }
    }
}

impl Drop for Progress<'_> {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
