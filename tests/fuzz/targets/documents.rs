//! Documents of users, API servers and lead brokers.

use std::collections::BTreeSet;
use std::io::Write as _;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde_json::{Value, json};
use tributary_api::SPECS;
use tributary_api::minicluster::{self, MiniCluster};
use tributary_api::schema::fits;
use tributary_api::v1alpha1::V1ALPHA2;
use tributary_bursting::root::demand::ask::{self, Slot};
use tributary_bursting::root::demand::look::Look;
use tributary_config::Config;
use tributary_flux::{RankMap, Slot as Declared, Topology};
use tributary_render::{Boot, Context, differences, render, running};
use tributary_webhook::{MOST_BESIDE, MOST_TIMES, review};

use super::grow::{Bytes, Fields, grow};
use super::{Target, texts};

const SPEC: Fields = &[
    ("/size", &["1", "0", "-1", "16384", "2147483647"]),
    ("/maxSize", &["1", "9", "2147483647"]),
    ("/minSize", &["1", "9"]),
    ("/tasks", &["1", "0", "-5"]),
    ("/interactive", &["true"]),
    ("/cleanup", &["true", "false"]),
    ("/deadlineSeconds", &["60", "-1", "9223372036854775807"]),
    ("/backoffLimit", &["0", "-1"]),
    ("/jobLabels", &["{\"a\":\"b\"}", "{\"kueue.x-k8s.io/queue-name\":\"q\"}", "{\"a b\":\"\"}"]),
    ("/containers/0/command", &["\"hostname\"", "\"a 'b\"", "\"EOF\\nx\""]),
    ("/containers/0/image", &["\"ubuntu\"", "\"a:b:c\""]),
    ("/containers/0/runFlux", &["true"]),
    ("/containers/0/launcher", &["true"]),
    ("/containers/0/batch", &["true"]),
    ("/containers/0/ports", &["[80]", "[80,80]", "[-1]"]),
    ("/containers/0/cores", &["4", "-1"]),
    ("/containers/0/name", &["\"app\"", "\"-\""]),
    (
        "/containers/0/volumes/data",
        &["{\"path\":\"/d\"}", "{\"path\":\"/d\",\"hostPath\":\"/h\"}", "{\"claimName\":\"c\",\"path\":\"/p\"}"],
    ),
    (
        "/containers/0/resources/limits",
        &["{\"cpu\":\"2\"}", "{\"nvidia.com/gpu\":\"2\"}", "{\"cpu\":\"x\"}", "{\"memory\":\"1e999\"}"],
    ),
    ("/containers/0/resources/requests", &["{\"cpu\":\"500m\"}", "{\"cpu\":\"9999999999999999999\"}"]),
    ("/containers/0/commands", &["{\"pre\":\"x\"}", "{\"brokerPre\":\"x\",\"post\":\"'\"}"]),
    ("/containers/1/image", &["\"side\""]),
    ("/containers/1/runFlux", &["true"]),
    ("/services/0/image", &["\"redis\""]),
    ("/services/0/ports", &["[6379]"]),
    (
        "/volumes/data",
        &["{\"path\":\"/data\"}", "{\"storageClass\":\"hostpath\",\"capacity\":\"5Gi\"}", "{\"capacity\":\"x\"}"],
    ),
    ("/archive/path", &["\"/state/archive\"", "\"a b\""]),
    ("/fluxRestful", &["{\"port\":5000}", "{\"username\":\"a\",\"token\":\"b\"}", "{\"port\":-1}"]),
    ("/users", &["[{\"name\":\"a\",\"password\":\"b\"}]"]),
    ("/network/headlessName", &["\"flux\"", "\"A\""]),
    ("/flux/brokerConfig", &["\"[bootstrap]\\n\"", "\"\\n\\n[\"", "\"é = \\\"\"", "\"a = 1\\r\\n\\u2028= 2\""]),
    ("/flux/curveCert", &["\"curve\\n\"", "\"metadata\\n    a = \\\"b\\\"\\n\""]),
    ("/flux/curveCertSecret", &["\"mine\""]),
    ("/flux/topology", &["\"kary:2\"", "\"binomial\"", "\"x\""]),
    ("/flux/scheduler", &["{\"queuePolicy\":\"easy\"}", "{\"simple\":true}"]),
    ("/flux/container/mountPath", &["\"/opt\"", "\"opt\""]),
    ("/flux/container/disable", &["true"]),
    ("/flux/connectTimeout", &["\"\"", "\"5s\"", "\".\""]),
    ("/flux/submitCommand", &["\"id\""]),
    ("/flux/optionFlags", &["\"-v\""]),
    ("/flux/logLevel", &["9"]),
    ("/flux/version", &["\"0.88\"", "\"0.88.0-1-gabc\"", "\"x\""]),
    ("/flux/bursting/clusters/0/name", &["\"pond\"", "\"lake\"", "\"\""]),
    ("/flux/bursting/clusters/0/size", &["2", "0", "-1", "16384"]),
    ("/flux/bursting/clusters/0/maxSize", &["4", "1"]),
    ("/flux/bursting/clusters/0/resources", &["{\"limits\":{\"cpu\":\"4\"}}", "{\"requests\":{}}"]),
    ("/flux/bursting/clusters/1/name", &["\"sea\"", "\"pond\""]),
    ("/flux/bursting/clusters/1/size", &["2"]),
    ("/flux/bursting/hostlist", &["\"a-[0-3]\"", "\"a-[0-9999999]\"", "\"a,,b\""]),
    (
        "/flux/bursting/leadBroker",
        &["{\"address\":\"h\",\"name\":\"x\",\"size\":2}", "{\"size\":-1,\"address\":\"h\"}"],
    ),
    ("/flux/bursting/wait", &["\"All\"", "\"None\"", "2"]),
    ("/pod/resources", &["{\"cpu\":2}"]),
    ("/pod/nodeSelector", &["{\"a\":\"b\"}"]),
    ("/pod/restartPolicy", &["\"OnFailure\"", "\"Always\""]),
    ("/pod/tolerations", &["[{\"operator\":\"Exists\"}]", "[{\"key\":1}]"]),
    ("/shareProcessNamespace", &["true"]),
];

fn mini_cluster(spec: Value) -> Option<MiniCluster> {
    let metadata = json!({"name": "lake", "namespace": "waters", "uid": "lake-uid"});
    serde_json::from_value(json!({"metadata": metadata, "spec": spec})).ok()
}

fn good_spec() -> Value {
    json!({"size": 2, "containers": [{"image": "ubuntu", "command": "hostname"}]})
}

pub(crate) const MINI_CLUSTER: Target = Target {
    name: "mini_cluster",
    run: |data| {
        let mut bytes = Bytes(data);
        if data.first() == Some(&b'H') {
            return boot_of_a_stranger(&data[1..]);
        }
        let mut spec = good_spec();
        if data.first() == Some(&b'{') {
            spec = serde_json::from_slice(data).unwrap_or_default();
        } else {
            grow(&mut spec, SPEC, &mut bytes, 24);
        }
        let Some(mini_cluster) = mini_cluster(spec) else { return };
        let rendered = match render(&mini_cluster, &Context::default()) {
            Ok(rendered) => rendered,
            Err(problems) => return assert!(!problems.to_string().is_empty()),
        };
        let encoded = rendered.boot.encode();
        assert_eq!(Boot::decode(&encoded).expect("what is packed is unpacked"), rendered.boot);
        assert!(encoded.len() <= 200 * 1024);
        assert_eq!(differences(&rendered.boot, None, &rendered.boot), [""; 0]);
        assert_eq!(RankMap::parse_canonical(&rendered.boot.rank_map).as_ref(), Ok(&rendered.rank_map));
        if let Some(text) = rendered.boot.files.get("broker.toml").filter(|_| !wrote_config(&mini_cluster)) {
            let table: toml::Table = text.parse().unwrap_or_else(|error| panic!("broker.toml: {error}\n{text}"));
            assert_eq!(table.len(), table.iter().filter(|(_, value)| value.is_table()).count(), "tables alone");
        }
        let again = render(&mini_cluster, &Context::default()).expect("as before");
        assert_eq!(again, rendered, "the same spec gives the same objects");
        let _ = running(&rendered.boot, &mini_cluster, Some(&again.boot), &Context::default());
    },
    seeds: || {
        let mut all: Vec<Vec<u8>> = (0..SPEC.len())
            .collect::<Vec<_>>()
            .chunks(3)
            .map(|few| few.iter().flat_map(|field| [*field as u8, 0]).collect())
            .collect();
        all.push(good_spec().to_string().into_bytes());
        let rendered = mini_cluster(good_spec()).map(|lake| render(&lake, &Context::default()));
        let boot = rendered.and_then(Result::ok).map(|rendered| rendered.boot).expect("it is good");
        all.push(format!("H{}", boot.encode()).into_bytes());
        all.push(format!("H{{{}", json!(boot)).into_bytes());
        let specs =
            ["{}", "1", "\"x\"", "{\"flux\":\"x\"}", "{\"flux\":{\"bursting\":[]}}", "{\"containers\":[\"x\"]}"];
        all.extend(specs.map(|spec| {
            format!(
                "H{{{{\"revision\":1,\"files\":{{}},\"rankMap\":\"rank-map/1\\n\",\"template\":\"\",\"spec\":{spec}}}"
            )
            .into_bytes()
        }));
        all
    },
    words: &[
        "\"spec\":",
        "\"files\":{",
        "\"rankMap\":\"rank-map/1\\x0aslot ",
        "\"revision\":",
        "\"brokerConfig\":\"",
        "\"curveCert\":\"",
    ],
};

fn wrote_config(mini_cluster: &MiniCluster) -> bool {
    mini_cluster.spec.flux.broker_config.is_some()
}

/// With the fields that a running instance follows, as the API server's defaults and users write them.
fn followed_spec() -> Value {
    let mut spec = good_spec();
    spec["containers"][0]["ports"] = json!([80]);
    for (field, value) in [
        ("suspend", json!(true)),
        ("cleanup", json!(true)),
        ("cleanupVolumes", json!(false)),
        ("updates", json!("Recreate")),
        ("ttlSecondsAfterFinished", json!(5)),
        ("deadlineSeconds", json!(31_500_000)),
        ("jobLabels", json!({"a": "b"})),
        ("maxSize", json!(4)),
        ("backoffLimit", json!(3)),
        ("flux", json!({"bursting": {"network": {"type": "Tunnel"}, "clusters": [{"size": 1}]}})),
    ] {
        spec[field] = value;
    }
    spec
}

/// An annotation that somebody edited: as it is, or (after `{`) as JSON that is then packed.
fn boot_of_a_stranger(data: &[u8]) {
    let text = match data.split_first() {
        Some((b'{', json)) => {
            let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
            gzip.write_all(json).expect("memory takes all");
            STANDARD.encode(gzip.finish().expect("memory takes all"))
        }
        _ => String::from_utf8_lossy(data).into_owned(),
    };
    let Ok(boot) = Boot::decode(&text) else { return };
    assert_eq!(Boot::decode(&boot.encode()).expect("it was read once"), boot);
    let Some(lake) = mini_cluster(followed_spec()) else { return };
    let new = render(&lake, &Context::default()).expect("it is good").boot;
    let _ = (differences(&boot, None, &new), differences(&new, None, &boot));
    let _ = running(&boot, &lake, Some(&new), &Context::default());
}

const REVIEWED: Fields = &[
    ("/request/desiredAPIVersion", &["\"flux-framework.org/v1alpha2\"", "\"flux-framework.org/v1alpha1\"", "\"x\""]),
    ("/request/uid", &["\"u\"", "\"\\\"}\""]),
    ("/kind", &["\"ConversionReview\"", "\"x\""]),
    (
        "/request/objects/0/apiVersion",
        &["\"flux-framework.org/v1alpha1\"", "\"flux-framework.org/v1alpha2\"", "\"v1\""],
    ),
    ("/request/objects/0/kind", &["\"MiniCluster\"", "\"Pod\""]),
    ("/request/objects/0/spec/size", &["1", "-1", "1.5", "\"1\""]),
    (
        "/request/objects/0/spec/containers",
        &[
            "[{\"image\":\"a\",\"existingVolumes\":{\"d\":{\"path\":\"/d\",\"claimName\":\"c\"}}}]",
            "[{\"image\":\"a\",\"fluxOptionFlags\":\"-x\",\"cores\":2}]",
            "[]",
            "[null]",
        ],
    ),
    (
        "/request/objects/0/spec/volumes",
        &["{\"d\":{\"path\":\"/d\",\"class\":\"x\",\"storageClass\":\"y\"}}", "{\"d\":null}"],
    ),
    ("/request/objects/0/spec/podLabels", &["{\"a\":\"b\"}"]),
    (
        "/request/objects/0/spec/flux",
        &[
            "{\"optionFlags\":\"-v\",\"mountPath\":\"/x\"}",
            "{\"bursting\":{\"clusters\":[{\"name\":\"a\",\"size\":1}]}}",
        ],
    ),
    ("/request/objects/0/spec/unknown", &["{\"a\":[1,2]}"]),
    (
        "/request/objects/0/metadata/annotations/tributary.dev~1kept-v1alpha1",
        &["\"{}\"", "\"{\\\"spec\\\":{\\\"size\\\":3}}\"", "\"[[[[\"", "\"{\\\"containers\\\":[{\\\"x\\\":1}]}\""],
    ),
    (
        "/request/objects/0/metadata/annotations/tributary.dev~1kept-v1alpha2",
        &["\"{}\"", "\"{\\\"flux\\\":{}}\"", "\"null\""],
    ),
    ("/request/objects/0/metadata/name", &["\"lake\"", "\"\\u0000\""]),
    (
        "/request/objects/1",
        &["{}", "null", "{\"apiVersion\":\"flux-framework.org/v1alpha1\",\"kind\":\"MiniCluster\",\"spec\":{}}"],
    ),
    ("/request/objects", &["[]", "null"]),
    (
        "/request/objects/0/metadata",
        &["\"x\"", "[{}]", "1", "null", "{\"annotations\":\"x\"}", "{\"annotations\":null}"],
    ),
];

fn good_review() -> Value {
    let object = json!({"apiVersion": "flux-framework.org/v1alpha1", "kind": "MiniCluster",
        "metadata": {"name": "lake", "namespace": "waters", "annotations": {"a": "b"}},
        "spec": {"size": 2, "containers": [{"image": "a", "command": "b", "volumes": {"d": {"path": "/d"}}}]}});
    json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "ConversionReview",
        "request": {"uid": "u", "desiredAPIVersion": "flux-framework.org/v1alpha2", "objects": [object]}})
}

fn is_of_its_types(object: &Value) -> bool {
    let spec = &object["spec"];
    match object["apiVersion"].as_str() {
        Some(V1ALPHA2) => serde_json::from_value::<minicluster::MiniClusterSpec>(spec.clone()).is_ok(),
        _ => fits(spec, &SPECS.v1alpha1),
    }
}

pub(crate) const REVIEW: Target = Target {
    name: "review",
    run: |data| {
        let mut bytes = Bytes(data);
        let body = if data.first() == Some(&b'{') {
            data.to_vec()
        } else {
            let mut document = good_review();
            grow(&mut document, REVIEWED, &mut bytes, 16);
            document.to_string().into_bytes()
        };
        let answer = match review(&body) {
            Ok(answer) => answer,
            Err(error) => return assert!(error.to_string().len() < 10_000),
        };
        assert!(answer.json.len() <= body.len() * MOST_TIMES + MOST_BESIDE, "{}", answer.json.len());
        let said: Value = serde_json::from_slice(&answer.json).expect("an answer is JSON");
        let converted = said["response"]["convertedObjects"].as_array().expect("a list");
        assert_eq!(answer.failure.is_some(), said["response"]["result"]["status"] == "Failure");
        // The first of two equal keys counts for some, the last one for others.
        let Ok(asked) = serde_json::from_slice::<Value>(&body) else { return };
        let wanted = asked["request"]["desiredAPIVersion"].as_str().unwrap_or_default();
        let objects = asked["request"]["objects"].as_array().into_iter().flatten();
        let whole = answer.failure.is_none() && data.first() != Some(&b'{');
        for (object, source) in converted.iter().zip(objects).filter(|_| whole) {
            assert_eq!(object["apiVersion"], wanted);
            // API servers refuse what is not of the types of its definition, before they ask anybody to convert it.
            if serde_json::from_value::<ObjectMeta>(source["metadata"].clone()).is_err() || !is_of_its_types(source) {
                continue;
            }
            let other = if wanted.ends_with("v1alpha2") {
                "flux-framework.org/v1alpha1"
            } else {
                "flux-framework.org/v1alpha2"
            };
            let way = |object: &Value, to: &str| tributary_api::v1alpha1::convert(object, to);
            let back = way(object, other).unwrap_or_else(|error| panic!("it does not come back: {error}: {object}"));
            let again = way(&back, wanted).unwrap_or_else(|error| panic!("it does not go again: {error}: {back}"));
            assert_eq!(again["spec"], object["spec"], "forth and back and forth: {back}");
        }
    },
    seeds: || {
        let mut all: Vec<Vec<u8>> = (0..REVIEWED.len()).map(|field| vec![field as u8, 0]).collect();
        all.push(good_review().to_string().into_bytes());
        all
    },
    words: &[
        "\"apiVersion\":",
        "\"objects\":[",
        "\"metadata\":{\"annotations\":{\"tributary.dev/kept-v1alpha1\":\"",
        "flux-framework.org/v1alpha2",
    ],
};

pub(crate) const CONFIGURATION: Target = Target {
    name: "configuration",
    run: |data| {
        let Ok(text) = std::str::from_utf8(data) else { return };
        match (Config::from_toml(text), Config::as_written(text)) {
            (Ok(judged), Ok(written)) => {
                assert_eq!(judged, written);
                let _ = judged.federation.join_endpoints();
                assert!(!judged.cluster.name.is_empty());
            }
            (Ok(_), Err(error)) => panic!("it was read a moment ago: {error}"),
            (Err(error), _) => assert!(error.to_string().starts_with("failed to "), "{error}"),
        }
    },
    seeds: || {
        texts(&[
            "[cluster]\nname = \"east\"\nlabels = { region = \"eu\" }\n[kubernetes]\nnamespace = \"tributary-system\"\n",
            "[cluster]\nname = \"east\"\n[federation]\nlisten = \"0.0.0.0:7946\"\nadvertise = [\"203.0.113.7:30946\"]\nidentity = \
             { secret = \"x\" }\n[admin]\nlisten = \"127.0.0.1:8080\"\n[health]\nlisten = \"0.0.0.0:8081\"\n",
            "[cluster]\nname = \"a\"\nlabels = \"example.org/region=eu, tier=gpu\"\n[liveness]\nsuspect_seconds = 5\n[bursting]\n\
             grace_seconds = 30\n[volumes]\nhost_paths = [\"/data\"]\n[traces]\nendpoint = \"http://x:4318\"\n[webhook]\n\
             enabled = true\n[log]\nformat = \"json\"\n",
        ])
    },
    words: &[
        "[cluster]\\x0a",
        "[federation]\\x0a",
        "[bursting]\\x0a",
        "[liveness]\\x0a",
        "[volumes]\\x0a",
        "[traces]\\x0a",
        "[webhook]\\x0a",
        "name = \\\"",
        "listen = \\\"",
        "advertise = [\\\"",
        "trust_domain = \\\"",
        "= 4294967295",
        "= -1",
        "[::1]:1",
        "host_paths",
        "grace_seconds",
        "suspect_seconds",
        "heartbeat",
        "pod_ips = ",
        "tunnel",
        "join",
        "identity",
    ],
};

pub(crate) const LOOK: Target = Target {
    name: "look",
    run: |data| {
        let Ok(look) = Look::parse(&String::from_utf8_lossy(data)) else { return };
        assert!(look.pending.iter().map(|job| job.count).sum::<u32>() <= 2_000);
        let parent = || Topology::Gateway.parent_of_bursts("vm");
        let burst = |name: &str, size, cores| {
            Declared::burst(name, size, parent()).with_resources(cores, 1).with_property(format!("burst-{name}"))
        };
        let root = Declared::root("vm", 2).with_resources(2, 0);
        let map = RankMap::new(vec![root, burst("pond", 3, 4), burst("sea", 200, 8), burst("far", 2, 1)]);
        let slot = |name: &str, size, awake| Slot { name: name.to_owned(), size, awake, stuck: !awake && size > 2 };
        let slots = [slot("pond", 3, true), slot("sea", 150, false)];
        let asked = ask::ask(&map.expect("four slots"), &look, &slots, &BTreeSet::from(["far".to_owned()]));
        assert_eq!(asked.keys().map(String::as_str).collect::<Vec<_>>(), ["pond", "sea"]);
        assert!(asked.values().all(|of_slot| of_slot.pending <= 2_000));
    },
    seeds: || {
        let job = |resources: &str, constraints: &str| {
            format!(
                r#"{{"up":"0-1","busy":"0","used":[["0",2]],"pending":[{{"count":3,"burstable":true,"resources":{resources},"constraints":{constraints}}}]}}"#
            )
        };
        let slot =
            r#"[{"type":"slot","count":2,"label":"task","with":[{"type":"core","count":1},{"type":"gpu","count":1}]}]"#;
        let node = r#"[{"type":"node","count":{"min":2},"with":[{"type":"slot","count":"1+","with":[{"type":"core","count":4}]}]}]"#;
        let over =
            r#"[{"type":"slot","count":1,"with":[{"type":"node","count":1,"with":[{"type":"core","count":4}]}]}]"#;
        [
            job(slot, "null"),
            job(node, r#"{"and":[{"properties":["burst-pond"]},{"not":[{"hostlist":["sea-[0-3]"]}]}]}"#),
            job(over, r#"{"or":[{"ranks":["2-4"]},{"properties":["^burst-sea"]}]}"#),
        ]
        .map(String::into_bytes)
        .into()
    },
    words: &[
        "\"pending\":[",
        "\"resources\":",
        "\"constraints\":",
        "\"type\":\"node\"",
        "\"type\":\"slot\"",
        "\"with\":[",
        "\"count\":",
        "18446744073709551615",
        "\"properties\":[",
        "\"hostlist\":[",
        "\"ranks\":[",
        "\"and\":[",
        "\"or\":[",
        "\"not\":[",
        "\"used\":[",
    ],
};
