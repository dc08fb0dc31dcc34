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
         scale its Deployment to 0 (agentctl migrate check has the command), and wait until its Lease has expired (15 s). \
         Do not uninstall it: its manifest and its Helm chart hold the definition of MiniClusters, and every MiniCluster \
         goes with that"
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_is_told_to_delete_every_mini_cluster() {
        let error = UpstreamError::Runs { namespace: "operator-system".into(), holder: "manager-0".into() }.to_string();
        assert!(error.contains("scale its Deployment to 0") && error.contains("Do not uninstall it"), "{error}");
    }
}
