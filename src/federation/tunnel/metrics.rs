//! Counts of the tunnel.

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;

use crate::metrics::{Described, Metrics};

const CONNECTIONS: Described =
    Described::gauge("tunnel_connections", &[], "TCP connections of brokers that are carried, counted at either end");
const RESUMED: Described =
    Described::counter("tunnel_resumed", &[], "Carried connections that went on over another stream after a cut");
const REFUSED: Described = Described::counter(
    "tunnel_refused",
    &[],
    "Connections that were not carried: no such burst, not its pod, or too many",
);

/// What the tunnel counts. Cloning shares the counts; the default ones are not registered anywhere.
#[derive(Clone, Debug, Default)]
pub struct TunnelMetrics {
    carried: Gauge,
    resumed: Counter,
    refused: Counter,
}

impl TunnelMetrics {
    /// What there is.
    pub const DESCRIBED: [Described; 3] = [CONNECTIONS, RESUMED, REFUSED];

    /// Registers the counts.
    pub fn register(metrics: &Metrics) -> Self {
        let ours = Self::default();
        metrics.register(&CONNECTIONS, ours.carried.clone());
        metrics.register(&RESUMED, ours.resumed.clone());
        metrics.register(&REFUSED, ours.refused.clone());
        ours
    }

    /// Counts a connection until the answer is dropped.
    pub(super) fn carries(&self) -> Carried {
        self.carried.inc();
        Carried(self.carried.clone())
    }

    pub(super) fn resumed(&self) {
        self.resumed.inc();
    }

    pub(super) fn refused(&self) {
        self.refused.inc();
    }

    /// Connections that went on over another stream so far.
    pub fn resumptions(&self) -> u64 {
        self.resumed.get()
    }

    /// Connections that are carried now.
    pub fn connections(&self) -> i64 {
        self.carried.get()
    }
}

pub(super) struct Carried(Gauge);

impl Drop for Carried {
    fn drop(&mut self) {
        self.0.dec();
    }
}
