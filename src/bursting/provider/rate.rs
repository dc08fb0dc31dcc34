//! How many offers of a peer are looked at within a minute. Pure.
//!
//! Each peer has a token bucket that holds as many offers as it may make within a minute. Who finds it empty gets the next turn
//! that is free: it is refused until then, and looked at then, though nobody offers it anew. So a peer that offers too much
//! delays its own offers and nobody else's, none is lost, and none wakes anybody before its turn.
//!
//! What is looked at again (there may be room now, the policy may be another) is no offer: see [`Turn`].

use std::collections::BTreeMap;
use std::time::Duration;

use tributary_api::peer::ImportPolicy;
use tributary_clock::Mono;
use tributary_contract::{DesiredBurst, PeerName};

/// Offers of a peer within a minute, where its import policy says nothing of them.
pub(crate) const PER_MINUTE: u32 = 120;

/// What a bucket holds, in time.
const MINUTE: Duration = Duration::from_secs(60);

/// The latest turn that is given away: who comes later asks again by then.
const LATEST: Duration = Duration::from_secs(600);

/// How many offers a policy lets its peer make within a minute.
pub(crate) fn per_minute(import: &ImportPolicy) -> u32 {
    let written = import.max_offers_per_minute.map(|limit| u32::try_from(limit).unwrap_or(0));
    // None at all is for the policy as a whole to say.
    written.unwrap_or(PER_MINUTE).max(1)
}

/// The buckets of all peers.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Rates(BTreeMap<PeerName, Bucket>);

/// The bucket of a peer.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Bucket {
    /// When it will be full again.
    full: Mono,
    /// What was given back while others had their turns behind it, by when the bucket would have been full after it.
    returned: BTreeMap<Mono, Duration>,
}

/// When an offer is looked at.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Turn {
    /// The offer. Another one of the same burst takes a turn of its own, once this has had it.
    offer: String,
    /// Not before.
    pub at: Mono,
    /// What it takes of the bucket. Nothing: it has to ask again by then.
    takes: Option<Token>,
}

/// What a turn takes of a bucket.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Token {
    /// So much.
    each: Duration,
    /// When the bucket would be full again, if nobody asked after it.
    full: Mono,
}

impl Turn {
    /// Whether it is time.
    pub(crate) fn has_come(&self, now: Mono) -> bool {
        self.takes.is_some() && self.at <= now
    }

    /// The turn of an offer of `peer`, given the one that its burst had, if any.
    pub(crate) fn of(
        before: Option<&Self>,
        peer: &PeerName,
        desired: &DesiredBurst,
        limit: u32,
        rates: &mut Rates,
        now: Mono,
    ) -> Self {
        let offer = format!("{}/{}/{}", desired.root.incarnation, desired.generation, desired.offer);
        match before {
            Some(turn) if turn.at > now || turn.takes.is_some() && turn.offer == offer => {
                Self { offer, ..turn.clone() }
            }
            _ => {
                let (at, takes) = rates.take(peer, limit, now);
                Self { offer, at, takes }
            }
        }
    }
}

impl Rates {
    /// Takes a token of a peer that may make so many offers within a minute: when it is there, and how much that is.
    fn take(&mut self, peer: &PeerName, limit: u32, now: Mono) -> (Mono, Option<Token>) {
        self.0.retain(|_, bucket| bucket.full > now);
        let (full, each) = (self.0.get(peer).map_or(now, |bucket| bucket.full), MINUTE / limit.max(1));
        let wait = (full.saturating_since(now) + each).saturating_sub(MINUTE);
        if wait > LATEST {
            return (now + LATEST, None);
        }
        let bucket = self.0.entry(peer.clone()).or_insert_with(|| Bucket { full, returned: BTreeMap::new() });
        bucket.full = full + each;
        bucket.returned.retain(|full, _| *full > now);
        (now + wait, Some(Token { each, full: bucket.full }))
    }

    /// An offer was taken back: if it had not had its turn, others of its peer need not wait for that. The bucket gets back what
    /// is at its end only: those who have their turns behind it keep them, and whoever came next would have one of those too.
    pub(crate) fn give_back(&mut self, peer: &PeerName, turn: &Turn, now: Mono) {
        let (Some(token), Some(bucket)) = (turn.takes.filter(|_| turn.at > now), self.0.get_mut(peer)) else { return };
        bucket.returned.insert(token.full, token.each);
        while let Some(each) = bucket.returned.remove(&bucket.full) {
            bucket.full = bucket.full - each;
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::provider::admission::tests::offer;

    fn at(seconds: u64) -> Mono {
        Mono::from_start(Duration::from_secs(seconds))
    }

    fn east() -> PeerName {
        "east".into()
    }

    #[test]
    fn a_minutes_worth_is_looked_at_at_once_and_the_others_one_after_the_other() {
        let mut rates = Rates::default();
        let mut waits = |peer: &str, now: u64, count: usize| -> Vec<u64> {
            let turn = |_| rates.take(&peer.into(), 6, at(now)).0.saturating_since(at(now)).as_secs();
            (0..count).map(turn).collect()
        };
        assert_eq!(waits("east", 0, 9), [0, 0, 0, 0, 0, 0, 10, 20, 30]);
        assert_eq!(waits("south", 0, 2), [0, 0], "it has a bucket of its own");
        assert_eq!(waits("east", 25, 2), [15, 25], "in their order");
        assert_eq!(waits("east", 9_999, 7), [0, 0, 0, 0, 0, 0, 10], "it is full again, and no more than that");
    }

    #[test]
    fn no_turn_is_given_away_for_ever() {
        let told = |(at, token): (Mono, Option<Token>)| (at, token.map(|token| token.each));
        let mut rates = Rates::default();
        let turns: Vec<_> = (0..20).map(|_| rates.take(&east(), 1, at(0))).collect();
        assert_eq!(told(turns[10]), (at(600), Some(MINUTE)));
        assert!(turns[11..].iter().all(|turn| *turn == (at(600), None)), "they ask again then");
        assert_eq!(told(rates.take(&east(), 1, at(600))), (at(660), Some(MINUTE)));
    }

    #[test]
    fn an_offer_is_looked_at_again_without_a_turn_and_another_one_takes_its_own() {
        let (mut rates, first) = (Rates::default(), offer());
        let mut turn = |before: Option<&Turn>, desired: &DesiredBurst, now| {
            Turn::of(before, &east(), desired, 1, &mut rates, at(now))
        };
        let had = turn(None, &first, 0);
        assert!(had.has_come(at(0)));
        assert_eq!(turn(Some(&had), &first, 30), had);
        let second = DesiredBurst { generation: 2, ..offer() };
        let waits = turn(Some(&had), &second, 30);
        assert_eq!((waits.at, waits.has_come(at(59)), waits.has_come(at(60))), (at(60), false, true));
        let third = turn(Some(&waits), &DesiredBurst { generation: 3, ..offer() }, 40);
        assert_eq!(third.at, at(60), "what has changed while it waits keeps its turn");
        assert_eq!(turn(Some(&third), &second, 60).at, at(120), "and had it with what it was then");
    }

    #[test]
    fn a_turn_that_nobody_had_is_free_again() {
        let mut rates = Rates::default();
        let mut turns: Vec<_> = (0..9).map(|_| Turn::of(None, &east(), &offer(), 1, &mut rates, at(0))).collect();
        let asked_again = |rates: &Rates| rates.clone().take(&east(), 1, at(0)).0;
        assert_eq!(asked_again(&rates), at(540));
        let mut some = rates.clone();
        some.give_back(&east(), &turns[4], at(0));
        assert_eq!(asked_again(&some), at(540), "those behind it keep theirs");
        some.give_back(&east(), &turns[8], at(0));
        assert_eq!(asked_again(&some), at(480));
        let had = turns.remove(0);
        turns.iter().chain([&had]).for_each(|turn| rates.give_back(&east(), turn, at(0)));
        assert_eq!(asked_again(&rates), at(60), "the first was had");
    }

    #[test]
    fn a_policy_that_says_nothing_is_generous_and_none_stops_everything() {
        let written = |limit| per_minute(&ImportPolicy { max_offers_per_minute: limit, ..ImportPolicy::default() });
        assert_eq!([None, Some(7), Some(0), Some(-1)].map(written), [PER_MINUTE, 7, 1, 1]);
    }

    proptest! {
        /// However a peer offers and takes back: within any minute no more are looked at than a bucket holds and is filled with
        /// meanwhile, and each has its turn as soon as that allows.
        #[test]
        fn no_minute_has_more_than_two_minutes_worth(
            limit in 1_u32..50,
            steps in proptest::collection::vec((0_u64..20, proptest::option::weighted(0.4, 0_usize..200)), 1..300),
        ) {
            let (mut rates, mut now, mut turns) = (Rates::default(), 0, Vec::<Turn>::new());
            for (gap, back) in steps {
                now += gap;
                if let Some(back) = back.filter(|_| !turns.is_empty()) {
                    let back = back % turns.len();
                    if turns[back].at > at(now) {
                        rates.give_back(&east(), &turns.remove(back), at(now));
                    }
                    continue;
                }
                let turn = Turn::of(None, &east(), &offer(), limit, &mut rates, at(now));
                prop_assert!(turn.at.saturating_since(at(now)) <= LATEST);
                if turn.takes.is_some() {
                    turns.push(turn);
                }
            }
            let served: Vec<Mono> = turns.iter().map(|turn| turn.at).collect();
            prop_assert!(served.is_sorted(), "in the order of asking");
            for (index, first) in served.iter().enumerate() {
                let within = served[index..].iter().filter(|turn| turn.saturating_since(*first) < MINUTE).count();
                prop_assert!(within <= 2 * limit as usize, "{within} of {limit}");
            }
        }
    }
}
