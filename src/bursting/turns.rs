//! Whose turn it is, and when: what peers do costs them their own turns. Pure.

use std::collections::BTreeMap;
use std::time::Duration;

use tributary_clock::Mono;
use tributary_contract::PeerName;

/// Where a key of a controller waits. Lines take turns: see [`Schedule`](tributary_cluster::schedule::Schedule).
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Line {
    /// What happens here, and time that passes, for what a peer has here. No word of any peer waits in it, so that leases end
    /// when they should.
    Here(PeerName),
    /// What a peer says.
    Said(PeerName),
}

/// So many changes of a thing are looked at as soon as they are there: as many as the beginning of a burst has.
const AT_ONCE: u32 = 10;

/// Then one each time.
const EVERY: Duration = Duration::from_secs(1);

/// When things that peers change at will are looked at: [`AT_ONCE`], then [`EVERY`] second what is the newest then. So what is
/// written because of them is bounded, however fast they change.
#[derive(Clone, Debug)]
pub(crate) struct Pace<K> {
    buckets: BTreeMap<K, Bucket>,
    /// When those that are full again were last thrown away.
    swept: Mono,
}

#[derive(Clone, Copy, Debug)]
struct Bucket {
    /// When it will be full again.
    full: Mono,
    /// The last turn that was given away.
    turn: Mono,
}

impl<K> Default for Pace<K> {
    fn default() -> Self {
        Self { buckets: BTreeMap::new(), swept: Mono::ZERO }
    }
}

impl<K: Ord + Clone> Pace<K> {
    /// When a thing that changed now is looked at: now, or when its next turn is. Changes until then have the same turn.
    pub(crate) fn turn(&mut self, key: &K, now: Mono) -> Mono {
        if now.saturating_since(self.swept) > EVERY * AT_ONCE {
            self.buckets.retain(|_, bucket| bucket.full > now);
            self.swept = now;
        }
        let known = self.buckets.get(key).copied();
        if let Some(bucket) = known.filter(|bucket| bucket.turn > now) {
            return bucket.turn;
        }
        let full = known.map_or(now, |bucket| bucket.full.max(now)) + EVERY;
        let turn = now + full.saturating_since(now).saturating_sub(EVERY * AT_ONCE);
        self.buckets.insert(key.clone(), Bucket { full, turn });
        turn
    }

    /// Takes a turn now if there is one. If not, nothing is charged, so a caller that asks too fast still gets its turns.
    pub(crate) fn try_turn(&mut self, key: &K, now: Mono) -> bool {
        let before = self.buckets.get(key).copied();
        let its_turn = self.turn(key, now) <= now;
        if let Some(before) = before.filter(|_| !its_turn) {
            self.buckets.insert(key.clone(), before);
        }
        its_turn
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Mono {
        Mono::from_start(Duration::from_millis(millis))
    }

    #[test]
    fn what_changes_every_millisecond_is_looked_at_once_a_second() {
        let mut pace = Pace::default();
        let mut turns = Vec::new();
        for now in 0..60_000 {
            let turn = pace.turn(&"flaps", at(now));
            assert!(turn >= at(now) && turn <= at(now) + EVERY, "the newest is seen within a second");
            turns.push(turn);
            if now % 1_000 == 0 {
                assert_eq!(pace.turn(&"honest", at(now)), at(now), "others are not touched");
            }
        }
        turns.dedup();
        assert!((60..=70).contains(&turns.len()), "{} turns in a minute", turns.len());
        assert_eq!(turns[..10], [0, 1, 2, 3, 4, 5, 6, 7, 8, 9].map(at), "the first are at once");
        assert!(turns[10..].windows(2).all(|pair| pair[1].saturating_since(pair[0]) >= EVERY));
    }

    #[test]
    fn nothing_is_kept_of_what_has_come_to_rest() {
        let mut pace = Pace::default();
        for key in 0..10_000_u64 {
            pace.turn(&key, at(key * 10));
        }
        assert!(pace.buckets.len() < 2_500, "{}", pace.buckets.len());
        assert_eq!(pace.turn(&1, at(200_000)), at(200_000));
        assert_eq!(pace.buckets.len(), 1);
    }
}
