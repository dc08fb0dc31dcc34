//! Clusters that know each other, and what happens to them.

use std::net::SocketAddr;
use std::time::Duration;

use serde_json::json;
use tributary::api::burst::Burst;
use tributary::api::hosted_burst::BurstPhase;
use tributary::api::minicluster::MiniCluster;
use tributary::api::peer::ClusterPeer;
use tributary::clock::{Mono, SharedClock};
use tributary::federation::transport::memory::MemoryNetwork;
use tributary_tests::federation::cluster_peer;
use tributary_tests::scenario::bursting;

use crate::agent::{Agent, PausedClock, Site};
use crate::cluster::{Cluster, SYSTEM, USERS, left, put};
use crate::invariants::{Invariants, plant};

/// How often what stands for Kubernetes works, and invariants are checked.
pub const STEP: Duration = Duration::from_millis(250);

pub const NAMES: [&str; 4] = ["east", "west", "north", "south"];

pub struct World {
    pub clock: SharedClock,
    pub network: MemoryNetwork,
    pub clusters: Vec<Cluster>,
    pub agents: Vec<Option<Agent>>,
    sites: Vec<Site>,
    invariants: Invariants,
    /// What was done, for people.
    pub history: Vec<String>,
}

fn address(number: usize) -> SocketAddr {
    ([10, 99, 0, u8::try_from(number).unwrap() + 1], 7946).into()
}

impl World {
    /// Clusters whose agents know each other and let each other in.
    pub fn new(size: usize) -> Self {
        let clock = PausedClock::shared();
        let network = MemoryNetwork::new(clock.clone());
        network.set_delay(Duration::from_millis(25));
        let (mut clusters, mut sites, invariants) = (Vec::new(), Vec::new(), Invariants::default());
        for (number, name) in NAMES.iter().enumerate().take(size) {
            let cluster = Cluster::new(name, u8::try_from(number).unwrap() + 1, clock.clone(), invariants.secrets());
            plant(&cluster);
            for (other, peer) in NAMES.iter().enumerate().take(size).filter(|(other, _)| *other != number) {
                let mut peer: ClusterPeer = cluster_peer(peer, &address(other).to_string());
                peer.metadata.namespace = Some(SYSTEM.to_owned());
                cluster.server.put(&peer).expect("a ClusterPeer is taken");
            }
            sites.push(Site {
                name: (*name).to_owned(),
                server: cluster.server.clone(),
                address: address(number),
                network: network.clone(),
                clock: clock.clone(),
            });
            clusters.push(cluster);
        }
        let agents = sites.iter().map(|site| Some(Agent::start(site))).collect();
        Self { clock, network, clusters, agents, sites, invariants, history: Vec::new() }
    }

    pub fn now(&self) -> Mono {
        self.clock.mono()
    }

    pub fn say(&mut self, what: impl AsRef<str>) {
        let at = self.now().since_start().as_secs_f64();
        self.history.push(format!("{at:9.2} s  {}", what.as_ref()));
    }

    /// One step of everything.
    pub async fn step(&mut self) -> Result<(), String> {
        tokio::time::sleep(STEP).await;
        for cluster in &mut self.clusters {
            cluster.step();
        }
        self.invariants.check(&self.clusters)
    }

    /// Steps until `done`.
    pub async fn until(&mut self, what: &str, within: Duration, done: impl Fn(&Self) -> bool) -> Result<(), String> {
        let end = self.now() + within;
        while !done(self) {
            if self.now() > end {
                return Err(format!("not within {within:?}: {what}\n{}", self.summary()));
            }
            self.step().await?;
        }
        Ok(())
    }

    pub async fn run(&mut self, time: Duration) -> Result<(), String> {
        let end = self.now() + time;
        while self.now() < end {
            self.step().await?;
        }
        Ok(())
    }

    pub fn apply(&mut self, cluster: usize, name: &str, size: i32, clusters: serde_json::Value) {
        self.say(format!("{}: MiniCluster {name} of {size} with bursts {clusters}", NAMES[cluster]));
        let metadata = json!({"name": name, "namespace": USERS});
        put::<MiniCluster>(
            &self.clusters[cluster].server,
            json!({"metadata": metadata, "spec": bursting(size, clusters)}),
        );
    }

    pub fn delete(&mut self, cluster: usize, name: &str) {
        self.say(format!("{}: MiniCluster {name} is deleted", NAMES[cluster]));
        self.clusters[cluster].delete(name);
    }

    pub fn kill(&mut self, cluster: usize) {
        self.say(format!("{}: the agent is killed", NAMES[cluster]));
        if let Some(agent) = self.agents[cluster].take() {
            agent.kill();
        }
    }

    pub fn start(&mut self, cluster: usize) {
        if self.agents[cluster].is_none() {
            self.say(format!("{}: the agent is started", NAMES[cluster]));
            self.agents[cluster] = Some(Agent::start(&self.sites[cluster]));
        }
    }

    /// How often an agent is dead by now; it is cleared away.
    pub fn bury(&mut self) -> Vec<usize> {
        let dead =
            |(number, agent): (usize, &Option<Agent>)| agent.as_ref().is_some_and(Agent::is_dead).then_some(number);
        let dead: Vec<usize> = self.agents.iter().enumerate().filter_map(dead).collect();
        dead.iter().for_each(|number| self.kill(*number));
        dead
    }

    /// Whether every burst of a MiniCluster is ready.
    pub fn bursts_ready(&self, cluster: usize, name: &str) -> bool {
        let bursts = self.clusters[cluster].server.list::<Burst>();
        let mut own = bursts
            .iter()
            .filter(|burst| burst.metadata.owner_references.iter().flatten().any(|o| o.name == name))
            .peekable();
        own.peek().is_some()
            && own.all(|burst| burst.status.as_ref().is_some_and(|status| status.phase == BurstPhase::Ready))
    }

    /// How many certificates were made.
    pub fn certificates(&self) -> usize {
        self.invariants.secrets().count()
    }

    pub fn nothing_left(&self) -> bool {
        self.clusters.iter().all(|cluster| left(&cluster.server).is_empty())
    }

    pub fn summary(&self) -> String {
        let mut text = String::new();
        for cluster in &self.clusters {
            text += &format!("{}: {}\n", cluster.name, left(&cluster.server).join(", "));
            for burst in cluster.server.list::<Burst>() {
                text += &format!(
                    "  Burst {}: {}\n",
                    burst.metadata.name.unwrap_or_default(),
                    serde_json::to_string(&burst.status).unwrap()
                );
            }
            for object in cluster.server.list::<MiniCluster>() {
                text += &format!(
                    "  MiniCluster {}: {}\n",
                    object.metadata.name.unwrap_or_default(),
                    serde_json::to_string(&object.status).unwrap()
                );
            }
            for peer in cluster.server.list::<ClusterPeer>() {
                text += &format!(
                    "  ClusterPeer {}: {}\n",
                    peer.metadata.name.unwrap_or_default(),
                    serde_json::to_string(&peer.status).unwrap()
                );
            }
        }
        text
    }

    /// The writes of all clusters, in lines that can be compared.
    pub fn writes(&self) -> Vec<String> {
        let mut lines = Vec::new();
        for cluster in &self.clusters {
            for write in cluster.server.writes() {
                let request = &write.request;
                if request.resource == "leases" {
                    continue;
                }
                lines.push(format!(
                    "{} {} {} {}/{}/{} {} {}",
                    cluster.name,
                    request.manager,
                    request.verb,
                    request.resource,
                    request.namespace,
                    request.name,
                    request.subresource,
                    write.code,
                ));
            }
        }
        lines
    }
}
