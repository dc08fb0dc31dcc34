use proptest::prelude::*;
use proptest::sample::select;
use serde_json::{Map, Value, json};

use super::convert::ConvertError;
use super::{V1ALPHA1, V1ALPHA2, convert};
use crate::SPECS;
use crate::minicluster::MiniCluster;
use crate::schema::fits;

fn object(version: &str, spec: Value) -> Value {
    json!({"apiVersion": version, "kind": "MiniCluster",
        "metadata": {"name": "lake", "namespace": "waters", "annotations": {"team": "hydrology"}},
        "spec": spec, "status": {"size": 2, "phase": "Running"}})
}

fn there(spec: Value) -> Value {
    convert(&object(V1ALPHA1, spec), V1ALPHA2).unwrap()
}

fn kept(object: &Value) -> Option<&Value> {
    object["metadata"]["annotations"].get("tributary.dev/kept-v1alpha1")
}

/// As often as a strategy allows.
const ALWAYS: f64 = 0.999_999;

/// Values that a structural schema takes, zero values among them.
fn values(schema: &Value, depth: u32) -> BoxedStrategy<Value> {
    if schema["x-kubernetes-int-or-string"] == true {
        // Text with a pattern of its own is refused unless it has that.
        let texts = if schema.get("pattern").is_some() { vec![] } else { vec![json!("500m")] };
        return select([vec![json!(4)], texts].concat()).boxed();
    }
    if let Some(words) = schema["enum"].as_array() {
        return select(words.clone()).boxed();
    }
    match schema["type"].as_str() {
        Some("boolean") => any::<bool>().prop_map(Value::from).boxed(),
        Some("integer" | "number") => (0..9i64).prop_map(Value::from).boxed(),
        Some("string") => select(vec!["", "flux", "a", "b", "/data", "hostpath"]).prop_map(Value::from).boxed(),
        Some("array") => {
            let most = if depth < 2 { 3 } else { 2 };
            prop::collection::vec(values(&schema["items"], depth + 1), 0..most).prop_map(Value::from).boxed()
        }
        Some("object") if schema["additionalProperties"].is_object() => {
            let below = values(&schema["additionalProperties"], depth + 1);
            prop::collection::btree_map(select(vec!["a", "b", "c"]), below, 0..3)
                .prop_map(|map| map.into_iter().map(|(key, value)| (key.to_owned(), value)).collect())
                .boxed()
        }
        Some("object") => {
            let odds = if depth == 0 { 0.4 } else { 0.25 };
            let required = schema["required"].as_array().cloned().unwrap_or_default();
            let fields = schema["properties"].as_object().into_iter().flatten().map(|(key, below)| {
                let key = key.clone();
                let odds = if required.contains(&json!(key)) { ALWAYS } else { odds };
                prop::option::weighted(odds, values(below, depth + 1))
                    .prop_map(move |value| Some((key.clone(), value?)))
            });
            fields
                .collect::<Vec<_>>()
                .prop_map(|fields| Value::Object(fields.into_iter().flatten().collect::<Map<_, _>>()))
                .boxed()
        }
        _ => Just(json!("text")).boxed(),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(192))]

    #[test]
    fn v1alpha1_comes_back_from_v1alpha2_as_it_was(spec in values(&SPECS.v1alpha1, 0)) {
        let original = object(V1ALPHA1, spec);
        let converted = convert(&original, V1ALPHA2).unwrap();
        prop_assert_eq!(convert(&converted, V1ALPHA1).unwrap(), original);
    }

    #[test]
    fn v1alpha2_comes_back_from_v1alpha1_as_it_was(spec in values(&SPECS.v1alpha2, 0)) {
        let original = object(V1ALPHA2, spec);
        let converted = convert(&original, V1ALPHA1).unwrap();
        prop_assert_eq!(convert(&converted, V1ALPHA2).unwrap(), original);
    }

    /// What the API server does to an object after conversion: nothing is left to do.
    #[test]
    fn results_are_as_the_api_server_shows_them(spec in values(&SPECS.v1alpha1, 0)) {
        let mut converted = there(spec);
        let before = converted["spec"].clone();
        super::shape::settle(&mut converted["spec"], &SPECS.v1alpha2);
        prop_assert_eq!(&converted["spec"], &before);
        prop_assert!(serde_json::from_value::<MiniCluster>(converted).is_ok());
    }

    /// Whatever is edited in v1alpha2 is edited, also where something was kept.
    #[test]
    fn edits_of_v1alpha2_survive(spec in values(&SPECS.v1alpha1, 0), edited in values(&SPECS.v1alpha2, 0)) {
        let mut stored = there(spec);
        stored["spec"] = edited;
        let shown = convert(&stored, V1ALPHA1).unwrap();
        prop_assert_eq!(&convert(&shown, V1ALPHA2).unwrap()["spec"], &stored["spec"]);
    }
}

#[test]
fn fields_of_the_same_name_are_of_the_same_type() {
    fn walk(older: &Value, newer: &Value, path: &str, walked: &mut usize) {
        *walked += 1;
        for key in ["type", "x-kubernetes-int-or-string"] {
            assert_eq!(older[key], newer[key], "{path}");
        }
        for key in ["items", "additionalProperties"] {
            if older[key].is_object() {
                walk(&older[key], &newer[key], path, walked);
            }
        }
        for (name, older) in older["properties"].as_object().into_iter().flatten() {
            if let Some(newer) = newer["properties"].get(name) {
                walk(older, newer, &format!("{path}.{name}"), walked);
            }
        }
    }
    let mut walked = 0;
    walk(&SPECS.v1alpha1, &SPECS.v1alpha2, "spec", &mut walked);
    assert!(walked > 100, "{walked}");
}

#[test]
fn a_plain_minicluster_needs_no_annotation() {
    let spec = json!({"cleanup": true, "size": 4, "tasks": 2, "deadlineSeconds": 100, "interactive": false,
        "logging": {"quiet": true, "strict": true, "debug": false, "zeromq": false, "timed": false},
        "containers": [{"image": "lammps", "pullAlways": false, "command": "lmp", "workingDir": "/home/flux"}]});
    let converted = there(spec);
    assert_eq!(kept(&converted), None);
    let spec = &converted["spec"];
    assert_eq!(spec["flux"]["container"]["disable"], true);
    assert_eq!(spec["logging"]["strict"], true);
    assert_eq!(spec["containers"][0]["fluxUser"], json!({"name": "flux"}));
    assert_eq!(spec.get("fluxRestful"), None, "there is a command");
    assert_eq!(converted["status"], json!({"size": 2, "phase": "Running"}));
}

#[test]
fn without_a_command_the_restful_server_runs() {
    let served = |spec: Value| there(spec)["spec"].get("fluxRestful").cloned();
    assert_eq!(served(json!({"containers": [{}]})), Some(json!({"branch": "main", "port": 5000})));
    let own = json!({"containers": [{}], "fluxRestful": {"port": 5050, "token": "t"}});
    assert_eq!(served(own), Some(json!({"branch": "main", "port": 5050, "token": "t"})));
    assert_eq!(served(json!({"containers": [{}], "interactive": true})), None);
    assert_eq!(served(json!({"containers": [{"diagnostics": true}]})), None);
    let shown = convert(&there(json!({"containers": [{}], "users": [{"name": "ann"}]})), V1ALPHA1).unwrap();
    assert_eq!(shown["spec"].get("fluxRestful"), None);
}

#[test]
fn volumes_are_made_and_go_when_the_command_has_ended() {
    let spec = there(
        json!({"containers": [{"command": "ls", "volumes": {"data": {"path": "/data", "readonly": true}}}],
        "cleanup": true, "volumes": {"data": {"path": "/tmp/data", "class": "hostpath", "labels": {"type": "local"}, "secretNamespace": "waters",
            // As the API server reads it.
            "capacity": "5Gi", "delete": true}}}),
    );
    let made = json!({"path": "/tmp/data", "storageClass": "hostpath", "capacity": "5Gi", "delete": true,
        "labels": {"type": "local"}, "secretNamespace": "waters"});
    assert_eq!((&spec["spec"]["volumes"]["data"], spec["spec"].get("cleanupVolumes")), (&made, None));
    for spec in [json!({"containers": [{}], "cleanup": false}), json!({"containers": [{}]})] {
        let keeps = there(spec);
        // That of v1alpha2 deletes the MiniCluster, and is not asked for.
        assert_eq!((&keeps["spec"]["cleanupVolumes"], &keeps["spec"]["cleanup"]), (&json!(false), &json!(false)));
        assert_ne!(convert(&keeps, V1ALPHA1).unwrap()["spec"]["cleanup"], true);
    }
    // A directory that v1alpha2 mounts as it is does not become a volume by being looked at.
    let stored = object(V1ALPHA2, json!({"containers": [{}], "volumes": {"data": {"path": "/tmp/data"}}}));
    let shown = convert(&stored, V1ALPHA1).unwrap();
    assert_eq!(convert(&shown, V1ALPHA2).unwrap(), stored);
}

#[test]
fn older_fields_become_those_of_today() {
    let spec = json!({
        "podLabels": {"a": "old", "b": "old"}, "pod": {"labels": {"a": "new"}},
        "volumes": {"data": {"path": "/tmp/data", "class": "hostpath"}},
        "containers": [
            {"name": "side", "exports": {"A": "1"}, "environment": {"A": "0", "B": "2"}, "postStartExec": "date"},
            {"runFlux": true, "fluxOptionFlags": "-ompi=openmpi@5", "fluxLogLevel": 7, "preCommand": "env",
             "commands": {"runFluxAsRoot": true}, "volumes": {"data": {"path": "/data", "readonly": true}}},
        ],
    });
    let converted = there(spec);
    let spec = &converted["spec"];
    assert_eq!(spec["pod"]["labels"], json!({"a": "new", "b": "old"}));
    assert_eq!(spec["volumes"]["data"]["storageClass"], "hostpath");
    assert_eq!(spec["containers"][0]["environment"], json!({"A": "1", "B": "2"}));
    assert_eq!(spec["containers"][0]["lifeCycle"]["postStartExec"], "date");
    let runner = &spec["containers"][1];
    assert_eq!(runner["volumes"]["data"]["readOnly"], true);
    assert_eq!((&runner["preCommand"], runner.get("fluxUser")), (&json!("env"), None));
    assert_eq!((&spec["flux"]["optionFlags"], &spec["flux"]["logLevel"]), (&json!("-ompi=openmpi@5"), &json!(7)));
}

#[test]
fn the_container_that_does_not_say_otherwise_runs_flux() {
    let runs = |containers: Value| {
        let converted = there(json!({ "containers": containers }));
        let containers = converted["spec"]["containers"].as_array().unwrap().clone();
        containers.iter().map(|one| one["runFlux"] == true).collect::<Vec<_>>()
    };
    assert_eq!(runs(json!([{}, {"runFlux": false}])), [true, false]);
    assert_eq!(runs(json!([{}, {"runFlux": true}])), [false, true]);
    assert_eq!(runs(json!([{}, {}])), [false, false], "it cannot be told");
}

#[test]
fn kept_fields_go_one_by_one_with_their_counterparts() {
    let spec = json!({"flux": {"installRoot": "/opt"}, "podLabels": {"a": "1"}, "cleanup": true, "size": 1, "tasks": 1,
        "containers": [{"fluxOptionFlags": "-o a", "exports": {"A": "1"}, "image": "x"}]});
    let mut stored = there(spec);
    assert!(kept(&stored).is_some());
    stored["spec"]["flux"]["optionFlags"] = json!("-o b");
    let shown = convert(&stored, V1ALPHA1).unwrap();
    let spec = &shown["spec"];
    assert_eq!(spec["flux"]["installRoot"], "/opt", "it has no counterpart to edit");
    assert_eq!((&spec["podLabels"], spec.get("pod")), (&json!({"a": "1"}), None));
    let runner = &spec["containers"][0];
    assert_eq!(runner["exports"], json!({"A": "1"}));
    assert_eq!((&spec["flux"]["optionFlags"], runner.get("fluxOptionFlags")), (&json!("-o b"), None));
    assert_eq!(convert(&shown, V1ALPHA2).unwrap()["spec"], stored["spec"]);

    stored["spec"]["pod"]["labels"].as_object_mut().unwrap().remove("a");
    stored["spec"]["containers"][0]["environment"]["A"] = json!("2");
    let shown = convert(&stored, V1ALPHA1).unwrap();
    let spec = &shown["spec"];
    assert_eq!((spec.get("podLabels"), &spec["flux"]["installRoot"]), (None, &json!("/opt")));
    let runner = &spec["containers"][0];
    assert_eq!((runner.get("exports"), &runner["environment"]), (None, &json!({"A": "2"})));
    assert_eq!(convert(&shown, V1ALPHA2).unwrap()["spec"], stored["spec"]);
}

#[test]
fn what_nobody_can_read_stays_where_it_is() {
    let mut stored = object(V1ALPHA2, json!({"containers": []}));
    stored["metadata"]["annotations"]["tributary.dev/kept-v1alpha1"] = json!("{no json");
    let shown = convert(&stored, V1ALPHA1).unwrap();
    assert_eq!(kept(&shown), Some(&json!("{no json")));
}

/// Anybody who may write a MiniCluster may write the annotation.
#[test]
fn what_was_made_up_neither_breaks_the_conversion_nor_is_stored() {
    let depth = 40_000;
    let deep = json!([{"at": vec!["a"; depth], "value": 1}]).to_string();
    let size = json!([{"at": ["size"], "value": "boom", "unless": 2}]).to_string();
    let list =
        json!([{"at": ["containers"], "value": {"a": 1}, "unless": [{"fluxUser": {"name": "flux"}}]}]).to_string();
    for made_up in [deep, size, list] {
        let mut older = object(V1ALPHA1, json!({"size": 2, "containers": [{}]}));
        older["metadata"]["annotations"]["tributary.dev/kept-v1alpha2"] = json!(made_up);
        let stored = convert(&older, V1ALPHA2).unwrap();
        assert_eq!(stored["spec"]["size"], 2);
        assert!(serde_json::from_value::<MiniCluster>(stored).is_ok());
    }

    let plain = object(V1ALPHA2, json!({"size": 2, "containers": [{}]}));
    for made_up in [
        json!([{"at": ["size"], "value": "boom", "unless": 2}]),
        json!([{"at": ["flux", "installRoot"], "value": {"a": 1}}]),
    ] {
        let mut stored = plain.clone();
        stored["metadata"]["annotations"]["tributary.dev/kept-v1alpha1"] = json!(made_up.to_string());
        let shown = |object| convert(object, V1ALPHA1).unwrap()["spec"].clone();
        assert_eq!(shown(&stored), shown(&plain), "{made_up}");
    }
}

#[test]
fn a_spec_fits_that_has_the_types_of_the_schema() {
    for (fitting, others) in [
        (json!({}), json!([null, [], "text", 1])),
        (json!({"added": {"by": null}}), json!([])),
        (json!({"size": i32::MIN}), json!([{"size": null}, {"size": "2"}, {"size": 1.5}, {"size": 1_u32 << 31}])),
        (json!({"deadlineSeconds": i64::MAX}), json!([{"deadlineSeconds": u64::MAX}, {"deadlineSeconds": true}])),
        (json!({"interactive": true}), json!([{"interactive": null}, {"interactive": "true"}, {"interactive": 1}])),
        (json!({"cleanup": false}), json!([{"cleanup": null}, {"cleanup": 0}])),
        (json!({"flux": {"wrap": ""}}), json!([{"flux": null}, {"flux": ["a"]}, {"flux": {"wrap": 1}}])),
        (json!({"podLabels": {"a": "b"}}), json!([{"podLabels": {"a": null}}, {"podLabels": {"a": 1}}])),
        (json!({"users": [{}]}), json!([{"users": {}}, {"users": [null]}, {"users": [{"name": null}]}])),
        (json!({"containers": [{"ports": [80]}]}), json!([{"containers": [{"ports": ["80"]}]}, {"containers": null}])),
        (json!({"services": [{"ports": [80]}]}), json!([{"services": [{"ports": ["80"]}]}, {"services": [1]}])),
        (
            json!({"containers": [{"secrets": {"A": {"name": "s", "key": "k"}}}]}),
            json!([{"containers": [{"secrets": {"A": {"name": "s"}}}]}]),
        ),
        (
            json!({"pod": {"resources": {"cpu": 2, "memory": "1Gi"}}}),
            json!([{"pod": {"resources": {"cpu": 0.5}}}, {"pod": {"resources": {"cpu": null}}}]),
        ),
    ] {
        let whole = |mut spec: Value| {
            if let Value::Object(fields) = &mut spec {
                fields.entry("containers").or_insert(json!([]));
            }
            spec
        };
        assert!(fits(&whole(fitting.clone()), &SPECS.v1alpha1), "{fitting}");
        for other in others.as_array().unwrap() {
            assert!(!fits(&whole(other.clone()), &SPECS.v1alpha1), "{other}");
        }
    }
    assert!(!fits(&json!({"size": 1}), &SPECS.v1alpha1), "containers are required");
}

/// One by one these would take minutes, of whoever shares the webhook.
#[test]
fn thousands_of_fields_are_kept_together() {
    let exports: Map<String, Value> = (0..4_000).map(|number| (format!("V{number:04}"), json!("1"))).collect();
    let spec = json!({"containers": [{"command": "env", "exports": exports}], "podLabels": {"a": "1"},
        "flux": {"installRoot": "/opt"}});
    let original = object(V1ALPHA1, spec);
    let mut stored = convert(&original, V1ALPHA2).unwrap();
    assert_eq!(convert(&stored, V1ALPHA1).unwrap(), original);
    stored["spec"]["containers"][0]["environment"]["V0000"] = json!("2");
    let shown = convert(&stored, V1ALPHA1).unwrap();
    let spec = &shown["spec"];
    assert_eq!(spec["containers"][0].get("exports"), None);
    assert_eq!((&spec["pod"]["labels"]["a"], &spec["flux"]["installRoot"]), (&json!("1"), &json!("/opt")));
    assert_eq!(convert(&shown, V1ALPHA2).unwrap()["spec"], stored["spec"]);
}

/// Bytes of all annotations, as Kubernetes counts them.
fn annotated(object: &Value) -> usize {
    let annotations = object["metadata"]["annotations"].as_object().unwrap();
    annotations.iter().map(|(key, value)| key.len() + value.as_str().unwrap().len()).sum()
}

/// One object beyond the limit would be an error in each list of v1alpha1.
#[test]
fn what_is_too_large_for_an_annotation_can_be_looked_at_in_v1alpha1_and_is_never_lost() {
    const LIMIT: usize = 256 * 1024;
    // v1alpha1 has no place for the architecture; for the command it has.
    let stored = |size: usize, note: usize| {
        let mut stored = object(
            V1ALPHA2,
            json!({"size": 2, "containers": [{"command": "env"}], "flux": {"arch": "x".repeat(size)}}),
        );
        stored["metadata"]["annotations"]["note"] = json!("n".repeat(note));
        stored
    };
    let kept = |shown: &Value| shown["metadata"]["annotations"]["tributary.dev/kept-v1alpha2"].as_str().unwrap().len();
    let small = convert(&stored(1000, 10), V1ALPHA1).unwrap();
    let rest = LIMIT - annotated(&small);
    // To the byte.
    let full = convert(&stored(1000 + rest, 10), V1ALPHA1).unwrap();
    assert_eq!(annotated(&full), LIMIT);
    assert_eq!(convert(&full, V1ALPHA2).unwrap(), stored(1000 + rest, 10), "as always");
    for (size, note) in [(1001 + rest, 10), (1000 + rest, 11), (300_000, 10), (1000, LIMIT - 200), (1000, LIMIT - 40)] {
        let shown = convert(&stored(size, note), V1ALPHA1).unwrap();
        assert!(annotated(&shown) <= LIMIT && kept(&shown) < 100, "{size}, {note}");
        assert_eq!(shown["spec"]["containers"][0]["command"], "env");
        assert_eq!(shown["metadata"]["annotations"]["team"], "hydrology", "the largest go first, as far as they must");
        let mut edited = shown.clone();
        edited["spec"]["size"] = json!(3);
        for back in [shown, edited] {
            assert_eq!(convert(&back, V1ALPHA2), Err(ConvertError::TooLarge));
        }
    }
    // In v1alpha2 the word says nothing.
    let mut other = object(V1ALPHA2, json!({"size": 2, "containers": [{"command": "env"}]}));
    other["metadata"]["annotations"]["tributary.dev/kept-v1alpha2"] =
        json!("too large: edit this MiniCluster as v1alpha2");
    let shown = convert(&other, V1ALPHA1).unwrap();
    assert!(convert(&shown, V1ALPHA2).is_ok());
}

#[test]
fn only_miniclusters_of_known_versions_are_converted() {
    let pod = json!({"apiVersion": "v1", "kind": "Pod"});
    assert_eq!(convert(&pod, V1ALPHA2), Err(ConvertError::Kind { kind: "Pod".into() }));
    let newer = object("flux-framework.org/v1", json!({}));
    assert_eq!(convert(&newer, V1ALPHA2), Err(ConvertError::Version { version: "flux-framework.org/v1".into() }));
    let unknown = convert(&object(V1ALPHA2, json!({})), "flux-framework.org/v2");
    assert_eq!(unknown, Err(ConvertError::Version { version: "flux-framework.org/v2".into() }));
    let same = object(V1ALPHA1, json!({"size": 1}));
    assert_eq!(convert(&same, V1ALPHA1).unwrap(), same);
}
