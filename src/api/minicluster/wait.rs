//! Whether the user's command waits for brokers of the bursts.

use std::time::Duration;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;
use tributary_contract::word::Word;

use crate::duration;
use crate::schema::{absent_if_zero, is_default};

/// Whether the user's command starts before brokers of the bursts have joined.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
pub struct BurstWait {
    /// `None` (the default): do not wait. `All`: wait for every broker of every burst. A number: wait for that many.
    #[serde(rename = "for", skip_serializing_if = "is_default")]
    pub target: WaitFor,

    /// The longest to wait, for example `5m` or `1h30m`; then the command starts with the brokers there are.
    /// Without it, it waits as long as it takes. With `span` and `tasks: 0`, the command then asks for as many nodes as
    /// there are brokers; with other `tasks`, its job waits in Flux until there is room for them.
    #[serde(skip_serializing_if = "is_default", deserialize_with = "absent_if_zero")]
    #[schemars(regex(pattern = duration::PATTERN))]
    pub timeout: Option<String>,
}

impl BurstWait {
    /// The longest to wait; `None` if no limit is written.
    ///
    /// # Errors
    /// A text that is no duration (the schema refuses most of them).
    pub fn timeout(&self) -> Result<Option<Duration>, InvalidTimeout> {
        let Some(text) = self.timeout.as_deref() else { return Ok(None) };
        duration::parse(text).map(Some).map_err(|_| InvalidTimeout { text: text.to_owned() })
    }
}

/// `flux.bursting.wait.timeout` is no duration.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("flux.bursting.wait.timeout is not a duration: {text:?}; write it like 90s, 5m or 1h30m")]
pub struct InvalidTimeout {
    /// What was written.
    pub text: String,
}

/// How many brokers of the bursts the command waits for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WaitFor {
    /// None: the command starts as soon as the root's own brokers are there, as upstream's does.
    #[default]
    None,
    /// Every broker of every declared burst.
    All,
    /// At least so many brokers of bursts, whichever.
    Brokers(u32),
    /// A word of a newer version: no instance is made.
    Unknown(Word),
}

impl Serialize for WaitFor {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::None => serializer.serialize_str("None"),
            Self::All => serializer.serialize_str("All"),
            Self::Brokers(count) => serializer.serialize_u32(*count),
            Self::Unknown(word) => word.serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for WaitFor {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let written = match Value::deserialize(deserializer)? {
            Value::String(text) => text,
            other => other.to_string(),
        };
        Ok(match written.as_str() {
            "None" => Self::None,
            "All" => Self::All,
            text => text.parse().map_or_else(|_| Self::Unknown(text.into()), Self::Brokers),
        })
    }
}

impl JsonSchema for WaitFor {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "WaitFor".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        // A bound applies to integers only, a pattern to text only.
        json_schema!({
            "x-kubernetes-int-or-string": true,
            "minimum": 0,
            "maximum": 100_000,
            "pattern": "^(None|All|[0-9]{1,5})$",
        })
    }
}
