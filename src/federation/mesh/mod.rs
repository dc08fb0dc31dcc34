//! Connections to all configured peers.
//!
//! [`Membership`] decides, without input, output or clock: whom to dial, whom to let in, which connection of a pair
//! stays, what to report. One task owns it with all sessions (`owner`); every connection has a reader and a writer
//! (`connection`). Requests have streams of their own (`handle`, `serve`), past the owner.
//!
//! | part | what it does |
//! |---|---|
//! | [`membership`] | all configured peers, as a state machine |
//! | [`tie_break`] | one connection per pair |
//! | [`resolve`] | endpoints of a ClusterPeer to addresses |
//! | [`dial`] | whichever of them answers first |
mod backoff;
mod connection;
pub(crate) mod dial;
mod flaps;
mod handle;
pub(crate) mod membership;
mod metrics;
mod owner;
mod peer;
mod rate_limit;
pub(crate) mod rejected_peers;
mod report;
pub mod resolve;
mod serve;
mod spawn;
pub mod tie_break;

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use jiff::Timestamp;

pub use self::handle::MeshHandle;
pub(crate) use self::membership::Membership;
pub use self::metrics::MeshMetrics;
pub use self::spawn::{MeshConfig, Ports, spawn};
use tributary_clock::Rng;
use tributary_contract::ports::{State, StateKey};
use tributary_contract::{ClusterUid, Epoch, PeerName, PeerReport, PeerSpec};

use super::session::{Ending, Misbehaviour, Sequences};
use super::timers::Timers;
use super::tunnel::{CAPABILITY, RELAY_CAPABILITY};
use super::wire::messages::Hello;
use super::wire::version::{WireVersion, WireVersions};

/// A connection of this process.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ConnId(pub(crate) u64);

/// Who we are, for as long as the mesh runs.
pub(crate) struct Local {
    /// Name of our cluster.
    pub name: PeerName,
    pub cluster_uid: ClusterUid,
    /// Labels of our cluster.
    pub labels: BTreeMap<String, String>,
    /// Version of our agent.
    pub version: String,
    /// Versions of the messages we speak.
    pub versions: WireVersions,
    /// The leadership we speak for; `None`: we do not lead.
    pub epoch: Option<Epoch>,
    /// Random per process.
    pub instance: u64,
    /// Intervals.
    pub timers: Timers,
    /// Chance, for jitter.
    pub rng: Box<dyn Rng>,
    /// Positions in what this process says.
    pub sequences: Sequences,
}

impl Local {
    /// Our hello; `None` if we do not lead.
    pub(crate) fn hello(&self) -> Option<Hello> {
        Some(Hello {
            versions: self.versions,
            agent_version: self.version.clone(),
            cluster: self.name.clone(),
            cluster_uid: self.cluster_uid.clone(),
            epoch: self.epoch?,
            instance: self.instance,
            labels: self.labels.clone(),
            capabilities: [CAPABILITY, RELAY_CAPABILITY].map(str::to_owned).into(),
            patience: Some(self.timers.suspect),
        })
    }
}

impl std::fmt::Debug for Local {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Local").field("name", &self.name).field("epoch", &self.epoch).finish_non_exhaustive()
    }
}

/// What is known of a link when it was made.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Connected {
    /// The verified name of the peer.
    pub name: PeerName,
    /// `ip:port`.
    pub remote: String,
    /// When the first certificate of both ends.
    pub expires: Timestamp,
    /// The version of the messages it was made for; `None`: the hellos agree on one.
    pub version: Option<WireVersion>,
}

/// What the driver of the mesh has to do.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum Action {
    /// Dial, and answer with [`Membership::connected`] or [`Membership::dial_failed`] and this ticket.
    Dial {
        peer: PeerSpec,
        /// To be given back.
        ticket: u64,
        /// Look past caches when resolving.
        fresh: bool,
        /// Addresses to try last.
        last: BTreeSet<SocketAddr>,
    },
    /// Close a link; the mesh has forgotten it.
    Close { connection: ConnId, ending: Ending },
    /// Requests of this connection may be served from now on.
    Established { connection: ConnId },
    /// For [`tributary_contract::ports::Incoming::put`].
    Put {
        peer: PeerName,
        /// Its leadership.
        epoch: Epoch,
        key: StateKey,
        state: State,
    },
    /// For [`tributary_contract::ports::Incoming::unchanged`].
    Unchanged {
        peer: PeerName,
        /// Its leadership.
        epoch: Epoch,
        keys: Vec<StateKey>,
    },
    /// For [`tributary_contract::ports::Incoming::complete_snapshot`].
    CompleteSnapshot {
        peer: PeerName,
        /// Its leadership.
        epoch: Epoch,
        keys: Vec<StateKey>,
    },
    /// For [`tributary_contract::ports::Incoming::undeliverable`].
    Undeliverable {
        peer: PeerName,
        key: StateKey,
        /// One sentence.
        problem: String,
    },
    /// For [`tributary_contract::ports::Incoming::peer_report`].
    Report {
        peer: PeerName,
        /// Without the round-trip time.
        report: Box<PeerReport>,
    },
    /// A peer did something it should not.
    Misbehaved {
        peer: PeerName,
        /// What kind of thing.
        what: Misbehaviour,
        /// One sentence.
        detail: String,
    },
    /// A peer is not configured any more.
    Forget { peer: PeerName },
}

#[cfg(test)]
mod tests;
