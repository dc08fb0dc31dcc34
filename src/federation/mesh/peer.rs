//! All there is to one configured peer: its connections and their sessions, when to dial it, what is reported of it.
//! Without input, output or clock.

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::time::Duration;

use bytes::BytesMut;
use jiff::Timestamp;
use tributary_clock::{Mono, Now};
use tributary_contract::ports::{Outgoing, StateKey};
use tributary_contract::{Capacity, PeerReport, PeerSpec, Refusal};

use super::backoff::Backoff;
use super::flaps::Flaps;
use super::{Action, ConnId, Connected, Local, report, tie_break};
use crate::session::{Ending, Event, Expected, Inbox, Input, Lane, Session};
use crate::transport::CloseReason;
use crate::wire::limits;
use crate::wire::messages::Hello;
use crate::wire::registry::{CloseCode, RefusalReason};

/// One configured peer.
#[derive(Debug)]
pub(super) struct Peer {
    pub(super) spec: PeerSpec,
    pub(super) inbox: Inbox,
    connections: BTreeMap<ConnId, Connection>,
    dial: Dial,
    /// Why there is no connection, and since when we say so.
    pub(super) refusal: Option<(Mono, Refusal)>,
    /// The last hello and capacity, kept over cuts.
    pub(super) hello: Option<Hello>,
    pub(super) capacity: Option<Capacity>,
    pub(super) last_heard: Option<Mono>,
    pub(super) flaps: Flaps,
    pub(super) report: PeerReport,
    /// The connection to use, as it was when the report was made.
    pub(super) reported: Option<ConnId>,
}

#[derive(Debug)]
struct Connection {
    session: Session,
    remote: String,
    /// Whether we dialled it.
    dialled: bool,
    established: Option<Mono>,
    /// It was silent for too long, and nothing was heard since.
    missed: bool,
    expires: Mono,
    /// When a successor is made.
    renew: Mono,
    /// The end on the wall clock: it may be set, and it goes on while a machine sleeps.
    expires_at: Timestamp,
}

#[derive(Debug)]
struct Dial {
    /// Not before.
    at: Mono,
    in_flight: bool,
    /// Tells an answer that is still on its way for an earlier spec.
    ticket: u64,
    /// The addresses known so far did not answer.
    fresh: bool,
    /// Addresses where a connection was made and came to nothing, and when: they are tried last for a while.
    shunned: BTreeMap<SocketAddr, Mono>,
    backoff: Backoff,
}

/// How long an address is tried last.
const SHUNNED: Duration = Duration::from_secs(60);

/// What is remembered of that.
const SHUNNED_ADDRESSES: usize = 16;

impl Peer {
    pub(super) fn new(now: Now, spec: PeerSpec) -> Self {
        let dial = Dial {
            at: now.mono,
            in_flight: false,
            ticket: 0,
            fresh: false,
            shunned: BTreeMap::new(),
            backoff: Backoff::default(),
        };
        Self {
            spec,
            inbox: Inbox::default(),
            connections: BTreeMap::new(),
            dial,
            refusal: None,
            hello: None,
            capacity: None,
            last_heard: None,
            flaps: Flaps::default(),
            report: PeerReport::default(),
            reported: None,
        }
    }

    /// The ClusterPeer changed. Whether its trust bundle still covers who is connected is for the transport to say:
    /// see [`super::Membership::distrusted`].
    pub(super) fn respecify(&mut self, now: Now, local: &Local, spec: PeerSpec, out: &mut VecDeque<Action>) {
        let old = std::mem::replace(&mut self.spec, spec);
        let new = &self.spec;
        if *new == old {
            return;
        }
        let ending = new.suspend.then(|| suspended(local, new));
        // What is under way for the spec of before must not count.
        let same_dial =
            new.suspend == old.suspend && new.endpoints == old.endpoints && new.trust_bundle == old.trust_bundle;
        let heard = self.inbox.cluster_uid().cloned();
        let other_cluster = match (&new.cluster_uid, &heard) {
            (Some(pinned), Some(heard)) => pinned != heard,
            // The pin was taken away: whoever comes next is pinned, unless the one we know is still there.
            (None, Some(_)) => old.cluster_uid.is_some() && self.preferred().is_none(),
            _ => false,
        };
        if let Some(ending) = ending {
            self.end_all(now, &ending, out);
        } else if other_cluster {
            self.end_all(
                now,
                &Ending::new(CloseCode::WrongClusterUid, "the ClusterPeer pins another cluster UID"),
                out,
            );
        }
        if other_cluster {
            self.inbox = Inbox::default();
        }
        self.refusal = None;
        self.flaps = Flaps::default();
        self.dial = Dial {
            at: now.mono,
            in_flight: same_dial && self.dial.in_flight,
            ticket: self.dial.ticket + u64::from(!same_dial),
            fresh: true,
            shunned: BTreeMap::new(),
            backoff: Backoff::default(),
        };
    }

    /// A connection was made; `local` has the hello to say.
    pub(super) fn connected(
        &mut self,
        now: Now,
        local: &Local,
        hello: Hello,
        id: ConnId,
        (connected, dialled): (&Connected, bool),
        out: &mut VecDeque<Action>,
    ) -> Result<(), Ending> {
        if self.spec.suspend {
            return Err(suspended(local, &self.spec));
        }
        if connected.expires <= now.wall {
            return Err(Ending::new(CloseCode::CertificateEnding, "the certificate of the connection has ended"));
        }
        while self.connections.len() >= limits::CONNECTIONS_PER_PEER {
            // Half-open ones go first: they must not push out the one that works.
            let half_open = self.connections.iter().find(|(_, connection)| connection.established.is_none());
            let Some(id) = half_open.or(self.connections.first_key_value()).map(|(id, _)| *id) else { break };
            self.connections.remove(&id);
            let ending = Ending::new(CloseCode::Replaced, "too many connections of one peer");
            out.push_back(Action::Close { connection: id, ending });
        }
        let pinned = self.spec.cluster_uid.clone().or_else(|| self.inbox.cluster_uid().cloned());
        let expected = Expected { name: self.spec.name.clone(), cluster_uid: pinned, version: connected.version };
        let session = Session::new(now.mono, local.timers, hello, local.sequences.clone(), expected);
        let life = until(now.wall, connected.expires);
        let connection = Connection {
            session,
            remote: connected.remote.clone(),
            dialled,
            established: None,
            missed: false,
            expires: now.mono + life,
            // Of a very short life, a third must do.
            renew: now.mono + (life - local.timers.renew_before_expiry.min(life / 3)),
            expires_at: connected.expires,
        };
        self.connections.insert(id, connection);
        Ok(())
    }

    /// The dial of `ticket` is over; returns whether it is the one that counts.
    pub(super) fn dialled(&mut self, ticket: u64) -> bool {
        let current = self.dial.ticket == ticket;
        if current {
            self.dial.in_flight = false;
        }
        current
    }

    pub(super) fn dial_failed(&mut self, now: Now, local: &mut Local, refusal: Refusal) {
        self.dial.fresh = true;
        self.dial.at = now.mono + self.dial.backoff.failed(&local.timers, &mut *local.rng);
        self.refused(now, local, refusal);
    }

    /// Somebody was refused who says that it is this peer, and has not shown it: that is worth less than all that is known.
    pub(super) fn claimed(&mut self, now: Now, local: &Local, remote: &str, refusal: Refusal) {
        let Refusal { reason, message } = refusal;
        let known = |(since, old): &(Mono, Refusal)| {
            let silence = old.reason == RefusalReason::Unreachable.as_str();
            !silence && now.mono.saturating_since(*since) < local.timers.grace
        };
        if !self.refusal.as_ref().is_some_and(known) {
            // Its port changes with every attempt, and each other sentence is a write.
            let remote = remote.rsplit_once(':').map_or(remote, |(address, _)| address);
            let message = format!("somebody at {remote} says that it is this peer, and was refused: {message}");
            self.refused(now, local, Refusal { reason, message });
        }
    }

    /// This peer refused us, or was refused.
    fn refused(&mut self, now: Now, local: &Local, refusal: Refusal) {
        if self.preferred().is_some() {
            return;
        }
        // A reason that names a fault is worth more than silence: one that refuses our dials may be unreachable besides.
        let silence = refusal.reason == RefusalReason::Unreachable.as_str();
        let named = |(since, old): &(Mono, Refusal)| {
            old.reason != RefusalReason::Unreachable.as_str() && now.mono.saturating_since(*since) < local.timers.grace
        };
        if !(silence && self.refusal.as_ref().is_some_and(named)) {
            self.refusal = Some((now.mono, refusal));
        }
    }

    pub(super) fn input(&mut self, now: Now, local: &mut Local, id: ConnId, input: Input, out: &mut VecDeque<Action>) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        self.last_heard = Some(now.mono);
        connection.session.handle(now.mono, &mut self.inbox, input);
        self.drain(now, local, id, out);
    }

    pub(super) fn changed(&mut self, now: Now, key: &StateKey) {
        for connection in self.connections.values_mut() {
            connection.session.handle(now.mono, &mut self.inbox, Input::Changed(key.clone()));
        }
    }

    /// The address at the other end of a connection changed, and the connection lives on.
    pub(super) fn moved(&mut self, id: ConnId, remote: String) {
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.remote = remote;
        }
    }

    /// A connection ended; not by our [`Action::Close`].
    pub(super) fn closed(&mut self, now: Now, local: &mut Local, id: ConnId, reason: &CloseReason) {
        if let Some(connection) = self.connections.remove(&id) {
            let (code, refusal) = match reason {
                CloseReason::Local(code) => (Some(*code), report::ended(*code, "we ended it", "")),
                CloseReason::Peer { code, reason } => (Some(*code), report::ended(*code, "the peer ended it", reason)),
                CloseReason::Refused(refusal) => (None, Some(refusal.clone())),
                CloseReason::Lost(text) => (None, Some(RefusalReason::Unreachable.because(text))),
            };
            self.lost(now, local, &connection, code, refusal);
        }
    }

    pub(super) fn timeout(&mut self, now: Now, local: &mut Local, out: &mut VecDeque<Action>) {
        let ids: Vec<ConnId> = self.connections.keys().copied().collect();
        for id in ids {
            let Some(connection) = self.connections.get_mut(&id) else { continue };
            if now.mono >= connection.expires || now.wall >= connection.expires_at {
                let ending = Ending::new(CloseCode::CertificateEnding, "the certificate of the connection has ended");
                self.close(now, local, id, ending, out);
            } else if connection.session.poll_timeout().is_some_and(|at| now.mono >= at) {
                connection.session.handle(now.mono, &mut self.inbox, Input::Timeout);
                self.drain(now, local, id, out);
            }
        }
        let overlap = local.timers.overlap;
        for id in tie_break::surplus(&local.name, &self.spec.name, &self.healthy(), overlap, now.mono) {
            self.close(now, local, id, Ending::new(CloseCode::Replaced, "another connection stays"), out);
        }
        if self.dial_due(local).is_some_and(|at| now.mono >= at) {
            self.dial.in_flight = true;
            self.dial.shunned.retain(|_, since| now.mono.saturating_since(*since) < SHUNNED);
            let last = self.dial.shunned.keys().copied().collect();
            let (peer, ticket, fresh) = (self.spec.clone(), self.dial.ticket, self.dial.fresh);
            out.push_back(Action::Dial { peer, ticket, fresh, last });
        }
    }

    /// When [`Peer::timeout`] has something to do.
    pub(super) fn next_timeout(&self, local: &Local) -> Option<Mono> {
        let sessions = self.connections.values().filter_map(|connection| connection.session.poll_timeout()).min();
        let expiry = self.connections.values().map(|connection| connection.expires).min();
        let surplus = tie_break::due(&local.name, &self.spec.name, &self.healthy(), local.timers.overlap);
        let settled = self.flaps.settles(&local.timers);
        [sessions, expiry, surplus, self.dial_due(local), settled].into_iter().flatten().min()
    }

    /// Appends the next frame for a connection. Also says whether anything changed by that.
    pub(super) fn transmit(
        &mut self,
        now: Now,
        local: &mut Local,
        id: ConnId,
        outgoing: &dyn Outgoing,
        buf: &mut BytesMut,
        out: &mut VecDeque<Action>,
    ) -> (Option<Lane>, bool) {
        let Some(connection) = self.connections.get_mut(&id) else { return (None, false) };
        let lane = connection.session.poll_transmit(outgoing, buf);
        let drained = self.drain(now, local, id, out);
        (lane, lane.is_some() || drained)
    }

    /// Closes everything, for good or until something changes.
    pub(super) fn end_all(&mut self, now: Now, ending: &Ending, out: &mut VecDeque<Action>) {
        self.dial.at = now.mono;
        while let Some((connection, _)) = self.connections.pop_first() {
            out.push_back(Action::Close { connection, ending: ending.clone() });
        }
    }

    /// The connection to use: established, healthy rather than suspect, the newest.
    pub(super) fn preferred(&self) -> Option<ConnId> {
        let established = self.connections.iter().filter_map(|(id, connection)| {
            connection.established.map(|at| (!connection.session.is_suspect(), at, *id))
        });
        established.max().map(|(.., id)| id)
    }

    pub(super) fn is_suspect(&self) -> bool {
        self.preferred().is_some_and(|id| self.connections[&id].session.is_suspect())
    }

    pub(super) fn endpoint(&self) -> Option<String> {
        self.preferred().map(|id| self.connections[&id].remote.clone())
    }

    /// When to dial; `None`: not as things are.
    fn dial_due(&self, local: &Local) -> Option<Mono> {
        let greeting = self.connections.values().any(|connection| connection.established.is_none());
        let may = local.epoch.is_some() && !self.spec.suspend && !self.spec.endpoints.is_empty();
        if !may || self.dial.in_flight || greeting {
            return None;
        }
        // A suspect one is as good as lost: its successor is made now, and not when it is given up.
        let renew = |connection: &Connection| (!connection.session.is_suspect()).then_some(connection.renew);
        let renew = self.connections.values().filter_map(renew).max().unwrap_or_default();
        Some(self.dial.at.max(renew))
    }

    fn healthy(&self) -> Vec<(ConnId, Mono)> {
        let healthy = |(id, connection): (&ConnId, &Connection)| {
            connection.established.filter(|_| !connection.session.is_suspect()).map(|at| (*id, at))
        };
        self.connections.iter().filter_map(healthy).collect()
    }

    pub(super) fn close(
        &mut self,
        now: Now,
        local: &mut Local,
        id: ConnId,
        ending: Ending,
        out: &mut VecDeque<Action>,
    ) {
        if let Some(connection) = self.connections.remove(&id) {
            let refusal = report::ended(ending.code, "we ended it", &ending.reason);
            self.lost(now, local, &connection, Some(ending.code), refusal);
            out.push_back(Action::Close { connection: id, ending });
        }
    }

    fn lost(
        &mut self,
        now: Now,
        local: &mut Local,
        connection: &Connection,
        code: Option<CloseCode>,
        refusal: Option<Refusal>,
    ) {
        // One that lasted counts as success; one that ends at once must not be dialled in a tight loop.
        if connection.established.is_some_and(|at| now.mono.saturating_since(at) >= local.timers.suspect) {
            self.dial.backoff.reset();
        }
        let wait = match code {
            // The one that stays is perhaps not completed on our side yet.
            Some(CloseCode::Replaced) => local.timers.overlap,
            _ => self.dial.backoff.failed(&local.timers, &mut *local.rng),
        };
        let at = now.mono + wait;
        self.dial.at = if self.preferred().is_some() { self.dial.at.max(at) } else { at };
        let meant = matches!(
            code,
            Some(CloseCode::Done | CloseCode::Replaced | CloseCode::CertificateEnding | CloseCode::Reconfigured)
        );
        let worked = connection.established.is_some() && !connection.missed;
        if worked && !meant && self.healthy().is_empty() {
            self.flaps.lost(now.mono);
        }
        // Where the peer was is no word on where it is now.
        self.dial.fresh |= !matches!(code, Some(CloseCode::Replaced | CloseCode::CertificateEnding));
        if connection.dialled
            && connection.established.is_none()
            && self.dial.shunned.len() < SHUNNED_ADDRESSES
            && let Ok(address) = connection.remote.parse()
        {
            self.dial.shunned.insert(address, now.mono);
        }
        if let Some(refusal) = refusal {
            self.refused(now, local, refusal);
        }
    }

    /// Returns whether there was anything.
    fn drain(&mut self, now: Now, local: &mut Local, id: ConnId, out: &mut VecDeque<Action>) -> bool {
        let mut drained = false;
        while let Some(event) = self.connections.get_mut(&id).and_then(|connection| connection.session.poll_event()) {
            drained = true;
            let peer = self.spec.name.clone();
            match event {
                Event::Established(hello) => self.established(now, local, id, *hello, out),
                Event::Capacity(capacity) => self.capacity = capacity,
                Event::Suspect | Event::Recovered => {
                    let missed = event == Event::Suspect;
                    self.connections.entry(id).and_modify(|connection| connection.missed = missed);
                    if missed && self.healthy().is_empty() {
                        self.flaps.lost(now.mono);
                        self.dial.fresh = true;
                        self.dial.at = now.mono;
                    }
                }
                Event::Misbehaved(what, detail) => out.push_back(Action::Misbehaved { peer, what, detail }),
                Event::Put { epoch, key, state } => out.push_back(Action::Put { peer, epoch, key, state }),
                Event::Unchanged { epoch, keys } => out.push_back(Action::Unchanged { peer, epoch, keys }),
                Event::CompleteSnapshot { epoch, keys } => {
                    out.push_back(Action::CompleteSnapshot { peer, epoch, keys });
                }
                Event::Undeliverable { key, problem } => {
                    out.push_back(Action::Undeliverable { peer, key, problem });
                }
                Event::Close(ending) => self.close(now, local, id, ending, out),
            }
        }
        drained
    }

    fn established(&mut self, now: Now, local: &mut Local, id: ConnId, hello: Hello, out: &mut VecDeque<Action>) {
        // Connections of an earlier process or leadership of the peer are dead, or talk to an old leader.
        let inbox = &self.inbox;
        let outdated = |(_, connection): &(&ConnId, &Connection)| {
            connection.session.origin().is_some_and(|origin| !inbox.hears(origin))
        };
        let outdated: Vec<ConnId> = self.connections.iter().filter(outdated).map(|(id, _)| *id).collect();
        for old in outdated {
            let ending = Ending::new(CloseCode::Replaced, "a newer process of the peer is connected");
            self.close(now, local, old, ending, out);
        }
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.established = Some(now.mono);
        }
        self.refusal = None;
        self.hello = Some(hello);
        self.dial.fresh = false;
        // If the certificate was not renewed yet, the next attempt is not at once.
        self.dial.at = now.mono + local.timers.dial_max;
        out.push_back(Action::Established { connection: id });
    }
}

fn suspended(local: &Local, spec: &PeerSpec) -> Ending {
    let sentence = format!("cluster `{}` suspended its ClusterPeer `{}`", local.name, spec.name);
    Ending::new(CloseCode::Suspended, sentence)
}

/// Zero if `end` is past.
fn until(now: Timestamp, end: Timestamp) -> Duration {
    end.duration_since(now).try_into().unwrap_or_default()
}
