//! One slot of a rank map: the root's own brokers, or the brokers of one burst.

use super::Hostlist;

/// A run of consecutive ranks that are placed together: the root's own brokers, or one burst.
///
/// A slot says what its brokers are, never where they run: the same slot may be placed on one cluster today and on
/// another after a restart, and nothing renumbers.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Slot {
    /// Name of the MiniCluster and of its Job: its hosts are `<name>-0`, `<name>-1`, …
    pub name: String,
    /// Declared brokers; the Job may run fewer. At least 1.
    pub max_size: u32,
    /// Cores per broker, at least 1.
    pub cores: u32,
    /// GPUs per broker.
    pub gpus: u32,
    /// An earlier slot whose host 0 is the overlay parent of this slot's host 0; this slot's other hosts are then
    /// children of its own host 0, the gateway. `None`: every host is a child of rank 0.
    pub parent: Option<String>,
    /// Properties of RFC 20 that jobs may ask for, such as `burst-<slot>`. [`super::RankMap::new`] sorts them.
    pub properties: Vec<String>,
}

impl Slot {
    /// A slot of `max_size` brokers with one core each, no GPU, no parent and no property: the root's own.
    pub fn root(name: impl Into<String>, max_size: u32) -> Self {
        Self { name: name.into(), max_size, cores: 1, gpus: 0, parent: None, properties: Vec::new() }
    }

    /// A slot of `max_size` brokers with one core each and the property `burst-<name>`. `parent` is what
    /// [`super::Topology::parent_of_bursts`] says for the root's slot.
    pub fn burst(name: impl Into<String>, max_size: u32, parent: Option<String>) -> Self {
        let name = name.into();
        let properties = vec![format!("burst-{name}")];
        Self { parent, properties, ..Self::root(name, max_size) }
    }

    /// The same slot with so many cores and GPUs per broker.
    #[must_use]
    pub fn with_resources(self, cores: u32, gpus: u32) -> Self {
        Self { cores, gpus, ..self }
    }

    /// The same slot with one more property.
    #[must_use]
    pub fn with_property(mut self, property: impl Into<String>) -> Self {
        self.properties.push(property.into());
        self
    }

    /// Host name of the slot's broker `index`: what the pod of that completion index is called.
    pub fn host(&self, index: u32) -> String {
        format!("{}-{index}", self.name)
    }

    /// Host names of all declared brokers.
    pub(crate) fn hosts(&self) -> impl Iterator<Item = String> + '_ {
        (0..self.max_size).map(|index| self.host(index))
    }

    /// The hosts from index `first` on, compact.
    pub(super) fn hostlist_from(&self, first: u32) -> Hostlist {
        Hostlist::from_hosts((first..self.max_size).map(|index| self.host(index)))
            .expect("names and sizes were checked when the rank map was made")
    }
}
