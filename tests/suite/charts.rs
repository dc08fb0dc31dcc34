//! The charts as helm sees them: what they render for the values people set, what they refuse, what they document.
//!
//! helm is built into the cache by the sandbox, from a pinned Go module. What the rules of the chart allow is shown on
//! real control planes: the agents of the `cluster` tests have no others, and `cluster/chart.rs` has no use for others.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::process::Output;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use serde_json::Value;
use tributary::api::minicluster::MiniCluster;
use tributary::config::{Config, FederationConfig, IdentityConfig, LogFormat};
use tributary::render::{Context, render};
use tributary_tests::chart::{self, charts};

const REGENERATE: &str = "UPDATE_GENERATED=1 cargo test -p tributary-tests --test suite charts::";

fn helm(arguments: &[&str]) -> Output {
    chart::helm(&charts(), None, arguments).unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// What `helm template` prints, or what it says against it.
pub(crate) fn template(chart: &str, values: &str) -> Result<String, String> {
    let file = tempfile::Builder::new().suffix(".yaml").tempfile().unwrap();
    std::fs::write(file.path(), values).unwrap();
    let file = file.path().to_str().unwrap();
    let namespace = ["--namespace", "tributary-system", "--kube-version", chart::KUBERNETES];
    let output = helm(&[&["template", "tributary", chart, "--values", file][..], &namespace].concat());
    if output.status.success() { Ok(text(&output.stdout)) } else { Err(text(&output.stderr)) }
}

/// The objects among rendered templates, each under its kind and name.
pub(crate) fn objects(rendered: &str) -> BTreeMap<String, Value> {
    let name =
        |value: &Value| format!("{}/{}", value["kind"].as_str().unwrap(), value["metadata"]["name"].as_str().unwrap());
    chart::objects(rendered).into_iter().map(|value| (name(&value), value)).collect()
}

#[test]
fn helm_finds_nothing_to_complain_of() {
    for arguments in [
        &["lint", "--strict", "tributary-crds", "--kube-version", chart::KUBERNETES][..],
        &["lint", "--strict", "tributary", "--set", "cluster.name=east", "--kube-version", "1.35.0"],
    ] {
        let output = helm(arguments);
        assert!(output.status.success(), "{}{}", text(&output.stdout), text(&output.stderr));
    }
}

/// The combinations that render different templates, each as a whole but for the kinds.
#[test]
fn charts_render_what_people_set() {
    let everything = "
cluster: {name: east, labels: {region: eu, tier: 'gpu \"fast\"'}, domain: cluster.example}
crds: {enabled: false}
replicas: 3
image: {repository: registry.example/agent, digest: 'sha256:0000000000000000000000000000000000000000000000000000000000000000', pullSecrets: [pull]}
federation:
  advertise: ['203.0.113.7:30946']
  port: 7950
  join: {port: 7951, advertise: ['203.0.113.7:30947']}
  service:
    type: LoadBalancer
    nodePort: 30946
    joinNodePort: 30947
    annotations: {cloud.example/balancer: udp}
    ipFamilyPolicy: PreferDualStack
    externalTrafficPolicy: Local
    loadBalancerClass: example.com/udp
    loadBalancerSourceRanges: [192.0.2.0/24]
  identity: {secret: issued-by-cert-manager, trustDomain: river, validity: 12h}
liveness: {heartbeatMillis: 500, suspectMillis: 2000}
bursting: {leaseSeconds: 600, drainSeconds: 10, graceSeconds: 60}
volumes: {classes: [hostpath, csi-gcs], pathPrefixes: [/srv/flux], drivers: [gcs.csi.ofek.dev]}
webhook: {port: 9555, secret: issued-webhook, certManager: {enabled: true, issuerRef: {kind: ClusterIssuer, name: internal}}}
log: {filter: 'tributary=debug,info', format: text}
extraEnv: [{name: TRIBUTARY__LOG__FILTER, value: debug}]
commonLabels: {team: hpc}
commonAnnotations: {contact: hpc@example.org}
podLabels: {mesh: none}
podAnnotations: {sidecar.example/inject: 'false'}
serviceAccount: {annotations: {cloud.example/role: agent}}
priorityClassName: system-cluster-critical
nodeSelector: {kubernetes.io/os: linux}
tolerations: [{key: node-role.kubernetes.io/control-plane, operator: Exists}]
affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [{matchExpressions: [{key: pool, operator: In, values: [system]}]}]}}}
topologySpreadConstraints: [{maxSkew: 1, topologyKey: rack, whenUnsatisfiable: ScheduleAnyway}]
metrics: {serviceMonitor: {enabled: true, interval: 15s, labels: {release: prometheus}}}
networkPolicy: {enabled: true, federationFrom: [{ipBlock: {cidr: 192.0.2.0/24}}], webhookFrom: [{ipBlock: {cidr: 192.0.2.128/25}}], metricsFrom: [{namespaceSelector: {matchLabels: {name: monitoring}}}]}
";
    let little = "
cluster: {name: west}
crds: {enabled: false}
replicas: 1
watchNamespaces: [research, teaching]
federation: {enabled: false}
serviceAccount: {create: false, name: given}
rbac: {create: false, aggregate: false}
metrics: {service: {enabled: false}}
networkPolicy: {enabled: true}
";
    let default = "{cluster: {name: east}, crds: {enabled: false}}";
    for (name, values) in [("default", default), ("everything", everything), ("little", little)] {
        let rendered = template("tributary", values).unwrap();
        assert!(rendered.lines().all(|line| line.trim_end() == line), "{name}: a line ends in spaces");
        insta::assert_snapshot!(format!("tributary_{name}"), rendered);
    }
}

#[test]
fn a_wrong_value_is_refused_by_name() {
    let mut refusals = String::new();
    for values in [
        "{}",
        "cluster: {name: East}",
        "cluster: {name: a.b}",
        "cluster: {name: east, zone: a}",
        "{cluster: {name: east}, replica: 3}",
        "{cluster: {name: east}, replicas: 0}",
        "{cluster: {name: east}, image: {pullPolicy: Sometimes}}",
        "{cluster: {name: east}, image: {digest: latest}}",
        "{cluster: {name: east}, federation: {advertise: [203.0.113.7]}}",
        "{cluster: {name: east}, federation: {advertise: ['::1:7946']}}",
        "{cluster: {name: east}, federation: {join: {advertise: ['http://host:30946']}}}",
        "{cluster: {name: east}, federation: {service: {type: ExternalName}}}",
        "{cluster: {name: east}, federation: {service: {externalTrafficPolicy: Near}}}",
        "{cluster: {name: east}, federation: {port: 7956}}",
        "{cluster: {name: east}, federation: {join: {port: 0}}}",
        "{cluster: {name: east}, federation: {identity: {trustDomain: A b}}}",
        "{cluster: {name: east}, federation: {identity: {validity: a day}}}",
        "{cluster: {name: east}, bursting: {leaseSeconds: 5}}",
        "{cluster: {name: east}, bursting: {usageDays: 0}}",
        "{cluster: {name: east}, liveness: {heartbeatMillis: 1.5}}",
        "{cluster: {name: east}, crds: {install: false}}",
        "{cluster: {name: east}, log: {format: xml}}",
        "{cluster: {name: east}, log: {filter: verbose}}",
        "{cluster: {name: east}, traces: {endpoint: 'collector:4317'}}",
        "{cluster: {name: east}, watchNamespaces: [A]}",
        "{cluster: {name: east}, volumes: {classes: [hostpath]}, watchNamespaces: [research]}",
        "{cluster: {name: east}, volumes: {pathPrefixes: [data]}}",
        "{cluster: {name: east}, volumes: {pathPrefixes: [/data/../etc]}}",
        "{cluster: {name: east}, webhook: {port: 0}}",
        "{cluster: {name: east}, webhook: {certManager: {enabled: true}}}",
        "{cluster: {name: east}, webhook: {secret: tributary-identity-ca}}",
        "{cluster: {name: east}, webhook: {port: 8081}}",
        "{cluster: {name: east}, admin: {port: 8081}}",
        "{cluster: {name: east}, admin: {port: 0}}",
        "{cluster: {name: east}, health: {port: 20999}}",
        "{cluster: {name: east}, liveness: {heartbeatMillis: 10000, suspectMillis: 301}}",
        "{cluster: {name: east}, liveness: {suspectMillis: 20000}}",
        "{cluster: {name: east}, bursting: {leaseSeconds: 20}}",
        // Of agents that ran commands in the pods of lead brokers.
        "{cluster: {name: east}, bursting: {onDemandNamespaces: [research]}}",
        "{cluster: {name: east}, federation: {advertise: ['203.0.113.7:65536']}}",
        "{cluster: {name: east}, federation: {identity: {validity: 5s}}}",
        "{cluster: {name: east}, federation: {identity: {validity: 367d}}}",
        "{cluster: {name: east}, federation: {tunnel: {ports: ''}}}",
        "{cluster: {name: east}, federation: {tunnel: {ports: 99999-5}}}",
        "{cluster: {name: east}, federation: {tunnel: {ports: 60000-65536}}}",
        "{cluster: {name: east}, federation: {service: {nodePort: 65536}}}",
        "{cluster: {name: east}, federation: {service: {nodePort: 30946, joinNodePort: 30946}}}",
        "{cluster: {name: east}, metrics: {service: {enabled: false}, serviceMonitor: {enabled: true}}}",
        "{cluster: {name: east}, podLabels: {app.kubernetes.io/name: mine}}",
        "{cluster: {name: east}, commonLabels: {helm.sh/chart: mine}}",
        "{cluster: {name: east}, metrics: {serviceMonitor: {labels: {app.kubernetes.io/instance: mine}}}}",
        "{cluster: {name: east}, metrics: {prometheusRule: {labels: {app.kubernetes.io/version: mine}}}}",
        "{cluster: {name: east}, metrics: {dashboard: {labels: {app.kubernetes.io/part-of: mine}}}}",
        "{cluster: {name: east}, podAnnotations: {tributary.dev/config: mine}}",
        "{cluster: {name: east}, fullnameOverride: River}",
        "{cluster: {name: east}, fullnameOverride: 2nd}",
        "{cluster: {name: east}, serviceAccount: {create: false}}",
        "{cluster: {name: east}, podDisruptionBudget: {maxUnavailable: 0}}",
        "{cluster: {name: east}, podDisruptionBudget: {maxUnavailable: '101%'}}",
        "{cluster: {name: east}, podDisruptionBudget: {maxUnavailable: some}}",
        "{cluster: {name: east}, podSecurityContext: [restricted]}",
        "{cluster: {name: east}, strategy: {type: Never}}",
        "{cluster: {name: east}, hostNetwork: true, networkPolicy: {enabled: true}}",
        "{cluster: {name: east}, dnsPolicy: None}",
        "{cluster: {name: east}, metrics: {serviceMonitor: {scrapeTimeout: soon}}}",
        "{cluster: {name: east}, metrics: {prometheusRule: {runbookBase: git.example.org}}}",
        "{cluster: {name: east}, extraVolumes: [{name: config, emptyDir: {}}]}",
    ] {
        let refusal = template("tributary", values).expect_err(values);
        let sentences: Vec<_> = refusal.lines().filter(|line| !line.is_empty() && !line.contains("--debug")).collect();
        writeln!(refusals, "{values}\n  {}", sentences.join("\n  ")).unwrap();
    }
    insta::assert_snapshot!("refused_values", refusals);
}

/// The configuration that the chart writes is one the agent takes, and says what the values say; without values, what
/// the agent does by itself.
#[test]
fn the_agent_takes_the_configuration() {
    let config = |values: &str| {
        let rendered = objects(&template("tributary", values).unwrap());
        rendered["ConfigMap/tributary"]["data"]["tributary.toml"].as_str().unwrap().to_owned()
    };
    let values = "{cluster: {name: east, labels: {region: eu, example.org/tier: 'a \"b\"'}}, federation: {advertise: ['203.0.113.7:30946', '[2001:db8::1]:30946'], \
                  identity: {trustDomain: river}}, bursting: {leaseSeconds: 600}, crds: {enabled: false}}";
    // What the Deployment puts into the environment.
    let with_pod = |text: String| text.replace("[federation]\n", "[federation]\npod_ips = [\"10.0.0.7\"]\n");
    let read = Config::from_toml(&with_pod(config(values))).unwrap();
    assert_eq!(read.cluster.name, "east");
    assert_eq!(read.cluster.labels["example.org/tier"], "a \"b\"");
    assert_eq!(read.federation.advertise, ["203.0.113.7:30946", "[2001:db8::1]:30946"]);
    assert_eq!(read.federation.trust_domain.as_deref(), Some("river"));
    assert_eq!(read.bursting.lease_seconds, 600);

    let read = Config::from_toml(&with_pod(config("{cluster: {name: east}, crds: {enabled: false}}"))).unwrap();
    let mut own = Config::default();
    own.cluster.name = "east".into();
    own.cluster.domain = "cluster.local".into();
    own.federation.service = "tributary-federation".into();
    own.webhook.listen = Some("[::]:9443".parse().unwrap());
    own.webhook.service = "tributary-webhook".into();
    own.federation.tunnel.ports = Some("20000-20999".into());
    own.federation.pod_ips = read.federation.pod_ips.clone();
    own.log.format = LogFormat::Json;
    assert_eq!(read, own);
    assert!(read.admin.listen.ip().is_loopback());

    let alone = Config::from_toml(&config("{cluster: {name: east}, federation: {enabled: false}}")).unwrap();
    assert_eq!(alone.federation.identity, IdentityConfig::Off);
}

/// What helm takes and the agent refuses is a pod that ends as soon as it starts.
#[test]
fn what_helm_takes_the_agent_takes() {
    let mut cases = vec![
        ("federation: {enabled: false}, liveness: {heartbeatMillis: 400, suspectMillis: 1500}, bursting: {graceSeconds: 3}".to_owned(), true),
        ("liveness: {heartbeatMillis: 100, suspectMillis: 301}, bursting: {leaseSeconds: 10, graceSeconds: 1}".to_owned(), true),
        ("bursting: {leaseSeconds: 3600, drainSeconds: 0, graceSeconds: 3600, usageDays: 400}".to_owned(), true),
        ("federation: {tunnel: {ports: 65535-65535}}".to_owned(), true),
        ("federation: {enabled: false}, webhook: {secret: tributary-identity}".to_owned(), true),
    ];
    let mut of = |key: &str, values: &[(&str, bool)]| {
        cases.extend(values.iter().map(|(value, taken)| (key.replace('_', &format!("{value:?}")), *taken)));
    };
    of(
        "federation: {identity: {validity: _}}",
        &[
            ("15s", true),
            ("1m", true),
            ("8784h", true),
            ("1d", true),
            ("30d", true),
            ("366d", true),
            ("31622401s", false),
        ],
    );
    of(
        "volumes: {pathPrefixes: [_]}",
        &[
            ("/", true),
            ("/data/", true),
            ("/..a/.b/...", true),
            ("/data/../x", false),
            ("/data/.", false),
            ("/..", false),
        ],
    );
    of("volumes: {pathPrefixes: [_]}", &[("/a//b", false), ("/a\tb", false), ("/data/ä", true)]);
    of(
        "traces: {endpoint: _}",
        &[("", true), ("http://c:4318", true), ("https://c/otlp/", true), ("https://user:secret@c:4318", false)],
    );
    of("traces: {endpoint: _}", &[("http://c:4318/a?token=b", false), ("http://c/a@b", false), ("http:///a", false)]);
    of(
        "log: {filter: _}",
        &[
            ("WARN", true),
            ("Info, ", true),
            ("info, tributary=Debug", true),
            ("tributary=,3", true),
            ("tributary[pass]", true),
            ("tributary[pass{id=1}]=trace,off", true),
            ("verbose", false),
            ("6", false),
            ("info,tributary", false),
            ("tributary=verbose", false),
            ("tributary= debug", false),
            ("*=debug", false),
            ("=debug", false),
        ],
    );
    for (values, taken) in cases {
        let rendered =
            template("tributary", &format!("{{cluster: {{name: east}}, crds: {{enabled: false}}, {values}}}"));
        assert_eq!(rendered.is_ok(), taken, "{values}: {rendered:?}");
        let Ok(rendered) = rendered else { continue };
        let rendered = objects(&rendered);
        let text = rendered["ConfigMap/tributary"]["data"]["tributary.toml"].as_str().unwrap();
        let text = text.replace("[federation]\n", "[federation]\npod_ips = [\"10.0.0.7\"]\n");
        let config = Config::from_toml(&text).unwrap_or_else(|error| panic!("{values}: {error}"));
        tributary::telemetry::change_filter(&config.log.filter).unwrap_or_else(|error| panic!("{values}: {error}"));
    }
}

/// Every key of the agent is a value, comes from Kubernetes, or is not for pods.
#[test]
fn every_key_of_the_agent_can_be_set() {
    let values =
        "{cluster: {name: east, labels: {a: b}}, federation: {identity: {trustDomain: river}}, crds: {enabled: false}}";
    let of_some = values.replace("crds:", "watchNamespaces: [a], traces: {endpoint: 'http://c:4318'}, crds:");
    let texts = [values, &of_some].map(|values| {
        let rendered = objects(&template("tributary", values).unwrap());
        rendered["ConfigMap/tributary"]["data"]["tributary.toml"].as_str().unwrap().to_owned()
    });
    let text = texts.concat();
    let rendered = objects(&template("tributary", values).unwrap());
    let container = &rendered["Deployment/tributary"]["spec"]["template"]["spec"]["containers"][0];
    let variables: BTreeSet<&str> =
        container["env"].as_array().unwrap().iter().map(|one| one["name"].as_str().unwrap()).collect();
    let federation = FederationConfig {
        service: "s".into(),
        pod_ips: vec!["10.0.0.7".parse().unwrap()],
        node_name: "n".into(),
        trust_domain: Some("t".into()),
        ..FederationConfig::default()
    };
    let mut filled = Config { federation, ..Config::default() };
    filled.cluster.domain = "d".into();
    for (section, keys) in serde_json::to_value(filled).unwrap().as_object().unwrap() {
        for key in keys.as_object().unwrap().keys() {
            let set = text.contains(&format!("\n{key} = ")) || text.contains(&format!("[{section}.{key}]"));
            let variable = format!("TRIBUTARY__{}__{}", section.to_uppercase(), key.to_uppercase());
            assert!(set || variables.contains(variable.as_str()), "{section}.{key} is nowhere in the chart");
        }
    }
}

/// Uninstalling the kinds would delete every MiniCluster. The agent's chart brings the same ones.
#[test]
fn the_kinds_outlive_their_release() {
    let alone = objects(&template("tributary-crds", "labels: {team: hpc}").unwrap());
    let policy =
        ["", "Binding"].map(|kind| format!("ValidatingAdmissionPolicy{kind}/miniclusters-v1alpha1.flux-framework.org"));
    assert!(policy.iter().all(|name| alone[name]["metadata"]["labels"]["team"] == "hpc"));
    assert_eq!(alone.len(), tributary::api::crds().len() + policy.len());
    let manifest = std::fs::read_to_string(charts().join("tributary-crds/Chart.yaml")).unwrap();
    let about = manifest.lines().find(|line| line.starts_with("description: ")).unwrap();
    for crd in tributary::api::crds() {
        assert!(about.contains(&crd.spec.names.kind), "{about} lacks {}", crd.spec.names.kind);
    }
    let (ours, binding) = tributary::api::v1alpha1::guard();
    for (name, wanted) in policy.iter().zip([serde_json::to_value(&ours.spec), serde_json::to_value(&binding.spec)]) {
        assert_eq!(alone[name]["spec"], wanted.unwrap(), "{name}");
    }
    let with_agent = "{cluster: {name: east}, tributary-crds: {labels: {team: hpc}}}";
    let with_agent = objects(&template("tributary", with_agent).unwrap());
    for crd in tributary::api::crds() {
        let name = format!("CustomResourceDefinition/{}", crd.metadata.name.as_ref().unwrap());
        let shipped = &alone[&name];
        assert!(&with_agent[&name] == shipped, "{name}");
        assert_eq!(shipped["metadata"]["annotations"]["helm.sh/resource-policy"], "keep");
        assert_eq!(shipped["metadata"]["labels"]["team"], "hpc");
        // As types: helm prints 0.0 as 0.
        let shipped: CustomResourceDefinition = serde_json::from_value(shipped.clone()).unwrap();
        assert!(shipped.spec == crd.spec, "{}", crd.spec.names.kind);
    }
    let rendered = template("tributary-crds", "keep: false").unwrap();
    assert!(!rendered.contains("resource-policy"));
    let without = template("tributary", "{cluster: {name: east}, crds: {enabled: false}}").unwrap();
    assert!(!without.contains("CustomResourceDefinition\n"));
}

/// What an administrator asks first: Secrets are listed and watched in the agent's namespace alone, nothing runs inside
/// pods, nobody gets more rights, no wildcard. And each rule says what it is for.
#[test]
fn the_rules_stay_within_what_is_promised() {
    let rendered = objects(&template("tributary", "{cluster: {name: east}, crds: {enabled: false}}").unwrap());
    let of_some = "{cluster: {name: east}, watchNamespaces: [research], crds: {enabled: false}}";
    let of_some = objects(&template("tributary", of_some).unwrap());
    // In some namespaces instead of everywhere, nothing can be written elsewhere.
    for rule in of_some["ClusterRole/tributary"]["rules"].as_array().unwrap() {
        for verb in rule["verbs"].as_array().unwrap() {
            assert!(["get", "list", "watch"].contains(&verb.as_str().unwrap()), "{rule}");
        }
    }
    let with_volumes = "{cluster: {name: east}, volumes: {classes: [hostpath]}, crds: {enabled: false}}";
    let with_volumes = objects(&template("tributary", with_volumes).unwrap());
    let on_volumes = |role: &Value| role["rules"].to_string().contains("persistentvolumes");
    let given = [&rendered, &of_some, &with_volumes].map(|objects| on_volumes(&objects["ClusterRole/tributary"]));
    assert_eq!(given, [false, false, true]);
    for role in ["ClusterRole/tributary", "Role/tributary"] {
        for rule in rendered[role]["rules"].as_array().unwrap() {
            let list = |key: &str| -> Vec<&str> {
                rule[key].as_array().unwrap().iter().map(|value| value.as_str().unwrap()).collect()
            };
            let (groups, resources, verbs) = (list("apiGroups"), list("resources"), list("verbs"));
            assert!(!groups.contains(&"*") && !resources.contains(&"*") && !verbs.contains(&"*"), "{rule}");
            let inside = ["pods/exec", "pods/attach", "pods/portforward", "pods/ephemeralcontainers"];
            assert!(!resources.iter().any(|resource| inside.contains(resource)), "{rule}");
            assert!(!groups.contains(&"rbac.authorization.k8s.io"), "{rule}");
            let reads_all = verbs.contains(&"list") || verbs.contains(&"watch");
            let secrets_of_all = role.starts_with("Cluster") && resources.contains(&"secrets") && reads_all;
            assert!(!secrets_of_all && !verbs.contains(&"deletecollection"), "{rule}");
        }
    }
    for file in
        ["cluster-rules.yaml", "watched-rules.yaml", "webhook-rules.yaml", "volumes-rules.yaml", "namespace-rules.yaml"]
    {
        let text = std::fs::read_to_string(charts().join("tributary/files").join(file)).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        for pair in lines.windows(2).filter(|pair| pair[1].starts_with("- apiGroups")) {
            assert!(pair[0].starts_with("# "), "{file}: no comment above {}", pair[1]);
        }
    }
}

/// One definition is the whole cluster's: with it comes the only right of such an agent to write outside of its namespaces.
#[test]
fn an_agent_of_some_namespaces_converts_only_if_it_is_told_to() {
    let of = |webhook: &str| {
        let values =
            format!("{{cluster: {{name: east}}, watchNamespaces: [a], webhook: {webhook}, crds: {{enabled: false}}}}");
        objects(&template("tributary", &values).unwrap())
    };
    let writes = |objects: &BTreeMap<String, Value>| -> Vec<String> {
        let rules = objects["ClusterRole/tributary"]["rules"].as_array().unwrap().clone();
        let reads = |verb: &Value| ["get", "list", "watch"].contains(&verb.as_str().unwrap());
        let writes = rules.iter().filter(|rule| !rule["verbs"].as_array().unwrap().iter().all(reads));
        writes.map(|rule| format!("{} {} {}", rule["verbs"], rule["resources"], rule["resourceNames"])).collect()
    };
    for (webhook, converts) in
        [("{}", false), ("{clusterWide: true}", true), ("{clusterWide: true, enabled: false}", false)]
    {
        let objects = of(webhook);
        let text = objects["ConfigMap/tributary"]["data"]["tributary.toml"].as_str().unwrap();
        assert_eq!(objects.contains_key("Service/tributary-webhook"), converts, "{webhook}");
        assert_eq!(text.contains("[webhook]"), converts, "{webhook}");
        let patch = r#"["patch"] ["customresourcedefinitions"] ["miniclusters.flux-framework.org"]"#;
        let expected: &[&str] = if converts { &[patch] } else { &[] };
        assert_eq!(writes(&objects), expected, "{webhook}");
    }
}

/// Who makes the roles is one question, whether users get some is another one.
#[test]
fn each_role_is_there_where_its_value_asks_for_it() {
    for (create, aggregate) in [(true, true), (true, false), (false, true), (false, false)] {
        let values = format!(
            "{{cluster: {{name: east}}, crds: {{enabled: false}}, \
             rbac: {{create: {create}, aggregate: {aggregate}}}}}"
        );
        let rendered = objects(&template("tributary", &values).unwrap());
        let of_agents =
            ["ClusterRole/tributary", "ClusterRoleBinding/tributary", "Role/tributary", "RoleBinding/tributary"];
        for name in of_agents {
            assert_eq!(rendered.contains_key(name), create, "{name}: create={create}, aggregate={aggregate}");
        }
        for name in ["view", "edit", "admin"].map(|role| format!("ClusterRole/tributary-{role}")) {
            assert_eq!(rendered.contains_key(&name), aggregate, "{name}: create={create}, aggregate={aggregate}");
        }
    }
}

/// `agentctl burst cancel|retry` lists Bursts and annotates one and its MiniCluster, `rekey` annotates a MiniCluster.
#[test]
fn who_may_edit_a_namespace_may_do_there_what_agentctl_does() {
    let rendered = objects(&template("tributary", "{cluster: {name: east}, crds: {enabled: false}}").unwrap());
    let may = |role: &str, resource: &str, verb: &str| {
        let rules = rendered[&format!("ClusterRole/tributary-{role}")]["rules"].as_array().unwrap().clone();
        let has = |rule: &Value, key: &str, word: &str| rule[key].as_array().unwrap().iter().any(|one| one == word);
        rules.iter().any(|rule| has(rule, "resources", resource) && has(rule, "verbs", verb))
    };
    for (resource, verb) in [("bursts", "patch"), ("miniclusters", "patch"), ("hostedbursts", "delete")] {
        assert!(may("edit", resource, verb) && !may("view", resource, verb), "{verb} {resource}");
    }
    // Bursts are made by agents, and end with their roots.
    assert!(!may("edit", "bursts", "create") && !may("edit", "bursts", "delete") && may("view", "bursts", "list"));
}

/// An owner that waits for its children's end: API servers with OwnerReferencesPermissionEnforcement let nobody make such
/// a child who may not write the owner's finalizers.
#[test]
fn owners_that_wait_are_ones_whose_finalizers_may_be_written() {
    let spec = tributary_tests::scenario::interactive(1);
    let object = serde_json::json!({"metadata": {"name": "lake", "namespace": "n", "uid": "1"}, "spec": spec});
    let lake: MiniCluster = serde_json::from_value(object).unwrap();
    let job = render(&lake, &Context::default()).unwrap().job;
    let waits = job.metadata.owner_references.unwrap().iter().any(|owner| owner.block_owner_deletion == Some(true));
    let rules = std::fs::read_to_string(charts().join("tributary/files/watched-rules.yaml")).unwrap();
    assert_eq!(rules.contains("resources: [miniclusters/finalizers]\n  verbs: [update]\n"), waits);
}

/// The Restricted level: <https://kubernetes.io/docs/concepts/security/pod-security-standards/>.
#[test]
fn the_pods_are_restricted() {
    let rendered = objects(&template("tributary", "{cluster: {name: east}, crds: {enabled: false}}").unwrap());
    let pod = &rendered["Deployment/tributary"]["spec"]["template"]["spec"];
    let container = &pod["containers"][0]["securityContext"];
    assert_eq!(pod["securityContext"]["runAsNonRoot"], true);
    assert_eq!(pod["securityContext"]["seccompProfile"]["type"], "RuntimeDefault");
    assert_eq!(container["allowPrivilegeEscalation"], false);
    assert_eq!(container["readOnlyRootFilesystem"], true);
    assert_eq!(container["capabilities"], serde_json::json!({"drop": ["ALL"]}));
    let volumes = pod["volumes"].as_array().unwrap();
    assert!(volumes.iter().all(|volume| volume.get("configMap").is_some()), "{volumes:?}");
    let selector = &rendered["Service/tributary-federation"]["spec"]["selector"];
    assert!(selector.is_null(), "standbys do not listen: the leader writes the EndpointSlice");
}

/// One value of `values.yaml`: its comment, its path, its default.
struct Documented {
    path: String,
    comment: String,
    default: String,
}

/// Values with a comment that begins with `# --`, and every leaf that has none.
fn documented(values: &str) -> (Vec<Documented>, Vec<String>) {
    let (mut found, mut bare) = (Vec::new(), Vec::new());
    let (mut above, mut comment): (Vec<(usize, String)>, Vec<String>) = (Vec::new(), Vec::new());
    let mut covered: Option<usize> = None;
    for line in values.lines() {
        let indent = line.len() - line.trim_start().len();
        if let Some(sentence) = line.trim_start().strip_prefix('#') {
            comment.push(sentence.trim_start_matches(" --").trim().to_owned());
            continue;
        }
        let Some((key, default)) = line.trim_start().split_once(':').filter(|_| !line.trim().is_empty()) else {
            comment.clear();
            continue;
        };
        above.retain(|(outer, _)| *outer < indent);
        above.push((indent, key.to_owned()));
        let path = above.iter().map(|(_, key)| key.as_str()).collect::<Vec<_>>().join(".");
        if covered.is_some_and(|outer| indent > outer) {
            continue;
        }
        covered = None;
        if !comment.is_empty() {
            found.push(Documented { path, comment: comment.join(" "), default: default.trim().to_owned() });
            covered = Some(indent);
        } else if !default.trim().is_empty() {
            bare.push(path);
        }
        comment.clear();
    }
    (found, bare)
}

#[test]
fn every_value_is_documented_and_used() {
    for (chart, head) in [
        ("tributary", include_str!("charts_head/tributary.md")),
        ("tributary-crds", include_str!("charts_head/tributary-crds.md")),
    ] {
        let directory = charts().join(chart);
        let (values, bare) = documented(&std::fs::read_to_string(directory.join("values.yaml")).unwrap());
        assert!(bare.is_empty(), "{chart}: no comment that begins with `# --` above {bare:?}");
        // A dependency's condition is a value that is used, too.
        let manifest = std::fs::read_to_string(directory.join("Chart.yaml")).unwrap();
        let mut templates = manifest.replace("condition: ", "condition: .Values.");
        for entry in std::fs::read_dir(directory.join("templates")).unwrap() {
            templates.push_str(&std::fs::read_to_string(entry.unwrap().path()).unwrap());
        }
        let mut table = format!("{head}| value | default | meaning |\n|---|---|---|\n");
        for Documented { path, comment, default } in values {
            let (above, _) = path.rsplit_once('.').unwrap_or((&path, ""));
            let used = [format!(".Values.{path}"), format!("toYaml .Values.{} ", above.split('.').next().unwrap())];
            assert!(used.iter().any(|used| templates.contains(used)), "{chart}: no template uses {path}");
            writeln!(
                table,
                "| `{path}` | {} | {comment} |",
                if default.is_empty() { String::new() } else { format!("`{default}`") }
            )
            .unwrap();
        }
        writeln!(table, "\nThis page is made from `values.yaml` and `tests/suite/charts_head`:\n`{REGENERATE}`")
            .unwrap();
        let readme = directory.join("README.md");
        if std::env::var_os("UPDATE_GENERATED").is_some() {
            std::fs::write(&readme, &table).unwrap();
        }
        let current = std::fs::read_to_string(&readme).unwrap_or_default();
        assert!(current == table, "{} is not what values.yaml says; run: {REGENERATE}", readme.display());
    }
}
