//! Users ([`people`]), owners, and [`faults`], by a seed.

mod faults;
mod people;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use kube::ResourceExt;
use kube::api::{DeleteParams, Patch, PatchParams, Preconditions};
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};
use tributary::clock::{Rng as _, SeededRng};
use tributary_sandbox::Component;

use super::eyes::{Eyes, Story};
use super::ground::{Ground, is_job};
use super::oracle::{OWNER, USER};
use super::{CLUSTERS, PATIENCE};

/// How long a request of a person may take.
const NO_ANSWER: Duration = Duration::from_secs(4);
/// How often a person tries to reach an API server that is there.
const TRIES: usize = 3;
/// What was asked of an API server before it was away is done by now.
const SETTLED: Duration = Duration::from_secs(2);
const STEP: Duration = Duration::from_millis(50);

/// What a user wants of a MiniCluster.
pub(super) struct Wanted {
    pub spec: Value,
    /// The API server has said so.
    pub written: bool,
    /// Its command may have ended.
    pub may_be_over: bool,
}

/// What ends at some time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum End {
    Start(usize, usize),
    Thaw(usize, usize),
    ApiServer(usize),
    Etcd(usize),
    Resume(usize, Component),
    /// What was asked of the API server before is done.
    Settled(usize),
    Cut(usize, usize),
    Drain(usize, usize),
    Import(usize, usize),
    Peer(usize, usize),
}

pub(super) struct Driver {
    ground: Arc<Ground>,
    eyes: Arc<Eyes>,
    story: Arc<Story>,
    seed: u64,
    rng: SeededRng,
    ends: Vec<(Instant, End)>,
    /// What is away or broken: it is not broken twice.
    wrong: BTreeSet<String>,
    /// API servers that are being started.
    starting: JoinSet<(usize, anyhow::Result<()>)>,
    pub wanted: BTreeMap<(usize, &'static str), Wanted>,
    /// MiniClusters whose deletion did not get through.
    doomed: BTreeSet<(usize, &'static str)>,
    annotated: u64,
    pub counts: BTreeMap<&'static str, usize>,
}

impl Driver {
    pub(super) fn new(ground: &Arc<Ground>, eyes: &Arc<Eyes>, story: &Arc<Story>, seed: u64) -> Self {
        Self {
            ground: ground.clone(),
            eyes: eyes.clone(),
            story: story.clone(),
            seed,
            rng: SeededRng::new(seed),
            ends: Vec::new(),
            wrong: BTreeSet::new(),
            starting: JoinSet::new(),
            wanted: BTreeMap::new(),
            doomed: BTreeSet::new(),
            annotated: 0,
            counts: BTreeMap::new(),
        }
    }

    /// Events for so long.
    pub(super) async fn run(&mut self, time: Duration) -> Result<(), String> {
        let until = Instant::now() + time;
        for event in 0_u64.. {
            // What happens at an event does not depend on what could be done at those before it.
            self.rng = SeededRng::new(SeededRng::new(self.seed).next_u64().wrapping_add(event));
            let pause = Duration::from_millis(50 + self.below(900) as u64);
            if Instant::now() + pause >= until {
                break;
            }
            self.wait(pause).await?;
            match self.below(20) {
                0..=8 => self.user().await,
                9..=12 => self.owner().await,
                _ => self.fault().await,
            }
        }
        Ok(())
    }

    fn below(&mut self, n: usize) -> usize {
        usize::try_from(self.rng.next_u64() % n as u64).unwrap()
    }

    fn count(&mut self, what: &'static str, line: impl AsRef<str>) {
        *self.counts.entry(what).or_default() += 1;
        self.story.say(line);
    }

    /// Lets time pass: what has its time ends, and what ended by itself is started again, as Kubernetes does it.
    async fn wait(&mut self, time: Duration) -> Result<(), String> {
        let until = Instant::now() + time;
        loop {
            if let Some(broken) = self.story.broken() {
                return Err(broken);
            }
            while let Some(started) = self.starting.try_join_next() {
                let (cluster, result) = started.map_err(|error| error.to_string())?;
                result.map_err(|error| format!("{}: {error:#}", CLUSTERS[cluster]))?;
                self.story.say(format!("{}: the API server is there again", CLUSTERS[cluster]));
                self.ends.push((Instant::now() + SETTLED, End::Settled(cluster)));
            }
            let now = Instant::now();
            let (over, rest): (Vec<_>, Vec<_>) =
                std::mem::take(&mut self.ends).into_iter().partition(|(at, _)| *at <= now);
            self.ends = rest;
            for (_, end) in over {
                self.end(end).await;
            }
            self.restart_ended();
            if Instant::now() >= until {
                return Ok(());
            }
            sleep(STEP).await;
        }
    }

    fn restart_ended(&mut self) {
        let ground = self.ground.clone();
        for (cluster, site) in ground.sites.iter().enumerate() {
            for (replica, agent) in site.agents.iter().enumerate() {
                let Some(status) = agent.ended() else { continue };
                let log = agent.log_text();
                let why: Vec<&str> = log.lines().rev().filter(|line| line.contains("rror")).take(3).collect();
                let line = format!("{}: agent {replica} ended ({status}): {}", CLUSTERS[cluster], why.join(" / "));
                self.count("agents that ended by themselves", line);
                agent.start(&ground.group).unwrap();
            }
        }
    }

    /// Ends all faults.
    pub(super) async fn end_all(&mut self) -> Result<(), String> {
        self.story.say("faults are over");
        let begun = Instant::now();
        // Some ends begin others.
        while !self.ends.is_empty() || !self.starting.is_empty() {
            if begun.elapsed() > PATIENCE {
                return Err(format!("these do not end: {:?}, {} are starting", self.ends, self.starting.len()));
            }
            self.ends.iter_mut().for_each(|(at, _)| *at = Instant::now());
            self.wait(STEP).await?;
            sleep(STEP).await;
        }
        self.restart_garbage_collectors().await?;
        for (cluster, root) in std::mem::take(&mut self.doomed) {
            self.delete(cluster, root).await;
        }
        self.resume_jobs().await;
        let unsure: Vec<_> = self.wanted.iter().filter(|(_, wanted)| !wanted.written).map(|(key, _)| *key).collect();
        for (cluster, root) in unsure {
            self.write(cluster, root).await;
        }
        match self.wanted.values().all(|wanted| wanted.written) && self.doomed.is_empty() {
            true => Ok(()),
            false => Err("users do not reach API servers that are there".to_owned()),
        }
    }

    /// Kubernetes' garbage collector goes by UIDs, and its cache by names: what is deleted and made anew under its name
    /// while the collector's watch is away is a change to it, and what the first one owned stays. It finds that when it
    /// starts.
    async fn restart_garbage_collectors(&self) -> Result<(), String> {
        for cluster in 0..CLUSTERS.len() {
            let own = self.ground.cluster(cluster);
            own.stop_component(Component::ControllerManager).map_err(|error| error.to_string())?;
            own.start_component(Component::ControllerManager).await.map_err(|error| error.to_string())?;
        }
        Ok(())
    }

    /// Users let FluxJobs run that they have held.
    async fn resume_jobs(&mut self) {
        let jobs: Vec<_> = self.wanted.keys().copied().filter(|(_, root)| is_job(root)).collect();
        for (cluster, root) in jobs {
            if let Some(wanted) = self.wanted.get_mut(&(cluster, root)) {
                wanted.spec["suspend"] = false.into();
            }
            self.write(cluster, root).await;
        }
    }

    /// Users delete everything.
    pub(super) async fn delete_all(&mut self) {
        let all: Vec<_> = self.wanted.keys().copied().collect();
        for (cluster, root) in all {
            self.delete(cluster, root).await;
        }
    }

    async fn end(&mut self, end: End) {
        let ground = self.ground.clone();
        let (cluster, what, line) = match end {
            End::Start(cluster, replica) => {
                let site = &ground.sites[cluster];
                if site.agents[replica].pid().is_none() {
                    site.agents[replica].start(&ground.group).unwrap();
                }
                (cluster, format!("agent {replica}"), format!("agent {replica} is started"))
            }
            End::Thaw(cluster, replica) => {
                ground.sites[cluster].agents[replica].freeze(&ground.group, false).unwrap();
                (cluster, format!("agent {replica}"), format!("agent {replica} runs on"))
            }
            End::ApiServer(cluster) | End::Etcd(cluster) => {
                let component = if end == End::Etcd(cluster) { Component::Etcd } else { Component::ApiServer };
                self.starting.spawn(async move { (cluster, ground.cluster(cluster).start_component(component).await) });
                return;
            }
            End::Resume(cluster, component) => {
                ground.cluster(cluster).resume_component(component).unwrap();
                self.story.say(format!("{}: {component:?} runs on", CLUSTERS[cluster]));
                if component == Component::ApiServer {
                    return self.ends.push((Instant::now() + SETTLED, End::Settled(cluster)));
                }
                (cluster, format!("{component:?}"), String::new())
            }
            End::Settled(cluster) => (cluster, "api".to_owned(), String::new()),
            End::Cut(from, to) => {
                for way in [&ground.ways[&(from, to)], &ground.ways[&(to, from)]] {
                    for cut in [&way.cut, &way.cut_there, &way.cut_back] {
                        cut.send_replace(false);
                    }
                }
                (from, format!("way to {to}"), format!("the way to {} is whole", CLUSTERS[to]))
            }
            End::Drain(cluster, other) | End::Import(cluster, other) => {
                let spec = if end == End::Drain(cluster, other) {
                    json!({"drain": false})
                } else {
                    json!({"import": {"maxBursts": null}})
                };
                if self.away(cluster) || !self.change_peer(cluster, other, spec.clone()).await {
                    return self.ends.push((Instant::now() + SETTLED, end));
                }
                (cluster, format!("peer {other}"), format!("{}: {spec}", CLUSTERS[other]))
            }
            End::Peer(cluster, other) => {
                if self.away(cluster) || self.away(other) || !self.befriend(cluster, other).await {
                    return self.ends.push((Instant::now() + SETTLED, end));
                }
                (cluster, format!("peer {other}"), format!("there is a ClusterPeer {} again", CLUSTERS[other]))
            }
        };
        self.wrong.remove(&format!("{} {what}", CLUSTERS[cluster]));
        if !line.is_empty() {
            self.story.say(format!("{}: {line}", CLUSTERS[cluster]));
        }
    }

    async fn befriend(&mut self, cluster: usize, other: usize) -> bool {
        let ground = self.ground.clone();
        matches!(timeout(NO_ANSWER, ground.befriend(cluster, other)).await, Ok(Ok(())))
    }

    /// Whether an API server is, or may be, away.
    fn away(&self, cluster: usize) -> bool {
        self.wrong.contains(&format!("{} api", CLUSTERS[cluster]))
    }

    /// Marks something as wrong; whether it was not.
    fn break_it(&mut self, cluster: usize, what: &str) -> bool {
        self.wrong.insert(format!("{} {what}", CLUSTERS[cluster]))
    }

    /// What a person asks of an API server, again if it does not answer.
    async fn ask<T>(&self, what: &str, ask: impl AsyncFn() -> kube::Result<T>) -> Option<T> {
        for _ in 0..TRIES {
            let said = match timeout(NO_ANSWER, ask()).await {
                Ok(Ok(answer)) => return Some(answer),
                // It is gone, or another one by now.
                Ok(Err(kube::Error::Api(status))) if [404, 409].contains(&status.code) => {
                    self.story.say(format!("{what}: {}", status.message));
                    return None;
                }
                Ok(Err(error)) => error.to_string(),
                Err(_) => "no answer".to_owned(),
            };
            self.story.say(format!("{what}: {said}"));
            sleep(SETTLED / 4).await;
        }
        None
    }

    async fn change_peer(&mut self, cluster: usize, other: usize, spec: Value) -> bool {
        let peers = self.ground.sites[cluster].peers();
        let params = PatchParams { field_manager: Some(OWNER.to_owned()), ..PatchParams::default() };
        let patch = Patch::Merge(json!({"spec": spec}));
        self.ask("a change of a ClusterPeer", async || peers.patch(CLUSTERS[other], &params, &patch).await)
            .await
            .is_some()
    }

    /// Writes what a user wants.
    async fn write(&mut self, cluster: usize, root: &'static str) {
        let name = name_of(cluster, root);
        let api = self.ground.sites[cluster].of_users(root);
        let Some(wanted) = self.wanted.get(&(cluster, root)) else { return };
        let (version, kind) = match is_job(root) {
            true => ("tributary.dev/v1alpha1", "FluxJob"),
            false => ("flux-framework.org/v1alpha2", "MiniCluster"),
        };
        let object = json!({"apiVersion": version, "kind": kind, "metadata": {"name": name}, "spec": wanted.spec});
        let (params, patch) = (PatchParams::apply(USER).force().validation_strict(), Patch::Apply(&object));
        let answer = self.ask(&name, async || api.patch(&name, &params, &patch).await).await;
        let Some(wanted) = self.wanted.get_mut(&(cluster, root)) else { return };
        wanted.written = answer.is_some();
    }

    fn doom(&mut self, cluster: usize, root: &'static str) {
        self.doomed.insert((cluster, root));
    }

    /// Deletes the MiniCluster that a user knows, and no other one.
    async fn delete(&mut self, cluster: usize, root: &'static str) {
        let name = name_of(cluster, root);
        let api = self.ground.sites[cluster].of_users(root);
        let object = match self.ask(&name, async || api.get_opt(&name).await).await {
            Some(Some(object)) => object,
            Some(None) => return drop(self.wanted.remove(&(cluster, root))),
            None => return self.doom(cluster, root),
        };
        let uid = object.uid();
        self.eyes.given_up(uid.as_deref().unwrap_or_default());
        let params = DeleteParams {
            preconditions: Some(Preconditions { uid, ..Preconditions::default() }),
            ..DeleteParams::default()
        };
        match self.ask(&name, async || api.delete(&name, &params).await).await {
            Some(_) => drop(self.wanted.remove(&(cluster, root))),
            None => self.doom(cluster, root),
        }
    }
}

/// The name of a root: no two clusters have one of the same name, or their bursts would take each other's names.
pub(super) fn name_of(cluster: usize, root: &str) -> String {
    format!("{root}-{}", CLUSTERS[cluster])
}
