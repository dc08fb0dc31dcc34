//! `[kubernetes]`: how to reach this cluster's API server.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::text;

/// `[kubernetes]`. Without `kubeconfig` and `context`: the pod's service account, else `$KUBECONFIG`, else
/// `~/.kube/config`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct KubernetesConfig {
    /// Path of a kubeconfig.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kubeconfig: Option<PathBuf>,
    /// Context in it. Default: its current one.
    #[serde(deserialize_with = "text::optional", skip_serializing_if = "Option::is_none")]
    pub context: Option<String>,
    /// Namespace of the agent: of its Lease, its identity Secret and its ClusterPeers.
    #[serde(deserialize_with = "text::text")]
    pub namespace: String,
    /// Namespaces whose MiniClusters and bursts are the agent's business; none: those of the whole cluster.
    #[serde(deserialize_with = "text::list")]
    pub watch_namespaces: Vec<String>,
}

impl Default for KubernetesConfig {
    fn default() -> Self {
        Self { kubeconfig: None, context: None, namespace: "tributary-system".to_owned(), watch_namespaces: Vec::new() }
    }
}
