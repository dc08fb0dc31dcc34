//! What is counted of queues when somebody asks for the metrics.

use jiff::Timestamp;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use tributary_api::flux_job::{FluxJob, JobPhase};
use tributary_api::flux_setup::FluxSetup;
use tributary_api::labels::{condition, reason};
use tributary_api::minicluster::MiniCluster;
use tributary_clock::SharedClock;
use tributary_cluster::caches::Cache;
use tributary_cluster::conditions;
use tributary_cluster::fence::Fence;
use tributary_metrics::{Described, gauge, gauges};

/// Where a FluxJob is: its phase, but that those are `Held` that wait and cannot start as things are.
const STATES: [&str; 6] = ["Requested", "Waiting", "Held", "Ready", "Running", "Finished"];

const JOBS: Described = Described::gauge(
    "fluxjobs",
    &[("state", &STATES)],
    "FluxJobs of this cluster; held are those that could not start, also if all others ended, or that are suspended",
);
const QUEUED: Described = Described::gauge(
    "queued",
    &[("state", &["running", "waiting"])],
    "MiniClusters and FluxJobs of namespaces that have a FluxSetup, by what that says",
);
const OLDEST: Described = Described::gauge(
    "queued_longest_seconds",
    &[],
    "Seconds that the one has waited which waits longest for room in the queue of its namespace",
);

/// Looks at queues.
pub struct QueueFigures {
    pub(super) setups: Cache<FluxSetup>,
    pub(super) jobs: Cache<FluxJob>,
    pub(super) mini_clusters: Cache<MiniCluster>,
    pub(super) fence: Fence,
    pub(super) clock: SharedClock,
}

impl std::fmt::Debug for QueueFigures {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("QueueFigures")
    }
}

impl QueueFigures {
    /// What there is.
    pub const DESCRIBED: [Described; 3] = [JOBS, QUEUED, OLDEST];
}

impl Collector for QueueFigures {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> std::fmt::Result {
        // Caches of standbys hold the same objects: a sum over the agents counts each once.
        if self.fence.leading().is_none() {
            return Ok(());
        }
        let (jobs, mini_clusters) = (self.jobs.objects(), self.mini_clusters.objects());
        let mut counts = STATES.map(|word| (word, 0));
        for state in jobs.iter().map(|job| state(job)) {
            counts.iter_mut().filter(|(word, _)| *word == state).for_each(|(_, count)| *count += 1);
        }
        gauges(&mut encoder, &JOBS, counts)?;
        let setups = self.setups.objects();
        let said = || setups.iter().filter_map(|setup| setup.status.as_ref());
        let (running, waiting) = (said().map(|said| said.running), said().map(|said| said.waiting));
        let sum = |counts: &mut dyn Iterator<Item = u32>| counts.map(i64::from).sum();
        gauges(&mut encoder, &QUEUED, [("running", sum(&mut { running })), ("waiting", sum(&mut { waiting }))])?;
        let since = jobs.iter().filter_map(|job| job_waits_since(job));
        let since = since.chain(mini_clusters.iter().filter_map(|found| waits_since(found))).min();
        let waited = since.map_or(0, |since| self.clock.wall().duration_since(since).as_secs().max(0));
        gauge(&mut encoder, &OLDEST, waited)
    }
}

fn state(job: &FluxJob) -> &'static str {
    let Some(status) = &job.status else { return "Requested" };
    let fails = |one: &&str| conditions::find(&status.conditions, one).is_some_and(|one| one.status == "False");
    let cannot_start = conditions::find(&status.conditions, condition::ADMITTED)
        .is_some_and(|one| [reason::NODES_TOO_SMALL, reason::SUSPENDED].contains(&one.reason.as_str()));
    match status.phase {
        JobPhase::Requested => "Requested",
        JobPhase::Waiting if fails(&condition::VALID) || cannot_start => "Held",
        JobPhase::Waiting => "Waiting",
        JobPhase::Ready => "Ready",
        JobPhase::Running => "Running",
        JobPhase::Finished => "Finished",
        JobPhase::Unknown(_) => "Requested",
    }
}

fn job_waits_since(job: &FluxJob) -> Option<Timestamp> {
    let conditions = &job.status.as_ref()?.conditions;
    let admitted = conditions::find(conditions, condition::ADMITTED)?;
    // It waited for nothing while it could not stand in line.
    let valid = conditions::find(conditions, condition::VALID).map(|valid| valid.last_transition_time.0);
    (state(job) == "Waiting" && admitted.status == "False")
        .then(|| admitted.last_transition_time.0.max(valid.unwrap_or_default()))
}

/// Since when a MiniCluster waits for its Job. `Ready` is `False` also of one that has ended, was suspended or was not valid: it
/// waits since that is over.
fn waits_since(found: &MiniCluster) -> Option<Timestamp> {
    let conditions = &found.status.as_ref()?.conditions;
    let ready = conditions::find(conditions, condition::READY)?;
    let queued = ready.status == "False" && ready.reason == reason::QUEUED;
    let changed = [condition::VALID, condition::JOB_REQUESTED].map(|type_| conditions::find(conditions, type_));
    let changed = changed.into_iter().flatten().chain([ready]).map(|one| one.last_transition_time.0);
    changed.max().filter(|_| queued)
}

#[cfg(test)]
mod tests {
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
    use serde_json::json;
    use tributary_cluster::conditions::Statement;

    use super::*;
    use crate::testing::{at, object};

    fn condition(type_: &'static str, reason: &str, second: i64) -> Condition {
        conditions::merged(&[], [Statement::fails(type_, reason, "")], None, at(second)).remove(0)
    }

    #[test]
    fn who_cannot_start_is_held_and_only_who_waits_for_room_waits() {
        let job = |phase: &str, conditions: &[Condition]| -> FluxJob {
            object("a", 0, json!({"spec": {}, "status": {"phase": phase, "conditions": conditions}}))
        };
        for (phase, condition, expected) in [
            ("Waiting", condition("Admitted", "Waiting", 0), "Waiting"),
            ("Waiting", condition("Admitted", "NodesTooSmall", 0), "Held"),
            ("Waiting", condition("Admitted", "Suspended", 0), "Held"),
            ("Waiting", condition("Valid", "NeverFits", 0), "Held"),
            ("Running", condition("Admitted", "Waiting", 0), "Running"),
        ] {
            let job = job(phase, &[condition]);
            assert_eq!(state(&job), expected);
            assert_eq!(job_waits_since(&job).is_some(), expected == "Waiting", "{expected}");
        }
        for phase in ["Requested", "Waiting", "Ready", "Running", "Finished"] {
            assert!(STATES.contains(&state(&job(phase, &[]))), "{phase} is counted");
        }
        let mini_cluster = |reason: &str| -> MiniCluster {
            let conditions = [condition("Ready", reason, 7)];
            let status = json!({"size": 0, "selector": "", "jobid": "", "maximumSize": 0, "conditions": conditions});
            object("a", 0, json!({"spec": {}, "status": status}))
        };
        assert_eq!(waits_since(&mini_cluster("Queued")), Some(at(7)));
        assert_eq!(waits_since(&mini_cluster("Starting")), None);
        // The danger: it ended days ago, is started again, and has waited for days.
        for type_ in ["JobRequested", "Valid"] {
            let mut again = mini_cluster("Queued");
            again.status.as_mut().unwrap().conditions.push(condition(type_, "Again", 90));
            assert_eq!(waits_since(&again), Some(at(90)), "{type_}");
        }
    }
}
