//! Whole MiniClusters, rendered. Each snapshot is a list of objects and files: read it before it is accepted.

use std::fmt::Write as _;
use std::time::Duration;

use k8s_openapi::serde::Serialize;
use tributary_api::labels;
use tributary_flux::Certificate;

use super::boot::digest_of;
use super::*;

/// The MiniCluster `lake`, with this spec in YAML.
pub(super) fn lake(spec: &str) -> MiniCluster {
    let yaml = format!("metadata:\n  name: lake\n  namespace: waters\n  uid: lake-uid\nspec:\n{spec}");
    serde_saphyr::from_str(&yaml).unwrap_or_else(|error| panic!("{error}\n{yaml}"))
}

/// All objects as YAML, then the files; what the Job's annotation packs is shown by the files.
fn show(rendered: &Rendered) -> String {
    let mut rendered = Rendered { job: rendered.frozen_job(), ..rendered.clone() };
    let annotations = rendered.job.metadata.annotations.as_mut().unwrap();
    assert_eq!(Boot::decode(&annotations[labels::BOOT]).unwrap(), rendered.boot);
    assert_eq!(annotations[labels::BOOT_DIGEST], rendered.boot.digest());
    assert_eq!(rendered.config_map.data.as_ref(), Some(&rendered.boot.files));
    annotations.insert(labels::BOOT.to_owned(), "[packed]".to_owned());
    annotations.insert(labels::BOOT_DIGEST.to_owned(), "[digest]".to_owned());
    rendered.config_map.data = None;

    let mut text = String::new();
    let mut add = |object: &dyn Fn() -> String| write!(text, "---\n{}", object()).unwrap();
    add(&|| yaml(&rendered.config_map));
    for service in &rendered.services {
        add(&|| yaml(service));
    }
    if let Some(pod) = &rendered.service_pod {
        add(&|| yaml(pod));
    }
    add(&|| yaml(&rendered.job));
    for (key, content) in &rendered.boot.files {
        write!(text, "=== {key}\n{content}").unwrap();
    }
    write!(text, "=== rank map\n{}=== unsupported: {:?}\n", rendered.rank_map.to_canonical(), rendered.unsupported)
        .unwrap();
    text
}

fn yaml<T: Serialize>(object: &T) -> String {
    let value = serde_json::to_value(object).unwrap();
    serde_saphyr::to_string(&value).unwrap()
}

fn rendered(spec: &str) -> Rendered {
    render(&lake(spec), &Context::default()).unwrap_or_else(|problems| panic!("{problems}"))
}

#[test]
fn minimal() {
    insta::assert_snapshot!(show(&rendered("  size: 2\n  containers: [{image: ubuntu:noble, command: hostname}]\n")));
}

const ALL_COMMON_FIELDS: &str = r##"
  size: 3
  maxSize: 5
  minSize: 2
  tasks: 6
  suspend: true
  deadlineSeconds: 600
  backoffLimit: 4
  jobLabels: {team: hydrology, app: mine}
  shareProcessNamespace: true
  network: {headlessName: springs}
  archive: {path: /state/archive.tgz}
  logging: {strict: true, timed: true, debug: true, zeromq: true}
  flux:
    container:
      name: my-view
      image: example.org/view:1
      workingDir: /w
      pythonPath: /opt/py
      pullAlways: true
      imagePullSecret: view-secret
      mountPath: /opt/flux
      resources: {limits: {cpu: 2}}
      securityContext: {privileged: true}
    optionFlags: -ompi=openmpi@5
    submitCommand: flux mini submit
    wrap: strace,-e,network
    connectTimeout: 9s
    logLevel: 7
    topology: kary:2
    curveCertSecret: our-cert
    mungeSecret: our-munge
    scheduler: {queuePolicy: easy}
    environment: {GREETING: it's "a" $b}
  pod:
    labels: {pod-label: a, app: mine}
    annotations: {note: b}
    resources: {cpu: 1, memory: 500M}
    serviceAccountName: river
    automountServiceAccountToken: true
    schedulerName: fluence
    runtimeClassName: gvisor
    dnsPolicy: Default
    hostIPC: true
    nodeSelector: {pool: a}
    nodeAffinity: {type: [big, small]}
    tolerations: [{key: k, operator: Equal, value: v, effect: NoExecute, tolerationSeconds: 30}]
    securityContext: {runAsUser: 1000, runAsGroup: 1001, fsGroup: 2000, runAsNonRoot: true, supplementalGroups: [7]}
  services:
  - image: redis
    name: redis
    command: redis-server --save ''
    ports: [6379]
    imagePullSecret: service-secret
    environment: {A: b}
    volumes: {data: {claimName: redis-data, path: /data}}
    commands: {init: echo init, post: echo post}
  - {image: nginx, name: web, volumes: {conf: {configMapName: web-conf, items: {a.conf: b.conf}, path: /etc/nginx}}}
  containers:
  - image: nginx
    name: side
    noWrapEntrypoint: true
    ports: [80, 443]
    volumes: {data: {path: /srv/data, readOnly: true}}
  - image: example.org/app:2
    runFlux: true
    command: python3 -c "print('a b')" $HOME
    workingDir: /work
    imagePullPolicy: Always
    imagePullSecret: app-secret
    logs: $HOME/out
    ports: [9000]
    environment: {HOME: /root, RAW: 'a $(HOME) "b" ; $$'}
    secrets: {TOKEN: {name: tokens, key: first}}
    resources: {requests: {cpu: 4, memory: 8Gi}, limits: {nvidia.com/gpu: 2}}
    lifeCycle: {postStartExec: echo hi there, preStopExec: sleep 1}
    securityContext: {addCapabilities: [SYS_PTRACE]}
    preCommand: echo before pre
    commands:
      prefix: nice -n 5
      init: export LD_LIBRARY_PATH=/opt/lib
      pre: |
        echo "pre $HOME"
      workerPre: echo worker
      brokerPre: echo broker
      post: echo post
      runFluxAsRoot: true
    volumes:
      data: {claimName: shared, path: /data}
      scratch: {emptyDir: true, emptyDirMedium: memory, emptyDirSizeLimit: 64Gi}
      keys: {secretName: keys, path: /keys}
      host: {hostPath: /opt/host, path: /host, readOnly: true}
      bucket: {csiDriver: s3.csi.aws.com, csiDriverAttributes: {bucketName: b}, path: /bucket}
  - image: ubuntu
    name: watcher
    command: until flux proxy "$fluxsocket" flux jobs; do sleep 1; done
    commands: {servicePre: echo service pre, pre: echo pre, script: "#!/bin/bash\necho $x"}
"##;

#[test]
fn all_common_fields() {
    insta::assert_snapshot!(show(&rendered(ALL_COMMON_FIELDS)));
}

#[test]
fn a_root_with_bursts_of_other_cores_and_gpus() {
    let spec = r#"
  size: 4
  containers: [{image: ubuntu:noble, command: hostname, resources: {requests: {cpu: 2}}}]
  flux:
    bursting:
      wait: {for: All, timeout: 2m}
      clusters:
      - {size: 3, cores: 8, peer: west}
      - {name: gpu-pool, size: 2, maxSize: 4, cores: 4, gpus: 1, selector: {matchLabels: {gpu: a100}}}
"#;
    insta::assert_snapshot!(show(&rendered(spec)));
}

fn certificate() -> Certificate {
    let metadata = tributary_flux::CertificateMetadata {
        name: "flux-cert-generator".into(),
        hostname: "lake-0".into(),
        created: "2026-01-01T00:00:00Z".parse().unwrap(),
    };
    Certificate::generate(&mut tributary_clock::SeededRng::new(1), &metadata).unwrap()
}

#[test]
fn a_hosted_burst() {
    let root: MiniCluster = serde_saphyr::from_str(
        "{metadata: {name: river}, spec: {size: 2, containers: [{}], flux: {bursting: {clusters: \
         [{name: lake, size: 3, maxSize: 4, cores: 2}]}}}}",
    )
    .unwrap();
    let hosted = HostedSide {
        rank_map: rank_map_of(&root).unwrap(),
        slot: "lake".into(),
        lead_service: "lake-lead".into(),
        lead_port: 8050,
    };
    let spec = "
  size: 3
  maxSize: 4
  containers: [{image: ubuntu:noble, resources: {limits: {cpu: 2}}}]
  flux: {curveCertSecret: lake-curve, completeWorkers: true, bursting: {leadBroker: {address: \
                lake-lead.waters.svc.cluster.local, name: river, port: 8050, size: 2}}}
";
    let context = Context { hosted: Some(hosted), ..Context::default() };
    insta::assert_snapshot!(show(&render(&lake(spec), &context).unwrap()));
}

/// Users select by upstream's labels, and the name of what is hosted is a peer's choice.
#[test]
fn no_word_of_a_peer_becomes_a_label_that_others_select_by() {
    let mut hosted = lake("  size: 1\n  containers: [{image: app}]\n");
    let foreign = ["app", "app.kubernetes.io/name", "namespace", "hpa-selector", "job-index"];
    let bears = |object: &MiniCluster| {
        let rendered = render(object, &Context::default()).unwrap();
        let template = rendered.job.spec.as_ref().unwrap().template.clone();
        let metadata = [&rendered.config_map.metadata, &rendered.job.metadata, template.metadata.as_ref().unwrap()];
        let metadata = metadata.into_iter().chain(rendered.services.iter().map(|service| &service.metadata));
        let keys: Vec<String> = metadata.flat_map(|one| one.labels.clone().unwrap_or_default().into_keys()).collect();
        let affinity = serde_json::to_string(&template.spec.unwrap().affinity).unwrap();
        (keys.iter().any(|key| foreign.contains(&key.as_str())), affinity.contains("app.kubernetes.io/name"), keys)
    };
    let (labelled, near, _) = bears(&hosted);
    assert!(labelled && near, "a root bears upstream's");
    let owner = serde_json::json!([{"apiVersion": "tributary.dev/v1alpha1", "kind": "HostedBurst", "name": "lake", "uid": "u",
        "controller": true}]);
    hosted.metadata.owner_references = serde_json::from_value(owner).unwrap();
    let (labelled, near, keys) = bears(&hosted);
    assert!(!labelled && !near, "{keys:?}");
    assert!(
        keys.iter().all(|key| key.starts_with("tributary.dev/") || key == "app.kubernetes.io/managed-by"),
        "{keys:?}"
    );
}

#[test]
fn a_burst_written_by_hand_is_the_same_under_flux_and_under_bursting() {
    let lead = "leadBroker: {address: 203.0.113.7, name: flux-sample, size: 2, port: 30093}";
    let spec = |flux: &str| format!("  size: 3\n  containers: [{{image: 'ubuntu:noble'}}]\n  flux: {flux}\n");
    let inside = rendered(&spec(&format!("{{bursting: {{{lead}, clusters: [{{name: lake, size: 3}}]}}}}")));
    let outside = rendered(&spec(&format!("{{{lead}, bursting: {{clusters: [{{name: lake, size: 3}}]}}}}")));
    assert_eq!(inside.boot.files, outside.boot.files);
    assert_eq!(inside.services, outside.services);
    insta::assert_snapshot!(show(&inside));
}

#[test]
fn a_host_list_of_the_users_own() {
    let spec = "
  size: 2
  containers: [{cores: 4}]
  flux: {bursting: {hostlist: 'lake-[0-3],gffw-compute-a-[001-003]'}}
";
    let files = rendered(spec).boot.files;
    assert_eq!(files["hostlist"], "lake-[0-3],gffw-compute-a-[001-003]\n");
    assert!(files["broker.toml"].contains("{ host = \"lake-[0-3],gffw-compute-a-[001-003]\" }"));
    assert!(files["R"].contains(r#"{"rank":"0-6","children":{"core":"0-3"}}"#), "{}", files["R"]);
    assert_eq!(files["quorum"], "2\n", "no broker elsewhere is waited for");
}

#[test]
fn interactive() {
    let spec = "  size: 2\n  interactive: true\n  logging: {quiet: true}\n  containers: [{image: ubuntu:noble, commands: {pre: echo pre}}]\n";
    insta::assert_snapshot!(rendered(spec).boot.files["wait-0"]);
}

#[test]
fn batch() {
    let spec = "
  size: 2
  logging: {quiet: true}
  containers:
  - image: ubuntu:noble
    batch: true
    command: |
      echo \"hello world 1\"; ls $HOME
      echo hello world 2
    commands: {post: cat /tmp/fluxout/job-0.out}
    volumes: {data: {path: /tmp/fluxout}}
";
    let rendered = rendered(spec);
    let files = &rendered.boot.files;
    insta::assert_snapshot!(format!("{}=== flux-job-0.batch\n{}", files["wait-0"], files["flux-job-0.batch"]));
    let pod = rendered.job.spec.unwrap().template.spec.unwrap();
    assert!(pod.volumes.unwrap().iter().any(|volume| volume.name == "data" && volume.empty_dir.is_some()));
}

/// 76 brokers of the root and 16 bursts of 64: what Kubernetes limits is a ConfigMap's and all annotations' size.
#[test]
fn eleven_hundred_brokers_fit_into_the_objects_in_either_topology() {
    let bursts = vec!["{size: 64}"; 16].join(", ");
    for (topology, links) in [("", 16), ("topology: 'kary:0', ", 0)] {
        let spec = format!(
            "  size: 76\n  containers: [{{image: app}}]\n  flux: {{{topology}bursting: {{clusters: [{bursts}]}}}}\n"
        );
        let rendered = rendered(&spec);
        assert_eq!(rendered.rank_map.slots().iter().map(|slot| slot.max_size).sum::<u32>(), 1_100);
        let files: usize = rendered.boot.files.values().map(String::len).sum();
        let annotations = rendered.job.metadata.annotations.clone().unwrap();
        let packed: usize = annotations.values().map(String::len).sum();
        assert!(files < 100_000 && packed < 100_000, "{files} bytes of files, {packed} of annotations");
        let parents = rendered.boot.files["broker.toml"].matches("parent = \"lake-0\"").count();
        assert_eq!(parents, links, "one link between clusters per burst, or none that is prescribed");
    }
}

#[test]
fn a_minimal_service_selects_the_lead_only() {
    let rendered = rendered("  size: 2\n  flux: {minimalService: true}\n  containers: [{}]\n");
    insta::assert_snapshot!(yaml(&rendered.services));
}

#[test]
fn retries_are_the_users_to_ask_for() {
    let policy = |spec: &str| {
        let spec = rendered(&format!("{spec}\n  containers: [{{}}]\n")).job.spec.unwrap();
        let rules = spec.pod_failure_policy.map_or(0, |policy| policy.rules.len());
        (spec.backoff_limit, spec.template.spec.unwrap().restart_policy.unwrap(), rules)
    };
    assert_eq!(policy("  size: 1"), (Some(100), "Never".to_owned(), 2));
    assert_eq!(policy("  backoffLimit: 0"), (Some(0), "Never".to_owned(), 1));
    assert_eq!(policy("  pod: {restartPolicy: OnFailure}"), (Some(100), "OnFailure".to_owned(), 0));
}

#[test]
fn a_certificate_written_into_the_spec_is_in_no_object() {
    let certificate = certificate();
    let mut text = String::new();
    for line in certificate.expose().lines() {
        writeln!(text, "      {line}").unwrap();
    }
    let rendered = rendered(&format!("  containers: [{{}}]\n  flux:\n    curveCert: |\n{text}"));
    let secret = certificate.expose().lines().find(|line| line.contains("secret-key")).unwrap().trim();
    let everything = format!("{rendered:?}{}", serde_json::to_string(&rendered.boot).unwrap());
    assert!(!everything.contains(secret));
}

#[test]
fn passwords_of_the_restful_server_are_in_no_object() {
    let rendered = rendered(
        "  containers: [{}]\n  fluxRestful: {token: hunter2, secretKey: pot8o}\n  users: [{name: ann, password: c4rrot}]\n",
    );
    let everything = format!("{rendered:?}{}", serde_json::to_string(&rendered.boot).unwrap());
    for password in ["hunter2", "pot8o", "c4rrot"] {
        let digest = digest_of(password.as_bytes());
        assert!(!everything.contains(password) && !everything.contains(&digest[..15]), "{password}");
    }
}

#[test]
fn a_restful_server_has_a_service_and_reads_its_secret() {
    let served = rendered("  size: 2\n  containers: [{environment: {FLUX_USER: ann}}]\n  fluxRestful: {port: 5050}\n");
    let service = served.services.iter().find(|service| service.metadata.name.as_deref() == Some("lake-restful"));
    let runner = &served.job.spec.as_ref().unwrap().template.spec.as_ref().unwrap().containers[0];
    let text = [yaml(service.unwrap()), yaml(runner), served.boot.files["restful.sh"].clone()].join("---\n");
    insta::assert_snapshot!(text);
    assert_eq!(served.restful_secret.as_deref(), Some("lake-restful"));

    for spec in ["  containers: [{}]\n", "  containers: [{command: hostname}]\n  fluxRestful: {}\n"] {
        let without = rendered(spec);
        assert!(without.restful_secret.is_none() && !without.boot.files.contains_key("restful.sh"), "{spec}");
        assert_eq!(without.services.len(), served.services.len() - 1, "{spec}");
    }
}

#[test]
fn rendering_is_deterministic() {
    let mini_cluster = lake(ALL_COMMON_FIELDS);
    let first = render(&mini_cluster, &Context::default()).unwrap();
    assert_eq!(render(&mini_cluster.clone(), &Context::default()).unwrap(), first);
    assert_eq!(first.boot.encode(), render(&lake(ALL_COMMON_FIELDS), &Context::default()).unwrap().boot.encode());
}

fn pod_of(rendered: &Rendered) -> serde_json::Value {
    serde_json::to_value(&rendered.job.spec.as_ref().unwrap().template).unwrap()
}

#[test]
fn the_path_of_a_program_needs_no_shell() {
    let hooks = "{postStartExec: /app/hook, preStopExec: exit}";
    let spec = format!("  containers: [{{runFlux: true}}, {{name: b, lifeCycle: {hooks}}}]\n");
    let containers = pod_of(&rendered(&spec))["spec"]["initContainers"].clone();
    let side = containers.as_array().unwrap().iter().find(|one| one["name"] == "b").unwrap().clone();
    assert_eq!(side["lifecycle"]["postStart"]["exec"]["command"], serde_json::json!(["/app/hook"]));
    assert_eq!(side["lifecycle"]["preStop"]["exec"]["command"], serde_json::json!(["/bin/sh", "-c", "exit"]));
}

#[test]
fn what_schedulers_read_passes_through_untouched() {
    let spread =
        "{maxSkew: 1, topologyKey: zone, whenUnsatisfiable: DoNotSchedule, labelSelector: {matchLabels: {a: b}}}";
    let pod = pod_of(&rendered(&format!(
        "  containers: [{{}}]\n  pod: {{priorityClassName: high, schedulerName: volcano, topologySpreadConstraints: [{spread}], \
         labels: {{pod-group: g}}, annotations: {{kueue.x-k8s.io/podset-required-topology: rack}}}}\n"
    )));
    let spread: serde_json::Value = serde_saphyr::from_str(spread).unwrap();
    assert_eq!(pod["spec"]["topologySpreadConstraints"], serde_json::json!([spread]));
    assert_eq!(pod["spec"]["priorityClassName"], "high");
    assert_eq!(pod["spec"]["schedulerName"], "volcano");
    assert_eq!(pod["metadata"]["labels"]["pod-group"], "g");
    assert_eq!(pod["metadata"]["annotations"]["kueue.x-k8s.io/podset-required-topology"], "rack");
}

#[test]
fn the_queue_of_a_job_is_found_wherever_it_is_written() {
    const QUEUE: &str = "kueue.x-k8s.io/queue-name";
    let queue = |spec: &str, own: &str| {
        let mut mini_cluster = lake(&format!("  containers: [{{}}]\n  {spec}\n"));
        mini_cluster.metadata.labels = Some([(QUEUE, own), ("team", "mine")].map(|(k, v)| (k.into(), v.into())).into());
        let job = render(&mini_cluster, &Context::default()).unwrap().job;
        let labels = job.metadata.labels.unwrap();
        assert!(!labels.contains_key("team"), "other labels of the MiniCluster are its own");
        (labels[QUEUE].clone(), job.spec.unwrap().suspend)
    };
    let (pod, job) = (format!("pod: {{labels: {{{QUEUE}: pod}}}}"), format!("jobLabels: {{{QUEUE}: job}}"));
    // Nor is it ours to hold the Job back: the queue does that.
    assert_eq!(queue("size: 1", "own"), ("own".to_owned(), None));
    assert_eq!(queue(&pod, "own"), ("pod".to_owned(), None));
    assert_eq!(queue(&format!("{pod}\n  {job}"), "own"), ("job".to_owned(), None));
}

/// MultiKueue makes MiniClusters that name their Workload: older versions by a label, newer ones by an annotation.
#[test]
fn the_job_finds_the_workload_that_its_mini_cluster_names() {
    const WORKLOAD: &str = "kueue.x-k8s.io/prebuilt-workload-name";
    let mut mini_cluster = lake("  containers: [{}]\n");
    let named = || [(WORKLOAD, "w"), ("note", "mine")].map(|(key, value)| (key.to_owned(), value.to_owned()));
    (mini_cluster.metadata.labels, mini_cluster.metadata.annotations) = (Some(named().into()), Some(named().into()));
    let job = render(&mini_cluster, &Context::default()).unwrap().job.metadata;
    for (what, all) in [("labels", job.labels.unwrap()), ("annotations", job.annotations.unwrap())] {
        assert_eq!((all.get(WORKLOAD).map(String::as_str), all.get("note")), (Some("w"), None), "{what}");
    }
}

#[test]
fn affinities_of_the_user_stand_beside_ours() {
    let zone = "{key: z, operator: In, values: [a]}";
    let affinity = |rest: &str| {
        let spec = format!(
            "  containers: [{{}}]\n  pod:\n    affinity: {{nodeAffinity: {{requiredDuringSchedulingIgnoredDuringExecution: \
             {{nodeSelectorTerms: [{{matchExpressions: [{zone}]}}, {{matchFields: [{{key: metadata.name, operator: In, \
             values: [n]}}]}}]}}}}, podAntiAffinity: {{preferredDuringSchedulingIgnoredDuringExecution: [{{weight: 1, \
             podAffinityTerm: {{topologyKey: rack}}}}]}}}}\n{rest}"
        );
        pod_of(&rendered(&spec))["spec"]["affinity"].take()
    };
    insta::assert_snapshot!(yaml(&affinity("    nodeAffinity: {type: [big]}\n")));
    let alone = affinity("  network: {disableAffinity: true}\n");
    assert!(alone.get("podAffinity").is_none());
    assert_eq!(
        alone["podAntiAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"].as_array().unwrap().len(),
        1
    );
}

#[test]
fn on_the_nodes_network_brokers_keep_the_names_of_their_pods() {
    let rendered = rendered("  size: 2\n  containers: [{command: hostname}]\n  pod: {hostNetwork: true}\n");
    let pod = pod_of(&rendered);
    assert_eq!(
        (&pod["spec"]["hostNetwork"], &pod["spec"]["dnsPolicy"]),
        (&true.into(), &"ClusterFirstWithHostNet".into())
    );
    let files = &rendered.boot.files;
    assert!(files["broker.toml"].contains("default_bind = \"tcp://*:%p\""), "{}", files["broker.toml"]);
    assert!(files["wait-0"].contains("export HOSTNAME=lake-$JOB_COMPLETION_INDEX\n"), "{}", files["wait-0"]);
    assert!(files["wait-0"].contains("brokerOptions+=(\"-Shostname=$HOSTNAME\")\n"), "{}", files["wait-0"]);
}

#[test]
fn groups_of_containers_are_the_pods() {
    let rendered = rendered(
        "
  containers:
  - {runFlux: true, securityContext: {runAsUser: 1000, fsGroup: 2000, supplementalGroups: [4000]}}
  - {name: side, securityContext: {supplementalGroups: [4000, 5000]}}
  services: [{name: db, securityContext: {fsGroup: 26}}]
  pod: {securityContext: {supplementalGroups: [7]}}
",
    );
    let pod = pod_of(&rendered);
    assert_eq!(
        pod["spec"]["securityContext"],
        serde_json::json!({"fsGroup": 2000, "supplementalGroups": [7, 4000, 5000]})
    );
    assert_eq!(pod["spec"]["containers"][0]["securityContext"], serde_json::json!({"runAsUser": 1000}));
    let services = serde_json::to_value(rendered.service_pod.unwrap()).unwrap();
    assert_eq!(services["spec"]["securityContext"], serde_json::json!({"fsGroup": 26}));
}

#[test]
fn the_simple_scheduler_has_no_queue_policy() {
    let files =
        |scheduler: &str| rendered(&format!("  containers: [{{}}]\n  flux: {{scheduler: {scheduler}}}\n")).boot.files;
    assert_eq!(files("{queuePolicy: simple}"), files("{simple: true}"));
    assert_ne!(files("{queuePolicy: easy}"), files("{simple: true}"));
}

#[test]
fn the_connection_time_out_can_be_switched_off_in_both_spellings() {
    let options =
        |flux: &str| rendered(&format!("  containers: [{{}}]\n  flux: {flux}\n")).boot.files["wait-0"].clone();
    assert!(options("{}").contains("-Stbon.connect_timeout=5s"));
    for off in ["{connectTimeout: ''}", "{connectTimeout: 5s, connextTimeout: ''}"] {
        assert!(!options(off).contains("connect_timeout"), "{off}");
    }
}

/// Only where a connection leads to another cluster: elsewhere, a node that is gone has to be noticed soon.
#[test]
fn who_is_connected_to_another_cluster_waits_as_long_as_the_lease() {
    let options = |flux: &str, lease| {
        let context = Context { lease: Duration::from_secs(lease), ..Context::default() };
        let mini_cluster = lake(&format!("  size: 2\n  containers: [{{}}]\n  flux: {flux}\n"));
        render(&mini_cluster, &context).unwrap().boot.files["wait-0"].clone()
    };
    let bursting = "{bursting: {clusters: [{size: 1}]}}";
    let lead = |seconds| {
        format!("if [[ $HOSTNAME == lake-0 ]]; then\n    brokerOptions+=(-Stbon.tcp_user_timeout={seconds}s)")
    };
    // And TCP may try again two minutes after the cut.
    assert!(options(bursting, 600).contains(&lead(720)));
    let (alone, own) = ("{}", "{brokerConfig: '[tbon]', bursting: {clusters: [{size: 1}]}}");
    for without in [alone, own] {
        assert!(!options(without, 600).contains("tcp_user_timeout"), "{without}");
    }
    // Each broker of a flat burst has a connection of its own.
    let flat = "{topology: 'kary:0', bursting: {leadBroker: {address: 10.0.0.9, name: river, port: 30080, size: 1}}}";
    assert!(
        options(flat, 600).contains("\nbrokerOptions+=(-Stbon.tcp_user_timeout=720s)\n_retry=120\n"),
        "{}",
        options(flat, 600)
    );
}

#[test]
fn size_and_suspend_leave_the_fixed_part_of_the_job_alone() {
    let spec = |size| format!("  size: {size}\n  maxSize: 5\n  containers: [{{}}]\n");
    let two = rendered(&spec("2")).boot.template;
    assert_eq!(rendered(&spec("3\n  suspend: true")).boot.template, two);
    assert_ne!(rendered(&spec("2\n  pod: {schedulerName: x}")).boot.template, two);
}

proptest::proptest! {
    #![proptest_config(proptest::prelude::ProptestConfig::with_cases(48))]

    /// Whatever users write into text fields, rendering ends with objects or sentences, and always with the same.
    #[test]
    fn any_text_is_rendered_or_refused(texts in proptest::collection::vec("(?s).{0,40}", 12), sizes in proptest::array::uniform4(-2..9_i32)) {
        let mut mini_cluster = lake("  containers: [{runFlux: true}, {name: side}]\n");
        let spec = &mut mini_cluster.spec;
        (spec.size, spec.max_size, spec.min_size, spec.tasks) =
            (Some(sizes[0]), Some(sizes[1]).filter(|size| *size > 3), Some(sizes[2]).filter(|size| *size < 2), Some(sizes[3]));
        let text = |index: usize| Some(texts[index].clone()).filter(|text| !text.is_empty());
        let [runner, side] = spec.containers.as_mut_slice() else { unreachable!() };
        (runner.command, runner.commands.pre, runner.logs, runner.commands.prefix) = (text(0), text(1), text(2), text(3));
        (side.command, side.commands.script, side.image) = (text(4), text(5), text(6));
        (spec.flux.wrap, spec.flux.option_flags, spec.flux.submit_command) = (text(7), text(8), text(9));
        spec.archive.path = text(10);
        spec.flux.environment.insert("GREETING".to_owned(), texts[11].clone());
        let first = render(&mini_cluster, &Context::default());
        proptest::prop_assert_eq!(&first, &render(&mini_cluster.clone(), &Context::default()));
        if let Ok(rendered) = first {
            let pre = rendered.boot.files.get("pre-0.sh").cloned();
            proptest::prop_assert_eq!(pre, text(1).map(|text| text + "\n"));
            for key in ["wait-0", "start-1"] {
                let script = &rendered.boot.files[key];
                let check = std::process::Command::new("bash").args(["-nc", script]).output().unwrap();
                proptest::prop_assert!(check.status.success() || script.contains('\0'), "{}", script);
            }
        }
    }
}

#[test]
fn a_deadline_that_kubernetes_cannot_count_is_none() {
    for (written, expected) in [
        ("", Some(31_500_000)),
        ("  deadlineSeconds: 0\n", None),
        ("  deadlineSeconds: 60\n", Some(60)),
        ("  deadlineSeconds: 9223372036\n", Some(9_223_372_036)),
        ("  deadlineSeconds: 9223372037\n", None),
        ("  deadlineSeconds: 9223372036854775807\n", None),
    ] {
        let rendered = render(&lake(&format!("{written}  containers: [{{}}]\n")), &Context::default()).unwrap();
        assert_eq!(rendered.job.spec.unwrap().active_deadline_seconds, expected, "{written}");
    }
}
