//! A way to a UDP listener that takes time, may lose something, and can be cut, also in one direction.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use tokio::net::UdpSocket;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep_until};
use tributary::clock::{Rng as _, SeededRng};

/// Longer than any datagram.
const DATAGRAM: usize = 65_536;

/// A way between two agents. It ends with the runtime.
#[derive(Debug)]
pub struct Way {
    /// What leads to the target.
    pub address: SocketAddr,
    /// Whether nothing gets through.
    pub cut: watch::Sender<bool>,
    /// Whether nothing gets to the target, whose own datagrams are carried.
    pub cut_there: watch::Sender<bool>,
    /// Whether nothing comes back from the target.
    pub cut_back: watch::Sender<bool>,
}

/// A way to `target`: every datagram takes `one_way` longer, in both directions, and of 1,000 so many are lost, in each.
///
/// # Errors
/// There is no socket for it.
pub async fn way(target: SocketAddr, one_way: Duration, lost: u64) -> anyhow::Result<Way> {
    let front = Arc::new(UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await?);
    let address = front.local_addr()?;
    let [cut, cut_there, cut_back] = [(); 3].map(|()| watch::Sender::new(false));
    let (there, back) = ([cut.subscribe(), cut_there.subscribe()], [cut.subscribe(), cut_back.subscribe()]);
    tokio::spawn(async move {
        let mut ways: BTreeMap<SocketAddr, mpsc::UnboundedSender<Leaving>> = BTreeMap::new();
        let mut buffer = vec![0; DATAGRAM];
        let mut luck = Luck::new(lost, 1);
        while let Ok((length, client)) = front.recv_from(&mut buffer).await {
            let way = match ways.get(&client) {
                Some(way) => way.clone(),
                None => {
                    let path = (one_way, lost, back.clone());
                    let Ok(way) = answering(target, front.clone(), client, path).await else { return };
                    ways.insert(client, way.clone());
                    way
                }
            };
            if luck.loses() || is_any(&there) {
                continue;
            }
            let _ = way.send(Leaving::after(one_way, &buffer[..length]));
        }
    });
    Ok(Way { address, cut, cut_there, cut_back })
}

fn is_any(cuts: &[watch::Receiver<bool>]) -> bool {
    cuts.iter().any(|cut| *cut.borrow())
}

/// A datagram on its way. All take the same time, so they arrive in the order in which they left.
struct Leaving {
    arrives: Instant,
    datagram: Vec<u8>,
}

impl Leaving {
    fn after(one_way: Duration, datagram: &[u8]) -> Self {
        Self { arrives: Instant::now() + one_way, datagram: datagram.to_vec() }
    }
}

/// Takes datagrams to `to`, or to whom the socket is connected.
fn carry(socket: Arc<UdpSocket>, to: Option<SocketAddr>) -> mpsc::UnboundedSender<Leaving> {
    let (sender, mut leaving) = mpsc::unbounded_channel::<Leaving>();
    tokio::spawn(async move {
        while let Some(Leaving { arrives, datagram }) = leaving.recv().await {
            sleep_until(arrives).await;
            // A datagram may be lost.
            let _ = match to {
                Some(to) => socket.send_to(&datagram, to).await,
                None => socket.send(&datagram).await,
            };
        }
    });
    sender
}

/// A socket towards `target`, whose answers go back to `client`.
async fn answering(
    target: SocketAddr,
    front: Arc<UdpSocket>,
    client: SocketAddr,
    (one_way, lost, cuts): (Duration, u64, [watch::Receiver<bool>; 2]),
) -> std::io::Result<mpsc::UnboundedSender<Leaving>> {
    let way = Arc::new(UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await?);
    way.connect(target).await?;
    let (back, answers) = (way.clone(), carry(front, Some(client)));
    tokio::spawn(async move {
        let mut buffer = vec![0; DATAGRAM];
        let mut luck = Luck::new(lost, 2);
        loop {
            // The target may be away for a while.
            let Ok(length) = back.recv(&mut buffer).await else { continue };
            if luck.loses() || is_any(&cuts) {
                continue;
            }
            let _ = answers.send(Leaving::after(one_way, &buffer[..length]));
        }
    });
    Ok(carry(way, None))
}

/// Which datagrams are lost.
struct Luck {
    lost: u64,
    rng: SeededRng,
}

impl Luck {
    fn new(lost: u64, seed: u64) -> Self {
        Self { lost, rng: SeededRng::new(seed) }
    }

    fn loses(&mut self) -> bool {
        self.rng.next_u64() % 1_000 < self.lost
    }
}
