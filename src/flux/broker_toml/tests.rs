use figment::providers::{Format as _, Toml};
use serde_json::Value;

use super::super::Slot;
use super::*;

fn parse(toml: &str) -> Value {
    Toml::from_str(toml).unwrap()
}

fn config(side: Side) -> BrokerConfig {
    BrokerConfig {
        side,
        paths: BrokerPaths {
            resource: "/mnt/flux/config/etc/flux/system/R".into(),
            curve_cert: "/mnt/flux/config/curve/curve.cert".into(),
        },
        network: BrokerNetwork {
            interface: "eth0".into(),
            port: 8050,
            headless: "lake".into(),
            namespace: "default".into(),
            cluster_domain: "cluster.local".into(),
        },
        topology: Topology::Gateway,
        queue_policy: "fcfs".into(),
        silence: None,
    }
}

/// A root of 4 with bursts of 3 and 1, of different hardware.
fn river() -> RankMap {
    let burst = |name: &str, size| Slot::burst(name, size, Topology::Gateway.parent_of_bursts("lake"));
    RankMap::new(vec![
        Slot::root("lake", 4).with_resources(4, 0),
        burst("lake-burst-0", 3).with_resources(64, 2),
        burst("brook", 1).with_resources(8, 0),
    ])
    .unwrap()
}

#[test]
fn root_side() {
    insta::assert_snapshot!(config(Side::Root).to_toml(&river()));
}

#[test]
fn burst_side() {
    let mut config = config(Side::burst("lake-burst-0-lead", 8050));
    config.network = BrokerNetwork {
        interface: "ens5".into(),
        port: 8051,
        headless: "lake-burst-0".into(),
        namespace: "hpc".into(),
        cluster_domain: "west.example".into(),
    };
    insta::assert_snapshot!(config.to_toml(&river()));
}

#[test]
fn a_topology_of_the_users_is_named_and_others_are_not() {
    let mut config = config(Side::Root);
    assert_eq!(parse(&config.to_toml(&river()))["tbon"], Value::Null);
    config.topology = "kary:4".parse().unwrap();
    assert_eq!(parse(&config.to_toml(&river()))["tbon"]["topo"], "kary:4");
}

#[test]
fn lead_endpoints() {
    for (host, endpoint) in [
        ("lake-burst-0-lead", "tcp://lake-burst-0-lead:8050"),
        ("203.0.113.7", "tcp://203.0.113.7:8050"),
        ("2001:db8::7", "tcp://[2001:db8::7]:8050"),
    ] {
        assert_eq!(Side::burst(host, 8050).lead_connect(), Some(endpoint));
    }
}

#[test]
fn no_value_escapes_its_quotes() {
    let nasty = "a\"\n[access]\nallow-guest-user = false # \\u0041\\\t\r\u{0}\u{7f}\u{85}é'''\"\"\"";
    let mut config = config(Side::Burst { lead_connect: nasty.into() });
    config.paths.resource = nasty.into();
    config.paths.curve_cert = nasty.into();
    config.network.interface = nasty.into();
    config.network.cluster_domain = nasty.into();
    config.queue_policy = nasty.into();
    let toml = parse(&config.to_toml(&river()));
    assert_eq!(toml["access"]["allow-guest-user"], true);
    assert_eq!(toml["resource"]["path"], nasty);
    assert_eq!(toml["bootstrap"]["curve_cert"], nasty);
    assert_eq!(toml["bootstrap"]["default_bind"], format!("tcp://{nasty}:%p"));
    assert_eq!(toml["bootstrap"]["default_connect"], format!("tcp://%h.lake.default.svc.{nasty}:%p"));
    assert_eq!(toml["bootstrap"]["hosts"][0]["connect"], nasty);
    config.side = Side::Root;
    assert_eq!(parse(&config.to_toml(&river()))["sched-fluxion-qmanager"]["queue-policy"], nasty);
}

/// 16 bursts of 64 brokers, 1,100 declared in all: the file shares a ConfigMap of at most 1 MiB with R and scripts.
#[test]
fn a_large_instance_stays_small() {
    let root = "a-root-with-a-rather-long-name";
    let mut slots = vec![Slot::root(root, 76)];
    for n in 0..16 {
        let parent = Topology::Gateway.parent_of_bursts(root);
        slots.push(Slot::burst(format!("{root}-burst-{n}"), 64, parent).with_resources(n + 1, n % 3));
    }
    let map = RankMap::new(slots).unwrap();
    assert_eq!(map.size(), 1_100);
    let toml = config(Side::burst("a-root-with-a-rather-long-name-burst-15-lead", 8050)).to_toml(&map);
    assert!(toml.len() < 8 * 1024, "{} bytes", toml.len());
    let r = super::super::ResourceSet::new(&map).to_json();
    assert!(r.len() < 8 * 1024, "{} bytes", r.len());
}

#[test]
fn a_host_list_of_the_users_own_stands_as_it_is() {
    let hosts = "lake-[0-1],gffw-a-[001-003]".parse().unwrap();
    let root = config(Side::Root).to_toml_of_hostlist(&hosts);
    assert!(root.contains("hosts = [\n  { host = \"lake-[0-1],gffw-a-[001-003]\" },\n]\n"), "{root}");
    let burst = config(Side::burst("192.0.2.1", 30093)).to_toml_of_hostlist(&hosts);
    assert!(
        burst.contains(
            "  { host = \"lake-[0-1],gffw-a-[001-003]\" },\n  \
             { host = \"lake-0\", connect = \"tcp://192.0.2.1:30093\" },\n]\n"
        ),
        "{burst}"
    );
}
