//! Bytes between the ends that live in the pods of brokers ([`tributary_tunnel::ends`]). Nothing of a connection is kept here:
//! when this agent is gone, the ends find each other over another one.

use std::time::Duration;

use parking_lot::Mutex;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
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
    // Takes note of what a direction has in hand, and says how much there is memory for.
    let hold = |direction, length, most: fn(&Share) -> usize| {
        let (share, held) = &mut *hands.lock();
        held[direction] = length;
        share.set(*held);
        most(share)
    };
    let carried = {
        let (mut reader, mut writer) = tcp.split();
        let there = async {
            loop {
                let most = hold(0, 0, Share::window);
                let piece = read(&mut reader, most).await?;
                let length = piece.len();
                if length == 0 {
                    return send.shutdown().await;
                }
                hold(0, length, Share::window);
                send.set_urgent(length < most.min(BULK));
                send.send(piece).await?;
                metrics.took(length);
            }
        };
        let back = async {
            loop {
                // Copied out of the link's memory: of that, a few bytes may hold back many.
                let most = hold(1, 0, Share::grant);
                let piece = read(&mut recv, most).await?;
                if piece.is_empty() {
                    return writer.shutdown().await;
                }
                hold(1, piece.len(), Share::grant);
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

#[cfg(test)]
mod tests {
    use std::io;
    use std::pin::Pin;
    use std::task::{Context, Poll};

    use futures::future::BoxFuture;
    use tokio::io::{AsyncWrite, duplex};
    use tokio::net::TcpListener;
    use tokio::sync::mpsc;
    use tributary_tunnel::flow_control::Budget;
    use tributary_tunnel::limits::TUNNEL_FLOOR;
    use tributary_tunnel::pump::Sending;

    use super::*;

    /// Tells of each piece how long it is, and whether it goes before others.
    struct Told {
        urgent: bool,
        pieces: mpsc::UnboundedSender<(usize, bool)>,
    }

    impl AsyncWrite for Told {
        fn poll_write(self: Pin<&mut Self>, _cx: &mut Context<'_>, _bytes: &[u8]) -> Poll<io::Result<usize>> {
            panic!("pieces are handed over")
        }
        fn poll_flush(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }
        fn poll_shutdown(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }
    }

    impl Sending for Told {
        fn set_urgent(&mut self, urgent: bool) {
            self.urgent = urgent;
        }
        fn send(&mut self, bytes: Vec<u8>) -> BoxFuture<'_, io::Result<()>> {
            let _ = self.pieces.send((bytes.len(), self.urgent));
            Box::pin(async { Ok(()) })
        }
    }

    async fn connected() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (one, other) = tokio::join!(TcpStream::connect(listener.local_addr().unwrap()), listener.accept());
        (one.unwrap(), other.unwrap().0)
    }

    #[tokio::test]
    async fn who_says_little_goes_before_those_who_say_as_much_as_there_is_memory_for() {
        // With little memory, so much is a piece that would be little otherwise.
        for (memory, much) in [(256 << 20, BULK), (128 << 10, TUNNEL_FLOOR)] {
            let ((tcp, mut end), (told, mut pieces)) = (connected().await, mpsc::unbounded_channel());
            let revoked = CancellationToken::new();
            let share = Budget::new(memory).join("west").unwrap();
            let (send, recv) = (Box::new(Told { urgent: false, pieces: told }), Box::new(duplex(64).0));
            let metrics = TunnelMetrics::default();
            let asked = async {
                end.write_all(&[1; 100]).await.unwrap();
                assert_eq!(pieces.recv().await, Some((100, true)));
                let mut left = 1 << 20;
                end.write_all(&vec![1; left]).await.unwrap();
                while left > 0 {
                    let (length, urgent) = pieces.recv().await.unwrap();
                    assert_eq!(urgent, length < much, "{length} bytes, with {memory} of memory");
                    left -= length;
                }
                revoked.cancel();
            };
            tokio::join!(splice(tcp, send, recv, share, &revoked, &metrics), asked);
        }
    }
}
