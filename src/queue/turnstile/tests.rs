use std::collections::VecDeque;

use kube::runtime::watcher::Event;
use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::clock::SystemClock;
use crate::queue::claims::Claims;
use crate::queue::overflow;
use crate::queue::round::{View, round};

const QUOTA: i64 = 8;

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(1_000_000 + second).unwrap()
}

fn take<K: crate::cluster::caches::Watched>(cache: &Cache<K>, object: Value) {
    cache.take(Event::Apply(serde_json::from_value(object).unwrap()));
}

/// A namespace with a quota of [`QUOTA`] brokers, and what its reconciler does of it.
struct World {
    turnstile: Turnstile,
    setups: Cache<FluxSetup>,
    reconciler: Queue<ObjectKey>,
    mini_clusters: BTreeMap<String, MiniCluster>,
    /// Brokers of Jobs that run.
    jobs: BTreeMap<String, i64>,
    incarnations: usize,
    second: i64,
}

impl World {
    fn new() -> Self {
        let (setups, jobs) = (Cache::<FluxSetup>::empty(), Cache::<FluxJob>::empty());
        let reconciler = Queue::new(SystemClock::shared());
        let turnstile = Turnstile::new(setups.clone(), jobs.clone(), Queue::new(SystemClock::shared()));
        turnstile.leads_to(reconciler.clone());
        setups.take(Event::Init);
        setups.take(Event::InitDone);
        take(
            &setups,
            json!({"apiVersion": "tributary.dev/v1alpha1", "kind": "FluxSetup",
                "metadata": {"name": "default", "namespace": "hpc", "resourceVersion": "1"},
                "spec": {"quota": {"brokers": QUOTA}}}),
        );
        let (mini_clusters, jobs) = (BTreeMap::new(), BTreeMap::new());
        Self { turnstile, setups, reconciler, mini_clusters, jobs, incarnations: 0, second: 0 }
    }

    fn cluster(&mut self, name: &str, size: i64) {
        self.second += 1;
        let object = json!({"apiVersion": "flux-framework.org/v1alpha2", "kind": "MiniCluster",
            "metadata": {"name": name, "namespace": "hpc", "uid": name, "creationTimestamp": at(self.second).to_string()},
            "spec": {"size": size, "containers": [{}]}});
        self.mini_clusters.insert(name.to_owned(), serde_json::from_value(object).unwrap());
    }

    /// Its Job shrinks at once, and does not grow: that is asked for apart.
    fn resize(&mut self, name: &str, size: i32) {
        let found = self.mini_clusters.get_mut(name).unwrap();
        found.spec.size = Some(size);
        if let Some(brokers) = self.jobs.get_mut(name) {
            *brokers = (*brokers).min(size.into());
            found.status.get_or_insert_default().size = (*brokers).try_into().unwrap();
        }
    }

    fn says(&mut self, name: &str, phase: &str) {
        let status = self.mini_clusters.get_mut(name).unwrap().status.get_or_insert_default();
        status.phase = Some(serde_json::from_value(json!(phase)).unwrap());
        status.size = self.jobs.get(name).copied().unwrap_or(0).try_into().unwrap();
    }

    /// As the reconciler does where there is no Job.
    fn starts(&mut self, name: &str) -> bool {
        let found = self.mini_clusters[name].clone();
        match self.turnstile.ask(&found, at(self.second)) {
            Ok(()) => {
                self.incarnations += 1;
                self.jobs.insert(name.to_owned(), found.spec.size().into());
                self.mini_clusters.get_mut(name).unwrap().status.get_or_insert_default().incarnation =
                    Some(format!("job-{}", self.incarnations));
                self.says(name, "Running");
                true
            }
            Err(_) => {
                self.says(name, "Pending");
                false
            }
        }
    }

    /// Its instance ends; its Job is cleared away.
    fn ends(&mut self, name: &str) {
        self.jobs.remove(name);
        self.says(name, "Succeeded");
    }

    /// The Job of one that runs is deleted, to be made anew.
    fn restarts(&mut self, name: &str) -> bool {
        self.says(name, "Restarting");
        self.jobs.remove(name);
        self.starts(name)
    }

    fn round(&mut self) -> Round {
        self.second += 1;
        let found: Vec<_> = self.mini_clusters.values().cloned().map(Arc::new).collect();
        let look = self.turnstile.look("hpc", || found);
        let view = View {
            now: at(self.second),
            setups: &self.setups.objects(),
            jobs: &[],
            mini_clusters: &look.mini_clusters,
            hosted: &[],
            reserved: &BTreeMap::new(),
            asked: &look.asked,
            granted: &look.granted,
            starts: &look.starts,
            growing: &look.growing,
            held: &look.held,
            bursts: &[],
            nodes: &crate::queue::nodes::tests::without_end(),
            peers: &(Arc::new(|| Box::new(|_: &_, _: &_| None) as overflow::PeersNow) as overflow::Peers),
            sender: &overflow::sender(),
        };
        let round = round(&view, &mut Claims::default());
        self.turnstile.turn("hpc", &round, at(self.second));
        self.turnstile.retain(&self.mini_clusters.keys().cloned().collect());
        round
    }

    fn told(&self, name: &str) -> String {
        self.turnstile.ask(&self.mini_clusters[name], at(self.second)).unwrap_err()
    }
}

#[test]
fn a_restart_with_more_brokers_waits_in_line() {
    let mut world = World::new();
    world.cluster("a", 4);
    assert!(!world.starts("a"));
    world.round();
    assert!(world.starts("a"));
    world.cluster("b", 4);
    world.starts("b");
    world.round();
    assert!(world.starts("b"));
    // As large as it was, it keeps its room.
    world.round();
    assert!(world.restarts("a"));
    world.resize("a", 6);
    world.round();
    assert!(!world.restarts("a"), "b has the rest");
    world.round();
    assert_eq!(world.told("a"), "it is next in line: 6 brokers are needed, 4 are free");
    world.ends("b");
    world.round();
    assert!(world.starts("a"));
    world.resize("a", 64);
    assert!(!world.restarts("a"));
    world.round();
    assert!(world.told("a").starts_with("it can never start here: 64 brokers"), "{}", world.told("a"));
}

#[test]
fn a_grant_is_for_what_was_asked() {
    let mut world = World::new();
    world.cluster("a", 4);
    world.starts("a");
    world.round();
    // Between the round and the Job.
    world.resize("a", 64);
    assert!(!world.starts("a"));
    world.round();
    assert_eq!(world.jobs.len(), 0);
    world.resize("a", 8);
    world.round();
    assert!(world.starts("a"));
}

#[test]
fn what_ended_is_run_once_more_when_there_is_room_and_is_told_what_it_waits_for() {
    let mut world = World::new();
    for name in ["old", "new"] {
        world.cluster(name, 5);
        world.starts(name);
        world.round();
        assert!(world.starts(name), "{name}");
        if name == "old" {
            world.ends(name);
        }
    }
    // Nobody has looked since it ended; and its Job went, but its status says that it ended.
    assert!(world.turnstile.ask(&world.mini_clusters["old"], at(99)).is_err());
    let depth = world.reconciler.depth();
    for _ in 0..4 {
        world.round();
        let told = world.told("old");
        assert_eq!(told, "it is next in line: 5 brokers are needed, 3 are free");
        assert_eq!(
            world.reconciler.depth(),
            depth.max(1),
            "its key is marked when what it waits for changes, not each time"
        );
    }
    world.ends("new");
    world.round();
    world.round();
    assert!(world.starts("old"), "what was granted is not taken back, though its status says that it ended");
}

#[derive(Clone, Debug)]
enum Happens {
    Asks(usize),
    Resizes(usize, i32),
    Ends(usize),
    Restarts(usize),
    Round,
    /// The Job is deleted by hand; the status is not written yet.
    JobGoes(usize),
}

proptest! {
    /// Whatever users do to sizes, Jobs and annotations: what runs is never more than the quota.
    #[test]
    fn jobs_never_have_more_brokers_than_the_quota(story in proptest::collection::vec(prop_oneof![
        (0_usize..3).prop_map(Happens::Asks),
        (0_usize..3, 1_i32..12).prop_map(|(which, size)| Happens::Resizes(which, size)),
        (0_usize..3).prop_map(Happens::Ends),
        (0_usize..3).prop_map(Happens::Restarts),
        (0_usize..3).prop_map(Happens::JobGoes),
        Just(Happens::Round),
    ], 0..60)) {
        let mut world = World::new();
        let names = ["a", "b", "c"];
        names.iter().for_each(|name| world.cluster(name, 4));
        let mut story = VecDeque::from(story);
        while let Some(what) = story.pop_front() {
            match what {
                Happens::Asks(which) if !world.jobs.contains_key(names[which]) => drop(world.starts(names[which])),
                Happens::Resizes(which, size) => world.resize(names[which], size),
                Happens::Ends(which) if world.jobs.contains_key(names[which]) => world.ends(names[which]),
                Happens::Restarts(which) if world.jobs.contains_key(names[which]) => drop(world.restarts(names[which])),
                Happens::JobGoes(which) => drop(world.jobs.remove(names[which])),
                Happens::Round => drop(world.round()),
                _ => {}
            }
            let taken: i64 = world.jobs.values().sum();
            prop_assert!(taken <= QUOTA, "{taken} brokers run: {:?}", world.jobs);
        }
    }
}
