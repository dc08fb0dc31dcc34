//! Where the reconciler asks before it makes a Job.
//!
//! What is in here lives as long as one leader's scope: [`Admission::begin`] empties it, before anybody asks.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt;
use parking_lot::Mutex;
use tributary_api::flux_job::FluxJob;
use tributary_api::flux_setup::{self, FluxSetup, Usage};
use tributary_api::hosted_burst::is_hosted;
use tributary_api::labels;
use tributary_api::minicluster::{MiniCluster, MiniClusterStatus};
use tributary_clock::Mono;
use tributary_cluster::caches::Cache;
use tributary_cluster::worker::Queue;
use tributary_cluster::{ObjectKey, conditions};

use super::job::{self, Then};
use super::limits;
use super::overflow::Start;
use super::requests::Requests;
use super::reservations::{Reservation, Reservations};
use super::round::{Growing, Round};
use super::schedule;

/// How often what is gone is forgotten.
const FORGET_EVERY: Duration = Duration::from_secs(10);

/// The admission. Cloning shares it.
#[derive(Clone)]
pub struct Admission {
    setups: Cache<FluxSetup>,
    jobs: Cache<FluxJob>,
    rounds: Queue<String>,
    /// The reconciler's keys: those that may go on are marked there.
    through: Arc<OnceLock<Queue<ObjectKey>>>,
    state: Arc<Mutex<State>>,
}

/// What is on its way, by UID of the MiniCluster.
#[derive(Debug, Default)]
struct State {
    /// They asked, and wait; what they were told.
    waiting: BTreeMap<String, Asked>,
    /// They may start, since when.
    granted: BTreeMap<String, Timestamp>,
    /// Where FluxJobs among them start.
    starts: BTreeMap<String, Start>,
    /// They run and asked for more brokers, and wait.
    growing: BTreeMap<String, (Asked, Growing)>,
    /// Sizes up to which those that run may grow.
    grown: BTreeMap<String, i64>,
    /// What MiniClusters were let in with.
    holds: Reservations,
    /// When what is gone was forgotten last.
    forgot: Mono,
}

/// What a round goes by, of one moment.
#[derive(Debug, Default)]
pub(super) struct Look {
    /// The MiniClusters of the namespace.
    pub(super) mini_clusters: Vec<Arc<MiniCluster>>,
    /// UIDs of those that wait.
    pub(super) asked: BTreeSet<String>,
    /// Since when those that may start may, by UID, FluxJobs included.
    pub(super) granted: BTreeMap<String, Timestamp>,
    /// Where FluxJobs that may start do so.
    pub(super) starts: BTreeMap<String, Start>,
    /// Those that run and asked for more brokers.
    pub(super) growing: BTreeMap<String, Growing>,
    /// What they were let in with.
    pub(super) held: BTreeMap<String, Reservation>,
}

/// What a MiniCluster was let in with, as its status says it.
#[derive(Clone, Debug, PartialEq)]
pub struct ReservationStatus {
    /// How much it holds.
    pub usage: Usage,
    /// When its time began.
    pub began: Option<Timestamp>,
    /// For how many seconds, if there is a limit that counts.
    pub limit: Option<i64>,
}

/// How long a MiniCluster may have its room.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// Seconds that its namespace allows by now, or that it was let in for, if that is less.
    pub longest: Option<i64>,
    /// Seconds that it was let in for.
    pub term: Option<i64>,
    /// Seconds of them that are over when its Job starts.
    pub used: i64,
}

#[derive(Debug)]
struct Asked {
    key: ObjectKey,
    told: String,
}

impl Admission {
    /// A admission for namespaces that have a FluxSetup; asking marks their round.
    pub(crate) fn new(setups: Cache<FluxSetup>, jobs: Cache<FluxJob>, rounds: Queue<String>) -> Self {
        Self { setups, jobs, rounds, through: Arc::default(), state: Arc::default() }
    }

    /// The reconciler's queue; to be called once.
    pub fn leads_to(&self, queue: Queue<ObjectKey>) {
        let _ = self.through.set(queue);
    }

    /// Nothing is known at the beginning of a leader's scope.
    pub(crate) fn begin(&self) {
        *self.state.lock() = State::default();
    }

    /// Whether a MiniCluster without a Job may have one.
    ///
    /// # Errors
    /// It has to wait, for this. Its key is marked when that changes.
    pub fn ask(&self, mini_cluster: &MiniCluster, now: Timestamp) -> Result<(), String> {
        let (uid, namespace) = (mini_cluster.uid().unwrap_or_default(), mini_cluster.namespace().unwrap_or_default());
        if let Some(sentence) = self.unreadable(&namespace) {
            // The round that follows when it can be read asks again.
            let asked = Asked { key: ObjectKey::of(mini_cluster), told: sentence.clone() };
            self.state.lock().waiting.insert(uid, asked);
            return Err(sentence);
        }
        let listed = self.setups.condition().listed;
        if listed && !self.is_ruled(&namespace) {
            // Nobody counts what it takes from now on.
            self.state.lock().holds.forget(&uid);
            return Ok(());
        }
        let job = self.jobs.of(&ObjectKey::of(mini_cluster)).filter(|job| job::is_of(mini_cluster, job));
        let mut state = self.state.lock();
        // Made when its FluxJob was let through. That it says so is not enough: anybody may write an owner. It lets its MiniCluster
        // through once: what that holds since is in no FluxJob.
        if let Some(job) = job.filter(|_| state.holds.of(&uid).is_none()) {
            let granted = job.metadata.uid.as_ref().is_some_and(|uid| state.granted.contains_key(uid));
            let decided = job.metadata.uid.as_ref().and_then(|uid| state.starts.get(uid));
            let recorded = job.status.as_ref().and_then(Start::recorded);
            let start = recorded.or_else(|| decided.cloned()).unwrap_or_default();
            if job::is_admitted(&job, granted) && job::lets_in(&job, &start, mini_cluster) {
                state.holds.give(&uid, Reservation::of(mini_cluster).within(limits::of_job(&job, None)));
                return Ok(());
            }
        }
        // A reconciler may be ahead of the first round.
        state.holds.see_first(&uid, mini_cluster);
        // Between two incarnations it keeps its room, and no more than that.
        if state.holds.admit(&uid, mini_cluster, now) {
            state.granted.entry(uid).or_insert(now);
            return Ok(());
        }
        state.granted.remove(&uid);
        state.holds.lose(&uid);
        let first = "it waits for its turn in the queue of this namespace";
        let asked = state.waiting.entry(uid).or_insert_with(|| {
            self.rounds.mark(namespace);
            Asked { key: ObjectKey::of(mini_cluster), told: first.to_owned() }
        });
        Err(asked.told.clone())
    }

    /// Whether the quota of its namespace as a whole is large enough for a MiniCluster.
    ///
    /// # Errors
    /// What there is too little of.
    pub fn fits(&self, mini_cluster: &MiniCluster) -> Result<(), String> {
        let setup = self.setup(mini_cluster.metadata.namespace.as_deref().unwrap_or_default());
        let quota = setup.and_then(|setup| Requests::of_quota("spec.quota", &setup.spec.quota).ok());
        let lack = quota.and_then(|quota| quota.first_lack(&Requests::of_mini_cluster(&mini_cluster.spec)));
        lack.map_or(Ok(()), |lack| Err(schedule::never_can("start", &lack)))
    }

    /// A MiniCluster without a Job can have none as it is: it leaves the line, and what it holds is free. It asks like everybody
    /// when it is tried again.
    pub fn give_back(&self, mini_cluster: &MiniCluster) {
        let (uid, namespace) = (mini_cluster.uid().unwrap_or_default(), mini_cluster.namespace().unwrap_or_default());
        let mut state = self.state.lock();
        let waited = state.waiting.remove(&uid).is_some();
        let held = state.granted.remove(&uid).is_some() | state.holds.of(&uid).is_some();
        if waited || held {
            state.holds.lose(&uid);
            self.rounds.mark(namespace);
        }
    }

    /// Whether the FluxJob of a MiniCluster that has ended, if it has one, knows how.
    pub fn is_told(&self, mini_cluster: &MiniCluster) -> bool {
        let key = ObjectKey::of(mini_cluster);
        if self.jobs.unreadable_of(&key).is_some() {
            return false;
        }
        let job = self.jobs.of(&key).filter(|job| job::is_of(mini_cluster, job));
        job.is_none_or(|job| job::is_finished(&job) || job.metadata.deletion_timestamp.is_some())
    }

    /// Whether a MiniCluster that runs with so many brokers may have as many as its spec says.
    ///
    /// # Errors
    /// It has to wait, for this. Its key is marked when that changes.
    pub fn ask_more(&self, mini_cluster: &MiniCluster, has: i32, now: Timestamp) -> Result<(), String> {
        let (uid, namespace) = (mini_cluster.uid().unwrap_or_default(), mini_cluster.namespace().unwrap_or_default());
        if let Some(sentence) = self.unreadable(&namespace) {
            return Err(sentence);
        }
        if self.setups.condition().listed && !self.is_ruled(&namespace) {
            return Ok(());
        }
        let mut state = self.state.lock();
        if state.grown.get(&uid).is_some_and(|most| i64::from(mini_cluster.spec.size()) <= *most) {
            return Ok(());
        }
        // Who waited under another leader goes on waiting.
        let conditions = mini_cluster.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
        let waited = conditions::find(conditions, labels::condition::GROWN).map(|one| one.last_transition_time.0);
        let has = u32::try_from(has).unwrap_or(0);
        let (asked, growing) = state.growing.entry(uid).or_insert_with(|| {
            let told = "it waits for its turn in the queue of this namespace".to_owned();
            let growing = Growing { has: u32::MAX, since: waited.unwrap_or(now) };
            (Asked { key: ObjectKey::of(mini_cluster), told }, growing)
        });
        if growing.has != has {
            growing.has = has;
            self.rounds.mark(namespace);
        }
        Err(asked.told.clone())
    }

    /// How long a MiniCluster may have its room, if its Job `started`, or would `now`; `None`: that is not known yet.
    pub fn allowance(&self, mini_cluster: &MiniCluster, started: Option<Timestamp>, now: Timestamp) -> Option<Limits> {
        if !self.setups.condition().listed {
            return None;
        }
        let namespace = mini_cluster.metadata.namespace.as_deref().unwrap_or_default();
        if self.unreadable(namespace).is_some() {
            return None;
        }
        let setup = self.setup(namespace);
        let Some(setup) = setup else { return Some(Limits::default()) };
        let uid = mini_cluster.metadata.uid.as_deref().unwrap_or_default();
        let mut state = self.state.lock();
        state.holds.see_first(uid, mini_cluster);
        let began = started.and_then(|started| state.holds.starts(uid, started));
        let hold = state.holds.of(uid);
        let began = began.or(hold.and_then(|hold| hold.since));
        let used = began.map_or(0, |began| started.unwrap_or(now).duration_since(began).as_secs().max(0));
        let term = hold.and_then(|hold| hold.limit);
        Some(Limits { longest: limits::shorter(limits::longest(&setup.spec), term), term, used })
    }

    /// What the status of a MiniCluster has to say that it was let in with, given UID and parallelism of its Job.
    pub fn holds(&self, mini_cluster: &MiniCluster, job: Option<(&str, i32)>) -> Option<ReservationStatus> {
        let namespace = mini_cluster.metadata.namespace.as_deref()?;
        if !self.setups.condition().listed || self.unreadable(namespace).is_some() {
            // Nobody knows now whether anybody counts.
            let status = mini_cluster.status.as_ref()?;
            let began = status.began.as_ref().map(|Time(began)| *began);
            return Some(ReservationStatus { usage: status.holds.clone()?, began, limit: status.admitted_seconds });
        }
        let uid = mini_cluster.metadata.uid.as_deref()?;
        if !self.is_ruled(namespace) {
            return None;
        }
        let mut state = self.state.lock();
        state.holds.see_first(uid, mini_cluster);
        let usage = state.holds.told(mini_cluster, job)?.usage();
        let (began, limit) = state.holds.of(uid).map_or((None, None), |hold| (hold.since, hold.limit));
        Some(ReservationStatus { usage, began, limit })
    }

    /// What a round of a namespace goes by. `found` reads its MiniClusters from the cache, here: whoever is let in after that
    /// is seen by the next round, and what has ended by then holds nothing.
    pub(super) fn look(&self, namespace: &str, found: impl FnOnce() -> Vec<Arc<MiniCluster>>) -> Look {
        let mut state = self.state.lock();
        let mini_clusters = found();
        let mut untold = Vec::new();
        for one in &mini_clusters {
            let (uid, size) = (one.metadata.uid.as_deref().unwrap_or_default(), i64::from(one.spec.size()));
            // Whoever shrank has to ask again.
            if state.grown.get(uid).is_some_and(|most| *most > size) {
                state.grown.insert(uid.to_owned(), size);
            }
            if state.holds.see(uid, one) {
                state.granted.remove(uid);
                state.grown.remove(uid);
            }
            // It runs since before anybody counted. Who leads next knows what it holds only by its status.
            let says_nothing = |status: &MiniClusterStatus| status.holds.is_none() && status.incarnation.is_some();
            let is_untold = one.status.as_ref().is_some_and(says_nothing) && !is_hosted(&**one);
            if is_untold && state.holds.of(uid).is_some() {
                untold.push(ObjectKey::of(&**one));
            }
        }
        let here = |asked: &Asked| asked.key.namespace.as_deref() == Some(namespace);
        let asked = state.waiting.iter().filter(|(_, asked)| here(asked)).map(|(uid, _)| uid.clone()).collect();
        let growing = state.growing.iter().filter(|(_, (asked, _))| here(asked));
        let growing = growing.map(|(uid, (_, growing))| (uid.clone(), *growing)).collect();
        let (granted, starts, held) = (state.granted.clone(), state.starts.clone(), state.holds.all());
        drop(state);
        if let Some(queue) = self.through.get() {
            untold.into_iter().for_each(|key| queue.mark(key));
        }
        Look { mini_clusters, asked, granted, starts, growing, held }
    }

    /// Whether a namespace has a FluxSetup.
    fn is_ruled(&self, namespace: &str) -> bool {
        self.setup(namespace).is_some()
    }

    /// Why nobody starts in a namespace whose FluxSetup was never read, and exists.
    pub(super) fn unreadable(&self, namespace: &str) -> Option<String> {
        let key = ObjectKey::namespaced(namespace, flux_setup::NAME);
        let unreadable = self.setups.unreadable_of(&key).filter(|_| self.setups.of(&key).is_none())?;
        Some(format!("the FluxSetup {} of this namespace: {}", key.name, unreadable.sentence()))
    }

    /// The FluxSetup of a namespace.
    fn setup(&self, namespace: &str) -> Option<Arc<FluxSetup>> {
        self.setups
            .of(&ObjectKey::namespaced(namespace, flux_setup::NAME))
            .filter(|setup| setup.metadata.deletion_timestamp.is_none())
    }

    /// Tells those of a namespace that wait what they wait for, and lets those that start through. Who is told nothing is
    /// gone, or need not wait.
    pub(super) fn turn(&self, namespace: &str, round: &Round, now: Timestamp) {
        let mut told = round.told.clone();
        let mut marked = Vec::new();
        let mut state = self.state.lock();
        for uid in &round.back {
            state.granted.remove(uid);
            state.starts.remove(uid);
        }
        // They count from now on, whatever the caches show of them.
        for (job, step) in round.jobs.iter().filter(|(_, step)| matches!(step.then, Then::Create(_) | Then::Send(_))) {
            let uid = job.uid().unwrap_or_default();
            state.granted.entry(uid.clone()).or_insert(now);
            if let Some(start) = Start::recorded(&step.status) {
                state.starts.entry(uid).or_insert(start);
            }
        }
        for (uid, size) in &round.grow {
            if let Some((asked, _)) = state.growing.remove(uid) {
                state.grown.insert(uid.clone(), *size);
                state.holds.grow(uid, *size);
                marked.push(asked.key);
            }
        }
        for (uid, hold) in &round.start {
            if let Some(asked) = state.waiting.remove(uid) {
                state.granted.insert(uid.clone(), now);
                state.holds.give(uid, hold.clone());
                marked.push(asked.key);
            }
        }
        let State { waiting, growing, .. } = &mut *state;
        let mut keep = |uid: &String, asked: &mut Asked| {
            if asked.key.namespace.as_deref() != Some(namespace) {
                return true;
            }
            let Some(new) = told.remove(uid) else {
                marked.push(asked.key.clone());
                return false;
            };
            if asked.told != new {
                asked.told = new;
                marked.push(asked.key.clone());
            }
            true
        };
        waiting.retain(|uid, asked| keep(uid, asked));
        growing.retain(|uid, (asked, _)| keep(uid, asked));
        drop(state);
        if let Some(queue) = self.through.get() {
            marked.into_iter().for_each(|key| queue.mark(key));
        }
    }

    /// A FluxJob was let through, and nothing of it was recorded or made.
    pub(super) fn take_back(&self, uid: &str) {
        let mut state = self.state.lock();
        state.granted.remove(uid);
        state.starts.remove(uid);
    }

    /// Forgets what is not `alive` any more, now and then: UIDs are never used again, and in a large cluster it takes its time.
    pub(super) fn forget_what_is_gone(&self, now: Mono, alive: impl FnOnce() -> BTreeSet<String>) {
        if now.saturating_since(self.state.lock().forgot) < FORGET_EVERY {
            return;
        }
        let alive = &alive();
        let mut state = self.state.lock();
        state.forgot = now;
        state.granted.retain(|uid, _| alive.contains(uid));
        state.starts.retain(|uid, _| alive.contains(uid));
        state.grown.retain(|uid, _| alive.contains(uid));
        state.holds.retain(alive);
    }
}

#[cfg(test)]
mod tests;
