use std::collections::VecDeque;

use kube::runtime::watcher::Event;
use proptest::prelude::*;
use serde_json::{Value, json};
use tributary_clock::SystemClock;

use super::*;
use crate::claims::Claims;
use crate::controller::Ports;
use crate::hosted_usage::HostedUsage;
use crate::overflow::{self, Peers};
use crate::round::{Namespace, View, round};
use crate::testing::{at, object};

const QUOTA: i64 = 8;

fn take<K: tributary_cluster::caches::Watched>(cache: &Cache<K>, object: Value) {
    cache.take(Event::Apply(serde_json::from_value(object).unwrap()));
}

/// A namespace with a quota of [`QUOTA`] brokers, and what its reconciler does of it.
struct World {
    admission: Admission,
    setups: Cache<FluxSetup>,
    flux_jobs: Cache<FluxJob>,
    reconciler: Queue<ObjectKey>,
    mini_clusters: BTreeMap<String, MiniCluster>,
    /// Brokers of Jobs that run.
    jobs: BTreeMap<String, i64>,
    /// UIDs of the Jobs that were made last.
    uids: BTreeMap<String, String>,
    /// Those that were told to wait, which their status does not say yet.
    unsaid: BTreeSet<String>,
    second: i64,
}

impl World {
    fn new() -> Self {
        let (setups, jobs) = (Cache::<FluxSetup>::empty(), Cache::<FluxJob>::empty());
        let reconciler = Queue::new(SystemClock::shared());
        let admission = Admission::new(setups.clone(), jobs.clone(), Queue::new(SystemClock::shared()));
        admission.leads_to(reconciler.clone());
        setups.take(Event::Init);
        setups.take(Event::InitDone);
        take(
            &setups,
            json!({"apiVersion": "tributary.dev/v1alpha1", "kind": "FluxSetup",
                "metadata": {"name": "default", "namespace": "hpc", "resourceVersion": "1"},
                "spec": {"quota": {"brokers": QUOTA}}}),
        );
        let flux_jobs = jobs;
        let (mini_clusters, jobs) = (BTreeMap::new(), BTreeMap::new());
        let (uids, unsaid) = (BTreeMap::new(), BTreeSet::new());
        Self { admission, setups, flux_jobs, reconciler, mini_clusters, jobs, uids, unsaid, second: 0 }
    }

    fn cluster(&mut self, name: &str, size: i64) {
        self.second += 1;
        let rest = json!({"uid": name, "generation": 1, "spec": {"size": size, "containers": [{}]}});
        self.mini_clusters.insert(name.to_owned(), object(name, self.second, rest));
    }

    /// A FluxJob that was let in, and the MiniCluster that was made of it.
    fn flux_job(&mut self, name: &str, size: i64) {
        self.cluster(name, size);
        let holds = json!({"miniClusters": 1, "brokers": size, "cpu": size.to_string(), "memory": "0", "gpus": 0});
        let status =
            json!({"phase": "Running", "miniCluster": name, "admitted": at(self.second).to_string(), "holds": holds});
        take(
            &self.flux_jobs,
            json!({"apiVersion": "tributary.dev/v1alpha1", "kind": "FluxJob",
                "metadata": {"name": name, "namespace": "hpc", "uid": format!("job-of-{name}"), "resourceVersion": "1"},
                "spec": {"image": "rockylinux:9", "command": "hostname", "size": size}, "status": status}),
        );
        let owner = json!([{"apiVersion": "tributary.dev/v1alpha1", "kind": "FluxJob", "name": name,
            "uid": format!("job-of-{name}"), "controller": true}]);
        let made = self.mini_clusters.get_mut(name).unwrap();
        made.metadata.owner_references = serde_json::from_value(owner).unwrap();
    }

    /// Its Job shrinks at once, and does not grow: that is asked for apart.
    fn resize(&mut self, name: &str, size: i32) {
        let found = self.mini_clusters.get_mut(name).unwrap();
        found.spec.size = Some(size);
        found.metadata.generation = found.metadata.generation.map(|generation| generation + 1);
        if let Some(brokers) = self.jobs.get_mut(name) {
            *brokers = (*brokers).min(size.into());
        }
    }

    /// Its status is written, and shown.
    fn says(&mut self, name: &str, phase: &str) {
        let found = &self.mini_clusters[name];
        let has = self.jobs.get(name).map(|brokers| i32::try_from(*brokers).unwrap());
        let job = has.map(|has| (self.uids[name].as_str(), has));
        let holds = self.admission.holds(found, job).filter(|_| phase != "Succeeded");
        let condition = |type_: &str, status: &str, reason: &str| {
            json!({"type": type_, "status": status, "reason": reason, "message": "",
                "lastTransitionTime": at(0).to_string()})
        };
        let mut conditions = vec![condition("Valid", "True", "R"), condition("RestartRequired", "False", "R")];
        if phase == "Pending" {
            conditions.push(condition("Ready", "False", "Queued"));
        }
        let generation = found.metadata.generation;
        let status = self.mini_clusters.get_mut(name).unwrap().status.get_or_insert_default();
        if let Some((uid, _)) = job {
            status.incarnation = Some(uid.to_owned());
        }
        status.phase = Some(serde_json::from_value(json!(phase)).unwrap());
        status.conditions = serde_json::from_value(json!(conditions)).unwrap();
        status.began = holds.as_ref().and_then(|told| told.began).map(Time);
        status.admitted_seconds = holds.as_ref().and_then(|told| told.limit);
        let holds = holds.map(|told| told.usage);
        (status.size, status.holds, status.observed_generation) = (has.unwrap_or(0), holds, generation);
        self.unsaid.remove(name);
    }

    /// As the reconciler does where there is no Job, but for its status.
    fn asks(&mut self, name: &str) -> bool {
        if self.unsaid.contains(name) {
            self.says(name, "Pending");
        }
        let found = self.mini_clusters[name].clone();
        let may = self.admission.ask(&found, at(self.second)).is_ok();
        if may {
            let uid = format!("job-{}-{}", name, self.second);
            self.second += 1;
            self.jobs.insert(name.to_owned(), found.spec.size().into());
            self.uids.insert(name.to_owned(), uid);
        } else {
            self.unsaid.insert(name.to_owned());
        }
        may
    }

    /// As the reconciler does where there is no Job.
    fn starts(&mut self, name: &str) -> bool {
        let may = self.asks(name);
        self.says(name, if may { "Running" } else { "Pending" });
        may
    }

    /// As the reconciler does of one without a Job whose spec is not valid, or that the API server does not take.
    fn refuses(&mut self, name: &str) {
        self.admission.give_back(&self.mini_clusters[name]);
        self.says(name, "Refused");
    }

    /// Another agent takes the lead.
    fn another_leads(&mut self) {
        self.admission.begin();
        self.unsaid.clear();
    }

    /// Its instance ends; its Job is cleared away.
    fn ends(&mut self, name: &str) {
        self.says(name, "Succeeded");
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
        let seen = Namespace {
            now: at(self.second),
            setup: self.setups.objects().first().cloned(),
            jobs: self.flux_jobs.objects(),
            look: self.admission.look("hpc", || found),
            ..Namespace::default()
        };
        let peers: Peers = Arc::new(|| Box::new(|_: &_, _: &_| Err(String::new())));
        let (nodes, sender) = (crate::nodes::tests::without_end(), overflow::sender());
        let ports = Ports { nodes, peers, sender, guests: HostedUsage::default() };
        let view = View { seen: &seen, reserved: &BTreeMap::new(), elsewhere: &[], ports: &ports, began: at(0) };
        let round = round(&view, &mut Claims::default());
        self.admission.turn("hpc", &round, at(self.second));
        let now = Mono::from_start(Duration::from_secs(self.second.unsigned_abs()) * 10);
        self.admission.forget_what_is_gone(now, || self.mini_clusters.keys().cloned().collect());
        round
    }

    fn told(&self, name: &str) -> String {
        self.admission.ask(&self.mini_clusters[name], at(self.second)).unwrap_err()
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
    assert!(world.admission.ask(&world.mini_clusters["old"], at(99)).is_err());
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

#[test]
fn who_is_started_anew_under_another_leader_keeps_its_room_and_no_more() {
    // What happens to one while nobody leads, and whether it may start at once.
    type While = fn(&mut World);
    let table: [(&str, While, bool); 6] = [
        ("nothing", |_| {}, true),
        ("it shall be smaller", |world| world.resize("a", 3), true),
        ("it is edited twice", |world| [9, 4].into_iter().for_each(|size| world.resize("a", size)), true),
        ("it shall be larger", |world| world.resize("a", 5), false),
        ("it has ended", |world| world.ends("a"), false),
        (
            "its status says nothing",
            |world| world.mini_clusters.get_mut("a").unwrap().status.as_mut().unwrap().holds = None,
            false,
        ),
    ];
    for (case, happens, may) in table {
        for looks in [false, true] {
            let mut world = World::new();
            for name in ["a", "b"] {
                world.cluster(name, 4);
                world.starts(name);
                world.round();
                assert!(world.starts(name));
            }
            world.says("a", "Restarting");
            world.jobs.remove("a");
            world.another_leads();
            happens(&mut world);
            if looks {
                world.round();
            }
            assert_eq!(world.starts("a"), may, "{case}; a round was first: {looks}");
            world.round();
            let waits = world.admission.ask(&world.mini_clusters["a"], at(world.second)).is_err();
            let fits = world.mini_clusters["a"].spec.size() <= 4;
            assert_eq!(!waits, may || fits, "{case}: then it has its turn");
        }
    }
}

#[test]
fn what_runs_before_there_is_a_flux_setup_says_what_it_holds_before_another_leads() {
    let mut world = World::new();
    world.cluster("a", 4);
    world.jobs.insert("a".to_owned(), 4);
    world.uids.insert("a".to_owned(), "job".to_owned());
    // Nobody counted when this was written.
    world.says("a", "Running");
    world.mini_clusters.get_mut("a").unwrap().status.as_mut().unwrap().holds = None;
    let depth = world.reconciler.depth();
    world.round();
    assert_eq!(world.reconciler.depth(), depth + 1, "its reconciler is asked to say so");
    world.says("a", "Running");
    assert_eq!(world.mini_clusters["a"].status.as_ref().unwrap().holds.as_ref().unwrap().brokers, 4);
    world.cluster("b", 8);
    assert!(!world.starts("b"));
    world.another_leads();
    assert!(world.restarts("a"), "it keeps its room, and does not stand in line behind b");
}

#[test]
fn a_flux_job_lets_its_mini_cluster_in_once() {
    let mut world = World::new();
    world.flux_job("a", 8);
    assert!(world.starts("a"), "its FluxJob stood in line");
    world.round();
    // It shrinks, and another takes what it gave up.
    world.resize("a", 1);
    world.says("a", "Running");
    world.says("a", "Running");
    world.cluster("b", 7);
    world.starts("b");
    world.round();
    assert!(world.starts("b"));
    world.resize("a", 8);
    assert!(!world.restarts("a"), "that room is another's");
    world.round();
    assert!(!world.starts("a"));
    world.ends("b");
    world.round();
    assert!(world.starts("a"), "it stood in line like everybody");
}

#[test]
fn a_size_that_is_not_carried_out_frees_nothing() {
    let mut world = World::new();
    world.cluster("a", 8);
    world.starts("a");
    world.round();
    assert!(world.starts("a"));
    // Smaller, in a spec that is not valid: its Job runs on as it is, and its status is up to date.
    let found = world.mini_clusters.get_mut("a").unwrap();
    (found.spec.size, found.metadata.generation) = (Some(1), Some(2));
    for _ in 0..2 {
        world.says("a", "Running");
        world.round();
    }
    assert_eq!(world.mini_clusters["a"].status.as_ref().unwrap().holds.as_ref().unwrap().brokers, 8);
    world.cluster("b", 7);
    assert!(!world.starts("b"));
    world.round();
    assert!(!world.starts("b"), "all of it is taken");
    for leader in [false, true] {
        if leader {
            world.another_leads();
        }
        assert!(!world.starts("b"));
        world.round();
        assert!(!world.starts("b"), "{leader}");
    }
}

#[test]
fn its_time_counts_from_its_first_start_whoever_leads_and_however_often_it_is_started_anew() {
    let mut world = World::new();
    take(
        &world.setups,
        json!({"apiVersion": "tributary.dev/v1alpha1", "kind": "FluxSetup",
            "metadata": {"name": "default", "namespace": "hpc", "resourceVersion": "2"},
            "spec": {"quota": {"brokers": QUOTA}, "maxDuration": "1h"}}),
    );
    world.cluster("lake", 4);
    world.mini_clusters.get_mut("lake").unwrap().spec.deadline_seconds = Some(3000);
    assert!(!world.starts("lake"));
    world.round();
    assert!(world.starts("lake"));
    let allowance = |world: &World, started: Option<i64>, now: i64| {
        world.admission.allowance(&world.mini_clusters["lake"], started.map(at), at(now)).unwrap()
    };
    let used = |used: i64| Limits { longest: Some(3000), term: Some(3000), used };
    assert_eq!(allowance(&world, None, 500), used(0), "somebody else holds it back: it has not begun");
    assert_eq!(allowance(&world, Some(1000), 1500), used(0), "now it has");
    assert_eq!((allowance(&world, None, 1600), allowance(&world, Some(1700), 1700)), (used(600), used(700)));
    world.says("lake", "Running");
    world.second = 3000;
    assert!(world.restarts("lake"));
    assert_eq!(allowance(&world, None, 3000), used(2000));
    world.another_leads();
    assert_eq!(allowance(&world, Some(3000), 3100), used(2000), "its status tells");
    // More than it was let in for is not to be had: others plan on its end.
    world.mini_clusters.get_mut("lake").unwrap().spec.deadline_seconds = Some(3600);
    assert_eq!(allowance(&world, Some(3000), 3100), used(2000));
    world.second = 3999;
    assert!(world.restarts("lake"));
    world.second = 4001;
    assert!(!world.restarts("lake"), "its time is over: it stands in line");
    assert_eq!(
        allowance(&world, None, 4001),
        Limits { longest: Some(3600), term: None, used: 0 },
        "it was not let in again yet"
    );
    // Elsewhere nobody counts, and without a list nobody knows.
    let mut elsewhere = world.mini_clusters["lake"].clone();
    elsewhere.metadata.namespace = Some("other".into());
    assert_eq!(world.admission.allowance(&elsewhere, None, at(0)), Some(Limits::default()));
    let unread = Admission::new(Cache::empty(), Cache::empty(), Queue::new(SystemClock::shared()));
    assert_eq!(unread.allowance(&elsewhere, None, at(0)), None);
}

#[test]
fn what_one_gives_up_is_nobodys_before_its_status_says_so() {
    let mut world = World::new();
    for name in ["a", "b"] {
        world.cluster(name, 4);
    }
    world.starts("a");
    world.round();
    assert!(world.starts("a"));
    world.cluster("c", 4);
    for name in ["b", "c"] {
        world.starts(name);
    }
    world.round();
    assert!(world.starts("b") && !world.starts("c"));
    // It wants more now, and its agent ends before it has said that it waits.
    world.jobs.remove("a");
    world.resize("a", 6);
    assert!(!world.asks("a"));
    world.round();
    assert!(!world.asks("c"), "it is not given away");
    world.another_leads();
    world.resize("a", 4);
    assert!(world.starts("a"));
}

#[test]
fn what_is_refused_holds_nothing_whenever_that_is_found_out() {
    let mut world = World::new();
    for name in ["a", "b"] {
        world.cluster(name, QUOTA);
        world.starts(name);
    }
    world.round();
    // Let in; then the API server refuses its Job.
    assert!(world.admission.ask(&world.mini_clusters["a"], at(9)).is_ok());
    world.says("a", "Pending");
    world.refuses("a");
    world.round();
    assert!(world.starts("b"), "the room of one that was refused is free");
    // It asks again as often as it is tried, and becomes invalid in the line: then nobody waits for it.
    assert!(!world.starts("a"));
    world.cluster("c", 2);
    world.starts("c");
    world.refuses("a");
    world.ends("b");
    world.round();
    assert!(world.starts("c"));
    assert!(world.admission.state.lock().waiting.is_empty());
}

#[test]
fn the_room_of_a_refused_flux_job_is_free_once_that_has_ended() {
    let mut world = World::new();
    world.flux_job("a", QUOTA);
    assert!(world.admission.ask(&world.mini_clusters["a"], at(1)).is_ok());
    world.cluster("b", QUOTA);
    world.starts("b");
    world.refuses("a");
    let mut job = serde_json::to_value(&*world.flux_jobs.objects()[0]).unwrap();
    (job["status"]["phase"], job["metadata"]["resourceVersion"]) = (json!("Finished"), json!("2"));
    take(&world.flux_jobs, job);
    world.round();
    assert!(world.starts("b"));
    assert!(world.admission.is_told(&world.mini_clusters["a"]) && world.admission.is_told(&world.mini_clusters["b"]));
}

#[test]
fn what_a_flux_job_does_not_know_yet_is_not_told() {
    let mut world = World::new();
    world.flux_job("a", 1);
    assert!(!world.admission.is_told(&world.mini_clusters["a"]), "its FluxJob runs, as far as that knows");
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
    /// The status of one that has a Job is written.
    Writes(usize),
    AnotherLeads,
    /// One without a Job turns out to be refused.
    Refused(usize),
}

proptest! {
    /// Whatever users do to sizes, Jobs and annotations, and whoever leads: what runs is never more than the quota.
    #[test]
    fn jobs_never_have_more_brokers_than_the_quota(story in proptest::collection::vec(prop_oneof![
        (0_usize..3).prop_map(Happens::Asks),
        (0_usize..3, 1_i32..12).prop_map(|(which, size)| Happens::Resizes(which, size)),
        (0_usize..3).prop_map(Happens::Ends),
        (0_usize..3).prop_map(Happens::Restarts),
        (0_usize..3).prop_map(Happens::JobGoes),
        (0_usize..3).prop_map(Happens::Writes),
        Just(Happens::Round),
        Just(Happens::Round),
        Just(Happens::AnotherLeads),
        (0_usize..3).prop_map(Happens::Refused),
    ], 0..80)) {
        let mut world = World::new();
        let names = ["a", "b", "c"];
        names.iter().for_each(|name| world.cluster(name, 4));
        let mut story = VecDeque::from(story);
        while let Some(what) = story.pop_front() {
            match what {
                Happens::Asks(which) if !world.jobs.contains_key(names[which]) => drop(world.asks(names[which])),
                Happens::Writes(which) if world.jobs.contains_key(names[which]) => world.says(names[which], "Running"),
                Happens::AnotherLeads => world.another_leads(),
                Happens::Resizes(which, size) => world.resize(names[which], size),
                Happens::Ends(which) if world.jobs.contains_key(names[which]) => world.ends(names[which]),
                Happens::Restarts(which) if world.jobs.contains_key(names[which]) => drop(world.restarts(names[which])),
                Happens::JobGoes(which) => drop(world.jobs.remove(names[which])),
                Happens::Round => drop(world.round()),
                Happens::Refused(which) if !world.jobs.contains_key(names[which]) => world.refuses(names[which]),
                _ => {}
            }
            let taken: i64 = world.jobs.values().sum();
            prop_assert!(taken <= QUOTA, "{taken} brokers run: {:?}", world.jobs);
        }
        // Nothing leaks: once all have ended or are refused, one that needs the whole quota starts.
        for name in names {
            if world.jobs.contains_key(name) { world.ends(name) } else { world.refuses(name) }
        }
        world.cluster("whole", QUOTA);
        world.starts("whole");
        world.round();
        world.round();
        prop_assert!(world.starts("whole"), "{}", world.told("whole"));
    }
}
