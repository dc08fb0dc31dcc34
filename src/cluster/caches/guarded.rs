//! An object of a watch that may be malformed: one bad object must not stop the watch of all others.

use std::borrow::Cow;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, ObjectMeta};
use kube::Resource;
use serde::de::{DeserializeOwned, Deserializer, Error};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;

use super::store::Unreadable;
use crate::key::ObjectKey;

/// What a watch delivers: the object, or what could be read of it.
///
/// `metadata.managedFields` is dropped before the object is built: it is often the larger half of an object, and nothing
/// here reads it. All else is built from its text, so that fields that a view does not have cost nothing. It must be JSON that is
/// not in memory yet: API servers send the type of a watch event before its object.
#[derive(Clone, Debug)]
pub struct Guarded<K>(pub(super) Result<K, Malformed>);

/// An object that does not fit its type.
#[derive(Clone, Debug)]
pub(super) struct Malformed {
    /// Name, namespace, UID, version and generation: what the watch needs, and who answers.
    pub(super) metadata: ObjectMeta,
    /// Where it does not fit.
    pub(super) error: String,
    /// What its status says.
    pub(super) conditions: Vec<Condition>,
    /// All of it.
    pub(super) status: Value,
    /// `spec.managedBy`.
    pub(super) managed_by: Option<String>,
}

impl<K: Resource> Guarded<K> {
    /// The object.
    ///
    /// # Errors
    /// It does not fit its type.
    pub(crate) fn read(self) -> Result<K, Box<Unreadable>> {
        let key = ObjectKey::of(&self);
        self.0.map_err(|Malformed { metadata, error, conditions, status, managed_by }| {
            Box::new(Unreadable {
                key,
                uid: metadata.uid,
                version: metadata.resource_version,
                generation: metadata.generation,
                error,
                conditions,
                status,
                managed_by,
            })
        })
    }
}

/// Field and fault, without the text that is there: it may be a secret.
fn fault(error: &serde_path_to_error::Error<serde_json::Error>) -> String {
    let message = error.inner().to_string();
    let (kind, rest) = message.split_once(": ").unwrap_or(("", &message));
    let message = match (kind, rest.rsplit_once(", expected ")) {
        ("invalid type" | "invalid value", Some((found, expected))) => {
            let found = found.split(' ').next().unwrap_or_default();
            format!("a value of type {found} is there, and {expected} is expected")
        }
        _ => message,
    };
    match error.path().to_string().as_str() {
        "." => message,
        path => format!("{path}: {message}"),
    }
}

impl<'de, K: DeserializeOwned> Deserialize<'de> for Guarded<K> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let whole = Box::<RawValue>::deserialize(deserializer)?;
        let text = without_managed_fields(whole.get()).map_err(D::Error::custom)?;
        Ok(Self(match serde_json::from_str(&text) {
            Ok(object) => Ok(object),
            Err(_) => Err(Malformed::read::<K>(&text).map_err(D::Error::custom)?),
        }))
    }
}

impl Malformed {
    /// What is left of an object that does not fit.
    fn read<K: DeserializeOwned>(text: &str) -> serde_json::Result<Self> {
        let mut value: Value = serde_json::from_str(text)?;
        let metadata = &value["metadata"];
        let text = |name: &str| metadata[name].as_str().map(String::from);
        let metadata = ObjectMeta {
            name: text("name"),
            namespace: text("namespace"),
            uid: text("uid"),
            resource_version: text("resourceVersion"),
            generation: metadata["generation"].as_i64(),
            ..ObjectMeta::default()
        };
        let read: Result<K, _> = serde_path_to_error::deserialize(&value);
        Ok(Self {
            metadata,
            // What fits a tree fits its text, but for a field that is there twice.
            error: read.err().map_or_else(|| "a field is there twice".to_owned(), |error| fault(&error)),
            conditions: Vec::deserialize(&value["status"]["conditions"]).unwrap_or_default(),
            managed_by: value["spec"]["managedBy"].as_str().map(String::from),
            status: value["status"].take(),
        })
    }
}

/// Where the managed fields of an object are in its text.
#[derive(Deserialize)]
struct Outline<'a> {
    #[serde(borrow)]
    metadata: MetadataOutline<'a>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct MetadataOutline<'a> {
    #[serde(borrow)]
    managed_fields: Option<&'a RawValue>,
}

/// The text of an object, with nothing in the place of its managed fields.
pub(crate) fn without_managed_fields(text: &str) -> serde_json::Result<Cow<'_, str>> {
    let outline: Outline<'_> = serde_json::from_str(text)?;
    let Some(fields) = outline.metadata.managed_fields else { return Ok(text.into()) };
    let start = fields.get().as_ptr().addr() - text.as_ptr().addr();
    Ok(format!("{}null{}", &text[..start], &text[start + fields.get().len()..]).into())
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
    fn only_the_managed_fields_of_the_object_itself_are_dropped() {
        let said = r#"{"managedFields": [1]}, "managedFields": []"#;
        let value = json!({
            "metadata": {"name": "s", "annotations": {"managedFields": said}, "managedFields": [{"manager": "}]"}], "uid": "u"},
            "spec": {"selector": {"managedFields": "kept"}},
        });
        let service = serde_json::from_str::<Guarded<Service>>(&value.to_string()).unwrap().0.unwrap();
        assert_eq!(service.metadata.annotations.unwrap()["managedFields"], said);
        assert_eq!((service.metadata.managed_fields, service.metadata.uid.as_deref()), (None, Some("u")));
        assert_eq!(service.spec.unwrap().selector.unwrap()["managedFields"], "kept");
    }

    #[test]
    fn a_bad_object_keeps_its_name() {
        let value = json!({"metadata": {"name": "s", "namespace": "n", "resourceVersion": "7"}, "spec": {"ports": 1}});
        let guarded = serde_json::from_value::<Guarded<Service>>(value).unwrap();
        assert_eq!(guarded.meta().name.as_deref(), Some("s"));
        assert_eq!(guarded.meta().resource_version.as_deref(), Some("7"));
        let expected = "spec.ports: a value of type integer is there, and a sequence is expected";
        assert_eq!(guarded.0.unwrap_err().error, expected);
    }

    /// The danger: a password in the wrong place is told in a status, and in logs.
    #[test]
    fn what_is_there_is_not_told() {
        let value = json!({"metadata": {"name": "s"}, "spec": {"ports": ["hunter2, expected by nobody"]}});
        let error = serde_json::from_value::<Guarded<Service>>(value).unwrap().0.unwrap_err().error;
        assert_eq!(error, "spec.ports[0]: a value of type string is there, and ServicePort is expected");
    }
}
