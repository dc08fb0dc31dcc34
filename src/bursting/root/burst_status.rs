//! One Burst, one step: from its spec, the peers and their answers to its next status. Pure.
//!
//! A status names a peer *before* anything is offered to it ([`super::offer`] reads the stored status), and lets go of a
//! peer only when nothing of the burst can join from there any more: see [`super::hold`].

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, Time};
use tributary_api::budget::{Spent, Usage};
use tributary_api::burst::{Burst, BurstHold, BurstRefusal, BurstSpec, BurstStatus, CredentialRecipient};
use tributary_api::hosted_burst::{BurstPhase, BurstRun, PhaseTimestamps};
use tributary_api::labels::condition::READY;
use tributary_api::minicluster::MiniCluster;
use tributary_clock::Now;
use tributary_cluster::conditions::Statement;
use tributary_cluster::traced::unmet_since;
use tributary_contract::tunnel::Ends;
use tributary_contract::{ObservedBurst, PeerName, PhaseTimes, Price, Rejection, RejectionReason};

use super::budget::{Account, Standing};
use super::conditions::{self, UNDELIVERABLE};
use super::demand::decide::{self, Seen};
use super::hold;
use super::lead_address::NoLead;
use super::offer;
use super::place::{self, Claims, Wish};
use super::placement_backoff;
use crate::contact::Contacts;
use crate::note::Note;
use crate::peers::{PeerView, dearest};
use crate::sync_store::Answer;
use crate::template::Charge;
use crate::timing::{LOST_AFTER, elapsed, later};

mod incarnation;

/// All that a step looks at.
#[derive(Clone, Debug)]
pub(crate) struct BurstView {
    /// The moment.
    pub now: Now,
    /// The moment, as budgets count it.
    pub counted: Timestamp,
    /// How long an offer stays with a lost peer that does not have the certificate.
    pub grace: Duration,
    /// The Burst as it is stored.
    pub burst: Arc<Burst>,
    /// Name of this cluster.
    pub own: PeerName,
    pub peers: BTreeMap<PeerName, PeerView>,
    /// Since when they are away.
    pub contacts: Contacts,
    /// What they say of this Burst.
    pub answers: BTreeMap<PeerName, Answer>,
    /// Peers that were told to let go of it and have not confirmed.
    pub withdrawing: BTreeSet<PeerName>,
    /// Peers that what is said of it now does not reach, and why.
    pub undeliverable: BTreeMap<PeerName, String>,
    /// Why the lead broker's address is not known.
    pub no_lead: Option<NoLead>,
    /// Its open connections through the tunnel.
    pub ends: Ends,
    /// Its root, if that is there.
    pub root: Option<Arc<MiniCluster>>,
    /// What the last look at its root's queue found of it.
    pub seen: Option<Seen>,
}

/// What a step decides.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct BurstStep {
    /// The next status.
    pub status: BurstStatus,
    /// What to tell people, if the status differs.
    pub notes: Vec<Note>,
    /// When to look again though nothing changed.
    pub wake: Option<Duration>,
}

/// Decides the next status of a Burst. `claimed`: what other Bursts claim of the peers.
pub(crate) fn step(view: &BurstView, claimed: &dyn Claims) -> BurstStep {
    let none = BurstStatus::default();
    let old = view.burst.status.as_ref().unwrap_or(&none);
    let (status, notes) = (old.clone(), Vec::new());
    let mut draft = Draft { view, claimed, status, notes, wake: None, parting: None, agreement: None };
    draft.adopt_incarnation();
    draft.see_network();
    draft.inherit_evictions();
    draft.take_word();
    draft.compare();
    match draft.held() {
        _ if !offer::is_wanted(&view.burst) => draft.release(),
        Some((hold, why)) => draft.hold_back(hold, why),
        None => draft.hold(),
    }
    draft.count();
    let Draft { mut status, mut notes, wake, agreement, .. } = draft;
    let (now, placed) = (MicroTime(view.now.wall), status.peer.is_some());
    let held = matches!(status.held, Some(BurstHold::NoDemand | BurstHold::BudgetSpent));
    let wanted = offer::is_wanted(&view.burst) && !held;
    let mut times = status.times.take().unwrap_or_default();
    times.planned = wanted.then(|| times.planned.take().unwrap_or_else(|| now.clone()));
    times.offered = times.offered.take().or(placed.then_some(now));
    // An API server makes null of an object whose last field is taken away, and refuses that.
    status.times = Some(times).filter(|times| *times != PhaseTimestamps::default());
    status.observed_generation = view.burst.metadata.generation;
    status.frozen.get_or_insert_with(|| Box::new(super::frozen::of(&view.burst.spec)));
    conditions::conclude(&mut status, old, view, agreement, &mut notes);
    BurstStep { status, notes, wake }
}

/// A status under way.
pub(super) struct Draft<'a> {
    pub(super) view: &'a BurstView,
    claimed: &'a dyn Claims,
    pub(super) status: BurstStatus,
    pub(super) notes: Vec<Note>,
    wake: Option<Duration>,
    /// A peer that was let go in this step: it is asked again once it has confirmed that.
    parting: Option<PeerName>,
    /// Whether its peer counted the same, if that was learned in this step.
    pub(super) agreement: Option<Statement>,
}

impl<'a> Draft<'a> {
    /// Why it is placed nowhere for now, though its root wants it.
    fn held(&mut self) -> Option<(BurstHold, String)> {
        let before = self.status.held.take();
        let spent = Standing::tightest(own_accounts(&self.status, self.view), self.view.counted);
        let spec = &self.view.burst.spec;
        let on_demand = spec.on_demand.as_ref().filter(|_| offer::is_wanted(&self.view.burst));
        let known = decide::last(Some(&self.status));
        self.status.demand = on_demand.map(|policy| decide::decide(&known, policy, self.view.seen.as_ref()));
        if let Some(Standing::Spent(why)) = spent {
            return Some((BurstHold::BudgetSpent, why));
        }
        if let Some((demand, policy)) = self.status.demand.as_ref().zip(on_demand).filter(|(demand, _)| !demand.awake) {
            return Some((BurstHold::NoDemand, decide::sentence(demand, policy).2));
        }
        // What leaves cannot be called back: it has left before it is offered anew, and that is nobody's fault.
        let peer = before.and(self.placed()).filter(|_| self.status.phase == BurstPhase::Draining)?;
        Some((BurstHold::Leaving, format!("it is wanted again, and comes once {peer} has let go of it")))
    }

    /// What it uses from now on, and when that is looked at again.
    fn count(&mut self) {
        let spec = &self.view.burst.spec;
        let BurstSpec { size, budget, .. } = spec;
        let over = self.status.run.as_ref().is_some_and(BurstRun::has_ended);
        // A peer that is lost for ever does not use up what is for others as well.
        let lost = self.status.lost_since.as_ref().map(|since| elapsed(since.0, self.view.now.wall));
        let gone = lost.is_some_and(|lost| lost >= hold::longest(spec));
        let there = self.status.peer.is_some() && self.status.hosted_uid.is_some() && !over && !gone;
        let (brokers, now) = (if there { *size } else { 0 }, self.view.now.wall);
        // Whoever finds a budget without a price writes one: it counts from then on.
        let written = self.placed().and_then(|peer| self.view.peers.get(&peer)?.price);
        self.status.price = self.status.price.or(written);
        let (usage, counted) = (self.usage(brokers), self.view.counted);
        self.status.spent = self.status.spent.on(usage, budget.renewal.as_deref(), counted);
        // An agent before this one may have counted no more than what is spent.
        let accepted = self.status.times.as_ref().and_then(|times| times.accepted.as_ref());
        let begins =
            accepted.filter(|_| self.status.used == Spent::default()).map_or(now, |MicroTime(at)| now.min(*at));
        self.status.used = self.status.used.on(usage, None, begins);
        let standings = accounts(&self.status, self.view).filter_map(|account| account.standing(counted));
        let wakes: Vec<_> = standings.filter_map(|standing| standing.wake(counted)).collect();
        wakes.into_iter().for_each(|delay| self.wake_in(delay));
    }

    /// What so many of its brokers are, and what they cost where it is.
    fn usage(&self, brokers: u32) -> Usage {
        if brokers == 0 {
            return Usage::default();
        }
        let BurstSpec { cores, gpus, template, .. } = &self.view.burst.spec;
        Charge::of(*cores, *gpus, template).usage(brokers, self.status.price.unwrap_or_default())
    }

    fn hold(&mut self) {
        if self.status.run.as_ref().is_some_and(BurstRun::has_ended) {
            // It has its result: whatever becomes of what is left there, it is not run again.
            self.look_after_logs();
            return self.status.reserved_until = None;
        }
        if self.status.peer.is_none() {
            self.take_late_acceptance();
            self.take_news_of_refusals();
        }
        if let Some(peer) = self.placed() {
            self.take_refusal(&peer);
        }
        if let Some(peer) = self.placed() {
            self.take_back_what_cannot_be_sent(&peer);
        }
        if let Some(peer) = self.placed()
            && self.view.peers.get(&peer).is_some_and(PeerView::is_leaving)
            && !self.parted(&peer)
        {
            return;
        }
        if let Some(peer) = self.placed() {
            match self.away(&peer) {
                Some(away) => self.lost(&peer, away),
                None => self.mirror(&peer),
            }
        }
        if self.status.peer.is_none() {
            match Standing::tightest(own_accounts(&self.status, self.view), self.view.counted) {
                Some(Standing::Unreadable(why)) => self.hold_back(BurstHold::BudgetSpent, why),
                _ => self.place(),
            }
        }
    }

    /// What is left of a run that has ended are its logs, as long as the peer keeps them.
    fn look_after_logs(&mut self) {
        let answer = self.placed().and_then(|peer| self.answer(&peer));
        let gone = match answer {
            Some(Answer::Nothing) => true,
            Some(Answer::Observed(said)) if self.is_current(said) => {
                !said.phase.occupies() || said.run.as_ref().is_some_and(|run| run.logs_gone)
            }
            _ => false,
        };
        if let Some(run) = self.status.run.as_mut().filter(|_| gone) {
            run.logs_gone = true;
        }
    }

    /// It is wanted nowhere.
    fn release(&mut self) {
        if self.left() {
            let owned = offer::root_uid(&self.view.burst).is_some();
            let message = if owned { "released" } else { "nothing owns this Burst, so nothing runs for it: delete it" };
            self.set(BurstPhase::Released, message.into());
        }
    }

    /// It is wanted, but not now.
    fn hold_back(&mut self, hold: BurstHold, why: String) {
        self.status.held = Some(hold);
        let phase = match hold {
            BurstHold::BudgetSpent => BurstPhase::Spent,
            BurstHold::NoDemand => BurstPhase::Asleep,
            BurstHold::Leaving | BurstHold::Unknown(_) => BurstPhase::Pending,
        };
        match self.left() {
            true => self.set(phase, why),
            false => self.status.message = format!("{why}; {}", self.status.message),
        }
    }

    /// Whether nothing of it is anywhere.
    fn left(&mut self) -> bool {
        let left = self.placed().is_none_or(|peer| self.parted(&peer));
        if left {
            self.status.ready_brokers = 0;
        }
        left
    }

    /// A peer that refused what is still on offer has changed its mind.
    fn take_late_acceptance(&mut self) {
        let offered = offer::recipients(&self.view.burst, &self.view.peers);
        let accepted = offered.into_iter().find(|peer| match self.view.answers.get(peer) {
            Some(Answer::Observed(said)) => {
                self.is_current(said) && (BurstPhase::Accepted..=BurstPhase::Ready).contains(&said.phase)
            }
            _ => false,
        });
        if let Some(peer) = accepted {
            self.status.refusals.retain(|refusal| refusal.peer != peer.as_str());
            self.place_on(peer);
        }
    }

    /// Who still refuses may have another reason by now, and says when its next try is. That is no other refusal.
    fn take_news_of_refusals(&mut self) {
        let (burst, peers) = (&self.view.burst, &self.view.peers);
        let mut refusals = std::mem::take(&mut self.status.refusals);
        for refusal in refusals.iter_mut().filter(|refusal| offer::stands(refusal, burst, peers)) {
            let Some(Answer::Observed(said)) = self.view.answers.get(refusal.peer.as_str()) else { continue };
            let current = self.is_current(said) && self.answers_this_generation(said);
            if let (BurstPhase::Rejected, Some(rejection), true) = (said.phase, &said.rejection, current) {
                (refusal.reason, refusal.message) = (rejection.reason.as_str().to_owned(), rejection.message.clone());
            }
        }
        self.status.refusals = refusals;
    }

    /// A placed peer's last word: then it holds nothing.
    fn take_refusal(&mut self, peer: &PeerName) {
        let Some(Answer::Observed(said)) = self.answer(peer) else { return };
        if !self.is_current(said) {
            return;
        }
        let rejection =
            |reason, message: &str| said.rejection.clone().unwrap_or_else(|| Rejection::new(reason, message));
        match said.phase {
            BurstPhase::Rejected if self.answers_this_generation(said) => {
                let unnamed = RejectionReason::Other("Rejected".into());
                self.refused(peer, rejection(unnamed, "the peer rejected it and did not say why"));
            }
            BurstPhase::Evicted => {
                self.refused(peer, rejection(RejectionReason::EvictedByProvider, "the HostedBurst was deleted there"));
            }
            BurstPhase::Released => {
                self.notes.push(Note::warning("ReleasedByPeer", format!("{peer} released it: {}", said.message)));
                let offer = self.view.burst.offered();
                placement_backoff::record(&mut self.status.returns, peer, &offer, self.view.now.wall);
                self.let_go();
            }
            _ => {}
        }
    }

    /// An offer that does not reach a peer is none. A burst that runs there runs on; only its changes do not arrive.
    fn take_back_what_cannot_be_sent(&mut self, peer: &PeerName) {
        let Some(problem) = self.view.undeliverable.get(peer) else { return };
        if self.is_untouched(peer) {
            let reason = RejectionReason::Other(UNDELIVERABLE.into());
            self.refused(peer, Rejection::new(reason, format!("the offer cannot be sent: {problem}")));
        }
    }

    fn refused(&mut self, peer: &PeerName, rejection: Rejection) {
        let (reason, known) = (rejection.reason.as_str().to_owned(), self.view.peers.get(peer));
        self.notes.push(Note::warning(reason.clone(), format!("{peer}: {rejection}")));
        self.status.refusals.retain(|refusal| refusal.peer != peer.as_str());
        self.status.refusals.push(BurstRefusal {
            peer: peer.to_string(),
            reason,
            message: rejection.message,
            generation: self.view.burst.metadata.generation.unwrap_or(0),
            offer: self.view.burst.offered(),
            peer_generation: known.and_then(|known| known.generation),
            peer_uid: known.and_then(|known| known.uid.clone()),
        });
        self.status.refusals.sort_by(|a, b| a.peer.cmp(&b.peer));
        self.let_go();
    }

    /// In contact: what the peer says is what is so.
    fn mirror(&mut self, peer: &PeerName) {
        (self.status.reserved_until, self.status.lost_since) = (None, None);
        let said = match self.answer(peer) {
            Some(Answer::Observed(said)) if self.is_current(said) && said.phase.occupies() => said,
            _ => return self.unanswered(peer),
        };
        let message = match said.message.as_str() {
            "" => format!("{peer}: {}", said.phase),
            text => format!("{peer}: {text}"),
        };
        if said.phase == BurstPhase::ScalingUp && self.status.phase != BurstPhase::ScalingUp {
            // It seemed to have room, and adds nodes, which may cost more.
            let of_nodes = self.view.peers.get(peer).and_then(|there| there.price(true));
            self.status.price = dearest(self.status.price.into_iter().chain(of_nodes));
        }
        self.set(said.phase, message);
        let status = &mut self.status;
        // One that was let go, and comes back with what it still has, asks for no certificate again.
        let still = |known: &&mut CredentialRecipient| known.peer == peer.as_str() && said.hosted_uid.is_some();
        status.credential_recipients.iter_mut().filter(still).for_each(|known| known.free_since = None);
        // More than there can be is no number.
        status.ready_brokers = said.ready_brokers.min(self.view.burst.spec.max_size);
        status.hosted_uid = said.hosted_uid.clone().or(status.hosted_uid.take());
        status.acknowledged_generation = i64::try_from(said.observed_generation).ok();
        status.rank_map_digest.clone_from(&said.rank_map_digest);
        status.credential_digest.clone_from(&said.credential_digest);
        status.lead = said.lead.clone();
        status.times = Some(told_times(status.times.take(), &said.times, self.view.now.wall));
        status.preflight = said.preflight.iter().cloned().map(Into::into).collect();
        status.simulated = said.simulated;
        let wall = self.view.now.wall;
        status.run = said.run.clone().filter(|_| self.view.burst.spec.whole).map(|run| {
            let run = BurstRun::from(run);
            BurstRun { ended: run.has_ended().then_some(Time(wall)), ..run }
        });
        status.refusals.retain(|refusal| refusal.peer != peer.as_str());
    }

    /// No answer that counts: an offer is on its way, or this agent has just started.
    fn unanswered(&mut self, peer: &PeerName) {
        let wish = offer::wish(&self.view.burst);
        let untouched = self.is_untouched(peer);
        let asked = self.view.peers.get(peer).is_some_and(|view| place::eligible(&wish, peer, view));
        if untouched && !asked {
            return self.let_go();
        }
        let known = BurstPhase::Accepted..=BurstPhase::Draining;
        if untouched || !(known.contains(&self.status.phase) || self.status.phase == BurstPhase::Lost) {
            self.set(BurstPhase::Offered, format!("offered to {peer}, which has not answered yet"));
        }
    }

    fn place(&mut self) {
        let view = self.view;
        let mut excluded: BTreeMap<PeerName, String> = BTreeMap::new();
        excluded.insert(view.own.clone(), "is this cluster itself".into());
        let mut refusals = self.status.refusals.clone();
        refusals.retain(|refusal| offer::stands(refusal, &view.burst, &view.peers));
        for refusal in &refusals {
            let text = format!("refused ({}): {}", refusal.reason, refusal.message);
            excluded.insert(refusal.peer.as_str().into(), text);
        }
        for peer in view.withdrawing.iter().chain(&self.parting) {
            let confirms = || "has yet to confirm that nothing is left there".into();
            excluded.entry(peer.clone()).or_insert_with(confirms);
        }
        for (peer, (text, left)) in
            placement_backoff::waiting(&mut self.status.returns, &view.burst.offered(), view.now.wall)
        {
            excluded.entry(peer).or_insert(text);
            self.wake_in(left);
        }
        let wish = offer::wish(&view.burst);
        let claimed = self.claimed.claimed();
        match place::place(&wish, &view.peers, &claimed, &excluded) {
            Ok(peer) if let Some((first, left)) = self.asked_before(&peer, &wish, &excluded) => {
                self.wake_in(left);
                self.set(BurstPhase::Pending, format!("{first} is asked first, and is not connected for the moment"));
            }
            Ok(peer) => {
                self.notes.push(Note::normal("Placed", format!("placed on {peer}")));
                self.set(BurstPhase::Offered, format!("offered to {peer}, which has not answered yet"));
                self.place_on(peer);
            }
            Err(none) => {
                let phase = match refusals.as_slice() {
                    [] => BurstPhase::Pending,
                    all if all.iter().all(offer::evicted) => BurstPhase::Evicted,
                    _ => BurstPhase::Rejected,
                };
                self.set(phase, none.to_string());
            }
        }
    }

    /// A peer that its user named before this one and that may be about to connect, and for how long that is awaited: its agent,
    /// or this one, may just have started. A FluxJob that is sent does not wait: its queue has chosen by who is connected, and
    /// takes back what is placed nowhere.
    fn asked_before(
        &self,
        chosen: &PeerName,
        wish: &Wish,
        excluded: &BTreeMap<PeerName, String>,
    ) -> Option<(PeerName, Duration)> {
        let view = self.view;
        if wish.whole {
            return None;
        }
        let before = wish.peers.iter().take_while(|peer| *peer != chosen).filter(|peer| !excluded.contains_key(*peer));
        let awaited = |peer: &PeerName| {
            let there = view.peers.get(peer)?;
            let away = view.contacts.away(peer, view.now.mono).filter(|_| !there.suspended && !there.draining)?;
            LOST_AFTER.checked_sub(away).filter(|left| !left.is_zero()).map(|left| (peer.clone(), left))
        };
        before.filter_map(awaited).next()
    }

    /// What it costs there at this moment.
    fn price(&self, peer: &PeerName) -> Option<Price> {
        let BurstView { burst, peers, .. } = self.view;
        let grows = place::grows(peer, &offer::wish(burst), peers, &self.claimed.claimed());
        peers.get(peer).and_then(|there| there.price(grows))
    }

    /// From now on it costs what the peer costs at this moment.
    fn place_on(&mut self, peer: PeerName) {
        self.status.price = self.price(&peer);
        (self.status.used, self.status.peer_count) = (Spent::default(), None);
        self.status.peer = Some(peer.into());
    }

    /// Nothing of it can join from there any more, or a person takes that upon themselves.
    pub(super) fn let_go(&mut self) {
        self.miss_the_count();
        let (status, now) = (&mut self.status, Time(self.view.now.wall));
        let peer = status.peer.take();
        let held = |known: &&mut CredentialRecipient| Some(&known.peer) == peer.as_ref() && known.free_since.is_none();
        status.credential_recipients.iter_mut().filter(held).for_each(|known| known.free_since = Some(now.clone()));
        self.parting = peer.map(PeerName::from);
        status.lost_since = None;
        status.price = None;
        status.hosted_uid = None;
        status.acknowledged_generation = None;
        status.rank_map_digest = None;
        status.credential_digest = None;
        status.lead = None;
        status.ready_brokers = 0;
        status.reserved_until = None;
        // One that was complete needs another place since it was not any more.
        let incomplete = unmet_since(&status.conditions, READY).map(MicroTime);
        status.times = status.times.take().map(|PhaseTimestamps { planned, ready, .. }| {
            let planned = if planned <= ready && ready.is_some() { incomplete } else { planned };
            PhaseTimestamps { planned, ..PhaseTimestamps::default() }
        });
        status.preflight.clear();
        status.simulated = false;
        status.run = None;
    }

    pub(super) fn set(&mut self, phase: BurstPhase, message: String) {
        self.status.phase = phase;
        self.status.message = message;
    }

    pub(super) fn wake_in(&mut self, delay: Duration) {
        self.wake = Some(self.wake.map_or(delay, |wake| wake.min(delay)));
    }

    fn placed(&self) -> Option<PeerName> {
        self.status.peer.clone().map(PeerName::from)
    }

    /// Nothing of it can be there.
    fn is_untouched(&self, peer: &PeerName) -> bool {
        self.status.hosted_uid.is_none() && !self.holds(peer)
    }

    /// Brokers there can join.
    pub(super) fn holds(&self, peer: &PeerName) -> bool {
        self.status.holder().is_some_and(|holder| holder.peer == peer.as_str())
    }

    /// An answer about another incarnation is about another instance.
    pub(super) fn is_current(&self, said: &ObservedBurst) -> bool {
        said.incarnation == self.view.burst.spec.incarnation
    }

    fn answers_this_generation(&self, said: &ObservedBurst) -> bool {
        i64::try_from(said.observed_generation).is_ok_and(|said| Some(said) >= self.view.burst.metadata.generation)
    }
}

/// The budgets that hold for a burst wherever it is.
fn own_accounts<'a>(status: &'a BurstStatus, view: &'a BurstView) -> impl Iterator<Item = Account<'a>> {
    let unpriced = status.peer.as_deref().filter(|_| status.price.is_none());
    let own = Account { name: "the burst", budget: &view.burst.spec.budget, spent: &status.spent, unpriced };
    let of_root = view.root.as_ref().and_then(move |root| {
        let spent = &root.status.as_ref()?.bursts_spent;
        Some(Account { name: "the root", budget: &root.spec.flux.bursting.budget, spent, unpriced })
    });
    [own].into_iter().chain(of_root)
}

/// The budgets that hold for a burst where it is.
pub(super) fn accounts<'a>(status: &'a BurstStatus, view: &'a BurstView) -> impl Iterator<Item = Account<'a>> {
    let peer = status.peer.as_deref().and_then(|name| Some(view.peers.get(name)?.account(name)));
    own_accounts(status, view).chain(peer)
}

/// When the provider's steps were reached, on our clock: what lies between them is the provider's word, and the first one
/// is when we heard of it.
fn told_times(known: Option<PhaseTimestamps>, said: &PhaseTimes, now: Timestamp) -> PhaseTimestamps {
    let known = known.unwrap_or_default();
    let accepted = known.accepted.or_else(|| said.accepted.map(|_| MicroTime(now)));
    let ours = |theirs: Option<Timestamp>| {
        let (MicroTime(accepted), began) = (accepted.clone()?, said.accepted?);
        Some(MicroTime(later(accepted, elapsed(began, theirs?))))
    };
    PhaseTimestamps {
        provisioned: known.provisioned.or_else(|| ours(said.provisioned)),
        warmed: known.warmed.or_else(|| ours(said.warmed)),
        scheduled: known.scheduled.or_else(|| ours(said.scheduled)),
        started: known.started.or_else(|| ours(said.started)),
        ready: known.ready.or_else(|| ours(said.ready)),
        planned: known.planned,
        offered: known.offered,
        released: None,
        accepted,
    }
}

#[cfg(test)]
mod tests;
