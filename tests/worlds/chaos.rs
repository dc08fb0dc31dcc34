//! What happens to a world by chance: users, owners and faults, by a seed.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use k8s_openapi::api::batch::v1::Job;
use kube::ResourceExt as _;
use kube::api::DeleteParams;
use serde_json::json;
use tributary::api::burst::Burst;
use tributary::api::hosted_burst::{BurstPhase, HostedBurst};
use tributary::api::minicluster::MiniCluster;
use tributary::clock::{Mono, Rng as _, SeededRng};
use tributary_cluster::testing::{Away, Fault};

use crate::cluster::USERS;
use crate::invariants::FOREIGN;
use crate::world::{NAMES, World};

/// Kinds of faults, by the names in `WORLDS_FAULTS`.
pub const FAULTS: [&str; 7] = ["away", "errors", "watches", "lag", "kill", "die", "cut"];

/// The names of roots.
const ROOTS: [&str; 3] = ["lake", "pond", FOREIGN];

/// How long everything may take once faults are over.
const PATIENCE: Duration = Duration::from_secs(10 * 60);

pub struct Chaos {
    rng: SeededRng,
    faults: Vec<&'static str>,
    /// What ends at which time.
    ends: Vec<(Mono, End)>,
    /// Roots whose bursts an owner threw out.
    evicted: Vec<String>,
    /// By cluster: how many of a thousand requests go wrong.
    errors: Arc<Mutex<BTreeMap<usize, u64>>>,
    /// What was done, by its name.
    pub counts: BTreeMap<&'static str, usize>,
}

enum End {
    Away(usize),
    Errors(usize),
    Lag(usize, &'static str),
    Start(usize),
    Cut(usize, usize),
}

impl Chaos {
    pub fn new(seed: u64, faults: Vec<&'static str>) -> Self {
        let rng = SeededRng::new(seed);
        Self { rng, faults, ends: Vec::new(), evicted: Vec::new(), errors: Arc::default(), counts: BTreeMap::new() }
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
        for _ in 0..events {
            let pause = self.seconds(8);
            self.wait(world, pause).await?;
            if self.faults.is_empty() || self.below(5) < 3 { self.user(world) } else { self.fault(world) }
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
        world.say("nothing is left");
        Ok(())
    }

    fn arm(&mut self, world: &World) {
        for (number, cluster) in world.clusters.iter().enumerate() {
            let errors = self.errors.clone();
            let mut rng = SeededRng::new(self.rng.next_u64());
            let rng = Mutex::new(move || rng.next_u64());
            cluster.server.on_request(move |info| {
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
                self.ends.push((later, End::Start(dead)));
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
        match end {
            End::Away(cluster) => {
                world.say(format!("{}: the API server is back", NAMES[cluster]));
                world.clusters[cluster].server.set_away(None);
            }
            End::Errors(cluster) => {
                world.say(format!("{}: requests succeed again", NAMES[cluster]));
                self.errors.lock().unwrap().remove(&cluster);
            }
            End::Lag(cluster, resource) => {
                world.say(format!("{}: watches of {resource} catch up", NAMES[cluster]));
                world.clusters[cluster].server.catch_up(resource);
            }
            End::Start(cluster) => world.start(cluster),
            End::Cut(a, b) => {
                world.say(format!("{} and {} reach each other again", NAMES[a], NAMES[b]));
                world.network.heal(NAMES[a], NAMES[b]);
            }
        }
    }

    fn end_all(&mut self, world: &mut World) {
        for agent in world.agents.iter().flatten() {
            agent.die_at(-1);
        }
        world.bury();
        for (_, end) in std::mem::take(&mut self.ends) {
            self.end(world, end);
        }
        (0..world.clusters.len()).for_each(|cluster| world.start(cluster));
    }

    /// Users and owners.
    fn user(&mut self, world: &mut World) {
        let (cluster, name) = (self.below(world.clusters.len()), ROOTS[self.below(ROOTS.len())]);
        let there = roots(world, cluster).iter().any(|root| root == name);
        let what = match self.below(8) {
            _ if !there => "apply",
            0 | 1 => "delete",
            2 => "again",
            3 => "scale",
            4 => "resize",
            5 => "evict",
            6 => "finish",
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
                world.say(format!("{}: the owner deletes HostedBurst {}", NAMES[cluster], hosted.name_any()));
                self.evicted.push(hosted.spec.root.name.clone());
                drop(server.delete::<HostedBurst>(USERS, &hosted.name_any(), &DeleteParams::background()));
            }
            "finish" => {
                if world.clusters[cluster].finish(name, 0) {
                    world.say(format!("{}: the command of {name} is done", NAMES[cluster]));
                }
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
        if self.below(2) == 0 {
            let others: Vec<usize> = (0..world.clusters.len()).filter(|other| *other != cluster).collect();
            clusters[0]["peer"] = NAMES[others[self.below(others.len())]].into();
        }
        world.apply(cluster, name, i32::try_from(size).unwrap(), clusters);
    }

    fn fault(&mut self, world: &mut World) {
        let cluster = self.below(world.clusters.len());
        let which = self.below(self.faults.len());
        let what = self.faults[which];
        let (name, lasts) = (NAMES[cluster], self.seconds(40));
        let server = world.clusters[cluster].server.clone();
        *self.counts.entry(what).or_default() += 1;
        let end = match what {
            "away" => {
                let away = if self.below(2) == 0 { Away::Refuses } else { Away::Silent };
                world.say(format!("{name}: the API server is away ({away:?})"));
                server.set_away(Some(away));
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
            "lag" => {
                let of = ["miniclusters", "bursts", "hostedbursts", "jobs", "pods", "services", "configmaps"];
                let resource = of[self.below(of.len())];
                world.say(format!("{name}: watches of {resource} lag"));
                server.lag(resource);
                End::Lag(cluster, resource)
            }
            "kill" => {
                world.kill(cluster);
                End::Start(cluster)
            }
            "die" => {
                let n = 1 + self.below(12);
                world.say(format!("{name}: the agent dies at its write {n}"));
                if let Some(agent) = &world.agents[cluster] {
                    agent.die_at(i64::try_from(n).unwrap());
                }
                return;
            }
            _ => {
                let other = (cluster + 1 + self.below(world.clusters.len() - 1)) % world.clusters.len();
                world.say(format!("{name} and {} do not reach each other", NAMES[other]));
                world.network.cut(name, NAMES[other]);
                End::Cut(cluster, other)
            }
        };
        self.ends.push((world.now() + lasts, end));
    }
}

fn roots(world: &World, cluster: usize) -> Vec<String> {
    let all = world.clusters[cluster].server.list::<MiniCluster>();
    all.iter().filter(|object| object.owner_references().is_empty()).map(|object| object.name_any()).collect()
}

/// What is not as it should be, once nothing goes wrong any more.
fn troubles(world: &World, evicted: &[String]) -> Vec<String> {
    let mut troubles = Vec::new();
    for (number, cluster) in world.clusters.iter().enumerate() {
        for root in roots(world, number).into_iter().filter(|root| root != FOREIGN) {
            let Some(object) = cluster.server.get::<MiniCluster>(USERS, &root) else { continue };
            let job = cluster.server.get::<Job>(USERS, &root);
            let over = job.as_ref().and_then(|job| job.status.as_ref()?.completion_time.as_ref()).is_some();
            if over || object.spec.suspend {
                continue;
            }
            let status = object.status.clone().unwrap_or_default();
            // An instance has room for as many as it was started with.
            let wanted = object.spec.size.map(|size| size.min(status.maximum_size));
            if status.ready != wanted {
                troubles.push(format!("{}/{root} has {:?} ready of {:?}", cluster.name, status.ready, wanted));
            }
            let bursts = cluster.server.list::<Burst>();
            let own: Vec<&Burst> =
                bursts.iter().filter(|burst| burst.owner_references().iter().any(|o| o.name == root)).collect();
            if own.is_empty() {
                troubles.push(format!("{}/{root} has no bursts", cluster.name));
            }
            for burst in own.into_iter().filter(|_| !evicted.contains(&root)) {
                let phase = burst.status.as_ref().map(|status| status.phase);
                if phase != Some(BurstPhase::Ready) {
                    troubles.push(format!("{}/{} is {phase:?}", cluster.name, burst.name_any()));
                }
            }
        }
    }
    troubles
}
