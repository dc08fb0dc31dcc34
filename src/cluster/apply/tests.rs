use http::{Method, Response};
use k8s_openapi::api::core::v1::{ConfigMap, Service};
use kube::client::Body;

use super::*;

type Requests = Arc<Mutex<Vec<(Method, String, Value)>>>;

/// An API server that stores nothing: it answers a patch with the patch itself, changed by `answer`.
fn applier(answer: impl Fn(Value) -> (u16, Value) + Send + Sync + Clone + 'static) -> (Applier, Requests) {
    let seen = Requests::default();
    let server = {
        let seen = seen.clone();
        tower::service_fn(move |request: http::Request<Body>| {
            let (seen, answer) = (seen.clone(), answer.clone());
            async move {
                let (head, body) = request.into_parts();
                let body: Value = serde_json::from_slice(&body.collect_bytes().await?).unwrap();
                seen.lock().unwrap().push((head.method, head.uri.to_string(), body.clone()));
                let (code, answer) = answer(body);
                let body = Body::from(answer.to_string().into_bytes());
                Ok::<_, tower::BoxError>(Response::builder().status(code).body(body).unwrap())
            }
        })
    };
    (Applier::new(Client::new(server, "default"), "reconcile"), seen)
}

fn stored(mut body: Value) -> (u16, Value) {
    body["metadata"]["uid"] = "u-1".into();
    body["metadata"]["resourceVersion"] = "1".into();
    (200, body)
}

fn config_map(value: &str, owner: Option<&str>) -> ConfigMap {
    let owners: Vec<_> = owner
        .map(|uid| json!({"apiVersion": "v1", "kind": "Pod", "name": "o", "uid": uid, "controller": true}))
        .into_iter()
        .collect();
    serde_json::from_value(json!({"metadata": {"namespace": "n", "name": "c", "ownerReferences": owners},
        "data": {"key": value}}))
    .unwrap()
}

#[tokio::test]
async fn what_is_there_already_costs_no_request() {
    let (applier, seen) = applier(stored);
    let created = applier.apply(&config_map("a", Some("o-1")), None::<&ConfigMap>).await.unwrap();
    let Applied::Created(live) = created else { panic!("{created:?}") };
    assert_eq!(applier.apply(&config_map("a", Some("o-1")), Some(&live)).await.unwrap(), Applied::Unchanged);

    let requests = seen.lock().unwrap().clone();
    assert_eq!(requests.len(), 1);
    let (method, uri, body) = &requests[0];
    assert_eq!(method, Method::PATCH);
    assert_eq!(uri, "/api/v1/namespaces/n/configmaps/c?&force=true&fieldManager=reconcile&fieldValidation=Strict");
    assert_eq!((body["apiVersion"].as_str(), body["kind"].as_str()), (Some("v1"), Some("ConfigMap")));
    assert_eq!(body["metadata"]["annotations"]["applied-digest.tributary.dev/reconcile"].as_str().unwrap().len(), 64);
}

#[tokio::test]
async fn what_we_want_otherwise_and_what_others_change_is_applied() {
    let (applier, seen) = applier(stored);
    let live = applier.apply(&config_map("a", None), None::<&ConfigMap>).await.unwrap().object().unwrap();

    let other = applier.apply(&config_map("b", None), Some(&live)).await.unwrap();
    assert!(matches!(other, Applied::Changed(_)));

    let mut tampered = live.clone();
    tampered.data.as_mut().unwrap().insert("key".into(), "evil".into());
    let repaired = applier.apply(&config_map("a", None), Some(&tampered)).await.unwrap();
    assert!(matches!(repaired, Applied::Changed(_)));

    let mut extended = live.clone();
    extended.data.as_mut().unwrap().insert("other".into(), "theirs".into());
    assert_eq!(applier.apply(&config_map("a", None), Some(&extended)).await.unwrap(), Applied::Unchanged);

    let mut stripped = live.clone();
    stripped.metadata.annotations = None;
    assert!(matches!(applier.apply(&config_map("a", None), Some(&stripped)).await.unwrap(), Applied::Changed(_)));

    let uids: Vec<_> = seen.lock().unwrap().iter().map(|(_, _, body)| body["metadata"]["uid"].clone()).collect();
    assert_eq!(uids, [Value::Null, "u-1".into(), "u-1".into(), "u-1".into()], "only the object we looked at");
}

#[tokio::test]
async fn what_the_server_always_changes_is_applied_once() {
    let clamped = |mut body: Value| {
        body["spec"]["sessionAffinity"] = "None".into();
        stored(body)
    };
    let (applier, seen) = applier(clamped);
    let desired: Service =
        serde_json::from_value(json!({"metadata": {"namespace": "n", "name": "s"}, "spec": {"sessionAffinity": "X"}}))
            .unwrap();
    let live = applier.apply(&desired, None::<&Service>).await.unwrap().object().unwrap();
    assert_eq!(applier.apply(&desired, Some(&live)).await.unwrap(), Applied::Unchanged);
    let mut tampered = live;
    tampered.spec.as_mut().unwrap().session_affinity = Some("ClientIP".into());
    assert!(matches!(applier.apply(&desired, Some(&tampered)).await.unwrap(), Applied::Changed(_)));
    assert_eq!(seen.lock().unwrap().len(), 2);
}

#[tokio::test]
async fn an_edited_key_of_a_list_is_put_right_by_the_whole_list() {
    // As the API server does it with a Service's ports, whose key is the number: ours beside the edited one is refused.
    let seen_force = |(_, uri, _): &(Method, String, Value)| uri.contains("force=true");
    let counted = Arc::new(Mutex::new(0));
    let refuses = move |body: Value| {
        *counted.lock().unwrap() += 1;
        match *counted.lock().unwrap() {
            2 => (
                422,
                json!({"kind": "Status", "status": "Failure", "code": 422, "reason": "Invalid", "message": "twice"}),
            ),
            _ => stored(body),
        }
    };
    let (applier, seen) = applier(refuses);
    let desired: Service = serde_json::from_value(json!({"metadata": {"namespace": "n", "name": "s"},
        "spec": {"ports": [{"name": "lead", "port": 8050, "protocol": "TCP"}]}}))
    .unwrap();
    let mut live = applier.apply(&desired, None::<&Service>).await.unwrap().object().unwrap();
    live.spec.as_mut().unwrap().ports.as_mut().unwrap()[0].port = 9;
    assert!(matches!(applier.apply(&desired, Some(&live)).await.unwrap(), Applied::Changed(_)));
    let requests = seen.lock().unwrap().clone();
    assert_eq!(requests.iter().map(seen_force).collect::<Vec<_>>(), [true, true, false]);
    assert_eq!(requests[2].2["spec"], requests[1].2["spec"]);
}

#[tokio::test]
async fn another_controllers_object_is_left_alone() {
    let (applier, seen) = applier(stored);
    for live in [config_map("a", Some("o-2")), config_map("a", None)] {
        let error = applier.apply(&config_map("a", Some("o-1")), Some(&live)).await.unwrap_err();
        assert!(matches!(error.cause(), Cause::Foreign { .. }), "{error}");
    }
    let mut ending = config_map("b", Some("o-1"));
    ending.metadata.deletion_timestamp = serde_json::from_value(json!("2026-01-01T00:00:00Z")).unwrap();
    assert_eq!(applier.apply(&config_map("a", Some("o-1")), Some(&ending)).await.unwrap(), Applied::Terminating);
    assert!(seen.lock().unwrap().is_empty());
}

#[tokio::test]
async fn a_status_is_applied_to_the_object_it_was_computed_from() {
    let (applier, seen) = applier(stored);
    let service: Service = serde_json::from_value(json!({"metadata": {"namespace": "n", "name": "s", "uid": "u-7"},
        "spec": {"type": "NodePort"}, "status": {"loadBalancer": {"ingress": [{"ip": "10.0.0.1"}]}}}))
    .unwrap();
    let same = json!({"loadBalancer": {"ingress": [{"ip": "10.0.0.1"}]}, "conditions": []});
    assert_eq!(applier.apply_status(&service, &same).await.unwrap(), Applied::Unchanged);
    applier.apply_status(&service, &json!({"loadBalancer": {}, "gone": null})).await.unwrap();

    let requests = seen.lock().unwrap().clone();
    assert_eq!(requests.len(), 1);
    assert!(requests[0].1.starts_with("/api/v1/namespaces/n/services/s/status?"), "{}", requests[0].1);
    assert_eq!(
        requests[0].2,
        json!({"apiVersion": "v1", "kind": "Service", "metadata": {"namespace": "n", "name": "s", "uid": "u-7"},
            "status": {"loadBalancer": {}}})
    );
}

#[tokio::test]
async fn a_taken_name_is_no_error_of_create_once() {
    let taken = json!({"kind": "Status", "status": "Failure", "code": 409, "reason": "AlreadyExists", "message": "m"});
    let (applier, seen) = applier(move |_| (409, taken.clone()));
    assert_eq!(applier.create_once(&config_map("a", None)).await.unwrap(), Once::Exists);
    assert_eq!(seen.lock().unwrap()[0].0, Method::POST);
    let error = applier.apply(&config_map("a", None), None::<&ConfigMap>).await.unwrap_err();
    assert!(error.cause().is_conflict());
    assert_eq!(crate::cluster::error::chain(&error), "failed to apply ConfigMap n/c: m");
}
