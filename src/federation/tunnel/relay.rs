//! Bytes between the ends that live in the pods of brokers ([`tributary_tunnel::ends`]). Nothing of a connection is kept here:
//! when this agent is gone, the ends find each other over another one.

use std::io;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use tributary_tunnel::ends::{self, MAGIC};
use tributary_tunnel::flow_control::Share;
use tributary_tunnel::pump::{Counts as _, Stream};
use tributary_tunnel::sockets;

use super::metrics::TunnelMetrics;
use crate::transport::{RecvHalf, SendHalf};

/// Bytes that each direction has in hand at most: both, and the connection itself, are what a connection counts for.
const BUFFER: usize = 16 << 10;

const _: () = assert!(2 * BUFFER + (8 << 10) < crate::wire::limits::TUNNEL_CONNECTION, "as it is counted");

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
                splice(tcp, send, recv, revoked, metrics).await;
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
    drop(share);
}

/// Carries bytes both ways until one side ends, or the burst is not relayed any more.
pub(super) async fn splice(
    mut tcp: TcpStream,
    mut send: SendHalf,
    mut recv: RecvHalf,
    revoked: &CancellationToken,
    metrics: &TunnelMetrics,
) {
    let _relayed = metrics.relays();
    sockets::hop(&tcp);
    let carried = {
        let (mut reader, mut writer) = tcp.split();
        let there = async {
            let mut buf = vec![0; BUFFER];
            loop {
                let length = reader.read(&mut buf).await?;
                if length == 0 {
                    return send.shutdown().await;
                }
                // Who has little to say does not wait behind bulk.
                send.set_urgent(length < BUFFER);
                send.write_all(&buf[..length]).await?;
                metrics.took(length);
            }
        };
        let back = copy(&mut recv, &mut writer, |length| metrics.gave(length));
        let both = async { tokio::try_join!(there, back) };
        revoked.run_until_cancelled(both).await
    };
    if !matches!(carried, Some(Ok(_))) {
        sockets::reset(tcp);
    }
}

async fn copy(
    from: &mut (impl AsyncRead + Unpin),
    to: &mut (impl AsyncWrite + Unpin),
    count: impl Fn(usize),
) -> io::Result<()> {
    let mut buf = vec![0; BUFFER];
    loop {
        let length = from.read(&mut buf).await?;
        if length == 0 {
            return to.shutdown().await;
        }
        to.write_all(&buf[..length]).await?;
        count(length);
    }
}
