//! TCP connections, as they are carried.

use std::time::Duration;

use socket2::{SockRef, TcpKeepalive};
use tokio::net::TcpStream;

use super::pump::{Ended, Pump};
use super::reset;

/// Silence after which the kernel asks whether the other side is still there.
const KEEPALIVE: Duration = Duration::from_secs(30);

/// Carries a connection to its end.
pub(super) async fn carry(pump: Pump, mut tcp: TcpStream) {
    let _carried = pump.metrics.carries();
    // Without these it works as well, but slower, or not noticing a machine that is gone.
    let _ = tcp.set_nodelay(true);
    let _ =
        SockRef::from(&tcp).set_tcp_keepalive(&TcpKeepalive::new().with_time(KEEPALIVE).with_interval(KEEPALIVE / 3));
    let (reader, writer) = tcp.split();
    let (ended, last_words) = pump.run(reader, writer).await;
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
