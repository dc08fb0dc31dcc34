//! Clusters that know each other, and what happens to them.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::LazyLock;
use std::time::Duration;

use kube::ResourceExt as _;
use kube::api::DeleteParams;
use serde_json::{Value, json};
use tributary::api::burst::Burst;
use tributary::api::hosted_burst::{BurstPhase, HostedBurst};
use tributary::api::minicluster::MiniCluster;
use tributary::api::peer::ClusterPeer;
use tributary::clock::{Clock as _, Mono};
use tributary::federation::transport::memory::MemoryNetwork;
use tributary_agent::app::LEASE;
use tributary_api_server::Away;
use tributary_tests::federation::cluster_peer;
use tributary_tests::scenario::bursting;

use crate::agent::{Agent, PausedClock, Settings, Site};
use crate::autoscaler::Autoscaler;
use crate::cluster::{Cluster, SYSTEM, USERS, left, put};
use crate::invariants::{Contact, Contacts, Invariants, LetIn, plant};
use crate::queue::Queue;
use crate::scale_up;
use crate::usage::Accounts;

/// How often what stands for Kubernetes works, and invariants are checked.
pub const STEP: Duration = Duration::from_millis(250);
/// How long after a fault all have found each other again.
const RECOVERS: Duration = Duration::from_secs(20);

/// The names of clusters.
pub static NAMES: LazyLock<Vec<&'static str>> = LazyLock::new(|| {
    let more = (4..MOST).map(|number| &*Box::leak(format!("c{number}").into_boxed_str()));
    ["east", "west", "north", "south"].into_iter().chain(more).collect()
});

/// The most clusters that have addresses of their own.
const MOST: usize = 256;

pub struct World {
    clock: PausedClock,
    network: MemoryNetwork,
    pub clusters: Vec<Cluster>,
    /// By cluster.
    pub agents: Vec<Vec<Option<Agent>>>,
    pub sites: Vec<Site>,
    invariants: Invariants,
    contacts: Contacts,
    /// What may be on record of uses, where that is looked at.
    pub accounts: Option<Accounts>,
    /// Clusters whose time was wrong at some time, or that are others by now: nobody can tell what they should have on record.
    uncounted: BTreeSet<usize>,
    cuts: BTreeSet<(usize, usize)>,
    /// What is wrong with each cluster just now.
    pub wrong: Vec<BTreeSet<&'static str>>,
    /// What was done, for people.
    pub history: Vec<String>,
}

fn address(number: usize) -> SocketAddr {
    ([10, 99, 0, u8::try_from(number).unwrap()], 7946).into()
}

impl World {
    /// Clusters whose agents know each other and let each other in.
    pub fn new(size: usize, settings: Settings) -> Self {
        let world = Self::of_strangers(size, settings);
        for (cluster, other) in world.pairs() {
            world.befriend(cluster, other);
        }
        world
    }

    /// Clusters that do not know each other.
    pub fn of_strangers(size: usize, settings: Settings) -> Self {
        let clock = PausedClock::start();
        let network = MemoryNetwork::new(clock.shared());
        network.set_delay(Duration::from_millis(25));
        let (mut clusters, mut sites, invariants) = (Vec::new(), Vec::new(), Invariants::default());
        for (number, name) in NAMES.iter().enumerate().take(size) {
            let (id, agents) = (u8::try_from(number).unwrap(), clock.another());
            let mut cluster = Cluster::new((id, name), &settings, clock.shared(), agents.shared(), &invariants);
            plant(&cluster);
            cluster.autoscaler = settings.nodes.then(Autoscaler::default);
            sites.push(Site {
                name: (*name).to_owned(),
                server: cluster.server.clone(),
                queue: Queue::default(),
                address: address(number),
                network: network.clone(),
                clock: agents,
                settings,
            });
            clusters.push(cluster);
        }
        let agents = sites.iter().map(|site| (0..settings.replicas).map(|_| Some(Agent::start(site))).collect());
        let (agents, wrong) = (agents.collect(), vec![BTreeSet::new(); size]);
        let (contacts, cuts, history) = (Contacts::new(), BTreeSet::new(), Vec::new());
        let (accounts, uncounted) = (None, BTreeSet::new());
        Self {
            clock,
            network,
            clusters,
            agents,
            sites,
            invariants,
            contacts,
            accounts,
            uncounted,
            cuts,
            wrong,
            history,
        }
    }

    /// Root and provider.
    fn pairs(&self) -> Vec<(usize, usize)> {
        let size = self.clusters.len();
        (0..size).flat_map(|a| (0..size).map(move |b| (a, b))).filter(|(a, b)| a != b).collect()
    }

    /// A cluster gets a ClusterPeer for another, unless there is one.
    pub fn befriend(&self, cluster: usize, other: usize) {
        if self.peer(cluster, other).is_some() {
            return;
        }
        let mut peer: ClusterPeer = cluster_peer(NAMES[other], &address(other).to_string());
        peer.metadata.namespace = Some(SYSTEM.to_owned());
        let import = peer.spec.import.as_mut().unwrap();
        (import.max_bursts, import.max_brokers) = self.sites[cluster].settings.limits.unzip();
        import.scale_up = self.sites[cluster].settings.nodes.then(|| scale_up::by_chance(cluster));
        self.clusters[cluster].server.put(&peer).expect("a ClusterPeer is taken");
    }

    pub fn peer(&self, cluster: usize, other: usize) -> Option<ClusterPeer> {
        self.clusters[cluster].server.get(SYSTEM, NAMES[other])
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
        self.look_at_contacts();
        let now = self.now();
        self.look_at_records(now)?;
        let Self { invariants, clusters, agents, contacts, .. } = self;
        invariants.check(clusters, now, contacts, || let_in(agents, clusters))
    }

    fn look_at_records(&mut self, now: Mono) -> Result<(), String> {
        let (wall, Some(accounts)) = (self.clock.wall(), &mut self.accounts) else { return Ok(()) };
        for (number, cluster) in self.clusters.iter().enumerate() {
            let (wrong, site) = (&self.wrong[number], &self.sites[number]);
            // Scenarios set the clock of a site without a word.
            let apart = |theirs: Mono| theirs.saturating_since(now) + now.saturating_since(theirs) > STEP;
            let differs = site.clock.wall() != wall || apart(site.clock.mono());
            if differs || wrong.contains("clock") || wrong.contains("drift") {
                self.uncounted.insert(number);
            }
            if !self.uncounted.contains(&number) {
                let away = !wrong.is_empty() || self.agents[number].iter().flatten().all(Agent::is_dead);
                accounts.check(cluster, now, wall, away)?;
            }
        }
        Ok(())
    }

    /// The same without a look at what must never happen, which takes the longer the more there is.
    pub async fn step_unchecked(&mut self) {
        tokio::time::sleep(STEP).await;
        allocation_counter::opt_out(|| self.clusters.iter_mut().for_each(Cluster::step));
    }

    /// From now on, the API server of a cluster is away in this way, or is back.
    pub fn away(&mut self, cluster: usize, away: Option<Away>) {
        self.clusters[cluster].server.set_away(away);
        match away {
            Some(_) => self.wrong[cluster].insert("away"),
            None => self.wrong[cluster].remove("away"),
        };
    }

    fn look_at_contacts(&mut self) {
        let now = self.now();
        let dead = |number: usize| self.agents[number].iter().flatten().all(Agent::is_dead);
        let dead: Vec<bool> = (0..self.clusters.len()).map(dead).collect();
        let hears = |number: usize| !dead[number] && !self.wrong[number].contains("away");
        for (root, provider) in self.pairs() {
            let cut = self.cuts.contains(&(root, provider)) || self.cuts.contains(&(provider, root));
            let key = (NAMES[root].to_owned(), NAMES[provider].to_owned());
            let contact = self.contacts.entry(key).or_insert(Contact {
                lost: now,
                ill: now,
                well: now,
                healthy: now,
                right: now,
            });
            if !cut && hears(root) && hears(provider) {
                contact.lost = now;
            }
            if cut
                || !hears(root)
                || !hears(provider)
                || !self.wrong[root].is_empty()
                || !self.wrong[provider].is_empty()
            {
                contact.ill = now;
            } else if now.saturating_since(contact.ill) > RECOVERS {
                contact.well = now;
            }
            if dead[provider] || !self.wrong[provider].is_empty() {
                contact.healthy = now;
            }
            if self.wrong[provider].contains("clock") {
                contact.right = now;
            }
        }
    }

    /// Nothing gets through any more: both ways, or only from `a` to `b`.
    pub fn cut(&mut self, a: usize, b: usize, both: bool) {
        self.network.cut_one_way(NAMES[a], NAMES[b]);
        self.cuts.insert((a, b));
        if both {
            self.network.cut_one_way(NAMES[b], NAMES[a]);
            self.cuts.insert((b, a));
        }
        let way = if both { "and" } else { "does not reach" };
        let end = if both { " do not reach each other" } else { "" };
        self.say(format!("{} {way} {}{end}", NAMES[a], NAMES[b]));
    }

    /// Of the packets that are under way from now on, so many of a thousand are lost; all come when they come.
    pub fn set_loss(&self, of_thousand: u64, jitter: Duration) {
        self.network.set_loss(of_thousand, jitter);
    }

    pub fn heal(&mut self, a: usize, b: usize) {
        self.say(format!("{} and {} reach each other again", NAMES[a], NAMES[b]));
        self.network.heal(NAMES[a], NAMES[b]);
        self.cuts.retain(|pair| ![(a, b), (b, a)].contains(pair));
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

    pub fn apply(&mut self, cluster: usize, name: &str, size: i32, clusters: Value, network: &str) {
        self.say(format!("{}: MiniCluster {name} of {size} with bursts {clusters} by {network}", NAMES[cluster]));
        let mut spec = bursting(size, clusters);
        spec["flux"]["bursting"]["network"] = json!({"type": network});
        let metadata = json!({"name": name, "namespace": USERS});
        put::<MiniCluster>(&self.clusters[cluster].server, json!({"metadata": metadata, "spec": spec}));
    }

    pub fn delete(&mut self, cluster: usize, name: &str) {
        self.say(format!("{}: MiniCluster {name} is deleted", NAMES[cluster]));
        self.clusters[cluster].delete(name);
    }

    pub fn kill(&mut self, cluster: usize, replica: usize) {
        if let Some(agent) = self.agents[cluster][replica].take() {
            self.say(format!("{}: agent {replica} is dead", NAMES[cluster]));
            agent.kill();
        }
    }

    pub fn start(&mut self, cluster: usize, replica: usize) {
        if self.agents[cluster][replica].is_none() {
            self.say(format!("{}: agent {replica} is started", NAMES[cluster]));
            self.agents[cluster][replica] = Some(Agent::start(&self.sites[cluster]));
        }
    }

    /// Another cluster, which knows of nothing, takes the name of one whose agents are dead.
    pub fn take_name_of(&mut self, number: usize) {
        self.say(format!("{} is another cluster now", NAMES[number]));
        self.uncounted.insert(number);
        let (id, site) = (u8::try_from(number).unwrap() + 1, &mut self.sites[number]);
        let clocks = (self.clock.shared(), site.clock.shared());
        let mut cluster = Cluster::new((id, "another"), &site.settings, clocks.0, clocks.1, &self.invariants);
        NAMES[number].clone_into(&mut cluster.name);
        plant(&cluster);
        site.server = cluster.server.clone();
        self.clusters[number] = cluster;
        (0..self.clusters.len()).filter(|other| *other != number).for_each(|other| self.befriend(number, other));
    }

    /// Clears away the agents that have died by now: of which cluster, and which of its.
    pub fn bury(&mut self) -> Vec<(usize, usize)> {
        let all = self.agents.iter().enumerate().flat_map(|(cluster, agents)| {
            agents.iter().enumerate().map(move |(replica, agent)| ((cluster, replica), agent))
        });
        let dead = all.filter(|(_, agent)| agent.as_ref().is_some_and(Agent::is_dead));
        let dead: Vec<(usize, usize)> = dead.map(|(which, _)| which).collect();
        dead.iter().for_each(|(cluster, replica)| self.kill(*cluster, *replica));
        dead
    }

    /// An owner throws a burst out.
    pub fn throw_out(&mut self, cluster: usize, hosted: &HostedBurst) {
        let name = hosted.name_any();
        self.say(format!("{}: the owner deletes HostedBurst {name}", NAMES[cluster]));
        self.invariants.thrown_out(hosted);
        drop(self.clusters[cluster].server.delete::<HostedBurst>(USERS, &name, &DeleteParams::background()));
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
        self.invariants.certificates()
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

/// Which bursts pass the tunnels' ends at their roots.
fn let_in(agents: &[Vec<Option<Agent>>], clusters: &[Cluster]) -> LetIn {
    let all = agents.iter().zip(clusters).flat_map(|(agents, cluster)| {
        let lease = cluster.server.get(SYSTEM, LEASE).unwrap_or_default();
        agents.iter().flatten().flat_map(move |agent| agent.lets_in(&lease))
    });
    all.collect()
}
