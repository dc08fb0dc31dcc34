//! `FluxJob`: one run of one command, which waits for room and then gets a MiniCluster of its own.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::burst::BurstRefusal;
use super::duration::Lasting;
use super::flux_setup::Usage;
use super::minicluster::Amount;
use super::schema::is_default;
use tributary_contract::word::{Word, shown_by_its_words};

/// One run of one command: a user's object. It waits in the queue of its namespace's FluxSetup; when there is room for the
/// whole of it, a MiniCluster of the same name is made, which it owns. Once it is admitted, its spec stays as it is, but for
/// `suspend`, `priorityClassName`, `cleanup` and `ttlAfterFinished`.
#[derive(CustomResource, Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "tributary.dev",
    version = "v1alpha1",
    kind = "FluxJob",
    plural = "fluxjobs",
    shortname = "fj",
    category = "tributary",
    namespaced,
    status = "FluxJobStatus",
    derive = "Default",
    derive = "PartialEq",
    printcolumn = r#"{"name":"Phase","type":"string","jsonPath":".status.phase"}"#,
    printcolumn = r#"{"name":"Result","type":"string","jsonPath":".status.result"}"#,
    printcolumn = r#"{"name":"Size","type":"integer","jsonPath":".spec.size"}"#,
    printcolumn = r#"{"name":"Peer","type":"string","jsonPath":".status.peer","priority":1}"#,
    printcolumn = r#"{"name":"Priority","type":"string","jsonPath":".spec.priorityClassName"}"#,
    printcolumn = r#"{"name":"Exit","type":"integer","jsonPath":".status.exitCode","priority":1}"#,
    printcolumn = r#"{"name":"Message","type":"string","jsonPath":".status.message","priority":1}"#,
    printcolumn = r#"{"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp"}"#
)]
#[serde(rename_all = "camelCase", default)]
#[schemars(extend("x-kubernetes-validations" = [{
    "rule": "has(self.miniCluster) || has(self.image) && self.image != '' && has(self.command) && self.command != ''",
    "message": "image and command, or miniCluster with a container that has them, are required",
}]))]
pub struct FluxJobSpec {
    /// Image of the application; else that of the container that runs Flux in `miniCluster`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub image: String,
    /// The command line: it is run as one Flux job over all brokers. Else that of the container that runs Flux in
    /// `miniCluster`, or its `commands.script`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub command: String,
    /// Brokers, one per pod.
    #[schemars(range(min = 1), extend("default" = 1))]
    pub size: u32,
    /// Tasks of the command; Flux's choice if it is not written.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub tasks: Option<u32>,
    /// What each broker's container requests, and may use at most.
    #[serde(skip_serializing_if = "is_default")]
    pub resources: JobResources,
    /// PriorityClass of it and of its pods, one that the namespace's FluxSetup allows: when there is little room, the higher
    /// value goes first. Not written: the PriorityClass that is the cluster's default, else 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub priority_class_name: Option<String>,
    /// It holds no room and nothing of it runs: one that waits does not stand in line meanwhile, and one that runs is taken
    /// back and begins anew later.
    #[serde(skip_serializing_if = "is_default")]
    pub suspend: bool,
    /// Whether some of its brokers, or all of them, may run in another cluster, if the namespace's FluxSetup lets FluxJobs
    /// overflow. Where its policy is `Split`, what its tasks say to each other must get from one cluster to the other: most
    /// MPI programs cannot. Where it is `Whole`, all of it runs in one cluster, which must have what it needs: files, Secrets,
    /// claims.
    #[serde(skip_serializing_if = "is_default")]
    pub allow_burst: bool,
    /// How long it may run, from a second on: `1h30m`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("x-kubernetes-validations" = [{
        "rule": "duration(self) >= duration('1s') && duration(self) <= duration('87600h')",
        "message": "spec.timeLimit: must be a duration from 1s to 87600h, like 90s, 5m or 1h30m",
    }]))]
    pub time_limit: Option<Lasting>,
    /// Directory the command starts in, if not the image's own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub working_dir: Option<String>,
    /// Environment of the command.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub environment: BTreeMap<String, String>,
    /// Anything else of the MiniCluster's spec (`flux`, `logging`, `pod`, `volumes`, `network`, …), as it is written there.
    /// What this FluxJob says itself wins.
    #[serde(skip_serializing_if = "serde_json::Map::is_empty")]
    #[schemars(extend("x-kubernetes-preserve-unknown-fields" = true))]
    pub mini_cluster: serde_json::Map<String, serde_json::Value>,
    /// What is deleted when it has finished.
    #[serde(skip_serializing_if = "is_default")]
    pub cleanup: Cleanup,
    /// How long after its end it is deleted, with all that it owns: `24h`. Without it, it stays; but the logs of one that was
    /// sent to a peer stay there for a day.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ttl_after_finished: Option<Lasting>,
}

/// What one broker's container requests.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct JobResources {
    /// Cores.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu: Option<Amount>,
    /// Memory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory: Option<Amount>,
    /// GPUs of the kind that `gpuResource` names.
    #[serde(skip_serializing_if = "is_default")]
    pub gpus: u32,
    /// Name of the GPUs' resource: `nvidia.com/gpu` if it is not written.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gpu_resource: Option<String>,
}

/// What is deleted when a FluxJob has finished.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Cleanup {
    /// Nothing: the MiniCluster and its finished pods stay, and with them the logs.
    #[default]
    None,
    /// The MiniCluster, and with it pods and logs.
    MiniCluster,
    /// A word of a newer version: nothing is deleted.
    #[serde(untagged)]
    #[schemars(skip)]
    Unknown(Word),
}

/// Where a FluxJob is in its life.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct FluxJobStatus {
    /// Where it is.
    #[schemars(with = "String")]
    pub phase: JobPhase,
    /// How it ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub result: Option<JobResult>,
    /// Exit code of the command.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    /// One sentence for people.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// Name of its MiniCluster.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mini_cluster: Option<String>,
    /// The command that shows what it wrote. Of one that was sent to a peer and ended, a comment once nothing of it is kept
    /// there any more.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub logs: String,
    /// The peer where some or all of its brokers are, or that is asked to take them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub peer: Option<String>,
    /// How it was split over clusters, since it did not fit here.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub split: Option<JobSplit>,
    /// Where it was sent as a whole, since it did not fit here.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sent: Option<JobSent>,
    /// Why it is being taken back from where it was placed, to stand in line again.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub recalled: Option<String>,
    /// That peers did not take it, and it came back into the line. It starts here meanwhile if there is room.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub returned: Option<JobReturn>,
    /// When the queue let it start.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub admitted: Option<Time>,
    /// What the queue let it start with. It is held to that, whatever its spec says later.
    #[serde(skip_serializing_if = "is_default")]
    pub holds: Option<Usage>,
    /// When its command could run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub started: Option<Time>,
    /// When it ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub finished: Option<Time>,
    /// `Valid`: whether a MiniCluster can be made of it. `Admitted`: whether the queue let it start. `Running`: whether its
    /// instance is up. `Finished`: whether it has ended; its reason is `Succeeded`, `Failed`, `Refused` (it never ran, and the
    /// message says why) or `Cancelled` (its MiniCluster was deleted).
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
    /// `metadata.generation` this status answers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
}

/// A FluxJob that runs in two clusters. Once decided, sizes stay as they are; where the other part is, is up to its Burst.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct JobSplit {
    /// Brokers here.
    pub local: u32,
    /// Brokers elsewhere.
    pub away: u32,
    /// The peer that runs these, or is asked to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub peer: Option<String>,
    /// Phase of their Burst.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub phase: String,
    /// Whether they were all there once: then it stays split, whatever becomes of them.
    #[serde(skip_serializing_if = "is_default")]
    pub joined: bool,
    /// Since when no peer takes them. After a minute it is taken back, and stands in line again.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub alone_since: Option<Time>,
    /// Since when their pods run at a peer in contact, and the instance here is up, without all of them there. After 10 minutes
    /// it is taken back, and not split onto this peer again.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub joining_since: Option<Time>,
}

/// A FluxJob that was sent to a peer as a whole. Which peer that is, is up to its Burst.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct JobSent {
    /// The peer that runs it, or is asked to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub peer: Option<String>,
    /// Name of its Burst here.
    pub burst: String,
    /// Phase of that; empty until it was seen.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub phase: String,
    /// Namespace of its MiniCluster there.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub namespace: String,
    /// Name of its MiniCluster there.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub mini_cluster: String,
}

/// A FluxJob that came back into the line.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct JobReturn {
    /// How often.
    pub times: u32,
    /// When it is offered to peers again.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub again: Option<Time>,
    /// Why it came back.
    pub why: String,
    /// Peers whose owners threw it out, or the part of it that they had, or where that part never joined. It is not sent to
    /// them again until what is sent, their ClusterPeer, or the annotation `tributary.dev/retry` of this FluxJob changes.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["peer"]))]
    pub evictions: Vec<BurstRefusal>,
    /// The annotation `tributary.dev/retry` of its last Burst, if that had one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry: Option<String>,
}

/// Where a FluxJob is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum JobPhase {
    /// Nobody has looked at it yet.
    #[default]
    Requested,
    /// In line.
    Waiting,
    /// It may start: its MiniCluster is being made.
    Ready,
    /// Its instance is up.
    Running,
    /// It has ended.
    Finished,
    /// A word of a newer version.
    #[serde(untagged)]
    Unknown(Word),
}

shown_by_its_words!(JobPhase);

/// How a FluxJob ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum JobResult {
    /// The command ended with 0.
    Succeeded,
    /// It did not, or could not be run.
    Failed,
    /// A word of a newer version.
    #[serde(untagged)]
    Unknown(Word),
}

impl Default for FluxJobSpec {
    fn default() -> Self {
        Self {
            image: String::new(),
            command: String::new(),
            size: 1,
            tasks: None,
            resources: JobResources::default(),
            priority_class_name: None,
            suspend: false,
            allow_burst: false,
            time_limit: None,
            working_dir: None,
            environment: BTreeMap::new(),
            mini_cluster: serde_json::Map::new(),
            cleanup: Cleanup::default(),
            ttl_after_finished: None,
        }
    }
}
