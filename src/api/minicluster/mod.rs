//! `MiniCluster`: `flux-framework.org/v1alpha2`.
//!
//! The Flux Operator's type, every field of it, and fields of our own, which are all optional. What upstream's schema
//! accepts, this one accepts: no field of upstream's is narrower here. Absence and a zero value mean the same
//! (upstream's Go types cannot tell them apart), so readers use the methods, which know the defaults; a default holds
//! also where the section around it was never written.

mod bursting;
mod certificate;
mod commands;
mod container;
mod flux;
mod logging;
mod network;
mod pod;
mod quantity;
mod restful;
mod runner;
mod security;
mod status;
mod updates;
mod volume;
mod wait;

use std::collections::BTreeMap;

use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use self::bursting::{
    BurstCluster, BurstMode, BurstNetwork, BurstNetworkType, Bursting, DEFAULT_BROKER_PORT, LeadBroker, OnDemand,
};
pub use self::commands::Commands;
pub use self::container::Container;
pub use self::flux::{
    DEFAULT_CONNECT_TIMEOUT, DEFAULT_LOG_LEVEL, DEFAULT_VIEW_IMAGE, FluxContainer, FluxScheduler, FluxSpec,
};
use self::logging::Archive;
pub use self::logging::LoggingSpec;
pub use self::network::Network;
pub use self::pod::PodSpec;
pub(crate) use self::quantity::natural;
pub use self::quantity::{Amount, ResourceList, ResourceRequirements};
use self::restful::User;
pub use self::restful::{DEFAULT_RESTFUL_USER, FluxRestful};
pub use self::runner::{Runner, RunnerError};
pub use self::security::ContainerSecurity;
pub use self::status::{BurstStatus, LeadStatus, MiniClusterStatus, Phase, RecipientStatus};
pub use self::updates::UpdatePolicy;
pub use self::volume::{ClusterVolume, ContainerVolume, HOSTPATH};
pub use self::wait::WaitFor;
use super::names;
use super::schema::{absent_if_zero, is_default};

/// Longest run time of a MiniCluster that names none, in seconds: about a year.
pub const DEFAULT_DEADLINE_SECONDS: i64 = 31_500_000;

/// Kubernetes counts deadlines in nanoseconds, in 64 bits with a sign: one that is longer would be over at once.
///
/// Source: kubernetes `pkg/controller/job`, `pastActiveDeadline`.
const LONGEST_DEADLINE_SECONDS: i64 = i64::MAX / 1_000_000_000;

/// How often pods may fail before the Job gives up, where nothing is written.
pub(crate) const DEFAULT_BACKOFF_LIMIT: i32 = 100;

/// The name of the agent in `managedBy`.
pub const MANAGER: &str = "tributary.dev/minicluster-controller";

/// The longest name in `managedBy`, as in Jobs.
const LONGEST_MANAGER: usize = 63;

/// What Kubernetes takes as `managedBy` of a Job: a DNS-1123 subdomain, and a path.
/// Source: `IsDomainPrefixedPath`, apimachinery/pkg/util/validation/validation.go
const MANAGED_BY_RULE: &str = r#"self.matches(r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*/[A-Za-z0-9/_.~%!$&'()*+,;=:-]+$")"#;

/// A Flux instance of one or more pods: for one job and gone, or persistent, to connect to. With bursts it extends over
/// more than one Kubernetes cluster.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "flux-framework.org",
    version = "v1alpha2",
    kind = "MiniCluster",
    namespaced,
    status = "MiniClusterStatus",
    derive = "Default",
    derive = "PartialEq",
    shortname = "mc",
    category = "tributary",
    scale(
        spec_replicas_path = ".spec.size",
        status_replicas_path = ".status.size",
        label_selector_path = ".status.selector"
    ),
    printcolumn = r#"{"name": "Size", "type": "integer", "jsonPath": ".spec.size"}"#,
    printcolumn = r#"{"name": "Ready", "type": "integer", "jsonPath": ".status.ready"}"#,
    printcolumn = r#"{"name": "Phase", "type": "string", "jsonPath": ".status.phase"}"#,
    printcolumn = r#"{"name": "Exit", "type": "integer", "jsonPath": ".status.exitCode"}"#,
    printcolumn = r#"{"name": "Bursts", "type": "string", "jsonPath": ".status.burstsReady"}"#,
    printcolumn = r#"{"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"}"#,
    printcolumn = r#"{"name": "Reason", "type": "string",
                      "jsonPath": ".status.conditions[?(@.type==\"Ready\")].reason"}"#,
    printcolumn = r#"{"name": "Lead", "type": "string", "priority": 1, "jsonPath": ".status.lead.pod"}"#
)]
#[serde(default, rename_all = "camelCase")]
#[schemars(extend("required" = ["containers"], "x-kubernetes-validations" = [{
    "rule": "has(self.managedBy) == has(oldSelf.managedBy) && (!has(self.managedBy) || self.managedBy == oldSelf.managedBy)",
    "message": "managedBy: it cannot be written, changed or taken away later; delete the MiniCluster and make another one",
    "fieldPath": ".managedBy",
}]))]
pub struct MiniClusterSpec {
    /// The containers of every pod. Exactly one of them runs Flux.
    #[schemars(extend("x-kubernetes-list-type" = "atomic", "default" = null))]
    pub containers: Vec<Container>,

    /// Containers of one more pod beside the MiniCluster: databases and the like. That pod is replaced when they change; other
    /// scripts, and larger requests, wait for a restart.
    #[serde(skip_serializing_if = "is_default")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub services: Vec<Container>,

    /// Names and places of the pods in this cluster's network.
    #[serde(skip_serializing_if = "is_default")]
    pub network: Network,

    /// Labels of the Job.
    #[serde(skip_serializing_if = "is_default")]
    pub job_labels: BTreeMap<String, String>,

    /// Start Flux without its scripts that run a job to the end, for people who connect to it.
    #[serde(skip_serializing_if = "is_default")]
    #[schemars(extend("default" = false))]
    pub interactive: bool,

    /// The command launches Flux jobs itself: the same as `launcher` of the container that runs Flux.
    #[serde(skip_serializing_if = "is_default")]
    pub launcher: bool,

    /// Hold the MiniCluster back, or take its pods away; its bursts are released.
    #[serde(skip_serializing_if = "is_default")]
    pub suspend: bool,

    /// Who makes something of the MiniCluster: the name of a controller, as in Jobs of Kubernetes. Any other name than
    /// `tributary.dev/minicluster-controller` leaves it to that controller: the agent of this cluster makes no brokers, and
    /// writes no status. `kueue.x-k8s.io/multikueue` is for MultiKueue, which runs it in another cluster; the agent makes the
    /// Workload for that. It cannot be changed. Not written: the agent.
    #[serde(skip_serializing_if = "is_default")]
    #[schemars(length(max = LONGEST_MANAGER), extend("x-kubernetes-validations" = [{
        "rule": MANAGED_BY_RULE,
        "message": "managedBy: must be a path below a domain, like kueue.x-k8s.io/multikueue",
    }]))]
    pub managed_by: Option<String>,

    /// What becomes of the running instance when a change of the spec needs a new Job: `OnDelete` (the default) lets it
    /// run on and names the fields in the condition `RestartRequired`; `Recreate` starts it anew at once.
    #[serde(skip_serializing_if = "is_default")]
    pub updates: UpdatePolicy,

    /// Options of Flux.
    #[serde(skip_serializing_if = "is_default")]
    pub flux: FluxSpec,

    /// What is printed.
    #[serde(skip_serializing_if = "is_default")]
    pub logging: LoggingSpec,

    /// Flux state to start from.
    #[serde(skip_serializing_if = "is_default")]
    pub archive: Archive,

    /// Containers of a pod see each other's processes.
    #[serde(skip_serializing_if = "is_default")]
    pub share_process_namespace: bool,

    /// Delete the MiniCluster when its lead broker's pod has ended.
    #[serde(skip_serializing_if = "is_default")]
    #[schemars(extend("default" = false))]
    pub cleanup: bool,

    /// Delete the MiniCluster, with all that was made for it, so many seconds after it has ended; never, if not written.
    #[serde(skip_serializing_if = "is_default")]
    #[schemars(range(min = 0))]
    pub ttl_seconds_after_finished: Option<i32>,

    /// Number of pods, one broker each, in this cluster. Unless `minSize` says less, all of them must be there before
    /// Flux starts.
    #[serde(skip_serializing_if = "is_default")]
    #[schemars(extend("default" = 1))]
    pub size: Option<i32>,

    /// The most pods the MiniCluster can be scaled to in this cluster; `size`, if not written.
    #[serde(skip_serializing_if = "is_default", deserialize_with = "absent_if_zero")]
    pub max_size: Option<i32>,

    /// How often pods may fail before the Job gives up; 100, if not written.
    #[serde(skip_serializing_if = "is_default")]
    pub backoff_limit: Option<i32>,

    /// Number of brokers that must be there before Flux starts; `size`, if not written.
    #[serde(skip_serializing_if = "is_default", deserialize_with = "absent_if_zero")]
    pub min_size: Option<i32>,

    /// Number of tasks of the command over all pods. With at least one per pod it runs on all of them; 0 leaves the
    /// number to Flux.
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

    /// Serve the Flux RESTful API where there is no command: `{}` is enough.
    #[serde(skip_serializing_if = "is_default")]
    pub flux_restful: Option<FluxRestful>,

    /// Users of that server, beside its first one.
    #[serde(skip_serializing_if = "is_default")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub users: Vec<User>,

    /// Volumes declared for all containers, as old examples write them; a container's volume of the same name that
    /// names no source takes its source from here.
    #[serde(skip_serializing_if = "is_default")]
    pub volumes: BTreeMap<String, ClusterVolume>,

    /// When the command has ended well, remove the volumes with a `capacity`, and the pods, with the Job, which use them;
    /// so it is, if not written.
    #[serde(skip_serializing_if = "is_default")]
    pub cleanup_volumes: Option<bool>,
}

/// A limit of so many seconds; `None`: there is none, since it is 0, or more than Kubernetes can count.
pub fn within_count(seconds: i64) -> Option<i64> {
    (1..=LONGEST_DEADLINE_SECONDS).contains(&seconds).then_some(seconds)
}

/// Whether a name in `managedBy` is not the agent's.
pub fn is_another(manager: &str) -> bool {
    !manager.is_empty() && manager != MANAGER
}

/// Whether Kubernetes would take a name as that of a manager: a DNS-1123 subdomain and a path, in at most 63 characters.
pub fn is_manager(name: &str) -> bool {
    let inner = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    let label =
        |label: &str| label.starts_with(inner) && label.ends_with(inner) && label.chars().all(|c| inner(c) || c == '-');
    let path = |c: char| c.is_ascii_alphanumeric() || "/_.~%!$&'()*+,;=:-".contains(c);
    name.len() <= LONGEST_MANAGER
        && name
            .split_once('/')
            .is_some_and(|(domain, rest)| domain.split('.').all(label) && !rest.is_empty() && rest.chars().all(path))
}

impl MiniClusterSpec {
    /// The controller that the MiniCluster is left to, if that is not the agent.
    pub fn left_to(&self) -> Option<&str> {
        self.managed_by.as_deref().filter(|manager| is_another(manager))
    }

    /// Number of pods in this cluster; 1 if not written. Negative or zero is for validation to refuse.
    pub fn size(&self) -> i32 {
        self.size.unwrap_or(1)
    }

    /// The most pods in this cluster: what the host list and R make room for.
    pub fn max_size(&self) -> i32 {
        self.max_size.unwrap_or_else(|| self.size())
    }

    /// Tasks of the command; 1 if not written, 0 to leave the number to Flux.
    pub fn tasks(&self) -> i32 {
        self.tasks.unwrap_or(1)
    }

    /// Longest run time, in seconds.
    pub fn deadline_seconds(&self) -> i64 {
        self.deadline_seconds.unwrap_or(DEFAULT_DEADLINE_SECONDS)
    }

    /// Seconds after which its Job is ended; `None`: never, since it says 0, or more than Kubernetes can count.
    pub fn deadline(&self) -> Option<i64> {
        within_count(self.deadline_seconds())
    }

    /// The Job's backoff limit.
    pub fn backoff_limit(&self) -> i32 {
        self.backoff_limit.unwrap_or(DEFAULT_BACKOFF_LIMIT)
    }

    /// Name of the Service that gives the pods their DNS names, for a MiniCluster called `name`.
    pub fn headless_name<'a>(&'a self, name: &'a str) -> &'a str {
        self.network.headless_name.as_deref().unwrap_or(name)
    }

    /// The command of the container that runs Flux launches its own jobs, wherever that is written.
    pub fn is_launcher(&self, runner: &Container) -> bool {
        self.launcher || runner.launcher
    }

    /// The declared bursts in order, each with its name, for a root called `root`.
    pub fn bursts<'a>(&'a self, root: &'a str) -> impl Iterator<Item = (String, &'a BurstCluster)> {
        self.flux.bursting.clusters.iter().enumerate().map(move |(position, cluster)| {
            (cluster.name.clone().unwrap_or_else(|| names::default_burst(root, position)), cluster)
        })
    }

    /// The directory of the node behind a volume that names no source of its own, if the MiniCluster declares one.
    pub fn declared_host_path(&self, volume: &str) -> Option<&str> {
        self.volumes.get(volume).filter(|volume| !volume.is_made())?.path.as_deref()
    }

    /// The volumes that PersistentVolumes are made for.
    pub fn made_volumes(&self) -> impl Iterator<Item = (&str, &ClusterVolume)> {
        self.volumes.iter().filter(|(_, volume)| volume.is_made()).map(|(name, volume)| (name.as_str(), volume))
    }

    /// Whether there are such volumes, which go when the command has ended well.
    pub fn removes_volumes(&self) -> bool {
        self.cleanup_volumes.unwrap_or(true) && self.made_volumes().next().is_some()
    }
}

#[cfg(test)]
mod tests;
