//! What the queue of a namespace would say to a MiniCluster or a FluxJob, as far as its FluxSetup shows. Pure.

use jiff::Timestamp;
use kube::ResourceExt;
use tributary::api::flux_job::FluxJob;
use tributary::api::flux_setup::{FluxSetup, OverflowPolicy, Quota, Usage};
use tributary::api::labels::reason;
use tributary::api::minicluster::{Amount, MiniCluster, MiniClusterSpec};
use tributary::queue::limits;
use tributary::queue::priorities::Priorities;
use tributary::queue::requests::Requests;
use tributary::queue::schedule::{Away, NodesWithoutEnd, Rules, Running, Schedule, Waiting, schedule};

use super::report::{ChargeRow, Problem, QueuePlan};

/// A FluxJob of a namespace whose administrator grants no room at all.
pub(super) fn nobody_grants(namespace: &str) -> Problem {
    let message =
        format!("FluxJobs wait for a FluxSetup, and namespace {namespace} has none: its administrator makes one");
    Problem::new("metadata.namespace", "NoFluxSetup", message)
}

/// Who would stand in line: a MiniCluster, or the FluxJob that makes it.
pub(super) struct Applicant {
    /// Which of the manifest.
    at: usize,
    name: String,
    room: Requests,
    spec: MiniClusterSpec,
    /// Seconds it takes at most, where nothing may run longer than the queue allows.
    limit: Option<i64>,
    job: Option<FluxJob>,
    /// It has no problem of its own, and so gets as far as the queue.
    stands: bool,
}

impl Applicant {
    /// `stands`: it has no problem of its own.
    pub(super) fn of(at: usize, object: &MiniCluster, job: Option<&FluxJob>, stands: bool) -> Self {
        Self {
            at,
            name: object.name_any(),
            room: Requests::of_mini_cluster(&object.spec),
            spec: object.spec.clone(),
            limit: limits::of_mini_cluster(&object.spec),
            job: job.cloned(),
            stands,
        }
    }

    /// Its priority. Nobody is ahead by it where PriorityClasses could not be read.
    fn priority(&self, priorities: Option<&Priorities>, setup: &FluxSetup) -> Result<i32, Problem> {
        let Some(all) = priorities else { return Ok(0) };
        let value = match &self.job {
            Some(job) => all.of_job(job, &setup.spec),
            None => all.of_mini_cluster(&self.spec, &setup.spec),
        };
        value.map_err(|refused| Problem::new(refused.field, reason::PRIORITY_REFUSED, refused.why))
    }

    fn limit(&self, longest: Option<i64>) -> Option<i64> {
        self.job.as_ref().map_or(self.limit, |job| limits::of_job(job, longest))
    }

    /// What of it a peer may take.
    fn overflows(&self, setup: &FluxSetup) -> Option<&'static str> {
        let job = self.job.as_ref().filter(|job| job.spec.allow_burst)?;
        match setup.spec.overflow.policy {
            OverflowPolicy::Split => (job.spec.size > 1).then_some("a part of it"),
            OverflowPolicy::Whole => Some("all of it"),
            OverflowPolicy::Never | OverflowPolicy::Unknown(_) => None,
        }
    }
}

/// Where all of them would stand, applied one after the other in this order, by the queue's own schedule. What runs is known
/// as a sum, and of what waits how much it is.
pub(super) fn stand(
    setup: &FluxSetup,
    priorities: Option<&Priorities>,
    applicants: &[Applicant],
) -> Vec<(usize, QueuePlan, Vec<Problem>)> {
    let name = setup.name_any();
    let waiting = setup.status.as_ref().map_or(0, |status| status.waiting);
    let whole = match Requests::of_quota("spec.quota", &setup.spec.quota) {
        Ok(whole) => whole,
        Err(wrong) => {
            let answer = |one: &Applicant| {
                let problem =
                    Problem::new("metadata.namespace", "InvalidFluxSetup", format!("FluxSetup {name}: {wrong}"));
                let summary = format!("nothing starts: FluxSetup {name} is wrong");
                (one.at, QueuePlan { setup: name.clone(), waiting, summary, ..QueuePlan::default() }, vec![problem])
            };
            return applicants.iter().map(answer).collect();
        }
    };
    let used = setup.status.as_ref().map(|status| quota_of(&status.used)).unwrap_or_default();
    let used = Requests::of_quota("status.used", &used).unwrap_or_default();
    let decided = decide(setup, priorities, whole, used, applicants);
    let answer = |one: &Applicant| {
        let mut left = whole;
        left -= used;
        // Whoever starts before it has what it takes.
        for ahead in decided.start.iter().take_while(|at| **at != one.at) {
            applicants.iter().filter(|other| other.at == *ahead).for_each(|other| left -= other.room);
        }
        let plan = QueuePlan {
            setup: name.clone(),
            waiting,
            charges: charges(&name, &setup.spec.quota, &left, &one.room),
            ..QueuePlan::default()
        };
        let head = decided.head.as_ref().and_then(|(at, _)| applicants.iter().find(|other| other.at == *at));
        let (mut plan, mut problems) =
            answered(plan, setup, one, (&whole, &left), head.filter(|head| head.at != one.at), &decided);
        if let Err(problem) = one.priority(priorities, setup) {
            problems.push(problem);
            "never starts".clone_into(&mut plan.summary);
        }
        (one.at, plan, problems)
    };
    applicants.iter().map(answer).collect()
}

/// Who starts. Nodes and peers are not looked at: what a peer takes is said to be up to it.
fn decide(
    setup: &FluxSetup,
    priorities: Option<&Priorities>,
    quota: Requests,
    used: Requests,
    applicants: &[Applicant],
) -> Schedule<usize> {
    let (spec, now) = (&setup.spec, Timestamp::UNIX_EPOCH);
    let longest = spec.max_duration.map(|longest| longest.seconds);
    let rules = Rules { quota, order: spec.order, backfill: spec.backfill, longest };
    let running = [Running { room: used, since: now, until: None }];
    let waiting = |one: &Applicant| {
        Some(Waiting {
            key: one.at,
            room: one.room,
            priority: one.priority(priorities, setup).ok()?,
            since: now,
            turn: format!("{:08}", one.at),
            limit: one.limit(rules.longest),
            away: Away::Nowhere,
            grows: None,
        })
    };
    let waiting: Vec<_> = applicants.iter().filter(|one| one.stands).filter_map(waiting).collect();
    schedule(&rules, &running, &waiting, &mut NodesWithoutEnd, now)
}

/// What one is told. `rooms`: the whole quota, and what is left of it.
fn answered(
    mut plan: QueuePlan,
    setup: &FluxSetup,
    one: &Applicant,
    (whole, left): (&Requests, &Requests),
    head: Option<&Applicant>,
    decided: &Schedule<usize>,
) -> (QueuePlan, Vec<Problem>) {
    let (lack, overflows) = (whole.first_lack(&one.room), one.overflows(setup));
    let never_fits = lack.as_ref().filter(|_| overflows.is_none()).map(|lack| {
        let message = format!("the quota of FluxSetup {} is too small for it, whoever waits: {lack}", setup.name_any());
        Problem::new("spec.size", "NeverFits", message)
    });
    let problems: Vec<Problem> = too_long(setup, one).into_iter().chain(never_fits).collect();
    let has_room = decided.start.contains(&one.at);
    let stands = one.stands && problems.is_empty();
    plan.starts = stands && lack.is_none() && has_room && plan.waiting == 0;
    plan.summary = match (lack, overflows) {
        (Some(lack), Some(what)) => {
            format!("the quota as a whole is too small ({lack}): it starts only if a peer takes {what}")
        }
        _ if !stands => "never starts".to_owned(),
        _ => place(plan.waiting, has_room, left.first_lack(&one.room), head.map(|head| head.name.as_str()), overflows),
    };
    (plan, problems)
}

fn too_long(setup: &FluxSetup, one: &Applicant) -> Option<Problem> {
    let longest = setup.spec.max_duration?;
    limits::too_long(one.limit(Some(longest.seconds)), Some(longest.seconds))?;
    // A MiniCluster says seconds.
    let (field, most) = match &one.job {
        Some(_) => ("spec.timeLimit", longest.to_string()),
        None => ("spec.deadlineSeconds", longest.seconds.to_string()),
    };
    let name = setup.name_any();
    let message = format!("FluxSetup {name} lets nothing run longer than {longest}: write {most} or less");
    Some(Problem::new(field, "TooLong", message))
}

/// Where one stands that starts some time. `lack`: of what is left; `head`: who is first in line; `overflows`: what of it.
fn place(waiting: u32, has_room: bool, lack: Option<String>, head: Option<&str>, overflows: Option<&str>) -> String {
    let behind = match waiting {
        0 => String::new(),
        waiting => format!(", with {waiting} others: priority says who is first"),
    };
    let elsewhere = overflows.map(|what| format!("; {what} may overflow to a peer before")).unwrap_or_default();
    match (lack, head) {
        _ if has_room && waiting > 0 => {
            format!("there is room, and it stands in line{behind}; it may go ahead where that delays nobody")
        }
        (_, Some(head)) if has_room => {
            format!("starts at once: there is room, and {head}, which waits, is not delayed")
        }
        (_, None) if has_room => "starts at once: there is room, and nobody waits".to_owned(),
        (Some(lack), _) => format!("stands in line{behind}: {lack}{elsewhere}"),
        (None, Some(head)) => format!("stands in line behind {head}{behind}: it would delay who is first{elsewhere}"),
        (None, None) => format!("stands in line{behind}: it would delay who is first{elsewhere}"),
    }
}

/// What is used, in the words in which a quota is written.
fn quota_of(used: &Usage) -> Quota {
    let count = |count: i64| Some(u32::try_from(count).unwrap_or(0));
    let amount = |text: &str| Some(Amount::Text(if text.is_empty() { "0" } else { text }.to_owned()));
    Quota {
        mini_clusters: count(used.mini_clusters),
        brokers: count(used.brokers),
        cpu: amount(&used.cpu),
        memory: amount(&used.memory),
        gpus: count(used.gpus),
    }
}

/// Of what is limited: what is left, and what this takes.
fn charges(name: &str, limits: &Quota, left: &Requests, need: &Requests) -> Vec<ChargeRow> {
    let words = |room: &Requests| {
        let least = |amount: i64| amount.max(0);
        Requests {
            mini_clusters: least(room.mini_clusters),
            brokers: least(room.brokers),
            milli_cores: least(room.milli_cores),
            memory: least(room.memory),
            gpus: least(room.gpus),
            ..Requests::default()
        }
        .usage()
    };
    let (has, takes) = (words(left), words(need));
    let count = |one: &i64| one.to_string();
    let rows = [
        (
            limits.mini_clusters.is_some(),
            "miniClusters",
            count(&has.mini_clusters),
            count(&takes.mini_clusters),
            need.mini_clusters <= left.mini_clusters,
        ),
        (limits.brokers.is_some(), "brokers", count(&has.brokers), count(&takes.brokers), need.brokers <= left.brokers),
        (limits.cpu.is_some(), "cpu", has.cpu.clone(), takes.cpu.clone(), need.milli_cores <= left.milli_cores),
        (limits.memory.is_some(), "memory", has.memory.clone(), takes.memory.clone(), need.memory <= left.memory),
        (limits.gpus.is_some(), "gpus", count(&has.gpus), count(&takes.gpus), need.gpus <= left.gpus),
    ];
    let charge = |(limited, resource, left, needed, fits): (bool, &str, String, String, bool)| {
        limited.then(|| ChargeRow::new(format!("FluxSetup {name}"), resource, left, needed, fits))
    };
    rows.into_iter().filter_map(charge).collect()
}
