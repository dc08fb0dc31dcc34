//! `HostedBurst`: a burst of another cluster's MiniCluster that runs here (provider side).

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, MicroTime, Time};
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::budget::Spent;
use super::burst::{default_drain, default_lease};
use super::duration::Lasting;
use super::labels;
use super::node_group::ScaleUp;
pub use tributary_contract::BurstPhase;
use tributary_contract::LeadAddress;

use super::schema::is_default;

/// A burst of a peer's MiniCluster that this cluster hosts. Made by the agent after admission; it owns the hosted
/// MiniCluster, its Secret and its lead Service. Deleting it evicts the burst: the peer is told and does not offer it
/// again.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "tributary.dev",
    version = "v1alpha1",
    kind = "HostedBurst",
    plural = "hostedbursts",
    shortname = "hb",
    category = "tributary",
    namespaced,
    status = "HostedBurstStatus",
    derive = "Default",
    derive = "PartialEq",
    printcolumn = r#"{"name":"Peer","type":"string","jsonPath":".spec.peer"}"#,
    printcolumn = r#"{"name":"Root","type":"string","jsonPath":".spec.root.name"}"#,
    printcolumn = r#"{"name":"Size","type":"integer","jsonPath":".spec.size"}"#,
    printcolumn = r#"{"name":"Ready","type":"integer","jsonPath":".status.readyBrokers"}"#,
    printcolumn = r#"{"name":"Phase","type":"string","jsonPath":".status.phase"}"#,
    printcolumn = r#"{"name":"Whole","type":"boolean","priority":1,"jsonPath":".spec.whole"}"#,
    printcolumn = r#"{"name":"Exit","type":"integer","priority":1,"jsonPath":".status.run.exitCode"}"#,
    printcolumn = r#"{"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp"}"#
)]
#[serde(rename_all = "camelCase", default)]
pub struct HostedBurstSpec {
    /// Name of the peer whose burst this is.
    pub peer: String,
    /// UID of the peer's cluster.
    #[serde(rename = "rootClusterUID")]
    pub root_cluster_uid: String,
    /// The root MiniCluster over there.
    pub root: RootReference,
    /// UID of the Burst object over there.
    #[serde(rename = "burstUID")]
    pub burst_uid: String,
    /// Generation of the Burst this spec is of.
    pub generation: i64,
    /// Name of the slot: of the hosted MiniCluster and its Job.
    pub slot: String,
    /// Brokers wanted now.
    pub size: u32,
    /// Brokers declared: what admission reserves.
    pub max_size: u32,
    /// Cores per broker.
    pub cores: u32,
    /// GPUs per broker.
    pub gpus: u32,
    /// Canonical text of the rank map.
    pub rank_map: String,
    /// SHA-256 of it, as this cluster computed it.
    pub rank_map_digest: String,
    /// SHA-256 of the curve certificate.
    pub credential_digest: String,
    /// Where the lead broker is reached from here.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lead: Option<LeadAddress>,
    /// The lead broker is reached through the agents' own connection: the lead Service points to this cluster's agent.
    #[serde(skip_serializing_if = "is_default")]
    pub tunnel: bool,
    /// It is all of an instance, its lead broker included, and ends by itself.
    #[serde(skip_serializing_if = "is_default")]
    pub whole: bool,
    /// Flux `major.minor`, when the root knows it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub flux_version: Option<String>,
    /// Architecture of the lead broker's node (`amd64`, `arm64`), once it is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub arch: Option<String>,
    /// BurstTemplate, as admitted.
    #[schemars(extend("x-kubernetes-preserve-unknown-fields" = true), with = "serde_json::Map<String, serde_json::Value>")]
    pub template: serde_json::Value,
    /// How long this burst outlives the contact with its root.
    #[serde(default = "default_lease")]
    pub lease: Lasting,
    /// How long leaving brokers may take to drain.
    #[serde(default = "default_drain")]
    pub drain: Lasting,
    /// Its root wants the images pulled ahead.
    #[serde(skip_serializing_if = "is_default")]
    pub warm: bool,
    /// Who uses it, by the word of the root: a label of what is made for it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// Its pods bear the labels that say whose they are. Those of older agents do not, and get none while they run.
    #[serde(skip_serializing_if = "is_default")]
    pub pod_labels: bool,
    /// Nodes that it may bring. Unset: there was room for it on nodes that were there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scale_up: Option<ScaleUp>,
    /// The queue of Kueue that its Job waits in. Unset: its Job starts at once.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queue: Option<HostedQueue>,
    /// How long it may be here by the import policy as it was last: that counts once its ClusterPeer has no import any more.
    /// Unset: no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_duration: Option<Lasting>,
}

/// A queue of Kueue that the Job of a hosted burst waits in, as it was when the burst was admitted.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct HostedQueue {
    /// Name of the LocalQueue, in the namespace of the HostedBurst.
    pub name: String,
    /// How long its Job may wait there. Unset: without limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wait: Option<Lasting>,
}

/// Where the Job of a hosted burst stands in its queue.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct QueueStanding {
    /// Since when it waits. Unset: it does not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub waits_since: Option<Time>,
    /// When it was started last, after it had waited.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub started: Option<Time>,
}

/// The root MiniCluster of a hosted burst.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct RootReference {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its UID.
    pub uid: String,
    /// UID of its Job.
    pub incarnation: String,
}

/// How a whole instance fares where it runs.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct BurstRun {
    /// Namespace of its MiniCluster there.
    pub namespace: String,
    /// Name of its MiniCluster there, of its Job, and of the container that has the logs.
    pub mini_cluster: String,
    /// Whether all its brokers were up once.
    #[serde(skip_serializing_if = "is_default")]
    pub started: bool,
    /// Whether it ended well; unset while it has not ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub succeeded: Option<bool>,
    /// Exit code of its command.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    /// How it ended, in a word: that of condition `Finished` of its MiniCluster there (`Succeeded`, `CommandFailed`,
    /// `DeadlineExceeded` …), or `TimeLimit`: it was there for as long as the import policy lets it.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// How it ended, in a sentence.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// When it was seen to have ended, on the clock of the cluster that shows it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ended: Option<Time>,
    /// It has ended, and its pods are gone or given up, and with them its logs.
    #[serde(skip_serializing_if = "is_default")]
    pub logs_gone: bool,
}

impl BurstRun {
    /// Whether it has ended.
    pub fn has_ended(&self) -> bool {
        self.succeeded.is_some()
    }
}

/// When each step was reached for the first time, on the clock of the cluster that shows it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct PhaseTimestamps {
    /// Since when it is wanted or, once it was complete, needs another place. Root only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub planned: Option<MicroTime>,
    /// A peer was chosen, and is told. Root only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub offered: Option<MicroTime>,
    /// Admitted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub accepted: Option<MicroTime>,
    /// MiniCluster, Secret and Service made.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub provisioned: Option<MicroTime>,
    /// The images were pulled ahead, if the root asked for that. It goes on beside the other steps.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub warmed: Option<MicroTime>,
    /// Every wanted pod was on a node, of a burst that brought nodes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scheduled: Option<MicroTime>,
    /// Every wanted pod runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub started: Option<MicroTime>,
    /// Every wanted broker is online, as its readiness probe says. Never set for pods on simulated nodes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ready: Option<MicroTime>,
    /// Nothing left.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub released: Option<MicroTime>,
}

/// One thing that was looked at before the pods of a burst were made.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct PreflightFinding {
    /// What was looked at: `LeadAddress`, `Certificate`, `FluxVersion`, `ViewImage`, `Architecture`, `User`.
    pub check: String,
    /// `pass`, `fail` (brokers will not join) or `unknown`.
    pub outcome: String,
    /// What was found.
    pub message: String,
    /// What can be done about it.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub hint: String,
}

/// How images were pulled ahead.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct WarmUp {
    /// When it began.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub since: Option<MicroTime>,
    /// When it ended, however.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ended: Option<MicroTime>,
    /// Nodes it is for.
    pub wanted: u32,
    /// Nodes that have the images.
    pub pulled: u32,
    /// `Pulling`, `Pulled`, `Overtaken` (the brokers themselves run), `NoNode`, `TimedOut`, `Refused` by the API server,
    /// `NameTaken` by another Job, or `NotAllowed` by the import policy.
    pub outcome: String,
    /// One sentence for people.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub message: String,
}

/// How nodes were asked for.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Provisioning {
    /// When they were asked for first: `wait` counts from then.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub since: Option<MicroTime>,
    /// What the ProvisioningRequest says: `Requested`, `Provisioned`, `Failed`, `CapacityRevoked`, `BookingExpired`; or
    /// `Refused` by the API server.
    pub outcome: String,
    /// One sentence for people.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub message: String,
}

/// What the provider says of the burst.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct HostedBurstStatus {
    /// Where it stands.
    #[schemars(with = "String")]
    pub phase: BurstPhase,
    /// One sentence for people.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// Brokers online.
    pub ready_brokers: u32,
    /// Whether the certificate is here, in the burst's Secret; of a whole instance, whether its root let it start.
    pub credential_ready: bool,
    /// How a whole instance fares. Once it has ended it takes no room any more.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub run: Option<BurstRun>,
    /// When the root was lost, on this cluster's clock; written once per loss, removed on its return. The lease counts
    /// from it, across restarts of the agent; and the day for which the result of a whole instance is kept.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub suspect_since: Option<Time>,
    /// When draining began; deletion follows after `drain`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub draining_since: Option<Time>,
    /// Why it drains: `Released`, `Replaced`, `LeaseExpired`, `TimeLimit`, `PeerDrained`, `ImportWithdrawn`, `NameTaken`,
    /// `ScaleUpTimedOut`, `ScaleUpFailed`, `QueueTimedOut`, `PodsNotScheduled`, `PodsNotStarted`; or of a whole instance that has
    /// ended, `TooManyResults`: newer results of its peer take its place.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub draining_reason: Option<String>,
    /// When each step was reached.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub times: Option<PhaseTimestamps>,
    /// `metadata.generation` this status answers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// What the provider found out about the way to the lead broker, its certificate and the images, before it made the
    /// pods, and as long as brokers are missing.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["check"]))]
    pub preflight: Vec<PreflightFinding>,
    /// Its pods are on simulated nodes (kwok): that they are ready says nothing of brokers.
    #[serde(skip_serializing_if = "is_default")]
    pub simulated: bool,
    /// Where its Job stands in its queue, if it has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queue: Option<QueueStanding>,
    /// How the images were pulled ahead, if the root asked for that.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub warm: Option<WarmUp>,
    /// How nodes were asked for, if it brings some and the import policy names a class of ProvisioningRequests.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub provisioning: Option<Provisioning>,
    /// How much of this cluster it used, from its admission until nothing of it is left, on this cluster's clock.
    #[serde(skip_serializing_if = "is_default")]
    pub spent: Spent,
    /// `Admitted`, `Credential`, `Leased`, `Ready`; `Warm`: whether the images were pulled ahead, with the time that took, if
    /// the root asked for that; `Preflight`: whether brokers will be able to join, as far as was found
    /// out; and `BrokersOnline`: whether they did, `Unknown` with reason `NotCheckable` on simulated nodes.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
}

impl HostedBurst {
    /// Whether it is a whole instance that has ended: what is left of it takes no room.
    pub fn has_ended(&self) -> bool {
        self.status.as_ref().and_then(|status| status.run.as_ref()).is_some_and(BurstRun::has_ended)
    }
}

/// Whether a MiniCluster was made for a HostedBurst.
pub fn is_hosted(mini_cluster: &impl kube::Resource) -> bool {
    let metadata = mini_cluster.meta();
    let labelled = metadata.labels.as_ref().is_some_and(|all| all.contains_key(labels::BURST_UID));
    let owners = metadata.owner_references.as_deref().unwrap_or_default();
    let owned =
        |kind: &str| owners.iter().any(|owner| owner.kind == kind && owner.api_version.starts_with("tributary.dev/"));
    // Deleting with `--cascade=orphan` takes the reference away and leaves the labels.
    owned("HostedBurst") || labelled && owners.is_empty()
}
