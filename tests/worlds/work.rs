//! How much work MiniClusters and bursts are for the agents of both ends: in requests, passes, and memory that is asked for.
//! Never in time, which says more of the machine.
//!
//! `work.txt` has the figures of each one. A figure that grows by a tenth fails the test; `UPDATE_GENERATED=1` writes the file
//! again. `WORK_FEW=50 WORK_MANY=250` compares the first 50 bursts with those after 300, and takes minutes.

use std::collections::BTreeMap;
use std::time::Duration;
use std::{env, fs};

use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt as _;
use serde_json::{Value, json};
use tokio::runtime::{Builder, Runtime};
use tributary::api::hosted_burst::{BurstPhase, HostedBurst};
use tributary::api::minicluster::MiniCluster;
use tributary::api::peer::ClusterPeer;

use crate::agent::Settings;
use crate::cluster::SYSTEM;
use crate::scenarios::log;
use crate::world::World;

const SETTINGS: Settings = Settings {
    times: (300, 60, 30),
    limits: None,
    replicas: 1,
    ends: Duration::from_secs(1),
    varied: false,
    nodes: false,
};

/// Until a leader trusts its caches for what was there before it.
const BEGIN: Duration = Duration::from_secs(65);

/// Until all is quiet again.
const REST: Duration = Duration::from_secs(5);

const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/worlds/work.txt");

/// How much more a burst may be beside many others.
const MOST_GROWTH: f64 = 1.1;

/// How often something was done, by what it is; of all of them, or of each one.
type Figures = BTreeMap<String, f64>;

/// A world on a thread and a runtime of its own: memory that is asked for is counted by thread.
struct Bench {
    runtime: Runtime,
    world: World,
    made: usize,
}

impl Bench {
    fn start() -> Self {
        tributary::clock::seed_this_thread(Some(1));
        let runtime = Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
        let mut world = runtime.block_on(async { World::new(2, SETTINGS) });
        for cluster in &world.clusters {
            for peer in cluster.server.list::<ClusterPeer>() {
                let offers = json!({"spec": {"import": {"maxOffersPerMinute": 10_000}}});
                cluster.server.patch::<ClusterPeer>(SYSTEM, &peer.name_any(), offers).unwrap();
            }
            for node in cluster.server.list::<Node>() {
                let room = json!({"cpu": "4096", "memory": "4096Gi", "pods": "8192"});
                cluster.server.patch_status::<Node>("", &node.name_any(), json!({"allocatable": room})).unwrap();
            }
        }
        runtime.block_on(rest(&mut world, BEGIN));
        Self { runtime, world, made: 0 }
    }

    /// So many more MiniClusters, each with these bursts, until `done` and all is quiet again: what each one was.
    fn make(&mut self, more: usize, size: i32, bursts: &Value, done: impl Fn(&World) -> bool) -> Figures {
        let before = self.figures();
        let Self { runtime, world, made } = self;
        let taken = allocation_counter::measure(|| {
            runtime.block_on(async {
                allocation_counter::opt_out(|| {
                    for number in *made..*made + more {
                        world.apply(0, &format!("lake-{number}"), size, bursts.clone(), "NodePort");
                    }
                });
                let (mut steps, mut over) = (0, false);
                while !over {
                    world.step_unchecked().await;
                    steps += 1;
                    // The look itself takes longer than a step.
                    if steps % 5 == 0 {
                        allocation_counter::opt_out(|| over = done(world));
                    }
                    assert!(steps < 2_000, "{}", world.summary());
                }
                rest(world, REST).await;
            });
        });
        self.made += more;
        let mut figures = self.figures();
        figures.iter_mut().for_each(|(name, count)| *count -= before.get(name).copied().unwrap_or_default());
        figures.insert("allocations".to_owned(), taken.count_total as f64);
        figures.insert("kB of allocations".to_owned(), (taken.bytes_total / 1000) as f64);
        figures.values_mut().for_each(|count| *count /= more as f64);
        figures.retain(|_, count| *count > 0.0);
        figures
    }

    fn figures(&self) -> Figures {
        let mut figures = Figures::new();
        for (agents, end) in self.world.agents.iter().zip(["root", "provider"]) {
            let agent = agents[0].as_ref().unwrap();
            let requests = agent.requests();
            figures.insert(format!("{end}: requests"), requests.values().sum::<u64>() as f64);
            figures.extend(requests.into_iter().map(|(what, count)| (format!("{end}: {what}"), count as f64)));
            for line in agent.metrics().lines() {
                let Some(line) = line.strip_prefix("tributary_controller_passes_total{controller=\"") else { continue };
                let (labels, count) = line.rsplit_once(' ').unwrap();
                let (controller, outcome) = labels.trim_end_matches("\"}").split_once("\",outcome=\"").unwrap();
                let count: f64 = count.parse().unwrap();
                figures.insert(format!("{end}: passes of {controller}, {outcome}"), count);
            }
        }
        figures
    }
}

async fn rest(world: &mut World, time: Duration) {
    let end = world.now() + time;
    while world.now() < end {
        world.step_unchecked().await;
    }
}

/// Whether so many MiniClusters of the first cluster have all their brokers.
fn all_ready(world: &World, count: usize) -> bool {
    let is_ready = |one: &&MiniCluster| one.status.as_ref().is_some_and(|status| status.ready == one.spec.size);
    world.clusters[0].server.list::<MiniCluster>().iter().filter(is_ready).count() == count
}

/// Whether so many bursts are ready.
fn all_burst(world: &World, count: usize) -> bool {
    let is_ready = |one: &&HostedBurst| one.status.as_ref().is_some_and(|status| status.phase == BurstPhase::Ready);
    world.clusters[1].server.list::<HostedBurst>().iter().filter(is_ready).count() == count
}

/// The figures as they are committed.
fn table(parts: &[(&str, &Figures)]) -> String {
    let mut text = String::new();
    for (part, figures) in parts {
        text += &format!("{part}\n");
        for (name, count) in *figures {
            text += &format!("  {count:8.1} {name}\n");
        }
    }
    text
}

/// What `now` has more of than `before`, by more than a tenth, or by one request of the four.
fn grown(part: &str, before: &str, now: &Figures) -> Vec<String> {
    let lines = before.split(&format!("{part}\n")).nth(1).unwrap_or_default().lines();
    let lines = lines.take_while(|line| line.starts_with("  ")).filter_map(|line| line.trim().split_once(' '));
    let before: Figures = lines.map(|(count, name)| (name.to_owned(), count.parse().unwrap())).collect();
    let allowed = |name: &String| before.get(name).copied().unwrap_or_default() * 1.1 + 0.3;
    let grown = now.iter().filter(|(name, count)| **count > allowed(name));
    grown.map(|(name, count)| format!("{part}: {name}: {:?} before, now {count:.1}", before.get(name))).collect()
}

#[test]
fn the_work_of_each_one_is_what_it_was_and_as_much_beside_many_as_beside_few() {
    log();
    let count =
        |name: &str, otherwise: usize| env::var(name).ok().map_or(otherwise, |text| text.parse().expect("a number"));
    let (few, many) = (count("WORK_FEW", 4), count("WORK_MANY", 16));
    let body = move || {
        let (mut bench, burst) = (Bench::start(), json!([{"size": 1, "peer": "west"}]));
        let alone = bench.make(few, 2, &json!([]), |world| all_ready(world, few));
        let first = bench.make(few, 1, &burst, |world| all_burst(world, few));
        bench.make(many, 1, &burst, |world| all_burst(world, few + many));
        let last = bench.make(few, 1, &burst, |world| all_burst(world, 2 * few + many));
        let parts = [("a MiniCluster of 2", &alone), ("a burst of 1 with its root of 1", &first)];
        println!("{}", table(&[parts[0], parts[1], ("the same beside many others", &last)]));
        let grows: Vec<String> = last
            .iter()
            .filter_map(|(name, last)| Some((name, first.get(name)?, last)))
            .filter(|(_, first, last)| **last > **first * MOST_GROWTH + 1.0)
            .map(|(name, first, last)| format!("{name}: {first:.1} beside {few}, {last:.1} beside {many}"))
            .collect();
        assert!(grows.is_empty(), "{grows:#?}");
        if few != 4 {
            return;
        }
        if env::var_os("UPDATE_GENERATED").is_some() {
            fs::write(FILE, table(&parts)).unwrap();
        }
        let before = fs::read_to_string(FILE).unwrap();
        let grown: Vec<String> = parts.iter().flat_map(|(part, now)| grown(part, &before, now)).collect();
        assert!(grown.is_empty(), "if that must be, UPDATE_GENERATED=1 writes {FILE} again: {grown:#?}");
    };
    std::thread::Builder::new().stack_size(16 << 20).spawn(body).unwrap().join().expect("no figure has grown");
}
