//! What the two halves of a burst say to each other, and the ports between the rooms that say it.
//!
//! One direction each: the **root** cluster states what it desires ([`DesiredBurst`]), the **provider** answers with what
//! it observes ([`ObservedBurst`]). Both are *states*, never events: the newest replaces the one before, so a lost,
//! repeated or late message does no harm. [`ports`] has the traits: `bursting` implements them, `federation` consumes
//! them, and neither room knows the other.
#![cfg_attr(test, allow(clippy::unwrap_used))]

pub(crate) mod capacity;
pub(crate) mod credential;
pub(crate) mod desired;
pub(crate) mod dirty_set;
pub(crate) mod money;
pub mod observed;
pub(crate) mod peer;
pub mod ports;
pub mod preflight;
pub(crate) mod rejection;
pub mod tunnel;
pub mod word;

pub use capacity::{Capacity, NamespaceRoom, PossibleCapacity};
pub use credential::{Credential, CredentialRefusal, CredentialRequest, Leave};
pub use desired::{DesiredBurst, LeadAddress, RootIdentity};
pub use dirty_set::DirtySet;
pub use money::{Money, Price};
pub use observed::{BurstPhase, ObservedBurst, PhaseTimes, RunReport, UseReport};
pub use peer::{BurstUid, ClusterUid, Epoch, PeerName, PeerReport, PeerSpec, PeerState, Refusal, Traffic};
pub use preflight::{Check, Finding, Outcome};
pub use rejection::{Rejection, RejectionReason};
