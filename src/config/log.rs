//! `[log]`: what is logged and how.

use serde::{Deserialize, Serialize};

use super::text;

/// `[log]`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LogConfig {
    /// Filter in tracing's syntax: `info`, `tributary=debug,info`. Each target has a level. If an agent starts with a filter that
    /// it cannot use, it logs by the default one, and says why.
    #[serde(deserialize_with = "text::text")]
    pub filter: String,
    /// `text` or `json`.
    pub format: LogFormat,
}

/// Form of a log line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// One JSON object a line.
    Json,
}

impl Default for LogConfig {
    fn default() -> Self {
        Self { filter: "info".to_owned(), format: LogFormat::Text }
    }
}
