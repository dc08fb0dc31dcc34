//! Durations as people write them in specs: `90s`, `5m`, `1h30m`.

use std::borrow::Cow;
use std::fmt;
use std::time::Duration;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// What the schema accepts as a duration.
pub(crate) const PATTERN: &str = r"^([0-9]+(\.[0-9]+)?(ms|s|m|h))+$";

/// Reads a duration: all that the schema accepts.
///
/// # Errors
/// A text that is no duration (the schema refuses most of them).
pub fn parse(text: &str) -> Result<Duration, InvalidDuration> {
    let invalid = || InvalidDuration { text: text.to_owned() };
    if text.is_empty() {
        return Err(invalid());
    }
    let mut seconds = 0.0;
    let mut rest = text;
    while !rest.is_empty() {
        let (number, more) = rest.split_at(rest.find(|c: char| c.is_ascii_lowercase()).ok_or_else(invalid)?);
        let (unit, more) = more.split_at(more.find(|c: char| !c.is_ascii_lowercase()).unwrap_or(more.len()));
        let scale = match unit {
            "h" => 3600.0,
            "m" => 60.0,
            "s" => 1.0,
            "ms" => 0.001,
            _ => return Err(invalid()),
        };
        seconds += scale * number.parse::<f64>().map_err(|_| invalid())?;
        rest = more;
    }
    Duration::try_from_secs_f64(seconds).map_err(|_| invalid())
}

/// A text that is no duration.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is no duration: write it like 90s, 5m or 1h30m")]
pub struct InvalidDuration {
    /// What was written.
    pub text: String,
}

/// How long something may last, in whole seconds: `90s`, `1h30m`. Parts of a second count as one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Lasting {
    /// Seconds.
    pub seconds: i64,
}

impl Lasting {
    /// So many seconds.
    pub const fn of_seconds(seconds: i64) -> Self {
        Self { seconds }
    }

    /// As a length of time.
    pub fn duration(self) -> Duration {
        Duration::from_secs(u64::try_from(self.seconds).unwrap_or(0))
    }

    /// Its seconds where an unsigned number is wanted; longer ones are the longest.
    pub fn unsigned(self) -> u32 {
        u32::try_from(self.seconds.max(0)).unwrap_or(u32::MAX)
    }
}

impl From<Duration> for Lasting {
    fn from(duration: Duration) -> Self {
        let seconds = duration.as_secs().saturating_add((duration.subsec_nanos() > 0).into());
        Self { seconds: i64::try_from(seconds).unwrap_or(i64::MAX) }
    }
}

impl From<u32> for Lasting {
    fn from(seconds: u32) -> Self {
        Self { seconds: seconds.into() }
    }
}

impl fmt::Display for Lasting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (hours, minutes, seconds) = (self.seconds / 3600, self.seconds / 60 % 60, self.seconds % 60);
        if hours > 0 {
            write!(f, "{hours}h")?;
        }
        if minutes > 0 {
            write!(f, "{minutes}m")?;
        }
        if seconds > 0 || self.seconds == 0 {
            write!(f, "{seconds}s")?;
        }
        Ok(())
    }
}

impl Serialize for Lasting {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Lasting {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = Cow::<str>::deserialize(deserializer)?;
        parse(&text).map(Self::from).map_err(de::Error::custom)
    }
}

impl JsonSchema for Lasting {
    fn schema_name() -> Cow<'static, str> {
        "Lasting".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": "string",
            "maxLength": 32,
            "pattern": PATTERN,
            "x-kubernetes-validations": [{
                "rule": "duration(self) <= duration('87600h')",
                "message": "must be a duration of at most 87600h (ten years), like 90s, 5m or 1h30m",
            }],
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_duration_is_read_in_whatever_order_it_is_written() {
        for (text, milliseconds) in [("1h30m", 5_400_000), ("30m1h", 5_400_000), ("1.5h30m", 7_200_000), ("250ms", 250)]
        {
            assert_eq!(parse(text), Ok(Duration::from_millis(milliseconds)), "{text}");
        }
        for text in ["", "5", "5 m", "m", "1..5h", "-1s", "1d", "1h 5m", "1e3s"] {
            assert!(parse(text).is_err(), "{text}");
        }
        assert!(parse(&format!("{}h", "9".repeat(40))).is_err());
    }

    #[test]
    fn what_people_write_is_whole_seconds_and_is_shown_shortly() {
        for (text, seconds, shown) in [
            ("0s", 0, "0s"),
            ("90s", 90, "1m30s"),
            ("1.5h", 5400, "1h30m"),
            ("24h", 86400, "24h"),
            ("1h1s", 3601, "1h1s"),
            ("1500ms", 2, "2s"),
        ] {
            let read: Lasting = serde_json::from_value(json!(text)).unwrap();
            assert_eq!((read.seconds, read.to_string()), (seconds, shown.to_owned()), "{text}");
            assert_eq!(serde_json::from_value::<Lasting>(json!(shown)).unwrap(), read);
        }
        let told = serde_json::from_value::<Lasting>(json!("soon")).unwrap_err().to_string();
        assert!(told.contains("write it like 90s"), "{told}");
    }
}
