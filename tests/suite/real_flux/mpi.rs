//! Tasks of one job meet inside one burst by PMI, as an MPI library does when it starts: the page on MPI shows it.

use tributary::flux::Topology;

use super::wiring::{Instance, flux, wait_for_all, world};

#[test]
fn tasks_of_one_burst_meet_by_pmi() {
    let Some(world) = world() else { return };
    let instance = Instance::new(&world, Topology::Gateway);
    let (lead, _follower) = instance.start_root().unwrap();
    let (_relay_0, _burst_0) = instance.start_burst("lake-burst-0", &lead).unwrap();
    let (_relay_1, _burst_1) = instance.start_burst("delta", &lead).unwrap();
    wait_for_all(&lead).unwrap();
    for (requires, tasks) in [("--requires=burst-lake-burst-0", "4"), ("--requires=burst-delta", "2")] {
        let said = flux(&lead, ["run", "-N2", "-n", tasks, requires, "flux", "pmi", "barrier"]).unwrap();
        assert!(said.ends_with(&format!("completed pmi barrier on {tasks} tasks")), "{said}");
    }
}
