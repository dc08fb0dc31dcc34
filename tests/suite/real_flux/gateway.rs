//! What becomes of a burst that loses its gateway, the broker of index 0 that its other brokers are connected through.

use tributary::flux::Topology;

use super::wiring::{Instance, LOCAL_URI, brokers, flux, wait_for_all, wait_for_overlay, world};

#[test]
fn a_gateway_that_ends_gets_its_rank_back_and_the_others_join_behind_it() {
    let Some(world) = world() else { return };
    let instance = Instance::new(&world, Topology::Gateway);
    let mut whole = instance.start_whole().unwrap();
    let job = flux(&whole.lead, ["submit", "-N3", "--requires=burst-lake-burst-0", "sleep", "inf"]).unwrap();
    flux(&whole.lead, ["job", "wait-event", "--timeout=60s", &job, "start"]).unwrap();
    whole.burst[0].kill().unwrap();
    whole.start_again(0).unwrap();
    // A new gateway does not know the old one's children.
    whole.outlive_gateway([1, 2]).unwrap();
    wait_for_all(&whole.lead).unwrap();
    assert_eq!(whole.relay.links().unwrap(), 1);
    // A job on it is lost.
    flux(&whole.lead, ["job", "wait-event", "--timeout=60s", &job, "clean"]).unwrap();
    assert_eq!(flux(&whole.lead, ["jobs", "-no", "{result}", &job]).unwrap(), "FAILED");
    whole.runs_on(3).unwrap();
}

#[test]
fn a_gateway_on_a_lost_node_is_replaced_and_its_return_disturbs_nobody() {
    let Some(world) = world() else { return };
    let instance = Instance::new(&world, Topology::Gateway);
    let mut whole = instance.start_whole().unwrap();
    // Its node is lost: nobody says goodbye, and its pod cannot be ended.
    whole.burst[0].lose().unwrap();
    let mut lost = whole.start_again(0).unwrap();
    whole.outlive_gateway([1, 2]).unwrap();
    wait_for_all(&whole.lead).unwrap();
    whole.runs_on(3).unwrap();

    // The node comes back, with the broker that has lost its place: the burst stays whole. The broker may wait for its old
    // children for minutes; the kubelet ends a pod that was deleted meanwhile.
    lost.find_again().unwrap();
    wait_for_overlay(&whole.lead, "--wait=full").unwrap();
    whole.runs_on(3).unwrap();
    lost.kill().unwrap();
    wait_for_overlay(&whole.lead, "--wait=full").unwrap();
    assert!(brokers(&whole.lead).unwrap().iter().all(|line| line.ends_with(": full")));
    assert_eq!(whole.relay.links().unwrap(), 1);
    whole.runs_on(3).unwrap();
}

#[test]
fn a_gateway_that_has_no_other_place_gets_that_of_the_last_broker() {
    let Some(world) = world() else { return };
    let instance = Instance::new(&world, Topology::Gateway);
    let mut whole = instance.start_whole().unwrap();
    whole.burst[0].kill().unwrap();
    wait_for_overlay(&whole.lead, "--wait=degraded").unwrap();

    // No other broker can go past the gateway, not even one that was told to: the lead takes no children but its own.
    let flat = Instance::like(&instance, Topology::Flat);
    let mut past = flat.start("lake-burst-0", 1).unwrap();
    whole.lead.wait_for_log("rejecting connection from lake-burst-0-1 (rank 3)").unwrap();
    assert_eq!(past.wait().unwrap().code(), Some(1));
    // The others wait for it. They cannot answer what the readiness probe asks.
    assert!(whole.burst[1].runs().unwrap() && whole.burst[2].runs().unwrap());
    let probe = format!("FLUX_URI={LOCAL_URI} timeout 5 flux uptime; echo \"ended with $?\"");
    let told = whole.burst[1].exec(&["bash", "-c", &probe]).unwrap();
    assert!(told.ends_with("ended with 124"), "{told}");

    // The last one gives up its place, and the rest of the burst is back: a job waits for that.
    whole.burst[2].kill().unwrap();
    whole.start_again(0).unwrap();
    whole.outlive_gateway([1]).unwrap();
    whole.runs_on(2).unwrap();
    // And the last one joins when there is a place for it.
    whole.start_again(2).unwrap();
    wait_for_all(&whole.lead).unwrap();
    whole.runs_on(3).unwrap();
}
