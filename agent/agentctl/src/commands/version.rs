//! `agentctl version`: this program, and the agents of all federated clusters.

use schemars::JsonSchema;
use serde::Serialize;
use tributary::admin::{self, FederationStatus};

use crate::cli::{Target, Version};
use crate::connect::Agent;
use crate::document::{self, Document};
use crate::error::Result;
use crate::output::{self, or_dash};

/// This program, and the agents.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Versions {
    /// This program's version.
    client: &'static str,
    /// Of each cluster; missing with `--client`, and if no agent answers.
    #[serde(skip_serializing_if = "Option::is_none")]
    agents: Option<Vec<AgentVersion>>,
}

impl Document for Versions {
    const KIND: &'static str = "Version";
}

/// The agent of one cluster.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct AgentVersion {
    /// Name of the cluster.
    cluster: String,
    /// Its agent's version; `null` if the cluster did not tell.
    version: Option<String>,
}

/// Runs `agentctl version`.
pub(crate) async fn run(target: &Target, version: &Version) -> Result<()> {
    let client = env!("CARGO_PKG_VERSION");
    if version.client {
        return output::print(&document::text(version.output, &Versions { client, agents: None }, table)?);
    }
    // What is known is printed first: a cluster out of reach is the usual reason to ask.
    let status = match Agent::find(target).await {
        Ok(agent) => agent.read::<FederationStatus>(admin::STATUS).await,
        Err(failure) => Err(failure),
    };
    let agents = status.as_ref().ok().map(agents);
    output::print(&document::text(version.output, &Versions { client, agents }, table)?)?;
    status.map(drop)
}

fn agents(status: &FederationStatus) -> Vec<AgentVersion> {
    status
        .clusters
        .iter()
        .map(|row| AgentVersion { cluster: row.name.clone(), version: row.version().cloned() })
        .collect()
}

fn table(versions: &Versions, _wide: bool) -> String {
    let own = ["agentctl".to_owned(), "-".to_owned(), versions.client.to_owned()];
    let agents = versions.agents.iter().flatten();
    let agents = agents.map(|agent| ["agent".to_owned(), agent.cluster.clone(), or_dash(agent.version.as_ref())]);
    output::table(["PROGRAM", "CLUSTER", "VERSION"], [own].into_iter().chain(agents))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_sides_are_told_and_who_did_not_answer() {
        let agents = vec![
            AgentVersion { cluster: "east".into(), version: Some("0.1.0".into()) },
            AgentVersion { cluster: "west".into(), version: None },
        ];
        let versions = Versions { client: "0.2.0", agents: Some(agents) };
        assert_eq!(
            table(&versions, false),
            "PROGRAM    CLUSTER   VERSION\nagentctl   -         0.2.0\nagent      east      0.1.0\nagent      west      -\n"
        );
        let alone = serde_json::to_string(&Versions { client: "0.2.0", agents: None }).unwrap();
        assert_eq!(alone, r#"{"client":"0.2.0"}"#);
    }
}
