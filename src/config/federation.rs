//! `[federation]`: how to peer with other clusters.

use std::net::SocketAddr;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::{ConfigError, text};

/// `[federation]`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct FederationConfig {
    /// UDP address the agent listens on for peers.
    pub listen: SocketAddr,
    /// Addresses peers reach it at, `host:port`: what `agentctl` writes into the ClusterPeers of others.
    #[serde(deserialize_with = "text::list")]
    pub advertise: Vec<String>,
    /// Where `tls.crt`, `tls.key` and `ca.crt` come from. Unset: no federation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub identity: Option<IdentityConfig>,
    /// Seconds a hosted burst outlives the contact with its root. Default 300.
    pub lease_seconds: u32,
    /// Seconds leaving brokers get to drain. Default 60.
    pub drain_seconds: u32,
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
        Self {
            listen: SocketAddr::from(([0, 0, 0, 0], 7946)),
            advertise: Vec::new(),
            identity: None,
            lease_seconds: 300,
            drain_seconds: 60,
        }
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
        if self.lease_seconds < 30 {
            return Err(Box::new(ConfigError::Rejected {
                key: "federation.lease_seconds",
                reason: format!(
                    "{} is shorter than the grace period of 30 s: a blip would evict bursts",
                    self.lease_seconds
                ),
            }));
        }
        Ok(())
    }
}
