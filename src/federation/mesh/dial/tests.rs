//! On paused time: what is asserted is when each address was tried.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use futures::FutureExt as _;
use futures::future::{BoxFuture, pending};
use tokio::time::Instant;
use tributary_contract::PeerName;

use super::*;
use crate::transport::{Accepted, CloseReason, PeerIdentity, RecvHalf, SendHalf};
use crate::wire::registry::{CloseCode, StreamKind};

/// How an address behaves.
#[derive(Clone, Copy)]
enum Behaves {
    Answers(u64),
    Fails(u64, RefusalReason),
    Silent,
}
use Behaves::{Answers, Fails, Silent};

/// A network of addresses `10.0.0.N:7946`, N counted from 1.
struct Network {
    addresses: Vec<Behaves>,
    start: Instant,
    log: Mutex<Vec<String>>,
    open: AtomicUsize,
}

impl Network {
    fn new(addresses: &[Behaves]) -> Self {
        let (log, open) = (Mutex::default(), AtomicUsize::default());
        Self { addresses: addresses.to_vec(), start: now(), log, open }
    }

    /// When each address was tried: `milliseconds:N`.
    fn tried(&self) -> String {
        self.log.lock().unwrap().join(" ")
    }
}

#[allow(clippy::disallowed_methods, reason = "tokio's paused clock")]
fn now() -> Instant {
    Instant::now()
}

struct Attempt<'a>(&'a Network);

impl Drop for Attempt<'_> {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Transport for Network {
    fn dial<'a>(&'a self, _peer: &'a PeerSpec, address: SocketAddr) -> BoxFuture<'a, Result<Arc<dyn Link>, DialError>> {
        async move {
            let SocketAddr::V4(v4) = address else { panic!("IPv4 only") };
            let number = usize::from(v4.ip().octets()[3]);
            self.log.lock().unwrap().push(format!("{}:{number}", self.start.elapsed().as_millis()));
            self.open.fetch_add(1, Ordering::Relaxed);
            let _attempt = Attempt(self);
            match self.addresses[number - 1] {
                Answers(after) => {
                    sleep(Duration::from_millis(after)).await;
                    Ok(Arc::new(Connected(address.to_string())) as Arc<dyn Link>)
                }
                Fails(after, reason) => {
                    sleep(Duration::from_millis(after)).await;
                    Err(DialError::new(reason, format!("{address} failed")))
                }
                Silent => pending().await,
            }
        }
        .boxed()
    }
    fn accept(&self) -> BoxFuture<'_, Option<Accepted>> {
        pending().boxed()
    }
    fn set_peers(&self, _peers: &BTreeMap<PeerName, PeerSpec>) {}
    fn local_addr(&self) -> SocketAddr {
        ([127, 0, 0, 1], 0).into()
    }
    fn shutdown(&self) -> BoxFuture<'_, ()> {
        async {}.boxed()
    }
}

struct Connected(String);

impl Link for Connected {
    fn identity(&self) -> &PeerIdentity {
        unreachable!("not asked in these tests")
    }
    fn remote(&self) -> String {
        self.0.clone()
    }
    fn rtt(&self) -> Option<Duration> {
        None
    }
    fn open(&self, _kind: StreamKind) -> BoxFuture<'_, std::io::Result<(SendHalf, RecvHalf)>> {
        pending().boxed()
    }
    fn accept(&self) -> BoxFuture<'_, Option<(StreamKind, SendHalf, RecvHalf)>> {
        pending().boxed()
    }
    fn close(&self, _code: CloseCode, _reason: &str) {}
    fn closed(&self) -> BoxFuture<'_, CloseReason> {
        pending().boxed()
    }
}

/// `1,2@100` is an endpoint that resolves to addresses 1 and 2 after 100 ms; `!` does not resolve; `1>2` resolves to
/// address 1, and past caches to address 2.
struct Names;

impl Resolve for Names {
    fn resolve<'a>(&'a self, endpoint: &'a str, fresh: bool) -> BoxFuture<'a, Result<Vec<SocketAddr>, DialError>> {
        async move {
            let endpoint = match endpoint.split_once('>') {
                Some((_, moved)) if fresh => moved,
                Some((cached, _)) => cached,
                None => endpoint,
            };
            if endpoint == "!" {
                return Err(DialError::new(RefusalReason::Unreachable, "failed to resolve endpoint `!`"));
            }
            let (numbers, after) = endpoint.split_once('@').unwrap_or((endpoint, "0"));
            sleep(Duration::from_millis(after.parse().unwrap())).await;
            Ok(numbers.split(',').map(|number| ([10, 0, 0, number.parse().unwrap()], 7946).into()).collect())
        }
        .boxed()
    }
}

/// The address that won, or reason and message.
async fn run(network: &Network, endpoints: &[&str]) -> Result<String, (String, String)> {
    run_with(network, endpoints, &[]).await
}

/// `last`: numbers of the addresses to try last.
async fn run_with(network: &Network, endpoints: &[&str], last: &[u8]) -> Result<String, (String, String)> {
    let endpoints = endpoints.iter().map(|endpoint| (*endpoint).to_owned()).collect();
    let peer = PeerSpec { name: "west".into(), endpoints, ..PeerSpec::default() };
    let last = last.iter().map(|number| ([10, 0, 0, *number], 7946).into()).collect();
    match dial(network, &Names, &peer, false, &last).await {
        Ok(link) => Ok(link.remote()),
        Err(error) => Err((error.refusal.reason, error.refusal.message)),
    }
}

#[tokio::test(start_paused = true)]
async fn the_first_address_has_a_head_start() {
    let network = Network::new(&[Answers(249), Answers(0)]);
    assert_eq!(run(&network, &["1,2"]).await.unwrap(), "10.0.0.1:7946");
    assert_eq!(network.tried(), "0:1", "the second was not bothered");
}

#[tokio::test(start_paused = true)]
async fn silence_brings_in_the_next_and_the_losers_are_dropped() {
    let network = Network::new(&[Silent, Answers(400), Answers(10)]);
    assert_eq!(run(&network, &["1,2", "3"]).await.unwrap(), "10.0.0.3:7946");
    assert_eq!(network.tried(), "0:1 250:2 500:3");
    assert_eq!(network.open.load(Ordering::Relaxed), 0);
}

#[tokio::test(start_paused = true)]
async fn a_failure_brings_in_the_next_at_once() {
    let network = Network::new(&[Fails(20, RefusalReason::Unreachable), Answers(0)]);
    assert_eq!(run(&network, &["1", "2"]).await.unwrap(), "10.0.0.2:7946");
    assert_eq!(network.tried(), "0:1 20:2");
}

#[tokio::test(start_paused = true)]
async fn a_slow_name_holds_nobody_up_and_keeps_its_place() {
    let network = Network::new(&[Answers(0), Silent, Silent, Silent]);
    assert_eq!(run(&network, &["1@600", "2,3,4"]).await.unwrap(), "10.0.0.1:7946");
    assert_eq!(network.tried(), "0:2 250:3 500:4 750:1");
}

#[tokio::test(start_paused = true)]
async fn the_same_address_is_tried_once() {
    let network = Network::new(&[Fails(0, RefusalReason::Unreachable)]);
    assert!(run(&network, &["1", "1,1"]).await.is_err());
    assert_eq!(network.tried(), "0:1");
}

#[tokio::test(start_paused = true)]
async fn not_more_than_a_few_at_a_time() {
    let network = Network::new(&[Silent; 12]);
    let run = run(&network, &["1,2,3,4,5,6,7,8,9,10,11,12"]);
    assert!(tokio::time::timeout(Duration::from_secs(60), run).await.is_err());
    assert_eq!(network.tried().split(' ').count(), AT_A_TIME);
}

#[tokio::test(start_paused = true)]
async fn a_refusal_tells_more_than_silence() {
    use RefusalReason::{CertificateExpired, Unreachable};
    let network = Network::new(&[Fails(0, Unreachable), Fails(0, CertificateExpired), Fails(0, Unreachable)]);
    let (reason, message) = run(&network, &["1", "2", "3"]).await.unwrap_err();
    assert_eq!((reason.as_str(), message.as_str()), ("CertificateExpired", "endpoint `2`: 10.0.0.2:7946 failed"));
    assert_eq!(network.tried(), "0:1 0:2 0:3", "another endpoint might have been right");
}

#[tokio::test(start_paused = true)]
async fn every_silent_endpoint_is_named() {
    let network = Network::new(&[Fails(5, RefusalReason::Unreachable)]);
    let (reason, message) = run(&network, &["1", "!"]).await.unwrap_err();
    assert_eq!(reason, "Unreachable");
    assert_eq!(message, "failed to resolve endpoint `!`; endpoint `1`: 10.0.0.1:7946 failed");
    let (_, message) = run(&network, &[]).await.unwrap_err();
    assert!(message.contains("ClusterPeer `west` has no spec.endpoints"), "{message}");
}

#[tokio::test(start_paused = true)]
async fn a_peer_that_moved_is_found_past_the_cache_while_its_old_address_is_silent() {
    let network = Network::new(&[Silent, Answers(10)]);
    assert_eq!(run(&network, &["1>2"]).await.unwrap(), "10.0.0.2:7946");
    assert_eq!(network.tried(), "0:1 1000:2");
}

#[tokio::test(start_paused = true)]
async fn looking_again_ends_and_a_name_that_is_gone_by_then_is_no_news() {
    let network = Network::new(&[Fails(30_000, RefusalReason::Unreachable)]);
    let (_, message) = run(&network, &["1>!"]).await.unwrap_err();
    assert_eq!((message.as_str(), network.tried().as_str()), ("endpoint `1>!`: 10.0.0.1:7946 failed", "0:1"));
}

#[tokio::test(start_paused = true)]
async fn an_address_that_came_to_nothing_is_tried_last() {
    let network = Network::new(&[Answers(0), Silent, Answers(400)]);
    assert_eq!(run_with(&network, &["1", "2,3"], &[1]).await.unwrap(), "10.0.0.1:7946");
    assert_eq!(network.tried(), "0:2 250:3 500:1");
}
