//! What rendering makes of the corpus and of every field, judged by a real API server.

use futures::stream::{self, StreamExt as _};
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::core::v1::ServiceAccount;
use k8s_openapi::api::node::v1::RuntimeClass;
use k8s_openapi::api::scheduling::v1::PriorityClass;
use kube::api::{Api, Patch, PatchParams, PostParams};
use kube::{Resource, ResourceExt as _};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::json;
use tributary::api::minicluster::MiniCluster;
use tributary::render::{Context, Rendered, render};
use tributary_tests::fields;
use tributary_tests::scenario::Place;
use tributary_tests::upstream::with_examples;

use crate::shared::{places, together};

#[tokio::test(flavor = "multi_thread")]
async fn the_api_server_takes_every_object_that_is_rendered() {
    let federation = together().await;
    let [east, ..] = places(&federation, "rendered").await;
    let (mut wrong, mut taken) = (Vec::new(), 0);
    for document in with_examples("whether an API server takes what upstream's examples become").unwrap() {
        let mut mini_cluster: MiniCluster = serde_json::from_value(document.value).unwrap();
        mini_cluster.metadata.namespace = Some(east.namespace.clone());
        mini_cluster.metadata.uid = Some("7d5e1b1c-0000-4000-8000-000000000000".to_owned());
        let Ok(rendered) = render(&mini_cluster, &Context::default()) else { continue };
        wrong.extend(refused(&east, &rendered).await.into_iter().map(|error| format!("{}: {error}", document.file)));
        taken += 1;
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(taken > 55, "only {taken} files of the corpus were rendered");
}

/// What the API server says against these objects, in a dry run.
async fn refused(place: &Place, rendered: &Rendered) -> Vec<kube::Error> {
    let dry_run = PostParams { dry_run: true, ..PostParams::default() };
    let mut errors = Vec::new();
    let (client, namespace) = (&place.client, place.namespace.as_str());
    errors.extend(Api::namespaced(client.clone(), namespace).create(&dry_run, &rendered.config_map).await.err());
    errors.extend(Api::namespaced(client.clone(), namespace).create(&dry_run, &rendered.job).await.err());
    for service in &rendered.services {
        errors.extend(Api::namespaced(client.clone(), namespace).create(&dry_run, service).await.err());
    }
    for claim in &rendered.claims {
        errors.extend(Api::namespaced(client.clone(), namespace).create(&dry_run, claim).await.err());
    }
    for volume in &rendered.persistent_volumes {
        errors.extend(Api::all(client.clone()).create(&dry_run, volume).await.err());
    }
    if let Some(pod) = &rendered.service_pod {
        errors.extend(Api::namespaced(client.clone(), namespace).create(&dry_run, pod).await.err());
    }
    errors
}

/// Fields are set to one value each, and then as many as go together at once: all of it is taken, and applying it again
/// changes nothing.
#[tokio::test(flavor = "multi_thread")]
async fn the_api_server_takes_every_field_and_nothing_changes_when_it_is_applied_again() {
    let federation = together().await;
    let [east, ..] = places(&federation, "waters").await;
    prepare(&east).await;
    let cases = fields::cases().unwrap().into_iter();
    let cases = cases.filter(|case| case.generated.is_none() && case.refused.is_none());
    let errors = stream::iter(cases).map(|case| {
        let east = &east;
        async move {
            let rendered = render(&fields::lake(&case.after).unwrap(), &fields::context()).unwrap();
            let errors = refused(east, &rendered).await.into_iter();
            errors.map(|error| format!("{}: {error}", case.at)).collect::<Vec<_>>()
        }
    });
    let wrong = errors.buffer_unordered(16).concat().await;
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));

    let all = fields::lake(&fields::combined().unwrap()).unwrap();
    let first = render(&all, &fields::context()).unwrap();
    let versions = apply(&east, first).await;
    assert_eq!(apply(&east, render(&all, &fields::context()).unwrap()).await, versions);
}

/// What pods refer to and admission looks for.
async fn prepare(place: &Place) {
    let account = json!({ "metadata": { "name": "river" } });
    let runtime = json!({ "metadata": { "name": "gvisor" }, "handler": "runsc", "overhead": { "podFixed": { "memory": "120Mi" } } });
    let priority = json!({ "metadata": { "name": "high" }, "value": 1000 });
    let create = PostParams::default();
    let accounts = Api::<ServiceAccount>::namespaced(place.client.clone(), &place.namespace);
    accounts.create(&create, &serde_json::from_value(account).unwrap()).await.unwrap();
    let classes = Api::<RuntimeClass>::all(place.client.clone());
    classes.create(&create, &serde_json::from_value(runtime).unwrap()).await.unwrap();
    let priorities = Api::<PriorityClass>::all(place.client.clone());
    priorities.create(&create, &serde_json::from_value(priority).unwrap()).await.unwrap();
}

/// The versions that all objects have once they are applied.
async fn apply(place: &Place, rendered: Rendered) -> Vec<Option<String>> {
    let mut versions = vec![version(place, rendered.config_map).await];
    for service in rendered.services {
        versions.push(version(place, service).await);
    }
    versions.push(version(place, rendered.service_pod.unwrap()).await);
    versions.push(version(place, rendered.job).await);
    versions
}

async fn version<K>(place: &Place, mut object: K) -> Option<String>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
        + Clone
        + std::fmt::Debug
        + Serialize
        + DeserializeOwned,
{
    // There is no such MiniCluster, so the garbage collector would take it.
    object.meta_mut().owner_references = None;
    let api = Api::<K>::namespaced(place.client.clone(), &place.namespace);
    let params = PatchParams::apply("fields").force().validation_strict();
    let applied = api.patch(&object.name_any(), &params, &Patch::Apply(&object)).await.unwrap();
    // Kubernetes writes the status of Jobs and pods meanwhile; their generation counts changes of the rest.
    applied.meta().generation.map(|generation| generation.to_string()).or_else(|| applied.resource_version())
}
