//! What the tunnel takes, whatever peers and brokers do.

use std::net::Ipv4Addr;
use std::time::Duration;

use bytes::BytesMut;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;
use tributary::federation::wire::limits::{TUNNEL_CONNECTION, TUNNEL_FLOOR, TUNNEL_WINDOW};
use tributary::tunnel::flow_control::{Budget, Share};
use tributary::tunnel::resumable_stream::{Delivery, ResumableStream};
use tributary::tunnel::segment::{self, Decoder, Segment};
use tributary_tests::mesh::{Carriage, Path, carried};

use crate::{ALONE, MEMORY};

/// The least that can be configured.
const BUDGET: usize = 32 << 20;

/// Takes all that it gets, in single bytes: what its broker sends, and what its peer may have under way.
fn greedy(mut share: Share) -> (Share, ResumableStream) {
    let mut conduit = ResumableStream::default();
    conduit.grant(share.grant());
    let granted = conduit.opening();
    conduit.resume(0, Some(TUNNEL_WINDOW as u32)).unwrap();
    let mut decoder = Decoder::default();
    for _ in 0..granted {
        let mut wire = &b"\0\0\0\0\x01x"[..];
        while let Some(piece) = decoder.take(&mut wire).unwrap() {
            conduit.receive(piece).unwrap();
        }
    }
    assert!(conduit.receive(Segment::Data(b"x")).is_err(), "more ends the connection");
    share.set(conduit.takes());
    while conduit.room(share.window()) > 0 {
        conduit.read(b"x");
        share.set(conduit.takes());
    }
    (share, conduit)
}

/// Hands over what one end has to say.
fn pass(from: &mut ResumableStream, to: &mut ResumableStream) {
    let mut decoder = Decoder::default();
    while let Some(piece) = from.transmit() {
        let mut wire = BytesMut::new();
        segment::head(piece, &mut wire);
        if let Segment::Data(bytes) = piece {
            wire.extend_from_slice(bytes);
            let length = bytes.len();
            from.carried(length);
        }
        let mut wire = &wire[..];
        while let Some(piece) = decoder.take(&mut wire).unwrap() {
            to.receive(piece).unwrap();
        }
    }
}

#[test]
fn peers_that_send_single_bytes_to_pods_that_never_read_stay_within_the_budget_and_stop_nobody() {
    let _alone = ALONE.lock();
    MEMORY.reset_peak_usage();
    let before = MEMORY.current_usage();
    let budget = Budget::new(BUDGET);
    let mut crowd = Vec::new();
    for peer in 0..32 {
        while let Some(share) = budget.join(&format!("peer {peer}")) {
            crowd.push(greedy(share));
        }
    }
    assert!(crowd.len() > 200, "{}", crowd.len());
    let most = BUDGET / 4 * 3;
    let took = MEMORY.peak_usage() - before;
    assert!(took <= most, "{} connections take {took} bytes, and {most} are for them", crowd.len());
    assert!(took <= budget.given(), "{took} bytes are taken, and {} counted", budget.given());

    // One of the greedy ends; who comes then is carried, with what every connection always has.
    crowd.pop();
    let mut share = budget.join("honest").unwrap();
    let (mut near, mut far) = (ResumableStream::default(), ResumableStream::default());
    near.grant(share.grant());
    far.grant(TUNNEL_WINDOW);
    let windows = [near.opening(), far.opening()];
    near.resume(0, Some(windows[1])).unwrap();
    far.resume(0, Some(windows[0])).unwrap();
    let (mut there, mut back, mut rounds) = (0, 0, 0);
    while back < 1 << 20 {
        rounds += 1;
        assert!(rounds < 4 * (1 << 20) / TUNNEL_FLOOR, "it goes on: {there} bytes there, {back} back");
        let room = near.room(share.window());
        near.read(vec![7; room]);
        near.grant(share.grant());
        share.set(near.takes());
        pass(&mut near, &mut far);
        while let Some(Delivery::Bytes(bytes)) = far.delivery() {
            let bytes = bytes.to_vec();
            there += bytes.len();
            far.delivered(bytes.len());
            // It answers with as much.
            far.read(&bytes[..bytes.len().min(far.room(TUNNEL_WINDOW))]);
        }
        pass(&mut far, &mut near);
        while let Some(Delivery::Bytes(bytes)) = near.delivery() {
            let length = bytes.len();
            back += length;
            near.delivered(length);
        }
        pass(&mut near, &mut far);
    }
    assert!(MEMORY.peak_usage() - before <= most);
}

/// Both agents are in this process, and so are the brokers.
#[test]
fn a_connection_takes_no_more_than_it_counts_for() {
    const MANY: usize = 300;
    let _alone = ALONE.lock();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let lead = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let at = lead.local_addr().unwrap();
        let echo = async move {
            let mut all = tokio::task::JoinSet::new();
            while let Ok((mut tcp, _)) = lead.accept().await {
                all.spawn(async move {
                    let mut byte = [0; 1];
                    while let Ok(1..) = tcp.read(&mut byte).await {
                        tcp.write_all(&byte).await.unwrap();
                    }
                });
            }
        };
        tokio::spawn(echo);
        let sources = vec![Ipv4Addr::LOCALHOST];
        let (hold, path) = (Duration::from_secs(60), Path::Direct);
        let carriage = Carriage { leads: vec![at], listen: Ipv4Addr::LOCALHOST, ports: 0..=0, sources, hold, path };
        let agents = carried(carriage).await.unwrap();
        let connected = async |count: usize| {
            let mut all = Vec::new();
            for _ in 0..count {
                let mut tcp = TcpStream::connect(agents.ends[0]).await.unwrap();
                tcp.write_all(b"x").await.unwrap();
                timeout(Duration::from_secs(60), tcp.read_exact(&mut [0; 1])).await.unwrap().unwrap();
                all.push(tcp);
            }
            all
        };
        // What is made once is there by now.
        let _first = connected(10).await;
        let before = MEMORY.current_usage();
        let _all = connected(MANY).await;
        let each = MEMORY.current_usage().saturating_sub(before) / MANY / 2;
        let itself = TUNNEL_CONNECTION - 4 * TUNNEL_FLOOR;
        assert!(each <= itself, "{each} bytes each at an agent, and {itself} are counted");
    });
}
