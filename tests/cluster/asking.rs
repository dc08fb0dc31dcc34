//! What `agentctl` answers about bursts that other tests have made: no cluster of its own.

use std::collections::BTreeSet;

use serde_json::{Value, json};
use tributary_agentctl::document::{API_VERSION, schemas};
use tributary_tests::agent::AGENT_USER;
use tributary_tests::agentctl::document;
use tributary_tests::documents;
use tributary_tests::eventually::eventually;
use tributary_tests::federation::Federation;
use tributary_tests::scenario::Place;

/// What a command answers as a document, asked with all rights in the first cluster.
async fn answer(federation: &Federation, arguments: &[&str]) -> Value {
    let kubeconfig = federation.clusters()[0].kubeconfig_in(AGENT_USER, Some("system:masters")).unwrap();
    let endpoint = format!("http://{}", federation.agent(0).admin);
    let document = document(&kubeconfig, &[arguments, &["--endpoint", &endpoint]].concat()).await.unwrap();
    documents::fits(&document).unwrap();
    document
}

/// Each command that has documents, asked while there is much to tell: [`answer`] holds them against their schemas.
pub(crate) async fn every_document(federation: &Federation, namespace: &str, root: &str) {
    let commands = [
        ("Status", "status"),
        ("PeerList", "peers"),
        ("PeerList", "peer list"),
        ("BurstList", "bursts"),
        ("MiniClusterList", "minicluster list"),
        ("MiniCluster", &format!("minicluster describe -n {namespace} {root}")),
        ("Check", "check"),
        ("MigrationCheck", "migrate check"),
        ("TokenList", "token list"),
        ("Usage", "usage"),
        ("Version", "version"),
    ];
    for (kind, command) in commands {
        let document = answer(federation, &command.split(' ').collect::<Vec<_>>()).await;
        assert_eq!((&document["apiVersion"], &document["kind"]), (&API_VERSION.into(), &kind.into()));
        let items = document.get("items").filter(|_| kind != "TokenList");
        assert!(items.is_none_or(|items| !items.as_array().unwrap().is_empty()), "{document:#}");
    }
    // `why` and `plan` are asked by their own tests, `demo` by its own.
    let asked = commands.iter().map(|(kind, _)| *kind).chain(["Explanation", "Plan", "Demo"]);
    let all: BTreeSet<_> = schemas().iter().map(|schema| schema.kind).collect();
    assert_eq!(asked.collect::<BTreeSet<_>>(), all);
}

/// What is planned for a MiniCluster of this spec.
pub(crate) async fn plan(federation: &Federation, namespace: &str, name: &str, spec: &Value) -> Value {
    let manifest = json!({
        "apiVersion": "flux-framework.org/v1alpha2", "kind": "MiniCluster",
        "metadata": {"name": name, "namespace": namespace}, "spec": spec,
    });
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(&file, manifest.to_string()).unwrap();
    // A peer that cannot be heard for a moment gets nothing.
    eventually("all of it has a place", async || {
        let plan = answer(federation, &["plan", "-f", &file.path().display().to_string()]).await;
        let mini_cluster = plan["miniClusters"][0].clone();
        let clusters = mini_cluster["clusters"].as_array();
        let named = clusters.is_some_and(|all| all.iter().all(|one| one["cluster"].is_string()));
        let whole = plan["possible"] == true && plan.get("unchecked").is_none() && named;
        if whole { Ok(mini_cluster) } else { Err(format!("{plan:#}")) }
    })
    .await
}

/// Everything that was planned is there, on the clusters that it was planned for.
pub(crate) async fn as_planned(plan: &Value, places: &[(&str, &Place)]) {
    let mut found = Vec::new();
    for cluster in plan["clusters"].as_array().unwrap() {
        let (_, place) = places.iter().find(|(name, _)| cluster["cluster"] == *name).unwrap();
        for object in cluster["objects"].as_array().unwrap() {
            let (kind, name) = (object["kind"].as_str().unwrap(), object["name"].as_str().unwrap());
            let there = match kind {
                "ConfigMap" => place.config_maps().get_opt(name).await.unwrap().is_some(),
                "Secret" => place.secrets().get_opt(name).await.unwrap().is_some(),
                "Service" => place.services().get_opt(name).await.unwrap().is_some(),
                "Job" => place.jobs().get_opt(name).await.unwrap().is_some(),
                "Burst" => place.bursts().get_opt(name).await.unwrap().is_some(),
                "HostedBurst" => place.hosted().get_opt(name).await.unwrap().is_some(),
                "MiniCluster" => place.mini_clusters().get_opt(name).await.unwrap().is_some(),
                // Their names come from a pattern, or from an address family.
                "Pods" | "EndpointSlice" => continue,
                other => panic!("nobody looks for a planned {other}"),
            };
            assert!(there, "{kind} {name} on {}", cluster["cluster"]);
            found.push(kind.to_owned());
        }
    }
    assert!(found.len() > 10, "{found:?}");
}

/// A MiniCluster whose bursts are ready lacks nothing.
pub(crate) async fn why_of_a_ready_one(federation: &Federation, namespace: &str, root: &str) {
    let why = answer(federation, &["why", "-n", namespace, root]).await;
    assert_eq!((&why["ready"], why.get("unmet"), why.get("unseen")), (&Value::Bool(true), None, None), "{why:#}");
}

/// The reason why a burst is not ready, asked of the burst and of its MiniCluster. That lacks nothing if the burst is asleep.
pub(crate) async fn why_not(federation: &Federation, namespace: &str, root: &str, burst: &str) -> String {
    let ask = async |name: &str| answer(federation, &["why", "-n", namespace, name]).await["unmet"].take();
    let (of_burst, of_root) = (ask(&format!("burst/{burst}")).await, ask(root).await);
    let lacks = if of_burst["reason"] == "Asleep" { &Value::Null } else { &of_burst };
    assert_eq!((&of_root["reason"], &of_root["hint"]), (&lacks["reason"], &lacks["hint"]));
    of_burst["reason"].as_str().unwrap_or_default().to_owned()
}
