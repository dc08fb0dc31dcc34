//! TCP connections, as they are carried.

use std::future::pending;
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::time::Duration;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use socket2::{SockRef, TcpKeepalive};
use tokio::io::copy_bidirectional;
use tokio::net::TcpStream;
use tokio::sync::watch;

use super::pump::{Ended, Pump};
use super::unanswered::Unanswered;

/// Silence after which the kernel asks whether the other side is still there, and again after as long.
const SILENCE: Duration = Duration::from_secs(5);

/// Questions without an answer that end a connection.
const QUESTIONS: u32 = 2;

/// How long the root's agent waits for the lead broker's pod to take a connection. The provider, which looks through the
/// tunnel whether the lead answers, waits longer: it hears that the lead was not reached.
pub const LEAD_DIAL: Duration = Duration::from_secs(2);

/// Lets this process have as many connections as the kernel lets it: containerd starts it with 1,024 files, which it may raise
/// by itself.
///
/// # Errors
/// The kernel refuses.
pub fn raise_limit() -> io::Result<()> {
    let limit = getrlimit(Resource::Nofile);
    Ok(setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit })?)
}

/// Carries a connection to its end.
pub async fn carry(mut pump: Pump, mut tcp: TcpStream, unanswered: watch::Receiver<Unanswered>) {
    // Without these it works as well, but slower, or not noticing a machine that is gone.
    let _ = tcp.set_nodelay(true);
    let _ = ask_after(&tcp, SILENCE);
    let ends = ends(&tcp).ok();
    let revoked = pump.revoked.child_token();
    pump.revoked = revoked.clone();
    let (reader, writer) = tcp.split();
    let (ended, last_words) = {
        let mut run = pin!(pump.run(reader, writer));
        tokio::select! {
            over = &mut run => over,
            () = lost(ends, unanswered) => {
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

/// Passes a connection on to `to` as it is, until one side ends it or `to` does not answer any more.
pub async fn pass(mut tcp: TcpStream, mut to: TcpStream, unanswered: watch::Receiver<Unanswered>) {
    let _ = tcp.set_nodelay(true);
    let _ = to.set_nodelay(true);
    // Nobody takes it up again: who answers may take its time to read.
    let _ = ask_after(&to, SILENCE);
    let ends = ends(&to).ok();
    let well = tokio::select! {
        passed = copy_bidirectional(&mut tcp, &mut to) => passed.is_ok(),
        () = lost(ends, unanswered) => false,
    };
    if !well {
        reset(tcp);
        reset(to);
    }
}

/// Waits until the other side of a connection is known not to answer.
async fn lost(ends: Option<(SocketAddr, SocketAddr)>, mut unanswered: watch::Receiver<Unanswered>) {
    if unanswered.wait_for(|all| ends.is_some_and(|ends| all.contains(&ends))).await.is_err() {
        pending::<()>().await;
    }
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
    use std::os::fd::AsFd as _;

    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;
    use tokio::time::sleep;

    use super::*;

    async fn connected() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (one, other) = tokio::join!(TcpStream::connect(listener.local_addr().unwrap()), listener.accept());
        (one.unwrap(), other.unwrap().0)
    }

    #[test]
    fn a_process_may_have_as_many_files_as_the_kernel_lets_it() {
        let limit = getrlimit(Resource::Nofile);
        let fewer = limit.maximum.map_or(1 << 20, |most| most - 1);
        setrlimit(Resource::Nofile, Rlimit { current: Some(fewer), ..limit }).unwrap();
        raise_limit().unwrap();
        assert_eq!(getrlimit(Resource::Nofile), Rlimit { current: limit.maximum, ..limit });
    }

    #[tokio::test]
    async fn what_is_passed_on_to_a_machine_that_is_gone_ends() {
        let ((mut broker, tcp), (to, mut agent)) = (connected().await, connected().await);
        let (told, unanswered) = watch::channel(Unanswered::new());
        let gone = ends(&to).unwrap();
        let asks = to.as_fd().try_clone_to_owned().unwrap();
        let passes = tokio::spawn(pass(tcp, to, unanswered));
        broker.write_all(b"hello").await.unwrap();
        agent.read_exact(&mut [0; 5]).await.unwrap();
        assert_eq!(SockRef::from(&asks).tcp_keepalive_time().unwrap(), SILENCE, "the kernel asks who is silent");
        drop(asks);
        told.send_replace([gone].into());
        passes.await.unwrap();
        assert!(broker.read(&mut [0]).await.is_err(), "the broker is told, and connects again");
    }

    #[tokio::test]
    async fn who_answers_and_does_not_read_stays_connected() {
        let (tcp, mut slow) = connected().await;
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
