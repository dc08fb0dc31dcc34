//! An object of a watch that may be malformed: one bad object must not stop the watch of all others.

use std::borrow::Cow;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;
use serde::de::{DeserializeOwned, Deserializer, Error};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// What a watch delivers: the object, or what could be read of it.
///
/// `metadata.managedFields` is dropped before the object is built: it is often the larger half of an object, and nothing
/// here reads it.
#[derive(Clone, Debug)]
pub struct Guarded<K>(pub(super) Result<K, Malformed>);

/// An object that does not fit its type.
#[derive(Clone, Debug)]
pub(super) struct Malformed {
    /// Name, namespace, UID and resource version: what the watch needs.
    pub(super) metadata: ObjectMeta,
    /// Where it does not fit.
    pub(super) error: String,
}

impl<'de, K: DeserializeOwned> Deserialize<'de> for Guarded<K> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut value = Value::deserialize(deserializer)?;
        let metadata = value.get_mut("metadata").and_then(Value::as_object_mut);
        let metadata = metadata.ok_or_else(|| D::Error::missing_field("metadata"))?;
        metadata.remove("managedFields");
        let text = |name: &str| metadata.get(name).and_then(Value::as_str).map(String::from);
        let identity = ObjectMeta {
            name: text("name"),
            namespace: text("namespace"),
            uid: text("uid"),
            resource_version: text("resourceVersion"),
            ..ObjectMeta::default()
        };
        Ok(Self(
            serde_json::from_value(value).map_err(|error| Malformed { metadata: identity, error: error.to_string() }),
        ))
    }
}

// Never sent: the watcher's types ask for it.
impl<K: Serialize> Serialize for Guarded<K> {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match &self.0 {
            Ok(object) => object.serialize(serializer),
            Err(malformed) => malformed.metadata.serialize(serializer),
        }
    }
}

impl<K: Resource> Resource for Guarded<K> {
    type DynamicType = K::DynamicType;
    type Scope = K::Scope;

    fn kind(dynamic: &Self::DynamicType) -> Cow<'_, str> {
        K::kind(dynamic)
    }

    fn group(dynamic: &Self::DynamicType) -> Cow<'_, str> {
        K::group(dynamic)
    }

    fn version(dynamic: &Self::DynamicType) -> Cow<'_, str> {
        K::version(dynamic)
    }

    fn plural(dynamic: &Self::DynamicType) -> Cow<'_, str> {
        K::plural(dynamic)
    }

    fn meta(&self) -> &ObjectMeta {
        self.0.as_ref().map_or_else(|malformed| &malformed.metadata, K::meta)
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        match &mut self.0 {
            Ok(object) => object.meta_mut(),
            Err(malformed) => &mut malformed.metadata,
        }
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::Service;
    use serde_json::json;

    use super::*;

    #[test]
    fn a_good_object_comes_through_without_its_managed_fields() {
        let value =
            json!({"metadata": {"name": "s", "managedFields": [{"manager": "m"}]}, "spec": {"type": "NodePort"}});
        let service = serde_json::from_value::<Guarded<Service>>(value).unwrap().0.unwrap();
        assert_eq!(service.metadata.managed_fields, None);
        assert_eq!(service.spec.unwrap().type_.as_deref(), Some("NodePort"));
    }

    #[test]
    fn a_bad_object_keeps_its_name() {
        let value = json!({"metadata": {"name": "s", "namespace": "n", "resourceVersion": "7"}, "spec": {"ports": 1}});
        let guarded = serde_json::from_value::<Guarded<Service>>(value).unwrap();
        assert_eq!(guarded.meta().name.as_deref(), Some("s"));
        assert_eq!(guarded.meta().resource_version.as_deref(), Some("7"));
        assert!(guarded.0.unwrap_err().error.contains("invalid type"));
    }
}
