//! What an object's event says.

/// An event to publish on an object, once, when the step that decided it took effect.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Note {
    /// Something that needs attention.
    pub warning: bool,
    /// CamelCase reason.
    pub reason: String,
    /// One sentence.
    pub message: String,
}

impl Note {
    /// All goes its way.
    pub(crate) fn normal(reason: impl Into<String>, message: impl Into<String>) -> Self {
        Self { warning: false, reason: reason.into(), message: message.into() }
    }

    /// Something needs attention.
    pub(crate) fn warning(reason: impl Into<String>, message: impl Into<String>) -> Self {
        Self { warning: true, ..Self::normal(reason, message) }
    }
}
