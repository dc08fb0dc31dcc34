//! Who was turned away, and whether to say so again.

use std::collections::BTreeMap;
use std::time::Duration;

use tributary_clock::Mono;

/// The same stranger is mentioned this often: one that dials for ever must not fill the log.
const QUIET: Duration = Duration::from_secs(60);

/// So many rejected peers are remembered: one with many names must not fill the memory.
const REMEMBERED: usize = 256;

/// The same misbehaviour of the same peer is mentioned again after this long.
const AGAIN: Duration = Duration::from_secs(3_600);

/// Strangers, and peers that misbehave, that were mentioned lately.
#[derive(Debug)]
pub(crate) struct RejectedPeers {
    mentioned: BTreeMap<(String, String), Mono>,
    quiet: Duration,
    remembered: usize,
}

impl Default for RejectedPeers {
    fn default() -> Self {
        Self { mentioned: BTreeMap::new(), quiet: QUIET, remembered: REMEMBERED }
    }
}

impl RejectedPeers {
    /// For peers, which are as many as somebody configured, with so many ways to misbehave.
    pub(super) fn known() -> Self {
        Self { mentioned: BTreeMap::new(), quiet: AGAIN, remembered: usize::MAX }
    }

    /// Whether to mention that `who` was turned away for `reason`.
    pub(crate) fn is_news(&mut self, now: Mono, who: &str, reason: &str) -> bool {
        self.mentioned.retain(|_, at| now.saturating_since(*at) < self.quiet);
        let key = (who.to_owned(), reason.to_owned());
        let news = !self.mentioned.contains_key(&key) && self.mentioned.len() < self.remembered;
        if news {
            self.mentioned.insert(key, now);
        }
        news
    }
}

/// Who has no name: its port changes with every attempt.
pub(super) fn without_port(remote: &str) -> &str {
    remote.rsplit_once(':').map_or(remote, |(address, _)| address)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stranger_is_mentioned_once_a_minute_per_reason() {
        let mut strangers = RejectedPeers::default();
        let at = |seconds| Mono::from_start(Duration::from_secs(seconds));
        assert!(strangers.is_news(at(0), "north", "UnknownPeer"));
        assert!(!strangers.is_news(at(59), "north", "UnknownPeer"));
        assert!(strangers.is_news(at(59), "north", "CertificateExpired"));
        assert!(strangers.is_news(at(60), "north", "UnknownPeer"));
        let mentioned = (0..1_000).filter(|index| strangers.is_news(at(61), &index.to_string(), "UnknownPeer")).count();
        assert_eq!(mentioned, REMEMBERED - 2);
        assert_eq!((without_port("10.0.0.1:7"), without_port("[::1]:7")), ("10.0.0.1", "[::1]"));
        let mut peers = RejectedPeers::known();
        let mentioned = (0..1_000).filter(|index| peers.is_news(at(61), &index.to_string(), "flood")).count();
        assert_eq!(mentioned, 1_000, "each peer for itself");
        assert!(!peers.is_news(at(3_600), "7", "flood") && peers.is_news(at(3_661), "7", "flood"));
    }
}
