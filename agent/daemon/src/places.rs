//! Accepts the connections of a port: so many at one time, and from one address.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

/// After an error to accept, which is one of this process: too many open files.
const PAUSE: Duration = Duration::from_secs(1);

/// The connections of a port.
pub(crate) struct Places {
    most: usize,
    /// Of one address: one pod cannot have all of them.
    share: usize,
    taken: Mutex<BTreeMap<IpAddr, usize>>,
}

/// One of them.
struct Place {
    of: IpAddr,
    places: Arc<Places>,
}

impl Places {
    /// So many in all, and from one address.
    pub(crate) fn new(most: usize, share: usize) -> Arc<Self> {
        Arc::new(Self { most, share, taken: Mutex::default() })
    }

    /// Serves each connection that finds a place, until `stop`. Those that are left then are returned.
    pub(crate) async fn accept<F>(
        self: Arc<Self>,
        listener: TcpListener,
        stop: &CancellationToken,
        serve: impl Fn(TcpStream) -> F,
    ) -> JoinSet<()>
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let mut connections = JoinSet::new();
        loop {
            tokio::select! {
                () = stop.cancelled() => return connections,
                Some(_) = connections.join_next() => {}
                accepted = listener.accept() => match accepted {
                    // Who finds no place is gone at once: to wait would keep others out who have one.
                    Ok((stream, from)) => match self.take(from.ip()) {
                        Some(place) => {
                            let served = serve(stream);
                            connections.spawn(async move {
                                served.await;
                                drop(place);
                            });
                        }
                        None => tracing::debug!(%from, port = port(&listener), "too many connections"),
                    },
                    Err(error) => {
                        tracing::warn!(%error, port = port(&listener), "failed to accept a connection");
                        tokio::time::sleep(PAUSE).await;
                    }
                },
            }
        }
    }

    /// A place for one more connection of an address, if there is one.
    fn take(self: &Arc<Self>, of: IpAddr) -> Option<Place> {
        let of = of.to_canonical();
        let mut taken = self.taken.lock();
        let (all, own) = (taken.values().sum::<usize>(), taken.get(&of).copied().unwrap_or(0));
        (all < self.most && own < self.share).then(|| {
            taken.insert(of, own + 1);
            Place { of, places: self.clone() }
        })
    }
}

fn port(listener: &TcpListener) -> Option<u16> {
    listener.local_addr().ok().map(|address| address.port())
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut taken = self.places.taken.lock();
        match taken.get_mut(&self.of) {
            Some(own) if *own > 1 => *own -= 1,
            _ => _ = taken.remove(&self.of),
        }
    }
}
