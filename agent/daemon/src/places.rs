//! Accepts the connections of a port: so many at one time, and from one address.
//!
//! Pods of several addresses can take all places together, and keep them. So a connection from an address that holds few
//! gets the place of one that holds more. The kubelet and API servers hold few.

use std::cmp::Reverse;
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
    /// An address that holds no more than these loses none.
    kept: usize,
    taken: Mutex<Taken>,
}

#[derive(Default)]
struct Taken {
    /// Of the newest one.
    number: u64,
    /// What ends each of them, by their numbers: the oldest one comes first.
    by: BTreeMap<IpAddr, BTreeMap<u64, CancellationToken>>,
}

/// One of them.
struct Place {
    of: IpAddr,
    number: u64,
    /// Another one gets this place.
    ended: CancellationToken,
    places: Arc<Places>,
}

impl Places {
    /// So many in all, and from one address, of which none loses the last `kept`.
    pub(crate) fn new(most: usize, share: usize, kept: usize) -> Arc<Self> {
        Arc::new(Self { most, share, kept, taken: Mutex::default() })
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
                                let _ = place.ended.run_until_cancelled(served).await;
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

    /// A place for one more connection of an address, if there is one. When all are taken, the oldest connection of the
    /// address that holds most ends for it. Who holds some himself must hold clearly fewer: two addresses of which each
    /// wants half of the places would end each other's connections without end.
    fn take(self: &Arc<Self>, of: IpAddr) -> Option<Place> {
        let of = of.to_canonical();
        let mut taken = self.taken.lock();
        let own = taken.by.get(&of).map_or(0, BTreeMap::len);
        if own >= self.share {
            return None;
        }
        if taken.by.values().map(BTreeMap::len).sum::<usize>() >= self.most {
            let (largest, held) = taken.largest()?;
            if held <= self.kept || own > 0 && own + 1 >= held {
                return None;
            }
            taken.end_oldest(largest);
        }
        taken.number += 1;
        let (number, ended) = (taken.number, CancellationToken::new());
        taken.by.entry(of).or_default().insert(number, ended.clone());
        Some(Place { of, number, ended, places: self.clone() })
    }
}

impl Taken {
    /// The address that holds most places, and how many; of several ones, that of the oldest connection.
    fn largest(&self) -> Option<(IpAddr, usize)> {
        let age = |held: &BTreeMap<u64, _>| Reverse(held.keys().next().copied());
        let largest = self.by.iter().max_by_key(|(_, held)| (held.len(), age(held)));
        largest.map(|(of, held)| (*of, held.len()))
    }

    fn end_oldest(&mut self, of: IpAddr) {
        let oldest = self.by.get(&of).and_then(|held| held.keys().next().copied());
        if let Some(ended) = oldest.and_then(|oldest| self.free(of, oldest)) {
            tracing::debug!(%of, "the oldest connection of the address that holds most ends for another one");
            ended.cancel();
        }
    }

    fn free(&mut self, of: IpAddr, number: u64) -> Option<CancellationToken> {
        let held = self.by.get_mut(&of)?;
        let freed = held.remove(&number);
        if held.is_empty() {
            self.by.remove(&of);
        }
        freed
    }
}

fn port(listener: &TcpListener) -> Option<u16> {
    listener.local_addr().ok().map(|address| address.port())
}

impl Drop for Place {
    fn drop(&mut self) {
        self.places.taken.lock().free(self.of, self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(number: u8) -> IpAddr {
        IpAddr::from([10, 0, 0, number])
    }

    #[test]
    fn who_holds_few_gets_the_place_of_who_holds_most() {
        let places = Places::new(6, 4, 0);
        let mut of_1: Vec<_> = (0..4).map(|_| places.take(pod(1)).unwrap()).collect();
        assert!(places.take(pod(1)).is_none(), "more than its share");
        let of_2: Vec<_> = (0..2).map(|_| places.take(pod(2)).unwrap()).collect();
        let ended = |held: &[Place]| held.iter().map(|place| place.ended.is_cancelled()).collect::<Vec<_>>();
        let third = places.take(pod(3)).expect("it holds none");
        assert_eq!(ended(&of_1), [true, false, false, false], "the oldest one");
        assert!(places.take(pod(2)).is_none(), "3 and 3, and then the other one comes again");
        assert!(places.take("::ffff:10.0.0.2".parse().unwrap()).is_none(), "it is the same one");
        let another = places.take(pod(3)).expect("it holds 1, and the largest holds 3");
        assert_eq!(ended(&of_1), [true, true, false, false]);
        assert_eq!(ended(&of_2), [false, false]);
        drop((another, of_1.remove(0)));
        let _free = places.take(pod(2)).expect("one place is free");
        assert_eq!(ended(&of_1), [true, false, false], "and the one that was ended is not counted twice");
        let _last = places.take(pod(3)).expect("it holds 1, and the largest holds 3");
        assert_eq!((ended(&of_2), third.ended.is_cancelled()), (vec![true, false], false));
    }

    #[test]
    fn who_holds_none_gets_a_place_even_if_each_holds_one() {
        let places = Places::new(3, 2, 0);
        let held: Vec<_> = (1..4).map(|number| places.take(pod(number)).unwrap()).collect();
        let _probe = places.take(pod(9)).expect("it holds none");
        assert!(held[0].ended.is_cancelled() && !held[1].ended.is_cancelled());
        assert!(places.take(pod(9)).is_none());
    }

    /// The danger: strangers of many addresses end the connections of the API server, in the middle of a question.
    #[test]
    fn who_holds_few_loses_none() {
        let places = Places::new(6, 4, 2);
        let server: Vec<_> = (0..2).map(|_| places.take(pod(1)).unwrap()).collect();
        let _strangers: Vec<_> = (2..6).map(|number| places.take(pod(number)).unwrap()).collect();
        assert!(places.take(pod(9)).is_none());
        assert!(server.iter().all(|place| !place.ended.is_cancelled()));
    }
}
