//! Pieces of structural schema that a derive cannot say, shared by the kinds.
//!
//! Source: <https://kubernetes.io/docs/tasks/extend-kubernetes/custom-resources/custom-resource-definitions/#specifying-a-structural-schema>

use std::borrow::Cow;
use std::marker::PhantomData;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer};
use serde_json::Value;

/// What apimachinery accepts as the text of a quantity (`resource.Quantity`, apimachinery/pkg/api/resource).
const QUANTITY: &str = r"^(\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))(([KMGTPE]i)|[numkMGTPE]|([eE](\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))))?$";

/// A Kubernetes quantity, written as an integer or as text (`4`, `"500m"`, `"2Gi"`).
pub(crate) fn quantity(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "x-kubernetes-int-or-string": true, "pattern": QUANTITY })
}

/// The same that is not below zero.
pub(crate) fn natural_quantity(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "x-kubernetes-int-or-string": true, "pattern": QUANTITY.replacen(r"(\+|-)?", r"\+?", 1), "minimum": 0 })
}

/// Drops the descriptions below `schema` and keeps its own: for fields that embed a type of Kubernetes' own API,
/// whose prose is in the Kubernetes reference and would make the definition several times as large.
pub(crate) fn without_descriptions(schema: &mut Value) {
    if let Value::Object(root) = schema {
        for (key, value) in root.iter_mut() {
            if key != "description" {
                strip(value, key == "properties");
            }
        }
    }
}

/// The schema of `T`, a type of Kubernetes' own API, without its prose: `#[schemars(with = "Embedded<T>")]`.
pub(crate) struct Embedded<T>(PhantomData<T>);

impl<T: JsonSchema> JsonSchema for Embedded<T> {
    fn schema_name() -> Cow<'static, str> {
        format!("Embedded{}", T::schema_name()).into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let mut value = T::json_schema(generator).to_value();
        strip(&mut value, false);
        Schema::try_from(value).expect("removing descriptions leaves a schema a schema")
    }
}

/// `names` tells that the keys of `value` are property names: a property may be called `description`.
fn strip(value: &mut Value, names: bool) {
    match value {
        Value::Object(map) => {
            if !names {
                map.remove("description");
            }
            for (key, value) in map.iter_mut() {
                strip(value, !names && key == "properties");
            }
        }
        Value::Array(items) => items.iter_mut().for_each(|item| strip(item, false)),
        _ => {}
    }
}

/// Paths below `path` of what `value` has and its structural schema does not: an API server drops it.
pub fn unknown_fields(value: &Value, schema: &Value, path: &str) -> Vec<String> {
    let mut unknown = Vec::new();
    collect_unknown(value, schema, path, &mut unknown);
    unknown
}

fn collect_unknown(value: &Value, schema: &Value, path: &str, unknown: &mut Vec<String>) {
    if schema["x-kubernetes-preserve-unknown-fields"] == true {
        return;
    }
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                let path = format!("{path}.{name}");
                if let Some(known) = schema["properties"].get(name) {
                    collect_unknown(value, known, &path, unknown);
                } else if schema["additionalProperties"].is_object() {
                    collect_unknown(value, &schema["additionalProperties"], &path, unknown);
                } else if schema["properties"].is_object() {
                    unknown.push(path);
                }
            }
        }
        Value::Array(items) => {
            for (index, item) in items.iter().enumerate() {
                collect_unknown(item, &schema["items"], &format!("{path}[{index}]"), unknown);
            }
        }
        _ => {}
    }
}

/// Writes the defaults of a structural schema where nothing is written, or a value that counts as `nothing`.
pub fn write_defaults(value: &mut Value, schema: &Value, nothing: fn(&Value) -> bool) {
    match value {
        Value::Object(fields) => {
            for (name, known) in schema["properties"].as_object().into_iter().flatten() {
                let missing = fields.get(name).is_none_or(nothing);
                if let Some(default) = known.get("default").filter(|default| missing && !default.is_null()) {
                    fields.insert(name.clone(), default.clone());
                }
            }
            for (name, value) in fields {
                let known = schema["properties"].get(name).unwrap_or(&schema["additionalProperties"]);
                write_defaults(value, known, nothing);
            }
        }
        Value::Array(items) => items.iter_mut().for_each(|item| write_defaults(item, &schema["items"], nothing)),
        _ => {}
    }
}

/// Whether `value` has the types of a structural schema and the fields that it requires. More is not looked at. Fields that
/// the schema does not have may be there: an API server drops them. `null` fits nowhere: in an object that an API server
/// has read there is none, since no field is nullable.
pub fn fits(value: &Value, schema: &Value) -> bool {
    match schema["type"].as_str() {
        Some("object") => value.as_object().is_some_and(|fields| {
            let mut required = schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str);
            required.all(|name| fields.contains_key(name))
                && fields.iter().all(|(name, value)| {
                    let known = schema["properties"].get(name).unwrap_or(&schema["additionalProperties"]);
                    known.is_null() || fits(value, known)
                })
        }),
        Some("array") => value.as_array().is_some_and(|items| items.iter().all(|item| fits(item, &schema["items"]))),
        Some("boolean") => value.is_boolean(),
        Some("string") => value.is_string(),
        Some("integer") if schema["format"] == "int32" => value.as_i64().is_some_and(|it| i32::try_from(it).is_ok()),
        Some("integer") => value.is_i64(),
        _ => schema["x-kubernetes-int-or-string"] == true && (value.is_i64() || value.is_string()),
    }
}

/// For `skip_serializing_if`: what nobody wrote is not written either.
pub fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// For `deserialize_with`: reads `""` and `0` as absent.
///
/// Upstream's Go types cannot tell a zero value from an absent one, so no meaning may hang on the difference.
/// Fields where a server-side default makes zero mean something (`connectTimeout`, `size`, `tasks`, …) do not use it.
pub(crate) fn absent_if_zero<'de, D, T>(deserializer: D) -> Result<Option<T>, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de> + Default + PartialEq,
{
    Ok(Option::<T>::deserialize(deserializer)?.filter(|value| !is_default(value)))
}
