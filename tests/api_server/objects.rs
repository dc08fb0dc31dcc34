//! What a simulation does itself, as kubectl, a kubelet or a controller of Kubernetes does it. No fault is in the way.

use std::collections::BTreeMap;

use kube::Resource;
use kube::api::DeleteParams;
use kube::core::Status;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::ApiServer;
use super::request::RequestInfo;
use super::store::Write;
use tributary_cluster::apply::Appliable;

impl ApiServer {
    /// Says in discovery that a kind is served, as a CustomResourceDefinition does.
    pub fn serve<K: Resource<DynamicType = ()>>(&self) {
        let namespaced = K::url_path(&(), Some("n")).contains("/namespaces/");
        self.shared.store.lock().learn(&RequestInfo::own::<K>("", "", ""), &K::kind(&()), namespaced);
    }

    /// An object. `namespace` is empty for kinds without namespaces.
    pub fn get<K: Appliable>(&self, namespace: &str, name: &str) -> Option<K> {
        self.ask(&RequestInfo::own::<K>("get", namespace, name), Value::Null).ok()
    }

    /// An object as it is stored, whether it fits its type or not.
    pub fn stored<K: Appliable>(&self, namespace: &str, name: &str) -> Option<Value> {
        self.ask(&RequestInfo::own::<K>("get", namespace, name), Value::Null).ok()
    }

    /// All objects of a kind, by namespace and name, but for those that do not fit their type.
    pub fn list<K: Appliable>(&self) -> Vec<K> {
        let list = self.execute(&RequestInfo::own::<K>("list", "", ""), Value::Null, None);
        let items = list.ok().and_then(|mut list| list.body["items"].as_array_mut().map(std::mem::take));
        items.into_iter().flatten().filter_map(|item| serde_json::from_value(item).ok()).collect()
    }

    /// Creates an object or replaces it, its status included.
    ///
    /// # Errors
    /// What the API server says.
    pub fn put<K: Appliable>(&self, object: &K) -> Result<K, Box<Status>> {
        let (namespace, name) = (object.meta().namespace.clone(), object.meta().name.clone());
        let info = |verb| {
            let (namespace, name) = (namespace.as_deref().unwrap_or_default(), name.as_deref().unwrap_or_default());
            RequestInfo::own::<K>(verb, namespace, name)
        };
        let mut value = serde_json::to_value(object).expect("an object is JSON");
        (value["kind"], value["apiVersion"]) = (K::kind(&()).into(), K::api_version(&()).into());
        let known = self.ask::<Value>(&info("get"), Value::Null).ok();
        let metadata = known.as_ref().map_or(&Value::Null, |known| &known["metadata"]);
        for name in ["uid", "resourceVersion"] {
            value["metadata"][name] = metadata[name].clone();
        }
        let status = value["status"].clone();
        let mut stored: Value = self.ask(&info(if known.is_some() { "update" } else { "create" }), value)?;
        if !status.is_null() {
            let name = stored["metadata"]["name"].as_str().unwrap_or_default().to_owned();
            stored["status"] = status;
            stored = self.ask(&RequestInfo { name, subresource: "status".into(), ..info("update") }, stored)?;
        }
        Ok(serde_json::from_value(stored).expect("it is of this kind"))
    }

    /// Merges `patch` into an object: all but its status.
    ///
    /// # Errors
    /// What the API server says.
    pub fn patch<K: Appliable>(&self, namespace: &str, name: &str, patch: Value) -> Result<K, Box<Status>> {
        self.merge::<K, K>(namespace, name, "", patch)
    }

    /// Merges what need not fit the type into an object, as somebody else's definition lets it.
    ///
    /// # Errors
    /// What the API server says.
    pub fn spoil<K: Appliable>(&self, namespace: &str, name: &str, patch: Value) -> Result<(), Box<Status>> {
        self.merge::<K, Value>(namespace, name, "", patch).map(drop)
    }

    /// Merges `status` into the status of an object.
    ///
    /// # Errors
    /// What the API server says.
    pub fn patch_status<K: Appliable>(&self, namespace: &str, name: &str, status: Value) -> Result<K, Box<Status>> {
        self.merge::<K, K>(namespace, name, "status", json!({"status": status}))
    }

    fn merge<K: Appliable, T: DeserializeOwned>(
        &self,
        namespace: &str,
        name: &str,
        sub: &str,
        patch: Value,
    ) -> Result<T, Box<Status>> {
        let patch_type = "application/merge-patch+json".into();
        let info = RequestInfo::own::<K>("patch", namespace, name);
        self.ask(&RequestInfo { patch_type, subresource: sub.to_owned(), ..info }, patch)
    }

    /// Deletes an object.
    ///
    /// # Errors
    /// What the API server says.
    pub fn delete<K: Appliable>(&self, namespace: &str, name: &str, params: &DeleteParams) -> Result<(), Box<Status>> {
        let options = serde_json::to_value(params).expect("options are JSON");
        self.ask::<Value>(&RequestInfo::own::<K>("delete", namespace, name), options).map(drop)
    }

    /// Does what the garbage collector does by itself: deletes what lost its owners, and ends deletions that wait for
    /// dependents. Returns how many objects are gone.
    pub fn collect_garbage(&self) -> usize {
        let mut store = self.shared.store.lock();
        let before = store.version;
        let gone = store.collect_garbage();
        self.tell_since(&store, before);
        gone
    }

    /// Looks at every object before it is stored or deleted, in the place of admission and defaults: it can refuse that, and
    /// change what is stored.
    /// It must not ask this server for anything.
    pub fn on_write(
        &self,
        admission: impl FnMut(&RequestInfo, &mut Value) -> Result<(), Box<Status>> + Send + 'static,
    ) {
        self.shared.store.lock().admission = Box::new(admission);
    }

    /// Forgets what happened: a watch that has not seen it must list again. No list lags behind any more.
    pub fn compact(&self) {
        self.shared.faults.lock().lag.clear();
        let mut store = self.shared.store.lock();
        store.compacted = store.version;
        store.history.clear();
        drop(store);
        self.tell();
    }

    /// The newest resource version.
    pub fn version(&self) -> u64 {
        self.shared.store.lock().version
    }

    /// When an object of a kind was changed last: how often the server was started again by then, and at which version.
    pub fn changed<K: Resource<DynamicType = ()>>(&self) -> (u64, u64) {
        let restarts = self.restarts();
        let changed = self.shared.store.lock().changed.get(&*K::plural(&())).copied();
        (restarts, changed.unwrap_or_default())
    }

    /// All writes so far, also those that were refused or changed nothing.
    pub fn writes(&self) -> Vec<Write> {
        self.shared.store.lock().writes.clone()
    }

    /// How often each verb was asked of each resource, watches excepted.
    pub fn requests(&self) -> BTreeMap<(&'static str, String), u64> {
        self.shared.store.lock().requests.clone()
    }

    fn ask<T: DeserializeOwned>(&self, info: &RequestInfo, body: Value) -> Result<T, Box<Status>> {
        let granted = self.execute(info, body, None)?;
        Ok(serde_json::from_value(granted.body).expect("it is of this kind"))
    }
}
