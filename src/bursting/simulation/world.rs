//! Clusters, their agents, and the links between them, in steps of a second.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use tributary_api::hosted_burst::BurstPhase;
use tributary_api::minicluster::{BurstNetworkType, MiniCluster};
use tributary_api::peer::{ClusterPeer, ClusterPeerSpec, ImportPolicy};
use tributary_clock::{Mono, Now};
use tributary_contract::ports::{Incoming, Outgoing, State, StateKey};
use tributary_contract::{Epoch, PeerName, PeerReport, PeerState};
use tributary_flux::{RankMap, Slot, Topology};

use super::agent::Agent;
use super::cluster::{Cluster, Instance, LEADER_LEASE};
use super::weather::{Weather, Word};
use crate::root::plan::tests::root;

fn due(weather: &mut Option<Weather>, secs: u64, before: &VecDeque<(u64, Word)>) -> u64 {
    weather.as_mut().map_or(secs, |weather| weather.arrives(secs, before))
}

/// How often a session sends the list of its keys.
const SUMMARY_EVERY: u64 = 60;

pub(super) const NAMES: [&str; 3] = ["east", "west", "north"];

/// What one side of a session has delivered to the other.
#[derive(Default)]
struct Delivered {
    /// What was said.
    held: BTreeMap<StateKey, State>,
    next_summary: u64,
    /// What is on its way, and until when.
    under_way: VecDeque<(u64, Word)>,
}

pub(super) struct World {
    names: Vec<&'static str>,
    pub(super) clusters: BTreeMap<String, Cluster>,
    pub(super) agents: BTreeMap<String, Agent>,
    sessions: BTreeMap<(String, String), Delivered>,
    pub(super) cut: BTreeSet<String>,
    /// Clusters whose agent's process is dead.
    down: BTreeSet<String>,
    /// Names that another cluster has now.
    taken: BTreeSet<String>,
    /// How roots made from now on are reached.
    pub(super) network: BurstNetworkType,
    /// Outlets of tunnels let everybody in: nothing stands between brokers and their lead but time.
    pub(super) unfenced: bool,
    epochs: BTreeMap<String, u64>,
    pub(super) secs: u64,
    /// Whether anybody ever ran the same ranks twice: checked each second.
    checked: bool,
    /// Without: words arrive at once, and losses are noticed at once.
    pub(super) weather: Option<Weather>,
}

impl World {
    /// East bursts onto west and north.
    pub(super) fn new() -> Self {
        Self::of(&NAMES)
    }

    /// Clusters that all know each other and let each other in.
    pub(super) fn of(names: &[&'static str]) -> Self {
        let mut world = Self {
            names: names.to_vec(),
            clusters: BTreeMap::new(),
            agents: BTreeMap::new(),
            sessions: BTreeMap::new(),
            cut: BTreeSet::new(),
            down: BTreeSet::new(),
            taken: BTreeSet::new(),
            network: BurstNetworkType::default(),
            unfenced: false,
            epochs: BTreeMap::new(),
            secs: 0,
            checked: true,
            weather: None,
        };
        for name in names.iter().copied() {
            let mut cluster = Cluster::new(name);
            for other in names.iter().filter(|other| **other != name) {
                let import = ImportPolicy { namespaces: vec!["*".into()], ..ImportPolicy::default() };
                let mut peer = ClusterPeer::new(other, ClusterPeerSpec { import: Some(import), ..Default::default() });
                peer.metadata.generation = Some(1);
                cluster.peers.insert((*other).into(), peer);
            }
            world.clusters.insert(name.into(), cluster);
            world.epochs.insert(name.into(), 1);
            world.agents.insert(name.into(), Agent::start(Mono::ZERO));
        }
        world
    }

    /// With one root of one burst of three, that is reached directly.
    pub(super) fn with_root(peers: &[&str]) -> Self {
        Self::with_root_by(BurstNetworkType::NodePort, peers)
    }

    /// The same by a network.
    pub(super) fn with_root_by(network: BurstNetworkType, peers: &[&str]) -> Self {
        let mut world = Self { network, ..Self::new() };
        world.make_root("root-1", "job-1", peers);
        world
    }

    pub(super) fn make_root(&mut self, uid: &str, incarnation: &str, peers: &[&str]) {
        let mut root = root();
        root.spec.flux.bursting.network.kind = self.network;
        root.spec.flux.bursting.clusters.truncate(1);
        let burst = &mut root.spec.flux.bursting.clusters[0];
        burst.peer = None;
        burst.peers = peers.iter().map(|peer| (*peer).to_owned()).collect();
        root.metadata.uid = Some(uid.into());
        let status = root.status.as_mut().unwrap();
        status.incarnation = Some(incarnation.into());
        status.credential_digest = Some(format!("certificate of {incarnation}"));
        let map = tributary_flux::RankMap::parse_canonical(status.rank_map.as_deref().unwrap()).unwrap();
        let map = tributary_flux::RankMap::new(map.slots()[..2].to_vec()).unwrap();
        status.rank_map = Some(map.to_canonical());
        status.rank_map_digest = Some(map.digest().to_string());
        self.cluster("east").roots.insert("lake".into(), root);
    }

    /// A root with one burst of at most three brokers onto `peer`, or any, in its `life`th life.
    pub(super) fn apply(&mut self, cluster: &str, name: &str, life: u64, (peer, size): (Option<&str>, i32)) {
        let mut root = root();
        root.spec.flux.bursting.network.kind = self.network;
        root.spec.flux.bursting.clusters.truncate(1);
        let burst = &mut root.spec.flux.bursting.clusters[0];
        (burst.peer, burst.size, burst.max_size) = (peer.map(str::to_owned), Some(size), Some(3));
        let parent = Topology::Gateway.parent_of_bursts(name);
        let slots = vec![
            Slot::root(name, 4).with_resources(2, 0),
            Slot::burst(format!("{name}-burst-0"), 3, parent).with_resources(2, 0),
        ];
        let map = RankMap::new(slots).unwrap();
        (root.metadata.name, root.metadata.uid) = (Some(name.to_owned()), Some(format!("{name}-{life}")));
        let status = root.status.as_mut().unwrap();
        status.incarnation = Some(format!("{name}-job-{life}"));
        status.credential_digest = Some(format!("certificate of {name}-job-{life}"));
        status.rank_map = Some(map.to_canonical());
        status.rank_map_digest = Some(map.digest().to_string());
        self.cluster(cluster).roots.insert(name.to_owned(), root);
    }

    pub(super) fn cluster(&mut self, name: &str) -> &mut Cluster {
        self.clusters.get_mut(name).unwrap()
    }

    pub(super) fn root(&mut self) -> &mut MiniCluster {
        self.cluster("east").roots.get_mut("lake").unwrap()
    }

    /// What the controller of the root keeps of its Bursts: who holds their slots.
    pub(super) fn count_bursts(&mut self) {
        let bursts: Vec<_> = self.clusters["east"].bursts.values().cloned().collect();
        let row = |burst: &tributary_api::burst::Burst| tributary_api::minicluster::BurstStatus {
            name: burst.spec.slot.clone(),
            holder: burst.status.as_ref().and_then(tributary_api::burst::BurstStatus::holder).cloned(),
            ..Default::default()
        };
        self.root().status.as_mut().unwrap().bursts = bursts.iter().map(row).collect();
    }

    /// The moment, on a clock that is right.
    pub(super) fn now(&self) -> Timestamp {
        Timestamp::from_second(1_700_000_000 + i64::try_from(self.secs).unwrap()).unwrap()
    }

    /// A new process, also where none runs.
    pub(super) fn restart(&mut self, name: &str) {
        self.down.remove(name);
        // Without an API server nobody comes to lead.
        if let Some(since) = &mut self.cluster(name).away {
            *since = since.saturating_sub(LEADER_LEASE);
        }
        *self.epochs.get_mut(name).unwrap() += 1;
        let mono = Mono::from_start(Duration::from_secs(self.secs));
        self.agents.insert(name.into(), Agent::start(mono));
        self.sessions.retain(|(from, to), _| from != name && to != name);
    }

    /// Ends an agent as SIGKILL does: it writes nothing and tells nobody. [`Self::restart`] starts it again.
    pub(super) fn kill(&mut self, name: &str) {
        self.restart(name);
        self.down.insert(name.into());
    }

    /// Another cluster, which knows of nothing, takes the name of one whose pods run on.
    pub(super) fn take_name_of(&mut self, name: &str) {
        let old = self.clusters.remove(name).unwrap();
        let mut new = Cluster::new(name);
        new.peers.clone_from(&old.peers);
        self.clusters.insert(name.into(), new);
        self.clusters.insert(format!("{name} before"), old);
        self.taken.insert(name.into());
        self.restart(name);
    }

    /// The API server of a cluster answers nobody: whoever leads stops that soon, and no controller does anything. Pods
    /// run on.
    pub(super) fn stop_api(&mut self, name: &str) {
        let now = self.secs;
        self.cluster(name).away.get_or_insert(now);
    }

    /// It answers again.
    pub(super) fn start_api(&mut self, name: &str) {
        let led = self.leads(name);
        self.cluster(name).away = None;
        if !led && !self.down.contains(name) {
            self.restart(name);
        }
    }

    /// Everything that was taken away is back.
    pub(super) fn heal(&mut self) {
        self.cut.clear();
        for name in self.names.clone() {
            self.start_api(name);
            if self.down.contains(name) {
                self.restart(name);
            }
        }
    }

    /// Whether an agent runs and leads its cluster.
    fn leads(&self, name: &str) -> bool {
        let lapsed = |since: u64| self.secs - since >= LEADER_LEASE;
        !self.down.contains(name) && !self.clusters[name].away.is_some_and(lapsed)
    }

    pub(super) fn run(&mut self, secs: u64) -> &mut Self {
        for _ in 0..secs {
            self.tick();
        }
        self
    }

    /// Runs until `done`, and fails if that takes longer than `secs`.
    #[track_caller]
    pub(super) fn until(&mut self, secs: u64, what: &str, done: impl Fn(&Self) -> bool) -> &mut Self {
        for _ in 0..secs {
            if done(self) {
                return self;
            }
            self.tick();
        }
        panic!("{what}: not within {secs} s; {}", self.summary())
    }

    pub(super) fn summary(&self) -> String {
        let bursts: Vec<_> =
            self.clusters.values().flat_map(|cluster| cluster.bursts.values().map(|burst| &burst.status)).collect();
        let hosted: Vec<_> = self
            .clusters
            .values()
            .flat_map(|cluster| cluster.hosted.values().map(|hosted| (&cluster.name, &hosted.status)))
            .collect();
        format!("at {} s: bursts {bursts:#?} hosted {hosted:#?}", self.secs)
    }

    pub(super) fn phase(&self) -> Option<(BurstPhase, Option<String>)> {
        let burst = self.clusters["east"].bursts.get("lake-burst-0")?;
        burst.status.as_ref().map(|status| (status.phase, status.peer.clone()))
    }

    pub(super) fn ready_on(&self, peer: &str) -> bool {
        self.phase() == Some((BurstPhase::Ready, Some(peer.into())))
    }

    /// Nothing of any burst is there.
    pub(super) fn is_empty(&self, name: &str) -> bool {
        let cluster = &self.clusters[name];
        cluster.hosted.is_empty()
            && cluster.mini_clusters.is_empty()
            && cluster.jobs.is_empty()
            && cluster.secrets.is_empty()
    }

    fn linked(&self, a: &str, b: &str) -> bool {
        !self.cut.contains(a) && !self.cut.contains(b) && self.leads(a) && self.leads(b)
    }

    fn tick(&mut self) {
        self.secs += 1;
        let mono = Mono::from_start(Duration::from_secs(self.secs));
        let wall = self.now();
        self.connect();
        self.deliver();
        for name in self.names.clone().into_iter().filter(|name| self.leads(name)).collect::<Vec<_>>() {
            let skew = self.weather.as_ref().map_or(0, |weather| weather.skew(name));
            let now = Now { mono, wall: wall + SignedDuration::from_secs(skew) };
            let agent = self.agents.get_mut(name).unwrap();
            agent.run(self.clusters.get_mut(name).unwrap(), now);
        }
        self.certificates();
        for name in self.names.clone() {
            let (secs, led) = (self.secs, self.leads(name));
            self.cluster(name).tick(secs, led);
        }
        if self.checked {
            self.check();
        }
    }

    fn connect(&mut self) {
        let names = self.names.clone();
        for a in names.iter().copied() {
            for b in names.iter().filter(|b| **b != a) {
                let linked = self.linked(a, b)
                    && self.clusters[a].peers.contains_key(*b)
                    && self.clusters[*b].peers.contains_key(a);
                let (state, last_seen) = match &mut self.weather {
                    Some(weather) => {
                        let (state, last) = weather.sees(a, b, linked, self.secs);
                        let wall = |last: u64| {
                            let secs = 1_700_000_000 + i64::try_from(last).unwrap() + weather.skew(a);
                            Timestamp::from_second(secs).unwrap()
                        };
                        (state, last.map(wall))
                    }
                    None if linked => (PeerState::Connected, None),
                    None => (PeerState::Disconnected, None),
                };
                let gone = state == PeerState::Disconnected;
                let cluster_uid =
                    (!gone).then(|| format!("{b}-cluster{}", if self.taken.contains(*b) { "-2" } else { "" }).into());
                let report = PeerReport { state, cluster_uid, last_seen, ..PeerReport::default() };
                self.agents[a].exchange.peer_report(&PeerName::from(*b), report);
                let link = (a.to_owned(), (*b).to_owned());
                if self.weather.as_mut().is_some_and(Weather::breaks) {
                    self.sessions.remove(&link);
                }
                if linked {
                    self.sessions.entry(link).or_default();
                } else if gone {
                    self.sessions.remove(&link);
                }
            }
        }
    }

    /// Everything that changed is put; the list of keys follows now and then, and is complete only if the sender says so.
    fn deliver(&mut self) {
        let blocked: BTreeSet<(String, String)> =
            self.sessions.keys().filter(|(from, to)| !self.linked(from, to)).cloned().collect();
        for ((from, to), delivered) in &mut self.sessions {
            let (sender, receiver) = (&self.agents[from].exchange, &self.agents[to].exchange);
            let (from_name, to_name) = (PeerName::from(from.as_str()), PeerName::from(to.as_str()));
            let epoch = Epoch(self.epochs[from]);
            let keys = sender.keys(&to_name);
            delivered.held.retain(|key, _| keys.contains(key));
            for key in &keys {
                let Some(state) = sender.state(&to_name, key) else { continue };
                if delivered.held.get(key) != Some(&state) {
                    delivered.held.insert(key.clone(), state.clone());
                    let due = due(&mut self.weather, self.secs, &delivered.under_way);
                    delivered.under_way.push_back((due, Word::Put(key.clone(), state)));
                }
            }
            if self.secs >= delivered.next_summary && sender.complete() {
                let due = due(&mut self.weather, self.secs, &delivered.under_way);
                delivered.under_way.push_back((due, Word::Snapshot(keys)));
                delivered.next_summary = self.secs + SUMMARY_EVERY;
            }
            let open = !blocked.contains(&(from.clone(), to.clone()));
            while open && let Some((_, word)) = delivered.under_way.pop_front_if(|(due, _)| *due <= self.secs) {
                match word {
                    Word::Put(key, state) => receiver.put(&from_name, epoch, key, state),
                    Word::Snapshot(keys) => receiver.complete_snapshot(&from_name, epoch, &keys),
                }
            }
        }
    }

    fn certificates(&mut self) {
        for name in self.names.clone() {
            let requests = std::mem::take(&mut self.agents.get_mut(name).unwrap().requests);
            for (peer, key, request) in requests {
                let digest = (self.linked(name, peer.as_str())
                    && self.agents[peer.as_str()].grant(
                        self.clusters.get_mut(peer.as_str()).unwrap(),
                        &PeerName::from(name),
                        &request,
                    ))
                .then(|| request.digest.clone());
                let agent = self.agents.get_mut(name).unwrap();
                agent.granted(self.clusters.get_mut(name).unwrap(), &key, digest);
            }
        }
    }

    /// The same ranks of one instance never run in two clusters, and brokers never run with another instance's
    /// certificate.
    #[track_caller]
    fn check(&self) {
        let mut seen: BTreeMap<(&str, &str), &str> = BTreeMap::new();
        for (name, cluster) in &self.clusters {
            for ((_, slot), instance) in cluster.running() {
                let Instance { incarnation, digest, .. } = instance;
                assert_eq!(*digest, format!("certificate of {incarnation}"), "{name}/{slot} joins another instance");
                if self.reaches_its_lead(name, instance) {
                    let other = seen.insert((slot, incarnation), name).filter(|other| other != name);
                    assert_eq!(other, None, "{slot} runs twice, at {} s: {}", self.secs, self.summary());
                }
            }
        }
    }

    /// Nobody stands between brokers and a lead that is reached directly; a tunnel ends at the root's agent.
    fn reaches_its_lead(&self, provider: &str, instance: &Instance) -> bool {
        let (root, burst) = &instance.burst;
        let fence = self.agents[root.as_str()].tunnels.outlets();
        let outlet = |key| fence.borrow().get(&key).is_some_and(|outlet| outlet.incarnation == instance.incarnation);
        !instance.tunnel || self.unfenced || self.leads(root.as_str()) && outlet((provider.into(), burst.clone()))
    }
}
