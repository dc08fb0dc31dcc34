//! Containers of v1alpha1.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::minicluster::{DEFAULT_IMAGE, LifeCycle, ResourceList, SecretKey};
use crate::schema::is_default;

/// One container of the pods.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
pub struct Container {
    /// Image of the container. The one that runs Flux has Flux in it.
    #[serde(skip_serializing_if = "is_default")]
    #[schemars(extend("default" = DEFAULT_IMAGE))]
    pub image: Option<String>,

    /// Name of the container. Required, except for the one that runs Flux.
    #[serde(skip_serializing_if = "is_default")]
    pub name: Option<String>,

    /// Cores per pod that Flux should know of.
    #[serde(skip_serializing_if = "is_default")]
    pub cores: Option<i32>,

    /// Directory the command starts in, if not the image's own.
    #[serde(skip_serializing_if = "is_default")]
    pub working_dir: Option<String>,

    /// Show what Flux knows about itself instead of running the command.
    #[serde(skip_serializing_if = "is_default")]
    pub diagnostics: bool,

    /// The user that Flux and its jobs run as: `flux`, if not written and `commands.runFluxAsRoot` is not set.
    #[serde(skip_serializing_if = "is_default")]
    pub flux_user: FluxUser,

    /// TCP ports the container listens on.
    #[serde(skip_serializing_if = "is_default")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub ports: Vec<i32>,

    /// Environment of the container.
    #[serde(skip_serializing_if = "is_default")]
    pub environment: BTreeMap<String, String>,

    /// Variables exported to the command: the same as `environment`, over which they win.
    #[serde(skip_serializing_if = "is_default")]
    pub exports: BTreeMap<String, String>,

    /// Environment that comes from existing Secrets: variable name to Secret and key.
    #[serde(skip_serializing_if = "is_default")]
    pub secrets: BTreeMap<String, SecretKey>,

    /// Name of an existing Secret with the credentials to pull the image.
    #[serde(skip_serializing_if = "is_default")]
    pub image_pull_secret: Option<String>,

    /// The user's command line. Without it, and if the MiniCluster is not interactive, the container that runs Flux
    /// runs the RESTful server.
    #[serde(skip_serializing_if = "is_default")]
    pub command: Option<String>,

    /// The command launches Flux jobs itself.
    #[serde(skip_serializing_if = "is_default")]
    pub launcher: bool,

    /// Every line of the command is a job of one batch submission.
    #[serde(skip_serializing_if = "is_default")]
    pub batch: bool,

    /// With `batch`: the lines are a script of your own.
    #[serde(skip_serializing_if = "is_default")]
    pub batch_raw: bool,

    /// Directory for the output of batch jobs.
    #[serde(skip_serializing_if = "is_default")]
    pub logs: Option<String>,

    /// Pull the image at every start, even if the node has it.
    #[serde(skip_serializing_if = "is_default")]
    #[schemars(extend("default" = false))]
    pub pull_always: bool,

    /// This is the container that runs Flux. A sole container always is.
    #[serde(skip_serializing_if = "is_default")]
    pub run_flux: bool,

    /// Volumes of `spec.volumes` to mount, by their names.
    #[serde(skip_serializing_if = "is_default")]
    pub volumes: BTreeMap<String, ContainerVolume>,

    /// Volumes that exist already, by a name of your choice.
    #[serde(skip_serializing_if = "is_default")]
    pub existing_volumes: BTreeMap<String, ExistingVolume>,

    /// Hooks of the kubelet.
    #[serde(skip_serializing_if = "is_default")]
    pub life_cycle: LifeCycle,

    /// The older form of `lifeCycle.postStartExec`, which wins over it.
    #[serde(skip_serializing_if = "is_default")]
    pub post_start_exec: Option<String>,

    /// Requests and limits.
    #[serde(skip_serializing_if = "is_default")]
    pub resources: Resources,

    /// Shell around the command.
    #[serde(skip_serializing_if = "is_default")]
    pub commands: Commands,

    /// Security context of the container.
    #[serde(skip_serializing_if = "is_default")]
    pub security_context: SecurityContext,

    /// Shell that runs on every pod before `commands.pre`.
    #[serde(skip_serializing_if = "is_default")]
    pub pre_command: Option<String>,

    /// The older form of `flux.optionFlags`, which wins over it.
    #[serde(skip_serializing_if = "is_default")]
    pub flux_option_flags: Option<String>,

    /// The older form of `flux.logLevel`, which wins over it unless it is the default.
    #[serde(skip_serializing_if = "is_default")]
    pub flux_log_level: Option<i32>,
}

/// The user that Flux runs as.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
pub struct FluxUser {
    /// Name of the user; `flux` if not written.
    #[serde(skip_serializing_if = "is_default")]
    pub name: Option<String>,

    /// Numeric id of a user that the image does not have; 1000 if not written.
    #[serde(skip_serializing_if = "is_default")]
    pub uid: Option<i64>,
}

/// Where a container sees a volume of `spec.volumes`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
pub struct ContainerVolume {
    /// Path in the container.
    #[serde(skip_serializing_if = "is_default")]
    pub path: Option<String>,

    /// Mount without the right to write.
    #[serde(skip_serializing_if = "is_default")]
    #[schemars(extend("default" = false))]
    pub read_only: bool,

    /// The older spelling of `readOnly`.
    #[serde(rename = "readonly", skip_serializing_if = "is_default")]
    pub older_read_only: bool,
}

/// A volume that exists already, and where the container sees it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
pub struct ExistingVolume {
    /// Path in the container.
    #[serde(skip_serializing_if = "is_default")]
    pub path: Option<String>,

    /// A ConfigMap of the namespace.
    #[serde(skip_serializing_if = "is_default")]
    pub config_map_name: Option<String>,

    /// Which keys of the ConfigMap become which files.
    #[serde(skip_serializing_if = "is_default")]
    pub items: BTreeMap<String, String>,

    /// A PersistentVolumeClaim of the namespace.
    #[serde(skip_serializing_if = "is_default")]
    pub claim_name: Option<String>,

    /// A Secret of the namespace.
    #[serde(skip_serializing_if = "is_default")]
    pub secret_name: Option<String>,

    /// Mount without the right to write.
    #[serde(skip_serializing_if = "is_default")]
    #[schemars(extend("default" = false))]
    pub read_only: bool,
}

/// What a container asks for and may use at most.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
pub struct Resources {
    /// The most the container may use, by resource name.
    #[serde(skip_serializing_if = "is_default")]
    pub limits: ResourceList,

    /// What the scheduler must set aside for the container.
    #[serde(skip_serializing_if = "is_default")]
    pub requests: ResourceList,
}

/// Shell around the command.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
pub struct Commands {
    /// Run Flux as root: some storage drivers need it.
    #[serde(skip_serializing_if = "is_default")]
    #[schemars(extend("default" = false))]
    pub run_flux_as_root: bool,

    /// A wrapper written in front of the command.
    #[serde(skip_serializing_if = "is_default")]
    pub prefix: Option<String>,

    /// Runs before everything else.
    #[serde(skip_serializing_if = "is_default")]
    pub init: Option<String>,

    /// Runs on every pod before the broker starts.
    #[serde(skip_serializing_if = "is_default")]
    pub pre: Option<String>,

    /// Runs on every pod after the broker has ended.
    #[serde(skip_serializing_if = "is_default")]
    pub post: Option<String>,

    /// Runs on follower brokers only, before the broker starts.
    #[serde(skip_serializing_if = "is_default")]
    pub worker_pre: Option<String>,

    /// Runs on the lead broker only, before the broker starts.
    #[serde(skip_serializing_if = "is_default")]
    pub broker_pre: Option<String>,
}

/// Security context of a container.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
pub struct SecurityContext {
    /// Run with all rights of the node.
    #[serde(skip_serializing_if = "is_default")]
    pub privileged: bool,

    /// Linux capabilities to add.
    #[serde(skip_serializing_if = "is_default")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub add_capabilities: Vec<String>,
}
