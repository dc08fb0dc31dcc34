//! QUIC's parameters.

use std::sync::Arc;

use quinn::congestion::BbrConfig;
use quinn::crypto::rustls::QuicServerConfig;
use quinn::{Connection, MtuDiscoveryConfig, ServerConfig, TransportConfig, VarInt};
use tokio::sync::watch;
use tributary_clock::SharedClock;

use super::socket::LARGEST_PACKET;
use crate::identity::tls::{self, Slot};
use crate::identity::{IdentityStore, Peers};
use crate::timers::Timers;
use crate::wire::limits;
use crate::wire::registry::ALPN_TUNNEL;
use crate::wire::version::WireVersions;

/// Bytes in flight on one stream: at least two control frames, and all that may be under way of a carried connection.
const STREAM_WINDOW: u32 = limits::TUNNEL_WINDOW as u32;

/// Bytes in flight on one connection, all streams together. quinn's default is no limit.
const CONNECTION_WINDOW: u32 = 8 << 20;

/// What a listener takes, in the order of preference.
pub(super) fn alpns(versions: WireVersions) -> Vec<Vec<u8>> {
    versions.alpns().into_iter().chain([ALPN_TUNNEL.to_vec()]).collect()
}

/// Connections that have sent their first packet and wait for a free handshake.
const WAITING_HANDSHAKES: usize = 256;

/// Bytes that such a connection may send meanwhile: a client hello takes two packets.
const WAITING_BYTES: u64 = 16 << 10;

const _: () = assert!(2 * limits::CONTROL_FRAME <= STREAM_WINDOW as usize, "a frame never stops and waits");
const _: () = assert!(limits::ANSWER_FRAME < CONNECTION_WINDOW as usize, "an unread answer leaves room for heartbeats");

/// Parameters of every connection, in both directions.
pub(super) fn transport(timers: &Timers) -> TransportConfig {
    let mut config = TransportConfig::default();
    let idle = timers.quic_idle.try_into().expect("an idle time-out of less than 2^62 ms");
    config
        .max_idle_timeout(Some(idle))
        // Heartbeats come more often; this keeps a connection between its handshake and its hello.
        .keep_alive_interval(Some(timers.quic_idle / 3))
        .max_concurrent_bidi_streams(VarInt::from_u32(limits::STREAMS_PER_PEER))
        .max_concurrent_uni_streams(VarInt::from_u32(0))
        .stream_receive_window(VarInt::from_u32(STREAM_WINDOW))
        .receive_window(VarInt::from_u32(CONNECTION_WINDOW))
        .send_window(CONNECTION_WINDOW.into())
        // A stream is sent as long as it has something, so that the other side has more to take at a time: 32 carried
        // connections cost half as much then. What must not wait for that is of another priority.
        .send_fairness(false)
        // The one that does not take every lost packet for a queue: with one lost in a hundred at a round trip of 50 ms,
        // the default (CUBIC) carries less than 1 MB/s, of a large snapshot as well as of a tunnel. A connection that has
        // little to say, which control connections are, is not held back by either.
        .congestion_controller_factory(Arc::new(BbrConfig::default()))
        .datagram_receive_buffer_size(None);
    let mut packets = MtuDiscoveryConfig::default();
    packets.upper_bound(LARGEST_PACKET);
    config.mtu_discovery_config(Some(packets));
    config
}

/// What a connection may that turned out to be for tunnels.
pub(super) fn widen(connection: &Connection) {
    let streams = u32::try_from(limits::TUNNEL_CONNECTIONS_PER_PEER).unwrap_or(u32::MAX);
    connection.set_max_concurrent_bi_streams(VarInt::from_u32(streams));
    bound(connection, limits::TUNNEL_LINK);
}

/// How much may be in flight on a connection, each way.
pub(super) fn bound(connection: &Connection, bytes: usize) {
    connection.set_receive_window(VarInt::from_u32(u32::try_from(bytes).unwrap_or(u32::MAX)));
    connection.set_send_window(bytes as u64);
}

/// Parameters of the listening endpoint. Its TLS settings only key the first packet: each incoming connection gets its
/// own.
pub(super) fn server(
    identities: &IdentityStore,
    peers: &watch::Sender<Arc<Peers>>,
    clock: &SharedClock,
    transport: Arc<TransportConfig>,
) -> ServerConfig {
    // Of no version: these settings are replaced before anything is agreed on.
    let tls = tls::server(identities.current(), peers.subscribe(), Vec::new(), clock.clone(), Slot::default());
    let mut config = ServerConfig::with_crypto(Arc::new(crypto(tls)));
    config
        .transport_config(transport)
        .max_incoming(WAITING_HANDSHAKES)
        .incoming_buffer_size(WAITING_BYTES)
        .incoming_buffer_size_total(WAITING_BYTES * WAITING_HANDSHAKES as u64);
    config
}

/// TLS settings as QUIC takes them.
pub(super) fn crypto(tls: rustls::ServerConfig) -> QuicServerConfig {
    QuicServerConfig::try_from(tls).expect("ring has QUIC's initial cipher suite")
}
