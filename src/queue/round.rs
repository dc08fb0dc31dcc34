//! One round of a namespace: from all its objects to who starts, what each is told, and what is taken. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt;

use super::job::{self, JobStep, Then, Word};
use super::nodes::{Gang, Nodes};
use super::room::Room;
use super::schedule::{Rules, Running, Waiting, schedule};
use crate::api::flux_job::{FluxJob, JobPhase};
use crate::api::flux_setup::{FluxSetup, FluxSetupStatus};
use crate::api::hosted_burst::HostedBurst;
use crate::api::labels::{self, reason};
use crate::api::minicluster::{MiniCluster, MiniClusterSpec, Phase};
use crate::cluster::caches::controller_of;
use crate::cluster::conditions::{self, Statement};

/// Condition of a FluxSetup: it counts.
const ACTIVE: &str = "Active";

/// What FluxJobs are told where nobody has made room.
const NO_SETUP: &str = "there is no FluxSetup in this namespace yet: whoever administers it makes one";

/// While somebody waits for nodes: nobody tells when they have room.
const LOOK_AT_NODES_AGAIN: Duration = Duration::from_secs(2);

/// All that a round looks at: of one namespace.
#[derive(Clone, Copy)]
pub struct View<'a> {
    /// The moment.
    pub now: Timestamp,
    /// Its FluxSetups.
    pub setups: &'a [Arc<FluxSetup>],
    /// Its FluxJobs.
    pub jobs: &'a [Arc<FluxJob>],
    /// Its MiniClusters.
    pub mini_clusters: &'a [Arc<MiniCluster>],
    /// UIDs of MiniClusters that asked for a Job and wait.
    pub asked: &'a BTreeSet<String>,
    /// UIDs of MiniClusters and FluxJobs that were let through in this leader's scope, and when.
    pub granted: &'a BTreeMap<String, Timestamp>,
    /// What the nodes have room for.
    pub nodes: &'a Nodes,
}

/// What comes of a round.
#[derive(Debug, Default)]
pub struct Round {
    /// The next status of each FluxSetup whose status changes.
    pub setups: Vec<(Arc<FluxSetup>, FluxSetupStatus)>,
    /// The next step of each FluxJob that has anything to do.
    pub jobs: Vec<(Arc<FluxJob>, JobStep)>,
    /// UIDs of MiniClusters that may have their Job.
    pub start: Vec<String>,
    /// What the others wait for, by UID.
    pub told: BTreeMap<String, String>,
    /// When to look again though nothing changes.
    pub wake: Option<Duration>,
}

/// Who waits: FluxJobs and MiniClusters stand in one line.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Who {
    Job(String),
    MiniCluster(String),
}

/// Takes a round.
pub fn round(view: &View<'_>) -> Round {
    let mut setups: Vec<&Arc<FluxSetup>> =
        view.setups.iter().filter(|setup| setup.metadata.deletion_timestamp.is_none()).collect();
    setups.sort_by_key(|setup| (created(&setup.metadata.creation_timestamp), setup.name_any()));
    let mut round = Round::default();
    let Some((setup, others)) = setups.split_first() else {
        round.jobs(view, None, &BTreeMap::new(), &BTreeSet::new(), NO_SETUP);
        return round;
    };
    for other in others {
        let sentence = format!("FluxSetup {} is older: that one counts", setup.name_any());
        round.setup(other, FluxSetupStatus::default(), Statement::fails(ACTIVE, "AnotherCounts", sentence), view.now);
    }
    round.ruled(view, setup);
    round
}

impl Round {
    fn ruled(&mut self, view: &View<'_>, setup: &Arc<FluxSetup>) {
        let spec = &setup.spec;
        let quota = match Room::of_quota(&spec.quota) {
            Ok(quota) => quota,
            Err(sentence) => {
                let told = format!("nothing starts: FluxSetup {}: {sentence}", setup.name_any());
                self.told = view.asked.iter().map(|uid| (uid.clone(), told.clone())).collect();
                self.jobs(view, spec.max_duration_seconds, &BTreeMap::new(), &BTreeSet::new(), &told);
                let statement = Statement::fails(ACTIVE, "InvalidQuota", sentence);
                return self.setup(setup, setup.status.clone().unwrap_or_default(), statement, view.now);
            }
        };
        let rules = Rules { quota, order: spec.order, backfill: spec.backfill, longest: spec.max_duration_seconds };
        let Line { running, mut gangs, waiting, wanted } = sort(view, rules.longest);
        let mut of_nodes = false;
        let mut nodes = |who: &Who| {
            let (spec, gang) = wanted.get(who).filter(|_| spec.check_nodes)?;
            let lack = (view.nodes)(spec, gang, &gangs);
            of_nodes |= lack.is_some();
            if lack.is_none() {
                gangs.push(gang.clone());
            }
            lack
        };
        let decided = schedule(&rules, &running, &waiting, &mut nodes, view.now);
        if of_nodes {
            self.wake = Some(LOOK_AT_NODES_AGAIN);
        }
        let starts: BTreeSet<&Who> = decided.start.iter().collect();
        let mut words: BTreeMap<&Who, String> = BTreeMap::new();
        let in_line = format!("it waits in line for room in FluxSetup {}", setup.name_any());
        for one in &waiting {
            words.insert(&one.key, in_line.clone());
        }
        for (who, why) in &decided.never {
            words.insert(who, why.clone());
        }
        let mut next = String::new();
        if let Some((who, lack)) = &decided.head {
            words.insert(who, format!("it is next in line: {lack}"));
            let name = wanted.get(who).map(|(_, gang)| gang.name.as_str()).unwrap_or_default();
            next = match who {
                Who::Job(_) => format!("FluxJob {name}: {lack}"),
                Who::MiniCluster(_) => format!("MiniCluster {name}: {lack}"),
            };
        }
        let never: BTreeSet<&Who> = decided.never.iter().map(|(who, _)| who).collect();
        let mut jobs: BTreeMap<String, Word> = BTreeMap::new();
        for (who, text) in words {
            match who {
                Who::Job(uid) => {
                    let word = if never.contains(who) { Word::Refused("NeverFits", text) } else { Word::Waits(text) };
                    jobs.insert(uid.clone(), word);
                }
                Who::MiniCluster(uid) if !starts.contains(who) => drop(self.told.insert(uid.clone(), text)),
                Who::MiniCluster(_) => {}
            }
        }
        let mut admitted = BTreeSet::new();
        for who in &decided.start {
            match who {
                Who::Job(uid) => drop(admitted.insert(uid.clone())),
                Who::MiniCluster(uid) => self.start.push(uid.clone()),
            }
        }
        self.jobs(view, rules.longest, &jobs, &admitted, &in_line);
        let count = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
        let status = FluxSetupStatus {
            running: count(running.len() + decided.start.len()),
            waiting: count(waiting.len() - decided.start.len()),
            used: decided.used.usage(),
            next,
            ..setup.status.clone().unwrap_or_default()
        };
        self.setup(setup, status, Statement::holds(ACTIVE, "Counts", "the queue goes by it"), view.now);
    }

    fn jobs(
        &mut self,
        view: &View<'_>,
        longest: Option<i64>,
        words: &BTreeMap<String, Word>,
        admitted: &BTreeSet<String>,
        otherwise: &str,
    ) {
        let by_name: BTreeMap<String, &Arc<MiniCluster>> =
            view.mini_clusters.iter().map(|found| (found.name_any(), found)).collect();
        for job in view.jobs.iter().filter(|job| job.metadata.deletion_timestamp.is_none()) {
            let uid = job.uid().unwrap_or_default();
            let word = match words.get(&uid) {
                _ if admitted.contains(&uid) || view.granted.contains_key(&uid) => Word::Starts,
                Some(word) => word.clone(),
                None => Word::Waits(otherwise.to_owned()),
            };
            let found = by_name.get(&job.name_any()).map(|found| &***found);
            let step = job::step(job, found, word, longest, view.now);
            self.wake = match (self.wake, step.wake) {
                (Some(a), Some(b)) => Some(a.min(b)),
                (a, b) => a.or(b),
            };
            if Some(&step.status) != job.status.as_ref() || step.then != Then::Nothing {
                self.jobs.push((job.clone(), step));
            }
        }
    }

    fn setup(&mut self, setup: &Arc<FluxSetup>, status: FluxSetupStatus, statement: Statement, now: Timestamp) {
        let old = setup.status.clone().unwrap_or_default();
        let generation = setup.metadata.generation;
        let conditions = conditions::merged(&old.conditions, [statement], generation, now);
        let status = FluxSetupStatus { conditions, observed_generation: generation, ..status };
        if setup.status.as_ref() != Some(&status) {
            self.setups.push((setup.clone(), status));
        }
    }
}

/// The line, and what stands before it.
#[derive(Default)]
struct Line {
    running: Vec<Running>,
    /// The brokers of what runs.
    gangs: Vec<Gang>,
    waiting: Vec<Waiting<Who>>,
    /// What those that wait want.
    wanted: BTreeMap<Who, (MiniClusterSpec, Gang)>,
}

fn sort(view: &View<'_>, longest: Option<i64>) -> Line {
    let mut line = Line::default();
    let until = |since: Timestamp, limit: Option<i64>| {
        limit.map(|limit| since.checked_add(jiff::SignedDuration::from_secs(limit)).unwrap_or(Timestamp::MAX))
    };
    let jobs: BTreeSet<&str> = view.jobs.iter().filter_map(|job| job.metadata.uid.as_deref()).collect();
    for found in view.mini_clusters {
        let of_job = found.metadata.owner_references.iter().flatten().any(|owner| jobs.contains(owner.uid.as_str()));
        let phase = found.status.as_ref().and_then(|status| status.phase);
        if of_job || matches!(phase, Some(Phase::Succeeded | Phase::Failed)) {
            continue;
        }
        let uid = found.uid().unwrap_or_default();
        let (room, came) = (Room::of_mini_cluster(&found.spec), created(&found.metadata.creation_timestamp));
        let limit = found.spec.deadline_seconds;
        if view.asked.contains(&uid) && !view.granted.contains_key(&uid) {
            if found.metadata.deletion_timestamp.is_none() {
                let key = Who::MiniCluster(uid);
                line.wanted.insert(key.clone(), (found.spec.clone(), gang(found)));
                line.waiting.push(Waiting { key, room, priority: priority(found), since: came, limit });
            }
        } else if view.granted.contains_key(&uid) || has_job(found) || is_on_its_way(found) {
            let since = view.granted.get(&uid).copied().unwrap_or(came);
            line.gangs.push(gang(found));
            line.running.push(Running { room, since, until: until(since, limit) });
        }
    }
    for job in view.jobs {
        let status = job.status.clone().unwrap_or_default();
        let uid = job.uid().unwrap_or_default();
        let Ok(wanted) = job::mini_cluster(job, longest) else { continue };
        let (room, limit) = (Room::of_mini_cluster(&wanted.spec), job::limit(job, longest));
        let admitted = status.admitted.map(|Time(since)| since).or(view.granted.get(&uid).copied());
        match admitted {
            _ if status.phase == JobPhase::Finished => {}
            Some(since) => {
                line.gangs.push(gang(&wanted));
                line.running.push(Running { room, since, until: until(since, limit) });
            }
            None if job.metadata.deletion_timestamp.is_some() => {}
            None => {
                let key = Who::Job(uid);
                let gang = gang(&wanted);
                line.wanted.insert(key.clone(), (wanted.spec, gang));
                let since = created(&job.metadata.creation_timestamp);
                line.waiting.push(Waiting { key, room, priority: job.spec.priority, since, limit });
            }
        }
    }
    line
}

fn gang(of: &MiniCluster) -> Gang {
    Gang::of(&of.namespace().unwrap_or_default(), &of.name_any(), &of.spec)
}

/// It has a Job, or had one and is between two. Hosted bursts were let in by the import policy of their peer.
fn has_job(found: &MiniCluster) -> bool {
    found.status.as_ref().is_some_and(|status| status.incarnation.is_some())
        || controller_of::<HostedBurst>(found).is_some()
}

/// It waited under another leader, who may have let it through: it counts until it asks again.
fn is_on_its_way(found: &MiniCluster) -> bool {
    let conditions = found.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
    conditions.iter().any(|condition| condition.status == "False" && condition.reason == reason::QUEUED)
}

fn priority(found: &MiniCluster) -> i32 {
    let text = found.metadata.annotations.as_ref().and_then(|all| all.get(labels::PRIORITY));
    text.and_then(|text| text.trim().parse().ok()).unwrap_or(0)
}

fn created(at: &Option<Time>) -> Timestamp {
    at.as_ref().map_or(Timestamp::MAX, |Time(at)| *at)
}

#[cfg(test)]
mod tests;
