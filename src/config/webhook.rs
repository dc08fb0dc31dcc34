//! `[webhook]`: v1alpha1 MiniClusters, converted for the API server.

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

use super::{ConfigError, IdentityConfig, rejected, text};

/// `[webhook]`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct WebhookConfig {
    /// TCP address at which API servers ask for conversions, by HTTPS. Every replica answers. Default: none, and
    /// MiniClusters are read and written as v1alpha2 only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub listen: Option<SocketAddr>,
    /// Name of the Service in the agent's namespace, port 443, by which the API server reaches the replicas.
    #[serde(deserialize_with = "text::text", skip_serializing_if = "String::is_empty")]
    pub service: String,
    /// Where the API server reaches this agent instead, as `https://host:port`: for an agent outside of the cluster.
    #[serde(deserialize_with = "text::text", skip_serializing_if = "String::is_empty")]
    pub url: String,
    /// Name of the Secret with `tls.crt`, `tls.key` and `ca.crt`, in the agent's namespace.
    #[serde(deserialize_with = "text::text")]
    pub secret: String,
    /// Make that Secret, with an authority of its own, and renew it. Otherwise somebody else does, for example
    /// cert-manager, and it is only read.
    pub issue: bool,
}

impl Default for WebhookConfig {
    fn default() -> Self {
        Self {
            listen: None,
            service: String::new(),
            url: String::new(),
            secret: "tributary-webhook".to_owned(),
            issue: true,
        }
    }
}

impl WebhookConfig {
    pub(super) fn check(&self, identity: &IdentityConfig) -> Result<(), Box<ConfigError>> {
        if self.listen.is_some() && self.service.is_empty() == self.url.is_empty() {
            let reason = "the API server has to be led to webhook.listen: name one of webhook.service and webhook.url";
            return rejected("webhook.service", reason);
        }
        let host = self.url.strip_prefix("https://").unwrap_or_default();
        if !self.url.is_empty() && (host.is_empty() || host.contains(['/', '?', '#', '@'])) {
            return rejected("webhook.url", format!("{:?} is not https://host:port", self.url));
        }
        if let IdentityConfig::Secret(identity) = identity
            && self.listen.is_some()
            && (self.secret == *identity || self.secret.strip_suffix("-ca") == Some(identity))
        {
            let reason = format!("{:?} is a Secret of federation.identity already: name another one", self.secret);
            return rejected("webhook.secret", reason);
        }
        Ok(())
    }
}
