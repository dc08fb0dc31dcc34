//! The reference of the kinds: every field of their definitions with its type and what it says of itself.

use std::fmt::Write as _;

use serde_json::Value;

use crate::generated::current;

#[test]
fn the_reference_of_kinds_is_current() {
    let mut page = String::from(
        "<!-- Generated from the definitions; see tests/suite/kinds.rs. -->\n# Kinds and their fields\n\n\
         What `kubectl explain` says, on one page. `[]` is an element of a list, `{}` a value of a map. [Fields](fields.md)\n\
         says what each field of a MiniCluster becomes.\n",
    );
    for definition in tributary::api::crds() {
        for version in &definition.spec.versions {
            let names = &definition.spec.names;
            let (group, short) = (&definition.spec.group, names.short_names.clone().unwrap_or_default());
            // A kind is called by its name alone in the version that is stored.
            let kind = if version.storage { names.kind.clone() } else { format!("{} {}", names.kind, version.name) };
            let mut head = format!("`{group}/{}`", version.name);
            if !short.is_empty() {
                write!(head, ", short `{}`", short.join("`, `")).unwrap();
            }
            let schema = serde_json::to_value(&version.schema).unwrap();
            let root = &schema["openAPIV3Schema"];
            write!(page, "\n## {kind}\n\n{}\n", wrapped(&format!("{head}. {}", sentence(root)))).unwrap();
            for part in ["spec", "status"] {
                let schema = &root["properties"][part];
                // The status is the same in every version.
                if !schema.is_object() || (part == "status" && !version.storage) {
                    continue;
                }
                write!(page, "\n### {part} of {kind}\n\n| field | type | meaning |\n|---|---|---|\n").unwrap();
                fields(&mut page, schema, "");
            }
        }
    }
    current("src/guide/kinds.md", &page);
}

fn fields(page: &mut String, schema: &Value, path: &str) {
    for (name, field) in schema["properties"].as_object().into_iter().flatten() {
        let at = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
        writeln!(page, "| `{at}` | {} | {} |", kind(field), sentence(field)).unwrap();
        within(page, field, &at);
    }
}

/// What is inside of a field.
fn within(page: &mut String, field: &Value, at: &str) {
    fields(page, field, at);
    if field["items"].is_object() {
        within(page, &field["items"], &format!("{at}[]"));
    }
    if field["additionalProperties"].is_object() {
        within(page, &field["additionalProperties"], &format!("{at}{{}}"));
    }
}

fn kind(field: &Value) -> String {
    if field["x-kubernetes-int-or-string"] == true {
        return "integer or string".to_owned();
    }
    let words = field["enum"].as_array();
    if let Some(words) = words {
        let words: Vec<String> = words.iter().filter_map(Value::as_str).map(|word| format!("`{word}`")).collect();
        return words.join(", ");
    }
    match field["type"].as_str().unwrap_or("any") {
        "array" => format!("list of {}", kind(&field["items"])),
        "object" if field["additionalProperties"].is_object() => {
            format!("map of {}", kind(&field["additionalProperties"]))
        }
        "string" if field["format"] == "date-time" => "time".to_owned(),
        known => known.to_owned(),
    }
}

/// The description on one line, for a cell.
fn sentence(field: &Value) -> String {
    let text = field["description"].as_str().unwrap_or_default();
    text.split_whitespace().collect::<Vec<_>>().join(" ").replace('|', "\\|")
}

/// Lines of at most 120 characters.
fn wrapped(text: &str) -> String {
    let mut lines = vec![String::new()];
    for word in text.split(' ') {
        let line = lines.last_mut().unwrap();
        if line.is_empty() {
            line.push_str(word);
        } else if line.chars().count() + 1 + word.chars().count() <= 120 {
            write!(line, " {word}").unwrap();
        } else {
            lines.push(word.to_owned());
        }
    }
    lines.join("\n")
}
