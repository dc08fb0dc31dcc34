//! The same things in the words of the contract and in those of the API.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use serde::Deserialize as _;
use tributary_contract::{Check, Finding, LeadAddress, Outcome, Phase, PhaseTimes, RunReport};

use crate::hosted_burst::{BurstPhase, BurstRun, LeadEndpoint, PhaseTimestamps, PreflightFinding};

macro_rules! same_words {
    ($($phase:ident),*) => {
        impl From<Phase> for BurstPhase {
            fn from(phase: Phase) -> Self {
                match phase { $(Phase::$phase => Self::$phase),* }
            }
        }
        impl From<BurstPhase> for Phase {
            fn from(phase: BurstPhase) -> Self {
                match phase {
                    $(BurstPhase::$phase => Self::$phase,)*
                    // It has the slot, for all that is known.
                    BurstPhase::Unknown(_) => Self::Provisioning,
                }
            }
        }
    };
}

same_words!(
    Pending,
    Offered,
    Accepted,
    Provisioning,
    Joining,
    Ready,
    Draining,
    Released,
    Rejected,
    Evicted,
    Lost,
    Spent,
    Asleep,
    Finished
);

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

impl From<LeadAddress> for LeadEndpoint {
    fn from(lead: LeadAddress) -> Self {
        Self { address: lead.address, port: lead.port }
    }
}

impl From<LeadEndpoint> for LeadAddress {
    fn from(lead: LeadEndpoint) -> Self {
        Self { address: lead.address, port: lead.port }
    }
}

impl From<PhaseTimes> for PhaseTimestamps {
    fn from(times: PhaseTimes) -> Self {
        let PhaseTimes { planned, offered, accepted, provisioned, warmed, started, ready, released } = times;
        let all = [planned, offered, accepted, provisioned, warmed, started, ready, released];
        let [planned, offered, accepted, provisioned, warmed, started, ready, released] =
            all.map(|at| at.map(MicroTime));
        Self { planned, offered, accepted, provisioned, warmed, started, ready, released }
    }
}

impl From<PhaseTimestamps> for PhaseTimes {
    fn from(times: PhaseTimestamps) -> Self {
        let PhaseTimestamps { planned, offered, accepted, provisioned, warmed, started, ready, released } = times;
        let all = [planned, offered, accepted, provisioned, warmed, started, ready, released];
        let [planned, offered, accepted, provisioned, warmed, started, ready, released] =
            all.map(|at| at.map(|MicroTime(at)| at));
        Self { planned, offered, accepted, provisioned, warmed, started, ready, released }
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
