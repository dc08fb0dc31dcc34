use proptest::prelude::*;

use super::*;
use crate::wire::frame;

fn desired(uid: &str) -> StateKey {
    StateKey::Desired(uid.into())
}

fn observed(uid: &str) -> StateKey {
    StateKey::Observed(uid.into())
}

/// One of each, with every field set.
fn samples() -> Vec<Message> {
    vec![
        Message::Hello(Hello {
            versions: WireVersions::OURS,
            agent_version: "0.1.0".into(),
            cluster: "east".into(),
            cluster_uid: "uid-east".into(),
            epoch: Epoch(7),
            instance: 0x0102_0304_0506_0708,
            labels: BTreeMap::from([("region".into(), "eu".into()), ("zone".into(), "a".into())]),
            capabilities: BTreeSet::from(["tunnel".into()]),
            patience: Some(Duration::from_millis(4_700)),
        }),
        Message::HelloAck(WireVersion(1)),
        Message::Heartbeat(None),
        Message::Heartbeat(Some(Capacity {
            nodes: 4,
            free_cores: 96,
            free_memory_mib: 300_000,
            free_gpus: 2,
            largest_free_node_cores: 31,
            free_brokers: Some(0),
            free_bursts: Some(9),
            rooms: vec![NamespaceRoom {
                namespace: "hpc".into(),
                mini_clusters: Some(2),
                brokers: Some(16),
                milli_cores: Some(64_000),
                memory_mib: Some(4_096),
                gpus: None,
            }],
            whole: true,
            possible: Some(PossibleCapacity {
                nodes: 3,
                cores: 192,
                memory_mib: 786_432,
                gpus: 8,
                largest_node_cores: 64,
                price: Some(Price { core_hour: Money::of_millionths(45_000), gpu_hour: Money::default() }),
                wait_seconds: 900,
            }),
        })),
        Message::Capacity(None),
        Message::Capacity(Some(Capacity { nodes: 1, ..Capacity::default() })),
        Message::Summary(Summary {
            epoch: Epoch(7),
            sequence: 300,
            complete: true,
            entries: BTreeMap::from([(desired("a"), Digest::of(b"state")), (observed("b"), Digest::TOMBSTONE)]),
        }),
        Message::Want(vec![desired("a"), observed("b")]),
        Message::Put(Put {
            epoch: Epoch(7),
            sequence: 301,
            key: desired("a"),
            digest: Digest::of(b"{}"),
            state: Some(Bytes::from_static(b"{}")),
        }),
        Message::Put(Put {
            epoch: Epoch(7),
            sequence: 302,
            key: observed("b"),
            digest: Digest::TOMBSTONE,
            state: None,
        }),
        Message::Reject(Reject { key: desired("a"), digest: Digest::of(b"{}"), problem: "no uid".into() }),
    ]
}

fn framed(message: Message) -> BytesMut {
    let mut buf = BytesMut::new();
    message.encode(&mut buf).unwrap();
    buf
}

fn decode(mut framed: BytesMut) -> Result<Decoded, DecodeError> {
    Message::decode(frame::take(&mut framed, limits::CONTROL_FRAME).unwrap().expect("a whole frame"))
}

#[test]
fn round_trip() {
    for message in samples() {
        assert_eq!(decode(framed(message.clone())), Ok(Decoded::Known(message)));
    }
}

#[test]
fn what_a_newer_version_sends_is_skipped() {
    // Field 99 of the envelope, length-delimited, empty.
    assert_eq!(Message::decode(Bytes::from_static(&[0x9a, 0x06, 0x00])), Ok(Decoded::Unknown));
    assert_eq!(Message::decode(Bytes::new()), Ok(Decoded::Unknown));
    let strange = proto::Key { kind: 9, burst: "a".into() };
    let entry = |key: proto::Key| proto::Entry { key: Some(key), digest: Bytes::from_static(&[1; Digest::LEN]) };
    let summary = proto::Summary {
        entries: vec![entry(strange.clone()), entry((&desired("a")).into())],
        ..proto::Summary::default()
    };
    let parsed = Summary::try_from(summary).unwrap();
    assert_eq!(parsed.entries.into_keys().collect::<Vec<_>>(), [desired("a")]);
    assert_eq!(known_keys(vec![strange]).unwrap(), []);
}

#[test]
fn what_every_version_sends_must_be_there() {
    let hello = || proto::Hello { cluster: "east".into(), cluster_uid: "uid".into(), ..proto::Hello::default() };
    assert!(Hello::try_from(hello()).is_ok());
    for (broken, error) in [
        (proto::Hello { cluster: String::new(), ..hello() }, DecodeError::Invalid("cluster name")),
        (proto::Hello { cluster: "east`rm`".into(), ..hello() }, DecodeError::Invalid("cluster name")),
        (proto::Hello { cluster_uid: "uid\u{1b}[2J".into(), ..hello() }, DecodeError::Invalid("cluster UID")),
        (proto::Hello { cluster_uid: String::new(), ..hello() }, DecodeError::Invalid("cluster UID")),
        (proto::Hello { cluster_uid: "u".repeat(limits::UID + 1), ..hello() }, DecodeError::Invalid("cluster UID")),
        (
            proto::Hello { labels: (0..65).map(|i| (i.to_string(), String::new())).collect(), ..hello() },
            DecodeError::TooMany("labels"),
        ),
    ] {
        assert_eq!(Hello::try_from(broken), Err(error));
    }
    let key = proto::Key { kind: 1, burst: String::new() };
    assert_eq!(known_keys(vec![key.clone()]), Err(DecodeError::Invalid("key")));
    let long = proto::Key { kind: 1, burst: "u".repeat(limits::UID + 1) };
    assert_eq!(known_keys(vec![long]), Err(DecodeError::Invalid("key")), "it would be kept");
    assert_eq!(known_keys(vec![key; limits::KEYS_PER_PEER + 1]), Err(DecodeError::TooMany("keys")));
}

#[test]
fn what_is_shown_of_a_peer_is_plain_and_short() {
    let hello = proto::Hello {
        cluster: "east".into(),
        cluster_uid: "uid".into(),
        agent_version: format!("1\x1b[2J{}", "9".repeat(1_000)),
        labels: [("a\nb".to_owned(), "c\u{7}".to_owned())].into(),
        ..proto::Hello::default()
    };
    let parsed = Hello::try_from(hello).unwrap();
    assert!(parsed.agent_version.starts_with("1 [2J9") && parsed.agent_version.len() == limits::WORD);
    assert_eq!(parsed.labels, [("a b".to_owned(), "c".to_owned())].into());
    let absurd = Capacity::from(proto::Capacity { free_memory_mib: u64::MAX, ..proto::Capacity::default() });
    assert!(absurd.free_memory_mib < 1 << 53, "the API server could not store it");
    let room = |name: &str, brokers| proto::NamespaceRoom {
        namespace: name.to_owned(),
        brokers: Some(brokers),
        milli_cores: Some(u64::MAX),
        ..proto::NamespaceRoom::default()
    };
    let mut rooms = vec![room("b\x1b", 2), room("a", 3), room("a", 1)];
    rooms.extend((0..1_000).map(|index| room(&format!("n{index}"), 0)));
    let told = Capacity::from(proto::Capacity { rooms, ..proto::Capacity::default() });
    let first: Vec<_> = told.rooms.iter().take(2).map(|room| (room.namespace.as_str(), room.brokers)).collect();
    assert_eq!(first, [("a", Some(1)), ("b", Some(2))], "one of each name, the smaller one");
    assert!(told.rooms.len() < limits::ROOMS && told.rooms[0].milli_cores.unwrap() < 1 << 53);
}

#[test]
fn a_full_summary_fits_a_frame() {
    let uid = |index: usize| format!("0d5cf2c8-3d1b-4a67-9d3e-{index:012}");
    let entries: BTreeMap<_, _> =
        (0..limits::KEYS_PER_PEER).map(|index| (desired(&uid(index)), Digest::of(&index.to_be_bytes()))).collect();
    let summary = Summary { epoch: Epoch(1), sequence: 1, complete: true, entries };
    assert!(framed(Message::Summary(summary)).len() < 330 << 10);
}

#[test]
fn the_certificate_is_not_in_the_debug_of_its_message() {
    let answer = proto::CredentialAnswer { certificate: Some("secret-key = \"abc\"".into()), refusal: 0 };
    assert_eq!(format!("{answer:?}"), r#"CredentialAnswer { certificate: Some("18 bytes"), refusal: 0 }"#);
}

proptest! {
    #[test]
    fn perturbed_frames_never_panic(
        which in 0..11_usize,
        flips in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6),
        cut in any::<prop::sample::Index>(),
    ) {
        let mut bytes = framed(samples().swap_remove(which)).split_off(4).to_vec();
        for (at, value) in flips {
            let at = at.index(bytes.len());
            bytes[at] ^= value;
        }
        bytes.truncate(cut.index(bytes.len() + 1));
        if let Ok(Decoded::Known(message)) = Message::decode(bytes.into()) {
            // What was understood can be said again, and is understood the same way.
            prop_assert_eq!(decode(framed(message.clone())), Ok(Decoded::Known(message)));
        }
    }

    #[test]
    fn any_bytes_are_a_message_or_an_error(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        let _ = Message::decode(bytes.into());
    }
}
