//! `[health]`: probes and metrics.

use std::net::{Ipv6Addr, SocketAddr};

use serde::{Deserialize, Serialize};

/// `[health]`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct HealthConfig {
    /// TCP address of `/livez`, `/readyz` and `/metrics`. `[::]`, the default, is IPv4 and IPv6, or IPv4 alone on a
    /// machine without IPv6.
    pub listen: SocketAddr,
}

impl Default for HealthConfig {
    fn default() -> Self {
        Self { listen: SocketAddr::from((Ipv6Addr::UNSPECIFIED, 8081)) }
    }
}
