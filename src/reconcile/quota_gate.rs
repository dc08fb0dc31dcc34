//! The port to the queue of a namespace and to bursting.

use jiff::Timestamp;
use tributary_api::flux_setup::Usage;
use tributary_api::hosted_burst::HostedBurst;
use tributary_api::minicluster::MiniCluster;

use super::allowance::Allowance;

/// Counts what MiniClusters take of the quota of their namespace, and knows which bursts are wanted here.
///
/// The decision about a MiniCluster asks it. A question that is asked puts a MiniCluster into its line.
pub trait QuotaGate: Send + Sync {
    /// Whether a MiniCluster may get a Job, or more brokers than its Job `has`.
    ///
    /// # Errors
    /// The sentence that says what it has to wait for. Its key is marked when that changes.
    fn may_start(&self, mini_cluster: &MiniCluster, has: Option<i32>, now: Timestamp) -> Result<(), String>;

    /// Whether the quota as a whole is large enough for a MiniCluster.
    ///
    /// # Errors
    /// The sentence that says what there is too little of.
    fn fits(&self, mini_cluster: &MiniCluster) -> Result<(), String>;

    /// What a MiniCluster holds, given UID and parallelism of its Job. It is in the status before anybody else gets what the
    /// MiniCluster gave up.
    fn reservation(&self, mini_cluster: &MiniCluster, job: Option<(&str, i32)>) -> Option<Reservation>;

    /// How long the Job of a MiniCluster may run that started at the first moment, or would start at the second; `None`: that
    /// is not known yet.
    fn allowance(&self, mini_cluster: &MiniCluster, started: Option<Timestamp>, now: Timestamp) -> Option<Allowance>;

    /// Whether brokers of a burst may be started here. Its lease may be over, and its ranks another cluster's, though nobody has
    /// ended it yet.
    fn keeps(&self, hosted: &HostedBurst) -> bool;

    /// A MiniCluster without a Job can have none: what it holds is free.
    fn give_back(&self, mini_cluster: &MiniCluster);

    /// Whether the FluxJob that made a MiniCluster knows how it ended, so that it may be deleted.
    fn is_told(&self, mini_cluster: &MiniCluster) -> bool;
}

/// What was given to a MiniCluster.
#[derive(Clone, Debug, PartialEq)]
pub struct Reservation {
    /// How much.
    pub usage: Usage,
    /// When its time began.
    pub began: Option<Timestamp>,
    /// For how many seconds, if there is a limit that counts.
    pub limit: Option<i64>,
}
