use std::time::Duration;

use http::Method;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Pod};
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams, WatchEvent, WatchParams};
use kube::client::ClientBuilder;
use kube::{Client, ResourceExt};
use serde_json::json;
use tributary_api::minicluster::MiniCluster;
use tributary_clock::{SeededRng, SystemClock};

use super::*;
use tributary_cluster::caches::{self, Selection};
use tributary_cluster::error::{Cause, absence};

#[path = "history.rs"]
mod history;

const APPLY: &str = "application/apply-patch+yaml";
const MERGE: &str = "application/merge-patch+json";
const JSON: &str = "application/json";
const MAPS: &str = "/api/v1/namespaces/n/configmaps";
const LAKES: &str = "/apis/flux-framework.org/v1alpha2/namespaces/n/miniclusters";

fn server() -> ApiServer {
    ApiServer::new("east", SystemClock::shared())
}

fn client(server: &ApiServer) -> Client {
    ClientBuilder::new(server.clone(), "n").build()
}

fn maps(server: &ApiServer) -> Api<ConfigMap> {
    Api::namespaced(client(server), "n")
}

/// What is answered to one request: its code, and its body.
async fn ask(server: &ApiServer, method: &str, path: &str, content: &str, body: Value) -> (u16, Value) {
    let body = if body.is_null() { Vec::new() } else { body.to_string().into_bytes() };
    let request = Request::builder().method(method).uri(path).header("content-type", content);
    let request = request.header("user-agent", "kubectl/v1").body(Body::from(body)).unwrap();
    let response = server.clone().call(request).await.unwrap();
    let code = response.status().as_u16();
    let bytes = response.into_body().collect().await.unwrap().to_bytes();
    (code, serde_json::from_slice(&bytes).unwrap_or(Value::Null))
}

fn map(name: &str, data: Value) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data})
}

fn lake(metadata: Value, spec: Value) -> Value {
    json!({"apiVersion": "flux-framework.org/v1alpha2", "kind": "MiniCluster", "metadata": metadata, "spec": spec})
}

/// An object of a kind of Kubernetes, made by the simulation.
fn made<K: tributary_cluster::apply::Appliable>(server: &ApiServer, name: &str, rest: Value) -> K {
    let mut object = json!({"metadata": {"name": name, "namespace": "n"}});
    json_patch::merge(&mut object, &rest);
    server.put(&serde_json::from_value::<K>(object).unwrap()).unwrap()
}

#[tokio::test(start_paused = true)]
async fn answers_are_those_of_kubernetes() {
    let server = server();
    // In this order: method, path, content type, body; the code, and what the answer says.
    let table = [
        ("POST", MAPS, JSON, map("a", json!({"k": "v"})), 201, r#""namespace":"n""#),
        ("POST", MAPS, JSON, map("a", json!({})), 409, r#"configmaps \"a\" already exists"#),
        ("POST", MAPS, JSON, json!({"metadata": {"generateName": "g-"}}), 201, r#""name":"g-"#),
        ("POST", MAPS, JSON, json!({"metadata": {"name": "x", "resourceVersion": "5"}}), 500, "should not be set"),
        ("GET", &format!("{MAPS}/zz"), JSON, Value::Null, 404, r#"configmaps \"zz\" not found"#),
        ("PUT", &format!("{MAPS}/b"), JSON, map("b", json!({})), 404, "NotFound"),
        ("PUT", &format!("{MAPS}/a"), JSON, map("b", json!({})), 400, "(b) does not match the name on the URL (a)"),
        ("PUT", &format!("{MAPS}/a"), JSON, map("a", json!({"k": "w"})), 200, r#""k":"w""#),
        ("PUT", &format!("{MAPS}/a"), JSON, json!({"metadata": {"uid": "u"}}), 409, "UID in precondition: u"),
        ("PUT", &format!("{MAPS}/a"), JSON, json!({"metadata": {"resourceVersion": "1"}}), 409, "has been modified"),
        ("PATCH", &format!("{MAPS}/a"), MERGE, json!({"data": {"k": null, "l": "1"}}), 200, r#""data":{"l":"1"}"#),
        ("PATCH", &format!("{MAPS}/zz"), MERGE, json!({}), 404, "NotFound"),
        ("PATCH", &format!("{MAPS}/a"), MERGE, json!({"metadata": {"uid": "u"}}), 422, "field is immutable"),
        ("PATCH", &format!("{MAPS}/a?dryRun=All"), MERGE, json!({"data": {"l": "2"}}), 200, r#""l":"2""#),
        ("GET", &format!("{MAPS}/a"), JSON, Value::Null, 200, r#""l":"1""#),
        (
            "PATCH",
            &format!("{MAPS}/a"),
            "application/json-patch+json",
            json!([{"op": "test", "path": "/data/l", "value": "no"}]),
            422,
            "rejected our request",
        ),
        (
            "PATCH",
            &format!("{MAPS}/a"),
            "application/json-patch+json",
            json!([{"op": "replace", "path": "/data/l", "value": "9"}]),
            200,
            r#""l":"9""#,
        ),
        ("PATCH", &format!("{MAPS}/a"), APPLY, map("a", json!({})), 422, "fieldManager: Required value"),
        ("PATCH", &format!("{MAPS}/a?fieldManager=m"), APPLY, json!({}), 400, "invalid object type"),
        ("PATCH", &format!("{MAPS}/new?fieldManager=m"), APPLY, map("new", json!({"k": "1"})), 201, r#""k":"1""#),
        (
            "PATCH",
            &format!("{MAPS}/q?fieldManager=m"),
            APPLY,
            json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"uid": "u"}}),
            409,
            "no existing object was found",
        ),
        (
            "DELETE",
            &format!("{MAPS}/a"),
            JSON,
            json!({"preconditions": {"uid": "x"}}),
            409,
            "UID in the precondition (x)",
        ),
        ("DELETE", &format!("{MAPS}/a"), JSON, json!({"preconditions": {"resourceVersion": "1"}}), 409, "Conflict"),
        ("DELETE", &format!("{MAPS}/a"), JSON, Value::Null, 200, r#""status":"Success""#),
        ("DELETE", &format!("{MAPS}/a"), JSON, Value::Null, 404, "NotFound"),
        ("GET", &format!("{MAPS}?labelSelector=a+in+b"), JSON, Value::Null, 400, "unable to parse requirement"),
        ("POST", LAKES, JSON, lake(json!({"name": "l"}), json!({"size": 1})), 201, r#""generation":1"#),
        (
            "PUT",
            &format!("{LAKES}/l"),
            JSON,
            lake(json!({"name": "l"}), json!({})),
            422,
            "must be specified for an update",
        ),
        ("PATCH", &format!("{LAKES}/l"), "application/strategic-merge-patch+json", json!({}), 415, "unknown format"),
        ("PATCH", &format!("{LAKES}/l/status"), MERGE, json!({"metadata": {"uid": "u"}, "status": {}}), 200, "uid"),
        ("PATCH", &format!("{LAKES}/l/scale"), MERGE, json!({}), 404, "NotFound"),
    ];
    for (method, path, content, body, code, told) in table {
        let (found, answer) = ask(&server, method, path, content, body.clone()).await;
        let answer = answer.to_string();
        assert!(found == code && answer.contains(told), "{method} {path} {body}: {found} {answer}");
    }
}

#[tokio::test(start_paused = true)]
async fn errors_are_read_as_those_of_an_api_server() {
    let server = server();
    assert!(absence(maps(&server).get("a").await, "a").unwrap().is_none());
    server.fail_next("get", "configmaps", Fault::Answer(404));
    assert!(absence(maps(&server).get("a").await, "a").is_err(), "the kind is not served");
    let mut taken = made::<ConfigMap>(&server, "a", json!({}));
    taken.metadata.resource_version = None;
    let cause = Cause::from(maps(&server).create(&PostParams::default(), &taken).await.unwrap_err());
    assert!(cause.is_already_exists(), "{cause}");
    let reader = client(&server);
    assert!(reader.list_api_group_resources("batch/v1").await.is_err());
    server.serve::<Job>();
    let served = reader.list_api_group_resources("batch/v1").await.unwrap();
    assert_eq!((served.resources[0].kind.as_str(), served.resources[0].namespaced), ("Job", true));
}

#[tokio::test(start_paused = true)]
async fn versions_grow_with_what_is_stored_and_generations_with_what_is_wanted() {
    let server = server();
    let one = format!("{LAKES}/l");
    let meta = |answer: &(u16, Value)| {
        let number = |name: &str| answer.1["metadata"][name].to_string().trim_matches('"').parse::<u64>().unwrap();
        (number("resourceVersion"), number("generation"))
    };
    let first = ask(&server, "POST", LAKES, JSON, lake(json!({"name": "l"}), json!({"size": 1}))).await;
    let (version, _) = meta(&first);
    assert_eq!((meta(&first).1, &first.1["status"]), (1, &Value::Null));
    for (path, patch, versions, generation) in [
        (&one, json!({"spec": {"size": 1}}), 0, 1),
        (&one, json!({"metadata": {"labels": {"a": "b"}}}), 1, 1),
        (&one, json!({"status": {"ready": 9}}), 1, 1),
        (&format!("{one}/status"), json!({"status": {"ready": 1}, "spec": {"size": 7}}), 2, 1),
        (&format!("{one}/status"), json!({"status": {"ready": 1}}), 2, 1),
        (&one, json!({"spec": {"size": 2}, "status": null}), 3, 2),
    ] {
        let answer = ask(&server, "PATCH", path, MERGE, patch.clone()).await;
        assert_eq!(meta(&answer), (version + versions, generation), "{patch}");
    }
    let (_, found) = ask(&server, "GET", &one, JSON, Value::Null).await;
    assert_eq!((&found["spec"], &found["status"]), (&json!({"size": 2}), &json!({"ready": 1})));
    assert_eq!(found["metadata"]["uid"], first.1["metadata"]["uid"]);
    let written: Vec<bool> = server.writes().iter().map(|write| write.version.is_some()).collect();
    assert_eq!(written, [true, false, true, false, true, false, true]);
}

#[tokio::test(start_paused = true)]
async fn an_apply_takes_back_what_it_no_longer_says() {
    let server = server();
    let data = |value: Value| map("s", value);
    let labelled = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "s", "labels": {"a": "1"}}});
    // Who applies what, whether by force; the code, the data afterwards or what is said.
    for (who, config, force, code, expected) in [
        ("m1", data(json!({"k": "1", "l": "1"})), false, 201, json!({"k": "1", "l": "1"})),
        (
            "m2",
            data(json!({"k": "2"})),
            false,
            409,
            json!("Apply failed with 1 conflict: conflict with \"m1\": .data.k"),
        ),
        ("m2", data(json!({"k": "1", "m": "1"})), false, 200, json!({"k": "1", "l": "1", "m": "1"})),
        ("m1", data(json!({"l": "2"})), false, 200, json!({"k": "1", "l": "2", "m": "1"})),
        ("m2", data(json!({"l": "3"})), true, 200, json!({"l": "3"})),
        ("m1", labelled.clone(), false, 200, json!({"l": "3"})),
        ("m2", labelled, false, 200, Value::Null),
    ] {
        let path = format!("{MAPS}/s?fieldManager={who}&force={force}");
        let (found, answer) = ask(&server, "PATCH", &path, APPLY, config.clone()).await;
        let told = if code == 409 { &answer["message"] } else { &answer["data"] };
        assert_eq!((found, told), (code, &expected), "{who} {config}");
    }
    // Who updates a field owns it: an apply conflicts, and takes nothing away.
    ask(&server, "PATCH", &format!("{MAPS}/s?fieldManager=m1"), APPLY, data(json!({"k": "1"}))).await;
    ask(&server, "PATCH", &format!("{MAPS}/s?fieldManager=m1"), MERGE, json!({"data": {"k": "2"}})).await;
    let (code, _) = ask(&server, "PATCH", &format!("{MAPS}/s?fieldManager=m1"), APPLY, data(json!({"k": "1"}))).await;
    assert_eq!(code, 409);
    let (_, left) = ask(&server, "PATCH", &format!("{MAPS}/s?fieldManager=m1"), APPLY, data(json!({"z": "1"}))).await;
    assert_eq!(left["data"], json!({"k": "2", "z": "1"}));
}

/// Seen at a real one: `status.times` of a Burst.
#[tokio::test(start_paused = true)]
async fn an_object_that_an_apply_empties_is_refused() {
    let server = server();
    for (flux, code) in [(json!({"logLevel": 6}), 201), (json!({}), 422), (Value::Null, 200), (json!({}), 200)] {
        let spec = if flux.is_null() { json!({"size": 1}) } else { json!({"size": 1, "flux": flux}) };
        let (found, answer) =
            ask(&server, "PATCH", &format!("{LAKES}/l?fieldManager=m"), APPLY, lake(json!({"name": "l"}), spec)).await;
        assert_eq!(found, code, "{flux}: {answer}");
        assert!(code != 422 || answer["message"].as_str().unwrap().contains("spec.flux in body must be"), "{answer}");
    }
}

#[tokio::test(start_paused = true)]
async fn lists_with_keys_merge() {
    let server = server();
    let pods = "/api/v1/namespaces/n/pods/p";
    let pod = |spec: Value| json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": spec});
    let containers = |list: Value| pod(json!({"containers": list}));
    for (who, config, expected) in [
        ("m1", containers(json!([{"name": "a", "image": "1"}])), json!([{"name": "a", "image": "1"}])),
        (
            "m2",
            containers(json!([{"name": "b", "image": "1"}, {"name": "a", "tty": true}])),
            json!([{"name": "b", "image": "1"}, {"name": "a", "image": "1", "tty": true}]),
        ),
        ("m1", containers(json!([])), json!([{"name": "b", "image": "1"}, {"name": "a", "tty": true}])),
        ("m2", containers(json!([{"name": "b", "image": "2"}])), json!([{"name": "b", "image": "2"}])),
    ] {
        let path = format!("{pods}?fieldManager={who}&force=true");
        let (_, answer) = ask(&server, "PATCH", &path, APPLY, config.clone()).await;
        assert_eq!(answer["spec"]["containers"], expected, "{who} {config}");
    }
    let patch = |kind: &str, status: &str| {
        let condition = json!({"type": kind, "status": status});
        json!({"status": {"phase": "Failed", "conditions": [condition]}})
    };
    let strategic = "application/strategic-merge-patch+json";
    for (kind, status) in [("Ready", "True"), ("DisruptionTarget", "True"), ("Ready", "False")] {
        ask(&server, "PATCH", &format!("{pods}/status"), strategic, patch(kind, status)).await;
    }
    let (_, found) = ask(&server, "GET", pods, JSON, Value::Null).await;
    let expected = json!([{"type": "Ready", "status": "False"}, {"type": "DisruptionTarget", "status": "True"}]);
    assert_eq!(found["status"], json!({"phase": "Failed", "conditions": expected}));
}

#[tokio::test(start_paused = true)]
async fn lists_are_selected_and_paged() {
    let server = server();
    for (name, labels) in [("a", json!({"x": "1"})), ("b", json!({"x": "2", "y": ""})), ("c", json!({}))] {
        made::<ConfigMap>(&server, name, json!({"metadata": {"labels": labels}, "data": {"of": name}}));
    }
    let names = |list: &[ConfigMap]| list.iter().map(ResourceExt::name_any).collect::<String>();
    for (labels, fields, expected) in [
        ("", "", "abc"),
        ("x=1", "", "a"),
        ("x==2,y", "", "b"),
        ("x!=1", "", "bc"),
        ("x in (1, 2)", "", "ab"),
        ("x notin (1)", "", "bc"),
        ("x,!y", "", "a"),
        ("!x", "", "c"),
        ("", "metadata.name=b", "b"),
        ("", "metadata.namespace==n,data.of!=b", "ac"),
        ("x", "spec.nodeName=", "ab"),
    ] {
        let params = ListParams::default().labels(labels).fields(fields);
        let found = maps(&server).list(&params).await.unwrap();
        assert_eq!(names(&found.items), expected, "{labels} {fields}");
    }
    let first = maps(&server).list(&ListParams::default().limit(2)).await.unwrap();
    made::<ConfigMap>(&server, "bb", json!({}));
    let rest = first.metadata.continue_.clone().unwrap();
    let second = maps(&server).list(&ListParams::default().limit(2).continue_token(&rest)).await.unwrap();
    assert_eq!((names(&first.items), names(&second.items)), ("ab".into(), "c".into()), "pages are of one version");
    assert_eq!((first.metadata.resource_version, second.metadata.continue_), (second.metadata.resource_version, None));
    server.compact();
    let cause = Cause::from(maps(&server).list(&ListParams::default().continue_token(&rest)).await.unwrap_err());
    assert!(matches!(cause, Cause::Refused { code: 410, .. }), "{cause}");

    let partial = maps(&server).list_metadata(&ListParams::default()).await.unwrap();
    assert_eq!(partial.items.len(), 4);
    assert_eq!(maps(&server).get_metadata("a").await.unwrap().labels()["x"], "1");
}

/// A watch, in words: what happened to which object.
async fn watched(server: &ApiServer, params: &WatchParams, version: &str) -> Vec<String> {
    use futures::{StreamExt, TryStreamExt};
    let events = maps(server).watch(params, version).await.unwrap().boxed();
    let words = events.map_ok(|event| match event {
        WatchEvent::Added(one) => format!("+{}", one.name_any()),
        WatchEvent::Modified(one) => format!("~{}", one.name_any()),
        WatchEvent::Deleted(one) => format!("-{}", one.name_any()),
        WatchEvent::Bookmark(mark) => format!("={}", mark.metadata.resource_version),
        WatchEvent::Error(status) => format!("!{}", status.code),
    });
    words.map(|word| word.unwrap_or_else(|error| error.to_string())).collect().await
}

#[tokio::test(start_paused = true)]
async fn a_watch_shows_what_happens_and_says_how_far_it_came() {
    let server = server();
    let labelled = |value: &str| json!({"metadata": {"labels": {"x": value}}});
    made::<ConfigMap>(&server, "a", labelled("1"));
    let from = server.version().to_string();
    made::<ConfigMap>(&server, "b", labelled("2"));
    server.patch::<ConfigMap>("n", "a", json!({"data": {"k": "v"}})).unwrap();
    server.patch::<ConfigMap>("n", "a", labelled("2")).unwrap();
    server.patch::<ConfigMap>("n", "b", labelled("1")).unwrap();
    server.delete::<ConfigMap>("n", "b", &DeleteParams::default()).unwrap();
    made::<Pod>(&server, "p", json!({}));
    let mark = format!("={}", server.version());
    let params = WatchParams::default().timeout(5);
    let all = ["+b", "~a", "~a", "~b", "-b", &mark].map(str::to_owned);
    assert_eq!(watched(&server, &params, &from).await, all);
    assert_eq!(watched(&server, &params.clone().labels("x=1"), &from).await, ["~a", "-a", "+b", "-b", &mark]);
    assert_eq!(watched(&server, &params, "0").await, ["+a", &mark], "what there is");
    let later = {
        let server = server.clone();
        async move {
            tokio::time::sleep(Duration::from_secs(1)).await;
            made::<ConfigMap>(&server, "c", json!({}));
        }
    };
    let quiet = params.clone().disable_bookmarks();
    let (seen, ()) = tokio::join!(watched(&server, &quiet, &mark[1..]), later);
    assert_eq!(seen, ["+c"]);
    server.compact();
    assert_eq!(watched(&server, &params, &from).await, ["!410"]);
}

#[tokio::test(start_paused = true)]
async fn watches_skip_to_the_last_event_of_each_object() {
    let server = server();
    let params = WatchParams::default().timeout(5).disable_bookmarks();
    made::<ConfigMap>(&server, "a", json!({}));
    made::<ConfigMap>(&server, "b", json!({}));
    let from = server.version().to_string();
    server.lag("configmaps");
    for name in ["a", "b", "c"] {
        made::<ConfigMap>(&server, name, json!({"data": {"n": "1"}}));
    }
    let gone = |name: &str| server.delete::<ConfigMap>("n", name, &DeleteParams::default()).unwrap();
    gone("b");
    gone("c");
    made::<ConfigMap>(&server, "b", json!({}));
    server.skip("configmaps");
    assert_eq!(watched(&server, &params, &from).await, ["~a", "~b"], "of c nobody hears");
    gone("a");
    made::<ConfigMap>(&server, "a", json!({}));
    assert_eq!(watched(&server, &params, &from).await, ["~a", "~b", "-a", "+a"], "what comes later is told whole");
}

#[tokio::test(start_paused = true)]
async fn a_restart_breaks_watches_and_forgets_what_happened() {
    let server = server();
    let params = WatchParams::default().timeout(5).disable_bookmarks();
    let from = server.version().to_string();
    made::<ConfigMap>(&server, "a", json!({}));
    let restarts = async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        server.restart();
    };
    let (seen, ()) = tokio::join!(watched(&server, &params, &from), restarts);
    assert_eq!((seen[0].as_str(), seen.len(), server.restarts()), ("+a", 2, 1), "it broke: {seen:?}");
    assert_eq!(watched(&server, &params, &from).await, ["!410"]);
}

#[tokio::test(start_paused = true)]
async fn a_watch_can_die_in_silence_and_a_backup_is_older() {
    let server = server();
    let params = WatchParams::default().timeout(5).disable_bookmarks();
    let from = server.version().to_string();
    made::<ConfigMap>(&server, "a", json!({}));
    let backup = server.backup();
    let dies = async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        server.mute_watches();
        made::<ConfigMap>(&server, "b", json!({}));
    };
    let watch = tokio::time::timeout(Duration::from_secs(60), watched(&server, &params, &from));
    assert!(tokio::join!(watch, dies).0.is_err(), "it does not end");
    assert_eq!(watched(&server, &params, &from).await, ["+a", "+b"], "another one is another connection");
    server.restore(backup);
    let there = server.list::<ConfigMap>().iter().map(kube::ResourceExt::name_any).collect::<Vec<_>>();
    assert_eq!(there, ["a"]);
    assert_eq!(made::<ConfigMap>(&server, "c", json!({})).metadata.resource_version, Some("3".to_owned()));
}

#[tokio::test(start_paused = true)]
async fn watches_lag_lose_events_and_end() {
    let server = server();
    let params = WatchParams::default().timeout(5).disable_bookmarks();
    let from = server.version().to_string();
    made::<ConfigMap>(&server, "a", json!({}));
    server.lag("configmaps");
    made::<ConfigMap>(&server, "b", json!({}));
    assert_eq!(watched(&server, &params, &from).await, ["+a"]);
    let any = ListParams::default().at("0");
    let listed = async |params: &ListParams| maps(&server).list(params).await.unwrap().items.len();
    assert_eq!((listed(&any).await, listed(&ListParams::default()).await), (1, 2));
    server.catch_up("configmaps");
    server.drop_next_events("configmaps", 1);
    assert_eq!(watched(&server, &params, &from).await, ["+b"]);
    let ends = |server: &ApiServer, away: bool| {
        let server = server.clone();
        async move {
            tokio::time::sleep(Duration::from_secs(1)).await;
            if away { server.set_away(Some(Away::Refuses)) } else { server.end_watches() }
        }
    };
    let newest = server.version().to_string();
    let began = tokio::time::Instant::now();
    let (seen, ()) = tokio::join!(watched(&server, &params, &newest), ends(&server, false));
    assert_eq!((seen.len(), began.elapsed().as_secs()), (0, 1));
    let (seen, ()) = tokio::join!(watched(&server, &params, &newest), ends(&server, true));
    assert_eq!(seen.len(), 1, "it broke: {seen:?}");
    assert!(matches!(Cause::from(maps(&server).get("a").await.unwrap_err()), Cause::Transport(_)));

    server.set_away(None);
    let silence = {
        let server = server.clone();
        async move {
            tokio::time::sleep(Duration::from_secs(1)).await;
            server.set_away(Some(Away::Silent));
            made::<ConfigMap>(&server, "c", json!({}));
            let asked = tokio::time::timeout(Duration::from_secs(8), maps(&server).get("a")).await;
            assert!(asked.is_err(), "it was answered");
            server.set_away(None);
        }
    };
    let began = tokio::time::Instant::now();
    let (seen, ()) = tokio::join!(watched(&server, &params, &newest), silence);
    assert_eq!((seen, began.elapsed().as_secs()), (vec!["+c".to_owned()], 9));
}

#[tokio::test(start_paused = true)]
async fn requests_fail_as_they_are_told_to() {
    let server = server();
    let create = async |name: &str| {
        let object: ConfigMap = serde_json::from_value(map(name, json!({}))).unwrap();
        let (api, params) = (maps(&server), PostParams::default());
        tokio::time::timeout(Duration::from_secs(3), api.create(&params, &object)).await
    };
    // What is answered, and whether it was done: at once, and in the end.
    for (name, fault, answer, done) in [
        ("a", Fault::Answer(409), "409", (false, false)),
        ("b", Fault::Answer(429), "429", (false, false)),
        ("c", Fault::Answer(503), "503", (false, false)),
        ("d", Fault::Break, "broken", (false, false)),
        ("e", Fault::Silence, "silence", (false, false)),
        ("f", Fault::LoseAnswer, "broken", (true, true)),
        ("g", Fault::DelayAnswer(Duration::from_secs(9)), "silence", (true, true)),
        ("h", Fault::DelayAnswer(Duration::from_secs(1)), "ok", (true, true)),
        ("i", Fault::Late(Duration::from_secs(9)), "silence", (false, true)),
    ] {
        server.fail_next("create", "configmaps", fault.clone());
        let found = match create(name).await {
            Err(_) => "silence".to_owned(),
            Ok(Ok(_)) => "ok".to_owned(),
            Ok(Err(error)) => match Cause::from(error) {
                Cause::Refused { code, .. } => code.to_string(),
                _ => "broken".to_owned(),
            },
        };
        let there = || server.get::<ConfigMap>("n", name).is_some();
        let at_once = there();
        tokio::time::sleep(Duration::from_secs(20)).await;
        assert_eq!((found.as_str(), (at_once, there())), (answer, done), "{fault:?}");
    }
    // Somebody else is faster: a hook sees what is asked for, and can change it first.
    let (known, other) = (server.get::<ConfigMap>("n", "f").unwrap(), server.clone());
    server.on_request(move |info| {
        if (info.verb, info.name.as_str()) == ("update", "f") {
            other.patch::<ConfigMap>("n", "f", json!({"data": {"theirs": "1"}})).unwrap();
        }
        (info.verb == "list").then_some(Fault::Stale(2))
    });
    let refused = maps(&server).replace("f", &PostParams::default(), &known).await.unwrap_err();
    assert!(Cause::from(refused).is_conflict());
    assert_eq!(maps(&server).list(&ListParams::default()).await.unwrap().items.len(), 1, "as it was at version 2");
}

#[tokio::test(start_paused = true)]
async fn deletions_wait_for_finalizers_and_kubelets() {
    let server = server();
    let now = DeleteParams { grace_period_seconds: Some(0), ..DeleteParams::default() };
    made::<ConfigMap>(&server, "f", json!({"metadata": {"finalizers": ["a.b/c"]}}));
    for _ in 0..2 {
        server.delete::<ConfigMap>("n", "f", &now).unwrap();
    }
    let held = server.get::<ConfigMap>("n", "f").unwrap();
    assert!(held.metadata.deletion_timestamp.is_some());
    let more = server.patch::<ConfigMap>("n", "f", json!({"metadata": {"finalizers": ["a.b/c", "d.e/f"]}}));
    assert_eq!(more.unwrap_err().code, 422);
    server.patch::<ConfigMap>("n", "f", json!({"metadata": {"finalizers": null}})).unwrap();
    assert!(server.get::<ConfigMap>("n", "f").is_none());

    for (name, node, phase, stays) in
        [("p", Some("n1"), "Running", true), ("q", None, "Pending", false), ("r", Some("n1"), "Failed", false)]
    {
        made::<Pod>(&server, name, json!({"spec": {"nodeName": node, "containers": []}, "status": {"phase": phase}}));
        server.delete::<Pod>("n", name, &DeleteParams::default()).unwrap();
        let left = server.get::<Pod>("n", name).map(|pod| pod.metadata.deletion_grace_period_seconds);
        assert_eq!(left, stays.then_some(Some(30)), "{name}");
    }
    server.delete::<Pod>("n", "p", &now).unwrap();
    assert!(server.list::<Pod>().is_empty());
}

#[tokio::test(start_paused = true)]
async fn dependents_go_with_their_owners() {
    for (params, first, second) in [
        (DeleteParams::background(), "p", ""),
        (DeleteParams::foreground(), "jp", ""),
        (DeleteParams::orphan(), "p", "p"),
        (DeleteParams::default(), "p", "p"),
    ] {
        let server = server();
        let job = made::<Job>(&server, "j", json!({}));
        let owner = json!({"apiVersion": "batch/v1", "kind": "Job", "name": "j", "uid": job.uid(),
            "controller": true, "blockOwnerDeletion": true});
        let pod = json!({"metadata": {"ownerReferences": [owner]}, "spec": {"nodeName": "n1", "containers": []}});
        made::<Pod>(&server, "p", pod);
        assert_eq!(server.collect_garbage(), 0);
        server.delete::<Job>("n", "j", &params).unwrap();
        let there = || {
            let jobs = server.list::<Job>().iter().map(ResourceExt::name_any).collect::<String>();
            jobs + &server.list::<Pod>().iter().map(ResourceExt::name_any).collect::<String>()
        };
        server.collect_garbage();
        assert_eq!(there(), first, "{params:?}: the kubelet has not ended the pod");
        if server.get::<Pod>("n", "p").unwrap().metadata.deletion_timestamp.is_some() {
            server.delete::<Pod>("n", "p", &DeleteParams::default().grace_period(0)).unwrap();
        }
        server.collect_garbage();
        assert_eq!(there(), second, "{params:?}");
        if let Some(pod) = server.get::<Pod>("n", "p") {
            assert!(pod.owner_references().is_empty(), "{params:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_simulation_sees_and_changes_objects_of_any_kind() {
    let server = server();
    let kube_system: Namespace = serde_json::from_value(json!({"metadata": {"name": "kube-system"}})).unwrap();
    server.put(&kube_system).unwrap();
    let uid = tributary_cluster::discovery::cluster_uid(&client(&server)).await.unwrap();
    assert_ne!(uid, ApiServer::new("west", SystemClock::shared()).put(&kube_system).unwrap().uid().unwrap());
    server.on_write(|info, object| {
        if info.resource == "miniclusters" && object["spec"]["size"] == 0 {
            return Err(Box::new(Status::failure("no", "Forbidden").with_code(403)));
        }
        object["metadata"]["labels"]["seen"] = "yes".into();
        Ok(())
    });
    let spec = json!({"spec": {"size": 0, "containers": []}, "status": {"ready": 1}});
    let mut mini_cluster: MiniCluster =
        serde_json::from_value(lake(json!({"name": "l", "namespace": "n"}), spec["spec"].clone())).unwrap();
    assert_eq!(server.put(&mini_cluster).unwrap_err().code, 403);
    mini_cluster.spec.size = Some(2);
    server.put(&mini_cluster).unwrap();
    server.patch_status::<MiniCluster>("n", "l", spec["status"].clone()).unwrap();
    let stored = server.put(&mini_cluster).unwrap();
    assert_eq!((stored.status.unwrap().ready, stored.metadata.generation), (Some(1), Some(1)));
    assert_eq!(server.get::<MiniCluster>("n", "l").unwrap().labels()["seen"], "yes");
    assert_eq!(server.requests()[&("create", "miniclusters".to_owned())], 2);
    let reads = Method::GET;
    assert!(ask(&server, reads.as_str(), LAKES, JSON, Value::Null).await.1["kind"] == "MiniClusterList");
}
