//! One instance through the tunnel, with two real agents' federations and a way between them that is cut.

use std::time::Duration;

use tributary::flux::Topology;

use super::wiring::{Instance, brokers, flux, hosts_of_job, wait_for_all, world};

/// How long the way is cut, unless `TRIBUTARY_FLUX_CUT_SECONDS` says otherwise: longer than the 23 s after which Flux gives up
/// on a connection by itself, and than the 30 s after which QUIC does.
pub(super) fn cut() -> Duration {
    let seconds = std::env::var("TRIBUTARY_FLUX_CUT_SECONDS").ok();
    Duration::from_secs(seconds.map_or(45, |text| text.parse().expect("a number of seconds")))
}

#[test]
fn an_instance_forms_through_the_tunnel_and_outlives_a_cut_with_its_jobs() {
    let Some(world) = world() else { return };
    let instance = Instance::new(&world, Topology::Gateway);
    let (lead, _follower) = instance.start_root().unwrap();
    let (mut tunnel, mut burst) = instance.start_burst_by("lake-burst-0", &lead, super::world::World::tunnel).unwrap();
    let (_relay, _other) = instance.start_burst("delta", &lead).unwrap();
    wait_for_all(&lead).unwrap();
    assert_eq!(tunnel.links().unwrap(), 1, "one connection between the clusters, through the gateway");
    assert_eq!(flux(&lead, ["run", "-N7", "hostname"]).unwrap().lines().count(), 7);
    let own = hosts_of_job(&lead, 3, "burst-lake-burst-0").unwrap();
    assert_eq!(own, ["lake-burst-0-0", "lake-burst-0-1", "lake-burst-0-2"]);

    let job = flux(&lead, ["submit", "-N5", "--requires=-burst-delta", "sleep", "inf"]).unwrap();
    tunnel.cut().unwrap();
    std::thread::sleep(cut());
    // It cannot be told what it misses, and waits.
    assert!(brokers(&lead).unwrap().iter().all(|line| !line.contains("offline") && !line.contains("lost")));
    tunnel.heal().unwrap();
    // The very brokers answer: none was started again, and the job never ended.
    let heard = flux(&lead, ["exec", "-r", "2-4", "hostname"]).unwrap();
    assert_eq!(heard.lines().count(), 3, "{heard}");
    for pod in &mut burst {
        assert!(pod.runs().unwrap());
    }
    assert_eq!(flux(&lead, ["jobs", "-no", "{state}", &job]).unwrap(), "RUN");
    assert_eq!(tunnel.links().unwrap(), 1, "the same connection");
    flux(&lead, ["cancel", &job]).unwrap();
    assert_eq!(flux(&lead, ["run", "-N7", "hostname"]).unwrap().lines().count(), 7);
}
