use http::{Method, Response};
use k8s_openapi::api::core::v1::{ConfigMap, Service};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::DeleteParams;
use kube::client::Body;
use tributary_api::minicluster::{MiniCluster, Phase};
use tributary_clock::SystemClock;

use super::*;
use crate::testing::ApiServer;

type Requests = Arc<Mutex<Vec<(Method, String, Value)>>>;

/// An API server that stores nothing: it answers with what it is sent, changed by `answer`.
fn applier(answer: impl Fn(Value) -> (u16, Value) + Send + Sync + Clone + 'static) -> (Applier, Requests) {
    let seen = Requests::default();
    let server = {
        let seen = seen.clone();
        tower::service_fn(move |request: http::Request<Body>| {
            let (seen, answer) = (seen.clone(), answer.clone());
            async move {
                let (head, body) = request.into_parts();
                let body: Value = serde_json::from_slice(&body.collect_bytes().await?).unwrap_or_default();
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

fn methods(seen: &Requests) -> Vec<Method> {
    seen.lock().unwrap().iter().map(|(method, ..)| method.clone()).collect()
}

#[tokio::test]
async fn what_is_there_already_costs_no_request() {
    let (applier, seen) = applier(stored);
    let created = applier.own(&config_map("a", Some("o-1")), None::<&ConfigMap>).await.unwrap();
    let Applied::Created(live) = created else { panic!("{created:?}") };
    assert_eq!(applier.own(&config_map("a", Some("o-1")), Some(&live)).await.unwrap(), Applied::Unchanged);

    let requests = seen.lock().unwrap().clone();
    assert_eq!(requests.len(), 1);
    let (method, uri, body) = &requests[0];
    assert_eq!(method, Method::POST);
    assert_eq!(uri, "/api/v1/namespaces/n/configmaps?&fieldManager=reconcile&fieldValidation=Strict");
    assert_eq!((body["apiVersion"].as_str(), body["kind"].as_str()), (Some("v1"), Some("ConfigMap")));
    assert_eq!(body["metadata"]["annotations"]["applied-digest.tributary.dev/reconcile"].as_str().unwrap().len(), 64);
}

#[tokio::test]
async fn what_we_want_otherwise_and_what_others_change_is_written() {
    let (applier, seen) = applier(stored);
    let owner = Some("o-1");
    let live = applier.own(&config_map("a", owner), None::<&ConfigMap>).await.unwrap().object().unwrap();

    let other = applier.own(&config_map("b", owner), Some(&live)).await.unwrap();
    assert!(matches!(other, Applied::Changed(_)));

    let mut tampered = live.clone();
    tampered.data.as_mut().unwrap().insert("key".into(), "evil".into());
    let repaired = applier.own(&config_map("a", owner), Some(&tampered)).await.unwrap();
    assert!(matches!(repaired, Applied::Changed(_)));

    let mut stripped = live.clone();
    stripped.metadata.annotations = None;
    assert!(matches!(applier.own(&config_map("a", owner), Some(&stripped)).await.unwrap(), Applied::Changed(_)));

    let requests = seen.lock().unwrap().clone();
    let sent: Vec<_> = requests.iter().map(|(_, _, body)| body["metadata"]["uid"].clone()).collect();
    assert_eq!(sent, [Value::Null, "u-1".into(), "u-1".into(), "u-1".into()], "only the object we looked at");
    assert_eq!(methods(&seen), [Method::POST, Method::PUT, Method::PUT, Method::PUT]);
}

#[tokio::test]
async fn what_the_server_always_changes_is_written_once() {
    let clamped = |mut body: Value| {
        body["spec"]["sessionAffinity"] = "None".into();
        stored(body)
    };
    let (applier, seen) = applier(clamped);
    let owners = json!([{"apiVersion": "v1", "kind": "Pod", "name": "o", "uid": "o-1", "controller": true}]);
    let desired: Service = serde_json::from_value(json!({"spec": {"sessionAffinity": "X"},
        "metadata": {"namespace": "n", "name": "s", "ownerReferences": owners}}))
    .unwrap();
    let live = applier.own(&desired, None::<&Service>).await.unwrap().object().unwrap();
    assert_eq!(applier.own(&desired, Some(&live)).await.unwrap(), Applied::Unchanged);
    let mut tampered = live;
    tampered.spec.as_mut().unwrap().session_affinity = Some("ClientIP".into());
    assert!(matches!(applier.own(&desired, Some(&tampered)).await.unwrap(), Applied::Changed(_)));
    assert_eq!(seen.lock().unwrap().len(), 2);
}

#[tokio::test]
async fn another_controllers_object_is_left_alone() {
    let (applier, seen) = applier(stored);
    for live in [config_map("a", Some("o-2")), config_map("a", None)] {
        let error = applier.own(&config_map("a", Some("o-1")), Some(&live)).await.unwrap_err();
        assert!(matches!(error.cause(), Cause::Foreign { .. }), "{error}");
        assert_eq!(error.taken().unwrap().object, "ConfigMap n/c");
    }
    // Nobody controls what an agent makes for itself: its digest tells.
    let error = applier.own(&config_map("a", None), Some(&config_map("a", None))).await.unwrap_err();
    assert!(matches!(error.cause(), Cause::Foreign { .. }), "{error}");
    let mut ending = config_map("b", Some("o-1"));
    ending.metadata.deletion_timestamp = serde_json::from_value(json!("2026-01-01T00:00:00Z")).unwrap();
    assert_eq!(applier.own(&config_map("a", Some("o-1")), Some(&ending)).await.unwrap(), Applied::Terminating);
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

/// A step on an old version must not take back what was recorded since: a recipient, or where it is placed.
#[tokio::test]
async fn a_status_that_follows_from_an_old_one_is_for_that_version_alone() {
    let conflict = json!({"kind": "Status", "status": "Failure", "code": 409, "reason": "Conflict", "message": "m"});
    let newest = move |body: Value| match body["metadata"]["resourceVersion"].as_str() {
        Some("8") | None => stored(body),
        Some(_) => (409, conflict.clone()),
    };
    let (applier, seen) = applier(newest);
    let at = |version: &str| -> Service {
        let metadata = json!({"namespace": "n", "name": "s", "uid": "u-7", "resourceVersion": version});
        serde_json::from_value(json!({"metadata": metadata, "status": {"conditions": []}})).unwrap()
    };
    let status = json!({"loadBalancer": {"ingress": [{"ip": "10.0.0.1"}]}});
    let error = applier.apply_status_to_version(&at("7"), &status).await.unwrap_err();
    assert!(error.cause().is_conflict(), "{error}");
    applier.apply_status_to_version(&at("8"), &status).await.unwrap();
    assert_eq!(seen.lock().unwrap().len(), 2);
}

#[tokio::test]
async fn a_taken_name_is_no_error_of_create_once() {
    let taken = json!({"kind": "Status", "status": "Failure", "code": 409, "reason": "AlreadyExists", "message": "m"});
    let (applier, seen) = applier(move |_| (409, taken.clone()));
    assert_eq!(applier.create_once(&config_map("a", None)).await.unwrap(), Once::Exists);
    assert_eq!(seen.lock().unwrap()[0].0, Method::POST);
}

/// An API server in memory with this MiniCluster, and how it was shown.
fn with_lake(clock: &tributary_clock::SharedClock) -> (ApiServer, MiniCluster) {
    let server = ApiServer::new("east", clock.clone());
    server.serve::<MiniCluster>();
    let mut lake = MiniCluster::new("lake", Default::default());
    lake.metadata.namespace = Some("waters".to_owned());
    let lake = server.put(&lake).unwrap();
    (server, lake)
}

/// The danger: the next MiniCluster of the name has the end of the one before, and never runs. API servers ignore the UID in
/// a patch of the status.
#[tokio::test(start_paused = true)]
async fn a_status_is_never_that_of_the_next_object_of_the_name() {
    let (server, before) = with_lake(&SystemClock::shared());
    server.delete::<MiniCluster>("waters", "lake", &DeleteParams::default()).unwrap();
    let applier = Applier::new(Client::new(server.clone(), "default"), "reconcile");
    let status = json!({"phase": "Succeeded"});
    let gone = applier.apply_status(&before, &status).await.unwrap_err();
    assert!(gone.cause().is_not_found(), "{gone}");
    let mut next = before.clone();
    next.metadata = ObjectMeta {
        name: before.metadata.name.clone(),
        namespace: before.metadata.namespace.clone(),
        ..Default::default()
    };
    server.put(&next).unwrap();
    let replaced = applier.apply_status(&before, &status).await.unwrap_err();
    assert!(replaced.cause().is_conflict(), "{replaced}");
    assert_eq!(server.get::<MiniCluster>("waters", "lake").unwrap().status, None);
}

#[tokio::test(start_paused = true)]
async fn a_status_is_written_though_the_object_has_changed_since_it_was_seen() {
    let (server, seen) = with_lake(&SystemClock::shared());
    server.patch::<MiniCluster>("waters", "lake", json!({"spec": {"size": 3}})).unwrap();
    let applier = Applier::new(Client::new(server.clone(), "default"), "reconcile");
    applier.apply_status(&seen, &json!({"phase": "Running"})).await.unwrap();
    let lake = server.get::<MiniCluster>("waters", "lake").unwrap();
    assert_eq!((lake.spec.size, lake.status.unwrap().phase), (Some(3), Some(Phase::Running)));
}
