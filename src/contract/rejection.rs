//! Why a provider does not take a burst.

use serde::{Deserialize, Serialize};

macro_rules! reasons {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Machine-readable reason. Values are part of the wire: retired ones stay listed.
        #[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
        pub enum RejectionReason {
            $($(#[$doc])* $name,)*
            /// A reason of a newer version.
            #[serde(untagged)]
            Other(String),
        }

        impl RejectionReason {
            /// Those of this version.
            pub const KNOWN: &'static [Self] = &[$(Self::$name,)*];

            /// The word conditions and users see.
            pub fn as_str(&self) -> &str {
                match self {
                    $(Self::$name => stringify!($name),)*
                    Self::Other(reason) => reason,
                }
            }
        }
    };
}

reasons! {
    /// The ClusterPeer of this root has no `import`.
    ImportNotAllowed,
    /// The namespace is not among `import.namespaces`.
    NamespaceNotAllowed,
    /// The namespace does not exist on the provider.
    NamespaceNotFound,
    /// `import.maxBursts` is reached.
    TooManyBursts,
    /// `import.maxBrokers` would be exceeded.
    TooManyBrokers,
    /// `import.maxCores` would be exceeded.
    TooManyCores,
    /// `import.maxGpus` would be exceeded.
    TooManyGpus,
    /// `import.maxMemory` would be exceeded, or a container does not say how much it requests.
    TooMuchMemory,
    /// `import.maxEphemeralStorage` would be exceeded, or a container does not say how much it requests.
    TooMuchEphemeralStorage,
    /// The root's cluster offers more than `import.maxOffersPerMinute`: this one is looked at in its turn.
    TooManyOffers,
    /// A ResourceQuota of the namespace would be exceeded.
    QuotaExceeded,
    /// The FluxSetup of the namespace grants the root's cluster nothing, or has no room for it now.
    NoRoomInQueue,
    /// The provider's owner drains the peer.
    Draining,
    /// No node, or not enough nodes, with the wanted cores or GPUs per broker.
    NotEnoughCores,
    /// `import.scaleUp.maxNodes`, or `max` of a group, would be exceeded.
    TooManyNodes,
    /// The nodes that it was to bring did not come in time: it was given back.
    ScaleUpTimedOut,
    /// The nodes that it was to bring were asked for and refused, or taken back: it was given back, or not taken at all.
    ScaleUpFailed,
    /// A queue of the provider's owner did not let its Job start in time: it was given back.
    QueueTimedOut,
    /// None of its pods was on a node for too long, since others took the room or a quota refuses them: it was given back.
    PodsNotScheduled,
    /// No node started one of its pods for too long: its image is not pulled, or an object that its environment names is
    /// missing. It was given back.
    PodsNotStarted,
    /// Both sides compute another rank map.
    RankMapMismatch,
    /// Flux major.minor differs.
    FluxVersionMismatch,
    /// The template has a field this provider does not know or that cannot be parsed.
    InvalidTemplate,
    /// The template refers to an object or sets a field the import policy does not name.
    PolicyForbids,
    /// The rendered pod does not pass the pod-security level of the import policy.
    PodSecurity,
    /// The API server refuses the objects (dry run).
    NotRenderable,
    /// The lead's address is one of the provider's own, none of another machine's, or in none of `import.leadRanges`.
    LeadAddressRefused,
    /// An object of that name exists and is not ours.
    NameTaken,
    /// The HostedBurst was deleted by the provider's owner.
    EvictedByProvider,
}

/// A refusal with its sentence.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, thiserror::Error)]
#[error("{message}")]
pub struct Rejection {
    /// Machine-readable reason.
    pub reason: RejectionReason,
    /// What was refused, on which object, and what its owner can do.
    pub message: String,
}

impl Rejection {
    /// A rejection with its sentence.
    pub fn new(reason: RejectionReason, message: impl Into<String>) -> Self {
        Self { reason, message: message.into() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_are_plain_words_on_the_wire_and_unknown_ones_survive() {
        let known = serde_json::to_string(&RejectionReason::PodSecurity).unwrap();
        assert_eq!(known, "\"PodSecurity\"");
        assert_eq!(serde_json::from_str::<RejectionReason>(&known).unwrap(), RejectionReason::PodSecurity);
        let newer: RejectionReason = serde_json::from_str("\"MoonPhase\"").unwrap();
        assert_eq!(newer.as_str(), "MoonPhase");
        assert_eq!(serde_json::to_string(&newer).unwrap(), "\"MoonPhase\"");
    }
}
