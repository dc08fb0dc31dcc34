//! TCP connections, as they are carried.

use std::future::pending;
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::time::Duration;

use socket2::{SockRef, TcpKeepalive};
use tokio::net::TcpStream;
use tokio::sync::watch;

use super::pump::{Ended, Pump};
use super::unanswered::Unanswered;

/// Silence after which the kernel asks whether the other side is still there, and again after as long.
const SILENCE: Duration = Duration::from_secs(5);

/// Questions without an answer that end a connection.
const QUESTIONS: u32 = 2;

/// Carries a connection to its end.
pub async fn carry(mut pump: Pump, mut tcp: TcpStream, mut unanswered: watch::Receiver<Unanswered>) {
    // Without these it works as well, but slower, or not noticing a machine that is gone.
    let _ = tcp.set_nodelay(true);
    let _ = ask_after(&tcp, SILENCE);
    let ends = ends(&tcp).ok();
    let revoked = pump.revoked.child_token();
    pump.revoked = revoked.clone();
    let (reader, writer) = tcp.split();
    let lost = async {
        let found = async { unanswered.wait_for(|all| ends.is_some_and(|ends| all.contains(&ends))).await.is_ok() };
        if !found.await {
            pending::<()>().await;
        }
    };
    let (ended, last_words) = {
        let mut run = pin!(pump.run(reader, writer));
        tokio::select! {
            over = &mut run => over,
            () = lost => {
                tracing::info!(?ends, "a carried connection ends: its other side does not answer");
                revoked.cancel();
                run.await
            }
        }
    };
    match ended {
        Ended::Well => drop(tcp),
        Ended::Broken(why) => {
            tracing::debug!(why, "a carried connection ends");
            reset(tcp);
        }
    }
    // Who is connected here has been told; now the other side.
    last_words.say().await;
}

/// Makes the kernel find out soon that the other side of a connection is gone. It also ends one to somebody who answers and
/// does not read for so long: only for what is taken up again.
pub fn hop(tcp: &TcpStream) {
    let _ = tcp.set_nodelay(true);
    let _ = ask_after(tcp, SILENCE);
    let _ = SockRef::from(tcp).set_tcp_user_timeout(Some((QUESTIONS + 1) * SILENCE));
}

/// Ends a connection so that the other side sees that it broke.
pub fn reset(tcp: TcpStream) {
    let _ = SockRef::from(&tcp).set_linger(Some(Duration::ZERO));
}

/// Local and remote address, as the kernel shows them.
fn ends(tcp: &TcpStream) -> io::Result<(SocketAddr, SocketAddr)> {
    let canonical = |address: SocketAddr| SocketAddr::new(address.ip().to_canonical(), address.port());
    Ok((canonical(tcp.local_addr()?), canonical(tcp.peer_addr()?)))
}

/// Lets the kernel find out whether the other side is still there when it is silent. Who answers may take its time to read.
fn ask_after(tcp: &TcpStream, silence: Duration) -> io::Result<()> {
    let keepalive = TcpKeepalive::new().with_time(silence).with_interval(silence).with_retries(QUESTIONS);
    SockRef::from(tcp).set_tcp_keepalive(&keepalive)
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncReadExt as _;
    use tokio::net::TcpListener;
    use tokio::time::sleep;

    use super::*;

    #[tokio::test]
    async fn who_answers_and_does_not_read_stays_connected() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (one, other) = tokio::join!(TcpStream::connect(listener.local_addr().unwrap()), listener.accept());
        let (tcp, mut slow) = (one.unwrap(), other.unwrap().0);
        let silence = Duration::from_secs(1);
        ask_after(&tcp, silence).unwrap();
        let mut written = 0;
        // Until there is room in no buffer, several times as long as it takes to give somebody up.
        for _ in 0..3 * (QUESTIONS + 1) {
            while let Ok(more) = tcp.try_write(&[0; 65_536]) {
                written += more;
            }
            sleep(silence).await;
        }
        drop(tcp);
        let mut read = Vec::new();
        slow.read_to_end(&mut read).await.unwrap();
        assert_eq!(read.len(), written);
    }
}
