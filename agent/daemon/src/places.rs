//! How many connections a port takes at one time, and from one address.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use parking_lot::Mutex;

/// The connections of a port.
pub(crate) struct Places {
    most: usize,
    /// Of one address: one pod cannot have all of them.
    share: usize,
    taken: Mutex<BTreeMap<IpAddr, usize>>,
}

/// One of them.
pub(crate) struct Place {
    of: IpAddr,
    places: Arc<Places>,
}

impl Places {
    /// So many in all, and from one address.
    pub(crate) fn new(most: usize, share: usize) -> Arc<Self> {
        Arc::new(Self { most, share, taken: Mutex::default() })
    }

    /// A place for one more connection of an address, if there is one.
    pub(crate) fn take(self: &Arc<Self>, of: IpAddr) -> Option<Place> {
        let of = of.to_canonical();
        let mut taken = self.taken.lock();
        let (all, own) = (taken.values().sum::<usize>(), taken.get(&of).copied().unwrap_or(0));
        (all < self.most && own < self.share).then(|| {
            taken.insert(of, own + 1);
            Place { of, places: self.clone() }
        })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut taken = self.places.taken.lock();
        match taken.get_mut(&self.of) {
            Some(own) if *own > 1 => *own -= 1,
            _ => _ = taken.remove(&self.of),
        }
    }
}
