//! The ports between `bursting` (which knows Kubernetes) and `federation` (which knows the network).
//!
//! Outgoing state is *pulled*: the federation asks [`Outgoing`] for the newest value when the link has room.
//! [`Outgoing::dirty`] tells it whom to ask about. Incoming state is *put* into [`Incoming`], which keeps the newest value
//! per key and wakes its controller. Nothing here blocks, but [`CredentialSource`], which reads a Secret.

use std::collections::BTreeMap;

use bytes::Bytes;
use futures::future::BoxFuture;

use super::{
    BurstUid, Capacity, Credential, CredentialRefusal, CredentialRequest, DesiredBurst, DirtySet, Epoch, ObservedBurst,
    PeerName, PeerReport,
};

/// Which state, and about which burst.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum StateKey {
    /// What we, as a root, want of the peer.
    Desired(BurstUid),
    /// What we, as a provider, say to the peer about its burst.
    Observed(BurstUid),
}

/// A value of a [`StateKey`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum State {
    /// Of a [`StateKey::Desired`].
    Desired(Box<DesiredBurst>),
    /// Of a [`StateKey::Observed`].
    Observed(Box<ObservedBurst>),
    /// The burst is gone by decision, not by absence: the explicit word that allows a deletion. For a desired key:
    /// release it. For an observed key: nothing of it is left here.
    Tombstone,
}

/// What this cluster says to its peers; implemented by `bursting`, pulled by the federation.
pub trait Outgoing: Send + Sync {
    /// Peers and keys whose value changed since they were taken.
    fn dirty(&self) -> &DirtySet<(PeerName, StateKey)>;
    /// All keys for a peer, tombstones included.
    fn keys(&self, peer: &PeerName) -> Vec<StateKey>;
    /// The newest value; `None` if the key is not (any more) for this peer.
    fn state(&self, peer: &PeerName, key: &StateKey) -> Option<State>;
    /// Keys of which it is not known whether they are for this peer, beside [`Outgoing::keys`]: a snapshot names them, so that
    /// the other side concludes nothing about them.
    fn withheld(&self, peer: &PeerName) -> Vec<StateKey> {
        let _ = peer;
        Vec::new()
    }
    /// Whether [`Outgoing::keys`], with what is [withheld](Outgoing::withheld), is all there is: every cache is listed and
    /// leadership is confirmed. Only then may a snapshot be marked complete, and only a complete one lets the other side
    /// conclude from absence.
    fn complete(&self) -> bool;
    /// Coarse capacity for heartbeats to this peer; `None`: nothing is exported to it.
    fn capacity(&self, peer: &PeerName) -> Option<Capacity>;
}

/// What peers say to this cluster; implemented by `bursting`, called by the federation in the order of arrival, for
/// sessions whose identity is verified, and never for an epoch or sequence older than one already delivered.
pub trait Incoming: Send + Sync {
    /// A peer's newest value of a key. `State::Tombstone` is explicit.
    fn put(&self, peer: &PeerName, epoch: Epoch, key: StateKey, state: State);
    /// The peer's newest values of these keys are those that it said before, maybe in an earlier session.
    fn unchanged(&self, peer: &PeerName, epoch: Epoch, keys: &[StateKey]) {
        let _ = (peer, epoch, keys);
    }
    /// The peer listed all its keys and marked the list complete: what is not in it may be concluded absent once that
    /// has lasted for the grace period. The newest value of a key in it may still be on its way.
    fn complete_snapshot(&self, peer: &PeerName, epoch: Epoch, keys: &[StateKey]);
    /// Whether what a peer has put of a key is still kept, though its last complete list does not name it: it counts against
    /// what the peer may put.
    fn keeps(&self, peer: &PeerName, key: &StateKey) -> bool {
        let _ = (peer, key);
        false
    }
    /// A state of ours cannot be sent to the peer (beyond a limit of the wire), or the peer cannot use it (its version
    /// does not know it). `problem` is one sentence with what to do. Said once per state, and perhaps again after a
    /// reconnect; the other keys are not affected.
    fn undeliverable(&self, peer: &PeerName, key: StateKey, problem: &str) {
        let _ = (peer, key, problem);
    }
    /// What is known of the connection changed.
    fn peer_report(&self, peer: &PeerName, report: PeerReport);
}

/// Root side: hands out certificates.
pub trait CredentialSource: Send + Sync {
    /// The certificate of a burst placed on `peer`. Records the recipient *before* it returns the certificate.
    fn credential<'a>(
        &'a self,
        peer: &'a PeerName,
        request: CredentialRequest,
    ) -> BoxFuture<'a, Result<Credential, CredentialRefusal>>;
}

/// Answers a peer's read-only query (the fan-out of `agentctl status`); implemented by the daemon's admin part.
pub trait QuerySource: Send + Sync {
    /// The JSON document for `query` as this peer may see it (its `export`); `None` if unknown or not exported.
    fn answer<'a>(&'a self, peer: &'a PeerName, query: &'a str) -> BoxFuture<'a, Option<Bytes>>;
}

/// What a cluster offers its peers when it replaces its authority.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct TrustOffer {
    /// All authorities that may sign its certificate from now on, PEM.
    pub bundle: String,
    /// Signatures over the bundle: one of an authority that the peer trusts already makes it count.
    pub signatures: Vec<Vec<u8>>,
}

/// What a peer does with a [`TrustOffer`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TrustAnswer {
    /// It trusts exactly these authorities now.
    Taken,
    /// Its ClusterPeer does not let us (`spec.trustUpdates`): its owner has to change the bundle.
    Manual,
    /// No authority that it trusts has signed the offer, or the offer cannot be used.
    Refused,
    /// It could not write it now.
    Unavailable,
}

/// Takes the offers of peers.
pub trait TrustSink: Send + Sync {
    /// An offer of `peer`, whose identity is verified.
    fn offered<'a>(&'a self, peer: &'a PeerName, offer: TrustOffer) -> BoxFuture<'a, TrustAnswer>;
}

/// Requests to a connected peer; implemented by the federation, used by `bursting` and the admin API.
pub trait PeerRequests: Send + Sync {
    /// Provider side: asks the root for the certificate of an accepted burst.
    fn request_credential<'a>(
        &'a self,
        peer: &'a PeerName,
        request: CredentialRequest,
    ) -> BoxFuture<'a, Result<Credential, CredentialRefusal>>;
    /// Asks a peer a read-only query. `None`: not connected, refused, or no answer within the time limit.
    fn query<'a>(&'a self, peer: &'a PeerName, query: &'a str) -> BoxFuture<'a, Option<Bytes>>;
    /// What is known of every configured peer.
    fn reports(&self) -> BTreeMap<PeerName, PeerReport>;
}
