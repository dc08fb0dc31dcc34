//! Flux's own tools read what `tributary::flux` writes, and the other way round.

use std::collections::BTreeMap;

use tributary::flux::{Certificate, Hostlist, RankMap, ResourceSet, Slot};

use super::install::Install;
use super::pod::{Pod, PodSpec};
use super::world::World;

fn world() -> Option<World> {
    Some(World::start(Install::find().unwrap()?, &["lake"]).unwrap())
}

/// A pod that waits to be asked.
fn pod(world: &World) -> Pod<'_> {
    let command = ["sleep", "inf"].map(str::to_owned).to_vec();
    let (mounts, environment) = (Vec::new(), BTreeMap::new());
    let [cluster, host, fqdn] = ["lake", "lake-0", "lake-0.svc"].map(str::to_owned);
    world.start_pod(&PodSpec { cluster, host, fqdn, mounts, environment, command }).unwrap()
}

#[test]
fn a_certificate_of_flux_keygen_is_one_of_ours() {
    let Some(world) = world() else { return };
    let text = pod(&world).exec(&["flux", "keygen", "--name=lake", "/dev/stdout"]).unwrap();
    let certificate = Certificate::parse(&text).unwrap();
    assert!(text.contains(certificate.public_key()));
}

#[test]
fn flux_reads_our_host_lists_as_the_same_hosts() {
    let Some(world) = world() else { return };
    let pod = pod(&world);
    for hosts in [
        &["lake-0", "lake-1", "delta-0"][..],
        &["lake-0", "lake-2", "lake-1", "lake-1"],
        &["a-09", "a-10", "a-011"],
        &["a-0-0", "a-0-1", "a-0", "a-1", "a"],
    ] {
        let ours = Hostlist::from_hosts(hosts.iter().map(|&host| host.to_owned())).unwrap().to_string();
        let expanded = pod.exec(&["flux", "hostlist", "--expand", "--delimiter= ", &ours]).unwrap();
        assert_eq!(expanded, hosts.join(" "), "{ours}");
    }
}

#[test]
fn flux_counts_the_cores_and_gpus_of_r() {
    let Some(world) = world() else { return };
    let slots = vec![
        Slot::root("lake", 2).with_resources(4, 0),
        Slot::burst("lake-burst-0", 3, Some("lake".to_owned())).with_resources(8, 1),
        Slot::burst("delta", 12, Some("lake".to_owned())).with_resources(1, 4),
    ];
    let r = ResourceSet::new(&RankMap::new(slots).unwrap()).to_json();
    let pod = pod(&world);
    let ask = |arguments: &str| {
        let script = format!(r#"printf %s "$1" | flux R decode {arguments}"#);
        pod.exec(&["bash", "-c", &script, "bash", &r]).unwrap()
    };
    assert_eq!(ask("--count=node"), "17");
    assert_eq!(ask("--count=core"), (2 * 4 + 3 * 8 + 12).to_string());
    assert_eq!(ask("--count=gpu"), (3 + 12 * 4).to_string());
    assert_eq!(ask("--nodelist"), "lake-[0-1],lake-burst-0-[0-2],delta-[0-11]");
    assert_eq!(ask("--properties=burst-delta --nodelist"), "delta-[0-11]");
}
