//! What peers send: frames, messages, states, whole sessions, and the tunnel.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::{Bytes as Buffer, BytesMut};
use futures::FutureExt as _;
use tributary_clock::Mono;
use tributary_contract::ports::{Outgoing, State, StateKey};
use tributary_contract::{BurstUid, Capacity, DesiredBurst, DirtySet, Epoch, ObservedBurst, PeerName};
use tributary_federation::session::{Event, Expected, Inbox, Input, Sequences, Session, outbox};
use tributary_federation::timers::Timers;
use tributary_federation::wire::digest::Digest;
use tributary_federation::wire::messages::{Decoded, Hello, Message, Put, Reject, Summary};
use tributary_federation::wire::version::{WireVersion, WireVersions};
use tributary_federation::wire::{frame, limits, proto};
use tributary_tunnel::resumable_stream::{Delivery, ResumableStream};
use tributary_tunnel::segment::{self, Decoder, Segment};

use super::Target;
use super::grow::Bytes;
use super::hosting::offer;

pub(crate) const FRAMES: Target = Target {
    name: "frames",
    run: |data| {
        let Some((size, data)) = data.split_first() else { return };
        let (mut arrived, mut pieces) = (BytesMut::new(), data.chunks(usize::from(*size) + 1));
        let (mut taken, mut broken) = (0, false);
        loop {
            match frame::take(&mut arrived, limits::HELLO_FRAME) {
                Ok(Some(one)) => {
                    assert!(one.len() <= limits::HELLO_FRAME);
                    assert_eq!(one, data[taken + 4..][..one.len()]);
                    taken += 4 + one.len();
                    let _ = Message::decode(one);
                }
                Ok(None) => match pieces.next() {
                    Some(piece) => arrived.extend_from_slice(piece),
                    None => break,
                },
                Err(error) => {
                    assert!(error.size > limits::HELLO_FRAME);
                    broken = true;
                    break;
                }
            }
        }
        assert!(broken || data.len() - taken == arrived.len());
        let mut stream = data;
        let only = frame::receive_only::<_, proto::Envelope>(&mut stream, limits::HELLO_FRAME);
        let _ = only.now_or_never().expect("a slice never waits");
    },
    seeds: || {
        let all: Vec<u8> = messages().into_iter().flat_map(whole).collect();
        vec![[&[255][..], &all].concat(), [&[2][..], &all].concat(), vec![0, 0, 0, 128, 1]]
    },
    words: &[],
};

pub(crate) const MESSAGES: Target = Target {
    name: "messages",
    run: |data| {
        let Ok(Decoded::Known(message)) = Message::decode(Buffer::copy_from_slice(data)) else { return };
        within_limits(&message);
        let mut buf = BytesMut::new();
        message.clone().encode(&mut buf).expect("what fits a frame fits one again");
        let again = frame::take(&mut buf, limits::CONTROL_FRAME).expect("within the limit").expect("whole");
        assert_eq!(Message::decode(again), Ok(Decoded::Known(message)));
    },
    seeds: || messages().into_iter().map(|message| whole(message).split_off(4)).collect(),
    words: &["\\x01\\x00", "cluster", "tributary.dev/", "\\xff\\xff\\xff\\xff\\xff\\xff\\xff\\xff\\xff\\x01"],
};

fn within_limits(message: &Message) {
    match message {
        Message::Hello(hello) => {
            assert!(hello.labels.len() <= limits::LABELS && hello.cluster_uid.as_str().len() <= limits::UID);
            assert!(hello.agent_version.len() <= limits::WORD && !hello.agent_version.contains(char::is_control));
        }
        Message::Summary(summary) => assert!(summary.entries.len() <= limits::KEYS_PER_PEER),
        Message::Want(keys) => assert!(keys.len() <= limits::KEYS_PER_PEER),
        Message::Reject(reject) => {
            assert!(reject.problem.len() <= limits::REASON && !reject.problem.contains(char::is_control));
        }
        Message::Heartbeat(Some(capacity)) | Message::Capacity(Some(capacity)) => {
            assert!(capacity.rooms.len() <= limits::ROOMS);
        }
        _ => {}
    }
}

pub(crate) const STATES: Target = Target {
    name: "states",
    run: |data| {
        let Some((kind, json)) = data.split_first() else { return };
        let uid = serde_json::from_slice::<serde_json::Value>(json).ok();
        let uid = uid.and_then(|state| Some(state.get("uid")?.as_str()?.to_owned())).unwrap_or_default();
        let key = if kind % 2 == 0 { StateKey::Desired(uid.into()) } else { StateKey::Observed(uid.into()) };
        state(&key, &Buffer::copy_from_slice(json));
    },
    seeds: || {
        let json = |kind, json: Result<Vec<u8>, _>| [&[kind][..], &json.expect("plain data")].concat();
        let observed = ObservedBurst { uid: "burst-uid".into(), ..ObservedBurst::default() };
        vec![json(0, serde_json::to_vec(&offer())), json(1, serde_json::to_vec(&observed))]
    },
    words: &[
        "\"template\":{",
        "\"uid\":\"",
        "\"rejection\":{\"reason\":\"",
        "\"message\":\"",
        "\"preflight\":[{",
        "\"check\":\"",
        "\"times\":{\"ready\":\"",
        "\"run\":{",
        "\"phase\":\"",
        "Accepted",
        "\"lead\":{\"address\":\"",
        "\"port\":",
        "9999-12-31T23:59:59Z",
        "\"trace\":\"00-",
        "4294967296",
        "\\u0000",
    ],
};

/// What is taken can be sent on, and is then taken as the same.
fn state(key: &StateKey, json: &Buffer) {
    let state = match outbox::decode(key, Some(json)) {
        Ok(state) => state,
        Err(_) => return,
    };
    let (again, _) = match outbox::encode(&state) {
        Ok(encoded) => encoded,
        // Numbers may be written shorter than they are said.
        Err(unfit) => return assert!(json.len() > limits::TEMPLATE / 2, "{}", unfit.problem),
    };
    assert_eq!(outbox::decode(key, again.as_ref()), Ok(state));
}

/// A cluster with three bursts.
#[derive(Default)]
struct Cluster {
    dirty: DirtySet<(PeerName, StateKey)>,
}

impl Outgoing for Cluster {
    fn dirty(&self) -> &DirtySet<(PeerName, StateKey)> {
        &self.dirty
    }

    fn keys(&self, _: &PeerName) -> Vec<StateKey> {
        ["a", "b", "c"].map(|uid| StateKey::Desired(uid.into())).into()
    }

    fn state(&self, _: &PeerName, key: &StateKey) -> Option<State> {
        match key {
            StateKey::Desired(uid) if uid.as_str() == "c" => Some(State::Tombstone),
            StateKey::Desired(uid) if ["a", "b"].contains(&uid.as_str()) => {
                Some(State::Desired(Box::new(DesiredBurst { uid: uid.clone(), ..offer() })))
            }
            _ => None,
        }
    }

    fn complete(&self) -> bool {
        true
    }

    fn capacity(&self, _: &PeerName) -> Option<Capacity> {
        None
    }
}

pub(crate) const SESSION: Target = Target {
    name: "session",
    run: |data| {
        let mut bytes = Bytes(data);
        let (mut now, cluster, mut inbox) = (Mono::ZERO, Cluster::default(), Inbox::default());
        let expected = Expected { name: "west".into(), cluster_uid: None, version: None };
        let mut session = Session::new(now, Timers::DEFAULT, hello("east"), Sequences::default(), expected);
        let mut over = false;
        if bytes.byte() % 8 != 0 {
            for message in [Message::Hello(hello("west")), Message::HelloAck(WireVersions::OURS.max)] {
                session.handle(now, &mut inbox, Input::Frame(whole(message).split_off(4).into()));
            }
            assert!(session.is_established());
        }
        for _ in 0..64 {
            if bytes.0.is_empty() {
                break;
            }
            let input = match bytes.byte() {
                0..=15 => Input::Timeout,
                16..=31 => {
                    now = now + Duration::from_millis(100 * u64::from(bytes.byte()));
                    Input::Timeout
                }
                32..=47 => Input::Changed(StateKey::Desired((*bytes.of(&["a", "b", "c", "d"])).into())),
                48..=55 => Input::Heard,
                56..=95 => Input::Frame(known(&mut bytes)),
                _ => Input::Frame(Buffer::copy_from_slice(bytes.piece())),
            };
            session.handle(now, &mut inbox, input);
            let mut said = BytesMut::new();
            for turn in 0.. {
                assert!(turn < 2_000, "a session that never stops talking");
                if session.poll_transmit(&cluster, &mut said).is_none() {
                    break;
                }
            }
            assert!(!over || said.is_empty(), "nothing is said after the end");
            while let Some(frame) = frame::take(&mut said, limits::CONTROL_FRAME).expect("we keep to limits") {
                assert!(matches!(Message::decode(frame), Ok(Decoded::Known(_))), "we understand what we say");
            }
            while let Some(event) = session.poll_event() {
                assert!(!over, "an event after the last one");
                match event {
                    Event::Put { key: StateKey::Desired(uid), state: State::Desired(state), .. } => {
                        assert_eq!(uid, state.uid);
                    }
                    Event::Put { key: StateKey::Observed(uid), state: State::Observed(state), .. } => {
                        assert_eq!(uid, state.uid);
                    }
                    Event::Put { state, .. } => assert_eq!(state, State::Tombstone),
                    Event::CompleteSnapshot { keys, .. } => assert!(keys.len() <= 2 * limits::KEYS_PER_PEER),
                    Event::Close(ending) => {
                        over = true;
                        assert!(!ending.reason.is_empty());
                    }
                    _ => {}
                }
            }
            assert_eq!(over, session.poll_timeout().is_none());
        }
    },
    seeds: || {
        let framed = |message: Message| {
            let frame = whole(message).split_off(4);
            [&[200][..], &(frame.len() as u16).to_be_bytes(), &frame].concat()
        };
        let all: Vec<u8> = messages().into_iter().skip(2).flat_map(framed).collect();
        let greeting: Vec<u8> = messages().into_iter().take(3).flat_map(framed).collect();
        vec![
            [&[1][..], &all].concat(),
            [&[0][..], &greeting].concat(),
            vec![1, 60, 0, 1, 7, 60, 1, 1, 9, 60, 2, 2, 5, 0, 20, 255, 60, 3, 0, 1, 40, 0],
        ]
    },
    words: &["\\x08\\x01\\x12", "\\x1a", "\\x22", "\\x2a"],
};

/// A message that makes sense, by a few bytes.
fn known(bytes: &mut Bytes<'_>) -> Buffer {
    const UIDS: [&str; 5] = ["a", "b", "c", "burst-uid", ""];
    let kind = bytes.byte();
    let uid: BurstUid = (*bytes.of(&UIDS)).into();
    let key =
        if bytes.byte().is_multiple_of(2) { StateKey::Desired(uid.clone()) } else { StateKey::Observed(uid.clone()) };
    let (epoch, sequence) = (Epoch(u64::from(bytes.byte() % 3)), u64::from(bytes.byte()));
    let json = match &key {
        StateKey::Desired(_) => serde_json::to_vec(&DesiredBurst { uid, generation: sequence, ..offer() }),
        StateKey::Observed(_) => serde_json::to_vec(&ObservedBurst { uid, ..ObservedBurst::default() }),
    };
    let json = Buffer::from(json.expect("plain data"));
    let digest = Digest::of(&json);
    let message = match kind % 7 {
        0 => Message::Put(Put { epoch, sequence, key, digest, state: Some(json) }),
        1 => Message::Put(Put { epoch, sequence, key, digest: Digest::TOMBSTONE, state: None }),
        2 => {
            let others = UIDS.map(|uid| (StateKey::Observed(uid.into()), digest));
            let entries = others.into_iter().take(usize::from(bytes.byte() % 6)).chain([(key, digest)]).collect();
            Message::Summary(Summary { epoch, sequence, complete: bytes.byte().is_multiple_of(2), entries })
        }
        3 => Message::Want(vec![key]),
        4 => Message::Reject(Reject { key, digest, problem: "no".to_owned() }),
        5 => Message::Heartbeat(None),
        _ => Message::Capacity(Some(Capacity::default())),
    };
    whole(message).split_off(4).into()
}

fn hello(name: &str) -> Hello {
    Hello {
        versions: WireVersions::OURS,
        agent_version: "0.1.0".to_owned(),
        cluster: name.into(),
        cluster_uid: format!("uid-{name}").into(),
        epoch: Epoch(1),
        instance: 1,
        labels: BTreeMap::from([("region".to_owned(), "eu".to_owned())]),
        capabilities: ["whole".to_owned()].into(),
        patience: Some(Duration::from_secs(5)),
    }
}

/// One of each.
fn messages() -> Vec<Message> {
    let json = Buffer::from(serde_json::to_vec(&offer()).expect("plain data"));
    let (key, digest) = (StateKey::Desired("burst-uid".into()), Digest::of(&json));
    let put = |state| Message::Put(Put { epoch: Epoch(1), sequence: 3, key: key.clone(), digest, state });
    vec![
        Message::Hello(hello("west")),
        Message::HelloAck(WireVersion(1)),
        Message::Summary(Summary {
            epoch: Epoch(1),
            sequence: 2,
            complete: true,
            entries: [(key.clone(), digest)].into(),
        }),
        Message::Want(vec![StateKey::Desired("a".into()), StateKey::Observed("b".into())]),
        put(Some(json)),
        put(None),
        Message::Reject(Reject { key: key.clone(), digest, problem: "it cannot be read".to_owned() }),
        Message::Heartbeat(Some(Capacity::default())),
        Message::Capacity(Some(Capacity::default())),
    ]
}

fn whole(message: Message) -> Vec<u8> {
    let mut buf = BytesMut::new();
    message.encode(&mut buf).expect("a message of ours fits a frame");
    buf.to_vec()
}

/// A piece as it can be kept.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Piece {
    Data(Vec<u8>),
    Other(Segment<'static>),
}

fn pieces<'a>(chunks: impl Iterator<Item = &'a [u8]>) -> (Vec<Piece>, bool) {
    let (mut decoder, mut all) = (Decoder::default(), Vec::new());
    for mut chunk in chunks {
        loop {
            match decoder.take(&mut chunk) {
                Ok(Some(Segment::Data(bytes))) => {
                    assert!(!bytes.is_empty() && bytes.len() <= limits::TUNNEL_PIECE);
                    // Data is handed on as it comes: where it is cut says nothing.
                    match all.last_mut() {
                        Some(Piece::Data(before)) => before.extend_from_slice(bytes),
                        _ => all.push(Piece::Data(bytes.to_vec())),
                    }
                }
                Ok(Some(Segment::Ack(position))) => all.push(Piece::Other(Segment::Ack(position))),
                Ok(Some(Segment::Window(bytes))) => all.push(Piece::Other(Segment::Window(bytes))),
                Ok(Some(Segment::End)) => all.push(Piece::Other(Segment::End)),
                Ok(Some(Segment::Reset)) => all.push(Piece::Other(Segment::Reset)),
                Ok(Some(Segment::Blocked)) => all.push(Piece::Other(Segment::Blocked)),
                Ok(None) => break,
                Err(_) => return (all, false),
            }
        }
    }
    (all, true)
}

pub(crate) const TUNNEL: Target = Target {
    name: "tunnel",
    run: |data| {
        let mut bytes = Bytes(data);
        let (size, window) = (usize::from(bytes.byte()) + 1, 1 << (13 + bytes.byte() % 10));
        let data = bytes.0;
        let (all, well) = pieces(std::iter::once(data));
        assert_eq!((&all, well), (&pieces(data.chunks(size)).0, pieces(data.chunks(size)).1), "wherever it is cut");
        let mut written = BytesMut::new();
        for piece in &all {
            match piece {
                Piece::Data(bytes) => bytes.chunks(limits::TUNNEL_PIECE).for_each(|bytes| {
                    segment::head(Segment::Data(bytes), &mut written);
                    written.extend_from_slice(bytes);
                }),
                Piece::Other(segment) => segment::head(*segment, &mut written),
            }
        }
        assert_eq!(pieces(std::iter::once(&written[..])), (all.clone(), true));

        let mut stream = ResumableStream::default();
        let opened = stream.opening();
        if stream.resume(0, (size % 2 == 0).then_some(opened)).is_err() {
            panic!("a new connection begins at 0");
        }
        let (mut said, mut given, mut acked) = (Vec::new(), Vec::new(), 0);
        'pieces: for (index, piece) in all.iter().enumerate() {
            let room = stream.room(window);
            assert!(room <= limits::TUNNEL_PIECE);
            if index % 3 != 2 && room > 0 {
                stream.read(vec![7; room.min(1 + 997 * size)]);
            }
            let parts: Vec<Segment<'_>> = match piece {
                Piece::Data(bytes) => bytes.chunks(limits::TUNNEL_PIECE).map(Segment::Data).collect(),
                Piece::Other(segment) => vec![*segment],
            };
            for part in parts {
                // The connection cannot go on.
                if stream.receive(part).is_err() {
                    break 'pieces;
                }
                match part {
                    Segment::Data(bytes) => said.extend_from_slice(bytes),
                    Segment::Ack(position) => acked = position,
                    _ => {}
                }
            }
            if index % 16 == 15 {
                // The stream breaks, and another one carries the connection on.
                let _ = stream.opening();
                if stream.resume(acked, Some(window as u32)).is_err() {
                    break;
                }
            }
            assert!(stream.queued() <= limits::TUNNEL_WINDOW + limits::TUNNEL_PIECE, "what waits is bounded");
            stream.grant(window);
            for turn in 0.. {
                assert!(turn < 10_000, "a stream that never stops talking");
                let carried = match stream.transmit() {
                    Some(Segment::Data(bytes)) => bytes.len(),
                    Some(_) => 0,
                    None => break,
                };
                stream.carried(carried);
            }
            if index % 2 == 0 {
                let took = match stream.delivery() {
                    Some(Delivery::Bytes(bytes)) => {
                        given.extend_from_slice(bytes);
                        bytes.len()
                    }
                    Some(Delivery::End) => 1,
                    None => 0,
                };
                stream.delivered(took);
            }
        }
        assert!(said.starts_with(&given), "what is given is what was said");
        let _ = (stream.takes(), stream.position(), stream.is_finished());
    },
    seeds: || {
        let mut all = BytesMut::from(&[3, 5][..]);
        let data = [9; 300];
        for piece in [
            Segment::Data(&data),
            Segment::Ack(3),
            Segment::Window(64 << 10),
            Segment::Blocked,
            Segment::Ack(900),
            Segment::End,
            Segment::Reset,
        ] {
            segment::head(piece, &mut all);
            if let Segment::Data(bytes) = piece {
                all.extend_from_slice(bytes);
            }
        }
        vec![all.to_vec(), vec![2, 2, 4, 0, 0, 0, 0, 5, 2], vec![0, 9, 0, 0, 1, 0, 0, 1]]
    },
    words: &["\\x01\\x00\\x00\\x00\\x00\\x00\\x00\\x00\\x00", "\\x04\\x00\\x01\\x00\\x00", "\\x00\\x00\\x00\\x00\\x10"],
};
