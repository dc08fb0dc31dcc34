//! What workers have done, for the metrics.

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::histogram::Histogram;
use tributary_metrics::{Described, gauges};

use super::worker::Queue;

/// Seconds that divide a pass that only looked (under 1 ms) from one that wrote a few objects, and from one that waited
/// for an API server.
const SECONDS: [f64; 13] = [0.001, 0.005, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0];

/// What was done with the keys of one queue.
#[derive(Debug)]
pub struct Work {
    /// Passes that ended well.
    pub done: Counter,
    /// Passes that failed, and are repeated.
    pub failed: Counter,
    /// Seconds that passes took.
    pub seconds: Histogram,
}

impl Default for Work {
    fn default() -> Self {
        Self { done: Counter::default(), failed: Counter::default(), seconds: Histogram::new(SECONDS) }
    }
}

/// A queue, whatever its keys are.
pub trait Worked: Send + Sync {
    /// What was done.
    fn work(&self) -> &Work;
    /// Keys that wait for their pass.
    fn waiting(&self) -> usize;
}

impl<K: Ord + Clone + Send, L: Ord + Clone + Send> Worked for Queue<K, L> {
    fn work(&self) -> &Work {
        self.figures()
    }

    fn waiting(&self) -> usize {
        self.depth()
    }
}

/// The queues of a process by the names of their controllers.
#[derive(Default)]
pub struct Workload(pub Vec<(&'static str, Box<dyn Worked>)>);

impl std::fmt::Debug for Workload {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.0.iter().map(|(controller, _)| controller)).finish()
    }
}

const CONTROLLERS: [&str; 11] = [
    "minicluster",
    "pod index",
    "left volume",
    "workload",
    "queue",
    "burst",
    "hosted burst",
    "peer",
    "demand",
    "lost pod",
    "usage",
];

const PASSES: Described = Described::counter(
    "controller_passes",
    &[("controller", &CONTROLLERS), ("outcome", &["done", "failed"])],
    "Passes of a controller over one object; those that failed are repeated with a growing delay",
);
const PASS_SECONDS: Described = Described::histogram(
    "controller_pass_seconds",
    &[("controller", &CONTROLLERS)],
    "Seconds that a pass takes, requests to the API server included",
);
const WAITING: Described = Described::gauge(
    "controller_waiting",
    &[("controller", &CONTROLLERS)],
    "Objects that wait for a pass, those that wait out a delay included",
);

impl Workload {
    /// What there is.
    pub const DESCRIBED: [Described; 3] = [PASSES, PASS_SECONDS, WAITING];
}

impl Collector for Workload {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> std::fmt::Result {
        let mut passes = PASSES.encoder(&mut encoder)?;
        for (controller, queue) in &self.0 {
            let Work { done, failed, .. } = queue.work();
            for (outcome, counter) in [("done", done), ("failed", failed)] {
                counter.encode(passes.encode_family(&[("controller", *controller), ("outcome", outcome)])?)?;
            }
        }
        let mut seconds = PASS_SECONDS.encoder(&mut encoder)?;
        for (controller, queue) in &self.0 {
            queue.work().seconds.encode(seconds.encode_family(&[("controller", *controller)])?)?;
        }
        let count = |queue: &dyn Worked| i64::try_from(queue.waiting()).unwrap_or(i64::MAX);
        gauges(&mut encoder, &WAITING, self.0.iter().map(|(controller, queue)| (*controller, count(&**queue))))
    }
}

#[cfg(test)]
mod tests {
    use tributary_clock::SystemClock;
    use tributary_metrics::Metrics;

    use super::*;

    #[test]
    fn queues_are_shown_by_their_controllers() {
        let metrics = Metrics::default();
        let queue = Queue::new(SystemClock::shared());
        queue.mark("a");
        queue.figures().failed.inc();
        queue.figures().seconds.observe(0.01);
        queue.figures().seconds.observe(40.0);
        metrics.collect(Workload(vec![("minicluster", Box::new(queue))]));
        let text = metrics.text();
        for line in [
            "tributary_controller_passes_total{controller=\"minicluster\",outcome=\"failed\"} 1",
            "tributary_controller_pass_seconds_bucket{le=\"0.02\",controller=\"minicluster\"} 1",
            "tributary_controller_pass_seconds_bucket{le=\"30.0\",controller=\"minicluster\"} 1",
            "tributary_controller_pass_seconds_bucket{le=\"60.0\",controller=\"minicluster\"} 2",
            "tributary_controller_waiting{controller=\"minicluster\"} 1",
        ] {
            assert!(text.contains(line), "{line} in {text}");
        }
    }
}
