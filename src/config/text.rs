//! Lenient values: what an environment variable can carry.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;

use serde::Deserialize;
use serde::de::{Deserializer, Error, MapAccess, SeqAccess, Unexpected, Visitor};

/// A string, also where the environment's `true` was taken for a boolean, or the file has `42` without quotes.
pub(super) fn text<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    struct Text;
    impl Visitor<'_> for Text {
        type Value = String;
        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a string")
        }
        fn visit_str<E: Error>(self, value: &str) -> Result<String, E> {
            Ok(value.to_owned())
        }
        fn visit_bool<E: Error>(self, value: bool) -> Result<String, E> {
            Ok(value.to_string())
        }
        fn visit_i64<E: Error>(self, value: i64) -> Result<String, E> {
            Ok(value.to_string())
        }
        fn visit_u64<E: Error>(self, value: u64) -> Result<String, E> {
            Ok(value.to_string())
        }
    }
    deserializer.deserialize_any(Text)
}

/// A string that may be left out, as [`text`].
pub(super) fn optional<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<String>, D::Error> {
    #[derive(Deserialize)]
    struct Text(#[serde(deserialize_with = "text")] String);
    Ok(Option::<Text>::deserialize(deserializer)?.map(|Text(text)| text))
}

/// A map of strings: a table, or `k=v,k=v` (label keys have dots, which the environment cannot nest).
pub(super) fn labels<'de, D: Deserializer<'de>>(deserializer: D) -> Result<BTreeMap<String, String>, D::Error> {
    struct Labels;
    impl<'de> Visitor<'de> for Labels {
        type Value = BTreeMap<String, String>;
        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a table of strings, or \"key=value,key=value\"")
        }
        fn visit_str<E: Error>(self, value: &str) -> Result<Self::Value, E> {
            let pairs = value.split(',').map(str::trim).filter(|pair| !pair.is_empty());
            pairs
                .map(|pair| match pair.split_once('=') {
                    Some((key, value)) => Ok((key.trim().to_owned(), value.trim().to_owned())),
                    None => Err(E::invalid_value(Unexpected::Str(pair), &self)),
                })
                .collect()
        }
        fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
            let mut labels = BTreeMap::new();
            while let Some((key, value)) = map.next_entry::<String, String>()? {
                labels.insert(key, value);
            }
            Ok(labels)
        }
    }
    deserializer.deserialize_any(Labels)
}

/// A duration as people write it: `24h`, `90s`, `1h 30m`, `30d` (days of 24 hours), or ISO 8601's `PT24H`.
pub(super) mod duration {
    use std::time::Duration;

    use serde::de::{Deserialize, Deserializer, Error};
    use serde::ser::{Error as _, Serializer};

    pub(in super::super) fn serialize<S: Serializer>(value: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
        let span = jiff::SignedDuration::try_from(*value).map_err(S::Error::custom)?;
        serializer.serialize_str(&format!("{span:#}"))
    }

    pub(in super::super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
        let text = String::deserialize(deserializer)?;
        let wrong = || D::Error::custom(format!("{text:?} is not a duration such as \"30d\", \"24h\" or \"90s\""));
        let span: jiff::Span = text.parse().map_err(|_| wrong())?;
        let duration = span.to_duration(jiff::SpanRelativeTo::days_are_24_hours()).map_err(|_| wrong())?;
        Duration::try_from(duration).map_err(|_| wrong())
    }
}

/// A list of strings: an array, or one comma-separated string.
pub(super) fn list<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<String>, D::Error> {
    struct List;
    impl<'de> Visitor<'de> for List {
        type Value = Vec<String>;
        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a list of strings, or \"a,b\"")
        }
        fn visit_str<E: Error>(self, value: &str) -> Result<Self::Value, E> {
            Ok(value.split(',').map(|item| item.trim().to_owned()).filter(|item| !item.is_empty()).collect())
        }
        fn visit_bool<E: Error>(self, value: bool) -> Result<Self::Value, E> {
            Ok(vec![value.to_string()])
        }
        fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
            let mut items = Vec::new();
            while let Some(item) = seq.next_element()? {
                items.push(item);
            }
            Ok(items)
        }
    }
    deserializer.deserialize_any(List)
}

/// A list of IP addresses: an array, or one comma-separated string.
pub(super) fn addresses<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<IpAddr>, D::Error> {
    let address = |text: String| {
        text.parse().map_err(|_| D::Error::custom(format!("{text:?} is not an IP address such as \"10.244.0.7\"")))
    };
    list(deserializer)?.into_iter().map(address).collect()
}
