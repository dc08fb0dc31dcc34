//! What the pages do to a release that is installed: every `console helm` fence, word for word.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{ConfigMap, Service};
use k8s_openapi::api::networking::v1::NetworkPolicy;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::Client;
use kube::api::{Api, ListParams, Patch, PatchParams};
use serde_json::json;
use tributary_tests::chart;
use tributary_tests::eventually::eventually;
use tributary_tests::federation::SYSTEM;

use crate::chart::repository;

/// The release `tributary` of a cluster is upgraded as the pages say, and uninstalled at last. No agent runs any more.
pub(crate) async fn is_upgraded_and_uninstalled(client: &Client, kubeconfig: &Path) {
    prometheus_operator(client).await;
    let (upgrades, ends): (Vec<_>, Vec<_>) = commands().into_iter().partition(|line| line.contains(" upgrade "));
    assert!(upgrades.len() >= 5 && ends.len() == 1, "{upgrades:#?} {ends:#?}");
    let older = tempfile::tempdir().unwrap();
    before_there_were_traces(older.path());
    let to_older = upgrades[0].split_whitespace().map(|word| match word {
        "charts/tributary" => older.path().to_str().unwrap(),
        word => word,
    });
    helm(&to_older.collect::<Vec<_>>().join(" "), kubeconfig);
    for line in &upgrades {
        helm(line, kubeconfig);
    }
    // `--reset-then-reuse-values`: what one of them asked for is still asked for after the last one, and what no older
    // chart knew is as in the new one. With `--reuse-values` there would be nothing where templates look for `traces`.
    let list = ListParams::default();
    let maps = Api::<ConfigMap>::namespaced(client.clone(), SYSTEM).list(&list).await.unwrap();
    let configuration = maps.items.iter().find_map(|map| map.data.as_ref()?.get("tributary.toml")).unwrap();
    assert!(configuration.contains("debug") && configuration.contains("otel-collector"), "{configuration}");
    let policies = Api::<NetworkPolicy>::namespaced(client.clone(), SYSTEM).list(&list).await.unwrap();
    assert_eq!(policies.items.len(), 1);
    let service = Api::<Service>::namespaced(client.clone(), SYSTEM).get("tributary-federation").await.unwrap();
    assert_eq!(service.spec.unwrap().type_.as_deref(), Some("LoadBalancer"));

    helm(&ends[0], kubeconfig);
    let deployments = Api::<Deployment>::namespaced(client.clone(), SYSTEM);
    eventually("nothing runs", async || {
        let left = deployments.list(&list).await.map_err(|error| error.to_string())?.items.len();
        if left == 0 { Ok(()) } else { Err(format!("{left} Deployments")) }
    })
    .await;
    // With a definition, everything of its kind would go.
    let kinds = Api::<CustomResourceDefinition>::all(client.clone()).list_metadata(&list).await.unwrap();
    let kinds: Vec<_> = kinds.items.into_iter().filter_map(|kind| kind.metadata.name).collect();
    for definition in tributary::api::crds() {
        let name = definition.metadata.name.unwrap();
        assert!(kinds.contains(&name), "{name} is gone with the release: {kinds:?}");
    }
    kinds_of_nobody_do_not_grow_old(client, kubeconfig).await;
}

/// The release is gone, and its kinds are not: the next one, of another name, uses them as long as they are of its version.
async fn kinds_of_nobody_do_not_grow_old(client: &Client, kubeconfig: &Path) {
    let next = |more: &[&str]| {
        let install = ["install", "next", "charts/tributary", "--kube-context", "east", "--namespace", SYSTEM];
        let dry = ["--dry-run=server", "--set", "cluster.name=east"];
        let output = chart::helm(&repository(), Some(kubeconfig), &[&install[..], &dry, more].concat()).unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        if output.status.success() { Ok(text(&output.stdout)) } else { Err(text(&output.stderr)) }
    };
    let kind = "\nkind: CustomResourceDefinition\n";
    let same = next(&[]).unwrap();
    assert!(same.contains("were left by release tributary") && !same.contains(kind), "{same}");
    let api = Api::<CustomResourceDefinition>::all(client.clone());
    let older = Patch::Merge(json!({"metadata": {"labels": {"helm.sh/chart": "tributary-crds-0.0.9"}}}));
    for definition in tributary::api::crds() {
        api.patch(&definition.metadata.name.unwrap(), &PatchParams::default(), &older).await.unwrap();
    }
    let refused = next(&[]).expect_err("kinds of another version are not passed over in silence");
    assert!(refused.contains("must equal \"next\": current value is \"tributary\""), "{refused}");
    let taken = next(&["--take-ownership"]).unwrap();
    assert_eq!(taken.matches(kind).count(), tributary::api::crds().len());
}

/// The chart as an older version had it: without a section of values.
fn before_there_were_traces(directory: &Path) {
    let chart = repository().join("charts/tributary");
    let copied = Command::new("cp").arg("-R").arg(chart.join(".")).arg(directory).status().unwrap();
    assert!(copied.success());
    let (values, template) = (directory.join("values.yaml"), directory.join("templates/config.yaml"));
    let text = std::fs::read_to_string(&values).unwrap();
    let (before, rest) = text.split_once("\ntraces:\n").expect("the chart has traces");
    let after = rest.split_once("\n\n").expect("something comes after traces").1;
    std::fs::write(values, format!("{before}\n{after}")).unwrap();
    let text = std::fs::read_to_string(&template).unwrap();
    assert!(text.contains("with .Values.traces.endpoint"));
    std::fs::write(template, text.replace("with .Values.traces.endpoint", "with \"\"")).unwrap();
}

/// Lines of the fences, of each page in their order.
fn commands() -> Vec<String> {
    let guide = std::fs::read_dir(repository().join("src/guide")).unwrap();
    let pages: BTreeMap<_, _> = guide
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "md"))
        .map(|path| (path.clone(), std::fs::read_to_string(path).unwrap()))
        .collect();
    let fences = pages.values().flat_map(|text| text.split("```console helm\n").skip(1));
    let fences = fences.map(|rest| rest.split("\n```").next().unwrap());
    fences.flat_map(str::lines).filter_map(|line| line.strip_prefix("$ ")).map(str::to_owned).collect()
}

fn helm(line: &str, kubeconfig: &Path) {
    let words: Vec<&str> = line.split_whitespace().collect();
    assert_eq!(words[0], "helm", "nobody knows how to do this: {line}");
    let output = chart::helm(&repository(), Some(kubeconfig), &words[1..]).unwrap();
    assert!(output.status.success(), "{line}\n{}", String::from_utf8_lossy(&output.stderr));
}

/// The kinds of the Prometheus operator that the chart makes objects of.
async fn prometheus_operator(client: &Client) {
    for (plural, kind) in [("servicemonitors", "ServiceMonitor"), ("prometheusrules", "PrometheusRule")] {
        let schema = json!({"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}});
        let definition = json!({
            "apiVersion": "apiextensions.k8s.io/v1",
            "kind": "CustomResourceDefinition",
            "metadata": {"name": format!("{plural}.monitoring.coreos.com")},
            "spec": {
                "group": "monitoring.coreos.com",
                "scope": "Namespaced",
                "names": {"plural": plural, "kind": kind},
                "versions": [{"name": "v1", "served": true, "storage": true, "schema": schema}],
            },
        });
        chart::apply(client, &definition).await.unwrap();
        let definitions = Api::<CustomResourceDefinition>::all(client.clone());
        eventually(format!("{kind} is served"), async || {
            let found = definitions.get(&format!("{plural}.monitoring.coreos.com")).await;
            let conditions = found.map_err(|error| error.to_string())?.status.and_then(|status| status.conditions);
            let established = conditions.iter().flatten().any(|one| one.type_ == "Established" && one.status == "True");
            if established { Ok(()) } else { Err("not yet".to_owned()) }
        })
        .await;
    }
}
