//! The configuration of an agent: defaults, then a TOML file, then `TRIBUTARY__SECTION__KEY` variables.
//!
//! Everything is parsed and checked before anything is bound or dialled. An error names the key, and the file or the
//! variable it came from.
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod admin;
mod bursting;
mod cluster;
mod federation;
mod health;
mod kubernetes;
mod liveness;
mod log;
mod text;
mod traces;
mod variables;
mod volumes;
mod webhook;

use std::path::{Path, PathBuf};
use std::time::Duration;

use figment::Figment;
use figment::providers::{Format, Serialized, Toml};
use serde::{Deserialize, Serialize};

pub(crate) use admin::AdminConfig;
pub use bursting::BurstingConfig;
pub(crate) use cluster::ClusterConfig;
pub use federation::{FederationConfig, IDENTITY_SECRET, IdentityConfig, JoinConfig, TunnelConfig};
pub use health::HealthConfig;
pub use kubernetes::KubernetesConfig;
pub(crate) use liveness::LivenessConfig;
pub use log::{LogConfig, LogFormat};
pub(crate) use traces::TracesConfig;
pub use volumes::{VolumesConfig, is_plain};
pub(crate) use webhook::WebhookConfig;

/// Prefix of the environment variables; `__` separates section and key.
pub const ENV_PREFIX: &str = "TRIBUTARY__";

/// The whole configuration of an agent.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// Who this cluster is.
    pub cluster: ClusterConfig,
    /// How to reach its API server.
    pub kubernetes: KubernetesConfig,
    /// How to peer with others.
    pub federation: FederationConfig,
    /// How soon a peer that is not heard is missed.
    pub liveness: LivenessConfig,
    /// Times of bursts.
    pub bursting: BurstingConfig,
    /// PersistentVolumes that MiniClusters may have made.
    pub volumes: VolumesConfig,
    /// v1alpha1 MiniClusters, converted for the API server.
    pub webhook: WebhookConfig,
    /// The read-only admin API.
    pub admin: AdminConfig,
    /// Probes and metrics.
    pub health: HealthConfig,
    /// Logging.
    pub log: LogConfig,
    /// Traces.
    pub traces: TracesConfig,
}

/// Why a configuration cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file given on the command line is not there.
    #[error(
        "failed to read the configuration: {path} does not exist\n\nhint: write one (src/guide/configuration.md has every key), or leave --config out to use {ENV_PREFIX}… variables only"
    )]
    NotFound {
        /// The file.
        path: PathBuf,
    },
    /// Whether the file is there cannot be seen.
    #[error("failed to read the configuration: {path}: {source}")]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// What the system says.
        source: std::io::Error,
    },
    /// A value is missing, of the wrong type, or of an unknown key.
    #[error("failed to read the configuration: {key}{reason}\n  in {origin}")]
    Invalid {
        /// `section.key: `, or empty when the source as a whole cannot be read.
        key: String,
        /// What is wrong with it.
        reason: String,
        /// The file or the variable.
        origin: String,
    },
    /// A value parses and makes no sense.
    #[error("failed to use the configuration: {key}: {reason}")]
    Rejected {
        /// `section.key`.
        key: &'static str,
        /// What is wrong with it and what would be right.
        reason: String,
    },
}

fn rejected(key: &'static str, reason: impl Into<String>) -> Result<(), Box<ConfigError>> {
    Err(Box::new(ConfigError::Rejected { key, reason: reason.into() }))
}

impl Config {
    /// Reads `file` (if any) and the environment, and checks every section.
    pub fn load(file: Option<&Path>) -> Result<Self, Box<ConfigError>> {
        let mut figment = Figment::from(Serialized::defaults(Self::default()));
        if let Some(path) = file {
            match path.try_exists() {
                Ok(true) => figment = figment.merge(Toml::file_exact(path)),
                Ok(false) => return Err(Box::new(ConfigError::NotFound { path: path.to_owned() })),
                Err(source) => return Err(Box::new(ConfigError::Unreadable { path: path.to_owned(), source })),
            }
        }
        Self::extract(&variables::all().fold(figment, Figment::merge))
    }

    /// Reads a configuration from TOML text alone.
    pub fn from_toml(text: &str) -> Result<Self, Box<ConfigError>> {
        Self::extract(&Figment::from(Serialized::defaults(Self::default())).merge(Toml::string(text)))
    }

    /// What a text says, without a judgement of the whole: of a pod, whose environment adds to it.
    pub fn as_written(text: &str) -> Result<Self, Box<ConfigError>> {
        let figment = Figment::from(Serialized::defaults(Self::default())).merge(Toml::string(text));
        figment.extract().map_err(|error| Box::new(ConfigError::from(error)))
    }

    /// How long a blip may last before anything is concluded from it.
    pub fn grace(&self) -> Duration {
        Duration::from_secs(self.bursting.grace_seconds.into())
    }

    fn extract(figment: &Figment) -> Result<Self, Box<ConfigError>> {
        let config: Self = figment.extract().map_err(|error| Box::new(ConfigError::from(error)))?;
        config.cluster.check()?;
        config.federation.check()?;
        config.bursting.check()?;
        config.liveness.check(config.grace())?;
        config.traces.check()?;
        config.webhook.check(&config.federation.identity)?;
        config.volumes.check(&config.kubernetes.watch_namespaces)?;
        Ok(config)
    }
}

impl From<figment::Error> for ConfigError {
    fn from(error: figment::Error) -> Self {
        let path = error.path.join(".");
        let origin = match &error.metadata {
            Some(metadata) => match &metadata.source {
                Some(source) => source.to_string(),
                None => metadata.name.to_string(),
            },
            None => "the configuration".to_owned(),
        };
        let key = if path.is_empty() { String::new() } else { format!("{path}: ") };
        Self::Invalid { key, reason: error.kind.to_string(), origin }
    }
}

#[cfg(test)]
mod tests;
