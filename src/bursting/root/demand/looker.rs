//! Looks at the queues of roots that have bursts on demand, as an [`Ear`] hears of them: when something is new, and now and then
//! for the times that go by.
//!
//! Whatever goes wrong, the bursts of that root stay as they are and say why; nothing else waits for it.

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use kube::ResourceExt;
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio_util::task::AbortOnDropHandle;
use tributary_api::burst::{Burst, BurstHold, BurstSpec};
use tributary_api::hosted_burst::BurstPhase;
use tributary_api::labels::kubernetes::COMPLETION_INDEX;
use tributary_api::labels::kubernetes::JOB_NAME;
use tributary_api::minicluster::{MiniCluster, Phase};
use tributary_clock::Mono;
use tributary_cluster::ObjectKey;
use tributary_cluster::caches::Subscription;
use tributary_cluster::engine::{Controller, Observed, nothing};
use tributary_cluster::error::chain;
use tributary_cluster::worker::{Outcome, Queue};
use tributary_flux::{Idset, RankMap};
use tributary_render::QUEUE_PORT;

use super::ask::{self, Asked, Slot};
use super::decide::{self, EVERY, SETTLES, Seen};
use super::ear::{Ear, Heard, Trouble, unreadable};
use super::hear::Lead;
use super::look::Look;
use crate::nodes::PodView;
use crate::root::controller::Key;
use crate::root::lead_address::{is_of_lead, lead_pod};
use crate::root::plan;
use crate::shared::Shared;
use crate::turns::Line;

/// The part of its time that a queue is judged at most, if it is one of which there is always something new: one in five.
const RESTS: u32 = 4;

/// What was seen of each slot of a root, and when it may be looked at again.
#[derive(Debug)]
struct Looked {
    seen: BTreeMap<String, Seen>,
    /// Since when each slot is closed and idle.
    closed: BTreeMap<String, Mono>,
    again: Mono,
}

/// Who hears of the queue of a root.
struct Hears {
    lead: Lead,
    heard: Arc<Mutex<Heard>>,
    closed: watch::Sender<Option<String>>,
    _task: AbortOnDropHandle<()>,
}

/// Who looks.
pub(crate) struct Looker {
    shared: Arc<Shared>,
    queue: Queue<ObjectKey>,
    /// Where the bursts are marked that something was seen of.
    bursts: Queue<Key, Line>,
    looked: Mutex<BTreeMap<ObjectKey, Looked>>,
    ears: Mutex<BTreeMap<ObjectKey, Hears>>,
}

impl Looker {
    pub(crate) fn new(shared: Arc<Shared>, bursts: Queue<Key, Line>) -> Self {
        let queue = Queue::new(shared.clock.clone());
        Self { shared, queue, bursts, looked: Mutex::default(), ears: Mutex::default() }
    }

    /// Roots that change, Bursts of them, and pods of their leads.
    pub(crate) fn feed(&self) -> Vec<Subscription> {
        let caches = &self.shared.caches;
        let roots = caches.mini_clusters.feed(&self.queue, |root| match has_on_demand(root) {
            true => vec![ObjectKey::of(root)],
            false => Vec::new(),
        });
        let bursts = caches.bursts.feed(&self.queue, |burst| match burst.spec.on_demand {
            Some(_) => tributary_cluster::caches::controller_of::<MiniCluster>(burst).into_iter().collect(),
            None => Vec::new(),
        });
        let roots_of = caches.mini_clusters.clone();
        let pods = caches.pods.feed(&self.queue, move |pod| {
            let lead = pod.view.job.clone().filter(|_| pod.view.index == Some(0));
            let key = lead.map(|job| ObjectKey::namespaced(&pod.view.namespace, job));
            key.filter(|key| roots_of.of(key).is_some_and(|root| has_on_demand(&root))).into_iter().collect()
        });
        vec![roots, bursts, pods]
    }

    /// Nobody is listened to any more, and what was seen is forgotten.
    pub(crate) fn end(&self) {
        self.looked.lock().clear();
        self.ears.lock().clear();
    }

    /// Everything there is, for the first round of a term.
    pub(crate) fn begin(&self) {
        self.end();
        for root in self.shared.caches.mini_clusters.objects().iter().filter(|root| has_on_demand(root)) {
            self.queue.mark(ObjectKey::of(&**root));
        }
    }

    /// What was seen of a burst last.
    pub(crate) fn seen(&self, root: &ObjectKey, slot: &str) -> Option<Seen> {
        self.looked.lock().get(root).and_then(|looked| looked.seen.get(slot).cloned())
    }

    /// A root that runs and has bursts on demand, with all its Bursts.
    fn on_demand(&self, key: &ObjectKey) -> Option<(Arc<MiniCluster>, Vec<Arc<Burst>>)> {
        let root = self.shared.caches.mini_clusters.of(key)?;
        let phase = root.status.as_ref().and_then(|status| status.phase);
        if phase != Some(Phase::Running) || plan::is_over(&root) {
            return None;
        }
        let bursts = self.shared.caches.bursts.controlled_by(&root.uid()?);
        bursts.iter().any(|burst| burst.spec.on_demand.is_some() && !burst.spec.release).then_some((root, bursts))
    }

    async fn asked(&self, text: Arc<str>, bursts: &[Arc<Burst>]) -> Result<BTreeMap<String, Asked>, Trouble> {
        let map = bursts.first().map(|burst| RankMap::parse_canonical(&burst.spec.rank_map));
        let map = map.and_then(Result::ok).ok_or_else(|| unreadable("its rank map cannot be read"))?;
        let (slots, coming) = slots(bursts);
        // A long queue of a large instance takes a while.
        let judged = tokio::task::spawn_blocking(move || {
            let look = Look::parse(&text).map_err(|error| unreadable(&chain(&error)))?;
            Ok(ask::ask(&map, &look, &slots, &coming))
        });
        judged.await.unwrap_or_else(|error| Err(unreadable(&chain(&error))))
    }

    /// The pod of a root's lead broker, and how it is known.
    fn lead(&self, root: &MiniCluster, bursts: &[Arc<Burst>]) -> Result<Lead, Trouble> {
        let (namespace, name) = (root.namespace().unwrap_or_default(), root.name_any());
        let pods = self.shared.caches.pods_of(&namespace, &name).into_iter();
        let index_zero: Vec<PodView> = pods.filter(|pod| pod.running && is_of_lead(root, pod)).collect();
        let pod = lead_pod(&index_zero)
            .ok_or_else(|| unreadable(&format!("no pod with {JOB_NAME}={name} and {COMPLETION_INDEX}=0 runs")))?;
        let node = pod.node.as_deref().map(ObjectKey::cluster_scoped);
        let node = node.and_then(|node| self.shared.caches.nodes.of(&node));
        let spec = bursts.first().map(|burst| burst.spec.clone()).unwrap_or_default();
        Ok(Lead {
            namespace,
            pod: pod.name.clone(),
            ends: pod.addresses.iter().map(|address| SocketAddr::from((*address, QUEUE_PORT))).collect(),
            secret: spec.credential_secret,
            digest: spec.credential_digest,
            simulated: node.is_some_and(|node| node.view.simulated),
        })
    }

    /// What is heard of a root's queue. From now on, if nobody has listened to that lead before.
    fn heard(&self, key: &ObjectKey, lead: Lead) -> Heard {
        let mut ears = self.ears.lock();
        if let Some(hears) = ears.get(key).filter(|hears| hears.lead == lead) {
            return hears.heard.lock().clone();
        }
        let (heard, queue, root) = (Arc::default(), self.queue.clone(), key.clone());
        let (closed, wishes) = watch::channel(None);
        let ear = Ear {
            lead: lead.clone(),
            connect: self.shared.queues.clone(),
            client: self.shared.clients.reader.clone(),
            clock: self.shared.clock.clone(),
            heard: Arc::clone(&heard),
            closed: wishes,
            news: move || queue.mark(root.clone()),
        };
        let _task = AbortOnDropHandle::new(tokio::spawn(ear.listen()));
        ears.insert(key.clone(), Hears { lead, heard, closed, _task });
        Heard::default()
    }
}

/// The queue of a root, as its lead broker told it.
pub(crate) struct Told {
    bursts: Vec<Arc<Burst>>,
    answer: Result<BTreeMap<String, Asked>, Trouble>,
    closed: BTreeMap<String, Mono>,
    /// When that was so.
    at: Timestamp,
    /// How long it took to judge it.
    took: Duration,
}

/// What is seen of each slot, and how soon it is looked at again.
pub(crate) struct NextLook {
    seen: BTreeMap<String, Seen>,
    /// The ranks on which no more jobs may start.
    closes: Idset,
    wait: Duration,
    /// How soon at the earliest.
    rest: Duration,
}

impl Controller for Looker {
    type Key = ObjectKey;
    type Line = ();
    type View = Told;
    type Step = NextLook;
    type Error = Infallible;

    const NAME: &'static str = "demand";
    // A lead broker that does not answer keeps few others waiting, and nobody else.
    const CONCURRENCY: usize = 4;

    fn queue(&self) -> &Queue<ObjectKey> {
        &self.queue
    }

    async fn observe(&self, key: &ObjectKey) -> Result<Observed<Told>, Infallible> {
        let Some((root, bursts)) = self.on_demand(key) else {
            self.looked.lock().remove(key);
            self.ears.lock().remove(key);
            return Ok(nothing());
        };
        let now = self.shared.clock.mono();
        if let Some(again) = self.looked.lock().get(key).map(|looked| looked.again).filter(|again| *again > now) {
            return Ok(Observed::Break(Outcome::After(again.saturating_since(now))));
        }
        let (answer, at) = match self.lead(&root, &bursts).map(|lead| self.heard(key, lead)) {
            Ok(Heard { trouble: Some((trouble, at)), .. }) => (Err(trouble), at),
            Ok(Heard { picture: Some((picture, at)), .. }) => (self.asked(picture, &bursts).await, at),
            // It says so when it hears something, or nothing for long.
            Ok(Heard { picture: None, trouble: None }) => return Ok(nothing()),
            Err(trouble) => (Err(trouble), self.shared.clock.wall()),
        };
        let before = self.looked.lock().get(key).map(|looked| looked.closed.clone()).unwrap_or_default();
        let (answer, closed) = match answer {
            Ok(asked) => {
                let (asked, closed) = settled(asked, &before, now);
                (Ok(asked), closed)
            }
            Err(trouble) => (Err(trouble), BTreeMap::new()),
        };
        let took = self.shared.clock.mono().saturating_since(now);
        Ok(Observed::Continue(Told { bursts, answer, closed, at, took }))
    }

    fn step(&self, _: &ObjectKey, Told { bursts, answer, at, took, .. }: &Told) -> NextLook {
        let on_demand = bursts.iter().filter(|burst| burst.spec.on_demand.is_some());
        let seen: BTreeMap<String, Seen> = on_demand
            .map(|burst| {
                let slot = &burst.spec.slot;
                let found = answer.as_ref().map(|asked| asked.get(slot).copied().unwrap_or_default());
                (slot.clone(), Seen { at: *at, found: found.map_err(Clone::clone) })
            })
            .collect();
        let map = bursts.first().and_then(|burst| RankMap::parse_canonical(&burst.spec.rank_map).ok());
        let (mut soon, mut closes) = (false, Vec::new());
        let looked = answer.is_ok().then_some(*at);
        for burst in bursts {
            let BurstSpec { slot, on_demand: Some(policy), .. } = &burst.spec else { continue };
            let status = burst.status.as_ref();
            let demand = decide::decide(&decide::last(status), policy, seen.get(slot));
            let is_closed = decide::closes(&demand, policy, status, looked);
            // It wakes or sleeps after one more look.
            soon |= demand.since.is_some() && (is_closed || !demand.awake);
            if is_closed {
                closes.extend(map.as_ref().and_then(|map| map.ranks(slot)));
            }
        }
        let closes = closes.into_iter().flatten().collect();
        NextLook { seen, closes, wait: if soon { SETTLES } else { EVERY }, rest: *took * RESTS }
    }

    async fn apply(&self, key: &ObjectKey, told: Told, next: NextLook) -> Result<Outcome, Infallible> {
        let NextLook { seen, closes, wait, rest } = next;
        if let Some(hears) = self.ears.lock().get(key) {
            let closes = Some(closes.to_string());
            hears.closed.send_if_modified(|known| std::mem::replace(known, closes.clone()) != closes);
        }
        let again = self.shared.clock.mono() + rest;
        let before = self.looked.lock().insert(key.clone(), Looked { seen: seen.clone(), closed: told.closed, again });
        if before.is_none_or(|before| before.seen != seen) {
            told.bursts.iter().for_each(|burst| self.bursts.mark(Key::Burst(ObjectKey::of(&**burst))));
        }
        Ok(Outcome::After(wait))
    }
}

/// A slot counts as closed once it was idle for [`SETTLES`] since nothing more was to start there: the scheduler may have begun
/// to start a job before it heard so. The second is since when each is closed and idle.
fn settled(
    mut asked: BTreeMap<String, Asked>,
    before: &BTreeMap<String, Mono>,
    now: Mono,
) -> (BTreeMap<String, Asked>, BTreeMap<String, Mono>) {
    let mut closed = BTreeMap::new();
    for (name, slot) in asked.iter_mut().filter(|(_, slot)| slot.closed && !slot.busy) {
        let since = before.get(name).copied().unwrap_or(now);
        closed.insert(name.clone(), since);
        slot.closed = now.saturating_since(since) >= SETTLES;
    }
    (asked, closed)
}

/// The bursts on demand in the order of their ranks, and the others whose brokers are there or come.
fn slots(bursts: &[Arc<Burst>]) -> (Vec<Slot>, BTreeSet<String>) {
    let mut slots: Vec<(u32, Slot)> = Vec::new();
    let mut coming = BTreeSet::new();
    for burst in bursts.iter().filter(|burst| !burst.spec.release) {
        let status = burst.status.clone().unwrap_or_default();
        let name = burst.spec.slot.clone();
        if burst.spec.on_demand.is_some() {
            let awake = status.demand.is_some_and(|demand| demand.awake);
            // One that has just left is placed in a moment.
            let nowhere = status.held != Some(BurstHold::Leaving)
                && (matches!(status.phase, BurstPhase::Lost) || status.peer.is_none());
            let stuck = status.held == Some(BurstHold::BudgetSpent) || awake && nowhere;
            slots.push((burst.spec.index, Slot { name, size: burst.spec.size, awake, stuck }));
        } else if status.peer.is_some() && (BurstPhase::Offered..=BurstPhase::Ready).contains(&status.phase) {
            coming.insert(name);
        }
    }
    slots.sort_by_key(|(index, _)| *index);
    (slots.into_iter().map(|(_, slot)| slot).collect(), coming)
}

fn has_on_demand(root: &MiniCluster) -> bool {
    root.spec.flux.bursting.clusters.iter().any(|cluster| cluster.on_demand().is_some())
}

#[cfg(test)]
mod tests {
    use tributary_api::burst::{BurstDemand, BurstStatus, OnDemandSpec};

    use super::*;

    fn burst(slot: &str, index: u32, on_demand: bool, status: BurstStatus) -> Arc<Burst> {
        let on_demand = on_demand.then(OnDemandSpec::default);
        let spec = BurstSpec { slot: slot.into(), index, size: 2, on_demand, ..BurstSpec::default() };
        Arc::new(Burst { status: Some(status), ..Burst::new(slot, spec) })
    }

    #[test]
    fn what_was_just_closed_is_looked_at_once_more() {
        let look = |before, second, closed, busy| {
            let asked = Asked { closed, busy, ..Asked::default() };
            let now = Mono::ZERO + Duration::from_secs(second);
            let (asked, closed) = settled([("pond".to_owned(), asked)].into(), &before, now);
            (asked["pond"].closed, closed)
        };
        let (settled, first) = look(BTreeMap::new(), 10, true, false);
        assert!(!settled);
        assert!(!look(first.clone(), 14, true, false).0 && look(first.clone(), 15, true, false).0);
        let (_, used) = look(first, 12, true, true);
        assert!(!look(used, 17, true, false).0, "a job was there: from then on");
    }

    #[test]
    fn what_would_not_come_is_stuck_and_what_does_not_come_is_not_there() {
        let status = |peer: &str, phase, awake| BurstStatus {
            peer: Some(peer.to_owned()).filter(|peer| !peer.is_empty()),
            demand: Some(BurstDemand { awake, ..BurstDemand::default() }),
            phase,
            ..BurstStatus::default()
        };
        let spent = BurstStatus { held: Some(BurstHold::BudgetSpent), ..status("", BurstPhase::Spent, true) };
        let table = [
            (status("", BurstPhase::Asleep, false), [false, false]),
            (status("west", BurstPhase::Offered, true), [true, false]),
            // It may still leave from the last time.
            (status("west", BurstPhase::Draining, true), [true, false]),
            (status("", BurstPhase::Rejected, true), [true, true]),
            (status("west", BurstPhase::Lost, true), [true, true]),
            (spent, [true, true]),
            (BurstStatus { held: Some(BurstHold::Leaving), ..status("", BurstPhase::Pending, true) }, [true, false]),
        ];
        for (status, expected) in table {
            let (slots, coming) = slots(&[burst("a", 0, true, status.clone())]);
            assert_eq!([slots[0].awake, slots[0].stuck], expected, "{status:?}");
            assert!(coming.is_empty());
        }
        let always = [("a", BurstPhase::Joining), ("b", BurstPhase::Lost), ("c", BurstPhase::Draining)];
        let always = always.map(|(slot, phase)| burst(slot, 0, false, status("west", phase, false)));
        assert_eq!(slots(&always).1, BTreeSet::from(["a".to_owned()]));
    }
}
