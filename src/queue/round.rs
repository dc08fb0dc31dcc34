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

use super::admission::Look;
use super::claims::Claims;
use super::controller::Ports;
use super::hosted_usage::{Grants, Reserved, Standing};
use super::job::{self, JobStep, Stage, Terms, Then, Word};
use super::limits;
use super::line::{Line, Wanted, classify};
use super::overflow::Start;
use super::placement_context::{PlacementContext, on_their_way};
use super::priorities::Priorities;
use super::requests::Requests;
use super::reservations::Reservation;
use super::schedule::{Rules, Schedule, schedule};

/// What FluxJobs are told where nobody has made room.
const NO_SETUP: &str = "this namespace has no FluxSetup yet, so no FluxJob starts: its administrator makes one";

/// In place of the figures, for all but the first with the same lack: they change with each node, and each change writes a
/// status. So does a name of the first.
const LIKE_ANOTHER: &str = "for the same reason as one before it in line, whose message has the figures";

/// All that a round looks at.
#[derive(Clone, Copy)]
pub(crate) struct View<'a> {
    /// The namespace.
    pub seen: &'a Namespace,
    /// Bursts of peers that it is about to host, by name.
    pub reserved: &'a BTreeMap<String, Reserved>,
    /// The brokers that other namespaces let in lately: they get the nodes first.
    pub elsewhere: &'a [Gang],
    /// Who knows nodes and peers.
    pub ports: &'a Ports,
    /// When this leader's term began.
    pub began: Timestamp,
}

impl<'a> View<'a> {
    fn terms(&self, longest: Option<i64>, overflow: &'a Overflow) -> Terms<'a> {
        let View { seen, ports, began, .. } = *self;
        Terms { longest, overflow, sender: &ports.sender, cluster_peers: &seen.cluster_peers, began }
    }
}

/// A namespace, at one moment.
#[derive(Default)]
pub struct Namespace {
    /// The moment.
    pub(crate) now: Timestamp,
    /// Its FluxSetup.
    pub(crate) setup: Option<Arc<FluxSetup>>,
    /// Why its FluxSetup was never read, if it exists and cannot be read.
    pub(crate) unreadable: Option<String>,
    /// PriorityClasses of the cluster.
    pub(crate) priorities: Priorities,
    /// Its FluxJobs.
    pub(crate) jobs: Vec<Arc<FluxJob>>,
    /// MiniClusters that are left to other controllers: they have names, and take nothing.
    pub(crate) left_alone: Vec<Arc<MiniCluster>>,
    /// Bursts of peers that it hosts.
    pub(crate) hosted: Vec<Arc<HostedBurst>>,
    /// Bursts of FluxJobs that were sent, and of MiniClusters.
    pub(crate) bursts: Vec<Arc<Burst>>,
    /// The peers that are known.
    pub(crate) cluster_peers: Vec<Arc<ClusterPeer>>,
    /// Its MiniClusters, and who was let in.
    pub(crate) look: Look,
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
    let (candidates, seen) = (candidates(view, claims), view.seen);
    let mut round = Round::default();
    let Some(setup) = seen.setup.as_ref().filter(|setup| setup.metadata.deletion_timestamp.is_none()) else {
        let never = Overflow::default();
        let terms = view.terms(None, &never);
        match &seen.unreadable {
            None => round.jobs(view, &candidates, terms, &BTreeMap::new(), NO_SETUP),
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
    let Namespace { jobs, bursts, look, left_alone, .. } = view.seen;
    let named = look.mini_clusters.iter().chain(left_alone);
    let by_name: BTreeMap<&str, &MiniCluster> =
        named.filter_map(|found| Some((found.metadata.name.as_deref()?, &**found))).collect();
    let alive: BTreeSet<&str> = jobs.iter().filter_map(|job| job.metadata.uid.as_deref()).collect();
    claims.retain(&alive);
    let bursts: BTreeMap<&str, &Burst> =
        bursts.iter().filter_map(|burst| Some((burst.metadata.name.as_deref()?, &**burst))).collect();
    let candidate = |job: &'a Arc<FluxJob>| {
        let found = job.metadata.name.as_deref().and_then(|name| by_name.get(name).copied());
        let uid = job.uid().unwrap_or_default();
        let stored = job.status.as_ref().and_then(Start::recorded);
        let start = stored.or_else(|| look.starts.get(&uid).cloned()).unwrap_or_default();
        let burst = bursts.get(names::sent_burst(&job.name_any()).as_str()).copied();
        let burst = match burst {
            Some(burst) if controller_uid(burst) != Some(uid.as_str()) => Err(burst),
            ours => Ok(ours),
        };
        let part = found.filter(|_| matches!(start, Start::Split(_))).and_then(|found| part_of(found, &bursts));
        let stage = job::stage(job, found, part, burst, claims);
        Candidate { job, uid, stage, start }
    };
    jobs.iter().map(candidate).collect()
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
        let (spec, now) = (&setup.spec, view.seen.now);
        let longest = limits::longest(spec);
        let terms = view.terms(longest, &spec.overflow);
        let quota = Requests::of_quota("spec.quota", &spec.quota);
        let (quota, grants) = match quota.and_then(|quota| Ok((quota, Grants::of(setup)?))) {
            Ok(both) => both,
            Err(sentence) => return self.invalid_quota(view, candidates, setup, terms, sentence),
        };
        let rules = Rules { quota, order: spec.order, backfill: spec.backfill, longest };
        let mut line = classify(view, candidates, spec);
        let mut gangs = std::mem::take(&mut line.gangs);
        gangs.extend_from_slice(view.elsewhere);
        let known = gangs.len();
        self.start = std::mem::take(&mut line.passes);
        let away = on_their_way(view, candidates, &spec.overflow);
        let mut outlook = PlacementContext::new(view, spec, &line.wanted, gangs, away, claims);
        let decided = schedule(&rules, &line.running, &line.waiting, &mut outlook, now);
        let PlacementContext { chosen, bound, again, mut gangs, .. } = outlook;
        (self.gangs, self.wake) = (gangs.split_off(known), again);
        let in_line = format!("it waits in line for room in FluxSetup {}", setup.name_any());
        let next = next(&line, &decided);
        let mut words = words(&line, &decided, &bound, &in_line);
        self.admitted(&line, &decided, &chosen, &mut words);
        let mut jobs = BTreeMap::new();
        for (who, mut word) in words {
            match who {
                Who::Job(uid) => drop(jobs.insert(uid.clone(), word)),
                Who::MiniCluster(uid) | Who::Growth(uid) => {
                    self.told.extend(word.text_mut().map(|text| (uid.clone(), std::mem::take(text))));
                }
            }
        }
        self.jobs(view, candidates, terms, &jobs, &in_line);
        let Line { running, waiting, refused, guests, .. } = line;
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
        self.tell(setup, status, stands(spec), now);
    }

    /// What runs, runs on; nobody is next.
    fn invalid_quota(
        &mut self,
        view: &View<'_>,
        candidates: &[Candidate<'_>],
        setup: &Arc<FluxSetup>,
        terms: Terms<'_>,
        sentence: String,
    ) {
        let told = format!("nothing starts: FluxSetup {}: {sentence}", setup.name_any());
        self.nothing_starts(view, candidates, terms, &told);
        let Line { running, waiting, guests, .. } = classify(view, candidates, &setup.spec);
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
        self.tell(setup, status, Statement::fails(ACTIVE, "InvalidQuota", sentence), view.seen.now);
    }

    /// Lets in those that start: a FluxJob by its word, a MiniCluster without one.
    fn admitted<'a>(
        &mut self,
        line: &Line<'_>,
        decided: &'a Schedule<Who>,
        chosen: &BTreeMap<Who, String>,
        words: &mut BTreeMap<&'a Who, Word>,
    ) {
        for who in &decided.start {
            words.remove(who);
            match who {
                Who::Job(_) => {
                    let peer = chosen.get(who).cloned();
                    let start = match decided.parts.get(who) {
                        _ if decided.sent.contains(who) => Start::Sent(JobSent { peer, ..JobSent::default() }),
                        None => Start::Here,
                        Some(local) => {
                            let local = u32::try_from(*local).unwrap_or(0);
                            let all = line.wanted.get(who).map_or(0, |(_, gang)| gang.brokers);
                            let away = all.saturating_sub(local);
                            Start::Split(JobSplit { local, away, peer, ..JobSplit::default() })
                        }
                    };
                    words.insert(who, Word::Starts(start));
                }
                Who::MiniCluster(uid) => {
                    if let Some((Wanted::MiniCluster(found), _)) = line.wanted.get(who) {
                        self.start.push((uid.clone(), Reservation::of(found)));
                    }
                }
                Who::Growth(uid) => {
                    let of = line.waiting.iter().find(|one| one.key == *who);
                    let grown = of.and_then(|one| Some(line.running.get(one.grows?)?.room.brokers + one.room.brokers));
                    self.grow.extend(grown.map(|size| (uid.clone(), size)));
                }
            }
        }
    }

    /// Nobody who waits starts, and no burst of a peer: all who wait are told this.
    fn nothing_starts(&mut self, view: &View<'_>, candidates: &[Candidate<'_>], terms: Terms<'_>, told: &str) {
        self.standing = Some(Standing { setup: flux_setup::NAME.to_owned(), ..Standing::default() });
        let Look { asked, growing, .. } = &view.seen.look;
        let asked = asked.iter().chain(growing.keys());
        self.told = asked.map(|uid| (uid.clone(), told.to_owned())).collect();
        self.jobs(view, candidates, terms, &BTreeMap::new(), told);
    }

    fn jobs(
        &mut self,
        view: &View<'_>,
        candidates: &[Candidate<'_>],
        terms: Terms<'_>,
        words: &BTreeMap<String, Word>,
        otherwise: &str,
    ) {
        for Candidate { job, uid, stage, start } in candidates {
            if job.metadata.deletion_timestamp.is_some() {
                continue;
            }
            let granted = view.seen.look.granted.contains_key(uid);
            let word = match words.get(uid) {
                Some(starts @ Word::Starts(_)) => starts.clone(),
                _ if granted => Word::Starts(start.clone()),
                Some(word) => word.clone(),
                None => Word::Waits(otherwise.to_owned()),
            };
            let step = job::step(job, stage, word, terms, view.seen.now);
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

/// What each of those in line is told unless it starts.
fn words<'a>(
    line: &'a Line<'_>,
    decided: &'a Schedule<Who>,
    bound: &BTreeMap<Who, String>,
    in_line: &str,
) -> BTreeMap<&'a Who, Word> {
    let waits = line.waiting.iter().map(|one| (&one.key, Word::Waits(in_line.to_owned())));
    let mut words: BTreeMap<&Who, Word> = waits.collect();
    for (who, why) in &decided.never {
        words.insert(who, Word::Refused(reason::NEVER_FITS, why.clone()));
    }
    for (who, why) in &line.refused {
        words.insert(who, Word::Refused(reason::PRIORITY_REFUSED, why.clone()));
    }
    let mut told = BTreeSet::new();
    for (who, lack) in &decided.unfit {
        let lack = if told.insert(lack) { lack } else { LIKE_ANOTHER };
        let what_to_do = "make it smaller, let it run on other nodes, or add some";
        let text = format!(
            "the nodes could not hold it whatever else ends: {lack}: {what_to_do}. It holds up nobody, and is looked at again"
        );
        words.insert(who, Word::WaitsForNodes(text));
    }
    if let Some((who, lack)) = &decided.head {
        words.insert(who, Word::Waits(format!("it is next in line: {lack}")));
    }
    for (who, why) in bound {
        if let Some(text) = words.get_mut(who).and_then(Word::text_mut) {
            *text = format!("{text}; it is not sent to a peer: {why}");
        }
    }
    words
}

/// Who is next, and what it waits for.
fn next(line: &Line<'_>, decided: &Schedule<Who>) -> String {
    let Some((who, lack)) = &decided.head else { return String::new() };
    let name = line.wanted.get(who).map(|(_, gang)| gang.name.as_str()).unwrap_or_default();
    match who {
        Who::Job(_) => format!("FluxJob {name}: {lack}"),
        Who::MiniCluster(_) => format!("MiniCluster {name}: {lack}"),
        Who::Growth(_) => format!("MiniCluster {name}, which grows: {lack}"),
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
