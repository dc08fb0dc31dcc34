//! How long runs take at most, by what is written of them. Pure.

use serde_json::Value;
use tributary_api::duration::Lasting;
use tributary_api::flux_job::FluxJob;
use tributary_api::flux_setup::FluxSetupSpec;
use tributary_api::minicluster::{DEFAULT_DEADLINE_SECONDS, MiniClusterSpec, within_count};

/// Seconds after which the Job of a MiniCluster is ended; `None`: never.
pub fn of_mini_cluster(spec: &MiniClusterSpec) -> Option<i64> {
    spec.deadline()
}

/// Seconds a FluxJob takes at most: its own limit, else that of the MiniCluster it brings, else the longest its namespace
/// allows.
pub fn of_job(job: &FluxJob, longest: Option<i64>) -> Option<i64> {
    let brought = job.spec.mini_cluster.get("deadlineSeconds").and_then(Value::as_i64);
    job.spec.time_limit.map(|limit| limit.seconds).or(brought.and_then(within_count)).or(longest)
}

/// Seconds that anything in a namespace takes at most.
pub(crate) fn longest(setup: &FluxSetupSpec) -> Option<i64> {
    setup.max_duration.map(|longest| longest.seconds)
}

/// By when others may plan on an end: not by the limit that each MiniCluster has that names none, about a year. The API server
/// writes it, and it tells nobody anything.
pub(crate) fn foreseen(limit: Option<i64>) -> Option<i64> {
    limit.filter(|limit| *limit < DEFAULT_DEADLINE_SECONDS)
}

/// The shorter of two limits; `None` is none.
pub(crate) fn shorter(one: Option<i64>, other: Option<i64>) -> Option<i64> {
    one.into_iter().chain(other).min()
}

/// Why what has this limit may not run where nothing may run longer than `longest`.
pub fn too_long(limit: Option<i64>, longest: Option<i64>) -> Option<String> {
    let longest = longest?;
    if limit.is_some_and(|limit| limit <= longest) {
        return None;
    }
    let most = Lasting::of_seconds(longest);
    Some(match foreseen(limit).map(Lasting::of_seconds) {
        None => format!("runs here must have a time limit of at most {most}"),
        Some(limit) => format!("its time limit is {limit}; at most {most} is allowed here"),
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn deadline(seconds: impl Into<Option<i64>>) -> Option<i64> {
        of_mini_cluster(&MiniClusterSpec { deadline_seconds: seconds.into(), ..MiniClusterSpec::default() })
    }

    #[test]
    fn no_deadline_is_no_limit_and_what_nobody_wrote_is_nothing_to_plan_on() {
        assert_eq!((deadline(0), deadline(600), deadline(i64::MAX)), (None, Some(600), None));
        for unwritten in [deadline(None), deadline(DEFAULT_DEADLINE_SECONDS)] {
            assert_eq!((unwritten, foreseen(unwritten)), (Some(DEFAULT_DEADLINE_SECONDS), None));
        }
        assert_eq!(foreseen(deadline(600)), Some(600));
    }

    #[test]
    fn a_job_has_its_own_limit_else_what_it_brings_else_the_longest() {
        for (spec, longest, limit) in [
            (json!({"timeLimit": "1m", "miniCluster": {"deadlineSeconds": 600}}), Some(3600), Some(60)),
            (json!({"miniCluster": {"deadlineSeconds": 600}}), Some(3600), Some(600)),
            (json!({"miniCluster": {"deadlineSeconds": 600}}), None, Some(600)),
            (json!({"miniCluster": {"deadlineSeconds": 7200}}), Some(3600), Some(7200)),
            (json!({"miniCluster": {"deadlineSeconds": 0}}), Some(3600), Some(3600)),
            (json!({"miniCluster": {"deadlineSeconds": 0}}), None, None),
            (json!({"miniCluster": {"deadlineSeconds": i64::MAX}}), Some(3600), Some(3600)),
            (json!({"miniCluster": {"deadlineSeconds": i64::MAX}}), None, None),
            (json!({}), Some(3600), Some(3600)),
            (json!({}), None, None),
        ] {
            let job = FluxJob::new("lammps", serde_json::from_value(spec.clone()).unwrap());
            assert_eq!(of_job(&job, longest), limit, "{spec}, {longest:?}");
        }
    }

    #[test]
    fn nothing_runs_longer_than_is_allowed_and_what_has_no_limit_is_told_to_write_one() {
        let told = |limit, longest| too_long(limit, Some(longest)).unwrap_or_default();
        assert_eq!(told(Some(600), 600), "");
        assert_eq!(told(Some(601), 600), "its time limit is 10m1s; at most 10m is allowed here");
        for none in [deadline(0), deadline(None), None] {
            assert_eq!(told(none, 600), "runs here must have a time limit of at most 10m");
        }
        assert_eq!(told(deadline(None), DEFAULT_DEADLINE_SECONDS), "", "it ends before that");
        assert_eq!(too_long(None, None), None);
    }
}
