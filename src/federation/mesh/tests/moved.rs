//! A peer that comes back at another address.

use std::net::IpAddr;

use futures::future::{BoxFuture, FutureExt as _, ready};

use super::*;
use crate::mesh::resolve::{Lookup, Resolver, Service};

/// DNS of one host, which a cache remembers as it was for as long as anybody asks it.
struct Zone {
    cached: IpAddr,
    now: watch::Receiver<IpAddr>,
}

impl Lookup for Zone {
    fn addresses<'a>(&'a self, _name: &'a str, fresh: bool) -> BoxFuture<'a, Result<Vec<IpAddr>, String>> {
        ready(Ok(vec![if fresh { *self.now.borrow() } else { self.cached }])).boxed()
    }

    fn services<'a>(&'a self, name: &'a str, _fresh: bool) -> BoxFuture<'a, Result<Vec<Service>, String>> {
        ready(Err(format!("{name} has no SRV records"))).boxed()
    }
}

/// The old address is silent, the cached record still names it, and the peer does not dial: it knows no way to us.
#[tokio::test(start_paused = true)]
async fn a_peer_whose_address_changed_is_back_within_three_seconds_of_being_missed() {
    for seed in 0..20 {
        let bed = Bed::new();
        let (old, new) = (Bed::address("bb"), SocketAddr::from((Ipv4Addr::new(10, 0, 9, 9), 7946)));
        let dns = watch::Sender::new(old.ip());
        let zone = Zone { cached: old.ip(), now: dns.subscribe() };
        let resolver = Arc::new(Resolver::new(zone, Box::new(SeededRng::new(seed))));
        let a = Agent::start("a", 1, bed.clock.clone(), bed.transport("a"), resolver);
        let bb = bed.agent("bb", 1);
        bb.knows("a", &[]);
        a.configure("bb", |spec| spec.endpoints = vec!["bb.example:7946".into()]);
        a.cluster.until_state("bb", PeerState::Connected).await;
        sleep(Duration::from_millis(5_000 + 331 * seed)).await;

        // Nothing is heard of its node. It comes up elsewhere; what the old one still says ends with a farewell.
        bed.network.cut("a", "bb");
        dns.send_replace(new.ip());
        let transport = Arc::new(bed.network.join("bb", new, Timestamp::MAX));
        let moved = Agent::start("bb", 2, bed.clock.clone(), transport, Arc::new(bed.network.clone()));
        moved.knows("a", &[]);
        a.cluster.until_state("bb", PeerState::Suspect).await;
        let missed = bed.clock.mono();
        bed.network.heal("a", "bb");
        bb.shutdown.cancel();
        let at = |cluster: &Cluster| {
            let last = cluster.reports("bb").pop();
            last.is_some_and(|last| last.state == PeerState::Connected && last.endpoint == Some(new.to_string()))
        };
        a.cluster.until("it is connected at its new address", at).await;
        let took = bed.clock.mono().saturating_since(missed);
        assert!(took < Duration::from_secs(3), "seed {seed}: it took {took:?}");
    }
}
