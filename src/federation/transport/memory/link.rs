//! The two ends of a link.

use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use futures::future::{BoxFuture, FutureExt as _};
use jiff::Timestamp;
use tokio::sync::{Mutex, mpsc, watch};
use tokio::time::sleep;
use tributary_contract::PeerName;

use super::{MemoryNetwork, pipe};
use crate::transport::{CloseReason, Link, PeerIdentity, RecvHalf, SendHalf};
use crate::wire::limits;
use crate::wire::registry::{CloseCode, StreamKind};

type Stream = (StreamKind, SendHalf, RecvHalf);

/// One end of a link.
pub(super) struct End {
    network: MemoryNetwork,
    name: PeerName,
    peer: PeerIdentity,
    expires: Timestamp,
    remote: SocketAddr,
    for_tunnels: bool,
    other: OnceLock<Weak<End>>,
    incoming: Mutex<mpsc::Receiver<Stream>>,
    arrive: mpsc::Sender<Stream>,
    closed: watch::Sender<Option<CloseReason>>,
}

/// Both ends of a new link, each with its identity and address.
pub(super) fn pair(
    network: &MemoryNetwork,
    near: (PeerIdentity, SocketAddr),
    far: (PeerIdentity, SocketAddr),
    for_tunnels: bool,
) -> (Arc<End>, Arc<End>) {
    let expires = near.0.not_after.min(far.0.not_after);
    let end = |ours: &(PeerIdentity, SocketAddr), theirs: &(PeerIdentity, SocketAddr)| {
        let (arrive, incoming) = mpsc::channel(limits::STREAMS_PER_PEER as usize);
        Arc::new(End {
            network: network.clone(),
            name: ours.0.name.clone(),
            peer: theirs.0.clone(),
            expires,
            remote: theirs.1,
            for_tunnels,
            other: OnceLock::new(),
            incoming: Mutex::new(incoming),
            arrive,
            closed: watch::Sender::default(),
        })
    };
    let (near, far) = (end(&near, &far), end(&far, &near));
    let _ = near.other.set(Arc::downgrade(&far));
    let _ = far.other.set(Arc::downgrade(&near));
    (near, far)
}

impl End {
    fn other(&self) -> Option<Arc<End>> {
        self.other.get()?.upgrade()
    }

    /// The first reason stays.
    fn end(&self, reason: CloseReason) -> bool {
        self.closed.send_if_modified(|closed| {
            let first = closed.is_none();
            if first {
                *closed = Some(reason);
            }
            first
        })
    }

    fn delay(&self) -> Duration {
        self.network.weather().delay
    }
}

impl Link for End {
    fn identity(&self) -> &PeerIdentity {
        &self.peer
    }

    fn expires(&self) -> Timestamp {
        self.expires
    }

    fn is_for_tunnels(&self) -> bool {
        self.for_tunnels
    }

    fn remote(&self) -> String {
        self.remote.to_string()
    }

    fn rtt(&self) -> Option<Duration> {
        Some(2 * self.delay())
    }

    fn open(&self, kind: StreamKind) -> BoxFuture<'_, io::Result<(SendHalf, RecvHalf)>> {
        async move {
            let gone = || io::Error::new(io::ErrorKind::NotConnected, "the link is closed");
            let other = self.other().filter(|_| self.closed.borrow().is_none()).ok_or_else(gone)?;
            let ends = || [self.closed.subscribe(), other.closed.subscribe()];
            let (our_send, their_recv) = pipe::pipe(&self.network, &self.name, &other.name, ends());
            let (their_send, our_recv) = pipe::pipe(&self.network, &other.name, &self.name, ends());
            let (network, name, delay) = (self.network.clone(), self.name.clone(), self.delay());
            tokio::spawn(async move {
                sleep(delay).await;
                network.open(&name, &other.name).await;
                // A link that was closed meanwhile takes no streams.
                let _ = other.arrive.send((kind, their_send, their_recv)).await;
            });
            Ok((our_send, our_recv))
        }
        .boxed()
    }

    fn accept(&self) -> BoxFuture<'_, Option<(StreamKind, SendHalf, RecvHalf)>> {
        async move {
            let mut incoming = self.incoming.lock().await;
            tokio::select! {
                biased;
                _ = self.closed() => None,
                stream = incoming.recv() => stream,
            }
        }
        .boxed()
    }

    fn close(&self, code: CloseCode, reason: &str) {
        if !self.end(CloseReason::Local(code)) {
            return;
        }
        let Some(other) = self.other() else { return };
        let (network, name, delay) = (self.network.clone(), self.name.clone(), self.delay());
        let reason = limits::cut_reason(reason).to_owned();
        tokio::spawn(async move {
            sleep(delay).await;
            // Who closes does not say it again and again: behind a cut it is not heard.
            let told = !network.open(&name, &other.name).await;
            let lost = || CloseReason::Lost("the connection was reset".into());
            other.end(if told { CloseReason::Peer { code, reason } } else { lost() });
        });
    }

    fn closed(&self) -> BoxFuture<'_, CloseReason> {
        let mut closed = self.closed.subscribe();
        async move {
            let reason = closed.wait_for(Option::is_some).await.map(|reason| reason.clone());
            reason.ok().flatten().unwrap_or(CloseReason::Local(CloseCode::Done))
        }
        .boxed()
    }
}
