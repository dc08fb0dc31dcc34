//! Lists, discovery, and what is shown of an object.

use serde_json::{Value, json};

use super::request::{Outcome, RequestInfo, bad_request};
use super::select::Selector;
use super::store::Store;
use super::write::Granted;

impl Store {
    pub(super) fn get(&self, info: &RequestInfo, version: u64) -> Outcome<Granted> {
        let object = match version < self.version {
            true => self.at(info, version)?.remove(&info.key()).ok_or_else(|| info.not_found())?,
            false => self.found(info)?.object,
        };
        Ok(Granted { code: 200, body: shown(info, &object) })
    }

    pub(super) fn list(&self, info: &RequestInfo, version: u64) -> Outcome<Granted> {
        let selector = Selector::of(info)?;
        // "continue" says at which version the first page was made, and which object was its last.
        let (version, after) = match info.parameter("continue").map(|token| token.split(' ').collect::<Vec<_>>()) {
            None => (version, None),
            Some(token) => match *token {
                [version, namespace, name] => (version.parse().unwrap_or_default(), Some((namespace, name))),
                _ => return Err(bad_request("continue key is not valid")),
            },
        };
        let found = self.at(info, version)?;
        let mut items = found.into_iter().filter(|(key, object)| {
            after.is_none_or(|after| (key.namespace.as_str(), key.name.as_str()) > after) && selector.selects(object)
        });
        let limit = info.parameter("limit").and_then(|limit| limit.parse().ok()).unwrap_or(usize::MAX);
        let page: Vec<_> = items.by_ref().take(limit).collect();
        let mut metadata = json!({"resourceVersion": version.to_string()});
        if let (Some(_), Some((last, _))) = (items.next(), page.last()) {
            metadata["continue"] = format!("{version} {} {}", last.namespace, last.name).into();
        }
        let items: Vec<Value> = page.iter().map(|(_, object)| shown(info, object)).collect();
        let (api_version, kind) = match info.metadata_only {
            true => ("meta.k8s.io/v1".into(), "PartialObjectMetadata".into()),
            false => self.kind(info),
        };
        let body =
            json!({"apiVersion": api_version, "kind": format!("{kind}List"), "metadata": metadata, "items": items});
        Ok(Granted { code: 200, body })
    }

    /// `apiVersion` and kind of what a request asks for.
    pub(super) fn kind(&self, info: &RequestInfo) -> (String, String) {
        let known = self.kinds.get(&(info.group.clone(), info.resource.clone()));
        (info.api_version(), known.map(|known| known.kind.clone()).unwrap_or_default())
    }

    pub(super) fn discovered(&self, info: &RequestInfo) -> Outcome<Granted> {
        let of_group = self.kinds.iter().filter(|(_, kind)| kind.api_version == info.api_version());
        let resources: Vec<Value> = of_group
            .map(|((_, name), kind)| {
                json!({"name": name, "singularName": "", "namespaced": kind.namespaced, "kind": kind.kind, "verbs": []})
            })
            .collect();
        if resources.is_empty() {
            return Err(info.refused(404, "NotFound", "the server could not find the requested resource"));
        }
        let body = json!({"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": info.api_version(),
            "resources": resources});
        Ok(Granted { code: 200, body })
    }
}

/// An object as it was asked for: whole, or its metadata.
pub(super) fn shown(info: &RequestInfo, object: &Value) -> Value {
    match info.metadata_only {
        true => {
            json!({"apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadata", "metadata": object["metadata"]})
        }
        false => object.clone(),
    }
}
