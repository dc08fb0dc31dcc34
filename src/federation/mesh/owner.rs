//! The one task that owns the mesh and its sessions. Everything it awaits is another task, a timer or a watch; it never
//! waits for a peer.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use tributary_clock::{Mono, Now, SharedClock};
use tributary_contract::ports::StateKey;
use tributary_contract::{Epoch, PeerName, PeerReport, PeerSpec, PeerState};

use super::connection::{Connection, Happened, Shared};
use super::handle::{Links, Live};
use super::metrics::MeshMetrics;
use super::rate_limit::Allowances;
use super::rejected_peers::{RejectedPeers, without_port};
use super::serve::Server;
use super::spawn::{MeshConfig, Ports};
use super::{Action, ConnId, Connected, Local, Membership, dial};
use crate::session::{Ending, Input, Misbehaviour, Sequences};
use crate::transport::{Accepted, DialError, Link, Resolve, Transport};
use crate::tunnel::{CAPABILITY, Control, RELAY_CAPABILITY};
use crate::wire::limits;
use crate::wire::registry::CloseCode;

/// Messages of connections that wait for the owner. Each may hold a frame, so there are few; readers wait.
const WAITING: usize = 8;

/// How a dial ended: whom, ticket, link.
type Dialled = (PeerName, u64, Result<Arc<dyn Link>, DialError>);

/// What others are told of the mesh.
pub(super) struct Published {
    pub(super) links: watch::Sender<Links>,
    pub(super) reports: watch::Sender<BTreeMap<PeerName, PeerReport>>,
    /// For who makes connections for tunnels.
    pub(super) controls: watch::Sender<BTreeMap<PeerName, Control>>,
    /// Connections for tunnels that peers made.
    pub(super) tunnels: mpsc::Sender<Arc<dyn Link>>,
}

pub(super) struct Owner {
    membership: Membership,
    connections: BTreeMap<ConnId, Connection>,
    dials: JoinSet<Dialled>,
    told: mpsc::Receiver<(ConnId, Happened)>,
    strangers: RejectedPeers,
    /// What peers do that they should not.
    misbehaved: RejectedPeers,
    /// When all links are judged again, because authorities end too.
    judge_at: Mono,
    judge_every: Duration,
    transport: Arc<dyn Transport>,
    resolve: Arc<dyn Resolve>,
    ports: Ports,
    published: Published,
    peers: watch::Receiver<BTreeMap<PeerName, PeerSpec>>,
    epoch: watch::Receiver<Option<Epoch>>,
    shutdown: CancellationToken,
    clock: SharedClock,
    metrics: MeshMetrics,
    shared: Shared,
}

/// What the owner woke up for.
enum Woken {
    Shutdown,
    Peers,
    Epoch,
    Changed(BTreeSet<(PeerName, StateKey)>),
    Connection(ConnId, Happened),
    Dialled(Dialled),
    Accepted(Accepted),
    Trust,
    Time,
}

impl Owner {
    pub(super) fn new(config: MeshConfig, transport: Arc<dyn Transport>, ports: Ports, published: Published) -> Self {
        let MeshConfig {
            name,
            cluster_uid,
            labels,
            version,
            versions,
            epoch,
            peers,
            timers,
            clock,
            mut rng,
            resolve,
            metrics,
            shutdown,
        } = config;
        timers.check().expect("the timers fit each other");
        let instance = rng.next_u64();
        let local = Local {
            name,
            cluster_uid,
            labels,
            version,
            versions,
            epoch: None,
            instance,
            timers,
            rng,
            sequences: Sequences::default(),
        };
        let server = Server {
            credentials: ports.credentials.clone(),
            queries: ports.queries.clone(),
            trust: ports.trust.clone(),
            limit: timers.request,
        };
        let (happened, told) = mpsc::channel(WAITING);
        let allowances = Allowances::default();
        let shared = Shared { happened, server, allowances, clock: clock.clone(), patience: timers.silent };
        Self {
            membership: Membership::new(local),
            connections: BTreeMap::new(),
            dials: JoinSet::new(),
            told,
            strangers: RejectedPeers::default(),
            misbehaved: RejectedPeers::known(),
            judge_at: clock.mono() + timers.summary,
            judge_every: timers.summary,
            transport,
            resolve,
            ports,
            published,
            peers,
            epoch,
            shutdown,
            clock,
            metrics,
            shared,
        }
    }

    pub(super) async fn run(mut self) {
        let transport = self.transport.clone();
        let (mut watch_peers, mut watch_epoch, mut accepting) = (true, true, true);
        // With no peers, nothing changes by which they would be counted.
        self.metrics.peers(std::iter::empty());
        self.set_peers();
        self.set_epoch();
        loop {
            self.settle();
            let wait = self.wait();
            let dirty = self.ports.outgoing.dirty().clone();
            let woken = tokio::select! {
                () = self.shutdown.cancelled() => Woken::Shutdown,
                // A sender that is gone leaves its last word standing.
                changed = self.peers.changed(), if watch_peers => {
                    watch_peers = changed.is_ok();
                    Woken::Peers
                }
                changed = self.epoch.changed(), if watch_epoch => {
                    watch_epoch = changed.is_ok();
                    Woken::Epoch
                }
                keys = dirty.changed() => Woken::Changed(keys),
                Some((id, happened)) = self.told.recv() => Woken::Connection(id, happened),
                Some(Ok(dialled)) = self.dials.join_next() => Woken::Dialled(dialled),
                accepted = transport.accept(), if accepting => match accepted {
                    Some(accepted) => Woken::Accepted(accepted),
                    None => {
                        accepting = false;
                        Woken::Time
                    }
                },
                () = transport.trust_changed() => Woken::Trust,
                () = sleep(wait.unwrap_or(Duration::MAX)), if wait.is_some() => Woken::Time,
            };
            if let Woken::Shutdown = woken {
                return self.end().await;
            }
            self.woken(woken);
        }
    }

    fn woken(&mut self, woken: Woken) {
        let now = self.now();
        match woken {
            Woken::Shutdown => {}
            Woken::Peers => self.set_peers(),
            Woken::Epoch => self.set_epoch(),
            Woken::Changed(keys) => self.membership.changed(now, &keys),
            Woken::Connection(id, happened) => self.happened(now, id, happened),
            Woken::Dialled((peer, ticket, result)) => {
                self.metrics.dialled(result.is_ok());
                match result {
                    Ok(link) => self.connected(now, link, Some((&peer, ticket))),
                    Err(error) => self.membership.dial_failed(now, &peer, ticket, error.refusal),
                }
            }
            Woken::Accepted(Accepted::Link(link)) if link.is_for_tunnels() => {
                // Who makes more of them than are looked at has made enough.
                if let Err(refused) = self.published.tunnels.try_send(link) {
                    refused.into_inner().close(CloseCode::Replaced, "too many connections for tunnels");
                }
            }
            Woken::Accepted(Accepted::Link(link)) => self.connected(now, link, None),
            Woken::Accepted(Accepted::Refused(refused)) => {
                self.metrics.refused();
                let who = refused.claimed.as_ref().map_or(without_port(&refused.remote), PeerName::as_str);
                if self.strangers.is_news(now.mono, who, &refused.refusal.reason) {
                    let (reason, message) = (&refused.refusal.reason, &refused.refusal.message);
                    tracing::warn!(claimed = who, remote = refused.remote, reason, message, "connection refused");
                }
                self.membership.refused(now, &refused);
            }
            Woken::Accepted(Accepted::Broken { remote, detail }) => {
                let what = Misbehaviour::Stranger;
                self.metrics.misbehaved(what);
                if self.strangers.is_news(now.mono, without_port(&remote), what.as_str()) {
                    tracing::warn!(remote, detail, "a stranger misbehaves");
                }
            }
            Woken::Trust => self.judge_all(),
            Woken::Time => {
                self.membership.timeout(now);
                if now.mono >= self.judge_at {
                    self.judge_all();
                }
            }
        }
    }

    fn now(&self) -> Now {
        Now::of(&*self.clock)
    }

    fn wait(&self) -> Option<Duration> {
        let judge = (!self.connections.is_empty()).then_some(self.judge_at);
        let at = [self.membership.poll_timeout(), judge].into_iter().flatten().min();
        at.map(|at| at.saturating_since(self.clock.mono()))
    }

    fn set_peers(&mut self) {
        let specs = self.peers.borrow_and_update().clone();
        self.transport.set_peers(&specs);
        self.shared.allowances.retain(|peer| specs.contains_key(peer));
        self.membership.set_peers(self.now(), &specs);
        self.judge_all();
    }

    /// Whoever is connected is judged again, by the configuration and the time of now.
    fn judge_all(&mut self) {
        self.judge_at = self.clock.mono() + self.judge_every;
        let ids: Vec<ConnId> = self.connections.keys().copied().collect();
        ids.into_iter().for_each(|id| self.judge(id));
    }

    fn judge(&mut self, id: ConnId) {
        let Some(link) = self.connections.get(&id).map(|connection| connection.link.clone()) else { return };
        let peer = &link.identity().name;
        let verdict = match self.peers.borrow().get(peer) {
            Some(spec) => link.verify_again(spec),
            // The membership ends it.
            None => Ok(()),
        };
        if let Err((code, reason)) = verdict {
            tracing::warn!(%peer, remote = link.remote(), %code, reason, "the peer is not trusted any more");
            self.membership.distrusted(self.now(), id, Ending { code, reason });
        }
    }

    fn set_epoch(&mut self) {
        let epoch = *self.epoch.borrow_and_update();
        self.membership.set_epoch(self.now(), epoch);
    }

    fn happened(&mut self, now: Now, id: ConnId, happened: Happened) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        match happened {
            Happened::Frame(frame) => {
                self.metrics.received(frame.len());
                if let Some(more) = connection.traffic(now.mono) {
                    self.metrics.wire(more);
                }
                connection.heard().set(now.mono);
                let remote = connection.link.remote();
                if connection.remote != remote {
                    tracing::info!(peer = %connection.link.identity().name, remote, "the peer's address changed");
                    connection.remote.clone_from(&remote);
                    self.membership.moved(now, id, remote);
                }
                self.membership.input(now, id, Input::Frame(frame));
            }
            Happened::Heard => {
                connection.heard().set(now.mono);
                self.membership.input(now, id, Input::Heard);
            }
            Happened::Misbehaved(what, detail) => {
                let peer = connection.link.identity().name.clone();
                self.misbehaved(&peer, what, &detail);
            }
            Happened::Written(buffer) => connection.buffer = Some(buffer),
            Happened::Closed(reason) => {
                self.metrics.closed(&reason);
                self.connections.remove(&id);
                self.membership.closed(now, id, &reason);
            }
        }
    }

    /// Counted each time, and logged once in a while.
    fn misbehaved(&mut self, peer: &PeerName, what: Misbehaviour, detail: &str) {
        self.metrics.misbehaved(what);
        if self.misbehaved.is_news(self.clock.mono(), peer.as_str(), what.as_str()) {
            tracing::warn!(%peer, what = what.as_str(), detail, "a peer misbehaves");
        }
    }

    fn connected(&mut self, now: Now, link: Arc<dyn Link>, dialled: Option<(&PeerName, u64)>) {
        let name = link.identity().name.clone();
        let (remote, expires, version) = (link.remote(), link.expires(), link.version());
        let connected = Connected { name: name.clone(), remote, expires, version };
        match self.membership.connected(now, &connected, dialled) {
            Ok(id) => {
                let connection = Connection::start(id, link, dialled.is_some(), self.shared.clone());
                self.connections.insert(id, connection);
                // The configuration may be another than that of its handshake.
                self.judge(id);
            }
            Err(Ending { code, reason }) => {
                self.metrics.refused();
                if self.strangers.is_news(now.mono, name.as_str(), &code.to_string()) {
                    tracing::warn!(peer = %name, remote = connected.remote, %code, reason, "connection refused");
                }
                link.close(code, &reason);
            }
        }
    }

    /// Does all that is to be done now: actions, and frames for every writer that is idle.
    fn settle(&mut self) {
        loop {
            while let Some(action) = self.membership.poll_action() {
                self.act(action);
            }
            if !self.transmit() {
                break;
            }
        }
        self.publish();
    }

    /// Returns whether anything was sent.
    fn transmit(&mut self) -> bool {
        let (now, mut sent) = (self.now(), false);
        for (id, connection) in &mut self.connections {
            let Some(mut buffer) = connection.buffer.take() else { continue };
            while buffer.len() < limits::WRITE_BATCH {
                let before = buffer.len();
                match self.membership.transmit(now, *id, &*self.ports.outgoing, &mut buffer) {
                    Some(lane) => self.metrics.sent(lane, buffer.len() - before),
                    None => break,
                }
            }
            if buffer.is_empty() {
                connection.buffer = Some(buffer);
            } else {
                connection.write(buffer);
                sent = true;
            }
        }
        sent
    }

    fn act(&mut self, action: Action) {
        let incoming = &self.ports.incoming;
        match action {
            Action::Misbehaved { peer, what, detail } => self.misbehaved(&peer, what, &detail),
            Action::Dial { peer, ticket, fresh, last } => {
                let (transport, resolve) = (self.transport.clone(), self.resolve.clone());
                self.dials.spawn(async move {
                    let result = dial::dial(&*transport, &*resolve, &peer, fresh, &last).await;
                    (peer.name, ticket, result)
                });
            }
            Action::Close { connection, ending: Ending { code, reason } } => {
                if let Some(connection) = self.connections.remove(&connection) {
                    let (peer, remote) = (&connection.link.identity().name, connection.link.remote());
                    tracing::debug!(%peer, remote, %code, reason, "connection closed");
                    self.metrics.ended(code);
                    connection.link.close(code, &reason);
                }
            }
            Action::Established { connection } => {
                if let Some(connection) = self.connections.get(&connection) {
                    connection.establish();
                }
            }
            Action::Put { peer, epoch, key, state } => incoming.put(&peer, epoch, key, state),
            Action::Unchanged { peer, epoch, keys } => incoming.unchanged(&peer, epoch, &keys),
            Action::CompleteSnapshot { peer, epoch, keys } => {
                incoming.complete_snapshot(&peer, epoch, &keys);
                self.membership.release(&peer, |key| incoming.keeps(&peer, key));
            }
            Action::Undeliverable { peer, key, problem } => {
                // A peer may say so as often as it likes; each object says it of itself.
                if self.strangers.is_news(self.clock.mono(), peer.as_str(), "undeliverable") {
                    tracing::warn!(%peer, ?key, problem, "a state does not reach its peer");
                }
                incoming.undeliverable(&peer, key, &problem);
            }
            Action::Report { peer, mut report } => {
                log(&peer, &report);
                let connection = self.membership.preferred(&peer).and_then(|id| self.connections.get(&id));
                let rtt = connection.and_then(|connection| connection.link.rtt());
                report.rtt_micros = rtt.and_then(|rtt| u64::try_from(rtt.as_micros()).ok());
                incoming.peer_report(&peer, *report);
            }
            Action::Forget { peer } => tracing::info!(%peer, "peer forgotten"),
        }
    }

    /// Tells the handles what changed.
    fn publish(&mut self) {
        let changed = self.membership.take_changed();
        if changed.is_empty() {
            return;
        }
        let Published { links, reports, controls, .. } = &self.published;
        reports.send_if_modified(|reports| {
            let mut modified = false;
            for name in &changed {
                let new = self.membership.report(name);
                if reports.get(name) != new {
                    modified = true;
                    match new {
                        Some(new) => drop(reports.insert(name.clone(), new.clone())),
                        None => drop(reports.remove(name)),
                    }
                }
            }
            self.metrics.peers(reports.values());
            modified
        });
        let relinked = links.send_if_modified(|links| {
            let in_use = |name: &PeerName| links.get(name).map(|live| live.connection);
            if changed.iter().all(|name| in_use(name) == self.membership.preferred(name)) {
                return false;
            }
            let live = |name: &PeerName| {
                let id = self.membership.preferred(name)?;
                let connection = self.connections.get(&id)?;
                let (link, heard) = (connection.link.clone(), connection.heard().clone());
                Some((name.clone(), Live { connection: id, link, heard }))
            };
            *links = reports.borrow().keys().filter_map(live).collect();
            self.metrics.connected(links.len());
            true
        });
        if relinked {
            let control = |(name, live): (&PeerName, &Live)| {
                let dialled = self.connections.get(&live.connection).is_some_and(|connection| connection.dialled);
                let capable = self.membership.is_capable(name, CAPABILITY);
                let relays = self.membership.is_capable(name, RELAY_CAPABILITY);
                let remote = live.link.remote();
                (name.clone(), Control { connection: live.connection, dialled, capable, relays, remote })
            };
            controls.send_replace(links.borrow().iter().map(control).collect());
        }
    }

    async fn end(mut self) {
        self.dials.shutdown().await;
        let ending = Ending::new(CloseCode::Done, "the agent stops, or another replica leads");
        self.membership.end_all(self.now(), &ending);
        while let Some(action) = self.membership.poll_action() {
            // What is reported now would be about ourselves.
            if matches!(action, Action::Close { .. }) {
                self.act(action);
            }
        }
        self.published.links.send_replace(BTreeMap::new());
        self.metrics.ended_with_the_term();
        self.transport.shutdown().await;
    }
}

fn log(peer: &PeerName, report: &PeerReport) {
    let endpoint = report.endpoint.as_deref().unwrap_or_default();
    match &report.refusal {
        Some(refusal) => {
            tracing::warn!(%peer, state = ?report.state, reason = refusal.reason, message = refusal.message, "peer");
        }
        None if report.state == PeerState::Suspect => tracing::warn!(%peer, endpoint, "peer is silent"),
        None => tracing::info!(%peer, state = ?report.state, endpoint, "peer"),
    }
}
