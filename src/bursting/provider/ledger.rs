//! What is promised to whom: rebuilt from the HostedBursts, and ahead of them by what was reserved a moment ago.
//!
//! A reservation is made before the HostedBurst is written and stays until the cache shows it, so that two offers never
//! get the same room. One admission looks at the ledger at a time.

use std::collections::{BTreeMap, BTreeSet};

use crate::api::hosted_burst::HostedBurst;
use crate::bursting::nodes::{Amounts, Brokers};
use crate::bursting::template::{Bytes, Charge};
use crate::contract::{DesiredBurst, PeerName};

/// Namespace and slot: one hosted burst at a time has a name.
pub type SlotKey = (String, String);

/// What one hosted burst takes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Entry {
    /// Whose it is.
    pub peer: PeerName,
    /// Brokers it has now.
    pub size: u32,
    /// Brokers that count against `import.maxBrokers`.
    pub max_size: u32,
    /// What each broker counts for.
    pub charge: Charge,
}

/// What a peer holds, as its quotas count it: every burst with all the brokers it may grow to.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Held {
    /// Bursts.
    pub bursts: u32,
    /// Brokers.
    pub brokers: u32,
    /// Cores.
    pub cores: u32,
    /// GPUs.
    pub gpus: u32,
    /// Bytes of memory.
    pub memory: u64,
    /// Bytes of ephemeral storage.
    pub ephemeral_storage: u64,
}

/// All promises.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Ledger {
    hosted: BTreeMap<SlotKey, Entry>,
    reserved: BTreeMap<SlotKey, Entry>,
}

impl Ledger {
    /// Takes in the HostedBursts as the cache shows them. Reservations that they bear out end.
    pub fn rebuild<'a>(&mut self, hosted: impl IntoIterator<Item = &'a HostedBurst>) {
        let (mut known, mut taken) = (BTreeSet::new(), BTreeMap::new());
        for hosted in hosted {
            known.insert(key_of(hosted));
            // A whole instance that has ended takes nothing.
            if !hosted.has_ended() {
                taken.insert(key_of(hosted), Entry::of(hosted));
            }
        }
        self.hosted = taken;
        self.reserved.retain(|key, _| !known.contains(key));
    }

    /// Promises room to an offer that was admitted.
    pub fn reserve(&mut self, key: &SlotKey, peer: &PeerName, desired: &DesiredBurst) {
        let charge = Charge::of(desired.cores, desired.gpus, &desired.template);
        let entry = Entry { peer: peer.clone(), size: desired.size, max_size: desired.max_size, charge };
        self.reserved.insert(key.clone(), entry);
    }

    /// Gives a reservation up: the HostedBurst could not be written, or is gone.
    pub fn cancel(&mut self, key: &SlotKey) {
        self.reserved.remove(key);
    }

    /// What a peer holds, apart from the slot in question.
    pub fn held_by(&self, peer: &PeerName, besides: Option<&SlotKey>) -> Held {
        let of_peer = self.entries().filter(|(key, entry)| entry.peer == *peer && Some(*key) != besides);
        of_peer.fold(Held::default(), |held, (_, entry)| {
            let Entry { charge, max_size, .. } = entry;
            let bytes = |each: Bytes| each.requested.saturating_mul(u64::from(*max_size));
            Held {
                bursts: held.bursts.saturating_add(1),
                brokers: held.brokers.saturating_add(*max_size),
                cores: held.cores.saturating_add(max_size.saturating_mul(charge.cores)),
                gpus: held.gpus.saturating_add(max_size.saturating_mul(charge.gpus)),
                memory: held.memory.saturating_add(bytes(charge.memory)),
                ephemeral_storage: held.ephemeral_storage.saturating_add(bytes(charge.ephemeral_storage)),
            }
        })
    }

    /// For each hosted Job: what each of its brokers counts for.
    pub fn brokers(&self) -> Brokers {
        self.entries()
            .map(|(key, entry)| (key.clone(), Amounts::part(entry.charge.milli_cores, entry.charge.node_gpus)))
            .collect()
    }

    /// All promises, reservations included.
    pub fn entries(&self) -> impl Iterator<Item = (&SlotKey, &Entry)> {
        let ahead = self.reserved.iter().filter(|(key, _)| !self.hosted.contains_key(*key));
        self.hosted.iter().chain(ahead)
    }
}

impl Entry {
    fn of(hosted: &HostedBurst) -> Self {
        let spec = &hosted.spec;
        let charge = Charge::of(spec.cores, spec.gpus, &spec.template);
        Self { peer: spec.peer.as_str().into(), size: spec.size, max_size: spec.max_size, charge }
    }
}

/// The name a HostedBurst takes.
pub fn key_of(hosted: &HostedBurst) -> SlotKey {
    (hosted.metadata.namespace.clone().unwrap_or_default(), hosted.metadata.name.clone().unwrap_or_default())
}
