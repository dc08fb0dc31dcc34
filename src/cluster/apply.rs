//! The one gate that objects of ours are written through: it creates what is not there, replaces what is ours, leaves alone
//! what is another's, and sends nothing when nothing differs.
//!
//! There is no other way to write an object whole. A cache that selects by label does not show what others have made, and a
//! patch would write over it: so a name that no cache shows is created, never patched ([`Applier::own`]).
//!
//! Every object we write carries the digest of what was applied, in an annotation of its field manager. An object in the
//! cache needs no request when the digest is that of what we want now, and nothing we applied was changed since
//! ([`drift`]). The digest finds what we stopped wanting; the drift finds what somebody else changed.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::api::{ListParams, Patch, PatchParams};
use kube::core::object::HasStatus;
use kube::core::{ObjectList, PartialObjectMeta, Request, request};
use kube::{Client, Resource};
use parking_lot::Mutex;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tributary_api::labels::{TRIBUTARY, kubernetes::MANAGED_BY};

use super::caches::without_managed_fields;
use super::drift::{Difference, digest, drift, same_status};
use super::error::{Cause, RequestError};
use super::key::ObjectKey;
use compared::Compared;

mod compared;
mod own;

/// Prefix of the annotation that holds the digest; the field manager's name follows.
pub(crate) const DIGEST_PREFIX: &str = "applied-digest.tributary.dev/";

/// How often a status is sent that meets newer versions of its object.
const TRIES: u32 = 4;

/// The group of the kinds that only agents write.
const OWN_GROUP: &str = "tributary.dev";

/// Who controls an object without a controller.
const NOBODY: &str = "nobody";

/// How many objects are remembered whose values the API server changes as we apply them. There should be none.
const SETTLED_LIMIT: usize = 4096;

/// A kind that can be applied.
pub trait Appliable: Resource<DynamicType = ()> + Serialize + DeserializeOwned {}
impl<K: Resource<DynamicType = ()> + Serialize + DeserializeOwned> Appliable for K {}

/// A kind with a status that can be applied.
pub trait Reporting: Appliable + HasStatus<Status: Serialize + PartialEq> {}
impl<K: Appliable + HasStatus<Status: Serialize + PartialEq>> Reporting for K {}

/// What became of an apply.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Applied<K> {
    /// The cluster has it already: no request was made.
    Unchanged,
    /// It was not in the cache, and is now in the cluster.
    Created(K),
    /// It differed, or somebody else had changed it; now it is as we want it.
    Changed(K),
    /// It is being deleted: no request was made. Its end is a change of the cache.
    Terminating,
}

impl<K> Applied<K> {
    /// The object as the API server answered; `None` if there was no request.
    pub fn object(self) -> Option<K> {
        match self {
            Self::Created(object) | Self::Changed(object) => Some(object),
            Self::Unchanged | Self::Terminating => None,
        }
    }
}

/// What became of a create.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Once<K> {
    /// It is new.
    Created(K),
    /// The name was taken, and nothing was changed.
    Exists,
}

/// Applies objects for one field manager. Cloning shares what it remembers.
#[derive(Clone)]
pub struct Applier {
    writer: Client,
    manager: String,
    /// Per UID: what the API server made of what we applied, where that is not the same. What it does every time is no
    /// drift, and must not be applied again for ever.
    settled: Arc<Mutex<BTreeMap<String, String>>>,
    compared: Arc<Compared>,
}

impl Applier {
    /// An applier for `manager`: one name per controller, at most 63 characters of a label value.
    pub fn new(writer: Client, manager: impl Into<String>) -> Self {
        Self { writer, manager: manager.into(), settled: Arc::default(), compared: Arc::default() }
    }

    /// Creates `desired` if its name is free, and changes nothing otherwise: for what must never be replaced. It gets no digest:
    /// [`Applier::own`] never sees it.
    ///
    /// # Errors
    /// What the API server says.
    pub async fn create_once<K: Appliable>(&self, desired: &K) -> Result<Once<K>, RequestError> {
        let key = ObjectKey::of(desired);
        let failed = |cause: Cause| RequestError::new("create", named::<K>(&key), cause);
        let wanted = typed::<K>(desired).map_err(failed)?;
        let request = at::<K>(&key).create(&self.post_params(), wanted.to_string().into_bytes());
        match send_object(&self.writer, request).await {
            Ok(object) => Ok(Once::Created(object)),
            Err(cause) if cause.is_already_exists() => Ok(Once::Exists),
            Err(cause) => Err(failed(cause)),
        }
    }

    /// Makes `status` the status of `object`, which is as it is in the cache. No request if the cached status says the
    /// same ([`same_status`]). An object that was replaced in the meantime is a conflict; one that is gone is not found.
    ///
    /// API servers ignore the UID in a patch of the status of a custom kind. So the patch is for one resource version; where
    /// there is a newer one, it is sent once more for that, if the object is the same.
    ///
    /// # Errors
    /// What the API server says.
    pub async fn apply_status<K: Reporting>(&self, object: &K, status: &K::Status) -> Result<Applied<K>, RequestError> {
        let key = ObjectKey::of(object);
        let failed = |cause: Cause| RequestError::new("apply the status of", named::<K>(&key), cause);
        let mut version = object.meta().resource_version.clone();
        let mut tries = TRIES;
        loop {
            tries -= 1;
            let error = match self.write_status(object, version.as_deref(), status).await {
                Err(error) if error.cause().is_conflict() && tries > 0 => error,
                outcome => return outcome,
            };
            // Listed: whoever watches a kind may do that.
            let named = ListParams::default().fields(&format!("metadata.name={}", key.name));
            let found: ObjectList<PartialObjectMeta> =
                send(&self.writer, at::<K>(&key).list_metadata(&named)).await.map_err(failed)?;
            let newest = found.items.into_iter().next().map(|found| found.metadata).unwrap_or_default();
            if newest.uid != object.meta().uid {
                return Err(error);
            }
            version = newest.resource_version;
        }
    }

    /// The same for a status that was decided on what the status said before: a newer version of the object is a
    /// conflict, or this would forget what is recorded there.
    ///
    /// # Errors
    /// What the API server says.
    pub async fn apply_status_to_version<K: Reporting>(
        &self,
        object: &K,
        status: &K::Status,
    ) -> Result<Applied<K>, RequestError> {
        self.write_status(object, object.meta().resource_version.as_deref(), status).await
    }

    async fn write_status<K: Reporting>(
        &self,
        object: &K,
        version: Option<&str>,
        status: &K::Status,
    ) -> Result<Applied<K>, RequestError> {
        if object.status() == Some(status) {
            return Ok(Applied::Unchanged);
        }
        let key = ObjectKey::of(object);
        let failed = |cause: Cause| RequestError::new("apply the status of", named::<K>(&key), cause);
        let unreadable = |error| failed(Cause::Answer(error));
        let mut wanted = serde_json::to_value(status).map_err(unreadable)?;
        let live = serde_json::to_value(object.status()).map_err(unreadable)?;
        if same_status(&wanted, &live) {
            return Ok(Applied::Unchanged);
        }
        drop_nulls(&mut wanted);
        let mut metadata = json!({"name": key.name, "uid": object.meta().uid});
        if let Some(namespace) = &key.namespace {
            metadata["namespace"] = namespace.as_str().into();
        }
        if let Some(version) = version {
            metadata["resourceVersion"] = version.into();
        }
        let body =
            json!({"apiVersion": K::api_version(&()), "kind": K::kind(&()), "metadata": metadata, "status": wanted});
        let request = at::<K>(&key).patch_subresource("status", &key.name, &self.params(), &Patch::Apply(&body));
        send_object(&self.writer, request).await.map(Applied::Changed).map_err(failed)
    }

    fn params(&self) -> PatchParams {
        PatchParams::apply(&self.manager).force().validation_strict()
    }

    fn annotation(&self) -> String {
        format!("{DIGEST_PREFIX}{}", self.manager)
    }

    /// What is sent: the object without what the API server fills in, with the digest of itself.
    fn prepared<K: Appliable>(&self, desired: &K) -> Result<Value, Cause> {
        let mut wanted = typed::<K>(desired)?;
        let digest = digest(&wanted);
        let metadata = wanted["metadata"].as_object_mut().expect("typed() put it there");
        let annotations = metadata.entry("annotations").or_insert_with(|| json!({}));
        annotations[self.annotation()] = digest.into();
        Ok(wanted)
    }

    /// Whose `live` is, and what it lacks. Without an owner, ours is what bears our digest or is managed by us by its label,
    /// and every object of a kind that is ours alone.
    fn judge<K: Appliable>(&self, wanted: &Value, live: &Value) -> Result<Verdict, Cause> {
        let metadata = &live["metadata"];
        if !metadata["deletionTimestamp"].is_null() {
            return Ok(Verdict::Terminating);
        }
        let annotation = self.annotation();
        let expected = match controller(wanted) {
            Some(expected) => (controller_uid(live) != controller_uid(wanted)).then_some(expected),
            None if K::group(&()) == OWN_GROUP => None,
            None => (!self.is_marked(live)).then(|| self.manager.clone()),
        };
        if let Some(expected) = expected {
            return Err(Cause::Foreign { owner: controller(live).unwrap_or_else(|| NOBODY.into()), expected });
        }
        let uid = metadata["uid"].as_str().unwrap_or_default().to_owned();
        if metadata["annotations"][&annotation] != wanted["metadata"]["annotations"][&annotation] {
            return Ok(Verdict::Differs { drifted: Vec::new() });
        }
        let drifted = drift(wanted, live);
        if drifted.is_empty() || self.is_settled(&uid, &fingerprint(wanted, &drifted)) {
            return Ok(Verdict::Unchanged);
        }
        Ok(Verdict::Differs { drifted })
    }

    fn is_marked(&self, live: &Value) -> bool {
        let metadata = &live["metadata"];
        !metadata["annotations"][self.annotation()].is_null() || metadata["labels"][MANAGED_BY] == TRIBUTARY
    }

    fn is_settled(&self, uid: &str, fingerprint: &str) -> bool {
        let settled = self.settled.lock();
        settled.get(uid).is_some_and(|known| known == fingerprint)
    }

    fn settle(&self, wanted: &Value, answer: &Value) {
        let Some(uid) = answer["metadata"]["uid"].as_str() else { return };
        let changed = drift(wanted, answer);
        let mut settled = self.settled.lock();
        if changed.is_empty() {
            settled.remove(uid);
            return;
        }
        tracing::debug!(uid, ?changed, "the API server changed what was applied; that is taken as it is");
        if settled.len() >= SETTLED_LIMIT {
            settled.clear();
        }
        settled.insert(uid.to_owned(), fingerprint(wanted, &changed));
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Verdict {
    Unchanged,
    Terminating,
    /// `drifted` is empty if we want something else than before.
    Differs {
        drifted: Vec<Difference>,
    },
}

/// A reference that makes `owner` the controller of what carries it; `None` if `owner` never was in the cluster. It does
/// not block the owner's deletion: that would need rights on the owner's finalizers.
pub fn controller_reference(owner: &impl Resource<DynamicType = ()>) -> Option<OwnerReference> {
    owner.controller_owner_ref(&())
}

/// "Job default/flux-sample".
pub(super) fn named<K: Resource<DynamicType = ()>>(key: &ObjectKey) -> String {
    format!("{} {key}", K::kind(&()))
}

/// A request about an object, or about those of its kind beside it.
pub(super) fn at<K: Resource<DynamicType = ()>>(key: &ObjectKey) -> Request {
    Request::new(K::url_path(&(), key.namespace.as_deref()))
}

pub(super) async fn send<T: DeserializeOwned>(
    client: &Client,
    request: Result<http::Request<Vec<u8>>, request::Error>,
) -> Result<T, Cause> {
    Ok(client.request(request?).await?)
}

/// The same for an answer that is one object: it comes without its managed fields, which nothing here reads.
async fn send_object<T: DeserializeOwned>(
    client: &Client,
    request: Result<http::Request<Vec<u8>>, request::Error>,
) -> Result<T, Cause> {
    let text = client.request_text(request?).await?;
    without_managed_fields(&text).and_then(|text| serde_json::from_str(&text)).map_err(Cause::Answer)
}

/// An object as it is sent: with its type, and without status and what the API server fills in.
fn typed<K: Appliable>(desired: &K) -> Result<Value, Cause> {
    let mut value = serde_json::to_value(desired).map_err(Cause::Answer)?;
    drop_nulls(&mut value);
    value["apiVersion"] = K::api_version(&()).into();
    value["kind"] = K::kind(&()).into();
    let fields = value.as_object_mut().expect("indexing by name made it an object");
    fields.remove("status");
    let metadata = fields.entry("metadata").or_insert_with(|| json!({}));
    if let Some(metadata) = metadata.as_object_mut() {
        for filled_in in ["creationTimestamp", "generation", "managedFields", "resourceVersion", "uid", "selfLink"] {
            metadata.remove(filled_in);
        }
    }
    Ok(value)
}

/// Takes away fields that are `null`, at any depth: in what is applied or created they say nothing.
pub fn drop_nulls(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            fields.retain(|_, value| !value.is_null());
            fields.values_mut().for_each(drop_nulls);
        }
        Value::Array(elements) => elements.iter_mut().for_each(drop_nulls),
        _ => {}
    }
}

fn controller_of(object: &Value) -> Option<&Value> {
    let owners = object["metadata"]["ownerReferences"].as_array()?;
    owners.iter().find(|owner| owner["controller"] == true)
}

fn controller_uid(object: &Value) -> Option<&str> {
    controller_of(object).and_then(|owner| owner["uid"].as_str())
}

fn controller(object: &Value) -> Option<String> {
    let owner = controller_of(object)?;
    let text = |field: &str| owner[field].as_str().unwrap_or_default();
    Some(format!("{} {} ({})", text("kind"), text("name"), text("uid")))
}

/// What we wanted and what is there instead, as one digest.
fn fingerprint(wanted: &Value, differences: &[Difference]) -> String {
    let seen: Vec<_> = differences.iter().map(|difference| json!([difference.path, difference.seen])).collect();
    digest(&json!([wanted["metadata"]["annotations"], seen]))
}

#[cfg(test)]
mod tests;
