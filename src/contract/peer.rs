//! Who a peer is, how to reach it, and what is known of the connection to it.

use std::borrow::Borrow;
use std::fmt;

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Capacity;

macro_rules! text_id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(String);

        impl $name {
            /// The text itself.
            pub fn as_str(&self) -> &str {
                &self.0
            }
            /// Whether nothing is known.
            pub fn is_empty(&self) -> bool {
                self.0.is_empty()
            }
        }
        impl From<String> for $name {
            fn from(text: String) -> Self {
                Self(text)
            }
        }
        impl From<&str> for $name {
            fn from(text: &str) -> Self {
                Self(text.to_owned())
            }
        }
        impl From<$name> for String {
            fn from(id: $name) -> Self {
                id.0
            }
        }
        impl Borrow<str> for $name {
            fn borrow(&self) -> &str {
                &self.0
            }
        }
        impl AsRef<str> for $name {
            fn as_ref(&self) -> &str {
                &self.0
            }
        }
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
    };
}

text_id! {
    /// Name of a cluster in the federation: the name of its ClusterPeer, and the last segment of its SPIFFE id.
    PeerName
}
text_id! {
    /// UID of a cluster: the UID of its `kube-system` namespace. A cloned or rebuilt cluster has another.
    ClusterUid
}
text_id! {
    /// UID of a Burst object: the key of everything said about that burst.
    BurstUid
}

/// Which leadership of a cluster's agent speaks: the Lease's transitions. A lower one is an old leader and is ignored.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Epoch(pub u64);

/// What the federation needs of a ClusterPeer.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct PeerSpec {
    /// Name of the peer's cluster.
    pub name: PeerName,
    /// `host:port` or `srv:NAME`, tried in order. Empty: this peer dials us.
    pub endpoints: Vec<String>,
    /// PEM certificates that may sign this peer's identity; `None`: our own `ca.crt`.
    pub trust_bundle: Option<String>,
    /// The cluster UID the peer must show; `None` until first contact.
    pub cluster_uid: Option<ClusterUid>,
    /// No connection is made or kept.
    pub suspend: bool,
}

/// Bytes on the wire, IP and UDP headers included.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct Traffic {
    /// To the peer.
    pub sent: u64,
    /// From the peer.
    pub received: u64,
}

/// Where the connection to a peer stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub enum PeerState {
    /// Never connected since this process started, or lost and being dialled.
    #[default]
    Disconnected,
    /// Hello exchanged, heartbeats arrive.
    Connected,
    /// Heartbeats are missing; nothing is concluded yet.
    Suspect,
    /// Refused, by us or by them: [`PeerReport::refusal`] says why.
    Refused,
    /// `spec.suspend` is set.
    Suspended,
}

/// Why a connection to a peer was refused.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Refusal {
    /// CamelCase reason, as conditions carry it: `UnknownPeer`, `CertificateExpired`, `UntrustedCertificate`,
    /// `WrongIdentity`, `WrongTrustDomain`, `WrongClusterUID`, `Suspended`, `IncompatibleVersion`, `StaleEpoch`,
    /// `Unreachable`.
    pub reason: String,
    /// One sentence: what was expected, what was shown, what to do.
    pub message: String,
}

/// All the federation knows of one peer; replaced as a whole.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct PeerReport {
    /// Where the connection stands.
    pub state: PeerState,
    /// The address in use, `ip:port`.
    pub endpoint: Option<String>,
    /// Version of the peer's agent.
    pub version: Option<String>,
    /// The UID the peer showed in its hello.
    pub cluster_uid: Option<ClusterUid>,
    /// Labels of the peer's cluster, as its configuration states them.
    pub labels: std::collections::BTreeMap<String, String>,
    /// The peer's last word on its capacity.
    pub capacity: Option<Capacity>,
    /// Smoothed round-trip time in microseconds.
    pub rtt_micros: Option<u64>,
    /// What the control connection has carried since it was made.
    pub control: Option<Traffic>,
    /// What the connection for broker traffic has carried since it was made, if there is one.
    pub tunnel: Option<Traffic>,
    /// When something was last heard.
    pub last_seen: Option<Timestamp>,
    /// When the state last changed.
    pub since: Option<Timestamp>,
    /// The connection keeps breaking. It may be up all the same ([`PeerReport::state`] says so), but nothing new should
    /// rely on it until it has held for a while.
    pub flapping: bool,
    /// Why there is no connection.
    pub refusal: Option<Refusal>,
}
