//! Real QUIC on loopback.

mod addresses;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Mutex as StdMutex;

use jiff::{SignedDuration, Timestamp};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tributary_clock::{Clock, Mono};
use tributary_contract::Refusal;
use zeroize::Zeroizing;

use super::*;
use crate::identity::{Authority, Identity, Material, Origin};
use crate::transport::{CloseReason, RefusedLink};
use crate::wire::registry::StreamKind;

const HOUR: Duration = Duration::from_secs(3600);

/// A wall clock that stands still until it is set.
struct StillClock(StdMutex<Timestamp>);

impl StillClock {
    fn noon() -> Arc<Self> {
        Arc::new(Self(StdMutex::new("2025-06-01T12:00:00Z".parse().unwrap())))
    }

    fn shift(&self, by: SignedDuration) {
        let mut now = self.0.lock().unwrap();
        *now += by;
    }
}

impl Clock for StillClock {
    fn mono(&self) -> Mono {
        Mono::ZERO
    }
    fn wall(&self) -> Timestamp {
        *self.0.lock().unwrap()
    }
}

/// One agent with its own clock.
struct Node {
    name: &'static str,
    clock: Arc<StillClock>,
    identities: IdentityStore,
    transport: QuicTransport,
}

impl Node {
    fn new(authority: &Authority, name: &'static str) -> Self {
        Self::at(authority, name, (Ipv4Addr::LOCALHOST, 0).into()).unwrap()
    }

    fn at(authority: &Authority, name: &'static str, listen: SocketAddr) -> Result<Self, BindError> {
        Self::with(identity(authority, name, HOUR), name, listen, Crowd::DEFAULT)
    }

    fn with(identity: Identity, name: &'static str, listen: SocketAddr, crowd: Crowd) -> Result<Self, BindError> {
        let clock = StillClock::noon();
        let identities = IdentityStore::new(identity);
        let transport = QuicTransport::bind_as(
            Manner { crowd, ..Manner::DEFAULT },
            listen,
            identities.clone(),
            &Timers::DEFAULT,
            clock.clone(),
        )?;
        Ok(Self { name, clock, identities, transport })
    }

    fn knows(&self, peers: &[PeerSpec]) {
        self.transport.set_peers(&peers.iter().map(|peer| (peer.name.clone(), peer.clone())).collect());
    }

    fn spec(&self) -> PeerSpec {
        spec(self.name)
    }

    async fn dial(&self, peer: PeerSpec, at: &Node) -> Result<Arc<dyn Link>, DialError> {
        self.transport.dial(&peer, at.transport.local_addr()).await
    }

    async fn accept_link(&self) -> Arc<dyn Link> {
        match self.transport.accept().await {
            Some(Accepted::Link(link)) => link,
            Some(Accepted::Refused(refused)) => panic!("refused: {refused:?}"),
            Some(Accepted::Broken { detail, .. }) => panic!("broken: {detail}"),
            None => panic!("the transport is shut down"),
        }
    }

    async fn accept_refused(&self) -> RefusedLink {
        match self.transport.accept().await {
            Some(Accepted::Refused(refused)) => refused,
            Some(Accepted::Link(link)) => panic!("{} was let in", link.identity().name),
            Some(Accepted::Broken { detail, .. }) => panic!("broken: {detail}"),
            None => panic!("the transport is shut down"),
        }
    }
}

fn spec(name: &str) -> PeerSpec {
    PeerSpec { name: name.into(), ..PeerSpec::default() }
}

fn spec_with(name: &str, trust_bundle: &Authority) -> PeerSpec {
    PeerSpec { trust_bundle: Some(trust_bundle.certificate().to_owned()), ..spec(name) }
}

fn authority(name: &str) -> Authority {
    Authority::create(name, StillClock::noon().wall()).unwrap()
}

fn identity(authority: &Authority, name: &str, validity: Duration) -> Identity {
    let issued = authority.issue(name, StillClock::noon().wall(), validity).unwrap();
    loaded(name, issued.certificate(), issued.expose_key(), issued.trust_bundle())
}

fn loaded(name: &str, certificate: &str, key: &str, trust_bundle: &str) -> Identity {
    let material = Material {
        certificate: Some(certificate.into()),
        key: Some(Zeroizing::new(key.into())),
        trust_bundle: Some(trust_bundle.into()),
    };
    Identity::from_material(&material, &Origin::Secret("test".into()), name, StillClock::noon().wall()).unwrap()
}

/// An identity of `uri`, whatever its authority's trust domain is.
fn impostor(authority: &Authority, name: &str, uri: &str) -> Identity {
    let dir = tempfile::tempdir().unwrap();
    authority.write(dir.path(), crate::identity::files::Existing::Refuse).unwrap();
    let key = rcgen::KeyPair::from_pem(&std::fs::read_to_string(dir.path().join("ca.key")).unwrap()).unwrap();
    let issuer = rcgen::Issuer::from_ca_cert_pem(authority.certificate(), key).unwrap();
    let mut params = rcgen::CertificateParams::default();
    params.subject_alt_names = vec![rcgen::SanType::URI(uri.try_into().unwrap())];
    let key = rcgen::KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256).unwrap();
    let certificate = params.signed_by(&key, &issuer).unwrap().pem();
    loaded(name, &certificate, &key.serialize_pem(), authority.certificate())
}

/// What the dialling side learns, be it in its handshake or, as TLS 1.3 has it, just after.
async fn refusal_at_dialler(dialled: Result<Arc<dyn Link>, DialError>) -> Refusal {
    let link = match dialled {
        Err(error) => return error.refusal,
        Ok(link) => link,
    };
    match link.closed().await {
        CloseReason::Refused(refusal) => refusal,
        CloseReason::Peer { code, reason } => code.refusal().expect("a refusing code").because(reason),
        other => panic!("ended otherwise: {other:?}"),
    }
}

async fn pair() -> (Node, Node, Arc<dyn Link>, Arc<dyn Link>) {
    let river = authority("river");
    let (east, west) = (Node::new(&river, "east"), Node::new(&river, "west"));
    east.knows(&[west.spec()]);
    let (dialled, accepted) = tokio::join!(west.dial(east.spec(), &east), east.accept_link());
    (east, west, dialled.unwrap(), accepted)
}

#[tokio::test]
async fn a_pair_connects_and_exchanges_bytes() {
    let (east, west, dialled, accepted) = pair().await;
    assert_eq!((dialled.identity().name.as_str(), accepted.identity().name.as_str()), ("east", "west"));
    assert_eq!(accepted.identity().fingerprint, west.identities.current().fingerprint());
    assert_eq!(accepted.identity().not_after, west.identities.current().not_after());
    assert_eq!(dialled.remote(), east.transport.local_addr().to_string());
    assert!(dialled.rtt().unwrap() > Duration::ZERO);

    let (mut send, mut recv) = dialled.open(StreamKind::Query).await.unwrap();
    send.write_all(b"ping").await.unwrap();
    send.shutdown().await.unwrap();
    let (kind, mut answer, mut question) = accepted.accept().await.unwrap();
    let mut text = String::new();
    question.read_to_string(&mut text).await.unwrap();
    assert_eq!((kind, text.as_str()), (StreamKind::Query, "ping"));
    answer.write_all(b"pong").await.unwrap();
    answer.shutdown().await.unwrap();
    text.clear();
    recv.read_to_string(&mut text).await.unwrap();
    assert_eq!(text, "pong");

    accepted.close(CloseCode::Replaced, "another stays");
    accepted.close(CloseCode::Protocol, "too late");
    let reason = CloseReason::Peer { code: CloseCode::Replaced, reason: "another stays".into() };
    assert_eq!(dialled.closed().await, reason);
    assert_eq!(dialled.closed().await, reason, "the same answer twice");
    assert_eq!(accepted.closed().await, CloseReason::Local(CloseCode::Replaced));
    assert!(dialled.accept().await.is_none());
    assert!(dialled.open(StreamKind::Query).await.is_err());
}

#[tokio::test]
async fn a_dropped_link_is_closed_even_if_its_streams_are_held() {
    let (_east, _west, dialled, accepted) = pair().await;
    let _held = dialled.open(StreamKind::Control).await.unwrap();
    drop(dialled);
    assert_eq!(accepted.closed().await, CloseReason::Peer { code: CloseCode::Done, reason: String::new() });
}

#[tokio::test]
async fn slow_and_unknown_streams_do_not_hold_up_others() {
    let (east, west, _dialled, _accepted) = pair().await;
    let tls = tls::client(
        west.identities.current(),
        Peer::from(&east.spec()),
        WireVersions::OURS.alpns(),
        west.clock.clone(),
        Slot::default(),
    );
    let config = ClientConfig::new(Arc::new(QuicClientConfig::try_from(tls).unwrap()));
    let connecting = west.transport.endpoint.connect_with(config, east.transport.local_addr, tls::SERVER_NAME).unwrap();
    let (connection, link) = tokio::join!(connecting, east.accept_link());
    let connection = connection.unwrap();

    let (mut slow, _recv) = connection.open_bi().await.unwrap();
    slow.write_all(&[0]).await.unwrap();
    let (mut unknown, mut reset) = connection.open_bi().await.unwrap();
    unknown.write_all(&999_u16.to_be_bytes()).await.unwrap();
    assert!(matches!(reset.read(&mut [0]).await, Err(quinn::ReadError::Reset(code)) if code == 1_u32.into()));
    let (mut good, _recv) = connection.open_bi().await.unwrap();
    good.write_all(&StreamKind::Credential.id().to_be_bytes()).await.unwrap();

    let (kind, ..) = link.accept().await.unwrap();
    assert_eq!(kind, StreamKind::Credential);
}

#[tokio::test]
async fn an_unknown_and_a_suspended_peer_are_told_so() {
    let river = authority("river");
    let (east, west) = (Node::new(&river, "east"), Node::new(&river, "west"));
    let suspended = PeerSpec { suspend: true, ..west.spec() };
    for (peers, reason) in [(vec![], "UnknownPeer"), (vec![suspended.clone()], "Suspended")] {
        east.knows(&peers);
        let at_west = refusal_at_dialler(west.dial(east.spec(), &east).await).await;
        let at_east = east.accept_refused().await;
        assert_eq!((at_west.reason.as_str(), at_east.refusal.reason.as_str()), (reason, reason));
        assert_eq!(at_east.claimed, Some("west".into()));
        assert!(at_west.message.contains("ClusterPeer") && at_west.message.contains("'west'"), "{}", at_west.message);
    }
    west.knows(&[east.spec()]);
    let own = east.dial(suspended, &west).await.err().unwrap();
    assert_eq!(own.refusal.reason, "Suspended", "we do not dial whom we suspended");
}

#[tokio::test]
async fn expired_and_future_certificates_are_refused_on_both_sides() {
    let river = authority("river");
    for (shift, hint) in [(2, "expired at"), (-2, "clock")] {
        let (east, west) = (Node::new(&river, "east"), Node::new(&river, "west"));
        east.knows(&[west.spec()]);
        east.clock.shift(SignedDuration::from_hours(shift));

        let at_west = refusal_at_dialler(west.dial(east.spec(), &east).await).await;
        let at_east = east.accept_refused().await;
        assert_eq!(
            (at_west.reason.as_str(), at_east.refusal.reason.as_str()),
            ("CertificateExpired", "CertificateExpired")
        );
        assert_eq!(at_east.claimed, Some("west".into()));
        assert!(at_east.refusal.message.contains(hint), "{}", at_east.refusal.message);
        assert!(at_west.message.contains("renew it, or correct the clock"), "{}", at_west.message);

        // The other way round, the dialling side refuses.
        west.knows(&[east.spec()]);
        let at_east = refusal_at_dialler(east.dial(west.spec(), &west).await).await;
        let at_west = west.accept_refused().await;
        assert_eq!(
            (at_west.refusal.reason.as_str(), at_east.reason.as_str()),
            ("CertificateExpired", "CertificateExpired")
        );
        assert_eq!(at_west.claimed, None, "it gave up before it said who it is");
    }
}

#[tokio::test]
async fn a_foreign_authority_is_refused_on_both_sides() {
    let (river, delta) = (authority("river"), authority("delta"));
    let (east, west) = (Node::new(&river, "east"), Node::new(&delta, "west"));

    // West trusts east, and not the other way round.
    east.knows(&[west.spec()]);
    let at_west = refusal_at_dialler(west.dial(spec_with("east", &river), &east).await).await;
    let at_east = east.accept_refused().await;
    assert_eq!(
        (at_west.reason.as_str(), at_east.refusal.reason.as_str()),
        ("UntrustedCertificate", "UntrustedCertificate")
    );
    assert_eq!(at_east.claimed, Some("west".into()));
    assert!(at_east.refusal.message.contains("spec.trustBundle of ClusterPeer `west`"), "{}", at_east.refusal.message);
    assert!(at_west.message.contains("spec.trustBundle of its ClusterPeer `west`"), "{}", at_west.message);

    // The danger: east has removed west, whose authority it does not know otherwise, and people look for one that was replaced.
    east.knows(&[]);
    let at_west = refusal_at_dialler(west.dial(spec_with("east", &river), &east).await).await;
    east.accept_refused().await;
    assert!(at_west.message.contains("it has no ClusterPeer `west` (was it removed?), or"), "{}", at_west.message);
    east.knows(&[west.spec()]);

    // West does not trust east.
    let at_west = refusal_at_dialler(west.dial(east.spec(), &east).await).await;
    let at_east = east.accept_refused().await;
    assert_eq!(
        (at_west.reason.as_str(), at_east.refusal.reason.as_str()),
        ("UntrustedCertificate", "UntrustedCertificate")
    );

    // With each other's bundle they connect.
    east.knows(&[spec_with("west", &delta)]);
    let (dialled, accepted) = tokio::join!(west.dial(spec_with("east", &river), &east), east.accept_link());
    assert_eq!(dialled.unwrap().identity().trust_domain, "river");
    assert_eq!(accepted.identity().trust_domain, "delta");
}

#[tokio::test]
async fn another_cluster_at_the_endpoint_is_refused_on_both_sides() {
    let river = authority("river");
    let (east, west) = (Node::new(&river, "east"), Node::new(&river, "west"));
    east.knows(&[west.spec()]);
    let at_west = refusal_at_dialler(west.dial(spec("north"), &east).await).await;
    let at_east = east.accept_refused().await;
    assert_eq!((at_west.reason.as_str(), at_east.refusal.reason.as_str()), ("WrongIdentity", "WrongIdentity"));
    assert!(at_west.message.contains("cluster `east` answers at this endpoint"), "{}", at_west.message);
    assert!(at_east.refusal.message.contains("expects another cluster than `east`"), "{}", at_east.refusal.message);
}

#[tokio::test]
async fn a_name_of_another_trust_domain_is_refused_on_both_sides() {
    let (river, delta) = (authority("river"), authority("delta"));
    let east = Node::new(&river, "east");
    let impostor = impostor(&delta, "west", "spiffe://river/cluster/west");
    let west = Node::with(impostor, "west", (Ipv4Addr::LOCALHOST, 0).into(), Crowd::DEFAULT).unwrap();
    east.knows(&[spec_with("west", &delta)]);
    let at_west = refusal_at_dialler(west.dial(spec_with("east", &river), &east).await).await;
    let at_east = east.accept_refused().await;
    assert_eq!((at_west.reason.as_str(), at_east.refusal.reason.as_str()), ("WrongTrustDomain", "WrongTrustDomain"));
    assert_eq!(at_east.claimed, Some("west".into()));
    assert!(at_west.message.contains("does not take trust domain `river`"), "{}", at_west.message);
}

#[tokio::test]
async fn who_comes_before_the_peers_are_known_waits_for_them() {
    let river = authority("river");
    let (east, west) = (Node::new(&river, "east"), Node::new(&river, "west"));
    let dialling = west.dial(east.spec(), &east);
    tokio::pin!(dialling);
    assert!(futures::poll!(&mut dialling).is_pending());
    tokio::task::yield_now().await;
    east.knows(&[west.spec()]);
    let (dialled, accepted) = tokio::join!(dialling, east.accept_link());
    assert!(dialled.is_ok());
    assert_eq!(accepted.identity().name.as_str(), "west");
}

#[tokio::test]
async fn in_a_crowd_newcomers_prove_their_address_and_in_a_mob_they_are_refused() {
    let river = authority("river");
    let west = Node::new(&river, "west");
    let listen = (Ipv4Addr::LOCALHOST, 0).into();
    let node = |crowd| Node::with(identity(&river, "east", HOUR), "east", listen, crowd).unwrap();

    let crowded = node(Crowd { handshakes: 1, unproven: 0, ..Crowd::DEFAULT });
    crowded.knows(&[west.spec()]);
    let (dialled, _accepted) = tokio::join!(west.dial(crowded.spec(), &crowded), crowded.accept_link());
    assert!(dialled.is_ok());

    let full = node(Crowd { handshakes: 0, unproven: 0, ..Crowd::DEFAULT });
    full.knows(&[west.spec()]);
    let error = west.dial(full.spec(), &full).await.err().unwrap();
    assert_eq!(error.refusal.reason, "Unreachable");
    assert!(error.refusal.message.contains("takes no more connections at the moment"), "{}", error.refusal.message);
}

#[tokio::test]
async fn an_agent_of_another_protocol_is_told_apart() {
    let river = authority("river");
    let (east, west) = (Node::new(&river, "east"), Node::new(&river, "west"));
    east.knows(&[west.spec()]);
    let tls = tls::client(
        west.identities.current(),
        Peer::from(&east.spec()),
        vec![b"tributary/99".to_vec()],
        west.clock.clone(),
        Slot::default(),
    );
    let config = ClientConfig::new(Arc::new(QuicClientConfig::try_from(tls).unwrap()));
    let connecting = west.transport.endpoint.connect_with(config, east.transport.local_addr, tls::SERVER_NAME).unwrap();
    let error = connecting.await.unwrap_err();
    let side = Side { who: "cluster `east`".into(), own: west.identities.current() };
    assert_eq!(side.not_connected(&error).reason, "IncompatibleVersion");
    assert_eq!(east.accept_refused().await.refusal.reason, "IncompatibleVersion");
}

#[tokio::test]
async fn a_renewed_identity_is_shown_from_the_next_connection_on() {
    let (river, delta) = (authority("river"), authority("delta"));
    let (east, west) = (Node::new(&river, "east"), Node::new(&river, "west"));
    east.knows(&[west.spec()]);
    let (before, at_east) = tokio::join!(west.dial(east.spec(), &east), east.accept_link());
    let before = before.unwrap();

    // Both directions, and a new authority as well.
    west.identities.replace(identity(&delta, "west", 2 * HOUR));
    east.identities.replace(identity(&delta, "east", 2 * HOUR));
    let (after, at_east_after) = tokio::join!(west.dial(east.spec(), &east), east.accept_link());
    let after = after.unwrap();
    assert_eq!(after.identity().fingerprint, east.identities.current().fingerprint());
    assert_eq!(at_east_after.identity().fingerprint, west.identities.current().fingerprint());
    assert_ne!(at_east_after.identity().fingerprint, at_east.identity().fingerprint);

    // The connection before lives on.
    let (mut send, _recv) = before.open(StreamKind::Query).await.unwrap();
    send.write_all(b"still here").await.unwrap();
    assert_eq!(at_east.accept().await.unwrap().0, StreamKind::Query);
}

#[tokio::test]
async fn who_is_connected_is_judged_by_the_trust_of_now() {
    let (river, delta) = (authority("river"), authority("delta"));
    let (east, west) = (Node::new(&river, "east"), Node::new(&delta, "west"));
    east.knows(&[spec_with("west", &delta)]);
    let (dialled, accepted) = tokio::join!(west.dial(spec_with("east", &river), &east), east.accept_link());
    let dialled = dialled.unwrap();

    let both = PeerSpec { trust_bundle: Some(format!("{}{}", river.certificate(), delta.certificate())), ..spec("") };
    for (link, peer, authority, other) in [(&accepted, "west", &delta, &river), (&dialled, "east", &river, &delta)] {
        assert_eq!(link.verify_again(&spec_with(peer, authority)), Ok(()));
        assert_eq!(link.verify_again(&PeerSpec { name: peer.into(), ..both.clone() }), Ok(()), "a rotation");
        let (code, reason) = link.verify_again(&spec_with(peer, other)).unwrap_err();
        assert_eq!(code, CloseCode::UntrustedCertificate);
        assert!(reason.contains(&format!("spec.trustBundle of ClusterPeer `{peer}`")), "{reason}");
    }
    // Without a bundle of its own, our own ca.crt counts, as it is now.
    assert!(accepted.verify_again(&spec("west")).is_err());
    assert!(futures::poll!(east.transport.trust_changed()).is_pending());
    east.identities.replace(identity(&delta, "east", HOUR));
    east.transport.trust_changed().await;
    assert_eq!(accepted.verify_again(&spec("west")), Ok(()));
    // And the time of now.
    east.clock.shift(SignedDuration::from_hours(2));
    assert_eq!(accepted.verify_again(&spec("west")).unwrap_err().0, CloseCode::CertificateExpired);
}

#[tokio::test]
async fn who_is_struck_off_does_not_resume() {
    let river = authority("river");
    let (east, west) = (Node::new(&river, "east"), Node::new(&river, "west"));
    east.knows(&[west.spec()]);
    // A client that would keep tickets and use them.
    let own = west.identities.current();
    let mut tls =
        tls::client(own, Peer::from(&east.spec()), WireVersions::OURS.alpns(), west.clock.clone(), Slot::default());
    tls.resumption = rustls::client::Resumption::in_memory_sessions(8);
    let config = ClientConfig::new(Arc::new(QuicClientConfig::try_from(tls).unwrap()));
    let connect = || {
        let config = config.clone();
        west.transport.endpoint.connect_with(config, east.transport.local_addr, tls::SERVER_NAME).unwrap()
    };

    let (connection, accepted) = tokio::join!(connect(), east.accept_link());
    // A stream each way: had the server sent tickets, the client would hold them by now.
    let (mut send, mut recv) = connection.unwrap().open_bi().await.unwrap();
    send.write_all(&StreamKind::Query.id().to_be_bytes()).await.unwrap();
    accepted.accept().await.unwrap().1.shutdown().await.unwrap();
    recv.read_to_end(1).await.unwrap();

    east.knows(&[]);
    let _connection = connect().await;
    let refused = east.accept_refused().await;
    assert_eq!((refused.claimed, refused.refusal.reason.as_str()), (Some("west".into()), "UnknownPeer"));
    // Twice sure: no tickets, and nowhere to keep them.
    let (own, peers) = (east.identities.current(), east.transport.peers.subscribe());
    let server = tls::server(own, peers, WireVersions::OURS.alpns(), east.clock.clone(), Slot::default());
    assert_eq!((server.send_tls13_tickets, server.max_early_data_size), (0, 0));
    assert!(!server.session_storage.can_cache());
}

#[tokio::test]
async fn shutdown_tells_the_peers_and_ends_accept() {
    let (east, west, dialled, _accepted) = pair().await;
    east.transport.shutdown().await;
    let reason = CloseReason::Peer { code: CloseCode::Done, reason: "the agent stops".into() };
    assert_eq!(dialled.closed().await, reason);
    assert!(east.transport.accept().await.is_none());
    assert_eq!(east.dial(west.spec(), &west).await.err().unwrap().refusal.reason, "Unreachable");
}

#[tokio::test(start_paused = true)]
async fn silence_is_unreachable() {
    let river = authority("river");
    let west = Node::new(&river, "west");
    let silent = std::net::UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let error = west.transport.dial(&spec("east"), silent.local_addr().unwrap()).await.err().unwrap();
    assert_eq!(error.refusal.reason, "Unreachable");
    assert!(error.refusal.message.contains("did not answer within 5s"), "{}", error.refusal.message);
}

#[tokio::test]
async fn the_port_is_free_as_soon_as_the_transport_is_shut_down() {
    let authority = authority("river");
    let (east, west) = (Node::new(&authority, "east"), Node::new(&authority, "west"));
    east.knows(&[west.spec()]);
    west.knows(&[east.spec()]);
    let listen = east.transport.local_addr();
    let _links = (east.dial(west.spec(), &west).await.unwrap(), west.accept_link().await);
    // Somebody who never answers: what was begun with him ends only after three seconds.
    let nobody = std::net::UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let north = spec("north");
    let begun = east.transport.dial(&north, nobody.local_addr().unwrap());
    assert!(timeout(Duration::from_millis(100), begun).await.is_err(), "he answered");
    east.transport.shutdown().await;
    let Node { transport, .. } = east;
    drop((transport, _links));
    let mut again = Node::at(&authority, "east", listen);
    for _ in 0..50 {
        if again.is_ok() {
            break;
        }
        // Tasks that were ended are dropped when the runtime comes to it.
        tokio::time::sleep(Duration::from_millis(5)).await;
        again = Node::at(&authority, "east", listen);
    }
    let again = again.unwrap_or_else(|error| panic!("{error}: {}", error.source));
    again.knows(&[west.spec()]);
    west.knows(&[again.spec()]);
    again.dial(west.spec(), &west).await.unwrap();
}
