//! One round of a namespace: from all its objects to who starts, what each is told, and what is taken. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use kube::ResourceExt;
use tributary_api::burst::Burst;
use tributary_api::flux_job::{FluxJob, JobSent, JobSplit};
use tributary_api::flux_setup::{
    self, CheckNodes, FluxSetup, FluxSetupSpec, FluxSetupStatus, Order, Overflow, OverflowPolicy,
};
use tributary_api::hosted_burst::HostedBurst;
use tributary_api::labels::{condition::ACTIVE, reason};
use tributary_api::minicluster::MiniCluster;
use tributary_api::names;
use tributary_api::peer::ClusterPeer;
use tributary_cluster::caches::controller_uid;
use tributary_cluster::conditions::{self, Statement};
use tributary_render::nodes::Gang;

use super::claims::Claims;
use super::hosted_usage::{Grants, Reserved, Standing};
use super::job::{self, JobStep, Stage, Terms, Then, Word};
use super::line::{Line, Wanted, classify};
use super::nodes::Nodes;
use super::overflow::{Peers, Sender, Start};
use super::placement_context::{PlacementContext, on_their_way};
use super::priorities::Priorities;
use super::requests::Requests;
use super::reservations::Reservation;
use super::schedule::{Rules, schedule};

/// What FluxJobs are told where nobody has made room.
const NO_SETUP: &str = "there is no FluxSetup in this namespace yet: whoever administers it makes one";

/// In place of the figures, for all but the first with the same lack: they change with each node, and each change writes a
/// status.
const LIKE_ANOTHER: &str = "for the same reason as one before it in line, whose message has the figures";

/// All that a round looks at: of one namespace.
#[derive(Clone, Copy)]
pub(crate) struct View<'a> {
    /// The moment.
    pub now: Timestamp,
    /// Its FluxSetup.
    pub setup: Option<&'a Arc<FluxSetup>>,
    /// Why its FluxSetup was never read, if it exists and cannot be read.
    pub unreadable: Option<&'a str>,
    /// PriorityClasses of the cluster.
    pub priorities: &'a Priorities,
    /// Its FluxJobs.
    pub jobs: &'a [Arc<FluxJob>],
    /// Its MiniClusters.
    pub mini_clusters: &'a [Arc<MiniCluster>],
    /// MiniClusters that are left to other controllers: they have names, and take nothing.
    pub left_alone: &'a [Arc<MiniCluster>],
    /// Bursts of peers that it hosts.
    pub hosted: &'a [Arc<HostedBurst>],
    /// Those that are about to be, by name.
    pub reserved: &'a BTreeMap<String, Reserved>,
    /// UIDs of MiniClusters that asked for a Job and wait.
    pub asked: &'a BTreeSet<String>,
    /// UIDs of MiniClusters and FluxJobs that were let through in this leader's scope, and when.
    pub granted: &'a BTreeMap<String, Timestamp>,
    /// Where FluxJobs among them start.
    pub starts: &'a BTreeMap<String, Start>,
    /// MiniClusters that run and asked for more brokers, by UID.
    pub growing: &'a BTreeMap<String, Growing>,
    /// What MiniClusters were let in with, by UID, where that is known.
    pub held: &'a BTreeMap<String, Reservation>,
    /// Bursts of FluxJobs that were sent, and of MiniClusters.
    pub bursts: &'a [Arc<Burst>],
    /// What the nodes have room for.
    pub nodes: &'a Nodes,
    /// What peers have room for.
    pub peers: &'a Peers,
    /// The peers that are known.
    pub cluster_peers: &'a [Arc<ClusterPeer>],
    /// When this leader's term began.
    pub began: Timestamp,
    /// Who makes Bursts.
    pub sender: &'a Sender,
    /// The brokers that other namespaces let in lately: they get the nodes first.
    pub elsewhere: &'a [Gang],
}

impl<'a> View<'a> {
    fn terms(&self, longest: Option<i64>, overflow: &'a Overflow) -> Terms<'a> {
        let View { sender, cluster_peers, began, .. } = *self;
        Terms { longest, overflow, sender, cluster_peers, began }
    }
}

/// A MiniCluster that runs and wants to be larger.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Growing {
    /// Brokers it has.
    pub has: u32,
    /// Since when it wants more.
    pub since: Timestamp,
}

/// What comes of a round.
#[derive(Debug, Default)]
pub struct Round {
    /// The next status of the FluxSetup, if that changes.
    pub setup: Option<(Arc<FluxSetup>, FluxSetupStatus)>,
    /// The next step of each FluxJob that has anything to do.
    pub jobs: Vec<(Arc<FluxJob>, JobStep)>,
    /// UIDs of MiniClusters that may have their Job, and with what.
    pub start: Vec<(String, Reservation)>,
    /// UIDs of MiniClusters that may grow, with the size that they may have.
    pub grow: BTreeMap<String, i64>,
    /// UIDs of FluxJobs that cannot use the room they were given, or gave it back.
    pub back: Vec<String>,
    /// What is left for bursts of peers; `None`: there is no FluxSetup.
    pub standing: Option<Standing>,
    /// The brokers that are let in.
    pub gangs: Vec<Gang>,
    /// What the others wait for, by UID.
    pub told: BTreeMap<String, String>,
    /// When to look again though nothing changes.
    pub wake: Option<Duration>,
}

/// Who waits: FluxJobs and MiniClusters stand in one line.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Who {
    Job(String),
    MiniCluster(String),
    /// A MiniCluster that runs, for more brokers.
    Growth(String),
}

/// A FluxJob, and what it has come to.
pub(super) struct Candidate<'a> {
    pub(super) job: &'a Arc<FluxJob>,
    pub(super) uid: String,
    pub(super) stage: Stage<'a>,
    /// Where it starts, or did.
    pub(super) start: Start,
}

/// Takes a round. `claims` is what earlier ones worked out.
pub(crate) fn round(view: &View<'_>, claims: &mut Claims) -> Round {
    let candidates = candidates(view, claims);
    let mut round = Round::default();
    let Some(setup) = view.setup.filter(|setup| setup.metadata.deletion_timestamp.is_none()) else {
        let never = Overflow::default();
        let terms = view.terms(None, &never);
        match view.unreadable {
            None => round.jobs(view, &candidates, terms, &BTreeMap::new(), &BTreeMap::new(), NO_SETUP),
            Some(told) => {
                round.nothing_starts(view, &candidates, terms, told);
                // Those that were admitted before are not made either: their limits are in the FluxSetup.
                round.jobs.retain(|(_, step)| !matches!(step.then, Then::Create(_) | Then::Send(_)));
            }
        }
        return round;
    };
    round.ruled(view, &candidates, setup, claims);
    round
}

fn candidates<'a>(view: &View<'a>, claims: &mut Claims) -> Vec<Candidate<'a>> {
    let named = view.mini_clusters.iter().chain(view.left_alone);
    let by_name: BTreeMap<&str, &MiniCluster> =
        named.filter_map(|found| Some((found.metadata.name.as_deref()?, &**found))).collect();
    let alive: BTreeSet<&str> = view.jobs.iter().filter_map(|job| job.metadata.uid.as_deref()).collect();
    claims.retain(&alive);
    let bursts: BTreeMap<&str, &Burst> =
        view.bursts.iter().filter_map(|burst| Some((burst.metadata.name.as_deref()?, &**burst))).collect();
    let candidate = |job: &'a Arc<FluxJob>| {
        let found = job.metadata.name.as_deref().and_then(|name| by_name.get(name).copied());
        let uid = job.uid().unwrap_or_default();
        let stored = job.status.as_ref().and_then(Start::recorded);
        let start = stored.or_else(|| view.starts.get(&uid).cloned()).unwrap_or_default();
        let burst = bursts.get(names::sent_burst(&job.name_any()).as_str()).copied();
        let burst = match burst {
            Some(burst) if controller_uid(burst) != Some(uid.as_str()) => Err(burst),
            ours => Ok(ours),
        };
        let part = found.filter(|_| matches!(start, Start::Split(_))).and_then(|found| part_of(found, &bursts));
        let stage = job::stage(job, found, part, burst, claims);
        Candidate { job, uid, stage, start }
    };
    view.jobs.iter().map(candidate).collect()
}

/// The Burst of the other part of a FluxJob that was split, given its MiniCluster.
fn part_of<'a>(found: &MiniCluster, bursts: &BTreeMap<&str, &'a Burst>) -> Option<&'a Burst> {
    let name = found.name_any();
    let (slot, _) = found.spec.bursts(&name).next()?;
    let burst = bursts.get(names::burst_object(&name, &slot).as_str()).copied()?;
    (controller_uid(burst) == found.metadata.uid.as_deref()).then_some(burst)
}

impl Round {
    fn ruled(&mut self, view: &View<'_>, candidates: &[Candidate<'_>], setup: &Arc<FluxSetup>, claims: &mut Claims) {
        let spec = &setup.spec;
        let longest = spec.max_duration.map(|longest| longest.seconds);
        let terms = view.terms(longest, &spec.overflow);
        let quota = Requests::of_quota("spec.quota", &spec.quota);
        let (quota, grants) = match quota.and_then(|quota| Ok((quota, Grants::of(setup)?))) {
            Ok(both) => both,
            Err(sentence) => {
                let told = format!("nothing starts: FluxSetup {}: {sentence}", setup.name_any());
                self.nothing_starts(view, candidates, terms, &told);
                let statement = Statement::fails(ACTIVE, "InvalidQuota", sentence);
                // What runs, runs on; nobody is next.
                let Line { running, waiting, guests, .. } = classify(view, candidates, spec);
                let mut used = Requests::default();
                running.iter().for_each(|one| used += one.room);
                let standing = Standing { taken: guests, ..Standing::default() };
                let status = FluxSetupStatus {
                    peers: standing.usage(),
                    running: count(running.len()),
                    waiting: count(waiting.len()),
                    used: used.usage(),
                    ..FluxSetupStatus::default()
                };
                return self.tell(setup, status, statement, view.now);
            }
        };
        let rules = Rules { quota, order: spec.order, backfill: spec.backfill, longest };
        let Line { running, mut gangs, waiting, wanted, refused, passes, guests } = classify(view, candidates, spec);
        gangs.extend_from_slice(view.elsewhere);
        let known = gangs.len();
        self.start = passes;
        let away = on_their_way(view, candidates, &spec.overflow);
        let mut outlook = PlacementContext::new(view, spec, &wanted, gangs, away, claims);
        let decided = schedule(&rules, &running, &waiting, &mut outlook, view.now);
        let PlacementContext { chosen, bound, again, mut gangs, .. } = outlook;
        (self.gangs, self.wake) = (gangs.split_off(known), again);
        let starts: BTreeSet<&Who> = decided.start.iter().collect();
        let mut words: BTreeMap<&Who, String> = BTreeMap::new();
        let in_line = format!("it waits in line for room in FluxSetup {}", setup.name_any());
        for one in &waiting {
            words.insert(&one.key, in_line.clone());
        }
        for (who, why) in decided.never.iter().chain(&refused) {
            words.insert(who, why.clone());
        }
        let mut told = BTreeSet::new();
        for (who, lack) in &decided.unfit {
            let lack = if told.insert(lack) { lack } else { LIKE_ANOTHER };
            let what_to_do = "make it smaller, let it run on other nodes, or add some";
            words.insert(
                who,
                format!("the nodes could not hold it whatever else ends: {lack}: {what_to_do}. It holds up nobody, and is looked at again"),
            );
        }
        let mut next = String::new();
        if let Some((who, lack)) = &decided.head {
            words.insert(who, format!("it is next in line: {lack}"));
            let name = wanted.get(who).map(|(_, gang)| gang.name.as_str()).unwrap_or_default();
            next = match who {
                Who::Job(_) => format!("FluxJob {name}: {lack}"),
                Who::MiniCluster(_) => format!("MiniCluster {name}: {lack}"),
                Who::Growth(_) => format!("MiniCluster {name}, which grows: {lack}"),
            };
        }
        for (who, why) in &bound {
            if let Some(word) = words.get_mut(who) {
                *word = format!("{word}; it is not sent to a peer: {why}");
            }
        }
        let never: BTreeSet<&Who> = decided.never.iter().map(|(who, _)| who).collect();
        let outclassed: BTreeSet<&Who> = refused.iter().map(|(who, _)| who).collect();
        let unfit: BTreeSet<&Who> = decided.unfit.iter().map(|(who, _)| who).collect();
        let mut jobs: BTreeMap<String, Word> = BTreeMap::new();
        for (who, text) in words {
            match who {
                Who::Job(uid) => {
                    let word = match text {
                        text if never.contains(who) => Word::Refused(reason::NEVER_FITS, text),
                        text if outclassed.contains(who) => Word::Refused(reason::PRIORITY_REFUSED, text),
                        text if unfit.contains(who) => Word::WaitsForNodes(text),
                        text => Word::Waits(text),
                    };
                    jobs.insert(uid.clone(), word);
                }
                Who::MiniCluster(uid) | Who::Growth(uid) if !starts.contains(who) => {
                    self.told.insert(uid.clone(), text);
                }
                Who::MiniCluster(_) | Who::Growth(_) => {}
            }
        }
        let mut admitted = BTreeMap::new();
        for who in &decided.start {
            match who {
                Who::Job(uid) => {
                    let peer = chosen.get(who).cloned();
                    let start = match decided.parts.get(who) {
                        _ if decided.sent.contains(who) => Start::Sent(JobSent { peer, ..JobSent::default() }),
                        None => Start::Here,
                        Some(local) => {
                            let local = u32::try_from(*local).unwrap_or(0);
                            let all = wanted.get(who).map_or(0, |(_, gang)| gang.brokers);
                            let away = all.saturating_sub(local);
                            Start::Split(JobSplit { local, away, peer, ..JobSplit::default() })
                        }
                    };
                    admitted.insert(uid.clone(), start);
                }
                Who::MiniCluster(uid) => {
                    if let Some((Wanted::MiniCluster(found), _)) = wanted.get(who) {
                        self.start.push((uid.clone(), Reservation::of(found)));
                    }
                }
                Who::Growth(uid) => {
                    let of = waiting.iter().find(|one| one.key == *who);
                    let grown = of.and_then(|one| Some(running.get(one.grows?)?.room.brokers + one.room.brokers));
                    self.grow.extend(grown.map(|size| (uid.clone(), size)));
                }
            }
        }
        self.jobs(view, candidates, terms, &jobs, &admitted, &in_line);
        let standing = Standing { setup: setup.name_any(), open: decided.open, grants, taken: guests };
        let status = FluxSetupStatus {
            peers: standing.usage(),
            running: count(running.len() + decided.start.len() - decided.sent.len() - self.grow.len()),
            waiting: count(waiting.len() + refused.len() - decided.start.len()),
            used: decided.used.usage(),
            next,
            ..setup.status.clone().unwrap_or_default()
        };
        self.standing = Some(standing);
        self.tell(setup, status, stands(spec), view.now);
    }

    /// Nobody who waits starts, and no burst of a peer: all who wait are told this.
    fn nothing_starts(&mut self, view: &View<'_>, candidates: &[Candidate<'_>], terms: Terms<'_>, told: &str) {
        self.standing = Some(Standing { setup: flux_setup::NAME.to_owned(), ..Standing::default() });
        let asked = view.asked.iter().chain(view.growing.keys());
        self.told = asked.map(|uid| (uid.clone(), told.to_owned())).collect();
        self.jobs(view, candidates, terms, &BTreeMap::new(), &BTreeMap::new(), told);
    }

    fn jobs(
        &mut self,
        view: &View<'_>,
        candidates: &[Candidate<'_>],
        terms: Terms<'_>,
        words: &BTreeMap<String, Word>,
        admitted: &BTreeMap<String, Start>,
        otherwise: &str,
    ) {
        for Candidate { job, uid, stage, start } in candidates {
            if job.metadata.deletion_timestamp.is_some() {
                continue;
            }
            let granted = view.granted.contains_key(uid);
            let word = match (admitted.get(uid), words.get(uid)) {
                (Some(start), _) => Word::Starts(start.clone()),
                _ if granted => Word::Starts(start.clone()),
                (None, Some(word)) => word.clone(),
                (None, None) => Word::Waits(otherwise.to_owned()),
            };
            let step = job::step(job, stage, word, terms, view.now);
            let came_back = matches!(stage, Stage::Recalled(None, None));
            // It could neither be made nor sent.
            let aside = matches!(stage, Stage::LinesUp(_) | Stage::Sent(..)) && step.status.admitted.is_none();
            if granted && (came_back || aside) {
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

    fn tell(&mut self, setup: &Arc<FluxSetup>, status: FluxSetupStatus, statement: Statement, now: Timestamp) {
        let old = setup.status.clone().unwrap_or_default();
        let generation = setup.metadata.generation;
        let conditions = conditions::merged(&old.conditions, [statement], generation, now);
        let status = FluxSetupStatus { conditions, observed_generation: generation, ..status };
        if setup.status.as_ref() != Some(&status) {
            self.setup = Some((setup.clone(), status));
        }
    }
}

/// Whether all that a FluxSetup says is known here: a newer version may have written it.
fn stands(spec: &FluxSetupSpec) -> Statement {
    let order = if let Order::Unknown(word) = spec.order { Some(word) } else { None };
    let nodes = if let CheckNodes::Unknown(word) = spec.check_nodes { Some(word) } else { None };
    let policy = if let OverflowPolicy::Unknown(word) = spec.overflow.policy { Some(word) } else { None };
    let unknown = [("order", order, "Priority"), ("checkNodes", nodes, "Now"), ("overflow.policy", policy, "Never")];
    match unknown.into_iter().find_map(|(field, word, taken)| Some((field, word?, taken))) {
        None => Statement::holds(ACTIVE, "Counts", "the queue goes by it"),
        Some((field, word, taken)) => Statement::fails(
            ACTIVE,
            "Unsupported",
            format!(
                "spec.{field}: this version does not know {word}, and takes it as {taken}: upgrade Tributary, or write that"
            ),
        ),
    }
}

fn count(count: usize) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests;
