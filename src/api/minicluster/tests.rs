use serde_json::json;

use super::certificate::CertificateText;
use super::*;

fn spec(value: serde_json::Value) -> MiniClusterSpec {
    serde_json::from_value(value).unwrap()
}

#[test]
fn defaults_hold_where_nobody_wrote_the_section() {
    let spec = spec(json!({ "containers": [{}] }));
    assert_eq!((spec.size(), spec.max_size(), spec.tasks()), (1, 1, 1));
    assert_eq!((spec.deadline_seconds(), spec.backoff_limit()), (31_500_000, 100));
    assert_eq!(spec.headless_name("flux-sample"), "flux-sample");
    assert_eq!(spec.flux.connect_timeout(), Some("5s"));
    assert_eq!(spec.flux.log_level(), 6);
    assert_eq!((spec.flux.view_name(), spec.flux.mount_path()), ("flux-view", "/mnt/flux"));
    assert_eq!(spec.flux.view_image(), "ghcr.io/converged-computing/flux-view-ubuntu:tag-noble");
    assert_eq!(spec.flux.scheduler.queue_policy(), "fcfs");
    assert_eq!(spec.flux.lead_broker(), None);
    assert_eq!(spec.containers[0].image(), "ghcr.io/rse-ops/accounting:app-latest");
    assert_eq!((spec.containers[0].pull_policy(), spec.containers[0].logs()), ("IfNotPresent", "/tmp/fluxout"));
}

#[test]
fn zero_is_absent_except_where_it_says_something() {
    let spec = spec(json!({
        "size": 0, "maxSize": 0, "minSize": 0, "tasks": 0, "deadlineSeconds": 0, "backoffLimit": 0,
        "network": { "headlessName": "" },
        "flux": { "connectTimeout": "", "logLevel": 0, "container": { "name": "", "mountPath": "" } },
        "containers": [{ "image": "", "command": "", "imagePullPolicy": "" }],
    }));
    assert_eq!(
        (spec.size, spec.tasks, spec.deadline_seconds, spec.backoff_limit),
        (Some(0), Some(0), Some(0), Some(0))
    );
    assert_eq!((spec.max_size, spec.min_size), (None, None));
    assert_eq!(spec.headless_name("flux-sample"), "flux-sample");
    assert_eq!(spec.flux.connect_timeout(), None, "an empty text leaves the choice to Flux");
    assert_eq!(spec.flux.log_level(), 6);
    assert_eq!((spec.flux.view_name(), spec.flux.mount_path()), ("flux-view", "/mnt/flux"));
    assert_eq!(spec.containers[0].command, None);
    assert_eq!(spec.containers[0].pull_policy(), "IfNotPresent");
}

#[test]
fn the_runner_is_the_sole_container_or_the_one_that_says_so() {
    let index =
        |containers: serde_json::Value| spec(json!({ "containers": containers })).runner().map(|runner| runner.index);
    assert_eq!(index(json!([{ "runFlux": false }])), Ok(0));
    assert_eq!(index(json!([{ "name": "a" }, { "runFlux": true }])), Ok(1));
    assert_eq!(index(json!([])), Err(RunnerError::NoContainers));
    assert_eq!(index(json!([{}, {}])), Err(RunnerError::NoRunner { containers: 2 }));
    assert_eq!(
        index(json!([{ "runFlux": true }, {}, { "runFlux": true }])),
        Err(RunnerError::SeveralRunners { indices: vec![0, 2] })
    );
}

#[test]
fn documented_spellings_are_merged_with_the_real_ones() {
    let spec = spec(json!({
        "launcher": true,
        "flux": { "leadBroker": { "address": "203.0.113.7", "name": "flux-sample", "hostlist": "a-[0-3]" } },
        "containers": [{
            "commands": { "preWorker": "w", "preBroker": "b", "brokerPre": "real" },
            "volumes": { "data": { "path": "/new" } },
            "existingVolumes": { "data": { "path": "/old" }, "certs": { "secretName": "certs" } },
            "securityContext": { "addCapabilities": ["SYS_PTRACE", "KILL"], "capabilities": { "add": ["KILL"] } },
        }],
        "volumes": { "data": { "path": "/tmp/workflow", "storageClass": "hostpath" } },
    }));
    let container = &spec.containers[0];
    assert_eq!((container.commands.worker_pre(), container.commands.broker_pre()), (Some("w"), Some("real")));
    let volumes = container.volumes();
    assert_eq!(volumes.keys().copied().collect::<Vec<_>>(), ["certs", "data"]);
    assert_eq!(volumes["data"].path.as_deref(), Some("/new"));
    let capabilities = container.security_context.to_kubernetes().unwrap().capabilities.unwrap();
    assert_eq!(capabilities.add.unwrap(), ["KILL", "SYS_PTRACE"]);
    assert!(spec.is_launcher(container));
    assert_eq!(spec.declared_host_path("data"), Some("/tmp/workflow"));
    let lead = spec.flux.lead_broker().unwrap();
    assert_eq!((lead.address.as_deref(), lead.port()), (Some("203.0.113.7"), 8050));
    assert_eq!(spec.flux.hostlist(), Some("a-[0-3]"));
}

#[test]
fn resources_take_integers_and_text() {
    let spec = spec(json!({ "containers": [{ "resources": {
        "limits": { "cpu": 4, "memory": 4_294_967_296_i64, "nvidia.com/gpu": "1" }, "requests": { "cpu": "500m" },
    } }] }));
    let resources = &spec.containers[0].resources;
    let rendered = serde_json::to_value(resources.to_kubernetes()).unwrap();
    assert_eq!(
        rendered,
        json!({ "limits": { "cpu": "4", "memory": "4294967296", "nvidia.com/gpu": "1" }, "requests": { "cpu": "500m" } })
    );
    assert_eq!(resources.effective_request("cpu"), Some(&Amount::Text("500m".to_owned())));
    assert_eq!(resources.effective_request("nvidia.com/gpu"), Some(&Amount::Text("1".to_owned())));
    assert_eq!(ResourceRequirements::default().to_kubernetes(), None);
}

#[test]
fn bursts_have_names_sizes_and_wishes() {
    let spec = spec(json!({ "size": 4, "containers": [{}], "flux": { "bursting": { "clusters": [
        { "size": 3, "peer": "west", "peers": ["north", "west"], "maxSize": 6 },
        { "name": "gpu", "selector": { "matchLabels": { "region": "eu" } } },
    ] } } }));
    let bursts: Vec<_> = spec.bursts("flux-sample").collect();
    let [(first_name, first), (second_name, second)] = bursts.as_slice() else { panic!("two bursts") };
    assert_eq!((first_name.as_str(), second_name.as_str()), ("flux-sample-burst-0", "gpu"));
    assert_eq!((first.size(spec.size()), first.max_size(spec.size())), (3, 6));
    assert_eq!((second.size(spec.size()), second.max_size(spec.size())), (4, 4));
    assert_eq!(first.peers(), ["west", "north"]);
    assert_eq!(serde_json::to_value(&second.selector).unwrap(), json!({ "matchLabels": { "region": "eu" } }));
}

#[test]
fn waiting_is_for_nobody_everybody_or_a_number() {
    let wait = |value: serde_json::Value| serde_json::from_value::<super::wait::BurstWait>(value);
    assert_eq!(wait(json!({})).unwrap().target, WaitFor::None);
    for (written, target) in [
        (json!("None"), WaitFor::None),
        (json!("All"), WaitFor::All),
        (json!(3), WaitFor::Brokers(3)),
        (json!("3"), WaitFor::Brokers(3)),
    ] {
        assert_eq!(wait(json!({ "for": written })).unwrap().target, target);
    }
    for (unknown, word) in [(json!("Some"), "Some"), (json!(-1), "-1"), (json!(1.5), "1.5"), (json!(true), "true")] {
        assert_eq!(wait(json!({ "for": unknown })).unwrap().target, WaitFor::Unknown(word.into()));
    }
    let timeout = |text: &str| wait(json!({ "timeout": text })).unwrap().timeout();
    assert_eq!(timeout(""), Ok(None));
    for (text, seconds) in [("90s", 90.0), ("5m", 300.0), ("1h30m", 5400.0), ("0.5s", 0.5), ("1.5h", 5400.0)] {
        assert_eq!(timeout(text), Ok(Some(std::time::Duration::from_secs_f64(seconds))), "{text}");
    }
    assert!(timeout("soon").is_err());
    assert!(timeout("1d").is_err(), "the schema does not take days either");
    assert!(timeout("-5m").is_err());
}

#[test]
fn status_always_has_upstreams_four_fields() {
    let written = serde_json::to_value(MiniClusterStatus::default()).unwrap();
    assert_eq!(written, json!({ "size": 0, "selector": "", "jobid": "", "maximumSize": 0 }));
    let newer: MiniClusterStatus = serde_json::from_value(json!({ "phase": "Hibernating" })).unwrap();
    assert_eq!(
        newer.phase,
        Some(Phase::Unknown("Hibernating".into())),
        "a word of a newer agent does not stop the watch"
    );
}

#[test]
fn a_certificate_in_the_spec_is_not_printed() {
    let spec = spec(json!({ "containers": [], "flux": { "curveCert": "secret-key = \"xyzzy\"" } }));
    assert!(!format!("{spec:?}").contains("xyzzy"));
    assert_eq!(spec.flux.curve_cert.as_ref().map(CertificateText::expose), Some("secret-key = \"xyzzy\""));
    assert_eq!(serde_json::to_value(&spec).unwrap()["flux"]["curveCert"], "secret-key = \"xyzzy\"");
}

#[test]
fn whoever_is_named_as_its_manager_has_it_and_without_a_name_the_agent_does() {
    let left =
        |manager: Option<&str>| spec(json!({"containers": [{}], "managedBy": manager})).left_to().map(str::to_owned);
    assert_eq!([left(None), left(Some("")), left(Some(MANAGER))], [None, None, None]);
    for other in ["kueue.x-k8s.io/multikueue", "tributary.dev/minicluster-controller2", "tributary.dev"] {
        assert_eq!(left(Some(other)).as_deref(), Some(other));
    }
}
