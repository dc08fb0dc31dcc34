//! What the agent reads of a real queue, and which bursts it concludes that jobs ask for.

use std::collections::{BTreeMap, BTreeSet};

use tributary::bursting::root::demand::ask::{Slot, ask};
use tributary::bursting::root::demand::look::Look;
use tributary::flux::Topology;

use super::pod::Pod;
use super::wiring::{Instance, flux, world};

/// The program beside lead brokers.
const PROGRAM: &str = include_str!("../../../src/render/scripts/tell-queue.py");

/// A picture of the queue, just as the program makes it.
fn look(lead: &Pod<'_>) -> Look {
    look_closing(lead, "")
}

/// The same when no more jobs may start on these ranks.
fn look_closing(lead: &Pod<'_>, closed: &str) -> Look {
    let lines =
        format!("import flux\nh = flux.Flux()\nopen_again(h, '{closed}')\nprint(look(h, {{}}, '{closed}'))\nif False:");
    let once = PROGRAM.replace("if __name__ == \"__main__\":", &lines);
    let said = flux(lead, ["python", "-c", &once]).unwrap();
    Look::parse(&said).unwrap_or_else(|error| panic!("{error}: {said}"))
}

/// Jobs that ask for each burst, and whether jobs run there.
fn asked(instance: &Instance<'_>, look: &Look, awake: &[&str]) -> BTreeMap<String, (u32, bool)> {
    let slot =
        |(name, size): (&str, u32)| Slot { name: name.to_owned(), size, awake: awake.contains(&name), stuck: false };
    let slots = [("lake-burst-0", 3), ("delta", 2)].map(slot);
    let asked = ask(&instance.map, look, &slots, &BTreeSet::new());
    asked.into_iter().map(|(name, asked)| (name, (asked.pending, asked.busy))).collect()
}

fn expected(burst: (u32, bool), delta: (u32, bool)) -> BTreeMap<String, (u32, bool)> {
    [("lake-burst-0".to_owned(), burst), ("delta".to_owned(), delta)].into()
}

#[test]
fn jobs_of_a_real_queue_ask_for_the_bursts_that_can_run_them() {
    let Some(world) = world() else { return };
    let instance = Instance::new(&world, Topology::Flat);
    let (lead, _follower) = instance.start_root().unwrap();
    let submit = |arguments: &str| {
        let words: Vec<&str> = ["submit"].into_iter().chain(arguments.split(' ')).collect();
        let script = "flux \"$@\"";
        let own = ["bash", "-c", &format!("export FLUX_URI={}; {script}", super::wiring::LOCAL_URI), "flux"];
        lead.exec(&[&own[..], &words].concat()).unwrap()
    };
    // Two brokers of two cores: all four are taken, and two wait for their turn.
    let runs = submit("-n1 --cc=1-4 sleep inf");
    let first = runs.lines().next().unwrap().to_owned();
    flux(&lead, ["job", "wait-event", "--timeout=60s", runs.lines().last().unwrap(), "start"]).unwrap();
    submit("-n1 --cc=1-2 true");
    submit("--urgency=hold -n1 --requires=burst-delta true");
    submit(&format!("--dependency=afterany:{first} -n1 --requires=burst-delta true"));
    let quiet = look(&lead);
    assert_eq!((quiet.up.to_string(), quiet.busy.to_string()), ("0-1".into(), "0-1".into()));
    assert_eq!(quiet.used, [("0-1".parse().unwrap(), 2)]);
    assert_eq!(
        quiet.pending.iter().map(|job| job.count).collect::<Vec<_>>(),
        [2],
        "alike; not held, and not dependent"
    );
    assert_eq!(asked(&instance, &quiet, &[]), expected((0, false), (0, false)));

    // One on what only a burst has, one that may go anywhere, one too large for the root, three for the other burst.
    submit("-n1 -g1 --requires=cluster-west true");
    let anywhere = submit("--setattr=burstable -n1 sleep inf");
    submit("-N5 true");
    // All declared brokers together could not run it; this scheduler lets it wait all the same.
    submit("-N20 true");
    let for_delta = submit("-n1 --cc=1-2 --requires=burst-delta sleep inf");
    let busy = look(&lead);
    assert_eq!(busy.pending.iter().filter(|job| job.burstable).count(), 1);
    assert_eq!(asked(&instance, &busy, &[]), expected((3, false), (2, false)));
    assert_eq!(asked(&instance, &busy, &["delta"]), expected((2, false), (3, false)), "who runs is asked first");

    // A stopped queue starts nothing, and asks for nothing.
    flux(&lead, ["queue", "stop"]).unwrap();
    assert_eq!(look(&lead).pending, []);
    flux(&lead, ["cancel", "--all", "--states=pending"]).unwrap();
    flux(&lead, ["queue", "start"]).unwrap();
    assert!(!anywhere.is_empty() && !for_delta.is_empty());
    assert_eq!(asked(&instance, &look(&lead), &[]), expected((0, false), (0, false)));
}

/// A configuration with two named queues, of which one is stopped, in an instance that runs.
#[test]
fn jobs_of_a_named_queue_that_is_stopped_ask_for_nothing() {
    let Some(world) = world() else { return };
    let instance = Instance::new(&world, Topology::Flat);
    let (lead, _follower) = instance.start_root().unwrap();
    let named = "import json, flux; handle = flux.Flux(); config = handle.rpc('config.get').get(); \
                 config['queues'] = {'batch': {}, 'debug': {}}; handle.rpc('config.load', config).get()";
    flux(&lead, ["python", "-c", named]).unwrap();
    flux(&lead, ["queue", "start", "--all"]).unwrap();
    for queue in ["batch", "debug"] {
        flux(&lead, ["submit", &format!("--queue={queue}"), "-n1", "--requires=burst-delta", "true"]).unwrap();
    }
    let pending = |look: Look| asked(&instance, &look, &[])["delta"].0;
    assert_eq!(pending(look(&lead)), 2);
    flux(&lead, ["queue", "stop", "--queue=debug"]).unwrap();
    assert_eq!(pending(look(&lead)), 1, "what waits in batch");
    flux(&lead, ["queue", "stop", "--all"]).unwrap();
    assert_eq!(pending(look(&lead)), 0);
    flux(&lead, ["queue", "start", "--queue=debug"]).unwrap();
    assert_eq!(pending(look(&lead)), 1, "what waits in debug");
}

#[test]
fn a_real_burst_is_in_use_while_jobs_run_there_and_a_moment_longer_and_leaves_drained() {
    let Some(world) = world() else { return };
    let instance = Instance::new(&world, Topology::Flat);
    let (lead, _follower) = instance.start_root().unwrap();
    let (_way, mut brokers) = instance.start_burst("delta", &lead).unwrap();
    // It waits until they have joined.
    flux(&lead, ["run", "-N2", "--requires=burst-delta", "hostname"]).unwrap();
    // A job that came and went between two looks.
    let after = look(&lead);
    assert_eq!((after.up.to_string(), after.busy.to_string(), after.used.len()), ("0-1,5-6".into(), "5-6".into(), 0));

    let job = flux(&lead, ["submit", "-N1", "--requires=burst-delta and host:delta-1", "sleep", "inf"]).unwrap();
    flux(&lead, ["job", "wait-event", "--timeout=60s", &job, "start"]).unwrap();
    let during = look(&lead);
    assert_eq!(during.used, [("6".parse().unwrap(), 1)]);
    assert_eq!(asked(&instance, &during, &["delta"])["delta"], (0, true));

    // As its brokers leave: drained first, so that jobs that wait do not start there any more.
    flux(&lead, ["resource", "drain", "--update", "5-6", "tributary: delta is leaving"]).unwrap();
    flux(&lead, ["submit", "-N1", "--requires=burst-delta", "true"]).unwrap();
    let leaving = look(&lead);
    assert_eq!(leaving.up.to_string(), "0-1", "what is drained is not up, though a job runs there");
    assert_eq!(asked(&instance, &leaving, &[])["delta"], (1, true), "and who waits asks for it again");
    for broker in &mut brokers {
        broker.terminate().unwrap();
    }
    flux(&lead, ["job", "wait-event", "--timeout=60s", &job, "clean"]).unwrap();
    let gone = look(&lead);
    assert_eq!((gone.up.to_string(), asked(&instance, &gone, &[])["delta"].0), ("0-1".into(), 1));
}

#[test]
fn no_job_starts_on_a_real_burst_that_is_closed_and_those_that_run_there_go_on() {
    let Some(world) = world() else { return };
    let instance = Instance::new(&world, Topology::Flat);
    let (lead, _follower) = instance.start_root().unwrap();
    let (_way, _brokers) = instance.start_burst("delta", &lead).unwrap();
    flux(&lead, ["run", "-N2", "--requires=burst-delta", "hostname"]).unwrap();
    let job = flux(&lead, ["submit", "-N1", "--requires=host:delta-0", "sleep", "inf"]).unwrap();
    flux(&lead, ["job", "wait-event", "--timeout=60s", &job, "start"]).unwrap();

    let closed = look_closing(&lead, "5-6");
    assert_eq!((closed.up.to_string(), closed.busy.contains(5)), ("0-1".into(), true));
    let waits = flux(&lead, ["submit", "-N1", "--requires=host:delta-1", "hostname"]).unwrap();
    assert!(flux(&lead, ["job", "wait-event", "--timeout=2s", &waits, "start"]).is_err());
    flux(&lead, ["job", "wait-event", "--timeout=2s", &job, "finish"]).unwrap_err();
    // Its brokers leave, and say so: it is open again all the same when they are wanted.
    flux(&lead, ["resource", "drain", "--update", "5-6", "tributary: delta-0 is leaving"]).unwrap();
    assert_eq!(look_closing(&lead, "5").up.to_string(), "0-1,6");
    flux(&lead, ["job", "wait-event", "--timeout=60s", &waits, "start"]).unwrap();
    // What somebody else has drained stays so.
    flux(&lead, ["resource", "drain", "--force", "6", "its fan is loud"]).unwrap();
    assert_eq!(look_closing(&lead, "").up.to_string(), "0-1,5");
}
