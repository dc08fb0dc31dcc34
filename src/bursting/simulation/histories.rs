//! Whatever happened in between: in the end there is what the specs say, and nothing else; and at no time did the same ranks
//! run in two clusters.

use std::collections::BTreeMap;

use proptest::prelude::*;
use tributary_api::hosted_burst::BurstPhase;
use tributary_api::labels;
use tributary_api::minicluster::BurstNetworkType::{NodePort, Tunnel};

use super::cluster::Going;
use super::weather::Weather;
use super::world::World;

const NAMES: [&str; 4] = ["east", "west", "north", "south"];

/// What a user wants of one root.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Want {
    /// None: whoever takes it.
    peer: Option<usize>,
    size: i32,
    life: u64,
    suspended: bool,
    cancelled: bool,
}

/// One thing that happens. Clusters by number, modulo their count; each has two roots.
#[derive(Clone, Copy, Debug)]
enum Event {
    Apply { cluster: usize, root: usize, peer: Option<usize>, size: i32 },
    Delete { cluster: usize, root: usize },
    Scale { cluster: usize, root: usize, size: i32 },
    NewJob { cluster: usize, root: usize },
    Suspend { cluster: usize, root: usize, suspended: bool },
    Cancel { cluster: usize, root: usize, cancelled: bool },
    Drain { cluster: usize, peer: usize, drained: bool },
    Restart(usize),
    Kill(usize),
    StopApi(usize),
    StartApi(usize),
    Cut(usize),
    Heal,
    LoseObjects(usize),
    Wait(u64),
}

fn event() -> impl Strategy<Value = Event> {
    let at = || (0..4_usize, 0..2_usize);
    prop_oneof![
        4 => (at(), proptest::option::of(0..4_usize), 1..4)
            .prop_map(|((cluster, root), peer, size)| Event::Apply { cluster, root, peer, size }),
        1 => at().prop_map(|(cluster, root)| Event::Delete { cluster, root }),
        2 => (at(), 1..4).prop_map(|((cluster, root), size)| Event::Scale { cluster, root, size }),
        1 => at().prop_map(|(cluster, root)| Event::NewJob { cluster, root }),
        1 => (at(), any::<bool>()).prop_map(|((cluster, root), suspended)| Event::Suspend { cluster, root, suspended }),
        1 => (at(), any::<bool>()).prop_map(|((cluster, root), cancelled)| Event::Cancel { cluster, root, cancelled }),
        1 => (0..4_usize, 0..4_usize, any::<bool>())
            .prop_map(|(cluster, peer, drained)| Event::Drain { cluster, peer, drained }),
        2 => (0..4_usize).prop_map(Event::Restart),
        2 => (0..4_usize).prop_map(Event::Kill),
        1 => (0..4_usize).prop_map(Event::StopApi),
        1 => (0..4_usize).prop_map(Event::StartApi),
        2 => (0..4_usize).prop_map(Event::Cut),
        1 => Just(Event::Heal),
        1 => (0..4_usize).prop_map(Event::LoseObjects),
        3 => (1..500_u64).prop_map(Event::Wait),
    ]
}

/// A world, and what its users want of it.
struct Told {
    names: Vec<&'static str>,
    world: World,
    wanted: BTreeMap<(usize, usize), Want>,
    drained: BTreeMap<(usize, usize), bool>,
    lives: u64,
}

impl Told {
    fn new(count: usize) -> Self {
        let names = NAMES[..count].to_vec();
        let world = World::of(&names);
        Self { names, world, wanted: BTreeMap::new(), drained: BTreeMap::new(), lives: 0 }
    }

    fn root(&self, (cluster, root): (usize, usize)) -> String {
        format!("{}-{}", ["lake", "pond"][root], self.names[cluster])
    }

    /// Another cluster than `cluster`.
    fn peer(&self, cluster: usize, peer: usize) -> usize {
        let count = self.names.len();
        (cluster + 1 + peer % (count - 1)) % count
    }

    /// An API server that answers nobody takes nothing from users.
    fn is_refused(&self, event: Event) -> bool {
        let cluster = match event {
            Event::Apply { cluster, .. }
            | Event::Delete { cluster, .. }
            | Event::Scale { cluster, .. }
            | Event::NewJob { cluster, .. }
            | Event::Suspend { cluster, .. }
            | Event::Cancel { cluster, .. }
            | Event::Drain { cluster, .. }
            | Event::LoseObjects(cluster) => cluster,
            _ => return false,
        };
        self.world.clusters[self.names[cluster % self.names.len()]].away.is_some()
    }

    fn happens(&mut self, event: Event) {
        let count = self.names.len();
        match event {
            _ if self.is_refused(event) => {}
            Event::Apply { cluster, root, peer, size } => {
                let key = (cluster % count, root);
                let peer = peer.map(|peer| self.peer(key.0, peer));
                // What a running root bursts onto is sticky; a user who means another peer makes it anew.
                if self.wanted.get(&key).is_none_or(|want| want.peer != peer) {
                    self.delete(key);
                    self.lives += 1;
                    let want = Want { peer, size, life: self.lives, suspended: false, cancelled: false };
                    self.wanted.insert(key, want);
                }
                self.wanted.get_mut(&key).unwrap().size = size;
                self.write(key);
            }
            Event::Delete { cluster, root } => self.delete((cluster % count, root)),
            Event::Scale { cluster, root, size } => self.change((cluster % count, root), |want| want.size = size),
            Event::NewJob { cluster, root } => {
                self.lives += 1;
                let life = self.lives;
                self.change((cluster % count, root), |want| want.life = life);
            }
            Event::Suspend { cluster, root, suspended } => {
                self.change((cluster % count, root), |want| want.suspended = suspended);
            }
            Event::Cancel { cluster, root, cancelled } => {
                let key = (cluster % count, root);
                let (cluster, slot) = (self.names[key.0], format!("{}-burst-0", self.root(key)));
                // Only what is there can be annotated.
                let Some(burst) = self.world.cluster(cluster).bursts.get_mut(&slot) else { return };
                let Some(want) = self.wanted.get_mut(&key) else { return };
                want.cancelled = cancelled;
                let annotations = burst.metadata.annotations.get_or_insert_default();
                match cancelled {
                    true => annotations.insert(labels::CANCEL.into(), "now".into()),
                    false => annotations.remove(labels::CANCEL),
                };
            }
            Event::Drain { cluster, peer, drained } => {
                let cluster = cluster % count;
                let peer = self.peer(cluster, peer);
                self.drained.insert((cluster, peer), drained);
                let object = self.world.cluster(NAMES[cluster]).peers.get_mut(NAMES[peer]).unwrap();
                object.spec.drain = drained;
                object.metadata.generation = object.metadata.generation.map(|generation| generation + 1);
            }
            Event::Restart(cluster) => self.world.restart(NAMES[cluster % count]),
            Event::Kill(cluster) => self.world.kill(NAMES[cluster % count]),
            Event::StopApi(cluster) => self.world.stop_api(NAMES[cluster % count]),
            Event::StartApi(cluster) => self.world.start_api(NAMES[cluster % count]),
            Event::Cut(cluster) => drop(self.world.cut.insert(NAMES[cluster % count].into())),
            Event::Heal => self.world.heal(),
            Event::LoseObjects(cluster) => {
                let cluster = self.world.cluster(NAMES[cluster % count]);
                cluster.mini_clusters.clear();
                cluster.secrets.clear();
            }
            Event::Wait(secs) => drop(self.world.run(secs)),
        }
    }

    fn change(&mut self, key: (usize, usize), change: impl FnOnce(&mut Want)) {
        let Some(want) = self.wanted.get_mut(&key) else { return };
        change(want);
        self.write(key);
    }

    fn delete(&mut self, key: (usize, usize)) {
        let (cluster, name) = (self.names[key.0], self.root(key));
        if self.wanted.remove(&key).is_some() {
            self.world.cluster(cluster).roots.remove(&name);
            // The garbage collector is faster than a user who makes it anew.
            self.world.run(2);
        }
    }

    /// The root as it is wanted. A new life of the Job is no new root.
    fn write(&mut self, key: (usize, usize)) {
        let (want, cluster, name) = (self.wanted[&key], self.names[key.0], self.root(key));
        let known = self.world.cluster(cluster).roots.get(&name).and_then(|root| root.metadata.uid.clone());
        self.world.apply(cluster, &name, want.life, (want.peer.map(|peer| self.names[peer]), want.size));
        let root = self.world.cluster(cluster).roots.get_mut(&name).unwrap();
        root.metadata.uid = known.or(root.metadata.uid.take());
        root.spec.suspend = want.suspended;
    }

    /// Who may have it as things are.
    fn takers(&self, (cluster, _): (usize, usize), want: &Want) -> Vec<&'static str> {
        let drained = |one, other| self.drained.get(&(one, other)).copied().unwrap_or(false);
        let takes = |peer: usize| {
            let meant = peer != cluster && want.peer.is_none_or(|wanted| wanted == peer);
            meant && !want.suspended && !want.cancelled && !drained(cluster, peer) && !drained(peer, cluster)
        };
        (0..self.names.len()).filter(|peer| takes(*peer)).map(|peer| self.names[peer]).collect()
    }

    fn check(&self) -> Result<(), TestCaseError> {
        let mut expected: BTreeMap<(&str, String), (String, i32)> = BTreeMap::new();
        for (key, want) in &self.wanted {
            let (name, cluster) = (self.root(*key), &self.world.clusters[self.names[key.0]]);
            let slot = format!("{name}-burst-0");
            let status = cluster.bursts.get(&slot).and_then(|burst| burst.status.clone()).unwrap_or_default();
            let takers = self.takers(*key, want);
            if takers.is_empty() {
                prop_assert_eq!(status.peer, None, "{}: {}", slot, status.message);
                prop_assert_eq!(status.ready_brokers, 0);
                continue;
            }
            let taker = takers.into_iter().find(|name| status.peer.as_deref() == Some(name));
            prop_assert!(status.phase == BurstPhase::Ready && taker.is_some(), "{slot}: {status:?}");
            expected.insert((taker.unwrap(), slot), (format!("{name}-job-{}", want.life), want.size));
        }
        let mut found = BTreeMap::new();
        for (name, cluster) in &self.world.clusters {
            for ((_, slot), job) in &cluster.jobs {
                let incarnation = job.instance.as_ref().unwrap().incarnation.clone();
                found.insert((name.as_str(), slot.clone()), (incarnation, i32::try_from(job.ready).unwrap()));
            }
            let slots: Vec<_> = cluster.jobs.keys().collect();
            prop_assert_eq!(cluster.hosted.keys().collect::<Vec<_>>(), slots.clone(), "HostedBursts of {}", name);
            prop_assert_eq!(
                cluster.mini_clusters.keys().collect::<Vec<_>>(),
                slots.clone(),
                "MiniClusters of {}",
                name
            );
            prop_assert_eq!(cluster.secrets.keys().collect::<Vec<_>>(), slots, "Secrets of {}", name);
        }
        prop_assert_eq!(found, expected);
        Ok(())
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 5, ..ProptestConfig::default() })]

    /// Two to four clusters, each a root's and a provider's; the network, the agents and the API servers fail as they like.
    /// The same ranks never run twice (checked every second).
    #[test]
    fn any_history_ends_in_what_the_specs_say(
        count in 2..=4_usize,
        events in proptest::collection::vec((event(), 0..12_u64), 1..24),
        weather in proptest::option::of(any::<u64>()),
        faults in any::<u64>(),
        tunnel in any::<bool>(),
        going in (0..10_u64, 0..90_u64),
    ) {
        let mut told = Told::new(count);
        told.world.weather = weather.map(Weather::bad);
        told.world.network = if tunnel { Tunnel } else { NodePort };
        for (index, cluster) in told.world.clusters.values_mut().enumerate() {
            cluster.faults = faults.rotate_left(u32::try_from(index).unwrap());
            cluster.going = Going { collected: going.0, ended: going.1 };
        }
        for (event, pause) in events {
            told.happens(event);
            told.world.run(pause);
        }
        told.world.heal();
        told.world.run(450);
        told.world.weather = None;
        told.world.clusters.values_mut().for_each(|cluster| cluster.faults = 0);
        told.world.run(250);
        told.check()?;
    }
}
