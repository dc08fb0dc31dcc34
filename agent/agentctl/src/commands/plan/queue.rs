//! What the queue of a namespace would say to a MiniCluster or a FluxJob, as far as its FluxSetup shows. Pure.

use kube::ResourceExt;
use tributary::api::flux_job::FluxJob;
use tributary::api::flux_setup::{FluxSetup, OverflowPolicy, Quota, Usage};
use tributary::api::minicluster::{Amount, MiniClusterSpec};
use tributary::queue::limits;
use tributary::queue::room::Room;

use super::report::{ChargeRow, Problem, QueuePlan};

/// The FluxSetup that counts, among those of one namespace: the oldest.
pub(super) fn counts(setups: Vec<FluxSetup>) -> Option<FluxSetup> {
    let alive = setups.into_iter().filter(|setup| setup.metadata.deletion_timestamp.is_none());
    alive.min_by_key(|setup| (setup.creation_timestamp(), setup.name_any()))
}

/// A FluxJob of a namespace whose administrator grants no room at all.
pub(super) fn nobody_grants(namespace: &str) -> Problem {
    let message =
        format!("FluxJobs wait for a FluxSetup, and namespace {namespace} has none: its administrator makes one");
    Problem::new("metadata.namespace", "NoFluxSetup", message)
}

/// Where it would stand. `taken`: what the manifest before it takes; what this one takes is added.
pub(super) fn stands(
    spec: &MiniClusterSpec,
    of_job: Option<&FluxJob>,
    setup: &FluxSetup,
    taken: &mut Room,
) -> (QueuePlan, Vec<Problem>) {
    let name = setup.name_any();
    let status = setup.status.clone().unwrap_or_default();
    let mut plan = QueuePlan { setup: name.clone(), waiting: status.waiting, ..QueuePlan::default() };
    let mut problems = Vec::new();
    let whole = match Room::of_quota("spec.quota", &setup.spec.quota) {
        Ok(whole) => whole,
        Err(wrong) => {
            problems.push(Problem::new("metadata.namespace", "InvalidFluxSetup", format!("FluxSetup {name}: {wrong}")));
            plan.summary = format!("nothing starts: FluxSetup {name} is wrong");
            return (plan, problems);
        }
    };
    let need = Room::of_mini_cluster(spec);
    let mut left = whole;
    left -= Room::of_quota("status.used", &quota_of(&status.used)).unwrap_or_default();
    left -= *taken;
    plan.charges = charges(&name, &setup.spec.quota, &left, &need);
    if let Some(longest) = setup.spec.max_duration_seconds {
        let (field, limit) = match of_job {
            Some(of_job) => ("spec.timeLimitSeconds", limits::of_job(of_job, Some(longest))),
            None => ("spec.deadlineSeconds", limits::of_mini_cluster(spec)),
        };
        if limits::too_long(limit, Some(longest)).is_some() {
            let message = format!("FluxSetup {name} lets nothing run longer than {longest} s: write {longest} or less");
            problems.push(Problem::new(field, "TooLong", message));
        }
    }
    let may_overflow =
        of_job.is_some_and(|job| job.spec.allow_burst) && setup.spec.overflow.policy != OverflowPolicy::Never;
    let behind = match status.waiting {
        0 => String::new(),
        waiting => format!(", with {waiting} others: priority says who is first"),
    };
    let elsewhere = if may_overflow { "; a part of it may overflow to a peer before" } else { "" };
    plan.summary = match (whole.first_lack(&need), left.first_lack(&need)) {
        (Some(lack), _) if may_overflow => {
            format!("the quota as a whole is too small ({lack}): it starts only if a peer takes a part of it")
        }
        (Some(lack), _) => {
            let message = format!("the quota of FluxSetup {name} is too small for it, whoever waits: {lack}");
            problems.push(Problem::new("spec.size", "NeverFits", message));
            "never starts".to_owned()
        }
        (None, Some(lack)) => format!("stands in line{behind}: {lack}{elsewhere}"),
        (None, None) if status.waiting > 0 => {
            format!("there is room, and it stands in line{behind}; it may go ahead where that delays nobody")
        }
        (None, None) => {
            plan.starts = problems.is_empty();
            "starts at once: there is room, and nobody waits".to_owned()
        }
    };
    *taken += need;
    (plan, problems)
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
fn charges(name: &str, limits: &Quota, left: &Room, need: &Room) -> Vec<ChargeRow> {
    let words = |room: &Room| {
        let least = |amount: i64| amount.max(0);
        Room {
            mini_clusters: least(room.mini_clusters),
            brokers: least(room.brokers),
            milli_cores: least(room.milli_cores),
            memory: least(room.memory),
            gpus: least(room.gpus),
            ..Room::default()
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
    let row = |(_, resource, left, needed, fits): (bool, &str, String, String, bool)| ChargeRow {
        quota: format!("FluxSetup {name}"),
        resource: resource.to_owned(),
        left,
        needed,
        fits,
    };
    rows.into_iter().filter(|(limited, ..)| *limited).map(row).collect()
}
