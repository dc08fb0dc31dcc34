//! Counts of the tunnel.

use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use tributary_metrics::{Described, Metrics, gauges};

use tributary_tunnel::flow_control::Budget;
use tributary_tunnel::pump::Counts;

const CONNECTIONS: Described =
    Described::gauge("tunnel_connections", &[], "TCP connections of brokers that are carried, counted at either end");
const RELAYED: Described = Described::gauge(
    "tunnel_relayed",
    &[],
    "TCP connections of brokers that are only relayed, because their ends are in pods; counted at either side",
);
const RESUMED: Described =
    Described::counter("tunnel_resumed", &[], "Carried connections that went on over another stream after a cut");
const REFUSED: Described = Described::counter(
    "tunnel_refused",
    &[("cause", &[STRANGER, TOO_MANY, NO_WAY])],
    "Connections that were not carried: not of a pod of the burst; more than the memory for tunnels allows; or the root's \
     agent reached no lead of this burst, or the peer does not have the burst any more",
);
const BYTES: Described = Described::counter(
    "tunnel_bytes",
    &[("direction", &["sent", "received"])],
    "Bytes of brokers' connections that were taken here for a peer, or given here from one, counted at either end; what had \
     to be sent again is counted once",
);

const MEMORY: Described = Described::gauge(
    "tunnel_memory_bytes",
    &[("of", &["budget", "given"])],
    "Memory for all that is carried, and how much of it connections take, what is promised to peers included",
);

/// Who connected has the address of no pod of the burst.
pub(super) const STRANGER: &str = "stranger";
/// There is no memory for one more.
pub(super) const TOO_MANY: &str = "too many";
/// It leads to nobody: so it is for a moment of every lead that is replaced, and of every slot that is given away.
pub(super) const NO_WAY: &str = "no way";

/// What the tunnel counts. Cloning shares the counts; the default ones are not registered anywhere.
#[derive(Clone, Debug)]
pub struct TunnelMetrics {
    carried: Gauge,
    relayed: Gauge,
    resumed: Counter,
    refused: Family<[(&'static str, &'static str); 1], Counter>,
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
            relayed: Gauge::default(),
            resumed: Counter::default(),
            refused: Family::default(),
            bytes,
            sent,
            received,
        }
    }
}

impl TunnelMetrics {
    /// What there is.
    pub const DESCRIBED: [Described; 6] = [CONNECTIONS, RELAYED, RESUMED, REFUSED, BYTES, MEMORY];

    /// Registers the counts, and what there is of memory.
    pub fn register(metrics: &Metrics, budget: &Budget) -> Self {
        let ours = Self::default();
        metrics.collect(Memory(budget.clone()));
        metrics.register(&CONNECTIONS, ours.carried.clone());
        metrics.register(&RELAYED, ours.relayed.clone());
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

    /// Counts a connection that is relayed until the answer is dropped.
    pub(super) fn relays(&self) -> Carried {
        self.relayed.inc();
        Carried(self.relayed.clone())
    }

    pub(super) fn resumed(&self) {
        self.resumed.inc();
    }

    pub(super) fn refused(&self, cause: &'static str) {
        self.refused.get_or_create(&[("cause", cause)]).inc();
    }

    /// Connections that were refused so far for a cause.
    #[cfg(test)]
    pub(crate) fn refusals(&self, cause: &'static str) -> u64 {
        self.refused.get_or_create(&[("cause", cause)]).get()
    }

    /// Connections that went on over another stream so far.
    #[cfg(test)]
    pub(crate) fn resumptions(&self) -> u64 {
        self.resumed.get()
    }

    /// Connections that are relayed now.
    #[cfg(test)]
    pub(crate) fn relayed(&self) -> i64 {
        self.relayed.get()
    }

    /// Connections that are carried now.
    #[cfg(test)]
    pub(crate) fn connections(&self) -> i64 {
        self.carried.get()
    }
}

impl Counts for TunnelMetrics {
    fn took(&self, bytes: usize) {
        self.sent.inc_by(bytes as u64);
    }

    fn gave(&self, bytes: usize) {
        self.received.inc_by(bytes as u64);
    }
}

/// What there is of memory, as it is shown.
#[derive(Debug)]
struct Memory(Budget);

impl Collector for Memory {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> std::fmt::Result {
        let bytes = |bytes: usize| i64::try_from(bytes).unwrap_or(i64::MAX);
        gauges(&mut encoder, &MEMORY, [("budget", bytes(self.0.bytes())), ("given", bytes(self.0.given()))])
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
        let ours = TunnelMetrics::register(&metrics, &Budget::new(1_000));
        ours.took(7);
        ours.clone().gave(3);
        let text = metrics.text();
        for line in
            ["tributary_tunnel_bytes_total{direction=\"sent\"} 7", "{direction=\"received\"} 3", "{of=\"budget\"} 1000"]
        {
            assert!(text.contains(line), "{line} in {text}");
        }
    }
}
