//! Incoming connections: handshakes run in parallel and bounded; who is turned away is logged and told to the mesh.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use quinn::{Endpoint, Incoming, ServerConfig};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, watch};
use tokio::time::timeout;

use super::ended::Side;
use super::link::{Judge, QuicLink, readable, turn_away};
use super::settings;
use crate::clock::{Mono, SharedClock};
use crate::federation::identity::tls::{self, Slot};
use crate::federation::identity::trust::Usage;
use crate::federation::identity::{IdentityStore, Peers};
use crate::federation::transport::{Accepted, RefusedLink};

/// Links that wait for [`crate::federation::transport::Transport::accept`].
pub(super) const WAITING_LINKS: usize = 64;

/// How many handshakes run at a time.
#[derive(Clone, Copy, Debug)]
pub(super) struct Crowd {
    /// Beyond these, newcomers are refused.
    pub handshakes: usize,
    /// Beyond these, newcomers have to prove their address first (a QUIC Retry, RFC 9000, 8.1.2), which costs us nothing
    /// and a spoofer everything.
    pub unproven: usize,
}

impl Crowd {
    /// A handshake takes two signatures, under a millisecond; the rest of it is waiting for the other side.
    pub(super) const DEFAULT: Self = Self { handshakes: 64, unproven: 32 };
}

/// The same refusal is logged once in this time, however often it happens.
const LOG_AGAIN: Duration = Duration::from_secs(60);

/// Refusals remembered for [`LOG_AGAIN`].
const LOGGED: usize = 256;

/// What incoming handshakes need.
pub(super) struct Acceptor {
    pub identities: IdentityStore,
    pub peers: watch::Receiver<Arc<Peers>>,
    pub clock: SharedClock,
    /// Time a handshake may take.
    pub handshake: Duration,
    /// Settings of each connection but for TLS.
    pub base: ServerConfig,
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
        let Crowd { handshakes, unproven } = acceptor.crowd;
        let free = Arc::new(Semaphore::new(handshakes));
        let log = Arc::new(RefusalLog::default());
        while let Some(incoming) = endpoint.accept().await {
            let Ok(permit) = free.clone().try_acquire_owned() else {
                incoming.refuse();
                continue;
            };
            let running = handshakes - free.available_permits();
            if running > unproven && !incoming.remote_address_validated() && incoming.may_retry() {
                // It fails only for those that may not retry.
                let _ = incoming.retry();
                continue;
            }
            tokio::spawn(acceptor.clone().admit(incoming, permit, accepted.clone(), log.clone()));
        }
    }

    async fn admit(
        self: Arc<Self>,
        incoming: Incoming,
        permit: OwnedSemaphorePermit,
        accepted: mpsc::Sender<Accepted>,
        log: Arc<RefusalLog>,
    ) {
        let remote = readable(incoming.remote_address());
        match self.handshake(incoming, &remote).await {
            Some(Accepted::Refused(refused)) => {
                log.log(&refused, self.clock.mono());
                // A crowd of strangers must not hold up peers: if nobody looks, one more word about them is dropped.
                let _ = accepted.try_send(Accepted::Refused(refused));
            }
            Some(link) => drop(accepted.send(link).await),
            None => {}
        }
        drop(permit);
    }

    /// `None`: nobody was there, or we are closing.
    async fn handshake(&self, incoming: Incoming, remote: &str) -> Option<Accepted> {
        let (slot, own) = (Slot::default(), self.identities.current());
        let tls = tls::server(own.clone(), self.peers.clone(), settings::ALPNS, self.clock.clone(), slot.clone());
        let mut config = self.base.clone();
        config.crypto = Arc::new(settings::crypto(tls));

        let outcome = match incoming.accept_with(Arc::new(config)) {
            Ok(connecting) => match timeout(self.handshake, connecting).await {
                Ok(outcome) => outcome,
                Err(_) => {
                    tracing::debug!(remote, "an incoming handshake was not completed in time");
                    return None;
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
                None => {
                    tracing::debug!(remote, %error, "an incoming handshake failed");
                    None
                }
            },
        }
    }
}

/// Refusals that were logged lately, so that somebody who knocks every second does not fill the log.
#[derive(Default)]
struct RefusalLog(Mutex<BTreeMap<(String, String), Mono>>);

impl RefusalLog {
    fn log(&self, refused: &RefusedLink, now: Mono) {
        if self.is_news(refused, now) {
            let claimed = refused.claimed.as_ref().map_or("-", |name| name.as_str());
            let (reason, message) = (&refused.refusal.reason, &refused.refusal.message);
            tracing::warn!(remote = refused.remote, claimed, reason, message, "refused an incoming connection");
        }
    }

    fn is_news(&self, refused: &RefusedLink, now: Mono) -> bool {
        // Without a name the address tells one from another; its port changes with every attempt.
        let who = match &refused.claimed {
            Some(name) => name.to_string(),
            None => refused.remote.rsplit_once(':').map_or(refused.remote.as_str(), |(ip, _)| ip).to_owned(),
        };
        let mut logged = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        logged.retain(|_, at| now.saturating_since(*at) < LOG_AGAIN);
        if logged.len() >= LOGGED {
            return false;
        }
        match logged.entry((who, refused.refusal.reason.clone())) {
            std::collections::btree_map::Entry::Occupied(_) => false,
            std::collections::btree_map::Entry::Vacant(entry) => {
                entry.insert(now);
                true
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::federation::wire::registry::RefusalReason;

    #[test]
    fn a_refusal_is_logged_once_a_minute() {
        let log = RefusalLog::default();
        let refused = |remote: &str, claimed: Option<&str>, reason: RefusalReason| RefusedLink {
            remote: remote.to_owned(),
            claimed: claimed.map(Into::into),
            refusal: reason.because(""),
        };
        let at = |seconds| Mono::from_start(Duration::from_secs(seconds));
        use RefusalReason::{Suspended, UnknownPeer};
        assert!(log.is_news(&refused("10.0.0.1:1", Some("west"), UnknownPeer), at(0)));
        assert!(!log.is_news(&refused("10.0.0.1:2", Some("west"), UnknownPeer), at(59)));
        assert!(log.is_news(&refused("10.0.0.1:2", Some("west"), Suspended), at(59)), "another reason");
        assert!(log.is_news(&refused("10.0.0.1:2", None, UnknownPeer), at(59)), "somebody else");
        assert!(!log.is_news(&refused("10.0.0.1:3", None, UnknownPeer), at(59)), "the same address");
        assert!(log.is_news(&refused("10.0.0.1:2", Some("west"), UnknownPeer), at(60)));
    }

    #[test]
    fn a_crowd_does_not_fill_the_memory() {
        let log = RefusalLog::default();
        for number in 0..1_000 {
            let (remote, claimed) = (format!("10.0.0.{number}:1"), None);
            log.is_news(&RefusedLink { remote, claimed, refusal: RefusalReason::UnknownPeer.because("") }, Mono::ZERO);
        }
        assert_eq!(log.0.lock().unwrap().len(), LOGGED);
    }
}
