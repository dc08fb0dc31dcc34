//! Outcomes of opening a stream, as numbers on the wire.

/// The stream carries the connection.
pub(super) const OPEN: u32 = 1;
/// The burst is not placed on the asking peer, or is of another incarnation.
pub(super) const NOT_YOURS: u32 = 2;
/// The connection is not known any more: another leader, or the hold time is over.
pub(super) const GONE: u32 = 3;
/// The lead broker's pod did not take the connection.
pub(super) const UNREACHABLE: u32 = 4;
/// Too many connections of this peer.
pub(super) const TOO_MANY: u32 = 5;
/// To be relayed, and no end of the tunnel answers in the lead broker's pod.
pub(super) const NO_ENDS: u32 = 6;
