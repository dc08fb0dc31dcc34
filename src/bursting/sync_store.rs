//! What the two rooms share: the federation pulls from here and puts into here, the controllers of both sides of a burst
//! do the same from the other end. Tables of newest values, no queues.
//!
//! Everything in it belongs to one leader's scope: [`SyncStore::begin`] empties it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use tributary_contract::ports::{Incoming, Outgoing, State, StateKey};
use tributary_contract::{
    BurstUid, Capacity, ClusterUid, DesiredBurst, DirtySet, Epoch, ObservedBurst, PeerName, PeerReport, PeerState,
};

use super::provider::slot::{ClaimKey, Wanted};
use super::table::Table;

/// The tables. Cloning shares them.
#[derive(Clone, Debug, Default)]
pub(crate) struct SyncStore {
    inner: Arc<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    /// Root side: what we want of whom.
    desired: Table<State>,
    /// Provider side: what we answer whom.
    observed: Table<State>,
    outgoing_changed: DirtySet<(PeerName, StateKey)>,
    /// Root side: bursts that exist, and of which nobody knows yet what there is to say.
    withheld: Mutex<BTreeSet<BurstUid>>,
    /// Provider side: what peers want of us.
    claims: Table<Wanted>,
    claims_changed: DirtySet<ClaimKey>,
    /// Provider side: peers that have listed all that they want for the first time in their session.
    listed: DirtySet<PeerName>,
    /// Root side: what peers say of our bursts.
    answers: Table<Answer>,
    answers_changed: DirtySet<ClaimKey>,
    /// Root side: why what we say now of a burst does not reach a peer.
    undeliverable: Table<String>,
    /// What is known of connections; without round-trip times and the like, which change all the time.
    reports: Mutex<BTreeMap<PeerName, PeerReport>>,
    reports_changed: DirtySet<PeerName>,
    sessions: Mutex<BTreeMap<PeerName, Session>>,
    capacity: Mutex<BTreeMap<PeerName, Capacity>>,
    complete: AtomicBool,
}

/// What a provider says of a burst.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Answer {
    /// Where it stands there.
    Observed(Box<ObservedBurst>),
    /// A tombstone: nothing of it is there.
    Nothing,
}

impl From<ObservedBurst> for Answer {
    fn from(said: ObservedBurst) -> Self {
        Self::Observed(Box::new(said))
    }
}

/// Which bursts peers want anything of.
pub(crate) trait Listed: fmt::Debug {
    /// Whether a peer wants anything of a burst; `None`: it is not in session, or has not said in this session yet what it
    /// wants of this burst, though it may have listed it.
    fn lists(&self, peer: &PeerName, uid: &BurstUid) -> Option<bool>;
}

impl Listed for SyncStore {
    fn lists(&self, peer: &PeerName, uid: &BurstUid) -> Option<bool> {
        self.inner.sessions.lock().get(peer)?.wants(uid)
    }
}

#[cfg(test)]
impl Listed for BTreeMap<PeerName, BTreeSet<BurstUid>> {
    fn lists(&self, peer: &PeerName, uid: &BurstUid) -> Option<bool> {
        Some(self.get(peer)?.contains(uid))
    }
}

/// What one peer has said since its session began.
#[derive(Clone, Debug, Default)]
struct Session {
    epoch: Epoch,
    /// The cluster that spoke.
    cluster: Option<ClusterUid>,
    /// Bursts it put something about since its last complete snapshot, or of which it said that nothing changed: it knows of
    /// them, whatever an older list says.
    put: BTreeSet<BurstUid>,
    /// The same, of the snapshot before.
    put_before: BTreeSet<BurstUid>,
    /// Bursts of its last complete snapshot.
    listed: Option<BTreeSet<BurstUid>>,
    /// Claims that its last complete snapshot did not name any more: of tombstones, it has taken notice of our answer; of
    /// bursts, it wants nothing more of them.
    unnamed: BTreeSet<BurstUid>,
    /// Bursts of ours that it has said nothing of since it was in session again: what it said before may be long over.
    old_answers: BTreeSet<BurstUid>,
}

impl Session {
    /// Whether it wants anything of a burst: as soon as it says so, or once it has listed all. Of what it lists and has not
    /// said yet, its newest word is on its way.
    fn wants(&self, uid: &BurstUid) -> Option<bool> {
        if self.put.contains(uid) || self.put_before.contains(uid) {
            return Some(true);
        }
        (!self.listed.as_ref()?.contains(uid)).then_some(false)
    }

    /// All bursts it wants anything of, once it has listed them.
    fn all(&self) -> Option<BTreeSet<BurstUid>> {
        let listed = self.listed.as_ref()?;
        Some(listed.iter().chain(&self.put).chain(&self.put_before).cloned().collect())
    }
}

impl SyncStore {
    /// Nothing is known at the beginning of a leader's scope.
    pub(crate) fn begin(&self) {
        let Inner { desired, observed, claims, answers, undeliverable, .. } = &*self.inner;
        self.inner.complete.store(false, Ordering::SeqCst);
        desired.clear();
        observed.clear();
        claims.clear();
        answers.clear();
        undeliverable.clear();
        self.inner.reports.lock().clear();
        self.inner.withheld.lock().clear();
        self.inner.sessions.lock().clear();
        self.inner.capacity.lock().clear();
        self.inner.outgoing_changed.take();
        self.inner.claims_changed.take();
        self.inner.listed.take();
        self.inner.answers_changed.take();
        self.inner.reports_changed.take();
    }

    /// The same tables once more. What changed lately is not in them.
    #[cfg(test)]
    pub(crate) fn copy(&self) -> Self {
        let Inner { desired, observed, claims, answers, undeliverable, .. } = &*self.inner;
        let inner = Inner {
            desired: desired.copy(),
            observed: observed.copy(),
            withheld: Mutex::new(self.inner.withheld.lock().clone()),
            claims: claims.copy(),
            answers: answers.copy(),
            undeliverable: undeliverable.copy(),
            reports: Mutex::new(self.reports()),
            sessions: Mutex::new(self.inner.sessions.lock().clone()),
            capacity: Mutex::new(self.inner.capacity.lock().clone()),
            complete: self.complete().into(),
            ..Inner::default()
        };
        Self { inner: Arc::new(inner) }
    }

    /// What a peer said last.
    #[cfg(test)]
    pub(crate) fn heard(&self, peer: &PeerName, key: &StateKey) -> Option<State> {
        match key {
            StateKey::Desired(uid) => Some(match self.claim(&(peer.clone(), uid.clone()))? {
                Wanted::Burst(desired) => State::Desired(Box::new(DesiredBurst::clone(&desired))),
                Wanted::Tombstone => State::Tombstone,
            }),
            StateKey::Observed(uid) => Some(match self.inner.answers.of(&(peer.clone(), uid.clone()))? {
                Answer::Observed(said) => State::Observed(said),
                Answer::Nothing => State::Tombstone,
            }),
        }
    }

    /// Everything we have to say was said once, but for what is withheld: from now on what is not there is not wanted.
    pub(crate) fn set_complete(&self, complete: bool) {
        self.inner.complete.store(complete, Ordering::SeqCst);
    }

    /// Root side: of these bursts alone nothing may be concluded from our silence.
    pub(crate) fn withhold(&self, bursts: BTreeSet<BurstUid>) {
        *self.inner.withheld.lock() = bursts;
    }

    /// Root side: a burst is offered to exactly these peers. Those that it was offered to before are told to let go.
    pub(crate) fn offer(&self, uid: &BurstUid, offers: BTreeMap<PeerName, DesiredBurst>) {
        for peer in self.inner.desired.peers_of(uid, |_| true).into_iter().filter(|peer| !offers.contains_key(peer)) {
            self.say((peer, uid.clone()), State::Tombstone);
        }
        for (peer, desired) in offers {
            self.say((peer, uid.clone()), State::Desired(Box::new(desired)));
        }
    }

    /// Root side: a peer that nothing is said to of a burst is told to let go, unless it has confirmed that nothing is left.
    pub(crate) fn withdraw(&self, key: &ClaimKey) {
        let Inner { desired, answers, .. } = &*self.inner;
        if !desired.is(key, |_| true) && !answers.is(key, |answer| *answer == Answer::Nothing) {
            self.say(key.clone(), State::Tombstone);
        }
    }

    /// A problem was one of what was said before, and so is a release that was confirmed before an offer.
    fn say(&self, key: ClaimKey, state: State) {
        let offers = matches!(state, State::Desired(_));
        if self.inner.desired.put(&key, state) {
            self.inner.undeliverable.remove(&key);
            if offers && self.inner.answers.is(&key, |answer| *answer == Answer::Nothing) {
                self.remove_answer(key.clone());
            }
            self.inner.outgoing_changed.mark((key.0, StateKey::Desired(key.1)));
        }
    }

    /// Root side: peers that what we say of a burst does not reach, and why.
    pub(crate) fn undeliverable_to(&self, uid: &BurstUid) -> BTreeMap<PeerName, String> {
        self.inner.undeliverable.of_burst(uid)
    }

    /// Root side: peers that were told to let go of a burst and have not confirmed.
    pub(crate) fn withdrawing(&self, uid: &BurstUid) -> BTreeSet<PeerName> {
        self.inner.desired.peers_of(uid, |state| *state == State::Tombstone)
    }

    /// Root side: what peers say of a burst. What they said in an earlier session stands aside until they say it again, but
    /// for the confirmation of a release: that is forgotten with the next offer.
    pub(crate) fn answers(&self, uid: &BurstUid) -> BTreeMap<PeerName, Answer> {
        let (mut answers, sessions) = (self.inner.answers.of_burst(uid), self.inner.sessions.lock());
        let old = |peer: &PeerName| sessions.get(peer).is_some_and(|session| session.old_answers.contains(uid));
        answers.retain(|peer, answer| *answer == Answer::Nothing || !old(peer));
        answers
    }

    /// Root side: whether a burst is offered to a peer.
    fn offers(&self, key: &ClaimKey) -> bool {
        self.inner.desired.is(key, |said| matches!(said, State::Desired(_)))
    }

    fn remove_answer(&self, key: ClaimKey) {
        if self.inner.answers.remove(&key) {
            self.inner.answers_changed.mark(key);
        }
    }

    /// Root side: what peers say of bursts that do not exist is about nothing, unless we still speak of them ourselves: it
    /// is not kept, or a peer could fill the memory with it.
    pub(crate) fn retain_answers(&self, exists: impl Fn(&BurstUid) -> bool) {
        let of_none = self.inner.answers.keys_of(|uid| !exists(uid));
        of_none.into_iter().filter(|(_, uid)| !self.is_offered(uid)).for_each(|key| self.remove_answer(key));
    }

    /// Root side: those of the bursts that anything is still said about.
    pub(crate) fn offered(&self, test: impl Fn(&BurstUid) -> bool) -> BTreeSet<BurstUid> {
        self.inner.desired.keys_of(test).into_iter().map(|(_, uid)| uid).collect()
    }

    /// Root side: whether anything is still said about a burst.
    pub(crate) fn is_offered(&self, uid: &BurstUid) -> bool {
        self.inner.desired.has(uid)
    }

    /// Root side: bursts whose answers changed.
    pub(crate) fn answers_changed(&self) -> &DirtySet<ClaimKey> {
        &self.inner.answers_changed
    }

    /// Provider side: what a peer wants of a burst.
    pub(crate) fn claim(&self, key: &ClaimKey) -> Option<Wanted> {
        self.inner.claims.of(key)
    }

    /// Provider side: all claims.
    pub(crate) fn claim_keys(&self) -> Vec<ClaimKey> {
        self.inner.claims.keys()
    }

    /// Provider side: the claims of a peer.
    pub(crate) fn claims_of(&self, peer: &PeerName) -> Vec<ClaimKey> {
        self.inner.claims.of_peer(peer).into_iter().map(|uid| (peer.clone(), uid)).collect()
    }

    /// Provider side: what peers want of us.
    #[cfg(test)]
    pub(crate) fn claims(&self) -> BTreeMap<ClaimKey, Wanted> {
        let keys = self.claim_keys().into_iter();
        keys.filter_map(|key| self.claim(&key).map(|wanted| (key, wanted))).collect()
    }

    /// Provider side: claims that changed, or that their peer lists now and did not, or the other way round.
    pub(crate) fn claims_changed(&self) -> &DirtySet<ClaimKey> {
        &self.inner.claims_changed
    }

    /// Provider side: peers that have listed all that they want for the first time in their session.
    pub(crate) fn first_listed(&self) -> &DirtySet<PeerName> {
        &self.inner.listed
    }

    /// Provider side: per peer in session that has sent a complete snapshot, all bursts it wants anything of.
    #[cfg(test)]
    pub(crate) fn listed(&self) -> BTreeMap<PeerName, BTreeSet<BurstUid>> {
        let sessions = self.inner.sessions.lock();
        sessions.iter().filter_map(|(peer, session)| Some((peer.clone(), session.all()?))).collect()
    }

    /// Provider side: the answer to a claim.
    pub(crate) fn answer(&self, key: &ClaimKey, answer: Answer) {
        let state = match answer {
            Answer::Observed(said) => State::Observed(said),
            Answer::Nothing => State::Tombstone,
        };
        // A release is confirmed as often as it is asked for: the root may have changed its mind twice since.
        let confirms = state == State::Tombstone;
        if self.inner.observed.put(key, state) || confirms {
            self.inner.outgoing_changed.mark((key.0.clone(), StateKey::Observed(key.1.clone())));
        }
    }

    /// Provider side: a claim that its peer does not list any more, and that nothing is here for.
    pub(crate) fn drop_claim(&self, key: &ClaimKey) {
        if self.inner.claims.remove(key) {
            self.inner.claims_changed.mark(key.clone());
        }
        if self.inner.observed.remove(key) {
            self.inner.outgoing_changed.mark((key.0.clone(), StateKey::Observed(key.1.clone())));
        }
    }

    /// Provider side: what a peer is told of our capacity.
    pub(crate) fn set_capacity(&self, peer: &PeerName, capacity: Option<Capacity>) {
        let mut table = self.inner.capacity.lock();
        match capacity {
            Some(capacity) => table.insert(peer.clone(), capacity),
            None => table.remove(peer),
        };
    }

    /// What is known of the connection to a peer.
    pub(crate) fn report(&self, peer: &PeerName) -> Option<PeerReport> {
        self.inner.reports.lock().get(peer).cloned()
    }

    /// What is known of the connections.
    pub(crate) fn reports(&self) -> BTreeMap<PeerName, PeerReport> {
        self.inner.reports.lock().clone()
    }

    /// Peers whose connection changed.
    pub(crate) fn reports_changed(&self) -> &DirtySet<PeerName> {
        &self.inner.reports_changed
    }

    /// Peers that are configured no more: nothing is said to them, and nothing of theirs is kept.
    pub(crate) fn retain_peers(&self, configured: &BTreeSet<PeerName>) {
        let Inner { desired, observed, claims, answers, undeliverable, .. } = &*self.inner;
        for (peer, uid) in desired.retain_peers(configured) {
            self.inner.outgoing_changed.mark((peer, StateKey::Desired(uid)));
        }
        for (peer, uid) in observed.retain_peers(configured) {
            self.inner.outgoing_changed.mark((peer, StateKey::Observed(uid)));
        }
        answers.retain_peers(configured).into_iter().for_each(|key| self.inner.answers_changed.mark(key));
        claims.retain_peers(configured).into_iter().for_each(|key| self.inner.claims_changed.mark(key));
        undeliverable.retain_peers(configured);
        self.inner.sessions.lock().retain(|peer, _| configured.contains(peer));
        let mut reports = self.inner.reports.lock();
        let gone = reports.extract_if(.., |peer, _| !configured.contains(peer));
        gone.for_each(|(peer, _)| self.inner.reports_changed.mark(peer));
    }

    /// What another cluster of the peer's name said of our bursts is not this one's word, nor does its count of leaderships.
    fn know(&self, peer: &PeerName, cluster: Option<&ClusterUid>) {
        let Some(cluster) = cluster else { return };
        let mut sessions = self.inner.sessions.lock();
        let session = sessions.entry(peer.clone()).or_default();
        let other = session.cluster.as_ref().is_some_and(|before| before != cluster);
        if other {
            *session = Session::default();
        }
        session.cluster = Some(cluster.clone());
        drop(sessions);
        if other {
            let said = self.inner.answers.of_peer(peer).into_iter();
            said.for_each(|uid| self.remove_answer((peer.clone(), uid)));
        }
    }

    /// Enters a word of a peer into its session; whether it counts.
    fn hear(&self, peer: &PeerName, epoch: Epoch, note: impl FnOnce(&mut Session)) -> bool {
        let mut sessions = self.inner.sessions.lock();
        let session = sessions.entry(peer.clone()).or_default();
        if epoch < session.epoch {
            return false;
        }
        if epoch > session.epoch {
            let old_answers = self.inner.answers.of_peer(peer).into_iter().collect();
            // Lists of two leaders count like two of one: who says with each list that another one leads is forgotten, too.
            let (cluster, unnamed) = (session.cluster.take(), std::mem::take(&mut session.unnamed));
            *session = Session { epoch, cluster, unnamed, old_answers, ..Session::default() };
        }
        note(session);
        true
    }
}

impl Outgoing for SyncStore {
    fn dirty(&self) -> &DirtySet<(PeerName, StateKey)> {
        &self.inner.outgoing_changed
    }

    fn keys(&self, peer: &PeerName) -> Vec<StateKey> {
        let desired = self.inner.desired.of_peer(peer).into_iter().map(StateKey::Desired);
        desired.chain(self.inner.observed.of_peer(peer).into_iter().map(StateKey::Observed)).collect()
    }

    fn withheld(&self, peer: &PeerName) -> Vec<StateKey> {
        let all = self.inner.withheld.lock().clone();
        let said = |uid: &BurstUid| self.inner.desired.is(&(peer.clone(), uid.clone()), |_| true);
        all.into_iter().filter(|uid| !said(uid)).map(StateKey::Desired).collect()
    }

    fn state(&self, peer: &PeerName, key: &StateKey) -> Option<State> {
        match key {
            StateKey::Desired(uid) => self.inner.desired.of(&(peer.clone(), uid.clone())),
            StateKey::Observed(uid) => self.inner.observed.of(&(peer.clone(), uid.clone())),
        }
    }

    fn complete(&self) -> bool {
        self.inner.complete.load(Ordering::SeqCst)
    }

    fn capacity(&self, peer: &PeerName) -> Option<Capacity> {
        self.inner.capacity.lock().get(peer).cloned()
    }
}

impl Incoming for SyncStore {
    fn put(&self, peer: &PeerName, epoch: Epoch, key: StateKey, state: State) {
        let uid = match &key {
            StateKey::Desired(uid) | StateKey::Observed(uid) => uid.clone(),
        };
        let wants = matches!(key, StateKey::Desired(_));
        let mut news = false;
        let counts = self.hear(peer, epoch, |session| {
            if wants {
                news = session.wants(&uid) != Some(true);
                session.put.insert(uid.clone());
                session.unnamed.remove(&uid);
            } else {
                news = session.old_answers.remove(&uid);
            }
        });
        if !counts {
            tracing::debug!(%peer, ?epoch, %uid, "a word of an older leader is ignored");
            return;
        }
        let at = (peer.clone(), uid.clone());
        let (claim, answer) = match (key, state) {
            // The key says whose burst it is; a state that says another is of a broken peer.
            (StateKey::Desired(_), State::Desired(desired)) if desired.uid == uid => {
                (Some(Wanted::Burst(Arc::from(desired))), None)
            }
            (StateKey::Desired(_), State::Tombstone) => (Some(Wanted::Tombstone), None),
            (StateKey::Observed(_), State::Observed(said)) if said.uid == uid => (None, Some(Answer::Observed(said))),
            // Nobody answers an offer so: it was said before the offer arrived.
            (StateKey::Observed(_), State::Tombstone) if self.offers(&at) => {
                return self.remove_answer(at);
            }
            (StateKey::Observed(_), State::Tombstone) => {
                if self.inner.desired.is(&at, |told| *told == State::Tombstone) {
                    self.inner.desired.remove(&at);
                    self.inner.outgoing_changed.mark((peer.clone(), StateKey::Desired(uid)));
                }
                (None, Some(Answer::Nothing))
            }
            _ => {
                tracing::warn!(%peer, %uid, "a state that does not fit its key is ignored");
                return;
            }
        };
        // Whoever asks for a release once more waits for an answer once more.
        news |= claim == Some(Wanted::Tombstone);
        if claim.is_some_and(|wanted| self.inner.claims.put(&at, wanted) || news) {
            self.inner.claims_changed.mark(at.clone());
        }
        if answer.is_some_and(|answer| self.inner.answers.put(&at, answer) || news) {
            self.inner.answers_changed.mark(at);
        }
    }

    fn unchanged(&self, peer: &PeerName, epoch: Epoch, keys: &[StateKey]) {
        let (mut claims, mut answers) = (Vec::new(), Vec::new());
        self.hear(peer, epoch, |session| {
            for key in keys {
                match key {
                    StateKey::Desired(uid) => {
                        let news = session.wants(uid) != Some(true);
                        session.put.insert(uid.clone());
                        claims.extend(news.then(|| uid.clone()));
                    }
                    StateKey::Observed(uid) => {
                        answers.extend(session.old_answers.remove(uid).then(|| uid.clone()));
                    }
                }
            }
        });
        claims.into_iter().for_each(|uid| self.inner.claims_changed.mark((peer.clone(), uid)));
        answers.into_iter().for_each(|uid| self.inner.answers_changed.mark((peer.clone(), uid)));
    }

    fn complete_snapshot(&self, peer: &PeerName, epoch: Epoch, keys: &[StateKey]) {
        let named = keys.iter().filter_map(|key| match key {
            StateKey::Desired(uid) => Some(uid.clone()),
            StateKey::Observed(_) => None,
        });
        let claims = self.inner.claims.of_peer(peer);
        let (mut first, mut changed, mut twice) = (false, BTreeSet::new(), BTreeSet::new());
        let counts = self.hear(peer, epoch, |session| {
            let before = session.all();
            session.put_before = std::mem::take(&mut session.put);
            session.listed = Some(named.collect());
            let (wanted, is_first) = (session.all().unwrap_or_default(), before.is_none());
            first = is_first;
            changed = before.unwrap_or_default().symmetric_difference(&wanted).cloned().collect();
            let unnamed = claims.into_iter().filter(|uid| !wanted.contains(uid)).collect();
            // One list may be older than what it does not name; two in a row are not.
            twice = session.unnamed.intersection(&unnamed).cloned().collect();
            session.unnamed = unnamed;
        });
        if !counts {
            return;
        }
        for uid in twice {
            self.drop_claim(&(peer.clone(), uid));
        }
        // What it lists as before means what it meant before.
        changed.into_iter().for_each(|uid| self.inner.claims_changed.mark((peer.clone(), uid)));
        if first {
            // Bursts that are hosted here and that nobody claims are looked at, too.
            self.inner.listed.mark(peer.clone());
        }
    }

    fn keeps(&self, peer: &PeerName, key: &StateKey) -> bool {
        match key {
            StateKey::Desired(uid) => self.inner.claims.is(&(peer.clone(), uid.clone()), |_| true),
            // That nothing is left there stays known as long as its Burst is there, and takes no room of the peer's.
            StateKey::Observed(uid) => {
                self.inner.answers.is(&(peer.clone(), uid.clone()), |answer| *answer != Answer::Nothing)
            }
        }
    }

    fn undeliverable(&self, peer: &PeerName, key: StateKey, problem: &str) {
        // An answer of ours that is not taken is the federation's warning in the log: the root asks again.
        let StateKey::Desired(uid) = key else { return };
        let at = (peer.clone(), uid);
        if self.offers(&at) {
            self.inner.undeliverable.put(&at, problem.to_owned());
            self.inner.answers_changed.mark(at);
        }
    }

    fn peer_report(&self, peer: &PeerName, report: PeerReport) {
        self.know(peer, report.cluster_uid.as_ref());
        let in_session = matches!(report.state, PeerState::Connected | PeerState::Suspect);
        if !in_session && let Some(session) = self.inner.sessions.lock().get_mut(peer) {
            session.put.clear();
            session.put_before.clear();
            session.listed = None;
            session.old_answers = self.inner.answers.of_peer(peer).into_iter().collect();
        }
        let mut reports = self.inner.reports.lock();
        let known = reports.get(peer).cloned().unwrap_or_default();
        // When it was last heard of matters once it is not heard any more.
        let last_seen = if report.state == PeerState::Connected { known.last_seen } else { report.last_seen };
        let since = if report.state == known.state { known.since } else { report.since };
        let report = PeerReport { last_seen, since, rtt_micros: None, ..report };
        if reports.get(peer) != Some(&report) {
            reports.insert(peer.clone(), report);
            self.inner.reports_changed.mark(peer.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use tributary_contract::BurstPhase;

    use super::*;
    use crate::provider::admission::tests::offer;

    fn west() -> PeerName {
        "west".into()
    }

    fn uid() -> BurstUid {
        "burst-uid".into()
    }

    fn claim() -> ClaimKey {
        (west(), uid())
    }

    fn desired() -> State {
        State::Desired(Box::new(offer()))
    }

    fn offers() -> BTreeMap<PeerName, DesiredBurst> {
        [(west(), offer())].into()
    }

    #[test]
    fn what_is_offered_no_more_is_withdrawn_until_that_is_confirmed() {
        let exchange = SyncStore::default();
        let key = StateKey::Desired(uid());
        exchange.offer(&uid(), offers());
        assert_eq!(exchange.state(&west(), &key), Some(desired()));
        exchange.offer(&uid(), BTreeMap::new());
        assert_eq!(exchange.state(&west(), &key), Some(State::Tombstone));
        assert_eq!(exchange.withdrawing(&uid()), [west()].into());
        exchange.put(&west(), Epoch(1), StateKey::Observed(uid()), State::Tombstone);
        assert_eq!(exchange.state(&west(), &key), None);
        assert_eq!(exchange.answers(&uid()), [(west(), Answer::Nothing)].into());
        exchange.offer(&uid(), BTreeMap::new());
        assert!(exchange.withdrawing(&uid()).is_empty(), "it is not said again");
    }

    #[test]
    fn a_confirmation_of_a_release_does_not_take_an_offer_back() {
        let exchange = SyncStore::default();
        let confirms = || exchange.put(&west(), Epoch(1), StateKey::Observed(uid()), State::Tombstone);
        exchange.offer(&uid(), offers());
        exchange.offer(&uid(), BTreeMap::new());
        confirms();
        assert_eq!(exchange.answers(&uid()), [(west(), Answer::Nothing)].into());
        exchange.offer(&uid(), offers());
        assert!(exchange.answers(&uid()).is_empty(), "that was about the offer before");
        confirms();
        assert_eq!(exchange.state(&west(), &StateKey::Desired(uid())), Some(desired()));
        assert!(exchange.answers(&uid()).is_empty(), "it was said before the offer arrived");
    }

    #[test]
    fn a_new_leader_tells_a_peer_to_let_go_that_it_has_said_nothing_to() {
        let exchange = SyncStore::default();
        exchange.offer(&uid(), offers());
        exchange.withdraw(&claim());
        assert_eq!(exchange.state(&west(), &StateKey::Desired(uid())), Some(desired()), "it is wanted there");
        exchange.begin();
        exchange.withdraw(&claim());
        assert_eq!(exchange.withdrawing(&uid()), [west()].into());
        exchange.put(&west(), Epoch(1), StateKey::Observed(uid()), State::Tombstone);
        exchange.withdraw(&claim());
        assert!(exchange.withdrawing(&uid()).is_empty(), "it has confirmed that");
    }

    #[test]
    fn a_release_is_confirmed_as_often_as_it_is_asked_for() {
        let exchange = SyncStore::default();
        let asks = || exchange.put(&west(), Epoch(1), StateKey::Desired(uid()), State::Tombstone);
        let (claimed, said) = (|| exchange.claims_changed().take(), || exchange.dirty().take());
        for _ in 0..2 {
            asks();
            assert_eq!(claimed(), [claim()].into());
            exchange.answer(&claim(), Answer::Nothing);
            assert_eq!(said(), [(west(), StateKey::Observed(uid()))].into());
        }
        // In a session that begins anew it is listed, and there is nothing new to be said of it.
        exchange.peer_report(&west(), PeerReport::default());
        exchange.unchanged(&west(), Epoch(1), &[StateKey::Desired(uid())]);
        exchange.complete_snapshot(&west(), Epoch(1), &[StateKey::Desired(uid())]);
        assert_eq!(claimed(), [claim()].into());
    }

    /// The danger: of a peer whose session begins anew, what it said last counts for what it says now.
    #[test]
    fn what_was_said_in_an_earlier_session_counts_once_it_is_said_again() {
        let (exchange, key) = (SyncStore::default(), StateKey::Desired(uid()));
        let lists = || exchange.lists(&west(), &uid());
        let connects = || exchange.peer_report(&west(), PeerReport::default());
        exchange.put(&west(), Epoch(1), key.clone(), desired());
        assert_eq!(lists(), Some(true));
        connects();
        exchange.complete_snapshot(&west(), Epoch(1), std::slice::from_ref(&key));
        assert_eq!(lists(), None, "its newest word is on its way");
        exchange.put(&west(), Epoch(1), key.clone(), State::Tombstone);
        assert_eq!(lists(), Some(true));
        connects();
        exchange.unchanged(&west(), Epoch(1), std::slice::from_ref(&key));
        exchange.complete_snapshot(&west(), Epoch(1), &[key]);
        assert_eq!(lists(), Some(true));

        exchange.offer(&uid(), offers());
        let said = ObservedBurst { uid: uid(), phase: BurstPhase::Ready, ..ObservedBurst::default() };
        let says = || {
            let said = State::Observed(Box::new(said.clone()));
            exchange.put(&west(), Epoch(1), StateKey::Observed(uid()), said);
        };
        says();
        connects();
        assert!(exchange.answers(&uid()).is_empty());
        exchange.answers_changed().take();
        exchange.unchanged(&west(), Epoch(1), &[StateKey::Observed(uid())]);
        assert_eq!((exchange.answers(&uid()).len(), exchange.answers_changed().take()), (1, [claim()].into()));
        connects();
        says();
        assert_eq!(exchange.answers(&uid()).len(), 1);
        exchange.unchanged(&west(), Epoch(2), &[]);
        assert!(exchange.answers(&uid()).is_empty(), "another leader knows more, or less");
    }

    #[test]
    fn what_does_not_reach_a_peer_is_known_until_something_else_is_said() {
        let exchange = SyncStore::default();
        exchange.undeliverable(&west(), StateKey::Desired(uid()), "it was withdrawn before");
        exchange.offer(&uid(), offers());
        assert!(exchange.undeliverable_to(&uid()).is_empty());
        exchange.undeliverable(&west(), StateKey::Desired(uid()), "too long");
        exchange.undeliverable(&west(), StateKey::Observed(uid()), "not ours to mend");
        assert!(exchange.answers_changed().take().contains(&claim()), "the root looks at it");
        exchange.offer(&uid(), offers());
        assert_eq!(exchange.undeliverable_to(&uid()), [(west(), "too long".to_owned())].into());
        let shorter = DesiredBurst { generation: offer().generation + 1, ..offer() };
        exchange.offer(&uid(), [(west(), shorter)].into());
        assert!(exchange.undeliverable_to(&uid()).is_empty());
    }

    #[test]
    fn words_of_an_older_leader_are_ignored() {
        let exchange = SyncStore::default();
        exchange.put(&west(), Epoch(2), StateKey::Desired(uid()), desired());
        exchange.put(&west(), Epoch(1), StateKey::Desired(uid()), State::Tombstone);
        exchange.complete_snapshot(&west(), Epoch(1), &[]);
        assert_eq!(exchange.claims(), [(claim(), Wanted::Burst(Arc::new(offer())))].into());
        assert!(exchange.listed().is_empty());
    }

    #[test]
    fn a_list_that_is_older_than_a_put_does_not_unsay_it() {
        let exchange = SyncStore::default();
        exchange.put(&west(), Epoch(1), StateKey::Desired(uid()), desired());
        exchange.complete_snapshot(&west(), Epoch(1), &[]);
        assert_eq!(exchange.listed()[&west()], [uid()].into());
        exchange.peer_report(&west(), PeerReport::default());
        assert!(exchange.listed().is_empty(), "nothing is concluded without a session");
        exchange.complete_snapshot(&west(), Epoch(1), &[]);
        assert!(exchange.listed()[&west()].is_empty());
        exchange.complete_snapshot(&west(), Epoch(1), &[StateKey::Desired(uid())]);
        assert_eq!(exchange.listed()[&west()], [uid()].into());
    }

    #[test]
    fn tombstones_are_dropped_once_the_root_has_taken_notice() {
        let exchange = SyncStore::default();
        exchange.put(&west(), Epoch(1), StateKey::Desired(uid()), State::Tombstone);
        exchange.answer(&claim(), Answer::Nothing);
        exchange.complete_snapshot(&west(), Epoch(1), &[StateKey::Desired(uid())]);
        exchange.complete_snapshot(&west(), Epoch(1), &[]);
        assert_eq!(exchange.keys(&west()).len(), 1);
        exchange.complete_snapshot(&west(), Epoch(1), &[]);
        assert!(exchange.claims().is_empty() && exchange.keys(&west()).is_empty());
    }

    /// A peer that names another burst with each list, or says of bursts that are none, is kept no longer than two lists.
    #[test]
    fn what_a_peer_wants_no_more_and_answers_about_nothing_are_not_kept() {
        let exchange = SyncStore::default();
        exchange.offer(&uid(), offers());
        let said =
            |uid: &BurstUid| ObservedBurst { uid: uid.clone(), phase: BurstPhase::Ready, ..ObservedBurst::default() };
        for round in 0..50 {
            let uid = BurstUid::from(format!("strange-{round}"));
            let wanted = DesiredBurst { uid: uid.clone(), ..offer() };
            exchange.put(&west(), Epoch(1), StateKey::Desired(uid.clone()), State::Desired(Box::new(wanted)));
            exchange.put(&west(), Epoch(1), StateKey::Observed(uid.clone()), State::Observed(Box::new(said(&uid))));
            exchange.complete_snapshot(&west(), Epoch(1), &[]);
            exchange.retain_answers(|_| false);
            assert!(exchange.claims().len() <= 3, "round {round}: {:?}", exchange.claims().keys());
            assert!(exchange.listed()[&west()].len() <= 2, "round {round}");
            assert!(exchange.answers(&uid).is_empty(), "round {round}");
        }
        exchange.put(&west(), Epoch(1), StateKey::Observed(uid()), State::Observed(Box::new(said(&uid()))));
        exchange.retain_answers(|_| false);
        assert_eq!(exchange.answers(&uid()).len(), 1, "we speak of it ourselves");
        exchange.offer(&uid(), BTreeMap::new());
        exchange.put(&west(), Epoch(1), StateKey::Observed(uid()), State::Tombstone);
        exchange.retain_answers(|other| *other == uid());
        assert_eq!(exchange.answers(&uid()), [(west(), Answer::Nothing)].into(), "its Burst is not through with it");
        exchange.retain_answers(|_| false);
        assert!(exchange.answers(&uid()).is_empty());
    }

    /// The danger: who says with each list that another of its agents leads is kept for ever.
    #[test]
    fn what_leader_after_leader_wants_no_more_is_not_kept() {
        let exchange = SyncStore::default();
        for leader in 1..50 {
            let (uid, epoch) = (BurstUid::from(format!("strange-{leader}")), Epoch(leader));
            let key = StateKey::Desired(uid.clone());
            exchange.put(&west(), epoch, key.clone(), State::Desired(Box::new(DesiredBurst { uid, ..offer() })));
            exchange.complete_snapshot(&west(), epoch, &[]);
            assert!(exchange.keeps(&west(), &key));
            assert!(exchange.claims().len() <= 2, "leader {leader}: {:?}", exchange.claims().keys());
        }
        let (key, lists) = (StateKey::Desired(uid()), |leader, keys: &[StateKey]| {
            exchange.complete_snapshot(&west(), Epoch(leader), keys);
            exchange.keeps(&west(), &StateKey::Desired(uid()))
        });
        exchange.put(&west(), Epoch(50), key.clone(), desired());
        assert!(lists(50, &[]) && lists(50, &[]), "one list may be older than the burst");
        assert!(lists(51, &[key]), "the next leader loses nothing");
        assert!(lists(51, &[]) && !lists(52, &[]));
        let answer = StateKey::Observed(uid());
        let said = ObservedBurst { uid: uid(), ..ObservedBurst::default() };
        exchange.put(&west(), Epoch(52), answer.clone(), State::Observed(Box::new(said)));
        assert!(exchange.keeps(&west(), &answer));
        exchange.put(&west(), Epoch(52), answer.clone(), State::Tombstone);
        exchange.retain_answers(|_| true);
        assert!(!exchange.keeps(&west(), &answer), "bursts that have ended leave room for those to come");
        exchange.retain_answers(|_| false);
        assert!(!exchange.keeps(&west(), &answer));
    }

    /// The danger: a cluster under the same name truly has nothing, and that counts as the word of the one that has the name
    /// again.
    #[test]
    fn what_another_cluster_of_the_same_name_said_is_forgotten() {
        let exchange = SyncStore::default();
        let state = PeerState::Connected;
        let report =
            |uid: Option<&str>| PeerReport { state, cluster_uid: uid.map(Into::into), ..PeerReport::default() };
        let nothing = || exchange.put(&west(), Epoch(7), StateKey::Observed(uid()), State::Tombstone);
        exchange.offer(&uid(), offers());
        exchange.offer(&uid(), BTreeMap::new());
        exchange.peer_report(&west(), report(Some("b")));
        nothing();
        exchange.peer_report(&west(), report(None));
        exchange.peer_report(&west(), report(Some("b")));
        assert_eq!(exchange.answers(&uid()).len(), 1, "the same cluster");
        exchange.peer_report(&west(), report(Some("a")));
        assert!(exchange.answers(&uid()).is_empty());
        exchange.put(&west(), Epoch(1), StateKey::Observed(uid()), State::Tombstone);
        assert_eq!(exchange.answers(&uid()).len(), 1, "its leaderships are counted anew");
    }

    /// Says all that `root` says to `provider` as the federation does.
    fn summarize(root: &SyncStore, provider: &SyncStore) {
        let (east, west) = (PeerName::from("east"), west());
        for key in root.keys(&west) {
            provider.put(&east, Epoch(1), key.clone(), root.state(&west, &key).unwrap());
        }
        let named: Vec<StateKey> = root.keys(&west).into_iter().chain(root.withheld(&west)).collect();
        if root.complete() {
            provider.complete_snapshot(&east, Epoch(1), &named);
        }
    }

    /// A new leader cannot handle one Burst, for ever; the root of another went while nobody led.
    #[test]
    fn a_burst_that_fails_for_ever_keeps_no_other_from_being_released() {
        let (root, provider) = (SyncStore::default(), SyncStore::default());
        let uid = |name: &str| BurstUid::from(name);
        let said = DesiredBurst { uid: uid("fine"), ..offer() };
        root.offer(&uid("fine"), [(west(), said)].into());
        root.withhold([uid("fails")].into());
        root.set_complete(true);
        summarize(&root, &provider);
        let lists = |name: &str| provider.lists(&"east".into(), &uid(name));
        assert_eq!(["fine", "fails", "gone"].map(lists), [Some(true), None, Some(false)]);
        // It is mended, and was not for this peer.
        root.withhold(BTreeSet::new());
        summarize(&root, &provider);
        assert_eq!(lists("fails"), Some(false));
    }

    /// A peer has 10,000 claims and lists them all, again and again.
    #[test]
    fn only_what_changed_is_looked_at() {
        let exchange = SyncStore::default();
        let uid = |number: usize| BurstUid::from(format!("uid-{number}"));
        let put = |number: usize, generation: u64| {
            let desired = Box::new(DesiredBurst { uid: uid(number), generation, ..offer() });
            exchange.put(&west(), Epoch(1), StateKey::Desired(uid(number)), State::Desired(desired));
        };
        (0..10_000).for_each(|number| put(number, 1));
        let all: Vec<StateKey> = (0..10_000).map(|number| StateKey::Desired(uid(number))).collect();
        let lists = |keys: &[StateKey]| {
            exchange.unchanged(&west(), Epoch(1), keys);
            exchange.complete_snapshot(&west(), Epoch(1), keys);
        };
        lists(&all);
        exchange.claims_changed().take();
        assert_eq!(exchange.first_listed().take(), [west()].into());
        lists(&all);
        assert!(exchange.claims_changed().take().is_empty() && exchange.first_listed().take().is_empty());
        put(7, 2);
        put(8, 1);
        assert_eq!(exchange.claims_changed().take(), [(west(), uid(7))].into());
        // A put counts for two lists.
        lists(&all[9..]);
        lists(&all[9..]);
        let (absent, changed) = (|number| exchange.lists(&west(), &uid(number)), exchange.claims_changed().take());
        assert_eq!(changed, (0..9).map(|number| (west(), uid(number))).collect());
        assert_eq!((absent(0), absent(9)), (Some(false), Some(true)));
        exchange.peer_report(&west(), PeerReport::default());
        lists(&all);
        assert_eq!(exchange.first_listed().take(), [west()].into(), "in each session anew");
    }

    #[test]
    fn heartbeats_wake_nobody_and_losses_do() {
        let exchange = SyncStore::default();
        let report = |state, rtt| PeerReport { state, rtt_micros: Some(rtt), ..PeerReport::default() };
        exchange.peer_report(&west(), report(PeerState::Connected, 1));
        assert_eq!(exchange.reports_changed().take().len(), 1);
        exchange.peer_report(&west(), report(PeerState::Connected, 2));
        assert!(exchange.reports_changed().take().is_empty());
        exchange.peer_report(&west(), report(PeerState::Suspect, 2));
        assert_eq!(exchange.reports_changed().take().len(), 1);
    }

    #[test]
    fn states_that_do_not_fit_their_key_are_ignored() {
        let exchange = SyncStore::default();
        let said = ObservedBurst { uid: "other".into(), phase: BurstPhase::Ready, ..ObservedBurst::default() };
        exchange.put(&west(), Epoch(1), StateKey::Observed(uid()), State::Observed(Box::new(said)));
        exchange.put(&west(), Epoch(1), StateKey::Observed(uid()), desired());
        exchange.put(&west(), Epoch(1), StateKey::Desired("other".into()), desired());
        assert!(exchange.answers(&uid()).is_empty() && exchange.claims().is_empty());
    }

    #[test]
    fn a_new_scope_and_a_removed_peer_leave_nothing() {
        let exchange = SyncStore::default();
        exchange.offer(&uid(), offers());
        exchange.put(&west(), Epoch(1), StateKey::Desired(uid()), desired());
        exchange.retain_peers(&BTreeSet::new());
        assert!(exchange.claims().is_empty() && exchange.keys(&west()).is_empty());
        exchange.offer(&uid(), offers());
        exchange.set_complete(true);
        exchange.begin();
        assert!(!exchange.complete() && exchange.keys(&west()).is_empty());
    }
}
