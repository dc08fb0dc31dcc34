//! `agentctl identity rotate`: asks the agent to replace its cluster's authority.

use k8s_openapi::api::core::v1::Secret;
use kube::ResourceExt;
use kube::api::{Api, ListParams};
use serde_json::json;
use tributary::api::labels;
use tributary::api::peer::ClusterPeer;
use tributary::clock::{Clock, SystemClock};

use super::consent::agreed;
use super::peering;
use crate::cli::{Identity, IdentityRotate, Target};
use crate::error::{Failure, Result};
use crate::{kubernetes, output};

/// Runs `agentctl identity …`.
pub(crate) async fn run(target: &Target, command: Identity) -> Result<()> {
    match command {
        Identity::Rotate(IdentityRotate { yes }) => rotate(target, yes).await,
    }
}

async fn rotate(target: &Target, yes: bool) -> Result<()> {
    let (namespace, client) = (&target.agent_namespace, kubernetes::client(target).await?);
    let elsewhere = "whoever issues this cluster's identity (cert-manager, an offline authority) replaces its authority: \
                     add the new one to the trust bundles of all peers first";
    let card = peering::card(&client, namespace).await?;
    let name = card
        .authority
        .ok_or_else(|| Failure::new(format!("cluster {} has no authority of its own", card.cluster)).hint(elsewhere))?;
    let peers = kubernetes::list(&client, Some(namespace), &ListParams::default()).await;
    let cost = match peers {
        // Who does not want to be asked need not be able to look.
        Err(_) if yes => None,
        Err(failure) => {
            return Err(failure.hint("may you list them? `--yes` does it without a look at who would be cut off"));
        }
        Ok(peers) => cost(&peers),
    };
    agreed(cost, yes, target)?;
    let secrets: Api<Secret> = Api::namespaced(client, namespace);
    let order = SystemClock::start().wall().to_string();
    let patch = json!({"metadata": {"annotations": {labels::ROTATE: order}}});
    kubernetes::merge(&secrets, "ask for another authority in", &name, patch)
        .await
        .map_err(|failure| failure.hint(format!("may you write Secrets there? If there is none, {elsewhere}")))?;
    output::print(
        "the agent replaces its authority, and tells the connected peers; its log has each step, and the peers that do not take \
         it\n",
    )
}

/// Whom nobody can tell now; `None`: all are there.
fn cost(peers: &[ClusterPeer]) -> Option<String> {
    let named = |which: &dyn Fn(&ClusterPeer) -> bool| {
        let names: Vec<String> = peers.iter().filter(|peer| which(peer)).map(ResourceExt::name_any).collect();
        Some(names.join(", ")).filter(|names| !names.is_empty())
    };
    let connected = |peer: &ClusterPeer| peer.status.as_ref().is_some_and(|status| status.connected);
    let suspended = named(&|peer| peer.spec.suspend).map(|names| format!("suspended, and not waited for: {names}"));
    let away = named(&|peer| !peer.spec.suspend && !connected(peer)).map(|names| {
        format!("not connected, and waited for during the life of a certificate (24 h unless configured): {names}")
    });
    let away: Vec<String> = suspended.into_iter().chain(away).collect();
    (!away.is_empty()).then(|| {
        format!(
            "not every peer can be told of the new authority\n  {}\n  one that has not heard of it refuses this cluster until the \
             two are linked again (`agentctl link --help`)",
            away.join("\n  ")
        )
    })
}

#[cfg(test)]
mod tests {
    use tributary::api::peer::{ClusterPeerSpec, ClusterPeerStatus};

    use super::*;

    /// The danger: a peer that was suspended for an hour is no peer any more.
    #[test]
    fn peers_that_cannot_be_told_are_named() {
        let peer = |name: &str, suspend, connected| {
            let status = ClusterPeerStatus { connected, ..ClusterPeerStatus::default() };
            let spec = ClusterPeerSpec { suspend, ..ClusterPeerSpec::default() };
            ClusterPeer { status: Some(status), ..ClusterPeer::new(name, spec) }
        };
        assert_eq!(cost(&[]), None);
        assert_eq!(cost(&[peer("west", false, true)]), None);
        let told = cost(&[peer("west", false, true), peer("north", true, false), peer("south", false, false)]).unwrap();
        assert!(told.contains("not waited for: north\n") && told.contains("configured): south\n"), "{told}");
        assert!(!told.contains("west"), "{told}");
        crate::paste::check::pastes(&told);
    }
}
