//! Incoming connections: handshakes run in parallel and bounded; who is turned away is told to the mesh.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use quinn::{ConnectionError, Endpoint, Incoming, ServerConfig};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, watch};
use tokio::time::timeout;
use tributary_clock::SharedClock;

use super::ended::Side;
use super::link::{Judge, QuicLink, readable, turn_away};
use super::settings;
use crate::identity::tls::{self, Slot};
use crate::identity::trust::Usage;
use crate::identity::{IdentityStore, Peers};
use crate::transport::{Accepted, RefusedLink};

/// Links that wait for [`crate::transport::Transport::accept`].
pub(super) const WAITING_LINKS: usize = 64;

/// How many handshakes run at a time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Crowd {
    /// Beyond these, newcomers are refused.
    pub handshakes: usize,
    /// Beyond these of one address that is proven, newcomers from there are refused: who begins handshakes and leaves them
    /// holds up himself, and not those who come from elsewhere.
    pub of_one: usize,
    /// Beyond these, newcomers have to prove their address first (a QUIC Retry, RFC 9000, 8.1.2), which costs us nothing
    /// and a spoofer everything.
    pub unproven: usize,
    /// The same for one address, so that a forged sender does not take the places of the real one.
    pub unproven_of_one: usize,
}

impl Crowd {
    /// A handshake takes two signatures, under a millisecond; the rest of it is waiting for the other side.
    pub(crate) const DEFAULT: Self = Self { handshakes: 64, of_one: 16, unproven: 32, unproven_of_one: 4 };
}

/// What incoming handshakes need.
pub(super) struct Acceptor {
    pub identities: IdentityStore,
    pub peers: watch::Receiver<Arc<Peers>>,
    pub clock: SharedClock,
    /// Time a handshake may take.
    pub handshake: Duration,
    /// Settings of each connection but for TLS.
    pub base: ServerConfig,
    /// Application protocols.
    pub alpns: Vec<Vec<u8>>,
    /// How many at a time.
    pub crowd: Crowd,
}

impl Acceptor {
    /// Takes connections until the endpoint is closed. Begins when the peers are known: before, everybody would be told
    /// to be unknown.
    pub(super) async fn run(mut self, endpoint: Endpoint, accepted: mpsc::Sender<Accepted>) {
        if self.peers.changed().await.is_err() {
            return;
        }
        let acceptor = Arc::new(self);
        let Crowd { handshakes, of_one, unproven, unproven_of_one } = acceptor.crowd;
        let free = Arc::new(Semaphore::new(handshakes));
        let (proven_ones, unproven_ones) = (Neighbours::default(), Neighbours::default());
        while let Some(incoming) = endpoint.accept().await {
            let Ok(permit) = free.clone().try_acquire_owned() else {
                incoming.refuse();
                continue;
            };
            let running = handshakes - free.available_permits();
            let (from, proven) = (incoming.remote_address().ip(), incoming.remote_address_validated());
            let place = match proven {
                true => proven_ones.admit(from, of_one),
                false if running > unproven => None,
                false => unproven_ones.admit(from, unproven_of_one),
            };
            match place {
                Some(place) => {
                    tokio::spawn(acceptor.clone().admit(incoming, (permit, place), accepted.clone()));
                }
                None if proven => incoming.refuse(),
                // It fails for those only that have proven it.
                None => drop(incoming.retry()),
            }
        }
    }

    async fn admit(
        self: Arc<Self>,
        incoming: Incoming,
        place: (OwnedSemaphorePermit, Neighbour),
        accepted: mpsc::Sender<Accepted>,
    ) {
        let remote = readable(incoming.remote_address());
        match self.handshake(incoming, &remote).await {
            Some(link @ Accepted::Link(_)) => drop(accepted.send(link).await),
            // A crowd of strangers must not hold up peers: if nobody looks, one more word about them is dropped.
            Some(stranger) => drop(accepted.try_send(stranger)),
            None => {}
        }
        drop(place);
    }

    /// `None`: nobody was there, or we are closing.
    async fn handshake(&self, incoming: Incoming, remote: &str) -> Option<Accepted> {
        let broken = |detail| Some(Accepted::Broken { remote: remote.to_owned(), detail });
        let (slot, own) = (Slot::default(), self.identities.current());
        let tls = tls::server(own.clone(), self.peers.clone(), self.alpns.clone(), self.clock.clone(), slot.clone());
        let mut config = self.base.clone();
        config.crypto = Arc::new(settings::crypto(tls));

        let outcome = match incoming.accept_with(Arc::new(config)) {
            Ok(connecting) => match timeout(self.handshake, connecting).await {
                Ok(outcome) => outcome,
                Err(_) => {
                    return broken(format!("a handshake was begun and not completed within {:?}", self.handshake));
                }
            },
            Err(error) => Err(error),
        };
        let refused =
            |claimed, refusal| Some(Accepted::Refused(RefusedLink { remote: remote.to_owned(), claimed, refusal }));
        match (outcome, slot.get()) {
            (_, Some(Err(denied))) => refused(denied.claimed.clone(), denied.refusal()),
            (Ok(connection), Some(Ok(known))) => match &known.denied {
                Some(denied) => {
                    turn_away(&connection, denied);
                    refused(denied.claimed.clone(), denied.refusal())
                }
                None => {
                    let (identities, clock) = (self.identities.clone(), self.clock.clone());
                    let judge = Judge { identities, clock, usage: Usage::Client };
                    let link = QuicLink::new(connection, known.identity.clone(), own, judge, self.handshake);
                    Some(Accepted::Link(Arc::new(link)))
                }
            },
            // TLS cannot complete without the verifier; if it ever did, nobody would have been verified.
            (Ok(connection), None) => {
                connection.close(0_u32.into(), b"");
                None
            }
            // Below certificates: no common protocol, no certificate at all, or the other side does not like ours.
            (Err(error), _) => match (Side { who: format!("the agent at {remote}"), own }).refused(&error) {
                Some(refusal) => refused(None, refusal),
                None if matches!(error, ConnectionError::TransportError(_)) => {
                    broken(format!("a handshake failed: {error}"))
                }
                // Who tries several addresses gives the others up.
                None => {
                    tracing::debug!(remote, %error, "an incoming handshake failed");
                    None
                }
            },
        }
    }
}

/// What runs for strangers, by where they come from.
#[derive(Clone, Default)]
pub(crate) struct Neighbours(Arc<Mutex<BTreeMap<IpAddr, usize>>>);

/// One of them; dropping it gives its place back.
pub(crate) struct Neighbour(Neighbours, IpAddr);

impl Neighbours {
    /// A place for another one, unless there are `limit` already.
    pub(crate) fn admit(&self, from: IpAddr, limit: usize) -> Option<Neighbour> {
        let from = network_of(from);
        let mut running = self.0.lock();
        let of_one = running.entry(from).or_default();
        if *of_one >= limit {
            return None;
        }
        *of_one += 1;
        Some(Neighbour(self.clone(), from))
    }
}

impl Drop for Neighbour {
    fn drop(&mut self) {
        let mut running = self.0.0.lock();
        if let Some(of_one) = running.get_mut(&self.1) {
            *of_one -= 1;
            if *of_one == 0 {
                running.remove(&self.1);
            }
        }
    }
}

/// Whoever has one address of IPv6 has the whole /64 (RFC 6177, 2).
pub(crate) fn network_of(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() & !u128::from(u64::MAX)).into(),
        address => address,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_address_has_its_share_of_handshakes_and_gives_it_back() {
        let neighbours = Neighbours::default();
        let at = |text: &str| text.parse::<IpAddr>().unwrap();
        let held: Vec<_> = (0..2).filter_map(|_| neighbours.admit(at("192.0.2.1"), 2)).collect();
        assert_eq!(held.len(), 2);
        assert!(neighbours.admit(at("::ffff:192.0.2.1"), 2).is_none(), "the same, as a dual-stack socket has it");
        assert!(neighbours.admit(at("192.0.2.2"), 2).is_some());
        let v6: Vec<_> = (1..9).filter_map(|host| neighbours.admit(at(&format!("2001:db8::{host}")), 2)).collect();
        assert_eq!(v6.len(), 2, "one network");
        drop((held, v6));
        assert!(neighbours.0.lock().is_empty());
    }
}
