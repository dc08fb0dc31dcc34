//! What rendering needs to know besides the MiniCluster itself.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tributary_config::{BurstingConfig, VolumesConfig};
use tributary_flux::RankMap;

/// DNS domain of most clusters.
pub(crate) const DEFAULT_CLUSTER_DOMAIN: &str = "cluster.local";

/// Network interface of pods on most networks; upstream's brokers listen on it too.
pub(crate) const DEFAULT_INTERFACE: &str = "eth0";

/// Facts from outside of the spec. The caller reads them; nothing in this room asks an API server.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Context {
    /// DNS domain of this cluster.
    pub cluster_domain: String,
    /// Network interface that brokers listen on; `*` for all.
    pub interface: String,
    /// Set if the MiniCluster is hosted: its controller owner is a HostedBurst.
    pub hosted: Option<HostedSide>,
    /// Which PersistentVolumes may be made here.
    pub volumes: VolumesConfig,
    /// How long a provider keeps the brokers of a burst without contact with the root.
    pub lease: Duration,
    /// The program that holds brokers' connections through the tunnel, beside them; `None`: they end in the agents. Of a hosted
    /// MiniCluster, also if it does not use the tunnel.
    pub ends: Option<Ends>,
}

/// A program, of at most 1 MiB less some room: see [`Ends::MOST`]. Cloning shares it.
#[derive(Clone, PartialEq, Eq)]
pub struct Ends(Arc<[u8]>);

impl Ends {
    /// Most bytes: a ConfigMap holds 1 MiB.
    pub const MOST: usize = 1_000_000;

    /// This program; `None` if no ConfigMap can hold it.
    pub fn new(program: Vec<u8>) -> Option<Self> {
        (program.len() <= Self::MOST).then(|| Self(program.into()))
    }

    /// Its bytes.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for Ends {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Ends({} bytes)", self.0.len())
    }
}

impl Default for Context {
    fn default() -> Self {
        Self {
            cluster_domain: DEFAULT_CLUSTER_DOMAIN.to_owned(),
            interface: DEFAULT_INTERFACE.to_owned(),
            hosted: None,
            volumes: VolumesConfig::default(),
            lease: BurstingConfig::default().lease(),
            ends: None,
        }
    }
}

/// What a HostedBurst says about the MiniCluster it owns.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HostedSide {
    /// The rank map of the whole instance, as the root computed it.
    pub rank_map: RankMap,
    /// The slot this MiniCluster fills; also its name.
    pub slot: String,
    /// Name of the Service of this namespace that stands for the lead broker.
    pub lead_service: String,
    /// Port of that Service.
    pub lead_port: u16,
}
