//! The life of a burst, again and again, with one fault at one of its writes: each write of each agent once.
//!
//! From a root that is applied, over a burst that is ready and then scaled, until all is deleted. And of a burst that is given
//! back, since not all of its nodes come, or none for which it asked, and runs elsewhere.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::json;
use tributary::api::minicluster::MiniCluster;
use tributary::clock::Mono;
use tributary_api_server::RequestInfo;

use crate::budgets::{pods, ready_on};
use crate::chaos::KINDS;
use crate::cluster::{USERS, is_ready};
use crate::dangers::SHORT;
use crate::scenarios::{log, number, on_paused_time};
use crate::world::World;
use crate::{provisioning, scale_up};

/// What happens at a write.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Fault {
    /// The agent dies: the write is done.
    Dies,
    /// The agent does not see its own write for a while.
    Unseen,
    /// It dies, and the watches of the next one show nothing for a while, nor lists at any version what is newer.
    Old,
    /// Nobody is told of the write by a watch, until the kind is listed again.
    Lost,
}

const FAULTS: [Fault; 4] = [Fault::Dies, Fault::Unseen, Fault::Old, Fault::Lost];

/// How long a dead agent is away; it comes back to a Lease that its successor waits for.
const AWAY: Duration = Duration::from_secs(2);

/// How long what is unseen stays so: longer than an agent takes to lead, and shorter than what others wait for.
const UNSEEN: Duration = Duration::from_secs(12);

/// How long each part of a life may take.
const PATIENCE: Duration = Duration::from_secs(150);

/// Of all lives, each so many-th is played unless `WORLDS_EVERY` says otherwise. No multiple of the number of faults.
const EVERY: usize = 17;

/// A write that something goes wrong at: of the agent of which cluster, and which of its writes.
type Moment = (usize, usize, Fault);

/// What happens in a life.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Story {
    Resized,
    GivenBack,
    /// The same, and nodes are asked for.
    Refused,
}

/// One life.
struct Life {
    story: Story,
    world: World,
    writes: [Arc<AtomicUsize>; 2],
    /// Something went wrong: the write, and its resource.
    happened: Arc<Mutex<Option<(String, String)>>>,
    /// When what went wrong is over.
    over: Option<Mono>,
    moment: Option<Moment>,
}

fn is_counted(info: &RequestInfo) -> bool {
    !info.user_agent.is_empty() && !["get", "list", "watch"].contains(&info.verb) && info.resource != "leases"
}

impl Life {
    fn new(story: Story, moment: Option<Moment>) -> Self {
        let world = World::new(if story == Story::Resized { 2 } else { 3 }, SHORT);
        let (writes, happened) = ([Arc::default(), Arc::default()], Arc::default());
        Self { story, world, writes, happened, over: None, moment }
    }

    fn arm(&self) {
        for cluster in 0..2 {
            let (writes, happened) = (self.writes[cluster].clone(), self.happened.clone());
            let at = self.moment.filter(|(of, ..)| *of == cluster);
            let (server, dies) = (self.world.clusters[cluster].server.clone(), self.world.agents[cluster][0].as_ref());
            let (dies, now) = (dies.unwrap().end(), server.clone());
            server.on_request(move |info| {
                if !is_counted(info) {
                    return None;
                }
                let number = writes.fetch_add(1, Ordering::Relaxed) + 1;
                let (_, _, fault) = at.filter(|(_, n, _)| *n == number)?;
                match fault {
                    Fault::Dies => dies(),
                    Fault::Unseen => now.lag(&info.resource),
                    Fault::Old => {
                        KINDS.iter().for_each(|kind| now.lag(kind));
                        dies();
                    }
                    Fault::Lost => now.drop_next_events(&info.resource, 1),
                }
                let told = format!("{} {} {} {}", info.verb, info.resource, info.name, info.subresource);
                *happened.lock().unwrap() = Some((told, info.resource.clone()));
                None
            });
        }
    }

    async fn step(&mut self) -> Result<(), String> {
        self.world.step().await?;
        let Some((cluster, _, fault)) = self.moment else { return Ok(()) };
        let Some((_, resource)) = self.happened.lock().unwrap().clone() else { return Ok(()) };
        let now = self.world.now();
        let over = *self.over.get_or_insert(now + UNSEEN);
        self.world.bury();
        if now >= over - UNSEEN + AWAY {
            self.world.start(cluster, 0);
        }
        if now >= over {
            self.moment = None;
            let server = &self.world.clusters[cluster].server;
            match fault {
                Fault::Dies => {}
                Fault::Unseen => server.catch_up(&resource),
                Fault::Old => KINDS.iter().for_each(|kind| server.catch_up(kind)),
                // It is listed again: that an event was lost is known to nobody before.
                Fault::Lost => {
                    server.drop_next_events(&resource, 0);
                    server.compact();
                }
            }
        }
        Ok(())
    }

    async fn until(&mut self, what: &str, done: impl Fn(&World) -> bool) -> Result<(), String> {
        let end = self.world.now() + PATIENCE;
        while !done(&self.world) {
            if self.world.now() > end {
                return Err(format!("not within {PATIENCE:?}: {what}\n{}", self.world.summary()));
            }
            self.step().await?;
        }
        self.world.say(what);
        Ok(())
    }

    async fn live(&mut self) -> Result<(), String> {
        self.world.run(Duration::from_secs(4)).await?;
        self.arm();
        match self.story {
            Story::Resized => self.resized().await?,
            Story::GivenBack => self.given_back().await?,
            Story::Refused => self.refused().await?,
        }
        self.world.delete(0, "lake");
        self.until("nothing is left", World::nothing_left).await?;
        // What comes late.
        let end = self.world.now() + Duration::from_secs(3);
        while self.world.now() < end || self.happened.lock().unwrap().is_some() && self.moment.is_some() {
            self.step().await?;
        }
        if self.world.nothing_left() { Ok(()) } else { Err("something came back".to_owned()) }
    }

    async fn resized(&mut self) -> Result<(), String> {
        self.world.apply(0, "lake", 1, json!([{"size": 1, "maxSize": 3, "peer": "west"}]), "NodePort");
        let ready = |count: usize| {
            move |world: &World| {
                world.bursts_ready(0, "lake")
                    && world.clusters[1].pods().iter().filter(|pod| is_ready(pod)).count() == count
            }
        };
        self.until("the burst is ready", ready(1)).await?;
        let spec = json!({"spec": {"flux": {"bursting": {"clusters": [{"size": 2, "maxSize": 3, "peer": "west"}]}}}});
        self.world.clusters[0].server.patch::<MiniCluster>(USERS, "lake", spec).unwrap();
        self.until("it has two brokers", ready(2)).await
    }

    async fn given_back(&mut self) -> Result<(), String> {
        for (provider, nodes) in [(1, 1), (2, 2)] {
            scale_up::allow(&self.world, provider, 2);
            scale_up::autoscale(&mut self.world, provider, 64, nodes);
        }
        self.runs_where_its_nodes_are().await
    }

    async fn refused(&mut self) -> Result<(), String> {
        // Nodes of west are too small.
        for (provider, cores) in [(1, 32), (2, 64)] {
            provisioning::allow(&self.world, provider, 2);
            scale_up::autoscale(&mut self.world, provider, cores, 2);
        }
        self.runs_where_its_nodes_are().await
    }

    async fn runs_where_its_nodes_are(&mut self) -> Result<(), String> {
        scale_up::apply(&mut self.world, "lake", &["west", "north"]);
        self.until("it is ready", |world| world.bursts_ready(0, "lake")).await?;
        // Who missed that it was given back may ask for it once more: it is at one of them in any case.
        match ready_on(&self.world, 2) && pods(&self.world, 1) == 0 {
            true => Ok(()),
            false => Err(format!("it is not where all of its nodes are\n{}", self.world.summary())),
        }
    }
}

/// Plays a life: how many writes each agent had, what went wrong, and whether all went well.
fn play(story: Story, moment: Option<Moment>) -> ([usize; 2], Option<String>, Result<(), String>) {
    on_paused_time(1, async move || {
        let mut life = Life::new(story, moment);
        let result = life.live().await;
        let happened = life.happened.lock().unwrap().take().map(|(told, _)| told);
        let history = life.world.history.join("\n");
        let writes = life.writes.each_ref().map(|writes| writes.load(Ordering::Relaxed));
        (writes, happened, result.map_err(|error| format!("{error}\n{history}")))
    })
}

/// The danger: what an agent did last is forgotten, done twice or never ended, if it dies or does not see it.
#[test]
fn one_thing_goes_wrong_at_each_write_of_a_life() {
    each_write_of(Story::Resized, EVERY);
}

/// The danger: two peers run it, or none, if what is known of the one that gave it back is lost.
#[test]
fn one_thing_goes_wrong_at_each_write_of_a_life_that_is_given_back() {
    each_write_of(Story::GivenBack, 2 * EVERY + 1);
}

/// The danger: nodes are asked for, for ever, by nobody.
#[test]
fn one_thing_goes_wrong_at_each_write_of_a_life_whose_nodes_are_refused() {
    each_write_of(Story::Refused, 2 * EVERY + 1);
}

fn each_write_of(story: Story, every: usize) {
    log();
    let (writes, _, result) = play(story, None);
    result.unwrap();
    let of_agent = |cluster: usize| (1..=writes[cluster]).map(move |n| (cluster, n));
    let all = (0..2).flat_map(of_agent).flat_map(|(cluster, n)| FAULTS.map(|fault| (cluster, n, fault)));
    // All of them take minutes.
    let every = number("WORLDS_EVERY").map_or(every, |every| usize::try_from(every).unwrap());
    let next = Mutex::new(all.collect::<Vec<Moment>>().into_iter().step_by(every));
    let (failed, tried) = (Mutex::new(BTreeMap::new()), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, std::num::NonZero::get) {
            scope.spawn(|| {
                loop {
                    let Some(moment) = next.lock().unwrap().next() else { return };
                    let (_, happened, result) = play(story, Some(moment));
                    tried.fetch_add(usize::from(happened.is_some()), Ordering::Relaxed);
                    if let Err(error) = result {
                        let of = ["root", "provider"][moment.0];
                        let told = format!("{:?} at write {} of the {of}'s agent: {happened:?}", moment.2, moment.1);
                        failed.lock().unwrap().insert(told, error);
                    }
                }
            });
        }
    });
    let (tried, failed) = (tried.into_inner(), failed.into_inner().unwrap());
    println!("{} writes of the root's agent, {} of the provider's; {tried} lives", writes[0], writes[1]);
    failed.iter().for_each(|(what, error)| println!("{what}: {error}\n"));
    assert!(failed.is_empty(), "{} of {tried} lives: {:#?}", failed.len(), failed.keys().collect::<Vec<_>>());
}
