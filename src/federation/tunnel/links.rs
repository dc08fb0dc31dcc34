//! A QUIC connection for broker traffic beside the control connection, to every peer that anything is carried for.
//!
//! The side that dialled the control connection dials it, to the address that worked. It ends with the control connection:
//! whom that is not made with, or not any more, nothing is carried for.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;
use tributary_contract::tunnel::{Inlets, Outlets};
use tributary_contract::{PeerName, PeerSpec};
use tributary_tunnel::flow_control::Budget;

use super::outlet::Outlet;
use crate::mesh::ConnId;
use crate::transport::{Link, Transport};
use crate::wire::registry::{CloseCode, StreamKind};

/// A control connection, as far as it matters here.
#[derive(Clone)]
pub struct Control {
    /// Which.
    pub connection: ConnId,
    /// We dialled it.
    pub dialled: bool,
    /// The peer carries tunnels.
    pub capable: bool,
    /// The peer relays for ends in pods.
    pub relays: bool,
    /// The address in use, `ip:port`.
    pub remote: String,
}

/// The connections to carry by, numbered, one per peer.
pub(crate) type TunnelLinks = BTreeMap<PeerName, (u64, Arc<dyn Link>)>;

/// How long after a failed dial, or after a connection of [`SHORT`] life, the next one waits.
const DIAL_AGAIN: Duration = Duration::from_secs(1);

/// A connection that ends sooner was of no use: a peer that accepts it and closes it would be dialled without end.
const SHORT: Duration = Duration::from_secs(5);

/// Makes and takes the connections.
pub(super) struct Links {
    pub(super) transport: Arc<dyn Transport>,
    pub(super) peers: watch::Receiver<BTreeMap<PeerName, PeerSpec>>,
    pub(super) controls: watch::Receiver<BTreeMap<PeerName, Control>>,
    /// Connections that peers made.
    pub(super) accepted: mpsc::Receiver<Arc<dyn Link>>,
    pub(super) inlets: watch::Receiver<Inlets>,
    pub(super) outlets: watch::Receiver<Outlets>,
    pub(super) links: watch::Sender<TunnelLinks>,
    pub(super) outlet: Outlet,
    pub(super) budget: Budget,
}

/// What is kept of the connections.
#[derive(Default)]
struct Kept {
    number: u64,
    /// For which control connection we dialled ours.
    dialled: BTreeMap<PeerName, ConnId>,
    dialling: BTreeSet<PeerName>,
    /// Not to be dialled at this moment.
    resting: BTreeSet<PeerName>,
    /// Since when the last connection of each peer is in use, or was.
    since: BTreeMap<PeerName, Instant>,
    /// Made by a peer whose control connection we do not see yet.
    early: BTreeMap<PeerName, Arc<dyn Link>>,
}

/// What comes back from a task.
enum Done {
    Dialled(PeerName, ConnId, Option<Arc<dyn Link>>),
    Rested(PeerName),
    Closed(PeerName, u64),
}

impl Kept {
    /// Whether the last connection of the peer was made a moment ago.
    fn is_new(&self, peer: &PeerName) -> bool {
        self.since.get(peer).is_some_and(|since| since.elapsed() < SHORT)
    }
}

/// Does not dial a peer for a moment.
fn rest(peer: PeerName, kept: &mut Kept, tasks: &mut JoinSet<Done>) {
    kept.resting.insert(peer.clone());
    tasks.spawn(async move {
        sleep(DIAL_AGAIN).await;
        Done::Rested(peer)
    });
}

impl Links {
    /// Keeps the connections until `shutdown`.
    pub(super) async fn run(mut self, shutdown: CancellationToken) {
        let (mut kept, mut tasks) = (Kept::default(), JoinSet::new());
        loop {
            self.settle(&mut kept, &mut tasks);
            tokio::select! {
                () = shutdown.cancelled() => break,
                changed = self.controls.changed() => if changed.is_err() { break },
                // A sender that is gone leaves its last word standing; so long as there are control connections, they live.
                changed = self.inlets.changed() => if changed.is_err() { break },
                changed = self.outlets.changed() => if changed.is_err() { break },
                Some(link) = self.accepted.recv() => {
                    let peer = link.identity().name.clone();
                    if let Some(before) = kept.early.insert(peer, link) {
                        before.close(CloseCode::Replaced, "another connection for tunnels");
                    }
                }
                Some(Ok(done)) = tasks.join_next() => self.done(done, &mut kept, &mut tasks),
            }
        }
        for (_, (_, link)) in self.links.send_replace(TunnelLinks::new()) {
            link.close(CloseCode::Done, "the agent stops, or another replica leads");
        }
    }

    /// Brings the connections to what is wanted.
    fn settle(&mut self, kept: &mut Kept, tasks: &mut JoinSet<Done>) {
        let controls = self.controls.borrow_and_update().clone();
        let used: BTreeSet<PeerName> = {
            let (inlets, outlets) = (self.inlets.borrow_and_update(), self.outlets.borrow_and_update());
            inlets.keys().chain(outlets.keys()).map(|(peer, _)| peer.clone()).collect()
        };
        let gone: Vec<PeerName> =
            self.links.borrow().keys().filter(|peer| !controls.contains_key(*peer)).cloned().collect();
        for peer in gone {
            self.close(&peer, kept, CloseCode::Done, "the control connection ended");
        }
        for (peer, control) in &controls {
            if let Some(link) = kept.early.remove(peer) {
                kept.dialled.remove(peer);
                self.adopt(peer.clone(), link, kept, tasks);
            }
            let spec = self.peers.borrow().get(peer).cloned();
            let ours = kept.dialled.get(peer) == Some(&control.connection) && self.links.borrow().contains_key(peer);
            let wanted = control.dialled && control.capable && used.contains(peer) && !ours;
            let (Some(spec), Ok(address)) = (spec, control.remote.parse()) else { continue };
            if wanted && !kept.resting.contains(peer) && kept.dialling.insert(peer.clone()) {
                let (transport, connection, peer) = (self.transport.clone(), control.connection, peer.clone());
                tasks.spawn(async move {
                    let dialled = transport.dial_tunnel(&spec, address).await;
                    let link = dialled.inspect_err(|error| tracing::debug!(%peer, %error, "no connection for tunnels"));
                    Done::Dialled(peer, connection, link.ok())
                });
            }
        }
    }

    fn done(&mut self, done: Done, kept: &mut Kept, tasks: &mut JoinSet<Done>) {
        match done {
            Done::Dialled(peer, connection, link) => {
                kept.dialling.remove(&peer);
                let stands = self.controls.borrow().get(&peer).is_some_and(|control| control.connection == connection);
                match link {
                    Some(link) if stands => {
                        kept.dialled.insert(peer.clone(), connection);
                        self.adopt(peer, link, kept, tasks);
                    }
                    Some(link) => link.close(CloseCode::Replaced, "the control connection ended"),
                    None => rest(peer, kept, tasks),
                }
            }
            Done::Rested(peer) => drop(kept.resting.remove(&peer)),
            Done::Closed(peer, number) => {
                if self.links.borrow().get(&peer).is_some_and(|(current, _)| *current == number) {
                    self.close(&peer, kept, CloseCode::Done, "");
                    if kept.is_new(&peer) {
                        rest(peer, kept, tasks);
                    }
                }
            }
        }
    }

    /// Carries by this connection from now on; streams of the one before go on over it.
    fn adopt(&mut self, peer: PeerName, link: Arc<dyn Link>, kept: &mut Kept, tasks: &mut JoinSet<Done>) {
        kept.number += 1;
        let number = kept.number;
        if kept.is_new(&peer) {
            tracing::debug!(%peer, remote = link.remote(), "tunnels to the peer can be opened again");
        } else {
            tracing::info!(%peer, remote = link.remote(), "tunnels to the peer can be opened");
        }
        kept.since.insert(peer.clone(), Instant::now());
        let mut before = None;
        self.links.send_modify(|links| before = links.insert(peer.clone(), (number, link.clone())));
        if let Some((_, before)) = before {
            before.close(CloseCode::Replaced, "another connection for tunnels");
        }
        self.divide();
        let outlet = self.outlet.clone();
        tasks.spawn(async move {
            while let Some((kind, send, recv)) = link.accept().await {
                if kind == StreamKind::Tunnel {
                    let (outlet, peer) = (outlet.clone(), peer.clone());
                    outlet.tasks.clone().spawn(async move { outlet.serve(peer, send, recv).await });
                }
            }
            Done::Closed(peer, number)
        });
    }

    fn close(&self, peer: &PeerName, kept: &mut Kept, code: CloseCode, reason: &str) {
        kept.dialled.remove(peer);
        let mut before = None;
        self.links.send_modify(|links| before = links.remove(peer));
        if let Some((_, link)) = before {
            link.close(code, reason);
        }
        self.divide();
    }

    /// All links have the same part of the memory there is for what is in flight.
    fn divide(&self) {
        let links = self.links.borrow();
        let most = self.budget.link(links.len());
        links.values().for_each(|(_, link)| link.bound(most));
    }
}
