//! What FluxJobs claim while they stand in line: worked out once for each of their generations, not in every round.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use kube::ResourceExt;

use super::job;
use super::nodes::Gang;
use super::room::Room;
use crate::api::flux_job::{FluxJob, JobSplit};

/// What a FluxJob takes once it starts.
#[derive(Clone, Debug, PartialEq)]
pub struct Claim {
    /// All of it.
    pub room: Room,
    /// Its brokers.
    pub gang: Gang,
}

impl Claim {
    /// What its part here takes.
    pub fn local(&self, split: &JobSplit) -> Self {
        Self {
            room: self.room.of_brokers(split.local.into()),
            gang: Gang { brokers: split.local, ..self.gang.clone() },
        }
    }
}

/// The claims of a namespace, by UID of the FluxJob.
#[derive(Debug, Default)]
pub struct Claims(BTreeMap<String, Known>);

#[derive(Debug)]
struct Known {
    generation: Option<i64>,
    claim: Result<Arc<Claim>, String>,
}

impl Claims {
    /// What a FluxJob claims.
    ///
    /// # Errors
    /// No MiniCluster can be made of it: the field that is wrong, and why.
    pub fn of(&mut self, job: &FluxJob) -> Result<Arc<Claim>, String> {
        let (uid, generation) = (job.uid().unwrap_or_default(), job.metadata.generation);
        if let Some(known) = self.0.get(&uid).filter(|known| known.generation == generation) {
            return known.claim.clone();
        }
        // How long it may take changes nothing of what it takes.
        let claim = job::mini_cluster(job, None).map(|made| {
            let gang = Gang::of(&job.namespace().unwrap_or_default(), &job.name_any(), &made.spec);
            Arc::new(Claim { room: Room::of_mini_cluster(&made.spec), gang })
        });
        self.0.insert(uid, Known { generation, claim: claim.clone() });
        claim
    }

    /// Forgets all others.
    pub fn retain(&mut self, alive: &BTreeSet<&str>) {
        self.0.retain(|uid, _| alive.contains(uid.as_str()));
    }
}
