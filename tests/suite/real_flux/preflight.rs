//! What a provider finds out about a real lead broker before it makes a burst's pods.

use tributary::flux::Topology;

use super::wiring::{Instance, certificate, hosts_of_job, world};
use super::world::run;

#[test]
fn a_lead_proves_its_certificate_before_there_are_any_brokers_of_a_burst() {
    let Some(world) = world() else { return };
    let instance = Instance::new(&world, Topology::Gateway);
    let (lead, _follower) = instance.start_root().unwrap();
    let dial = |public_key: &str, end: &str| {
        let mut command = world.command();
        command.arg(env!("CARGO_BIN_EXE_lead_dial")).args([public_key, end]);
        run(&mut command).unwrap()
    };
    let end = format!("{}:8050", lead.address);
    // To its own address, and to where the agents of both sides lead to it.
    let _tunnel = world.tunnel("lake-burst-0", lead.address).unwrap();
    let through = format!("{}:8050", world.router("lake-burst-0"));
    for end in [&end, &through] {
        let right = dial(instance.certificate.public_key(), end);
        assert!(right.contains("LeadAddress pass") && right.contains("Certificate pass"), "{end}: {right}");
    }
    let wrong = dial(certificate().public_key(), &end);
    assert!(wrong.contains("LeadAddress pass") && wrong.contains("Certificate fail"), "{wrong}");
    assert!(wrong.contains("the broker there holds another certificate"), "{wrong}");
    let nobody = dial(instance.certificate.public_key(), &format!("{}:8051", lead.address));
    assert!(nobody.contains("LeadAddress fail") && nobody.contains("refuses TCP connections"), "{nobody}");
    // Handshakes that go no further leave the instance as it was.
    let (_relay, _burst) = instance.start_burst("delta", &lead).unwrap();
    assert_eq!(hosts_of_job(&lead, 2, "burst-delta").unwrap().len(), 2);
}
