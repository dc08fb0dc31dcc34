//! What the pages do to a release that is installed, and on clusters where none is any more: every `console helm` fence, word
//! for word.

use std::path::Path;
use std::process::Command;

use k8s_openapi::api::admissionregistration::v1::ValidatingAdmissionPolicy;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{ConfigMap, Service};
use k8s_openapi::api::networking::v1::NetworkPolicy;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::Client;
use kube::api::{Api, ListParams, Patch, PatchParams};
use serde_json::json;
use tributary_tests::chart;
use tributary_tests::eventually::eventually;
use tributary_tests::federation::{SYSTEM, make_namespace};
use tributary_tests::pages;
use tributary_tests::scenario::{Place, interactive};

use crate::chart::repository;
use crate::corpus::serve_other_kinds;

/// The release `tributary` of a cluster is upgraded as the pages say, and uninstalled at last. No agent runs any more.
pub(crate) async fn is_upgraded_and_uninstalled(client: &Client, kubeconfig: &Path) {
    serve_other_kinds(client).await;
    let commands = pages::OF_A_RELEASE.into_iter().flat_map(|page| pages::commands(page, None, "console helm"));
    let of_helm = commands.filter(|line| line.starts_with("helm "));
    let (upgrades, ends): (Vec<_>, Vec<_>) = of_helm.partition(|line| line.contains(" upgrade "));
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
    let configuration = configuration(client).await;
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
    assert!(same.contains("agentctl crds | kubectl apply --server-side --force-conflicts -f -"), "{same}");
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

/// The pages whose commands begin with an installation of their own, or end everything. No agent runs any more, and no release
/// is in the first cluster.
pub(crate) async fn other_pages(east: &Client, west: &Client, kubeconfig: &Path) {
    let [of_chart, of_sites, of_cert_manager, of_gitops, leaving, of_kinds] =
        pages::ON_THEIR_OWN.map(|page| pages::commands(page, None, "console helm"));
    let [install, upgrade, uninstall] = &of_chart[..] else { panic!("{of_chart:#?}") };
    carry_out(&[install, upgrade], kubeconfig).await;
    let deployments = Api::<Deployment>::namespaced(east.clone(), SYSTEM);
    assert_eq!(deployments.get("tributary").await.unwrap().spec.unwrap().replicas, Some(2));
    carry_out(&[uninstall], kubeconfig).await;
    sites(west, &of_sites, kubeconfig).await;
    the_identity_from_cert_manager(east, &of_cert_manager, kubeconfig).await;
    from_a_repository(east, &of_gitops, kubeconfig).await;
    // The release is gone already.
    let rest: Vec<_> = leaving.into_iter().filter(|line| line.starts_with("kubectl ")).collect();
    leave(east, &rest, kubeconfig).await;

    // What is left is a cluster with the definition of MiniClusters alone: the chart of the kinds brings the others.
    let [install, upgrade, uninstall] = &of_kinds[..] else { panic!("{of_kinds:#?}") };
    carry_out(&[install, upgrade], kubeconfig).await;
    let kinds = Api::<CustomResourceDefinition>::all(east.clone());
    let owner = async |name: &str| {
        let found = kinds.get(&format!("{name}.tributary.dev")).await.unwrap().metadata.annotations;
        found.unwrap_or_default().remove("meta.helm.sh/release-name")
    };
    assert_eq!(owner("bursts").await.as_deref(), Some("tributary-crds"));
    carry_out(&[uninstall], kubeconfig).await;
    assert_eq!(owner("bursts").await.as_deref(), Some("tributary-crds"), "the kinds stay");
}

/// Values for places that are not here, on one cluster after the other release: what an API server can say against them, it says.
async fn sites(client: &Client, lines: &[String], kubeconfig: &Path) {
    let here = tempfile::tempdir().unwrap();
    let uninstall = |context: &str| format!("helm uninstall tributary --kube-context {context} --namespace {SYSTEM}");
    carry_out(&[uninstall("west")], kubeconfig).await;
    let mut types = Vec::new();
    for line in lines {
        let words: Vec<&str> = line.split_whitespace().collect();
        let context = crate::chart::after(&words, "--kube-context");
        let kubeconfig = &under_another_name(kubeconfig, context, here.path());
        carry_out(&[line], kubeconfig).await;
        let service = Api::<Service>::namespaced(client.clone(), SYSTEM).get("tributary-federation").await.unwrap();
        let spec = service.spec.unwrap();
        let port = spec.ports.unwrap().into_iter().find_map(|port| port.node_port);
        types.push((context.to_owned(), spec.type_.unwrap(), port == Some(30946)));
        carry_out(&[uninstall(context)], kubeconfig).await;
    }
    let type_of = |context: &str, type_: &str, fixed| (context.to_owned(), type_.to_owned(), fixed);
    let wanted = [
        type_of("eks", "LoadBalancer", false),
        type_of("gke", "LoadBalancer", false),
        type_of("campus", "NodePort", true),
    ];
    assert_eq!(types, wanted);
}

/// A kubeconfig in which the context `west` has another name.
fn under_another_name(kubeconfig: &Path, name: &str, directory: &Path) -> std::path::PathBuf {
    let mut document: serde_json::Value = serde_json::from_slice(&std::fs::read(kubeconfig).unwrap()).unwrap();
    let contexts = document["contexts"].as_array_mut().unwrap();
    contexts.iter_mut().find(|context| context["name"] == "west").unwrap()["name"] = name.into();
    let path = directory.join(name);
    std::fs::write(&path, document.to_string()).unwrap();
    path
}

async fn the_identity_from_cert_manager(client: &Client, lines: &[String], kubeconfig: &Path) {
    carry_out(lines, kubeconfig).await;
    let configuration = configuration(client).await;
    assert!(configuration.contains("research"), "the agent insists on the Certificate's trust domain: {configuration}");
    carry_out(&[format!("helm uninstall tributary --kube-context east --namespace {SYSTEM}")], kubeconfig).await;
}

/// What Flux CD and Argo CD are given; they are not here to act on it.
async fn from_a_repository(client: &Client, lines: &[String], kubeconfig: &Path) {
    for namespace in ["flux-system", "argocd"] {
        make_namespace(client, namespace).await.unwrap();
    }
    assert!(lines.len() >= 2, "{lines:?}");
    carry_out(lines, kubeconfig).await;
}

/// Nothing of Tributary is left but the definition of MiniClusters, and they are.
async fn leave(client: &Client, lines: &[String], kubeconfig: &Path) {
    let kinds = Api::<CustomResourceDefinition>::all(client.clone());
    let strategy = async || {
        let definition = kinds.get("miniclusters.flux-framework.org").await.unwrap();
        definition.spec.conversion.map(|conversion| conversion.strategy).unwrap_or_default()
    };
    // A webhook that nobody answers any more.
    assert_eq!(strategy().await, "Webhook");
    let place = Place { client: client.clone(), namespace: "default".to_owned() };
    place.create("stays", interactive(1)).await;
    carry_out(lines, kubeconfig).await;
    assert_eq!(strategy().await, "None");
    let left = kinds.list_metadata(&ListParams::default()).await.unwrap().items;
    let left: Vec<_> = left.into_iter().filter_map(|kind| kind.metadata.name).collect();
    assert!(!left.iter().any(|name| name.ends_with(".tributary.dev")), "{left:?}");
    let guards = Api::<ValidatingAdmissionPolicy>::all(client.clone()).list(&ListParams::default()).await.unwrap();
    assert!(guards.items.is_empty(), "{:?}", guards.items);
    place.mini_clusters().get("stays").await.unwrap();
}

/// The configuration that the release has for its agents.
async fn configuration(client: &Client) -> String {
    let maps = Api::<ConfigMap>::namespaced(client.clone(), SYSTEM).list(&ListParams::default()).await.unwrap();
    maps.items.iter().find_map(|map| map.data.as_ref()?.get("tributary.toml").cloned()).unwrap()
}

/// Lines of pages. Whose context is not said is that of the first cluster.
async fn carry_out<Line: AsRef<str>>(lines: &[Line], kubeconfig: &Path) {
    for line in lines {
        let line = line.as_ref();
        let named = |option: &str| line.split_whitespace().any(|word| word == option);
        match line.split_whitespace().next() {
            Some("helm") if named("--kube-context") => helm(line, kubeconfig),
            Some("helm") => helm(&format!("{line} --kube-context east"), kubeconfig),
            Some("kubectl") => {
                let context = if named("--context") { "" } else { " --context east" };
                chart::kubectl(&repository(), kubeconfig, &format!("{line}{context}")).await.unwrap();
            }
            _ => panic!("nobody knows how to do this: {line}"),
        }
    }
}

fn helm(line: &str, kubeconfig: &Path) {
    let words: Vec<&str> = line.split_whitespace().collect();
    let output = chart::helm(&repository(), Some(kubeconfig), &words[1..]).unwrap();
    assert!(output.status.success(), "{line}\n{}", String::from_utf8_lossy(&output.stderr));
}
