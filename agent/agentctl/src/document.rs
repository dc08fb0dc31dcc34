//! What programs read: each document says its version and kind, and has a schema in the repository.
//!
//! The envelope is the same for all commands (`apiVersion`, `kind`), so that a reader can tell what it was given; lists
//! are `items`. [`schemas`] makes the files `src/guide/schemas/KIND.json`.

use schemars::JsonSchema;
use schemars::generate::SchemaSettings;
use serde::Serialize;
use serde_json::{Value, json};

use crate::cli::{Format, Target};
use crate::commands;
use crate::error::{Failure, Result};
use crate::{output, paste};

/// Version of the documents. Fields are added within a version, never renamed or removed, and never change their meaning.
pub const API_VERSION: &str = "agentctl.tributary.dev/v1";

/// What a command prints with `-o json` and `-o yaml`.
pub(crate) trait Document: Serialize + JsonSchema {
    /// Its kind, a CamelCase word: also the name of its schema.
    const KIND: &'static str;

    /// What people are told instead of an empty table.
    fn nothing(&self) -> Option<&'static str> {
        None
    }
}

/// A document as it is written.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Envelope<'a, T> {
    api_version: &'static str,
    kind: &'static str,
    #[serde(flatten)]
    document: &'a T,
}

/// A document in the asked form; `table` makes the text for people.
pub(crate) fn text<T: Document>(format: Format, value: &T, table: impl FnOnce(&T, bool) -> String) -> Result<String> {
    let document = Envelope { api_version: API_VERSION, kind: T::KIND, document: value };
    match format {
        Format::Table => Ok(table(value, false)),
        Format::Wide => Ok(table(value, true)),
        Format::Json => json(&document),
        Format::Yaml => yaml(&document),
    }
}

/// As JSON for people.
pub(crate) fn json(value: &impl Serialize) -> Result<String> {
    let text = serde_json::to_string_pretty(value);
    text.map(|text| text + "\n").map_err(|error| Failure::new("failed to write JSON").because(error))
}

/// As YAML.
pub(crate) fn yaml(value: &impl Serialize) -> Result<String> {
    serde_saphyr::to_string(value).map_err(|error| Failure::new("failed to write YAML").because(error))
}

/// A list in the asked form. Commands of its table lead to the cluster of `target`. The table is cut to the terminal, unless a wide
/// one is asked for; that there is nothing is no data, and goes to standard error.
pub(crate) fn list<T: Document>(
    target: &Target,
    format: Format,
    value: &T,
    table: impl FnOnce(&T, bool) -> String,
) -> Result<String> {
    if let (Format::Table | Format::Wide, Some(nothing)) = (format, value.nothing()) {
        output::remark(&paste::whole(nothing, target));
        return Ok(String::new());
    }
    let text = text(format, value, |value, wide| paste::whole(&table(value, wide), target))?;
    Ok(match (format, output::columns()) {
        (Format::Table, Some(columns)) => output::fitted(&text, columns),
        _ => text,
    })
}

/// A document, the commands that print it, and its schema (JSON Schema 2020-12).
#[derive(Debug)]
pub struct Schema {
    /// Its kind.
    pub kind: &'static str,
    /// Command lines without `-o json`.
    pub commands: &'static str,
    /// Fields that a newer version adds are allowed by it.
    pub schema: Value,
}

/// All documents, by kind.
pub fn schemas() -> Vec<Schema> {
    vec![
        schema::<commands::bursts::BurstList>("agentctl bursts"),
        schema::<commands::check::report::Report>("agentctl check"),
        #[cfg(feature = "demo")]
        schema::<commands::demo::Report>("agentctl demo"),
        schema::<crate::explain::Explanation>("agentctl why NAME"),
        schema::<commands::migrate::Report>("agentctl migrate check"),
        schema::<commands::mini_cluster::Row>("agentctl minicluster describe NAME"),
        schema::<commands::mini_cluster::MiniClusterList>("agentctl minicluster list"),
        schema::<commands::peers::PeerList>("agentctl peers, agentctl peer list"),
        schema::<commands::plan::report::Report>("agentctl plan -f FILE"),
        schema::<commands::status::Status>("agentctl status"),
        schema::<commands::token::TokenList>("agentctl token list"),
        schema::<commands::usage::Report>("agentctl usage"),
        schema::<commands::version::Versions>("agentctl version"),
    ]
}

fn schema<T: Document>(commands: &'static str) -> Schema {
    let generator = SchemaSettings::draft2020_12().for_serialize().into_generator();
    let mut schema = generator.into_root_schema_for::<T>().to_value();
    schema["title"] = json!(T::KIND);
    let mut properties = json!({
        "apiVersion": {"description": "Version of this document.", "const": API_VERSION},
        "kind": {"description": "What this document is.", "const": T::KIND},
    });
    let all = properties.as_object_mut().expect("it was written as an object");
    all.extend(schema["properties"].as_object().cloned().unwrap_or_default());
    schema["properties"] = properties;
    let required = schema["required"].as_array().cloned().unwrap_or_default();
    schema["required"] = [json!("apiVersion"), json!("kind")].into_iter().chain(required).collect();
    Schema { kind: T::KIND, commands, schema }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Serialize, JsonSchema)]
    struct Tide {
        height: u32,
    }

    impl Document for Tide {
        const KIND: &'static str = "Tide";
    }

    #[test]
    fn every_form_says_what_it_is() {
        let shown =
            |format| text(format, &Tide { height: 3 }, |tide, wide| format!("{} {wide}\n", tide.height)).unwrap();
        let json = "{\n  \"apiVersion\": \"agentctl.tributary.dev/v1\",\n  \"kind\": \"Tide\",\n  \"height\": 3\n}\n";
        assert_eq!(shown(Format::Json), json);
        assert_eq!(shown(Format::Yaml), "apiVersion: agentctl.tributary.dev/v1\nkind: Tide\nheight: 3\n");
        assert_eq!([shown(Format::Table), shown(Format::Wide)], ["3 false\n", "3 true\n"]);
    }

    /// The danger: a script reads `no tides` as a row.
    #[test]
    fn an_empty_list_is_no_text_for_people_and_a_document_for_programs() {
        #[derive(Serialize, JsonSchema)]
        struct Tides {
            items: Vec<u32>,
        }
        impl Document for Tides {
            const KIND: &'static str = "TideList";
            fn nothing(&self) -> Option<&'static str> {
                self.items.is_empty().then_some("no tides")
            }
        }
        let target = Target { context: Some("west".into()), ..Target::default() };
        let table = "TIDE: `agentctl peers`\n";
        let shown = |items: Vec<u32>, format| list(&target, format, &Tides { items }, |_, _| table.to_owned()).unwrap();
        assert_eq!(shown(Vec::new(), Format::Table), "");
        assert_eq!(shown(vec![1], Format::Table), "TIDE: `agentctl --context west peers`\n");
        assert!(shown(Vec::new(), Format::Json).contains("\"items\": []"));
    }

    #[test]
    fn no_two_documents_have_one_kind() {
        let kinds: Vec<_> = schemas().iter().map(|schema| schema.kind).collect();
        let mut distinct = kinds.clone();
        distinct.sort_unstable();
        distinct.dedup();
        assert_eq!(kinds, distinct);
    }
}
