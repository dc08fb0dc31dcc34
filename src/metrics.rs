//! The registry of metrics. A metric is defined beside its owner and registered here; labels are static strings only.

use std::sync::Mutex;
use std::sync::PoisonError;

use prometheus_client::encoding::text::encode;
use prometheus_client::registry::{Metric, Registry};

/// All metrics of a process, under the prefix `tributary_`.
#[derive(Debug)]
pub struct Metrics {
    registry: Mutex<Registry>,
}

impl Default for Metrics {
    fn default() -> Self {
        Self { registry: Mutex::new(Registry::with_prefix("tributary")) }
    }
}

impl Metrics {
    /// Registers a metric and gives it back, to keep beside its owner.
    pub fn register<M: Metric + Clone>(&self, name: &str, help: &str, metric: M) -> M {
        let mut registry = self.registry.lock().unwrap_or_else(PoisonError::into_inner);
        registry.register(name, help, metric.clone());
        metric
    }

    /// The OpenMetrics text of all metrics.
    pub fn text(&self) -> String {
        let mut text = String::new();
        let registry = self.registry.lock().unwrap_or_else(PoisonError::into_inner);
        encode(&mut text, &registry).expect("writing into a String does not fail");
        text
    }
}

#[cfg(test)]
mod tests {
    use prometheus_client::metrics::counter::Counter;

    use super::*;

    #[test]
    fn a_registered_metric_is_in_the_text() {
        let metrics = Metrics::default();
        let counter = metrics.register("passes", "Passes made", Counter::<u64>::default());
        counter.inc();
        assert!(metrics.text().contains("tributary_passes_total 1"));
    }
}
