//! Provider side: a TCP port per burst, and a stream to the root for every connection to it.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use futures::future::FutureExt as _;
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, watch};
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tributary_contract::PeerName;
use tributary_contract::tunnel::{Inlets, Listening, TunnelKey};
use tributary_tunnel::flow_control::Budget;
use tributary_tunnel::pump::{Open, Opening, Pump, Source, Stream};
use tributary_tunnel::sockets::{self, reset};
use tributary_tunnel::unanswered::Unanswered;

use super::links::{Control, TunnelLinks};
use super::metrics::{STRANGER, TOO_MANY, TunnelMetrics};
use super::{open_code, relay};
use crate::transport::{Link, RecvHalf, SendHalf};
use crate::wire::registry::StreamKind;
use crate::wire::{frame, limits, proto};

/// How long somebody may wait whose address is not known: a pod speaks before the API server shows its address.
const INTRODUCTION: Duration = Duration::from_secs(5);

/// Most who may wait so at all bursts together: as many pods as start within that time. Each has a file of this process.
pub(super) const STRANGERS: usize = 1_024;

/// First wait before a stream is asked for again.
const AGAIN: Duration = Duration::from_millis(200);

/// How long after a failure a port is tried again.
const LISTEN_AGAIN: Duration = Duration::from_secs(5);

/// What all inlets of an agent share.
#[derive(Clone)]
pub(super) struct Inlet {
    pub(super) address: IpAddr,
    pub(super) ports: RangeInclusive<u16>,
    pub(super) inlets: watch::Receiver<Inlets>,
    pub(super) listening: watch::Sender<Listening>,
    pub(super) links: watch::Receiver<TunnelLinks>,
    pub(super) controls: watch::Receiver<BTreeMap<PeerName, Control>>,
    pub(super) budget: Budget,
    /// Places for who may wait until its address is known.
    pub(super) strangers: Arc<Semaphore>,
    pub(super) unanswered: watch::Receiver<Unanswered>,
    pub(super) metrics: TunnelMetrics,
    /// Time an opening may take.
    pub(super) request: Duration,
    /// Random per process.
    pub(super) process: u64,
    pub(super) next: Arc<AtomicU64>,
    /// All connections; who ends the term waits for them.
    pub(super) tasks: TaskTracker,
}

impl Inlet {
    /// Listens for one burst until it is not carried any more.
    pub(super) async fn listen(self, key: TunnelKey, incarnation: String, revoked: CancellationToken) {
        let accept = async {
            loop {
                let bound = self.bind().await;
                let told = bound
                    .as_ref()
                    .map(|(_, port)| *port)
                    .map_err(|error| format!("failed to listen on {} for {}'s burst: {error}", self.address, key.0));
                if revoked.is_cancelled() {
                    return;
                }
                self.listening.send_modify(|listening| drop(listening.insert(key.clone(), told)));
                match bound {
                    Ok((listener, port)) => {
                        tracing::debug!(peer = %key.0, burst = %key.1, port, "listens for brokers of a burst");
                        self.accept(&key, &incarnation, listener, &revoked).await;
                    }
                    Err(error) => tracing::warn!(peer = %key.0, burst = %key.1, %error, "no port for a burst"),
                }
                sleep(LISTEN_AGAIN).await;
            }
        };
        tokio::select! {
            () = accept => {}
            () = revoked.cancelled() => {}
        }
    }

    async fn bind(&self) -> io::Result<(TcpListener, u16)> {
        let mut failed = io::Error::other("the range of ports is empty");
        for port in self.ports.clone() {
            match TcpListener::bind((self.address, port)).await {
                Ok(listener) => {
                    let port = listener.local_addr()?.port();
                    return Ok((listener, port));
                }
                Err(error) => failed = error,
            }
        }
        Err(failed)
    }

    async fn accept(&self, key: &TunnelKey, incarnation: &str, listener: TcpListener, revoked: &CancellationToken) {
        let warned = Arc::new(AtomicBool::new(false));
        loop {
            let (tcp, from) = match listener.accept().await {
                Ok(accepted) => accepted,
                Err(error) => {
                    // Out of file descriptors, most likely: others end some day.
                    tracing::debug!(%error, "failed to accept a connection");
                    sleep(AGAIN).await;
                    continue;
                }
            };
            // Strangers must not take what the burst's own connections need.
            let introduction = match self.knows(key, from) {
                true => None,
                false => self.strangers.clone().try_acquire_owned().ok(),
            };
            let (this, key, incarnation) = (self.clone(), key.clone(), incarnation.to_owned());
            let (revoked, warned) = (revoked.clone(), warned.clone());
            self.tasks.spawn(async move {
                let known = this.knows(&key, from)
                    || (introduction.is_some()
                        && revoked.run_until_cancelled(this.comes_to_know(&key, from)).await == Some(true));
                drop(introduction);
                let share = if known { this.budget.join(key.0.as_str()) } else { None };
                let Some(share) = share else {
                    this.metrics.refused(if known { TOO_MANY } else { STRANGER });
                    if !known && !warned.swap(true, Ordering::Relaxed) {
                        tracing::warn!(
                            %from, peer = %key.0, burst = %key.1,
                            "a connection that is not of the burst's pods was refused; further ones are only counted. If \
                             it was one, the network hides the addresses of pods"
                        );
                    }
                    return reset(tcp);
                };
                let Some(hold) = this.inlets.borrow().get(&key).map(|inlet| inlet.hold) else { return };
                if revoked.run_until_cancelled(relay::is_asked_for(&tcp)).await == Some(true) {
                    let open = this.open_relayed(key, incarnation);
                    return relay::of_burst(tcp, open, share, &revoked, &this.metrics).await;
                }
                let _carried = this.metrics.carries();
                let source = Source::Opener(this.opener(key, incarnation));
                let pump = Pump { source, hold, share, revoked, counts: Arc::new(this.metrics) };
                sockets::carry(pump, tcp, this.unanswered).await;
            });
        }
    }

    /// Whether an address is one of the burst's pods, as far as is known now.
    fn knows(&self, key: &TunnelKey, from: SocketAddr) -> bool {
        self.inlets.borrow().get(key).is_some_and(|inlet| inlet.sources.contains(&from.ip().to_canonical()))
    }

    /// Waits until it is.
    async fn comes_to_know(&self, key: &TunnelKey, from: SocketAddr) -> bool {
        let mut inlets = self.inlets.clone();
        let from = from.ip().to_canonical();
        let known = |inlets: &Inlets| inlets.get(key).is_none_or(|inlet| inlet.sources.contains(&from));
        let known = timeout(INTRODUCTION, inlets.wait_for(known)).await;
        known.is_ok_and(|known| known.is_ok_and(|inlets| inlets.contains_key(key)))
    }

    /// A stream that the root relays to the end in its lead's pod, once there is a way to it.
    async fn open_relayed(&self, key: TunnelKey, incarnation: String) -> Result<Stream, String> {
        let (peer, mut links) = (key.0.clone(), self.links.clone());
        let _ = links.wait_for(|links| links.contains_key(&peer)).await;
        if !self.controls.borrow().get(&peer).is_some_and(|control| control.relays) {
            return Err(relay::NO_ENDS.to_owned());
        }
        let asked = proto::TunnelOpen { relay: true, ..self.asked(key, incarnation) };
        open(links, peer, asked, self.request, self.metrics.clone()).await
    }

    /// What the root is asked for a connection of a burst.
    fn asked(&self, (_, burst): TunnelKey, incarnation: String) -> proto::TunnelOpen {
        let connection = self.next.fetch_add(1, Ordering::Relaxed);
        proto::TunnelOpen { burst: burst.into(), incarnation, process: self.process, connection, ..Default::default() }
    }

    fn opener(&self, key: TunnelKey, incarnation: String) -> Open {
        let (links, request, metrics) = (self.links.clone(), self.request, self.metrics.clone());
        let (peer, mut asked) = (key.0.clone(), self.asked(key, incarnation));
        Box::new(move |position, window| -> Opening {
            (asked.position, asked.window) = (position, Some(window));
            let (links, peer, asked_now, metrics) = (links.clone(), peer.clone(), asked.clone(), metrics.clone());
            // From the second time on, an answer was had.
            asked.resumes = true;
            open(links, peer, asked_now, request, metrics).boxed()
        })
    }
}

/// Asks for a stream as often as there is somebody to ask, until there is an answer.
async fn open(
    mut links: watch::Receiver<TunnelLinks>,
    peer: PeerName,
    asked: proto::TunnelOpen,
    request: Duration,
    metrics: TunnelMetrics,
) -> Result<Stream, String> {
    let mut tried = None;
    loop {
        let link = {
            let found = links.wait_for(|links| links.contains_key(&peer)).await;
            let Ok(found) = found else { return Err("the tunnel ends".to_owned()) };
            found.get(&peer).cloned()
        };
        let Some((number, link)) = link else { continue };
        if tried == Some(number) {
            // The same as before: its end may not have been noticed yet.
            tokio::select! {
                () = sleep(AGAIN) => {}
                _ = links.changed() => continue,
            }
        }
        tried = Some(number);
        match timeout(request, ask(&*link, &asked)).await {
            Ok(Ok((answer, send, recv))) => match answer.outcome {
                open_code::OPEN => {
                    if asked.resumes {
                        metrics.resumed();
                    }
                    let (position, window) = (answer.position, answer.window);
                    return Ok(Stream { send, recv, position, window, answer: None });
                }
                open_code::NO_ENDS => return Err(relay::NO_ENDS.to_owned()),
                open_code::NOT_YOURS | open_code::GONE | open_code::UNREACHABLE | open_code::TOO_MANY => {
                    return Err(answer.message);
                }
                _ => tracing::debug!(%peer, message = answer.message, "a stream is not opened now"),
            },
            Ok(Err(error)) => tracing::debug!(%peer, %error, "failed to open a stream"),
            Err(_) => tracing::debug!(%peer, "a stream was not opened in time"),
        }
    }
}

type Answered = (proto::TunnelAnswer, SendHalf, RecvHalf);

async fn ask(link: &dyn Link, asked: &proto::TunnelOpen) -> io::Result<Answered> {
    let (mut send, mut recv) = link.open(StreamKind::Tunnel).await?;
    frame::send_first(&mut send, asked, limits::TUNNEL_FRAME).await?;
    let answer = frame::receive_only(&mut recv, limits::TUNNEL_FRAME).await?;
    Ok((answer, send, recv))
}

#[cfg(test)]
mod tests {
    use futures::future::BoxFuture;
    use tokio::io::AsyncReadExt as _;
    use tokio::net::TcpStream;
    use tokio_util::task::AbortOnDropHandle;

    use super::*;
    use crate::mesh::ConnId;
    use crate::transport::{CloseReason, PeerIdentity};
    use crate::wire::registry::CloseCode;

    /// A way on which nothing may be asked.
    struct Silent;

    impl Link for Silent {
        fn identity(&self) -> &PeerIdentity {
            unreachable!()
        }
        fn remote(&self) -> String {
            unreachable!()
        }
        fn rtt(&self) -> Option<Duration> {
            unreachable!()
        }
        fn open(&self, _kind: StreamKind) -> BoxFuture<'_, io::Result<(SendHalf, RecvHalf)>> {
            panic!("an agent that does not relay would take it for a connection of its own")
        }
        fn accept(&self) -> BoxFuture<'_, Option<(StreamKind, SendHalf, RecvHalf)>> {
            unreachable!()
        }
        fn close(&self, _code: CloseCode, _reason: &str) {}
        fn closed(&self) -> BoxFuture<'_, CloseReason> {
            unreachable!()
        }
    }

    /// Of an agent that carries these bursts, with room for one stranger.
    fn inlet(inlets: watch::Receiver<Inlets>) -> Inlet {
        Inlet {
            address: IpAddr::from([127, 0, 0, 1]),
            ports: 0..=0,
            inlets,
            listening: watch::Sender::default(),
            links: watch::Sender::default().subscribe(),
            controls: watch::Sender::default().subscribe(),
            budget: Budget::new(256 << 20),
            strangers: Arc::new(Semaphore::new(1)),
            unanswered: watch::Sender::default().subscribe(),
            metrics: TunnelMetrics::default(),
            request: Duration::from_secs(1),
            process: 1,
            next: Arc::default(),
            tasks: TaskTracker::new(),
        }
    }

    /// The danger: whoever may reach the ports of many bursts takes all files that the agent may have open.
    #[tokio::test]
    async fn strangers_at_all_bursts_share_their_places() {
        let of_nobody = tributary_contract::tunnel::Inlet {
            incarnation: "job-1".to_owned(),
            sources: [].into(),
            hold: Duration::from_secs(1),
        };
        let keys = ["lake", "pond"].map(|burst| (PeerName::from("east"), burst.into()));
        let inlets: Inlets = keys.iter().map(|key| (key.clone(), of_nobody.clone())).collect();
        let inlets = watch::Sender::new(inlets);
        let inlet = inlet(inlets.subscribe());
        let _listens = keys.clone().map(|key| {
            let listens = inlet.clone().listen(key, "job-1".to_owned(), CancellationToken::new());
            AbortOnDropHandle::new(tokio::spawn(listens))
        });
        let mut listening = inlet.listening.subscribe();
        let all = listening.wait_for(|all| all.len() == 2).await.unwrap().clone();
        let [lake, pond] = keys.map(|key| (inlet.address, *all[&key].as_ref().unwrap()));
        let _waits = TcpStream::connect(lake).await.unwrap();
        while inlet.strangers.available_permits() > 0 {
            sleep(Duration::from_millis(5)).await;
        }
        let mut refused = TcpStream::connect(pond).await.unwrap();
        let ended = timeout(INTRODUCTION / 2, refused.read(&mut [0])).await.expect("it does not wait");
        assert!(matches!(ended, Ok(0) | Err(_)), "{ended:?}");
        assert_eq!((inlet.metrics.refusals(STRANGER), inlet.metrics.refusals(TOO_MANY)), (1, 0));
    }

    #[tokio::test]
    async fn an_older_peer_is_not_asked_to_relay() {
        let peer = PeerName::from("east");
        let control = Control {
            connection: ConnId(1),
            dialled: true,
            capable: true,
            relays: false,
            remote: "192.0.2.1:7946".to_owned(),
        };
        let link: Arc<dyn Link> = Arc::new(Silent);
        let inlet = Inlet {
            links: watch::Sender::new(TunnelLinks::from([(peer.clone(), (1, link))])).subscribe(),
            controls: watch::Sender::new(BTreeMap::from([(peer.clone(), control)])).subscribe(),
            ..inlet(watch::Sender::default().subscribe())
        };
        let opened = inlet.open_relayed((peer, "lake".into()), "job-1".to_owned()).await;
        assert_eq!(opened.err().as_deref(), Some(relay::NO_ENDS));
    }
}
