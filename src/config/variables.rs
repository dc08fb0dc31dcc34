//! `TRIBUTARY__SECTION__KEY` variables.

use figment::providers::Env;
use figment::value::{Dict, Map, Value};
use figment::{Metadata, Profile, Provider};

use super::ENV_PREFIX;

/// One variable: `section.key` and its value.
pub(super) struct Variable(String, Value);

/// Those of the process.
pub(super) fn all() -> impl Iterator<Item = Variable> {
    let all: Vec<_> = Env::prefixed(ENV_PREFIX).split("__").iter().collect();
    all.into_iter().map(|(key, text)| Variable(key.to_string(), value(key.as_str(), &text)))
}

impl Provider for Variable {
    fn metadata(&self) -> Metadata {
        let name = self.0.replace('.', "__").to_uppercase();
        Metadata::named(format!("the environment variable {ENV_PREFIX}{name}"))
    }

    fn data(&self) -> Result<Map<Profile, Dict>, figment::Error> {
        let nested = figment::util::nest(&self.0, self.1.clone()).into_dict().unwrap_or_default();
        Ok(Profile::Default.collect(nested))
    }
}

/// How keys of numbers end.
pub(super) const UNITS: [&str; 4] = ["_seconds", "_millis", "_days", "_mib"];

/// A value as figment reads it. What it takes for a number is a text as it is written, such as `007` or `1.10`, unless the key is
/// of a number.
fn value(key: &str, text: &str) -> Value {
    let Ok(value) = text.parse::<Value>();
    let is_text = matches!(value, Value::Num(..)) && !UNITS.iter().any(|unit| key.ends_with(unit));
    if is_text { Value::from(text.trim()) } else { value }
}
