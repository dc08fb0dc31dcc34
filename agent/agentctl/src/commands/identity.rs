//! `agentctl identity rotate`: asks the agent to replace its cluster's authority.

use k8s_openapi::api::core::v1::Secret;
use kube::api::{Api, Patch, PatchParams};
use serde_json::json;
use tributary::api::{labels, names};
use tributary::clock::{Clock, SystemClock};
use tributary::config::IDENTITY_SECRET;

use crate::cli::{Identity, Target};
use crate::error::{Failure, Result};
use crate::{kubernetes, output};

/// Runs `agentctl identity …`.
pub async fn run(target: &Target, command: Identity) -> Result<()> {
    match command {
        Identity::Rotate => rotate(target).await,
    }
}

async fn rotate(target: &Target) -> Result<()> {
    let (namespace, name) = (&target.agent_namespace, names::authority(IDENTITY_SECRET));
    let secrets: Api<Secret> = Api::namespaced(kubernetes::client(target).await?, namespace);
    let order = SystemClock::start().wall().to_string();
    let patch = Patch::Merge(json!({"metadata": {"annotations": {labels::ROTATE: order}}}));
    secrets.patch_metadata(&name, &PatchParams::default(), &patch).await.map_err(|error| {
        Failure::new(format!("failed to ask for another authority in Secret {namespace}/{name}")).because(error).hint(
            "an agent that is its own authority makes that Secret. One whose identity comes from cert-manager or an \
             offline authority gets a new authority there",
        )
    })?;
    output::print(
        "the agent replaces its authority; peers are told, and its log and agentctl peers say how far it is\n",
    )
}
