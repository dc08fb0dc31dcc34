//! What agents of releases say to each other, as bytes: `tests/released/VERSION/wire.txt`, a message a line.
//!
//! Today's agent must understand each line, and say the same thing in the same bytes. What is added to a message is not set
//! in these samples: an old reader skips it. Nothing of a release is ever made anew. Before a release,
//! `NEW_RELEASE=1 cargo test --locked -p tributary-federation released` adds the lines that its file lacks.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use data_encoding::HEXLOWER;
use jiff::Timestamp;
use serde_json::json;
use tributary_clock::Rng;
use tributary_contract::ports::StateKey;
use tributary_contract::{
    BurstPhase, Capacity, Check, DesiredBurst, Epoch, Finding, LeadAddress, Money, NamespaceRoom, ObservedBurst,
    Outcome, PhaseTimes, PossibleCapacity, Price, Rejection, RejectionReason, RootIdentity, RunReport,
};
use tributary_tunnel::segment::{self, Decoder, Segment};

use crate::enrol::{self, JoinToken, Refusal, TokenSecret};
use crate::wire::digest::Digest;
use crate::wire::messages::{Decoded, Hello, Message, Put, Reject, Summary};
use crate::wire::registry::{CloseCode, StreamKind};
use crate::wire::version::{WireVersion, WireVersions};
use crate::wire::{frame, limits, proto};

/// Something that is said.
struct Sample {
    name: String,
    /// As it is said today.
    bytes: Vec<u8>,
    /// Whether these bytes are understood so.
    is_understood: Understood,
}

type Understood = Box<dyn Fn(&[u8]) -> bool>;

fn sample(name: impl Into<String>, bytes: Vec<u8>, is_understood: impl Fn(&[u8]) -> bool + 'static) -> Sample {
    Sample { name: name.into(), bytes, is_understood: Box::new(is_understood) }
}

/// A message on the control stream.
fn control(name: &str, message: Message) -> Sample {
    let mut framed = BytesMut::new();
    message.clone().encode(&mut framed).unwrap();
    sample(name, framed.to_vec(), move |bytes| {
        let whole = frame::take(&mut BytesMut::from(bytes), limits::CONTROL_FRAME).unwrap();
        Message::decode(whole.expect("a whole frame")) == Ok(Decoded::Known(message.clone()))
    })
}

/// A message on a stream of its own.
fn single<M: prost::Message + PartialEq + Default + 'static>(name: &str, message: M) -> Sample {
    sample(name, message.encode_to_vec(), move |bytes| M::decode(bytes).as_ref() == Ok(&message))
}

fn number(name: String, number: u32, meaning: impl Fn(u32) -> String + 'static) -> Sample {
    let expected = name.clone();
    sample(name, number.to_be_bytes().to_vec(), move |bytes| {
        bytes.try_into().is_ok_and(|bytes| meaning(u32::from_be_bytes(bytes)) == expected)
    })
}

fn desired() -> StateKey {
    StateKey::Desired("burst-uid".into())
}

fn observed() -> StateKey {
    StateKey::Observed("burst-uid".into())
}

fn capacity() -> Capacity {
    let room = NamespaceRoom {
        namespace: "hpc".into(),
        mini_clusters: Some(2),
        brokers: Some(16),
        milli_cores: Some(64_000),
        memory_mib: Some(4_096),
        gpus: Some(0),
    };
    let price = Price { core_hour: Money::of_millionths(45_000), gpu_hour: Money::of_millionths(2_000_000) };
    let possible = PossibleCapacity {
        nodes: 3,
        cores: 192,
        memory_mib: 786_432,
        gpus: 8,
        largest_node_cores: 64,
        price: Some(price),
        wait_seconds: 900,
    };
    Capacity {
        nodes: 4,
        free_cores: 96,
        free_memory_mib: 300_000,
        free_gpus: 2,
        largest_free_node_cores: 31,
        free_brokers: Some(0),
        free_bursts: Some(9),
        rooms: vec![room],
        whole: true,
        possible: Some(possible),
    }
}

fn control_messages() -> Vec<Sample> {
    let put = |key, state: Option<&'static [u8]>, digest| Put {
        epoch: Epoch(7),
        sequence: 301,
        key,
        digest,
        state: state.map(Bytes::from_static),
    };
    let hello = Hello {
        versions: WireVersions { min: WireVersion(1), max: WireVersion(2) },
        agent_version: "0.1.0".into(),
        cluster: "east".into(),
        cluster_uid: "uid-east".into(),
        epoch: Epoch(7),
        instance: 0x0102_0304_0506_0708,
        labels: BTreeMap::from([("region".into(), "eu".into())]),
        capabilities: BTreeSet::from(["tunnel".into()]),
        patience: Some(Duration::from_millis(4_700)),
    };
    let entries = BTreeMap::from([(desired(), Digest::of(b"state")), (observed(), Digest::TOMBSTONE)]);
    let problem = "no uid".into();
    vec![
        control("hello", Message::Hello(hello)),
        control("hello ack", Message::HelloAck(WireVersion(2))),
        control("heartbeat", Message::Heartbeat(None)),
        control("heartbeat of version 1", Message::Heartbeat(Some(capacity()))),
        control("capacity", Message::Capacity(Some(capacity()))),
        control("capacity that is not exported", Message::Capacity(None)),
        control("summary", Message::Summary(Summary { epoch: Epoch(7), sequence: 300, complete: true, entries })),
        control("want", Message::Want(vec![desired(), observed()])),
        control("put", Message::Put(put(desired(), Some(b"{}"), Digest::of(b"{}")))),
        control("put of a tombstone", Message::Put(put(observed(), None, Digest::TOMBSTONE))),
        control("reject", Message::Reject(Reject { key: desired(), digest: Digest::of(b"{}"), problem })),
    ]
}

fn single_messages() -> Vec<Sample> {
    let (burst, incarnation) = (|| "burst-uid".to_owned(), || "job-uid".to_owned());
    let certificate = |certificate, refusal| proto::CredentialAnswer { certificate, refusal };
    let opens = proto::TunnelOpen {
        burst: burst(),
        incarnation: incarnation(),
        process: 0x0102_0304_0506_0708,
        connection: 9,
        resumes: true,
        position: 4_096,
        window: Some(65_536),
        relay: false,
    };
    let message = "try again".to_owned();
    vec![
        single(
            "credential request",
            proto::CredentialRequest { burst: burst(), incarnation: incarnation(), digest: "sha256:00".into() },
        ),
        single("credential answer", certificate(Some("the certificate".into()), 0)),
        single("credential refusal", certificate(None, 2)),
        single("query", proto::QueryRequest { query: "why".into() }),
        single("query answer", proto::QueryAnswer { document: Some(Bytes::from_static(b"{}")) }),
        single("trust offer", proto::TrustOffer { bundle: "PEM".into(), signatures: vec![vec![1, 2], vec![3]] }),
        single("trust answer", proto::TrustAnswer { outcome: 2 }),
        single("tunnel open", opens),
        single("tunnel answer", proto::TunnelAnswer { outcome: 6, position: 4_097, message, window: Some(65_536) }),
    ]
}

/// Chance of which everybody knows what it brings.
struct Sevens;

impl Rng for Sevens {
    fn next_u64(&mut self) -> u64 {
        0x0707_0707_0707_0707
    }
}

fn joining() -> Vec<Sample> {
    let who = || enrol::proto::Introduction {
        cluster: "east".into(),
        cluster_uid: "uid-east".into(),
        trust_domain: Some("example.org".into()),
        trust_bundle: "PEM".into(),
        endpoints: vec!["east.example.org:7946".into()],
    };
    let request =
        enrol::proto::Request { token: "id".into(), secret: vec![7; 32], who: Some(who()), clock: 1_800_000_000_123 };
    let token = JoinToken {
        id: "0123456789abcdef".into(),
        secret: TokenSecret::generate(&mut Sevens),
        cluster: "east".into(),
        trust_domain: Some("example.org".into()),
        endpoints: vec!["east.example.org:7947".into()],
        authorities: BTreeSet::from(["ab".repeat(32)]),
        expires: Timestamp::from_second(1_800_000_000).unwrap(),
    };
    let answer = |who, refusal, message: &str| enrol::proto::Answer { who, refusal, message: message.into() };
    vec![
        sample("join token", token.text().as_bytes().to_vec(), move |bytes| {
            std::str::from_utf8(bytes).unwrap().parse::<JoinToken>().as_ref() == Ok(&token)
        }),
        single("join request", request),
        single("join answer", answer(Some(who()), 0, "")),
        single("join refusal", answer(None, 2, "the token has ended")),
    ]
}

fn pieces() -> Vec<Sample> {
    let piece = |name: &str, piece: Segment<'static>| {
        let mut bytes = BytesMut::new();
        segment::head(piece, &mut bytes);
        if let Segment::Data(data) = piece {
            bytes.extend_from_slice(data);
        }
        sample(name, bytes.to_vec(), move |mut bytes| Decoder::default().take(&mut bytes) == Ok(Some(piece)))
    };
    vec![
        piece("tunnel data", Segment::Data(b"broker")),
        piece("tunnel ack", Segment::Ack(4_096)),
        piece("tunnel end", Segment::End),
        piece("tunnel reset", Segment::Reset),
        piece("tunnel window", Segment::Window(65_536)),
        piece("tunnel blocked", Segment::Blocked),
    ]
}

fn numbers() -> Vec<Sample> {
    let stream = |kind: &StreamKind| format!("stream {kind:?}");
    let close = |code: &CloseCode| format!("close {code:?}");
    let refusal = |refusal: &Refusal| format!("refusal {refusal:?}");
    let streams = StreamKind::ALL.iter().map(move |kind| {
        let meaning = move |id| u16::try_from(id).ok().and_then(StreamKind::from_id).as_ref().map(stream);
        number(stream(kind), kind.id().into(), move |id| meaning(id).unwrap_or_default())
    });
    let closes = CloseCode::ALL
        .iter()
        .map(move |code| number(close(code), code.number(), move |code| close(&CloseCode::from_number(code))));
    let refusals = Refusal::ALL
        .iter()
        .map(move |one| number(refusal(one), one.number(), move |number| refusal(&Refusal::from_number(number))));
    streams.chain(closes).chain(refusals).collect()
}

/// A document: what is in a `Put`, and its words.
macro_rules! document {
    ($name:expr, $value:expr, $type:ty) => {{
        let value: $type = $value;
        let bytes = serde_json::to_vec(&value).unwrap();
        sample($name, bytes, move |bytes| serde_json::from_slice::<$type>(bytes).is_ok_and(|read| read == value))
    }};
}

fn at(second: i64) -> Option<Timestamp> {
    Timestamp::from_second(1_800_000_000 + second).ok()
}

fn states() -> Vec<Sample> {
    let text = str::to_owned;
    let lead = || Some(LeadAddress { address: "192.0.2.7".into(), port: 30_050 });
    let root = RootIdentity {
        namespace: "hpc".into(),
        name: "lake".into(),
        uid: "mini-cluster-uid".into(),
        incarnation: "job-uid".into(),
    };
    let desired = DesiredBurst {
        uid: "burst-uid".into(),
        generation: 4,
        root,
        slot: "lake-burst-0".into(),
        size: 2,
        max_size: 3,
        cores: 8,
        gpus: 1,
        rank_map: "rank-map/1\n".into(),
        rank_map_digest: "sha256:01".into(),
        credential_digest: "sha256:02".into(),
        lead: lead(),
        whole: true,
        tunnel: true,
        flux_version: Some("0.88".into()),
        arch: Some("amd64".into()),
        template: json!({"pod": {}}),
        lease_seconds: 300,
        drain_seconds: 60,
        warm: true,
        hosted_uid: Some("hosted-uid".into()),
        offer: "sha256:03".into(),
        trace: Some("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01".into()),
        user: None,
    };
    let times = PhaseTimes {
        planned: at(1),
        offered: at(2),
        accepted: at(3),
        provisioned: at(4),
        warmed: at(5),
        scheduled: at(6),
        started: at(7),
        ready: at(8),
        released: at(9),
    };
    let run = RunReport {
        namespace: "hpc".into(),
        mini_cluster: "errand".into(),
        started: true,
        succeeded: Some(false),
        exit_code: Some(3),
        reason: "Failed".into(),
        message: "it ended with 3".into(),
        logs_gone: true,
    };
    let observed = ObservedBurst {
        uid: "burst-uid".into(),
        observed_generation: 4,
        incarnation: "job-uid".into(),
        phase: BurstPhase::Ready,
        rejection: Some(Rejection::new(RejectionReason::NameTaken, "somebody has it")),
        hosted_uid: Some("hosted-uid".into()),
        ready_brokers: 2,
        simulated: true,
        preflight: vec![Finding::fail(Check::LeadAddress, "nobody answers", "look at the firewall")],
        rank_map_digest: Some(text("sha256:01")),
        credential_digest: Some(text("sha256:02")),
        lead: lead(),
        message: "every wanted broker is online".into(),
        times,
        run: Some(run),
        used: None,
    };
    let nothing = DesiredBurst {
        lead: None,
        whole: false,
        tunnel: false,
        flux_version: None,
        arch: None,
        warm: false,
        hosted_uid: None,
        offer: String::new(),
        trace: None,
        ..desired.clone()
    };
    let phases = [
        BurstPhase::Pending,
        BurstPhase::Accepted,
        BurstPhase::Provisioning,
        BurstPhase::Queued,
        BurstPhase::ScalingUp,
        BurstPhase::Joining,
        BurstPhase::Ready,
        BurstPhase::Draining,
        BurstPhase::Released,
        BurstPhase::Rejected,
        BurstPhase::Evicted,
        BurstPhase::Finished,
    ];
    let checks = [
        Check::LeadAddress,
        Check::Certificate,
        Check::FluxVersion,
        Check::ViewImage,
        Check::Architecture,
        Check::User,
    ];
    let mut all = vec![
        document!("desired", desired, DesiredBurst),
        document!("desired with nothing that may be missing", nothing, DesiredBurst),
        document!("observed", observed, ObservedBurst),
        document!("observed with nothing that may be missing", ObservedBurst::default(), ObservedBurst),
    ];
    all.extend(phases.map(|phase| document!(format!("phase {phase:?}"), phase, BurstPhase)));
    all.extend(checks.map(|check| document!(format!("check {check:?}"), check.clone(), Check)));
    all.extend(
        [Outcome::Pass, Outcome::Fail, Outcome::Unknown].map(|one| document!(format!("outcome {one:?}"), one, Outcome)),
    );
    all.extend(
        RejectionReason::KNOWN
            .iter()
            .map(|reason| document!(format!("reason {reason:?}"), reason.clone(), RejectionReason)),
    );
    all
}

/// Text as it is, other bytes in hex.
fn shown(bytes: &[u8]) -> String {
    match std::str::from_utf8(bytes) {
        Ok(text) if text.bytes().all(|byte| (b' '..=b'~').contains(&byte)) => format!("text {text}"),
        _ => format!("hex {}", HEXLOWER.encode(bytes)),
    }
}

fn bytes_of(shown: &str) -> Vec<u8> {
    match shown.split_once(' ').unwrap() {
        ("text", text) => text.as_bytes().to_vec(),
        (_, hex) => HEXLOWER.decode(hex.as_bytes()).unwrap(),
    }
}

fn lines(text: &str) -> BTreeMap<String, String> {
    text.lines()
        .filter_map(|line| line.split_once(": "))
        .map(|(name, said)| (name.to_owned(), said.to_owned()))
        .collect()
}

#[test]
fn agents_of_releases_are_understood_and_understand() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/released");
    let all = [control_messages(), single_messages(), joining(), pieces(), numbers(), states()].into_iter().flatten();
    let today: BTreeMap<String, Sample> = all.map(|sample| (sample.name.clone(), sample)).collect();
    let ours = root.join(env!("CARGO_PKG_VERSION")).join("wire.txt");
    if std::env::var_os("NEW_RELEASE").is_some() {
        let mut known = lines(&std::fs::read_to_string(&ours).unwrap_or_default());
        for (name, sample) in &today {
            known.entry(name.clone()).or_insert_with(|| shown(&sample.bytes));
        }
        let text: String = known.iter().map(|(name, said)| format!("{name}: {said}\n")).collect();
        std::fs::write(&ours, text).unwrap();
    }
    assert!(ours.exists(), "what this version says is not kept yet: NEW_RELEASE=1 keeps it");
    for version in std::fs::read_dir(root).unwrap() {
        let path = version.unwrap().path().join("wire.txt");
        for (name, said) in lines(&std::fs::read_to_string(&path).unwrap()) {
            let at = format!("{}: {name}", path.display());
            let sample = today.get(&name).unwrap_or_else(|| panic!("{at} is not said any more: who still says it?"));
            assert!((sample.is_understood)(&bytes_of(&said)), "{at} is understood as something else");
            assert_eq!(shown(&sample.bytes), said, "{at} is said in other bytes: agents of that version misread it");
        }
    }
}
