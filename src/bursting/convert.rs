//! The same things in the words of the contract and in those of the API.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use crate::api::hosted_burst::{BurstPhase, LeadEndpoint, PhaseTimestamps};
use crate::contract::{LeadAddress, Phase, PhaseTimes};

macro_rules! same_words {
    ($($phase:ident),*) => {
        impl From<Phase> for BurstPhase {
            fn from(phase: Phase) -> Self {
                match phase { $(Phase::$phase => Self::$phase),* }
            }
        }
        impl From<BurstPhase> for Phase {
            fn from(phase: BurstPhase) -> Self {
                match phase { $(BurstPhase::$phase => Self::$phase),* }
            }
        }
    };
}

same_words!(Pending, Offered, Accepted, Provisioning, Joining, Ready, Draining, Released, Rejected, Evicted, Lost);

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
        let PhaseTimes { accepted, provisioned, ready, released } = times;
        let [accepted, provisioned, ready, released] = [accepted, provisioned, ready, released].map(|at| at.map(Time));
        Self { accepted, provisioned, ready, released }
    }
}

impl From<PhaseTimestamps> for PhaseTimes {
    fn from(times: PhaseTimestamps) -> Self {
        let PhaseTimestamps { accepted, provisioned, ready, released } = times;
        let [accepted, provisioned, ready, released] =
            [accepted, provisioned, ready, released].map(|at| at.map(|Time(at)| at));
        Self { accepted, provisioned, ready, released }
    }
}
