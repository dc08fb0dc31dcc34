//! What a user of the root's cluster can do to a namespace of a provider, by nothing but the spec of a MiniCluster: names of
//! slots and sizes travel, and none of them may touch what is there. What an address of the lead may do is in `addresses.rs`.

use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, ApiResource, DynamicObject, GroupVersionKind, ListParams, PostParams};
use kube::{Client, ResourceExt};
use serde_json::{Value, json};
use tributary::api::hosted_burst::BurstPhase;
use tributary::api::labels::{self, upstream};
use tributary::api::peer::ClusterPeer;
use tributary_tests::eventually::{eventually, never};
use tributary_tests::federation::SYSTEM;
use tributary_tests::scenario::{bursting, interactive};

use crate::policy::import;
use crate::shared::{places, quiet, together};

/// An object of the provider's own users.
struct Theirs {
    api: Api<DynamicObject>,
    name: String,
    before: DynamicObject,
}

impl Theirs {
    /// Makes an object, and remembers it once its own controllers have done with it.
    async fn make(client: &Client, namespace: &str, object: Value) -> Self {
        let text = |field: &str| object[field].as_str().unwrap_or_default().to_owned();
        let (group, version) = match text("apiVersion").split_once('/') {
            Some((group, version)) => (group.to_owned(), version.to_owned()),
            None => (String::new(), text("apiVersion")),
        };
        let resource = ApiResource::from_gvk(&GroupVersionKind { group, version, kind: text("kind") });
        let api: Api<DynamicObject> = Api::namespaced_with(client.clone(), namespace, &resource);
        let object: DynamicObject = serde_json::from_value(object).unwrap();
        let name = object.name_any();
        api.create(&PostParams::default(), &object).await.unwrap();
        let mut before = api.get(&name).await.unwrap();
        // A Job and a MiniCluster have a status that somebody writes.
        while object.data.get("spec").is_some_and(|spec| spec["suspend"] == true) && before.data["status"].is_null() {
            tokio::time::sleep(Duration::from_millis(100)).await;
            before = api.get(&name).await.unwrap();
        }
        Self { api, name, before }
    }

    /// What of it has changed; its status is its own controllers'.
    async fn changes(&self) -> Option<String> {
        let Some(now) = self.api.get_opt(&self.name).await.unwrap() else {
            return Some(format!("{} is gone", self.name));
        };
        let has_status = !now.data["status"].is_null();
        let whole = |object: &DynamicObject| {
            let (mut metadata, mut data) = (object.metadata.clone(), object.data.clone());
            metadata.managed_fields = None;
            data["status"].take();
            if has_status {
                metadata.resource_version = None;
            }
            (metadata, data)
        };
        let (before, now) = (whole(&self.before), whole(&now));
        (before != now).then(|| format!("{before:?} became {now:?}"))
    }
}

/// A root on east whose only burst has this name on west.
fn named(slot: &str) -> Value {
    bursting(1, json!([{"name": slot, "size": 1, "peer": "west"}]))
}

/// Names of slots, what west has under a name that follows from each, and how that is called in the refusal.
fn collisions() -> Vec<(&'static str, Value, &'static str)> {
    let named = |api: &str, kind: &str, name: &str, more: Value| {
        let mut object = json!({"apiVersion": api, "kind": kind, "metadata": {"name": name}});
        object.as_object_mut().unwrap().extend(more.as_object().cloned().unwrap_or_default());
        object
    };
    let port = json!({"spec": {"selector": {"app": "db"}, "ports": [{"name": "sql", "port": 5432}]}});
    let policy = json!({"spec": {"podSelector": {}, "policyTypes": ["Egress"]}});
    let slice = |name: &str, family: &str, address: &str| {
        let endpoints = json!({"addressType": family, "endpoints": [{"addresses": [address]}], "ports": []});
        named("discovery.k8s.io/v1", "EndpointSlice", name, endpoints)
    };
    let pod = json!({"restartPolicy": "Never", "containers": [{"name": "c", "image": "busybox"}]});
    let job = json!({"spec": {"suspend": true, "template": {"spec": pod}}});
    let mut mini_cluster = interactive(1);
    mini_cluster["suspend"] = json!(true);
    vec![
        ("shared", named("v1", "Secret", "shared-curve", json!({"stringData": {"key": "theirs"}})), "Secret"),
        ("db", named("v1", "Service", "db-lead", port.clone()), "Service"),
        ("queue", named("v1", "Service", "queue", port), "Service"),
        ("deny-all", named("networking.k8s.io/v1", "NetworkPolicy", "deny-all-egress", policy), "NetworkPolicy"),
        ("four", slice("four-lead-ipv4", "IPv4", "192.0.2.1"), "EndpointSlice"),
        ("six", slice("six-lead-ipv6", "IPv6", "2001:db8::1"), "EndpointSlice"),
        ("files", named("v1", "ConfigMap", "files-entrypoint", json!({"data": {"key": "theirs"}})), "ConfigMap"),
        ("nightly", named("batch/v1", "Job", "nightly", job), "Job"),
        (
            "lake",
            named("flux-framework.org/v1alpha2", "MiniCluster", "lake", json!({"spec": mini_cluster})),
            "MiniCluster",
        ),
    ]
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slot_named_like_what_the_provider_has_is_refused_and_nothing_of_it_is_touched() {
    let federation = quiet().await;
    let [east, west, _] = places(&federation, "names").await;
    let peers: Api<ClusterPeer> = Api::namespaced(federation.client(1).await, SYSTEM);
    import(&peers, json!({"egress": {"allow": []}})).await;
    let mut all = Vec::new();
    for (slot, object, kind) in collisions() {
        let name = object["metadata"]["name"].as_str().unwrap().to_owned();
        let theirs = Theirs::make(&west.client, "names", object).await;
        all.push((slot, format!("{kind} names/{name}"), theirs));
    }
    for (slot, ..) in &all {
        east.create(&format!("by-{slot}"), named(slot)).await;
    }
    east.create("honest", named("honest-0")).await;
    for (slot, object, theirs) in &all {
        let root = format!("by-{slot}");
        let burst = east.burst(&root, slot, BurstPhase::Rejected).await;
        let refusal = burst.status.unwrap().refusals.remove(0);
        assert_eq!(refusal.reason, "NameTaken", "{slot}: {}", refusal.message);
        // A MiniCluster is seen by the provider's cache.
        let said =
            refusal.message.contains(object.as_str()) || refusal.message.contains(&format!("MiniCluster {slot}"));
        assert!(said, "{slot}: {}", refusal.message);
        east.running(&root).await;
        assert!(west.hosted().get_opt(slot).await.unwrap().is_none(), "{slot}");
        assert_eq!(theirs.changes().await, None, "{slot}");
    }
    east.burst("honest", "honest-0", BurstPhase::Ready).await;
    for (slot, ..) in &all {
        east.delete(&format!("by-{slot}")).await;
    }
    for (slot, _, theirs) in &all {
        assert_eq!(theirs.changes().await, None, "{slot}, after its root went");
    }
    east.delete("honest").await;
    west.empty("honest-0").await;
    import(&peers, json!({"egress": null})).await;
}

/// A name that is taken after a burst was let in: nothing is known of it before it is needed.
#[tokio::test(flavor = "multi_thread")]
async fn a_burst_that_comes_to_need_a_taken_name_is_given_back_and_the_object_stays() {
    let federation = quiet().await;
    let [east, west, _] = places(&federation, "later").await;
    let peers: Api<ClusterPeer> = Api::namespaced(federation.client(1).await, SYSTEM);
    east.create("calm", named("calm-0")).await;
    east.create("other", named("other-0")).await;
    for (root, slot) in [("calm", "calm-0"), ("other", "other-0")] {
        east.burst(root, slot, BurstPhase::Ready).await;
    }
    let policy = json!({"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": {"name": "calm-0-egress"},
        "spec": {"podSelector": {"matchLabels": {"app": "db"}}, "policyTypes": ["Egress"]}});
    let theirs = Theirs::make(&west.client, "later", policy).await;
    import(&peers, json!({"egress": {"allow": []}})).await;
    let burst = east.burst("calm", "calm-0", BurstPhase::Rejected).await;
    let refusal = burst.status.unwrap().refusals.remove(0);
    assert_eq!(refusal.reason, "NameTaken", "{}", refusal.message);
    assert!(refusal.message.contains("NetworkPolicy later/calm-0-egress"), "{}", refusal.message);
    assert_eq!(theirs.changes().await, None);
    west.empty("calm-0").await;
    let other = east.burst_now("other", "other-0").await.unwrap().status.unwrap_or_default();
    assert_eq!(other.phase, BurstPhase::Ready, "it runs on: {other:?}");
    import(&peers, json!({"egress": null})).await;
    for root in ["calm", "other"] {
        east.delete(root).await;
    }
    west.empty("other-0").await;
    assert_eq!(theirs.changes().await, None);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slot_named_like_a_workload_is_selected_by_nothing_that_selects_the_workload() {
    let federation = together().await;
    let [east, west, _] = places(&federation, "labels").await;
    for slot in ["db", "web"] {
        for (key, name) in [(upstream::NAME, "name"), (upstream::HPA_SELECTOR, "scaler"), ("app", "app")] {
            let object = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": format!("{slot}-by-{name}")},
                "spec": {"selector": {key: slot}, "publishNotReadyAddresses": true, "ports": [{"port": 5432}]}});
            Theirs::make(&west.client, "labels", object).await;
        }
        east.create(&format!("by-{slot}"), named(slot)).await;
    }
    for slot in ["db", "web"] {
        east.burst(&format!("by-{slot}"), slot, BurstPhase::Ready).await;
        let selected = async |selector: String| {
            let pods: Api<Pod> = west.pods();
            let found = pods.list(&ListParams::default().labels(&selector)).await.unwrap();
            found.items.iter().map(ResourceExt::name_any).collect::<Vec<_>>()
        };
        for key in [upstream::NAME, upstream::HPA_SELECTOR, upstream::APP, upstream::NAMESPACE, upstream::JOB_INDEX] {
            assert_eq!(selected(format!("{key},{}={slot}", labels::SLOT)).await, [""; 0], "{key} of {slot}");
        }
        // Autoscalers of the provider find them by a label of ours.
        let selector = west.status(slot).await.unwrap().selector;
        assert_eq!(selector, format!("{}={slot}", labels::MINICLUSTER));
        assert_eq!(selected(selector).await.len(), 1);
        assert_eq!(selected(format!("{}={slot}", labels::SLOT)).await.len(), 1);
    }
    for slot in ["db", "web"] {
        east.delete(&format!("by-{slot}")).await;
        west.empty(slot).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_size_that_grows_shrinks_and_flaps_stays_within_what_was_admitted() {
    let federation = together().await;
    let [east, west, _] = places(&federation, "sizes").await;
    let of = |size: i32, most: i32| json!([{"size": size, "maxSize": most, "peer": "west"}]);
    let theirs = Theirs::make(
        &west.client,
        "sizes",
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "theirs"}, "data": {"key": "value"}}),
    )
    .await;
    east.create("restless", bursting(1, of(1, 3))).await;
    east.create("steady", bursting(1, of(1, 1))).await;
    east.burst("steady", "steady-burst-0", BurstPhase::Ready).await;
    east.burst("restless", "restless-burst-0", BurstPhase::Ready).await;
    let uid = async || west.hosted().get("restless-burst-0").await.unwrap().uid();
    let before = uid().await;
    for round in 0..20 {
        let size = [3, 1, 2, 9][round % 4];
        east.change("restless", json!({"flux": {"bursting": {"clusters": of(size, if size > 3 { 9 } else { 3 })}}}))
            .await;
    }
    east.change("restless", json!({"flux": {"bursting": {"clusters": of(2, 3)}}})).await;
    eventually("the last size is there", async || {
        let job = west.jobs().get("restless-burst-0").await.map_err(|error| error.to_string())?;
        let size = job.spec.and_then(|spec| spec.parallelism);
        if size == Some(2) { Ok(()) } else { Err(format!("{size:?}")) }
    })
    .await;
    assert_eq!(uid().await, before, "it is the same burst");
    never("more brokers than were admitted", Duration::from_secs(2), async || {
        let size = west.jobs().get("restless-burst-0").await.ok()?.spec?.parallelism?;
        (size > 3).then(|| format!("{size} brokers"))
    })
    .await;
    let steady = east.burst_now("steady", "steady-burst-0").await.unwrap().status.unwrap_or_default();
    assert_eq!(steady.phase, BurstPhase::Ready, "{steady:?}");
    assert_eq!(theirs.changes().await, None);
    for root in ["restless", "steady"] {
        east.delete(root).await;
        west.empty(&format!("{root}-burst-0")).await;
    }
}

/// On the root's own side: a Burst that a user has made under a name that the agent needs.
#[tokio::test(flavor = "multi_thread")]
async fn a_burst_object_of_somebody_else_is_left_alone_and_said() {
    let federation = together().await;
    let [east, west, _] = places(&federation, "squatted").await;
    let object = json!({"apiVersion": "tributary.dev/v1alpha1", "kind": "Burst", "metadata": {"name": "pond-burst-0"},
        "spec": {"root": "pond", "slot": "theirs", "template": {}, "release": true}});
    let theirs = Theirs::make(&east.client, "squatted", object).await;
    east.create("pond", bursting(1, json!([{"size": 1, "peer": "west"}, {"size": 1, "peer": "west"}]))).await;
    east.burst("pond", "pond-burst-1", BurstPhase::Ready).await;
    assert_eq!(theirs.changes().await, None);
    assert!(west.left("pond-burst-0").await.unwrap().is_empty());
    east.delete("pond").await;
    west.empty("pond-burst-1").await;
    assert_eq!(theirs.changes().await, None);
}
