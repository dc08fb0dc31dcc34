//! Upstream's examples, the probes and our own examples, on a real API server.

use serde_json::Value;
use tributary_tests::corpus::{documents, examples};

use crate::shared::{places, together};

#[tokio::test(flavor = "multi_thread")]
async fn the_api_server_takes_every_example_whole() {
    let federation = together().await;
    let [east, ..] = places(&federation, "corpus").await;
    let mut wrong = Vec::new();
    for document in documents().unwrap() {
        let mut object = document.value.clone();
        object["metadata"]["namespace"] = "corpus".into();
        let body = serde_json::to_vec(&object).unwrap();
        // Strict: a field that the schema does not know is an error, not a silent loss.
        let path = "/apis/flux-framework.org/v1alpha2/namespaces/corpus/miniclusters?dryRun=All&fieldValidation=Strict";
        let request = http::Request::post(path).header("content-type", "application/json").body(body).unwrap();
        if let Err(error) = east.client.request::<Value>(request).await {
            wrong.push(format!("{}: {error}", document.file));
        }
    }
    for (file, mut object) in examples().unwrap() {
        let (group, plural) = match object["kind"].as_str() {
            Some("MiniCluster") => ("flux-framework.org/v1alpha2", "miniclusters"),
            Some("ClusterPeer") => ("tributary.dev/v1alpha1", "clusterpeers"),
            Some("FluxSetup") => ("tributary.dev/v1alpha1", "fluxsetups"),
            Some("FluxJob") => ("tributary.dev/v1alpha1", "fluxjobs"),
            // Of others, whose kinds are not here.
            _ => continue,
        };
        assert_eq!(object["apiVersion"], group, "{file}");
        object["metadata"]["namespace"] = "corpus".into();
        let body = serde_json::to_vec(&object).unwrap();
        let path = format!("/apis/{group}/namespaces/corpus/{plural}?dryRun=All&fieldValidation=Strict");
        let request = http::Request::post(path).header("content-type", "application/json").body(body).unwrap();
        if let Err(error) = east.client.request::<Value>(request).await {
            wrong.push(format!("{file}: {error}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
