//! The gate: an object is created, or replaced if it is ours; one that is another's is left alone, though no cache of ours
//! shows it.
//!
//! A create is refused by the API server itself if the name is taken, at whatever moment somebody took it. Only then the
//! object is read, past all caches. What is in a cache and is ours costs no request, and none is added where a name is free.
//!
//! What exists and is ours is replaced rather than applied: a create leaves its fields with another entry of the field
//! manager than an apply, and an apply could never take one of them away again. Labels, annotations and finalizers of
//! others stay, as do those fields of a Kubernetes kind's `spec` that we do not set (addresses that were allotted,
//! defaults). The `spec` of a MiniCluster, a Burst or a HostedBurst that we write is ours whole.

use kube::Client;
use kube::api::PostParams;
use serde_json::{Value, json};

use super::compared::{Both, WHOLE_GROUPS};
use super::{Appliable, Applied, Applier, Verdict, at, controller_of, named, send, send_object};
use crate::error::{Cause, RequestError};
use crate::key::ObjectKey;

/// How often an object is judged while others write to it.
const MOST_LOOKS: usize = 3;

impl Applier {
    /// Makes `desired` so, given the object as it is in the cache, if there is one. `data` becomes exactly ours, and unknown
    /// fields are refused (strict validation). An object that was given and is gone is not made anew.
    ///
    /// # Errors
    /// [`Cause::Foreign`] if the name is taken by an object with another controller than `desired`, or with none; else what
    /// the API server says. A cached object that was replaced in the meantime is a conflict.
    pub async fn own<K: Appliable>(&self, desired: &K, live: Option<&K>) -> Result<Applied<K>, RequestError> {
        let mut both = live.and_then(|live| Both::of(desired, live));
        if both.as_ref().is_some_and(|(uid, both)| self.compared.knows(uid, *both)) {
            return Ok(Applied::Unchanged);
        }
        let key = ObjectKey::of(desired);
        let failed = |cause: Cause| RequestError::new("write", named::<K>(&key), cause);
        let wanted = self.prepared(desired).map_err(failed)?;
        let mut live = match live {
            Some(live) => serde_json::to_value(live).map_err(|error| failed(Cause::Answer(error)))?,
            None => match self.post::<K>(&key, &wanted, false).await {
                Ok(answer) => {
                    self.settle(&wanted, &answer);
                    return read(answer).map(Applied::Created).map_err(failed);
                }
                Err(cause) if cause.is_already_exists() => found::<K>(&self.writer, &key).await.map_err(failed)?,
                Err(cause) => return Err(failed(cause)),
            },
        };
        for left in (0..MOST_LOOKS).rev() {
            match self.judge::<K>(&wanted, &live).map_err(failed)? {
                Verdict::Terminating => return Ok(Applied::Terminating),
                Verdict::Unchanged if wanted["data"] == live["data"] => {
                    if let Some((uid, both)) = both {
                        self.compared.remember(uid, both);
                    }
                    return Ok(Applied::Unchanged);
                }
                Verdict::Differs { drifted } if !drifted.is_empty() => {
                    tracing::info!(kind = %K::kind(&()), %key, ?drifted, "somebody else changed the object; it is put right");
                }
                Verdict::Unchanged | Verdict::Differs { .. } => {}
            }
            match self.put::<K>(&key, &replacement::<K>(&wanted, &live)).await {
                Ok(answer) => {
                    self.settle(&wanted, &answer);
                    return read(answer).map(Applied::Changed).map_err(failed);
                }
                // Somebody wrote to it since it was read: whose it is, and what it lacks, is judged anew.
                Err(cause) if cause.is_conflict() && left > 0 => {
                    let newer = found::<K>(&self.writer, &key).await.map_err(failed)?;
                    if newer["metadata"]["uid"] != live["metadata"]["uid"] {
                        return Err(failed(cause));
                    }
                    (live, both) = (newer, None);
                }
                Err(cause) => return Err(failed(cause)),
            }
        }
        unreachable!("the last look ends the loop")
    }

    /// Creates `desired` unless it exists, as [`Applier::own`] would: that sends nothing while nothing changes. What exists is read,
    /// and not changed.
    ///
    /// # Errors
    /// As [`Applier::own`].
    pub async fn own_once<K: Appliable>(&self, desired: &K) -> Result<Applied<K>, RequestError> {
        let key = ObjectKey::of(desired);
        let failed = |cause: Cause| RequestError::new("create", named::<K>(&key), cause);
        let wanted = self.prepared(desired).map_err(failed)?;
        let live = match self.post::<K>(&key, &wanted, false).await {
            Ok(answer) => return read(answer).map(Applied::Created).map_err(failed),
            Err(cause) if cause.is_already_exists() => found::<K>(&self.writer, &key).await.map_err(failed)?,
            Err(cause) => return Err(failed(cause)),
        };
        match self.judge::<K>(&wanted, &live).map_err(failed)? {
            Verdict::Terminating => Ok(Applied::Terminating),
            _ => Ok(Applied::Unchanged),
        }
    }

    /// Whether [`Applier::own_once`] could create `desired` now: nothing is stored, and nothing that has its name is changed.
    ///
    /// # Errors
    /// What the API server says, also if the name is taken.
    pub async fn dry_run<K: Appliable>(&self, desired: &K) -> Result<(), RequestError> {
        let key = ObjectKey::of(desired);
        let failed = |cause: Cause| RequestError::new("check", named::<K>(&key), cause);
        let wanted = self.prepared(desired).map_err(failed)?;
        self.post::<K>(&key, &wanted, true).await.map(drop).map_err(failed)
    }

    /// Whether the API server takes `desired`, as far as that can be asked while what it is to replace has its name.
    ///
    /// # Errors
    /// It is refused. What may end when the name is free is none: that the name is taken, or a quota is full.
    pub async fn try_replacement<K: Appliable>(&self, desired: &K) -> Result<(), RequestError> {
        let key = ObjectKey::of(desired);
        let failed = |cause: Cause| RequestError::new("check", named::<K>(&key), cause);
        let wanted = self.prepared(desired).map_err(failed)?.to_string().into_bytes();
        let params = PostParams { dry_run: true, ..self.post_params() };
        match send::<Value>(&self.writer, at::<K>(&key).create(&params, wanted)).await {
            Err(cause) if cause.is_already_exists() || cause.is_quota() || cause.is_of_dry_run() => Ok(()),
            Err(cause) => Err(failed(cause)),
            Ok(_) => Ok(()),
        }
    }

    async fn post<K: Appliable>(&self, key: &ObjectKey, wanted: &Value, dry_run: bool) -> Result<Value, Cause> {
        let params = PostParams { dry_run, ..self.post_params() };
        let request = at::<K>(key).create(&params, wanted.to_string().into_bytes());
        send_object(&self.writer, request.map(strict)).await
    }

    async fn put<K: Appliable>(&self, key: &ObjectKey, body: &Value) -> Result<Value, Cause> {
        let request = at::<K>(key).replace(&key.name, &self.post_params(), body.to_string().into_bytes());
        send_object(&self.writer, request.map(strict)).await
    }

    pub(super) fn post_params(&self) -> PostParams {
        PostParams { field_manager: Some(self.manager.clone()), ..PostParams::default() }
    }
}

/// Unknown fields are refused, where the API server would drop them.
fn strict(mut request: http::Request<Vec<u8>>) -> http::Request<Vec<u8>> {
    let text = request.uri().to_string();
    let joint = if text.contains('?') { '&' } else { '?' };
    if let Ok(uri) = format!("{text}{joint}fieldValidation=Strict").parse() {
        *request.uri_mut() = uri;
    }
    request
}

fn read<K: Appliable>(answer: Value) -> Result<K, Cause> {
    serde_json::from_value(answer).map_err(Cause::Answer)
}

async fn found<K: Appliable>(client: &Client, key: &ObjectKey) -> Result<Value, Cause> {
    send_object(client, at::<K>(key).get(&key.name, &kube::api::GetParams::default())).await
}

/// `wanted`, with what of `live` is not ours to take away.
fn replacement<K: Appliable>(wanted: &Value, live: &Value) -> Value {
    let mut body = wanted.clone();
    let metadata = &live["metadata"];
    for map in ["labels", "annotations"] {
        let mut kept = metadata[map].as_object().cloned().unwrap_or_default();
        kept.extend(wanted["metadata"][map].as_object().cloned().unwrap_or_default());
        body["metadata"][map] = Value::Object(kept);
    }
    let ours = controller_of(wanted).map(|owner| owner["uid"].clone());
    let others = metadata["ownerReferences"].as_array().into_iter().flatten();
    let others: Vec<Value> = others.filter(|owner| Some(&owner["uid"]) != ours.as_ref()).cloned().collect();
    if !others.is_empty() {
        let mut owners = wanted["metadata"]["ownerReferences"].as_array().cloned().unwrap_or_default();
        owners.extend(others);
        body["metadata"]["ownerReferences"] = json!(owners);
    }
    for field in ["finalizers", "uid", "resourceVersion"] {
        if !metadata[field].is_null() {
            body["metadata"][field] = metadata[field].clone();
        }
    }
    let is_ours_whole = WHOLE_GROUPS.contains(&&*K::group(&()));
    if let (false, Some(wanted), Some(live)) = (is_ours_whole, wanted["spec"].as_object(), live["spec"].as_object()) {
        let mut spec = live.clone();
        spec.extend(wanted.clone());
        body["spec"] = Value::Object(spec);
    }
    body
}

#[cfg(test)]
mod tests {
    use http::Method;
    use k8s_openapi::api::core::v1::{ConfigMap, Service};

    use super::*;
    use crate::apply::tests::{applier, config_map, methods, stored};

    fn ours() -> ConfigMap {
        config_map("v", Some("o-1"))
    }

    /// What an API server answers that has this object.
    fn having(object: Value) -> impl Fn(&Method, Value) -> (u16, Value) + Clone {
        move |method, body| {
            let refused = |reason: &str| {
                (409, json!({"kind": "Status", "status": "Failure", "code": 409, "reason": reason, "message": "stale"}))
            };
            let version = |object: &Value| object["metadata"]["resourceVersion"].clone();
            match *method {
                Method::POST => refused("AlreadyExists"),
                Method::GET => (200, object.clone()),
                Method::PUT if version(&object) != version(&body) => refused("Conflict"),
                _ => (200, body),
            }
        }
    }

    #[tokio::test]
    async fn a_free_name_takes_one_request_and_a_taken_one_is_left_alone() {
        let (free, seen) = applier(stored);
        let made = free.own(&ours(), None).await.unwrap();
        assert!(matches!(made, Applied::Created(_)));
        assert_eq!(methods(&seen), [Method::POST]);

        for owner in [None, Some("p-1")] {
            let mut theirs = json!(config_map("theirs", owner));
            theirs["metadata"]["uid"] = json!("u");
            let (applier, seen) = applier(having(theirs));
            let error = applier.own(&ours(), None).await.unwrap_err();
            assert!(matches!(error.cause(), Cause::Foreign { .. }), "{error:?}");
            let error = applier.own_once(&ours()).await.unwrap_err();
            assert!(matches!(error.cause(), Cause::Foreign { .. }), "{error:?}");
            assert_eq!(
                methods(&seen),
                [Method::POST, Method::GET, Method::POST, Method::GET],
                "nothing is written over"
            );
        }
    }

    /// The danger: a dry run that would change what has the name; or one that takes what the create itself refuses.
    #[tokio::test]
    async fn a_dry_run_creates_strictly_and_says_that_the_name_is_taken() {
        let (free, seen) = applier(stored);
        free.dry_run(&ours()).await.unwrap();
        let uri = "/api/v1/namespaces/n/configmaps?&dryRun=All&fieldManager=reconcile&fieldValidation=Strict";
        assert_eq!((methods(&seen), seen.lock()[0].1.as_str()), (vec![Method::POST], uri));
        let (taken, seen) = applier(having(json!(ours())));
        assert!(taken.dry_run(&ours()).await.unwrap_err().cause().is_already_exists());
        assert_eq!(methods(&seen), [Method::POST]);
    }

    #[tokio::test]
    async fn what_is_ours_becomes_exactly_what_is_wanted_and_keeps_what_others_added() {
        let mut there = applier(stored).0.prepared(&ours()).unwrap();
        there["metadata"]["resourceVersion"] = json!("7");
        there["metadata"]["finalizers"] = json!(["them/hold"]);
        there["metadata"]["labels"] = json!({"theirs": "1"});
        let (settled, seen) = applier(having(there.clone()));
        assert!(matches!(settled.own(&ours(), None).await.unwrap(), Applied::Unchanged));
        assert_eq!(methods(&seen), [Method::POST, Method::GET]);

        there["data"]["intruder"] = json!("x");
        let (mending, seen) = applier(having(there));
        assert!(matches!(mending.own(&ours(), None).await.unwrap(), Applied::Changed(_)));
        let (method, _, body) = seen.lock().pop().unwrap();
        assert_eq!((method, &body["data"]), (Method::PUT, &json!({"key": "v"})));
        let metadata = &body["metadata"];
        assert_eq!(metadata["labels"]["theirs"], "1");
        assert_eq!((&metadata["finalizers"], &metadata["resourceVersion"]), (&json!(["them/hold"]), &json!("7")));
    }

    #[tokio::test]
    async fn what_others_write_meanwhile_is_judged_anew_and_what_took_its_place_is_left_alone() {
        let mut cached = applier(stored).0.prepared(&ours()).unwrap();
        cached["metadata"]["uid"] = json!("u");
        cached["data"]["key"] = json!("tampered");
        // What the API server has by now, what becomes of it, and what is sent.
        let table = [
            (json!("u"), json!("o-1"), None, vec![Method::PUT, Method::GET, Method::PUT]),
            (json!("u"), json!("o-2"), Some("it is controlled by"), vec![Method::PUT, Method::GET]),
            (json!("other"), json!("o-1"), Some("stale"), vec![Method::PUT, Method::GET]),
        ];
        for (uid, owner, refused, expected) in table {
            let mut there = cached.clone();
            there["metadata"]["uid"] = uid;
            there["metadata"]["resourceVersion"] = json!("8");
            there["metadata"]["ownerReferences"][0]["uid"] = owner;
            let (applier, seen) = applier(having(there));
            let cached: ConfigMap = serde_json::from_value(cached.clone()).unwrap();
            let outcome = applier.own(&ours(), Some(&cached)).await;
            let said = outcome.err().map(|error| crate::error::chain(&error));
            assert_eq!(said.is_some(), refused.is_some(), "{said:?}");
            assert!(said.unwrap_or_default().contains(refused.unwrap_or_default()));
            assert_eq!(methods(&seen), expected);
        }
    }

    #[test]
    fn what_a_burst_no_longer_asks_for_goes() {
        let live = json!({"metadata": {}, "spec": {"size": 2, "budget": {"coreHours": "1"}}});
        let wanted = json!({"metadata": {}, "spec": {"size": 3}});
        assert_eq!(replacement::<tributary_api::burst::Burst>(&wanted, &live)["spec"], json!({"size": 3}));
    }

    #[test]
    fn lists_of_a_spec_are_replaced_and_what_was_allotted_stays() {
        let wanted = json!({"metadata": {}, "spec": {"ports": [{"port": 81}]}});
        let live = json!({"metadata": {}, "spec": {"ports": [{"port": 80}], "clusterIP": "10.0.0.1"}});
        assert_eq!(
            replacement::<Service>(&wanted, &live)["spec"],
            json!({"ports": [{"port": 81}], "clusterIP": "10.0.0.1"})
        );
    }
}
