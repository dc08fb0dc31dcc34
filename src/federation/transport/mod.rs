//! Authenticated connections between agents, without saying how.
//!
//! A [`Link`] is one connection to one peer whose identity the transport has verified: the certificate chain against the
//! peer's trust bundle, its validity, and its URI SAN `spiffe://<trust domain>/cluster/<name>`. What a link does *not*
//! prove is that this is the peer's cluster (its UID) or its leader (its epoch): the hello does.
//!
//! Streams are bidirectional and of a [`StreamKind`]. The opener's first two bytes are the kind (big-endian `u16`);
//! transports write and read them, so that callers see payload only. A stream of an unknown kind is reset by the
//! transport and never shows up in [`Link::accept`].
//!
//! All futures are cancel-safe: dropping one loses no link, no stream and no close reason.

#[cfg(test)]
pub(crate) mod conformance;
#[cfg(any(test, feature = "testing"))]
pub mod memory;
pub mod quic;

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use jiff::Timestamp;

use super::wire::registry::{CloseCode, RefusalReason, StreamKind};
use super::wire::version::WireVersion;
pub(crate) use tributary_contract::Traffic;
use tributary_contract::{PeerName, PeerSpec, Refusal};
pub use tributary_tunnel::pump::Sending;
pub(crate) use tributary_tunnel::pump::{RecvHalf, SendHalf};

/// Who is at the other end, as its certificate says.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PeerIdentity {
    /// Last segment of the SPIFFE id.
    pub name: PeerName,
    /// Trust domain of the SPIFFE id.
    pub trust_domain: String,
    /// End of validity of the certificate. Owners of a link end it by then.
    pub not_after: Timestamp,
    /// SHA-256 of the certificate (DER), lower-case hex.
    pub fingerprint: String,
}

/// How a link ended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum CloseReason {
    /// We closed it.
    Local(CloseCode),
    /// The peer closed it with a code of ours and a sentence.
    Peer {
        /// The code.
        code: CloseCode,
        /// The peer's sentence; may be empty. Untrusted text, at most 256 bytes.
        reason: String,
    },
    /// The peer refused us below our protocol: a TLS alert. With TLS 1.3 a client learns only after its handshake has
    /// completed that its certificate is not accepted, so this can end a link that was dialled successfully.
    Refused(Refusal),
    /// Nothing is heard any more, or the connection was reset: the sentence says which.
    Lost(String),
}

/// One authenticated connection to a peer.
pub trait Link: Send + Sync {
    /// Who is at the other end; verified.
    fn identity(&self) -> &PeerIdentity;
    /// When the first of both certificates ends, theirs or the one we showed: the link must not outlive it.
    fn expires(&self) -> Timestamp {
        self.identity().not_after
    }
    /// Judges the peer again, as its handshake did: by its ClusterPeer, our trust bundle and the time of now. What was
    /// trusted when the link was made may not be any more.
    ///
    /// # Errors
    /// How to close the link: code and sentence.
    fn verify_again(&self, _peer: &PeerSpec) -> Result<(), (CloseCode, String)> {
        Ok(())
    }
    /// The version of the messages that both sides agreed on when the link was made; `None`: they did not, their hellos do.
    fn version(&self) -> Option<WireVersion> {
        None
    }
    /// Made by [`Transport::dial_tunnel`]: it carries broker traffic, and has no control stream.
    fn is_for_tunnels(&self) -> bool {
        false
    }
    /// Bounds what may be in flight, in bytes each way, of a link for tunnels. A link that cannot do so takes no notice.
    fn bound(&self, _bytes: usize) {}
    /// The address in use, `ip:port`; it may change while the link lives (a NAT that rebinds: RFC 9000, 9).
    fn remote(&self) -> String;
    /// Smoothed round-trip time; `None` until measured.
    fn rtt(&self) -> Option<Duration>;
    /// What went over the wire so far, with all that the transport adds; `None`: not counted.
    fn traffic(&self) -> Option<Traffic> {
        None
    }
    /// Opens a stream. Waits while the peer's stream limit is reached. The kind travels with the first payload at the
    /// latest when something is flushed.
    fn open(&self, kind: StreamKind) -> BoxFuture<'_, io::Result<(SendHalf, RecvHalf)>>;
    /// The next stream the peer opened; `None` once the link is closed. A peer that opens a stream and is slow to say
    /// its kind does not hold up others.
    fn accept(&self) -> BoxFuture<'_, Option<(StreamKind, SendHalf, RecvHalf)>>;
    /// Closes the link at once, with all its streams. The second and later calls do nothing. `reason` is cut at 256
    /// bytes and must hold nothing secret.
    fn close(&self, code: CloseCode, reason: &str);
    /// Waits until the link is closed, by whomever; later calls give the same answer.
    fn closed(&self) -> BoxFuture<'_, CloseReason>;
}

/// A link the transport did not let in.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RefusedLink {
    /// `ip:port` it came from.
    pub remote: String,
    /// The name in its certificate, if the certificate could be read. Not verified: for logs and conditions only.
    pub claimed: Option<PeerName>,
    /// Why.
    pub refusal: Refusal,
}

/// What came in.
pub enum Accepted {
    /// A verified peer. Whether it is configured and not suspended is for the mesh to look at as well: the set of peers
    /// may have changed since the handshake.
    Link(Arc<dyn Link>),
    /// Somebody who was turned away.
    Refused(RefusedLink),
    /// Somebody who began a handshake and did not go on with it, or not as QUIC and TLS have it: nobody knows who.
    Broken {
        /// `ip:port` it came from.
        remote: String,
        /// One sentence.
        detail: String,
    },
}

/// Why a peer could not be dialled.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{}", .refusal.message)]
pub struct DialError {
    /// Reason and sentence, as the peer's condition shows them.
    pub refusal: Refusal,
}

impl DialError {
    /// A failure for `reason`. `message`: what was expected, what was shown, what to do.
    pub(crate) fn new(reason: RefusalReason, message: impl Into<String>) -> Self {
        Self { refusal: reason.because(message) }
    }
}

/// Makes and takes links. One per agent; it listens from its construction until [`Transport::shutdown`].
pub trait Transport: Send + Sync {
    /// Connects to `peer` at one address and verifies that it is `peer` ([`PeerSpec::name`] in the SAN, chain against
    /// [`PeerSpec::trust_bundle`], else our own `ca.crt`). The transport bounds the time this takes.
    fn dial<'a>(&'a self, peer: &'a PeerSpec, address: SocketAddr) -> BoxFuture<'a, Result<Arc<dyn Link>, DialError>>;
    /// The same for a link that carries broker traffic. A peer of a version without tunnels refuses it.
    fn dial_tunnel<'a>(
        &'a self,
        peer: &'a PeerSpec,
        _address: SocketAddr,
    ) -> BoxFuture<'a, Result<Arc<dyn Link>, DialError>> {
        let message = format!("this transport carries no tunnels to {}", peer.name);
        Box::pin(std::future::ready(Err(DialError::new(RefusalReason::IncompatibleVersion, message))))
    }
    /// The next incoming link, accepted or refused; `None` after [`Transport::shutdown`]. A slow handshake does not hold
    /// up others. A refusal is told to the other side with its [`RefusalReason::close_code`] where the handshake lets us.
    fn accept(&self) -> BoxFuture<'_, Option<Accepted>>;
    /// The peers that may connect and the trust bundle of each. Links that exist are not touched.
    fn set_peers(&self, peers: &BTreeMap<PeerName, PeerSpec>);
    /// Waits until what links are judged by changed other than by [`Transport::set_peers`]: our own trust bundle. Then
    /// every link is to be judged again ([`Link::verify_again`]).
    fn trust_changed(&self) -> BoxFuture<'_, ()> {
        Box::pin(std::future::pending())
    }
    /// The address we listen on.
    fn local_addr(&self) -> SocketAddr;
    /// Stops listening, closes what is left with [`CloseCode::Done`], and waits (a short, bounded time) until the peers
    /// could have been told.
    fn shutdown(&self) -> BoxFuture<'_, ()>;
}

/// Turns an endpoint of a ClusterPeer into addresses.
pub trait Resolve: Send + Sync {
    /// Addresses of `endpoint` (`host:port`, `[v6]:port`, `srv:NAME`) in the order to try them; never empty. `fresh`
    /// asks to look past caches: the addresses known so far did not answer.
    fn resolve<'a>(&'a self, endpoint: &'a str, fresh: bool) -> BoxFuture<'a, Result<Vec<SocketAddr>, DialError>>;
}
