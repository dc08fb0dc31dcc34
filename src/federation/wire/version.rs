//! Versions of the messages, and the application protocol (ALPN, RFC 7301) of each.
//!
//! A control connection is of one version: both sides offer those they speak, and TLS agrees on the newest that both offer.
//! The hello says the same once more, in ranges, and is the same in all versions: so two agents that have no version in
//! common still tell each other which is too old. That is why `tributary/1` is always offered.
//!
//! | version | what it changed |
//! |---|---|
//! | 1 | the first; every heartbeat carries the capacity |
//! | 2 | capacity travels in a message of its own, when it changes, and heartbeats are empty |

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

impl WireVersion {
    /// From here on capacity travels apart from heartbeats.
    pub(crate) const CAPACITY_APART: Self = Self(2);

    /// The application protocol of control connections of this version.
    pub(crate) fn alpn(self) -> Vec<u8> {
        format!("{ALPN}{}", self.0).into_bytes()
    }

    /// The version of an application protocol; `None`: it is none of control connections.
    pub(crate) fn of_alpn(protocol: &[u8]) -> Option<Self> {
        let number = std::str::from_utf8(protocol).ok()?.strip_prefix(ALPN)?;
        number.parse().ok().map(Self).filter(|version| version.alpn() == protocol)
    }
}

/// How the application protocols of control connections begin.
const ALPN: &str = "tributary/";

/// The version whose protocol is always offered: for its hello.
const HELLO: WireVersion = WireVersion(1);

impl WireVersions {
    /// What this agent speaks: its newest version and the one before.
    pub const OURS: Self = Self { min: WireVersion(1), max: WireVersion(2) };

    /// The application protocols to offer, in the order of preference: the newest first, and that of the hello.
    pub(crate) fn alpns(self) -> Vec<Vec<u8>> {
        let spoken = (self.min.0..=self.max.0).rev().map(WireVersion).filter(|version| *version != HELLO);
        spoken.chain([HELLO]).map(WireVersion::alpn).collect()
    }

    /// The highest common version; `None` if there is none.
    pub(crate) fn common(self, other: Self) -> Option<WireVersion> {
        let best = self.max.min(other.max);
        (best >= self.min && best >= other.min).then_some(best)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_is_preferred_and_the_hello_is_always_understood() {
        let offered = |min, max| {
            let versions = WireVersions { min: WireVersion(min), max: WireVersion(max) };
            versions.alpns().into_iter().map(|alpn| String::from_utf8(alpn).unwrap()).collect::<Vec<_>>()
        };
        assert_eq!(offered(1, 2), ["tributary/2", "tributary/1"]);
        assert_eq!(offered(3, 4), ["tributary/4", "tributary/3", "tributary/1"]);
        assert_eq!(offered(1, 1), ["tributary/1"]);
        assert_eq!(WireVersion::of_alpn(b"tributary/17"), Some(WireVersion(17)));
        for other in [&b"tributary-tunnel/1"[..], b"tributary/", b"tributary/01", b"tributary/-1", b"h3"] {
            assert_eq!(WireVersion::of_alpn(other), None);
        }
    }

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
