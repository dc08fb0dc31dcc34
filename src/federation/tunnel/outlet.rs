//! Root side: a stream of a provider becomes a connection to the lead broker's pod, and only to that.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::net::SocketAddr;
use std::ops::Bound;
use std::sync::Arc;
use std::time::Duration;

use bytes::BytesMut;
use parking_lot::Mutex;
use tokio::net::TcpStream;
use tokio::sync::{mpsc, watch};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tokio_util::task::{AbortOnDropHandle, TaskTracker};
use tributary_contract::PeerName;
use tributary_contract::tunnel::{AllEnds, Ends, Outlet as Target, Outlets, TunnelKey};
use tributary_tunnel::flow_control::{Budget, Share};
use tributary_tunnel::pump::{Answer, Pump, Source, Stream};
use tributary_tunnel::sockets;
use tributary_tunnel::sockets::LEAD_DIAL;
use tributary_tunnel::unanswered::Unanswered;

use super::metrics::{NO_WAY, TOO_MANY, TunnelMetrics};
use super::{open_code, relay};
use crate::transport::{RecvHalf, SendHalf};
use crate::wire::{frame, limits, proto};

/// The opener, which process of it, and which of its connections.
type Name = (PeerName, u64, u64);

/// What all outlets of an agent share.
#[derive(Clone)]
pub(super) struct Outlet {
    pub(super) outlets: watch::Receiver<Outlets>,
    pub(super) ends: watch::Sender<AllEnds>,
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
    pub(super) async fn serve(&self, peer: PeerName, send: SendHalf, mut recv: RecvHalf) {
        let asked = timeout(self.request, frame::receive_only(&mut recv, limits::TUNNEL_FRAME)).await;
        let Ok(Ok(asked)) = asked else { return tracing::debug!(%peer, "a stream was opened and said nothing") };
        let asked: proto::TunnelOpen = asked;
        if asked.relay {
            return self.relay(peer, asked, send, recv).await;
        }
        let name = (peer, asked.process, asked.connection);
        let answer: Answer = Box::new(answer);
        let stream =
            |send, recv| Stream { send, recv, position: asked.position, window: asked.window, answer: Some(answer) };
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
                let _carried = self.metrics.carries();
                let _open = Open::count(&self.ends, key(&name.0, &asked), |ends| &mut ends.in_agents);
                let (source, hold, counts) = (Source::Answerer(streams), target.hold, Arc::new(self.metrics.clone()));
                let pump = Pump { source, hold, share, revoked, counts };
                sockets::carry(pump, tcp, self.unanswered.clone()).await;
                drop(watch);
                self.carried.lock().remove(&name);
            }
            Err(refusal) => {
                self.carried.lock().remove(&name);
                self.refuse(&name.0, &asked, send, refusal).await;
            }
        }
    }

    /// Relays to the end in the lead broker's pod, as long as the asking peer holds the slot.
    async fn relay(&self, peer: PeerName, asked: proto::TunnelOpen, mut send: SendHalf, recv: RecvHalf) {
        let (tcp, target, share) = match self.connect_to_end(&peer, &asked).await {
            Ok(connected) => connected,
            Err(refusal) => return self.refuse(&peer, &asked, send, refusal).await,
        };
        let answer = proto::TunnelAnswer { outcome: open_code::OPEN, ..proto::TunnelAnswer::default() };
        let revoked = self.shutdown.child_token();
        let watch = revoke(self.outlets.clone(), key(&peer, &asked), target, revoked.clone());
        let _watch = AbortOnDropHandle::new(tokio::spawn(watch));
        let told = timeout(self.request, frame::send_first(&mut send, &answer, limits::TUNNEL_FRAME)).await;
        if matches!(told, Ok(Ok(()))) {
            let _open = Open::count(&self.ends, key(&peer, &asked), |ends| &mut ends.in_pods);
            relay::splice(tcp, send, recv, share, &revoked, &self.metrics).await;
        }
    }

    async fn refuse(
        &self,
        peer: &PeerName,
        asked: &proto::TunnelOpen,
        mut send: SendHalf,
        (outcome, message): Refusal,
    ) {
        self.metrics.refused(if outcome == open_code::TOO_MANY { TOO_MANY } else { NO_WAY });
        // A peer may ask as often as it likes.
        tracing::debug!(%peer, burst = asked.burst, message, "a stream is not opened");
        let answer = proto::TunnelAnswer { outcome, position: 0, message, window: None };
        let _ = timeout(self.request, frame::send_only(&mut send, &answer, limits::TUNNEL_FRAME)).await;
    }

    /// Where a connection leads, and its share of the memory, if the peer may have one.
    fn admit(&self, peer: &PeerName, asked: &proto::TunnelOpen) -> Result<(Target, Share), Refusal> {
        let target = self.outlets.borrow().get(&key(peer, asked)).cloned();
        let Some(target) = target.filter(|target| target.incarnation == asked.incarnation) else {
            return refuse(open_code::NOT_YOURS, "the burst is not carried to this peer in this incarnation");
        };
        if asked.resumes {
            return refuse(open_code::GONE, "the connection is not known: another leader, or the hold time is over");
        }
        let Some(share) = self.budget.join(peer.as_str()) else {
            return refuse(
                open_code::TOO_MANY,
                "as many connections as the memory for tunnels allows are carried for this peer",
            );
        };
        Ok((target, share))
    }

    async fn connect(&self, peer: &PeerName, asked: &proto::TunnelOpen) -> Result<(TcpStream, Target, Share), Refusal> {
        let (target, share) = self.admit(peer, asked)?;
        let failed = format!("failed to connect to the lead broker at {}", target.lead);
        Ok((dial(target.lead, open_code::UNREACHABLE, &failed).await?, target, share))
    }

    /// The same for the end in the lead broker's pod.
    async fn connect_to_end(
        &self,
        peer: &PeerName,
        asked: &proto::TunnelOpen,
    ) -> Result<(TcpStream, Target, Share), Refusal> {
        let (target, share) = self.admit(peer, asked)?;
        let Some(end) = target.end else { return refuse(open_code::NO_ENDS, relay::NO_ENDS) };
        Ok((dial(end, open_code::NO_ENDS, relay::NO_ENDS).await?, target, share))
    }

    /// Takes note of a connection, unless it is known: then what is known of it is the answer.
    ///
    /// Connections that another process of the peer opened are ended. Nobody can go on with them, and the lead broker does
    /// not listen to a broker that comes back as long as it is connected already.
    fn hold(&self, name: &Name, new: Held) -> Option<Held> {
        let mut carried = self.carried.lock();
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
}

/// Counts a connection as long as it is open.
struct Open {
    all: watch::Sender<AllEnds>,
    key: TunnelKey,
    which: fn(&mut Ends) -> &mut usize,
}

impl Open {
    fn count(all: &watch::Sender<AllEnds>, key: TunnelKey, which: fn(&mut Ends) -> &mut usize) -> Self {
        all.send_modify(|all| *which(all.entry(key.clone()).or_default()) += 1);
        Self { all: all.clone(), key, which }
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.all.send_modify(|all| {
            if let Entry::Occupied(mut ends) = all.entry(self.key.clone()) {
                *(self.which)(ends.get_mut()) -= 1;
                if *ends.get() == Ends::default() {
                    ends.remove();
                }
            }
        });
    }
}

/// The bytes that tell the opener where to go on, and how much may be under way.
fn answer(position: u64, window: u32) -> BytesMut {
    let mut bytes = BytesMut::new();
    let (outcome, window) = (open_code::OPEN, Some(window));
    let answer = proto::TunnelAnswer { outcome, position, message: String::new(), window };
    frame::put(&answer, limits::TUNNEL_FRAME, &mut bytes).expect("an answer without words is short");
    bytes
}

async fn dial(address: SocketAddr, outcome: u32, failed: &str) -> Result<TcpStream, Refusal> {
    match timeout(LEAD_DIAL, TcpStream::connect(address)).await {
        Ok(Ok(tcp)) => Ok(tcp),
        Ok(Err(error)) => refuse(outcome, &format!("{failed}: {error}")),
        Err(_) => refuse(outcome, &format!("{failed}: no answer within {LEAD_DIAL:?}")),
    }
}

fn refuse<T>(outcome: u32, message: &str) -> Result<T, Refusal> {
    Err((outcome, limits::cut_reason(message).to_owned()))
}

fn key(peer: &PeerName, asked: &proto::TunnelOpen) -> TunnelKey {
    (peer.clone(), asked.burst.as_str().into())
}

/// Ends a connection when its burst is not carried any more, or its lead is another.
async fn revoke(mut outlets: watch::Receiver<Outlets>, key: TunnelKey, target: Target, revoked: CancellationToken) {
    let stands = |outlets: &Outlets| {
        let now = outlets.get(&key);
        now.is_some_and(|now| now.incarnation == target.incarnation && now.lead == target.lead && now.end == target.end)
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
            ends: watch::Sender::default(),
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
        assert!(outlet.carried.lock()[&name].streams.same_channel(&first.streams), "it can still be resumed");
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
