//! The queue and bursting, as the MiniCluster controller asks them.

use std::sync::Arc;

use jiff::Timestamp;
use tributary::api::hosted_burst::HostedBurst;
use tributary::api::minicluster::MiniCluster;
use tributary::bursting::Bursting;
use tributary::queue::admission::{Admission, Limits, ReservationStatus};
use tributary::reconcile::allowance::Allowance;
use tributary::reconcile::quota_gate::{QuotaGate, Reservation};

/// Both.
pub(crate) struct Gate {
    /// Counts what MiniClusters take.
    pub admission: Admission,
    /// Knows which bursts are wanted here.
    pub bursting: Arc<Bursting>,
}

impl QuotaGate for Gate {
    fn may_start(&self, mini_cluster: &MiniCluster, has: Option<i32>, now: Timestamp) -> Result<(), String> {
        match has {
            None => self.admission.ask(mini_cluster, now),
            Some(has) => self.admission.ask_more(mini_cluster, has, now),
        }
    }

    fn fits(&self, mini_cluster: &MiniCluster) -> Result<(), String> {
        self.admission.fits(mini_cluster)
    }

    fn reservation(&self, mini_cluster: &MiniCluster, job: Option<(&str, i32)>) -> Option<Reservation> {
        let ReservationStatus { usage, began, limit } = self.admission.holds(mini_cluster, job)?;
        Some(Reservation { usage, began, limit })
    }

    fn allowance(&self, mini_cluster: &MiniCluster, started: Option<Timestamp>, now: Timestamp) -> Option<Allowance> {
        let Limits { longest, term, used } = self.admission.allowance(mini_cluster, started, now)?;
        Some(Allowance { longest, term, used })
    }

    fn keeps(&self, hosted: &HostedBurst) -> bool {
        self.bursting.keeps(hosted)
    }

    fn give_back(&self, mini_cluster: &MiniCluster) {
        self.admission.give_back(mini_cluster);
    }

    fn is_told(&self, mini_cluster: &MiniCluster) -> bool {
        self.admission.is_told(mini_cluster)
    }
}
