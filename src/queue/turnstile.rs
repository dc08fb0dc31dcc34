//! Where the reconciler asks before it makes a Job.
//!
//! What is in here lives as long as one leader's scope: [`Turnstile::begin`] empties it, before anybody asks.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use jiff::Timestamp;
use kube::ResourceExt;

use super::job::{self, Then};
use super::round::Round;
use crate::api::flux_job::{FluxJob, JobSplit};
use crate::api::flux_setup::FluxSetup;
use crate::api::minicluster::MiniCluster;
use crate::cluster::ObjectKey;
use crate::cluster::caches::Cache;
use crate::cluster::worker::Queue;

/// The turnstile. Cloning shares it.
#[derive(Clone)]
pub struct Turnstile {
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
    /// How FluxJobs among them were split.
    splits: BTreeMap<String, JobSplit>,
}

#[derive(Debug)]
struct Asked {
    key: ObjectKey,
    told: String,
}

impl Turnstile {
    /// A turnstile for namespaces that have a FluxSetup; asking marks their round.
    pub fn new(setups: Cache<FluxSetup>, jobs: Cache<FluxJob>, rounds: Queue<String>) -> Self {
        Self { setups, jobs, rounds, through: Arc::default(), state: Arc::default() }
    }

    /// The reconciler's queue; to be called once.
    pub fn leads_to(&self, queue: Queue<ObjectKey>) {
        let _ = self.through.set(queue);
    }

    /// Nothing is known at the beginning of a leader's scope.
    pub fn begin(&self) {
        *self.lock() = State::default();
    }

    /// Whether a MiniCluster without a Job may have one.
    ///
    /// # Errors
    /// It has to wait, for this. Its key is marked when that changes.
    pub fn ask(&self, mini_cluster: &MiniCluster, now: Timestamp) -> Result<(), String> {
        let (uid, namespace) = (mini_cluster.uid().unwrap_or_default(), mini_cluster.namespace().unwrap_or_default());
        let listed = self.setups.condition().listed;
        if listed && !self.is_ruled(&namespace) {
            return Ok(());
        }
        let job = self.jobs.of(&ObjectKey::of(mini_cluster)).filter(|job| job::is_of(mini_cluster, job));
        let mut state = self.lock();
        // Made when its FluxJob was let through. That it says so is not enough: anybody may write an owner.
        if let Some(job) = job {
            let granted = job.metadata.uid.as_ref().is_some_and(|uid| state.granted.contains_key(uid));
            let decided = job.metadata.uid.as_ref().and_then(|uid| state.splits.get(uid));
            let split = job.status.as_ref().and_then(|status| status.split.as_ref()).or(decided);
            if job::is_admitted(&job, granted) && job::covers(&job, split, mini_cluster) {
                return Ok(());
            }
        }
        let runs_on = mini_cluster.status.as_ref().is_some_and(|status| status.incarnation.is_some());
        if runs_on {
            // Between two incarnations it keeps its room.
            state.granted.entry(uid.clone()).or_insert(now);
        }
        if state.granted.contains_key(&uid) {
            return Ok(());
        }
        let first = "it waits for its turn in the queue of this namespace";
        let asked = state.waiting.entry(uid).or_insert_with(|| {
            self.rounds.mark(namespace);
            Asked { key: ObjectKey::of(mini_cluster), told: first.to_owned() }
        });
        Err(asked.told.clone())
    }

    /// Whether a namespace has a FluxSetup.
    fn is_ruled(&self, namespace: &str) -> bool {
        let all = self.setups.objects();
        all.iter()
            .any(|setup| setup.namespace().as_deref() == Some(namespace) && setup.metadata.deletion_timestamp.is_none())
    }

    /// Since when those that may start may, by UID.
    pub(super) fn granted(&self) -> BTreeMap<String, Timestamp> {
        self.lock().granted.clone()
    }

    /// How FluxJobs that may start were split, by UID.
    pub(super) fn splits(&self) -> BTreeMap<String, JobSplit> {
        self.lock().splits.clone()
    }

    /// UIDs of those that wait in a namespace.
    pub(super) fn waiting(&self, namespace: &str) -> Vec<String> {
        let state = self.lock();
        let here = state.waiting.iter().filter(|(_, asked)| asked.key.namespace.as_deref() == Some(namespace));
        here.map(|(uid, _)| uid.clone()).collect()
    }

    /// Tells those of a namespace that wait what they wait for, and lets those that start through. Who is told nothing is
    /// gone, or need not wait.
    pub(super) fn turn(&self, namespace: &str, round: &Round, now: Timestamp) {
        let mut told = round.told.clone();
        let mut marked = Vec::new();
        let mut state = self.lock();
        for uid in &round.back {
            state.granted.remove(uid);
            state.splits.remove(uid);
        }
        // They count from now on, whatever the caches show of them.
        for (job, step) in round.jobs.iter().filter(|(_, step)| matches!(step.then, Then::Create(_))) {
            let uid = job.uid().unwrap_or_default();
            state.granted.entry(uid.clone()).or_insert(now);
            if let Some(split) = &step.status.split {
                state.splits.entry(uid).or_insert_with(|| split.clone());
            }
        }
        for uid in &round.start {
            if let Some(asked) = state.waiting.remove(uid) {
                state.granted.insert(uid.clone(), now);
                marked.push(asked.key);
            }
        }
        state.waiting.retain(|uid, asked| {
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
        });
        drop(state);
        if let Some(queue) = self.through.get() {
            marked.into_iter().for_each(|key| queue.mark(key));
        }
    }

    /// Forgets grants of what is over.
    pub(super) fn retain(&self, alive: &BTreeSet<String>) {
        let mut state = self.lock();
        state.granted.retain(|uid, _| alive.contains(uid));
        state.splits.retain(|uid, _| alive.contains(uid));
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Each critical section is a few inserts, removes and clones.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
