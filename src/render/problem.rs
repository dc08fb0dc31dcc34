//! Why a MiniCluster cannot be carried out as it is written.

use std::fmt;

/// Most problems that are told in one message.
const MOST_TOLD: usize = 100;

/// One thing that is wrong with a spec: where, what kind, and a sentence for the person who wrote it.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Problem {
    /// Path of the field, as the user would write it: `spec.containers[1].name`.
    pub field: String,
    /// CamelCase reason, for conditions and events.
    pub reason: &'static str,
    /// One sentence: what is wrong and what to write instead. It does not repeat the path.
    pub message: String,
}

/// Reasons a [`Problem`] can have. Conditions and events carry them, so they do not change.
pub mod reason {
    /// A name that an object or a host made from it cannot bear.
    pub const INVALID_NAME: &str = "InvalidName";
    /// `size`, `minSize` and `maxSize` do not go together.
    pub const INVALID_SIZE: &str = "InvalidSize";
    /// A value that is out of range or that nobody understands.
    pub(crate) const INVALID_VALUE: &str = "InvalidValue";
    /// Not exactly one container runs Flux, or containers are named alike.
    pub(crate) const INVALID_CONTAINERS: &str = "InvalidContainers";
    /// Fields that exclude each other.
    pub(crate) const CONFLICTING_FIELDS: &str = "ConflictingFields";
    /// A field that others make necessary.
    pub(crate) const MISSING_FIELD: &str = "MissingField";
    /// A volume without source or place.
    pub(crate) const INVALID_VOLUME: &str = "InvalidVolume";
    /// A volume that the cluster's administrator does not let MiniClusters have.
    pub(crate) const VOLUME_NOT_ALLOWED: &str = "VolumeNotAllowed";
    /// Declared bursts, or the lead broker they join, that make no instance.
    pub(crate) const INVALID_BURSTING: &str = "InvalidBursting";
    /// A certificate no broker would take.
    pub(crate) const INVALID_CERTIFICATE: &str = "InvalidCertificate";
    /// Scripts and configuration that do not fit into the objects that carry them.
    pub(crate) const TOO_LARGE: &str = "TooLarge";

    /// All of them.
    pub const ALL: [&str; 11] = [
        INVALID_NAME,
        INVALID_SIZE,
        INVALID_VALUE,
        INVALID_CONTAINERS,
        CONFLICTING_FIELDS,
        MISSING_FIELD,
        INVALID_VOLUME,
        VOLUME_NOT_ALLOWED,
        INVALID_BURSTING,
        INVALID_CERTIFICATE,
        TOO_LARGE,
    ];
}

impl Problem {
    /// A problem with the field at `path`.
    pub fn new(field: impl Into<String>, reason: &'static str, message: impl Into<String>) -> Self {
        Self { field: field.into(), reason, message: message.into() }
    }

    /// A word that this version does not know. The definition may be of a newer one, which knows it.
    pub(crate) fn unknown_word(field: impl Into<String>, word: impl fmt::Display, known: &[&str]) -> Self {
        Self::new(field, reason::INVALID_VALUE, format!("\"{word}\" is none of {}", known.join(", ")))
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.field, self.message)
    }
}

/// Everything that is wrong with a spec, never empty, in the order of the spec's sections.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub struct Problems(Vec<Problem>);

impl Problems {
    /// `Ok` if nothing is wrong.
    ///
    /// # Errors
    /// The problems, if there are any.
    pub(crate) fn check(problems: Vec<Problem>) -> Result<(), Self> {
        if problems.is_empty() { Ok(()) } else { Err(Self(problems)) }
    }

    /// The problems.
    pub fn iter(&self) -> std::slice::Iter<'_, Problem> {
        self.0.iter()
    }

    /// The reason of the first one: what a condition carries.
    pub fn reason(&self) -> &'static str {
        self.0.first().map_or("Invalid", |problem| problem.reason)
    }
}

impl From<Problem> for Problems {
    fn from(problem: Problem) -> Self {
        Self(vec![problem])
    }
}

impl IntoIterator for Problems {
    type Item = Problem;
    type IntoIter = std::vec::IntoIter<Problem>;
    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter()
    }
}

/// The sentences, each with its field, separated by semicolons: the message of a condition. Of very many, the first ones.
impl fmt::Display for Problems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, problem) in self.0.iter().take(MOST_TOLD).enumerate() {
            if index > 0 {
                f.write_str("; ")?;
            }
            problem.fmt(f)?;
        }
        match self.0.len().saturating_sub(MOST_TOLD) {
            0 => Ok(()),
            more => write!(f, "; and {more} more problems"),
        }
    }
}
