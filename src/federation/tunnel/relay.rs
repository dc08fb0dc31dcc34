//! Bytes between the ends that live in the pods of brokers ([`tributary_tunnel::ends`]). Nothing of a connection is kept here:
//! when this agent is gone, the ends find each other over another one.

use std::io;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use tributary_tunnel::ends::{self, MAGIC};
use tributary_tunnel::flow_control::Share;
use tributary_tunnel::pump::{Counts as _, Stream, read};
use tributary_tunnel::sockets;

use super::metrics::TunnelMetrics;
use crate::transport::{RecvHalf, SendHalf};

/// Who has at least so much to say at a time, or as much as there is memory for, is busy: it goes behind those who are not.
const BULK: usize = 16 << 10;

/// Who says nothing for so long is no end. Brokers and ends speak at once; what only listens waits for the lead's greeting.
const SPEAKS: Duration = Duration::from_secs(1);

/// How long an end waits here until there is a way to the peer. Then it asks again.
const WAY: Duration = Duration::from_secs(15);

/// Why no stream is opened, if only that is why.
pub(super) const NO_ENDS: &str = "no end of the tunnel in the lead's pod";

/// Whether who connected is the burst's end. A broker's words stay to be read.
pub(super) async fn is_asked_for(tcp: &TcpStream) -> bool {
    let said = async {
        let mut said = [0; MAGIC.len()];
        loop {
            match tcp.peek(&mut said).await {
                Ok(length @ 1..) if said[..length] == MAGIC[..length] && length < MAGIC.len() => {
                    sleep(Duration::from_millis(5)).await;
                }
                Ok(_) => return said == MAGIC,
                Err(_) => return false,
            }
        }
    };
    timeout(SPEAKS, said).await.unwrap_or(false)
}

/// Provider side: from the burst's end to the stream that `open` makes.
pub(super) async fn of_burst(
    mut tcp: TcpStream,
    open: impl Future<Output = Result<Stream, String>>,
    share: Share,
    revoked: &CancellationToken,
    metrics: &TunnelMetrics,
) {
    sockets::hop(&tcp);
    let opened = async {
        tcp.read_exact(&mut [0; MAGIC.len()]).await.ok()?;
        timeout(WAY, open).await.ok()
    };
    match revoked.run_until_cancelled(opened).await.flatten() {
        Some(Ok(Stream { send, recv, .. })) => {
            if tcp.write_all(&[ends::RELAYED]).await.is_ok() {
                splice(tcp, send, recv, share, revoked, metrics).await;
            }
        }
        Some(Err(why)) if why == NO_ENDS => {
            let _ = tcp.write_all(&[ends::NO_ENDS]).await;
            // What the end has said already must not turn the answer into a reset.
            let _ = timeout(WAY, tcp.read(&mut [0; 64])).await;
        }
        // It asks again.
        _ => sockets::reset(tcp),
    }
}

/// Carries bytes both ways until one side ends, or the burst is not relayed any more. In each direction it has one piece in
/// hand, and only as long as that moves.
pub(super) async fn splice(
    mut tcp: TcpStream,
    mut send: SendHalf,
    mut recv: RecvHalf,
    share: Share,
    revoked: &CancellationToken,
    metrics: &TunnelMetrics,
) {
    let _relayed = metrics.relays();
    sockets::hop(&tcp);
    let hands = Mutex::new((share, [0, 0]));
    let carried = {
        let (mut reader, mut writer) = tcp.split();
        let there = async {
            loop {
                let (piece, most) = take(&mut reader, &hands, Share::window, 0).await?;
                if piece.is_empty() {
                    return send.shutdown().await;
                }
                send.set_urgent(piece.len() < most.min(BULK));
                send.write_all(&piece).await?;
                metrics.took(piece.len());
            }
        };
        let back = async {
            loop {
                let (piece, _) = take(&mut recv, &hands, Share::grant, 1).await?;
                if piece.is_empty() {
                    return writer.shutdown().await;
                }
                writer.write_all(&piece).await?;
                metrics.gave(piece.len());
            }
        };
        let both = async { tokio::try_join!(there, back) };
        revoked.run_until_cancelled(both).await
    };
    if !matches!(carried, Some(Ok(_))) {
        sockets::reset(tcp);
    }
}

/// The share of a connection, and what is in hand of each direction.
type Hands = Mutex<(Share, [usize; 2])>;

/// The next piece of a direction, and how much there was memory for.
async fn take(
    from: &mut (impl AsyncRead + Unpin),
    hands: &Hands,
    most: fn(&Share) -> usize,
    direction: usize,
) -> io::Result<(Vec<u8>, usize)> {
    let hold = |length| {
        // Every critical section is a sum.
        let (share, held) = &mut *hands.lock().unwrap_or_else(PoisonError::into_inner);
        held[direction] = length;
        share.set(*held);
        most(share)
    };
    let most = hold(0);
    let piece = read(from, most).await?;
    hold(piece.len());
    Ok((piece, most))
}
