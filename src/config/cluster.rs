//! `[cluster]`: who this cluster is.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{ConfigError, rejected, text};

/// `[cluster]`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ClusterConfig {
    /// Name of this cluster in the federation: a DNS label. Peers hold a ClusterPeer of this name.
    #[serde(deserialize_with = "text::text")]
    pub name: String,
    /// Labels told to peers, e.g. `{ region = "eu" }`; as a variable `region=eu,tier=gpu`.
    #[serde(deserialize_with = "text::labels")]
    pub labels: BTreeMap<String, String>,
    /// DNS domain of the cluster's Services. Default `cluster.local`.
    #[serde(deserialize_with = "text::text", skip_serializing_if = "String::is_empty")]
    pub domain: String,
}

impl ClusterConfig {
    /// The DNS domain, with its default.
    pub fn dns_domain(&self) -> &str {
        if self.domain.is_empty() { "cluster.local" } else { &self.domain }
    }

    pub(super) fn check(&self) -> Result<(), Box<ConfigError>> {
        let reason = if self.name.is_empty() {
            format!("is not set; give this cluster a name, e.g. \"east\" (or set {}CLUSTER__NAME)", super::ENV_PREFIX)
        } else if !is_dns_label(&self.name) {
            format!("{:?} is not a DNS label: at most 63 lower-case letters, digits and inner dashes", self.name)
        } else {
            return Ok(());
        };
        rejected("cluster.name", reason)
    }
}

fn is_dns_label(name: &str) -> bool {
    let inner = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    name.len() <= 63 && name.chars().all(inner) && !name.starts_with('-') && !name.ends_with('-')
}
