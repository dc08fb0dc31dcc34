//! Brokers whose connections end in their own pods, while agents between them come and go.

use std::io;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;
use tributary_contract::tunnel::Outlet;
use tributary_tunnel::ends::handshake::{Key, PURPOSE};
use tributary_tunnel::ends::{burst, lead};
use tributary_tunnel::flow_control::Budget;

use super::tunnel::{HERE, LONG, Pair, accepted, at_west, is_ended, lead as a_lead, talking, until};
use super::*;

const BUDGET: usize = 64 << 20;

/// A burst with both ends in its pods; where its broker connects, and the lead broker.
async fn with_ends(pair: &mut Pair, hold: Duration) -> (SocketAddr, TcpListener) {
    let (lead_at, broker) = a_lead().await;
    let (end_at, of_lead) = a_lead().await;
    pair.burst_to("lake", lead_at, Some(end_at), hold).await;
    let key = Key::of_certificate(&format!("secret-key = \"{}\"", "k".repeat(40)), PURPOSE).unwrap();
    let lead = lead::Lead { broker: lead_at, key: key.clone(), hold, budget: Budget::new(BUDGET) };
    tokio::spawn(lead.serve(of_lead));
    let leads = pair.leads.subscribe();
    let resolve: burst::Resolve = Box::new(move || {
        let at = *leads.borrow();
        Box::pin(async move { io::Result::Ok(vec![at]) })
    });
    let listener = TcpListener::bind((HERE, 0)).await.unwrap();
    let at = listener.local_addr().unwrap();
    let burst =
        burst::Burst::new((resolve, Box::new(|_| {})), key, hold, "lake-0".into(), Budget::new(BUDGET)).unwrap();
    tokio::spawn(burst.serve(listener));
    (at, broker)
}

/// Says something and waits until it is heard at the other side.
async fn heard(from: &mut TcpStream, to: &mut TcpStream, words: &[u8]) {
    from.write_all(words).await.unwrap();
    let mut said = vec![0; words.len()];
    timeout(LONG, to.read_exact(&mut said)).await.expect("it arrives").unwrap();
    assert_eq!(said, words);
}

const MUCH: usize = 60_000;

async fn under_way(from: &mut TcpStream, to: &mut TcpStream) {
    from.write_all(&[1; MUCH]).await.unwrap();
    to.read_exact(&mut [0]).await.unwrap();
}

async fn arrives(from: &mut TcpStream, to: &mut TcpStream) {
    let mut rest = [0; MUCH - 1];
    timeout(LONG, to.read_exact(&mut rest)).await.expect("the rest arrives").unwrap();
    assert!(rest.iter().all(|byte| *byte == 1));
    heard(from, to, b"still the same connection").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn brokers_notice_nothing_of_agents_that_are_killed_on_either_side_or_on_both() {
    for killed in [&["west"][..], &["east"], &["east", "west"]] {
        let mut pair = Pair::new().await;
        let (at, lead) = with_ends(&mut pair, Duration::from_secs(600)).await;
        let (mut broker, mut of_lead) = tokio::join!(talking(at), accepted(&lead));
        let relayed = || [&pair.metrics[0], &pair.metrics[1]].map(|metrics| (metrics.relayed(), metrics.connections()));
        assert_eq!(relayed(), [(1, 0); 2], "nothing ends in the agents");
        // Under way when it happens, in both directions.
        under_way(&mut broker, &mut of_lead).await;
        under_way(&mut of_lead, &mut broker).await;
        pair.kill(killed, "lake").await;
        arrives(&mut broker, &mut of_lead).await;
        arrives(&mut of_lead, &mut broker).await;
        assert!(timeout(Duration::from_millis(100), lead.accept()).await.is_err(), "no other one was made");
    }
}

/// The danger: brokers of a slot that was given away join beside those of its next peer, over an end that holds on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_lost_its_slot_is_cut_off_and_not_let_in_again() {
    let mut pair = Pair::new().await;
    let (at, lead) = with_ends(&mut pair, Duration::from_secs(3)).await;
    let (mut broker, mut of_lead) = tokio::join!(talking(at), accepted(&lead));
    let taken = pair.outlets.borrow().values().next().cloned().unwrap();
    // Another peer has it now, of another incarnation.
    pair.outlets.send_modify(|all| {
        all.clear();
        let next = Outlet { incarnation: "job-2".into(), ..taken.clone() };
        all.insert(("west".into(), "lake".into()), next);
    });
    until("it is cut", || pair.metrics[0].relayed() == 0).await;
    broker.write_all(b"late words").await.unwrap();
    assert!(is_ended(&mut of_lead).await, "not one of them arrives");
    assert!(is_ended(&mut broker).await);
    // Nor does a new connection reach the lead broker.
    let mut again = TcpStream::connect(at).await.unwrap();
    again.write_all(b"hello").await.unwrap();
    assert!(timeout(Duration::from_millis(500), lead.accept()).await.is_err());
    assert_eq!(pair.metrics[0].relayed(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_burst_that_is_not_carried_any_more_is_cut_off_at_the_provider() {
    let mut pair = Pair::new().await;
    let (at, lead) = with_ends(&mut pair, Duration::from_secs(1)).await;
    let (mut broker, _of_lead) = tokio::join!(talking(at), accepted(&lead));
    pair.inlets.send_modify(|all| drop(all.remove(&at_west("lake"))));
    until("it is cut", || pair.metrics[1].relayed() == 0).await;
    assert!(is_ended(&mut broker).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn where_the_lead_has_no_end_the_agents_hold_the_connection() {
    // None is expected there; one is, and nobody listens.
    for end in [None, Some((HERE, 1).into())] {
        let mut pair = Pair::new().await;
        let (at, lead) = with_ends(&mut pair, Duration::from_secs(600)).await;
        pair.outlets.send_modify(|all| all.values_mut().for_each(|outlet| outlet.end = end));
        let (mut broker, mut of_lead) = tokio::join!(talking(at), accepted(&lead));
        assert!(pair.metrics.iter().all(|metrics| (metrics.relayed(), metrics.connections()) == (0, 1)));
        heard(&mut of_lead, &mut broker, b"back").await;
    }
}
