//! Containers of the pods: the one that runs Flux, those beside it, and those of the service pod.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::commands::{Commands, LifeCycle};
use super::quantity::ResourceRequirements;
use super::security::ContainerSecurity;
use super::volume::ContainerVolume;
use crate::schema::{absent_if_zero, is_default};

/// Image of a container that names none.
pub(crate) const DEFAULT_IMAGE: &str = "ghcr.io/rse-ops/accounting:app-latest";

/// Where batch jobs write their output if `logs` is not written.
pub(crate) const DEFAULT_LOGS: &str = "/tmp/fluxout";

/// One container of the pods.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
pub struct Container {
    /// Name of an existing Secret with the credentials to pull the image.
    #[serde(skip_serializing_if = "is_default", deserialize_with = "absent_if_zero")]
    pub image_pull_secret: Option<String>,

    /// Image of the container. The application's own; Flux is added to it, unless `flux.container.disable` is set.
    #[serde(skip_serializing_if = "is_default", deserialize_with = "absent_if_zero")]
    #[schemars(extend("default" = DEFAULT_IMAGE))]
    pub image: Option<String>,

    /// Directory the command starts in, if not the image's own.
    #[serde(skip_serializing_if = "is_default", deserialize_with = "absent_if_zero")]
    pub working_dir: Option<String>,

    /// Name of the container. Required, except for the one that runs Flux, which takes the MiniCluster's name.
    #[serde(skip_serializing_if = "is_default", deserialize_with = "absent_if_zero")]
    pub name: Option<String>,

    /// The user's command line. In the container that runs Flux it becomes a Flux job; without it the instance stays
    /// up for people to connect.
    #[serde(skip_serializing_if = "is_default", deserialize_with = "absent_if_zero")]
    pub command: Option<String>,

    /// Pull the image at every start, even if the node has it.
    #[serde(skip_serializing_if = "is_default")]
    #[schemars(extend("default" = false))]
    pub pull_always: bool,

    /// When the image is pulled: `Always`, `IfNotPresent` or `Never`. `pullAlways` wins over it.
    #[serde(skip_serializing_if = "is_default", deserialize_with = "absent_if_zero")]
    pub image_pull_policy: Option<String>,

    /// TCP ports the container listens on.
    #[serde(skip_serializing_if = "is_default")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub ports: Vec<i32>,

    /// Environment of the container.
    #[serde(skip_serializing_if = "is_default")]
    pub environment: BTreeMap<String, String>,

    /// Environment that comes from existing Secrets: variable name to Secret and key.
    #[serde(skip_serializing_if = "is_default")]
    pub secrets: BTreeMap<String, SecretKey>,

    /// The command launches Flux jobs itself and is therefore not submitted as one.
    #[serde(skip_serializing_if = "is_default")]
    pub launcher: bool,

    /// Every line of the command is a job of one batch submission.
    #[serde(skip_serializing_if = "is_default")]
    pub batch: bool,

    /// With `batch`: the lines are a script of your own, not wrapped in `flux submit`.
    #[serde(skip_serializing_if = "is_default")]
    pub batch_raw: bool,

    /// Directory for the output of batch jobs; /tmp/fluxout if not written.
    #[serde(skip_serializing_if = "is_default", deserialize_with = "absent_if_zero")]
    pub logs: Option<String>,

    /// This is the container that runs Flux. Exactly one does; a sole container always does.
    #[serde(skip_serializing_if = "is_default")]
    pub run_flux: bool,

    /// Leave the image's entrypoint alone instead of waiting for Flux and running `command`. It may serve for ever: such a
    /// container is a sidecar of Kubernetes, which is started again when it ends, and ended when Flux has.
    #[serde(skip_serializing_if = "is_default")]
    pub no_wrap_entrypoint: bool,

    /// Existing volumes to mount, by a name of your choice. A name used in two containers is one volume.
    #[serde(skip_serializing_if = "is_default")]
    pub volumes: BTreeMap<String, ContainerVolume>,

    /// Older name of `volumes`, still found in examples. `volumes` wins where both have a name.
    #[serde(skip_serializing_if = "is_default")]
    pub existing_volumes: BTreeMap<String, ContainerVolume>,

    /// Hooks of the kubelet.
    #[serde(skip_serializing_if = "is_default")]
    pub life_cycle: LifeCycle,

    /// Requests and limits. The GPUs that Flux schedules come from here too; the cores only where there are bursts and `cores`
    /// is not written.
    #[serde(skip_serializing_if = "is_default")]
    pub resources: ResourceRequirements,

    /// Shell around the command.
    #[serde(skip_serializing_if = "is_default")]
    pub commands: Commands,

    /// Security context of the container.
    #[serde(skip_serializing_if = "is_default")]
    pub security_context: ContainerSecurity,

    /// Shell that runs on every pod before `commands.pre`.
    #[serde(skip_serializing_if = "is_default", deserialize_with = "absent_if_zero")]
    pub pre_command: Option<String>,

    /// Cores per pod that Flux should know of. If not written, those that Flux finds on the lead's node; with bursts, which have
    /// to know them before, the cpu request in whole cores, or 1.
    #[serde(skip_serializing_if = "is_default", deserialize_with = "absent_if_zero")]
    pub cores: Option<i32>,

    /// The user that Flux and its jobs run as; the container's own, if not written. The shell of `commands` still runs as the
    /// container's user, which has to be root to become another one.
    #[serde(skip_serializing_if = "is_default")]
    pub flux_user: FluxUser,

    /// Show in the log what Flux knows about itself, instead of running the command, and stay up for people to look
    /// around. The lead does not wait for other brokers then.
    #[serde(skip_serializing_if = "is_default")]
    pub diagnostics: bool,
}

/// One key of an existing Secret.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SecretKey {
    /// Name of the Secret.
    pub name: String,

    /// Key in the Secret.
    pub key: String,
}

/// The user that Flux runs as; it is made where the image has none of this name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
pub struct FluxUser {
    /// Name of the user; `flux` if not written.
    #[serde(skip_serializing_if = "is_default", deserialize_with = "absent_if_zero")]
    pub name: Option<String>,

    /// Numeric id of a user that the image does not have; 1000 if not written.
    #[serde(skip_serializing_if = "is_default")]
    pub uid: Option<i64>,
}

impl Container {
    /// The image, or upstream's default.
    pub fn image(&self) -> &str {
        self.image.as_deref().unwrap_or(DEFAULT_IMAGE)
    }

    /// `imagePullPolicy` of the rendered container: `pullAlways`, else what is written, else `IfNotPresent`.
    pub fn pull_policy(&self) -> &str {
        pull_policy(self.pull_always, self.image_pull_policy.as_deref())
    }

    /// Directory for the output of batch jobs.
    pub fn logs(&self) -> &str {
        self.logs.as_deref().unwrap_or(DEFAULT_LOGS)
    }

    /// Volumes under either name, in order of their names.
    pub fn volumes(&self) -> BTreeMap<&str, &ContainerVolume> {
        self.existing_volumes.iter().chain(&self.volumes).map(|(name, volume)| (name.as_str(), volume)).collect()
    }
}

/// `Always` if asked for, else what is written, else `IfNotPresent`.
pub(super) fn pull_policy(always: bool, written: Option<&str>) -> &str {
    if always { "Always" } else { written.unwrap_or("IfNotPresent") }
}
