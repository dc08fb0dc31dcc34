//! The user guide: one page a module.

#[doc = include_str!("migrating.md")]
pub mod migrating {}
