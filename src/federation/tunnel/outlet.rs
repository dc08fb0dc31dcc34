//! Root side: a stream of a provider becomes a connection to the lead broker's pod, and only to that.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::sync::{mpsc, watch};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use super::metrics::TunnelMetrics;
use super::pump::{Pump, Source, Stream};
use super::share::{PeerShares, Share};
use super::{sockets, words};
use crate::contract::PeerName;
use crate::contract::tunnel::{Outlet as Target, Outlets, TunnelKey};
use crate::federation::transport::{RecvHalf, SendHalf};
use crate::federation::wire::{frame, limits, proto};

/// How long the lead broker's pod may take to take a connection.
const DIAL: Duration = Duration::from_secs(5);

/// The opener, which process of it, and which of its connections.
type Name = (PeerName, u64, u64);

/// What all outlets of an agent share.
#[derive(Clone)]
pub(super) struct Outlet {
    pub(super) outlets: watch::Receiver<Outlets>,
    pub(super) shares: Arc<PeerShares>,
    pub(super) metrics: TunnelMetrics,
    pub(super) request: Duration,
    /// Ends with the agent's term.
    pub(super) shutdown: CancellationToken,
    /// The connections that are carried: where another stream for one goes.
    pub(super) carried: Arc<Mutex<BTreeMap<Name, mpsc::Sender<Stream>>>>,
}

/// Why no stream is opened: outcome, and a sentence.
type Refusal = (u32, String);

impl Outlet {
    /// Serves a stream that a peer opened, for as long as its connection lives.
    pub(super) async fn serve(&self, peer: PeerName, mut send: SendHalf, mut recv: RecvHalf) {
        let asked = timeout(self.request, frame::receive_only(&mut recv, limits::TUNNEL_FRAME)).await;
        let Ok(Ok(asked)) = asked else { return tracing::debug!(%peer, "a stream was opened and said nothing") };
        let asked: proto::TunnelOpen = asked;
        let name = (peer, asked.process, asked.connection);
        let known = self.carried().get(&name).cloned();
        let stream = |send, recv| Stream { send, recv, position: asked.position };
        if let Some(known) = known {
            // A connection that ends at this moment does not take it, which ends the stream.
            let _ = known.send(stream(send, recv)).await;
            return;
        }
        // Known from now on: the opener may ask again over another link before the lead broker has answered.
        let (sender, streams) = mpsc::channel(1);
        self.carried().insert(name.clone(), sender.clone());
        match self.connect(&name.0, &asked).await {
            Ok((tcp, target, share)) => {
                // If there is another one meanwhile, that is the one which lives.
                let _ = sender.try_send(stream(send, recv));
                let revoked = self.shutdown.child_token();
                let watch = revoke(self.outlets.clone(), key(&name.0, &asked), target.clone(), revoked.clone());
                let watch = AbortOnDropHandle::new(tokio::spawn(watch));
                let (source, hold, metrics) = (Source::Answerer(streams), target.hold, self.metrics.clone());
                sockets::carry(Pump { source, hold, share, revoked, metrics }, tcp).await;
                drop(watch);
                self.carried().remove(&name);
            }
            Err((outcome, message)) => {
                self.carried().remove(&name);
                self.metrics.refused();
                tracing::info!(peer = %name.0, burst = asked.burst, message, "a stream is not opened");
                let answer = proto::TunnelAnswer { outcome, position: 0, message };
                let _ = timeout(self.request, frame::send_only(&mut send, &answer, limits::TUNNEL_FRAME)).await;
            }
        }
    }

    async fn connect(&self, peer: &PeerName, asked: &proto::TunnelOpen) -> Result<(TcpStream, Target, Share), Refusal> {
        let refuse = |outcome, message: String| Err((outcome, limits::cut_reason(&message).to_owned()));
        let target = self.outlets.borrow().get(&key(peer, asked)).cloned();
        let Some(target) = target.filter(|target| target.incarnation == asked.incarnation) else {
            return refuse(words::NOT_YOURS, "the burst is not carried to this peer in this incarnation".into());
        };
        if asked.resumes {
            return refuse(words::GONE, "the connection is not known: another leader, or the hold time is over".into());
        }
        let Some(share) = self.shares.of(peer).join() else {
            return refuse(words::TOO_MANY, "too many connections are carried for this peer".into());
        };
        match timeout(DIAL, TcpStream::connect(target.lead)).await {
            Ok(Ok(tcp)) => Ok((tcp, target, share)),
            Ok(Err(error)) => {
                refuse(words::UNREACHABLE, format!("failed to connect to the lead broker at {}: {error}", target.lead))
            }
            Err(_) => refuse(words::UNREACHABLE, format!("the lead broker at {} does not answer", target.lead)),
        }
    }

    fn carried(&self) -> MutexGuard<'_, BTreeMap<Name, mpsc::Sender<Stream>>> {
        // Every critical section is one look-up.
        self.carried.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn key(peer: &PeerName, asked: &proto::TunnelOpen) -> TunnelKey {
    (peer.clone(), asked.burst.as_str().into())
}

/// Ends a connection when its burst is not carried any more, or its lead is another.
async fn revoke(mut outlets: watch::Receiver<Outlets>, key: TunnelKey, target: Target, revoked: CancellationToken) {
    let stands = |outlets: &Outlets| {
        let now = outlets.get(&key);
        now.is_some_and(|now| now.incarnation == target.incarnation && now.lead == target.lead)
    };
    let _ = outlets.wait_for(|outlets| !stands(outlets)).await;
    revoked.cancel();
}
