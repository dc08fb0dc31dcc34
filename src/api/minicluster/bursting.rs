//! Brokers in other clusters: which slots a root declares, and where a burst finds its root.

use std::collections::BTreeMap;
use std::time::Duration;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use crate::api::schema::{absent_if_zero, is_default};

/// Port of a lead broker that none is written for.
pub const DEFAULT_BROKER_PORT: i32 = 8050;

/// One Flux instance over several clusters. A root declares `clusters`; a burst that is written by hand names its
/// `leadBroker` and repeats the root's `clusters`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
pub struct Bursting {
    /// The lead broker of the root, on the side of a burst. Not written in a root.
    #[serde(skip_serializing_if = "is_default")]
    pub lead_broker: LeadBroker,

    /// A host list of your own for all brokers, in RFC 29 form, where names follow no rule. Excludes `clusters`.
    #[serde(skip_serializing_if = "is_default", deserialize_with = "absent_if_zero")]
    pub hostlist: Option<String>,

    /// The bursts, in the order of their ranks.
    #[serde(skip_serializing_if = "is_default")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub clusters: Vec<BurstCluster>,

    /// How bursts reach the lead broker.
    #[serde(skip_serializing_if = "is_default")]
    pub network: BurstNetwork,

    /// Whether the command waits for brokers of the bursts.
    #[serde(skip_serializing_if = "is_default")]
    pub wait: BurstWait,
}

/// The lead broker of an instance in another cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
pub struct LeadBroker {
    /// IP address or host name at which the lead broker is reached from here.
    #[serde(skip_serializing_if = "is_default", deserialize_with = "absent_if_zero")]
    pub address: Option<String>,

    /// Name of the root MiniCluster: its brokers' host names begin with it.
    #[serde(skip_serializing_if = "is_default", deserialize_with = "absent_if_zero")]
    pub name: Option<String>,

    /// Number of the root's own brokers.
    #[serde(skip_serializing_if = "is_default", deserialize_with = "absent_if_zero")]
    pub size: Option<i32>,

    /// Port at which the lead broker is reached from here, for example a NodePort.
    #[serde(skip_serializing_if = "is_default", deserialize_with = "absent_if_zero")]
    #[schemars(extend("default" = DEFAULT_BROKER_PORT))]
    pub port: Option<i32>,

    /// The same as `bursting.hostlist`, in the place where upstream's documentation shows it.
    #[serde(skip_serializing_if = "is_default", deserialize_with = "absent_if_zero")]
    pub hostlist: Option<String>,
}

impl LeadBroker {
    /// Port at which the lead broker is reached.
    pub fn port(&self) -> i32 {
        self.port.unwrap_or(DEFAULT_BROKER_PORT)
    }
}

/// One declared burst: a range of ranks, and the wish where its brokers shall run.
///
/// Without `peer`, `peers` and `selector`, any connected peer with room is taken.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
pub struct BurstCluster {
    /// Name of the burst's MiniCluster; host names and DNS names follow from it. `<root>-burst-<position>`, if not
    /// written. A written name is used as it is and must be free on the peer.
    #[serde(skip_serializing_if = "is_default", deserialize_with = "absent_if_zero")]
    pub name: Option<String>,

    /// Number of brokers. The root's own size, if not written.
    #[serde(skip_serializing_if = "is_default", deserialize_with = "absent_if_zero")]
    pub size: Option<i32>,

    /// The most brokers this burst may ever have: their ranks are reserved from the start. `size`, if not written.
    #[serde(skip_serializing_if = "is_default", deserialize_with = "absent_if_zero")]
    #[schemars(range(min = 0))]
    pub max_size: Option<i32>,

    /// The one peer that may run this burst, by its ClusterPeer's name.
    #[serde(skip_serializing_if = "is_default", deserialize_with = "absent_if_zero")]
    pub peer: Option<String>,

    /// Peers that may run this burst, best first. Follows `peer`, if both are written.
    #[serde(skip_serializing_if = "is_default")]
    pub peers: Vec<String>,

    /// Labels that a peer must have (the ClusterPeer's own), under `matchLabels` or directly.
    #[serde(skip_serializing_if = "is_default")]
    pub selector: Option<PeerSelector>,

    /// Cores per broker that Flux may count on there. From the container's requests, if not written, else 1.
    #[serde(skip_serializing_if = "is_default", deserialize_with = "absent_if_zero")]
    #[schemars(range(min = 0))]
    pub cores: Option<i32>,

    /// GPUs per broker that Flux may count on there. From the container's requests, if not written, else 0.
    #[serde(skip_serializing_if = "is_default")]
    #[schemars(range(min = 0))]
    pub gpus: Option<i32>,
}

impl BurstCluster {
    /// Number of brokers, for a root of `root_size` (upstream documents this default and loses it).
    pub fn size(&self, root_size: i32) -> i32 {
        self.size.unwrap_or(root_size)
    }

    /// Number of ranks reserved, for a root of `root_size`.
    pub fn max_size(&self, root_size: i32) -> i32 {
        self.max_size.unwrap_or_else(|| self.size(root_size))
    }

    /// The peers the user named, best first; empty if the choice is left to a selector or to the root's agent.
    pub fn peers(&self) -> Vec<&str> {
        let mut peers: Vec<&str> = Vec::new();
        for peer in self.peer.iter().chain(&self.peers) {
            if !peers.contains(&peer.as_str()) {
                peers.push(peer);
            }
        }
        peers
    }
}

/// Which peers may be chosen, by the labels of their ClusterPeer.
///
/// Either Kubernetes' `matchLabels` or, shorter, the labels themselves; all that is written must hold.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct PeerSelector {
    /// Labels with exactly these values.
    #[serde(skip_serializing_if = "is_default")]
    pub match_labels: BTreeMap<String, String>,

    /// Labels written without `matchLabels`.
    #[serde(flatten)]
    pub labels: BTreeMap<String, LabelValue>,
}

/// The value of a label; YAML's `true` and `1` are read as the text they were written as.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum LabelValue {
    /// Text, as labels are.
    Text(String),
    /// An unquoted `true` or `false`.
    Bool(bool),
    /// An unquoted number.
    Integer(i64),
    /// Anything else: no label has such a value.
    Other(serde_json::Value),
}

impl PeerSelector {
    /// The labels a peer must have, however they were written. Empty: any peer will do.
    pub fn labels(&self) -> BTreeMap<String, String> {
        let direct = self.labels.iter().map(|(key, value)| {
            let text = match value {
                LabelValue::Text(text) => text.clone(),
                LabelValue::Bool(value) => value.to_string(),
                LabelValue::Integer(value) => value.to_string(),
                LabelValue::Other(value) => value.to_string(),
            };
            (key.clone(), text)
        });
        self.match_labels.clone().into_iter().chain(direct).collect()
    }
}

impl JsonSchema for PeerSelector {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "PeerSelector".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": "object",
            "x-kubernetes-preserve-unknown-fields": true,
            "properties": {
                "matchLabels": { "type": "object", "additionalProperties": { "type": "string" } },
            },
        })
    }
}

/// How bursts reach the lead broker of the root.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
pub struct BurstNetwork {
    /// `NodePort` (the default): a port on the root's nodes. `LoadBalancer`: an address of the root's cloud.
    /// `Tunnel`: through the agents' own connection.
    #[serde(rename = "type", skip_serializing_if = "is_default")]
    pub kind: BurstNetworkType,
}

/// The ways from a burst to its lead broker.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum BurstNetworkType {
    /// A NodePort Service on the root.
    #[default]
    NodePort,
    /// A LoadBalancer Service on the root.
    LoadBalancer,
    /// A QUIC connection between the two agents.
    Tunnel,
}

/// Whether the user's command starts before brokers of the bursts have joined.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
pub struct BurstWait {
    /// `None` (the default): do not wait. `All`: wait for every broker of every burst. A number: wait for that many.
    #[serde(rename = "for", skip_serializing_if = "is_default")]
    pub target: WaitFor,

    /// The longest to wait, for example `5m` or `1h30m`; then the command starts with the brokers there are.
    /// Without it, it waits as long as it takes.
    #[serde(skip_serializing_if = "is_default", deserialize_with = "absent_if_zero")]
    #[schemars(regex(pattern = r"^([0-9]+(\.[0-9]+)?(ms|s|m|h))+$"))]
    pub timeout: Option<String>,
}

impl BurstWait {
    /// The longest to wait; `None` if no limit is written.
    ///
    /// # Errors
    /// A text that is no duration (the schema refuses most of them).
    pub fn timeout(&self) -> Result<Option<Duration>, InvalidTimeout> {
        let Some(text) = self.timeout.as_deref() else { return Ok(None) };
        let invalid = || InvalidTimeout { text: text.to_owned() };
        let duration: jiff::SignedDuration = text.parse().map_err(|_| invalid())?;
        Duration::try_from(duration).map(Some).map_err(|_| invalid())
    }
}

/// `flux.bursting.wait.timeout` is no duration.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("flux.bursting.wait.timeout is not a duration: {text:?}; write it like 90s, 5m or 1h30m")]
pub struct InvalidTimeout {
    /// What was written.
    pub text: String,
}

/// How many brokers of the bursts the command waits for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WaitFor {
    /// None: the command starts as soon as the root's own brokers are there, as upstream's does.
    #[default]
    None,
    /// Every broker of every declared burst.
    All,
    /// At least so many brokers of bursts, whichever.
    Brokers(u32),
}

impl Serialize for WaitFor {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::None => serializer.serialize_str("None"),
            Self::All => serializer.serialize_str("All"),
            Self::Brokers(count) => serializer.serialize_u32(*count),
        }
    }
}

impl<'de> Deserialize<'de> for WaitFor {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl de::Visitor<'_> for Visitor {
            type Value = WaitFor;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("None, All or a number of brokers")
            }

            fn visit_u64<E: de::Error>(self, value: u64) -> Result<WaitFor, E> {
                u32::try_from(value)
                    .map(WaitFor::Brokers)
                    .map_err(|_| E::invalid_value(de::Unexpected::Unsigned(value), &self))
            }

            fn visit_i64<E: de::Error>(self, value: i64) -> Result<WaitFor, E> {
                u64::try_from(value)
                    .map_err(|_| E::invalid_value(de::Unexpected::Signed(value), &self))
                    .and_then(|value| self.visit_u64(value))
            }

            fn visit_str<E: de::Error>(self, value: &str) -> Result<WaitFor, E> {
                match value {
                    "None" => Ok(WaitFor::None),
                    "All" => Ok(WaitFor::All),
                    number => number
                        .parse()
                        .map(WaitFor::Brokers)
                        .map_err(|_| E::invalid_value(de::Unexpected::Str(value), &self)),
                }
            }
        }
        deserializer.deserialize_any(Visitor)
    }
}

impl JsonSchema for WaitFor {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "WaitFor".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        // A bound applies to integers only, a pattern to text only.
        json_schema!({
            "x-kubernetes-int-or-string": true,
            "minimum": 0,
            "maximum": 100_000,
            "pattern": "^(None|All|[0-9]{1,5})$",
        })
    }
}
