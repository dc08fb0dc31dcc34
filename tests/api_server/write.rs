//! What requests do to the objects.

use kube::core::Status;
use serde_json::{Value, json};

use super::apply::{self, Owners};
use super::fields::{self, Place};
use super::read::shown;
use super::request::{Outcome, RequestInfo, bad_request};
use super::store::{Store, Stored, Write};
use tributary_cluster::apply::drop_nulls;
use tributary_cluster::drift::is_built_in;

/// Fields of the metadata that the API server alone writes.
pub(super) const SYSTEM: [&str; 10] = [
    "name",
    "namespace",
    "uid",
    "resourceVersion",
    "creationTimestamp",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
    "generation",
    "managedFields",
    "selfLink",
];

/// What is answered to a request that was granted.
pub(super) struct Granted {
    pub(super) code: u16,
    pub(super) body: Value,
}

impl Store {
    /// Does what is asked for. Reads show the state at `version`.
    pub(super) fn execute(&mut self, info: &RequestInfo, body: Value, version: u64) -> Outcome<Granted> {
        *self.requests.entry((info.verb, info.resource.clone())).or_default() += 1;
        let before = self.version;
        let outcome = match info.verb {
            _ if info.resource.is_empty() => return self.discovered(info),
            "get" => return self.get(info, version),
            "list" => return self.list(info, version),
            _ if !["", "status"].contains(&info.subresource.as_str()) => Err(info.not_found()),
            "create" => self.create(info, body),
            "update" => self.found(info).and_then(|before| self.update(info, &before, body, None)),
            "patch" => self.patch(info, body),
            "delete" => self.delete(info, &body),
            "deletecollection" => self.delete_collection(info, &body),
            _ => Err(Box::new(Status::failure("the method is not allowed", "MethodNotAllowed").with_code(405))),
        };
        let code = outcome.as_ref().map_or_else(|refused| refused.code, |granted| granted.code);
        let version = (self.version > before).then_some(self.version);
        self.writes.push(Write { request: info.clone(), code, version });
        outcome
    }

    pub(super) fn found(&self, info: &RequestInfo) -> Outcome<Stored> {
        self.objects.get(&info.key()).cloned().ok_or_else(|| info.not_found())
    }

    fn create(&mut self, info: &RequestInfo, mut object: Value) -> Outcome<Granted> {
        if !object.is_object() {
            return Err(bad_request("the object provided is unrecognized"));
        }
        let metadata = object["metadata"].clone();
        let mut info = info.clone();
        let uid = self.uid();
        if info.name.is_empty() {
            let prefix = metadata["generateName"].as_str().map(|prefix| format!("{prefix}{}", &uid[..5]));
            info.name = metadata["name"].as_str().map(str::to_owned).or(prefix).unwrap_or_default();
        }
        if info.name.is_empty() {
            return Err(info.invalid("metadata.name: Required value: name or generateName is required"));
        }
        if metadata["resourceVersion"].as_str().is_some_and(|version| !version.is_empty()) {
            let message = "resourceVersion should not be set on objects to be created";
            return Err(Box::new(Status::failure(message, "").with_code(500)));
        }
        if self.objects.contains_key(&info.key()) {
            return Err(info.already_exists());
        }
        object["apiVersion"] = info.api_version().into();
        if let Some(kind) = object["kind"].as_str() {
            self.learn(&info, kind, !info.namespace.is_empty());
        }
        object["kind"] = self.kind(&info).1.into();
        if let Some(fields) = object.as_object_mut() {
            fields.remove("status");
        }
        let namespace = Some(&info.namespace).filter(|name| !name.is_empty());
        let born = json!({"metadata": {"name": info.name, "namespace": namespace, "uid": uid,
            "creationTimestamp": self.now().to_string()}});
        keep_system(&mut object, &born);
        let owners = match info.patch_type.contains("apply-patch") {
            true => apply::apply(&info, &json!({}), &Owners::new(), &object)?.1,
            false => apply::updated(&info, &Owners::new(), &json!({}), &object),
        };
        (self.admission)(&info, &mut object)?;
        let object = self.commit(&info.key(), object, owners, info.is("dryRun", "All"));
        Ok(Granted { code: 201, body: shown(&info, &object) })
    }

    /// `owners` are known after an apply.
    fn update(&mut self, info: &RequestInfo, before: &Stored, new: Value, owners: Option<Owners>) -> Outcome<Granted> {
        let old = &*before.object;
        let is_custom = !is_built_in(&info.api_version());
        let told = |name: &str| new["metadata"][name].as_str().filter(|text| !text.is_empty());
        if let Some(name) = told("name").filter(|name| *name != info.name) {
            let message = "the name of the object ({}) does not match the name on the URL ({})";
            return Err(bad_request(message.replacen("{}", name, 1).replacen("{}", &info.name, 1)));
        }
        let held = old["metadata"]["uid"].as_str().unwrap_or_default();
        if let Some(uid) = told("uid").filter(|uid| *uid != held) {
            if info.verb == "update" {
                let message = "Precondition failed: UID in precondition:";
                return Err(info.conflict(&format!("{message} {uid}, UID in object meta: {held}")));
            }
            // The status of a custom kind is taken with whatever metadata.
            if !(is_custom && info.subresource == "status") {
                return Err(info.invalid(&format!("metadata.uid: Invalid value: {uid:?}: field is immutable")));
            }
        }
        match told("resourceVersion") {
            Some(version) if old["metadata"]["resourceVersion"] != version => {
                let message =
                    "the object has been modified; please apply your changes to the latest version and try again";
                return Err(info.conflict(message));
            }
            None if is_custom && info.verb == "update" => {
                return Err(info.invalid("metadata.resourceVersion: Invalid value: 0: must be specified for an update"));
            }
            _ => {}
        }
        let (mut object, status) = match info.subresource.as_str() {
            "status" => (old.clone(), &new["status"]),
            _ => (new.clone(), &old["status"]),
        };
        object["status"] = status.clone();
        drop_nulls(&mut object);
        (object["apiVersion"], object["kind"]) = (old["apiVersion"].clone(), old["kind"].clone());
        keep_system(&mut object, old);
        if !old["metadata"]["deletionTimestamp"].is_null() && adds_finalizers(old, &object) {
            return Err(info.invalid(
                "metadata.finalizers: Forbidden: no new finalizers can be added if the object is being deleted",
            ));
        }
        (self.admission)(info, &mut object)?;
        let owners = owners.unwrap_or_else(|| apply::updated(info, &before.owners, old, &object));
        let object = self.commit(&info.key(), object, owners, info.is("dryRun", "All"));
        Ok(Granted { code: 200, body: shown(info, &object) })
    }

    fn patch(&mut self, info: &RequestInfo, mut patch: Value) -> Outcome<Granted> {
        let before = self.found(info);
        let api_version = info.api_version();
        if info.patch_type.contains("apply-patch") {
            if info.parameter("fieldManager").is_none() {
                return Err(info.invalid("fieldManager: Required value: is required for apply patch"));
            }
            drop_nulls(&mut patch);
            if patch["apiVersion"] != info.api_version() || !patch["kind"].is_string() {
                return Err(bad_request("invalid object type"));
            }
            let Some(fields) = patch.as_object_mut() else { return Err(bad_request("the patch is no object")) };
            match info.subresource.as_str() {
                "status" => {
                    fields.retain(|name, _| ["apiVersion", "kind", "metadata", "status"].contains(&name.as_str()))
                }
                _ => drop(fields.remove("status")),
            }
            let Ok(before) = before else {
                return match patch["metadata"]["uid"].as_str() {
                    _ if info.subresource == "status" => Err(info.not_found()),
                    Some(uid) => Err(info.conflict(&format!(
                        "uid mismatch: the provided object specified uid {uid}, and no existing object was found"
                    ))),
                    None => self.create(info, patch),
                };
            };
            let (object, owners) = apply::apply(info, &before.object, &before.owners, &patch)?;
            return self.update(info, &before, object, Some(owners));
        }
        let before = before?;
        let mut object = (*before.object).clone();
        match info.patch_type.as_str() {
            "application/json-patch+json" => {
                let patch =
                    serde_json::from_value::<json_patch::Patch>(patch).map_err(|e| bad_request(e.to_string()))?;
                let message = "the server rejected our request due to an error in our request";
                json_patch::patch(&mut object, &patch).map_err(|_| info.refused(422, "Invalid", message))?;
            }
            "application/merge-patch+json" => json_patch::merge(&mut object, &patch),
            "application/strategic-merge-patch+json" if is_built_in(&api_version) => {
                fields::merge(Place::root(&api_version), &mut object, &patch);
            }
            _ => {
                let message = "the body of the request was in an unknown format";
                return Err(Box::new(Status::failure(message, "UnsupportedMediaType").with_code(415)));
            }
        }
        self.update(info, &before, object, None)
    }
}

/// What a client cannot write stays as it was.
fn keep_system(object: &mut Value, old: &Value) {
    if !object["metadata"].is_object() {
        object["metadata"] = json!({});
    }
    for name in SYSTEM {
        object["metadata"][name] = old["metadata"][name].clone();
    }
    drop_nulls(object);
}

pub(super) fn strings(list: &Value) -> Vec<String> {
    list.as_array().into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect()
}

fn adds_finalizers(old: &Value, new: &Value) -> bool {
    let known = strings(&old["metadata"]["finalizers"]);
    strings(&new["metadata"]["finalizers"]).iter().any(|one| !known.contains(one))
}
