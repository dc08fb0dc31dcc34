//! A curve certificate that somebody wrote into a spec.

use std::fmt;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

/// A curve certificate as text. It holds a secret key, so [`fmt::Debug`] does not show it; it must go nowhere but to
/// the Secret of the MiniCluster.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct CertificateText(String);

impl CertificateText {
    /// The text, secret key included.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for CertificateText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("CertificateText([redacted])")
    }
}

impl JsonSchema for CertificateText {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "CertificateText".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string" })
    }
}
