//! `MiniCluster`: `flux-framework.org/v1alpha1`, the version before.
//!
//! The whole type as upstream last had it, and the fields of its earlier forms that examples still show (`podLabels`,
//! `class`, `preCommand`, `fluxOptionFlags`, …). Nothing is carried out from here: objects are stored as v1alpha2, and
//! [`convert`](fn@convert) goes both ways without a loss.
//!
//! | file | what is in it |
//! |---|---|
//! | `container`, `flux`, `storage` | the parts of the type |
//! | `rules` | which field becomes which, where that is not the same name |
//! | `kept` | what the other version has no field for, as an annotation |
//! | `guard` | a policy of the API server for as long as nobody converts |
//! | `shape` | defaults and unknown fields, as the API server treats them |

mod container;
mod convert;
mod flux;
mod guard;
mod kept;
mod rules;
mod shape;
mod storage;

use std::collections::BTreeMap;

use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use self::container::{Commands, Container, ContainerVolume};
pub use self::convert::{KEPT, V1ALPHA1, V1ALPHA2, convert, convert_where, without_spec};
pub(crate) use self::flux::FluxSpec;
pub use self::flux::{BurstedCluster, Bursting};
pub use self::guard::guard;
pub(crate) use self::storage::Volume;
use super::minicluster::{Archive, DEFAULT_DEADLINE_SECONDS, FluxRestful, MiniClusterStatus, ResourceList, User};
use super::schema::is_default;

/// The MiniCluster of v1alpha1: read and written as such, stored as v1alpha2.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "flux-framework.org",
    version = "v1alpha1",
    kind = "MiniCluster",
    namespaced,
    status = "MiniClusterStatus",
    storage = false,
    derive = "Default",
    derive = "PartialEq",
    shortname = "mc",
    scale(
        spec_replicas_path = ".spec.size",
        status_replicas_path = ".status.size",
        label_selector_path = ".status.selector"
    ),
    printcolumn = r#"{"name": "Size", "type": "integer", "jsonPath": ".spec.size"}"#,
    printcolumn = r#"{"name": "Ready", "type": "integer", "jsonPath": ".status.ready"}"#,
    printcolumn = r#"{"name": "Phase", "type": "string", "jsonPath": ".status.phase"}"#,
    printcolumn = r#"{"name": "Exit", "type": "integer", "jsonPath": ".status.exitCode"}"#,
    printcolumn = r#"{"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"}"#
)]
#[serde(default, rename_all = "camelCase")]
#[schemars(extend("required" = ["containers"]))]
pub struct MiniClusterSpec {
    /// The containers of every pod. Exactly one of them runs Flux.
    #[schemars(extend("x-kubernetes-list-type" = "atomic", "default" = null))]
    pub containers: Vec<Container>,

    /// Containers of one more pod beside the MiniCluster.
    #[serde(skip_serializing_if = "is_default")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub services: Vec<Container>,

    /// The headless Service. Its name is the MiniCluster's, if not written.
    #[serde(skip_serializing_if = "is_default")]
    pub network: Network,

    /// Users of the RESTful server, beside its first one.
    #[serde(skip_serializing_if = "is_default")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub users: Vec<User>,

    /// Labels of the Job.
    #[serde(skip_serializing_if = "is_default")]
    pub job_labels: BTreeMap<String, String>,

    /// Labels of each pod: the older form of `pod.labels`, which wins where both have a key.
    #[serde(skip_serializing_if = "is_default")]
    pub pod_labels: BTreeMap<String, String>,

    /// An instance for people to connect to, without a command and without a server.
    #[serde(skip_serializing_if = "is_default")]
    #[schemars(extend("default" = false))]
    pub interactive: bool,

    /// Options of Flux.
    #[serde(skip_serializing_if = "is_default")]
    pub flux: FluxSpec,

    /// Volumes to make, which containers mount by their names.
    #[serde(skip_serializing_if = "is_default")]
    pub volumes: BTreeMap<String, Volume>,

    /// What is printed.
    #[serde(skip_serializing_if = "is_default")]
    pub logging: Logging,

    /// Flux state to start from.
    #[serde(skip_serializing_if = "is_default")]
    pub archive: Archive,

    /// Containers of a pod see each other's processes.
    #[serde(skip_serializing_if = "is_default")]
    pub share_process_namespace: bool,

    /// The server that a MiniCluster without command runs.
    #[serde(skip_serializing_if = "is_default")]
    pub flux_restful: FluxRestful,

    /// Remove pods, claims and volumes that were made for `volumes` when the Job has ended.
    #[serde(skip_serializing_if = "is_default")]
    #[schemars(extend("default" = false))]
    pub cleanup: Option<bool>,

    /// Number of pods, one broker each.
    #[serde(skip_serializing_if = "is_default")]
    #[schemars(extend("default" = 1))]
    pub size: Option<i32>,

    /// The most pods the MiniCluster can be scaled to.
    #[serde(skip_serializing_if = "is_default")]
    pub max_size: Option<i32>,

    /// Number of tasks of the command over all pods.
    #[serde(skip_serializing_if = "is_default")]
    #[schemars(extend("default" = 1))]
    pub tasks: Option<i32>,

    /// Longest run time in seconds; about a year, if not written. 0 is no limit, and so is more than 9223372036 (292 years).
    #[serde(skip_serializing_if = "is_default")]
    #[schemars(extend("default" = DEFAULT_DEADLINE_SECONDS))]
    pub deadline_seconds: Option<i64>,

    /// Properties of every pod.
    #[serde(skip_serializing_if = "is_default")]
    pub pod: PodSpec,
}

/// Network settings.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
pub struct Network {
    /// Name of the headless Service.
    #[serde(skip_serializing_if = "is_default")]
    pub headless_name: Option<String>,
}

/// How much is printed, and how errors are treated.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
pub struct Logging {
    /// Print nothing but the output of the job.
    #[serde(skip_serializing_if = "is_default")]
    #[schemars(extend("default" = false))]
    pub quiet: bool,

    /// End with an error as soon as any line of the entrypoint fails.
    #[serde(skip_serializing_if = "is_default")]
    #[schemars(extend("default" = true))]
    pub strict: Option<bool>,

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

/// Settings of every pod.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
pub struct PodSpec {
    /// Annotations of each pod.
    #[serde(skip_serializing_if = "is_default")]
    pub annotations: BTreeMap<String, String>,

    /// Labels of each pod.
    #[serde(skip_serializing_if = "is_default")]
    pub labels: BTreeMap<String, String>,

    /// Service account the pods run as.
    #[serde(skip_serializing_if = "is_default")]
    pub service_account_name: Option<String>,

    /// Labels a node must have.
    #[serde(skip_serializing_if = "is_default")]
    pub node_selector: BTreeMap<String, String>,

    /// What a pod costs beyond its containers (overhead).
    #[serde(skip_serializing_if = "is_default")]
    pub resources: ResourceList,
}

#[cfg(test)]
mod tests;
