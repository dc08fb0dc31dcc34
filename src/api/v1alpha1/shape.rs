//! What the API server does to a spec when it reads one: fields that its version has not are dropped, defaults are
//! written.
//!
//! Conversion does the same to its result. So nothing that the API server does afterwards looks like an edit by
//! somebody.
//!
//! Source: <https://kubernetes.io/docs/tasks/extend-kubernetes/custom-resources/custom-resource-definitions/#defaulting>

use serde_json::{Map, Value};

use crate::schema::write_defaults;

/// `value` as the API server would show it, given its structural schema.
pub(super) fn settle(value: &mut Value, schema: &Value) {
    prune(value, schema);
    fill(value, schema);
}

fn prune(value: &mut Value, schema: &Value) {
    let open = schema["x-kubernetes-preserve-unknown-fields"] == true;
    match value {
        Value::Object(map) => {
            let known = schema["properties"].as_object();
            let others = schema.get("additionalProperties").filter(|others| others.is_object());
            if !open && others.is_none() {
                map.retain(|key, _| known.is_some_and(|known| known.contains_key(key)));
            }
            for (key, below) in map.iter_mut() {
                if let Some(schema) = known.and_then(|known| known.get(key)).or(others) {
                    prune(below, schema);
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(|item| prune(item, &schema["items"])),
        _ => {}
    }
}

fn fill(value: &mut Value, schema: &Value) {
    write_defaults(value, schema, |_| false);
}

/// A section in which nobody wrote anything.
pub(super) fn unwritten(schema: &Value) -> Value {
    let mut section = Value::Object(Map::new());
    fill(&mut section, schema);
    section
}
