//! What becomes of a burst that loses its gateway, the broker of index 0 that its other brokers are connected through.

use tributary::flux::Topology;

use super::wiring::{Instance, brokers, flux, hosts_of_job, wait_for_all, wait_for_overlay, world};

#[test]
fn a_gateway_on_a_lost_node_is_replaced_and_its_return_disturbs_nobody() {
    let Some(world) = world() else { return };
    let instance = Instance::new(&world, Topology::Gateway);
    let (lead, _follower) = instance.start_root().unwrap();
    let (mut relay, mut burst) = instance.start_burst("lake-burst-0", &lead).unwrap();
    let (_relay, _other) = instance.start_burst("delta", &lead).unwrap();
    wait_for_all(&lead).unwrap();
    let job = flux(&lead, ["submit", "-N2", "--requires=burst-delta", "sleep", "inf"]).unwrap();

    // Its node is lost: nobody says goodbye, and its pod cannot be ended.
    burst[0].lose().unwrap();
    let mut lost = std::mem::replace(&mut burst[0], instance.start("lake-burst-0", 0).unwrap());
    // The successor has the same rank. The others do not know it, end, and come back behind it.
    for index in [1, 2] {
        assert_eq!(burst[index].wait().unwrap().code(), Some(1));
        burst[index] = instance.start("lake-burst-0", u32::try_from(index).unwrap()).unwrap();
    }
    wait_for_all(&lead).unwrap();
    assert_eq!(hosts_of_job(&lead, 3, "burst-lake-burst-0").unwrap().len(), 3);

    // The node comes back, with the broker that has lost its place: it ends, and the burst stays whole.
    lost.find_again().unwrap();
    assert_eq!(lost.wait().unwrap().code(), Some(1));
    wait_for_overlay(&lead, "--wait=full").unwrap();
    assert!(brokers(&lead).unwrap().iter().all(|line| line.ends_with(": full")));
    assert_eq!(hosts_of_job(&lead, 3, "burst-lake-burst-0").unwrap().len(), 3);
    assert_eq!(relay.links().unwrap(), 1);
    assert_eq!(flux(&lead, ["jobs", "-no", "{state}", &job]).unwrap(), "RUN", "a job elsewhere runs on");
}
