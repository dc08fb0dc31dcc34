use http::{Method, Response};
use k8s_openapi::api::core::v1::{ConfigMap, Service};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::DeleteParams;
use kube::client::Body;
use tributary_api::minicluster::{MiniCluster, MiniClusterStatus, Phase};
use tributary_clock::SystemClock;

use super::*;
use tributary_api_server::ApiServer;

pub(super) type Requests = Arc<Mutex<Vec<(Method, String, Value)>>>;

/// Over an API server that stores nothing: `answer` makes what it answers of what it is sent.
pub(super) fn applier(
    answer: impl Fn(&Method, Value) -> (u16, Value) + Send + Sync + Clone + 'static,
) -> (Applier, Requests) {
    let seen = Requests::default();
    let server = {
        let seen = seen.clone();
        tower::service_fn(move |request: http::Request<Body>| {
            let (seen, answer) = (seen.clone(), answer.clone());
            async move {
                let (head, body) = request.into_parts();
                let body: Value = serde_json::from_slice(&body.collect_bytes().await?).unwrap_or_default();
                seen.lock().push((head.method.clone(), head.uri.to_string(), body.clone()));
                let (code, answer) = answer(&head.method, body);
                let body = Body::from(answer.to_string().into_bytes());
                Ok::<_, tower::BoxError>(Response::builder().status(code).body(body).unwrap())
            }
        })
    };
    (Applier::new(Client::new(server, "default"), "reconcile"), seen)
}

pub(super) fn stored(_: &Method, mut body: Value) -> (u16, Value) {
    body["metadata"]["uid"] = "u-1".into();
    body["metadata"]["resourceVersion"] = "1".into();
    (200, body)
}

/// The same of a MiniCluster, whose spec is not sent with its status.
fn stored_status(method: &Method, mut body: Value) -> (u16, Value) {
    body["spec"] = json!({"containers": []});
    stored(method, body)
}

pub(super) fn config_map(value: &str, owner: Option<&str>) -> ConfigMap {
    let owners: Vec<_> = owner
        .map(|uid| json!({"apiVersion": "v1", "kind": "Pod", "name": "o", "uid": uid, "controller": true}))
        .into_iter()
        .collect();
    serde_json::from_value(json!({"metadata": {"namespace": "n", "name": "c", "ownerReferences": owners},
        "data": {"key": value}}))
    .unwrap()
}

pub(super) fn methods(seen: &Requests) -> Vec<Method> {
    seen.lock().iter().map(|(method, ..)| method.clone()).collect()
}

#[tokio::test]
async fn what_is_there_already_costs_no_request() {
    let (applier, seen) = applier(stored);
    let created = applier.own(&config_map("a", Some("o-1")), None).await.unwrap();
    let Applied::Created(live) = created else { panic!("{created:?}") };
    assert_eq!(applier.own(&config_map("a", Some("o-1")), Some(&live)).await.unwrap(), Applied::Unchanged);

    let requests = seen.lock().clone();
    assert_eq!(requests.len(), 1);
    let (method, uri, body) = &requests[0];
    assert_eq!(method, Method::POST);
    assert_eq!(uri, "/api/v1/namespaces/n/configmaps?&fieldManager=reconcile&fieldValidation=Strict");
    assert_eq!((body["apiVersion"].as_str(), body["kind"].as_str()), (Some("v1"), Some("ConfigMap")));
    assert_eq!(body["metadata"]["annotations"]["applied-digest.tributary.dev/reconcile"].as_str().unwrap().len(), 64);
}

#[tokio::test]
async fn what_was_created_once_is_not_written_again() {
    let (applier, seen) = applier(stored);
    let Applied::Created(live) = applier.own_once(&config_map("a", Some("o-1"))).await.unwrap() else { panic!() };
    assert_eq!(applier.own(&config_map("a", Some("o-1")), Some(&live)).await.unwrap(), Applied::Unchanged);
    assert_eq!(methods(&seen), [Method::POST]);
}

/// Of every answer that is kept, they are often the larger half.
#[tokio::test]
async fn answers_come_without_their_managed_fields() {
    let managed = |method: &Method, mut body: Value| {
        body["metadata"]["managedFields"] = json!([{"manager": "reconcile"}]);
        stored_status(method, body)
    };
    let (applier, _) = applier(managed);
    let wanted = config_map("a", Some("o-1"));
    let made = applier.own(&wanted, None).await.unwrap().object().unwrap();
    let changed = applier.own(&config_map("b", Some("o-1")), Some(&made)).await.unwrap().object().unwrap();
    let Once::Created(once) = applier.create_once(&wanted).await.unwrap() else { panic!("the name is free") };
    for object in [made, changed, once] {
        assert_eq!((object.metadata.uid.as_deref(), object.metadata.managed_fields), (Some("u-1"), None));
    }
    let lake = MiniCluster::new("s", Default::default());
    let told = applier.apply_status(&lake, &phase(Phase::Running)).await.unwrap().object().unwrap();
    assert_eq!((told.status, told.metadata.managed_fields), (Some(phase(Phase::Running)), None));
}

/// The danger: an object is there and is taken for one that is not, or for another.
#[tokio::test]
async fn an_answer_that_cannot_be_read_is_told_as_such() {
    let strange = |method: &Method, mut body: Value| {
        (body["data"], body["status"]) = (json!(7), json!(7));
        stored(method, body)
    };
    let (applier, _) = applier(strange);
    let wanted = config_map("a", None);
    let lake = MiniCluster::new("s", Default::default());
    let errors = [
        applier.own(&wanted, None).await.unwrap_err(),
        applier.own_once(&wanted).await.unwrap_err(),
        applier.create_once(&wanted).await.unwrap_err(),
        applier.apply_status(&lake, &phase(Phase::Running)).await.unwrap_err(),
    ];
    assert!(errors.iter().all(|error| matches!(error.cause(), Cause::Answer(_))), "{errors:?}");
}

#[tokio::test]
async fn what_we_want_otherwise_and_what_others_change_is_written() {
    let (applier, seen) = applier(stored);
    let owner = Some("o-1");
    let live = applier.own(&config_map("a", owner), None).await.unwrap().object().unwrap();

    let other = applier.own(&config_map("b", owner), Some(&live)).await.unwrap();
    assert!(matches!(other, Applied::Changed(_)));

    let mut tampered = live.clone();
    tampered.data.as_mut().unwrap().insert("key".into(), "evil".into());
    let repaired = applier.own(&config_map("a", owner), Some(&tampered)).await.unwrap();
    assert!(matches!(repaired, Applied::Changed(_)));

    let mut stripped = live.clone();
    stripped.metadata.annotations = None;
    assert!(matches!(applier.own(&config_map("a", owner), Some(&stripped)).await.unwrap(), Applied::Changed(_)));

    let requests = seen.lock().clone();
    let sent: Vec<_> = requests.iter().map(|(_, _, body)| body["metadata"]["uid"].clone()).collect();
    assert_eq!(sent, [Value::Null, "u-1".into(), "u-1".into(), "u-1".into()], "only the object we looked at");
    assert_eq!(methods(&seen), [Method::POST, Method::PUT, Method::PUT, Method::PUT]);
}

#[tokio::test]
async fn what_the_server_always_changes_is_written_once() {
    let clamped = |method: &Method, mut body: Value| {
        body["spec"]["sessionAffinity"] = "None".into();
        stored(method, body)
    };
    let (applier, seen) = applier(clamped);
    let owners = json!([{"apiVersion": "v1", "kind": "Pod", "name": "o", "uid": "o-1", "controller": true}]);
    let desired: Service = serde_json::from_value(json!({"spec": {"sessionAffinity": "X"},
        "metadata": {"namespace": "n", "name": "s", "ownerReferences": owners}}))
    .unwrap();
    let live = applier.own(&desired, None).await.unwrap().object().unwrap();
    assert_eq!(applier.own(&desired, Some(&live)).await.unwrap(), Applied::Unchanged);
    let mut tampered = live;
    tampered.metadata.resource_version = Some("2".to_owned());
    tampered.spec.as_mut().unwrap().session_affinity = Some("ClientIP".into());
    assert!(matches!(applier.own(&desired, Some(&tampered)).await.unwrap(), Applied::Changed(_)));
    assert_eq!(seen.lock().len(), 2);
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
    assert!(seen.lock().is_empty());
}

/// The danger: what somebody changed is taken for what was compared before.
#[tokio::test]
async fn what_was_compared_is_compared_again_once_it_has_changed() {
    let (applier, seen) = applier(stored);
    let owner = Some("o-1");
    let live = applier.own(&config_map("a", owner), None).await.unwrap().object().unwrap();
    for _ in 0..2 {
        assert_eq!(applier.own(&config_map("a", owner), Some(&live)).await.unwrap(), Applied::Unchanged);
    }
    let mut tampered = live.clone();
    tampered.data = Some([("key".to_owned(), "b".to_owned())].into());
    tampered.metadata.resource_version = Some("2".to_owned());
    assert!(matches!(applier.own(&config_map("a", owner), Some(&tampered)).await.unwrap(), Applied::Changed(_)));
    assert!(matches!(applier.own(&config_map("c", owner), Some(&live)).await.unwrap(), Applied::Changed(_)));
    assert_eq!(methods(&seen), [Method::POST, Method::PUT, Method::PUT]);
}

#[tokio::test]
async fn a_status_is_applied_to_the_object_it_was_computed_from() {
    let (applier, seen) = applier(stored_status);
    let condition = |since: &str| json!([{"type": "Ready", "status": "True", "reason": "r", "message": "m", "lastTransitionTime": since}]);
    let status = |since: &str| json!({"phase": "Running", "ready": 2, "conditions": condition(since)});
    let lake: MiniCluster = serde_json::from_value(json!({"apiVersion": "flux-framework.org/v1alpha2", "kind": "MiniCluster",
        "metadata": {"namespace": "n", "name": "s", "uid": "u-7"}, "spec": {"containers": []}, "status": status("2026-01-01T00:00:00Z")}))
    .unwrap();
    let of = |value: Value| serde_json::from_value::<MiniClusterStatus>(value).unwrap();
    let known = lake.status.clone().unwrap();
    assert_eq!(applier.apply_status(&lake, &known).await.unwrap(), Applied::Unchanged);
    let later = of(status("2026-01-02T00:00:00Z"));
    assert_eq!(applier.apply_status(&lake, &later).await.unwrap(), Applied::Unchanged, "nothing but a time");
    applier.apply_status(&lake, &of(json!({"phase": "Failed"}))).await.unwrap();

    let requests = seen.lock().clone();
    assert_eq!(requests.len(), 1);
    let (_, uri, body) = &requests[0];
    assert!(uri.starts_with("/apis/flux-framework.org/v1alpha2/namespaces/n/miniclusters/s/status?"), "{uri}");
    assert_eq!(body["metadata"], json!({"namespace": "n", "name": "s", "uid": "u-7"}));
    assert_eq!((&body["kind"], &body["status"]["phase"]), (&json!("MiniCluster"), &json!("Failed")));
    assert_eq!((body.get("spec"), body["status"].get("ready")), (None, None), "what is not said is left out");
}

/// A step on an old version must not take back what was recorded since: a recipient, or where it is placed.
#[tokio::test]
async fn a_status_that_follows_from_an_old_one_is_for_that_version_alone() {
    let conflict = json!({"kind": "Status", "status": "Failure", "code": 409, "reason": "Conflict", "message": "m"});
    let newest = move |method: &Method, body: Value| match body["metadata"]["resourceVersion"].as_str() {
        Some("8") | None => stored_status(method, body),
        Some(_) => (409, conflict.clone()),
    };
    let (applier, seen) = applier(newest);
    let at = |version: &str| {
        let mut lake = MiniCluster::new("s", Default::default());
        lake.metadata.namespace = Some("n".to_owned());
        (lake.metadata.uid, lake.metadata.resource_version) = (Some("u-7".to_owned()), Some(version.to_owned()));
        lake
    };
    let status = phase(Phase::Running);
    let error = applier.apply_status_to_version(&at("7"), &status).await.unwrap_err();
    assert!(error.cause().is_conflict(), "{error}");
    applier.apply_status_to_version(&at("8"), &status).await.unwrap();
    assert_eq!(seen.lock().len(), 2);
}

#[tokio::test]
async fn a_taken_name_is_no_error_of_create_once() {
    let taken = json!({"kind": "Status", "status": "Failure", "code": 409, "reason": "AlreadyExists", "message": "m"});
    let (applier, seen) = applier(move |_, _| (409, taken.clone()));
    assert_eq!(applier.create_once(&config_map("a", None)).await.unwrap(), Once::Exists);
    assert_eq!(seen.lock()[0].0, Method::POST);
}

fn phase(phase: Phase) -> MiniClusterStatus {
    MiniClusterStatus { phase: Some(phase), ..MiniClusterStatus::default() }
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
    let status = phase(Phase::Succeeded);
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
    applier.apply_status(&seen, &phase(Phase::Running)).await.unwrap();
    let lake = server.get::<MiniCluster>("waters", "lake").unwrap();
    assert_eq!((lake.spec.size, lake.status.unwrap().phase), (Some(3), Some(Phase::Running)));
}
