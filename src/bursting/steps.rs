//! How long bursts take for their steps, for the metrics: of roots here, by what the status of their Bursts says.

use std::time::Duration;

use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::Histogram;
use tributary_api::burst::Burst;
use tributary_contract::PhaseTimes;
use tributary_contract::observed::Step;
use tributary_metrics::{Described, Metrics};

/// The steps, as [`PhaseTimes::steps`] names them; before the first one a Burst is planned.
const STEPS: [&str; 6] = ["offered", "admitted", "created", "warmed", "started", "online"];

/// Seconds: agents answer each other in tenths, images are pulled in minutes, and queues of others take as long as they take.
const SECONDS: [f64; 12] = [0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0];

const STEP_SECONDS: Described = Described::histogram(
    "burst_step_seconds",
    &[("step", &STEPS)],
    "Seconds that bursts of roots of this cluster took to reach a step, from the one before; offered, from when they were wanted. \
     A step that was written while the agent stopped leading is not counted. Online is never reached on simulated nodes, warmed only where images are pulled ahead",
);

/// How long steps took. Cloning shares it; the default one is registered nowhere.
#[derive(Clone, Debug)]
pub struct StepTimes(Family<[(&'static str, &'static str); 1], Histogram>);

impl Default for StepTimes {
    fn default() -> Self {
        Self(Family::new_with_constructor(|| Histogram::new(SECONDS)))
    }
}

impl StepTimes {
    /// What there is.
    pub const DESCRIBED: [Described; 1] = [STEP_SECONDS];

    /// Registers it.
    pub fn register(metrics: &Metrics) -> Self {
        let ours = Self::default();
        metrics.register(&STEP_SECONDS, ours.0.clone());
        ours
    }

    /// Counts what is reached with a status that follows `old`.
    pub(super) fn observe(&self, old: &Burst, new: &Burst) {
        for (step, took) in reached(old, new) {
            self.0.get_or_create(&[("step", step)]).observe(took.as_secs_f64());
        }
    }
}

/// The steps that `new` has reached and `old` had not.
fn reached(old: &Burst, new: &Burst) -> Vec<(&'static str, Duration)> {
    let steps = |burst: &Burst| -> Vec<Step> {
        let times = burst.status.as_ref().and_then(|status| status.times.clone());
        times.map(|times| PhaseTimes::from(times).steps()).unwrap_or_default()
    };
    let known = steps(old);
    let new = steps(new).into_iter().skip(1).filter(|step| known.iter().all(|known| known.name != step.name));
    new.map(|step| (step.name, step.took)).collect()
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
    use tributary_api::burst::{BurstSpec, BurstStatus};
    use tributary_api::hosted_burst::PhaseTimestamps;

    use super::*;

    /// A Burst that has reached so many steps, by these milliseconds.
    fn burst(times: &[i64]) -> Burst {
        let time = |index: usize| times.get(index).map(|at| MicroTime(Timestamp::from_millisecond(*at).unwrap()));
        let times = PhaseTimestamps {
            planned: time(0),
            offered: time(1),
            accepted: time(2),
            provisioned: time(3),
            warmed: time(4),
            started: time(5),
            ready: time(6),
            ..PhaseTimestamps::default()
        };
        let mut burst = Burst::new("lake.gpu", BurstSpec::default());
        burst.status = Some(BurstStatus { times: Some(times), ..BurstStatus::default() });
        burst
    }

    #[test]
    fn each_step_is_counted_when_it_is_reached_and_once() {
        let all = [0, 40, 140, 200, 700, 900, 2_900];
        let (metrics, mut old) = (Metrics::default(), Burst::new("lake.gpu", BurstSpec::default()));
        let ours = StepTimes::register(&metrics);
        for count in [1, 2, 2, 4, 4, 7, 7] {
            let new = burst(&all[..count]);
            ours.observe(&old, &new);
            old = new;
        }
        // Another peer takes it: all begins anew but its being made.
        let again = burst(&[0, 60_000]);
        ours.observe(&burst(&[0]), &again);
        let text = metrics.text();
        for (step, count, sum) in [
            ("offered", 2, "60.04"),
            ("admitted", 1, "0.1"),
            ("created", 1, "0.06"),
            ("warmed", 1, "0.5"),
            ("started", 1, "0.2"),
            ("online", 1, "2.0"),
        ] {
            for line in [
                format!("tributary_burst_step_seconds_count{{step=\"{step}\"}} {count}\n"),
                format!("tributary_burst_step_seconds_sum{{step=\"{step}\"}} {sum}\n"),
            ] {
                assert!(text.contains(&line), "{line} in {text}");
            }
        }
        assert!(text.contains("tributary_burst_step_seconds_bucket{le=\"2.5\",step=\"online\"} 1\n"), "{text}");
    }

    #[test]
    fn the_words_are_those_of_the_status() {
        let names: Vec<_> =
            reached(&burst(&[]), &burst(&[0, 1, 2, 3, 4, 5, 6])).into_iter().map(|(name, _)| name).collect();
        assert_eq!(names, STEPS);
    }
}
