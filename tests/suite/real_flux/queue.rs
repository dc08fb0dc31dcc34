//! The program beside a real lead broker that tells the agent of its queue.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Duration;

use jiff::Timestamp;
use tributary::api::minicluster::MiniCluster;
use tributary::bursting::root::demand::look::Look;
use tributary::flux::Certificate;
use tributary::render::{Context, QUEUE_PORT};

use super::pod::Pod;
use super::scripts::{Side, certificate, flux, mini_cluster, wait_until_ready, world};
use super::world::World;

/// Far more than it takes.
const LONG: Duration = Duration::from_secs(30);

const ROOT: &str = "
  size: 1
  interactive: true
  containers: [{cores: 2}]
  flux: {bursting: {clusters: [{name: west, size: 1, cores: 2, mode: OnDemand}]}}
";

const ASKS: &str = "flux submit -n1 --requires=burst-west true";

/// Somebody who listens as an agent does.
struct Agent {
    process: Child,
    lines: Receiver<String>,
}

impl Agent {
    fn new(world: &World, certificate: &Certificate, lead: &Pod<'_>) -> Self {
        let file = world.folder("agent").unwrap().join(certificate.digest().to_string().replace(':', "-"));
        std::fs::write(&file, certificate.expose()).unwrap();
        let mut command = world.command();
        command.arg(env!("CARGO_BIN_EXE_queue_listen")).arg(file).arg(format!("{}:{QUEUE_PORT}", lead.address));
        let mut process = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
        let (sender, lines) = channel();
        let output = BufReader::new(process.stdout.take().unwrap());
        thread::spawn(move || output.lines().map_while(Result::ok).try_for_each(|line| sender.send(line)));
        Self { process, lines }
    }

    /// Waits until it hears something of this kind: when, and its text.
    fn hears(&self, kind: &str, is: impl Fn(&str) -> bool) -> (i64, String) {
        loop {
            let line = self.lines.recv_timeout(LONG).unwrap_or_else(|error| panic!("no {kind}: {error}"));
            let (at, rest) = line.split_once(' ').unwrap();
            match rest.split_once(' ').unwrap() {
                (found, text) if found == kind && is(text) => return (at.parse().unwrap(), text.to_owned()),
                _ => {}
            }
        }
    }

    /// Waits until so many jobs wait.
    fn hears_of(&self, pending: usize) -> (i64, Look) {
        let look = |text: &str| Look::parse(text).unwrap_or_else(|error| panic!("{error}: {text}"));
        let jobs = |text: &str| look(text).pending.iter().map(|job| job.count as usize).sum::<usize>();
        let (at, text) = self.hears("picture", |text| jobs(text) == pending);
        (at, look(&text))
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn start<'w>(world: &'w World, root: &MiniCluster, certificate: &Certificate) -> Pod<'w> {
    let lead = Side::new(world, root, &Context::default(), certificate).start(0);
    wait_until_ready(&lead);
    lead
}

/// Milliseconds from before a job is submitted until an agent has heard of it.
fn took(agent: &Agent, pending: usize, submit: impl FnOnce()) -> i64 {
    let began = Timestamp::now().as_millisecond();
    submit();
    agent.hears_of(pending).0 - began
}

#[test]
fn an_agent_hears_at_once_of_a_job_that_needs_a_burst_and_a_stranger_of_nothing() {
    let Some(world) = world(&["lake"]) else { return };
    let (root, right) = (mini_cluster("lake", ROOT), certificate());
    let lead = start(&world, &root, &right);
    let (agent, second) = (Agent::new(&world, &right, &lead), Agent::new(&world, &right, &lead));
    let (_, quiet) = agent.hears_of(0);
    assert_eq!((quiet.up.to_string(), quiet.busy.to_string()), ("0".into(), String::new()));
    let stranger = Agent::new(&world, &certificate(), &lead);
    stranger.hears("error", |text| text.contains("another certificate"));

    let mut times: Vec<i64> = (1..=10).map(|number| took(&agent, number, || drop(flux(&lead, ASKS)))).collect();
    times.sort_unstable();
    println!(
        "the agent hears of a job after {} ms (median of 10, with `flux submit`), at most {} ms",
        times[5], times[9]
    );
    assert!(times[9] < 10_000, "{times:?}");
    second.hears_of(10);
    let many = took(&agent, 2_000, || drop(flux(&lead, "flux submit --cc=11-2000 -n1 --requires=burst-west true")));
    let again = took(&agent, 1_999, || drop(flux(&lead, "flux cancel $(flux jobs -no '{id}' --count=1)")));
    println!("it hears of 2,000 jobs {many} ms after the first is submitted, and of one less after {again} ms");
    flux(&lead, "flux cancel --all; flux submit --cc=1-10 -n1 --requires=burst-west true");
    agent.hears_of(10);

    // Whoever listens goes on, and whoever comes later finds it again.
    let kill = "for p in /proc/[0-9]*; do if grep -qs /tell-queue.py $p/cmdline; then echo ${p#/proc/}; fi; done";
    let before = lead.exec(&["bash", "-c", kill]).unwrap();
    assert!(before.lines().count() >= 3, "one for each listener: {before}");
    let memory = before.lines().map(|process| format!("grep -s VmRSS /proc/{process}/status; ")).collect::<String>();
    // Some have ended by now: those of strangers, and what looked for all others.
    let memory = lead.exec(&["bash", "-c", &format!("{memory} true")]).unwrap();
    println!("the program, and one for each listener: {memory}");
    lead.exec(&["bash", "-c", &format!("kill -9 {}", before.replace('\n', " "))]).ok();
    agent.hears("error", |_| true);
    let (_, look) = agent.hears_of(10);
    assert_eq!(look.pending.len(), 1);
    assert!(took(&agent, 0, || drop(flux(&lead, "flux cancel --all"))) < 10_000);
    while let Ok(line) = stranger.lines.try_recv() {
        assert!(line.contains(" error "), "{line}");
    }
}

/// The manifest of the example, as it is.
#[test]
fn a_job_of_a_named_queue_asks_for_the_burst_that_the_queue_is_for() {
    let Some(world) = world(&["tarn"]) else { return };
    let text = include_str!("../../../examples/named-queue/minicluster.yaml");
    let mut root: MiniCluster = serde_saphyr::from_str(text).unwrap();
    let plain = mini_cluster("tarn", "  size: 2\n  containers: [{cores: 2}]\n");
    root.metadata = plain.metadata;
    root.spec.flux.container = plain.spec.flux.container;
    root.spec.containers[0].image = plain.spec.containers[0].image.clone();
    let right = certificate();
    let pods = Side::new(&world, &root, &Context::default(), &right).start_all(2);
    pods.iter().for_each(wait_until_ready);
    let agent = Agent::new(&world, &right, &pods[0]);
    agent.hears_of(0);
    flux(&pods[0], "flux queue start --all");
    let here = flux(&pods[0], "flux submit -N2 hostname");
    flux(&pods[0], &format!("flux job wait-event --timeout=60s {here} clean"));
    let asked = took(&agent, 1, || drop(flux(&pods[0], "flux submit -q west -N2 hostname")));
    println!("the agent hears of a job in a named queue after {asked} ms");
    flux(&pods[0], "flux queue stop --queue=west");
    agent.hears_of(0);
}
