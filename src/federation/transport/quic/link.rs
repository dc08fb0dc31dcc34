//! One connection as a [`Link`].

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};
use std::time::Duration;

use futures::future::{BoxFuture, FutureExt as _};
use jiff::Timestamp;
use quinn::crypto::rustls::HandshakeData;
use quinn::{Connection, RecvStream, SendStream, VarInt};
use rustls::pki_types::CertificateDer;
use tokio::io::{AsyncReadExt as _, AsyncWrite};
use tokio::sync::{Mutex, mpsc};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tokio_util::task::AbortOnDropHandle;
use tributary_clock::SharedClock;
use tributary_contract::PeerSpec;

use super::ended::Side;
use super::settings;
use crate::identity::trust::{Peer, Usage};
use crate::identity::verify::{self, Denied, Shown};
use crate::identity::{Identity, IdentityStore};
use crate::transport::{CloseReason, Link, PeerIdentity, RecvHalf, SendHalf, Sending, Traffic};
use crate::wire::limits::{STREAMS_PER_PEER, cut_reason};
use crate::wire::registry::{ALPN_TUNNEL, CloseCode, StreamKind};
use crate::wire::version::WireVersion;

/// Error code with which a stream of an unknown kind is reset (RFC 9000, 19.4).
const UNKNOWN_KIND: VarInt = VarInt::from_u32(1);

/// How long a stream of an unknown kind counts against the peer's limit: a newer version tries one, a flood of them has to
/// wait.
const UNKNOWN_KIND_WAITS: Duration = Duration::from_millis(100);

type Stream = (StreamKind, SendHalf, RecvHalf);

/// A verified connection.
pub(super) struct QuicLink {
    connection: Connection,
    identity: PeerIdentity,
    side: Side,
    judge: Judge,
    closed_with: OnceLock<CloseCode>,
    for_tunnels: bool,
    version: Option<WireVersion>,
    streams: Mutex<mpsc::Receiver<Stream>>,
    _reader: AbortOnDropHandle<()>,
    /// While it lives, its peer is dialled from the endpoint that it was dialled from.
    pub(super) from: Arc<()>,
}

/// What it takes to judge a peer again.
pub(super) struct Judge {
    /// Ours, as they are then.
    pub identities: IdentityStore,
    /// The time.
    pub clock: SharedClock,
    /// What the peer showed its certificate for.
    pub usage: Usage,
}

impl QuicLink {
    /// Takes over a connection whose peer is verified. `patience`: how long a new stream may take to say its kind.
    pub(super) fn new(
        connection: Connection,
        identity: PeerIdentity,
        own: Arc<Identity>,
        judge: Judge,
        patience: Duration,
    ) -> Self {
        let handshake = connection.handshake_data().and_then(|data| data.downcast::<HandshakeData>().ok());
        let protocol = handshake.and_then(|data| data.protocol).unwrap_or_default();
        let (for_tunnels, version) = (protocol == ALPN_TUNNEL, WireVersion::of_alpn(&protocol));
        if for_tunnels {
            settings::widen(&connection);
        }
        let (sender, streams) = mpsc::channel(STREAMS_PER_PEER as usize);
        let reader = tokio::spawn(sort_streams(connection.clone(), sender, patience));
        let side = Side { who: format!("cluster `{}`", identity.name), own };
        Self {
            connection,
            identity,
            side,
            judge,
            closed_with: OnceLock::new(),
            for_tunnels,
            version,
            streams: Mutex::new(streams),
            _reader: AbortOnDropHandle::new(reader),
            from: Arc::default(),
        }
    }
}

impl Link for QuicLink {
    fn identity(&self) -> &PeerIdentity {
        &self.identity
    }

    fn expires(&self) -> Timestamp {
        self.identity.not_after.min(self.side.own.not_after())
    }

    fn verify_again(&self, peer: &PeerSpec) -> Result<(), (CloseCode, String)> {
        let shown =
            self.connection.peer_identity().and_then(|chain| chain.downcast::<Vec<CertificateDer<'static>>>().ok());
        // TLS keeps what was shown as long as the connection lives.
        let Some((leaf, intermediates)) = shown.as_deref().and_then(|chain| chain.split_first()) else {
            return Err((CloseCode::UntrustedCertificate, "the peer showed no certificate".to_owned()));
        };
        let Judge { identities, clock, usage } = &self.judge;
        let shown = Shown { leaf, intermediates };
        verify::again(&identities.current(), &Peer::from(peer), *usage, shown, clock.wall())
            .map_err(|denied| (denied.reason.close_code().unwrap_or(CloseCode::UntrustedCertificate), denied.message))
    }

    fn version(&self) -> Option<WireVersion> {
        self.version
    }

    fn is_for_tunnels(&self) -> bool {
        self.for_tunnels
    }

    fn bound(&self, bytes: usize) {
        settings::bound(&self.connection, bytes);
    }

    fn remote(&self) -> String {
        readable(self.connection.remote_address())
    }

    fn rtt(&self) -> Option<Duration> {
        // The handshake was the first measurement.
        Some(self.connection.rtt())
    }

    fn traffic(&self) -> Option<Traffic> {
        let stats = self.connection.stats();
        let headers = if self.connection.remote_address().ip().to_canonical().is_ipv4() { 28 } else { 48 };
        let bytes = |udp: quinn::UdpStats| udp.bytes + udp.datagrams * headers;
        Some(Traffic { sent: bytes(stats.udp_tx), received: bytes(stats.udp_rx) })
    }

    fn open(&self, kind: StreamKind) -> BoxFuture<'_, io::Result<(SendHalf, RecvHalf)>> {
        async move {
            let (mut send, recv) = self.connection.open_bi().await?;
            prioritize(&send, kind);
            send.write_all(&kind.id().to_be_bytes()).await?;
            Ok((Box::new(Sends(send)) as SendHalf, Box::new(recv) as RecvHalf))
        }
        .boxed()
    }

    fn accept(&self) -> BoxFuture<'_, Option<Stream>> {
        async { self.streams.lock().await.recv().await }.boxed()
    }

    fn close(&self, code: CloseCode, reason: &str) {
        if self.closed_with.set(code).is_ok() {
            self.connection.close(code.number().into(), cut_reason(reason).as_bytes());
        }
    }

    fn closed(&self) -> BoxFuture<'_, CloseReason> {
        async {
            let error = self.connection.closed().await;
            self.side.close_reason(&error, self.closed_with.get().copied())
        }
        .boxed()
    }
}

impl Drop for QuicLink {
    fn drop(&mut self) {
        // Streams that are still held would keep the connection alive, with nobody to answer on it.
        self.close(CloseCode::Done, "");
    }
}

/// Tells a known peer, by close code and sentence, why it is not let in.
pub(super) fn turn_away(connection: &Connection, denied: &Denied) {
    let code = denied.reason.close_code().unwrap_or(CloseCode::Done);
    connection.close(code.number().into(), cut_reason(&denied.message).as_bytes());
}

/// An address as people write it: IPv4 on a dual-stack socket without the mapped prefix.
pub(super) fn readable(address: SocketAddr) -> String {
    SocketAddr::new(address.ip().to_canonical(), address.port()).to_string()
}

/// Reads the kind of every stream the peer opens, each for itself, until the connection ends or nobody listens. What
/// waits here is bounded by the peer's stream limit.
async fn sort_streams(connection: Connection, sorted: mpsc::Sender<Stream>, patience: Duration) {
    let mut readers = JoinSet::new();
    loop {
        tokio::select! {
            stream = connection.accept_bi() => match stream {
                Ok((send, recv)) => {
                    let sorted = sorted.clone();
                    readers.spawn(async move {
                        if let Ok(Some(stream)) = timeout(patience, read_kind(send, recv)).await {
                            let _ = sorted.send(stream).await;
                        }
                    });
                }
                // The streams that have arrived whole are still handed over.
                Err(_) => break,
            },
            Some(_) = readers.join_next() => {}
            () = sorted.closed() => break,
        }
    }
    drop(sorted);
    while readers.join_next().await.is_some() {}
}

async fn read_kind(mut send: SendStream, mut recv: RecvStream) -> Option<Stream> {
    let Some(kind) = StreamKind::from_id(recv.read_u16().await.ok()?) else {
        sleep(UNKNOWN_KIND_WAITS).await;
        let _ = send.reset(UNKNOWN_KIND);
        let _ = recv.stop(UNKNOWN_KIND);
        return None;
    };
    prioritize(&send, kind);
    Some((kind, Box::new(Sends(send)), Box::new(recv)))
}

/// The sending half of a stream.
struct Sends(SendStream);

impl AsyncWrite for Sends {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        AsyncWrite::poll_write(Pin::new(&mut self.0), cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        AsyncWrite::poll_flush(Pin::new(&mut self.0), cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        AsyncWrite::poll_shutdown(Pin::new(&mut self.0), cx)
    }
}

impl Sending for Sends {
    fn set_urgent(&mut self, urgent: bool) {
        // A stream that is closed has nothing left to say.
        let _ = self.0.set_priority(i32::from(urgent));
    }

    fn send(&mut self, bytes: Vec<u8>) -> BoxFuture<'_, io::Result<()>> {
        Box::pin(async move { Ok(self.0.write_chunk(bytes.into()).await?) })
    }
}

/// Heartbeats and states go before answers to queries.
fn prioritize(send: &SendStream, kind: StreamKind) {
    let priority = if kind == StreamKind::Control { 1 } else { 0 };
    let _ = send.set_priority(priority);
}
