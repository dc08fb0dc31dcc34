//! The simulated world.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use jiff::Timestamp;
use proptest::prelude::*;
use tributary_clock::{Now, SeededRng};
use tributary_contract::PeerState;
use tributary_contract::ports::{Incoming, State};

use super::super::*;
use super::T;
use crate::session::Sequences;
use crate::testing::Cluster;
use crate::wire::registry::RefusalReason;
use crate::wire::version::WireVersions;
use crate::wire::{frame, limits};

/// One way.
const DELAY: Duration = Duration::from_millis(25);

/// Something that happens to the world.
#[derive(Clone, Debug)]
pub(super) enum Operation {
    Cut(&'static str, &'static str),
    Heal(&'static str, &'static str),
    HealAll,
    Say(&'static str, &'static str, u8, u64),
    Tombstone(&'static str, &'static str, u8),
    Forget(&'static str, &'static str, u8),
    Restart(&'static str),
    NextLeader(&'static str),
    Complete(&'static str, bool),
    Pass(u64),
}

pub(super) fn operation() -> impl Strategy<Value = Operation> {
    let name = || prop::sample::select(vec!["east", "north", "west"]);
    prop_oneof![
        1 => (name(), name()).prop_map(|(a, b)| Operation::Cut(a, b)),
        1 => (name(), name()).prop_map(|(a, b)| Operation::Heal(a, b)),
        4 => (name(), name(), 0..4_u8, 1..9_u64).prop_map(|(a, b, key, value)| Operation::Say(a, b, key, value)),
        1 => (name(), name(), 0..4_u8).prop_map(|(a, b, key)| Operation::Tombstone(a, b, key)),
        1 => (name(), name(), 0..4_u8).prop_map(|(a, b, key)| Operation::Forget(a, b, key)),
        1 => name().prop_map(Operation::Restart),
        1 => name().prop_map(Operation::NextLeader),
        1 => (name(), any::<bool>()).prop_map(|(a, complete)| Operation::Complete(a, complete)),
        5 => prop_oneof![0..200_u64, 0..40_000_u64].prop_map(Operation::Pass),
    ]
}

struct Node {
    membership: Membership,
    cluster: Arc<Cluster>,
    specs: BTreeMap<PeerName, PeerSpec>,
    uid: String,
    epoch: u64,
    certificate_end: Timestamp,
    up: bool,
    wires: BTreeMap<ConnId, (usize, usize)>,
}

/// A connection: its two ends, and whether it is broken.
struct Wire {
    ends: [Option<(String, ConnId)>; 2],
    names: [String; 2],
}

enum Packet {
    Dial { from: String, to: String, ticket: u64 },
    Frame { wire: usize, to: usize, frame: Bytes },
    Close { wire: usize, to: usize, reason: CloseReason },
}

pub(super) struct World {
    mono: Mono,
    nodes: BTreeMap<String, Node>,
    wires: Vec<Wire>,
    queue: BTreeMap<(Mono, u64), Packet>,
    sent: u64,
    cuts: BTreeSet<(String, String)>,
    dials: usize,
    /// Of the last dial: whether it looks past caches, and whom it tries last.
    last_dial: (bool, BTreeSet<SocketAddr>),
    instances: u64,
    /// How far wall clocks were set forward.
    shift: Duration,
}

fn pair(a: &str, b: &str) -> (String, String) {
    (a.min(b).to_owned(), a.max(b).to_owned())
}

fn start_of_time() -> Timestamp {
    Timestamp::from_second(1_800_000_000).unwrap()
}

impl World {
    /// Clusters that all have each other as peers, with endpoints.
    pub(super) fn new(names: &[&str]) -> Self {
        Self::with(names, |_, _| true)
    }

    /// Clusters that all have each other as peers; `dials` says who has endpoints of whom.
    pub(super) fn with(names: &[&str], dials: impl Fn(&str, &str) -> bool) -> Self {
        let mut world = Self {
            mono: Mono::ZERO,
            nodes: BTreeMap::new(),
            wires: vec![],
            queue: BTreeMap::new(),
            sent: 0,
            cuts: BTreeSet::new(),
            dials: 0,
            last_dial: (false, BTreeSet::new()),
            instances: 0,
            shift: Duration::ZERO,
        };
        for name in names {
            let spec = |peer: &&&str| PeerSpec {
                name: (**peer).into(),
                endpoints: dials(name, peer).then(|| (**peer).to_owned()).into_iter().collect(),
                ..PeerSpec::default()
            };
            let specs = names.iter().filter(|peer| peer != &name).map(|peer| ((*peer).into(), spec(&peer))).collect();
            let node = Node {
                membership: Membership::new(world.local(name, &format!("uid-{name}"), 1)),
                cluster: Cluster::shared(),
                specs,
                uid: format!("uid-{name}"),
                epoch: 1,
                certificate_end: start_of_time() + Duration::from_secs(1_000_000),
                up: true,
                wires: BTreeMap::new(),
            };
            world.nodes.insert((*name).to_owned(), node);
        }
        for name in names {
            world.publish(name);
        }
        world.settle();
        world
    }

    fn local(&mut self, name: &str, uid: &str, epoch: u64) -> Local {
        self.instances += 1;
        Local {
            name: name.into(),
            cluster_uid: uid.into(),
            labels: BTreeMap::new(),
            version: "0.1.0".into(),
            versions: WireVersions::OURS,
            epoch: Some(Epoch(epoch)),
            instance: self.instances,
            timers: T,
            rng: Box::new(SeededRng::new(self.instances)),
            sequences: Sequences::default(),
        }
    }

    fn now(&self) -> Now {
        Now { mono: self.mono, wall: start_of_time() + self.mono.since_start() + self.shift }
    }

    fn node(&mut self, name: &str) -> &mut Node {
        self.nodes.get_mut(name).unwrap()
    }

    fn publish(&mut self, name: &str) {
        let now = self.now();
        let node = self.node(name);
        node.membership.set_peers(now, &node.specs.clone());
    }

    pub(super) fn cluster(&self, name: &str) -> Arc<Cluster> {
        self.nodes[name].cluster.clone()
    }

    pub(super) fn report(&self, at: &str, of: &str) -> PeerReport {
        self.nodes[at].membership.report(&of.into()).unwrap().clone()
    }

    /// Of whom something else is said at `at` than the last time.
    pub(super) fn changed(&mut self, at: &str) -> BTreeSet<PeerName> {
        self.node(at).membership.take_changed()
    }

    pub(super) fn state(&self, at: &str, of: &str) -> PeerState {
        self.report(at, of).state
    }

    /// The states reported so far, without repetitions.
    pub(super) fn states(&self, at: &str, of: &str) -> Vec<PeerState> {
        let mut states: Vec<PeerState> = self.cluster(at).reports(of).iter().map(|report| report.state).collect();
        states.dedup();
        states
    }

    pub(super) fn dials(&self) -> usize {
        self.dials
    }

    /// Whether the last dial looked past caches, and whom it tried last.
    pub(super) fn last_dial(&self) -> (bool, Vec<SocketAddr>) {
        (self.last_dial.0, self.last_dial.1.iter().copied().collect())
    }

    /// Wall clocks are set forward.
    pub(super) fn set_clocks_forward(&mut self, by: Duration) {
        self.shift += by;
    }

    /// Somebody connects as `from`, and then says nothing.
    pub(super) fn half_open(&mut self, from: &str, to: &str) {
        let now = self.now();
        let expires = Timestamp::MAX;
        let connected = Connected { name: from.into(), remote: "10.9.9.9:1".into(), expires, version: None };
        self.node(to).membership.connected(now, &connected, None).unwrap();
        self.settle();
    }

    /// Somebody says that he is `name`, and is refused.
    pub(super) fn claim(&mut self, name: &str, to: &str, port: u16) {
        let (now, refusal) = (self.now(), RefusalReason::UntrustedCertificate.because("its authority is another one"));
        let refused = RefusedLink { remote: format!("192.0.2.66:{port}"), claimed: Some(name.into()), refusal };
        self.node(to).membership.refused(now, &refused);
        self.settle();
    }

    /// Whole connections between two clusters.
    pub(super) fn connections(&self, a: &str, b: &str) -> usize {
        let whole = |wire: &&Wire| wire.ends.iter().all(Option::is_some);
        let between = |wire: &&Wire| pair(&wire.names[0], &wire.names[1]) == pair(a, b);
        self.wires.iter().filter(whole).filter(between).count()
    }

    /// Connections a cluster holds, those whose other end is gone included.
    pub(super) fn held(&self, at: &str) -> usize {
        self.nodes[at].wires.len()
    }

    /// What `from` says to `to` now.
    pub(super) fn said(&self, from: &str, to: &str) -> BTreeMap<StateKey, State> {
        let (cluster, to) = (self.cluster(from), PeerName::from(to));
        cluster.keys(&to).into_iter().map(|key| (key.clone(), cluster.state(&to, &key).unwrap())).collect()
    }

    pub(super) fn configure(&mut self, at: &str, peer: &str, change: impl FnOnce(&mut PeerSpec)) {
        change(self.node(at).specs.get_mut(peer).unwrap());
        self.publish(at);
        self.settle();
    }

    pub(super) fn remove(&mut self, at: &str, peer: &str) {
        self.node(at).specs.remove(peer);
        self.publish(at);
        self.settle();
    }

    pub(super) fn cut(&mut self, a: &str, b: &str) {
        self.cuts.insert(pair(a, b));
    }

    pub(super) fn heal(&mut self, a: &str, b: &str) {
        self.cuts.remove(&pair(a, b));
    }

    pub(super) fn certificate_ends(&mut self, name: &str, after: Duration) {
        self.node(name).certificate_end = start_of_time() + after;
    }

    pub(super) fn set_epoch(&mut self, name: &str, epoch: u64) {
        let now = self.now();
        self.node(name).epoch = epoch;
        self.node(name).membership.set_epoch(now, Some(Epoch(epoch)));
        self.settle();
    }

    pub(super) fn resign(&mut self, name: &str) {
        let now = self.now();
        self.node(name).membership.set_epoch(now, None);
        self.settle();
    }

    pub(super) fn end(&mut self, name: &str, ending: &Ending) {
        let now = self.now();
        self.node(name).membership.end_all(now, ending);
        self.settle();
        self.node(name).up = false;
    }

    /// The process vanishes: nobody is told.
    pub(super) fn stop(&mut self, name: &str) {
        let node = self.node(name);
        node.up = false;
        for (wire, end) in std::mem::take(&mut node.wires).into_values() {
            self.wires[wire].ends[end] = None;
        }
    }

    /// A new process, in this leadership. It keeps what its cluster says.
    pub(super) fn start(&mut self, name: &str, epoch: u64) {
        let uid = self.nodes[name].uid.clone();
        let local = self.local(name, &uid, epoch);
        let node = self.node(name);
        node.epoch = epoch;
        node.membership = Membership::new(local);
        node.up = true;
        self.publish(name);
        self.settle();
    }

    /// A new cluster takes the name over.
    pub(super) fn rebuild(&mut self, name: &str) {
        self.stop(name);
        self.node(name).uid += "-rebuilt";
        self.start(name, 1);
    }

    pub(super) fn perform(&mut self, operation: Operation) {
        let uid = |key: u8| format!("burst-{key}");
        match operation {
            Operation::Cut(a, b) => self.cut(a, b),
            Operation::Heal(a, b) => self.heal(a, b),
            Operation::HealAll => {
                self.cuts.clear();
                self.nodes.values().for_each(|node| node.cluster.set_complete(true));
            }
            Operation::Say(from, to, key, value) => self.cluster(from).say_desired(to, &uid(key), value),
            Operation::Tombstone(from, to, key) => {
                self.cluster(from).say(to, StateKey::Desired(uid(key).as_str().into()), State::Tombstone);
            }
            Operation::Forget(from, to, key) => {
                self.cluster(from).forget(to, StateKey::Desired(uid(key).as_str().into()));
            }
            Operation::Restart(name) => {
                let epoch = self.nodes[name].epoch;
                self.stop(name);
                self.start(name, epoch);
            }
            Operation::NextLeader(name) => {
                let epoch = self.nodes[name].epoch;
                self.set_epoch(name, epoch + 1);
            }
            Operation::Complete(name, complete) => self.cluster(name).set_complete(complete),
            Operation::Pass(millis) => self.run(Duration::from_millis(millis)),
        }
    }

    /// Lets time pass.
    pub(super) fn run(&mut self, time: Duration) {
        let end = self.mono + time;
        self.settle();
        let (mut at_once, mut last) = (0, self.mono);
        loop {
            let packet = self.queue.keys().next().map(|(at, _)| *at);
            let up = self.nodes.values().filter(|node| node.up);
            let timeout = up.filter_map(|node| node.membership.poll_timeout()).min();
            let Some(next) = [packet, timeout].into_iter().flatten().min().filter(|next| *next <= end) else {
                break;
            };
            self.mono = self.mono.max(next);
            at_once = if self.mono == last { at_once + 1 } else { 0 };
            last = self.mono;
            assert!(at_once < 10_000, "time stands still at {:?}", self.mono);
            let now = self.now();
            for node in self.nodes.values_mut().filter(|node| node.up) {
                if node.membership.poll_timeout().is_some_and(|at| at <= now.mono) {
                    node.membership.timeout(now);
                }
            }
            while let Some(entry) = self.queue.first_entry()
                && entry.key().0 <= self.mono
            {
                let packet = entry.remove();
                self.deliver(packet);
            }
            self.settle();
        }
        self.mono = end;
    }

    fn send(&mut self, after: Duration, packet: Packet) {
        self.sent += 1;
        self.queue.insert((self.mono + after, self.sent), packet);
    }

    fn deliver(&mut self, packet: Packet) {
        let now = self.now();
        match packet {
            Packet::Dial { from, to, ticket } => self.connect(&from, &to, ticket),
            Packet::Frame { wire, to, frame } => {
                let names = &self.wires[wire].names;
                if self.cuts.contains(&pair(&names[0], &names[1])) {
                    // Sent again until it arrives; the order stays, because all wait alike.
                    self.send(Duration::from_millis(200), Packet::Frame { wire, to, frame });
                } else if let Some((name, id)) = self.wires[wire].ends[to].clone() {
                    self.node(&name).membership.input(now, id, Input::Frame(frame));
                }
            }
            Packet::Close { wire, to, reason } => {
                let names = &self.wires[wire].names;
                if self.cuts.contains(&pair(&names[0], &names[1])) {
                    let reason = CloseReason::Lost("reset".into());
                    self.send(Duration::from_millis(200), Packet::Close { wire, to, reason });
                } else if let Some((name, id)) = self.wires[wire].ends[to].take() {
                    let node = self.node(&name);
                    node.wires.remove(&id);
                    node.membership.closed(now, id, &reason);
                }
            }
        }
    }

    fn connect(&mut self, from: &str, to: &str, ticket: u64) {
        let now = self.now();
        let failed = |text: &str| RefusalReason::Unreachable.because(text);
        if !self.nodes[from].up {
            return;
        }
        if self.cuts.contains(&pair(from, to)) || !self.nodes[to].up {
            return self.node(from).membership.dial_failed(now, &to.into(), ticket, failed("nobody answers"));
        }
        let expires = self.nodes[from].certificate_end.min(self.nodes[to].certificate_end);
        if expires <= now.wall {
            let refusal = RefusalReason::CertificateExpired.because("the certificate has ended");
            return self.node(from).membership.dial_failed(now, &to.into(), ticket, refusal);
        }
        let wire = self.wires.len();
        self.wires.push(Wire { ends: [None, None], names: [from.into(), to.into()] });
        let meant = PeerName::from(to);
        for (end, (at, peer, dialled)) in [(from, to, Some((&meant, ticket))), (to, from, None)].into_iter().enumerate()
        {
            let port = u16::try_from(wire).unwrap_or_default();
            let connected = Connected { name: peer.into(), remote: format!("10.0.0.1:{port}"), expires, version: None };
            match self.node(at).membership.connected(now, &connected, dialled) {
                Ok(id) => {
                    self.node(at).wires.insert(id, (wire, end));
                    self.wires[wire].ends[end] = Some((at.to_owned(), id));
                }
                Err(ending) => {
                    let reason = CloseReason::Peer { code: ending.code, reason: ending.reason };
                    self.send(DELAY, Packet::Close { wire, to: 1 - end, reason });
                }
            }
        }
    }

    /// Does what the memberships ask for, and sends what they have to say.
    pub(super) fn settle(&mut self) {
        let now = self.now();
        let names: Vec<String> = self.nodes.keys().cloned().collect();
        for name in &names {
            if !self.nodes[name].up {
                continue;
            }
            let dirty = self.node(name).cluster.dirty().take();
            self.node(name).membership.changed(now, &dirty);
            loop {
                while let Some(action) = self.node(name).membership.poll_action() {
                    self.act(name, action);
                }
                if !self.transmit(name) {
                    break;
                }
            }
        }
    }

    fn transmit(&mut self, name: &str) -> bool {
        let now = self.now();
        let mut moved = false;
        for (id, (wire, end)) in self.nodes[name].wires.clone() {
            let (mut buf, node) = (BytesMut::new(), self.node(name));
            let cluster = node.cluster.clone();
            while node.membership.transmit(now, id, &*cluster, &mut buf).is_some() {
                moved = true;
            }
            while let Some(frame) = frame::take(&mut buf, limits::CONTROL_FRAME).unwrap() {
                self.send(DELAY, Packet::Frame { wire, to: 1 - end, frame });
            }
        }
        moved
    }

    fn act(&mut self, name: &str, action: Action) {
        let cluster = self.cluster(name);
        match action {
            Action::Dial { peer, ticket, fresh, last } => {
                self.dials += 1;
                self.last_dial = (fresh, last);
                let to = peer.name.as_str().to_owned();
                self.send(2 * DELAY, Packet::Dial { from: name.to_owned(), to, ticket });
            }
            Action::Close { connection, ending } => {
                if let Some((wire, end)) = self.node(name).wires.remove(&connection) {
                    self.wires[wire].ends[end] = None;
                    let reason = CloseReason::Peer { code: ending.code, reason: ending.reason };
                    self.send(DELAY, Packet::Close { wire, to: 1 - end, reason });
                }
            }
            Action::Put { peer, epoch, key, state } => cluster.put(&peer, epoch, key, state),
            Action::Unchanged { peer, epoch, keys } => cluster.unchanged(&peer, epoch, &keys),
            Action::CompleteSnapshot { peer, epoch, keys } => {
                cluster.complete_snapshot(&peer, epoch, &keys);
                self.node(name).membership.release(&peer, |key| cluster.keeps(&peer, key));
            }
            Action::Undeliverable { peer, key, problem } => Incoming::undeliverable(&*cluster, &peer, key, &problem),
            Action::Report { peer, report } => cluster.peer_report(&peer, *report),
            Action::Established { .. } | Action::Forget { .. } | Action::Misbehaved { .. } => {}
        }
    }
}
