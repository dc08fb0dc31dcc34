//! The conversion webhook: MiniClusters of one version in another, for the API server.
//!
//! Here is what it answers and which certificate it answers with, both pure; the server and the definition that leads
//! the API server to it are the daemon's.
//!
//! Source: <https://kubernetes.io/docs/tasks/extend-kubernetes/custom-resources/custom-resource-definition-versioning/#webhook-request-and-response>

pub mod certificate;

use serde_json::{Value, json};

use crate::api::v1alpha1;

/// Where the API server posts its reviews.
pub const PATH: &str = "/convert";
/// The version of reviews that is understood.
pub const REVIEW_VERSION: &str = "v1";

const API_VERSION: &str = "apiextensions.k8s.io/v1";
const KIND: &str = "ConversionReview";

/// What was posted is no review: HTTP status 400.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("failed to read the review: a {KIND} of {API_VERSION} with a request is expected, not {found:?}")]
pub struct NotAReview {
    /// What it says it is.
    found: String,
}

/// Answers a `ConversionReview`: with all objects in the version that is asked for, or, if one of them cannot be
/// converted, with none and the reason, which names it. The API server then refuses the request it has; what is stored
/// stays as it is.
///
/// # Errors
/// [`NotAReview`].
pub fn review(mut review: Value) -> Result<Value, NotAReview> {
    let text = |value: &Value, key: &str| value.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
    let found = format!("{} {}", text(&review, "apiVersion"), text(&review, "kind"));
    let Some(request) = review.get_mut("request").filter(|request| request.is_object()).map(Value::take) else {
        return Err(NotAReview { found });
    };
    if found != format!("{API_VERSION} {KIND}") {
        return Err(NotAReview { found });
    }
    let wanted = text(&request, "desiredAPIVersion");
    let objects = request.get("objects").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    let converted: Result<Vec<Value>, String> = objects.iter().map(|object| convert(object, &wanted)).collect();
    let (result, objects) = match converted {
        Ok(objects) => (json!({"status": "Success"}), objects),
        Err(message) => (json!({"status": "Failure", "message": message}), Vec::new()),
    };
    let response = json!({"uid": request["uid"], "result": result, "convertedObjects": objects});
    Ok(json!({"apiVersion": API_VERSION, "kind": KIND, "response": response}))
}

fn convert(object: &Value, wanted: &str) -> Result<Value, String> {
    v1alpha1::convert(object, wanted).map_err(|error| {
        let metadata = |key: &str| object.pointer(&format!("/metadata/{key}")).and_then(Value::as_str).unwrap_or("?");
        format!("failed to convert {}/{} to {wanted}: {error}", metadata("namespace"), metadata("name"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(objects: Value) -> Value {
        json!({"apiVersion": API_VERSION, "kind": KIND, "request": {
            "uid": "7", "desiredAPIVersion": "flux-framework.org/v1alpha2", "objects": objects}})
    }

    fn lake(version: &str) -> Value {
        json!({"apiVersion": format!("flux-framework.org/{version}"), "kind": "MiniCluster",
            "metadata": {"name": "lake", "namespace": "waters", "uid": "1", "managedFields": [{"manager": "kubectl"}]},
            "spec": {"containers": [{"image": "x", "command": "hostname"}]}})
    }

    #[test]
    fn all_objects_come_back_in_their_order() {
        let answer = review(asked(json!([lake("v1alpha1"), lake("v1alpha2")]))).unwrap();
        assert_eq!(answer["kind"], KIND);
        assert_eq!(
            (&answer["response"]["uid"], &answer["response"]["result"]["status"]),
            (&json!("7"), &json!("Success"))
        );
        let objects = answer["response"]["convertedObjects"].as_array().unwrap();
        assert_eq!(objects.len(), 2);
        assert!(objects.iter().all(|object| object["apiVersion"] == "flux-framework.org/v1alpha2"));
        // The API server refuses an answer in which more than labels and annotations differ.
        let mut metadata = objects[0]["metadata"].clone();
        metadata.as_object_mut().unwrap().remove("annotations");
        assert_eq!(metadata, lake("v1alpha1")["metadata"]);
        assert_eq!(objects[1], lake("v1alpha2"));
    }

    #[test]
    fn one_bad_object_fails_the_request_by_its_name() {
        let mut bad = lake("v1alpha1");
        bad["apiVersion"] = json!("flux-framework.org/v1beta1");
        bad["metadata"]["name"] = json!("pond");
        let answer = review(asked(json!([lake("v1alpha1"), bad]))).unwrap();
        let response = &answer["response"];
        assert_eq!((&response["uid"], &response["convertedObjects"]), (&json!("7"), &json!([])));
        assert_eq!(
            response["result"],
            json!({"status": "Failure", "message": "failed to convert waters/pond to flux-framework.org/v1alpha2: \
                version \"flux-framework.org/v1beta1\" is not known: there are flux-framework.org/v1alpha1 and \
                flux-framework.org/v1alpha2"})
        );
    }

    #[test]
    fn anything_else_is_refused() {
        for other in [json!(null), json!([1]), json!({"kind": "AdmissionReview", "request": {}}), json!({"kind": KIND})]
        {
            assert!(review(other).is_err());
        }
        let error = review(json!({"apiVersion": "v1", "kind": "Pod", "request": {}})).unwrap_err().to_string();
        assert!(error.contains("not \"v1 Pod\""), "{error}");
    }
}
