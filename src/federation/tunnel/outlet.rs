//! Root side: a stream of a provider becomes a connection to the lead broker's pod, and only to that.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::ops::Bound;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::sync::{mpsc, watch};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tokio_util::task::{AbortOnDropHandle, TaskTracker};
use tributary_contract::PeerName;
use tributary_contract::tunnel::{Outlet as Target, Outlets, TunnelKey};

use super::flow_control::{Budget, Share};
use super::metrics::TunnelMetrics;
use super::pump::{Pump, Source, Stream};
use super::unanswered::Unanswered;
use super::{open_code, sockets};
use crate::transport::{RecvHalf, SendHalf};
use crate::wire::{frame, limits, proto};

/// How long the lead broker's pod may take to take a connection.
const DIAL: Duration = Duration::from_secs(5);

/// The opener, which process of it, and which of its connections.
type Name = (PeerName, u64, u64);

/// What all outlets of an agent share.
#[derive(Clone)]
pub(super) struct Outlet {
    pub(super) outlets: watch::Receiver<Outlets>,
    pub(super) budget: Budget,
    pub(super) unanswered: watch::Receiver<Unanswered>,
    pub(super) metrics: TunnelMetrics,
    pub(super) request: Duration,
    /// Ends with the agent's term.
    pub(super) shutdown: CancellationToken,
    /// All that is served; who ends the term waits for it.
    pub(super) tasks: TaskTracker,
    /// The connections that are carried.
    pub(super) carried: Arc<Mutex<BTreeMap<Name, Held>>>,
}

/// A connection that is carried, or about to be.
#[derive(Clone)]
pub(super) struct Held {
    /// Where another stream for it goes.
    streams: mpsc::Sender<Stream>,
    /// Ends it.
    revoked: CancellationToken,
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
        let stream = |send, recv| Stream { send, recv, position: asked.position, window: asked.window };
        // Known from now on: the opener may ask again over another link before the lead broker has answered.
        let (sender, streams) = mpsc::channel(1);
        let revoked = self.shutdown.child_token();
        if let Some(known) = self.hold(&name, Held { streams: sender.clone(), revoked: revoked.clone() }) {
            // A connection that ends at this moment does not take it, which ends the stream.
            let _ = known.streams.send(stream(send, recv)).await;
            return;
        }
        match self.connect(&name.0, &asked).await {
            Ok((tcp, target, share)) => {
                // If there is another one meanwhile, that is the one which lives.
                let _ = sender.try_send(stream(send, recv));
                let watch = revoke(self.outlets.clone(), key(&name.0, &asked), target.clone(), revoked.clone());
                let watch = AbortOnDropHandle::new(tokio::spawn(watch));
                let (source, hold, metrics) = (Source::Answerer(streams), target.hold, self.metrics.clone());
                let pump = Pump { source, hold, share, revoked, metrics };
                sockets::carry(pump, tcp, self.unanswered.clone()).await;
                drop(watch);
                self.carried().remove(&name);
            }
            Err((outcome, message)) => {
                self.carried().remove(&name);
                self.metrics.refused();
                tracing::info!(peer = %name.0, burst = asked.burst, message, "a stream is not opened");
                let answer = proto::TunnelAnswer { outcome, position: 0, message, window: None };
                let _ = timeout(self.request, frame::send_only(&mut send, &answer, limits::TUNNEL_FRAME)).await;
            }
        }
    }

    async fn connect(&self, peer: &PeerName, asked: &proto::TunnelOpen) -> Result<(TcpStream, Target, Share), Refusal> {
        let refuse = |outcome, message: String| Err((outcome, limits::cut_reason(&message).to_owned()));
        let target = self.outlets.borrow().get(&key(peer, asked)).cloned();
        let Some(target) = target.filter(|target| target.incarnation == asked.incarnation) else {
            return refuse(open_code::NOT_YOURS, "the burst is not carried to this peer in this incarnation".into());
        };
        if asked.resumes {
            return refuse(
                open_code::GONE,
                "the connection is not known: another leader, or the hold time is over".into(),
            );
        }
        let Some(share) = self.budget.join(peer) else {
            return refuse(
                open_code::TOO_MANY,
                "as many connections as the memory for tunnels allows are carried for this peer".into(),
            );
        };
        match timeout(DIAL, TcpStream::connect(target.lead)).await {
            Ok(Ok(tcp)) => Ok((tcp, target, share)),
            Ok(Err(error)) => refuse(
                open_code::UNREACHABLE,
                format!("failed to connect to the lead broker at {}: {error}", target.lead),
            ),
            Err(_) => refuse(open_code::UNREACHABLE, format!("the lead broker at {} does not answer", target.lead)),
        }
    }

    /// Takes note of a connection, unless it is known: then what is known of it is the answer.
    ///
    /// Connections that another process of the peer opened are ended. Nobody can go on with them, and the lead broker does
    /// not listen to a broker that comes back as long as it is connected already.
    fn hold(&self, name: &Name, new: Held) -> Option<Held> {
        let mut carried = self.carried();
        let key = |process, connection| (name.0.clone(), process, connection);
        let before = carried.range(key(0, 0)..key(name.1, 0));
        let behind = carried.range((Bound::Excluded(key(name.1, u64::MAX)), Bound::Included(key(u64::MAX, u64::MAX))));
        before.chain(behind).for_each(|(_, old)| old.revoked.cancel());
        match carried.entry(name.clone()) {
            Entry::Occupied(known) => Some(known.get().clone()),
            Entry::Vacant(free) => {
                free.insert(new);
                None
            }
        }
    }

    fn carried(&self) -> MutexGuard<'_, BTreeMap<Name, Held>> {
        // Every critical section is a look-up.
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

#[cfg(test)]
mod tests {
    use super::*;

    fn held() -> Held {
        Held { streams: mpsc::channel(1).0, revoked: CancellationToken::new() }
    }

    fn outlet() -> Outlet {
        Outlet {
            outlets: watch::channel(Outlets::new()).1,
            budget: Budget::new(256 << 20),
            unanswered: watch::channel(Unanswered::new()).1,
            metrics: TunnelMetrics::default(),
            request: Duration::from_secs(1),
            shutdown: CancellationToken::new(),
            tasks: TaskTracker::new(),
            carried: Arc::default(),
        }
    }

    #[test]
    fn a_second_stream_for_a_name_goes_to_the_connection_there_is() {
        let (outlet, name) = (outlet(), ("west".into(), 1, 7));
        let first = held();
        assert!(outlet.hold(&name, first.clone()).is_none());
        let known = outlet.hold(&name, held()).unwrap();
        assert!(known.streams.same_channel(&first.streams));
        assert!(outlet.carried()[&name].streams.same_channel(&first.streams), "it can still be resumed");
    }

    #[test]
    fn a_new_process_of_a_peer_ends_what_the_one_before_left_and_nothing_else() {
        let outlet = outlet();
        let names = [("west", 1, 1), ("west", 1, 2), ("west", 2, 1), ("north", 1, 1)];
        let [one, two, new, other] = names.map(|(peer, process, connection)| {
            let held = held();
            assert!(outlet.hold(&(peer.into(), process, connection), held.clone()).is_none());
            held.revoked
        });
        assert!(one.is_cancelled() && two.is_cancelled(), "nobody can go on with them");
        assert!(!new.is_cancelled() && !other.is_cancelled());
    }
}
