//! How an agent reaches its peers and their lead brokers: over the network, or, in a simulation, within one process.

use std::net::SocketAddr;
use std::sync::Arc;

use tributary::bursting::preflight::lead::{self, Dial};
use tributary::bursting::root::demand::hear::{self, Connect};
use tributary::clock::{SharedClock, SystemRng};
use tributary::federation::identity::IdentityStore;
use tributary::federation::mesh::resolve::Resolver;
use tributary::federation::timers::Timers;
use tributary::federation::transport::quic::{BindError, QuicTransport};
use tributary::federation::transport::{Resolve, Transport};

/// What a leader needs of it.
pub trait Network: Send + Sync {
    /// Listens for peers.
    ///
    /// # Errors
    /// The address cannot be bound.
    fn listen(
        &self,
        address: SocketAddr,
        identities: &IdentityStore,
        timers: &Timers,
        clock: &SharedClock,
    ) -> Result<Arc<dyn Transport>, BindError>;

    /// Turns endpoints of ClusterPeers into addresses.
    fn resolver(&self) -> Arc<dyn Resolve>;

    /// How lead brokers are dialled.
    fn leads(&self) -> Arc<dyn Dial>;

    /// How the programs beside lead brokers are reached that tell of queues.
    fn queues(&self) -> Arc<dyn Connect>;
}

/// QUIC between agents, DNS, and TCP to lead brokers.
pub(crate) struct Internet;

impl Network for Internet {
    fn listen(
        &self,
        address: SocketAddr,
        identities: &IdentityStore,
        timers: &Timers,
        clock: &SharedClock,
    ) -> Result<Arc<dyn Transport>, BindError> {
        Ok(Arc::new(QuicTransport::bind(address, identities.clone(), timers, clock.clone())?))
    }

    fn resolver(&self) -> Arc<dyn Resolve> {
        Arc::new(Resolver::system(Box::new(SystemRng)))
    }

    fn leads(&self) -> Arc<dyn Dial> {
        Arc::new(lead::Tcp)
    }

    fn queues(&self) -> Arc<dyn Connect> {
        Arc::new(hear::Tcp)
    }
}
