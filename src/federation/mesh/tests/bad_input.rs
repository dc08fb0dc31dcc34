//! Peers that are let in and then behave badly, or speak another version. Others must not notice.

use bytes::{Bytes, BytesMut};
use prost::Message as _;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::*;
use crate::contract::ports::State;
use crate::federation::testing::desired;
use crate::federation::transport::{CloseReason, Link, RecvHalf, SendHalf};
use crate::federation::wire::messages::{Decoded, Message};
use crate::federation::wire::registry::{CloseCode, StreamKind};
use crate::federation::wire::{frame, limits, proto};

/// Cluster `ccc`, byte by byte.
struct Raw {
    link: Arc<dyn Link>,
    send: SendHalf,
    recv: RecvHalf,
    read: BytesMut,
}

impl Raw {
    /// Dials `a`. `a` and `bb` are agents, and `a` knows `ccc`.
    async fn dial(bed: &Bed) -> (Agent, Agent, Self) {
        let [a, bb] = bed.agents(["a", "bb"]);
        a.knows("ccc", &[]);
        a.cluster.until_state("bb", PeerState::Connected).await;
        let transport = bed.transport("ccc");
        transport.set_peers(&BTreeMap::from([("a".into(), spec("a"))]));
        let link = transport.dial(&spec("a"), Bed::address("a")).await.unwrap();
        let (send, recv) = link.open(StreamKind::Control).await.unwrap();
        // Dropping a transport ends nothing; it is done when its listener is.
        std::mem::forget(transport);
        (a, bb, Self { link, send, recv, read: BytesMut::new() })
    }

    /// With both hellos accepted.
    async fn established(bed: &Bed) -> (Agent, Agent, Self) {
        let (a, bb, mut raw) = Self::dial(bed).await;
        raw.say(hello(1, 1)).await;
        let version =
            raw.hear(|body| if let proto::Body::HelloAck(ack) = body { Some(ack.version) } else { None }).await;
        raw.say(proto::Body::HelloAck(proto::HelloAck { version })).await;
        a.cluster.until_state("ccc", PeerState::Connected).await;
        (a, bb, raw)
    }

    async fn say(&mut self, body: proto::Body) {
        self.write(&framed(body)).await;
    }

    async fn write(&mut self, bytes: &[u8]) {
        // Who is closed upon cannot write any more.
        let _ = self.send.write_all(bytes).await;
        let _ = self.send.flush().await;
    }

    /// The first message that `wanted` takes.
    async fn hear<T>(&mut self, wanted: impl Fn(proto::Body) -> Option<T>) -> T {
        loop {
            while let Some(frame) = frame::take(&mut self.read, limits::CONTROL_FRAME).unwrap() {
                if let Some(found) = proto::Envelope::decode(frame).unwrap().body.and_then(&wanted) {
                    return found;
                }
            }
            assert_ne!(self.recv.read_buf(&mut self.read).await.unwrap(), 0, "the end");
        }
    }

    async fn closed(&self) -> (CloseCode, String) {
        match self.link.closed().await {
            CloseReason::Peer { code, reason } => (code, reason),
            other => panic!("{other:?}"),
        }
    }
}

fn spec(name: &str) -> PeerSpec {
    PeerSpec { name: name.into(), ..PeerSpec::default() }
}

fn hello(version_min: u32, version_max: u32) -> proto::Body {
    proto::Body::Hello(proto::Hello {
        version_min,
        version_max,
        agent_version: "0.0.9".into(),
        cluster: "ccc".into(),
        cluster_uid: "uid-ccc".into(),
        epoch: 1,
        instance: 1,
        ..proto::Hello::default()
    })
}

fn framed(body: proto::Body) -> Bytes {
    let mut buf = BytesMut::new();
    frame::put(&proto::Envelope { body: Some(body) }, limits::CONTROL_FRAME, &mut buf).unwrap();
    buf.freeze()
}

fn heartbeat() -> proto::Body {
    proto::Body::Heartbeat(proto::Heartbeat { capacity: None })
}

fn counted(agent: &Agent, kind: &str) -> u64 {
    let line = format!("tributary_federation_misbehaviour_total{{kind=\"{kind}\"}} ");
    let text = agent.metrics.text();
    text.lines().find_map(|at| at.strip_prefix(&line)).map_or(0, |count| count.parse().unwrap())
}

/// The two good ones still talk, at once.
async fn others_are_fine(bed: &Bed, a: &Agent, bb: &Agent, generation: u64) {
    let start = bed.clock.mono();
    a.cluster.say_desired("bb", "fine", generation);
    bb.until_generation("a", "fine", generation).await;
    let took = bed.clock.mono().saturating_since(start);
    assert!(took <= Duration::from_millis(50), "{took:?}");
    assert!(a.cluster.reports("bb").iter().all(|report| report.state != PeerState::Suspect));
}

#[tokio::test(start_paused = true)]
async fn an_older_and_a_newer_version_agree_on_what_both_speak() {
    // Of ours, a newer one that still speaks ours, and one that has things nobody here knows.
    let bed = Bed::new();
    let (a, _bb, mut raw) = Raw::dial(&bed).await;
    let proto::Body::Hello(newer) = hello(1, 7) else { unreachable!() };
    let newer = proto::Hello { capabilities: vec!["teleport".into(), "tunnel".into()], ..newer };
    // A field of a later version, number 99, in the hello, and a message of a later version after it.
    let mut unknown = proto::Envelope { body: Some(proto::Body::Hello(newer)) }.encode_to_vec();
    let inner = unknown.len() as u8 - 2;
    assert_eq!(unknown[1], inner, "one byte of length");
    unknown.extend_from_slice(&[0x9a, 0x06, 0x01, b'x']);
    unknown[1] += 4;
    let mut bytes = BytesMut::from(&(unknown.len() as u32).to_be_bytes()[..]);
    bytes.extend_from_slice(&unknown);
    raw.write(&bytes).await;
    let version = raw.hear(|body| if let proto::Body::HelloAck(ack) = body { Some(ack.version) } else { None }).await;
    assert_eq!(version, 1, "the highest both speak");
    raw.say(proto::Body::HelloAck(proto::HelloAck { version })).await;
    a.cluster.until_state("ccc", PeerState::Connected).await;
    raw.write(&[0, 0, 0, 4, 0x9a, 0x06, 0x01, b'x']).await;
    for _ in 0..5 {
        sleep(Duration::from_secs(2)).await;
        raw.say(heartbeat()).await;
    }
    assert_eq!(a.state_of("ccc"), PeerState::Connected);
    // And what we say is what it understands: it knows nothing of patience.
    assert!(matches!(Message::decode(Bytes::new()), Ok(Decoded::Unknown)));
}

#[tokio::test(start_paused = true)]
async fn a_version_that_has_nothing_in_common_is_told_so() {
    let bed = Bed::new();
    let (a, bb, mut raw) = Raw::dial(&bed).await;
    raw.say(hello(8, 9)).await;
    let (code, reason) = raw.closed().await;
    assert_eq!(code, CloseCode::IncompatibleVersion);
    assert!(reason.contains("ccc (agent 0.0.9) speaks 8 to 9; upgrade the older one"), "{reason}");
    a.cluster.until_state("ccc", PeerState::Refused).await;
    let refusal = a.cluster.reports("ccc").pop().unwrap().refusal.unwrap();
    assert_eq!((refusal.reason.as_str(), refusal.message), ("IncompatibleVersion", reason));
    others_are_fine(&bed, &a, &bb, 1).await;
}

#[tokio::test(start_paused = true)]
async fn who_acknowledges_a_version_that_was_not_agreed_on_is_closed() {
    let bed = Bed::new();
    let (a, _bb, mut raw) = Raw::dial(&bed).await;
    raw.say(hello(1, 1)).await;
    raw.say(proto::Body::HelloAck(proto::HelloAck { version: 4 })).await;
    let (code, reason) = raw.closed().await;
    assert_eq!(
        (code, reason.as_str()),
        (CloseCode::Protocol, "version 4 is acknowledged, 1 is the highest common one")
    );
    assert_eq!(counted(&a, "out_of_order"), 1);
}

#[tokio::test(start_paused = true)]
async fn a_flood_is_read_slowly_and_others_do_not_notice() {
    let bed = Bed::new();
    let (a, bb, mut raw) = Raw::established(&bed).await;
    let start = bed.clock.mono();
    let batch: Vec<u8> = std::iter::repeat_n(framed(heartbeat()), 1_000).flatten().collect();
    let flood = async {
        for _ in 0..40 {
            raw.write(&batch).await;
        }
        raw.say(proto::Body::Want(proto::Want { keys: vec![] })).await;
    };
    let meanwhile = async {
        for generation in 1..=20 {
            others_are_fine(&bed, &a, &bb, generation).await;
            sleep(Duration::from_millis(100)).await;
        }
    };
    tokio::join!(flood, meanwhile);
    assert!(bed.clock.mono().saturating_since(start) >= Duration::from_secs(2), "it was slowed down");
    assert_eq!(counted(&a, "flood"), 1, "counted once per connection");
    assert_eq!(a.state_of("ccc"), PeerState::Connected, "it is not cut off for it");
}

#[tokio::test(start_paused = true)]
async fn who_does_not_read_is_cut_off_and_holds_little() {
    let bed = Bed::new();
    let (a, bb, mut raw) = Raw::established(&bed).await;
    for index in 0..200 {
        let uid = format!("burst-{index}");
        let mut burst = desired(&uid, 1);
        burst.template = serde_json::Value::String("x".repeat(100 << 10));
        a.cluster.say("ccc", desired_key(&uid), State::Desired(Box::new(burst)));
    }
    // It shows signs of life, and reads nothing.
    let (_, (code, reason)) = tokio::join!(
        async {
            for _ in 0..20 {
                raw.send.write_all(&framed(heartbeat())).await.ok();
                sleep(Duration::from_secs(1)).await;
            }
        },
        async {
            match raw.link.closed().await {
                CloseReason::Peer { code, reason } => (code, reason),
                other => panic!("{other:?}"),
            }
        },
    );
    assert_eq!((code, reason.as_str()), (CloseCode::Silent, "nothing of what was written was read for 9.4 s"));
    assert_eq!(counted(&a, "not_reading"), 1);
    assert!(bed.network.traffic("a", "ccc") < 1 << 20, "what it did not read was not even encoded");
    others_are_fine(&bed, &a, &bb, 1).await;
}

#[tokio::test(start_paused = true)]
async fn who_is_connected_and_says_nothing_is_closed() {
    let bed = Bed::new();
    let (a, bb, raw) = Raw::dial(&bed).await;
    let (code, reason) = raw.closed().await;
    assert_eq!((code, reason.as_str()), (CloseCode::Silent, "no accepted hello within 5 s"));
    assert_eq!(counted(&a, "half_open"), 1);
    others_are_fine(&bed, &a, &bb, 1).await;
}

#[tokio::test(start_paused = true)]
async fn garbage_and_frames_beyond_the_limit_end_the_connection_they_came_by() {
    for (bytes, kind) in [
        (vec![0, 0, 0, 3, 0xff, 0xff, 0xff], "malformed"),
        (vec![0x7f, 0xff, 0xff, 0xff], "malformed"),
        (framed(hello(1, 1)).to_vec(), "out_of_order"),
    ] {
        let bed = Bed::new();
        let (a, bb, mut raw) = Raw::established(&bed).await;
        raw.write(&bytes).await;
        assert_eq!(raw.closed().await.0, CloseCode::Protocol);
        assert_eq!(counted(&a, kind), 1, "{bytes:?}");
        others_are_fine(&bed, &a, &bb, 1).await;
    }
}

#[tokio::test(start_paused = true)]
async fn states_that_lie_are_told_and_never_delivered() {
    let bed = Bed::new();
    let (a, bb, mut raw) = Raw::established(&bed).await;
    let put = |sequence, key: &str, about: &str| {
        let state = serde_json::to_vec(&desired(about, 1)).unwrap();
        proto::Body::Put(proto::Put {
            epoch: 1,
            sequence,
            key: Some(proto::Key { kind: 1, burst: key.into() }),
            digest: Bytes::copy_from_slice(&[7; 16]),
            state: Some(state.into()),
        })
    };
    raw.say(put(1, "mine", "yours")).await;
    let problem =
        raw.hear(|body| if let proto::Body::Reject(reject) = body { Some(reject.problem) } else { None }).await;
    assert_eq!(problem, "the state is about burst yours, its key about mine");
    assert_eq!(counted(&a, "unusable"), 1);
    // Replayed, and of an older and a newer leadership than its hello said.
    raw.say(put(5, "good", "good")).await;
    raw.say(put(4, "good", "good")).await;
    for epoch in [0, 9] {
        let proto::Body::Put(state) = put(6 + epoch, "other", "other") else { unreachable!() };
        raw.say(proto::Body::Put(proto::Put { epoch, ..state })).await;
    }
    a.cluster.until("the good one", |cluster| cluster.heard_generation("ccc", "good") == Some(1)).await;
    others_are_fine(&bed, &a, &bb, 1).await;
    assert_eq!(a.cluster.puts(), 1);
}
