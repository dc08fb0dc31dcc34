//! What a provider says of a burst it was offered.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::{BurstUid, Rejection};

/// Where a burst stands, in the order a good one passes through.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize)]
pub enum Phase {
    /// No peer chosen yet, or the peer has not answered.
    #[default]
    Pending,
    /// Sent to a peer, no answer yet (root side only).
    Offered,
    /// Admitted: room is reserved, the certificate is asked for.
    Accepted,
    /// MiniCluster, Secret and lead Service are being made; pods start.
    Provisioning,
    /// All pods run; brokers join the instance.
    Joining,
    /// Every wanted broker is online.
    Ready,
    /// Leaving: brokers drain, then everything is deleted.
    Draining,
    /// Nothing is left on the provider.
    Released,
    /// The provider said no; the rejection says why.
    Rejected,
    /// The provider's owner deleted the HostedBurst.
    Evicted,
    /// The peer is gone and its lease may still run (root side only).
    Lost,
}

impl Phase {
    /// The word users see.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "Pending",
            Self::Offered => "Offered",
            Self::Accepted => "Accepted",
            Self::Provisioning => "Provisioning",
            Self::Joining => "Joining",
            Self::Ready => "Ready",
            Self::Draining => "Draining",
            Self::Released => "Released",
            Self::Rejected => "Rejected",
            Self::Evicted => "Evicted",
            Self::Lost => "Lost",
        }
    }

    /// The provider holds, or may hold, something for this burst: its ranks must not be placed elsewhere.
    pub const fn occupies(self) -> bool {
        !matches!(self, Self::Pending | Self::Released | Self::Rejected | Self::Evicted)
    }
}

impl std::fmt::Display for Phase {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

/// When each step was reached, on the provider's wall clock.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PhaseTimes {
    /// Admitted.
    pub accepted: Option<Timestamp>,
    /// MiniCluster, Secret and Service exist.
    pub provisioned: Option<Timestamp>,
    /// Every wanted broker online for the first time.
    pub ready: Option<Timestamp>,
    /// Nothing left.
    pub released: Option<Timestamp>,
}

/// The provider's answer to one [`super::DesiredBurst`]. Replaced as a whole.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ObservedBurst {
    /// UID of the Burst object this is about.
    pub uid: BurstUid,
    /// Generation of the Burst this answers.
    pub observed_generation: u64,
    /// Incarnation this answers (UID of the root's Job).
    pub incarnation: String,
    /// Where it stands.
    pub phase: Phase,
    /// Why not, when `phase` is `Rejected` or `Evicted`.
    pub rejection: Option<Rejection>,
    /// UID of the HostedBurst, once made.
    pub hosted_uid: Option<String>,
    /// Brokers online (ready pods).
    pub ready_brokers: u32,
    /// Digest the provider computed from the rank map.
    pub rank_map_digest: Option<String>,
    /// Digest of the certificate the provider holds; `None` until it has it.
    pub credential_digest: Option<String>,
    /// Endpoint its lead Service has now.
    pub lead: Option<super::LeadAddress>,
    /// One sentence for people.
    pub message: String,
    /// When each step was reached.
    pub times: PhaseTimes,
}
