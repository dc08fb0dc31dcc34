//! The queue of a namespace: who may start, by the quota of its FluxSetup.
//!
//! ```text
//! FluxJob ─┐                           ┌─▶ FluxJob.status, then the MiniCluster that it owns, or the Burst
//!          ├─▶ round (pure, schedule) ─┤
//! MiniCluster, before its Job is made ─┘└─▶ admission: the reconciler makes the Job, or lets it grow
//!              and before it grows
//! ```
//!
//! | file | what it does | talks to the API server |
//! |---|---|---|
//! | [`requests`] | amounts: what a quota has, what a MiniCluster takes | no |
//! | [`gpus`] | which resources are GPUs to a quota | no |
//! | [`nodes`] | the port to whoever watches nodes and pods | no |
//! | [`schedule`] | quota, what runs and what waits → who starts | no |
//! | [`job`] | a FluxJob → its MiniCluster, its status | no |
//! | [`claims`] | what FluxJobs take once they start, worked out once | no |
//! | [`limits`] | how long runs take at most | no |
//! | [`priorities`] | PriorityClasses: who goes first | no |
//! | `promises` | nodes that a namespace was promised, before there are pods | no |
//! | `quota_waits` | FluxJobs that the API server does not take now | no |
//! | [`reservations`] | what MiniClusters were let in with, whatever their specs say since | no |
//! | `line` | all objects of a namespace → what they take, or wait for | no |
//! | `placement_context` | what a round sees of nodes and peers | no |
//! | [`round`] | all objects of a namespace → what has to be done | no |
//! | [`overflow`] | a FluxJob that does not fit here: which part of it goes to a peer, or whether all of it does | no |
//! | `evictions` | who threw out the other part of a FluxJob that was split | no |
//! | [`hosted_usage`] | bursts of peers: whether there is room for one more | no |
//! | [`admission`] | where the reconciler asks before it makes a Job | no |
//! | [`figures`] | what the metrics show of queues | no |
//! | [`controller`] | caches, rounds, writes | yes |
//!
//! All state is in the objects. What runs is what has a Job; a FluxJob was admitted when its status says so. In memory is
//! only what is on its way: MiniClusters that asked, and those that were told to start. A new leader knows none of it, so it
//! counts everything that waited as running until it has asked again. With what MiniClusters were started is in their status
//! (see [`reservations`]), and nobody gets what one of them gives up before that says so: a quota is never exceeded by a change of
//! leaders.
#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod admission;
pub(crate) mod claims;
pub mod controller;
mod evictions;
pub mod figures;
pub(crate) mod gpus;
pub mod hosted_usage;
pub mod job;
pub mod limits;
mod line;
pub mod nodes;
pub mod overflow;
mod placement_context;
pub mod priorities;
mod promises;
mod quota_waits;
pub mod requests;
pub(crate) mod reservations;
pub(crate) mod round;
pub mod schedule;
#[cfg(test)]
mod testing;
