//! Deletion: preconditions, finalizers, and the time that pods have.

use serde_json::{Value, json};

use super::read::shown;
use super::request::{Key, Outcome, RequestInfo};
use super::select::Selector;
use super::store::Store;
use super::write::{Granted, strings};
use tributary_cluster::apply::drop_nulls;

/// Kinds whose deletion is answered with the object.
const SHOWN_WHEN_DELETED: [&str; 4] = ["pods", "services", "persistentvolumeclaims", "serviceaccounts"];

/// The finalizers that the garbage collector removes.
pub(super) const FOREGROUND: &str = "foregroundDeletion";
pub(super) const ORPHAN: &str = "orphan";

impl Store {
    pub(super) fn delete(&mut self, info: &RequestInfo, options: &Value) -> Outcome<Granted> {
        let before = self.found(info)?;
        let mut object = (*before.object).clone();
        for (name, told) in [("uid", "UID"), ("resourceVersion", "ResourceVersion")] {
            let (wanted, held) = (&options["preconditions"][name], &object["metadata"][name]);
            if !wanted.is_null() && wanted != held {
                let message =
                    format!("the {told} in the precondition ({wanted}) does not match the {told} in record ({held})");
                return Err(info.conflict(&message.replace('"', "")));
            }
        }
        (self.admission)(info, &mut object.clone())?;
        let grace = grace(info, &object, options);
        let metadata = &mut object["metadata"];
        let policy = match (options["propagationPolicy"].as_str(), info.resource.as_str()) {
            (Some("Foreground"), _) => Some(FOREGROUND),
            (Some("Orphan"), _) | (None, "jobs") => Some(ORPHAN),
            _ => None,
        };
        let mut finalizers = strings(&metadata["finalizers"]);
        if options["propagationPolicy"].is_string() {
            finalizers.retain(|one| one != FOREGROUND && one != ORPHAN);
        }
        if !finalizers.iter().any(|one| one == FOREGROUND || one == ORPHAN) {
            finalizers.extend(policy.map(str::to_owned));
        }
        metadata["finalizers"] = if finalizers.is_empty() { Value::Null } else { json!(finalizers) };
        let earlier = metadata["deletionGracePeriodSeconds"].as_i64();
        if earlier.is_none_or(|earlier| grace < earlier) {
            let end = self.now() + jiff::SignedDuration::from_secs(grace);
            metadata["deletionTimestamp"] = end.to_string().into();
            metadata["deletionGracePeriodSeconds"] = grace.into();
        }
        let dry = info.is("dryRun", "All") || options["dryRun"] == json!(["All"]);
        let object = self.commit(&info.key(), object, before.owners, dry);
        if self.objects.contains_key(&info.key()) || SHOWN_WHEN_DELETED.contains(&info.resource.as_str()) {
            return Ok(Granted { code: 200, body: shown(info, &object) });
        }
        let group = Some(&info.group).filter(|group| !group.is_empty());
        let uid = &object["metadata"]["uid"];
        let mut details = json!({"name": info.name, "group": group, "kind": info.resource, "uid": uid});
        drop_nulls(&mut details);
        let body =
            json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details});
        Ok(Granted { code: 200, body })
    }

    pub(super) fn delete_collection(&mut self, info: &RequestInfo, options: &Value) -> Outcome<Granted> {
        let selector = Selector::of(info)?;
        let found = self.at(info, self.version)?;
        let keys: Vec<Key> =
            found.iter().filter(|(_, object)| selector.selects(object)).map(|(key, _)| key.clone()).collect();
        for key in keys {
            self.delete(&RequestInfo { namespace: key.namespace, name: key.name, ..info.clone() }, options)?;
        }
        Ok(Granted { code: 200, body: json!({"kind": "Status", "apiVersion": "v1", "status": "Success"}) })
    }
}

/// Seconds that a deleted object stays for its kubelet: pods that run have them.
fn grace(info: &RequestInfo, object: &Value, options: &Value) -> i64 {
    let ended = ["Succeeded", "Failed"].iter().any(|phase| object["status"]["phase"] == *phase);
    if info.resource != "pods" || object["spec"]["nodeName"].as_str().is_none_or(str::is_empty) || ended {
        return 0;
    }
    let own = object["spec"]["terminationGracePeriodSeconds"].as_i64().unwrap_or(30);
    options["gracePeriodSeconds"].as_i64().unwrap_or(own)
}
