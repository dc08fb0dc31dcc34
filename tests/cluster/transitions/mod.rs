//! Each field of what users write is changed again and again, on real API servers: given, taken away, emptied, set to what
//! makes no sense, and put back, on a root with a burst in another cluster. What comes of it in both clusters must be what
//! a new object of the same spec comes to.
//!
//! `TRANSITIONS_SEED` chooses other fields and values, `TRANSITIONS` says how many fields, and `TRANSITIONS_MINUTES=60` goes
//! through all of them until the time is over.

mod changes;
mod eyes;
mod lake;
mod normal;
mod rooms;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::env;
use std::sync::Mutex;
use std::time::Duration;

use kube::Client;
use kube::api::{Api, ApiResource, DynamicObject, PostParams};
use kube::core::GroupVersionKind;
use serde_json::{Value, json};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::time::Instant;

use tributary::clock::{Rng as _, SeededRng};
use tributary_sandbox::{ClusterOptions, NodeGroup, Options, Sandbox};
use tributary_tests::federation::Federation;
use tributary_tests::fields::{cases, leaves, leaves_of, schema_of};

use changes::Change;
use eyes::Eyes;
use lake::Lane;
use normal::Picture;
use rooms::Room;

/// MiniClusters that are changed at the same time.
const LANES: usize = 4;

/// Fields of one run, and changes of each, if nothing else is said.
const FIELDS: usize = 8;
const CHANGES: usize = 4;

/// Two clusters, and what is seen in them.
struct World {
    federation: Federation,
    clients: Vec<Client>,
    eyes: Eyes,
    /// Namespaces for MiniClusters that are made anew.
    free: (UnboundedSender<String>, tokio::sync::Mutex<UnboundedReceiver<String>>),
    /// What specs came to when they were new.
    known: Mutex<BTreeMap<String, Picture>>,
    leaves: BTreeMap<String, Value>,
    report: Mutex<Report>,
}

#[derive(Default)]
struct Report {
    transitions: u32,
    fields: BTreeSet<String>,
    changes: BTreeMap<Change, u32>,
    refusals: u32,
    findings: BTreeMap<(String, String), (u32, String)>,
}

impl Report {
    fn transition(&mut self, field: &str, change: Change) {
        self.transitions += 1;
        self.fields.insert(field.to_owned());
        *self.changes.entry(change).or_default() += 1;
    }

    /// The first story of each kind and place is told.
    #[allow(clippy::print_stderr, reason = "it is told while the run goes on")]
    fn find(&mut self, what: &str, at: &str, story: String, details: String) {
        let found = self.findings.entry((what.to_owned(), at.to_owned())).or_insert_with(|| {
            eprintln!("FOUND {what}: {at}\n   by {story}\n      {details}");
            (0, format!("{what}: {at}\n   by {story}\n      {details}"))
        });
        found.0 += 1;
    }
}

fn number(variable: &str) -> Option<u64> {
    env::var(variable).ok().map(|text| text.parse().unwrap_or_else(|error| panic!("{variable}: {error}")))
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "takes minutes, and some of what it finds is a gap of its oracle: a person reads its output"]
#[allow(clippy::print_stderr, reason = "what was done and found is told")]
async fn whatever_is_changed_is_as_if_it_were_new() {
    let seed = number("TRANSITIONS_SEED").unwrap_or(20_261_124);
    let until = number("TRANSITIONS_MINUTES").map(|minutes| Instant::now() + Duration::from_secs(60 * minutes));
    let count = number("TRANSITIONS").map_or(if until.is_some() { usize::MAX } else { FIELDS }, |count| count as usize);
    let most = number("TRANSITIONS_CHANGES").map_or(if until.is_some() { 8 } else { CHANGES }, |count| count as usize);
    let lanes = number("TRANSITIONS_LANES").map_or(LANES, |count| count as usize);
    let only = env::var("TRANSITIONS_ONLY").unwrap_or_default();

    let kinds = env::var("TRANSITIONS_KINDS").unwrap_or_default();
    let is_asked = |kind: &str| kinds.is_empty() || kinds.contains(kind);

    let world = World::start(lanes).await;
    let mut rng = SeededRng::new(seed);
    let mut all: Vec<_> = cases().unwrap().into_iter().filter(|case| case.at.contains(&only)).collect();
    // The agents here may make no volumes.
    all.retain(|case| is_asked("MiniCluster") && !case.at.starts_with("spec.volumes."));
    for index in (1..all.len()).rev() {
        all.swap(index, rng.next_u64() as usize % (index + 1));
    }
    // Each field once, then on containers of other kinds.
    let mut seen = BTreeSet::new();
    all.sort_by_cached_key(|case| !seen.insert(case.field.clone()));
    let queue: Mutex<VecDeque<_>> =
        Mutex::new(all.into_iter().take(count).map(|case| (case, rng.next_u64())).collect());
    let queue = &queue;
    let begun = Instant::now();
    let is_in_time = || until.is_none_or(|until| Instant::now() < until);
    let (world_ref, fewer) = (&world, if count > FIELDS { count } else { 2 });
    let lanes = (0..lanes).map(|index| async move {
        let mut lane = Lane::begin(world_ref, format!("tr-{index:02}")).await;
        while is_in_time() {
            let Some((case, seed)) = queue.lock().unwrap().pop_front() else { break };
            lane.field(&case, &mut SeededRng::new(seed), most).await;
        }
        lane.end().await;
    });
    let seeds = [rng.next_u64(), rng.next_u64(), rng.next_u64()];
    let rooms = async {
        for cluster in if is_asked("FluxSetup") { 0..2 } else { 0..0 } {
            let namespace = format!("tr-{}", 90 + cluster);
            rooms::root(world_ref, &namespace).await;
            let room = Room::setup(cluster, &namespace);
            room.run(world_ref, &mut SeededRng::new(seeds[0]), fewer, most).await;
        }
    };
    let jobs = async {
        if is_asked("FluxJob") {
            world_ref.federation.namespace("tr-92").await.unwrap();
            rooms::jobs(world_ref, "tr-92", &mut SeededRng::new(seeds[1]), fewer, most).await;
        }
    };
    futures::join!(futures::future::join_all(lanes), rooms, jobs);
    // What a peer may do is about all of them.
    for cluster in if is_asked("ClusterPeer") { 0..2 } else { 0..0 } {
        let namespace = format!("tr-{}", 94 + cluster);
        rooms::root(&world, &namespace).await;
        let room = Room::peer(&world, cluster, &namespace);
        room.run(&world, &mut SeededRng::new(seeds[2]), fewer, most).await;
    }
    world.failed_passes();
    let report = world.report.lock().unwrap();
    eprintln!(
        "seed {seed}: {} transitions, {} of {} fields, {} refusals, {} s; {:?}",
        report.transitions,
        report.fields.len(),
        world.leaves.len()
            + ["FluxJob", "FluxSetup", "ClusterPeer"]
                .map(|kind| leaves_of(&schema_of(kind)).len())
                .iter()
                .sum::<usize>(),
        report.refusals,
        begun.elapsed().as_secs(),
        report.changes,
    );
    let findings: Vec<String> = report.findings.values().map(|(times, text)| format!("{times}× {text}")).collect();
    assert!(findings.is_empty(), "seed {seed}, {} findings:\n{}", findings.len(), findings.join("\n"));
}

impl World {
    async fn start(lanes: usize) -> Self {
        let extra = "[bursting]\nlease_seconds = 60\ndrain_seconds = 1\ngrace_seconds = 30";
        // The federation's start needs a runtime that outlives none of its clients.
        let federation = tokio::task::spawn_blocking(move || {
            let runtime = tokio::runtime::Runtime::new().unwrap();
            let cluster = |name: &&str| ClusterOptions {
                nodes: vec![NodeGroup { count: 16, cpu: 512, gpus: 64, ..NodeGroup::default() }],
                ..ClusterOptions::named(name)
            };
            let options = Options { clusters: ["east", "west"].iter().map(cluster).collect(), ..Options::default() };
            let sandbox = runtime.block_on(Sandbox::start(options)).unwrap();
            runtime.block_on(Federation::start(sandbox, extra)).unwrap()
        });
        let federation = federation.await.unwrap();
        let clients = vec![federation.client(0).await, federation.client(1).await];
        let (give, take) = unbounded_channel();
        for index in 0..2 * lanes {
            let namespace = format!("tr-{:02}", 50 + index);
            federation.namespace(&namespace).await.unwrap();
            give.send(namespace).unwrap();
        }
        let eyes = Eyes::open(&clients);
        Self {
            federation,
            clients,
            eyes,
            free: (give, tokio::sync::Mutex::new(take)),
            known: Mutex::default(),
            leaves: leaves(),
            report: Mutex::default(),
        }
    }

    /// Objects of one of our kinds.
    fn api(&self, cluster: usize, kind: &str, namespace: &str) -> Api<DynamicObject> {
        let (group, version) =
            if kind == "MiniCluster" { ("flux-framework.org", "v1alpha2") } else { ("tributary.dev", "v1alpha1") };
        let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind));
        Api::namespaced_with(self.clients[cluster].clone(), namespace, &resource)
    }

    /// Writes the whole spec; what the API server says against it.
    async fn put(&self, cluster: usize, kind: &str, namespace: &str, name: &str, spec: &Value) -> Result<(), String> {
        let api = self.api(cluster, kind, namespace);
        let group = if kind == "MiniCluster" { "flux-framework.org/v1alpha2" } else { "tributary.dev/v1alpha1" };
        let mut object: DynamicObject = serde_json::from_value(
            json!({ "apiVersion": group, "kind": kind, "metadata": { "name": name }, "spec": spec }),
        )
        .map_err(|error| error.to_string())?;
        for _ in 0..20 {
            let written = match api.get_opt(name).await.map_err(|error| error.to_string())? {
                None => api.create(&PostParams::default(), &object).await,
                Some(there) => {
                    object.metadata = there.metadata;
                    object.metadata.managed_fields = None;
                    api.replace(name, &PostParams::default(), &object).await
                }
            };
            match written {
                Ok(_) => return Ok(()),
                Err(kube::Error::Api(status)) if status.code == 409 => continue,
                Err(kube::Error::Api(status)) => return Err(status.message.clone()),
                Err(error) => return Err(error.to_string()),
            }
        }
        Err("it is changed by others again and again".to_owned())
    }

    /// Passes of the agents that failed, by their errors.
    fn failed_passes(&self) {
        for agent in &self.federation.agents {
            let log = agent.log_text();
            // What an API server takes for invalid is told in the status. What is deleted meanwhile has none.
            let told = |line: &str| line.contains(" is invalid: ") || line.contains(" not found");
            let failed = log.lines().filter(|line| line.contains("a pass failed") && !told(line));
            let mut report = self.report.lock().unwrap();
            for line in failed {
                let kind = line.split("error=").nth(1).unwrap_or(line).split(" failures=").next().unwrap_or_default();
                let words: String = kind.chars().filter(|letter| !letter.is_ascii_digit()).collect();
                report.find("a pass fails", &format!("{}: {words}", agent.name), String::new(), line.to_owned());
            }
        }
    }
}
