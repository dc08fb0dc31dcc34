//! What each value of the chart changes, alone and beside those it meets in the same templates; and what holds whatever is
//! set.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use serde_json::{Map, Value, json};
use tributary::config::Config;
use tributary_tests::chart::{self, charts};

use crate::charts::{objects, template};

/// Values, besides the cluster's name. Kinds are a chart of their own.
const MATRIX: [&str; 41] = [
    "replicas: 1",
    "replicas: 3",
    "watchNamespaces: [research]",
    "{watchNamespaces: [research, teaching], webhook: {clusterWide: true}}",
    "federation: {enabled: false}",
    "federation: {service: {type: LoadBalancer, loadBalancerSourceRanges: [192.0.2.0/24]}}",
    "federation: {service: {type: ClusterIP}}",
    "federation: {service: {type: ClusterIP, externalTrafficPolicy: Local}}",
    "federation: {service: {nodePort: 30946, joinNodePort: 30956}}",
    "federation: {service: {ipFamilyPolicy: RequireDualStack}}",
    "federation: {identity: {secret: issued, trustDomain: river, validity: 48h}}",
    "federation: {tunnel: {ports: 21000-21099}}",
    "webhook: {enabled: false}",
    "webhook: {certManager: {enabled: true, issuerRef: {kind: ClusterIssuer, name: internal}}}",
    "volumes: {classes: [hostpath], pathPrefixes: [/srv/flux]}",
    "traces: {endpoint: 'http://collector:4318'}",
    "metrics: {serviceMonitor: {enabled: true}}",
    "metrics: {serviceMonitor: {enabled: true, clusterLabel: false}}",
    "metrics: {prometheusRule: {enabled: true, labels: {release: prometheus}}}",
    "metrics: {service: {enabled: false}}",
    "networkPolicy: {enabled: true}",
    "{networkPolicy: {enabled: true}, federation: {enabled: false}, webhook: {enabled: false}}",
    "podDisruptionBudget: {enabled: false}",
    "podDisruptionBudget: {maxUnavailable: 50%}",
    "rbac: {create: false}",
    "rbac: {aggregate: false}",
    "serviceAccount: {create: false, name: given}",
    "image: {repository: registry.example/agent, digest: 'sha256:0000000000000000000000000000000000000000000000000000000000000000'}",
    "affinity: {nodeAffinity: {}}",
    "topologySpreadConstraints: [{maxSkew: 1, topologyKey: rack, whenUnsatisfiable: ScheduleAnyway}]",
    "{commonLabels: {team: hpc}, podLabels: {mesh: none}}",
    "{commonLabels: {tier: all, app.kubernetes.io/component: agent}, podLabels: {tier: agents}}",
    "podSecurityContext: {runAsUser: null, runAsGroup: null, fsGroup: null}",
    "{podSecurityContext: null, containerSecurityContext: {readOnlyRootFilesystem: false}}",
    "{strategy: {type: Recreate}, dnsPolicy: Default}",
    "{hostNetwork: true, replicas: 1}",
    "{hostNetwork: true, strategy: {rollingUpdate: {maxSurge: 1, maxUnavailable: 0}}}",
    "{admin: {port: 18080}, health: {port: 18081}, metrics: {service: {port: 9090}}, networkPolicy: {enabled: true}}",
    "metrics: {serviceMonitor: {enabled: true, interval: 30s, scrapeTimeout: 5s, relabelings: [{targetLabel: site, replacement: berlin}], metricRelabelings: [{action: labeldrop, regex: pod}]}}",
    "metrics: {prometheusRule: {enabled: true, runbookBase: 'https://git.example.org/tributary/blob/main/'}}",
    "{extraVolumes: [{name: ca, secret: {secretName: ca}}], extraVolumeMounts: [{name: ca, mountPath: /etc/ca}], extraEnv: [{name: SSL_CERT_FILE, value: /etc/ca/ca.crt}]}",
];

/// Of the configuration, so that pods are replaced with it.
const CHECKSUM: &str = ".annotations.tributary.dev/config";

fn rendered(values: &str) -> BTreeMap<String, Value> {
    let own = values.strip_prefix('{').and_then(|rest| rest.strip_suffix('}')).unwrap_or(values);
    objects(&template("tributary", &format!("{{cluster: {{name: east}}, crds: {{enabled: false}}, {own}}}")).unwrap())
}

#[test]
fn each_value_changes_what_it_is_for() {
    let default = rendered("");
    hold(&default, "");
    let mut changes = String::new();
    for values in MATRIX {
        let objects = rendered(values);
        hold(&objects, values);
        writeln!(changes, "# {values}").unwrap();
        let before = changes.len();
        let names: BTreeSet<&String> = default.keys().chain(objects.keys()).collect();
        for name in names {
            match (default.get(name), objects.get(name)) {
                (Some(_), None) => writeln!(changes, "- {name}").unwrap(),
                (None, Some(object)) => {
                    writeln!(changes, "+ {name}").unwrap();
                    differences(&Value::Null, &without_names(object), "", &mut changes);
                }
                (was, is) => {
                    let mut within = String::new();
                    differences(was.unwrap(), is.unwrap(), "", &mut within);
                    if !within.is_empty() {
                        write!(changes, "~ {name}\n{within}").unwrap();
                    }
                }
            }
        }
        assert!(changes.len() > before, "{values} changes nothing");
    }
    insta::assert_snapshot!(changes);
}

/// A key that is rendered twice is no YAML, and is no error of helm's either.
#[test]
fn a_label_is_there_once_and_the_more_special_one_counts() {
    let objects = rendered(
        "{commonLabels: {tier: all, app.kubernetes.io/component: agent, rbac.authorization.k8s.io/aggregate-to-view: 'false'}, \
         podLabels: {tier: agents}, \
         metrics: {serviceMonitor: {enabled: true, labels: {tier: watched}}, prometheusRule: {enabled: true, labels: {tier: rules}}, \
         dashboard: {enabled: true, labels: {tier: shown}}}}",
    );
    let labels = |name: &str| &objects[name]["metadata"]["labels"];
    assert_eq!(objects["Deployment/tributary"]["spec"]["template"]["metadata"]["labels"]["tier"], "agents");
    assert_eq!(labels("Deployment/tributary")["tier"], "all");
    assert_eq!(labels("ServiceMonitor/tributary")["tier"], "watched");
    assert_eq!(labels("PrometheusRule/tributary")["tier"], "rules");
    assert_eq!(labels("ConfigMap/tributary-dashboard")["tier"], "shown");
    assert_eq!(labels("ConfigMap/tributary-dashboard")["grafana_dashboard"], "1");
    // By which the ServiceMonitor finds it.
    let component = "app.kubernetes.io/component";
    assert_eq!(labels("Service/tributary-metrics")[component], "metrics");
    assert_eq!(objects["ServiceMonitor/tributary"]["spec"]["selector"]["matchLabels"][component], "metrics");
    assert_eq!(labels("ClusterRole/tributary-view")["rbac.authorization.k8s.io/aggregate-to-view"], "true");
}

/// Of each object's name, also those of the whole cluster: two releases with one name in two namespaces can be told apart.
#[test]
fn every_name_follows_what_is_set() {
    for (values, prefix) in [
        ("fullnameOverride: river", "river"),
        ("{fullnameOverride: river, nameOverride: agent}", "river"),
        ("nameOverride: agent", "tributary-agent"),
        ("nameOverride: tributary", "tributary"),
    ] {
        let objects = rendered(values);
        hold(&objects, values);
        for (name, object) in &objects {
            let own = object["metadata"]["name"].as_str().unwrap();
            let rest = own.strip_prefix(prefix).unwrap_or_else(|| panic!("{values}: {name}"));
            assert!(rest.is_empty() || rest.starts_with('-'), "{values}: {name}");
            // agentctl finds the pods by it.
            assert_eq!(object["metadata"]["labels"]["app.kubernetes.io/name"], "tributary", "{values}: {name}");
        }
    }
}

fn rendered_with(arguments: &[&str]) -> Vec<Value> {
    let values = "cluster.name=east,crds.enabled=false";
    let own = ["template", "tributary", "tributary", "--kube-version", chart::KUBERNETES, "--set", values];
    let output = chart::helm(&charts(), None, &[&own[..], arguments].concat()).unwrap();
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    chart::objects(&String::from_utf8(output.stdout).unwrap())
}

fn one<'a>(objects: &'a [Value], kind: &str) -> &'a Value {
    objects.iter().find(|object| object["kind"] == kind).unwrap()
}

/// YAML takes them for numbers unless they are quoted.
#[test]
fn names_of_digits_are_names() {
    let objects = rendered_with(&[
        "--namespace=2026",
        "--set-json=watchNamespaces=[\"2025\"],image.pullSecrets=[\"7\"]",
        "--set-string=serviceAccount.name=8,priorityClassName=9,webhook.secret=10",
        "--set=webhook.clusterWide=true,webhook.certManager.enabled=true,webhook.certManager.issuerRef.name=ca",
        "--set=networkPolicy.enabled=true,metrics.serviceMonitor.enabled=true,metrics.prometheusRule.enabled=true,\
         metrics.dashboard.enabled=true",
    ]);
    for object in &objects {
        let subjects = object["subjects"].as_array().into_iter().flatten();
        let mut namespaces = subjects.chain([&object["metadata"]]).map(|at| &at["namespace"]);
        assert!(namespaces.all(|name| name.is_null() || name == "2025" || name == "2026"), "{object}");
    }
    let pod = &one(&objects, "Deployment")["spec"]["template"]["spec"];
    assert_eq!(pod["imagePullSecrets"], json!([{"name": "7"}]));
    assert_eq!((&pod["serviceAccountName"], &pod["priorityClassName"]), (&json!("8"), &json!("9")));
    assert_eq!(one(&objects, "Certificate")["spec"]["secretName"], "10");
}

/// It refuses users that are not of the namespace's range.
#[test]
fn openshift_chooses_users_and_groups() {
    for (values, left) in [
        ("replicas=2", json!({"runAsNonRoot": true, "seccompProfile": {"type": "RuntimeDefault"}})),
        ("podSecurityContext=null", Value::Null),
        (
            "podSecurityContext.runAsUser=1000",
            json!({"runAsNonRoot": true, "runAsUser": 1000, "seccompProfile": {"type": "RuntimeDefault"}}),
        ),
    ] {
        let objects = rendered_with(&["--api-versions=security.openshift.io/v1", "--set", values]);
        assert_eq!(one(&objects, "Deployment")["spec"]["template"]["spec"]["securityContext"], left, "{values}");
    }
}

/// What every object has.
fn without_names(object: &Value) -> Value {
    let mut object = object.as_object().unwrap().clone();
    for key in ["apiVersion", "kind", "metadata"] {
        object.remove(key);
    }
    Value::Object(object)
}

/// One line for each leaf that differs. A text of several lines differs by its lines; a checksum only says that it does.
fn differences(was: &Value, is: &Value, path: &str, into: &mut String) {
    match (was, is) {
        (Value::Null, Value::Object(is)) if !is.is_empty() => each(&Map::new(), is, path, into),
        (Value::Object(was), Value::Object(is)) => each(was, is, path, into),
        (Value::String(was), Value::String(is)) if was.contains('\n') && was != is => {
            for (sign, lines, others) in [('-', was, is), ('+', is, was)] {
                for line in lines.lines().filter(|line| !others.lines().any(|other| other == *line)) {
                    writeln!(into, "    {path} {sign} {line}").unwrap();
                }
            }
        }
        (was, is) if was != is && path.ends_with(CHECKSUM) => writeln!(into, "    {path} is another").unwrap(),
        (was, is) if was != is && was.is_null() => writeln!(into, "    {path} = {}", short(is)).unwrap(),
        (was, is) if was != is && is.is_null() => writeln!(into, "    {path} is gone").unwrap(),
        (Value::Array(was), Value::Array(is)) if was != is && named(was).is_some() && named(is).is_some() => {
            each(&named(was).unwrap_or_default(), &named(is).unwrap_or_default(), path, into);
        }
        (Value::Array(was), Value::Array(is)) if was != is => {
            for (sign, items, others) in [('-', was, is), ('+', is, was)] {
                for item in items.iter().filter(|item| !others.contains(item)) {
                    writeln!(into, "    {path}[] {sign} {item}").unwrap();
                }
            }
        }
        (was, is) if was != is => writeln!(into, "    {path} = {is}, not {was}").unwrap(),
        _ => {}
    }
}

/// What begins so is enough to see here: rules and alerts have snapshots of their own.
fn short(value: &Value) -> String {
    let text = value.to_string();
    match text.char_indices().nth(300) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}

/// Elements that have names, by them.
fn named(elements: &[Value]) -> Option<Map<String, Value>> {
    elements.iter().map(|element| Some((element["name"].as_str()?.to_owned(), element.clone()))).collect()
}

fn each(was: &Map<String, Value>, is: &Map<String, Value>, path: &str, into: &mut String) {
    let keys: BTreeSet<&String> = was.keys().chain(is.keys()).collect();
    for key in keys {
        let (was, is) = (was.get(key).unwrap_or(&Value::Null), is.get(key).unwrap_or(&Value::Null));
        differences(was, is, &format!("{path}.{key}"), into);
    }
}

/// Objects find each other, and the agent takes its configuration.
fn hold(objects: &BTreeMap<String, Value>, values: &str) {
    let of_kind = |kind: &str| {
        let prefix = format!("{kind}/");
        objects.iter().filter(move |(name, _)| name.starts_with(&prefix)).map(|(_, object)| object)
    };
    let [deployment] = of_kind("Deployment").collect::<Vec<_>>()[..] else { panic!("{values}: one Deployment") };
    let pod = &deployment["spec"]["template"];
    let selects = |selector: &Value, whose: &str| {
        for (key, value) in selector.as_object().unwrap_or_else(|| panic!("{values}: {whose} selects nothing")) {
            assert_eq!(&pod["metadata"]["labels"][key], value, "{values}: {whose} does not find the pods by {key}");
        }
    };
    selects(&deployment["spec"]["selector"]["matchLabels"], "the Deployment");
    for budget in of_kind("PodDisruptionBudget") {
        selects(&budget["spec"]["selector"]["matchLabels"], "the budget");
    }
    for policy in of_kind("NetworkPolicy") {
        selects(&policy["spec"]["podSelector"]["matchLabels"], "the policy");
    }
    let ports: BTreeSet<&str> =
        pod["spec"]["containers"][0]["ports"].as_array().into_iter().flatten().map(name).collect();
    for service in of_kind("Service") {
        if let Some(selector) = service["spec"].get("selector") {
            selects(selector, "a Service");
            for port in service["spec"]["ports"].as_array().unwrap() {
                let target = &port["targetPort"];
                assert!(
                    target.as_str().is_none_or(|name| ports.contains(name)),
                    "{values}: no port {target}: {ports:?}"
                );
            }
        }
    }
    for monitor in of_kind("ServiceMonitor") {
        let wanted = monitor["spec"]["selector"]["matchLabels"].as_object().unwrap();
        let found = of_kind("Service").filter(|service| {
            let labels = &service["metadata"]["labels"];
            wanted.iter().all(|(key, value)| &labels[key] == value)
        });
        let found: Vec<&str> = found.map(|service| name(&service["metadata"])).collect();
        assert!(matches!(found[..], [one] if one.ends_with("-metrics")), "{values}: {found:?}");
        // Some deployers write a name of their own into it.
        assert!(!wanted.contains_key("app.kubernetes.io/instance"), "{values}: {wanted:?}");
    }
    let text = of_kind("ConfigMap").find_map(|map| map["data"]["tributary.toml"].as_str()).unwrap();
    // What the Deployment puts into the environment.
    let with_pod = text.replace("[federation]\n", "[federation]\npod_ips = [\"10.0.0.7\"]\n");
    let config = Config::from_toml(&with_pod).unwrap_or_else(|error| panic!("{values}: {error}\n{text}"));
    // Where the agent listens is where it is looked for: by kubelets, Prometheus and agentctl.
    let port = |wanted: &str| {
        let port = pod["spec"]["containers"][0]["ports"].as_array().unwrap().iter().find(|port| name(port) == wanted);
        port.and_then(|port| port["containerPort"].as_u64()).unwrap_or_else(|| panic!("{values}: no port {wanted}"))
    };
    let listens = [("admin", config.admin.listen), ("health", config.health.listen)];
    for (part, address) in listens {
        assert_eq!(port(part), u64::from(address.port()), "{values}: {part}");
    }
    for policy in of_kind("NetworkPolicy") {
        let allowed = policy["spec"]["ingress"].as_array().unwrap().iter().flat_map(|rule| rule["ports"].as_array());
        let mut allowed = allowed.flatten().map(|port| port["port"].as_u64());
        assert!(allowed.any(|port| port == Some(config.health.listen.port().into())), "{values}: probes are kept out");
    }
    let account = pod["spec"]["serviceAccountName"].as_str().unwrap();
    let given = values.contains("serviceAccount: {create: false");
    assert_eq!(objects.contains_key(&format!("ServiceAccount/{account}")), !given, "{values}: account {account}");
    for binding in of_kind("RoleBinding").chain(of_kind("ClusterRoleBinding")) {
        assert_eq!(binding["subjects"][0]["name"], account, "{values}: a binding of somebody else");
        let role = format!("{}/{}", binding["roleRef"]["kind"].as_str().unwrap(), name(&binding["roleRef"]));
        assert!(objects.contains_key(&role), "{values}: there is no {role}");
    }
    for volume in pod["spec"]["volumes"].as_array().unwrap() {
        if let Some(map) = volume["configMap"]["name"].as_str() {
            assert!(objects.contains_key(&format!("ConfigMap/{map}")), "{values}: there is no ConfigMap {map}");
        }
    }
    let volumes: BTreeSet<&str> = pod["spec"]["volumes"].as_array().unwrap().iter().map(name).collect();
    for mount in pod["spec"]["containers"][0]["volumeMounts"].as_array().unwrap() {
        assert!(volumes.contains(name(mount)), "{values}: no volume for {mount}");
    }
    for (name, object) in objects {
        let labels = &object["metadata"]["labels"];
        assert_eq!(labels["app.kubernetes.io/instance"], "tributary", "{values}: {name} is not labelled");
    }
}

fn name(object: &Value) -> &str {
    object["name"].as_str().unwrap()
}
