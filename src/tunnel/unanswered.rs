//! TCP connections whose other side does not answer any more: its machine is gone, and no reset ever comes.
//!
//! Keepalive finds those that are silent. While something is sent and not acknowledged, the kernel does not use it, and gives
//! up after a quarter of an hour. `TCP_USER_TIMEOUT` would be sooner, but it also ends connections to somebody who answers and
//! does not read for a while. So this looks at what the kernel shows: how often it has sent again in vain. Somebody who does
//! not read is asked with probes instead, which do not count.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::sleep;
use tokio_util::task::TaskTracker;

/// Local and remote addresses of connections.
pub type Unanswered = BTreeSet<(SocketAddr, SocketAddr)>;

/// How often is looked.
const EVERY: Duration = Duration::from_secs(5);

/// Sent again so often in vain, which is 12.6 s where round trips are short: 0.2 s before the first time, and twice as long
/// before each next one.
const IN_VAIN: u32 = 6;

/// The kernel's word for a connection that sends again. That for one that asks whether there is room is another.
const RETRANSMITS: &str = "01";

/// Where the kernel shows it.
const FILES: [&str; 2] = ["/proc/self/net/tcp", "/proc/self/net/tcp6"];

/// Keeps `found` as the kernel shows it, while anything is carried. A system that does not show it leaves it empty.
pub async fn look(found: watch::Sender<Unanswered>, carried: TaskTracker) {
    loop {
        sleep(EVERY).await;
        let mut all = Unanswered::new();
        for file in FILES.iter().filter(|_| !carried.is_empty()) {
            all.extend(tokio::fs::read_to_string(file).await.iter().flat_map(|text| text.lines().filter_map(in_vain)));
        }
        found.send_if_modified(|before| std::mem::replace(before, all.clone()) != all);
    }
}

/// The connection of a line, if it sends in vain.
fn in_vain(line: &str) -> Option<(SocketAddr, SocketAddr)> {
    let mut words = line.split_whitespace().skip(1);
    let (local, remote) = (words.next()?, words.next()?);
    let (timer, times) = (words.nth(2)?, words.next()?);
    let in_vain = timer.split(':').next() == Some(RETRANSMITS) && u32::from_str_radix(times, 16).ok()? >= IN_VAIN;
    in_vain.then_some((address(local)?, address(remote)?))
}

/// An address as the kernel shows it: the words of the IP address as the machine holds them, and the port.
fn address(text: &str) -> Option<SocketAddr> {
    let (ip, port) = text.split_once(':')?;
    let word = |index: usize| Some(u32::from_str_radix(ip.get(8 * index..8 * index + 8)?, 16).ok()?.to_ne_bytes());
    let ip = match ip.len() {
        8 => IpAddr::from(Ipv4Addr::from(word(0)?)),
        32 => {
            let words = [word(0)?, word(1)?, word(2)?, word(3)?];
            let bytes: [u8; 16] = words.concat().try_into().ok()?;
            IpAddr::from(Ipv6Addr::from(bytes)).to_canonical()
        }
        _ => return None,
    };
    Some((ip, u16::from_str_radix(port, 16).ok()?).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(target_endian = "little")]
    #[test]
    fn who_does_not_answer_is_found_and_who_does_not_read_is_not() {
        let head = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode";
        let line = |addresses: &str, timer: &str, times: &str| {
            format!("   7: {addresses} 01 00000040:00000000 {timer}:00000B7E {times}     0        0 99 2 0 1 2 3")
        };
        let v4 = "0100007F:4E20 0200007F:C350";
        let mapped = "0000000000000000FFFF00000100007F:4E20 0000000000000000FFFF00000200007F:C350";
        let v6 = "B80D0120000000000000000001000000:4E20 B80D0120000000000000000002000000:C350";
        let pair = |one: &str, other: &str| Some((one.parse().unwrap(), other.parse().unwrap()));
        let is_v4 = pair("127.0.0.1:20000", "127.0.0.2:50000");
        let is_v6 = pair("[2001:db8::1]:20000", "[2001:db8::2]:50000");
        let table = [
            ("the head", head.to_owned(), None),
            ("in vain", line(v4, "01", "00000006"), is_v4),
            ("in vain, of a socket for both families", line(mapped, "01", "0000000A"), is_v4),
            ("in vain, over IPv6", line(v6, "01", "00000006"), is_v6),
            ("a lost packet", line(v4, "01", "00000002"), None),
            ("does not read", line(v4, "04", "00000000"), None),
            ("silent", line(v4, "02", "00000000"), None),
            ("nothing", "x".to_owned(), None),
        ];
        for (case, line, expected) in table {
            assert_eq!(in_vain(&line), expected, "{case}");
        }
    }
}
