//! The same over QUIC on loopback, with issued certificates and the system's clocks.

use std::net::Ipv4Addr;

use tokio::time::timeout;
use zeroize::Zeroizing;

use super::*;
use crate::clock::{SystemClock, SystemRng};
use crate::federation::identity::{Authority, Identity, IdentityStore, Material, Origin};
use crate::federation::mesh::resolve::Resolver;
use crate::federation::transport::conformance::{Clusters, conforms};
use crate::federation::transport::quic::QuicTransport;

fn transport(authority: &Authority, name: &str, clock: &SharedClock) -> Arc<dyn Transport> {
    let issued = authority.issue(name, clock.wall(), Duration::from_secs(3_600)).unwrap();
    let material = Material {
        certificate: Some(issued.certificate().into()),
        key: Some(Zeroizing::new(issued.expose_key().into())),
        trust_bundle: Some(issued.trust_bundle().into()),
    };
    let identity = Identity::from_material(&material, &Origin::Secret("test".into()), name, clock.wall()).unwrap();
    let listen = (Ipv4Addr::LOCALHOST, 0).into();
    Arc::new(QuicTransport::bind(listen, IdentityStore::new(identity), &Timers::DEFAULT, clock.clone()).unwrap())
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
    let start = |name| {
        let transport = transport(&river, name, &clock);
        let address = transport.local_addr();
        let resolve = Arc::new(Resolver::system(Box::new(SystemRng)));
        (Agent::start(name, 1, clock.clone(), transport, resolve), address)
    };
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
}
