//! From a peer's endpoints to a link: whichever address answers first.
//!
//! As in RFC 8305 ("happy eyeballs"): every address gets a head start of [`HEAD_START`] before the next one is tried
//! beside it, and a failure starts the next one at once. Endpoints are resolved in parallel, and a fast answer is not kept
//! waiting by a slow name. The first link wins; the other attempts are dropped, which ends them.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use tokio::time::sleep;

use crate::contract::PeerSpec;
use crate::federation::transport::{DialError, Link, Resolve, Transport};
use crate::federation::wire::registry::RefusalReason;

/// How long an address is tried alone (RFC 8305, section 8: Connection Attempt Delay).
pub const HEAD_START: Duration = Duration::from_millis(250);

/// Addresses tried at a time: more would not help, and each costs the peer a handshake.
const AT_A_TIME: usize = 8;

/// Dials `peer` at its endpoints. `fresh`: look past DNS caches, because what they said did not answer. Fails with the
/// most telling of all failures: a peer that answered and refused is worth more than an address that is silent.
pub async fn dial(
    transport: &dyn Transport,
    resolve: &dyn Resolve,
    peer: &PeerSpec,
    fresh: bool,
) -> Result<Arc<dyn Link>, DialError> {
    let mut failures = Failures::default();
    let mut tried = BTreeSet::new();
    // What waits, in the order of the endpoints and of the addresses within one.
    let mut waiting: BTreeMap<(usize, usize), SocketAddr> = BTreeMap::new();
    let mut resolving: FuturesUnordered<_> = peer
        .endpoints
        .iter()
        .enumerate()
        .map(|(index, endpoint)| async move { (index, resolve.resolve(endpoint, fresh).await) })
        .collect();
    let mut attempts = FuturesUnordered::new();
    let mut head_start = None;

    loop {
        if head_start.is_none()
            && attempts.len() < AT_A_TIME
            && let Some(((endpoint, _), address)) = waiting.pop_first()
        {
            if tried.insert(address) {
                attempts.push(async move { (endpoint, transport.dial(peer, address).await) });
                head_start = Some(Box::pin(sleep(HEAD_START)));
            }
            continue;
        }
        tokio::select! {
            Some((endpoint, resolved)) = resolving.next() => match resolved {
                Ok(addresses) => {
                    waiting.extend(addresses.into_iter().enumerate().map(|(index, address)| ((endpoint, index), address)));
                }
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
                    refusal: crate::contract::Refusal {
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
