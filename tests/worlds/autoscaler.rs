//! What stands for an autoscaler: nodes for pods that are too large for those there are. It goes by pods that wait, as
//! cluster-autoscaler and Karpenter do; and by ProvisioningRequests as cluster-autoscaler does: pods that use the nodes of one
//! bring none.

use std::collections::BTreeMap;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Node, Pod, PodSpec, PodTemplate};
use kube::ResourceExt as _;
use kube::api::DeleteParams;
use serde_json::{Value, json};
use tributary::api::provisioning_request::condition::{ACCEPTED, BOOKING_EXPIRED, FAILED, PROVISIONED};
use tributary::api::provisioning_request::{CONSUME, ProvisioningRequest};
use tributary::clock::Mono;

use crate::cluster::{Cluster, lives, node_object, put};

/// Cores of the nodes that are there from the beginning.
const THERE: u64 = 16;

/// Nodes that are large enough, come soon, and are as many as are needed: their cores, how many at most, and how long they
/// take.
pub const ENOUGH: (u64, usize, Duration) = (64, 40, Duration::from_secs(20));

/// How long a node is empty before it goes.
const IDLE: Duration = Duration::from_secs(30);

/// How long nodes are kept for whoever asked for them.
pub const BOOKED: Duration = Duration::from_secs(120);

/// After so long a request is looked at again for which there were no nodes.
const AGAIN: Duration = Duration::from_secs(10);

pub struct Autoscaler {
    /// Cores of each node that comes.
    pub cores: u64,
    /// Nodes that it may have at a time.
    pub most: usize,
    /// From its order until a node is there.
    pub takes: Duration,
    /// Most nodes that it ever had.
    pub had: usize,
    ordered: Vec<Mono>,
    /// Cores of each, and when it had a pod last.
    nodes: BTreeMap<String, (u64, Mono)>,
    made: u8,
    /// By UID of a request: when it was looked at, or provisioned.
    asked: BTreeMap<String, Mono>,
}

/// Where a pod may go.
pub enum Place {
    /// It fits on the nodes that are there from the beginning.
    Anywhere,
    On(String),
    /// `known`: that is in its status.
    Nowhere {
        known: bool,
    },
}

/// One that adds as many as are needed.
impl Default for Autoscaler {
    fn default() -> Self {
        Self::new(ENOUGH.0, ENOUGH.1, ENOUGH.2)
    }
}

impl Autoscaler {
    pub fn new(cores: u64, most: usize, takes: Duration) -> Self {
        Self {
            cores,
            most,
            takes,
            had: 0,
            ordered: Vec::new(),
            nodes: BTreeMap::new(),
            made: 10,
            asked: BTreeMap::new(),
        }
    }

    pub fn place(&self, pod: &Pod, pods: &[Pod]) -> Place {
        let wanted = cores_of(pod);
        if wanted <= THERE {
            return Place::Anywhere;
        }
        let taken =
            |node: &str| pods.iter().filter(|pod| lives(pod) && node_of(pod) == Some(node)).map(cores_of).sum::<u64>();
        match self.nodes.iter().find(|(node, (cores, _))| taken(node) + wanted <= *cores) {
            Some((node, _)) => Place::On(node.clone()),
            None => Place::Nowhere { known: is_unschedulable(pod) },
        }
    }

    /// From now on, other nodes come, or not so many, or later.
    pub fn change(&mut self, (cores, most, takes): (u64, usize, Duration)) {
        (self.cores, self.most, self.takes) = (cores, most, takes);
    }

    /// So many of the nodes that were ordered do not come.
    pub fn lose(&mut self, nodes: usize) {
        self.ordered.truncate(self.ordered.len().saturating_sub(nodes));
    }

    /// Whether there are none of its nodes.
    pub fn has_none(&self) -> bool {
        self.nodes.is_empty()
    }

    /// Orders nodes, adds those that were, and removes the empty; whether something happens by itself.
    pub fn step(&mut self, cluster: &Cluster) -> bool {
        let now = cluster.clock.mono();
        let due = self.ordered.iter().filter(|at| **at <= now).count();
        self.ordered.retain(|at| *at > now);
        for _ in 0..due {
            self.made += 1;
            let mut node = node_object(cluster.number, self.made, cluster.clock.wall());
            for kind in ["allocatable", "capacity"] {
                node["status"][kind]["cpu"] = json!(self.cores.to_string());
            }
            self.nodes.insert(node["metadata"]["name"].as_str().unwrap().to_owned(), (self.cores, now));
            put::<Node>(&cluster.server, node);
        }
        let pods = cluster.pods();
        for (node, (_, used)) in &mut self.nodes {
            if pods.iter().any(|pod| lives(pod) && node_of(pod) == Some(node)) {
                *used = now;
            }
        }
        let idle = |used: &Mono| now.saturating_since(*used) >= IDLE;
        self.nodes.iter().filter(|(_, (_, used))| idle(used)).for_each(|(node, _)| {
            drop(cluster.server.delete::<Node>("", node, &DeleteParams::default()));
        });
        self.nodes.retain(|_, (_, used)| !idle(used));
        let waits = |pod: &&Pod| lives(pod) && is_unschedulable(pod) && node_of(pod).is_none() && !uses_request(pod);
        let waiting = pods.iter().filter(waits).count();
        // Those that came a moment ago are for them.
        let empty = self.nodes.values().filter(|(_, used)| *used != now).count() + due;
        let asked = self.answer(cluster, now, empty);
        while self.ordered.len() + empty < waiting && self.ordered.len() + self.nodes.len() < self.most {
            self.ordered.push(now + self.takes);
        }
        self.had = self.had.max(self.nodes.len());
        !self.ordered.is_empty() || !self.nodes.is_empty() || asked
    }

    /// Answers those who ask for nodes; whether it has to look again.
    fn answer(&mut self, cluster: &Cluster, now: Mono, mut empty: usize) -> bool {
        let (requests, mut again) = (cluster.requests(), false);
        self.asked.retain(|uid, _| requests.iter().any(|one| one.uid().as_ref() == Some(uid)));
        for request in requests.iter() {
            let said = request.status.clone().unwrap_or_default().conditions;
            let is = |word: &str| said.iter().any(|one| one.type_ == word && one.status == "True");
            if is(FAILED) || is(BOOKING_EXPIRED) {
                continue;
            }
            again = true;
            let uid = request.uid().unwrap_or_default();
            let pause = if is(PROVISIONED) { BOOKED } else { AGAIN };
            if self.asked.get(&uid).is_some_and(|at| now.saturating_since(*at) < pause) {
                continue;
            }
            self.asked.insert(uid, now);
            let (namespace, pods) = (request.namespace().unwrap_or_default(), &request.spec.pod_sets[0]);
            let template = cluster.server.get::<PodTemplate>(&namespace, &pods.pod_template_ref.name);
            let wanted = template.and_then(|one| one.template?.spec).map_or(u64::MAX, |spec| cores(&spec));
            let count = usize::try_from(pods.count).unwrap();
            let (word, holds, reason) = if is(PROVISIONED) {
                (BOOKING_EXPIRED, true, "CapacityReservationTimeExpired")
            } else if wanted > self.cores {
                (FAILED, true, "CapacityIsNotFound")
            } else if self.ordered.len() + self.nodes.len() + count.saturating_sub(empty) > self.most {
                (PROVISIONED, false, "CapacityIsNotFound")
            } else {
                self.ordered.extend((empty..count).map(|_| now + self.takes));
                empty = empty.saturating_sub(count);
                (PROVISIONED, true, "CapacityIsProvisioned")
            };
            let at = cluster.clock.wall().to_string();
            let one = |word: &str, holds: bool, reason: &str| {
                json!({"type": word, "status": if holds { "True" } else { "False" }, "reason": reason, "message": "as it is",
                    "lastTransitionTime": at})
            };
            let others = said.iter().filter(|one| one.type_ != word && one.type_ != ACCEPTED);
            let mut conditions: Vec<Value> = others.map(|one| serde_json::to_value(one).unwrap()).collect();
            conditions.extend([one(ACCEPTED, true, "Accepted"), one(word, holds, reason)]);
            let status = json!({"conditions": conditions});
            drop(cluster.server.patch_status::<ProvisioningRequest>(&namespace, &request.name_any(), status));
        }
        again
    }
}

/// Whether a pod uses the nodes that somebody asked for.
pub fn uses_request(pod: &Pod) -> bool {
    pod.annotations().contains_key(CONSUME)
}

fn cores_of(pod: &Pod) -> u64 {
    pod.spec.as_ref().map_or(0, cores)
}

fn cores(spec: &PodSpec) -> u64 {
    let containers = spec.containers.iter();
    let asked = |one: &k8s_openapi::api::core::v1::Container| {
        let requests = one.resources.as_ref()?.requests.as_ref()?;
        requests.get("cpu")?.0.parse::<u64>().ok()
    };
    containers.filter_map(asked).sum()
}

fn node_of(pod: &Pod) -> Option<&str> {
    pod.spec.as_ref()?.node_name.as_deref()
}

pub fn is_unschedulable(pod: &Pod) -> bool {
    let conditions = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
    conditions.into_iter().any(|one| one.type_ == "PodScheduled" && one.status == "False")
}
