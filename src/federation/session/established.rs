//! A session once both hellos are accepted: heartbeats, summaries, states.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use super::event::{Event, Lane, Misbehaviour, Sequences};
use super::inbox::{Inbox, News, Origin};
use super::outbox::{self, Outbox, Unfit};
use crate::clock::Mono;
use crate::contract::ports::{Outgoing, StateKey};
use crate::contract::{Capacity, Epoch, PeerName};
use crate::federation::timers::Timers;
use crate::federation::wire::digest::Digest;
use crate::federation::wire::limits;
use crate::federation::wire::messages::{Message, Put, Reject, Summary};

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
    /// How often the peer is to hear us.
    beat_every: Duration,
    capacity: Option<Capacity>,
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
    pub(super) fn new(now: Mono, timers: &Timers, origin: Origin, patience: Option<Duration>) -> Self {
        let beat_every = timers.heartbeat_for(patience);
        Self {
            origin,
            suspect: false,
            beat_every,
            capacity: None,
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
        match message {
            Message::Heartbeat(capacity) => {
                if self.capacity != capacity {
                    self.capacity = capacity;
                    events.push_back(Event::Capacity(capacity));
                }
            }
            Message::Summary(summary) => {
                if summary.epoch != self.origin.epoch {
                    return;
                }
                let Some(listed) = inbox.summary(&self.origin, &summary) else {
                    return;
                };
                self.wants.extend(listed.lacking);
                if let Some(keys) = listed.all {
                    events.push_back(Event::CompleteSnapshot { epoch: summary.epoch, keys });
                }
            }
            Message::Want(keys) => keys.into_iter().for_each(|key| self.outbox.mark(key)),
            Message::Put(put) => self.receive_put(inbox, put, events),
            Message::Reject(Reject { key, problem, .. }) => events.push_back(Event::Undeliverable { key, problem }),
            Message::Hello(_) | Message::HelloAck(_) => {}
        }
    }

    fn receive_put(&mut self, inbox: &mut Inbox, put: Put, events: &mut VecDeque<Event>) {
        let Put { epoch, sequence, key, digest, state } = put;
        if epoch != self.origin.epoch {
            return;
        }
        let problem = match inbox.put(&self.origin, sequence, &key, digest) {
            News::Same | News::Old => return,
            News::Full => {
                let problem = format!("a peer takes {} states at most", limits::KEYS_PER_PEER);
                events.push_back(Event::Misbehaved(Misbehaviour::TooManyKeys, problem.clone()));
                problem
            }
            News::New => match outbox::decode(&key, state.as_ref()) {
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
        self.rejects.insert(key, (digest, problem));
    }

    /// The next message, in the order of urgency.
    pub(super) fn transmit(
        &mut self,
        speaker: &Speaker,
        outgoing: &dyn Outgoing,
        events: &mut VecDeque<Event>,
    ) -> Option<(Message, Lane)> {
        if std::mem::take(&mut self.heartbeat.now) {
            // As soon as we know all our keys, the peer should know that we do.
            self.summary.now |= !self.all_known && outgoing.complete();
            return Some((Message::Heartbeat(outgoing.capacity(&speaker.peer)), Lane::Control));
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
        let mut entries = BTreeMap::new();
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
        let complete = self.all_known && keys.len() <= limits::KEYS_PER_PEER;
        Summary { epoch: speaker.epoch, sequence, complete, entries }
    }

    fn next_put(&mut self, speaker: &Speaker, outgoing: &dyn Outgoing, events: &mut VecDeque<Event>) -> Option<Put> {
        while let Some(key) = self.outbox.pop() {
            let Some(state) = outgoing.state(&speaker.peer, &key) else {
                // It is not for this peer any more: a summary soon says that it is absent.
                self.summary.next = self.summary.next.min(self.heartbeat.next);
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
