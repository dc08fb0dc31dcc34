//! Objects that are wrong: the API server refuses them in the words that the agent would use, or their status says it.

use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams};
use kube::core::DynamicObject;
use kube::discovery::ApiResource;
use kube::{Client, ResourceExt};
use serde_json::{Value, json};
use tributary::api::flux_job::JobPhase;
use tributary::api::labels::condition;
use tributary_sandbox::ADMIN;
use tributary_tests::agentctl::agentctl;
use tributary_tests::corpus::examples;
use tributary_tests::eventually::eventually;
use tributary_tests::scenario::Place;

use crate::queue::{apply, jobs, setups, submit, told, until};
use crate::shared::{places, together};

fn resource(kind: &str) -> ApiResource {
    let group = if kind == "MiniCluster" { ("flux-framework.org", "v1alpha2") } else { ("tributary.dev", "v1alpha1") };
    ApiResource {
        group: group.0.into(),
        version: group.1.into(),
        api_version: format!("{}/{}", group.0, group.1),
        kind: kind.into(),
        plural: format!("{}s", kind.to_lowercase()),
    }
}

/// What the API server says to an object that is made; empty if it takes it.
async fn refusal(client: &Client, namespace: &str, kind: &str, name: &str, spec: Value, dry: bool) -> String {
    let resource = resource(kind);
    let object = json!({"apiVersion": resource.api_version, "kind": kind, "metadata": {"name": name}, "spec": spec});
    let object: DynamicObject = serde_json::from_value(object).unwrap();
    let api: Api<DynamicObject> = Api::namespaced_with(client.clone(), namespace, &resource);
    let params = PostParams { dry_run: dry, ..PostParams::default() };
    api.create(&params, &object).await.err().map(|error| error.to_string()).unwrap_or_default()
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_agent_would_refuse_is_refused_when_it_is_made_and_in_the_same_words() {
    let federation = together().await;
    let [east, ..] = places(&federation, "wrong").await;
    let job = |more: Value| {
        let mut spec = json!({"image": "a", "command": "true"});
        spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        spec
    };
    let root = |clusters: Value| json!({"containers": [{"image": "a"}], "flux": {"bursting": {"clusters": clusters}}});
    let (long, cannot) = ("a".repeat(53), "cannot have this name");
    let span = "must be a duration";
    let scale_up = |policy: Value| json!({"import": {"scaleUp": policy}});
    let group = json!({"name": "large", "cpu": 64, "memory": "256Gi", "max": 2});
    let asking = |class: Value| scale_up(json!({"maxNodes": 1, "nodeGroups": [group], "provisioningRequest": class}));
    for (kind, name, spec, told) in [
        ("FluxJob", "a", json!({"image": "a"}), "image and command, or miniCluster"),
        ("FluxJob", "a", json!({}), "image and command, or miniCluster"),
        ("FluxJob", "a", json!({"miniCluster": {"containers": [{"image": "a", "command": "true"}]}}), ""),
        ("FluxJob", "a.b", job(json!({})), cannot),
        ("FluxJob", "1a", job(json!({})), cannot),
        (
            "FluxJob",
            long.as_str(),
            job(json!({})),
            "at most 52 characters are possible in the name of a FluxJob: names of other objects and host names are made",
        ),
        ("FluxJob", "a", job(json!({"timeLimit": "soon"})), "should match"),
        ("FluxJob", "a", job(json!({"timeLimit": "0s"})), span),
        ("FluxJob", "a", job(json!({"timeLimit": "99999999h"})), span),
        ("FluxJob", "a", job(json!({"timeLimit": "30m1h", "ttlAfterFinished": "0s"})), ""),
        ("FluxJob", "a", job(json!({"resources": {"cpu": "many"}})), "should match"),
        ("FluxJob", "a", job(json!({"cleanup": "All"})), "Unsupported value"),
        ("FluxSetup", "team", json!({}), "its name is default"),
        ("FluxSetup", "default", json!({"checkNodes": "Soon"}), "Unsupported value"),
        ("FluxSetup", "default", json!({"maxDuration": "0s"}), span),
        ("FluxSetup", "default", json!({"priorityClasses": ["a", "a"]}), "Duplicate value"),
        ("FluxSetup", "default", json!({"nodeGroups": [{"name": "a100", "memory": "1Gi"}]}), "nodeGroups[0].cpu"),
        ("FluxSetup", "default", json!({"nodeGroups": [{"name": "a100", "cpu": "many", "memory": 1}]}), "should match"),
        (
            "FluxSetup",
            "default",
            json!({"nodeGroups": [{"name": "a100", "cpu": -1, "memory": 1}]}),
            "nodeGroups[0].cpu",
        ),
        (
            "FluxSetup",
            "default",
            json!({"nodeGroups": [{"name": "a100", "cpu": 1, "memory": "-1Gi"}]}),
            "nodeGroups[0].memory",
        ),
        ("FluxSetup", "default", json!({"nodeGroups": [{"name": "a100", "cpu": "1e-1", "memory": 1, "gpus": 8}]}), ""),
        ("ClusterPeer", "a", json!({"import": {"egress": {"allow": ["10.0.0.0"]}}}), "must be a range of addresses"),
        ("ClusterPeer", "a", scale_up(json!({"nodeGroups": [group]})), "spec.import.scaleUp.maxNodes: Required value"),
        ("ClusterPeer", "a", scale_up(json!({"maxNodes": 0, "nodeGroups": [group]})), "spec.import.scaleUp.maxNodes"),
        ("ClusterPeer", "a", scale_up(json!({"maxNodes": 1, "nodeGroups": []})), "spec.import.scaleUp.nodeGroups"),
        ("ClusterPeer", "a", scale_up(json!({"maxNodes": 1, "nodeGroups": [group, group]})), "Duplicate value"),
        (
            "ClusterPeer",
            "a",
            scale_up(json!({"maxNodes": 1, "wait": "0s", "nodeGroups": [group]})),
            "import.scaleUp.wait: must be a duration from 1s to 24h",
        ),
        ("ClusterPeer", "a", scale_up(json!({"maxNodes": 1, "wait": "soon", "nodeGroups": [group]})), "should match"),
        (
            "ClusterPeer",
            "a",
            scale_up(json!({"maxNodes": 1, "nodeGroups": [{"name": "a", "cpu": "many", "memory": 1}]})),
            "spec.import.scaleUp.nodeGroups[0].cpu",
        ),
        ("ClusterPeer", "a", scale_up(json!({"maxNodes": 1, "nodeGroups": [group]})), ""),
        ("ClusterPeer", "a", asking(json!({})), "provisioningRequest.provisioningClassName: Required value"),
        ("ClusterPeer", "a", asking(json!({"provisioningClassName": ""})), "provisioningRequest.provisioningClassName"),
        (
            "ClusterPeer",
            "a",
            asking(json!({"provisioningClassName": "Best Effort"})),
            "spec.import.scaleUp.provisioningRequest.provisioningClassName",
        ),
        (
            "ClusterPeer",
            "a",
            asking(json!({"provisioningClassName": "a.b", "parameters": {"noRetry": true}})),
            "spec.import.scaleUp.provisioningRequest.parameters.noRetry",
        ),
        (
            "ClusterPeer",
            "a",
            asking(json!({"provisioningClassName": "a.b", "parameters": {"noRetry": "a".repeat(256)}})),
            "spec.import.scaleUp.provisioningRequest.parameters.noRetry: Too long",
        ),
        (
            "ClusterPeer",
            "a",
            asking(json!({"provisioningClassName": "queued-provisioning.gke.io", "parameters": {"noRetry": "true"}})),
            "",
        ),
        (
            "ClusterPeer",
            "a",
            json!({"import": {"queueName": "Guests"}}),
            "import.queueName: must be the name of a LocalQueue",
        ),
        (
            "ClusterPeer",
            "a",
            json!({"import": {"queueName": ""}}),
            "import.queueName: must be the name of a LocalQueue",
        ),
        ("ClusterPeer", "a", json!({"import": {"queueName": "a".repeat(64)}}), "spec.import.queueName: Too long"),
        (
            "ClusterPeer",
            "a",
            json!({"import": {"queueName": "q", "queueWait": "0s"}}),
            "import.queueWait: must be a duration from",
        ),
        (
            "ClusterPeer",
            "a",
            json!({"import": {"queueName": "q", "queueWait": "25h"}}),
            "import.queueWait: must be a duration from",
        ),
        ("ClusterPeer", "a", json!({"import": {"queueName": "team.guests", "queueWait": "1h30m"}}), ""),
        ("MiniCluster", "a", root(json!([{"size": -1}])), "size: a burst has at least one broker"),
        ("MiniCluster", "a", root(json!([{"size": 0}])), ""),
        (
            "MiniCluster",
            "a",
            root(json!([{"size": 3, "maxSize": 2}])),
            "maxSize is less than size: raise maxSize, or lower size",
        ),
        (
            "MiniCluster",
            "a",
            root(json!([{"peer": "west", "selector": {"matchLabels": {"a": "b"}}}])),
            "peers are named and selected by labels: write one or the other",
        ),
        ("MiniCluster", "a", root(json!([{"name": "b"}, {"name": "b"}])), "two bursts have one name"),
        ("MiniCluster", "a", root(json!([{"name": "b"}, {"size": 2}, {}])), ""),
    ] {
        let said = refusal(&east.client, &east.namespace, kind, name, spec.clone(), true).await;
        assert!(if told.is_empty() { said.is_empty() } else { said.contains(told) }, "{kind} {name} {spec}: {said:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_admitted_flux_job_stays_as_it_was_let_in_but_may_be_suspended_and_begin_anew() {
    let federation = together().await;
    let [east, ..] = places(&federation, "held").await;
    let merge = async |name: &str, spec: Value| {
        let patch = Patch::Merge(json!({"spec": spec}));
        jobs(&east).patch(name, &PatchParams::default(), &patch).await.map_err(|error| error.to_string())
    };
    let job = json!({"size": 2, "environment": {"A": "1"}, "miniCluster": {"flux": {"optionFlags": "-v"}}});
    submit(&east, "held", job).await;
    told(&east, "held", JobPhase::Waiting, "no FluxSetup yet").await;
    // It is nobody's business before.
    merge("held", json!({"size": 1, "suspend": true})).await.unwrap();
    apply(setups(&east), "FluxSetup", "default", json!({"quota": {"brokers": 1}})).await;
    told(&east, "held", JobPhase::Waiting, "it is suspended: it stands in line once spec.suspend is false").await;
    merge("held", json!({"suspend": false})).await.unwrap();
    until(&east, "held", JobPhase::Running).await;
    for change in [
        json!({"size": 3}),
        json!({"image": "other"}),
        json!({"command": null}),
        json!({"tasks": 3}),
        json!({"environment": {"A": "2"}}),
        json!({"resources": {"gpus": 1}}),
        json!({"timeLimit": "1h"}),
        json!({"miniCluster": {"flux": {"optionFlags": "-vv"}}}),
    ] {
        let said = merge("held", change.clone()).await.unwrap_err();
        assert!(said.contains("it was admitted as it is: of its spec, only suspend,"), "{change}: {said}");
    }
    merge("held", json!({"ttlAfterFinished": "24h", "cleanup": "MiniCluster"})).await.unwrap();
    // What runs of it goes, and another gets the room.
    let uid = async || east.mini_clusters().get("held").await.unwrap().metadata.uid;
    let first = uid().await;
    let agentctl = async |arguments: &[&str]| {
        let kubeconfig = federation.clusters()[0].kubeconfig(ADMIN).unwrap();
        agentctl(&kubeconfig, &[arguments, &["--namespace", "held"]].concat()).await.unwrap()
    };
    agentctl(&["suspend", "fluxjob/held", "--yes"]).await;
    submit(&east, "next", json!({})).await;
    until(&east, "next", JobPhase::Running).await;
    let status = told(&east, "held", JobPhase::Waiting, "it is suspended").await;
    assert_eq!((status.admitted, status.returned, status.mini_cluster), (None, None, None));
    agentctl(&["resume", "fluxjob/held"]).await;
    jobs(&east).delete("next", &Default::default()).await.unwrap();
    until(&east, "held", JobPhase::Running).await;
    assert_ne!(uid().await, first, "it begins anew");
    jobs(&east).delete("held", &DeleteParams::default()).await.unwrap();
    setups(&east).delete("default", &DeleteParams::default()).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn every_example_with_one_field_broken_has_its_sentence() {
    let federation = together().await;
    let [east, ..] = places(&federation, "broken").await;
    apply(setups(&east), "FluxSetup", "default", json!({"quota": {"brokers": 100}})).await;
    // Where they have this field, or where it can be added: what makes no sense there.
    let breaks = [
        ("MiniCluster", "/containers", json!([])),
        ("MiniCluster", "/size", json!(-1)),
        ("MiniCluster", "/tasks", json!(-1)),
        ("MiniCluster", "/flux/logLevel", json!(99)),
        ("MiniCluster", "/containers/0/command", json!("echo 'x")),
        ("MiniCluster", "/flux/bursting/clusters/0/peer", json!("nobody")),
        ("MiniCluster", "/flux/bursting/clusters/0/size", json!(-3)),
        ("FluxJob", "/image", json!("")),
        ("FluxJob", "/command", json!("echo 'x")),
        ("FluxJob", "/size", json!(0)),
        ("FluxJob", "/priorityClassName", json!("nobodys")),
        ("FluxJob", "/timeLimit", json!("1 hour")),
    ];
    let (mut made, mut silent) = (0, Vec::new());
    let mut waits = Vec::new();
    for (file, object) in examples().unwrap() {
        let kind = object["kind"].as_str().unwrap_or_default().to_owned();
        for (of, pointer, value) in breaks.iter().filter(|(of, ..)| *of == kind) {
            let mut spec = object["spec"].clone();
            let parent = pointer.rsplit_once('/').unwrap();
            let Some(Value::Object(fields)) = spec.pointer_mut(parent.0) else { continue };
            fields.insert(parent.1.to_owned(), value.clone());
            made += 1;
            let name = format!("broken-{made}");
            let said = refusal(&east.client, &east.namespace, of, &name, spec, false).await;
            if said.is_empty() {
                waits.push((name, of.to_string(), format!("{file}: {pointer} = {value}")));
            }
        }
    }
    assert!(made > 50, "{made} were made");
    for (name, kind, what) in waits {
        let sentence =
            eventually(format!("{what} has its sentence"), async || sentence(&east, &kind, &name).await).await;
        if sentence.split_whitespace().count() < 4 {
            silent.push(format!("{what}: {sentence:?}"));
        }
        // Who names a peer that there is not runs all the same, and takes room from other tests.
        let api: Api<DynamicObject> = Api::namespaced_with(east.client.clone(), &east.namespace, &resource(&kind));
        api.delete(&name, &DeleteParams::background()).await.unwrap();
    }
    setups(&east).delete("default", &DeleteParams::default()).await.unwrap();
    assert!(silent.is_empty(), "{}", silent.join("\n"));
}

/// What is said of one that cannot be as it is.
async fn sentence(place: &Place, kind: &str, name: &str) -> Result<String, String> {
    let api: Api<DynamicObject> = Api::namespaced_with(place.client.clone(), &place.namespace, &resource(kind));
    let found = api.get(name).await.map_err(|error| error.to_string())?;
    let conditions = found.data["status"]["conditions"].as_array().cloned().unwrap_or_default();
    let types = [condition::READY, condition::BURSTS_READY, condition::VALID];
    let fails = |one: &&Value| {
        let (type_, reason) = (one["type"].as_str().unwrap_or_default(), one["reason"].as_str().unwrap_or_default());
        let on_its_way = ["Queued", "Starting", "NotReady", "NotAllReady"].contains(&reason);
        types.contains(&type_) && one["status"] == "False" && !on_its_way
            || type_ == condition::FINISHED && reason == "Refused"
    };
    let told = conditions.iter().find(fails).and_then(|one| one["message"].as_str());
    told.map(str::to_owned).ok_or_else(|| format!("{}: {}", found.name_any(), found.data["status"]))
}
