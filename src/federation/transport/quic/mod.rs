//! Links over QUIC (RFC 9000), with quinn and rustls.
//!
//! One UDP socket both listens and dials; into silence, others dial as well ([`SILENT_DIALS`]). Identities are judged in the
//! TLS handshake ([`crate::identity`]); every handshake asks for the newest identity and the newest peers, so that neither a
//! renewal nor a ClusterPeer needs a restart, and leaves no ticket behind by which it could be skipped the next time.
//!
//! | part | what it does |
//! |---|---|
//! | [`socket`] | the UDP socket |
//! | [`settings`] | QUIC's parameters: time-outs, windows, limits |
//! | [`accept`] | incoming handshakes, in parallel and bounded |
//! | [`link`] | one connection as a [`Link`] |
//! | [`ended`] | why a connection ended or did not come about, in our terms |

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Weak};
use std::time::Duration;

use futures::future::{BoxFuture, FutureExt as _, join_all};
use quinn::crypto::rustls::QuicClientConfig;
use quinn::{ClientConfig, ConnectError, Endpoint, TransportConfig};
use tokio::sync::{Mutex, mpsc, watch};
use tokio::time::{Instant, timeout};
use tokio_util::task::AbortOnDropHandle;
use tributary_clock::SharedClock;
use tributary_contract::{PeerName, PeerSpec};

use super::{Accepted, DialError, Link, Transport};
use crate::identity::tls::{self, Slot};
use crate::identity::trust::{Peer, Usage};
use crate::identity::{Identity, IdentityStore, Peers};
use crate::timers::Timers;
use crate::wire::registry::{ALPN_TUNNEL, CloseCode, RefusalReason};
use crate::wire::version::WireVersions;

mod accept;
mod ended;
mod link;
mod settings;
pub(crate) mod socket;

#[cfg(test)]
mod tests;

pub(crate) use accept::{Neighbours, network_of};
pub use socket::BindError;

use accept::Crowd;
use ended::Side;
use link::{Judge, QuicLink};

/// In which manner it listens and dials.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Manner {
    pub(crate) crowd: Crowd,
    pub(crate) versions: WireVersions,
}

impl Manner {
    pub(crate) const DEFAULT: Self = Self { crowd: Crowd::DEFAULT, versions: WireVersions::OURS };
}

/// Dials in a row that a peer leaves unanswered, at all of its addresses, before one goes out from a port of its own. A NAT or
/// a load balancer that leads what comes from ours to where nobody is any more does so as long as it comes, and each dial from
/// there makes that longer. If that one is not answered either, our own port is next again: some networks let nothing else
/// through.
const SILENT_DIALS: u32 = 3;

/// What dials to a peer have come to, if not to an answer to our own port.
enum Dials {
    /// How many, and when the last one was counted.
    Unanswered(u32, Instant),
    /// One from this endpoint was answered, and its link may live.
    Elsewhere(Endpoint, Weak<()>),
}

impl Dials {
    fn lives(&self) -> bool {
        matches!(self, Self::Elsewhere(_, link) if link.strong_count() > 0)
    }
}

/// How long [`Transport::shutdown`] waits for the last packets to be sent.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// The QUIC endpoint of this agent. Dropping it without [`Transport::shutdown`] ends all its links, and peers find out by
/// silence.
pub struct QuicTransport {
    endpoint: Endpoint,
    local_addr: SocketAddr,
    identities: IdentityStore,
    renewals: Mutex<watch::Receiver<Arc<Identity>>>,
    peers: watch::Sender<Arc<Peers>>,
    accepted: Mutex<mpsc::Receiver<Accepted>>,
    settings: Arc<TransportConfig>,
    dials: parking_lot::Mutex<BTreeMap<PeerName, Dials>>,
    versions: WireVersions,
    handshake: Duration,
    clock: SharedClock,
    _acceptor: AbortOnDropHandle<()>,
}

impl QuicTransport {
    /// Listens on `listen` (port 0: any); who connects waits until the first [`Transport::set_peers`]. `[::]` listens on
    /// IPv4 as well. Runs tasks on the current tokio runtime.
    pub fn bind(
        listen: SocketAddr,
        identities: IdentityStore,
        timers: &Timers,
        clock: SharedClock,
    ) -> Result<Self, BindError> {
        Self::bind_as(Manner::DEFAULT, listen, identities, timers, clock)
    }

    pub(crate) fn bind_as(
        Manner { crowd, versions }: Manner,
        listen: SocketAddr,
        identities: IdentityStore,
        timers: &Timers,
        clock: SharedClock,
    ) -> Result<Self, BindError> {
        let settings = Arc::new(settings::transport(timers));
        let peers = watch::Sender::new(Arc::new(Peers::default()));
        let acceptor = accept::Acceptor {
            identities: identities.clone(),
            peers: peers.subscribe(),
            clock: clock.clone(),
            handshake: timers.handshake,
            base: settings::server(&identities, &peers, &clock, settings.clone()),
            alpns: settings::alpns(versions),
            crowd,
        };
        let endpoint = socket::endpoint(listen, Some(acceptor.base.clone()))?;
        let local_addr = endpoint.local_addr().map_err(|source| BindError {
            address: listen,
            step: "learn the address of",
            source,
        })?;
        let (sender, receiver) = mpsc::channel(accept::WAITING_LINKS);
        let acceptor = tokio::spawn(acceptor.run(endpoint.clone(), sender));
        Ok(Self {
            endpoint,
            local_addr,
            renewals: Mutex::new(identities.subscribe()),
            identities,
            peers,
            accepted: Mutex::new(receiver),
            settings,
            dials: parking_lot::Mutex::default(),
            versions,
            handshake: timers.handshake,
            clock,
            _acceptor: AbortOnDropHandle::new(acceptor),
        })
    }

    async fn connect(
        &self,
        spec: &PeerSpec,
        address: SocketAddr,
        alpns: Vec<Vec<u8>>,
    ) -> Result<Arc<dyn Link>, DialError> {
        let own = self.identities.current();
        let slot = Slot::default();
        let tls = tls::client(own.clone(), Peer::from(spec), alpns, self.clock.clone(), slot.clone());
        let crypto = QuicClientConfig::try_from(tls).expect("ring has QUIC's initial cipher suite");
        let mut config = ClientConfig::new(Arc::new(crypto));
        config.transport_config(self.settings.clone());

        let elsewhere = self.elsewhere(&spec.name);
        let connecting =
            elsewhere.as_ref().unwrap_or(&self.endpoint).connect_with(config, address, tls::SERVER_NAME).map_err(
                |error| {
                    if elsewhere.is_some() {
                        self.dials.lock().remove(&spec.name);
                    }
                    self.not_dialled(address, &error)
                },
            )?;
        let outcome = timeout(self.handshake, connecting).await;
        let from = Arc::default();
        self.dialled(&spec.name, elsewhere.map(|endpoint| (endpoint, &from)), outcome.is_ok());
        let side = Side { who: format!("cluster `{}` at {address}", spec.name), own };
        let connection = match (outcome, slot.get()) {
            (_, Some(Err(denied))) => return Err(DialError { refusal: denied.refusal() }),
            (Err(_), _) => return Err(unanswered(address, self.handshake)),
            (Ok(Err(error)), _) => return Err(DialError { refusal: side.not_connected(&error) }),
            (Ok(Ok(connection)), _) => connection,
        };
        let known = match slot.get() {
            Some(Ok(known)) => known,
            // TLS cannot complete without the verifier; if it ever did, nobody would have been verified.
            _ => return Err(DialError::new(RefusalReason::UntrustedCertificate, "the peer showed no certificate")),
        };
        if let Some(denied) = &known.denied {
            link::turn_away(&connection, denied);
            return Err(DialError { refusal: denied.refusal() });
        }
        let (identities, clock) = (self.identities.clone(), self.clock.clone());
        let judge = Judge { identities, clock, usage: Usage::Server };
        let mut link = QuicLink::new(connection, known.identity.clone(), side.own, judge, self.handshake);
        link.from = from;
        Ok(Arc::new(link))
    }

    /// The endpoint to dial a peer from, if not our own; the same one as long as the first link from there lives.
    fn elsewhere(&self, peer: &PeerName) -> Option<Endpoint> {
        match self.dials.lock().get(peer)? {
            dials @ Dials::Elsewhere(endpoint, _) => dials.lives().then(|| endpoint.clone()),
            Dials::Unanswered(..SILENT_DIALS, _) => None,
            Dials::Unanswered(..) => socket::endpoint((self.local_addr.ip(), 0).into(), None)
                .inspect_err(|error| tracing::debug!(%peer, %error, "no other port to dial from"))
                .ok(),
        }
    }

    fn dialled(&self, peer: &PeerName, elsewhere: Option<(Endpoint, &Arc<()>)>, answered: bool) {
        let (now, mut dials) = (Instant::now(), self.dials.lock());
        let after = match (elsewhere, dials.remove(peer)) {
            (_, Some(before)) if before.lives() => Some(before),
            (Some((endpoint, link)), _) => answered.then(|| Dials::Elsewhere(endpoint, Arc::downgrade(link))),
            (None, _) if answered => None,
            // The other addresses of the same dial.
            (None, Some(before @ Dials::Unanswered(_, at))) if now - at < self.handshake / 2 => Some(before),
            (None, Some(Dials::Unanswered(before, _))) => Some(Dials::Unanswered(before.saturating_add(1), now)),
            (None, _) => Some(Dials::Unanswered(1, now)),
        };
        dials.extend(after.map(|after| (peer.clone(), after)));
    }

    fn not_dialled(&self, address: SocketAddr, error: &ConnectError) -> DialError {
        let message = match error {
            ConnectError::InvalidRemoteAddress(_) if address.is_ipv6() && self.local_addr.is_ipv4() => format!(
                "failed to dial {address}: this agent listens on {} and has no IPv6; set federation.listen to \
                 \"[::]:{}\" to have both",
                self.local_addr,
                self.local_addr.port()
            ),
            error => format!("failed to dial {address}: {error}"),
        };
        DialError::new(RefusalReason::Unreachable, message)
    }
}

impl Transport for QuicTransport {
    fn dial<'a>(&'a self, peer: &'a PeerSpec, address: SocketAddr) -> BoxFuture<'a, Result<Arc<dyn Link>, DialError>> {
        self.connect(peer, address, self.versions.alpns()).boxed()
    }

    fn dial_tunnel<'a>(
        &'a self,
        peer: &'a PeerSpec,
        address: SocketAddr,
    ) -> BoxFuture<'a, Result<Arc<dyn Link>, DialError>> {
        self.connect(peer, address, vec![ALPN_TUNNEL.to_vec()]).boxed()
    }

    fn accept(&self) -> BoxFuture<'_, Option<Accepted>> {
        async { self.accepted.lock().await.recv().await }.boxed()
    }

    fn set_peers(&self, peers: &BTreeMap<PeerName, PeerSpec>) {
        let kept = |dials: &Dials| dials.lives() || matches!(dials, Dials::Unanswered(..));
        self.dials.lock().retain(|peer, dials| peers.contains_key(peer) && kept(dials));
        self.peers.send_replace(Arc::new(Peers::new(peers.values())));
    }

    fn trust_changed(&self) -> BoxFuture<'_, ()> {
        async {
            if self.renewals.lock().await.changed().await.is_err() {
                std::future::pending().await
            }
        }
        .boxed()
    }

    fn local_addr(&self) -> SocketAddr {
        self.local_addr
    }

    fn shutdown(&self) -> BoxFuture<'_, ()> {
        async {
            let elsewhere = std::mem::take(&mut *self.dials.lock()).into_values().filter_map(|dials| match dials {
                Dials::Elsewhere(endpoint, _) => Some(endpoint),
                Dials::Unanswered(..) => None,
            });
            let all: Vec<Endpoint> = elsewhere.chain([self.endpoint.clone()]).collect();
            all.iter().for_each(|endpoint| endpoint.close(CloseCode::Done.number().into(), b"the agent stops"));
            // Peers that do not acknowledge find out by silence.
            let _ = timeout(LAST_WORDS, join_all(all.iter().map(Endpoint::wait_idle))).await;
            socket::release(&self.endpoint);
        }
        .boxed()
    }
}

fn unanswered(address: SocketAddr, waited: Duration) -> DialError {
    DialError::new(
        RefusalReason::Unreachable,
        format!(
            "{address} did not answer within {waited:?}: no agent leads there, or UDP packets do not get through (port, \
             firewall, Service)"
        ),
    )
}
