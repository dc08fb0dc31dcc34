//! The garbage collector: what it would do by itself, at once.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::delete::{FOREGROUND, ORPHAN};
use super::request::{Key, RequestInfo};
use super::store::Store;
use super::write::strings;

const MANAGER: &str = "garbage-collector";

enum Deed {
    Delete(Key, &'static str),
    /// A merge patch of the metadata.
    Change(Key, Value),
}

impl Store {
    /// Does all there is to do. Returns how many objects are gone.
    pub(super) fn collect_garbage(&mut self) -> usize {
        let before = self.history.len();
        loop {
            let version = self.version;
            for deed in self.garbage() {
                let (verb, key, body) = match deed {
                    Deed::Delete(key, policy) => ("delete", key, json!({"propagationPolicy": policy})),
                    Deed::Change(key, metadata) => ("patch", key, json!({"metadata": metadata})),
                };
                let info = RequestInfo::to(verb, &key, MANAGER);
                let info = RequestInfo { patch_type: "application/merge-patch+json".into(), ..info };
                // What is gone already needs nothing.
                drop(self.execute(&info, body, version));
            }
            if self.version == version {
                return self.history[before..].iter().filter(|event| event.gone).count();
            }
        }
    }

    fn garbage(&self) -> Vec<Deed> {
        let objects = || self.objects.iter().map(|(key, stored)| (key, &*stored.object));
        let owners: BTreeMap<&str, &Value> =
            objects().filter_map(|(_, object)| Some((object["metadata"]["uid"].as_str()?, object))).collect();
        let owner = |reference: &Value| reference["uid"].as_str().and_then(|uid| owners.get(uid));
        let mut deeds = Vec::new();
        for (key, object) in objects() {
            let metadata = &object["metadata"];
            let uid = &metadata["uid"];
            let finalizers = strings(&metadata["finalizers"]);
            let without =
                |name: &str| json!({"finalizers": finalizers.iter().filter(|one| *one != name).collect::<Vec<_>>()});
            if ends_by(object, ORPHAN) {
                let kept =
                    |object: &Value| references(object).filter(|one| one["uid"] != *uid).cloned().collect::<Vec<_>>();
                let dependents = objects().filter(|(_, one)| references(one).any(|reference| reference["uid"] == *uid));
                deeds.extend(
                    dependents.map(|(key, one)| Deed::Change(key.clone(), json!({"ownerReferences": kept(one)}))),
                );
                deeds.push(Deed::Change(key.clone(), without(ORPHAN)));
                continue;
            }
            let blocks =
                |one: &Value| references(one).any(|own| own["uid"] == *uid && own["blockOwnerDeletion"] == true);
            if ends_by(object, FOREGROUND) && !objects().any(|(_, one)| blocks(one)) {
                deeds.push(Deed::Change(key.clone(), without(FOREGROUND)));
            }
            if references(object).next().is_none() || !metadata["deletionTimestamp"].is_null() {
                continue;
            }
            let waits = |reference: &Value| owner(reference).is_some_and(|owner| ends_by(owner, FOREGROUND));
            let solid = |reference: &&Value| owner(reference).is_some() && !waits(reference);
            let kept: Vec<&Value> = references(object).filter(solid).collect();
            if kept.is_empty() {
                let policy = match references(object).any(waits) {
                    true => "Foreground",
                    false => "Background",
                };
                deeds.push(Deed::Delete(key.clone(), policy));
            } else if kept.len() < references(object).count() {
                deeds.push(Deed::Change(key.clone(), json!({"ownerReferences": kept})));
            }
        }
        deeds
    }
}

fn references(object: &Value) -> impl Iterator<Item = &Value> {
    object["metadata"]["ownerReferences"].as_array().into_iter().flatten()
}

fn ends_by(object: &Value, finalizer: &str) -> bool {
    let metadata = &object["metadata"];
    !metadata["deletionTimestamp"].is_null() && strings(&metadata["finalizers"]).iter().any(|one| one == finalizer)
}
