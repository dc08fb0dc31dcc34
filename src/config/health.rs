//! `[health]`: probes and metrics.

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

/// `[health]`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct HealthConfig {
    /// TCP address of `/livez`, `/readyz` and `/metrics`.
    pub listen: SocketAddr,
}

impl Default for HealthConfig {
    fn default() -> Self {
        Self { listen: SocketAddr::from(([0, 0, 0, 0], 8081)) }
    }
}
