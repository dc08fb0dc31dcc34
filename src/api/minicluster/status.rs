//! What is observed of a MiniCluster.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::budget::Spent;
use crate::burst::CredentialRecipient;
use crate::flux_setup::Usage;
use crate::schema::is_default;
use tributary_contract::word::{Word, shown_by_its_words};

/// Observed state. Only the MiniCluster controller writes it.
///
/// The first four fields are upstream's and always present; the rest is absent until something is known.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
pub struct MiniClusterStatus {
    /// Number of pods asked of the Job: what the scale subresource reports.
    pub size: i32,

    /// Label selector of the pods, as text: what a HorizontalPodAutoscaler lists pods by.
    pub selector: String,

    /// Upstream's field without meaning; always empty.
    pub jobid: String,

    /// The most pods of this cluster that the running instance has ranks for.
    pub maximum_size: i32,

    /// One word for people: where the MiniCluster is in its life. Programs read the conditions.
    #[serde(skip_serializing_if = "is_default")]
    pub phase: Option<Phase>,

    /// The latest observations, one of each type.
    #[serde(skip_serializing_if = "is_default")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,

    /// The generation of the MiniCluster that this status speaks about.
    #[serde(skip_serializing_if = "is_default")]
    pub observed_generation: Option<i64>,

    /// Brokers of this cluster that have joined the instance.
    #[serde(skip_serializing_if = "is_default")]
    pub ready: Option<i32>,

    /// UID of the Job that runs now: one incarnation of the instance. Its boot files never change.
    #[serde(skip_serializing_if = "is_default")]
    pub incarnation: Option<String>,

    /// What it holds of its namespace's quota, where that has a FluxSetup: with what the queue let it in. It keeps that from one
    /// Job to the next, whoever leads. Absent while it stands in line, once it has ended, and where that is not known.
    #[serde(skip_serializing_if = "is_default")]
    pub holds: Option<Usage>,

    /// When the first of its Jobs started that the queue of its namespace let in. Its time counts from then, through restarts and
    /// suspensions. Absent where `holds` is.
    #[serde(skip_serializing_if = "is_default")]
    pub began: Option<Time>,

    /// For how many seconds the queue let it in, by its deadlineSeconds at that time: others plan on that, so it gets no more.
    /// Absent where it had no deadline.
    #[serde(skip_serializing_if = "is_default")]
    pub admitted_seconds: Option<i64>,

    /// How the user's command ended: the exit code of the lead's container. Absent until it has, and where the command
    /// was not what ended it (a deadline, a pod that was taken away).
    #[serde(skip_serializing_if = "is_default")]
    pub exit_code: Option<i32>,

    /// Digest of the rank map of this incarnation; every cluster of the instance shows the same.
    #[serde(skip_serializing_if = "is_default")]
    pub rank_map_digest: Option<String>,

    /// The rank map of this incarnation, as canonical text (`rank-map/1`): what bursts are planned from.
    #[serde(skip_serializing_if = "is_default")]
    pub rank_map: Option<String>,

    /// Digest of the certificate of this incarnation.
    #[serde(skip_serializing_if = "is_default")]
    pub credential_digest: Option<String>,

    /// Name of the Secret that holds the certificate, under the key `curve.cert`.
    #[serde(skip_serializing_if = "is_default")]
    pub credential_secret: Option<String>,

    /// Peers that were given the certificate that the instance runs with, by their names.
    #[serde(skip_serializing_if = "is_default")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["peer"]))]
    pub credential_recipients: Vec<RecipientStatus>,

    /// Where bursts reach the lead broker.
    #[serde(skip_serializing_if = "is_default")]
    pub lead: LeadStatus,

    /// How often the instance was started anew since the MiniCluster was created: by a new Job, or because the lead
    /// broker's pod was replaced or its container started again.
    #[serde(skip_serializing_if = "is_default")]
    pub instance_restarts: i32,

    /// The last value of the annotation `tributary.dev/restart` that was obeyed.
    #[serde(skip_serializing_if = "is_default")]
    pub restart_handled: Option<String>,

    /// The declared bursts, in the order of their ranks.
    #[serde(skip_serializing_if = "is_default")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub bursts: Vec<BurstStatus>,

    /// Bursts whose brokers have all joined, of those declared that are not asleep, and the reason of the first that fails: `2/2`,
    /// `1/2 NamespaceNotFound`. For the column of `kubectl get`.
    #[serde(skip_serializing_if = "is_default")]
    pub bursts_ready: Option<String>,

    /// How much the bursts were used, all together.
    #[serde(skip_serializing_if = "is_default")]
    pub bursts_spent: Spent,
}

/// Where a MiniCluster is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Phase {
    /// Nothing runs yet.
    Pending,
    /// Pods run; the instance is not up.
    Starting,
    /// The lead broker is up and the local quorum has joined.
    Running,
    /// The instance is being started anew: bursts are released, the Job is deleted.
    Restarting,
    /// Held back by `suspend`.
    Suspended,
    /// The spec cannot be carried out as it is; the conditions say why.
    Refused,
    /// The command ended well.
    Succeeded,
    /// The command failed, or the Job gave up.
    Failed,
    /// A word of a newer version.
    #[serde(untagged)]
    Unknown(Word),
}

shown_by_its_words!(Phase);

impl JsonSchema for Phase {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Phase".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        // Open: an older schema must let a newer agent write its words.
        schemars::json_schema!({ "type": "string" })
    }
}

/// Where bursts reach the lead broker.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
pub struct LeadStatus {
    /// Port on the nodes. Asked for again when the Service is made anew.
    #[serde(skip_serializing_if = "is_default")]
    pub node_port: Option<i32>,

    /// Address of the load balancer, once it has one: IP address or host name.
    #[serde(skip_serializing_if = "is_default")]
    pub address: Option<String>,

    /// Name of the pod of rank 0 in the running instance.
    #[serde(skip_serializing_if = "is_default")]
    pub pod: Option<String>,

    /// How often its container that runs Flux was started again in that pod.
    #[serde(skip_serializing_if = "is_default")]
    pub restarts: i32,
}

/// A peer that was given a certificate.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RecipientStatus {
    /// Name of the peer.
    pub peer: String,

    /// UID of its ClusterPeer when it was given the certificate.
    #[serde(rename = "peerUID", default, skip_serializing_if = "is_default")]
    pub peer_uid: Option<String>,

    /// Digest of the certificate.
    #[serde(default, skip_serializing_if = "is_default")]
    pub credential_digest: String,

    /// When it was found to be no peer any more: its ClusterPeer was deleted, or made anew. It has the certificate all the
    /// same, so this stays until the instance runs with another one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub removed: Option<Time>,
}

/// One declared burst, as the root sees it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct BurstStatus {
    /// Name of the slot, and of the burst's MiniCluster on the peer.
    pub name: String,

    /// Phase of the Burst.
    #[serde(default, skip_serializing_if = "is_default")]
    pub phase: String,

    /// The peer that runs it, or that it was offered to.
    #[serde(default, skip_serializing_if = "is_default")]
    pub peer: Option<String>,

    /// Number of brokers asked for.
    #[serde(default, skip_serializing_if = "is_default")]
    pub size: i32,

    /// Brokers that have joined the instance.
    #[serde(default, skip_serializing_if = "is_default")]
    pub ready: i32,

    /// The ranks of this burst, as an RFC 22 idset (`4-6`).
    #[serde(default, skip_serializing_if = "is_default")]
    pub ranks: String,

    /// What keeps it from being as the spec asks, in one CamelCase word. Absent while it is so, or on its way there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,

    /// Why it is in this phase, or what keeps it, in a sentence.
    #[serde(default, skip_serializing_if = "is_default")]
    pub message: String,

    /// Who may run its brokers, with the certificate of which incarnation. It outlives a Burst that is deleted by hand.
    #[serde(default, skip_serializing_if = "is_default")]
    pub holder: Option<CredentialRecipient>,
}
