//! Read-only documents shared by the daemon and `agentctl`.
//!
//! The daemon serves them over HTTP on loopback, and answers them to peers as far as their `export` allows; `agentctl`
//! prints them. Nothing in here is secret: no certificate, no template, no address of a Secret's content.
//!
//! | path | document |
//! |---|---|
//! | `/v1/status` | [`FederationStatus`]: this cluster and, through the agents, every peer |
//! | `/v1/local` | [`ClusterStatus`]: this cluster alone; also the query a peer is asked |
//! | `/v1/peers` | `[`[`PeerRow`]`]` |
//! | `/v1/bursts` | `[`[`BurstRow`]`]` |
#![cfg_attr(test, allow(clippy::unwrap_used))]

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tributary_contract::{Capacity, Finding, LeadAddress, Money, PeerState, PhaseTimes, Traffic};

/// Version of these documents. Fields are added within a version, never renamed or removed.
pub const API_VERSION: &str = "admin.tributary.dev/v1";

/// Path of [`FederationStatus`].
pub const STATUS: &str = "/v1/status";
/// Path of [`ClusterStatus`], and name of the query sent to peers.
pub const LOCAL: &str = "/v1/local";
/// Path of the list of [`PeerRow`].
pub const PEERS: &str = "/v1/peers";
/// Path of the list of [`BurstRow`].
pub const BURSTS: &str = "/v1/bursts";

/// How long a peer gets to answer within a fan-out: a dead one is a row, not a hang.
pub const PEER_TIME_LIMIT: Duration = Duration::from_secs(2);

/// All federated clusters, as one agent sees them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct FederationStatus {
    /// [`API_VERSION`].
    pub api_version: String,
    /// Name of the cluster that was asked.
    pub cluster: String,
    /// That cluster first, then its peers by name.
    pub clusters: Vec<ClusterRow>,
}

/// One cluster of a fan-out.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ClusterRow {
    /// Name of the cluster.
    pub name: String,
    /// How the asked cluster sees it; `None` for itself.
    pub peer: Option<PeerRow>,
    /// Its own answer; `None` if it did not answer in time, or exports no status.
    pub status: Option<ClusterStatus>,
    /// Why there is no answer.
    pub error: Option<String>,
}

impl ClusterRow {
    /// Version of its agent: in its own words, else in those of the asked cluster.
    pub fn version(&self) -> Option<&String> {
        self.status.as_ref().map(|own| &own.version).or_else(|| self.peer.as_ref()?.version.as_ref())
    }
}

/// One cluster, in its own words.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ClusterStatus {
    /// [`API_VERSION`].
    pub api_version: String,
    /// Name of the cluster.
    pub cluster: String,
    /// UID of its namespace kube-system; `None`: of an agent that does not tell it yet.
    #[serde(default, rename = "clusterUID", skip_serializing_if = "Option::is_none")]
    pub cluster_uid: Option<String>,
    /// Version of its agent.
    pub version: String,
    /// Whether this agent leads in its cluster.
    pub leader: bool,
    /// Labels from its configuration.
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
    /// Its clock when it answered.
    #[serde(default)]
    pub now: Option<Timestamp>,
    /// The certificate it shows to peers; `None` while it peers with nobody.
    #[serde(default)]
    pub identity: Option<IdentityRow>,
    /// Its MiniClusters, hosted ones included.
    pub mini_clusters: Vec<MiniClusterRow>,
    /// Bursts of its MiniClusters (root side).
    pub bursts: Vec<BurstRow>,
    /// Bursts it hosts for others (provider side).
    pub hosted: Vec<HostedRow>,
    /// Its peers.
    pub peers: Vec<PeerRow>,
}

impl ClusterStatus {
    /// Drops what is in other namespaces.
    pub fn retain_namespace(&mut self, namespace: &str) {
        self.mini_clusters.retain(|row| row.namespace == namespace);
        self.bursts.retain(|row| row.namespace == namespace);
        self.hosted.retain(|row| row.namespace == namespace);
    }

    /// What `peer` may see of it: our own MiniClusters and bursts, what of that peer is here, and how we hold it. Nothing names
    /// another one.
    #[must_use]
    pub fn for_peer(mut self, peer: &str) -> Self {
        let named = self.peers.iter().map(|row| row.name.clone());
        let named = named.chain(self.hosted.iter().map(|row| row.peer.clone()));
        let named = named.chain(self.bursts.iter().filter_map(|row| row.peer.clone()));
        let others: BTreeSet<String> = named.filter(|name| name != peer && *name != self.cluster).collect();
        let speaks_of_others = |text: &mut String| {
            let is_in_name = |letter: char| letter.is_ascii_alphanumeric() || letter == '-';
            text.split(|letter| !is_in_name(letter)).any(|word| others.contains(word))
        };
        // How we hold it is its own business too.
        self.peers.retain(|row| row.name == peer);
        self.peers.iter_mut().for_each(|row| row.message = None);
        self.hosted.retain(|row| row.peer == peer);
        self.mini_clusters.retain(|row| row.hosted_for.as_ref().is_none_or(|of| of == peer));
        for row in &mut self.mini_clusters {
            row.message.take_if(speaks_of_others);
        }
        for row in &mut self.bursts {
            row.message.take_if(speaks_of_others);
            if row.peer.as_ref().is_some_and(|of| of != peer) {
                // What was found out over there is about that one.
                (row.peer, row.lead, row.message) = (None, None, None);
                row.preflight.clear();
            }
        }
        self
    }
}

/// The certificate that an agent shows to peers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct IdentityRow {
    /// Who it says that the cluster is, `spiffe://<trust domain>/cluster/<name>`.
    pub id: String,
    /// From when it is valid.
    pub not_before: Timestamp,
    /// Until when it is valid: connections end then.
    pub not_after: Timestamp,
}

/// A MiniCluster.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct MiniClusterRow {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Brokers wanted here.
    pub size: u32,
    /// Brokers online here.
    pub ready: u32,
    /// Its phase, or the reason it is not ready.
    pub phase: String,
    /// One sentence, if there is something to say.
    pub message: Option<String>,
    /// The peer whose burst it is; `None` for a MiniCluster of this cluster's users.
    pub hosted_for: Option<String>,
    /// Declared bursts that are not asleep.
    pub bursts: u32,
    /// Bursts whose every wanted broker is online.
    pub bursts_ready: u32,
    /// When it was made.
    pub created: Option<Timestamp>,
}

/// A burst, root side.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct BurstRow {
    /// Namespace of the root and of the hosted MiniCluster.
    pub namespace: String,
    /// Name of the slot.
    pub name: String,
    /// Name of the root MiniCluster.
    pub root: String,
    /// The peer it is placed on.
    pub peer: Option<String>,
    /// It is a FluxJob that was sent as a whole, which `root` names.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub whole: bool,
    /// Where it stands.
    pub phase: String,
    /// Brokers wanted.
    pub size: u32,
    /// Brokers online.
    pub ready_brokers: u32,
    /// The lead broker's address as it was sent.
    pub lead: Option<LeadAddress>,
    /// Digest of the rank map.
    pub rank_map_digest: String,
    /// One sentence.
    pub message: Option<String>,
    /// When each step was reached.
    #[serde(default)]
    pub times: PhaseTimes,
    /// What the peer found out about the way to the lead broker, its certificate and the images.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub preflight: Vec<Finding>,
    /// Its pods are on simulated nodes: whether brokers joined is not checkable.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub simulated: bool,
    /// How much it was used.
    #[serde(default)]
    pub spent: SpentRow,
    /// When it was made.
    pub created: Option<Timestamp>,
}

/// How much brokers in other clusters were used: sums, to which what was used since `since` is to be added.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct SpentRow {
    /// Seconds in which there were any, until `since`.
    pub seconds: i64,
    /// Brokers times seconds, until `since`.
    pub broker_seconds: i64,
    /// What they cost, until `since`.
    pub cost: Money,
    /// How many there are since then.
    pub brokers: u32,
    /// What they cost in an hour.
    pub hourly: Money,
    /// When one of the two last changed.
    pub since: Option<Timestamp>,
}

/// A hosted burst, provider side.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct HostedRow {
    /// Its namespace.
    pub namespace: String,
    /// Name of the slot.
    pub name: String,
    /// The peer whose burst it is.
    pub peer: String,
    /// Name of the root MiniCluster over there.
    pub root: String,
    /// Where it stands.
    pub phase: String,
    /// Brokers wanted.
    pub size: u32,
    /// Brokers online.
    pub ready_brokers: u32,
    /// One sentence.
    pub message: Option<String>,
    /// When the root was lost, if it is.
    pub suspect_since: Option<Timestamp>,
    /// When it was made.
    pub created: Option<Timestamp>,
}

/// A peer, as this cluster sees it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PeerRow {
    /// Its name.
    pub name: String,
    /// Where the connection stands.
    pub state: PeerState,
    /// Nothing is placed there or taken from there any more.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub drained: bool,
    /// The connection keeps breaking: nothing new is placed there until it has held for a while.
    #[serde(default)]
    pub flapping: bool,
    /// The address in use.
    pub endpoint: Option<String>,
    /// Version of its agent.
    pub version: Option<String>,
    /// Smoothed round-trip time, in microseconds.
    pub rtt_micros: Option<u64>,
    /// What the control connection has carried since it was made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub control: Option<Traffic>,
    /// What the connection for broker traffic has carried since it was made; missing while nothing needs it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tunnel: Option<Traffic>,
    /// When something was last heard.
    pub last_seen: Option<Timestamp>,
    /// Its last word on its capacity.
    pub capacity: Option<Capacity>,
    /// Why there is no connection: `Reason: sentence`.
    pub message: Option<String>,
    /// Whether it may place bursts here.
    pub imports: bool,
    /// When its ClusterPeer was made.
    pub created: Option<Timestamp>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_peer_sees_of_us_names_no_other_peer() {
        let row = |name: &str, hosted_for: Option<&str>| MiniClusterRow {
            name: name.into(),
            hosted_for: hosted_for.map(str::to_owned),
            message: hosted_for.map(|_| "north is away".to_owned()),
            ..MiniClusterRow::default()
        };
        let burst = |peer: &str| BurstRow {
            name: "ford".into(),
            peer: Some(peer.into()),
            message: Some(format!("{peer}: joined")),
            ..BurstRow::default()
        };
        let hosted = |peer: &str| HostedRow { name: format!("of-{peer}"), peer: peer.into(), ..HostedRow::default() };
        let status = ClusterStatus {
            cluster: "east".into(),
            mini_clusters: vec![row("ours", None), row("theirs", Some("west")), row("others", Some("north"))],
            bursts: vec![burst("west"), burst("north")],
            hosted: vec![hosted("west"), hosted("north")],
            peers: ["west", "north"].map(|name| PeerRow { name: name.into(), ..PeerRow::default() }).into(),
            ..ClusterStatus::default()
        };
        let seen = status.for_peer("west");
        let names: Vec<_> = seen.mini_clusters.iter().map(|row| row.name.as_str()).collect();
        assert_eq!(names, ["ours", "theirs"]);
        assert_eq!(seen.bursts.iter().map(|row| row.peer.as_deref()).collect::<Vec<_>>(), [Some("west"), None]);
        assert_eq!(seen.bursts[0].message.as_deref(), Some("west: joined"));
        let text = serde_json::to_string(&seen).unwrap();
        assert!(!text.contains("north"), "{text}");
    }
}
