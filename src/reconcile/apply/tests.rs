use std::sync::{Arc, Mutex};

use http::{Request, Response};
use kube::client::Body;
use serde_json::from_value;
use tributary_api::labels::condition::SERVICES_READY;
use tributary_render::{Context, Ends, render};

use super::*;
use crate::dereference::JobState;
use crate::in_place::JobChange;

const REFUSAL: &str = "admission webhook \"w\" denied the request: no";

/// Writes to an API server whose policy refuses each request whose text has one of these words, and which takes all others as they
/// are; with the requests that it got.
fn writes(refused: &'static [&str]) -> (Writes, Arc<Mutex<Vec<String>>>) {
    let asked = Arc::<Mutex<Vec<String>>>::default();
    let seen = asked.clone();
    let server = tower::service_fn(move |request: Request<Body>| {
        let seen = seen.clone();
        async move {
            let (head, body) = request.into_parts();
            let body = String::from_utf8(body.collect_bytes().await?.to_vec())?;
            let request = format!("{} {} {body}", head.method, head.uri.path());
            let (code, answer) = match refused.iter().any(|word| request.contains(word)) {
                true => {
                    (403, json!({"kind": "Status", "code": 403, "reason": "Forbidden", "message": REFUSAL}).to_string())
                }
                false => (201, body),
            };
            seen.lock().unwrap().push(request);
            Ok::<_, tower::BoxError>(Response::builder().status(code).body(Body::from(answer.into_bytes()))?)
        }
    });
    let client = Client::new(server, "hpc");
    (Writes::new(client.clone(), client), asked)
}

/// One with a Service in front of a container, and one for bursts.
fn lake() -> (Known, Rendered) {
    let spec = json!({"containers": [
        {"image": "a", "runFlux": true},
        {"name": "nginx", "image": "nginx", "command": "nginx", "ports": [80]},
    ], "network": {"headlessName": "flux-service"}, "flux": {"bursting": {"network": {"type": "NodePort"}, "clusters": [{"size": 1}]}}});
    let metadata = json!({"name": "lake", "namespace": "hpc", "uid": "u"});
    let lake: MiniCluster = from_value(json!({"metadata": metadata, "spec": spec})).unwrap();
    let rendered = render(&lake, &Context::default()).unwrap();
    (Known::alone(lake, JobState::Absent), rendered)
}

fn name_of(request: &str) -> String {
    let body: Value = serde_json::from_str(&request[request.find('{').unwrap()..]).unwrap();
    body["metadata"]["name"].as_str().unwrap().to_owned()
}

/// The danger: `services.nodeports: 0`, or a policy against such ports, and no broker starts.
#[tokio::test]
async fn an_instance_runs_without_a_service_that_is_refused() {
    let (known, rendered) = lake();
    let (writes, asked) = writes(&["\"lake-lead\"", "\"nginx\""]);
    let without = writes.services(&known, &rendered, Upkeep::All).await.unwrap();
    assert_eq!(asked.lock().unwrap().len(), 3);
    assert_eq!(without.len(), 2);
    for (reason, sentence) in &without {
        assert!(*reason == "CannotCreate" && sentence.contains(REFUSAL), "{SERVICES_READY}: {reason}, {sentence}");
        let is_lead = sentence.contains("Service hpc/lake-lead");
        assert_eq!(sentence.ends_with("it is tried again; or use network.type: Tunnel"), is_lead, "{sentence}");
    }
}

#[tokio::test]
async fn without_the_service_that_names_brokers_no_instance_starts_and_the_others_are_made() {
    let (known, rendered) = lake();
    let (writes, asked) = writes(&["\"flux-service\""]);
    let error = writes.services(&known, &rendered, Upkeep::All).await.unwrap_err();
    assert!(error.cause().is_of_policy(), "{error}");
    let mut names: Vec<String> = asked.lock().unwrap().iter().map(|request| name_of(request)).collect();
    names.sort_unstable();
    assert_eq!(names, ["flux-service", "lake-lead", "nginx"]);
}

/// The danger: users of an instance that another version started ask for load balancers, and its bursts never get one.
#[tokio::test]
async fn after_an_upgrade_only_a_service_whose_type_was_edited_is_written() {
    let (mut known, mut rendered) = lake();
    known.services = rendered.services.iter().cloned().map(Arc::new).collect();
    for service in &mut rendered.services {
        let spec = service.spec.as_mut().unwrap();
        spec.session_affinity = Some("ClientIP".into());
        if spec.type_.as_deref() == Some("NodePort") {
            spec.type_ = Some("LoadBalancer".into());
        }
    }
    for (upkeep, expected) in [(Upkeep::Missing, vec![]), (Upkeep::Edited, vec!["lake-lead"])] {
        let (writes, asked) = writes(&[]);
        writes.services(&known, &rendered, upkeep).await.unwrap();
        let asked: Vec<_> = asked.lock().unwrap().iter().map(|request| name_of(request)).collect();
        assert_eq!(asked, expected);
    }
}

/// The danger: a program that pods can do without keeps them from starting.
#[tokio::test]
async fn pods_start_without_the_ends_of_the_tunnel_where_those_are_refused() {
    let (known, rendered) = lake();
    let rendered = Rendered { ends: Ends::new(vec![1]), ..rendered };
    let (writes, asked) = writes(&["lake-ends"]);
    writes.ends(&known, &rendered).await.unwrap();
    assert_eq!(asked.lock().unwrap().len(), 1);
}

/// The danger: a policy refuses a deadline, and the instance is neither suspended nor gets its Services back.
#[tokio::test]
async fn each_part_of_the_upkeep_is_tried_though_others_fail() {
    let (known, rendered) = lake();
    let label = [("queue".to_owned(), Some("a".to_owned()))];
    let job = JobChange {
        suspend: Some(true),
        deadline: Some(Some(60)),
        labels: label.into(),
        label_keys: vec!["queue".to_owned()],
        ..JobChange::default()
    };
    let maintenance = Maintenance { restore_config_map: true, job, services: Upkeep::All, ..Maintenance::default() };
    let (writes, asked) = writes(&["hpc"]);
    let (without, done) = writes.maintain(&known, Some(&rendered), &maintenance).await;
    let first = chain(&done.unwrap_err());
    assert_eq!((without, first), (None, format!("failed to read Job hpc/lake: {REFUSAL}")));
    let asked = asked.lock().unwrap();
    let asked = |what: &str| asked.iter().filter(|request| request.contains(what)).count();
    let changes =
        ["activeDeadlineSeconds", "\"suspend\":true", "\"queue\":\"a\"", "POST /api/v1/namespaces/hpc/services"];
    assert_eq!(changes.map(asked), [1, 1, 1, 3]);
}
