//! The corpus, the project's examples, and upstream's where a checkout is there, on a real API server.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::{Api, Client, ResourceExt};
use serde_json::Value;
use tributary_tests::chart;
use tributary_tests::corpus::{examples, other_kinds};
use tributary_tests::eventually::eventually;
use tributary_tests::upstream::{exceptions, with_examples};

use crate::shared::{places, together};

#[tokio::test(flavor = "multi_thread")]
async fn the_api_server_takes_every_example_whole() {
    let federation = together().await;
    let [east, ..] = places(&federation, "corpus").await;
    let mut wrong = Vec::new();
    let lossy: Vec<_> =
        exceptions().unwrap().into_iter().filter(|row| row.version == "v1alpha2" && row.what == "lost").collect();
    for document in with_examples("whether an API server takes upstream's examples whole").unwrap() {
        let mut object = document.value.clone();
        object["metadata"]["namespace"] = "corpus".into();
        let body = serde_json::to_vec(&object).unwrap();
        // Strict: a field that the schema does not know is an error, not a silent loss.
        let path = "/apis/flux-framework.org/v1alpha2/namespaces/corpus/miniclusters?dryRun=All&fieldValidation=Strict";
        let request = http::Request::post(path).header("content-type", "application/json").body(body).unwrap();
        let taken = east.client.request::<Value>(request).await;
        let expected = lossy.iter().all(|row| row.file != document.file);
        if taken.is_ok() != expected {
            wrong.push(format!("{}: {:?}", document.file, taken.err()));
        }
    }
    let others = serve_other_kinds(&east.client).await;
    for (file, mut object) in examples().unwrap() {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let (version, kind) = (text(&object["apiVersion"]), text(&object["kind"]));
        let plural = match kind.as_str() {
            // Values of the chart: helm takes them, or does not.
            "" => continue,
            // In its own file, so that what is below it finds it.
            "Namespace" => continue,
            "MiniCluster" => "miniclusters",
            "ClusterPeer" => "clusterpeers",
            "FluxSetup" => "fluxsetups",
            "FluxJob" => "fluxjobs",
            "PriorityClass" => "priorityclasses",
            _ => match others.iter().find(|other| other.spec.names.kind == kind) {
                Some(other) => &other.spec.names.plural,
                None => panic!("{file}: tests/corpus/other-kinds.yaml does not define {kind}"),
            },
        };
        let place = match kind.as_str() {
            "PriorityClass" => "",
            _ => {
                object["metadata"]["namespace"] = "corpus".into();
                "namespaces/corpus/"
            }
        };
        let body = serde_json::to_vec(&object).unwrap();
        let path = format!("/apis/{version}/{place}{plural}?dryRun=All&fieldValidation=Strict");
        let request = http::Request::post(path).header("content-type", "application/json").body(body).unwrap();
        if let Err(error) = east.client.request::<Value>(request).await {
            wrong.push(format!("{file}: {error}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Has the kinds of others served that examples and charts have objects of, as on clusters where these are installed.
pub(crate) async fn serve_other_kinds(client: &Client) -> Vec<CustomResourceDefinition> {
    let definitions = Api::<CustomResourceDefinition>::all(client.clone());
    let mut served = Vec::new();
    for definition in other_kinds().unwrap() {
        chart::apply(client, &definition).await.unwrap();
        let definition: CustomResourceDefinition = serde_json::from_value(definition).unwrap();
        let name = definition.name_any();
        eventually(format!("{name} is served"), async || {
            let found = definitions.get(&name).await.map_err(|error| error.to_string())?;
            let conditions = found.status.and_then(|status| status.conditions);
            let established = conditions.iter().flatten().any(|one| one.type_ == "Established" && one.status == "True");
            if !established {
                return Err("not yet".to_owned());
            }
            // Established, it is not served at once, nor known to who asks what is served.
            let (spec, version) = (&definition.spec, &definition.spec.versions[0].name);
            let path = format!("/apis/{}/{version}/{}?limit=1", spec.group, spec.names.plural);
            let request = http::Request::get(path).body(Vec::new()).unwrap();
            client.request::<Value>(request).await.map_err(|error| error.to_string())?;
            let known = client.list_api_group_resources(&format!("{}/{version}", spec.group)).await;
            let known = known.map_err(|error| error.to_string())?.resources;
            if known.iter().any(|one| one.name == spec.names.plural) { Ok(()) } else { Err(format!("{known:?}")) }
        })
        .await;
        served.push(definition);
    }
    served
}
