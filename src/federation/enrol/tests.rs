//! Joining over real QUIC on loopback, and every way it fails.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::FutureExt as _;
use futures::future::BoxFuture;
use jiff::{SignedDuration, Timestamp};
use tributary_clock::{Clock, Mono, SeededRng, SharedClock};

use super::*;
use crate::identity::{Authority, Identity, IdentityStore, Material, Origin};
use crate::transport::{DialError, Resolve};

const HOUR: Duration = Duration::from_secs(3600);

struct At(Timestamp);

impl Clock for At {
    fn mono(&self) -> Mono {
        Mono::ZERO
    }
    fn wall(&self) -> Timestamp {
        self.0
    }
}

fn noon() -> Timestamp {
    "2025-06-01T12:00:00Z".parse().unwrap()
}

fn clock(minutes: i64) -> SharedClock {
    Arc::new(At(noon() + SignedDuration::from_mins(minutes)))
}

/// Addresses as they are written.
struct Literal;

impl Resolve for Literal {
    fn resolve<'a>(&'a self, endpoint: &'a str, _: bool) -> BoxFuture<'a, Result<Vec<SocketAddr>, DialError>> {
        std::future::ready(Ok(vec![endpoint.parse().unwrap()])).boxed()
    }
}

fn introduction(authority: &Authority, cluster: &str) -> Introduction {
    Introduction {
        cluster: cluster.into(),
        cluster_uid: format!("uid-of-{cluster}").into(),
        trust_domain: None,
        trust_bundle: authority.certificate().to_owned(),
        endpoints: vec!["127.0.0.1:1".into()],
    }
}

fn store(authority: &Authority, cluster: &str) -> IdentityStore {
    let issued = authority.issue(cluster, noon(), HOUR).unwrap();
    let material = Material::gather(|part| {
        Some(match part {
            "tls.crt" => issued.certificate().into(),
            "tls.key" => issued.expose_key().into(),
            _ => issued.trust_bundle().into(),
        })
    });
    let origin = Origin::Secret("test".into());
    IdentityStore::new(Identity::from_material(&material, &origin, cluster, noon()).unwrap())
}

/// Answers everybody the same, and keeps what was asked.
struct Fixed {
    answer: Result<Introduction, Refused>,
    asked: Mutex<Vec<Request>>,
}

impl Registrar for Fixed {
    fn enrol(&self, request: Request) -> BoxFuture<'_, Result<Introduction, Refused>> {
        self.asked.lock().unwrap().push(request);
        std::future::ready(self.answer.clone()).boxed()
    }
}

fn listen(identity: IdentityStore, answer: Result<Introduction, Refused>) -> (SocketAddr, Arc<Fixed>) {
    let registrar = Arc::new(Fixed { answer, asked: Mutex::default() });
    let address = "127.0.0.1:0".parse().unwrap();
    let listener = EnrolListener::bind(address, identity, registrar.clone(), clock(0)).unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(listener.serve());
    (address, registrar)
}

fn token(authority: &Authority, endpoint: SocketAddr) -> JoinToken {
    let rng = &mut SeededRng::new(3);
    JoinToken {
        id: token::generate_id(rng),
        secret: TokenSecret::generate(rng),
        cluster: "east".into(),
        trust_domain: None,
        endpoints: vec![endpoint.to_string()],
        authorities: [authority.fingerprint().to_owned()].into(),
        expires: noon() + SignedDuration::from_mins(15),
    }
}

#[tokio::test]
async fn both_learn_who_the_other_is_and_the_secret_is_not_kept() {
    let [east, west] = ["east", "west"].map(|name| Authority::create(name, noon()).unwrap());
    let (address, registrar) = listen(store(&east, "east"), Ok(introduction(&east, "east")));
    let token = token(&east, address);
    let own = introduction(&west, "west");
    let who = join(&token, &own, &Literal, &clock(1)).await.unwrap();
    assert_eq!(who, introduction(&east, "east"));
    let asked = registrar.asked.lock().unwrap().remove(0);
    assert_eq!(
        asked,
        Request { token: token.id.clone(), secret_hash: token.secret.hash(), who: own, clock: clock(1).wall() }
    );
}

#[tokio::test]
async fn every_failure_has_a_sentence_and_a_hint() {
    let [east, west, other] = ["east", "west", "east"].map(|name| Authority::create(name, noon()).unwrap());
    let own = introduction(&west, "west");
    let (address, _) = listen(store(&east, "east"), Ok(introduction(&east, "east")));
    let (stranger, knows) = listen(store(&other, "east"), Ok(introduction(&other, "east")));
    let (sister, _) = listen(store(&east, "sister"), Ok(introduction(&east, "sister")));
    let (liar, _) = listen(store(&east, "east"), Ok(introduction(&other, "east")));
    let nobody = std::net::UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let good = token(&east, address);
    let at = |address: SocketAddr| JoinToken { endpoints: vec![address.to_string()], ..good.clone() };
    let river = |name: &str| Some(name.to_owned());

    let mut cases = vec![
        ("expired", good.clone(), own.clone(), 16),
        ("our clock is late", at(address), own.clone(), -60),
        ("our own token", good.clone(), introduction(&east, "east"), 0),
        ("no endpoint", JoinToken { endpoints: Vec::new(), ..good.clone() }, own.clone(), 0),
        ("nobody there", at(nobody), own.clone(), 0),
        ("another authority", at(stranger), own.clone(), 0),
        ("another cluster", at(sister), own.clone(), 0),
        ("a liar", at(liar), own.clone(), 0),
        (
            "another federation",
            JoinToken { trust_domain: river("river"), ..good.clone() },
            Introduction { trust_domain: river("lake"), ..own.clone() },
            0,
        ),
    ];
    for refusal in Refusal::ALL {
        let (address, _) = listen(store(&east, "east"), Err(refusal.because(format!("says the {refusal} sentence"))));
        cases.push(("refused", at(address), own.clone(), 0));
    }
    let mut shown = Vec::new();
    for (what, token, own, minutes) in cases {
        let error = join(&token, &own, &Literal, &clock(minutes)).await.unwrap_err();
        let mut text = format!("{what}\n  {error}\n  hint: {}", error.hint());
        for port in token.endpoints.iter().filter_map(|endpoint| endpoint.rsplit_once(':')) {
            text = text.replace(port.1, "PORT");
        }
        shown.push(text);
    }
    assert!(knows.asked.lock().unwrap().is_empty(), "the secret was shown to somebody else");
    insta::assert_snapshot!(shown.join("\n"));
}

/// Connections from this address that say nothing, as many as it gets.
async fn hold(token: &JoinToken, from: &str, listener: SocketAddr) -> Vec<quinn::Connection> {
    let crypto = quinn::crypto::rustls::QuicClientConfig::try_from(tls::client(token, clock(0), Default::default()));
    let config = quinn::ClientConfig::new(Arc::new(crypto.unwrap()));
    let silent = quinn::Endpoint::client(from.parse().unwrap()).unwrap();
    let mut held = Vec::new();
    for _ in 0..20 {
        held.extend(silent.connect_with(config.clone(), listener, crate::identity::tls::SERVER_NAME).unwrap().await);
    }
    held
}

/// The danger: one machine holds all places, and renews them for as long as there is a token.
#[tokio::test]
async fn who_connects_and_says_nothing_keeps_out_nobody_else() {
    let [east, west] = ["east", "west"].map(|name| Authority::create(name, noon()).unwrap());
    let (address, _) = listen(store(&east, "east"), Ok(introduction(&east, "east")));
    let token = token(&east, address);
    let held = hold(&token, "127.0.0.2:0", address).await;
    assert_eq!(held.len(), 8);
    join(&token, &introduction(&west, "west"), &Literal, &clock(0)).await.unwrap();
}

/// Many clusters may be behind one address: that of a node, or of a NAT.
#[tokio::test]
async fn who_finds_no_place_joins_as_soon_as_one_is_free() {
    let [east, west] = ["east", "west"].map(|name| Authority::create(name, noon()).unwrap());
    let (address, _) = listen(store(&east, "east"), Ok(introduction(&east, "east")));
    let token = token(&east, address);
    let held = hold(&token, "127.0.0.1:0", address).await;
    assert_eq!(held.len(), 8);
    let freed = async {
        tokio::time::sleep(Duration::from_millis(400)).await;
        drop(held);
    };
    let (own, clock) = (introduction(&west, "west"), clock(0));
    tokio::join!(join(&token, &own, &Literal, &clock), freed).0.unwrap();
}

#[tokio::test]
async fn a_listener_that_is_dropped_is_closed() {
    let east = Authority::create("east", noon()).unwrap();
    let registrar = Arc::new(Fixed { answer: Err(Refusal::Expired.because("")), asked: Mutex::default() });
    let any = "127.0.0.1:0".parse().unwrap();
    let listener = EnrolListener::bind(any, store(&east, "east"), registrar, clock(0)).unwrap();
    let address = listener.local_addr().unwrap();
    let serving = tokio::spawn(listener.serve());
    serving.abort();
    let _ = serving.await;
    // quinn gives the socket back once its driver has seen the end.
    let free = async {
        while std::net::UdpSocket::bind(address).is_err() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(10), free).await.unwrap();
}
