//! Counts of the mesh.

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use tributary_contract::{PeerReport, PeerState};
use tributary_metrics::{Described, Metrics};

use crate::session::{Lane, Misbehaviour};
use crate::transport::{CloseReason, Traffic};
use crate::wire::registry::CloseCode;

const CONNECTED: Described = Described::gauge("federation_connected_peers", &[], "Peers with an accepted hello");
const DIALS: Described =
    Described::counter("federation_dials", &[("outcome", &["connected", "failed"])], "Attempts to connect to a peer");
const SENT: Described =
    Described::counter("federation_sent_bytes", &[("lane", &["control", "state"])], "Bytes of control frames sent");
const RECEIVED: Described = Described::counter("federation_received_bytes", &[], "Bytes of control frames received");
const REFUSED: Described =
    Described::counter("federation_refused_links", &[], "Incoming connections turned away before a hello");
const MISBEHAVED: Described =
    Described::counter("federation_misbehaviour", &[("kind", &[])], "What peers did that they should not");
const ENDED: Described = Described::counter(
    "federation_ended_links",
    &[("by", &["us", "peer", "network"]), ("code", &[])],
    "Connections that ended, by side and close code",
);
const PEERS: Described = Described::gauge(
    "federation_peers",
    &[("state", &["disconnected", "connected", "suspect", "refused", "suspended"])],
    "Configured peers by state",
);
const FLAPPING: Described = Described::gauge("federation_flapping_peers", &[], "Peers whose connection keeps breaking");
const WIRE: Described = Described::counter(
    "federation_wire_bytes",
    &[("direction", &["sent", "received"])],
    "Bytes of UDP datagrams to and from peers, IP and UDP headers included",
);

type Labels = [(&'static str, &'static str); 1];

const STATES: [(PeerState, &str); 5] = [
    (PeerState::Disconnected, "disconnected"),
    (PeerState::Connected, "connected"),
    (PeerState::Suspect, "suspect"),
    (PeerState::Refused, "refused"),
    (PeerState::Suspended, "suspended"),
];

/// What the mesh counts. Cloning shares the counts; the default ones are not registered anywhere.
#[derive(Clone, Debug, Default)]
pub struct MeshMetrics {
    connected: Gauge,
    dials: Family<Labels, Counter>,
    sent: Family<Labels, Counter>,
    received: Counter,
    refused: Counter,
    misbehaved: Family<Labels, Counter>,
    ended: Family<[(&'static str, &'static str); 2], Counter>,
    states: Family<Labels, Gauge>,
    flapping: Gauge,
    wire: Family<Labels, Counter>,
}

impl MeshMetrics {
    /// What there is.
    pub const DESCRIBED: [Described; 10] =
        [CONNECTED, DIALS, SENT, RECEIVED, REFUSED, MISBEHAVED, ENDED, PEERS, FLAPPING, WIRE];

    /// Registers the counts.
    pub fn register(metrics: &Metrics) -> Self {
        let ours = Self::default();
        metrics.register(&CONNECTED, ours.connected.clone());
        metrics.register(&DIALS, ours.dials.clone());
        metrics.register(&SENT, ours.sent.clone());
        metrics.register(&RECEIVED, ours.received.clone());
        metrics.register(&REFUSED, ours.refused.clone());
        metrics.register(&MISBEHAVED, ours.misbehaved.clone());
        metrics.register(&ENDED, ours.ended.clone());
        metrics.register(&PEERS, ours.states.clone());
        metrics.register(&FLAPPING, ours.flapping.clone());
        metrics.register(&WIRE, ours.wire.clone());
        ours
    }

    pub(super) fn misbehaved(&self, what: Misbehaviour) {
        self.misbehaved.get_or_create(&[("kind", what.as_str())]).inc();
    }

    /// We ended a connection.
    pub(super) fn ended(&self, code: CloseCode) {
        self.ended.get_or_create(&[("by", "us"), ("code", code.name())]).inc();
    }

    /// A connection ended, not by the mesh.
    pub(super) fn closed(&self, reason: &CloseReason) {
        let labels = match reason {
            CloseReason::Local(code) => [("by", "us"), ("code", code.name())],
            CloseReason::Peer { code, .. } => [("by", "peer"), ("code", code.name())],
            CloseReason::Refused(_) => [("by", "peer"), ("code", "refused")],
            CloseReason::Lost(_) => [("by", "network"), ("code", "lost")],
        };
        self.ended.get_or_create(&labels).inc();
    }

    pub(super) fn peers<'a>(&self, reports: impl Iterator<Item = &'a PeerReport>) {
        let mut counts = STATES.map(|(state, word)| (state, word, 0));
        let mut flapping = 0;
        for report in reports {
            flapping += i64::from(report.flapping);
            counts.iter_mut().filter(|(state, ..)| *state == report.state).for_each(|(.., count)| *count += 1);
        }
        for (_, word, count) in counts {
            self.states.get_or_create(&[("state", word)]).set(count);
        }
        self.flapping.set(flapping);
    }

    /// The mesh has ended: nobody is connected, and the next leader says how peers are doing.
    pub(super) fn ended_with_the_term(&self) {
        self.connected.set(0);
        self.peers(std::iter::empty());
    }

    /// More bytes went over the wire.
    pub(super) fn wire(&self, more: Traffic) {
        self.wire.get_or_create(&[("direction", "sent")]).inc_by(more.sent);
        self.wire.get_or_create(&[("direction", "received")]).inc_by(more.received);
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
        ours.misbehaved(Misbehaviour::Flood);
        ours.ended(CloseCode::Silent);
        ours.closed(&CloseReason::Peer { code: CloseCode::Unknown(99), reason: String::new() });
        ours.peers([&PeerReport { state: PeerState::Suspect, flapping: true, ..PeerReport::default() }].into_iter());
        ours.wire(Traffic { sent: 3, received: 4 });
        let text = metrics.text();
        for line in [
            "tributary_federation_sent_bytes_total{lane=\"control\"} 7",
            "tributary_federation_dials_total{outcome=\"failed\"} 1",
            "tributary_federation_connected_peers 2",
            "tributary_federation_misbehaviour_total{kind=\"flood\"} 1",
            "tributary_federation_ended_links_total{by=\"us\",code=\"Silent\"} 1",
            "tributary_federation_ended_links_total{by=\"peer\",code=\"Unknown\"} 1",
            "tributary_federation_peers{state=\"suspect\"} 1",
            "tributary_federation_peers{state=\"connected\"} 0",
            "tributary_federation_flapping_peers 1",
            "tributary_federation_wire_bytes_total{direction=\"received\"} 4",
        ] {
            assert!(text.contains(line), "{line} in {text}");
        }
    }
}
