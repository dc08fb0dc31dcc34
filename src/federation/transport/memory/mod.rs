//! Links within one process: a network that can be slow and can be cut, for tests and simulations.
//!
//! Identities are claimed, not proven; all else is as over QUIC: bytes travel in streams, a cut loses nothing but time, a
//! refused client learns it after its dial succeeded, and closing tells the other side its code. One difference: no link
//! ends because of a cut alone, however long it lasts; sessions decide that long before QUIC would.

mod link;
mod pipe;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::SocketAddr;
use std::num::NonZero;
use std::sync::{Arc, Weak};
use std::time::Duration;

use futures::future::{BoxFuture, FutureExt as _};
use jiff::Timestamp;
use parking_lot::Mutex;
use tokio::sync::{mpsc, watch};
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use tributary_clock::{Rng, SharedClock};
use tributary_contract::{PeerName, PeerSpec, Refusal};

use self::link::End;
use super::{Accepted, DialError, Link, PeerIdentity, RefusedLink, Resolve, Transport};
use crate::timers::Timers;
use crate::wire::registry::{CloseCode, RefusalReason};

/// When a packet that nobody acknowledges is sent again, at the earliest, and how often at most.
const LOST_AFTER: Duration = Duration::from_millis(100);
const SENT_AGAIN: u32 = 5;

/// Links that wait to be accepted.
const BACKLOG: usize = 64;

/// The network all [`MemoryTransport`]s of a test are on. Cloning shares it.
#[derive(Clone)]
pub struct MemoryNetwork(Arc<Network>);

struct Network {
    clock: SharedClock,
    weather: watch::Sender<Weather>,
    listeners: Mutex<BTreeMap<SocketAddr, Weak<Listener>>>,
    traffic: Mutex<BTreeMap<(PeerName, PeerName), u64>>,
}

/// How the network is just now.
#[derive(Clone, Debug, Default)]
struct Weather {
    /// One way.
    delay: Duration,
    /// How many packets of a thousand are lost, and how much longer others take at most.
    loss: (u64, Duration),
    cuts: BTreeSet<(PeerName, PeerName)>,
}

impl Weather {
    fn is_cut(&self, from: &PeerName, to: &PeerName) -> bool {
        self.cuts.contains(&(from.clone(), to.clone()))
    }

    /// How long a piece is under way, as QUIC carries it: one that is lost is sent again, each time after twice as long. The
    /// pieces of a stream stay in their order; those of two streams change places.
    fn under_way(&self, rng: &mut dyn Rng) -> Duration {
        let (lost, jitter) = self.loss;
        let mut time = self.delay;
        if let Some(jitter) = NonZero::new(u64::try_from(jitter.as_millis()).unwrap_or(u64::MAX)) {
            time += Duration::from_millis(rng.next_u64() % jitter);
        }
        let mut again = LOST_AFTER.max(3 * self.delay);
        for _ in 0..SENT_AGAIN {
            if lost == 0 || rng.next_u64() % 1000 >= lost {
                break;
            }
            time += again;
            again *= 2;
        }
        time
    }
}

impl MemoryNetwork {
    /// A network without delay. The clock decides on the validity of certificates.
    pub fn new(clock: SharedClock) -> Self {
        Self(Arc::new(Network {
            clock,
            weather: watch::Sender::default(),
            listeners: Mutex::default(),
            traffic: Mutex::default(),
        }))
    }

    /// A cluster joins, with a certificate that ends at `not_after`. A second one at the same address takes it over.
    pub fn join(&self, name: &str, address: SocketAddr, not_after: Timestamp) -> MemoryTransport {
        let (sender, incoming) = mpsc::channel(BACKLOG);
        let listener = Arc::new(Listener {
            name: name.into(),
            not_after: Mutex::new(not_after),
            peers: Mutex::default(),
            links: Mutex::default(),
            incoming: sender,
        });
        self.0.listeners.lock().insert(address, Arc::downgrade(&listener));
        let incoming = tokio::sync::Mutex::new(incoming);
        MemoryTransport { network: self.clone(), address, listener, incoming, ended: CancellationToken::new() }
    }

    /// Every byte takes this long, one way.
    pub fn set_delay(&self, delay: Duration) {
        self.0.weather.send_modify(|weather| weather.delay = delay);
    }

    /// So many packets of a thousand are lost, and others take longer by up to `jitter`. One that comes twice counts once.
    pub fn set_loss(&self, of_thousand: u64, jitter: Duration) {
        self.0.weather.send_modify(|weather| weather.loss = (of_thousand, jitter));
    }

    /// Nothing gets through between two clusters, in both directions; nobody is told.
    #[cfg(test)]
    pub(crate) fn cut(&self, a: &str, b: &str) {
        self.cut_one_way(a, b);
        self.cut_one_way(b, a);
    }

    /// Nothing gets through from one cluster to another; nobody is told. What goes the other way arrives.
    pub fn cut_one_way(&self, from: &str, to: &str) {
        self.0.weather.send_modify(|weather| {
            weather.cuts.insert((from.into(), to.into()));
        });
    }

    /// Ends all cuts between two clusters: what was held up arrives.
    pub fn heal(&self, a: &str, b: &str) {
        self.0.weather.send_modify(|weather| {
            weather.cuts.retain(|(from, to)| ![(a, b), (b, a)].contains(&(from.as_str(), to.as_str())));
        });
    }

    /// Bytes of streams that went from one cluster to another so far.
    #[cfg(test)]
    pub(crate) fn traffic(&self, from: &str, to: &str) -> u64 {
        self.0.traffic.lock().get(&(from.into(), to.into())).copied().unwrap_or_default()
    }

    fn weather(&self) -> Weather {
        self.0.weather.borrow().clone()
    }

    fn count(&self, from: &PeerName, to: &PeerName, bytes: usize) {
        *self.0.traffic.lock().entry((from.clone(), to.clone())).or_default() += bytes as u64;
    }

    /// Waits until one reaches the other; returns whether it had to wait.
    async fn open(&self, from: &PeerName, to: &PeerName) -> bool {
        let mut weather = self.0.weather.subscribe();
        let cut = weather.borrow().is_cut(from, to);
        // The sender lives as long as the network, and so as long as `self`.
        let _ = weather.wait_for(|weather| !weather.is_cut(from, to)).await;
        cut
    }

    /// Waits until both reach each other.
    async fn open_both(&self, a: &PeerName, b: &PeerName) {
        while self.open(a, b).await || self.open(b, a).await {}
    }
}

impl fmt::Debug for MemoryNetwork {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("MemoryNetwork").field(&self.weather()).finish()
    }
}

/// Endpoints are written as addresses.
impl Resolve for MemoryNetwork {
    fn resolve<'a>(&'a self, endpoint: &'a str, _fresh: bool) -> BoxFuture<'a, Result<Vec<SocketAddr>, DialError>> {
        let address = endpoint.parse().map(|address| vec![address]);
        let address = address.map_err(|_| {
            DialError::new(RefusalReason::Unreachable, format!("failed to resolve {endpoint}: it is not ip:port"))
        });
        async move { address }.boxed()
    }
}

struct Listener {
    name: PeerName,
    not_after: Mutex<Timestamp>,
    peers: Mutex<BTreeSet<PeerName>>,
    links: Mutex<Vec<Weak<End>>>,
    incoming: mpsc::Sender<Accepted>,
}

impl Listener {
    fn not_after(&self) -> Timestamp {
        *self.not_after.lock()
    }

    fn identity(&self) -> PeerIdentity {
        PeerIdentity {
            name: self.name.clone(),
            trust_domain: "memory".into(),
            not_after: self.not_after(),
            fingerprint: format!("memory:{}", self.name),
        }
    }

    fn keep(&self, end: &Arc<End>) {
        let mut links = self.links.lock();
        links.retain(|link| link.strong_count() > 0);
        links.push(Arc::downgrade(end));
    }

    /// What this side thinks of a peer that dials it.
    fn judge(&self, dialler: &PeerIdentity, now: Timestamp) -> Result<(), Refusal> {
        let name = &dialler.name;
        if dialler.not_after <= now {
            return Err(RefusalReason::CertificateExpired.because(format!("the certificate of {name} has ended")));
        }
        if !self.peers.lock().contains(name) {
            return Err(RefusalReason::UnknownPeer.because(format!("{} has no ClusterPeer {name}", self.name)));
        }
        Ok(())
    }
}

/// One cluster on a [`MemoryNetwork`].
pub struct MemoryTransport {
    network: MemoryNetwork,
    address: SocketAddr,
    listener: Arc<Listener>,
    incoming: tokio::sync::Mutex<mpsc::Receiver<Accepted>>,
    ended: CancellationToken,
}

impl MemoryTransport {
    /// The certificate was renewed: links made from now on end with it.
    #[cfg(test)]
    pub(crate) fn renew(&self, not_after: Timestamp) {
        *self.listener.not_after.lock() = not_after;
    }

    async fn connect(
        &self,
        peer: &PeerSpec,
        address: SocketAddr,
        for_tunnels: bool,
    ) -> Result<Arc<dyn Link>, DialError> {
        let unreachable = |text: String| DialError::new(RefusalReason::Unreachable, text);
        let (network, ours) = (&self.network, &self.listener);
        // As over QUIC: the first packet is sent again and again, until the handshake has taken too long.
        let open = network.open_both(&ours.name, &peer.name);
        if timeout(Timers::DEFAULT.handshake, open).await.is_err() {
            return Err(unreachable(format!("no answer of {address}")));
        }
        let round_trip = 2 * network.weather().delay;
        sleep(round_trip).await;
        let listener = network.0.listeners.lock().get(&address).and_then(Weak::upgrade);
        let theirs = listener.ok_or_else(|| unreachable(format!("nobody listens at {address}")))?;
        let now = network.0.clock.wall();
        if theirs.name != peer.name {
            let text = format!("{address} is {}, not {}", theirs.name, peer.name);
            return Err(DialError::new(RefusalReason::WrongIdentity, text));
        }
        if theirs.not_after() <= now {
            let text = format!("the certificate of {} has ended", theirs.name);
            return Err(DialError::new(RefusalReason::CertificateExpired, text));
        }
        let ends = ((ours.identity(), self.address), (theirs.identity(), address));
        let (near, far) = link::pair(network, ends.0, ends.1, for_tunnels);
        let accepted = match theirs.judge(&ours.identity(), now) {
            Ok(()) => {
                theirs.keep(&far);
                Accepted::Link(far)
            }
            Err(refusal) => {
                // As with TLS 1.3, the client is told after its own handshake is done.
                let code = CloseCode::ALL
                    .iter()
                    .find(|code| code.refusal().map(RefusalReason::as_str) == Some(&refusal.reason));
                far.close(code.copied().unwrap_or(CloseCode::Protocol), &refusal.message);
                let (remote, claimed) = (self.address.to_string(), Some(ours.name.clone()));
                Accepted::Refused(RefusedLink { remote, claimed, refusal })
            }
        };
        let taken = theirs.incoming.send(accepted).await;
        taken.map_err(|_| unreachable(format!("nobody listens at {address}")))?;
        ours.keep(&near);
        Ok(near)
    }
}

impl Transport for MemoryTransport {
    fn dial<'a>(&'a self, peer: &'a PeerSpec, address: SocketAddr) -> BoxFuture<'a, Result<Arc<dyn Link>, DialError>> {
        self.connect(peer, address, false).boxed()
    }

    fn dial_tunnel<'a>(
        &'a self,
        peer: &'a PeerSpec,
        address: SocketAddr,
    ) -> BoxFuture<'a, Result<Arc<dyn Link>, DialError>> {
        self.connect(peer, address, true).boxed()
    }

    fn accept(&self) -> BoxFuture<'_, Option<Accepted>> {
        async move {
            let mut incoming = self.incoming.lock().await;
            tokio::select! {
                biased;
                () = self.ended.cancelled() => None,
                accepted = incoming.recv() => accepted,
            }
        }
        .boxed()
    }

    fn set_peers(&self, peers: &BTreeMap<PeerName, PeerSpec>) {
        *self.listener.peers.lock() = peers.keys().cloned().collect();
    }

    fn local_addr(&self) -> SocketAddr {
        self.address
    }

    fn shutdown(&self) -> BoxFuture<'_, ()> {
        self.ended.cancel();
        let ours = Arc::downgrade(&self.listener);
        self.network.0.listeners.lock().retain(|_, listener| !listener.ptr_eq(&ours));
        for link in std::mem::take(&mut *self.listener.links.lock()) {
            if let Some(link) = link.upgrade() {
                link.close(CloseCode::Done, "");
            }
        }
        sleep(self.network.weather().delay).boxed()
    }
}

#[cfg(test)]
mod tests {
    use tributary_clock::SeededRng;

    use super::*;
    use crate::testing::PausedClock;
    use crate::transport::conformance::{Clusters, conforms};

    #[tokio::test(start_paused = true)]
    async fn it_conforms() {
        let network = MemoryNetwork::new(PausedClock::shared());
        network.set_delay(Duration::from_millis(25));
        let join = |name: &str, port: u16| -> Arc<dyn Transport> {
            Arc::new(network.join(name, ([10, 0, 0, 1], port).into(), Timestamp::MAX))
        };
        conforms(Clusters { east: join("east", 1), west: join("west", 2), north: join("north", 3) }).await;
    }

    #[test]
    fn what_is_lost_comes_later_and_comes() {
        let weather = |of_thousand, jitter| Weather {
            delay: Duration::from_millis(25),
            loss: (of_thousand, Duration::from_millis(jitter)),
            ..Weather::default()
        };
        let mut rng = SeededRng::new(7);
        let mut times = |of_thousand, jitter| -> Vec<u128> {
            (0..400).map(|_| weather(of_thousand, jitter).under_way(&mut rng).as_millis()).collect()
        };
        assert!(times(0, 0).iter().all(|time| *time == 25));
        let late = times(0, 50);
        assert!(late.iter().all(|time| (25..75).contains(time)) && late.iter().any(|time| *time > 60));
        let lost = times(250, 0);
        assert!((60..140).contains(&lost.iter().filter(|time| **time >= 125).count()), "{lost:?}");
        assert!(lost.iter().all(|time| *time <= 25 + 31 * 100));
    }
}
