//! Broker traffic inside the peering: for clusters whose nodes have no address that others can reach.
//!
//! The lead Service of a burst points to the provider's agent, at a TCP port of the burst's own. Every connection becomes a
//! stream to the root's agent, which connects to the lead broker's pod. When the way between the agents breaks and comes
//! back within the hold time, both TCP connections are still open, and not one byte is lost or repeated.
//!
//! ```text
//! broker ─TCP─▶ inlet ─┐                             ┌─▶ outlet ─TCP─▶ lead broker
//!                conduit ══ stream of kind Tunnel ══ conduit
//! ```
//!
//! | part | what it does |
//! |---|---|
//! | [`tributary_tunnel`] | one end of a carried connection, wherever that is |
//! | `inlet` | provider side: a port per burst, who may connect, streams to the root |
//! | `outlet` | root side: streams to the lead broker, and to nothing else |
//! | `relay` | both sides: bytes between the ends that live in the pods of brokers |
//! | `links` | the QUIC connections they go over |
//!
//! All of it lives in one leader's term. Another leader on either side begins anew: connections whose ends are here are ended,
//! and the brokers connect again at once. Those whose ends live in the pods of the brokers ([`tributary_tunnel::ends`]) are only
//! relayed, and go on over the next leader.
mod inlet;
mod links;
mod metrics;
mod open_code;
mod outlet;
mod relay;

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use tokio::sync::{Semaphore, mpsc, watch};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tokio_util::task::{AbortOnDropHandle, TaskTracker};

pub use self::links::Control;
pub(crate) use self::links::TunnelLinks;
pub use self::metrics::TunnelMetrics;
use tributary_contract::tunnel::{AllEnds, Inlets, Listening, Outlets, TunnelKey};
use tributary_contract::{PeerName, PeerSpec};
pub use tributary_tunnel::flow_control::Budget;
use tributary_tunnel::unanswered;

use crate::transport::{Link, Transport};

/// Capability of the hello: the sender carries tunnels.
pub(crate) const CAPABILITY: &str = "tunnel";

/// Capability of the hello: the sender relays for ends that live in the pods of brokers.
pub(crate) const RELAY_CAPABILITY: &str = "tunnel-relay";

/// What all connections get to tell their other ends that they end. Those who could not be told find out when they ask.
const FAREWELL: Duration = Duration::from_secs(1);

/// What is carried, and where the ports of it are told.
#[derive(Clone)]
pub struct TunnelPorts {
    /// Root side: where the connections of our bursts lead.
    pub outlets: watch::Receiver<Outlets>,
    /// Provider side: bursts of peers, and who may connect for them.
    pub inlets: watch::Receiver<Inlets>,
    /// Where the TCP port of every inlet is told.
    pub listening: watch::Sender<Listening>,
    /// Where open connections of our bursts are told.
    pub ends: watch::Sender<AllEnds>,
    /// Address that inlets listen on.
    pub address: IpAddr,
    /// TCP ports that inlets may have; `0..=0`: any.
    pub ports: RangeInclusive<u16>,
    /// What all of it may take of memory.
    pub budget: Budget,
    /// Counts what happens.
    pub metrics: TunnelMetrics,
}

impl TunnelPorts {
    /// Carries nothing.
    pub fn none() -> Self {
        Self {
            outlets: watch::Sender::default().subscribe(),
            inlets: watch::Sender::default().subscribe(),
            listening: watch::Sender::default(),
            ends: watch::Sender::default(),
            address: IpAddr::from([127, 0, 0, 1]),
            ports: 0..=0,
            budget: Budget::new(256 << 20),
            metrics: TunnelMetrics::default(),
        }
    }
}

/// What the tunnel needs of the mesh.
pub(crate) struct Surroundings {
    /// Dials.
    pub transport: Arc<dyn Transport>,
    /// The configured peers.
    pub peers: watch::Receiver<BTreeMap<PeerName, PeerSpec>>,
    /// Control connections with an accepted hello.
    pub controls: watch::Receiver<BTreeMap<PeerName, Control>>,
    /// Connections for tunnels that peers made.
    pub accepted: mpsc::Receiver<Arc<dyn Link>>,
    /// Where the connections in use are shown.
    pub links: watch::Sender<TunnelLinks>,
    /// Time an opening may take.
    pub request: Duration,
    /// Random per process.
    pub process: u64,
    /// Ends everything.
    pub shutdown: CancellationToken,
}

/// Carries what the ports say until `shutdown`.
pub(crate) async fn run(ports: TunnelPorts, surroundings: Surroundings) {
    let TunnelPorts { outlets, inlets, listening, ends, address, ports, budget, metrics } = ports;
    let Surroundings { transport, peers, controls, accepted, links, request, process, shutdown } = surroundings;
    let tasks = TaskTracker::new();
    let (unanswered, silent) = watch::channel(unanswered::Unanswered::new());
    let _looks = AbortOnDropHandle::new(tokio::spawn(unanswered::look(unanswered, tasks.clone())));
    let inlet = inlet::Inlet {
        address,
        ports,
        inlets: inlets.clone(),
        listening,
        links: links.subscribe(),
        controls: controls.clone(),
        budget: budget.clone(),
        strangers: Arc::new(Semaphore::new(inlet::STRANGERS)),
        unanswered: silent.clone(),
        metrics: metrics.clone(),
        request,
        process,
        next: Arc::new(AtomicU64::new(0)),
        tasks: tasks.clone(),
    };
    let outlet = outlet::Outlet {
        outlets: outlets.clone(),
        ends,
        budget: budget.clone(),
        unanswered: silent.clone(),
        metrics,
        request,
        shutdown: shutdown.clone(),
        tasks: tasks.clone(),
        carried: Arc::default(),
    };
    let links =
        links::Links { transport, peers, controls, accepted, inlets: inlets.clone(), outlets, links, outlet, budget };
    // Connections end before the links: over these their other ends are told.
    let told = CancellationToken::new();
    let connections = async {
        keep_inlets(inlet, inlets, shutdown).await;
        tasks.close();
        let _ = timeout(FAREWELL, tasks.wait()).await;
        told.cancel();
    };
    tokio::join!(links.run(told.clone()), connections);
}

/// Listens for exactly the bursts that are carried.
async fn keep_inlets(inlet: inlet::Inlet, mut inlets: watch::Receiver<Inlets>, shutdown: CancellationToken) {
    let mut listening: BTreeMap<TunnelKey, (String, CancellationToken)> = BTreeMap::new();
    loop {
        let wanted: BTreeMap<TunnelKey, String> =
            inlets.borrow_and_update().iter().map(|(key, inlet)| (key.clone(), inlet.incarnation.clone())).collect();
        listening.retain(|key, (incarnation, revoked)| {
            let stays = wanted.get(key) == Some(incarnation);
            if !stays {
                revoked.cancel();
                inlet.listening.send_modify(|listening| drop(listening.remove(key)));
            }
            stays
        });
        for (key, incarnation) in wanted {
            if let Entry::Vacant(vacant) = listening.entry(key) {
                let revoked = shutdown.child_token();
                tokio::spawn(inlet.clone().listen(vacant.key().clone(), incarnation.clone(), revoked.clone()));
                vacant.insert((incarnation, revoked));
            }
        }
        tokio::select! {
            () = shutdown.cancelled() => break,
            changed = inlets.changed() => if changed.is_err() { shutdown.cancelled().await },
        }
    }
    inlet.listening.send_replace(Listening::new());
}
