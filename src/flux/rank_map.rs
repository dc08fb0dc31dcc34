//! The rank map: which host has which rank in one Flux instance.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use super::hostlist::MAX_HOSTS;
use super::{Hostlist, RankMapDigest, Slot, canonical};

/// Most slots of one instance: far more than bursts that anyone declares by hand.
pub(crate) const MAX_SLOTS: usize = 256;

/// Most cores, and most GPUs, of one broker. flux-core allocates memory by the highest id.
pub(crate) const MAX_UNITS: u32 = 65_536;

/// Most properties of one slot.
pub(crate) const MAX_PROPERTIES: usize = 16;

/// Longest property: holds `cluster-` and the longest name Kubernetes gives to an object.
pub(crate) const MAX_PROPERTY_LEN: usize = 261;

/// Longest host name of a pod (one DNS label, RFC 1035).
const MAX_LABEL_LEN: usize = 63;

/// The ordered slots of one Flux instance: a pure function of the root's spec, the same on all clusters.
///
/// The first slot is the root's own; rank 0 is its host 0. Ranks follow the order of slots, then of hosts. It holds the
/// names of slots, never clusters or endpoints. Frozen while an instance runs: other ranks need another instance.
///
/// No two hosts can have one name: `<slot>-<index>` is taken apart at its last hyphen in one way only, so unique slot names
/// make unique hosts, also for slots like `a` and `a-0`.
///
/// ```
/// use tributary_flux::{RankMap, Slot, Topology};
///
/// let parent = Topology::Gateway.parent_of_bursts("lake");
/// let map = RankMap::new(vec![Slot::root("lake", 2), Slot::burst("lake-burst-0", 3, parent)])?;
/// assert_eq!(map.hostlist().to_string(), "lake-[0-1],lake-burst-0-[0-2]");
/// assert_eq!(map.ranks("lake-burst-0"), Some(2..5));
/// # Ok::<(), tributary_flux::RankMapError>(())
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RankMap {
    slots: Vec<Slot>,
}

/// Why slots are no rank map.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum RankMapError {
    /// No slot at all.
    #[error("a rank map needs at least the root's own slot")]
    Empty,
    /// More slots than [`MAX_SLOTS`].
    #[error("{count} slots are more than the {MAX_SLOTS} an instance may have")]
    TooManySlots {
        /// How many.
        count: usize,
    },
    /// Not a DNS-1035 label: it becomes the name of a Service.
    #[error(
        "slot name {slot:?} is no DNS-1035 label: use lower-case letters, digits and hyphens, beginning with a letter"
    )]
    Name {
        /// The name.
        slot: String,
    },
    /// Two slots of one name.
    #[error("slot name {slot:?} is used twice")]
    Duplicate {
        /// The name.
        slot: String,
    },
    /// No broker.
    #[error("slot {slot:?} has no broker: its size must be at least 1")]
    NoBroker {
        /// The slot.
        slot: String,
    },
    /// More hosts than [`MAX_HOSTS`] in all slots.
    #[error("the slots up to {slot:?} declare more than {MAX_HOSTS} brokers")]
    TooManyBrokers {
        /// The slot with which it became too many.
        slot: String,
    },
    /// A host name that is no DNS label.
    #[error("host name {host:?} is longer than {MAX_LABEL_LEN} characters: choose a shorter name")]
    HostTooLong {
        /// The longest host name of the slot.
        host: String,
    },
    /// No core, more cores than [`MAX_UNITS`], or more GPUs.
    #[error(
        "slot {slot:?} has {cores} cores and {gpus} GPUs per broker: 1 to {MAX_UNITS} cores and up to as many GPUs"
    )]
    Resources {
        /// The slot.
        slot: String,
        /// Cores per broker.
        cores: u32,
        /// GPUs per broker.
        gpus: u32,
    },
    /// The root's slot has a parent, or a parent is no earlier slot.
    #[error("slot {slot:?} cannot have the parent {parent:?}: a parent is a slot before it")]
    Parent {
        /// The slot.
        slot: String,
        /// The parent it names.
        parent: String,
    },
    /// More properties than [`MAX_PROPERTIES`].
    #[error("slot {slot:?} has more than {MAX_PROPERTIES} properties")]
    TooManyProperties {
        /// The slot.
        slot: String,
    },
    /// A property that RFC 20 forbids or that jobs could not ask for.
    #[error(
        "property {property:?} of slot {slot:?} is not allowed: 1 to {MAX_PROPERTY_LEN} printable ASCII characters \
         without blanks, commas and ! & ' \" ^ ` | ( )"
    )]
    Property {
        /// The slot.
        slot: String,
        /// The property.
        property: String,
    },
    /// The text is not of the form `rank-map/1`.
    #[error("failed to parse the rank map: line {line} is not {expected}")]
    Syntax {
        /// Line, from 1.
        line: usize,
        /// What should stand there.
        expected: &'static str,
    },
    /// A text that means a rank map, but is not the one text of it.
    #[error("failed to parse the rank map: the text is not in canonical form")]
    NotCanonical,
}

impl RankMap {
    /// Checks the slots. Properties are sorted and repeated ones dropped: their order means nothing.
    ///
    /// # Errors
    /// The first thing that is wrong, see [`RankMapError`].
    pub fn new(mut slots: Vec<Slot>) -> Result<Self, RankMapError> {
        if slots.is_empty() {
            return Err(RankMapError::Empty);
        }
        if slots.len() > MAX_SLOTS {
            return Err(RankMapError::TooManySlots { count: slots.len() });
        }
        let mut earlier = BTreeSet::new();
        let mut brokers: u64 = 0;
        for slot in &mut slots {
            slot.properties.sort_unstable();
            slot.properties.dedup();
            check_slot(slot)?;
            if let Some(parent) = slot.parent.as_ref().filter(|parent| !earlier.contains(*parent)) {
                return Err(RankMapError::Parent { slot: slot.name.clone(), parent: parent.clone() });
            }
            brokers += u64::from(slot.max_size);
            if brokers > MAX_HOSTS as u64 {
                return Err(RankMapError::TooManyBrokers { slot: slot.name.clone() });
            }
            if !earlier.insert(slot.name.clone()) {
                return Err(RankMapError::Duplicate { slot: slot.name.clone() });
            }
        }
        Ok(Self { slots })
    }

    /// Reads the text that [`Self::to_canonical`] writes, and nothing else.
    ///
    /// # Errors
    /// [`RankMapError::Syntax`] with the line, [`RankMapError::NotCanonical`] for another spelling of the same map, and
    /// whatever [`Self::new`] refuses.
    pub fn parse_canonical(text: &str) -> Result<Self, RankMapError> {
        canonical::parse(text)
    }

    /// The one text of this map, in the form `rank-map/1` (see [`Self::digest`]).
    ///
    /// ```text
    /// rank-map/1
    /// slot lake max-size=2 cores=4 gpus=0
    /// slot lake-burst-0 max-size=3 cores=8 gpus=1 parent=lake properties=burst-lake-burst-0,cluster-west
    /// ```
    pub fn to_canonical(&self) -> String {
        canonical::format(self)
    }

    /// Digest of [`Self::to_canonical`]: equal on both sides of a burst, or the burst is not provisioned.
    pub fn digest(&self) -> RankMapDigest {
        RankMapDigest::of(self.to_canonical().as_bytes())
    }

    /// The slots in rank order; never empty.
    pub fn slots(&self) -> &[Slot] {
        &self.slots
    }

    /// The root's own slot.
    pub fn root(&self) -> &Slot {
        self.slots.first().expect("a rank map has at least one slot")
    }

    /// The slots behind the root's own.
    pub fn bursts(&self) -> &[Slot] {
        &self.slots[1..]
    }

    /// The slot of this name.
    pub fn slot(&self, name: &str) -> Option<&Slot> {
        self.slots.iter().find(|slot| slot.name == name)
    }

    /// The slots with the ranks of their declared brokers.
    pub fn slots_with_ranks(&self) -> impl Iterator<Item = (&Slot, Range<u32>)> {
        self.slots.iter().scan(0, |first, slot| {
            let ranks = *first..*first + slot.max_size;
            *first = ranks.end;
            Some((slot, ranks))
        })
    }

    /// Ranks of the slot of this name.
    pub fn ranks(&self, slot: &str) -> Option<Range<u32>> {
        self.slots_with_ranks().find(|(candidate, _)| candidate.name == slot).map(|(_, ranks)| ranks)
    }

    /// Declared brokers of all slots: the size of the Flux instance.
    pub fn size(&self) -> u32 {
        self.slots.iter().map(|slot| slot.max_size).sum()
    }

    /// Host names in rank order.
    pub(crate) fn hosts(&self) -> impl Iterator<Item = String> + '_ {
        self.slots.iter().flat_map(Slot::hosts)
    }

    /// Host names in rank order, as an RFC 29 list.
    pub fn hostlist(&self) -> Hostlist {
        Hostlist::from_hosts(self.hosts()).expect("names and sizes were checked when the rank map was made")
    }

    /// The ranks that have each property.
    pub(super) fn properties(&self) -> BTreeMap<&str, super::Idset> {
        let mut properties: BTreeMap<&str, super::Idset> = BTreeMap::new();
        for (slot, ranks) in self.slots_with_ranks() {
            for property in &slot.properties {
                properties.entry(property).or_default().insert(ranks.clone());
            }
        }
        properties
    }
}

fn check_slot(slot: &Slot) -> Result<(), RankMapError> {
    let name = || slot.name.clone();
    if !is_dns_1035_label(&slot.name) {
        return Err(RankMapError::Name { slot: name() });
    }
    if slot.max_size == 0 {
        return Err(RankMapError::NoBroker { slot: name() });
    }
    let longest = slot.host(slot.max_size - 1);
    if longest.len() > MAX_LABEL_LEN {
        return Err(RankMapError::HostTooLong { host: longest });
    }
    if slot.cores == 0 || slot.cores > MAX_UNITS || slot.gpus > MAX_UNITS {
        return Err(RankMapError::Resources { slot: name(), cores: slot.cores, gpus: slot.gpus });
    }
    if slot.properties.len() > MAX_PROPERTIES {
        return Err(RankMapError::TooManyProperties { slot: name() });
    }
    match slot.properties.iter().find(|property| !is_property(property)) {
        Some(property) => Err(RankMapError::Property { slot: name(), property: property.clone() }),
        None => Ok(()),
    }
}

/// RFC 1035 as Kubernetes reads it: `[a-z]([-a-z0-9]*[a-z0-9])?`, up to 63 characters.
fn is_dns_1035_label(name: &str) -> bool {
    let inner = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
    name.len() <= MAX_LABEL_LEN
        && name.starts_with(|c: char| c.is_ascii_lowercase())
        && !name.ends_with('-')
        && name.bytes().all(inner)
}

/// RFC 20 forbids `! & ' " ^ ` | ( )`. Blanks and commas would split a property in the canonical text and in what a user
/// asks for, and a property outside of ASCII may have more than one spelling.
fn is_property(property: &str) -> bool {
    (1..=MAX_PROPERTY_LEN).contains(&property.len())
        && property.bytes().all(|b| b.is_ascii_graphic() && !b"!&'\"^`|(),".contains(&b))
}

#[cfg(test)]
pub(super) mod tests;
