//! What is carried through the agents' own connection: the brokers' connections to the lead broker of their root.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use super::{BurstUid, PeerName};

/// The peer at the other end, and the burst that is carried.
pub type TunnelKey = (PeerName, BurstUid);

/// Root side: where the connections of a burst lead. Only a burst that was admitted and given the certificate has one.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Outlet {
    /// Incarnation of the root; connections of another one are refused.
    pub incarnation: String,
    /// The lead broker's pod. When it changes, connections to the one before are ended.
    pub lead: SocketAddr,
    /// Where the end of the tunnel listens in that pod, if there is one.
    pub end: Option<SocketAddr>,
    /// How long a connection outlives the stream that carried it.
    pub hold: Duration,
}

/// Provider side: a burst whose connections are carried to its root.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Inlet {
    /// Incarnation of the root. When it changes, connections of the one before are ended.
    pub incarnation: String,
    /// Addresses of the burst's pods: who may connect.
    pub sources: BTreeSet<IpAddr>,
    /// How long a connection outlives the stream that carried it.
    pub hold: Duration,
}

/// Every burst of ours that is carried.
pub type Outlets = BTreeMap<TunnelKey, Outlet>;

/// Every burst of peers that is carried.
pub type Inlets = BTreeMap<TunnelKey, Inlet>;

/// Root side: open connections of a burst, by where they end.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Ends {
    /// In the pods of the brokers, on both sides: the agents only relay.
    pub in_pods: usize,
    /// In the agents.
    pub in_agents: usize,
}

/// The connections of every burst that has some.
pub type AllEnds = BTreeMap<TunnelKey, Ends>;

/// The TCP port of every inlet, or why there is none.
pub type Listening = BTreeMap<TunnelKey, Result<u16, String>>;
