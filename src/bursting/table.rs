//! The newest value per peer and burst.
//!
//! What a change or a look costs depends on how many peers there are, and their owner writes those; not on how many bursts
//! they speak of.

use std::collections::{BTreeMap, BTreeSet};

use parking_lot::Mutex;
use tributary_contract::{BurstUid, PeerName};

use super::provider::slot::ClaimKey;

/// Values by peer and burst.
#[derive(Debug)]
pub(super) struct Table<V> {
    peers: Mutex<BTreeMap<PeerName, BTreeMap<BurstUid, V>>>,
}

impl<V> Default for Table<V> {
    fn default() -> Self {
        Self { peers: Mutex::default() }
    }
}

impl<V: Clone + PartialEq> Table<V> {
    /// The same values once more.
    #[cfg(test)]
    pub(super) fn copy(&self) -> Self {
        Self { peers: Mutex::new(self.peers.lock().clone()) }
    }

    /// Replaces a value; whether it differs from the one before.
    pub(super) fn put(&self, (peer, uid): &ClaimKey, value: V) -> bool {
        let mut peers = self.peers.lock();
        if peers.get(peer).and_then(|bursts| bursts.get(uid)) == Some(&value) {
            return false;
        }
        peers.entry(peer.clone()).or_default().insert(uid.clone(), value);
        true
    }

    /// Removes a value; whether there was one.
    pub(super) fn remove(&self, (peer, uid): &ClaimKey) -> bool {
        let mut peers = self.peers.lock();
        let Some(bursts) = peers.get_mut(peer) else { return false };
        let removed = bursts.remove(uid).is_some();
        if bursts.is_empty() {
            peers.remove(peer);
        }
        removed
    }

    /// The value.
    pub(super) fn of(&self, (peer, uid): &ClaimKey) -> Option<V> {
        self.peers.lock().get(peer)?.get(uid).cloned()
    }

    /// Whether there is a value, and it is such a one.
    pub(super) fn is(&self, (peer, uid): &ClaimKey, test: impl FnOnce(&V) -> bool) -> bool {
        self.peers.lock().get(peer).and_then(|bursts| bursts.get(uid)).is_some_and(test)
    }

    /// The bursts that there is a value of for a peer.
    pub(super) fn of_peer(&self, peer: &PeerName) -> Vec<BurstUid> {
        self.peers.lock().get(peer).into_iter().flat_map(|bursts| bursts.keys().cloned()).collect()
    }

    /// The values about a burst, by peer.
    pub(super) fn of_burst(&self, uid: &BurstUid) -> BTreeMap<PeerName, V> {
        let peers = self.peers.lock();
        let about = peers.iter().filter_map(|(peer, bursts)| Some((peer.clone(), bursts.get(uid)?.clone())));
        about.collect()
    }

    /// The peers for which there is such a value about a burst.
    pub(super) fn peers_of(&self, uid: &BurstUid, test: impl Fn(&V) -> bool) -> BTreeSet<PeerName> {
        let peers = self.peers.lock();
        let such = peers.iter().filter(|(_, bursts)| bursts.get(uid).is_some_and(&test));
        such.map(|(peer, _)| peer.clone()).collect()
    }

    /// Whether there is a value about a burst.
    pub(super) fn has(&self, uid: &BurstUid) -> bool {
        self.peers.lock().values().any(|bursts| bursts.contains_key(uid))
    }

    pub(super) fn keys(&self) -> Vec<ClaimKey> {
        self.keys_of(|_| true)
    }

    /// The keys of such bursts.
    pub(super) fn keys_of(&self, test: impl Fn(&BurstUid) -> bool) -> Vec<ClaimKey> {
        let peers = self.peers.lock();
        let all = peers.iter().flat_map(|(peer, bursts)| bursts.keys().map(move |uid| (peer, uid)));
        all.filter(|(_, uid)| test(uid)).map(|(peer, uid)| (peer.clone(), uid.clone())).collect()
    }

    /// Removes what is not of these peers, and says what that was.
    pub(super) fn retain_peers(&self, known: &BTreeSet<PeerName>) -> Vec<ClaimKey> {
        let mut peers = self.peers.lock();
        let gone: Vec<PeerName> = peers.keys().filter(|peer| !known.contains(*peer)).cloned().collect();
        let of = |peer: PeerName| {
            let bursts = peers.remove(&peer).unwrap_or_default();
            bursts.into_keys().map(move |uid| (peer.clone(), uid))
        };
        gone.into_iter().flat_map(of).collect()
    }

    /// Removes everything.
    pub(super) fn clear(&self) {
        self.peers.lock().clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_found_by_peer_and_by_burst() {
        let key = |peer: &str, uid: &str| -> ClaimKey { (peer.into(), uid.into()) };
        let table = Table::default();
        assert!(table.put(&key("east", "a"), 1) && table.put(&key("west", "a"), 2) && table.put(&key("west", "b"), 3));
        assert!(!table.put(&key("west", "b"), 3), "the same value is no change");
        assert_eq!(table.of_burst(&"a".into()), [("east".into(), 1), ("west".into(), 2)].into());
        assert_eq!(table.of_peer(&"west".into()), ["a".into(), "b".into()]);
        assert_eq!(table.peers_of(&"a".into(), |value| *value == 2), ["west".into()].into());
        assert!(table.has(&"a".into()) && !table.has(&"c".into()));
        assert_eq!(table.keys_of(|uid| *uid == "b".into()), [key("west", "b")]);
        assert!(table.is(&key("east", "a"), |value| *value == 1) && table.of(&key("east", "b")).is_none());
        assert_eq!(table.retain_peers(&["east".into()].into()), [key("west", "a"), key("west", "b")]);
        assert!(table.remove(&key("east", "a")) && !table.remove(&key("east", "a")));
        assert!(table.keys().is_empty() && table.peers.lock().is_empty(), "nothing is kept of a peer without bursts");
    }
}
