//! A peer that is let in and then says whatever a test says, byte by byte.

use bytes::{Bytes, BytesMut};
use prost::Message as _;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::*;
use crate::transport::{CloseReason, Link, RecvHalf, SendHalf};
use crate::wire::registry::{CloseCode, StreamKind};
use crate::wire::{frame, limits, proto};

/// Cluster `ccc`, with its control stream.
pub(super) struct Raw {
    pub(super) link: Arc<dyn Link>,
    pub(super) send: SendHalf,
    recv: RecvHalf,
    read: BytesMut,
}

impl Raw {
    /// Over a link that it dialled.
    pub(super) async fn over(link: Arc<dyn Link>) -> Self {
        let (send, recv) = link.open(StreamKind::Control).await.unwrap();
        Self { link, send, recv, read: BytesMut::new() }
    }

    /// Dials `a`. `a` and `bb` are agents, and `a` knows `ccc`.
    pub(super) async fn dial(bed: &Bed) -> (Agent, Agent, Self) {
        let [a, bb] = bed.agents(["a", "bb"]);
        a.knows("ccc", &[]);
        a.cluster.until_state("bb", PeerState::Connected).await;
        (a, bb, Self::again(bed).await)
    }

    /// Dials `a`, which knows `ccc` already.
    pub(super) async fn again(bed: &Bed) -> Self {
        let transport = bed.transport("ccc");
        transport.set_peers(&BTreeMap::from([("a".into(), spec("a"))]));
        let link = transport.dial(&spec("a"), Bed::address("a")).await.unwrap();
        // Dropping a transport ends nothing; it is done when its listener is.
        std::mem::forget(transport);
        Self::over(link).await
    }

    /// With both hellos accepted.
    pub(super) async fn established(bed: &Bed) -> (Agent, Agent, Self) {
        let (a, bb, mut raw) = Self::dial(bed).await;
        raw.greet(hello(1, 1)).await;
        a.cluster.until_state("ccc", PeerState::Connected).await;
        (a, bb, raw)
    }

    /// Says this hello, hears the other's, and acknowledges what it acknowledges; returns the version.
    pub(super) async fn greet(&mut self, hello: proto::Body) -> u32 {
        self.say(hello).await;
        let version =
            self.hear(|body| if let proto::Body::HelloAck(ack) = body { Some(ack.version) } else { None }).await;
        self.say(proto::Body::HelloAck(proto::HelloAck { version })).await;
        version
    }

    pub(super) async fn say(&mut self, body: proto::Body) {
        self.write(&framed(body)).await;
    }

    pub(super) async fn write(&mut self, bytes: &[u8]) {
        // Who is closed upon cannot write any more.
        let _ = self.send.write_all(bytes).await;
        let _ = self.send.flush().await;
    }

    /// The first message that `wanted` takes.
    pub(super) async fn hear<T>(&mut self, wanted: impl Fn(proto::Body) -> Option<T>) -> T {
        loop {
            while let Some(frame) = frame::take(&mut self.read, limits::CONTROL_FRAME).unwrap() {
                if let Some(found) = proto::Envelope::decode(frame).unwrap().body.and_then(&wanted) {
                    return found;
                }
            }
            assert_ne!(self.recv.read_buf(&mut self.read).await.unwrap(), 0, "the end");
        }
    }

    pub(super) async fn closed(&self) -> (CloseCode, String) {
        match self.link.closed().await {
            CloseReason::Peer { code, reason } => (code, reason),
            other => panic!("{other:?}"),
        }
    }
}

pub(super) fn spec(name: &str) -> PeerSpec {
    PeerSpec { name: name.into(), ..PeerSpec::default() }
}

pub(super) fn hello(version_min: u32, version_max: u32) -> proto::Body {
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

pub(super) fn framed(body: proto::Body) -> Bytes {
    let mut buf = BytesMut::new();
    frame::put(&proto::Envelope { body: Some(body) }, limits::CONTROL_FRAME, &mut buf).unwrap();
    buf.freeze()
}

pub(super) fn heartbeat() -> proto::Body {
    proto::Body::Heartbeat(proto::Heartbeat { capacity: None })
}

/// How often an agent has counted a misbehaviour.
pub(super) fn counted(agent: &Agent, kind: &str) -> u64 {
    let line = format!("tributary_federation_misbehaviour_total{{kind=\"{kind}\"}} ");
    let text = agent.metrics.text();
    text.lines().find_map(|at| at.strip_prefix(&line)).map_or(0, |count| count.parse().unwrap())
}
