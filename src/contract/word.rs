//! Words that a newer version added to an enumeration: an older one reads them, shows them, and goes on.

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;

/// Bytes of a word that are kept: the enumerations of Kubernetes' APIs have shorter ones.
const CAPACITY: usize = 31;

/// A word that this version does not know, as it was read. What is longer than 31 bytes is cut.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Word {
    text: [u8; CAPACITY],
    length: u8,
}

impl Word {
    /// Its text.
    pub(crate) fn as_str(&self) -> &str {
        self.text.get(..self.length.into()).and_then(|text| std::str::from_utf8(text).ok()).unwrap_or_default()
    }
}

impl From<&str> for Word {
    fn from(word: &str) -> Self {
        let cut = &word[..word.floor_char_boundary(CAPACITY)];
        let mut text = [0; CAPACITY];
        text[..cut.len()].copy_from_slice(cut.as_bytes());
        Self { text, length: u8::try_from(cut.len()).unwrap_or(0) }
    }
}

impl fmt::Display for Word {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl fmt::Debug for Word {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl Serialize for Word {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

impl<'de> Deserialize<'de> for Word {
    /// A field that was a boolean before may be one still in what is stored.
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = Value::deserialize(deserializer)?;
        Ok(value.as_str().map_or_else(|| Self::from(value.to_string().as_str()), Self::from))
    }
}

/// Shows an enumeration with a variant `Unknown(Word)` by its words.
#[macro_export]
macro_rules! shown_by_its_words {
    ($kind:ty) => {
        impl std::fmt::Display for $kind {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                match self {
                    Self::Unknown(word) => word.fmt(f),
                    known => f.pad(&format!("{known:?}")),
                }
            }
        }
    };
}
pub use shown_by_its_words;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::BurstPhase;

    #[test]
    fn a_word_of_a_newer_version_is_read_shown_and_written_as_it_is() {
        let phase: BurstPhase = serde_json::from_value("Thawing".into()).unwrap();
        assert_eq!(phase, BurstPhase::Unknown(Word::from("Thawing")));
        assert_eq!(phase.to_string(), "Thawing");
        assert_eq!(serde_json::to_value(phase).unwrap(), "Thawing");
        assert_eq!(BurstPhase::Finished.to_string(), "Finished");
    }

    #[test]
    fn no_text_is_too_long_and_none_is_cut_within_a_character() {
        for text in ["", "a", &"ä".repeat(15), &"x".repeat(31)] {
            assert_eq!(Word::from(text).as_str(), text);
        }
        assert_eq!(Word::from("x".repeat(99).as_str()).as_str().len(), 31);
        assert_eq!(Word::from("ä".repeat(99).as_str()).as_str(), "ä".repeat(15));
    }
}
