//! What FluxJobs claim while they stand in line: worked out once for each of their generations, not in every round.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use kube::ResourceExt;
use tributary_api::burst::Burst;
use tributary_api::flux_job::{FluxJob, JobReturn, JobSplit};
use tributary_api::flux_setup::Overflow;
use tributary_render::nodes::Gang;

use super::job;
use super::nodes::{NodeRules, gang_of};
use super::requests::Requests;

/// What a FluxJob takes once it starts.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Claim {
    pub room: Requests,
    /// Its brokers.
    pub gang: Gang,
    /// Where they may run.
    pub rules: NodeRules,
}

impl Claim {
    /// What its part here takes.
    pub(crate) fn local(&self, split: &JobSplit) -> Self {
        Self {
            room: self.room.of_brokers(split.local.into()),
            gang: Gang { brokers: split.local, ..self.gang.clone() },
            rules: self.rules.clone(),
        }
    }
}

/// The claims of a namespace, by UID of the FluxJob.
#[derive(Debug, Default)]
pub(crate) struct Claims(BTreeMap<String, Known>);

#[derive(Debug)]
struct Known {
    generation: Option<i64>,
    claim: Result<Arc<Claim>, String>,
    /// Its Burst if it were sent to a peer, once somebody wanted to know.
    sent: Option<(Sent, Result<Arc<Burst>, String>)>,
    /// Whether it can be split under these rules, and how many brokers have to be elsewhere then, once somebody wanted to know.
    splits: Option<(Overflow, Result<u32, String>)>,
}

/// What the Burst of a FluxJob is made of besides its spec: what it says of earlier times, and annotations.
type Sent = (Option<JobReturn>, Option<BTreeMap<String, String>>);

/// Keeps what was worked out of these FluxJobs. Most namespaces have none.
pub(super) fn keep(all: &mut BTreeMap<String, Claims>, namespace: &str, claims: Claims, jobs: &[Arc<FluxJob>]) {
    if !jobs.is_empty() {
        all.insert(namespace.to_owned(), claims);
    }
}

impl Claims {
    /// What a FluxJob claims.
    ///
    /// # Errors
    /// No MiniCluster can be made of it: the field that is wrong, and why.
    pub(crate) fn of(&mut self, job: &FluxJob) -> Result<Arc<Claim>, String> {
        let (uid, generation) = (job.uid().unwrap_or_default(), job.metadata.generation);
        if let Some(known) = self.0.get(&uid).filter(|known| known.generation == generation) {
            return known.claim.clone();
        }
        // How long it may take changes nothing of what it takes.
        let claim = job::mini_cluster(job, None).map(|made| {
            let gang = gang_of(&job.namespace().unwrap_or_default(), &job.name_any(), &made.spec);
            Arc::new(Claim { room: Requests::of_mini_cluster(&made.spec), gang, rules: NodeRules::of(&made.spec) })
        });
        self.0.insert(uid, Known { generation, claim: claim.clone(), sent: None, splits: None });
        claim
    }

    /// The Burst of a FluxJob if it were sent to a peer as a whole, made by `make` if that was not asked before.
    ///
    /// # Errors
    /// It cannot be sent, and why.
    pub(super) fn burst(
        &mut self,
        job: &FluxJob,
        make: impl FnOnce() -> Result<Burst, String>,
    ) -> Result<Arc<Burst>, String> {
        let Some(known) = self.known(job) else { return make().map(Arc::new) };
        let returned = job.status.as_ref().and_then(|status| status.returned.as_ref());
        let made_of = (returned, job.metadata.annotations.as_ref());
        match &known.sent {
            Some(((returned, annotations), made)) if (returned.as_ref(), annotations.as_ref()) == made_of => {
                made.clone()
            }
            _ => {
                let made_of = (made_of.0.cloned(), made_of.1.cloned());
                known.sent.insert((made_of, make().map(Arc::new))).1.clone()
            }
        }
    }

    /// How many brokers of a FluxJob have to be elsewhere if it is split under these rules, by `judge` if that was not asked
    /// before.
    ///
    /// # Errors
    /// It cannot, and why.
    pub(super) fn splits(
        &mut self,
        job: &FluxJob,
        overflow: &Overflow,
        judge: impl FnOnce() -> Result<u32, String>,
    ) -> Result<u32, String> {
        let Some(known) = self.known(job) else { return judge() };
        match &known.splits {
            Some((before, verdict)) if before == overflow => verdict.clone(),
            _ => known.splits.insert((overflow.clone(), judge())).1.clone(),
        }
    }

    /// What is known of a FluxJob as it is now.
    fn known(&mut self, job: &FluxJob) -> Option<&mut Known> {
        let uid = job.metadata.uid.as_deref().unwrap_or_default();
        self.0.get_mut(uid).filter(|known| known.generation == job.metadata.generation)
    }

    /// Forgets all others.
    pub(crate) fn retain(&mut self, alive: &BTreeSet<&str>) {
        self.0.retain(|uid, _| alive.contains(uid.as_str()));
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::testing::flux_job;

    #[test]
    fn a_burst_is_made_anew_only_of_what_has_changed() {
        let (mut claims, mut made) = (Claims::default(), 0);
        let mut job = flux_job(json!({}));
        let mut ask = |job: &FluxJob| {
            let _ = claims.of(job);
            let verdict = claims.burst(job, || {
                made += 1;
                Err(format!("no {made}"))
            });
            verdict.unwrap_err()
        };
        assert_eq!((ask(&job), ask(&job)), ("no 1".to_owned(), "no 1".to_owned()));
        job.status.get_or_insert_default().message = "it waits".into();
        assert_eq!(ask(&job), "no 1");
        job.status.get_or_insert_default().returned = Some(JobReturn::default());
        assert_eq!(ask(&job), "no 2");
        job.metadata.annotations = Some(BTreeMap::from([("tributary.dev/retry".to_owned(), "1".to_owned())]));
        assert_eq!(ask(&job), "no 3");
        job.metadata.generation = Some(2);
        assert_eq!((ask(&job), ask(&job)), ("no 4".to_owned(), "no 4".to_owned()));
        let mut judged = 0;
        for peers in [vec![], vec![], vec!["west".to_owned()]] {
            let overflow = Overflow { peers, ..Overflow::default() };
            let judge = || {
                judged += 1;
                Ok(0)
            };
            claims.splits(&job, &overflow, judge).unwrap();
        }
        assert_eq!(judged, 2, "once for each of its rules");
    }
}
