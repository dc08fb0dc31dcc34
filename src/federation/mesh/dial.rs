//! From a peer's endpoints to a link: whichever address answers first.
//!
//! As in RFC 8305 ("happy eyeballs"): every address gets a head start of [`HEAD_START`] before the next one is tried
//! beside it, and a failure starts the next one at once. Endpoints are resolved in parallel, and a fast answer is not kept
//! waiting by a slow name. While addresses are silent their names are looked up again, past caches ([`LOOK_AGAIN`]): a
//! peer that just moved is found as soon as DNS knows. The first link wins; the other attempts are dropped, which ends
//! them.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use tokio::time::sleep;
use tributary_contract::PeerSpec;

use crate::transport::{DialError, Link, Resolve, Transport};
use crate::wire::registry::RefusalReason;

/// How long an address is tried alone (RFC 8305, section 8: Connection Attempt Delay).
pub(crate) const HEAD_START: Duration = Duration::from_millis(250);

/// How long addresses may be silent before their names are looked up again, each time in turn. An address is given up
/// after [`crate::timers::Timers::handshake`], so there is an end.
pub(crate) const LOOK_AGAIN: [Duration; 3] = [Duration::from_secs(1), Duration::from_secs(2), Duration::from_secs(4)];

/// Addresses tried at a time: more would not help, and each costs the peer a handshake.
const AT_A_TIME: usize = 8;

/// Dials `peer` at its endpoints. `fresh`: look past DNS caches, because what they said did not answer. `last`: addresses
/// to try after all others, because a connection there came to nothing. Fails with the most telling of all failures: a
/// peer that answered and refused is worth more than an address that is silent.
pub(crate) async fn dial(
    transport: &dyn Transport,
    resolve: &dyn Resolve,
    peer: &PeerSpec,
    fresh: bool,
    last: &BTreeSet<SocketAddr>,
) -> Result<Arc<dyn Link>, DialError> {
    let mut failures = Failures::default();
    let mut tried = BTreeSet::new();
    // What waits, in the order of the endpoints and of the addresses within one.
    let mut waiting: BTreeMap<(bool, usize, usize), SocketAddr> = BTreeMap::new();
    let look = |round: usize| {
        let fresh = fresh || round > 0;
        peer.endpoints
            .iter()
            .enumerate()
            .map(move |(index, endpoint)| async move { (round, index, resolve.resolve(endpoint, fresh).await) })
    };
    let mut resolving: FuturesUnordered<_> = look(0).collect();
    let mut attempts = FuturesUnordered::new();
    let mut head_start = None;
    let mut rounds = LOOK_AGAIN.into_iter().enumerate();
    let mut look_again = rounds.next().map(|(round, wait)| (round + 1, Box::pin(sleep(wait))));

    loop {
        // Those that are tried last wait for names that may have better ones.
        let early = waiting.keys().next().is_some_and(|(last, ..)| *last) && tried.is_empty() && !resolving.is_empty();
        if head_start.is_none()
            && !early
            && attempts.len() < AT_A_TIME
            && let Some(((_, endpoint, _), address)) = waiting.pop_first()
        {
            if tried.insert(address) {
                attempts.push(async move { (endpoint, transport.dial(peer, address).await) });
                head_start = Some(Box::pin(sleep(HEAD_START)));
            }
            continue;
        }
        tokio::select! {
            Some((round, endpoint, resolved)) = resolving.next() => match resolved {
                Ok(addresses) => {
                    let place = |(index, address)| ((last.contains(&address), endpoint, index), address);
                    waiting.extend(addresses.into_iter().enumerate().map(place));
                }
                // What was found before is still being tried.
                Err(_) if round > 0 => {}
                Err(error) => failures.add(None, error),
            },
            Some((endpoint, outcome)) = attempts.next() => match outcome {
                Ok(link) => return Ok(link),
                Err(error) => {
                    failures.add(peer.endpoints.get(endpoint), error);
                    head_start = None;
                }
            },
            () = async { head_start.as_mut().expect("guarded").await }, if head_start.is_some() => head_start = None,
            round = async {
                let (round, wait) = look_again.as_mut().expect("guarded");
                wait.await;
                *round
            }, if look_again.is_some() && !attempts.is_empty() => {
                resolving.extend(look(round));
                look_again = rounds.next().map(|(round, wait)| (round + 1, Box::pin(sleep(wait))));
            }
            else => return Err(failures.most_telling(peer)),
        }
    }
}

/// What went wrong so far.
#[derive(Default)]
struct Failures {
    /// The first time the peer answered and refused, or was refused.
    refused: Option<DialError>,
    unreachable: Vec<String>,
}

impl Failures {
    fn add(&mut self, endpoint: Option<&String>, error: DialError) {
        let refusal = &error.refusal;
        if refusal.reason == RefusalReason::Unreachable.as_str() {
            self.unreachable.push(match endpoint {
                Some(endpoint) => format!("endpoint `{endpoint}`: {}", refusal.message),
                None => refusal.message.clone(),
            });
        } else if self.refused.is_none() {
            self.refused = Some(match endpoint {
                Some(endpoint) => DialError {
                    refusal: tributary_contract::Refusal {
                        reason: refusal.reason.clone(),
                        message: format!("endpoint `{endpoint}`: {}", refusal.message),
                    },
                },
                None => error,
            });
        }
    }

    fn most_telling(self, peer: &PeerSpec) -> DialError {
        if let Some(refused) = self.refused {
            return refused;
        }
        let message = if self.unreachable.is_empty() {
            format!("ClusterPeer `{}` has no spec.endpoints: that cluster has to dial this one", peer.name)
        } else {
            self.unreachable.join("; ")
        };
        DialError::new(RefusalReason::Unreachable, message)
    }
}

#[cfg(test)]
mod tests;
