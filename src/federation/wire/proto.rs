//! The messages as protobuf sees them. Field numbers are the wire: never changed, never used twice. Read them as types
//! through [`super::messages`].

use std::collections::BTreeMap;

use bytes::Bytes;
use prost::{Message, Oneof};

/// One control frame.
#[derive(Clone, PartialEq, Message)]
pub struct Envelope {
    /// What it carries; `None` after decoding: a message of a newer version, to be skipped.
    #[prost(oneof = "Body", tags = "1, 2, 3, 4, 5, 6, 7, 8")]
    pub body: Option<Body>,
}

/// What a control frame carries.
#[derive(Clone, PartialEq, Oneof)]
pub enum Body {
    /// First frame of each side.
    #[prost(message, tag = "1")]
    Hello(Hello),
    /// The hello is accepted.
    #[prost(message, tag = "2")]
    HelloAck(HelloAck),
    /// Sign of life.
    #[prost(message, tag = "3")]
    Heartbeat(Heartbeat),
    /// All keys of the sender.
    #[prost(message, tag = "4")]
    Summary(Summary),
    /// Keys whose state the sender of this wants.
    #[prost(message, tag = "5")]
    Want(Want),
    /// One state.
    #[prost(message, tag = "6")]
    Put(Put),
    /// A state that could not be used.
    #[prost(message, tag = "7")]
    Reject(Reject),
    /// What the sender could give; from version 2 on.
    #[prost(message, tag = "8")]
    Capacity(Exported),
}

/// Who speaks.
#[derive(Clone, PartialEq, Message)]
pub struct Hello {
    /// Oldest version of the messages the sender speaks.
    #[prost(uint32, tag = "1")]
    pub version_min: u32,
    /// Newest version of the messages the sender speaks.
    #[prost(uint32, tag = "2")]
    pub version_max: u32,
    /// Version of the agent, for people.
    #[prost(string, tag = "3")]
    pub agent_version: String,
    /// Name of the sender's cluster.
    #[prost(string, tag = "4")]
    pub cluster: String,
    /// UID of the sender's cluster.
    #[prost(string, tag = "5")]
    pub cluster_uid: String,
    /// Leadership the sender speaks for.
    #[prost(fixed64, tag = "6")]
    pub epoch: u64,
    /// Random per process: sequences of one process are comparable.
    #[prost(fixed64, tag = "7")]
    pub instance: u64,
    /// Labels of the sender's cluster.
    #[prost(btree_map = "string, string", tag = "8")]
    pub labels: BTreeMap<String, String>,
    /// Additions the sender understands.
    #[prost(string, repeated, tag = "9")]
    pub capabilities: Vec<String>,
    /// Milliseconds of silence after which the sender suspects the receiver; 0: it does not say.
    #[prost(uint32, tag = "10")]
    pub patience_millis: u32,
}

/// The hello is accepted.
#[derive(Clone, PartialEq, Message)]
pub struct HelloAck {
    /// The version in use from now on.
    #[prost(uint32, tag = "1")]
    pub version: u32,
}

/// Sign of life.
#[derive(Clone, PartialEq, Message)]
pub struct Heartbeat {
    /// In version 1: the sender's capacity, as far as it is exported to the receiver.
    #[prost(message, optional, tag = "1")]
    pub capacity: Option<Capacity>,
}

/// What the sender could give to the receiver.
#[derive(Clone, PartialEq, Message)]
pub struct Exported {
    /// Its capacity; absent: it is not exported any more.
    #[prost(message, optional, tag = "1")]
    pub capacity: Option<Capacity>,
}

/// [`tributary_contract::Capacity`].
#[derive(Clone, PartialEq, Message)]
pub struct Capacity {
    /// Schedulable, ready nodes.
    #[prost(uint32, tag = "1")]
    pub nodes: u32,
    /// Whole cores.
    #[prost(uint32, tag = "2")]
    pub free_cores: u32,
    /// MiB.
    #[prost(uint64, tag = "3")]
    pub free_memory_mib: u64,
    /// GPUs.
    #[prost(uint32, tag = "4")]
    pub free_gpus: u32,
    /// Most free cores on one node.
    #[prost(uint32, tag = "5")]
    pub largest_free_node_cores: u32,
    /// Brokers still admitted.
    #[prost(uint32, optional, tag = "6")]
    pub free_brokers: Option<u32>,
    /// Bursts still admitted.
    #[prost(uint32, optional, tag = "7")]
    pub free_bursts: Option<u32>,
    /// What FluxSetups leave.
    #[prost(message, repeated, tag = "8")]
    pub rooms: Vec<NamespaceRoom>,
    /// Bursts may be whole instances.
    #[prost(bool, tag = "9")]
    pub whole: bool,
    /// What nodes could give that are not there.
    #[prost(message, optional, tag = "10")]
    pub possible: Option<PossibleCapacity>,
}

/// [`tributary_contract::PossibleCapacity`].
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct PossibleCapacity {
    /// How many nodes.
    #[prost(uint32, tag = "1")]
    pub nodes: u32,
    /// Whole cores.
    #[prost(uint32, tag = "2")]
    pub cores: u32,
    /// MiB.
    #[prost(uint64, tag = "3")]
    pub memory_mib: u64,
    /// GPUs.
    #[prost(uint32, tag = "4")]
    pub gpus: u32,
    /// Most cores of one node.
    #[prost(uint32, tag = "5")]
    pub largest_node_cores: u32,
    /// The highest price.
    #[prost(message, optional, tag = "6")]
    pub price: Option<Price>,
    /// Seconds.
    #[prost(uint32, tag = "7")]
    pub wait_seconds: u32,
}

/// [`tributary_contract::Price`], in millionths.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct Price {
    /// A core for an hour.
    #[prost(uint64, tag = "1")]
    pub core_hour: u64,
    /// A GPU for an hour.
    #[prost(uint64, tag = "2")]
    pub gpu_hour: u64,
}

/// [`tributary_contract::NamespaceRoom`].
#[derive(Clone, PartialEq, Eq, Message)]
pub struct NamespaceRoom {
    /// Namespace of the root, or `*`.
    #[prost(string, tag = "1")]
    pub namespace: String,
    /// Bursts.
    #[prost(uint32, optional, tag = "2")]
    pub mini_clusters: Option<u32>,
    /// Brokers.
    #[prost(uint32, optional, tag = "3")]
    pub brokers: Option<u32>,
    /// Thousandths of a core.
    #[prost(uint64, optional, tag = "4")]
    pub milli_cores: Option<u64>,
    /// MiB.
    #[prost(uint64, optional, tag = "5")]
    pub memory_mib: Option<u64>,
    /// GPUs.
    #[prost(uint32, optional, tag = "6")]
    pub gpus: Option<u32>,
}

/// [`tributary_contract::ports::StateKey`].
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Key {
    /// 1: desired, 2: observed.
    #[prost(uint32, tag = "1")]
    pub kind: u32,
    /// UID of the Burst.
    #[prost(string, tag = "2")]
    pub burst: String,
}

/// All keys of the sender, with the digest of each state.
#[derive(Clone, PartialEq, Message)]
pub struct Summary {
    /// Leadership.
    #[prost(fixed64, tag = "1")]
    pub epoch: u64,
    /// Position in what the sender's process says.
    #[prost(uint64, tag = "2")]
    pub sequence: u64,
    /// The list is all there is: absence may be concluded from.
    #[prost(bool, tag = "3")]
    pub complete: bool,
    /// The keys.
    #[prost(message, repeated, tag = "4")]
    pub entries: Vec<Entry>,
}

/// A key and the digest of its state.
#[derive(Clone, PartialEq, Message)]
pub struct Entry {
    /// The key.
    #[prost(message, optional, tag = "1")]
    pub key: Option<Key>,
    /// Digest by the sender of the summary.
    #[prost(bytes = "bytes", tag = "2")]
    pub digest: Bytes,
}

/// Keys of the receiver whose state the sender of this wants.
#[derive(Clone, PartialEq, Message)]
pub struct Want {
    /// The keys.
    #[prost(message, repeated, tag = "1")]
    pub keys: Vec<Key>,
}

/// One state.
#[derive(Clone, PartialEq, Message)]
pub struct Put {
    /// Leadership.
    #[prost(fixed64, tag = "1")]
    pub epoch: u64,
    /// Position in what the sender's process says.
    #[prost(uint64, tag = "2")]
    pub sequence: u64,
    /// The key.
    #[prost(message, optional, tag = "3")]
    pub key: Option<Key>,
    /// Digest of the state.
    #[prost(bytes = "bytes", tag = "4")]
    pub digest: Bytes,
    /// The state, as JSON; absent: a tombstone.
    #[prost(bytes = "bytes", optional, tag = "5")]
    pub state: Option<Bytes>,
}

/// A state the receiver of a put could not use.
#[derive(Clone, PartialEq, Message)]
pub struct Reject {
    /// The key.
    #[prost(message, optional, tag = "1")]
    pub key: Option<Key>,
    /// Digest of the state that was put.
    #[prost(bytes = "bytes", tag = "2")]
    pub digest: Bytes,
    /// One sentence.
    #[prost(string, tag = "3")]
    pub problem: String,
}

/// [`tributary_contract::CredentialRequest`], on a stream of its own.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct CredentialRequest {
    /// UID of the Burst.
    #[prost(string, tag = "1")]
    pub burst: String,
    /// Incarnation.
    #[prost(string, tag = "2")]
    pub incarnation: String,
    /// Digest that was offered.
    #[prost(string, tag = "3")]
    pub digest: String,
}

/// Answer to a [`CredentialRequest`]. Holds a secret: its Debug shows lengths only.
#[derive(Clone, PartialEq, Message)]
#[prost(skip_debug)]
pub(crate) struct CredentialAnswer {
    /// The certificate; absent: refused.
    #[prost(string, optional, tag = "1")]
    pub certificate: Option<String>,
    /// Why it is refused: 1 not for you, 2 not ready.
    #[prost(uint32, tag = "2")]
    pub refusal: u32,
}

impl std::fmt::Debug for CredentialAnswer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CredentialAnswer")
            .field("certificate", &self.certificate.as_ref().map(|text| format!("{} bytes", text.len())))
            .field("refusal", &self.refusal)
            .finish()
    }
}

impl Drop for CredentialAnswer {
    fn drop(&mut self) {
        use zeroize::Zeroize as _;
        self.certificate.zeroize();
    }
}

/// A read-only query, on a stream of its own.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct QueryRequest {
    /// What is asked.
    #[prost(string, tag = "1")]
    pub query: String,
}

/// Answer to a [`QueryRequest`].
#[derive(Clone, PartialEq, Message)]
pub(crate) struct QueryAnswer {
    /// A JSON document; absent: unknown query, or not exported to the asking peer.
    #[prost(bytes = "bytes", optional, tag = "1")]
    pub document: Option<Bytes>,
}

/// An offer of a new trust bundle.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct TrustOffer {
    /// All authorities that may sign the sender's certificate from now on, PEM.
    #[prost(string, tag = "1")]
    pub bundle: String,
    /// Signatures over it: see [`crate::identity::succession`].
    #[prost(bytes = "vec", repeated, tag = "2")]
    pub signatures: Vec<Vec<u8>>,
}

/// What became of the offer.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct TrustAnswer {
    /// 1: taken, 2: manual, 3: refused, else: unavailable.
    #[prost(uint32, tag = "1")]
    pub outcome: u32,
}

/// Opens a stream of kind Tunnel, or goes on with a connection whose stream broke.
#[derive(Clone, PartialEq, Eq, Message)]
pub(crate) struct TunnelOpen {
    /// UID of the Burst.
    #[prost(string, tag = "1")]
    pub burst: String,
    /// Incarnation.
    #[prost(string, tag = "2")]
    pub incarnation: String,
    /// Random per process of the opener.
    #[prost(fixed64, tag = "3")]
    pub process: u64,
    /// Which of its connections.
    #[prost(uint64, tag = "4")]
    pub connection: u64,
    /// An answer was had before: if the connection is not known, it is gone.
    #[prost(bool, tag = "5")]
    pub resumes: bool,
    /// Position up to which everything has arrived at the opener.
    #[prost(uint64, tag = "6")]
    pub position: u64,
    /// Bytes that may be under way to the opener; none from a version that knows no windows.
    #[prost(uint32, optional, tag = "7")]
    pub window: Option<u32>,
    /// The ends live in the pods of the brokers: bytes are relayed to the one in the lead's pod. Only for those who can.
    #[prost(bool, tag = "8")]
    pub relay: bool,
}

/// Answer to a [`TunnelOpen`].
#[derive(Clone, PartialEq, Eq, Message)]
pub(crate) struct TunnelAnswer {
    /// 1: open, 2: not yours, 3: gone, 4: the lead cannot be reached, 5: too many, 6: no end in its pod; else: try again later.
    #[prost(uint32, tag = "1")]
    pub outcome: u32,
    /// Position up to which everything has arrived at the answerer.
    #[prost(uint64, tag = "2")]
    pub position: u64,
    /// One sentence, if it is not open.
    #[prost(string, tag = "3")]
    pub message: String,
    /// Bytes that may be under way to the answerer; none from a version that knows no windows.
    #[prost(uint32, optional, tag = "4")]
    pub window: Option<u32>,
}
