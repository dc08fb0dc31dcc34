//! What the network does to sessions: words take time, sessions break, losses are noticed late, clocks disagree.
//!
//! As the federation has it: within a session words arrive in order and once; a session that breaks takes with it what
//! was under way, and the next one begins with everything anew. A cut is noticed after 5 s of silence, and the session is
//! given up after 10.

use std::collections::{BTreeMap, VecDeque};

use tributary_clock::{Rng as _, SeededRng};
use tributary_contract::PeerState;
use tributary_contract::ports::{State, StateKey};

/// Silence after which a peer is suspect, in seconds.
const SUSPECT: u64 = 5;

/// Silence after which a session is given up, in seconds.
const SILENT: u64 = 10;

/// Something said.
pub(super) enum Word {
    Put(StateKey, State),
    Snapshot(Vec<StateKey>),
}

/// Bad weather, by a seed.
pub(super) struct Weather {
    rng: SeededRng,
    /// The longest time a word takes, in seconds.
    delay: u64,
    /// One session in so many breaks in each second.
    breaks: u64,
    /// What is wrong with each cluster's wall clock, in seconds.
    skew: BTreeMap<String, i64>,
    /// When each saw the other last.
    contact: BTreeMap<(String, String), u64>,
}

impl Weather {
    /// Words take up to 3 s, a session lasts two minutes, and clocks are hours apart.
    pub(super) fn bad(seed: u64) -> Self {
        let skew = [("east".to_owned(), 7_000), ("west".to_owned(), -11_000)].into();
        Self { rng: SeededRng::new(seed), delay: 3, breaks: 120, skew, contact: BTreeMap::new() }
    }

    pub(super) fn skew(&self, name: &str) -> i64 {
        self.skew.get(name).copied().unwrap_or_default()
    }

    /// What `a` makes of `b`, and when it heard it last, if the network is as `linked` says.
    pub(super) fn sees(&mut self, a: &str, b: &str, linked: bool, secs: u64) -> (PeerState, Option<u64>) {
        let link = (a.to_owned(), b.to_owned());
        if linked {
            self.contact.insert(link, secs);
            return (PeerState::Connected, Some(secs));
        }
        let last = self.contact.get(&link).copied();
        let state = match last.map(|last| secs - last) {
            Some(silence) if silence < SUSPECT => PeerState::Connected,
            Some(silence) if silence < SILENT => PeerState::Suspect,
            _ => PeerState::Disconnected,
        };
        (state, last)
    }

    /// Whether a session breaks in this second.
    pub(super) fn breaks(&mut self) -> bool {
        self.rng.next_u64().is_multiple_of(self.breaks)
    }

    /// When a word of now arrives, after those before it.
    pub(super) fn arrives(&mut self, secs: u64, before: &VecDeque<(u64, Word)>) -> u64 {
        let at = secs + self.rng.next_u64() % (self.delay + 1);
        before.back().map_or(at, |(last, _)| at.max(*last))
    }
}
