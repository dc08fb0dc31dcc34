//! One round of a namespace: from all its objects to who starts, what each is told, and what is taken. Pure.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt;

use super::claims::Claims;
use super::guests::{self, Grants, Reserved, Standing};
use super::job::{self, JobStep, Stage, Then, Word};
use super::nodes::{Gang, Nodes};
use super::room::Room;
use super::schedule::{Rules, Running, Waiting, schedule};
use crate::api::flux_job::FluxJob;
use crate::api::flux_setup::{FluxSetup, FluxSetupStatus};
use crate::api::hosted_burst::HostedBurst;
use crate::api::labels::{self, reason};
use crate::api::minicluster::{MiniCluster, MiniClusterSpec, Phase};
use crate::cluster::caches::{controller_of, controller_uid};
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
    /// Bursts of peers that it hosts.
    pub hosted: &'a [Arc<HostedBurst>],
    /// Those that are about to be, by name.
    pub reserved: &'a BTreeMap<String, Reserved>,
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
    /// UIDs of FluxJobs that cannot use the room they were given.
    pub back: Vec<String>,
    /// What is left for bursts of peers; `None`: there is no FluxSetup.
    pub standing: Option<Standing>,
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

/// A FluxJob, and what it has come to.
struct Candidate<'a> {
    job: &'a Arc<FluxJob>,
    uid: String,
    stage: Stage<'a>,
}

/// Takes a round. `claims` is what earlier ones worked out.
pub fn round(view: &View<'_>, claims: &mut Claims) -> Round {
    let mut setups: Vec<&Arc<FluxSetup>> =
        view.setups.iter().filter(|setup| setup.metadata.deletion_timestamp.is_none()).collect();
    setups.sort_by_key(|setup| (created(&setup.metadata.creation_timestamp), setup.name_any()));
    let candidates = candidates(view, claims);
    let mut round = Round::default();
    let Some((setup, others)) = setups.split_first() else {
        round.jobs(view, &candidates, None, &BTreeMap::new(), &BTreeSet::new(), NO_SETUP);
        return round;
    };
    for other in others {
        let sentence = format!("FluxSetup {} is older: that one counts", setup.name_any());
        round.setup(other, FluxSetupStatus::default(), Statement::fails(ACTIVE, "AnotherCounts", sentence), view.now);
    }
    round.ruled(view, &candidates, setup);
    round
}

fn candidates<'a>(view: &View<'a>, claims: &mut Claims) -> Vec<Candidate<'a>> {
    let by_name: BTreeMap<&str, &MiniCluster> =
        view.mini_clusters.iter().filter_map(|found| Some((found.metadata.name.as_deref()?, &**found))).collect();
    let alive: BTreeSet<&str> = view.jobs.iter().filter_map(|job| job.metadata.uid.as_deref()).collect();
    claims.retain(&alive);
    let candidate = |job: &'a Arc<FluxJob>| {
        let found = job.metadata.name.as_deref().and_then(|name| by_name.get(name).copied());
        Candidate { job, uid: job.uid().unwrap_or_default(), stage: job::stage(job, found, claims) }
    };
    view.jobs.iter().map(candidate).collect()
}

impl Round {
    fn ruled(&mut self, view: &View<'_>, candidates: &[Candidate<'_>], setup: &Arc<FluxSetup>) {
        let spec = &setup.spec;
        let quota = Room::of_quota("spec.quota", &spec.quota);
        let (quota, grants) = match quota.and_then(|quota| Ok((quota, Grants::of(setup)?))) {
            Ok(both) => both,
            Err(sentence) => {
                self.standing = Some(Standing { setup: setup.name_any(), ..Standing::default() });
                let told = format!("nothing starts: FluxSetup {}: {sentence}", setup.name_any());
                self.told = view.asked.iter().map(|uid| (uid.clone(), told.clone())).collect();
                self.jobs(view, candidates, spec.max_duration_seconds, &BTreeMap::new(), &BTreeSet::new(), &told);
                let statement = Statement::fails(ACTIVE, "InvalidQuota", sentence);
                return self.setup(setup, setup.status.clone().unwrap_or_default(), statement, view.now);
            }
        };
        let rules = Rules { quota, order: spec.order, backfill: spec.backfill, longest: spec.max_duration_seconds };
        let Line { running, mut gangs, waiting, wanted, passes, guests } = sort(view, candidates, rules.longest);
        self.start = passes;
        let mut of_nodes = false;
        let mut nodes = |who: &Who| {
            let (wanted, gang) = wanted.get(who).filter(|_| spec.check_nodes)?;
            let lack = (view.nodes)(&*wanted.spec()?, gang, &gangs);
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
        self.jobs(view, candidates, rules.longest, &jobs, &admitted, &in_line);
        let standing = Standing { setup: setup.name_any(), open: decided.open, grants, taken: guests };
        let count = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
        let status = FluxSetupStatus {
            peers: standing.usage(),
            running: count(running.len() + decided.start.len()),
            waiting: count(waiting.len() - decided.start.len()),
            used: decided.used.usage(),
            next,
            ..setup.status.clone().unwrap_or_default()
        };
        self.standing = Some(standing);
        self.setup(setup, status, Statement::holds(ACTIVE, "Counts", "the queue goes by it"), view.now);
    }

    fn jobs(
        &mut self,
        view: &View<'_>,
        candidates: &[Candidate<'_>],
        longest: Option<i64>,
        words: &BTreeMap<String, Word>,
        admitted: &BTreeSet<String>,
        otherwise: &str,
    ) {
        for Candidate { job, uid, stage } in candidates {
            if job.metadata.deletion_timestamp.is_some() {
                continue;
            }
            let granted = view.granted.contains_key(uid);
            let word = match words.get(uid) {
                _ if admitted.contains(uid) || granted => Word::Starts,
                Some(word) => word.clone(),
                None => Word::Waits(otherwise.to_owned()),
            };
            let step = job::step(job, stage, word, longest, view.now);
            if granted && matches!(stage, Stage::LinesUp(Err(_))) {
                self.back.push(uid.clone());
            }
            self.wake = match (self.wake, step.wake) {
                (Some(a), Some(b)) => Some(a.min(b)),
                (a, b) => a.or(b),
            };
            if Some(&step.status) != job.status.as_ref() || step.then != Then::Nothing {
                self.jobs.push(((*job).clone(), step));
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
struct Line<'a> {
    running: Vec<Running>,
    /// The brokers of what runs.
    gangs: Vec<Gang>,
    waiting: Vec<Waiting<Who>>,
    /// What those that wait want.
    wanted: BTreeMap<Who, (Wanted<'a>, Gang)>,
    /// UIDs of MiniClusters that asked, and stand in no line: their FluxJob did.
    passes: Vec<String>,
    /// What bursts of each peer take.
    guests: BTreeMap<String, Room>,
}

impl Line<'_> {
    /// A burst of a peer: it was let in, and nobody knows when it ends.
    fn guest(&mut self, peer: &str, room: Room, since: Timestamp, gang: Gang) {
        *self.guests.entry(peer.to_owned()).or_default() += room;
        self.gangs.push(gang);
        self.running.push(Running { room, since, until: None });
    }
}

/// Whose spec the nodes are asked about.
#[derive(Clone, Copy)]
enum Wanted<'a> {
    MiniCluster(&'a MiniCluster),
    Job(&'a FluxJob),
}

impl<'a> Wanted<'a> {
    fn spec(&self) -> Option<Cow<'a, MiniClusterSpec>> {
        match self {
            Self::MiniCluster(found) => Some(Cow::Borrowed(&found.spec)),
            Self::Job(job) => job::mini_cluster(job, None).ok().map(|made| Cow::Owned(made.spec)),
        }
    }
}

fn sort<'a>(view: &View<'a>, candidates: &[Candidate<'a>], longest: Option<i64>) -> Line<'a> {
    let mut line = Line::default();
    let until = |since: Timestamp, limit: Option<i64>| {
        limit.map(|limit| since.checked_add(jiff::SignedDuration::from_secs(limit)).unwrap_or(Timestamp::MAX))
    };
    for hosted in view.hosted {
        let (spec, since) = (&hosted.spec, created(&hosted.metadata.creation_timestamp));
        let gang = Gang::of(&hosted.namespace().unwrap_or_default(), &spec.slot, &guests::wanted(spec));
        line.guest(&spec.peer, guests::room_of(spec), since, gang);
    }
    for (name, Reserved { peer, wanted, room }) in view.reserved {
        let namespace = view.setups.first().and_then(|setup| setup.namespace()).unwrap_or_default();
        line.guest(peer, *room, view.now, Gang::of(&namespace, name, wanted));
    }
    let admitted = |job: &FluxJob, uid: &str| {
        let granted = view.granted.get(uid).copied();
        let on_record = job.status.as_ref().and_then(|status| status.admitted.as_ref()).map(|Time(since)| *since);
        on_record.or(granted).filter(|_| job::is_admitted(job, granted.is_some()))
    };
    let of_jobs: BTreeMap<&str, &Candidate<'a>> = candidates
        .iter()
        .filter_map(|candidate| match candidate.stage {
            Stage::Follows(found) => Some((found.metadata.uid.as_deref()?, candidate)),
            _ => None,
        })
        .collect();
    // What a HostedBurst makes counts with that.
    let guests: BTreeSet<(Option<&str>, Option<&str>)> = (view.hosted.iter())
        .filter_map(|hosted| Some((Some(hosted.spec.slot.as_str()), Some(hosted.metadata.uid.as_deref()?))))
        .collect();
    for found in view.mini_clusters {
        let phase = found.status.as_ref().and_then(|status| status.phase);
        let is_guest = guests.contains(&(found.metadata.name.as_deref(), controller_uid(&**found)));
        if is_guest || matches!(phase, Some(Phase::Succeeded | Phase::Failed)) {
            continue;
        }
        let uid = found.uid().unwrap_or_default();
        let (room, came) = (Room::of_mini_cluster(&found.spec), created(&found.metadata.creation_timestamp));
        let limit = found.spec.deadline_seconds;
        let asks = view.asked.contains(&uid) && !view.granted.contains_key(&uid);
        let by_job = of_jobs.get(uid.as_str()).and_then(|of| {
            let since = admitted(of.job, &of.uid)?;
            (!asks || job::covers(of.job, found)).then_some(since)
        });
        if asks && by_job.is_none() {
            if found.metadata.deletion_timestamp.is_none() {
                let key = Who::MiniCluster(uid);
                line.wanted.insert(key.clone(), (Wanted::MiniCluster(found), gang(found)));
                line.waiting.push(Waiting { key, room, priority: priority(found), since: came, limit });
            }
        } else if by_job.is_some() || view.granted.contains_key(&uid) || has_job(found) || is_on_its_way(found) {
            let since = by_job.or(view.granted.get(&uid).copied()).unwrap_or(came);
            line.gangs.push(gang(found));
            line.running.push(Running { room, since, until: until(since, limit) });
            if asks {
                line.passes.push(uid);
            }
        }
    }
    for Candidate { job, uid, stage } in candidates {
        // Once there is a MiniCluster, that is what takes room, or waits for it.
        let Stage::LinesUp(Ok(claim)) = stage else { continue };
        let (room, limit) = (claim.room, job::limit(job, longest));
        if let Some(since) = admitted(job, uid) {
            line.gangs.push(claim.gang.clone());
            line.running.push(Running { room, since, until: until(since, limit) });
        } else if job.metadata.deletion_timestamp.is_none() {
            let key = Who::Job(uid.clone());
            line.wanted.insert(key.clone(), (Wanted::Job(job), claim.gang.clone()));
            let since = created(&job.metadata.creation_timestamp);
            line.waiting.push(Waiting { key, room, priority: job.spec.priority, since, limit });
        }
    }
    line
}

fn gang(of: &MiniCluster) -> Gang {
    Gang::of(&of.namespace().unwrap_or_default(), &of.name_any(), &of.spec)
}

/// It has a Job, or had one and is between two. What is left of a hosted burst counts until it is gone.
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
