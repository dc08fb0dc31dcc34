//! Flux's own formats, as pure functions: what a broker of a federated instance reads at boot.
//!
//! Everything starts at the [`RankMap`]: the ordered slots of one instance, a pure function of the root's spec. Both
//! sides of a burst derive the same [`Hostlist`], [`ResourceSet`] (R), hosts table and digest from it, so that a broker's
//! rank and its resources agree wherever it runs. [`BrokerConfig`] puts them into `broker.toml`; [`Certificate`] is the
//! CURVE key pair that all brokers of one instance share.
//!
//! Nothing in here knows clusters, endpoints or Kubernetes objects: names and paths come in as parameters.
#![cfg_attr(test, allow(clippy::unwrap_used))]

pub(crate) mod broker_toml;
mod canonical;
pub(crate) mod certificate;
pub mod curve;
pub(crate) mod digest;
pub mod hostlist;
pub(crate) mod hosts_table;
pub(crate) mod idset;
pub(crate) mod rank_map;
pub(crate) mod resource_set;
pub(crate) mod slot;
pub(crate) mod topology;
pub mod version;
mod zpl;

pub use broker_toml::{BrokerConfig, BrokerNetwork, BrokerPaths, Side};
pub use certificate::{Certificate, CertificateError, CertificateMetadata};
pub(crate) use digest::{CertificateDigest, RankMapDigest};
pub use hostlist::{Hostlist, HostlistError};
pub(crate) use hosts_table::{HostsEntry, hosts_table};
pub use idset::{Idset, IdsetError};
pub use rank_map::{RankMap, RankMapError};
pub use resource_set::ResourceSet;
pub use slot::Slot;
pub use topology::{Topology, TopologyError};
pub use version::FluxVersion;
