//! What happens to a world by chance: users, owners and faults, by a seed.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use k8s_openapi::api::batch::v1::Job;
use kube::ResourceExt as _;
use kube::api::DeleteParams;
use serde_json::json;
use tributary::api::burst::Burst;
use tributary::api::hosted_burst::HostedBurst;
use tributary::api::minicluster::MiniCluster;
use tributary::api::peer::ClusterPeer;
use tributary::clock::{Mono, Rng as _, SeededRng};
use tributary_api_server::{Away, Fault};

use crate::autoscaler::{Autoscaler, ENOUGH};
use crate::cluster::{Cluster, SYSTEM, USERS};
use crate::invariants::FOREIGN;
use crate::rest::{roots, troubles};
use crate::world::{NAMES, World};

/// Kinds of faults, by the names in `WORLDS_FAULTS`.
pub const FAULTS: [&str; 17] = [
    "away", "restart", "errors", "watches", "mute", "lag", "skip", "lose", "unlisted", "kill", "die", "cut", "one-way",
    "loss", "cut-off", "clock", "drift",
];

/// Faults by which agents do not see what there is.
const UNSEEN: [&str; 7] = ["away", "mute", "lag", "skip", "lose", "unlisted", "cut-off"];

/// Kinds whose watches can lag, and that cannot be listed at times.
pub const KINDS: [&str; 7] = ["miniclusters", "bursts", "hostedbursts", "jobs", "pods", "services", "configmaps"];

/// The names of roots.
const ROOTS: [&str; 3] = ["lake", "pond", FOREIGN];

/// How long everything may take once faults are over.
const PATIENCE: Duration = Duration::from_secs(10 * 60);

pub struct Chaos {
    seed: u64,
    rng: SeededRng,
    /// Events that are left out, by their numbers.
    without: BTreeSet<usize>,
    faults: Vec<&'static str>,
    /// What ends at which time.
    ends: Vec<(Mono, End)>,
    /// Roots whose bursts an owner threw out.
    evicted: Vec<String>,
    /// By cluster: how many of a thousand requests go wrong.
    errors: Arc<Mutex<BTreeMap<usize, u64>>>,
    /// By cluster: a kind that cannot be listed or watched.
    unlisted: Arc<Mutex<BTreeMap<usize, &'static str>>>,
    /// What was done, by its name.
    pub counts: BTreeMap<&'static str, usize>,
}

#[derive(Clone, Copy)]
enum End {
    Away(usize),
    Errors(usize),
    Mute(usize),
    Lag(usize, &'static str),
    Skip(usize, &'static str),
    Lose(usize, &'static str),
    Unlisted(usize),
    Start(usize, usize),
    Cut(usize, usize),
    CutOff(usize),
    Clock(usize),
    Drift(usize),
    Loss,
    Nodes(usize),
    Drain(usize, usize),
    Peer(usize, usize),
    /// The Job of a root, by the number of its name.
    Tidy(usize, usize),
}

impl Chaos {
    pub fn new(seed: u64, faults: Vec<&'static str>, without: BTreeSet<usize>) -> Self {
        let (rng, ends, evicted) = (SeededRng::new(seed), Vec::new(), Vec::new());
        Self {
            seed,
            rng,
            without,
            faults,
            ends,
            evicted,
            errors: Arc::default(),
            unlisted: Arc::default(),
            counts: BTreeMap::new(),
        }
    }

    /// What happens at an event does not depend on what happened at those before it: they can be left out.
    fn draw_for(&mut self, event: usize) {
        let of_seed = SeededRng::new(self.seed).next_u64();
        self.rng = SeededRng::new(of_seed.wrapping_add(event as u64));
    }

    fn below(&mut self, n: usize) -> usize {
        usize::try_from(self.rng.next_u64() % n as u64).unwrap()
    }

    fn seconds(&mut self, most: usize) -> Duration {
        Duration::from_millis(u64::try_from(250 + self.below(most * 1000)).unwrap())
    }

    /// A whole world: events and faults for a while, then quiet, then nothing.
    pub async fn run(&mut self, world: &mut World, events: usize) -> Result<(), String> {
        self.arm(world);
        for cluster in 0..world.clusters.len() {
            if world.sites[cluster].settings.nodes && !self.faults.is_empty() && self.below(2) == 0 {
                self.nodes(world, cluster);
            }
        }
        for event in 0..events {
            self.draw_for(event);
            let pause = self.seconds(8);
            if self.without.contains(&event) {
                continue;
            }
            self.wait(world, pause).await?;
            match self.below(10) {
                6.. if !self.faults.is_empty() => self.fault(world),
                5 => self.owner(world),
                _ => self.user(world),
            }
        }
        // Some faults outlast every lease.
        self.draw_for(events);
        if self.below(3) == 0 && !self.without.contains(&events) {
            let (lease, drain, _) = world.sites[0].settings.times;
            world.say("nothing is done for as long as a lease lasts");
            let pause = Duration::from_secs(u64::from(lease + drain + 90));
            self.ends.iter_mut().for_each(|(at, _)| *at = *at + pause);
            // Agents are made anew on other nodes meanwhile.
            for part in [3, 4, 5] {
                self.wait(world, pause / part).await?;
                let (cluster, replica) = (self.below(world.clusters.len()), self.below(world.agents[0].len()));
                if world.agents[cluster][replica].is_some() && self.below(2) == 0 {
                    world.kill(cluster, replica);
                    world.start(cluster, replica);
                }
            }
            self.wait(world, pause / 4).await?;
        }
        self.end_all(world);
        world.say("faults are over");
        let evicted = self.evicted.clone();
        world
            .until("all is well", PATIENCE, |world| troubles(world, &evicted).is_empty())
            .await
            .map_err(|error| format!("{error}\nnot well: {}", troubles(world, &evicted).join("; ")))?;
        world.say("all is well");
        for cluster in 0..world.clusters.len() {
            for root in roots(world, cluster) {
                world.delete(cluster, &root);
            }
        }
        world.until("nothing is left", PATIENCE, World::nothing_left).await?;
        let no_nodes = |cluster: &Cluster| cluster.autoscaler.as_ref().is_none_or(Autoscaler::has_none);
        world.until("nor are nodes", PATIENCE, |world| world.clusters.iter().all(no_nodes)).await?;
        world.say("nothing is left");
        Ok(())
    }

    fn arm(&mut self, world: &World) {
        for (number, cluster) in world.clusters.iter().enumerate() {
            let (errors, unlisted) = (self.errors.clone(), self.unlisted.clone());
            let mut rng = SeededRng::new(self.rng.next_u64());
            let rng = Mutex::new(move || rng.next_u64());
            cluster.server.on_request(move |info| {
                let reads = ["list", "watch"].contains(&info.verb);
                if reads && unlisted.lock().unwrap().get(&number).is_some_and(|kind| *kind == info.resource) {
                    return Some(Fault::Answer(500));
                }
                let rate = errors.lock().unwrap().get(&number).copied().unwrap_or_default();
                if rate == 0 || info.resource == "leases" {
                    return None;
                }
                let drawn = (rng.lock().unwrap())();
                if drawn % 1000 >= rate {
                    return None;
                }
                let writes = !["get", "list", "watch"].contains(&info.verb);
                Some(match drawn / 1000 % 7 {
                    0 if writes => Fault::Answer(409),
                    1 => Fault::Answer(429),
                    2 => Fault::Answer(500),
                    3 if writes => Fault::LoseAnswer,
                    4 => Fault::DelayAnswer(Duration::from_millis(drawn / 7000 % 3000)),
                    5 if writes => Fault::Late(Duration::from_millis(drawn / 7000 % 3000)),
                    _ => Fault::Break,
                })
            });
        }
    }

    async fn wait(&mut self, world: &mut World, time: Duration) -> Result<(), String> {
        let end = world.now() + time;
        while world.now() < end {
            world.step().await?;
            for dead in world.bury() {
                let later = world.now() + self.seconds(15);
                self.ends.push((later, End::Start(dead.0, dead.1)));
            }
            let now = world.now();
            let (over, rest) = std::mem::take(&mut self.ends).into_iter().partition(|(at, _)| *at <= now);
            self.ends = rest;
            let over: Vec<(Mono, End)> = over;
            over.into_iter().for_each(|(_, end)| self.end(world, end));
        }
        Ok(())
    }

    fn end(&mut self, world: &mut World, end: End) {
        let (cluster, what) = match end {
            End::Away(cluster) => {
                world.away(cluster, None);
                (cluster, "the API server is back".to_owned())
            }
            End::Errors(cluster) => {
                self.errors.lock().unwrap().remove(&cluster);
                world.wrong[cluster].remove("errors");
                (cluster, "requests succeed again".to_owned())
            }
            End::Mute(cluster) => {
                world.wrong[cluster].remove("mute");
                return;
            }
            End::Lag(cluster, resource) => {
                world.clusters[cluster].server.catch_up(resource);
                world.wrong[cluster].remove("lag");
                (cluster, format!("watches of {resource} catch up"))
            }
            End::Skip(cluster, resource) => {
                world.clusters[cluster].server.skip(resource);
                world.wrong[cluster].remove("skip");
                (cluster, format!("watches of {resource} skip to the last event of each object"))
            }
            End::Lose(cluster, resource) => {
                // No agent lists by itself: that nobody lost more than that is for the API server to say.
                world.clusters[cluster].server.drop_next_events(resource, 0);
                world.clusters[cluster].server.compact();
                world.wrong[cluster].remove("lose");
                (cluster, "watches begin with a list".to_owned())
            }
            End::Unlisted(cluster) => {
                self.unlisted.lock().unwrap().remove(&cluster);
                world.wrong[cluster].remove("unlisted");
                (cluster, "all kinds can be read again".to_owned())
            }
            End::CutOff(cluster) => {
                world.agents[cluster].iter().flatten().for_each(|agent| agent.cut_off(false));
                world.wrong[cluster].remove("cut-off");
                (cluster, "the agent reaches its API server again".to_owned())
            }
            End::Clock(cluster) => {
                world.sites[cluster].clock.set_wrong(0);
                world.wrong[cluster].remove("clock");
                (cluster, "the agents' clock is right again".to_owned())
            }
            End::Drift(cluster) => {
                world.sites[cluster].clock.set_drift(0.0);
                world.wrong[cluster].remove("drift");
                (cluster, "the agents' monotonic clock is as fast as others".to_owned())
            }
            End::Loss => {
                world.set_loss(0, Duration::ZERO);
                return world.say("no packets are lost any more");
            }
            End::Nodes(cluster) => {
                world.clusters[cluster].autoscaler.iter_mut().for_each(|autoscaler| autoscaler.change(ENOUGH));
                (cluster, "nodes come again".to_owned())
            }
            End::Drain(cluster, other) => {
                drop(world.clusters[cluster].server.patch::<ClusterPeer>(
                    SYSTEM,
                    NAMES[other],
                    json!({"spec": {"drain": false}}),
                ));
                (cluster, format!("{} is not drained any more", NAMES[other]))
            }
            End::Peer(cluster, other) => {
                world.befriend(cluster, other);
                (cluster, format!("there is a ClusterPeer {} again", NAMES[other]))
            }
            // Nothing is deleted by an API server that is away; and what no agent can have seen to end by now stays.
            End::Tidy(cluster, _) if UNSEEN.iter().any(|fault| world.wrong[cluster].contains(fault)) => return,
            End::Tidy(cluster, root) => {
                let (server, root) = (&world.clusters[cluster].server, ROOTS[root]);
                let job = server.get::<Job>(USERS, root);
                if job.and_then(|job| job.status?.completion_time).is_none() {
                    return;
                }
                drop(server.delete::<Job>(USERS, root, &DeleteParams::background()));
                (cluster, format!("Job {root}, which has ended, is deleted"))
            }
            End::Start(cluster, replica) => return world.start(cluster, replica),
            End::Cut(a, b) => return world.heal(a, b),
        };
        world.say(format!("{}: {what}", NAMES[cluster]));
    }

    fn later(&mut self, world: &World, end: End) {
        let lasts = self.seconds(8);
        self.ends.push((world.now() + lasts, end));
    }

    fn end_all(&mut self, world: &mut World) {
        for agent in world.agents.iter().flatten().flatten() {
            agent.die_at(-1);
        }
        world.bury();
        // What no agent could have seen to end by now stays.
        self.ends.retain(|(_, end)| !matches!(end, End::Tidy(..)));
        for (_, end) in std::mem::take(&mut self.ends) {
            self.end(world, end);
        }
        for cluster in 0..world.clusters.len() {
            (0..world.agents[cluster].len()).for_each(|replica| world.start(cluster, replica));
        }
    }

    /// Owners of a cluster, and what they do about a peer.
    fn owner(&mut self, world: &mut World) {
        let (cluster, lasts) = (self.below(world.clusters.len()), self.seconds(30));
        let other = (cluster + 1 + self.below(world.clusters.len() - 1)) % world.clusters.len();
        let (name, peer) = (NAMES[cluster], NAMES[other]);
        let server = world.clusters[cluster].server.clone();
        // What they threw out is not offered to them again.
        self.evicted.extend(ROOTS.map(str::to_owned));
        let end = match self.below(2) {
            0 => {
                *self.counts.entry("drain").or_default() += 1;
                world.say(format!("{name}: {peer} is drained"));
                drop(server.patch::<ClusterPeer>(SYSTEM, peer, json!({"spec": {"drain": true}})));
                End::Drain(cluster, other)
            }
            _ => {
                *self.counts.entry("forget").or_default() += 1;
                world.say(format!("{name}: ClusterPeer {peer} is deleted"));
                drop(server.delete::<ClusterPeer>(SYSTEM, peer, &DeleteParams::background()));
                End::Peer(cluster, other)
            }
        };
        self.ends.push((world.now() + lasts, end));
    }

    /// Users, and owners who throw a burst out.
    fn user(&mut self, world: &mut World) {
        let (cluster, name) = (self.below(world.clusters.len()), ROOTS[self.below(ROOTS.len())]);
        let there = roots(world, cluster).iter().any(|root| root == name);
        let what = match self.below(11) {
            _ if !there => "apply",
            0 => "delete",
            1 => "again",
            2 => "scale",
            3 => "resize",
            4 => "evict",
            5 => "finish",
            6 => "tidy",
            7 => "spoil",
            8 | 9 => "forget-burst",
            _ => "suspend",
        };
        let server = world.clusters[cluster].server.clone();
        *self.counts.entry(what).or_default() += 1;
        match what {
            "apply" => self.apply(world, cluster, name),
            "delete" => world.delete(cluster, name),
            "again" => {
                world.delete(cluster, name);
                world.clusters[cluster].step();
                if server.get::<MiniCluster>(USERS, name).is_none() {
                    self.apply(world, cluster, name);
                }
            }
            "scale" => {
                let size = 1 + self.below(3);
                world.say(format!("{}: the burst of {name} shall have {size}", NAMES[cluster]));
                let Some(root) = server.get::<MiniCluster>(USERS, name) else { return };
                let mut clusters = serde_json::to_value(&root.spec.flux.bursting.clusters).unwrap();
                clusters[0]["size"] = size.into();
                let spec = json!({"spec": {"flux": {"bursting": {"clusters": clusters}}}});
                drop(server.patch::<MiniCluster>(USERS, name, spec));
            }
            "resize" => {
                let size = 1 + self.below(3);
                world.say(format!("{}: {name} shall have {size} at home", NAMES[cluster]));
                drop(server.patch::<MiniCluster>(USERS, name, json!({"spec": {"size": size}})));
            }
            "evict" => {
                let hosted = server.list::<HostedBurst>();
                let Some(hosted) = hosted.first() else { return };
                self.evicted.push(hosted.spec.root.name.clone());
                world.throw_out(cluster, hosted);
            }
            "finish" => {
                if world.clusters[cluster].finish(name, 0) {
                    world.say(format!("{}: the command of {name} is done", NAMES[cluster]));
                }
            }
            "tidy" => {
                let finished = world.clusters[cluster].finish(name, 0);
                self.later(world, End::Tidy(cluster, ROOTS.iter().position(|root| *root == name).unwrap()));
                if finished {
                    world.say(format!("{}: the command of {name} is done; its Job is deleted soon", NAMES[cluster]));
                }
            }
            "spoil" => {
                let hosted = server.list::<HostedBurst>();
                let Some(hosted) = hosted.first().map(|hosted| hosted.name_any()) else { return };
                world.say(format!("{}: Job {hosted} is deleted", NAMES[cluster]));
                drop(server.delete::<Job>(USERS, &hosted, &DeleteParams::background()));
            }
            "forget-burst" => {
                let bursts = server.list::<Burst>();
                let own = |burst: &&Burst| burst.owner_references().iter().any(|owner| owner.name == name);
                let Some(burst) = bursts.iter().find(own) else { return };
                world.say(format!("{}: Burst {} is deleted", NAMES[cluster], burst.name_any()));
                drop(server.delete::<Burst>(USERS, &burst.name_any(), &DeleteParams::background()));
            }
            _ => {
                let suspended = server.get::<MiniCluster>(USERS, name).is_some_and(|root| root.spec.suspend);
                world.say(format!("{}: suspend of {name} is {}", NAMES[cluster], !suspended));
                drop(server.patch::<MiniCluster>(USERS, name, json!({"spec": {"suspend": !suspended}})));
            }
        }
    }

    fn apply(&mut self, world: &mut World, cluster: usize, name: &str) {
        let (size, burst) = (1 + self.below(2), 1 + self.below(3));
        let mut clusters = json!([{"size": burst, "maxSize": 3}]);
        if self.below(3) == 0 {
            let others: Vec<usize> = (0..world.clusters.len()).filter(|other| *other != cluster).collect();
            clusters[0]["peer"] = NAMES[others[self.below(others.len())]].into();
        }
        let network = ["NodePort", "NodePort", "Tunnel"][self.below(3)];
        if world.sites[cluster].settings.nodes && self.below(3) > 0 {
            // No node that is there is as large.
            clusters[0]["resources"] = json!({"requests": {"cpu": 40}});
        }
        world.apply(cluster, name, i32::try_from(size).unwrap(), clusters, network);
    }

    /// Nodes come late, or some of them, or none, or such that nothing fits on.
    fn nodes(&mut self, world: &mut World, cluster: usize) {
        let takes = Duration::from_secs([1, 20, 29, 90][self.below(4)]);
        let (cores, most) = ([64, 64, 48, 32][self.below(4)], [0, 1, 2, 40][self.below(4)]);
        let Some(autoscaler) = &mut world.clusters[cluster].autoscaler else { return };
        autoscaler.change((cores, most, takes));
        *self.counts.entry("nodes").or_default() += 1;
        world.say(format!("{}: nodes of {cores} cores come, {most} at most, in {takes:?}", NAMES[cluster]));
        let lasts = self.seconds(90);
        self.ends.push((world.now() + lasts, End::Nodes(cluster)));
    }

    fn fault(&mut self, world: &mut World) {
        let cluster = self.below(world.clusters.len());
        if world.sites[cluster].settings.nodes && self.below(3) == 0 {
            return self.nodes(world, cluster);
        }
        let which = self.below(self.faults.len());
        let what = self.faults[which];
        let (name, lasts) = (NAMES[cluster], self.seconds(40));
        let replica = self.below(world.agents[cluster].len());
        let server = world.clusters[cluster].server.clone();
        *self.counts.entry(what).or_default() += 1;
        if ["away", "errors", "lag", "skip", "lose", "unlisted", "cut-off", "clock", "drift"].contains(&what) {
            world.wrong[cluster].insert(what);
        }
        let end = match what {
            "away" => {
                let away = if self.below(2) == 0 { Away::Refuses } else { Away::Silent };
                world.say(format!("{name}: the API server is away ({away:?})"));
                world.away(cluster, Some(away));
                End::Away(cluster)
            }
            "restart" => {
                world.say(format!("{name}: the API server is started again"));
                server.restart();
                world.away(cluster, Some(Away::Refuses));
                End::Away(cluster)
            }
            "errors" => {
                let rate = [20, 100, 300][self.below(3)];
                world.say(format!("{name}: {rate} of 1000 requests go wrong"));
                self.errors.lock().unwrap().insert(cluster, rate);
                End::Errors(cluster)
            }
            "watches" => {
                world.say(format!("{name}: all watches end"));
                return server.end_watches();
            }
            "mute" => {
                world.say(format!("{name}: all watches die in silence"));
                // Until all have noticed.
                world.wrong[cluster].insert("mute");
                server.mute_watches();
                return self.ends.push((world.now() + Duration::from_secs(45), End::Mute(cluster)));
            }
            "lag" => {
                let resource = KINDS[self.below(KINDS.len())];
                world.say(format!("{name}: watches of {resource} lag"));
                server.lag(resource);
                End::Lag(cluster, resource)
            }
            "skip" => {
                let resource = KINDS[self.below(KINDS.len())];
                world.say(format!("{name}: watches of {resource} lag, and skip then"));
                server.lag(resource);
                End::Skip(cluster, resource)
            }
            "lose" => {
                let (resource, count) = (KINDS[self.below(KINDS.len())], 1 + self.below(3));
                world.say(format!("{name}: watches of {resource} lose their next {count} events"));
                server.drop_next_events(resource, count as u64);
                End::Lose(cluster, resource)
            }
            "unlisted" => {
                let kind = KINDS[self.below(KINDS.len())];
                world.say(format!("{name}: {kind} cannot be listed, and their watches end"));
                self.unlisted.lock().unwrap().insert(cluster, kind);
                server.end_watches();
                End::Unlisted(cluster)
            }
            "kill" => {
                world.kill(cluster, replica);
                End::Start(cluster, replica)
            }
            "cut-off" => {
                world.say(format!("{name}: agent {replica} does not reach its API server"));
                if let Some(agent) = &world.agents[cluster][replica] {
                    agent.cut_off(true);
                }
                End::CutOff(cluster)
            }
            "clock" => {
                let wrong = [-3600, -120, -5, 5, 120, 3600][self.below(6)];
                world.say(format!("{name}: the clock of the agents is wrong by {wrong} s"));
                world.sites[cluster].clock.set_wrong(wrong);
                End::Clock(cluster)
            }
            "drift" => {
                let drift = [-10.0, -1.0, 1.0, 10.0][self.below(4)];
                world.say(format!("{name}: the agents' monotonic clock is faster by {drift} of 1000"));
                world.sites[cluster].clock.set_drift(drift);
                End::Drift(cluster)
            }
            "loss" => {
                let (lost, jitter) = ([10, 50, 200][self.below(3)], [0, 100, 500][self.below(3)]);
                world.say(format!("{lost} of 1000 packets are lost, others take up to {jitter} ms longer"));
                world.set_loss(lost, Duration::from_millis(jitter));
                End::Loss
            }
            "die" => {
                let n = 1 + self.below(12);
                world.say(format!("{name}: the agent dies at its write {n}"));
                if let Some(agent) = &world.agents[cluster][replica] {
                    agent.die_at(i64::try_from(n).unwrap());
                }
                return;
            }
            _ => {
                let other = (cluster + 1 + self.below(world.clusters.len() - 1)) % world.clusters.len();
                world.cut(cluster, other, what == "cut");
                End::Cut(cluster, other)
            }
        };
        self.ends.push((world.now() + lasts, end));
    }
}
