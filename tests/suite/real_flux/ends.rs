//! Connections of brokers that end in their own pods: agents are killed under a running job.

use std::collections::BTreeSet;
use std::io::Write as _;
use std::path::PathBuf;
use std::time::Duration;

use tributary::clock::{Clock as _, SystemClock};
use tributary::render::{Context, Ends};

use super::scripts::{Side, burst_in, certificate, flux, mini_cluster, wait_until_ready, world};
use super::world::{Relay, World};

/// Longer than it takes Flux to give up on a connection by itself.
const AWAY: [Duration; 2] = [Duration::from_secs(2), Duration::from_secs(40)];

/// Mounts the program as the kubelet would.
fn with_program(side: &mut Side<'_>) {
    let program = PathBuf::from(env!("CARGO_BIN_EXE_ends"));
    side.mounts.push((program, "/flux_operator_ends/tributary-ends".to_owned()));
}

#[test]
fn a_job_on_two_clusters_outlives_all_agents_between_them() {
    let Some(world) = world(&["lake", "lake-burst-0"]) else { return };
    let spec = "
  size: 2
  interactive: true
  containers: [{cores: 2}]
  flux: {bursting: {network: {type: Tunnel}, clusters: [{size: 3, cores: 2}]}}
";
    let (lake, certificate) = (mini_cluster("lake", spec), certificate());
    let context = Context { ends: Ends::new(b"the program itself is mounted".to_vec()), ..Context::default() };
    let mut side = Side::new(&world, &lake, &context, &certificate);
    with_program(&mut side);
    let root = side.start_all(2);
    wait_until_ready(&root[0]);
    let mut side = burst_in(&world, &lake, &context, &certificate);
    with_program(&mut side);
    let tunnel = || -> Relay { World::tunnel(&world, "lake-burst-0", root[0].address).unwrap() };
    let mut way = tunnel();
    let burst = side.start_all(3);
    burst.iter().for_each(wait_until_ready);
    assert_eq!(
        (way.relayed().unwrap(), way.links().unwrap()),
        (1, 0),
        "of one gateway, and nothing ends in the agents"
    );
    let processes = || burst.iter().map(|pod| flux(pod, "flux getattr broker.pid")).collect::<BTreeSet<_>>();
    let before = processes();
    let job = flux(&root[0], "flux submit -N5 --exclusive sleep inf");
    flux(&root[0], &format!("flux job wait-event --timeout=60s {job} start"));

    let clock = SystemClock::start();
    for away in AWAY {
        way.kill().unwrap();
        std::thread::sleep(away);
        way = tunnel();
        let since = clock.mono();
        assert_eq!(flux(&root[0], "flux exec -r 2-4 hostname | wc -l"), "3");
        let answered = clock.mono().saturating_since(since);
        let peak = "awk '/VmHWM/ {print $2}' /proc/$(cat /mnt/flux/config/run/flux/ends)/status";
        let peaks = [&burst[0], &root[0]].map(|pod| flux(pod, peak));
        let told =
            format!("agents away for {away:.0?}, answered after {answered:.1?}; memory of the ends {peaks:?} KiB");
        writeln!(std::io::stderr(), "real_flux: {told}").unwrap();
        assert_eq!(way.relayed().unwrap(), 1, "the same connection");
    }
    // What listens beside brokers knows it, too.
    std::thread::sleep(Duration::from_secs(20));
    assert_eq!(processes(), before, "nobody was started again");
    assert_eq!(flux(&root[0], &format!("flux jobs -no '{{state}}' {job}")), "RUN");
    flux(&root[0], &format!("flux cancel {job}"));

    // The program itself is killed on either side: its brokers join again.
    for pod in [&burst[0], &root[0]] {
        flux(pod, "kill -KILL $(cat /mnt/flux/config/run/flux/ends)");
        // What was asked when it was killed may have no answer.
        flux(
            &root[0],
            "until [ $(timeout -s KILL 5 flux exec -r 2-4 hostname 2>/dev/null | wc -l) = 3 ]; do sleep 1; done",
        );
        assert_eq!(flux(&root[0], "flux run -N5 hostname | wc -l"), "5");
    }
}
