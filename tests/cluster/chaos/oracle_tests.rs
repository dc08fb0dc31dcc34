//! The oracle can fail: each rule is broken once.

use std::time::Duration;

use k8s_openapi::ByteString;
use serde_json::{Value, json};
use tributary::api::labels;
use tributary::render::Boot;

use super::oracle::{Brokers, Keys, Lives, OWNER, Seen, USER, is_left, lost_of, written_by_others};

const KEY: &str = "7Ny}[]m%ZJ*3{LwvFrZ=0&f#:!/.u^Xo$2+c-x?T";
const LINE: &str = "MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQgTributaryTributar";

fn base64(text: &str) -> String {
    let value = serde_json::to_value(ByteString(text.as_bytes().to_vec())).unwrap();
    value.as_str().unwrap().to_owned()
}

fn keys() -> Keys {
    let curve = format!("curve\n    public-key = \"open\"\n    secret-key = \"{KEY}\"\n");
    let identity = format!("-----BEGIN PRIVATE KEY-----\n{LINE}\nshort\n-----END PRIVATE KEY-----\n");
    let mut keys = Keys::default();
    assert!(keys.learn("east lake-curve", &json!({"data": {"curve.cert": base64(&curve)}})));
    assert!(keys.learn("east identity", &json!({"data": {"tls.key": base64(&identity), "tls.crt": base64(LINE)}})));
    assert!(!keys.learn("east identity", &json!({"data": {"tls.key": base64(&identity)}})), "it is known");
    assert_eq!(keys.count(), 2);
    keys
}

#[test]
fn a_secret_key_is_found_wherever_it_is() {
    let keys = keys();
    let found = |object: Value| keys.in_object(&object).map(str::to_owned);
    let whose = Some("curve.cert of east lake-curve".to_owned());
    let boot = |word: &str| {
        let files = [("system.toml".to_owned(), format!("a\n{word}\n"))].into();
        Boot { revision: 1, files, rank_map: String::new(), template: String::new(), spec: json!({}) }.encode()
    };
    assert_eq!(found(json!({"data": {"a": format!("x{KEY}y")}})), whose);
    assert_eq!(found(json!({"status": {"conditions": [{"message": KEY}]}})), whose);
    assert_eq!(found(json!({"metadata": {"labels": {KEY: ""}}})), whose);
    for around in ["", "a", "ab", "abc"] {
        assert_eq!(found(json!({"data": {"a": base64(&format!("{around}{KEY}{around}"))}})), whose, "{around:?}");
    }
    assert_eq!(found(json!({"metadata": {"annotations": {labels::BOOT: boot(KEY)}}})), whose);
    assert_eq!(found(json!({"note": LINE})), Some("tls.key of east identity".to_owned()));
    assert_eq!(found(json!({"metadata": {"annotations": {labels::BOOT: boot("open")}}, "data": {"a": "open"}})), None);
    assert_eq!(keys.in_text(&format!("a line of a log {KEY}")), whose.as_deref());
}

fn seconds(from: u64) -> Duration {
    Duration::from_secs(from)
}

/// Two pods of `west` and `north`, each seen in two lists.
fn lives(second: [u64; 2], digests: [&str; 2], tunnel: bool, clusters: [usize; 2]) -> Option<String> {
    let mut lives = Lives::default();
    for (uid, digest) in ["job-1", "job-2"].into_iter().zip(digests) {
        lives.job(uid, Brokers { digest: digest.to_owned(), name: "lake-burst-0".to_owned(), tunnel });
    }
    let first = [1, 10];
    for (number, times) in [first, second].into_iter().enumerate() {
        for asked in times {
            let (uid, job) = (format!("pod-{number}"), format!("job-{}", number + 1));
            let pod = Seen { uid: &uid, name: &uid, job: &job, index: "0" };
            lives.seen(clusters[number], seconds(asked), seconds(asked + 1), [pod].into_iter());
        }
    }
    lives.twice()
}

#[test]
fn one_rank_that_runs_twice_is_seen() {
    let told = lives([5, 20], ["a", "a"], false, [1, 2]).unwrap();
    assert!(
        told.contains("broker 0 of lake-burst-0 ran twice, as pod-0 of cluster 1 and as pod-1 of cluster 2"),
        "{told}"
    );
    assert!(lives([5, 20], ["a", "a"], false, [1, 1]).is_some(), "in one cluster");
    assert!(lives([5, 20], ["a", "a"], true, [1, 1]).is_some(), "in one cluster, by the tunnel");
    // The first one may have ended a moment after it was listed, and the second may have come a moment before.
    assert_eq!(lives([10, 20], ["a", "a"], false, [1, 2]), None);
    assert_eq!(lives([11, 20], ["a", "a"], false, [1, 2]), None);
    assert_eq!(lives([5, 20], ["a", "b"], false, [1, 2]), None, "two instances");
    assert_eq!(lives([5, 20], ["a", "a"], true, [1, 2]), None, "the end of the tunnel says who is let in");
}

#[test]
fn who_writes_a_spec_is_seen() {
    let object = |manager: &str, fields: Value| {
        json!({"metadata": {"managedFields": [
            {"manager": USER, "fieldsV1": {"f:spec": {"f:size": {}}}},
            {"manager": "tributary-minicluster", "fieldsV1": {"f:status": {"f:size": {}}}},
            {"manager": manager, "fieldsV1": {"f:spec": fields}},
        ]}})
    };
    let bundle = json!({"f:trustBundle": {}});
    assert_eq!(written_by_others("MiniCluster", &object(OWNER, json!({"f:size": {}}))), None);
    let told = written_by_others("MiniCluster", &object("tributary-minicluster", json!({"f:size": {}}))).unwrap();
    assert!(told.contains("tributary-minicluster writes [\"f:size\"]"), "{told}");
    assert_eq!(written_by_others("ClusterPeer", &object(labels::manager::TRUST, bundle.clone())), None);
    assert!(written_by_others("MiniCluster", &object(labels::manager::TRUST, bundle)).is_some());
    assert!(written_by_others("ClusterPeer", &object(labels::manager::TRUST, json!({"f:import": {}}))).is_some());
}

#[test]
fn a_spec_that_is_lost_is_seen() {
    let there = json!({"size": 2, "suspend": false, "flux": {"bursting": {"clusters": [{"size": 1, "maxSize": 3}]}}});
    let written = |size: u32| json!({"size": 2, "flux": {"bursting": {"clusters": [{"size": size}]}}});
    assert_eq!(lost_of(&written(1), &there, "spec"), None);
    let told = lost_of(&written(2), &there, "spec").unwrap();
    assert_eq!(told, "spec.flux.bursting.clusters[0].size was written as 2 and is 1");
    assert!(lost_of(&json!({"size": 2, "tasks": 1}), &there, "spec").is_some());
    assert!(lost_of(&json!({"flux": {"bursting": {"clusters": []}}}), &there, "spec").is_some());
}

#[test]
fn what_is_left_over_is_seen() {
    let object = |kind: &str, namespace: &str, name: &str, labels: Value| {
        is_left(
            &["users"],
            &json!({"kind": kind, "metadata": {"name": name, "namespace": namespace, "labels": labels}}),
        )
    };
    for kind in ["MiniCluster", "Burst", "HostedBurst", "Job", "Pod", "Secret", "ConfigMap", "Service", "EndpointSlice"]
    {
        assert_eq!(object(kind, "users", "a", json!({})).unwrap(), format!("{kind} users/a"));
    }
    assert_eq!(object("ConfigMap", "users", "kube-root-ca.crt", json!({})), None);
    assert_eq!(object("ServiceAccount", "users", "default", json!({})), None);
    assert_eq!(object("Event", "users", "a.1", json!({})), None);
    assert_eq!(object("Secret", "tributary-system", "tributary-identity", json!({})), None);
    assert!(object("Service", "tributary-system", "a", json!({labels::BURST_UID: "1"})).is_some());
    assert!(object("PersistentVolume", "", "a", json!({labels::MINICLUSTER: "1"})).is_some());
    let record = json!({labels::ROLE: labels::role::USAGE, labels::MINICLUSTER: "lake"});
    assert_eq!(object("ConfigMap", "tributary-system", "a", record), None);
}
