//! The same things in the words of the contract and in those of the API.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use serde::Deserialize as _;
use tributary_contract::{Check, Finding, Outcome, PhaseTimes, RunReport, UseReport};

use crate::budget::Spent;
use crate::hosted_burst::{BurstRun, PhaseTimestamps, PreflightFinding};

impl From<RunReport> for BurstRun {
    fn from(run: RunReport) -> Self {
        let RunReport { namespace, mini_cluster, started, succeeded, exit_code, reason, message, logs_gone } = run;
        Self { namespace, mini_cluster, started, succeeded, exit_code, reason, message, logs_gone, ended: None }
    }
}

impl From<BurstRun> for RunReport {
    fn from(run: BurstRun) -> Self {
        let BurstRun { namespace, mini_cluster, started, succeeded, exit_code, reason, message, logs_gone, ended: _ } =
            run;
        Self { namespace, mini_cluster, started, succeeded, exit_code, reason, message, logs_gone }
    }
}

impl From<UseReport> for Spent {
    fn from(used: UseReport) -> Self {
        let UseReport { seconds, broker_seconds, milli_core_seconds, gpu_seconds } = used;
        let whole = |amount: u64| i64::try_from(amount).unwrap_or(i64::MAX);
        Self {
            seconds: seconds.into(),
            broker_seconds: whole(broker_seconds),
            milli_core_seconds: whole(milli_core_seconds),
            gpu_seconds: whole(gpu_seconds),
            ..Self::default()
        }
    }
}

impl From<&Spent> for UseReport {
    fn from(spent: &Spent) -> Self {
        let whole = |amount: i64| u64::try_from(amount).unwrap_or(0);
        Self {
            seconds: u32::try_from(spent.seconds).unwrap_or(u32::MAX),
            broker_seconds: whole(spent.broker_seconds),
            milli_core_seconds: whole(spent.milli_core_seconds),
            gpu_seconds: whole(spent.gpu_seconds),
        }
    }
}

impl From<PhaseTimes> for PhaseTimestamps {
    fn from(times: PhaseTimes) -> Self {
        let PhaseTimes { planned, offered, accepted, provisioned, warmed, scheduled, started, ready, released } = times;
        let all = [planned, offered, accepted, provisioned, warmed, scheduled, started, ready, released];
        let [planned, offered, accepted, provisioned, warmed, scheduled, started, ready, released] =
            all.map(|at| at.map(MicroTime));
        Self { planned, offered, accepted, provisioned, warmed, scheduled, started, ready, released }
    }
}

impl From<PhaseTimestamps> for PhaseTimes {
    fn from(times: PhaseTimestamps) -> Self {
        let PhaseTimestamps { planned, offered, accepted, provisioned, warmed, scheduled, started, ready, released } =
            times;
        let all = [planned, offered, accepted, provisioned, warmed, scheduled, started, ready, released];
        let [planned, offered, accepted, provisioned, warmed, scheduled, started, ready, released] =
            all.map(|at| at.map(|MicroTime(at)| at));
        Self { planned, offered, accepted, provisioned, warmed, scheduled, started, ready, released }
    }
}

impl From<Finding> for PreflightFinding {
    fn from(finding: Finding) -> Self {
        let Finding { check, outcome, message, hint } = finding;
        Self { check: check.as_str().to_owned(), outcome: outcome.as_str().to_owned(), message, hint }
    }
}

impl From<PreflightFinding> for Finding {
    fn from(finding: PreflightFinding) -> Self {
        let PreflightFinding { check, outcome, message, hint } = finding;
        let word = |text: &str| serde_json::Value::String(text.to_owned());
        let check = serde_json::from_value(word(&check)).unwrap_or(Check::Other(check));
        Self { check, outcome: Outcome::deserialize(word(&outcome)).unwrap_or_default(), message, hint }
    }
}
