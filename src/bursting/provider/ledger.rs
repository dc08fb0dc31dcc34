//! What is promised to whom: by the HostedBursts, and ahead of them by what was reserved a moment ago.
//!
//! A reservation is made before the HostedBurst is written and stays until the cache shows it, so that two offers never
//! get the same room. One admission looks at the ledger at a time.

use std::collections::BTreeMap;
use std::ops::{AddAssign, SubAssign};

use tributary_api::hosted_burst::HostedBurst;
use tributary_api::node_group::{NewNodes, ScaleUp};
use tributary_contract::{DesiredBurst, PeerName};

use crate::nodes::Brokers;
use crate::template::{Bytes, Charge};

/// Namespace and slot: one hosted burst at a time has a name.
pub type SlotKey = (String, String);

/// What one hosted burst takes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Entry {
    /// Whose it is.
    pub peer: PeerName,
    /// Brokers it has now.
    pub size: u32,
    /// Brokers that count against `import.maxBrokers`.
    pub max_size: u32,
    /// What each broker counts for.
    pub charge: Charge,
    /// Nodes that it may bring.
    pub nodes: Vec<NewNodes>,
}

/// All promises.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Ledger {
    hosted: BTreeMap<SlotKey, Entry>,
    reserved: BTreeMap<SlotKey, Entry>,
    /// The sums of each peer.
    sums: BTreeMap<PeerName, Sum>,
}

/// What a peer holds, as its quotas count it: every burst with all the brokers it may grow to. Nothing overflows the numbers.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Sum {
    /// Bursts.
    pub bursts: u64,
    /// Brokers.
    pub brokers: u64,
    /// Cores.
    pub cores: u64,
    /// GPUs.
    pub gpus: u64,
    /// Bytes of memory.
    pub memory: u128,
    /// Bytes of ephemeral storage.
    pub ephemeral_storage: u128,
}

impl Ledger {
    /// Takes in all HostedBursts, for who looks once. Reservations that they bear out end.
    pub fn rebuild<'a>(&mut self, hosted: impl IntoIterator<Item = &'a HostedBurst>) {
        let before: Vec<SlotKey> = self.hosted.keys().cloned().collect();
        before.iter().for_each(|key| drop(self.host(key, None)));
        hosted.into_iter().for_each(|hosted| drop(self.host(&key_of(hosted), Some(hosted))));
    }

    /// Takes in the HostedBurst of a slot, or that there is none. A reservation that it bears out ends. Says which peer holds
    /// less now than before, if any does.
    pub(crate) fn host(&mut self, key: &SlotKey, hosted: Option<&HostedBurst>) -> Option<PeerName> {
        let before = self.entry(key).cloned();
        if hosted.is_some() {
            self.reserved.remove(key);
        }
        // A whole instance that has ended takes nothing.
        match hosted.filter(|hosted| !hosted.has_ended()) {
            Some(hosted) => self.hosted.insert(key.clone(), Entry::of(hosted)),
            None => self.hosted.remove(key),
        };
        self.count(before.as_ref(), key)
    }

    /// Promises room to an offer that was admitted.
    pub(crate) fn reserve(
        &mut self,
        key: &SlotKey,
        peer: &PeerName,
        desired: &DesiredBurst,
        scale_up: Option<&ScaleUp>,
    ) {
        let charge = Charge::of(desired.cores, desired.gpus, &desired.template);
        let nodes = nodes_of(scale_up);
        let entry = Entry { peer: peer.clone(), size: desired.size, max_size: desired.max_size, charge, nodes };
        let before = self.entry(key).cloned();
        self.reserved.insert(key.clone(), entry);
        self.count(before.as_ref(), key);
    }

    /// Gives a reservation up: the HostedBurst could not be written, or is gone.
    pub(crate) fn cancel(&mut self, key: &SlotKey) {
        let before = self.entry(key).cloned();
        self.reserved.remove(key);
        self.count(before.as_ref(), key);
    }

    fn entry(&self, key: &SlotKey) -> Option<&Entry> {
        self.hosted.get(key).or_else(|| self.reserved.get(key))
    }

    /// Brings the sums from what a slot was to what it is.
    fn count(&mut self, before: Option<&Entry>, key: &SlotKey) -> Option<PeerName> {
        let after = self.entry(key).cloned();
        if before == after.as_ref() {
            return None;
        }
        if let Some(entry) = &after {
            *self.sums.entry(entry.peer.clone()).or_default() += Sum::of(entry);
        }
        let before = before?;
        let sum = self.sums.entry(before.peer.clone()).or_default();
        *sum -= Sum::of(before);
        if *sum == Sum::default() {
            self.sums.remove(&before.peer);
        }
        let less = after.is_none_or(|after| after.peer != before.peer || !Sum::of(&after).covers(&Sum::of(before)));
        less.then(|| before.peer.clone())
    }

    /// What a peer holds, apart from the slot in question.
    pub fn held_by(&self, peer: &PeerName, besides: Option<&SlotKey>) -> Sum {
        let mut sum = self.sums.get(peer).copied().unwrap_or_default();
        if let Some(besides) = besides.and_then(|key| self.entry(key)).filter(|entry| entry.peer == *peer) {
            sum -= Sum::of(besides);
        }
        sum
    }

    /// The promises in a namespace, reservations included.
    pub(crate) fn in_namespace(&self, namespace: &str) -> impl Iterator<Item = (&SlotKey, &Entry)> {
        let first = (namespace.to_owned(), String::new());
        let ahead = self.reserved.range(first.clone()..).filter(|(key, _)| !self.hosted.contains_key(*key));
        let (hosted, ahead) = (self.hosted.range(first..), ahead);
        let here = move |(key, _): &(&SlotKey, &Entry)| key.0 == namespace;
        hosted.take_while(here).chain(ahead.take_while(here))
    }

    /// Nodes that bursts of a peer may bring, by group, apart from the slot in question.
    pub(crate) fn nodes_of(&self, peer: &PeerName, besides: Option<&SlotKey>) -> BTreeMap<&str, u32> {
        let mut nodes: BTreeMap<&str, u32> = BTreeMap::new();
        let others = self.entries().filter(|(key, entry)| entry.peer == *peer && Some(*key) != besides);
        for NewNodes { group, count } in others.flat_map(|(_, entry)| &entry.nodes) {
            let sum = nodes.entry(group).or_default();
            *sum = sum.saturating_add(*count);
        }
        nodes
    }

    /// For each hosted Job: what each of its brokers counts for.
    pub(crate) fn brokers(&self) -> Brokers<'_> {
        let each = |entry: &Entry| entry.charge.of_node();
        self.entries().map(|((namespace, name), entry)| ((&**namespace, &**name), each(entry))).collect()
    }

    /// All promises, reservations included.
    pub(crate) fn entries(&self) -> impl Iterator<Item = (&SlotKey, &Entry)> {
        let ahead = self.reserved.iter().filter(|(key, _)| !self.hosted.contains_key(*key));
        self.hosted.iter().chain(ahead)
    }
}

impl Sum {
    fn of(entry: &Entry) -> Self {
        let Entry { charge, max_size, .. } = entry;
        let (count, bytes) = (u64::from(*max_size), |each: Bytes| u128::from(each.requested) * u128::from(*max_size));
        Self {
            bursts: 1,
            brokers: count,
            cores: count * u64::from(charge.cores),
            gpus: count * u64::from(charge.gpus),
            memory: bytes(charge.memory),
            ephemeral_storage: bytes(charge.ephemeral_storage),
        }
    }

    /// Whether it is at least as much of everything.
    fn covers(&self, other: &Self) -> bool {
        self.brokers >= other.brokers
            && self.cores >= other.cores
            && self.gpus >= other.gpus
            && self.memory >= other.memory
            && self.ephemeral_storage >= other.ephemeral_storage
    }
}

impl AddAssign for Sum {
    fn add_assign(&mut self, other: Self) {
        self.bursts += other.bursts;
        self.brokers += other.brokers;
        self.cores += other.cores;
        self.gpus += other.gpus;
        self.memory += other.memory;
        self.ephemeral_storage += other.ephemeral_storage;
    }
}

impl SubAssign for Sum {
    fn sub_assign(&mut self, other: Self) {
        self.bursts -= other.bursts;
        self.brokers -= other.brokers;
        self.cores -= other.cores;
        self.gpus -= other.gpus;
        self.memory -= other.memory;
        self.ephemeral_storage -= other.ephemeral_storage;
    }
}

impl Entry {
    fn of(hosted: &HostedBurst) -> Self {
        let spec = &hosted.spec;
        let charge = Charge::of(spec.cores, spec.gpus, &spec.template);
        let nodes = nodes_of(spec.scale_up.as_ref());
        Self { peer: spec.peer.as_str().into(), size: spec.size, max_size: spec.max_size, charge, nodes }
    }
}

fn nodes_of(scale_up: Option<&ScaleUp>) -> Vec<NewNodes> {
    scale_up.map(|scale_up| scale_up.nodes.clone()).unwrap_or_default()
}

/// The name a HostedBurst takes.
pub(crate) fn key_of(hosted: &HostedBurst) -> SlotKey {
    (hosted.metadata.namespace.clone().unwrap_or_default(), hosted.metadata.name.clone().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::provider::admission::tests::offer;

    fn slot(name: usize) -> SlotKey {
        ("flux".into(), format!("slot-{name}"))
    }

    fn hosted(peer: usize, size: u32) -> HostedBurst {
        let mut hosted = HostedBurst::default();
        hosted.spec.peer = format!("peer-{peer}");
        (hosted.spec.size, hosted.spec.max_size, hosted.spec.cores) = (size, size, u32::MAX);
        hosted.spec.template = offer().template;
        hosted
    }

    proptest! {
        /// However promises come and go: a peer holds what its entries sum up to, and is said to hold less when it does.
        #[test]
        fn the_sums_are_those_of_the_entries(
            changes in proptest::collection::vec((0..5_usize, 0..3_usize, 0..4_u32, 0..4_u8), 1..60),
        ) {
            let mut ledger = Ledger::default();
            for (name, peer, size, what) in changes {
                let (key, of) = (slot(name), PeerName::from(format!("peer-{peer}").as_str()));
                let before = ledger.clone();
                let less = match what {
                    0 => ledger.host(&key, None),
                    1 | 2 => ledger.host(&key, Some(&hosted(peer, size))),
                    _ if ledger.hosted.contains_key(&key) => { ledger.cancel(&key); None }
                    _ => { ledger.reserve(&key, &of, &DesiredBurst { max_size: size, ..offer() }, None); None }
                };
                for peer in 0..3 {
                    let peer = PeerName::from(format!("peer-{peer}").as_str());
                    let mine = |ledger: &Ledger| {
                        let all = ledger.entries().filter(|(_, entry)| entry.peer == peer);
                        all.map(|(_, entry)| u64::from(entry.max_size)).collect::<Vec<_>>()
                    };
                    let held = ledger.held_by(&peer, None);
                    prop_assert_eq!((held.bursts as usize, held.brokers), (mine(&ledger).len(), mine(&ledger).iter().sum()));
                    let besides = ledger.held_by(&peer, Some(&key)).brokers;
                    let own = ledger.entry(&key).filter(|entry| entry.peer == peer).map_or(0, |entry| entry.max_size.into());
                    prop_assert_eq!(besides + own, held.brokers);
                    if before.held_by(&peer, None).brokers > held.brokers && what < 3 {
                        prop_assert_eq!(less.as_ref(), Some(&peer));
                    }
                }
            }
        }
    }
}
