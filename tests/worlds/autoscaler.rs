//! What stands for an autoscaler: nodes for pods that are too large for those there are. It goes by pods that wait and by
//! nothing else, as cluster-autoscaler and Karpenter do.

use std::collections::BTreeMap;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::DeleteParams;
use serde_json::json;
use tributary::clock::Mono;

use crate::cluster::{Cluster, lives, node_object, put};

/// Cores of the nodes that are there from the beginning.
const THERE: u64 = 16;

/// Nodes that are large enough, come soon, and are as many as are needed: their cores, how many at most, and how long they
/// take.
pub const ENOUGH: (u64, usize, Duration) = (64, 40, Duration::from_secs(20));

/// How long a node is empty before it goes.
const IDLE: Duration = Duration::from_secs(30);

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
        Self { cores, most, takes, had: 0, ordered: Vec::new(), nodes: BTreeMap::new(), made: 10 }
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
        let waiting = pods.iter().filter(|pod| lives(pod) && is_unschedulable(pod) && node_of(pod).is_none()).count();
        // Those that came a moment ago are for them.
        let empty = self.nodes.values().filter(|(_, used)| *used != now).count() + due;
        while self.ordered.len() + empty < waiting && self.ordered.len() + self.nodes.len() < self.most {
            self.ordered.push(now + self.takes);
        }
        self.had = self.had.max(self.nodes.len());
        !self.ordered.is_empty() || !self.nodes.is_empty()
    }
}

fn cores_of(pod: &Pod) -> u64 {
    let containers = pod.spec.iter().flat_map(|spec| &spec.containers);
    let asked = |one: &k8s_openapi::api::core::v1::Container| {
        let requests = one.resources.as_ref()?.requests.as_ref()?;
        requests.get("cpu")?.0.parse::<u64>().ok()
    };
    containers.filter_map(asked).sum()
}

fn node_of(pod: &Pod) -> Option<&str> {
    pod.spec.as_ref()?.node_name.as_deref()
}

fn is_unschedulable(pod: &Pod) -> bool {
    let conditions = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
    conditions.into_iter().any(|one| one.type_ == "PodScheduled" && one.status == "False")
}
