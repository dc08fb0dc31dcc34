//! Plumbing to one API server.
//!
//! Generic over kinds: nothing in here knows of MiniClusters or bursts.
//!
//! | file | what it does |
//! |---|---|
//! | [`client`] | a reader that cannot write, a writer that writes only while this agent leads |
//! | [`fence`] | who leads, until when, and the refusal of everything else |
//! | [`caches`] | shared watches that always run, so that a standby is warm |
//! | [`worker`], [`schedule`] | one keyed queue: deduplicated, bounded, with back-off per object |
//! | [`apply`], [`drift`] | server-side apply that sends nothing when nothing differs |
//! | [`conditions`] | merging of `metav1` conditions |
//! | [`error`], [`key`] | a failed request; the name of an object |

pub mod apply;
pub mod caches;
pub mod client;
pub mod conditions;
pub mod drift;
pub mod error;
pub mod fence;
mod guard;
pub mod key;
mod merge_keys;
pub mod schedule;
pub mod worker;

pub use error::{Cause, RequestError};
pub use key::ObjectKey;
