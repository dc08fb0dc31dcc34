//! Who was turned away, and whether to say so again.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::clock::Mono;

/// The same stranger is mentioned this often: one that dials for ever must not fill the log.
const QUIET: Duration = Duration::from_secs(60);

/// Strangers remembered: one with many names must not fill the memory.
const REMEMBERED: usize = 64;

/// Strangers that were mentioned lately.
#[derive(Debug)]
pub(super) struct Strangers {
    mentioned: BTreeMap<(String, String), Mono>,
    quiet: Duration,
}

impl Default for Strangers {
    fn default() -> Self {
        Self::quiet_for(QUIET)
    }
}

impl Strangers {
    /// The same is mentioned again after `quiet`.
    pub(super) fn quiet_for(quiet: Duration) -> Self {
        Self { mentioned: BTreeMap::new(), quiet }
    }

    /// Whether to mention that `who` was turned away for `reason`.
    pub(super) fn is_news(&mut self, now: Mono, who: &str, reason: &str) -> bool {
        self.mentioned.retain(|_, at| now.saturating_since(*at) < self.quiet);
        let key = (who.to_owned(), reason.to_owned());
        let news = !self.mentioned.contains_key(&key) && self.mentioned.len() < REMEMBERED;
        if news {
            self.mentioned.insert(key, now);
        }
        news
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stranger_is_mentioned_once_a_minute_per_reason() {
        let mut strangers = Strangers::default();
        let at = |seconds| Mono::from_start(Duration::from_secs(seconds));
        assert!(strangers.is_news(at(0), "north", "UnknownPeer"));
        assert!(!strangers.is_news(at(59), "north", "UnknownPeer"));
        assert!(strangers.is_news(at(59), "north", "CertificateExpired"));
        assert!(strangers.is_news(at(60), "north", "UnknownPeer"));
        let mentioned = (0..1_000).filter(|index| strangers.is_news(at(61), &index.to_string(), "UnknownPeer")).count();
        assert_eq!(mentioned, REMEMBERED - 2);
    }
}
