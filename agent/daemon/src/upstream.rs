//! Refuses to run while the Flux Operator does: two operators would fight over every MiniCluster.

use jiff::Timestamp;
use kube::Client;
use tributary::api::labels::upstream::LEASE;
use tributary::cluster::RequestError;
use tributary::cluster::leadership::foreign_lease_held;

/// Why this agent must not run.
#[derive(Debug, thiserror::Error)]
pub enum UpstreamError {
    /// The Flux Operator runs.
    #[error(
        "failed to start: the Flux Operator runs in this cluster (Lease {namespace}/{LEASE}, held by {holder}); \
         uninstall it, or scale its Deployment to 0, and wait until its Lease has expired (15 s)"
    )]
    Runs {
        /// Namespace of its Lease.
        namespace: String,
        /// Who holds it.
        holder: String,
    },
    /// It could not be told.
    #[error("failed to find out whether the Flux Operator runs")]
    Request(#[from] RequestError),
}

/// `Ok` unless the Flux Operator's Lease is held.
pub async fn check(reader: &Client, now: Timestamp) -> Result<(), UpstreamError> {
    match foreign_lease_held(reader, None, LEASE, now).await? {
        None => Ok(()),
        Some(held) => Err(UpstreamError::Runs { namespace: held.namespace, holder: held.holder }),
    }
}
