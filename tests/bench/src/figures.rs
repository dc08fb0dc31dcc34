//! The table of figures.

use std::io::Write;
use std::time::Duration;

/// Writes a line of the result.
pub(crate) fn line(text: &str) {
    // The reader of the figures may have seen enough.
    let _ = writeln!(std::io::stdout(), "{text}");
}

/// The table's head.
pub(crate) fn header() {
    line(&format!("{:<52} {:>26} {:>18} {:>12}", "figure", "measured", "upstream operator", "goal"));
}

/// One figure, beside what was measured for the upstream operator on such a machine, and the goal.
pub(crate) fn figure(name: &str, measured: &str, upstream: &str, goal: &str) {
    line(&format!("{name:<52} {measured:>26} {upstream:>18} {goal:>12}"));
}

/// `P50/P99 (n)` of durations, in milliseconds.
pub(crate) fn percentiles(durations: &mut [Duration]) -> String {
    durations.sort();
    let at = |percent: usize| {
        let index = (durations.len() * percent).div_ceil(100).saturating_sub(1);
        durations.get(index).map_or(0.0, |duration| duration.as_secs_f64() * 1000.0)
    };
    format!("{:.0}/{:.0} ms (n={})", at(50), at(99), durations.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_of_the_sorted_values() {
        let mut durations: Vec<Duration> = (1..=100).rev().map(Duration::from_millis).collect();
        assert_eq!(percentiles(&mut durations), "50/99 ms (n=100)");
        assert_eq!(percentiles(&mut []), "0/0 ms (n=0)");
    }
}
