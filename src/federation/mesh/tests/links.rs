//! Connections for tunnels that peers do not keep.

use std::sync::atomic::{AtomicUsize, Ordering};

use futures::future::{BoxFuture, FutureExt as _};
use tributary_contract::tunnel::Outlet;

use super::*;
use crate::transport::{Accepted, DialError, Link};
use crate::wire::registry::CloseCode;

/// Accepts connections for tunnels, and closes each at once.
struct Closing {
    inner: Arc<MemoryTransport>,
    closed: Arc<AtomicUsize>,
}

impl Transport for Closing {
    fn dial<'a>(&'a self, peer: &'a PeerSpec, address: SocketAddr) -> BoxFuture<'a, Result<Arc<dyn Link>, DialError>> {
        self.inner.dial(peer, address)
    }

    fn accept(&self) -> BoxFuture<'_, Option<Accepted>> {
        async move {
            loop {
                match self.inner.accept().await? {
                    Accepted::Link(link) if link.is_for_tunnels() => {
                        self.closed.fetch_add(1, Ordering::Relaxed);
                        link.close(CloseCode::Done, "");
                    }
                    other => return Some(other),
                }
            }
        }
        .boxed()
    }

    fn set_peers(&self, peers: &BTreeMap<PeerName, PeerSpec>) {
        self.inner.set_peers(peers);
    }

    fn local_addr(&self) -> SocketAddr {
        self.inner.local_addr()
    }

    fn shutdown(&self) -> BoxFuture<'_, ()> {
        self.inner.shutdown()
    }
}

#[tokio::test(start_paused = true)]
async fn a_peer_that_closes_connections_for_tunnels_is_dialled_once_a_second() {
    let bed = Bed::new();
    let closed = Arc::new(AtomicUsize::new(0));
    let closing = Arc::new(Closing { inner: bed.transport("bb"), closed: closed.clone() });
    let resolve = Arc::new(bed.network.clone());
    let bb = Agent::start("bb", 1, bed.clock.clone(), closing, resolve.clone());
    bb.knows("a", &[]);
    let (outlets, inlets) = (watch::Sender::default(), watch::Sender::default());
    let tunnels = TunnelPorts { outlets: outlets.subscribe(), inlets: inlets.subscribe(), ..TunnelPorts::none() };
    let fittings = Fittings { tunnels, ..Fittings::default() };
    let a = Agent::fitted("a", 1, bed.clock.clone(), (bed.transport("a"), resolve), fittings);
    a.knows("bb", &[Bed::address("bb")]);
    a.cluster.until_state("bb", PeerState::Connected).await;

    let (lead, hold) = ((Ipv4Addr::LOCALHOST, 8050).into(), Duration::from_secs(60));
    let outlet = Outlet { incarnation: "job-1".to_owned(), lead, end: None, hold };
    outlets.send_modify(|all| drop(all.insert(("bb".into(), "lake".into()), outlet)));
    sleep(Duration::from_secs(5)).await;
    let dialled = closed.load(Ordering::Relaxed);
    assert!((3..=6).contains(&dialled), "{dialled} times in 5 s");
    assert_eq!(a.state_of("bb"), PeerState::Connected, "nothing else suffers");
}
