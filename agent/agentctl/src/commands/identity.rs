//! `agentctl identity rotate`: asks the agent to replace its cluster's authority.

use k8s_openapi::api::core::v1::Secret;
use kube::api::{Api, Patch, PatchParams};
use serde_json::json;
use tributary::api::labels;
use tributary::clock::{Clock, SystemClock};

use super::peering;
use crate::cli::{Identity, Target};
use crate::error::{Failure, Result};
use crate::{kubernetes, output};

/// Runs `agentctl identity …`.
pub(crate) async fn run(target: &Target, command: Identity) -> Result<()> {
    match command {
        Identity::Rotate => rotate(target).await,
    }
}

async fn rotate(target: &Target) -> Result<()> {
    let (namespace, client) = (&target.agent_namespace, kubernetes::client(target).await?);
    let elsewhere = "whoever issues this cluster's identity (cert-manager, an offline authority) replaces its authority: \
                     add the new one to the trust bundles of all peers first";
    let card = peering::card(&client, namespace).await?;
    let name = card
        .authority
        .ok_or_else(|| Failure::new(format!("cluster {} has no authority of its own", card.cluster)).hint(elsewhere))?;
    let secrets: Api<Secret> = Api::namespaced(client, namespace);
    let order = SystemClock::start().wall().to_string();
    let patch = Patch::Merge(json!({"metadata": {"annotations": {labels::ROTATE: order}}}));
    secrets.patch_metadata(&name, &PatchParams::default(), &patch).await.map_err(|error| {
        Failure::new(format!("failed to ask for another authority in Secret {namespace}/{name}"))
            .because(error)
            .hint(format!("may you write Secrets there? If there is none, {elsewhere}"))
    })?;
    output::print(
        "the agent replaces its authority; peers are told, and its log and `agentctl peers` say how far it is\n",
    )
}
