//! The port to the queues of namespaces: what their FluxSetups grant to bursts of peers. Who keeps the queues stands behind
//! it.

use std::fmt;

use tokio::sync::watch;
use tributary_api::hosted_burst::HostedBurst;
use tributary_contract::{NamespaceRoom, PeerName};

use super::ledger::SlotKey;

/// The queues of namespaces.
pub trait Grants: fmt::Debug + Send + Sync {
    /// Whether a burst may come now, or why not; `None`: that is not known yet, and will be in a moment.
    fn ask(&self, guest: &HostedBurst) -> Option<Result<(), String>>;
    /// Takes the room for it, if it is there, until its HostedBurst is seen or it is given back; whether it was there.
    fn take(&self, guest: &HostedBurst) -> bool;
    /// A burst does not come.
    fn give_back(&self, slot: &SlotKey);
    /// What is left for bursts of `peer`, by namespaces of this cluster.
    fn left(&self, peer: &PeerName) -> Vec<NamespaceRoom>;
    /// Changes when there may be more room, or less.
    fn changes(&self) -> watch::Receiver<u64>;
}

/// So many brokers, of which some are taken.
#[cfg(test)]
#[derive(Clone, Debug, Default)]
pub(crate) struct Few {
    pub(crate) limit: Option<u32>,
    pub(crate) taken: u32,
}

#[cfg(test)]
impl Grants for Few {
    fn ask(&self, guest: &HostedBurst) -> Option<Result<(), String>> {
        let fits = self.limit.is_none_or(|limit| self.taken + guest.spec.max_size <= limit);
        Some(if fits { Ok(()) } else { Err(format!("{} brokers are taken", self.taken)) })
    }

    fn take(&self, guest: &HostedBurst) -> bool {
        self.ask(guest) == Some(Ok(()))
    }

    fn give_back(&self, _slot: &SlotKey) {}

    fn left(&self, _peer: &PeerName) -> Vec<NamespaceRoom> {
        Vec::new()
    }

    fn changes(&self) -> watch::Receiver<u64> {
        watch::Sender::default().subscribe()
    }
}
