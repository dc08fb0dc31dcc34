//! The same over QUIC on loopback, with issued certificates and the system's clocks.

use std::net::Ipv4Addr;

use tokio::time::timeout;
use tributary_clock::{SystemClock, SystemRng};
use zeroize::Zeroizing;

use super::*;
use crate::identity::{Authority, Identity, IdentityStore, Material, Origin};
use crate::mesh::resolve::Resolver;
use crate::transport::conformance::{Clusters, conforms};
use crate::transport::quic::{Manner, QuicTransport};

pub(super) fn transport(authority: &Authority, name: &str, clock: &SharedClock) -> Arc<dyn Transport> {
    transport_as(Manner::DEFAULT, &Timers::DEFAULT, authority, name, clock)
}

pub(super) fn transport_as(
    manner: Manner,
    timers: &Timers,
    authority: &Authority,
    name: &str,
    clock: &SharedClock,
) -> Arc<dyn Transport> {
    let listen = (Ipv4Addr::LOCALHOST, 0).into();
    let identities = IdentityStore::new(identity(authority, name, clock));
    Arc::new(QuicTransport::bind_as(manner, listen, identities, timers, clock.clone()).unwrap())
}

/// An agent over QUIC, and where it listens.
pub(super) fn agent_as(
    fittings: Fittings,
    authority: &Authority,
    name: &'static str,
    clock: &SharedClock,
) -> (Agent, SocketAddr) {
    let manner = Manner { versions: fittings.versions, ..Manner::DEFAULT };
    let transport = transport_as(manner, &fittings.timers, authority, name, clock);
    let address = transport.local_addr();
    let resolve = Arc::new(Resolver::system(Box::new(SystemRng)));
    (Agent::fitted(name, 1, clock.clone(), (transport, resolve), fittings), address)
}

fn identity(authority: &Authority, name: &str, clock: &SharedClock) -> Identity {
    // The ends of two certificates differ: a link has the first one on both sides.
    let hours = if name == "west" { 2 } else { 1 };
    let issued = authority.issue(name, clock.wall(), Duration::from_secs(3_600 * hours)).unwrap();
    let material = Material {
        certificate: Some(issued.certificate().into()),
        key: Some(Zeroizing::new(issued.expose_key().into())),
        trust_bundle: Some(issued.trust_bundle().into()),
    };
    Identity::from_material(&material, &Origin::Secret("test".into()), name, clock.wall()).unwrap()
}

#[tokio::test]
async fn quic_conforms() {
    let clock = SystemClock::shared();
    let river = Authority::create("river", clock.wall()).unwrap();
    let transport = |name| transport(&river, name, &clock);
    conforms(Clusters { east: transport("east"), west: transport("west"), north: transport("north") }).await;
}

#[tokio::test]
async fn two_agents_agree_over_quic() {
    let clock = SystemClock::shared();
    let river = Authority::create("river", clock.wall()).unwrap();
    let start = |name| agent_as(Fittings::default(), &river, name, &clock);
    let ((east, east_at), (west, west_at)) = (start("east"), start("west"));
    east.knows("west", &[west_at]);
    west.knows("east", &[east_at]);
    east.cluster.say_desired("west", "burst", 1);
    west.until_generation("east", "burst", 1).await;
    west.cluster.say_observed("east", "burst", 1);
    let answered = |cluster: &Cluster| cluster.heard("west", &observed_key("burst")).is_some();
    east.cluster.until("the answer", answered).await;

    east.cluster.allow_certificate("west", "secret");
    let request = CredentialRequest { burst: "burst".into(), incarnation: String::new(), digest: String::new() };
    let handed = west.handle.request_credential(&"east".into(), request).await.unwrap();
    assert_eq!(handed.expose(), "secret for burst");
    assert!(west.handle.query(&"east".into(), "/v1/local").await.is_some());
    assert!(west.handle.reports()["east"].rtt_micros.is_some());

    east.shutdown.cancel();
    timeout(Duration::from_secs(10), east.handle.ended()).await.unwrap();
    west.cluster.until_state("east", PeerState::Disconnected).await;
    let refusal = west.cluster.reports("east").pop().unwrap().refusal.unwrap();
    assert_eq!(refusal.message, "the agent stops, or another replica leads");
    assert_eq!(east.handle.query(&"west".into(), "/v1/local").await, None);
}

/// Whom we do not trust any more is cut off at once, and both sides know why.
#[tokio::test]
async fn a_changed_trust_bundle_ends_the_connection_it_does_not_cover_and_no_other() {
    let clock = SystemClock::shared();
    let (river, delta) =
        (Authority::create("river", clock.wall()).unwrap(), Authority::create("delta", clock.wall()).unwrap());
    let identities = IdentityStore::new(identity(&river, "east", &clock));
    let listen = (Ipv4Addr::LOCALHOST, 0).into();
    let east_transport =
        Arc::new(QuicTransport::bind(listen, identities.clone(), &Timers::DEFAULT, clock.clone()).unwrap());
    let west_transport = transport(&river, "west", &clock);
    let west_at = west_transport.local_addr();
    let resolve = || Arc::new(Resolver::system(Box::new(SystemRng)));
    let east = Agent::start("east", 1, clock.clone(), east_transport, resolve());
    let west = Agent::start("west", 1, clock.clone(), west_transport, resolve());
    west.knows("east", &[]);
    east.knows("west", &[west_at]);
    east.cluster.until_state("west", PeerState::Connected).await;
    west.cluster.until_state("east", PeerState::Connected).await;

    let states = |agent: &Agent, peer: &str| -> Vec<PeerState> {
        agent.cluster.reports(peer).iter().map(|report| report.state).collect()
    };
    let before = states(&west, "east");
    let both = format!("{}{}", delta.certificate(), river.certificate());
    east.configure("west", |spec| spec.trust_bundle = Some(both));
    west.cluster.say_desired("east", "burst", 1);
    east.until_generation("west", "burst", 1).await;
    assert_eq!(states(&west, "east"), before, "still covered: nothing happened");

    let told = |cluster: &Cluster, peer: &str| {
        let report = cluster.reports(peer).pop().and_then(|report| report.refusal);
        report.is_some_and(|refusal| refusal.reason == "UntrustedCertificate")
    };
    east.configure("west", |spec| spec.trust_bundle = Some(delta.certificate().to_owned()));
    west.cluster.until("it is told", |cluster| told(cluster, "east")).await;
    east.cluster.until("it is said", |cluster| told(cluster, "west")).await;

    // The same by our own ca.crt, where the ClusterPeer has none.
    east.configure("west", |spec| spec.trust_bundle = None);
    let connected = |cluster: &Cluster| cluster.reports("east").pop().unwrap().state == PeerState::Connected;
    west.cluster.until("connected again", connected).await;
    identities.replace(identity(&delta, "east", &clock));
    west.cluster.until("it is told", |cluster| told(cluster, "east")).await;
}
