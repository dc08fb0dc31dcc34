//! The lease as a model that is explored to the end of a stated depth: one root, one slot of it, two providers.
//!
//! What decides are the functions of the agent themselves: `plan`, `burst_status::step`, `offer`, `credential::grant`,
//! `tunnels::outlet`, `slot::step`, `peers::status`, `lease::Before`, and the exchange between them ([`SyncStore`]). The
//! model stands for what lies around them: time comes in ticks, API servers are a few objects, sessions carry words.
//!
//! | file | what it has |
//! |---|---|
//! | `root`, `provider` | a cluster with its agent: what happens to it, and its passes |
//! | `events` | all that can happen, and what follows from it |
//! | `world` | clusters and the ways between them, as states for `stateright` |
//! | `checks` | the properties, and the rules that are taken out to see them fail |
//!
//! To reach the middle of a life, a search begins with each state of one without faults; the search for what breaks
//! without a rule begins with a burst that runs, or after a part of the history. A pass of an agent goes on until it has
//! nothing left to write, and the agent may die after each write.
//!
//! States must be few. So it is always the same moment ([`now`]): when time passes, everything on record becomes older,
//! and what is older than [`OLDEST`] is as old as that. What no decision reads (messages, conditions, times of phases) is
//! left out. The parts of a state are shared, and what became of a part is computed once ([`world::Known`]).
//!
//! [`SyncStore`]: crate::sync_store::SyncStore

mod checks;
mod events;
mod provider;
mod root;
mod world;

use std::fmt::{self, Debug};
use std::hash::{Hash, Hasher};
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use tributary_clock::{Mono, Now};
use tributary_contract::ports::{State, StateKey};
use tributary_contract::{Epoch, PeerName};

/// All time is a multiple of this one. It is what a root waits beyond the longest life of pods that it cannot see.
const TICK: Duration = Duration::from_secs(15);
/// Two ticks.
const LEASE: Duration = Duration::from_secs(30);
/// With what pods need to end, three ticks.
const DRAIN: Duration = Duration::from_secs(10);
/// How many ticks may be lost on a provider before its root stops to wait for it.
const MARGIN: u8 = 1;
/// Ticks from the end of a MiniCluster to that of its last pod, at most.
const ENDS: u8 = 3;
/// Longer than all that is waited for.
const OLDEST: Duration = Duration::from_secs(8 * 15);
/// Of providers, in the order in which the root asks them.
const NAMES: [&str; 2] = ["west", "north"];

/// The moment.
fn now() -> Now {
    let wall = Timestamp::from_second(1_700_000_000).unwrap();
    Now { mono: Mono::from_start(Duration::from_secs(100_000)), wall }
}

/// A date on record when a clock that was at `at` has moved on by `secs`.
fn older(at: Timestamp, secs: i64) -> Timestamp {
    let wall = now().wall;
    let moved = at - jiff::SignedDuration::from_secs(secs);
    moved.clamp(wall - OLDEST, wall + OLDEST)
}

/// A tick in seconds.
fn secs() -> i64 {
    i64::try_from(TICK.as_secs()).unwrap()
}

fn name(provider: usize) -> PeerName {
    NAMES[provider].into()
}

/// A rule that can be taken out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Rule {
    /// No clock frees a slot of a direct network.
    NoClockFrees,
    /// A slot is free once its holder confirms that nothing is left.
    HolderConfirms,
    /// Who gets the certificate is recorded before it is sent.
    RecordedFirst,
    /// A Burst that is made anew names who held its slot.
    HolderIsNamed,
    /// So does the root's status as long as this Burst has none.
    HolderIsCarried,
    /// The root's end of the tunnel refuses who does not hold the slot.
    Fence,
    /// The lease counts from the loss, also after a restart.
    LossIsStored,
    /// Words of another cluster with the peer's name are not the peer's.
    StrangersAreNotHeard,
}

/// A part of a state: shared, and known by what it says.
struct Kept<T>(Arc<T>, u64);

impl<T: Debug> Kept<T> {
    fn new(value: T) -> Self {
        let digest = digest(&format!("{value:?}"));
        Self(Arc::new(value), digest)
    }
}

/// Without optimisation, ten times as fast as the hash of the standard library.
fn digest(text: &str) -> u64 {
    text.as_bytes().chunks(8).fold(text.len() as u64, |digest, chunk| {
        let mut bytes = [0; 8];
        bytes[..chunk.len()].copy_from_slice(chunk);
        let mixed = (digest ^ u64::from_le_bytes(bytes)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        mixed ^ (mixed >> 29)
    })
}

impl<T> Clone for Kept<T> {
    fn clone(&self) -> Self {
        Self(self.0.clone(), self.1)
    }
}

impl<T> Deref for Kept<T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T> PartialEq for Kept<T> {
    fn eq(&self, other: &Self) -> bool {
        self.1 == other.1
    }
}

impl<T> Eq for Kept<T> {}

impl<T> Hash for Kept<T> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.1.hash(state);
    }
}

impl<T> Debug for Kept<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.1)
    }
}

/// What one side of a session says: the newest state of each key, and which keys there are, if that is all of them.
#[derive(Clone, PartialEq, Debug)]
struct Said {
    epoch: Epoch,
    states: Vec<(StateKey, State)>,
    complete: bool,
}

/// Counts the writes of a pass, and ends it after one of them.
struct Pen {
    writes: u8,
    dies_after: Option<u8>,
}

impl Pen {
    /// A write was done; `None`: the agent dies of it.
    fn wrote(&mut self) -> Option<()> {
        self.writes += 1;
        (self.dies_after != Some(self.writes)).then_some(())
    }
}
