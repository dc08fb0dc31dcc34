//! A way to a TCP listener that can forget its connections, as firewalls and load balancers do: nothing passes on them
//! any more, and nobody is told.

use std::future::pending;
use std::net::{Ipv4Addr, SocketAddr};

use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

/// A way to one listener. It ends with the runtime.
#[derive(Debug)]
pub struct Way {
    /// What leads to the target.
    pub address: SocketAddr,
    /// How often its connections were forgotten.
    forgotten: watch::Sender<u64>,
}

impl Way {
    /// Forgets the connections that there are. They stay open; later ones are carried.
    pub fn forget(&self) {
        self.forgotten.send_modify(|times| *times += 1);
    }
}

/// A way to `target`.
///
/// # Errors
/// There is no socket for it.
pub async fn way(target: SocketAddr) -> anyhow::Result<Way> {
    let front = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
    let way = Way { address: front.local_addr()?, forgotten: watch::Sender::new(0) };
    let forgotten = way.forgotten.clone();
    tokio::spawn(async move {
        while let Ok((mut client, _)) = front.accept().await {
            let mut forgotten = forgotten.subscribe();
            tokio::spawn(async move {
                let Ok(mut server) = TcpStream::connect(target).await else { return };
                tokio::select! {
                    _ = copy_bidirectional(&mut client, &mut server) => {}
                    Ok(()) = forgotten.changed() => pending().await,
                }
            });
        }
    });
    Ok(way)
}
