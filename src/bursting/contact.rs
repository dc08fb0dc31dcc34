//! Since when each peer is out of contact, on the monotonic clock.
//!
//! Memory of one leader's scope. A new scope knows nothing of contacts before it, so its start counts as the last one.
//! A root that waits for a peer's lease then waits for the full period anew, which is long enough whatever happened
//! before. A provider, whose leases must not be prolonged by that, looks besides at what is on record
//! (`provider::lease`).

use std::collections::BTreeMap;
use std::time::Duration;

use tributary_clock::Mono;
use tributary_contract::PeerName;

/// When each peer was last in contact.
#[derive(Clone, Debug)]
pub(crate) struct Contacts {
    start: Mono,
    peers: BTreeMap<PeerName, Contact>,
}

#[derive(Clone, Copy, Debug)]
enum Contact {
    Present,
    Away(Mono),
}

impl Contacts {
    /// Nobody was heard of yet in the scope that begins at `start`.
    pub(crate) fn begin(start: Mono) -> Self {
        Self { start, peers: BTreeMap::new() }
    }

    /// Takes in who is in contact at `now`. A peer that is not named any more is away.
    pub(crate) fn observe<'a>(&mut self, present: impl IntoIterator<Item = &'a PeerName>, now: Mono) {
        let present: std::collections::BTreeSet<_> = present.into_iter().collect();
        for (name, contact) in &mut self.peers {
            if matches!(contact, Contact::Present) && !present.contains(name) {
                *contact = Contact::Away(now);
            }
        }
        for name in present {
            self.peers.insert(name.clone(), Contact::Present);
        }
    }

    /// As if all of it were longer ago, but nothing longer than `oldest`. Once all of `peers` were in contact, the beginning
    /// does not matter any more.
    #[cfg(test)]
    pub(crate) fn age(&mut self, by: Duration, oldest: Mono, peers: &[PeerName]) {
        let older = |at: Mono| (at - by).max(oldest);
        self.start = if peers.iter().all(|peer| self.has_heard(peer)) { oldest } else { older(self.start) };
        for contact in self.peers.values_mut() {
            if let Contact::Away(since) = contact {
                *since = older(*since);
            }
        }
    }

    /// Whether a peer was in contact in this scope.
    pub(crate) fn has_heard(&self, peer: &PeerName) -> bool {
        self.peers.contains_key(peer)
    }

    /// How long a peer is out of contact; `None` while it is in contact.
    pub(crate) fn away(&self, peer: &PeerName, now: Mono) -> Option<Duration> {
        match self.peers.get(peer) {
            Some(Contact::Present) => None,
            Some(Contact::Away(since)) => Some(now.saturating_since(*since)),
            None => Some(now.saturating_since(self.start)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_scope_counts_from_its_start_and_a_loss_from_the_loss() {
        let at = |secs| Mono::from_start(Duration::from_secs(secs));
        let west = PeerName::from("west");
        let mut contacts = Contacts::begin(at(100));
        assert_eq!(contacts.away(&west, at(107)), Some(Duration::from_secs(7)));
        contacts.observe([&west], at(110));
        assert_eq!(contacts.away(&west, at(200)), None);
        contacts.observe([], at(210));
        contacts.observe([], at(215));
        assert_eq!(contacts.away(&west, at(220)), Some(Duration::from_secs(10)));
    }
}
