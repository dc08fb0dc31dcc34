//! Pieces of shell around the user's command.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::schema::{absent_if_zero, is_default};

/// Shell that runs before, around and after the main command of a container. Every value may have several lines.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
pub struct Commands {
    /// A wrapper written in front of the command that flux starts, or of the broker if there is no command (for example a
    /// program that mounts storage first).
    #[serde(skip_serializing_if = "is_default", deserialize_with = "absent_if_zero")]
    pub prefix: Option<String>,

    /// A whole script to submit instead of `command`. A container that runs Flux has one or the other.
    #[serde(skip_serializing_if = "is_default", deserialize_with = "absent_if_zero")]
    pub script: Option<String>,

    /// Runs before everything else, on every pod: the place to set PATH or LD_LIBRARY_PATH.
    #[serde(skip_serializing_if = "is_default", deserialize_with = "absent_if_zero")]
    pub init: Option<String>,

    /// Runs on every pod once the environment of Flux is set up, before the broker starts.
    #[serde(skip_serializing_if = "is_default", deserialize_with = "absent_if_zero")]
    pub pre: Option<String>,

    /// Runs on every pod after the broker has ended.
    #[serde(skip_serializing_if = "is_default", deserialize_with = "absent_if_zero")]
    pub post: Option<String>,

    /// Runs on follower brokers only, before the broker starts.
    #[serde(skip_serializing_if = "is_default", deserialize_with = "absent_if_zero")]
    pub worker_pre: Option<String>,

    /// Runs on the lead broker only, before the broker starts.
    #[serde(skip_serializing_if = "is_default", deserialize_with = "absent_if_zero")]
    pub broker_pre: Option<String>,

    /// Runs in containers beside Flux only, before their command.
    #[serde(skip_serializing_if = "is_default", deserialize_with = "absent_if_zero")]
    pub service_pre: Option<String>,

    /// Another spelling of `workerPre`, found in upstream's documentation. `workerPre` wins if both are written.
    #[serde(skip_serializing_if = "is_default", deserialize_with = "absent_if_zero")]
    pub pre_worker: Option<String>,

    /// Another spelling of `brokerPre`, found in upstream's documentation. `brokerPre` wins if both are written.
    #[serde(skip_serializing_if = "is_default", deserialize_with = "absent_if_zero")]
    pub pre_broker: Option<String>,

    /// Run the broker as root, although the image or `fluxUser` has another user: some storage drivers need it.
    #[serde(skip_serializing_if = "is_default")]
    pub run_flux_as_root: bool,
}

impl Commands {
    /// What runs on followers before the broker, under either spelling.
    pub fn worker_pre(&self) -> Option<&str> {
        self.worker_pre.as_deref().or(self.pre_worker.as_deref())
    }

    /// What runs on the lead before the broker, under either spelling.
    pub fn broker_pre(&self) -> Option<&str> {
        self.broker_pre.as_deref().or(self.pre_broker.as_deref())
    }
}

/// Commands that the kubelet runs in the container at its start and before its end.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
pub struct LifeCycle {
    /// A command line to run right after the container has started.
    #[serde(skip_serializing_if = "is_default", deserialize_with = "absent_if_zero")]
    pub post_start_exec: Option<String>,

    /// A command line to run before the container is told to end.
    #[serde(skip_serializing_if = "is_default", deserialize_with = "absent_if_zero")]
    pub pre_stop_exec: Option<String>,
}
