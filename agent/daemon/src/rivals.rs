//! Refuses to run beside others who work on the same objects: two operators would fight over every MiniCluster, and each
//! would end the bursts of the other.

use std::time::Duration;

use jiff::Timestamp;
use kube::Client;
use tokio_util::sync::CancellationToken;
use tributary::api::labels::upstream;
use tributary::clock::SharedClock;
use tributary::cluster::RequestError;
use tributary::cluster::error::chain;
use tributary::cluster::leadership::{ForeignHolder, lease_holders};
use tributary::config::KubernetesConfig;

use crate::app::LEASE;

/// How far the clocks of two nodes may be apart: the Lease of an agent is short.
const CLOCKS: Duration = Duration::from_secs(30);

/// How often it is looked while this agent leads.
const AGAIN: Duration = Duration::from_secs(60);

/// Why this agent must not run.
#[derive(Debug, thiserror::Error)]
pub enum RivalError {
    /// The Flux Operator runs.
    #[error(
        "the Flux Operator runs in this cluster (Lease {namespace}/{lease}, held by {holder}); \
         scale its Deployment to 0 (agentctl migrate check has the command), and wait until its Lease has expired (15 s). \
         Do not uninstall it: its manifest and its Helm chart hold the definition of MiniClusters, and every MiniCluster \
         goes with that",
        lease = upstream::LEASE
    )]
    Upstream {
        /// Namespace of its Lease.
        namespace: String,
        /// Who holds it.
        holder: String,
    },
    /// Agents of another release work on the same namespaces.
    #[error(
        "agents of another release work on {objects} already (Lease {namespace}/{LEASE}, held by {holder}); \
         uninstall one of the releases, or give each its own namespaces (watchNamespaces)"
    )]
    Release {
        /// What both would work on.
        objects: String,
        /// Namespace of its Lease.
        namespace: String,
        /// Who holds it.
        holder: String,
    },
    /// It could not be told.
    #[error("failed to find out who else runs in this cluster")]
    Request(#[from] RequestError),
}

/// `Ok` unless the Flux Operator's Lease is held, or one of another release that works on the same namespaces.
pub async fn check(reader: &Client, own: &KubernetesConfig, now: Timestamp) -> Result<(), RivalError> {
    if let Some(held) = lease_holders(reader, upstream::LEASE, now, Duration::ZERO).await?.into_iter().next() {
        return Err(RivalError::Upstream { namespace: held.namespace, holder: held.holder });
    }
    lease_holders(reader, LEASE, now, CLOCKS).await?.into_iter().try_for_each(|held| beside(held, own))
}

/// Looks again while this agent leads: others can have started at the same moment, or be started again. Ends when there are
/// any, and with that the term; an agent that is started beside them says who they are.
pub(crate) async fn watch(reader: Client, own: KubernetesConfig, clock: SharedClock, stop: CancellationToken) {
    let look = async {
        loop {
            match check(&reader, &own, clock.wall()).await {
                Ok(()) => {}
                // Nobody knows, and what runs, runs on.
                Err(RivalError::Request(error)) => {
                    tracing::warn!(error = chain(&error), "who else runs here is not known");
                }
                Err(rival) => return tracing::error!("this agent must not lead any more: {rival}"),
            }
            tokio::time::sleep(AGAIN).await;
        }
    };
    tokio::select! {
        () = look => {}
        () = stop.cancelled() => {}
    }
}

/// Agents before 0.1.0 was released do not say what they work on: nothing is known of them.
fn beside(held: ForeignHolder, own: &KubernetesConfig) -> Result<(), RivalError> {
    let ForeignHolder { namespace, holder, watches } = held;
    let Some(watches) = watches.filter(|_| namespace != own.namespace) else { return Ok(()) };
    let objects = match (watches.is_empty(), own.watch_namespaces.is_empty()) {
        (true, true) => "all namespaces".to_owned(),
        (true, false) => own.watch_namespaces.join(", "),
        (false, true) => watches.join(", "),
        (false, false) => {
            let both: Vec<_> = watches.into_iter().filter(|one| own.watch_namespaces.contains(one)).collect();
            both.join(", ")
        }
    };
    if objects.is_empty() { Ok(()) } else { Err(RivalError::Release { objects, namespace, holder }) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_is_told_to_delete_every_mini_cluster() {
        let error =
            RivalError::Upstream { namespace: "operator-system".into(), holder: "manager-0".into() }.to_string();
        assert!(error.contains("scale its Deployment to 0") && error.contains("Do not uninstall it"), "{error}");
    }

    /// The danger: each ends the bursts of the other, whose peers it has never heard of.
    #[test]
    fn two_releases_share_no_namespace() {
        let names = |all: &str| all.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        // Theirs, as the Lease has them, and ours.
        let table = [
            ("agents", Some(""), "", None),
            ("hpc", Some(""), "", Some("all namespaces")),
            ("hpc", Some(""), "a b", Some("a, b")),
            ("hpc", Some("a"), "", Some("a")),
            ("hpc", Some("a c"), "b c", Some("c")),
            ("hpc", Some("a"), "b", None),
            ("hpc", None, "", None),
            ("agents", None, "", None),
        ];
        for (namespace, theirs, ours, expected) in table {
            let watches = theirs.map(names);
            let held = ForeignHolder { namespace: namespace.into(), holder: "pod-0".into(), watches };
            let own = KubernetesConfig {
                namespace: "agents".into(),
                watch_namespaces: names(ours),
                ..KubernetesConfig::default()
            };
            let found = beside(held, &own).err().map(|error| error.to_string());
            let expected = expected.map(|objects| format!("agents of another release work on {objects} already"));
            match (&found, &expected) {
                (None, None) => {}
                (Some(found), Some(expected)) => assert!(found.contains(expected), "{found}"),
                _ => panic!("{namespace} {theirs:?} {ours:?}: {found:?}"),
            }
        }
    }
}
