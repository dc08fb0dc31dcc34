//! The registry of metrics. A metric is defined beside its owner and registered here; labels are static
//! strings, but for the names of ClusterPeers in what they use.
#![cfg_attr(test, allow(clippy::unwrap_used))]

use parking_lot::Mutex;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, MetricEncoder};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::{Metric, Registry};

/// What a metric is, for the reference and for the tests that hold dashboards and alerts against it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Described {
    /// Without `tributary_`, and without the `_total` of counters.
    pub name: &'static str,
    /// How it behaves.
    pub kind: Kind,
    /// Its labels, with the words they can have. None are given where the words are those of another list; they are never
    /// names of objects but ClusterPeers.
    pub labels: &'static [Label],
    /// A sentence without full stop.
    pub help: &'static str,
}

/// A label and its words.
pub(crate) type Label = (&'static str, &'static [&'static str]);

/// How a metric behaves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// Only grows, from zero at the start of the process.
    Counter,
    /// A state.
    Gauge,
    /// Observations in buckets.
    Histogram,
}

impl Described {
    /// A metric that only grows.
    pub const fn counter(name: &'static str, labels: &'static [Label], help: &'static str) -> Self {
        Self { name, kind: Kind::Counter, labels, help }
    }

    /// A state.
    pub const fn gauge(name: &'static str, labels: &'static [Label], help: &'static str) -> Self {
        Self { name, kind: Kind::Gauge, labels, help }
    }

    /// Observations.
    pub const fn histogram(name: &'static str, labels: &'static [Label], help: &'static str) -> Self {
        Self { name, kind: Kind::Histogram, labels, help }
    }

    /// The names of its series, as a query writes them.
    pub fn series(&self) -> Vec<String> {
        let name = format!("{PREFIX}_{}", self.name);
        match self.kind {
            Kind::Counter => vec![format!("{name}_total")],
            Kind::Gauge => vec![name],
            Kind::Histogram => ["bucket", "sum", "count"].map(|end| format!("{name}_{end}")).to_vec(),
        }
    }

    /// The encoder of its values: for collectors.
    ///
    /// # Errors
    /// Those of the encoder.
    pub fn encoder<'a>(&'a self, encoder: &'a mut DescriptorEncoder<'_>) -> Result<MetricEncoder<'a>, std::fmt::Error> {
        let kind = match self.kind {
            Kind::Counter => MetricType::Counter,
            Kind::Gauge => MetricType::Gauge,
            Kind::Histogram => MetricType::Histogram,
        };
        encoder.encode_descriptor(self.name, self.help, None, kind)
    }
}

const PREFIX: &str = "tributary";

/// All metrics of a process, under the prefix `tributary_`.
#[derive(Debug)]
pub struct Metrics {
    registry: Mutex<Registry>,
}

impl Default for Metrics {
    fn default() -> Self {
        Self { registry: Mutex::new(Registry::with_prefix(PREFIX)) }
    }
}

impl Metrics {
    /// Registers a metric and gives it back, to keep beside its owner.
    pub fn register<M: Metric + Clone>(&self, described: &Described, metric: M) -> M {
        let mut registry = self.registry.lock();
        registry.register(described.name, described.help, metric.clone());
        metric
    }

    /// Registers what is only looked at when somebody asks for the metrics.
    pub fn collect(&self, collector: impl Collector) {
        self.registry.lock().register_collector(Box::new(collector));
    }

    /// The OpenMetrics text of all metrics.
    pub fn text(&self) -> String {
        let mut text = String::new();
        let registry = self.registry.lock();
        encode(&mut text, &registry).expect("writing into a String does not fail");
        text
    }
}

/// Writes a gauge with a line for each value of its one label: for collectors.
///
/// # Errors
/// Those of the encoder.
pub fn gauges(
    encoder: &mut DescriptorEncoder<'_>,
    described: &Described,
    values: impl IntoIterator<Item = (&'static str, i64)>,
) -> std::fmt::Result {
    let mut family = described.encoder(encoder)?;
    for (value, count) in values {
        ConstGauge::new(count).encode(family.encode_family(&[(described.labels[0].0, value)])?)?;
    }
    Ok(())
}

/// Writes a gauge without labels: for collectors.
///
/// # Errors
/// Those of the encoder.
pub fn gauge(encoder: &mut DescriptorEncoder<'_>, described: &Described, value: i64) -> std::fmt::Result {
    ConstGauge::new(value).encode(described.encoder(encoder)?)
}

#[cfg(test)]
mod tests {
    use prometheus_client::metrics::counter::Counter;

    use super::*;

    #[test]
    fn a_registered_metric_is_in_the_text() {
        let metrics = Metrics::default();
        let counter = metrics.register(&Described::counter("passes", &[], "Passes made"), Counter::<u64>::default());
        counter.inc();
        assert!(metrics.text().contains("tributary_passes_total 1"));
    }
}
