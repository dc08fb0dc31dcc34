//! The ports to the queue of a namespace and to bursting.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use kube::ResourceExt;
use tributary_api::flux_setup::Usage;
use tributary_api::hosted_burst::HostedBurst;
use tributary_api::labels;
use tributary_api::minicluster::MiniCluster;
use tributary_cluster::worker::Outcome;

use super::allowance::Allowance;
use super::decide::Decision;
use super::dereference::Known;

/// Whether a MiniCluster may have what it asks for. An error is the sentence that says what it has to wait for.
pub type Asks = dyn Fn(&MiniCluster, Option<i32>, Timestamp) -> Result<(), String> + Send + Sync;

/// What a MiniCluster holds, given UID and parallelism of its Job.
pub type Holds = dyn Fn(&MiniCluster, Option<(&str, i32)>) -> Option<Held> + Send + Sync;

/// How long the Job of a MiniCluster may run that started at the first moment, or would start at the second; `None`: that is not
/// known yet.
pub type Allowances = dyn Fn(&MiniCluster, Option<Timestamp>, Timestamp) -> Option<Allowance> + Send + Sync;

/// Whether brokers of a burst may be started here.
pub type Keeps = dyn Fn(&HostedBurst) -> bool + Send + Sync;

/// What was given to a MiniCluster.
#[derive(Clone, Debug, PartialEq)]
pub struct Held {
    /// How much.
    pub usage: Usage,
    /// When its time began.
    pub began: Option<Timestamp>,
    /// For how many seconds, if there is a limit that counts.
    pub limit: Option<i64>,
}

/// Whoever counts what MiniClusters take, and knows whether bursts are still wanted.
pub struct Gate {
    /// Asked before a MiniCluster gets a Job, and before a running one gets more brokers than it has: so many.
    pub asks: Arc<Asks>,
    /// Asked whenever a status is written: what a MiniCluster holds is told there before anybody else gets what it gave up.
    pub holds: Arc<Holds>,
    /// Asked before one gets a Job, and before a running one gets more time than it has.
    pub allowances: Arc<Allowances>,
    /// Asked before the MiniCluster of a burst gets a Job: its lease may be over, and its ranks another cluster's, though
    /// nobody has ended it yet.
    pub keeps: Arc<Keeps>,
    /// Told when a MiniCluster without a Job can have none: what it holds is free.
    pub gives_back: Arc<dyn Fn(&MiniCluster) + Send + Sync>,
    /// Asked before a MiniCluster that has ended is deleted: whether whoever made it knows how it ended.
    pub is_told: Arc<dyn Fn(&MiniCluster) -> bool + Send + Sync>,
}

/// Why a MiniCluster of a burst gets no Job before its burst was looked at.
const UNDECIDED: &str = "BurstUndecided";

/// How often it is asked whether the burst goes on.
const UNDECIDED_RETRY: Duration = Duration::from_secs(1);

impl Gate {
    /// What a MiniCluster does that may not get a Job now, and when it is looked at again.
    pub fn holds_back(&self, known: &Known, now: Timestamp) -> Option<(Decision, Outcome)> {
        match &known.hosted {
            Some(hosted) if (self.keeps)(hosted) => None,
            Some(hosted) => {
                let sentence = format!("whether HostedBurst {} goes on is not decided yet", hosted.name_any());
                Some((Decision::waits(UNDECIDED, sentence), Outcome::After(UNDECIDED_RETRY)))
            }
            // Its key is marked when that changes.
            None => (self.asks)(&known.mini_cluster, None, now)
                .err()
                .map(|sentence| (Decision::waits(labels::reason::QUEUED, sentence), Outcome::Done)),
        }
    }

    /// Gives a decision the deadline that its instance has by the queue.
    pub fn limit(&self, known: &Known, decision: &mut Decision, now: Timestamp) {
        let started = known.job.facts().and_then(|facts| facts.started);
        let allowance = match known.hosted {
            None => (self.allowances)(&known.mini_cluster, started, now),
            // Bursts of peers have the time that their roots have.
            Some(_) => Some(Allowance::default()),
        };
        decision.keep_to(known, allowance);
    }
}

impl fmt::Debug for Gate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gate").finish_non_exhaustive()
    }
}
