//! Objects that cannot be read: a definition of another version took what this one does not understand. Each is left as it
//! is, with all that was made for it, and its status says why.

use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, ObjectMeta};
use kube::Client;
use kube::api::{Patch, PatchParams};
use kube::core::PartialObjectMetaExt;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;
use tributary_api::labels::{manager, reason};
use tributary_clock::SharedClock;

use super::apply::{at, named, send};
use super::caches::{Cache, Unreadable, Watched};
use super::conditions::{self, Statement};
use super::engine::{self, Controller, Observed, nothing};
use super::events::{Events, Notice};
use super::key::ObjectKey;
use super::worker::{Outcome, Queue};
use super::{Cause, RequestError};

impl Unreadable {
    /// What people are told.
    pub fn sentence(&self) -> String {
        format!(
            "this version of Tributary cannot read the object: {}. Correct the field, or upgrade Tributary; until then, what \
             was made for the object stays as it is",
            self.error
        )
    }
}

/// Says of the objects of one kind that cannot be read why.
pub struct UnreadableObjects<K> {
    cache: Cache<K>,
    condition: &'static str,
    writer: Client,
    events: Events,
    clock: SharedClock,
    queue: Queue<ObjectKey>,
}

impl<K: Watched> UnreadableObjects<K> {
    /// For the objects of a cache. `condition` is one that the controller of the kind states whatever it said before, so that it
    /// takes it back when it can read the object again.
    pub fn new(
        cache: Cache<K>,
        condition: &'static str,
        writer: Client,
        events: Events,
        clock: SharedClock,
    ) -> Arc<Self> {
        let queue = Queue::by_namespace(clock.clone());
        Arc::new(Self { cache, condition, writer, events, clock, queue })
    }

    /// Tells until `stop`: in the leader's scope.
    pub async fn run(self: Arc<Self>, stop: CancellationToken) {
        let mut changes = self.cache.unreadable_changes();
        let (cache, queue) = (self.cache.clone(), self.queue.clone());
        let marking = async {
            loop {
                cache.unreadable().into_iter().for_each(|object| queue.mark(object.key));
                // The cache holds the sender.
                let _ = changes.changed().await;
            }
        };
        tokio::select! {
            () = engine::run(self, stop) => {}
            () = marking => {}
        }
    }
}

impl<K: Watched> Controller for UnreadableObjects<K> {
    type Key = ObjectKey;
    type Line = ();
    type View = Unreadable;
    /// Its conditions, if they say something else.
    type Step = Option<Vec<Condition>>;
    type Error = RequestError;

    const NAME: &'static str = "unreadable object";

    fn queue(&self) -> &Queue<ObjectKey> {
        &self.queue
    }

    async fn observe(&self, key: &ObjectKey) -> Result<Observed<Unreadable>, RequestError> {
        Ok(self.cache.unreadable_of(key).map_or_else(nothing, Observed::Continue))
    }

    fn step(&self, _: &ObjectKey, object: &Unreadable) -> Option<Vec<Condition>> {
        let statement = Statement::fails(self.condition, reason::UNREADABLE, object.sentence());
        let now = self.clock.wall();
        let conditions = conditions::merged(&object.conditions, [statement], object.generation, now);
        (conditions != object.conditions).then_some(conditions)
    }

    /// A merge of what is there: an apply is refused where the object does not fit its definition.
    async fn apply(
        &self,
        key: &ObjectKey,
        object: Unreadable,
        conditions: Option<Vec<Condition>>,
    ) -> Result<Outcome, RequestError> {
        let Some(conditions) = conditions else { return Ok(Outcome::Done) };
        let failed = |cause: Cause| RequestError::new("write the status of", named::<K>(key), cause);
        let body = json!({"metadata": {"uid": object.uid, "resourceVersion": object.version},
            "status": {"conditions": conditions}});
        let params = PatchParams { field_manager: Some(manager::UNREADABLE.into()), ..PatchParams::default() };
        let request = at::<K>(key).patch_subresource("status", &key.name, &params, &Patch::Merge(&body));
        send::<Value>(&self.writer, request).await.map_err(failed)?;
        let about = ObjectMeta {
            name: Some(key.name.clone()),
            namespace: key.namespace.clone(),
            uid: object.uid.clone(),
            resource_version: object.version.clone(),
            ..ObjectMeta::default()
        };
        let notice = Notice::warning("Read", reason::UNREADABLE, object.sentence());
        self.events.publish(&about.into_response_partial::<K>(), notice).await;
        Ok(Outcome::Done)
    }
}
