//! The control messages as types that cannot be wrong.
//!
//! [`Message::decode`] parses: what it returns is within the limits and complete. [`Decoded::Unknown`] is a message, or a
//! kind of key, of a newer version: it is skipped. Errors end the connection with `Protocol`.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use prost::Message as _;
use tributary_contract::ports::StateKey;
use tributary_contract::{
    BurstUid, Capacity, ClusterUid, Epoch, Money, NamespaceRoom, PeerName, PossibleCapacity, Price,
};

use super::digest::Digest;
use super::frame::{self, TooLarge};
use super::version::{WireVersion, WireVersions};
use super::{limits, proto};

/// More free memory than any cluster has: the API server takes whole numbers up to 2^53 only.
const MEMORY_MIB: u64 = 1 << 50;

/// Likewise, in thousandths of a core.
const MILLI_CORES: u64 = 1 << 50;

/// One control message.
#[derive(Clone, PartialEq, Debug)]
pub enum Message {
    /// First message of each side.
    Hello(Hello),
    /// The hello is accepted; this version is in use.
    HelloAck(WireVersion),
    /// Sign of life; in version 1 with the sender's capacity, as far as it is exported to us.
    Heartbeat(Option<Capacity>),
    /// The sender's capacity, as far as it is exported to us; from version 2 on.
    Capacity(Option<Capacity>),
    /// All keys of the sender.
    Summary(Summary),
    /// Keys of ours whose state the sender wants.
    Want(Vec<StateKey>),
    /// One state of the sender.
    Put(Put),
    /// A state of ours the sender could not use.
    Reject(Reject),
}

/// Who speaks.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Hello {
    /// Versions of the messages the sender speaks.
    pub versions: WireVersions,
    /// Version of the agent, for people.
    pub agent_version: String,
    /// Name of the sender's cluster.
    pub cluster: PeerName,
    /// UID of the sender's cluster.
    pub cluster_uid: ClusterUid,
    /// Leadership the sender speaks for.
    pub epoch: Epoch,
    /// Random per process: only sequences of one process can be compared.
    pub instance: u64,
    /// Labels of the sender's cluster.
    pub labels: BTreeMap<String, String>,
    /// Additions the sender understands; unknown ones are kept and mean nothing.
    pub capabilities: BTreeSet<String>,
    /// After how much silence the sender suspects the receiver, which is to be heard more often than that. `None`: an
    /// agent that does not say.
    pub patience: Option<Duration>,
}

/// All keys of the sender, as of `sequence`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Summary {
    /// Leadership.
    pub epoch: Epoch,
    /// Position in what the sender's process says.
    pub sequence: u64,
    /// The list is all there is: absence may be concluded from.
    pub complete: bool,
    /// The keys, and the digest of each state.
    pub entries: BTreeMap<StateKey, Digest>,
}

/// One state.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Put {
    /// Leadership.
    pub epoch: Epoch,
    /// Position in what the sender's process says.
    pub sequence: u64,
    /// The key.
    pub key: StateKey,
    /// Digest of the state, by its sender.
    pub digest: Digest,
    /// The state, as JSON; `None`: a tombstone.
    pub state: Option<Bytes>,
}

/// A state the receiver could not use.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Reject {
    /// The key.
    pub key: StateKey,
    /// Digest of the state that was put.
    pub digest: Digest,
    /// One sentence; at most [`limits::REASON`] bytes.
    pub problem: String,
}

/// What a frame holds.
#[derive(Clone, PartialEq, Debug)]
pub enum Decoded {
    /// A message.
    Known(Message),
    /// Something of a newer version: skip it.
    Unknown,
}

/// A frame that breaks the protocol.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum DecodeError {
    /// Not protobuf, or not ours.
    #[error("the frame is not a message of this protocol")]
    Malformed(#[source] prost::DecodeError),
    /// A part every version sends is missing or of another size.
    #[error("the message has no valid {0}")]
    Invalid(&'static str),
    /// More of something than the limits allow.
    #[error("the message has more {0} than allowed")]
    TooMany(&'static str),
}

impl Message {
    /// Appends the message as one frame.
    ///
    /// # Errors
    /// The message is beyond [`limits::CONTROL_FRAME`]; nothing is appended.
    pub fn encode(self, buf: &mut BytesMut) -> Result<(), TooLarge> {
        frame::put(&proto::Envelope { body: Some(self.into_body()) }, limits::CONTROL_FRAME, buf)
    }

    /// Parses the content of one frame.
    pub fn decode(frame: Bytes) -> Result<Decoded, DecodeError> {
        let envelope = proto::Envelope::decode(frame).map_err(DecodeError::Malformed)?;
        let Some(body) = envelope.body else {
            return Ok(Decoded::Unknown);
        };
        Ok(match body {
            proto::Body::Hello(hello) => Decoded::Known(Self::Hello(hello.try_into()?)),
            proto::Body::HelloAck(ack) => Decoded::Known(Self::HelloAck(WireVersion(ack.version))),
            proto::Body::Heartbeat(beat) => Decoded::Known(Self::Heartbeat(beat.capacity.map(Capacity::from))),
            proto::Body::Capacity(told) => Decoded::Known(Self::Capacity(told.capacity.map(Capacity::from))),
            proto::Body::Summary(summary) => Decoded::Known(Self::Summary(summary.try_into()?)),
            proto::Body::Want(want) => Decoded::Known(Self::Want(known_keys(want.keys)?)),
            proto::Body::Put(put) => {
                let digest = digest(&put.digest)?;
                match known_key(put.key)? {
                    Some(key) => Decoded::Known(Self::Put(Put {
                        epoch: Epoch(put.epoch),
                        sequence: put.sequence,
                        key,
                        digest,
                        state: put.state,
                    })),
                    None => Decoded::Unknown,
                }
            }
            proto::Body::Reject(reject) => {
                let digest = digest(&reject.digest)?;
                match known_key(reject.key)? {
                    Some(key) => Decoded::Known(Self::Reject(Reject {
                        key,
                        digest,
                        problem: limits::plain(&reject.problem, limits::REASON),
                    })),
                    None => Decoded::Unknown,
                }
            }
        })
    }

    fn into_body(self) -> proto::Body {
        match self {
            Self::Hello(hello) => proto::Body::Hello(hello.into()),
            Self::HelloAck(version) => proto::Body::HelloAck(proto::HelloAck { version: version.0 }),
            Self::Heartbeat(capacity) => {
                proto::Body::Heartbeat(proto::Heartbeat { capacity: capacity.map(proto::Capacity::from) })
            }
            Self::Capacity(capacity) => {
                proto::Body::Capacity(proto::Exported { capacity: capacity.map(proto::Capacity::from) })
            }
            Self::Summary(summary) => proto::Body::Summary(proto::Summary {
                epoch: summary.epoch.0,
                sequence: summary.sequence,
                complete: summary.complete,
                entries: summary
                    .entries
                    .iter()
                    .map(|(key, digest)| proto::Entry {
                        key: Some(key.into()),
                        digest: Bytes::copy_from_slice(digest.as_bytes()),
                    })
                    .collect(),
            }),
            Self::Want(keys) => proto::Body::Want(proto::Want { keys: keys.iter().map(proto::Key::from).collect() }),
            Self::Put(put) => proto::Body::Put(proto::Put {
                epoch: put.epoch.0,
                sequence: put.sequence,
                key: Some((&put.key).into()),
                digest: Bytes::copy_from_slice(put.digest.as_bytes()),
                state: put.state,
            }),
            Self::Reject(reject) => proto::Body::Reject(proto::Reject {
                key: Some((&reject.key).into()),
                digest: Bytes::copy_from_slice(reject.digest.as_bytes()),
                problem: limits::cut_reason(&reject.problem).to_owned(),
            }),
        }
    }
}

impl TryFrom<proto::Hello> for Hello {
    type Error = DecodeError;

    fn try_from(hello: proto::Hello) -> Result<Self, DecodeError> {
        // Both stand in sentences that people read.
        let is_word = |text: &str| text.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'`');
        if hello.cluster.is_empty() || hello.cluster.len() > limits::WORD || !is_word(&hello.cluster) {
            return Err(DecodeError::Invalid("cluster name"));
        }
        if hello.cluster_uid.is_empty() || hello.cluster_uid.len() > limits::UID || !is_word(&hello.cluster_uid) {
            return Err(DecodeError::Invalid("cluster UID"));
        }
        if hello.labels.len() > limits::LABELS {
            return Err(DecodeError::TooMany("labels"));
        }
        Ok(Self {
            versions: WireVersions { min: WireVersion(hello.version_min), max: WireVersion(hello.version_max) },
            agent_version: limits::plain(&hello.agent_version, limits::WORD),
            cluster: hello.cluster.into(),
            cluster_uid: hello.cluster_uid.into(),
            epoch: Epoch(hello.epoch),
            instance: hello.instance,
            labels: hello.labels.into_iter().map(|(key, value)| (label(&key), label(&value))).collect(),
            capabilities: hello.capabilities.into_iter().collect(),
            patience: (hello.patience_millis > 0).then(|| Duration::from_millis(hello.patience_millis.into())),
        })
    }
}

impl From<Hello> for proto::Hello {
    fn from(hello: Hello) -> Self {
        Self {
            version_min: hello.versions.min.0,
            version_max: hello.versions.max.0,
            agent_version: hello.agent_version,
            cluster: hello.cluster.into(),
            cluster_uid: hello.cluster_uid.into(),
            epoch: hello.epoch.0,
            instance: hello.instance,
            labels: hello.labels,
            capabilities: hello.capabilities.into_iter().collect(),
            patience_millis: hello
                .patience
                .map_or(0, |patience| u32::try_from(patience.as_millis()).unwrap_or(u32::MAX).max(1)),
        }
    }
}

impl TryFrom<proto::Summary> for Summary {
    type Error = DecodeError;

    fn try_from(summary: proto::Summary) -> Result<Self, DecodeError> {
        if summary.entries.len() > limits::KEYS_PER_PEER {
            return Err(DecodeError::TooMany("keys"));
        }
        let mut entries = BTreeMap::new();
        for entry in summary.entries {
            let digest = digest(&entry.digest)?;
            if let Some(key) = known_key(entry.key)? {
                entries.insert(key, digest);
            }
        }
        Ok(Self { epoch: Epoch(summary.epoch), sequence: summary.sequence, complete: summary.complete, entries })
    }
}

impl From<&StateKey> for proto::Key {
    fn from(key: &StateKey) -> Self {
        let (kind, burst) = match key {
            StateKey::Desired(burst) => (1, burst),
            StateKey::Observed(burst) => (2, burst),
        };
        Self { kind, burst: burst.as_str().to_owned() }
    }
}

impl From<Capacity> for proto::Capacity {
    fn from(capacity: Capacity) -> Self {
        let possible = capacity.possible.map(|possible| {
            let PossibleCapacity { nodes, cores, memory_mib, gpus, largest_node_cores, price, wait_seconds } = possible;
            let price = price.map(|Price { core_hour, gpu_hour }| proto::Price {
                core_hour: core_hour.millionths(),
                gpu_hour: gpu_hour.millionths(),
            });
            proto::PossibleCapacity { nodes, cores, memory_mib, gpus, largest_node_cores, price, wait_seconds }
        });
        let room = |room: NamespaceRoom| {
            let NamespaceRoom { namespace, mini_clusters, brokers, milli_cores, memory_mib, gpus } = room;
            proto::NamespaceRoom { namespace, mini_clusters, brokers, milli_cores, memory_mib, gpus }
        };
        Self {
            nodes: capacity.nodes,
            free_cores: capacity.free_cores,
            free_memory_mib: capacity.free_memory_mib,
            free_gpus: capacity.free_gpus,
            largest_free_node_cores: capacity.largest_free_node_cores,
            free_brokers: capacity.free_brokers,
            free_bursts: capacity.free_bursts,
            rooms: capacity.rooms.into_iter().take(limits::ROOMS).map(room).collect(),
            whole: capacity.whole,
            possible,
        }
    }
}

impl From<proto::Capacity> for Capacity {
    fn from(capacity: proto::Capacity) -> Self {
        let possible = capacity.possible.map(|possible| {
            let proto::PossibleCapacity { nodes, cores, memory_mib, gpus, largest_node_cores, price, wait_seconds } =
                possible;
            let memory_mib = memory_mib.min(MEMORY_MIB);
            let price = price.map(|proto::Price { core_hour, gpu_hour }| Price {
                core_hour: Money::of_millionths(core_hour),
                gpu_hour: Money::of_millionths(gpu_hour),
            });
            PossibleCapacity { nodes, cores, memory_mib, gpus, largest_node_cores, price, wait_seconds }
        });
        let mut rooms: Vec<_> = capacity.rooms.into_iter().take(limits::ROOMS).map(NamespaceRoom::from).collect();
        rooms.sort();
        // They become a list by namespace in a status.
        rooms.dedup_by(|next, first| next.namespace == first.namespace);
        Self {
            nodes: capacity.nodes,
            free_cores: capacity.free_cores,
            free_memory_mib: capacity.free_memory_mib.min(MEMORY_MIB),
            free_gpus: capacity.free_gpus,
            largest_free_node_cores: capacity.largest_free_node_cores,
            free_brokers: capacity.free_brokers,
            free_bursts: capacity.free_bursts,
            rooms,
            whole: capacity.whole,
            possible,
        }
    }
}

impl From<proto::NamespaceRoom> for NamespaceRoom {
    fn from(room: proto::NamespaceRoom) -> Self {
        let proto::NamespaceRoom { namespace, mini_clusters, brokers, milli_cores, memory_mib, gpus } = room;
        Self {
            namespace: label(&namespace),
            mini_clusters,
            brokers,
            milli_cores: milli_cores.map(|amount| amount.min(MILLI_CORES)),
            memory_mib: memory_mib.map(|amount| amount.min(MEMORY_MIB)),
            gpus,
        }
    }
}

fn label(text: &str) -> String {
    limits::plain(text, limits::WORD)
}

/// `Ok(None)`: a kind of key of a newer version.
fn known_key(key: Option<proto::Key>) -> Result<Option<StateKey>, DecodeError> {
    let fits = |key: &proto::Key| (1..=limits::UID).contains(&key.burst.len());
    let key = key.filter(fits).ok_or(DecodeError::Invalid("key"))?;
    let burst = BurstUid::from(key.burst);
    Ok(match key.kind {
        1 => Some(StateKey::Desired(burst)),
        2 => Some(StateKey::Observed(burst)),
        _ => None,
    })
}

fn known_keys(keys: Vec<proto::Key>) -> Result<Vec<StateKey>, DecodeError> {
    if keys.len() > limits::KEYS_PER_PEER {
        return Err(DecodeError::TooMany("keys"));
    }
    keys.into_iter().filter_map(|key| known_key(Some(key)).transpose()).collect()
}

fn digest(bytes: &Bytes) -> Result<Digest, DecodeError> {
    Digest::received(bytes).ok_or(DecodeError::Invalid("digest"))
}

#[cfg(test)]
mod tests;
