//! `[traces]`: where traces are sent.

use serde::{Deserialize, Serialize};

use super::{ConfigError, rejected, text};

/// `[traces]`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TracesConfig {
    /// Base URL of a receiver of OTLP over HTTP (protobuf), such as an OpenTelemetry Collector:
    /// `http://collector.monitoring:4318`. Default: none, and no traces are made. Headers, such as a token, come from
    /// `OTEL_EXPORTER_OTLP_HEADERS`; authorities for `https` from the system, or from `SSL_CERT_FILE`.
    #[serde(deserialize_with = "text::optional")]
    pub endpoint: Option<String>,
}

impl TracesConfig {
    pub(super) fn check(&self) -> Result<(), Box<ConfigError>> {
        let Some(endpoint) = &self.endpoint else { return Ok(()) };
        let rest = endpoint.strip_prefix("http://").or_else(|| endpoint.strip_prefix("https://"));
        if rest.is_some_and(|rest| !rest.is_empty() && !rest.starts_with('/') && !rest.contains(['@', ' ', '?', '#'])) {
            return Ok(());
        }
        // The value may hold a password.
        let reason = "is not http://HOST:PORT or https://HOST:PORT, without user, password and query: who needs a token \
                      sends it by OTEL_EXPORTER_OTLP_HEADERS";
        rejected("traces.endpoint", reason)
    }
}
