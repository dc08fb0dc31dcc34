//! Brokers whose connection to the lead is dead, and nothing tells them: the script beside the broker starts it again, and
//! only then.

use std::io::Write as _;
use std::net::IpAddr;
use std::time::Duration;

use anyhow::Result;
use tributary::clock::{Clock as _, SystemClock};
use tributary::render::Context;

use super::pod::Pod;
use super::scripts::{NAMESPACE, Side, burst_of, certificate, flux, mini_cluster, wait_until_ready, world};
use super::tunnel::cut;
use super::world::World;

/// How long the tunnel is cut: four times as long as a script listens before it starts a broker again.
const CUT: Duration = Duration::from_secs(60);

/// What a broker's script says when it starts the broker again.
const STARTED_AGAIN: &str = "is started again";

/// Two brokers, and a burst of three behind a gateway, with a job on all of them.
struct Whole<'w, W> {
    side: Side<'w>,
    root: Vec<Pod<'w>>,
    burst: Vec<Pod<'w>>,
    way: W,
    job: String,
}

impl<'w, W> Whole<'w, W> {
    /// `way` is what leads to the lead broker at this address.
    fn start(world: &'w World, way: impl FnOnce(&World, &str, IpAddr) -> Result<W>) -> Self {
        let spec = "
  size: 2
  interactive: true
  containers: [{cores: 2}]
  flux: {bursting: {clusters: [{size: 3, cores: 2}]}}
";
        let lake = mini_cluster("lake", spec);
        let certificate = certificate();
        let side = Side::new(world, &lake, &Context::default(), &certificate);
        let root = side.start_all(2);
        wait_until_ready(&root[0]);
        let burst = burst_of(world, &lake, &certificate);
        let way = way(world, "lake-burst-0", root[0].address).unwrap();
        let burst = burst.start_all(3);
        burst.iter().for_each(wait_until_ready);
        let job = flux(&root[0], "flux submit -N5 --exclusive sleep inf");
        flux(&root[0], &format!("flux job wait-event --timeout=60s {job} start"));
        Self { side, root, burst, way, job }
    }

    /// Those of the burst's brokers.
    fn processes(&self) -> Vec<String> {
        self.burst.iter().map(|pod| flux(pod, "flux getattr broker.pid")).collect()
    }

    fn state_of_job(&self) -> String {
        flux(&self.root[0], &format!("flux jobs -no '{{state}}' {}", self.job))
    }
}

#[test]
fn a_broker_on_a_dead_connection_is_started_again_while_its_lead_answers_others() {
    let Some(world) = world(&["lake", "lake-burst-0"]) else { return };
    let mut whole = Whole::start(&world, World::relay);
    let clock = SystemClock::start();
    whole.way.strand().unwrap();
    let stranded = clock.mono();
    // Only the gateway's own connection is dead. Those behind it are told to end by it, and come back as well.
    whole.burst[0].wait_for_log("answers others: it is started again").unwrap();
    let noticed = clock.mono().saturating_since(stranded);
    whole.root[0].wait_for_log("lake-burst-0-0 (rank 2) reconnected after crash").unwrap();
    whole.burst[1..].iter().for_each(|pod| drop(pod.wait_for_log(STARTED_AGAIN).unwrap()));
    flux(&whole.root[0], "flux overlay status --wait=full --timeout=60s --summary");
    let back = clock.mono().saturating_since(stranded);
    writeln!(std::io::stderr(), "real_flux: noticed after {noticed:.1?}, five brokers again after {back:.1?}").unwrap();
    for pod in &whole.burst[1..] {
        assert_eq!(flux(pod, "cat /proc/1/comm"), "bash", "the pod is the same");
    }
    flux(&whole.root[0], &format!("flux job wait-event --timeout=60s {} clean", whole.job));
    assert_eq!(flux(&whole.root[0], "flux run -N5 hostname | wc -l"), "5");
}

#[test]
fn brokers_whose_lead_is_cut_off_are_left_alone_with_their_job() {
    let Some(world) = world(&["lake", "lake-burst-0"]) else { return };
    let mut whole = Whole::start(&world, World::tunnel);
    let before = whole.processes();
    whole.way.cut().unwrap();
    std::thread::sleep(CUT);
    assert_eq!(whole.processes(), before, "nobody was ended");
    whole.way.heal().unwrap();
    assert_eq!(flux(&whole.root[0], "flux exec -r 2-4 hostname | wc -l"), "3");
    // Connections that are held go on, and what listened meanwhile knows it.
    std::thread::sleep(Duration::from_secs(20));
    assert_eq!(whole.processes(), before);
    assert_eq!(whole.state_of_job(), "RUN");
}

/// As through a NodePort: the packets of the brokers themselves cross the way that is cut.
fn direct(world: &World, cluster: &str, lead: IpAddr) -> Result<()> {
    world.publish(cluster, &format!("{cluster}-lead.{NAMESPACE}.svc.cluster.local"), lead)
}

#[test]
fn brokers_outlive_a_cut_of_the_direct_way_to_their_lead_with_their_job() {
    let Some(world) = world(&["lake", "lake-burst-0"]) else { return };
    world.forward(true).unwrap();
    let whole = Whole::start(&world, direct);
    let processes = whole.processes();
    world.forward(false).unwrap();
    std::thread::sleep(cut());
    world.forward(true).unwrap();
    let clock = SystemClock::start();
    let healed = clock.mono();
    while flux(&whole.root[0], "timeout 2 flux exec -r 2-4 hostname | wc -l") != "3" {
        assert!(clock.mono().saturating_since(healed) < Duration::from_secs(150), "no broker of the burst came back");
    }
    let back = clock.mono().saturating_since(healed);
    writeln!(std::io::stderr(), "real_flux: a direct way was cut for {:.0?}, and back after {back:.1?}", cut())
        .unwrap();
    // What listened meanwhile knows it.
    std::thread::sleep(Duration::from_secs(20));
    assert_eq!(whole.processes(), processes, "nobody was ended");
    assert_eq!(whole.state_of_job(), "RUN");
}

/// A NodePort leads to the next pod of index 0 as soon as there is one, and a lost one may come back.
#[test]
fn brokers_of_a_burst_join_the_next_lead_by_themselves() {
    for lost in [false, true] {
        let Some(world) = world(&["lake", "lake-burst-0"]) else { return };
        world.forward(true).unwrap();
        let mut whole = Whole::start(&world, direct);
        if lost {
            whole.root[0].lose().unwrap();
        } else {
            whole.root[0].kill().unwrap();
        }
        let clock = SystemClock::start();
        let gone = clock.mono();
        let next = whole.side.start(0);
        direct(&world, "lake-burst-0", next.address).unwrap();
        wait_until_ready(&next);
        assert_eq!(flux(&next, "flux run -N5 hostname | wc -l"), "5");
        let back = clock.mono().saturating_since(gone);
        let how = if lost { "lost" } else { "killed" };
        writeln!(std::io::stderr(), "real_flux: a lead was {how}; five brokers joined the next in {back:.1?}").unwrap();
        for pod in &whole.burst {
            assert_eq!(flux(pod, "cat /proc/1/comm"), "bash", "the pod is the same");
        }
        if lost {
            whole.root[0].find_again().unwrap();
            std::thread::sleep(Duration::from_secs(20));
            assert_eq!(flux(&next, "flux run -N5 hostname | wc -l"), "5");
            assert_eq!(flux(&next, "flux resource list -s up -no '{nnodes}'"), "5");
        }
    }
}
