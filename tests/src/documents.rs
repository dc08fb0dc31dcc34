//! What `agentctl` prints for programs, held against the schemas in the repository.

use std::path::Path;

use anyhow::{Context, ensure};
use serde_json::{Value, json};

/// Holds a document against the schema of its kind, as it is in the repository. What the schema does not know is wrong,
/// too: a reader of the schema would not know it either.
///
/// # Errors
/// What does not fit, with its place in the document.
pub fn fits(document: &Value) -> anyhow::Result<()> {
    let kind = document["kind"].as_str().context("a document says its kind")?;
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../src/guide/schemas/{kind}.json"));
    let text = std::fs::read_to_string(&file).with_context(|| file.display().to_string())?;
    let mut schema: Value = serde_json::from_str(&text)?;
    close(&mut schema);
    let validator = jsonschema::validator_for(&schema)?;
    let problems: Vec<_> =
        validator.iter_errors(document).map(|error| format!("{}: {error}", error.instance_path())).collect();
    ensure!(problems.is_empty(), "{kind}: {problems:#?}\n{document:#}");
    Ok(())
}

/// Lets objects have no other fields than those that are named.
fn close(schema: &mut Value) {
    match schema {
        Value::Object(fields) => {
            fields.values_mut().for_each(close);
            if fields.get("properties").is_some_and(Value::is_object) && !fields.contains_key("additionalProperties") {
                fields.insert("additionalProperties".to_owned(), json!(false));
            }
        }
        Value::Array(items) => items.iter_mut().for_each(close),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_schema_is_closed_at_every_depth() {
        let mut schema = json!({"properties": {"a": {"properties": {"b": {"type": "string"}}}}});
        close(&mut schema);
        let validator = jsonschema::validator_for(&schema).unwrap();
        assert!(validator.is_valid(&json!({"a": {"b": ""}})));
        assert!(!validator.is_valid(&json!({"a": {"c": ""}})));
        assert!(!validator.is_valid(&json!({"b": ""})));
    }
}
