//! One direction of a stream: bytes come out as they went in, later.

use std::pin::Pin;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, duplex};
use tokio::sync::{mpsc, watch};
use tokio::time::{Sleep, sleep};
use tributary_clock::SystemRng;
use tributary_contract::PeerName;

use super::MemoryNetwork;
use crate::transport::{CloseReason, RecvHalf, SendHalf};

/// Bytes that may be written before anything is read.
const BUFFER: usize = 64 << 10;

/// Pieces under way.
const PIECES: usize = 64;

/// Bytes, and until when they are under way.
type Piece = (Pin<Box<Sleep>>, Vec<u8>);

/// Makes a pipe that works until one of the `ends` of its link is closed.
pub(super) fn pipe(
    network: &MemoryNetwork,
    from: &PeerName,
    to: &PeerName,
    ends: [watch::Receiver<Option<CloseReason>>; 2],
) -> (SendHalf, RecvHalf) {
    let (writer, near) = duplex(BUFFER);
    let (far, reader) = duplex(BUFFER);
    let (network, from, to) = (network.clone(), from.clone(), to.clone());
    tokio::spawn(async move {
        let (sender, receiver) = mpsc::channel(PIECES);
        let [mut near_end, mut far_end] = ends;
        let carry = async { tokio::join!(take(&network, near, sender), give(&network, &from, &to, receiver, far)) };
        tokio::select! {
            _ = carry => {}
            _ = near_end.wait_for(Option::is_some) => {}
            _ = far_end.wait_for(Option::is_some) => {}
        }
    });
    (Box::new(writer), Box::new(reader))
}

async fn take(network: &MemoryNetwork, mut near: DuplexStream, pieces: mpsc::Sender<Piece>) {
    let mut buf = vec![0; BUFFER];
    while let Ok(read @ 1..) = near.read(&mut buf).await {
        let under_way = Box::pin(sleep(network.weather().under_way(&mut SystemRng)));
        if pieces.send((under_way, buf[..read].to_vec())).await.is_err() {
            return;
        }
    }
}

async fn give(
    network: &MemoryNetwork,
    from: &PeerName,
    to: &PeerName,
    mut pieces: mpsc::Receiver<Piece>,
    mut far: DuplexStream,
) {
    while let Some((under_way, bytes)) = pieces.recv().await {
        under_way.await;
        network.open(from, to).await;
        network.count(from, to, bytes.len());
        if far.write_all(&bytes).await.is_err() {
            return;
        }
    }
    network.open(from, to).await;
    // The end of the stream arrives as well; if the reader is gone, nobody cares.
    let _ = far.shutdown().await;
}
