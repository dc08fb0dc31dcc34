//! The same things in the words of the contract and in those of the API.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use serde::Deserialize as _;
use tributary_contract::{Check, Finding, Outcome, PhaseTimes, RunReport};

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
