//! The mesh as a state machine without input, output or clock: all configured peers, who may connect, who is dialled.
//!
//! Its driver (`owner`) tells it what happened, then takes [`Membership::poll_action`] until there is none, and asks
//! [`Membership::transmit`] for every link that has room.
//!
//! What it keeps true:
//! - only configured, not suspended peers have connections, and those of one that is removed or suspended end at once;
//! - a peer with endpoints and without a connection is dialled, at intervals that grow (`backoff`);
//! - a connection ends with the first certificate of both; before, a new one is made;
//! - of several completed connections of one pair, one stays ([`super::tie_break`]).

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use bytes::BytesMut;
use tributary_clock::{Mono, Now};
use tributary_contract::ports::{Outgoing, StateKey};
use tributary_contract::{Epoch, PeerName, PeerReport, PeerSpec, Refusal};

use super::peer::Peer;
use super::{Action, ConnId, Connected, Local, report};
use crate::session::{Ending, Input, Lane};
use crate::transport::{CloseReason, RefusedLink};
use crate::wire::registry::CloseCode;

/// The mesh. See the module.
#[derive(Debug)]
pub(crate) struct Membership {
    local: Local,
    peers: BTreeMap<PeerName, Peer>,
    /// Whose connection it is.
    owners: BTreeMap<ConnId, PeerName>,
    next: u64,
    actions: VecDeque<Action>,
    /// Whose report or connection to use is another than it was.
    changed: BTreeSet<PeerName>,
}

impl Membership {
    /// A mesh without peers.
    pub(crate) fn new(local: Local) -> Self {
        let (peers, owners) = (BTreeMap::new(), BTreeMap::new());
        Self { local, peers, owners, next: 0, actions: VecDeque::new(), changed: BTreeSet::new() }
    }

    /// The configured peers changed.
    pub(crate) fn set_peers(&mut self, now: Now, specs: &BTreeMap<PeerName, PeerSpec>) {
        let gone: Vec<PeerName> = self.peers.keys().filter(|name| !specs.contains_key(*name)).cloned().collect();
        for name in gone {
            if let Some(mut peer) = self.peers.remove(&name) {
                let sentence = format!("cluster `{}` deleted its ClusterPeer `{name}`", self.local.name);
                let ending = Ending::new(CloseCode::UnknownPeer, sentence);
                peer.end_all(now, &ending, &mut self.actions);
                self.changed.insert(name.clone());
                self.actions.push_back(Action::Forget { peer: name });
            }
        }
        for (name, spec) in specs {
            match self.peers.get_mut(name) {
                Some(peer) => peer.respecify(now, &self.local, spec.clone(), &mut self.actions),
                None => {
                    self.peers.insert(name.clone(), Peer::new(now, spec.clone()));
                }
            }
            self.refresh(now, name);
        }
        self.timeout(now);
    }

    /// The leadership we speak for changed; `None`: we do not lead, and nobody is spoken to.
    pub(crate) fn set_epoch(&mut self, now: Now, epoch: Option<Epoch>) {
        if self.local.epoch == epoch {
            return;
        }
        self.local.epoch = epoch;
        self.end_all(now, &Ending::new(CloseCode::Done, "the leadership of the agent changed"));
        self.timeout(now);
    }

    /// Closes every connection.
    pub(crate) fn end_all(&mut self, now: Now, ending: &Ending) {
        self.peers.values_mut().for_each(|peer| peer.end_all(now, ending, &mut self.actions));
        self.refresh_all(now);
    }

    /// A link was made or taken; `dialled`: for whom and with which ticket.
    ///
    /// # Errors
    /// How to close it at once.
    pub(crate) fn connected(
        &mut self,
        now: Now,
        connected: &Connected,
        dialled: Option<(&PeerName, u64)>,
    ) -> Result<ConnId, Ending> {
        let Some((meant, ticket)) = dialled else {
            return self.admit(now, connected, false);
        };
        if !self.peers.get_mut(meant).is_some_and(|peer| peer.dialled(ticket)) {
            return Err(Ending::new(CloseCode::Reconfigured, "the ClusterPeer changed meanwhile"));
        }
        let admitted = self.admit(now, connected, true);
        if let Err(ending) = &admitted
            && let Some(refusal) = report::ended(ending.code, "we ended it", &ending.reason)
            && let Some(peer) = self.peers.get_mut(meant)
        {
            peer.dial_failed(now, &mut self.local, refusal);
            self.refresh(now, meant);
        }
        admitted
    }

    pub(crate) fn dial_failed(&mut self, now: Now, name: &PeerName, ticket: u64, refusal: Refusal) {
        if let Some(peer) = self.peers.get_mut(name)
            && peer.dialled(ticket)
        {
            peer.dial_failed(now, &mut self.local, refusal);
            self.refresh(now, name);
        }
    }

    /// The transport turned somebody away.
    pub(crate) fn refused(&mut self, now: Now, refused: &RefusedLink) {
        if let Some(name) = &refused.claimed
            && let Some(peer) = self.peers.get_mut(name)
        {
            peer.claimed(now, &self.local, &refused.remote, refused.refusal.clone());
            self.refresh(now, name);
        }
    }

    /// Something arrived on a connection.
    pub(crate) fn input(&mut self, now: Now, id: ConnId, input: Input) {
        self.on(now, id, |peer, local, actions| peer.input(now, local, id, input, actions));
    }

    /// The address at the other end of a connection is now `remote`.
    pub(crate) fn moved(&mut self, now: Now, id: ConnId, remote: String) {
        self.on(now, id, |peer, _, _| peer.moved(id, remote));
    }

    /// Who is connected would not be let in any more.
    pub(crate) fn distrusted(&mut self, now: Now, id: ConnId, ending: Ending) {
        self.on(now, id, |peer, local, actions| peer.close(now, local, id, ending, actions));
    }

    /// A link ended.
    pub(crate) fn closed(&mut self, now: Now, id: ConnId, reason: &CloseReason) {
        self.on(now, id, |peer, local, _| peer.closed(now, local, id, reason));
        self.owners.remove(&id);
    }

    /// States of ours changed.
    pub(crate) fn changed(&mut self, now: Now, keys: &BTreeSet<(PeerName, StateKey)>) {
        for (name, key) in keys {
            if let Some(peer) = self.peers.get_mut(name) {
                peer.changed(now, key);
            }
        }
    }

    /// Of what a peer names no more, only what is still `kept` counts against what it may say.
    pub(crate) fn release(&mut self, name: &PeerName, kept: impl Fn(&StateKey) -> bool) {
        if let Some(peer) = self.peers.get_mut(name) {
            peer.inbox.release(kept);
        }
    }

    /// The time [`Membership::poll_timeout`] asked for has come.
    pub(crate) fn timeout(&mut self, now: Now) {
        self.peers.values_mut().for_each(|peer| peer.timeout(now, &mut self.local, &mut self.actions));
        self.refresh_all(now);
    }

    /// When to call [`Membership::timeout`].
    pub(crate) fn poll_timeout(&self) -> Option<Mono> {
        self.peers.values().filter_map(|peer| peer.next_timeout(&self.local)).min()
    }

    /// Appends the next frame for a connection to `buf`; `None`: there is none now. It is asked of every connection at each
    /// event, and costs next to nothing then.
    pub(crate) fn transmit(
        &mut self,
        now: Now,
        id: ConnId,
        outgoing: &dyn Outgoing,
        buf: &mut BytesMut,
    ) -> Option<Lane> {
        let name = self.owners.get(&id)?;
        let peer = self.peers.get_mut(name)?;
        let (lane, changed) = peer.transmit(now, &mut self.local, id, outgoing, buf, &mut self.actions);
        if changed {
            let name = name.clone();
            self.refresh(now, &name);
        }
        lane
    }

    /// What to do next.
    pub(crate) fn poll_action(&mut self) -> Option<Action> {
        let action = self.actions.pop_front()?;
        if let Action::Close { connection, .. } = &action {
            self.owners.remove(connection);
        }
        Some(action)
    }

    /// The connection to use for requests to a peer.
    pub(crate) fn preferred(&self, name: &PeerName) -> Option<ConnId> {
        self.peers.get(name)?.preferred()
    }

    /// Whether the hello of a peer names a capability.
    pub(crate) fn is_capable(&self, name: &PeerName, capability: &str) -> bool {
        let hello = self.peers.get(name).and_then(|peer| peer.hello.as_ref());
        hello.is_some_and(|hello| hello.capabilities.contains(capability))
    }

    /// What is known of a configured peer.
    pub(crate) fn report(&self, name: &PeerName) -> Option<&PeerReport> {
        self.peers.get(name).map(|peer| &peer.report)
    }

    /// Those of whom [`Membership::report`] or [`Membership::preferred`] says something else than the last time.
    pub(crate) fn take_changed(&mut self) -> BTreeSet<PeerName> {
        std::mem::take(&mut self.changed)
    }

    fn admit(&mut self, now: Now, connected: &Connected, dialled: bool) -> Result<ConnId, Ending> {
        let name = &connected.name;
        let unknown = || {
            let sentence = format!("cluster `{}` has no ClusterPeer `{name}`: create one there", self.local.name);
            Ending::new(CloseCode::UnknownPeer, sentence)
        };
        let peer = self.peers.get_mut(name).ok_or_else(unknown)?;
        let Some(hello) = self.local.hello() else {
            return Err(Ending::new(CloseCode::Done, "the agent does not lead"));
        };
        let id = ConnId(self.next);
        peer.connected(now, &self.local, hello, id, (connected, dialled), &mut self.actions)?;
        self.next += 1;
        self.owners.insert(id, name.clone());
        Ok(id)
    }

    fn on<R>(
        &mut self,
        now: Now,
        id: ConnId,
        f: impl FnOnce(&mut Peer, &mut Local, &mut VecDeque<Action>) -> R,
    ) -> Option<R> {
        let name = self.owners.get(&id)?.clone();
        let result = f(self.peers.get_mut(&name)?, &mut self.local, &mut self.actions);
        self.refresh(now, &name);
        Some(result)
    }

    fn refresh_all(&mut self, now: Now) {
        let names: Vec<PeerName> = self.peers.keys().cloned().collect();
        names.iter().for_each(|name| self.refresh(now, name));
    }

    fn refresh(&mut self, now: Now, name: &PeerName) {
        let Some(peer) = self.peers.get_mut(name) else { return };
        let preferred = peer.preferred();
        let healthy = preferred.is_some() && !peer.is_suspect();
        let flapping = peer.flaps.observe(now.mono, healthy, &self.local.timers);
        let new = report::of(peer, flapping, now);
        let reported = std::mem::replace(&mut peer.reported, preferred);
        if new == peer.report && reported == preferred {
            return;
        }
        self.changed.insert(name.clone());
        let old = std::mem::replace(&mut peer.report, new);
        if report::is_transition(old, &peer.report) {
            let (peer, report) = (name.clone(), peer.report.clone());
            self.actions.push_back(Action::Report { peer, report: Box::new(report) });
        }
    }
}

#[cfg(test)]
mod tests;
