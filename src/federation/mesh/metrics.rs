//! Counts of the mesh.

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;

use crate::federation::session::Lane;
use crate::metrics::Metrics;

type Label = [(&'static str, &'static str); 1];

/// What the mesh counts. Cloning shares the counts; the default ones are not registered anywhere.
#[derive(Clone, Debug, Default)]
pub struct MeshMetrics {
    connected: Gauge,
    dials: Family<Label, Counter>,
    sent: Family<Label, Counter>,
    received: Counter,
    refused: Counter,
}

impl MeshMetrics {
    /// Registers the counts.
    pub fn register(metrics: &Metrics) -> Self {
        let ours = Self::default();
        metrics.register("federation_connected_peers", "Peers with an accepted hello", ours.connected.clone());
        metrics.register("federation_dials", "Attempts to connect to a peer", ours.dials.clone());
        metrics.register("federation_sent_bytes", "Bytes of control frames sent", ours.sent.clone());
        metrics.register("federation_received_bytes", "Bytes of control frames received", ours.received.clone());
        metrics.register("federation_refused_links", "Incoming connections turned away", ours.refused.clone());
        ours
    }

    pub(super) fn connected(&self, peers: usize) {
        self.connected.set(peers as i64);
    }

    pub(super) fn dialled(&self, connected: bool) {
        self.dials.get_or_create(&[("outcome", if connected { "connected" } else { "failed" })]).inc();
    }

    pub(super) fn sent(&self, lane: Lane, bytes: usize) {
        let lane = match lane {
            Lane::Control => "control",
            Lane::State => "state",
        };
        self.sent.get_or_create(&[("lane", lane)]).inc_by(bytes as u64);
    }

    pub(super) fn received(&self, bytes: usize) {
        self.received.inc_by(bytes as u64);
    }

    pub(super) fn refused(&self) {
        self.refused.inc();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_counted_is_shown() {
        let metrics = Metrics::default();
        let ours = MeshMetrics::register(&metrics);
        ours.sent(Lane::Control, 7);
        ours.dialled(false);
        ours.connected(2);
        let text = metrics.text();
        for line in [
            "tributary_federation_sent_bytes_total{lane=\"control\"} 7",
            "tributary_federation_dials_total{outcome=\"failed\"} 1",
            "tributary_federation_connected_peers 2",
        ] {
            assert!(text.contains(line), "{line} in {text}");
        }
    }
}
