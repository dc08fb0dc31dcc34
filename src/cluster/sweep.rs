//! Deletion of children that are no longer wanted.
//!
//! A child is deleted only if it carries the owner's controller reference and our label, and only the very object we
//! looked at: the UID is a precondition.

use std::collections::BTreeSet;

use kube::api::{DeleteParams, Preconditions};
use kube::{Client, Resource, ResourceExt};
use serde_json::Value;

use super::apply::{at, named, send};
use super::caches::controller_uid;
use super::error::{Cause, RequestError};
use super::key::ObjectKey;

/// An object to be deleted.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Doomed {
    /// Which one.
    pub key: ObjectKey,
    /// The UID it must have.
    pub uid: String,
}

impl Doomed {
    /// An object as it was read; `None` if it never was in a cluster.
    pub fn of(object: &impl Resource) -> Option<Self> {
        Some(Self { key: ObjectKey::of(object), uid: object.meta().uid.clone()? })
    }

    /// The same, if the owner with this UID controls it: what is another's is never deleted.
    pub fn of_owner(object: &impl Resource, owner: Option<&str>) -> Option<Self> {
        let owner = owner?;
        (controller_uid(object) == Some(owner)).then(|| Self::of(object)).flatten()
    }
}

/// The children of the owner with this UID that are not in `desired`: those it controls, that carry `label`, and that are
/// not being deleted already.
pub fn orphans<'a, K: Resource + 'a>(
    children: impl IntoIterator<Item = &'a K>,
    owner_uid: &str,
    label: (&str, &str),
    desired: &BTreeSet<ObjectKey>,
) -> Vec<Doomed> {
    let is_orphan = |child: &&K| {
        controller_uid(*child) == Some(owner_uid)
            && child.labels().get(label.0).is_some_and(|value| value == label.1)
            && child.meta().deletion_timestamp.is_none()
            && !desired.contains(&ObjectKey::of(*child))
    };
    children.into_iter().filter(is_orphan).filter_map(Doomed::of).collect()
}

/// What became of a deletion.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Deleted {
    /// The API server deletes it now, or when its finalizers are done.
    Accepted,
    /// It was gone, or another object had its name.
    Gone,
}

/// Deletes an object of kind `K`, and what it owns after it.
///
/// # Errors
/// What the API server says, but for "not found" and "not this one".
pub async fn delete<K: Resource<DynamicType = ()>>(writer: &Client, doomed: &Doomed) -> Result<Deleted, RequestError> {
    delete_with::<K>(writer, doomed, DeleteParams::background()).await
}

/// Deletes an object that stays until what it owns is gone.
///
/// # Errors
/// As [`delete`].
pub async fn delete_foreground<K: Resource<DynamicType = ()>>(
    writer: &Client,
    doomed: &Doomed,
) -> Result<Deleted, RequestError> {
    delete_with::<K>(writer, doomed, DeleteParams::foreground()).await
}

/// Deletes a pod without waiting for its kubelet to end it.
///
/// # Errors
/// As [`delete`].
pub async fn delete_at_once<K: Resource<DynamicType = ()>>(
    writer: &Client,
    doomed: &Doomed,
) -> Result<Deleted, RequestError> {
    delete_with::<K>(writer, doomed, DeleteParams { grace_period_seconds: Some(0), ..DeleteParams::default() }).await
}

async fn delete_with<K: Resource<DynamicType = ()>>(
    writer: &Client,
    doomed: &Doomed,
    params: DeleteParams,
) -> Result<Deleted, RequestError> {
    let failed = |cause: Cause| RequestError::new("delete", named::<K>(&doomed.key), cause);
    let preconditions = Some(Preconditions { uid: Some(doomed.uid.clone()), resource_version: None });
    let params = DeleteParams { preconditions, ..params };
    match send::<Value>(writer, at::<K>(&doomed.key).delete(&doomed.key.name, &params)).await {
        Ok(_) => Ok(Deleted::Accepted),
        Err(cause) if cause.is_not_found() || cause.is_conflict() => Ok(Deleted::Gone),
        Err(cause) => Err(failed(cause)),
    }
}

#[cfg(test)]
mod tests {
    use http::Response;
    use k8s_openapi::api::core::v1::ConfigMap;
    use kube::client::Body;
    use serde_json::json;

    use super::*;

    fn child(name: &str, owner: &str, controller: bool, label: &str, deleting: bool) -> ConfigMap {
        let mut metadata = json!({"namespace": "n", "name": name, "uid": format!("uid-{name}"),
            "labels": {"managed-by": label},
            "ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": "o", "uid": owner, "controller": controller}]});
        if deleting {
            metadata["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
        }
        serde_json::from_value(json!({"metadata": metadata})).unwrap()
    }

    #[test]
    fn only_our_own_unwanted_children_are_orphans() {
        let children = [
            child("wanted", "o-1", true, "us", false),
            child("unwanted", "o-1", true, "us", false),
            child("of-another", "o-2", true, "us", false),
            child("not-controlled", "o-1", false, "us", false),
            child("not-labelled", "o-1", true, "them", false),
            child("ending", "o-1", true, "us", true),
        ];
        let desired = BTreeSet::from([ObjectKey::namespaced("n", "wanted")]);
        let found = orphans(&children, "o-1", ("managed-by", "us"), &desired);
        assert_eq!(found, [Doomed { key: ObjectKey::namespaced("n", "unwanted"), uid: "uid-unwanted".into() }]);
    }

    #[tokio::test]
    async fn only_the_object_that_was_looked_at_is_deleted() {
        for (code, expected) in
            [(200, Some(Deleted::Accepted)), (404, Some(Deleted::Gone)), (409, Some(Deleted::Gone)), (403, None)]
        {
            let server = tower::service_fn(move |request: http::Request<Body>| async move {
                let (head, body) = request.into_parts();
                assert_eq!((head.method.as_str(), head.uri.path()), ("DELETE", "/api/v1/namespaces/n/configmaps/c"));
                let body: Value = serde_json::from_slice(&body.collect_bytes().await?).unwrap();
                assert_eq!(body, json!({"propagationPolicy": "Background", "preconditions": {"uid": "u"}}));
                let status = if code == 200 { "Success" } else { "Failure" };
                let answer = json!({"kind": "Status", "status": status, "code": code, "message": "m", "reason": "r"});
                let body = Body::from(answer.to_string().into_bytes());
                Ok::<_, tower::BoxError>(Response::builder().status(code).body(body).unwrap())
            });
            let doomed = Doomed { key: ObjectKey::namespaced("n", "c"), uid: "u".into() };
            let client = Client::new(server, "n");
            let result = delete::<ConfigMap>(&client, &doomed).await;
            assert_eq!(result.ok(), expected, "{code}");
        }
    }
}
