//! Flux's own formats, as users and root clusters write them.

use std::collections::BTreeSet;

use serde_json::Value;
use tributary_clock::SeededRng;
use tributary_flux::{
    BrokerConfig, BrokerNetwork, BrokerPaths, Certificate, CertificateMetadata, Hostlist, Idset, RankMap, ResourceSet,
    Side, Topology, curve, hostlist,
};

use super::{Target, texts};

pub(crate) const HOSTLIST: Target = Target {
    name: "hostlist",
    run: |data| {
        let Ok(Ok(list)) = std::str::from_utf8(data).map(str::parse::<Hostlist>) else { return };
        assert!(list.len() <= hostlist::MAX_HOSTS);
        for host in list.iter() {
            let plain = host.chars().all(|c| !c.is_control() && !",[] \t".contains(c));
            assert!(plain && !host.is_empty() && host.len() <= hostlist::MAX_HOST_LEN, "{host:?}");
        }
        assert_eq!(list.to_string().parse(), Ok(list.clone()), "what is written is read as it was meant");
        assert_eq!(hosts_of(&broker_config(Side::Root).to_toml_of_hostlist(&list)), list.hosts());
        let r: Value = serde_json::from_str(&ResourceSet::of_hosts(&list, 2, 1).to_json()).expect("R is JSON");
        let nodes: Hostlist = r["execution"]["nodelist"][0].as_str().and_then(|text| text.parse().ok()).expect("hosts");
        assert_eq!(nodes, list);
    },
    seeds: || {
        texts(&["a-[0-2,7],b-0", "n[001-010]x,n[5] n7", "a[0-16383]", "[1-3],0009,x018446744073709551616", "a]["])
    },
    words: &["[", "]", ",", "-", "0-3", "16384", "999999999999999999", "a-[0-9]", " ", "\t", "00"],
};

pub(crate) const IDSET: Target = Target {
    name: "idset",
    run: |data| {
        let Ok(Ok(set)) = std::str::from_utf8(data).map(str::parse::<Idset>) else { return };
        let text = set.to_string();
        let again: Idset = text.parse().unwrap_or_else(|error| panic!("{text}: {error}"));
        assert_eq!(again, set);
        let few: BTreeSet<u32> = set.iter().take(4_096).collect();
        assert!(few.iter().all(|id| set.contains(*id)));
        assert_eq!(set.is_empty(), few.is_empty());
        if let Some(gap) = few.first().and_then(|first| first.checked_sub(1)) {
            assert!(!set.contains(gap));
        }
        if few.len() < 4_096 {
            assert_eq!(few.into_iter().collect::<Idset>(), set);
        }
    },
    seeds: || texts(&["0-3,7", "[5,1-2,2-9]", "4294967294", "4294967295", "0,2,4,6,8,1,3", ""]),
    words: &["[", "]", ",", "-", "4294967295", "4294967294", "0-3"],
};

pub(crate) const RANK_MAP: Target = Target {
    name: "rank_map",
    run: |data| {
        let Ok(Ok(map)) = std::str::from_utf8(data).map(RankMap::parse_canonical) else { return };
        assert_eq!(map.to_canonical().as_bytes(), data, "one text of one map");
        let hosts = map.hostlist();
        assert_eq!(hosts.len(), map.size() as usize);
        let lead = (!map.bursts().is_empty()).then(|| Side::burst("lead", 8050));
        for side in [Some(Side::Root), lead].into_iter().flatten() {
            let written = hosts_of(&broker_config(side).to_toml(&map));
            assert_eq!(written, hosts.hosts());
        }
        let r: Value = serde_json::from_str(&ResourceSet::new(&map).to_json()).expect("R is JSON");
        let mut ranks = BTreeSet::new();
        for group in r["execution"]["R_lite"].as_array().expect("a list") {
            let ids: Idset = group["rank"].as_str().and_then(|text| text.parse().ok()).expect("an idset");
            assert!(ids.iter().all(|id| ranks.insert(id)), "no rank is in two groups");
        }
        assert_eq!(ranks, (0..map.size()).collect(), "each rank has resources");
    },
    seeds: || {
        texts(&[
            "rank-map/1\nslot lake max-size=2 cores=4 gpus=0\nslot lake-burst-0 max-size=3 cores=8 gpus=1 parent=lake \
             properties=burst-lake-burst-0,cluster-west\n",
            "rank-map/1\nslot a max-size=1 cores=1 gpus=0\nslot a-1 max-size=12 cores=1 gpus=0\n",
            "rank-map/1\nslot a max-size=16384 cores=1 gpus=0\n",
        ])
    },
    words: &[
        "rank-map/1\n",
        "slot ",
        " max-size=",
        " cores=",
        " gpus=",
        " parent=",
        " properties=",
        "\n",
        "a-0",
        "4294967295",
    ],
};

pub(crate) const CERTIFICATE: Target = Target {
    name: "certificate",
    run: |data| {
        let Ok(text) = std::str::from_utf8(data) else { return };
        match Certificate::parse(text) {
            Ok(certificate) => {
                assert_eq!(certificate.expose(), text);
                assert_eq!(certificate.public_key().len(), 40);
                no_value_in(text, &format!("{certificate:?}"), Some(certificate.public_key()));
            }
            Err(error) => no_value_in(text, &format!("{error} {error:?}"), None),
        }
    },
    seeds: || {
        let text = made().expose().to_owned();
        let short = text.replace("public-key", "public");
        let twice = format!("{text}    secret-key = \"x\"\n");
        [text, short, twice].map(String::into_bytes).into()
    },
    words: &["metadata\n", "curve\n", "    public-key = \"", "    secret-key = \"", "\"\n", "#", " = ", "\t", "\r\n"],
};

/// A certificate that a root would make.
fn made() -> Certificate {
    let created = "2026-11-24T00:00:00Z".parse().expect("a time");
    let metadata = CertificateMetadata { name: "lake".to_owned(), hostname: "lake-0".to_owned(), created };
    Certificate::generate(&mut SeededRng::new(1), &metadata).expect("names of objects are values")
}

/// Whatever a certificate has between quotes is a secret until the contrary is known.
fn no_value_in(text: &str, said: &str, public: Option<&str>) {
    let is_public = |value: &str| public.is_some_and(|public| public.contains(value));
    for value in text.split('"').skip(1).step_by(2).filter(|value| value.len() >= 16 && !is_public(value)) {
        assert!(!said.contains(value), "a value is in: {said}");
    }
}

pub(crate) const HANDSHAKE: Target = Target {
    name: "handshake",
    run: |data| {
        let Some((greeting, rest)) = data.split_first_chunk::<{ curve::GREETING }>() else { return };
        if let Err(error) = curve::check_greeting(greeting) {
            plain(&error.to_string());
        }
        let Some((head, body)) = rest.split_first_chunk::<2>() else { return };
        if let Ok(length) = curve::command_length(*head) {
            assert!(length <= curve::LONGEST_COMMAND);
        }
        let handshake = curve::Handshake::with(made().public_key(), &mut SeededRng::new(2)).expect("a key");
        let welcomed = handshake.welcomed(body);
        plain(&welcomed.expect_err("nobody has the secret key").to_string());
    },
    seeds: || {
        let all = |head: [u8; 2], body: &[u8]| [&curve::greeting()[..], &head, body].concat();
        vec![
            all([4, 168], &[&b"\x07WELCOME"[..], &[0; 160]].concat()),
            all([4, 9], b"\x05ERROR\x02no"),
            all([0, 0], b""),
        ]
    },
    words: &["\\x07WELCOME", "\\x05ERROR", "CURVE", "NULL"],
};

fn plain(said: &str) {
    assert!(said.len() < 200 && said.chars().all(|c| c.is_ascii() && !c.is_control()), "{said:?}");
}

/// The hosts that `broker.toml` names, in their order.
fn hosts_of(text: &str) -> Vec<String> {
    let table: toml::Table = text.parse().unwrap_or_else(|error| panic!("broker.toml: {error}\n{text}"));
    let entries = table["bootstrap"]["hosts"].as_array().expect("a list");
    let lists = entries.iter().map(|entry| entry["host"].as_str().expect("a text"));
    let lists = lists.map(|text| text.parse::<Hostlist>().unwrap_or_else(|error| panic!("{text}: {error}")));
    lists.flat_map(|list| list.hosts().to_vec()).collect()
}

fn broker_config(side: Side) -> BrokerConfig {
    BrokerConfig {
        side,
        paths: BrokerPaths { resource: "/etc/flux/R".to_owned(), curve_cert: "/etc/curve.cert".to_owned() },
        network: BrokerNetwork {
            interface: "eth0".to_owned(),
            port: 8050,
            headless: "flux-service".to_owned(),
            namespace: "flux".to_owned(),
            cluster_domain: "cluster.local".to_owned(),
        },
        topology: Topology::Gateway,
        queue_policy: "fcfs".to_owned(),
        silence: None,
    }
}
