//! The MiniCluster controller: a pipeline, one file per step.
//!
//! ```text
//! dereference ─▶ render (pure, crate::render) ─▶ decide (pure) ─▶ apply ─▶ status (pure) ─▶ apply status
//!  caches only                                                     writes                    writes
//! ```
//!
//! | file | what it does | talks to the API server |
//! |---|---|---|
//! | [`view`] | the slim kinds that are watched | – |
//! | [`dereference`] | everything known about one MiniCluster, from the caches | no |
//! | [`decide`] | what has to be done | no |
//! | [`apply`] | does it | yes |
//! | [`status`], [`notices`] | the new status, and which events it is worth | no |
//! | [`controller`] | caches, queue and worker | – |
//!
//! An **incarnation** is the life of one Job. Boot files, rank map and certificate are frozen when the Job is created
//! and stored with it (annotation [`crate::api::labels::BOOT`]); while it lives nothing of them changes.

pub mod apply;
pub mod certificate;
pub mod controller;
pub mod decide;
pub mod dereference;
pub mod notices;
pub mod status;
pub mod view;

pub use controller::Controller;
