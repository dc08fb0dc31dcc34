//! What a peer has said so far: decides which of its messages are news.
//!
//! One per peer; it outlives connections, so that a reconnect costs a summary and not all states again. Two connections
//! of one pair may be alive for a moment and deliver in any order between them; the sequence numbers, which the sender's
//! process counts over all its connections, put them right.

use std::collections::{BTreeMap, BTreeSet};

use tributary_contract::ports::StateKey;
use tributary_contract::{ClusterUid, Epoch};

use crate::wire::digest::Digest;
use crate::wire::limits;
use crate::wire::messages::Summary;

/// Whose words: a process of a peer's agent, in one leadership.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Origin {
    /// The peer's cluster.
    pub cluster_uid: ClusterUid,
    /// Leadership.
    pub epoch: Epoch,
    /// The process.
    pub instance: u64,
}

/// The newest word on every key of a peer.
#[derive(Debug, Default)]
pub struct Inbox {
    origin: Option<Origin>,
    /// Sequence of the newest summary: what was said before it, and is not in it, is void.
    floor: u64,
    held: BTreeMap<StateKey, Held>,
    /// What the peer names no more, and whoever it was delivered to keeps for now: by the weight of its state.
    void: BTreeMap<StateKey, usize>,
    /// Of all that is held or void together: at most [`limits::STATES_OF_A_PEER`].
    weight: usize,
}

#[derive(Clone, Copy, Debug)]
struct Held {
    sequence: u64,
    digest: Digest,
    weight: usize,
    /// Of what was held before, which stays if this cannot be used.
    before: usize,
    /// We could not use it. A new process of the peer has to be told again.
    rejected: bool,
}

/// Why the words of an origin do not count.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Strange {
    /// This cluster was heard before under the same name.
    OtherCluster(ClusterUid),
    /// This leadership was heard before.
    OldLeader(Epoch),
}

/// What a summary means.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Listed {
    /// Keys whose state we lack.
    pub lacking: Vec<StateKey>,
    /// Keys whose newest state is the one that we have; none, if the summary is an older one.
    pub unchanged: Vec<StateKey>,
    /// All keys of the peer, in order, those that were put since the summary was made included; `None` if nothing may be
    /// concluded from absence.
    pub all: Option<Vec<StateKey>>,
}

/// What a put means.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum News {
    /// Deliver it.
    New,
    /// The state that was delivered before.
    Same,
    /// Older than what was delivered, or of an older leadership or process.
    Old,
    /// There is no room for another key.
    Full,
    /// There is no room for so much.
    Heavy,
}

impl Inbox {
    /// A session with `origin` is established: from now on only its words count.
    ///
    /// # Errors
    /// Another cluster, or a later leadership, was heard before.
    pub(crate) fn admit(&mut self, origin: &Origin) -> Result<(), Strange> {
        match &self.origin {
            Some(known) if known == origin => return Ok(()),
            Some(known) if known.cluster_uid != origin.cluster_uid => {
                return Err(Strange::OtherCluster(known.cluster_uid.clone()));
            }
            Some(known) if known.epoch > origin.epoch => return Err(Strange::OldLeader(known.epoch)),
            // A new leader or a new process counts from the start. Which states we hold is still true.
            _ => {
                self.retain(|_, held| !held.rejected);
                self.held.values_mut().for_each(|held| held.sequence = 0);
            }
        }
        self.floor = 0;
        self.origin = Some(origin.clone());
        Ok(())
    }

    /// The cluster heard so far: pinned in memory until the ClusterPeer says it.
    pub(crate) fn cluster_uid(&self) -> Option<&ClusterUid> {
        self.origin.as_ref().map(|origin| &origin.cluster_uid)
    }

    /// Whether `origin` is the one whose words count.
    pub(crate) fn hears(&self, origin: &Origin) -> bool {
        self.origin.as_ref() == Some(origin)
    }

    /// Judges a put of `origin`, and remembers it if it is news. `weight`: of its state ([`limits::weight`]).
    pub(crate) fn put(
        &mut self,
        origin: &Origin,
        sequence: u64,
        key: &StateKey,
        digest: Digest,
        weight: usize,
    ) -> News {
        if !self.hears(origin) || sequence <= self.floor {
            return News::Old;
        }
        let known = self.held.get(key).map(|held| held.weight).or_else(|| self.void.get(key).copied());
        let full = known.is_none() && self.held.len() + self.void.len() >= limits::KEYS_PER_PEER;
        let before = known.unwrap_or_default();
        let together = self.weight - before + weight;
        match self.held.get_mut(key) {
            Some(held) if sequence <= held.sequence => return News::Old,
            Some(held) if held.digest == digest => {
                held.sequence = sequence;
                return News::Same;
            }
            None if full => return News::Full,
            // What weighs less than before is always an improvement.
            _ if weight > before && together > limits::STATES_OF_A_PEER => return News::Heavy,
            _ => {}
        }
        self.weight = together;
        self.void.remove(key);
        self.held.insert(key.clone(), Held { sequence, digest, weight, before, rejected: false });
        News::New
    }

    /// The state of `key` that was judged [`News::New`] could not be used: the one that was delivered before is still kept.
    pub(crate) fn rejected(&mut self, key: &StateKey) {
        if let Some(held) = self.held.get_mut(key) {
            held.rejected = true;
            let more = held.before.saturating_sub(held.weight);
            held.weight += more;
            self.weight += more;
        }
    }

    /// All others are void: they weigh what they weigh until [`Inbox::release`].
    fn retain(&mut self, keep: impl Fn(&StateKey, &Held) -> bool) {
        let (held, void): (BTreeMap<_, _>, BTreeMap<_, _>) =
            std::mem::take(&mut self.held).into_iter().partition(|(key, held)| keep(key, held));
        self.held = held;
        self.void.extend(void.into_iter().map(|(key, held)| (key, held.weight)));
    }

    /// Of what is void, only what is still `kept` counts from now on.
    pub(crate) fn release(&mut self, kept: impl Fn(&StateKey) -> bool) {
        self.void.retain(|key, _| kept(key));
        self.weight = self.held.values().map(|held| held.weight).chain(self.void.values().copied()).sum();
    }

    /// Takes a summary of `origin`; `None` if its words do not count. Keys that a complete summary does not list are
    /// void.
    pub(crate) fn summary(&mut self, origin: &Origin, summary: &Summary) -> Option<Listed> {
        if !self.hears(origin) {
            return None;
        }
        let newer = |held: &Held| held.sequence > summary.sequence;
        let lacks = |(key, digest): &(&StateKey, &Digest)| {
            self.held.get(*key).is_none_or(|held| !newer(held) && held.digest != **digest)
        };
        let (lacking, had): (Vec<_>, Vec<_>) = summary.entries.iter().partition(lacks);
        let keys = |entries: Vec<(&StateKey, &Digest)>| entries.into_iter().map(|(key, _)| key.clone()).collect();
        let lacking = keys(lacking);
        // An older one, by another connection: what it says is still worth asking for, what it does not say means nothing.
        let old = summary.sequence <= self.floor;
        if old {
            return Some(Listed { lacking, unchanged: Vec::new(), all: None });
        }
        let usable = |(key, _): &(&StateKey, &Digest)| self.held.get(*key).is_some_and(|held| !held.rejected);
        let unchanged = keys(had.into_iter().filter(usable).collect());
        self.floor = summary.sequence;
        if !summary.complete {
            return Some(Listed { lacking, unchanged, all: None });
        }
        self.retain(|key, held| newer(held) || summary.entries.contains_key(key));
        let since = self.held.iter().filter(|(_, held)| newer(held)).map(|(key, _)| key);
        let all: BTreeSet<StateKey> = summary.entries.keys().chain(since).cloned().collect();
        Some(Listed { lacking, unchanged, all: Some(all.into_iter().collect()) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(uid: &str) -> StateKey {
        StateKey::Desired(uid.into())
    }

    fn origin(epoch: u64, instance: u64) -> Origin {
        Origin { cluster_uid: "uid".into(), epoch: Epoch(epoch), instance }
    }

    fn lacking(inbox: &mut Inbox, from: &Origin, summary: &Summary) -> Vec<StateKey> {
        inbox.summary(from, summary).unwrap().lacking
    }

    fn summary(sequence: u64, complete: bool, entries: &[(&str, &[u8])]) -> Summary {
        let entries = entries.iter().map(|(uid, state)| (key(uid), Digest::of(state))).collect();
        Summary { epoch: Epoch(1), sequence, complete, entries }
    }

    #[test]
    fn only_the_newest_word_of_the_newest_leader_counts() {
        let mut inbox = Inbox::default();
        let (first, second) = (origin(1, 10), origin(2, 20));
        assert_eq!(inbox.put(&first, 1, &key("a"), Digest::of(b"1"), 1), News::Old, "not admitted yet");
        inbox.admit(&first).unwrap();
        assert_eq!(inbox.put(&first, 5, &key("a"), Digest::of(b"1"), 1), News::New);
        assert_eq!(inbox.put(&first, 4, &key("b"), Digest::of(b"1"), 1), News::New, "keys are independent");
        assert_eq!(inbox.put(&first, 4, &key("a"), Digest::of(b"0"), 1), News::Old);
        assert_eq!(inbox.put(&first, 6, &key("a"), Digest::of(b"1"), 1), News::Same);
        inbox.admit(&second).unwrap();
        assert_eq!(inbox.put(&first, 7, &key("a"), Digest::of(b"2"), 1), News::Old, "an old leader");
        assert_eq!(inbox.put(&second, 1, &key("a"), Digest::of(b"1"), 1), News::Same, "still held");
        assert_eq!(inbox.put(&second, 2, &key("a"), Digest::of(b"3"), 1), News::New);
        assert_eq!(inbox.admit(&first), Err(Strange::OldLeader(Epoch(2))));
    }

    #[test]
    fn a_restarted_process_of_the_same_leadership_counts_from_the_start() {
        let mut inbox = Inbox::default();
        inbox.admit(&origin(1, 10)).unwrap();
        assert_eq!(inbox.put(&origin(1, 10), 900, &key("a"), Digest::of(b"1"), 1), News::New);
        inbox.admit(&origin(1, 11)).unwrap();
        assert_eq!(inbox.put(&origin(1, 11), 1, &key("a"), Digest::of(b"2"), 1), News::New);
        assert_eq!(inbox.put(&origin(1, 10), 901, &key("a"), Digest::of(b"1"), 1), News::Old);
    }

    #[test]
    fn another_cluster_under_the_same_name_is_not_heard() {
        let mut inbox = Inbox::default();
        inbox.admit(&origin(9, 10)).unwrap();
        let rebuilt = Origin { cluster_uid: "other".into(), epoch: Epoch(10), instance: 1 };
        assert_eq!(inbox.admit(&rebuilt), Err(Strange::OtherCluster("uid".into())));
        assert!(inbox.hears(&origin(9, 10)));
    }

    #[test]
    fn a_summary_asks_for_what_differs_and_voids_what_was_said_before() {
        let mut inbox = Inbox::default();
        let from = origin(1, 10);
        inbox.admit(&from).unwrap();
        inbox.put(&from, 1, &key("a"), Digest::of(b"1"), 1);
        inbox.put(&from, 2, &key("b"), Digest::of(b"1"), 1);
        inbox.put(&from, 3, &key("gone"), Digest::of(b"1"), 1);
        let entries: &[(&str, &[u8])] = &[("a", b"1"), ("b", b"2"), ("c", b"1")];
        assert_eq!(lacking(&mut inbox, &from, &summary(10, false, entries)), [key("b"), key("c")]);
        assert_eq!(inbox.put(&from, 11, &key("gone"), Digest::of(b"1"), 1), News::Same, "incomplete: still held");
        let listed = inbox.summary(&from, &summary(12, true, entries)).unwrap();
        let all = Some(["a", "b", "c"].map(key).into());
        assert_eq!(listed, Listed { lacking: vec![key("b"), key("c")], unchanged: vec![key("a")], all });
        assert_eq!(inbox.put(&from, 9, &key("gone"), Digest::of(b"1"), 1), News::Old, "late, by another connection");
        assert_eq!(inbox.put(&from, 13, &key("gone"), Digest::of(b"1"), 1), News::New, "it came back");
        let late = inbox.summary(&from, &summary(11, true, &[("d", b"1")])).unwrap();
        let nothing = Listed { lacking: vec![key("d")], unchanged: vec![], all: None };
        assert_eq!(late, nothing, "an older summary, by another connection");
    }

    #[test]
    fn what_is_newer_than_a_summary_is_neither_forgotten_nor_asked_for() {
        let mut inbox = Inbox::default();
        let from = origin(1, 10);
        inbox.admit(&from).unwrap();
        inbox.put(&from, 21, &key("a"), Digest::of(b"new"), 1);
        inbox.put(&from, 22, &key("made-later"), Digest::of(b"1"), 1);
        let listed = inbox.summary(&from, &summary(20, true, &[("a", b"old")])).unwrap();
        let all = Some(vec![key("a"), key("made-later")]);
        assert_eq!(listed, Listed { lacking: vec![], unchanged: vec![key("a")], all });
        assert_eq!(inbox.put(&from, 23, &key("made-later"), Digest::of(b"1"), 1), News::Same);
    }

    #[test]
    fn a_rejected_state_is_asked_for_again_by_a_new_process_only() {
        let mut inbox = Inbox::default();
        inbox.admit(&origin(1, 10)).unwrap();
        assert_eq!(inbox.put(&origin(1, 10), 1, &key("a"), Digest::of(b"bad"), 1), News::New);
        inbox.rejected(&key("a"));
        assert_eq!(lacking(&mut inbox, &origin(1, 10), &summary(2, true, &[("a", b"bad")])), []);
        inbox.admit(&origin(1, 11)).unwrap();
        assert_eq!(lacking(&mut inbox, &origin(1, 11), &summary(1, true, &[("a", b"bad")])), [key("a")]);
    }

    #[test]
    fn keys_are_bounded() {
        let mut inbox = Inbox::default();
        let from = origin(1, 10);
        inbox.admit(&from).unwrap();
        for index in 0..limits::KEYS_PER_PEER as u64 {
            assert_eq!(inbox.put(&from, index + 1, &key(&index.to_string()), Digest::TOMBSTONE, 1), News::New);
        }
        assert_eq!(inbox.put(&from, 9_000, &key("one more"), Digest::TOMBSTONE, 1), News::Full);
        assert_eq!(inbox.put(&from, 9_001, &key("1"), Digest::of(b"1"), 1), News::New, "known keys still change");
    }

    #[test]
    fn states_are_bounded_by_what_they_weigh_together() {
        let mut inbox = Inbox::default();
        let from = origin(1, 10);
        inbox.admit(&from).unwrap();
        let half = limits::STATES_OF_A_PEER / 2;
        let mut sequence = 0;
        let mut put = |inbox: &mut Inbox, uid: &str, state: &[u8], weight| {
            sequence += 1;
            inbox.put(&from, sequence, &key(uid), Digest::of(state), weight)
        };
        assert_eq!(put(&mut inbox, "a", b"1", half), News::New);
        assert_eq!(put(&mut inbox, "b", b"1", half), News::New);
        assert_eq!(put(&mut inbox, "c", b"1", 1), News::Heavy);
        assert_eq!(put(&mut inbox, "a", b"2", half + 1), News::Heavy, "a known key as well");
        assert_eq!(put(&mut inbox, "a", b"3", half - 1), News::New, "less is always taken");
        assert_eq!(put(&mut inbox, "c", b"1", 1), News::New);
        inbox.summary(&from, &summary(99, true, &[("c", b"1")])).unwrap();
        inbox.release(|_| false);
        assert_eq!(inbox.weight, 1, "what is not listed any more weighs nothing once it is not kept");
    }

    /// The danger: a peer that takes back all it has said, or says that another leader speaks, fills the memory with what is
    /// still kept of it.
    #[test]
    fn what_is_named_no_more_counts_as_long_as_it_is_kept() {
        let (mut inbox, mut sequence) = (Inbox::default(), 0);
        let heavy = limits::STATES_OF_A_PEER / 4;
        let mut round = |inbox: &mut Inbox, epoch: u64, weight: usize, count: usize| {
            let from = origin(epoch, epoch);
            inbox.admit(&from).unwrap();
            let mut news = Vec::new();
            for number in 0..count {
                sequence += 1;
                news.push(inbox.put(&from, sequence, &key(&format!("{epoch}-{number}")), Digest::TOMBSTONE, weight));
            }
            sequence += 1;
            inbox.summary(&from, &summary(sequence, true, &[])).unwrap();
            news
        };
        assert_eq!(round(&mut inbox, 1, heavy, 5), [[News::New; 4].as_slice(), &[News::Heavy]].concat());
        let kept = |uid: &'static str| move |one: &StateKey| *one == key(uid);
        for epoch in 2..5 {
            inbox.release(|_| true);
            assert_eq!(round(&mut inbox, epoch, heavy, 1), [News::Heavy]);
        }
        inbox.release(kept("1-0"));
        assert_eq!(round(&mut inbox, 5, heavy, 4), [[News::New; 3].as_slice(), &[News::Heavy]].concat());
        inbox.release(|_| false);
        let many = limits::KEYS_PER_PEER;
        assert_eq!(round(&mut inbox, 6, 0, many), vec![News::New; many]);
        assert_eq!(round(&mut inbox, 7, 0, 1), [News::Full]);
        inbox.release(kept("6-0"));
        let news = round(&mut inbox, 8, 0, many);
        assert_eq!((news[many - 2], news[many - 1]), (News::New, News::Full));
    }

    /// The danger: the tiny state that cannot be used hides the weight of the one that can, and that is kept.
    #[test]
    fn what_cannot_be_used_weighs_no_less_than_what_it_would_have_replaced() {
        let (mut inbox, from) = (Inbox::default(), origin(1, 10));
        inbox.admit(&from).unwrap();
        assert_eq!(inbox.put(&from, 1, &key("a"), Digest::of(b"good"), 1_000), News::New);
        for (sequence, bad) in [(2, &b"bad"[..]), (3, &b"worse"[..])] {
            assert_eq!(inbox.put(&from, sequence, &key("a"), Digest::of(bad), 2), News::New);
            inbox.rejected(&key("a"));
            assert_eq!(inbox.weight, 1_000);
        }
        assert_eq!(inbox.put(&from, 4, &key("a"), Digest::of(b"small"), 2), News::New);
        assert_eq!(inbox.weight, 2);
    }
}
