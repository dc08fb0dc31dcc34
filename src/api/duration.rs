//! Durations as people write them in specs: `90s`, `5m`, `1h30m`.

use std::time::Duration;

/// What the schema accepts as a duration.
pub const PATTERN: &str = r"^([0-9]+(\.[0-9]+)?(ms|s|m|h))+$";

/// Reads a duration.
///
/// # Errors
/// A text that is no duration (the schema refuses most of them).
pub fn parse(text: &str) -> Result<Duration, InvalidDuration> {
    let invalid = || InvalidDuration { text: text.to_owned() };
    let duration: jiff::SignedDuration = text.parse().map_err(|_| invalid())?;
    Duration::try_from(duration).map_err(|_| invalid())
}

/// A text that is no duration.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is no duration: write it like 90s, 5m or 1h30m")]
pub struct InvalidDuration {
    /// What was written.
    pub text: String,
}
