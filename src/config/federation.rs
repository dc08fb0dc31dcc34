//! `[federation]`: how to peer with other clusters.

use std::net::{Ipv6Addr, SocketAddr};
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::{ConfigError, text};

/// `[federation]`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct FederationConfig {
    /// UDP address the agent listens on for peers. `[::]`, the default, is IPv4 and IPv6, or IPv4 alone on a machine
    /// without IPv6.
    pub listen: SocketAddr,
    /// Addresses peers reach it at, `host:port`: what `agentctl` writes into the ClusterPeers of others.
    #[serde(deserialize_with = "text::list")]
    pub advertise: Vec<String>,
    /// Where `tls.crt`, `tls.key` and `ca.crt` come from. Unset: no federation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub identity: Option<IdentityConfig>,
}

/// `identity = { secret = "…" }` or `{ dir = "…" }`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "lowercase")]
pub enum IdentityConfig {
    /// A Secret of type `kubernetes.io/tls` shape in the agent's namespace.
    Secret(String),
    /// A directory.
    Dir(PathBuf),
}

impl Default for FederationConfig {
    fn default() -> Self {
        Self { listen: SocketAddr::from((Ipv6Addr::UNSPECIFIED, 7946)), advertise: Vec::new(), identity: None }
    }
}

impl FederationConfig {
    pub(super) fn check(&self) -> Result<(), Box<ConfigError>> {
        for address in &self.advertise {
            let valid = address
                .rsplit_once(':')
                .is_some_and(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok_and(|port| port > 0));
            if !valid {
                return Err(Box::new(ConfigError::Rejected {
                    key: "federation.advertise",
                    reason: format!(
                        "{address:?} is not host:port, e.g. \"203.0.113.7:30946\" or \"[2001:db8::1]:30946\""
                    ),
                }));
            }
        }
        Ok(())
    }
}
