//! What is still to be said to a peer. Keys only: states are encoded when there is room on the link, the newest then.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::ops::Bound;

use bytes::Bytes;
use tributary_contract::ports::{State, StateKey};
use tributary_contract::{BurstUid, DesiredBurst, ObservedBurst};

use super::validate;
use crate::wire::digest::Digest;
use crate::wire::limits;

/// Room a put needs beside its state: key, epoch, sequence, digest, lengths.
const PUT_OVERHEAD: usize = 1 << 10;

/// A state that cannot travel.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Unfit {
    /// Digest of the state, to say it once per state.
    pub digest: Digest,
    /// One sentence with what to do.
    pub problem: String,
}

/// The bytes of a state (`None`: tombstone) and their digest.
///
/// # Errors
/// The state is beyond a limit.
pub fn encode(state: &State) -> Result<(Option<Bytes>, Digest), Unfit> {
    let json = match state {
        State::Desired(desired) => serde_json::to_vec(desired),
        State::Observed(observed) => serde_json::to_vec(observed),
        State::Tombstone => return Ok((None, Digest::TOMBSTONE)),
    }
    .expect("plain data with string keys is JSON");
    let digest = Digest::of(&json);
    if let State::Desired(desired) = state
        && let Err(problem) = check_template(desired)
    {
        return Err(Unfit { digest, problem });
    }
    let limit = limits::CONTROL_FRAME - PUT_OVERHEAD;
    if json.len() > limit {
        let size = json.len();
        let problem = format!("the state of the burst takes {size} bytes, {limit} are allowed: shorten its template");
        return Err(Unfit { digest, problem });
    }
    Ok((Some(json.into()), digest))
}

/// Parses a received state. What it says of itself is fit to be kept, shown and stored; whether it is true is another
/// question.
///
/// # Errors
/// One sentence for the sender.
pub fn decode(key: &StateKey, state: Option<&Bytes>) -> Result<State, String> {
    let Some(json) = state else {
        return Ok(State::Tombstone);
    };
    let unreadable = |error: serde_json::Error| format!("the state cannot be read: {error}");
    let (state, uid): (State, BurstUid) = match key {
        StateKey::Desired(_) => {
            let desired: DesiredBurst = serde_json::from_slice(json).map_err(unreadable)?;
            check_template(&desired)?;
            validate::check(&desired)?;
            let desired = DesiredBurst { trace: validate::trace(desired.trace), ..desired };
            let uid = desired.uid.clone();
            (State::Desired(Box::new(desired)), uid)
        }
        StateKey::Observed(_) => {
            let observed: ObservedBurst = serde_json::from_slice(json).map_err(unreadable)?;
            let uid = observed.uid.clone();
            (State::Observed(Box::new(validate::fit(observed))), uid)
        }
    };
    let (StateKey::Desired(expected) | StateKey::Observed(expected)) = key;
    if uid != *expected {
        return Err(format!("the state is about burst {uid}, its key about {expected}"));
    }
    Ok(state)
}

fn check_template(desired: &DesiredBurst) -> Result<(), String> {
    let mut counter = Counter(0);
    serde_json::to_writer(&mut counter, &desired.template).expect("a JSON value is JSON");
    let (size, limit) = (counter.0, limits::TEMPLATE);
    if size <= limit {
        return Ok(());
    }
    Err(format!(
        "the template of the burst takes {size} bytes, {limit} are allowed: move data into volumes or ConfigMaps"
    ))
}

struct Counter(usize);

impl io::Write for Counter {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        self.0 += buf.len();
        Ok(buf.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Keys to send, taken in turn, so that a key that changes all the time does not starve the others.
#[derive(Debug, Default)]
pub(crate) struct Outbox {
    keys: BTreeSet<StateKey>,
    last: Option<StateKey>,
    /// Problems that were reported, by the digest of the state.
    reported: BTreeMap<StateKey, Digest>,
}

impl Outbox {
    /// The newest state of `key` is to be sent.
    pub(crate) fn mark(&mut self, key: StateKey) {
        self.keys.insert(key);
    }

    /// A peer lacks the newest state of `key`. What it asks for beyond all that there may be has to wait for its next
    /// summary: it may ask faster than it reads.
    pub(crate) fn ask(&mut self, key: StateKey) {
        if self.keys.len() < limits::KEYS_PER_PEER {
            self.mark(key);
        }
    }

    /// Takes the next key.
    pub(crate) fn pop(&mut self) -> Option<StateKey> {
        let after = self.last.take().map_or(Bound::Unbounded, Bound::Excluded);
        let key = self.keys.range((after, Bound::Unbounded)).next().or_else(|| self.keys.first())?.clone();
        self.keys.remove(&key);
        self.last = Some(key.clone());
        Some(key)
    }

    /// Whether this problem is news.
    pub(crate) fn report(&mut self, key: &StateKey, digest: Digest) -> bool {
        self.reported.insert(key.clone(), digest) != Some(digest)
    }

    /// Forgets the problems of keys that are not there any more.
    pub(crate) fn retain_reported(&mut self, keys: &BTreeSet<StateKey>) {
        self.reported.retain(|key, _| keys.contains(key));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{desired, observed};

    fn key(uid: &str) -> StateKey {
        StateKey::Desired(uid.into())
    }

    #[test]
    fn states_survive_the_way() {
        for (key, state) in [
            (key("a"), State::Desired(Box::new(desired("a", 3)))),
            (StateKey::Observed("a".into()), State::Observed(Box::new(observed("a", 3)))),
            (key("a"), State::Tombstone),
        ] {
            let (bytes, _) = encode(&state).unwrap();
            assert_eq!(decode(&key, bytes.as_ref()), Ok(state));
        }
    }

    #[test]
    fn what_is_beyond_a_limit_is_named() {
        let mut large = desired("a", 1);
        large.template = serde_json::Value::String("x".repeat(limits::TEMPLATE));
        let Unfit { problem, .. } = encode(&State::Desired(Box::new(large.clone()))).unwrap_err();
        assert_eq!(
            problem,
            "the template of the burst takes 262146 bytes, 262144 are allowed: move data into volumes or ConfigMaps"
        );
        let json = Bytes::from(serde_json::to_vec(&large).unwrap());
        assert_eq!(decode(&key("a"), Some(&json)).unwrap_err(), problem, "the receiver holds the same limit");
        let mut wide = desired("a", 1);
        wide.rank_map = "x".repeat(limits::CONTROL_FRAME);
        assert!(encode(&State::Desired(Box::new(wide))).unwrap_err().problem.contains("are allowed: shorten"));
    }

    #[test]
    fn what_cannot_be_read_is_said() {
        let json = Bytes::from_static(b"{\"uid\":3}");
        assert!(decode(&key("a"), Some(&json)).unwrap_err().starts_with("the state cannot be read: invalid type"));
        let (bytes, _) = encode(&State::Desired(Box::new(desired("b", 1)))).unwrap();
        assert_eq!(decode(&key("a"), bytes.as_ref()).unwrap_err(), "the state is about burst b, its key about a");
    }

    #[test]
    fn keys_take_turns() {
        let mut outbox = Outbox::default();
        ["a", "b", "c"].iter().for_each(|uid| outbox.mark(key(uid)));
        assert_eq!(outbox.pop(), Some(key("a")));
        outbox.mark(key("a"));
        assert_eq!(outbox.pop(), Some(key("b")));
        assert_eq!(outbox.pop(), Some(key("c")));
        assert_eq!(outbox.pop(), Some(key("a")));
        assert_eq!(outbox.pop(), None);
    }
}
