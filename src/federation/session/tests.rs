use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;
use tributary_contract::ports::{State, StateKey};
use tributary_contract::{Capacity, Epoch, PeerName};

use super::*;
use crate::testing::{Cluster, desired, desired_key, hello, observed_key};
use crate::wire::frame;
use crate::wire::version::WireVersions;

const T: Timers = Timers::DEFAULT;

/// One end: a session with what belongs to its peer and its cluster.
struct End {
    session: Session,
    inbox: Inbox,
    cluster: Arc<Cluster>,
    events: Vec<Event>,
    sent: BytesMut,
    lanes: Vec<Lane>,
}

impl End {
    fn new(now: Mono, ours: Hello, peer: &str) -> Self {
        let expected = Expected { name: peer.into(), cluster_uid: None, version: None };
        let session = Session::new(now, T, ours, Sequences::default(), expected);
        let inbox = Inbox::default();
        Self { session, inbox, cluster: Cluster::shared(), events: vec![], sent: BytesMut::new(), lanes: vec![] }
    }

    fn handle(&mut self, now: Mono, input: Input) {
        self.session.handle(now, &mut self.inbox, input);
        while let Some(event) = self.session.poll_event() {
            self.events.push(event);
        }
    }

    fn transmit(&mut self) {
        while let Some(lane) = self.session.poll_transmit(&*self.cluster, &mut self.sent) {
            self.lanes.push(lane);
        }
        while let Some(event) = self.session.poll_event() {
            self.events.push(event);
        }
    }

    /// What is on the wire, as messages.
    fn said(&mut self) -> Vec<Message> {
        self.transmit();
        let mut copy = self.sent.clone();
        let mut messages = Vec::new();
        while let Some(frame) = frame::take(&mut copy, limits::CONTROL_FRAME).unwrap() {
            match Message::decode(frame).unwrap() {
                Decoded::Known(message) => messages.push(message),
                Decoded::Unknown => panic!("we know what we say"),
            }
        }
        messages
    }

    fn ending(&self) -> Option<CloseCode> {
        self.events.iter().find_map(|event| match event {
            Event::Close(ending) => Some(ending.code),
            _ => None,
        })
    }

    fn puts(&self) -> Vec<StateKey> {
        let put = |event: &Event| match event {
            Event::Put { key, .. } => Some(key.clone()),
            _ => None,
        };
        self.events.iter().filter_map(put).collect()
    }

    fn snapshots(&self) -> Vec<Vec<StateKey>> {
        let snapshot = |event: &Event| match event {
            Event::CompleteSnapshot { keys, .. } => Some(keys.clone()),
            _ => None,
        };
        self.events.iter().filter_map(snapshot).collect()
    }

    fn changed(&mut self, now: Mono) {
        for (_, key) in self.cluster.dirty().take() {
            self.handle(now, Input::Changed(key));
        }
    }
}

/// Takes what one end has to say to the other; returns whether there was anything.
fn carry(now: Mono, from: &mut End, to: &mut End) -> bool {
    from.transmit();
    let mut moved = false;
    while let Some(frame) = frame::take(&mut from.sent, limits::CONTROL_FRAME).unwrap() {
        to.handle(now, Input::Frame(frame));
        moved = true;
    }
    moved
}

struct Pair {
    now: Mono,
    east: End,
    west: End,
}

impl Pair {
    fn new() -> Self {
        let now = Mono::ZERO;
        Self { now, east: End::new(now, hello("east"), "west"), west: End::new(now, hello("west"), "east") }
    }

    fn established() -> Self {
        let mut pair = Self::new();
        pair.settle();
        assert!(pair.east.session.is_established() && pair.west.session.is_established());
        pair
    }

    /// Carries frames both ways until nobody has anything to say.
    fn settle(&mut self) {
        loop {
            let (now, mut moved) = (self.now, false);
            self.east.changed(now);
            self.west.changed(now);
            moved |= carry(now, &mut self.east, &mut self.west);
            moved |= carry(now, &mut self.west, &mut self.east);
            if !moved {
                return;
            }
        }
    }

    /// Lets time pass, timeout by timeout, with or without a working link.
    fn pass(&mut self, time: Duration, linked: bool) {
        let end = self.now + time;
        loop {
            let next = [&self.east, &self.west].into_iter().filter_map(|end| end.session.poll_timeout()).min();
            let Some(next) = next.filter(|next| *next <= end) else {
                break;
            };
            assert!(next >= self.now, "time runs forward");
            self.now = next;
            self.east.handle(next, Input::Timeout);
            self.west.handle(next, Input::Timeout);
            if linked {
                self.settle();
            } else {
                self.east.said();
                self.west.said();
                self.east.sent.clear();
                self.west.sent.clear();
            }
        }
        self.now = end;
    }
}

#[test]
fn the_first_words() {
    let mut pair = Pair::new();
    pair.east.cluster.say_desired("west", "a", 1);
    assert!(matches!(&pair.east.said()[..], [Message::Hello(_)]), "nothing but the hello before the peer's");
    pair.settle();
    let [Event::Established(theirs), Event::CompleteSnapshot { keys, .. }, Event::Put { epoch: Epoch(1), key, .. }] =
        &pair.west.events[..]
    else {
        panic!("{:?}", pair.west.events);
    };
    assert_eq!((**theirs).clone(), hello("east"));
    assert_eq!((&keys[..], key), (&[desired_key("a")][..], &desired_key("a")));
    assert_eq!(pair.east.lanes[..3], [Lane::Control; 3], "hello, acknowledgement, heartbeat");
}

#[test]
fn a_change_travels_alone_and_at_once() {
    let mut pair = Pair::established();
    for uid in ["a", "b", "c"] {
        pair.east.cluster.say_desired("west", uid, 1);
    }
    pair.settle();
    pair.west.events.clear();
    pair.east.cluster.say_desired("west", "b", 2);
    pair.east.cluster.say_desired("west", "b", 3);
    pair.east.changed(pair.now);
    let said = pair.east.said();
    assert!(matches!(&said[..], [Message::Put(put)] if put.key == desired_key("b")), "the newest only: {said:?}");
    pair.settle();
    assert!(matches!(&pair.west.events[..], [Event::Put { state: State::Desired(d), .. }] if d.generation == 3));
}

#[test]
fn both_directions_and_tombstones() {
    let mut pair = Pair::established();
    pair.east.cluster.say_desired("west", "a", 1);
    pair.west.cluster.say_observed("east", "a", 1);
    pair.settle();
    assert_eq!((pair.west.puts(), pair.east.puts()), (vec![desired_key("a")], vec![observed_key("a")]));
    pair.east.cluster.say("west", desired_key("a"), State::Tombstone);
    pair.settle();
    assert!(matches!(pair.west.events.last(), Some(Event::Put { state: State::Tombstone, .. })));
}

#[test]
fn a_reconnect_sends_what_differs_only() {
    let mut pair = Pair::established();
    for uid in ["a", "b", "c"] {
        pair.east.cluster.say_desired("west", uid, 1);
    }
    pair.settle();
    pair.east.cluster.say_desired("west", "b", 2);
    let expected = Expected { name: "east".into(), cluster_uid: None, version: None };
    let sequences = pair.east.session.speaker.sequences.clone();
    pair.west.session = Session::new(pair.now, T, hello("west"), Sequences::default(), expected);
    let expected = Expected { name: "west".into(), cluster_uid: None, version: None };
    pair.east.session = Session::new(pair.now, T, hello("east"), sequences, expected);
    pair.west.events.clear();
    pair.settle();
    assert_eq!(pair.west.puts(), [desired_key("b")]);
}

#[test]
fn an_incomplete_summary_concludes_nothing_and_the_complete_one_follows_soon() {
    let mut pair = Pair::new();
    pair.east.cluster.set_complete(false);
    pair.east.cluster.say_desired("west", "a", 1);
    pair.settle();
    pair.pass(Duration::from_secs(30), true);
    assert_eq!(pair.west.puts(), [desired_key("a")]);
    assert_eq!(pair.west.snapshots(), Vec::<Vec<StateKey>>::new());
    pair.east.cluster.set_complete(true);
    pair.pass(T.heartbeat, true);
    assert_eq!(pair.west.snapshots(), [vec![desired_key("a")]]);
    pair.pass(Duration::from_secs(120), true);
    assert_eq!(pair.west.snapshots().len(), 3, "one a minute from then on");
    assert_eq!(pair.west.puts().len(), 1, "nothing is sent twice");
}

#[test]
fn what_is_not_said_any_more_is_absent_from_the_next_summary_soon() {
    let mut pair = Pair::established();
    pair.east.cluster.say_desired("west", "a", 1);
    pair.settle();
    pair.pass(Duration::from_secs(2), true);
    pair.west.events.clear();
    pair.east.cluster.forget("west", desired_key("a"));
    pair.pass(Duration::from_secs(3), true);
    assert_eq!(pair.west.snapshots(), [Vec::<StateKey>::new()]);
}

/// It is asked for in vain, once with each summary: not with each heartbeat.
#[test]
fn a_key_that_is_withheld_is_named_in_a_complete_summary_and_others_are_absent() {
    let mut pair = Pair::established();
    for uid in ["fails", "gone"] {
        pair.east.cluster.say_desired("west", uid, 1);
    }
    pair.settle();
    pair.pass(Duration::from_secs(2), true);
    pair.west.events.clear();
    pair.east.cluster.withhold(&[desired_key("fails")]);
    for uid in ["fails", "gone"] {
        pair.east.cluster.forget("west", desired_key(uid));
    }
    pair.pass(Duration::from_secs(3), true);
    assert_eq!(pair.west.snapshots(), [vec![desired_key("fails")]]);
    pair.pass(Duration::from_secs(600), true);
    assert!(pair.west.snapshots().len() <= 12, "{} summaries in ten minutes", pair.west.snapshots().len());
    assert!(pair.west.puts().is_empty());
}

#[test]
fn a_lost_message_is_repaired_by_the_next_summary() {
    let mut pair = Pair::established();
    pair.east.cluster.say_desired("west", "a", 1);
    pair.settle();
    pair.east.cluster.say_desired("west", "a", 2);
    pair.east.cluster.dirty().take();
    pair.pass(Duration::from_secs(61), true);
    assert!(matches!(pair.west.events.last(), Some(Event::Put { state: State::Desired(d), .. }) if d.generation == 2));
}

#[test]
fn silence_makes_suspect_and_then_ends() {
    let mut pair = Pair::established();
    pair.pass(Duration::from_secs(4), false);
    assert!(!pair.west.session.is_suspect());
    pair.pass(Duration::from_millis(1_100), false);
    assert!(pair.west.session.is_suspect());
    pair.settle();
    pair.pass(T.heartbeat, true);
    assert!(!pair.west.session.is_suspect());
    let seen: Vec<&Event> =
        pair.west.events.iter().filter(|event| matches!(event, Event::Suspect | Event::Recovered)).collect();
    assert_eq!(seen, [&Event::Suspect, &Event::Recovered]);
    pair.pass(Duration::from_secs(11), false);
    assert_eq!(pair.west.ending(), Some(CloseCode::Silent));
    assert_eq!(pair.west.session.poll_timeout(), None);
}

#[test]
fn each_side_is_heard_as_often_as_it_asks_for() {
    let beats = |patience: Option<Duration>| {
        let mut pair = Pair::new();
        pair.west.session.ours.patience = patience;
        pair.settle();
        let [before_east, before_west] = [pair.east.lanes.len(), pair.west.lanes.len()];
        pair.pass(Duration::from_secs(30), true);
        (pair.east.lanes.len() - before_east, pair.west.lanes.len() - before_west)
    };
    assert_eq!(beats(None), (20, 20), "an older agent does not say");
    assert_eq!(beats(Some(T.suspect)), (20, 20));
    assert_eq!(beats(Some(Duration::from_millis(900))), (100, 20), "only who is asked");
    assert_eq!(beats(Some(Duration::from_millis(1))), (300, 20), "within reason");
}

#[test]
fn two_versions_speak_the_highest_common_one() {
    let versions = |min, max| WireVersions { min: WireVersion(min), max: WireVersion(max) };
    for (east, west, common) in [((1, 2), (1, 1), 1), ((1, 2), (2, 3), 2), ((1, 5), (1, 5), 5)] {
        let mut pair = Pair::new();
        pair.east.session.ours.versions = versions(east.0, east.1);
        pair.west.session.ours.versions = versions(west.0, west.1);
        pair.east.session.ours.capabilities.insert("of a later version".into());
        pair.east.cluster.say_desired("west", "a", 1);
        let acks = |end: &mut End| {
            let ack = |message| if let Message::HelloAck(version) = message { Some(version.0) } else { None };
            end.said().into_iter().find_map(ack)
        };
        pair.east.transmit();
        carry(pair.now, &mut pair.east, &mut pair.west);
        assert_eq!(acks(&mut pair.west), Some(common));
        pair.settle();
        assert!(pair.east.session.is_established() && pair.west.session.is_established());
        assert_eq!(pair.west.puts(), [desired_key("a")]);
    }
}

#[test]
fn bytes_of_a_large_frame_on_its_way_are_a_sign_of_life() {
    let mut pair = Pair::established();
    for _ in 0..20 {
        pair.pass(Duration::from_secs(1), false);
        pair.west.handle(pair.now, Input::Heard);
    }
    assert!(!pair.west.session.is_suspect());
    assert_eq!(pair.east.ending(), Some(CloseCode::Silent), "who heard nothing has given up");
}

#[test]
fn the_capacity_is_told_when_it_changes() {
    let mut pair = Pair::established();
    pair.east.cluster.set_capacity(Capacity { nodes: 3, ..Capacity::default() });
    pair.pass(Duration::from_secs(10), true);
    let told: Vec<&Event> = pair.west.events.iter().filter(|event| matches!(event, Event::Capacity(_))).collect();
    assert_eq!(told, [&Event::Capacity(Some(Capacity { nodes: 3, ..Capacity::default() }))]);
}

#[test]
fn a_state_beyond_the_limits_harms_itself_only() {
    let mut pair = Pair::established();
    let mut large = desired("large", 1);
    large.template = serde_json::Value::String("x".repeat(limits::TEMPLATE));
    pair.east.cluster.say("west", desired_key("large"), State::Desired(Box::new(large)));
    pair.east.cluster.say_desired("west", "a", 1);
    pair.pass(Duration::from_secs(200), true);
    assert_eq!(pair.west.puts(), [desired_key("a")]);
    let problems: Vec<&Event> =
        pair.east.events.iter().filter(|event| matches!(event, Event::Undeliverable { .. })).collect();
    assert!(
        matches!(&problems[..], [Event::Undeliverable { key, .. }] if *key == desired_key("large")),
        "said once: {problems:?}"
    );
    let snapshots = pair.west.snapshots();
    assert!(snapshots.len() > 1);
    assert_eq!(snapshots.last(), Some(&vec![desired_key("a"), desired_key("large")]), "it is not absent");
}

#[test]
fn a_state_the_peer_cannot_use_comes_back_as_a_problem() {
    let mut pair = Pair::established();
    // The burst in the key is another one than in the state.
    pair.east.cluster.say("west", desired_key("b"), State::Desired(Box::new(desired("a", 1))));
    pair.pass(Duration::from_secs(200), true);
    assert_eq!(pair.west.puts(), []);
    let problem = "the state is about burst a, its key about b".to_owned();
    assert_eq!(pair.east.events.iter().filter(|event| matches!(event, Event::Undeliverable { .. })).count(), 1);
    assert!(pair.east.events.contains(&Event::Undeliverable { key: desired_key("b"), problem }));
}

#[test]
fn the_last_keys_of_too_many_are_named_and_no_snapshot_is_complete() {
    let mut pair = Pair::new();
    for index in 0..=limits::KEYS_PER_PEER {
        pair.east.cluster.say("west", desired_key(&format!("{index:05}")), State::Tombstone);
    }
    pair.settle();
    pair.pass(Duration::from_secs(10), true);
    assert_eq!(pair.west.puts().len(), limits::KEYS_PER_PEER);
    assert_eq!(pair.west.snapshots().len(), 0);
    let last = desired_key(&format!("{:05}", limits::KEYS_PER_PEER));
    let problems: Vec<&Event> =
        pair.east.events.iter().filter(|event| matches!(event, Event::Undeliverable { .. })).collect();
    assert!(matches!(&problems[..], [Event::Undeliverable { key, .. }] if *key == last), "{problems:?}");
}

#[test]
fn hellos_that_are_refused() {
    let refused = |theirs: Hello, pinned: Option<&str>| {
        let mut pair = Pair::new();
        pair.east.session.ours = theirs;
        pair.west.session.expected.cluster_uid = pinned.map(Into::into);
        pair.settle();
        assert!(!pair.west.session.is_established());
        assert_eq!(pair.west.puts(), []);
        pair.west.ending().expect("it ended")
    };
    assert_eq!(refused(hello("north"), None), CloseCode::WrongIdentity);
    assert_eq!(refused(hello("east"), Some("uid-before")), CloseCode::WrongClusterUid);
    assert_eq!(refused(Hello { cluster_uid: "uid-west".into(), ..hello("east") }, None), CloseCode::WrongClusterUid);
}

#[test]
fn a_lower_epoch_is_refused_and_a_higher_one_replaces() {
    let mut pair = Pair::established();
    let admitted = |end: &mut End, epoch: u64, instance: u64| {
        let theirs = Hello { epoch: Epoch(epoch), instance, ..hello("east") };
        let name: PeerName = "east".into();
        let expected = Expected { name, cluster_uid: None, version: None };
        let mut west = End::new(Mono::ZERO, hello("west"), "east");
        west.session = Session::new(Mono::ZERO, T, hello("west"), Sequences::default(), expected);
        std::mem::swap(&mut west.inbox, &mut end.inbox);
        let mut pair = Pair { now: Mono::ZERO, east: End::new(Mono::ZERO, theirs, "west"), west };
        pair.settle();
        std::mem::swap(&mut pair.west.inbox, &mut end.inbox);
        pair.west.ending()
    };
    assert_eq!(admitted(&mut pair.west, 2, 5), None);
    assert_eq!(admitted(&mut pair.west, 1, 1), Some(CloseCode::StaleEpoch));
    pair.east.cluster.say_desired("west", "late", 1);
    pair.settle();
    assert_eq!(pair.west.puts(), [], "what the old session still says is ignored");
}

#[test]
fn who_breaks_the_protocol_is_closed() {
    let framed = |message: Message| {
        let mut buf = BytesMut::new();
        message.encode(&mut buf).unwrap();
        buf.split_off(4).freeze()
    };
    let closed_by = |established: bool, frame: Bytes| {
        let mut pair = if established { Pair::established() } else { Pair::new() };
        pair.west.handle(pair.now, Input::Frame(frame));
        pair.west.ending()
    };
    let protocol = Some(CloseCode::Protocol);
    assert_eq!(closed_by(false, Bytes::from_static(&[0xff; 9])), protocol);
    assert_eq!(closed_by(false, framed(Message::Want(vec![]))), protocol, "before the hello");
    assert_eq!(closed_by(false, framed(Message::HelloAck(WireVersion(1)))), protocol, "before the hello");
    assert_eq!(closed_by(false, vec![0; limits::HELLO_FRAME + 1].into()), protocol);
    assert_eq!(closed_by(true, framed(Message::Hello(hello("east")))), protocol, "twice");
    assert_eq!(closed_by(true, Bytes::from_static(&[0x9a, 0x06, 0x00])), None, "a newer message is skipped");
    let mut pair = Pair::new();
    pair.pass(T.handshake, false);
    assert_eq!(pair.west.ending(), Some(CloseCode::Silent), "no hello at all");
}

proptest! {
    /// Whatever a peer sends, in whatever order: no panic, no state before the hellos, none of another leadership, and
    /// nothing after the end.
    #[test]
    fn a_peer_may_send_anything(
        frames in proptest::collection::vec((0..9_usize, any::<u8>(), any::<prop::sample::Index>()), 0..40),
    ) {
        let mut pair = Pair::new();
        pair.east.cluster.say_desired("west", "a", 1);
        pair.east.cluster.say("west", desired_key("b"), State::Tombstone);
        for (kind, flip, at) in frames {
            match kind {
                0 => pair.pass(Duration::from_millis(700), false),
                1 => {
                    carry(pair.now, &mut pair.west, &mut pair.east);
                }
                2 => pair.east.cluster.say_desired("west", "a", u64::from(flip)),
                3 => pair.west.handle(pair.now, Input::Frame(Bytes::from(vec![flip; 3]))),
                _ => {
                    let now = pair.now;
                    pair.east.changed(now);
                    pair.east.transmit();
                    while let Some(frame) = frame::take(&mut pair.east.sent, limits::CONTROL_FRAME).unwrap() {
                        let mut bytes = frame.to_vec();
                        if kind > 6 && !bytes.is_empty() {
                            let at = at.index(bytes.len());
                            bytes[at] ^= flip;
                        }
                        pair.west.handle(now, Input::Frame(bytes.into()));
                    }
                }
            }
        }
        let established = pair.west.events.iter().position(|event| matches!(event, Event::Established(_)));
        let end = pair.west.events.iter().position(|event| matches!(event, Event::Close(_)));
        for (index, event) in pair.west.events.iter().enumerate() {
            if let Event::Put { .. } | Event::CompleteSnapshot { .. } = event {
                prop_assert!(established.is_some_and(|at| at < index));
            }
            prop_assert!(end.is_none_or(|end| index <= end));
        }
    }
}
