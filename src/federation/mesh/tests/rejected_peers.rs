//! Packets of strangers, and of peers that do with QUIC what it lets them. Others must not notice.

use std::net::{Ipv4Addr, UdpSocket};

use quinn::{ClientConfig, Endpoint};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::time::timeout;
use tributary_clock::SystemClock;

use super::quic::{agent_as, transport};
use super::raw::{Raw, counted, hello, spec};
use super::*;
use crate::identity::Authority;
use crate::transport::{CloseReason, Link};
use crate::wire::registry::{CloseCode, StreamKind};
use crate::wire::{limits, proto};

/// Where the stranger's packets come from.
const STRANGER: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 9);

/// East and west, connected.
struct Quic {
    clock: SharedClock,
    river: Authority,
    east: Agent,
    west: Agent,
    east_at: SocketAddr,
    generation: u64,
}

impl Quic {
    async fn new() -> Self {
        let clock: SharedClock = SystemClock::shared();
        let river = Authority::create("river", clock.wall()).unwrap();
        let (east, east_at) = agent_as(Fittings::default(), &river, "east", &clock);
        let (west, _) = agent_as(Fittings::default(), &river, "west", &clock);
        east.knows("west", &[]);
        east.knows("ccc", &[]);
        west.knows("east", &[east_at]);
        west.cluster.until_state("east", PeerState::Connected).await;
        Self { clock, river, east, west, east_at, generation: 0 }
    }

    /// Another peer of east, which does what a test does.
    async fn dialled(&self) -> Arc<dyn Link> {
        let transport = transport(&self.river, "ccc", &self.clock);
        transport.set_peers(&BTreeMap::from([("east".into(), spec("east"))]));
        let link = transport.dial(&spec("east"), self.east_at).await.unwrap();
        // Dropping it would end its links.
        std::mem::forget(transport);
        link
    }

    /// Those that are connected still talk, and a newcomer gets in.
    async fn others_are_fine(&mut self) {
        self.generation += 1;
        self.west.cluster.say_desired("east", "fine", self.generation);
        self.east.until_generation("west", "fine", self.generation).await;
        self.dialled().await.close(CloseCode::Done, "");
        let reports = self.west.cluster.reports("east");
        let lost = |report: &PeerReport| report.state == PeerState::Disconnected;
        assert_eq!(reports.iter().filter(|report| lost(report)).count(), 1, "at the start: {reports:?}");
    }

    async fn until_counted(&self, kind: &str, times: u64) {
        let wait = async {
            while counted(&self.east, kind) < times {
                sleep(Duration::from_millis(20)).await;
            }
        };
        let waited = timeout(Duration::from_secs(60), wait).await;
        waited.unwrap_or_else(|_| panic!("{kind}: {} of {times}", counted(&self.east, kind)));
    }
}

/// First packets of connections that nobody goes on with.
async fn first_packets(count: usize) -> Vec<Vec<u8>> {
    let nobody = tokio::net::UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let endpoint = Endpoint::client((Ipv4Addr::LOCALHOST, 0).into()).unwrap();
    let mut tls = rustls::ClientConfig::builder_with_provider(crate::identity::trust::provider())
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .with_root_certificates(rustls::RootCertStore::empty())
        .with_no_client_auth();
    tls.alpn_protocols = vec![b"tributary/1".to_vec()];
    let crypto = quinn::crypto::rustls::QuicClientConfig::try_from(tls).unwrap();
    let config = ClientConfig::new(Arc::new(crypto));
    // Who is dropped says so in a packet.
    let (mut packets, mut buffer, mut held) = (Vec::new(), [0; 2_000], Vec::new());
    for _ in 0..count {
        held.push(endpoint.connect_with(config.clone(), nobody.local_addr().unwrap(), "agent.invalid").unwrap());
        let length = nobody.recv(&mut buffer).await.unwrap();
        packets.push(buffer[..length].to_vec());
    }
    packets
}

#[tokio::test]
async fn handshakes_that_are_begun_and_left_are_bounded_counted_and_given_up() {
    let mut quic = Quic::new().await;
    let stranger = UdpSocket::bind((STRANGER, 0)).unwrap();
    let packets = first_packets(60).await;
    // Each of them twice: a packet that is sent again begins nothing.
    for packet in packets.iter().chain(&packets) {
        stranger.send_to(packet, quic.east_at).unwrap();
    }
    quic.others_are_fine().await;
    quic.until_counted("stranger", 4).await;
    quic.others_are_fine().await;
    assert_eq!(counted(&quic.east, "stranger"), 4, "of one address that is not proven, 4 at a time");
    assert_eq!(counted(&quic.east, "half_open"), 0, "an alert counts what peers do, and nobody knows whose these were");
}

/// The danger: who writes a peer's address on a few packets a second keeps that peer from connecting.
#[tokio::test]
async fn handshakes_that_are_begun_in_the_name_of_a_peer_do_not_keep_it_out() {
    let mut quic = Quic::new().await;
    let spoofer = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    for packet in first_packets(24).await {
        spoofer.send_to(&packet, quic.east_at).unwrap();
    }
    // The newcomer comes from that address, too.
    quic.others_are_fine().await;
    quic.until_counted("stranger", 4).await;
}

#[tokio::test]
async fn datagrams_that_are_no_packets_are_dropped() {
    let mut quic = Quic::new().await;
    let stranger = UdpSocket::bind((STRANGER, 0)).unwrap();
    let mut rng = SeededRng::new(20_260_501);
    let initial = first_packets(1).await.remove(0);
    for round in 0..2_000 {
        let length = usize::try_from(rng.next_u64() % 1_300).unwrap();
        let mut bytes: Vec<u8> = (0..length).map(|_| rng.next_u64().to_le_bytes()[0]).collect();
        match round % 4 {
            // Of a version that there is not; of ours, with what cannot be decrypted; cut off; and of no form at all.
            0 => bytes.splice(..length.min(5), [0xc0, 0xba, 0xba, 0xba, 0xba]).for_each(drop),
            1 => {
                bytes.clone_from(&initial);
                let at = usize::try_from(rng.next_u64()).unwrap_or_default() % bytes.len();
                bytes[at] ^= 0x55;
            }
            2 => {
                bytes.clone_from(&initial);
                bytes.truncate(length);
            }
            _ => {}
        }
        stranger.send_to(&bytes, quic.east_at).unwrap();
    }
    quic.others_are_fine().await;
}

#[tokio::test]
async fn who_is_let_in_and_says_nothing_is_closed() {
    let mut quic = Quic::new().await;
    let (silent, mute) = (quic.dialled().await, quic.dialled().await);
    // One opens no stream at all, the other one that it leaves alone.
    let _stream = mute.open(StreamKind::Control).await.unwrap();
    for link in [silent, mute] {
        let CloseReason::Peer { code, reason } = link.closed().await else { panic!("it is let go otherwise") };
        assert_eq!((code, reason.as_str()), (CloseCode::Silent, "no accepted hello within 5 s"));
    }
    quic.until_counted("half_open", 2).await;
    quic.others_are_fine().await;
}

#[tokio::test]
async fn frames_beyond_their_limits_take_their_own_stream_or_connection_with_them() {
    let mut quic = Quic::new().await;
    let mut raw = Raw::over(quic.dialled().await).await;
    raw.greet(hello(1, 2)).await;
    quic.east.cluster.until_state("ccc", PeerState::Connected).await;
    // A request is its own stream's matter.
    for kind in [StreamKind::Query, StreamKind::Credential, StreamKind::Trust] {
        let (mut send, mut recv) = raw.link.open(kind).await.unwrap();
        send.write_all(&0x7fff_ffff_u32.to_be_bytes()).await.unwrap();
        send.flush().await.unwrap();
        assert!(recv.read_u8().await.is_err(), "{kind:?}: nothing is answered");
    }
    raw.say(proto::Body::Want(proto::Want { keys: vec![] })).await;
    assert_eq!(quic.east.state_of("ccc"), PeerState::Connected);
    // The conversation is not.
    raw.write(&0x7fff_ffff_u32.to_be_bytes()).await;
    let (code, reason) = raw.closed().await;
    assert_eq!(
        (code, reason.as_str()),
        (CloseCode::Protocol, "a frame of 2147483647 bytes is beyond the limit of 1048576")
    );
    assert_eq!(counted(&quic.east, "malformed"), 1);
    quic.others_are_fine().await;
}

#[tokio::test]
async fn a_flood_of_streams_waits_and_nobody_else_does() {
    let mut quic = Quic::new().await;
    let mut raw = Raw::over(quic.dialled().await).await;
    raw.greet(hello(1, 2)).await;
    quic.east.cluster.until_state("ccc", PeerState::Connected).await;
    let link = raw.link.clone();
    let flood = tokio::spawn(async move {
        let mut asked = 0_u32;
        loop {
            let Ok((mut send, mut recv)) = link.open(StreamKind::Query).await else { return asked };
            let _ = send.write_all(&[0, 0, 0, 0]).await;
            let _ = send.shutdown().await;
            // Answers are left unread as long as possible.
            tokio::spawn(async move {
                sleep(Duration::from_millis(10)).await;
                let _ = recv.read_u8().await;
            });
            asked += 1;
        }
    });
    quic.until_counted("flood", 1).await;
    quic.others_are_fine().await;
    assert_eq!(quic.east.state_of("ccc"), PeerState::Connected, "it is not cut off for it");
    assert_eq!(counted(&quic.east, "flood"), 1, "counted once per connection");
    raw.link.close(CloseCode::Done, "");
    let asked = flood.await.unwrap();
    assert!(asked >= limits::STREAMS_PER_PEER, "{asked}");
}
