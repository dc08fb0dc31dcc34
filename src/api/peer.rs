//! `ClusterPeer`: another cluster of the federation, what it may place here, and what it may see.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Toleration;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::budget::{BurstBudget, Spent};
use super::duration::Lasting;
use super::flux_setup::Quota;
use super::minicluster::Amount;
use super::node_group::ScaleUpPolicy;
use super::schema::{Embedded, is_default};
use tributary_contract::word::Word;
use tributary_contract::{PossibleCapacity, Price};

/// Another cluster of the federation. It lives in the agent's own namespace, and its name is the peer's cluster name;
/// its labels are what `clusters[].selector` of a MiniCluster matches. Both sides must hold one for the other.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "tributary.dev",
    version = "v1alpha1",
    kind = "ClusterPeer",
    plural = "clusterpeers",
    shortname = "cpeer",
    category = "tributary",
    namespaced,
    status = "ClusterPeerStatus",
    derive = "Default",
    derive = "PartialEq",
    printcolumn = r#"{"name":"Connected","type":"boolean","jsonPath":".status.connected"}"#,
    printcolumn = r#"{"name":"Endpoint","type":"string","jsonPath":".status.endpoint"}"#,
    printcolumn = r#"{"name":"Version","type":"string","jsonPath":".status.version"}"#,
    printcolumn = r#"{"name":"Reason","type":"string","jsonPath":".status.conditions[?(@.type==\"Connected\")].reason"}"#,
    printcolumn = r#"{"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp"}"#
)]
#[serde(rename_all = "camelCase", default)]
pub struct ClusterPeerSpec {
    /// Where the peer's agent listens: `host:port`, `[v6]:port`, or `srv:NAME` for a DNS SRV record. Empty: we do not
    /// dial, the peer does.
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub endpoints: Vec<String>,
    /// PEM certificates that may have signed the peer's identity. Unset: the `ca.crt` of our own identity.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trust_bundle: Option<String>,
    /// Whether the peer may replace `trustBundle` over a live session, when it replaces its authority: a new bundle counts
    /// only with the signature of an authority of the one before. `Manual` (default): nobody but you changes it.
    pub trust_updates: TrustUpdates,
    /// UID of the peer's cluster (of its `kube-system` namespace). Pinned on first contact if empty; a peer that shows
    /// another one is refused.
    #[serde(rename = "clusterUID", skip_serializing_if = "Option::is_none")]
    pub cluster_uid: Option<String>,
    /// What the peer may place in this cluster. Unset: nothing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub import: Option<ImportPolicy>,
    /// What the peer may see of this cluster.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub export: Option<ExportPolicy>,
    /// How much our bursts may use this peer, all together. When it is spent, none of ours is placed there any more, and
    /// those there are drained, released, and placed elsewhere if they may.
    #[serde(skip_serializing_if = "is_default")]
    pub budget: BurstBudget,
    /// What our bursts cost there. Where a burst may choose among peers, the cheaper one is better; and it is what budgets
    /// with `cost` count. A burst keeps the price of its placement; if there was none, it gets the first one that is written.
    /// Unset: nothing, and a budget with `cost` never ends.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub price: Option<Price>,
    /// Close the connection and make none. Bursts of this peer end with their lease.
    #[serde(skip_serializing_if = "is_default")]
    pub suspend: bool,
    /// Empty the connection: no burst of ours is placed on the peer any more, and those there are released and placed
    /// elsewhere; no burst of the peer is taken here any more, and those here are released. Jobs on their brokers get the
    /// drain time to end.
    #[serde(skip_serializing_if = "is_default")]
    pub drain: bool,
}

/// Who may replace the trust bundle of a peer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum TrustUpdates {
    /// Whoever may write the ClusterPeer.
    #[default]
    Manual,
    /// The peer as well, signed by the authority it had.
    FromPeer,
    /// A word of a newer version: taken as `Manual`.
    #[serde(untagged)]
    #[schemars(skip)]
    Unknown(Word),
}

/// What a peer may place here. The template of a burst is remote code: every reference to an existing object and every
/// scheduling or identity field is refused unless it is named here.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ImportPolicy {
    /// Namespaces of roots that may place bursts here; `*` means any, but not into the cluster's own (`kube-…`). The agent's own
    /// namespace takes none, even if it is named.
    #[schemars(extend("x-kubernetes-list-type" = "set"))]
    pub namespaces: Vec<String>,
    /// The namespace here for a namespace there, with `{peer}` and `{namespace}` for their names: `burst-{peer}-{namespace}`.
    /// Unset: one of the same name. It has to exist. What is hosted already stays where it is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target_namespace: Option<String>,
    /// Bursts of this peer at a time. Unset: no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub max_bursts: Option<i32>,
    /// Brokers of this peer at a time, over all its bursts (their `maxSize`). Unset: no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub max_brokers: Option<i32>,
    /// Cores of this peer at a time, over all its bursts (their `maxSize` times the cores per broker). Unset: no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub max_cores: Option<i32>,
    /// GPUs of this peer at a time, counted likewise; slices of GPUs, shared ones and other accelerators are one each. Unset: no
    /// limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub max_gpus: Option<i32>,
    /// Memory of this peer at a time, over all its bursts (their `maxSize` times what their containers request per broker). Each
    /// container has to request some, or the burst is refused. Unset: no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_memory: Option<Amount>,
    /// Ephemeral storage (`ephemeral-storage`) of this peer at a time, counted likewise. Unset: no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_ephemeral_storage: Option<Amount>,
    /// Offers of this peer that are looked at within a minute: what it offers beyond is refused, and looked at in its turn.
    /// Unset: 120.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub max_offers_per_minute: Option<i32>,
    /// How long a burst may be here (`24h`), without the time in which it waits in a queue of Kueue. Then it is drained and ends as
    /// an eviction: it does not come back until its root's spec, this policy or an explicit retry changes something. A FluxJob
    /// that was sent as a whole is refused if its time limit is longer; one that runs for so long, from its start, has failed, and
    /// does not run again. Unset: no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_duration: Option<Lasting>,
    /// Pod-security level the rendered pods must pass. Default `baseline`.
    pub pod_security: PodSecurityLevel,
    /// ServiceAccount imposed on hosted pods. Default `default`. Its token is never mounted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub service_account: Option<String>,
    /// Labels that nodes of hosted pods must have, whatever a template asks for.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub node_selector: BTreeMap<String, String>,
    /// Taints that hosted pods tolerate.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(with = "Embedded<Vec<Toleration>>", extend("x-kubernetes-list-type" = "atomic"))]
    pub tolerations: Vec<Toleration>,
    /// PriorityClass of hosted pods. Unset: the cluster's default. A template cannot ask for one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub priority_class: Option<String>,
    /// RuntimeClass of hosted pods, unless a template may name one (`allowRuntimeClasses`) and does.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub runtime_class: Option<String>,
    /// Ranges of the addresses that lead brokers of this peer may have, `203.0.113.0/24` or `2001:db8::/32`: a burst whose
    /// lead is elsewhere is refused. Bursts with a tunnel need none. Unset: any address but this cluster's own (of nodes, pods,
    /// Services and API servers) and those that no machine of another cluster has, which are refused in any case.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "set", "maxItems" = 64, "x-kubernetes-validations" = [{
        "rule": "self.all(range, isCIDR(range))",
        "message": "import.leadRanges: each must be a range of addresses, like 203.0.113.0/24 or 2001:db8::/32",
    }]), inner(length(max = 64)))]
    pub lead_ranges: Vec<String>,
    /// Where hosted pods may connect to. Unset: anywhere.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub egress: Option<EgressPolicy>,
    /// Secrets (of the hosted namespace) a template may mount or read environment variables from. What ends in `-curve` or
    /// `-restful`, as credentials of instances do, is covered by no pattern: it has to be named itself.
    #[schemars(extend("x-kubernetes-list-type" = "set"))]
    pub allow_secrets: Vec<String>,
    /// ConfigMaps a template may mount.
    #[schemars(extend("x-kubernetes-list-type" = "set"))]
    pub allow_config_maps: Vec<String>,
    /// PersistentVolumeClaims a template may mount.
    #[schemars(extend("x-kubernetes-list-type" = "set"))]
    pub allow_claims: Vec<String>,
    /// ServiceAccounts a template may ask for.
    #[schemars(extend("x-kubernetes-list-type" = "set"))]
    pub allow_service_accounts: Vec<String>,
    /// Image pull secrets a template may name.
    #[schemars(extend("x-kubernetes-list-type" = "set"))]
    pub allow_image_pull_secrets: Vec<String>,
    /// hostPath prefixes a template may mount; the pod-security level must admit host paths too.
    #[schemars(extend("x-kubernetes-list-type" = "set"))]
    pub allow_host_paths: Vec<String>,
    /// CSI drivers a template may use.
    #[schemars(extend("x-kubernetes-list-type" = "set"))]
    pub allow_csi_drivers: Vec<String>,
    /// Attributes a template may give to these drivers, as `key=value`: they can name servers, shares and other objects.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "set"))]
    pub allow_csi_driver_attributes: Vec<String>,
    /// RuntimeClasses a template may name.
    #[schemars(extend("x-kubernetes-list-type" = "set"))]
    pub allow_runtime_classes: Vec<String>,
    /// Schedulers a template may name.
    #[schemars(extend("x-kubernetes-list-type" = "set"))]
    pub allow_schedulers: Vec<String>,
    /// Whether a template may set nodeSelector, node affinity and tolerations.
    pub allow_scheduling: bool,
    /// Flux `major.minor` of the images of this cluster, for example `0.68`: where a mirror, or the nodes themselves, decide
    /// what a tag stands for. A burst of another one is refused, since its brokers could not join. Unset: what the tag of
    /// the template's image says.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub flux_version: Option<String>,
    /// Images a template may use, as glob patterns (`ghcr.io/our-org/*`). Empty: any.
    #[schemars(extend("x-kubernetes-list-type" = "set"))]
    pub allow_images: Vec<String>,
    /// Nodes that an autoscaler may add for bursts of this peer. Unset: a burst is refused while there is no room for it on the
    /// nodes that are there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scale_up: Option<ScaleUpPolicy>,
    /// LocalQueue of Kueue, in the namespace of what is hosted: the Job of each burst gets the label
    /// `kueue.x-k8s.io/queue-name` with this name, and Kueue starts it when the ClusterQueue has room. What else is judged is
    /// judged before. A template cannot name a queue. Bursts that are here keep the queue that they have. Unset: Jobs start at
    /// once.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 63), extend("x-kubernetes-validations" = [{
        "rule": "self.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*$')",
        "message": "import.queueName: must be the name of a LocalQueue: lower case letters, digits, '-' and '.'",
    }]))]
    pub queue_name: Option<String>,
    /// How long the Job of a burst may wait for Kueue at a time, from 1s to 24h. Then the burst is given back, and not taken again
    /// for as long. Unset: without limit, so that it keeps its place in the queue.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("x-kubernetes-validations" = [{
        "rule": "duration(self) >= duration('1s') && duration(self) <= duration('24h')",
        "message": "import.queueWait: must be a duration from 1s to 24h, like 90s, 15m or 1h30m",
    }]))]
    pub queue_wait: Option<Lasting>,
    /// Whether images are pulled ahead for bursts that ask for that (`warm`): by a Job of short-lived pods that run nothing, one
    /// per broker and 32 at most. Unset: yes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub warm: Option<bool>,
}

/// A NetworkPolicy for hosted pods: they connect to each other, to the lead broker, to DNS, and to nothing else but what is
/// named here. It takes a network plugin that enforces NetworkPolicies.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct EgressPolicy {
    /// Address ranges they may connect to besides, `203.0.113.0/24` or `2001:db8::/32`.
    #[schemars(extend("x-kubernetes-list-type" = "set", "maxItems" = 64, "x-kubernetes-validations" = [{
        "rule": "self.all(range, isCIDR(range))",
        "message": "import.egress.allow: each must be a range of addresses, like 203.0.113.0/24 or 2001:db8::/32",
    }]), inner(length(max = 64)))]
    pub allow: Vec<String>,
}

/// Level of the Pod Security Standards.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum PodSecurityLevel {
    /// Anything goes.
    Privileged,
    /// No known privilege escalation.
    #[default]
    Baseline,
    /// Hardened pods only.
    Restricted,
    /// A word of a newer version: hardened pods only.
    #[serde(untagged)]
    #[schemars(skip)]
    Unknown(Word),
}

impl PodSecurityLevel {
    /// The word of the Pod Security Standards.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Privileged => "privileged",
            Self::Baseline => "baseline",
            Self::Restricted | Self::Unknown(_) => "restricted",
        }
    }
}

/// What a peer may see.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ExportPolicy {
    /// Coarse free capacity, in heartbeats.
    pub capacity: bool,
    /// Names, sizes and phases of our MiniClusters and bursts, and of its own here: what `agentctl status` on the peer's side
    /// shows of us. Nothing that names another peer.
    pub status: bool,
}

impl Default for ExportPolicy {
    fn default() -> Self {
        Self { capacity: true, status: false }
    }
}

impl ClusterPeer {
    /// The UID that the peer's cluster must show: the user's word, else the one of the first contact.
    pub fn pinned_uid(&self) -> Option<&str> {
        let written = self.spec.cluster_uid.as_deref().filter(|uid| !uid.is_empty());
        written.or_else(|| self.status.as_ref()?.cluster_uid.as_deref())
    }
}

/// What the agent knows of a peer; written on transitions only. Round-trip time and last contact are in the admin API.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ClusterPeerStatus {
    /// Whether a session is up: heartbeats arrive, and if it kept breaking, it has held for a while.
    pub connected: bool,
    /// The address in use, `ip:port`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub endpoint: Option<String>,
    /// Version of the peer's agent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// The cluster UID the peer showed when it was first connected; pinned.
    #[serde(rename = "clusterUID", skip_serializing_if = "Option::is_none")]
    pub cluster_uid: Option<String>,
    /// When the connection was last lost, on this cluster's clock: leases count from it. Written once per loss.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub suspect_since: Option<Time>,
    /// Labels the peer's agent states of itself. For reading: selectors match the labels of this object.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// Coarse capacity, refreshed when it changes by more than a tenth.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub capacity: Option<PeerCapacity>,
    /// How much our bursts have used this peer.
    #[serde(skip_serializing_if = "is_default")]
    pub spent: Spent,
    /// What FluxSetups over there leave for our bursts, by the namespace of their root here. Refreshed when it changes.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["namespace"]))]
    pub rooms: Vec<PeerRoom>,
    /// `metadata.generation` this status answers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// `ScaleUp`, `False` with reason `Invalid`, if an amount in `import.scaleUp.nodeGroups` is none of a node; with
    /// `NotServed`, if `import.scaleUp.provisioningRequest` is set and this cluster has no ProvisioningRequests.
    /// `Budget`, if it has one: `Within`, `Ending` with the time of its end, `False` with reason `Spent`, or `Unknown` with
    /// reason `NoPrice`.
    /// `Connected` and why not: `HeartbeatsMissing` (silent for 5 s), `Flapping`, `Unreachable`, `Suspended` (by either
    /// side), `UnknownPeer`, `WrongIdentity`, `WrongClusterUID`, `UntrustedCertificate`, `CertificateExpired`,
    /// `WrongTrustDomain`, `IncompatibleVersion`, `StaleEpoch`, `OwnName` (of this cluster itself), `WaitingForPeer`,
    /// `Disconnected`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
}

/// Coarse free capacity of a cluster.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct PeerCapacity {
    /// Ready, schedulable nodes.
    pub nodes: u32,
    /// Free CPU in whole cores.
    pub free_cores: u32,
    /// Free memory in MiB.
    pub free_memory_mib: u64,
    /// Free GPUs.
    pub free_gpus: u32,
    /// What nodes could give, beside these, that an autoscaler over there would add for our bursts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub possible: Option<PossibleCapacity>,
}

/// What a FluxSetup of a peer leaves for our bursts. What is not written is not limited by it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct PeerRoom {
    /// Namespace of the root MiniCluster here; `*`: every one that is not named.
    pub namespace: String,
    /// How much.
    pub left: Quota,
}
