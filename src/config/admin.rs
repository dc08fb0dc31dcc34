//! `[admin]`: the read-only admin API.

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

/// `[admin]`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct AdminConfig {
    /// TCP address. Keep it on loopback: `agentctl` comes through the API server's port-forward.
    pub listen: SocketAddr,
}

impl Default for AdminConfig {
    fn default() -> Self {
        Self { listen: SocketAddr::from(([127, 0, 0, 1], 8080)) }
    }
}
