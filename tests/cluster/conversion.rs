//! MiniClusters of v1alpha1: the API server asks the agent's webhook, and the agent runs them.

use k8s_openapi::api::core::v1::{ConfigMap, Event, Secret, Service};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{
    Api, ApiResource, DeleteParams, DynamicObject, GroupVersionKind, ListParams, Patch, PatchParams, PostParams,
};
use kube::{Client, CustomResourceExt, Resource, ResourceExt};
use serde_json::{Value, json};
use tributary::api::labels::condition;
use tributary::api::minicluster::MiniCluster;
use tributary::api::v1alpha1::V1ALPHA1;
use tributary_tests::corpus::older_documents;
use tributary_tests::eventually::eventually;
use tributary_tests::federation::{SYSTEM, apply_crds};
use tributary_tests::metrics::shown;
use tributary_tests::scenario::{Place, interactive};

use crate::shared::{alone, places};

/// Of the corpus, as few as show every part of the type.
const EXAMPLES: [&str; 7] =
    ["claimed-volume", "job-tree", "restful-proxied", "restful-screening", "restful-tenants", "scaled", "solver"];

/// One of them asks for a volume.
const WITH_VOLUME: &str = "job-tree";

pub(crate) fn older_kind() -> ApiResource {
    ApiResource::from_gvk(&GroupVersionKind::gvk("flux-framework.org", "v1alpha1", "MiniCluster"))
}

/// MiniClusters of a place in v1alpha1.
fn older(place: &Place) -> Api<DynamicObject> {
    Api::namespaced_with(place.client.clone(), &place.namespace, &older_kind())
}

async fn written(place: &Place, name: &str, spec: &Value) -> DynamicObject {
    let object = json!({"apiVersion": V1ALPHA1, "kind": "MiniCluster",
        "metadata": {"name": name, "namespace": place.namespace}, "spec": spec});
    let object: DynamicObject = serde_json::from_value(object).unwrap();
    older(place).create(&PostParams::default(), &object).await.unwrap_or_else(|error| panic!("{name}: {error}"))
}

async fn definition(client: &Client) -> CustomResourceDefinition {
    Api::all(client.clone()).get(MiniCluster::crd_name()).await.unwrap()
}

/// The bundle that the API server trusts, once somebody converts.
pub(crate) async fn converted(client: &Client) -> Vec<u8> {
    eventually("the definition names a webhook", async || {
        let conversion = definition(client).await.spec.conversion;
        let webhook = conversion.and_then(|conversion| conversion.webhook);
        let bundle = webhook.and_then(|webhook| webhook.client_config?.ca_bundle);
        bundle.map(|bundle| bundle.0).ok_or("it does not")
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn v1alpha1_is_served_by_the_agents() {
    let federation = alone().await;
    let [east, ..] = places(&federation, "conversion").await;
    let bundle = converted(&east.client).await;

    the_corpus_is_stored_and_runs(&east).await;
    edits_of_one_version_are_seen_in_the_other(&east).await;
    who_writes_no_command_gets_the_restful_server(&east).await;

    let shown = shown(federation.agent(0).health).await.unwrap();
    assert!(shown["tributary_webhook_requests_total{outcome=\"converted\"}"] >= EXAMPLES.len() as f64, "{shown:#?}");
    assert!(shown["tributary_webhook_certificate_expires_seconds"] > shown["tributary_identity_expires_seconds"]);

    // A chart that is upgraded says nothing of conversion, and takes nothing of it away.
    apply_crds(&east.client).await.unwrap();
    assert_eq!(definition(&east.client).await.spec.conversion.unwrap().strategy, "Webhook");
    // Whoever does take it away finds it written again; and so does whoever removes the certificate.
    let crds: Api<CustomResourceDefinition> = Api::all(east.client.clone());
    let patch = Patch::Merge(json!({"spec": {"conversion": {"strategy": "None", "webhook": null}}}));
    crds.patch(MiniCluster::crd_name(), &PatchParams::default(), &patch).await.unwrap();
    assert_eq!(converted(&east.client).await, bundle);
    let secrets: Api<Secret> = Api::namespaced(east.client.clone(), SYSTEM);
    secrets.delete("tributary-webhook", &DeleteParams::default()).await.unwrap();
    eventually("the API server trusts a new certificate", async || {
        if converted(&east.client).await == bundle { Err("it is the old one") } else { Ok(()) }
    })
    .await;
    eventually("conversion goes on with it", async || {
        older(&east).list(&ListParams::default()).await.map(drop).map_err(|error| error.to_string())
    })
    .await;

    // Without a webhook there is no v1alpha1, and nothing else is missing.
    let before = east.mini_clusters().list(&ListParams::default()).await.unwrap().items;
    federation.agent(0).stop(&federation.group).await.unwrap();
    let error = older(&east).get("solver").await.unwrap_err().to_string();
    assert!(error.contains("conversion webhook"), "{error}");
    let after = east.mini_clusters().list(&ListParams::default()).await.unwrap().items;
    let specs = |list: &[MiniCluster]| list.iter().map(|one| (one.name_any(), one.spec.clone())).collect::<Vec<_>>();
    assert_eq!(specs(&before), specs(&after));
    federation.agent(0).start(&federation.group).unwrap();
    eventually("v1alpha1 is back", async || {
        older(&east).get("solver").await.map(drop).map_err(|error| error.to_string())
    })
    .await;
    for name in EXAMPLES {
        east.delete(name).await;
    }
    federation.connected().await;
}

async fn the_corpus_is_stored_and_runs(east: &Place) {
    let documents = older_documents().unwrap();
    for name in EXAMPLES {
        let document = documents.iter().find(|one| one.file == format!("v1alpha1/{name}.yaml")).unwrap();
        let made = written(east, name, &document.value["spec"]).await;
        let again = older(east).get(name).await.unwrap();
        assert_eq!(again.data["spec"], made.data["spec"], "{name}");
        // What users wrote is all there; the API server adds defaults.
        let lost = missing(&document.value["spec"], &made.data["spec"]);
        assert!(lost.is_empty(), "{name}: {lost:?}");
        let stored = east.mini_clusters().get(name).await.unwrap();
        assert_eq!(i64::from(stored.spec.size()), made.data["spec"]["size"].as_i64().unwrap(), "{name}");
        assert!(stored.spec.flux.container.disable, "{name}: its image has Flux");
    }
    // Nobody allows volumes here, and that holds up no other.
    let told = east.condition(WITH_VOLUME, condition::VALID, "False", "VolumeNotAllowed").await;
    assert!(told.contains("spec.volumes.data.capacity: no PersistentVolumes are made in this cluster"), "{told}");
    for name in EXAMPLES.into_iter().filter(|name| *name != WITH_VOLUME) {
        eventually(format!("{name} has a Job"), async || {
            let status = east.status(name).await.unwrap_or_default();
            let job = east.jobs().get_opt(name).await.map_err(|error| error.to_string())?;
            job.map(drop).ok_or_else(|| format!("{status:?}"))
        })
        .await;
    }
    eventually("v1alpha1 shows the status", async || {
        let shown = older(east).get("scaled").await.map_err(|error| error.to_string())?;
        let status = &shown.data["status"];
        if status["incarnation"].is_string() && status["size"].is_i64() { Ok(()) } else { Err(status.to_string()) }
    })
    .await;
}

/// `EXAMPLES` has one: its Secret and Service are there, and nobody's else Secret is touched.
async fn who_writes_no_command_gets_the_restful_server(east: &Place) {
    const NAME: &str = "restful-tenants";
    let secrets: Api<Secret> = Api::namespaced(east.client.clone(), &east.namespace);
    let owner = east.mini_clusters().get(NAME).await.unwrap();
    let secret = secrets.get(&format!("{NAME}-restful")).await.unwrap();
    assert_eq!(secret.owner_references()[0].uid, owner.uid().unwrap());
    let text = |secret: &Secret, key: &str| String::from_utf8(secret.data.as_ref().unwrap()[key].0.clone()).unwrap();
    let token = text(&secret, "token");
    let names: Vec<String> = owner.spec.users.iter().map(|user| user.name.clone()).collect();
    let users = text(&secret, "users");
    assert_eq!(users.lines().filter_map(|line| line.split(' ').next()).collect::<Vec<_>>(), names);
    let services: Api<Service> = Api::namespaced(east.client.clone(), &east.namespace);
    let service = services.get(&format!("{NAME}-restful")).await.unwrap().spec.unwrap();
    assert_eq!(service.ports.unwrap()[0].port, 5000);

    // Nothing but the Secret has the token.
    let all = ListParams::default();
    let config_maps: Api<ConfigMap> = Api::namespaced(east.client.clone(), &east.namespace);
    let events: Api<Event> = Api::namespaced(east.client.clone(), &east.namespace);
    let shown = [
        serde_json::to_string(&east.mini_clusters().list(&all).await.unwrap().items).unwrap(),
        serde_json::to_string(&east.jobs().list(&all).await.unwrap().items).unwrap(),
        serde_json::to_string(&config_maps.list(&all).await.unwrap().items).unwrap(),
        serde_json::to_string(&services.list(&all).await.unwrap().items).unwrap(),
        serde_json::to_string(&events.list(&all).await.unwrap().items).unwrap(),
        serde_json::to_string(&east.pods().list(&all).await.unwrap().items).unwrap(),
    ];
    assert!(shown[0].contains(NAME) && !shown.concat().contains(&token));

    // It is the same in the next incarnation, and somebody else's Secret is never written.
    let first = east.jobs().get(NAME).await.unwrap().uid();
    east.jobs().delete(NAME, &DeleteParams::background()).await.unwrap();
    eventually("the next incarnation runs", async || {
        let job = east.jobs().get_opt(NAME).await.map_err(|error| error.to_string())?;
        if job.is_some_and(|job| job.uid() != first) { Ok(()) } else { Err("not yet".to_owned()) }
    })
    .await;
    assert_eq!(secrets.get(&format!("{NAME}-restful")).await.unwrap().data, secret.data);
    let theirs = json!({"metadata": {"name": "theirs-restful"}, "stringData": {"token": "theirs"}});
    secrets.create(&PostParams::default(), &serde_json::from_value(theirs).unwrap()).await.unwrap();
    written(east, "theirs", &json!({"containers": [{"image": "x"}]})).await;
    eventually("it says whose the name is", async || {
        let status = east.status("theirs").await.unwrap_or_default();
        let text = serde_json::to_string(&status).unwrap();
        if text.contains("NameTaken") && text.contains("theirs-restful") { Ok(()) } else { Err(text) }
    })
    .await;
    assert_eq!(text(&secrets.get("theirs-restful").await.unwrap(), "token"), "theirs");
    assert!(east.jobs().get_opt("theirs").await.unwrap().is_none());
    east.delete("theirs").await;
}

/// Fields of `wanted` that `found` has not, or has with another value.
fn missing(wanted: &Value, found: &Value) -> Vec<String> {
    match (wanted, found) {
        (Value::Object(wanted), Value::Object(found)) => {
            let below = wanted.iter().flat_map(|(key, value)| match found.get(key) {
                Some(found) => missing(value, found),
                None => vec![key.clone()],
            });
            below.collect()
        }
        (Value::Array(wanted), Value::Array(found)) if wanted.len() == found.len() => {
            wanted.iter().zip(found).flat_map(|(wanted, found)| missing(wanted, found)).collect()
        }
        _ if wanted == found => Vec::new(),
        _ => vec![wanted.to_string()],
    }
}

async fn edits_of_one_version_are_seen_in_the_other(east: &Place) {
    // v1alpha1 → v1alpha2: what was edited goes, what is beside it stays.
    let spec = json!({"suspend": true, "users": [{"name": "ann"}], "podLabels": {"a": "1"}, "interactive": true,
        "containers": [{"image": "x", "fluxOptionFlags": "-o a", "exports": {"A": "1"}}]});
    written(east, "edited", &spec).await;
    east.change("edited", json!({"flux": {"optionFlags": "-o b"}})).await;
    let shown = older(east).get("edited").await.unwrap().data["spec"].take();
    assert_eq!(shown["flux"]["optionFlags"], "-o b");
    assert_eq!(shown["containers"][0].get("fluxOptionFlags"), None);
    assert_eq!((&shown["users"], &shown["podLabels"]), (&json!([{"name": "ann"}]), &json!({"a": "1"})));

    // v1alpha2 → v1alpha1 → v1alpha2: whoever knows v1alpha1 alone takes nothing away.
    let mut spec = interactive(1);
    spec["flux"] = json!({"drainSeconds": 7, "bursting": {"network": {"type": "Tunnel"}, "clusters": [{"size": 2, "peer": "nobody"}]}});
    spec["updates"] = json!("Recreate");
    east.create("newer", spec).await;
    let stored = east.mini_clusters().get("newer").await.unwrap();
    let replaced = eventually("v1alpha1 is replaced", async || {
        let mut shown = older(east).get("newer").await.map_err(|error| error.to_string())?;
        shown.data["spec"]["jobLabels"] = json!({"team": "hydrology"});
        let replaced = older(east).replace("newer", &PostParams::default(), &shown).await;
        replaced.map_err(|error| error.to_string())
    })
    .await;
    assert!(replaced.data["spec"]["flux"].get("drainSeconds").is_none(), "v1alpha1 has no such field");
    let mut wanted = stored.spec.clone();
    wanted.job_labels = [("team".to_owned(), "hydrology".to_owned())].into();
    let now = east.mini_clusters().get("newer").await.unwrap();
    assert_eq!(now.spec, wanted);
    assert_eq!(now.meta().uid, stored.meta().uid);
    for name in ["edited", "newer"] {
        east.delete(name).await;
    }
}
