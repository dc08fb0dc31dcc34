use std::convert::Infallible;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Either, Full};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::client::Body;
use serde_json::{Value, json};
use tributary_clock::{SeededRng, SystemClock};

use super::*;

fn config_map(name: &str, version: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"namespace": "n", "name": name, "resourceVersion": version}})
}

fn guarded(value: Value) -> Guarded<ConfigMap> {
    serde_json::from_value(value).unwrap()
}

fn listed(cache: &Cache<ConfigMap>, objects: &[(&str, &str)]) {
    cache.take(Event::Init);
    objects.iter().for_each(|(name, version)| cache.take(Event::InitApply(guarded(config_map(name, version)))));
    cache.take(Event::InitDone);
}

#[test]
fn a_subscriber_hears_of_what_is_there_and_of_what_changes() {
    let cache = Cache::<ConfigMap>::empty();
    listed(&cache, &[("a", "1"), ("b", "1")]);
    let queue = Queue::new(SystemClock::shared());
    let subscription = cache.feed(&queue, |object| vec![ObjectKey::of(object)]);
    assert_eq!(queue.depth(), 2);
    listed(&cache, &[("a", "1"), ("b", "2"), ("c", "1")]);
    assert_eq!(queue.depth(), 3);
    drop(subscription);
    listed(&cache, &[("d", "1")]);
    assert_eq!(queue.depth(), 3, "nobody listens any more");
}

/// The danger: a MiniCluster that was written for another controller is never dispatched.
#[test]
fn who_asks_hears_of_what_is_left_to_other_controllers_and_nobody_else_does() {
    let cache = Cache::<ConfigMap>::empty();
    cache.leave_alone(|map| map.metadata.labels.as_ref()?.get("by").map(String::as_str));
    let left = |name: &str, version: &str| {
        let mut value = config_map(name, version);
        value["metadata"]["labels"] = json!({"by": "example.org/other"});
        guarded(value)
    };
    cache.take(Event::Apply(left("a", "1")));
    let [ours, theirs] = [(); 2].map(|()| Queue::new(SystemClock::shared()));
    let _ours = cache.feed(&ours, |object| vec![ObjectKey::of(object)]);
    let subscription = cache.feed_left_alone(&theirs, |key| Some(key.clone()));
    assert_eq!((ours.depth(), theirs.depth()), (0, 1), "what is there");
    cache.take(Event::Apply(left("b", "1")));
    cache.take(Event::Apply(guarded(config_map("c", "1"))));
    assert_eq!((ours.depth(), theirs.depth()), (1, 2), "what comes");
    drop(subscription);
    cache.take(Event::Apply(left("d", "1")));
    assert_eq!((ours.depth(), theirs.depth()), (1, 2), "nobody listens any more");
}

#[test]
fn complete_means_listed_and_readable() {
    let cache = Cache::<ConfigMap>::empty();
    cache.take(Event::Init);
    let bad = json!({"metadata": {"namespace": "n", "name": "bad", "resourceVersion": "1"}, "data": 7});
    cache.take(Event::InitApply(guarded(bad)));
    assert!(!cache.condition().listed);
    cache.take(Event::InitDone);
    assert!(cache.condition().listed && !cache.is_complete());
    assert_eq!(cache.unreadable()[0].key, ObjectKey::namespaced("n", "bad"));
    cache.take(Event::Apply(guarded(config_map("bad", "2"))));
    assert!(cache.is_complete());
}

#[test]
fn the_controller_is_known_by_group_and_kind() {
    let owner = |api_version: &str, kind: &str| {
        let owners = json!([{"apiVersion": api_version, "kind": kind, "name": "o", "uid": "u", "controller": true}]);
        let mut value = config_map("a", "1");
        value["metadata"]["ownerReferences"] = owners;
        guarded(value).0.unwrap()
    };
    let expected = Some(ObjectKey::namespaced("n", "o"));
    assert_eq!(controller_of::<Job>(&owner("batch/v1", "Job")), expected);
    assert_eq!(controller_of::<Job>(&owner("batch/v1beta1", "Job")), expected);
    assert_eq!(controller_of::<Job>(&owner("other.io/v1", "Job")), None);
    assert_eq!(controller_of::<Job>(&owner("batch/v1", "CronJob")), None);
}

/// An API server that refuses the first list, then lists one object and sends another in the watch.
#[tokio::test(start_paused = true)]
async fn a_watch_that_fails_is_begun_again() {
    let calls = Arc::new(Mutex::new(Vec::new()));
    let server = {
        let calls = calls.clone();
        tower::service_fn(move |request: Request<Body>| {
            let watches = request.uri().query().is_some_and(|query| query.contains("watch=true"));
            let mut calls = calls.lock();
            calls.push(watches);
            let last = calls.len() > 3;
            let (status, body) = match (watches, calls.len()) {
                (false, 1) => {
                    (503, json!({"kind": "Status", "status": "Failure", "code": 503, "message": "busy"}).to_string())
                }
                (false, _) => (
                    200,
                    json!({"kind": "ConfigMapList", "apiVersion": "v1",
                    "metadata": {"resourceVersion": "5"}, "items": [config_map("a", "4")]})
                    .to_string(),
                ),
                (true, _) => (200, format!(r#"{{"type": "ADDED", "object": {}}}"#, config_map("b", "6"))),
            };
            async move {
                if last {
                    std::future::pending::<()>().await;
                }
                let body = Body::from(format!("{body}\n").into_bytes());
                Ok::<_, tower::BoxError>(Response::builder().status(status).body(body).unwrap())
            }
        })
    };
    let client = Client::new(server, "n");
    let (cache, watch) = all::<ConfigMap, _>(client, &Selection::labels("a=b"), SeededRng::new(1));
    let mut condition = cache.shared.condition.subscribe();
    let running = tokio::spawn(watch);
    let failed = condition.wait_for(|condition| !condition.runs()).await.unwrap().clone();
    assert_eq!(failed, Condition { listed: false, troubles: [(None, "failed to list: busy".into())].into() });
    cache.listed().await;
    assert!(cache.condition().runs());
    let found = Arc::new(tokio::sync::Notify::new());
    let _subscription = cache.subscribe({
        let found = found.clone();
        move |change| {
            if change.key.name == "b" {
                found.notify_one();
            }
        }
    });
    found.notified().await;
    assert_eq!(cache.len(), 2);
    running.abort();
    assert_eq!(calls.lock()[..3], [false, false, true]);
}

/// An API server whose lists show the same version of an object with another content each time.
#[tokio::test(start_paused = true)]
async fn listed_again_every_object_is_told_even_at_its_old_version() {
    let lists = Arc::new(Mutex::new(0));
    let server = tower::service_fn(move |request: Request<Body>| {
        let watches = request.uri().query().is_some_and(|query| query.contains("watch=true"));
        let lists = lists.clone();
        async move {
            if watches {
                std::future::pending::<()>().await;
            }
            *lists.lock() += 1;
            let mut item = config_map("a", "4");
            item["data"] = json!({"list": lists.lock().to_string()});
            let list = json!({"kind": "ConfigMapList", "apiVersion": "v1", "metadata": {"resourceVersion": "5"},
                "items": [item]});
            let body = Body::from(list.to_string().into_bytes());
            Ok::<_, tower::BoxError>(Response::builder().status(200).body(body).unwrap())
        }
    });
    let (cache, watch) = all::<ConfigMap, _>(Client::new(server, "n"), &Selection::default(), SeededRng::new(1));
    let running = tokio::spawn(watch);
    cache.listed().await;
    let told = Arc::new(Mutex::new(Vec::new()));
    let _subscription = cache.subscribe({
        let told = told.clone();
        move |change| told.lock().push(change.new.as_ref().and_then(|map| map.data.clone()).unwrap()["list"].clone())
    });
    cache.list_again().await;
    cache.list_again().await;
    assert_eq!(*told.lock(), ["1", "2", "3"]);
    running.abort();
}

/// A connection that was lost without a word shows nothing any more, and refuses nothing.
#[tokio::test(start_paused = true)]
async fn a_watch_whose_connection_is_dead_is_given_up_within_45_seconds() {
    let begun = tokio::sync::watch::Sender::new(Vec::new());
    let server = {
        let begun = begun.clone();
        tower::service_fn(move |request: Request<Body>| {
            let watches = request.uri().query().is_some_and(|query| query.contains("watch=true"));
            let list = json!({"kind": "ConfigMapList", "apiVersion": "v1", "metadata": {"resourceVersion": "5"},
                "items": []});
            let body = if watches {
                begun.send_modify(|begun| begun.push(tokio::time::Instant::now()));
                let more = std::future::pending::<Option<Result<http::HeaderMap, Infallible>>>();
                Either::Left(Full::<Bytes>::default().with_trailers(more))
            } else {
                Either::Right(Full::<Bytes>::from(list.to_string()))
            };
            async move { Ok::<_, tower::BoxError>(Response::builder().status(200).body(body).unwrap()) }
        })
    };
    let (_cache, watch) = all::<ConfigMap, _>(Client::new(server, "n"), &Selection::default(), SeededRng::new(1));
    let running = tokio::spawn(watch);
    let begun = begun.subscribe().wait_for(|begun| begun.len() == 2).await.unwrap().clone();
    assert!(begun[1] - begun[0] <= Duration::from_secs(45), "it was kept for {:?}", begun[1] - begun[0]);
    running.abort();
}

/// The danger: what is not shown of one namespace is taken for gone, because there is news of another.
#[tokio::test(start_paused = true)]
async fn the_watch_of_one_namespace_does_not_run_whatever_comes_of_another() {
    let server = tower::service_fn(move |request: Request<Body>| async move {
        let watches = request.uri().query().is_some_and(|query| query.contains("watch=true"));
        if request.uri().path().contains("/namespaces/refused/") {
            let status = json!({"kind": "Status", "status": "Failure", "code": 403, "message": "it may not"});
            return Ok::<_, tower::BoxError>(
                Response::builder().status(403).body(Body::from(status.to_string().into_bytes()))?,
            );
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
        if watches {
            std::future::pending::<()>().await;
        }
        let list =
            json!({"kind": "ConfigMapList", "apiVersion": "v1", "metadata": {"resourceVersion": "5"}, "items": []});
        Ok(Response::builder().body(Body::from(list.to_string().into_bytes()))?)
    });
    let (client, cache) = (Client::new(server, "n"), Cache::<ConfigMap>::of_parts(2));
    let fill = |name: &str| {
        let part = (Some(name.to_owned()), Api::namespaced(client.clone(), name));
        tokio::spawn(fill(cache.clone(), part, None, config(&Selection::default()), SeededRng::new(1)))
    };
    let running = [fill("refused"), fill("listed")];
    tokio::time::sleep(Duration::from_millis(150)).await;
    let expected = [(Some("refused".to_owned()), "failed to list: it may not".to_owned())];
    assert_eq!(cache.condition().troubles, expected.into());
    running.iter().for_each(tokio::task::JoinHandle::abort);
}

/// The danger: the agent waits for ever for what is in a namespace that was deleted, with the rights to look into it, and does
/// nothing in the others.
#[tokio::test(start_paused = true)]
async fn a_namespace_that_is_gone_has_nothing_and_keeps_nobody_waiting() {
    let server = tower::service_fn(move |request: Request<Body>| async move {
        let path = request.uri().path();
        let refused = |code: u16, reason: &str, about: &str| {
            let status = json!({"kind": "Status", "status": "Failure", "code": code, "reason": reason, "message": reason,
                "details": {"name": about}});
            (code, status)
        };
        let watches = request.uri().query().is_some_and(|query| query.contains("watch=true"));
        let (code, body) = match path.trim_start_matches("/api/v1/namespaces/") {
            "gone" | "left" => refused(404, "NotFound", path.rsplit('/').next().unwrap()),
            "closed" => (200, json!({"kind": "Namespace", "apiVersion": "v1", "metadata": {"name": "closed"}})),
            // It went after it was listed.
            "left/configmaps" if !watches => (
                200,
                json!({"kind": "ConfigMapList", "apiVersion": "v1", "metadata": {"resourceVersion": "1"},
                    "items": [{"metadata": {"namespace": "left", "name": "a", "resourceVersion": "1"}}]}),
            ),
            _ => refused(403, "Forbidden", ""),
        };
        let body = Body::from(body.to_string().into_bytes());
        Ok::<_, tower::BoxError>(Response::builder().status(code).body(body)?)
    });
    let client = Client::new(server, "n");
    for (name, expected) in [("gone", true), ("left", true), ("closed", false)] {
        let (cache, namespaces) = (Cache::<ConfigMap>::of_parts(1), Api::all(client.clone()));
        cache.take_part(
            &Some(name.to_owned()),
            Event::Apply(guarded({
                let mut value = config_map("a", "1");
                value["metadata"]["namespace"] = name.into();
                value
            })),
        );
        let part = (Some(name.to_owned()), Api::namespaced(client.clone(), name));
        let fill = fill(cache.clone(), part, Some(namespaces), config(&Selection::default()), SeededRng::new(1));
        let running = tokio::spawn(fill);
        let again = tokio::time::timeout(Duration::from_secs(60), cache.list_again()).await;
        assert_eq!((again.is_ok(), cache.condition().listed), (expected, expected), "{name}");
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert_eq!(cache.len(), usize::from(!expected), "{name}: what was in it went with it");
        running.abort();
    }
}
