#![doc = include_str!("README.md")]

#[doc = include_str!("diagnosing.md")]
pub mod diagnosing {}

#[doc = include_str!("federating.md")]
pub mod federating {}

#[doc = include_str!("bursting.md")]
pub mod bursting {}

#[doc = include_str!("agentctl.md")]
pub mod agentctl {}

#[doc = include_str!("fields.md")]
pub mod fields {}

#[doc = include_str!("kinds.md")]
pub mod kinds {}

#[doc = include_str!("metrics.md")]
pub mod metrics {}

#[doc = include_str!("migrating.md")]
pub mod migrating {}

#[doc = include_str!("operating.md")]
pub mod operating {}

#[doc = include_str!("queueing.md")]
pub mod queueing {}

#[doc = include_str!("using.md")]
pub mod using {}

#[doc = include_str!("v1alpha1.md")]
pub mod v1alpha1 {}

#[doc = include_str!("starting.md")]
pub mod starting {}

#[doc = include_str!("troubleshooting.md")]
pub mod troubleshooting {}

#[doc = include_str!("releases.md")]
pub mod releases {}

#[doc = include_str!("concepts.md")]
pub mod concepts {}

#[doc = include_str!("security.md")]
pub mod security {}

#[doc = include_str!("installing.md")]
pub mod installing {}

#[doc = include_str!("first-burst.md")]
pub mod first_burst {}

#[doc = include_str!("architecture.md")]
pub mod architecture {}

#[doc = include_str!("configuration.md")]
pub mod configuration {}

#[doc = include_str!("cost.md")]
pub mod cost {}

#[doc = include_str!("glossary.md")]
pub mod glossary {}

#[doc = include_str!("limits.md")]
pub mod limits {}

#[doc = include_str!("measured.md")]
pub mod measured {}

#[doc = include_str!("proof.md")]
pub mod proof {}

#[doc = include_str!("mpi.md")]
pub mod mpi {}

#[doc = include_str!("names.md")]
pub mod names {}

#[doc = include_str!("uninstalling.md")]
pub mod uninstalling {}
