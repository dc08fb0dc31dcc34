//! What the connections of one peer may hold: how many there are, and a fair share of bytes for each.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crate::contract::PeerName;
use crate::federation::wire::limits::{
    TUNNEL_BYTES_PER_PEER, TUNNEL_CONNECTIONS_PER_PEER, TUNNEL_FLOOR, TUNNEL_WINDOW,
};

/// The shares of every peer.
#[derive(Debug, Default)]
pub struct PeerShares(Mutex<BTreeMap<PeerName, Shares>>);

impl PeerShares {
    /// Those of one.
    pub fn of(&self, peer: &PeerName) -> Shares {
        // Every critical section is one look-up.
        self.0.lock().unwrap_or_else(PoisonError::into_inner).entry(peer.clone()).or_default().clone()
    }
}

/// All connections of one peer. Cloning shares it.
#[derive(Clone, Debug, Default)]
pub struct Shares(Arc<Counts>);

#[derive(Debug, Default)]
struct Counts {
    connections: AtomicUsize,
    held: AtomicUsize,
    queued: AtomicUsize,
}

impl Shares {
    /// A share for one more connection; `None`: there are too many.
    pub fn join(&self) -> Option<Share> {
        let more = |count| (count < TUNNEL_CONNECTIONS_PER_PEER).then_some(count + 1);
        self.0.connections.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).ok()?;
        Some(Share { peer: self.clone(), held: 0, queued: 0 })
    }

    /// Connections now.
    pub fn connections(&self) -> usize {
        self.0.connections.load(Ordering::Relaxed)
    }
}

/// The part of one connection; given back when dropped.
#[derive(Debug)]
pub struct Share {
    peer: Shares,
    held: usize,
    queued: usize,
}

impl Share {
    /// Tells how much the connection holds of each direction.
    pub fn set(&mut self, held: usize, queued: usize) {
        let Counts { held: all_held, queued: all_queued, .. } = &*self.peer.0;
        for (all, before, now) in [(all_held, &mut self.held, held), (all_queued, &mut self.queued, queued)] {
            all.fetch_add(now, Ordering::Relaxed);
            all.fetch_sub(*before, Ordering::Relaxed);
            *before = now;
        }
    }

    /// How much of our side's bytes may be under way: the same for all, less if those before took more than is left now.
    pub fn window(&self) -> usize {
        let Counts { connections, held, .. } = &*self.peer.0;
        if held.load(Ordering::Relaxed) >= TUNNEL_BYTES_PER_PEER {
            return TUNNEL_FLOOR;
        }
        let fair = TUNNEL_BYTES_PER_PEER / connections.load(Ordering::Relaxed).max(1);
        fair.clamp(TUNNEL_FLOOR, TUNNEL_WINDOW)
    }

    /// Whether the peer keeps to its side of that: what it has sent for us to deliver, all connections together. Twice as
    /// much is allowed, since its count and ours are never of the same moment.
    pub fn is_overrun(&self) -> bool {
        let limit = 2 * (TUNNEL_BYTES_PER_PEER + TUNNEL_CONNECTIONS_PER_PEER * TUNNEL_FLOOR);
        self.queued > TUNNEL_FLOOR && self.peer.0.queued.load(Ordering::Relaxed) > limit
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.set(0, 0);
        self.peer.0.connections.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_equal_bounded_and_given_back() {
        let shares = Shares::default();
        let mut one = shares.join().unwrap();
        assert_eq!(one.window(), TUNNEL_WINDOW);
        let many: Vec<Share> = (1..TUNNEL_CONNECTIONS_PER_PEER).map(|_| shares.join().unwrap()).collect();
        assert!(shares.join().is_none());
        assert_eq!((one.window(), many[7].window()), (TUNNEL_FLOOR, TUNNEL_FLOOR));
        drop(many);
        let two = shares.join().unwrap();
        one.set(TUNNEL_BYTES_PER_PEER, 0);
        assert_eq!(two.window(), TUNNEL_FLOOR, "all of it is taken");
        drop(one);
        assert_eq!((shares.connections(), two.window()), (1, TUNNEL_WINDOW));
    }

    #[test]
    fn a_peer_that_sends_beyond_its_share_is_found_out() {
        let shares = Shares::default();
        let mut all: Vec<Share> = (0..200).map(|_| shares.join().unwrap()).collect();
        let small = shares.join().unwrap();
        all.iter_mut().for_each(|share| share.set(0, TUNNEL_WINDOW));
        assert!(all[0].is_overrun() && !small.is_overrun(), "who holds little is let be");
    }
}
