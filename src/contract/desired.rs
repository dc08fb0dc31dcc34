//! What the root cluster wants of a provider: one [`DesiredBurst`] per placed slot.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::BurstUid;

/// The root MiniCluster, and which life of it.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RootIdentity {
    /// Namespace of the root MiniCluster; the hosted namespace is the same.
    pub namespace: String,
    /// Name of the root MiniCluster.
    pub name: String,
    /// UID of the root MiniCluster.
    pub uid: String,
    /// UID of the root's Job: another Job is another instance, with boot files of its own.
    pub incarnation: String,
}

/// Where the burst's brokers reach the root's lead broker.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct LeadAddress {
    /// An IP address (v4 or v6, without brackets) or a host name that the provider's agent resolves.
    pub address: String,
    /// TCP port.
    pub port: u16,
}

/// One burst as the root wants it. Replaced as a whole; ordered by (`epoch` of the session, `generation`, `revision`).
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DesiredBurst {
    /// UID of the Burst object.
    pub uid: BurstUid,
    /// `metadata.generation` of the Burst object.
    pub generation: u64,
    /// The root MiniCluster and its incarnation.
    pub root: RootIdentity,
    /// Name of the slot: name of the hosted MiniCluster and of its Job.
    pub slot: String,
    /// Brokers wanted now.
    pub size: u32,
    /// Brokers declared in the rank map: `size` may grow up to it.
    pub max_size: u32,
    /// Cores per broker.
    pub cores: u32,
    /// GPUs per broker.
    pub gpus: u32,
    /// Canonical text `rank-map/1` of the whole instance.
    pub rank_map: String,
    /// Digest of `rank_map`, which the provider computes again and compares.
    pub rank_map_digest: String,
    /// Digest of the curve certificate. The certificate itself is asked for once the burst is accepted.
    pub credential_digest: String,
    /// The lead broker's address; `None` until the root knows it.
    pub lead: Option<LeadAddress>,
    /// It is no part of an instance but all of one, its lead broker included: there is no lead to connect to, and no
    /// certificate is handed out, only the leave to start ([`super::Leave`]). Offered only to peers that say they know it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub whole: bool,
    /// The lead broker is reached through the agents' own connection, not at an address.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub tunnel: bool,
    /// `major.minor` of Flux, when the root knows it.
    pub flux_version: Option<String>,
    /// Architecture of the lead broker's node (`amd64`, `arm64`), once it is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub arch: Option<String>,
    /// BurstTemplate as JSON: applied with strict field validation, so that an older provider rejects what it does
    /// not know instead of dropping it.
    pub template: serde_json::Value,
    /// Seconds the provider keeps the burst after it lost the root.
    pub lease_seconds: u32,
    /// Seconds leaving brokers get to drain.
    pub drain_seconds: u32,
    /// Pull the images as soon as the burst is accepted.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub warm: bool,
    /// UID of the HostedBurst the root has seen for this key. If the provider has none or another, it was deleted
    /// there: an eviction, not a reason to make it again.
    pub hosted_uid: Option<String>,
    /// Digest of what is on offer, the wish to be asked again included: another one is looked at anew. Empty: a root of an
    /// older version.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub offer: String,
    /// Who uses it, by the label `tributary.dev/user` of the root: for the provider's records, and decides nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// The span that the root's side of this is (W3C `traceparent`), if traces are made there. It is data: the provider
    /// reads it as one, or drops it, and decides nothing by it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trace: Option<String>,
}
