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
use kube::core::Request;
use serde_json::{Value, json};

use super::compared::{Both, WHOLE_GROUPS};
use super::{Appliable, Applied, Applier, Verdict, controller_of, named};
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
            None => match self.post::<K>(&key, &wanted).await {
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

    /// Creates `desired` unless it exists: for what cannot be changed.
    ///
    /// # Errors
    /// As [`Applier::own`].
    pub async fn own_once<K: Appliable>(&self, desired: &K) -> Result<Applied<K>, RequestError> {
        let key = ObjectKey::of(desired);
        let failed = |cause: Cause| RequestError::new("create", named::<K>(&key), cause);
        let wanted = self.prepared(desired).map_err(failed)?;
        let live = match self.post::<K>(&key, &wanted).await {
            Ok(answer) => return read(answer).map(Applied::Created).map_err(failed),
            Err(cause) if cause.is_already_exists() => found::<K>(&self.writer, &key).await.map_err(failed)?,
            Err(cause) => return Err(failed(cause)),
        };
        match self.judge::<K>(&wanted, &live).map_err(failed)? {
            Verdict::Terminating => Ok(Applied::Terminating),
            _ => Ok(Applied::Unchanged),
        }
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
        let request = Request::new(K::url_path(&(), key.namespace.as_deref())).create(&params, wanted);
        match self.writer.request::<Value>(request.map_err(|error| failed(error.into()))?).await.map_err(Cause::from) {
            Err(cause) if cause.is_already_exists() || cause.is_quota() || cause.is_of_dry_run() => Ok(()),
            Err(cause) => Err(failed(cause)),
            Ok(_) => Ok(()),
        }
    }

    async fn post<K: Appliable>(&self, key: &ObjectKey, wanted: &Value) -> Result<Value, Cause> {
        let request = Request::new(K::url_path(&(), key.namespace.as_deref()))
            .create(&self.post_params(), wanted.to_string().into_bytes())?;
        Ok(self.writer.request(strict(request)).await?)
    }

    async fn put<K: Appliable>(&self, key: &ObjectKey, body: &Value) -> Result<Value, Cause> {
        let request = Request::new(K::url_path(&(), key.namespace.as_deref())).replace(
            &key.name,
            &self.post_params(),
            body.to_string().into_bytes(),
        )?;
        Ok(self.writer.request(strict(request)).await?)
    }

    fn post_params(&self) -> PostParams {
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
    let request =
        Request::new(K::url_path(&(), key.namespace.as_deref())).get(&key.name, &kube::api::GetParams::default())?;
    Ok(client.request(request).await?)
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
    use std::sync::{Arc, Mutex};

    use http::{Request, Response};
    use k8s_openapi::api::core::v1::{ConfigMap, Service};
    use kube::client::Body;

    use super::*;

    fn ours(data: &str) -> ConfigMap {
        let owner = json!({"apiVersion": "v1", "kind": "Pod", "name": "o", "uid": "o-1", "controller": true});
        serde_json::from_value(json!({
            "metadata": {"namespace": "n", "name": "c", "ownerReferences": [owner]}, "data": {"k": data},
        }))
        .unwrap()
    }

    /// Methods and bodies, in their order.
    type Seen = Arc<Mutex<Vec<(String, Value)>>>;

    /// An API server that has this object, and remembers what was asked.
    fn server(stored: Option<Value>) -> (Client, Seen) {
        let seen = Seen::default();
        let log = seen.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let (stored, log) = (stored.clone(), log.clone());
            async move {
                let (head, body) = request.into_parts();
                let body = body.collect_bytes().await?;
                let body: Value = serde_json::from_slice(&body).unwrap_or_default();
                log.lock().unwrap().push((head.method.to_string(), body.clone()));
                let exists = json!({"kind": "Status", "status": "Failure", "code": 409, "reason": "AlreadyExists", "message": ""});
                let (code, answer) = match (head.method.as_str(), stored) {
                    ("POST", Some(_)) => (409, exists),
                    ("GET", Some(stored)) => (200, stored),
                    ("PUT", Some(stored))
                        if stored["metadata"]["resourceVersion"] != body["metadata"]["resourceVersion"] =>
                    {
                        (
                            409,
                            json!({"kind": "Status", "status": "Failure", "code": 409, "reason": "Conflict", "message": "stale"}),
                        )
                    }
                    _ => (200, body),
                };
                Ok::<_, tower::BoxError>(
                    Response::builder().status(code).body(Body::from(answer.to_string().into_bytes())).unwrap(),
                )
            }
        });
        (Client::new(service, "n"), seen)
    }

    fn methods(seen: &Seen) -> Vec<String> {
        seen.lock().unwrap().iter().map(|(method, _)| method.clone()).collect()
    }

    #[tokio::test]
    async fn a_free_name_takes_one_request_and_a_taken_one_is_left_alone() {
        let (client, seen) = server(None);
        let made = Applier::new(client, "m").own(&ours("v"), None).await.unwrap();
        assert!(matches!(made, Applied::Created(_)));
        assert_eq!(methods(&seen), ["POST"]);

        for owners in
            [json!([]), json!([{"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "p-1", "controller": true}])]
        {
            let theirs = json!({"metadata": {"namespace": "n", "name": "c", "uid": "u", "ownerReferences": owners}});
            let (client, seen) = server(Some(theirs));
            let applier = Applier::new(client, "m");
            let error = applier.own(&ours("v"), None).await.unwrap_err();
            assert!(matches!(error.cause(), Cause::Foreign { .. }), "{error:?}");
            let error = applier.own_once(&ours("v")).await.unwrap_err();
            assert!(matches!(error.cause(), Cause::Foreign { .. }), "{error:?}");
            assert_eq!(methods(&seen), ["POST", "GET", "POST", "GET"], "nothing is written over");
        }
    }

    #[tokio::test]
    async fn what_is_ours_becomes_exactly_what_is_wanted_and_keeps_what_others_added() {
        let applier = |client| Applier::new(client, "m");
        let mut stored = applier(server(None).0).prepared(&ours("v")).unwrap();
        stored["metadata"]["resourceVersion"] = json!("7");
        stored["metadata"]["finalizers"] = json!(["them/hold"]);
        stored["metadata"]["labels"] = json!({"theirs": "1"});
        let (client, seen) = server(Some(stored.clone()));
        let settled = applier(client).own(&ours("v"), None).await.unwrap();
        assert!(matches!(settled, Applied::Unchanged));
        assert_eq!(methods(&seen), ["POST", "GET"]);

        stored["data"]["intruder"] = json!("x");
        let (client, seen) = server(Some(stored));
        let mended = applier(client).own(&ours("v"), None).await.unwrap();
        assert!(matches!(mended, Applied::Changed(_)));
        let (method, body) = seen.lock().unwrap().pop().unwrap();
        assert_eq!((method.as_str(), &body["data"]), ("PUT", &json!({"k": "v"})));
        let metadata = &body["metadata"];
        assert_eq!(metadata["labels"]["theirs"], "1");
        assert_eq!((&metadata["finalizers"], &metadata["resourceVersion"]), (&json!(["them/hold"]), &json!("7")));
    }

    #[tokio::test]
    async fn what_others_write_meanwhile_is_judged_anew_and_what_took_its_place_is_left_alone() {
        let applier = Applier::new(server(None).0, "m");
        let mut cached = applier.prepared(&ours("v")).unwrap();
        cached["metadata"]["uid"] = json!("u");
        cached["data"]["k"] = json!("tampered");
        // What the API server has by now, what becomes of it, and what is sent.
        let table = [
            (json!("u"), json!("o-1"), None, vec!["PUT", "GET", "PUT"]),
            (json!("u"), json!("o-2"), Some("it is controlled by"), vec!["PUT", "GET"]),
            (json!("other"), json!("o-1"), Some("stale"), vec!["PUT", "GET"]),
        ];
        for (uid, owner, refused, expected) in table {
            let mut stored = cached.clone();
            stored["metadata"]["uid"] = uid;
            stored["metadata"]["resourceVersion"] = json!("8");
            stored["metadata"]["ownerReferences"][0]["uid"] = owner;
            let (client, seen) = server(Some(stored));
            let cached: ConfigMap = serde_json::from_value(cached.clone()).unwrap();
            let outcome = Applier::new(client, "m").own(&ours("v"), Some(&cached)).await;
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
