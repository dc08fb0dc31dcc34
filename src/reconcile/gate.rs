//! The port to the queue of a namespace.

use std::fmt;
use std::sync::Arc;

use jiff::Timestamp;

use crate::api::flux_setup::Usage;
use crate::api::minicluster::MiniCluster;

/// Whether a MiniCluster may have what it asks for. An error is the sentence that says what it has to wait for.
pub type Asks = dyn Fn(&MiniCluster, Option<i32>, Timestamp) -> Result<(), String> + Send + Sync;

/// What a MiniCluster holds, given UID and parallelism of its Job.
pub type Holds = dyn Fn(&MiniCluster, Option<(&str, i32)>) -> Option<Usage> + Send + Sync;

/// How many seconds a MiniCluster may run at most, where its namespace has a limit.
pub type Longest = dyn Fn(&MiniCluster) -> Option<i64> + Send + Sync;

/// Whoever counts what MiniClusters take.
pub struct Gate {
    /// Asked before a MiniCluster gets a Job, and before a running one gets more brokers than it has: so many.
    pub asks: Arc<Asks>,
    /// Asked whenever a status is written: what a MiniCluster holds is told there before anybody else gets what it gave up.
    pub holds: Arc<Holds>,
    /// Asked before a running one gets more time than it has.
    pub longest: Arc<Longest>,
}

impl fmt::Debug for Gate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gate").finish_non_exhaustive()
    }
}
