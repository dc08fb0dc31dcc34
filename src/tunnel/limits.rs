//! Limits of a carried connection, with their reasons.

/// Bytes of one piece of a carried connection: a socket gives and takes about as many at a time.
pub const TUNNEL_PIECE: usize = 64 << 10;

/// Bytes of one direction of a carried connection that may be under way: read on one side, not yet taken on the other.
/// 80 MB/s at a round trip of 50 ms.
pub const TUNNEL_WINDOW: usize = 4 << 20;

/// Bytes under way that every carried connection may always have, however many there are.
pub const TUNNEL_FLOOR: usize = 8 << 10;

/// Bytes of memory that a carried connection counts for: [`TUNNEL_FLOOR`] in each direction, in buffers of up to twice that,
/// and itself.
pub const TUNNEL_CONNECTION: usize = 42 << 10;

/// Bytes in flight on a connection for tunnels, one way, if there is memory for it: what a long way holds, 640 MB/s at a
/// round trip of 50 ms. Its streams are read as they come.
pub const TUNNEL_LINK: usize = 32 << 20;

/// Connections carried for one peer, if there is memory for them: 16 bursts of 64 brokers that all connect to the lead
/// themselves, and as many that are being replaced.
pub const TUNNEL_CONNECTIONS_PER_PEER: usize = 2_048;

const _: () = assert!(TUNNEL_FLOOR.is_power_of_two() && TUNNEL_WINDOW.is_power_of_two(), "so are shares");
const _: () = assert!(4 * TUNNEL_FLOOR < TUNNEL_CONNECTION, "and something for the connection itself");
