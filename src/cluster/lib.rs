//! Plumbing to one API server.
//!
//! Generic over kinds: nothing in here knows of MiniClusters or bursts.
//!
//! | file | what it does |
//! |---|---|
//! | [`client`] | a reader that cannot write, a writer that writes only while this agent leads |
//! | [`fence`] | who leads, until when, and the refusal of everything else |
//! | [`leadership`], [`election`] | the Lease that decides who leads |
//! | [`scope`] | tasks that live as long as a leadership |
//! | [`caches`] | shared watches that always run, so that a standby is warm |
//! | [`engine`] | what every controller is: an observation, a decision, its application |
//! | [`worker`], [`schedule`] | one keyed queue: deduplicated, bounded, with back-off per object |
//! | [`work`], [`requests`] | what workers and clients did, for the metrics |
//! | [`apply`], [`drift`] | the gate that objects are written through: whose they are, and nothing sent when nothing differs |
//! | [`sweep`] | deletion of what is no longer wanted |
//! | [`conditions`], [`events`] | what people read: conditions and events |
//! | [`quotas`] | tells whoever was refused for a ResourceQuota that there is more room |
//! | [`unreadable`] | says of objects that cannot be read why |
//! | [`discovery`], [`readiness`] | waiting for the API server and its kinds, and saying so |
//! | [`traced`] | which trace a change of an object belongs to |
//! | [`error`], [`key`] | a failed request; the name of an object |
//!
//! A process makes, in this order: a closed [`fence::Fence`], the [`client::Clients`] with it, the caches, the
//! [`leadership::Elector`] that opens the fence, and a [`scope::lead`] whose tasks run workers fed by the caches. It ends
//! them the other way round: first the scope, then the elector, which gives the Lease up.
#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod apply;
pub mod caches;
pub mod client;
pub mod conditions;
pub mod discovery;
pub mod drift;
pub mod election;
pub mod engine;
pub mod error;
pub mod events;
pub mod fence;
mod guard;
pub mod key;
pub mod leadership;
pub mod quotas;
pub mod readiness;
pub mod requests;
pub mod schedule;
pub mod scope;
pub mod sweep;
pub mod traced;
pub mod unreadable;
pub mod work;
pub mod worker;

pub use error::{Cause, RequestError};
pub use key::ObjectKey;

#[cfg(test)]
mod tests;
