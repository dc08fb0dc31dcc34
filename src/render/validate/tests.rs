//! Each rule, by the sentence its user reads.

mod kubernetes;

use serde_json::json;
use tributary_api::minicluster::FluxRestful;

use crate::tests::lake;
use crate::{Context, HostedSide, rank_map_of, render};

/// The refusal of `lake` with this spec.
fn refusal(spec: &str) -> String {
    render(&lake(spec), &Context::default()).unwrap_err().to_string()
}

/// Specs in one line of YAML, each with what its user reads.
fn check(table: &[(&str, &str)]) {
    for (spec, expected) in table {
        assert_eq!(refusal(&format!("  {spec}\n")), *expected, "{spec}");
    }
}

/// Inserted into a flow mapping after `{`.
fn with(spec: &str) -> String {
    format!("{{containers: [{{}}], {spec}}}")
}

fn check_with(table: &[(&str, &str)]) {
    for (spec, expected) in table {
        assert_eq!(refusal(&format!("  {}\n", with(spec))), *expected, "{spec}");
    }
}

#[test]
fn sizes() {
    check_with(&[
        ("size: 0", "spec.size: size is 0: a MiniCluster has at least one pod; use suspend to run none"),
        ("size: 4, maxSize: 3", "spec.maxSize: maxSize 3 is less than size 4: raise maxSize, or lower size"),
        ("size: 2, maxSize: 3, minSize: 4", "spec.minSize: minSize 4 is more than maxSize 3: Flux would never start"),
        ("size: 2, minSize: 4", "spec.minSize: minSize 4 is more than size 2: Flux would never start"),
        ("size: 2, minSize: -1", "spec.minSize: minSize is -1: at least one broker must be there to start"),
    ]);
}

/// A newer version may have written them, before the agent was rolled back.
#[test]
fn words_that_nobody_knows() {
    check_with(&[
        ("updates: Rolling", "spec.updates: \"Rolling\" is none of OnDelete, Recreate"),
        (
            "flux: {bursting: {network: {type: Carrier}}}",
            "spec.flux.bursting.network.type: \"Carrier\" is none of NodePort, LoadBalancer, Tunnel",
        ),
        (
            "flux: {bursting: {clusters: [{size: 1, mode: Nightly, onDemand: {maxIdle: 5m}}]}}",
            "spec.flux.bursting.clusters[0].mode: \"Nightly\" is none of Always, OnDemand",
        ),
        (
            "flux: {bursting: {wait: {for: Half}}}",
            "spec.flux.bursting.wait.for: \"Half\" is none of None, All, a number of brokers",
        ),
    ]);
}

#[test]
fn names() {
    let named = |name: &str| {
        let mut mini_cluster = lake("  containers: [{}]\n");
        mini_cluster.metadata.name = Some(name.to_owned());
        render(&mini_cluster, &Context::default()).unwrap_err().iter().next().unwrap().to_string()
    };
    let no_label = |name: &str| {
        format!(
            "metadata.name: the MiniCluster {name:?} cannot be the name of a service: use lower case letters, digits and \
             '-', begin with a letter and end with a letter or a digit"
        )
    };
    assert_eq!(named("1cluster"), no_label("1cluster"));
    assert_eq!(named("my.cluster"), no_label("my.cluster"));
    assert!(named(&"a".repeat(60)).contains("has 60 characters, at most 52 are possible"));
    check_with(&[(
        "network: {headlessName: a_b}",
        "spec.network.headlessName: the headless service \"a_b\" cannot be the name of a service: use lower case letters, \
         digits and '-', begin with a letter and end with a letter or a digit",
    )]);
}

#[test]
fn which_container_runs_flux() {
    check(&[
        ("containers: []", "spec.containers: there is no container: at least one is needed, to run Flux"),
        (
            "containers: [{name: a}, {name: b}]",
            "spec.containers: none of the 2 containers has runFlux: set it on the one that runs Flux",
        ),
        (
            "containers: [{runFlux: true}, {name: b}, {runFlux: true}]",
            "spec.containers: containers 0, 2 all have runFlux: exactly one container runs Flux",
        ),
    ]);
}

#[test]
fn names_of_containers() {
    let beside = |container: &str| format!("containers: [{{runFlux: true}}, {container}]");
    check(&[
        (
            &beside("{image: a}"),
            "spec.containers[1].name: name is missing: every container that does not run Flux needs one",
        ),
        (
            &beside("{name: A_b}"),
            "spec.containers[1].name: the name of a container has lower case letters, digits and '-' only, and at most 63 \
             of them",
        ),
        (
            &beside("{name: lake}"),
            "spec.containers[1].name: the container that runs Flux has the name lake already: choose another one",
        ),
        (
            &beside("{name: a}, {name: a}"),
            "spec.containers[2].name: spec.containers[1] has the name a already: choose another one",
        ),
        (
            &beside("{name: 1a, ports: [80]}"),
            "spec.containers[1].name: 1a becomes the name of a service for its ports, and must begin with a letter",
        ),
    ]);
    check_with(&[
        (
            "services: [{image: a}]",
            "spec.services[0].name: name is missing: every container that does not run Flux needs one",
        ),
        (
            "flux: {container: {name: lake}}",
            "spec.flux.container.name: the container that runs Flux has the MiniCluster's name: choose another one for \
             flux.container",
        ),
        (
            "flux: {container: {name: hostlist}}",
            "spec.flux.container.name: another file of the MiniCluster has this name: choose another one for the container",
        ),
    ]);
}

#[test]
fn services_of_one_name() {
    let of =
        |name: &str, more: &str| format!("{{containers: [{{runFlux: true}}, {{name: {name}, ports: [80]}}], {more}}}");
    let taken = |name: &str| format!("a service {name} is made for the MiniCluster already: choose another name");
    let container = |name: &str| format!("spec.containers[1].name: {} for the container", taken(name));
    let bursting = "flux: {bursting: {clusters: [{}]}}";
    check(&[
        (&of("lake-restful", "fluxRestful: {}"), &container("lake-restful")),
        (&of("lake-lead", bursting), &container("lake-lead")),
        (&of("sea", "network: {headlessName: sea}"), &container("sea")),
    ]);
    let headless = |name: &str| format!("spec.network.headlessName: {}", taken(name));
    check_with(&[
        ("network: {headlessName: lake-restful}, fluxRestful: {}", &headless("lake-restful")),
        (&format!("network: {{headlessName: lake-lead}}, {bursting}"), &headless("lake-lead")),
    ]);
    for spec in [
        &of("lake-restful", "fluxRestful: {}, interactive: true"),
        &of("lake-restful", "tasks: 1"),
        &of("lake-lead", "tasks: 1"),
        // Through a tunnel, the agent connects to the pod.
        &of("lake-lead", "flux: {bursting: {clusters: [{}], network: {type: Tunnel}}}"),
        &with("network: {headlessName: lake-lead}"),
    ] {
        render(&lake(&format!("  {spec}\n")), &Context::default()).unwrap();
    }
}

#[test]
fn a_burst_named_like_what_its_pods_have() {
    let of = |more: &str, flux: &str| {
        format!("{{containers: [{{runFlux: true, name: x}}, {{name: db, {more}}}], flux: {{{flux}}}}}")
    };
    let clusters = |name: &str| format!("bursting: {{clusters: [{{name: a}}, {{name: {name}}}]}}");
    let field = "spec.flux.bursting.clusters[1].name";
    check(&[
        (&of("", &clusters("db")), &format!("{field}: spec.containers[1] has the name db already: choose another one")),
        (
            &of("", &clusters("flux-view")),
            &format!("{field}: flux.container has the name flux-view already: choose another one"),
        ),
        (
            &of("volumes: {b-entrypoint: {emptyDir: true}}", &clusters("b")),
            &format!("{field}: a container has a volume b-entrypoint, as is made for this burst: choose another name"),
        ),
    ]);
    let lead = "leadBroker: {address: 192.0.2.1, name: river, size: 1}";
    for spec in [&of("", &clusters("x")), &of("", &format!("{lead}, {}", clusters("db")))] {
        render(&lake(&format!("  {spec}\n")), &Context::default()).unwrap();
    }
}

#[test]
fn commands_that_exclude_each_other() {
    check(&[
        (
            "containers: [{command: a, commands: {script: b}}]",
            "spec.containers[0].commands.script: command and commands.script are both written: a container that runs Flux \
             runs one of them",
        ),
        (
            "containers: [{launcher: true, batch: true, command: a}]",
            "spec.containers[0].launcher: launcher and batch exclude each other: a launcher submits its jobs itself",
        ),
        (
            "{containers: [{}], services: [{name: a, commands: {pre: a, brokerPre: b, workerPre: c}}]}",
            "spec.services[0].commands.pre: pre runs beside brokers, and a service has none: use servicePre; \
             spec.services[0].commands.brokerPre: brokerPre runs beside brokers, and a service has none: use servicePre; \
             spec.services[0].commands.workerPre: workerPre runs beside brokers, and a service has none: use servicePre",
        ),
    ]);
}

#[test]
fn values_of_containers() {
    let one = |container: &str| format!("containers: [{{{container}}}]");
    check(&[
        (
            &one("command: \"echo 'a\""),
            "spec.containers[0].command: the quote ' is not closed: close it, or write \\' for the character itself",
        ),
        (
            &one("imagePullPolicy: Sometimes"),
            "spec.containers[0].imagePullPolicy: \"Sometimes\" is no pull policy: write Always, IfNotPresent or Never",
        ),
        (&one("ports: [0]"), "spec.containers[0].ports[0]: 0 is no port: 1 to 65535 are"),
        (&one("ports: [80, 80]"), "spec.containers[0].ports[1]: port 80 is written twice"),
        (
            &one("environment: {A: b}, secrets: {A: {name: s, key: k}}"),
            "spec.containers[0].secrets.A: the variable A is in environment and in secrets: remove it from one of them",
        ),
    ]);
}

#[test]
fn volumes() {
    let one = |volumes: &str| format!("containers: [{{volumes: {volumes}}}]");
    let missing = "spec.containers[0].volumes.d: path is missing: say where the container sees the volume";
    check(&[
        (&one("{d: {claimName: d}}"), missing),
        (&one("{d: {hostPath: /d}}"), missing),
        (&one("{d: {secretName: d}}"), missing),
        (
            &one("{d: {claimName: d, path: data}}"),
            "spec.containers[0].volumes.d: path \"data\" is not an absolute path without ':'",
        ),
        (
            &one("{a: {emptyDir: true}, b: {emptyDir: true}}"),
            "spec.containers[0].volumes.b: something else is mounted at /dev/shm already: choose another path",
        ),
        (
            &one("{a: {emptyDir: true, path: /opt/software}}"),
            "spec.containers[0].volumes.a: something else is mounted at /opt/software already: choose another path",
        ),
        (
            &one("{a_b: {emptyDir: true}}"),
            "spec.containers[0].volumes.a_b: the name of a volume has lower case letters, digits and '-' only, at most 63",
        ),
        (
            &one("{a: {emptyDir: true, emptyDirSizeLimit: 64 Gigs}}"),
            "spec.containers[0].volumes.a: emptyDirSizeLimit \"64 Gigs\" is no amount: write it like 64Gi",
        ),
        (
            &one("{flux-view: {emptyDir: true}}"),
            "spec.containers[0].volumes.flux-view: a volume flux-view is made for Flux already: choose another name",
        ),
        (
            "containers: [{runFlux: true, volumes: {d: {claimName: a, path: /d}}}, {name: s, volumes: {d: {claimName: b, \
             path: /d}}}]",
            "spec.containers[1].volumes.d: another container has a volume d of another source: give one of them another name",
        ),
    ]);
    check_with(&[
        (
            "flux: {container: {name: flux-curve}}",
            "spec.flux.container.name: a volume flux-curve is made for Flux already: choose another name",
        ),
        (
            "flux: {container: {mountPath: /opt/software/}}",
            "spec.flux.container.mountPath: /opt/software/ has another directory of Flux in it already: choose another path",
        ),
    ]);
}

#[test]
fn containers_share_a_volume_that_one_of_them_says_more_of() {
    let volumes = |one: &str, other: &str, flux: &str| {
        let spec = format!(
            "  containers: [{{runFlux: true, volumes: {{d: {one}}}}}, {{name: s, volumes: {{d: {other}}}}}]\n  flux: {{container: {flux}}}\n"
        );
        let pod = render(&lake(&spec), &Context::default()).unwrap().job.spec.unwrap().template.spec.unwrap();
        pod.volumes.unwrap().into_iter().find(|volume| volume.name == "d").unwrap()
    };
    let (reads, writes) =
        ("{csiDriver: data.example, path: /d, readOnly: true}", "{csiDriver: data.example, path: /d}");
    for (one, other, read_only) in [(reads, reads, Some(true)), (reads, writes, None), (writes, reads, None)] {
        assert_eq!(volumes(one, other, "{}").csi.unwrap().read_only, read_only, "{one}, {other}");
    }
    let (bare, sized) = ("{emptyDir: true}", "{emptyDir: true, emptyDirMedium: memory, emptyDirSizeLimit: 8Gi}");
    for (one, other) in [(bare, sized), (sized, bare)] {
        let directory = volumes(one, other, "{}").empty_dir.unwrap();
        assert_eq!((directory.medium.as_deref(), directory.size_limit.unwrap().0.as_str()), (Some("Memory"), "8Gi"));
    }
    // Where the image brings Flux, nothing of ours is at this path.
    let software = "{claimName: site, path: /opt/software}";
    assert!(volumes(software, "{path: /d}", "{disable: true}").persistent_volume_claim.is_some());
}

/// The danger: the pods of the Job go without their first script.
#[test]
fn a_view_is_named_as_a_service_is() {
    let spec = "  containers: [{}]\n  services: [{name: db, command: a}]\n  flux: {container: {name: services-view}}\n";
    let rendered = render(&lake(spec), &Context::default()).unwrap();
    let items = |pod: &k8s_openapi::api::core::v1::PodSpec| {
        let volumes = pod.volumes.iter().flatten().filter_map(|volume| volume.config_map.clone());
        volumes.flat_map(|map| map.items.unwrap_or_default()).map(|item| item.path).collect::<Vec<_>>()
    };
    let has_init = |pod: &k8s_openapi::api::core::v1::PodSpec| items(pod).contains(&"flux-init.sh".to_owned());
    assert!(has_init(&rendered.job.spec.unwrap().template.spec.unwrap()));
    assert!(!has_init(&rendered.service_pod.unwrap().spec.unwrap()));
}

#[test]
fn single_values() {
    check_with(&[
        ("tasks: -1", "spec.tasks: tasks is -1: write 0 or more"),
        ("backoffLimit: -1", "spec.backoffLimit: backoffLimit is -1: write 0 for no retry, or more"),
        ("deadlineSeconds: -1", "spec.deadlineSeconds: deadlineSeconds is -1: write 0 for no limit, or more"),
        (
            "pod: {restartPolicy: Always}",
            "spec.pod.restartPolicy: \"Always\" is no restart policy of a Job's pods: write Never or OnFailure",
        ),
        ("flux: {logLevel: 9}", "spec.flux.logLevel: logLevel is 9: 0 (emergencies) to 7 (debug) exist"),
        (
            "flux: {container: {mountPath: mnt}}",
            "spec.flux.container.mountPath: \"mnt\" is no absolute path of a directory for Flux",
        ),
        (
            "flux: {environment: {a-b: c}}",
            "spec.flux.environment: \"a-b\" is no name of a shell variable: use letters, digits and '_', no digit first",
        ),
        (
            "flux: {curveCert: my-cert}",
            "spec.flux.curveCert: failed to parse the curve certificate: line 1 is not what Flux reads; make one with flux \
             keygen, or leave it out and one is made",
        ),
        (
            "flux: {topology: star}",
            "spec.flux.topology: topology \"star\" is unknown to Flux: use custom, kary:K, mincrit, mincrit:K or binomial, \
             K a number",
        ),
        (
            "flux: {optionFlags: '\"'}",
            "spec.flux.optionFlags: the quote \" is not closed: close it, or write \\\" for the character itself",
        ),
    ]);
}

#[test]
fn bursts_of_a_root() {
    let bursting = |bursting: &str| format!("{{containers: [{{}}], flux: {{bursting: {{{bursting}}}}}}}");
    check(&[
        (
            &bursting("hostlist: 'lake-0,b-0', clusters: [{}]"),
            "spec.flux.bursting.hostlist: hostlist and clusters exclude each other: the host list of clusters is made from \
             their names",
        ),
        (
            &bursting("hostlist: 'lake-[0'"),
            "spec.flux.bursting.hostlist: failed to parse the host list: unbalanced or repeated bracket at byte 5",
        ),
        (
            &bursting("hostlist: 'lake-0,a,lake-0'"),
            "spec.flux.bursting.hostlist: lake-0 is listed twice: a host has one rank",
        ),
        (
            &bursting("clusters: [{name: a}, {name: a}]"),
            "spec.flux.bursting.clusters[1]: slot name \"a\" is used twice",
        ),
        (
            &bursting("span: true, clusters: [{size: 2147483647}, {size: 2147483647}]"),
            "spec.flux.bursting.clusters[0]: the slots up to \"lake-burst-0\" declare more than 16384 brokers",
        ),
        (&bursting("clusters: [{name: lake}]"), "spec.flux.bursting.clusters[0]: slot name \"lake\" is used twice"),
        (
            &bursting("clusters: [{size: 3, maxSize: 2}]"),
            "spec.flux.bursting.clusters[0].maxSize: maxSize 2 is less than size 3: raise maxSize, or lower size",
        ),
        (
            &bursting("clusters: [{selector: {matchExpressions: [{key: region, operator: In}]}}]"),
            "spec.flux.bursting.clusters[0].selector: \"region\" is compared with no values: write values for In",
        ),
        (
            &bursting("clusters: [{peer: west, selector: {matchLabels: {a: b}}}]"),
            "spec.flux.bursting.clusters[0].selector: peers are named and selected by labels: write one or the other",
        ),
        (
            &bursting("clusters: [{gpus: -1}]"),
            "spec.flux.bursting.clusters[0].gpus: gpus is -1: write 0 or more, or leave it out",
        ),
        (
            &bursting("clusters: [{}, {resources: {limits: {gpu: 1}}}]"),
            "spec.flux.bursting.clusters[1].resources.limits.gpu: gpu is no resource of a container: write cpu, memory, \
             ephemeral-storage, hugepages-<size>, or a device with its domain, like nvidia.com/gpu",
        ),
        (
            &bursting("clusters: [{resources: {requests: {cpu: 4}, limits: {cpu: 2, nvidia.com/gpu: 0}}}]"),
            "spec.flux.bursting.clusters[0].resources.requests.cpu: the request 4 is more than the limit 2: lower it, or raise \
             the limit",
        ),
        (
            &bursting("clusters: [{budget: {maxDuration: long}}]"),
            "spec.flux.bursting.clusters[0].budget.maxDuration: \"long\" is no duration: write it like 90s, 5m or 1h30m",
        ),
        (
            &bursting("clusters: [{onDemand: {minPending: 2}}]"),
            "spec.flux.bursting.clusters[0].onDemand: onDemand says nothing about a burst that runs always: write mode: OnDemand \
             besides, or leave it out",
        ),
        (
            &bursting("clusters: [{size: 2, mode: OnDemand}], wait: {for: 1}"),
            "spec.flux.bursting.wait.for: the command would wait for ever: the bursts have 0 of the 1 brokers that it waits for; \
             lower the number, or write a timeout",
        ),
        (
            &bursting("clusters: [{}], budget: {brokerHours: -1}"),
            "spec.flux.bursting.budget.brokerHours: -1 is no number of hours: write 0 or more",
        ),
        (
            &bursting("clusters: [{size: 2}], wait: {for: 3}"),
            "spec.flux.bursting.wait.for: the command would wait for ever: the bursts have 2 of the 3 brokers that it waits \
             for; lower the number, or write a timeout",
        ),
        (
            &bursting("clusters: [{size: 2}], wait: {for: All, timeout: soon}"),
            "spec.flux.bursting.wait.timeout: flux.bursting.wait.timeout is not a duration: \"soon\"; write it like 90s, 5m \
             or 1h30m",
        ),
        (
            "{containers: [{}], flux: {topology: 'kary:2', bursting: {clusters: [{}]}}}",
            "spec.flux.topology: topology kary:2 would connect brokers across clusters that cannot reach each other: with \
             bursting, leave it out for one link per burst, or write kary:0 for one per broker",
        ),
    ]);
}

#[test]
fn a_lead_broker_needs_name_and_size() {
    let lead = |lead: &str| format!("{{size: 2, containers: [{{}}], flux: {{leadBroker: {{{lead}}}}}}}");
    check(&[
        (
            &lead("address: a, size: 2"),
            "spec.flux.bursting.leadBroker.name: name is missing: write the name of the root MiniCluster",
        ),
        (
            &lead("address: a, name: river"),
            "spec.flux.bursting.leadBroker.size: size is missing: write the number of the root's own brokers, its maxSize",
        ),
        (
            &lead("address: a, name: river, size: 2, port: 70000"),
            "spec.flux.bursting.leadBroker.port: 70000 is no port: 1 to 65535 are",
        ),
        (
            &lead("address: a, name: lake, size: 2"),
            "metadata.name: the root named by leadBroker has this name: a burst needs another one, for its hosts have the \
             names of other ranks",
        ),
        (
            &lead("address: 'tcp://a', name: river, size: 2"),
            "spec.flux.bursting.leadBroker.address: \"tcp://a\" is no host name or IP address: write it without scheme, port \
             and brackets",
        ),
        (
            "{size: 3, containers: [{}], flux: {leadBroker: {address: a, name: river, size: 2}, bursting: {clusters: \
             [{name: lake, size: 2}]}}}",
            "spec.size: size 3 is more than the 2 brokers that the root declares",
        ),
    ]);
}

#[test]
fn users_that_cannot_be() {
    check(&[
        (
            "containers: [{fluxUser: {name: 'a;b', uid: -1}}]",
            "spec.containers[0].fluxUser.name: \"a;b\" is no name of a user: use at most 32 lower case letters, digits, '_' and \
             '-', and begin with a letter or '_'; spec.containers[0].fluxUser.uid: -1 is no id of a user: 0 to 2147483647 are",
        ),
        (
            "containers: [{}]\n  flux: {drainSeconds: -1}",
            "spec.flux.drainSeconds: drainSeconds is -1: write 0 for no wait, or more",
        ),
    ]);
}

#[test]
fn a_hosted_mini_cluster_fills_its_slot() {
    let root =
        "{metadata: {name: river}, spec: {containers: [{}], flux: {bursting: {clusters: [{name: lake, size: 2}]}}}}";
    let rank_map = rank_map_of(&serde_saphyr::from_str(root).unwrap()).unwrap();
    let refusal = |spec: &str, slot: &str| {
        let hosted = HostedSide {
            rank_map: rank_map.clone(),
            slot: slot.into(),
            lead_service: "lake-lead".into(),
            lead_port: 8050,
        };
        let context = Context { hosted: Some(hosted), ..Context::default() };
        render(&lake(spec), &context).unwrap_err().to_string()
    };
    assert_eq!(
        refusal("  size: 3\n  containers: [{}]\n", "lake"),
        "spec.size: size 3 is more than the 2 brokers that the root declares"
    );
    assert_eq!(
        refusal("  size: 1\n  containers: [{}]\n", "pond"),
        "metadata.name: this MiniCluster is hosted for the burst pond, and must have its name"
    );
}

#[test]
fn everything_that_is_wrong_is_said_at_once() {
    let problems = render(
        &lake("  tasks: -1\n  size: 2\n  minSize: 3\n  containers: [{launcher: true, batch: true, command: \"'\"}]\n"),
        &Context::default(),
    );
    let fields: Vec<_> = problems.unwrap_err().into_iter().map(|problem| problem.field).collect();
    assert_eq!(fields, ["spec.minSize", "spec.containers[0].launcher", "spec.tasks"]);
}

#[test]
fn lists_of_a_hundred_thousand_entries_are_not_compared_each_with_each() {
    const MANY: i32 = 100_000;
    let mut long = lake("  containers: [{}]\n");
    long.spec.containers[0].ports = vec![0; MANY as usize];
    let told = render(&long, &Context::default()).unwrap_err().to_string();
    assert!(told.starts_with("spec.containers[0].ports[0]: 0 is no port"), "{told:.100}");
    assert!(told.ends_with("; and 99900 more problems"), "{}", told.len());

    let mut long = lake("  containers: [{}]\n");
    let names = || (0..MANY).map(|at| format!("name-{at}"));
    let container = &mut long.spec.containers[0];
    container.security_context.supplemental_groups = (0..i64::from(MANY)).collect();
    container.security_context.add_capabilities = names().collect();
    let claims = names().map(|name| json!({"name": name, "resourceClaimName": name})).collect::<Vec<_>>();
    container.resources.claims = serde_json::from_value(claims.clone().into()).unwrap();
    long.spec.pod.resource_claims = serde_json::from_value(claims.into()).unwrap();
    long.spec.flux_restful = Some(FluxRestful::default());
    long.spec.users = serde_json::from_value(names().map(|name| json!({"name": name})).collect()).unwrap();
    // Each by itself is right; all together are more than an annotation holds.
    assert_eq!(render(&long, &Context::default()).unwrap_err().reason(), "TooLarge");
}
