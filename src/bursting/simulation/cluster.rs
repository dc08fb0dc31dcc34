//! A cluster as a typed store: what an API server, its controllers and kubelets make of objects, in steps of a second.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use tributary_api::burst::{Burst, BurstStatus};
use tributary_api::hosted_burst::HostedBurst;
use tributary_api::labels;
use tributary_api::minicluster::{MiniCluster, MiniClusterStatus};
use tributary_api::peer::ClusterPeer;
use tributary_cluster::election::{claimed, term_before};
use tributary_contract::tunnel::TunnelKey;

use crate::contact::Contacts;
use crate::nodes::{Amounts, NodeView, PodView};
use crate::provider::grants::Few;
use crate::provider::lease::Before;
use crate::provider::ledger::SlotKey;
use crate::provider::materialize::Materials;
use crate::root::demand::decide::Seen;
use crate::root::plan::PlanChange;

/// How long an agent leads that cannot renew its Lease, in seconds.
pub(super) const LEADER_LEASE: u64 = 6;

/// A Job with its pods; it outlives its MiniCluster for a moment.
#[derive(Clone, Debug, Default)]
pub(super) struct Job {
    pub(super) owner: String,
    pub(super) instance: Option<Instance>,
    pub(super) pods: u32,
    pub(super) ready: u32,
    /// Since when its MiniCluster is gone.
    orphaned: Option<u64>,
}

/// What brokers run as, from their first second to their last.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Instance {
    pub(super) incarnation: String,
    /// Of the certificate.
    pub(super) digest: String,
    /// Whose burst it is.
    pub(super) burst: TunnelKey,
    /// They reach their lead through the agents.
    pub(super) tunnel: bool,
}

/// Pods that were told to end. Their Job may be gone.
#[derive(Clone, Debug)]
struct Leaving {
    slot: SlotKey,
    job: Job,
    until: u64,
}

/// How long pods live on, in seconds.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Going {
    /// Until the garbage collector comes to a Job whose MiniCluster is gone.
    pub(super) collected: u64,
    /// From then until the kubelet has ended them.
    pub(super) ended: u64,
}

/// The certificate of a hosted burst.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Secret {
    pub(super) owner: String,
    pub(super) digest: String,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Cluster {
    pub(super) name: String,
    counter: u64,
    pub(super) peers: BTreeMap<String, ClusterPeer>,
    pub(super) roots: BTreeMap<String, MiniCluster>,
    pub(super) bursts: BTreeMap<String, Burst>,
    pub(super) hosted: BTreeMap<SlotKey, HostedBurst>,
    pub(super) mini_clusters: BTreeMap<SlotKey, MiniCluster>,
    pub(super) secrets: BTreeMap<SlotKey, Secret>,
    pub(super) endpoints: BTreeMap<SlotKey, Vec<String>>,
    pub(super) jobs: BTreeMap<SlotKey, Job>,
    leaving: Vec<Leaving>,
    pub(super) going: Going,
    /// Since when its API server answers nobody.
    pub(super) away: Option<u64>,
    /// The Lease of its leader.
    lease: Lease,
    /// Terms know nothing of those before them: losses count from their own beginning.
    pub(super) forgets: bool,
    /// What was seen of the queue of its root.
    pub(super) seen: Option<Seen>,
    /// Writes since the beginning.
    pub(super) writes: u64,
    /// What its FluxSetup grants to bursts of peers together: brokers.
    pub(super) granted: Option<u32>,
    /// Not 0: the API server refuses one write in eight, by this seed.
    pub(super) faults: u64,
}

impl Cluster {
    pub(super) fn new(name: &str) -> Self {
        Self { name: name.into(), ..Self::default() }
    }

    pub(super) fn grants(&self) -> Few {
        Few { limit: self.granted, taken: self.hosted.values().map(|hosted| hosted.spec.max_size).sum() }
    }

    pub(super) fn uid(&mut self) -> String {
        self.counter += 1;
        format!("{}-{}", self.name, self.counter)
    }

    /// An agent comes to lead; what is on record of the time before.
    pub(super) fn begin_term(&mut self, wall: Timestamp) -> Before {
        self.lease = claimed(std::mem::take(&mut self.lease), "agent", Duration::from_secs(LEADER_LEASE), wall);
        match self.forgets {
            true => Before::default(),
            false => Before::of(term_before(&self.lease), self.peers.values(), self.hosted.values(), wall),
        }
    }

    /// The leader renews its Lease, and lets go of what was before once every loss is dated.
    pub(super) fn renew(&mut self, wall: Timestamp, contacts: &Contacts) {
        if self.away.is_some() {
            return;
        }
        let dated = |hosted: &HostedBurst| {
            let status = hosted.status.as_ref();
            let dated = status.is_some_and(|is| is.suspect_since.is_some() || is.draining_since.is_some());
            dated || contacts.has_heard(&hosted.spec.peer.as_str().into())
        };
        if self.hosted.values().all(dated) {
            self.lease.metadata.annotations.get_or_insert_default().remove(labels::TERM_BEFORE);
        }
        self.lease.spec.get_or_insert_default().renew_time = Some(MicroTime(wall));
    }

    /// Whether the next write is refused.
    pub(super) fn refuses(&mut self) -> bool {
        if self.away.is_some() {
            return true;
        }
        // Xorshift: 0 stays 0.
        self.faults ^= self.faults << 13;
        self.faults ^= self.faults >> 7;
        self.faults ^= self.faults << 17;
        self.faults != 0 && self.faults.is_multiple_of(8)
    }

    pub(super) fn nodes(&self) -> BTreeMap<String, NodeView> {
        let node = NodeView {
            schedulable: true,
            allocatable: Amounts { milli_cores: 64_000, memory: 1 << 36, gpus: 0 },
            ..NodeView::default()
        };
        [("n1".to_owned(), node.clone()), ("n2".to_owned(), node)].into()
    }

    pub(super) fn pods(&self) -> Vec<PodView> {
        let of_job = |(namespace, name): &SlotKey, job: &Job, terminating| {
            let pod = |index| PodView {
                namespace: namespace.clone(),
                name: format!("{name}-{index}"),
                job: Some(name.clone()),
                index: Some(index),
                node: Some("n1".into()),
                running: true,
                terminating,
                ..PodView::default()
            };
            (0..job.pods).map(pod).collect::<Vec<_>>()
        };
        let kept = self.jobs.iter().flat_map(|(slot, job)| of_job(slot, job, false));
        kept.chain(self.leaving.iter().flat_map(|one| of_job(&one.slot, &one.job, true))).collect()
    }

    /// What brokers run as here, by slot: to their last second.
    pub(super) fn running(&self) -> impl Iterator<Item = (&SlotKey, &Instance)> {
        let kept = self.jobs.iter().filter(|(_, job)| job.pods > 0);
        let all = kept.chain(self.leaving.iter().map(|one| (&one.slot, &one.job)));
        all.map(|(slot, job)| (slot, job.instance.as_ref().expect("pods run as something")))
    }

    /// A root's bursts as planned.
    pub(super) fn plan(&mut self, change: PlanChange) {
        match change {
            PlanChange::Apply(burst) => {
                let name = burst.metadata.name.clone().unwrap();
                let Some(stored) = self.bursts.get_mut(&name) else {
                    let mut burst = *burst;
                    burst.metadata.uid = Some(self.uid());
                    burst.metadata.generation = Some(1);
                    burst.status = None;
                    self.writes += 1;
                    self.bursts.insert(name, burst);
                    return;
                };
                if stored.spec != burst.spec {
                    stored.spec = burst.spec;
                    stored.metadata.generation = stored.metadata.generation.map(|generation| generation + 1);
                    self.writes += 1;
                }
            }
            PlanChange::Delete { name, .. } => {
                self.bursts.remove(&name);
                self.writes += 1;
            }
        }
    }

    pub(super) fn burst_status(&mut self, name: &str, status: BurstStatus) {
        let burst = self.bursts.get_mut(name).unwrap();
        if burst.status.as_ref() != Some(&status) {
            burst.status = Some(status);
            self.writes += 1;
        }
    }

    /// Creates a HostedBurst whose name is free.
    pub(super) fn host(&mut self, mut hosted: HostedBurst) {
        let key = (hosted.metadata.namespace.clone().unwrap(), hosted.metadata.name.clone().unwrap());
        assert!(!self.hosted.contains_key(&key), "created over another one");
        hosted.metadata.uid = Some(self.uid());
        hosted.metadata.generation = Some(1);
        self.writes += 1;
        self.hosted.insert(key, hosted);
    }

    pub(super) fn materialize(&mut self, key: &SlotKey, materials: Materials) {
        let addresses: Vec<String> =
            materials.slices.iter().flat_map(|slice| slice.endpoints[0].addresses.clone()).collect();
        if self.endpoints.insert(key.clone(), addresses.clone()) != Some(addresses) {
            self.writes += 1;
        }
        let Some(wanted) = materials.mini_cluster else { return };
        let uid = self.uid();
        let stored = self.mini_clusters.entry(key.clone()).or_insert_with(|| {
            let mut new = wanted.clone();
            new.metadata.uid = Some(uid);
            new.spec.size = None;
            new
        });
        let owner = |object: &MiniCluster| object.metadata.owner_references.as_ref().unwrap()[0].uid.clone();
        assert_eq!(owner(stored), owner(&wanted), "adopted what belongs to somebody else");
        if stored.spec != wanted.spec {
            stored.spec = wanted.spec;
            self.writes += 1;
        }
    }

    pub(super) fn delete_mini_cluster(&mut self, key: &SlotKey, uid: &str) {
        if self.mini_clusters.get(key).is_some_and(|found| found.metadata.uid.as_deref() == Some(uid)) {
            self.mini_clusters.remove(key);
            self.writes += 1;
        }
    }

    pub(super) fn delete_hosted(&mut self, key: &SlotKey, uid: &str) {
        if self.hosted.get(key).is_some_and(|found| found.metadata.uid.as_deref() == Some(uid)) {
            self.hosted.remove(key);
            self.writes += 1;
        }
    }

    /// One second of the kubelets, and of the Job controller and the garbage collector, as far as the API server answers. If
    /// the cluster is `led`, its agent's MiniCluster controller works as well.
    pub(super) fn tick(&mut self, secs: u64, led: bool) {
        self.leaving.retain(|pods| pods.until > secs);
        if self.away.is_some() {
            return;
        }
        let live: Vec<String> = self.hosted.values().filter_map(|hosted| hosted.metadata.uid.clone()).collect();
        self.secrets.retain(|_, secret| live.contains(&secret.owner));
        self.endpoints.retain(|key, _| self.hosted.contains_key(key));
        self.mini_clusters.retain(|_, found| {
            let owner = &found.metadata.owner_references.as_ref().unwrap()[0].uid;
            live.contains(owner)
        });
        for (key, mini_cluster) in self.mini_clusters.iter_mut().filter(|_| led) {
            let uid = mini_cluster.metadata.uid.clone().unwrap();
            let wanted = u32::try_from(mini_cluster.spec.size.unwrap_or(1)).unwrap();
            let digest = self.secrets.get(key).map(|secret| secret.digest.clone());
            // The MiniCluster controller makes no Job without the certificate.
            if !self.jobs.contains_key(key) && digest.is_none() {
                mini_cluster.status = None;
                continue;
            }
            let instance = self.hosted.get(key).map(|hosted| Instance {
                incarnation: hosted.spec.root.incarnation.clone(),
                digest: digest.unwrap_or_default(),
                burst: (hosted.spec.peer.as_str().into(), hosted.spec.burst_uid.as_str().into()),
                tunnel: hosted.spec.tunnel,
            });
            let job = self.jobs.entry(key.clone()).or_insert_with(|| Job { owner: uid.clone(), ..Job::default() });
            if job.owner != uid {
                continue;
            }
            job.instance = job.instance.clone().or(instance);
            job.ready = job.pods.min(wanted);
            job.pods = wanted;
            let ready = i32::try_from(job.ready).unwrap();
            mini_cluster.status = Some(MiniClusterStatus { ready: Some(ready), ..MiniClusterStatus::default() });
        }
        let owners: Vec<String> = self.mini_clusters.values().filter_map(|found| found.metadata.uid.clone()).collect();
        let (going, leaving) = (self.going, &mut self.leaving);
        // A Job without owner loses its pods in one second and goes in the next.
        self.jobs.retain(|slot, job| {
            if owners.contains(&job.owner) {
                return true;
            }
            let since = *job.orphaned.get_or_insert(secs);
            if secs - since < going.collected {
                return true;
            }
            let had = job.pods > 0;
            if had && going.ended > 0 {
                leaving.push(Leaving { slot: slot.clone(), job: job.clone(), until: secs + going.ended });
            }
            job.pods = 0;
            had
        });
    }
}
