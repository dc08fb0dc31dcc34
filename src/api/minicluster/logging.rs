//! What appears in the log of the pods.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::schema::{absent_if_zero, is_default};

/// How much the pods' scripts and brokers print, and how they treat errors.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
pub struct LoggingSpec {
    /// Print nothing but the output of the job.
    #[serde(skip_serializing_if = "is_default")]
    #[schemars(extend("default" = false))]
    pub quiet: bool,

    /// End with an error as soon as any line of the entrypoint fails (`set -eEu -o pipefail`).
    #[serde(skip_serializing_if = "is_default")]
    #[schemars(extend("default" = false))]
    pub strict: bool,

    /// Let Flux tell more about the submission of the job.
    #[serde(skip_serializing_if = "is_default")]
    #[schemars(extend("default" = false))]
    pub debug: bool,

    /// Let the brokers log what happens on their ZeroMQ sockets.
    #[serde(skip_serializing_if = "is_default")]
    #[schemars(extend("default" = false))]
    pub zeromq: bool,

    /// Print the wall time of the main Flux commands; the container needs /usr/bin/time.
    #[serde(skip_serializing_if = "is_default")]
    #[schemars(extend("default" = false))]
    pub timed: bool,
}

/// State of Flux carried from one MiniCluster to the next.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
pub struct Archive {
    /// File on a volume that the lead restores Flux's content from, if it exists when the broker starts, and that it
    /// saves the content to when the instance ends. The suffix tells the format, for example `.tar.gz`.
    #[serde(skip_serializing_if = "is_default", deserialize_with = "absent_if_zero")]
    pub path: Option<String>,
}
