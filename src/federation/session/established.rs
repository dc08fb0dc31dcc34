//! A session once both hellos are accepted: heartbeats, summaries, states.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use tributary_clock::Mono;
use tributary_contract::ports::{Outgoing, StateKey};
use tributary_contract::{Capacity, Epoch, PeerName};

use super::event::{Event, Lane, Misbehaviour, Sequences};
use super::inbox::{Inbox, News, Origin};
use super::outbox::{self, Outbox, Unfit};
use crate::timers::Timers;
use crate::wire::digest::Digest;
use crate::wire::limits;
use crate::wire::messages::{Message, Put, Reject, Summary};
use crate::wire::version::WireVersion;

/// Whom we speak to and as whom.
#[derive(Debug)]
pub(super) struct Speaker {
    pub(super) peer: PeerName,
    pub(super) epoch: Epoch,
    pub(super) sequences: Sequences,
}

/// What both sides still have to say.
#[derive(Debug)]
pub(super) struct Established {
    pub(super) origin: Origin,
    pub(super) suspect: bool,
    /// What both sides speak.
    version: WireVersion,
    /// How often the peer is to hear us.
    beat_every: Duration,
    /// Theirs, as they told it.
    capacity: Option<Capacity>,
    /// Ours, as they were told it.
    told_capacity: Option<Capacity>,
    /// Ours may be another by now: looked at as often as heartbeats are sent.
    look_at_capacity: bool,
    heartbeat: Due,
    summary: Due,
    /// Whether we knew all our keys when the last summary was made.
    all_known: bool,
    outbox: Outbox,
    wants: BTreeSet<StateKey>,
    rejects: BTreeMap<StateKey, (Digest, String)>,
}

/// Something to say from time to time.
#[derive(Debug)]
struct Due {
    now: bool,
    next: Mono,
}

impl Due {
    fn pass(&mut self, now: Mono, every: Duration) {
        if now >= self.next {
            *self = Self { now: true, next: now + every };
        }
    }
}

impl Established {
    /// Starts with a heartbeat and a summary.
    pub(super) fn new(
        now: Mono,
        timers: &Timers,
        origin: Origin,
        version: WireVersion,
        patience: Option<Duration>,
    ) -> Self {
        let beat_every = timers.heartbeat_for(patience);
        Self {
            origin,
            suspect: false,
            version,
            beat_every,
            capacity: None,
            told_capacity: None,
            look_at_capacity: false,
            heartbeat: Due { now: true, next: now + beat_every },
            summary: Due { now: true, next: now + timers.summary },
            all_known: false,
            outbox: Outbox::default(),
            wants: BTreeSet::new(),
            rejects: BTreeMap::new(),
        }
    }

    pub(super) fn timeout(&mut self, now: Mono, timers: &Timers) {
        self.heartbeat.pass(now, self.beat_every);
        self.summary.pass(now, timers.summary);
    }

    pub(super) fn next_timeout(&self) -> Mono {
        self.heartbeat.next.min(self.summary.next)
    }

    pub(super) fn changed(&mut self, key: StateKey) {
        self.outbox.mark(key);
    }

    pub(super) fn receive(&mut self, inbox: &mut Inbox, message: Message, events: &mut VecDeque<Event>) {
        let apart = matches!(message, Message::Capacity(_));
        match message {
            Message::Heartbeat(capacity) | Message::Capacity(capacity) if apart == self.capacity_is_apart() => {
                if self.capacity != capacity {
                    self.capacity.clone_from(&capacity);
                    events.push_back(Event::Capacity(capacity));
                }
            }
            // In this version it says nothing about capacity.
            Message::Heartbeat(_) | Message::Capacity(_) => {}
            Message::Summary(summary) => {
                if summary.epoch != self.origin.epoch {
                    return;
                }
                let Some(listed) = inbox.summary(&self.origin, &summary) else {
                    return;
                };
                // Who lists faster than it reads what is asked for has to wait for its next summary.
                let room = limits::KEYS_PER_PEER.saturating_sub(self.wants.len());
                self.wants.extend(listed.lacking.into_iter().take(room));
                if !listed.unchanged.is_empty() {
                    events.push_back(Event::Unchanged { epoch: summary.epoch, keys: listed.unchanged });
                }
                if let Some(keys) = listed.all {
                    events.push_back(Event::CompleteSnapshot { epoch: summary.epoch, keys });
                }
            }
            Message::Want(keys) => keys.into_iter().for_each(|key| self.outbox.ask(key)),
            Message::Put(put) => self.receive_put(inbox, put, events),
            Message::Reject(Reject { key, problem, .. }) => events.push_back(Event::Undeliverable { key, problem }),
            Message::Hello(_) | Message::HelloAck(_) => {}
        }
    }

    fn capacity_is_apart(&self) -> bool {
        self.version >= WireVersion::CAPACITY_APART
    }

    fn receive_put(&mut self, inbox: &mut Inbox, put: Put, events: &mut VecDeque<Event>) {
        let Put { epoch, sequence, key, digest, state } = put;
        if epoch != self.origin.epoch {
            return;
        }
        let weight = state.as_deref().map_or(0, limits::weight);
        let problem = match inbox.put(&self.origin, sequence, &key, digest, weight) {
            // A release that is said again is answered again, and its answer counts again: what is wanted now is not known to
            // be what was wanted when it was said before.
            News::Same if state.is_some() => return,
            News::Old => return,
            News::Full => {
                let problem = format!("a peer takes {} states at most", limits::KEYS_PER_PEER);
                events.push_back(Event::Misbehaved(Misbehaviour::TooManyKeys, problem.clone()));
                problem
            }
            News::Heavy => {
                let mib = limits::STATES_OF_A_PEER >> 20;
                let problem =
                    format!("a peer takes {mib} MiB of states at most: shorten templates, or burst less there");
                events.push_back(Event::Misbehaved(Misbehaviour::TooMuchState, problem.clone()));
                problem
            }
            News::New | News::Same => match outbox::decode(&key, state.as_ref()) {
                Ok(state) => {
                    events.push_back(Event::Put { epoch, key, state });
                    return;
                }
                Err(problem) => {
                    inbox.rejected(&key);
                    events.push_back(Event::Misbehaved(Misbehaviour::Unusable, problem.clone()));
                    problem
                }
            },
        };
        // Beyond that nobody is told: who puts faster than it reads is counted all the same.
        if self.rejects.len() < limits::KEYS_PER_PEER {
            self.rejects.insert(key, (digest, problem));
        }
    }

    /// The next message, in the order of urgency.
    pub(super) fn transmit(
        &mut self,
        speaker: &Speaker,
        outgoing: &dyn Outgoing,
        events: &mut VecDeque<Event>,
    ) -> Option<(Message, Lane)> {
        let apart = self.capacity_is_apart();
        if std::mem::take(&mut self.heartbeat.now) {
            self.look_at_capacity = apart;
            // As soon as we know all our keys, the peer should know that we do.
            self.summary.now |= !self.all_known && outgoing.complete();
            let capacity = if apart { None } else { outgoing.capacity(&speaker.peer) };
            return Some((Message::Heartbeat(capacity), Lane::Control));
        }
        if std::mem::take(&mut self.look_at_capacity) {
            let capacity = outgoing.capacity(&speaker.peer);
            if self.told_capacity != capacity {
                self.told_capacity.clone_from(&capacity);
                return Some((Message::Capacity(capacity), Lane::Control));
            }
        }
        if let Some((key, (digest, problem))) = self.rejects.pop_first() {
            return Some((Message::Reject(Reject { key, digest, problem }), Lane::State));
        }
        if !self.wants.is_empty() {
            let keys = std::mem::take(&mut self.wants).into_iter().take(limits::KEYS_PER_PEER).collect();
            return Some((Message::Want(keys), Lane::State));
        }
        if std::mem::take(&mut self.summary.now) {
            return Some((Message::Summary(self.summarize(speaker, outgoing, events)), Lane::State));
        }
        self.next_put(speaker, outgoing, events).map(|put| (Message::Put(put), Lane::State))
    }

    fn summarize(&mut self, speaker: &Speaker, outgoing: &dyn Outgoing, events: &mut VecDeque<Event>) -> Summary {
        let complete = outgoing.complete();
        let sequence = speaker.sequences.next();
        let keys: BTreeSet<StateKey> = outgoing.keys(&speaker.peer).into_iter().collect();
        let withheld = outgoing.withheld(&speaker.peer).into_iter().filter(|key| !keys.contains(key));
        // It is named and has no state: the peer asks for it in vain, and takes it for nothing else.
        let mut entries: BTreeMap<_, _> = withheld.map(|key| (key, Digest::of(b""))).collect();
        let listed = keys.len() + entries.len();
        for key in keys.iter().take(limits::KEYS_PER_PEER) {
            // None: it went away since it was listed.
            if let Some(state) = outgoing.state(&speaker.peer, key) {
                // What cannot travel is listed all the same: it is not absent.
                let digest = outbox::encode(&state).map_or_else(|unfit| unfit.digest, |(_, digest)| digest);
                entries.insert(key.clone(), digest);
            }
        }
        for key in keys.iter().skip(limits::KEYS_PER_PEER) {
            if self.outbox.report(key, Digest::TOMBSTONE) {
                let problem = format!("a peer takes {} states at most", limits::KEYS_PER_PEER);
                events.push_back(Event::Undeliverable { key: key.clone(), problem });
            }
        }
        self.outbox.retain_reported(&keys);
        // Asked before and after: what was listed in between is whole only if both say so.
        self.all_known = complete && outgoing.complete();
        let complete = self.all_known && listed <= limits::KEYS_PER_PEER;
        while entries.len() > limits::KEYS_PER_PEER {
            entries.pop_last();
        }
        Summary { epoch: speaker.epoch, sequence, complete, entries }
    }

    fn next_put(&mut self, speaker: &Speaker, outgoing: &dyn Outgoing, events: &mut VecDeque<Event>) -> Option<Put> {
        while let Some(key) = self.outbox.pop() {
            let Some(state) = outgoing.state(&speaker.peer, &key) else {
                // It is not for this peer any more: a summary soon says that it is absent. What is withheld is not.
                if !outgoing.withheld(&speaker.peer).contains(&key) {
                    self.summary.next = self.summary.next.min(self.heartbeat.next);
                }
                continue;
            };
            match outbox::encode(&state) {
                Ok((state, digest)) => {
                    let sequence = speaker.sequences.next();
                    return Some(Put { epoch: speaker.epoch, sequence, key, digest, state });
                }
                Err(Unfit { digest, problem }) => {
                    if self.outbox.report(&key, digest) {
                        events.push_back(Event::Undeliverable { key, problem });
                    }
                }
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    #[test]
    fn who_says_more_than_it_reads_fills_no_memory() {
        let origin = Origin { cluster_uid: "uid".into(), epoch: Epoch(1), instance: 1 };
        let (mut inbox, mut events) = (Inbox::default(), VecDeque::new());
        inbox.admit(&origin).unwrap();
        let newest = WireVersion::CAPACITY_APART;
        let mut on = Established::new(Mono::ZERO, &Timers::DEFAULT, origin, newest, None);
        let many = limits::KEYS_PER_PEER as u64;
        for round in 0..5 {
            let keys: Vec<StateKey> = (0..many).map(|n| StateKey::Desired(format!("{round}-{n}").into())).collect();
            let entries = keys.iter().map(|key| (key.clone(), Digest::TOMBSTONE)).collect();
            let sequence = (round + 1) * 2 * many;
            let list = Summary { epoch: Epoch(1), sequence, complete: true, entries };
            on.receive(&mut inbox, Message::Summary(list), &mut events);
            on.receive(&mut inbox, Message::Want(keys.clone()), &mut events);
            for (index, key) in (1..).zip(keys) {
                let (sequence, state) = (sequence + index, Some(Bytes::from_static(b"no state")));
                let put = Put { epoch: Epoch(1), sequence, key, digest: Digest::of(b"no state"), state };
                on.receive(&mut inbox, Message::Put(put), &mut events);
            }
        }
        let kept = [on.wants.len(), on.rejects.len(), std::iter::from_fn(|| on.outbox.pop()).count()];
        assert_eq!(kept, [limits::KEYS_PER_PEER; 3]);
    }
}
