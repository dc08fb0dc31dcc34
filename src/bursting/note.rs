//! What an object's event says.

/// An event to publish on an object, once, when the step that decided it took effect.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Note {
    /// Something that needs attention.
    pub warning: bool,
    /// CamelCase reason.
    pub reason: String,
    /// One sentence.
    pub message: String,
}

impl Note {
    /// All goes its way.
    pub fn normal(reason: impl Into<String>, message: impl Into<String>) -> Self {
        Self { warning: false, reason: reason.into(), message: message.into() }
    }

    /// Something needs attention.
    pub fn warning(reason: impl Into<String>, message: impl Into<String>) -> Self {
        Self { warning: true, ..Self::normal(reason, message) }
    }
}
