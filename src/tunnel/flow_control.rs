//! What the carried connections of an agent may take of its memory: one budget for all peers, and a fair share for each.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::limits::{TUNNEL_CONNECTION, TUNNEL_CONNECTIONS_PER_PEER, TUNNEL_FLOOR, TUNNEL_LINK, TUNNEL_WINDOW};
use parking_lot::Mutex;

/// The memory for all that is carried. Cloning shares it.
///
/// | part | for |
/// |---|---|
/// | 3/8 | connections, [`TUNNEL_CONNECTION`] each: itself, and [`TUNNEL_FLOOR`] in each direction |
/// | 3/16 | bytes that were read here and not acknowledged |
/// | 3/16 | bytes that peers may have under way to here |
/// | 1/4 | what is in flight on the links to peers, both ways |
#[derive(Clone, Debug)]
pub struct Budget(Arc<Parts>);

#[derive(Debug)]
struct Parts {
    bytes: usize,
    peers: Mutex<BTreeMap<Arc<str>, Arc<AtomicUsize>>>,
    /// Peers that have connections.
    crowd: AtomicUsize,
    connections: AtomicUsize,
    held: AtomicUsize,
    promised: AtomicUsize,
}

impl Budget {
    /// A budget of so many bytes.
    pub fn new(bytes: usize) -> Self {
        let parts = Parts {
            bytes,
            peers: Mutex::default(),
            crowd: AtomicUsize::default(),
            connections: AtomicUsize::default(),
            held: AtomicUsize::default(),
            promised: AtomicUsize::default(),
        };
        Self(Arc::new(parts))
    }

    /// A share for one more connection of a peer; `None`: it has as many as are left for others, or as it may have at most.
    pub fn join(&self, peer: &str) -> Option<Share> {
        let mut peers = self.0.peers.lock();
        let all = self.0.connections.load(Ordering::Relaxed);
        let left = (self.0.bytes / 8 * 3 / TUNNEL_CONNECTION).saturating_sub(all);
        let ours = peers.get(peer).map_or(0, |ours| ours.load(Ordering::Relaxed));
        if ours >= left.min(TUNNEL_CONNECTIONS_PER_PEER) {
            return None;
        }
        let peer: Arc<str> = peer.into();
        let siblings = peers.entry(peer.clone()).or_default().clone();
        siblings.fetch_add(1, Ordering::Relaxed);
        self.0.connections.fetch_add(1, Ordering::Relaxed);
        self.0.crowd.store(peers.len(), Ordering::Relaxed);
        Some(Share { budget: self.clone(), peer, siblings, held: 0, promised: 0 })
    }

    /// Connections now.
    pub fn connections(&self) -> usize {
        self.0.connections.load(Ordering::Relaxed)
    }

    /// Bytes there are.
    pub fn bytes(&self) -> usize {
        self.0.bytes
    }

    /// Bytes of it that are given out, without those of links.
    pub fn given(&self) -> usize {
        let Parts { held, promised, .. } = &*self.0;
        self.connections() * TUNNEL_CONNECTION + held.load(Ordering::Relaxed) + promised.load(Ordering::Relaxed)
    }

    /// What may be in flight on each of so many links, one way.
    pub fn link(&self, links: usize) -> usize {
        (self.0.bytes / 8 / links.max(1)).clamp(TUNNEL_FLOOR, TUNNEL_LINK)
    }

    fn direction(&self) -> usize {
        self.0.bytes / 16 * 3
    }
}

/// The part of one connection; given back when dropped.
#[derive(Debug)]
pub struct Share {
    budget: Budget,
    peer: Arc<str>,
    /// Connections of the same peer.
    siblings: Arc<AtomicUsize>,
    held: usize,
    promised: usize,
}

impl Share {
    /// Tells how much the connection holds of what was read here, and how much its peer may have under way to here.
    pub fn set(&mut self, [held, promised]: [usize; 2]) {
        let Parts { held: all_held, promised: all_promised, .. } = &*self.budget.0;
        for (all, before, now) in [(all_held, &mut self.held, held), (all_promised, &mut self.promised, promised)] {
            all.fetch_add(now, Ordering::Relaxed);
            all.fetch_sub(*before, Ordering::Relaxed);
            *before = now;
        }
    }

    /// How much of our side's bytes may be under way.
    pub fn window(&self) -> usize {
        self.fair(&self.budget.0.held, self.held)
    }

    /// How much the peer may have under way to here.
    pub fn grant(&self) -> usize {
        self.fair(&self.budget.0.promised, self.promised)
    }

    /// The same for all peers, with one part left for whoever comes next, and the same for all connections of a peer; less if
    /// others took more before, but never less than [`TUNNEL_FLOOR`]. In powers of two: it does not change all the time.
    fn fair(&self, all: &AtomicUsize, own: usize) -> usize {
        let Parts { crowd, .. } = &*self.budget.0;
        let pool = self.budget.direction();
        let fair = pool / (crowd.load(Ordering::Relaxed) + 1) / self.siblings.load(Ordering::Relaxed).max(1);
        let left = pool.saturating_sub(all.load(Ordering::Relaxed).saturating_sub(own));
        let bytes = fair.min(left).clamp(TUNNEL_FLOOR, TUNNEL_WINDOW);
        1 << bytes.ilog2()
    }

    /// Whether more is under way to here than there is room for, this connection's not being the least.
    pub(crate) fn is_overrun(&self) -> bool {
        self.promised > TUNNEL_FLOOR && self.budget.0.promised.load(Ordering::Relaxed) > self.budget.direction()
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.set([0, 0]);
        let mut peers = self.budget.0.peers.lock();
        if self.siblings.fetch_sub(1, Ordering::Relaxed) == 1 {
            peers.remove(&self.peer);
        }
        self.budget.0.connections.fetch_sub(1, Ordering::Relaxed);
        self.budget.0.crowd.store(peers.len(), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BYTES: usize = 256 << 20;

    fn joined(budget: &Budget, peer: &str, most: usize) -> Vec<Share> {
        (0..most).map_while(|_| budget.join(peer)).collect()
    }

    #[test]
    fn no_peer_takes_the_connections_of_all() {
        let budget = Budget::new(BYTES);
        let greedy = joined(&budget, "a", 10_000);
        assert_eq!(greedy.len(), 1_170, "half of all: enough for 1,100 brokers of a burst without a gateway");
        let next = joined(&budget, "b", 10_000);
        assert_eq!(next.len(), 585);
        assert!(budget.join("c").is_some(), "and so on");
        drop(greedy);
        assert!(budget.join("b").is_some());
        drop(next);
        assert_eq!((budget.connections(), budget.given()), (0, 0));
    }

    #[test]
    fn a_peer_that_holds_much_leaves_room_for_others() {
        let budget = Budget::new(BYTES);
        let mut all: Vec<Share> = Vec::new();
        for peer in 0..32 {
            let mut of_peer = joined(&budget, &format!("peer {peer}"), 40);
            // Each takes what it gets, as long as it gets it.
            for share in &mut of_peer {
                share.set([share.window(), share.grant()]);
            }
            all.extend(of_peer);
        }
        let given = budget.given() - all.len() * TUNNEL_CONNECTION;
        let floors = 2 * all.len() * TUNNEL_FLOOR;
        assert!(given <= BYTES / 8 * 3 + floors, "{given}");
        let late = budget.join("late").unwrap();
        assert!(late.window() >= TUNNEL_FLOOR && late.grant() >= TUNNEL_FLOOR, "it goes on");
        drop(all);
        assert_eq!((late.window(), late.grant()), (TUNNEL_WINDOW, TUNNEL_WINDOW));
    }

    #[test]
    fn connections_with_their_floors_and_links_fit_the_budget() {
        let budget = Budget::new(BYTES);
        let most = BYTES / 8 * 3 / TUNNEL_CONNECTION;
        assert_eq!(most, 2_340);
        for links in [1, 2, 16, 100] {
            assert!(2 * links * budget.link(links) <= BYTES / 4, "{links} links");
        }
    }
}
