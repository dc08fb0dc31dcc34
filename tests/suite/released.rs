//! Objects as agents of releases have left them: today's agent reads all that is in them, and today's definitions keep it.
//! `tests/worlds/released.rs` says what these are, and lets agents take them over.

use std::collections::BTreeMap;

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tributary::api::burst::Burst;
use tributary::api::flux_job::FluxJob;
use tributary::api::flux_setup::FluxSetup;
use tributary::api::hosted_burst::HostedBurst;
use tributary::api::minicluster::MiniCluster;
use tributary::api::peer::ClusterPeer;

use crate::corpus::{check, missing};
use crate::generated::repository;

/// What is lost of an object that is read and written.
fn lost<K: Serialize + DeserializeOwned>(object: &Value) -> Vec<String> {
    let read: K = match serde_json::from_value(object.clone()) {
        Ok(read) => read,
        Err(error) => return vec![error.to_string()],
    };
    let (written, mut lost) = (serde_json::to_value(read).unwrap(), Vec::new());
    for part in ["spec", "status"] {
        missing(&object[part], &written[part], part, &mut lost);
    }
    lost
}

/// What the API server would drop of it, or not take.
fn refused(object: &Value) -> Vec<String> {
    let (version, kind) = (object["apiVersion"].as_str().unwrap(), object["kind"].as_str().unwrap());
    let (group, version) = version.split_once('/').unwrap();
    let definition =
        tributary::api::crds().into_iter().find(|one| one.spec.group == group && one.spec.names.kind == kind);
    let versions = definition.unwrap_or_else(|| panic!("{kind} is no kind any more")).spec.versions;
    let served = versions.into_iter().find(|one| one.name == version && one.served);
    let schema =
        serde_json::to_value(served.unwrap_or_else(|| panic!("{version} of {kind} is not served")).schema).unwrap();
    let mut complaints = Vec::new();
    for part in ["spec", "status"] {
        check(&object[part], &schema["openAPIV3Schema"]["properties"][part], part, &mut complaints);
    }
    complaints
}

#[test]
fn nothing_of_an_object_of_a_release_is_lost() {
    for version in std::fs::read_dir(repository().join("tests/released")).unwrap() {
        let version = version.unwrap().path();
        let mut seen = BTreeMap::<String, usize>::new();
        for cluster in ["east.json", "west.json"] {
            let document: Value =
                serde_json::from_str(&std::fs::read_to_string(version.join(cluster)).unwrap()).unwrap();
            for entry in document["objects"].as_array().unwrap() {
                let object = &entry["object"];
                let lost = match object["kind"].as_str().unwrap() {
                    "Burst" => lost::<Burst>(object),
                    "ClusterPeer" => lost::<ClusterPeer>(object),
                    "FluxJob" => lost::<FluxJob>(object),
                    "FluxSetup" => lost::<FluxSetup>(object),
                    "HostedBurst" => lost::<HostedBurst>(object),
                    "MiniCluster" => lost::<MiniCluster>(object),
                    _ => continue,
                };
                let kind = object["kind"].as_str().unwrap();
                let name = format!("{}/{cluster}: {kind} {}", version.display(), object["metadata"]["name"]);
                assert!(lost.is_empty(), "{name}: {lost:#?}");
                let refused = refused(object);
                assert!(refused.is_empty(), "{name}: {refused:#?}");
                assert!(object["status"].is_object(), "{name} has no status");
                *seen.entry(kind.to_owned()).or_default() += 1;
            }
        }
        assert_eq!(seen.len(), 6, "{}: {seen:?}", version.display());
    }
}
