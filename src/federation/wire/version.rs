//! Versions of what is said within one application protocol.

/// A version of the messages. Versions are ordered; a peer speaks a range, and the highest one both speak is used.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct WireVersion(pub u32);

/// The versions somebody speaks, both ends included.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WireVersions {
    /// The oldest.
    pub min: WireVersion,
    /// The newest.
    pub max: WireVersion,
}

impl WireVersions {
    /// What this agent speaks.
    pub const OURS: Self = Self { min: WireVersion(1), max: WireVersion(1) };

    /// The highest common version; `None` if there is none.
    pub fn common(self, other: Self) -> Option<WireVersion> {
        let best = self.max.min(other.max);
        (best >= self.min && best >= other.min).then_some(best)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_highest_common_version_is_used() {
        let range = |min, max| WireVersions { min: WireVersion(min), max: WireVersion(max) };
        for (a, b, common) in [
            (range(1, 1), range(1, 1), Some(1)),
            (range(1, 3), range(2, 5), Some(3)),
            (range(1, 2), range(3, 4), None),
            (range(5, 6), range(1, 9), Some(6)),
            (range(3, 1), range(1, 3), None),
        ] {
            assert_eq!(a.common(b).map(|version| version.0), common, "{a:?} {b:?}");
            assert_eq!(a.common(b), b.common(a), "both sides find the same one");
        }
    }
}
