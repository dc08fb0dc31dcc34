//! Starting the mesh.

use std::collections::BTreeMap;
use std::sync::Arc;

use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;
use tributary_clock::{Rng, SharedClock};
use tributary_contract::ports::{CredentialSource, Incoming, Outgoing, QuerySource, TrustSink};
use tributary_contract::{ClusterUid, Epoch, PeerName, PeerSpec};

use super::handle::MeshHandle;
use super::metrics::MeshMetrics;
use super::owner::{Owner, Published};
use crate::timers::Timers;
use crate::transport::{Resolve, Transport};
use crate::tunnel::{self, Surroundings, TunnelPorts};
use crate::wire::version::WireVersions;

/// Connections for tunnels that wait to be looked at: all peers make one at once, after this agent began to lead.
const WAITING_TUNNELS: usize = 256;

/// Who we are and whom we know.
pub struct MeshConfig {
    /// Name of our cluster, as in our certificate.
    pub name: PeerName,
    /// UID of our cluster.
    pub cluster_uid: ClusterUid,
    /// Labels of our cluster: at most [`crate::wire::limits::LABELS`].
    pub labels: BTreeMap<String, String>,
    /// Version of our agent.
    pub version: String,
    /// Versions of the messages we speak: [`WireVersions::OURS`]. The transport offers the same.
    pub versions: WireVersions,
    /// The leadership we speak for; `None`: nobody is spoken to. When it changes, all connections are made anew.
    pub epoch: watch::Receiver<Option<Epoch>>,
    /// The configured peers, by name.
    pub peers: watch::Receiver<BTreeMap<PeerName, PeerSpec>>,
    /// Intervals; [`Timers::check`] holds.
    pub timers: Timers,
    /// Time.
    pub clock: SharedClock,
    /// Jitter, and the number of this process.
    pub rng: Box<dyn Rng>,
    /// Endpoints to addresses.
    pub resolve: Arc<dyn Resolve>,
    /// Counts what happens.
    pub metrics: MeshMetrics,
    /// Ends the mesh: peers are told, then the transport is shut down.
    pub shutdown: CancellationToken,
}

/// The other room's ends.
#[derive(Clone)]
pub struct Ports {
    /// What we say.
    pub outgoing: Arc<dyn Outgoing>,
    /// What we hear.
    pub incoming: Arc<dyn Incoming>,
    /// Who hands out certificates.
    pub credentials: Arc<dyn CredentialSource>,
    /// Who answers queries.
    pub queries: Arc<dyn QuerySource>,
    /// Who takes new trust bundles of peers.
    pub trust: Arc<dyn TrustSink>,
    /// What is carried for bursts.
    pub tunnels: TunnelPorts,
}

/// Starts the mesh over `transport`, which belongs to it from now on. It runs until [`MeshConfig::shutdown`];
/// [`MeshHandle::ended`] tells when it is over.
pub fn spawn(mut config: MeshConfig, transport: Arc<dyn Transport>, ports: Ports) -> MeshHandle {
    let ended = CancellationToken::new();
    let (links, reports) = (watch::Sender::default(), watch::Sender::default());
    let carrying = watch::Sender::default();
    let handle = MeshHandle::new(&config, links.subscribe(), carrying.subscribe(), reports.subscribe(), ended.clone());
    let (made, accepted) = mpsc::channel(WAITING_TUNNELS);
    let controls = watch::Sender::default();
    // Connections of brokers end first: over the links to peers, the other ends are told.
    let shutdown = std::mem::take(&mut config.shutdown);
    let closing = config.shutdown.clone();
    let surroundings = Surroundings {
        transport: transport.clone(),
        peers: config.peers.clone(),
        controls: controls.subscribe(),
        accepted,
        links: carrying,
        request: config.timers.request,
        process: config.rng.next_u64(),
        shutdown,
    };
    let tunnels = tunnel::run(ports.tunnels.clone(), surroundings);
    let owner = Owner::new(config, transport, ports, Published { links, reports, controls, tunnels: made });
    tokio::spawn(async move {
        // Also if the task is aborted or panics, nobody waits for ever.
        let _guard = ended.drop_guard();
        let _tunnels = AbortOnDropHandle::new(tokio::spawn(async move {
            tunnels.await;
            closing.cancel();
        }));
        owner.run().await;
    });
    handle
}
