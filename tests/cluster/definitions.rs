//! What an API server publishes of its kinds, as an agent that starts looks at it.

use std::collections::BTreeSet;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Api, DeleteParams, Patch, PatchParams};
use serde_json::{Value, json};
use tributary::clock::SystemRng;
use tributary::cluster::discovery::{ServedKind, await_fields, await_kinds};
use tributary::cluster::readiness::Readiness;
use tributary_tests::eventually::{PATIENCE, eventually};

use crate::shared::together;

/// Of a group in which no agent looks: those of this cluster work on.
const GROUP: &str = "older.example.com";

#[tokio::test(flavor = "multi_thread")]
async fn a_definition_of_an_older_release_is_waited_for() {
    let federation = together().await;
    let client = federation.client(0).await;
    let definitions: Api<CustomResourceDefinition> = Api::all(client.clone());
    let name = format!("olderbursts.{GROUP}");
    let apply = async |definition: &Value| {
        let params = PatchParams::apply("tests").force();
        definitions.patch(&name, &params, &Patch::Apply(definition)).await.unwrap();
    };
    let ours = tributary::api::crds().into_iter().find(|one| one.spec.names.kind == "Burst").unwrap();
    let version = ours.spec.versions[0].name.clone();
    let mut whole = serde_json::to_value(ours).unwrap();
    whole["metadata"] = json!({ "name": name });
    whole["spec"]["group"] = json!(GROUP);
    // Who says "bursts" to kubectl means the others.
    whole["spec"]["names"] = json!({"kind": "Burst", "plural": "olderbursts", "singular": "olderburst"});
    let mut older = whole.clone();
    let status = "/spec/versions/0/schema/openAPIV3Schema/properties/status/properties";
    older.pointer_mut(status).unwrap().as_object_mut().unwrap().remove("simulated").unwrap();
    apply(&older).await;

    let api_version = format!("{GROUP}/{version}");
    let (readiness, mut rng) = (Readiness::default(), SystemRng);
    let kinds = BTreeSet::from([ServedKind { api_version: api_version.clone(), kind: "Burst".to_owned() }]);
    await_kinds(&client, &kinds, &readiness, "kinds", &mut rng).await.unwrap();
    let waiting = await_fields(&client, &api_version, &readiness, "fields", &mut rng);
    let upgrading = async {
        let expected = format!("{api_version} Burst is older than this agent and has no status.simulated: apply");
        eventually("the field is named", async || {
            let waiting = readiness.waiting();
            if waiting.get("fields").is_some_and(|why| why.starts_with(&expected)) {
                Ok(())
            } else {
                Err(format!("{waiting:?}"))
            }
        })
        .await;
        apply(&whole).await;
    };
    let both = async { tokio::join!(waiting, upgrading) };
    tokio::time::timeout(2 * PATIENCE, both).await.expect("it is there now");
    assert!(readiness.waiting().is_empty());
    definitions.delete(&name, &DeleteParams::default()).await.unwrap();
}
