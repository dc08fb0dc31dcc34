//! The API server in memory answers as a real one does.

use http::Request;
use kube::Client;
use kube::client::{Body, ClientBuilder};
use serde_json::{Value, json};
use tributary::clock::SystemClock;
use tributary_api_server::ApiServer;

use crate::shared::{places, together};

const APPLY: &str = "application/apply-patch+yaml";
const MERGE: &str = "application/merge-patch+json";
const JSON: &str = "application/json";
const JSON_PATCH: &str = "application/json-patch+json";
const STRATEGIC: &str = "application/strategic-merge-patch+json";

/// Methods, paths in the namespace, content types and bodies. `UID` and `VERSION` stand for those of the last object.
fn requests() -> Vec<(&'static str, String, &'static str, Value)> {
    let mut all: Vec<(&str, String, &str, Value)> = Vec::new();
    let mut ask = |method, path: &str, content, body: Value| all.push((method, path.to_owned(), content, body));
    let map = |name: &str, data: Value| {
        let metadata = json!({"name": name, "labels": {"t": "1"}});
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data})
    };
    let bare = |name: &str| json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}});
    let of_uid = |name: &str| json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "uid": "u"}});
    let merge = |uid: &str| json!({"metadata": {"uid": uid}, "data": {"k": "uid"}});
    for (method, path, content, body) in [
        ("POST", "configmaps", JSON, map("a", json!({"k": "v"}))),
        ("POST", "configmaps", JSON, map("a", json!({}))),
        ("POST", "configmaps", JSON, json!({"metadata": {"name": "x", "resourceVersion": "5"}})),
        ("GET", "configmaps/zz", JSON, Value::Null),
        ("PUT", "configmaps/zz", JSON, map("zz", json!({}))),
        ("PUT", "configmaps/a", JSON, map("b", json!({}))),
        ("PUT", "configmaps/a", JSON, map("a", json!({"k": "w"}))),
        ("PUT", "configmaps/a", JSON, json!({"metadata": {"name": "a", "uid": "u"}})),
        ("PUT", "configmaps/a", JSON, json!({"metadata": {"name": "a", "resourceVersion": "1"}})),
        ("PATCH", "configmaps/a", MERGE, json!({"data": {"k": null, "l": "1"}})),
        ("PATCH", "configmaps/a", MERGE, json!({"data": {"l": "1"}})),
        ("PATCH", "configmaps/a?dryRun=All", MERGE, json!({"data": {"l": "2"}})),
        ("PATCH", "configmaps/a", MERGE, merge("u")),
        ("PATCH", "configmaps/a", MERGE, merge("UID")),
        ("PATCH", "configmaps/a", MERGE, json!({"metadata": {"resourceVersion": "1"}})),
        ("PATCH", "configmaps/a", MERGE, json!({"metadata": {"resourceVersion": "VERSION", "labels": {"u": "1"}}})),
        ("PATCH", "configmaps/zz", MERGE, json!({})),
        ("PATCH", "configmaps/a", JSON_PATCH, json!([{"op": "test", "path": "/data/l", "value": "no"}])),
        ("PATCH", "configmaps/a", JSON_PATCH, json!([{"op": "replace", "path": "/data/l", "value": "9"}])),
        ("PATCH", "configmaps/a", STRATEGIC, json!({"metadata": {"finalizers": ["a.b/c"]}})),
        ("DELETE", "configmaps/a", JSON, json!({"preconditions": {"uid": "x"}})),
        ("DELETE", "configmaps/a", JSON, json!({"preconditions": {"resourceVersion": "1"}})),
        ("DELETE", "configmaps/a?dryRun=All", JSON, Value::Null),
        ("DELETE", "configmaps/a", JSON, json!({"preconditions": {"uid": "UID"}})),
        ("DELETE", "configmaps/a", JSON, Value::Null),
        ("PATCH", "configmaps/a", MERGE, json!({"metadata": {"finalizers": ["a.b/c", "d.e/f", "g.h/i"]}})),
        ("PATCH", "configmaps/a", MERGE, json!({"metadata": {"finalizers": null}})),
        ("GET", "configmaps/a", JSON, Value::Null),
        ("DELETE", "configmaps/a", JSON, Value::Null),
        // Server-side apply.
        ("PATCH", "configmaps/s", APPLY, map("s", json!({}))),
        ("PATCH", "configmaps/s?fieldManager=m1", APPLY, json!({"metadata": {"name": "s"}})),
        ("PATCH", "configmaps/s?fieldManager=m1", APPLY, of_uid("s")),
        ("PATCH", "configmaps/s?fieldManager=m1", APPLY, map("s", json!({"k": "1", "l": "1"}))),
        ("PATCH", "configmaps/s?fieldManager=m1", APPLY, map("s", json!({"k": "1", "l": "1"}))),
        ("PATCH", "configmaps/s?fieldManager=m2", APPLY, map("s", json!({"k": "2"}))),
        ("PATCH", "configmaps/s?fieldManager=m2", APPLY, map("s", json!({"k": "2", "l": "2"}))),
        ("PATCH", "configmaps/s?fieldManager=m2", APPLY, map("s", json!({"k": "1", "m": "1"}))),
        ("PATCH", "configmaps/s?fieldManager=m1", APPLY, map("s", json!({"l": "2"}))),
        ("PATCH", "configmaps/s?fieldManager=m2&force=true", APPLY, map("s", json!({"l": "3"}))),
        ("PATCH", "configmaps/s?fieldManager=m1", APPLY, map("s", json!({}))),
        ("PATCH", "configmaps/s?fieldManager=m1", MERGE, json!({"data": {"l": "4"}})),
        ("PATCH", "configmaps/s?fieldManager=m2", APPLY, map("s", json!({"l": "3"}))),
        ("PATCH", "configmaps/s?fieldManager=m2", APPLY, map("s", json!({"l": "4"}))),
        ("PATCH", "configmaps/s?fieldManager=m2", APPLY, bare("s")),
        ("PATCH", "configmaps/s?fieldManager=m1", APPLY, bare("s")),
        ("DELETE", "configmaps/s", JSON, Value::Null),
    ] {
        ask(method, path, content, body);
    }
    // Lists with keys, and the status of a kind of Kubernetes. No scheduler takes this pod.
    let pod = |containers: Value| {
        let spec = json!({"schedulingGates": [{"name": "test/stays"}], "containers": containers});
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": spec})
    };
    let template = |containers: Value| {
        let template = json!({"spec": {"containers": containers}});
        json!({"apiVersion": "v1", "kind": "PodTemplate", "metadata": {"name": "t"}, "template": template})
    };
    let a = json!({"name": "a", "image": "1", "env": [{"name": "A", "value": "1"}]});
    let b = json!({"name": "b", "image": "1"});
    let ports = json!([{"containerPort": 1}, {"containerPort": 1, "protocol": "UDP"}]);
    for (manager, containers) in [
        ("m1", json!([a, b])),
        ("m2", json!([{"name": "b", "image": "2"}])),
        ("m2&force=true", json!([{"name": "b", "image": "2", "env": [{"name": "B", "value": "1"}]}])),
        ("m1", json!([{"name": "b"}, {"name": "a", "image": "3", "ports": ports}])),
        ("m3", json!([{"name": "c", "image": "4"}, {"name": "b", "tty": true}])),
        ("m1", json!([{"name": "a", "image": "3", "ports": [{"containerPort": 1, "protocol": "UDP"}]}])),
        ("m2", json!([{"name": "b", "image": "2"}, {"name": "d", "image": "5"}])),
    ] {
        ask("PATCH", &format!("podtemplates/t?fieldManager={manager}"), APPLY, template(containers));
    }
    let status = |kind: &str, status: &str| {
        let condition = json!({"type": kind, "status": status});
        json!({"status": {"phase": "Failed", "conditions": [condition]}})
    };
    for (method, path, content, body) in [
        ("PATCH", "pods/p?fieldManager=m1", APPLY, pod(json!([a, b]))),
        ("PATCH", "pods/p?fieldManager=m2", APPLY, pod(json!([{"name": "b", "image": "2"}]))),
        ("PATCH", "pods/p?fieldManager=m2&force=true", APPLY, pod(json!([{"name": "b", "image": "2"}]))),
        ("PATCH", "pods/p", MERGE, json!({"metadata": {"labels": {"t": "1"}}})),
        ("PATCH", "pods/p/status", STRATEGIC, status("Ready", "True")),
        ("PATCH", "pods/p/status", STRATEGIC, status("DisruptionTarget", "True")),
        ("PATCH", "pods/p/status", STRATEGIC, status("Ready", "False")),
        ("PATCH", "pods/p/status", STRATEGIC, json!({"metadata": {"uid": "u"}, "status": {"phase": "Failed"}})),
        ("DELETE", "pods/p", JSON, Value::Null),
        ("GET", "pods/p", JSON, Value::Null),
    ] {
        ask(method, path, content, body);
    }
    // A custom kind, which no agent looks at in this namespace.
    let peer = |spec: Value| {
        let metadata = json!({"name": "l", "labels": {"t": "1"}});
        json!({"apiVersion": "tributary.dev/v1alpha1", "kind": "ClusterPeer", "metadata": metadata, "spec": spec})
    };
    let told = |status: &str| {
        let mut condition = json!({"type": "Connected", "status": status, "reason": "A", "message": ""});
        condition["lastTransitionTime"] = "2026-01-01T00:00:00Z".into();
        json!({"status": {"conditions": [condition]}})
    };
    let with = |mut object: Value, metadata: Value| {
        object["metadata"].as_object_mut().unwrap().extend(metadata.as_object().unwrap().clone());
        object
    };
    let applied = |metadata: Value| {
        let mut object = told("False");
        object["apiVersion"] = "tributary.dev/v1alpha1".into();
        object["kind"] = "ClusterPeer".into();
        object["metadata"] = json!({"name": "l"});
        with(object, metadata)
    };
    for (method, path, content, body) in [
        ("POST", "clusterpeers", JSON, with(peer(json!({"endpoints": ["a:1"]})), json!({"generation": 7}))),
        ("PUT", "clusterpeers/l", JSON, peer(json!({"endpoints": ["a:2"]}))),
        ("PATCH", "clusterpeers/l", STRATEGIC, json!({})),
        ("PATCH", "clusterpeers/l", MERGE, json!({"spec": {"endpoints": ["a:1"]}})),
        ("PATCH", "clusterpeers/l", MERGE, json!({"spec": {"endpoints": ["a:2"]}, "status": told("True")["status"]})),
        ("PATCH", "clusterpeers/l/status", MERGE, told("True")),
        ("PATCH", "clusterpeers/l/status", MERGE, json!({"metadata": {"uid": "u", "labels": {"x": "y"}}})),
        ("PATCH", "clusterpeers/l/status?fieldManager=s&force=true", APPLY, applied(json!({}))),
        ("PATCH", "clusterpeers/l/status?fieldManager=s&force=true", APPLY, applied(json!({"uid": "u"}))),
        ("PATCH", "clusterpeers/l/status?fieldManager=s&force=true", APPLY, applied(json!({"resourceVersion": "1"}))),
        ("PATCH", "clusterpeers/zz/status?fieldManager=s", APPLY, applied(json!({"name": "zz"}))),
        ("PATCH", "clusterpeers/l", MERGE, json!({"metadata": {"uid": "u"}})),
        ("DELETE", "clusterpeers/l", JSON, json!({"propagationPolicy": "Background"})),
    ] {
        ask(method, path, content, body);
    }
    for query in ["t", "t!=1", "t in (1,2)", "!t,t", "t notin (1", "t in 1"] {
        let query = query.replace(' ', "+").replace('!', "%21");
        ask("GET", &format!("clusterpeers?labelSelector={query}"), JSON, Value::Null);
    }
    all
}

/// What is answered: the object, or code and reason.
async fn answer(client: &Client, method: &str, path: &str, content: &str, body: &Value) -> Value {
    let body = if body.is_null() { Vec::new() } else { body.to_string().into_bytes() };
    let request = Request::builder().method(method).uri(path).header("content-type", content).body(body).unwrap();
    match client.request::<Value>(request).await {
        Ok(object) => object,
        Err(kube::Error::Api(status)) => json!({"code": status.code, "reason": status.reason}),
        Err(error) => panic!("{method} {path}: {error}"),
    }
}

/// An answer without what differs from server to server.
fn plain(mut answer: Value) -> Value {
    let lists = answer.get_mut("items").and_then(Value::as_array_mut).map(std::mem::take);
    for part in ["metadata", "details"] {
        if let Some(fields) = answer.get_mut(part).and_then(Value::as_object_mut) {
            for name in ["uid", "resourceVersion", "managedFields", "creationTimestamp", "deletionTimestamp"] {
                fields.remove(name);
            }
        }
    }
    // The scheduler says something, too, and their order says nothing.
    if let Some(conditions) = answer.pointer_mut("/status/conditions").and_then(Value::as_array_mut) {
        conditions.retain(|condition| condition["type"] != "PodScheduled");
        conditions.sort_by_key(|condition| condition["type"].to_string());
    }
    if let Some(items) = lists {
        answer["items"] = items.into_iter().map(plain).collect();
    }
    answer
}

/// Whether a real object says all that `ours` says: it has defaults besides.
fn says(real: &Value, ours: &Value) -> bool {
    match (real, ours) {
        (Value::Object(real), Value::Object(ours)) => {
            ours.iter().all(|(name, ours)| real.get(name).is_some_and(|real| says(real, ours)))
        }
        (Value::Array(real), Value::Array(ours)) => {
            real.len() == ours.len() && real.iter().zip(ours).all(|(real, ours)| says(real, ours))
        }
        (real, ours) => real == ours,
    }
}

/// What a watch of the labelled ConfigMaps tells from the beginning on.
async fn watched(client: &Client, path: &str, version: &str) -> Vec<String> {
    let query = format!("watch=true&timeoutSeconds=3&labelSelector=t&resourceVersion={version}");
    let request = Request::get(format!("{path}/configmaps?{query}")).body(Body::empty()).unwrap();
    let answer = client.send(request).await.unwrap();
    let text = answer.into_body().collect_bytes().await.unwrap();
    let lines = String::from_utf8(text.to_vec()).unwrap();
    let events = lines.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    events
        .map(|event| format!("{} {} {}", event["type"], event["object"]["metadata"]["name"], event["object"]["data"]))
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_api_server_in_memory_answers_as_a_real_one() {
    let federation = together().await;
    let [east, ..] = places(&federation, "in-memory").await;
    let memory = ApiServer::new("memory", SystemClock::shared());
    let clients = [east.client.clone(), ClientBuilder::new(memory, "in-memory").build()];
    let root = |path: &str| match path.starts_with("clusterpeers") {
        true => "/apis/tributary.dev/v1alpha1/namespaces/in-memory",
        false => "/api/v1/namespaces/in-memory",
    };
    let maps = format!("{}/configmaps", root("configmaps"));
    let begin = async |client: &Client| {
        let list = answer(client, "GET", &maps, JSON, &Value::Null).await;
        list["metadata"]["resourceVersion"].as_str().unwrap().to_owned()
    };
    let begins = [begin(&clients[0]).await, begin(&clients[1]).await];
    let mut last = [Value::Null, Value::Null];
    let mut odd = Vec::new();
    for (method, path, content, body) in requests() {
        let url = format!("{}/{path}", root(&path));
        let mut answers = Vec::new();
        for (client, last) in clients.iter().zip(&mut last) {
            let text = |name: &str| last["metadata"][name].as_str().unwrap_or_default().to_owned();
            let filled = body.to_string().replace("UID", &text("uid")).replace("VERSION", &text("resourceVersion"));
            let found = answer(client, method, &url, content, &serde_json::from_str(&filled).unwrap()).await;
            if found["metadata"]["uid"].is_string() {
                *last = found.clone();
            }
            answers.push(plain(found));
        }
        let (real, ours) = (&answers[0], &answers[1]);
        let maps = path.starts_with("configmaps");
        if !(if maps { real == ours } else { says(real, ours) }) {
            odd.push(format!("{method} {path} {body}:\n  real {real}\n  ours {ours}"));
        }
    }
    let [real, ours] =
        [watched(&clients[0], root(""), &begins[0]).await, watched(&clients[1], root(""), &begins[1]).await];
    assert!(odd.is_empty(), "{}", odd.join("\n"));
    assert_eq!(real, ours);
}
