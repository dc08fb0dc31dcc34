//! `[traces]`: where traces are sent.

use serde::{Deserialize, Serialize};

use super::{ConfigError, rejected};

/// `[traces]`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TracesConfig {
    /// Base URL of a receiver of OTLP over HTTP (protobuf), such as an OpenTelemetry Collector:
    /// `http://collector.monitoring:4318`. Default: none, and no traces are made. Headers, such as a token, come from
    /// `OTEL_EXPORTER_OTLP_HEADERS`; authorities for `https` from the system, or from `SSL_CERT_FILE`.
    pub endpoint: Option<String>,
}

impl TracesConfig {
    pub(super) fn check(&self) -> Result<(), Box<ConfigError>> {
        let Some(endpoint) = &self.endpoint else { return Ok(()) };
        let rest = endpoint.strip_prefix("http://").or_else(|| endpoint.strip_prefix("https://"));
        let host = rest.map(|rest| rest.split('/').next().unwrap_or_default());
        let plain = |host: &str| !host.is_empty() && !host.contains(['@', ' ', '?', '#']);
        if host.is_some_and(plain) {
            return Ok(());
        }
        let reason = format!("{endpoint:?} is not http://HOST:PORT or https://HOST:PORT");
        rejected("traces.endpoint", reason)
    }
}
