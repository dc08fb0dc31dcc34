//! Counts of the tunnel.

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
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
const BYTES: Described = Described::counter(
    "tunnel_bytes",
    &[("direction", &["sent", "received"])],
    "Bytes of brokers' connections that were taken here for a peer, or given here from one, counted at either end; what had \
     to be sent again is counted once",
);

/// What the tunnel counts. Cloning shares the counts; the default ones are not registered anywhere.
#[derive(Clone, Debug)]
pub struct TunnelMetrics {
    carried: Gauge,
    resumed: Counter,
    refused: Counter,
    bytes: Family<[(&'static str, &'static str); 1], Counter>,
    /// Two of `bytes`: they are counted all the time.
    sent: Counter,
    received: Counter,
}

impl Default for TunnelMetrics {
    fn default() -> Self {
        let bytes = Family::<[(&'static str, &'static str); 1], Counter>::default();
        let of = |direction| Counter::clone(&bytes.get_or_create(&[("direction", direction)]));
        let (sent, received) = (of("sent"), of("received"));
        Self {
            carried: Gauge::default(),
            resumed: Counter::default(),
            refused: Counter::default(),
            bytes,
            sent,
            received,
        }
    }
}

impl TunnelMetrics {
    /// What there is.
    pub const DESCRIBED: [Described; 4] = [CONNECTIONS, RESUMED, REFUSED, BYTES];

    /// Registers the counts.
    pub fn register(metrics: &Metrics) -> Self {
        let ours = Self::default();
        metrics.register(&CONNECTIONS, ours.carried.clone());
        metrics.register(&RESUMED, ours.resumed.clone());
        metrics.register(&REFUSED, ours.refused.clone());
        metrics.register(&BYTES, ours.bytes.clone());
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

    /// A connection here has given us more.
    pub(super) fn took(&self, bytes: usize) {
        self.sent.inc_by(bytes as u64);
    }

    /// A connection here has taken more.
    pub(super) fn gave(&self, bytes: usize) {
        self.received.inc_by(bytes as u64);
    }

    /// Bytes taken and given so far.
    pub fn bytes(&self) -> [u64; 2] {
        [self.sent.get(), self.received.get()]
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_shown_by_their_direction() {
        let metrics = Metrics::default();
        let ours = TunnelMetrics::register(&metrics);
        ours.took(7);
        ours.clone().gave(3);
        let text = metrics.text();
        for line in ["tributary_tunnel_bytes_total{direction=\"sent\"} 7", "{direction=\"received\"} 3"] {
            assert!(text.contains(line), "{line} in {text}");
        }
    }
}
