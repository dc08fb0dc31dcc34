//! The shape of the tree that the brokers form (TBON).

use std::str::FromStr;

/// How brokers choose their parent in the overlay network.
///
/// Source: flux-core `doc/man5/flux-config-tbon.rst`, `src/modules/overlay/topology.c`.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum Topology {
    /// The first broker of each burst is a child of rank 0 and the parent of the burst's other brokers: one link between
    /// clusters per burst. The price: while that gateway is away, its burst is.
    #[default]
    Gateway,
    /// Every broker is a child of rank 0: one link between clusters per broker.
    Flat,
    /// A `tbon.topo` of the user's, such as `kary:4`. It knows ranks only, so its links may cross clusters in any way,
    /// and bursts reach no broker but rank 0: right for instances without bursts. Made by [`FromStr`] only.
    Custom(TopologyUri),
}

/// A checked value for `tbon.topo`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TopologyUri(String);

impl TopologyUri {
    /// The text, such as `kary:4`.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// A `flux.topology` that flux-core does not know.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("topology {0:?} is unknown to Flux: use custom, kary:K, mincrit, mincrit:K or binomial, K a number")]
pub struct TopologyError(pub String);

impl Topology {
    /// The parent of every burst's slot, given the name of the root's slot: what goes into [`super::Slot::parent`].
    pub fn parent_of_bursts(&self, root: &str) -> Option<String> {
        (*self == Self::Gateway).then(|| root.to_owned())
    }

    /// The value for `tbon.topo`; `None` keeps flux-core's default with a hosts table, `custom`, which obeys `parent`
    /// keys. Do not pass `-Stbon.topo` or `-Stbon.fanout` then: both override the keys.
    pub(crate) fn tbon_topo(&self) -> Option<&str> {
        match self {
            Self::Gateway | Self::Flat => None,
            Self::Custom(uri) => Some(uri.as_str()),
        }
    }
}

impl FromStr for Topology {
    type Err = TopologyError;

    /// Reads `flux.topology` of a MiniCluster. Empty and `custom` are [`Topology::Gateway`]; `kary:0` and `mincrit:0`
    /// mean [`Topology::Flat`].
    fn from_str(text: &str) -> Result<Self, TopologyError> {
        let (scheme, argument) = text.split_once(':').map_or((text, None), |(scheme, k)| (scheme, Some(k)));
        let number = argument.map(|k| k.bytes().all(|b| b.is_ascii_digit()).then(|| k.parse::<u16>().ok()).flatten());
        match (scheme, number) {
            ("" | "custom", None) => Ok(Self::Gateway),
            ("kary" | "mincrit", Some(Some(0))) => Ok(Self::Flat),
            ("kary" | "mincrit", Some(Some(_))) | ("mincrit" | "binomial", None) => {
                Ok(Self::Custom(TopologyUri(text.to_owned())))
            }
            _ => Err(TopologyError(text.to_owned())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_flux_knows_is_read_and_the_rest_refused() {
        for (text, topo) in [("kary:4", "kary:4"), ("mincrit", "mincrit"), ("mincrit:3", "mincrit:3")] {
            assert_eq!(text.parse::<Topology>().unwrap().tbon_topo(), Some(topo));
        }
        for (text, expected) in [("", Topology::Gateway), ("custom", Topology::Gateway), ("kary:0", Topology::Flat)] {
            assert_eq!(text.parse::<Topology>().unwrap(), expected, "{text}");
            assert_eq!(expected.tbon_topo(), None);
        }
        for text in ["kary", "kary:", "kary:-1", "kary:+1", "binomial:2", "custom:x", "star", "kary:4\"\n[access]"] {
            assert_eq!(text.parse::<Topology>(), Err(TopologyError(text.to_owned())));
        }
    }

    #[test]
    fn only_gateways_have_a_parent() {
        assert_eq!(Topology::Gateway.parent_of_bursts("a").as_deref(), Some("a"));
        assert_eq!(Topology::Flat.parent_of_bursts("a"), None);
        assert_eq!("kary:2".parse::<Topology>().unwrap().parent_of_bursts("a"), None);
    }
}
