//! Whole reports, from what a cluster with the Flux Operator holds.

use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::evaluate::evaluate;
use super::fetch::{Found, Named};
use super::report::{self, Report, Severity};

fn from<T: DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).unwrap()
}

/// A cluster as upstream's manifest leaves it.
fn installed() -> Found {
    let definition = json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "miniclusters.flux-framework.org"},
        "spec": {
            "group": "flux-framework.org", "scope": "Namespaced",
            "names": {"kind": "MiniCluster", "plural": "miniclusters"},
            "versions": [{"name": "v1alpha2", "served": true, "storage": true}],
        },
        "status": {"storedVersions": ["v1alpha2"]},
    });
    let deployment = json!({
        "metadata": {"name": "operator-controller-manager", "namespace": "operator-system"},
        "spec": {"selector": {}, "template": {"spec": {"containers": [{
            "name": "manager", "image": "ghcr.io/flux-framework/flux-operator:latest",
            "command": ["/manager"], "args": ["--leader-elect"],
        }]}}},
    });
    let other = json!({
        "metadata": {"name": "web", "namespace": "default"},
        "spec": {"selector": {}, "template": {"spec": {"containers": [{"name": "web", "image": "nginx:1"}]}}},
    });
    Found {
        kubernetes: "v1.35.4".into(),
        definition: Some(from(definition)),
        deployments: vec![from(deployment), from(other)],
        lease_holder: Some("operator-system/operator-controller-manager-1_2".into()),
        ..Found::default()
    }
}

fn mini_cluster(name: &str, spec: Value) -> Value {
    json!({
        "apiVersion": "flux-framework.org/v1alpha2", "kind": "MiniCluster",
        "metadata": {"name": name, "namespace": "hpc", "uid": format!("uid-{name}")},
        "spec": spec,
    })
}

fn job(name: &str, condition: Option<&str>) -> Value {
    let conditions: Vec<Value> = condition.map(|type_| json!({"type": type_, "status": "True"})).into_iter().collect();
    json!({
        "metadata": {"name": name, "namespace": "hpc", "ownerReferences": [owner(name)]},
        "spec": {"parallelism": 2, "template": {}},
        "status": {"conditions": conditions},
    })
}

fn owner(name: &str) -> Value {
    json!({
        "apiVersion": "flux-framework.org/v1alpha2", "kind": "MiniCluster", "name": name,
        "uid": format!("uid-{name}"), "controller": true,
    })
}

fn named(kind: &str, name: &str, owner: Option<&str>) -> Named {
    Named {
        kind: kind.into(),
        namespace: "hpc".into(),
        name: name.into(),
        controller: owner.map(|owner| ("MiniCluster".into(), owner.into(), format!("uid-{owner}"))),
    }
}

fn rules(report: &Report, severity: Severity) -> Vec<String> {
    let of = report.findings.iter().filter(|finding| finding.severity == severity);
    of.map(|finding| format!("{} {} {}", finding.rule, finding.object, finding.field).trim_end().to_owned()).collect()
}

#[test]
fn a_plain_installation_is_ready() {
    let mut found = installed();
    let spec = json!({"size": 2, "interactive": true, "containers": [{"image": "rockylinux:9"}]});
    found.mini_clusters = vec![from(mini_cluster("lake", spec.clone())), from(mini_cluster("river", spec.clone()))];
    found.jobs = vec![from(job("lake", None)), from(job("river", Some("Complete")))];
    found.objects = vec![
        named("ConfigMap", "lake-entrypoint", Some("lake")),
        named("Service", "lake", Some("lake")),
        named("Secret", "unrelated", None),
    ];
    let report = evaluate(&found);
    assert!(report.ready);
    insta::assert_snapshot!(report::text(&report, false));
    insta::assert_snapshot!("a_plain_installation_is_ready.yaml", serde_saphyr::to_string(&report).unwrap());
}

#[test]
fn an_installation_with_everything_to_say() {
    let mut found = installed();
    found.mini_clusters = [
        mini_cluster("lammps", json!({"size": 4, "containers": [{"image": "lammps", "command": "lmp -np $(nproc)"}]})),
        mini_cluster("fractal", json!({"containers": [{"commands": {"script": "echo \\$(seq 3) $HOME"}}]})),
        mini_cluster("inert", json!({"size": 0, "containers": [{}]})),
        mini_cluster("waits", json!({"interactive": true, "containers": [{}]})),
        mini_cluster("grown", json!({"size": 9, "maxSize": 5, "interactive": true, "containers": [{}]})),
        mini_cluster("shared", json!({"interactive": true, "network": {"headlessName": "lammps"}, "containers": [{}]})),
        mini_cluster("munge", json!({"interactive": true, "flux": {"mungeSecret": "m"}, "containers": [{}]})),
    ]
    .map(from)
    .to_vec();
    found.jobs = ["lammps", "fractal", "grown", "shared", "munge"].map(|name| from(job(name, None))).to_vec();
    found.jobs.push(from(json!({"metadata": {"name": "waits", "namespace": "hpc"}})));
    found.objects = vec![named("Service", "lammps", Some("lammps")), named("Secret", "fractal-curve", None)];
    found.quotas = vec![from(json!({
        "metadata": {"name": "small", "namespace": "hpc"},
        "status": {"hard": {"secrets": "3", "services": "1k"}, "used": {"secrets": "1", "services": "2"}},
    }))];
    found.autoscalers = vec![from(json!({
        "metadata": {"name": "grow", "namespace": "hpc"},
        "spec": {"maxReplicas": 4, "scaleTargetRef": {"kind": "MiniCluster", "name": "lammps"}},
    }))];
    found.unseen = vec!["Pods of namespace hpc: Forbidden".into()];
    let report = evaluate(&found);
    assert!(!report.ready);
    insta::assert_snapshot!(report::text(&report, false));
}

#[test]
fn what_the_old_definition_dropped_is_named() {
    let mut found = installed();
    let mut object = mini_cluster("old", json!({"interactive": true, "containers": [{"image": "a"}]}));
    let manifest = json!({
        "apiVersion": "flux-framework.org/v1alpha2", "kind": "MiniCluster", "metadata": {"name": "old"},
        "spec": {"interactive": true, "containers": [{"image": "a", "cores": 4, "connextTimeout": "5s"}]},
    });
    object["metadata"]["annotations"] =
        json!({"kubectl.kubernetes.io/last-applied-configuration": manifest.to_string()});
    found.mini_clusters = vec![from(object)];
    found.jobs = vec![from(job("old", None))];
    let expected =
        ["CurveCert 1 MiniCluster", "Dropped MiniCluster hpc/old spec.containers[0].cores", "SizeKept 1 MiniCluster"];
    assert_eq!(rules(&evaluate(&found), Severity::Changes), expected);
}

#[test]
fn what_is_tributarys_already_is_not_judged() {
    let mut found = installed();
    let spec = json!({"containers": [{"command": "app $(nproc)"}]});
    found.mini_clusters = vec![from(mini_cluster("lake", spec))];
    let mut job = job("lake", None);
    job["metadata"]["annotations"] = json!({"tributary.dev/boot-digest": "sha256:1"});
    found.jobs = vec![from(job)];
    let report = evaluate(&found);
    assert!(report.ready && report.findings.is_empty(), "{:?}", report.findings);
    assert_eq!(report.mini_clusters[0].after, report::After::Unchanged);
}

#[test]
fn each_trouble_with_the_cluster_breaks() {
    type Change = fn(&mut Found);
    let cases: [(Change, &str); 5] = [
        (|found| found.kubernetes = "v1.32.9+k3s1".into(), "KubernetesTooOld Kubernetes v1.32.9+k3s1"),
        (
            |found| {
                let status = found.definition.as_mut().unwrap().status.as_mut().unwrap();
                status.stored_versions = Some(vec!["v1alpha1".into(), "v1alpha2".into()]);
            },
            "StoredVersions CustomResourceDefinition miniclusters.flux-framework.org status.storedVersions",
        ),
        (
            |found| {
                let versions = &mut found.definition.as_mut().unwrap().spec.versions;
                let mut old = versions[0].clone();
                old.name = "v1alpha0".into();
                versions.push(old);
            },
            "ServedVersions CustomResourceDefinition miniclusters.flux-framework.org spec.versions",
        ),
        (
            |found| {
                found.definition.as_mut().unwrap().spec.conversion = Some(from(json!({"strategy": "Webhook"})));
            },
            "ConversionWebhook CustomResourceDefinition miniclusters.flux-framework.org spec.conversion",
        ),
        (
            |found| found.deployments.clear(),
            "OperatorElsewhere Lease of operator-system/operator-controller-manager-1_2",
        ),
    ];
    for (change, expected) in cases {
        let mut found = installed();
        change(&mut found);
        let report = evaluate(&found);
        assert_eq!(rules(&report, Severity::Breaks), [expected]);
        assert!(!report.ready);
    }
    assert!(evaluate(&installed()).ready);
}

#[test]
fn an_operator_without_leader_election_is_named_and_a_stopped_one_is_not_stopped_again() {
    let mut found = installed();
    let pod = found.deployments[0].spec.as_mut().unwrap().template.spec.as_mut().unwrap();
    pod.containers[0].args = None;
    pod.containers[0].image = Some("registry.example.org:5000/mirror/flux-operator@sha256:12".into());
    found.lease_holder = None;
    let report = evaluate(&found);
    assert_eq!(
        rules(&report, Severity::Changes),
        ["NoLeaderElection Deployment operator-system/operator-controller-manager"]
    );
    found.deployments[0].spec.as_mut().unwrap().replicas = Some(0);
    let report = evaluate(&found);
    assert!(report.findings.is_empty());
    assert!(!report.steps.iter().any(|step| step.command.contains("scale")), "{:?}", report.steps);
}

#[test]
fn a_helm_release_is_forgotten_not_uninstalled() {
    let mut found = installed();
    found.deployments[0].metadata.annotations =
        Some([("meta.helm.sh/release-name".to_owned(), "flux".to_owned())].into());
    let commands: Vec<String> = evaluate(&found).steps.into_iter().map(|step| step.command).collect();
    assert_eq!(
        commands.last().unwrap(),
        "kubectl --namespace operator-system delete secrets --selector owner=helm,name=flux"
    );
    assert!(!commands.iter().any(|command| command.contains("uninstall")));
}

/// Definitions that kubectl applied are no release's: helm refuses to install beside them what it would install itself.
#[test]
fn helm_installs_beside_the_definitions_that_were_applied() {
    let commands: Vec<String> = evaluate(&installed()).steps.into_iter().map(|step| step.command).collect();
    let at = |begin: &str| commands.iter().position(|command| command.starts_with(begin)).unwrap();
    assert!(at("kubectl apply") < at("helm install"), "{commands:?}");
    assert!(commands[at("helm install")].ends_with(" --set crds.enabled=false"), "{commands:?}");
}

#[test]
fn the_guide_shows_these_commands() {
    let guide = include_str!("../../../../../src/guide/migrating.md");
    for step in evaluate(&installed()).steps {
        assert!(guide.contains(&format!("$ {}\n", step.command)), "{}", step.command);
    }
    let shown = guide.lines().filter_map(|line| line.strip_prefix("$ "));
    let printed: Vec<String> = evaluate(&installed()).steps.into_iter().map(|step| step.command).collect();
    let unknown: Vec<&str> = shown.filter(|line| !printed.iter().any(|command| command == line)).collect();
    assert_eq!(unknown, ["agentctl migrate check"]);
}
