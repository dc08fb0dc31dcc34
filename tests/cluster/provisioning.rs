//! Bursts whose nodes are asked for by ProvisioningRequests: on control planes that serve them, or do not, and with what
//! stands for cluster-autoscaler.

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, Pod, PodTemplate};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Client, ResourceExt};
use serde_json::{Value, json};
use tributary::api::hosted_burst::BurstPhase;
use tributary::api::labels::condition;
use tributary::api::names;
use tributary::api::peer::ClusterPeer;
use tributary::api::provisioning_request::{CLASS, CONSUME, ProvisioningRequest};
use tributary_sandbox::ADMIN;
use tributary_tests::agentctl::document;
use tributary_tests::eventually::eventually;
use tributary_tests::federation::SYSTEM;
use tributary_tests::scenario::Place;

use crate::policy::import;
use crate::scale_up::{ADDED, large, node};
use crate::shared::{places, quiet};

/// The class by which cluster-autoscaler adds all nodes or none.
const ATOMIC: &str = "best-effort-atomic-scale-up.autoscaling.x-k8s.io";

/// What of a ProvisioningRequest an API server has to know for an agent and an autoscaler to meet; that it cannot be changed is
/// part of it. The autoscaler's own definition has more.
pub(crate) fn definition() -> Value {
    let fixed = json!([{"rule": "self == oldSelf", "message": "it cannot be changed"}]);
    let text = json!({"type": "string", "maxLength": 253, "minLength": 1});
    let pods = json!({"type": "object", "required": ["count", "podTemplateRef"], "properties": {
        "count": {"type": "integer", "format": "int32", "minimum": 1},
        "podTemplateRef": {"type": "object", "required": ["name"], "properties": {"name": text}}}});
    let spec = json!({"type": "object", "required": ["podSets", "provisioningClassName"], "properties": {
        "podSets": {"type": "array", "minItems": 1, "maxItems": 32, "items": pods, "x-kubernetes-validations": fixed},
        "provisioningClassName": {"type": "string", "maxLength": 253, "x-kubernetes-validations": fixed},
        "parameters": {"type": "object", "maxProperties": 100, "additionalProperties": {"type": "string", "maxLength": 255},
            "x-kubernetes-validations": fixed}}});
    let status = json!({"type": "object", "properties": {
        "conditions": {"type": "array", "items": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}}}});
    json!({
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {
            "name": "provisioningrequests.autoscaling.x-k8s.io",
            // Groups of `k8s.io` ask for it.
            "annotations": {"api-approved.kubernetes.io": "https://github.com/kubernetes/autoscaler/pull/5848"},
        },
        "spec": {
            "group": "autoscaling.x-k8s.io",
            "scope": "Namespaced",
            "names": {"kind": "ProvisioningRequest", "plural": "provisioningrequests", "singular": "provisioningrequest",
                "listKind": "ProvisioningRequestList"},
            "versions": [{"name": "v1", "served": true, "storage": true, "subresources": {"status": {}},
                "schema": {"openAPIV3Schema": {"type": "object", "required": ["spec"],
                    "properties": {"spec": spec, "status": status}}}}],
        },
    })
}

/// Lets an API server serve ProvisioningRequests.
pub(crate) async fn serve(client: &Client) {
    let definitions: Api<CustomResourceDefinition> = Api::all(client.clone());
    definitions.create(&PostParams::default(), &serde_json::from_value(definition()).unwrap()).await.unwrap();
    eventually("ProvisioningRequests are served", async || {
        let list = Api::<ProvisioningRequest>::all(client.clone()).list(&ListParams::default()).await;
        list.map(drop).map_err(|error| error.to_string())
    })
    .await;
}

/// The request of a slot, and the template of its pods.
async fn asked(place: &Place, slot: &str) -> (ProvisioningRequest, PodTemplate) {
    let name = names::scale_up(slot);
    let requests: Api<ProvisioningRequest> = Api::namespaced(place.client.clone(), &place.namespace);
    let templates: Api<PodTemplate> = Api::namespaced(place.client.clone(), &place.namespace);
    eventually(format!("nodes for {slot} are asked for"), async || {
        let request = requests.get(&name).await.map_err(|error| error.to_string())?;
        let template = templates.get(&name).await.map_err(|error| error.to_string())?;
        Ok::<_, String>((request, template))
    })
    .await
}

/// Answers a request as cluster-autoscaler does.
async fn answer(place: &Place, slot: &str, conditions: &[(&str, &str, &str, &str)]) {
    let said = conditions.iter().map(|(type_, status, reason, message)| {
        json!({"type": type_, "status": status, "reason": reason, "message": message,
            "lastTransitionTime": Timestamp::now().to_string()})
    });
    let status = Patch::Merge(json!({"status": {"conditions": said.collect::<Vec<_>>()}}));
    let requests: Api<ProvisioningRequest> = Api::namespaced(place.client.clone(), &place.namespace);
    requests.patch_status(&names::scale_up(slot), &PatchParams::default(), &status).await.unwrap();
}

/// Neither a request nor a template of a slot is there.
async fn asked_no_more(place: &Place, slot: &str) {
    let name = names::scale_up(slot);
    let requests: Api<ProvisioningRequest> = Api::namespaced(place.client.clone(), &place.namespace);
    let templates: Api<PodTemplate> = Api::namespaced(place.client.clone(), &place.namespace);
    assert!(requests.get_opt(&name).await.unwrap().is_none(), "nodes for {slot} are asked for");
    assert!(templates.get_opt(&name).await.unwrap().is_none(), "the template of {slot} is there");
}

/// A policy that lets nodes be brought that are asked for.
fn policy(wait: &str, class: &Value) -> Value {
    let group = json!({"name": "large", "cpu": 12, "memory": "60Gi", "labels": {ADDED: "yes"},
        "taints": [{"key": ADDED, "effect": "NoSchedule"}]});
    json!({"nodeSelector": {ADDED: "yes"}, "tolerations": [{"key": ADDED, "operator": "Exists"}],
        "scaleUp": {"maxNodes": 2, "wait": wait, "nodeGroups": [group], "provisioningRequest": class}})
}

const NONE: [(&str, &str, &str, &str); 2] = [
    ("Accepted", "True", "Accepted", "ProvisioningRequest is accepted by ClusterAutoscaler"),
    ("Failed", "True", "CapacityIsNotFound", "CA could not find requested capacity"),
];

/// Of a burst onto `provider` nodes are asked for and refused, and nothing is left of it.
pub(crate) async fn nodes_are_asked_for_and_refused(root: &Place, provider: &Place) {
    serve(&provider.client).await;
    let peers: Api<ClusterPeer> = Api::namespaced(provider.client.clone(), SYSTEM);
    import(&peers, policy("10m", &json!({"provisioningClassName": ATOMIC}))).await;
    root.create("asks", large(&["west"])).await;
    let slot = "asks-burst-0";
    asked(provider, slot).await;
    answer(provider, slot, &NONE).await;
    let refused = root.burst("asks", slot, BurstPhase::Rejected).await.status.unwrap().refusals;
    assert_eq!(refused[0].reason, "ScaleUpFailed", "{}", refused[0].message);
    asked_no_more(provider, slot).await;
    root.delete("asks").await;
    import(&peers, json!({"nodeSelector": null, "tolerations": null, "scaleUp": null})).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nodes_are_asked_for_before_there_are_pods() {
    let federation = quiet().await;
    let [east, west, north] = places(&federation, "asking-for-nodes").await;
    let peers: Api<ClusterPeer> = Api::namespaced(federation.client(1).await, SYSTEM);
    let kubeconfig = federation.clusters()[1].kubeconfig(ADMIN).unwrap();
    let class = json!({"provisioningClassName": ATOMIC, "parameters": {"ValidUntilSeconds": "600"}});
    let told = async |expected: Option<&str>| {
        eventually(format!("the ClusterPeer says {expected:?} of its scaleUp"), async || {
            let status = peers.get("east").await.map_err(|error| error.to_string())?.status.unwrap_or_default();
            let said = status.conditions.into_iter().find(|one| one.type_ == condition::SCALE_UP);
            match said.as_ref().map(|said| said.reason.as_str()) == expected {
                true => Ok(said.map(|said| said.message).unwrap_or_default()),
                false => Err(format!("{said:?}")),
            }
        })
        .await
    };

    let there: Api<ClusterPeer> = Api::namespaced(federation.client(0).await, SYSTEM);
    let could_come = async |expected: bool| {
        eventually(format!("that nodes of west could come is told: {expected}"), async || {
            let status = there.get("west").await.map_err(|error| error.to_string())?.status.unwrap_or_default();
            let possible = status.capacity.and_then(|capacity| capacity.possible);
            if possible.is_some() == expected { Ok(()) } else { Err(format!("{possible:?}")) }
        })
        .await;
    };

    // Nobody serves the kind: it is said of the peer, and no burst waits for what cannot come.
    import(&peers, policy("10m", &class)).await;
    let said = told(Some("NotServed")).await;
    could_come(false).await;
    assert!(said.starts_with("import.scaleUp.provisioningRequest: "), "{said}");
    east.create("early", large(&["west"])).await;
    let early = east.burst("early", "early-burst-0", BurstPhase::Rejected).await.status.unwrap();
    let refusal = &early.refusals[0];
    assert_eq!(refusal.reason, "ScaleUpFailed");
    assert!(
        refusal.message.contains("this cluster does not serve them (autoscaling.x-k8s.io/v1)"),
        "{}",
        refusal.message
    );
    assert!(west.left("early-burst-0").await.unwrap().is_empty());
    east.delete("early").await;

    serve(&west.client).await;
    told(None).await;
    could_come(true).await;
    east.create("tall", large(&["west"])).await;
    let slot = "tall-burst-0";
    let (request, template) = asked(&west, slot).await;
    let spec = serde_json::to_value(&request.spec).unwrap();
    assert_eq!(
        spec,
        json!({"provisioningClassName": ATOMIC, "parameters": {"ValidUntilSeconds": "600"},
            "podSets": [{"podTemplateRef": {"name": "tall-burst-0-scale-up"}, "count": 2}]})
    );
    let waits = east.burst("tall", slot, BurstPhase::ScalingUp).await.status.unwrap();
    assert!(waits.message.contains("nodes for 2 pods are asked for before these are made"), "{}", waits.message);
    answer(&west, slot, &NONE[..1]).await;
    eventually("it is said who is asked, and that it was accepted", async || {
        let arguments = ["why", "-n", "asking-for-nodes", slot];
        let why = document(&kubeconfig, &arguments).await.map_err(|error| error.to_string())?;
        let unmet = &why["unmet"];
        let (cause, hint) = (unmet["cause"].as_str().unwrap_or_default(), unmet["hint"].as_str().unwrap_or_default());
        let told = unmet["reason"] == "ScalingUp"
            && cause.contains("an autoscaler has accepted it")
            && hint.contains("describe provisioningrequest tall-burst-0-scale-up --namespace asking-for-nodes");
        if told { Ok(()) } else { Err(format!("{why:#}")) }
    })
    .await;
    assert!(west.jobs().get_opt(slot).await.unwrap().is_none(), "there are pods before there are nodes");
    // Two nodes come.
    let nodes: Api<Node> = Api::all(west.client.clone());
    for number in 0..2 {
        nodes.create(&PostParams::default(), &node(&west.client, number).await.unwrap()).await.unwrap();
    }
    let provisioned = ("Provisioned", "True", "CapacityIsProvisioned", "Capacity is found in the cluster");
    answer(&west, slot, &[NONE[0], provisioned]).await;
    let ready = east.burst("tall", slot, BurstPhase::Ready).await.status.unwrap().times.unwrap();
    assert!(ready.scheduled.is_some() && ready.provisioned <= ready.scheduled);
    // The pods are what was asked for, and say whose nodes they use.
    let job = west.jobs().get(slot).await.unwrap().spec.unwrap().template;
    let (made, wanted) = (job.spec.unwrap(), template.template.unwrap().spec.unwrap());
    assert_eq!((&made.node_selector, &made.tolerations), (&wanted.node_selector, &wanted.tolerations));
    assert_eq!((&made.affinity, made.containers.len()), (&wanted.affinity, wanted.containers.len()));
    for (made, wanted) in made.containers.iter().zip(&wanted.containers) {
        assert_eq!((&made.name, &made.resources), (&wanted.name, &wanted.resources));
    }
    let pods = west.pods().list(&ListParams::default().labels(&format!("job-name={slot}"))).await.unwrap().items;
    let expected: BTreeMap<&str, &str> = [(CLASS, ATOMIC), (CONSUME, "tall-burst-0-scale-up")].into();
    for pod in &pods {
        let annotations = pod.annotations();
        assert!(
            expected.iter().all(|(key, value)| annotations.get(*key).is_some_and(|is| is == value)),
            "{annotations:?}"
        );
    }
    assert_eq!(pods.len(), 2);
    // The autoscaler keeps nodes for these pods alone. One that is made later waits like any other, and bears no name of a request.
    let whole: Api<Node> = Api::all(west.client.clone());
    for number in 0..2 {
        let name = node(&west.client, number).await.unwrap().name_any();
        let cordoned = Patch::Merge(json!({"spec": {"unschedulable": true}}));
        whole.patch(&name, &PatchParams::default(), &cordoned).await.unwrap();
    }
    let lost = pods.iter().find(|pod| pod.name_any().contains("-1-")).unwrap();
    west.pods().delete(&lost.name_any(), &DeleteParams::default()).await.unwrap();
    eventually("the pod that was made later consumes no request, and the other does", async || {
        let all = west.pods().list(&ListParams::default().labels(&format!("job-name={slot}"))).await;
        let all = all.map_err(|error| error.to_string())?.items;
        let named =
            |pod: &&Pod| pod.metadata.annotations.iter().flatten().any(|(key, _)| expected.contains_key(&**key));
        let (named, alone): (Vec<_>, Vec<_>) = all.iter().filter(|pod| pod.uid() != lost.uid()).partition(named);
        match (named.as_slice(), alone.as_slice()) {
            ([_], [alone]) if alone.name_any().contains("-1-") => Ok(()),
            _ => Err(format!("{} of {} consume it", named.len(), all.len())),
        }
    })
    .await;
    east.delete("tall").await;
    west.empty(slot).await;
    asked_no_more(&west, slot).await;
    nodes.delete_collection(&DeleteParams::default(), &ListParams::default().labels(ADDED)).await.unwrap();

    // There are none: nothing is left by the time that this is told, and north has room.
    east.create("vain", large(&["west"])).await;
    asked(&west, "vain-burst-0").await;
    answer(&west, "vain-burst-0", &NONE).await;
    let given_back = east.burst("vain", "vain-burst-0", BurstPhase::Rejected).await.status.unwrap();
    let refusal = &given_back.refusals[0];
    assert_eq!(refusal.reason, "ScaleUpFailed");
    let words =
        "ProvisioningRequest asking-for-nodes/vain-burst-0-scale-up is Failed: CA could not find requested capacity";
    assert!(refusal.message.contains(words), "{}", refusal.message);
    asked_no_more(&west, "vain-burst-0").await;
    west.empty("vain-burst-0").await;
    let clusters = json!([{"size": 2, "peers": ["west", "north"], "resources": {"requests": {"cpu": 10}}}]);
    east.change("vain", json!({"flux": {"bursting": {"clusters": clusters}}})).await;
    let moved = east.burst("vain", "vain-burst-0", BurstPhase::Ready).await.status.unwrap();
    assert_eq!(moved.peer.as_deref(), Some("north"));
    east.delete("vain").await;
    north.empty("vain-burst-0").await;

    // Nobody answers in time.
    import(&peers, policy("8s", &class)).await;
    east.create("late", large(&["west"])).await;
    let given_back = east.burst("late", "late-burst-0", BurstPhase::Rejected).await.status.unwrap();
    let refusal = &given_back.refusals[0];
    assert_eq!(refusal.reason, "ScaleUpTimedOut");
    assert!(refusal.message.contains("no autoscaler has answered yet"), "{}", refusal.message);
    asked_no_more(&west, "late-burst-0").await;
    east.delete("late").await;

    // What is another's stays as it is.
    import(&peers, policy("10m", &class)).await;
    let pod = json!({"spec": {"containers": [{"name": "theirs", "image": "nginx"}]}});
    let theirs = json!({"metadata": {"name": "odd-burst-0-scale-up"}, "template": pod});
    let theirs: PodTemplate = serde_json::from_value(theirs).unwrap();
    let templates: Api<PodTemplate> = Api::namespaced(west.client.clone(), &west.namespace);
    templates.create(&PostParams::default(), &theirs).await.unwrap();
    east.create("odd", large(&["west"])).await;
    let taken = east.burst("odd", "odd-burst-0", BurstPhase::Rejected).await.status.unwrap();
    assert_eq!(taken.refusals[0].reason, "NameTaken", "{}", taken.refusals[0].message);
    assert_eq!(
        templates.get("odd-burst-0-scale-up").await.unwrap().template.unwrap().spec.unwrap().containers.len(),
        1
    );
    east.delete("odd").await;

    import(&peers, json!({"nodeSelector": null, "tolerations": null, "scaleUp": null})).await;
    let definitions: Api<CustomResourceDefinition> = Api::all(west.client.clone());
    let name = "provisioningrequests.autoscaling.x-k8s.io";
    definitions.delete(name, &DeleteParams::default()).await.unwrap();
}
